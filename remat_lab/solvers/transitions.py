"""Which transitions L -> L' a dynamic program over a family has to try. Nothing here depends on a budget.

Splitting
    If V' = L' \\ L falls into unconnected parts A and B and L | A is in the family, then L -> L|A -> L' caches
    the same nodes, recomputes the same, and needs no more memory in either step: the arriving terms of
    L | A are those of L' but for nodes of B, and B weighs 2 M(B) in the single step. So such transitions are
    left out. Within a block of parallel branches that leaves moves along one branch: a dozen per set in
    place of a thousand. Families that say ``splits`` need connected V' only, and these are listed
    without looking at any other: V' grows from a maximal element of L' by whole up-sets of predecessors.

Waists
    Most of what remains passes a bottleneck. The *waist* of L' is a set W below it; sources L below W
    need not be listed, since L' takes all of W's sources for its own: any L < W < L' is a legal transition.
    What L' does list are its *direct* sources, those not below W. Through a waist, a source counts
    by four numbers only: its time, its cache, M(L), and the nodes it shares with bd(L'). Those have a successor
    beyond W, so sources with equal bd(L) & bd(W) (a *group*) are alike for all targets above W, and of two
    alike the worse can be forgotten: :mod:`remat_lab.solvers.pool` keeps what is left.

    In any family, a set that all others are comparable with is a waist for those above it. Where the family
    splits, W = L' without the descendants of a node f is one, provided that what is taken away has no inputs
    but from f, its ancestors and itself (then L' \\ L connected means W \\ L connected, so W has all sources
    it passes on), and that enough sets share it: the state of affairs at the fork of a block, for each
    position on a branch that runs beside many blocks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from ..arrays import Csr, frozen
from ..graph import ComputationGraph
from ..memo import memo
from .bitsets import bit_index, descendants, find, has, hash_of, masks, table_of
from .lower_sets import Family, ancestor_bits

#: A local waist is made a waist if this many sets lie behind it; fewer are not worth a pool.
SHARED_BY = 48


@dataclass(frozen=True, eq=False)
class Transitions:
    """The transitions of a family, and T and M of the nodes they cache.

    Attributes
    ----------
    steps, node_memory : int64 arrays, shape (nodes,): whole time steps and bytes per node
    memory, arriving : int64 arrays, shape (sets,): see :class:`Family`
    boundary_bits : uint64 array, shape (sets, words)
    boundary_steps, boundary_memory : int64 arrays, shape (sets,): T and M of bd(L)
    waist : int64 array, shape (sets,): the waist of each set (-1 for {})
    splits : bool, as the family's
    direct : Csr, set -> its direct sources
    direct_steps, direct_memory : int64 arrays, one per direct source: T and M of bd(L') \\ L
    """

    steps: np.ndarray
    node_memory: np.ndarray
    memory: np.ndarray
    arriving: np.ndarray
    boundary_bits: np.ndarray
    boundary_steps: np.ndarray
    boundary_memory: np.ndarray
    waist: np.ndarray
    splits: bool
    direct: Csr
    direct_steps: np.ndarray
    direct_memory: np.ndarray

    @classmethod
    def of(cls, family: Family, steps: np.ndarray) -> Transitions:
        """Made once per family and clock (``steps``: whole time steps per node)."""
        return memo(family, ("transitions", steps.tobytes()), lambda: _make(family, steps))

    def entering(self, waist: int) -> np.ndarray:
        """The sets that a waist's pool has beyond those of its own waist's pool, itself included."""
        if self.splits:
            return np.append(self.direct.row(waist), waist)
        return np.arange(self.waist[waist] + 1, waist + 1)


def _make(family: Family, steps: np.ndarray) -> Transitions:
    graph = family.graph
    sets, words = family.bits.shape
    boundary_bits = np.zeros((sets, words), dtype=np.uint64)
    owner, node = family.boundary.owners(), family.boundary.index
    np.bitwise_or.at(boundary_bits, (owner, node >> 6), np.uint64(1) << (node & 63).astype(np.uint64))
    boundary_steps = np.zeros(sets, dtype=np.int64)
    boundary_memory = np.zeros(sets, dtype=np.int64)
    np.add.at(boundary_steps, owner, steps[node])
    np.add.at(boundary_memory, owner, graph.memory[node])

    waist, start, source = memo(family, "direct sources", lambda: _direct_sources(family))
    direct_steps, direct_memory = _weigh(family.bits, start, source, *family.boundary, steps, graph.memory)
    return Transitions(
        steps=frozen(steps),
        node_memory=graph.memory,
        memory=family.memory,
        arriving=family.arriving,
        boundary_bits=frozen(boundary_bits),
        boundary_steps=frozen(boundary_steps),
        boundary_memory=frozen(boundary_memory),
        waist=frozen(waist),
        splits=family.splits,
        direct=Csr(frozen(start), frozen(source)),
        direct_steps=frozen(direct_steps),
        direct_memory=frozen(direct_memory),
    )


def _direct_sources(family: Family) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Waist per set, and direct sources as CSR."""
    graph: ComputationGraph = family.graph
    n = len(graph)
    table = table_of(family.bits)
    before = masks(*graph.predecessors, n)
    after = masks(*graph.successors, n)
    if not family.splits:
        joined = np.bitwise_or.accumulate(family.bits, axis=0)
        common = np.bitwise_and.accumulate(family.bits[::-1], axis=0)[::-1]
        comparable = ((joined == family.bits) & (common == family.bits)).all(axis=1)
        index = np.where(comparable, np.arange(len(family)), 0)
        waist = np.concatenate([[-1], np.maximum.accumulate(index)[:-1]])
        return waist, *_scan(family.bits, waist, before | after, table)
    below = descendants(after)
    ancestors = ancestor_bits(graph)
    foreign = _fed_from_aside(before, below, ancestors)
    deepest_first = np.argsort(-np.bitwise_count(ancestors).sum(axis=1).astype(np.int64), kind="stable")
    waist = _local_waists(family.bits, below, ancestors, foreign, deepest_first, table, SHARED_BY)
    return waist, *_grow(family.bits, waist, before, after, below, table)


@njit(cache=True, nogil=True)
def _weigh(bits, start, source, bd_start, bd_index, steps, node_memory):
    """T and M of bd(L') \\ L for every direct source L of every set L'."""
    count = len(source)
    out_steps = np.zeros(count, dtype=np.int64)
    out_memory = np.zeros(count, dtype=np.int64)
    for b in range(len(start) - 1):
        for k in range(start[b], start[b + 1]):
            for e in range(bd_start[b], bd_start[b + 1]):
                v = bd_index[e]
                if not has(bits[source[k]], v):
                    out_steps[k] += steps[v]
                    out_memory[k] += node_memory[v]
    return out_steps, out_memory


@njit(cache=True, nogil=True)
def _fed_from_aside(before, below, ancestors):
    """For each node f: its descendants that have an input neither below, nor above, nor equal to f."""
    n, words = before.shape
    out = np.zeros((n, words), dtype=np.uint64)
    for f in range(n):
        for w in range(n):
            if has(below[f], w):
                for x in range(words):
                    if before[w, x] & ~below[f, x] & ~ancestors[f, x] != 0:
                        out[f, w >> 6] |= np.uint64(1) << np.uint64(w & 63)
                        break
    return out


@njit(cache=True, nogil=True)
def _local_waists(bits, below, ancestors, foreign, deepest_first, table, shared_by):
    r"""For each set b the deepest f whose W = b \ below(f) is in the family and shared by enough sets.

    A W that is f and its ancestors, no more, is a bottleneck of the whole of b: no need to look for another.
    """
    sets, words = bits.shape
    shared = np.zeros(sets, dtype=np.int64)
    chosen = np.zeros(sets, dtype=np.int64)
    chosen[0] = -1
    candidate = np.zeros(words, dtype=np.uint64)
    for choosing in (False, True):
        for b in range(1, sets):
            for k in range(len(deepest_first)):
                f = deepest_first[k]
                if not has(bits[b], f):
                    continue
                usable = False
                for w in range(words):
                    if foreign[f, w] & bits[b, w] != 0:
                        usable = False
                        break
                    candidate[w] = bits[b, w] & ~below[f, w]
                    if candidate[w] != bits[b, w]:
                        usable = True
                if not usable:
                    continue
                c = find(table, bits, candidate)
                if c < 0:
                    continue
                if not choosing:
                    shared[c] += 1
                    if _equal(candidate, ancestors[f]):
                        break  # all earlier f lie below this bottleneck
                elif shared[c] >= shared_by or _equal(candidate, ancestors[f]):
                    chosen[b] = c
                    break
    return chosen


@njit(cache=True, nogil=True)
def _equal(a, b):
    for w in range(len(a)):
        if a[w] != b[w]:
            return False
    return True


@njit(cache=True, nogil=True)
def _grow(bits, waist, before, after, below, table):
    """Direct sources of a family that splits: b \\ V for connected up-sets V of b that leave some of b \\ waist.

    Every such V holds a maximal element of b, and grows from it within itself by adding, with a predecessor u
    of one of its nodes, all of b that lies above u. Where more V than sets come up (a join of many branches, seen
    from a family with few of the sets below it), the sets are looked at instead.
    """
    sets, words = bits.shape
    start = np.zeros(sets + 1, dtype=np.int64)
    source = np.empty(max(64, 8 * sets), dtype=np.int64)
    count = 0
    found = np.zeros((256, words), dtype=np.uint64)
    fringe = np.zeros((256, words), dtype=np.uint64)  # predecessors of each V, those in V left out
    seen = np.full(1024, -1, dtype=np.int64)  # hash table of rows of ``found``
    behind = np.zeros(words, dtype=np.uint64)
    grown = np.zeros(words, dtype=np.uint64)
    neighbours = before | after
    for b in range(1, sets):
        most = 256 + 2 * (b - waist[b])
        for w in range(words):
            behind[w] = bits[b, w] & ~bits[waist[b], w]
        total = 0
        at = -1  # -1: the maximal elements themselves; then every V found
        while at < total and total <= most:
            for w in range(words):
                rest = bits[b, w] if at < 0 else fringe[at, w]
                while rest != 0:
                    low = rest & (~rest + np.uint64(1))
                    rest ^= low
                    u = w * 64 + bit_index(low)
                    maximal = True
                    for x in range(words):
                        grown[x] = below[u, x] & bits[b, x]
                        if grown[x] != 0:
                            maximal = False
                    if at < 0 and not maximal:
                        continue
                    grown[w] |= low
                    covers = True
                    for x in range(words):
                        if at >= 0:
                            grown[x] |= found[at, x]
                        if behind[x] & ~grown[x] != 0:
                            covers = False
                    if covers:
                        continue
                    mask = len(seen) - 1
                    slot = np.int64(hash_of(grown) & np.uint64(mask))
                    known = False
                    while seen[slot] >= 0:
                        r = seen[slot]
                        known = True
                        for x in range(words):
                            if found[r, x] != grown[x]:
                                known = False
                                break
                        if known:
                            break
                        slot = (slot + 1) & mask
                    if known:
                        continue
                    if total == len(found):
                        bigger = np.zeros((2 * total, words), dtype=np.uint64)
                        bigger[:total] = found
                        found = bigger
                        bigger = np.zeros((2 * total, words), dtype=np.uint64)
                        bigger[:total] = fringe
                        fringe = bigger
                        seen = np.full(8 * total, -1, dtype=np.int64)
                        mask = len(seen) - 1
                        for r in range(total):
                            slot = np.int64(hash_of(found[r]) & np.uint64(mask))
                            while seen[slot] >= 0:
                                slot = (slot + 1) & mask
                            seen[slot] = r
                        slot = np.int64(hash_of(grown) & np.uint64(mask))
                        while seen[slot] >= 0:
                            slot = (slot + 1) & mask
                    found[total] = grown
                    if at >= 0:
                        fringe[total] = fringe[at]
                    else:
                        fringe[total] = 0
                    for x in range(words):
                        fresh = grown[x] if at < 0 else grown[x] & ~found[at, x]
                        while fresh != 0:
                            one = fresh & (~fresh + np.uint64(1))
                            fresh ^= one
                            fringe[total] |= before[x * 64 + bit_index(one)]
                    for x in range(words):
                        fringe[total, x] &= ~grown[x]
                    seen[slot] = total
                    total += 1
            at += 1
        mask = len(seen) - 1
        candidates = total if total <= most else b - waist[b] - 1
        for r in range(candidates):
            if total <= most:
                for x in range(words):
                    grown[x] = bits[b, x] & ~found[r, x]
                a = find(table, bits, grown)
            else:
                a = waist[b] + 1 + r
                if not _is_connected_step(bits[a], bits[b], bits[waist[b]], neighbours, behind, grown):
                    a = -1
            if a >= 0:
                if count == len(source):
                    larger = np.empty(2 * count, dtype=np.int64)
                    larger[:count] = source
                    source = larger
                source[count] = a
                count += 1
        if total * 8 > len(seen):
            seen[:] = -1
        else:
            for r in range(total):
                slot = np.int64(hash_of(found[r]) & np.uint64(mask))
                while seen[slot] >= 0:  # the whole run: nothing of this set may stay
                    seen[slot] = -1
                    slot = (slot + 1) & mask
        start[b + 1] = count
    return start, source[:count].copy()


@njit(cache=True, nogil=True)
def _is_connected_step(a, b, base, neighbours, inside, part):
    """Whether a < b, b \\ a is connected, and a does not lie below ``base``. The last two are work space."""
    words = len(a)
    first = -1
    under = True
    for w in range(words):
        if a[w] & ~b[w] != 0:
            return False
        if a[w] & ~base[w] != 0:
            under = False
    if under:
        return False
    for w in range(words):
        inside[w] = b[w] & ~a[w]
        if first < 0 and inside[w] != 0:
            first = w * 64 + bit_index(inside[w] & (~inside[w] + np.uint64(1)))
    _flood(first, inside, neighbours, part, np.zeros(words, dtype=np.uint64))
    for w in range(words):
        if part[w] != inside[w]:
            return False
    return True


@njit(cache=True, nogil=True)
def _scan(bits, waist, neighbours, table):
    """Direct sources of any family: every pair within a stage is looked at."""
    sets, words = bits.shape
    start = np.zeros(sets + 1, dtype=np.int64)
    source = np.empty(max(64, 8 * sets), dtype=np.int64)
    count = 0
    inside = np.zeros(words, dtype=np.uint64)
    rest = np.zeros(words, dtype=np.uint64)
    part = np.zeros(words, dtype=np.uint64)
    waiting = np.zeros(words, dtype=np.uint64)
    for b in range(1, sets):
        for a in range(waist[b] + 1, b):
            subset = True
            for w in range(words):
                if bits[a, w] & ~bits[b, w] != 0:
                    subset = False
                    break
            if not subset:
                continue
            needless = False
            for w in range(words):
                inside[w] = bits[b, w] & ~bits[a, w]
                rest[w] = inside[w]
            while not needless:
                first = -1
                for w in range(words):
                    if rest[w] != 0:
                        first = w * 64 + bit_index(rest[w] & (~rest[w] + np.uint64(1)))
                        break
                if first < 0:
                    break
                _flood(first, inside, neighbours, part, waiting)
                whole = True
                for w in range(words):
                    if part[w] != inside[w]:
                        whole = False
                    rest[w] &= ~part[w]
                    part[w] |= bits[a, w]
                if whole:
                    break
                needless = find(table, bits, part) >= 0
            if needless:
                continue
            if count == len(source):
                bigger = np.empty(2 * count, dtype=np.int64)
                bigger[:count] = source
                source = bigger
            source[count] = a
            count += 1
        start[b + 1] = count
    return start, source[:count].copy()


@njit(cache=True, nogil=True)
def _flood(first, inside, neighbours, part, waiting):
    """Into ``part``: what is connected with node ``first`` within ``inside``."""
    words = len(inside)
    for w in range(words):
        part[w] = 0
        waiting[w] = 0
    part[first >> 6] = waiting[first >> 6] = np.uint64(1) << np.uint64(first & 63)
    busy = True
    while busy:
        busy = False
        for w in range(words):
            while waiting[w] != 0:
                busy = True
                low = waiting[w] & (~waiting[w] + np.uint64(1))
                waiting[w] ^= low
                v = w * 64 + bit_index(low)
                for u in range(words):
                    fresh = neighbours[v, u] & inside[u] & ~part[u]
                    part[u] |= fresh
                    waiting[u] |= fresh
