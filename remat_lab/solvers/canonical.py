"""The canonical strategy of a lower-set sequence, and its schedule.

Kusumoto et al., section 3: compute segment by segment, keep only the boundaries of the lower sets seen so
far, and in the backward pass compute each segment again before its gradients are taken. The compiler works
on any joint graph whose forward ops are mapped to nodes, so it serves the paper's graphs and captured
models alike. Real schedules do not drop and recompute the last segment, since keeping it is free.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from ..graph import ComputationGraph
from ..joint import JointGraph
from ..memo import memo
from ..schedule import Schedule
from .lower_sets import Family, nodes_of


@dataclass(frozen=True, eq=False)
class LowerSetSequence:
    """L_1 < ... < L_k = V, with the paper's figures for it.

    Attributes
    ----------
    graph : ComputationGraph
    bits : uint64 array, shape (k, words)
    paper_overhead : T(V \\ U_k), the last segment counted
    paper_peak : max_i M(U_{i-1}) + 2 M(V_i) + M(delta+(L_i) \\ L_i) + M(delta-(delta+(L_i)) \\ L_i), bytes
    """

    graph: ComputationGraph
    bits: np.ndarray
    paper_overhead: float
    paper_peak: int

    def __len__(self) -> int:
        return len(self.bits)

    @property
    def segment_of(self) -> np.ndarray:
        """int64 array, shape (nodes,): index of the first lower set that holds each node."""
        return _segments(self.bits, len(self.graph))

    @property
    def lower_sets(self) -> list[list[str]]:
        """Node names of each lower set."""
        return [[self.graph.names[v] for v in nodes_of(b, len(self.graph))] for b in self.bits]

    @property
    def kept(self) -> np.ndarray:
        """bool array, shape (nodes,): U_k, the nodes whose forward values are kept for the backward pass."""
        return _cached(self.segment_of, *self.graph.successors)

    @property
    def cached(self) -> list[str]:
        """Names of the nodes in U_k."""
        return [self.graph.names[v] for v in np.flatnonzero(self.kept)]

    def __repr__(self) -> str:
        return f"LowerSetSequence({len(self)} segments, {len(self.cached)} of {len(self.graph)} values kept)"


def sequence_of(graph: ComputationGraph, bits: np.ndarray) -> LowerSetSequence:
    """A sequence with its figures by the paper's formulas (sections 3 and 4)."""
    family = Family.of(graph, bits)  # {} first; the sequence is nested, so order of size is its order
    memory = graph.memory
    kept = np.zeros(len(graph), dtype=bool)
    cache = peak = 0
    for i in range(1, len(family)):
        segment = int(family.memory[i] - family.memory[i - 1])
        peak = max(peak, cache + 2 * segment + int(family.arriving[i]))
        fresh = [v for v in family.boundary.row(i).tolist() if not kept[v]]
        kept[fresh] = True
        cache += int(memory[fresh].sum())
    return LowerSetSequence(graph, family.bits[1:], float(graph.time[~kept].sum()), peak)


def canonical_schedule(graph: ComputationGraph, bits: np.ndarray, liveness: bool = True) -> Schedule:
    """The schedule of a canonical strategy on ``graph.joint``.

    Parameters
    ----------
    bits : uint64 array, shape (k, words): the lower sets, the last one all nodes
    liveness : free each value right after its last use (section 4.4); without it, for ablations, at the
        end of the segment's pass in which it is last used, as the strategy is defined (section 3)
    """
    segment = _segments(bits, len(graph))
    kept = _cached(segment, *graph.successors)
    kept |= segment == len(bits) - 1
    schedule = schedule_keeping(graph, segment, kept)
    return schedule if liveness else _frees_at_segment_ends(schedule, _places_of(graph, segment))


