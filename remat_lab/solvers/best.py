"""kusumoto-best: minimise what is really measured, the simulated peak with liveness.

The formula that the dynamic programs bound is an upper estimate, and lower-set sequences are few of the schedules
there are. So their answers, at many budgets, for both objectives and all families that the graph allows, and Chen's
plans are only where the search begins; the plain schedule is another start. Going down in budget, each step

1. squeezes the previous step's schedule, and the nearest starts above the budget, to the budget;
2. takes the cheapest, or a start that fits already if that is cheaper, and leaves out what it need not run again;
3. exchanges runs for cheaper ones (:mod:`remat_lab.solvers.sequence_search`).

It ends where no move lowers the peak any more. The search is deterministic unless a time limit cuts it short.
"""

from __future__ import annotations

import time as clock
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import InfeasibleBudget
from ..graph import ComputationGraph
from ..memo import memo
from ..progress import listening, report
from ..registry import Request, Solution, lookup, method
from ..schedule import Schedule
from .counting import count_lower_sets
from .selection import measured
from .sequence_search import Ops, improve, ops_of, overhead_of, peak_of, relax, squeeze

#: The exact method's plans are among the starts on graphs with no more lower sets than this.
EXACT_STARTS = 30_000
_STEP = 0.05
_LEAST_STEP = 0.002
_NEAR = 1.12


@dataclass(frozen=True)
class Found:
    """One schedule on the way down.

    Attributes
    ----------
    order : int64 array: ops in the order they run
    peak : int, bytes, simulated
    overhead : float, in the graph's time unit
    start : what it was made from: a method's name
    """

    order: np.ndarray
    peak: int
    overhead: float
    start: str

    def __repr__(self) -> str:
        return f"Found(from {self.start}, {len(self.order)} runs)"


