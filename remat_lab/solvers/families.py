"""The families of lower sets that the dynamic programs run over, from the smallest to the whole.

``approximate``
    {L^v}: a node and all its ancestors (Kusumoto et al., section 4.3).
``branches``
    Lower sets with at most p *partial* branches. A maximal element of L is partial if its only successor is no
    join (has no second input): the branch it lies on has begun and is not finished. The approximate family
    never holds two finished branches of a block without the block's join, so it cannot cache what lies inside
    them; this family can, and still has few sets.
``lines``
    What is left when even that is too many: the prefixes of a few topological orders that finish a branch
    before they begin the next, together with the approximate family. At most a few sets per node.
``exact``
    Every lower set.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from ..arrays import frozen
from ..errors import TooLarge
from ..graph import ComputationGraph
from ..memo import memo
from .bitsets import masks
from .counting import count_lower_sets
from .lower_sets import Family, ancestor_bits, check_size, words_for

#: Most lower sets the exact method lists; about a minute and 4 GiB on two cores.
EXACT_LIMIT = 200_000
#: Most sets of a branches family before a smaller one is used.
BRANCHES_LIMIT = 50_000


class TooManyLowerSets(TooLarge):
    """A graph with more lower sets than can be listed. ``count`` is their number, or a lower bound on it."""

    def __init__(self, message: str, count: int):
        super().__init__(message)
        self.count = count


def exact_family(graph: ComputationGraph, limit: int = EXACT_LIMIT) -> Family:
    """Every lower set.

    Raises
    ------
    TooManyLowerSets
        Before any is listed, if there are more than ``limit``; the message gives their count or a bound on it
        and names the families that answer on such a graph.
    """

    def make() -> Family:
        count = count_lower_sets(graph)
        # A bound below the limit settles nothing: then the listing itself stops at the limit.
        bits = None if count.sets > limit else _list(graph, -1, limit)
        if bits is None:
            number = str(count) if count.sets > limit else f"more than {limit:,}"
            raise TooManyLowerSets(
                f"{graph.name or 'this graph'} has {number} lower sets; the exact dynamic program handles up to "
                f"{limit:,}. Use method='kusumoto-branches', which lists only sets with few unfinished "
                "branches, or 'kusumoto-approx', which needs one set per node.",
                max(count.sets, limit + 1),
            )
        return Family.of(graph, bits, "exact", splits=True)

    return memo(graph, ("exact_family", limit), make)


def branches_family(graph: ComputationGraph, partial: int = 1, limit: int = BRANCHES_LIMIT) -> Family:
    """Lower sets with at most ``partial`` unfinished branches; every L^v is one of them.

    If there are more than ``limit``, the largest smaller ``partial`` that fits is taken, and :func:`lines_family`
    when none does.
    """

    def make() -> Family:
        for p in range(partial, 0, -1):
            bits = _list(graph, p, limit)
            if bits is not None:
                return Family.of(graph, bits, f"at most {p} partial", splits=True)
        return lines_family(graph)

    if partial < 1:
        return lines_family(graph)
    return memo(graph, ("branches_family", partial, limit), make)


def lines_family(graph: ComputationGraph) -> Family:
    """Prefixes of a few branch-by-branch topological orders, and the approximate family."""

    def make() -> Family:
        n = len(graph)
        depth_first = [_branch_order(graph, key) for key in (graph.memory, -graph.memory, np.arange(n))]
        every = [ancestor_bits(graph)]
        for order in [*depth_first, np.arange(n)]:
            every.append(_prefixes(order, words_for(n)))
        return Family.of(graph, np.concatenate(every), "lines")

    return memo(graph, "lines_family", make)


def _branch_order(graph: ComputationGraph, key: np.ndarray) -> np.ndarray:
    """A topological order that stays on a branch as long as it can; ``key`` picks the next branch (least)."""
    n = len(graph)
    waiting = np.diff(graph.predecessors.start).tolist()
    ready = sorted((v for v in range(n) if not waiting[v]), key=lambda v: key[v], reverse=True)
    order = []
    while ready:
        v = ready.pop()
        order.append(v)
        opened = []
        for w in graph.successors.row(v).tolist():
            waiting[w] -= 1
            if not waiting[w]:
                opened.append(w)
        ready += sorted(opened, key=lambda v: key[v], reverse=True)
    return np.array(order, dtype=np.int64)


def _list(graph: ComputationGraph, partial: int, limit: int) -> np.ndarray | None:
    """uint64 array, shape (sets, words): the lower sets, {} first; None if more than ``limit``.

    ``partial`` bounds the unfinished branches; -1: no bound.
    """
    check_size(graph)
    n = len(graph)
    in_degree = np.diff(graph.predecessors.start)
    out_degree = np.diff(graph.successors.start)
    only = np.full(n, -1, dtype=np.int64)
    single = np.flatnonzero(out_degree == 1)
    only[single] = graph.successors.index[graph.successors.start[single]]
    is_partial = (only >= 0) & (in_degree[np.maximum(only, 0)] == 1)
    found = _lower_sets(
        n,
        partial,
        limit,
        masks(*graph.predecessors, n),
        masks(*graph.successors, n),
        is_partial,
    )
    return None if len(found) == 0 else frozen(found)


@njit(cache=True, nogil=True)
def _prefixes(order, words):
    out = np.zeros((len(order), words), dtype=np.uint64)
    for i in range(len(order)):
        if i:
            out[i] = out[i - 1]
        out[i, order[i] >> 6] |= np.uint64(1) << np.uint64(order[i] & 63)
    return out


@njit(cache=True, nogil=True)
def _lower_sets(n, most, limit, before, after, is_partial):
    """Each lower set once, without a table of those seen; an empty array if there are more than ``limit``.

    Every set but {} has one parent, itself without one maximal element: the partial one of largest index, or
    the largest of all if none is partial (``most`` < 0: always the largest). Taking that element away leaves
    no more partial ones than before (its predecessor may become partial in its place), so for ``most`` >= 1
    all parents lie in the family too, and every member is reached from {} by adding one node at a time.
    """
    words = before.shape[1]
    out = np.zeros((64, words), dtype=np.uint64)
    count = 1
    at = 0
    child = np.zeros(words, dtype=np.uint64)
    while at < count:
        for v in range(n):
            word, bit = v >> 6, np.uint64(1) << np.uint64(v & 63)
            if out[at, word] & bit != 0:
                continue
            ready = True
            for w in range(words):
                if before[v, w] & ~out[at, w] != 0:
                    ready = False
                    break
            if not ready:
                continue
            child[:] = out[at]
            child[word] |= bit
            if not _is_parent_step(child, v, n, most, after, is_partial):
                continue
            if count == limit:
                return np.zeros((0, words), dtype=np.uint64)
            if count == len(out):
                bigger = np.zeros((2 * count, words), dtype=np.uint64)
                bigger[:count] = out
                out = bigger
            out[count] = child
            count += 1
        at += 1
    return out[:count].copy()


@njit(cache=True, nogil=True)
def _is_parent_step(child, added, n, most, after, is_partial):
    """Whether ``added`` is the element that ``child``'s parent lacks, and ``child`` belongs to the family."""
    words = len(child)
    if most < 0:
        for w in range(words - 1, -1, -1):
            if child[w] != 0:
                if w != added >> 6:
                    return False
                return child[w] >> np.uint64(added & 63) == 1
    partials = 0
    last_partial = -1
    last = -1
    for u in range(n):
        if (child[u >> 6] >> np.uint64(u & 63)) & np.uint64(1) == 0:
            continue
        maximal = True
        for w in range(words):
            if after[u, w] & child[w] != 0:
                maximal = False
                break
        if maximal:
            last = u
            if is_partial[u]:
                partials += 1
                last_partial = u
    if partials > most:
        return False
    return added == (last_partial if partials else last)
