"""Leave one out against runs made by hand, the inputs that curves use, and that nothing is left behind."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from analysis.errors import UnsupportedModelError
from analysis.evidence import perturbation
from analysis.evidence.explanation import kept_positions, to_words
from analysis.evidence.passes import forward_pass
from analysis.evidence.perturbation import (
    batch_size,
    leave_one_out,
    leave_words_out,
    masked_inputs,
    patch_pixels,
    picture_fill,
    stand_in_token,
    target_values,
)
from analysis.evidence.targets import Target, class_logit, concept_similarity, token_log_probability
from analysis.inputs import PatchGrid, encode_pair, encode_text
from tests.evidence.oracle_models import oracle, pixels_of, small_vit
from tests.input_helpers import BART, BERT, GPT2, T5, byte_level, loaded, unigram, word_piece

LIVELY = BERT | {"initializer_range": 0.3}
SENTENCE = "the quick brown fox jumps over naive owners"
FILLS = ("default", "mean", "zero", "black", "white", "blurred")


class Stopped(Exception):
    """What a stop button raises."""


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return loaded(
        tmp_path_factory.mktemp("bert"), "BertForSequenceClassification", "BertConfig", word_piece(), **LIVELY
    )


@pytest.fixture(scope="module")
def run(bert):
    return forward_pass(bert, encode_text(bert, SENTENCE))


@pytest.fixture(scope="module")
def picture():
    arrays, _ = oracle("05_captum", "vit_tabby_class1")
    return forward_pass(small_vit("float32"), pixels_of(arrays["pixel_values"], patch=8, dtype=torch.float32))


def logits(model, **tensors):
    with torch.no_grad():
        return model.module(**tensors).logits


def state(model):
    """All that a method might leave behind."""
    return (
        {name: value.clone() for name, value in model.module.state_dict().items()},
        [(p.requires_grad, p.grad) for p in model.module.parameters()],
        [
            (len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks), m.training)
            for m in model.module.modules()
        ],
    )


def assert_same(before, after):
    assert before[1:] == after[1:]
    assert all(torch.equal(value, after[0][name]) for name, value in before[0].items())


# Leave one out


def test_each_token_is_masked_alone(run):
    found = leave_one_out(run, class_logit(1))
    mask = run.model.processor.mask_token_id
    whole = logits(run.model, **run.inputs.tensors)[0, 1]
    for score, position in zip(found.scores, found.positions, strict=True):
        ids = run.inputs.tensors["input_ids"].clone()
        ids[0, position] = mask
        expected = whole - logits(run.model, **(run.inputs.tensors | {"input_ids": ids}))[0, 1]
        assert float(score) == pytest.approx(float(expected), abs=1e-5)
    assert found.notes == ("Tokens were replaced by [MASK].",)
    assert found.signed
    assert found.removed < 1e-6
    assert float(found.scores.abs().max()) > 1e-3


def test_each_token_is_deleted_alone(run):
    found = leave_one_out(run, class_logit(0), replacement="remove")
    whole = logits(run.model, **run.inputs.tensors)[0, 0]
    for score, position in zip(found.scores, found.positions, strict=True):
        shorter = {
            name: torch.cat([tensor[:, :position], tensor[:, position + 1 :]], 1)
            for name, tensor in run.inputs.tensors.items()
        }
        assert float(score) == pytest.approx(float(whole - logits(run.model, **shorter)[0, 0]), abs=1e-5)


def test_words_are_left_out_whole(run):
    found = leave_words_out(run, class_logit(0))
    words, groups = to_words(found, run.inputs.tokens)
    assert len(groups) == len(SENTENCE.split())
    assert max(map(len, groups)) > 1
    whole = logits(run.model, **run.inputs.tensors)[0, 0]
    for score, group in zip(words.scores, groups, strict=True):
        ids = run.inputs.tensors["input_ids"].clone()
        ids[0, list(group)] = run.model.processor.mask_token_id
        expected = whole - logits(run.model, **(run.inputs.tensors | {"input_ids": ids}))[0, 0]
        assert float(score) == pytest.approx(float(expected), abs=1e-5)


def test_each_patch_is_replaced_alone(picture):
    pixels = picture.inputs.tensors["pixel_values"]
    whole = logits(picture.model, pixel_values=pixels)[0, 1]
    found = leave_one_out(picture, class_logit(1)).to_grid()
    for row, column in ((0, 0), (1, 3), (3, 2)):
        changed = pixels.clone()
        square = (slice(8 * row, 8 * row + 8), slice(8 * column, 8 * column + 8))
        changed[0, :, square[0], square[1]] = pixels[0].mean((1, 2))[:, None, None]
        expected = whole - logits(picture.model, pixel_values=changed)[0, 1]
        assert float(found[row, column]) == pytest.approx(float(expected), abs=1e-5)


def test_a_token_that_is_hidden_scores_nothing(bert):
    inputs = encode_text(bert, "the house is old")
    tensors = {name: tensor.clone() for name, tensor in inputs.tensors.items()}
    tensors["attention_mask"][0, 2] = 0
    found = leave_one_out(forward_pass(bert, replace(inputs, tensors=tensors)), class_logit(0))
    assert abs(float(found.scores[1])) < 1e-6
    assert float(found.scores.abs().max()) > 1e-3


def test_a_patch_that_already_is_what_replaces_it_scores_nothing():
    values = torch.zeros(1, 3, 32, 32)
    values[:, :, 8:16, 16:24] = 1.5
    run = forward_pass(small_vit("float32"), pixels_of(values.numpy(), patch=8, dtype=torch.float32))
    found = leave_one_out(run, class_logit(2), replacement="zero")
    assert found.strongest(1) == [6]
    assert int((found.scores.abs() > 1e-5).sum()) == 1


# Many masks


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_masks_give_the_values_of_single_runs(run, data):
    count = len(kept_positions(run.inputs))
    rows = st.lists(st.booleans(), min_size=count, max_size=count)
    masks = torch.tensor(data.draw(st.lists(rows, min_size=1, max_size=5)))
    kind = data.draw(st.sampled_from(["default", "remove"]))
    found = target_values(run, class_logit(1), masks, replacement=kind)
    for value, mask in zip(found, masks, strict=True):
        alone = masked_inputs(run, mask[None], replacement=kind)
        assert float(value) == pytest.approx(float(logits(run.model, **alone)[0, 1]), abs=1e-5)


@settings(max_examples=12)
@given(rows=st.integers(1, 4), columns=st.integers(1, 5), over=st.integers(-5, 5), seed=st.integers(0, 99))
def test_patches_cover_their_pixels(rows, columns, over, seed):
    """Also where pixels lie beyond the last patch, or a model pads the picture."""
    masks = torch.rand(3, rows * columns, generator=torch.Generator().manual_seed(seed)) < 0.5
    height, width = rows * 6 + over, columns * 6 + over
    found = patch_pixels(PatchGrid(rows, columns, 6, rows * 6, columns * 6, 2), masks, height, width)
    expected = np.zeros((3, 1, height, width), dtype=bool)
    for y in range(min(height, rows * 6)):
        for x in range(min(width, columns * 6)):
            expected[:, 0, y, x] = masks[:, (y // 6) * columns + x // 6]
    assert np.array_equal(found.numpy(), expected)


def test_batches_change_nothing(run, picture, monkeypatch):
    for one in (run, picture):
        whole = leave_one_out(one, class_logit(1)).scores
        monkeypatch.setattr(perturbation, "BATCH_TOKENS", 25)
        assert batch_size(one, 25) <= 2
        monkeypatch.setattr(perturbation, "batch_size", lambda _: 2)
        assert_close(leave_one_out(one, class_logit(1)).scores, whole, rtol=1e-4, atol=1e-5)
        monkeypatch.undo()


def test_nothing_replaced_is_the_input_itself(run, picture):
    for one, kinds in ((run, ("default", "remove")), (picture, FILLS)):
        none = torch.zeros(2, len(kept_positions(one.inputs)), dtype=torch.bool)
        for kind in kinds:
            for name, tensor in masked_inputs(one, none, replacement=kind).items():
                given = one.inputs.tensors[name]
                assert torch.equal(tensor, given.expand(2, *given.shape[1:]))


def test_all_removed_leaves_the_special_tokens(run):
    count = len(kept_positions(run.inputs))
    whole = torch.ones(1, count, dtype=torch.bool)
    tensors = masked_inputs(run, whole, replacement="remove")
    assert tensors["input_ids"].tolist() == [[2, 3]]
    assert tensors["attention_mask"].shape == (1, 2)
    assert target_values(run, class_logit(0), whole, replacement="remove").shape == (1,)
    assert target_values(run, class_logit(0), whole[:0]).shape == (0,)


def test_removal_keeps_the_embedding_over_what_is_left(bert):
    """Which places are special moves with each deletion in a pair; the mean embedding must follow."""
    run = forward_pass(bert, encode_pair(bert, "the house", "a great day"))
    direction = torch.linspace(-1, 1, 32)
    target = concept_similarity(direction, "direction", pooling="mean")
    kept = kept_positions(run.inputs)
    values = target_values(run, target, torch.eye(len(kept), dtype=torch.bool), replacement="remove")
    for value, gone in zip(values, kept.tolist(), strict=True):
        shorter = {
            name: torch.cat([tensor[:, :gone], tensor[:, gone + 1 :]], 1)
            for name, tensor in run.inputs.tensors.items()
        }
        places = [position - (position > gone) for position in kept.tolist() if position != gone]
        with torch.no_grad():
            hidden = bert.module.bert(**shorter).last_hidden_state[0, places].mean(0)
        assert float(value) == pytest.approx(float(hidden @ direction), abs=1e-4)


# What comes instead


def test_fills_of_pictures(picture):
    pixels = picture.inputs.tensors["pixel_values"]
    assert_close(picture_fill(picture, "mean")[0, :, 0, 0], pixels[0].mean((1, 2)))
    assert not picture_fill(picture, "zero").any()
    for kind, value in (("black", -1.0), ("white", 1.0)):  # this model's values are (colour − 0.5) / 0.5
        assert_close(picture_fill(picture, kind), torch.full((1, 3, 1, 1), value))
    blurred = picture_fill(picture, "blurred")
    assert blurred.shape == pixels.shape
    assert float(blurred.std((2, 3)).max()) < 0.5 * float(pixels.std((2, 3)).max())
    flat = replace(
        picture, inputs=replace(picture.inputs, tensors={"pixel_values": torch.full_like(pixels, 0.7)})
    )
    assert_close(picture_fill(flat, "blurred"), torch.full_like(pixels, 0.7))
    masks = torch.zeros(1, 16, dtype=torch.bool)
    masks[0, 5] = True
    for kind in FILLS:
        changed = masked_inputs(picture, masks, replacement=kind)["pixel_values"]
        same = (changed == pixels).all(1)[0]
        assert same[:8].all()
        assert same[8:16, :8].all()
        assert not same[8:16, 8:16].all()


@pytest.mark.parametrize(
    ("model", "config", "tokenizer", "options", "token"),
    [
        ("BertForSequenceClassification", "BertConfig", word_piece, BERT, "[MASK]"),
        ("BartForConditionalGeneration", "BartConfig", unigram, BART, "<mask>"),
        ("GPT2LMHeadModel", "GPT2Config", byte_level, GPT2, "<|endoftext|>"),
        ("T5ForConditionalGeneration", "T5Config", None, T5, "the pad token"),
    ],
)
def test_the_stand_in_of_each_family(tmp_path, model, config, tokenizer, options, token):
    found = loaded(tmp_path, model, config, tokenizer() if tokenizer else None, **options)
    number, name = stand_in_token(found, "mask", "pad", "unk")
    assert name == token
    if tokenizer:
        assert found.processor.convert_ids_to_tokens(number) == token
    else:
        assert number == 1


def test_encoder_decoders_keep_the_decoders_input(tmp_path):
    model = loaded(tmp_path, "BartForConditionalGeneration", "BartConfig", unigram(), **BART)
    run = forward_pass(model, encode_text(model, "the house", target="das haus ist"))
    masks = torch.eye(len(kept_positions(run.inputs)), dtype=torch.bool)
    for kind in ("default", "remove"):
        tensors = masked_inputs(run, masks, replacement=kind)
        assert torch.equal(
            tensors["decoder_input_ids"], run.inputs.tensors["decoder_input_ids"].expand(len(masks), -1)
        )
        values = target_values(run, token_log_probability(1, 30), masks, replacement=kind)
        assert values.shape == (len(masks),)
    assert leave_one_out(run, token_log_probability(1, 30)).scores.shape == (len(masks),)


def test_a_decoder_of_one_target_length_is_not_cut(tmp_path):
    """The decoder's input may be as long as the encoder's: only the encoder's is cut."""
    model = loaded(tmp_path, "BartForConditionalGeneration", "BartConfig", unigram(), **BART)
    run = forward_pass(model, encode_text(model, "the house", target="the house"))
    count = run.inputs.tensors["input_ids"].shape[1]
    assert run.inputs.tensors["decoder_input_ids"].shape[1] == count
    masks = torch.eye(len(kept_positions(run.inputs)), dtype=torch.bool)
    tensors = masked_inputs(run, masks, replacement="remove")
    assert tensors["decoder_input_ids"].shape[1] == count
    assert tensors["input_ids"].shape[1] == tensors["attention_mask"].shape[1] == count - 1


