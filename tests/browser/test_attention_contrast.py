"""The contrast of attention in a real browser: choosing, numbers, mirrored bars, weights by hand, pictures, pages."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from analysis.figure_data import AttentionContrast, TokenLabel
from analysis.visible_evidence import UNSIGNED
from dashboard.contrast_payload import attention_contrast_payload, contrast_digest
from dashboard.standalone import figure_html
from tests.browser.lone_component import said, send, show, tooltip
from tests.sample_figures import picture_contrast, provenance

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    from tests.conftest import WatchedPage

pytestmark = pytest.mark.browser

NAME = "attention_contrast"
WORDS = ("[CLS]", "a", "<b>good</b>", "film")
WEIGHTS = np.array([[0.1, 0.2, 0.6, 0.1], [0.25] * 4, [0.5, 0.3, 0.0, 0.2]])
DECODER = np.array([[2.0, 0.0], [0.0, 2.0], [1.0, -1.0], [0.0, 0.0]])


@pytest.fixture
def page(watched_page: WatchedPage) -> Any:
    """A page in which nothing goes wrong."""
    yield watched_page.page
    assert watched_page.errors == []
    assert watched_page.outside == []


def decoded(weights: Any) -> Any:
    shares = np.exp(weights @ DECODER)
    return shares / shares.sum(axis=-1, keepdims=True)


def divergence(p: Any, q: Any) -> float:
    terms = [
        x * np.log(2 * x / (x + y))
        for one, other in ((p, q), (q, p))
        for x, y in zip(one, other, strict=True)
        if x > 0
    ]
    return float(sum(terms) / 2)


def contrast(**changes: Any) -> AttentionContrast:
    weights = changes.get("weights", WEIGHTS)
    outputs = changes["outputs"] if "outputs" in changes else decoded(weights)
    entries: dict[str, Any] = {
        "weights": weights,
        "names": ("observed", "uniform", "<i>adversarial</i>"),
        "outputs": outputs,
        "labels": ("positive", "negative"),
        "jsd": np.array([divergence(row, weights[0]) for row in weights]),
        "change": np.abs(outputs - outputs[0]).sum(axis=1) / 2,
        "jsd_bound": 0.6,
        "epsilon": 0.12,
        "tokens": tuple(TokenLabel(word, word, special=word[0] == "[") for word in WORDS),
        "shown": 2,
        "decoder": DECODER,
        "verdict": ("Other attention says <u>the same</u>.",),
        "held": "the states",
    }
    return AttentionContrast(**{**entries, **changes})


def draw(page: Page, view: AttentionContrast, **options: Any) -> None:
    show(page, NAME, attention_contrast_payload(view), **options)


def heard(page: Page, name: str) -> list[Any]:
    """All that the component told Python under a name."""
    return [value for told, value in said(page) if told == name]


def chip(page: Page, name: str) -> Locator:
    return page.get_by_role("radio").filter(has_text=name)


def bars(page: Page, half: str) -> list[float]:
    """Lengths of the bars of one half, as shares of it."""
    return page.locator(f".contrast-{half}").evaluate_all(
        "halves => halves.map((half) => half.querySelector('.contrast-fill').offsetHeight / half.clientHeight)"
    )


def edit(page: Page) -> None:
    page.get_by_role("button", name="Edit by hand").click()


def drag(page: Page, index: int, share: float, *, drop: bool = True) -> None:
    """Drag a lower bar to a share of its height, over all the height first."""
    half = page.locator(".contrast-down").nth(index)
    half.scroll_into_view_if_needed()
    box = half.bounding_box()
    assert box is not None
    x = box["x"] + box["width"] / 2
    page.mouse.move(x, box["y"] + 3)
    page.mouse.down()
    page.mouse.move(x, box["y"] + box["height"] + 60)
    page.mouse.move(x, box["y"] + share * box["height"])
    if drop:
        page.mouse.up()


def test_a_candidate_is_chosen_and_told(page: Page) -> None:
    draw(page, contrast(), shadow=True)
    view = contrast()
    assert page.get_by_role("radio").count() == 3
    assert [mark.strip() for mark in page.locator(".contrast-mark").all_text_contents()] == ["", "=", "≠"]
    assert page.locator(".contrast-verdict").text_content() == "Other attention says <u>the same</u>."
    assert page.locator(".contrast-name").all_text_contents() == ["observed", "<i>adversarial</i>"]
    assert page.locator(".is-shown .contrast-value").all_text_contents() == [
        f"{100 * share:.1f} %" for share in view.outputs[2]
    ]
    chip(page, "uniform").click()
    page.wait_for_function("window.said.length === 1")
    (told,) = heard(page, "view")
    assert (told["shown"], told["input"]) == (1, contrast_digest(view))
    meter = page.get_by_role("meter", name="JSD from observed")
    assert float(meter.get_attribute("aria-valuenow") or "") == pytest.approx(view.jsd[1])
    assert "farthest possible 0.6" in (meter.get_attribute("aria-valuetext") or "")
    assert (
        page.get_by_role("meter", name="TVD of the output")
        .get_by_text("same prediction (≤ ε = 0.12)")
        .is_visible()
    )
    page.keyboard.press("ArrowLeft")
    assert page.locator(".contrast-line:visible").count() == 1, "the observed attention stands alone"
    page.keyboard.press("End")
    page.wait_for_function("window.said.some(([, value]) => value.shown === 2)")
    assert chip(page, "adversarial").get_attribute("aria-checked") == "true"
    page.wait_for_function(
        "text => document.querySelector('#frame').shadowRoot.querySelector('.view-live').textContent.includes(text)",
        arg="<i>adversarial</i>: JSD",
    )


def test_bars_are_mirrored_and_walked(page: Page) -> None:
    draw(page, contrast(direction="rtl"))
    for half, row in (("up", 0), ("down", 2)):
        assert bars(page, half) == pytest.approx(np.sqrt(WEIGHTS[row] / 0.6), abs=0.02)
    shades = page.locator(".contrast-word").evaluate_all(
        "words => words.map((word) => getComputedStyle(word).backgroundColor)"
    )
    assert shades[2] == "rgb({}, {}, {})".format(*UNSIGNED), "the strongest word"
    assert shades[6] == "rgb(255, 255, 255)", "no weight, no colour"
    page.get_by_role("button", name="Linear").click()
    assert bars(page, "down") == pytest.approx(WEIGHTS[2] / 0.6, abs=0.02)
    left, right = (page.locator(".contrast-column").nth(index).bounding_box() for index in (1, 0))
    assert left["x"] < right["x"]
    page.locator(".contrast-word").nth(6).hover()
    assert tooltip(page)[:4] == [
        "“<b>good</b>”",
        "observed: 0.6",
        "<i>adversarial</i>: 0",
        "difference: −0.6",
    ]
    assert "is-pointed" in (page.locator(".contrast-column").nth(2).get_attribute("class") or "")
    page.locator(".contrast-column").first.focus()
    page.keyboard.press("ArrowLeft")  # forward, as the text runs
    assert page.locator(":focus").get_attribute("aria-label") == "“a”: observed 0.2, <i>adversarial</i> 0.3"
    page.keyboard.press("End")
    assert tooltip(page)[0] == "“film”"


def test_a_dragged_bar_moves_the_others_and_the_prediction(page: Page) -> None:
    draw(page, contrast())
    edit(page)
    drag(page, 3, np.sqrt(0.7), drop=False)
    assert heard(page, "edit") == [], "nothing is sent before the bar is let go"
    expected = np.array([0.5, 0.3, 0.0, 0.0]) * 0.3 / 0.8 + [0, 0, 0, 0.7]
    assert bars(page, "down") == pytest.approx(np.sqrt(expected), abs=0.03)
    numbers = chip(page, "by hand").locator(".contrast-chip-numbers").text_content()
    change = np.abs(decoded(expected) - decoded(WEIGHTS[0])).sum() / 2
    told = [float(part.split()[-1]) for part in numbers.split(" · ")]
    assert told == pytest.approx([divergence(expected, WEIGHTS[0]), change], abs=0.006)
    page.mouse.up()
    (sent,) = heard(page, "edit")
    assert sent["input"] == contrast_digest(contrast())
    assert sum(sent["weights"]) == pytest.approx(1, abs=1e-9)
    assert sent["weights"] == pytest.approx(expected, abs=0.01)
    drag(page, 0, 0.5, drop=False)
    page.keyboard.press("Escape")
    page.mouse.up()
    assert bars(page, "down") == pytest.approx(np.sqrt(sent["weights"]), abs=0.03), "Escape takes a drag back"
    assert len(heard(page, "edit")) == 1
    page.get_by_role("button", name="Uniform").click()
    assert heard(page, "edit")[-1]["weights"] == [0.25] * 4
    page.get_by_role("button", name="Reset").click()
    assert heard(page, "edit")[-1]["weights"] == pytest.approx(WEIGHTS[2], abs=1e-7)


def test_keys_set_a_weight(page: Page) -> None:
    draw(page, contrast())
    edit(page)
    bar = page.get_by_role("slider").nth(1)
    bar.focus()
    now = lambda: float(bar.get_attribute("aria-valuenow"))  # noqa: E731
    for key, value in (
        ("ArrowUp", 0.31),
        ("Shift+ArrowUp", 0.41),
        ("ArrowDown", 0.40),
        ("Home", 0),
        ("End", 1),
    ):
        page.keyboard.press(key)
        assert now() == pytest.approx(value, abs=1e-6), key
    page.keyboard.press("Shift+ArrowDown")
    said(page, 1)
    (sent,) = heard(page, "edit")  # once, when the keys rest
    assert sent["weights"] == pytest.approx([0.1 / 3, 0.9, 0.1 / 3, 0.1 / 3]), "what was 0 shares evenly"
    page.keyboard.press("ArrowRight")
    assert page.locator(":focus").get_attribute("aria-label") == "“<b>good</b>”: observed 0.6"
    page.keyboard.press("Escape")
    assert page.get_by_role("slider").count() == 0


def test_without_a_decoder_the_app_is_waited_for(page: Page) -> None:
    draw(page, contrast(decoder=None))
    edit(page)
    drag(page, 2, 0.5)
    waits = page.locator(".is-shown .is-waiting")
    assert waits.get_attribute("data-wait") == "computing …"
    assert "TVD …" in (chip(page, "by hand").text_content() or "")
    made = np.array(heard(page, "edit")[0]["weights"])
    names = ("observed", "uniform", "<i>adversarial</i>", "by hand")
    answer = contrast(weights=np.stack([*WEIGHTS, made]), names=names, decoder=None, shown=3)
    stale = contrast(weights=np.stack([*WEIGHTS, WEIGHTS[1]]), names=names, decoder=None, shown=3)
    send(page, attention_contrast_payload(stale))
    assert waits.count() == 1, "an answer to older weights is none"
    send(page, attention_contrast_payload(answer))
    assert waits.count() == 0
    assert page.get_by_role("radio").count() == 4
    assert page.locator(".is-shown .contrast-value").first.text_content() == f"{100 * decoded(made)[0]:.1f} %"
    edit(page)
    assert chip(page, "by hand").get_attribute("aria-checked") == "true"
    chip(page, "uniform").click()
    page.wait_for_function("window.said.some(([name]) => name === 'view')")
    assert heard(page, "view")[0]["turn"] > heard(page, "edit")[0]["turn"]
    send(page, attention_contrast_payload(answer))
    assert chip(page, "uniform").get_attribute("aria-checked") == "true", "an echo undoes no choice"
    edit(page)
    drag(page, 1, 0.9)
    again = np.array(heard(page, "edit")[1]["weights"])
    edit(page)
    send(page, attention_contrast_payload(replace(answer, weights=np.stack([*WEIGHTS, again]))))
    assert chip(page, "by hand").get_attribute("aria-checked") == "true", "the answer to an edit is shown"


def test_a_patch_of_a_picture_is_dragged(page: Page) -> None:
    view = picture_contrast(shown=2)
    draw(page, view, width=1100, height=700)
    alpha = (
        page.locator(".contrast-overlay")
        .nth(1)
        .evaluate(
            "canvas => [...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data]"
            ".filter((_, index) => index % 4 === 3)"
        )
    )
    assert len(alpha) == 12
    assert np.argmax(alpha) == np.argmax(view.weights[2, 1:])
    assert page.locator(".contrast-cell span").all_text_contents() == ["CLS", "CLS"]
    first = np.abs(view.weights[2] - view.weights[0]).argsort()[::-1]
    places = [
        f"row {(index - 1) // 4}, column {(index - 1) % 4}" if index else "CLS" for index in first.tolist()
    ]
    assert page.locator(".contrast-place").all_text_contents() == places[:12]
    edit(page)
    surface = page.locator(".contrast-surface").nth(1)
    box = surface.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] * 0.9, box["y"] + box["height"] * 0.5  # row 1, column 3
    page.mouse.move(x, y)
    assert tooltip(page)[0] == "patch row 1, column 3"
    page.mouse.down()
    page.mouse.move(x, y - 240)  # at once to the end
    page.mouse.up()
    assert heard(page, "edit")[-1]["weights"][8] == pytest.approx(1)
    page.locator(".is-shown .contrast-cell").press("Shift+ArrowUp")
    page.wait_for_function("window.said.length === 2")
    assert heard(page, "edit")[-1]["weights"][0] == pytest.approx(0.1)
    surface.press("ArrowDown")
    surface.press("PageUp")
    page.wait_for_function("window.said.length === 3")
    assert heard(page, "edit")[-1]["weights"][5 + 1] == pytest.approx(0.1), "the middle is marked first"


def test_an_exported_page_edits_alone(page: Page) -> None:
    page.set_viewport_size({"width": 700, "height": 420})
    page.set_content(figure_html(contrast(), provenance()).decode())
    edit(page)
    drag(page, 3, np.sqrt(0.7))
    edit(page)
    assert chip(page, "by hand").get_attribute("aria-checked") == "true"
    chip(page, "observed").click()
    chip(page, "by hand").click()
    assert page.locator(".is-shown .contrast-value").count() == 2
    bottom = page.locator(".attention-contrast").evaluate("root => root.getBoundingClientRect().bottom")
    assert bottom <= page.locator("body > footer").evaluate("foot => foot.getBoundingClientRect().top")
    page.set_content(figure_html(contrast(decoder=None), provenance()).decode())
    edit(page)
    drag(page, 3, 0.5)
    assert page.locator(".is-waiting").get_attribute("data-wait") == "needs the running app"


def test_long_texts_and_many_labels_stay_inside(page: Page) -> None:
    draw_from = np.random.default_rng(3)
    weights = draw_from.dirichlet(np.full(512, 0.2), size=30)
    outputs = draw_from.dirichlet(np.ones(1000), size=30)
    view = contrast(
        weights=np.array([[1.0]]), tokens=(TokenLabel("one", "one"),), names=("observed",), outputs=np.array([[1.0]]),
        labels=("a label of " + 200 * "W",), jsd=np.zeros(1), change=np.zeros(1), shown=0, decoder=None,
    )  # fmt: skip
    draw(page, view, width=700, height=500)
    assert page.get_by_role("button", name="Edit by hand").count() == 0, "one weight cannot change"
    assert _overflow(page) == 0
    many = contrast(
        weights=weights, outputs=outputs, decoder=draw_from.normal(size=(512, 1000)), shown=29, epsilon=0.5,
        tokens=tuple(TokenLabel(f"w{index}" * (1 + index % 9), "w") for index in range(512)),
        names=("observed", *(f"adversarial {index} {'long ' * 30}" for index in range(1, 30))),
        labels=tuple(f"label {index} {'x' * 80}" for index in range(1000)),
        jsd=np.full(30, 0.5), change=np.full(30, 0.4),
    )  # fmt: skip
    send(page, attention_contrast_payload(many))
    assert page.locator(".contrast-column").count() == 512
    assert _overflow(page) == 0
    assert page.locator(".is-shown .contrast-output").count() in (5, 6)
    assert page.locator('[role=radio][aria-checked="true"]').evaluate(
        "chip => chip.getBoundingClientRect().bottom <= chip.parentElement.getBoundingClientRect().bottom"
    )
    page.locator(".contrast-text").first.evaluate("text => text.scrollTo(0, text.scrollHeight)")
    page.locator(".contrast-word").nth(511).click()
    ends = [
        page.locator(place).bounding_box() for place in (".contrast-column >> nth=511", ".contrast-scroller")
    ]
    assert ends[0]["x"] + ends[0]["width"] <= ends[1]["x"] + ends[1]["width"] + 1, (
        "a click on a word shows its bar"
    )
    edit(page)
    spent = page.get_by_role("slider").last.evaluate(
        """bar => {
          const start = performance.now();
          bar.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowUp", bubbles: true }));
          return performance.now() - start;
        }"""
    )
    assert spent < 1000, "dragging follows the pointer"


def _overflow(page: Page) -> int:
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))
