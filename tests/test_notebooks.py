"""The course: every notebook runs from top to bottom, its exercises tell right from wrong, its text twin agrees."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import re
import time
import warnings
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = ROOT / "notebooks"
LONGEST = 120  # seconds
MOST_OUTPUT = 200_000  # bytes, figures and stand-in pictures included; widget state is no output
CHECK = "# Run this cell to check your answer.\n"
WIDGET = "application/vnd.jupyter.widget-view+json"
HEADINGS = ("## What you will learn", "## Summary", "## References")

paths = sorted(NOTEBOOKS.glob("*.ipynb"))
each_notebook = pytest.mark.parametrize("path", paths, ids=[path.stem for path in paths])


def load_sync() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sync", NOTEBOOKS / "sync.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # jupytext's own imports
        spec.loader.exec_module(module)
    return module


class Exercise(NamedTuple):
    """An exercise cell, the cell that checks it, and what to put in its place."""

    at: int
    blank: str
    check: str
    solution: str
    wrong: list[str]


def tags(cell: NotebookNode) -> list[str]:
    return list(cell.metadata.get("tags", []))


def exercises(notebook: NotebookNode) -> list[Exercise]:
    """Every exercise: three cells in a row, tagged exercise, check, solution (see notebooks/README.md)."""
    found = []
    cells = notebook.cells
    for at, cell in enumerate(cells):
        if "exercise" not in tags(cell):
            continue
        assert at + 2 < len(cells), f"cell {at}: an exercise is followed by its check and its solution"
        check, solution = cells[at + 1], cells[at + 2]
        assert "check" in tags(check) and check.cell_type == "code", f"cell {at + 1} must be tagged check"
        assert check.source.startswith(CHECK), (
            f"cell {at + 1}: begin with {CHECK!r}, which is what a reader sees of it"
        )
        assert "solution" in tags(solution) and solution.cell_type == "markdown", (
            f"cell {at + 2}: no solution"
        )
        assert "<details>" in solution.source, f"cell {at + 2}: fold the solution with <details>"
        blocks = re.findall(r"^```python\n(.*?)^```$", solution.source, flags=re.DOTALL | re.MULTILINE)
        assert len(blocks) == 1, f"cell {at + 2}: a solution holds one ```python block"
        wrong = list(solution.metadata.get("wrong", []))
        assert wrong, f"cell {at + 2}: give at least one wrong answer in the metadata"
        found.append(Exercise(at, cell.source, check.source, blocks[0].strip(), wrong))
    return found


def with_solutions(notebook: NotebookNode) -> tuple[NotebookNode, dict[int, str]]:
    """The notebook with each exercise answered wrongly, rightly and not at all, in this order.

    The blank comes last, so that what follows sees what a reader sees who runs all cells. Also returns what
    each check cell must say: its index -> the first words of its output.
    """
    cells: list[NotebookNode] = []
    says: dict[int, str] = {}
    by_place = {exercise.at: exercise for exercise in exercises(notebook)}
    for at, cell in enumerate(notebook.cells):
        if at in by_place:
            exercise = by_place[at]
            tries = [*((w, "Not yet.") for w in exercise.wrong), (exercise.solution, "Right.")]
            for source, words in tries:
                cells.append(nbformat.v4.new_code_cell(source))
                says[len(cells)] = words
                cells.append(nbformat.v4.new_code_cell(exercise.check))
        if at - 1 in by_place:
            says[len(cells)] = "Not answered yet."
        cells.append(cell)
    return nbformat.v4.new_notebook(cells=cells, metadata=notebook.metadata), says


def execute(notebook: NotebookNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.delenv("MPLBACKEND", raising=False)  # the tests' own draws nothing in a notebook
    where = {"metadata": {"path": NOTEBOOKS}}
    client = NotebookClient(notebook, timeout=LONGEST, kernel_name="python3", resources=where)
    loop = asyncio.new_event_loop()
    try:
        loop.run_until_complete(client.async_execute())
    finally:
        loop.close()


def plain_text(cell: NotebookNode) -> str:
    return "".join(output.data.get("text/plain", "") for output in cell.outputs if "data" in output)


@pytest.mark.slow
@each_notebook
def test_notebook_runs_quietly_and_its_checks_tell_right_from_wrong(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook, says = with_solutions(nbformat.read(path, as_version=4))
    started = time.perf_counter()
    execute(notebook, monkeypatch)
    seconds = time.perf_counter() - started
    size = 0
    for number, cell in enumerate(notebook.cells):
        if cell.cell_type != "code":
            continue
        size += sum(
            len(json.dumps(output)) for output in cell.outputs if WIDGET not in output.get("data", {})
        )
        for output in cell.outputs:
            assert output.get("name") != "stderr", f"cell {number}:\n{cell.source}\nwrote:\n{output.text}"
    for number, words in says.items():
        cell = notebook.cells[number]
        said = plain_text(cell)
        before = notebook.cells[number - 1].source
        assert said.startswith(words), f"after\n{before}\nthe check says {said!r}, not {words!r}"
        if words == "Not yet.":
            assert len(said) > len(words) + 10, f"after\n{before}\nthe check gives no hint"
    assert size < MOST_OUTPUT, f"{size} bytes of outputs"
    assert seconds < LONGEST, f"{seconds:.0f} s"


@each_notebook
def test_notebook_agrees_with_its_text_and_carries_no_outputs(path: Path) -> None:
    assert load_sync().disagreements(path.stem) == []


def test_every_text_has_a_notebook() -> None:
    assert [p.stem for p in sorted((NOTEBOOKS / "text").glob("*.md"))] == [p.stem for p in paths]


@each_notebook
def test_notebook_has_the_parts_of_a_lesson(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    prose = [cell.source for cell in notebook.cells if cell.cell_type == "markdown"]
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert prose[0].startswith("# ")
    lines = "\n".join(prose).splitlines()
    for heading in HEADINGS:
        assert heading in lines, f"no heading {heading!r}"
    assert any("guess(" in source for source in code), "no prediction to make"
    numbers = [int(n) for n in re.findall(r"^### Exercise (\d+)", "\n".join(prose), flags=re.MULTILINE)]
    assert numbers == list(range(1, len(exercises(notebook)) + 1))


# --- the tools themselves -------------------------------------------------------------------------------

TINY = """---
kernelspec:
  display_name: Python 3
  name: python3
