"""What cannot be captured, by name, and what to do about it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

from ..errors import CaptureError
from . import _torch_private as private

if TYPE_CHECKING:
    from .standin import StandIn


def place_of(path: str) -> str:
    """A module's path in the model, from that in the LossModule."""
    return "" if path == "model" else path.removeprefix("model.")


def label_of_module(path: str, module: nn.Module) -> str:
    return f"{type(module).__name__} {path!r}" if path else type(module).__name__


def check_plain(tensor: torch.Tensor, label: str) -> None:
    """Refuse what has no single strided storage."""
    if tensor.layout != torch.strided:
        raise CaptureError(f"{label} is {tensor.layout}: only dense tensors can be planned; call .to_dense()")
    if tensor.is_quantized:
        raise CaptureError(f"{label} is quantized: training needs floating-point tensors; dequantize it")
    known = (torch.Tensor, nn.Parameter, nn.Buffer, private.FakeTensor)
    if type(tensor) not in known and not isinstance(tensor, (nn.Parameter, private.FakeTensor)):
        raise CaptureError(
            f"{label} is a {type(tensor).__name__}: tensor subclasses are not supported; pass a plain tensor"
        )


def check_model(model: nn.Module) -> None:
    """Refuse, by name, modules known not to trace or to trace to something else than eager runs."""
    from .apply import PlannedModule

    for name, module in model.named_modules():
        label = label_of_module(name, module)
        if isinstance(module, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            raise CaptureError(
                f"{label} spreads a model over devices: capture the model itself, its .module, and wrap what "
                "apply() returns in DistributedDataParallel"
            )
        if isinstance(module, torch.jit.ScriptModule):
            raise CaptureError(f"{label} is compiled TorchScript: capture the Python module it was made from")
        if isinstance(module, PlannedModule):
            raise CaptureError(
                f"{label} follows a plan already: capture the model itself, its .model, and apply a plan to that"
            )
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)) and module.max_norm is not None:
            raise CaptureError(
                f"{label} changes its weight in forward (max_norm={module.max_norm}): set max_norm=None and "
                "renormalize the weight after optimizer.step(), under torch.no_grad()"
            )
        for own, tensor in (*module._parameters.items(), *module._buffers.items()):
            if tensor is not None and torch.nn.parameter.is_lazy(tensor):
                raise CaptureError(
                    f"{label} does not know the shape of its {own} yet: run the model once before capturing it"
                )
        if getattr(module, "sparse", False) and isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            raise CaptureError(f"{label} makes sparse gradients: set sparse=False")
        momentum = getattr(module, "momentum", 0.1)
        tracks = getattr(module, "track_running_stats", False)
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and tracks and momentum is None:
            if module.training:
                raise CaptureError(
                    f"{label} has momentum=None: the weight of its running average depends on a count in a "
                    "tensor; give it a momentum such as 0.1"
                )
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        check_plain(tensor, f"{name!r}")


class Draws:
    """Refuses random numbers that are not torch's: a plan would repeat those of the capture. Puts their states back."""

    def __enter__(self) -> Draws:
        self._python, self._numpy = random.getstate(), np.random.get_state(legacy=False)
        self._torch = torch.get_rng_state()
        return self

    def __exit__(self, *_: Any) -> None:
        random.setstate(self._python)
        np.random.set_state(self._numpy)
        torch.set_rng_state(self._torch)

    def check(self, module: str) -> None:
        """``module`` is the path of the one that has just been run."""
        now = np.random.get_state(legacy=False)
        before: Any = self._numpy
        numpys = any(not np.array_equal(now["state"][key], before["state"][key]) for key in ("pos", "key"))
        if numpys or random.getstate() != self._python:
            where = f" in module {module!r}" if module else ""
            raise CaptureError(
                f"the model draws from {'numpy' if numpys else 'Python'}'s random numbers{where}: a plan would repeat "
                "the ones of the capture, and the path they choose, for ever. Multiply by torch's random numbers "
                "instead, or capture with what draws switched off (a probability of 0 for layer drop or stochastic "
                "depth)"
            )


