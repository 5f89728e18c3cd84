"""compare(): methods x budgets on one problem, as a table in which a failure is a row.

Columns
-------
method : its name, with the options that were set
asked : the budget as it was given, where that is text ("60%", "min", "2.5 GB")
budget : bytes; missing for "no bound"
peak : bytes, simulated
overhead, overhead_ratio : time spent recomputing, in the problem's unit and over one plain step
gap : overhead_ratio minus that of the best plan in the table that fits this budget; 0 is the best known. Where
    a row's ``bound`` reaches the best plan's overhead, the best known is the optimum.
solve_seconds : wall clock
status : "optimal" (proven within the method's family), "feasible"; "infeasible", "too large" (for this method),
    "unavailable" (an optional package is missing) or "failed"
bound : a lower bound on the overhead of any schedule within the budget that the method has proven
error : the sentence of what went wrong
plan : the Plan, for ``play``, ``simulate``, ``execute``
"""

from __future__ import annotations

import time as clock
import warnings
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from .arguments import check_seconds
from .errors import InfeasibleBudget, TooLarge
from .plan import Plan, solve, vanilla_peak
from .registry import lookup, methods
from .units import parse_budget

if TYPE_CHECKING:
    import pandas as pd

#: Seconds given to a method that takes an option ``time_limit``.
TIME_LIMIT = 60.0

#: Options that are seconds as well: no more than the time limit, and no more than the method's own default.
_SECONDS = ("seconds", "warm_start")

COLUMNS = (
    "method",
    "asked",
    "budget",
    "peak",
    "overhead",
    "overhead_ratio",
    "gap",
    "solve_seconds",
    "status",
    "bound",
    "error",
    "plan",
)
_WHOLE = ("budget", "peak")
_NUMBERS = ("overhead", "overhead_ratio", "gap", "solve_seconds", "bound")

#: Overheads are sums of op times in different orders; differences below this share of a step are rounding.
ROUNDING = 1e-9


class Choice(NamedTuple):
    """A method to compare: what to call it, its name in the registry, its options."""

    label: str
    name: str
    options: dict[str, Any]


def compare(
    problem: Any,
    budgets: Any,
    methods: Any = None,
    *,
    time_limit: float | None = TIME_LIMIT,
    progress: bool = True,
) -> pd.DataFrame:
    """Every method at every budget on one problem; see the module docstring for the columns.

    Parameters
    ----------
    problem : ComputationGraph, JointGraph, Chain or CapturedModel
    budgets : one budget or a list of them, as for ``solve()``: bytes, "2.5 GB", "60%", None; "min" is each
        method's own least
    methods : names, or pairs (name, options), in a list; a mapping from label to either; default: every method
        that can plan the problem
    time_limit : seconds for each plan of the methods that take this option; None leaves them their own
    progress : whether to show a progress bar

    Returns
    -------
    pandas.DataFrame, one row per budget and method, budgets in the order given

    Raises
    ------
    UnknownMethod, ValueError
        If a method, an option or a budget is none. What goes wrong while a method plans is a row instead.

    Warns
    -----
    RuntimeWarning
        If a plan beats a bound that another method has proven: one of them is wrong.
    """
    from tqdm.auto import tqdm

    choices = choose(problem, methods, time_limit)
    wanted = as_budgets(budgets)
    for budget in wanted:
        _bytes_of(problem, budget)  # a budget that cannot be read is an argument's error, not a method's
    rows = []
    with tqdm(total=len(wanted) * len(choices), disable=not progress, unit="plan", leave=False) as bar:
        for budget in wanted:
            for choice in choices:
                bar.set_description(choice.label)
                rows.append(attempt(problem, budget, choice))
                bar.update()
    frame = with_gaps(table(rows, COLUMNS))
    for sentence in beaten_bounds(frame):
        warnings.warn(sentence, RuntimeWarning, stacklevel=2)
    return frame


def choose(problem: Any, given: Any, time_limit: float | None = None) -> list[Choice]:
    """The methods to run on a problem, their options checked. Without ``given``: all that can plan it.

    Raises
    ------
    UnknownMethod, ValueError, TypeError
        Naming the method or the option.
    """
    if given is None:
        vanilla_peak(problem)  # names what is no problem at all, which no method could plan
        given = methods(problem).names
    elif isinstance(given, str):
        given = [given]
    elif not isinstance(given, Iterable):
        raise TypeError(f"methods must be names or pairs (name, options) in a list, got {given!r}")
    check_seconds(time_limit, "time_limit")
    labelled = given.items() if isinstance(given, Mapping) else ((None, item) for item in given)
    choices = []
    for label, item in labelled:
        name, options = (item, {}) if isinstance(item, str) else _pair(item)
        entry = lookup(name)
        entry.check_options(options)
        shown = ", ".join(f"{k}={v!r}" for k, v in options.items())
        if time_limit is not None:
            limits = {k: min(entry.options[k], time_limit) for k in _SECONDS if k in entry.options}
            if "time_limit" in entry.options:
                limits["time_limit"] = time_limit
            options = {**limits, **options}
        choices.append(Choice(str(label or (f"{name}({shown})" if shown else name)), name, options))
    if not choices:
        raise ValueError("no methods to compare: name at least one, or leave methods out for all that fit")
    labels = [choice.label for choice in choices]
    for label in labels:
        if labels.count(label) > 1:
            raise ValueError(f"method {label!r} is given twice; pass a mapping to label them")
    return choices


def _pair(item: Any) -> tuple[str, dict[str, Any]]:
    try:
        name, options = item
        return str(name), dict(options)
    except (TypeError, ValueError):
        raise TypeError(f"a method to compare is a name or a pair (name, options), got {item!r}") from None


