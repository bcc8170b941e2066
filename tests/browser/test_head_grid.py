"""The grid of heads in a real browser: classes, filter, tooltips, keyboard, marks, and both themes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from playwright.sync_api import expect

from analysis.figure_data import HeadGrid, HeadStatistic
from analysis.visible_heads import MIXED_COLOUR, class_colour
from dashboard.colour_maps import colour_table
from dashboard.heads_payload import head_grid_payload
from tests.browser import lone_component
from tests.browser.component_page import ComponentPage

ROOT = ".roles"
CLASSES = ("Positional", "Delimiter", "<b>Rare</b> token", "Heterogeneous")


def grid(layers=3, heads=4, *, side=None, seed=0, **changes):
    """Heads of four classes in turn, so that each has its neighbours' opposite."""
    best = (np.arange(heads)[None] + np.arange(layers)[:, None]) % 4
    shares = np.random.default_rng(seed).random((layers, heads))
    maps = None
    if side:
        maps = np.zeros((layers, heads, side, side), dtype=np.float32)
        maps[:, :, :, 0] = 1.0  # every query looks at the first key
    numbers = tuple(
        HeadStatistic(f"n{index}", f"Number {index}", "nats", np.full((layers, heads), index + 0.5))
        for index in range(16)
    )
    interval = replace(numbers[0], low=numbers[0].values - 0.125, high=numbers[0].values + 0.125)
    entries = {
        "classes": CLASSES,
        "best": best,
        "variants": tuple(tuple("previous" if index == 0 else "" for index in row) for row in best.tolist()),
        "scores": shares,
        "margins": shares / 2,
        "stable": np.full((layers, heads), 0.875),
        "numbers": (interval, *numbers[1:]),
        "thumbnails": maps,
        "title": "200 texts, <i>9,412</i> tokens",
        "notes": ("One text is <u>no</u> evidence.",),
    }
    return HeadGrid(**{**entries, **changes})


@pytest.fixture
def component(watched_page):
    """The component in a page of 1140 pixels; nothing may go wrong in it."""
    yield ComponentPage(watched_page.page, "head_grid", width=1140)
    assert watched_page.errors == []
    assert watched_page.outside == []


def place_of(component, layer, head, *, x=0.3, y=0.5):
    """A point of a cell, in pixels of the page."""
    box = component.page.locator(".roles-canvas").bounding_box()
    heads, layers = (
        component.page.locator(".roles-head").count(),
        component.page.locator(".roles-layer").count(),
    )
    wide, tall = box["width"] / heads, box["height"] / layers
    return box["x"] + (head + x) * wide, box["y"] + (layer + y) * tall


def hover(component, layer, head):
    component.page.mouse.move(*place_of(component, layer, head))
    component.frames()


def pixel(component, layer, head, x, y):
    """Red, green, blue and opacity of the canvas in a cell, at pixels from its corner (negative: from its end)."""
    return tuple(
        component.page.evaluate(
            """([layer, head, x, y]) => {
              const canvas = document.querySelector(".roles-canvas");
              const ratio = canvas.width / canvas.clientWidth;
              const wide = canvas.clientWidth / document.querySelectorAll(".roles-head").length;
              const tall = canvas.clientHeight / document.querySelectorAll(".roles-layer").length;
              const at = [head * wide + x, layer * tall + y].map((place) => Math.floor(place * ratio));
              return [...canvas.getContext("2d").getImageData(...at, 1, 1).data];
            }""",
            [layer, head, x, y],
        )
    )


def rgb(colour):
    return tuple(int(colour[at : at + 2], 16) for at in (1, 3, 5))


def chip(component, name):
    return component.page.locator(".roles-chip").filter(has_text=name)


def tip(component):
    return lone_component.tooltip(component.page)


def test_every_cell_has_its_classs_colour(component):
    view = grid()
    component.draw(head_grid_payload(view))
    assert component.data(ROOT) == {"painted": "12", "drawn": "12"}
    for layer, head in np.ndindex(view.best.shape):
        seen = pixel(component, layer, head, 1.5, 1.5)
        assert seen == (*rgb(class_colour(view.best[layer, head], 4)), 255)
    assert pixel(component, 0, 3, 1.5, 1.5)[:3] == rgb(MIXED_COLOUR)


