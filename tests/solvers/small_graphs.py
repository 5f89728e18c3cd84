"""Small random graphs for the solvers' tests."""

from __future__ import annotations

import numpy as np

from remat_lab import ComputationGraph, JointGraph


def random_graph(seed: int, most: int = 8) -> ComputationGraph:
    """A random DAG of 2 to ``most`` nodes, small ones more often, with random costs and backward needs."""
    rng = np.random.default_rng(seed)
    n = int(rng.integers(2, most + 1, 2).min())
    edges = [
        (f"v{u}", f"v{v}") for v in range(n) for u in range(v) if rng.random() < (0.9 if u == v - 1 else 0.15)
    ]
    nodes = [
        {
            "name": f"v{v}",
            "time": int(rng.integers(1, 6)),
            "memory": int(rng.integers(1, 9)),
            "backward_time": int(rng.integers(1, 9)),
            "needs": str(rng.choice(["input", "output", "both", "none"])),
            "parameter_bytes": int(rng.integers(0, 3)),
        }
        for v in range(n)
    ]
    return ComputationGraph.from_nodes(nodes, edges, name=f"random {seed}")


def random_joint(seed: int, most: int = 8) -> JointGraph:
    """The joint graph of :func:`random_graph`; every third one also has op workspace."""
    joint = random_graph(seed, most).joint
    if seed % 3 == 0:
        rng = np.random.default_rng(seed + 10_000)
        joint = joint.with_costs(op_workspace=rng.integers(0, 16, joint.n_ops))
    return joint