def check_parameters(graph_module: torch.fx.GraphModule, standin: StandIn) -> None:
    """Refuse a forward that changes a parameter: its gradient would be that of a tensor which is no more."""
    for kind, target, _ in private.output_descriptors(graph_module):
        if kind == "mutation" and isinstance(getattr(standin, target, None), nn.Parameter):
            name = standin.names[target].removeprefix("model.")
            raise CaptureError(
                f"forward changes the parameter {name!r} in place: change it between steps (after optimizer.step(), "
                "under torch.no_grad()) instead"
            )


def check_constants(graph_module: torch.fx.GraphModule, standin: StandIn) -> None:
    """Refuse a tensor that forward both reads and replaces, unless it is a buffer: the graph holds the first."""
    constants = {id(getattr(graph_module, n.target)) for n in graph_module.graph.nodes if n.op == "get_attr"}
    for name, old in standin.replaced:
        if id(old) in constants:
            raise CaptureError(
                f"forward reads the tensor {name} and assigns another to it, which a plan would not see: make it a "
                "buffer (register_buffer)"
            )


def depends_on_data(error: BaseException | None) -> bool:
    """Whether tracing stopped because a number was read out of a tensor."""
    while error is not None:
        if isinstance(error, private.DataDependentOutputException):
            return True
        error = error.__cause__ or error.__context__
    return False


def explained(error: Exception, path: list[str]) -> CaptureError:
    where = f" in module {path[-1]!r}" if path[-1] else ""
    op = getattr(error, "func", None)
    chain: BaseException | None = error
    while chain is not None and op is None:
        op = getattr(chain, "func", None)
        chain = chain.__cause__ or chain.__context__
    text = str(error).strip().splitlines()
    first = text[0] if text else type(error).__name__
    if isinstance(op, torch._ops.OpOverload):
        if op.name() in ("aten::_local_scalar_dense", "aten::item"):
            return CaptureError(
                f"the model reads a number out of a tensor ({op}){where}: control flow and shapes that depend on "
                "data cannot be planned ahead; use tensor operations such as torch.where, or Python numbers (of "
                "library options: validate_args=False for torch.distributions, no layer drop in transformers)"
            )
        return CaptureError(
            f"{op}{where} makes a tensor whose shape depends on data: shapes must be known ahead; replace it by "
            "an operation of fixed shape (for a boolean mask: multiply by it, or torch.where)"
        )
    said = f"{type(error).__name__}: {first}"
    advice = next((then for words, then in _ADVICE if words in str(error)), "")
    return CaptureError(f"tracing stopped{where}: {f'{advice} (torch: {said[:200]})' if advice else said}")


_IN_PLACE = (
    "the model changes in place a tensor that is neither a parameter, a buffer nor an input: make it a buffer "
    "(register_buffer)"
)


# (words in an error of torch's, what to do)
_ADVICE = (
    (
        "numpy() is not supported",
        "the model takes a tensor to numpy: values that depend on data cannot be planned ahead; use torch operations",
    ),
    (
        "use_reentrant=True",
        "reentrant checkpoints cannot be captured: pass use_reentrant=False to torch.utils.checkpoint, or leave the "
        "checkpoint out, since a plan takes its place",
    ),
    (
        "expected to have an entirely functional graph",
        _IN_PLACE,
    ),
    (
        "Cannot access data pointer of Tensor",
        "a kernel outside torch, or a function made by torch.compile, reads the tensors themselves: use the plain "
        "function, or make it a custom op (torch.library)",
    ),
    ("FunctionalTensor on its own", "if the model calls functions made by torch.compile, use the plain ones"),
    ("mutating a non-functional tensor", _IN_PLACE),
)
