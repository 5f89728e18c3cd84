"""Policies on chains: a list of moves, compiled to a schedule.

Every chain method splits a segment of t steps, starting at a known state, by one of three moves:

* HIDDEN y: advance y steps, push the hidden state reached; do the right part, pop, do the left part;
* INTERNAL y: advance y - 1 steps, take step y keeping its internal state, push that; do the right part,
  run the backward of step y, pop, do the left part of y - 1 steps;
* SEQUENTIAL: push nothing: for k = t..1 advance k - 1 steps, take step k, run its backward.

Moves are listed in preorder, right parts first, which is the order they are made in (Gruslys et al.,
appendix; section B.5 of the digest). A part of no steps has no move.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numba import njit

from ..chain import Chain
from ..errors import InfeasibleBudget
from ..memo import memo
from ..schedule import Schedule
from ..simulate import simulate
from ..solution import Request, Solution

HIDDEN, INTERNAL, SEQUENTIAL = 0, 1, 2
MOVES = ("hidden", "internal", "sequential")


@dataclass(frozen=True, eq=False)
class Policy:
    """What a chain method decided.

    Attributes
    ----------
    chain : Chain
    slots : int, memory as the method counts it
    moves : int64 array, shape (moves, 2): kind (an index into :data:`MOVES`) and y, in preorder
    """

    chain: Chain
    slots: int
    moves: np.ndarray

    @cached_property
    def ops(self) -> np.ndarray:
        """Ops of ``chain.joint`` in the order they run."""
        return _compile(self.chain.steps, self.moves)

    @cached_property
    def schedule(self) -> Schedule:
        return Schedule.from_ops(self.chain.joint, self.ops)

    @cached_property
    def forward_steps(self) -> int:
        """C: forward steps executed, hidden-only and internal. Backward steps are always T."""
        return len(self.ops) - self.chain.steps - 1

    @property
    def extra_advances(self) -> int:
        """Forward steps beyond one per step."""
        return self.forward_steps - self.chain.steps

    @property
    def forward_time(self) -> float:
        """Time of all forward steps."""
        forward = self.ops[self.ops < 2 * self.chain.steps]
        return float(self.chain.joint.op_time[forward].sum())

    @property
    def total_time(self) -> float:
        """Time of all forward and backward steps."""
        return self.forward_time + float(self.chain.backward_time.sum())

    @property
    def time_ratio(self) -> float:
        """Total time over that of standard backpropagation: (C + beta T) / ((1 + beta) T) if uniform."""
        return self.total_time / float(self.chain.internal_time.sum() + self.chain.backward_time.sum())

    def __repr__(self) -> str:
        T, C = self.chain.steps, self.forward_steps
        return f"Policy({T} steps, {self.slots} slots, {C} forward steps ({C / T:.3g} T))"


def held(schedule: Schedule, chain: Chain, hidden: int = 1, internal: int = 1) -> dict[str, int]:
    """The most a chain schedule holds, counted by both of the literature's conventions.

    Parameters
    ----------
    hidden, internal : what one state of each kind costs; a hidden state inside a held internal state is free

    Returns
    -------
    dict with
        "stored": states that survive the running op, and the initial state. The moving hidden state and the
        working internal state are free (HSM; base case "stored" of MSM).
        "every tensor": as above, but internal states count from the moment they are made, and the initial
        state does not count (ISM; base case "every tensor" of MSM).
    """
    actions = schedule.actions.tolist()
    forward = 2 * chain.steps
    live_h: set[int] = set()
    live_i: set[int] = set()
    stored = every = 0
    for at, code in enumerate(actions):
        if code < 0 or code == chain.seed_op:
            continue
        before_h, before_i = set(live_h), set(live_i)
        if code < forward:
            live_h.add(code // 2)
            if code % 2:
                live_i.add(code // 2)
        working = len(live_i)
        k = at + 1
        while k < len(actions) and actions[k] < 0:
            value = ~actions[k]
            if value < forward:
                (live_i if value % 2 else live_h).discard(value // 2)
            k += 1
        kept_h, kept_i = before_h & live_h, before_i & live_i
        pushed = hidden * len(kept_h - live_i - before_i)
        stored = max(stored, hidden + pushed + internal * len(kept_i))
        every = max(every, pushed + internal * working)
    return {"stored": stored, "every tensor": every}


# -- from policies to solutions ------------------------------------------------------------------------------
def solution_of(policy: Policy, status: str = "optimal", slot_bytes: float = 1) -> Solution:
    """A policy as a Solution; under paper accounting its peak is its slots, its overhead the extra steps' time."""
    chain = policy.chain
    return Solution(
        schedule=policy.schedule,
        details=policy,
        status=status,
        paper_peak=int(policy.slots * (1 if chain.counts_slots else slot_bytes) + 1e-6),
        paper_overhead=policy.forward_time - float(chain.internal_time.sum()),
    )


