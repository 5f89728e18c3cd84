"""Choosing among a family's solutions by what they really need."""

from __future__ import annotations

from ..errors import InfeasibleBudget
from ..registry import Request, Solution
from ..simulate import simulate


def least_overhead(points: list[Solution], request: Request, name: str) -> Solution:
    """Among a method's solutions, the one with least overhead whose simulated peak keeps the budget.

    Raises
    ------
    InfeasibleBudget
        Naming the least peak among them.
    """
    measured = [(s, simulate(s.schedule)) for s in points]
    fitting = [
        (trace.overhead, solution.schedule.recomputed_ops, trace.peak, i)
        for i, (solution, trace) in enumerate(measured)
        if request.budget is None or trace.peak <= request.budget
    ]
    if not fitting:
        assert request.budget is not None
        raise InfeasibleBudget.of(name, request.budget, min(t.peak for _, t in measured))
    return points[min(fitting)[-1]]
