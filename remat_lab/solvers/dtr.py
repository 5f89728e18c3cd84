"""The runtime of dtr: dynamic tensor rematerialization, online (Kirisame et al., ICLR 2021, arXiv 2006.09616).

The runtime sees ops one at a time, in the plain order. When an op's outputs do not fit, it evicts the value
with the least score h until they do; when an op reads an evicted value, it computes that value again, and
whatever that needs, recursively. It knows nothing of the ops to come, except that a value nobody will ask
for again is dropped at once, as a framework drops an unreferenced tensor.

Scores (section 3 and its ablations), with c0 the time to compute a value, m its bytes, s its staleness:

* ``h-dtr``: (c0 + time of the evicted neighbourhood e*) / (m s); e* is the evicted values that must come
  back first, transitively, and the evicted values that need this one, transitively;
* ``h-dtr-eq``: e* replaced by union-find components of evicted values; a component a value comes back from
  only loses that value's time;
* ``h-dtr-local``: c0 / (m s); ``lru``: 1 / s; ``size``: 1 / m; ``msps``: (c0 + evicted ancestors) / m;
* ``random``: seeded.

Staleness is the clock minus the last access, at least 1; the clock counts ops run, each weighted by its time
over the mean time. Asking for an op's inputs accesses them, before any of them is computed again; being
computed again is no access. Equal scores evict the youngest value.

Outputs of the graph are evicted like any value, and made again at the end; those of a graph that keeps its
outputs (:attr:`JointGraph.keeps_outputs`) never are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numba import njit

from ..errors import InfeasibleBudget
from ..joint import JointGraph
from ..memo import memo
from ..progress import pulse
from ..schedule import Schedule
from ..simulate import simulate
from ..solution import MethodFailed
from ..units import format_exact

SCORES = ("h-dtr", "h-dtr-eq", "h-dtr-local", "lru", "size", "msps", "random")
_H, _EQ, _LOCAL, _LRU, _SIZE, _MSPS, _RANDOM = range(7)

#: The runtime gives up when it has run this many times as many ops as the plain order.
MOST_RUNS = 20


@dataclass(frozen=True)
class Candidate:
    """What a score function sees of a value that could be evicted now.

    Attributes
    ----------
    name, index : the value
    bytes : int
    time : float, time to compute it from its inputs (c0), in the graph's unit
    staleness : float, ops since the last access, at least 1
    neighborhood : float, time of its evicted neighbourhood e*
    ancestors : float, time of the evicted values that must come back before it can be computed
    gradient : bool, whether backward ops make it
    """

    name: str
    index: int
    bytes: int
    time: float
    staleness: float
    neighborhood: float
    ancestors: float
    gradient: bool


class Thrashing(InfeasibleBudget):
    """The runtime kept evicting what it needed next."""


class Runtime:
    """One run of the online runtime. ``actions`` is its event log: runs and frees, as in a Schedule.

    Parameters
    ----------
    joint : JointGraph
    budget : bytes
    score : a name from :data:`SCORES`, or ``fn(candidate: Candidate) -> number``; least is evicted first
    seed : for "random"
    most_runs : give up after this many runs for each op
    for_good : keep even past its last plain use what only one run of an op may make (see JointGraph.runs_once)
    """

    def __init__(
        self,
        joint: JointGraph,
        budget: int,
        score: str | Callable[[Candidate], float] = "h-dtr",
        seed: int = 0,
        most_runs: int = MOST_RUNS,
        for_good: bool = False,
    ):
        if isinstance(score, str) and score not in SCORES:
            raise ValueError(f"score must be one of {SCORES} or a function of a candidate, got {score!r}")
        self.joint, self.budget, self.score = joint, budget, score
        self.most_runs = most_runs * joint.n_ops
        self.random = np.random.default_rng(seed)
        self.actions: list[int] = []
        values = joint.n_values
        self.reads = [joint.reads.row(op).tolist() for op in range(joint.n_ops)]
        self.writes = [joint.writes.row(op).tolist() for op in range(joint.n_ops)]
        self.writers = [joint.writers.row(v).tolist() for v in range(values)]
        self.bytes = joint.value_bytes.tolist()
        mean = joint.plain_time / max(1, joint.n_ops)
        self.ticks = (joint.op_time / mean if mean > 0 else np.ones(joint.n_ops)).tolist()
        self.graph = memo(joint, "dtr graph", lambda: _value_graph(joint))
        # State. A value is complete when all its writers have contributed to the instance that is held.
        self.held = np.zeros(values, dtype=np.bool_)
        self.complete = joint.resident.copy()
        self.evicted = np.zeros(values, dtype=np.bool_)  # computed before, now gone (dropped ones included)
        self.locks = np.zeros(values, dtype=np.int64)
        self.access = np.zeros(values, dtype=np.float64)
        self.given: list[set[int]] = [set() for _ in range(values)]
        self.to_come = joint.writer_count.tolist()  # writers that have not run for the first time
        self.uses = np.diff(joint.readers.start).tolist()  # plain reads still to come
        lasting = np.union1d(joint.outputs, np.flatnonzero(joint.stays)) if for_good else joint.outputs
        for value in lasting.tolist():
            self.uses[value] += 1
        self.live = 0
        self.clock = 0.0
        self.runs = 0
        self.components = _Components(self) if score == "h-dtr-eq" else None

    def play(self) -> np.ndarray:
        """Run every op in the plain order; returns the actions, int32."""
        for op in range(self.joint.n_ops):
            self._execute(op)
            for value in self.reads[op]:
                self.uses[value] -= 1
                self._drop_if_dead(value)
        self.locks[self.joint.outputs] += 1
        for value in self.joint.outputs.tolist():
            while not self.complete[value]:
                self._execute(self._next_writer(value))
        return np.array(self.actions, dtype=np.int32)

    # -- running -------------------------------------------------------------------------------------------
    def _next_writer(self, value: int) -> int:
        return next(w for w in self.writers[value] if w not in self.given[value])

    def _execute(self, op: int) -> None:
        """Run an op after bringing back what it reads. The stack stands for the paper's recursion."""
        stack = [op]
        self._ask(op)
        while stack:
            top = stack[-1]
            missing = next((v for v in self.reads[top] if not self.complete[v]), None)
            if missing is not None:
                stack.append(self._next_writer(missing))
                self._ask(stack[-1])
                continue
            self._run(top)
            stack.pop()
            for value in self.reads[top]:
                self.locks[value] -= 1
                if stack:  # a plain read still to be counted keeps the top-level op's inputs
                    self._drop_if_dead(value)

    def _ask(self, op: int) -> None:
        for value in self.reads[op]:
            self.locks[value] += 1
            self.access[value] = self.clock

    def _run(self, op: int) -> None:
        fresh = 0
        for value in self.writes[op]:
            if len(self.writers[value]) == 1:
                if self.held[value] and not self.locks[value] and not self.joint.stays[value]:
                    self._free(value)
                fresh += self.bytes[value]
            elif not self.held[value]:
                fresh += self.bytes[value]
        pulse()
        self._make_room(op, max(fresh, int(self.joint.op_workspace[op])))
        self.actions.append(op)
        self.runs += 1
        if self.runs > self.most_runs:
            raise Thrashing(f"dtr ran {self.runs} ops for {self.joint.n_ops} and gave up: it is thrashing")
        self.clock += self.ticks[op]
        for value in self.writes[op]:
            first = op not in self.given[value] and not self.evicted[value] and self.to_come[value] > 0
            if not self.held[value]:
                self.held[value] = True
                self.live += self.bytes[value]
            if op not in self.given[value]:
                self.given[value].add(op)
            if first:
                self.to_come[value] -= 1
                self.access[value] = self.clock
            if len(self.given[value]) == len(self.writers[value]) and not self.complete[value]:
                self.complete[value] = True
                if self.evicted[value]:
                    self.evicted[value] = False
                    if self.components:
                        self.components.leave(value)
            self._drop_if_dead(value)

    def _drop_if_dead(self, value: int) -> None:
        """Drop what nobody holds: a value with no use to come, or a contribution nobody waits for."""
        if not self.held[value] or self.locks[value] or self.to_come[value] > 0:
            return
        if self.uses[value] == 0 or not self.complete[value]:
            self._free(value)

    def _free(self, value: int) -> None:
        self.actions.append(~value)
        self.live -= self.bytes[value]
        self.held[value] = self.complete[value] = False
        self.given[value].clear()
        if not self.evicted[value]:
            self.evicted[value] = True
            if self.components:
                self.components.join(value)

    # -- evicting ------------------------------------------------------------------------------------------
    def _make_room(self, op: int, need: int) -> None:
        while self.live + need > self.budget:
            pool = np.flatnonzero(
                self.held
                & self.complete
                & (self.locks == 0)
                & (self.joint.value_bytes > 0)
                & ~self.joint.stays
            )
            if len(pool) == 0:
                raise InfeasibleBudget(
                    f"dtr cannot run {self.joint.op_names[op]!r} in {format_exact(self.budget)}: "
                    f"it needs {need} B beside {self.live} B that are in use"
                )
            scores = self._scores(pool)
            least = np.flatnonzero(scores == scores.min())
            self._free(int(pool[least[-1]]))

    def _scores(self, pool: np.ndarray) -> np.ndarray:
        if self.score == "random":
            return self.random.random(len(pool))
        stale = np.maximum(1.0, self.clock - self.access[pool])
        size = self.joint.value_bytes[pool].astype(np.float64)
        if self.score == "lru":
            return 1.0 / stale
        if self.score == "size":
            return 1.0 / size
        time = self.graph.time[pool]
        if self.score == "h-dtr-local":
            return time / (size * stale)
        if self.components:
            return (time + self.components.around(pool)) / (size * stale)
        up, around = _neighborhoods(
            pool, self.evicted, *self.graph.before, *self.graph.after, *self.joint.writers, self.joint.op_time
        )
        if self.score == "h-dtr":
            return (time + around) / (size * stale)
        if self.score == "msps":
            return (time + up) / size
        assert callable(self.score)
        return self._ask_user(self.score, pool, time, stale, up, around)

    def _ask_user(self, score, pool, time, stale, up, around) -> np.ndarray:
        backward = self.joint.op_backward
        found = np.empty(len(pool))
        for i, value in enumerate(pool.tolist()):
            answer = score(
                Candidate(
                    name=self.joint.value_names[value],
                    index=value,
                    bytes=self.bytes[value],
                    time=float(time[i]),
                    staleness=float(stale[i]),
                    neighborhood=float(around[i]),
                    ancestors=float(up[i]),
                    gradient=bool(backward[self.writers[value][0]]),
                )
            )
            try:
                found[i] = float(answer)
            except (TypeError, ValueError):
                found[i] = np.nan
            if np.isnan(found[i]):
                raise MethodFailed(
                    f"the score of {self.joint.value_names[value]!r} is {answer!r}; a score is a number, and "
                    "the value with the least is evicted"
                )
        return found


