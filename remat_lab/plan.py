"""Plan: what a method answered. solve(), frontier(), minimum_budget(): how to ask.

Accounting, said once
---------------------
``"simulated"`` (default): the plan's simulated peak, liveness included, is at most the budget, and among
what the method can produce the least overhead is chosen. ``"paper"``: the budget bounds the method's own
formula, exactly as published, and ``peak`` and ``overhead`` report that formula.
"""

from __future__ import annotations

import json
import math
import time as clock
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from .arguments import as_path
from .arrays import frozen
from .errors import InfeasibleBudget, InvalidSchedule
from .joint import joint_of
from .memo import memo
from .progress import report
from .registry import Method, lookup
from .schedule import Schedule
from .simulate import Trace, simulate
from .solution import ACCOUNTINGS, MethodFailed, Request, Solution
from .units import format_bytes, format_time, parse_budget


@dataclass(frozen=True, eq=False)
class Plan:
    """A strategy for a problem.

    Attributes
    ----------
    method : str
    problem : what was planned
    budget : int or None, in the accounting's unit (bytes; slots for a uniform chain's paper accounting)
    schedule : Schedule
    peak : int, simulated, or the method's formula under paper accounting
    overhead : float, time spent recomputing, in the graph's time unit
    overhead_ratio : overhead over the time of one plain forward and backward
    status : "optimal" or "feasible"
    solve_seconds : float
    details : the family's own object (lower-set sequence, policy table, ...)
    accounting : "simulated" or "paper"
    bound : a proven lower bound on the overhead, or None
    """

    method: str
    problem: Any
    budget: int | None
    schedule: Schedule
    peak: int
    overhead: float
    overhead_ratio: float
    status: str
    solve_seconds: float
    details: Any = None
    accounting: str = "simulated"
    bound: float | None = None

    def __repr__(self) -> str:
        unit = self.schedule.joint.time_unit
        within = "no budget" if self.budget is None else f"budget {self._amount(self.budget)}"
        return (
            f"Plan({self.method}, {within}, peak {self._amount(self.peak)}, overhead "
            f"{format_time(self.overhead, unit)} ({self.overhead_ratio:.1%}), {self.status}, "
            f"{self.schedule.recomputed_ops} ops recomputed)"
        )

    def _amount(self, value: int) -> str:
        return f"{value} slots" if self.in_slots else format_bytes(value)

    @property
    def in_slots(self) -> bool:
        """Whether budget and peak are slots: a chain method's are, on a uniform chain, in its paper's terms."""
        return _in_slots(self.problem, self.accounting) and self.schedule.joint is self.problem.joint

    # -- storage -------------------------------------------------------------------------------------------
    def to_dict(self) -> dict[str, Any]:
        """Plain data: the actions and the figures, with the joint graph's fingerprint."""
        return {
            "format": "remat_lab.Plan/1",
            "method": self.method,
            "budget": self.budget,
            "peak": self.peak,
            "overhead": self.overhead,
            "overhead_ratio": self.overhead_ratio,
            "status": self.status,
            "solve_seconds": self.solve_seconds,
            "accounting": self.accounting,
            "bound": self.bound,
            "fingerprint": self.schedule.joint.fingerprint(),
            "actions": self.schedule.actions.tolist(),
        }

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON. :meth:`load` gives the same schedule and the same peak."""
        as_path(path).write_text(json.dumps(self.to_dict()))

    @classmethod
    def load(cls, path: str | Path, problem: Any) -> Plan:
        """Read a saved plan for the problem it was made for.

        The schedule is simulated again. Its times are the problem's: on a graph whose ops were calibrated since,
        the overhead is what it is now, and a proof made with the old times is dropped.

        Raises
        ------
        InvalidSchedule
            If the problem's joint graph is not the one the plan was made for, the file is no plan, or its
            schedule does not have the peak that the file says.
        """
        try:
            data = json.loads(as_path(path).read_text())
            fingerprint, actions = data["fingerprint"], data["actions"]
        except (ValueError, KeyError) as error:
            raise InvalidSchedule(f"{path} is not a saved plan: {error!r}") from error
        joint = joint_of(problem)
        if joint.plain.fingerprint() == fingerprint:  # made by a method that knows no alternatives
            joint = joint.plain
        if joint.fingerprint() != fingerprint:
            raise InvalidSchedule(
                f"{path} was made for another graph (fingerprint {fingerprint}, this one has "
                f"{joint.fingerprint()}): capture the same model at the same shapes, or solve again"
            )
        for key, kinds in _SAVED.items():
            if not isinstance(data.get(key), kinds):
                raise InvalidSchedule(f"{path} is not a saved plan: {key!r} is {data.get(key)!r}")
        if not all(isinstance(code, int) for code in actions):
            raise InvalidSchedule(f"{path} is not a saved plan: 'actions' are not all whole numbers")
        keep = {k: data[k] for k in cls.__dataclass_fields__ if k in data}
        plan = cls(**keep, problem=problem, schedule=Schedule(joint, np.array(actions, dtype=np.int32)))
        return _held_to_its_schedule(plan, path)


def _held_to_its_schedule(plan: Plan, path: Any) -> Plan:
    """A loaded plan whose figures are those of its schedule; a formula's (paper accounting) are left alone."""
    try:
        trace = simulate(plan.schedule)
    except InvalidSchedule as error:
        raise InvalidSchedule(f"the schedule in {path} cannot run: {error}", step=error.step) from error
    if plan.accounting != "simulated":
        return plan
    if trace.peak != plan.peak or (plan.budget is not None and trace.peak > plan.budget):
        claim = f"a peak of {plan.peak} B"
        if trace.peak == plan.peak:
            claim = f"a budget of {plan.budget} B"
        raise InvalidSchedule(
            f"{path} claims {claim}, but its schedule peaks at {trace.peak} B: the file was changed by hand or by "
            "another program; solve again and save that"
        )
    if math.isclose(trace.overhead, plan.overhead, rel_tol=1e-9):
        return plan
    return replace(
        plan, overhead=trace.overhead, overhead_ratio=trace.overhead_ratio, status="feasible", bound=None
    )


