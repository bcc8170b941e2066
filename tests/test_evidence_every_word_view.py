"""The table of every predicted word on the page and in files: record, blob, jobs, the view, and a real browser."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import streamlit
from hypothesis import given
from hypothesis import strategies as st
from streamlit.testing.v1 import AppTest

import tests.input_helpers as tiny
from analysis.export import export_figure, read_provenance
from analysis.figure_data import EvidencePanel, EvidenceWords, TokenLabel
from analysis.plates.evidence_table import UNREAD, _number, _pixels
from analysis.visible_evidence import AGAINST, FOR
from dashboard import evidence_cache, figures
from dashboard.components.evidence_table import checked_table, evidence_table_payload
from dashboard.model_root import VARIABLE
from dashboard.provenance import evidence_provenance
from dashboard.selection import current
from dashboard.standalone import figure_html
from dashboard.views import evidence_every_word as view_module
from tests.browser.lone_component import DARK, LIGHT, said, send, show, tooltip
from tests.sample_figures import labels, provenance
from tests.test_app import component, shown

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.conftest import WatchedPage

NAN = np.nan
PANEL = EvidencePanel("Relevance", "“a”", True, 2.0, "Says this.", "Not that.", ("A fact.",))


def table(**changes: Any) -> EvidenceWords:
    """Three predicted words over four tokens, the last of which the decoder has read."""
    tokens = (*labels(("the", "=1+1", "<b>old</b>")), TokenLabel("das", "das", segment=1))
    predicted = labels(("das", "مرحبا", "alt"))
    scores = np.array([[2, -2, 0, NAN], [1, -1, 0.5, 0.25], [0, 0, 0, -0.5]], dtype=np.float32)
    panels = (PANEL, *(replace(PANEL, target=f"“{k}”", claims="", cannot="", facts=()) for k in ("b", "c")))
    entries: dict[str, Any] = {
        "scores": scores,
        "tokens": tokens,
        "panels": panels,
        "title": "What every predicted word rests on",
        "unit": "tokens",
        "predicted": predicted,
        "probabilities": np.array([0.5, 0.000012, 1.0], dtype=np.float32),
    }
    return EvidenceWords(**{**entries, **changes})


def wide(words: int = 60, tokens: int = 40) -> EvidenceWords:
    scores = np.random.default_rng(0).normal(size=(words, tokens)).astype(np.float32)
    names = tuple(TokenLabel(f"word{index}", "") for index in range(max(words, tokens)))
    panels = (replace(PANEL, limit=float(np.abs(scores).max())),) * words
    return table(
        scores=scores,
        tokens=names[:tokens],
        predicted=names[:words],
        panels=panels,
        probabilities=np.full(words, 0.1, np.float32),
    )


# Files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [table, wide])
@pytest.mark.parametrize("format", ["png", "svg", "pdf", "csv", "npz", "json"])
def test_every_file_holds_the_table(make: Any, format: Any):
    data = export_figure(make(positive=True) if make is table else make(), provenance(), format)
    document = read_provenance(data, format)
    assert document["kind"] == "evidence_words"
    assert document["choices"]["panels"][0]["method"] == "Relevance"
    assert document["choices"]["positive"] is (make is table)


def test_a_row_of_the_csv_file_is_a_cell_that_has_a_score():
    text = export_figure(table(), provenance(), "csv").decode()
    rows = list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))
    assert len(rows) == 11, "one of twelve was not read yet"
    assert rows[1] == {
        "method": "Relevance",
        "word_index": "0",
        "word": "das",
        "probability": "0.5",
        "index": "1",
        "token": "'=1+1",
        "side": "input",
        "score": "-2.0",
    }
    assert rows[-1]["side"] == "decoder"
    assert rows[-1]["score"] == "-0.5"


def test_arrays_and_labels_of_both_sides_are_in_the_npz_file():
    with np.load(io.BytesIO(export_figure(table(), provenance(), "npz"))) as arrays:
        np.testing.assert_array_equal(arrays["scores"], table().scores)
        np.testing.assert_array_equal(arrays["probabilities"], table().probabilities)
        assert arrays["predicted_text"].tolist() == ["das", "مرحبا", "alt"]
        assert arrays["tokens_segment"].tolist()[-1] == 1


def test_a_drawn_cell_has_the_colour_of_its_score():
    pixels = _pixels(table())
    assert pixels.shape == (4, 3, 3)
    assert pixels[0, 0].tolist() == list(FOR)
    assert pixels[1, 0].tolist() == list(AGAINST)
    assert pixels[3, 0].tolist() == [UNREAD] * 3
    assert pixels[0, 2].min() >= 252, "no evidence: paper"
    assert _pixels(table(positive=True))[1, 0].min() >= 252


def test_a_picture_follows_the_switch_and_the_chosen_word():
    plain = export_figure(table(), provenance(), "png")
    assert plain != export_figure(table(positive=True), provenance(), "png")
    assert plain != export_figure(table(marked=1), provenance(), "png")
    svg = export_figure(table(), provenance(), "svg").decode()
    assert "predicted →" in svg
    assert "50 %" in svg
    assert "A fact." in svg


@pytest.mark.parametrize(
    ("value", "limit", "text"),
    [
        (0.5, 2.0, ".50"),
        (-0.25, 0.9, "-.250"),
        (12.34, 40.0, "12.3"),
        (0.0123, 0.05, ".0123"),
        (-0.001, 2.0, ".00"),
        (-123.4, 500.0, "-123"),
        (2e-9, 3e-8, "2e-09"),
    ],
)
def test_numbers_in_cells_are_short(value, limit, text):
    assert _number(value, limit) == text


def test_a_page_of_its_own_holds_the_table():
    page = figure_html(table(), provenance()).decode()
    assert 'class="evidence_table"' in page
    assert "<b>old</b>" not in page


def test_the_record_names_method_and_words():
    found = evidence_provenance(table(), "model", "1", "text", (), layers=2)
    assert found.method == "Relevance"
    assert found.settings["target"] == "“a”; “b”; “c”"


# Blobs -------------------------------------------------------------------------------------------------------------


def test_a_blob_holds_scores_labels_and_probabilities():
    header, arrays = figures.unpack(evidence_table_payload(table(marked=2)))
    np.testing.assert_array_equal(arrays["scores"], table().scores)
    assert [entry["text"] for entry in header["predicted"]] == ["das", "مرحبا", "alt"]
    assert header["probabilities"][0] == 0.5
    assert header["state"] == {"marked": 2, "positive": False}
    assert header["panel"]["facts"] == ["A fact."]


def test_a_blob_refuses_scores_that_do_not_fit():
    with pytest.raises(ValueError, match=r"evidence_table_payload: scores must be \(3, 4\)"):
        evidence_table_payload(table(scores=np.zeros((4, 3), np.float32)))
    with pytest.raises(ValueError, match="evidence_table_payload: scores must be"):
        evidence_table_payload(table(predicted=()))


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-3, 5), st.text(max_size=3)),
    lambda inner: st.one_of(st.lists(inner, max_size=2), st.dictionaries(st.text(max_size=2), inner)),
)


@given(at=json_values, positive=json_values)
def test_only_what_fits_the_blob_is_believed_of_a_browser(at, positive):
    header, _ = figures.read_header(evidence_table_payload(table()))
    told = {"word": {"at": at, "input": header["input"]}, "view": {"positive": positive}}
    state = checked_table(told, header)
    fits = at is None or (isinstance(at, int) and not isinstance(at, bool) and 0 <= at < 3)
    assert ("marked" in state) == fits
    assert ("positive" in state) == isinstance(positive, bool)
    assert "marked" not in checked_table({"word": {"at": at, "input": "other"}}, header)
    assert checked_table(at, header) == {} or isinstance(at, dict)


# The view ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tiny random language models below the opened folder."""
    root = tmp_path_factory.mktemp("models")
    build = tiny.loaded
    byte_level = tiny.byte_level(roberta=True)
    build(root / "gpt2", "GPT2LMHeadModel", "GPT2Config", tiny.byte_level(), **tiny.GPT2)
    build(root / "masked", "BertForMaskedLM", "BertConfig", byte_level, **tiny.BERT)
    build(root / "bart", "BartForConditionalGeneration", "BartConfig", byte_level, **tiny.BART)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(root))
        yield


