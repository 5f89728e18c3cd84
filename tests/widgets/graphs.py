"""Graphs that views are tried on: small enough to build in a test, shaped like real networks."""

from __future__ import annotations

import remat_lab as rl

MB = 1_000_000


def chain(n: int, memory: int = 4 * MB) -> rl.ComputationGraph:
    """n layers in a row."""
    return rl.ComputationGraph.from_nodes(
        [{"name": f"layer{i}", "memory": memory, "time": 1 + i % 3} for i in range(n)],
        [(f"layer{i}", f"layer{i + 1}") for i in range(n - 1)],
        name=f"chain of {n}",
    )


def residual(blocks: tuple[int, ...] = (3, 8, 36, 3)) -> rl.ComputationGraph:
    """Bottleneck blocks in stages, with projections: the default has ResNet-152's shape and size."""
    nodes, edges = [], []

    def add(name: str, memory: int, *inputs: str, time: float = 1, parameters: int = 0) -> str:
        nodes.append({"name": name, "memory": memory, "time": time, "parameter_bytes": parameters})
        edges.extend((u, name) for u in inputs)
        return name

    at = add("conv1", 103 * MB, time=10, parameters=37_632)
    at = add("relu1", 103 * MB, add("bn1", 103 * MB, at))
    at = add("pool1", 26 * MB, at)
    for s, count in enumerate(blocks):
        narrow, wide = 26 * MB >> s, 103 * MB >> s
        for b in range(count):
            name, start = f"res{s + 2}/{b}", at
            for k in range(2):
                at = add(f"{name}/conv{k}", narrow, at, time=10, parameters=(1 << 2 * s) * 65_536)
                at = add(f"{name}/relu{k}", narrow, add(f"{name}/bn{k}", narrow, at))
            at = add(f"{name}/bn2", wide, add(f"{name}/conv2", wide, at, time=10, parameters=65_536 << 2 * s))
            if b == 0:
                start = add(f"{name}/project", wide, start, time=10, parameters=65_536 << 2 * s)
                start = add(f"{name}/project bn", wide, start)
            at = add(f"{name}/relu", wide, add(f"{name}/add", wide, at, start))
    at = add("pool", 200_000, at)
    add("fc", 100_000, at, time=10, parameters=8 * MB)
    return rl.ComputationGraph.from_nodes(nodes, edges, name="residual", baseline=241 * MB)


def branches(modules: int = 4) -> rl.ComputationGraph:
    """Modules of four parallel branches, one, two, three and two layers long, joined again."""
    nodes = [{"name": "stem", "memory": 8 * MB, "time": 10}]
    edges = []
    at = "stem"
    for m in range(modules):
        ends = []
        for b, length in enumerate((1, 2, 3, 2)):
            u = at
            for k in range(length):
                nodes.append({"name": f"m{m}/b{b}/{k}", "memory": 2 * MB, "time": 10})
                edges.append((u, f"m{m}/b{b}/{k}"))
                u = f"m{m}/b{b}/{k}"
            ends.append(u)
        nodes.append({"name": f"m{m}/join", "memory": 8 * MB})
        edges.extend((u, f"m{m}/join") for u in ends)
        at = f"m{m}/join"
    return rl.ComputationGraph.from_nodes(nodes, edges, name="branches")


def segmented(graph: rl.ComputationGraph, size: int) -> rl.Schedule:
    """A long schedule of a chain, quick to make: keeps every ``size``-th output, computes the others again."""
    n = len(graph)
    backward = graph.joint.n_ops - n
    ops = list(range(backward))  # the forward pass, and the seed of the gradient
    for start in reversed(range(0, n, size)):
        end = min(start + size, n)
        if end < n:
            ops += range(start, end - 1)
        ops += [graph.joint.n_ops - 1 - v for v in reversed(range(start, end))]
    return rl.Schedule.from_ops(graph.joint, ops)
