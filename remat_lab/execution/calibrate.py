"""calibrate(): what each op really takes, measured in place.

Fake tensors know the sizes of outputs, not what a kernel allocates inside: a convolution's backward may take twice
its output more. So one plain step is run with the real data under the memory meter, and each distinct op signature
(op, shapes, strides, dtypes, constants) gets its workspace and its outputs' real sizes; k further runs, without any
instrument, give its median time. In place, since ops that keep opaque workspaces (fused LSTMs) cannot be run alone
on made-up data.

The figures belong to one torch version, device and thread count (oneDNN's workspace depends on it), and are kept on
disk under that key.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import os
import platform
import sys
import time as clock
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
import torch

from ..joint import JointGraph
from ..schedule import Schedule
from . import _torch_private as private
from .execute import call_tensors, require_captured, resident_tensors, synchronize, warm_up
from .flops import op_flops
from .interpreter import Interpreter
from .measure import meter_for
from .storages import StorageGraph, paper_time, tensors_of

if TYPE_CHECKING:
    from .capture import CapturedModel

TIME_SOURCES = ("measured", "flop", "paper")


class Figures(TypedDict):
    """What is known of a signature: bytes, bytes of each output, seconds."""

    workspace: int
    outputs: list[int]
    seconds: float


def calibrate(
    cap: CapturedModel,
    *,
    k: int = 5,
    time: str = "measured",
    progress: bool = False,
    cache: bool = True,
    inputs: Any = None,
    targets: Any = None,
) -> CapturedModel:
    """The same model with measured workspaces, storage sizes and times on its joint graph.

    Nothing of the model changes: buffers, gradients and random state are left as they were.

    Parameters
    ----------
    cap : CapturedModel, whose model and inputs hold data
    k : runs for the median time
    time : "measured" (seconds), "flop", or "paper" (convolution 10, anything else 1); workspace is measured
        whatever this says
    progress : show a progress bar
    cache : read and write the figures on disk (in ``REMAT_LAB_CACHE``, or the platform's cache folder)
    inputs, targets : as in :func:`capture`; default: those of the capture

    Raises
    ------
    ValueError
        On a wrong ``k`` or ``time``.
    ExecutionError
        If the model or its inputs hold no data, or an op fails.
    """
    require_captured(cap)
    if time not in TIME_SOURCES:
        raise ValueError(f"time must be one of {TIME_SOURCES}, got {time!r}")
    if k < 1:
        raise ValueError(f"k must be at least 1, got {k}")
    keys = signatures(cap.storages)
    store = _Store(cap.device, enabled=cache)
    if not all(key in store.figures for key in keys):
        tensors = resident_tensors(cap, call_tensors(cap, inputs, targets))
        store.add(_measure(cap, keys, tensors, k, progress))
    return with_figures(cap, [store.figures[key] for key in keys], time)


def with_figures(cap: CapturedModel, figures: list[Figures], time: str) -> CapturedModel:
    """The capture with these figures on its ops, in op order."""
    joint = cap.joint
    size = joint.value_bytes.copy()
    size[joint.writes.index] = 0
    for op, figure in enumerate(figures):
        for (_, value), measured in zip(cap.storages.written[op], figure["outputs"], strict=True):
            size[value] += measured  # outputs that share a storage when traced may have one each when run
    seconds = np.array([figure["seconds"] for figure in figures])
    op_time, unit = op_times(cap.storages, time, seconds)
    workspace = np.array([figure["workspace"] for figure in figures], dtype=np.int64)
    return cap.with_joint(
        joint.with_costs(op_time=op_time, op_workspace=workspace, value_bytes=size, time_unit=unit)
    )


def op_times(graph: StorageGraph, time: str, seconds: np.ndarray | None = None) -> tuple[np.ndarray, str]:
    """(time of each op, its unit) by source."""
    if time == "measured" and seconds is not None:
        return seconds, "s"
    if time == "flop":
        return np.array([op_flops(node) for node in graph.nodes], dtype=np.float64), "flop"
    return np.array([paper_time(kind) for kind in graph.joint.op_types], dtype=np.float64), "paper"


def with_time(cap: CapturedModel, time: str) -> CapturedModel:
    """The capture with op times by "flop" or "paper": no run needed.

    Raises
    ------
    ValueError
        For another source ("measured" needs :func:`calibrate`).
    """
    if time not in ("flop", "paper"):
        raise ValueError(f"time must be 'flop' or 'paper' here, got {time!r}; calibrate() measures")
    op_time, unit = op_times(cap.storages, time)
    joint: JointGraph = cap.joint.with_costs(op_time=op_time, time_unit=unit)
    return cap.with_joint(joint)


# -- signatures ------------------------------------------------------------------------------------------------
def signatures(graph: StorageGraph) -> list[str]:
    """A hash of each op's name, tensor arguments (shape, strides, dtype, device) and constants."""
    return [_signature(node) for node in graph.nodes]


def _signature(node: torch.fx.Node) -> str:
    def text(argument: Any) -> str:
        if isinstance(argument, torch.fx.Node):
            return ";".join(
                f"{t.dtype}{tuple(t.shape)}{t.stride()}{t.device.type}" for _, t in tensors_of(argument)
            )
        if isinstance(argument, (tuple, list)):
            return "[" + ",".join(text(item) for item in argument) + "]"
        return _name(argument)

    if node.op == "placeholder":
        return hashlib.sha256(f"gradient of the loss|{text(node)}".encode()).hexdigest()[:24]
    parts = [_name(node.target), text(node.args), *(f"{k}={text(v)}" for k, v in sorted(node.kwargs.items()))]
    return hashlib.sha256("|".join(parts).encode()).hexdigest()[:24]


def _name(thing: Any) -> str:
    """A text that is the same in every process: a function's own repr holds its address."""
    if isinstance(thing, functools.partial):
        options = ",".join(f"{key}={_name(value)}" for key, value in sorted(thing.keywords.items()))
        return f"partial({_name(thing.func)},{','.join(map(_name, thing.args))},{options})"
    if isinstance(thing, (tuple, list)):
        return "[" + ",".join(map(_name, thing)) + "]"
    if isinstance(thing, dict):
        return "{" + ",".join(f"{_name(key)}:{_name(value)}" for key, value in thing.items()) + "}"
    if isinstance(thing, (torch._ops.OperatorBase, torch._ops.OpOverloadPacket)):
        return str(thing)
    if callable(thing) and hasattr(thing, "__qualname__"):
        return f"{thing.__module__}.{thing.__qualname__}"
    return repr(thing)


# -- measuring -------------------------------------------------------------------------------------------------
def _measure(
    cap: CapturedModel, keys: list[str], tensors: dict[str, torch.Tensor], k: int, progress: bool
) -> dict[str, Figures]:
    plain = Schedule.vanilla(cap.joint)
    runs = np.flatnonzero(plain.actions >= 0)  # op i is the run at step runs[i]
    stages = _with_progress(["warm-up", "memory", *["time"] * k], progress)
    times = np.zeros((k, len(plain)))
    workspace = np.zeros(len(runs), dtype=np.int64)
    sizes: list[list[int]] = []
    timed = 0
    for stage in stages:
        if stage == "warm-up":
            warm_up(cap, tensors)
        elif stage == "memory":
            workspace, sizes = _memory(cap, plain, runs, tensors)
        else:
            times[timed] = _times(cap, plain, tensors)
            timed += 1
    seconds = np.median(times, axis=0)[runs]
    figures: dict[str, Figures] = {}
    by_key: dict[str, list[float]] = {}
    for op, key in enumerate(keys):
        by_key.setdefault(key, []).append(float(seconds[op]))
        found = Figures(workspace=int(workspace[op]), outputs=sizes[op], seconds=0.0)
        if key in figures:  # several ops of one signature: the most any of them took
            found["workspace"] = max(found["workspace"], figures[key]["workspace"])
        figures[key] = found
    for key, several in by_key.items():
        figures[key]["seconds"] = float(np.median(several))
    return figures


def _memory(
    cap: CapturedModel, plain: Schedule, runs: np.ndarray, tensors: dict[str, torch.Tensor]
) -> tuple[np.ndarray, list[list[int]]]:
    """Bytes each op held above its level at entry, and the real bytes of each of its outputs."""
    interpreter = Interpreter(cap, plain, tensors)
    primary = cap.program.primary
    sizes: list[list[int]] = []
    step = 0

    def mark() -> None:
        nonlocal step
        meter.mark()
        code = int(plain.actions[step])
        if code >= 0:
            sizes.append(_output_bytes([interpreter.slots[slot] for slot in primary[code]]))
        step += 1

    meter = meter_for(cap.device)
    with meter:
        interpreter.advance(mark=mark)
    interpreter.abandon()
    before = np.concatenate([[0], meter.levels.after])[: len(plain)]
    return (meter.levels.during[: len(plain)] - before)[runs], sizes


def _output_bytes(tensors: list[torch.Tensor]) -> list[int]:
    """Bytes of the storage behind each output; 0 where an earlier one has the same."""
    seen: set[int] = set()
    found = []
    for tensor in tensors:
        key = private.storage_key(tensor)
        found.append(0 if key in seen else tensor.untyped_storage().nbytes())
        seen.add(key)
    return found


def _times(cap: CapturedModel, plain: Schedule, tensors: dict[str, torch.Tensor]) -> np.ndarray:
    """Seconds of each action of one run."""
    interpreter = Interpreter(cap, plain, tensors)
    if cap.device.type == "cuda":
        return _cuda_times(cap, interpreter, len(plain))
    stamps = [clock.perf_counter()]
    interpreter.advance(mark=lambda: stamps.append(clock.perf_counter()))
    interpreter.abandon()
    return np.diff(stamps)


def _cuda_times(cap: CapturedModel, interpreter: Interpreter, n: int) -> np.ndarray:
    events = [torch.cuda.Event(enable_timing=True) for _ in range(n + 1)]
    waiting: Iterator[torch.cuda.Event] = iter(events)
    synchronize(cap.device)
    next(waiting).record()
    interpreter.advance(mark=lambda: next(waiting).record())
    synchronize(cap.device)
    interpreter.abandon()
    return np.array([a.elapsed_time(b) for a, b in itertools.pairwise(events)]) / 1e3


def _with_progress(stages: list[str], progress: bool) -> Iterable[str]:
    if not progress:
        return stages
    from tqdm.auto import tqdm

    return tqdm(stages, desc="calibrate", unit="run")


# -- on disk ---------------------------------------------------------------------------------------------------
def cache_folder() -> Path:
    """``REMAT_LAB_CACHE`` if set, else the platform's cache folder."""
    chosen = os.environ.get("REMAT_LAB_CACHE")
    if chosen:
        return Path(chosen)
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "remat_lab"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA", Path.home())) / "remat_lab" / "cache"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "remat_lab"


def environment_key(device: torch.device) -> dict[str, Any]:
    """What figures depend on besides the op's signature."""
    key: dict[str, Any] = {
        "torch": torch.__version__,
        "device": device.type,
        "threads": torch.get_num_threads(),
        "mkldnn": torch.backends.mkldnn.enabled,
        "deterministic": torch.are_deterministic_algorithms_enabled(),
    }
    if device.type == "cuda":
        key["name"] = torch.cuda.get_device_name(device)
        key["cudnn"] = [torch.backends.cudnn.version(), torch.backends.cudnn.benchmark]
        key["tf32"] = [torch.backends.cuda.matmul.allow_tf32, torch.backends.cudnn.allow_tf32]
    else:
        key["name"] = f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()} {_cpu_model()}"
    return key