def page() -> None:
    """The view alone, of a model and methods in the address."""
    import streamlit as st

    from dashboard import cached, evidence_cache
    from dashboard.live import text_source
    from dashboard.selection import current
    from dashboard.views import evidence_every_word

    asked = st.query_params
    traced = cached.traced_text(asked["model"], None, "the house is old", asked.get("target"))
    found = evidence_every_word.show(
        text_source(traced),
        current().text.evidence,
        evidence_cache.subject(traced),
        tuple(filter(None, asked["methods"].split(","))),
    )
    st.session_state["record"] = found


def opened(model: str, methods: str, **more: str) -> AppTest:
    at = AppTest.from_function(page, default_timeout=60)
    for name, value in {"model": f"folder:{model}", "methods": methods, **more}.items():
        at.query_params[name] = value
    return at.run()


def ended(at: AppTest) -> AppTest:
    """Run again when the jobs have ended."""
    for job in list(evidence_cache.jobs()._jobs.values()):
        assert job.wait(60)
    at.run()
    assert not at.exception
    return at


@pytest.mark.parametrize(("model", "target"), [("gpt2", None), ("bart", "the day is great")])
def test_the_view_draws_a_table_and_gives_its_record(model_folders, model, target):
    more = {} if target is None else {"target": target}
    at = ended(opened(model, "leave_one_out,relevance", **more))
    header, arrays = component(at, "evidence_table")
    record = at.session_state["record"]
    np.testing.assert_array_equal(arrays["scores"], record.scores)
    assert header["title"] == "What every predicted word rests on · Leave one out"
    assert len(header["probabilities"]) == len(header["predicted"]) == arrays["scores"].shape[0]
    assert 0 < min(header["probabilities"]) < max(header["probabilities"]) < 1
    assert np.isnan(arrays["scores"]).any()
    assert any("Tokens were replaced by" in fact for fact in header["panel"]["facts"])
    at.selectbox(key=view_module.METHOD_KEY).set_value("relevance").run()
    header, _ = component(ended(at), "evidence_table")
    assert header["title"].endswith("· Relevance")
    assert not header["panel"]["signed"]
    if model == "bart":
        assert any("on special tokens" in fact for fact in header["panel"]["facts"])


