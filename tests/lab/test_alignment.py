"""Figures of the alignment explorer: the numbers are the translators', and sentences follow from them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from analysis.lab.alignment import (
    END_WORD,
    alignment_sheet,
    memory_sheet,
    recency_sentence,
    surprise_sheet,
)
from analysis.translation import LengthScore, PartScore, TranslatorScores, forced, step_by_step, translate
from analysis.translation_words import END
from analysis.translators import TRANSLATORS
from dashboard.views.lab_alignment import translator

SCORINGS = tuple(model.folder.removeprefix("translator-") for model in TRANSLATORS)
TEXT = "I love you."


@pytest.mark.parametrize("scoring", ["additive", "dot", "general"])
def test_the_matrix_is_the_decoders_attention(scoring):
    steps = step_by_step(translator(scoring), TEXT)
    sheet = alignment_sheet({scoring: steps, "none": step_by_step(translator("none"), TEXT)})
    (matrix,) = sheet.matrices  # the twin has none
    translation = translate(translator(scoring), TEXT, beam=1)
    assert matrix.rows == (*translation.target, END_WORD)
    assert matrix.columns == translation.source
    np.testing.assert_allclose(matrix.values[:-1], translation.alignment, atol=1e-6)
    np.testing.assert_allclose(matrix.values.sum(-1), 1, atol=1e-5)


def test_there_is_no_sheet_without_attention():
    assert alignment_sheet({"none": step_by_step(translator("none"), TEXT)}) is None


def test_each_step_tells_the_likeliest_words():
    for scoring in SCORINGS:
        steps = step_by_step(translator(scoring), TEXT, beam=1).steps
        assert steps[-1].word == END
        for step in steps:
            chances = [each.probability for each in step.candidates]
            assert step.candidates[0].word == step.word  # greedy
            assert chances == sorted(chances, reverse=True)
            assert sum(chances) <= 1 + 1e-6


def test_surprise_is_minus_log_probability():
    eyes = {scoring: forced(translator(scoring), TEXT, "Je t'aime.") for scoring in ("additive", "none")}
    sheet = surprise_sheet(eyes, whose="given")
    for curve, scoring in zip(sheet.panels[0].curves, eyes, strict=True):
        assert curve.labels == ("Je", "t'", "aime", ".", END_WORD)
        assert math.isclose(-curve.y.sum(), eyes[scoring].log_probability, rel_tol=1e-9)
    assert (sheet.panels[0].curves[0].y >= 0).all()


def scores(first: float, last: float) -> TranslatorScores:
    parts = tuple(
        PartScore(parts=2, part=part, texts=10, recall=recall, log_prob=-1.0, log_prob_alone=-1.0)
        for part, recall in enumerate((first, last))
    )
    lengths = (LengthScore(1, 3, 50, 40.0, 0.8), LengthScore(4, 4, 50, 30.0, 0.5))
    return TranslatorScores(100, 200, 35.0, 34.0, 0.2, 33.0, lengths, parts)


@pytest.mark.parametrize(
    ("first", "last", "said"),
    [
        (0.5, 0.25, "50 % of the first sentence's words, more than the 25 %"),
        (0.25, 0.5, "25 % of the first sentence's words, less than the 50 %"),
        (0.251, 0.254, "25 % of the first sentence's words, as much as the 25 %"),
    ],
)
def test_what_is_forgotten_is_told_from_the_numbers(first, last, said):
    assert said in recency_sentence({"additive": scores(first, last)})


def test_the_twin_is_judged_by_what_it_loses():
    assert "the first sentence comes through worst: this is the recency bias" in recency_sentence(
        {"none": scores(0.2, 0.4)}
    )
    assert "the second sentence comes through worst: no recency bias" in recency_sentence(
        {"none": scores(0.4, 0.2)}
    )
    assert "recency" not in recency_sentence({"additive": scores(0.2, 0.4)})


def test_curves_of_memory_are_the_measured_ones():
    both = {"additive": scores(0.5, 0.4), "none": replace(scores(0.1, 0.4), sentences=100)}
    by_length, in_a_row = memory_sheet(both).panels
    assert [curve.name for curve in by_length.curves] == ["Additive", "Without attention"]
    assert by_length.curves[0].labels == ("1 to 3", "4")
    np.testing.assert_allclose(by_length.curves[0].y, [80, 50])
    np.testing.assert_allclose(in_a_row.curves[1].y, [10, 40])
    assert in_a_row.title.startswith("Two sentences")


def test_the_shipped_scores_have_every_length_and_part():
    for scoring in SCORINGS:
        found = translator(scoring).scores
        assert found is not None
        assert found.lengths
        assert {each.parts for each in found.parts} >= {2}


def test_the_same_words_come_out_however_often_they_are_asked_for():
    first, second = (step_by_step(translator("additive"), TEXT).alignment for _ in range(2))
    assert torch.equal(first, second)
