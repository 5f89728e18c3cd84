"""Keep notebooks/NN-name.ipynb and its text twin notebooks/text/NN-name.md in step.

The text is the source: it is what you edit and review. The notebook is made from it, without outputs, with
code formatted by ruff where ruff is installed (and the text then takes the formatted code).

    python notebooks/sync.py                  text -> notebooks
    python notebooks/sync.py --from-ipynb     notebooks -> text, after editing in JupyterLab; drops outputs
    python notebooks/sync.py --check          say which pairs disagree; exit status 1 if any does

Names after the options ("03-graphs") restrict it to those notebooks.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jupytext
import nbformat
from nbformat import NotebookNode

HERE = Path(__file__).resolve().parent
TEXT = HERE / "text"
FORMAT = "md:myst"

#: What a notebook of the course says about itself, and nothing else: outputs and widget state are not kept.
METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}
KEPT_CELL_METADATA = ("tags", "jupyter", "wrong")


def clean(notebook: NotebookNode) -> NotebookNode:
    """The same cells without outputs, counts and editors' metadata; ids follow from the cells' text."""
    cells, seen = [], set[str]()
    for cell in notebook.cells:
        source = cell.source.strip("\n")
        if not source:
            continue
        digest = hashlib.sha256(f"{cell.cell_type}\n{source}".encode()).hexdigest()
        name = next(digest[:length] for length in range(8, 65) if digest[:length] not in seen)
        seen.add(name)
        made = nbformat.v4.new_code_cell(source) if cell.cell_type == "code" else None
        made = made or nbformat.v4.new_markdown_cell(source)
        made.id = name
        made.metadata = nbformat.from_dict(
            {key: cell.metadata[key] for key in KEPT_CELL_METADATA if key in cell.metadata}
        )
        cells.append(made)
    return nbformat.v4.new_notebook(cells=cells, metadata=nbformat.from_dict(METADATA))


def read_text(path: Path) -> NotebookNode:
    return clean(jupytext.read(path, fmt=FORMAT))


def read_ipynb(path: Path) -> NotebookNode:
    return clean(nbformat.read(path, as_version=4))


def to_text(notebook: NotebookNode) -> str:
    text = jupytext.writes(notebook, fmt=FORMAT)
    # The version of the writer would change every file with every release.
    return re.sub(r"^ *jupytext_version:.*\n", "", text, count=1, flags=re.MULTILINE)


def to_ipynb(notebook: NotebookNode) -> str:
    return nbformat.writes(notebook, version=4, ensure_ascii=False, indent=1) + "\n"


def write(path: Path, text: str) -> bool:
    """Write if it differs; say so."""
    if path.exists() and path.read_text(encoding="utf-8") == text:
        return False
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    print(f"wrote {path.relative_to(HERE.parent)}")
    return True


def format_code(paths: list[Path]) -> None:
    """Format the code cells. Without ruff they stay as they are; the lint step reports them."""
    if paths and shutil.which("ruff"):
        subprocess.run(["ruff", "format", "--quiet", *map(str, paths)], check=True, cwd=HERE.parent)


def disagreements(name: str) -> list[str]:
    """What is wrong with one pair, in sentences; none if it is in order."""
    text, ipynb = TEXT / f"{name}.md", HERE / f"{name}.ipynb"
    for path in (text, ipynb):
        if not path.exists():
            return [f"{name}: {path.relative_to(HERE.parent)} is missing"]
    found = []
    if to_ipynb(read_ipynb(ipynb)) != ipynb.read_text(encoding="utf-8"):
        found.append(f"{name}: the .ipynb carries outputs, execution counts or an editor's metadata")
    if read_text(text).cells != read_ipynb(ipynb).cells:
        found.append(f"{name}: the .md and the .ipynb differ")
    return found


def names() -> list[str]:
    """Every notebook there is in either form, in order."""
    return sorted({path.stem for path in (*HERE.glob("*.ipynb"), *TEXT.glob("*.md"))})


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--from-ipynb", action="store_true", help="notebooks -> text")
    way.add_argument("--check", action="store_true", help="only report")
    parser.add_argument("names", nargs="*", help="such as 03-graphs; default: all")
    options = parser.parse_args(arguments)
    unknown = set(options.names) - set(names())
    if unknown:
        parser.error(f"no notebook named {sorted(unknown)[0]!r}; there are {', '.join(names())}")
    chosen = options.names or names()
    if options.check:
        found = [line for name in chosen for line in disagreements(name)]
        print("\n".join(found) or "every notebook agrees with its text")
        return 1 if found else 0
    for name in chosen:
        text, ipynb = TEXT / f"{name}.md", HERE / f"{name}.ipynb"
        notebook = read_ipynb(ipynb) if options.from_ipynb else read_text(text)
        write(ipynb, to_ipynb(notebook))
    format_code([HERE / f"{name}.ipynb" for name in chosen])
    for name in chosen:
        notebook = read_ipynb(HERE / f"{name}.ipynb")
        write(HERE / f"{name}.ipynb", to_ipynb(notebook))
        write(TEXT / f"{name}.md", to_text(notebook))
    return 0


if __name__ == "__main__":
    sys.exit(main())