@dataclass(frozen=True)
class _ValueGraph:
    """value -> values read by its writers; value -> values its readers write; c0 per value."""

    before: Any
    after: Any
    time: np.ndarray


def _value_graph(joint: JointGraph) -> _ValueGraph:
    from ..arrays import csr

    before: list[list[int]] = []
    time = np.zeros(joint.n_values)
    for value in range(joint.n_values):
        around: set[int] = set()
        for op in joint.writers.row(value).tolist():
            time[value] += joint.op_time[op]
            around.update(v for v in joint.reads.row(op).tolist() if not joint.resident[v])
        before.append(sorted(around))
    lists = csr(before)
    return _ValueGraph(lists, lists.transposed(joint.n_values), time)


@njit(cache=True, nogil=True)
def _neighborhoods(
    pool, evicted, up_start, up_index, down_start, down_index, writer_start, writer_index, op_time
):
    """Time of the evicted ancestors of each value in ``pool``, and of its evicted neighbourhood e*."""
    seen = np.full(len(evicted), -1, dtype=np.int64)
    ran = np.full(len(op_time), -1, dtype=np.int64)
    stack = np.empty(len(evicted) + 1, dtype=np.int64)
    ancestors = np.zeros(len(pool))
    every = np.zeros(len(pool))
    for i in range(len(pool)):
        total = 0.0
        for direction in range(2):
            start, index = (up_start, up_index) if direction == 0 else (down_start, down_index)
            stack[0] = pool[i]
            top = 1
            while top > 0:
                top -= 1
                x = stack[top]
                for e in range(start[x], start[x + 1]):
                    u = index[e]
                    if not evicted[u] or seen[u] == i:
                        continue
                    seen[u] = i
                    stack[top] = u
                    top += 1
                    for f in range(writer_start[u], writer_start[u + 1]):
                        if ran[writer_index[f]] != i:
                            ran[writer_index[f]] = i
                            total += op_time[writer_index[f]]
            if direction == 0:
                ancestors[i] = total
        every[i] = total
    return ancestors, every


