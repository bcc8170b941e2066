"""A part of a long text says where it stands: on the page, in files, and in the Heads view over windows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from analysis.export import export_figure
from analysis.figure_data import EvidencePanel, EvidenceWords, TokenLabel, TokenScores
from analysis.samples import sample_corpus
from analysis.visible import shown_in_words
from dashboard import figures
from dashboard.views.text_evidence_document import part_of_evidence
from dashboard.views.text_rollout import part_of_scores
from tests.sample_figures import provenance
from tests.test_app import component, shown
from tests.test_evidence_views import classifier, finished
from tests.test_heads_view import grid_of, opened

TOKENS = tuple(TokenLabel(f"word{index}", f"word{index}") for index in range(1500))
SCORES = np.linspace(0, 1, 1500, dtype=np.float32)


def rows(figure: Any) -> list[str]:
    text = export_figure(figure, provenance(), "csv").decode()
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_a_part_of_a_rollout_counts_from_the_beginning_of_the_text() -> None:
    part = part_of_scores(TokenScores(SCORES, TOKENS, source=1030), slice(1024, 1500))
    assert rows(part)[0] == "index,token,score"
    assert rows(part)[1].startswith('1024,"word1024",0.68')
    assert "Row of token 1030 “word1030”" in shown_in_words(part)
    header, _ = figures.read_header(figures.token_strip_payload(part))
    assert (header["start"], header["state"]["source"]) == (1024, 6)


def test_a_part_without_the_token_whose_row_it_is_names_it() -> None:
    part = part_of_scores(TokenScores(SCORES, TOKENS, title="rollout", source=1030), slice(0, 512))
    assert part.source is None
    assert part.title == "rollout, tokens 0 to 511, row of token 1,030 “word1030”"


def test_a_part_of_evidence_counts_from_the_beginning_of_the_text() -> None:
    panel = EvidencePanel("CDAM", "good", True, 1.0, "It pushes.", "Last layer alone.")
    view = EvidenceWords(SCORES[None], TOKENS, (panel,), marked=1030)
    part = part_of_evidence(view, slice(1024, 1500))
    assert rows(part)[1].startswith('0,"CDAM","good",1024,"word1024",0.68')
    assert part.marked == 6
    assert part_of_evidence(replace(view, marked=3), slice(1024, 1500)).marked is None


# The Heads view over a document -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def document() -> AppTest:
    """The Heads view of a document of about 620 tokens, which MiniLM reads in two windows."""
    at = opened(model="sentiment", over="input")
    at.text_area(key="text_a").set_value("\n".join(sample_corpus()[:32])).run()
    return finished(finished(at))


@classifier
def test_heads_over_a_document_count_its_windows(document: AppTest) -> None:
    header = grid_of(document)
    assert header["title"].startswith("this text in 2 overlapping windows · 1,024 tokens")
    assert (header["layers"], header["heads"]) == (6, 12)
    assert any("One input is no evidence of what a head is for" in note for note in header["notes"])
    _, arrays = component(document, "head_grid")
    assert (6, 12, 64, 64) in [array.shape for array in arrays.values()]  # thumbnails of the document
    assert "tokens in 2 windows of 512" in shown(document)


@classifier
@pytest.mark.parametrize("worth", ["gradient", "zero"])
def test_what_heads_are_worth_is_not_told_of_a_document(document: AppTest, worth: str) -> None:
    document.selectbox(key="text_heads_worth").set_value(worth).run()
    told = shown(finished(document))
    assert (
        "Importance: The text is read in 2 windows of 512 tokens, and this needs one pass over the whole"
        in told
    )
    assert "open one window alone" in told
    assert not any("Importance" in number["title"] for number in grid_of(document)["numbers"])
