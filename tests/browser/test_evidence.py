"""The Evidence views in a real browser: colours, marks, switches and keys, and the page of a picture."""

from __future__ import annotations

import io
import itertools
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from PIL import Image

from analysis.export import read_provenance
from analysis.figure_data import EvidenceMaps, EvidencePanel, EvidenceWords, TokenLabel
from analysis.trained import find_offered, is_ready
from analysis.visible_evidence import AGAINST, FOR, drawn_scores, pale_grey, score_colours
from dashboard.evidence_payload import evidence_maps_payload, evidence_words_payload
from dashboard.standalone import figure_html
from tests.browser.conftest import settle
from tests.browser.lone_component import DARK, LIGHT, said, send, show, tooltip
from tests.browser.test_walk import MINUTES, download, open_export, wait_for_model
from tests.sample_figures import provenance

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
        page.locator(".evidence-overlay")
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


# Keys and what is read aloud ----------------------------------------------------------------------------------------


def live(page: Page, text: str) -> None:
    """Wait until the live region says exactly this."""
    page.wait_for_function("text => document.querySelector('.view-live').textContent === text", arg=text)


def test_every_map_is_reached_by_the_tab_key_and_says_what_it_is(page: Page) -> None:
    show(page, "evidence_maps", evidence_maps_payload(maps()))
    page.get_by_role("slider", name="Opacity").focus()
    names = []
    for _ in range(4):
        page.keyboard.press("Tab")
        names.append(page.evaluate("document.activeElement.getAttribute('aria-label')"))
    assert names == [
        "Save CDAM for elephant as PNG, 60 × 40 pixels",
        "CDAM for elephant. Strongest for: patch row 0, column 0, score 2. Strongest against: patch row 0, column 1, "
        "score −2. Arrow keys mark a patch, Enter the strongest, Escape none.",
        "Save Attention rollout as PNG, 60 × 40 pixels",
        "Attention rollout. Strongest: patch row 0, column 0, score 0.5. "
        "Arrow keys mark a patch, Enter the strongest, Escape none.",
    ]
    first = page.locator(".evidence-surface").first
    described = first.evaluate(
        "map => document.getElementById(map.getAttribute('aria-describedby')).textContent"
    )
    assert described == "Left out: 5.0% of Σ|score| lies on CLS."
    assert page.locator(".evidence-save").first.evaluate("button => getComputedStyle(button).opacity") == "0"


def test_keys_mark_a_patch_and_its_score_is_told_in_words(page: Page) -> None:
    show(page, "evidence_maps", evidence_maps_payload(maps()))
    first, second = page.locator(".evidence-surface").all()
    first.focus()
    page.keyboard.press("Enter")
    live(page, "patch row 0, column 0: score 2, 100 % of the largest, for elephant")
    page.keyboard.press("ArrowRight")
    live(page, "patch row 0, column 1: score −2, 100 % of the largest, against elephant")
    page.keyboard.press("ArrowRight")
    live(page, "patch row 0, column 2: score 0, 0 % of the largest, neither for nor against")
    page.keyboard.press("ArrowDown")
    live(page, "patch row 1, column 2: score −1, 50 % of the largest, against elephant")
    second.focus()
    live(page, "patch row 1, column 2: score 0.3, 60 % of the largest, no sign: not for or against")
    page.wait_for_function("window.said.some(([name, value]) => name === 'patch' && value.at?.[0] === 1)")
    assert heard(page, "patch")["at"] == [1, 2]
    page.keyboard.press("Escape")
    live(page, "No patch is marked")
    page.keyboard.press("ArrowLeft")
    live(page, "patch row 0, column 1: score 0, 0 % of the largest, no sign: not for or against")
    assert page.locator(".evidence-mark:not([hidden])").count() == 2


