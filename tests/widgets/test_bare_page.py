"""The modules with nothing around them but what anywidget promises: a model, an element, and a strict page.

So it is in VS Code, whose webview has no Jupyter, in part its colours, and a content policy; and in any other host.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import graphs
import pytest

import remat_lab as rl
from remat_lab.widgets.base import View

pytestmark = pytest.mark.browser

#: Scripts only with the nonce or from a blob, as anywidget loads them: no eval, no inline script, no network.
POLICY = "default-src 'none'; script-src 'nonce-host' blob:; style-src 'unsafe-inline'; img-src data:"
#: VS Code's own colours; with them come Jupyter's, which are light in every theme, and a white ground.
EDITOR = {
    "vscode-dark": {"editor-background": "#1f1f1f", "editor-foreground": "#cccccc", "descriptionForeground": "#9d9d9d"},
    "vscode-light": {"editor-background": "#fdfdfd", "editor-foreground": "#3b3b3b", "descriptionForeground": "#333"},
    "vscode-high-contrast": {"editor-background": "#000000", "editor-foreground": "#ffffff"},
}  # fmt: skip
JUPYTER = ":root { --jp-layout-color0: white; --jp-layout-color1: white; --jp-layout-color2: #eee; --jp-content-font-color1: rgba(0, 0, 0, .87); --jp-content-font-color2: rgba(0, 0, 0, .54); --jp-border-color2: #e0e0e0; } .cell-output-ipywidget-background { background: white !important; }"  # fmt: skip # noqa: E501
HOST = """
const { esm, values } = JSON.parse(document.getElementById("given").textContent);
const bytes = (text) => { // as a message's buffer arrives: somewhere within a larger one
  const found = Uint8Array.from(atob(text), (c) => c.charCodeAt(0)), whole = new Uint8Array(found.length + 5);
  whole.set(found, 3);
  return new DataView(whole.buffer, 3, found.length);
};
const decode = (v) => Array.isArray(v) ? v.map(decode) : v?.$bytes === undefined ? v : bytes(v.$bytes);
for (const name of Object.keys(values)) values[name] = decode(values[name]);
const listeners = {}, host = { values, saved: 0, sent: [] };
globalThis.host = host;
const model = Object.freeze({
  get: (name) => values[name],
  set(name, value) { values[name] = value; (listeners[`change:${name}`] ?? []).forEach((fn) => fn()); },
  save_changes() { host.saved += 1; },
  on(name, fn) { (listeners[name] ??= []).push(fn); },
  off(name, fn) { listeners[name] = (listeners[name] ?? []).filter((other) => other !== fn); },
});
const url = URL.createObjectURL(new Blob([esm], { type: "text/javascript" }));
const widget = (await import(url)).default, el = document.querySelector(".jupyter-widgets");
await widget.initialize?.({ model });
const end = await widget.render({ model, el });
host.end = () => { end(); return Object.values(listeners).flat().length; };
host.set = (name, value) => model.set(name, value);
"""


def page_of(view: View, *, body: str = "", style: str = "") -> str:
    def encode(value: Any) -> Any:
        if isinstance(value, bytes):
            return {"$bytes": base64.b64encode(value).decode()}
        return [encode(item) for item in value] if isinstance(value, list) else value

    given = {"esm": view._esm, "values": {name: encode(value) for name, value in view.state().items()}}
    data = json.dumps(given).replace("</", "<\\/")
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f"<title>bare</title><style>{style}</style><style>{view._css}</style></head><body {body}>"
        f'<div class="cell-output-ipywidget-background"><div class="jupyter-widgets"></div></div>'
        f'<script type="application/json" id="given">{data}</script>'
        f'<script type="module" nonce="host">{HOST}</script></body></html>'
    )


@pytest.fixture(scope="module")
def views() -> Iterator[dict[str, View]]:
    graph = graphs.branches()
    plan = rl.solve(graph, "min")
    explorer = rl.explore(graph, budget="70%")
    assert explorer.wait(60)
    made = {
        "play": rl.play(plan),
        "race": rl.race([rl.solve(graph, None, "vanilla"), plan]),
        "stepper": rl.stepper(plan),
        "explore": explorer,
    }
    yield made
    for view in made.values():
        view.close()


def until(page: Any, expression: str) -> None:
    """Wait for it to hold; Playwright's own waiting would need eval in the page."""
    for _ in range(100):
        if page.evaluate(expression):
            return
        page.wait_for_timeout(50)
    raise AssertionError(expression)


