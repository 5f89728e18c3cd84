"""The oracle, and every method held against it on random joint graphs."""

from __future__ import annotations

import numpy as np
import pytest
from small_graphs import random_graph, random_joint

import remat_lab as rl
from remat_lab.solvers.dtr import play
from remat_lab.solvers.oracle import oracle_ops
from remat_lab.zoo.generators import unit_chain


def overhead(joint: rl.JointGraph, budget: int, order: str) -> float:
    ops = oracle_ops(joint, budget, order=order)
    assert ops is not None
    trace = rl.simulate(rl.Schedule.from_ops(joint, ops, hold_outputs=False))
    assert trace.peak <= budget
    return trace.overhead


def feasible_budget(joint: rl.JointGraph, share: float) -> int:
    """Between the least peak some heuristic reaches and the plain peak."""
    least = min(rl.minimum_budget(joint, "dtr"), rl.minimum_budget(joint, "dtr", score="size"))
    return int(least + share * (rl.vanilla_peak(joint) - least))


def test_unit_chain() -> None:
    for budget, total in ((8, 19), (6, 21), (5, 22)):
        assert len(oracle_ops(unit_chain(8), budget)) == total
    assert oracle_ops(unit_chain(8), 2) is None


def reruns_a_contributor(joint: rl.JointGraph, ops: np.ndarray, most_runs: int) -> bool:
    """Whether a schedule runs an op that adds to an accumulated gradient twice, or any op too often."""
    counts = rl.Schedule.from_ops(joint, ops).run_counts
    shared = [bool((joint.writer_count[joint.writes.row(k)] > 1).any()) for k in range(joint.n_ops)]
    return counts.max() > most_runs or any(c > 1 and s for c, s in zip(counts, shared))


@pytest.mark.slow
def test_milp_and_intervals_equal_the_oracle_on_200_graphs() -> None:
    """Both keep the plain order of first runs and ascend within a stage: the "staged" schedules.

    They equal that oracle unless every staged optimum runs a contributor to an accumulated gradient again:
    the program does not let a sum that was dropped half-way start again from its later contributions, the
    intervals run contributors once (and an op at most C = 4 times). Neither beats the oracle over any order.
    """
    pytest.importorskip("ortools")
    milp_less = intervals_less = order_less = unfit = 0
    for seed in range(200):
        joint = random_joint(seed)
        budget = feasible_budget(joint, (0.2, 0.5, 0.8)[seed % 3])
        ops = oracle_ops(joint, budget, order="staged")
        if ops is None:  # only another order fits
            unfit += 1
            assert overhead(joint, budget, "any") >= 0
            for method in ("checkmate", "retention-intervals"):
                with pytest.raises(rl.InfeasibleBudget):
                    rl.solve(joint, budget, method)
            continue
        staged, best = overhead(joint, budget, "staged"), overhead(joint, budget, "any")
        assert best <= staged
        order_less += best < staged
        try:
            plan = rl.solve(joint, budget, "checkmate", time_limit=120, warm_start=0.05)
            assert plan.status == "optimal"
            assert plan.details is None or plan.details.bound <= plan.overhead + 1e-6
            milp = plan.overhead
        except rl.InfeasibleBudget:
            milp = np.inf
        assert milp >= staged - 1e-6
        if milp > staged + 1e-6:
            milp_less += 1
            assert reruns_a_contributor(joint, ops, joint.n_ops), f"checkmate, seed {seed}"
        try:
            intervals = rl.solve(
                joint, budget, "retention-intervals", intervals=4, warm_start=0.0, time_limit=60
            ).overhead
        except rl.InfeasibleBudget:
            intervals = np.inf
        assert intervals >= staged - 1e-6
        if intervals > staged + 1e-6:
            intervals_less += 1
            assert reruns_a_contributor(joint, ops, 4), f"retention-intervals, seed {seed}"
    print(
        f"short of the staged oracle: {milp_less=} {intervals_less=}; of any order: {order_less=}, {unfit=}"
    )
    assert milp_less < 20 and intervals_less < 60


@pytest.mark.parametrize("seed", range(0, 60, 4))
def test_no_method_beats_the_oracle(seed: int) -> None:
    graph = random_graph(seed)
    joint = graph.joint
    budget = feasible_budget(joint, 0.4)
    best = overhead(joint, budget, "any")
    quick = {
        "local-search": {"seconds": 0.1},
        "checkmate": {"warm_start": 0.1, "time_limit": 20},
        "retention-intervals": {"warm_start": 0.1, "time_limit": 5},
    }
    for method in rl.methods(graph):
        if method.name.startswith("torch") or method.view == "chain":
            continue
        try:
            plan = rl.solve(graph, budget, method.name, **quick.get(method.name, {}))
        except rl.RematError:
            continue
        assert plan.peak <= budget, method.name
        assert plan.overhead >= best - 1e-9, method.name
        assert plan.bound is None or plan.bound <= plan.overhead + 1e-6, method.name


def test_a_graph_too_large_is_refused() -> None:
    with pytest.raises(ValueError, match="at most 64 ops"):
        rl.solve(unit_chain(60), 20, "oracle")


def test_infeasible_names_the_least_budget() -> None:
    with pytest.raises(rl.InfeasibleBudget) as caught:
        rl.solve(unit_chain(5), 2, "oracle")
    # A backward op, what it reads and what it writes: everything before is computed again for each.
    assert caught.value.minimum == 3
    assert rl.solve(unit_chain(5), 3, "oracle").peak == 3
    with pytest.raises(rl.InfeasibleBudget):
        play(unit_chain(5), 2)
