"""checkmate: recomputation as a mixed-integer program (Jain et al., MLSys 2020, arXiv 1910.02653).

Stage t computes op t for the first time, after recomputing whatever it wants among the ops before it, in
the plain order ("frontier-advancing"). Variables, for ops k <= t and values v:

* R[t, k] in {0, 1}: op k runs in stage t; R[t, t] = 1. Minimise the time of all R.
* S[t, v] in [0, 1]: v is held when stage t begins, with the contributions of all its writers before t.
* F[t, v, k] in [0, 1]: v is freed right after op k, one of its writers or readers, in stage t.
* A[t, v, k] in [0, 1]: op k allocates v in stage t. U[t, k]: bytes held before op k of stage t.

Differences from the paper, none of which changes the optimum where every value has one writer: values and
ops are told apart, so that an op may write several values; F is continuous, since each of its bounds (k
runs, v is not held on, no later user runs) is 0 or 1 when R and S are, and freeing only ever helps, and so
is S, which R drives to 0 or 1; a value nobody reads later is freed by its writer too. An accumulated value
may have several writers; a sum that is dropped half-way is then made again from all its contributions in
one stage, which gives up some schedules of such graphs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import InfeasibleBudget, TooLarge
from ..joint import JointGraph
from ..registry import Request, Solution, method
from ..schedule import Schedule
from ..simulate import simulate
from ..units import format_bytes, format_exact
from .local_search import ops_of, search

#: The kinds of constraints: kind -> what its rows say.
CONSTRAINTS = {
    "reads": "op k runs in stage t only if each value it reads is held or made in that stage",
    "holds": "a value is held into stage t+1 only if it was held into stage t or made in it",
    "once": "a value that is held is not made again",
    "frees": "a value is freed after op k only if k runs, it is not held on, and no later op of the stage uses it",
    "bytes": "U adds up: what is held, plus what is allocated, less what is freed",
    "budget": "U, with what the op adds, stays within the budget",
}


@dataclass(frozen=True)
class Program:
    """min cost x, lower <= A x <= upper, 0 <= x <= most.

    ``run`` and ``hold`` map (stage, op) and (stage, value) to columns; the variables of ``run`` are the integers.
    ``free`` maps (stage, value, op) to columns. ``kind`` is one of :data:`CONSTRAINTS` per row.
    """

    cost: np.ndarray
    matrix: Any
    lower: np.ndarray
    upper: np.ndarray
    least: np.ndarray
    most: np.ndarray
    integral: np.ndarray
    run: dict[tuple[int, int], int]
    hold: dict[tuple[int, int], int]
    free: dict[tuple[int, int, int], int]
    kind: np.ndarray

    def without(self, kind: str) -> Program:
        """The program that lacks one kind of constraint: what it then gets away with shows what it is for.

        Raises
        ------
        ValueError
            If there is no such kind.
        """
        if kind not in CONSTRAINTS:
            raise ValueError(f"kind must be one of {tuple(CONSTRAINTS)}, got {kind!r}")
        left = self.kind != kind
        return replace(
            self,
            matrix=self.matrix[left],
            lower=self.lower[left],
            upper=self.upper[left],
            kind=self.kind[left],
        )


@dataclass(frozen=True)
class MilpResult:
    """How the solver ended: columns, rows, its message, relative gap and bound on the overhead.

    The bound is on frontier-advancing schedules, so a plan in another order may be below it.
    """

    columns: int
    rows: int
    message: str
    gap: float | None
    bound: float | None


def program(joint: JointGraph, budget: int | None) -> Program:
    """The program of a joint graph; bytes are scaled by the budget, times by the plain time."""
    from scipy.sparse import csr_array

    n = joint.n_ops
    reads = [[v for v in joint.reads.row(k).tolist() if not joint.resident[v]] for k in range(n)]
    writes = [joint.writes.row(k).tolist() for k in range(n)]
    writers = [joint.writers.row(v).tolist() for v in range(joint.n_values)]
    users = [sorted({*w, *joint.readers.row(v).tolist()}) for v, w in enumerate(writers)]
    is_output = np.zeros(joint.n_values, dtype=bool)
    is_output[joint.outputs] = True
    limit = float(max(1, simulate(Schedule.vanilla(joint)).peak if budget is None else budget))
    size = joint.value_bytes / limit
    space = joint.op_workspace / limit
    plain = joint.plain_time or 1.0
    once = joint.runs_once.tolist()

    cost: list[float] = []
    least: list[float] = []
    most: list[float] = []
    integral: list[bool] = []
    rows: list[int] = []
    columns: list[int] = []
    entries: list[float] = []
    lower: list[float] = []
    upper: list[float] = []
    kinds: list[str] = []

    def variable(low: float = 0.0, high: float = 1.0, price: float = 0.0, whole: bool = False) -> int:
        cost.append(price)
        least.append(low)
        most.append(high)
        integral.append(whole)
        return len(cost) - 1

    def row(kind: str, terms: list[tuple[int, float]], low: float, high: float) -> None:
        kinds.append(kind)
        for column, entry in terms:
            rows.append(len(lower))
            columns.append(column)
            entries.append(entry)
        lower.append(low)
        upper.append(high)

    run = {
        (t, k): variable(float(k == t), float(k == t or not once[k]), joint.op_time[k] / plain, True)
        for t in range(n)
        for k in range(t + 1)
    }
    hold = {}
    released: dict[tuple[int, int, int], int] = {}
    for v in range(joint.n_values):
        if not writers[v]:
            continue
        # Held at the end if it is an output; never past its last use in the plain order otherwise, unless
        # recomputation wants it, which any stage may.
        for t in range(writers[v][0] + 1, n + 1):
            kept = float(is_output[v] and t == n)
            hold[t, v] = variable(kept, 1.0 if t < n or is_output[v] else 0.0)

    for t in range(n):
        for v in range(joint.n_values):
            # S[t+1, v] <= S[t, v] + R[t, w] for each of its writers so far.
            if (t + 1, v) not in hold:
                continue
            for w in writers[v]:
                if w <= t and w != t:
                    terms = [(hold[t + 1, v], 1.0), (run[t, w], -1.0)]
                    if (t, v) in hold:
                        terms.append((hold[t, v], -1.0))
                    row("holds", terms, -np.inf, 0.0)
            if len(writers[v]) == 1 and (t, v) in hold:
                row("once", [(hold[t, v], 1.0), (run[t, writers[v][0]], 1.0)], -np.inf, 1.0)
        used = variable(0.0, np.inf)
        row(
            "bytes",
            [(used, 1.0), *((hold[t, v], -size[v]) for v in range(joint.n_values) if (t, v) in hold)],
            0.0,
            0.0,
        )
        for k in range(t + 1):
            # Reads are there: held since before the stage, or made in it.
            for v in reads[k]:
                for w in writers[v]:
                    terms = [(run[t, k], 1.0), (run[t, w], -1.0)]
                    if (t, v) in hold:
                        terms.append((hold[t, v], -1.0))
                    row("reads", terms, -np.inf, 0.0)
            fresh: list[tuple[int, float]] = []
            for v in writes[k]:
                if len(writers[v]) == 1:
                    fresh.append((run[t, k], size[v]))
                    continue
                made = variable()
                fresh.append((made, size[v]))
                terms = [(made, 1.0), (run[t, k], -1.0)]
                if (t, v) in hold:
                    terms.append((hold[t, v], 1.0))
                terms += [(run[t, w], 1.0) for w in writers[v] if w < k]
                row("bytes", terms, 0.0, np.inf)
            row("budget", [(used, 1.0), *fresh], -np.inf, 1.0)
            if space[k]:
                row("budget", [(used, 1.0), (run[t, k], space[k])], -np.inf, 1.0)
            freed: list[tuple[int, float]] = []
            for v in dict.fromkeys([*reads[k], *writes[k]]):
                free = released[t, v, k] = variable()
                freed.append((free, size[v]))
                row("frees", [(free, 1.0), (run[t, k], -1.0)], -np.inf, 0.0)
                row("frees", [(free, 1.0), (hold[t + 1, v], 1.0)], -np.inf, 1.0)
                for j in users[v]:
                    if k < j <= t:
                        row("frees", [(free, 1.0), (run[t, j], 1.0)], -np.inf, 1.0)
            after = variable(0.0, np.inf)
            row(
                "bytes",
                [(after, 1.0), (used, -1.0), *((c, -x) for c, x in fresh), *freed],
                0.0,
                0.0,
            )
            used = after
    matrix = csr_array((entries, (rows, columns)), shape=(len(lower), len(cost)))
    return Program(
        np.array(cost),
        matrix,
        np.array(lower),
        np.array(upper),
        np.array(least),
        np.array(most),
        np.array(integral, dtype=bool),
        run,
        hold,
        released,
        np.array(kinds),
    )


def _solve(
    program: Program, whole: bool, time_limit: float | None, gap: float, known: float | None = None
) -> Any:
    """Solve by HiGHS; ``known`` is the objective of a schedule at hand, beyond which nothing is of interest."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    constraints = [LinearConstraint(program.matrix, program.lower, program.upper)]
    if known is not None:
        constraints.append(LinearConstraint(program.cost[None, :], -np.inf, known + 1e-6))
    options: dict[str, Any] = {"disp": False, "mip_rel_gap": gap}
    if time_limit is not None:
        options["time_limit"] = time_limit
    return milp(
        program.cost,
        constraints=constraints,
        bounds=Bounds(program.least, program.most),
        integrality=program.integral.astype(int) if whole else None,
        options=options,
    )


