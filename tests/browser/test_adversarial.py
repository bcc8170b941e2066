"""The Adversarial views in a real browser: candidates, weights by hand, one head of a transformer, edited heads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from analysis.export import read_provenance
from analysis.trained import find_offered, is_ready
from tests.browser.conftest import settle
from tests.browser.test_attention_contrast import bars, chip, drag, edit
from tests.browser.test_heads import tab, wait_for_jobs
from tests.browser.test_walk import MINUTES, download, open_export, wait_for_model

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.conftest import WatchedPage

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not is_ready(find_offered("sentiment")), reason="models are not installed; run make bundled"
    ),
]

TEXT = "A+dull+start,+but+the+ending+is+wonderful."


@pytest.fixture
def page(watched_page: WatchedPage, app_server: Any) -> Iterator[Page]:
    """A page in which nothing goes wrong, on the screen or in the server's log."""
    watched_page.page.set_viewport_size({"width": 1440, "height": 1000})
    yield watched_page.page
    assert watched_page.errors == []
    assert watched_page.outside == []
    assert "Traceback" not in watched_page.page.content()
    assert "Traceback" not in app_server.log.read_text(encoding="utf-8", errors="replace")


def opened(page: Page, server: Any, **params: str) -> None:
    """The view by a link, with its model loaded."""
    given = {"v": "1", "view": "adversarial", "t": TEXT, **params}
    page.goto(f"{server.url}/?" + "&".join(f"{name}={value}" for name, value in given.items()))
    wait_for_model(page)


def candidate(page: Page, name: str) -> Any:
    return page.get_by_role("radiogroup", name="Candidates").get_by_role("radio", name=re.compile(f"^{name}"))


def shares(page: Page, line: str) -> list[str]:
    return page.locator(f".{line} .contrast-value").all_text_contents()


def test_other_attention_for_a_text_and_weights_by_hand(page: Page, app_server: Any) -> None:
    from playwright.sync_api import expect

    opened(page, app_server, model="recurrent-sentiment")
    verdict = page.locator(".contrast-verdict")
    expect(verdict).to_contain_text("gives the same answer (JSD", timeout=MINUTES)
    expect(verdict).to_contain_text("It does not show that a model could have learnt such attention")
    expect(candidate(page, "farthest")).to_have_attribute("aria-checked", "true", timeout=MINUTES)
    observed, farthest = shares(page, "is-observed"), shares(page, "is-shown")
    assert len(observed) == len(farthest) == 2
    assert [float(share.split()[0]) for share in farthest] == pytest.approx(
        [float(share.split()[0]) for share in observed], abs=1.05
    ), "within ε"

    candidate(page, "farthest").focus()
    page.keyboard.press("ArrowRight")
    expect(candidate(page, "uniform")).to_have_attribute("aria-checked", "true")
    expect(page).to_have_url(re.compile("candidate=uniform"), timeout=MINUTES)
    expect(page.locator(".is-shown .contrast-name")).to_have_text("uniform")
    heights = bars(page, "down")
    assert heights == pytest.approx([heights[0]] * 10, abs=0.02)

    edit(page)
    drag(page, 1, np.sqrt(0.8), drop=False)
    changed = shares(page, "is-shown")
    assert changed != shares(page, "is-observed")
    page.mouse.up()
    told = candidate(page, "by hand")
    expect(told).to_have_attribute("aria-label", re.compile(r"JSD 0\.\d+ · TVD 0\.\d+"), timeout=MINUTES)
    expect(page).not_to_have_url(re.compile("candidate="), timeout=MINUTES)  # the app has them now
    before = told.get_attribute("aria-label")
    edit(page)
    expect(told).to_have_attribute("aria-checked", "true", timeout=MINUTES)
    assert told.get_attribute("aria-label") == before, "the app says what the page said"
    assert shares(page, "is-shown") == changed

    slider = page.locator(".st-key-text_adversarial_epsilon").get_by_role("slider")
    slider.focus()
    slider.press("ArrowRight")
    expect(page).to_have_url(re.compile(r"epsilon=0\.02"), timeout=MINUTES)
    expect(page.get_by_role("meter", name=re.compile("^TVD"))).to_contain_text("ε = 0.02", timeout=MINUTES)
    expect(told).to_have_attribute("aria-checked", "true", timeout=MINUTES)
    assert shares(page, "is-shown") == changed, "weights by hand outlive a rerun"

    open_export(page)
    _, content = download(page, "JSON")
    record = read_provenance(content, "json")["provenance"]
    assert record["settings"]["shown"] == "by hand"
    assert record["settings"]["ε"] == 0.02
    page.keyboard.press("Escape")
    box = page.get_by_role("textbox", name="Sentence")
    box.fill("An awful start, but the ending is wonderful.")
    box.press("Control+Enter")
    expect(page.locator(".contrast-label").nth(1)).to_have_text("awful", timeout=MINUTES)
    expect(candidate(page, "by hand")).to_have_count(0, timeout=MINUTES)