def test_marks_say_the_class_without_colour(component):
    same = grid(best=np.zeros((3, 4), int), scores=np.zeros((3, 4)))
    rows = {}
    for name, view in (("variant", same), ("class", replace(same, variants=(("",) * 4,) * 3))):
        component.draw(head_grid_payload(view))
        rows[name] = component.page.evaluate("document.querySelector('.roles-canvas').toDataURL()")
    assert rows["variant"] != rows["class"]  # "prev" and "posi" on the same colour


@pytest.mark.parametrize("shape", [(3, 4), (3, 24)], ids=["words beside", "words below"])
def test_maps_stand_in_their_cells(component, shape):
    view = grid(*shape, side=8)
    component.draw(head_grid_payload(view))
    first, last = (tuple(int(part) for part in colour_table("viridis")[level]) for level in (255, 0))
    layer, head = 2, shape[1] - 1
    assert pixel(component, layer, head, 4, 8)[:3] == first
    assert pixel(component, layer, head, 18, 8)[:3] == last
    assert pixel(component, layer, head, 0.5, 4)[:3] == rgb(class_colour(view.best[layer, head], 4))
    expect(component.page.locator(".view-scale")).to_be_visible()


def test_a_bar_is_as_long_as_the_score(component):
    component.draw(head_grid_payload(grid(1, 4, scores=np.array([[0.0, 0.5, 1.0, np.nan]]))))
    width = component.page.evaluate(
        "document.querySelector('.roles-canvas').clientWidth / document.querySelectorAll('.roles-head').length"
    )
    tall = component.page.evaluate("document.querySelector('.roles-canvas').clientHeight")
    gap = 5  # of cells this wide
    filled = []
    for head in range(4):
        y, inner = tall - gap - 3.5, width - gap - 6
        seen = [pixel(component, 0, head, 3 + share * inner, y)[:3] for share in (0.25, 0.75)]
        filled.append([colour in ((0, 0, 0), (255, 255, 255)) for colour in seen])
    assert filled == [[False, False], [True, False], [True, True], [False, False]]


def test_pointing_tells_the_head(component):
    view = grid()
    component.draw(head_grid_payload(view))
    hover(component, 1, 3)  # (1 + 3) % 4 is positional
    lines = tip(component)
    assert lines[:2] == ["layer 1 · head 3", "Positional (previous)"]
    score = view.scores[1, 3]
    assert lines[2] == f"score {score:.3g} · margin {score / 2:.3g} · same class in 88 % of samples"
    assert lines[3] == "Number 0: 0.5 nats (95 %: 0.375 to 0.625)"
    assert lines[4:17] == [f"Number {index}: {index + 0.5:.3g} nats" for index in range(1, 14)]
    assert lines[17:] == ["2 further statistics in the exported files"]
    live = component.page.locator("[aria-live=polite]")
    expect(live).to_contain_text("Layer 1, head 3: Positional (previous), score")
    assert component.page.locator(".roles-named").all_inner_texts() == ["3", "layer 1"]
    hover(component, 0, 2)
    assert tip(component)[1] == "<b>Rare</b> token"
    component.page.mouse.move(5, 5)
    expect(component.page.locator(".view-tooltip")).to_be_hidden()
    expect(component.page.locator(".roles-pointed")).to_be_hidden()


def test_a_number_that_there_is_not_is_told(component):
    nothing = np.full((3, 4), np.nan)
    view = grid(scores=nothing, stable=None, numbers=(HeadStatistic("a", "Entropy", "nats", nothing),))
    component.draw(head_grid_payload(view))
    hover(component, 0, 0)
    assert tip(component)[2].startswith("score no value · margin")
    assert tip(component)[3:] == ["Entropy: no value"]


def test_names_are_text(component):
    component.draw(head_grid_payload(grid()))
    assert component.page.locator(f"{ROOT} b, {ROOT} i, {ROOT} u").count() == 0
    assert "200 texts, <i>9,412</i> tokens" in component.page.locator(".roles-title").inner_text()
    assert component.page.locator(".roles-note").inner_text() == "One text is <u>no</u> evidence."


def test_the_legend_counts_and_filters(component):
    view = grid()
    component.draw(head_grid_payload(view))
    counts = [chip(component, name).locator(".roles-count").inner_text() for name in CLASSES]
    assert counts == [str(int((view.best == index).sum())) for index in range(4)]
    chip(component, "Delimiter").click()
    assert component.wait_for_word(1)["shown"] == [0, 2, 3]
    expect(chip(component, "Delimiter")).to_have_attribute("aria-pressed", "false")
    assert component.data(ROOT)["drawn"] == "9"
    assert pixel(component, 0, 1, 1.5, 1.5)[3] == pytest.approx(0.22 * 255, abs=2)
    assert pixel(component, 0, 0, 1.5, 1.5)[3] == 255
    hover(component, 0, 1)
    assert tip(component)[1] == "Delimiter"  # pale heads can still be asked
    chip(component, "Delimiter").click()
    assert component.wait_for_word(2)["shown"] is None
    assert component.data(ROOT)["drawn"] == "12"


