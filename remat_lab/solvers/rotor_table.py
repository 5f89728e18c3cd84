"""rotor (Beaumont et al., arXiv 1911.13214): optimal persistent policies for chains of unlike stages.

Stage s has an output a(s) (its hidden state), all that its backward needs abar(s) (its internal state, the
output included), times u_f and u_b, and temporary memory. With memory m beside the segment's own input,
the least time C(s, t, m) to run stages s..t forward and backward is the least of

    (1) keep the input of s, run s..s'-1 keeping nothing, push the input of s':
        sum_{s<=k<s'} u_f(k) + C(s', t, m - a(s'-1)) + C(s, s'-1, m)
    (2) keep everything of s:   u_f(s) + C(s+1, t, m - abar(s)) + u_b(s)
    (3) run s..s'-1 keeping nothing, keep everything of s' and not its input:
        sum_{s<=k<=s'} u_f(k) + C(s'+1, t, m - abar(s')) + u_b(s') + C(s, s'-1, m)

each if m covers what is held while its ops run. (1) and (2) are the published set. (3) is Gruslys et al.'s
push of an internal state: it exists where the backward of s' does not read the stage's input
(``Chain.keeps_input`` false), and is (1) and (2) together otherwise. *Persistent*: what is pushed stays
until it is used.

What is charged beside the pushed states is named by ``charges``:

    "rotor"         as published: the gradient entering the segment, moving states and temporary memory;
    "simulated"     what ``simulate()`` counts: also the gradient a backward step writes, and the parameters';
    "every tensor"  nothing but the working internal state, MSM's default base case;
    "stored"        not even that: MSM's other base case, whose m is this one's plus the initial state.

Under "simulated", where the backward of s does not read its input, a pushed input is let go once (2) has
used it, and the right part and the backward of s have its memory as well. C then has a second table for
segments whose input can be let go (``drop``); elsewhere there is one.

So on a uniform chain C under "every tensor" is MSM's optimum with the same m, and under "stored" with m + 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numba import njit

from ..arrays import check_bytes
from ..chain import Chain
from ..errors import InfeasibleBudget
from ..progress import report
from .policy import Policy

CHARGES = ("rotor", "simulated", "every tensor", "stored")
MOVES = ("all", "published")


class Costs(NamedTuple):
    """A chain's costs in slots, by stage 0..L-1; int64 arrays of shape (L,) unless said otherwise.

    hidden, internal : what a pushed state costs
    hold : what is held, beside pushed states, while a segment ending in this stage runs forward
    moving : the state a forward step reads while nothing pushed holds it
    drop : what becomes free when the stage's pushed input is let go
    advance, keep : what a hidden-only and an internal forward step hold while they run
    backward : all that the stage's backward holds
    time, kept_time : float64, of a hidden-only step, and of an internal step with its backward
    """

    hidden: np.ndarray
    internal: np.ndarray
    hold: np.ndarray
    moving: np.ndarray
    drop: np.ndarray
    advance: np.ndarray
    keep: np.ndarray
    backward: np.ndarray
    time: np.ndarray
    kept_time: np.ndarray


class Table(NamedTuple):
    """C for every segment and memory, and what it was made from.

    cost : float64 array, shape (inputs, L, L, slots + 1); ``inputs`` is 2 if inputs can be let go (index 1 is
        for those), else 1. If the stages are alike, by length: shape (inputs, 2, L + 1, slots + 1), the second
        axis telling segments that end with the chain, before its backward pass begins, from the others.
    """

    cost: np.ndarray
    costs: Costs
    unit: float
    whole_range: bool
    third_move: bool
    by_length: bool

    @property
    def total(self) -> np.ndarray:
        """Time of the whole chain for each memory, float64 of shape (slots + 1,)."""
        return self.cost[0, 1, -1] if self.by_length else self.cost[0, 0, -1]


def charged_bytes(chain: Chain, charges: str) -> Costs:
    """The chain's costs in bytes under one of :data:`CHARGES`."""
    zero = np.zeros(chain.steps, dtype=np.int64)
    a, abar, grad = chain.hidden, chain.internal, chain.gradient
    hold = moving = drop = advance = keep = backward = zero
    if charges == "every tensor":
        keep = backward = abar
    elif charges in ("rotor", "simulated"):
        moving = np.concatenate([[0], a[:-1]])
        advance = np.maximum(a, chain.workspace)
        keep = np.maximum(abar, chain.internal_workspace)
    if charges == "rotor":
        hold = grad
        backward = grad + np.maximum(abar, abar + chain.backward_workspace)
    elif charges == "simulated":
        drop = zero if chain.keeps_input else moving
        own = chain.parameter_gradient
        if chain.shared_parameters:  # made by the last stage's backward, there ever after
            later, new = own.copy(), zero.copy()
            later[-1], new[-1] = 0, own[-1]
        else:
            later, new = own[::-1].cumsum()[::-1] - own, own
        written = np.concatenate([[chain.input_gradient], grad[:-1]]) + new
        hold = grad + later
        hold[-1] = 0  # the loss is not reached yet
        backward = abar + grad + later + np.maximum(written, chain.backward_workspace)
    return Costs(
        *(a, abar, hold, moving, drop, advance, keep, backward),
        *(chain.time, chain.internal_time + chain.backward_time),
    )


