"""The Heads views in a real browser: a corpus, a filter, a threshold, a file, a treebank, a head that is opened."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pytest

from analysis.export import read_provenance
from tests.browser.conftest import settle
from tests.browser.test_walk import MINUTES, download, open_export, pick_view, wait_for_model
from tests.test_heads_view import TREEBANK

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.conftest import WatchedPage

pytestmark = pytest.mark.browser

TEXTS = "id,review\n" + "\n".join(f"{n},The film was long and the ending was number {n}." for n in range(12))


def grid(page: Page) -> Any:
    return page.get_by_role("region", name="What the heads are for")


def tab(page: Page, name: str) -> None:
    page.locator("[data-testid=stButtonGroup] button", has_text=re.compile(f"^{name}$")).click()


def test_heads_of_a_text_model(app_page: WatchedPage, app_server: Any, tmp_path: Path) -> None:
    from playwright.sync_api import expect

    page = app_page.page
    page.set_viewport_size({"width": 1440, "height": 900})
    wait_for_model(page)
    pick_view(page, "Heads")
    expect(grid(page)).to_contain_text("120 sentences of the sample corpus", timeout=MINUTES)
    expect(page).to_have_url(re.compile("view=heads"))
    wait_for_jobs(page)
    positional = grid(page).get_by_role("button", name=re.compile("Positional"))
    positional.dblclick()
    expect(page).to_have_url(re.compile("only=positional"), timeout=MINUTES)
    grid(page).get_by_role("button", name="Show all classes").click()
    expect(page).not_to_have_url(re.compile("only="), timeout=MINUTES)

    tab(page, "Ranking")
    expect(page.get_by_test_id("stDataFrame")).to_be_visible(timeout=MINUTES)
    for name in ("Scatter", "Layers"):
        tab(page, name)
        expect(page.locator(".js-plotly-plot").first).to_be_visible(timeout=MINUTES)
    tab(page, "Grid")
    expect(grid(page)).to_be_visible(timeout=MINUTES)
    open_export(page)
    name, content = download(page, "CSV")
    assert name.endswith(".csv")
    table = pd.read_csv(io.BytesIO(content), comment="#")
    assert len(table) == 72
    assert table.loc[2, "class"] == "Positional"
    assert table.loc[2, "offset-1_low"] > 0.9
    record = read_provenance(content, "csv")["provenance"]
    assert record["settings"]["over"].startswith("120 sentences")
    page.keyboard.press("Escape")

    page.get_by_role("combobox", name="Over").click()
    page.get_by_role("option", name="Over texts of yours").click()
    expect(page.get_by_text("Upload a file, or paste texts, above")).to_be_visible(timeout=MINUTES)
    corpus = tmp_path / "reviews.csv"
    corpus.write_text(TEXTS)
    page.locator(".st-key-text_heads_file input[type=file]").set_input_files(corpus)
    expect(grid(page)).to_contain_text("12 texts of reviews.csv, column review", timeout=MINUTES)
    wait_for_jobs(page)

    tab(page, "Syntax")
    treebank = tmp_path / "tiny.conllu"
    treebank.write_text("1\tbroken line\n")
    upload = page.locator(".st-key-text_heads_treebank_file input[type=file]")
    upload.set_input_files(treebank)
    expect(page.get_by_text(re.compile("tiny.conllu: line 1"))).to_be_visible(timeout=MINUTES)
    page.get_by_role("button", name="Remove tiny.conllu").click()
    expect(page.get_by_text(re.compile("tiny.conllu: line 1"))).to_have_count(0, timeout=MINUTES)
    settle(app_page)
    page.wait_for_timeout(500)  # the uploader is put up anew
    whole = tmp_path / "whole.conllu"
    whole.write_text(TREEBANK * 130)
    upload.set_input_files(whole)
    expect(page.get_by_text(re.compile("heads chosen on 65 sentences"))).to_be_visible(timeout=MINUTES)
    settle(app_page)
    assert app_page.errors == []
    assert app_page.outside == []


def test_a_head_of_a_picture_model_is_opened(app_page: WatchedPage, app_server: Any) -> None:
    from playwright.sync_api import expect

    page = app_page.page
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"{app_server.url}/image?v=1&view=heads&over=input&side=112&sample=cat")
    expect(grid(page)).to_contain_text("this picture", timeout=MINUTES)
    expect(page.get_by_text(re.compile("One input is no evidence"))).to_be_visible(timeout=MINUTES)
    settle(app_page)
    cells = grid(page).get_by_label(re.compile("All heads"))
    cells.focus()
    for key in ("PageUp", "Home", "ArrowDown", "ArrowDown", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    expect(page).to_have_url(re.compile(r"view=attention.*layer=2.*head=1"), timeout=MINUTES)
    expect(page.locator(".as-title")).to_contain_text("layer 2", timeout=MINUTES)
    assert app_page.errors == []
    assert app_page.outside == []


def wait_for_jobs(page: Page) -> None:
    """Until no progress is shown."""
    page.wait_for_function("() => !document.querySelector('[data-testid=stProgress]')", timeout=MINUTES)
