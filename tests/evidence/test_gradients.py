"""Gradient methods against captum's own numbers, in closed form, and that they leave no trace."""

from __future__ import annotations

import contextvars
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from captum.attr import NoiseTunnel, Saliency
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from torch.testing import assert_close

from analysis.errors import UnsupportedModelError
from analysis.evidence import gradients, perturbation
from analysis.evidence.explanation import to_words
from analysis.evidence.gradients import (
    input_x_gradient,
    integrated_gradients,
    occlusion,
    saliency,
    smooth_grad,
)
from analysis.evidence.passes import ForwardPass, forward_pass, input_embeddings
from analysis.evidence.perturbation import leave_one_out
from analysis.evidence.targets import Outputs, Target, class_logit, token_log_probability
from analysis.figure_data import TokenLabel
from analysis.inputs import Inputs, PatchGrid, encode_pair, encode_text
from analysis.models import load_model
from analysis.words import word_groups
from tests.evidence.oracle_models import ORACLES, oracle, small_vit
from tests.input_helpers import BART, BERT, GPT2, byte_level, loaded, unigram, word_piece

TEXTS = ("bert_text0_class0", "bert_text0_class2", "bert_text1_class1")
PICTURES = ("vit_noise_class1", "vit_tabby_class1")
METHODS = {
    "integrated_gradients": lambda run, target, **more: integrated_gradients(run, target, steps=9, **more),
    "smooth_grad": lambda run, target, **more: smooth_grad(run, target, samples=6, **more),
    "occlusion": occlusion,
    "saliency": saliency,
    "input_x_gradient": input_x_gradient,
}
PLAIN = {"stretches": 1, "most": 1}  # captum's own rule: no stretches, no halving
LIVELY = BERT | {"initializer_range": 0.3}  # logits that depend on the words
WITH_PROGRESS = ("integrated_gradients", "smooth_grad", "occlusion")


class Stopped(Exception):
    """What a stop button raises."""


@cache
def small_bert(dtype):
    """The random BERT: hidden 32, 2 layers, 2 heads, 3 labels; no tokenizer."""
    return load_model(ORACLES / "models" / "bert_tiny_seed0", device="cpu", dtype=dtype)


def text_inputs(ids, tokens):
    """Tokens by hand: the oracle's model has no tokenizer."""
    special = {"[CLS]", "[SEP]"}
    return Inputs(
        tensors={
            "input_ids": torch.as_tensor(ids)[None],
            "attention_mask": torch.ones(1, len(ids), dtype=torch.long),
        },
        tokens=tuple(
            TokenLabel(t, t, special=t in special, word=None if t in special else i)
            for i, t in enumerate(tokens)
        ),
        target_tokens=None, grid=None, picture=None, source="", digest="", notes=(),
        total_tokens=len(ids), kept_tokens=len(ids),
    )  # fmt: skip


def picture_inputs(values, patch, prefix=1):
    height, width = values.shape[2:]
    grid = PatchGrid(
        height // patch, width // patch, patch, height // patch * patch, width // patch * patch, prefix
    )
    count = prefix + grid.rows * grid.columns
    return Inputs(
        tensors={"pixel_values": values}, tokens=None, target_tokens=None, grid=grid, picture=None, source="",
        digest="", notes=(), total_tokens=count, kept_tokens=count,
    )  # fmt: skip


@cache
def oracle_run(name, dtype):
    arrays, meta = oracle("05_captum", name)
    if "tokens" in meta:
        model, inputs = small_bert(dtype), text_inputs(arrays["input_ids"], meta["tokens"])
    else:
        values = torch.from_numpy(arrays["pixel_values"]).to(getattr(torch, dtype))
        model, inputs = small_vit(dtype), picture_inputs(values, 8)
    return forward_pass(model, inputs), class_logit(meta["target_class"]), arrays


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return loaded(
        tmp_path_factory.mktemp("bert"), "BertForSequenceClassification", "BertConfig", word_piece(), **LIVELY
    )


