"""The dynamic programs over a family of lower sets, given its transitions and its pool plan.

``least_cache``
    Feasibility: f[L] = least M(U) over sequences that end in L; the time axis is not needed, since a smaller
    cache is never worse. Among equal caches the one with most time kept, which makes the answer the
    memory-centric end of the Pareto front.
``fronts``
    For each L the front of (time kept, cache): time-centric, the states that no other beats in more time kept
    and less cache; or, for the largest overhead, in *less* time kept and less cache.

Time is counted as time *kept*, s = T(U): the overhead of a sequence is T(V) - s.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from .bitsets import bit_index
from .pool import PoolPlan, insert, move_row
from .transitions import Transitions

_FAR = np.int64(2**62)
#: Families with fewer sets are solved without the bound, which would cost as much as it saves.
WORTH_A_BOUND = 1000


def arrays(transitions: Transitions) -> tuple[np.ndarray, ...]:
    """The kernels' common arguments."""
    plan = PoolPlan.of(transitions)
    return (
        transitions.steps,
        transitions.node_memory,
        transitions.memory,
        transitions.arriving,
        transitions.boundary_bits,
        transitions.boundary_steps,
        transitions.boundary_memory,
        transitions.waist,
        *transitions.direct,
        transitions.direct_steps,
        transitions.direct_memory,
        *plan.arrays,
    )


def least_cache_sequence(transitions: Transitions, budget: int) -> np.ndarray:
    """Sets of a sequence with the least M(U_k) within the budget, first to last; empty if infeasible."""
    weight, source, _ = _least_cache(budget, PoolPlan.of(transitions).count, *arrays(transitions))
    last = len(weight) - 1
    path = []
    at = last if weight[last] < _FAR else 0
    while at > 0:
        path.append(at)
        at = int(source[at])
    return np.array(path[::-1], dtype=np.int64)


def feasible(transitions: Transitions, budget: int) -> bool:
    """Whether some sequence fits the budget."""
    weight, _, _ = _least_cache(budget, PoolPlan.of(transitions).count, *arrays(transitions))
    return bool(weight[-1] < _FAR)


