"""Chain policies against the published tables, closed forms, other implementations and brute force."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

import remat_lab as rl
from remat_lab.solvers import bptt, chen_chains, policy, revolve

#: Forward-step counts C(t, m), t = 1..20 and t = 1000, in the conventions of Gruslys et al.
REFERENCE_FILE = Path(__file__).resolve().parents[2].parent / "shared" / "data" / "reference" / "bptt.json"
CONVENTION = {"h": "stored", "a": "every tensor"}


def brute_force(t: int, m: int, hidden: int | None, internal: int | None, base: str) -> float:
    """C(t, m) by the recurrences alone, every y tried. ``hidden``/``internal``: what a push costs, or None."""

    @lru_cache(None)
    def cost(t: int, m: int) -> float:
        if t == 0:
            return 0
        need = {"stored": 1, "every tensor": internal or 1}[base]
        if m < need:
            return np.inf
        best = t * (t + 1) / 2
        for y in range(1, t + 1):
            if hidden and y < t:
                best = min(best, y + cost(t - y, m - hidden) + cost(y, m))
            if internal and m >= internal:
                best = min(best, y + cost(t - y, m - internal) + cost(y - 1, m))
        return best

    return cost(t, m)


# -- costs ---------------------------------------------------------------------------------------------------
@pytest.mark.skipif(not REFERENCE_FILE.exists(), reason="the reference values are not at hand")
def test_the_published_tables():
    reference = json.loads(REFERENCE_FILE.read_text())
    for m, row in reference["HSM"].items():
        assert [bptt.hsm_steps(t, int(m)) for t in range(1, 21)] == row
        assert bptt.hsm_table(20, int(m))[int(m), 1:].tolist() == row
    for m, row in reference["ISM"].items():
        assert [bptt.ism_steps(t, int(m)) for t in range(1, 21)] == row
        assert bptt.ism_table(20, int(m))[int(m), 1:].tolist() == row
    for label, row in reference["MSM"].items():
        kind, alpha, m = label.split()
        table = bptt.msm_table(20, int(m[2:]), int(alpha[6:]), CONVENTION[kind])
        assert table[-1, 1:].tolist() == row, label
    for m, cost in reference["T1000"]["HSM"].items():
        assert bptt.hsm_steps(1000, int(m)) == cost == bptt.hsm_table(1000, 100)[int(m), 1000]
    for m, cost in reference["T1000"]["ISM"].items():
        assert bptt.ism_steps(1000, int(m)) == cost == bptt.ism_table(1000, 100)[int(m), 1000]
    for pair, cost in reference["revolve_forward_steps"].items():
        length, snapshots = map(int, pair.split(","))
        assert revolve.extra_advances(length, snapshots) + length == cost


def test_closed_forms_equal_the_dynamic_programs():
    hsm, ism = bptt.hsm_table(400, 60), bptt.ism_table(400, 60)
    for m in range(1, 61):
        assert [bptt.hsm_steps(t, m) for t in range(401)] == hsm[m].tolist()
        assert [bptt.ism_steps(t, m) for t in range(401)] == ism[m].tolist()
    for convention in bptt.CONVENTIONS:  # the full minimum over y, no monotonicity used
        assert (bptt.msm_table(400, 60, 1, convention)[1:] == ism[1:]).all()


@pytest.mark.parametrize("t", range(1, 8))
def test_every_table_equals_brute_force(t):
    for m in range(1, 8):
        assert bptt.hsm_table(t, m)[m, t] == brute_force(t, m, 1, None, "stored")
        assert bptt.ism_table(t, m)[m, t] == brute_force(t, m, None, 1, "every tensor")
        for alpha in (1, 2, 3, 5):
            for convention in bptt.CONVENTIONS:
                want = brute_force(t, m, 1, alpha, convention)
                got = bptt.msm_table(t, m, alpha, convention)[m, t]
                assert got == want or (got >= bptt.NEVER and want == np.inf)


def test_brute_force_over_every_schedule_of_stored_states():
    """Least advances over *all* ways to store and drop hidden states (no recurrence), t <= 6: Revolve's p."""
    for t in range(1, 7):
        for m in range(1, 4):
            assert least_advances(t, m) == revolve.extra_advances(t, m), (t, m)


