"""Run a chain's schedule action by action on real modules.

Hidden-only steps run without autograd. Internal steps run with it, from a detached hidden state; their
autograd graph is the internal state. A backward step consumes that graph. What a step draws or changes when
it runs again is what it drew and changed the first time: random states are kept per step, moving buffers from
the start, or, where several steps move the same ones, with each hidden state as a part of it.

The total loss is added up when steps first run, which is in their order, as in eager: one number is held.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

from ..chain import Chain
from ..errors import ExecutionError, RematError
from ..schedule import Schedule
from .interpreter import RandomState
from .stages import Buffers, Call, Shadows, Stages, State, tensors_in


class ChainRun:
    """One run of a schedule on ``chain.joint``, which may pause between actions.

    Parameters
    ----------
    chain : Chain, for the numbering of ops and values
    stages : Stages
    schedule : Schedule on ``chain.joint``
    call : Call
    losses_ahead : compute each step's loss when it first runs. False, to time steps that run again: when its
        internal state is made, unless steps draw

    Attributes
    ----------
    held : int64 array, shape (actions, 2): hidden states (those inside an internal state apart) and internal
        states held after each action
    """

    def __init__(
        self, chain: Chain, stages: Stages, schedule: Schedule, call: Call, *, losses_ahead: bool = True
    ):
        self.chain, self.stages, self.schedule, self.call = chain, stages, schedule, call
        # Dropout may draw and statistics may move in other modes than those measured: then all is kept.
        other = stages.modes_now() != stages.modes
        self.draws, moves = stages.draws or other, stages.moves_buffers or other
        self.losses_ahead = losses_ahead or self.draws
        self.position = 0
        self.hidden: dict[int, State] = {0: call.initial}
        self.graphs: dict[int, tuple[State, State, torch.Tensor | None]] = {}
        self.bare: set[int] = set()  # steps whose hidden state is held outside an internal state
        self.gradients: dict[int, list[torch.Tensor | None]] = {}
        self.total: torch.Tensor | None = None
        self.counted = np.zeros(chain.steps + 1, dtype=bool)  # steps whose loss is in the total
        self.loss_gradient: torch.Tensor | None = None
        self.shadows = Shadows(stages.module)
        device = next((x.device for x in call.initial), torch.device("cpu"))
        self.device = device
        self.random = RandomState(device)
        self.entry_random = self.random.save() if self.draws else None
        self.buffers = Buffers(stages.module) if moves else None
        self.entry_buffers = self.buffers.copies() if self.buffers else None
        self.random_states: dict[int, Any] = {}
        self.moved: dict[int, State] = {}  # the buffers after step t, where several steps move the same
        if self.entry_buffers is not None and stages.shares_buffers:
            self.moved[0] = self.entry_buffers
        self.visited = np.zeros(chain.steps + 1, dtype=bool)
        self.runs_left = schedule.run_counts[: 2 * chain.steps].reshape(-1, 2).sum(axis=1)
        self.held = np.zeros((len(schedule), 2), dtype=np.int64)
        kind = device.type
        self.autocast = (torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))

    @property
    def backward_starts(self) -> int:
        """The action that starts the backward pass."""
        return int(np.flatnonzero(self.schedule.actions == self.chain.seed_op)[0])

    # -- actions ---------------------------------------------------------------------------------------------
    def advance(self, stop: int | None = None, mark: Callable[[], None] | None = None) -> None:
        """Do actions up to, not including, ``stop`` (default: all), calling ``mark`` after each.

        Raises
        ------
        ExecutionError
            If a step fails: it names the step; everything has been released, and the random state and the
            buffers are what they were before the run.
        """
        actions = self.schedule.actions.tolist()
        stop = len(actions) if stop is None else stop
        at = self.position
        try:
            with self.shadows.in_place():
                while at < stop:
                    self._act(actions[at])
                    self.held[at] = len(self.bare), len(self.graphs)
                    if mark is not None:
                        mark()
                    at += 1
        except BaseException as error:
            self.abandon()
            name = self.schedule[at].name
            if not isinstance(error, Exception) or isinstance(error, RematError):
                raise
            raise ExecutionError(
                f"{name!r} at action {at} of {len(actions)} failed: {type(error).__name__}: {error}. The model is "
                "as it was.",
                op=name,
                step=at,
            ) from error
        finally:
            self.position = at

    def _act(self, code: int) -> None:
        T = self.chain.steps
        if code < 0:
            self._free(~code)
        elif code < 2 * T:
            self._forward(code // 2 + 1, keep=bool(code % 2))
        elif code == 2 * T:
            if self.loss_gradient is None:
                assert self.total is not None
                self.loss_gradient = torch.ones_like(self.total)
        else:
            self._backward(3 * T + 1 - code)

    def _free(self, value: int) -> None:
        T = self.chain.steps
        if value < 2 * T:
            t = value // 2 + 1
            (self.graphs if value % 2 else self.hidden).pop(t, None)
            if not value % 2:
                self.bare.discard(t)
                self.moved.pop(t, None)
        elif value < 3 * T:
            self.gradients.pop(value - 2 * T + 1, None)

    def _forward(self, t: int, keep: bool) -> None:
        first = not self.visited[t]
        self.visited[t] = True
        self.runs_left[t - 1] -= 1
        with self._replayed(t, first) as moved:
            if keep:
                self._internal(t)
            else:
                wanted = first and self.losses_ahead and self.stages.has_loss(t)
                with torch.no_grad(), self._casting():
                    self.hidden[t], loss = self.stages.step(t, self.hidden[t - 1], self.call, wanted)
                self.bare.add(t)
                if loss is not None:
                    self._count(t, loss)
                del loss
        if self.buffers and self.moved and t < self.chain.steps:
            self.moved.pop(t, None)
            if not first:
                self.moved[t] = moved
            elif self.runs_left[t] > 1:  # step t + 1 runs again
                self.moved[t] = self.buffers.copies()

    def _count(self, t: int, loss: torch.Tensor) -> None:
        """Add a step's loss to the total, once. In place, to hold one number: some losses keep a large storage."""
        if self.counted[t]:
            return
        self.counted[t] = True
        loss = loss.detach()
        if self.total is None:
            self.total = loss.clone()
        elif (self.total.dtype, self.total.shape) == (loss.dtype, loss.shape):
            self.total.add_(loss)
        else:
            self.total = self.total + loss

    def _internal(self, t: int) -> None:
        leaves = []
        for x in self.hidden[t - 1]:
            wanted = x.is_floating_point() and (t > 1 or x.requires_grad)
            leaves.append(x.detach().requires_grad_(wanted))
        with torch.enable_grad(), self._casting():
            out, loss = self.stages.step(t, leaves, self.call, self.stages.has_loss(t))
        self.graphs[t] = leaves, out, loss
        self.bare.discard(t)
        self.hidden[t] = [x.detach() for x in out]
        if loss is not None:
            self._count(t, loss)

    def _backward(self, t: int) -> None:
        leaves, out, loss = self.graphs.pop(t)
        if t in self.hidden:
            self.bare.add(t)
        arrived = self.gradients.get(t, [None] * len(out))
        roots = [x for x, g in zip(out, arrived) if g is not None and x.requires_grad]
        seeds = [g for x, g in zip(out, arrived) if g is not None and x.requires_grad]
        if loss is not None and loss.requires_grad:
            roots.append(loss)
            assert self.loss_gradient is not None
            seeds.append(self.loss_gradient.to(loss.dtype).reshape(loss.shape))
        del out, loss
        if roots:
            torch.autograd.backward(roots, seeds)
        self.gradients[t - 1] = [leaf.grad for leaf in leaves]

    def _casting(self) -> contextlib.AbstractContextManager[Any]:
        enabled, dtype = self.autocast
        if not enabled:
            return contextlib.nullcontext()
        # No weight cache: a cast made under no_grad would serve a later step that needs its graph.
        return torch.autocast(self.device.type, dtype=dtype, cache_enabled=False)

    @contextlib.contextmanager
    def _replayed(self, t: int, first: bool) -> Iterator[State]:
        """The first run remembers the random state and the buffers it began with; later ones begin there.

        The list given is filled with the buffers that a later run leaves.
        """
        draws, again = self.draws, self.runs_left[t - 1] > 0
        if first:
            if draws and again:
                self.random_states[t] = self.random.save()
            yield []
            return
        now = self.random.save() if draws else None
        if draws:
            self.random.restore(self.random_states[t] if again else self.random_states.pop(t))
        try:
            if self.buffers:
                buffers, before = self._before(t)
                with buffers.lent(before) as moved:
                    yield moved
            else:
                yield []
        finally:
            if now is not None:
                self.random.restore(now)

    def _before(self, t: int) -> tuple[Buffers, State]:
        """The buffers of step t, and what they are before its first run: as at the start, unless others move them."""
        assert self.buffers is not None and self.entry_buffers is not None
        if self.moved:
            return self.buffers, self.moved[t - 1]
        own = Buffers(*self.stages.modules_at(t))
        at_start = dict(zip(self.buffers.places, self.entry_buffers))
        return own, [at_start[place] for place in own.places]

    # -- what the rest of a run relies on --------------------------------------------------------------------
    def remember(self) -> None:
        """Note what the rest of the run reads, for :meth:`check_untouched`."""
        names = self.stages.tensor_names()
        read = [(names.get(id(p), "a parameter"), p) for p in self.shadows.parameters]
        if self.buffers is None:  # else a step that runs again has copies of them
            read += [(names.get(id(b), "a buffer"), b) for b in self.stages.module.buffers()]
        read += [("the inputs", x) for x in tensors_in(self.call.inputs)]
        read += [("the targets", x) for x in tensors_in(self.call.targets)]
        read += [("the initial state", x) for x in self.call.initial]
        self.read = [(name, x, x._version) for name, x in read if not x.is_inference()]
        self.modes = self.stages.modes_now()

    def check_untouched(self) -> None:
        """Autograd's rule: what backward reads must be what forward read.

        Raises
        ------
        ExecutionError
            If a parameter, a buffer, the inputs or the targets were modified in place since :meth:`remember`, or
            the model's mode changed.
        """
        changed = next((name for name, x, version in self.read if x._version != version), "")
        if changed:
            what, do = f"{changed!r} was modified in place", "step the optimizer after backward"
        elif self.modes != self.stages.modes_now():
            what, do = "train() or eval() was called", "call it after backward"
        else:
            return
        self.release()
        raise ExecutionError(
            f"{what} between the planned forward and its backward: recomputation would read other values; {do}"
        )

    # -- what a run leaves -----------------------------------------------------------------------------------
    def loss(self) -> torch.Tensor:
        """The sum of the steps' losses, in order of the steps."""
        assert self.total is not None
        return (
            self.total.detach()
        )  # not itself: as an output of autograd's it would hold the run, which holds it

    def release(self) -> None:
        """Let go of every tensor but the total loss and the buffers at the start."""
        self.hidden = {0: self.call.initial}
        self.graphs, self.gradients, self.moved, self.random_states = {}, {}, {}, {}
        self.shadows.release()

    def abandon(self) -> None:
        """Release everything and put the random state and the buffers back to where the run began."""
        self.release()
        if self.entry_random is not None:
            self.random.restore(self.entry_random)
        if self.buffers and self.entry_buffers is not None:
            self.buffers.restore(self.entry_buffers)
