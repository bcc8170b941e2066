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
    PICTURE_FILLS,
    TEXT_FILLS,
    batch_items,
    blank_of,
    covered,
    leave_one_out,
    leave_words_out,
    outputs_at,
    patch_pixels,
    replacement_note,
    shortened_inputs,
    target_values,
)
from analysis.evidence.targets import (
    Target,
    class_logit,
    class_probability,
    concept_similarity,
    token_log_probability,
)
from analysis.figure_data import TokenLabel
from analysis.inputs import Inputs, PatchGrid, encode_pair, encode_text
from tests.evidence.oracle_models import oracle, pixels_of, small_vit
from tests.input_helpers import BART, BERT, GPT2, T5, byte_level, loaded, unigram, word_piece

LIVELY = BERT | {"initializer_range": 0.3}
SENTENCE = "the quick brown fox jumps over naive owners"


EMPTY = Inputs(
    tensors={}, tokens=(), target_tokens=None, grid=None, picture=None, source="", digest="", notes=(),
    total_tokens=0, kept_tokens=0,
)  # fmt: skip


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


@pytest.fixture(autouse=True)
def forget(run, picture):
    """Every test runs the model itself."""
    run.masked.clear()
    picture.masked.clear()


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
        if kind == "remove":
            alone = shortened_inputs(run, mask[None])
        else:
            ids = run.inputs.tensors["input_ids"].clone()
            ids[0, kept_positions(run.inputs)[mask]] = run.model.processor.mask_token_id
            alone = run.inputs.tensors | {"input_ids": ids}
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
        assert batch_items(one.model, one.inputs, 25) <= 2
        monkeypatch.setattr(perturbation, "batch_items", lambda *_: 2)
        one.masked.clear()
        assert_close(leave_one_out(one, class_logit(1)).scores, whole, rtol=1e-4, atol=1e-5)
        monkeypatch.undo()


def test_another_class_runs_nothing_again(run, picture, monkeypatch):
    """What the model gives without a part does not depend on the class; a failed run is not kept."""
    for one in (run, picture):
        before = leave_one_out(one, class_logit(0)).scores
        with monkeypatch.context() as patch:
            patch.setattr(perturbation, "masked_outputs", lambda *_: pytest.fail("the model was run again"))
            told = []
            other = leave_one_out(one, class_logit(1), progress=told.append).scores
            probability = leave_one_out(one, class_probability(1)).scores
            assert_close(leave_one_out(one, class_logit(0)).scores, before, rtol=0, atol=0)
        assert told == [1.0]
        one.masked.clear()
        assert_close(leave_one_out(one, class_logit(1)).scores, other, rtol=0, atol=0)
        assert_close(leave_one_out(one, class_probability(1)).scores, probability, rtol=0, atol=0)


def test_other_replacements_other_masks_and_other_readings_are_run(run, monkeypatch):
    count = []
    plain = perturbation.masked_outputs
    monkeypatch.setattr(perturbation, "masked_outputs", lambda *given: (count.append(1), plain(*given))[1])
    leave_one_out(run, class_logit(0))
    leave_one_out(run, class_logit(0), replacement="zero")
    masks = torch.zeros(2, len(kept_positions(run.inputs)), dtype=torch.bool)
    target_values(run, class_logit(0), masks)
    target_values(run, class_logit(0), ~masks)
    direction = run.outputs.embedding("mean")[0].detach()
    concept = concept_similarity(direction, "itself", pooling="mean")
    target_values(run, concept, masks)  # of the last state, which is not kept
    target_values(run, concept, masks)
    assert len(count) == 6
    target_values(run, class_logit(1), ~masks)
    assert len(count) == 6


def test_what_is_kept_has_a_limit(run, monkeypatch):
    count = len(kept_positions(run.inputs))
    monkeypatch.setattr(perturbation, "KEPT_LOGITS", 4 * run.outputs.logits.shape[1])
    for index in range(count):
        masks = torch.zeros(2, count, dtype=torch.bool)
        masks[0, index] = True
        target_values(run, class_logit(0), masks)
    assert len(run.masked) == 2
    assert target_values(run, class_logit(0), torch.zeros(0, count, dtype=torch.bool)).shape == (0,)


