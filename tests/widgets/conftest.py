"""A browser to look at views with, and what every look must not show: errors, and requests to anywhere."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # graphs.py

FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
).split()
SCREENSHOTS = Path(__file__).parents[2] / "artifacts" / "screenshots"


@pytest.fixture(scope="session")
def browser(chromium: str) -> Iterator[Any]:
    """A Chromium under Playwright, with a fresh profile."""
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def look(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open a file as a page; at the end no page may have logged an error or asked the network for anything."""
    pages, troubles = [], []

    def open_page(path: Path, *, width: int = 1280, height: int = 900, **options: Any) -> Any:
        page = browser.new_page(viewport={"width": width, "height": height}, **options)
        pages.append(page)
        page.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda request: None if _local(request.url) else troubles.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_function("[...document.querySelectorAll('.rl-view')].some((v) => v.remat)")
        return page

    yield open_page
    for page in pages:
        page.close()
    assert not troubles


def _local(url: str) -> bool:
    return url.split(":", 1)[0] in ("file", "data", "blob", "about")


@pytest.fixture
def screenshot() -> Callable[[Any, str], None]:
    """Keep a picture of a page among the artifacts."""

    def take(page: Any, name: str) -> None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        page.mouse.move(1, 1)
        page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)

    return take
