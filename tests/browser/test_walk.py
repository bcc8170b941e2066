"""The whole job in a real browser, on the app as `make run` starts it: text, heads, pictures, patches, files.

With ``ATTNSCOPE_SCREENSHOT`` the first test writes the README's picture there.
"""

from __future__ import annotations

import io
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from analysis.export import read_provenance
from tests.browser.conftest import settle

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.conftest import WatchedPage

pytestmark = pytest.mark.browser

MINUTES = 3 * 60_000
SENTENCE = "The doctor told the nurse that she was late."


def type_sentence(page: Page, sentence: str) -> None:
    box = page.get_by_role("textbox", name="Sentence")
    box.fill(sentence)
    box.press("Control+Enter")


def pick_view(page: Page, name: str) -> None:
    page.locator("[data-testid=stButtonGroup] button", has_text=re.compile(f"^{name}$")).click()


def download(page: Page, label: str) -> tuple[str, bytes]:
    """Name and content of a file from the open Export menu."""
    with page.expect_download(timeout=MINUTES) as waiting:
        page.get_by_test_id("stDownloadButton").get_by_role("button", name=label, exact=True).click()
    return waiting.value.suggested_filename, Path(waiting.value.path()).read_bytes()


def open_export(page: Page) -> None:
    page.get_by_test_id("stPopover").get_by_role("button", name=re.compile("Export")).click()
    page.get_by_test_id("stDownloadButton").first.wait_for()


def wait_for_model(page: Page) -> None:
    """Until nothing is being loaded any more."""
    page.wait_for_function("() => !document.querySelector('.as-pulse')", timeout=MINUTES)


def turned_picture() -> bytes:
    """A JPEG 200 wide and 300 high, stored lying on its side and marked so (EXIF orientation 6)."""
    upright = np.full((300, 200, 3), 60, np.uint8)
    upright[30:110, 40:120] = (230, 180, 40)
    image = Image.fromarray(upright).rotate(90, expand=True)
    exif = Image.Exif()
    exif[0x0112] = 6
    stored = io.BytesIO()
    image.save(stored, "JPEG", quality=95, exif=exif)
    return stored.getvalue()