---

# A title

```{code-cell} ipython3
:tags: [exercise]

x=...
```

+++ {"tags": ["solution"], "wrong": ["x = 1"]}

<details><summary>Solution</summary></details>
"""


def test_sync_drops_outputs_formats_and_is_stable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sync = load_sync()
    monkeypatch.setattr(sync, "HERE", tmp_path / "notebooks")
    monkeypatch.setattr(sync, "TEXT", tmp_path / "notebooks" / "text")
    sync.TEXT.mkdir(parents=True)
    (sync.TEXT / "01-a.md").write_text(TINY)
    assert sync.main([]) == 0
    assert sync.main(["--check"]) == 0
    ipynb = sync.HERE / "01-a.ipynb"
    notebook = nbformat.read(ipynb, as_version=4)
    assert [cell.cell_type for cell in notebook.cells] == ["markdown", "code", "markdown"]
    assert notebook.cells[2].metadata == {"tags": ["solution"], "wrong": ["x = 1"]}
    first = ipynb.read_bytes(), (sync.TEXT / "01-a.md").read_bytes()
    assert sync.main([]) == 0
    assert first == (ipynb.read_bytes(), (sync.TEXT / "01-a.md").read_bytes())

    notebook.cells[1].execution_count = 3
    notebook.cells[1].source = "x = 4"
    nbformat.write(notebook, ipynb)
    assert sync.main(["--check"]) == 1
    assert sync.main(["--from-ipynb", "01-a"]) == 0
    assert "x = 4" in (sync.TEXT / "01-a.md").read_text()
    assert sync.main(["--check"]) == 0
    with pytest.raises(SystemExit):
        sync.main(["02-b"])
