"""Settings and fixtures for every test."""

from __future__ import annotations

import os
import shutil

import pytest
from hypothesis import settings

os.environ.setdefault("MPLBACKEND", "Agg")
os.environ.setdefault("JUPYTER_PLATFORM_DIRS", "1")
os.environ.setdefault("REMAT_LAB_QUIET", "1")  # whatever has to be compiled on this machine

# A kernel's first call compiles it, so no example has a deadline; in CI the same examples run every time.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


@pytest.fixture(scope="session")
def chromium() -> str:
    """The path of a Chromium to drive; the test is skipped where there is none."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    pytest.skip("no Chromium on this machine")