def test_text_from_typing_to_a_file(app_page: WatchedPage) -> None:
    from playwright.sync_api import expect

    page = app_page.page
    wait_for_model(page)
    type_sentence(page, SENTENCE)
    expect(page.locator(".lines-left .lines-row").nth(2)).to_contain_text("doctor", timeout=MINUTES)
    lines = page.get_by_role("region", name="Head view")
    assert int(lines.get_attribute("data-drawn") or 0) > 100

    target = os.environ.get("ATTNSCOPE_SCREENSHOT")
    if target:
        page.locator(".lines-left .lines-row").nth(7).hover()
        page.screenshot(path=target)

    pick_view(page, "Model view")
    grid = page.get_by_role("region", name="Model view")
    expect(grid).to_have_attribute("data-painted", "72", timeout=MINUTES)
    heads = grid.get_by_label(re.compile("All heads"))
    heads.focus()
    for key in ("PageUp", "Home", *["ArrowDown"] * 3, "ArrowRight", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    expect(lines).to_have_attribute("data-layer", "3", timeout=MINUTES)
    expect(page.locator(".as-title")).to_contain_text("head 2", timeout=MINUTES)
    expect(page).to_have_url(re.compile(r"layer=3.*head=2"), timeout=MINUTES)

    page.locator(".lines-left .lines-row").nth(7).click()
    expect(page).to_have_url(re.compile(r"token=7"), timeout=MINUTES)

    open_export(page)
    name, content = download(page, "CSV")
    assert name.endswith(".csv")
    table = pd.read_csv(io.BytesIO(content), comment="#")
    assert set(table["query_index"]) == {7}
    assert set(table["head"]) == {2}
    told = read_provenance(content, "csv")
    assert SENTENCE in told["provenance"]["input"]
    name, content = download(page, "PNG")
    assert Image.open(io.BytesIO(content)).format == "PNG"
    assert read_provenance(content, "png")["provenance"]["layer"].startswith("3 ")
    assert app_page.errors == []
    assert app_page.outside == []


def test_a_picture_from_upload_to_a_file(app_page: WatchedPage) -> None:
    from playwright.sync_api import expect

    page = app_page.page
    wait_for_model(page)
    type_sentence(page, SENTENCE)
    expect(page.locator(".lines-left .lines-row").nth(2)).to_contain_text("doctor", timeout=MINUTES)
    page.get_by_role("link", name="Image").click()
    expect(page).to_have_url(re.compile("/image"), timeout=MINUTES)
    wait_for_model(page)
    expect(page.locator(".patch-surface").first).to_be_visible(timeout=MINUTES)
    page.locator("[data-testid=stFileUploaderDropzoneInput]").set_input_files(
        {"name": "turned.jpg", "mimeType": "image/jpeg", "buffer": turned_picture()}
    )
    expect(page.get_by_text("Your picture turned.jpg")).to_be_visible(timeout=MINUTES)
    expect(page.locator(".as-title")).to_contain_text("224 × 336 px", timeout=MINUTES)
    expect(page.locator(".patch-surface")).to_have_count(6, timeout=MINUTES)

    surface = page.locator(".patch-surface").first
    box = surface.bounding_box()
    for _ in range(600):  # the title changes before the picture is redrawn
        box = surface.bounding_box()
        if box is not None and box["width"] < box["height"]:
            break
        page.wait_for_timeout(100)
    assert box is not None
    assert box["width"] / box["height"] == pytest.approx(1 / 1.5, rel=0.02)
    surface.click(position={"x": box["width"] * 10.5 / 16, "y": box["height"] * 4.5 / 24})
    expect(page.get_by_text("From patch row 4, column 10")).to_be_visible(timeout=MINUTES)
    expect(page).to_have_url(re.compile(r"patch=4(,|%2C)10"), timeout=MINUTES)

    pick_view(page, "Rollout")
    expect(page.locator(".patch-surface")).to_have_count(1, timeout=MINUTES)
    open_export(page)
    _, content = download(page, "NPZ")
    with np.load(io.BytesIO(content)) as stored:
        assert any(stored[key].shape[-2:] == (24, 16) for key in stored.files if stored[key].ndim >= 2)
    _, content = download(page, "PNG")
    assert "rollout" in read_provenance(content, "png")["provenance"]["method"]

    page.keyboard.press("Escape")
    page.get_by_role("link", name="Text").click()
    settle(app_page)
    expect(page.locator(".lines-left .lines-row").nth(2)).to_contain_text("doctor", timeout=MINUTES)
    expect(page.get_by_role("textbox", name="Sentence")).to_have_value(SENTENCE, timeout=MINUTES)
    assert app_page.errors == []
    assert app_page.outside == []


def test_hostile_text_is_shown_as_typed_and_runs_nowhere(app_page: WatchedPage) -> None:
    from playwright.sync_api import expect

    page = app_page.page
    wait_for_model(page)
    hostile = "<!--#exec a<b<c --> <script>window.ran=1</script> </script><img src=x onerror=window.ran=2>"
    type_sentence(page, hostile)
    expect(page.locator(".lines-left")).to_contain_text("script", timeout=MINUTES)
    for view in ("Model view", "Matrix", "Rollout"):
        pick_view(page, view)
        settle(app_page)
    assert page.evaluate("() => window.ran") is None
    assert app_page.errors == []
    assert app_page.outside == []


def test_a_link_opens_the_same_view(app_page: WatchedPage, app_server: Any) -> None:
    from playwright.sync_api import expect

    page = app_page.page
    wait_for_model(page)
    page.goto(f"{app_server.url}/?v=1&model=minilm&t=A+short+text&view=matrix&layer=4&head=5")
    expect(page.locator(".as-title")).to_contain_text("layer 4", timeout=MINUTES)
    expect(page.locator(".as-title")).to_contain_text("head 5", timeout=MINUTES)
    expect(page.get_by_role("textbox", name="Sentence")).to_have_value("A short text", timeout=MINUTES)
    page.goto(f"{app_server.url}/image?v=1&view=attention&layer=7&head=2&patch=3,5")
    expect(page.locator(".as-title")).to_contain_text("layer 7", timeout=MINUTES)
    expect(page.get_by_text("From patch row 3, column 5")).to_be_visible(timeout=MINUTES)


def test_a_broken_picture_is_refused_in_words(app_page: WatchedPage) -> None:
    from playwright.sync_api import expect

    page = app_page.page
    page.get_by_role("link", name="Image").click()
    expect(page.locator("canvas").first).to_be_visible(timeout=MINUTES)
    wait_for_model(page)
    settle(app_page)
    page.locator("[data-testid=stFileUploaderDropzoneInput]").set_input_files(
        {"name": "cut.jpg", "mimeType": "image/jpeg", "buffer": turned_picture()[:900]}
    )
    expect(page.get_by_test_id("stAlert").first).to_be_visible(timeout=MINUTES)
    assert "Traceback" not in page.content()
    expect(page.get_by_text("Resolution").first).to_be_visible(timeout=MINUTES)
