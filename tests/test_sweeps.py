"""sweep(): the same table wherever it runs, each result on disk at once, nothing done twice."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path

import joblib
import pandas as pd
import pytest

import remat_lab as rl
from remat_lab.registry import _METHODS

ROOT = Path(__file__).resolve().parents[1]
METHODS = ["vanilla", "chen", "kusumoto-approx", "thirds"]
BUDGETS = ["45%", "70%", "min", None]


@pytest.fixture(autouse=True)
def thirds():
    """A method that only this process knows, and that must travel to the others."""
    rl.methods()
    known = dict(_METHODS)
    rl.method("thirds", returns="keep")(lambda graph, budget: graph.names[::3])
    yield
    _METHODS.clear()
    _METHODS.update(known)


def chain(n: int) -> rl.ComputationGraph:
    names = [f"n{i}" for i in range(n)]
    return rl.ComputationGraph.from_nodes([{"name": x, "memory": 10} for x in names], pairwise(names))


def problems():
    return {"chain-12": chain(12), "chain-20": chain(20), "steps": rl.Chain(10, hidden=10, internal=30)}


def same(a: pd.DataFrame, b: pd.DataFrame) -> None:
    """Equal but for the clock."""
    pd.testing.assert_frame_equal(a.drop(columns="solve_seconds"), b.drop(columns="solve_seconds"))


def swept(path, **settings) -> pd.DataFrame:
    return rl.sweep(problems(), BUDGETS, METHODS, path, progress=False, **settings)


@pytest.fixture(scope="module")
def cluster():
    distributed = pytest.importorskip("distributed")
    with (
        distributed.LocalCluster(
            n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
        ) as c,
        distributed.Client(c),
    ):
        yield c


@pytest.mark.filterwarnings("default")  # of loky's and dask's own
def test_the_table_is_the_same_in_one_process_under_loky_and_under_dask(tmp_path, cluster):
    alone = swept(tmp_path / "alone.jsonl", n_jobs=1)
    same(alone, swept(tmp_path / "loky.jsonl", n_jobs=2))
    with joblib.parallel_config("dask"):
        same(alone, swept(tmp_path / "dask.jsonl"))
    assert len(alone) == 3 * len(BUDGETS) * len(METHODS)
    assert not alone["status"].isin(["failed", "unavailable"]).any()


def test_rows_are_those_of_compare(tmp_path):
    table = swept(tmp_path / "sweep.jsonl", n_jobs=1)
    for name, problem in problems().items():
        frame = rl.compare(problem, BUDGETS, METHODS, progress=False)
        mine = table[table["problem"] == name].drop(columns="problem").reset_index(drop=True)
        same(mine, frame.drop(columns="plan"))
    assert rl.leaderboard(table).table["cells"].tolist() == [12] * 4


def test_a_second_sweep_does_only_what_is_new(tmp_path):
    path = tmp_path / "deep" / "sweep.jsonl"
    first = rl.sweep(problems(), ["45%"], METHODS[:2], path, n_jobs=1, progress=False)
    before = path.read_text()
    again = rl.sweep(problems(), ["45%"], METHODS[:2], path, n_jobs=1, progress=False)
    pd.testing.assert_frame_equal(first, again)
    assert path.read_text() == before
    more = rl.sweep(problems(), ["45%", "70%"], METHODS[:2], path, n_jobs=1, progress=False)
    assert len(more) == 2 * len(first) and path.read_text().startswith(before)
    assert path.read_text().count("\n") == len(more)
    assert len(rl.load_sweep(path)) == len(more)
    # Another graph or other costs under the same name is another problem.
    graph = chain(12)
    changed = {"chain-12": graph.with_costs(time=[2.0] * len(graph))}
    rl.sweep(changed, ["45%"], METHODS[:2], path, n_jobs=1, progress=False)
    assert path.read_text().count("\n") == len(more) + 2


def test_failures_are_kept_unless_asked_to_retry(tmp_path):
    calls = []

    @rl.method("fails", returns="keep")
    def fails(graph, budget):
        calls.append(budget)
        raise RuntimeError("no luck")

    for retry in (False, False, True):
        table = rl.sweep(
            {"c": chain(5)}, [10, 20], "fails", tmp_path / "s.jsonl", n_jobs=1, retry=retry, progress=False
        )
        assert list(table["error"]) == ["RuntimeError: no luck"] * 2
    assert len(calls) == 4 and len(rl.load_sweep(tmp_path / "s.jsonl")) == 2


def test_a_torn_line_is_done_again_and_other_files_are_refused(tmp_path):
    path = tmp_path / "sweep.jsonl"
    table = swept(path, n_jobs=1)
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(lines[:-1]) + lines[-1][:40])
    assert len(rl.load_sweep(path)) == len(table) - 1
    same(table, swept(path, n_jobs=1))
    assert all(json.loads(line)["key"] for line in path.read_text().splitlines())
    assert path.read_text().count("\n") == len(table)

    other = tmp_path / "notes.txt"
    other.write_text("keep me\nand me")
    with pytest.raises(ValueError, match=r"notes.txt, line 1, is no result of a sweep: 'keep me'"):
        swept(other, n_jobs=1)
    assert other.read_text() == "keep me\nand me"
    with pytest.raises(FileNotFoundError, match="no sweep file"):
        rl.load_sweep(tmp_path / "none.jsonl")


def test_wrong_arguments_are_errors(tmp_path):
    path = tmp_path / "s.jsonl"
    with pytest.raises(TypeError, match="mapping from name to problem, got list"):
        rl.sweep([chain(3)], ["45%"], METHODS, path)
    with pytest.raises(rl.UnknownMethod):
        rl.sweep(problems(), ["45%"], ["chenn"], path)
    with pytest.raises(ValueError, match="cannot read 'plenty'"):
        rl.sweep(problems(), ["plenty"], METHODS, path)
    with pytest.raises(ValueError, match="nothing to sweep"):
        rl.sweep({"c": chain(3)}, ["45%"], ["bptt-hsm"], path)
    assert not path.exists()


SCRIPT = """
import os, sys, time
from itertools import pairwise
import remat_lab as rl

