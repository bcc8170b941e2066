"""The model view in a real browser: every head of every layer is painted where it belongs and can be opened."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from playwright.sync_api import expect

from analysis.figure_data import ModelView, weight_levels
from dashboard.colour_maps import colour_table
from dashboard.figures import model_view_payload
from tests.browser.component_page import ComponentPage

ROOT = ".heads"


def thumbnails(layers, heads, rows, columns=None, *, seed=0):
    scores = np.random.default_rng(seed).normal(scale=2.0, size=(layers, heads, rows, columns or rows))
    weights = np.exp(scores)
    return (weights / weights.sum(-1, keepdims=True)).astype(np.float32)


@pytest.fixture
def component(watched_page):
    """The component in a page; nothing may go wrong in it."""
    yield ComponentPage(watched_page.page, "model_view")
    assert watched_page.errors == []
    assert watched_page.outside == []


def cell_size(component):
    return component.page.evaluate(
        "() => { const canvas = document.querySelector('.heads-canvas');"
        " return [canvas.clientWidth, canvas.clientHeight]; }"
    )


def pixel(component, x, y):
    """Colour of the grid's canvas at a point in CSS pixels."""
    return tuple(
        component.page.evaluate(
            "([x, y]) => { const canvas = document.querySelector('.heads-canvas');"
            " const ratio = canvas.width / canvas.clientWidth;"
            " return [...canvas.getContext('2d').getImageData(x * ratio, y * ratio, 1, 1).data]; }",
            [x, y],
        )
    )


def middle(component, view, layer, head, row, column):
    """Middle of one cell of one thumbnail, in CSS pixels of the grid's canvas."""
    layers, heads, rows, columns = view.thumbnails.shape
    width, height = cell_size(component)
    wide, tall = width / heads, height / layers
    longest = max(wide, tall)
    gap = 4 if longest > 40 else 3 if longest > 28 else 2
    assert (tall - gap) / (wide - gap) == pytest.approx(rows / columns, abs=1.5 / (longest - gap))
    scale = min((wide - gap) / columns, (tall - gap) / rows)
    left = (wide - columns * scale) / 2 + (column + 0.5) * scale
    top = (tall - rows * scale) / 2 + (row + 0.5) * scale
    return head * wide + left, layer * tall + top


def colour_of(view, layer, head, row, column):
    """The colour that a cell has to have."""
    weights = (weight_levels(view.thumbnails) / 255.0) ** 2
    limit = view.thumbnails.max() if view.shared_scale else view.thumbnails[layer, head].max()
    level = int(np.rint(255 * min(weights[layer, head, row, column] / limit, 1)))
    return colour_table(view.colour_map)[level].astype(int)


@pytest.mark.parametrize(
    "shape", [(6, 12, 8), (1, 1, 5), (1, 7, 6), (5, 1, 6), (4, 3, 9), (32, 16, 8)], ids=str
)
@pytest.mark.parametrize("shared", [False, True], ids=["own scale", "shared scale"])
def test_every_head_is_painted_in_its_place(component, shape, shared):
    view = ModelView(thumbnails=thumbnails(*shape), shared_scale=shared, colour_map="cividis")
    component.draw(model_view_payload(view))
    layers, heads, size = shape
    assert component.data(ROOT)["painted"] == str(layers * heads)
    draw = np.random.default_rng(1)
    for _ in range(12):
        place = (*(int(draw.integers(limit)) for limit in (layers, heads, size, size)),)
        seen = np.array(pixel(component, *middle(component, view, *place)))
        assert np.abs(seen[:3] - colour_of(view, *place)).max() <= 3, place  # one level, by rounding
        assert seen[3] == 255


def test_cross_attention_keeps_its_proportions(component):
    view = ModelView(thumbnails=thumbnails(2, 3, 4, 9), kind="cross")
    component.draw(model_view_payload(view))
    for place in ((0, 0, 0, 0), (1, 2, 3, 8), (1, 0, 2, 4)):
        seen = np.array(pixel(component, *middle(component, view, *place)))
        assert np.abs(seen[:3] - colour_of(view, *place)).max() <= 3
    assert "cross-attention" in component.page.locator(".heads-title").inner_text()
    assert "4 × 9 tokens" in component.page.locator(".heads-title").inner_text()


def test_thin_patterns_survive_small_cells(component):
    maps = np.full((32, 32, 64, 64), 1e-4, dtype=np.float32)
    maps[:, :, np.arange(0, 64, 2), np.arange(0, 64, 2)] = 1.0
    component.draw(model_view_payload(ModelView(thumbnails=maps)))
    brightest = component.page.evaluate(
        "() => { const canvas = document.querySelector('.heads-canvas');"
        " const data = canvas.getContext('2d').getImageData(0, 0, canvas.width / 32, canvas.height / 32).data;"
        " let green = 0; for (let at = 1; at < data.length; at += 4) green = Math.max(green, data[at]);"
        " return green; }"
    )
    assert brightest > 200  # the mean of a block of cells would be much darker


