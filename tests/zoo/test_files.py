"""load_graph: published graphs to the byte, our own JSON, and errors that name file and line."""

import json
import subprocess
import sys
from pathlib import Path

import networkx as nx
import numpy as np
import pytest

from remat_lab.errors import InvalidGraph, RematError
from remat_lab.graph import ComputationGraph
from remat_lab.joint import CATEGORIES, JointGraph
from remat_lab.schedule import Schedule
from remat_lab.simulate import simulate
from remat_lab.zoo import chainer_files, load_graph

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
FILES = {
    "vgg19": "cg_vgg19.txt",
    "unet": "cg_unet.txt",
    "resnet50": "cg_resnet50.txt",
    "resnet152": "cg_resnet152.txt",
    "googlenet": "cg_googlenet.txt",
    "densenet161": "cg_densenet.txt",
    "pspnet": "cg_pspnet.txt",
}
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the published graphs are not here")

# x -> conv -> relu -> loss(labels), small enough to check by eye.
TINY = """\
8 6
0 40 0
1 12 /predictor/block/conv/W
2 4 /predictor/block/conv/b
3 100 _
4 100 _
5 8 1
6 4 _
7 16 /unused/W
forward
1 1
3 _
4
ReLU
{"rank": 1}
forward
3 1
0 _
1 _
2 _
3
Convolution2DFunction
{"rank": 0}
forward
2 1
4 _
5 _
6
SoftmaxCrossEntropy
{"rank": 2}
backward
3 2
6 gradient
4 input
5 input
4
5
SoftmaxCrossEntropy
{"rank": 2}
backward
2 1
4 gradient
4 output
3
ReLU
{"rank": 1}
backward
4 3
3 gradient
0 input
1 input
2 input
0
1
2
Convolution2DFunction
{"rank": 0}
"""

# One function with two outputs, of which one feeds the loss twice over; a shared parameter.
SPLIT = """\
8 8
0 40 0
1 12 /predictor/shared/W
2 100 _
3 60 _
4 40 _
5 60 _
6 4 _
7 50 _
forward
2 1
0 _
1 _
2
LinearFunction
{}
forward
1 2
2 _
3
4
SplitAxis
{}
forward
2 1
3 _
1 _
5
LinearFunction
{}
forward
2 1
5 _
4 _
6
Sum
{}
backward
3 2
2 gradient
0 input
1 input
0
1
LinearFunction
{}
backward
2 1
3 gradient
4 gradient
2
SplitAxis
{}
backward
3 2
5 gradient
3 input
1 input
3
1
LinearFunction
{}
backward
1 2
6 gradient
5
4
Sum
{}
"""