class Descent:
    """The search on one graph; it goes down only as far as it is asked to, and remembers where it was."""

    def __init__(self, graph: ComputationGraph, effort: int):
        self.graph = graph
        self.effort = effort
        self.ops: Ops = ops_of(graph)
        plain = self._found(np.arange(graph.joint.n_ops), "vanilla")
        self.starts = [plain, *self._starts()]
        self.points = [plain]
        self.step = _STEP
        self.done = False

    def _found(self, order: np.ndarray, start: str) -> Found:
        return Found(order, peak_of(self.ops, order), overhead_of(self.ops, order), start)

    def _starts(self) -> list[Found]:
        names = ["chen", "kusumoto-approx", "kusumoto-branches"]
        if count_lower_sets(self.graph).sets <= EXACT_STARTS:
            names.append("kusumoto-exact")
        found = []
        for name in names:
            points = lookup(name).points
            assert points is not None
            for solution in points(self.graph, "simulated"):
                figures = measured(solution)
                found.append(Found(solution.schedule.ops, figures.peak, figures.overhead, name))
        return found

    def down_to(self, budget: int, deadline: float | None = None) -> None:
        """Go on until the last point is within ``budget``, or no lower one is found."""
        highest, floor = self.points[0].peak, max(budget, 1)
        while not self.done and self.points[-1].peak > budget:
            if deadline is not None and clock.perf_counter() > deadline:
                return
            report(int(100 * np.log(highest / self.points[-1].peak) / np.log(max(2, highest / floor))), 100)
            target = int(self.points[-1].peak * (1 - self.step))
            found = self.at(target)
            if found is not None:
                self.points.append(found)
            elif self.step / 2 < _LEAST_STEP:
                self.done = True
            else:
                self.step /= 2

    def at(self, budget: int) -> Found | None:
        """The best schedule found for a budget, from all that is known."""
        known = [*self.starts, *self.points]
        fitting = [f for f in known if f.peak <= budget]
        above = sorted((f for f in known if f.peak > budget), key=lambda f: (f.peak, f.overhead))
        candidates = []
        if fitting:
            candidates.append(min(fitting, key=lambda f: (f.overhead, f.peak)))
        nearest = {f.start: f for f in reversed(above)}  # of each kind of start the nearest above
        for found in [*nearest.values(), *self.points[-1:]]:
            if budget < found.peak <= _NEAR * budget or found is self.points[-1]:
                order = squeeze(self.ops, found.order, budget)
                if order is not None:
                    candidates.append(self._found(order, found.start))
        if not candidates:
            return None
        cheapest = sorted(candidates, key=lambda f: (f.overhead, f.peak))[:2]
        relaxed = [self._found(relax(self.ops, f.order, budget), f.start) for f in cheapest]
        best = min(relaxed, key=lambda f: (f.overhead, f.peak))
        tries = self.effort * int(np.clip(6_000 // len(best.order), 3, 30))
        return self._found(improve(self.ops, best.order, budget, tries), best.start)

    def solution(self, found: Found) -> Solution:
        return Solution(Schedule.from_ops(self.graph.joint, found.order), details=found)


def descent(graph: ComputationGraph, effort: int = 1) -> Descent:
    """The graph's search, begun once."""
    return memo(graph, ("descent", effort), lambda: Descent(graph, effort))


def _check(effort: int, time_limit: float | None) -> float | None:
    if isinstance(effort, bool) or not isinstance(effort, int) or effort < 0:
        raise ValueError(f"effort must be a whole number >= 0, got {effort!r}")
    if time_limit is not None and not time_limit > 0:
        raise ValueError(f"time_limit must be a number of seconds > 0, got {time_limit!r}")
    return None if time_limit is None else clock.perf_counter() + time_limit


class _Bar:
    """A tqdm bar that hears the search's reports, if wanted."""

    def __init__(self, wanted: bool):
        self.wanted = wanted

    def __enter__(self) -> _Bar:
        if self.wanted:
            from tqdm.auto import tqdm

            self.bar: Any = tqdm(total=100, desc="kusumoto-best", unit="%")
            self.listening = listening(self._show)
            self.listening.__enter__()
        return self

    def _show(self, done: int, total: int) -> None:
        if total == 0:
            return
        self.bar.n = min(100, 100 * done // total)
        self.bar.refresh()

    def __exit__(self, *error: Any) -> None:
        if self.wanted:
            self.listening.__exit__(*error)
            self.bar.close()


def _points(
    graph: ComputationGraph,
    accounting: str,
    effort: int = 1,
    time_limit: float | None = None,
    progress: bool = False,
) -> list[Solution]:
    deadline = _check(effort, time_limit)
    with _Bar(progress):
        search = descent(graph, effort)
        search.down_to(0, deadline)
    return [search.solution(f) for f in [*search.points, *search.starts]]


def _minimum(
    graph: ComputationGraph,
    accounting: str,
    effort: int = 1,
    time_limit: float | None = None,
    progress: bool = False,
) -> int:
    deadline = _check(effort, time_limit)
    with _Bar(progress):
        search = descent(graph, effort)
        search.down_to(0, deadline)
    return min(f.peak for f in [*search.points, *search.starts])


@method("kusumoto-best", view="graph", paper="after Kusumoto et al. 2019", points=_points, minimum=_minimum)
def kusumoto_best(
    graph: ComputationGraph,
    request: Request,
    effort: int = 1,
    time_limit: float | None = None,
    progress: bool = False,
) -> Solution:
    """Search on from all families' plans for the least overhead within a simulated peak, in either accounting."""
    deadline = _check(effort, time_limit)
    with _Bar(progress):
        search = descent(graph, effort)
        if request.budget is None:
            return search.solution(search.points[0])
        search.down_to(request.budget, deadline)
        known = [f for f in [*search.points, *search.starts] if f.peak <= request.budget]
        polished = search.at(request.budget)
        if polished is not None and polished.peak <= request.budget:
            known.append(polished)
    if not known:
        least = min(f.peak for f in [*search.points, *search.starts])
        raise InfeasibleBudget.of("kusumoto-best", request.budget, least)
    return search.solution(min(known, key=lambda f: (f.overhead, len(f.order), f.peak)))
