"""The views' Python side: what is sent, what is checked, what stands in for a widget, and an orderly end."""

from __future__ import annotations

import gc
import re
import threading
import weakref
from importlib.resources import files

import graphs
import ipywidgets
import numpy as np
import pytest
import traitlets

import remat_lab as rl
from remat_lab.widgets import base
from remat_lab.widgets.film import film, pack, strip, unpack


@pytest.fixture(scope="module")
def plan() -> rl.Plan:
    return rl.solve(graphs.branches(), "min")


def test_packet_gives_back_what_went_in() -> None:
    packet = pack(
        {"a": "é", "n": 1}, {"x": ("i4", np.arange(3)), "y": ("f8", np.eye(2)), "z": ("u1", np.ones(3, bool))}
    )
    header, arrays = unpack(packet)
    assert header == {"a": "é", "n": 1}
    assert arrays["x"].tolist() == [0, 1, 2]
    assert arrays["y"].tolist() == [1, 0, 0, 1]
    assert arrays["z"].tolist() == [1, 1, 1]


def test_film_holds_the_trace_exactly(plan: rl.Plan) -> None:
    trace = rl.simulate(plan)
    header, arrays = unpack(film(trace))
    assert np.array_equal(arrays["bytes"], trace.bytes)
    assert np.array_equal(arrays["during"], trace.during)
    assert np.array_equal(arrays["actions"], trace.schedule.actions)
    assert header["peak"] == trace.peak and header["peak_step"] == trace.peak_step
    assert header["op_names"] == list(trace.joint.op_names)


def test_a_resnet152_sized_film_is_below_one_megabyte() -> None:
    plan = rl.solve(graphs.residual(), "min")
    assert plan.schedule.recomputed_ops > 300
    assert len(film(rl.simulate(plan))) < 1_000_000


def test_strip_keeps_the_peak_and_ends_with_the_clock(plan: rl.Plan) -> None:
    trace = rl.simulate(plan)
    slots = strip(trace, 100, 2 * float(trace.time[-1]))
    assert slots.sum(axis=1).max() == pytest.approx(trace.peak, rel=1e-6)
    assert slots[50:].sum() == 0 and slots[:49].sum(axis=1).min() > 0


@pytest.mark.parametrize("shown", ["trace", "plan", "schedule"])
def test_play_takes_traces_plans_and_schedules(plan: rl.Plan, shown: str) -> None:
    given = {"trace": rl.simulate(plan), "plan": plan, "schedule": plan.schedule}[shown]
    player = rl.play(given, position=5)
    assert player.position == 5
    player.position = 10**9
    assert player.position == len(plan.schedule)
    player.position = -3
    assert player.position == 0
    with pytest.raises(traitlets.TraitError, match="speed must be positive, got 0"):
        player.speed = 0
    player.close()


def test_wrong_arguments_are_named(plan: rl.Plan) -> None:
    with pytest.raises(TypeError, match="expected a Trace, a Plan or a Schedule, got str"):
        rl.play("plan")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="a race needs two or more traces, got 1"):
        rl.race([plan])
    with pytest.raises(rl.UnknownMethod):
        rl.explore(graphs.branches(), "kusumoto-aprox")


def test_race_labels_by_method_and_budget() -> None:
    graph = graphs.branches()
    race = rl.race([rl.solve(graph, None, "vanilla"), rl.solve(graph, "min"), rl.solve(graph, "90%")])
    names = list(race.traces)
    assert names[0] == "vanilla" and names[1] == "kusumoto-approx"
    assert names[2].startswith("kusumoto-approx, ") and "vanilla" in race.summary()
    race.close()


def test_stepper_speaks_with_the_steppers_words(plan: rl.Plan) -> None:
    teacher, walk = rl.stepper(plan, position=7), rl.Stepper(plan)
    assert teacher.explain() == walk.goto(7)
    teacher.close()


def test_explorer_answers_as_the_frontier_does() -> None:
    graph = graphs.branches()
    explorer = rl.explore(graph, budget="min")
    assert explorer.wait(60)
    found = rl.frontier(graph)
    assert explorer.budget == found.minimum and explorer.plan.peak == found.minimum
    _, arrays = unpack(explorer.points)
    assert np.array_equal(arrays["budget"], found.budget)
    assert np.array_equal(arrays["ratio"], found.overhead_ratio)
    explorer.budget = int(found.budget[-1])
    assert explorer.plan.overhead == found.overhead[-1]
    explorer.budget = found.minimum - 1
    assert explorer.plan is None and "Nothing fits" in explorer.summary()
    rev = unpack(explorer.points)[0]["rev"]
    explorer.method = "chen"
    assert explorer.wait(60) and explorer.frontier.method == "chen" and explorer.objective == ""
    assert unpack(explorer.points)[0]["rev"] > rev
    explorer.budget = explorer.frontier.minimum
    explorer.ask = {"rev": 1, "want": "film"}
    assert unpack(explorer.film)[0]["peak"] == explorer.plan.peak
    explorer.ask = {"rev": 2, "want": "strip", "point": 0}
    assert unpack(explorer.strip)[0]["point"] == 0
    explorer.close()


