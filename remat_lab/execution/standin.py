"""The module that is traced in a model's stead, on fake twins of its tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn

from ..errors import CaptureError
from . import _torch_private as private
from .refusals import check_plain, label_of_module, place_of
from .signature import Signature
from .snapshot import unchanged


class LossModule(nn.Module):
    """The model and its loss as one module, so that the loss's own parameters count too."""

    def __init__(self, model: nn.Module, loss: Callable[..., torch.Tensor] | None):
        super().__init__()
        self.model = model
        self.loss = loss if isinstance(loss, nn.Module) else None
        self._loss_function = None if isinstance(loss, nn.Module) else loss

    def forward(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], targets: tuple[Any, ...]
    ) -> torch.Tensor:
        output = self.model(*args, **kwargs)
        compute = self.loss or self._loss_function
        return scalar_loss(
            output if compute is None else compute(output, *targets), given=compute is not None
        )


def scalar_loss(output: Any, *, given: bool) -> torch.Tensor:
    """The scalar in a model's output, or a CaptureError that says what was there instead."""
    if not given and not isinstance(output, torch.Tensor):
        loss = getattr(output, "loss", None)
        if loss is None and isinstance(output, dict):
            loss = output.get("loss")
        if loss is None:
            raise CaptureError(
                f"the model returns a {type(output).__name__} without a loss: pass loss=, a function of the "
                "model's output that returns a scalar (transformers models return one when given labels=)"
            )
        output = loss
    if not isinstance(output, torch.Tensor):
        raise CaptureError(
            f"loss= returned a {type(output).__name__}: it must return a tensor with one element"
        )
    if output.numel() != 1:
        what = "loss= returned" if given else "the model returns"
        raise CaptureError(
            f"{what} a tensor of shape {tuple(output.shape)}: need one number to differentiate; pass loss=, for "
            "example lambda output: output.square().mean()"
        )
    return output


class Fake(Protocol):
    """A fake twin of a tensor; ``label`` names it in errors."""

    def __call__(self, tensor: torch.Tensor, label: str = ...) -> torch.Tensor: ...


def faker() -> Fake:
    """A function from any tensor to a fake twin; the same tensor always gives the same twin."""
    mode = private.FakeTensorMode(allow_non_fake_inputs=True)
    twins: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def fake(tensor: torch.Tensor, label: str = "a tensor") -> torch.Tensor:
        if id(tensor) not in twins:
            check_plain(tensor, label)
            device = "cpu" if tensor.device.type == "meta" else tensor.device
            with mode:
                twin = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
            twins[id(tensor)] = (tensor, twin.requires_grad_(tensor.requires_grad))
        return twins[id(tensor)][1]

    return fake


