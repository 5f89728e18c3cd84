"""What is sent to the browser: a trace and its graph as one flat piece of bytes.

Layout of a packet: the length of the header (uint32, little endian), the header (JSON, UTF-8, padded with
spaces to a multiple of eight), then the arrays it lists, each starting at a multiple of eight. The browser
makes typed arrays over it without copying; a ResNet-152 schedule with recomputation is about 350 kB.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from ..joint import JointGraph
from ..layout import layout
from ..plan import Plan
from ..schedule import Schedule
from ..simulate import TRACE_CATEGORIES, Trace, simulate
from ..units import format_bytes

_KINDS = {"i1": "i1", "u1": "u1", "u2": "u2", "i4": "i4", "f4": "f4", "f8": "f8"}


def as_trace(shown: Trace | Plan | Schedule) -> Trace:
    """The trace of whatever was passed to a view.

    Raises
    ------
    TypeError
        If it is neither a Trace nor a Plan nor a Schedule.
    """
    if isinstance(shown, Trace):
        return shown
    if isinstance(shown, (Plan, Schedule)):
        return simulate(shown)
    raise TypeError(f"expected a Trace, a Plan or a Schedule, got {type(shown).__name__}")


def pack(header: dict[str, Any], arrays: dict[str, tuple[str, np.ndarray]]) -> bytes:
    """One packet from a header and named arrays, each with the type it travels as ("i4", "f8", ...)."""
    table, parts, at = {}, [], 0
    for name, (kind, array) in arrays.items():
        flat = np.ascontiguousarray(array, dtype="<" + _KINDS[kind]).ravel().tobytes()
        table[name] = [kind, at, int(np.asarray(array).size)]
        parts.append(flat + bytes(-len(flat) % 8))
        at += len(parts[-1])
    text = json.dumps({**header, "arrays": table}, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 4) % 8)
    return len(text).to_bytes(4, "little") + text + b"".join(parts)


def unpack(packet: bytes) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """The header and arrays of a packet, as the browser reads them."""
    length = int.from_bytes(packet[:4], "little")
    header = json.loads(packet[4 : 4 + length])
    arrays = {
        name: np.frombuffer(packet, dtype="<" + kind, count=count, offset=4 + length + at)
        for name, (kind, at, count) in header.pop("arrays").items()
    }
    return header, arrays


def film(trace: Trace, title: str = "") -> bytes:
    """The packet of one trace: actions, memory after and during each, and the laid-out graph."""
    header, arrays = graph_parts(trace.joint)
    header.update(trace_header(trace, title))
    arrays.update(trace_arrays(trace))
    return pack(header, arrays)


def trace_header(trace: Trace, title: str = "") -> dict[str, Any]:
    return {
        "title": title or describe(trace),
        "method": trace.method,
        "budget": trace.budget,
        "peak": trace.peak,
        "peak_step": trace.peak_step,
        "overhead_ratio": trace.overhead_ratio,
        "categories": list(TRACE_CATEGORIES),
    }


def trace_arrays(trace: Trace) -> dict[str, tuple[str, np.ndarray]]:
    return {
        "actions": ("i4", trace.schedule.actions),
        "again": ("u1", trace.schedule.is_recomputation),
        "bytes": ("f8", trace.bytes),
        "during": ("f8", trace.during),
        "time": ("f8", trace.time),
        "split": ("f4", trace.by_category),
    }


def graph_parts(joint: JointGraph) -> tuple[dict[str, Any], dict[str, tuple[str, np.ndarray]]]:
    """Header entries and arrays of the graph alone."""
    places = layout(joint)
    return {
        "graph": joint.name,
        "baseline": joint.baseline,
        "time_unit": joint.time_unit,
        "op_names": list(joint.op_names),
        "value_names": list(joint.value_names),
        "lanes": [places.forward_lanes, places.backward_lanes],
    }, {
        "read_start": ("i4", joint.reads.start),
        "read_index": ("i4", joint.reads.index),
        "write_start": ("i4", joint.writes.start),
        "write_index": ("i4", joint.writes.index),
        "value_bytes": ("f8", joint.value_bytes),
        "value_category": ("u1", joint.value_category),
        "backward": ("u1", joint.op_backward),
        "column": ("i4", places.column),
        "lane": ("i4", places.lane),
        "edges": ("i4", places.edges),
        "crossing": ("i4", places.crossing),
    }


def use_of_ops(schedule: Schedule) -> np.ndarray:
    """0, 1 or 2 per op, uint8: it never runs (an alternative that is not taken), runs once, is computed again."""
    return np.where(schedule.computed_again, 2, np.minimum(schedule.run_counts, 1)).astype(np.uint8)


def describe(trace: Trace) -> str:
    """A title: the graph and the method."""
    parts = [trace.joint.name or f"{trace.joint.n_ops} ops", trace.method]
    return " · ".join(part for part in parts if part)


def summary(trace: Trace) -> str:
    """The trace in two sentences, for where there is no picture."""
    largest = ", ".join(f"{v.name} {format_bytes(v.bytes)}" for v in trace.at_peak()[:3])
    budget = f" within a budget of {format_bytes(trace.budget)}" if trace.budget is not None else ""
    schedule = trace.schedule
    if not len(schedule):
        return f"{describe(trace)}: an empty schedule."
    return (
        f"{describe(trace)}: {len(schedule.ops)} runs, {schedule.recomputed_ops} of them again "
        f"(overhead {trace.overhead_ratio:.1%}). Peak {format_bytes(trace.peak)} at step {trace.peak_step}, "
        f"{schedule[trace.peak_step].name}{budget}; the largest values then: {largest}."
    )


def strip(trace: Trace, width: int, span: float = 0.0, *, by_step: bool = False) -> np.ndarray:
    """Memory by category over the clock in ``width`` equal slots, float32 of shape (width, categories).

    ``span`` is the time the whole width stands for; slots after the end stay zero. Each slot shows the moment
    of its largest ``during``. ``by_step``, or a graph without times: spread evenly over the steps.
    """
    n = len(trace.during)
    out = np.zeros((width, len(TRACE_CATEGORIES)), dtype=np.float32)
    if not n:
        return out
    by_step = by_step or not trace.time[-1] > 0
    end = np.arange(1, n + 1, dtype=np.float64) if by_step else trace.time
    total = float(end[-1])
    scale = width / (total if by_step else max(span, total))
    begin = np.concatenate([[0.0], end[:-1]])
    first = np.minimum((begin * scale).astype(np.int64), width - 1)
    last = np.clip(np.ceil(end * scale).astype(np.int64) - 1, first, width - 1)
    best = np.full(width, -1, dtype=np.int64)
    for step in range(n):
        for slot in range(first[step], last[step] + 1):
            if best[slot] < 0 or trace.during[step] > trace.during[best[slot]]:
                best[slot] = step
    filled = best >= 0
    out[filled] = trace.by_category[best[filled]]
    return out
