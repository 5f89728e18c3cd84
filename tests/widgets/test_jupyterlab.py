"""The views in a real JupyterLab: controls, themes, restart, reload, export, and nothing left behind.

State is read from both ends: from the page, and from the kernel through a client of its own.
"""

from __future__ import annotations

import base64
import io
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import numpy as np
import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow]

HERE = Path(__file__).parent
START = f"""import sys; sys.path.insert(0, {str(HERE)!r})
import graphs, remat_lab as rl
graph = graphs.branches()
plan = rl.solve(graph, "min")
"""
VIEWS = {
    "play": "w = rl.play(plan); w",
    "race": "r = rl.race([rl.solve(graph, None, 'vanilla'), plan]); r",
    "stepper": "s = rl.stepper(plan); s",
    "explore": "e = rl.explore(graph, budget='70%'); e",
}


class Lab:
    """A running server, a browser page, and a client of the open notebook's kernel."""

    def __init__(self, browser: Any, folder: Path, port: int):
        self.folder, self.url = folder, f"http://127.0.0.1:{port}"
        self.page = browser.new_page(viewport={"width": 1280, "height": 1400})
        self.troubles: list[str] = []
        self.page.on("pageerror", lambda error: self.troubles.append(str(error)))
        self.page.on("console", lambda m: self.troubles.append(m.text) if m.type == "error" else None)

    def api(self, path: str, method: str = "GET", body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}/api/{path}", data=data, method=method)
        with urllib.request.urlopen(request, timeout=60) as reply:
            text = reply.read()
        return json.loads(text) if text else None

    def write(self, name: str, cells: list[str]) -> None:
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
        notebook.metadata["kernelspec"] = {
            "name": "python3",
            "display_name": "Python 3",
            "language": "python",
        }
        nbformat.write(notebook, self.folder / name)

    def open(self, name: str) -> None:
        self.page.goto(f"{self.url}/lab/tree/{name}?reset")
        self.page.wait_for_function(
            "window.jupyterapp?.shell?.currentWidget?.context?.sessionContext?.session?.kernel?.status === 'idle'",
            timeout=90_000,
        )

    def command(self, name: str, **arguments: Any) -> None:
        self.page.evaluate(
            "([name, given]) => jupyterapp.commands.execute(name, given).then(() => null)", [name, arguments]
        )

    def run_all(self) -> None:
        self.command("notebook:run-all-cells")

    def python(self, code: str) -> str:
        """What ``code`` prints in the open notebook's kernel."""
        return self.page.evaluate(
            """async (code) => { let text = "";
            const { kernel } = jupyterapp.shell.currentWidget.context.sessionContext.session;
            const future = kernel.requestExecute({ code, store_history: false });
            future.onIOPub = (m) => { if (m.header.msg_type === "stream") text += m.content.text;
              if (m.header.msg_type === "error") text += m.content.ename + ": " + m.content.evalue; };
            await future.done; return text.trim(); }""",
            code,
        )

    def until(self, code: str, expected: str, seconds: float = 20) -> None:
        """Wait for the kernel to say so."""
        end = time.monotonic() + seconds
        while (said := self.python(f"print({code})")) != expected:
            assert time.monotonic() < end, f"{code} is {said}, not {expected}"
            time.sleep(0.1)

    def wait_for_views(self, *kinds: str) -> None:
        for kind in kinds:
            self.page.wait_for_function(f"document.querySelector('.rl-{kind}')?.remat", timeout=60_000)

    def remat(self, expression: str) -> Any:
        """Evaluate with p, r, s, e standing for the player, race, stepper and explorer."""
        return self.page.evaluate(
            """(code) => { const get = (name) => document.querySelector(`.rl-${name}`)?.remat ?? {};
            const [{ player: p }, { race: r }] = [get("player"), get("race")];
            const [{ stepper: s }, { explorer: e }] = [get("stepper"), get("explore")];
            return new Function("p", "r", "s", "e", `return ${code}`)(p, r, s, e); }""",
            expression,
        )


