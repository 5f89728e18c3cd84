"""stepper(): one step at a time, and a question before each answer."""

from __future__ import annotations

from typing import Any

import traitlets

from ..plan import Plan
from ..schedule import Schedule
from ..simulate import Stepper as Walk
from ..simulate import Trace, explain_action
from .base import View, script, style
from .film import as_trace, film, summary
from .still import trace_picture


class Teacher(View):
    """The stepper as a widget; :func:`stepper` makes one.

    Attributes
    ----------
    position : int, actions done
    answered : bool, whether the answer to the present question is shown
    chosen : list of int, the values ticked at the present question
    right, asked : int, values judged as the schedule does, and values asked about, so far
    trace : Trace
    """

    _part = "stepper"
    _holds = ("trace",)
    _esm = script("stepper")
    _css = style("stepper")
    film = traitlets.Bytes().tag(sync=True)
    position = traitlets.Int(0).tag(sync=True)
    answered = traitlets.Bool(False).tag(sync=True)
    chosen = traitlets.List(traitlets.Int()).tag(sync=True)
    right = traitlets.Int(0).tag(sync=True)
    asked = traitlets.Int(0).tag(sync=True)

    def __init__(self, trace: Trace, **traits: Any) -> None:
        self.trace = trace
        super().__init__(film=film(trace), **traits)

    @traitlets.validate("position")
    def _inside(self, proposal: Any) -> int:
        return max(0, min(int(proposal["value"]), len(self.trace.during)))

    def explain(self) -> str:
        """The sentence on show, the one of ``remat_lab.Stepper``."""
        return explain_action(Walk(self.trace.schedule), self.position - 1)

    def summary(self) -> str:
        return summary(self.trace)

    def svg(self) -> str:
        return trace_picture(self.trace)


def stepper(plan: Trace | Plan | Schedule, *, position: int = 0) -> Teacher:
    """Step through a schedule run by run, asking "what may be freed now?" before showing the answer.

    Parameters
    ----------
    plan : Plan, Trace or Schedule
    position : actions done at the start

    Notes
    -----
    The answer is what this schedule frees before it runs the next op, with the reason for each value; what it
    keeps is shown with the step that reads it next. Keys: Enter or → goes on (shows the answer, then the next
    run), ← goes back.
    """
    return Teacher(as_trace(plan), position=position)