def optimum(program: Program, time_limit: float | None = 60.0) -> np.ndarray | None:
    """A best solution of the program, float64 of shape (columns,); None if there is none (in time)."""
    return _solve(program, True, time_limit, 0.0).x


def taken_at_its_word(joint: JointGraph, program: Program, x: np.ndarray) -> Schedule:
    """The runs R and frees S, F of a solution exactly as they stand, for a look at what a program believes.

    A solution of the whole program gives a valid schedule within its budget; one of a program
    :meth:`~Program.without` some constraint need not: ``simulate`` names what is wrong.
    """
    held: set[int] = set()
    actions: list[int] = []

    def free(value: int) -> None:
        held.discard(value)
        actions.append(~value)

    for t in range(joint.n_ops):
        for k in range(t + 1):
            if x[program.run[t, k]] <= 0.5:
                continue
            actions.append(k)
            held.update(joint.writes.row(k).tolist())
            for v in (*joint.reads.row(k).tolist(), *joint.writes.row(k).tolist()):
                if v in held and x[program.free[t, v, k]] > 0.5:
                    free(v)
        for v in sorted(held):
            if x[program.hold[t + 1, v]] <= 0.5:
                free(v)
    return Schedule(joint, np.array(actions, dtype=np.int32))


def _ops_of(joint: JointGraph, program: Program, x: np.ndarray) -> np.ndarray:
    order = [k for t in range(joint.n_ops) for k in range(t + 1) if k == t or x[program.run[t, k]] > 0.5]
    return np.array(order, dtype=np.int64)