class StandIn(nn.Module):
    """A LossModule whose parameters and buffers appear once each, under names without dots.

    The exporter takes every registered tensor as one input; a tied weight must therefore be one leaf, and a
    name with dots cannot be registered at the top.
    """

    def __init__(
        self, module: LossModule, signature: Signature, fake: Callable[[torch.Tensor], torch.Tensor]
    ):
        super().__init__()
        object.__setattr__(self, "target_module", module)  # not registered: its tensors are passed in
        self.signature = signature
        self.names: dict[str, str] = {}
        self.rebound: list[str] = []
        self.replaced: list[tuple[str, torch.Tensor]] = []
        for i, (name, parameter) in enumerate(module.named_parameters()):
            self.names[f"p{i}"] = name
            standin = nn.Parameter(fake(parameter), requires_grad=parameter.requires_grad)
            self.register_parameter(f"p{i}", standin)
        for i, (name, buffer) in enumerate(module.named_buffers()):
            self.names[f"b{i}"] = name
            self.register_buffer(f"b{i}", fake(buffer))

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The loss, and the new contents of the buffers in ``rebound``."""
        arguments = self.signature.rebuild(list(tensors))
        state = {name: getattr(self, standin) for standin, name in self.names.items()}
        with unchanged(self.target_module):  # the tracer runs this several times
            with _Registered(self.target_module) as registered:
                loss = torch.func.functional_call(self.target_module, state, arguments, tie_weights=True)
        if not loss.requires_grad:
            raise CaptureError(
                "the loss depends on nothing that requires a gradient: every parameter is frozen or detached"
            )
        given = {id(getattr(self, standin)): standin for standin in self.names}
        self.rebound = [given[id(old)] for old, _ in registered.rebound]
        self.replaced = registered.replaced
        own = [getattr(self, standin) for standin in self.names]
        shared = {private.storage_key(tensor) for tensor in (*own, *tensors, loss)}
        return loss, *(_held_by_nothing_else(new, shared) for _, new in registered.rebound)


def _held_by_nothing_else(tensor: torch.Tensor, shared: set[int]) -> torch.Tensor:
    """The tensor, without history, in a storage that is not in ``shared`` and is put there."""
    tensor = tensor.detach()
    if private.storage_key(tensor) in shared:
        tensor = tensor.clone()
    shared.add(private.storage_key(tensor))
    return tensor


class _Registered:
    """Compares the parameters, buffers and submodules of a module before and after a call of it.

    ``rebound`` has (old, new) of each buffer to which the call assigned another tensor, where an update in place
    would have changed the one it had. What a caller makes of that is the same: the buffer has new contents.
    ``replaced`` has (name, old) of each other tensor attribute to which the call assigned something else.
    """

    def __init__(self, module: nn.Module):
        self.module = module
        self.rebound: list[tuple[torch.Tensor, torch.Tensor]] = []
        self.replaced: list[tuple[str, torch.Tensor]] = []

    def __enter__(self) -> _Registered:
        before = self.module.register_forward_pre_hook(self._before, prepend=True)
        self._handles = [before, self.module.register_forward_hook(self._after)]
        return self

    def __exit__(self, *_: Any) -> None:
        for handle in self._handles:
            handle.remove()

    def _before(self, module: nn.Module, _args: Any) -> None:
        self._modules = {m: (dict(m._parameters), dict(m._buffers)) for m in module.modules()}
        self._plain = {m: plain_tensors(m) for m in self._modules}
        self._storages = {
            id(tensor): private.storage_key(tensor)
            for groups in self._modules.values()
            for tensor in (*groups[0].values(), *groups[1].values())
            if tensor is not None
        }

    def _after(self, module: nn.Module, _args: Any, _output: Any) -> None:
        seen: set[int] = set()
        for path, child in module.named_modules():
            label = label_of_module(place_of(path), child)
            parameters, buffers = self._modules.get(child, ({}, {}))
            for name, tensor in (*child._parameters.items(), *child._buffers.items()):
                if tensor is not None and self._storages.get(id(tensor), 0) not in (
                    0,
                    private.storage_key(tensor),
                ):
                    raise CaptureError(
                        f"forward assigns to the .data of {name!r} of {label}: change a parameter between steps, and a "
                        f"buffer in place, as in self.{name}.copy_(...)"
                    )
            now = plain_tensors(child)
            for name, old in self._plain.get(child, {}).items():
                if now.get(name) is not old:
                    self.replaced.append((f"{name!r} of {label}", old))
            for name, tensor in child._parameters.items():
                if tensor is not parameters.get(name):
                    raise CaptureError(
                        f"forward makes the parameter {name!r} of {label}: run the model once before capturing it"
                    )
            for name, new in child._buffers.items():
                old = buffers.get(name)
                if new is old or old is None or id(old) in seen:
                    continue
                seen.add(id(old))
                if any(new is given for known, _ in self._modules.values() for given in known.values()):
                    raise CaptureError(
                        f"forward assigns a parameter to the buffer {name!r} of {label}: copy it, as in "
                        f"self.{name}.copy_(...)"
                    )
                if new is None or _form(new) != _form(old):
                    raise CaptureError(
                        f"forward assigns to the buffer {name!r} of {label} something of another shape, dtype or "
                        f"device: update it in place, as in self.{name}.copy_(...)"
                    )
                self.rebound.append((old, new))


def plain_tensors(module: nn.Module) -> dict[str, torch.Tensor]:
    """Tensors that are plain attributes of a module."""
    return {name: value for name, value in vars(module).items() if isinstance(value, torch.Tensor)}


def _form(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.shape, tensor.dtype, tensor.device
