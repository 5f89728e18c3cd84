"""What others do, measured by the same instrument: plain eager, and torch.utils.checkpoint per block.

torch's partitioner is a method of its own (``torch-min-cut``, ``torch-budget``), since its answer is a schedule.
"""

from __future__ import annotations

import contextlib
import functools
import time as clock
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..arrays import frozen
from .execute import call_tensors, has_data, require_captured, resident_tensors, synchronize
from .interpreter import RandomState
from .measure import Measurement, meter_for, process_peak, storage_bytes

if TYPE_CHECKING:
    from .capture import CapturedModel


#: Ops whose results selective checkpointing saves: the expensive ones.
SAVED_OPS = (
    torch.ops.aten.mm.default,
    torch.ops.aten.addmm.default,
    torch.ops.aten.bmm.default,
    torch.ops.aten.convolution.default,
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
    torch.ops.aten._scaled_dot_product_flash_attention.default,
    torch.ops.aten._scaled_dot_product_efficient_attention.default,
)


def checkpointed(
    cap: CapturedModel, *, blocks: Iterable[str] | None = None, selective: bool = False, **options: Any
) -> Measurement:
    """Eager with ``torch.utils.checkpoint`` around each block, measured as :func:`plain` measures.

    Parameters
    ----------
    cap : CapturedModel
    blocks : names of the modules to checkpoint; default: :func:`block_names` of the model
    selective : save the results of matrix products, convolutions and attention, and recompute the rest
    **options : as :func:`plain`

    Raises
    ------
    ValueError
        If a name is no module of the model, or no blocks are found: nothing would be checkpointed.
    """
    require_captured(cap)
    names = block_names(cap.model) if blocks is None else list(blocks)
    modules = dict(cap.model.named_modules())
    unknown = [name for name in names if name not in modules]
    if unknown:
        raise ValueError(f"the model has no module {unknown[0]!r} to checkpoint")
    if not names:
        raise ValueError("no blocks to checkpoint: the model repeats no module; name them with blocks=")
    label = "checkpoint-selective" if selective else "checkpoint"
    with contextlib.ExitStack() as stack:
        for name in names:
            stack.enter_context(_checkpointing(modules[name], selective))
        return plain(cap, method=label, **options)


def block_names(model: nn.Module) -> list[str]:
    """Names of the blocks a user would checkpoint: the elements of the model's lists of composite modules."""
    found: list[str] = []
    for name, module in model.named_modules():
        if not isinstance(module, (nn.ModuleList, nn.Sequential)) or any(
            name.startswith(f"{b}.") for b in found
        ):
            continue
        parts = [(f"{name}.{key}".lstrip("."), part) for key, part in module.named_children()]
        found += [label for label, part in parts if len(list(part.children())) > 1]
    return found


@contextlib.contextmanager
def _checkpointing(module: nn.Module, selective: bool) -> Iterator[None]:
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts

    inner = module.forward
    contexts: dict[str, Any] = {}
    if selective:
        contexts["context_fn"] = functools.partial(create_selective_checkpoint_contexts, list(SAVED_OPS))

    def forward(*args: Any, **kwargs: Any) -> Any:
        return checkpoint(inner, *args, use_reentrant=False, **contexts, **kwargs)

    module.forward = forward
    try:
        yield
    finally:
        del module.forward  # the class's own again


def plain(
    cap: CapturedModel, *, inputs: Any = None, targets: Any = None, repeats: int = 1, method: str = "eager"
) -> Measurement:
    """Ordinary eager forward and ``loss.backward()``: the peak and time a plan is held against.

    The model is left as it was: gradients, buffers and random state are put back.

    Parameters
    ----------
    cap : CapturedModel
    inputs, targets : as in :func:`capture`; default: those of the capture
    repeats : timed runs, of which the median counts
    method : a name for the measurement
    """
    require_captured(cap)
    if repeats < 1:
        raise ValueError(f"repeats must be at least 1, got {repeats}")
    tensors = call_tensors(cap, inputs, targets)
    residents = resident_tensors(cap, tensors)
    random = RandomState(cap.device)

    def step() -> torch.Tensor:
        loss = cap.loss_module(*cap.signature.rebuild(tensors))
        loss.backward()
        return loss.detach()

    with as_it_was(cap.loss_module, tensors):
        state = random.save()
        step()  # warm-up: a first call may allocate caches that stay
        clear_gradients(cap.loss_module, tensors)
        random.restore(state)
        meter = meter_for(cap.device)
        with meter:
            step()
            # Whatever the step leaves alive (its gradients) counts, as it does in a schedule.
            meter.mark()
        seconds = []
        for _ in range(repeats):
            clear_gradients(cap.loss_module, tensors)
            random.restore(state)
            synchronize(cap.device)
            started = clock.perf_counter()
            loss = step()
            synchronize(cap.device)
            seconds.append(clock.perf_counter() - started)
    levels = meter.levels
    return Measurement(
        bytes=frozen(levels.after[:1]),
        during=frozen(levels.during[:1]),
        loss=loss,
        seconds=sorted(seconds)[len(seconds) // 2],
        baseline=storage_bytes(list(residents.values())),
        recomputed_ops=0,
        process_bytes=process_peak(),
        method=method,
    )


@contextlib.contextmanager
def as_it_was(module: nn.Module, tensors: list[torch.Tensor]) -> Iterator[None]:
    """Put gradients, buffers and the random state back at the end."""
    leaves = [*module.parameters(), *tensors]
    gradients = [leaf.grad for leaf in leaves]
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers() if has_data(buffer)]
    device = next((leaf.device for leaf in leaves), torch.device("cpu"))
    random = RandomState(device)
    state = random.save()
    for leaf in leaves:
        leaf.grad = None
    try:
        yield
    finally:
        for leaf, gradient in zip(leaves, gradients):
            leaf.grad = gradient
        with torch.no_grad():
            for buffer, old in buffers:
                buffer.copy_(old)
        random.restore(state)


def clear_gradients(module: nn.Module, tensors: list[torch.Tensor]) -> None:
    for leaf in (*module.parameters(), *tensors):
        leaf.grad = None
