"""vanilla: no recomputation, the plain order, every value freed after its last use."""

from __future__ import annotations

from ..joint import JointGraph
from ..registry import Request, Solution, method
from ..schedule import Schedule


@method("vanilla", view="joint", needs_budget=False)
def vanilla(joint: JointGraph, request: Request) -> Solution:
    """Compute everything once and keep it until its last use."""
    return Solution(Schedule.vanilla(joint))
