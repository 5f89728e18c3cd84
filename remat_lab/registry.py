"""The methods there are, and how to join them.

A method is a function that looks at one view of a problem (its forward graph, its joint graph, or a chain)
and a :class:`Request`, and returns a :class:`Solution`. ``solve()`` does the rest: it reads the budget,
checks the schedule by simulating it, and makes the Plan.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from .authoring import FORMS, check_signature, parts_of
from .errors import UnknownMethod
from .joint import joint_of
from .solution import ACCOUNTINGS as ACCOUNTINGS
from .solution import MethodFailed as MethodFailed
from .solution import Request as Request
from .solution import Solution as Solution

#: Which attribute of a problem a method plans on.
VIEWS = ("graph", "joint", "chain", "captured")


@dataclass(frozen=True, eq=False)
class Method:
    """One entry of the registry.

    ``solve(view, request, **options) -> Solution``; ``points(view, accounting, **options)`` returns every
    solution worth having as a list (a frontier's raw material); ``minimum(view, accounting, **options)``
    the least feasible budget; ``paper_vanilla(view)`` what "100%" means under paper accounting. All but
    ``solve`` are optional: ``frontier()`` and ``minimum_budget()`` fall back on searching with ``solve``.
    """

    name: str
    solve: Callable[..., Solution]
    view: str = "graph"
    summary: str = ""
    paper: str = ""
    needs_budget: bool = True
    points: Callable[..., list[Solution]] | None = None
    minimum: Callable[..., int] | None = None
    paper_vanilla: Callable[[Any], int] | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def look_at(self, problem: Any) -> Any:
        """The view of the problem this method plans on."""
        found = getattr(problem, self.view, None)
        if found is None or isinstance(found, dict):  # a networkx graph has a dict of that name
            kinds = {
                "chain": "a Chain",
                "captured": "a captured model",
                "graph": "a ComputationGraph, a JointGraph or a captured model",
                "joint": "a ComputationGraph, a JointGraph, a Chain or a captured model",
            }
            raise TypeError(
                f"method {self.name!r} plans {kinds[self.view]}; got {type(problem).__name__} as the problem. "
                "See remat_lab.methods() for what each method takes."
            )
        # A chain's joint graph has two ways to make a hidden state; only the chain methods choose between them.
        return found.plain if self.view == "joint" else found

    def check_options(self, options: dict[str, Any]) -> None:
        unknown = sorted(set(options) - set(self.options))
        if unknown:
            allowed = ", ".join(f"{k}={v!r}" for k, v in self.options.items()) or "none"
            raise ValueError(f"method {self.name!r} has no option {unknown[0]!r}; its options: {allowed}")


_METHODS: dict[str, Method] = {}

#: Modules that register the built-in methods when imported. Those that need torch are imported on demand.
_BUILTIN = (
    "remat_lab.solvers.vanilla",
    "remat_lab.solvers.chen",
    "remat_lab.solvers.kusumoto_methods",
    "remat_lab.solvers.best",
    "remat_lab.solvers.bptt",
    "remat_lab.solvers.revolve",
    "remat_lab.solvers.chen_chains",
    "remat_lab.solvers.rotor",
    "remat_lab.solvers.dtr_method",
    "remat_lab.solvers.local_search",
    "remat_lab.solvers.checkmate",
    "remat_lab.solvers.retention",
    "remat_lab.solvers.oracle",
    "remat_lab.torch_methods",
)
_loaded = False


def method(
    name: str,
    *,
    returns: str = "solution",
    view: str | None = None,
    summary: str = "",
    paper: str = "",
    needs_budget: bool = True,
    points: Callable[..., list[Solution]] | None = None,
    minimum: Callable[..., int] | None = None,
    paper_vanilla: Callable[[Any], int] | None = None,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as a method: ``solve``, ``compare``, the views and ``execute`` then take its name.

    Options are the function's keyword arguments with defaults. A second registration under the same name
    replaces the first, so that a notebook cell can be run again; so it does with a built-in method's name, whether
    the built-in ones have been loaded by then or not.

    Parameters
    ----------
    name : what the method is called
    returns : what the function returns, and with it how it is called:

        * "keep": ``fn(graph, budget)`` returns the nodes whose forward values stay, as names, indices or a bool
          array; the rest is computed again when the backward pass needs it.
        * "lower-sets": ``fn(graph, budget)`` returns growing sets of nodes, each closed under inputs: the
          strategy of Kusumoto et al. keeps their boundaries. All nodes are added as the last one if missing.
        * "score": ``fn(candidate)`` returns a number; the online runtime evicts the value with the least when
          memory is full (see :class:`remat_lab.solvers.dtr.Candidate`).
        * "schedule": ``fn(joint, budget)`` returns a Schedule on that joint graph: full control.
        * "solution" (default): ``fn(view, request)`` returns a :class:`Solution`.

        ``budget`` is bytes, or None for no bound. A function may ignore it: ``solve()`` simulates every answer
        and raises InfeasibleBudget if it does not fit.
    view : "graph", "joint" or "chain": what the function plans on; default: what ``returns`` suggests
    summary, paper : one line for ``methods()`` (default: the docstring's first), and where it is from
    needs_budget : False if the answer does not depend on the budget: it is then asked for only once
    points, minimum, paper_vanilla : see :class:`Method`

    Raises
    ------
    ValueError, TypeError
        On an unknown ``returns`` or ``view``, or a function that takes other arguments.

    Each answer is checked when the method runs; :class:`MethodFailed` names the method, the entry and the node.
    """
    if not isinstance(name, str) or not name:
        raise TypeError(f'a method needs a name, got {name!r}: write @rl.method("my-idea")')
    if not isinstance(returns, str) or returns not in FORMS:
        raise ValueError(f"returns must be one of {tuple(FORMS)}, got {returns!r}")
    views = FORMS[returns].views
    chosen = views[0] if view is None else view
    if chosen not in views:
        raise ValueError(f"view must be one of {views} for returns={returns!r}, got {view!r}")

    def register(fn: Callable[..., Any]) -> Callable[..., Any]:
        if not callable(fn):
            raise TypeError(f"method {name!r} must be a function, got {fn!r}")
        options = check_signature(name, returns, fn)
        entry = Method(
            name=name,
            solve=fn,
            view=chosen,
            summary=summary or ((inspect.getdoc(fn) or "").strip().splitlines() or [""])[0],
            paper=paper,
            needs_budget=needs_budget,
            points=points,
            minimum=minimum,
            paper_vanilla=paper_vanilla,
            options=options,
        )
        if returns != "solution":
            parts = parts_of(name, returns, fn, needs_budget)._asdict()
            given = {"points": points, "minimum": minimum, "paper_vanilla": paper_vanilla}
            entry = replace(entry, **parts | {k: v for k, v in given.items() if v is not None})
        current = _METHODS.get(name)
        # The built-in methods load on first use; what took one's name before that stays.
        if current is None or not _is_built_in(fn) or _is_built_in(current.solve):
            install(entry)
        return fn

    return register


def _is_built_in(fn: Callable[..., Any]) -> bool:
    return getattr(fn, "__module__", None) in _BUILTIN


def install(entry: Method) -> None:
    """Put an entry into the registry, in place of one of the same name."""
    _METHODS[entry.name] = entry


def _load_builtin() -> None:
    global _loaded
    if not _loaded:
        _loaded = True
        for module in _BUILTIN:
            importlib.import_module(module)


def lookup(name: str) -> Method:
    """The method of that name.

    Raises
    ------
    UnknownMethod
        With the closest names.
    """
    _load_builtin()
    if not isinstance(name, str) or name not in _METHODS:
        raise UnknownMethod(name, _METHODS)
    return _METHODS[name]


class MethodTable(tuple[Method, ...]):
    """The registered methods; iterates over them, and shows a table in a notebook or a terminal."""

    @property
    def names(self) -> list[str]:
        return [entry.name for entry in self]

    def rows(self) -> Iterator[tuple[str, str, str, str]]:
        takes = {"graph": "graph", "joint": "joint graph", "chain": "chain", "captured": "torch model"}
        for entry in self:
            options = ", ".join(f"{k}={v!r}" for k, v in entry.options.items())
            yield entry.name, takes[entry.view], options, f"{entry.summary} {entry.paper}".strip()

    def __repr__(self) -> str:
        width = max((len(name) for name in self.names), default=0)
        return "\n".join(f"{name:<{width}}  {takes:<11}  {text}" for name, takes, _, text in self.rows())

    def _repr_html_(self) -> str:
        from html import escape

        # Notebooks set tables flush right, which is no way to read words.
        left = "style='text-align:left'"
        body = "".join(
            f"<tr><td style='text-align:left;white-space:nowrap'>{escape(name)}</td>"
            + "".join(f"<td {left}>{escape(cell)}</td>" for cell in row)
            + "</tr>"
            for name, *row in self.rows()
        )
        body = re.sub("``(.+?)``", r"<code>\1</code>", body)
        head = "".join(
            f"<th {left}>{title}</th>" for title in ("method", "plans a", "options", "what it does")
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def methods(problem: Any = None) -> MethodTable:
    """Every registered method, or those that can plan ``problem``.

    Raises
    ------
    TypeError
        If ``problem`` is no problem.
    """
    _load_builtin()
    if problem is not None:
        joint_of(problem)
    chosen = [m for m in _METHODS.values() if problem is None or getattr(problem, m.view, None) is not None]
    return MethodTable(chosen)
