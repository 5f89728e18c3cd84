"""Chain: T steps in a row, each with a hidden state and an internal state.

Gruslys et al. (NeurIPS 2016, arXiv 1606.03401): the *hidden state* h_t is what step t passes on; the
*internal state* I_t is everything the backward of step t needs, and contains h_t. A recurrent network is a
uniform chain; a sequence of unlike stages (rotor, arXiv 1911.13214: output a, and a-bar with all that the
backward needs) is a chain with sizes and times per step.

The joint graph has three kinds of op per step:

* ``hidden t`` reads h_{t-1}, writes h_t and keeps nothing else;
* ``internal t`` reads h_{t-1}, writes h_t and the rest of I_t;
* ``backward t`` reads I_t and the gradient of h_t (and h_{t-1} when ``keeps_input``), writes the gradient
  of h_{t-1} and adds to the parameters' gradients.

The first is an alternative of the second (see :mod:`remat_lab.joint`): the plain order runs only internal
steps, and every hidden step counts as recomputation.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from .arrays import Csr, frozen
from .errors import InvalidGraph, TooLarge
from .joint import CATEGORIES, TIME_UNITS, JointGraph
from .units import format_bytes

if TYPE_CHECKING:
    from .graph import ComputationGraph

#: The most steps of a chain. Its joint graph and plans take some 2 kB a step.
MOST_STEPS = 5_000_000

#: One number for all steps, or one per step.
PerStep = float | Sequence[float] | np.ndarray


class Chain:
    """A chain of ``steps`` steps. Immutable; arrays have shape (steps,) and entry i belongs to step i + 1.

    Parameters
    ----------
    steps : int, T; may be left out when any cost is given per step
    hidden : bytes of each h_t (one number, or one per step; likewise below)
    internal : bytes of each I_t, its h_t included; default: as ``hidden``
    gradient : bytes of the gradient of each h_t; default: as ``hidden``
    time : time of a hidden-only step
    internal_time : time of a step that keeps its internal state; default: as ``time``
    backward_time : time of a backward step; default: twice ``time``
    workspace, internal_workspace, backward_workspace : most bytes the step holds while it runs, above its
        level at entry, its new outputs included (0: unknown, just its outputs)
    parameter_gradient : bytes; one number is one set of parameters shared by all steps (a recurrent cell),
        a sequence is each step's own
    input_gradient : bytes of the gradient of h_0, kept at the end
    input_bytes : bytes of parameters and inputs, the baseline
    keeps_input : whether the backward of step t reads h_{t-1} itself. False (Gruslys et al.): the internal
        state holds all it needs. True (rotor, and torch, which saves the input by reference): it does not,
        and an internal state is of use only while its input is held.
    time_unit, name : as in a ComputationGraph

    Raises
    ------
    TooLarge
        On more than :data:`MOST_STEPS` steps.
    InvalidGraph
        On no steps, sequences of unequal length, a negative or non-finite cost, or an internal state
        smaller than its hidden state; the step is named.

    >>> Chain(1000)
    Chain(1000 equal steps, hidden state 1 B, internal state 1 B)
    """

    def __init__(
        self,
        steps: int | None = None,
        *,
        hidden: PerStep = 1,
        internal: PerStep | None = None,
        gradient: PerStep | None = None,
        time: PerStep = 1.0,
        internal_time: PerStep | None = None,
        backward_time: PerStep | None = None,
        workspace: PerStep = 0,
        internal_workspace: PerStep = 0,
        backward_workspace: PerStep = 0,
        parameter_gradient: PerStep = 0,
        input_gradient: int = 0,
        input_bytes: int = 0,
        keeps_input: bool = False,
        time_unit: str = "paper",
        name: str = "",
    ):
        T = self._length(steps, locals())
        self.steps = T
        self.hidden = _whole(hidden, T, "hidden")
        self.internal = self.hidden if internal is None else _whole(internal, T, "internal")
        self.gradient = self.hidden if gradient is None else _whole(gradient, T, "gradient")
        self.time = _numbers(time, T, "time")
        self.internal_time = (
            self.time if internal_time is None else _numbers(internal_time, T, "internal_time")
        )
        self.backward_time = (
            frozen(2 * self.time) if backward_time is None else _numbers(backward_time, T, "backward_time")
        )
        self.workspace = _whole(workspace, T, "workspace")
        self.internal_workspace = _whole(internal_workspace, T, "internal_workspace")
        self.backward_workspace = _whole(backward_workspace, T, "backward_workspace")
        self.shared_parameters = np.ndim(parameter_gradient) == 0
        self.parameter_gradient = _whole(parameter_gradient, T, "parameter_gradient")
        self.input_gradient = int(_whole(input_gradient, 1, "input_gradient")[0])
        self.input_bytes = int(_whole(input_bytes, 1, "input_bytes")[0])
        self.keeps_input = bool(keeps_input)
        if time_unit not in TIME_UNITS:
            raise InvalidGraph(f"time_unit must be one of {TIME_UNITS}, got {time_unit!r}")
        self.time_unit = time_unit
        self.name = name
        small = np.flatnonzero(self.internal < self.hidden)
        if len(small):
            t = int(small[0])
            raise InvalidGraph(
                f"step {t + 1} has an internal state of {self.internal[t]} B, less than its hidden state's "
                f"{self.hidden[t]} B: the internal state contains the hidden state"
            )

    @staticmethod
    def _length(steps: int | None, given: dict[str, Any]) -> int:
        lengths = {k: len(v) for k, v in given.items() if k != "steps" and np.ndim(v) == 1}
        for key, length in lengths.items():
            if steps is None:
                steps = length
            elif length != steps:
                raise InvalidGraph(f"{key} has {length} entries for a chain of {steps} steps")
        if steps is None:
            raise InvalidGraph("a chain needs a number of steps, or a cost per step")
        if isinstance(steps, bool) or not isinstance(steps, (int, np.integer)) or steps < 1:
            raise InvalidGraph(f"a chain needs at least one step, got steps={steps!r}")
        if steps > MOST_STEPS:
            raise TooLarge(
                f"a chain of {steps:,} steps is too large to plan: the limit is {MOST_STEPS:,} steps. Let each step "
                "stand for several of them"
            )
        return int(steps)

    @classmethod
    def from_sequential(cls, model: Any, inputs: Any, **options: Any) -> Chain:
        """Measure a torch ``nn.Sequential``; see :func:`remat_lab.execution.chains.from_sequential`."""
        from .execution.chains import from_sequential

        return from_sequential(model, inputs, **options)

    @classmethod
    def from_rnn(cls, cell: Any, steps: int, **options: Any) -> Chain:
        """Measure a torch recurrent cell; see :func:`remat_lab.execution.chains.from_rnn`."""
        from .execution.chains import from_rnn

        return from_rnn(cell, steps, **options)

    # -- sizes and lookups ---------------------------------------------------------------------------------
    def __len__(self) -> int:
        return self.steps

    @property
    def chain(self) -> Chain:
        return self

    @cached_property
    def uniform(self) -> bool:
        """Whether all hidden states are of one size, and all internal states, the last one apart.

        The last step's internal state may hold the loss as well.
        """
        rest = self.internal[:-1]
        return bool((self.hidden == self.hidden[0]).all() and (rest == rest[:1]).all())

    @property
    def counts_slots(self) -> bool:
        """Whether ``accounting="paper"`` counts this chain's memory in slots: it does for uniform chains."""
        return self.uniform

    @property
    def alpha(self) -> int:
        """Internal size over hidden size, rounded up, of a uniform chain (the largest of each otherwise)."""
        internal = self.internal[0] if self.uniform else self.internal.max()
        return max(1, int(-(-int(internal) // max(1, int(self.hidden.max())))))

    # -- the joint graph -----------------------------------------------------------------------------------
    def hidden_op(self, t: int) -> int:
        """Index in ``joint`` of the hidden-only forward op of step t (1..T)."""
        return 2 * (t - 1)

    def internal_op(self, t: int) -> int:
        """Index in ``joint`` of the internal-state forward op of step t (1..T)."""
        return 2 * t - 1

    def backward_op(self, t: int) -> int:
        """Index in ``joint`` of the backward op of step t (1..T)."""
        return 3 * self.steps + 1 - t

    @property
    def seed_op(self) -> int:
        """Index in ``joint`` of the op that starts the backward pass: it makes the gradient of h_T."""
        return 2 * self.steps

    @cached_property
    def joint(self) -> JointGraph:
        """Ops: hidden 1, internal 1, hidden 2, ...; seed; backward T, ..., backward 1.

        Values: h_t at 2(t - 1), the rest of I_t at 2t - 1, the gradient of h_t at 2T + t - 1, the gradient
        of h_0 at 3T, then the parameters' gradients and, if there is a baseline, the inputs.
        """
        T = self.steps
        step = range(1, T + 1)
        parameters = self.parameter_gradient if not self.shared_parameters else self.parameter_gradient[:1]
        if self.shared_parameters and not parameters[0]:
            parameters = parameters[:0]
        states = _interleaved(self.hidden, self.internal - self.hidden)
        baseline = [self.input_bytes] if self.input_bytes else []
        names = [w for t in step for w in (f"h{t}", f"rest of internal state {t}")]
        names += [f"grad h{t}" for t in step] + ["grad h0"]
        if not self.shared_parameters:
            names += [f"gradient of step {t}'s parameters" for t in step]
        names += ["the parameters' gradient"] if self.shared_parameters and len(parameters) else []
        names += ["parameters and inputs"] if self.input_bytes else []
        counts = (2 * T, T + 1, len(parameters), len(baseline))
        kinds = [CATEGORIES.index(c) for c in ("activation", "gradient", "parameter gradient", "parameter")]
        reads, writes = self._edges(len(parameters))
        forward = np.arange(2 * T)
        return JointGraph(
            op_names=tuple(w for t in step for w in (f"hidden {t}", f"internal {t}"))
            + ("seed", *(f"backward {t}" for t in reversed(step))),
            op_types=("hidden step", "internal step") * T + ("seed",) + ("backward step",) * T,
            op_time=np.concatenate(
                [_interleaved(self.time, self.internal_time), [0.0], self.backward_time[::-1]]
            ),
            op_workspace=np.concatenate(
                [_interleaved(self.workspace, self.internal_workspace), [0], self.backward_workspace[::-1]]
            ),
            op_backward=np.arange(3 * T + 1) >= 2 * T,
            reads=reads,
            writes=writes,
            value_names=tuple(names),
            value_bytes=np.array([*states, *self.gradient, self.input_gradient, *parameters, *baseline]),
            value_category=np.repeat(kinds, counts),
            outputs=np.arange(3 * T, 3 * T + 1 + len(parameters)),
            time_unit=self.time_unit,
            name=self.name,
            op_stands_for=np.concatenate([forward | 1, np.arange(2 * T, 3 * T + 1)]),
        )

    def _edges(self, parameters: int) -> tuple[Csr, Csr]:
        """What each op reads and writes, built as flat arrays: a chain may have 100,000 steps."""
        T = self.steps
        op, t = np.arange(3 * T + 1), np.arange(1, T + 1)
        forward, backward = op[: 2 * T], op[2 * T + 1 :][::-1]  # backward[t - 1] is the backward op of step t
        h, rest, grad = 2 * t - 2, 2 * t - 1, 2 * T + t - 1
        before = np.where(grad > 2 * T, grad - 1, 3 * T)  # the gradient of h_{t-1}
        reads = [(forward[2:], np.repeat(h[:-1], 2)), (backward, h), (backward, rest), (backward, grad)]
        if self.keeps_input:
            reads.append((backward[1:], h[:-1]))
        writes = [(forward, np.repeat(h, 2)), (forward[1::2], rest), (op[2 * T : 2 * T + 1], grad[-1:])]
        writes.append((backward, before))
        if parameters:
            writes.append(
                (backward, 3 * T + 1 + (t - 1 if parameters == T and not self.shared_parameters else 0 * t))
            )
        return _csr(reads, 3 * T + 1), _csr(writes, 3 * T + 1)

    @cached_property
    def graph(self) -> ComputationGraph:
        """The chain of internal states as a forward graph, for the graph methods; one node per step."""
        return self.joint.graph

    def __repr__(self) -> str:
        label = f"{self.name!r}, " if self.name else ""
        if self.uniform:
            sizes = f"hidden state {format_bytes(self.hidden[0])}, internal state {format_bytes(self.internal[0])}"
            return f"Chain({label}{self.steps} equal steps, {sizes})"
        total = format_bytes(int(self.internal.sum()))
        return f"Chain({label}{self.steps} steps, {total} of internal states)"


def _numbers(given: PerStep, T: int, name: str) -> np.ndarray:
    try:
        values = np.array(given, dtype=np.float64)
        if given is None:  # numpy's NaN
            raise TypeError
    except (TypeError, ValueError):
        raise InvalidGraph(f"{name} must be a number or one number per step, got {given!r}") from None
    if values.ndim > 1:
        raise InvalidGraph(f"{name} must be a number or one number per step, got shape {values.shape}")
    values = np.broadcast_to(values, (T,)).copy()
    bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
    if len(bad):
        raise InvalidGraph(
            f"step {bad[0] + 1} has {name} {values[bad[0]]:g}: need a finite number, not negative"
        )
    return frozen(values)


def _whole(given: PerStep, T: int, name: str) -> np.ndarray:
    values = _numbers(given, T, name)
    whole = np.floor(values)
    bad = np.flatnonzero((whole != values) | (values >= 2**53))
    if len(bad):
        raise InvalidGraph(f"step {bad[0] + 1} has {name} {values[bad[0]]:g}: need whole bytes below 2^53")
    return frozen(whole.astype(np.int64))


def _interleaved(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.stack([a, b], axis=1).ravel()


def _csr(pairs: list[tuple[np.ndarray, np.ndarray]], rows: int) -> Csr:
    """Pairs of (rows, entries) arrays as lists, each ascending."""
    row = np.concatenate([p[0] for p in pairs])
    entry = np.concatenate([p[1] for p in pairs])
    order = np.lexsort((entry, row))
    start = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=rows))])
    return Csr(frozen(start.astype(np.int64)), frozen(entry[order].astype(np.int64)))