def test_classifiers_that_take_no_batch_run_one_by_one(tmp_path):
    model = loaded(tmp_path, "GPT2ForSequenceClassification", "GPT2Config", byte_level(), **GPT2)
    run = forward_pass(model, encode_text(model, "we say hello"))
    assert batch_size(run) == 1
    for kind in ("default", "remove"):
        assert float(leave_one_out(run, class_logit(0), replacement=kind).scores.abs().max()) > 1e-5


# Traces, stops and errors


@pytest.mark.parametrize("kind", ["default", "remove"])
def test_nothing_changes(run, kind):
    before, given = state(run.model), {n: t.clone() for n, t in run.inputs.tensors.items()}
    leave_one_out(run, class_logit(0), replacement=kind)
    with torch.no_grad():
        leave_words_out(run, class_logit(0), replacement=kind)
    assert_same(before, state(run.model))
    assert all(torch.equal(tensor, given[name]) for name, tensor in run.inputs.tensors.items())


def test_progress_is_told_and_can_stop(run, picture, monkeypatch):
    monkeypatch.setattr(perturbation, "batch_size", lambda _: 3)
    for one, kind in ((run, "default"), (run, "remove"), (picture, "blurred")):
        told = []
        leave_one_out(one, class_logit(0), replacement=kind, progress=told.append)
        assert told == sorted(told)
        assert len(told) >= 4
        assert told[-1] == 1.0
        before = state(one.model)

        def stop(done):
            if done > 0.4:
                raise Stopped

        with pytest.raises(Stopped):
            leave_one_out(one, class_logit(0), replacement=kind, progress=stop)
        assert_same(before, state(one.model))


