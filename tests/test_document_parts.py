"""A part of a long text says where it stands: on the page, in files, and in the Heads view over windows."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from analysis.export import export_figure, figure_name
from analysis.figure_data import (
    EvidencePanel,
    EvidenceWords,
    MatrixView,
    ModelView,
    TokenLabel,
    TokenScores,
)
from analysis.samples import sample_corpus
from analysis.visible import shown_in_words
from dashboard import figures, long_runs
from dashboard.document_charts import document_strip
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
    assert shown_in_words(part).startswith("476 tokens, 1024 to 1499 of the input.")
    assert shown_in_words(replace(part, start=0, source=None)).startswith("476 tokens.")
    assert figure_name(part, provenance(), model="m").endswith("_from-1024")
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
    assert shown_in_words(part).startswith("476 words, 1024 to 1499 of the input.")
    assert "_from-1024" in figure_name(part, provenance(), model="m")
    assert part_of_evidence(replace(view, marked=3), slice(1024, 1500)).marked is None


def test_thumbnails_of_a_long_text_say_what_they_stand_for() -> None:
    """A file has the record alone: 64 × 64 cells of 1,500 tokens are not 64 × 64 tokens."""
    maps = np.random.default_rng(0).random((2, 3, 64, 64), dtype=np.float32)
    view = ModelView(thumbnails=maps, sizes=((1500, 1500),) * 2)
    assert (
        "64 × 64 cells each, each the largest weight of its block of 1,500 × 1,500 tokens,"
        in shown_in_words(view)
    )
    header, _ = figures.read_header(figures.model_view_payload(view))
    assert header["tokens"] == [[1500, 1500]] * 2
    document = json.loads(export_figure(view, provenance(), "json"))
    assert document["choices"]["sizes"] == [[1500, 1500]] * 2
    assert "block" not in shown_in_words(replace(view, sizes=None))


def test_a_matrix_says_how_many_cells_its_picture_has() -> None:
    weights = np.zeros((1500, 1500), np.float32)
    view = MatrixView(weights=weights, rows=TOKENS, columns=TOKENS)
    assert "The picture shows the maximum of each block (1024 × 1024 cells)." in shown_in_words(view)
    assert "block" not in shown_in_words(replace(view, zoom=(0, 1024, 400, 1424)))


@pytest.mark.parametrize("length", [100, 160, 1500, 10_442])
def test_the_strip_has_no_gaps_between_its_bars(length: int) -> None:
    """Bars of 65 and of 66 tokens lie edge to edge; a gap would look like a score of nought."""
    figure = document_strip(np.ones(length, np.float32), shown=slice(0, 50), signed=False, unit="token")
    (bars,) = figure.data
    middles, widths = np.array(bars.x), np.array(bars.width)
    np.testing.assert_allclose(middles[:-1] + widths[:-1] / 2, middles[1:] - widths[1:] / 2)
    assert (middles[0] - widths[0] / 2, middles[-1] + widths[-1] / 2) == (-0.5, length - 0.5)
    np.testing.assert_allclose(bars.y, widths)


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
    tokens = re.search(r"([\d,]+) tokens in 2 windows of 512", shown(document))
    assert tokens is not None
    assert header["title"] == f"this text in 2 overlapping windows · {tokens[1]} tokens", "each token once"
    assert "No 95 % intervals: the text holds 1 window side by side" in " ".join(header["notes"])
    assert (header["layers"], header["heads"]) == (6, 12)
    assert any("One input is no evidence of what a head is for" in note for note in header["notes"])
    _, arrays = component(document, "head_grid")
    assert (6, 12, 64, 64) in [array.shape for array in arrays.values()]  # thumbnails of the document


@classifier
def test_intervals_over_a_document_count_what_shares_no_token() -> None:
    """Eleven windows, half shared; five stand side by side: of a mean of five the spread is σ / √5.

    The quantiles of 200 samples are off by a tenth or so; with every window counted it is 0.67 of that.
    """
    at = opened(model="sentiment", over="input", show="ranking")
    at.text_area(key="text_a").set_value("\n".join((*sample_corpus(), *sample_corpus()[:45]))).run()
    told = shown(at := finished(finished(at)))
    assert "95 % intervals count 5 independent inputs: so many of the 11 windows stand side by side" in told
    ranking = at.dataframe[0].value
    width = (ranking["to"] - ranking["from"]).mean()
    survey = next(
        kept.value
        for key, kept in long_runs.kept()._answers.items()
        if key[0] == "survey" and kept.value.inputs == 11
    )
    table = survey.tables["encoder"]
    each = table.totals["entropy"] / table.counts["entropy"][:, None, None]
    expected = 2 * 1.96 * each.std(0).mean() / np.sqrt(5)
    assert width == pytest.approx(expected, rel=0.2)


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
