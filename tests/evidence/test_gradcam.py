"""GradCAM and its relatives against pytorch-grad-cam, and by their properties."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch.testing import assert_close

from analysis.evidence.gradcam import VARIANTS, attention_gradcam, drawn, gradcam
from analysis.evidence.passes import forward_pass
from analysis.evidence.targets import class_logit
from tests.evidence.oracle_models import PICTURES, oracle, pixels_of, small_vit

NAMES = {"gradcam++": "gradcampp"}
CASES = [(name, label, variant) for name in PICTURES for label in (1, 3) for variant in VARIANTS]


def run_of(name, dtype="float64"):
    arrays, _ = oracle("04_gradcam", name)
    values = pixels_of(arrays["pixel_values"], patch=8, dtype=getattr(torch, dtype))
    return forward_pass(small_vit(dtype), values), arrays


@pytest.mark.parametrize(("name", "label", "variant"), CASES)
def test_maps_are_those_of_pytorch_grad_cam(name, label, variant):
    run, arrays = run_of(name)
    key = f"c{label}_last_norm1_{NAMES.get(variant, variant)}"
    found = gradcam(run, class_logit(label), variant=variant).to_grid()
    raw = arrays[f"{key}_raw"]
    if variant.startswith("eigen"):  # the library does not fix the sign of a singular vector
        assert found.abs().max() == found.max()
        found = found * np.sign((found.numpy() * raw).sum())
    assert_allclose(found.numpy(), raw, rtol=1e-6, atol=1e-9 * np.abs(raw).max())
    assert_allclose(drawn([found], 32, 32).numpy(), arrays[f"{key}_final"], atol=2e-4)


@pytest.mark.parametrize(("name", "label", "variant"), CASES)
def test_maps_in_single_precision(name, label, variant):
    run, arrays = run_of(name, "float32")
    raw = arrays[f"c{label}_last_norm1_{NAMES.get(variant, variant)}_raw"]
    found = gradcam(run, class_logit(label), variant=variant).to_grid().numpy()
    if variant.startswith("eigen"):
        found = found * np.sign((found * raw).sum())
    assert_allclose(found, raw, atol=1e-3 * np.abs(raw).max())


@pytest.mark.parametrize("variant", ["gradcam", "layercam"])
@pytest.mark.parametrize(("name", "label"), [(name, label) for name in PICTURES for label in (1, 3)])
def test_other_layers_and_their_mean(name, label, variant):
    run, arrays = run_of(name)
    before, last = (gradcam(run, class_logit(label), layer=i, variant=variant).to_grid() for i in (-2, -1))
    raw = arrays[f"c{label}_prev_norm1_{variant}_raw"]
    assert_allclose(before.numpy(), raw, rtol=1e-6, atol=1e-9 * np.abs(raw).max())
    both = drawn([last, before], 32, 32).numpy()
    assert_allclose(both, arrays[f"c{label}_two_layers_{variant}_final"], atol=2e-4)


@pytest.mark.parametrize(("name", "label"), [(name, label) for name in PICTURES for label in (1, 3)])
def test_gradcam_on_attention_is_the_papers_baseline(name, label):
    arrays, _ = oracle("02_gradient_relevance", name)
    values = pixels_of(arrays["pixel_values"], patch=8)
    found = attention_gradcam(forward_pass(small_vit(), values), class_logit(label))
    raw = arrays[f"c{label}_attn_gradcam_unscaled"].ravel()
    assert_allclose(found.positive().numpy(), raw, rtol=1e-7, atol=1e-10)


def test_the_mean_row_is_the_mean_over_rows_of_heads_weighted_by_their_slope():
    run, _ = run_of("vit_noise")
    found = attention_gradcam(run, class_logit(1), layer=2, row="mean")
    layer, gradient = run.layers["encoder"][2], run.gradients(class_logit(1)).layers["encoder"][2]
    weights, slopes = layer.map.dense(), layer.weight_gradient(gradient, slice(0, 17))
    every = (weights * slopes[..., 1:].mean(-1)[..., None]).mean(0)  # (17, 17)
    assert_close(found.scores, every[1:].mean(0)[1:])  # rows of the patches alone
    third = attention_gradcam(run, class_logit(1), layer=2, row=3)
    assert_close(third.scores, every[3, 1:])


def test_a_map_that_is_negative_everywhere_is_drawn_flat_and_never_nan():
    flat = drawn([-torch.ones(3, 5)], 30, 50)
    assert torch.equal(flat, torch.zeros(30, 50))
    tall = drawn([torch.rand(60, 1)], 60, 1)
    assert tall.shape == (60, 1)
    assert torch.isfinite(tall).all()


def test_what_makes_no_sense_is_refused():
    run, _ = run_of("vit_noise")
    with pytest.raises(ValueError, match=r"variant must be one of gradcam, gradcam\+\+.* but is 'scorecam'"):
        gradcam(run, class_logit(0), variant="scorecam")
    with pytest.raises(ValueError, match="layer must be between 0 and 3 but is 4"):
        attention_gradcam(run, class_logit(0), layer=4)
