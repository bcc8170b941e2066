"""The table of every predicted word: cell by cell what single explanations say, causal, and no pass too many."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import analysis.evidence.every_word as every_word_module
from analysis.evidence.every_word import every_word, pass_count, predicted_words, refusal
from analysis.evidence.explanation import kept_positions
from analysis.evidence.methods import METHODS, explain
from analysis.evidence.passes import ForwardPass, forward_pass
from analysis.evidence.perturbation import stand_in_token
from analysis.inputs import encode_text
from analysis.models import LoadedModel, load_model
from tests import input_helpers as tiny
from tests.evidence.attention_runs import SENTENCE, reference, save

TARGET = "the day is great"
SHORT = "the house is old"
FEW: dict[str, dict[str, Any]] = {
    "integrated_gradients": {"steps": 3, "stretches": 1, "most": 3},
    "smooth_grad": {"samples": 3},
    "smooth_cdam": {"samples": 3},
    "integrated_cdam": {"steps": 3},
}
GRADIENTS = (
    *("cdam", "relevance", "gradient_rollout", "attention_gradcam", "input_x_gradient"),
    *("integrated_gradients", "saliency", "smooth_grad"),
)
DECODERS, PAIRS = ("gpt2", "llama"), ("bart", "t5")


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """name → a tiny random language model in float64."""
    root = tmp_path_factory.mktemp("every_word")

    @cache
    def load(family: str) -> LoadedModel:
        return load_model(save(root / family, family), device="cpu", dtype="float64")

    return load


@pytest.fixture(scope="module")
def run_of(models):
    """name → its pass; an encoder-decoder's target has fewer tokens than its source."""

    @cache
    def run(family: str) -> ForwardPass:
        model = models(family)
        if model.is_encoder_decoder:
            return forward_pass(model, encode_text(model, SENTENCE, target=TARGET))
        return forward_pass(model, encode_text(model, SHORT))

    return run


