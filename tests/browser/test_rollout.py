"""The rollout of a text in the running app: nothing lies below the window, and nothing of the window is blank."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser.test_walk import MINUTES, wait_for_model

if TYPE_CHECKING:
    from tests.conftest import WatchedPage

pytestmark = pytest.mark.browser


def test_a_row_of_a_rollout_fills_the_window_and_the_matrix_chooses_it(
    app_page: WatchedPage, app_server: Any
) -> None:
    from playwright.sync_api import expect

    page = app_page.page
    page.set_viewport_size({"width": 1440, "height": 900})
    wait_for_model(page)
    page.goto(f"{app_server.url}/?v=1&view=rollout")
    bars, matrix = page.locator(".st-key-text_rollout_bars .js-plotly-plot"), page.locator(".matrix-view")
    expect(bars).to_be_visible(timeout=MINUTES)
    expect(matrix.locator("[data-plot]")).to_be_visible(timeout=MINUTES)
    expect(page.get_by_text("row of token 0")).to_be_visible(timeout=MINUTES)
    for part in (bars, matrix):
        box = part.bounding_box()
        assert box is not None
        assert 800 <= box["y"] + box["height"] <= 900, "it ends near the lower edge of the window"
        assert box["height"] > 450
    cells = matrix.locator(".matrix-marks")
    x, y, width, height = map(float, str(cells.get_attribute("data-plot")).split())
    rows = page.locator(".strip-token").count()
    cells.click(position={"x": x + width / 2, "y": y + height * 5.5 / rows})
    expect(page.get_by_text("row of token 5")).to_be_visible(timeout=MINUTES)
    expect(page).to_have_url(re.compile("token=5"), timeout=MINUTES)
    page.locator(".strip-token").nth(2).click()
    expect(page.get_by_text("row of token 2")).to_be_visible(timeout=MINUTES)
    assert app_page.errors == []
    assert app_page.outside == []
