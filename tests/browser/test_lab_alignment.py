"""The alignment component alone in a page: steps, matrix, percentages, what it tells Python, odd words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

from analysis.translation import Candidate, DecoderStep, StepByStep
from dashboard.alignment_payload import alignment_payload
from tests.browser.component_page import ComponentPage

if TYPE_CHECKING:
    from tests.conftest import WatchedPage

HOSTILE = "<img src=x onerror=alert(1)>"
ROWS = ((0.9, 0.06, 0.04), (0.2, 0.3, 0.5), (0.1, 0.8, 0.1))


def steps(words: tuple[str, ...] = ("je", "t'", "aime"), *, attends: bool = True) -> StepByStep:
    """A translation of three words with the rows above."""
    taken = tuple(
        DecoderStep(
            word,
            0.5,
            (Candidate(word, 0.5), Candidate("autre", 0.25)),
            torch.tensor(row) if attends else None,
        )
        for word, row in zip(words, ROWS, strict=True)
    )
    return StepByStep(("I", "love", HOSTILE), (2,), (), taken, " ".join(words))


@pytest.fixture
def board(watched_page: WatchedPage) -> ComponentPage:
    """Two translators, one with attention, at the first word."""
    page = ComponentPage(watched_page.page, "alignment")
    page.draw(alignment_payload({"additive": steps(), "none": steps(attends=False)}, step=0))
    return page


def shares(board: ComponentPage) -> list[str]:
    """The percentages under the source words of the first translator."""
    panel = board.page.locator(".alignment-panel").first
    return [text.strip() for text in panel.locator(".alignment-source i").all_text_contents()]


def filled(board: ComponentPage) -> int:
    """Cells of the matrix that are coloured."""
    return int(
        board.page.eval_on_selector_all(
            ".alignment-matrix td[data-row]", "cells => cells.filter(cell => cell.style.background).length"
        )
    )


def test_the_matrix_fills_up_as_the_decoder_goes_on(board):
    assert shares(board) == ["90 %", "6 %", "4 %"]
    assert filled(board) == 3
    board.page.get_by_role("button", name="One word on").click()
    assert shares(board) == ["20 %", "30 %", "50 %"]
    assert filled(board) == 6
    said = board.page.locator(".alignment-said").first.text_content()
    assert said == f"“t'” ← {HOSTILE} 50 %, love 30 %, I 20 %"
    assert board.wait_for_word(1)["step"] == 1


def test_past_the_end_the_whole_translation_is_told(board):
    board.page.get_by_role("button", name="To the whole translation").click()
    assert filled(board) == 9
    assert shares(board) == ["", "", ""]
    assert (
        board.page.locator(".alignment-said")
        .first.text_content()
        .startswith("“je t' aime” · log-probability −2.08")
    )
    assert board.page.get_by_role("button", name="One word on").get_attribute("aria-disabled") == "true"


def test_it_plays_to_the_end_by_itself(board):
    board.page.get_by_role("button", name="Watch the words come").click()
    assert board.wait_for_word(1)["step"] == 3
    assert filled(board) == 9
    assert len(board.said()) == 1  # Python hears of the end alone


def test_without_attention_there_is_no_matrix(board):
    last = board.page.locator(".alignment-panel").last
    assert last.locator(".alignment-matrix").count() == 0
    assert "last state" in last.locator(".alignment-nothing").text_content()
    assert last.locator(".alignment-said").text_content() == "“je” comes from the last state alone."


def test_words_are_shown_as_they_are(board):
    assert board.page.locator("img").count() == 0
    assert board.page.locator(".alignment-source b").nth(2).text_content() == HOSTILE
    assert "is-unknown" in board.page.locator(".alignment-source b").nth(2).get_attribute("class")


def test_keys_walk_and_a_click_on_a_row_goes_there(board):
    board.page.get_by_role("button", name="One word on").focus()
    board.page.keyboard.press("End")
    assert filled(board) == 9
    board.page.keyboard.press("Home")
    assert filled(board) == 3
    board.page.locator(".alignment-matrix th[data-row='2']").click()
    assert shares(board) == ["10 %", "80 %", "10 %"]


def test_a_cell_tells_its_exact_value(board):
    board.page.locator(".alignment-matrix td[data-row='0'][data-column='1']").hover()
    assert board.page.locator(".view-tooltip > *").all_text_contents() == ["0.06", "“je” looks at “love”"]
    board.page.locator(".alignment-matrix td[data-row='2'][data-column='1']").hover()
    assert board.page.locator(".view-tooltip").is_hidden()  # not produced yet


def test_an_old_echo_from_python_does_not_throw_the_walk_back(board):
    board.page.get_by_role("button", name="One word on").click()
    board.draw(alignment_payload({"additive": steps(), "none": steps(attends=False)}, step=0))
    assert filled(board) == 6
    board.draw(alignment_payload({"additive": steps(("tu", "m'", "aimes"))}, step=2))
    assert filled(board) == 9  # another translation starts where Python says


def test_a_long_sentence_stays_inside_its_panel(watched_page):
    words = tuple(f"mot{index}" for index in range(40))
    even = torch.full((60,), 1 / 60)
    taken = tuple(DecoderStep(word, 0.5, (Candidate(word, 0.5),), even) for word in words)
    found = StepByStep(tuple(f"word{index}" for index in range(60)), (), (), taken, " ".join(words))
    board = ComponentPage(watched_page.page, "alignment", width=640)
    board.draw(alignment_payload({"additive": found, "dot": found}, step=40))
    assert board.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    for panel in board.page.locator(".alignment-panel").all():
        assert panel.evaluate("element => element.scrollWidth <= element.clientWidth")
    assert filled(board) == 2 * 40 * 60
