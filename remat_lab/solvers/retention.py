"""retention-intervals: recomputation as constraint programming (Bartan et al., ICML 2023, arXiv 2304.14463).

Each op k runs up to C times; a run is an interval in which its values are kept. Time is staged as in
Checkmate: stage t has the events (t, 0) .. (t, t), event (t, k) being a run of op k in stage t, numbered
t (t + 1) / 2 + k. The first run of op k is at (k, k); a later one at (t, k) for a chosen stage t > k. An
interval starts at its run and ends at its last use; intervals covering an event share the budget
(a cumulative constraint), and a run needs, for each value it reads, an interval of that value that started
before it and ends no earlier.

Sound, and coarser than Checkmate's program where a graph has them: the ops that contribute to an
accumulated value, and those with workspace to spare, run as the plain order has it, the former only once;
an op's values are kept together. Solved by OR-tools CP-SAT, warm-started from local search.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import InfeasibleBudget, RematError
from ..joint import JointGraph
from ..progress import pulse
from ..registry import Request, Solution, method
from ..schedule import Schedule
from ..simulate import simulate
from ..units import format_exact
from .local_search import ops_of, search


class MissingDependency(RematError, ImportError):
    """An optional package is not installed; the message says how to install it."""


def _solved(solver: Any, model: Any) -> Any:
    """``solver.solve(model)``, in a thread of its own so that an interruption here stops the solver."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(solver.solve(model)), daemon=True)
    thread.start()
    try:
        while thread.is_alive():
            thread.join(0.1)
            pulse()
    except BaseException:
        solver.stop_search()
        thread.join()
        raise
    return found[0]


@dataclass(frozen=True)
class CpResult:
    """How the solver ended: its status, bound on the overhead, and the overhead of the warm start.

    The bound is on schedules of the model, so a plan in another order may be below it.
    """

    status: str
    bound: float
    hint: float | None


def _cp_model() -> Any:
    try:
        from ortools.sat.python import cp_model
    except ImportError as error:
        raise MissingDependency(
            "method 'retention-intervals' needs OR-tools: pip install 'remat-lab[cp]' (or pip install ortools)"
        ) from error
    return cp_model


def _whole_times(times: np.ndarray) -> tuple[np.ndarray, float, bool]:
    """Times as whole numbers, what one stands for, and whether that is exact (else they are rounded down)."""
    whole = np.floor(times).astype(np.int64)
    if np.array_equal(times, whole) and times.sum() < 2**53:
        divisor = int(np.gcd.reduce(whole)) or 1
        return whole // divisor, float(divisor), True
    unit = float(times.sum()) / 2**40
    return np.floor(times / unit).astype(np.int64), unit, False