def test_a_double_click_shows_a_class_alone_and_all_brings_back_the_rest(component):
    component.draw(head_grid_payload(grid()))
    chip(component, "Rare").dblclick(delay=40)
    said = component.wait_for_word(1)
    assert said["shown"] == [2]
    assert len(component.said()) == 1  # the two clicks of it are not told
    assert component.data(ROOT)["drawn"] == "3"
    chip(component, "Positional").click()
    assert component.wait_for_word(2)["shown"] == [0, 2]
    component.page.get_by_role("button", name="Show all classes").click()
    assert component.wait_for_word(3)["shown"] is None
    expect(component.page.get_by_role("button", name="Show all classes")).to_be_disabled()
    chip(component, "Heterogeneous").focus()
    component.page.keyboard.press("Shift+Enter")
    assert component.wait_for_word(4)["shown"] == [3]
    component.page.keyboard.press("Space")
    assert component.wait_for_word(5)["shown"] == []
    expect(component.page.locator("[aria-live=polite]")).to_have_text("No class shown")


def test_a_click_opens_and_one_with_shift_marks(component):
    component.draw(head_grid_payload(grid()))
    component.page.keyboard.down("Shift")
    component.page.mouse.click(*place_of(component, 2, 1))
    component.page.keyboard.up("Shift")
    said = component.wait_for_word(1)
    assert (said["marked"], said["shown"]) == ([2, 1], None)
    assert component.said("trigger open") == []
    ring = component.page.locator(".roles-marked").bounding_box()
    x, y = place_of(component, 2, 1)
    assert ring["x"] < x < ring["x"] + ring["width"]
    assert ring["y"] < y < ring["y"] + ring["height"]
    component.page.mouse.click(*place_of(component, 0, 3))
    opened = component.wait_for_word(1, "trigger open")
    assert opened == {"at": [0, 3], "input": said["input"]}
    assert component.wait_for_word(2)["marked"] == [0, 3]


def test_the_keyboard_finds_marks_and_opens_a_head(component):
    component.draw(head_grid_payload(grid()))
    page = component.page
    for _ in range(8):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement?.className === 'roles-stage'"):
            break
    else:
        pytest.fail("the grid cannot be reached by Tab")
    assert tip(component)[0] == "layer 0 · head 0"
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowUp", "ArrowUp", "PageDown"):
        page.keyboard.press(key)
    assert tip(component)[0] == "layer 2 · head 2"
    expect(page.locator("[aria-live=polite]")).to_contain_text("Layer 2, head 2: Positional (previous)")
    page.keyboard.press("End")
    page.keyboard.press("Space")
    assert component.wait_for_word(1)["marked"] == [2, 3]
    assert component.said("trigger open") == []
    page.keyboard.press("ArrowUp")
    assert tip(component)[0] == "layer 1 · head 3"
    for key in ("ArrowDown", "ArrowRight", "ArrowDown"):  # the edge holds
        page.keyboard.press(key)
    page.keyboard.press("Enter")
    assert component.wait_for_word(1, "trigger open")["at"] == [2, 3]
    page.keyboard.press("Escape")
    expect(page.locator(".view-tooltip")).to_be_hidden()
    page.keyboard.press("Escape")
    assert component.wait_for_word(2)["marked"] is None
    expect(page.locator(".roles-marked")).to_be_hidden()


def test_python_marks_and_filters(component):
    view = grid()
    component.draw(head_grid_payload(view))
    expect(component.page.locator(".roles-marked")).to_be_hidden()
    component.draw(head_grid_payload(replace(view, marked=(1, 1), shown=(3,))))
    expect(component.page.locator(".roles-marked")).to_be_visible()
    assert component.data(ROOT)["drawn"] == "3"
    expect(chip(component, "Positional")).to_have_attribute("aria-pressed", "false")
    assert component.said() == []


def test_an_old_answer_of_python_undoes_no_newer_choice(component):
    view = grid()
    component.draw(head_grid_payload(view))
    for count, name in enumerate(("Delimiter", "Rare"), 1):
        chip(component, name).click()
        component.wait_for_word(count)
    component.draw(head_grid_payload(replace(view, shown=(0, 2, 3))))  # the answer to the first
    assert component.data(ROOT)["drawn"] == "6"


