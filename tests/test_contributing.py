"""CONTRIBUTING's recipes, done: files written, lines added, their own tests run, in a copy of the package."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```\w+ file=(\S+)(?: after='([^'\n]+)')?\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)


def recipes() -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """(title, [(file, line to add after or "", text)])."""
    for section in (ROOT / "CONTRIBUTING.md").read_text("utf-8").split("\n## ")[1:]:
        yield section.partition("\n")[0], BLOCK.findall(section)


RECIPES = dict(recipes())


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    quiet = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "remat_lab", tmp_path / "remat_lab", ignore=quiet)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_there_are_three_recipes() -> None:
    assert list(RECIPES) == ["Add a solver", "Add a network", "Add a view"]


@pytest.mark.slow
@pytest.mark.parametrize("title", RECIPES)
def test_recipe_works_when_it_is_done(title: str, copy: Path) -> None:
    tests = []
    for name, after, text in RECIPES[title]:
        path = copy / name
        if after:
            old = path.read_text("utf-8")
            lines = [line for line in old.splitlines() if line.startswith(after)]
            assert len(lines) == 1, f"{name} has {len(lines)} lines that begin with {after!r}"
            path.write_text(old.replace(f"{lines[0]}\n", f"{lines[0]}\n{text}", 1), "utf-8")
        else:
            assert not path.exists(), f"{name} exists already"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, "utf-8")
        if name.startswith("tests/"):
            tests.append(name)
    assert tests, f"{title} has no test"
    environment = {**os.environ, "PYTHONPATH": str(copy)}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(copy), *tests]
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("title", RECIPES)
def test_recipe_is_formatted(title: str, tmp_path: Path) -> None:
    if not shutil.which("ruff"):
        pytest.skip("ruff is not installed")
    for name, after, text in RECIPES[title]:
        if name.endswith(".py") and not after:
            path = tmp_path / Path(name).name
            path.write_text(text, "utf-8")
            config = f"--config={ROOT / 'pyproject.toml'}"
            for check in (["ruff", "check", "--quiet"], ["ruff", "format", "--check", "--quiet"]):
                done = subprocess.run([*check, config, path], capture_output=True, text=True, check=False)
                assert done.returncode == 0, f"{name}: {done.stdout}{done.stderr}"
