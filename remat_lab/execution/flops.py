"""Floating-point operations of one op, by torch's own formulas where it has one."""

from __future__ import annotations

import torch
from torch.fx.node import map_aggregate
from torch.utils.flop_counter import flop_registry

from .storages import tensors_of


def op_flops(node: torch.fx.Node) -> float:
    """FLOPs of a node: products by torch's formula, anything else one per element it makes.

    Element-wise work is 16 to 53% of a step's time on a CPU: FLOPs alone are a poor clock, kept for comparison.
    """
    made = [tensor for _, tensor in tensors_of(node)]
    packet = getattr(node.target, "overloadpacket", None)
    if packet in flop_registry:

        def fake(argument):
            return argument.meta["val"] if isinstance(argument, torch.fx.Node) else argument

        args, kwargs = map_aggregate(node.args, fake), map_aggregate(node.kwargs, fake)
        value = node.meta["val"]
        return float(flop_registry[packet](*args, **kwargs, out_val=value))
    return float(sum(tensor.numel() for tensor in made))
