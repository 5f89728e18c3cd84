"""Teaching helpers: an answer is right, wrong with a hint, or not there yet; a prediction stays folded."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree
from functools import cache

import pytest

import remat_lab as rl
from remat_lab.course import canonical, check, cost_table, draw, guess, live_table
from remat_lab.solvers.canonical import canonical_schedule


def blank(graph, lower):
    """Return the boundary."""
    ...


def passes():
    pass


def answered():
    return 3


@pytest.mark.parametrize(
    "answer", [..., None, [1, ...], (None, 2), {"a": ...}, blank, passes, cache(passes), lambda: ...]
)
def test_check_treats_a_blank_as_not_answered(answer):
    found = check(answer, 3, "a hint")
    assert (found.state, repr(found)) == ("unanswered", "Not answered yet.")
    assert not found


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (3, 3),
        (0.1 + 0.2, 0.3),
        (["b", "a"], {"a", "b"}),
        ([1, 2], (1, 2)),
        ("a", "a"),
        (0, 0),
        (answered, lambda f: f() == 3),
    ],
)
def test_check_accepts(answer, expected):
    assert check(answer, expected)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (4, 3),
        (0.31, 0.3),
        (["a"], {"a", "b"}),
        (["a", "b", "b"], {"a", "b"}),
        ("ab", {"a", "b"}),
        ([1, 2, 3], [1, 2]),
        ("x", 3.0),
        (3, {1, 2}),
        (answered, lambda f: f() == 4),
    ],
)
def test_check_rejects_with_the_hint(answer, expected):
    found = check(answer, expected, "Count again.")
    assert found.state == "wrong"
    assert "Count again." in repr(found)
    assert "Count again." in found._repr_html_()


def test_check_passes_on_the_sentence_of_its_judge():
    assert repr(check(2, lambda x: "Two is too few.", "Try 3.")) == "Not yet. Two is too few. Try 3."


def test_check_reports_an_answer_that_raises():
    def broken():
        return 1 / 0

    assert "ZeroDivisionError: division by zero" in repr(check(broken, lambda f: f() == 1))


def test_guess_folds_its_answer_until_there_is_a_prediction():
    question = guess("How `big`?", math.pi, "A < B.")
    assert "<details " in question._repr_html_()
    assert "<code>big</code>" in question._repr_html_() and "A &lt; B." in question._repr_html_()
    told = guess("How big?", math.pi, mine=3)
    assert "<details open " in told._repr_html_() and "You said 3." in told._repr_html_()
    assert repr(question).endswith("(The answer is 3.142. A < B.)")


# --- values and graphs ----------------------------------------------------------------------------------


@pytest.fixture
def branches() -> rl.ComputationGraph:
    edges = [("s", "p"), ("s", "q"), ("p", "j"), ("q", "j"), ("s", "j"), ("j", "loss")]
    return rl.ComputationGraph.from_nodes(
        [{"name": n, "memory": 4} for n in ("s", "p", "q", "j", "loss")], edges
    )


def test_live_table_holds_what_the_simulator_holds(branches):
    schedule = canonical_schedule(branches, canonical(branches, {"s"}).bits)
    table, trace = live_table(schedule), rl.simulate(schedule)
    assert table.bytes.max() == trace.peak
    assert list(table.bytes) == [4 * int(column.sum()) for column in table.held.T]
    assert list(table.ops) == [action.name for action in schedule if action.kind == "run"]
    assert "█" in repr(table) and table._repr_html_().count("<tr>") == len(table.values) + 2


def test_canonical_reads_names_and_adds_the_whole_graph(branches):
    sequence = canonical(branches, {"s", "p"})
    assert sequence.lower_sets == [["s", "p"], ["s", "p", "q", "j", "loss"]]
    assert canonical(branches, {"s", "p"}, branches.names).lower_sets == sequence.lower_sets
    assert len(canonical(branches)) == 1


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        ([{"p"}], "without its input 's'"),
        ([{"s", "x"}], "'x' is no node"),
        ([{"s", "p"}, {"s", "q"}], "does not strictly contain"),
    ],
)
def test_canonical_says_what_is_no_sequence(branches, sets, words):
    with pytest.raises(rl.InvalidGraph, match=words):
        canonical(branches, *sets)


def test_drawing_is_well_formed_frames_the_boundary_and_keeps_nodes_apart(branches):
    picture = draw(branches, {"s", "p"})
    root = ElementTree.fromstring(picture._repr_html_())
    boxes = [element.attrib for element in root.iter("rect")]
    assert len({(box["x"], box["y"]) for box in boxes}) == len(branches)
    assert [box["stroke"] == "#d55e00" for box in boxes] == [True, True, False, False, False]
    assert [box["fill"] != "none" for box in boxes] == [True, True, False, False, False]
    assert repr(picture) == "graph: 5 nodes, 6 edges; V_1 = s, p"
    assert all(
        box["fill"] == "none"
        for box in (e.attrib for e in ElementTree.fromstring(draw(branches).svg).iter("rect"))
    )


def test_drawing_refuses_names_of_another_graph(branches):
    with pytest.raises(rl.InvalidGraph, match="'u1b' is no node"):
        draw(branches, {"s", "u1b"})


# -- the dynamic programs' tables --------------------------------------------------------------------------------
@pytest.mark.parametrize("strategy, alpha", [("hsm", 1), ("ism", 1), ("msm", 1), ("msm", 3)])
def test_every_cell_of_a_cost_table_is_the_sum_of_its_parts(strategy: str, alpha: int) -> None:
    table = cost_table(strategy, 12, 6, alpha)
    for (t, m), split in table.splits.items():
        parts = [int(table.cost[memory, length]) for length, memory in (split.right, split.left)]
        assert min(parts) >= 0 and table.cost[m, t] == split.y + sum(parts)
        assert f"= {table.cost[m, t]}" in table.explain(t, m)
    alone = {cell for cell in table.cells if cell not in table.splits}
    least = alpha if strategy == "msm" else 1
    assert all(t == 1 or m < least or (m == 1 and strategy != "msm") for t, m in alone)


def test_a_cost_table_shows_each_cell_once_and_says_what_is_infeasible() -> None:
    table = cost_table("msm", 4, 3, alpha=2)
    html = table._repr_html_()
    assert html.count("<td ") == len(table.cells) == 12
    assert html.count("too little memory") == 4 and repr(table).splitlines()[1] == "m=1  -  -  -  -"
    with pytest.raises(ValueError, match="strategy"):
        cost_table("dtr", 4, 3)
