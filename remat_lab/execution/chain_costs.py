"""What the steps of a chain of real modules take: bytes and seconds, measured as they run."""

from __future__ import annotations

import contextlib
import time as clock
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from ..chain import Chain
from ..errors import CaptureError
from ..schedule import Schedule
from .baselines import as_it_was
from .chain_run import ChainRun
from .execute import synchronize
from .interpreter import RandomState
from .measure import Levels, meter_for, storage_bytes
from .stages import Buffers, Call, RecurrentStages, SequentialStages, Stages, State, tensors_in

#: Runs whose median is a step's time.
REPEATS = 5


def measured_costs(stages: Stages, call: Call, steps: int, into: Stages | None = None) -> dict[str, Any]:
    """Costs per step: every hidden step once, then a plain forward and backward pass, measured as they run."""
    with chain_as_it_was(stages.module, []):
        hidden = _dry_run(stages, call, steps)
        if into is not None:
            into.draws, into.moves_buffers = stages.draws, stages.moves_buffers
        shape = Chain(steps, keeps_input=True)
        order = [shape.hidden_op(t) for t in range(1, steps + 1)]
        order += [shape.internal_op(t) for t in range(1, steps + 1)]
        schedule = Schedule.from_ops(shape.joint, [*order, *range(2 * steps, 3 * steps + 1)])
        warm = ChainRun(shape, stages, schedule, call)  # a first call may allocate caches that stay
        warm.advance()
        loss = warm.loss().nbytes
        levels = chain_levels(shape, stages, schedule, call)
        seconds = np.median([_seconds(shape, stages, schedule, call) for _ in range(REPEATS)], axis=0)
    runs = np.flatnonzero(schedule.actions >= 0)
    moving = Buffers(stages.module).bytes if stages.moves_buffers else 0
    before = np.concatenate([[moving], levels.after])[runs]
    extra, made = levels.during[runs] - before, levels.after[runs] - before
    first, last = slice(0, steps), slice(-1, -steps - 1, -1)
    second = slice(steps, 2 * steps)
    gradient = hidden.copy()
    gradient[-1] = 0  # the loss is inside the last step
    parameters = [p for p in stages.module.parameters() if p.requires_grad]
    recurrent = isinstance(stages, RecurrentStages)
    if recurrent:
        parameter_gradient: Any = np.array([sum(p.numel() * p.element_size() for p in parameters)])
    else:
        assert isinstance(stages, SequentialStages)
        parameter_gradient = _own_parameters(stages)
    # What the chain has no values for. The loss's gradient is there when the last step's backward begins, and stays
    # to the end: counted with the gradients that this backward leaves. So is the total loss where only the last step
    # has one: its backward follows at once. Where earlier steps have one, it is beside all they do, as is the copy
    # of the buffers that a run begins with.
    extra[2 * steps + 1] += loss
    parameter_gradient[-1] += loss
    beside = moving
    if any(stages.has_loss(t) for t in range(1, steps)):
        beside += loss
    else:
        extra[second][-1] = max(extra[second][-1], made[second][-1] + loss)
        extra[2 * steps + 1] += loss
        parameter_gradient[-1] += loss
    if stages.moves_buffers:  # a step that runs again works on clones of its buffers
        modules = [
            [stages.module] if stages.shares_buffers else stages.modules_at(t) for t in range(1, steps + 1)
        ]
        extra[first] += [Buffers(*m).bytes for m in modules]
        if stages.shares_buffers:  # and a hidden state has those after its step
            hidden += moving
    extra += beside
    wanted = [x for x in call.initial if x.requires_grad]
    times = [
        _typical(seconds[runs][part]) if recurrent else seconds[runs][part] for part in (first, second, last)
    ]
    return {
        "hidden": hidden,
        "internal": np.maximum(hidden, made[second]),
        "gradient": gradient,
        "time": times[0],
        "internal_time": times[1],
        "backward_time": times[2],
        "workspace": extra[first],
        "internal_workspace": extra[second],
        "backward_workspace": extra[last],
        "parameter_gradient": int(parameter_gradient[0]) if recurrent else parameter_gradient,
        "input_gradient": sum(x.numel() * x.element_size() for x in wanted),
        "input_bytes": storage_bytes(
            [*stages.module.parameters(), *stages.module.buffers(), *tensors_of_call(call)]
        ),
    }