def least_advances(t: int, m: int) -> int:
    """Shortest path over (stored set, position of the moving state, steps left to reverse)."""
    import heapq

    start = (frozenset([0]), 0, t)
    best, heap, count = {start: 0}, [(0, 0, start)], 0
    while heap:
        cost, _, (stored, at, left) = heapq.heappop(heap)
        if cost > best[(stored, at, left)]:
            continue
        if left == 0:
            return cost
        moves = [(cost, (stored, s, left)) for s in stored if s < left]  # restore
        moves += [(cost, (stored - {s}, at, left)) for s in stored]
        if 0 <= at and at + 1 < left:
            moves.append((cost + 1, (stored, at + 1, left)))
        if 0 <= at and at + 1 == left:  # take the step with its internal state and reverse it
            moves.append((cost, (frozenset(s for s in stored if s < left - 1), -1, left - 1)))
        if at >= 0 and len(stored) < m:
            moves.append((cost, (stored | {at}, at, left)))
        for cost_, state in moves:
            if cost_ < best.get(state, 10**9):
                best[state] = cost_
                count += 1
                heapq.heappush(heap, (cost_, count, state))
    raise AssertionError("no schedule")


def test_revolves_extra_advances():
    for length, published in {
        50: {2: 285, 3: 180, 5: 122, 8: 95, 10: 88, 12: 86, 20: 78},
        100: {2: 845, 3: 490, 5: 316, 8: 245, 10: 222, 12: 195, 20: 178},
    }.items():
        chain = rl.Chain(length)
        for snapshots, advances in published.items():
            plan = rl.solve(chain, snapshots, "revolve", accounting="paper")
            assert plan.details.extra_advances == advances == revolve.extra_advances(length, snapshots)


@pytest.mark.parametrize("length", [1, 2, 3, 5, 10, 17, 50, 101])
def test_revolve_equals_checkpoint_schedules(length):
    package = pytest.importorskip("checkpoint_schedules")
    for snapshots in (1, 2, 3, 4, 6, 10, 20):
        if snapshots > length:
            continue
        steps = 0
        schedule = package.Revolve(length, snapshots)
        for action in schedule:
            if isinstance(action, package.Forward):
                steps += action.n1 - action.n0
            if isinstance(action, package.EndReverse):
                break
        plan = rl.solve(rl.Chain(length), snapshots, "revolve", accounting="paper")
        assert plan.details.forward_steps == steps, (length, snapshots)


def test_the_headline():
    """Gruslys et al.: length 1000, 95% of memory saved for one third more time, backward = two forwards."""
    chain = rl.Chain(1000)
    plan = rl.solve(chain, 50, method="bptt-ism", accounting="paper")
    assert plan.details.forward_steps == 1950
    assert plan.details.time_ratio == pytest.approx(1.317, abs=5e-4) == 1 + plan.overhead_ratio
    assert rl.solve(chain, "5%", "bptt-ism", accounting="paper").details.forward_steps == 1950
    for alpha in (1, 2, 3, 5):
        mixed = rl.solve(rl.Chain(1000, internal=alpha), "5%", "bptt-msm", accounting="paper")
        assert mixed.budget == 50 * alpha
        assert mixed.details.forward_steps == 1950
    assert rl.solve(chain, 50, "bptt-hsm", accounting="paper").details.forward_steps == 2948


# -- policies ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("t", [1, 2, 3, 4, 7, 12, 31, 64, 150])
def test_policies_run_exactly_c_steps_and_hold_no_more_than_m(t):
    for m in (1, 2, 3, 4, 7, 20):
        chain = rl.Chain(t)
        for name, convention, cost in (
            ("bptt-hsm", "stored", bptt.hsm_steps),
            ("revolve", "stored", bptt.hsm_steps),
            ("bptt-ism", "every tensor", bptt.ism_steps),
        ):
            plan = rl.solve(chain, m, name, accounting="paper")
            check(plan, chain, cost(t, m), m, convention, 1)
        for alpha in (1, 2, 3, 5):
            chain = rl.Chain(t, internal=alpha)
            for convention in bptt.CONVENTIONS:
                units = m * alpha
                plan = rl.solve(chain, units, "bptt-msm", accounting="paper", convention=convention)
                cost = bptt.msm_table(t, units, alpha, convention)[units, t]
                check(plan, chain, cost, units, convention, alpha)


