"""Kusumoto et al. (NeurIPS 2019, arXiv 1905.11722): dynamic programs over lower sets.

State opt[L][t] = least cached memory M(U) over sequences that end in L with overhead t so far. From L to a
larger lower set L', with V' = L' \\ L, if

    opt[L][t] + 2 M(V') + M(delta+(L') \\ L') + M(delta-(delta+(L')) \\ L') <= B

then t' = t + T(V' \\ bd(L')) and m' = opt[L][t] + M(bd(L') \\ L) is a candidate for opt[L'][t']
(section 4.2). The approximate DP (section 4.3) does the same over the family {L^v}.

*Time-centric*: the least t with opt[V][t] finite. *Memory-centric* (section 4.4): a long overhead, since liveness
analysis gains most when V is cut coarsely. It has two readings. "pareto" takes the least cached memory, and the
least t with it: the end of the Pareto front of (t, m). That is what the authors' code does, and what gives the
lower simulated peaks, so it is the default. "largest" takes the largest t with opt[V][t] finite, as the paper
says it.

The programs themselves are in :mod:`remat_lab.solvers.dynamic_program`; they count time kept instead of overhead.
"""

from __future__ import annotations

from functools import reduce
from math import gcd
from typing import NamedTuple

import numpy as np

from ..errors import InfeasibleBudget
from ..graph import ComputationGraph
from ..memo import memo
from ..solution import Solution
from ..units import format_exact
from .canonical import LowerSetSequence, canonical_schedule, sequence_of
from .dynamic_program import feasible, least_cache_sequence, least_time_sequence, most_time_sequence
from .lower_sets import Family
from .transitions import Transitions

OBJECTIVES = ("time", "memory")
READINGS = ("pareto", "largest")

#: Overheads are counted in whole steps. Integer times that need no more steps are exact; others are rounded.
EXACT_STEPS = 16_000


class Clock(NamedTuple):
    """Times as whole steps: int64 array over nodes, the time one step stands for, and whether that is exact."""

    steps: np.ndarray
    step: float
    exact: bool


def clock_of(graph: ComputationGraph) -> Clock:
    """Integer times divided by their common divisor; if that takes too many steps, or times are fractions,
    rounded to a number of steps that suits the size of the graph.

    Rounding only blurs which sequence is chosen: the overhead of a sequence is always taken from the times.
    """

    def make() -> Clock:
        times = graph.time
        total = float(times.sum())
        if total == 0:
            return Clock(np.zeros(len(times), dtype=np.int64), 1.0, True)
        if total < 2**53 and np.array_equal(np.floor(times), times):
            whole = times.astype(np.int64)
            divisor = reduce(gcd, whole.tolist())
            if total / divisor <= EXACT_STEPS:
                return Clock(whole // divisor, float(divisor), True)
        step = total / float(np.clip(2_000_000 // len(times), 500, 4000))
        return Clock(np.rint(times / step).astype(np.int64), step, False)

    return memo(graph, "clock", make)


def transitions_of(family: Family) -> Transitions:
    """The family's transitions under its graph's clock."""
    return Transitions.of(family, clock_of(family.graph).steps)


def minimum_formula_budget(family: Family) -> int:
    """Least B for which the DP over this family is feasible, to the byte.

    Bisection on the feasibility test without the time axis: a smaller cache is never worse.
    """

    def make() -> int:
        transitions = transitions_of(family)
        low, high = 0, 2 * family.graph.total_memory
        while low < high:
            middle = (low + high) // 2
            if feasible(transitions, middle):
                high = middle
            else:
                low = middle + 1
        return low

    return memo(family, "minimum_formula_budget", make)


def check_choice(objective: str, reading: str) -> None:
    """Refuse an unknown objective or reading with a ValueError that names it."""
    if objective not in OBJECTIVES:
        raise ValueError(f"objective must be one of {OBJECTIVES}, got {objective!r}")
    if reading not in READINGS:
        raise ValueError(f"reading must be one of {READINGS}, got {reading!r}")


def plan_sequence(
    family: Family,
    budget: int,
    objective: str = "time",
    reading: str = "pareto",
    at_least: LowerSetSequence | None = None,
) -> LowerSetSequence:
    """The best lower-set sequence of a family within a budget on the paper's formula.

    Parameters
    ----------
    family : Family
    budget : int, bytes
    objective : "time" (least overhead) or "memory" (see the module docstring)
    reading : of "memory": "pareto" or "largest"
    at_least : a sequence from a part of the family that keeps the budget; makes the search shorter

    Raises
    ------
    InfeasibleBudget
        With the family's least budget.
    ValueError
        On an unknown objective or reading.
    """
    check_choice(objective, reading)
    transitions = transitions_of(family)
    budget = min(budget, 2**60)
    if objective == "time":
        known = None
        if at_least is not None and at_least.paper_peak <= budget:
            known = int(transitions.steps[at_least.kept].sum())
        path = most_time_sequence(transitions, budget, known)
    elif reading == "pareto":
        path = least_cache_sequence(transitions, budget)
    else:
        path = least_time_sequence(transitions, budget)
    if not len(path):
        minimum = minimum_formula_budget(family)
        raise InfeasibleBudget(
            f"no lower-set sequence fits {format_exact(budget)} by the paper's formula: the least "
            f"is {format_exact(minimum)}",
            minimum=minimum,
        )
    return sequence_of(family.graph, family.bits[path])


def solution_of(sequence: LowerSetSequence, status: str = "feasible") -> Solution:
    """A lower-set sequence compiled to a Solution."""
    return Solution(
        schedule=canonical_schedule(sequence.graph, sequence.bits),
        details=sequence,
        status=status,
        paper_peak=sequence.paper_peak,
        paper_overhead=sequence.paper_overhead,
    )


def paper_vanilla(graph: ComputationGraph) -> int:
    """The paper's formula for one segment: 2 M(V)."""
    return 2 * graph.total_memory
