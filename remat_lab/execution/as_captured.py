"""What a model was when it was captured, what of it a step reads now, and how the two differ."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from .standin import StandIn

Kind = tuple[torch.Size, torch.dtype, torch.device, tuple[int, ...]]


def kind_of(tensor: torch.Tensor) -> Kind:
    """What a compiled step depends on of a tensor, beside its numbers."""
    return tensor.shape, tensor.dtype, tensor.device, tensor.stride()


def modules_of(root: nn.Module) -> dict[str, nn.Module]:
    """Every module by its path, a shared one under each; ten times as fast as ``named_modules``, at every step."""
    found: dict[str, nn.Module] = {}
    waiting: list[tuple[str, nn.Module]] = [("", root)]
    while waiting:
        path, module = waiting.pop()
        found[path] = module
        for name, child in module._modules.items():
            if child is not None:
                waiting.append((f"{path}.{name}" if path else name, child))
    return found


@dataclass(frozen=True)
class Now:
    """The model as it is at this step: ``tensors`` by stand-in, or ``changed``, why they cannot be had."""

    tensors: dict[str, torch.Tensor]
    training: list[bool]
    changed: str = ""


class AsCaptured:
    """The parts of a model that a capture fixes: its modules, which of them train, and its tensors' kinds.

    Parameters
    ----------
    root : LossModule
    standin : StandIn, with the fake twin of each parameter and buffer
    """

    def __init__(self, root: nn.Module, standin: StandIn):
        modules = modules_of(root)
        self.paths, self.types = list(modules), [type(module) for module in modules.values()]
        self.training = [module.training for module in modules.values()]
        self.places = []
        for target, name in standin.names.items():
            owner, _, leaf = name.rpartition(".")
            self.places.append((target, owner, leaf))
        fakes = [getattr(standin, target) for target in standin.names]
        self.kinds = [kind_of(fake) for fake in fakes]
        self.requires_grad = [fake.requires_grad for fake in fakes]
        target_of = {id(_tensor(modules[owner], leaf)): target for target, owner, leaf in self.places}
        first = {(owner, leaf) for _, owner, leaf in self.places}
        self.tied = [
            (owner, leaf, target_of[id(tensor)])
            for owner, module in modules.items()
            for leaf, tensor in (*module._parameters.items(), *module._buffers.items())
            if tensor is not None and (owner, leaf) not in first
        ]

    def now(self, root: nn.Module) -> Now:
        """Read the model's tensors, and its modules' modes."""
        modules = modules_of(root)
        training = [module.training for module in modules.values()]
        if list(modules) != self.paths or [type(module) for module in modules.values()] != self.types:
            return Now({}, training, self._what_changed(modules))
        found = {}
        for standin, owner, leaf in self.places:
            tensor = _tensor(modules[owner], leaf)
            if tensor is None:
                return Now({}, training, f"{_label(owner, leaf)} is gone")
            found[standin] = tensor
        for owner, leaf, standin in self.tied:
            if _tensor(modules[owner], leaf) is not found[standin]:
                return Now({}, training, f"{_label(owner, leaf)} is no longer tied to {self.label(standin)}")
        return Now(found, training)

    def label(self, standin: str) -> str:
        """A parameter's or buffer's name for people."""
        return next(_label(owner, leaf) for name, owner, leaf in self.places if name == standin)

    def other_kind(self, tensors: dict[str, torch.Tensor]) -> str:
        """The first tensor that is of another shape, type, device or layout now ("" if none is)."""
        for (standin, tensor), want in zip(tensors.items(), self.kinds, strict=True):
            got = kind_of(tensor)
            if got == want:
                continue
            label = self.label(standin)
            if got[:3] == want[:3]:
                return f"{label} has strides {got[3]}, the plan was made for {want[3]}"
            return (
                f"{label} is {tuple(got[0])}, {got[1]} on {got[2]}, the plan was made for "
                f"{tuple(want[0])}, {want[1]} on {want[2]}"
            )
        return ""

    def other_gradient(self, tensors: dict[str, torch.Tensor]) -> str:
        """The first tensor whose ``requires_grad`` is another now ("" if none is)."""
        for (standin, tensor), wanted in zip(tensors.items(), self.requires_grad, strict=True):
            if tensor.requires_grad != wanted:
                return (
                    f"{self.label(standin)} has requires_grad={tensor.requires_grad}, the plan was made for the "
                    "opposite"
                )
        return ""

    def other_mode(self, training: list[bool]) -> str:
        """The first module that trains now and did not, or the other way round ("" if none does)."""
        if training == self.training:
            return ""
        at = next(i for i, (a, b) in enumerate(zip(training, self.training)) if a != b)
        now, then = ("train", "eval") if training[at] else ("eval", "train")
        return f"{_path(self.paths[at])} is in {now} mode, the plan was made with it in {then} mode"

    def _what_changed(self, modules: dict[str, nn.Module]) -> str:
        was: dict[str, Any] = dict(zip(self.paths, self.types))
        for path, kind in was.items():
            if path not in modules:
                return f"{_path(path)} is gone"
            if type(modules[path]) is not kind:
                return f"{_path(path)} is a {type(modules[path]).__name__}, it was a {kind.__name__}"
        new = next((path for path in modules if path not in was), None)
        return f"{_path(new)} is new" if new is not None else "the modules come in another order"


def _tensor(module: nn.Module, leaf: str) -> torch.Tensor | None:
    tensor = module._parameters.get(leaf)
    return module._buffers.get(leaf) if tensor is None else tensor


def _path(path: str) -> str:
    return f"module {path.removeprefix('model.')!r}" if path not in ("", "model") else "the model"


def _label(owner: str, leaf: str) -> str:
    return f"{owner}.{leaf}".removeprefix("model.")
