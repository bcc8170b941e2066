"""The patch map in a real browser: geometry, colours, what is told and sent to Python."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from analysis.figure_data import PatchMaps
from dashboard.colour_maps import colour_table
from dashboard.figures import patch_map_payload
from tests.browser.lone_component import said, send, show, tooltip

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.conftest import WatchedPage

pytestmark = pytest.mark.browser


@pytest.fixture
def page(watched_page: WatchedPage) -> Any:
    """A page in which nothing goes wrong."""
    yield watched_page.page
    assert watched_page.errors == []
    assert watched_page.outside == []


def picture(height: int, width: int) -> np.ndarray:
    """Red grows downwards, green to the right, so that every orientation looks different."""
    down, across = np.mgrid[0:height, 0:width]
    channels = (255 * down / max(height - 1, 1), 255 * across / max(width - 1, 1), np.full_like(down, 40))
    return np.stack(channels, axis=-1).astype(np.uint8)


def maps(panels: int, rows: int, columns: int) -> np.ndarray:
    return np.random.default_rng(7).uniform(0, 0.02, size=(panels, rows, columns)).astype(np.float32)


def view(
    panels: int = 1, grid: tuple[int, int] = (16, 8), size: tuple[int, int] = (256, 128), **options: Any
) -> PatchMaps:
    titles = tuple(f"head {index}" for index in range(panels))
    return PatchMaps(picture(*size), maps(panels, *grid), titles, **options)


def place(page: Page, patch: tuple[int, int], grid: tuple[int, int], panel: int = 0) -> tuple[float, float]:
    """Centre of a patch in the page."""
    box = page.locator(".patch-surface").nth(panel).bounding_box()
    assert box is not None
    return (
        box["x"] + box["width"] * (patch[1] + 0.5) / grid[1],
        box["y"] + box["height"] * (patch[0] + 0.5) / grid[0],
    )


def covered(patch: tuple[int, int], grid: tuple[int, int], size: tuple[int, int]) -> str:
    """What a tooltip says of the pixels that a patch covers."""
    spans = []
    for place, count, length in reversed(list(zip(patch, grid, size, strict=True))):
        side = length // count
        spans.append(f"{place * side:,}–{(place + 1) * side - 1:,}")
    return f"pixels x {spans[0]}, y {spans[1]}"


def overlay(page: Page, panel: int = 0) -> np.ndarray:
    """(height, width, 4) pixels of a panel's map, at its own resolution."""
    size, pixels = (
        page.locator(".patch-overlay")
        .nth(panel)
        .evaluate(
            """canvas => [[canvas.height, canvas.width],
        [...canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data]]"""
        )
    )
    return np.array(pixels).reshape(*size, 4)


def assert_colours(drawn: np.ndarray, values: np.ndarray, high: float, *, steps: int = 1) -> None:
    """Colours lie at most ``steps`` levels from where the values belong on the scale."""
    table = colour_table("viridis").astype(int)
    levels = np.rint(255 * values / high).astype(int)
    nearby = [table[np.clip(levels + step, 0, 255)] for step in range(-steps, steps + 1)]
    distance = np.min([np.abs(drawn[..., :3] - colours).max(axis=-1) for colours in nearby], axis=0)
    assert distance.max() == 0


SHAPES = [
    ((16, 8), (256, 128)),  # not square: the grid comes from the input, never from a root
    ((29, 29), (406, 406)),
    ((25, 37), (350, 518)),
    ((60, 1), (60, 1)),
    ((1, 1), (14, 14)),
]


