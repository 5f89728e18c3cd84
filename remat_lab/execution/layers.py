"""The layer granularity: one node for each layer's primary output, as the papers draw networks.

Ops that one torch call made (a linear's transpose and product, a cross entropy's softmax and loss) are one layer.
Its memory is the bytes of its primary output only: no masks, no saved statistics. A call that only reshapes an
activation is a layer, too, of the bytes of what it returns, as in the graphs of Kusumoto et al., though its
storage costs nothing; it has no op, so plans treat it as free to make.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from ..arrays import csr, frozen
from ..errors import InvalidGraph
from ..graph import ComputationGraph
from .storages import StorageGraph, label_of, tensors_of

#: Calls that return an activation in another shape.
RESHAPES = frozenset(
    {"flatten", "reshape", "reshape_as", "view", "view_as", "unflatten", "squeeze", "unsqueeze"}
)


def layers(graph: StorageGraph) -> ComputationGraph:
    """Project a captured joint graph to layers. Its ``joint`` is the captured one.

    Raises
    ------
    InvalidGraph
        If no forward op makes an activation.
    """
    joint = graph.joint
    forward = {graph.nodes[i]: i for i in range(joint.n_ops) if not joint.op_backward[i]}
    group_of: dict[Any, int] = {}  # fx node -> layer
    group_of_call: dict[int, int] = {}
    nodes: list[dict[str, Any]] = []
    node_of_op = np.full(joint.n_ops, -1, dtype=np.int64)
    for fx_node in forward_order(graph):
        label = label_of(fx_node)
        op = forward.get(fx_node)
        if op is not None:
            if not any(joint.makes_node[value] for _, value in graph.written[op]):
                continue
            layer = group_of_call.get(label.call) if label.call else None
            if layer is None:
                layer = len(nodes)
                nodes.append({"op": label.name or joint.op_types[op], "time": 0.0, "ops": []})
                if label.call:
                    group_of_call[label.call] = layer
            node = nodes[layer]
            # The last op of the call makes its primary output; of several outputs, the first is primary.
            node.update(memory=_primary_bytes(fx_node), name=joint.op_names[op], module=label.module)
            node["ops"].append(op)
            node_of_op[op] = layer
            group_of[fx_node] = layer
        elif label.call in group_of_call:
            group_of[fx_node] = group_of_call[label.call]
        elif label.name in RESHAPES and _reads_activation(graph, fx_node):
            group_of_call[label.call] = group_of[fx_node] = len(nodes)
            nodes.append(
                {
                    "op": label.name,
                    "time": 0.0,
                    "ops": [],
                    "memory": _primary_bytes(fx_node),
                    "name": fx_node.name,
                    "module": label.module,
                }
            )
    if not nodes:
        raise InvalidGraph("the model's forward pass makes no activation: there is nothing to plan")
    edges = set()
    for fx_node, layer in group_of.items():
        for source in _source_layers(fx_node, group_of):
            if source != layer:
                edges.add((source, layer))
    return _assemble(graph, nodes, edges, node_of_op)


def forward_order(graph: StorageGraph) -> list[torch.fx.Node]:
    """Call nodes whose values the forward pass makes or views, in order."""
    made = {
        value
        for op, pairs in enumerate(graph.written)
        for _, value in pairs
        if not graph.joint.op_backward[op]
    }
    return [
        node
        for node in graph.nodes[0].graph.nodes
        if node.op == "call_function"
        and node.meta.get("partitioner_tag") != "is_backward"
        and all(value in made for value in _values(graph, node))
    ]


def _values(graph: StorageGraph, node: torch.fx.Node) -> list[int]:
    return [graph.value_of[node]] if node in graph.value_of else []


def _primary_bytes(node: torch.fx.Node) -> int:
    _, tensor = tensors_of(node)[0]
    return tensor.numel() * tensor.element_size()


def _reads_activation(graph: StorageGraph, node: torch.fx.Node) -> bool:
    return any(
        not graph.joint.resident[value] for source in node.all_input_nodes for value in _values(graph, source)
    )


def _source_layers(node: torch.fx.Node, group_of: dict[Any, int]) -> set[int]:
    """Layers a node reads, looking through views that are no layer of their own."""
    found: set[int] = set()
    waiting = list(node.all_input_nodes)
    while waiting:
        source = waiting.pop()
        if source in group_of:
            found.add(group_of[source])
        elif source.op == "call_function":
            waiting.extend(source.all_input_nodes)
    return found


def _assemble(
    graph: StorageGraph, nodes: list[dict[str, Any]], edges: set[tuple[int, int]], node_of_op: np.ndarray
) -> ComputationGraph:
    """Layers are numbered in the order of their first op, which is an order that can run."""
    joint = graph.joint
    backward_time = _backward_time(graph, nodes)
    predecessors: list[list[int]] = [[] for _ in nodes]
    for source, layer in sorted(edges):
        predecessors[layer].append(source)
    if joint.time_unit == "paper":
        time = [max([1.0, *(joint.op_time[op] for op in node["ops"])]) for node in nodes]
    else:
        time = [float(sum(joint.op_time[op] for op in node["ops"])) for node in nodes]
    zeros = frozen(np.zeros(len(nodes), dtype=np.int64))
    return ComputationGraph(
        names=tuple(node["name"] for node in nodes),
        ops=tuple(node["op"] for node in nodes),
        time=frozen(np.array(time, dtype=np.float64)),
        memory=frozen(np.array([node["memory"] for node in nodes], dtype=np.int64)),
        predecessors=csr(predecessors),
        backward_reads=csr(predecessors),
        backward_time=frozen(np.array(backward_time, dtype=np.float64)),
        parameter_bytes=zeros,
        baseline=joint.baseline,
        time_unit=joint.time_unit,
        name=joint.name,
        _joint=joint,
        _node_of_op=frozen(node_of_op),
    )


def _backward_time(graph: StorageGraph, nodes: list[dict[str, Any]]) -> list[float]:
    """Backward ops carry the label of the forward call they belong to."""
    joint = graph.joint
    time = [0.0] * len(nodes)
    layer_of_call = {
        graph.labels[op].call: layer
        for layer, node in enumerate(nodes)
        for op in node["ops"]
        if graph.labels[op].call
    }
    for op in np.flatnonzero(joint.op_backward).tolist():
        layer = layer_of_call.get(graph.labels[op].call)
        if layer is not None:
            time[layer] += float(joint.op_time[op])
    return time
