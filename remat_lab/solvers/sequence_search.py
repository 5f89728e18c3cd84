"""Local search on the order of ops of a schedule, frees being where liveness puts them.

A schedule is its order of ops: forward ops may run again, backward ops run once, in any valid order. Everything a
move can do wrong is thus memory, and memory is recounted after every move by two passes over the order.

``squeeze``
    Brings the peak down to a budget. While some moment exceeds it, the worst moment is looked at: each
    value that lies idle across it can be computed again before its next use instead (reading its op's inputs,
    kept for that; or with all of its ancestors that are gone by then), and ops before it can wait, or ops after
    it come first. The move that removes most of the excess, summed over all moments, per time it costs is made.
``relax``
    Takes back runs that the budget does not need, the longest first.
``improve``
    Takes back a few neighbouring runs that the budget does need, squeezes again, and keeps what costs no more.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from ..graph import ComputationGraph
from ..memo import memo


class Ops(NamedTuple):
    """What the kernels need of a joint graph."""

    read_start: np.ndarray
    read_index: np.ndarray
    write_start: np.ndarray
    write_index: np.ndarray
    writer_count: np.ndarray
    writer: np.ndarray
    value_bytes: np.ndarray
    workspace: np.ndarray
    keep: np.ndarray
    time: np.ndarray
    repeats: np.ndarray


def ops_of(graph: ComputationGraph) -> Ops:
    """The joint graph's arrays; ``repeats`` marks the ops that may run again: those of the graph's nodes."""

    def make() -> Ops:
        joint = graph.joint
        keep = np.zeros(joint.n_values, dtype=np.bool_)
        keep[joint.outputs] = True
        writer = np.full(joint.n_values, -1, dtype=np.int64)
        some = np.flatnonzero(joint.writer_count)
        writer[some] = joint.writers.index[joint.writers.start[some]]
        return Ops(
            *joint.reads,
            *joint.writes,
            joint.writer_count,
            writer,
            joint.value_bytes,
            joint.op_workspace,
            keep,
            joint.op_time,
            ~joint.op_backward & (graph.node_of_op >= 0) & ~joint.runs_once,
        )

    return memo(graph, "ops", make)


def peak_of(ops: Ops, order: np.ndarray) -> int:
    """Simulated peak of an order of ops, liveness included; as ``simulate(Schedule.from_ops(...)).peak``."""
    return int(_profile(_own(order), np.empty(len(order), dtype=np.int64), ops))


def overhead_of(ops: Ops, order: np.ndarray) -> float:
    """Time of all runs beyond each op's first."""
    return float(_overhead(_own(order), ops))


def _own(order: np.ndarray) -> np.ndarray:
    """A writable copy: read-only arrays are another type to numba, and would compile every kernel again."""
    return np.array(order, dtype=np.int64)


def squeeze(ops: Ops, order: np.ndarray, budget: int, allowance: float = np.inf) -> np.ndarray | None:
    """An order that keeps the budget, or None if no move helps or the moves take more than ``allowance`` time."""
    found, good = _squeeze(_own(order), budget, allowance, ops)
    return found if good else None


def relax(ops: Ops, order: np.ndarray, budget: int) -> np.ndarray:
    """The order with every run left out that the budget does not need."""
    return _relax(_own(order), budget, ops)


def improve(ops: Ops, order: np.ndarray, budget: int, tries: int) -> np.ndarray:
    """The order after ``tries`` attempts to exchange runs for cheaper ones; its overhead never rises."""
    return _improve(_own(order), budget, tries, ops)


