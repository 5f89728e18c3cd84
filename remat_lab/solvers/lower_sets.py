"""Lower sets of a computation graph, as bitsets, and the quantities the dynamic programs need.

A lower set L is closed under predecessors. Its boundary bd(L) is the nodes of L with a successor outside
L (Kusumoto et al., section 3). A family is a list of lower sets from {} to V in order of size; size is a
topological order of inclusion, which the dynamic programs rely on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from ..arrays import Csr, check_bytes, frozen
from ..errors import InvalidGraph
from ..graph import ComputationGraph
from ..memo import memo


def words_for(n: int) -> int:
    """Number of uint64 words that hold n bits."""
    return (n + 63) // 64


def bits_of(nodes: np.ndarray | list[int], n: int) -> np.ndarray:
    """A set of nodes as uint64 words."""
    mask = np.zeros(words_for(n) * 64, dtype=np.uint8)
    mask[np.asarray(nodes, dtype=np.int64)] = 1
    return np.packbits(mask, bitorder="little").view(np.uint64)


def nodes_of(bits: np.ndarray, n: int) -> np.ndarray:
    """The nodes in a bitset, ascending."""
    return np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little")[:n])


@dataclass(frozen=True, eq=False)
class Family:
    """Lower sets in order of size, {} first and V last, with what the paper's formulas ask of each.

    Attributes
    ----------
    bits : uint64 array, shape (sets, words)
    memory : int64 array, shape (sets,): M(L), bytes
    boundary : Csr, set -> nodes of bd(L)
    arriving : int64 array, shape (sets,): M(delta+(L) \\ L) + M(delta-(delta+(L)) \\ L), the gradients that
        arrive from later segments and the co-operands of the backward ops that bring them
    label : what the family is called in a plan's details
    splits : whether, of any two unconnected parts A and B of a difference L' \\ L of members, L | A or L | B is a
        member as well (:mod:`remat_lab.solvers.transitions` says what for)
    """

    graph: ComputationGraph
    bits: np.ndarray
    memory: np.ndarray
    boundary: Csr
    arriving: np.ndarray
    label: str = ""
    splits: bool = False

    def __len__(self) -> int:
        return len(self.bits)

    @classmethod
    def of(cls, graph: ComputationGraph, bits: np.ndarray, label: str = "", splits: bool = False) -> Family:
        """From bitsets in any order; {} and V are added, duplicates dropped."""
        n = len(graph)
        ends = np.stack([bits_of([], n), bits_of(np.arange(n), n)])
        every = np.unique(np.concatenate([bits, ends]), axis=0)
        size = np.bitwise_count(every).sum(axis=1)
        every = np.ascontiguousarray(every[np.argsort(size, kind="stable")])
        memory, starts, nodes, arriving = _describe(
            every, graph.memory, *graph.predecessors, *graph.successors
        )
        return cls(
            graph,
            frozen(every),
            frozen(memory),
            Csr(frozen(starts), frozen(nodes)),
            frozen(arriving),
            label,
            splits,
        )


def ancestor_bits(graph: ComputationGraph) -> np.ndarray:
    """uint64 array, shape (nodes, words): row v is L^v, the node v and all its ancestors."""
    check_size(graph)
    return memo(graph, "ancestor_bits", lambda: frozen(_ancestors(len(graph), *graph.predecessors)))


def check_size(graph: ComputationGraph) -> None:
    """Refuse graphs whose lower sets, one per node, are too many bits to hold.

    Raises
    ------
    TooLarge
        Naming methods that need no lower sets.
    """
    n = len(graph)
    check_bytes(
        f"one lower set for each of {n:,} nodes",
        8 * n * words_for(n),
        "use 'chen', or on a chain 'chen-sqrt'",
    )


def approximate_family(graph: ComputationGraph) -> Family:
    """{} and V and L^v for every node v: the pruned family of the approximate DP (section 4.3)."""
    return memo(graph, "approximate_family", lambda: Family.of(graph, ancestor_bits(graph), "approximate"))


def check_sequence(graph: ComputationGraph, sequence: np.ndarray) -> np.ndarray:
    """A lower-set sequence as bitsets, checked: growing, closed under predecessors, ending in V.

    Raises
    ------
    InvalidGraph
        Naming the set and the node that is wrong.
    """
    n = len(graph)
    before = bits_of([], n)
    for i, bits in enumerate(sequence):
        if ((before & ~bits) != 0).any() or (before == bits).all():
            raise InvalidGraph(f"lower set {i} does not strictly contain the one before it")
        inside = np.zeros(n, dtype=bool)
        inside[nodes_of(bits, n)] = True
        for u, v in graph.edges.tolist():
            if inside[v] and not inside[u]:
                raise InvalidGraph(
                    f"set {i} is no lower set: it has {graph.names[v]!r} without its input {graph.names[u]!r}"
                )
        before = bits
    if len(nodes_of(before, n)) != n:
        raise InvalidGraph("the last lower set of a sequence must be all nodes")
    return sequence


@njit(cache=True, nogil=True)
def _ancestors(n, pred_start, pred_index):
    words = (n + 63) // 64
    out = np.zeros((n, words), dtype=np.uint64)
    for v in range(n):
        for e in range(pred_start[v], pred_start[v + 1]):
            u = pred_index[e]
            for w in range(words):
                out[v, w] |= out[u, w]
        out[v, v >> 6] |= np.uint64(1) << np.uint64(v & 63)
    return out


@njit(cache=True, nogil=True)
def _describe(bits, memory, pred_start, pred_index, succ_start, succ_index):
    """M(L), bd(L) as CSR, and the arriving term of every set."""
    sets = len(bits)
    n = len(memory)
    total = np.zeros(sets, dtype=np.int64)
    arriving = np.zeros(sets, dtype=np.int64)
    starts = np.zeros(sets + 1, dtype=np.int64)
    nodes = np.empty(max(16, 8 * sets), dtype=np.int64)
    inside = np.zeros(n, dtype=np.bool_)
    later = np.zeros(n, dtype=np.bool_)
    operand = np.zeros(n, dtype=np.bool_)
    count = 0
    for s in range(sets):
        for v in range(n):
            inside[v] = (bits[s, v >> 6] >> np.uint64(v & 63)) & np.uint64(1) != 0
            later[v] = False
            operand[v] = False
        for v in range(n):
            if not inside[v]:
                continue
            total[s] += memory[v]
            on_boundary = False
            for e in range(succ_start[v], succ_start[v + 1]):
                w = succ_index[e]
                if not inside[w]:
                    on_boundary = True
                    if not later[w]:
                        later[w] = True
                        arriving[s] += memory[w]
                        for f in range(pred_start[w], pred_start[w + 1]):
                            u = pred_index[f]
                            if not inside[u] and not operand[u]:
                                operand[u] = True
                                arriving[s] += memory[u]
            if on_boundary:
                if count == len(nodes):
                    bigger = np.empty(2 * count, dtype=np.int64)
                    bigger[:count] = nodes
                    nodes = bigger
                nodes[count] = v
                count += 1
        starts[s + 1] = count
    return total, starts, nodes[:count].copy(), arriving