def as_budgets(given: Any) -> list[Any]:
    """One budget or several, as a list.

    Raises
    ------
    ValueError
        If there is none.
    """
    if given is None or isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        return [given]
    budgets = list(given)
    if not budgets:
        raise ValueError("no budgets to compare at: give at least one, such as '60%'")
    return budgets


def attempt(problem: Any, budget: Any, choice: Choice) -> dict[str, Any]:
    """One row: a plan, or what went wrong."""
    row: dict[str, Any] = {"method": choice.label, "budget": _bytes_of(problem, budget)}
    row["asked"] = budget.strip() if isinstance(budget, str) else None
    asked = budget if _is_minimum(budget) else row["budget"]
    started = clock.perf_counter()
    try:
        plan = solve(problem, asked, choice.name, **choice.options)
    except Exception as error:
        return {
            **row,
            "solve_seconds": clock.perf_counter() - started,
            "status": _kind(error),
            "error": _sentence(error),
        }
    return {
        **row,
        "budget": plan.budget,
        "peak": plan.peak,
        "overhead": plan.overhead,
        "overhead_ratio": plan.overhead_ratio,
        "solve_seconds": plan.solve_seconds,
        "status": plan.status,
        "bound": plan.bound,
        "plan": plan,
    }


def _is_minimum(budget: Any) -> bool:
    return isinstance(budget, str) and budget.strip().lower() == "min"


def _bytes_of(problem: Any, budget: Any) -> int | None:
    """A budget in bytes, the same for every method; None for no bound, and for "min" until it is solved."""
    return None if _is_minimum(budget) else parse_budget(budget, vanilla_peak(problem))


def _kind(error: Exception) -> str:
    if isinstance(error, InfeasibleBudget):
        return "infeasible"
    if isinstance(error, (TooLarge, MemoryError)):
        return "too large"
    return "unavailable" if isinstance(error, ImportError) else "failed"


def _sentence(error: Exception) -> str:
    """What an exception says; its type as well if it is none of this package's."""
    text = str(error).strip() or "no message"
    own = type(error).__module__.partition(".")[0] == __package__ or isinstance(error, ImportError)
    return text if own else f"{type(error).__name__}: {text}"


# -- tables --------------------------------------------------------------------------------------------------------
def table(rows: list[dict[str, Any]], columns: Iterable[str]) -> pd.DataFrame:
    """Rows as a DataFrame with these columns: whole numbers as Int64, other numbers as float64."""
    import pandas as pd

    frame = pd.DataFrame({name: [row.get(name) for row in rows] for name in columns}, dtype=object)
    for name in frame.columns:
        if name in _WHOLE:
            frame[name] = frame[name].astype("Int64")
        elif name in _NUMBERS:
            frame[name] = pd.to_numeric(frame[name]).astype("float64")
    return frame


def check_table(frame: Any, name: str, columns: Iterable[str]) -> None:
    """Refuse what is no table of ``compare()`` or ``sweep()``.

    Raises
    ------
    TypeError, ValueError
        Naming the argument, or the column it lacks.
    """
    import pandas as pd

    if not isinstance(frame, pd.DataFrame):
        raise TypeError(
            f"{name} must be a table made by compare(), sweep() or load_sweep(), got {type(frame).__name__}"
        )
    missing = sorted(set(columns) - set(frame.columns))
    if missing:
        raise ValueError(f"{name} is not a comparison: it has no column {missing[0]!r}")


def has_plan(frame: pd.DataFrame) -> pd.Series:
    """bool per row: whether the method made a plan."""
    return frame["status"].isin(("optimal", "feasible"))


def with_gaps(frame: pd.DataFrame) -> pd.DataFrame:
    """The table with its ``gap`` column filled in, problem by problem."""
    import numpy as np

    frame = frame.copy()
    names = frame["problem"].to_numpy() if "problem" in frame else np.zeros(len(frame))
    planned = has_plan(frame).to_numpy()
    limit = _limits(frame)
    peak = frame["peak"].astype("float64").fillna(np.inf).to_numpy()
    ratio = frame["overhead_ratio"].to_numpy()
    gap = np.full(len(frame), np.nan)
    for i in np.flatnonzero(planned):
        fits = planned & (names == names[i]) & (peak <= limit[i])
        above = ratio[i] - ratio[fits].min()
        gap[i] = above if above > ROUNDING else 0.0
    frame["gap"] = gap
    return frame


def _limits(frame: pd.DataFrame) -> Any:
    """float64 array: the budget of each row, infinite where there is no bound."""
    return frame["budget"].astype("float64").fillna(float("inf")).to_numpy()


def beaten_bounds(frame: pd.DataFrame) -> list[str]:
    """A sentence for each plan that has less overhead than another method proved possible; none is right.

    A bound holds for the joint graph it was proven on: on a chain, the chain's own methods have ops to choose
    from that the others do not know.
    """
    found = []
    limit = _limits(frame)
    plans: list[Plan | None] = [p if isinstance(p, Plan) else None for p in frame["plan"]]
    prints = [p.schedule.joint.fingerprint() if p is not None else "" for p in plans]
    for i, prover in enumerate(plans):
        if prover is None or prover.bound is None:
            continue
        slack = ROUNDING * max(1.0, prover.schedule.joint.plain_time)
        for j, plan in enumerate(plans):
            if plan is None or prints[i] != prints[j]:
                continue
            if plan.peak <= limit[i] and plan.overhead < prover.bound - slack:
                found.append(
                    f"{frame['method'].iloc[j]} recomputes {plan.overhead:g} within {plan.peak} B, but "
                    f"{frame['method'].iloc[i]} proved that {prover.bound:g} is needed within "
                    f"{frame['budget'].iloc[i]} B: a bug in one of them, or in the simulator"
                )
    return found
