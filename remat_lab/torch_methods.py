"""torch's partitioner among the methods: for captured models only. torch loads when one is asked for a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import InfeasibleBudget
from .memo import memo
from .registry import Request, Solution, method
from .simulate import simulate

if TYPE_CHECKING:
    from .execution.capture import CapturedModel

#: Values of torch's activation_memory_budget that are tried when none is given.
FRACTIONS = (1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0.0)


def _solution(cap: CapturedModel, fraction: float) -> Solution:
    def make() -> Solution:
        from .execution.partitioner import partition

        return Solution(partition(cap, fraction), details={"activation_memory_budget": fraction})

    return memo(cap, ("torch partition", fraction), make)


@method(
    "torch-min-cut",
    view="captured",
    summary="torch.compile's minimum cut between forward and backward; knows no budget.",
    needs_budget=False,
)
def min_cut(cap: CapturedModel, request: Request) -> Solution:
    """torch.compile's minimum cut between forward and backward; knows no budget."""
    return _solution(cap, 1.0)


def _points(
    cap: CapturedModel, accounting: str, activation_memory_budget: float | None = None
) -> list[Solution]:
    fractions = FRACTIONS if activation_memory_budget is None else (activation_memory_budget,)
    return [_solution(cap, fraction) for fraction in fractions]


@method(
    "torch-budget",
    view="captured",
    summary="torch's activation memory budget: a knapsack over what to save; it bounds its own estimate of what is "
    "saved, not the peak, so the peak may rise as it falls.",
    points=_points,
)
def activation_memory_budget(
    cap: CapturedModel, request: Request, activation_memory_budget: float | None = None
) -> Solution:
    """Of torch's budgets (or the one given), the plan that recomputes least within ours."""
    found = [
        (simulate(solution.schedule), solution)
        for solution in _points(cap, request.accounting, activation_memory_budget)
    ]
    limit = request.budget
    fitting = found if limit is None else [pair for pair in found if pair[0].peak <= limit]
    if limit is not None and not fitting:
        raise InfeasibleBudget.of("torch-budget", limit, min(trace.peak for trace, _ in found))
    return min(fitting, key=lambda pair: (pair[0].overhead, pair[0].peak))[1]
