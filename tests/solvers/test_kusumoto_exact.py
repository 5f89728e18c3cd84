"""The exact DP and the families, against all sequences of thousands of small DAGs and the published graphs."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from oracles import all_lower_sets, approximate_sets, graphs, least_peaks

import remat_lab as rl
from remat_lab.solvers.canonical import sequence_of
from remat_lab.solvers.counting import count_lower_sets
from remat_lab.solvers.families import TooManyLowerSets, branches_family, exact_family, lines_family
from remat_lab.solvers.kusumoto import minimum_formula_budget, plan_sequence
from remat_lab.solvers.lower_sets import approximate_family, nodes_of

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data"
REFERENCE = DATA / "reference" / "kusumoto_planner.json"
NETWORKS = ["vgg19", "unet", "resnet50", "resnet152", "googlenet", "densenet", "pspnet"]

needs_data = pytest.mark.skipif(not REFERENCE.exists(), reason="the authors' graphs are not at hand")


def published(name):
    return rl.load_graph(DATA / "kusumoto" / f"cg_{name}.txt")


def random_graph(rng):
    n = int(rng.integers(1, 8))
    density = rng.uniform(0.1, 0.9)
    nodes = [
        {"name": f"n{i}", "memory": int(rng.integers(0, 10)), "time": int(rng.integers(0, 6))}
        for i in range(n)
    ]
    edges = [(f"n{i}", f"n{j}") for j in range(n) for i in range(j) if rng.random() < density]
    return rl.ComputationGraph.from_nodes(nodes, edges)


def parallel(branches, length):
    nodes = [{"name": "fork", "memory": 8}, {"name": "join", "memory": 8}]
    edges = []
    for b in range(branches):
        chain = [f"b{b}.{i}" for i in range(length)]
        nodes += [{"name": name, "memory": 8 + (3 * i + b) % 5} for i, name in enumerate(chain)]
        edges += list(zip(["fork", *chain], [*chain, "join"]))
    return rl.ComputationGraph.from_nodes(nodes, edges, name=f"{branches} branches of {length}")


def check_against(graph, family, sets):
    """Least budget, overheads of both objectives at several budgets, and the figures of the sequences."""
    outcomes = [
        (
            sum(graph.time[v] for v in range(len(graph)) if v not in cached),
            peak,
            graph.memory[list(cached)].sum(),
        )
        for cached, peak in least_peaks(graph, sets).items()
    ]
    least = min(peak for _, peak, _ in outcomes)
    assert minimum_formula_budget(family) == least
    for budget in {least, least + 5, 2 * least, 2 * graph.total_memory}:
        within = [(overhead, cache) for overhead, peak, cache in outcomes if peak <= budget]
        sequence = plan_sequence(family, budget)
        assert sequence.paper_overhead == min(within)[0] and sequence.paper_peak <= budget
        largest = plan_sequence(family, budget, "memory", "largest")
        assert largest.paper_overhead == max(within)[0] and largest.paper_peak <= budget
        pareto = plan_sequence(family, budget, "memory", "pareto")
        assert pareto.paper_overhead == min((cache, overhead) for overhead, cache in within)[1]
        assert pareto.paper_peak <= budget
    if least:
        with pytest.raises(rl.InfeasibleBudget) as error:
            plan_sequence(family, least - 1)
        assert error.value.minimum == least


@pytest.mark.parametrize("seed", range(10))
def test_exact_equals_all_sequences_on_300_random_graphs(seed):
    rng = np.random.default_rng(seed)
    for _ in range(300):
        graph = random_graph(rng)
        check_against(graph, exact_family(graph), all_lower_sets(graph))


@given(graphs())
def test_exact_and_its_count_on_any_graph(graph):
    sets = all_lower_sets(graph)
    assert count_lower_sets(graph) == (len(sets), True)
    family = exact_family(graph)
    assert {frozenset(nodes_of(b, len(graph)).tolist()) for b in family.bits} == set(sets)
    check_against(graph, family, sets)


@pytest.mark.parametrize("kind", ["approximate", "partial 1", "partial 2", "lines"])
def test_every_family_is_solved_exactly_over_its_own_sets(kind):
    make = {
        "approximate": approximate_family,
        "partial 1": lambda g: branches_family(g, 1),
        "partial 2": lambda g: branches_family(g, 2),
        "lines": lines_family,
    }[kind]
    rng = np.random.default_rng(5)
    for _ in range(400):
        graph = random_graph(rng)
        family = make(graph)
        sets = [frozenset(nodes_of(b, len(graph)).tolist()) for b in family.bits]
        assert set(approximate_sets(graph)) <= set(sets)
        check_against(graph, family, sets)


def partial_branches(graph, lower):
    succs = [set(graph.successors.row(v).tolist()) for v in range(len(graph))]
    maximal = [v for v in lower if not succs[v] & lower]
    return sum(len(succs[v]) == 1 and len(graph.predecessors.row(min(succs[v]))) == 1 for v in maximal)


@given(graphs())
def test_branches_lists_all_sets_with_few_partial_branches(graph):
    for most in (1, 2):
        listed = {frozenset(nodes_of(b, len(graph)).tolist()) for b in branches_family(graph, most).bits}
        assert listed == {s for s in all_lower_sets(graph) if partial_branches(graph, s) <= most}


@needs_data
@pytest.mark.parametrize("name", NETWORKS)
def test_published_graphs_to_the_byte(name):
    expected = json.loads(REFERENCE.read_text())["networks"][name]
    graph = published(name)
    assert count_lower_sets(graph) == (expected["lower_sets"], True)
    assert len(exact_family(graph)) == expected["lower_sets"]
    least = rl.minimum_budget(graph, "kusumoto-exact", accounting="paper")
    assert least == expected["exact"]["min_budget"]
    figures = expected["exact"]["at_min_budget"]

    def overhead(**options):
        plan = rl.solve(graph, least, "kusumoto-exact", accounting="paper", **options)
        assert plan.status == "optimal" and plan.peak <= least
        return plan.overhead

    assert overhead() == figures["overhead_time_centric"]
    assert overhead(objective="memory", reading="largest") == figures["overhead_memory_centric"]
    if figures["overhead_memory_centric_pareto"] is not None:
        assert overhead(objective="memory") == figures["overhead_memory_centric_pareto"]
    with pytest.raises(rl.InfeasibleBudget) as error:
        rl.solve(graph, least - 1, "kusumoto-exact", accounting="paper")
    assert error.value.minimum == least


@needs_data
@pytest.mark.parametrize(
    ("name", "sets"), [("googlenet", {1: 3123, 2: 10765}), ("pspnet", {1: 905, 2: 2884})]
)
def test_branches_come_close_with_one_partial_and_equal_with_two(name, sets):
    graph = published(name)
    least = rl.minimum_budget(graph, "kusumoto-exact", accounting="paper")
    assert {p: len(branches_family(graph, p)) for p in sets} == sets
    for factor in (1.07, 1.3, 1.75, 2.5):
        one, two, exact = (
            rl.solve(graph, int(factor * least), method, accounting="paper", **options).overhead
            for method, options in (
                ("kusumoto-branches", {}),
                ("kusumoto-branches", {"partial": 2}),
                ("kusumoto-exact", {}),
            )
        )
        assert exact == two <= one <= 1.15 * exact


def test_too_many_lower_sets_are_refused_with_their_count_and_smaller_families_answer():
    graph = parallel(8, 31)
    count = count_lower_sets(graph)
    assert count == (32**8 + 2, True)
    for ask in (rl.solve, rl.minimum_budget, rl.frontier):
        with pytest.raises(TooManyLowerSets, match=r"1\.10e\+12.*kusumoto-branches.*kusumoto-approx"):
            ask(graph, method="kusumoto-exact", accounting="paper")
    least = rl.minimum_budget(graph, "kusumoto-branches", accounting="paper")
    assert least <= rl.minimum_budget(graph, "kusumoto-approx", accounting="paper")
    plan = rl.solve(graph, 2 * least, "kusumoto-branches", accounting="paper")
    assert plan.peak <= 2 * least
    # the approximate family can keep nothing inside finished branches, however much room there is
    ample = rl.solve(graph, method="kusumoto-branches", accounting="paper").overhead
    assert 10 * ample < rl.solve(graph, accounting="paper").overhead


def test_a_bound_is_enough_to_refuse_a_tangle():
    rng = np.random.default_rng(0)
    nodes = [{"name": f"n{i}", "memory": 1} for i in range(120)]
    edges = [(f"n{i}", f"n{j}") for j in range(120) for i in range(j) if rng.random() < 0.02]
    graph = rl.ComputationGraph.from_nodes(nodes, edges)
    with pytest.raises(TooManyLowerSets) as error:
        exact_family(graph)
    assert error.value.count > 200_000


def test_wide_graphs_get_a_family_of_lines():
    graph = parallel(40, 3)
    family = branches_family(graph, 1)
    assert family.label == "lines" and len(family) < 6 * len(graph)
    sequence = plan_sequence(family, minimum_formula_budget(family))
    assert sequence_of(graph, sequence.bits).paper_peak == minimum_formula_budget(family)


@pytest.mark.parametrize("method", ["kusumoto-approx", "kusumoto-branches", "kusumoto-exact"])
@given(graph=graphs())
def test_plans_are_valid_and_keep_their_budget(method, graph):
    front = rl.frontier(graph, method)
    assert (np.diff(front.budget) > 0).all() and (np.diff(front.overhead) < 0).all()
    assert front.overhead[-1] == 0
    for plan in front:
        assert rl.simulate(plan).peak == plan.peak == plan.budget
    paper = rl.frontier(graph, method, accounting="paper")
    sets = approximate_sets(graph) if method == "kusumoto-approx" else all_lower_sets(graph)
    if method != "kusumoto-branches":
        outcomes = [
            (peak, sum(graph.time[v] for v in range(len(graph)) if v not in cached))
            for cached, peak in least_peaks(graph, sets).items()
        ]
        for budget, overhead in zip(paper.budget, paper.overhead):
            assert overhead == min(t for peak, t in outcomes if peak <= budget)
        assert len(paper) == len({min(t for p, t in outcomes if p <= peak) for peak, _ in outcomes})


def check_larger_families_are_no_worse(graph):
    approx, branches, exact = (
        rl.frontier(graph, f"kusumoto-{kind}") for kind in ("approx", "branches", "exact")
    )
    for smaller, larger in ((approx, branches), (branches, exact)):
        for budget, overhead in zip(smaller.budget.tolist(), smaller.overhead):
            assert larger.at(budget).overhead <= overhead


@given(graphs())
def test_simulated_frontiers_of_larger_families_are_no_worse(graph):
    check_larger_families_are_no_worse(graph)


@needs_data
@pytest.mark.parametrize("name", ["vgg19", "unet", "resnet50", "googlenet"])
def test_simulated_frontiers_of_larger_families_are_no_worse_on_published_graphs(name):
    check_larger_families_are_no_worse(published(name))


def test_wrong_options_are_named():
    graph = parallel(2, 2)
    with pytest.raises(ValueError, match="reading must be"):
        rl.solve(graph, method="kusumoto-exact", reading="biggest")
    with pytest.raises(ValueError, match="partial must be a whole number"):
        rl.solve(graph, method="kusumoto-branches", partial=-1)
