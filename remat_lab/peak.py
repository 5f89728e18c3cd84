"""What is held at a peak, and what would have to go for it to fall. Figures, and sentences."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from .joint import CATEGORIES
from .schedule import Schedule
from .units import format_bytes

#: Columns of ``Trace.by_category``: what a schedule can change, and the running op's own extra bytes.
TRACE_CATEGORIES = (*CATEGORIES[:5], "workspace")


class LiveValue(NamedTuple):
    """A value held at some moment."""

    name: str
    bytes: int
    category: str
    index: int  # type: ignore[assignment]


@dataclass(frozen=True)
class PeakExplanation:
    """The moment of the most memory.

    Attributes
    ----------
    bytes : int
    step : int, the action
    op, module : the op that runs then, and its module
    by_category : bytes by category, workspace included
    by_module : bytes of held values by the module whose op made them, largest first
    needed : values the op itself reads or writes; no schedule can run it without them
    waiting : forward values held only for later ops: dropping and recomputing some of these lowers this moment
    gradients : gradients and outputs that are there already; they stay whatever is recomputed
    workspace : bytes inside the op beyond its outputs
    """

    bytes: int
    step: int
    op: str
    module: str
    by_category: dict[str, int]
    by_module: dict[str, int]
    needed: tuple[LiveValue, ...]
    waiting: tuple[LiveValue, ...]
    gradients: tuple[LiveValue, ...]
    workspace: int

    @classmethod
    def of(
        cls, schedule: Schedule, step: int, peak: int, held: list[LiveValue], split: np.ndarray
    ) -> PeakExplanation:
        """The moment of action ``step``, at which ``peak`` bytes are held, ``split`` by category."""
        joint, action = schedule.joint, schedule[step]
        if action.kind == "run":
            op: int | None = action.index
            own = {*joint.reads.row(action.index).tolist(), *joint.writes.row(action.index).tolist()}
        else:
            op, own = None, set()
        needed = tuple(v for v in held if v.index in own)
        others = [v for v in held if v.index not in own]
        waiting = tuple(v for v in others if v.category == "activation")
        gradients = tuple(v for v in others if v.category != "activation")
        by_module: dict[str, int] = defaultdict(int)
        for value in held:
            by_module[joint.op_modules[joint.writers.row(value.index)[0]]] += value.bytes
        return cls(
            bytes=peak,
            step=step,
            op=action.name,
            module=joint.op_modules[op] if op is not None else "",
            by_category={name: int(size) for name, size in zip(TRACE_CATEGORIES, split) if size},
            by_module=dict(sorted(by_module.items(), key=lambda item: -item[1])),
            needed=needed,
            waiting=waiting,
            gradients=gradients,
            workspace=int(split[-1]),
        )

    def __str__(self) -> str:
        where = f" in {self.module}" if self.module else ""
        lines = [
            f"The peak is {format_bytes(self.bytes)}, at step {self.step}, while {self.op}{where} runs.",
            f"The op itself needs {sum_of(self.needed)} in values and {format_bytes(self.workspace)} of workspace; "
            f"{sum_of(self.gradients)} of gradients and outputs are there already; {sum_of(self.waiting)} of forward "
            "values wait for later ops.",
        ]
        if self.waiting:
            lines.append(f"To lower it, recompute some of what waits: {names_of(self.waiting)}.")
        else:
            lines.append(
                "Nothing waits: no recomputation can lower this moment. A smaller batch or another order of the "
                "gradients could."
            )
        if any(self.by_module):  # graphs that came from no model have no modules
            modules = ", ".join(
                f"{name or '(top)'} {format_bytes(b)}" for name, b in list(self.by_module.items())[:4]
            )
            lines.append(f"By module: {modules}.")
        return "\n".join(lines)

    __repr__ = __str__


def sum_of(values: tuple[LiveValue, ...]) -> str:
    return format_bytes(sum(value.bytes for value in values))


def names_of(values: tuple[LiveValue, ...], most: int = 4) -> str:
    shown = ", ".join(f"{value.name} ({format_bytes(value.bytes)})" for value in values[:most])
    return shown if len(values) <= most else f"{shown} and {len(values) - most} more"
