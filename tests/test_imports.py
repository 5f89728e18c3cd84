"""Imports run downward only, those inside functions and those for annotations included."""

import ast
from graphlib import TopologicalSorter
from pathlib import Path

import remat_lab

ROOT = Path(remat_lab.__file__).parent
#: Upward on purpose: a joint graph's forward graph, and a chain measured on a torch model, asked of the class itself.
UPWARD = {("joint", "graph"), ("chain", "execution")}
#: Rooms that are looked at from outside only.
ROOMS = ("execution", "widgets")


def imports(path: Path) -> set[str]:
    """The package's modules a module imports anywhere in it, as dotted names below the package."""
    here = path.relative_to(ROOT).parent.parts
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = [*here[: len(here) - node.level + 1], *(node.module or "").split(".")]
            for name in node.names:
                for parts in ([*base, name.name], base):
                    inside = ROOT.joinpath(*filter(None, parts))
                    if inside.with_suffix(".py").exists() or (
                        (inside / "__init__.py").exists() and inside != ROOT
                    ):
                        found.add(".".join(filter(None, parts)))
                        break
    return found


def room(name: str) -> str:
    first = name.split(".")[0]
    return first if first in ROOMS else name


def test_no_module_is_above_and_below_another():
    graph: dict[str, set[str]] = {}
    for path in ROOT.rglob("*.py"):
        if path.parent == ROOT and path.name == "__init__.py":
            continue  # the names of the package: everything
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        needs = {room(other) for other in imports(path)} - {room(name)}
        graph.setdefault(room(name), set()).update(n for n in needs if (room(name), n) not in UPWARD)
    assert {"simulate", "schedule"} <= graph["plan"] and len(graph) > 60
    list(TopologicalSorter(graph).static_order())  # raises CycleError, with the circle
