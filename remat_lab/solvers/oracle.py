"""oracle: a shortest path through memory states, which proves the optimum of a tiny joint graph.

A state is the set of contributions held and the set of ops that have run at least once. From a state, any
op whose reads are there may run, after freeing what must go. A first run costs nothing, a later one its
time, so the length of a shortest path (Dijkstra) from "nothing" to "every op has run and the outputs are
held" is the least overhead of any schedule, in any order of computation and recomputation.

What keeps the search small without losing the optimum:

* Holding more is never worse, since a free is possible at any later time and costs nothing: so values are
  freed only when the next op does not fit, and then only sets of which no proper subset would do.
* A value that no op still to run needs, not even through recomputation, is freed at once; and an op that
  runs again frees its old outputs first.
* A*: an op whose value is gone and needed by an op still to run must run again, and so must those whose
  values it needs and that are gone too. The time of all these is a lower bound on what is left to pay.
"""

from __future__ import annotations

import heapq

import numpy as np
from numba import njit

from ..errors import InfeasibleBudget, TooLarge
from ..joint import JointGraph
from ..registry import Request, Solution, method
from ..schedule import Schedule
from ..simulate import simulate

#: Ops and contributions are bits of one word each.
WORD = 64
_ORDERS = ("any", "plain", "staged")
_FOUND, _NONE, _TOO_MANY = 0, 1, 2


def oracle_ops(joint: JointGraph, budget: int | None, *, order: str = "any", states: int = 2_000_000):
    """The ops of a schedule with least overhead, int64 array, or None if no schedule fits.

    Parameters
    ----------
    joint : JointGraph with at most 64 ops and 64 writes
    budget : bytes, or None
    order : which schedules compete. "any": all of them. "plain": those whose first runs keep the plain
        order. "staged": of those, the ones in which the runs between two first runs ascend and none follows
        the last first run, which is the space of Checkmate's program and of the retention intervals.
    states : give up after this many states

    Raises
    ------
    TooLarge
        If the graph is too large, or the states run out before the optimum is proven.
    """
    if order not in _ORDERS:
        raise ValueError(f"order must be one of {_ORDERS}, got {order!r}")
    contributions = len(joint.writes.index)
    if joint.n_ops > WORD or contributions > WORD:
        raise TooLarge(
            f"the oracle plans graphs of at most {WORD} ops and {WORD} writes; this one has {joint.n_ops} and "
            f"{contributions}. Use 'checkmate' or 'retention-intervals'."
        )
    limit = 2**62 if budget is None else budget
    status, ops = _run(joint, limit, order, True, min(states, 50_000))  # quick where nothing fits
    if status != _NONE:
        status, ops = _run(joint, limit, order, False, states)
    if status == _TOO_MANY:
        raise TooLarge(f"the oracle gave up after {states:,} states: the graph or its budget is too large")
    return None if status == _NONE else ops


def oracle_minimum(joint: JointGraph, order: str = "any", states: int = 2_000_000) -> int:
    """The least budget any schedule can meet, bytes: bisection on whether one exists."""
    low, high = 0, simulate(Schedule.vanilla(joint)).peak
    while low < high:
        middle = (low + high) // 2
        status, ops = _run(joint, middle, order, True, states)
        if status == _TOO_MANY:
            raise TooLarge(f"the oracle gave up after {states:,} states: the graph is too large")
        if status == _NONE:
            low = middle + 1
        else:
            high = simulate(Schedule.from_ops(joint, ops, hold_outputs=False)).peak
    return high


def _run(joint: JointGraph, budget: int, order: str, feasibility: bool, states: int):
    return _search(
        budget,
        _ORDERS.index(order),
        feasibility,
        states,
        *joint.reads,
        *joint.writes,
        joint.writer_count,
        joint.value_bytes,
        joint.op_workspace,
        joint.op_time,
        joint.outputs,
        joint.runs_once,
    )


def _minimum(joint: JointGraph, accounting: str, order: str = "any", states: int = 2_000_000) -> int:
    return oracle_minimum(joint, order, states)


