"""Graphs made by formula, for tests and comparisons; no torch."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from ..graph import ComputationGraph
from ..joint import JointGraph


def unit_chain(n: int, needs: str = "output") -> JointGraph:
    """A training chain with unit times and sizes: n forward ops, the loss, n backward ops.

    Parameters
    ----------
    n : forward ops f_0 .. f_{n-1}
    needs : "output": the backward op of f_i reads f_i, besides the gradient that reaches it. "input": it
        reads f_{i-1} instead, and the last one, being the loss's own, reads the loss alone. The published
        figures for the MILP use the first, those for DTR the second.

    >>> unit_chain(8).n_ops
    17
    """
    if n < 1:
        raise ValueError(f"a chain needs at least one forward op, got n={n}")
    if needs not in ("output", "input"):
        raise ValueError(f"needs must be 'output' or 'input', got {needs!r}")
    ops: list[dict[str, Any]] = [
        {"name": f"f{i}", "time": 1, "reads": [i - 1] if i else [], "writes": [i]} for i in range(n)
    ]
    ops.append({"name": "loss", "time": 1, "reads": [n - 1], "writes": [n]})
    for i in reversed(range(n)):
        written = 2 * n - i
        reads = [written - 1]
        if needs == "output":
            reads.append(i)
        elif 0 < i < n - 1:
            reads.append(i - 1)
        ops.append({"name": f"b{i}", "time": 1, "reads": reads, "writes": [written], "backward": True})
    values = [
        {"name": op["name"], "bytes": 1, "category": "gradient" if op.get("backward") else "activation"}
        for op in ops
    ]
    return JointGraph.build(ops, values, [2 * n], name=f"unit chain {n}")


def random_layered(
    n: int, seed: int = 0, *, width: float = 0.4, density: float = 0.3, skip: float = 0.1
) -> ComputationGraph:
    """A random forward graph in layers: nodes read the layer before, sometimes an older one.

    Parameters
    ----------
    n : nodes
    seed : for ``numpy.random.default_rng``
    width : mean layer size, as a share of sqrt(n) times 2.5
    density : chance of each edge to the layer before (at least one is made)
    skip : chance that a node also reads some older node
    """
    rng = np.random.default_rng(seed)
    mean = max(1.0, 2.5 * width * np.sqrt(n))
    layers: list[list[int]] = []
    made = 0
    while made < n:
        size = min(n - made, 1 + rng.poisson(mean - 1))
        layers.append(list(range(made, made + size)))
        made += size
    edges = []
    for before, here in itertools.pairwise(layers):
        for v in here:
            sources = [u for u in before if rng.random() < density] or [int(rng.choice(before))]
            if before[0] > 0 and rng.random() < skip:
                sources.append(int(rng.integers(before[0])))
            edges += [(f"v{u}", f"v{v}") for u in sources]
    nodes = [
        {
            "name": f"v{v}",
            "time": int(rng.integers(1, 11)),
            "memory": int(rng.integers(1, 65)) * 2**14,
            "needs": str(rng.choice(["input", "output", "both"])),
        }
        for v in range(n)
    ]
    return ComputationGraph.from_nodes(nodes, edges, name=f"random layered {n} (seed {seed})")


def transformer(
    layers: int = 4, hidden: int = 512, sequence: int = 512, batch: int = 4, heads: int = 8
) -> ComputationGraph:
    """Pre-norm transformer blocks: bytes of float32 outputs, times in floating-point operations.

    Attention probabilities are materialised, as in plain softmax attention; a softmax's and an
    activation's backward reads its output, a product's its inputs.
    """
    tokens = batch * sequence
    row, wide = 4 * tokens * hidden, 16 * tokens * hidden
    scores = 4 * batch * heads * sequence * sequence
    nodes: list[dict[str, Any]] = [
        {"name": "embed", "memory": row, "time": tokens * hidden, "op": "Embedding"}
    ]
    edges: list[tuple[str, str]] = []

    def add(name: str, op: str, memory: int, time: float, inputs: list[str], **more: Any) -> str:
        nodes.append({"name": name, "op": op, "memory": memory, "time": time, **more})
        edges.extend((u, name) for u in inputs)
        return name

    linear = 2.0 * tokens * hidden * hidden
    weights = 4 * hidden * hidden
    x = "embed"
    for i in range(layers):
        p = f"block{i}."
        norm = add(p + "norm1", "LayerNorm", row, 8.0 * tokens * hidden, [x])
        q, k, v = (add(p + s, "Linear", row, linear, [norm], parameter_bytes=weights) for s in "qkv")
        qk = add(p + "scores", "MatMul", scores, 2.0 * batch * sequence**2 * hidden, [q, k])
        soft = add(p + "softmax", "Softmax", scores, 5.0 * scores / 4, [qk], needs="output")
        mixed = add(p + "mix", "MatMul", row, 2.0 * batch * sequence**2 * hidden, [soft, v])
        out = add(p + "out", "Linear", row, linear, [mixed], parameter_bytes=weights)
        x = add(p + "add1", "Add", row, float(tokens * hidden), [x, out], needs="none")
        norm = add(p + "norm2", "LayerNorm", row, 8.0 * tokens * hidden, [x])
        up = add(p + "up", "Linear", wide, 4 * linear, [norm], parameter_bytes=4 * weights)
        act = add(p + "gelu", "GELU", wide, 8.0 * tokens * 4 * hidden, [up])
        down = add(p + "down", "Linear", row, 4 * linear, [act], parameter_bytes=4 * weights)
        x = add(p + "add2", "Add", row, float(tokens * hidden), [x, down], needs="none")
    add("loss", "Loss", 4, float(tokens * hidden), [x])
    return ComputationGraph.from_nodes(
        nodes, edges, time_unit="flop", name=f"transformer {layers}x{hidden}, {sequence} tokens"
    )
