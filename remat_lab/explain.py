"""A problem before any plan, why a plan helps or does not, and the budget a GPU leaves. Figures, and sentences."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .errors import InfeasibleBudget
from .joint import CATEGORIES, JointGraph, joint_of
from .peak import PeakExplanation, names_of, sum_of
from .schedule import Schedule
from .simulate import Trace, simulate
from .units import format_bytes, read_bytes

#: Optimizer state and the transient of one step, in units of the trainable parameters' bytes.
OPTIMIZERS = {
    "sgd": (0, 0),
    "momentum": (1, 0),
    "adam": (2, 1),
    "adamw": (2, 1),
    "adam-fused": (2, 0),
    "adamw-fused": (2, 0),
}


def explain_peak(trace: Trace) -> PeakExplanation:
    """Which op and which values make a trace's peak, by category and by module.

    Raises
    ------
    ValueError
        For an empty schedule.
    """
    return trace.explain_peak()


@dataclass(frozen=True)
class Floor:
    """A bound no schedule can get under: ``op`` alone needs ``bytes`` for what it reads, writes and works with.

    ``op`` is "" where the outputs together (gradients, the loss) are more than any op needs.
    """

    bytes: int
    op: str
    module: str

    def __str__(self) -> str:
        if not self.op:
            return f"{format_bytes(self.bytes)}: the gradients and other outputs are that much by the end"
        where = f" in {self.module}" if self.module else ""
        return f"{format_bytes(self.bytes)}: {self.op}{where} cannot run with less"


def floor(problem: Any) -> Floor:
    """The op that binds every budget: the one whose own values and workspace are largest.

    When the last op has run, the outputs are all there; where they are more than any op needs, they bind.
    """
    joint = joint_of(problem)
    size = np.where(joint.resident, 0, joint.value_bytes)
    reads = np.zeros(joint.n_ops, dtype=np.int64)
    writes = np.zeros(joint.n_ops, dtype=np.int64)
    np.add.at(reads, joint.reads.owners(), size[joint.reads.index])
    np.add.at(writes, joint.writes.owners(), size[joint.writes.index])
    need = reads + np.maximum(writes, joint.op_workspace)
    op = int(need.argmax())
    outputs = int(size[joint.outputs].sum())
    if outputs > need[op]:
        return Floor(outputs, "", "")
    return Floor(int(need[op]), joint.op_names[op], joint.op_modules[op])


@dataclass(frozen=True)
class Explanation:
    """A problem before any plan: what is always there, where the plain peak is, and what bounds it from below."""

    name: str
    baseline: dict[str, int]
    peak: PeakExplanation
    floor: Floor
    strategy: str = ""

    def __str__(self) -> str:
        fixed = ", ".join(f"{name} {format_bytes(size)}" for name, size in self.baseline.items())
        text = f"{self.name or 'This step'}, without recomputation.\nAlways there: {fixed or 'nothing'}.\n{self.peak}\n"
        text += f"No plan can use less than {self.floor}."
        return text + (f"\n{self.strategy}" if self.strategy else "")

    __repr__ = __str__


def explain(problem: Any, plan: Any = None) -> Explanation:
    """The plain step's memory in words and figures; with a plan, also why it helps or does not.

    Parameters
    ----------
    problem : ComputationGraph, JointGraph, Chain or CapturedModel
    plan : Plan or Schedule, optional
    """
    joint = joint_of(problem)
    baseline: dict[str, int] = {}
    for value in np.flatnonzero(joint.resident).tolist():
        category = CATEGORIES[joint.value_category[value]]
        baseline[category] = baseline.get(category, 0) + int(joint.value_bytes[value])
    plain = simulate(Schedule.vanilla(joint))
    return Explanation(
        name=joint.name,
        baseline=baseline,
        peak=explain_peak(plain),
        floor=floor(joint),
        strategy="" if plan is None else why(plain, simulate(plan)),
    )


def why(plain: Trace, planned: Trace) -> str:
    """In a sentence or three, why a plan's peak is, or is not, below the plain one."""
    again = planned.schedule.recomputed_ops
    saved = plain.peak - planned.peak
    now = explain_peak(planned)
    if saved > 0:
        return (
            f"The plan saves {format_bytes(saved)} by running {again} ops again ({planned.overhead_ratio:.1%} more "
            f"time); its peak is now at {now.op}, of which {sum_of(now.waiting)} waits for later ops."
        )
    if not again:
        return "The plan recomputes nothing, so its peak is the plain one."
    recomputed = _values_recomputed(planned.schedule)
    text = f"The plan runs {again} ops again and saves nothing"
    if saved < 0:
        text += f"; its peak is even {format_bytes(-saved)} higher"
    at_plain_peak = {value.index for value in plain.at_peak()}
    if not recomputed & at_plain_peak:
        return (
            f"{text}: none of the values it recomputes is held at the plain peak ({explain_peak(plain).op}), so "
            "freeing them early changes nothing there."
        )
    busy = recomputed & {value.index for value in now.needed}
    if busy:
        return (
            f"{text}: its peak is at {now.op}, which needs {_named(planned.joint, busy)}, values that were dropped "
            "and computed again just for it; the region that is recomputed at once is too large."
        )
    return (
        f"{text}: its peak is at {now.op}, where {names_of(now.waiting or now.gradients)} are held whatever is "
        "recomputed."
    )


