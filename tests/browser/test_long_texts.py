"""An upload of several pages in a real browser: read in windows, walked part by part, searched, rolled out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from analysis.samples import sample_corpus
from tests.browser.conftest import settle
from tests.browser.test_walk import MINUTES, pick_view, wait_for_model

if TYPE_CHECKING:
    from tests.conftest import WatchedPage

pytestmark = pytest.mark.browser

MOST_ELEMENTS = 4_000
MOST_BYTES = 10_000_000


def test_a_document_from_upload_to_its_last_part(app_page: WatchedPage) -> None:
    from playwright.sync_api import expect

    page = app_page.page
    sizes: list[int] = []
    page.on("websocket", lambda socket: socket.on("framereceived", lambda frame: sizes.append(len(frame))))
    page.reload()
    settle(app_page)
    wait_for_model(page)
    document = "\n".join(sample_corpus())  # about 2,300 tokens
    page.get_by_text("Text from a file").click()
    page.locator("input[type=file]").first.set_input_files(
        {"name": "pages.md", "mimeType": "text/markdown", "buffer": document.encode()}
    )
    title = page.locator(".as-title")
    start = page.get_by_role("button", name="Compute")
    expect(title.or_(start).first).to_be_visible(timeout=MINUTES)
    if start.count():  # where the machine is so slow that it asks first
        start.click()
    expect(title).to_contain_text(re.compile(r"\d tokens in \d+ windows of 512"), timeout=MINUTES)
    rows = page.locator(".lines-left .lines-row")
    expect(page.get_by_text(re.compile("Shown: tokens 0–511"))).to_be_visible(timeout=MINUTES)
    expect(rows.first).to_contain_text("[CLS]")

    page.get_by_role("button", name="›", exact=True).click()
    expect(page.get_by_text(re.compile("Shown: tokens 512–1,023"))).to_be_visible(timeout=MINUTES)
    find = page.get_by_role("textbox", name="Find in the text")
    find.fill("telescope")
    find.press("Enter")
    found = page.get_by_role("button", name=re.compile(r"\d of \d+ ›"))
    expect(found).to_be_visible(timeout=MINUTES)
    settle(app_page)
    expect(page.locator(".lines-left .lines-pinned").first).to_contain_text("telescope", timeout=MINUTES)

    pick_view(page, "Rollout")
    strip = page.get_by_role("toolbar", name="Tokens by score")
    expect(strip).to_contain_text("telescope", timeout=MINUTES)  # the same part
    expect(page.locator(".st-key-text_rollout_document .main-svg").first).to_be_visible(timeout=MINUTES)
    telescope = int(re.findall(r"token=(\d+)", page.url)[0])
    said = f"row of token {telescope} “telescope"  # counted from the beginning of the text
    expect(page.locator(".token-strip .view-note").first).to_contain_text(said, timeout=MINUTES)
    page.get_by_role("button", name="‹", exact=True).click()
    elsewhere = re.compile(f"tokens 512 to 1,023, row of token {telescope:,} “telescope")
    expect(page.locator(".token-strip .view-title").first).to_contain_text(elsewhere, timeout=MINUTES)
    assert page.evaluate("document.querySelectorAll('*').length") < MOST_ELEMENTS
    assert max(sizes) < MOST_BYTES  # a payload
    assert not app_page.errors
    assert not app_page.outside


def test_a_reading_is_called_what_it_is_now_and_another_can_be_chosen(app_page: WatchedPage) -> None:
    from playwright.sync_api import expect

    page = app_page.page
    wait_for_model(page)
    box = page.get_by_role("textbox", name="Sentence")
    box.fill("\n".join(sample_corpus()[:60]))  # about 1,100 tokens
    box.press("Control+Enter")
    title = page.locator(".as-title")
    reading = page.locator(".st-key-text_reading_how").get_by_role("combobox")
    expect(title).to_contain_text("in 4 windows of 512", timeout=MINUTES)
    expect(reading).to_have_value("4 windows of 512 tokens", timeout=MINUTES)
    page.locator(".st-key-text_reading_stride").get_by_role("combobox").click()
    page.get_by_role("option", name="no overlap").click()
    expect(title).to_contain_text("in 3 windows of 512", timeout=MINUTES)
    expect(reading).to_have_value("3 windows of 512 tokens", timeout=MINUTES)
    page.locator(".st-key-text_places").get_by_role("button", name="›").click()
    expect(page.get_by_text(re.compile("Shown: tokens 512–1,023"))).to_be_visible(timeout=MINUTES)
    expect(title).to_contain_text("in 3 windows of 512")
    reading.click()
    page.get_by_role("option", name="One window alone").click()
    expect(title).to_contain_text("window 0 of the text alone", timeout=MINUTES)
    assert not app_page.errors
    assert not page.get_by_text("could not be shown").count()