def test_a_failing_pass_leaves_no_hook(run):
    before = state(run.model)
    with pytest.raises(ZeroDivisionError):
        leave_one_out(run, Target("broken", "broken", lambda outputs: 1 / 0, ()))
    assert_same(before, state(run.model))


def test_bad_arguments_are_told(run, picture):
    count = len(kept_positions(run.inputs))
    masks = torch.eye(count, dtype=torch.bool)
    with pytest.raises(TypeError, match="masked_inputs: masks must be boolean"):
        masked_inputs(run, masks.float())
    with pytest.raises(ValueError, match=rf"target_values: masks must be \(B, {count}\)"):
        target_values(run, class_logit(0), masks[:, 1:])
    with pytest.raises(ValueError, match="masks must have 2 axes"):
        masked_inputs(run, masks[0])
    with pytest.raises(
        ValueError, match="replacement must be one of default, remove for this input but is 'blurred'"
    ):
        leave_one_out(run, class_logit(0), replacement="blurred")
    with pytest.raises(ValueError, match=r"replacement must be one of default, mean, .* but is 'remove'"):
        leave_one_out(picture, class_logit(0), replacement="remove")
    masks[0] = True
    with pytest.raises(ValueError, match="masks must replace equally many tokens"):
        masked_inputs(run, masks, replacement="remove")
    with pytest.raises(ValueError, match="run must be of a text"):
        leave_words_out(picture, class_logit(0))
    with pytest.raises(ValueError, match="picture_fill: kind must be one of"):
        picture_fill(run, "mean")
    endless = Target("endless", "endless", lambda o: o.logits[:, 0] / 0, ("endless",))
    with pytest.raises(ValueError, match=f"'endless' is .* with 0 of {count} tokens"):
        leave_one_out(run, endless)


def test_what_removal_cannot_answer_is_told(tmp_path):
    model = loaded(tmp_path, "GPT2LMHeadModel", "GPT2Config", byte_level(), **GPT2)
    run = forward_pass(model, encode_text(model, "we say hello"))
    with pytest.raises(ValueError, match="which reads one position of the text; choose 'default'"):
        leave_one_out(run, token_log_probability(1, 40), replacement="remove")
    masks = torch.ones(1, len(kept_positions(run.inputs)), dtype=torch.bool)
    with pytest.raises(ValueError, match="masks must leave a token under 'remove'"):
        masked_inputs(run, masks, replacement="remove")
    bare = replace(model, processor=None, module=model.module)
    run.model.module.config.unk_token_id = None
    with pytest.raises(UnsupportedModelError, match="has no mask, padding or unknown token"):
        masked_inputs(replace(run, model=bare), masks)


def test_a_text_of_special_tokens_alone_has_no_scores(bert):
    run = forward_pass(bert, encode_text(bert, ""))
    for method in (leave_one_out, leave_words_out):
        for kind in ("default", "remove"):
            assert method(run, class_logit(0), replacement=kind).scores.shape == (0,)
