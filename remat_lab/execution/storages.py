"""From a traced joint graph to a JointGraph: values are storages, views cost nothing.

A *value* is a storage. An *op* is a node that makes at least one new storage; it reads the storages behind its
arguments. Every other node is a *view*: it shares a storage and is rebuilt from its base whenever it is read, so
no schedule ever has to keep one. An op with several outputs owns several storages with lifetimes of their own.

The gradient of the loss, an input of the traced graph, is an op here: ``loss.backward()`` makes a tensor of ones
and holds it to the end, and so does a schedule.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from ..errors import CaptureError
from ..joint import JointGraph
from . import _torch_private as private


@dataclass(frozen=True)
class Label:
    """Where a node comes from: the module, the number of the torch call, and the call's name."""

    module: str = ""
    call: int = 0
    name: str = ""


@dataclass(frozen=True)
class Output:
    """What the joint graph returns: ``kind`` is "loss", "gradient" or "mutation"; ``target`` as in ``residents``."""

    kind: str
    target: str
    node: torch.fx.Node
    value: int


@dataclass(frozen=True)
class StorageGraph:
    """The joint graph and its ties to the fx graph.

    Attributes
    ----------
    joint : JointGraph
    nodes : the fx node of each op
    labels : the label of each op
    value_of : fx node -> value its tensor lives in (absent: a tuple, or no tensor)
    written : op -> for each of its tensor outputs, (index in its result or None, value)
    residents : fx placeholder or attribute -> target name
    outputs : the graph's outputs in order
    loss_gradient : the op that makes the gradient of the loss; its node is the traced graph's incoming gradient
    """

    joint: JointGraph
    nodes: list[torch.fx.Node]
    labels: list[Label]
    value_of: dict[torch.fx.Node, int]
    written: list[list[tuple[int | None, int]]]
    residents: dict[torch.fx.Node, str]
    outputs: list[Output]
    loss_gradient: int

    @cached_property
    def output_alone(self) -> list[bool]:
        """Whether each output is the only one in its storage, which the run made: it may be given away."""
        shared = Counter(output.value for output in self.outputs)
        return [shared[o.value] == 1 and not self.joint.resident[o.value] for o in self.outputs]


@dataclass
class _Builder:
    graph_module: torch.fx.GraphModule
    names: dict[str, str]
    values: list[dict[str, Any]] = field(default_factory=list)
    ops: list[dict[str, Any]] = field(default_factory=list)
    value_of_storage: dict[int, int] = field(default_factory=dict)
    value_of: dict[torch.fx.Node, int] = field(default_factory=dict)

    def value(self, tensor: torch.Tensor, name: str, category: str) -> int:
        if tensor.layout != torch.strided:
            raise CaptureError(
                f"{name} makes a tensor in layout {tensor.layout}: only dense tensors can be planned; call .to_dense()"
            )
        key = private.storage_key(tensor)
        if key not in self.value_of_storage:
            self.value_of_storage[key] = len(self.values)
            self.values.append(
                {"name": name, "bytes": int(tensor.untyped_storage().nbytes()), "category": category}
            )
        return self.value_of_storage[key]


def tensors_of(node: torch.fx.Node) -> list[tuple[int | None, torch.Tensor]]:
    """(index, fake tensor) of each tensor a node makes; index None for a single tensor.

    Raises
    ------
    CaptureError
        If the node makes something else than tensors: a number read out of a tensor, say.
    """
    made = node.meta.get("val")
    if isinstance(made, torch.Tensor):
        return [(None, made)]
    if isinstance(made, (tuple, list)):
        return [(i, item) for i, item in enumerate(made) if isinstance(item, torch.Tensor)]
    if made is None:
        return []
    label = label_of(node)
    raise CaptureError(
        f"{node.target} in module {label.module!r} makes a {type(made).__name__} that depends on data: "
        "shapes and control flow must be known ahead"
    )


def label_of(node: torch.fx.Node) -> Label:
    found = (node.meta.get("custom") or {}).get("remat_lab")
    return Label(*found) if found else Label()


def forward_nodes(graph_module: torch.fx.GraphModule, outputs: list[tuple[str, str, Any]]) -> set[Any]:
    """Nodes that run in the forward pass.

    These are the ancestors of the loss and of the buffer updates, and of what else was traced before the
    backward pass began and does not depend on the incoming gradient (a mask that only backward reads, say).
    """
    after_gradient: set[Any] = set()
    tangents = set()
    for node in graph_module.graph.nodes:
        if is_tangent(node) or any(source in after_gradient for source in node.all_input_nodes):
            after_gradient.add(node)
        if is_tangent(node):
            tangents.add(node)
    waiting = [node for kind, _, node in outputs if kind != "gradient"]
    for node in graph_module.graph.nodes:
        if node.meta.get("partitioner_tag") == "is_forward" and node not in after_gradient:
            waiting.append(node)
    forward: set[Any] = set()
    while waiting:
        node = waiting.pop()
        if node not in forward and node not in tangents:
            forward.add(node)
            waiting.extend(node.all_input_nodes)
    return forward


