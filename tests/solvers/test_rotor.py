"""rotor against brute force over its moves, published totals, and every other chain method."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import remat_lab as rl
from remat_lab.solvers import bptt
from remat_lab.solvers.policy import HIDDEN, INTERNAL, Policy, moves_of
from remat_lab.solvers.rotor_table import CHARGES, _table, rotor_policy, rotor_table


def all_policies(s: int, t: int, third: bool) -> Iterator[list[tuple[int, int]]]:
    """Every list of moves for stages s..t, by enumeration."""
    if s > t:
        yield []
        return
    options = [(INTERNAL, 1)]
    for k in range(s + 1, t + 1):
        options.append((HIDDEN, k - s))
        if third:
            options.append((INTERNAL, k - s + 1))
    for kind, y in options:
        for right in all_policies(s + y, t, third):
            for left in all_policies(s, s + y - 1 - kind, third):
                yield [(kind, y), *right, *left]


def random_chain(rng: np.random.Generator, L: int, keeps_input: bool) -> rl.Chain:
    hidden = rng.integers(1, 6, L)
    return rl.Chain(
        hidden=hidden,
        internal=hidden + rng.integers(0, 9, L),
        gradient=hidden,
        time=rng.integers(1, 9, L).astype(float),
        workspace=rng.integers(0, 7, L),
        internal_workspace=rng.integers(0, 12, L),
        backward_workspace=rng.integers(0, 9, L),
        keeps_input=keeps_input,
        parameter_gradient=rng.integers(0, 4, L) if rng.random() < 0.5 else 5,
    )


@pytest.mark.parametrize("L", range(1, 7))
@pytest.mark.parametrize("keeps_input", [False, True])
def test_rotor_equals_brute_force_by_simulation(L, keeps_input):
    """Every policy of the move set is simulated: at each budget the best of them is what rotor finds."""
    rng = np.random.default_rng(10 * L + keeps_input)
    for _ in range(2 if L == 6 else 6):
        chain = random_chain(rng, L, keeps_input)
        points = {}
        for moves in all_policies(0, L - 1, not keeps_input):
            schedule = Policy(chain, 0, moves_of(moves)).schedule
            trace = rl.simulate(schedule)
            points[trace.peak] = min(trace.overhead, points.get(trace.peak, np.inf))
        least = min(points)
        assert rl.minimum_budget(chain, "rotor") == least
        for budget in np.unique(np.linspace(least, rl.vanilla_peak(chain), 12).astype(int)):
            best = min(overhead for peak, overhead in points.items() if peak <= budget)
            assert rl.solve(chain, int(budget), "rotor").overhead == pytest.approx(best)
        with pytest.raises(rl.InfeasibleBudget):
            rl.solve(chain, least - 1, "rotor")


def slow_rotor(chain: rl.Chain, m: int, third: bool) -> float:
    """The recurrence as published (section C.3 of the digest), with move (3) if asked, in plain Python."""
    a = [0, *chain.hidden.tolist()]  # a[s]: input of stage s, 0-based; a[s + 1] its output
    abar, grad = chain.internal.tolist(), chain.gradient.tolist()
    uf, ub = chain.time.tolist(), chain.backward_time.tolist()
    forward, kept = chain.workspace.tolist(), chain.internal_workspace.tolist()
    back = chain.backward_workspace.tolist()
    out = lambda j: max(a[j + 1], forward[j])  # noqa: E731

    def cost(s: int, t: int, m: int) -> float:
        if s > t:
            return 0.0
        if m < 0:
            return np.inf
        keep = max(grad[t] + max(abar[s], kept[s]), grad[s] + abar[s] + back[s])
        if s == t:
            return uf[s] + ub[s] if m >= keep else np.inf
        none = max([grad[t] + out(s), *(grad[t] + a[j] + out(j) for j in range(s + 1, t))])
        best = np.inf
        if m >= keep:
            best = uf[s] + cost(s + 1, t, m - abar[s]) + ub[s]
        for k in range(s + 1, t + 1):
            if m >= none:
                best = min(best, sum(uf[s:k]) + cost(k, t, m - a[k]) + cost(s, k - 1, m))
                all_of = max(none, grad[t] + a[k] + max(abar[k], kept[k]), grad[k] + abar[k] + back[k])
                if (
                    third
                    and k > s
                    and m >= max(all_of, none if k - 1 == s else grad[t] + a[k - 1] + out(k - 1))
                ):
                    best = min(
                        best,
                        sum(uf[s : k + 1])
                        + cost(k + 1, t, m - abar[k] if k < t else m)
                        + ub[k]
                        + cost(s, k - 1, m),
                    )
        return best

    return cost(0, chain.steps - 1, m)


@pytest.mark.parametrize("moves", ["published", "all"])
def test_the_published_recurrence(moves):
    rng = np.random.default_rng(3)
    for L in range(1, 7):
        chain = random_chain(rng, L, False)
        most = int(chain.internal.sum()) + 20
        table = rotor_table(chain, 1.0, most, "rotor", moves)
        for m in range(0, most, 3):
            assert table.total[m] == pytest.approx(slow_rotor(chain, m, moves == "all")), (L, m)


def test_published_totals():
    """Unlike-stage DP with a = abar = 1 and unit times; memory excludes the input."""
    for n, totals in ((50, (375, 214, 155, 144)), (100, (1031, 521, 363, 337))):
        for m, total in zip((4, 6, 10, 12), totals):
            reading = rl.Chain(n, backward_time=1, keeps_input=True)
            assert rl.solve(reading, m, "rotor", accounting="paper").details.total_time == total
            plain = rl.Chain(n, backward_time=1)
            published = rl.solve(plain, m, "rotor", accounting="paper", moves="published")
            assert published.details.total_time == total
            assert rl.solve(plain, m, "rotor", accounting="paper").details.total_time < total


@pytest.mark.parametrize("alpha", [1, 2, 3, 5])
def test_on_uniform_chains_rotor_is_msm(alpha):
    """The mapping: "every tensor" with the same m; "stored" with one slot more, for the initial state."""
    for T in (1, 2, 5, 12, 45):
        chain = rl.Chain(T, internal=alpha, backward_time=0)
        for convention, initial in (("every tensor", 0), ("stored", 1)):
            most = 4 * alpha + 8
            total = rotor_table(chain, 1.0, most, convention).total
            msm = bptt.msm_table(T, most + 1, alpha, convention)
            for m in range(most + 1):
                want = msm[m + initial, T]
                assert total[m] == want or (total[m] == np.inf and want >= bptt.NEVER)


@pytest.mark.parametrize("parameters", [0, 6])
def test_like_and_unlike_stages_give_the_same_table(parameters):
    """The O(L^2) kernel for alike stages against the O(L^3) one on the same costs; the last may differ."""
    for keeps_input in (False, True):
        chain = rl.Chain(
            12,
            hidden=2,
            internal=[5] * 11 + [7],
            gradient=[2] * 11 + [1],
            input_gradient=2,
            backward_workspace=3,
            parameter_gradient=parameters,
            keeps_input=keeps_input,
        )
        for charges in CHARGES:
            table = rotor_table(chain, 1.0, 50, charges)
            assert table.by_length
            slow = np.full((table.cost.shape[0], 12, 12, 51), np.inf)
            _table(slow, *table.costs, table.whole_range, table.third_move, 1, len(slow[0]))
            assert np.array_equal(table.total, slow[0, 0, -1])
            for m in np.flatnonzero(np.isfinite(table.total))[::5]:
                policy = rotor_policy(chain, table, int(m))
                assert policy.total_time == table.total[m]
                if charges == "simulated":
                    assert rl.simulate(policy.schedule).peak <= m


@pytest.mark.parametrize("keeps_input", [False, True])
def test_rotor_is_never_worse_on_long_alike_chains(keeps_input):
    chain = rl.Chain(
        60,
        hidden=100,
        internal=517,
        gradient=[100] * 59 + [0],
        backward_workspace=3200,
        parameter_gradient=3000,
        keeps_input=keeps_input,
    )
    least = rl.minimum_budget(chain, "rotor")
    for budget in np.geomspace(least, rl.vanilla_peak(chain), 7).astype(int):
        own = rl.solve(chain, int(budget), "rotor").overhead
        for other in ("revolve", "chen-sqrt", "bptt-hsm", "bptt-ism", "bptt-msm"):
            try:
                assert own <= rl.solve(chain, int(budget), other).overhead
            except rl.InfeasibleBudget:
                continue


@pytest.mark.parametrize("other", ["revolve", "chen-sqrt", "bptt-hsm", "bptt-ism", "bptt-msm"])
def test_rotor_is_never_worse(other):
    rng = np.random.default_rng(5)
    for trial in range(16):
        chain = random_chain(rng, int(rng.integers(2, 12)), bool(trial % 2))
        least = rl.minimum_budget(chain, "rotor")
        for budget in np.unique(np.linspace(least, rl.vanilla_peak(chain), 6).astype(int)):
            try:
                rival = rl.solve(chain, int(budget), other)
            except rl.InfeasibleBudget:
                continue
            assert rl.solve(chain, int(budget), "rotor").overhead <= rival.overhead + 1e-9


def test_long_chains_and_frontiers():
    chain = rl.Chain(400, hidden=100, internal=517, keeps_input=True)
    plan = rl.solve(chain, "10%", "rotor")
    assert plan.overhead <= rl.solve(chain, "10%", "bptt-msm").overhead
    points = rl.frontier(rl.Chain(hidden=[5, 9, 3, 7] * 8, internal=[20, 31, 9, 40] * 8), "rotor")
    assert points.overhead[-1] == 0
    assert (np.diff(points.overhead) < 0).all()


def test_wrong_options_name_the_culprit():
    for option in ({"charges": "x"}, {"moves": "x"}):
        with pytest.raises(ValueError, match=next(iter(option))):
            rl.solve(rl.Chain(5), 5, "rotor", accounting="paper", **option)