@method("oracle", view="joint", minimum=_minimum)
def oracle(joint: JointGraph, request: Request, order: str = "any", states: int = 2_000_000) -> Solution:
    """The least overhead of any schedule, proven; for graphs of at most 64 ops."""
    ops = oracle_ops(joint, request.budget, order=order, states=states)
    if ops is None:
        assert request.budget is not None
        raise InfeasibleBudget.of("oracle", request.budget, oracle_minimum(joint, order, states))
    schedule = Schedule.from_ops(joint, ops, hold_outputs=False)
    return Solution(
        schedule,
        status="optimal",
        bound=schedule.overhead if order == "any" else None,
        details={"order": order},
    )


@njit(cache=True, nogil=True)
def _bit(i):
    return np.uint64(1) << np.uint64(i)


@njit(cache=True, nogil=True)
def _search(
    budget,
    order,
    feasibility,
    most_states,
    read_start,
    read_index,
    write_start,
    write_index,
    writer_count,
    value_bytes,
    workspace,
    op_time,
    outputs,
    once,
):
    """A*. Returns (status, ops of a shortest path).

    With ``feasibility``, times count for nothing, and any schedule will do.

    ``held`` has a bit per write edge (a contribution that is there), ``done`` a bit per op; for "staged" the
    last run of the present stage is part of the state.
    """
    ops = len(op_time)
    values = len(writer_count)
    mask = np.zeros(values, dtype=np.uint64)  # all contributions to a value
    for e in range(len(write_index)):
        mask[write_index[e]] |= _bit(e)
    goal = np.uint64(0)
    for k in range(len(outputs)):
        goal |= mask[outputs[k]]
    everything = np.uint64(0)
    for op in range(ops):
        everything |= _bit(op)

    size = 1 << 12
    table = np.full(4 * size, -1, dtype=np.int64)  # open addressing: state at the hash of its key
    held_of = np.zeros(size, dtype=np.uint64)
    done_of = np.zeros(size, dtype=np.uint64)
    last_of = np.full(size, -1, dtype=np.int64)
    cost_of = np.zeros(size, dtype=np.float64)
    from_of = np.full(size, -1, dtype=np.int64)
    by_of = np.full(size, -1, dtype=np.int64)
    ahead_of = np.zeros(size, dtype=np.float64)
    closed = np.zeros(size, dtype=np.bool_)
    count = 1
    table[_slot(table, held_of, done_of, last_of, np.uint64(0), np.uint64(0), -1)] = 0
    # (overhead and lower bound on the rest, ops still to run, state): ties go to the state nearest the end
    heap = [(0.0, ops, 0)]
    useful = np.empty(values, dtype=np.bool_)
    needed = np.empty(values, dtype=np.bool_)
    is_output = np.zeros(values, dtype=np.bool_)
    is_output[outputs] = True
    stays = np.zeros(values, dtype=np.bool_)  # nothing may make it again
    for op in range(ops):
        for e in range(write_start[op], write_start[op + 1]):
            if once[op]:
                stays[write_index[e]] = True
    droppable = np.empty(values, dtype=np.int64)
    chosen = np.empty(values + 1, dtype=np.int64)
    rest = np.empty(values + 1, dtype=np.int64)
    while len(heap) > 0:
        _, left, state = heapq.heappop(heap)
        if closed[state]:
            continue
        closed[state] = True
        cost = cost_of[state]
        held, done, last = held_of[state], done_of[state], last_of[state]
        if done == everything and (held & goal) == goal:
            length = 0
            s = state
            while by_of[s] >= 0:
                length += 1
                s = from_of[s]
            path = np.empty(length, dtype=np.int64)
            s = state
            while by_of[s] >= 0:
                length -= 1
                path[length] = by_of[s]
                s = from_of[s]
            return 0, path
        first_undone = 0
        while first_undone < ops and (done & _bit(first_undone)) != 0:
            first_undone += 1
        forced = False
        for op in range(ops):
            if forced:
                break
            again = (done & _bit(op)) != 0
            if again and once[op]:
                continue
            if order > 0 and not again and op != first_undone:
                continue
            if order == 2 and again and (op <= last or done == everything):
                continue
            ready = True
            for e in range(read_start[op], read_start[op + 1]):
                value = read_index[e]
                if (held & mask[value]) != mask[value]:
                    ready = False
                    break
            if not ready:
                continue
            new_done = done | _bit(op)
            worth = _worth(
                new_done, read_start, read_index, write_start, write_index, is_output, mask, useful
            )
            # Outputs: drop an old single instance, join a partial one, allocate what is not there.
            base = held
            added = 0
            gains = not again
            for e in range(write_start[op], write_start[op + 1]):
                value = write_index[e]
                if (held & _bit(e)) == 0:
                    gains = True
                if writer_count[value] == 1:
                    base &= ~mask[value]
                    added += value_bytes[value]
                elif (held & mask[value]) == 0:
                    added += value_bytes[value]
            if not gains:
                continue
            inside = max(added, workspace[op])
            live = 0
            drops = 0
            for value in range(values):
                if (base & mask[value]) == 0:
                    continue
                live += value_bytes[value]
                if value_bytes[value] == 0:
                    continue
                wanted = stays[value]
                for e in range(read_start[op], read_start[op + 1]):
                    if read_index[e] == value:
                        wanted = True
                if not wanted:
                    droppable[drops] = value
                    drops += 1
            need = live + inside - budget
            # Sets to free, by depth-first search over values from large to small.
            for i in range(1, drops):
                value = droppable[i]
                j = i
                while j > 0 and value_bytes[droppable[j - 1]] < value_bytes[value]:
                    droppable[j] = droppable[j - 1]
                    j -= 1
                droppable[j] = value
            rest[drops] = 0
            for i in range(drops - 1, -1, -1):
                rest[i] = rest[i + 1] + value_bytes[droppable[i]]
            if need > rest[0]:
                continue
            depth = 0
            freed = 0
            shifted = 0  # freed bytes of accumulations that the op adds to, and so allocates anew
            position = 0
            while True:
                fits = live - freed + max(added + shifted, workspace[op]) <= budget
                if not fits and position < drops and freed + rest[position] >= need:
                    value = droppable[position]
                    freed += value_bytes[value]
                    shifted += value_bytes[value] if _writes(write_start, write_index, op, value) else 0
                    chosen[depth] = position
                    depth += 1
                    position += 1
                    continue
                if fits:
                    # Taken from large to small, so the last one taken is the least: minimal if it is needed.
                    minimal = (
                        depth == 0 or shifted > 0 or freed - value_bytes[droppable[chosen[depth - 1]]] < need
                    )
                    if minimal:
                        kept = base
                        for i in range(depth):
                            kept &= ~mask[droppable[chosen[i]]]
                        after = kept
                        for e in range(write_start[op], write_start[op + 1]):
                            after |= _bit(e)
                        after &= worth
                        if again and after == held:
                            gains = False
                        elif feasibility and depth == 0 and not (order == 2 and again):
                            forced = True  # it fits without a free, and running more costs nothing
                        new_last = -1
                        if order == 2 and again:
                            new_last = op
                        new_cost = cost + (op_time[op] if again and not feasibility else 0.0)
                        slot = _slot(table, held_of, done_of, last_of, after, new_done, new_last)
                        known = table[slot]
                        if known < 0:
                            if count >= most_states:
                                return 2, np.empty(0, dtype=np.int64)
                            if count == size:
                                size *= 2
                                held_of = _grown(held_of, size)
                                done_of = _grown(done_of, size)
                                last_of = _grown(last_of, size)
                                cost_of = _grown(cost_of, size)
                                from_of = _grown(from_of, size)
                                by_of = _grown(by_of, size)
                                closed = _grown(closed, size)
                                ahead_of = _grown(ahead_of, size)
                                table = np.full(4 * size, -1, dtype=np.int64)
                                for i in range(count):
                                    at = _slot(
                                        table, held_of, done_of, last_of, held_of[i], done_of[i], last_of[i]
                                    )
                                    table[at] = i
                                slot = _slot(table, held_of, done_of, last_of, after, new_done, new_last)
                            known = count
                            count += 1
                            table[slot] = known
                            held_of[known] = after
                            done_of[known] = new_done
                            last_of[known] = new_last
                            closed[known] = False
                            cost_of[known] = np.inf
                            if not feasibility:
                                ahead_of[known] = _look_ahead(
                                    after,
                                    new_done,
                                    read_start,
                                    read_index,
                                    write_start,
                                    write_index,
                                    op_time,
                                    is_output,
                                    needed,
                                )
                        if gains and new_cost < cost_of[known]:
                            cost_of[known] = new_cost
                            from_of[known] = state
                            by_of[known] = op
                            heapq.heappush(
                                heap, (new_cost + ahead_of[known], left - (0 if again else 1), known)
                            )
                # Back up: give up the value taken last and go on after it.
                if depth == 0:
                    break
                depth -= 1
                value = droppable[chosen[depth]]
                freed -= value_bytes[value]
                shifted -= value_bytes[value] if _writes(write_start, write_index, op, value) else 0
                position = chosen[depth] + 1
    return 1, np.empty(0, dtype=np.int64)