@pytest.fixture(scope="module")
def lab(browser: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    pytest.importorskip("jupyterlab")
    folder = tmp_path_factory.mktemp("lab")
    work = folder / "work"
    work.mkdir()
    settings = folder / "config" / "lab" / "user-settings"
    for name, value in {
        "@jupyterlab/apputils-extension/notification": {"fetchNews": "false"},
        "@jupyter-widgets/jupyterlab-manager/plugin": {"saveState": True},
    }.items():
        path = settings / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(value))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "IPYTHONDIR": str(folder / "ipython"),
        "PYTHONPATH": os.pathsep.join([str(HERE.parents[1]), os.environ.get("PYTHONPATH", "")]),
    }
    log = (folder / "log").open("w")
    server = subprocess.Popen(
        [
            sys.executable, "-m", "jupyterlab", "--allow-root", "--no-browser", "--ip=127.0.0.1",
            f"--ServerApp.port={port}", "--ServerApp.port_retries=0", f"--ServerApp.root_dir={work}",
            "--IdentityProvider.token=", "--ServerApp.disable_check_xsrf=True", "--LabApp.expose_app_in_browser=True",
        ],
        cwd=work, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
    )  # fmt: skip
    lab = Lab(browser, work, port)
    try:
        end = time.monotonic() + 60
        while True:
            try:
                lab.api("status")
                break
            except OSError:
                assert server.poll() is None and time.monotonic() < end, (folder / "log").read_text()[-2000:]
                time.sleep(0.3)
        yield lab
        lab.page.close()
        for kernel in lab.api("kernels"):
            lab.api(f"kernels/{kernel['id']}", "DELETE")
    finally:
        os.kill(server.pid, signal.SIGTERM)
        try:
            server.wait(15)
        except subprocess.TimeoutExpired:
            os.kill(server.pid, signal.SIGKILL)
            server.wait(15)
        log.close()


