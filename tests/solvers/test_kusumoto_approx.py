"""The approximate DP against brute force over its family and against the published graphs' reference values."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from oracles import approximate_sets, every_sequence, graphs

import remat_lab as rl

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
REFERENCE = DATA / "reference" / "kusumoto_planner.json"
NETWORKS = ["vgg19", "unet", "resnet50", "resnet152", "googlenet", "densenet", "pspnet"]

needs_data = pytest.mark.skipif(not REFERENCE.exists(), reason="the authors' graphs are not at hand")


@given(graphs())
def test_equals_brute_force_over_its_family(graph):
    answers = list(every_sequence(graph, approximate_sets(graph)))
    least = min(peak for _, peak, _ in answers)
    assert rl.minimum_budget(graph, accounting="paper") == least
    for budget in {least, 2 * least, 2 * graph.total_memory}:
        within = [overhead for overhead, peak, _ in answers if peak <= budget]
        for objective, best in (("time", min), ("memory", max)):
            plan = rl.solve(graph, budget, accounting="paper", objective=objective, reading="largest")
            assert plan.overhead == best(within)
            assert plan.peak <= budget
    if least > 0:
        with pytest.raises(rl.InfeasibleBudget):
            rl.solve(graph, least - 1, accounting="paper")


@needs_data
@pytest.mark.parametrize("name", NETWORKS)
def test_published_graphs_to_the_byte(name):
    expected = json.loads(REFERENCE.read_text())["networks"][name]
    graph = rl.load_graph(DATA / "kusumoto" / f"cg_{name}.txt")
    assert (len(graph), graph.n_edges, graph.total_memory, graph.total_time) == (
        expected["nodes"],
        expected["edges"],
        expected["total_bytes"],
        expected["total_time"],
    )
    approx = expected["approx"]
    least = rl.minimum_budget(graph, accounting="paper")
    assert least == approx["min_budget"]
    figures = approx["at_min_budget"]
    time = rl.solve(graph, least, accounting="paper")
    memory = rl.solve(graph, least, accounting="paper", objective="memory", reading="largest")
    pareto = rl.solve(graph, least, accounting="paper", objective="memory")
    assert time.overhead == figures["overhead_time_centric"]
    assert memory.overhead == figures["overhead_memory_centric"]
    assert pareto.overhead == figures["overhead_memory_centric_pareto"]
    assert time.peak <= least and memory.peak <= least and pareto.peak <= least
    with pytest.raises(rl.InfeasibleBudget) as error:
        rl.solve(graph, least - 1, accounting="paper")
    assert error.value.minimum == least


@needs_data
@pytest.mark.parametrize("name", NETWORKS)
def test_published_graphs_have_valid_schedules_that_save_memory(name):
    graph = rl.load_graph(DATA / "kusumoto" / f"cg_{name}.txt")
    for method in ("kusumoto-approx", "chen"):
        plan = rl.solve(graph, "min", method)
        assert rl.simulate(plan).peak == plan.peak < rl.vanilla_peak(graph)
