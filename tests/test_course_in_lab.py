"""Every lesson in a real JupyterLab: run all cells, press the first button of every view, look in both themes."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
SCREENSHOTS = ROOT / "artifacts" / "screenshots" / "course"
SETTINGS = {
    "notebook-extension/tracker": {"windowingMode": "none"},
    "apputils-extension/notification": {"fetchNews": "false", "checkForUpdates": False},
}
PANEL = ".jp-NotebookPanel:not(.lm-mod-hidden)"
lessons = sorted((ROOT / "notebooks").glob("*.ipynb"))

pytestmark = [pytest.mark.slow, pytest.mark.browser]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a JupyterLab with settings of its own, on copies of the lessons."""
    home = tmp_path_factory.mktemp("lab")
    for path in lessons:
        (home / "lessons").mkdir(exist_ok=True)
        shutil.copy(path, home / "lessons")
    for name, values in SETTINGS.items():
        path = home / "settings" / "@jupyterlab" / f"{name}.jupyterlab-settings"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(values))
    own = {f"JUPYTER_{kind}_DIR": str(home / kind.lower()) for kind in ("CONFIG", "DATA", "RUNTIME")}
    own |= {f"JUPYTERLAB_{kind}_DIR": str(home / kind.lower()) for kind in ("SETTINGS", "WORKSPACES")}
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = (
        "--no-browser --allow-root --ip=127.0.0.1 --ServerApp.port_retries=0 --IdentityProvider.token= "
        f"--ServerApp.disable_check_xsrf=True --LabApp.expose_app_in_browser=True --port={port}"
    ).split()
    command = [sys.executable, "-m", "jupyterlab", *options, f"--ServerApp.root_dir={home / 'lessons'}"]
    address = f"http://127.0.0.1:{port}"
    with open(home / "log", "w") as log:
        environment = {**os.environ, **own, "PYTHONPATH": str(ROOT)}
        environment.pop("MPLBACKEND", None)  # the tests' own would draw no figure in the notebook
        server = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
    try:
        for _ in range(120):
            try:
                urllib.request.urlopen(f"{address}/api", timeout=2).close()
                break
            except (urllib.error.URLError, ConnectionError, TimeoutError):
                time.sleep(0.5)
        else:
            pytest.fail((home / "log").read_text())
        yield address
    finally:
        server.terminate()
        server.wait(timeout=30)


@pytest.fixture(scope="module")
def chrome(chromium: str) -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield browser
        browser.close()


def command(page: Any, name: str, **arguments: Any) -> None:
    """Start a command of JupyterLab; some of them end only when something else does, so do not wait."""
    page.evaluate(
        "([name, given]) => void window.jupyterapp.commands.execute(name, given)", [name, arguments]
    )


def take_pictures(page: Any, stem: str, theme: str) -> None:
    """The whole lesson from top to bottom, a screen at a time."""
    command(page, "apputils:change-theme", theme=f"JupyterLab {theme}")
    page.wait_for_timeout(1000)
    outer = f"{PANEL} .jp-WindowedPanel-outer"
    height = page.evaluate(f"document.querySelector('{outer}').scrollHeight")
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    for number, top in enumerate(range(0, height, 1200)):
        page.evaluate(f"document.querySelector('{outer}').scrollTop = {top}")
        page.wait_for_timeout(200)
        page.screenshot(path=SCREENSHOTS / f"{stem}-{theme.lower()}-{number}.png")


@pytest.mark.parametrize("path", lessons, ids=[path.stem for path in lessons])
def test_lesson_runs_in_jupyterlab_and_its_views_answer(path: Path, lab: str, chrome: Any) -> None:
    page = chrome.new_page(viewport={"width": 1280, "height": 1400})
    page.set_default_timeout(120_000)  # scrolling and clicking wait for a quiet page, long on a busy machine
    errors: list[str] = []
    page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: errors.append(str(error)))
    # A workspace of its own, so that the lesson before is not opened again beside it.
    page.goto(f"{lab}/lab/workspaces/{path.stem}/tree/{path.name}")
    page.wait_for_selector(f"{PANEL} .jp-Cell", timeout=60_000)
    # A run before the kernel answers is lost.
    page.wait_for_function(
        "() => window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'",
        timeout=90_000,
    )
    command(page, "application:toggle-left-area")
    command(page, "notebook:run-all-cells")
    page.wait_for_function(
        # A folded cell shows no prompt.
        "panel => { const p = [...document.querySelectorAll(panel + ' .jp-CodeCell .jp-InputPrompt')];"
        " const said = p.map((e) => e.textContent.trim()).filter((text) => text);"
        " return said.some((text) => /\\d/.test(text)) && !said.some((text) => /^\\[[* ]\\]/.test(text)); }",
        arg=PANEL,
        timeout=300_000,
    )
    assert page.locator(f"{PANEL} [data-mime-type='application/vnd.jupyter.stderr']").count() == 0
    cells = [
        cell["source"] for cell in json.loads(path.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"
    ]
    ends = ["".join(source).splitlines()[-1] for source in cells]
    wanted = sum(end.startswith(("rl.play(", "rl.stepper(", "rl.race(", "rl.explore(")) for end in ends)
    views = page.locator(f"{PANEL} .rl-view")
    if wanted:
        views.nth(wanted - 1).wait_for()
    page.wait_for_timeout(1000)
    # From the last to the first: a button may open a further view, which would shift those after it.
    for i in reversed(range(views.count())):
        views.nth(i).locator("button:enabled:visible").first.click()
    for theme in ("Light", "Dark"):
        take_pictures(page, path.stem, theme)
    page.close()
    assert errors == []
