"""dtr as a method; the runtime it asks is in :mod:`.dtr`, which a score of one's own is played on, too."""

from __future__ import annotations

from typing import Any

from ..errors import InfeasibleBudget
from ..joint import JointGraph
from ..memo import memo
from ..registry import Request, Solution, method
from ..units import format_exact
from .dtr import least_budget, play


def _minimum(joint: JointGraph, accounting: str, score: Any = "h-dtr", seed: int = 0) -> int:
    return memo(joint, ("dtr minimum", score, seed), lambda: least_budget(joint, score, seed))


@method("dtr", view="joint", paper="Kirisame et al. 2021", minimum=_minimum)
def dtr(joint: JointGraph, request: Request, score: Any = "h-dtr", seed: int = 0) -> Solution:
    """Online: evict the value with the least score when memory runs out, recompute on access."""
    try:
        schedule = play(joint, request.budget, score, seed)
    except InfeasibleBudget as error:
        minimum = _minimum(joint, "simulated", score, seed)
        raise InfeasibleBudget(
            f"{error}. The least it can do is about {format_exact(minimum)}.", minimum=minimum
        ) from None
    return Solution(schedule, details={"score": score if isinstance(score, str) else score.__name__})
