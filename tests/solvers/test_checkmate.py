"""The programs: published figures, agreement of independent solvers, limits and errors."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import remat_lab as rl
from remat_lab.solvers.checkmate import CONSTRAINTS, optimum, program, taken_at_its_word
from remat_lab.zoo.generators import random_layered, unit_chain

DATA = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "joint_graphs"


def joint_graph(name: str) -> rl.JointGraph:
    path = DATA / f"{name}.json"
    if not path.is_file():
        pytest.skip("the published joint graphs are not here")
    return rl.load_graph(path)


@pytest.mark.parametrize(("n", "budget", "total"), [(8, 8, 19), (8, 6, 21), (8, 5, 22), (12, 7, 32)])
def test_unit_chain_figures(n: int, budget: int, total: int) -> None:
    """Total ops of the optimum; the other published sizes are in benchmarks/milp.py."""
    pytest.importorskip("ortools")
    chain = unit_chain(n)
    plan = rl.solve(chain, budget, "checkmate", time_limit=None)
    assert (len(plan.schedule.ops), plan.status) == (total, "optimal")
    assert plan.peak <= budget
    assert plan.details.gap == pytest.approx(0.0)
    assert plan.details.bound == pytest.approx(plan.overhead)
    rounded = rl.solve(chain, budget, "checkmate-lp")
    assert rounded.peak <= budget
    assert rounded.overhead >= plan.overhead
    if n == 8:
        intervals = rl.solve(chain, budget, "retention-intervals", warm_start=0.0)
        assert (len(intervals.schedule.ops), intervals.status) == (total, "optimal")


@pytest.mark.parametrize(
    ("name", "share", "relative_cost"),
    [
        ("VGG16_256_224x224x3_train", 0.9, 1.01968),
        ("VGG19_256_224x224x3_train", 0.9, 1.0010423),
        ("vgg_unet_32_416x608x3_train", 0.8, 1.0198355),
    ],
)
def test_joint_graph_figures(name: str, share: float, relative_cost: float) -> None:
    pytest.importorskip("ortools")
    joint = joint_graph(name)
    budget = int(rl.vanilla_peak(joint) * share)
    intervals = rl.solve(joint, budget, "retention-intervals", warm_start=1.0)
    found = rl.solve(joint, budget, "local-search", seconds=1.0)
    assert intervals.peak <= budget and found.peak <= budget
    assert 1 + intervals.overhead_ratio == pytest.approx(relative_cost, abs=5e-6)
    assert intervals.status == "optimal"
    assert intervals.details.bound <= found.overhead + 1e-6


def test_vgg16_at_four_fifths_is_proven_infeasible() -> None:
    pytest.importorskip("ortools")
    joint = joint_graph("VGG16_256_224x224x3_train")
    budget = int(rl.vanilla_peak(joint) * 0.8)
    with pytest.raises(rl.InfeasibleBudget, match="proves"):
        rl.solve(joint, budget, "retention-intervals", warm_start=0.0)
    with pytest.raises(rl.InfeasibleBudget, match="the least it came to is") as caught:
        rl.solve(joint, budget, "local-search", seconds=0.5)
    assert caught.value.minimum > budget


def test_local_search_does_what_its_scan_says() -> None:
    graph = random_layered(60, seed=7)
    plan = rl.solve(graph, "75%", "local-search", seconds=1.0)
    assert plan.peak <= plan.budget
    assert plan.overhead > 0
    again = rl.solve(graph, None, "local-search")
    assert (again.overhead, again.status) == (0.0, "optimal")


def test_a_time_limit_leaves_a_bound_or_says_so() -> None:
    chain = unit_chain(16)
    try:
        plan = rl.solve(chain, 8, "checkmate", time_limit=1.0)
    except rl.InfeasibleBudget as error:
        assert "time limit" in str(error)
    else:
        assert plan.peak <= 8
        assert plan.details.bound is None or plan.details.bound <= plan.overhead + 1e-6


def test_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="binary variables"):
        rl.solve(unit_chain(300), 50, "checkmate")
    with pytest.raises(rl.InfeasibleBudget, match="no frontier-advancing schedule"):
        rl.solve(unit_chain(4), 2, "checkmate")
    for module in [name for name in sys.modules if name.split(".")[0] == "ortools"]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "ortools", None)
    with pytest.raises(rl.RematError, match=r"pip install 'remat-lab\[cp\]'"):
        rl.solve(unit_chain(4), 4, "retention-intervals")


#: Kind of constraint left out -> what becomes of the solution: None: still right.
@pytest.mark.parametrize(
    "kind, error",
    [
        ("reads", "not held"),
        ("holds", "not held"),
        ("frees", "not held"),
        ("bytes", "over"),
        ("budget", "over"),
        ("once", None),
        (None, None),
    ],
)
def test_each_constraint_is_there_for_a_reason(kind: str | None, error: str | None) -> None:
    joint, budget = unit_chain(5), 4
    whole = program(joint, budget)
    assert set(whole.kind) == set(CONSTRAINTS)
    built = whole if kind is None else whole.without(kind)
    x = optimum(built)
    assert x is not None
    schedule = taken_at_its_word(joint, built, x)
    if error == "not held":
        with pytest.raises(rl.InvalidSchedule, match=error):
            rl.simulate(schedule)
    else:
        assert (rl.simulate(schedule).peak > budget) == (error == "over")
    best = rl.solve(joint, budget, "checkmate").overhead
    assert schedule.overhead == best if error is None else schedule.overhead < best


def test_only_constraints_that_are_there_can_be_left_out() -> None:
    with pytest.raises(ValueError, match="'budgets'"):
        program(unit_chain(2), 3).without("budgets")


def test_local_search_meets_its_own_minimum() -> None:
    """Each search is another; "min" is what one of them has come to, and its plan is at hand."""
    graph = random_layered(14, seed=3).joint
    for seconds in (0.02, 0.1):
        least = rl.minimum_budget(graph, "local-search", seconds=seconds)
        assert rl.solve(graph, "min", "local-search", seconds=seconds).peak <= least < rl.vanilla_peak(graph)
        with pytest.raises(rl.InfeasibleBudget) as caught:
            rl.solve(graph, 1, "local-search", seconds=seconds)
        assert caught.value.minimum == least