def _ample(joint: JointGraph, budget: int | None) -> Solution | None:
    """Where the plain schedule fits, there is nothing to decide."""
    schedule = Schedule.vanilla(joint)
    if budget is None or simulate(schedule).peak <= budget:
        return Solution(schedule, status="optimal", bound=0.0)
    return None


def _time_unit(joint: JointGraph) -> int:
    """The largest whole number that divides every op's time; 0 if some time is not whole."""
    whole = joint.op_time.astype(np.int64)
    return int(np.gcd.reduce(whole)) if np.array_equal(whole, joint.op_time) else 0


#: Programs with more binaries than this are refused: HiGHS would not leave the root.
MOST_BINARIES = 60_000


def _check_size(joint: JointGraph, name: str) -> None:
    binaries = joint.n_ops**2 // 2 + joint.n_ops * int((~joint.resident).sum()) // 2
    if binaries > MOST_BINARIES:
        raise TooLarge(
            f"{name} would need about {binaries} binary variables for {joint.n_ops} ops; its limit is "
            f"{MOST_BINARIES}. Use 'local-search' or 'retention-intervals', or a coarser graph."
        )


@method("checkmate", view="joint", paper="Jain et al. 2020")
def checkmate(
    joint: JointGraph,
    request: Request,
    time_limit: float | None = 60.0,
    gap: float = 0.0,
    warm_start: float = 1.0,
) -> Solution:
    """Mixed-integer program, solved by HiGHS: optimal among frontier-advancing schedules."""
    budget = request.budget
    ample = _ample(joint, budget)
    if ample is not None:
        return ample
    assert budget is not None
    _check_size(joint, "checkmate")
    at_hand = None
    if warm_start > 0:
        keys, excess = search(joint, budget, seconds=warm_start)
        at_hand = Schedule.from_ops(joint, ops_of(joint, keys), hold_outputs=False) if excess == 0 else None
    built = program(joint, budget)
    plain = joint.plain_time or 1.0
    known = None if at_hand is None else at_hand.overhead / plain + float(joint.plain_time > 0)
    unit = _time_unit(joint)
    # Whole times: once no schedule can be better by a whole unit, none is better.
    proof = 0.99 * unit / (plain * (known or 2.0))
    result = _solve(built, True, time_limit, max(gap, proof), known)
    bound = None
    if result.mip_dual_bound is not None and np.isfinite(result.mip_dual_bound):
        bound = max(0.0, (result.mip_dual_bound - 1.0) * joint.plain_time)
        bound = bound if unit == 0 else unit * float(np.ceil(bound / unit - 1e-6))
    details = MilpResult(len(built.cost), len(built.lower), result.message, result.mip_gap, bound)
    if result.x is None:
        if at_hand is not None:  # the time was up before HiGHS had a schedule of its own
            return Solution(at_hand, details=details)
        if result.status == 2:
            raise InfeasibleBudget(
                f"checkmate proves that no frontier-advancing schedule fits {format_exact(budget)}"
            )
        raise InfeasibleBudget(
            f"checkmate found no schedule within {format_exact(budget)} before its time limit of "
            f"{time_limit} s. Raise time_limit, or try 'local-search'."
        )
    schedule = Schedule.from_ops(joint, _ops_of(joint, built, result.x), hold_outputs=False)
    if at_hand is not None and at_hand.overhead < schedule.overhead:
        schedule = at_hand
    proven = bound is not None and schedule.overhead <= bound * (1 + 1e-6) + 1e-9
    status = "optimal" if proven or (result.status == 0 and gap == 0.0 and unit == 0) else "feasible"
    return Solution(schedule, details=details, status=status)


