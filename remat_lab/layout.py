"""The hairpin: where the ops of a joint graph stand when it is drawn.

The forward pass runs left to right, the backward pass returns right to left beneath it, and a backward op
stands straight below its forward op, so that what a gradient needs is found by looking up. A column is the
longest path from a source; ops of one column are told apart by lane. The path that is longest to the end
keeps lane 0 (nearest the fold between the two passes), parallel branches take lanes outward in the order in
which they appear, and a branch stays in its lane. Edges that jump over columns are nested by how far they
jump. Everything is O(V + E) but for sorting.

A long graph is *folded*, like a line of text: :meth:`Layout.fold` cuts the columns into rows, preferably where
few edges cross, between the blocks of a network.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .arrays import frozen
from .joint import JointGraph
from .memo import memo


@dataclass(frozen=True, eq=False)
class Layout:
    """Grid places of ops, and what is drawn between them.

    Attributes
    ----------
    column, lane : int32 arrays, shape (ops,); lanes of forward ops count upward from the fold, lanes of
        backward ops downward
    backward : bool array, shape (ops,)
    edges : int32 array, shape (edges, 2): (op, op) pairs within one pass; values that cross from forward to
        backward are not among them, since the place already says it
    crossing : int32 array, shape (columns,): how many edges pass between column c - 1 and column c
    """

    column: np.ndarray
    lane: np.ndarray
    backward: np.ndarray
    edges: np.ndarray
    crossing: np.ndarray

    @property
    def columns(self) -> int:
        return len(self.crossing)

    @property
    def forward_lanes(self) -> int:
        """Number of lanes above the fold."""
        return int(self.lane[~self.backward].max(initial=-1)) + 1

    @property
    def backward_lanes(self) -> int:
        """Number of lanes below the fold."""
        return int(self.lane[self.backward].max(initial=-1)) + 1

    def fold(self, width: int) -> np.ndarray:
        """First column of every row, int64, when a row holds at most ``width`` columns.

        A row ends where the fewest edges cross among its last quarter; of equals, the furthest right. The
        rows are evened out first, so that the last one is not a stub.
        """
        width = max(1, int(width))
        if self.columns <= width:
            return np.zeros(min(1, self.columns), dtype=np.int64)
        rows = -(-self.columns // width)
        width = max(-(-self.columns // rows), (3 * width) // 4)
        starts = [0]
        while self.columns - starts[-1] > width:
            latest = starts[-1] + width
            earliest = latest - width // 4
            window = self.crossing[earliest : latest + 1][::-1]
            starts.append(latest - int(window.argmin()))
        return np.array(starts, dtype=np.int64)

    def row_lanes(self, starts: np.ndarray) -> np.ndarray:
        """Lanes that each row really uses, int64 of shape (rows, 2): above and below its fold."""
        row = np.searchsorted(starts, self.column, side="right") - 1
        used = np.zeros((len(starts), 2), dtype=np.int64)
        np.maximum.at(used, (row, self.backward.astype(np.int64)), self.lane + 1)
        return used

    def places(self, width: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(x, y, row) of every op on a grid folded at ``width`` columns; y grows downward.

        In each row the forward lanes stand above the backward lanes; one free line parts the rows.
        """
        starts = self.fold(width)
        row = np.searchsorted(starts, self.column, side="right") - 1
        lanes = self.row_lanes(starts)
        top = np.concatenate([[0], np.cumsum(lanes.sum(axis=1) + 1)[:-1]]).astype(np.int64)
        turn = top[row] + lanes[row, 0]
        y = np.where(self.backward, turn + self.lane, turn - 1 - self.lane)
        return self.column - starts[row], y, row


def layout(joint: JointGraph) -> Layout:
    """Lay out a joint graph; remembered beside it."""
    return memo(joint, "layout", lambda: _layout(joint))