def write(tmp_path, text, name="graph.txt"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def categories(joint):
    return [CATEGORIES[i] for i in joint.value_category]


# -- the published graphs -------------------------------------------------------------------------------------
@needs_data
@pytest.mark.parametrize("network", FILES)
def test_published_graph_has_the_reference_counts(network):
    table = json.loads((DATA / "reference" / "kusumoto_planner.json").read_text())["networks"]
    expected = table[network] if network in table else table[network.removesuffix("161")]
    graph = load_graph(DATA / "kusumoto" / FILES[network])
    assert isinstance(graph, ComputationGraph)
    assert len(graph) == expected["nodes"]
    assert graph.n_edges == expected["edges"]
    assert graph.total_memory == expected["total_bytes"]
    assert graph.total_time == expected["total_time"]


@needs_data
@pytest.mark.parametrize("network", FILES)
def test_plain_and_general_joint_graphs_agree(network, monkeypatch):
    """The ComputationGraph's own joint graph is the file's: both builders give the same memory over time."""
    path = DATA / "kusumoto" / FILES[network]
    plain = load_graph(path)
    monkeypatch.setattr(chainer_files, "_follows_the_paper", lambda *_: False)
    general = load_graph(str(path))
    assert plain.names == general.names
    assert np.array_equal(plain.memory, general.memory)
    assert np.array_equal(plain.edges, general.edges)
    one, other = (simulate(Schedule.vanilla(graph.joint)) for graph in (plain, general))
    assert one.peak == other.peak
    assert one.baseline == other.baseline
    assert one.schedule.joint.plain_time == other.schedule.joint.plain_time
    assert sorted(one.bytes) == sorted(other.bytes)


@needs_data
def test_backward_reads_are_the_file_s():
    graph = load_graph(DATA / "kusumoto" / "cg_vgg19.txt")
    reads = {
        graph.ops[v]: (graph.backward_reads.row(v).tolist(), graph.predecessors.row(v).tolist(), v)
        for v in range(1, len(graph))
    }
    own, inputs, v = reads["ReLU"]
    assert own == [v]
    own, inputs, v = reads["MaxPooling2D"]
    assert own == [*inputs, v]
    own, inputs, v = reads["Convolution2DFunction"]
    assert own == inputs
    assert int(graph.parameter_bytes.sum()) == 574_668_960


@needs_data
@pytest.mark.parametrize("path", sorted((DATA / "joint_graphs").glob("*.json")), ids=lambda path: path.stem)
def test_node_link_graph_runs_in_its_given_order(path):
    data = json.loads(path.read_text())
    joint = load_graph(path)
    assert isinstance(joint, JointGraph)
    assert joint.n_ops == joint.n_values == len(data["nodes"])
    assert len(joint.reads.index) == len(data["links"])
    given = data["graph"].get("order") or [node["name"] for node in data["nodes"]]
    assert list(joint.op_names) == [str(name) for name in given]
    assert joint.op_backward.sum() == sum(node.get("backward", False) for node in data["nodes"])
    simulate(Schedule.vanilla(joint))


@needs_data
def test_node_link_peak_is_the_one_the_published_budgets_come_from():
    name = "random_layered_n250_w0.43_nlv0.75_ed0.2_scd0.14"
    table = json.loads((DATA / "reference" / "joint_graphs.json").read_text())["results"]
    budgets = [row["budget"] for row in table if row["graph"] == name]
    peak = simulate(Schedule.vanilla(load_graph(DATA / "joint_graphs" / f"{name}.json"))).peak
    assert budgets == [round(0.9 * peak), round(0.8 * peak)]


# -- the text format ------------------------------------------------------------------------------------------
def test_text_format_by_eye(tmp_path):
    graph = load_graph(write(tmp_path, TINY))
    assert graph.names == ("block/conv", "ReLU 4", "SoftmaxCrossEntropy 6")
    assert graph.time.tolist() == [10, 1, 1]
    assert graph.memory.tolist() == [100, 100, 4]
    assert graph.parameter_bytes.tolist() == [16, 0, 0]
    assert graph.baseline == 40 + 12 + 4 + 8 + 16
    assert [graph.backward_reads.row(v).tolist() for v in range(3)] == [[], [1], [1]]
    assert graph.name == "graph"


def test_several_outputs_are_one_node_with_values_of_their_own(tmp_path):
    graph = load_graph(write(tmp_path, SPLIT))
    assert graph.names == ("shared 2", "SplitAxis 3", "shared 5", "Sum 6")
    assert graph.memory.tolist() == [100, 100, 60, 4]
    assert graph.edges.tolist() == [[0, 1], [1, 2], [1, 3], [2, 3]]
    joint = graph.joint
    split = joint.op_names.index("SplitAxis 3")
    assert [joint.value_names[v] for v in joint.writes.row(split)] == ["SplitAxis 3[0]", "SplitAxis 3[1]"]
    # The parameter used twice has one gradient, to which both layers add.
    shared = joint.value_names.index("grad /predictor/shared/W")
    assert joint.writer_count[shared] == 2
    assert joint.outputs.tolist() == [shared]
    assert categories(joint).count("parameter gradient") == 1
    assert graph.node_of_op[: len(graph)].tolist() == [0, 1, 2, 3]
    assert (graph.node_of_op[len(graph) :] == -1).all()
    simulate(Schedule.vanilla(joint))


def test_a_forward_function_without_backward_passes_no_gradient_on(tmp_path):
    head, _, tail = TINY.partition("backward\n2 1\n4 gradient")
    without_relu = head.replace("8 6", "8 5", 1) + tail[tail.index("backward") :]
    joint = load_graph(write(tmp_path, without_relu)).joint
    assert "backward ReLU 4" not in joint.op_names
    # Nothing computes the convolution's gradient, so it arrives from outside like the loss's.
    assert {name for name in joint.op_names if name.startswith("seed")} == {
        "seed block/conv",
        "seed SoftmaxCrossEntropy 6",
    }


@pytest.mark.parametrize(
    ("old", "new", "line", "about"),
    [
        ("8 6", "8", 1, "numbers of variables and functions"),
        ("8 6", "8 7", 58, "ends where a function"),
        ("8 6", "8 5", 47, "end of the file"),
        ("1 12 /p", "1 -12 /p", 3, "a variable"),
        ("2 4 /p", "1 4 /p", 4, "given twice"),
        ("3 _\n4\nReLU", "9 _\n4\nReLU", 12, "9 is not one of"),
        ("3 _\n4\nReLU", "3 input\n4\nReLU", 12, "input of a forward function"),
        ("4 output", "4 _", 43, "gradient or input or output"),
        ("3\nConvolution2DFunction", "4\nConvolution2DFunction", 16, "already an output"),
        ("forward\n1 1", "sideways\n1 1", 10, "'sideways'"),
        ('ReLU\n{"rank": 1}\nforward', "ReLU\nforward", 15, "attributes"),
        ("4 gradient\n4 output", "4 gradient\n6 output", 40, "neither side"),
        ("6 gradient", "5 gradient", 31, "reads the gradients"),
        ("0 _\n1 _\n2 _", "4 _\n1 _\n2 _", 10, "cycle"),
    ],
)
def test_broken_text_names_file_and_line(tmp_path, old, new, line, about):
    assert old in TINY
    path = write(tmp_path, TINY.replace(old, new, 1))
    with pytest.raises(InvalidGraph) as raised:
        load_graph(path)
    assert str(raised.value).startswith(f"{path}: line {line}: ")
    assert about in str(raised.value)


# -- our own JSON ---------------------------------------------------------------------------------------------
def test_own_json_comes_back_as_it_was(tmp_path):
    graph = load_graph(write(tmp_path, TINY))
    again = load_graph(write(tmp_path, graph.to_json(), "graph.json"))
    assert again.to_dict() == graph.to_dict()
    joint = load_graph(write(tmp_path, graph.joint.to_json(), "joint.json"))
    assert joint.to_dict() == graph.joint.to_dict()


def test_networkx_export_is_a_computation_graph(tmp_path):
    graph = load_graph(write(tmp_path, TINY))
    data = nx.node_link_data(graph.to_networkx(), edges="links")
    again = load_graph(write(tmp_path, json.dumps(data), "export.json"))
    assert again.to_dict() == graph.to_dict()


# -- node-link JSON ---------------------------------------------------------------------------------------------
NODE_LINK = {
    "graph": {"order": ["a", "c", "b"]},
    "nodes": [
        {"name": "a", "duration": 1, "out_cost": 4},
        {"name": "b", "duration": 2, "out_cost": 8, "backward": True},
        {"name": "c", "duration": 3, "out_cost": 2},
    ],
    "links": [{"0": "a", "1": "c"}, {"0": "c", "1": "b"}, {"0": "a", "1": "b"}],
}


def changed(**parts):
    return json.dumps({**NODE_LINK, **parts})


def test_node_link_by_eye(tmp_path):
    joint = load_graph(write(tmp_path, changed(), "small.json"))
    assert joint.op_names == ("a", "c", "b")
    assert joint.op_time.tolist() == [1, 3, 2]
    assert joint.value_bytes.tolist() == [4, 2, 8]
    assert joint.reads.row(2).tolist() == [0, 1]
    assert joint.outputs.tolist() == [2]
    assert categories(joint) == ["activation", "activation", "gradient"]
    assert joint.name == "small"


@pytest.mark.parametrize(
    ("text", "about"),
    [
        ('{"nodes": [\n1,\n}', "line 3: not JSON"),
        ("[1, 2]", "one JSON object"),
        ('{"format": "remat_lab.Recipe/1"}', "remat_lab.Recipe/1"),
        ('{"format": "remat_lab.JointGraph/1"}', "not a remat_lab joint graph"),
        ('{"format": "remat_lab.ComputationGraph/1"}', "not a remat_lab computation graph"),
        ('{"vertices": []}', "'vertices'"),
        (changed(nodes=[]), "names 'a', which is no node"),
        (changed(nodes=[1]), "lists of objects"),
        (changed(nodes=NODE_LINK["nodes"] * 2), "two nodes have the id"),
        (changed(links=[{"from": 1}]), "link 0 needs source and target"),
        (changed(links=[{"0": "a", "1": "z"}]), "link 0 names 'z'"),
        (changed(links=[{"0": ["a"], "1": "b"}]), "link 0 names"),
        (changed(graph={"order": ["a", "b"]}), "every node once"),
        (changed(graph={"order": "abc"}), "every node once"),
        (changed(graph=[]), "object as graph"),
        (changed(nodes=[{"name": "a", "duration": 1}], links=[], graph={}), "none of bytes, cost_ram"),
        (changed(nodes=[{"name": "a", "out_cost": 1, "duration": -1}], links=[], graph={}), "need a finite"),
        (changed(nodes=[{"duration": 1}], links=[]), "node 0 has none of id, name"),
        (changed(links=[{"0": "a", "1": "b"}, {"0": "b", "1": "a"}]), "cycle: a -> b -> a"),
    ],
)
def test_broken_json_says_what_is_wrong(tmp_path, text, about):
    path = write(tmp_path, text, "broken.json")
    with pytest.raises(InvalidGraph) as raised:
        load_graph(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert about in str(raised.value)


# -- files that are none ------------------------------------------------------------------------------------------
def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InvalidGraph, match=r"no graph file .*nowhere\.txt"):
        load_graph(tmp_path / "nowhere.txt")


def test_what_is_no_text_is_refused(tmp_path):
    (tmp_path / "image.txt").write_bytes(b"\xff\xfe\x00\x80")
    for path in (tmp_path, tmp_path / "image.txt"):
        with pytest.raises(RematError, match="cannot be read as text"):
            load_graph(str(path))
    with pytest.raises(InvalidGraph, match="line 1: the file ends where"):
        load_graph(write(tmp_path, ""))


def test_reading_graphs_does_not_import_torch():
    code = "import sys; from remat_lab.zoo import load_graph; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
