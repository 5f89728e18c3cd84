"""local-search: simulated annealing on recomputations, for joint graphs of hundreds of ops.

First runs keep the plain order. A solution is a set of pairs (t, k): op k runs again right before op t runs
for the first time, after those of the same stage that precede it in the plain order. Every such set is a
valid schedule (what is not recomputed is kept), so the search moves freely: add a pair, perhaps with the ops
whose values it would need kept, remove one, or move one to another stage. Its cost is the time of the pairs
plus a penalty on the bytes over the budget, summed over the schedule; one evaluation is a single scan
against the order, a few microseconds.
"""

from __future__ import annotations

import time as clock

import numpy as np
from numba import njit

from ..errors import InfeasibleBudget
from ..joint import JointGraph
from ..memo import memo
from ..progress import pulse
from ..registry import Request, Solution, method
from ..schedule import Schedule
from ..simulate import simulate
from ..units import format_exact

#: Most pairs a solution may hold, as a multiple of the ops.
ROOM = 3

#: Weights of the bytes over the budget (as a share of it, summed over the runs) against time over plain time,
#: taken in turn: a low weight lets the search cross infeasible ground, and is dropped where it never comes back.
STRICT = (1.0, 0.3, 0.05, 0.01)


def search(
    joint: JointGraph,
    budget: int,
    *,
    seconds: float = 10.0,
    seed: int = 0,
    start: np.ndarray | None = None,
    enough: float = 0.0,
) -> tuple[np.ndarray, float]:
    """Pairs (t, k) as keys ``t * ops + k``, ascending, and the bytes over the budget that remain (0: it fits).

    Parameters
    ----------
    joint : JointGraph
    budget : bytes
    seconds : stop after about this long
    seed : of the random moves
    start : keys to start from
    enough : stop at an overhead (in the graph's time unit) of at most this
    """
    n = joint.n_ops
    again = np.zeros(n, dtype=np.bool_)
    for k in range(n):
        written = joint.writes.row(k)
        # A rerun contributor would leave partial sums; accumulated values are kept instead.
        again[k] = len(written) > 0 and bool((joint.writer_count[written] == 1).all())
    again &= ~joint.runs_once
    keep = np.zeros(joint.n_values, dtype=np.bool_)
    keep[joint.outputs] = True
    plain = joint.plain_time or 1.0
    arrays = (
        *joint.reads,
        *joint.writes,
        *joint.writers,
        *joint.readers,
        joint.writer_count,
        joint.value_bytes,
        joint.op_workspace,
        joint.op_time / plain,
        keep,
        again,
    )
    best = np.zeros(0, dtype=np.int64) if start is None else np.sort(start.astype(np.int64))
    best_excess, best_cost = _evaluate(best, budget, arrays)
    _anneal(best, best_excess, best_cost, budget, 1, 1e-2, 1e-6, 1.0, seed, ROOM * n, *arrays)  # compiles
    began = clock.perf_counter()
    steps, rounds, phase = 20_000, 0, 0
    levels = list(STRICT)
    while True:
        pulse()
        begun = clock.perf_counter()
        # In turn a wide search from nothing and two around the best, each cooler, at one level of strictness.
        begin = best[:0] if phase == 0 and rounds else best
        keys, excess, cost = _anneal(
            begin,
            *_evaluate(begin, budget, arrays),
            budget,
            steps,
            10.0 ** -(2 + phase),
            1e-6,
            levels[0],
            seed + rounds,
            ROOM * n,
            *arrays,
        )
        if (excess, cost) < (best_excess, best_cost):
            best, best_excess, best_cost = keys, excess, cost
        now = clock.perf_counter()
        left = seconds - (now - began)
        if left <= 0 or (best_excess == 0 and best_cost * plain <= enough + 1e-9):
            return _pruned(best, best_excess, budget, arrays), best_excess
        pace = steps / max(1e-3, now - begun)
        steps = int(max(10_000, pace * min(left, max(1.0, seconds / 16))))
        rounds += 1
        if phase == 0 and excess > 0 and len(levels) > 1:
            levels.pop(0)  # so lax that the search ends outside the budget
        elif phase == 2:
            levels.append(levels.pop(0))
            phase = 0
        else:
            phase += 1


def ops_of(joint: JointGraph, keys: np.ndarray) -> np.ndarray:
    """The op order of a solution."""
    return _order(keys, len(keys), joint.n_ops)


def _evaluate(keys, budget, arrays):
    n = len(arrays[0]) - 1
    scratch = np.empty(arrays[8].shape[0], dtype=np.bool_)
    excess, cost, _ = _measure(_order(keys, len(keys), n), budget, n, (*arrays[:4], *arrays[8:13]), scratch)
    return excess, cost


#: Budgets tried for the least one; all of them together take twice the time of one search.
TRIES = 8


