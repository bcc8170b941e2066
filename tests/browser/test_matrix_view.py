"""The matrix view in a real browser: what is drawn, told, and sent to Python."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from analysis.figure_data import MatrixView, TokenLabel
from dashboard.colour_maps import colour_table
from dashboard.figures import matrix_view_payload
from tests.browser.lone_component import said, send, show, tooltip

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.conftest import WatchedPage

pytestmark = pytest.mark.browser

HOSTILE = (
    "a<b<c",
    "<!--#exec",
    "-->",
    "</script><img src=x onerror=window.hacked=1>",
    "<script>window.hacked=1</script>",
    "&lt;b&gt;",
    "\u202eabc",
)


@pytest.fixture
def page(watched_page: WatchedPage) -> Any:
    """A page in which nothing goes wrong."""
    yield watched_page.page
    assert watched_page.errors == []
    assert watched_page.outside == []


def labels(count: int, prefix: str = "token") -> tuple[TokenLabel, ...]:
    return tuple(TokenLabel(f"{prefix}{index}", f"{prefix}{index}") for index in range(count))


def weights(queries: int, keys: int, seed: int = 0) -> np.ndarray:
    scores = np.random.default_rng(seed).normal(size=(queries, keys)) * 2
    values = np.exp(scores)
    return (values / values.sum(axis=1, keepdims=True)).astype(np.float32)


def matrix(queries: int, keys: int, **options: Any) -> MatrixView:
    return MatrixView(
        weights(queries, keys),
        labels(queries, "from"),
        labels(keys, "to"),
        title="layer 3 · head 5",
        **options,
    )


def place(page: Page, across: float, down: float) -> tuple[float, float]:
    """A point of the drawn matrix, given in shares of its width and height, in the page."""
    box = page.locator(".matrix-marks").bounding_box()
    plot = page.locator(".matrix-marks").get_attribute("data-plot")
    assert box is not None
    assert plot is not None
    x, y, width, height = map(float, plot.split())
    return box["x"] + x + across * width, box["y"] + y + down * height


def cell_at(page: Page, across: float, down: float) -> tuple[int, int, str]:
    """Row, column and value as the tooltip tells them at a point of the matrix."""
    page.mouse.move(*place(page, across, down))
    value, *rest = tooltip(page)
    words = " ".join(rest)
    found = re.search(r"query (\d+).*key (\d+)", words)
    assert found, words
    return int(found[1]), int(found[2]), value


def colour_at(page: Page, across: float, down: float) -> list[int]:
    """Red, green, blue of the drawn cells at a point of the matrix."""
    box = page.locator(".matrix-marks").bounding_box()
    assert box is not None
    x, y = place(page, across, down)
    script = """([x, y]) => {
      const context = document.querySelector(".matrix-cells").getContext("2d");
      return [...context.getImageData(Math.floor(x), Math.floor(y), 1, 1).data.slice(0, 3)];
    }"""
    return list(page.evaluate(script, [x - box["x"], y - box["y"]]))


@pytest.mark.parametrize("size", [(12, 7), (9, 21), (30, 30)])
def test_every_cell_is_in_its_place_with_its_exact_value_and_colour(
    page: Page, size: tuple[int, int]
) -> None:
    view = matrix(*size)
    show(page, "matrix_view", matrix_view_payload(view))
    table = colour_table(view.colour_map)
    highest = float(view.weights.max())
    seen = set()
    for across in np.linspace(0.03, 0.97, 7):
        for down in np.linspace(0.03, 0.97, 5):
            row, column, value = cell_at(page, across, down)
            assert np.float32(value) == view.weights[row, column]
            level = round(255 * float(view.weights[row, column]) / highest)
            nearby = [table[min(max(level + step, 0), 255)].tolist() for step in (-1, 0, 1)]
            if size != (12, 7):  # there the values are written into the cells
                assert colour_at(page, across, down) in nearby
            seen.add((row, column))
    assert len({row for row, _ in seen}) > 3
    assert len({column for _, column in seen}) > 2


def test_rows_are_queries_also_when_sizes_differ(page: Page) -> None:
    show(page, "matrix_view", matrix_view_payload(matrix(932, 882)), height=640)
    first = cell_at(page, 0.3, 0.3)
    below = cell_at(page, 0.3, 0.9)
    right = cell_at(page, 0.6, 0.3)
    assert below[0] > first[0] + 300
    assert below[1] == first[1]
    assert right[1] > first[1] + 100
    assert right[0] == first[0]
    assert page.locator(".matrix-view").get_by_text("932 × 882", exact=True).count() == 1


def test_a_large_matrix_is_marked_as_quantised(page: Page) -> None:
    view = matrix(600, 700)
    show(page, "matrix_view", matrix_view_payload(view))
    row, column, value = cell_at(page, 0.3, 0.5)
    assert value.startswith("≈ ")
    assert float(value[2:].replace("−", "-")) == pytest.approx(float(view.weights[row, column]), abs=2e-3)
    assert "quantised" in page.locator(".matrix-note").inner_text()


def test_a_pooled_matrix_shows_the_largest_of_each_block(page: Page) -> None:
    view = matrix(2048, 1500)
    show(page, "matrix_view", matrix_view_payload(view))
    page.mouse.move(*place(page, 0.4, 0.5))
    value, told, row, column = tooltip(page)
    assert told == "largest of 4 × 4 weights"
    rows, columns = (
        slice(int(edges[1]), int(edges[2]) + 1)
        for edges in (re.search(r"(\d+)–(\d+)$", words) for words in (row, column))
        if edges
    )
    assert rows.stop - rows.start == columns.stop - columns.start == 4
    assert np.float32(value) == view.weights[rows, columns].max()
    note = page.locator(".matrix-note").inner_text()
    assert re.match(r"Each pixel is the largest of \d+ × \d+ weights", note)


def drag(page: Page, start: tuple[float, float], end: tuple[float, float]) -> None:
    """Draw a box from one point of the matrix to another, in shares of its width and height."""
    page.mouse.move(*place(page, *start))
    page.mouse.down()
    page.mouse.move(*place(page, (start[0] + end[0]) / 2, (start[1] + end[1]) / 2))
    page.mouse.move(*place(page, *end))
    page.mouse.up()


@pytest.mark.parametrize(("size", "exact"), [((600, 700), True), ((2048, 1500), True), ((2048, 1500), False)])
def test_python_answers_a_zoom_with_the_exact_part(page: Page, size: tuple[int, int], exact: bool) -> None:
    view = matrix(*size)
    show(page, "matrix_view", matrix_view_payload(view))
    whole_note = page.locator(".matrix-note").inner_text()
    assert "zoom in for" in whole_note
    drag(page, (0.2, 0.3), (0.4, 0.45) if exact else (0.85, 0.95))
    top, bottom, left, right = said(page, 1)[-1][1]["zoom"]
    page.mouse.move(*place(page, 0.5, 0.5))
    before = tooltip(page)
    assert before[0].startswith("≈") or before[1].startswith("largest of 4"), "nothing has come yet"
    answer = MatrixView(
        view.weights, view.rows, view.columns, title=view.title, zoom=(top, bottom, left, right)
    )
    send(page, matrix_view_payload(answer))
    if not exact:
        assert tooltip(page)[1] == "largest of 3 × 3 weights", (
            "too large for exact values, but finer than before"
        )
        return
    told = float(tooltip(page)[0])
    assert told == pytest.approx(float(view.weights[top:bottom, left:right].flat[0]), abs=1), (
        "under a resting pointer"
    )
    for across, down in ((0.1, 0.1), (0.5, 0.5), (0.93, 0.87)):
        row, column, value = cell_at(page, across, down)
        assert top <= row < bottom
        assert left <= column < right
        assert np.float32(value) == view.weights[row, column]
        level = round(255 * float(view.weights[row, column]) / float(view.weights.max()))
        nearby = [colour_table("viridis")[min(max(level + step, 0), 255)].tolist() for step in (-1, 0, 1)]
        assert colour_at(page, across, down) in nearby
    assert f"of {right - left} in view" in page.locator(".matrix-side").inner_text()
    largest = left + int(view.weights[row, left:right].argmax())
    assert page.locator(".matrix-side .view-bar-name").first.inner_text().startswith(f"{largest} “")
    page.mouse.dblclick(*place(page, 0.4, 0.6))
    page.wait_for_function("said.at(-1)[1].zoom === null")
    assert page.locator(".matrix-note").inner_text() == whole_note
    page.mouse.move(*place(page, 0.31, 0.62))
    assert tooltip(page)[0].startswith("≈") or tooltip(page)[1].startswith("largest of 4")


def test_a_window_that_leaves_the_part_shows_the_whole_until_python_answers(page: Page) -> None:
    view = matrix(600, 600, zoom=(100, 200, 100, 200))
    show(page, "matrix_view", matrix_view_payload(view))
    row, column, value = cell_at(page, 0.5, 0.5)
    assert np.float32(value) == view.weights[row, column]
    page.get_by_role("button", name="Zoom in").click()
    row, column, value = cell_at(page, 0.5, 0.5)
    assert np.float32(value) == view.weights[row, column], "inside the part nothing needs to come"
    page.get_by_role("button", name="Zoom out").click()
    page.get_by_role("button", name="Zoom out").click()
    row, column, value = cell_at(page, 0.5, 0.5)
    assert value.startswith("≈ ")
    assert float(value[2:]) == pytest.approx(float(view.weights[row, column]), abs=2e-3)


def test_no_strong_weight_is_lost_where_a_pixel_holds_several_cells(page: Page) -> None:
    values = np.zeros((700, 700), dtype=np.float32)
    places = np.random.default_rng(5).permutation(690)[:50].reshape(25, 2) + 5
    values[places[:, 0], places[:, 1]] = 1.0
    show(page, "matrix_view", matrix_view_payload(MatrixView(values, labels(700), labels(700))), height=420)
    assert "Each pixel is the largest of" in page.locator(".matrix-note").inner_text()
    size, pixels = page.locator(".matrix-cells").evaluate(
        """canvas => [[canvas.height, canvas.width],
        [...canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data]]"""
    )
    strong = np.array(pixels).reshape(*size, 4)[..., 0] > 200  # viridis ends in yellow
    plot = page.locator(".matrix-marks").get_attribute("data-plot")
    assert plot is not None
    x, y, width, height = map(float, plot.split())
    for row, column in places:
        down, across = int(y + (row + 0.5) / 700 * height), int(x + (column + 0.5) / 700 * width)
        assert strong[down - 2 : down + 3, across - 2 : across + 3].any(), f"the weight at {row}, {column}"


def test_dragging_a_box_zooms_and_double_click_resets(page: Page) -> None:
    show(page, "matrix_view", matrix_view_payload(matrix(40, 40)))
    top, left, _ = cell_at(page, 0.31, 0.41)
    bottom, right, _ = cell_at(page, 0.51, 0.71)
    page.mouse.move(*place(page, 0.31, 0.41))
    page.mouse.down()
    page.mouse.move(*place(page, 0.4, 0.5))
    page.mouse.move(*place(page, 0.51, 0.71))
    page.mouse.up()
    (name, state) = said(page, 1)[-1]
    assert name == "view"
    assert state["zoom"] == [top, bottom + 1, left, right + 1]
    assert page.get_by_text(f"query {top}–{bottom}, key {left}–{right} of 40 × 40", exact=True).is_visible()
    row, column, value = cell_at(page, 0.4, 0.6)
    assert top <= row <= bottom
    assert left <= column <= right
    assert np.float32(value) == weights(40, 40)[row, column]
    page.mouse.dblclick(*place(page, 0.4, 0.6))
    page.wait_for_function("said.at(-1)[1].zoom === null")


def test_buttons_keys_and_the_focused_wheel_zoom(page: Page) -> None:
    show(page, "matrix_view", matrix_view_payload(matrix(40, 40)))
    page.mouse.move(*place(page, 0.5, 0.5))
    page.mouse.wheel(0, -200)
    page.get_by_role("button", name="Zoom in").click()
    zoom = said(page, 1)[0][1]["zoom"]  # the wheel over an unfocused matrix has said nothing
    assert len(said(page)) == 1
    assert zoom[1] - zoom[0] == 26
    page.locator(".matrix-marks").focus()
    page.keyboard.press("+")
    page.wait_for_function("said.at(-1)[1].zoom?.[1] - said.at(-1)[1].zoom?.[0] === 17")
    page.mouse.move(*place(page, 0.5, 0.5))
    page.mouse.wheel(0, -200)
    page.wait_for_function("said.at(-1)[1].zoom?.[1] - said.at(-1)[1].zoom?.[0] === 13")
    page.keyboard.press("-")
    page.wait_for_function("said.at(-1)[1].zoom?.[1] - said.at(-1)[1].zoom?.[0] === 20")
    page.keyboard.press("Escape")
    page.wait_for_function("said.at(-1)[1].zoom === null")
    assert page.get_by_role("button", name="Zoom out").is_disabled()


def test_a_click_selects_and_arrow_keys_move(page: Page) -> None:
    view = matrix(12, 14)
    show(page, "matrix_view", matrix_view_payload(view))
    row, column, _ = cell_at(page, 0.3, 0.6)
    page.mouse.click(*place(page, 0.3, 0.6))
    assert said(page, 1)[-1][1]["selected"] == [row, column]
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowLeft")
    page.wait_for_function("cell => said.at(-1)[1].selected + '' === cell + ''", arg=[row + 1, column - 1])
    told = f"query {row + 1} “from{row + 1}”, key {column - 1} “to{column - 1}”"
    page.locator(".view-live").get_by_text(told).wait_for(state="attached")
    assert page.locator(".matrix-side").get_by_text("Selected cell").is_visible()
    page.keyboard.press("End")
    page.keyboard.press("PageDown")
    page.wait_for_function("said.at(-1)[1].selected + '' === '11,13'")
    page.keyboard.press("Escape")
    page.wait_for_function("said.at(-1)[1].selected === null")


def test_a_selected_cell_stays_in_the_zoomed_window(page: Page) -> None:
    show(page, "matrix_view", matrix_view_payload(matrix(30, 30, zoom=(5, 15, 5, 15), selected=(14, 10))))
    page.locator(".matrix-marks").focus()
    page.keyboard.press("ArrowDown")
    state = said(page, 1)[-1][1]
    assert state["selected"] == [15, 10]
    assert state["zoom"] == [6, 16, 5, 15]


WRITTEN = """
  window.written = [];
  const fill = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, x, y) {
    window.written.push([text, x, y]);
    return fill.call(this, text, x, y);
  };
