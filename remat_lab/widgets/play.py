"""play(): a player of one schedule."""

from __future__ import annotations

from typing import Any

import traitlets

from ..plan import Plan
from ..schedule import Schedule
from ..simulate import Trace
from .base import View, script, style
from .film import as_trace, film, summary
from .still import trace_picture


class Player(View):
    """The player as a widget; :func:`play` makes one.

    Attributes
    ----------
    position : int, actions done; set it to move the player
    playing : bool; set it to start or stop
    speed : float, 1 plays the whole schedule in half a minute at most
    trace : Trace, what is shown
    film : bytes, what is sent
    """

    _part = "play"
    _holds = ("trace",)
    _esm = script("play")
    _css = style("play")
    film = traitlets.Bytes().tag(sync=True)
    position = traitlets.Int(0).tag(sync=True)
    playing = traitlets.Bool(False).tag(sync=True)
    speed = traitlets.Float(1.0).tag(sync=True)

    def __init__(self, trace: Trace, **traits: Any) -> None:
        self.trace = trace
        super().__init__(film=film(trace), **traits)

    @traitlets.validate("position")
    def _inside(self, proposal: Any) -> int:
        return max(0, min(int(proposal["value"]), len(self.trace.during)))

    @traitlets.validate("speed")
    def _forward(self, proposal: Any) -> float:
        if not proposal["value"] > 0:
            raise traitlets.TraitError(f"speed must be positive, got {proposal['value']}")
        return float(proposal["value"])

    def summary(self) -> str:
        return summary(self.trace)

    def svg(self) -> str:
        return trace_picture(self.trace)


def play(trace: Trace | Plan | Schedule, *, position: int = 0, speed: float = 1.0) -> Player:
    """Play a schedule: the graph lights up op by op over the memory it holds.

    Parameters
    ----------
    trace : Trace, Plan or Schedule
    position : actions done at the start
    speed : 1 plays the whole schedule in half a minute at most

    Returns
    -------
    Player
        A widget. Its ``position``, ``playing`` and ``speed`` can be read and set.

    Notes
    -----
    Keys: space plays, arrows step (with Shift ten), P the peak, R the next recomputation, + - 0 zoom, [ ] speed,
    Home and End. The trace is sent once; playing needs no kernel.
    """
    return Player(as_trace(trace), position=position, speed=speed)