def _frees_at_segment_ends(schedule: Schedule, place: np.ndarray) -> Schedule:
    """The same runs, with frees held back to the end of the forward or backward pass over a segment."""
    runs = schedule.ops
    backward = schedule.joint.op_backward[runs]
    # A run again belongs with the backward op that it is for, the next one.
    following = np.where(backward, np.arange(len(runs)), len(runs) - 1)
    following = np.minimum.accumulate(following[::-1])[::-1]
    again = schedule.is_recomputation[schedule.actions >= 0]
    level = np.where(backward | again, -1 - place[runs[following]], place[runs])
    ends = np.append(level[1:] != level[:-1], True)
    out: list[int] = []
    held: list[int] = []
    step = -1
    for code in schedule.actions.tolist():
        if code < 0:
            held.append(code)
            continue
        if step >= 0 and ends[step]:
            out += held
            held = []
        step += 1
        out.append(code)
    return Schedule(schedule.joint, np.array(out + held, dtype=np.int32))


def schedule_keeping(graph: ComputationGraph, segment: np.ndarray, kept: np.ndarray) -> Schedule:
    """The schedule that computes segments in order, keeps the nodes in ``kept`` and recomputes the rest.

    Parameters
    ----------
    segment : int array, shape (nodes,): segment number of each node, not decreasing along edges
    kept : bool array, shape (nodes,): nodes whose forward values stay until their last backward use
    """
    joint = graph.joint
    return Schedule.from_ops(
        joint,
        _canonical_ops(
            segment.astype(np.int64),
            kept.astype(np.bool_),
            graph.node_of_op,
            joint.op_backward,
            *joint.reads,
            *joint.writes,
            *joint.writers,
            _first_writer(graph),
            _stays(joint),
        ),
    )


def _places_of(graph: ComputationGraph, segment: np.ndarray) -> np.ndarray:
    joint = graph.joint
    return _places(
        segment, graph.node_of_op, joint.op_backward, *joint.reads, *joint.writers, _first_writer(graph)
    )


def _first_writer(graph: ComputationGraph) -> np.ndarray:
    """For each value, the first op that writes it (-1: resident)."""

    def make() -> np.ndarray:
        joint = graph.joint
        first = np.full(joint.n_values, -1, dtype=np.int64)
        some = np.flatnonzero(joint.writer_count)
        first[some] = joint.writers.index[joint.writers.start[some]]
        return first

    return memo(graph.joint, "first_writer", make)


def _stays(joint: JointGraph) -> np.ndarray:
    """bool of shape (values,): there from when it is made; Schedule.from_ops holds outputs in any graph."""
    stays = joint.stays.copy()
    stays[joint.outputs] = True
    return stays


def _segments(bits: np.ndarray, n: int) -> np.ndarray:
    segment = np.full(n, len(bits) - 1, dtype=np.int64)
    for i in range(len(bits) - 1, -1, -1):
        segment[nodes_of(bits[i], n)] = i
    return segment


@njit(cache=True, nogil=True)
def _cached(segment, succ_start, succ_index):
    """bool per node: on some boundary, that is, with a successor in a later segment."""
    n = len(segment)
    kept = np.zeros(n, dtype=np.bool_)
    for v in range(n):
        for e in range(succ_start[v], succ_start[v + 1]):
            if segment[succ_index[e]] > segment[v]:
                kept[v] = True
                break
    return kept


@njit(cache=True, nogil=True)
def _places(segment, node_of_op, backward, read_start, read_index, writer_start, writer_index, writer):
    """The segment in whose forward or backward pass each op runs.

    A backward op belongs to the last segment among the forward values it reads, and never to a later one than the
    ops whose gradients it reads.
    """
    ops = len(node_of_op)
    nodes_last = 0
    for v in range(len(segment)):
        nodes_last = max(nodes_last, segment[v])
    place = np.zeros(ops, dtype=np.int64)
    for op in range(ops):
        if not backward[op]:
            if node_of_op[op] >= 0:
                place[op] = segment[node_of_op[op]]
            else:  # no node's op (a buffer update): as soon as its inputs are there
                for e in range(read_start[op], read_start[op + 1]):
                    w = writer[read_index[e]]
                    if w >= 0:
                        place[op] = max(place[op], place[w])
        else:
            own = -1
            upstream = nodes_last
            for e in range(read_start[op], read_start[op + 1]):
                w = writer[read_index[e]]
                if w < 0:
                    continue
                if backward[w]:
                    for f in range(writer_start[read_index[e]], writer_start[read_index[e] + 1]):
                        upstream = min(upstream, place[writer_index[f]])
                else:
                    own = max(own, place[w])
            place[op] = upstream if own < 0 else min(own, upstream)
    return place