@method("checkmate-lp", view="joint", paper="Jain et al. 2020")
def checkmate_lp(joint: JointGraph, request: Request, time_limit: float | None = 60.0) -> Solution:
    """Relaxed program, rounded: hold S above a threshold, recompute the rest; the cheapest that fits."""
    ample = _ample(joint, request.budget)
    if ample is not None:
        return ample
    assert request.budget is not None
    _check_size(joint, "checkmate-lp")
    best: tuple[float, Schedule] | None = None
    least = np.inf
    for share in (1.0, 0.9, 0.8):  # the paper relaxes with less than the budget, as rounding costs memory
        built = program(joint, int(request.budget * share))
        result = _solve(built, False, time_limit, 0.0)
        if result.x is None:
            break
        for threshold in np.linspace(0.1, 0.9, 9):
            schedule = Schedule.from_ops(
                joint, round_holds(joint, built, result.x, float(threshold)), hold_outputs=False
            )
            trace = simulate(schedule)
            least = min(least, trace.peak)
            if trace.peak <= request.budget and (best is None or trace.overhead < best[0]):
                best = trace.overhead, schedule
        if best is not None:
            break
    if best is None:
        tried = (
            f"the least peak it came to is {format_bytes(least)}"
            if least < np.inf
            else "none was found at all"
        )
        raise InfeasibleBudget(
            f"checkmate-lp's rounding keeps no schedule within {format_exact(request.budget)}; {tried}",
        )
    return Solution(best[1])


def round_holds(joint: JointGraph, program: Program, x: np.ndarray, threshold: float) -> np.ndarray:
    """Ops of the schedule that holds v into stage t iff S[t, v] >= threshold and recomputes what it lacks."""
    writers = [joint.writers.row(v).tolist() for v in range(joint.n_values)]
    reads = [joint.reads.row(k).tolist() for k in range(joint.n_ops)]
    writes = [joint.writes.row(k).tolist() for k in range(joint.n_ops)]
    held: set[int] = set()
    order: list[int] = []
    for t in range(joint.n_ops):
        needed: set[int] = set()
        waiting = [v for v in reads[t]]
        while waiting:
            v = waiting.pop()
            if v in held or joint.resident[v]:
                continue
            for w in writers[v]:
                if w not in needed:
                    needed.add(w)
                    waiting += reads[w]
        order += sorted(needed)
        order.append(t)
        for k in (*needed, t):
            held.update(v for v in writes[k] if writers[v][-1] <= t and set(writers[v]) <= {*needed, t})
        # A partial accumulation is always held on: dropping it would lose contributions.
        held |= {v for v in writes[t] if len(writers[v]) > 1}
        held = {
            v
            for v in held
            if len(writers[v]) > 1
            or joint.stays[v]
            or x[program.hold[t + 1, v]] >= threshold
            or t + 1 == joint.n_ops
        }
    for v in joint.outputs.tolist():
        if v not in held and not joint.resident[v]:
            order += [w for w in writers[v]]
    return np.array(order, dtype=np.int64)
