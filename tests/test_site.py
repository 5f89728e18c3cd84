"""The site: pages without anything fetched, links that lead somewhere, formulas as MathML."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import nbformat
import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def build() -> ModuleType:
    sys.path.insert(0, str(ROOT / "docs" / "site"))
    try:
        import build
    finally:
        sys.path.pop(0)
    return build


@pytest.fixture(scope="module")
def site(build: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build.build(folder, run=False, reference=False)
    return folder


def test_site_has_every_lesson_and_guide(site: Path) -> None:
    course = {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert {path.stem for path in (site / "course").glob("*.html")} == course
    guides = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert guides <= {path.stem for path in (site / "guide").glob("*.html")}


def test_relative_links_lead_somewhere(site: Path) -> None:
    """The reference is left out here: these pages are built without it."""
    lost = []
    for path in site.rglob("*.html"):
        text = path.read_text("utf-8")
        several = [
            part.split()[0] for found in re.findall(r'srcset="([^"]+)"', text) for part in found.split(",")
        ]
        for target in [*re.findall(r'(?:href|src)="([^"]+)"', text), *several]:
            if re.match(r"[a-z]+:", target) or target.startswith("#") or "api/" in target:
                continue
            if not (path.parent / target.partition("#")[0]).exists():
                lost.append(f"{path.relative_to(site)}: {target}")
    assert lost == []


def test_pictures_for_dark_pages_are_found_too(build: ModuleType, site: Path) -> None:
    assert 'srcset="images/play-dark.png"' in (site / "index.html").read_text("utf-8")
    html = '<source srcset="../docs/images/a.png 1x, docs/figures/b.png 2x"><img src="images/a.png">'
    moved = '<source srcset="../images/a.png 1x, ../figures/b.png 2x"><img src="../images/a.png">'
    assert build.with_pictures(html, "../") == moved


def test_formulas_become_mathml_and_solutions_stay_folded(site: Path) -> None:
    page = (site / "course" / "01-why-backward-needs-memory.html").read_text("utf-8")
    assert "<math" in page and "\\tfrac" not in page
    assert page.count("<details><summary>Solution</summary>") == 4


def test_what_would_be_fetched_is_found(build: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<script async src="https://example.org/x.js"></script><a href="https://b.c">'
    )
    (tmp_path / "b.css").write_text("@import 'x.css'; a { background: url(//example.org/y.png) }")
    (tmp_path / "c.html").write_text('<img srcset="a.png 1x, https://example.org/a.png 2x">')
    assert len(build.fetched(tmp_path)) == 4


def test_outputs_are_shown_in_their_richest_form(build: ModuleType) -> None:
    outputs = [
        nbformat.v4.new_output("stream", text="a < b"),
        nbformat.v4.new_output("display_data", {"text/html": "<i>x</i>", "text/plain": "x"}),
        nbformat.v4.new_output("display_data", {"image/png": "AAAA", "text/plain": "a figure"}),
    ]
    cell = nbformat.v4.new_code_cell("1", outputs=outputs)
    html = build.render.notebook(nbformat.v4.new_notebook(cells=[cell]))
    assert "a &lt; b" in html and "<i>x</i>" in html and "data:image/png;base64,AAAA" in html