def test_a_long_solve_is_shown_and_can_be_cancelled() -> None:
    from remat_lab.progress import report

    entered, go_on = threading.Event(), threading.Event()
    said = []

    @rl.method("slow-for-test", needs_budget=False)
    def slow(graph: rl.ComputationGraph, request: rl.Request) -> rl.Solution:
        report(1, 4)
        entered.set()
        go_on.wait(20)
        report(2, 4)
        return rl.Solution(rl.Schedule.vanilla(graph.joint))

    try:
        explorer = rl.explore(graphs.chain(6))
        assert explorer.wait(60)
        before = explorer.points
        explorer.observe(lambda change: said.append(change["new"]["state"]), "status")
        explorer.method = "slow-for-test"
        assert entered.wait(20)
        explorer.ask = {"rev": 1, "want": "cancel"}  # the solve is still under way, the kernel is not blocked
        assert explorer.status["state"] == "cancelled"
        go_on.set()
        explorer._thread.join(20)
        assert said == ["solving", "cancelled"] and explorer.points == before
        explorer.close()
    finally:
        from remat_lab import registry

        registry._METHODS.pop("slow-for-test")


def test_what_a_method_raises_is_shown() -> None:
    @rl.method("broken-for-test", needs_budget=False)
    def broken(graph: rl.ComputationGraph, request: rl.Request) -> rl.Solution:
        raise ZeroDivisionError("no such luck")

    try:
        explorer = rl.explore(graphs.chain(6), "broken-for-test")
        assert not explorer.wait(20)
        assert explorer.status["state"] == "failed" and "no such luck" in explorer.status["text"]
        explorer.close()
    finally:
        from remat_lab import registry

        registry._METHODS.pop("broken-for-test")


def test_a_picture_and_words_stand_in_for_the_widget(plan: rl.Plan) -> None:
    player = rl.play(plan)
    bundle, _ = player._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert bundle["image/svg+xml"].startswith("<svg") and "budget" in bundle["image/svg+xml"]
    assert "Peak 56.0 MB at step" in bundle["text/plain"]
    assert "<img alt=" in bundle["text/html"] and '<script type="module">' in bundle["text/html"]
    player.close()


def test_closed_and_dropped_views_are_freed(plan: rl.Plan) -> None:
    before = len(ipywidgets.widgets.widget._instances)
    made = []
    for _ in range(20):
        view = rl.play(plan)
        view._repr_mimebundle_()
        made.append(weakref.ref(view))
        view.close()
        assert view.film == b""
    del view
    gc.collect()
    assert not [ref for ref in made if ref() is not None]
    assert len(ipywidgets.widgets.widget._instances) == before


def test_a_view_is_open_while_a_cell_shows_it(plan: rl.Plan, monkeypatch: pytest.MonkeyPatch) -> None:
    run = ["cell", "a"]
    monkeypatch.setattr(base, "_running_cell", lambda: tuple(run))
    first, second = rl.play(plan), rl.play(plan)
    assert first.comm is None  # not shown yet
    first._repr_mimebundle_()
    box = ipywidgets.HBox([second])  # shown within another widget
    base._leave_stale()
    assert first.comm is not None and second.comm is not None
    run[:] = "other cell", "b"
    first._repr_mimebundle_()
    run[:] = "cell", "c"
    base._leave_stale()
    assert first.comm is not None and second.comm is None
    run[:] = "other cell", "d"
    base._leave_stale()
    assert first.comm is None and first.film and first.trace.peak == plan.peak
    first._repr_mimebundle_()
    assert first.comm is not None
    for widget in (first, second, box, box.layout):
        widget.close()


def test_a_closed_view_says_so(plan: rl.Plan) -> None:
    explorer = rl.explore(graphs.branches())
    assert explorer.wait(60)
    views = [rl.play(plan), rl.stepper(plan), rl.race([plan, plan.schedule]), explorer]
    for view, name in zip(views, ("trace", "trace", "traces", "plan"), strict=True):
        view.close()
        view.close()
        assert repr(view) == f"<{type(view).__name__}: closed>"
        assert view._repr_mimebundle_() == ({"text/plain": f"This {view._part} view was closed."}, {})
        with pytest.raises(rl.ViewClosed, match=f"this {view._part} view was closed, and its {name} with it"):
            getattr(view, name)
        with pytest.raises(AttributeError, match="has no attribute 'tracce'"):
            view.tracce  # noqa: B018
        with pytest.raises(rl.ViewClosed):
            view.to_html()


def test_scripts_and_styles_fetch_nothing() -> None:
    here = files("remat_lab.widgets")
    shipped = [f for f in here.iterdir() if f.name.endswith((".js", ".css"))]
    assert len(shipped) >= 15
    for file in shipped:
        text = file.read_text("utf-8")
        urls = set(re.findall(r"""https?://[^\s"'`)]+""", text))
        assert urls <= {"http://www.w3.org/2000/svg"}, file.name
        assert "import " not in re.sub(r"//.*", "", text), file.name
        assert len(text.splitlines()) <= 500, file.name
