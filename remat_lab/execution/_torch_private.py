"""Every private torch name this package leans on, behind a few functions.

Tested with torch 2.13.0 (CPU). These names move between minor releases, so nothing outside this module
imports one. The alarm, should a release change them, is the parity test in ``tests/execution``: gradients,
buffers, random state and bytes of every captured network against eager.
"""

from __future__ import annotations

import bisect
import contextlib
import logging
import os
import sys
import unittest.mock
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch._C._profiler import _RecordFunctionFast
from torch._functorch._aot_autograd.descriptors import BufferAOTInput, InputMutationAOTOutput, PlainAOTOutput
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._subclasses import fake_tensor
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.fx import traceback as fx_traceback
from torch.utils import _pytree as pytree

TESTED_TORCH = ("2.13.0",)

__all__ = [
    "TESTED_TORCH",
    "DataDependentOutputException",
    "DynamicOutputShapeException",
    "FakeTensor",
    "FakeTensorMode",
    "FunctionalTensor",
    "allocator_events",
    "annotation",
    "compiling",
    "describe_as_mutations",
    "eager_kernels",
    "export_joint",
    "mark",
    "min_cut_partition",
    "output_descriptors",
    "pytree",
    "quiet_fakes",
    "run_uncompiled",
    "storage_key",
]

# ATen ops for which the tracer has a Python decomposition where eager runs one kernel of its own. Their memory
# differs (GPT-2 and BERT: 10 to 14%), and for recurrent nets the random stream does, too.
_EAGER_KERNELS = (
    "dropout",
    "gru",
    "lstm",
    "rnn_relu",
    "rnn_tanh",
    "matmul",
    "hardshrink",
    "softshrink",
    "multi_margin_loss",
    "multilabel_margin_loss_forward",
    "upsample_bicubic2d",
    "upsample_bilinear2d",
    "upsample_linear1d",
    "upsample_nearest1d",
    "upsample_nearest2d",
    "upsample_nearest3d",
    "upsample_trilinear3d",
    "_upsample_bicubic2d_aa",
    "_upsample_bilinear2d_aa",
    "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d",
    "_upsample_nearest_exact3d",
)


@contextlib.contextmanager
def eager_kernels() -> Iterator[None]:
    """While active, tracing sees the kernels eager runs instead of Python decompositions of them."""
    import torch._decomp  # registers what is to be hidden

    keys = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)
    hidden: list[tuple[Any, Any, Any]] = []
    for name in _EAGER_KERNELS:
        packet = getattr(torch.ops.aten, name, None)
        for overload in packet.overloads() if packet is not None else ():
            op = getattr(packet, overload)
            for key in keys:
                if key in op.py_kernels:
                    hidden.append((op, key, op.py_kernels.pop(key)))
            op._dispatch_cache.clear()
    try:
        yield
    finally:
        for op, key, kernel in hidden:
            op.py_kernels[key] = kernel
            op._dispatch_cache.clear()


def export_joint(module: nn.Module, args: tuple[Any, ...]) -> torch.fx.GraphModule:
    """The joint forward and backward ATen graph of a module that returns its loss, under fake tensors.

    Placeholders carry ``meta["desc"]``; the descriptors of the outputs are :func:`output_descriptors`.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(fx_traceback.preserve_node_meta())
        return aot_export_joint_with_descriptors(stack, module, args).graph_module


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """While active, ``torch.compiler.is_compiling()`` is true, by which libraries avoid paths that depend on data."""
    with unittest.mock.patch.object(torch.compiler, "_is_compiling_flag", True):
        yield


def run_uncompiled(module: nn.Module) -> None:
    """Have modules that ``torch.compile`` made, or ``.compile()`` changed, run in eager from now on."""
    frames = sys.modules.get("torch._dynamo.eval_frame")
    for child in module.modules():
        if frames is not None and isinstance(child, frames.OptimizedModule):
            vars(child)["forward"] = child._orig_mod
        if child._compiled_call_impl is not None:
            vars(child)["_compiled_call_impl"] = None


@contextlib.contextmanager
def quiet_fakes() -> Iterator[None]:
    """While active, an op that fails on fake tensors raises, without logging its stack first."""
    log = logging.getLogger(fake_tensor.__name__)
    before = log.disabled
    log.disabled = True
    try:
        yield
    finally:
        log.disabled = before


@contextlib.contextmanager
def annotation(label: Any) -> Iterator[None]:
    """Nodes traced while active carry ``label`` as ``meta["custom"]["remat_lab"]``."""
    meta = fx_traceback.current_meta
    before = meta.get("custom")
    meta["custom"] = {**(before or {}), "remat_lab": label}
    try:
        yield
    finally:
        if before is None:
            meta.pop("custom", None)
        else:
            meta["custom"] = before


def output_descriptors(graph_module: torch.fx.GraphModule) -> list[tuple[str, str, Any]]:
    """(kind, target, node) of each output: kind is "loss", "gradient" or "mutation".

    ``target`` names the parameter or buffer stand-in, or is ``args[i]`` for a plain input.
    """
    output = next(node for node in graph_module.graph.nodes if node.op == "output")
    found = []
    for node, desc in zip(output.args[0], output.meta["desc"], strict=True):
        if desc is None or node is None:
            continue
        kind = type(desc).__name__
        if kind == "PlainAOTOutput":
            found.append(("loss", "", node))
        elif kind == "GradAOTOutput":
            found.append(("gradient", input_target(desc.grad_of), node))
        elif kind == "InputMutationAOTOutput":
            found.append(("mutation", input_target(desc.mutated_input), node))
        else:
            raise NotImplementedError(f"an output described as {desc.expr()}")
    return found


def describe_as_mutations(graph_module: torch.fx.GraphModule, buffers: list[str]) -> None:
    """Have the outputs after the first plain one, the loss, be the new contents of these buffers."""
    output = next(node for node in graph_module.graph.nodes if node.op == "output")

    def described(desc: Any) -> Any:
        if not isinstance(desc, PlainAOTOutput) or desc.idx == 0:
            return desc
        return InputMutationAOTOutput(BufferAOTInput(buffers[desc.idx - 1]))

    output.meta["desc"] = [described(desc) for desc in output.meta["desc"]]


def input_target(desc: Any) -> str:
    """The stand-in's name, ``args[i]`` for a plain input, or "tangent"."""
    kind = type(desc).__name__
    if kind in ("ParamAOTInput", "BufferAOTInput"):
        return desc.target
    if kind == "PlainAOTInput":
        return f"args[{desc.idx}]"
    if kind == "TangentAOTInput":
        return "tangent"
    raise NotImplementedError(f"an input described as {desc.expr()}")


