"""Slow, plain twins of what the package does fast, and generators of small problems.

Nothing here calls a kernel: sets are Python sets, memory is recounted from scratch after every action.
"""

from __future__ import annotations

from itertools import combinations

from hypothesis import strategies as st

from remat_lab import ComputationGraph, Schedule


# -- small problems ------------------------------------------------------------------------------------------
@st.composite
def graphs(draw, max_nodes: int = 7, needs: tuple[str, ...] = ("input", "output", "both", "none")):
    """Random DAGs with small integer costs, zero included; several sources and sinks happen."""
    n = draw(st.integers(1, max_nodes))
    pairs = list(combinations(range(n), 2))
    edges = [pair for pair in pairs if draw(st.booleans())] if pairs else []
    nodes = [
        {
            "name": f"n{i}",
            "memory": draw(st.integers(0, 9)),
            "time": draw(st.integers(0, 5)),
            "needs": draw(st.sampled_from(needs)),
            "parameter_bytes": draw(st.sampled_from([0, 0, 3])),
        }
        for i in range(n)
    ]
    return ComputationGraph.from_nodes(nodes, [(f"n{i}", f"n{j}") for i, j in edges])


# -- the naive simulator -------------------------------------------------------------------------------------
def recount_peak(schedule: Schedule) -> int:
    """Peak of a schedule, with every set rebuilt by hand; AssertionError if it is not valid."""
    joint = schedule.joint
    reads = [set(joint.reads.row(o).tolist()) for o in range(joint.n_ops)]
    writes = [set(joint.writes.row(o).tolist()) for o in range(joint.n_ops)]
    writers = {v: {o for o in range(joint.n_ops) if v in writes[o]} for v in range(joint.n_values)}
    size = joint.value_bytes.tolist()
    held: dict[int, set[int]] = {}  # value -> the writers that have contributed
    peak = 0
    for action in schedule:
        if action.kind == "free":
            assert action.index in held
            del held[action.index]
        else:
            op = action.index
            for v in reads[op]:
                assert not writers[v] or held.get(v) == writers[v]
            before = sum(size[v] for v in held)
            fresh = sum(size[v] for v in writes[op] if v not in held or len(writers[v]) == 1)
            peak = max(peak, before + max(fresh, int(joint.op_workspace[op])))
            for v in writes[op]:
                held.setdefault(v, set()).add(op)
        peak = max(peak, sum(size[v] for v in held))
    for v in joint.outputs.tolist():
        assert not writers[v] or held.get(v) == writers[v]
    return peak


# -- lower sets by hand --------------------------------------------------------------------------------------
def predecessors(graph: ComputationGraph) -> list[set[int]]:
    return [set(graph.predecessors.row(v).tolist()) for v in range(len(graph))]


def all_lower_sets(graph: ComputationGraph) -> list[frozenset[int]]:
    """Every lower set, {} and V included."""
    preds = predecessors(graph)
    n = len(graph)
    sets = []
    for mask in range(2**n):
        chosen = {v for v in range(n) if mask >> v & 1}
        if all(preds[v] <= chosen for v in chosen):
            sets.append(frozenset(chosen))
    return sets


def approximate_sets(graph: ComputationGraph) -> list[frozenset[int]]:
    """{}, V and, for every node, the node with all its ancestors."""
    preds = predecessors(graph)
    closed: list[set[int]] = []
    for v in range(len(graph)):
        closed.append({v}.union(*(closed[u] for u in preds[v])))
    return list({frozenset(), frozenset(range(len(graph))), *map(frozenset, closed)})


def every_sequence(graph: ComputationGraph, family: list[frozenset[int]]):
    """(overhead, formula peak, cached bytes) of every increasing sequence from {} to V over a family.

    The formulas are evaluated on Python sets, word for word as the paper gives them.
    """
    preds = predecessors(graph)
    n = len(graph)
    succs = [{w for w in range(n) if v in preds[w]} for v in range(n)]
    everything = frozenset(range(n))
    memory, time = graph.memory.tolist(), graph.time.tolist()

    def weigh(nodes):
        return sum(memory[v] for v in nodes)

    def boundary(lower):
        return {v for v in lower if succs[v] - lower}

    def arriving(lower):
        later = set().union(*(succs[v] for v in lower)) - lower if lower else set()
        operands = (set().union(*(preds[v] for v in later)) if later else set()) - lower
        return weigh(later) + weigh(operands)

    def extend(lower, cached, overhead, peak):
        if lower == everything:
            yield overhead, peak, weigh(cached)
            return
        for bigger in family:
            if lower < bigger:
                segment = bigger - lower
                need = weigh(cached) + 2 * weigh(segment) + arriving(bigger)
                spent = sum(time[v] for v in segment - boundary(bigger))
                yield from extend(bigger, cached | boundary(bigger), overhead + spent, max(peak, need))

    yield from extend(frozenset(), frozenset(), 0.0, 0)


def least_peaks(graph: ComputationGraph, family: list[frozenset[int]]) -> dict[frozenset[int], int]:
    """For every cache U_k that some sequence over a family ends with, the least formula peak of those sequences.

    All sequences are followed; only those that have come to the same lower set with the same cache go on as one.
    The overhead of a sequence is the time of what is not in its cache. Thousands of graphs can be checked so.
    """
    n = len(graph)
    succs = [sum(1 << w for w in graph.successors.row(v).tolist()) for v in range(n)]
    preds = [sum(1 << u for u in graph.predecessors.row(v).tolist()) for v in range(n)]
    members = [[v for v in range(n) if mask >> v & 1] for mask in range(2**n)]
    weight = [sum(int(graph.memory[v]) for v in nodes) for nodes in members]
    sets = sorted((sum(1 << v for v in lower) for lower in family), key=int.bit_count)
    boundary, arriving = {}, {}
    for lower in sets:
        later = 0
        for v in members[lower]:
            later |= succs[v]
        later &= ~lower
        operands = 0
        for v in members[later]:
            operands |= preds[v]
        boundary[lower] = sum(1 << v for v in members[lower] if succs[v] & ~lower)
        arriving[lower] = weight[later] + weight[operands & ~lower]
    states: dict[int, dict[int, int]] = {lower: {} for lower in sets}
    states[0][0] = 0
    for lower in sets:
        for bigger in sets:
            if bigger == lower or lower & ~bigger:
                continue
            need = 2 * weight[bigger & ~lower] + arriving[bigger]
            there = states[bigger]
            for cached, peak in states[lower].items():
                most = max(peak, weight[cached] + need)
                after = cached | boundary[bigger]
                if most < there.get(after, most + 1):
                    there[after] = most
    return {frozenset(members[cached]): peak for cached, peak in states[2**n - 1].items()}
