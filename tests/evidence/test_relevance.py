"""Relevance against the authors' program and the library's own autograd, by a planted cause, and without a trace."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch.testing import assert_close

from analysis.evidence.attention import gradient_rollout
from analysis.evidence.explanation import kept_positions
from analysis.evidence.passes import forward_pass
from analysis.evidence.relevance import relevance, relevance_matrix, source_relevance_matrix
from analysis.evidence.targets import class_logit, concept_similarity, logit_difference, token_log_probability
from analysis.inputs import encode_text
from analysis.models import load_model
from attn_core.budget import memory_budget
from attn_core.errors import MemoryBudgetError, UnsupportedModelError
from tests import input_helpers as tiny
from tests.capture_helpers import assert_same_state, state_of
from tests.evidence.attention_runs import (
    FAMILIES,
    SENTENCE,
    reference,
    run_of_text,
    save,
    text_inputs,
    tiny_bert,
)
from tests.evidence.oracle_models import PICTURES, oracle, pixels_of, small_vit

CASES = [(name, label) for name in PICTURES for label in (1, 3)]
FOLDER = "02_gradient_relevance"
PLANTED = 5
"""Position of the token that alone decides."""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    return {family: save(tmp_path_factory.mktemp(family), family) for family in FAMILIES}


def picture_run(name, dtype="float64"):
    arrays, _ = oracle(FOLDER, name)
    values = pixels_of(arrays["pixel_values"], patch=8, dtype=getattr(torch, dtype))
    return forward_pass(small_vit(dtype), values), arrays


def bert_run(dtype="float64"):
    arrays, _ = oracle(FOLDER, "bert_tiny")
    return forward_pass(tiny_bert(dtype), text_inputs(arrays["input_ids"])), arrays


def weight_gradients(run, target, kind="encoder"):
    """(L, H, Q, K)"""
    gradients = run.gradients(target).layers[kind]
    return torch.stack(
        [
            torch.cat([layer.weight_gradient(gradient, rows) for rows in layer.strips()], 1)
            for layer, gradient in zip(run.layers[kind], gradients, strict=True)
        ]
    ).double()


def dense_maps(run, kind="encoder"):
    return torch.stack([layer.map.dense() for layer in run.layers[kind]]).double()


def close(found, expected, precision="float64"):
    """The oracle's tolerance."""
    found = found.detach().numpy() if isinstance(found, torch.Tensor) else found
    relative, absolute = (1e-8, 1e-12) if precision == "float64" else (1e-3, 1e-5 * np.abs(expected).max())
    assert_allclose(found, expected, rtol=relative, atol=absolute)


# Equations 5 to 10 once more, in NumPy


def weighted(attention, gradient):
    return np.maximum(attention * gradient, 0).mean(0)


def self_relevance(attention, gradient):
    found = np.eye(attention.shape[-1])
    for layer, slope in zip(attention, gradient, strict=True):
        found = found + weighted(layer, slope) @ found
    return found


def normalised(matrix):
    found = matrix - np.eye(len(matrix))
    for row in found:
        row /= row.sum() if row.sum() > 0 else 1.0
    return found + np.eye(len(matrix))


def source_relevance(parts):
    source = normalised(self_relevance(*parts["encoder"]))
    targets, tokens = parts["cross"][0].shape[-2:]
    own, found = np.eye(targets), np.zeros((targets, tokens))
    for a, da, c, dc in zip(*parts["decoder"], *parts["cross"], strict=True):
        own, found = own + weighted(a, da) @ own, found + weighted(a, da) @ found
        found = found + normalised(own).T @ weighted(c, dc) @ source
    return found


# Oracles


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize(("name", "label"), CASES)
def test_relevance_is_the_authors(name, label, precision):
    run, arrays = picture_run(name, precision)
    target = class_logit(label)
    found = relevance(run, target)
    expected = arrays[f"c{label}_chefer_relevance"]
    close(found.scores, expected, precision)
    assert (found.signed, found.grid, found.details["row"]) == (False, run.inputs.grid, "first")
    assert found.notes[0].startswith("Positive only")
    close(relevance_matrix(run, target), arrays[f"c{label}_chefer_R"], precision)
    for layer in range(4):
        matrix = relevance_matrix(run, target, end_layer=layer + 1)
        close(matrix, arrays[f"c{label}_chefer_R_per_layer"][layer], precision)
    later = relevance(run, target, start_layer=1).scores
    close(later, arrays[f"c{label}_chefer_first_layer_1"], precision)


@pytest.mark.parametrize(("name", "label"), CASES)
def test_gradients_of_weights_are_those_of_autograd(name, label):
    run, arrays = picture_run(name)
    close(weight_gradients(run, class_logit(label)), arrays[f"c{label}_attention_grad"])
    close(dense_maps(run), arrays["attention"])


