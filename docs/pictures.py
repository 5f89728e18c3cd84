"""Make the README's pictures: python docs/pictures.py (needs Chromium and playwright; about two minutes).

Screens of the views, an animated SVG of memory in motion, and figures, all of captured benchmark networks.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import matplotlib  # noqa: E402

matplotlib.use("Agg")

from playwright.sync_api import sync_playwright  # noqa: E402

import remat_lab as rl  # noqa: E402
from remat_lab.widgets.moving import moving_picture  # noqa: E402
from remat_lab.zoo.networks import build  # noqa: E402

IMAGES = ROOT / "docs" / "images"
MOST = 300_000  # bytes a picture
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
]


def screen(browser: Any, page_file: Path, name: str, theme: str, prepare: str) -> None:
    page = browser.new_page(
        viewport={"width": 1120, "height": 700}, color_scheme=theme, device_scale_factor=1.5
    )
    page.goto(page_file.as_uri())
    page.wait_for_function("document.querySelector('.rl-view')?.remat")
    page.evaluate(prepare)
    page.wait_for_timeout(300)
    page.locator(".rl-view").first.screenshot(path=IMAGES / f"{name}.png")
    page.close()


def main() -> None:
    IMAGES.mkdir(parents=True, exist_ok=True)
    resnet = rl.capture(*build("resnet50")).layers
    googlenet = rl.capture(*build("googlenet")).layers
    vanilla, least = rl.solve(resnet, None, "vanilla"), rl.solve(resnet, "min")
    (IMAGES / "moving.svg").write_text(
        moving_picture(rl.simulate(rl.solve(googlenet, "min"))), encoding="utf-8"
    )
    rl.plot_memory(
        {"vanilla": vanilla, "chen": rl.solve(resnet, "min", "chen"), "kusumoto-approx": least}, x="time"
    )
    matplotlib.pyplot.savefig(IMAGES / "memory.svg")
    rl.plot_graph(least)
    matplotlib.pyplot.savefig(IMAGES / "graph.svg")
    rl.plot_frontier([rl.frontier(resnet), rl.frontier(resnet, "chen")])
    matplotlib.pyplot.savefig(IMAGES / "frontier.svg")
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as scratch:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        folder = Path(scratch)
        pages = {
            "play": least,
            "race": {"vanilla": vanilla, "kusumoto-approx": least},
            "stepper": rl.stepper(least),
        }
        explorer = rl.explore(resnet, budget="45%")
        explorer.wait()
        explorer.ask = {"rev": 1, "want": "film"}
        for name, shown in {**pages, "explore": explorer}.items():
            rl.save_html(shown, folder / f"{name}.html")
        moved = {
            "play": "(({ player }) => player.seek(player.film.nextRecomputation(830) + 8))"
            "(document.querySelector('.rl-player').remat)",
            "race": "(({ race }) => race.seek(0.62 * race.clock.length))(document.querySelector('.rl-race').remat)",
            "stepper": "document.querySelector('.rl-stepper').remat.stepper.open(330)",
            "explore": "0",
        }
        for name, prepare in moved.items():
            for theme in ("light", "dark") if name in ("play", "explore") else ("light",):
                screen(browser, folder / f"{name}.html", f"{name}-{theme}", theme, prepare)
        browser.close()
    for path in sorted(IMAGES.iterdir()):
        size = path.stat().st_size
        print(f"{path.name:24} {size / 1000:6.0f} kB" + ("  too large" if size > MOST else ""))


if __name__ == "__main__":
    main()
