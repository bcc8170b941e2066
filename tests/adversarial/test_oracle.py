"""Every number of the oracle of Jain & Wallace 2019, through our classifier and checks, at its stated tolerance."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from analysis.adversarial.agreement import gradient_importance, kendall, leave_one_out
from analysis.adversarial.distances import jensen_shannon
from analysis.adversarial.permutation import permutations
from analysis.adversarial.rows import FreeRows, TextBatch, classifier_rows
from analysis.adversarial.search import exact_search, penalty_search, projected_search
from attn_core.models.classifier import AttentionClassifier
from tests.adversarial.oracle_model import oracle_arrays, oracle_model


@pytest.fixture(scope="module")
def arrays() -> dict[str, Any]:
    return {name: torch.from_numpy(np.asarray(values)) for name, values in oracle_arrays().items()}


@pytest.fixture(scope="module")
def classifier() -> AttentionClassifier:
    """The oracle's model as ours: its one sigmoid output z becomes the logits (0, z) of two classes."""
    theirs = oracle_model()
    ours = AttentionClassifier(30, 2, embedding=8, hidden=6, attention_width=6).double()
    with torch.no_grad():
        ours.embedding.load_state_dict(theirs.embedding.state_dict())
        ours.encoder.load_state_dict(theirs.encoder.state_dict())
        ours.scores.project.load_state_dict(theirs.project.state_dict())  # type: ignore[union-attr]
        ours.scores.vector.load_state_dict(theirs.vector.state_dict())  # type: ignore[union-attr]
        ours.output.weight.zero_()
        ours.output.bias.zero_()
        ours.output.weight[1], ours.output.bias[1] = theirs.output.weight[0], theirs.output.bias[0]
    return ours.eval()


@pytest.fixture(scope="module")
def batch(arrays: dict[str, Any]) -> TextBatch:
    tokens, lengths = arrays["tokens"], arrays["lengths"]
    places = torch.arange(tokens.shape[1])
    return TextBatch(tokens, (places >= 1) & (places <= lengths[:, None] - 2))


@pytest.fixture(scope="module")
def rows(classifier: AttentionClassifier, batch: TextBatch) -> FreeRows:
    return classifier_rows(classifier, batch)


@pytest.fixture(scope="module")
def searched(rows: FreeRows, arrays: dict[str, Any]) -> Any:
    found = penalty_search(rows, start=arrays["adversarial_start"][:, :, None], epsilon=0.01)
    return SimpleNamespace(found=found, answers=rows.answers(found.last))


