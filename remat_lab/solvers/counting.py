"""How many lower sets a graph has, without listing them.

The lower sets of a partial order P are counted by three rules, on the order's nodes that are still undecided:

* P falls into unrelated parts: the product of the parts' counts;
* some node is related to every other: the sets without it (those of what lies below) plus the sets with it
  (those of what lies above);
* otherwise any node v: the sets without v (drop v and what lies above) plus the sets with v (drop v and what
  lies below).

Parallel branches, however many, are so counted at once. Equal remainders are counted once. The third rule can
branch without end on wide tangles; after ``effort`` remainders the rest is bounded from below by what is
cheap to know, one set more than there are nodes.
"""

from __future__ import annotations

from typing import NamedTuple

from ..graph import ComputationGraph
from ..memo import memo


class Count(NamedTuple):
    """A number of lower sets; ``exact`` is False when it is only a lower bound."""

    sets: int
    exact: bool

    def __str__(self) -> str:
        digits = f"{self.sets:,}" if self.sets < 10**9 else f"{self.sets:.2e}"
        return digits if self.exact else f"at least {digits}"


def count_lower_sets(graph: ComputationGraph, effort: int = 4000) -> Count:
    """The number of lower sets of a graph, {} and V included, or a lower bound on it.

    Parameters
    ----------
    effort : remainders looked at before the count becomes a bound

    >>> g = ComputationGraph.from_nodes(
    ...     [{"name": x, "memory": 1} for x in "abcd"], [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")])
    >>> str(count_lower_sets(g))
    '6'
    """
    return memo(graph, ("count_lower_sets", effort), lambda: _count(graph, effort))


def _count(graph: ComputationGraph, effort: int) -> Count:
    n = len(graph)
    below = [0] * n  # ancestors, as bits of a Python int
    above = [0] * n
    for v in range(n):
        for u in graph.predecessors.row(v).tolist():
            below[v] |= below[u] | 1 << u
    for v in reversed(range(n)):
        for w in graph.successors.row(v).tolist():
            above[v] |= above[w] | 1 << w
    related = [below[v] | above[v] for v in range(n)]
    known: dict[int, int] = {0: 1}
    exact = True

    # An explicit stack: a chain of a thousand nodes is split a thousand times.
    stack = [(1 << n) - 1]
    while stack:
        rest = stack[-1]
        if rest in known:
            stack.pop()
            continue
        if len(known) > effort:
            exact = False
            known[rest] = rest.bit_count() + 1
            continue
        parts, product = _split(rest, below, above, related)
        missing = [part for part in parts if part not in known]
        if missing:
            stack.extend(missing)
            continue
        total = 1 if product else 0
        for part in parts:
            total = total * known[part] if product else total + known[part]
        known[rest] = total
        stack.pop()
    return Count(known[(1 << n) - 1], exact)


def _split(rest: int, below: list[int], above: list[int], related: list[int]) -> tuple[list[int], bool]:
    """The remainders that ``rest`` comes down to, and whether their counts are multiplied (else added)."""
    best, most = -1, -1
    waiting = rest
    while waiting:
        low = waiting & -waiting
        v = low.bit_length() - 1
        waiting ^= low
        degree = (related[v] & rest).bit_count()
        if degree > most:
            best, most = v, degree
    if most < rest.bit_count() - 1:
        part = fresh = rest & -rest
        while fresh:
            low = fresh & -fresh
            fresh ^= low
            found = related[low.bit_length() - 1] & rest & ~part
            part |= found
            fresh |= found
        if part != rest:
            return [part, rest & ~part], True
    bit = 1 << best
    return [rest & ~bit & ~above[best], rest & ~bit & ~below[best]], False