#: What a saved plan holds besides the graph's fingerprint.
_SAVED: dict[str, Any] = {
    "method": str,
    "budget": (int, type(None)),
    "peak": int,
    "overhead": (int, float),
    "overhead_ratio": (int, float),
    "status": str,
    "solve_seconds": (int, float),
    "accounting": str,
    "actions": list,
}


@dataclass(frozen=True, eq=False)
class Frontier:
    """Every budget at once: the plans of one method that no other of its plans beats.

    ``budget[i]`` is the least budget at which point i can be had; points run from the least budget (most
    overhead) to the most budget (least overhead).

    Attributes
    ----------
    budget, peak : int64 arrays, shape (points,); equal under either accounting's own peak
    overhead, overhead_ratio : float64 arrays, shape (points,)
    """

    method: str
    problem: Any
    accounting: str
    budget: np.ndarray
    overhead: np.ndarray
    overhead_ratio: np.ndarray
    solutions: tuple[Solution, ...]
    solve_seconds: float

    @property
    def peak(self) -> np.ndarray:
        return self.budget

    @property
    def minimum(self) -> int:
        """The least feasible budget."""
        return int(self.budget[0])

    def __len__(self) -> int:
        return len(self.budget)

    def __iter__(self) -> Iterator[Plan]:
        return (self.plan(i) for i in range(len(self)))

    def index(self, budget: int) -> int:
        """The point with least overhead within ``budget``.

        Raises
        ------
        InfeasibleBudget
            Below the first point.
        """
        i = int(np.searchsorted(self.budget, budget, side="right")) - 1
        if i < 0:
            raise InfeasibleBudget.of(self.method, budget, self.minimum, slots=self.plan(0).in_slots)
        return i

    def at(self, budget: int) -> Plan:
        """The plan for a budget (bytes, or slots): a lookup, no search."""
        return self.plan(self.index(budget), budget)

    def plan(self, i: int, budget: int | None = None) -> Plan:
        """Point i as a Plan."""
        solution = self.solutions[i]
        return Plan(
            method=self.method,
            problem=self.problem,
            budget=int(self.budget[i]) if budget is None else budget,
            schedule=solution.schedule,
            peak=int(self.budget[i]),
            overhead=float(self.overhead[i]),
            overhead_ratio=float(self.overhead_ratio[i]),
            status=solution.status,
            solve_seconds=self.solve_seconds,
            details=solution.details,
            accounting=self.accounting,
            bound=solution.bound,
        )

    def to_frame(self) -> Any:
        """As a pandas DataFrame: budget, overhead, overhead_ratio."""
        import pandas as pd

        return pd.DataFrame(
            {"budget": self.budget, "overhead": self.overhead, "overhead_ratio": self.overhead_ratio}
        )

    def __repr__(self) -> str:
        least, most = (self.plan(i)._amount(int(self.budget[i])) for i in (0, -1))
        return (
            f"Frontier({self.method}, {len(self)} points, budget {least} at "
            f"{self.overhead_ratio[0]:.1%} overhead to {most} at "
            f"{self.overhead_ratio[-1]:.1%})"
        )


