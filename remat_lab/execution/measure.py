"""What memory was really used, step by step: one interface, two instruments.

``MemoryMeter`` is a context manager; ``mark()`` ends a step. On the CPU it reads the allocator's own events through
the profiler: temporaries inside kernels are seen, and nothing is estimated. On CUDA it reads the caching
allocator's statistics between steps.

Three figures are kept apart, since they answer different questions: the *live-tensor* bytes the ops asked for
(what a schedule decides, and what ``simulate`` predicts); the allocator's *reserved* bytes (CUDA: what the driver
lost); and the *process* memory (RSS), which counts code, freed pages not yet given back and everything else.
"""

from __future__ import annotations

import abc
import gc
import resource
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch

from ..arrays import frozen
from ..schedule import Schedule
from ..simulate import LiveValue, Trace, simulate
from ..units import format_bytes
from . import _torch_private as private


@dataclass(frozen=True)
class Levels:
    """Bytes above the level at entry: ``during`` and ``after`` each step, int64 arrays of shape (steps,)."""

    during: np.ndarray
    after: np.ndarray

    @property
    def peak(self) -> int:
        return int(self.during.max()) if len(self.during) else 0


class MemoryMeter(abc.ABC):
    """Measures while active; ``mark()`` ends a step. ``levels`` is there when the context has ended."""

    levels: Levels

    @abc.abstractmethod
    def __enter__(self) -> Self: ...

    @abc.abstractmethod
    def mark(self) -> None:
        """End the current step and begin the next."""

    @abc.abstractmethod
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class CpuMeter(MemoryMeter):
    """The CPU allocator's events, as the profiler records them."""

    def __enter__(self) -> Self:
        gc.collect()  # what an earlier run left in a reference cycle must not go while this one is measured
        self._recording: AbstractContextManager[list[int | None]] = private.allocator_events()
        self._events = self._recording.__enter__()
        return self

    def mark(self) -> None:
        private.mark()

    def __exit__(self, kind, error, trace) -> None:
        self._recording.__exit__(kind, error, trace)
        during, after = [], []
        level = most = 0
        for size in self._events:
            if size is None:
                during.append(most)
                after.append(level)
                most = level
            else:
                level += size
                most = max(most, level)
        self.levels = _levels([*during, most], [*after, level])


class CudaMeter(MemoryMeter):
    """The CUDA caching allocator's statistics, reset after each step.

    ``requested_bytes`` is what ops asked for: comparable to the simulation. ``allocated`` (rounded to the
    allocator's blocks) and ``reserved`` (taken from the driver) are kept as peaks of the whole.
    """

    def __init__(self, device: torch.device):
        self.device = device
        self.allocated_peak = self.reserved_peak = 0

    def __enter__(self) -> Self:
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        stats = torch.cuda.memory_stats(self.device)
        self._entry = stats["requested_bytes.all.current"]
        self._allocated_entry = stats["allocated_bytes.all.current"]
        self._during: list[int] = []
        self._after: list[int] = []
        return self

    def mark(self) -> None:
        # The allocator works on the host, in step with it: no synchronization is needed.
        stats = torch.cuda.memory_stats(self.device)
        self._during.append(stats["requested_bytes.all.peak"] - self._entry)
        self._after.append(stats["requested_bytes.all.current"] - self._entry)
        self.allocated_peak = max(
            self.allocated_peak, stats["allocated_bytes.all.peak"] - self._allocated_entry
        )
        self.reserved_peak = max(self.reserved_peak, stats["reserved_bytes.all.peak"])
        torch.cuda.reset_peak_memory_stats(self.device)

    def __exit__(self, kind, error, trace) -> None:
        self.mark()
        self.levels = _levels(self._during, self._after)


def _levels(during: list[int], after: list[int]) -> Levels:
    return Levels(frozen(np.array(during, dtype=np.int64)), frozen(np.array(after, dtype=np.int64)))


def meter_for(device: torch.device | str) -> MemoryMeter:
    """The instrument for a device.

    Raises
    ------
    ValueError
        For a device without one.
    """
    device = torch.device(device)
    if device.type == "cpu":
        return CpuMeter()
    if device.type == "cuda":
        return CudaMeter(device)
    raise ValueError(f"memory on {device.type!r} cannot be measured: use a CPU or CUDA device")


def process_peak() -> int:
    """The most memory this process ever held (RSS high-water mark), bytes. Not activation memory: see above."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


@dataclass(frozen=True, eq=False)
class Measurement:
    """What running a schedule used, in the shape of a Trace.

    Attributes
    ----------
    bytes : int64 array, shape (actions,): held after each action (baseline apart); empty if not measured
    during : int64 array, shape (actions,): the most held while the action runs
    loss : tensor, detached
    seconds : float, wall-clock time of a run of its own, without any instrument
    baseline : int, bytes of parameters, buffers and inputs
    recomputed_ops : int, runs beyond each op's first
    process_bytes : int, the process's high-water mark: pages of everything, not comparable to ``peak``
    schedule : Schedule or None (a plain eager run has none)
    method : str
    budget : int or None
    note : str, said aloud when something planned did not happen
    """

    bytes: np.ndarray
    during: np.ndarray
    loss: torch.Tensor
    seconds: float
    baseline: int
    recomputed_ops: int
    process_bytes: int
    schedule: Schedule | None = None
    method: str = ""
    budget: int | None = None
    note: str = ""

    @property
    def measured(self) -> bool:
        return len(self.during) > 0

    @property
    def peak(self) -> int:
        """The most bytes held at any moment, baseline apart.

        Raises
        ------
        ValueError
            If the run was not measured.
        """
        if not self.measured:
            raise ValueError("this run was not measured: execute(..., measure=True)")
        return int(self.during.max())

    @property
    def peak_step(self) -> int:
        """The action during which the peak is reached (the first, if several)."""
        return int(self.during.argmax()) if self.measured else 0

    @cached_property
    def predicted(self) -> Trace | None:
        """The simulation of the same schedule."""
        return None if self.schedule is None else simulate(self.schedule)

    @property
    def difference(self) -> int:
        """Measured peak minus predicted peak, bytes."""
        if self.predicted is None:
            raise ValueError("an eager run has no schedule to predict")
        return self.peak - self.predicted.peak

    def at_peak(self) -> list[LiveValue]:
        """Values held while the measured peak is reached, largest first."""
        return [] if self.predicted is None else self.predicted.live_at(self.peak_step)

    def __repr__(self) -> str:
        peak = f"peak {format_bytes(self.peak)}" if self.measured else "not measured"
        label = f"{self.method}, " if self.method else ""
        text = f"Measurement({label}{peak}, {self.seconds * 1e3:.1f} ms, {self.recomputed_ops} ops recomputed"
        if self.measured and self.predicted is not None:
            text += f", predicted {format_bytes(self.predicted.peak)} ({self.difference:+d} B)"
        return text + (f"; {self.note}" if self.note else "") + ")"


def storage_bytes(tensors: list[Any]) -> int:
    """Bytes of the distinct storages behind tensors."""
    return sum({private.storage_key(t): t.untyped_storage().nbytes() for t in tensors}.values())