def check(plan, chain, cost, m, convention, alpha):
    schedule = plan.schedule
    assert plan.details.forward_steps == cost
    assert int(schedule.run_counts[: 2 * chain.steps].sum()) == cost
    assert (schedule.run_counts[2 * chain.steps :] == 1).all()
    assert plan.overhead == cost - chain.steps == rl.simulate(schedule).overhead
    assert policy.held(schedule, chain, 1, alpha)[convention] <= m


def test_memory_is_used_up_where_more_would_help():
    for t, m in ((100, 5), (200, 9)):
        chain = rl.Chain(t)
        hsm = rl.solve(chain, m, "bptt-hsm", accounting="paper").schedule
        ism = rl.solve(chain, m, "bptt-ism", accounting="paper").schedule
        assert policy.held(hsm, chain)["stored"] == m
        assert policy.held(ism, chain)["every tensor"] == m


def test_chen_on_chains():
    for alpha, segments, units, steps in ((1, 28, 63, 1964), (2, 40, 89, 1975), (5, 67, 141, 1985)):
        chain = rl.Chain(1000, internal=alpha)
        plan = rl.solve(chain, units, "chen-sqrt", accounting="paper")
        assert (plan.details.forward_steps, plan.peak) == (steps, units)
        assert chen_chains.sqrt_policy(chain, segments).forward_steps == steps
        assert policy.held(plan.schedule, chain, 1, alpha)["every tensor"] <= units
        less = {1: 44, 2: 72, 5: 121}[alpha]
        assert bptt.msm_table(1000, less, alpha)[less, 1000] <= steps
    halving = rl.solve(rl.Chain(1000), None, "chen-recursive", accounting="paper")
    assert (halving.details.forward_steps, halving.peak) == (5932, 11)
    assert chen_chains.halving_steps(1000) == 5932
    assert policy.held(halving.schedule, rl.Chain(1000))["stored"] <= 11
    assert bptt.hsm_steps(1000, 10) == 4636