def least(joint: JointGraph, seconds: float = 10.0, seed: int = 0) -> tuple[int, np.ndarray]:
    """The least peak found by searches at ever lower budgets, and the keys of a solution that has it."""

    def make() -> tuple[int, np.ndarray]:
        keys = np.zeros(0, dtype=np.int64)
        high = simulate(Schedule.vanilla(joint)).peak
        low = int(np.max(joint.op_workspace, initial=0))
        for _ in range(TRIES):
            if low + max(1, high // 1000) >= high:
                break
            middle = (low + high) // 2
            found, excess = search(joint, middle, seconds=2 * seconds / TRIES, seed=seed, start=keys)
            peak = simulate(_schedule(joint, found)).peak
            if peak < high:
                high, keys = peak, found
            if excess > 0:
                low = middle
        return high, keys

    return memo(joint, ("local-search minimum", seconds, seed), make)


def _minimum(joint: JointGraph, accounting: str, seconds: float = 10.0, seed: int = 0) -> int:
    return least(joint, seconds, seed)[0]


def _schedule(joint: JointGraph, keys: np.ndarray) -> Schedule:
    return Schedule.from_ops(joint, ops_of(joint, keys), hold_outputs=False)


@method("local-search", view="joint", minimum=_minimum)
def local_search(joint: JointGraph, request: Request, seconds: float = 10.0, seed: int = 0) -> Solution:
    """Simulated annealing over recomputations in the plain order; for graphs of hundreds of ops."""
    budget = request.budget
    schedule = Schedule.vanilla(joint)
    if budget is None or simulate(schedule).peak <= budget:
        return Solution(schedule, status="optimal", bound=0.0)
    keys, _ = search(joint, budget, seconds=seconds, seed=seed)
    schedule = _schedule(joint, keys)
    if simulate(schedule).peak > budget:
        peak, keys = least(joint, seconds, seed)
        schedule = _schedule(joint, keys)
        if peak > budget:
            raise InfeasibleBudget(
                f"local-search found no schedule within {format_exact(budget)} in {seconds} s; the least it came "
                f"to is {format_exact(peak)}",
                minimum=peak,
            )
    return Solution(schedule, details={"pairs": len(keys)})


def _pruned(keys, excess, budget, arrays):
    """Without the pairs that do no good (their ops may cost nothing)."""
    i = 0
    while i < len(keys):
        fewer = np.delete(keys, i)
        if _evaluate(fewer, budget, arrays)[0] <= excess:
            keys = fewer
        else:
            i += 1
    return keys


@njit(cache=True, nogil=True)
def _order(keys, count, n):
    out = np.empty(n + count, dtype=np.int64)
    at = 0
    i = 0
    for t in range(n):
        while i < count and keys[i] < (t + 1) * n:
            out[at] = keys[i] % n
            at += 1
            i += 1
        out[at] = t
        at += 1
    return out


@njit(cache=True, nogil=True)
def _measure(order, budget, n, graph, needed):
    """(bytes over the budget summed over the runs, time beyond the first n runs, a position over it).

    The scan of ``Schedule.from_ops``, for orders in which contributors to accumulated values run once:
    against the order, a value is held from its last read to the run that writes it. The position is one
    over the budget drawn at random, -1 if there is none.
    """
    read_start, read_index, write_start, write_index, writer_count, value_bytes, workspace, op_time, keep = (
        graph
    )
    live = np.int64(0)
    for v in range(len(needed)):
        needed[v] = keep[v]
        if keep[v] and writer_count[v] > 0:
            live += value_bytes[v]
    missing = writer_count.copy()
    excess = 0.0
    spent = 0.0
    over = -1
    overs = 0
    for p in range(len(order) - 1, -1, -1):
        op = order[p]
        spent += op_time[op]
        fresh = 0
        for e in range(write_start[op], write_start[op + 1]):
            v = write_index[e]
            if writer_count[v] == 1:
                if needed[v]:
                    needed[v] = False
                    live -= value_bytes[v]
                fresh += value_bytes[v]
            else:
                missing[v] -= 1
                if missing[v] == 0:
                    fresh += value_bytes[v]
                    if needed[v]:
                        needed[v] = False
                        live -= value_bytes[v]
                elif not needed[v]:  # held from its first contribution on, read or not
                    needed[v] = True
                    live += value_bytes[v]
        for e in range(read_start[op], read_start[op + 1]):
            v = read_index[e]
            if writer_count[v] > 0 and not needed[v]:
                needed[v] = True
                live += value_bytes[v]
        during = live + max(fresh, workspace[op])
        if during > budget:
            excess += during - budget
            overs += 1
            if np.random.randint(overs) == 0:
                over = p
    return excess, spent - 1.0, over


@njit(cache=True, nogil=True)
def _add(keys, count, key):
    """Insert into the ascending keys unless present; returns the new count."""
    i = np.searchsorted(keys[:count], key)
    if (i < count and keys[i] == key) or count == len(keys):
        return count
    for j in range(count, i, -1):
        keys[j] = keys[j - 1]
    keys[i] = key
    return count + 1


@njit(cache=True, nogil=True)
def _anneal(
    start,
    start_excess,
    start_cost,
    budget,
    steps,
    hot,
    cold,
    strictness,
    seed,
    room,
    read_start,
    read_index,
    write_start,
    write_index,
    writer_start,
    writer_index,
    reader_start,
    reader_index,
    writer_count,
    value_bytes,
    workspace,
    op_time,
    keep,
    again,
):
    """Metropolis steps with a falling temperature. Returns (keys, excess, cost) of the best solution met."""
    np.random.seed(seed)
    n = len(op_time)
    values = len(writer_count)
    scratch = np.empty(values, dtype=np.bool_)
    now = np.empty(room, dtype=np.int64)
    now[: len(start)] = start
    count = len(start)
    trial = now.copy()
    best = now.copy()
    best_count = count
    best_excess, best_cost = start_excess, start_cost
    graph = (
        *(read_start, read_index, write_start, write_index),
        *(writer_count, value_bytes, workspace, op_time, keep),
    )
    order = _order(now, count, n)
    excess, cost, over = _measure(order, budget, n, graph, scratch)
    weight = strictness / max(1, budget)
    stage_over = -1
    cooling = (cold / hot) ** (1.0 / max(1, steps - 1))
    heat = hot
    for _ in range(steps):
        heat *= cooling
        trial[:count] = now[:count]
        size = count
        draw = np.random.random()
        if count > 0 and draw < 0.3:  # remove one
            i = np.random.randint(count)
            trial[i : count - 1] = now[i + 1 : count]
            size = count - 1
        elif count > 0 and draw < 0.55:  # move one to another stage
            i = np.random.randint(count)
            op = now[i] % n
            old = now[i] // n
            trial[i : count - 1] = now[i + 1 : count]
            size = count - 1
            stage = old + np.random.randint(-8, 9)
            if np.random.random() < 0.3:
                stage = np.random.randint(op + 1, n) if op + 1 < n else old
            if stage > op and stage < n:
                size = _add(trial, size, stage * n + op)
        if (
            size == count and (draw >= 0.55 or count == 0)
        ) or draw < 0.1:  # add one, perhaps with what it reads
            op = -1
            stage = -1
            for _try in range(20):
                v = np.random.randint(values)
                if writer_count[v] != 1:
                    continue
                w = writer_index[writer_start[v]]
                readers = reader_start[v + 1] - reader_start[v]
                if not again[w] or readers == 0:
                    continue
                j = np.random.randint(readers)
                reader = reader_index[reader_start[v] + j]
                before = w if j == 0 else reader_index[reader_start[v] + j - 1]
                # A gap between two uses; where memory is over the budget, one that spans the place.
                if stage_over >= 0 and not (before < stage_over and stage_over <= reader):
                    continue
                if reader - before > 1 or stage_over < 0:
                    op, stage = w, reader
                    break
            if op < 0 and count > 0:  # recompute an input of some pair, in the same stage
                i = np.random.randint(count)
                k = now[i] % n
                inputs = read_start[k + 1] - read_start[k]
                if inputs > 0:
                    v = read_index[read_start[k] + np.random.randint(inputs)]
                    if writer_count[v] == 1 and again[writer_index[writer_start[v]]]:
                        op, stage = writer_index[writer_start[v]], now[i] // n
            if op >= 0:
                size = _add(trial, size, stage * n + op)
                while np.random.random() < 0.5:  # and one of its inputs, and so on
                    inputs = read_start[op + 1] - read_start[op]
                    if inputs == 0:
                        break
                    v = read_index[read_start[op] + np.random.randint(inputs)]
                    if writer_count[v] != 1 or not again[writer_index[writer_start[v]]]:
                        break
                    op = writer_index[writer_start[v]]
                    size = _add(trial, size, stage * n + op)
        order = _order(trial, size, n)
        new_excess, new_cost, over = _measure(order, budget, n, graph, scratch)
        change = new_cost - cost + weight * (new_excess - excess)
        if change <= 0 or np.random.random() < np.exp(-change / heat):
            excess, cost = new_excess, new_cost
            count = size
            now[:count] = trial[:count]
            stage_over = -1
            if over >= 0:  # the stage of a position: the first run at or after it that is a first run
                passed = 0
                for i in range(count):
                    if now[i] // n + i < over:
                        passed = i + 1
                stage_over = min(n - 1, over - passed)
            if excess < best_excess or (excess == best_excess and cost < best_cost - 1e-15):
                best_excess, best_cost, best_count = excess, cost, count
                best[:count] = now[:count]
    return best[:best_count].copy(), best_excess, best_cost
