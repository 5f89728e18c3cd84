"""leaderboard(): the methods of a comparison or a sweep, best first."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from .comparison import ROUNDING, check_table, has_plan
from .palette import CATEGORY_COLOURS
from .simulate import Trace, simulate
from .units import format_bytes

if TYPE_CHECKING:
    import pandas as pd

    from .plan import Plan

#: A picture of memory in the table: width, height, and the most columns it is thinned to.
_WIDE, _HIGH, _MOST = 150, 26, 75


@dataclass(frozen=True, eq=False)
class Leaderboard:
    """A ranking; shows itself as a table in a notebook or a terminal.

    Attributes
    ----------
    table : DataFrame, one row per method, best first: ``method``; ``plans`` made and ``cells`` asked;
        ``mean_gap`` and ``worst_gap`` over the plans made; ``mean_overhead_ratio``; ``seconds`` in all
    frame : the comparison it was made from
    """

    table: pd.DataFrame
    frame: pd.DataFrame

    def plan(self, method: str, budget: int | None = None) -> Plan:
        """The plan of a method at a budget of the comparison (bytes); default: at its tightest.

        Raises
        ------
        ValueError
            If the comparison has no such plan; the message says what went wrong, or what there is.
        """
        rows = self.frame[self.frame["method"] == method]
        if not len(rows):
            raise ValueError(f"no method {method!r} in this comparison; there are {self._listed()}")
        if budget is not None:
            rows = rows[rows["budget"] == budget]
            if not len(rows):
                raise ValueError(f"{method!r} was not compared at a budget of {budget} B")
        plans = [] if "plan" not in rows else [plan for plan in rows["plan"] if plan is not None]
        if not plans:
            errors = [error for error in rows["error"] if error]
            raise ValueError(
                f"{method!r} has no plan: {errors[0] if errors else 'a sweep keeps figures only, solve() again'}"
            )
        return min(plans, key=lambda plan: (plan.peak, np.inf if plan.budget is None else plan.budget))

    def play(self, method: str, budget: int | None = None) -> Any:
        """The player of that plan (:func:`remat_lab.play`)."""
        from .widgets.play import play

        return play(self.plan(method, budget))

    def _listed(self) -> str:
        return ", ".join(self.table["method"])

    @property
    def proven(self) -> tuple[int, int]:
        """At how many of the cells (problem and budget) the best known overhead is proven, and of how many."""
        keys = ["problem", "budget"] if "problem" in self.frame else ["budget"]
        cells = [cell for _, cell in self.frame.groupby(keys, dropna=False) if has_plan(cell).any()]
        return sum(_is_proven(cell) for cell in cells), len(cells)

    def _rows(self) -> list[tuple[str, ...]]:
        def percent(x: float) -> str:
            return "–" if np.isnan(x) else f"{100 * x:.1f}%"

        return [
            (
                str(rank),
                row.method,
                percent(row.mean_gap),
                percent(row.worst_gap),
                percent(row.mean_overhead_ratio),
                f"{row.plans} of {row.cells}",
                f"{row.seconds:.2f}",
            )
            for rank, row in enumerate(self.table.itertuples(index=False), start=1)
        ]

    _HEAD = ("", "method", "mean gap", "worst gap", "mean overhead", "plans", "seconds")

    def _note(self) -> str:
        proven, cells = self.proven
        return (
            "Gap: overhead above the best known plan at the same budget, in plain steps; methods with more plans "
            f"come first. The best known is proven optimal in {proven} of {cells} cells."
        )

    def __repr__(self) -> str:
        rows = [self._HEAD, *self._rows()]
        widths = [max(len(row[i]) for row in rows) for i in range(len(self._HEAD))]
        lines = [
            "  ".join(x.ljust(w) if i == 1 else x.rjust(w) for i, (x, w) in enumerate(zip(row, widths)))
            for row in rows
        ]
        return "\n".join([*lines, self._note()])

    def _repr_html_(self) -> str:
        pictures = self._pictures()
        head = "".join(f"<th>{title}</th>" for title in (*self._HEAD, *(["memory"] if pictures else [])))
        body = ""
        for row in self._rows():
            cells = "".join(
                f'<td style="text-align:{"left" if i == 1 else "right"}">{escape(x)}</td>'
                for i, x in enumerate(row)
            )
            if pictures:
                cells += f"<td>{pictures.get(row[1], '')}</td>"
            body += f"<tr>{cells}</tr>"
        return (
            f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><p>{escape(self._note())}"
            f"{' Memory: of its plan at the tightest budget it can meet.' if pictures else ''}</p>"
        )

    def _pictures(self) -> dict[str, str]:
        traces = {}
        for method in self.table["method"]:
            try:
                traces[method] = simulate(self.plan(method))
            except ValueError:
                continue
        top = max((trace.peak for trace in traces.values()), default=1)
        return {method: _sparkline(trace, top) for method, trace in traces.items()}


def leaderboard(frame: pd.DataFrame) -> Leaderboard:
    """Rank the methods of a table made by ``compare()`` or ``sweep()``.

    Methods with more plans come first; then those with the smaller mean gap, then the quicker ones. Gaps are
    taken over the plans a method made, so they compare among methods with equally many.

    Raises
    ------
    TypeError, ValueError
        If it is no table, or lacks a column.
    """
    check_table(frame, "frame", ("method", "budget", "overhead_ratio", "gap", "solve_seconds", "status"))
    planned = frame.assign(planned=has_plan(frame)).groupby("method", sort=False)
    table = planned.agg(
        plans=("planned", "sum"),
        cells=("planned", "size"),
        mean_gap=("gap", "mean"),
        worst_gap=("gap", "max"),
        mean_overhead_ratio=("overhead_ratio", "mean"),
        seconds=("solve_seconds", "sum"),
    ).reset_index()
    order = np.lexsort((table["seconds"], table["mean_gap"].fillna(np.inf), -table["plans"]))
    return Leaderboard(table.iloc[order].reset_index(drop=True), frame)


def _is_proven(cell: pd.DataFrame) -> bool:
    """Whether some bound reaches the least overhead of the rows of one problem and budget."""
    if "bound" not in cell or cell["bound"].isna().all():
        return False
    best = cell.loc[has_plan(cell), "overhead"].min()
    return bool(cell["bound"].max() >= best - ROUNDING * max(1.0, best))


def _sparkline(trace: Trace, top: int) -> str:
    """Memory over the steps as a small SVG, the budget as a dashed line."""
    during = trace.during
    cut = np.linspace(0, len(during), min(_MOST, len(during)) + 1).astype(np.int64)
    tops = [int(during[a:b].max()) for a, b in pairwise(cut.tolist())]
    step = _WIDE / max(1, len(tops))

    def height(amount: int) -> float:
        return _HIGH - (_HIGH - 2) * min(1.0, amount / max(1, top))

    area = f"M0 {_HIGH}" + "".join(f"V{height(y):.1f}h{step:.2f}" for y in tops) + f"V{_HIGH}z"
    line = ""
    if trace.budget is not None and trace.budget <= top:
        y = height(trace.budget)
        line = f'<path d="M0 {y:.1f}h{_WIDE}" stroke="currentColor" stroke-dasharray="4 3" stroke-width="1"/>'
    title = f"peak {format_bytes(trace.peak)}, overhead {trace.overhead_ratio:.1%}"
    return (
        f'<svg width="{_WIDE}" height="{_HIGH}" role="img" aria-label="{title}"><title>{title}</title>'
        f'<path d="{area}" fill="{CATEGORY_COLOURS["activation"][0]}"/>{line}</svg>'
    )
