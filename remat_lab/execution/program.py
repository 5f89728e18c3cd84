"""A captured graph as small Python functions, one per op, so that any schedule is a loop over them.

Slots hold tensors: one for each resident, each output an op makes, and each view in use. A value (a storage) is
freed by emptying its slots; a view is built when it is first read and lives as long as its value's instance.
The functions are generated, as torch.fx generates its own, because walking argument templates for every op
would cost more than many of the ops.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.fx.node import map_arg

from ..errors import CaptureError
from .storages import StorageGraph, label_of, tensors_of

Slots = list[Any]

#: Random ops that carry no tag saying so.
_RANDOM = frozenset({"bernoulli", "mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn"})
#: Ops that save what their backward needs only while gradients are recorded.
_TRAINING = frozenset({"mkldnn_rnn_layer"})
#: Outputs whose contents are not defined (all, or these), or padded with what was there: nothing to checksum.
_UNDEFINED: dict[str, set[int] | None] = {
    **dict.fromkeys(("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")),
    "mkldnn_rnn_layer": {3},
}


class Program:
    """Functions that run ops and free values on a list of slots.

    Attributes
    ----------
    run : list of callable, op -> function of the slots
    free : list of callable, value -> function of the slots
    random : list of bool, op -> draws random numbers
    primary : list of lists, op -> slots of the tensors it makes
    defined : list of lists, op -> those of them whose contents are defined
    resident_slots : (slot, target) of parameters, buffers and inputs
    resident_places : target -> (slot, value)
    constants : (slot, tensor) lifted from the model
    output_getters : function of the slots for each output of the graph
    """

    def __init__(self, graph: StorageGraph, graph_module: torch.fx.GraphModule):
        self.graph = graph
        self.slot_of: dict[torch.fx.Node, int] = {}
        self.slots_of_value: list[list[int]] = [[] for _ in range(graph.joint.n_values)]
        self.names: dict[str, Any] = {}
        self.lines: list[str] = []
        self.size = 0
        self.resident_slots: list[tuple[int, str]] = []
        self.resident_places: dict[str, tuple[int, int]] = {}
        self.constants: list[tuple[int, torch.Tensor]] = []
        self.primary: list[list[int]] = []
        self._views: set[torch.fx.Node] = set()
        self._op_of = {node: op for op, node in enumerate(graph.nodes)}
        self._tuples: dict[torch.fx.Node, dict[int, int]] = {}

        for node, target in graph.residents.items():
            slot = self._slot(node)
            if node.op == "get_attr":
                self.constants.append((slot, getattr(graph_module, target)))
            else:
                self.resident_slots.append((slot, target))
                self.resident_places[target] = slot, graph.value_of[node]
        used = self._used_nodes()
        for node in graph_module.graph.nodes:
            if node in self._op_of or (node.op == "call_function" and node in used):
                self._declare(node)
        for op, node in enumerate(graph.nodes):
            self._define_run(op, node)
        for value, slots in enumerate(self.slots_of_value):
            body = "; ".join(f"e[{slot}] = None" for slot in slots) or "pass"
            self.lines.append(f"def free{value}(e):\n    {body}")
        for k, output in enumerate(graph.outputs):
            self.lines.append(f"def output{k}(e):\n    return {self._read(output.node)}")
        exec(compile("\n".join(self.lines), "<remat_lab program>", "exec"), self.names)
        self.run: list[Callable[[Slots], None]] = [self.names[f"run{op}"] for op in range(len(graph.nodes))]
        self.free: list[Callable[[Slots], None]] = [
            self.names[f"free{value}"] for value in range(len(self.slots_of_value))
        ]
        self.output_getters: list[Callable[[Slots], torch.Tensor]] = [
            self.names[f"output{k}"] for k in range(len(graph.outputs))
        ]
        self.random = [_is_random(node) for node in graph.nodes]
        self.defined = [
            _defined(kind, slots) for kind, slots in zip(graph.joint.op_types, self.primary, strict=True)
        ]

    def rehearse(self, op: int) -> None:
        """Run a random op on ones in the place of its inputs, for the random numbers that it uses up."""
        node = self.graph.nodes[op]

        def ones(argument: torch.fx.Node) -> Any:
            made = [
                torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=t.device).fill_(1)
                for _, t in tensors_of(argument)
            ]
            return made[0] if isinstance(argument.meta["val"], torch.Tensor) else made

        node.target(*map_arg(node.args, ones), **map_arg(node.kwargs, ones))

    # -- slots -----------------------------------------------------------------------------------------------
    def _slot(self, node: torch.fx.Node | None = None) -> int:
        slot = self.size
        self.size += 1
        if node is not None:
            self.slot_of[node] = slot
        return slot

    def _used_nodes(self) -> set[torch.fx.Node]:
        """Nodes that some op or output needs."""
        used: set[torch.fx.Node] = set()
        waiting = [*self.graph.nodes, *(output.node for output in self.graph.outputs)]
        while waiting:
            node = waiting.pop()
            if node not in used:
                used.add(node)
                waiting.extend(node.all_input_nodes)
        return used

    def _declare(self, node: torch.fx.Node) -> None:
        """Give a node its slot, and say on which values' lives it depends."""
        if node in self._op_of:
            made = self.graph.written[self._op_of[node]]
            if made[0][0] is None:
                self.slots_of_value[made[0][1]].append(self._slot(node))
            else:
                _refuse_mixed(node, made)
                # Every output has a slot, read or not, so that it lives exactly as long as the schedule says.
                self._tuples[node] = {}
                for index, value in made:
                    assert index is not None
                    self._tuples[node][index] = self._slot()
                    self.slots_of_value[value].append(self._tuples[node][index])
            return
        source = node.args[0] if node.args else None
        if _is_getitem(node) and source in self._tuples:
            self.slot_of[node] = self._tuples[source][node.args[1]]
            return
        self._views.add(node)
        slot = self._slot(node)
        for value in {v for _, v in self._values(node)}:
            self.slots_of_value[value].append(slot)
        self.lines.append(
            f"def view{slot}(e):\n    t = e[{slot}]\n    if t is None:\n"
            f"        t = e[{slot}] = {self._call(node)}\n    return t"
        )

    def _values(self, node: torch.fx.Node) -> list[tuple[int | None, int]]:
        if node in self.graph.value_of:
            return [(None, self.graph.value_of[node])]
        sources = [v for source in node.all_input_nodes for _, v in self._values(source)]
        return [(None, v) for v in sources]

    # -- code ------------------------------------------------------------------------------------------------
    def _define_run(self, op: int, node: torch.fx.Node) -> None:
        made = self.graph.written[op]
        own = [self.slot_of[node]] if made[0][0] is None else list(self._tuples[node].values())
        stale = [s for _, value in made for s in self.slots_of_value[value] if s not in own]
        lines = [f"def run{op}(e):", f"    r = {self._call(node)}"]
        if self.graph.joint.op_types[op] in _TRAINING:  # its inputs require no gradient: nothing is recorded
            lines[1:] = [f"    with {self._constant(torch.enable_grad)}():", f"    {lines[1]}"]
        # An older instance, if one lives, goes only now, with the views made of it.
        lines += [f"    e[{slot}] = None" for slot in dict.fromkeys(stale)]
        if made[0][0] is None:
            lines.append(f"    e[{own[0]}] = r")
        else:
            lines += [f"    e[{slot}] = r[{index}]" for index, slot in self._tuples[node].items()]
        self.primary.append(own)
        self.lines.append("\n".join(lines))

    def _call(self, node: torch.fx.Node) -> str:
        if node.op == "placeholder":  # the gradient of the loss
            loss = node.meta["val"]
            ones = functools.partial(torch.ones, loss.shape, dtype=loss.dtype, device=loss.device)
            return f"{self._constant(ones)}()"
        target = self._constant(node.target)
        parts = [self._argument(argument) for argument in node.args]
        parts += [f"{key}={self._argument(argument)}" for key, argument in node.kwargs.items()]
        return f"{target}({', '.join(parts)})"

    def _argument(self, argument: Any) -> str:
        if isinstance(argument, torch.fx.Node):
            return self._read(argument)
        found: list[torch.fx.Node] = []
        map_arg(argument, found.append)
        if not found:
            return self._constant(argument)
        if isinstance(argument, dict):
            return "{" + ", ".join(f"{k!r}: {self._argument(v)}" for k, v in argument.items()) + "}"
        inner = [self._argument(item) for item in argument]
        return f"({', '.join(inner)},)" if isinstance(argument, tuple) else f"[{', '.join(inner)}]"

    def _read(self, node: torch.fx.Node) -> str:
        slot = self.slot_of[node]
        return f"view{slot}(e)" if node in self._views else f"e[{slot}]"

    def _constant(self, constant: Any) -> str:
        if constant is None or isinstance(constant, (bool, int)):
            return repr(constant)
        name = f"c{len(self.names)}"
        self.names[name] = constant
        return name


def _is_getitem(node: torch.fx.Node) -> bool:
    return getattr(node.target, "__name__", "") == "getitem"


def _defined(kind: str, slots: list[int]) -> list[int]:
    if kind not in _UNDEFINED:
        return slots
    undefined = _UNDEFINED[kind]
    return [] if undefined is None else [slot for k, slot in enumerate(slots) if k not in undefined]


def _is_random(node: torch.fx.Node) -> bool:
    target = node.target
    tags = target.tags if isinstance(target, torch._ops.OpOverload) else ()
    name = getattr(target, "__name__", "").split(".")[0]
    return torch.Tag.nondeterministic_seeded in tags or name in _RANDOM


def _refuse_mixed(node: torch.fx.Node, made: list[tuple[int | None, int]]) -> None:
    """An op of several outputs, some new and some views of its inputs, has no exact lifetime per output."""
    new = {index for index, _ in made}
    old = [index for index, _ in tensors_of(node) if index not in new]
    used = {user.args[1] for user in node.users if _is_getitem(user)}
    if used & set(old):
        label = label_of(node)
        raise CaptureError(
            f"{node.target} in module {label.module!r} returns new tensors and views of its inputs together, "
            "which is not supported: split it, or clone what it returns"
        )
