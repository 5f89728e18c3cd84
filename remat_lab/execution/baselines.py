"""What others do, measured by the same instrument: plain eager, torch.utils.checkpoint, torch's partitioner."""

from __future__ import annotations

import contextlib
import time as clock
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ..arrays import frozen
from .execute import call_tensors, has_data, resident_tensors, synchronize
from .interpreter import RandomState
from .measure import Measurement, meter_for, process_peak, storage_bytes

if TYPE_CHECKING:
    from .capture import CapturedModel


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
    tensors = call_tensors(cap, inputs, targets)
    residents = resident_tensors(cap, tensors)
    random = RandomState(cap.device)

    def step() -> torch.Tensor:
        loss = cap.loss_module(*cap.signature.rebuild(tensors))
        loss.backward()
        return loss.detach()

    with as_it_was(cap.loss_module, tensors):
        state = random.save()
        loss = step()  # warm-up: a first call may allocate caches that stay
        clear_gradients(cap.loss_module, tensors)
        random.restore(state)
        meter = meter_for(cap.device)
        with meter:
            loss = step()
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
