"""The Evidence views in a real browser: colours, marks, switches and keys, and the page of a picture."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from analysis.figure_data import EvidenceMaps, EvidencePanel, EvidenceWords, TokenLabel
from analysis.trained import find_offered, is_ready
from analysis.visible_evidence import AGAINST, FOR
from dashboard.evidence_payload import evidence_maps_payload, evidence_words_payload
from tests.browser.lone_component import DARK, LIGHT, said, show, tooltip
from tests.browser.test_walk import MINUTES, wait_for_model

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.conftest import WatchedPage

pytestmark = pytest.mark.browser

SIGNED = EvidencePanel(
    "CDAM",
    "elephant",
    True,
    2.0,
    "It pushes.",
    "Last layer alone.",
    ("Left out: 5.0% of Σ|score| lies on CLS.",),
)
PLAIN = EvidencePanel("Attention rollout", "", False, 0.5, "It may flow.", "Blind to the class.")
SCORES = np.array(
    [[[2.0, -2.0, 0.0], [0.5, 1.0, -1.0]], [[0.5, 0.0, 0.1], [0.2, 0.0, 0.3]]], dtype=np.float32
)
WORDS = (
    TokenLabel("not", "not"),
    TokenLabel("a", "a"),
    TokenLabel("<b>good</b>", "good"),
    TokenLabel("film", "film"),
)


@pytest.fixture
def page(watched_page: WatchedPage) -> Any:
    """A page in which nothing goes wrong."""
    yield watched_page.page
    assert watched_page.errors == []
    assert watched_page.outside == []


def maps(**changes: Any) -> EvidenceMaps:
    picture = np.full((40, 60, 3), 120, dtype=np.uint8)
    entries: dict[str, Any] = {
        "picture": picture,
        "maps": SCORES,
        "panels": (SIGNED, PLAIN),
        "title": "Evidence",
    }
    return EvidenceMaps(**{**entries, **changes})


def words(**changes: Any) -> EvidenceWords:
    scores = np.array([[-2.0, 0.0, 2.0, 0.5], [0.1, 0.2, 0.5, 0.0]], dtype=np.float32)
    return EvidenceWords(**{"scores": scores, "tokens": WORDS, "panels": (SIGNED, PLAIN), **changes})


def heard(page: Page, name: str) -> Any:
    """What the component told Python last under a name."""
    return [value for told, value in said(page, 1) if told == name][-1]


def pixel(page: Page, panel: int, place: int) -> list[int]:
    """Red, green, blue and opacity of a patch as it is drawn."""
    return (
        page.locator(".evidence-over")
        .nth(panel)
        .evaluate(
            "(canvas, place) => [...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height)"
            ".data.slice(4 * place, 4 * place + 4)]",
            place,
        )
    )


def test_colours_are_for_against_or_clear(page: Page) -> None:
    show(page, "evidence_maps", evidence_maps_payload(maps()))
    assert pixel(page, 0, 0) == [*FOR, 255]
    assert pixel(page, 0, 1) == [*AGAINST, 255]
    assert pixel(page, 0, 2)[3] <= 3, "no evidence: the picture shows"
    assert pixel(page, 1, 1)[3] == 0
    page.get_by_role("button", name="Positive only").click()
    assert pixel(page, 0, 0) == [*FOR, 255]
    assert pixel(page, 0, 1)[3] <= 3
    assert heard(page, "view")["positive"] is True


def test_a_map_without_evidence_is_flat_and_says_so(page: Page) -> None:
    empty = replace(SIGNED, limit=1.0, empty="Every score is 0.")
    show(
        page, "evidence_maps", evidence_maps_payload(maps(maps=np.zeros_like(SCORES), panels=(empty, PLAIN)))
    )
    assert all(pixel(page, 0, place)[3] <= 3 for place in range(6))
    assert page.get_by_text("Every score is 0.").is_visible()


def test_a_patch_is_told_and_marked_in_every_map(page: Page) -> None:
    show(page, "evidence_maps", evidence_maps_payload(maps()))
    surface = page.locator(".evidence-surface").first
    box = surface.bounding_box()
    assert box is not None
    at = {"x": box["width"] * 0.5, "y": box["height"] * 0.75}  # row 1, column 1
    surface.hover(position=at)
    told = tooltip(page)
    assert told[0] == "1"
    assert "50 % of the largest" in told[1]
    assert told[2] == "for elephant"
    assert page.locator(".evidence-value").all_text_contents() == ["1", "0"]
    surface.click(position=at)
    page.wait_for_function("window.said.some(([name]) => name === 'patch')")
    assert heard(page, "patch")["at"] == [1, 1]
    assert page.locator(".evidence-mark:not([hidden])").count() == 2
    surface.press("ArrowLeft")
    surface.press("Escape")
    assert page.locator(".evidence-mark:not([hidden])").count() == 0


def test_cards_stand_side_by_side_in_line_and_nothing_overlaps(page: Page) -> None:
    long = replace(SIGNED, facts=("A long fact. " * 12,), method="Integrated Gradients", target="x" * 80)
    panels = (SIGNED, replace(SIGNED, target="dog"), long, replace(long, target="dog"), PLAIN)
    scores = np.concatenate([SCORES[:1]] * 4 + [SCORES[1:]])
    show(page, "evidence_maps", evidence_maps_payload(maps(maps=scores, panels=panels)))
    cards = page.locator(".evidence-card")
    boxes = [box for card in cards.all() if (box := card.bounding_box())]
    assert len(boxes) == 3
    assert all(left["x"] + left["width"] <= right["x"] for left, right in itertools.pairwise(boxes))
    seconds = [cards.nth(index).locator(".evidence-surface").nth(1).bounding_box() for index in (0, 1)]
    assert seconds[0] is not None
    assert seconds[1] is not None
    assert seconds[0]["y"] == pytest.approx(seconds[1]["y"], abs=1), "second maps lie in one line"
    assert (
        page.locator(".evidence-target span:first-child").nth(2).get_attribute("title") == f"for {'x' * 80}"
    )


def luminance(colour: list[float]) -> float:
    shares = np.array(colour) / 255
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("dark", [False, True])
def test_words_stay_readable_on_their_colours(page: Page, dark: bool) -> None:
    scores = np.stack([np.linspace(-2, 2, 41), np.linspace(0, 0.5, 41)]).astype(np.float32)
    view = words(scores=scores, tokens=tuple(TokenLabel(f"w{index}", "") for index in range(41)))
    show(page, "evidence_words", evidence_words_payload(view), dark=dark)
    ground = (DARK if dark else LIGHT)["background"]
    below = [int(ground[place : place + 2], 16) for place in (1, 3, 5)]
    for word in page.locator(".evidence-word").all():
        back, ink = word.evaluate("word => [word.style.background, word.style.color]")
        *tint, opacity = map(float, [*re.findall(r"[\d.]+", back), "1"][:4])
        mixed = [low + (high - low) * opacity for low, high in zip(below, tint, strict=True)]
        colour = {"rgb(0, 0, 0)": [0, 0, 0], "rgb(255, 255, 255)": [255, 255, 255]}[ink]
        darker, lighter = sorted((luminance(mixed), luminance(colour)))
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5


def test_a_word_is_marked_in_every_row_and_shown_as_typed(page: Page) -> None:
    show(page, "evidence_words", evidence_words_payload(words()))
    row = page.locator(".evidence-text").first
    assert row.locator(".evidence-word").all_text_contents() == ["not", "a", "<b>good</b>", "film"]
    row.locator(".evidence-word").nth(2).click()
    page.wait_for_function("window.said.some(([name]) => name === 'word')")
    assert heard(page, "word")["at"] == 2
    assert page.locator(".evidence-word.is-marked").count() == 2
    row.locator(".evidence-word").nth(2).press("ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_function("window.said.filter(([name]) => name === 'word').length >= 2")
    assert heard(page, "word")["at"] == 3
    page.keyboard.press("Escape")
    assert page.locator(".evidence-word.is-marked").count() == 0


@pytest.mark.skipif(
    not is_ready(find_offered("picture-classifier")), reason="the classifier is not installed"
)
def test_the_page_of_a_picture(app_page: WatchedPage, app_server: Any) -> None:
    from playwright.sync_api import expect

    page = app_page.page
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(f"{app_server.url}/image?v=1&model=picture-classifier&sample=elephantdog&view=evidence")
    expect(page.locator(".evidence-card")).to_have_count(4, timeout=MINUTES)
    wait_for_model(page)
    expect(page.locator(".evidence-maps .view-title")).to_contain_text("Evidence for elephant")
    page.get_by_role("button", name="Positive only").click()
    expect(page).to_have_url(re.compile("sign=positive"), timeout=MINUTES)
    box = page.get_by_role("combobox", name="Held against")
    box.click()
    box.fill("dalma")
    page.keyboard.press("Enter")
    expect(page.locator(".evidence-maps .view-title")).to_contain_text(
        "elephant rather than dalmatian", timeout=MINUTES
    )
    expect(page).to_have_url(re.compile("rather=27"), timeout=MINUTES)
    surface = page.locator(".evidence-surface").nth(2)
    surface.click(position={"x": 40, "y": 40})
    expect(page).to_have_url(re.compile("patch="), timeout=MINUTES)
    assert page.locator(".evidence-mark:not([hidden])").count() == 4
    page.get_by_test_id("stButtonGroup").get_by_role("button", name=re.compile("Leave one out")).click()
    expect(page.get_by_role("button", name="Stop")).to_be_visible(timeout=MINUTES)
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("Stopped: Leave one out.")).to_be_visible(timeout=MINUTES)
    assert page.locator(".evidence-card").count() == 4, "what is ready stays"
    assert app_page.errors == []
    assert app_page.outside == []