def build(
    graph_module: torch.fx.GraphModule, names: dict[str, str], signature_names: list[str], name: str
) -> StorageGraph:
    """Storages, ops and their categories.

    Parameters
    ----------
    graph_module : the traced joint graph
    names : stand-in -> the model's own name of each parameter and buffer, and of tensors the graph holds itself
    signature_names : a name for each plain input
    name : the joint graph's name
    """
    builder = _Builder(graph_module, names)
    described = private.output_descriptors(graph_module)
    forward = forward_nodes(graph_module, described)
    residents = _residents(builder, signature_names)
    # Forward ops first: they read no backward op's value, and within each half the traced order is eager's.
    calls = [node for node in graph_module.graph.nodes if node.op == "call_function"]
    tangent = next(node for node in graph_module.graph.nodes if is_tangent(node))
    loss = next(node for kind, _, node in described if kind == "loss")
    ordered = [n for n in calls if n in forward] + [tangent] + [n for n in calls if n not in forward]
    nodes, written = [], []
    for node in ordered:
        made = _new_storages(builder, node, "activation" if node in forward else "gradient")
        sources = [loss] if node is tangent else node.all_input_nodes
        reads = {builder.value_of[s] for s in sources if s in builder.value_of}
        if not made:
            continue
        reads |= {v for s in sources if s not in builder.value_of for v in _behind(builder, s)}
        label = label_of(node)
        builder.ops.append(
            {
                "name": "loss_gradient" if node is tangent else node.name,
                "type": op_type(node),
                "module": label.module,
                "backward": node not in forward,
                "reads": sorted(reads),
                "writes": sorted({value for _, value in made}),
                "time": paper_time(op_type(node)),
            }
        )
        nodes.append(node)
        written.append(made)
    outputs = []
    read = {value for op in builder.ops for value in op["reads"]}
    for kind, target, node in described:
        value = builder.value_of[node]
        outputs.append(Output(kind, target, node, value))
        category = {"loss": "output", "gradient": "parameter gradient", "mutation": "buffer"}[kind]
        if category == "buffer" and value in read:
            continue  # what an op goes on with is a node of the forward graph, as its reader is
        if builder.values[value]["category"] in ("activation", "gradient"):
            builder.values[value]["category"] = category
    joint = JointGraph.build(
        builder.ops,
        builder.values,
        sorted({*(output.value for output in outputs), builder.value_of[tangent]}),
        time_unit="paper",
        name=name,
        keeps_outputs=True,
    )
    labels = [label_of(node) for node in nodes]
    return StorageGraph(
        joint, nodes, labels, builder.value_of, written, residents, outputs, nodes.index(tangent)
    )


def is_tangent(node: torch.fx.Node) -> bool:
    """Whether a node is the traced graph's incoming gradient, that of the loss."""
    return node.op == "placeholder" and private.input_target(node.meta["desc"]) == "tangent"


def op_type(node: torch.fx.Node) -> str:
    """The ATen name without namespace and overload: "convolution", "mm"; "ones_like" for the gradient of the loss."""
    if node.op == "placeholder":
        return "ones_like"
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        return target._schema.name.split("::")[-1]
    return getattr(target, "__name__", str(target))


def paper_time(kind: str) -> float:
    """The paper's rule: a convolution takes 10, anything else 1. Its backward is two convolutions."""
    if "convolution" not in kind:
        return 1.0
    return 20.0 if "backward" in kind else 10.0


def _residents(builder: _Builder, signature_names: list[str]) -> dict[torch.fx.Node, str]:
    residents: dict[torch.fx.Node, str] = {}
    values: dict[str, int] = {}  # of each target; a tensor the graph holds itself may have several nodes
    for node in builder.graph_module.graph.nodes:
        if is_tangent(node):
            continue
        if node.op == "placeholder":
            target = private.input_target(node.meta["desc"])
            label = _full_name(target, builder.names, signature_names)
            kind = type(node.meta["desc"]).__name__
            category = {"ParamAOTInput": "parameter", "BufferAOTInput": "buffer"}.get(kind, "input")
        elif node.op == "get_attr":
            target = str(node.target)
            label = _full_name(target, builder.names, signature_names)
            category = "buffer"
            node.meta.setdefault("val", getattr(builder.graph_module, node.target))
        else:
            continue
        residents[node] = target
        for _, tensor in tensors_of(node):
            if target not in values:
                values[target] = builder.value(tensor, label, category)
            builder.value_of[node] = values[target]
    return residents


def _full_name(target: str, names: dict[str, str], signature_names: list[str]) -> str:
    if target.startswith("args["):
        return signature_names[int(target[5:-1])]
    return names.get(target, target).removeprefix("model.")


def _new_storages(builder: _Builder, node: torch.fx.Node, category: str) -> list[tuple[int | None, int]]:
    """Outputs that live in storages no earlier node has made; a node without any is a view."""
    made = []
    known = len(builder.values)
    for index, tensor in tensors_of(node):
        name = "gradient of the loss" if is_tangent(node) else node.name
        suffix = "" if index in (None, 0) else f"[{index}]"
        value = builder.value(tensor, name + suffix, category)
        if value >= known:
            made.append((index, value))
        if index is None:
            builder.value_of[node] = value
    return made


def _behind(builder: _Builder, node: torch.fx.Node) -> set[int]:
    """Values behind a node that is a tuple, when an op takes the whole of it."""
    return {
        builder.value_of_storage[private.storage_key(tensor)]
        for _, tensor in tensors_of(node)
        if private.storage_key(tensor) in builder.value_of_storage
    }