def test_methods_without_a_table_say_why_and_are_not_offered(model_folders):
    at = ended(opened("bart", "rollout,attention"))
    assert component(at, "evidence_table")[0]["panel"]["method"] == "Attention"
    assert "Attention rollout follows the encoder" in shown(at)
    assert not at.selectbox
    at = opened("masked", "relevance")
    assert "masked model" in shown(at)
    assert at.session_state["record"] is None
    assert "Choose a method above." in shown(opened("gpt2", ""))


def test_a_job_runs_once_for_all_sessions_and_can_be_stopped(model_folders, monkeypatch):
    import analysis.evidence.every_word as core

    ended(opened("gpt2", "saliency"))
    monkeypatch.setattr(core, "every_word", lambda *_, **__: pytest.fail("computed again"))
    ended(opened("gpt2", "saliency"))
    monkeypatch.undo()

    plain = core.every_word

    def endless(*given: Any, progress: Any, **more: Any) -> Any:
        while True:
            progress(0.25)

    monkeypatch.setattr(core, "every_word", endless)
    at = opened("gpt2", "cdam")
    assert "The table appears when every word has had its turn." in shown(at)
    at.button(key="text_every_word_stop").click().run()
    at = ended(at)
    assert "Stopped: CDAM, every word." in shown(at)
    monkeypatch.setattr(core, "every_word", plain)
    at.button(key="text_every_word_again").click().run()
    assert component(ended(at), "evidence_table")[0]["panel"]["method"] == "CDAM"


def test_a_chosen_word_becomes_the_position_and_the_word_of_the_page(model_folders):
    at = ended(opened("gpt2", "cdam"))
    header, _ = component(at, "evidence_table")
    found = next(
        job.answer
        for key, job in evidence_cache.jobs()._jobs.items()
        if "every_word" in key and "cdam" in key
    )
    streamlit.session_state.pop("selection", None)
    try:
        told = {"word": {"at": 1, "input": header["input"]}, "view": {"positive": True}}
        streamlit.session_state[view_module.KEY] = told
        view_module._said(header, found)
        evidence = current().text.evidence
        assert (evidence.position, evidence.token) == (found.words[1].position, found.words[1].token)
        assert evidence.positive is True
        marked = view_module.record(found, evidence, _Source())
        assert marked.marked == 1
        told["word"]["at"] = None
        view_module._said(header, found)
        assert current().text.evidence.position is None
    finally:
        streamlit.session_state.pop("selection", None)
        streamlit.session_state.pop(view_module.KEY, None)


class _Source:
    """Of which a record needs the reading direction alone."""

    direction = "ltr"


# In a browser ------------------------------------------------------------------------------------------------------


@pytest.fixture
def browser_page(watched_page: WatchedPage) -> Any:
    """A page in which nothing goes wrong."""
    yield watched_page.page
    assert watched_page.errors == []
    assert watched_page.outside == []


