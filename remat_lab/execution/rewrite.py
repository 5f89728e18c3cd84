"""Put back what functionalizing changed about eager's kernels, and drop what they do not read.

Eager fills an empty tensor with random bits in place. Functionalized, that is an empty tensor and a second one of
its own, always contiguous: one tensor more than eager holds, and, when the first was not contiguous, another mask.
"""

from __future__ import annotations

import operator
from typing import Any

import torch

from ..errors import CaptureError

_BATCH_NORM_BACKWARD = frozenset(
    f"aten::{prefix}batch_norm_backward" for prefix in ("native_", "cudnn_", "miopen_", "")
)
_EMPTY = frozenset({"aten::empty_like", "aten::empty", "aten::new_empty", "aten::empty_strided"})


def bernoulli(make: Any, p: float, args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.Tensor:
    """An empty tensor, filled in place with ones (with probability ``p``) and zeros."""
    return make(*args, **kwargs).bernoulli_(p)


def refill_in_place(graph_module: torch.fx.GraphModule) -> None:
    """Join each ``bernoulli`` with the ``empty`` it fills, when nothing else reads that."""
    graph = graph_module.graph
    for node in list(graph.nodes):
        if node.target is not torch.ops.aten.bernoulli.p:
            continue
        empty, p, *_ = node.args
        name = empty.target.name().split(".")[0] if isinstance(empty.target, torch._ops.OpOverload) else ""
        if name not in _EMPTY or len(empty.users) != 1 or node.kwargs.get("generator") is not None:
            continue
        node.args = (empty.target, p, empty.args, dict(empty.kwargs))
        node.kwargs = {}
        node.target = bernoulli
        node.meta["val"] = empty.meta["val"]
        graph.erase_node(empty)


def drop_unused_statistics(graph_module: torch.fx.GraphModule) -> None:
    """Take the running statistics from the backward ops of batch norms that train: they use the batch's own.

    Otherwise backward would seem to need the buffers' new contents, and hold them beside the old ones that a
    recomputation of the batch norm needs.
    """
    for node in graph_module.graph.nodes:
        target = node.target
        if not isinstance(target, torch._ops.OpOverload) or target._schema.name not in _BATCH_NORM_BACKWARD:
            continue
        given = dict(zip((argument.name for argument in target._schema.arguments), node.args))
        if given.get("train", given.get("update", True)) is not True:
            continue
        node.args = tuple(None if name in ("running_mean", "running_var") else v for name, v in given.items())


class Checked:
    """An op of ``torch.linalg`` that says itself whether it failed, and the check that follows it, as one op."""

    def __init__(self, op: torch._ops.OpOverload, output: int, called: str, is_matrix: bool):
        self.op, self.output, self.called, self.is_matrix = op, output, called, is_matrix
        self.__name__ = self.__qualname__ = op._schema.name.split("::")[-1]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        made = self.op(*args, **kwargs)
        torch.ops.aten._linalg_check_errors(made[self.output], self.called, is_matrix=self.is_matrix)
        return made

    def __repr__(self) -> str:
        return f"{self.op}, checked"


def check_where_made(graph_module: torch.fx.GraphModule) -> None:
    """Join each check of an op of ``torch.linalg`` with that op.

    The tracer orders checks, which make nothing, by a token that passes from one to the next, into the graph and out
    of it. Every run of the joined op checks, a recomputation too; there are no tokens then.

    Raises
    ------
    CaptureError
        If another op is ordered by a token.
    """
    graph = graph_module.graph
    effects = [node for node in graph.nodes if node.target is torch.ops.higher_order.with_effects]
    tokens: set[torch.fx.Node] = set()
    for node in effects:
        token, op, *rest = node.args
        tokens.add(token)
        info: Any = rest[0] if rest else None
        made = info.args[0] if isinstance(info, torch.fx.Node) and info.target is operator.getitem else None
        checks = op is torch.ops.aten._linalg_check_errors.default
        if not checks or made is None or not isinstance(made.target, torch._ops.OpOverload):
            raise CaptureError(
                f"{op} acts outside the graph (it prints or asserts, say), which no plan can follow: leave it out"
            )
        made.target = Checked(made.target, info.args[1], rest[1], bool(node.kwargs.get("is_matrix", True)))
    output = next(node for node in graph.nodes if node.op == "output")
    passed = {user for node in effects for user in node.users}
    if not effects:
        return
    described = output.meta["desc"]
    output.meta["desc"] = [
        None if value in passed else desc for value, desc in zip(output.args[0], described)
    ]
    output.args = (tuple(None if value in passed else value for value in output.args[0]),)
    for node in reversed(effects):
        for user in list(node.users):
            graph.erase_node(user)
        graph.erase_node(node)
    for token in tokens:
        if token.op == "placeholder" and not token.users:
            graph.erase_node(token)
