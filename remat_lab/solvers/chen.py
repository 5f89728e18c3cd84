"""Chen et al. (arXiv 1604.06174) on general graphs, as Kusumoto et al. adapted it for their comparison.

Candidates are the lower sets with one boundary node, sorted by M(L), with {} and V. With k segments the
scan takes a candidate once M(L) has passed the next multiple of M(V)/k. The published heuristic uses
k = floor(sqrt(number of candidates)); simulated accounting tries every k.
"""

from __future__ import annotations

from math import isqrt

import numpy as np

from ..errors import InfeasibleBudget
from ..graph import ComputationGraph
from ..memo import memo
from ..registry import Request, Solution, method
from ..units import format_bytes
from .canonical import sequence_of
from .kusumoto import paper_vanilla, solution_of
from .lower_sets import Family, bits_of
from .selection import least_overhead


def single_boundary_sets(graph: ComputationGraph) -> Family:
    """For each node v, the least lower set whose boundary is {v} alone, where there is one; {} and V.

    Every other node of such a set has all its successors inside, so the set is the closure of v under
    predecessors, and of all others under successors as well.
    """
    return memo(graph, "single_boundary_sets", lambda: Family.of(graph, _closures(graph)))


def _closures(graph: ComputationGraph) -> np.ndarray:
    n = len(graph)
    found = []
    for v in range(n):
        inside = {v}
        waiting = [v]
        while waiting:
            u = waiting.pop()
            around = graph.predecessors.row(u).tolist()
            if u != v:
                around += graph.successors.row(u).tolist()
            for w in around:
                if w not in inside:
                    inside.add(w)
                    waiting.append(w)
        if len(inside) < n and any(w not in inside for w in graph.successors.row(v).tolist()):
            found.append(bits_of(sorted(inside), n))
    return np.array(found, dtype=np.uint64).reshape(len(found), (n + 63) // 64)


def cut_into(graph: ComputationGraph, k: int) -> np.ndarray:
    """Lower sets chosen for k segments: uint64 array, shape (chosen, words), V last."""
    family = single_boundary_sets(graph)
    by_memory = np.argsort(family.memory, kind="stable")
    whole = graph.total_memory
    step = max(1, whole // k)
    threshold = step
    last = len(family) - 1
    chosen: list[int] = []
    for i in by_memory.tolist():
        if i in (0, last):
            continue
        memory = int(family.memory[i])
        nested = not chosen or not (family.bits[chosen[-1]] & ~family.bits[i]).any()
        if memory > threshold and nested:
            chosen.append(i)
            while threshold < memory:
                threshold += step
    return family.bits[[*chosen, last]]


def default_segments(graph: ComputationGraph) -> int:
    """k = max(1, floor(sqrt(#candidates))), {} and V counted among the candidates."""
    return max(1, isqrt(len(single_boundary_sets(graph))))


def _points(graph: ComputationGraph, accounting: str, segments: int | None = None) -> list[Solution]:
    def make() -> list[Solution]:
        if segments is not None:
            counts = [segments]
        elif accounting == "paper":
            counts = [default_segments(graph)]
        else:
            counts = list(range(1, len(single_boundary_sets(graph)) + 1))
        distinct = {}
        for k in counts:
            bits = cut_into(graph, k)
            distinct[bits.tobytes()] = bits
        return [solution_of(sequence_of(graph, bits)) for bits in distinct.values()]

    return memo(graph, ("chen points", accounting, segments), make)


@method("chen", view="graph", paper="Chen et al. 2016", points=_points, paper_vanilla=paper_vanilla)
def chen(graph: ComputationGraph, request: Request, segments: int | None = None) -> Solution:
    """Equal segments between single-node cuts; every number of segments is tried unless given."""
    if segments is not None and segments < 1:
        raise ValueError(f"segments must be at least 1, got {segments}")
    points = _points(graph, request.accounting, segments)
    if request.accounting == "simulated":
        return least_overhead(points, request, "chen")
    (point,) = points
    if request.budget is not None and point.paper_peak is not None and point.paper_peak > request.budget:
        raise InfeasibleBudget(
            f"chen's heuristic makes one plan, whose formula peak is {format_bytes(point.paper_peak)}",
            minimum=point.paper_peak,
        )
    return point
