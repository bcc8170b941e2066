"""The Lab in a real browser: a walk through every section, each touched once, with a file and a link at the end."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from analysis.catalogue import MINILM, is_installed
from analysis.export import read_provenance
from dashboard.lab_choices import SECTIONS
from dashboard.lab_sections import SECTION_PAGES
from tests.browser.test_walk import MINUTES, download, open_export

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.conftest import WatchedPage

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not is_installed(MINILM), reason="bundled models are not installed; run make bundled"),
]


@pytest.fixture
def page(watched_page: WatchedPage, app_server: Any) -> Iterator[Page]:
    """A page in which nothing goes wrong, on the screen or in the server's log."""
    yield watched_page.page
    assert watched_page.errors == []
    assert watched_page.outside == []
    assert "reference" not in watched_page.page.locator("[data-testid=stAlert]").all_text_contents()
    assert "Traceback" not in app_server.log.read_text(encoding="utf-8", errors="replace")


def opened(page: Page, server: Any, section: str, **params: str) -> None:
    given = {"v": "1", "section": section, **params}
    page.goto(f"{server.url}/lab?" + "&".join(f"{name}={value}" for name, value in given.items()))


def choose(page: Page, section: str) -> None:
    """Go to a section by the list on the left."""
    from playwright.sync_api import expect

    title = SECTION_PAGES[section].title
    page.get_by_test_id("stSidebar").get_by_text(title, exact=True).click()
    expect(page.locator(".as-title")).to_contain_text(SECTION_PAGES[section].question, timeout=MINUTES)
    expect(page).to_have_url(re.compile(f"section={section}"), timeout=MINUTES)


def option(page: Page, name: str) -> None:
    """A button of a segmented control or of pills."""
    page.locator(
        "[data-testid=stButtonGroup] button", has_text=re.compile(f"^{re.escape(name)}$")
    ).first.click()


def test_every_section_opens_from_the_list_and_draws(page: Page, app_server: Any) -> None:
    from playwright.sync_api import expect

    opened(page, app_server, "formula")
    for section in SECTIONS:
        choose(page, section)
        drawn = page.locator(".view-root, .stPlotlyChart").first
        expect(drawn).to_be_visible(timeout=MINUTES)
        expect(page.get_by_role("button", name=re.compile("Export"))).to_be_visible(timeout=MINUTES)


def test_the_formula_is_touched_and_goes_into_a_file(page: Page, app_server: Any) -> None:
    from playwright.sync_api import expect

    opened(page, app_server, "formula")
    explorer = page.get_by_role("region", name="Formula explorer")
    expect(explorer).to_contain_text("3 × 3", timeout=MINUTES)
    explorer.locator(".formula-part").first.click()  # the output
    expect(page).to_have_url(re.compile("part=output"), timeout=MINUTES)
    expect(explorer).to_contain_text("2.60", timeout=MINUTES)
    page.get_by_role("button", name="Read more").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator(".katex").first).to_be_visible(timeout=MINUTES)
    expect(dialog).to_contain_text("docs/mechanisms/scaled-dot-product.md")
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden(timeout=MINUTES)
    open_export(page)
    name, content = download(page, "CSV")
    assert "lab-formula" in name
    table = pd.read_csv(io.BytesIO(content), comment="#")
    output = table[(table["name"] == "output") & (table["row"] == 0)]["value"]
    assert [f"{value:.2f}" for value in output] == ["2.60", "3.60"]
    assert read_provenance(content, "csv")["provenance"]["input"]


def test_a_translation_is_watched(page: Page, app_server: Any) -> None:
    from playwright.sync_api import expect

    opened(page, app_server, "alignment", scorings="additive,none")
    board = page.locator(".alignment")
    expect(board.locator(".alignment-panel")).to_have_count(2, timeout=MINUTES)
    board.get_by_role("button", name="One word on").click()
    expect(page).to_have_url(re.compile("step=1"), timeout=MINUTES)
    expect(board.locator(".alignment-said").first).to_contain_text("%")
    box = page.get_by_role("textbox", name="English sentence")
    box.fill("Where is my new car?")
    box.press("Enter")
    expect(board.locator(".alignment-source").first).to_contain_text("car", timeout=MINUTES)
    option(page, "What is forgotten")
    expect(page.locator(".stPlotlyChart").first).to_be_visible(timeout=MINUTES)


def test_a_mod_is_typed_and_a_wrong_one_is_told(page: Page, app_server: Any) -> None:
    from playwright.sync_api import expect

    opened(page, app_server, "masks", mod="typed", rules="")
    sheet = page.get_by_role("region", name="Matrices")
    expect(sheet.first).to_be_visible(timeout=MINUTES)
    box = page.get_by_role("textbox").last
    box.fill("score - 2 * abs(q_idx - ")
    box.press("Enter")
    expect(page.get_by_text("expected", exact=False).first).to_be_visible(timeout=MINUTES)
    box.fill("where(q_idx >= k_idx, score, -inf)")
    box.press("Enter")
    expect(page.get_by_text("expected a number", exact=False)).to_have_count(0, timeout=MINUTES)
    expect(page).to_have_url(re.compile("typed=where"), timeout=MINUTES)
    expect(sheet.first).to_be_visible()


def test_a_work_of_the_timeline_opens_what_runs_here(page: Page, app_server: Any) -> None:
    from playwright.sync_api import expect

    opened(page, app_server, "timeline")
    page.get_by_role("button", name=re.compile("Additive scores")).click()
    expect(page).to_have_url(re.compile("entry="), timeout=MINUTES)
    page.locator(".timeline-link").first.click()
    expect(page.locator(".as-title")).to_contain_text("decoder", timeout=MINUTES)
    expect(page).to_have_url(re.compile("section=alignment"), timeout=MINUTES)


def test_one_query_through_the_bundled_bert(page: Page, app_server: Any) -> None:
    from playwright.sync_api import expect

    opened(page, app_server, "pipeline")
    weights = page.locator(".diagram-box", has_text="weights")
    expect(weights).to_be_visible(timeout=MINUTES)
    weights.click()
    expect(page).to_have_url(re.compile("stage=10"), timeout=MINUTES)
    expect(page.get_by_text("differ by at most", exact=False)).to_be_visible(timeout=MINUTES)
