"""Zooming into a patch map of a large picture in a real browser: what is seen, hovered, chosen and told."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from analysis.figure_data import EvidenceMaps, PatchMaps
from dashboard.colour_maps import colour_table
from dashboard.evidence_payload import evidence_maps_payload
from dashboard.figures import PICTURE_PIXELS, patch_map_payload, unpack
from tests.browser.conftest import settle
from tests.browser.lone_component import said, show, tooltip
from tests.browser.test_evidence import SIGNED
from tests.browser.test_patch_map import picture, place
from tests.browser.test_walk import MINUTES, wait_for_model

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.conftest import WatchedPage

pytestmark = pytest.mark.browser

GRID, SIZE = (146, 146), (2044, 2044)

SEEN = """() => {
  const of = (name) => parseFloat(document.querySelector(".patch-overlay").style[name] || 0);
  return [of("width") / 100 || 1, -of("left") / 100, -of("top") / 100];
}"""
"""Scale, and how far the map is moved to the left and up, in widths and heights of the surface."""


@pytest.fixture
def page(watched_page: WatchedPage) -> Any:
    """A page in which nothing goes wrong."""
    yield watched_page.page
    assert watched_page.errors == []
    assert watched_page.outside == []


def view(panels: int = 1, **options: Any) -> PatchMaps:
    """21,316 patches, whose values tell their places."""
    rows, columns = np.mgrid[0 : GRID[0], 0 : GRID[1]]
    maps = np.stack([(1000 * rows + columns) / 1e6 + panel for panel in range(panels)]).astype(np.float32)
    return PatchMaps(
        picture(*SIZE), maps, tuple(f"head {index}" for index in range(panels)), limits=(0.0, 1.0), **options
    )


def pointed(page: Page, scale: float, left: float, top: float, at: tuple[float, float]) -> list[str]:
    """What the tooltip says at a place of the surface, and what it must say there."""
    box = page.locator(".patch-surface").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + at[0] * box["width"], box["y"] + at[1] * box["height"])
    row = int((top + at[1]) / scale * GRID[0])
    column = int((left + at[0]) / scale * GRID[1])
    value, where, pixels = tooltip(page)
    assert where == f"patch row {row}, column {column}"
    assert np.float32(value) == np.float32((1000 * row + column) / 1e6)
    assert pixels == (f"pixels x {column * 14:,}–{column * 14 + 13:,}, y {row * 14:,}–{row * 14 + 13:,}")
    return [value, where]


def settled(page: Page) -> list[float]:
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return page.evaluate(SEEN)


def test_wheel_drag_and_keys_move_through_a_large_map(page: Page) -> None:
    took = show(page, "patch_map", patch_map_payload(view()))
    assert took > 0
    surface = page.locator(".patch-surface")
    box = surface.bounding_box()
    assert box is not None
    corner = (box["x"] + 0.25 * box["width"], box["y"] + 0.75 * box["height"])
    page.mouse.move(*corner)
    for _ in range(6):
        page.mouse.wheel(0, -200)
    scale, left, top = settled(page)
    assert scale > 6
    assert (left + 0.25) / scale == pytest.approx(0.25, abs=0.002), "what was under the pointer stays there"
    assert (top + 0.75) / scale == pytest.approx(0.75, abs=0.002)
    pointed(page, scale, left, top, (0.5, 0.5))
    pointed(page, scale, left, top, (0.02, 0.97))
    told = page.locator(".zoom-words").inner_text()
    assert told.startswith(f"{scale:.1f}".rstrip("0").rstrip(".") + "×" if scale < 10 else f"{round(scale)}×")
    assert page.locator(".zoom-minimap").is_visible()

    middle = (box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.move(*middle)
    page.mouse.down()
    page.mouse.move(middle[0] + 60, middle[1] + 40, steps=4)
    page.mouse.up()
    _, dragged_left, dragged_top = settled(page)
    assert (left - dragged_left) * box["width"] == pytest.approx(60, abs=4)
    assert (top - dragged_top) * box["height"] == pytest.approx(40, abs=4)
    page.wait_for_timeout(200)
    assert said(page) == [], "the end of a drag chooses nothing"

    _, where = pointed(page, scale, dragged_left, dragged_top, (0.5, 0.5))
    page.mouse.click(*middle)
    patch = said(page, 1)[-1][1]["at"]
    assert where == f"patch row {patch[0]}, column {patch[1]}"
    mark = page.locator(".patch-mark").bounding_box()
    assert mark is not None
    assert mark["x"] - 5 <= middle[0] <= mark["x"] + mark["width"] + 5
    surface.focus()
    page.keyboard.press("+")
    assert settled(page)[0] == pytest.approx(1.5 * scale, rel=0.001)
    for _ in range(12):
        page.keyboard.press("Shift+ArrowRight")
    settled(page)
    mark, seen = page.locator(".patch-mark").bounding_box(), surface.bounding_box()
    assert mark is not None
    assert seen is not None
    assert seen["x"] - 1 <= mark["x"]
    assert mark["x"] + mark["width"] <= seen["x"] + seen["width"] + 1, "the window follows"
    page.keyboard.press("0")
    assert settled(page) == [1, 0, 0]
    assert page.locator(".zoom-words").is_hidden()


def test_a_pinch_zooms_all_panels_and_a_wheel_outwards_is_left_to_the_page(page: Page) -> None:
    show(page, "patch_map", patch_map_payload(view(2)))
    scrolled = """() => new Promise((done) => {
      document.addEventListener("wheel", (event) => done(event.defaultPrevented), { once: true });
      document.querySelector(".patch-surface").dispatchEvent(
        new WheelEvent("wheel", { deltaY: 100, bubbles: true, cancelable: true, composed: true }));
    })"""
    assert page.evaluate(scrolled) is False
    pinch = """() => {
      const surface = document.querySelectorAll(".patch-surface")[1];
      const box = surface.getBoundingClientRect();
      const send = (type, id, across) => surface.dispatchEvent(new PointerEvent(type, {
        pointerId: id, pointerType: "touch", clientX: box.left + across * box.width,
        clientY: box.top + box.height / 2, bubbles: true, cancelable: true }));
      surface.setPointerCapture = () => {};
      send("pointerdown", 11, 0.4);
      send("pointerdown", 12, 0.6);
      send("pointermove", 11, 0.2);
      send("pointermove", 12, 0.8);
      send("pointerup", 11, 0.2);
      send("pointerup", 12, 0.8);
    }"""
    page.evaluate(pinch)
    scale, left, top = settled(page)
    assert scale == pytest.approx(3, rel=0.01), "three times as far apart"
    assert (left + 0.5) / scale == pytest.approx(0.5, abs=0.02)
    assert (top + 0.5) / scale == pytest.approx(0.5, abs=0.02)
    widths = page.locator(".patch-overlay").evaluate_all(
        "canvases => canvases.map((canvas) => canvas.style.width)"
    )
    assert len(set(widths)) == 1
    box = page.locator(".patch-surface").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.52 * box["width"], box["y"] + 0.48 * box["height"])
    row, column = (int((start + share) / scale * 146) for start, share in ((top, 0.48), (left, 0.52)))
    assert tooltip(page)[1] == f"patch row {row}, column {column}"
    page.get_by_role("button", name="Zoom out").click()
    assert settled(page)[0] == pytest.approx(2, rel=0.01)


def test_the_picture_is_drawn_at_its_own_pixels_where_it_is_zoomed(page: Page) -> None:
    record = view()
    record.picture.flags.writeable = True
    record.picture[1000:1044, 1000:1044] = np.where(
        (np.arange(44) % 2 == 0)[None, :, None], np.uint8(255), np.uint8(0)
    )  # stripes of one pixel, which a copy of fewer pixels cannot hold
    payload = patch_map_payload(record)
    _, arrays = unpack(payload)
    assert arrays["picture"].size <= 3 * PICTURE_PIXELS
    assert arrays["sharp"].size < record.picture.nbytes / 4
    show(page, "patch_map", payload)
    box = page.locator(".patch-surface").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.5 * box["height"])
    for _ in range(12):
        page.mouse.wheel(0, -240)
    scale, left, _ = settled(page)
    assert scale > 30
    stripes = """() => {
      const canvas = document.querySelector(".patch-surface canvas");
      const [x, y] = [canvas.width / 2, canvas.height / 2];
      return [...canvas.getContext("2d").getImageData(x - 100, y, 200, 1).data].filter((_, at) => at % 4 === 0);
    }"""
    page.wait_for_function(
        f"() => {{ const reds = ({stripes})(); return Math.max(...reds) - Math.min(...reds) > 180 }}"
    )
    reds = np.array(page.evaluate(stripes))
    assert np.ptp(reds) > 180
    assert left > 0
    assert place(page, (0, 0), GRID)  # the surface itself has not moved


def test_smooth_maps_stay_smooth_where_they_are_zoomed(page: Page) -> None:
    record = replace(view(smooth=True), limits=(0.0, 0.146))  # a level is less than a row
    show(page, "patch_map", patch_map_payload(record))
    box = page.locator(".patch-surface").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + 0.75 * box["height"])
    for _ in range(8):
        page.mouse.wheel(0, -200)
    settled(page)
    scale = float(page.locator(".zoom-scale").inner_text().removesuffix("×"))
    assert scale > 15
    drawn = page.locator(".patch-overlay").evaluate(
        """canvas => {
          const pixel = canvas.getContext("2d").getImageData(0.75 * canvas.width, 0.25 * canvas.height, 1, 1).data;
          return [canvas.width, [...pixel.subarray(0, 3)], canvas.style.width];
        }"""
    )
    assert drawn[0] > 300, "made for what is seen, not for the whole"
    assert drawn[2] == ""
    table = colour_table("viridis").astype(int)
    level = int(np.abs(table - drawn[1]).sum(axis=1).argmin())
    assert level == pytest.approx(255 * (0.75 - 0.5 / scale), abs=3), (
        "a little above what was under the pointer"
    )


def test_a_picture_at_its_own_size_stays_zoomed_while_patches_are_chosen(
    app_page: WatchedPage, app_server: Any
) -> None:
    from playwright.sync_api import expect

    page = app_page.page
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"{app_server.url}/image?v=1&sample=cat&side=own&view=attention&layer=11&head=2")
    wait_for_model(page)
    expect(page.locator(".as-title")).to_contain_text("448 × 294 px", timeout=MINUTES)
    expect(page.locator(".as-title")).to_contain_text("21 × 32 patches")
    expect(page.get_by_text(re.compile("Own size: 448 × 294 px, 672 patches, about"))).to_be_visible(
        timeout=MINUTES
    )
    expect(page.locator(".patch-surface")).to_have_count(1, timeout=MINUTES)
    settle(app_page)
    surface = page.locator(".patch-surface")
    surface.focus()
    page.keyboard.press("+")
    page.keyboard.press("+")
    expect(surface).to_have_class(re.compile("is-zoomed"))
    surface.click(position={"x": 60, "y": 60})
    expect(page).to_have_url(re.compile("patch="), timeout=MINUTES)
    settle(app_page)
    expect(page.get_by_text(re.compile(r"^From patch row \d+, column \d+$"))).to_be_visible(timeout=MINUTES)
    expect(surface).to_have_class(re.compile("is-zoomed"))
    expect(page.get_by_role("button", name=re.compile(r"Zoom 2\.3×"))).to_be_visible()
    page.get_by_role("radio", name="336", exact=True).click()
    expect(page.locator(".as-title")).to_contain_text("504 × 336 px", timeout=MINUTES)
    expect(page.get_by_role("button", name=re.compile(r"Zoom 1×"))).to_be_visible(timeout=MINUTES)
    assert app_page.errors == []
    assert app_page.outside == []


def test_maps_of_evidence_are_zoomed_together_and_saved_whole(page: Page) -> None:
    panels = tuple(replace(SIGNED, method=name) for name in ("CDAM", "GradCAM"))
    rows, columns = np.mgrid[0:60, 0:80]
    scores = np.stack([(100 * rows + columns) / 1e4, (100 * columns + rows) / 1e4]).astype(np.float32)
    record = EvidenceMaps(picture(1200, 1600), scores, panels, "Evidence for elephant")
    payload = evidence_maps_payload(record)
    assert unpack(payload)[1]["sharp"].size > 0
    show(page, "evidence_maps", payload, height=700)
    surfaces = page.locator(".evidence-surface")
    assert surfaces.count() == 2
    box = surfaces.first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 0.75 * box["width"], box["y"] + 0.25 * box["height"])
    for _ in range(4):
        page.mouse.wheel(0, -200)
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    styles = page.locator(".evidence-overlay").evaluate_all(
        "all => all.map(({ style }) => [style.width, style.left, style.top].map((text) => parseFloat(text) / 100))"
    )
    assert styles[0] == styles[1]
    scale, left, top = styles[0]
    assert scale > 3
    page.mouse.move(box["x"] + 0.5 * box["width"], box["y"] + 0.5 * box["height"])
    row, column = int((0.5 - top) / scale * 60), int((0.5 - left) / scale * 80)
    told = tooltip(page)
    assert f"patch row {row}, column {column}" in told
    assert told[-1] == f"pixels x {column * 20:,}–{column * 20 + 19:,}, y {row * 20:,}–{row * 20 + 19:,}"
    with page.expect_download() as waiting:
        page.get_by_role("button", name=re.compile("Save CDAM")).click()
    with Image.open(waiting.value.path()) as saved:
        assert saved.size == (1600, 1200), "the whole picture, whatever is seen of it"
    surfaces.first.focus()
    page.keyboard.press("0")
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    assert page.locator(".evidence-overlay").first.evaluate("canvas => canvas.style.width") == ""