"""


def test_a_pooled_matrix_has_round_positions_where_they_are(page: Page) -> None:
    """Of 1,500 positions each cell stands for three: 100 stands at the beginning of its second third, not at 99."""
    page.add_init_script(WRITTEN)
    page.goto("about:blank")
    show(page, "matrix_view", matrix_view_payload(matrix(1500, 1500)), width=1100, height=900)
    left, _, width, _ = map(float, str(page.locator(".matrix-marks").get_attribute("data-plot")).split())
    above = {
        int(text.replace(",", "")): x
        for text, x, y in page.evaluate("window.written")
        if re.fullmatch(r"[\d,]+", text) and x >= left
    }
    assert {0, 500, 1000} <= above.keys()
    assert all(index % 50 == 0 for index in above), above
    for index, x in above.items():
        assert x - left == pytest.approx((index + 0.5) / 1500 * width, abs=1.0)
    assert "1,000" in {text for text, *_ in page.evaluate("window.written")}


def test_the_square_root_scale_changes_colours_and_ticks(page: Page) -> None:
    view = matrix(30, 30, limits=(0.0, 1.0))
    show(page, "matrix_view", matrix_view_payload(view))
    ticks = page.locator(".view-scale-ticks span")
    assert ticks.all_text_contents() == ["0", "0.25", "0.5", "0.75", "1"]
    page.get_by_role("button", name="√").click()
    assert ticks.all_text_contents() == ["0", "0.0625", "0.25", "0.563", "1"]
    assert said(page, 1)[-1][1]["scale"] == "sqrt"
    row, column, _ = cell_at(page, 0.4, 0.6)
    level = round(255 * float(view.weights[row, column]) ** 0.5)
    nearby = [colour_table("viridis")[min(max(level + step, 0), 255)].tolist() for step in (-1, 0, 1)]
    assert colour_at(page, 0.4, 0.6) in nearby


@pytest.mark.parametrize("shape", [(1, 2), (1, 40), (3, 1), (1, 1)])
def test_single_rows_and_columns_are_drawn(page: Page, shape: tuple[int, int]) -> None:
    view = MatrixView(
        np.linspace(0.9, 0.1, shape[0] * shape[1], dtype=np.float32).reshape(shape),
        labels(shape[0], "from"),
        labels(shape[1], "to"),
    )
    show(page, "matrix_view", matrix_view_payload(view))
    page.locator(".matrix-marks").focus()
    page.keyboard.press("ArrowDown")
    assert said(page, 1)[-1][1]["selected"] == [0, 0]
    assert page.locator(".view-side-value").inner_text() == "0.9"


def test_hostile_tokens_are_shown_as_they_are(page: Page) -> None:
    tokens = tuple(TokenLabel(text, text) for text in HOSTILE)
    show(
        page, "matrix_view", matrix_view_payload(MatrixView(weights(7, 7), tokens, tokens, title=HOSTILE[3]))
    )
    page.locator(".matrix-marks").focus()
    for index, text in enumerate(HOSTILE):
        page.keyboard.press("ArrowDown" if index else "Home")
        assert text in page.locator(".matrix-side").inner_text()
        page.locator(".view-live").get_by_text(f"query {index} “{text}”").wait_for(state="attached")
    assert page.locator(".view-title").inner_text() == HOSTILE[3]
    page.mouse.move(*place(page, 0.3, 0.6))
    assert any(text in " ".join(tooltip(page)) for text in HOSTILE)
    assert page.evaluate("window.hacked") is None
    assert page.locator("#frame img, #frame script").count() == 0


def test_remarks_on_special_and_unknown_tokens(page: Page) -> None:
    tokens = (
        TokenLabel("[CLS]", "[CLS]", special=True),
        TokenLabel("😀", "[UNK]", unknown=True),
        TokenLabel("ing", "##ing", continues=True),
    )
    show(page, "matrix_view", matrix_view_payload(MatrixView(weights(3, 3), tokens, tokens)))
    seen: set[str] = set()
    for across in (0.2, 0.5, 0.8):
        for down in (0.2, 0.5, 0.8):
            page.mouse.move(*place(page, across, down))
            seen.update(tooltip(page))
    assert {"special token, added by the model", "unknown to the model", "piece: ##ing"} <= seen


def test_new_data_keeps_what_the_user_chose_unless_python_says_otherwise(page: Page) -> None:
    view = matrix(20, 20)
    show(page, "matrix_view", matrix_view_payload(view))
    page.get_by_role("button", name="Zoom in").click()
    zoom = said(page, 1)[-1][1]["zoom"]
    range_ = page.locator(".view-toolbar .view-note")
    zoomed = range_.inner_text()
    send(page, matrix_view_payload(view))  # Python has not heard of it yet
    assert range_.inner_text() == zoomed
    echo = MatrixView(weights(20, 20, seed=1), view.rows, view.columns, zoom=tuple(zoom))
    send(page, matrix_view_payload(echo))  # another head, the same zoom
    assert range_.inner_text() == zoomed
    row, column, value = cell_at(page, 0.3, 0.6)
    assert np.float32(value) == echo.weights[row, column]
    other = MatrixView(weights(20, 20, seed=2), view.rows, view.columns, zoom=tuple(zoom))
    send(page, matrix_view_payload(other))
    assert np.float32(tooltip(page)[0]) == other.weights[row, column], "under a resting pointer, too"
    send(page, matrix_view_payload(MatrixView(echo.weights, view.rows, view.columns, zoom=None)))
    assert range_.inner_text() == "20 × 20"
    send(page, matrix_view_payload(MatrixView(echo.weights, view.rows, view.columns, zoom=(0, 5, 0, 5))))
    assert range_.inner_text() == "query 0–4, key 0–4 of 20 × 20"
    send(page, matrix_view_payload(matrix(8, 8)))  # another text
    assert range_.inner_text() == "8 × 8"


def test_values_that_are_missing_are_left_empty(page: Page) -> None:
    values = weights(30, 30)
    values[:, ::2] = np.nan
    show(page, "matrix_view", matrix_view_payload(MatrixView(values, labels(30), labels(30))))
    told = {}
    for across in np.linspace(0.3, 0.5, 12):
        _, column, value = cell_at(page, across, 0.6)
        told[column % 2] = value
        if column % 2 == 0:
            assert colour_at(page, across, 0.6) == [0, 0, 0]
    assert told[0] == "no value"
    assert float(told[1]) > 0


@pytest.mark.parametrize("dark", [False, True])
def test_labels_follow_the_theme(page: Page, dark: bool) -> None:
    show(page, "matrix_view", matrix_view_payload(matrix(12, 12)), dark=dark, shadow=True)
    script = """() => {
      const canvas = document.getElementById("frame").shadowRoot.querySelector(".matrix-cells");
      const gutter = canvas.getContext("2d").getImageData(0, canvas.height / 2, 50, canvas.height / 4).data;
      const drawn = [];
      for (let at = 0; at < gutter.length; at += 4) if (gutter[at + 3] > 200) drawn.push(gutter[at]);
      return drawn;
    }"""
    drawn = page.evaluate(script)
    assert len(drawn) > 20
    assert all(red > 200 for red in drawn) if dark else all(red < 80 for red in drawn)


def test_a_stand_alone_page_works_without_python(page: Page) -> None:
    show(page, "matrix_view", matrix_view_payload(matrix(20, 20)), alone=True)
    page.get_by_role("button", name="Zoom in").click()
    page.locator(".matrix-marks").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator(".matrix-side").get_by_text("Selected cell").is_visible()
    page.wait_for_timeout(250)  # longer than the delay before it would tell Python
    assert said(page) == []


def test_an_overtaken_call_does_not_end_the_view(page: Page) -> None:
    show(page, "matrix_view", matrix_view_payload(matrix(5, 5)))
    page.evaluate("() => { window.older = window.end; }")  # a bare function would be called at once
    send(page, matrix_view_payload(matrix(6, 6)))
    page.evaluate("() => window.older()")
    assert page.locator(".view-toolbar .view-note").inner_text() == "6 × 6"
    page.evaluate("() => window.end()")
    assert page.locator("#frame > *").count() == 0


@pytest.mark.parametrize("tokens", [512, 2048])
def test_it_is_fast_at_any_length(page: Page, tokens: int) -> None:
    milliseconds = show(page, "matrix_view", matrix_view_payload(matrix(tokens, tokens)))
    assert milliseconds < 1000
    hovers = page.evaluate(
        """() => {
      const canvas = document.querySelector(".matrix-marks");
      const box = canvas.getBoundingClientRect();
      const times = [];
      for (let step = 0; step < 40; step += 1) {
        const start = performance.now();
        canvas.dispatchEvent(new PointerEvent("pointermove", {
          bubbles: true, clientX: box.left + 100 + 8 * step, clientY: box.top + 100 + 7 * step}));
        times.push(performance.now() - start);
      }
      return times.sort((a, b) => a - b);
    }"""
    )
    assert hovers[20] < 40
