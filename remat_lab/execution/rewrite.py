"""Put back what functionalizing changed about eager's kernels, and drop what they do not read.

Eager fills an empty tensor with random bits in place. Functionalized, that is an empty tensor and a second one of
its own, always contiguous: one tensor more than eager holds, and, when the first was not contiguous, another mask.
"""

from __future__ import annotations

from typing import Any

import torch

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
