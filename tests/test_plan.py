import json
import subprocess
import sys

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from oracles import graphs

import remat_lab as rl
from remat_lab.registry import _METHODS, lookup

METHODS = ["vanilla", "chen", "kusumoto-approx"]


def chain(n):
    return rl.ComputationGraph.from_nodes(
        [{"name": f"n{i}", "memory": 10} for i in range(n)], [(f"n{i}", f"n{i + 1}") for i in range(n - 1)]
    )


@pytest.mark.parametrize("name", METHODS)
@given(graph=graphs())
def test_every_plan_keeps_its_budget_and_frontier_agrees_with_solve(name, graph):
    front = rl.frontier(graph, name)
    assert (np.diff(front.budget) > 0).all() and (np.diff(front.overhead) < 0).all()
    assert front.minimum == rl.minimum_budget(graph, name)
    for budget in {front.minimum, int(front.budget[-1]), (front.minimum + int(front.budget[-1])) // 2}:
        plan = rl.solve(graph, budget, name)
        assert rl.simulate(plan).peak == plan.peak <= budget
        assert plan.overhead == front.at(budget).overhead == rl.simulate(plan).overhead


@pytest.mark.parametrize("name", METHODS)
@given(graph=graphs())
def test_an_ample_budget_recomputes_nothing(name, graph):
    plan = rl.solve(graph, "100%", name)
    assert plan.schedule.recomputed_ops == 0
    assert plan.peak <= rl.vanilla_peak(graph)


@pytest.mark.parametrize("name", METHODS)
def test_below_the_minimum_the_error_names_it(name):
    graph = chain(12)
    least = rl.minimum_budget(graph, name)
    with pytest.raises(rl.InfeasibleBudget, match=f"{least} B") as error:
        rl.solve(graph, least - 1, name)
    assert error.value.minimum == least
    with pytest.raises(rl.InfeasibleBudget) as error:
        rl.frontier(graph, name).at(least - 1)
    assert error.value.minimum == least


def test_min_is_the_least_budget_and_shares_are_of_vanilla():
    graph = chain(16)
    assert rl.solve(graph, "min").budget == rl.minimum_budget(graph)
    assert rl.solve(graph, "50%").budget == rl.vanilla_peak(graph) // 2
    assert rl.solve(graph).budget is None
    assert rl.solve(graph, "100%", accounting="paper").budget == 2 * graph.total_memory


def test_wrong_arguments_are_named():
    graph = chain(3)
    with pytest.raises(rl.UnknownMethod, match=r"'kusumoto-aprox'.*kusumoto-approx"):
        rl.solve(graph, method="kusumoto-aprox")
    with pytest.raises(ValueError, match="accounting"):
        rl.solve(graph, accounting="guess")
    with pytest.raises(ValueError, match=r"no option 'speed'.*objective"):
        rl.solve(graph, speed=9)
    with pytest.raises(ValueError, match="objective must be"):
        rl.solve(graph, objective="money")
    with pytest.raises(ValueError, match="cannot read 'plenty'"):
        rl.solve(graph, "plenty")
    with pytest.raises(ValueError, match="segments must be"):
        rl.solve(graph, method="chen", segments=0)
    with pytest.raises(TypeError, match="got str"):
        rl.solve("resnet")


def test_a_saved_plan_gives_the_same_schedule_and_peak(tmp_path):
    graph = chain(20)
    plan = rl.solve(graph, "60%")
    plan.save(tmp_path / "plan.json")
    again = rl.Plan.load(tmp_path / "plan.json", chain(20))
    assert again.schedule == plan.schedule
    assert rl.simulate(again).peak == plan.peak == again.peak
    with pytest.raises(rl.InvalidSchedule, match="another graph"):
        rl.Plan.load(tmp_path / "plan.json", chain(21))
    (tmp_path / "broken.json").write_text("{}")
    with pytest.raises(rl.InvalidSchedule, match="not a saved plan"):
        rl.Plan.load(tmp_path / "broken.json", graph)
    json.loads((tmp_path / "plan.json").read_text())


def test_a_new_method_joins_the_registry_and_gets_everything():
    @rl.method("test-keep-all", view="graph")
    def keep_all(graph, request, shout=False):
        """Keep everything."""
        return rl.Solution(rl.Schedule.vanilla(graph.joint))

    try:
        graph = chain(5)
        assert "test-keep-all" in rl.methods().names
        assert rl.solve(graph, None, "test-keep-all").peak == rl.vanilla_peak(graph)
        assert rl.minimum_budget(graph, "test-keep-all") == rl.vanilla_peak(graph)
        with pytest.raises(rl.InfeasibleBudget):
            rl.solve(graph, 1, "test-keep-all")
        assert "Keep everything." in repr(rl.methods()) and "shout=False" in rl.methods()._repr_html_()
    finally:
        del _METHODS["test-keep-all"]
    with pytest.raises(rl.UnknownMethod):
        lookup("test-keep-all")


def test_a_method_that_returns_nonsense_is_told():
    @rl.method("test-nonsense")
    def nonsense(graph, request):
        """Return nothing of use."""
        return 42

    try:
        with pytest.raises(rl.RematError, match="returned int"):
            rl.solve(chain(3), None, "test-nonsense")
    finally:
        del _METHODS["test-nonsense"]


@pytest.mark.parametrize(
    "name", ["checkmate", "checkmate-lp", "local-search", "retention-intervals", "oracle", "dtr"]
)
def test_no_bytes_at_all_is_a_budget_too(name):
    if name == "retention-intervals":
        pytest.importorskip("ortools")
    short = {"seconds": 0.1, "warm_start": 0.1}
    options = {key: value for key, value in short.items() if key in lookup(name).options}
    with pytest.raises(rl.InfeasibleBudget, match=name):
        rl.solve(chain(3), 0, name, **options)


@pytest.mark.parametrize(
    ("key", "value"), [("method", None), ("peak", "x"), ("overhead", []), ("actions", {}), ("actions", ["x"])]
)
def test_a_saved_plan_with_a_wrong_entry_is_refused_by_name(key, value, tmp_path):
    path = tmp_path / "plan.json"
    graph = chain(3)
    path.write_text(json.dumps({**rl.solve(graph).to_dict(), key: value}))
    with pytest.raises(rl.InvalidSchedule, match=key):
        rl.Plan.load(path, graph)


@pytest.mark.parametrize(("key", "change"), [("peak", -10), ("peak", 10), ("budget", -(10**6))])
def test_a_saved_plan_is_held_to_its_schedule(key, change, tmp_path):
    path = tmp_path / "plan.json"
    graph = chain(20)
    saved = rl.solve(graph, "60%").to_dict()
    path.write_text(json.dumps({**saved, key: saved[key] + change}))
    with pytest.raises(
        rl.InvalidSchedule, match=rf"claims a {key} of .*its schedule peaks at {saved['peak']} B"
    ):
        rl.Plan.load(path, graph)
    path.write_text(json.dumps({**saved, "actions": saved["actions"][1:]}))
    with pytest.raises(rl.InvalidSchedule, match=r"plan\.json cannot run: "):
        rl.Plan.load(path, graph)


def test_a_saved_plan_takes_the_times_of_the_graph_it_is_loaded_for(tmp_path):
    path = tmp_path / "plan.json"
    saved = rl.solve(chain(20), "60%", "kusumoto-exact", accounting="paper")
    saved.save(path)
    assert rl.Plan.load(path, chain(20)).peak == saved.peak  # the formula's, which no schedule shows
    rl.solve(chain(20), "60%").save(path)
    slower = chain(20)
    slower = rl.ComputationGraph.from_nodes(
        [{"name": n, "memory": int(m), "time": 3.0} for n, m in zip(slower.names, slower.memory)],
        [(slower.names[u], slower.names[v]) for u, v in slower.edges.tolist()],
    )
    loaded = rl.Plan.load(path, slower)
    assert loaded.overhead == rl.simulate(loaded).overhead > rl.Plan.load(path, chain(20)).overhead > 0
    assert (loaded.status, loaded.bound) == ("feasible", None)


def test_a_method_of_a_built_in_name_stays_whenever_it_came():
    script = """
import remat_lab as rl

@rl.method("vanilla", view="joint")
def mine(joint, request):
    "My own."
    return rl.Solution(rl.Schedule.vanilla(joint))

for _ in range(2):
    assert {m.name: m.summary for m in rl.methods()}["vanilla"] == "My own."
    import remat_lab.solvers.vanilla  # on its own it registers nothing over it, either
"""
    subprocess.run([sys.executable, "-c", script], check=True)


@pytest.mark.parametrize(
    "call",
    [
        lambda: rl.solve(nx.DiGraph([(1, 2)]), "min"),
        lambda: rl.compare(3, ["min"], progress=False),
        lambda: rl.vanilla_peak(3),
        lambda: rl.simulate(chain(3)),
        lambda: rl.Stepper(None),
        lambda: rl.ComputationGraph.from_networkx(3),
        lambda: rl.method(lambda graph, budget: ()),
    ],
)
def test_an_argument_of_another_kind_is_a_type_error_that_says_so(call):
    with pytest.raises(TypeError, match=r"got|needs"):
        call()


def test_checkmate_lp_makes_up_no_peak_where_its_program_has_no_solution():
    with pytest.raises(rl.InfeasibleBudget, match="none was found at all"):
        rl.solve(chain(3), 3, "checkmate-lp")