def test_controls_are_understood_at_both_ends(lab: Lab, screenshot: Any) -> None:
    lab.write("views.ipynb", [START, *VIEWS.values()])
    lab.open("views.ipynb")
    lab.run_all()
    lab.wait_for_views("player", "race", "stepper", "explore")
    page = lab.page
    lab.troubles.clear()  # what JupyterLab said while starting

    # play: the page tells Python ...
    player = page.locator(".rl-player").first
    player.get_by_role("button", name="Step forward").click()
    lab.until("w.position", "1")
    player.focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("r")  # JupyterLab's "to raw" in command mode
    lab.until("w.position", str(lab.remat("p.film.position")))
    assert lab.remat("p.film.again[p.film.position - 1]") == 1
    kinds = "jupyterapp.shell.currentWidget.content.widgets.map((cell) => cell.model.type)"
    assert set(page.evaluate(kinds)) == {"code"}
    slider = player.get_by_label("Position: actions done")
    before = lab.remat("p.film.position")
    slider.focus()
    page.keyboard.press("ArrowRight")
    assert lab.remat("p.film.position") == before + 1
    lab.until("w.position", str(before + 1))
    player.get_by_label("Playback speed").select_option("2")
    lab.until("w.speed", "2.0")
    # ... and Python tells the page.
    lab.python("w.position = 40")
    page.wait_for_function("document.querySelector('.rl-player').remat.film.position === 40")
    lab.python("w.speed = 8.0; w.playing = True")
    page.wait_for_function("document.querySelector('.rl-player').remat.film.position > 45")
    lab.python("w.playing = False")
    page.wait_for_function("!document.querySelector('.rl-player').remat.clock.playing")
    lab.until("w.position", str(lab.remat("p.film.position")))
    # Playing goes on while the kernel is busy.
    lab.python("w.position = 0; w.speed = 1.0")
    page.wait_for_function("document.querySelector('.rl-player').remat.film.position === 0")
    page.evaluate(
        """(() => { const { kernel } = jupyterapp.shell.currentWidget.context.sessionContext.session;
        kernel.requestExecute({ code: "import time; time.sleep(2)" }); })()"""
    )
    player.get_by_role("button", name="Play", exact=True).click()
    page.wait_for_timeout(1000)
    assert lab.remat("p.clock.measure().fps") > 15 and lab.remat("p.film.position") > 3
    player.get_by_role("button", name="Pause", exact=True).click()

    # race
    race = page.locator(".rl-race")
    race.focus()
    page.keyboard.press("p")
    lab.until("r.clock", f"{lab.remat('r.clock.position'):.1f}")
    lab.python("r.clock = 10.0")
    page.wait_for_function("document.querySelector('.rl-race').remat.clock.position === 10")

    # stepper
    stepper = page.locator(".rl-stepper")
    stepper.get_by_role("button", name="Run the first op").click()
    stepper.get_by_role("button", name="Show the answer").click()
    lab.until("(s.position, s.answered, s.asked > 0)", "(1, True, True)")
    lab.until("s.explain()", stepper.locator(".rl-said").inner_text())

    # explore: slider, breakpoints, method, objective, cancel, player
    page.wait_for_function("document.querySelector('.rl-explore').remat.explorer.points")
    explorer = page.locator(".rl-explore")
    explorer.get_by_label("Budget", exact=True).focus()
    for _ in range(12):
        page.keyboard.press("ArrowRight")
        page.wait_for_timeout(15)
    lab.until("e.budget", str(round(lab.remat("e.budget"))))
    lab.until("rl.format_bytes(e.plan.peak)", explorer.locator(".rl-result dd").nth(1).inner_text())
    latencies = sorted(lab.remat("e.latencies"))
    assert latencies[len(latencies) // 2] < 100
    explorer.focus()
    page.keyboard.press("Home")
    lab.until("e.budget == e.frontier.minimum", "True")
    lab.python("e.budget = int(e.frontier.budget[2])")
    page.wait_for_function("document.querySelector('.rl-explore').remat.explorer.point === 2")
    explorer.get_by_label("Objective", exact=True).select_option("memory")
    lab.until("(e.objective, e.status['state'])", "('memory', 'ready')")
    explorer.get_by_label("Method", exact=True).select_option("chen")
    lab.until("(e.method, e.status['state'], e.frontier.method)", "('chen', 'ready', 'chen')")
    page.wait_for_function("document.querySelector('.rl-explore').remat.explorer.points.method === 'chen'")
    assert not explorer.get_by_label("Objective", exact=True).is_visible()
    lab.python("e.budget = int(e.frontier.budget[-1])")
    explorer.get_by_role("button", name="Open the player").click()
    page.wait_for_selector(".rl-inner .rl-player")
    assert int(lab.python("print(len(e.film))")) > 0
    cancelling = (
        "import threading, time\nfrom remat_lab.progress import report\n"
        "@rl.method('slow', needs_budget=False)\n"
        "def slow(graph, request):\n    for i in range(400):\n        report(i, 400); time.sleep(0.05)\n"
        "    return rl.Solution(rl.Schedule.vanilla(graph.joint))\n"
        "e.method = 'slow'"
    )
    assert lab.python(cancelling) == ""
    page.wait_for_function("document.querySelector('.rl-work progress').value > 0")  # it says how far it is
    assert lab.python("print(6 * 7)") == "42"  # and cells run meanwhile
    explorer.get_by_role("button", name="Cancel").click()
    lab.until("e.status['state']", "cancelled")

    for theme, name in (("JupyterLab Dark", "dark"), ("JupyterLab Light", "light")):
        lab.command("apputils:change-theme", theme=theme)
        for kind in ("player", "race", "stepper", "explore"):
            page.wait_for_function(f"document.querySelector('.rl-{kind}').dataset.theme === '{name}'")
            page.locator(f".rl-{kind}").first.scroll_into_view_if_needed()
            page.wait_for_timeout(150)
            screenshot(page, f"lab-{kind}-{name}")
    assert not lab.troubles


def test_restart_reload_and_export(lab: Lab, browser: Any, tmp_path: Path) -> None:
    lab.write("kept.ipynb", [START, VIEWS["play"], VIEWS["race"]])
    lab.open("kept.ipynb")
    lab.run_all()
    lab.wait_for_views("player", "race")
    page = lab.page
    session = next(s for s in lab.api("sessions") if s["path"] == "kept.ipynb")
    lab.api(f"kernels/{session['kernel']['id']}/restart", "POST")
    page.wait_for_function(
        "jupyterapp.shell.currentWidget.context.sessionContext.session.kernel.status === 'idle'",
        timeout=60_000,
    )
    lab.troubles.clear()
    lab.run_all()
    lab.until("'w' in dir()", "True", 60)
    lab.wait_for_views("player", "race")
    page.locator(".rl-player").get_by_role("button", name="Jump to the peak").click()
    lab.until("w.position == rl.simulate(plan).peak_step + 1", "True")
    position = lab.remat("p.film.position")
    page.wait_for_timeout(300)
    lab.command("docmanager:save")
    page.wait_for_function("!jupyterapp.shell.currentWidget.context.model.dirty")
    saved = nbformat.read(lab.folder / "kept.ipynb", 4)
    assert saved.metadata.widgets

    # Reload without the kernel that made it: the saved state draws the views.
    for kernel in lab.api("kernels"):
        lab.api(f"kernels/{kernel['id']}", "DELETE")
    lab.open("kept.ipynb")
    lab.wait_for_views("player", "race")
    assert lab.remat("p.film.position") == position
    page.locator(".rl-player").get_by_role("button", name="Step forward").click()
    assert lab.remat("p.film.position") == position + 1
    assert lab.python("print('w' in dir())") == "False"
    assert not lab.troubles

    # Exported: as it was saved with the preprocessor, and without widget state by nbconvert alone.
    bare = nbformat.from_dict(saved)
    source, plain = tmp_path / "kept.ipynb", tmp_path / "bare.ipynb"
    nbformat.write(saved, source)
    del bare.metadata["widgets"]
    nbformat.write(bare, plain)
    option = "--HTMLExporter.preprocessors=remat_lab.widgets.export.KeepPlayers"
    environment = {**os.environ, "PYTHONPATH": str(HERE.parents[1])}
    for path, options in ((source, [option]), (plain, ["--theme=dark"])):
        subprocess.run(
            [sys.executable, "-m", "nbconvert", "--to", "html", *options, str(path)],
            check=True, capture_output=True, env=environment, cwd=tmp_path,
        )  # fmt: skip
        exported = browser.new_page()
        errors: list[str] = []
        exported.on("pageerror", lambda error, errors=errors: errors.append(str(error)))
        exported.route("http*://**", lambda route: route.abort())  # no kernel and no network
        exported.goto(path.with_suffix(".html").as_uri())
        exported.wait_for_function(
            "document.querySelector('.rl-player')?.remat && document.querySelector('.rl-race')?.remat"
        )
        exported.get_by_role("button", name="Jump to the peak").first.click()
        assert "This is the peak." in exported.locator(".rl-sentence").first.inner_text()
        if options == ["--theme=dark"]:
            assert exported.locator(".rl-player").get_attribute("data-theme") == "dark"
        assert not [e for e in errors if "rl-" in e or "remat" in e]
        exported.close()


def test_figures_follow_the_theme_and_stay_white_in_the_file(lab: Lab) -> None:
    other = "import matplotlib.pyplot as plt\nplt.figure(figsize=(3, 2)); plt.plot([1, 2]);"
    lab.write("figures.ipynb", ["%matplotlib inline\n" + START, "rl.plot_graph(plan);", other])
    lab.open("figures.ipynb")
    lab.run_all()
    page = lab.page
    images = page.locator(".jp-RenderedImage img")
    images.nth(1).wait_for()

    def brightness(picture: bytes) -> float:
        from matplotlib.image import imread

        return float(np.median(imread(io.BytesIO(picture))[..., :3]))

    for theme, ours in (("JupyterLab Dark", 0.07), ("JupyterLab Light", 1.0)):
        lab.command("apputils:change-theme", theme=theme)
        page.wait_for_timeout(1000)
        assert brightness(images.nth(0).screenshot()) == pytest.approx(ours, abs=0.03)
        assert brightness(images.nth(1).screenshot()) == 1  # not ours, so left alone
    style = page.locator(".jp-OutputArea-child").nth(0)
    assert style.locator("style").count() == 1 and not style.is_visible()
    lab.command("docmanager:save")
    page.wait_for_function("!jupyterapp.shell.currentWidget.context.model.dirty")
    outputs = nbformat.read(lab.folder / "figures.ipynb", 4).cells[1].outputs
    assert [sorted(output.data) for output in outputs] == [
        ["text/html", "text/plain"],
        ["image/png", "text/plain"],
    ]
    assert brightness(base64.b64decode(outputs[1].data["image/png"])) == 1


ALIVE = """import gc
from remat_lab.widgets.base import View
def alive():
    gc.collect()
    kinds = (View, rl.Trace, rl.Frontier)
    return sorted(type(o).__name__ for o in gc.get_objects() if isinstance(o, kinds))
"""


def test_twenty_views_made_and_dropped_leave_nothing(lab: Lab) -> None:
    """In the page as well as in the kernel; test_lifetime.py looks at the kernel more closely."""
    lab.write("many.ipynb", [START + ALIVE, *VIEWS.values()])
    lab.open("many.ipynb")
    lab.run_all()
    lab.wait_for_views("player", "race", "stepper", "explore")
    page = lab.page
    count = "len(get_ipython().kernel.comm_manager.comms)"
    memory = "__import__('psutil').Process().memory_info().rss"
    lab.troubles.clear()

    def again(kind: str, times: int) -> None:
        for _ in range(times):
            page.evaluate(f"document.querySelectorAll('.rl-{kind}').forEach((n) => (n.dataset.old = '1'))")
            lab.command("notebook:run-cell")
            page.wait_for_function(f"document.querySelector('.rl-{kind}:not([data-old])')?.remat")

    def all_again(times: int) -> None:
        for number, kind in enumerate(("player", "race", "stepper", "explore")):
            page.evaluate(f"jupyterapp.shell.currentWidget.content.activeCellIndex = {number + 1}")
            again(kind, times)
            lab.until("e.status['state']", "ready")

    all_again(3)  # first runs fill caches
    comms, alive = lab.python(f"print({count})"), lab.python("print(alive())")
    held = int(lab.python(f"print({memory})"))
    all_again(20)
    assert lab.python(f"print({count})") == comms
    assert lab.python("print(alive())") == alive
    grown = int(lab.python(f"print({memory})")) - held
    assert grown < 3_000_000, f"{grown} bytes more after 80 views"
    assert page.locator(".rl-view").count() == 4
    # Made, shown and closed by hand, in one cell.
    lab.python("for _ in range(20):\n    view = rl.play(plan); display(view); view.close()\ndel view")
    assert lab.python(f"print({count})") == comms and lab.python("print(alive())") == alive
    assert not lab.troubles
