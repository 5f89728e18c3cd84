"""sweep(): problems x budgets x methods through joblib, each result on disk as soon as it is there.

The file has one JSON object per line and is only ever appended to. A cell (problem, budget, method) is known by
its key: the problem's name and the hash of its graph and costs, the budget as asked, the method's label and
options. A sweep that is started again over the same file runs the cells that are not in it; so it may be
stopped or killed at any moment, and a line torn by that is dropped. A method whose code changed is still the same
cell: give it another name, or the sweep another file. joblib decides where cells run: in processes
on this machine by default, on a cluster under ``joblib.parallel_config("dask")``.
"""

from __future__ import annotations

import copy
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from .arguments import as_path
from .comparison import COLUMNS, TIME_LIMIT, Choice, as_budgets, attempt, choose, table, with_gaps
from .joint import joint_of
from .registry import Method, install, lookup, methods
from .units import parse_budget

if TYPE_CHECKING:
    import pandas as pd

SWEEP_COLUMNS = ("problem", *(name for name in COLUMNS if name != "plan"))
_FORMAT = "remat_lab.Sweep/1"


class Cell(NamedTuple):
    """One piece of work: what identifies it, and what it takes to do it."""

    key: str
    name: str
    problem: Any
    budget: Any
    choice: Choice
    method: Method


def sweep(
    problems: Mapping[str, Any],
    budgets: Any,
    methods: Any,
    path: str | os.PathLike[str],
    *,
    n_jobs: int | None = -1,
    time_limit: float | None = TIME_LIMIT,
    retry: bool = False,
    progress: bool = True,
) -> pd.DataFrame:
    """Run every method at every budget on every problem, once; results are appended to a file.

    Parameters
    ----------
    problems : mapping from name to problem, such as ``remat_lab.suite()``
    budgets, methods, time_limit : as for :func:`remat_lab.compare`; by default, and where a method is named that
        does not plan a kind of problem, each problem has rows for the methods that do
    path : the file; what it already has is not done again
    n_jobs : how many cells at a time; default: one per CPU, or per worker of a cluster; None: as configured in joblib
    retry : whether to run cells again whose method failed or lacked a package (infeasible budgets stay)
    progress : whether to show a progress bar

    Returns
    -------
    pandas.DataFrame : the table of this sweep, columns as :func:`remat_lab.compare`'s without ``plan``, with
        ``problem`` first; rows by problem, budget, method in the order given, wherever they were run

    Raises
    ------
    UnknownMethod, ValueError, TypeError
        If a method, an option or a budget is none, or the file is no sweep.
    """
    import joblib
    from tqdm.auto import tqdm

    cells = _cells(problems, budgets, methods, time_limit)
    path = as_path(path)
    _repair(path)
    done = {
        key: row for key, row in _read(path) if not (retry and row["status"] in ("failed", "unavailable"))
    }
    left = [cell for cell in cells if cell.key not in done]
    if left:
        path.parent.mkdir(parents=True, exist_ok=True)
        # One cell at a time and as they come, so that a result waits for no other before it is on disk.
        parallel = joblib.Parallel(n_jobs=n_jobs, return_as="generator_unordered", batch_size=1)
        results = parallel(joblib.delayed(_run)(cell) for cell in left)
        with (
            path.open("a", encoding="utf-8") as file,
            tqdm(total=len(cells), initial=len(cells) - len(left), disable=not progress, unit="cell") as bar,
        ):
            for key, row in results:
                file.write(json.dumps({"format": _FORMAT, "key": key, **row}, default=float) + "\n")
                file.flush()
                os.fsync(file.fileno())
                done[key] = row
                bar.update()
    return _table([done[cell.key] for cell in cells])


def load_sweep(path: str | os.PathLike[str]) -> pd.DataFrame:
    """Everything a sweep's file has, as a table in the order of finishing; of cells run again, the last result.

    Raises
    ------
    FileNotFoundError
        If there is no such file.
    ValueError
        If a line is no result of a sweep; the message names it. A last line that a kill tore is left out.
    """
    path = as_path(path)
    if not path.exists():
        raise FileNotFoundError(f"there is no sweep file {str(path)!r}")
    return _table(list(dict(_read(path)).values()))


