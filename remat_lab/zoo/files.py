"""load_graph(): the graph files that can be planned.

Three kinds, told apart by their content:

* remat_lab's own JSON, written by ``ComputationGraph.to_json`` and ``JointGraph.to_json``;
* the text format of the graphs published with Kusumoto et al. (:mod:`remat_lab.zoo.chainer_files`);
* networkx's node-link JSON of a joint (forward and backward) graph, one op per node.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from typing import Any

from ..arguments import as_path
from ..errors import InvalidGraph
from ..graph import ComputationGraph
from ..joint import JointGraph
from .chainer_files import parse_chainer_graph

# Node-link files in the wild name the same things differently; the first name present is used.
_TIME = ("time", "cost_cpu", "duration")
_BYTES = ("bytes", "cost_ram", "out_cost")
_ENDS = (("source", "target"), ("0", "1"))


def load_graph(path: str | PathLike[str]) -> ComputationGraph | JointGraph:
    """Read a graph file.

    Parameters
    ----------
    path : str or path
        * JSON of a ``ComputationGraph`` or a ``JointGraph``: read back exactly as written.
        * A text file of Kusumoto et al.: a ComputationGraph. Nodes are the variables that some function
          produces, time is 10 for functions whose type starts with "Conv" and 1 for all others, and the
          joint graph follows the file's backward functions.
        * Node-link JSON: a JointGraph in which every node is an op that writes one value. ``cost_cpu``,
          ``duration`` or ``time`` is the time; ``cost_ram``, ``out_cost`` or ``bytes`` the value's bytes.
          Ops keep the order of ``graph.order`` where there is one, else the order of the nodes. Values that
          nothing reads are the outputs. If the nodes carry ``memory``, the file is a networkx export of
          a ComputationGraph and is read as one.

    Raises
    ------
    InvalidGraph
        If there is no such file, or it is none of these; the message names the file and, where there is one,
        the line.
    """
    path = as_path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InvalidGraph(f"there is no graph file {str(path)!r}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidGraph(f"{path}: cannot be read as text: {error}") from error
    try:
        if text.lstrip()[:1] in ("{", "["):
            return _from_json(text, path.stem)
        return parse_chainer_graph(text, name=path.stem)
    except InvalidGraph as error:
        raise InvalidGraph(f"{path}: {error}") from error


def _from_json(text: str, name: str) -> ComputationGraph | JointGraph:
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidGraph(f"line {error.lineno}: not JSON: {error.msg}") from error
    if not isinstance(data, dict):
        raise InvalidGraph("a graph file holds one JSON object")
    form = str(data.get("format", ""))
    if form.startswith("remat_lab.ComputationGraph/"):
        return ComputationGraph.from_dict(data)
    if form.startswith("remat_lab.JointGraph/"):
        return JointGraph.from_dict(data)
    if form:
        raise InvalidGraph(f"format {form!r} is no graph that load_graph reads")
    if "nodes" in data and ("links" in data or "edges" in data):
        return _from_node_link(data, name)
    raise InvalidGraph(f"neither a remat_lab graph nor node-link data: it has the keys {sorted(data)}")


def _from_node_link(data: Mapping[str, Any], name: str) -> ComputationGraph | JointGraph:
    nodes = data["nodes"]
    links = data["links"] if "links" in data else data["edges"]
    settings = data.get("graph", {})
    if not all(isinstance(part, list) and all(isinstance(x, dict) for x in part) for part in (nodes, links)):
        raise InvalidGraph("node-link data needs lists of objects as nodes and links")
    if not isinstance(settings, dict):
        raise InvalidGraph(f"node-link data needs an object as graph, got {settings!r}")
    ids = [str(_first(node, ("id", "name"), f"node {i}")) for i, node in enumerate(nodes)]
    place = {key: i for i, key in enumerate(ids)}
    if len(place) < len(ids):
        twice = next(key for i, key in enumerate(ids) if place[key] != i)
        raise InvalidGraph(f"two nodes have the id {twice!r}")
    edges = []
    for i, link in enumerate(links):
        ends = next((pair for pair in _ENDS if pair[0] in link and pair[1] in link), None)
        if ends is None:
            raise InvalidGraph(f"link {i} needs source and target, got {link!r}")
        for end in ends:
            if str(link[end]) not in place:
                raise InvalidGraph(f"link {i} names {link[end]!r}, which is no node")
        edges.append((str(link[ends[0]]), str(link[ends[1]])))
    name = str(settings.get("name", name))
    if nodes and all("memory" in node for node in nodes):
        options = {key: settings[key] for key in ("time_unit", "baseline") if key in settings}
        named = [{**node, "name": key} for node, key in zip(nodes, ids)]
        return ComputationGraph.from_nodes(named, edges, name=name, **options)
    return _joint_of_nodes(nodes, ids, edges, settings.get("order"), name)


def _joint_of_nodes(
    nodes: list[dict[str, Any]], ids: list[str], edges: list[tuple[str, str]], order: Any, name: str
) -> JointGraph:
    """Every node becomes an op and the value it writes; a link is a read."""
    costs = {
        key: {
            "name": key,
            "time": _first(node, _TIME, f"node {key!r}"),
            "memory": _first(node, _BYTES, f"node {key!r}"),
        }
        for node, key in zip(nodes, ids)
    }
    if order is not None and (not isinstance(order, list) or sorted(map(str, order)) != sorted(ids)):
        raise InvalidGraph("graph.order must list every node once")
    given = ids if order is None else [str(key) for key in order]
    # ComputationGraph checks the costs, names a cycle if there is one, and keeps a given order that can run.
    plain = ComputationGraph.from_nodes([costs[key] for key in given], edges, name=name)
    by_name = dict(zip(ids, nodes))
    ordered = [by_name[key] for key in plain.names]
    backward = [bool(node.get("backward", False)) for node in ordered]
    labels = [str(node.get("name", key)) for node, key in zip(ordered, plain.names)]
    return JointGraph.build(
        [
            {
                "name": labels[v],
                "time": plain.time[v],
                "backward": backward[v],
                "reads": plain.predecessors.row(v).tolist(),
                "writes": [v],
            }
            for v in range(len(plain))
        ],
        [
            {
                "name": labels[v],
                "bytes": plain.memory[v],
                "category": "gradient" if backward[v] else "activation",
            }
            for v in range(len(plain))
        ],
        [v for v in range(len(plain)) if not len(plain.successors.row(v))],
        name=name,
    )


def _first(item: Mapping[str, Any], keys: tuple[str, ...], what: str) -> Any:
    for key in keys:
        if key in item:
            return item[key]
    raise InvalidGraph(f"{what} has none of {', '.join(keys)}")