class _Components:
    """Union-find over evicted values, with the time of each component (the paper's h_DTR^eq)."""

    def __init__(self, runtime: Runtime):
        self.runtime = runtime
        self.parent: list[int] = []
        self.time: list[float] = []
        self.element = [-1] * runtime.joint.n_values

    def root(self, element: int) -> int:
        while self.parent[element] != element:
            self.parent[element] = self.parent[self.parent[element]]
            element = self.parent[element]
        return element

    def _neighbors(self, value: int) -> set[int]:
        graph = self.runtime.graph
        around = (*graph.before.row(value).tolist(), *graph.after.row(value).tolist())
        return {self.root(self.element[v]) for v in around if self.element[v] >= 0}

    def join(self, value: int) -> None:
        around = self._neighbors(value)
        new = len(self.parent)
        self.parent.append(new)
        self.time.append(float(self.runtime.graph.time[value]))
        self.element[value] = new
        for root in around:
            self.parent[root] = new
            self.time[new] += self.time[root]

    def leave(self, value: int) -> None:
        self.time[self.root(self.element[value])] -= float(self.runtime.graph.time[value])
        self.element[value] = -1

    def around(self, pool: np.ndarray) -> np.ndarray:
        return np.array([sum(self.time[r] for r in self._neighbors(v)) for v in pool.tolist()])


