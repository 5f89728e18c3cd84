import json
import math

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from oracles import graphs

from remat_lab import ComputationGraph, InvalidGraph, JointGraph, Schedule, simulate


def diamond(**extra):
    return ComputationGraph.from_nodes(
        [{"name": x, "memory": 4, **extra} for x in "abcd"], [("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")]
    )


def same(first, second):
    assert first.to_dict() == second.to_dict()


@given(graphs())
def test_json_and_networkx_give_the_graph_back(graph):
    same(ComputationGraph.from_json(graph.to_json()), graph)
    same(ComputationGraph.from_networkx(graph.to_networkx()), graph)


@given(graphs())
def test_joint_json_gives_the_joint_graph_back(graph):
    joint = JointGraph.from_json(graph.joint.to_json())
    assert joint.fingerprint() == graph.joint.fingerprint()
    assert joint.to_dict() == graph.joint.to_dict()


def test_nodes_are_put_in_an_order_that_runs():
    graph = ComputationGraph.from_nodes(
        [{"name": "late", "memory": 1}, {"name": "early", "memory": 2}], [("early", "late")]
    )
    assert graph.names == ("early", "late")
    assert graph.memory.tolist() == [2, 1]


def test_arrays_are_read_only():
    with pytest.raises(ValueError, match="read-only"):
        diamond().memory[0] = 7


def test_a_cycle_is_named():
    with pytest.raises(InvalidGraph, match=r"cycle: .*a.*b"):
        ComputationGraph.from_nodes([{"name": x, "memory": 1} for x in "ab"], [("a", "b"), ("b", "a")])
    with pytest.raises(InvalidGraph, match="cycle: a -> a"):
        ComputationGraph.from_nodes([{"name": "a", "memory": 1}], [("a", "a")])


@pytest.mark.parametrize("key", ["memory", "time", "backward_time", "parameter_bytes"])
@pytest.mark.parametrize("bad", [-1, math.nan, math.inf, "many", None])
def test_a_bad_cost_is_named(key, bad):
    node = {"name": "conv", "memory": 1, key: bad}
    with pytest.raises(InvalidGraph, match=f"'conv'.*{key}"):
        ComputationGraph.from_nodes([node], [])


@pytest.mark.parametrize(
    ("nodes", "edges", "message"),
    [
        ([], [], "at least one node"),
        ([{"memory": 1}], [], "no name"),
        ([{"name": "a"}], [], "'a' has no memory"),
        ([{"name": "a", "memory": 1}] * 2, [], "two nodes are named 'a'"),
        ([{"name": "a", "memory": 1}], [("a", "b")], "'b', which is no node"),
        ([{"name": "a", "memory": 1.5}], [], "whole bytes"),
        ([{"name": "a", "memory": 2**63}], [], "2\\^62"),
        ([{"name": "a", "memory": 1, "needs": "everything"}], [], "needs 'everything'"),
        ([{"name": "a", "memory": 1, "needs": ["b"]}], [], "needs 'b'"),
    ],
)
def test_a_bad_graph_is_explained(nodes, edges, message):
    with pytest.raises(InvalidGraph, match=message):
        ComputationGraph.from_nodes(nodes, edges)


def test_undirected_graphs_and_foreign_json_are_refused():
    with pytest.raises(InvalidGraph, match="DiGraph"):
        ComputationGraph.from_networkx(nx.Graph([(1, 2)]))
    with pytest.raises(InvalidGraph, match="not a remat_lab computation graph"):
        ComputationGraph.from_json(json.dumps({"nodes": 3, "edges": []}))
    with pytest.raises(InvalidGraph, match="not a remat_lab joint graph"):
        JointGraph.from_json(json.dumps({"ops": []}))


def test_large_integers_stay_exact():
    big = 2**53 + 1
    graph = ComputationGraph.from_nodes(
        [{"name": "a", "memory": big}, {"name": "b", "memory": 1}], [("a", "b")]
    )
    assert graph.total_memory == big + 1
    assert ComputationGraph.from_json(graph.to_json()).memory[0] == big
    assert simulate(Schedule.vanilla(graph.joint)).peak == 2 * big + 1


def test_backward_ops_read_what_their_node_needs():
    for needs, expected in (
        ("input", {"a"}),
        ("output", {"b"}),
        ("both", {"a", "b"}),
        ("none", set()),
        (["b"], {"b"}),
    ):
        graph = ComputationGraph.from_nodes(
            [{"name": "a", "memory": 1}, {"name": "b", "memory": 1, "needs": needs}], [("a", "b")]
        )
        joint = graph.joint
        op = joint.op_names.index("backward b")
        read = {joint.value_names[v] for v in joint.reads.row(op)}
        assert read == expected | {"grad b"}


def test_gradients_of_a_shared_value_are_one_accumulated_value():
    joint = diamond().joint
    grad_a = joint.value_names.index("grad a")
    assert {joint.op_names[o] for o in joint.writers.row(grad_a)} == {"backward b", "backward c"}


def test_a_joint_graph_out_of_order_is_refused():
    with pytest.raises(InvalidGraph, match=r"'late' reads 'x' before 'make x'"):
        JointGraph.build(
            [{"name": "late", "reads": [0]}, {"name": "make x", "writes": [0]}],
            [{"name": "x", "bytes": 1}],
            [],
        )


@pytest.mark.parametrize(
    ("op", "value", "message"),
    [
        ({"time": -1.0}, {}, "'op' has time -1"),
        ({"time": math.nan}, {}, "'op' has time nan"),
        ({"workspace": -5}, {}, "'op' has workspace -5"),
        ({}, {"bytes": -2}, "'x' has bytes -2"),
        ({"reads": [9]}, {}, "reads names a value"),
    ],
)
def test_bad_joint_costs_are_named(op, value, message):
    with pytest.raises(InvalidGraph, match=message):
        JointGraph.build([{"name": "op", "writes": [0], **op}], [{"name": "x", "bytes": 1, **value}], [])


@given(graphs())
def test_the_forward_projection_of_a_joint_graph_is_its_forward_graph(graph):
    seen = graph.joint.graph
    assert seen.names == graph.names
    assert np.array_equal(seen.memory, graph.memory)
    assert np.array_equal(seen.edges, graph.edges)
    assert seen.joint is graph.joint
