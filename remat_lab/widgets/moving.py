"""A moving picture in SVG: the graph and its memory over one schedule, for a README or a slide.

It plays wherever SVG does, without a script; where animations are off, it shows the end.
"""

from __future__ import annotations

import numpy as np

from ..layout import layout
from ..palette import CATEGORY_COLOURS, STATE_COLOURS
from ..simulate import TRACE_CATEGORIES, Trace
from ..units import format_bytes
from .film import describe, strip
from .still import stacked

_WIDTH, _LEFT = 900, 60
_INK, _SOFT = "#1f2328", "#57606a"


def moving_picture(trace: Trace, *, seconds: float = 16.0, hold: float = 2.0) -> str:
    """The schedule as an animated SVG that loops.

    Parameters
    ----------
    trace : Trace
    seconds : how long the schedule takes
    hold : how long the end stays before it starts again

    Returns
    -------
    str
    """
    places = layout(trace.joint)
    width = _WIDTH - 2 * 30
    cell = min(16.0, width / max(1, places.columns))
    if cell < 7:
        cell = 9.0
    x, y, _ = places.places(int(width / cell + 1e-6))
    left = (_WIDTH - (float(x.max(initial=0)) + 1) * cell) / 2
    top = 40.0
    loop = seconds + hold
    body = ""
    for op, changes in enumerate(_states(trace)):
        px, py = left + (x[op] + 0.5) * cell, top + (y[op] + 0.5) * cell
        body += _mark(px, py, 0.36 * cell, changes, len(trace.during), seconds / loop, loop)
    floor = top + (float(y.max(initial=0)) + 1) * cell + 200
    span = _WIDTH - _LEFT - 20
    split = strip(trace, 400, by_step=True)
    areas = "".join(
        f'<path fill="{CATEGORY_COLOURS[TRACE_CATEGORIES[k]][0]}" d="{d}"/>'
        for k, d in stacked(split, _LEFT, span, floor, 160 / (1.08 * max(trace.peak, 1)))
    )
    keys = f'keyTimes="0;{seconds / loop:.4f};1" dur="{loop:g}s" repeatCount="indefinite"'
    body += (
        f'<g opacity="0.28">{areas}</g><clipPath id="played"><rect x="{_LEFT}" y="0" height="{floor + 10:.0f}" '
        f'width="{span}"><animate attributeName="width" values="0;{span};{span}" {keys}/></rect></clipPath>'
        f'<g clip-path="url(#played)">{areas}</g>'
        f'<path stroke="{_INK}" d="M{_LEFT} {floor:.0f}h{span}"/>'
        f'<rect x="{_LEFT + span}" y="{floor - 176:.0f}" width="1.500" height="180" fill="{_INK}">'
        f'<animate attributeName="x" values="{_LEFT};{_LEFT + span};{_LEFT + span}" {keys}/></rect>'
    )
    if trace.budget is not None:
        level = floor - 160 * trace.budget / (1.08 * max(trace.peak, 1))
        body += (
            f'<path stroke="{_INK}" stroke-dasharray="6 4" d="M{_LEFT} {level:.1f}h{span}"/>'
            f'<text x="{_LEFT + 6}" y="{level - 5:.1f}" fill="{_INK}">budget {format_bytes(trace.budget)}</text>'
        )
    legend, at = "", float(_WIDTH - 20)
    labels = {
        "gradient": "gradient held",
        "recomputed": "computed again",
        "dropped": "dropped",
        "kept": "kept",
    }
    for key, label in labels.items():
        at -= 6.6 * len(label) + 24
        legend += (
            f'<rect x="{at:.0f}" y="13" width="9" height="9" fill="{STATE_COLOURS[key][0]}"/>'
            f'<text x="{at + 14:.0f}" y="21" fill="{_SOFT}">{label}</text>'
        )
    height = floor + 14
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:.0f}" font-size="11" '
        f'font-family="system-ui, DejaVu Sans, sans-serif"><rect width="100%" height="100%" fill="#fff"/>'
        f'<text x="{_LEFT}" y="22" font-size="14" font-weight="600" fill="{_INK}">{describe(trace)}</text>'
        f"{legend}{body}</svg>"
    )


def _states(trace: Trace) -> list[list[tuple[int, str]]]:
    """For each op: (step, state) whenever its state changes."""
    joint = trace.joint
    state = ["waiting"] * joint.n_ops
    out: list[list[tuple[int, str]]] = [[(0, "waiting")] for _ in state]
    ran, again = np.zeros(joint.n_ops, dtype=bool), np.zeros(joint.n_ops, dtype=bool)
    live = np.zeros(joint.n_values, dtype=bool)
    for step, code in enumerate(trace.schedule.actions.tolist()):
        if code >= 0:
            ran[code] = True
            again[code] |= trace.schedule.is_recomputation[step]
            live[joint.writes.row(code)] = True
            touched = {code}
        else:
            live[~code] = False
            touched = set(joint.writers.row(~code).tolist())
        for op in touched:
            held = bool(live[joint.writes.row(op)].any())
            if not ran[op]:
                continue
            if joint.op_backward[op]:
                now = "gradient" if held else "done"
            else:
                now = ("recomputed" if again[op] else "kept") if held else "dropped"
            if now != state[op]:
                state[op] = now
                out[op].append((step, now))
    return out


def _mark(
    x: float, y: float, r: float, changes: list[tuple[int, str]], steps: int, share: float, loop: float
) -> str:
    """One op: a square whose colour follows its state."""
    times = [share * step / max(steps, 1) for step, _ in changes]
    values = ";".join(STATE_COLOURS[state][0] for _, state in changes)
    keys = ";".join(f"{t:.4f}".rstrip("0").rstrip(".") for t in times)
    fill = STATE_COLOURS[changes[-1][1]][0]
    rect = f'<rect x="{x - r:.1f}" y="{y - r:.1f}" width="{2 * r:.1f}" height="{2 * r:.1f}" rx="1.500" fill="{fill}">'
    return (
        f'{rect}<animate attributeName="fill" calcMode="discrete" values="{values}" keyTimes="{keys}" '
        f'dur="{loop:g}s" repeatCount="indefinite"/></rect>'
    )