def press_everything(page: Any, kind: str) -> None:
    """Use the view as a reader would, and see that it answers and tells its model."""
    press = lambda label: page.get_by_role("button", name=label, exact=True).click()  # noqa: E731
    value = lambda name: page.evaluate(f"host.values.{name}")  # noqa: E731
    if kind == "play":
        press("Step forward")
        page.locator(".rl-player").focus()
        page.keyboard.press("ArrowRight")
        until(page, "host.values.position === 2 && host.saved > 0")
        press("Play")
        until(page, "document.querySelector('.rl-player').remat.film.position > 3")
        press("Pause")
        page.evaluate("host.set('position', 40)")
        assert page.evaluate("document.querySelector('.rl-player').remat.film.position") == 40
    elif kind == "race":
        press("Jump to the peak")
        until(page, "host.values.clock > 0 && host.saved > 0")
    elif kind == "stepper":
        press("Run the first op")
        press("Show the answer")
        until(page, "host.values.position === 1 && host.values.answered && host.saved > 0")
    else:
        page.get_by_label("Budget", exact=True).fill("900")
        until(page, "host.saved > 0")
        press("Open the player")
        assert value("ask")["want"] == "film"
        page.get_by_label("Objective", exact=True).select_option("memory")
        assert value("objective") == "memory"


@pytest.mark.parametrize("theme", ["vscode-dark", "vscode-light", "vscode-high-contrast", "dark", "light"])
@pytest.mark.parametrize("kind", ["play", "race", "stepper", "explore"])
def test_a_view_needs_nothing_but_its_model(
    browser: Any,
    tmp_path: Path,
    screenshot: Callable[..., None],
    views: dict[str, View],
    kind: str,
    theme: str,
) -> None:
    view, dark = views[kind], theme not in ("light", "vscode-light")
    if theme in EDITOR:
        colours = "".join(f"--vscode-{name}: {value};" for name, value in EDITOR[theme].items())
        style = f"{JUPYTER} html {{ {colours} }} body {{ background: var(--vscode-editor-background); }}"
        source = page_of(view, body=f'class="{theme}" data-vscode-theme-kind="{theme}"', style=style)
    else:
        source = page_of(view, style=f":root {{ color-scheme: {theme}; }}")
    path = tmp_path / "bare.html"
    path.write_text(source, encoding="utf-8")
    page = browser.new_page(viewport={"width": 900, "height": 800})
    troubles: list[str] = []
    page.on("console", lambda m: troubles.append(m.text) if m.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.goto(path.as_uri())
    until(page, "Boolean(document.querySelector('.rl-view')?.remat)")
    root = page.locator(".rl-view").first
    assert root.get_attribute("data-theme") == ("dark" if dark else "light")
    ground, ink, behind = page.evaluate(
        """(() => { const s = getComputedStyle(document.querySelector('.rl-view'));
        const behind = getComputedStyle(document.querySelector('.cell-output-ipywidget-background')).backgroundColor;
        return [s.backgroundColor, s.color, behind]; })()"""
    )
    light = {
        name: sum(map(int, text[4:-1].split(","))) / 3 for name, text in (("ground", ground), ("ink", ink))
    }
    assert abs(light["ground"] - light["ink"]) > 110 and (light["ground"] < light["ink"]) == dark
    assert behind == "rgba(0, 0, 0, 0)"  # no white frame round a dark view
    press_everything(page, kind)
    page.wait_for_timeout(150)
    assert page.evaluate(
        """[...document.querySelectorAll('canvas')].filter((c) => c.clientWidth).every((c) =>
        c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some((v) => v))"""
    )
    screenshot(page, f"bare-{kind}-{theme}")
    if theme == "vscode-dark":  # the editor's theme changes while the view is on show
        page.evaluate(
            """() => { const style = document.documentElement.style;
            style.setProperty("--vscode-editor-background", "#ffffff");
            style.setProperty("--vscode-editor-foreground", "#333333");
            document.body.className = document.body.dataset.vscodeThemeKind = "vscode-light"; }"""
        )
        until(page, "document.querySelector('.rl-view').dataset.theme === 'light'")
    assert page.evaluate("host.end()") == 0  # no listener is left
    page.close()
    assert not troubles


def test_a_silent_solve_is_seen_to_go_on(browser: Any, tmp_path: Path, views: dict[str, View]) -> None:
    path = tmp_path / "bare.html"
    path.write_text(page_of(views["explore"]), encoding="utf-8")
    page = browser.new_page(viewport={"width": 900, "height": 800})
    page.goto(path.as_uri())
    until(page, "Boolean(document.querySelector('.rl-view')?.remat)")
    work = page.locator(".rl-work")
    assert not work.is_visible()
    page.evaluate("host.set('status', { state: 'solving', rev: 9, method: 'oracle', done: 0, total: 0 })")
    assert work.inner_text().startswith("solving oracle")
    assert work.locator("progress").is_visible() and work.locator("progress").get_attribute("value") is None
    work.get_by_text("1 s", exact=True).wait_for()
    # A report makes the bar say how far it is; the seconds go on, with or without another.
    page.evaluate("host.set('status', { state: 'solving', rev: 9, method: 'oracle', done: 3, total: 4 })")
    assert work.locator("progress").evaluate("bar => bar.value / bar.max") == 0.75
    work.get_by_text("2 s", exact=True).wait_for()
    page.evaluate("host.set('status', { state: 'ready', rev: 9, method: 'oracle' })")
    assert not work.is_visible()
    # A question that the kernel is too busy to answer.
    page.get_by_role("button", name="Open the player").click()
    work.get_by_text("waiting for the kernel").wait_for()
    work.get_by_text("1 s", exact=True).wait_for()
    assert work.locator("progress").is_visible()
    page.close()