@pytest.mark.parametrize("name", ["bptt-hsm", "bptt-ism", "bptt-msm", "revolve", "chen-sqrt"])
def test_simulated_budgets_are_kept_and_used(name):
    chain = rl.Chain(60, hidden=10, internal=47, gradient=10, backward_workspace=20, keeps_input=True)
    least = rl.minimum_budget(chain, name)
    overheads = []
    for budget in np.linspace(least, rl.vanilla_peak(chain), 9).astype(int):
        plan = rl.solve(chain, int(budget), name)
        assert plan.peak <= budget
        overheads.append(plan.overhead)
    assert overheads == sorted(overheads, reverse=True)
    with pytest.raises(rl.InfeasibleBudget) as refused:
        rl.solve(chain, least // 2, name)
    assert refused.value.minimum is not None
    points = rl.frontier(chain, name)
    assert (np.diff(points.overhead) < 0).all() and (np.diff(points.budget) > 0).all()


def test_long_chains_by_closed_form():
    assert bptt.ism_steps(100_000, 100) == 294_750
    plan = rl.solve(rl.Chain(100_000), 100, "bptt-ism", accounting="paper")
    assert plan.details.forward_steps == 294_750
    assert plan.solve_seconds < 5


def test_table_times():
    import time

    for make in (
        lambda: bptt.hsm_table(1000, 100),
        lambda: bptt.ism_table(1000, 100),
        lambda: bptt.msm_table(1000, 100, 3),
    ):
        make()
        started = time.perf_counter()
        make()
        assert time.perf_counter() - started < 0.5


# -- chains --------------------------------------------------------------------------------------------------
def test_a_chains_joint_graph():
    chain = rl.Chain(3, hidden=[2, 3, 4], internal=[5, 5, 6], time=[1, 2, 3], parameter_gradient=7)
    joint = chain.joint
    assert joint.op_names == (
        *("hidden 1", "internal 1", "hidden 2", "internal 2", "hidden 3", "internal 3"),
        *("seed", "backward 3", "backward 2", "backward 1"),
    )
    assert joint.plain_time == 1 + 2 + 3 + 2 * (1 + 2 + 3)
    vanilla = rl.solve(chain, None, "vanilla")
    assert vanilla.overhead == 0
    # While backward 3 runs: all internal states, its gradient, the gradient it writes, the parameters'.
    assert vanilla.peak == 16 + 4 + 3 + 7
    again = rl.JointGraph.from_json(joint.to_json())
    assert again.fingerprint() == joint.fingerprint() != joint.plain.fingerprint()


def test_alternatives_make_a_value_whole_and_count_as_recomputation():
    joint = rl.Chain(2).joint
    schedule = rl.Schedule.from_ops(joint, [0, 3, 4, 5, 1, 6])  # hidden 1, internal 2, ..., internal 1
    assert schedule.overhead == 1
    assert schedule.recomputed_ops == 1
    assert [schedule[i].name for i in np.flatnonzero(schedule.is_recomputation)] == ["internal 1"]
    rl.simulate(schedule)
    with pytest.raises(rl.InvalidSchedule, match="reads 'h1'"):
        rl.simulate(rl.Schedule(joint, np.array([3])))


def test_graph_methods_plan_chains_too(tmp_path):
    chain = rl.Chain(30, hidden=2, internal=5, keeps_input=True)
    plan = rl.solve(chain, "50%", "kusumoto-approx")
    assert plan.peak <= rl.vanilla_peak(chain) // 2
    plan.save(tmp_path / "plan.json")
    assert rl.Plan.load(tmp_path / "plan.json", chain).peak == plan.peak
    ism = rl.solve(chain, 5, "bptt-ism", accounting="paper")
    ism.save(tmp_path / "ism.json")
    assert rl.Plan.load(tmp_path / "ism.json", chain).schedule == ism.schedule
    assert "slots" in repr(ism) and "slots" not in repr(plan)


@pytest.mark.parametrize(
    ("arguments", "culprit"),
    [
        ({"steps": 0}, "at least one step"),
        ({}, "a number of steps"),
        ({"steps": 3, "hidden": [1, 2]}, "hidden has 2 entries"),
        ({"hidden": [1, -2]}, "step 2 has hidden -2"),
        ({"steps": 2, "time": float("nan")}, "step 1 has time nan"),
        ({"steps": 2, "hidden": 4, "internal": 3}, "less than its hidden state"),
        ({"steps": 2, "hidden": 1.5}, "whole bytes"),
        ({"steps": 2, "time_unit": "h"}, "time_unit"),
    ],
)
def test_wrong_chains_name_the_culprit(arguments, culprit):
    with pytest.raises(rl.InvalidGraph, match=culprit):
        rl.Chain(**arguments)


def test_wrong_questions_name_the_culprit():
    with pytest.raises(ValueError, match="counts slots"):
        rl.solve(rl.Chain(10), "3 kB", "bptt-ism", accounting="paper")
    with pytest.raises(ValueError, match="convention"):
        rl.solve(rl.Chain(10), 3, "bptt-msm", convention="x")
    with pytest.raises(rl.InfeasibleBudget) as refused:
        rl.solve(rl.Chain(10, internal=4), 3, "bptt-msm", accounting="paper")
    assert refused.value.minimum == 4
    with pytest.raises(TypeError, match="Chain"):
        rl.solve(rl.Chain(3).graph, 3, "bptt-ism")


def test_slots_are_not_drawn_as_bytes() -> None:
    plan = rl.solve(rl.Chain(20), 3, "revolve", accounting="paper")
    assert plan.budget == 3 and rl.simulate(plan).budget is None
