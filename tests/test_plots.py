"""Figures: what they show, and that they are vectors."""

from __future__ import annotations

import io
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

sys.path.insert(0, str(Path(__file__).parent / "widgets"))

import graphs

import remat_lab as rl


@pytest.fixture(scope="module")
def plan() -> rl.Plan:
    return rl.solve(graphs.branches(), "min")


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


def svg(axes) -> str:
    out = io.StringIO()
    axes.figure.savefig(out, format="svg")
    return out.getvalue()


@pytest.mark.parametrize("x", ["step", "time"])
def test_memory_of_one_trace_is_split_by_category(plan: rl.Plan, x: str) -> None:
    axes = rl.plot_memory(plan, x=x)
    labels = axes.get_legend_handles_labels()[1]
    assert labels[:2] == ["activation", "gradient"]
    texts = [t.get_text() for t in axes.texts]
    assert "peak 56.0 MB" in texts and "budget 56.0 MB" in texts
    assert "<image" not in svg(axes)


def test_memory_of_several_on_given_axes(plan: rl.Plan) -> None:
    _, axes = plt.subplots()
    vanilla = rl.simulate(rl.solve(graphs.branches(), None, "vanilla"))
    assert rl.plot_memory({"plain": vanilla, "less": plan}, ax=axes, x="time") is axes
    assert axes.get_legend_handles_labels()[1] == ["plain", "less"]
    rl.plot_memory([vanilla, plan], ax=plt.subplots()[1])


def test_long_schedules_are_thinned_and_keep_their_peak() -> None:
    schedule = graphs.segmented(graphs.chain(2000), 40)
    axes = rl.plot_memory(schedule)
    peak = rl.simulate(schedule).peak
    assert axes.get_ylim()[1] == pytest.approx(1.12 * peak)
    assert len(svg(axes)) < 2_000_000


@pytest.mark.parametrize("shown", ["plan", "graph", "trace"])
def test_graph_marks_what_is_computed_again(plan: rl.Plan, shown: str) -> None:
    axes = rl.plot_graph({"plan": plan, "graph": plan.problem, "trace": rl.simulate(plan)}[shown], columns=20)
    labels = [t.get_text() for t in axes.get_legend().get_texts()]
    assert ("computed again" in labels) == (shown != "graph")
    assert "<image" not in svg(axes)


def test_frontier_of_several_methods(plan: rl.Plan) -> None:
    graph = plan.problem
    axes = rl.plot_frontier([rl.frontier(graph), rl.frontier(graph, "chen")])
    assert axes.get_legend_handles_labels()[1] == ["kusumoto-approx", "chen"]
    assert rl.plot_frontier(rl.frontier(graph)).get_legend() is None


def test_wrong_arguments_are_named(plan: rl.Plan) -> None:
    with pytest.raises(ValueError, match="x must be 'step' or 'time', got 'bytes'"):
        rl.plot_memory(plan, x="bytes")
    with pytest.raises(ValueError, match="nothing to plot"):
        rl.plot_memory([])
    with pytest.raises(TypeError, match="expected a Trace, Plan, Schedule or Measurement, got int"):
        rl.plot_memory(3)
