"""The token strip in a real browser: order, colours, words, keyboard."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from analysis.figure_data import TokenLabel, TokenScores
from dashboard.colour_maps import colour_table
from dashboard.figures import token_strip_payload
from tests.browser.lone_component import said, send, show, tooltip

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.conftest import WatchedPage

pytestmark = pytest.mark.browser

TOKENS = (
    TokenLabel("[CLS]", "[CLS]", special=True),
    TokenLabel("the", "the"),
    TokenLabel("embarrassing", "embarrassing"),
    TokenLabel("ly", "##ly", continues=True),
    TokenLabel("😀", "[UNK]", unknown=True),
    TokenLabel("[SEP]", "[SEP]", special=True),
)
SCORES = np.array([0.5, 0.25, 0.125, 0.0625, 0.03125, 0.0], dtype=np.float32)


@pytest.fixture
def page(watched_page: WatchedPage) -> Any:
    """A page in which nothing goes wrong."""
    yield watched_page.page
    assert watched_page.errors == []
    assert watched_page.outside == []


def rgb(text: str) -> list[int]:
    return [int(part) for part in re.findall(r"\d+", text)[:3]]


def colours(page: Page) -> list[list[int]]:
    return [
        rgb(token.evaluate("token => token.style.backgroundColor"))
        for token in page.locator(".strip-token").all()
    ]


def luminance(colour: list[int]) -> float:
    shares = np.array(colour) / 255
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_tokens_are_coloured_by_their_score_and_stay_readable(page: Page) -> None:
    show(page, "token_strip", token_strip_payload(TokenScores(SCORES, TOKENS)))
    assert page.locator(".strip-token").all_text_contents() == [token.text for token in TOKENS]
    table = colour_table("viridis").tolist()
    assert colours(page) == [table[int(510 * float(score) + 0.5)] for score in SCORES]
    for token in page.locator(".strip-token").all():
        style = token.evaluate("token => [token.style.backgroundColor, token.style.color]")
        dark, light = sorted(luminance(rgb(colour)) for colour in style)
        assert (light + 0.05) / (dark + 0.05) >= 4.5


@pytest.mark.parametrize("colour_map", ["viridis", "cividis", "magma", "greys"])
def test_every_level_of_every_map_is_readable(page: Page, colour_map: Any) -> None:
    tokens = tuple(TokenLabel(f"t{index}", f"t{index}") for index in range(256))
    scores = np.linspace(0, 1, 256, dtype=np.float32)
    show(page, "token_strip", token_strip_payload(TokenScores(scores, tokens, colour_map=colour_map)))
    styles = page.evaluate(
        "[...document.querySelectorAll('.strip-token')].map(({style}) => [style.backgroundColor, style.color])"
    )
    for style in styles:
        dark, light = sorted(luminance(rgb(colour)) for colour in style)
        assert (light + 0.05) / (dark + 0.05) >= 4.5


def test_the_tooltip_tells_the_exact_score_and_what_the_token_is(page: Page) -> None:
    scores = np.random.default_rng(0).uniform(size=6).astype(np.float32)
    show(page, "token_strip", token_strip_payload(TokenScores(scores, TOKENS)))
    for index, token in enumerate(page.locator(".strip-token").all()):
        token.hover()
        value, name, *remarks = tooltip(page)
        assert np.float32(value) == scores[index]
        assert name == f"token {index} “{TOKENS[index].text}”"
        assert ("unknown to the model" in remarks) == TOKENS[index].unknown
        assert ("special token, added by the model" in remarks) == TOKENS[index].special


def test_numbers_of_a_scale_are_written_alike(page: Page) -> None:
    show(page, "token_strip", token_strip_payload(TokenScores(SCORES * 1e-4, TOKENS, limits=(0.0, 2e-4))))
    assert page.locator(".view-scale-ticks span").all_text_contents() == [
        "0", "5.00e−5", "1.00e−4", "1.50e−4", "2.00e−4",
    ]  # fmt: skip


def test_scores_above_the_scale_are_marked_and_told_exactly(page: Page) -> None:
    limit = float(np.sort(SCORES)[-2])
    show(page, "token_strip", token_strip_payload(TokenScores(SCORES, TOKENS, limits=(0.0, limit))))
    highest = int(SCORES.argmax())
    marked = [
        index
        for index, token in enumerate(page.locator(".strip-token").all())
        if "is-beyond" in str(token.get_attribute("class"))
    ]
    assert marked == [highest]
    assert page.locator(".view-scale-ticks span").last.inner_text() == f"≥ {limit:.3g}"
    page.locator(".strip-token").nth(highest).hover()
    value, _, *remarks = tooltip(page)
    assert np.float32(value) == SCORES[highest]
    assert "above the colour scale" in remarks
    send(page, token_strip_payload(TokenScores(SCORES, TOKENS)))
    assert page.locator(".is-beyond").count() == 0
    assert "≥" not in page.locator(".view-scale-ticks").inner_text()


def test_pieces_of_a_word_are_joined(page: Page) -> None:
    show(page, "token_strip", token_strip_payload(TokenScores(SCORES, TOKENS)))
    boxes = [box for token in page.locator(".strip-token").all() if (box := token.bounding_box())]
    gaps = [second["x"] - first["x"] - first["width"] for first, second in itertools.pairwise(boxes)]
    assert gaps[2] == pytest.approx(0, abs=0.5)
    assert all(gap > 3 for index, gap in enumerate(gaps) if index != 2)


def test_a_click_or_enter_chooses_a_token(page: Page) -> None:
    show(page, "token_strip", token_strip_payload(TokenScores(SCORES, TOKENS, source=1)))
    assert page.locator("[aria-current]").all_text_contents() == ["the"]
    page.locator(".strip-token").nth(2).click()
    assert [(name, value["index"]) for name, value in said(page, 1)] == [("token", 2)]
    assert page.locator("[aria-current]").all_text_contents() == ["embarrassing"]
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    assert said(page, 2)[-1][1]["index"] == 3
    page.keyboard.press("End")
    page.keyboard.press(" ")
    assert said(page, 3)[-1][1]["index"] == 5
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    assert said(page, 4)[-1][1]["index"] == 4


def test_one_tab_stop_and_a_tooltip_for_the_keyboard(page: Page) -> None:
    show(page, "token_strip", token_strip_payload(TokenScores(SCORES, TOKENS, source=1)))
    assert page.locator(".strip-token[tabindex='0']").all_text_contents() == ["the"]
    for _ in range(3):  # two buttons of the scale, then the tokens
        page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "the"
    assert tooltip(page)[0] == "0.25"
    page.keyboard.press("ArrowRight")
    assert tooltip(page)[0] == "0.125"
    page.keyboard.press("Escape")
    assert page.locator(".view-tooltip").is_hidden()


def test_right_to_left_text_runs_to_the_left(page: Page) -> None:
    words = ("ذهب", "الولد", "إلى", "المدرسة")
    tokens = tuple(TokenLabel(word, word) for word in words)
    record = TokenScores(SCORES[:4], tokens, direction="rtl", source=0)
    show(page, "token_strip", token_strip_payload(record))
    edges = [box["x"] for token in page.locator(".strip-token").all() if (box := token.bounding_box())]
    assert edges == sorted(edges, reverse=True)
    page.locator(".strip-token").first.focus()
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.textContent") == "الولد"
    assert "right to left" in page.locator(".view-note").inner_text()


def test_the_square_root_scale(page: Page) -> None:
    show(page, "token_strip", token_strip_payload(TokenScores(SCORES, TOKENS)))
    page.get_by_role("button", name="√").click()
    table = colour_table("viridis").tolist()
    assert colours(page) == [table[int(255 * np.sqrt(2 * float(score)) + 0.5)] for score in SCORES]
    assert page.locator(".view-scale-ticks span").all_text_contents() == [
        "0",
        "0.0313",
        "0.125",
        "0.281",
        "0.5",
    ]
    assert said(page, 1) == [["view", {"scale": "sqrt"}]]


def test_hostile_tokens_are_shown_as_they_are(page: Page) -> None:
    texts = (
        "a<b<c",
        "<!--#exec",
        "-->",
        "<script>window.hacked=1</script>",
        "<img src=x onerror=window.hacked=1>",
        "&lt;",
    )
    tokens = tuple(TokenLabel(text, text) for text in texts)
    show(
        page,
        "token_strip",
        token_strip_payload(TokenScores(SCORES, tokens, title="<b>t</b>", unit="<i>u</i>")),
    )
    for index, token in enumerate(page.locator(".strip-token").all()):
        assert token.inner_text() in (texts[index], texts[index][:15] + "…")
        token.hover()
        assert tooltip(page)[1] == f"token {index} “{texts[index]}”"
        assert texts[index] in str(token.get_attribute("aria-label"))
    assert page.locator(".view-title").inner_text() == "<b>t</b>"
    assert page.evaluate("window.hacked") is None
    assert page.locator("#frame img, #frame script, #frame b, #frame i").count() == 0


def test_a_long_text_wraps_and_new_scores_keep_the_focus(page: Page) -> None:
    tokens = tuple(TokenLabel(f"word{index}", f"word{index}") for index in range(512))
    scores = np.random.default_rng(0).uniform(size=512).astype(np.float32)
    milliseconds = show(
        page, "token_strip", token_strip_payload(TokenScores(scores, tokens)), width=600, height=100
    )
    assert milliseconds < 1000
    strip = page.locator(".strip-text").bounding_box()
    assert strip is not None
    assert strip["width"] <= 600
    page.locator(".strip-token").nth(7).focus()
    send(page, token_strip_payload(TokenScores(scores[::-1].copy(), tokens, source=7)))
    assert page.evaluate("document.activeElement.textContent") == "word7"
    assert page.locator("[aria-current]").all_text_contents() == ["word7"]


def test_a_part_counts_from_the_beginning_of_the_text_and_shows_its_source(page: Page) -> None:
    tokens = tuple(TokenLabel(f"word{index}", f"word{index}") for index in range(512))
    scores = np.random.default_rng(0).uniform(size=512).astype(np.float32)
    part = TokenScores(scores, tokens, source=300, start=1024)
    show(page, "token_strip", token_strip_payload(part), width=600, height=200)
    page.add_style_tag(content=".strip-text { max-height: 150px !important; }")
    assert page.locator(".view-note").first.inner_text() == "512 tokens · row of token 1324 “word300”"
    page.locator(".strip-token").first.hover()
    assert tooltip(page)[1] == "token 1024 “word0”"
    strip = page.locator(".strip-text")
    strip.evaluate("text => { text.scrollTop = 40; }")
    send(page, token_strip_payload(replace(part, source=470)))
    page.wait_for_function("() => document.querySelector('.strip-text').scrollTop > 40")
    frame, source = strip.bounding_box(), page.locator(".is-source").bounding_box()
    assert frame is not None
    assert source is not None
    assert frame["y"] <= source["y"] <= frame["y"] + frame["height"] - source["height"]
    at = strip.evaluate("text => text.scrollTop")
    page.locator(".strip-token").nth(480).click()
    send(page, token_strip_payload(replace(part, source=480)))
    assert strip.evaluate("text => text.scrollTop") == at, "an echo of a click moves nothing"


def test_a_stand_alone_page_does_not_offer_another_row(page: Page) -> None:
    show(page, "token_strip", token_strip_payload(TokenScores(SCORES, TOKENS, source=1)), alone=True)
    page.locator(".strip-token").nth(3).click()
    assert page.locator("[aria-current]").all_text_contents() == ["the"]