@pytest.mark.parametrize(("grid", "size"), SHAPES)
def test_every_patch_is_in_its_place_with_its_exact_value(
    page: Page, grid: tuple[int, int], size: tuple[int, int]
) -> None:
    record = view(grid=grid, size=size)
    show(page, "patch_map", patch_map_payload(record))
    box = page.locator(".patch-surface").bounding_box()
    assert box is not None
    assert box["height"] / box["width"] == pytest.approx(
        size[0] / size[1], rel=0.15 if size[1] == 1 else 0.02
    )
    corners = {
        (row, column) for row in (0, grid[0] // 2, grid[0] - 1) for column in (0, grid[1] // 2, grid[1] - 1)
    }
    for patch in corners:
        page.mouse.move(*place(page, patch, grid))
        value, where, pixels = tooltip(page)
        assert where == f"patch row {patch[0]}, column {patch[1]}"
        assert pixels == covered(patch, grid, size)
        assert np.float32(value) == record.maps[0][patch]
    assert_colours(overlay(page), record.maps[0], float(record.maps.max()))


def test_the_picture_is_upright(page: Page) -> None:
    show(page, "patch_map", patch_map_payload(view()))
    pixel = """([down, across]) => {
      const canvas = document.querySelector(".patch-surface canvas");
      const [x, y] = [Math.floor(across * (canvas.width - 1)), Math.floor(down * (canvas.height - 1))];
      return [...canvas.getContext("2d").getImageData(x, y, 1, 1).data];
    }"""
    corners = {(0, 0): (0, 0), (0, 1): (0, 255), (1, 0): (255, 0), (1, 1): (255, 255)}
    for corner, (red, green) in corners.items():
        drawn = page.evaluate(pixel, list(corner))
        assert abs(drawn[0] - red) <= 6
        assert abs(drawn[1] - green) <= 6
        assert abs(drawn[2] - 40) <= 2


def test_a_click_chooses_a_patch_and_a_button_returns_to_cls(page: Page) -> None:
    payload = patch_map_payload(view())
    show(page, "patch_map", payload)
    back = page.get_by_role("button", name="Show the attention of CLS")
    assert page.get_by_text("From CLS").is_visible()
    assert back.is_hidden()
    page.mouse.click(*place(page, (11, 2), (16, 8)))
    name, sent = said(page, 1)[-1]
    assert (name, sent["at"]) == ("patch", [11, 2])
    assert page.get_by_text("From patch row 11, column 2").is_visible()
    mark, surface = page.locator(".patch-mark").bounding_box(), page.locator(".patch-surface").bounding_box()
    assert mark is not None
    assert surface is not None
    assert (mark["y"] - surface["y"]) / surface["height"] == pytest.approx(11 / 16, abs=0.005)
    assert (mark["x"] - surface["x"]) / surface["width"] == pytest.approx(2 / 8, abs=0.005)
    back.click()
    assert said(page, 2)[-1][1]["at"] is None
    assert page.locator(".patch-mark").is_hidden()


def test_a_model_without_cls_offers_none(page: Page) -> None:
    payload = patch_map_payload(view(marked=(3, 4)), has_cls=False)
    show(page, "patch_map", payload)
    assert page.get_by_role("button", name="Show the attention of CLS").is_hidden()
    page.locator(".patch-surface").focus()
    page.keyboard.press("Escape")
    page.wait_for_timeout(200)
    assert said(page) == []
    assert page.get_by_text("From patch row 3, column 4").is_visible()


def test_arrow_keys_move_the_patch(page: Page) -> None:
    record = view(marked=(3, 4))
    show(page, "patch_map", patch_map_payload(record))
    page.keyboard.press("Tab")
    page.locator(".patch-surface").focus()
    page.locator(
        ".patch-surface"
    ).evaluate(  # at once: a busy machine's pauses between keys would be told too
        """(surface, keys) => keys.forEach((key) =>
            surface.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true })))""",
        ["ArrowDown", "ArrowDown", "ArrowRight", "ArrowUp"],
    )
    assert said(page, 1)[-1][1]["at"] == [4, 5]
    assert len(said(page)) == 1, "four steps in a row are told once"
    value = np.format_float_positional(record.maps[0, 4, 5], unique=True)
    page.locator(".view-live").get_by_text("patch row 4, column 5").wait_for(state="attached")
    assert page.locator(".view-side-value").inner_text() == value
    page.keyboard.press("Shift+ArrowRight")
    assert said(page, 2)[-1][1]["at"] == [4, 7], "the edge stops it"
    page.keyboard.press("Escape")
    assert said(page, 3)[-1][1]["at"] is None


@pytest.mark.parametrize(
    ("panels", "size"), [(6, (1000, 560)), (16, (1000, 560)), (16, (620, 700)), (12, (420, 560))]
)
def test_all_panels_are_seen_side_by_side(page: Page, panels: int, size: tuple[int, int]) -> None:
    page.set_viewport_size({"width": size[0] + 40, "height": size[1] + 60})
    show(page, "patch_map", patch_map_payload(view(panels)), width=size[0], height=size[1])
    stage = page.locator(".patch-stage").bounding_box()
    assert stage is not None
    boxes = [box for surface in page.locator(".patch-surface").all() if (box := surface.bounding_box())]
    assert len(boxes) == panels
    for box in boxes:
        assert box["x"] + box["width"] <= stage["x"] + stage["width"] + 1
        assert box["y"] + box["height"] <= stage["y"] + stage["height"] + 1
        assert box["height"] / box["width"] == pytest.approx(2, rel=0.05)
    for index, first in enumerate(boxes):
        for second in boxes[index + 1 :]:
            apart_x = (
                first["x"] + first["width"] <= second["x"] or second["x"] + second["width"] <= first["x"]
            )
            apart_y = (
                first["y"] + first["height"] <= second["y"] or second["y"] + second["height"] <= first["y"]
            )
            assert apart_x or apart_y


def test_many_panels_scroll_instead_of_shrinking_to_nothing(page: Page) -> None:
    show(page, "patch_map", patch_map_payload(view(64)), width=600, height=420)
    box = page.locator(".patch-surface").first.bounding_box()
    assert box is not None
    assert box["height"] >= 100
    last = page.locator(".patch-surface").last
    last.scroll_into_view_if_needed()
    page.mouse.move(*place(page, (0, 0), (16, 8), panel=63))
    assert tooltip(page)[2] == "head 63"


def test_panels_are_linked_and_open_by_their_title(page: Page) -> None:
    record = view(6, selected=2)
    show(page, "patch_map", patch_map_payload(record))
    page.mouse.move(*place(page, (5, 3), (16, 8), panel=4))
    assert tooltip(page)[2] == "head 4"
    assert page.locator(".patch-pointer:visible").count() == 6
    values = page.locator(".patch-value").all_text_contents()
    assert values == [f"{float(f'{value:.3g}'):g}" for value in record.maps[:, 5, 3]]
    page.get_by_role("button", name="head 4", exact=True).click()
    assert said(page, 1)[-1] == ["panel", 4]
    assert page.locator(".patch-panel.is-selected").count() == 1
    assert [surface.get_attribute("tabindex") for surface in page.locator(".patch-surface").all()] == [
        "-1", "-1", "0", "-1", "-1", "-1",
    ]  # fmt: skip


def test_the_scale_is_shared_or_each_panels_own(page: Page) -> None:
    record = view(3)
    record.maps[1] *= 0.1
    show(page, "patch_map", patch_map_payload(record))
    note = page.locator(".patch-foot .view-note")
    assert "one scale for all panels" in note.inner_text()
    for index in range(3):
        assert_colours(overlay(page, index), record.maps[index], float(record.maps.max()))
    page.get_by_role("button", name="Own scale").click()
    assert said(page, 1)[-1][1]["shared_scale"] is False
    assert "each panel scaled to its own maximum" in note.inner_text()
    for index in range(3):
        assert_colours(overlay(page, index), record.maps[index], float(record.maps[index].max()))
        highest = page.locator(".patch-value").nth(index).inner_text()
        assert float(highest.removeprefix("max ")) == pytest.approx(
            float(record.maps[index].max()), rel=0.005
        )


def test_explicit_limits_hold_for_all_panels(page: Page) -> None:
    record = view(2, limits=(0.0, 0.05))
    show(page, "patch_map", patch_map_payload(record))
    assert_colours(overlay(page, 1), record.maps[1], 0.05)
    assert page.locator(".view-scale-ticks span").last.inner_text() == "0.05"
    assert page.get_by_role("button", name="Own scale").is_hidden()


def test_smooth_maps_interpolate_values_between_patch_centres(page: Page) -> None:
    record = view(grid=(4, 6), size=(200, 300), smooth=True)
    show(page, "patch_map", patch_map_payload(record))
    drawn = overlay(page)
    assert drawn.shape[0] > 100
    height, width = drawn.shape[:2]
    rows = ((np.arange(4) + 0.5) / 4 * height).astype(int)
    columns = ((np.arange(6) + 0.5) / 6 * width).astype(int)
    assert_colours(drawn[np.ix_(rows, columns)], record.maps[0], float(record.maps.max()), steps=3)
    page.get_by_role("button", name="Squares").click()
    assert overlay(page).shape == (4, 6, 4)
    assert said(page, 1)[-1][1]["smooth"] is False


def test_the_opacity_slider_acts_at_once_and_is_told_at_its_end(page: Page) -> None:
    show(page, "patch_map", patch_map_payload(view(2)))
    slider = page.get_by_role("slider", name="Opacity")
    opacity = "() => [...document.querySelectorAll('.patch-overlay')].map(canvas => canvas.style.opacity)"
    assert page.evaluate(opacity) == ["0.6", "0.6"]
    slider.evaluate("slider => { slider.value = '25'; slider.dispatchEvent(new Event('input')); }")
    assert page.evaluate(opacity) == ["0.25", "0.25"]
    assert page.locator(".patch-opacity-text").inner_text() == "25 %"
    assert said(page) == []
    slider.evaluate("slider => slider.dispatchEvent(new Event('change'))")
    name, state = said(page, 1)[-1]
    assert name == "view"
    assert state["opacity"] == 0.25


def test_missing_values_are_transparent_and_told(page: Page) -> None:
    record = view()
    record.maps[0, 2, 3] = np.nan
    show(page, "patch_map", patch_map_payload(record))
    assert overlay(page)[2, 3, 3] == 0
    assert overlay(page)[2, 4, 3] == 255
    page.mouse.move(*place(page, (2, 3), (16, 8)))
    assert tooltip(page)[0] == "no value"


def test_a_constant_map_is_flat_and_not_broken(page: Page) -> None:
    record = view()
    record.maps[:] = 0.0
    show(page, "patch_map", patch_map_payload(record))
    assert np.ptp(overlay(page).reshape(-1, 4), axis=0).tolist() == [0, 0, 0, 0]


def test_hostile_titles_are_shown_as_they_are(page: Page) -> None:
    titles = ("<img src=x onerror=window.hacked=1>", "</script><script>window.hacked=1</script>")
    record = PatchMaps(picture(28, 28), maps(2, 2, 2), titles, unit="<b>unit</b>")
    show(page, "patch_map", patch_map_payload(record, source="<i>x</i>", note="<u>n</u>"))
    assert page.locator(".patch-title").all_text_contents() == list(titles)
    assert page.locator(".view-scale-unit").inner_text() == "<b>unit</b>"
    assert page.get_by_text("From <i>x</i>").is_visible()
    page.mouse.move(*place(page, (1, 1), (2, 2), panel=1))
    assert tooltip(page)[2] == titles[1]
    assert page.evaluate("window.hacked") is None
    assert page.locator("#frame img, #frame script, #frame i, #frame u").count() == 0


def test_python_may_change_the_choices(page: Page) -> None:
    show(page, "patch_map", patch_map_payload(view(3)))
    page.mouse.click(*place(page, (1, 1), (16, 8)))
    said(page, 1)
    send(page, patch_map_payload(view(3)))  # Python has not heard of it yet
    assert page.get_by_text("From patch row 1, column 1").is_visible()
    send(page, patch_map_payload(view(3, marked=(1, 1))))  # its answer
    send(page, patch_map_payload(view(1, marked=(9, 7), opacity=0.3)))  # and a choice of its own
    assert page.get_by_text("From patch row 9, column 7").is_visible()
    assert page.locator(".patch-opacity-text").inner_text() == "30 %"
    assert page.locator(".patch-panel").count() == 1
    send(page, patch_map_payload(view(1, grid=(8, 8), size=(128, 128))))  # another picture
    assert page.get_by_text("From CLS").is_visible()


def test_a_stand_alone_page_does_not_offer_what_needs_python(page: Page) -> None:
    show(page, "patch_map", patch_map_payload(view(3)), alone=True)
    page.mouse.click(*place(page, (1, 1), (16, 8)))
    page.wait_for_timeout(200)
    assert page.get_by_text("From CLS").is_visible()
    assert page.get_by_role("button", name="head 1", exact=True).is_disabled()
    page.get_by_role("button", name="Smooth").click()
    assert overlay(page).shape[0] > 16


@pytest.mark.parametrize("panels", [1, 16])
def test_it_is_fast(page: Page, panels: int) -> None:
    payload = patch_map_payload(view(panels, grid=(37, 37), size=(518, 518), smooth=True))
    assert show(page, "patch_map", payload, shadow=True) < 1500
