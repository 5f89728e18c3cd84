"""What a method may return besides a Solution: nodes to keep, lower sets, an eviction score, a schedule.

``@remat_lab.method(name, returns=...)`` wraps a function in one of the forms below. Each form says what the
function is given and what it may return, checks the answer, and compiles it to a :class:`Solution`. What is
wrong with an answer is said in the author's terms: which method, which entry, which node.

============  =======================  ===============================================================
returns       the function             its answer
============  =======================  ===============================================================
"keep"        fn(graph, budget)        the nodes whose forward values stay, names or indices
"lower-sets"  fn(graph, budget)        growing sets of nodes, each closed under inputs
"score"       fn(candidate)            a number; the value with the least is evicted when memory is full
"schedule"    fn(joint, budget)        a Schedule on that joint graph: full control
"solution"    fn(view, request)        a Solution, with status, bound and details
============  =======================  ===============================================================

Options are further keyword arguments with defaults. The solvers a form is compiled by load when it runs.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .errors import InfeasibleBudget, InvalidGraph, InvalidSchedule
from .schedule import Schedule
from .simulate import simulate
from .solution import MethodFailed, Request, Solution
from .units import format_exact

if TYPE_CHECKING:
    from .graph import ComputationGraph
    from .joint import JointGraph


class Form(NamedTuple):
    """One way to write a method: the views it may plan on (the first is the default) and its arguments."""

    views: tuple[str, ...]
    arguments: tuple[str, ...]


FORMS = {
    "solution": Form(("graph", "joint", "chain", "captured"), ("view", "request")),
    "keep": Form(("graph",), ("graph", "budget")),
    "lower-sets": Form(("graph",), ("graph", "budget")),
    "score": Form(("joint",), ("candidate",)),
    "schedule": Form(("joint", "graph", "chain"), ("joint", "budget")),
}


class Parts(NamedTuple):
    """What the registry needs to know of a wrapped function."""

    solve: Callable[..., Solution]
    points: Callable[..., list[Solution]] | None = None
    minimum: Callable[..., int] | None = None
    paper_vanilla: Callable[[Any], int] | None = None


def parts_of(name: str, returns: str, fn: Callable[..., Any], needs_budget: bool) -> Parts:
    """Wrap ``fn``, which returns ``returns``, as the functions of a registry entry.

    Partials of module-level functions, so that a method can be sent to another process.
    """
    if returns == "score":
        return Parts(partial(_solve_score, name, fn), minimum=partial(_minimum_score, name, fn))
    if returns == "schedule":
        return Parts(partial(_solve_schedule, name, fn))
    ask, whole = (_keep, None) if returns == "keep" else (_lower_sets, _paper_vanilla)
    points = None if needs_budget else partial(_points, ask, name, fn)
    return Parts(partial(_solve_points, ask, name, fn), points, paper_vanilla=whole)


def check_signature(name: str, returns: str, fn: Callable[..., Any]) -> dict[str, Any]:
    """The options of a function that returns ``returns``: its keyword arguments with defaults.

    Raises
    ------
    TypeError
        If it does not take the form's arguments first, or has another one without a default.
    """
    arguments = FORMS[returns].arguments
    parameters = list(inspect.signature(fn).parameters.values())
    first, options = parameters[: len(arguments)], parameters[len(arguments) :]
    positional = [p for p in first if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    missing = [
        p.name for p in options if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
    ]
    if len(positional) < len(arguments) or missing:
        extra = f"; {missing[0]!r} has no default" if missing else ""
        raise TypeError(
            f"method {name!r} (returns={returns!r}) is called as fn({', '.join(arguments)}, **options); "
            f"got fn{inspect.signature(fn)}{extra}"
        )
    return {p.name: p.default for p in options if p.default is not p.empty}


# -- keep: a set of nodes --------------------------------------------------------------------------------------
def _keep(name: str, graph: ComputationGraph, answer: Any) -> list[Solution]:
    """The schedules that keep exactly the nodes of ``answer``; :func:`_solve_points` picks one.

    What is left out is dropped after its last forward use and computed again before the backward pass first
    needs it. Two ways: all that lies between two kept nodes at once (the least time), or node by node (the
    least memory). After the last kept node nothing is dropped if dropping it would not lower the peak.
    """
    from .solvers.canonical import schedule_keeping

    n = len(graph)
    chosen = _nodes(name, graph, answer, "the kept set")
    kept = np.zeros(n, dtype=bool)
    kept[chosen] = True
    before = np.cumsum(kept) - kept  # kept nodes before each node, in the order they are computed
    details = {"kept": [graph.names[v] for v in np.flatnonzero(kept)]}
    by_node = schedule_keeping(graph, np.arange(n), kept)
    at_once = schedule_keeping(graph, before, kept)
    tail_kept = schedule_keeping(graph, before, kept | (before == before[-1]))
    schedules = [by_node, at_once]
    if simulate(tail_kept).peak <= simulate(at_once).peak:
        schedules.append(tail_kept)
    return [Solution(schedule, details=details) for schedule in schedules]


# -- lower sets ------------------------------------------------------------------------------------------------
def _lower_sets(name: str, graph: ComputationGraph, answer: Any) -> list[Solution]:
    """The canonical strategy of the sequence in ``answer``."""
    from .solvers.canonical import LowerSetSequence, sequence_of
    from .solvers.kusumoto import solution_of
    from .solvers.lower_sets import bits_of, check_sequence

    if isinstance(answer, LowerSetSequence):
        answer = answer.lower_sets
    if isinstance(answer, (str, bytes, Mapping)) or not isinstance(answer, Iterable):
        raise MethodFailed(
            f"method {name!r} returned {_shown(answer)}; a lower-set sequence is a list of lists of nodes"
        )
    n = len(graph)
    everything = set(range(n))
    sequence: list[set[int]] = []
    for i, given in enumerate(answer):
        nodes = set(_nodes(name, graph, given, f"lower set {i}").tolist())
        last = sequence[-1] if sequence else set()
        lost = sorted(last - nodes)
        if lost:
            raise MethodFailed(
                f"method {name!r}: lower set {i} lacks {graph.names[lost[0]]!r}, which the one before it has; "
                "each contains the one before (they are unions, not segments)"
            )
        if nodes == last and nodes:
            raise MethodFailed(f"method {name!r}: lower set {i} equals the one before it")
        if nodes:
            sequence.append(nodes)
    if not sequence or sequence[-1] != everything:
        sequence.append(everything)
    bits = np.stack([bits_of(sorted(nodes), n) for nodes in sequence])
    try:
        check_sequence(graph, bits)
    except InvalidGraph as error:
        raise MethodFailed(f"method {name!r}: {error}") from None
    return [solution_of(sequence_of(graph, bits))]


def _paper_vanilla(graph: ComputationGraph) -> int:
    from .solvers.kusumoto import paper_vanilla

    return paper_vanilla(graph)


# -- both: an answer that compiles to a few schedules -------------------------------------------------------------
def _solve_points(
    ask: Callable[..., list[Solution]],
    name: str,
    fn: Callable[..., Any],
    graph: ComputationGraph,
    request: Request,
    **options: Any,
) -> Solution:
    from .solvers.selection import least_overhead

    points = ask(name, graph, fn(graph, request.budget, **options))
    if request.accounting == "paper" and len(points) == 1:
        return points[0]  # solve() holds the formula's peak against the budget
    return least_overhead(points, request, name)


def _points(
    ask: Callable[..., list[Solution]],
    name: str,
    fn: Callable[..., Any],
    graph: ComputationGraph,
    accounting: str,
    **options: Any,
) -> list[Solution]:
    return ask(name, graph, fn(graph, None, **options))


# -- a score -----------------------------------------------------------------------------------------------------
def _solve_score(
    name: str, fn: Callable[..., Any], joint: JointGraph, request: Request, **options: Any
) -> Solution:
    from .solvers.dtr import play

    try:
        return Solution(play(joint, request.budget, partial(fn, **options)), details={"score": name})
    except MethodFailed as error:
        raise MethodFailed(f"method {name!r}: {error}") from None
    except InfeasibleBudget as error:
        minimum = _minimum_score(name, fn, joint, "simulated", **options)
        raise InfeasibleBudget(
            f"{name}: {error}. The least it can do is about {format_exact(minimum)}.",
            minimum=minimum,
        ) from None


def _minimum_score(
    name: str, fn: Callable[..., Any], joint: JointGraph, accounting: str, **options: Any
) -> int:
    from .solvers.dtr import least_budget

    try:
        return least_budget(joint, partial(fn, **options))
    except MethodFailed as error:
        raise MethodFailed(f"method {name!r}: {error}") from None


# -- a schedule --------------------------------------------------------------------------------------------------
def _solve_schedule(
    name: str, fn: Callable[..., Any], view: Any, request: Request, **options: Any
) -> Solution:
    schedule = fn(view, request.budget, **options)
    if not isinstance(schedule, Schedule):
        raise MethodFailed(
            f"method {name!r} returned {_shown(schedule)}; it must return a remat_lab.Schedule"
        )
    joint = view.joint
    if schedule.joint is not joint and schedule.joint.fingerprint() != joint.fingerprint():
        raise MethodFailed(
            f"method {name!r} returned a schedule on another graph, {schedule.joint!r}; the one to plan is {joint!r}"
        )
    try:
        simulate(schedule)
    except InvalidSchedule as error:
        raise InvalidSchedule(
            f"method {name!r} returned a schedule that cannot run: {error}",
            step=error.step,
            op=error.op,
            value=error.value,
            freed_at=error.freed_at,
        ) from None
    return Solution(schedule)


# -- reading nodes -----------------------------------------------------------------------------------------------
def _nodes(name: str, graph: ComputationGraph, given: Any, what: str) -> np.ndarray:
    """Names, indices or a bool array as node indices, int64."""
    n = len(graph)
    if isinstance(given, np.ndarray) and given.dtype == bool:
        if given.shape != (n,):
            raise MethodFailed(
                f"method {name!r}: {what} is a bool array of shape {given.shape}; the graph has {n} nodes"
            )
        return np.flatnonzero(given)
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise MethodFailed(
            f"method {name!r}: {what} is {_shown(given)}; it must be a set or list of node names or indices"
        )
    found = []
    for node in given:
        if isinstance(node, str):
            if node not in graph.index_of:
                close = difflib.get_close_matches(node, graph.names, n=3, cutoff=0.4)
                hint = f"; closest: {', '.join(map(repr, close))}" if close else ""
                raise MethodFailed(
                    f"method {name!r}: {what} has {node!r}, which is no node of the graph{hint}"
                )
            found.append(graph.index_of[node])
        elif isinstance(node, (int, np.integer)) and not isinstance(node, bool):
            if not 0 <= node < n:
                raise MethodFailed(
                    f"method {name!r}: {what} has node index {node}; the graph's nodes are 0..{n - 1}"
                )
            found.append(int(node))
        else:
            raise MethodFailed(
                f"method {name!r}: {what} has {_shown(node)}; it must hold node names or indices"
            )
    return np.array(found, dtype=np.int64)


def _shown(value: Any) -> str:
    """A value in an error: short, with its type."""
    text = repr(value)
    return f"{text if len(text) <= 40 else text[:37] + '...'} ({type(value).__name__})"