def test_nothing_replaced_is_the_input_itself(run, picture):
    for one, kinds in ((run, (*TEXT_FILLS, "remove")), (picture, PICTURE_FILLS)):
        none = torch.zeros(2, len(kept_positions(one.inputs)), dtype=torch.bool)
        for kind in kinds:
            values = target_values(one, class_logit(1), none, replacement=kind)
            assert_close(values, torch.full((2,), one.value(class_logit(1))), rtol=1e-5, atol=1e-6)


def test_all_removed_leaves_the_special_tokens(run):
    count = len(kept_positions(run.inputs))
    whole = torch.ones(1, count, dtype=torch.bool)
    tensors = shortened_inputs(run, whole)
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
    assert torch.equal(blank_of(picture, "default"), blank_of(picture, "mean"))
    assert_close(blank_of(picture, "mean")[0, :, 3, 5], pixels[0].mean((1, 2)))
    assert not blank_of(picture, "zero").any()
    for kind, value in (("black", -1.0), ("white", 1.0)):  # this model's values are (colour − 0.5) / 0.5
        assert_close(blank_of(picture, kind), torch.full_like(pixels, value))
    blurred = blank_of(picture, "blurred")
    assert float(blurred.std((2, 3)).max()) < 0.5 * float(pixels.std((2, 3)).max())
    flat = replace(
        picture, inputs=replace(picture.inputs, tensors={"pixel_values": torch.full_like(pixels, 0.7)})
    )
    assert_close(blank_of(flat, "blurred"), torch.full_like(pixels, 0.7))
    masks = torch.zeros(1, 16, dtype=torch.bool)
    masks[0, 5] = True
    expected = torch.zeros(1, 1, 32, 32, dtype=torch.bool)
    expected[..., 8:16, 8:16] = True
    assert torch.equal(covered(picture, masks), expected)
    for kind in PICTURE_FILLS:
        assert replacement_note(picture, kind).startswith("Patches were replaced by ")
    assert len({replacement_note(picture, kind) for kind in PICTURE_FILLS}) == 5


def test_fills_of_texts(run):
    table = run.model.module.get_input_embeddings().weight
    kept, special = kept_positions(run.inputs), [0, run.embedded.shape[1] - 1]
    expected = {"mask": table[4], "pad": table[0], "mean": table.mean(0), "zero": torch.zeros(32)}
    for kind, vector in expected.items():
        blank = blank_of(run, kind)
        assert_close(blank[0, kept], vector.detach().expand(len(kept), -1))
        assert torch.equal(blank[0, special], run.embedded[0, special])
    assert torch.equal(blank_of(run, "default"), blank_of(run, "mask"))
    assert replacement_note(run, "pad") == "Tokens were replaced by [PAD]."


def test_replacing_keeps_the_places_of_the_others(tmp_path):
    """RoBERTa counts positions by what is no padding: a padding token put there would move all that follow."""
    model = loaded(tmp_path, "RobertaForSequenceClassification", "RobertaConfig", byte_level(roberta=True),
                   **(LIVELY | {"pad_token_id": 1, "max_position_embeddings": 70}))  # fmt: skip
    run = forward_pass(model, encode_text(model, "we say hello"))
    masks = torch.eye(len(kept_positions(run.inputs)), dtype=torch.bool)[:1]
    position_ids = torch.arange(run.embedded.shape[1])[None] + 2
    ids = run.inputs.tensors["input_ids"].clone()
    assert_close(logits(model, **(run.inputs.tensors | {"position_ids": position_ids})), run.outputs.logits)
    ids[0, 1] = 1
    expected = logits(model, **(run.inputs.tensors | {"input_ids": ids, "position_ids": position_ids}))
    moved = logits(model, **(run.inputs.tensors | {"input_ids": ids}))
    found = target_values(run, class_logit(0), masks, replacement="pad")
    assert_close(found, expected[:, 0])
    assert abs(float(found - moved[:, 0])) > 1e-3


