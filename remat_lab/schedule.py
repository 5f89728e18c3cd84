"""Schedule: an explicit list of two actions, run(op) and free(value).

A schedule carries no cleverness: whatever a solver decided is visible in it. Actions are one int32 array;
``code >= 0`` runs op ``code``, ``code < 0`` frees value ``~code``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numba import njit

from .arrays import frozen
from .errors import InvalidSchedule
from .joint import JointGraph


class Action(NamedTuple):
    """One action, for people: ``kind`` is "run" or "free", ``index`` an op or a value."""

    kind: str
    index: int  # type: ignore[assignment]
    name: str


@dataclass(frozen=True, eq=False)
class Schedule:
    """Actions on a joint graph.

    Parameters
    ----------
    joint : JointGraph
    actions : array of int32; run(op) is ``op``, free(value) is ``~value``
    """

    joint: JointGraph
    actions: np.ndarray

    def __post_init__(self) -> None:
        _check_joint(self.joint)
        try:
            actions = np.array(self.actions, dtype=np.int32)
        except (TypeError, ValueError):
            raise TypeError(f"actions must be whole numbers, got {self.actions!r}") from None
        if actions.ndim != 1:
            raise InvalidSchedule(f"actions must be one flat array, got shape {actions.shape}")
        object.__setattr__(self, "actions", frozen(actions))
        wrong = np.flatnonzero((actions >= self.joint.n_ops) | (~actions >= self.joint.n_values))
        if len(wrong):
            step = int(wrong[0])
            raise InvalidSchedule(
                f"step {step}: action {actions[step]} names no op or value of the graph", step=step
            )

    @classmethod
    def from_ops(cls, joint: JointGraph, ops: Iterable[int], *, hold_outputs: bool = True) -> Schedule:
        """Run these ops in this order and free every instance of a value right after its last use.

        This is the liveness analysis of Kusumoto et al. (section 4.4 of the paper's accounting): it removes
        no computation. A value computed again is freed after the last use of its earlier instance; an output of
        the graph is never freed, unless ``hold_outputs`` is False: then its earlier instances are, too.

        Raises
        ------
        InvalidSchedule
            If an index names no op.
        """
        _check_joint(joint)
        try:
            order = ops.astype(np.int64) if isinstance(ops, np.ndarray) else np.fromiter(ops, dtype=np.int64)
        except (TypeError, ValueError):
            raise TypeError(f"ops must be indices of ops, got {ops!r}") from None
        wrong = np.flatnonzero((order < 0) | (order >= joint.n_ops))
        if len(wrong):
            raise InvalidSchedule(
                f"step {wrong[0]}: {order[wrong[0]]} is not an op of the graph", step=int(wrong[0])
            )
        keep = np.zeros(joint.n_values, dtype=np.bool_)
        keep[joint.outputs] = True
        actions = _insert_frees(order, *joint.reads, *joint.writes, joint.writer_count, keep, hold_outputs)
        return cls(joint, actions)

    @classmethod
    def vanilla(cls, joint: JointGraph) -> Schedule:
        """Every plain op once, in the plain order: what a framework does without recomputation."""
        _check_joint(joint)
        return cls.from_ops(joint, np.flatnonzero(joint.op_plain))

    @cached_property
    def ops(self) -> np.ndarray:
        """The ops in the order they run, repeats included."""
        return frozen(self.actions[self.actions >= 0].astype(np.int64))

    @cached_property
    def run_counts(self) -> np.ndarray:
        """How often each op runs, int64 of shape (ops,)."""
        return frozen(np.bincount(self.ops, minlength=self.joint.n_ops))

    @cached_property
    def is_recomputation(self) -> np.ndarray:
        """bool per action: a run of an op that has run before, itself or an alternative of it."""
        again = np.zeros(len(self.actions), dtype=bool)
        runs = np.flatnonzero(self.actions >= 0)
        _, first = np.unique(self.joint._stands_for[self.actions[runs]], return_index=True)
        again[runs] = True
        again[runs[first]] = False
        return frozen(again)

    @cached_property
    def computed_again(self) -> np.ndarray:
        """bool per op: one of its runs is a recomputation."""
        again = np.zeros(self.joint.n_ops, dtype=bool)
        again[self.actions[self.is_recomputation]] = True
        return frozen(again)

    @property
    def recomputed_ops(self) -> int:
        """Number of runs beyond each op's first, alternatives counted together."""
        return int(self.is_recomputation.sum())

    @property
    def overhead(self) -> float:
        """Time spent computing things again, in the joint graph's time unit.

        The plain order runs no alternative, so every run of one counts.
        """
        extra = np.maximum(self.run_counts - self.joint.op_plain, 0)
        return float((extra * self.joint.op_time).sum())

    def __len__(self) -> int:
        return len(self.actions)

    def __iter__(self) -> Iterator[Action]:
        for step in range(len(self.actions)):
            yield self[step]

    def __getitem__(self, step: int) -> Action:
        code = int(self.actions[step])
        if code >= 0:
            return Action("run", code, self.joint.op_names[code])
        return Action("free", ~code, self.joint.value_names[~code])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        return self.joint.fingerprint() == other.joint.fingerprint() and np.array_equal(
            self.actions, other.actions
        )

    def __hash__(self) -> int:
        return hash((self.joint.fingerprint(), self.actions.tobytes()))

    def __repr__(self) -> str:
        return (
            f"Schedule({len(self.ops)} runs ({self.recomputed_ops} of them again), "
            f"{len(self.actions) - len(self.ops)} frees, on {self.joint!r})"
        )


def _check_joint(joint: JointGraph) -> None:
    if not isinstance(joint, JointGraph):
        raise TypeError(f"joint must be a JointGraph, such as problem.joint; got {type(joint).__name__}")


@njit(cache=True, nogil=True)
def _insert_frees(order, read_start, read_index, write_start, write_index, writer_count, keep, hold_outputs):
    """Actions of ``order`` with each value instance freed after its last use.

    One backward scan. An instance starts at the latest run from which on every writer of the value
    contributes before the instance's first read: for a value with one writer, simply its latest run. A
    contribution to no instance is freed at once.
    """
    n = len(order)
    needed = keep.copy()
    missing = writer_count.copy()  # writers still to be found for the instance that is needed
    stamp = np.zeros(len(writer_count), dtype=np.int64)  # number of the search for writers
    found = np.full(len(write_index), -1, dtype=np.int64)  # the search that found this write, -1: none
    capacity = n + 16
    for p in range(n):
        op = order[p]
        capacity += read_start[op + 1] - read_start[op] + write_start[op + 1] - write_start[op]
    out = np.empty(capacity, dtype=np.int32)
    at = capacity
    for p in range(n - 1, -1, -1):
        op = order[p]
        for e in range(write_start[op], write_start[op + 1]):
            value = write_index[e]
            if not needed[value]:
                at -= 1
                out[at] = ~value
            elif found[e] != stamp[value]:
                found[e] = stamp[value]
                missing[value] -= 1
                if missing[value] == 0:
                    # An output, once there, stays: a training step may want new buffers before the backward
                    # pass ends.
                    needed[value] = keep[value] and hold_outputs
                    missing[value] = writer_count[value]
                    stamp[value] += 1
        for e in range(read_start[op], read_start[op + 1]):
            value = read_index[e]
            if writer_count[value] == 0:
                continue
            if not needed[value]:
                needed[value] = True
                at -= 1
                out[at] = ~value
            elif missing[value] < writer_count[value]:  # the instance must be complete at this earlier read
                missing[value] = writer_count[value]
                stamp[value] += 1
        at -= 1
        out[at] = op
    return out[at:].copy()
