"""CDAM against the authors' programs, its identities, and that it leaves no trace."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from safetensors.numpy import load_file
from torch import nn
from torch.testing import assert_close

from analysis.catalogue import VIT_S14, is_installed
from analysis.evidence import cdam as cdam_module
from analysis.evidence.blocks import block_names
from analysis.evidence.cdam import cdam, integrated_cdam, smooth_cdam
from analysis.evidence.gradcam import gradcam
from analysis.evidence.passes import forward_pass
from analysis.evidence.targets import class_logit, concept_similarity, mean_direction
from analysis.inputs import encode_text
from analysis.models import load_model
from tests.evidence.oracle_models import ORACLES, PICTURES, oracle, pixels_of, small_vit
from tests.input_helpers import byte_level, loaded

CASES = [(name, label) for name in PICTURES for label in (1, 3)]


def close(found, expected, *, relative=1e-7, of_largest=1e-10):
    assert_allclose(np.asarray(found), expected, rtol=relative, atol=of_largest * np.abs(expected).max())


@cache
def eager_vit():
    """With the library's own attention, whose softmax is in single precision."""
    model = load_model(ORACLES / "models" / "vit_small_seed0", device="cpu", dtype="float64")
    model.module.set_attn_implementation("eager")
    return model


def run_of(name, dtype="float64"):
    arrays, _ = oracle("03_cdam", name)
    values = pixels_of(arrays["pixel_values"], patch=8, dtype=getattr(torch, dtype))
    return forward_pass(small_vit(dtype), values), arrays


@pytest.mark.parametrize(("name", "label"), CASES)
def test_cdam_is_the_authors(name, label):
    run, arrays = run_of(name)
    found = cdam(run, class_logit(label))
    close(found.scores, arrays[f"c{label}_cdam"])
    assert found.signed
    assert found.to_grid().shape == (4, 4)
    close(run.token_gradient(class_logit(label), -1), arrays[f"c{label}_grad_at_norm1_output"])
    other = arrays[f"c{label}_gradient_x_blockinput_NOT_cdam"]
    assert np.abs(found.scores.numpy() - other).max() > 1e-3 * np.abs(other).max()


@pytest.mark.parametrize(("name", "label"), CASES)
def test_cdam_in_single_precision(name, label):
    run, arrays = run_of(name, "float32")
    close(cdam(run, class_logit(label)).scores, arrays[f"c{label}_cdam"], relative=0, of_largest=1e-4)


@pytest.mark.parametrize("place", ["attention", "block"])
@pytest.mark.parametrize(("name", "label"), CASES)
def test_smooth_and_integrated_cdam_are_those_of_the_two_programs(name, label, place):
    """The programs ran on a softmax in single precision; no more than what that changes is allowed."""
    run, arrays = run_of(name)
    single = replace(run, model=eager_vit())
    noise = torch.from_numpy(arrays["eps"]).double()
    where = {"attention": "norm1", "block": "blockinput"}[place]
    target = class_logit(label)

    def check(method, key, **options):
        found, rounded = (
            method(r, target, place=place, noise=noise, **options).scores for r in (run, single)
        )
        expected = arrays[f"c{label}_{key}"]
        largest = np.abs(expected).max()
        wobble = float((found - rounded).abs().max()) / largest
        assert wobble < 1e-6
        close(found, expected, of_largest=max(1e-10, wobble))

    check(smooth_cdam, f"smooth_{where}_noise0.05", level=0.05)
    for level in (0.0, 0.05):
        check(integrated_cdam, f"integrated_{where}_noise{level:g}", level=level)


@pytest.mark.parametrize("name", PICTURES)
def test_concepts_are_the_authors(name):
    run, arrays = run_of(name)
    examples = [
        forward_pass(run.model, pixels_of(values[None], patch=8)).outputs.embedding("first")[0].detach()
        for values in arrays["concept_pixel_values"]
    ]
    direction = mean_direction(examples)
    close(direction, arrays["concept_vector"])
    target = concept_similarity(direction, "dogs", pooling="first")
    close(cdam(run, target).scores, arrays["concept_cdam"])


@pytest.mark.skipif(not is_installed(VIT_S14), reason="the bundled ViT is not installed; run `make bundled`")
def test_cdam_of_the_bundled_vit(optional_data):
    from PIL import Image

    from analysis.conversion import IMAGENET_MEAN, IMAGENET_STD

    arrays, meta = oracle("03_cdam", "dinov2s_tabby")
    head = load_file(ORACLES / "models" / "dinov2s_head_seed0" / "model.safetensors")
    weight, bias = (next(v for v in head.values() if v.ndim == n) for n in (2, 1))
    model = load_model(VIT_S14.name, device="cpu")

    def inputs(name):
        with Image.open(optional_data / "oracles" / "images" / f"{name}.png") as image:
            scaled = (np.asarray(image.convert("RGB")) / 255 - IMAGENET_MEAN) / IMAGENET_STD
        return pixels_of(scaled.transpose(2, 0, 1)[None], patch=14, dtype=torch.float32)

    run = forward_pass(model, inputs("tabby"))
    for label in meta["classes"]:
        target = concept_similarity(torch.from_numpy(weight[label]), str(label), pooling="first")
        assert run.value(target) + float(bias[label]) == pytest.approx(arrays["logits"][label], abs=2e-3)
        close(cdam(run, target).scores, arrays[f"c{label}_cdam"], relative=0, of_largest=2e-3)
        noise = torch.from_numpy(
            np.random.default_rng(2000).standard_normal((50, 257, 384)).astype(np.float32)
        )
        smooth = smooth_cdam(run, target, noise=noise)
        close(smooth.scores, arrays[f"c{label}_smooth_norm1_noise0.05"], relative=0, of_largest=2e-3)
    examples = [
        forward_pass(model, inputs(name)).outputs.embedding("first")[0].detach()
        for name in ("golden_retriever", "zebra")
    ]
    concept = concept_similarity(mean_direction(examples), "animals", pooling="first")
    close(cdam(run, concept).scores, arrays["concept_cdam"], relative=0, of_largest=2e-3)


