"""Build the site: the course with outputs and players, the guides, the API reference. Nothing is fetched by it.

python docs/site/build.py                 into site/
python docs/site/build.py --no-run        without executing the notebooks (their outputs are then missing)
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import warnings
from html import escape
from pathlib import Path
from typing import NamedTuple

import nbformat
import pdoc
import pdoc.render
import render
from nbclient import NotebookClient
from pygments.formatters import HtmlFormatter

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]

#: Guides after the course, if they are there, in this order; other docs/*.md follow by name.
GUIDES = (
    "docs/reproduction.md",
    "docs/write_a_method.md",
    "docs/architecture.md",
    "benchmarks/README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
)


class Page(NamedTuple):
    """One page: where it comes from, where it goes (relative to the site), what it is called."""

    source: Path
    target: str
    title: str


def lessons() -> list[Page]:
    found = []
    for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
        title = render.heading(nbformat.read(path, as_version=4).cells[0].source)
        found.append(Page(path, f"course/{path.stem}.html", title))
    return found


def guides() -> list[Page]:
    def name(path: Path) -> str:
        return path.parent.name if path.stem == "README" else path.stem

    paths = [ROOT / name for name in GUIDES]
    paths += sorted(set((ROOT / "docs").glob("*.md")) - set(paths))
    return [
        Page(path, f"guide/{name(path).lower()}.html", render.heading(path.read_text("utf-8")))
        for path in paths
        if path.exists()
    ]


def style() -> str:
    """The style sheet of every page, with code colours for both themes."""
    light = HtmlFormatter(style="friendly").get_style_defs("pre.code")
    dark = HtmlFormatter(style="github-dark").get_style_defs("pre.code")
    # The page sets background and frame itself.
    plain = re.compile(
        r"^(pre\.code \{|td\.linenos|span\.linenos|pre \{|pre\.code \.hll).*$", flags=re.MULTILINE
    )
    light, dark = plain.sub("", light), plain.sub("", dark)
    return f"{(HERE / 'style.css').read_text('utf-8')}\n{light}\n@media (prefers-color-scheme: dark) {{\n{dark}\n}}\n"


def shell(page: Page, body: str, course: list[Page], others: list[Page]) -> str:
    """A whole page around its body."""
    up = "../" * page.target.count("/")

    def item(target: str, title: str) -> str:
        here = ' aria-current="page"' if target == page.target else ""
        return f'<li><a href="{up}{target}"{here}>{escape(title)}</a></li>'

    nav = item("index.html", "remat_lab")
    nav += "<li><b>Course</b></li>" + "".join(item(p.target, p.title) for p in course)
    nav += "<li><b>Guides</b></li>" + "".join(item(p.target, p.title) for p in others)
    nav += "<li><b>Reference</b></li>" + item("api/remat_lab.html", "API")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<title>{escape(page.title)}</title>\n<link rel="icon" href="data:,">\n'
        f'<link rel="stylesheet" href="{up}style.css">\n</head>\n<body>\n<input type="checkbox" id="menu">'
        f'<label for="menu">Contents</label>\n<nav><ul>{nav}</ul></nav>\n'
        f"<main>\n{body}\n{turn(page, course, up)}</main>\n"
        "</body>\n</html>\n"
    )


def turn(page: Page, course: list[Page], up: str) -> str:
    """Links to the lessons before and after."""
    if page not in course:
        return ""
    at = course.index(page)

    def link(i: int, words: str) -> str:
        if not 0 <= i < len(course):
            return "<span></span>"
        return f'<a href="{up}{course[i].target}">{words.format(escape(course[i].title))}</a>'

    return f'<div class="turn">{link(at - 1, "← {}")}{link(at + 1, "{} →")}</div>\n'


def links_from(page: Page, pages: list[Page]) -> dict[str, str]:
    """How each page's source may be written in this page's source, and its place on the site."""
    up = "../" * page.target.count("/")
    return {os.path.relpath(p.source, page.source.parent): up + p.target for p in pages}


def with_pictures(body: str, up: str) -> str:
    """Point a page's pictures, those for dark pages included, to their places on the site."""

    def moved(found: re.Match[str]) -> str:
        places = re.sub(
            r"(^|,\s*)(?:\.\./)?(?:docs/)?(images|figures)/", rf"\g<1>{up}\g<2>/", found["places"]
        )
        return f'{found["name"]}="{places}"'

    return re.sub(r'\b(?P<name>src|srcset)="(?P<places>[^"]*)"', moved, body)


