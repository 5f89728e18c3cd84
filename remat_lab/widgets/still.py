"""Still pictures in SVG, without matplotlib: quick enough to make with every output of a notebook."""

from __future__ import annotations

from html import escape

import numpy as np

from ..joint import JointGraph
from ..layout import layout
from ..palette import CATEGORY_COLOURS, STATE_COLOURS
from ..simulate import TRACE_CATEGORIES, Trace
from ..units import format_bytes
from .film import describe, strip, use_of_ops

_WIDTH, _LEFT, _RIGHT = 900, 70, 20
_SLOTS = 320
_INK, _SOFT, _LINE = "#1f2328", "#57606a", "#d5dae0"


def trace_picture(trace: Trace) -> str:
    """The graph with what is recomputed, and the memory timeline with budget and peak."""
    graph, graph_height = _graph(trace.joint, use_of_ops(trace.schedule), 34)
    plot, plot_height = _memory(trace, graph_height + 44, 170)
    height = graph_height + plot_height + 54
    title = _text(_LEFT, 20, describe(trace), size=14, weight=600)
    return _document(height, title + graph + plot)


def traces_picture(traces: dict[str, Trace]) -> str:
    """Several timelines under one another on one scale."""
    top = max((t.peak for t in traces.values()), default=1)
    span = max((float(t.time[-1]) for t in traces.values() if len(t.time)), default=0.0)
    y: float = 10
    parts = []
    for name, trace in traces.items():
        parts.append(_text(_LEFT, y + 12, name, size=13, weight=600))
        plot, height = _memory(trace, y + 22, 110, top=top, span=span)
        parts.append(plot)
        y += height + 26
    return _document(y + 6, "".join(parts))


def _document(height: float, body: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" width="{_WIDTH}" '
        f'height="{height:.0f}" font-family="system-ui, DejaVu Sans, sans-serif" font-size="11">'
        f'<rect width="100%" height="100%" fill="#fff"/>{body}</svg>'
    )


def _text(x: float, y: float, text: str, *, size: int = 11, weight: int = 400, anchor: str = "start") -> str:
    fill = _INK if weight > 400 else _SOFT
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" font-weight="{weight}" text-anchor="{anchor}" '
        f'fill="{fill}">{escape(text)}</text>'
    )


def _graph(joint: JointGraph, use: np.ndarray, top: float) -> tuple[str, float]:
    """Ops as small marks: kept, computed again (diamonds), backward (circles)."""
    places = layout(joint)
    width = _WIDTH - 2 * 30
    cell = 14.0 if width / max(1, places.columns) < 9 else min(14.0, width / places.columns)
    while True:
        x, y, _ = places.places(int(width / cell))
        if cell <= 2.5 or (y.max(initial=0) + 1) * cell <= 220:
            break
        cell -= 0.5
    marks = {"kept": "", "recomputed": "", "gradient": ""}
    left = (_WIDTH - (float(x.max(initial=0)) + 1) * cell) / 2
    r = 0.36 * cell
    side, tip, ring = f"{2 * r:.1f}", f"{1.3 * r:.1f}", f"a{r:.1f} {r:.1f} 0 1 0"
    for op in range(joint.n_ops):
        px, py = left + (x[op] + 0.5) * cell, top + (y[op] + 0.5) * cell
        if not use[op]:
            continue
        if joint.op_backward[op]:
            marks["gradient"] += f"M{px - r:.1f} {py:.1f}{ring} {side} 0{ring} -{side} 0"
        elif use[op] > 1:
            marks["recomputed"] += f"M{px:.1f} {py - 1.3 * r:.1f}l{tip} {tip} -{tip} {tip} -{tip} -{tip}z"
        else:
            marks["kept"] += f"M{px - r:.1f} {py - r:.1f}h{side}v{side}h-{side}z"
    body = "".join(f'<path fill="{STATE_COLOURS[k][0]}" d="{d}"/>' for k, d in marks.items() if d)
    height = (float(y.max(initial=0)) + 1) * cell
    labels = {"kept": "computed once", "recomputed": "computed again", "gradient": "backward"}
    at = _WIDTH - _RIGHT
    for key in reversed([k for k, d in marks.items() if d]):
        at -= 7 * len(labels[key]) + 6
        body += _text(at, 20, labels[key])
        body += f'<rect x="{at - 13}" y="12" width="8" height="8" fill="{STATE_COLOURS[key][0]}"/>'
        at -= 22
    return body, top + height


def _memory(trace: Trace, y: float, height: float, top: int = 0, span: float = 0.0) -> tuple[str, float]:
    """Stacked areas, at most one step a pixel and a half, with the budget line and the peak."""
    width = _WIDTH - _LEFT - _RIGHT
    split = strip(trace, _SLOTS, span)
    most = max(top, trace.peak, 1) * 1.08
    floor = y + height
    body = "".join(
        f'<path fill="{CATEGORY_COLOURS[TRACE_CATEGORIES[k]][0]}" d="{d}"/>'
        for k, d in stacked(split, _LEFT, width, floor, height / most)
    )
    body += f'<path stroke="{_LINE}" d="M{_LEFT} {floor}H{_LEFT + width}"/>'
    for share in (0.0, 0.5, 1.0):
        amount = most / 1.08 * share
        body += _text(_LEFT - 6, floor - height * amount / most + 4, format_bytes(amount), anchor="end")
    if trace.budget is not None and trace.budget <= most:
        level = floor - height * trace.budget / most
        body += f'<path stroke="{_INK}" stroke-dasharray="6 4" d="M{_LEFT} {level:.1f}H{_LEFT + width}"/>'
        body += _text(_LEFT + 6, level - 4, f"budget {format_bytes(trace.budget)}")
    if len(trace.during):
        at = _LEFT + width / _SLOTS * (int(split.sum(axis=1).argmax()) + 0.5)
        peak = floor - height * trace.peak / most
        body += f'<path fill="{_INK}" d="M{at:.1f} {peak - 1:.1f}l-4.500 -7.500h9z"/>'
        anchor, shift = ("end", -8) if at > _WIDTH - 140 else ("start", 8)
        body += _text(at + shift, peak - 2, f"peak {format_bytes(trace.peak)}", weight=600, anchor=anchor)
    return body, height + 12


def stacked(
    split: np.ndarray, left: float, width: float, floor: float, scale: float
) -> list[tuple[int, str]]:
    """(category, path) of stacked areas; ``split`` as of :func:`strip`, ``scale`` in pixels a byte."""
    dx, base, found = width / len(split), np.zeros(len(split)), []
    for k in range(split.shape[1]):
        upper = base + split[:, k]
        if split[:, k].any():
            out = "".join(f"V{floor - scale * v:.1f}H{left + (i + 1) * dx:.1f}" for i, v in enumerate(upper))
            back = "".join(
                f"V{floor - scale * base[i]:.1f}H{left + i * dx:.1f}" for i in reversed(range(len(split)))
            )
            found.append((k, f"M{left:.1f} {floor - scale * base[0]:.1f}{out}{back}z"))
        base = upper
    return found
