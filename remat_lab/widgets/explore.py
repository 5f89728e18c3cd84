"""explore(): a budget slider over a method's frontier.

The whole frontier travels once: its points, each point's memory in 300 slots of its own time, and which ops it
computes again. A slider move is then a lookup and a redraw in the browser; the kernel hears of it afterwards.
Frontiers are made in a thread, so cells can run meanwhile; a view shows how far it is and can cancel it.
"""

from __future__ import annotations

import threading
import time as clock
from typing import Any

import numpy as np
import traitlets

from ..errors import RematError
from ..plan import Frontier, Plan, frontier, vanilla_peak
from ..progress import listening
from ..registry import lookup, methods
from ..schedule import Schedule
from ..simulate import TRACE_CATEGORIES, Trace, simulate
from ..units import format_bytes, parse_budget
from .base import View, script, style
from .film import film, graph_parts, pack, strip, use_of_ops
from .still import trace_picture

SLOTS = 300
#: Points whose timelines are sent with the frontier; others are sent when the slider rests on them.
STRIPS = 64


class Cancelled(Exception):
    """Raised inside a solve that nobody waits for any more."""


class Explorer(View):
    """The explorer as a widget; :func:`explore` makes one.

    Attributes
    ----------
    method, objective : str; setting one makes another frontier, in a thread
    budget : int, bytes; set it to move the slider
    status : dict, what the thread is doing: ``state`` is "solving", "ready", "cancelled" or "failed"
    frontier : Frontier or None
    plan : Plan or None, the one shown
    """

    _part = "explore"
    _holds = ("problem", "frontier", "_vanilla")
    _esm = script("explore")
    _css = style("explore")
    methods: Any = traitlets.List().tag(sync=True)
    method = traitlets.Unicode("").tag(sync=True)
    objective = traitlets.Unicode("").tag(sync=True)
    budget = traitlets.Int(0).tag(sync=True)
    status = traitlets.Dict().tag(sync=True)
    points = traitlets.Bytes().tag(sync=True)
    strip = traitlets.Bytes().tag(sync=True)
    film = traitlets.Bytes().tag(sync=True)
    #: What the browser asks: {"rev": n, "want": "frontier" | "strip" | "film" | "cancel", ...}.
    ask = traitlets.Dict().tag(sync=True)

    def __init__(self, problem: Any, method: str, objective: str, budget: int | str | None) -> None:
        self.problem = problem
        self.frontier: Frontier | None = None
        self._wanted_budget = budget
        self._job: object | None = None
        self._thread: threading.Thread | None = None
        self._rev = 0
        self._lock = threading.RLock()
        self._vanilla = simulate(Schedule.vanilla(problem.joint))
        super().__init__(methods=_choices(problem), method=method, objective=objective or _objective(method))
        self.observe(self._answer, "ask")
        self.observe(self._changed, ["method", "objective"])
        self.solve()

    # -- what a notebook uses ----------------------------------------------------------------------------------
    @property
    def plan(self) -> Plan | None:
        """The plan on show: the frontier's answer to the budget, None while there is none."""
        found = self.frontier
        return None if found is None or self.budget < found.minimum else found.at(self.budget)

    def solve(self) -> None:
        """Make the frontier of the present method and objective, in a thread."""
        job = self._job = object()
        self._rev += 1
        self.status = {"state": "solving", "rev": self._rev, "method": self.method, "done": 0, "total": 0}
        self._thread = threading.Thread(
            target=self._work, args=(job, self._rev, self.method, self.objective), daemon=True
        )
        self._thread.start()

    def cancel(self) -> None:
        """Give up the frontier being made; the last one stays on show."""
        with self._lock:
            if self.status.get("state") != "solving":
                return
            self._job = None
            self._rev += 1
            self.status = {"state": "cancelled", "rev": self._rev, "method": self.method}

    def wait(self, seconds: float | None = None) -> bool:
        """Wait for the thread, in scripts and tests; True if a frontier is there."""
        if self._thread is not None:
            self._thread.join(seconds)
        return self.status.get("state") == "ready"

    # -- the thread --------------------------------------------------------------------------------------------
    def _work(self, job: object, rev: int, method: str, objective: str) -> None:
        told = clock.perf_counter()

        def heard(done: int, total: int) -> None:
            nonlocal told
            if self._job is not job:
                raise Cancelled
            if total and clock.perf_counter() - told > 0.2:
                told = clock.perf_counter()
                self._say(job, state="solving", rev=rev, method=method, done=done, total=total)

        try:
            with listening(heard):
                options = {"objective": objective} if objective else {}
                found = frontier(self.problem, method, **options)
                heard(0, 0)
                packet = self._packet(found, rev, heard)
        except Cancelled:
            return
        except RematError as error:
            self._say(job, state="failed", rev=rev, method=method, text=str(error))
            return
        except Exception as error:  # whatever a method of the user's own raises is shown, not lost in a log
            self._say(job, state="failed", rev=rev, method=method, text=f"{type(error).__name__}: {error}")
            return
        with self._lock:
            if self._job is not job:
                return
            first = self.frontier is None
            self.frontier = found
            with self.hold_sync():
                self.points = packet
                self.status = {"state": "ready", "rev": rev, "method": method, "seconds": found.solve_seconds}
                if first and not self.budget:
                    self.budget = self._first_budget(found)

    def _say(self, job: object, **status: Any) -> None:
        with self._lock:
            if self._job is job:
                self.status = status

    def _first_budget(self, found: Frontier) -> int:
        wanted = self._wanted_budget
        if wanted is None:  # half way between the least that can be done and doing nothing
            return int(found.budget[np.searchsorted(found.budget, (found.minimum + found.budget[-1]) / 2)])
        if wanted == "min":
            return found.minimum
        return parse_budget(wanted, vanilla_peak(self.problem)) or int(found.budget[-1])

    # -- what is sent --------------------------------------------------------------------------------------------
    def _packet(self, found: Frontier, rev: int, heard: Any) -> bytes:
        header, arrays = graph_parts(self.problem.joint)
        count = len(found)
        chosen = np.unique(np.linspace(0, count - 1, min(count, STRIPS)).round().astype(np.int64))
        strips, again = [], []
        for i in chosen.tolist():
            heard(i, count)
            trace = simulate(found.solutions[i].schedule)
            strips.append(strip(trace, SLOTS))
            again.append(use_of_ops(trace.schedule))
        header.update(
            rev=rev,
            title=self.problem.joint.name or "this graph",
            method=found.method,
            categories=list(TRACE_CATEGORIES),
            slots=SLOTS,
            plain_time=float(self._vanilla.time[-1]) if len(self._vanilla.time) else 0.0,
            vanilla_peak=self._vanilla.peak,
            status=[s.status for s in found.solutions],
            recomputed=[s.schedule.recomputed_ops for s in found.solutions],
            solve_seconds=found.solve_seconds,
        )
        arrays.update(
            budget=("f8", found.budget),
            ratio=("f8", found.overhead_ratio),
            chosen=("i4", chosen),
            strips=("f4", np.array(strips)),
            again=("u1", np.array(again)),
            vanilla=("f4", strip(self._vanilla, SLOTS).sum(axis=1)),
        )
        return pack(header, arrays)

    def _one_strip(self, found: Frontier, i: int) -> bytes:
        trace = simulate(found.solutions[i].schedule)
        return pack(
            {"rev": self._rev, "point": i},
            {
                "strip": ("f4", strip(trace, SLOTS)),
                "again": ("u1", use_of_ops(trace.schedule)),
            },
        )

    # -- what is asked -------------------------------------------------------------------------------------------
    def _changed(self, change: Any) -> None:
        if change["name"] == "method":
            self.methods = _choices(self.problem)  # one may have been registered since
            allowed: list[str] = next((m["objectives"] for m in self.methods if m["name"] == self.method), [])
            wanted = self.objective if self.objective in allowed else (allowed[0] if allowed else "")
            if wanted != self.objective:
                self.objective = wanted  # comes back here, and solves
                return
        self.solve()

    def _answer(self, change: Any) -> None:
        ask = change["new"]
        found = self.frontier
        if ask.get("want") == "cancel":
            self.cancel()
        elif ask.get("want") == "solve":
            self.solve()
        elif ask.get("want") == "film" and self.plan is not None:
            trace = self.trace()
            self.film = b""  # a value that stays the same would not be sent, and the browser would wait
            self.film = film(
                trace, f"{trace.joint.name or 'plan'} · {self.method} · {format_bytes(self.budget)}"
            )
        elif ask.get("want") == "strip" and found is not None and 0 <= int(ask["point"]) < len(found):
            self.strip = b""
            self.strip = self._one_strip(found, int(ask["point"]))

    @traitlets.validate("method")
    def _known(self, proposal: Any) -> str:
        return lookup(proposal["value"]).name

    def trace(self) -> Trace:
        """The trace of the plan on show, or of the plain schedule where there is none."""
        plan = self.plan
        return self._vanilla if plan is None else simulate(plan)

    def summary(self) -> str:
        plan, found = self.plan, self.frontier
        name = self.problem.joint.name or "this graph"
        if found is None:
            return f"{name}: {self.method} is being solved."
        text = (
            f"{name}: {self.method} needs {format_bytes(found.minimum)} to {format_bytes(found.budget[-1])}, "
            f"vanilla {format_bytes(self._vanilla.peak)}"
        )
        if plan is None:
            return f"{text}. Nothing fits {format_bytes(self.budget)}."
        within = f"Within {format_bytes(self.budget)}: peak {format_bytes(plan.peak)}"
        return f"{text}. {within}, overhead {plan.overhead_ratio:.1%}."

    def svg(self) -> str:
        return trace_picture(self.trace())

    def open(self) -> None:
        with self._lock:  # what the thread says is in the state that is sent, or sent after it
            super().open()

    def _leave(self) -> None:
        shown = self.comm is not None
        super()._leave()
        if shown:  # nobody waits for what is being solved
            self.cancel()

    def close(self) -> None:
        self._job = None
        super().close()


def explore(
    problem: Any,
    method: str = "kusumoto-approx",
    *,
    objective: str = "",
    budget: int | str | None = None,
) -> Explorer:
    """Move a budget and see what it costs: memory, overhead, and what is kept and computed again.

    Parameters
    ----------
    problem : ComputationGraph, JointGraph, Chain or CapturedModel
    method : the method to begin with; a menu offers the others that can plan this problem
    objective : for methods that have one, "time" or "memory"
    budget : bytes, "2.5 GB", "60%" or "min", where the slider begins

    Raises
    ------
    UnknownMethod, TypeError
        If there is no such method, or it cannot plan this problem.

    Notes
    -----
    Keys: ← and → go from breakpoint to breakpoint, Home and End to the least and the most budget, Enter opens
    the player.
    """
    lookup(method).look_at(problem)
    return Explorer(problem, method, objective, budget)


def _choices(problem: Any) -> list[dict[str, Any]]:
    return [
        {
            "name": m.name,
            "objectives": ["time", "memory"] if "objective" in m.options else [],
            "summary": m.summary,
        }
        for m in methods(problem)
    ]


def _objective(method: str) -> str:
    return str(lookup(method).options.get("objective", ""))
