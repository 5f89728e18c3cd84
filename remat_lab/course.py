"""Helpers for teaching notebooks: predict before you look, check an answer, see values live and graphs cut.

Each returns a small object that a notebook shows as HTML without a kernel, and a terminal as text.
"""

from __future__ import annotations

import dis
import inspect
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from html import escape
from types import FunctionType
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np

from .cost_table import CostTable as CostTable
from .cost_table import cost_table as cost_table
from .errors import InvalidGraph
from .graph import ComputationGraph
from .joint import CATEGORIES
from .palette import dark_figures
from .schedule import Schedule
from .simulate import simulate
from .units import format_bytes

if TYPE_CHECKING:
    from .solvers.canonical import LowerSetSequence

#: How a check can end. "unanswered" is no fault: it is how every exercise starts.
STATES = ("right", "wrong", "unanswered")

_LOOK = {
    "right": ("✔", "Right.", "#2e9e5b"),
    "wrong": ("✘", "Not yet.", "#d9822b"),
    "unanswered": ("…", "Not answered yet.", "#8a8f98"),
    "guess": ("", "", "#3b82c4"),
}


@dataclass(frozen=True)
class Checked:
    """What :func:`check` found: ``state`` is one of :data:`STATES`, ``message`` the sentences after it."""

    state: str
    message: str = ""

    def __bool__(self) -> bool:
        return self.state == "right"

    def __repr__(self) -> str:
        return f"{_LOOK[self.state][1]} {self.message}".strip()

    def _repr_html_(self) -> str:
        _, head, _ = _LOOK[self.state]
        return _box(self.state, f"<b>{head}</b> {_prose(self.message)}")


@dataclass(frozen=True)
class Guess:
    """A question whose answer is folded away; made by :func:`guess`."""

    question: str
    answer: str
    why: str = ""
    mine: str | None = None

    def __repr__(self) -> str:
        return f"Predict: {self.question}\n(The answer is {self.answer}. {self.why})".replace(". )", ".)")

    def _repr_html_(self) -> str:
        told = "" if self.mine is None else f"You said {_prose(self.mine)}. "
        fold = "" if self.mine is None else " open"
        reveal = f"{told}<b>{_prose(self.answer)}</b> {_prose(self.why)}"
        return _box(
            "guess",
            f"<details{fold} style='margin:0'><summary style='cursor:pointer'><b>Predict, then open:</b> "
            f"{_prose(self.question)}</summary><div style='margin-top:.4em'>{reveal}</div></details>"
            f"<style>{_STYLE}</style>",
        )


def guess(question: str, answer: Any, why: str = "", *, mine: Any = ...) -> Guess:
    """Ask for a prediction, with the answer folded away until the reader opens it.

    Parameters
    ----------
    question : str, shown
    answer : what came out; computed in the notebook, never typed in
    why : str, one sentence that follows the answer
    mine : the reader's prediction; the answer is open at once when it is given

    >>> guess("How many bytes are 2 kB?", 2 * 10**3, "SI prefixes are powers of ten.")
    Predict: How many bytes are 2 kB?
    (The answer is 2000. SI prefixes are powers of ten.)
    """
    return Guess(question, _text(answer), why, None if _unanswered(mine) else _text(mine))


def check(answer: Any, expected: Any, hint: str = "") -> Checked:
    """Tell a right answer from a wrong one.

    Parameters
    ----------
    answer : the reader's; ``...`` or None, anything that holds one of them, or a function with no body
        counts as not answered yet
    expected : the right value, or a function that looks at the answer and returns True, or False, or a
        sentence that says what is wrong. Floats are compared to within one part in 10^9, sets and lists of
        names without regard to order only if ``expected`` is a set.
    hint : str, what to think about when it is wrong

    >>> check(..., 3)
    Not answered yet.
    >>> check(4, 3, "Count the edges.")
    Not yet. Count the edges.
    >>> check(["b", "a"], {"a", "b"})
    Right.
    """
    if _unanswered(answer):
        return Checked("unanswered")
    try:
        verdict = expected(answer) if callable(expected) else _same(answer, expected)
    except Exception as error:
        return Checked("wrong", f"Your answer raised {type(error).__name__}: {error}. {hint}".strip())
    if isinstance(verdict, str):
        return Checked("wrong", f"{verdict} {hint}".strip())
    return Checked("right") if verdict else Checked("wrong", hint)