def rotor_table(chain: Chain, unit: float, slots: int, charges: str = "rotor", moves: str = "all") -> Table:
    """C(s, t, m) for all segments and m = 0..slots, sizes rounded up to whole slots of ``unit`` bytes.

    O(L^3 slots) time; O(L^2 slots) where all stages but the last are alike (in chains of 40 and more a
    cheaper first stage is charged and timed as the others).
    """
    if charges not in CHARGES:
        raise ValueError(f"charges must be one of {CHARGES}, got {charges!r}")
    if moves not in MOVES:
        raise ValueError(f"moves must be one of {MOVES}, got {moves!r}")
    raw = charged_bytes(chain, charges)
    sizes = {k: np.ceil(getattr(raw, k) / unit - 1e-9).astype(np.int64) for k in raw._fields[:-2]}
    sizes["drop"] = np.floor(raw.drop / unit + 1e-9).astype(np.int64)  # what is gained is rounded down
    costs = Costs(**sizes, time=raw.time, kept_time=raw.kept_time)
    inputs = 2 if costs.drop.any() else 1
    whole, third = charges == "rotor", moves == "all" and not chain.keeps_input
    L = chain.steps
    by_length = _alike(costs)
    check_bytes(
        f"rotor's table for {L:,} steps and {slots:,} slots",
        8 * inputs * (2 * (L + 1) if by_length else L * L) * (slots + 1),
        "give fewer slots (option slots=), a smaller budget, or use 'revolve' or 'chen-sqrt'",
    )
    if by_length:
        cost = np.full((inputs, 2, L + 1, slots + 1), np.inf)
        _table_by_length(cost, *_two_kinds(costs), whole, third)
    else:
        cost = np.full((inputs, L, L, slots + 1), np.inf)
        for shortest, longest in _blocks(L):
            _table(cost, *costs, whole, third, shortest, longest)
    return Table(cost, costs, unit, whole, third, by_length)


