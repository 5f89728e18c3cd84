"""Gruslys et al. (NeurIPS 2016, arXiv 1606.03401): optimal policies for backpropagation through time.

C(t, m) is the least number of forward steps that backpropagates t steps with memory m.

HSM, hidden states only (m slots, the initial state's included; the working internal state is free):
    C(t, 1) = t (t + 1) / 2,   C(t, m) = min_{1<=y<t} y + C(t-y, m-1) + C(y, m)
ISM, internal states only (m slots, the working one included; the initial state is free):
    C(0, m) = 0,               C(t, m) = min_{1<=y<=t} y + C(t-y, m-1) + C(y-1, m)
MSM, both, m in hidden states, an internal state costing alpha of them: the least of
    y + C(t-y, m-1) + C(y, m)  and  y + C(t-y, m-alpha) + C(y-1, m).

MSM's base case is named by what it counts:
    "every tensor" (default): the working internal state costs alpha, the initial state is free;
    "stored": the working internal state is free, the initial hidden state costs 1.
For alpha = 1 both give ISM's costs. HSM and ISM have closed forms, used for costs and for splits, so that
a policy of any length takes time linear in its schedule; MSM is a table.
"""

from __future__ import annotations

from math import comb

import numpy as np
from numba import njit

from ..arrays import check_bytes
from ..chain import Chain
from ..errors import InfeasibleBudget
from ..memo import memo
from ..registry import Request, Solution, method
from .policy import Policy, most_slots, remembered, slot_counts, solution_of

CONVENTIONS = ("every tensor", "stored")
#: A cost no policy has; two of them and a length still fit in an int32.
NEVER = 2**30 - 2**20


# -- closed forms --------------------------------------------------------------------------------------------
def hsm_steps(t: int, m: int) -> int:
    """HSM's C(t, m) = t + r t - binom(m + r, m + 1), r the least with binom(m + r, m) >= t."""
    _check_lengths(t, m)
    if t == 0:
        return 0
    if m == 1:
        return t * (t + 1) // 2
    r = 0
    while comb(m + r, m) < t:
        r += 1
    return t + r * t - comb(m + r, m + 1)


def ism_steps(t: int, m: int) -> int:
    """ISM's C(t, m) = sum over j >= 0 of max(0, t - (binom(m + j, m) - 1))."""
    _check_lengths(t, m)
    if m == 1:
        return t * (t + 1) // 2
    total = j = 0
    while (reach := comb(m + j, m) - 1) < t:
        total += t - reach
        j += 1
    return total


def _check_lengths(t: int, m: int) -> None:
    if t < 0 or m < 1:
        raise ValueError(f"need a length t >= 0 and at least one slot, got t={t}, m={m}")


def _check_table(whose: str, T: int, M: int, itemsize: int) -> None:
    check_bytes(
        f"{whose} table for {T:,} steps and {M:,} slots",
        (T + 1) * (M + 1) * itemsize,
        "give a smaller budget, or use 'bptt-hsm', 'bptt-ism' or 'revolve', which need no table",
    )


# -- tables --------------------------------------------------------------------------------------------------
def hsm_table(T: int, M: int) -> np.ndarray:
    """HSM's C: int64 array, shape (M + 1, T + 1); row 0 is unused and holds :data:`NEVER`."""
    _check_lengths(T, M)
    _check_table("HSM's", T, M, 8)
    return _convex_table(T, M, 0)


def ism_table(T: int, M: int) -> np.ndarray:
    """ISM's C: int64 array, shape (M + 1, T + 1); row 0 is no memory at all."""
    _check_lengths(T, M)
    _check_table("ISM's", T, M, 8)
    return _convex_table(T, M, 1)


def msm_table(T: int, M: int, alpha: int, convention: str = "every tensor") -> np.ndarray:
    """MSM's C: int32 (int64 from T = 46,000) array, shape (M + 1, T + 1); :data:`NEVER` where infeasible."""
    _check_lengths(T, M)
    if alpha < 1:
        raise ValueError(f"alpha, internal size over hidden size, is at least 1; got {alpha}")
    if convention not in CONVENTIONS:
        raise ValueError(f"convention must be one of {CONVENTIONS}, got {convention!r}")
    kind = np.int32 if T < 46_000 else np.int64
    _check_table("MSM's", T, M, np.dtype(kind).itemsize)
    return _mixed_table(T, M, alpha, convention == "stored", np.zeros(0, kind))