@pytest.mark.parametrize(
    ("model", "config", "tokenizer", "options", "words"),
    [
        ("BertForSequenceClassification", "BertConfig", word_piece, BERT, "[MASK]"),
        ("BartForConditionalGeneration", "BartConfig", unigram, BART, "<mask>"),
        ("GPT2LMHeadModel", "GPT2Config", byte_level, GPT2, "the mean of the model's word embeddings"),
        ("T5ForConditionalGeneration", "T5Config", None, T5, "the mean of the model's word embeddings"),
    ],
)
def test_the_default_of_each_family(tmp_path, model, config, tokenizer, options, words):
    found = loaded(tmp_path, model, config, tokenizer() if tokenizer else None, **options)
    ids = torch.tensor([[5, 6, 7]])
    tensors = {"input_ids": ids} | ({"decoder_input_ids": ids} if found.is_encoder_decoder else {})
    tokens = tuple(TokenLabel(str(i), str(i), special=False, word=i) for i in range(3))
    run = forward_pass(found, replace(EMPTY, tensors=tensors, tokens=tokens, target_tokens=tokens))
    assert replacement_note(run, "default") == f"Tokens were replaced by {words}."
    if tokenizer and found.processor.mask_token_id is not None:
        expected = found.module.get_input_embeddings()(torch.tensor(found.processor.mask_token_id))
    else:
        expected = found.module.get_input_embeddings()(torch.arange(400)).mean(0)
    assert_close(blank_of(run, "default")[0], expected.detach().expand(3, -1))


@pytest.mark.parametrize("task", ["GPT2LMHeadModel", "GPT2ForSequenceClassification"])
def test_padding_that_ends_the_text_stands_in_for_nothing(tmp_path, task):
    """Many decoders pad with their end of text; put into a sentence it would say that the sentence ends there."""
    tokenizer = byte_level()
    tokenizer.pad_token = tokenizer.eos_token
    options = GPT2 | {"pad_token_id": tokenizer.eos_token_id, "initializer_range": 0.3}
    model = loaded(tmp_path, task, "GPT2Config", tokenizer, **options)
    run = forward_pass(model, encode_text(model, "we say hello"))
    target = class_logit(1) if "Sequence" in task else token_log_probability(1, 40)
    found = leave_one_out(run, target)
    assert found.notes == ("Tokens were replaced by the mean of the model's word embeddings.",)
    entry, mean = run.embedded.detach(), model.module.transformer.wte.weight.mean(0)
    for index, score in enumerate(found.scores):
        changed = entry.clone()
        changed[0, index] = mean
        with torch.no_grad():
            alone = target.value(outputs_at(run, changed))
        assert float(score) == pytest.approx(run.value(target) - float(alone[0]), abs=1e-5)
    ended = leave_one_out(run, target, replacement="pad")
    assert "<|endoftext|>" in ended.notes[0]
    assert not torch.allclose(ended.scores, found.scores, atol=1e-3)


def test_padding_put_last_does_not_move_what_a_classifier_reads(tmp_path):
    """GPT-2's head reads the last token that is no padding: by the ids of the text, whatever replaces its tokens."""
    tokenizer = byte_level()
    tokenizer.pad_token = tokenizer.eos_token
    options = GPT2 | {"pad_token_id": tokenizer.eos_token_id, "initializer_range": 0.3}
    model = loaded(tmp_path, "GPT2ForSequenceClassification", "GPT2Config", tokenizer, **options)
    run = forward_pass(model, encode_text(model, "we say hello"))
    last = torch.zeros(1, len(kept_positions(run.inputs)), dtype=torch.bool)
    last[0, -1] = True
    ids = run.inputs.tensors["input_ids"].clone()
    ids[0, -1] = tokenizer.pad_token_id
    with torch.no_grad():
        state = model.module.transformer(input_ids=ids).last_hidden_state
        read = model.module.score(state)
    found = target_values(run, class_logit(1), last, replacement="pad")
    assert_close(found, read[:, -1, 1])
    assert abs(float(found - read[0, -2, 1])) > 1e-3


