"""The pools behind waists: which states of earlier sets can still be of use, and for whom.

A state (overhead and cache of a sequence that ends in L) is a source for L' above a waist W if

    m + 2 (M(L') - M(L)) + arriving(L') <= B,    that is,    q := m - 2 M(L) <= B - 2 M(L') - arriving(L').

So of two states with equal time, in the same group (equal bd(L) & bd(W)), only those on the staircase of falling
q and rising m matter, and a target takes the one of least m whose q fits. A *row* of the pool is a group: one
staircase per amount of time, a doubly linked list by rising q.

Pools form a tree, as waists do: the pool of W holds what the pool of W's waist holds, W's direct sources, and W.
The plan below says, set by set, what happens to rows; the kernels do it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from ..arrays import Csr, frozen
from ..memo import memo
from .transitions import Transitions

MERGE, COPY, CLEAR = 0, 1, 2


@dataclass(frozen=True, eq=False)
class PoolPlan:
    """What to do with rows after each set's states are known.

    Attributes
    ----------
    rows : Csr, set -> rows of its pool (empty unless it is a waist). An entry of it, unlike a row, which is
        used again, names one group at one waist.
    keys : uint64 array, shape (entries of rows, words): each row's bd(L) & bd(W)
    links : Csr, set -> flat pairs (entry of its waist, entry of the set) of groups that carry over
    moves : Csr, set -> flat triples (kind, from, to), kinds :data:`MERGE`, :data:`COPY`, :data:`CLEAR`
    entering : Csr, set -> flat triples (set, row, entry) that enter its pool
    count : number of rows
    """

    rows: Csr
    keys: np.ndarray
    links: Csr
    moves: Csr
    entering: Csr
    count: int

    @classmethod
    def of(cls, transitions: Transitions) -> PoolPlan:
        return memo(transitions, "pool plan", lambda: _plan(transitions))

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        return (*self.rows, self.keys, *self.links, *self.moves, *self.entering)


def _plan(transitions: Transitions) -> PoolPlan:
    waist = transitions.waist.tolist()
    bits = transitions.boundary_bits
    sets, words = bits.shape
    users = np.bincount(transitions.waist[1:], minlength=sets).tolist()
    left = list(users)
    pools: dict[int, dict[bytes, int]] = {}
    free: list[int] = []
    count = 0
    keys: list[bytes] = []
    rows = _Lists(sets)
    moves = _Lists(sets)
    entering = _Lists(sets)
    links = _Lists(sets)
    entry_of: dict[int, dict[bytes, int]] = {}
    for b in range(sets):
        parent = waist[b]
        last = False
        if parent >= 0:
            left[parent] -= 1
            last = left[parent] == 0
        if users[b]:
            limit = bits[b]
            mine: dict[bytes, int] = {}
            carried: list[tuple[int, bytes]] = []
            for key, row in pools.get(parent, {}).items():
                narrowed = (np.frombuffer(key, dtype=np.uint64) & limit).tobytes()
                carried.append((entry_of[parent][key], narrowed))
                if narrowed in mine:
                    moves.add(MERGE if last else COPY, row, mine[narrowed])
                    if last:
                        free.append(row)
                elif last:
                    mine[narrowed] = row
                else:
                    if not free:
                        free.append(count)
                        count += 1
                    mine[narrowed] = free.pop()
                    moves.add(COPY, row, mine[narrowed])
            source = transitions.entering(b)
            shared = bits[source] & limit
            named = list(map(bytes, shared))
            for key in named:
                if key not in mine:
                    if not free:
                        free.append(count)
                        count += 1
                    mine[key] = free.pop()
            entries = {key: len(keys) + i for i, key in enumerate(mine)}
            for a, key in zip(source.tolist(), named):
                entering.add(a, mine[key], entries[key])
            for entry, key in carried:
                links.add(entry, entries[key])
            pools[b], entry_of[b] = mine, entries
            rows.add(*mine.values())
            keys += mine
        elif last:
            for row in pools[parent].values():
                moves.add(CLEAR, row, row)
                free.append(row)
        if last:
            del pools[parent], entry_of[parent]
        for lists in (rows, links, moves, entering):
            lists.close(b)
    return PoolPlan(
        rows.csr(),
        np.frombuffer(b"".join(keys), dtype=np.uint64).reshape(-1, words),
        links.csr(),
        moves.csr(),
        entering.csr(),
        count,
    )


class _Lists:
    """Builds a Csr row by row."""

    def __init__(self, rows: int):
        self.start = np.zeros(rows + 1, dtype=np.int64)
        self.index: list[int] = []

    def add(self, *entries: int) -> None:
        self.index.extend(entries)

    def close(self, row: int) -> None:
        self.start[row + 1] = len(self.index)

    def csr(self) -> Csr:
        return Csr(frozen(self.start), frozen(np.array(self.index, dtype=np.int64)))


# -- staircases --------------------------------------------------------------------------------------------------
# Node x of the lists: q[x], m[x], owner[x] (the set), up[x] (next higher q), down[x]. ``low`` and ``high`` hold
# the ends, shape (rows, times), -1 if empty. Unused nodes are chained through ``up`` from spare[0]; nodes from
# spare[1] on have never been used.


@njit(cache=True, nogil=True, inline="always")
def _take(spare, up):
    x = spare[0]
    if x >= 0:
        spare[0] = up[x]
        return x
    x = spare[1]
    spare[1] += 1
    return x


@njit(cache=True, nogil=True)
def _drop(x, row, s, q, m, up, down, low, high, spare):
    """Take node x out of its list."""
    above, under = up[x], down[x]
    if above >= 0:
        down[above] = under
    else:
        high[row, s] = under
    if under >= 0:
        up[under] = above
    else:
        low[row, s] = above
    up[x] = spare[0]
    spare[0] = x


@njit(cache=True, nogil=True)
def insert(row, s, new_q, new_m, set_, q, m, owner, up, down, low, high, spare):
    """Put a state on its staircase unless it is beaten there; forget those it beats."""
    under = -1
    above = low[row, s]
    while above >= 0 and q[above] <= new_q:
        under = above
        above = up[above]
    if under >= 0:
        if m[under] <= new_m:
            return
        if q[under] == new_q:
            x = under
            under = down[x]
            _drop(x, row, s, q, m, up, down, low, high, spare)
    while above >= 0 and m[above] >= new_m:
        x = above
        above = up[x]
        _drop(x, row, s, q, m, up, down, low, high, spare)
    x = _take(spare, up)
    q[x], m[x], owner[x] = new_q, new_m, set_
    up[x], down[x] = above, under
    if above >= 0:
        down[above] = x
    else:
        high[row, s] = x
    if under >= 0:
        up[under] = x
    else:
        low[row, s] = x


@njit(cache=True, nogil=True)
def move_row(kind, source, target, room, first, last, q, m, owner, up, down, low, high, spare):
    """Do one move of the plan; states whose q exceeds ``room`` fit nowhere any more and are left behind.

    Needs as many unused nodes as the source row has, for a copy. ``first`` and ``last`` bound the times in a row.
    """
    for s in range(first[source], last[source] + 1):
        x = low[source, s]
        while x >= 0:
            following = up[x]
            if kind != 2 and q[x] <= room:
                insert(target, s, q[x], m[x], owner[x], q, m, owner, up, down, low, high, spare)
            if kind != 1:
                up[x] = spare[0]
                spare[0] = x
            x = following
        if kind != 1:
            low[source, s] = -1
            high[source, s] = -1
    if kind != 2 and first[source] <= last[source]:
        first[target] = min(first[target], first[source])
        last[target] = max(last[target], last[source])
    if kind != 1:
        first[source] = low.shape[1]
        last[source] = -1