def test_cdam_is_hirescam_at_the_same_place():
    run, _ = run_of("vit_noise")
    for layer in range(4):
        target = class_logit(2)
        same = gradcam(run, target, layer=layer, variant="hirescam").scores
        assert_close(cdam(run, target, layer=layer).scores, same)


def large(seed=0):
    """64 patches, of which the small part that a model is taken up on has 16."""
    inputs = pixels_of(np.random.default_rng(seed).normal(size=(1, 3, 64, 64)), patch=8)
    return replace(inputs, tensors={**inputs.tensors, "interpolate_pos_encoding": torch.tensor(True)})


def flexible_vit():
    return replace(small_vit(), flexible_image_size=True)


@pytest.mark.parametrize("place", ["attention", "block"])
@pytest.mark.parametrize("whole", [True, False])
def test_layers_below_the_copies_run_once_and_not_for_each_of_them(monkeypatch, place, whole):
    model = flexible_vit()
    run, target = forward_pass(model, large(), whole=whole), class_logit(1)
    monkeypatch.setattr(cdam_module, "TOKENS_AT_ONCE", 130)  # two copies at once
    ran: list[tuple[int, int]] = []

    def count(number):
        return lambda _, args, __: ran.append((number, args[0].shape[1]))

    blocks = [model.module.get_submodule(name) for name in block_names(model)]
    handles = [block.register_forward_hook(count(number)) for number, block in enumerate(blocks)]
    try:
        smooth = smooth_cdam(run, target, samples=9, layer=2, place=place).scores
        counts = [ran.count((number, 65)) for number in range(4)]
        integrated = integrated_cdam(run, target, steps=8, layer=2, place=place).scores
    finally:
        for handle in handles:
            handle.remove()
    lower = (1 if whole else 0) + (1 if whole and place == "block" else 0)
    assert counts[:2] == [lower, lower]
    assert counts[2:] == [lower + 6, lower + 6]  # once to try, and five chunks
    monkeypatch.setattr(cdam_module, "_upper", lambda *_: None)
    assert_close(smooth, smooth_cdam(run, target, samples=9, layer=2, place=place).scores)
    assert_close(integrated, integrated_cdam(run, target, steps=8, layer=2, place=place).scores)


def test_a_head_that_looks_at_the_input_again_runs_whole(monkeypatch, tmp_path):
    """A causal classifier reads the last word, and finds it in the ids."""
    options = {"vocab_size": 400, "hidden_size": 32, "num_hidden_layers": 3, "intermediate_size": 40}
    llama = loaded(
        tmp_path, "LlamaForSequenceClassification", "LlamaConfig", byte_level(), num_attention_heads=4, num_labels=3,
        pad_token_id=0, **options,
    )  # fmt: skip
    inputs = encode_text(llama, "The film is not bad, surprisingly, and the house is old.")
    run, target = forward_pass(llama, inputs), class_logit(1)
    monkeypatch.setattr(cdam_module, "TOKENS_AT_ONCE", 1)
    assert cdam_module._upper(run, 2) is None
    still = smooth_cdam(run, target, samples=3, level=0.0).scores
    assert_close(still, cdam(run, target).scores)


def test_noise_is_seeded_and_apart_from_the_global_state():
    run, _ = run_of("vit_noise")
    before = torch.random.get_rng_state()
    one, same, other = (smooth_cdam(run, class_logit(0), samples=4, seed=seed).scores for seed in (3, 3, 4))
    assert_close(one, same, rtol=0, atol=0)
    assert not torch.equal(one, other)
    assert torch.equal(torch.random.get_rng_state(), before)
    none = smooth_cdam(run, class_logit(0), samples=3, level=0.0).scores
    assert_close(none, cdam(run, class_logit(0)).scores)


class Stopped(Exception):
    """Somebody pressed stop."""


def state_of(module: nn.Module):
    hooks = sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in module.modules())
    flags = [(p.requires_grad, p.grad is None) for p in module.parameters()]
    return hooks, flags, module.training, [p.sum().item() for p in module.parameters()]


def test_nothing_stays_changed_also_when_stopped_and_without_gradients():
    run, _ = run_of("vit_noise")
    module = run.model.module
    before = state_of(module)

    def stop(done):
        if done > 0:
            raise Stopped

    with torch.no_grad():
        cdam(run, class_logit(0))
        smooth_cdam(run, class_logit(0), samples=3)
        with pytest.raises(Stopped):
            smooth_cdam(run, class_logit(0), samples=600, progress=stop)
        with pytest.raises(ValueError, match="index must be between 0 and 4 but is 9"):
            integrated_cdam(run, class_logit(9))
    assert state_of(module) == before
    assert torch.is_grad_enabled()


def test_what_makes_no_sense_is_refused():
    run, _ = run_of("vit_noise")
    with pytest.raises(ValueError, match="layer must be between 0 and 3 but is 7"):
        cdam(run, class_logit(0), layer=7)
    with pytest.raises(ValueError, match="samples must be at least 1"):
        smooth_cdam(run, class_logit(0), samples=0)
    with pytest.raises(ValueError, match="steps must be at least 2"):
        integrated_cdam(run, class_logit(0), steps=1)
    without = replace(run, tokens=())
    with pytest.raises(ValueError, match="no place where the tokens of a layer enter its attention"):
        cdam(without, class_logit(0))
