"""Choosing among a family's solutions by what they really need."""

from __future__ import annotations

from typing import NamedTuple

from ..errors import InfeasibleBudget
from ..memo import memo
from ..simulate import simulate
from ..solution import Request, Solution


class Measured(NamedTuple):
    """Overhead (the graph's time unit), ops run again, and simulated peak (bytes) of a solution."""

    overhead: float
    recomputed_ops: int
    peak: int


def measured(solution: Solution) -> Measured:
    """Simulated once, and remembered with the schedule."""

    def make() -> Measured:
        trace = simulate(solution.schedule)
        return Measured(trace.overhead, solution.schedule.recomputed_ops, trace.peak)

    return memo(solution.schedule, "measured", make)


def least_overhead(points: list[Solution], request: Request, name: str) -> Solution:
    """Among a method's solutions, the one with least overhead whose simulated peak keeps the budget.

    Equal overheads (ops that take no time): the one that runs fewer ops again, then the lower peak.

    Raises
    ------
    InfeasibleBudget
        Naming the least peak among them.
    """
    figures = [measured(s) for s in points]
    fitting = [(f, i) for i, f in enumerate(figures) if request.budget is None or f.peak <= request.budget]
    if not fitting:
        assert request.budget is not None
        raise InfeasibleBudget.of(name, request.budget, min(f.peak for f in figures))
    return points[min(fitting)[1]]
