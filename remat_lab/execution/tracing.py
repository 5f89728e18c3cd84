"""From a module and example inputs to its joint ATen graph, without allocating.

Everything is traced as fake tensors: real, meta and fake parameters and inputs all become fake ones of the
same shape, strides, dtype and device, so a model of any size can be traced on a laptop.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.overrides import TorchFunctionMode, resolve_name

from ..errors import CaptureError
from . import _torch_private as private
from .refusals import (
    Draws,
    check_constants,
    check_model,
    check_parameters,
    depends_on_data,
    explained,
    place_of,
)
from .rewrite import check_where_made, drop_unused_statistics, refill_in_place
from .signature import Signature
from .snapshot import unchanged
from .standin import LossModule, StandIn, faker, plain_tensors

#: What :func:`trace` gives.
Traced: TypeAlias = """tuple[
    torch.fx.GraphModule, LossModule, StandIn, Signature, list[torch.Tensor], list[torch.Tensor]
]"""


class _Calls(TorchFunctionMode):
    """Labels every traced node with the outermost torch function that made it, and its module."""

    def __init__(self, path: list[str]):
        super().__init__()
        self.path, self.count = path, 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        # The mode is off inside its own handler, so calls within this one get no label of their own.
        self.count += 1
        name = getattr(function, "__name__", "") or str(resolve_name(function))
        with private.annotation((self.path[-1], self.count, name)):
            return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def labelled(module: nn.Module, draws: Draws) -> Iterator[list[str]]:
    """While active, calls of ``module`` label traced nodes. Yields the stack of module names."""
    path = [""]
    handles = []
    for name, child in module.named_modules():
        label = place_of(name)

        def enter(_module: nn.Module, _args: Any, label: str = label) -> None:
            path.append(label)

        def leave(_module: nn.Module, _args: Any, _output: Any) -> None:
            draws.check(path.pop())

        handles.append(child.register_forward_pre_hook(enter, prepend=True))
        handles.append(child.register_forward_hook(leave))
    try:
        with _Calls(path):
            yield path
    finally:
        for handle in handles:
            handle.remove()


def trace(model: nn.Module, inputs: Any, loss: Callable[..., torch.Tensor] | None, targets: Any) -> Traced:
    """The joint graph of a model and its loss, how its inputs map back, the example tensors and their fakes.

    A model that chooses its path by the data (whether a mask masks anything, say) is traced on the path it takes
    under ``torch.compile``, if it has one, with a warning: eager may take another.

    Raises
    ------
    CaptureError
        Naming the op or construct, the module it is in, and what to do.
    """
    check_model(model)
    if isinstance(loss, nn.Module):
        check_model(loss)
    try:
        return _trace(model, inputs, loss, targets)
    except CaptureError as error:
        if not depends_on_data(error.__cause__):
            raise
        try:
            with private.compiling():
                found = _trace(model, inputs, loss, targets)
        except CaptureError:
            raise error from error.__cause__
        warnings.warn(
            f"{type(model).__name__} chooses its path by data: captured is the path it takes under torch.compile; "
            "eager may take another, whose results can differ in the last bits",
            stacklevel=4,
        )
        return found


def _trace(model: nn.Module, inputs: Any, loss: Callable[..., torch.Tensor] | None, targets: Any) -> Traced:
    module = LossModule(model, loss)
    signature, tensors = Signature.of(inputs, targets)
    fake = faker()
    fakes = [fake(tensor, f"input {i}") for i, tensor in enumerate(tensors)]
    standin = StandIn(module, signature, fake)
    path: list[str] = [""]
    try:
        with contextlib.ExitStack() as stack:
            stack.enter_context(unchanged(module))
            private.run_uncompiled(module)
            draws = stack.enter_context(Draws())
            path = stack.enter_context(labelled(module, draws))
            for context in (private.eager_kernels(), private.quiet_fakes(), torch.enable_grad()):
                stack.enter_context(context)
            graph = private.export_joint(standin, tuple(fakes))
            draws.check("")
        private.describe_as_mutations(graph, standin.rebound)
        refill_in_place(graph)
        check_where_made(graph)
        check_parameters(graph, standin)
        check_constants(graph, standin)
        drop_unused_statistics(graph)
    except CaptureError:
        raise
    except Exception as error:
        raise explained(error, path) from error
    return graph, module, standin, signature, tensors, fakes


def constant_names(graph_module: torch.fx.GraphModule, module: LossModule) -> dict[str, str]:
    """Names, in the model, of the tensors the graph holds itself."""
    known = {
        id(tensor): f"{path}.{name}"
        for path, child in module.named_modules()
        for name, tensor in plain_tensors(child).items()
    }
    targets = {n.target for n in graph_module.graph.nodes if n.op == "get_attr"}
    found = {target: known.get(id(getattr(graph_module, target))) for target in targets}
    return {target: name for target, name in found.items() if name}