@njit(cache=True, nogil=True)
def _profile(order, during, ops):
    """Most bytes held during each run, into ``during``; returns the peak.

    As ``Schedule.from_ops`` and ``simulate`` have it: an accumulated value and an output of the graph are held from
    their first write on, and a value written anew while it is held exists twice during the run.
    """
    n = len(order)
    values = len(ops.writer_count)
    first_write = np.full(values, n, dtype=np.int32)
    for p in range(n - 1, -1, -1):
        op = order[p]
        for e in range(ops.write_start[op], ops.write_start[op + 1]):
            first_write[ops.write_index[e]] = p
    needed = ops.keep.copy()
    change = np.zeros(n, dtype=np.int64)
    for p in range(n - 1, -1, -1):
        op = order[p]
        added = np.int64(0)
        written = np.int64(0)
        freed = np.int64(0)
        for e in range(ops.write_start[op], ops.write_start[op + 1]):
            value = ops.write_index[e]
            if not needed[value]:
                freed += ops.value_bytes[value]
            shared = ops.writer_count[value] > 1
            needed[value] = (shared or ops.keep[value]) and p > first_write[value]
            if not needed[value]:
                added += ops.value_bytes[value]
            if not needed[value] or not shared:
                written += ops.value_bytes[value]
        for e in range(ops.read_start[op], ops.read_start[op + 1]):
            value = ops.read_index[e]
            if ops.writer_count[value] > 0 and not needed[value]:
                needed[value] = True
                freed += ops.value_bytes[value]
        during[p] = max(written, ops.workspace[op])
        change[p] = added - freed
    level = np.int64(0)
    peak = np.int64(0)
    for p in range(n):
        during[p] += level
        level += change[p]
        peak = max(peak, during[p])
    return peak


@njit(cache=True, nogil=True)
def _excess(during, n, budget):
    total = 0.0
    for p in range(n):
        if during[p] > budget:
            total += during[p] - budget
    return total


@njit(cache=True, nogil=True)
def _moved(order, at, to, out):
    """``order`` with the run at ``at`` put before the run at ``to``."""
    n = len(order)
    k = 0
    for p in range(n):
        if p == to:
            out[k] = order[at]
            k += 1
        if p != at:
            out[k] = order[p]
            k += 1


@njit(cache=True, nogil=True)
def _gone_ancestors(op, order, at, ops, redo):
    """Into ``redo``: op, and those of its ancestors whose values no run from ``at`` on reads before they are made
    again, ascending. Returns how many. Such values would have to be held for op alone."""
    needed = ops.keep.copy()
    for p in range(len(order) - 1, at - 1, -1):
        other = order[p]
        for e in range(ops.write_start[other], ops.write_start[other + 1]):
            if ops.writer_count[ops.write_index[e]] == 1:
                needed[ops.write_index[e]] = False
        for e in range(ops.read_start[other], ops.read_start[other + 1]):
            needed[ops.read_index[e]] = True
    wanted = np.zeros(len(ops.time), dtype=np.bool_)
    redo[0] = op
    wanted[op] = True
    count = 1
    k = 0
    while k < count:
        this = redo[k]
        k += 1
        for e in range(ops.read_start[this], ops.read_start[this + 1]):
            value = ops.read_index[e]
            writer = ops.writer[value]
            if writer >= 0 and not needed[value] and not wanted[writer] and ops.repeats[writer]:
                wanted[writer] = True
                redo[count] = writer
                count += 1
    for k in range(1, count):  # ascending, so that each comes after its inputs
        this = redo[k]
        j = k
        while j > 0 and redo[j - 1] > this:
            redo[j] = redo[j - 1]
            j -= 1
        redo[j] = this
    return count


@njit(cache=True, nogil=True)
def _sort(key, item, n):
    """Both by falling key, equal ones in their order. Shell sort: numpy's takes seconds to compile here."""
    gap = 1
    while gap < n // 3:
        gap = 3 * gap + 1
    while gap > 0:
        for k in range(gap, n):
            this, which = key[k], item[k]
            j = k
            while j >= gap and (key[j - gap] < this or (key[j - gap] == this and item[j - gap] > which)):
                key[j], item[j] = key[j - gap], item[j - gap]
                j -= gap
            key[j], item[j] = this, which
        gap //= 3


