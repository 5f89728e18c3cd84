"""Kusumoto et al. (NeurIPS 2019, arXiv 1905.11722): dynamic programs over lower sets.

State opt[L][t] = least cached memory M(U) over sequences that end in L with overhead t so far. From L to a
larger lower set L', with V' = L' \\ L, if

    opt[L][t] + 2 M(V') + M(delta+(L') \\ L') + M(delta-(delta+(L')) \\ L') <= B

then t' = t + T(V' \\ bd(L')) and m' = opt[L][t] + M(bd(L') \\ L) is a candidate for opt[L'][t']
(section 4.2). The approximate DP (section 4.3) does the same over the family {L^v}.

*Time-centric*: the least t with opt[V][t] finite. *Memory-centric*: the largest one (section 4.4), since
liveness analysis gains most when V is cut coarsely.
"""

from __future__ import annotations

from functools import reduce
from math import gcd
from typing import NamedTuple

import numpy as np
from numba import njit

from ..errors import InfeasibleBudget
from ..graph import ComputationGraph
from ..memo import memo
from ..progress import report
from ..registry import Request, Solution, method
from ..units import format_bytes
from .canonical import LowerSetSequence, canonical_schedule, sequence_of
from .lower_sets import Family, approximate_family
from .selection import least_overhead

OBJECTIVES = ("time", "memory")

#: Overheads are counted in whole steps; times that are no small integers are rounded to this many.
TIME_STEPS = 4000


class Clock(NamedTuple):
    """Times as whole steps: int64 array over nodes, and the time one step stands for."""

    steps: np.ndarray
    step: float