def _layout(joint: JointGraph) -> Layout:
    backward = joint.op_backward
    edges, crossing_reads = _edges(joint)
    forward_edges = edges[~backward[edges[:, 1]]]
    column = _columns(joint.n_ops, forward_edges)
    _settle(joint, forward_edges, column)
    lane = _lanes(column, ~backward, forward_edges)
    partner = _partners(joint, edges, crossing_reads, column)
    seeds = np.diff(joint.reads.start) == 0
    for op in np.flatnonzero(backward).tolist():
        # A seed starts the way back: it stands at the turn, one column right of the op whose gradient it is.
        column[op] = column[partner[op]] + seeds[op] if partner[op] >= 0 else 0
    lane[backward] = _backward_lanes(backward, partner, column, lane)
    columns = int(column.max(initial=-1)) + 1
    lines = edges[backward[edges[:, 0]] == backward[edges[:, 1]]]
    left, right = np.sort(column[lines], axis=1).T if len(lines) else (np.zeros(0, int), np.zeros(0, int))
    change = np.bincount(left + 1, minlength=columns + 2) - np.bincount(right + 1, minlength=columns + 2)
    return Layout(
        column=frozen(column.astype(np.int32)),
        lane=frozen(lane.astype(np.int32)),
        backward=backward,
        edges=frozen(lines.astype(np.int32).reshape(-1, 2)),
        crossing=frozen(np.cumsum(change)[:columns].astype(np.int32)),
    )


def _edges(joint: JointGraph) -> tuple[np.ndarray, dict[int, list[int]]]:
    """Op-to-op edges within a pass, and for each backward op the forward ops whose values it reads."""
    pairs: set[tuple[int, int]] = set()
    crossing: dict[int, list[int]] = {}
    backward = joint.op_backward.tolist()
    for op in range(joint.n_ops):
        for value in joint.reads.row(op).tolist():
            for writer in joint.writers.row(value).tolist():
                if backward[writer] == backward[op]:
                    pairs.add((writer, op))
                elif backward[op]:
                    crossing.setdefault(op, []).append(writer)
    return np.array(sorted(pairs), dtype=np.int64).reshape(-1, 2), crossing


def _columns(n: int, edges: np.ndarray) -> np.ndarray:
    """Longest path from a source, by op. Ops are in a valid order, so one pass over sorted edges does it.

    An op without inputs among them (a constant, a mask) moves right, to just before its first reader.
    """
    column = np.zeros(n, dtype=np.int64)
    has_input = np.zeros(n, dtype=bool)
    first_reader = np.full(n, np.iinfo(np.int64).max)
    for u, v in edges[np.argsort(edges[:, 1], kind="stable")].tolist():
        column[v] = max(column[v], column[u] + 1)
        has_input[v] = True
    np.minimum.at(first_reader, edges[:, 0], column[edges[:, 1]])
    late = ~has_input & (first_reader < np.iinfo(np.int64).max)
    column[late] = np.maximum(column[late], first_reader[late] - 1)
    return column


def _settle(joint: JointGraph, edges: np.ndarray, column: np.ndarray) -> None:
    """Ops that no forward edge touches (a batch counter) move beside their module, else beside the op before."""
    touched = np.zeros(joint.n_ops, dtype=bool)
    touched[edges] = True
    home = {
        joint.op_modules[op]: column[op] for op in np.flatnonzero(touched).tolist() if joint.op_modules[op]
    }
    before = 0
    for op in np.flatnonzero(~joint.op_backward).tolist():
        if touched[op]:
            before = column[op]
        else:
            column[op] = home.get(joint.op_modules[op], before)


