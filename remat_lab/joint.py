"""JointGraph: forward and backward ops that read and write values.

Every problem turns into one, and every solver ends in a :class:`~remat_lab.schedule.Schedule` on one, so
that all methods are simulated, stepped, drawn, executed and compared by the same code.

Rules
-----
* Ops are numbered in a valid execution order (the *plain* order); every value is written before it is read.
* A value that no op writes is *resident*: parameters, inputs. It costs nothing a
  schedule can change and is reported as the baseline.
* A value that several ops write is an *accumulated* value (the gradient of a tensor with several
  consumers). The first writer allocates it, the others add in place, and it may be read once all of them
  have contributed. A second run of a writer adds nothing to an instance that already has its share.
* An *alternative* of an op stands in for it and makes what it makes, or less (a chain's hidden-only step
  stands in for the step that keeps its internal state). The op itself is the *plain* one: it belongs to
  the plain order, and its alternatives name it in ``op_stands_for``. What both write, either makes whole.
* Outputs must be there at the end. In published graphs a method may drop one and make it again. Where
  ``keeps_outputs`` is set, as in graphs captured from torch, somebody has them once they are made (the caller
  the loss, autograd its gradient, the model its buffers and gradients), so none is dropped: an op that makes
  nothing else, or makes the loss, runs once (:attr:`JointGraph.runs_once`), and every method keeps what it made.
  An op that makes something else, too (a batch norm and its statistics), may run again; what it made of outputs
  is then replaced.
* ``op_workspace`` is the most bytes the allocator holds while the op runs, above its level at entry, new
  outputs included. Zero means unknown: the op then needs just the bytes it newly writes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from .arrays import Csr, csr, frozen
from .errors import InvalidGraph

if TYPE_CHECKING:
    from .graph import ComputationGraph

#: What a value is. A trace has one column for each of these that a schedule can change, plus "workspace".
CATEGORIES = (
    "activation",
    "gradient",
    "parameter gradient",
    "buffer",
    "output",
    "parameter",
    "input",
)
TIME_UNITS = ("s", "flop", "paper")


@dataclass(frozen=True, eq=False)
class JointGraph:
    """Ops and values of one training step.

    Parameters
    ----------
    op_names, op_types : sequence of str, one per op
    op_time : array of float, shape (ops,), in ``time_unit``
    op_workspace : array of int, shape (ops,), bytes
    op_backward : array of bool, shape (ops,)
    reads, writes : Csr, op -> values
    value_names : sequence of str, one per value
    value_bytes : array of int, shape (values,)
    value_category : array of int, shape (values,), an index into :data:`CATEGORIES`
    outputs : array of int, values that must be there at the end (parameter gradients, the loss, new buffers)
    op_modules : sequence of str, the module each op belongs to ("" when unknown)
    op_stands_for : array of int, shape (ops,): the plain op each op is an alternative of; itself if plain
    keeps_outputs : bool, outputs stay once made (see the rules above)

    Raises
    ------
    InvalidGraph
        On a negative or non-finite cost, an index out of range, a read before any write, or a value with
        both alternatives and other writers.
    """

    op_names: tuple[str, ...]
    op_types: tuple[str, ...]
    op_time: np.ndarray
    op_workspace: np.ndarray
    op_backward: np.ndarray
    reads: Csr
    writes: Csr
    value_names: tuple[str, ...]
    value_bytes: np.ndarray
    value_category: np.ndarray
    outputs: np.ndarray
    op_modules: tuple[str, ...] = ()
    time_unit: str = "paper"
    name: str = ""
    op_stands_for: np.ndarray | None = None
    keeps_outputs: bool = False

    def __post_init__(self) -> None:
        ops, values = len(self.op_names), len(self.value_names)
        put = object.__setattr__
        plain = np.arange(ops) if self.op_stands_for is None else self.op_stands_for
        put(self, "op_stands_for", frozen(np.array(plain, dtype=np.int64)))
        put(self, "op_names", tuple(map(str, self.op_names)))
        put(self, "op_types", tuple(map(str, self.op_types)))
        put(self, "value_names", tuple(map(str, self.value_names)))
        put(self, "op_modules", tuple(self.op_modules) or ("",) * ops)
        put(self, "op_time", frozen(np.array(self.op_time, dtype=np.float64)))
        put(self, "op_workspace", frozen(np.array(self.op_workspace, dtype=np.int64)))
        put(self, "op_backward", frozen(np.array(self.op_backward, dtype=bool)))
        put(self, "value_bytes", frozen(np.array(self.value_bytes, dtype=np.int64)))
        put(self, "value_category", frozen(np.array(self.value_category, dtype=np.int64)))
        put(self, "outputs", frozen(np.unique(np.array(self.outputs, dtype=np.int64))))
        for label, got, want in (
            ("op_types", len(self.op_types), ops),
            ("op_modules", len(self.op_modules), ops),
            ("op_time", len(self.op_time), ops),
            ("op_workspace", len(self.op_workspace), ops),
            ("op_backward", len(self.op_backward), ops),
            ("op_stands_for", len(self._stands_for), ops),
            ("reads", self.reads.rows, ops),
            ("writes", self.writes.rows, ops),
            ("value_bytes", len(self.value_bytes), values),
            ("value_category", len(self.value_category), values),
        ):
            if got != want:
                raise InvalidGraph(f"{label} has {got} entries, expected {want}")
        if self.time_unit not in TIME_UNITS:
            raise InvalidGraph(f"time_unit must be one of {TIME_UNITS}, got {self.time_unit!r}")
        for label, index in (
            ("reads", self.reads.index),
            ("writes", self.writes.index),
            ("outputs", self.outputs),
        ):
            if len(index) and not (0 <= index.min() and index.max() < values):
                raise InvalidGraph(f"{label} names a value outside 0..{values - 1}")
        bad = np.flatnonzero(~(np.isfinite(self.op_time) & (self.op_time >= 0)))
        if len(bad):
            raise InvalidGraph(
                f"op {self.op_names[bad[0]]!r} has time {self.op_time[bad[0]]}: need a number >= 0"
            )
        for label, names, amounts in (
            ("workspace", self.op_names, self.op_workspace),
            ("bytes", self.value_names, self.value_bytes),
        ):
            bad = np.flatnonzero(amounts < 0)
            if len(bad):
                raise InvalidGraph(f"{names[bad[0]]!r} has {label} {amounts[bad[0]]}: need a number >= 0")
        self._check_order()
        self._check_alternatives()

    def _check_order(self) -> None:
        last_writer = np.full(len(self.value_names), -1, dtype=np.int64)
        np.maximum.at(last_writer, self.writes.index, self.writes.owners())
        late = np.flatnonzero(last_writer[self.reads.index] >= self.reads.owners())
        if len(late):
            op, value = self.reads.owners()[late[0]], self.reads.index[late[0]]
            raise InvalidGraph(
                f"op {self.op_names[op]!r} reads {self.value_names[value]!r} before "
                f"{self.op_names[last_writer[value]]!r} has written it: list ops in an order that can run"
            )

    def _check_alternatives(self) -> None:
        if not self.has_alternatives:
            return
        plain = self._stands_for
        if not (0 <= plain.min() and plain.max() < self.n_ops) or (plain[plain] != plain).any():
            raise InvalidGraph("op_stands_for must name, for each op, a plain op: one that stands for itself")
        owner, value = self.writes.owners(), self.writes.index
        made = value * self.n_ops + plain[owner]  # (value, plain op) as one number
        extra = np.flatnonzero(~np.isin(made[~self.op_plain[owner]], made[self.op_plain[owner]]))
        if len(extra):
            op = owner[~self.op_plain[owner]][extra[0]]
            raise InvalidGraph(
                f"{self.op_names[op]!r} writes a value that {self.op_names[plain[op]]!r}, which it stands for, "
                "does not: an alternative makes what the plain op makes, or less"
            )
        mixed = np.flatnonzero((self.writer_count > 1) & (np.diff(self.writers.start) != self.writer_count))
        if len(mixed):
            raise InvalidGraph(
                f"{self.value_names[mixed[0]]!r} is written by alternatives of several ops: a value is either "
                "accumulated or made by alternatives of one op"
            )

    # -- sizes and lookups ---------------------------------------------------------------------------------
    @property
    def n_ops(self) -> int:
        return len(self.op_names)

    @property
    def n_values(self) -> int:
        return len(self.value_names)

    @property
    def joint(self) -> JointGraph:
        return self

    @cached_property
    def writers(self) -> Csr:
        """value -> ops that write it, ascending."""
        return self.writes.transposed(self.n_values)

    @cached_property
    def readers(self) -> Csr:
        """value -> ops that read it, ascending."""
        return self.reads.transposed(self.n_values)

    @property
    def _stands_for(self) -> np.ndarray:
        assert self.op_stands_for is not None  # set on construction
        return self.op_stands_for

    @cached_property
    def op_plain(self) -> np.ndarray:
        """bool of shape (ops,): the op belongs to the plain order (it is no alternative of another)."""
        return frozen(self._stands_for == np.arange(self.n_ops))

    @cached_property
    def has_alternatives(self) -> bool:
        return not bool(self.op_plain.all())

    @cached_property
    def writer_count(self) -> np.ndarray:
        """Contributions that make each value whole, int64 of shape (values,): its writers, alternatives once."""
        plain = self.writes.index[self.op_plain[self.writes.owners()]]
        return frozen(np.bincount(plain, minlength=self.n_values))

    @cached_property
    def resident(self) -> np.ndarray:
        """bool of shape (values,): no op writes it, so it is always there."""
        return frozen(self.writer_count == 0)

    @cached_property
    def makes_node(self) -> np.ndarray:
        """bool of shape (values,): a forward op that writes it is a node of the graph; not so a buffer's new contents
        which no other forward op reads (a batch norm's count of batches)."""
        found = self.value_category != CATEGORIES.index("buffer")
        found[self.reads.index[~self.op_backward[self.reads.owners()]]] = True
        return frozen(found)

    @cached_property
    def runs_once(self) -> np.ndarray:
        """bool of shape (ops,): no method may run it again: it makes the loss or only outputs, and those are kept."""
        if not self.keeps_outputs:
            return frozen(np.zeros(self.n_ops, dtype=bool))
        made = np.diff(self.writes.start)
        outputs = np.bincount(
            self.writes.owners(), np.isin(self.writes.index, self.outputs), minlength=self.n_ops
        )
        loss = np.zeros(self.n_ops, dtype=bool)
        loss[self.writes.owners()[self.value_category[self.writes.index] == CATEGORIES.index("output")]] = (
            True
        )
        return frozen(loss | ((made > 0) & (outputs == made)))

    @cached_property
    def stays(self) -> np.ndarray:
        """bool of shape (values,): kept from when it is made to its last use, since no op may make it again, or as an
        output of a graph that keeps its outputs."""
        found = np.zeros(self.n_values, dtype=bool)
        found[self.writes.index[self.runs_once[self.writes.owners()]]] = True
        if self.keeps_outputs:
            found[self.outputs] = True
        return frozen(found)

    @cached_property
    def baseline(self) -> int:
        """Bytes of the resident values."""
        return int(self.value_bytes[self.resident].sum())

    @cached_property
    def plain_time(self) -> float:
        """Time of every plain op once."""
        return float(self.op_time[self.op_plain].sum())

    @cached_property
    def plain(self) -> JointGraph:
        """This graph without alternatives, for methods that know one way to make a value."""
        if not self.has_alternatives:
            return self
        kept = np.flatnonzero(self.op_plain)
        return JointGraph(
            op_names=tuple(self.op_names[i] for i in kept),
            op_types=tuple(self.op_types[i] for i in kept),
            op_time=self.op_time[kept],
            op_workspace=self.op_workspace[kept],
            op_backward=self.op_backward[kept],
            reads=self.reads.rows_of(kept),
            writes=self.writes.rows_of(kept),
            value_names=self.value_names,
            value_bytes=self.value_bytes,
            value_category=self.value_category,
            outputs=self.outputs,
            op_modules=tuple(self.op_modules[i] for i in kept),
            time_unit=self.time_unit,
            name=self.name,
            keeps_outputs=self.keeps_outputs,
        )

    @cached_property
    def graph(self) -> ComputationGraph:
        """The forward part as a ComputationGraph: one node per forward op whose values another op may need.

        A node's memory is the sum of its values; its joint graph is this one.
        """
        from .graph import project

        return project(self.plain)

    # -- making one ----------------------------------------------------------------------------------------
    @classmethod
    def build(
        cls,
        ops: Iterable[Mapping[str, Any]],
        values: Iterable[Mapping[str, Any]],
        outputs: Iterable[int],
        *,
        time_unit: str = "paper",
        name: str = "",
        keeps_outputs: bool = False,
    ) -> JointGraph:
        """Build from dicts.

        ``ops``: name, type, time, workspace (0), backward (False), module (""), stands_for (itself), reads,
        writes (value indices). ``values``: name, bytes, category ("activation").
        """
        ops, values = list(ops), list(values)
        return cls(
            op_names=tuple(str(op["name"]) for op in ops),
            op_types=tuple(str(op.get("type", "")) for op in ops),
            op_time=np.array([op.get("time", 0.0) for op in ops], dtype=np.float64),
            op_workspace=np.array([op.get("workspace", 0) for op in ops], dtype=np.int64),
            op_backward=np.array([op.get("backward", False) for op in ops], dtype=bool),
            reads=csr([sorted(set(op.get("reads", ()))) for op in ops]),
            writes=csr([sorted(set(op.get("writes", ()))) for op in ops]),
            value_names=tuple(str(value["name"]) for value in values),
            value_bytes=np.array([value["bytes"] for value in values], dtype=np.int64),
            value_category=np.array(
                [CATEGORIES.index(value.get("category", "activation")) for value in values], dtype=np.int64
            ),
            outputs=np.array(list(outputs), dtype=np.int64),
            op_modules=tuple(str(op.get("module", "")) for op in ops),
            time_unit=time_unit,
            name=name,
            op_stands_for=np.array([op.get("stands_for", i) for i, op in enumerate(ops)], dtype=np.int64),
            keeps_outputs=bool(keeps_outputs),
        )

    def with_costs(
        self,
        *,
        op_time: Sequence[float] | np.ndarray | None = None,
        op_workspace: Sequence[int] | np.ndarray | None = None,
        value_bytes: Sequence[int] | np.ndarray | None = None,
        time_unit: str | None = None,
    ) -> JointGraph:
        """The same ops and values with other costs (a calibration's, say)."""
        return replace(
            self,
            op_time=self.op_time if op_time is None else np.asarray(op_time),
            op_workspace=self.op_workspace if op_workspace is None else np.asarray(op_workspace),
            value_bytes=self.value_bytes if value_bytes is None else np.asarray(value_bytes),
            time_unit=time_unit or self.time_unit,
        )

    # -- storage -------------------------------------------------------------------------------------------
    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; :meth:`from_dict` reads it back exactly."""
        return {
            "format": "remat_lab.JointGraph/1",
            "name": self.name,
            "time_unit": self.time_unit,
            "ops": [
                {
                    "name": self.op_names[i],
                    "type": self.op_types[i],
                    "time": float(self.op_time[i]),
                    "workspace": int(self.op_workspace[i]),
                    "backward": bool(self.op_backward[i]),
                    "module": self.op_modules[i],
                    **({} if self.op_plain[i] else {"stands_for": int(self._stands_for[i])}),
                    "reads": self.reads.row(i).tolist(),
                    "writes": self.writes.row(i).tolist(),
                }
                for i in range(self.n_ops)
            ],
            "values": [
                {
                    "name": self.value_names[i],
                    "bytes": int(self.value_bytes[i]),
                    "category": CATEGORIES[self.value_category[i]],
                }
                for i in range(self.n_values)
            ],
            "outputs": self.outputs.tolist(),
            **({"keeps_outputs": True} if self.keeps_outputs else {}),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> JointGraph:
        try:
            return cls.build(
                data["ops"],
                data["values"],
                data["outputs"],
                time_unit=data["time_unit"],
                name=data.get("name", ""),
                keeps_outputs=data.get("keeps_outputs", False),
            )
        except (KeyError, TypeError) as error:
            raise InvalidGraph(f"not a remat_lab joint graph: {error!r}") from error

    def to_json(self) -> str:
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> JointGraph:
        return cls.from_dict(json.loads(text))

    def fingerprint(self) -> str:
        """A short hash of everything a schedule depends on; saved plans carry it."""
        import hashlib

        digest = hashlib.sha256()
        for array in (*self.reads, *self.writes, self.value_bytes, self.outputs, self.op_workspace):
            digest.update(np.ascontiguousarray(array).tobytes())
        if self.has_alternatives:
            digest.update(self._stands_for.tobytes())
        return digest.hexdigest()[:16]

    def __repr__(self) -> str:
        label = f" {self.name!r}" if self.name else ""
        backward = int(self.op_backward.sum())
        return (
            f"JointGraph({label.strip() + ', ' if label else ''}{self.n_ops - backward} forward and "
            f"{backward} backward ops, {self.n_values} values)"
        )


def joint_of(problem: Any) -> JointGraph:
    """The joint graph of whatever can be planned.

    Raises
    ------
    TypeError
        If ``problem`` is no problem.
    """
    joint = getattr(problem, "joint", None)
    if not isinstance(joint, JointGraph):
        raise TypeError(
            "a problem is a ComputationGraph, a JointGraph, a Chain or a captured model; "
            f"got {type(problem).__name__}"
        )
    return joint