def most_time_sequence(transitions: Transitions, budget: int, at_least: int | None = None) -> np.ndarray:
    """Sets of a sequence that keeps most time within the budget; first to last, empty if infeasible.

    Parameters
    ----------
    at_least : steps that are known to be possible within the budget. Without it, a family worth it is searched
        from the relaxation's bound downward: only states that can keep ``enough`` are visited, and
        ``enough`` falls until there is an answer, which then is the best.
    """
    common = arrays(transitions)
    rows = PoolPlan.of(transitions).count
    weight, _, level = _least_cache(budget, rows, *common)
    if weight[-1] >= _FAR:
        return np.empty(0, dtype=np.int64)
    small = len(transitions.memory) < WORTH_A_BOUND
    if small and at_least is None:
        reach = np.full(len(level), _FAR, dtype=np.int64)
        return _answer(transitions, _fronts(budget, False, 0, reach, rows, *common))
    reach = _reach(budget, level, *common)
    bound = int(reach[0])
    gap = max(1, int(transitions.steps.sum()) // 64)
    while True:
        enough = max(0, bound - gap) if at_least is None else at_least
        found = _answer(transitions, _fronts(budget, False, enough, reach, rows, *common))
        if len(found):
            return found
        at_least = None
        gap *= 4


def least_time_sequence(transitions: Transitions, budget: int) -> np.ndarray:
    """Sets of a sequence that keeps *least* time within the budget; first to last, empty if infeasible."""
    reach = np.full(len(transitions.memory), _FAR, dtype=np.int64)
    rows = PoolPlan.of(transitions).count
    return _answer(transitions, _fronts(budget, True, 0, reach, rows, *arrays(transitions)))


def _answer(transitions: Transitions, fronts: tuple[np.ndarray, ...]) -> np.ndarray:
    """Follow sources from the front of V; fronts are stored best time first."""
    start, kept, _, source = fronts
    b = len(start) - 2
    if start[b] == start[b + 1]:
        return np.empty(0, dtype=np.int64)
    at = start[b]
    bits = transitions.boundary_bits
    path = []
    while b > 0:
        path.append(b)
        a = int(source[at])
        fresh = int(transitions.boundary_steps[b])
        for word, both in enumerate((bits[a] & bits[b]).tolist()):
            while both:
                low = both & -both
                both ^= low
                fresh -= int(transitions.steps[word * 64 + low.bit_length() - 1])
        wanted = kept[at] - fresh
        row = kept[start[a] : start[a + 1]]
        at = int(start[a] + np.flatnonzero(row == wanted)[0])
        b = a
    return np.array(path[::-1], dtype=np.int64)


@njit(cache=True, nogil=True)
def _shared(key, bits, steps, node_memory):
    """T and M of the nodes in both sets."""
    time = np.int64(0)
    memory = np.int64(0)
    for w in range(len(key)):
        rest = key[w] & bits[w]
        while rest != 0:
            low = rest & (~rest + np.uint64(1))
            rest ^= low
            v = w * 64 + bit_index(low)
            time += steps[v]
            memory += node_memory[v]
    return time, memory


@njit(cache=True, nogil=True)
def _rooms(budget, memory, arriving, waist):
    """Per set: the room of its own test, and the most room that any set behind it as a waist has."""
    sets = len(memory)
    room = budget - 2 * memory - arriving
    behind = np.full(sets, -_FAR, dtype=np.int64)
    for b in range(sets - 1, 0, -1):
        behind[waist[b]] = max(behind[waist[b]], room[b], behind[b])
    return room, behind


@njit(cache=True, nogil=True)
def _least_cache(
    budget,
    row_count,
    steps,
    node_memory,
    memory,
    arriving,
    bd_bits,
    bd_steps,
    bd_memory,
    waist,
    direct_start,
    direct,
    direct_steps,
    direct_memory,
    rows_start,
    rows,
    keys,
    links_start,
    links,
    moves_start,
    moves,
    enter_start,
    enter,
):
    """Per set: weight of the least cache, and the source.

    Cache and steps kept are one number, weight = m K - s with K above all times: its minimum has the least
    cache and, among equals, the most steps. Rows have one staircase each, of q against weight.
    """
    sets = len(memory)
    scale = steps.sum() + 1
    room, behind = _rooms(budget, memory, arriving, waist)
    weight = np.full(sets, _FAR, dtype=np.int64)
    source = np.full(sets, -1, dtype=np.int64)
    level = np.full(sets, _FAR, dtype=np.int64)  # q of each set's state
    capacity = 1024
    q = np.empty(capacity, dtype=np.int64)
    m = np.empty(capacity, dtype=np.int64)
    owner = np.empty(capacity, dtype=np.int32)
    up = np.empty(capacity, dtype=np.int32)
    down = np.empty(capacity, dtype=np.int32)
    low = np.full((row_count, 1), -1, dtype=np.int32)
    high = np.full((row_count, 1), -1, dtype=np.int32)
    first = np.zeros(row_count, dtype=np.int64)
    last = np.zeros(row_count, dtype=np.int64)
    spare = np.array([-1, 0])
    weight[0] = 0
    level[0] = 0
    for b in range(sets):
        if b > 0:
            for e in range(direct_start[b], direct_start[b + 1]):
                a = direct[e]
                if level[a] <= room[b]:
                    new = weight[a] + direct_memory[e] * scale - direct_steps[e]
                    if new < weight[b]:
                        weight[b], source[b] = new, a
            c = waist[b]
            for e in range(rows_start[c], rows_start[c + 1]):
                x = high[rows[e], 0]
                while x >= 0 and q[x] > room[b]:
                    x = down[x]
                if x >= 0:
                    time, both = _shared(keys[e], bd_bits[b], steps, node_memory)
                    new = m[x] + (bd_memory[b] - both) * scale - (bd_steps[b] - time)
                    if new < weight[b]:
                        weight[b], source[b] = new, owner[x]
            if weight[b] < _FAR:
                level[b] = (weight[b] + scale - 1) // scale - 2 * memory[b]
        if enter_start[b] == enter_start[b + 1] and moves_start[b] == moves_start[b + 1]:
            continue
        need = (enter_start[b + 1] - enter_start[b]) // 3
        for e in range(moves_start[b], moves_start[b + 1], 3):
            if moves[e] == 1:
                x = low[moves[e + 1], 0]
                while x >= 0:
                    need += 1
                    x = up[x]
        if spare[1] + need > capacity:
            capacity = 2 * (spare[1] + need)
            q, m = _wider(q, capacity), _wider(m, capacity)
            owner, up, down = _wider(owner, capacity), _wider(up, capacity), _wider(down, capacity)
        for e in range(moves_start[b], moves_start[b + 1], 3):
            move_row(
                moves[e],
                moves[e + 1],
                moves[e + 2],
                behind[b],
                first,
                last,
                q,
                m,
                owner,
                up,
                down,
                low,
                high,
                spare,
            )
            first[moves[e + 1]] = 0
            last[moves[e + 1]] = 0
        for e in range(enter_start[b], enter_start[b + 1], 3):
            a = enter[e]
            if level[a] <= behind[b]:
                insert(enter[e + 1], 0, level[a], weight[a], a, q, m, owner, up, down, low, high, spare)
    return weight, source, level


@njit(cache=True, nogil=True)
def _reach(
    budget,
    level,
    steps,
    node_memory,
    memory,
    arriving,
    bd_bits,
    bd_steps,
    bd_memory,
    waist,
    direct_start,
    direct,
    direct_steps,
    direct_memory,
    rows_start,
    rows,
    keys,
    links_start,
    links,
    moves_start,
    moves,
    enter_start,
    enter,
):
    """Per set: an upper bound on the steps still to be kept (negative: V is out of reach).

    One pass backward over the same transitions, with each source's cache relaxed to its least (``level``). For
    each entry of the pools ``widest[entry, t]`` is the most room among the targets behind it that lead to t
    or more steps.
    """
    sets = len(memory)
    times = steps.sum() + 1
    room, _ = _rooms(budget, memory, arriving, waist)
    reach = np.full(sets, -_FAR, dtype=np.int64)
    reach[sets - 1] = 0
    widest = np.full((len(keys), times), -_FAR, dtype=np.int64)
    most = np.full(len(keys), -1, dtype=np.int64)
    for b in range(sets - 1, -1, -1):
        for e in range(rows_start[b], rows_start[b + 1]):
            for t in range(most[e] - 1, -1, -1):
                widest[e, t] = max(widest[e, t], widest[e, t + 1])
        for k in range(enter_start[b], enter_start[b + 1], 3):
            a, e = enter[k], enter[k + 2]
            if most[e] < 0 or level[a] > widest[e, 0]:
                continue
            under, over = 0, most[e] + 1  # bisect for the last t with enough room
            while over - under > 1:
                middle = (under + over) // 2
                if widest[e, middle] >= level[a]:
                    under = middle
                else:
                    over = middle
            reach[a] = max(reach[a], under)
        c = waist[b]
        for k in range(links_start[b], links_start[b + 1], 2):
            parent, e = links[k], links[k + 1]
            for t in range(most[e] + 1):
                widest[parent, t] = max(widest[parent, t], widest[e, t])
            most[parent] = max(most[parent], most[e])
        if reach[b] < 0:
            continue
        for e in range(direct_start[b], direct_start[b + 1]):
            if level[direct[e]] <= room[b]:
                reach[direct[e]] = max(reach[direct[e]], direct_steps[e] + reach[b])
        if c >= 0:
            for e in range(rows_start[c], rows_start[c + 1]):
                time, _ = _shared(keys[e], bd_bits[b], steps, node_memory)
                t = bd_steps[b] - time + reach[b]
                widest[e, t] = max(widest[e, t], room[b])
                most[e] = max(most[e], t)
    return reach


@njit(cache=True, nogil=True)
def _wider(array, size):
    out = np.empty(size, dtype=array.dtype)
    out[: len(array)] = array
    return out


@njit(cache=True, nogil=True)
def _fronts(
    budget,
    largest,
    enough,
    reach,
    row_count,
    steps,
    node_memory,
    memory,
    arriving,
    bd_bits,
    bd_steps,
    bd_memory,
    waist,
    direct_start,
    direct,
    direct_steps,
    direct_memory,
    rows_start,
    rows,
    keys,
    links_start,
    links,
    moves_start,
    moves,
    enter_start,
    enter,
):
    """Fronts of all sets as (start, kept, cache, source); each by best time first and cache falling."""
    sets = len(memory)
    times = steps.sum() + 1
    room, behind = _rooms(budget, memory, arriving, waist)
    start = np.zeros(sets + 1, dtype=np.int64)
    kept = np.empty(4096, dtype=np.int32)
    cache = np.empty(4096, dtype=np.int64)
    source = np.empty(4096, dtype=np.int32)
    count = 0
    best_m = np.full(times, _FAR, dtype=np.int64)
    best_a = np.empty(times, dtype=np.int32)
    capacity = 4096
    q = np.empty(capacity, dtype=np.int64)
    m = np.empty(capacity, dtype=np.int64)
    owner = np.empty(capacity, dtype=np.int32)
    up = np.empty(capacity, dtype=np.int32)
    down = np.empty(capacity, dtype=np.int32)
    low = np.full((row_count, times), -1, dtype=np.int32)
    high = np.full((row_count, times), -1, dtype=np.int32)
    first = np.full(row_count, times, dtype=np.int64)
    last = np.full(row_count, -1, dtype=np.int64)
    spare = np.array([-1, 0])
    for b in range(sets):
        least_s, most_s = times, np.int64(-1)
        if b == 0:
            best_m[0], best_a[0] = 0, -1
            least_s, most_s = np.int64(0), np.int64(0)
        else:
            for e in range(direct_start[b], direct_start[b + 1]):
                a = direct[e]
                limit = room[b] + 2 * memory[a]
                for k in range(start[a + 1] - 1, start[a] - 1, -1):
                    if cache[k] > limit:
                        break
                    s = kept[k] + direct_steps[e]
                    new = cache[k] + direct_memory[e]
                    if new < best_m[s]:
                        best_m[s], best_a[s] = new, a
                        least_s, most_s = min(least_s, s), max(most_s, s)
            c = waist[b]
            for e in range(rows_start[c], rows_start[c + 1]):
                row = rows[e]
                if last[row] < 0:
                    continue
                time, both = _shared(keys[e], bd_bits[b], steps, node_memory)
                more_s = bd_steps[b] - time
                more_m = bd_memory[b] - both
                dead = behind[c]
                fit = room[b]
                for t in range(first[row], last[row] + 1):
                    x = high[row, t]
                    while x >= 0 and q[x] > dead:  # too early for all sets still to come
                        under = down[x]
                        up[x] = spare[0]
                        spare[0] = x
                        x = under
                        high[row, t] = x
                        if x >= 0:
                            up[x] = -1
                        else:
                            low[row, t] = -1
                    while x >= 0 and q[x] > fit:
                        x = down[x]
                    if x >= 0:
                        s = t + more_s
                        new = m[x] + more_m
                        if new < best_m[s]:
                            best_m[s], best_a[s] = new, owner[x]
                            least_s, most_s = min(least_s, s), max(most_s, s)
        # the front: best time first, then only what has less cache
        if count + most_s - least_s + 1 > len(kept):
            size = 2 * (count + most_s - least_s + 1)
            kept, cache, source = _wider(kept, size), _wider(cache, size), _wider(source, size)
        least_m = _FAR
        for k in range(most_s - least_s + 1):
            s = least_s + k if largest else most_s - k
            if best_m[s] < least_m and s + reach[b] >= enough:
                least_m = best_m[s]
                kept[count], cache[count], source[count] = s, best_m[s], best_a[s]
                count += 1
            best_m[s] = _FAR
        start[b + 1] = count

        if enter_start[b] == enter_start[b + 1] and moves_start[b] == moves_start[b + 1]:
            continue
        need = 0
        for e in range(enter_start[b], enter_start[b + 1], 3):
            need += start[enter[e] + 1] - start[enter[e]]
        for e in range(moves_start[b], moves_start[b + 1], 3):
            if moves[e] == 1:
                row = moves[e + 1]
                for s in range(first[row], last[row] + 1):
                    x = low[row, s]
                    while x >= 0:
                        need += 1
                        x = up[x]
        if spare[1] + need > capacity:
            capacity = 2 * (spare[1] + need)
            q, m = _wider(q, capacity), _wider(m, capacity)
            owner, up, down = _wider(owner, capacity), _wider(up, capacity), _wider(down, capacity)
        for e in range(moves_start[b], moves_start[b + 1], 3):
            move_row(
                moves[e],
                moves[e + 1],
                moves[e + 2],
                behind[b],
                first,
                last,
                q,
                m,
                owner,
                up,
                down,
                low,
                high,
                spare,
            )
        for e in range(enter_start[b], enter_start[b + 1], 3):
            a, row = enter[e], enter[e + 1]
            for k in range(start[a], start[a + 1]):
                level = cache[k] - 2 * memory[a]
                if level <= behind[b]:
                    s = kept[k]
                    insert(row, s, level, cache[k], a, q, m, owner, up, down, low, high, spare)
                    first[row] = min(first[row], s)
                    last[row] = max(last[row], s)
    return start, kept[:count].copy(), cache[:count].copy(), source[:count].copy()