def heard(page: Page, name: str) -> Any:
    """What the component told Python last under a name."""
    return [value for told, value in said(page, 1) if told == name][-1]


@pytest.mark.browser
def test_cells_have_colours_numbers_and_a_hint(browser_page: Page) -> None:
    page = browser_page
    show(page, "evidence_table", evidence_table_payload(table()))
    cells = page.locator(".table-frame td")
    assert cells.nth(0).evaluate("cell => cell.style.background") == "rgb({}, {}, {})".format(*FOR)
    assert cells.nth(3).evaluate("cell => cell.style.background") == "rgb({}, {}, {})".format(*AGAINST)
    assert cells.nth(3).text_content() == "−2.00"
    assert page.locator("td.is-unread").count() == 1
    assert page.locator(".table-share").all_text_contents() == ["50 %", "< 0.01 %", "100 %"]
    assert page.locator("tbody th").all_text_contents() == ["the", "=1+1", "<b>old</b>", "das"]
    assert page.locator("tr.is-own").count() == 1
    cells.nth(4).hover()
    assert tooltip(page)[:3] == ["−1", "“=1+1” for the word “مرحبا”", "50 % of the largest |score|"]
    page.locator("td.is-unread").hover()
    assert tooltip(page)[0] == "not read yet"
    page.get_by_role("button", name="Positive only").click()
    cut = cells.nth(3).evaluate("cell => cell.style.background")
    assert min(map(int, re.findall(r"\d+", cut))) >= 250, "no colour"
    assert heard(page, "view")["positive"] is True


@pytest.mark.browser
def test_a_word_is_chosen_by_its_head_a_cell_or_the_keys(browser_page: Page) -> None:
    page = browser_page
    show(page, "evidence_table", evidence_table_payload(table()))
    words = page.locator(".table-word")
    words.nth(1).click()
    assert heard(page, "word")["at"] == 1
    assert page.locator("td.is-marked").count() == 4
    words.nth(1).press("ArrowRight")
    page.keyboard.press("Enter")
    page.wait_for_function("window.said.some(([name, value]) => name === 'word' && value.at === 2)")
    send(page, evidence_table_payload(table(marked=2)))
    assert page.locator(".table-word.is-marked").text_content().startswith("alt")
    page.locator(".table-frame td").nth(0).click()
    page.wait_for_function("window.said.some(([name, value]) => name === 'word' && value.at === 0)")
    words.nth(0).focus()
    page.keyboard.press("Escape")
    page.wait_for_function("window.said.some(([name, value]) => name === 'word' && value.at === null)")
    assert page.locator(".is-marked").count() == 0


@pytest.mark.browser
def test_many_words_scroll_inside_the_frame_and_their_labels_stay(browser_page: Page) -> None:
    page = browser_page
    show(page, "evidence_table", evidence_table_payload(wide()), width=860)
    frame = page.locator(".table-frame")
    assert frame.evaluate("frame => frame.scrollWidth > frame.clientWidth")
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    frame.evaluate("frame => frame.scrollTo(1200, 300)")
    place, name = frame.bounding_box(), page.locator("tbody th").nth(20).bounding_box()
    assert place is not None
    assert name is not None
    assert name["x"] == pytest.approx(place["x"] + 1, abs=2), "the row's name is still there"
    head = page.locator(".table-word").nth(30).bounding_box()
    assert head is not None
    assert head["y"] == pytest.approx(place["y"] + 1, abs=2)
    assert head["width"] >= 48


def luminance(colour: list[float]) -> float:
    shares = np.array(colour) / 255
    linear = np.where(shares <= 0.04045, shares / 12.92, ((shares + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


@pytest.mark.browser
@pytest.mark.parametrize("dark", [False, True])
def test_numbers_stay_readable_on_their_colours(browser_page: Page, dark: bool) -> None:
    page = browser_page
    show(page, "evidence_table", evidence_table_payload(wide(12, 8)), dark=dark)
    ground = (DARK if dark else LIGHT)["background"]
    assert ground.startswith("#")
    for cell in page.locator(".table-frame td").all():
        back, ink = cell.evaluate("cell => [cell.style.background, cell.style.color]")
        tint = [float(part) for part in re.findall(r"\d+", back)]
        colour = {"rgb(0, 0, 0)": [0, 0, 0], "rgb(255, 255, 255)": [255, 255, 255]}[ink]
        darker, lighter = sorted((luminance(tint), luminance(colour)))
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5