@pytest.fixture
def run(bert):
    return forward_pass(bert, encode_text(bert, "The quick brown fox jumps over the lazy dog"))


@pytest.fixture
def attributions(monkeypatch):
    """What captum gave, before it is summed to one number a position."""
    seen = []
    summed = gradients._by_position

    def spy(run, attribution):
        seen.append(attribution.detach())
        return summed(run, attribution)

    monkeypatch.setattr(gradients, "_by_position", spy)
    return seen


def hold(found, expected, dtype, single=1e-4):
    """The oracle's stated tolerance."""
    exact = {"rtol": 1e-7, "atol": 1e-10} if dtype == "float64" else {}
    assert_allclose(
        np.asarray(found), expected, **(exact or {"rtol": 0, "atol": single * np.abs(expected).max()})
    )


def patches(pixels):
    """(C, 32, 32) → the sum over each patch of 8."""
    return pixels.sum(0).reshape(4, 8, 4, 8).sum((1, 3)).ravel()


def state(model):
    """All that a method might leave behind."""
    return (
        {name: value.clone() for name, value in model.module.state_dict().items()},
        [(p.requires_grad, p.grad) for p in model.module.parameters()],
        [
            (len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks), m.training)
            for m in model.module.modules()
        ],
        sorted(vars(model.module.config)),
    )


def assert_same(before, after):
    assert before[1:] == after[1:]
    assert all(torch.equal(value, after[0][name]) for name, value in before[0].items())


# Other people's numbers


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize(
    ("baseline", "key"),
    [("pad", "lig_word"), ("pad", "ig_word_padbaseline"), ("zero", "ig_word_zerobaseline")],
)
@pytest.mark.parametrize("name", TEXTS)
def test_integrated_gradients_of_text_are_captums(name, baseline, key, dtype, attributions):
    run, target, arrays = oracle_run(name, dtype)
    found = integrated_gradients(run, target, baseline=baseline, **PLAIN)
    hold(attributions[0][0], arrays[key], dtype, 1e-3)
    hold(found.scores, arrays[f"{key}_tokens"][1:-1], dtype, 1e-3)
    scale = np.abs(arrays[key]).max()
    assert found.details["delta"] == pytest.approx(
        float(arrays[f"{key}_delta"][0]), abs=1e-10 if dtype == "float64" else 1e-3 * scale
    )
    assert found.details["steps"] == 50
    assert found.positions.tolist() == list(range(1, len(arrays["input_ids"]) - 1))
    assert (found.removed > 1e-3) == (baseline == "zero"), "special tokens are their own baseline under 'pad'"


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", PICTURES)
def test_integrated_gradients_of_pictures_are_captums(name, dtype, attributions):
    run, target, arrays = oracle_run(name, dtype)
    found = integrated_gradients(run, target, baseline="zero", **PLAIN)
    hold(attributions[0][0], arrays["ig_zerobaseline"], dtype, 1e-3)
    hold(found.scores, patches(arrays["ig_zerobaseline"]), dtype, 1e-3)
    assert found.details["delta"] == pytest.approx(
        float(arrays["ig_delta"][0]), abs=1e-9 if dtype == "float64" else 1e-3
    )
    assert found.to_grid().shape == (4, 4)
    assert found.removed < 1e-6


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", TEXTS)
def test_gradients_of_text_are_captums(name, dtype, attributions):
    run, target, arrays = oracle_run(name, dtype)
    for key, method, options in (
        ("inputxgradient_word", input_x_gradient, {}),
        ("gradxact_word", input_x_gradient, {}),
        ("saliency_word", saliency, {}),
        ("saliency_word_signed", saliency, {"absolute": False}),
    ):
        found = method(run, target, **options)
        hold(attributions.pop()[0], arrays[key], dtype)
        if key == "saliency_word_signed":  # LayerNorm makes them sum to 0
            assert "cancel" in found.notes[0]
            assert float(found.scores.abs().max()) < 1e-5 * np.abs(arrays[key]).max() * 32
        else:
            assert not found.notes
            hold(found.scores, arrays[f"{key}_tokens"][1:-1], dtype)
        assert found.signed == (key != "saliency_word")


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("name", PICTURES)
def test_gradients_of_pictures_are_captums(name, dtype, attributions):
    run, target, arrays = oracle_run(name, dtype)
    for key, method in (("inputxgradient", input_x_gradient), ("saliency", saliency)):
        found = method(run, target)
        hold(attributions.pop()[0], arrays[key], dtype)
        hold(found.scores, patches(arrays[key]), dtype)
    expected = arrays["occlusion_8x8_zero"][0, ::8, ::8].ravel()  # spread over the patch's pixels
    hold(occlusion(run, target, window=1, replacement="zero").scores, expected, dtype)
    hold(leave_one_out(run, target, replacement="zero").scores, expected, dtype)


