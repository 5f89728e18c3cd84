"""rl.suite(): every problem under its name, made when asked for; files where they are, a note where not."""

from __future__ import annotations

from pathlib import Path

import pytest

import remat_lab as rl
from remat_lab.solvers.dtr import SCORES
from remat_lab.zoo import suite as module


@pytest.fixture
def no_files(monkeypatch):
    monkeypatch.setattr(module, "_folder", lambda data: None)


def test_without_files_the_published_graphs_are_left_out_with_a_note(no_files):
    suite = rl.suite()
    assert {"rnn-64", "lstm-64", "layered-50", "transformer-6", "unit-chain-8"} <= set(suite)
    assert "vgg19" not in suite and len(suite.missing) == 15
    assert "Left out: vgg19" in repr(suite) and "REMAT_LAB_DATA" in suite._repr_html_()
    with pytest.raises(KeyError, match="'vgg19' in the suite: no graph files: set REMAT_LAB_DATA"):
        suite["vgg19"]
    with pytest.raises(KeyError, match="'vgg' in the suite: there are unit-chain-8"):
        suite["vgg"]


def test_problems_are_made_once_and_only_when_asked_for(no_files):
    suite = rl.suite()
    assert "rnn-64" in suite and list(suite) and repr(suite)
    assert suite._made == {}
    assert suite["rnn-64"] is suite["rnn-64"]
    assert list(suite._made) == ["rnn-64"]


def test_patterns_choose_a_part(no_files):
    assert list(rl.suite("rnn-*", "transformer-2")) == ["rnn-64", "rnn-256", "rnn-1000", "transformer-2"]
    assert list(rl.suite("vgg*")) == [] and list(rl.suite("vgg*").missing) == ["vgg19"]
    with pytest.raises(ValueError, match="no problem of the suite matches 'bert'"):
        rl.suite("bert")


def test_a_folder_can_be_named(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="holds no graph files"):
        rl.suite(data=tmp_path)
    (tmp_path / "kusumoto").mkdir()
    graph = rl.ComputationGraph.from_nodes([{"name": "a", "memory": 1}], [])
    (tmp_path / "kusumoto" / "cg_vgg19.txt").write_text(graph.to_json())
    monkeypatch.setenv("REMAT_LAB_DATA", str(tmp_path))
    suite = rl.suite()
    assert len(suite["vgg19"]) == 1 and len(suite.missing) == 14
    assert "kusumoto/cg_unet.txt is not in" in suite.missing["unet"]


@pytest.mark.parametrize("name", list(rl.suite()))
def test_every_problem_can_be_planned(name):
    problem = rl.suite()[name]
    plan = rl.solve(problem, "100%", "vanilla")
    assert plan.peak == rl.vanilla_peak(problem) > 0 and len(problem.graph) >= 8


@pytest.mark.parametrize("name", list(rl.suite()))
def test_every_score_runs_on_every_problem(name):
    """At 85% of the plain peak; the published layered graphs leave no such room, and are run at all of it."""
    budget = "100%" if name.startswith("joint-layered") else "85%"
    found = rl.compare(rl.suite()[name], budget, [("dtr", {"score": s}) for s in SCORES], progress=False)
    assert found["status"].eq("feasible").all(), found["error"].to_string()
    assert (found["peak"] <= found["budget"]).all()


def test_the_published_files_are_all_found_where_they_lie():
    beside = Path(module.__file__).resolve().parents[2].parent / "shared" / "data"
    if not beside.is_dir():
        pytest.skip("no graph files beside the repository")
    assert rl.suite(data=beside).missing == {}