def activation_budget(
    problem: Any, gpu: int | float | str = "24 GB", optimizer: str = "adam", reserve: int | float | str = 0
) -> int:
    """The budget for activations and gradients that a GPU of this size leaves, bytes.

    Parameters
    ----------
    problem : CapturedModel (or any problem; parameters and inputs are its baseline)
    gpu : the device's memory: bytes, "24 GB" (10^9) or "24 GiB" (2^30)
    optimizer : one of :data:`OPTIMIZERS`; its state is one (momentum) or two (Adam) times the trainable parameters
    reserve : what else must stay free: the CUDA context, the allocator's rounding, other programs

    Raises
    ------
    InfeasibleBudget
        If parameters, optimizer state and gradients alone do not fit, or the optimizer's own step does not.
    ValueError
        For an unknown optimizer or an unreadable size.

    >>> # plan = rl.solve(cap, rl.activation_budget(cap, gpu="24 GB", optimizer="adam"))
    """
    if not isinstance(optimizer, str) or optimizer not in OPTIMIZERS:
        raise ValueError(f"optimizer must be one of {', '.join(OPTIMIZERS)}; got {optimizer!r}")
    joint = joint_of(problem)
    state, transient = OPTIMIZERS[optimizer]
    is_gradient = joint.value_category == CATEGORIES.index("parameter gradient")
    trainable = int(joint.value_bytes[is_gradient].sum())
    kept_free = read_bytes(reserve, "the size 'reserve'")
    whole = read_bytes(gpu, "the size 'gpu'") - kept_free
    left = whole - joint.baseline - state * trainable
    # After the backward pass the activations are gone, and the optimizer works beside the gradients.
    least = trainable * (1 + transient)
    if left < least:
        raise InfeasibleBudget(
            f"{format_bytes(joint.baseline)} of parameters, buffers and inputs, {format_bytes(state * trainable)} of "
            f"{optimizer} state and {format_bytes(least)} for gradients and the optimizer's step do not fit "
            f"{format_bytes(whole)}, before any activation",
            minimum=joint.baseline + state * trainable + least + kept_free,
        )
    return left


def _values_recomputed(schedule: Schedule) -> set[int]:
    again = np.flatnonzero(schedule.run_counts > 1)
    return {int(v) for op in again.tolist() for v in schedule.joint.writes.row(op)}


def _named(joint: JointGraph, values: set[int], most: int = 4) -> str:
    order = sorted(values, key=lambda v: -int(joint.value_bytes[v]))
    shown = ", ".join(f"{joint.value_names[v]} ({format_bytes(joint.value_bytes[v])})" for v in order[:most])
    return shown if len(order) <= most else f"{shown} and {len(order) - most} more"