@pytest.mark.parametrize("precision", ["float64", "float32"])
def test_relevance_of_a_text_encoder_is_the_authors(precision):
    run, arrays = bert_run(precision)
    target = class_logit(2)
    close(weight_gradients(run, target), arrays["attention_grad"], precision)
    close(relevance_matrix(run, target), arrays["chefer_R"], precision)
    close(relevance_matrix(run, target, end_layer=1), arrays["chefer_R_per_layer"][0], precision)
    found = relevance(run, target)
    close(found.scores, arrays["chefer_relevance_cls_row"][1:-1], precision)
    carried = arrays["chefer_relevance_cls_row"] - np.eye(14)[0]
    assert found.removed == pytest.approx(1 - carried[1:-1].sum() / carried.sum(), rel=1e-4)


# Against the library's autograd, where there is no oracle


@pytest.mark.parametrize("family", ["gpt2", "llama", "deberta", "bert"])
def test_one_stack_against_autograd(folders, family):
    run = run_of_text(folders[family])
    last = len(run.inputs.tokens) - 1
    target = token_log_probability(last, 7) if family in ("gpt2", "llama") else class_logit(1)
    (kind, (attention, gradient)), *_ = reference(run, folders[family], target).items()
    assert kind == ("decoder" if family in ("gpt2", "llama") else "encoder")
    assert_allclose(
        weight_gradients(run, target, kind), gradient, rtol=1e-4, atol=1e-6 * np.abs(gradient).max()
    )
    expected = self_relevance(attention, gradient)
    assert_allclose(relevance_matrix(run, target), expected, rtol=1e-4, atol=1e-6 * np.abs(expected).max())
    index = last if family in ("gpt2", "llama") else 0
    carried = (expected - np.eye(last + 1))[index][kept_positions(run.inputs)]
    found = relevance(run, target)
    assert found.details["row"] == (str(last) if index else "first")
    assert_allclose(found.scores, carried, rtol=1e-4, atol=1e-6 * carried.max())
    assert carried.max() > 0


@pytest.mark.parametrize("family", ["bart", "t5"])
def test_encoder_decoder_against_the_equations(folders, family):
    run = run_of_text(folders[family], target="the day is great")
    target = token_log_probability(2, 9)
    parts = reference(run, folders[family], target)
    for kind, (_, gradient) in parts.items():
        found = weight_gradients(run, target, kind)
        assert_allclose(found, gradient, rtol=1e-4, atol=1e-6 * np.abs(gradient).max())
    expected = source_relevance(parts)
    matrix = source_relevance_matrix(run, target)
    assert_allclose(matrix, expected, rtol=1e-4, atol=1e-6 * np.abs(expected).max())
    found = relevance(run, target)
    assert_allclose(found.scores, expected[2][kept_positions(run.inputs)], rtol=1e-4, atol=1e-6)
    assert found.details["row"] == "2 of the decoder"
    assert found.has_positive
    mean = relevance(run, target, row="mean").scores
    assert_allclose(mean, expected.mean(0)[kept_positions(run.inputs)], rtol=1e-4, atol=1e-6)