@njit(cache=True, nogil=True)
def _squeeze(order, budget, allowance, ops):
    values = len(ops.writer_count)
    during = np.empty(len(order), dtype=np.int64)
    peak = _profile(order, during, ops)
    total = _excess(during, len(order), budget)
    redo = np.empty(len(ops.time), dtype=np.int64)
    next_read = np.empty(values, dtype=np.int64)
    made = np.empty(values, dtype=np.int64)
    candidates = np.empty(values, dtype=np.int64)
    promise = np.empty(values, dtype=np.float64)
    cheapest = np.inf
    for op in range(len(ops.time)):
        if ops.time[op] > 0:
            cheapest = min(cheapest, ops.time[op])
    if cheapest == np.inf:
        cheapest = 1.0
    spent = 0.0
    while peak > budget:
        n = len(order)
        over = np.empty(n + 1, dtype=np.int64)
        above = np.empty(n + 1, dtype=np.int64)
        worst = 0
        for p in range(n):
            if during[p] > during[worst]:
                worst = p
        next_read[:] = n
        made[:] = -1
        for p in range(worst):
            for e in range(ops.write_start[order[p]], ops.write_start[order[p] + 1]):
                made[ops.write_index[e]] = p
        for p in range(n - 1, worst, -1):
            op = order[p]
            for e in range(ops.write_start[op], ops.write_start[op + 1]):
                next_read[ops.write_index[e]] = -1 if ops.writer_count[ops.write_index[e]] == 1 else p
            for e in range(ops.read_start[op], ops.read_start[op + 1]):
                next_read[ops.read_index[e]] = p
        for e in range(ops.read_start[order[worst]], ops.read_start[order[worst] + 1]):
            made[ops.read_index[e]] = -1  # in use at the worst moment: it has to be there
        best_rate = 0.0
        best_total = total
        best_time = 0.0
        best = order
        # How much of the excess a value can account for bounds what computing it again can remove: the most
        # promising come first, and once a bound is below what was found the rest need no look.
        over[0] = 0
        above[0] = 0
        for p in range(n):
            exceeds = during[p] > budget
            over[p + 1] = over[p] + (1 if exceeds else 0)
            above[p + 1] = above[p] + (during[p] - budget if exceeds else 0)
        listed = 0
        for value in range(values):
            at = next_read[value]
            op = ops.writer[value]
            if made[value] < 0 or at < 0 or at >= n or not ops.repeats[op] or ops.value_bytes[value] == 0:
                continue
            since = made[value] + 1
            gain = min(
                float(ops.value_bytes[value]) * (over[at] - over[since]), float(above[at] - above[since])
            )
            candidates[listed] = value
            promise[listed] = gain / max(ops.time[op], 0.1 * cheapest)
            listed += 1
        # compute an idle value again, before its next use
        _sort(promise, candidates, listed)
        for j in range(listed):
            if promise[j] <= best_rate:
                break
            value = candidates[j]
            at = next_read[value]
            op = ops.writer[value]
            shallow = 0
            for whole in (False, True):
                if whole:
                    count = _gone_ancestors(op, order, at, ops, redo)
                    if count == shallow:
                        continue
                else:
                    redo[0] = op
                    count = 1
                    shallow = 1
                time = 0.0
                for k in range(count):
                    time += ops.time[redo[k]]
                if spent + time > allowance:
                    continue
                trial = np.empty(n + count, dtype=np.int64)
                trial[:at] = order[:at]
                trial[at : at + count] = redo[:count]
                trial[at + count :] = order[at:]
                trial_during = np.empty(n + count, dtype=np.int64)
                _profile(trial, trial_during, ops)
                left = _excess(trial_during, n + count, budget)
                rate = (total - left) / max(time, 0.1 * cheapest)
                if left < total and rate > best_rate:
                    best_rate, best_total, best_time, best = rate, left, time, trial
        # let a run wait until its values are read, or let a later one come first
        trial = np.empty(n, dtype=np.int64)
        trial_during = np.empty(n, dtype=np.int64)
        first_made = np.full(values, n, dtype=np.int64)
        last_made = np.full(values, -1, dtype=np.int64)
        for p in range(n):
            for e in range(ops.write_start[order[p]], ops.write_start[order[p] + 1]):
                value = ops.write_index[e]
                first_made[value] = min(first_made[value], p)
                last_made[value] = p
        for p in range(max(0, worst - 24), min(n, worst + 24)):
            op = order[p]
            if p < worst:
                to = n
                for e in range(ops.write_start[op], ops.write_start[op + 1]):
                    value = ops.write_index[e]
                    for later in range(p + 1, min(to, n)):
                        reads = False
                        for f in range(ops.read_start[order[later]], ops.read_start[order[later] + 1]):
                            if ops.read_index[f] == value:
                                reads = True
                        if reads:
                            to = later
                            break
                if to <= worst or to == n:
                    continue
            else:
                to = worst
                for e in range(ops.read_start[op], ops.read_start[op + 1]):
                    value = ops.read_index[e]
                    if ops.writer_count[value] == 1 and first_made[value] >= worst:
                        to = n
                    if ops.writer_count[value] > 1 and last_made[value] >= worst:
                        to = n
                if to == n or p == worst:
                    continue
            _moved(order, p, to, trial)
            _profile(trial, trial_during, ops)
            left = _excess(trial_during, n, budget)
            rate = (total - left) / (0.1 * cheapest)
            if left < total and rate > best_rate:
                best_rate, best_total, best_time, best = rate, left, 0.0, trial.copy()
        if best_rate == 0.0:
            return order, False
        order = best
        spent += best_time
        during = np.empty(len(order), dtype=np.int64)
        peak = _profile(order, during, ops)
        total = best_total
    return order, True


