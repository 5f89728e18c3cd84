"""torch's own recomputation choice, as a schedule on the captured joint graph.

``torch.compile`` splits the joint graph into a forward and a backward half by a minimum cut (and, below a budget of
1.0, a knapsack over what to save). The two halves, one after the other, are a schedule: what the backward half
computes again is what it recomputes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ..schedule import Schedule
from . import _torch_private as private

if TYPE_CHECKING:
    from .capture import CapturedModel


def partition(cap: CapturedModel, fraction: float = 1.0) -> Schedule:
    """The schedule of torch's partitioner.

    Parameters
    ----------
    cap : CapturedModel
    fraction : float in [0, 1], torch's ``activation_memory_budget``: 1.0 recomputes only what fusion makes
        cheap, 0.0 saves only what it must. A share of what it estimates is saved, not of the peak.

    Raises
    ------
    ValueError
        For a fraction outside [0, 1].
    """
    if not 0 <= fraction <= 1:
        raise ValueError(f"activation_memory_budget must lie between 0 and 1, got {fraction!r}")
    outputs = sum(output.kind != "gradient" for output in cap.storages.outputs)
    forward, backward = private.min_cut_partition(cap.graph_module, outputs, fraction)
    joint = cap.joint
    op_of = {node.name: op for op, node in enumerate(cap.storages.nodes)}
    first = {op_of[name] for name in forward if name in op_of}
    # The partitioner drops dead ops; one that draws random numbers must run all the same, as it does in eager.
    first |= {op for op, draws in enumerate(cap.program.random) if draws and not joint.op_backward[op]}
    second = [op_of[name] for name in backward if name in op_of]
    return Schedule.from_ops(joint, _closed(cap, [*sorted(first), *second]))


def _closed(cap: CapturedModel, order: list[int]) -> np.ndarray:
    """The order with whatever an op lacks computed before it (an op that was merged with an equal one)."""
    joint = cap.joint
    writer = {int(v): op for op in range(joint.n_ops) for v in joint.writes.row(op)}
    done: set[int] = set()
    ops: list[int] = []

    def run(op: int) -> None:
        for value in joint.reads.row(op).tolist():
            if value in writer and value not in done:
                run(writer[value])
        if joint.runs_once[op] and op in ops:
            return  # its values stay; torch knows nothing of that
        ops.append(op)
        done.update(joint.writes.row(op).tolist())

    for op in order:
        run(op)
    for value in joint.outputs.tolist():
        if value in writer and value not in done:
            run(writer[value])
    return np.array(ops, dtype=np.int64)