def test_a_concept_of_an_encoder_decoder_rests_on_its_encoder(folders):
    run = run_of_text(folders["bart"], target="the day")
    direction = torch.randn(32, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = relevance(run, concept_similarity(direction, "bread", pooling="mean"))
    target = concept_similarity(direction, "bread", pooling="mean")
    kept = kept_positions(run.inputs)
    carried = relevance_matrix(run, target) - torch.eye(len(run.inputs.tokens), dtype=torch.float64)
    assert_close(found.scores, carried[kept].mean(0)[kept])
    assert found.details["row"] == "mean"
    assert found.has_positive


def test_a_class_of_an_encoder_decoder_is_read_at_the_decoders_end(tmp_path):
    model = tiny.loaded(
        tmp_path, "BartForSequenceClassification", "BartConfig", tiny.unigram(), num_labels=3, **tiny.BART
    )
    run = forward_pass(model, encode_text(model, SENTENCE))
    found = relevance(run, class_logit(0))
    last = run.layers["decoder"][0].map.queries - 1
    assert found.details["row"] == f"{last} of the decoder"
    matrix = source_relevance_matrix(run, class_logit(0))
    assert_close(found.scores, matrix[last][kept_positions(run.inputs)])
    assert found.has_positive


# Properties


@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("row", ["first", "mean", 4])
def test_the_streamed_row_is_that_of_the_whole_product(monkeypatch, rows, row):
    run, _ = bert_run()
    target = class_logit(1)
    carried = relevance_matrix(run, target) - torch.eye(14, dtype=torch.float64)
    expected = {"first": carried[0], "mean": carried[1:-1].mean(0), 4: carried[4]}[row][1:-1]
    monkeypatch.setattr("analysis.evidence.passes.strip_rows", lambda *_: rows)
    assert_close(relevance(run, target, row=row).scores, expected)


def test_classes_have_maps_of_their_own():
    run, _ = picture_run("vit_tabby")
    first, second = (relevance(run, class_logit(label)).scores for label in (1, 3))
    assert torch.corrcoef(torch.stack([first, second]))[0, 1] < 0.9


@pytest.fixture
def planted(tmp_path):
    """A model in which one word alone decides: all others, special ones too, carry the same state and value 0."""
    model = tiny.loaded(
        tmp_path, "BertForSequenceClassification", "BertConfig", tiny.word_piece(),
        num_labels=2, **(tiny.BERT | {"num_hidden_layers": 1, "num_attention_heads": 1}),
    )  # fmt: skip
    bert = model.module.bert
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        tables = bert.embeddings
        tables.position_embeddings.weight.zero_()
        tables.token_type_embeddings.weight.zero_()
        words = torch.randn(2, 32, generator=generator)
        tables.word_embeddings.weight.copy_(words[0])
        ids = encode_text(model, SENTENCE).tensors["input_ids"][0].tolist()
        decides = ids[PLANTED]
        assert ids.count(decides) == 1
        tables.word_embeddings.weight[decides] = words[1]
        value = bert.encoder.layer[0].attention.self.value
        value.weight.copy_(torch.randn(32, 32, generator=generator))
        value.bias.copy_(-value.weight @ tables.LayerNorm(words[0]))
        rows = model.module.classifier.weight
        rows[1] = -rows[0]
    return model


def test_a_word_that_alone_decides_wins_and_nothing_else_scores(planted):
    run = forward_pass(planted, encode_text(planted, SENTENCE))
    maps = [relevance(run, class_logit(label)) for label in (0, 1)]
    maps.sort(key=lambda found: -float(found.scores.sum()))
    speaks, silent = maps
    assert speaks.scores.argmax() == list(speaks.positions).index(PLANTED)
    others = speaks.scores[speaks.positions != PLANTED]
    assert float(speaks.scores.max()) > 1e4 * float(others.max())
    assert float(silent.scores.max()) < 1e-4 * float(speaks.scores.max())  # no counter-evidence is shown
    rolled = max(
        (gradient_rollout(run, class_logit(label)) for label in (0, 1)), key=lambda e: e.scores.sum()
    )
    assert rolled.scores.argmax() == speaks.scores.argmax()


def test_nothing_is_run_again_nor_changed(folders):
    run = run_of_text(folders["llama"])
    target = token_log_probability(3, 7)
    before, calls = state_of(run.model.module), []
    hook = run.model.module.register_forward_hook(lambda *_: calls.append(1))
    found = relevance(run, target).scores
    shared = run.gradients(target)
    with torch.no_grad():
        assert torch.equal(relevance(run, target).scores, found)
    assert run.gradients(target) is shared
    with pytest.raises(ValueError, match="start_layer must be between 0 and 2 but is 3"):
        relevance(run, target, start_layer=3)
    with pytest.raises(ValueError, match="position and token must be below"):
        relevance(run, token_log_probability(999, 7))
    hook.remove()
    assert calls == []
    assert_same_state(before, state_of(run.model.module))
    assert not any(parameter.requires_grad for parameter in run.model.module.parameters())


def test_later_tokens_of_a_causal_model_score_nothing(folders):
    run = run_of_text(folders["gpt2"])
    found = relevance(run, token_log_probability(4, 7))
    assert found.details["row"] == "4"
    assert not found.scores[5:].any()
    assert found.scores[:5].any()


def test_a_difference_of_classes_is_a_target_too():
    run, _ = bert_run()
    found = relevance(run, logit_difference(0, 2))
    assert found.target == "class 0 rather than class 2"
    logits = run.outputs.logits[0].detach()
    assert found.details["value"] == pytest.approx(float(logits[0] - logits[2]))


# Refusals


def test_a_recurrent_model_is_refused_in_words():
    model = load_model("recurrent-sentiment", device="cpu")
    run = forward_pass(model, encode_text(model, "a good film"))
    with pytest.raises(
        UnsupportedModelError, match=r"relevance: the tokens of .* do not attend to each other"
    ):
        relevance(run, class_logit(0))


def test_only_an_encoder_decoder_has_a_source():
    run, _ = bert_run()
    with pytest.raises(UnsupportedModelError, match="must have one cross-attention in each decoder layer"):
        source_relevance_matrix(run, class_logit(0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"row": 14}, "relevance: row must be between 0 and 13 but is 14"),
        ({"row": "last"}, "relevance: row must be first, mean or a position but is 'last'"),
        ({"start_layer": -1}, "relevance: start_layer must be between 0 and 1 but is -1"),
    ],
)
def test_wrong_options_say_what_is_wanted(options, message):
    run, _ = bert_run()
    with pytest.raises(ValueError, match=message):
        relevance(run, class_logit(0), **options)


def test_the_whole_matrix_is_refused_above_the_budget_and_one_row_is_not(folders):
    run, _ = bert_run()
    pair = run_of_text(folders["bart"], target="the day")
    with (
        memory_budget(100),
        pytest.raises(MemoryBudgetError, match=r"relevance_matrix: 14 × 14 weights .* ask for one row"),
    ):
        relevance_matrix(run, class_logit(0))
    with memory_budget(100), pytest.raises(MemoryBudgetError, match="relevance: "):
        relevance(pair, token_log_probability(0, 5))
    assert relevance(run, class_logit(0)).has_positive
