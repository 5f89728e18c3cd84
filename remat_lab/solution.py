"""What a method is asked, and what it answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from .errors import RematError
from .schedule import Schedule

ACCOUNTINGS = ("simulated", "paper")


class Request(NamedTuple):
    """What is asked of a method: a budget (``None``: no bound) and how it is counted."""

    budget: int | None
    accounting: str = "simulated"


@dataclass(frozen=True)
class Solution:
    """What a method answers.

    Attributes
    ----------
    schedule : Schedule
    details : the family's own object (a lower-set sequence, a policy table, ...)
    status : "optimal" (proven, within the family and accounting) or "feasible"
    paper_peak, paper_overhead : the method's own formula, reported under ``accounting="paper"``
    bound : a proven lower bound on the overhead of any schedule within the budget, whatever its order
    """

    schedule: Schedule
    details: Any = None
    status: str = "feasible"
    paper_peak: int | None = None
    paper_overhead: float | None = None
    bound: float | None = None


class MethodFailed(RematError):
    """A method returned something that is no answer; the message names what is wrong."""
