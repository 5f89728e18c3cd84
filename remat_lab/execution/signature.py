"""How a call's arguments are flattened, and under which autocast it is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from . import _torch_private as private


@dataclass(frozen=True)
class Signature:
    """How a call's arguments are flattened: which leaves are tensors, and the constants between them."""

    spec: Any
    leaves: tuple[Any, ...]  # constants; None where a tensor goes
    tensor_at: tuple[int, ...]

    @classmethod
    def of(cls, inputs: Any, targets: Any) -> tuple[Signature, list[torch.Tensor]]:
        """(signature, its tensors) of inputs and targets as capture() takes them."""
        targets = tuple(targets) if isinstance(targets, (tuple, list)) else (targets,)
        return cls.of_call(*call_arguments(inputs), targets)

    @classmethod
    def of_call(
        cls, args: tuple[Any, ...], kwargs: dict[str, Any], targets: tuple[Any, ...]
    ) -> tuple[Signature, list[torch.Tensor]]:
        """The same of a call's arguments."""
        leaves, spec = private.pytree.tree_flatten((args, kwargs, targets))
        at = tuple(i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor))
        tensors = [leaves[i] for i in at]
        constants = tuple(None if i in set(at) else leaf for i, leaf in enumerate(leaves))
        return cls(spec, constants, at), tensors

    def rebuild(self, tensors: list[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any], tuple[Any, ...]]:
        """(args, kwargs, targets) with these tensors in place."""
        leaves = list(self.leaves)
        for i, tensor in zip(self.tensor_at, tensors, strict=True):
            leaves[i] = tensor
        return private.pytree.tree_unflatten(leaves, self.spec)


def call_arguments(inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """A tensor is one argument, a tuple or list several, a dict keyword arguments."""
    if isinstance(inputs, dict):
        return (), dict(inputs)
    if hasattr(inputs, "keys") and hasattr(inputs, "__getitem__"):  # transformers' BatchEncoding
        return (), {key: inputs[key] for key in inputs.keys()}
    if isinstance(inputs, (tuple, list)):
        return tuple(inputs), {}
    return (inputs,), {}


def autocast_state(device: torch.device) -> str:
    """ "" if autocast is off on this device, else its dtype."""
    if not torch.is_autocast_enabled(device.type):
        return ""
    return str(torch.get_autocast_dtype(device.type))
