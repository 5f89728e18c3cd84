"""race(): several schedules side by side on one clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import traitlets

from ..plan import Plan
from ..schedule import Schedule
from ..simulate import Trace
from ..units import format_bytes
from .base import View, script, style
from .film import as_trace, film
from .still import traces_picture


class Race(View):
    """Several schedules on one clock, as a widget; :func:`race` makes one.

    Attributes
    ----------
    clock : float, where the clock stands, in the graphs' time unit (steps, if no op takes time)
    playing : bool
    speed : float, 1 runs the slowest schedule in twenty seconds
    traces : dict, name -> Trace
    films : list of bytes, what is sent
    """

    _part = "race"
    _holds = ("traces",)
    _esm = script("race")
    _css = style("race")
    films = traitlets.List(traitlets.Bytes()).tag(sync=True)
    clock = traitlets.Float(0.0).tag(sync=True)
    playing = traitlets.Bool(False).tag(sync=True)
    speed = traitlets.Float(1.0).tag(sync=True)

    def __init__(self, traces: dict[str, Trace], **traits: Any) -> None:
        self.traces = traces
        super().__init__(films=[film(trace, name) for name, trace in traces.items()], **traits)

    def summary(self) -> str:
        entries = "; ".join(
            f"{name} peaks at {format_bytes(trace.peak)} with {trace.overhead_ratio:.1%} overhead"
            for name, trace in self.traces.items()
        )
        return f"Race of {len(self.traces)}: {entries}."

    def svg(self) -> str:
        return traces_picture(self.traces)


def race(
    traces: Mapping[str, Trace | Plan | Schedule] | Iterable[Trace | Plan | Schedule],
    *,
    speed: float = 1.0,
) -> Race:
    """Run two or more schedules side by side on one clock, on one scale of memory.

    Parameters
    ----------
    traces : list of Trace, Plan or Schedule, or a dict from label to one of them
    speed : 1 runs the slowest schedule in twenty seconds

    Raises
    ------
    TypeError
        If something to run is neither a Trace nor a Plan nor a Schedule.
    ValueError
        With fewer than two, or if they do not count time in the same unit.
    """
    if isinstance(traces, (str, Trace, Plan, Schedule)) or not isinstance(traces, Iterable):
        raise TypeError(
            f"traces must be a list of Trace, Plan or Schedule, or a dict from label to one, got {traces!r}"
        )
    named = dict(traces) if isinstance(traces, Mapping) else _named([as_trace(t) for t in traces])
    found = {str(name): as_trace(trace) for name, trace in named.items()}
    if len(found) < 2:
        raise ValueError(f"a race needs two or more traces, got {len(found)}")
    units = {trace.joint.time_unit for trace in found.values()}
    if len(units) > 1:
        raise ValueError(f"one clock needs one time unit, got {sorted(units)}")
    return Race(found, speed=speed)


def _named(traces: list[Trace]) -> dict[str, Trace]:
    """Labels from methods; the budget, then a number, tells equal ones apart."""
    out: dict[str, Trace] = {}
    for i, trace in enumerate(traces):
        name = trace.method or f"schedule {i + 1}"
        if name in out and trace.budget is not None:
            name = f"{name}, {format_bytes(trace.budget)}"
        out[name if name not in out else f"{name} ({i + 1})"] = trace
    return out
