"""Many visits to one server: memory stays flat, models are loaded once, the log stays clean (cases V1, V2, V4)."""

from __future__ import annotations

import re
import subprocess
from typing import TYPE_CHECKING

import pytest

from tests.browser.conftest import settle
from tests.conftest import WatchedPage

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from scripts.server import AppServer

pytestmark = pytest.mark.browser

VISITS = 4
ROOM = 48 * 2**20
"""Bytes that five more visitors may add: far less than one more copy of a model (90 MB) for each of them."""

TEXTS = (
    "The cat slept on the mat.",
    "A second sentence, a little longer.",
    "Nobody came.",
    "It rained.",
    "The end.",
)


def resident_bytes(server: AppServer) -> int:
    """Memory of the server and whatever it started."""
    listed = subprocess.run(["ps", "-eo", "pgid=,rss="], stdout=subprocess.PIPE, text=True, check=True).stdout
    pairs = (map(int, line.split()) for line in listed.splitlines())
    return sum(1024 * kilobytes for group, kilobytes in pairs if group == server.process_id)


def visit(chromium: Browser, server: AppServer, text: str) -> None:
    """Open the app in a browser of its own, show a sentence and the picture page, and leave without a word."""
    from playwright.sync_api import expect

    context = chromium.new_context()
    watched = WatchedPage(context.new_page())
    page = watched.page
    page.goto(server.url)
    settle(watched)
    page.wait_for_function("() => !document.querySelector('.as-pulse')", timeout=180_000)
    box = page.get_by_role("textbox", name="Sentence")
    box.fill(text)
    box.press("Control+Enter")
    expect(page.locator(".lines-left .lines-row").nth(1)).to_contain_text(text.split()[0], timeout=180_000)
    page.goto(f"{server.url}/image")
    page.locator(".patch-surface").first.wait_for(timeout=180_000)
    settle(watched)
    context.close()


def test_memory_stays_flat_and_the_log_clean_however_many_visitors_come(
    chromium: Browser, app_server: AppServer
) -> None:
    for text in TEXTS[:2]:  # loads both models and fills the caches
        visit(chromium, app_server, text)
    before = resident_bytes(app_server)
    assert before > 200 * 2**20  # it is the server that is measured
    for visitor in range(VISITS):
        visit(chromium, app_server, TEXTS[visitor % len(TEXTS)])
    assert resident_bytes(app_server) - before < ROOM
    log = app_server.log.read_text(encoding="utf-8", errors="replace")
    assert not re.search(r"Traceback|Examining the path|Warning|ERROR|WARNING", log), log