def test_pointing_tells_the_head(component):
    view = ModelView(thumbnails=thumbnails(4, 5, 10))
    entropy = np.arange(20, dtype=np.float32).reshape(4, 5) / 10
    component.draw(model_view_payload(view, entropy=entropy, tokens=(40, 40), maximum=entropy / 4))
    hover(component, 2, 3)
    facts = component.page.locator(".heads-facts").inner_text()
    assert "Layer 2 · head 3" in facts
    assert "1.30 nats" in facts
    assert "0.325" in facts
    assert "10 × 10 cells, each the maximum of its block" in facts
    live = component.page.locator("[aria-live=polite]")
    expect(live).to_contain_text("Layer 2, head 3: largest weight 0.325, mean entropy 1.30 nats")
    expect(component.page.locator(".heads-pointed")).to_be_visible()
    component.page.mouse.move(5, 5)
    expect(component.page.locator(".heads-pointed")).to_be_hidden()


def place_of(component, layer, head):
    box = component.page.locator(".heads-canvas").bounding_box()
    heads = int(component.page.locator(".heads-head").count())
    layers = int(component.page.locator(".heads-layer").count())
    wide, tall = box["width"] / heads, box["height"] / layers
    return box["x"] + (head + 0.5) * wide, box["y"] + (layer + 0.5) * tall


def hover(component, layer, head):
    component.page.mouse.move(*place_of(component, layer, head))
    component.frames()


def test_a_click_opens_a_head(component):
    component.draw(model_view_payload(ModelView(thumbnails=thumbnails(4, 5, 6), selected=(0, 0))))
    component.page.mouse.click(*place_of(component, 3, 1))
    assert component.wait_for_word(1, "trigger open") == {"layer": 3, "head": 1}
    ring = component.page.locator(".heads-chosen").bounding_box()
    x, y = place_of(component, 3, 1)
    assert ring["x"] < x < ring["x"] + ring["width"]
    assert ring["y"] < y < ring["y"] + ring["height"]


def test_the_keyboard_finds_and_opens_a_head(component):
    component.draw(model_view_payload(ModelView(thumbnails=thumbnails(3, 4, 6))))
    page = component.page
    for _ in range(6):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement?.className === 'heads-stage'"):
            break
    else:
        pytest.fail("the grid cannot be reached by Tab")
    expect(page.locator(".heads-pointed")).to_be_visible()
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowUp", "ArrowUp", "PageDown"):
        page.keyboard.press(key)
    expect(page.locator("[aria-live=polite]")).to_contain_text("Layer 2, head 2")
    page.keyboard.press("End")
    page.keyboard.press("Enter")
    assert component.wait_for_word(1, "trigger open") == {"layer": 2, "head": 3}
    for key in ("ArrowRight", "ArrowDown"):  # the edge holds
        page.keyboard.press(key)
    page.keyboard.press(" ")
    assert component.wait_for_word(2, "trigger open") == {"layer": 2, "head": 3}
    page.keyboard.press("Escape")
    expect(page.locator(".heads-pointed")).to_be_hidden()


def ragged():
    """Layers of 2 heads on 4 × 6 patches and of 4 heads on 2 × 3."""
    maps = np.full((2, 4, 4, 6), np.nan, dtype=np.float32)
    maps[0, :2], maps[1, :, :2, :3] = thumbnails(1, 2, 4, 6)[0], thumbnails(1, 4, 2, 3, seed=1)[0]
    return ModelView(thumbnails=maps, shapes=((2, 4, 6), (4, 2, 3)), cells="patches")


def test_each_layer_has_its_own_heads_and_its_own_grid(component):
    view = ragged()
    component.draw(model_view_payload(view, tokens=[(4, 6), (2, 3)]))
    root = component.page.locator(ROOT)
    expect(root).to_have_attribute("data-painted", "6")
    title = component.page.locator(".heads-title").inner_text()
    assert "2 layers × 2 to 4 heads" in title
    assert "4 × 6, 2 × 3 patches" in title
    assert "Queries" not in component.page.locator(".heads-foot").inner_text()
    full = ModelView(thumbnails=np.nan_to_num(view.thumbnails))
    coarse = ModelView(thumbnails=np.nan_to_num(view.thumbnails)[:, :, :2, :3])
    for layer, head, row, column in ((0, 0, 0, 0), (0, 1, 3, 5), (0, 1, 1, 4)):
        expected = colour_of(full, layer, head, row, column)
        found = pixel(component, *middle(component, full, layer, head, row, column))
        assert np.abs(np.array(found[:3]) - expected).max() <= 2
    for layer, head, row, column in ((1, 0, 0, 0), (1, 3, 1, 2), (1, 2, 0, 1)):
        expected = colour_of(coarse, layer, head, row, column)
        found = pixel(component, *middle(component, coarse, layer, head, row, column))
        assert np.abs(np.array(found[:3]) - expected).max() <= 2
    assert pixel(component, *middle(component, full, 0, 2, 1, 1))[3] == 0  # no such head, nothing painted