def most_slots(make: Callable[[int], Policy], low: int, high: int, request: Request, name: str) -> Policy:
    """The policy with most slots, among low..high, whose simulated peak keeps the budget.

    Bisection: more slots never cost more steps, and hold more.

    Raises
    ------
    InfeasibleBudget
        With the peak of the smallest policy.
    """
    if request.budget is None:
        return make(high)
    best = make(low)
    least = simulate(best.schedule).peak
    if least > request.budget:
        raise InfeasibleBudget.of(name, request.budget, least)
    while low < high:
        middle = (low + high + 1) // 2
        policy = make(middle)
        if simulate(policy.schedule).peak <= request.budget:
            low, best = middle, policy
        else:
            high = middle - 1
    return best


def slot_counts(low: int, high: int, most: int = 48) -> list[int]:
    """Slot counts worth a point of a frontier: all of them if few, otherwise spread evenly in ratio."""
    if high - low < most:
        return list(range(low, high + 1))
    return sorted({int(x) for x in np.geomspace(max(1, low), high, most)} | {low, high})


def remembered(chain: Chain, key: Any, make: Callable[[], Policy]) -> Policy:
    """``make()`` once per chain and key."""
    return memo(chain, ("policy", key), make)


def moves_of(pairs: Iterable[tuple[int, int]]) -> np.ndarray:
    """Moves from Python pairs (kind, y)."""
    return np.array(list(pairs), dtype=np.int64).reshape(-1, 2)


@njit(cache=True, nogil=True)
def _compile(T, moves):
    """Ops of the joint graph, in order. Frames: (start, steps), or (step, -1) for a pending backward."""
    frames = np.empty((2 * T + 8, 2), dtype=np.int64)
    frames[0, 0], frames[0, 1] = 0, T
    top, at, count, seeded = 1, 0, 0, False
    out = np.empty(4 * T + 16, dtype=np.int64)
    while top > 0:
        top -= 1
        start, t = frames[top, 0], frames[top, 1]
        if t == 0:
            continue
        kind, y = np.int64(1), np.int64(1)
        if t > 0:
            kind, y = moves[at, 0], moves[at, 1]
            at += 1
        room = count + (t * (t + 3) // 2 if kind == 2 else y) + 8
        if room > len(out):
            bigger = np.empty(2 * room, dtype=np.int64)
            bigger[:count] = out[:count]
            out = bigger
        if t < 0:  # the backward of step `start`
            if not seeded:
                out[count] = 2 * T
                count += 1
                seeded = True
            out[count] = 3 * T + 1 - start
            count += 1
        elif kind == 2:
            for k in range(t, 0, -1):
                for j in range(1, k):
                    out[count] = 2 * (start + j - 1)
                    count += 1
                out[count] = 2 * (start + k) - 1
                count += 1
                if not seeded:
                    out[count] = 2 * T
                    count += 1
                    seeded = True
                out[count] = 3 * T + 1 - (start + k)
                count += 1
        elif kind == 0:
            for j in range(1, y + 1):
                out[count] = 2 * (start + j - 1)
                count += 1
            frames[top, 0], frames[top, 1] = start, y
            frames[top + 1, 0], frames[top + 1, 1] = start + y, t - y
            top += 2
        else:
            for j in range(1, y):
                out[count] = 2 * (start + j - 1)
                count += 1
            out[count] = 2 * (start + y) - 1
            count += 1
            frames[top, 0], frames[top, 1] = start, y - 1
            frames[top + 1, 0], frames[top + 1, 1] = start + y, -1
            frames[top + 2, 0], frames[top + 2, 1] = start + y, t - y
            top += 3
    return out[:count].copy()
