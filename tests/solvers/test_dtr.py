"""The online runtime: published figures, its theorem, and every score."""

from __future__ import annotations

import pytest

import remat_lab as rl
from remat_lab.solvers.dtr import SCORES, Candidate, play
from remat_lab.zoo.generators import random_layered, unit_chain


@pytest.mark.parametrize(
    ("n", "score", "total_ops"),
    [
        (50, "h-dtr", [167, 144, 136, 131]),
        (50, "lru", [422, 252, 188, 154]),
        (100, "h-dtr", [433, 327, 308, 281]),
        (100, "lru", [1982, 1175, 899, 556]),
    ],
)
def test_unit_chain_figures(n: int, score: str, total_ops: list[int]) -> None:
    chain = unit_chain(n, needs="input")
    found = []
    for budget in (8, 12, 15, 20):
        schedule = play(chain, budget, score)
        assert rl.simulate(schedule).peak <= budget
        found.append(len(schedule.ops))
    assert found == total_ops


def test_theorem_linear_ops_with_root_n_memory() -> None:
    """N layers with 2 sqrt(N) memory: O(N) ops; the constant stays below 3 (2 is no recomputation at all)."""
    for n, budget in ((250, 31), (500, 44), (1000, 63)):
        schedule = play(unit_chain(n, needs="input"), budget, "h-dtr")
        assert rl.simulate(schedule).peak <= budget
        assert len(schedule.ops) < 3.0 * n


@pytest.mark.parametrize("score", SCORES)
def test_every_score_gives_a_valid_schedule(score: str) -> None:
    graph = random_layered(40, seed=3)
    plan = rl.solve(graph, "80%", "dtr", score=score)
    assert plan.peak <= plan.budget
    assert plan.schedule.overhead >= 0


def test_python_score_and_its_errors() -> None:
    graph = random_layered(30, seed=1)

    def by_age(candidate: Candidate) -> float:
        return 1.0 / candidate.staleness

    assert (
        rl.solve(graph, "80%", "dtr", score=by_age).schedule
        == rl.solve(graph, "80%", "dtr", score="lru").schedule
    )
    with pytest.raises(rl.RematError, match="a score is a number"):
        rl.solve(graph, "80%", "dtr", score=lambda candidate: None)
    with pytest.raises(ValueError, match="score must be one of"):
        rl.solve(graph, "80%", "dtr", score="oldest")


def test_ample_budget_recomputes_nothing_and_tiny_budget_names_the_least() -> None:
    graph = random_layered(30, seed=2)
    assert rl.solve(graph, None, "dtr").overhead == 0
    with pytest.raises(rl.InfeasibleBudget) as caught:
        rl.solve(graph, 1000, "dtr")
    assert caught.value.minimum is not None
    assert rl.solve(graph, caught.value.minimum, "dtr").peak <= caught.value.minimum


@pytest.mark.slow
def test_every_score_runs_on_every_problem_of_the_suite() -> None:
    """At 90% of the plain peak: a plan that fits, or the least budget named (random layered graphs thrash)."""
    for name, problem in rl.suite().items():
        if name in ("rnn-1000", "joint-layered-1000"):  # as their smaller kin, and slow
            continue
        for score in SCORES:
            try:
                plan = rl.solve(problem, "90%", "dtr", score=score)
            except rl.InfeasibleBudget as error:
                assert name.startswith("joint-layered"), (name, score)
                assert error.minimum is not None
            else:
                assert plan.peak <= plan.budget, (name, score)