def clock_of(graph: ComputationGraph) -> Clock:
    """Integer times are kept exactly (divided by their common divisor); others are rounded to TIME_STEPS."""

    def make() -> Clock:
        times = graph.time
        total = float(times.sum())
        if total == 0:
            return Clock(np.zeros(len(times), dtype=np.int64), 1.0)
        whole = times.astype(np.int64)
        if np.array_equal(whole, times):
            divisor = reduce(gcd, whole.tolist())
            if total / divisor <= 4 * TIME_STEPS:
                return Clock(whole // divisor, float(divisor))
        step = total / TIME_STEPS
        return Clock(np.rint(times / step).astype(np.int64), step)

    return memo(graph, "clock", make)


def minimum_formula_budget(family: Family) -> int:
    """Least B for which the DP over this family is feasible, to the byte.

    Bisection on the feasibility test without the time axis: a smaller cache is never worse.
    """

    def make() -> int:
        low, high = 0, 2 * family.graph.total_memory
        arrays = _arrays(family)
        while low < high:
            middle = (low + high) // 2
            if _feasible(middle, *arrays):
                high = middle
            else:
                low = middle + 1
        return low

    return memo(family, "minimum", make)


def plan_sequence(family: Family, budget: int, objective: str = "time") -> LowerSetSequence:
    """The DP's answer for one formula budget.

    Raises
    ------
    InfeasibleBudget
        With the least feasible budget of the family.
    ValueError
        On an unknown objective.
    """
    if objective not in OBJECTIVES:
        raise ValueError(f"objective must be one of {OBJECTIVES}, got {objective!r}")
    clock = clock_of(family.graph)
    found = _solve(min(budget, 2**62), clock.steps, objective == "memory", *_arrays(family))
    if len(found) == 0:
        minimum = minimum_formula_budget(family)
        raise InfeasibleBudget(
            f"no lower-set sequence fits {format_bytes(budget)} ({budget} B) by the paper's formula: the least "
            f"is {format_bytes(minimum)} ({minimum} B)",
            minimum=minimum,
        )
    return sequence_of(family.graph, family.bits[found[::-1]])


def solution_of(sequence: LowerSetSequence, status: str = "feasible") -> Solution:
    """A lower-set sequence compiled to a Solution."""
    return Solution(
        schedule=canonical_schedule(sequence.graph, sequence.bits),
        details=sequence,
        status=status,
        paper_peak=sequence.paper_peak,
        paper_overhead=sequence.paper_overhead,
    )


def _formula_budgets(family: Family, count: int = 24) -> list[int]:
    least = minimum_formula_budget(family)
    most = max(least, 2 * family.graph.total_memory)
    return sorted(
        {max(least, int(b)) for b in np.geomspace(max(1, least), max(1, most), count)} | {least, most}
    )


def _points(graph: ComputationGraph, accounting: str, objective: str = "time") -> list[Solution]:
    def make() -> list[Solution]:
        family = approximate_family(graph)
        found = {}
        budgets = _formula_budgets(family)
        for i, budget in enumerate(budgets):
            report(i, len(budgets))
            for goal in OBJECTIVES if accounting == "simulated" else (objective,):
                sequence = plan_sequence(family, budget, goal)
                found[sequence.bits.tobytes()] = sequence
        if accounting == "simulated":  # one segment: nothing is dropped
            whole = sequence_of(graph, family.bits[-1:])
            found[whole.bits.tobytes()] = whole
        return [solution_of(s) for s in found.values()]

    return memo(graph, ("kusumoto-approx points", accounting, objective), make)


def _minimum(graph: ComputationGraph, accounting: str, objective: str = "time") -> int:
    if accounting == "paper":
        return minimum_formula_budget(approximate_family(graph))
    from ..simulate import simulate

    return min(simulate(s.schedule).peak for s in _points(graph, accounting, objective))


def paper_vanilla(graph: ComputationGraph) -> int:
    """The paper's formula for one segment: 2 M(V)."""
    return 2 * graph.total_memory


@method(
    "kusumoto-approx",
    view="graph",
    paper="Kusumoto et al. 2019, section 4.3",
    points=_points,
    minimum=_minimum,
    paper_vanilla=paper_vanilla,
)
def kusumoto_approx(graph: ComputationGraph, request: Request, objective: str = "time") -> Solution:
    """Approximate DP over the lower sets L^v; objective "time" or "memory"."""
    if objective not in OBJECTIVES:
        raise ValueError(f"objective must be one of {OBJECTIVES}, got {objective!r}")
    if request.accounting == "paper":
        budget = 2 * graph.total_memory if request.budget is None else request.budget
        return solution_of(plan_sequence(approximate_family(graph), budget, objective))
    return least_overhead(_points(graph, "simulated", objective), request, "kusumoto-approx")


def _arrays(family: Family) -> tuple[np.ndarray, ...]:
    return (family.bits, family.memory, *family.boundary, family.arriving, family.graph.memory)


@njit(cache=True)
def _subset(bits, a, b):
    for w in range(bits.shape[1]):
        if bits[a, w] & ~bits[b, w] != 0:
            return False
    return True


@njit(cache=True)
def _feasible(budget, bits, memory, bd_start, bd_index, arriving, node_memory):
    """f[L'] = min over L of f[L] + M(bd(L') \\ L), subject to the budget test; feasible if f[V] is finite."""
    sets = len(memory)
    least = np.full(sets, -1, dtype=np.int64)
    least[0] = 0
    for a in range(sets):
        if least[a] < 0:
            continue
        for b in range(a + 1, sets):
            if least[a] + 2 * (memory[b] - memory[a]) + arriving[b] > budget or not _subset(bits, a, b):
                continue
            cache = least[a]
            for e in range(bd_start[b], bd_start[b + 1]):
                v = bd_index[e]
                if (bits[a, v >> 6] >> np.uint64(v & 63)) & np.uint64(1) == 0:
                    cache += node_memory[v]
            if least[b] < 0 or cache < least[b]:
                least[b] = cache
    return least[sets - 1] >= 0


@njit(cache=True)
def _solve(budget, steps, memory_centric, bits, memory, bd_start, bd_index, arriving, node_memory):
    """The DP. Returns indices of the lower sets of the answer, last first; empty if infeasible."""
    sets = len(memory)
    horizon = steps.sum() + 1
    time_of = np.zeros(sets, dtype=np.int64)
    for s in range(sets):
        for v in range(len(steps)):
            if (bits[s, v >> 6] >> np.uint64(v & 63)) & np.uint64(1) != 0:
                time_of[s] += steps[v]
    opt = np.full((sets, horizon), -1, dtype=np.int64)
    parent = np.full((sets, horizon), -1, dtype=np.int32)
    opt[0, 0] = 0
    ts = np.empty(horizon, dtype=np.int64)
    ms = np.empty(horizon, dtype=np.int64)
    for a in range(sets - 1):
        count = 0
        least = np.int64(-1)
        for t in range(time_of[a] + 1):
            m = opt[a, t]
            if m < 0:
                continue
            if least < 0 or m < least:
                least = m
            elif not memory_centric:
                continue  # an earlier t has no more cached: this state cannot win
            ts[count] = t
            ms[count] = m
            count += 1
        if count == 0:
            continue
        for b in range(a + 1, sets):
            room = budget - 2 * (memory[b] - memory[a]) - arriving[b]
            if least > room or not _subset(bits, a, b):
                continue
            saved = 0
            cached = np.int64(0)
            for e in range(bd_start[b], bd_start[b + 1]):
                v = bd_index[e]
                if (bits[a, v >> 6] >> np.uint64(v & 63)) & np.uint64(1) == 0:
                    cached += node_memory[v]
                    saved += steps[v]
            spent = time_of[b] - time_of[a] - saved
            for i in range(count):
                if ms[i] > room:
                    continue
                t = ts[i] + spent
                m = ms[i] + cached
                if opt[b, t] < 0 or m < opt[b, t]:
                    opt[b, t] = m
                    parent[b, t] = a
    last = sets - 1
    best = -1
    for t in range(horizon):
        if opt[last, t] >= 0:
            best = t
            if not memory_centric:
                break
    if best < 0:
        return np.empty(0, dtype=np.int64)
    path = np.empty(sets, dtype=np.int64)
    count = 0
    b, t = last, best
    while b > 0:
        path[count] = b
        count += 1
        a = parent[b, t]
        saved = 0
        for e in range(bd_start[b], bd_start[b + 1]):
            v = bd_index[e]
            if (bits[a, v >> 6] >> np.uint64(v & 63)) & np.uint64(1) == 0:
                saved += steps[v]
        t -= time_of[b] - time_of[a] - saved
        b = a
    return path[:count].copy()
