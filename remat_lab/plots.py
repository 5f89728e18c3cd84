"""Figures for papers: the static twins of the views, in matplotlib. Each returns the Axes it drew on.

Colours are those of the views, told apart by shape or dash as well, so that they survive a grey print. Everything
is drawn as vectors; long schedules are thinned to what a page can show, keeping every peak.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PathCollection, PolyCollection
from matplotlib.lines import Line2D
from matplotlib.path import Path
from matplotlib.ticker import FuncFormatter

from .comparison import check_table
from .joint import joint_of
from .layout import layout
from .palette import CATEGORY_COLOURS, SERIES_COLOURS, SERIES_DASHES, STATE_COLOURS, dark_figures
from .plan import Frontier, Plan, vanilla_peak
from .schedule import Schedule
from .simulate import Trace, simulate
from .units import format_bytes

_INK, _SOFT, _LINE = "#1f2328", "#57606a", "#c4cad2"
#: The most moments drawn of one schedule: finer than any printed page.
_MOST = 2400


def plot_memory(
    shown: Any,
    *,
    ax: Axes | None = None,
    x: str = "step",
    budget: bool = True,
    peak: bool = True,
    legend: bool = True,
) -> Axes:
    """Memory over a schedule: areas by category for one trace, lines for several.

    Parameters
    ----------
    shown : Trace, Plan, Schedule or Measurement; or a list, or a dict from label to one of them
    ax : Axes, optional; default: a new figure
    x : "step" counts actions, "time" is the clock in the graph's unit
    budget, peak : whether to draw the budget line and to mark the peak
    legend : whether to add a legend

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ValueError
        If ``x`` is neither, or there is nothing to show.
    """
    if x not in ("step", "time"):
        raise ValueError(f"x must be 'step' or 'time', got {x!r}")
    several = isinstance(shown, (Mapping, list, tuple))
    series = _named(shown)
    if not series:
        raise ValueError("nothing to plot: got no trace")
    axes = _axes(ax, (7.2, 2.9))
    if several:
        for i, (label, trace) in enumerate(series.items()):
            style: dict[str, Any] = {"color": SERIES_COLOURS[i % 6], "linestyle": SERIES_DASHES[i % 6]}
            edges, rows = _thinned(trace, x, trace.during[:, None])
            axes.stairs(rows[:, 0], edges, baseline=None, label=label, linewidth=1.4, **style)
            if peak:
                _mark_peak(axes, trace, x, style["color"], text=False)
    else:
        trace = next(iter(series.values()))
        split = getattr(trace, "by_category", None)
        if split is None:
            edges, rows = _thinned(trace, x, trace.during[:, None])
            axes.stairs(
                rows[:, 0], edges, fill=True, color=CATEGORY_COLOURS["activation"][0], label="measured"
            )
        else:
            edges, rows = _thinned(trace, x, split)
            tops = np.cumsum(rows, axis=1)
            for k, (name, colours) in enumerate(CATEGORY_COLOURS.items()):
                if not rows[:, k].any():
                    continue
                below = tops[:, k] - rows[:, k]
                axes.stairs(
                    tops[:, k], edges, baseline=below, fill=True, color=colours[0], linewidth=0, label=name
                )
        if peak:
            _mark_peak(axes, trace, x, _INK, text=True)
    budgets = {t.budget for t in series.values() if getattr(t, "budget", None) is not None}
    if budget and len(budgets) == 1:  # several budgets are several lines that say nothing
        amount = budgets.pop()
        axes.axhline(amount, color=_INK, linewidth=1, linestyle=(0, (5, 3)), zorder=3)
        axes.annotate(
            f"budget {format_bytes(amount)}", (0.008, amount), xycoords=("axes fraction", "data"),
            xytext=(0, 3), textcoords="offset points", fontsize=8, color=_INK, zorder=5,
        )  # fmt: skip
    unit = next(iter(series.values())).schedule.joint.time_unit if x == "time" else ""
    axes.set_xlabel("step" if x == "step" else {"s": "time (s)", "flop": "time (FLOP)"}.get(unit, "time"))
    axes.set_ylabel("memory")
    axes.set_ylim(0, 1.12 * max(1, *(int(t.during.max(initial=0)) for t in series.values())))
    axes.margins(x=0)
    _bytes_axis(axes.yaxis)
    if legend and axes.get_legend_handles_labels()[0]:
        _legend(axes)
    return axes


def plot_graph(
    shown: Any, *, ax: Axes | None = None, columns: int | None = None, names: bool | None = None
) -> Axes:
    """The computation graph as a hairpin: forward ops above, each backward op straight below its forward op.

    Parameters
    ----------
    shown : a problem (ComputationGraph, JointGraph, Chain, CapturedModel), or a Plan, Trace or Schedule, whose
        recomputed ops are then marked
    ax : Axes, optional; default: a new figure as high as the graph needs
    columns : columns a row, default 64 at most
    names : whether to write the forward ops' names; default: for at most 24 columns

    Returns
    -------
    matplotlib.axes.Axes
    """
    schedule = shown if isinstance(shown, Schedule) else getattr(shown, "schedule", None)
    if schedule is None and not hasattr(shown, "joint"):
        raise TypeError(f"shown must be a problem, a Plan, a Trace or a Schedule, got {type(shown).__name__}")
    joint = joint_of(shown if schedule is None else schedule)
    places = layout(joint)
    width = columns or _even(places.columns, 64)
    px, py, row = places.places(width)
    x, y = px.astype(float), -py.astype(float)
    names = places.columns <= 24 if names is None else names
    height = (float(py.max(initial=0)) + 1) * 0.115 * 64 / max(width, 24) + (0.9 if names else 0.4)
    axes = _axes(ax, (7.2, max(0.9, height)))
    _wires(axes, places.edges, x, y, row, places.backward)
    ran = schedule.run_counts > 0 if schedule is not None else np.ones(joint.n_ops, dtype=bool)
    again = schedule.computed_again & ~joint.op_backward if schedule is not None else np.zeros_like(ran)
    once = ran & ~again & ~joint.op_backward
    idle = ~ran
    axes.plot(x[idle], y[idle], linestyle="", marker=".", markersize=2, color=_LINE, zorder=3)
    for kind, chosen, label in (
        ("kept", once, "computed once" if schedule is not None else "forward"),
        ("recomputed", again, "computed again"),
        ("gradient", joint.op_backward, "backward"),
    ):
        if chosen.any():
            shape = _SHAPES[kind]
            marks = np.stack([x[chosen], y[chosen]], axis=1)[:, None, :] + shape[None, :, :]
            colour = STATE_COLOURS[kind][0]
            axes.add_collection(
                PolyCollection(list(marks), facecolors=colour, linewidths=0, label=label, zorder=3)
            )
    if names:
        for op in np.flatnonzero(~joint.op_backward).tolist():
            axes.annotate(
                joint.op_names[op], (x[op], y[op] + 0.45), rotation=55, fontsize=6.5, color=_SOFT,
                ha="left", va="bottom", rotation_mode="anchor",
            )  # fmt: skip
    axes.set_aspect("equal")
    axes.set_xlim(-1, max(1.0, float(x.max(initial=0)) + 1))
    axes.set_ylim(float(y.min(initial=0)) - 1, float(y.max(initial=0)) + (1 if not names else 3.2))
    axes.set_axis_off()
    handles = [
        Line2D([], [], linestyle="", marker=marker, color=STATE_COLOURS[kind][0], label=label, markersize=5)
        for kind, marker, label, any_ in (
            ("kept", "s", "computed once" if schedule is not None else "forward", once.any()),
            ("recomputed", "D", "computed again", again.any()),
            ("gradient", "o", "backward", joint.op_backward.any()),
        )
        if any_
    ]
    axes.legend(
        handles=handles,
        loc="lower right",
        bbox_to_anchor=(1, 1),
        ncols=3,
        frameon=False,
        fontsize=8,
        borderpad=0,
    )
    return axes


def plot_frontier(
    shown: Frontier | Iterable[Frontier] | Mapping[str, Frontier],
    *,
    ax: Axes | None = None,
    legend: bool = True,
) -> Axes:
    """Overhead against budget: every point of one or several methods, as steps, and vanilla's peak.

    Parameters
    ----------
    shown : Frontier, or a list, or a dict from label to Frontier
    ax : Axes, optional; default: a new figure

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ValueError
        If there is no frontier.
    """
    if isinstance(shown, Frontier):
        series = {shown.method: shown}
    elif isinstance(shown, Mapping):
        series = dict(shown)
    else:
        items = list(shown) if isinstance(shown, Iterable) and not isinstance(shown, str) else [shown]
        series = {getattr(f, "method", ""): f for f in items}
    for found in series.values():
        if not isinstance(found, Frontier):
            raise TypeError(
                f"shown must be a Frontier, or a list or a dict of them, got {type(found).__name__}: "
                "rl.frontier(problem, method) makes one"
            )
    if not series:
        raise ValueError("nothing to plot: got no frontier")
    axes = _axes(ax, (4.6, 3.1))
    whole = max(vanilla_peak(f.problem) for f in series.values() if f.accounting == "simulated") if any(
        f.accounting == "simulated" for f in series.values()
    ) else max(int(f.budget[-1]) for f in series.values())  # fmt: skip
    right = 1.03 * max(whole, *(int(f.budget[-1]) for f in series.values()))
    for i, (label, found) in enumerate(series.items()):
        budget = np.append(found.budget.astype(float), right)
        ratio = np.append(found.overhead_ratio, found.overhead_ratio[-1])
        axes.step(
            budget, 100 * ratio, where="post", color=SERIES_COLOURS[i % 6], linestyle=SERIES_DASHES[i % 6],
            marker="osDv^P"[i % 6], markersize=3.2, markevery=list(range(len(found))), linewidth=1.4, label=label,
        )  # fmt: skip
    axes.axvline(whole, color=_SOFT, linewidth=0.9)
    axes.annotate(
        "vanilla", (whole, 1), xycoords=("data", "axes fraction"), xytext=(-3, -3), textcoords="offset points",
        ha="right", va="top", fontsize=8, color=_SOFT,
    )  # fmt: skip
    axes.set_xlim(right=right)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("budget")
    axes.set_ylabel("overhead (%)")
    _bytes_axis(axes.xaxis)
    if legend and len(series) > 1:
        axes.legend(frameon=False, fontsize=8)
    return axes


def plot_comparison(frame: Any, *, ax: Axes | None = None, legend: bool = True) -> Axes:
    """Overhead against budget, one line per method of a comparison; a gap in a line is a budget it cannot meet.

    Budgets that were asked for in percent are written so along the top.

    Parameters
    ----------
    frame : DataFrame from ``compare()``, or the rows of one problem of a sweep
    ax : Axes, optional; default: a new figure

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    ValueError
        If the table is of several problems, or has no plan within a budget.
    """
    check_table(frame, "frame", ("method", "budget", "overhead_ratio"))
    if "problem" in frame and frame["problem"].nunique() > 1:
        raise ValueError(
            f"the table is of {frame['problem'].nunique()} problems: plot one, frame[frame['problem'] == "
            f"{frame['problem'].iloc[0]!r}]"
        )
    bounded = frame[frame["budget"].notna()]
    if not bounded["overhead_ratio"].notna().any():
        raise ValueError("nothing to plot: the table has no plan within a budget")
    axes = _axes(ax, (5.6, 3.3))
    for i, (method, rows) in enumerate(bounded.groupby("method", sort=False)):
        rows = rows.sort_values("budget")
        ratio = 100 * rows["overhead_ratio"].to_numpy(dtype=float)
        label = str(method) if not np.isnan(ratio).all() else f"{method} (no plan)"
        axes.plot(
            rows["budget"].to_numpy(dtype=float), ratio, color=SERIES_COLOURS[i % 6], marker="osDv^P*Xdp<>h"[i % 13],
            linestyle=SERIES_DASHES[i % 6], markersize=4, linewidth=1.3, label=label,
        )  # fmt: skip
    _percents(axes, bounded)
    axes.set_ylim(bottom=0 if np.nanmax(100 * bounded["overhead_ratio"]) > 0 else None)
    axes.set_xlabel("budget")
    axes.set_ylabel("overhead (%)")
    _bytes_axis(axes.xaxis)
    if legend:
        axes.legend(loc="upper left", bbox_to_anchor=(1, 1), frameon=False, fontsize=8, borderpad=0)
    return axes


# -- parts -------------------------------------------------------------------------------------------------------
def _axes(ax: Axes | None, size: tuple[float, float]) -> Axes:
    if ax is None:
        _, ax = plt.subplots(figsize=size, layout="constrained")
        _follow_theme(ax.figure)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(_LINE)
    ax.tick_params(colors=_SOFT, labelsize=8, color=_LINE)
    ax.xaxis.label.set(color=_INK, fontsize=9)
    ax.yaxis.label.set(color=_INK, fontsize=9)
    return ax


def _follow_theme(figure: Any) -> None:
    """Put a style sheet beside a white figure that a notebook is going to show."""
    if "inline" not in plt.get_backend() or sum(figure.get_facecolor()[:3]) < 2.4:
        return
    from IPython.display import display

    rules = (
        dark_figures(".jp-OutputArea:has(.rl-figure)") + ".jp-OutputArea-child:has(.rl-figure){display:none}"
    )
    display({"text/html": f"<style class='rl-figure'>{rules}</style>", "text/plain": ""}, raw=True)


def _bytes_axis(axis: Any) -> None:
    axis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))


def _percents(axes: Axes, rows: Any, most: int = 8) -> None:
    """Ticks along the top at the budgets of a comparison that were given in percent."""
    if "asked" not in rows:
        return
    asked = rows[rows["asked"].astype(str).str.endswith("%")]
    marks = dict(sorted(zip(asked["budget"].astype(float), asked["asked"])))
    if not marks:
        return
    chosen = list(marks)[:: -(-len(marks) // most)]
    top = axes.secondary_xaxis("top")
    top.set_xticks(chosen, [marks[budget] for budget in chosen])
    top.tick_params(colors=_SOFT, labelsize=8, color=_LINE)
    top.spines["top"].set_visible(False)


def _short(value: float) -> str:
    """An axis label: bytes without zeros that say nothing."""
    number, _, unit = format_bytes(value).partition(" ")
    return "0" if value == 0 else f"{float(number):g} {unit}"


def _legend(axes: Axes) -> None:
    axes.legend(
        loc="lower right",
        bbox_to_anchor=(1, 1),
        ncols=6,
        frameon=False,
        fontsize=8,
        handlelength=1.6,
        borderpad=0,
    )


def _named(shown: Any) -> dict[str, Any]:
    """Label -> something with ``during``; a plan or a schedule is simulated."""
    if isinstance(shown, Mapping):
        return {str(label): _measured(item) for label, item in shown.items()}
    items = list(shown) if isinstance(shown, (list, tuple)) else [shown]
    out: dict[str, Any] = {}
    for i, item in enumerate(items):
        trace = _measured(item)
        kind = "" if isinstance(trace, Trace) else " (measured)"
        label = (trace.method or f"schedule {i + 1}") + kind
        if label in out and trace.budget is not None:
            label = f"{label}, {format_bytes(trace.budget)}"
        out[label if label not in out else f"{label} ({i + 1})"] = trace
    return out


def _measured(item: Any) -> Any:
    if isinstance(item, (Plan, Schedule)):
        return simulate(item)
    if not hasattr(item, "during"):
        raise TypeError(f"expected a Trace, Plan, Schedule or Measurement, got {type(item).__name__}")
    if not len(item.during):
        raise ValueError("nothing to plot: the schedule is empty or the run was not measured")
    return item


def _edges_of(trace: Any, x: str) -> np.ndarray:
    if x == "step":
        return np.arange(len(trace.during) + 1, dtype=np.float64)
    if not isinstance(trace, Trace):
        trace = simulate(trace.schedule)  # a measurement's actions on the predicted clock
    return np.concatenate([[0.0], trace.time])


def _thinned(trace: Any, x: str, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Edges and rows, at most :data:`_MOST`: of every bucket of actions the one with the largest ``during``."""
    edges = _edges_of(trace, x)
    if len(rows) <= _MOST:
        return edges, rows
    cut = np.unique(np.linspace(0, len(rows), _MOST + 1).astype(np.int64))
    best = [a + int(np.argmax(trace.during[a:b])) for a, b in pairwise(cut.tolist())]
    return edges[cut], rows[best]