def test_the_strongest_patch_is_of_what_is_drawn(page: Page) -> None:
    scores = SCORES.copy()
    scores[0, 0, 0] = 1.5
    show(page, "evidence_maps", evidence_maps_payload(maps(maps=scores)))
    page.locator(".evidence-surface").first.press("Enter")
    live(page, "patch row 0, column 1: score −2, 100 % of the largest, against elephant")
    page.get_by_role("button", name="Positive only").click()
    page.locator(".evidence-surface").first.press("Enter")
    live(page, "patch row 0, column 0: score 1.5, 75 % of the largest, for elephant")


def test_new_data_leave_the_keyboard_where_it_was(page: Page) -> None:
    show(page, "evidence_maps", evidence_maps_payload(maps()))
    page.locator(".evidence-surface").nth(1).focus()
    more = maps(
        maps=np.concatenate([SCORES[:1], SCORES]), panels=(SIGNED, replace(SIGNED, method="New"), PLAIN)
    )
    send(page, evidence_maps_payload(more))
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("Attention rollout.")
    show(page, "evidence_words", evidence_words_payload(words()))
    page.locator(".evidence-word").nth(6).focus()
    scores = np.concatenate([words().scores[:1], words().scores])
    send(page, evidence_words_payload(words(scores=scores, panels=more.panels)))
    assert page.evaluate("document.activeElement.dataset.index") == "2"
    assert (
        page.evaluate("document.activeElement.parentElement.getAttribute('aria-label')")
        == "Attention rollout"
    )


def test_a_words_score_is_its_name_and_one_word_is_a_tab_stop(page: Page) -> None:
    show(page, "evidence_words", evidence_words_payload(words()))
    row = page.get_by_role("group", name="CDAM for elephant")
    names = [word.get_attribute("aria-label") for word in row.locator(".evidence-word").all()]
    assert names[:3] == [
        "not, score −2, 100 % of the largest, against elephant",
        "a, score 0, 0 % of the largest, neither for nor against",
        "<b>good</b>, score 2, 100 % of the largest, for elephant",
    ]
    row.locator(".evidence-word").nth(2).click()
    at = "[document.activeElement.parentElement.dataset.line, document.activeElement.dataset.index].join()"
    assert page.evaluate(at) == "0,2"
    for key, place in {
        "ArrowDown": "1,2",
        "End": "1,3",
        "ArrowRight": "1,3",
        "Home": "1,0",
        "ArrowUp": "0,0",
    }.items():
        page.keyboard.press(key)
        assert page.evaluate(at) == place
        assert page.locator(".evidence-word[tabindex='0']").count() == 1
        assert page.evaluate("document.activeElement.tabIndex") == 0
    assert page.locator(".evidence-word[aria-pressed=true]").count() == 2, "the marked word, once a row"


def test_every_row_shows_the_same_part_of_a_long_text(page: Page) -> None:
    scores = np.zeros((2, 400), np.float32)
    view = words(scores=scores, tokens=tuple(TokenLabel(f"word{index}", "") for index in range(400)))
    show(page, "evidence_words", evidence_words_payload(view))
    second = page.locator(".evidence-text").nth(1)
    second.evaluate("text => { text.scrollTop = 333; }")
    page.wait_for_function("() => document.querySelector('.evidence-text').scrollTop === 333")
    assert second.evaluate("text => text.scrollTop") == 333


def test_a_word_that_is_marked_from_outside_is_scrolled_to_and_a_click_moves_nothing(page: Page) -> None:
    tokens = tuple(TokenLabel(f"word{index}", "") for index in range(400))
    view = words(scores=np.zeros((2, 400), np.float32), tokens=tokens)
    show(page, "evidence_words", evidence_words_payload(view))
    send(page, evidence_words_payload(replace(view, marked=390)))
    page.wait_for_function("() => document.querySelector('.evidence-text').scrollTop > 0")
    for index in range(2):
        frame = page.locator(".evidence-text").nth(index).bounding_box()
        marked = page.locator(".is-marked").nth(index).bounding_box()
        assert frame is not None
        assert marked is not None
        assert frame["y"] <= marked["y"] <= frame["y"] + frame["height"] - marked["height"]
    at = page.locator(".evidence-text").first.evaluate("text => text.scrollTop")
    page.locator(".evidence-word").nth(385).click()
    said(page, 1)
    send(page, evidence_words_payload(replace(view, marked=385)))
    assert page.locator(".evidence-text").first.evaluate("text => text.scrollTop") == at


