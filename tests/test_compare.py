"""compare(), its picture and leaderboard, and remat-lab compare."""

from __future__ import annotations

import io
import json
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

import remat_lab as rl
from remat_lab.cli import main
from remat_lab.comparison import COLUMNS, beaten_bounds
from remat_lab.registry import _METHODS

FIGURES = [name for name in COLUMNS if name not in ("plan", "solve_seconds")]
QUICK = ["vanilla", "chen", "kusumoto-approx"]


@pytest.fixture(autouse=True)
def registry():
    """Methods registered by a test are forgotten after it."""
    rl.methods()
    known = dict(_METHODS)
    yield
    _METHODS.clear()
    _METHODS.update(known)


@pytest.fixture(scope="module")
def graph():
    names = [f"n{i}" for i in range(24)]
    return rl.ComputationGraph.from_nodes(
        [{"name": x, "memory": 10 + i % 3, "time": 1 + i % 2} for i, x in enumerate(names)], pairwise(names)
    )


@pytest.fixture(scope="module")
def frame(graph):
    return rl.compare(graph, ["30%", "60%", None], QUICK, progress=False)


def test_every_method_has_a_row_per_budget(graph, frame):
    assert list(frame.columns) == list(COLUMNS)
    assert list(frame["method"]) == QUICK * 3
    for row in frame.itertuples():
        if row.plan is None:
            assert row.status == "infeasible" and "cannot fit" in row.error and pd.isna(row.peak)
        else:
            assert row.error is None and row.peak == rl.simulate(row.plan).peak
            assert row.overhead == row.plan.overhead and row.status in ("optimal", "feasible")
            assert pd.isna(row.budget) or row.peak <= row.budget
    assert list(frame["budget"].dropna().unique()) == [rl.vanilla_peak(graph) * s // 10 for s in (3, 6)]
    assert frame["peak"].dtype == frame["budget"].dtype == "Int64" and frame["gap"].dtype == float


def test_the_gap_is_to_the_best_plan_that_fits(graph):
    """A plan made for a smaller budget counts too."""

    @rl.method("worse with more", returns="keep")
    def worse(graph, budget):
        return graph.names[::2] if budget == 180 else graph.names[::4]

    frame = rl.compare(graph, [180, 220, None], {"odd": "worse with more", "none": "vanilla"}, progress=False)
    odd = frame[frame["method"] == "odd"].set_index(frame.loc[frame["method"] == "odd", "budget"].fillna(-1))
    assert odd.loc[180, "gap"] == 0
    assert odd.loc[220, "gap"] == odd.loc[220, "overhead_ratio"] - odd.loc[180, "overhead_ratio"] > 0
    assert odd.loc[-1, "gap"] == odd.loc[-1, "overhead_ratio"] > 0  # vanilla fits and recomputes nothing
    assert (frame["gap"].dropna() >= 0).all()


def test_what_goes_wrong_is_a_row(graph):
    @rl.method("breaks", returns="keep")
    def breaks(graph, budget):
        return {}[budget]

    @rl.method("misspells", returns="keep")
    def misspells(graph, budget):
        return ["n99x"]

    @rl.method("lacks", returns="keep")
    def lacks(graph, budget):
        raise ImportError("lacks needs a solver: pip install solver")

    names = ["breaks", "misspells", "lacks", "bptt-hsm", "vanilla"]
    found = rl.compare(graph, ["60%"], names, progress=False).set_index("method")
    assert list(found["status"]) == ["failed", "failed", "unavailable", "failed", "infeasible"]
    assert found.loc["breaks", "error"].startswith("KeyError: ")
    assert "'n99x', which is no node" in found.loc["misspells", "error"]
    assert found.loc["lacks", "error"] == "lacks needs a solver: pip install solver"
    assert "plans a Chain" in found.loc["bptt-hsm", "error"]
    assert found["gap"].isna().all() and found["solve_seconds"].notna().all()


def test_wrong_arguments_are_errors_not_rows(graph):
    with pytest.raises(rl.UnknownMethod, match="chenn"):
        rl.compare(graph, "60%", "chenn")
    with pytest.raises(ValueError, match="no option 'speed'"):
        rl.compare(graph, "60%", [("chen", {"speed": 1})])
    with pytest.raises(ValueError, match="cannot read 'plenty'"):
        rl.compare(graph, ["60%", "plenty"], QUICK)
    with pytest.raises(ValueError, match="no budgets"):
        rl.compare(graph, [], QUICK)
    with pytest.raises(ValueError, match="'chen' is given twice"):
        rl.compare(graph, "60%", ["chen", "chen"])
    with pytest.raises(TypeError, match="a name or a pair"):
        rl.compare(graph, "60%", [3])


def test_options_and_labels(graph):
    pairs = [("kusumoto-approx", {"objective": "memory"}), "kusumoto-approx"]
    found = rl.compare(graph, "60%", pairs, progress=False)
    assert list(found["method"]) == ["kusumoto-approx(objective='memory')", "kusumoto-approx"]
    found = rl.compare(graph, "min", {"k": pairs[0], "c": "chen"}, progress=False)
    assert list(found["method"]) == ["k", "c"]
    assert list(found["budget"]) == list(found["peak"])


def test_a_time_limit_reaches_the_methods_that_take_one(graph):
    @rl.method("slow", returns="schedule")
    def slow(joint, budget, time_limit: float = 1e9):
        assert time_limit == 7
        return rl.Schedule.vanilla(joint)

    @rl.method("searches", returns="schedule")
    def searches(joint, budget, seconds: float = 3.0):
        assert seconds == 3
        return rl.Schedule.vanilla(joint)

    found = rl.compare(graph, None, ["slow", "searches", "chen"], time_limit=7, progress=False)
    assert found["error"].isna().all()


def test_all_methods_that_can_plan_a_chain_are_tried_by_default():
    chain = rl.Chain(5, hidden=10, internal=40)  # small enough for the oracle
    found = rl.compare(chain, ["60%"], time_limit=1, progress=False)
    assert list(found["method"]) == rl.methods(chain).names
    assert not (found["status"] == "failed").any(), found[["method", "error"]].to_string()


def test_a_beaten_bound_is_said(graph):
    @rl.method("boasts", view="joint")
    def boasts(joint, request):
        return rl.Solution(rl.Schedule.vanilla(joint), bound=99.0)

    with pytest.warns(RuntimeWarning, match="boasts recomputes 0 .* proved that 99 is needed"):
        found = rl.compare(graph, None, ["boasts"], progress=False)
    assert len(beaten_bounds(found)) == 1


def test_no_method_beats_what_is_proven_on_a_small_problem():
    """compare() warns if one does, and a warning is an error here."""
    found = rl.compare(rl.suite()["unit-chain-8"], ["60%", "80%"], time_limit=2, progress=False)
    assert not (found["status"] == "failed").any(), found[["method", "error"]].to_string()
    assert rl.leaderboard(found).proven == (2, 2)


# -- picture and leaderboard ---------------------------------------------------------------------------------------
def test_the_picture_has_a_line_per_method(frame):
    axes = rl.plot_comparison(frame)
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["vanilla (no plan)", *QUICK[1:]]
    assert len(axes.lines) == 3 and axes.get_ylabel() == "overhead (%)"
    plt.close("all")
    with pytest.raises(ValueError, match="no plan within a budget"):
        rl.plot_comparison(frame[frame["budget"].isna()])
    with pytest.raises(ValueError, match="of 3 problems"):
        rl.plot_comparison(frame.assign(problem=list("abcabcabc")))


def test_percents_are_shown_as_given_beside_the_bytes(graph, tmp_path, capsys):
    frame = rl.compare(graph, ["60%", " 80% ", "min", 200, None], "chen", progress=False)
    assert list(frame["asked"]) == ["60%", "80%", "min", None, None]
    assert list(frame["budget"][:2]) == [rl.vanilla_peak(graph) * share // 100 for share in (60, 80)]
    top = rl.plot_comparison(frame).child_axes[0]
    assert list(top.get_xticks()) == list(frame["budget"][:2])
    assert [text.get_text() for text in top.get_xticklabels()] == ["60%", "80%"]
    assert not rl.plot_comparison(frame[frame["asked"].isna()]).child_axes
    plt.close("all")
    path = tmp_path / "graph.json"
    path.write_text(graph.to_json())
    main(["compare", str(path), "--budgets", "60%", "min", "200", "none", "--methods", "chen", "--quiet"])
    text = capsys.readouterr().out
    least = rl.minimum_budget(graph, "chen")
    assert f"60% ({frame['budget'][0]} B)" in text and f"min ({least} B)" in text
    assert " 200 B " in text and " none " in text


def test_the_leaderboard_ranks_by_plans_then_gap(graph):
    rl.method("every second", returns="keep")(lambda graph, budget: graph.names[::2])
    frame = rl.compare(graph, ["60%", None], [*QUICK, "every second"], progress=False)
    board = rl.leaderboard(frame)
    assert list(board.table["plans"]) == [2, 2, 2, 1] and board.table["method"].iloc[-1] == "vanilla"
    assert board.table["mean_gap"].iloc[:3].is_monotonic_increasing
    assert list(board.table["method"]).index("every second") == 2
    assert board.plan("every second").schedule.recomputed_ops > 0
    assert board.play("every second").trace.method == "every second"
    html, text = board._repr_html_(), repr(board)
    assert html.count("<svg") == 4 and "every second" in html and "every second" in text
    assert "proven optimal in 0 of 2 cells" in text
    with pytest.raises(ValueError, match="no method 'other'"):
        board.plan("other")
    with pytest.raises(ValueError, match="'vanilla' has no plan: vanilla cannot fit"):
        rl.leaderboard(frame[frame["budget"].notna()]).plan("vanilla")
    with pytest.raises(ValueError, match="no column 'gap'"):
        rl.leaderboard(frame.drop(columns="gap"))


def test_the_leaderboard_says_what_is_proven(graph):
    @rl.method("proves", view="joint")
    def proves(joint, request):
        return rl.Solution(rl.Schedule.vanilla(joint), status="optimal", bound=0.0)

    assert rl.leaderboard(rl.compare(graph, ["60%", None], ["proves", "chen"], progress=False)).proven == (
        1,
        2,
    )


# -- command line --------------------------------------------------------------------------------------------------
def test_command_prints_csv_json_and_a_table(graph, frame, tmp_path, capsys):
    path = tmp_path / "graph.json"
    path.write_text(graph.to_json())
    asked = ["compare", str(path), "--budgets", "30%", "60%", "none", "--methods", *QUICK, "--quiet"]

    assert main([*asked, "--csv"]) == 0
    printed = pd.read_csv(io.StringIO(capsys.readouterr().out))
    assert list(printed.columns) == [name for name in COLUMNS if name != "plan"]
    np.testing.assert_allclose(printed["overhead"], frame["overhead"])
    assert list(printed["error"].dropna()) == list(frame["error"].dropna())

    assert main([*asked, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["peak"] for row in rows] == [None if pd.isna(x) else x for x in frame["peak"]]

    assert main([*asked, "--plot", str(tmp_path / "picture.png")]) == 0
    text = capsys.readouterr().out
    assert "mean gap" in text and "infeasible: vanilla cannot fit" in text
    assert (tmp_path / "picture.png").stat().st_size > 1000

    assert main(["compare", str(path), "--budgets", "60%", "--methods", "chenn"]) == 2
    assert "unknown method 'chenn'" in capsys.readouterr().err