def _mark_peak(axes: Axes, trace: Any, x: str, colour: Any, text: bool) -> None:
    step = int(np.argmax(trace.during))
    edges = _edges_of(trace, x)
    at, top = (edges[step] + edges[step + 1]) / 2, int(trace.during[step])
    axes.plot([at], [top], marker=7, color=colour, markersize=6, clip_on=False, zorder=6)
    if text:
        late = step > 0.75 * len(trace.during)
        axes.annotate(
            f"peak {format_bytes(top)}", (at, top), xytext=(-7 if late else 7, 3), textcoords="offset points",
            ha="right" if late else "left", fontsize=8, color=_INK, zorder=6,
        )  # fmt: skip


def _even(columns: int, most: int) -> int:
    """Columns a row so that all rows are about equally long."""
    rows = max(1, -(-columns // most))
    return max(1, -(-columns // rows))


def _polygon(points: list[tuple[float, float]]) -> np.ndarray:
    return np.array(points, dtype=float)


_SHAPES = {
    "kept": _polygon([(-0.34, -0.34), (0.34, -0.34), (0.34, 0.34), (-0.34, 0.34)]),
    "recomputed": _polygon([(0, -0.46), (0.46, 0), (0, 0.46), (-0.46, 0)]),
    "gradient": 0.36
    * np.stack([np.cos(np.linspace(0, 2 * np.pi, 21)), np.sin(np.linspace(0, 2 * np.pi, 21))], axis=1),
}


def _wires(
    axes: Axes, edges: np.ndarray, x: np.ndarray, y: np.ndarray, row: np.ndarray, backward: np.ndarray
) -> None:
    """Edges within a row: straight to the next column, bowed away from the fold when they skip."""
    straight, bows = [], []
    for u, v in edges.tolist():
        if row[u] != row[v]:
            out = -0.6 if backward[u] else 0.6
            straight += [[(x[u], y[u]), (x[u] + out, y[u])], [(x[v] - out, y[v]), (x[v], y[v])]]
        elif abs(x[u] - x[v]) <= 1:
            straight.append([(x[u], y[u]), (x[v], y[v])])
        else:
            bow = min(0.42 + 0.16 * np.log2(abs(x[u] - x[v])), 1.0)
            level = min(y[u], y[v]) - bow if backward[u] else max(y[u], y[v]) + bow
            near = 0.15 * (x[v] - x[u])
            bows.append(
                Path(
                    [(x[u], y[u]), (x[u] + near, level), (x[v] - near, level), (x[v], y[v])],
                    [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4],
                )
            )
    axes.add_collection(LineCollection(straight, colors=_LINE, linewidths=0.7, zorder=1))
    if bows:
        axes.add_collection(
            PathCollection(bows, facecolors="none", edgecolors=_LINE, linewidths=0.7, zorder=1)
        )
