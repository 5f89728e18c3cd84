"""How quick the views are, measured in the page: slider to redraw, playback, scrubbing, payload.

    python benchmarks/views.py [folder with graph files]

Each ``*.txt`` or ``*.json`` graph file in the folder is explored with the approximate family; without a folder the
seven benchmark networks are captured (layers, at the paper's sizes). Needs Chromium and playwright.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "widgets")]

import graphs  # noqa: E402
from playwright.sync_api import sync_playwright  # noqa: E402

import remat_lab as rl  # noqa: E402
from remat_lab.widgets.film import film  # noqa: E402

FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()

PLAYBACK = """async () => { const { clock } = document.querySelector('.rl-player').remat;
  clock.play(); await new Promise((r) => setTimeout(r, 4000)); clock.pause(); return clock.measure(); }"""
SCRUB = """async () => { const { player, film } = document.querySelector('.rl-player').remat, took = [];
  for (let i = 0; i < 41; i++) { const t = performance.now(); player.seek((i * 7919 * 13) % film.length);
    await new Promise((r) => requestAnimationFrame(() => setTimeout(r))); took.push(performance.now() - t); }
  took.sort((a, b) => a - b); return [took[20], took[38]]; }"""


def load(folder: Path | None) -> dict[str, Any]:
    if folder is None:
        from remat_lab.zoo.networks import build

        names = ("vgg19", "resnet50", "resnet152", "densenet161", "googlenet", "unet", "pspnet")
        return {name: rl.capture(*build(name)).layers for name in names}
    files = sorted([*folder.glob("*.txt"), *folder.glob("*.json")])
    return {path.stem.removeprefix("cg_"): rl.load_graph(path) for path in files}


def slider(browser: Any, page_file: Path) -> list[float]:
    """Milliseconds from each slider event to the frame that shows it."""
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    page.goto(page_file.as_uri())
    page.wait_for_function("document.querySelector('.rl-explore')?.remat")
    box = page.get_by_label("Budget", exact=True).bounding_box()
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] / 2, y)
    page.mouse.down()
    for i in range(80):  # a drag to and fro
        share = 0.5 + 0.45 * (i % 40 - 20) / 20
        page.mouse.move(box["x"] + share * box["width"], y)
        page.wait_for_timeout(12)
    page.mouse.up()
    times = page.evaluate("document.querySelector('.rl-explore').remat.explorer.latencies")
    page.close()
    return sorted(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path)
    problems = load(parser.parse_args().folder)
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as scratch:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        print("| graph | points | frontier sent | slider to redraw: median, 95% | film at the least budget |")
        print("|---|---|---|---|---|")
        for name, problem in problems.items():
            explorer = rl.explore(problem)
            explorer.wait()
            path = rl.save_html(explorer, Path(scratch) / f"{name}.html")
            times = slider(browser, path)
            middle, late = times[len(times) // 2], times[int(0.95 * len(times))]
            sent, packet = len(explorer.points), len(film(rl.simulate(explorer.frontier.plan(0))))
            print(
                f"| {name} | {len(explorer.frontier)} | {sent / 1e3:.0f} kB | {middle:.0f} ms, {late:.0f} ms | "
                f"{packet / 1e3:.0f} kB |",
                flush=True,
            )
            explorer.close()
        print("\n| schedule | steps | sent | playback | longest gap | scrub: median, 95% |")
        print("|---|---|---|---|---|---|")
        residual = problems.get("resnet152") or graphs.residual()
        for name, shown in (
            ("ResNet-152, least budget", rl.frontier(residual).plan(0)),
            ("chain of 8,700 in segments of 64", graphs.segmented(graphs.chain(8700), 64)),
        ):
            trace = rl.simulate(shown)
            page = browser.new_page(viewport={"width": 1280, "height": 1000})
            page.goto(rl.save_html(trace, Path(scratch) / "play.html").as_uri())
            page.wait_for_function("document.querySelector('.rl-player')?.remat", timeout=60_000)
            played, scrubbed = page.evaluate(PLAYBACK), page.evaluate(SCRUB)
            print(
                f"| {name} | {len(trace.during):,} | {len(film(trace)) / 1e3:.0f} kB | {played['fps']:.0f} frames/s | "
                f"{played['longest']:.0f} ms | {scrubbed[0]:.0f} ms, {scrubbed[1]:.0f} ms |",
                flush=True,
            )
            page.close()
        browser.close()


if __name__ == "__main__":
    main()
