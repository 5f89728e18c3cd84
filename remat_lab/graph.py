"""ComputationGraph: the forward DAG G = (V, E) of Kusumoto et al. (NeurIPS 2019, arXiv 1905.11722).

A node is an intermediate tensor and the op that makes it: ``time`` T_v and ``memory`` M_v (bytes of its
output). Parameters, data and labels are no nodes. Nodes are kept in a topological order, so node indices
themselves can be run in order.

The joint graph of a computation graph follows the paper's rule: the backward op of w reads the gradient of
w and the forward values its op needs, and adds to the gradient of each input of w.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from .arrays import Csr, csr, frozen
from .errors import InvalidGraph
from .joint import TIME_UNITS, JointGraph

if TYPE_CHECKING:
    import networkx as nx

#: Which forward values the backward op of a node reads.
NEEDS = ("input", "output", "both", "none")


@dataclass(frozen=True, eq=False)
class ComputationGraph:
    """A forward DAG with costs. Immutable; arrays are read-only.

    Build one with :meth:`from_nodes`, :meth:`from_networkx`, ``remat_lab.load_graph`` or by capturing a model.

    Attributes
    ----------
    names, ops : tuple of str, one per node, in topological order
    time : float64 array, shape (nodes,), in ``time_unit``
    memory : int64 array, shape (nodes,), bytes
    predecessors : Csr, node -> nodes it reads
    backward_reads : Csr, node -> forward values (nodes) its backward op reads: inputs, itself, or both
    backward_time : float64 array, shape (nodes,), time of each node's backward op
    parameter_bytes : int64 array, shape (nodes,), bytes of the parameter gradients each backward op makes
    baseline : int, bytes of parameters and inputs
    """

    names: tuple[str, ...]
    ops: tuple[str, ...]
    time: np.ndarray
    memory: np.ndarray
    predecessors: Csr
    backward_reads: Csr
    backward_time: np.ndarray
    parameter_bytes: np.ndarray
    baseline: int = 0
    time_unit: str = "paper"
    name: str = ""
    _joint: JointGraph | None = None
    _node_of_op: np.ndarray | None = None

    # -- sizes ---------------------------------------------------------------------------------------------
    def __len__(self) -> int:
        return len(self.names)

    @property
    def n_edges(self) -> int:
        return len(self.predecessors.index)

    @cached_property
    def edges(self) -> np.ndarray:
        """int64 array, shape (edges, 2): (producer, consumer)."""
        return frozen(np.stack([self.predecessors.index, self.predecessors.owners()], axis=1))

    @cached_property
    def successors(self) -> Csr:
        """node -> nodes that read it, ascending."""
        return self.predecessors.transposed(len(self))

    @property
    def total_memory(self) -> int:
        """M(V), bytes."""
        return int(self.memory.sum())

    @property
    def total_time(self) -> float:
        """T(V), in ``time_unit``."""
        return float(self.time.sum())

    @cached_property
    def index_of(self) -> dict[str, int]:
        """name -> node index."""
        return {name: i for i, name in enumerate(self.names)}

    @property
    def graph(self) -> ComputationGraph:
        return self

    # -- the joint graph -------------------------------------------------------------------------------------
    @cached_property
    def joint(self) -> JointGraph:
        """Forward and backward ops. Forward op v is node v, and value v its output."""
        return self._joint if self._joint is not None else _joint_of(self)

    @cached_property
    def node_of_op(self) -> np.ndarray:
        """int64 array, shape (joint ops,): the node of each forward op, -1 for ops that are no node's."""
        if self._node_of_op is not None:
            return self._node_of_op
        node = np.full(self.joint.n_ops, -1, dtype=np.int64)
        node[: len(self)] = np.arange(len(self))
        return frozen(node)

    # -- making one ------------------------------------------------------------------------------------------
    @classmethod
    def from_nodes(
        cls,
        nodes: Iterable[Mapping[str, Any]],
        edges: Iterable[tuple[str, str]],
        *,
        baseline: int = 0,
        time_unit: str = "paper",
        name: str = "",
    ) -> ComputationGraph:
        """Build from dicts and pairs of names.

        Parameters
        ----------
        nodes : iterable of dict
            ``name``; ``memory`` in bytes; ``time`` (default 1); ``op`` (default ""); ``backward_time``
            (default: twice ``time``, the usual estimate for a layer with parameters);
            ``parameter_bytes`` (default 0); ``needs``: which forward values the backward op reads, one of
            "input" (default), "output", "both", "none", or a list of names among the node and its inputs.
        edges : iterable of (producer, consumer)

        Raises
        ------
        InvalidGraph
            On a cycle (named), a duplicate or unknown name, or a cost that is negative, NaN or infinite.

        >>> g = ComputationGraph.from_nodes(
        ...     [{"name": "a", "memory": 4}, {"name": "b", "memory": 2}], [("a", "b")])
        >>> len(g), g.total_memory
        (2, 6)
        """
        try:
            node_list = [dict(node) for node in nodes]
        except (TypeError, ValueError):
            raise TypeError(f"nodes must be dicts with a name and a memory, got {nodes!r}") from None
        if not node_list:
            raise InvalidGraph("a graph needs at least one node")
        for i, node in enumerate(node_list):
            if "name" not in node:
                raise InvalidGraph(f"node {i} has no name")
            node["name"] = str(node["name"])
            if "memory" not in node:
                raise InvalidGraph(f"node {node['name']!r} has no memory: give the bytes of its output")
        given = {}
        for i, node in enumerate(node_list):
            if node["name"] in given:
                raise InvalidGraph(f"two nodes are named {node['name']!r}")
            given[node["name"]] = i
        successors: list[list[int]] = [[] for _ in node_list]
        predecessors: list[set[int]] = [set() for _ in node_list]
        try:
            pairs = [(producer, consumer) for producer, consumer in edges]
        except (TypeError, ValueError):
            raise TypeError(f"edges must be pairs (producer, consumer) of names, got {edges!r}") from None
        for producer, consumer in pairs:
            for end in (producer, consumer):
                if str(end) not in given:
                    raise InvalidGraph(f"edge ({producer!r}, {consumer!r}) names {end!r}, which is no node")
            u, v = given[str(producer)], given[str(consumer)]
            if u not in predecessors[v]:
                predecessors[v].add(u)
                successors[u].append(v)
        order = _topological_order(successors, [len(p) for p in predecessors], [n["name"] for n in node_list])
        place = {old: new for new, old in enumerate(order)}
        ordered = [node_list[i] for i in order]
        preds = [sorted(place[u] for u in predecessors[i]) for i in order]
        names = [node["name"] for node in ordered]
        time = np.array([_cost(node, "time", 1.0) for node in ordered], dtype=np.float64)
        return cls(
            names=tuple(names),
            ops=tuple(str(node.get("op", "")) for node in ordered),
            time=frozen(time),
            memory=frozen(np.array([_bytes(node, "memory") for node in ordered], dtype=np.int64)),
            predecessors=csr(preds),
            backward_reads=csr([_reads(node, v, preds[v], names) for v, node in enumerate(ordered)]),
            backward_time=frozen(
                np.array([_cost(node, "backward_time", 2 * t) for node, t in zip(ordered, time, strict=True)])
            ),
            parameter_bytes=frozen(
                np.array([_bytes(node, "parameter_bytes", 0) for node in ordered], dtype=np.int64)
            ),
            baseline=_bytes({"name": "graph", "baseline": baseline}, "baseline"),
            time_unit=_unit(time_unit),
            name=name,
        )

    @classmethod
    def from_networkx(cls, graph: nx.DiGraph, **options: Any) -> ComputationGraph:
        """Build from a DiGraph whose node attributes are those of :meth:`from_nodes`.

        Graph attributes ``name``, ``time_unit`` and ``baseline`` are used unless given as options.

        Raises
        ------
        InvalidGraph
            As :meth:`from_nodes`; also on an undirected graph.
        """
        if not hasattr(graph, "is_directed"):
            raise TypeError(f"need a networkx.DiGraph, got {type(graph).__name__}")
        if not graph.is_directed():
            raise InvalidGraph("an undirected graph has no order to compute in: pass a networkx.DiGraph")
        settings = {key: graph.graph[key] for key in ("name", "time_unit", "baseline") if key in graph.graph}
        nodes = [{**attributes, "name": str(node)} for node, attributes in graph.nodes(data=True)]
        return cls.from_nodes(nodes, ((str(u), str(v)) for u, v in graph.edges()), **{**settings, **options})

    def to_networkx(self) -> nx.DiGraph:
        """As a DiGraph; :meth:`from_networkx` reads it back."""
        import networkx as nx

        graph = nx.DiGraph(name=self.name, time_unit=self.time_unit, baseline=self.baseline)
        for node in self._nodes():
            graph.add_node(node["name"], **{k: x for k, x in node.items() if k != "name"})
        graph.add_edges_from((self.names[u], self.names[v]) for u, v in self.edges.tolist())
        return graph

    def _nodes(self) -> list[dict[str, Any]]:
        return [
            {
                "name": self.names[v],
                "op": self.ops[v],
                "time": float(self.time[v]),
                "memory": int(self.memory[v]),
                "backward_time": float(self.backward_time[v]),
                "parameter_bytes": int(self.parameter_bytes[v]),
                "needs": [self.names[u] for u in self.backward_reads.row(v).tolist()],
            }
            for v in range(len(self))
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; :meth:`from_dict` reads it back exactly."""
        return {
            "format": "remat_lab.ComputationGraph/1",
            "name": self.name,
            "time_unit": self.time_unit,
            "baseline": self.baseline,
            "nodes": self._nodes(),
            "edges": [[self.names[u], self.names[v]] for u, v in self.edges.tolist()],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ComputationGraph:
        try:
            return cls.from_nodes(
                data["nodes"],
                [(u, v) for u, v in data["edges"]],
                baseline=data.get("baseline", 0),
                time_unit=data.get("time_unit", "paper"),
                name=data.get("name", ""),
            )
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, InvalidGraph):
                raise
            raise InvalidGraph(f"not a remat_lab computation graph: {error!r}") from error

    def to_json(self) -> str:
        return json.dumps(self.to_dict())

    @classmethod
    def from_json(cls, text: str) -> ComputationGraph:
        return cls.from_dict(json.loads(text))

    def with_costs(
        self,
        *,
        time: Sequence[float] | np.ndarray | None = None,
        memory: Sequence[int] | np.ndarray | None = None,
        backward_time: Sequence[float] | np.ndarray | None = None,
        time_unit: str | None = None,
    ) -> ComputationGraph:
        """The same graph with other costs, arrays in node order."""
        nodes = self._nodes()
        for key, values in (("time", time), ("memory", memory), ("backward_time", backward_time)):
            if values is not None:
                for node, value in zip(nodes, values, strict=True):
                    node[key] = value
        return ComputationGraph.from_nodes(
            nodes,
            [(self.names[u], self.names[v]) for u, v in self.edges.tolist()],
            baseline=self.baseline,
            time_unit=time_unit or self.time_unit,
            name=self.name,
        )

    def __repr__(self) -> str:
        label = f"{self.name!r}, " if self.name else ""
        from .units import format_bytes

        return f"ComputationGraph({label}{len(self)} nodes, {self.n_edges} edges, {format_bytes(self.total_memory)})"


# -- reading node attributes -----------------------------------------------------------------------------------
def _cost(node: Mapping[str, Any], key: str, default: float | None = None) -> float:
    value = node.get(key, default)
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise InvalidGraph(f"node {node['name']!r} has {key} {value!r}: need a number >= 0") from None
    if not np.isfinite(number) or number < 0:
        raise InvalidGraph(f"node {node['name']!r} has {key} {value!r}: need a finite number >= 0")
    return number


def _bytes(node: Mapping[str, Any], key: str, default: int | None = None) -> int:
    value = node.get(key, default)
    number = _cost(node, key, default)  # refuses NaN, infinities, negatives and text
    exact = int(value) if not isinstance(value, float) else int(number)
    if exact != value:
        raise InvalidGraph(f"node {node['name']!r} has {key} {value!r}: need whole bytes")
    if exact >= 2**62:
        raise InvalidGraph(f"node {node['name']!r} has {key} {value!r}: more than 2^62 bytes")
    return exact


def _unit(unit: str) -> str:
    if unit not in TIME_UNITS:
        raise InvalidGraph(f"time_unit must be one of {TIME_UNITS}, got {unit!r}")
    return unit


def _reads(node: Mapping[str, Any], v: int, inputs: list[int], names: list[str]) -> list[int]:
    needs = node.get("needs", "input")
    if isinstance(needs, str):
        if needs not in NEEDS:
            raise InvalidGraph(
                f"node {node['name']!r} has needs {needs!r}: use one of {NEEDS} or a list of names"
            )
        return sorted(
            {*(inputs if needs in ("input", "both") else []), *([v] if needs in ("output", "both") else [])}
        )
    allowed = {names[u]: u for u in (*inputs, v)}
    for name in needs:
        if str(name) not in allowed:
            raise InvalidGraph(
                f"node {node['name']!r} needs {name!r}, which is neither the node nor one of its inputs"
            )
    return sorted({allowed[str(name)] for name in needs})


def _topological_order(successors: list[list[int]], waiting: list[int], names: list[str]) -> list[int]:
    """Kahn's algorithm, always taking the earliest given node, so that a valid given order is kept."""
    waiting = list(waiting)
    ready = [i for i, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        i = heapq.heappop(ready)
        order.append(i)
        for j in successors[i]:
            waiting[j] -= 1
            if waiting[j] == 0:
                heapq.heappush(ready, j)
    if len(order) < len(names):
        import networkx as nx  # loaded only here and in to_networkx: it would be a third of the import time

        stuck = {i for i, count in enumerate(waiting) if count > 0}
        cycle = nx.find_cycle(nx.DiGraph([(i, j) for i in stuck for j in successors[i] if j in stuck]))
        path = " -> ".join(names[i] for i, _ in cycle) + f" -> {names[cycle[0][0]]}"
        raise InvalidGraph(f"the graph has a cycle: {path}")
    return order


# -- to and from the joint graph ---------------------------------------------------------------------------------
def _joint_of(graph: ComputationGraph) -> JointGraph:
    """The paper's joint graph. Values: v -> v, gradient of v -> n + v, then parameter gradients.

    Ops: forward v -> v; for each sink an op that seeds its gradient; then backward ops in reverse order.
    """
    n = len(graph)
    ops = [
        {
            "name": graph.names[v],
            "type": graph.ops[v],
            "time": graph.time[v],
            "reads": graph.predecessors.row(v).tolist(),
            "writes": [v],
        }
        for v in range(n)
    ]
    values: list[dict[str, Any]] = [{"name": graph.names[v], "bytes": graph.memory[v]} for v in range(n)]
    values += [
        {"name": f"grad {graph.names[v]}", "bytes": graph.memory[v], "category": "gradient"} for v in range(n)
    ]
    sinks = [v for v in range(n) if not len(graph.successors.row(v))]
    for v in sinks:
        ops.append({"name": f"seed {graph.names[v]}", "type": "seed", "backward": True, "writes": [n + v]})
    outputs = []
    for v in reversed(range(n)):
        writes = [n + u for u in graph.predecessors.row(v).tolist()]
        if graph.parameter_bytes[v]:
            outputs.append(len(values))
            writes.append(len(values))
            values.append(
                {
                    "name": f"grad of {graph.names[v]}'s parameters",
                    "bytes": graph.parameter_bytes[v],
                    "category": "parameter gradient",
                }
            )
        ops.append(
            {
                "name": f"backward {graph.names[v]}",
                "type": f"{graph.ops[v]} backward".strip(),
                "time": graph.backward_time[v],
                "backward": True,
                "reads": [n + v, *graph.backward_reads.row(v).tolist()],
                "writes": writes,
            }
        )
    if graph.baseline:
        values.append({"name": "parameters and inputs", "bytes": graph.baseline, "category": "parameter"})
    return JointGraph.build(ops, values, outputs, time_unit=graph.time_unit, name=graph.name)


def project(
    joint: JointGraph, node_of_op: np.ndarray | None = None, names: Sequence[str] | None = None
) -> ComputationGraph:
    """The forward part of a joint graph as a ComputationGraph whose plans compile onto ``joint``.

    Parameters
    ----------
    joint : JointGraph
    node_of_op : int array, shape (ops,), optional
        Groups forward ops into nodes (-1: no node). Default: one node per forward op, but for those that write
        nothing but new buffers which no other forward op reads (a batch norm's count of batches). Node numbers
        must be 0..n-1.
    names : sequence of str, optional
        Node names; default: the name of each node's last op.

    A node's memory is the bytes of its values, its time the sum of its ops'. An edge (u, v) says that an op
    of v reads a value of u.
    """
    if node_of_op is None:
        node_of_op = np.full(joint.n_ops, -1, dtype=np.int64)
        nodes = np.unique(joint.writes.owners()[joint.makes_node[joint.writes.index]])
        nodes = nodes[~joint.op_backward[nodes]]
        node_of_op[nodes] = np.arange(len(nodes))
    node_of_op = np.asarray(node_of_op, dtype=np.int64)
    n = int(node_of_op.max()) + 1 if len(node_of_op) else 0
    if n == 0:
        raise InvalidGraph("the joint graph has no forward op to plan")
    node_of_value = np.full(joint.n_values, -1, dtype=np.int64)
    node_of_value[joint.writes.index] = node_of_op[joint.writes.owners()]
    memory = [0] * n
    for value in np.flatnonzero(node_of_value >= 0).tolist():
        memory[node_of_value[value]] += int(joint.value_bytes[value])
    time = [0.0] * n
    last_op = [0] * n
    edges: set[tuple[int, int]] = set()
    for op in np.flatnonzero(node_of_op >= 0).tolist():
        node = int(node_of_op[op])
        time[node] += float(joint.op_time[op])
        last_op[node] = op
        for value in joint.reads.row(op).tolist():
            source = int(node_of_value[value])
            if source >= 0 and source != node:
                edges.add((source, node))
    labels = [joint.op_names[last_op[i]] for i in range(n)] if names is None else [str(x) for x in names]
    seen: dict[str, int] = {}
    for i, label in enumerate(labels):
        seen[label] = seen.get(label, 0) + 1
        if seen[label] > 1:
            labels[i] = f"{label}#{seen[label]}"
    plain = ComputationGraph.from_nodes(
        [
            {"name": labels[i], "op": joint.op_types[last_op[i]], "time": time[i], "memory": memory[i]}
            for i in range(n)
        ],
        [(labels[u], labels[v]) for u, v in sorted(edges)],
        baseline=joint.baseline,
        time_unit=joint.time_unit,
        name=joint.name,
    )
    place = np.array([plain.index_of[label] for label in labels], dtype=np.int64)
    mapped = np.where(node_of_op >= 0, place[np.maximum(node_of_op, 0)], -1)
    fields = {name: getattr(plain, name) for name in plain.__dataclass_fields__}
    return ComputationGraph(**{**fields, "_joint": joint, "_node_of_op": frozen(mapped)})
