"""What a notebook's views leave behind in its kernel: nothing, once their cells have run again."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
START = f"""import sys; sys.path.insert(0, {str(HERE)!r})
import gc, json, tracemalloc
import graphs, ipywidgets, remat_lab as rl
from remat_lab.widgets.base import View
graph = graphs.branches(6)
plan, plain = rl.solve(graph, "min"), rl.solve(graph, None, "vanilla")

def alive():  # of ours by name, and what is open
    gc.collect()
    found = sorted(type(o).__name__ for o in gc.get_objects() if isinstance(o, (View, rl.Trace, rl.Frontier)))
    comms = len(get_ipython().kernel.comm_manager.comms)
    return json.dumps([found, comms, len(ipywidgets.widgets.widget._instances)])

def traced():  # bytes allocated by the package's own lines: films, pages, pictures, traces
    gc.collect()
    ours = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, "*/remat_lab/*")])
    return sum(t.size for t in ours.traces)
"""
MAKE = {
    "play": "rl.play(plan)",
    "race": "rl.race([plain, plan])",
    "stepper": "rl.stepper(plan)",
    "explore": "rl.explore(graph, budget='70%')",
}
WAIT = {"explore": "view.wait(60); "}
SHOW = {
    "last expression": "{make}",
    "a variable": "view = {make}; {wait}view",
    "display": "display({make})",
    "display of a variable": "view = {make}; {wait}display(view)",
    "display, then del": "view = {make}; {wait}display(view); del view",
    "not shown": "view = {make}; {wait}del view",
}


class Kernel:
    """A kernel and its client, as a notebook uses it."""

    def __init__(self, client: Any):
        self.client = client

    def run(self, code: str, cell: str | None = None) -> str:
        """Run a cell; what it printed."""
        content = {
            "code": code, "silent": False, "store_history": cell is not None, "user_expressions": {},
            "allow_stdin": False, "stop_on_error": True,
        }  # fmt: skip
        message = self.client.session.msg("execute_request", content)
        if cell is not None:
            message["metadata"]["cellId"] = cell
        self.client.shell_channel.send(message)
        said, done = "", False
        while not done:
            reply = self.client.get_iopub_msg(timeout=120)
            if reply["parent_header"].get("msg_id") != message["header"]["msg_id"]:
                continue
            kind, content = reply["msg_type"], reply["content"]
            assert kind != "error", "\n".join(content["traceback"])
            said += content["text"] if kind == "stream" else ""
            done = kind == "status" and content["execution_state"] == "idle"
        self.client.get_shell_msg(timeout=60)
        return said.strip()

    def says(self, expression: str) -> str:
        return self.run(f"print({expression})")


@pytest.fixture(scope="module")
def kernel(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kernel]:
    manager = pytest.importorskip("jupyter_client").KernelManager(kernel_name="python3", transport="ipc")
    manager.connection_file = str(tmp_path_factory.mktemp("kernel") / "k")
    environment = {
        **os.environ,
        "IPYTHONDIR": str(tmp_path_factory.mktemp("ipython")),
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]),
    }
    manager.start_kernel(env=environment)
    client = manager.blocking_client()
    client.start_channels()
    try:
        client.wait_for_ready(timeout=120)
        kernel = Kernel(client)
        kernel.run(START)
        yield kernel
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.mark.parametrize("kind", MAKE)
def test_twenty_views_made_and_dropped_leave_nothing(kernel: Kernel, kind: str) -> None:
    kernel.run(f"view = {MAKE[kind]}; {WAIT.get(kind, '')}del view")  # the library remembers a frontier
    empty = kernel.says("alive()")
    for shown, code in SHOW.items():
        code = code.format(make=MAKE[kind], wait=WAIT.get(kind, ""))
        for _ in range(2):  # the first runs fill caches
            kernel.run(code, "cell")
        first = kernel.says("alive()")
        for _ in range(20):
            kernel.run(code, "cell")
        assert json.loads(kernel.says("alive()")) == json.loads(first), shown
    kernel.run("view = None", "cell")  # the last one goes too
    assert json.loads(kernel.says("alive()")) == json.loads(empty)


@pytest.mark.parametrize("kind", MAKE)
def test_twenty_views_allocate_no_more_than_one(kernel: Kernel, kind: str) -> None:
    code = SHOW["a variable"].format(make=MAKE[kind], wait=WAIT.get(kind, ""))
    kernel.run("tracemalloc.start()")
    for _ in range(2):
        kernel.run(code, "cell")
    before, film = int(kernel.says("traced()")), int(kernel.says("len(rl.play(plan).film)"))
    for _ in range(20):
        kernel.run(code, "cell")
    grown = int(kernel.says("traced()")) - before
    kernel.run("tracemalloc.stop(); view = None", "cell")
    assert grown < film, f"{grown} bytes more after 20 views of at least {film} each"


def test_a_view_stays_while_a_cell_shows_it_and_works_while_it_is_held(kernel: Kernel) -> None:
    comms = "len(get_ipython().kernel.comm_manager.comms)"
    before = int(kernel.says(comms))
    kernel.run("w = rl.play(plan)", "make")
    assert int(kernel.says(comms)) == before  # nobody looks at it yet
    kernel.run("w", "show")
    kernel.run("w.position = 7; first = w")
    open_now = int(kernel.says(comms))
    assert open_now > before
    kernel.run("w = rl.play(plan)", "make")  # the first one is still on show below
    kernel.run("1 + 1", "another cell")
    assert kernel.says("first.comm is not None, first.position, w is first") == "True 7 False"
    kernel.run("w", "show")  # and now it is not, but the user has it
    assert kernel.says("first.comm, first.position, first.trace.peak == plan.peak") == "None 7 True"
    assert "Peak" in kernel.says("first") and int(kernel.says(comms)) == open_now
    kernel.run("first", "elsewhere")
    kernel.run("first", "elsewhere")  # the same view again stays the same view
    assert (
        kernel.says("first.comm is not None, first.layout.comm is not None, first.position") == "True True 7"
    )
    assert int(kernel.says(comms)) == 2 * open_now - before
    kernel.run("first.close(); del first; w = None", "elsewhere")
    kernel.run("None", "show")
    assert int(kernel.says(comms)) == before


def test_the_history_says_what_was_there(kernel: Kernel) -> None:
    kernel.run("rl.stepper(plan)", "once")
    kernel.run("number = max(Out); assert isinstance(Out[number], View) and isinstance(_, View)")
    kernel.run("_.position = 3; kept = _", "once")  # `_` is there until the cell that replaces it has run
    assert kernel.says("Out[number]") == "A stepper view was here, until its cell ran again or it was closed."
    assert kernel.says("kept.position, type(_).__name__") == "3 Gone"
    kernel.run("kept.close()")
    assert kernel.says("kept") == "<Teacher: closed>"
    kernel.run(
        "try: kept.trace\nexcept rl.ViewClosed as error: assert 'was closed, and its trace with it' in str(error)\n"
        "else: assert False\nassert kept.film == b'' and not hasattr(kept, 'trace')"
    )
