"""Predictions: probabilities from logits, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from analysis.predictions import prediction_of
from dashboard.prediction_line import percent, prediction_html

LOGITS = st.lists(st.floats(-20, 20), min_size=1, max_size=9)


@given(values=LOGITS, temperature=st.floats(0.2, 5))
def test_probabilities_are_the_softmax_of_cooled_logits(values, temperature):
    labels = tuple(map(str, range(len(values))))
    found = prediction_of(torch.tensor(values), labels, temperature=temperature)
    scaled = np.array(values, dtype=np.float64) / temperature
    expected = np.exp(scaled - scaled.max())
    np.testing.assert_allclose(found.scores.numpy(), expected / expected.sum(), atol=1e-6)
    best = found.best(len(values))
    assert [score for _, score, _ in best] == sorted((score for _, score, _ in best), reverse=True)
    assert all(labels[index] == label for label, _, index in best)


def test_other_heads_are_read_as_what_they_are():
    logits = torch.tensor([2.0, -1.0])
    several = prediction_of(logits, ("a", "b"), kind="sigmoid")
    assert several.scores.tolist() == pytest.approx([0.880797, 0.268941], abs=1e-5)
    value = prediction_of(torch.tensor([3.5]), ("score",), kind="value")
    assert value.scores.tolist() == [3.5]
    assert "Predicted value" in prediction_html(value)
    assert "3.5" in prediction_html(value)


def test_bad_input_is_told():
    with pytest.raises(ValueError, match=r"logits must be \(2,\)"):
        prediction_of(torch.zeros(3), ("a", "b"))
    with pytest.raises(ValueError, match="temperature must be above 0"):
        prediction_of(torch.zeros(2), ("a", "b"), temperature=0.0)


def test_labels_of_a_model_are_shown_as_text():
    hostile = "<img src=x onerror=alert(1)>"
    html = prediction_html(prediction_of(torch.tensor([1.0, 0.0]), (hostile, "b")))
    assert "<img" not in html
    assert "&lt;img" in html


@pytest.mark.parametrize(
    ("share", "words"),
    [(0.0, "0.0 %"), (0.00001, "< 0.1 %"), (0.004, "0.4 %"), (0.83, "83 %"), (0.994, "99.4 %"),
     (0.9999, "> 99.9 %"), (1.0, "100.0 %")],
)  # fmt: skip
def test_shares_in_words(share, words):
    assert percent(share) == words
