"""execute(): run a schedule on the real model and measure it."""

from __future__ import annotations

import time as clock
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..chain import Chain
from ..errors import ExecutionError
from ..plan import Plan
from ..schedule import Schedule
from ..simulate import simulate
from .interpreter import Interpreter
from .measure import Levels, Measurement, meter_for, process_peak, storage_bytes
from .signature import Signature

if TYPE_CHECKING:
    from .capture import CapturedModel


def execute(
    cap: CapturedModel | Chain,
    plan: Plan | Schedule | None = None,
    *,
    measure: bool = True,
    verify: bool = False,
    inputs: Any = None,
    targets: Any = None,
) -> Measurement:
    """Run one training step as planned: sets ``.grad`` (adding to what is there) and updates buffers, once.

    Hooks on parameters and modules do not run here; those on parameters do with :func:`apply`.

    Numbers are eager's bit for bit, with one exception: an op that eager runs in place on a *slice* of a tensor
    (``gates[:, :n].sigmoid_()``, as a GRU does on the CPU) runs here on a tensor of its own, and some CPU kernels
    (sigmoid, say) round the ends of a slice's rows otherwise than a whole tensor. They agree where rows fill
    whole vectors (multiples of 32 float32 with AVX-512); elsewhere the last bit may differ. Plans agree among
    each other in any case.

    Parameters
    ----------
    cap : CapturedModel, or a Chain measured on a model (``verify`` is for captured models only)
    plan : Plan, Schedule, or None for the plain schedule
    measure : measure memory as well, in a run of its own before the one that is timed and counts. That run
        changes nothing: random state is put back, buffers and gradients are left alone.
    verify : checksum every value that is computed again, and name the op whose values differ
    inputs, targets : as in :func:`capture`, of the same shapes; default: those of the capture

    Returns
    -------
    Measurement

    Raises
    ------
    ExecutionError
        If an op fails: names the op and the step; the model is as it was before.
    InvalidSchedule
        If the schedule cannot run.
    ValueError
        If plan or inputs do not belong to the capture.
    """
    if isinstance(cap, Chain):
        from .chains import execute_chain

        return execute_chain(cap, plan, measure=measure, inputs=inputs, targets=targets)
    schedule = schedule_for(cap, plan)
    tensors = resident_tensors(cap, call_tensors(cap, inputs, targets))
    empty = Levels(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
    levels = measured_levels(cap, schedule, tensors) if measure else empty
    interpreter = Interpreter(cap, schedule, tensors, verify=verify)
    started = clock.perf_counter()
    interpreter.advance()
    synchronize(cap.device)
    seconds = clock.perf_counter() - started
    loss = commit(cap, interpreter)
    method, budget = getattr(plan, "method", ""), getattr(plan, "budget", None)
    return Measurement(
        bytes=levels.after,
        during=levels.during,
        loss=loss,
        seconds=seconds,
        baseline=storage_bytes(list(tensors.values())),
        recomputed_ops=schedule.recomputed_ops,
        process_bytes=process_peak(),
        schedule=schedule,
        method=method,
        budget=budget,
        note="" if schedule.recomputed_ops or method in ("", "vanilla") else "the plan recomputes nothing",
    )


def require_captured(cap: Any) -> None:
    """Raise TypeError unless this is what ``capture`` returns."""
    from .capture import CapturedModel

    if not isinstance(cap, CapturedModel):
        raise TypeError(
            f"the first argument must be a captured model, got {type(cap).__name__}: "
            "captured = rl.capture(model, inputs), then rl.execute(captured, plan)"
        )


def schedule_of(plan: Plan | Schedule) -> Schedule:
    """The schedule of a plan, or the schedule itself.

    Raises
    ------
    TypeError
        If it is neither.
    """
    schedule = plan if isinstance(plan, Schedule) else getattr(plan, "schedule", None)
    if not isinstance(schedule, Schedule):
        raise TypeError(f"plan must be a Plan or a Schedule, got {type(plan).__name__}")
    return schedule


def schedule_for(cap: CapturedModel, plan: Plan | Schedule | None) -> Schedule:
    """The schedule of a plan, checked against the capture's ops and values.

    Raises
    ------
    ValueError
        If it was made for another graph.
    InvalidSchedule
        If it cannot run.
    """
    require_captured(cap)
    if plan is None:
        return Schedule.vanilla(cap.joint)
    schedule = schedule_of(plan)
    theirs, ours = schedule.joint, cap.joint
    if theirs is not ours:
        same = theirs.op_names == ours.op_names and all(
            np.array_equal(a, b) for a, b in zip((*theirs.reads, *theirs.writes), (*ours.reads, *ours.writes))
        )
        if not same:
            raise ValueError(
                f"the plan is for {theirs!r}, the captured model is {ours!r}: plan cap.graph, cap.layers or cap"
            )
        schedule = Schedule(ours, schedule.actions)  # the same ops, perhaps under other costs
    simulate(schedule)
    return schedule


def resident_tensors(cap: CapturedModel, tensors: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Target -> the real tensor: parameters, buffers and inputs.

    Raises
    ------
    ExecutionError
        If the model's tensors hold no data (meta or fake).
    ValueError
        If the model is not the one that was captured any more: a module is another, or a tensor of another kind.
    """
    now = cap.as_captured.now(cap.loss_module)
    if now.changed:
        raise ValueError(f"{now.changed}: capture the model again")
    found = dict(now.tensors)
    found.update({f"args[{i}]": tensor for i, tensor in enumerate(tensors)})
    empty = without_data(found)
    if empty:
        name = cap.standin.names.get(empty, empty).removeprefix("model.")
        raise ExecutionError(
            f"{name!r} holds no data (it is on the meta device or fake): a model captured without data can "
            "be planned, and runs once it has some: model.to_empty(device=...), then load its parameters"
        )
    other = cap.as_captured.other_kind(now.tensors)
    if other:
        raise ValueError(f"{other}: capture the model again")
    return found


def call_tensors(cap: CapturedModel, inputs: Any = None, targets: Any = None) -> list[torch.Tensor]:
    """The tensors of a call, in the order of the capture's, checked against it.

    Raises
    ------
    ValueError
        If the structure, a shape, a dtype or a device differs; the message says which.
    """
    if inputs is None and targets is None:
        return list(cap.inputs)
    args, kwargs, example_targets = cap.signature.rebuild(list(cap.inputs))
    given = (kwargs or args) if inputs is None else inputs
    signature, tensors = Signature.of(given, example_targets if targets is None else targets)
    wrong = mismatch(cap, signature, tensors)
    if wrong:
        raise ValueError(f"{wrong}: capture the model again with such inputs and plan that")
    return tensors


def mismatch(cap: CapturedModel, signature: Signature, tensors: list[torch.Tensor]) -> str:
    """How a call differs from the captured one ("" if it does not)."""
    if signature != cap.signature:
        return "the call has other arguments than the captured one"
    for name, tensor, fake in zip(cap.input_names, tensors, cap.fake_inputs, strict=True):
        for what, got, want in (
            ("shape", tuple(tensor.shape), tuple(fake.shape)),
            ("dtype", tensor.dtype, fake.dtype),
            ("device", tensor.device, fake.device),
            ("requires_grad", tensor.requires_grad, fake.requires_grad),
            ("strides", tensor.stride(), fake.stride()),
        ):
            if got != want and not (what == "device" and tensor.is_meta):
                return f"{name} has {what} {got}, the plan was made for {want}"
    return ""


def without_data(tensors: dict[str, torch.Tensor]) -> str:
    """The first of the tensors that is on the meta device or fake ("" if none is)."""
    from ._torch_private import FakeTensor

    fake = FakeTensor in set(map(type, tensors.values()))
    return next(
        (name for name, t in tensors.items() if t.is_meta or (fake and isinstance(t, FakeTensor))), ""
    )


def has_data(tensor: torch.Tensor) -> bool:
    return not without_data({"tensor": tensor})


def measured_levels(cap: CapturedModel, schedule: Schedule, tensors: dict[str, torch.Tensor]) -> Levels:
    """Memory after and during every action, from a run that changes nothing."""
    warm_up(cap, tensors)
    interpreter = Interpreter(cap, schedule, tensors)
    meter = meter_for(cap.device)
    with meter:
        interpreter.advance(mark=meter.mark)
    interpreter.abandon()
    runs = schedule.actions >= 0
    n = len(schedule.actions)
    during, after = meter.levels.during[:n], meter.levels.after[:n]
    return Levels(np.where(runs, during, after), after)


def warm_up(cap: CapturedModel, tensors: dict[str, torch.Tensor]) -> None:
    """Run the plain schedule once, changing nothing: a first call of an op may allocate caches that stay."""
    if cap.warm:
        return
    interpreter = Interpreter(cap, Schedule.vanilla(cap.joint), tensors)
    interpreter.advance()
    interpreter.abandon()
    cap.warm.append(True)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


# -- what a step leaves behind -----------------------------------------------------------------------------------
def commit(cap: CapturedModel, interpreter: Interpreter) -> torch.Tensor:
    """Write buffers back, add gradients to ``.grad``, let everything else go. Returns the loss."""
    loss = None
    buffers: list[torch.Tensor] = []
    contents: list[torch.Tensor] = []
    alone = cap.storages.output_alone
    with torch.no_grad():
        for k, output in enumerate(cap.storages.outputs):
            tensor = interpreter.output(k)
            if output.kind == "loss":
                loss = tensor.clone() if cap.joint.resident[output.value] else tensor
            elif output.kind == "mutation":
                buffers.append(interpreter.tensors[output.target])
                contents.append(tensor)
            elif interpreter.tensors[output.target].is_leaf:
                accumulate(interpreter.tensors[output.target], tensor, alone[k])
        if buffers:
            torch._foreach_copy_(buffers, contents)
    interpreter.release()
    assert loss is not None
    return loss


def accumulate(owner: torch.Tensor, gradient: torch.Tensor, alone: bool) -> None:
    """What autograd does when a gradient reaches a leaf: take it, copy it, or add it to what is there.

    It is taken when nothing else holds its storage and its strides are the parameter's; a copy otherwise, so
    that no two ``.grad`` ever share memory.
    """
    if owner.grad is not None:
        owner.grad.add_(gradient)
        return
    whole = gradient.untyped_storage().nbytes() == gradient.numel() * gradient.element_size()
    if alone and whole and gradient.stride() == owner.stride():
        owner.grad = gradient
    else:
        owner.grad = torch.empty_like(owner).copy_(gradient)
