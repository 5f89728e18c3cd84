"""The hairpin layout: where ops stand, and how rows are folded."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent / "widgets"))

import graphs

import remat_lab as rl
from remat_lab.layout import layout

GRAPHS = {
    "chain of 1000": lambda: graphs.chain(1000),
    "residual": graphs.residual,
    "branches": graphs.branches,
    "one node": lambda: graphs.chain(1),
}


@pytest.mark.parametrize("name", GRAPHS)
def test_no_two_ops_share_a_place(name: str) -> None:
    places = layout(GRAPHS[name]().joint)
    spots = {(int(c), int(r), bool(b)) for c, r, b in zip(places.column, places.lane, places.backward)}
    assert len(spots) == len(places.column)
    for width in (7, 40, 10_000):
        x, y, _ = places.places(width)
        assert len({*zip(x.tolist(), y.tolist())}) == len(x)
        assert x.max() < max(width, 1) + 1 and x.min() >= 0


@pytest.mark.parametrize("name", GRAPHS)
def test_backward_ops_stand_straight_below_their_forward_ops(name: str) -> None:
    graph = GRAPHS[name]()
    joint, places = graph.joint, layout(graph.joint)
    op = {n: i for i, n in enumerate(joint.op_names)}
    for n in graph.names:
        forward, backward = op[n], op[f"backward {n}"]
        assert places.column[forward] == places.column[backward]
        assert places.lane[forward] == places.lane[backward]


def test_forward_edges_run_to_the_right() -> None:
    graph = graphs.residual()
    places = layout(graph.joint)
    for u, v in graph.edges.tolist():
        assert places.column[u] < places.column[v]


def test_a_chain_is_one_lane_and_branches_keep_theirs() -> None:
    assert layout(graphs.chain(50).joint).forward_lanes == 1
    graph = graphs.branches(1)
    places = layout(graph.joint)
    lanes = {name: int(places.lane[i]) for i, name in enumerate(graph.names)}
    assert lanes["m0/b2/0"] == lanes["m0/b2/1"] == lanes["m0/b2/2"] == lanes["stem"] == lanes["m0/join"] == 0
    assert lanes["m0/b1/0"] == lanes["m0/b1/1"] != lanes["m0/b3/0"] == lanes["m0/b3/1"]
    assert sorted(lanes[f"m0/b{b}/0"] for b in range(4)) == [0, 1, 2, 3]


def test_rows_end_between_the_blocks() -> None:
    graph = graphs.residual()
    places = layout(graph.joint)
    starts = places.fold(90)
    assert len(starts) > 3 and (np.diff(starts) <= 90).all()
    # Between two blocks one edge of each pass crosses, inside a block the skip crosses as well.
    assert (places.crossing[starts[1:]] == 2).all() and places.crossing.max() == 4


def test_a_joint_graph_without_names_is_paired_by_what_it_reads() -> None:
    joint = rl.JointGraph.build(
        [
            {"name": "f", "reads": [0], "writes": [1]},
            {"name": "g", "reads": [1], "writes": [2]},
            {"name": "p", "backward": True, "reads": [2], "writes": [3]},
            {"name": "q", "backward": True, "reads": [3, 1], "writes": [4]},
            {"name": "r", "backward": True, "reads": [4], "writes": [5]},
        ],
        [{"name": f"v{i}", "bytes": 1} for i in range(6)],
        [5],
    )
    places = layout(joint)
    assert places.column.tolist() == [0, 1, 1, 0, 0]
    assert places.lane.tolist() == [0, 0, 0, 0, 1] or places.lane.tolist() == [0, 0, 0, 1, 0]


def test_layout_is_linear() -> None:
    joint = graphs.chain(20_000).joint
    began = time.perf_counter()
    layout(joint)
    assert time.perf_counter() - began < 5


def test_ops_without_edges_stand_beside_their_module_and_backward_ops_below_it() -> None:
    ops = [
        {"name": "conv", "module": "a", "reads": [0], "writes": [1]},
        {"name": "count a", "module": "b", "writes": [2]},
        {"name": "norm", "module": "b", "reads": [1], "writes": [3]},
        {"name": "scale", "module": "b", "reads": [3], "writes": [4]},
        {"name": "g2", "module": "b", "backward": True, "reads": [1], "writes": [5]},
        {"name": "g1", "module": "a", "backward": True, "reads": [5], "writes": [6]},
    ]
    joint = rl.JointGraph.build(ops, [{"name": f"v{i}", "bytes": 1} for i in range(7)], [6])
    places = layout(joint)
    assert places.column[1] in (places.column[2], places.column[3])
    assert places.column[4] == places.column[3] and places.column[5] == places.column[0]
    assert len({*zip(places.column.tolist(), places.lane.tolist(), places.backward.tolist())}) == len(ops)