def _table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    return with_gaps(table(rows, SWEEP_COLUMNS))


# -- cells ---------------------------------------------------------------------------------------------------------
def _cells(problems: Any, budgets: Any, given: Any, time_limit: float | None) -> list[Cell]:
    if not isinstance(problems, Mapping):
        raise TypeError(f"problems must be a mapping from name to problem, got {type(problems).__name__}")
    wanted = as_budgets(budgets)
    for budget in wanted:
        if not (isinstance(budget, str) and budget.strip().lower() == "min"):
            parse_budget(budget, 1)  # a budget that cannot be read is an argument's error, not a method's
    cells = []
    for name, problem in problems.items():
        try:
            joint_of(problem)
        except TypeError as error:
            raise TypeError(f"problems[{name!r}]: {error}") from None
        able = methods(problem).names
        bare = _bare(problem)
        print_ = _digest(problem)
        for budget in wanted:
            for choice in choose(problem, given, time_limit):
                if choice.name in able:
                    identity = [
                        name,
                        print_,
                        budget,
                        choice.label,
                        choice.name,
                        sorted(choice.options.items()),
                    ]
                    key = json.dumps(identity, default=_named)
                    cells.append(Cell(key, name, bare, budget, choice, lookup(choice.name)))
    if not cells:
        raise ValueError("nothing to sweep: no problem, or no method that plans one")
    return cells


def _named(value: Any) -> str:
    """A budget or an option that JSON does not know, by something that stays the same from run to run."""
    return str(getattr(value, "__qualname__", value))


def _bare(problem: Any) -> Any:
    """The problem without what was derived from it, which need not travel."""
    bare = copy.copy(problem)
    for name in list(vars(bare)):
        if name == "_memo" or isinstance(getattr(type(problem), name, None), cached_property):
            del bare.__dict__[name]
    return bare


def _digest(problem: Any) -> str:
    """A hash of the joint graph and its times: another graph under an old name is another problem."""
    joint = problem.joint
    digest = hashlib.sha256(joint.fingerprint().encode())
    digest.update(np.ascontiguousarray(joint.op_time).tobytes())
    return digest.hexdigest()[:12]


#: Problems this process has seen, by digest: what a method remembers beside one serves its other budgets too.
_seen: dict[str, Any] = {}


def _run(cell: Cell) -> tuple[str, dict[str, Any]]:
    """Do one cell; in another process the registry may not know the method yet."""
    known = {entry.name: entry for entry in methods()}.get(cell.method.name)
    if known is None or known.solve is not cell.method.solve:
        install(cell.method)
    row = attempt(_remembered(cell), cell.budget, cell.choice)
    row.pop("plan", None)
    return cell.key, {"problem": cell.name, **row}


def _remembered(cell: Cell) -> Any:
    digest = json.loads(cell.key)[1]
    if digest not in _seen:
        if len(_seen) >= 4:
            _seen.pop(next(iter(_seen)))
        _seen[digest] = cell.problem
    return _seen[digest]


# -- the file ------------------------------------------------------------------------------------------------------
def _read(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(key, row) of each line; a last line without its end was torn by a kill and is left out."""
    if not path.exists():
        return
    text = path.read_text(encoding="utf-8")
    for number, line in enumerate(text.split("\n")[:-1], start=1):
        try:
            record = json.loads(line)
            if record["format"] != _FORMAT:
                raise ValueError
            yield record["key"], {name: record.get(name) for name in SWEEP_COLUMNS}
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{path}, line {number}, is no result of a sweep: {line[:60]!r}") from None


def _repair(path: Path) -> None:
    """Cut off a torn last line, so that what is appended starts a line of its own."""
    if not path.exists():
        return
    for _ in _read(path):  # refuses another kind of file before it is touched
        pass
    data = path.read_bytes()
    whole = data.rfind(b"\n") + 1
    if whole < len(data):
        with path.open("r+b") as file:
            file.truncate(whole)