@njit(cache=True, nogil=True)
def _convex_table(T, M, internal):
    """HSM (internal=0) or ISM (internal=1).

    C(., m) is convex in t, so the best split of t + 1 is that of t or one more: O(T M) in all.
    """
    table = np.full((M + 1, T + 1), 2**60, dtype=np.int64)
    table[:, 0] = 0
    for t in range(T + 1):
        table[1, t] = t * (t + 1) // 2
    for m in range(2, M + 1):
        upper, row = table[m - 1], table[m]
        y = 1
        for t in range(1, T + 1):
            if t == 1:
                row[1] = 1
                continue
            best = y + upper[t - y] + row[y - internal]
            while y < t - 1 + internal:
                value = y + 1 + upper[t - y - 1] + row[y + 1 - internal]
                if value > best:
                    break
                best = value
                y += 1
            row[t] = best
    return table


@njit(cache=True, nogil=True)
def _mixed_table(T, M, alpha, stored, like):
    """MSM. The two minima over y are plain array sweeps, one operand stored reversed so that they vectorize.

    With k = t - y the candidates are t + (A[k] - k) + B[t-k], A the row of the right part's memory and B
    this row's beginning.
    """
    never = 2**30 - 2**20
    table = np.full((M + 1, T + 1), never, dtype=like.dtype)
    table[:, 0] = 0
    back_h = np.empty(T + 1, dtype=like.dtype)  # back[T - k] = A[k] - k
    back_i = np.empty(T + 1, dtype=like.dtype)
    need = 1 if stored else alpha
    for m in range(need, M + 1):
        row = table[m]
        for k in range(T + 1):
            back_h[T - k] = table[m - 1, k] - k
            back_i[T - k] = (table[m - alpha, k] - k) if m >= alpha else never
        pushes_internal = m >= alpha
        pushes_hidden = m - 1 >= need
        for t in range(1, T + 1):
            best = like.dtype.type(t + row[t - 1])  # take the last step first, pushing nothing
            if pushes_hidden:
                a = back_h[T - t : T + 1]
                low = like.dtype.type(never)
                for y in range(1, t):
                    low = min(low, a[y] + row[y])
                best = min(best, t + low)
            if pushes_internal:
                a = back_i[T - t + 1 : T + 1]
                low = like.dtype.type(never)
                for y in range(t):
                    low = min(low, a[y] + row[y])
                best = min(best, t + low)
            row[t] = best
    return table


# -- policies ------------------------------------------------------------------------------------------------
def hsm_policy(chain: Chain, m: int) -> Policy:
    """The HSM policy with m slots, by closed form."""
    m = min(m, chain.steps)
    return remembered(chain, ("hsm", m), lambda: Policy(chain, m, hsm_moves(chain.steps, m)))


def ism_policy(chain: Chain, m: int) -> Policy:
    """The ISM policy with m slots, by closed form."""
    m = min(m, chain.steps)
    return remembered(chain, ("ism", m), lambda: Policy(chain, m, ism_moves(chain.steps, m)))


def msm_policy(chain: Chain, m: int, convention: str = "every tensor") -> Policy:
    """The MSM policy with memory m, from the table."""
    alpha = chain.alpha
    m = min(m, alpha * chain.steps + 1)

    def make() -> Policy:
        table = _table_for(chain, m, convention)
        return Policy(chain, m, _mixed_moves(table, chain.steps, m, alpha, convention == "stored"))

    return remembered(chain, ("msm", m, convention), make)


def _table_for(chain: Chain, m: int, convention: str) -> np.ndarray:
    """A table of at least m rows, made anew (and twice as large) when the one at hand is too small."""
    tables: dict[str, np.ndarray] = memo(chain, ("msm tables", convention), dict)
    if "table" not in tables or len(tables["table"]) <= m:
        rows = min(max(m, 2 * len(tables.get("table", ()))), chain.alpha * chain.steps + 1)
        tables["table"] = msm_table(chain.steps, max(m, rows), chain.alpha, convention)
    return tables["table"]