def _typical(seconds: np.ndarray) -> np.ndarray:
    """Equal steps take equal time: the median, the last step's loss apart."""
    typical = np.full(len(seconds), np.median(seconds))
    typical[-1] = max(seconds[-1], typical[-1])
    return typical


def _own_parameters(stages: SequentialStages) -> np.ndarray:
    """Bytes of the gradients each stage's backward makes first (a shared parameter: the last stage to use it)."""
    seen: set[int] = set()
    sizes = []
    loss = [stages.loss] if isinstance(stages.loss, nn.Module) else []
    for t in range(len(stages.groups), 0, -1):
        size = 0
        for module in [stages.groups[t - 1], *(loss if t == len(stages.groups) else [])]:
            for p in module.parameters():
                if p.requires_grad and id(p) not in seen:
                    seen.add(id(p))
                    size += p.numel() * p.element_size()
        sizes.append(size)
    return np.array(sizes[::-1])


def _dry_run(stages: Stages, call: Call, steps: int) -> np.ndarray:
    """Bytes of each hidden state; notes whether steps draw or move buffers; refuses changes in place."""
    random = RandomState(call.initial[0].device)
    state = random.save()
    buffers = Buffers(stages.module)
    old = buffers.copies()
    hidden, sizes = call.initial, []
    with torch.no_grad():
        for t in range(1, steps + 1):
            versions = [x._version for x in hidden]
            with naming(f"step {t} ({stages.describe(t)})"):
                new, _ = stages.step(t, hidden, call, False)
            if versions != [x._version for x in hidden]:
                raise CaptureError(
                    f"step {t} ({stages.describe(t)}) changes its hidden state in place, so it cannot run again from "
                    "it: let it make a new one"
                )
            if stages.has_loss(t):
                with naming(f"the loss of step {t}"):
                    stages.step(t, hidden, call, True)
            sizes.append(storage_bytes(new))
            hidden = new
    stages.draws = random.save() != state
    stages.moves_buffers = any(not torch.equal(a, b) for a, b in zip(old, buffers.copies()))
    return np.array(sizes, dtype=np.int64)


def chain_levels(chain: Chain, stages: Stages, schedule: Schedule, call: Call) -> Levels:
    """Memory during and after every action, from a run that changes nothing."""
    meter = meter_for(call.initial[0].device)
    with meter:
        run = ChainRun(chain, stages, schedule, call)
        run.advance(mark=meter.mark)
    run.abandon()
    n = len(schedule)
    during, after = meter.levels.during[:n], meter.levels.after[:n]
    return Levels(np.where(schedule.actions >= 0, during, after), after)


def _seconds(chain: Chain, stages: Stages, schedule: Schedule, call: Call) -> np.ndarray:
    """Wall-clock time of every action, from a run that changes nothing."""
    run = ChainRun(chain, stages, schedule, call, losses_ahead=False)
    ticks = [clock.perf_counter()]

    def mark() -> None:
        synchronize(run.device)
        ticks.append(clock.perf_counter())

    run.advance(mark=mark)
    run.abandon()
    return np.diff(ticks)


@contextlib.contextmanager
def naming(what: str) -> Iterator[None]:
    """Raise what fails in here as a CaptureError that says what it was."""
    try:
        yield
    except CaptureError as error:
        raise CaptureError(f"{what}: {error}") from error
    except Exception as error:
        raise CaptureError(f"{what}: {type(error).__name__}: {error}") from error


@contextlib.contextmanager
def chain_as_it_was(module: nn.Module, tensors: State) -> Iterator[None]:
    """As :func:`as_it_was`, for buffers that steps bind anew as well."""
    with as_it_was(module, tensors), Buffers(module).kept():
        yield


def tensors_of_call(call: Call) -> list[torch.Tensor]:
    return [*call.initial, *tensors_in(call.inputs), *tensors_in(call.targets)]