def with_files(body: str, page: Page, site: Path) -> str:
    """Copy the files that a page links to and that are no pages, and link to the copies."""
    up = "../" * page.target.count("/")

    def copied(found: re.Match[str]) -> str:
        path = (page.source.parent / found[1]).resolve()
        if found[1].startswith(up or "/") or not path.is_file() or not path.is_relative_to(ROOT):
            return found[0]
        place = Path("files") / path.relative_to(ROOT)
        (site / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, site / place)
        return f'href="{up}{place.as_posix()}"'

    return re.sub(r'href="([\w./-]+)"', copied, body)


def execute(path: Path) -> nbformat.NotebookNode:
    node = nbformat.read(path, as_version=4)
    client = NotebookClient(
        node, timeout=300, kernel_name="python3", resources={"metadata": {"path": path.parent}}
    )
    # A kernel's own log is no output of the notebook; an error in a cell is raised here.
    asyncio.run(client.async_execute(stderr=subprocess.DEVNULL))
    return node


def build_reference(out: Path) -> None:
    """pdoc's pages, in the site's colours."""
    pdoc.render.configure(docformat="numpy", template_directory=HERE / "pdoc", search=True, show_source=True)
    sys.path.insert(0, str(ROOT))  # the checkout, installed or not
    package = importlib.import_module("remat_lab")
    names = [found.name for found in pkgutil.walk_packages(package.__path__, "remat_lab.")]
    wanted = [f"!{name}" if "._" in name else name for name in names]
    with warnings.catch_warnings():
        # Names that are imported for type checkers only stay as they are written.
        warnings.filterwarnings("ignore", message="Error parsing type annotation")
        warnings.filterwarnings(
            "ignore", message="The module specification"
        )  # "remat_lab.zoo" brings its own
        pdoc.pdoc("remat_lab", *wanted, output_directory=out)


def fetched(site: Path) -> list[str]:
    """Whatever a page would load from elsewhere: there must be none."""
    loads = re.compile(
        r"<(?:script|img|iframe|source|audio|video|embed)\b[^>]*\bsrc(?:set)?=\"(?:[^\"]*,\s*)?(?:https?:)?//[^\"]*\""
        r"|<link\b[^>]*\bhref=\"(?:https?:)?//[^\"]*\"|@import|url\(['\"]?(?:https?:)?//[^)]*\)"
    )
    found = []
    for path in sorted(site.rglob("*")):
        if path.suffix in {".html", ".css"}:
            found += [
                f"{path.relative_to(site)}: {m[0][:120]}" for m in loads.finditer(path.read_text("utf-8"))
            ]
    return found


def build(site: Path, *, run: bool = True, reference: bool = True) -> None:
    """Write the whole site into an empty folder."""
    shutil.rmtree(site, ignore_errors=True)
    site.mkdir(parents=True)
    course, others = lessons(), guides()
    home = Page(ROOT / "README.md", "index.html", "remat_lab")
    pages = [home, *course, *others]
    (site / "style.css").write_text(style(), "utf-8")
    for folder in ("images", "figures"):
        if (ROOT / "docs" / folder).is_dir():
            shutil.copytree(ROOT / "docs" / folder, site / folder)
    for page in pages:
        links = links_from(page, pages)
        if page.source.suffix == ".ipynb":
            print(f"{'running' if run else 'reading'} {page.source.name}", flush=True)
            node = execute(page.source) if run else nbformat.read(page.source, as_version=4)
            body = render.notebook(node, links)
        else:
            body = render.markdown(page.source.read_text("utf-8"), links)
            body = with_pictures(body, "../" * page.target.count("/"))
        body = with_files(body, page, site)
        target = site / page.target
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(shell(page, body, course, others), "utf-8")
    if reference:
        build_reference(site / "api")
    elsewhere = fetched(site)
    if elsewhere:
        raise SystemExit("pages that load something from elsewhere:\n" + "\n".join(elsewhere))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--no-run", action="store_true", help="do not execute the notebooks")
    parser.add_argument("--no-reference", action="store_true", help="leave the API reference out")
    parser.add_argument("out", nargs="?", type=Path, default=ROOT / "site")
    options = parser.parse_args()
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    os.environ.setdefault("REMAT_LAB_QUIET", "1")  # a lesson's page does not tell what this machine compiles
    build(options.out, run=not options.no_run, reference=not options.no_reference)
    print(f"open {options.out / 'index.html'}")


if __name__ == "__main__":
    sys.exit(main())