def play(
    joint: JointGraph, budget: int | None, score: str | Callable[[Candidate], float] = "h-dtr", seed: int = 0
) -> Schedule:
    """The schedule the runtime makes within ``budget`` bytes.

    Raises
    ------
    InfeasibleBudget
        If an op does not fit beside what is in use, or the runtime thrashes.
    """
    return Schedule(joint, _play(joint, 2**62 if budget is None else budget, score, seed, MOST_RUNS))


def _play(joint: JointGraph, budget: int, score: Any, seed: int, most_runs: int) -> np.ndarray:
    """The actions; a few bytes are kept for good only if an op that may run once would run again otherwise."""
    actions = Runtime(joint, budget, score, seed, most_runs).play()
    counts = np.bincount(actions[actions >= 0], minlength=joint.n_ops)
    if (counts[joint.runs_once] > 1).any():
        actions = Runtime(joint, budget, score, seed, most_runs, for_good=True).play()
    return actions


def least_budget(
    joint: JointGraph, score: str | Callable[[Candidate], float] = "h-dtr", seed: int = 0, tries: int = 12
) -> int:
    """A budget the runtime can meet and near which it fails below: bisection, at most ``tries`` runs."""
    high = simulate(play(joint, None, score, seed)).peak
    low = int(np.max(joint.op_workspace, initial=0))
    while low + max(1, high // 500) <= high and tries > 0:
        tries -= 1
        middle = (low + high) // 2
        try:
            # Five runs for each op are thrashing enough, and keep the search short.
            actions = _play(joint, middle, score, seed, most_runs=5)
            high = min(middle, simulate(Schedule(joint, actions)).peak)
        except InfeasibleBudget:
            low = middle + 1
    return high