def _whole_bytes(sizes: np.ndarray, budget: int) -> tuple[list[int], int]:
    """Bytes over their common divisor, so that sums stay small."""
    divisor = int(np.gcd.reduce(sizes)) or 1
    return (sizes // divisor).tolist(), budget // divisor


@method("retention-intervals", view="joint", paper="Bartan et al. 2023")
def retention_intervals(
    joint: JointGraph,
    request: Request,
    time_limit: float = 60.0,
    intervals: int = 2,
    warm_start: float = 5.0,
    workers: int = 2,
    seed: int = 0,
) -> Solution:
    """Constraint program over retention intervals, solved by CP-SAT; up to ``intervals`` runs of each op."""
    cp_model = _cp_model()
    schedule = Schedule.vanilla(joint)
    budget = request.budget
    if budget is None or simulate(schedule).peak <= budget:
        return Solution(schedule, status="optimal", bound=0.0)
    if intervals < 1:
        raise ValueError(f"intervals must be at least 1, got {intervals}")
    n = joint.n_ops
    hint: dict[int, list[int]] = {}
    hinted = None
    if warm_start > 0:
        keys, excess = search(joint, budget, seconds=min(warm_start, time_limit), seed=seed)
        for key in keys.tolist():
            hint.setdefault(key % n, []).append(key // n)
        if excess == 0:
            hinted = Schedule.from_ops(joint, ops_of(joint, keys), hold_outputs=False)
    model, runs = _build(cp_model, joint, budget, intervals, hint)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = time_limit
    solver.parameters.num_workers = workers
    solver.parameters.random_seed = seed
    status = _solved(solver, model)
    name = solver.status_name(status)
    _, unit, exact = _whole_times(joint.op_time)
    if status == cp_model.INFEASIBLE:
        if hinted is None:
            raise InfeasibleBudget(
                f"retention-intervals proves that no schedule with up to {intervals} runs of each op, first runs "
                f"in the plain order, fits {format_exact(budget)}"
            )
        return Solution(hinted, details=CpResult(name, 0.0, hinted.overhead))
    bound = max(0.0, solver.best_objective_bound * unit)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        if hinted is None:
            raise InfeasibleBudget(
                f"retention-intervals found no schedule within {format_exact(budget)} in "
                f"{time_limit} s. Raise time_limit or warm_start."
            )
        return Solution(
            hinted, details=CpResult(name, bound, hinted.overhead), bound=min(bound, hinted.overhead)
        )
    found = [
        solver.value(stage) * n + k for k, later in runs.items() for stage, on in later if solver.value(on)
    ]
    schedule = Schedule.from_ops(
        joint, ops_of(joint, np.unique(np.array(found, dtype=np.int64))), hold_outputs=False
    )
    if hinted is not None and hinted.overhead < schedule.overhead:
        schedule = hinted
    return Solution(
        schedule,
        details=CpResult(name, bound, None if hinted is None else hinted.overhead),
        status="optimal" if status == cp_model.OPTIMAL and exact else "feasible",
    )


def _build(cp_model: Any, joint: JointGraph, budget: int, intervals: int, hint: dict[int, list[int]]) -> Any:
    """The model, and per op the (stage, active) variables of its later runs."""
    n = joint.n_ops
    model = cp_model.CpModel()
    sizes, limit = _whole_bytes(joint.value_bytes, budget)
    times, _, _ = _whole_times(joint.op_time)
    last_event = n * (n + 1) // 2 - 1
    outputs = set(joint.outputs.tolist())
    reads = [[v for v in joint.reads.row(k).tolist() if not joint.resident[v]] for k in range(n)]

    def event(t: int, k: int) -> int:
        return t * (t + 1) // 2 + k

    # Runs of each op: (stage, start event, active). The first one is fixed.
    starts: list[list[tuple[Any, Any]]] = []
    later: dict[int, list[tuple[Any, Any]]] = {}
    for k in range(n):
        written = joint.writes.row(k)
        runs: list[tuple[Any, Any]] = [(event(k, k), True)]
        later[k] = []
        single = len(written) > 0 and (joint.writer_count[written] == 1).all()
        if single and not joint.runs_once[k] and k + 1 < n:
            table = [event(t, k) for t in range(k + 1, n)]
            before = None
            for i in range(1, intervals):
                stage = model.new_int_var(k + 1, n - 1, f"stage {k} {i}")
                start = model.new_int_var_from_domain(cp_model.Domain.from_values(table), f"start {k} {i}")
                model.add_element(stage - (k + 1), table, start)
                on = model.new_bool_var(f"on {k} {i}")
                if before is not None:
                    model.add_implication(on, before[1])
                    model.add(start > before[0]).only_enforce_if(on)
                before = (start, on)
                stages = sorted(hint.get(k, []))
                model.add_hint(on, i <= len(stages))
                if i <= len(stages):
                    model.add_hint(stage, stages[i - 1])
                runs.append((start, on))
                later[k].append((stage, on))
        starts.append(runs)

    # Instances of each value: (start, end, active). An accumulated value has one, from its first writer.
    instances: dict[int, list[tuple[Any, Any, Any]]] = {}
    spans: list[Any] = []
    demands: list[int] = []
    for v in range(joint.n_values):
        if joint.resident[v]:
            continue
        first = int(joint.writers.row(v)[0])
        final = int(joint.writers.row(v)[-1])
        instances[v] = []
        for i, (start, on) in enumerate(starts[first]):
            floor = event(final, final) if i == 0 else 0
            end = model.new_int_var(floor, last_event, f"end {v} {i}")
            if i == 0:
                span = model.new_interval_var(start, end - start + 1, end + 1, f"kept {v} {i}")
            else:
                model.add(end >= start).only_enforce_if(on)
                length = model.new_int_var(0, last_event + 1, f"length {v} {i}")
                span = model.new_optional_interval_var(start, length, end + 1, on, f"kept {v} {i}")
            instances[v].append((start, end, on))
            if sizes[v]:
                spans.append(span)
                demands.append(sizes[v])
        if v in outputs:
            held = [model.new_bool_var(f"kept to the end {v} {i}") for i in range(len(instances[v]))]
            model.add_bool_or(held)
            for flag, (_, end, on) in zip(held, instances[v]):
                model.add(end == last_event).only_enforce_if(flag)
                if on is not True:
                    model.add_implication(flag, on)

    for k in range(n):
        written = joint.writes.row(k)
        new = sum(sizes[v] for v in written.tolist() if joint.writers.row(v)[0] == k)
        divisor = int(np.gcd.reduce(joint.value_bytes)) or 1
        extra = -(-int(joint.op_workspace[k]) // divisor) - new
        for start, on in starts[k]:
            # Workspace beyond the outputs is in use during the run alone.
            if extra > 0:
                spans.append(
                    model.new_fixed_size_interval_var(start, 1, f"work {k}")
                    if on is True
                    else model.new_optional_fixed_size_interval_var(start, 1, on, f"work {k}")
                )
                demands.append(extra)
            for v in reads[k]:
                served = []
                for begin, end, alive in instances[v]:
                    use = model.new_bool_var(f"{k} reads {v}")
                    served.append(use)
                    model.add(end >= start).only_enforce_if(use)
                    if alive is not True:
                        model.add(begin < start).only_enforce_if(use)
                        model.add_implication(use, alive)
                model.add_bool_or(served if on is True else [*served, on.negated()])
    model.add_cumulative(spans, demands, limit)
    model.minimize(sum(int(times[k]) * on for k, runs in later.items() for _, on in runs))
    return model, later
