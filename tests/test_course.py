"""Teaching helpers: an answer is right, wrong with a hint, or not there yet; a prediction stays folded."""

from __future__ import annotations

import math

import pytest

from remat_lab.course import check, guess


def blank(graph, lower):
    """Return the boundary."""
    ...


def passes():
    pass


def answered():
    return 3


@pytest.mark.parametrize("answer", [..., None, [1, ...], (None, 2), {"a": ...}, blank, passes, lambda: ...])
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
    assert "<details>" in question._repr_html_()
    assert "<code>big</code>" in question._repr_html_() and "A &lt; B." in question._repr_html_()
    told = guess("How big?", math.pi, mine=3)
    assert "<details open>" in told._repr_html_() and "You said 3." in told._repr_html_()
    assert repr(question).endswith("(The answer is 3.142. A < B.)")