def test_one_head_of_a_transformer(page: Page, app_server: Any) -> None:
    from playwright.sync_api import expect

    opened(page, app_server, model="sentiment")
    title = page.locator(".attention-contrast .view-title")
    expect(title).to_have_text("Layer 5, all 12 heads, the row of [CLS]", timeout=MINUTES)
    expect(candidate(page, "uniform")).to_be_visible(timeout=MINUTES)
    page.get_by_role("button", name="all 12 heads").click()
    for head in range(1, 12):  # all are chosen; head 0 stays
        page.get_by_test_id("stPopoverBody").get_by_role("button", name=str(head), exact=True).click()
    page.keyboard.press("Escape")
    expect(title).to_have_text("Layer 5, head 0, the row of [CLS]", timeout=MINUTES)
    expect(page).to_have_url(re.compile("free=0(&|$)"), timeout=MINUTES)
    expect(candidate(page, "adversarial 1")).to_be_visible(timeout=MINUTES)
    wait_for_jobs(page)
    expect(page.locator(".contrast-verdict")).to_contain_text("This is a lower bound", timeout=MINUTES)
    edit(page)
    drag(page, 3, 0.9)
    told = candidate(page, "by hand")
    expect(told).to_have_attribute("aria-label", re.compile(r"TVD (0\.|[0-9.e-]+)\d+"), timeout=MINUTES)
    expect(page.locator(".is-shown .contrast-value")).to_have_count(2, timeout=MINUTES)
    edit(page)
    expect(chip(page, "by hand")).to_have_attribute("aria-checked", "true", timeout=MINUTES)


def test_what_heads_do_and_one_that_is_opened(page: Page, app_server: Any) -> None:
    from playwright.sync_api import expect

    opened(page, app_server, model="sentiment", tab="heads", layer="5", head="0")
    chart = page.locator(".st-key-text_adversarial_effects .js-plotly-plot")
    expect(chart).to_be_visible(timeout=MINUTES)
    wait_for_jobs(page)
    expect(page.get_by_text(re.compile("^Layer 5, head 0: "))).to_be_visible(timeout=MINUTES)
    tab(page, "First key only")
    expect(page).to_have_url(re.compile("edit=first"), timeout=MINUTES)
    expect(page.get_by_text(re.compile("First key only, on the row that is read"))).to_be_visible(
        timeout=MINUTES
    )
    settle_on(page)
    place = chart.evaluate(
        """plot => {
          const layout = plot._fullLayout;
          const area = plot.querySelector(".nsewdrag").getBoundingClientRect();
          const {xaxis, yaxis} = layout;
          return [area.x + xaxis.d2p(3), area.y + yaxis.d2p(2)];
        }"""
    )
    page.mouse.move(*place)
    page.mouse.click(*place)
    expect(page.get_by_text(re.compile("^Layer 2, head 3: "))).to_be_visible(timeout=MINUTES)
    page.get_by_role("button", name="Open the head").click()
    expect(page).to_have_url(re.compile(r"view=head.*layer=2.*head=3"), timeout=MINUTES)
    expect(page.get_by_role("region", name="Head view")).to_have_attribute("data-layer", "2", timeout=MINUTES)


def test_a_text_of_a_set_is_opened(page: Page, app_server: Any) -> None:
    from playwright.sync_api import expect

    opened(page, app_server, model="recurrent-sentiment", tab="set")
    table = page.get_by_test_id("stDataFrame")
    expect(table).to_be_visible(timeout=MINUTES)
    wait_for_jobs(page)
    settle_on(page)
    table.scroll_into_view_if_needed()
    box = table.bounding_box()
    assert box is not None
    page.mouse.click(box["x"] + 14, box["y"] + 35 * 2.5)  # second row
    page.get_by_role("button", name="Open this text").click(timeout=MINUTES)
    expect(page.locator(".contrast-verdict")).to_contain_text("JSD", timeout=MINUTES)
    expect(page).not_to_have_url(re.compile("tab="), timeout=MINUTES)
    box = page.get_by_role("textbox", name="Sentence")
    expect(box).not_to_have_value(TEXT.replace("+", " "), timeout=MINUTES)
    text = box.input_value()
    words = page.locator(".contrast-label").all_text_contents()
    assert words[0] == text.split()[0]
    assert len(words) >= len(text.split())


def settle_on(page: Page) -> None:
    """Until the script that runs the page is done and the page has drawn it."""
    from tests.conftest import WatchedPage as Watched

    settle(Watched(page))
    page.wait_for_timeout(300)