# Closed form


def test_on_a_linear_model_all_methods_agree(tmp_path, attributions):
    """What GPT-2 hands to its first layer is linear in the word embeddings; a weighted sum of it is the target."""
    model = loaded(tmp_path, "GPT2LMHeadModel", "GPT2Config", byte_level(), **(GPT2 | {"n_layer": 1}))
    run = forward_pass(model, encode_text(model, "we say hello"))
    weights = torch.randn(run.embedded.shape[1:], generator=torch.Generator().manual_seed(1))
    watched = []
    handle = model.module.transformer.drop.register_forward_hook(
        lambda _, __, out: watched.append(out) or None
    )
    target = Target("linear", "linear", lambda _: (watched[-1] * weights).sum((1, 2)), ("linear",))
    try:
        watched.append(run.embedded)
        exact = (run.embedded[0] * weights).sum(-1).detach()
        product = input_x_gradient(run, target).scores
        path = integrated_gradients(run, target, baseline="zero", steps=3)
        hidden = to_words(occlusion(run, target, replacement="zero"), run.inputs.tokens)[0].scores
    finally:
        handle.remove()
    assert_close(product, exact, rtol=1e-4, atol=1e-5)
    assert_close(path.scores, exact, rtol=1e-4, atol=1e-5)
    assert abs(path.details["delta"]) < 1e-4
    _, groups = to_words(path, run.inputs.tokens)
    assert len(groups) == 3 < len(exact)
    assert_close(
        hidden.float(), torch.stack([exact[list(group)].sum() for group in groups]), rtol=1e-3, atol=1e-4
    )


