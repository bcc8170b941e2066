"""A sheet of matrices in a real browser: cells, numbers and labels, what is lit together, choosing, keys, widths."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from analysis.figure_lab import MatrixSheet, NamedMatrix
from analysis.visible_evidence import AGAINST, FOR, evidence_colours
from analysis.visible_lab import cell_decimals, cell_text
from dashboard.colour_maps import colour_table
from dashboard.lab_payload import matrix_sheet_payload, sheet_digest
from dashboard.standalone import figure_html
from tests.browser.lone_component import DARK, LIGHT, said, send, show, tooltip
from tests.sample_figures import HOSTILE, map_sheet, matrix_sheet, provenance

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    from tests.conftest import WatchedPage

pytestmark = pytest.mark.browser

NAME = "matrix_sheet"
WORDS = ("the", "cat", "<b>sat</b>")
SCORES = np.array([[1.0, -2.0, 0.125], [4.0, 0.0, -0.375], [-np.inf, 2.5, np.nan]], dtype=np.float32)
MASK = np.array([[1.0, 0.0, 0.0], [1.0, 1.0, 0.0], [1.0, 1.0, 1.0]])
WEIGHTS = np.array([[1.0, 0.0, 0.0], [0.25, 0.75, 0.0], [0.5, 0.25, 0.25]])
PAIRS: Any = {"rows": WORDS, "columns": WORDS, "axes": ("query", "key")}
SHEET = MatrixSheet(
    (
        NamedMatrix("Q", SCORES[:2].T, WORDS, scale="signed", axes=("query", "")),
        NamedMatrix("K", SCORES[:2].T, WORDS, scale="signed", axes=("key", "")),
        NamedMatrix("QKᵀ/√d_k", SCORES, scale="signed", note="scores", **PAIRS),
        NamedMatrix("mask", MASK, scale="mask", **PAIRS),
        NamedMatrix("<i>weights</i>", WEIGHTS, limit=1.0, **PAIRS),
    ),
    title="three <words>",
)

RECORD = """() => {
  window.drawn = [];
  const fill = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = function (text, ...rest) {
    window.drawn.push([text, this.fillStyle]);
    return fill.call(this, text, ...rest);
  };
}"""


@pytest.fixture
def page(watched_page: WatchedPage) -> Any:
    """A page in which nothing goes wrong, and which writes down what is written on a canvas."""
    watched_page.page.evaluate(RECORD)
    yield watched_page.page
    assert watched_page.errors == []
    assert [url for url in watched_page.outside if not url.startswith("file:")] == []
    assert watched_page.page.evaluate("window.hit") is None


def draw(page: Page, view: MatrixSheet, **options: Any) -> None:
    show(page, NAME, matrix_sheet_payload(view), **options)


def written(page: Page) -> list[str]:
    return [text for text, _ in page.evaluate("window.drawn")]


def marks(page: Page, index: int) -> Locator:
    return page.locator(".sheet-marks").nth(index)


def centre(page: Page, index: int, row: int, column: int, view: MatrixSheet = SHEET) -> Any:
    """Where the middle of a cell is on the canvas of its matrix."""
    x, y, width, height = map(float, (marks(page, index).get_attribute("data-plot") or "").split())
    rows, columns = view.matrices[index].values.shape
    return {"x": x + (column + 0.5) * width / columns, "y": y + (row + 0.5) * height / rows}


def point(page: Page, index: int, row: int, column: int, view: MatrixSheet = SHEET) -> None:
    marks(page, index).hover(position=centre(page, index, row, column, view))


def lit(page: Page) -> list[str]:
    found: list[str] = page.locator(".sheet-marks").evaluate_all("all => all.map((mark) => mark.dataset.lit)")
    return found


def colour(page: Page, index: int, row: int, column: int, view: MatrixSheet = SHEET) -> Any:
    """Red, green, blue and opacity near the corner of a cell, where no number is."""
    x, y, width, height = map(float, (marks(page, index).get_attribute("data-plot") or "").split())
    rows, columns = view.matrices[index].values.shape
    at = [int(x + column * width / columns) + 2, int(y + row * height / rows) + 2]
    return (
        page.locator(".sheet-cells")
        .nth(index)
        .evaluate("(canvas, [x, y]) => [...canvas.getContext('2d').getImageData(x, y, 1, 1).data]", at)
    )


def test_names_shapes_labels_and_numbers_are_drawn_as_they_are(page: Page) -> None:
    draw(page, SHEET, shadow=True)
    assert page.locator(".sheet-title").text_content() == "three <words>"
    names = page.locator(".sheet-name").all_text_contents()
    assert names == ["Q", "K", "QKᵀ/√dk", "mask", "<i>weights</i>"]
    assert page.locator(".sheet-name sub").all_text_contents() == ["k"]
    assert page.locator(".sheet-shape").all_text_contents()[:3] == ["(3 × 2)", "(3 × 2)", "(3 × 3)"]
    assert page.locator(".sheet-note:visible").all_text_contents() == ["scores"]
    texts = written(page)
    assert {"<b>sat</b>", "query ↓", "key →"} <= set(texts)
    numbers = [text for text in texts if text.lstrip("−").replace(".", "").isdigit()]
    expected = [
        cell_text(float(value), cell_decimals(matrix))
        for matrix in SHEET.matrices
        if matrix.scale != "mask"
        for value in np.asarray(matrix.values, dtype=np.float32).ravel()
        if np.isfinite(value)
    ]
    assert numbers[-len(expected) :] == expected, "rounded as in files, ties among them"
    assert {"0.13", "−0.38"} <= set(numbers)


@pytest.mark.parametrize(("dark", "ground"), [(False, LIGHT["background"]), (True, DARK["background"])])
def test_cells_have_the_colours_of_their_scale(page: Page, dark: bool, ground: str) -> None:
    draw(page, SHEET, dark=dark)
    viridis = colour_table("viridis")
    assert colour(page, 4, 0, 0)[:3] == viridis[255].tolist()
    assert colour(page, 4, 1, 0)[:3] == viridis[64].tolist()
    assert colour(page, 2, 1, 0)[:3] == list(FOR)
    back = [int(ground[start : start + 2], 16) for start in (1, 3, 5)]
    opacity = int(evidence_colours(True)[128, 3])  # of 255, at the first level from 0 on
    assert np.abs(np.array(colour(page, 2, 1, 1)[:3]) - back).max() <= opacity, "clear at 0"
    blue = colour(page, 2, 0, 1)[:3]
    assert np.abs(np.array(blue) - AGAINST).sum() < np.abs(np.array(blue) - FOR).sum()
    assert colour(page, 2, 2, 0)[3] < 255, "−∞ is an empty cell"
    primary = (DARK if dark else LIGHT)["primary"]
    assert colour(page, 3, 0, 0)[:3] == [int(primary[start : start + 2], 16) for start in (1, 3, 5)]
    assert colour(page, 3, 0, 1)[3] < 255, "hatched"


def test_a_cell_tells_its_exact_value_and_lights_what_counts_the_same(page: Page) -> None:
    draw(page, SHEET, shadow=True)
    point(page, 2, 1, 2)
    lines = tooltip(page)
    assert lines[:4] == ["−0.375", "QKᵀ/√d_k", "query 1 “cat”", "key 2 “<b>sat</b>”"]
    assert lines[4:] == ["mask: may not attend", "<i>weights</i>: 0"]
    assert lit(page) == ["1 ", "2 ", "1 2", "1 2", "1 2"], "the query in Q, the key in K, the pair elsewhere"
    point(page, 2, 2, 0)
    assert tooltip(page)[0] == "−∞"
    point(page, 2, 2, 2)
    assert tooltip(page)[0] == "no value"
    point(page, 1, 0, 1)
    assert lit(page) == [" 1", "0 1", " 0", " 0", " 0"]
    page.mouse.move(1, 1)
    assert page.locator(".view-tooltip").is_hidden()
    assert lit(page) == [" "] * 5


def test_a_click_chooses_and_escape_clears(page: Page) -> None:
    draw(page, SHEET, shadow=True)
    marks(page, 4).click(position=centre(page, 4, 2, 1))
    digest = sheet_digest(SHEET)
    assert said(page, 1) == [["select", {"input": digest, "at": [4, 2, 1]}]]
    page.wait_for_function(
        "document.getElementById('frame').shadowRoot.querySelector('.view-live').textContent.includes('Chosen: 0.25')"
    )
    marks(page, 4).press("Escape")
    assert said(page, 2)[1] == ["select", {"input": digest, "at": None}]
    marks(page, 4).press("Escape")
    assert len(said(page)) == 2, "there is nothing left to clear"


def test_keys_move_the_cell_and_enter_chooses_it(page: Page) -> None:
    draw(page, replace(SHEET, cell=(1, 1)))
    label = marks(page, 2).get_attribute("aria-label") or ""
    assert label.startswith("QKᵀ/√d_k, 3 × 3, query down, key across.")
    marks(page, 2).focus()
    marks(page, 2).press("ArrowRight")
    assert lit(page)[2] == "1 1", "the first key shows the chosen cell"
    for key, place in (
        ("ArrowRight", "1 2"),
        ("ArrowRight", "1 2"),
        ("ArrowUp", "0 2"),
        ("Home", "0 0"),
        ("PageDown", "2 0"),
        ("ArrowRight", "2 1"),
    ):
        marks(page, 2).press(key)
        assert lit(page)[2] == place
    assert tooltip(page)[0] == "2.5"
    page.wait_for_function("document.querySelector('.view-live').textContent.startsWith('2.5, QKᵀ')")
    marks(page, 2).press("Enter")
    assert said(page, 1)[0][1]["at"] == [2, 2, 1]
    marks(page, 2).press("Tab")
    assert page.locator(".sheet-marks:focus").count() == 1
    assert lit(page)[2] == " "


def test_new_values_keep_the_pointer_and_news_of_python_count(page: Page) -> None:
    draw(page, SHEET)
    point(page, 4, 1, 0)
    assert tooltip(page)[0] == "0.25"
    changed = replace(SHEET.matrices[4], values=WEIGHTS[:, ::-1].copy())
    other = replace(SHEET, matrices=(*SHEET.matrices[:4], changed))
    send(page, matrix_sheet_payload(other))
    assert tooltip(page)[0] == "0"
    marks(page, 4).click(position=centre(page, 4, 0, 2))
    picture = "canvas => canvas.toDataURL()"
    page.mouse.move(1, 1)
    chosen = marks(page, 3).evaluate(picture)
    send(page, matrix_sheet_payload(replace(other, cell=(0, 2))))
    assert marks(page, 3).evaluate(picture) == chosen, "an echo of the choice"
    send(page, matrix_sheet_payload(replace(other, cell=(2, 2))))
    assert marks(page, 3).evaluate(picture) != chosen
    send(page, matrix_sheet_payload(replace(other, cell=None)))
    assert not marks(page, 3).evaluate(
        "canvas => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.some(Boolean)"
    )


@pytest.mark.parametrize("width", [1400, 860])
def test_a_sheet_wraps_to_its_width(page: Page, width: int) -> None:
    page.set_viewport_size({"width": width + 40, "height": 800})
    words = tuple(f"word number {index}" for index in range(12))
    one = NamedMatrix("m", np.full((12, 12), 0.5), words, words)
    view = MatrixSheet((*SHEET.matrices, one, one, one))
    draw(page, view, width=width)
    boxes = [box.bounding_box() for box in page.locator(".sheet-matrix").all()]
    rows: list[list[Any]] = []
    for index, box in enumerate(boxes):
        assert box is not None
        assert box["x"] + box["width"] <= 20 + width + 1
        top = round(box["y"] + 24 + float((marks(page, index).get_attribute("data-plot") or "").split()[1]))
        if not rows or box["x"] < rows[-1][-1][1]:
            rows.append([])
        rows[-1].append((top, box["x"] + box["width"]))
    assert 1 < len(rows) < len(boxes)
    for members in rows:
        assert len({top for top, _ in members}) == 1, "cells of one row start at one height"
    assert rows == sorted(rows)
    stage = page.locator(".sheet-stage")
    assert stage.evaluate("element => element.scrollWidth <= element.clientWidth")


def test_as_many_stand_in_a_row_as_the_page_says(page: Page) -> None:
    one = NamedMatrix("m", np.full((10, 10), 0.5))
    draw(page, MatrixSheet((one,) * 6, across=3), width=860)
    tops = [round((box.bounding_box() or {})["y"]) for box in page.locator(".sheet-matrix").all()]
    assert tops == [tops[0]] * 3 + [tops[3]] * 3
    assert tops[3] > tops[0]
    assert marks(page, 0).get_attribute("data-numbers") == "false", "they have no room"
    small = NamedMatrix("m", np.full((4, 4), 0.5))
    draw(page, MatrixSheet((small,) * 6, across=2), width=860)
    assert marks(page, 0).get_attribute("data-numbers") == "true"
    places = [box.bounding_box() or {} for box in page.locator(".sheet-matrix").all()]
    assert len({place["y"] for place in places}) == 3
    assert len({place["x"] for place in places}) == 2


def test_large_matrices_are_pictures_with_one_scale(page: Page) -> None:
    view = map_sheet()
    draw(page, view)
    assert page.locator(".sheet-scale:visible").count() == 1
    assert page.locator(".sheet-foot .sheet-ticks span").all_text_contents() == ["0", "≥ 0.5"]
    assert {"0", "8", "16"} <= set(written(page))
    assert not [text for text in written(page) if "." in text]
    point(page, 1, 37, 11, view)
    exact = view.matrices[1].values[37, 11]
    assert np.float32(tooltip(page)[0]) == exact
    assert tooltip(page)[2:4] == ["query 37", "key 11"]
    assert lit(page) == ["37 11"] * 3
    side = 256
    pixels = np.tril(np.ones((side, side)))
    draw(page, MatrixSheet((NamedMatrix("causal", pixels, scale="mask", axes=("query", "key")),)))
    plot = [float(part) for part in (marks(page, 0).get_attribute("data-plot") or "").split()]
    assert plot[2:] == [side, side]
    assert page.locator(".sheet-key").is_visible()


def test_odd_tokens_are_shown_as_they_are(page: Page) -> None:
    tokens = (*HOSTILE, "👩‍👩‍👧", "a" * 60)
    view = MatrixSheet((NamedMatrix(HOSTILE[2], np.eye(len(tokens)), tokens, tokens, note=HOSTILE[2]),))
    draw(page, view, width=1200)
    assert page.locator(".sheet-name").text_content() == HOSTILE[2]
    assert page.locator(".sheet-note").text_content() == HOSTILE[2]
    assert {"a<b<c", "$x^2$", "مرحبا", "שלום", "a␐b", "�", "👩‍👩‍👧"} <= set(written(page))
    point(page, 0, 7, len(tokens) - 1, view)
    assert tooltip(page)[2:4] == ["row 7 “a␐b”", f"column {len(tokens) - 1} “{'a' * 60}”"]
    assert page.locator(".matrix-sheet img, .matrix-sheet script").count() == 0


def test_a_page_of_an_export_works_alone(page: Page, tmp_path: Any) -> None:
    path = tmp_path / "sheet.html"
    path.write_bytes(figure_html(matrix_sheet(), provenance()))
    page.goto(path.as_uri())
    page.locator(".sheet-marks").first.wait_for()
    view = matrix_sheet()
    marks(page, 1).click(position=centre(page, 1, 0, 0, view))
    assert np.float32(tooltip(page)[0].replace("−", "-")) == view.matrices[1].values[0, 0]
    marks(page, 1).press("Escape")
    assert page.locator(".sheet-matrix.is-selected .sheet-name").text_content() == "QKᵀ/√dk"


def test_fewer_stand_in_a_row_where_they_would_be_tiny(page: Page) -> None:
    one = NamedMatrix("m", np.full((32, 32), 0.5))
    draw(page, MatrixSheet((one,) * 4, across=4), width=600)
    tops = [round((box.bounding_box() or {})["y"]) for box in page.locator(".sheet-matrix").all()]
    assert tops == [tops[0]] * 2 + [tops[2]] * 2
    assert tops[2] > tops[0]
    draw(page, MatrixSheet((one,) * 4, across=4), width=1100)
    assert len({round((box.bounding_box() or {})["y"]) for box in page.locator(".sheet-matrix").all()}) == 1