folder = sys.argv[1]

def slow(graph, budget):
    with open(os.path.join(folder, "log"), "a") as log:
        log.write(f"{len(graph)} {budget}\\n")
    time.sleep(0.4)
    return graph.names[::3]

def chain(n):
    names = [f"n{i}" for i in range(n)]
    return rl.ComputationGraph.from_nodes([{"name": x, "memory": 10} for x in names], pairwise(names))

if __name__ == "__main__":
    rl.method("slow", returns="keep")(slow)
    problems = {f"chain-{n}": chain(n) for n in (10, 14, 18, 22)}
    table = rl.sweep(problems, [10**6, 10**7, 10**8], "slow", os.path.join(folder, "s.jsonl"), n_jobs=2, progress=False)
    table.to_csv(os.path.join(folder, "table.csv"))
"""


def count_lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_stopped_in_the_middle_it_resumes_without_doing_finished_cells_again(tmp_path, how):
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [sys.executable, "script.py", str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, start_new_session=True, stderr=subprocess.DEVNULL
    )
    file, log = tmp_path / "s.jsonl", tmp_path / "log"
    try:
        end = time.monotonic() + 120
        while count_lines(file) < 4:
            assert process.poll() is None and time.monotonic() < end, "the sweep did not get going"
            time.sleep(0.02)
    finally:
        # As a terminal's Ctrl-C does, and as a kill of the whole job does: all its processes are hit.
        os.killpg(process.pid, how)
    assert process.wait(timeout=60) != 0
    finished = [json.loads(line)["key"] for line in _whole_lines(file)]
    assert 4 <= len(finished) < 12, "stopped too late to show anything"
    kept = file.read_bytes()[: file.read_bytes().rfind(b"\n") + 1]

    subprocess.run(command, cwd=tmp_path, env=environment, check=True, timeout=120)
    assert file.read_bytes().startswith(kept)
    table = pd.read_csv(tmp_path / "table.csv")
    assert len(table) == 12 and table["status"].eq("feasible").all()
    ran = log.read_text().split("\n")[:-1]
    for key in finished:
        name, _, budget, *_ = json.loads(key)
        assert ran.count(f"{name.removeprefix('chain-')} {budget}") == 1
    assert len(set(ran)) == 12
    assert len(ran) <= 12 + 4  # besides those that were running when it stopped: two, and two sent ahead


def _whole_lines(path: Path) -> list[bytes]:
    return path.read_bytes().split(b"\n")[:-1]