def _lanes(column: np.ndarray, member: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Lane of each forward op: the longest path keeps lane 0, a branch keeps its lane until it joins."""
    n = len(column)
    height = np.zeros(n, dtype=np.int64)
    for u, v in edges[np.argsort(-edges[:, 0], kind="stable")].tolist():
        height[u] = max(height[u], height[v] + 1)
    heir = np.full(
        n, -1, dtype=np.int64
    )  # the next op of the branch: in the next column, furthest from its end
    for u, v in edges.tolist():
        if column[v] == column[u] + 1 and (heir[u] < 0 or height[v] > height[heir[u]]):
            heir[u] = v
    parent = np.full(n, -1, dtype=np.int64)
    for u in np.flatnonzero(heir >= 0).tolist():
        v = heir[u]
        if parent[v] < 0 or height[parent[v]] + column[parent[v]] < height[u] + column[u]:
            parent[v] = u
    lane = np.full(n, -1, dtype=np.int64)
    members = np.flatnonzero(member)
    order = members[np.argsort(column[members], kind="stable")]
    at, taken = -1, set[int]()
    newcomers: list[int] = []

    def seat() -> None:
        # Branches that begin here come after those that pass through; the longest is seated first.
        free = 0
        for v in sorted(newcomers, key=lambda v: (-height[v], v)):
            while free in taken:
                free += 1
            lane[v] = free
            taken.add(free)

    for v in order.tolist():
        if column[v] != at:
            seat()
            at, taken, newcomers = int(column[v]), set(), []
        if parent[v] >= 0 and lane[parent[v]] not in taken:
            lane[v] = lane[parent[v]]
            taken.add(int(lane[v]))
        else:
            newcomers.append(v)
    seat()
    return lane


def _partners(
    joint: JointGraph, edges: np.ndarray, crossing: dict[int, list[int]], column: np.ndarray
) -> np.ndarray:
    """The forward op above each backward op, -1 where there is none.

    By name if the names say so ("backward x", "x_backward", "seed x"); else by module, whose backward ops are
    spread over its forward ops from last to first; else the latest forward op whose values it reads; else where
    the backward op stands whose gradient it reads.
    """
    partner = np.full(joint.n_ops, -1, dtype=np.int64)
    by_name = {joint.op_names[op]: op for op in np.flatnonzero(~joint.op_backward).tolist()}
    last_forward = max(by_name.values(), key=lambda op: column[op], default=-1)
    source = np.full(joint.n_ops, -1, dtype=np.int64)
    for u, v in edges.tolist():
        if joint.op_backward[v]:
            source[v] = u
    of_module: dict[str, tuple[list[int], list[int]]] = {}
    for op, module in enumerate(joint.op_modules):
        if module:
            of_module.setdefault(module, ([], []))[int(joint.op_backward[op])].append(op)
    by_module = {}
    for forward, backward in of_module.values():
        for k, op in enumerate(backward if forward else ()):
            by_module[op] = forward[len(forward) - 1 - k * len(forward) // len(backward)]
    for op in np.flatnonzero(joint.op_backward).tolist():
        name = joint.op_names[op]
        bare = name.removeprefix("backward ").removeprefix("seed ").removesuffix("_backward")
        read = crossing.get(op)
        if bare != name and bare in by_name:
            partner[op] = by_name[bare]
        elif op in by_module:
            partner[op] = by_module[op]
        elif read:
            partner[op] = max(read, key=lambda u: column[u])
        elif source[op] >= 0:
            partner[op] = partner[source[op]]
        else:
            partner[op] = last_forward
    return partner


def _backward_lanes(
    backward: np.ndarray, partner: np.ndarray, column: np.ndarray, lane: np.ndarray
) -> np.ndarray:
    """Below its forward op, in the same lane; the next free lane where several share a forward op."""
    taken: set[tuple[int, int]] = set()
    found = []
    for op in np.flatnonzero(backward)[::-1].tolist():  # last first: the op itself before its seed
        wanted = int(lane[partner[op]]) if partner[op] >= 0 else 0
        place = int(column[op])
        while (place, wanted) in taken:
            wanted += 1
        taken.add((place, wanted))
        found.append(wanted)
    return np.array(found[::-1], dtype=np.int64)