def storage_key(tensor: torch.Tensor) -> int:
    """Identity of a tensor's storage; stable while some tensor holds it."""
    return tensor.untyped_storage()._cdata


_MARK = "remat_lab.mark"
_ASIDE = "remat_lab.aside"


def mark() -> None:
    """Put a boundary between the allocator events before and after this moment (while profiling)."""
    with _RecordFunctionFast(_MARK):
        pass


def aside() -> contextlib.AbstractContextManager[None]:
    """What is allocated and freed inside is bookkeeping of the executor, and not recorded (while profiling)."""
    return _RecordFunctionFast(_ASIDE)


@contextlib.contextmanager
def allocator_events() -> Iterator[list[int | None]]:
    """Record every call of the CPU allocator: bytes given (positive) or taken back, and None for each mark.

    The list is filled when the context ends. The profiler sees temporaries inside kernels and allocations of
    worker threads; it slows small ops many times over, so nothing is timed while it runs.

    Raises
    ------
    RuntimeError
        If another profiler is running.
    """
    if torch.autograd._profiler_enabled():
        raise RuntimeError("memory cannot be measured while another torch profiler is running: stop it first")
    # Kineto prints a line at every start and stop unless told otherwise before its first use.
    level = os.environ.get("KINETO_LOG_LEVEL")
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    events: list[int | None] = []
    # Not torch.profiler.profile: it warns unless told to build an event tree, which takes most of a minute for a
    # sequence of 1000 steps.
    profiler = torch.autograd.profiler.profile(use_cpu=True, profile_memory=True)
    try:
        with profiler:
            yield events
    finally:
        if level is None:
            os.environ.pop("KINETO_LOG_LEVEL", None)
    found: list[tuple[int, int | None]] = []
    asides = []
    for event in profiler.kineto_results.events():
        name = event.name()
        if name == "[memory]":
            if event.device_type() == torch._C._autograd.DeviceType.CPU:
                found.append((event.start_ns(), event.nbytes()))
        elif name == _MARK:
            found.append((event.start_ns(), None))
        elif name == _ASIDE:
            asides.append((event.start_ns(), event.start_ns() + event.duration_ns()))
    found.sort(key=lambda pair: pair[0])  # stable: events of one nanosecond keep their order
    asides.sort()
    starts = [start for start, _ in asides]
    for at, size in found:
        before = bisect.bisect_right(starts, at) - 1
        if size is None or before < 0 or at > asides[before][1]:
            events.append(size)


def min_cut_partition(
    graph_module: torch.fx.GraphModule, forward_outputs: int, fraction: float
) -> tuple[list[str], list[str]]:
    """Names of the nodes torch's partitioner puts in the forward and in the backward half, in order.

    ``fraction`` is ``activation_memory_budget``. The graph given is left as it is.
    """
    import torch._functorch.config as functorch_config
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    graph = torch.fx.Graph()
    result = graph.graph_copy(graph_module.graph, {})
    old = next(node for node in graph_module.graph.nodes if node.op == "output")
    graph.output(result).meta = dict(old.meta)
    copy = torch.fx.GraphModule(graph_module, graph)
    with functorch_config.patch(activation_memory_budget=fraction):
        halves = min_cut_rematerialization_partition(copy, None, num_fwd_outputs=forward_outputs)
    forward, backward = ([n.name for n in half.graph.nodes if n.op == "call_function"] for half in halves)
    return forward, backward