@settings(max_examples=12)
@given(rows=st.integers(1, 4), columns=st.integers(1, 4), window=st.integers(1, 4), seed=st.integers(0, 99))
def test_occlusion_is_the_mean_over_the_windows_that_cover_a_patch(rows, columns, window, seed):
    """On any grid, also where pixels lie beyond the last patch: checked with a sum of patches."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(1, 3, rows * 8 + 3, columns * 8, generator=generator)
    factors = torch.randn(rows, columns, generator=generator)
    run = fake_run(values)
    read = []
    target = Target("", "", lambda _: (patch_grid(read[-1], rows, columns) * factors).sum((1, 2)), ())
    run.model.module.register_forward_pre_hook(
        lambda _, __, given: read.append(given["pixel_values"]), with_kwargs=True
    )
    read.append(values)
    if window > min(rows, columns):
        with pytest.raises(ValueError, match="window must be between 1 and"):
            occlusion(run, target, window=window, replacement="zero")
        return
    found = occlusion(run, target, window=window, replacement="zero").to_grid()
    single = patch_grid(values, rows, columns)[0] * factors
    total, covers = torch.zeros(rows, columns), torch.zeros(rows, columns)
    for row in range(rows - window + 1):
        for column in range(columns - window + 1):
            square = (slice(row, row + window), slice(column, column + window))
            total[square] += single[square].sum()
            covers[square] += 1
    assert_close(found.float(), total / covers, rtol=1e-3, atol=1e-3)
    read.append(values)
    product = input_x_gradient(run, target)
    assert_close(product.to_grid(), single, rtol=1e-3, atol=1e-3)
    read.append(values)
    assert_close(
        integrated_gradients(run, target, steps=2, baseline="zero").to_grid(), single, rtol=1e-3, atol=1e-3
    )


def patch_grid(pixels, rows, columns):
    return pixels[..., : rows * 8, :].reshape(len(pixels), 3, rows, 8, columns, 8).sum((1, 3, 5))


def fake_run(values):
    """A pass on pixels of any size of a module that returns nothing: targets read what went in."""

    class Empty(torch.nn.Module):
        def forward(self, pixel_values):
            return None

    model = replace(small_vit("float32"), module=Empty(), attention_inputs=())
    inputs = picture_inputs(values, 8)
    kept = torch.arange(1, inputs.total_tokens)
    return ForwardPass(model, inputs, Outputs(None, None, kept), {}, (), values)


def test_completeness_grows_with_the_steps():
    run, target, _ = oracle_run("bert_text0_class0", "float64")
    errors = [
        abs(integrated_gradients(run, target, steps=steps, **PLAIN).details["delta"]) for steps in (1, 8, 64)
    ]
    assert errors[2] < 1e-2 * errors[1] < 1e-3 * errors[0]


def test_scores_sum_to_the_rise_from_the_baseline(run):
    # the order of the vocabulary, and so the model, differs by run: enough steps for any
    found = integrated_gradients(run, class_logit(0), steps=160)
    rise = found.details["value"] - found.details["baseline_value"]
    assert float(found.scores.sum()) == pytest.approx(rise, abs=1e-4)
    ids = run.inputs.tensors["input_ids"].clone()
    ids[0, 1:-1] = run.model.processor.mask_token_id
    with torch.no_grad():
        logits = run.model.module(**(run.inputs.tensors | {"input_ids": ids})).logits
    assert found.details["baseline_value"] == pytest.approx(float(logits[0, 0]), abs=1e-5)
    assert "[MASK]" in found.notes[0]


def test_too_few_steps_are_told():
    run, target, _ = oracle_run("vit_noise_class1", "float32")
    assert any("take more" in note for note in integrated_gradients(run, target, steps=1, most=1).notes)
    assert not any("take more" in note for note in integrated_gradients(run, target, steps=64).notes)


def steep_run(place, width):
    """A target that rises by 3 about one place on the way from an empty picture, as picture models do."""
    run = fake_run(torch.linspace(0.5, 1.5, 3 * 16 * 16).reshape(1, 3, 16, 16))
    read = [run.inputs.tensors["pixel_values"]]
    run.model.module.register_forward_pre_hook(
        lambda _, __, given: read.append(given["pixel_values"]), with_kwargs=True
    )

    def value(_):
        return 1.5 * torch.tanh((read[-1].mean((1, 2, 3)) - place) / width)

    return run, Target("steep", "steep", value, ())


@pytest.mark.parametrize(("place", "width"), [(0.5, 0.3), (0.03, 0.01), (0.03, 0.002), (0.005, 0.001)])
def test_a_steep_start_is_no_matter(place, width):
    """What one rule of 50 points may miss, stretches of 10 find, or halving does."""
    run, target = steep_run(place, width)
    plain = integrated_gradients(run, target, baseline="zero", **PLAIN)
    found = integrated_gradients(run, target, baseline="zero")
    rise = found.details["value"] - found.details["baseline_value"]
    assert abs(found.details["delta"]) < 0.05 * rise
    assert float(found.scores.sum()) == pytest.approx(rise + found.details["delta"], abs=1e-4)
    assert 50 <= found.details["steps"] <= 200
    assert plain.details["steps"] == 50
    assert (abs(plain.details["delta"]) > 0.05 * rise) == (width < 0.005)


def test_halving_stops_at_the_most_and_says_so():
    run, target = steep_run(0.03, 1e-6)
    for most in (50, 90, 200):
        found = integrated_gradients(run, target, baseline="zero", most=most)
        assert most - 20 < found.details["steps"] <= most
        assert f"after {int(found.details['steps'])} steps" in found.notes[1]
        missed = float(found.scores.sum()) - found.details["value"] + found.details["baseline_value"]
        assert found.details["delta"] == pytest.approx(missed, abs=1e-4)


@settings(max_examples=15)
@given(steps=st.integers(1, 30), stretches=st.integers(1, 7), most=st.integers(0, 60))
def test_any_stretches_find_the_integral_of_a_polynomial(steps, stretches, most):
    """Two Gauss–Legendre points are exact for a cubic: so is every cut of the line into stretches of two."""
    run, _ = steep_run(0.5, 1.0)
    read = []
    run.model.module.register_forward_pre_hook(
        lambda _, __, given: read.append(given["pixel_values"]), with_kwargs=True
    )
    target = Target("cubic", "cubic", lambda _: (read[-1].double() ** 3).mean((1, 2, 3)), ())
    read.append(run.inputs.tensors["pixel_values"])
    found = integrated_gradients(
        run, target, steps=2 * steps * stretches, stretches=stretches, most=most, baseline="zero"
    )
    cubes = run.inputs.tensors["pixel_values"].double() ** 3 / (3 * 16 * 16)
    assert_close(found.scores.double(), patch_grid(cubes, 2, 2).flatten(), rtol=1e-4, atol=1e-6)
    assert found.details["steps"] == 2 * steps * stretches


def test_smooth_grad_is_captums_noise_tunnel(attributions):
    run, target, _ = oracle_run("vit_noise_class1", "float64")
    found = smooth_grad(run, target, samples=7, level=0.2, seed=3)
    entry = run.inputs.tensors["pixel_values"].clone().requires_grad_()
    tunnel = NoiseTunnel(Saliency(lambda x: run.model.module(pixel_values=x).logits[:, 1]))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        expected = tunnel.attribute(
            entry,
            nt_samples=7,
            nt_type="smoothgrad",
            stdevs=0.2 * float((entry.max() - entry.min()).detach()),
            abs=False,
        )
    assert_close(attributions[0], expected.abs(), rtol=1e-4, atol=1e-6)  # deviations are single there
    assert not found.signed
    assert bool((found.scores >= 0).all())


def test_smooth_grad_is_seeded_and_leaves_the_random_state(run):
    before = torch.random.get_rng_state()
    first, second, other = (smooth_grad(run, class_logit(0), samples=4, seed=s).scores for s in (5, 5, 6))
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(first, second)
    assert not torch.allclose(first, other)
    assert_close(
        smooth_grad(run, class_logit(0), samples=3, level=0.0).scores, saliency(run, class_logit(0)).scores
    )


def test_batches_change_nothing(run, monkeypatch):
    whole = {name: method(run, class_logit(1)).scores for name, method in METHODS.items()}
    monkeypatch.setattr(gradients, "BATCH_TOKENS", 30)
    for name, method in METHODS.items():
        assert_close(method(run, class_logit(1)).scores, whole[name], rtol=1e-4, atol=1e-6)


# What a score must mean


@pytest.mark.parametrize("method", METHODS)
def test_an_ignored_token_scores_nothing(bert, method):
    """A token that the attention mask hides cannot reach the logit."""
    inputs = encode_text(bert, "the house is old")
    tensors = {name: tensor.clone() for name, tensor in inputs.tensors.items()}
    tensors["attention_mask"][0, 3] = 0
    found = METHODS[method](forward_pass(bert, replace(inputs, tensors=tensors)), class_logit(0))
    at = found.positions.tolist().index(3)
    words = {i: w.word for i, w in enumerate(inputs.tokens)}
    alone = method != "occlusion" or sum(w == words[3] for w in words.values()) == 1
    assert not alone or abs(float(found.scores[at])) < 1e-6
    assert float(found.scores.abs().max()) > 1e-4


@pytest.mark.parametrize("method", METHODS)
def test_a_planted_word_wins(tmp_path, method):
    """Attention carries nothing and the target reads one place: its word alone decides."""
    model = loaded(tmp_path, "BertForSequenceClassification", "BertConfig", word_piece(), **LIVELY)
    with torch.no_grad():
        for layer in model.module.bert.encoder.layer:
            layer.attention.output.dense.weight.zero_()
            layer.attention.output.dense.bias.zero_()
    run = forward_pass(model, encode_text(model, "naive owners say the day is great"))
    words = [run.inputs.tokens[group[0]].text for group in word_groups(run.inputs.tokens)]
    place = word_groups(run.inputs.tokens)[words.index("the")]
    direction = torch.linspace(-1, 1, 32)
    target = Target("planted", "planted", lambda o: o.hidden[:, place[0]] @ direction, ("planted",))
    for found in (METHODS[method](run, target), leave_one_out(run, target)):
        decisive = found.scores.abs() > 1e-5
        assert found.positions[decisive].tolist() == list(place)


def test_a_planted_patch_wins():
    model = small_vit("float32")
    values = torch.zeros(1, 3, 32, 32)
    values[:, :, 8:16, 16:24] = 1.5
    run = forward_pass(model, picture_inputs(values, 8))
    for found in (
        integrated_gradients(run, class_logit(2), steps=9, baseline="zero"),
        occlusion(run, class_logit(2), window=1, replacement="zero"),
        input_x_gradient(run, class_logit(2)),
    ):
        assert found.strongest(1) == [6]
        assert int((found.scores.abs() > 1e-6).sum()) == 1, "what is its own baseline has no share"


def test_baselines_of_pictures():
    run, target, _ = oracle_run("vit_tabby_class1", "float32")
    answers = {
        kind: integrated_gradients(run, target, baseline=kind, steps=12)
        for kind in ("default", "zero", "mean", "black", "white", "blurred")
    }
    assert torch.equal(answers["default"].scores, answers["mean"].scores)
    distinct = {round(float(found.scores.sum()), 4) for found in answers.values()}
    assert len(distinct) == 5
    assert len({found.notes[0] for found in answers.values()}) == 5


def test_a_pair_keeps_its_separators(bert):
    run = forward_pass(bert, encode_pair(bert, "the house is old", "a great day"))
    found = integrated_gradients(run, class_logit(0), steps=20)
    special = [i for i, token in enumerate(run.inputs.tokens) if token.special]
    assert len(special) == 3
    assert set(special).isdisjoint(found.positions.tolist())
    assert found.removed < 1e-6


def test_words_are_occluded_whole(bert):
    run = forward_pass(bert, encode_text(bert, "naive owners resume work"))
    found = occlusion(run, class_logit(0))
    words, groups = to_words(found, run.inputs.tokens)
    assert max(map(len, groups)) > 1
    for score, group in zip(words.scores, groups, strict=True):
        ids = run.inputs.tensors["input_ids"].clone()
        ids[0, list(group)] = bert.processor.mask_token_id
        with torch.no_grad():
            logits = bert.module(**(run.inputs.tensors | {"input_ids": ids})).logits
        assert float(score) == pytest.approx(run.value(class_logit(0)) - float(logits[0, 0]), abs=1e-5)


@pytest.mark.parametrize("kind", ["default", "mean", "zero"])
def test_a_window_of_one_is_leave_one_out(run, kind):
    """One vocabulary and one way to replace: whole words of a text, single patches of a picture."""
    words = perturbation.leave_words_out(run, class_logit(0), replacement=kind)
    found = occlusion(run, class_logit(0), replacement=kind)
    assert_close(found.scores, words.scores, rtol=1e-4, atol=1e-6)
    assert found.notes == words.notes
    picture, target, _ = oracle_run("vit_tabby_class1", "float64")
    patches = leave_one_out(picture, target, replacement=kind)
    found = occlusion(picture, target, window=1, replacement=kind)
    assert_close(found.scores, patches.scores, rtol=1e-5, atol=1e-7)
    assert found.notes == patches.notes
    assert found.details["replacement"] == patches.details["replacement"]


# Families


def test_causal_language_models(tmp_path):
    """Their only special token ends a text, and is no baseline; later tokens are ignored."""
    model = loaded(tmp_path, "GPT2LMHeadModel", "GPT2Config", byte_level(), **GPT2)
    run = forward_pass(model, encode_text(model, "we say hello"))
    target = token_log_probability(1, 40)
    for method in METHODS.values():
        found = method(run, target)
        assert float(found.scores[2:].abs().max()) < 1e-6 or found.method == "occlusion"
        assert float(found.scores[:2].abs().max()) > 1e-5
    note = integrated_gradients(run, target, steps=2).notes[0]
    assert (
        note
        == "Baseline: the mean of the model's word embeddings in place of every token but the special ones."
    )


def test_classifiers_that_take_no_batch(tmp_path):
    model = loaded(tmp_path, "GPT2ForSequenceClassification", "GPT2Config", byte_level(), **GPT2)
    run = forward_pass(model, encode_text(model, "we say hello"))
    for method in METHODS.values():
        assert float(method(run, class_logit(1)).scores.abs().max()) > 1e-5


@pytest.mark.parametrize("model_name", ["BartForSequenceClassification", "BartForConditionalGeneration"])
def test_encoder_decoders(tmp_path, model_name):
    model = loaded(tmp_path, model_name, "BartConfig", unigram(), **BART)
    classifier = model.task == "sequence-classification"
    run = forward_pass(model, encode_text(model, "the house", target=None if classifier else "das haus"))
    target = class_logit(0) if classifier else token_log_probability(1, 30)
    found = integrated_gradients(run, target, steps=60)
    assert abs(found.details["delta"]) < 1e-3
    assert any("encoder" in note for note in found.notes)
    assert_close(
        input_x_gradient(run, target).scores,
        (run.embedded[0] * run.gradients(target).embedded).sum(-1)[found.positions].detach(),
        rtol=1e-3,
        atol=1e-6,
    )


def test_stacks_that_share_their_embeddings_vary_the_encoder_alone(tmp_path):
    model = loaded(tmp_path, "BartForConditionalGeneration", "BartConfig", unigram(), **BART)
    inputs = encode_text(model, "the house", target="das haus ist alt")
    apart = forward_pass(model, inputs)
    assert inputs.tensors["decoder_input_ids"].shape[1] != apart.embedded.shape[1]
    target = token_log_probability(1, 30)
    expected = [integrated_gradients(apart, target, steps=8).scores, saliency(apart, target).scores]
    model.module.model.decoder.embed_tokens = model.module.model.encoder.embed_tokens  # equal weights
    shared = forward_pass(model, inputs)
    assert_close(integrated_gradients(shared, target, steps=8).scores, expected[0])
    assert_close(saliency(shared, target).scores, expected[1])


def test_shared_gradients_of_the_pass_are_the_same(run):
    found = input_x_gradient(run, class_logit(0))
    shared = (run.embedded * run.gradients(class_logit(0)).embedded).sum(-1)[0]
    assert_close(found.scores, shared[found.positions].detach(), rtol=1e-4, atol=1e-6)


# Traces, stops and errors


@pytest.mark.parametrize("method", METHODS)
def test_nothing_on_the_model_changes(run, method):
    before = state(run.model)
    plain = METHODS[method](run, class_logit(0)).scores
    with torch.no_grad():
        inside = METHODS[method](run, class_logit(0)).scores
        assert not torch.is_grad_enabled()
    assert torch.is_grad_enabled()
    assert torch.equal(plain, inside)
    assert_same(before, state(run.model))


@pytest.mark.parametrize("method", WITH_PROGRESS)
def test_progress_is_told_and_can_stop(run, method, monkeypatch):
    monkeypatch.setattr(gradients, "BATCH_TOKENS", 30)
    told = []
    METHODS[method](run, class_logit(0), progress=told.append)
    assert told == sorted(told)
    assert len(told) > 3
    assert told[-1] == 1.0
    before = state(run.model)

    def stop(done):
        if done > 0.4:
            raise Stopped

    with pytest.raises(Stopped):
        METHODS[method](run, class_logit(0), progress=stop)
    assert_same(before, state(run.model))
    assert perturbation._given.get() is None


def test_a_failing_pass_leaves_no_hook(run):
    before = state(run.model)
    target = Target("broken", "broken", lambda outputs: 1 / 0, ("broken",))
    for method in METHODS.values():
        with pytest.raises(ZeroDivisionError):
            method(run, target)
    assert_same(before, state(run.model))


def test_threads_that_share_a_model_do_not_mix(bert):
    texts = ["the house is old", "a great day", "his name is hard to say", "the bread is good"]
    runs = [forward_pass(bert, encode_text(bert, text)) for text in texts]
    alone = [integrated_gradients(run, class_logit(0), steps=20).scores for run in runs]
    with ThreadPoolExecutor(4) as pool:
        jobs = [
            pool.submit(contextvars.copy_context().run, integrated_gradients, run, class_logit(0), steps=20)
            for run in runs * 3
        ]
        for job, expected in zip(jobs, alone * 3, strict=True):
            assert_close(job.result().scores, expected)
    assert not input_embeddings(bert.module)._forward_hooks


def test_bad_options_are_told(run):
    target = class_logit(0)
    with pytest.raises(ValueError, match="integrated_gradients: steps must be at least 1 but is 0"):
        integrated_gradients(run, target, steps=0)
    with pytest.raises(
        ValueError, match=r"integrated_gradients: baseline must be one of default, mask, .* 'grey'"
    ):
        integrated_gradients(run, target, baseline="grey")
    with pytest.raises(ValueError, match=r"integrated_gradients: baseline .* but is 'remove'"):
        integrated_gradients(run, target, baseline="remove")
    with pytest.raises(ValueError, match="smooth_grad: samples must be at least 1"):
        smooth_grad(run, target, samples=0)
    with pytest.raises(ValueError, match="smooth_grad: level must be at least 0"):
        smooth_grad(run, target, level=-1.0)
    with pytest.raises(ValueError, match="occlusion: window must be between 1 and 9"):
        occlusion(run, target, window=0)
    with pytest.raises(ValueError, match="occlusion: replacement must be one of"):
        occlusion(run, target, replacement="black")
    with pytest.raises(ValueError, match="index must be between 0 and 1"):
        saliency(run, class_logit(7))


def test_a_target_that_no_gradient_reaches_is_told(run):
    target = Target("fixed", "fixed", lambda o: o.logits.detach()[:, 0], ("fixed",))
    for method in (integrated_gradients, input_x_gradient, saliency, smooth_grad):
        with pytest.raises(UnsupportedModelError, match="'fixed' does not depend on the input"):
            method(run, target)
    endless = Target("endless", "endless", lambda o: o.logits[:, 0] / 0, ("endless",))
    with pytest.raises(ValueError, match="the target 'endless' is"):
        saliency(run, endless)


def test_a_text_of_special_tokens_alone_has_no_scores(bert):
    run = forward_pass(bert, encode_text(bert, ""))
    for method in METHODS.values():
        assert method(run, class_logit(0)).scores.shape == (0,)
