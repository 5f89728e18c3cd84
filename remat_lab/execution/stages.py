"""What the steps of a chain run: a recurrent cell step after step, or the modules of an ``nn.Sequential``.

A step takes the hidden state, a list of tensors, and gives the next one, and a loss where there is one. It
knows nothing of schedules: :mod:`.chain_run` decides when it runs, and under which grad mode.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..errors import CaptureError

#: How a nested state is put together: "tensor", or ("tuple" | "list", children).
Spec = Any
State = list[torch.Tensor]


@dataclass(frozen=True)
class Call:
    """What one run of a chain works on: inputs, targets (or None), and the initial hidden state."""

    inputs: Any
    targets: Any
    initial: State


class Stages(abc.ABC):
    """The steps 1..T of a chain.

    Parameters
    ----------
    model : nn.Sequential, or the cell
    loss : a function, a module or None

    Attributes
    ----------
    module : nn.Module with every parameter and buffer the steps use
    measured : the modules that were measured, with their names; ``modes``: whether they were in training mode
    draws : whether a step draws random numbers (in these modes; likewise below)
    moves_buffers : whether a step changes buffers (batch norm's statistics)
    shares_buffers : whether several steps have a buffer in common
    """

    module: nn.Module
    draws: bool = False
    moves_buffers: bool = False
    shares_buffers: bool

    def __init__(self, model: nn.Module, loss: Callable[..., torch.Tensor] | None):
        self.model, self.loss = model, loss
        self.measured = self._modules()
        self.modes = self.modes_now()

    def modes_now(self) -> list[bool]:
        return [module.training for _, module in self.measured]

    def _modules(self) -> list[tuple[str, nn.Module]]:
        """Every module under the name the user knows it by."""
        found = list(self.model.named_modules(remove_duplicate=False))
        if isinstance(self.loss, nn.Module):
            found += self.loss.named_modules(prefix="loss", remove_duplicate=False)
        return found

    def check_modules(self) -> None:
        """Raise ValueError unless the modules are those that were measured."""
        now, then = self._modules(), self.measured
        if len(now) == len(then) and all(a[1] is b[1] and a[0] == b[0] for a, b in zip(now, then)):
            return
        held, had = ({name: module for name, module in modules} for modules in (now, then))
        name = next(name for name in [*held, *had] if held.get(name) is not had.get(name))
        done = "removed" if name not in held else "added" if name not in had else "replaced"
        raise ValueError(
            f"module {name!r} of the {type(self.model).__name__} was {done} after the chain was measured: measure the "
            "chain again"
        )

    def tensor_names(self) -> dict[int, str]:
        """Names of the parameters and buffers, by id."""
        return {
            id(tensor): f"{name}.{key}".lstrip(".")
            for name, module in self._modules()
            for key, tensor in (*module._parameters.items(), *module._buffers.items())
            if tensor is not None
        }

    @abc.abstractmethod
    def step(self, t: int, hidden: State, call: Call, want_loss: bool) -> tuple[State, torch.Tensor | None]:
        """Step t from h_{t-1}: h_t, and the step's loss if it has one and it is wanted."""

    @abc.abstractmethod
    def has_loss(self, t: int) -> bool:
        """Whether step t has a loss."""

    @abc.abstractmethod
    def modules_at(self, t: int) -> list[nn.Module]:
        """The modules step t runs."""

    @abc.abstractmethod
    def describe(self, t: int) -> str:
        """What step t runs, for messages."""


class SequentialStages(Stages):
    """Modules in a row; the loss follows the last."""

    def __init__(
        self, model: nn.Sequential, groups: list[nn.Sequential], loss: Callable[..., torch.Tensor] | None
    ):
        super().__init__(model, loss)
        self.groups = groups
        self.module = nn.ModuleList([*groups, *([loss] if isinstance(loss, nn.Module) else [])])
        self.out_spec: Spec = "tensor"
        self.specs: list[Spec] = ["tensor"] * (len(groups) + 1)
        places = [place for t in range(1, len(groups) + 1) for place in Buffers(*self.modules_at(t)).places]
        self.shares_buffers = len(places) > len(set(places))

    def step(self, t, hidden, call, want_loss):
        out = self.groups[t - 1](rebuild(hidden, self.specs[t - 1]))
        flat, self.specs[t] = flatten(out)
        loss = None
        if want_loss and t == len(self.groups):
            loss = _loss(self.loss, out, call.targets)
        return flat, loss

    def has_loss(self, t):
        return t == len(self.groups)

    def modules_at(self, t):
        last = self.has_loss(t) and isinstance(self.loss, nn.Module)
        return [self.groups[t - 1], *([self.loss] if last else [])]

    def describe(self, t):
        return " + ".join(type(m).__name__ for m in self.groups[t - 1])


class RecurrentStages(Stages):
    """One cell, step after step: ``cell(x_t, state)`` gives the next state, or (output, next state)."""

    shares_buffers = True

    def __init__(self, cell: nn.Module, steps: int, spec: Spec, loss: Any, loss_at: str, gives_output: bool):
        super().__init__(cell, loss)
        self.cell, self.steps, self.spec = cell, steps, spec
        self.loss_at, self.gives_output = loss_at, gives_output
        self.module = nn.ModuleList([cell, *([loss] if isinstance(loss, nn.Module) else [])])

    def of_length(self, steps: int) -> RecurrentStages:
        """The same cell for another number of steps."""
        other = RecurrentStages(self.cell, steps, self.spec, self.loss, self.loss_at, self.gives_output)
        other.draws, other.moves_buffers = self.draws, self.moves_buffers
        other.measured, other.modes = self.measured, self.modes
        return other

    def step(self, t, hidden, call, want_loss):
        result = self.cell(call.inputs[t - 1], rebuild(hidden, self.spec))
        output, state = result if self.gives_output else (None, result)
        flat, spec = flatten(state)
        if spec != self.spec:
            raise CaptureError(
                f"step {t} of {type(self.cell).__name__} returned a state built otherwise than the one it was "
                "given: a cell must return (nested tuples of) tensors like its state"
            )
        loss = None
        if want_loss and self.has_loss(t):
            targets = call.targets
            if targets is not None and self.loss_at == "every":
                targets = targets[t - 1]
            loss = _loss(self.loss, flat[0] if output is None else output, targets)
        return flat, loss

    def has_loss(self, t):
        return self.loss_at == "every" or t == self.steps

    def modules_at(self, t):
        return list(self.module)

    def describe(self, t):
        return type(self.cell).__name__


def _loss(loss: Any, output: Any, targets: Any) -> torch.Tensor:
    """The loss of an output; without one, the mean of its squares."""
    if loss is None:
        first = flatten(output)[0][0]
        value = first.square().mean()
    else:
        value = loss(output) if targets is None else loss(output, targets)
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        raise CaptureError(f"the loss must be one number, got {_kind(value)}")
    return value


def _kind(value: Any) -> str:
    return (
        f"a tensor of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
    )


# -- nested states -------------------------------------------------------------------------------------------
def flatten(state: Any) -> tuple[State, Spec]:
    """Nested tuples and lists of tensors as a flat list and how they were put together.

    Raises
    ------
    CaptureError
        On anything else.
    """
    if isinstance(state, torch.Tensor):
        return [state], "tensor"
    if isinstance(state, (tuple, list)) and state:
        parts = [flatten(x) for x in state]
        kind = "tuple" if isinstance(state, tuple) else "list"
        return [x for flat, _ in parts for x in flat], (kind, tuple(spec for _, spec in parts))
    raise CaptureError(f"a hidden state must be (nested tuples of) tensors, got {_kind(state)}")


def tensors_in(inputs: Any) -> State:
    """The tensors of a sequence given as a tensor, or as nested lists."""
    return flatten(inputs)[0] if isinstance(inputs, (torch.Tensor, tuple, list)) else []


def rebuild(flat: State, spec: Spec) -> Any:
    """The inverse of :func:`flatten`."""
    return _build(iter(flat), spec)


def _build(remaining: Iterator[torch.Tensor], spec: Spec) -> Any:
    # No inner function: one that calls itself is a cycle, and would hold the tensors until a collection.
    if spec == "tensor":
        return next(remaining)
    kind, children = spec
    return (tuple if kind == "tuple" else list)(_build(remaining, child) for child in children)


# -- parameters and buffers for a while -----------------------------------------------------------------------
class Shadows:
    """Stand-ins for a module's parameters: leaves of their own that share the parameters' data.

    Steps run on them, so gradients gather in the stand-ins' ``.grad`` while the parameters' own ``.grad``
    and hooks are left alone until the end.
    """

    def __init__(self, module: nn.Module):
        self.places = [
            (owner, name, parameter)
            for owner in module.modules()
            for name, parameter in owner._parameters.items()
            if parameter is not None
        ]
        self.parameters = list({id(p): p for _, _, p in self.places}.values())
        self.of = {id(p): nn.Parameter(p.detach(), requires_grad=p.requires_grad) for p in self.parameters}

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """The stand-ins are the module's parameters in here."""
        own = [owner._parameters[name] for owner, name, _ in self.places]
        try:
            for owner, name, parameter in self.places:
                setattr(owner, name, self.of[id(parameter)])
            yield
        finally:
            for (owner, name, _), parameter in zip(self.places, own):
                setattr(owner, name, parameter)

    def gradients(self) -> list[torch.Tensor | None]:
        """What has gathered, one entry per parameter."""
        return [self.of[id(p)].grad for p in self.parameters]

    def release(self) -> None:
        for shadow in self.of.values():
            shadow.grad = None


class Buffers:
    """The buffers of modules, to be copied before a step and lent to its second run.

    A second run works on copies from before the first, which it may change: statistics move once.
    """

    def __init__(self, *modules: nn.Module):
        found = {
            (id(owner), name): (owner, name)
            for module in modules
            for owner in module.modules()
            for name, buffer in owner._buffers.items()
            if buffer is not None
        }
        self.places = list(found.values())

    @property
    def bytes(self) -> int:
        return sum(owner._buffers[name].nbytes for owner, name in self.places)

    def copies(self) -> State:
        with torch.no_grad():
            return [owner._buffers[name].clone() for owner, name in self.places]

    @contextlib.contextmanager
    def lent(self, copies: State) -> Iterator[State]:
        """Clones of ``copies`` are the module's buffers in here; the list given has, at the end, what they became."""
        became: State = []
        with self.kept():
            for (owner, name), copy in zip(self.places, copies):
                owner._buffers[name] = copy.clone()
            yield became
            became += [owner._buffers[name] for owner, name in self.places]

    def restore(self, copies: State) -> None:
        with torch.no_grad():
            for (owner, name), copy in zip(self.places, copies):
                owner._buffers[name].copy_(copy)

    @contextlib.contextmanager
    def kept(self) -> Iterator[None]:
        """The tensors that are the buffers are so again at the end: a step may bind a buffer anew."""
        own = [owner._buffers[name] for owner, name in self.places]
        try:
            yield
        finally:
            for (owner, name), buffer in zip(self.places, own):
                owner._buffers[name] = buffer
