"""Formula explorer, timeline and diagram in a real browser: what is drawn, clicks, keys, odd texts, both themes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from analysis.lab.formula import formula_numbers
from analysis.lab.inputs import random_vectors, worked_example
from analysis.lab.timeline import HISTORY, timeline
from dashboard.figures import read_header
from dashboard.formula_payload import formula_payload
from dashboard.story_payload import diagram_payload, timeline_payload
from dashboard.timeline_links import addresses
from tests.browser.lone_component import said, send, show, tooltip
from tests.sample_figures import HOSTILE
from tests.sample_figures import diagram as sample_diagram
from tests.sample_figures import timeline as sample_timeline

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


def formula(part: Any = "softmax", query: int = 0, key: int = 0, dim: int = 0, **settings: Any) -> bytes:
    numbers = formula_numbers(worked_example(), **settings)
    return formula_payload(numbers, part=part, query=query, key=key, dim=dim, said=("what it does",))


def point(page: Page, matrix: int, row: int, column: int) -> tuple[float, float]:
    """Middle of a cell of the worked example, from the right and bottom edges, where labels never stand."""
    shape = [(3, 4), (4, 3), (3, 3), (3, 3), (3, 3), (3, 2), (3, 2)][matrix]
    box = page.locator(".formula-matrix canvas").nth(matrix).bounding_box()
    assert box is not None
    step = (box["height"] - top_of(page)) / shape[0]
    right, bottom = box["x"] + box["width"] - 4, box["y"] + box["height"] - 4
    return right - (shape[1] - column - 0.5) * step, bottom - (shape[0] - row - 0.5) * step


def top_of(page: Page) -> float:
    """Pixels above and below the cells."""
    tall, low = (
        page.locator(".formula-matrix canvas").nth(index).evaluate("canvas => canvas.clientHeight")
        for index in (1, 0)
    )  # four rows and three
    return float(low - 3 * (tall - low))


# Formula ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dark", [False, True])
def test_every_part_of_the_formula_is_a_button_that_is_told(page: Page, dark: bool) -> None:
    show(page, "formula", formula(), width=1120, dark=dark, shadow=dark)
    line = page.locator(".formula-line")
    assert line.locator(".formula-part").all_inner_texts() == [
        "output", "softmax", "scores", "Q", "KT", "√dk", "V"
    ]  # fmt: skip
    assert line.locator("[aria-pressed=true]").inner_text() == "softmax"
    for index, part in enumerate(("output", "softmax", "scores", "query", "key", "root", "value")):
        line.locator(".formula-part").nth(index).click()
        name, event = said(page, index + 1)[-1]
        assert (name, event["part"], event["cell"]) == ("pick", part, None)
        assert line.locator("[aria-pressed=true]").count() == 1
        assert page.locator(".formula-matrix.is-chosen").count() == 1


def test_settings_stand_in_the_formula_and_words_beside_it(page: Page) -> None:
    show(page, "formula", formula("root", 1, 2, factor=2.0, temperature=0.5, causal=True), width=1120)
    assert (
        "".join(page.locator(".formula-line").inner_text().split())
        == "output=softmax(2·scoresQKT√dk·0.5+mask)V"
    )
    assert page.locator(".formula-cell").inner_text().startswith("scaled[1, 2] = −∞")
    send(page, formula("softmax", 1, 1))
    assert page.locator(".formula-cell").inner_text() == "weights[1, 1] = e1 / (e0 + e1 + e0.5) = 0.506"
    assert page.locator(".formula-cell sup").all_inner_texts() == ["1", "0", "1", "0.5"]
    assert page.locator(".formula-said").inner_text() == "what it does"


def test_a_cell_is_told_on_pointing_and_chosen_by_a_click(page: Page) -> None:
    show(page, "formula", formula(), width=1120)
    page.mouse.move(*point(page, 2, 0, 2))
    assert tooltip(page) == ["1", "query 0 “cat”", "key 2 “mat”"]
    page.mouse.move(*point(page, 1, 3, 1))
    assert tooltip(page) == ["1", "dimension 3", "key 1 “sat”"]
    page.mouse.click(*point(page, 6, 2, 1))
    (event,) = said(page, 1)
    assert event[1]["part"] == "output"
    assert event[1]["cell"] == [2, 1]
    assert page.locator(".formula-line [aria-pressed=true]").inner_text() == "output"
    send(page, formula("softmax"))  # what Python said before it heard of the click is no news
    assert page.locator(".formula-line [aria-pressed=true]").inner_text() == "output"


def test_keys_walk_the_cells_and_read_them(page: Page) -> None:
    show(page, "formula", formula("scores"), width=1120)
    canvas = page.locator(".formula-matrix canvas").nth(2)
    canvas.focus()
    for key in ("ArrowRight", "ArrowRight", "ArrowRight", "ArrowDown"):
        canvas.press(key)
    assert tooltip(page) == ["1", "query 1 “sat”", "key 2 “mat”"]
    assert page.locator(".view-live").inner_text() == "QKᵀ, query 1 “sat”, key 2 “mat”, 1"
    canvas.press("Enter")
    assert said(page, 1)[0][1]["cell"] == [1, 2]
    canvas.press("Escape")
    assert page.locator(".view-tooltip").is_hidden()


@pytest.mark.parametrize("width", [1120, 900, 560])
def test_the_matrices_wrap_and_nothing_is_cut(page: Page, width: int) -> None:
    show(page, "formula", formula(), width=width)
    send(page, formula(factor=8.0, temperature=0.5, causal=True))
    assert page.locator(".formula-row").count() == {1120: 1, 900: 2, 560: 3}[width]
    for place in (".formula-board", ".formula-expression", ".formula-top"):
        wide, shown = page.locator(place).evaluate("part => [part.scrollWidth, part.clientWidth]")
        assert wide <= shown, place


def test_odd_tokens_and_many_of_them_are_drawn(page: Page) -> None:
    vectors = random_vectors(tuple(HOSTILE), width=3)
    show(
        page,
        "formula",
        formula_payload(formula_numbers(vectors), part="scores", query=1, key=0, dim=0),
        width=900,
    )
    assert page.locator(".formula-root script, .formula-root b").count() == 0
    many = random_vectors(tuple(str(index) for index in range(64)), width=64)
    took = send(page, formula_payload(formula_numbers(many), part="scores", query=63, key=0, dim=0))
    assert took < 2000  # shared machine; 60 to 150 ms when it is quiet
    assert page.locator(".formula-size").first.inner_text() == "64 × 64"


# Timeline -----------------------------------------------------------------------------------------------------------


def test_a_work_opens_with_its_link_and_closes(page: Page) -> None:
    show(page, "timeline", timeline_payload(timeline(addresses())), width=1120, height=1000)
    assert page.locator(".timeline-entry").count() == len(HISTORY)
    assert page.locator(".timeline-lane-name").count() == 6
    page.get_by_role("button", name="Additive scores").click()
    name, event = said(page, 1)[0]
    assert (name, event["entry"], event["follow"]) == ("pick", "bahdanau", False)
    assert "Dzmitry Bahdanau, Kyunghyun Cho, Yoshua Bengio" in page.locator(".timeline-details").inner_text()
    link = page.locator(".timeline-link")
    assert link.get_attribute("href") == addresses()["bahdanau"]
    link.evaluate("link => link.dataset.kept = 'yes'")
    send(page, timeline_payload(timeline(addresses(), entry="bahdanau")))
    assert link.get_attribute("data-kept") == "yes"  # not replaced under a click
    link.click()
    assert said(page, 2)[1][1]["follow"] is True
    page.get_by_role("button", name="Additive scores").click()
    assert said(page, 3)[2][1]["entry"] == ""
    assert page.locator(".timeline-link").count() == 0


def test_keys_walk_by_year_and_by_lane(page: Page) -> None:
    show(
        page,
        "timeline",
        timeline_payload(timeline(addresses(), entry="transformer")),
        width=1120,
        height=1000,
    )
    focused = "document.activeElement.querySelector('.timeline-name').textContent"
    page.get_by_role("button", name="Transformer", exact=True).focus()
    steps = {
        "ArrowDown": "Graph attention",
        "ArrowUp": "Transformer",
        "ArrowRight": "Online softmax",
        "ArrowLeft": "Relative positions",
        "End": "FlexAttention",
        "Home": "Cocktail party",
    }
    for key, name in steps.items():
        page.keyboard.press(key)
        assert page.evaluate(focused) == name, key
    page.keyboard.press("Enter")
    assert said(page, 1)[0][1]["entry"] == "cherry"


def test_one_theme_tells_titles_and_odd_texts_stay_texts(page: Page) -> None:
    show(page, "timeline", timeline_payload(timeline(addresses(), theme="efficient")), width=1120, alone=True)
    page.get_by_role("button", name="Reformer").click()
    assert (
        page.locator(".timeline-work")
        .first.inner_text()
        .startswith("Maxim Milakov, Natalia Gimelshein: Online")
    )
    assert page.locator(".timeline-link").count() == 0  # an exported page leads nowhere
    assert "Variants: Reformer" in page.locator(".timeline-details").inner_text()
    send(page, timeline_payload(sample_timeline()))
    assert page.locator(".timeline-root script, .timeline-root b").count() == 0
    assert page.locator(".timeline-gap").count() == 1
    assert page.locator(".timeline-entry.is-alike").count() == 2


# Diagram ------------------------------------------------------------------------------------------------------------


def test_a_box_is_told_and_explained(page: Page) -> None:
    view = sample_diagram()
    told = [[f"told {index}"] for index in range(7)]
    payload = diagram_payload(view, told=told, said=("below",))
    show(page, "diagram", payload, width=900)
    assert page.locator(".diagram-box").count() == 7
    assert page.locator(".diagram-arrow").count() == 10
    assert page.locator(".diagram-arrow.is-near").count() == 2
    page.locator(".diagram-box").nth(4).click()
    assert said(page, 1) == [["pick", {"input": read_header(payload)[0]["input"], "stage": 4}]]
    words = page.locator(".diagram-words").inner_text()
    assert "told 4" in words
    assert "model.<weight>" in words
    assert page.locator(".diagram-formula").inner_text() == "xk = =a1 <b>"
    assert page.locator(".diagram-root b, .diagram-root script").count() == 0
    send(page, payload)
    assert page.locator("[aria-pressed=true]").get_attribute("aria-label").startswith(f"stage {HOSTILE[4]}")


def test_keys_walk_between_boxes_and_cells_tell_their_numbers(page: Page) -> None:
    view = sample_diagram()
    show(page, "diagram", diagram_payload(view), width=900)
    page.locator(".diagram-box").nth(2).focus()
    place = "[...document.querySelectorAll('.diagram-box')].indexOf(document.activeElement)"
    for key, index in (
        ("ArrowUp", 1),
        ("ArrowLeft", 0),
        ("ArrowRight", 1),
        ("ArrowDown", 2),
        ("ArrowDown", 5),
    ):
        page.keyboard.press(key)
        assert page.evaluate(place) == index, key
    box = page.locator(".diagram-box canvas").first.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 2, box["y"] + 2)
    assert float(tooltip(page)[0].replace("−", "-")) == pytest.approx(
        float(view.stages[0].values.values[0, 0]), rel=1e-6
    )


def test_a_narrow_frame_scrolls_and_labels_stay_out_of_boxes(page: Page) -> None:
    show(page, "diagram", diagram_payload(sample_diagram()), width=240)
    wide, shown = page.locator(".diagram-scroller").evaluate("part => [part.scrollWidth, part.clientWidth]")
    assert wide > shown
    show(page, "diagram", diagram_payload(sample_diagram()), width=900, dark=True)
    boxes = [box.bounding_box() for box in page.locator(".diagram-box").all()]
    for label in page.locator(".diagram-label").all():
        place = label.bounding_box()
        assert place is not None
        x, y = place["x"] + place["width"] / 2, place["y"] + place["height"] / 2
        for box in boxes:
            assert box is not None
            inside = box["x"] < x < box["x"] + box["width"] and box["y"] < y < box["y"] + box["height"]
            assert not inside
