"""Every budget at once: the sequences of a family that are worth having, over all budgets on the formula."""

from __future__ import annotations

import heapq

import numpy as np

from ..errors import InfeasibleBudget
from ..progress import report
from .canonical import LowerSetSequence
from .kusumoto import clock_of, minimum_formula_budget, plan_sequence
from .lower_sets import Family

AMPLE = 2**60
#: Seconds a dynamic program takes per set and time step, on one core of a plain machine; sets the grain of sweeps.
_SECONDS_PER_STATE = 3e-8
_SWEEP_SECONDS = 0.8


def time_centric(family: Family) -> list[LowerSetSequence]:
    """Time-centric sequences, from ample budgets down to the least.

    Where the family is small this is every breakpoint: after each answer comes the budget one byte below
    its peak. Else as many budgets as fit a second or two of work, always in the middle of the widest gap in overhead.
    """
    steps = int(clock_of(family.graph).steps.sum())
    each = max(1e-4, _SECONDS_PER_STATE * min(len(family), 3000) * (steps + 1))
    most = int(np.clip(_SWEEP_SECONDS / each, 24, 4000))
    return _every_breakpoint(family) if most > steps else _widest_gaps(family, most)


def _every_breakpoint(family: Family) -> list[LowerSetSequence]:
    found: list[LowerSetSequence] = []
    budget = AMPLE
    clock = clock_of(family.graph)
    while True:
        report(int(found[-1].paper_overhead / clock.step) if found else 0, int(clock.steps.sum()))
        try:
            sequence = plan_sequence(family, budget)
        except InfeasibleBudget:
            return found
        if found and found[-1].paper_overhead == sequence.paper_overhead:
            found.pop()  # the same overhead in less
        found.append(sequence)
        budget = sequence.paper_peak - 1


def _widest_gaps(family: Family, most: int) -> list[LowerSetSequence]:
    richest = plan_sequence(family, AMPLE)
    least = minimum_formula_budget(family)
    poorest = plan_sequence(family, least)
    found = [richest, poorest]
    gaps: list[tuple[float, int, int, LowerSetSequence, LowerSetSequence]] = []

    def note(low: int, poor: LowerSetSequence, rich: LowerSetSequence) -> None:
        """Between budget ``low``, whose answer is ``poor``, and the peak of ``rich``."""
        if rich.paper_overhead < poor.paper_overhead and rich.paper_peak - low > 1:
            gaps_order = -(poor.paper_overhead - rich.paper_overhead)
            heapq.heappush(gaps, (gaps_order, low, len(found), poor, rich))

    note(least, poorest, richest)
    while gaps and len(found) < most:
        report(len(found), most)
        _, low, _, poor, rich = heapq.heappop(gaps)
        middle = (low + rich.paper_peak) // 2
        sequence = plan_sequence(family, middle, at_least=poor)
        found.append(sequence)
        note(low, poor, sequence)
        note(middle, sequence, rich)
    return found


def memory_centric(
    family: Family, reading: str = "pareto", count: int = 48, budgets: list[int] | None = None
) -> list[LowerSetSequence]:
    """Memory-centric sequences at ``count`` budgets from the least to 2 M(V), and at ``budgets``."""
    least = max(1, minimum_formula_budget(family))
    grid = np.geomspace(least, max(least, 2 * family.graph.total_memory), count)
    wanted = {max(least, int(b)) for b in grid} | set(budgets or ())
    return [plan_sequence(family, b, "memory", reading) for b in sorted(wanted)]
