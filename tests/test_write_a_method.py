"""docs/write_a_method.md: its code runs as a newcomer would run it, and does what the page says."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

import remat_lab as rl
from remat_lab.registry import _METHODS

PAGE = Path(__file__).resolve().parents[1] / "docs" / "write_a_method.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), flags=re.MULTILINE | re.DOTALL)


def run(code: str, namespace: dict) -> object:
    """Run a block as a notebook cell does: the value of a last expression is what it shows."""
    tree = ast.parse(code)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, str(PAGE), "exec"), namespace)
    return eval(compile(ast.Expression(last.value), str(PAGE), "eval"), namespace) if last else None


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """What each block shows, with the namespace they share; methods are forgotten afterwards."""
    rl.methods()
    known = dict(_METHODS)
    namespace: dict = {"__name__": "__main__"}
    patch = pytest.MonkeyPatch()
    patch.chdir(tmp_path_factory.mktemp("page"))
    try:
        yield [run(block, namespace) for block in BLOCKS], namespace
    finally:
        patch.undo()
        plt.close("all")
        _METHODS.clear()
        _METHODS.update(known)


def test_the_first_method_has_fewer_than_15_lines():
    assert len(BLOCKS[0].strip().splitlines()) < 15


def test_it_is_in_the_leaderboard_with_schedule_animation_and_gap(shown):
    values, namespace = shown
    board = next(value for value in values if type(value).__name__ == "Leaderboard")
    row = board.table.set_index("method").loc["keep-dear"]
    assert row["plans"] == 3 and 0 <= row["mean_gap"] < 0.1
    assert "keep-dear" in board._repr_html_() and "<svg" in board._repr_html_()
    assert any(isinstance(value, rl.Schedule) for value in values)
    player = next(value for value in values if type(value).__name__ == "Player")
    assert player.trace.method == "keep-dear" and player.trace.peak <= player.trace.budget
    frame = namespace["frame"]
    assert frame["gap"].notna().sum() == frame["plan"].notna().sum()


def test_every_form_made_plans_and_nothing_failed(shown):
    values, namespace = shown
    boards = [value for value in values if type(value).__name__ == "Leaderboard"]
    assert len(boards) == 5
    for board in boards:
        bad = board.frame[~board.frame["status"].isin(["optimal", "feasible", "infeasible"])]
        assert not len(bad), bad[["method", "error"]].to_string()
    forms = boards[2].table.set_index("method")["plans"]
    assert (forms[["keep-dear", "pieces", "stale-and-large"]] > 0).all()
    assert boards[3].proven == (2, 2)
    assert boards[3].table.set_index("method").loc["oracle", "worst_gap"] == 0
    assert (boards[4].table["plans"] > 0).all()
    assert namespace["run"].peak <= namespace["plan"].budget


def test_the_wrong_answer_says_what_the_page_says(capsys):
    rl.methods()
    known = dict(_METHODS)
    try:
        block = next(block for block in BLOCKS if '"typo"' in block)
        run(block, {"rl": rl, "graph": rl.suite()["transformer-6"]})
    finally:
        _METHODS.clear()
        _METHODS.update(known)
    printed = capsys.readouterr().out.strip()
    promised = re.search(r"It prints `(.*?)\.\.\.`", PAGE.read_text("utf-8")).group(1).replace("\n", " ")
    assert printed.startswith(promised.rstrip())