@njit(cache=True, nogil=True)
def _without(order, at):
    out = np.empty(len(order) - 1, dtype=np.int64)
    out[:at] = order[:at]
    out[at:] = order[at + 1 :]
    return out


@njit(cache=True, nogil=True)
def _repeated(order, by_time, ops):
    """Positions of runs of ops that have run before, longest time first or in order."""
    seen = np.zeros(len(ops.time), dtype=np.bool_)
    where = np.empty(len(order), dtype=np.int64)
    cost = np.empty(len(order), dtype=np.float64)
    count = 0
    for p in range(len(order)):
        if seen[order[p]]:
            where[count] = p
            cost[count] = ops.time[order[p]] if by_time else -p
            count += 1
        seen[order[p]] = True
    _sort(cost, where, count)
    return where[:count].copy()


@njit(cache=True, nogil=True)
def _relax(order, budget, ops):
    going = True
    while going:
        going = False
        where = _repeated(order, True, ops)
        gone = np.zeros(len(order), dtype=np.bool_)
        for k in range(len(where)):
            at = where[k]
            for j in range(k):
                if gone[where[j]] and where[j] < where[k]:
                    at -= 1
            trial = _without(order, at)
            if _profile(trial, np.empty(len(trial), dtype=np.int64), ops) <= budget:
                order = trial
                gone[where[k]] = True
                going = True
    return order


@njit(cache=True, nogil=True)
def _improve(order, budget, tries, ops):
    """Large neighbourhood search: each try drops a few neighbouring repeated runs. Always the same random numbers."""
    np.random.seed(1)
    current = _overhead(order, ops)
    for _ in range(tries):
        where = _repeated(order, False, ops)
        if len(where) == 0 or current <= 0:
            break
        some = min(len(where), 1 + np.random.randint(0, 8))
        first = np.random.randint(0, len(where) - some + 1)
        trial = order
        cost = 0.0
        for k in range(first + some - 1, first - 1, -1):
            cost += ops.time[order[where[k]]]
            trial = _without(trial, where[k])
        trial, good = _squeeze(trial, budget, cost, ops)
        if good:
            trial = _relax(trial, budget, ops)
            after = _overhead(trial, ops)
            if after <= current:
                order, current = trial, after
    return order


@njit(cache=True, nogil=True)
def _overhead(order, ops):
    seen = np.zeros(len(ops.time), dtype=np.bool_)
    total = 0.0
    for op in order:
        if seen[op]:
            total += ops.time[op]
        seen[op] = True
    return total