def _cpu_model() -> str:
    try:
        lines: list[str] = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")


class _Store:
    """Figures by signature, in one JSON file per environment."""

    def __init__(self, device: torch.device, *, enabled: bool):
        self.figures: dict[str, Figures] = {}
        self.path: Path | None = None
        if not enabled:
            return
        self.key = environment_key(device)
        name = hashlib.sha256(json.dumps(self.key, sort_keys=True).encode()).hexdigest()[:16]
        self.path = cache_folder() / f"calibration-{name}.json"
        try:
            stored = json.loads(self.path.read_text())
            if stored["environment"] == self.key:
                self.figures = stored["figures"]
        except (OSError, ValueError, KeyError, TypeError):
            self.figures = {}  # absent or unreadable: measure again

    def add(self, figures: dict[str, Figures]) -> None:
        """New figures; a time that is known already stays, so that a model's costs do not change under its plans."""
        for key, known in self.figures.items():
            if key in figures:
                figures[key] = Figures(**{**figures[key], "seconds": known["seconds"]})
        self.figures = {**self.figures, **figures}
        if self.path is None:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # Written beside and renamed: two processes calibrating at once never leave half a file.
            draft = self.path.with_suffix(f".{os.getpid()}")
            draft.write_text(json.dumps({"environment": self.key, "figures": self.figures}))
            draft.replace(self.path)
        except OSError:
            self.path = None  # a read-only home: the figures still serve this process