def assert_same(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


# What is predicted -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", [*DECODERS, *PAIRS])
def test_words_are_those_of_the_text_with_their_probabilities(family, run_of):
    run = run_of(family)
    inputs = run.inputs
    name, labels = (
        ("decoder_input_ids", inputs.target_tokens) if family in PAIRS else ("input_ids", inputs.tokens)
    )
    ids = inputs.tensors[name][0]
    words = predicted_words(run)
    assert [word.label for word in words] == list(labels[1:])
    assert [word.token for word in words] == ids[1:].tolist()
    found = every_word(run, "attention")
    with torch.no_grad():
        logits = run.model.module(**inputs.tensors).logits[0]
    expected = logits.log_softmax(-1)[torch.arange(len(ids) - 1), ids[1:]]
    assert_same(found.log_probabilities, expected)


def test_the_columns_are_what_can_have_been_read(run_of):
    found = every_word(run_of("gpt2"), "attention")
    count = len(run_of("gpt2").inputs.tokens)
    assert found.scores.shape == (count - 1, count - 1)
    assert found.tokens == run_of("gpt2").inputs.tokens[:-1], "nobody reads the last token"
    for family in PAIRS:
        run = run_of(family)
        found = every_word(run, "attention")
        source = [token for token in run.inputs.tokens if not token.special]
        assert list(found.tokens) == source
        assert found.scores.shape == (len(run.inputs.target_tokens) - 1, len(source))
        assert found.scores.shape[0] != found.scores.shape[1]
        assert not found.scores.isnan().any()
        assert 0 < found.removed < 1, "the end of the source has no column"


# Cell by cell ------------------------------------------------------------------------------------------------------


CELLS = [
    (family, key)
    for family in (*DECODERS, *PAIRS)
    for key, method in METHODS.items()
    if (family in ("gpt2", "t5") or method.cost == "shared" or key == "leave_one_out")
    and (method.uses_target or family in DECODERS)  # cross-attention has a test of its own
]


@pytest.mark.parametrize(("family", "key"), CELLS)
def test_every_cell_is_that_of_a_single_explanation(family, key, run_of):
    run = run_of(family)
    method, few = METHODS[key], FEW.get(key, {})
    if refusal(run, key, **few):
        assert family in PAIRS
        assert key in every_word_module.ENCODER_ALONE + every_word_module.NOISY_COPIES
        return
    found = every_word(run, key, **few)
    assert found.signed == method.signed
    for row, word in enumerate(found.words):
        single = (
            explain(key, run, word.target, **few)
            if method.uses_target
            else explain(key, run, row=word.position)
        )
        for score, position in zip(single.scores, single.positions.tolist(), strict=True):
            if family in DECODERS and position == len(run.inputs.tokens) - 1:
                continue
            column = kept_positions(run.inputs).tolist().index(position)
            if family in DECODERS and position > word.position:
                assert found.scores[row, column].isnan()
            else:
                assert_same(found.scores[row, column], score)


@pytest.mark.parametrize(
    ("family", "key"), [*(("gpt2", key) for key in GRADIENTS), *(("llama", key) for key in GRADIENTS[:4])]
)
def test_no_gradient_reaches_words_that_come_later(family, key, run_of):
    run = run_of(family)
    for word in predicted_words(run)[:-1]:
        single = explain(key, run, word.target, **FEW.get(key, {}))
        later = single.scores[single.positions > word.position]
        assert len(later)
        assert (later == 0).all()
        assert (single.scores[single.positions <= word.position] != 0).any()
    assert not any("come after" in note for note in every_word(run, key, **FEW.get(key, {})).notes)


def test_gradcam_spreads_over_later_words_and_says_so(run_of):
    found = every_word(run_of("gpt2"), "gradcam")
    assert any("come after the predicting position" in note for note in found.notes)
    assert found.scores.isnan().sum() == sum(range(len(found.words)))


@pytest.mark.parametrize("family", PAIRS)
def test_attention_of_a_decoder_is_its_cross_attention(family, run_of, tmp_path):
    run = run_of(family)
    weights = reference(run, save(tmp_path, family), predicted_words(run)[0].target)["cross"][0]
    kept = kept_positions(run.inputs)
    rows = [word.position for word in predicted_words(run)]
    found = every_word(run, "attention").scores
    np.testing.assert_allclose(found.numpy(), weights[-1].mean(0)[rows][:, kept], atol=1e-6)
    one = every_word(run, "attention", layer=0, head=1).scores
    np.testing.assert_allclose(one.numpy(), weights[0, 1][rows][:, kept], atol=1e-6)


@pytest.mark.parametrize("family", PAIRS)
def test_leave_one_out_also_leaves_out_what_the_decoder_has_read(family, run_of):
    run = run_of(family)
    found = every_word(run, "leave_one_out")
    own = [index for index, label in enumerate(run.inputs.target_tokens[:-1]) if not label.special]
    assert found.prefix == len(own) > 0
    assert [token.segment for token in found.tokens] == [0] * (len(found.tokens) - len(own)) + [1] * len(own)
    for column, place in enumerate(own, start=len(found.tokens) - len(own)):
        ids = run.inputs.tensors["decoder_input_ids"].clone()
        ids[0, place] = stand_in_token(run.model, "mask", "pad", "unk")[0]
        with torch.no_grad():
            logits = run.model.module(**{**run.inputs.tensors, "decoder_input_ids": ids}).logits[0]
        for row, word in enumerate(found.words):
            if place > word.position:
                assert found.scores[row, column].isnan()
                continue
            value = logits[word.position].log_softmax(-1)[word.token]
            assert_same(found.scores[row, column], found.log_probabilities[row] - value)


@settings(max_examples=8, deadline=None)
@given(count=st.integers(2, 14))
def test_each_word_reads_one_token_more_than_the_one_before(count, models):
    model = models("gpt2")
    run = forward_pass(model, encode_text(model, SENTENCE, max_tokens=count))
    read = (~every_word(run, "attention").scores.isnan()).sum(1).tolist()
    assert read == list(range(1, len(run.inputs.tokens)))


# Costs -------------------------------------------------------------------------------------------------------------


def items_run(run, key, **options):
    """Items that the model runs for a table."""
    counts = []
    hook = run.model.module.register_forward_hook(lambda _, __, output: counts.append(len(output.logits)))
    try:
        every_word(run, key, **options)
    finally:
        hook.remove()
    return sum(counts)


@pytest.mark.parametrize("family", ["llama", "bart"])
def test_shared_methods_run_no_pass_and_leave_one_out_one_for_all_words(family, run_of):
    run = run_of(family)
    for key, method in METHODS.items():
        if method.cost == "shared" and not refusal(run, key):
            assert items_run(run, key) == 0, key
    tokens = len(every_word(run, "leave_one_out").tokens)
    assert items_run(run, "leave_one_out") == tokens + 1 == pass_count("leave_one_out", 99, tokens)


@pytest.mark.parametrize("key", ["input_x_gradient", "saliency", "smooth_grad", "integrated_gradients"])
def test_the_number_of_passes_is_foretold(key, run_of):
    run = run_of("gpt2")
    few = FEW.get(key, {})
    words = len(predicted_words(run))
    assert items_run(run, key, **few) == pass_count(key, words, words, **few)
    more = {"steps": 4, "stretches": 2, "most": 12} if key == "integrated_gradients" else few
    assert items_run(run, key, **more) <= pass_count(key, words, words, **more)


def test_progress_rises_to_the_end_and_what_it_raises_stops_the_table(run_of):
    run = run_of("gpt2")
    for key in ("relevance", "integrated_gradients", "leave_one_out"):
        told: list[float] = []
        every_word(run, key, progress=told.append, **FEW.get(key, {}))
        assert told == sorted(told)
        assert told[-1] == pytest.approx(1.0)
        assert len(told) >= 1

    def stop(done: float) -> None:
        raise InterruptedError

    hooks = [len(module._forward_hooks) for module in run.model.module.modules()]
    for key in ("relevance", "integrated_gradients", "leave_one_out"):
        with pytest.raises(InterruptedError):
            every_word(run, key, progress=stop, **FEW.get(key, {}))
    assert [len(module._forward_hooks) for module in run.model.module.modules()] == hooks
    assert not any(parameter.requires_grad for parameter in run.model.module.parameters())


# Refusals ----------------------------------------------------------------------------------------------------------


def test_a_masked_model_is_refused_in_words(tmp_path):
    model = tiny.loaded(tmp_path, "BertForMaskedLM", "BertConfig", tiny.word_piece(), **tiny.BERT)
    run = forward_pass(model, encode_text(model, SHORT))
    assert predicted_words(run) == ()
    with pytest.raises(ValueError, match="masked model: it reads the word that it predicts"):
        every_word(run, "relevance")


def test_a_classifier_predicts_no_words(tmp_path):
    model = load_model(save(tmp_path, "bert"), device="cpu")
    run = forward_pass(model, encode_text(model, SHORT))
    assert "predicts no words" in refusal(run, "relevance")


def test_a_text_of_one_token_has_no_table(models, run_of):
    model = models("gpt2")
    run = forward_pass(model, encode_text(model, SENTENCE, max_tokens=1))
    assert "no word that is predicted" in refusal(run, "relevance")


@pytest.mark.parametrize("key", every_word_module.ENCODER_ALONE + every_word_module.NOISY_COPIES)
def test_methods_that_know_no_decoder_say_so(key, run_of):
    with pytest.raises(ValueError, match=r"follows the encoder's attention|copies of the encoder's tokens"):
        every_word(run_of("bart"), key)


def test_tables_that_cost_too_much_are_refused(run_of, monkeypatch):
    run = run_of("gpt2")
    count = len(predicted_words(run))
    monkeypatch.setattr(every_word_module, "MOST_PASSES", 240 * count - 1)
    assert f"takes up to {240 * count:,} passes" in refusal(run, "integrated_gradients")
    assert refusal(run, "integrated_gradients", **FEW["integrated_gradients"]) == ""
    assert refusal(run, "leave_one_out") == ""
    monkeypatch.setattr(every_word_module, "MOST_CELLS", count * count - 1)
    with pytest.raises(ValueError, match=rf"{count} × {count} words has more than"):
        every_word(run, "relevance")


def test_a_wrong_method_or_option_is_told(run_of):
    with pytest.raises(ValueError, match=r"method_key must be one of cdam, .* but is 'lime'"):
        every_word(run_of("gpt2"), "lime")
    with pytest.raises(ValueError, match="options must not hold row"):
        every_word(run_of("gpt2"), "attention", row=1)
    with pytest.raises(ValueError, match="options must not hold replacement"):
        every_word(run_of("gpt2"), "leave_one_out", replacement="remove")
    with pytest.raises(ValueError, match="attention: layer must be between"):
        every_word(run_of("bart"), "attention", layer=9)