@njit(cache=True, nogil=True)
def _canonical_ops(
    segment,
    kept,
    node_of_op,
    backward,
    read_start,
    read_index,
    write_start,
    write_index,
    writer_start,
    writer_index,
    writer,
    always,
):
    """Op order of a canonical strategy.

    Forward ops run by segment, then plain order; backward ops by falling segment, then plain order. Before
    each, whatever forward values it lacks are computed again, with their missing ancestors, in plain order;
    they stay until the end of the segment, or longer when an earlier segment's backward op reads them. What
    is in ``always``, outputs of the graph, say, stays once made.
    """
    ops = len(node_of_op)
    values = len(writer)
    place = _places(segment, node_of_op, backward, read_start, read_index, writer_start, writer_index, writer)
    nodes_last = segment.max()
    forward_key = np.empty(ops, dtype=np.int64)
    for op in range(ops):
        level = place[op] if not backward[op] else 2 * nodes_last + 1 - place[op]
        forward_key[op] = level * ops + op
    order = np.argsort(forward_key)

    there = np.zeros(values, dtype=np.bool_)
    future = np.zeros(values, dtype=np.int64)
    for op in range(ops):
        if backward[op]:
            for e in range(read_start[op], read_start[op + 1]):
                future[read_index[e]] += 1

    out = np.empty(4 * ops + 16, dtype=np.int64)
    count = 0
    again = np.empty(values, dtype=np.int64)
    again_count = 0
    wanted = np.zeros(ops, dtype=np.bool_)
    stack = np.empty(ops, dtype=np.int64)
    chosen = np.empty(ops, dtype=np.int64)
    current = -1
    for k in range(ops):
        op = order[k]
        if backward[op]:
            if place[op] != current:
                left = 0
                for i in range(again_count):
                    value = again[i]
                    if future[value] > 0:
                        again[left] = value
                        left += 1
                    else:
                        there[value] = False
                again_count = left
                current = place[op]
            chosen_count = 0
            top = 0
            for e in range(read_start[op], read_start[op + 1]):
                value = read_index[e]
                w = writer[value]
                if w >= 0 and not there[value] and not wanted[w]:
                    wanted[w] = True
                    stack[top] = w
                    top += 1
            while top > 0:
                top -= 1
                w = stack[top]
                chosen[chosen_count] = w
                chosen_count += 1
                for e in range(read_start[w], read_start[w + 1]):
                    value = read_index[e]
                    x = writer[value]
                    if x >= 0 and not there[value] and not wanted[x]:
                        wanted[x] = True
                        stack[top] = x
                        top += 1
            redo = np.sort(chosen[:chosen_count])
            if count + chosen_count + 1 > len(out):
                bigger = np.empty(2 * (count + chosen_count + 1), dtype=np.int64)
                bigger[:count] = out[:count]
                out = bigger
            for i in range(chosen_count):
                w = redo[i]
                wanted[w] = False
                out[count] = w
                count += 1
                for e in range(write_start[w], write_start[w + 1]):
                    value = write_index[e]
                    if not there[value]:
                        there[value] = True
                        again[again_count] = value
                        again_count += 1
            for e in range(read_start[op], read_start[op + 1]):
                future[read_index[e]] -= 1
        if count == len(out):
            bigger = np.empty(2 * count + 16, dtype=np.int64)
            bigger[:count] = out[:count]
            out = bigger
        out[count] = op
        count += 1
        stays = backward[op] or node_of_op[op] < 0 or kept[node_of_op[op]]
        for e in range(write_start[op], write_start[op + 1]):
            if stays or always[write_index[e]]:
                there[write_index[e]] = True
    return out[:count].copy()