def test_encoder_decoders_keep_the_decoders_input(tmp_path):
    model = loaded(tmp_path, "BartForConditionalGeneration", "BartConfig", unigram(), **BART)
    run = forward_pass(model, encode_text(model, "the house", target="das haus ist"))
    masks = torch.eye(len(kept_positions(run.inputs)), dtype=torch.bool)
    tensors = shortened_inputs(run, masks)
    given = run.inputs.tensors["decoder_input_ids"]
    assert torch.equal(tensors["decoder_input_ids"], given.expand(len(masks), -1))
    for kind in ("default", "mean", "remove"):
        values = target_values(run, token_log_probability(1, 30), masks, replacement=kind)
        assert values.shape == (len(masks),)
    assert leave_one_out(run, token_log_probability(1, 30)).scores.shape == (len(masks),)


def test_a_model_that_needs_its_ids_keeps_them(tmp_path):
    """BART's classifier finds the end of the text by its id."""
    model = loaded(tmp_path, "BartForSequenceClassification", "BartConfig", unigram(), **BART, init_std=0.3)
    run = forward_pass(model, encode_text(model, "the house is old"))
    for kind in TEXT_FILLS:
        assert float(leave_one_out(run, class_logit(0), replacement=kind).scores.abs().max()) > 1e-6


def test_a_decoder_of_one_target_length_is_not_cut(tmp_path):
    """The decoder's input may be as long as the encoder's: only the encoder's is cut."""
    model = loaded(tmp_path, "BartForConditionalGeneration", "BartConfig", unigram(), **BART)
    run = forward_pass(model, encode_text(model, "the house", target="the house"))
    count = run.inputs.tensors["input_ids"].shape[1]
    assert run.inputs.tensors["decoder_input_ids"].shape[1] == count
    masks = torch.eye(len(kept_positions(run.inputs)), dtype=torch.bool)
    tensors = shortened_inputs(run, masks)
    assert tensors["decoder_input_ids"].shape[1] == count
    assert tensors["input_ids"].shape[1] == tensors["attention_mask"].shape[1] == count - 1


def test_classifiers_that_take_no_batch_run_one_by_one(tmp_path):
    model = loaded(tmp_path, "GPT2ForSequenceClassification", "GPT2Config", byte_level(), **GPT2)
    run = forward_pass(model, encode_text(model, "we say hello"))
    assert batch_items(run.model, run.inputs) == 1
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
    monkeypatch.setattr(perturbation, "batch_items", lambda *_: 3)
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

        one.masked.clear()
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
    with pytest.raises(TypeError, match="target_values: masks must be boolean"):
        target_values(run, class_logit(0), masks.float())
    with pytest.raises(ValueError, match=rf"target_values: masks must be \(B, {count}\)"):
        target_values(run, class_logit(0), masks[:, 1:])
    with pytest.raises(ValueError, match="masks must have 2 axes"):
        target_values(run, class_logit(0), masks[0])
    with pytest.raises(
        ValueError,
        match=r"replacement must be one of default, mask, .*, remove for this input but is 'blurred'",
    ):
        leave_one_out(run, class_logit(0), replacement="blurred")
    with pytest.raises(ValueError, match=r"replacement must be one of default, mean, .* but is 'remove'"):
        leave_one_out(picture, class_logit(0), replacement="remove")
    masks[0] = True
    with pytest.raises(ValueError, match="masks must delete equally many tokens"):
        shortened_inputs(run, masks)
    with pytest.raises(ValueError, match="run must be of a text"):
        leave_words_out(picture, class_logit(0))
    with pytest.raises(ValueError, match=r"blank_of: kind must be one of .* but is 'remove'"):
        blank_of(run, "remove")
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
        shortened_inputs(run, masks)
    for kind in ("mask", "pad"):
        with pytest.raises(UnsupportedModelError, match=f"has no {kind} token .*; choose replacement='mean'"):
            leave_one_out(run, token_log_probability(1, 40), replacement=kind)


def test_a_text_of_special_tokens_alone_has_no_scores(bert):
    run = forward_pass(bert, encode_text(bert, ""))
    for method in (leave_one_out, leave_words_out):
        for kind in ("default", "remove"):
            assert method(run, class_logit(0), replacement=kind).scores.shape == (0,)
