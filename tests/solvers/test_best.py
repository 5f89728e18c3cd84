"""kusumoto-best: valid, never worse than what it starts from, and below the published peaks."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import graphs, recount_peak

import remat_lab as rl
from remat_lab.solvers.sequence_search import ops_of, overhead_of, peak_of, relax, squeeze

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "kusumoto"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="the authors' graphs are not at hand")

# Name: (the table's batch over the file's, parameter bytes, GB to reach), papers' digest A.8, A.9, A.11.
TARGETS = {
    "vgg19": (2, 574_668_960, 4.44),
    "unet": (1, 124_401_416, 4.49),
    "resnet50": (3, 102_228_384, 3.06),
    "resnet152": (1.5, 240_771_488, 2.06),
    "densenet": (1, 114_724_000, 1.54),
    "pspnet": (2, 282_017_672, 2.25),
    "googlenet": (8, 53_513_120, 2.98),
}


@given(graphs())
@settings(max_examples=60)
def test_never_above_exact_at_equal_budgets_and_valid(graph):
    exact = rl.frontier(graph, "kusumoto-exact")
    best = rl.frontier(graph, "kusumoto-best")
    assert best.minimum <= exact.minimum
    for budget, overhead in zip(exact.budget.tolist(), exact.overhead):
        plan = rl.solve(graph, budget, "kusumoto-best")
        assert plan.overhead <= overhead and plan.peak <= budget
        assert best.at(budget).overhead <= overhead
    for plan in best:
        assert recount_peak(plan.schedule) == plan.peak
    if best.minimum:
        with pytest.raises(rl.InfeasibleBudget) as error:
            rl.solve(graph, best.minimum - 1, "kusumoto-best")
        assert error.value.minimum == best.minimum


@given(graphs())
def test_the_search_counts_memory_as_the_simulator_does(graph):
    ops = ops_of(graph)
    for plan in rl.frontier(graph, "kusumoto-exact"):
        order = plan.schedule.ops
        assert peak_of(ops, order) == plan.peak == recount_peak(plan.schedule)
        assert overhead_of(ops, order) == plan.overhead
        relaxed = relax(ops, order, plan.peak)
        assert peak_of(ops, relaxed) <= plan.peak and overhead_of(ops, relaxed) <= plan.overhead
        lower = squeeze(ops, order, plan.peak - 1)
        if lower is not None:
            schedule = rl.Schedule.from_ops(graph.joint, lower)
            assert recount_peak(schedule) == peak_of(ops, lower) <= plan.peak - 1


@settings(max_examples=100)
@given(graphs(), st.data())
def test_outputs_that_are_made_again_are_counted_as_the_simulator_does(graph, data):
    """New running statistics are outputs of an op that a plan may run again."""
    joint = graph.joint
    kept = data.draw(st.lists(st.integers(0, len(graph) - 1), unique=True))
    held = dataclasses.replace(joint, outputs=np.union1d(joint.outputs, kept))
    ops = ops_of(held.graph)
    order = []
    for op in range(held.n_ops):
        again = [o for o in order if not held.op_backward[o]]
        if again and data.draw(st.booleans()):
            order.append(data.draw(st.sampled_from(again)))
        order.append(op)
    schedule = rl.Schedule.from_ops(held, np.array(order))
    assert peak_of(ops, np.array(order)) == rl.simulate(schedule).peak == recount_peak(schedule)


def test_without_a_budget_nothing_runs_again_and_two_searches_agree():
    nodes = [{"name": f"n{i}", "memory": 10 + i % 3} for i in range(30)]
    edges = [(f"n{i}", f"n{i + 1}") for i in range(29)]
    one, two = (rl.ComputationGraph.from_nodes(nodes, edges) for _ in range(2))
    assert rl.solve(one, None, "kusumoto-best").schedule.recomputed_ops == 0
    a, b = rl.frontier(one, "kusumoto-best"), rl.frontier(two, "kusumoto-best")
    assert (a.budget == b.budget).all() and (a.overhead == b.overhead).all()


def test_options():
    graph = rl.ComputationGraph.from_nodes([{"name": "a", "memory": 4}], [])
    with pytest.raises(ValueError, match="effort must be"):
        rl.solve(graph, method="kusumoto-best", effort=-1)
    with pytest.raises(ValueError, match="time_limit must be"):
        rl.solve(graph, method="kusumoto-best", time_limit=0)
    assert rl.solve(graph, method="kusumoto-best", time_limit=9, progress=True).peak > 0


@needs_data
@pytest.mark.parametrize("name", TARGETS)
def test_reaches_the_targets(name):
    scale, parameters, target = TARGETS[name]
    graph = rl.load_graph(DATA / f"cg_{name}.txt")
    graph = graph.with_costs(memory=[int(m * scale) for m in graph.memory])
    wanted = int(target * 1e9) - parameters
    plan = rl.solve(graph, wanted, "kusumoto-best", effort=0)
    assert plan.peak <= wanted
    approx = rl.frontier(graph, "kusumoto-approx")
    if wanted >= approx.minimum:
        assert plan.overhead <= approx.at(wanted).overhead
    assert np.isfinite(plan.overhead)