def test_arrows_follow_a_text_from_right_to_left(page: Page) -> None:
    show(page, "evidence_words", evidence_words_payload(words(direction="rtl")))
    page.locator(".evidence-word").first.focus()
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.dataset.index") == "1"


# A map as a file ----------------------------------------------------------------------------------------------------


def saved(page: Page, place: int = 0) -> tuple[str, np.ndarray]:
    """Name and pixels of the file that a map's button gives."""
    page.locator(".evidence-card").nth(place).hover()
    with page.expect_download() as waiting:
        page.locator(".evidence-save").nth(place).click()
    data = Path(waiting.value.path()).read_bytes()
    return waiting.value.suggested_filename, np.asarray(Image.open(io.BytesIO(data)).convert("RGB")).astype(
        int
    )


def expected(view: EvidenceMaps, index: int) -> np.ndarray:
    """The picture with a map's squares over it, by NumPy."""
    ground = pale_grey(view.picture) if view.grey else view.picture
    rows, columns = view.maps.shape[1:]
    height, width = ground.shape[:2]
    values = np.kron(view.maps[index], np.ones((height // rows, width // columns)))
    panel = view.panels[index]
    colours = score_colours(drawn_scores(values, panel, positive=view.positive), panel)
    share = colours[..., 3:] * view.opacity
    return np.asarray(ground * (1 - share) + colours[..., :3] * share)


@pytest.mark.parametrize(
    "changes",
    [{}, {"positive": True}, {"grey": False, "opacity": 0.35}, {"opacity": 0.0}],
    ids=["signed", "positive", "colour", "clear"],
)
def test_a_map_is_saved_as_it_is_drawn_at_the_pictures_own_size(page: Page, changes: dict[str, Any]) -> None:
    picture = np.random.default_rng(0).integers(0, 256, size=(40, 60, 3), dtype=np.uint8)
    view = maps(picture=picture, **changes)
    show(page, "evidence_maps", evidence_maps_payload(view), shadow=True)
    for index, name in enumerate(("attnscope_CDAM-for-elephant.png", "attnscope_Attention-rollout.png")):
        told, pixels = saved(page, index)
        assert told == name
        assert pixels.shape == (40, 60, 3)
        assert np.abs(pixels - expected(view, index)).max() <= 2.5
    assert said(page) == [], "nothing goes to Python"


def test_the_saved_map_follows_the_switches_and_the_mark(page: Page) -> None:
    view = maps()
    show(page, "evidence_maps", evidence_maps_payload(view))
    page.get_by_role("button", name="Positive only").click()
    _, plain = saved(page)
    assert np.abs(plain - expected(replace(view, positive=True), 0)).max() <= 2.5
    page.locator(".evidence-surface").first.press("Enter")  # row 0, column 0
    _, marked = saved(page)
    inside = (slice(0, 20), slice(0, 20))
    assert np.array_equal(marked[inside], plain[inside]), "the box lies round the patch"
    assert not np.array_equal(marked[:24, :24], plain[:24, :24])
    page.locator(".evidence-surface").first.press("Escape")
    page.get_by_role("button", name="Smooth").click()
    _, smooth = saved(page)
    steps = np.abs(np.diff(smooth, axis=1)).max()
    assert steps < np.abs(np.diff(plain, axis=1)).max() / 3, "no edges between patches"
    assert np.abs(smooth[9, 9] - plain[9, 9]).max() <= 3, "the same from a corner to the middle of its patch"


def test_a_map_is_saved_by_keys_and_from_an_exported_page(watched_page: WatchedPage, tmp_path: Path) -> None:
    view, page = maps(), watched_page.page
    path = tmp_path / "board.html"
    path.write_bytes(figure_html(view, provenance()))
    page.goto(path.as_uri())
    page.locator(".evidence-save").nth(1).focus()
    assert page.locator(".evidence-save").nth(1).evaluate("button => getComputedStyle(button).opacity") == "1"
    with page.expect_download() as waiting:
        page.keyboard.press("Enter")
    pixels = np.asarray(Image.open(waiting.value.path()).convert("RGB")).astype(int)
    assert np.abs(pixels - expected(view, 1)).max() <= 2.5
    assert watched_page.errors == []
    assert not [url for url in watched_page.outside if not url.startswith("file:")]


# Places on the screen -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [(600, 60), (60, 600), (1, 1), (2240, 224)])
@pytest.mark.parametrize("width", [1080, 620])
def test_no_map_is_taller_than_the_window_or_wider_than_its_card(
    page: Page, size: tuple[int, int], width: int
) -> None:
    picture = np.full((*size, 3), 90, np.uint8)
    panels = tuple(replace(SIGNED, method=f"Method {number}") for number in range(16))
    view = maps(picture=picture, maps=np.tile(SCORES[:1], (16, 1, 1)), panels=panels)
    show(page, "evidence_maps", evidence_maps_payload(view), width=width)
    cards, surfaces = page.locator(".evidence-card").all(), page.locator(".evidence-surface").all()
    assert len(surfaces) == 16
    for card, surface in zip(cards, surfaces, strict=True):
        outer, inner = card.bounding_box(), surface.bounding_box()
        assert outer is not None
        assert inner is not None
        assert inner["width"] <= outer["width"] + 1
        assert inner["height"] <= 560
        assert min(inner["width"], inner["height"]) >= 6
        assert max(inner["width"], inner["height"]) >= 200
        assert outer["x"] + outer["width"] <= 20 + width + 1


def test_cards_stand_side_by_side_in_line_and_nothing_overlaps(page: Page) -> None:
    long = replace(SIGNED, facts=("A long fact. " * 12,), method="Integrated Gradients", target="x" * 80)
    panels = (SIGNED, replace(SIGNED, target="dog"), long, replace(long, target="dog"), PLAIN)
    scores = np.concatenate([SCORES[:1]] * 4 + [SCORES[1:]])
    show(page, "evidence_maps", evidence_maps_payload(maps(maps=scores, panels=panels)))
    cards = page.locator(".evidence-card")
    boxes = [box for card in cards.all() if (box := card.bounding_box())]
    assert len(boxes) == 3
    assert all(left["x"] + left["width"] <= right["x"] for left, right in itertools.pairwise(boxes))
    beyond = "card => [...card.querySelectorAll('*')]"
    beyond += ".some((part) => part.getBoundingClientRect().right > card.getBoundingClientRect().right + 1)"
    assert not any(card.evaluate(beyond) for card in cards.all()), "nothing spills over the next card"
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
    name, pixels = saved(page, 1)
    assert name == "attnscope_GradCAM-for-elephant-rather-than-dalmatian.png"
    assert pixels.shape == (224, 602, 3)
    open_export(page)
    page.get_by_role("combobox", name="What to export").click()
    page.get_by_role("option", name="Attention rollout").click()
    expect(page.get_by_role("combobox", name="What to export")).to_have_value(
        "Attention rollout", timeout=MINUTES
    )
    page.wait_for_timeout(1000)  # until the page has begun to run again
    settle(app_page)
    name, data = download(page, "CSV")
    assert name == "attnscope_picture-classifier_evidence-maps_Attention-rollout.csv"
    assert read_provenance(data, "csv")["provenance"]["method"] == "Attention rollout"
    assert len([line for line in data.decode().splitlines() if line[0] == "0"]) == 16 * 43
    page.keyboard.press("Escape")
    page.get_by_test_id("stButtonGroup").get_by_role("button", name=re.compile("Leave one out")).click()
    expect(page.get_by_role("button", name="Stop")).to_be_visible(timeout=MINUTES)
    page.get_by_role("button", name="Stop").click()
    expect(page.get_by_text("Stopped: Leave one out.")).to_be_visible(timeout=MINUTES)
    assert page.locator(".evidence-card").count() == 4, "what is ready stays"
    assert app_page.errors == []
    assert app_page.outside == []


@pytest.mark.skipif(
    not is_ready(find_offered("sentiment")), reason="models are not installed; run make bundled"
)
def test_the_page_of_a_text(app_page: WatchedPage, app_server: Any) -> None:
    from playwright.sync_api import expect

    page = app_page.page
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(
        f"{app_server.url}/?v=1&model=sentiment&view=evidence&methods=cdam,rollout&t=A+dull+film+but+unforgettable"
    )
    words = page.locator(".evidence-words")
    expect(words.locator(".view-title")).to_contain_text("Evidence for", timeout=MINUTES)
    wait_for_model(page)
    settle(app_page)
    shown = page.locator(".evidence-words").inner_text()
    assert "unforgettable" in shown, "its tokens are one word"
    page.get_by_role("radio", name="Tokens").click()
    expect(page).to_have_url(re.compile("of=tokens"), timeout=MINUTES)
    page.get_by_role("combobox", name="Second class").click()
    page.get_by_role("option").nth(1).click()
    expect(page).to_have_url(re.compile("beside="), timeout=MINUTES)
    expect(words.get_by_text(re.compile("Rank correlation with that for"))).to_have_count(1, timeout=MINUTES)
    settle(app_page)  # a click on controls that are just being replaced is lost
    page.get_by_test_id("stButtonGroup").get_by_role("button", name=re.compile("Leave one out")).click()
    expect(words.get_by_text("Leave one out").first).to_be_visible(timeout=MINUTES)
    trust = page.locator(".st-key-text_evidence_trust")
    trust.get_by_role("radio", name="Faithfulness").click()
    expect(trust.locator("tbody tr")).to_have_count(
        5, timeout=MINUTES
    )  # two classes of two methods, and rollout
    with page.expect_download(timeout=MINUTES) as waiting:
        trust.get_by_role("button", name="Table as CSV").click()
    table = Path(waiting.value.path()).read_text()
    assert "# model sentiment" in table
    assert table.count("random orders") >= 5
    expect(words.get_by_text(re.compile("Areas: deletion")).first).to_be_visible(timeout=MINUTES)
    assert app_page.errors == []
    assert app_page.outside == []


@pytest.mark.skipif(
    not is_ready(find_offered("sentiment")), reason="models are not installed; run make bundled"
)
def test_controls_that_come_late_show_what_was_chosen(app_page: WatchedPage, app_server: Any) -> None:
    """A browser that gets its controls after a second run of the page shows the choices, and sends no others back."""
    page = app_page.page
    page.goto(f"{app_server.url}/?v=1&view=evidence&model=sentiment&methods=cdam")
    page.locator(".st-key-text_evidence_trust").wait_for(timeout=MINUTES)
    settle(app_page)
    held: list[Any] = []
    controls = re.compile(r"/static/js/(TextArea|ButtonGroup|Selectbox)\.")
    page.route(controls, lambda request: held.append(request))
    page.goto(
        f"{app_server.url}/?v=1&view=evidence&model=sentiment&methods=cdam,relevance&check=stability"
        "&t=A+slow+film+with+a+lovely+ending"
    )
    page.locator(".st-key-text_evidence_trust table").wait_for(
        timeout=MINUTES
    )  # a job has ended: the second run
    assert len(held) == 3
    for request in held:
        request.continue_()
    sentence = page.get_by_role("textbox", name="Sentence")
    sentence.wait_for()
    page.wait_for_timeout(1500)  # time to send something else back
    settle(app_page)
    assert sentence.input_value() == "A slow film with a lovely ending"
    chosen = [button.inner_text() for button in page.locator("button[aria-checked=true]").all()]
    assert {"One sentence", "Evidence", "Infidelity"} <= set(chosen)
    assert page.locator(".st-key-text_model input").input_value() == "MiniLM sentiment"
    assert "t=A+slow+film" in page.url