def hsm_moves(T: int, m: int) -> np.ndarray:
    """Moves of HSM: the least of its best splits."""
    return binomial_moves(T, m, False)


@njit(cache=True, nogil=True)
def binomial_moves(T, m, largest):
    """Moves that keep hidden states only. A length t up to binom(m + r, m) needs each step advanced at most r
    times; any split y whose left part needs at most r - 1 and whose right part, with one slot fewer, at most r
    is best. HSM takes the least of them. Revolve takes the ``largest`` at which the right part still needs r - 1
    (beyond it a shorter advance is as good), so that the right part is as short as it may be."""
    moves = np.empty((2 * T + 1, 2), dtype=np.int64)
    stack = np.empty((T + m + 8, 2), dtype=np.int64)
    stack[0, 0], stack[0, 1] = T, m
    top, count = 1, 0
    while top > 0:
        top -= 1
        t, s = stack[top, 0], stack[top, 1]
        if t == 1:
            moves[count, 0], moves[count, 1] = 1, 1
        elif s == 1:
            moves[count, 0], moves[count, 1] = 2, t
        else:
            r, reach, less, least = 0, 1, 0, 0  # binom(s + r, s) for r, r - 1, r - 2
            while reach < t:
                r += 1
                least, less = less, reach
                reach = reach * (s + r) // r
            if largest:
                y = max(1, min(less, t - less * s // (s + r - 1)))
            else:
                y = max(1, least, t - reach * s // (s + r))
            moves[count, 0], moves[count, 1] = 0, y
            stack[top, 0], stack[top, 1] = y, s
            stack[top + 1, 0], stack[top + 1, 1] = t - y, s - 1
            top += 2
        count += 1
    return moves[:count].copy()


@njit(cache=True, nogil=True)
def ism_moves(T, m):
    """Moves of ISM; as :func:`binomial_moves`, with reach binom(m + r, m) - 1 and step y itself taken once."""
    moves = np.empty((T + 1, 2), dtype=np.int64)
    stack = np.empty((T + m + 8, 2), dtype=np.int64)
    stack[0, 0], stack[0, 1] = T, m
    top, count = 1, 0
    while top > 0:
        top -= 1
        t, s = stack[top, 0], stack[top, 1]
        if t == 0:
            continue
        if s == 1:
            moves[count, 0], moves[count, 1] = 2, t
            count += 1
            continue
        r, reach, less, least = 0, 1, 0, 1
        while reach - 1 < t:
            r += 1
            least, less = max(1, less), reach
            reach = reach * (s + r) // r
        left = max(0, least - 1, t - reach * s // (s + r))
        moves[count, 0], moves[count, 1] = 1, left + 1
        count += 1
        stack[top, 0], stack[top, 1] = left, s
        stack[top + 1, 0], stack[top + 1, 1] = t - left - 1, s - 1
        top += 2
    return moves[:count].copy()


@njit(cache=True, nogil=True)
def _mixed_moves(table, T, m, alpha, stored):
    """Moves of MSM, found again from the costs: the first split that attains each."""
    moves = np.empty((2 * T + 1, 2), dtype=np.int64)
    stack = np.empty((T + m + 8, 2), dtype=np.int64)
    stack[0, 0], stack[0, 1] = T, m
    need = 1 if stored else alpha
    top, count = 1, 0
    while top > 0:
        top -= 1
        t, s = stack[top, 0], stack[top, 1]
        if t == 0:
            continue
        cost = table[s, t]
        kind, split = 1, t  # push nothing: the last step, then the t - 1 before it
        if t + table[s, t - 1] != cost:
            for y in range(1, t + 1):
                if s >= alpha and y + table[s - alpha, t - y] + table[s, y - 1] == cost:
                    kind, split = 1, y
                    break
                if y < t and s - 1 >= need and y + table[s - 1, t - y] + table[s, y] == cost:
                    kind, split = 0, y
                    break
        moves[count, 0], moves[count, 1] = kind, split
        count += 1
        if kind == 0:
            stack[top, 0], stack[top, 1] = split, s
            stack[top + 1, 0], stack[top + 1, 1] = t - split, s - 1
        else:
            stack[top, 0], stack[top, 1] = split - 1, s
            stack[top + 1, 0], stack[top + 1, 1] = t - split, s - alpha
        top += 2
    return moves[:count].copy()


# -- methods -------------------------------------------------------------------------------------------------
def _hidden_bytes(chain: Chain) -> int:
    return max(1, int(chain.hidden.max()))


def _internal_bytes(chain: Chain) -> int:
    return max(1, int(chain.internal.max()))


class _Strategy:
    """What the three methods share: slots from a budget, search under simulated accounting, frontiers."""

    def __init__(self, name, policy, slot_bytes, least, most):
        self.name, self.policy, self.slot_bytes, self.least, self.most = name, policy, slot_bytes, least, most

    def solve(self, chain: Chain, request: Request, **options) -> Solution:
        least, most = self.least(chain, **options), self.most(chain)
        make = lambda m: self.policy(chain, m, **options)  # noqa: E731
        if request.accounting == "simulated":
            if request.budget is not None:  # no policy of more slots than fit the budget can keep it
                most = max(least, min(most, request.budget // self.slot_bytes(chain) + chain.alpha + 1))
            return self._solution(most_slots(make, least, most, request, self.name), "feasible")
        unit = 1 if chain.counts_slots else self.slot_bytes(chain)
        slots = most if request.budget is None else request.budget // unit
        if slots < least:
            raise InfeasibleBudget.of(self.name, request.budget or 0, least * unit, slots=chain.counts_slots)
        return self._solution(make(min(slots, most)), "optimal" if chain.uniform else "feasible")

    def _solution(self, policy: Policy, status: str) -> Solution:
        return solution_of(policy, status, self.slot_bytes(policy.chain))

    def points(self, chain: Chain, accounting: str, **options) -> list[Solution]:
        counts = slot_counts(self.least(chain, **options), self.most(chain))
        self.policy(chain, counts[-1], **options)  # the largest first: its table serves the others
        return [self._solution(self.policy(chain, m, **options), "feasible") for m in counts]

    def minimum(self, chain: Chain, accounting: str, **options) -> int:
        least = self.least(chain, **options)
        if accounting == "paper":
            return least * (1 if chain.counts_slots else self.slot_bytes(chain))
        from ..simulate import simulate

        return simulate(self.policy(chain, least, **options).schedule).peak

    def vanilla(self, chain: Chain) -> int:
        return self.most(chain) * (1 if chain.counts_slots else self.slot_bytes(chain))


_HSM = _Strategy("bptt-hsm", hsm_policy, _hidden_bytes, lambda chain: 1, lambda chain: chain.steps)
_ISM = _Strategy("bptt-ism", ism_policy, _internal_bytes, lambda chain: 1, lambda chain: chain.steps)
_MSM = _Strategy(
    "bptt-msm",
    msm_policy,
    _hidden_bytes,
    lambda chain, convention="every tensor": chain.alpha if convention == "every tensor" else 1,
    lambda chain: chain.alpha * chain.steps,
)
_PAPER = "Gruslys et al. 2016"


@method(
    "bptt-hsm",
    view="chain",
    paper=_PAPER,
    points=_HSM.points,
    minimum=_HSM.minimum,
    paper_vanilla=_HSM.vanilla,
)
def bptt_hsm(chain: Chain, request: Request) -> Solution:
    """Keep hidden states only; optimal number of forward steps."""
    return _HSM.solve(chain, request)


@method(
    "bptt-ism",
    view="chain",
    paper=_PAPER,
    points=_ISM.points,
    minimum=_ISM.minimum,
    paper_vanilla=_ISM.vanilla,
)
def bptt_ism(chain: Chain, request: Request) -> Solution:
    """Keep internal states only; optimal number of forward steps."""
    return _ISM.solve(chain, request)


@method(
    "bptt-msm",
    view="chain",
    paper=_PAPER,
    points=_MSM.points,
    minimum=_MSM.minimum,
    paper_vanilla=_MSM.vanilla,
)
def bptt_msm(chain: Chain, request: Request, convention: str = "every tensor") -> Solution:
    """Keep hidden and internal states; optimal number of forward steps."""
    if convention not in CONVENTIONS:
        raise ValueError(f"convention must be one of {CONVENTIONS}, got {convention!r}")
    return _MSM.solve(chain, request, convention=convention)