def _blocks(L: int) -> Iterator[tuple[int, int]]:
    """Lengths 1..L a few at a time, each block from the shorter ones: whoever waits can look up between them."""
    step = max(1, L // 64)
    for shortest in range(1, L + 1, step):
        report(shortest - 1, L)
        yield shortest, min(L, shortest + step - 1)


def _alike(costs: Costs) -> bool:
    """Whether all stages but the last are alike; in long chains the first may be cheaper."""
    L = len(costs.time)
    if L < 3:
        return False
    for name, x in costs._asdict().items():
        if (x[1:-1] != x[1]).any():
            return False
        if name not in ("moving", "drop") and (x[0] > x[1] or (x[0] != x[1] and L < 40)):
            return False
    return True


def _two_kinds(costs: Costs) -> list[Any]:
    """Costs of a stage as scalars, then those of the last: what it holds, keeps, its backward, its time."""
    last = (costs.hold, costs.keep, costs.backward, costs.kept_time)
    return [*(x[1] for x in costs), *(x[-1] for x in last)]


def rotor_policy(chain: Chain, table: Table, m: int) -> Policy:
    """The policy of a table for memory m.

    Raises
    ------
    InfeasibleBudget
        With the least memory in the table, if m is less.
    """
    feasible = np.flatnonzero(np.isfinite(table.total))
    if m < 0 or not len(feasible) or m < feasible[0]:
        least = int(feasible[0]) if len(feasible) else None
        raise InfeasibleBudget(
            f"rotor needs at least {least} slots of {table.unit:g} B, got {m}", minimum=least
        )
    trace = _trace_by_length if table.by_length else _trace
    costs = _two_kinds(table.costs) if table.by_length else table.costs
    return Policy(chain, m, trace(table.cost, m, *costs, table.whole_range, table.third_move))


# -- kernels -------------------------------------------------------------------------------------------------
@njit(cache=True, nogil=True)
def _table(
    cost, hidden, internal, hold, moving, drop, advance, keep, backward, time, kept, whole, third, shortest, longest
):  # fmt: skip
    """Fill in the segments of ``shortest`` to ``longest`` stages; the shorter ones are there."""
    inputs, L, M = cost.shape[0], cost.shape[1], cost.shape[3] - 1
    for length in range(shortest, longest + 1):
        for s in range(L - length + 1):
            t = s + length - 1
            for f in range(inputs):
                row = cost[f, s, t]
                gain = drop[s] if f == 1 else 0
                low = max(hold[t] + keep[s], backward[s] - gain)
                if s == t:
                    for m in range(low, M + 1):
                        row[m] = kept[s]
                    continue
                right, push = cost[0, s + 1, t], internal[s] - gain
                for m in range(max(low, push), M + 1):
                    row[m] = kept[s] + right[min(M, m - push)]
                need = hold[t] + advance[s]
                if whole:
                    for j in range(s + 1, t):
                        need = max(need, hold[t] + moving[j] + advance[j])
                run = 0.0
                for k in range(s + 1, t + 1):
                    run += time[k - 1]
                    if k - 1 > s:
                        need = max(need, hold[t] + moving[k - 1] + advance[k - 1])
                    left, right, push = cost[f, s, k - 1], cost[inputs - 1, k, t], hidden[k - 1]
                    for m in range(max(need, push), M + 1):
                        row[m] = min(row[m], run + right[m - push] + left[m])
                    if third:
                        low = max(need, hold[t] + moving[k] + keep[k], backward[k])
                        if k == t:
                            for m in range(low, M + 1):
                                row[m] = min(row[m], run + kept[k] + left[m])
                        else:
                            right, push = cost[0, k + 1, t], internal[k]
                            for m in range(max(low, push), M + 1):
                                row[m] = min(row[m], run + kept[k] + right[m - push] + left[m])


@njit(cache=True, nogil=True)
def _table_by_length(
    cost, hidden, internal, hold, moving, drop, advance, keep, backward, time, kept,
    hold_last, keep_last, backward_last, kept_last, whole, third,
):  # fmt: skip
    """The same for alike stages; entry [f, e, n, m] is C of n stages, with the chain's last among them if e."""
    inputs, L, M = cost.shape[0], cost.shape[2] - 1, cost.shape[3] - 1
    cost[:, :, 0, :] = 0.0
    for n in range(1, L + 1):
        for e in range(2):
            holds = hold_last if e else hold
            final = (keep_last, backward_last, kept_last) if e else (keep, backward, kept)
            for f in range(inputs):
                row = cost[f, e, n]
                gain = drop if f == 1 else 0
                if n == 1:
                    for m in range(max(holds + final[0], final[1] - gain), M + 1):
                        row[m] = final[2]
                    continue
                right, push = cost[0, e, n - 1], internal - gain
                for m in range(max(holds + keep, backward - gain, push), M + 1):
                    row[m] = kept + right[min(M, m - push)]
                for y in range(1, n):
                    need = holds + advance + (moving if y > 1 or (whole and n > 2) else 0)
                    left, right = cost[f, 0, y], cost[inputs - 1, e, n - y]
                    for m in range(max(need, hidden), M + 1):
                        row[m] = min(row[m], y * time + right[m - hidden] + left[m])
                    if third and y == n - 1:
                        for m in range(max(need, holds + moving + final[0], final[1]), M + 1):
                            row[m] = min(row[m], y * time + final[2] + left[m])
                    elif third:
                        right = cost[0, e, n - y - 1]
                        for m in range(max(need, holds + moving + keep, backward, internal), M + 1):
                            row[m] = min(row[m], y * time + kept + right[m - internal] + left[m])


@njit(cache=True, nogil=True)
def _trace(cost, m, hidden, internal, hold, moving, drop, advance, keep, backward, time, kept, whole, third):
    """Moves of the whole chain with memory m: the least candidate of each segment, found again."""
    inputs, L, M = cost.shape[0], cost.shape[1], cost.shape[3] - 1
    moves = np.empty((2 * L + 1, 2), dtype=np.int64)
    stack = np.empty((2 * L + 8, 4), dtype=np.int64)
    stack[0] = np.array([0, L - 1, m, 0])
    top, count = 1, 0
    while top > 0:
        top -= 1
        s, t, m, f = stack[top]
        if s > t:
            continue
        kind, split, best = 1, 1, np.inf
        gain = drop[s] if f == 1 else 0
        if s < t and m >= max(hold[t] + keep[s], backward[s] - gain, internal[s] - gain):
            best = kept[s] + cost[0, s + 1, t, min(M, m - internal[s] + gain)]
        need = hold[t] + advance[s]
        if whole:
            for j in range(s + 1, t):
                need = max(need, hold[t] + moving[j] + advance[j])
        run = 0.0
        for k in range(s + 1, t + 1):
            run += time[k - 1]
            if k - 1 > s:
                need = max(need, hold[t] + moving[k - 1] + advance[k - 1])
            if m >= max(need, hidden[k - 1]):
                value = run + cost[inputs - 1, k, t, m - hidden[k - 1]] + cost[f, s, k - 1, m]
                if value < best:
                    best, kind, split = value, 0, k - s
            if third and m >= max(need, hold[t] + moving[k] + keep[k], backward[k]):
                value = np.inf
                if k == t:
                    value = run + kept[k] + cost[f, s, k - 1, m]
                elif m >= internal[k]:
                    value = run + kept[k] + cost[0, k + 1, t, m - internal[k]] + cost[f, s, k - 1, m]
                if value < best:
                    best, kind, split = value, 1, k - s + 1
        moves[count, 0], moves[count, 1] = kind, split
        count += 1
        middle = s + split
        if kind == 0:
            right = m - hidden[middle - 1]
        else:
            right = min(M, m - internal[middle - 1] + (gain if split == 1 else 0))
        stack[top] = np.array([s, middle - 1 - kind, m, f])
        stack[top + 1] = np.array([middle, t, right, inputs - 1 if kind == 0 else 0])
        top += 2
    return moves[:count].copy()


@njit(cache=True, nogil=True)
def _trace_by_length(
    cost, m, hidden, internal, hold, moving, drop, advance, keep, backward, time, kept,
    hold_last, keep_last, backward_last, kept_last, whole, third,
):  # fmt: skip
    inputs, L, M = cost.shape[0], cost.shape[2] - 1, cost.shape[3] - 1
    moves = np.empty((2 * L + 1, 2), dtype=np.int64)
    stack = np.empty((2 * L + 8, 4), dtype=np.int64)
    stack[0] = np.array([L, m, 0, 1])
    top, count = 1, 0
    while top > 0:
        top -= 1
        n, m, f, e = stack[top]
        if n == 0:
            continue
        holds = hold_last if e else hold
        final = (keep_last, backward_last, kept_last) if e else (keep, backward, kept)
        kind, split, best = 1, 1, np.inf
        gain = drop if f == 1 else 0
        if n > 1 and m >= max(holds + keep, backward - gain, internal - gain):
            best = kept + cost[0, e, n - 1, min(M, m - internal + gain)]
        for y in range(1, n):
            need = holds + advance + (moving if y > 1 or (whole and n > 2) else 0)
            if m >= max(need, hidden):
                value = y * time + cost[inputs - 1, e, n - y, m - hidden] + cost[f, 0, y, m]
                if value < best:
                    best, kind, split = value, 0, y
            value = np.inf
            if third and y == n - 1 and m >= max(need, holds + moving + final[0], final[1]):
                value = y * time + final[2] + cost[f, 0, y, m]
            elif third and y < n - 1 and m >= max(need, holds + moving + keep, backward, internal):
                value = y * time + kept + cost[0, e, n - y - 1, m - internal] + cost[f, 0, y, m]
            if value < best:
                best, kind, split = value, 1, y + 1
        moves[count, 0], moves[count, 1] = kind, split
        count += 1
        right = m - hidden if kind == 0 else min(M, m - internal + (gain if split == 1 else 0))
        stack[top] = np.array([split - kind, m, f, 0])
        stack[top + 1] = np.array([n - split, right, inputs - 1 if kind == 0 else 0, e])
        top += 2
    return moves[:count].copy()
