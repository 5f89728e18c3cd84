"""Writing a method: every form gives valid plans, and a bad answer is named."""

from __future__ import annotations

import math
import pickle
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oracles import graphs, recount_peak

import remat_lab as rl
from remat_lab.registry import _METHODS, MethodFailed, lookup


@pytest.fixture(autouse=True)
def registry(monkeypatch):
    """Methods registered by a test are forgotten after it."""
    rl.methods()
    known = dict(_METHODS)
    yield
    _METHODS.clear()
    _METHODS.update(known)


def chain(n: int) -> rl.ComputationGraph:
    names = [f"n{i}" for i in range(n)]
    return rl.ComputationGraph.from_nodes([{"name": x, "memory": 10} for x in names], pairwise(names))


def answering(answer, returns, **settings):
    """A method that returns ``answer`` whatever it is asked."""

    @rl.method("mine", returns=returns, **settings)
    def mine(view, budget):
        return answer

    return "mine"


# -- what the forms give -----------------------------------------------------------------------------------------
@settings(max_examples=50)
@given(graph=graphs(), data=st.data())
def test_any_kept_set_gives_a_schedule_that_runs(graph, data):
    kept = data.draw(st.sets(st.sampled_from(graph.names)))
    plan = rl.solve(graph, None, answering(kept, "keep"))
    assert rl.simulate(plan).peak == recount_peak(plan.schedule)
    again = {plan.schedule.joint.op_names[op] for op in np.flatnonzero(plan.schedule.run_counts > 1)}
    assert not again & kept
    assert rl.solve(graph, None, answering(set(graph.names), "keep")).overhead == 0


def test_kept_nodes_are_computed_once_and_others_are_dropped():
    graph = chain(16)
    kept = {"n3", "n7", "n11"}
    plan = rl.solve(graph, None, answering(kept, "keep"))
    again = {plan.schedule.joint.op_names[op] for op in np.flatnonzero(plan.schedule.run_counts > 1)}
    assert not again & kept
    assert again == {
        x for x in graph.names[:12] if x not in kept
    }  # nothing after n11: dropping it saves nothing
    assert plan.peak < 0.7 * rl.vanilla_peak(graph)


def test_names_indices_and_masks_are_the_same_kept_set():
    graph = chain(12)
    mask = np.zeros(12, dtype=bool)
    mask[[3, 7]] = True
    schedules = [
        rl.solve(graph, None, answering(kept, "keep")).schedule
        for kept in ({"n3", "n7"}, [3, 7], np.array([3, 7]), mask, ("n3", 7))
    ]
    assert all(schedule == schedules[0] for schedule in schedules)


@settings(max_examples=50)
@given(graph=graphs())
def test_lower_sets_give_the_canonical_strategy(graph):
    """Prefixes of the order are lower sets; the last one, all nodes, may be left out."""
    sets = [list(graph.names[:k]) for k in range(1, len(graph), 2)]
    plan = rl.solve(graph, None, answering(sets, "lower-sets"))
    assert rl.simulate(plan).peak == recount_peak(plan.schedule)
    assert plan.details.lower_sets[-1] == list(graph.names)
    assert rl.solve(graph, None, answering(plan.details, "lower-sets")).schedule == plan.schedule


def test_lower_sets_know_the_papers_formula():
    graph = chain(8)
    plan = rl.solve(graph, "100%", answering([["n0", "n1", "n2"]], "lower-sets"), accounting="paper")
    assert plan.peak == plan.details.paper_peak and plan.overhead == plan.details.paper_overhead
    with pytest.raises(rl.InfeasibleBudget, match="mine cannot fit"):
        rl.solve(graph, plan.peak - 1, "mine", accounting="paper")


def test_a_method_that_ignores_the_budget_is_held_to_it():
    graph = chain(16)
    least = rl.minimum_budget(graph, answering({"n3", "n7", "n11"}, "keep", needs_budget=False))
    assert rl.solve(graph, least, "mine").peak <= least
    with pytest.raises(rl.InfeasibleBudget, match="mine cannot fit") as error:
        rl.solve(graph, least - 1, "mine")
    assert error.value.minimum == least == rl.frontier(graph, "mine").minimum


def test_a_schedule_is_taken_as_it_is():
    graph = chain(5)

    @rl.method("mine", returns="schedule")
    def mine(joint, budget, twice: bool = False):
        """First op twice."""
        return rl.Schedule.from_ops(joint, [0] * twice + list(range(joint.n_ops)))

    assert rl.solve(graph, None, "mine", twice=True).schedule.recomputed_ops == 1
    assert rl.solve(graph, None, "mine").schedule == rl.Schedule.vanilla(graph.joint)
    assert lookup("mine").summary == "First op twice."