# -- asking ------------------------------------------------------------------------------------------------------
def solve(
    problem: Any,
    budget: int | float | str | None = None,
    method: str = "kusumoto-approx",
    *,
    accounting: str = "simulated",
    **options: Any,
) -> Plan:
    """Plan a problem within a budget.

    Parameters
    ----------
    problem : ComputationGraph, JointGraph, Chain or CapturedModel
    budget : int bytes, "2.5 GB", "2.5 GiB", "60%" of the vanilla peak in the same accounting, "min" for the
        least this method can do, or None for no bound; slots, as the method's paper counts them, for a
        uniform chain under paper accounting
    method : a name from ``remat_lab.methods()``
    accounting : "simulated" (default) or "paper"
    **options : the method's own

    Raises
    ------
    InfeasibleBudget
        With ``.minimum``, the least budget this method can meet.
    UnknownMethod, ValueError, TypeError
        Naming the wrong argument.
    """
    entry = lookup(method)
    view = _view(entry, problem, accounting, options)
    limit = _read_budget(entry, view, budget, accounting, options)
    started = clock.perf_counter()
    solution = entry.solve(view, Request(limit, accounting), **options)
    seconds = clock.perf_counter() - started
    return _checked(entry, problem, view, solution, limit, accounting, seconds)


def frontier(
    problem: Any, method: str = "kusumoto-approx", *, accounting: str = "simulated", **options: Any
) -> Frontier:
    """Every budget at once, as a :class:`Frontier` that answers any budget by lookup.

    A method that knows only how to solve for one budget is asked at budgets from its least to the vanilla
    peak. Frontiers are remembered beside the problem.
    """
    entry = lookup(method)
    view = _view(entry, problem, accounting, options)
    key = ("frontier", entry, accounting, _key(options))
    return memo(view, key, lambda: _make_frontier(entry, problem, view, accounting, options))


def minimum_budget(
    problem: Any, method: str = "kusumoto-approx", *, accounting: str = "simulated", **options: Any
) -> int:
    """The least budget this method can meet: bytes (slots for a uniform chain's paper accounting)."""
    entry = lookup(method)
    view = _view(entry, problem, accounting, options)
    return _minimum(entry, view, accounting, options)


def vanilla_peak(problem: Any) -> int:
    """Simulated peak of the plain schedule: what "100%" means."""
    joint = joint_of(problem)
    return memo(joint, "vanilla_peak", lambda: simulate(Schedule.vanilla(joint)).peak)


def _view(entry: Method, problem: Any, accounting: str, options: dict[str, Any]) -> Any:
    if accounting not in ACCOUNTINGS:
        raise ValueError(f"accounting must be one of {ACCOUNTINGS}, got {accounting!r}")
    entry.check_options(options)
    return entry.look_at(problem)


def _read_budget(
    entry: Method, view: Any, budget: int | float | str | None, accounting: str, options: dict[str, Any]
) -> int | None:
    if isinstance(budget, str) and budget.strip().lower() == "min":
        return _minimum(entry, view, accounting, options)
    if _in_slots(view, accounting) and isinstance(budget, str) and not budget.strip().endswith("%"):
        raise ValueError(
            f"a uniform chain's paper accounting counts slots: give a number of them, not {budget!r}"
        )
    return parse_budget(budget, _whole(entry, view, accounting))


def _whole(entry: Method, view: Any, accounting: str) -> int:
    """What "100%" means."""
    if accounting == "paper" and entry.paper_vanilla is not None:
        return entry.paper_vanilla(view)
    return vanilla_peak(view)


def _checked(
    entry: Method,
    problem: Any,
    view: Any,
    solution: Any,
    budget: int | None,
    accounting: str,
    seconds: float,
) -> Plan:
    """Simulate what the method returned, hold it against the budget, and make the Plan."""
    if not isinstance(solution, Solution) or not isinstance(solution.schedule, Schedule):
        raise MethodFailed(
            f"method {entry.name!r} returned {type(solution).__name__}; a method returns a remat_lab Solution "
            "with a Schedule"
        )
    trace = simulate(solution.schedule)
    peak, overhead = _figures(solution, trace, accounting)
    if budget is not None and peak > budget:
        raise InfeasibleBudget.of(entry.name, budget, peak, slots=_in_slots(view, accounting))
    plain = trace.joint.plain_time
    return Plan(
        method=entry.name,
        problem=problem,
        budget=budget,
        schedule=solution.schedule,
        peak=peak,
        overhead=overhead,
        overhead_ratio=overhead / plain if plain else 0.0,
        status=solution.status,
        solve_seconds=seconds,
        details=solution.details,
        accounting=accounting,
        bound=solution.bound,
    )