def test_attention_and_prediction(rows: FreeRows, arrays: dict[str, Any]) -> None:
    assert_close(rows.observed[:, 0], arrays["attention"], rtol=1e-8, atol=1e-12)
    assert_close(rows.said()[:, 1:], arrays["prediction"], rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize("through", [False, True])
def test_gradients(
    classifier: AttentionClassifier, batch: TextBatch, arrays: dict[str, Any], through: bool
) -> None:
    expected = arrays["grad_through_attention_normalised" if through else "grad_normalised"]
    found = gradient_importance(classifier, batch, through_attention=through)
    assert_close(found, expected, rtol=1e-8, atol=1e-10)


def test_leave_one_out(classifier: AttentionClassifier, batch: TextBatch, arrays: dict[str, Any]) -> None:
    expected = (arrays["loo_prediction"] - arrays["prediction"]).abs() * batch.inside
    assert_close(leave_one_out(classifier, batch, items=7), expected, rtol=1e-8, atol=1e-10)


def test_kendall(arrays: dict[str, Any], batch: TextBatch) -> None:
    gradient = kendall(arrays["attention"], arrays["grad_normalised"], batch.inside)
    assert_close(gradient.tau, arrays["tau_attention_gradient"], rtol=0.0, atol=1e-9)
    assert_close(gradient.p, arrays["p_attention_gradient"], rtol=0.0, atol=1e-9)
    change = (arrays["loo_prediction"] - arrays["prediction"]).abs()
    left_out = kendall(arrays["attention"], change, batch.inside)
    assert_close(left_out.tau, arrays["tau_attention_loo"], rtol=0.0, atol=1e-9)
    assert_close(left_out.p, arrays["p_attention_loo"], rtol=0.0, atol=1e-9)
    both = kendall(arrays["grad_normalised"], change, batch.inside)
    assert_close(both.tau, arrays["tau_gradient_loo"], rtol=0.0, atol=1e-9)


def test_permutations(rows: FreeRows, arrays: dict[str, Any]) -> None:
    index = arrays["permutation_index"].long()[:, :, None]
    found = permutations(rows, index=index)
    assert_close(found.answers[..., 1], arrays["permutation_prediction"], rtol=0.0, atol=1e-8)
    assert_close(found.median, arrays["permutation_median_diff"], rtol=0.0, atol=1e-8)
    assert_close(found.most, arrays["max_attention"], rtol=0.0, atol=1e-8)


def test_adversarial_attention_after_the_papers_500_steps(
    searched: Any, rows: FreeRows, arrays: dict[str, Any]
) -> None:
    assert_close(searched.found.last[:, :, 0], arrays["adversarial_attention"], rtol=0.0, atol=1e-3)
    assert_close(searched.answers[..., 1], arrays["adversarial_prediction"], rtol=0.0, atol=1e-3)
    assert_close(rows.divergence(searched.found.last), arrays["adversarial_jsd"], rtol=0.0, atol=1e-3)


@pytest.mark.parametrize(("epsilon", "name"), [(0.05, "emax_jsd"), (0.01, "emax_jsd_eps0.01")])
def test_the_papers_evaluation(
    searched: Any, rows: FreeRows, arrays: dict[str, Any], epsilon: float, name: str
) -> None:
    """The last step's attention, the observed one counting as a candidate."""
    apart = rows.divergence(searched.found.last)
    inside = rows.change(searched.answers, rows.said()) <= epsilon
    found = torch.where(inside, apart, 0.0).max(-1).values
    assert_close(found, arrays[name], rtol=0.0, atol=1e-3)


def test_no_search_of_ours_finds_less_and_none_more_than_the_exact_one(
    searched: Any, rows: FreeRows, arrays: dict[str, Any]
) -> None:
    exact = exact_search(rows, epsilon=0.01).farthest
    projected = projected_search(rows, epsilon=0.01, candidates=32, steps=300, seed=1).farthest
    for found in (exact, projected, searched.found.farthest):
        assert bool((found >= arrays["emax_jsd_eps0.01"] - 0.02).all())
        assert bool((found <= exact + 1e-9).all())
    assert bool((exact >= arrays["emax_jsd_eps0.01"]).all())
    assert bool((exact_search(rows, epsilon=0.05).farthest >= arrays["emax_jsd"]).all())


def test_the_objective(rows: FreeRows, arrays: dict[str, Any]) -> None:
    """Their loss at the stored attention, from our distances: divergence, change, divergence of pairs."""
    weights: Tensor = arrays["adversarial_attention"][:, :, None]
    apart = rows.divergence(weights)
    change = (rows.answers(weights) - rows.said()[:, None]).abs()[..., 1]
    cross = jensen_shannon(weights[:, :, None], weights[:, None])[..., 0]
    assert_close(apart, arrays["objective_jsd"], rtol=1e-6, atol=1e-6)
    assert_close(change, arrays["objective_diff"], rtol=1e-6, atol=1e-6)
    assert_close(cross, arrays["objective_cross_jsd"], rtol=1e-6, atol=1e-6)
    loss = (500 * (change - 0.01).relu() - apart).sum() - cross.sum(0).mean()
    assert_close(loss, arrays["objective_loss"].to(loss), rtol=1e-6, atol=1e-6)