def _same(answer: Any, expected: Any) -> bool:
    if isinstance(expected, (set, frozenset)):
        return not isinstance(answer, str) and len(list(answer)) == len(expected) and set(answer) == expected
    if isinstance(expected, (list, tuple)):
        same_length = isinstance(answer, (list, tuple)) and len(answer) == len(expected)
        return same_length and all(_same(a, e) for a, e in zip(answer, expected, strict=True))
    if isinstance(expected, float) and not isinstance(answer, str):
        return math.isclose(float(answer), expected, rel_tol=1e-9, abs_tol=1e-12)
    return bool(answer == expected)


def _unanswered(answer: Any) -> bool:
    if answer is ... or answer is None:
        return True
    written = inspect.unwrap(answer) if callable(answer) else answer  # beneath a decorator such as cache
    if isinstance(written, FunctionType):
        return _has_no_body(written)
    if isinstance(answer, Mapping):
        return any(map(_unanswered, answer.values()))
    if (
        isinstance(answer, Collection)
        and not isinstance(answer, (str, bytes))
        and not hasattr(answer, "dtype")
    ):
        return any(item is ... or item is None for item in answer)
    return False


def _has_no_body(function: Callable[..., Any]) -> bool:
    """Whether a function only holds ``...``, ``pass`` or a docstring: it loads one constant and returns it."""
    working = [
        i for i in dis.get_instructions(function) if i.opname not in ("RESUME", "NOP", "COPY_FREE_VARS")
    ]
    loads = all(i.opname.startswith(("LOAD_CONST", "RETURN_")) for i in working)
    return loads and all(i.argval in (None, ...) for i in working if "CONST" in i.opname)


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _prose(text: str) -> str:
    """Escaped text in which `code` is set as code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


#: For a whole lesson, since every lesson has a question: figures follow the theme, and printed text breaks between
#: words, where JupyterLab breaks it anywhere.
_LESSON = ".jp-Notebook:has(.remat-box)"
_STYLE = (
    f"{dark_figures(_LESSON)}{_LESSON} .jp-OutputArea-output pre{{word-break:normal;overflow-wrap:anywhere}}"
)


def _box(look: str, inner: str) -> str:
    sign, _, colour = _LOOK[look]
    sign = f"<span style='color:{colour};font-weight:bold'>{sign}</span> " if sign else ""
    # Inherited colours, so that the box reads on a light and on a dark page alike.
    return (
        f"<div class='remat-box' style='border-left:4px solid {colour};padding:.35em .8em;margin:.3em 0;"
        f"line-height:1.5;max-width:46em'>{sign}{inner}</div>"
    )


@dataclass(frozen=True)
class LiveTable:
    """Which value is held while each op runs: a row per value, a column per op. See :func:`live_table`.

    Attributes
    ----------
    ops, values : names of the columns and rows
    held : bool array, shape (values, ops)
    bytes : int64 array, shape (ops,): held while each op runs, workspace included
    """

    ops: tuple[str, ...]
    values: tuple[str, ...]
    categories: tuple[str, ...]
    held: np.ndarray
    bytes: np.ndarray

    def __repr__(self) -> str:
        width = max(map(len, self.values))
        rows = [
            f"{name:>{width}} {''.join('█' if x else '·' for x in row)}"
            for name, row in zip(self.values, self.held)
        ]
        return "\n".join(rows)

    def _repr_html_(self) -> str:
        cell = "border:1px solid rgba(128,128,128,.35);padding:0 .35em;text-align:center;white-space:nowrap"
        peak = self.bytes == self.bytes.max()
        head = "".join(
            f"<th style='{cell};padding:.4em 0;vertical-align:bottom;font-weight:normal'>"
            "<span style='writing-mode:vertical-rl;transform:rotate(180deg);white-space:nowrap'>"
            f"{escape(op)}</span></th>"
            for op in self.ops
        )
        body = ""
        for name, category, row in zip(self.values, self.categories, self.held):
            colour = "rgba(0,158,115,.75)" if "gradient" in category else "rgba(0,114,178,.75)"
            cells = "".join(f"<td style='{cell};{f'background:{colour}' if x else ''}'></td>" for x in row)
            body += (
                f"<tr><th style='{cell};text-align:right;font-weight:normal'>{escape(name)}</th>{cells}</tr>"
            )
        totals = "".join(
            f"<td style='{cell};{'font-weight:bold;text-decoration:underline' if top else ''}'>"
            f"{format_bytes(int(x)).replace('.00', '').replace('.0 ', ' ')}</td>"
            for x, top in zip(self.bytes, peak)
        )
        return (
            f"<table style='border-collapse:collapse;font-size:90%;margin:0'><thead><tr><th></th>{head}</tr></thead>"
            f"<tbody>{body}<tr><th style='{cell};text-align:right'>held</th>{totals}</tr></tbody></table>"
        )


def live_table(schedule: Schedule) -> LiveTable:
    """The life of every value of a small schedule, as a table: filled where the value is held.

    A value is held while the op runs that writes it, and until it is freed.
    """
    joint, trace = schedule.joint, simulate(schedule)
    live = joint.resident & False
    ops, columns, held_bytes = [], [], []
    for step, action in enumerate(schedule):
        if action.kind == "free":
            live[action.index] = False
            continue
        live[joint.writes.row(action.index)] = True
        ops.append(action.name)
        columns.append(live.copy())
        held_bytes.append(int(trace.during[step]))
    shown = [v for v in range(joint.n_values) if not joint.resident[v]]
    return LiveTable(
        ops=tuple(ops),
        values=tuple(joint.value_names[v] for v in shown),
        categories=tuple(CATEGORIES[joint.value_category[v]] for v in shown),
        held=np.array(columns).T[shown],
        bytes=np.array(held_bytes, dtype=np.int64),
    )


# -- graphs --------------------------------------------------------------------------------------------------
#: Fills of the segments of a sequence, in turn; translucent, so that they suit any background.
_SEGMENTS = ("rgba(0,114,178,.35)", "rgba(0,158,115,.35)", "rgba(230,159,0,.35)", "rgba(181,85,139,.35)")


def canonical(graph: ComputationGraph, *lower_sets: Iterable[str]) -> LowerSetSequence:
    """The sequence L_1 < ... < L_k = V of a canonical strategy, from names of nodes. V may be left out.

    Raises
    ------
    InvalidGraph
        If a set names no node, is no lower set, or does not contain the one before it.

    >>> graph = ComputationGraph.from_nodes([{"name": x, "memory": 1} for x in "ab"], ["ab"])
    >>> canonical(graph, {"a"})
    LowerSetSequence(2 segments, 1 of 2 values kept)
    """
    from .solvers.canonical import sequence_of
    from .solvers.lower_sets import bits_of, check_sequence

    wanted = [_known(graph, names) for names in lower_sets]
    if not wanted or len(wanted[-1]) < len(graph):
        wanted.append(set(graph.names))
    bits = np.array([bits_of([graph.index_of[name] for name in names], len(graph)) for names in wanted])
    return sequence_of(graph, check_sequence(graph, bits))


@dataclass(frozen=True)
class Drawing:
    """A picture as SVG in the colours of the page around it."""

    svg: str
    words: str

    def __repr__(self) -> str:
        return self.words

    def _repr_html_(self) -> str:
        return self.svg


def draw(graph: ComputationGraph, *lower_sets: Iterable[str], sizes: bool = True) -> Drawing:
    """A small graph, left to right, with its nodes filled by segment and those on a boundary framed.

    Parameters
    ----------
    graph : ComputationGraph
    lower_sets : one lower set, or an increasing sequence of them, as names of nodes; none draws the graph alone
    sizes : whether to write M_v under each name

    Raises
    ------
    InvalidGraph
        If a set names no node of this graph.
    """
    inside = [_known(graph, names) for names in lower_sets]
    segment = {
        v: next((i for i, names in enumerate(inside) if name in names), len(inside))
        for v, name in enumerate(graph.names)
    }
    edges = graph.edges.tolist()
    framed = {u for u, v in edges if segment[u] < segment[v]}
    column, lane = _places(graph)
    jumps = [column[v] - column[u] for u, v in edges if lane[u] == lane[v] and column[v] > column[u] + 1]
    top = 12 + 15 * max(jumps, default=0)
    right, width, height = 92, 66, 40 if sizes else 26
    down = height + 22
    x = {v: 8 + right * column[v] for v in segment}
    y = {v: top + down * lane[v] for v in segment}
    mark = f"arrow-{uuid4().hex[:8]}"
    body = (
        f"<defs><marker id='{mark}' viewBox='0 0 8 8' refX='7' refY='4' markerWidth='7' markerHeight='7' orient='auto'>"
        "<path d='M0 0L8 4L0 8z' fill='currentColor'/></marker></defs>"
    )
    for u, v in edges:
        if lane[u] == lane[v] and column[v] > column[u] + 1:
            rise = 15 * (column[v] - column[u])
            start, end = x[u] + width * 0.7, x[v] + width * 0.3
            path = f"M{start} {y[u]}C{start + 12} {y[u] - rise} {end - 12} {y[v] - rise} {end} {y[v] - 1}"
        else:
            path = f"M{x[u] + width} {y[u] + height / 2}L{x[v] - 1} {y[v] + height / 2}"
        body += f"<path d='{path}' fill='none' stroke='currentColor' stroke-opacity='.6' marker-end='url(#{mark})'/>"
    for v, name in enumerate(graph.names):
        fill = (
            _SEGMENTS[segment[v] % len(_SEGMENTS)] if segment[v] < max(len(inside), 1) and inside else "none"
        )
        frame = (
            "stroke='#d55e00' stroke-width='3'"
            if v in framed
            else "stroke='currentColor' stroke-opacity='.5'"
        )
        middle = x[v] + width / 2
        body += (
            f"<rect x='{x[v]}' y='{y[v]}' width='{width}' height='{height}' rx='6' fill='{fill}' {frame}/>"
        )
        body += f"<text x='{middle}' y='{y[v] + 17}' text-anchor='middle' fill='currentColor'>{escape(name)}</text>"
        if sizes:
            amount = format_bytes(int(graph.memory[v])).replace(".00", "").replace(".0 ", " ")
            body += (
                f"<text x='{middle}' y='{y[v] + 33}' text-anchor='middle' font-size='11' fill='currentColor' "
                f"fill-opacity='.75'>{amount}</text>"
            )
    wide, tall = 8 + right * max(column) + width + 8, top + down * max(lane) + height + 8
    words = f"{graph.name or 'graph'}: {len(graph)} nodes, {len(edges)} edges" + "".join(
        f"; V_{i + 1} = {', '.join(n for v, n in enumerate(graph.names) if segment[v] == i)}"
        for i in range(len(inside))
    )
    svg = (
        f"<svg role='img' aria-label='{escape(words, quote=True)}' viewBox='0 0 {wide} {tall}' width='{wide}' "
        "style='max-width:100%;height:auto' font-size='13' font-family='system-ui, DejaVu Sans, sans-serif'>"
        f"{body}</svg>"
    )
    return Drawing(svg, words)


def _known(graph: ComputationGraph, names: Iterable[str]) -> set[str]:
    """The names as a set, if they are all nodes of the graph."""
    found = set(names)
    if unknown := sorted(found - set(graph.names)):
        raise InvalidGraph(f"{unknown[0]!r} is no node; there are {', '.join(graph.names)}")
    return found


def _places(graph: ComputationGraph) -> tuple[list[int], list[int]]:
    """Column (longest path from a source) and lane of every node; a node prefers its first input's lane."""
    column, lane = [0] * len(graph), [0] * len(graph)
    taken: set[tuple[int, int]] = set()
    for v in range(len(graph)):
        inputs = graph.predecessors.row(v).tolist()
        column[v] = max((column[u] + 1 for u in inputs), default=0)
        lane[v] = min((lane[u] for u in inputs), default=0)
        while (column[v], lane[v]) in taken:
            lane[v] += 1
        taken.add((column[v], lane[v]))
    return column, lane