def _in_slots(problem: Any, accounting: str) -> bool:
    """Whether memory is counted in slots: a uniform chain's is, under paper accounting."""
    return accounting == "paper" and getattr(problem, "counts_slots", False)


def _figures(solution: Solution, trace: Trace, accounting: str) -> tuple[int, float]:
    if accounting == "simulated":
        return trace.peak, trace.overhead
    peak = trace.peak if solution.paper_peak is None else solution.paper_peak
    overhead = trace.overhead if solution.paper_overhead is None else solution.paper_overhead
    return peak, overhead


def _minimum(entry: Method, view: Any, accounting: str, options: dict[str, Any]) -> int:
    if entry.minimum is not None:
        return entry.minimum(view, accounting, **options)
    if entry.points is not None or not entry.needs_budget:
        key = ("frontier", entry, accounting, _key(options))
        return memo(view, key, lambda: _make_frontier(entry, view, view, accounting, options)).minimum
    return _search_minimum(entry, view, accounting, options)


def _search_minimum(entry: Method, view: Any, accounting: str, options: dict[str, Any]) -> int:
    """Bisect on solve(): assumes that whatever fits a budget fits a larger one."""
    best = _peak_of(entry, view, entry.solve(view, Request(None, accounting), **options), accounting)
    low = 0
    while low + max(1, best // 1000) < best:
        middle = (low + best) // 2
        try:
            peak = _peak_of(
                entry, view, entry.solve(view, Request(middle, accounting), **options), accounting
            )
            if peak <= middle:
                best = peak
            else:  # it ignores budgets
                low = middle
        except InfeasibleBudget as error:
            low = max(middle, (error.minimum or 0) - 1)
            if error.minimum is not None and error.minimum < best:
                best = error.minimum
    return best


def _peak_of(entry: Method, view: Any, solution: Solution, accounting: str) -> int:
    return _checked(entry, view, view, solution, None, accounting, 0.0).peak


def _make_frontier(
    entry: Method, problem: Any, view: Any, accounting: str, options: dict[str, Any]
) -> Frontier:
    started = clock.perf_counter()
    if entry.points is not None:
        solutions = entry.points(view, accounting, **options)
    elif not entry.needs_budget:
        solutions = [entry.solve(view, Request(None, accounting), **options)]
    else:
        solutions = _sweep(entry, view, accounting, options)
    plans = [_checked(entry, problem, view, s, None, accounting, 0.0) for s in solutions]
    kept = _pareto(
        [p.peak for p in plans], [p.overhead for p in plans], [p.schedule.recomputed_ops for p in plans]
    )
    chosen = [plans[i] for i in kept]
    return Frontier(
        method=entry.name,
        problem=problem,
        accounting=accounting,
        budget=frozen(np.array([p.peak for p in chosen], dtype=np.int64)),
        overhead=frozen(np.array([p.overhead for p in chosen], dtype=np.float64)),
        overhead_ratio=frozen(np.array([p.overhead_ratio for p in chosen], dtype=np.float64)),
        solutions=tuple(solutions[i] for i in kept),
        solve_seconds=clock.perf_counter() - started,
    )


def _sweep(
    entry: Method, view: Any, accounting: str, options: dict[str, Any], count: int = 16
) -> list[Solution]:
    least = _minimum(entry, view, accounting, options)
    whole = _whole(entry, view, accounting)
    solutions = []
    budgets = sorted({int(b) for b in np.linspace(least, max(least, whole), count)})
    for i, budget in enumerate(budgets):
        report(i, len(budgets))
        try:
            solutions.append(entry.solve(view, Request(budget, accounting), **options))
        except InfeasibleBudget:
            continue
    return solutions


def _pareto(peaks: list[int], overheads: list[float], runs: list[int]) -> list[int]:
    """Indices of the points no other beats, by rising peak and falling overhead; fewer runs break ties."""
    kept: list[int] = []
    for i in sorted(range(len(peaks)), key=lambda i: (peaks[i], overheads[i], runs[i])):
        if not kept or overheads[i] < overheads[kept[-1]] - 1e-12:
            kept.append(i)
    return kept


def _key(options: dict[str, Any]) -> Any:
    return tuple(
        sorted(
            (k, v if isinstance(v, (str, int, float, bool, type(None))) else id(v))
            for k, v in options.items()
        )
    )
