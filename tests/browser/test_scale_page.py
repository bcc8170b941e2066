"""The Scale page in a real browser: choices, curves that grow, a stop, a file, and the link."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from analysis.export import read_provenance
from tests.browser.test_walk import MINUTES, download, open_export

if TYPE_CHECKING:
    from tests.conftest import WatchedPage

pytestmark = pytest.mark.browser


def test_curves_grow_are_stopped_and_go_into_a_file(watched_page: WatchedPage, app_server: Any) -> None:
    from playwright.sync_api import expect

    page = watched_page.page
    page.goto(f"{app_server.url}/scale?v=1&ways=dense,sdpa,triton&longest=131072&heads=16")
    measure = page.get_by_role("button", name="Measure", exact=True)
    expect(measure).to_be_visible(timeout=MINUTES)
    expect(page.get_by_text("About", exact=False).first).to_be_visible()
    page.get_by_role("radio", name="Causal", exact=True).click()
    expect(page).to_have_url(re.compile("rule=causal"), timeout=MINUTES)
    measure.click()
    stop = page.get_by_role("button", name="Stop", exact=True)
    chart = page.locator(".stPlotlyChart")
    expect(chart.get_by_text("PyTorch SDPA").first).to_be_visible(timeout=MINUTES)
    stop.click()
    expect(page.get_by_text("Stopped.", exact=False)).to_be_visible(timeout=MINUTES)
    expect(page.locator(".as-table").get_by_text("Written out", exact=True)).to_be_visible(timeout=MINUTES)
    told = page.get_by_text("Triton kernel is not here", exact=False)
    expect(told).to_have_count(1, timeout=MINUTES)  # not also in a run of the page that is being replaced
    expect(told).to_be_visible()
    open_export(page)
    name, content = download(page, "CSV")
    assert "scale" in name
    table = pd.read_csv(io.BytesIO(content), comment="#")
    assert {"Written out", "PyTorch SDPA", "~ n²", "~ n"} <= set(table["curve"])
    assert read_provenance(content, "csv")["provenance"]["settings"]["rule"] == "causal"

    address = page.url
    page.goto("about:blank")
    page.goto(address)
    expect(page.get_by_role("button", name="Measure again")).to_be_visible(timeout=MINUTES)
    expect(page.locator(".as-title")).to_contain_text("16 heads of width 64, float32, causal")
    assert watched_page.errors == []
    assert watched_page.outside == []
    assert "Traceback" not in app_server.log.read_text(encoding="utf-8", errors="replace")
