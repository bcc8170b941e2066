"""Targets are the numbers that they say, and each model is offered those that make sense for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from analysis.evidence.passes import forward_pass
from analysis.evidence.targets import (
    Outputs,
    class_logit,
    class_probability,
    concept_similarity,
    default_pooling,
    embedding_similarity,
    logit_difference,
    mean_direction,
    offered_targets,
    predicted_value,
    token_log_probability,
)
from analysis.predictions import prediction_of
from attn_core.errors import UnsupportedModelError
from tests.evidence.oracle_models import oracle, pixels_of, small_vit

LOGITS = st.lists(st.floats(-15, 15), min_size=2, max_size=8)


def outputs_of(logits=None, hidden=None, kept=(1, 2)):
    return Outputs(
        None if logits is None else torch.tensor(logits, dtype=torch.float64),
        None if hidden is None else torch.tensor(hidden, dtype=torch.float64),
        torch.tensor(kept),
    )


@given(rows=st.lists(LOGITS, min_size=1, max_size=1), temperature=st.floats(0.3, 4))
def test_targets_of_a_head_follow_their_definitions(rows, temperature):
    outputs, values = outputs_of(rows), np.array(rows[0])
    last = len(values) - 1
    assert float(class_logit(last).value(outputs)) == values[last]
    assert float(predicted_value(0).value(outputs)) == values[0]
    assert float(logit_difference(0, last).value(outputs)) == pytest.approx(values[0] - values[last])
    powers = np.exp(values / temperature - (values / temperature).max())
    probability = class_probability(0, temperature=temperature).value(outputs)
    assert float(probability) == pytest.approx(powers[0] / powers.sum())


@given(rows=st.lists(LOGITS, min_size=1, max_size=1), temperature=st.floats(0.3, 4))
def test_a_class_that_stands_by_itself_has_a_probability_of_its_own(rows, temperature):
    outputs, values = outputs_of(rows), np.array(rows[0])
    found = class_probability(1, temperature=temperature, kind="sigmoid").value(outputs)
    assert float(found) == pytest.approx(1 / (1 + np.exp(-values[1] / temperature)))


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_the_explained_probability_is_the_one_that_is_predicted(kind):
    logits = torch.tensor([0.4, -1.2, 2.5])
    shown = prediction_of(logits, ("a", "b", "c"), kind=kind, temperature=1.7)
    for index in range(3):
        target = class_probability(index, temperature=shown.temperature, kind=shown.kind)
        explained = target.value(outputs_of([logits.tolist()]))
        assert float(explained) == pytest.approx(float(shown.scores[index]), rel=1e-6)


def test_numbers_that_are_no_probabilities_are_refused():
    with pytest.raises(ValueError, match="kind must be softmax or sigmoid but is 'value'"):
        class_probability(0, kind="value")
    with pytest.raises(ValueError, match=r"temperature must be above 0 but is 0\.0"):
        class_probability(0, temperature=0.0)


def test_a_token_is_explained_by_its_log_probability():
    logits = np.random.default_rng(0).normal(size=(1, 4, 6))
    found = token_log_probability(2, 5).value(outputs_of(logits.tolist()))
    row = logits[0, 2]
    assert float(found) == pytest.approx(row[5] - np.log(np.exp(row).sum()))
    with pytest.raises(ValueError, match="position and token must be below 4 and 6 but are 4 and 0"):
        token_log_probability(4, 0).value(outputs_of(logits.tolist()))
    with pytest.raises(UnsupportedModelError, match="predicts no tokens"):
        token_log_probability(0, 0).value(outputs_of([[1.0, 2.0]]))


def test_concepts_are_dot_products_and_likeness_is_a_cosine():
    hidden = np.random.default_rng(1).normal(size=(2, 4, 3))
    outputs, direction = outputs_of(hidden=hidden.tolist()), torch.tensor([1.0, -2.0, 0.5])
    first = concept_similarity(direction, "c", pooling="first").value(outputs)
    np.testing.assert_allclose(first.numpy(), hidden[:, 0] @ direction.numpy())
    mean = embedding_similarity(direction, "c", pooling="mean").value(outputs)
    pooled = hidden[:, [1, 2]].mean(1)
    expected = pooled @ direction.numpy() / np.linalg.norm(pooled, axis=1) / np.linalg.norm(direction.numpy())
    np.testing.assert_allclose(mean.numpy(), expected)
    same = embedding_similarity(torch.tensor(pooled[0]), "itself", pooling="mean").value(outputs)
    assert float(same[0]) == pytest.approx(1.0)
    with pytest.raises(ValueError, match="direction must not be 0"):
        concept_similarity(torch.zeros(3), "nothing", pooling="first")
    with pytest.raises(ValueError, match="at least one example"):
        mean_direction([])
    with pytest.raises(UnsupportedModelError, match="last hidden state of this model was not seen"):
        concept_similarity(direction, "c", pooling="first").value(outputs_of([[1.0]]))


def test_keys_tell_targets_apart():
    direction = torch.tensor([1.0, 2.0])
    targets = [
        class_logit(0), class_logit(1), class_probability(0), class_probability(0, temperature=2.0),
        class_probability(0, kind="sigmoid"),
        logit_difference(0, 1), logit_difference(1, 0), token_log_probability(0, 1), token_log_probability(1, 0),
        concept_similarity(direction, "a", pooling="first"), concept_similarity(direction, "b", pooling="first"),
        concept_similarity(-direction, "a", pooling="first"), concept_similarity(direction, "a", pooling="mean"),
        embedding_similarity(direction, "a", pooling="first"),
    ]  # fmt: skip
    assert len({target.key for target in targets}) == len(targets)
    assert class_logit(1, "dog").key == class_logit(1).key


def test_a_model_is_offered_what_makes_sense_and_told_the_rest():
    vit = small_vit()
    refusals = {offer.kind: offer.refusal for offer in offered_targets(vit)}
    assert refusals["class_logit"] == refusals["logit_difference"] == refusals["concept_similarity"] == ""
    assert refusals["predicted_value"] == "The model has no regression head."
    assert refusals["token_log_probability"] == "The model predicts no tokens."
    assert default_pooling(vit) == "first"
    bare = replace(vit, kind=None, labels=None, task="feature-extraction")
    refusals = {offer.kind: offer.refusal for offer in offered_targets(bare)}
    assert refusals["class_logit"] == refusals["logit_difference"] == "The model has no classification head."
    assert refusals["embedding_similarity"] == ""
    regression = replace(vit, kind="value", labels=("score",))
    refusals = {offer.kind: offer.refusal for offer in offered_targets(regression)}
    assert refusals["predicted_value"] == ""
    assert refusals["class_logit"]
    assert small_vit().labels is not None


def test_a_class_that_is_not_there_is_refused():
    arrays, _ = oracle("03_cdam", "vit_noise")
    run = forward_pass(small_vit(), pixels_of(arrays["pixel_values"], patch=8))
    np.testing.assert_allclose([run.value(class_logit(i)) for i in range(5)], arrays["logits"], rtol=1e-6)
    with pytest.raises(ValueError, match="index must be between 0 and 4 but is 5"):
        run.value(class_logit(5))
    with pytest.raises(ValueError, match="must be two classes but both are 3"):
        logit_difference(3, 3)
    with pytest.raises(UnsupportedModelError, match="no classification head; choose a concept"):
        class_logit(0).value(Outputs(None, None, torch.arange(2)))
