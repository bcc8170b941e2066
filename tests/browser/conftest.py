"""The running app, started the way `make run` starts it, and a page of it in a real browser."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from scripts.server import AppServer, running_app
from tests.conftest import RESULTS, WatchedPage


@pytest.fixture(scope="module")
def app_server() -> Iterator[AppServer]:
    """The app on a free port, one for each test file; its log stays in ``test-results``."""
    with running_app(RESULTS / "server.log") as server:
        yield server


@pytest.fixture
def app_page(app_server: AppServer, watched_page: WatchedPage) -> WatchedPage:
    """The app's first page, loaded and idle."""
    watched_page.page.goto(app_server.url)
    settle(watched_page)
    return watched_page


def settle(watched: WatchedPage, *, timeout: float = 120.0) -> None:
    """Wait until the script that runs the page is done.

    Right after a click this still sees the state of before: follow it with an ``expect`` on what should change.
    """
    idle = '[data-testid="stApp"][data-test-script-state="notRunning"]'
    watched.page.wait_for_selector(idle, timeout=timeout * 1000)