def test_another_grid_starts_anew(component):
    component.draw(head_grid_payload(grid()))
    chip(component, "Delimiter").click()
    component.wait_for_word(1)
    component.draw(head_grid_payload(grid(2, 5)))
    assert component.data(ROOT) == {"painted": "10", "drawn": "10"}
    assert component.page.locator(".roles-layer").count() == 2


@pytest.mark.parametrize(("shape", "side"), [((12, 12), 24), ((12, 12), None), ((32, 32), None)], ids=str)
def test_a_grid_fits_1140_pixels(component, shape, side):
    component.draw(head_grid_payload(grid(*shape, side=side)))
    assert component.page.eval_on_selector(".roles-stage", "s => s.scrollWidth - s.clientWidth") <= 0
    assert component.page.eval_on_selector(ROOT, "root => root.scrollWidth - root.clientWidth") <= 0
    smallest = min(
        component.page.locator(".roles-canvas").bounding_box()[side] / count
        for side, count in zip(("height", "width"), shape, strict=True)
    )
    assert smallest >= 22


def test_a_large_grid_scrolls_inside_and_keeps_its_labels(component):
    component.draw(head_grid_payload(grid(32, 32, side=16)))
    stage = component.page.locator(".roles-stage")
    assert stage.evaluate("stage => stage.scrollHeight - stage.clientHeight") > 0
    stage.focus()
    component.page.keyboard.press("PageDown")
    component.page.keyboard.press("End")
    component.frames()
    expect(component.page.locator(".roles-pointed")).to_be_in_viewport()
    expect(component.page.locator(".roles-head").nth(31)).to_be_in_viewport()
    assert tip(component)[0] == "layer 31 · head 31"
    box = component.page.locator(".view-tooltip").bounding_box()
    frame = component.page.locator(ROOT).bounding_box()
    assert box["x"] >= frame["x"]
    assert box["x"] + box["width"] <= frame["x"] + frame["width"]
    assert box["y"] >= frame["y"]


def test_it_scrolls_at_600_pixels(watched_page):
    component = ComponentPage(watched_page.page, "head_grid", width=600)
    component.draw(head_grid_payload(grid(6, 12, side=8)))
    assert component.page.eval_on_selector(ROOT, "root => root.scrollWidth - root.clientWidth") <= 0
    component.draw(head_grid_payload(grid(6, 32)))
    assert component.page.eval_on_selector(ROOT, "root => root.scrollWidth - root.clientWidth") <= 0
    assert component.page.eval_on_selector(".roles-stage", "s => s.scrollWidth - s.clientWidth") > 0
    assert watched_page.errors == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_theme_gives_ground_and_ink(watched_page, dark):
    page = watched_page.page
    lone_component.show(page, "head_grid", head_grid_payload(grid(2, 4, side=8)), dark=dark, shadow=True)
    colours = lone_component.DARK if dark else lone_component.LIGHT
    ground = page.eval_on_selector(ROOT, "root => getComputedStyle(root).backgroundColor")
    assert ground == "rgb({}, {}, {})".format(*rgb(colours["background"]))
    inks = page.evaluate(
        """() => {
          const canvas = document.getElementById("frame").shadowRoot.querySelector(".roles-canvas");
          const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
          const found = {};
          for (let at = 0; at < data.length; at += 4) {
            if (data[at + 3] === 255) {
              const key = [...data.subarray(at, at + 3)].join();
              found[key] = (found[key] ?? 0) + 1;
            }
          }
          return found;
        }"""
    )
    text = ",".join(map(str, rgb(colours["text"])))
    assert inks.get(text, 0) > 20  # marks are written in the theme's ink
    assert watched_page.errors == []
    assert watched_page.outside == []


def test_alone_in_a_page_it_filters_and_tells(watched_page):
    page = watched_page.page
    lone_component.show(page, "head_grid", head_grid_payload(grid()), alone=True)
    page.locator(".roles-chip").first.click()
    expect(page.locator(ROOT)).to_have_attribute("data-drawn", "9")
    box = page.locator(".roles-canvas").bounding_box()
    page.mouse.click(box["x"] + 20, box["y"] + 10)
    expect(page.locator(".roles-marked")).to_be_visible()
    assert lone_component.tooltip(page)[0] == "layer 0 · head 0"
    assert lone_component.said(page) == []
    assert watched_page.errors == []
