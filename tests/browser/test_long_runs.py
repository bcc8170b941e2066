"""A long forward pass in a real browser: told before it begins, with progress, stopped, and the page lives on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from analysis.catalogue import VIT_S14, is_installed
from tests.browser.test_walk import MINUTES

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.conftest import WatchedPage

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not is_installed(VIT_S14), reason="bundled models are not installed; run make bundled"
    ),
]


@pytest.fixture
def page(watched_page: WatchedPage, app_server: Any) -> Iterator[Page]:
    """A page in which nothing goes wrong, on the screen or in the server's log."""
    yield watched_page.page
    assert watched_page.errors == []
    assert watched_page.outside == []
    assert "Traceback" not in app_server.log.read_text(encoding="utf-8", errors="replace")


def test_a_pass_over_a_large_picture_is_told_stopped_and_left(page: Page, app_server: Any):
    """More than ten thousand positions take long on any machine of today. The page around them stays as it is."""
    from playwright.sync_api import expect

    page.goto(f"{app_server.url}/image?v=1&model={VIT_S14.name}&sample=astronaut&side=1904&view=attention")
    expect(page.get_by_text(re.compile(r"One forward pass over 18,497 positions"))).to_be_visible(
        timeout=MINUTES
    )
    expect(page.get_by_text(re.compile(r"about .* and \d\.\d GB of memory"))).to_be_visible()
    start, stop = (page.get_by_role("button", name=name, exact=True) for name in ("Compute", "Stop"))
    expect(start.or_(stop)).to_be_visible(timeout=MINUTES)
    if start.is_visible():
        start.click()
    expect(stop).to_be_visible(timeout=MINUTES)
    expect(page.locator(".as-title")).to_contain_text("1,904 × 1,904 px")
    expect(page.locator(".as-title")).to_contain_text("136 × 136 patches")
    page.get_by_role("radio", name="Rollout", exact=True).click()
    expect(page).to_have_url(re.compile("view=rollout"), timeout=MINUTES)
    expect(stop).to_be_visible(timeout=MINUTES)
    expect(page.get_by_text(re.compile(r"^([2-9]|[1-9]\d)%, about .* left$"))).to_be_visible(timeout=MINUTES)
    stop.click()
    expect(page.get_by_role("button", name="Start again", exact=True)).to_be_visible(timeout=10_000)
    expect(stop).to_be_hidden(timeout=MINUTES)
    shorter = [page.get_by_role(role, name="224", exact=True) for role in ("radio", "button")]
    shorter[0].or_(shorter[1]).first.click()
    expect(page.locator(".as-title")).to_contain_text("224 × 224 px", timeout=MINUTES)
    page.get_by_label("Memory for one answer").first.click()
    page.get_by_role("option", name="64 MiB", exact=True).click()
    expect(page).to_have_url(re.compile("memory=64"), timeout=MINUTES)