@njit(cache=True, nogil=True)
def _slot(table, held_of, done_of, last_of, held, done, last):
    """Where a state is in the table, or where it belongs."""
    code = held * np.uint64(0x9E3779B97F4A7C15) ^ done * np.uint64(0xC2B2AE3D27D4EB4F)
    code ^= np.uint64(last + 1) * np.uint64(0x165667B19E3779F9)
    code ^= code >> np.uint64(29)
    code *= np.uint64(0xBF58476D1CE4E5B9)
    code ^= code >> np.uint64(32)
    at = np.int64(code & np.uint64(len(table) - 1))
    while table[at] >= 0:
        i = table[at]
        if held_of[i] == held and done_of[i] == done and last_of[i] == last:
            break
        at += 1
        if at == len(table):
            at = np.int64(0)
    return at


@njit(cache=True, nogil=True)
def _worth(done, read_start, read_index, write_start, write_index, is_output, mask, useful):
    """Mask of the contributions that ops still to run may need, be it through recomputation.

    One pass against the plain order: an op's readers and the values they write come after it.
    """
    for value in range(len(useful)):
        useful[value] = is_output[value]
    for op in range(len(read_start) - 2, -1, -1):
        matters = (done & _bit(op)) == 0
        for e in range(write_start[op], write_start[op + 1]):
            matters = matters or useful[write_index[e]]
        if matters:
            for e in range(read_start[op], read_start[op + 1]):
                useful[read_index[e]] = True
    worth = np.uint64(0)
    for value in range(len(useful)):
        if useful[value]:
            worth |= mask[value]
    return worth


@njit(cache=True, nogil=True)
def _look_ahead(held, done, read_start, read_index, write_start, write_index, op_time, is_output, needed):
    """Time that must still be spent recomputing: of ops whose contribution is gone and waited for."""
    for value in range(len(needed)):
        needed[value] = is_output[value]
    total = 0.0
    for op in range(len(op_time) - 1, -1, -1):
        runs = (done & _bit(op)) == 0
        if not runs:
            for e in range(write_start[op], write_start[op + 1]):
                if needed[write_index[e]] and (held & _bit(e)) == 0:
                    runs = True
            if runs:
                total += op_time[op]
        if runs:
            for e in range(read_start[op], read_start[op + 1]):
                needed[read_index[e]] = True
    return total


@njit(cache=True, nogil=True)
def _writes(write_start, write_index, op, value):
    for e in range(write_start[op], write_start[op + 1]):
        if write_index[e] == value:
            return True
    return False


@njit(cache=True, nogil=True)
def _grown(array, size):
    bigger = np.empty(size, dtype=array.dtype)
    bigger[: len(array)] = array
    return bigger