def test_a_score_drives_the_runtime():
    graph = chain(24)

    @rl.method("mine", returns="score")
    def mine(candidate, power: float = 1.0):
        return candidate.time / (candidate.bytes * candidate.staleness**power)

    plan = rl.solve(graph, "60%", "mine", power=0.5)
    assert plan.peak <= plan.budget and plan.schedule.recomputed_ops > 0
    assert (
        rl.solve(graph, "60%", "mine").schedule == rl.solve(graph, "60%", "dtr", score="h-dtr-local").schedule
    )
    with pytest.raises(rl.InfeasibleBudget, match="mine: ") as error:
        rl.solve(graph, 1, "mine")
    assert rl.solve(graph, error.value.minimum, "mine").peak <= error.value.minimum
    with pytest.raises(ValueError, match="no option 'speed'"):
        rl.solve(graph, "60%", "mine", speed=2)


def test_a_method_of_a_module_can_be_sent_to_another_process():
    rl.method("mine", returns="keep")(keep_every_third)
    entry = pickle.loads(pickle.dumps(lookup("mine")))
    graph = chain(9)
    solution = entry.solve(graph, rl.Request(None))
    assert solution.schedule == rl.solve(graph, None, "mine").schedule


def keep_every_third(graph, budget):
    return graph.names[::3]


# -- what is wrong is named ----------------------------------------------------------------------------------------
BAD = [
    ("keep", {"n1", "m2"}, r"'mine': the kept set has 'm2', which is no node of the graph; closest: 'n2'"),
    ("keep", [0, 6], r"node index 6; the graph's nodes are 0\.\.5"),
    ("keep", [-1], r"node index -1"),
    ("keep", "n1", r"the kept set is 'n1' \(str\); it must be a set or list"),
    ("keep", None, r"the kept set is None \(NoneType\)"),
    ("keep", [True, False], r"has True \(bool\)"),
    ("keep", [2.0], r"has 2\.0 \(float\)"),
    ("keep", np.zeros(4, dtype=bool), r"bool array of shape \(4,\); the graph has 6 nodes"),
    ("lower-sets", [["n0"], ["n1"]], r"lower set 1 lacks 'n0', which the one before it has"),
    ("lower-sets", [["n0", "n2"]], r"set 0 is no lower set: it has 'n2' without its input 'n1'"),
    ("lower-sets", [["n0"], ["n0"]], r"lower set 1 equals the one before it"),
    ("lower-sets", [["n0"], ["n0", "x"]], r"lower set 1 has 'x', which is no node"),
    ("lower-sets", ["n0"], r"lower set 0 is 'n0' \(str\)"),
    ("lower-sets", 3, r"returned 3 \(int\); a lower-set sequence is a list of lists"),
    ("lower-sets", {"a": 1}, r"\(dict\); a lower-set sequence"),
    ("schedule", [0, 1, 2], r"returned \[0, 1, 2\] \(list\); it must return a remat_lab.Schedule"),
    ("schedule", rl.Schedule.vanilla(chain(3).joint), r"a schedule on another graph"),
]  # fmt: skip


@pytest.mark.parametrize(("returns", "answer", "says"), BAD)
def test_a_bad_answer_is_named(returns, answer, says):
    with pytest.raises(MethodFailed, match=says) as error:
        rl.solve(chain(6), None, answering(answer, returns))
    assert "'mine'" in str(error.value)


def test_a_schedule_that_cannot_run_names_the_step():
    graph = chain(4)
    order = list(range(graph.joint.n_ops))
    with pytest.raises(
        rl.InvalidSchedule, match=r"'mine' returned a schedule that cannot run: step 1: 'n2' reads 'n1'"
    ) as e:
        rl.solve(graph, None, answering(rl.Schedule(graph.joint, np.array([0, 2, *order])), "schedule"))
    assert (e.value.step, e.value.op, e.value.value) == (1, "n2", "n1")


@pytest.mark.parametrize("score", [math.nan, None, "high"])
def test_a_bad_score_names_the_value(score):
    rl.method("mine", returns="score")(lambda candidate: score)
    with pytest.raises(MethodFailed, match=r"method 'mine': the score of 'n\d+' is "):
        rl.solve(chain(24), "60%", "mine")


def test_bad_registrations_are_named():
    with pytest.raises(ValueError, match=r"returns must be one of .*'keep'.*got 'kept'"):
        rl.method("mine", returns="kept")
    with pytest.raises(ValueError, match=r"view must be one of \('graph',\) for returns='keep', got 'joint'"):
        rl.method("mine", returns="keep", view="joint")
    with pytest.raises(
        TypeError, match=r"'mine' .* is called as fn\(graph, budget, \*\*options\); got fn\(graph\)"
    ):
        rl.method("mine", returns="keep")(lambda graph: [])
    with pytest.raises(TypeError, match="'depth' has no default"):
        rl.method("mine", returns="score")(lambda candidate, depth: 1)
    assert "mine" not in rl.methods().names