def test_a_head_that_a_layer_has_not_cannot_be_opened(component):
    component.draw(model_view_payload(ragged()))
    component.page.mouse.click(*place_of(component, 0, 3))
    component.page.mouse.click(*place_of(component, 1, 3))
    component.wait_for_word(1, "trigger open")
    assert component.said("trigger open") == [{"layer": 1, "head": 3}]
    for key in ("PageUp", "ArrowRight", "Enter"):  # from head 3 of layer 1 to the last of layer 0
        component.page.keyboard.press(key)
    component.page.locator(".heads-stage").focus()
    for key in ("PageUp", "End", "Enter"):
        component.page.keyboard.press(key)
    assert component.wait_for_word(2, "trigger open") == {"layer": 0, "head": 1}


def test_a_head_out_of_sight_is_brought_into_view(component):
    component.draw(model_view_payload(ModelView(thumbnails=thumbnails(32, 32, 4))))
    stage = component.page.locator(".heads-stage")
    stage.focus()
    component.page.keyboard.press("PageDown")
    component.frames()
    assert stage.evaluate("stage => stage.scrollTop") > 0
    expect(component.page.locator(".heads-pointed")).to_be_in_viewport()


def test_the_scale_is_chosen_and_told(component):
    view = ModelView(thumbnails=thumbnails(3, 4, 6))
    component.draw(model_view_payload(view))
    ticks = component.page.locator(".view-scale-ticks")
    expect(ticks).to_contain_text("each head's maximum")
    component.page.get_by_role("button", name="shared").click()
    assert component.wait_for_word(1) == {"shared_scale": True}
    expect(ticks).to_contain_text(f"{view.thumbnails.max():.3g}")
    seen = np.array(pixel(component, *middle(component, view, 1, 2, 3, 3)))
    assert np.abs(seen[:3] - colour_of(replace(view, shared_scale=True), 1, 2, 3, 3)).max() <= 3
    component.draw(model_view_payload(replace(view, shared_scale=True)))  # Python follows
    expect(component.page.get_by_role("button", name="shared")).to_have_attribute("aria-pressed", "true")


def test_python_marks_the_open_head(component):
    view = ModelView(thumbnails=thumbnails(3, 4, 6))
    component.draw(model_view_payload(view))
    expect(component.page.locator(".heads-chosen")).to_be_hidden()
    component.draw(model_view_payload(replace(view, selected=(2, 3))))
    ring = component.page.locator(".heads-chosen").bounding_box()
    x, y = place_of(component, 2, 3)
    assert ring["x"] < x < ring["x"] + ring["width"]
    assert ring["y"] < y < ring["y"] + ring["height"]


def test_shared_key_value_heads_are_bracketed(component):
    view = ModelView(thumbnails=thumbnails(2, 8, 5), groups=(0, 0, 0, 0, 1, 1, 1, 1))
    component.draw(model_view_payload(view))
    brackets = component.page.locator(".heads-group")
    assert brackets.all_inner_texts() == ["kv 0", "kv 1"]
    assert brackets.nth(1).get_attribute("title") == "Heads 4 to 7 share key and value head 1"
    hover(component, 1, 5)
    assert "key/value head" in component.page.locator(".heads-facts").inner_text()


def test_a_head_without_attention_is_no_error(component):
    maps = thumbnails(2, 2, 5)
    maps[0, 1] = 0.0  # a fully masked head
    component.draw(model_view_payload(ModelView(thumbnails=maps)))
    view = ModelView(thumbnails=maps)
    seen = np.array(pixel(component, *middle(component, view, 0, 1, 2, 2)))
    assert (np.abs(seen[:3] - colour_table("viridis")[0].astype(int)) <= 3).all()


def test_it_fits_600_pixels(watched_page):
    component = ComponentPage(watched_page.page, "model_view", width=600)
    component.draw(model_view_payload(ModelView(thumbnails=thumbnails(6, 12, 8), selected=(0, 0))))
    assert component.page.eval_on_selector(ROOT, "root => root.scrollWidth - root.clientWidth") <= 0
    assert component.page.eval_on_selector(".heads-stage", "s => s.scrollWidth - s.clientWidth") <= 0
    assert watched_page.errors == []
