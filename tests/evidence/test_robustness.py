"""Infidelity and sensitivity: the ends of their scales, and what they refuse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from analysis.evidence import robustness as module
from analysis.evidence.cdam import cdam
from analysis.evidence.passes import forward_pass
from analysis.evidence.perturbation import leave_one_out
from analysis.evidence.robustness import infidelity, sensitivity
from analysis.evidence.targets import class_logit
from attn_core.errors import UnsupportedModelError
from tests.evidence.oracle_models import oracle, pixels_of, small_vit

TARGET = class_logit(1)


@pytest.fixture(scope="module")
def run():
    arrays, _ = oracle("03_cdam", "vit_noise")
    return forward_pass(small_vit(), pixels_of(arrays["pixel_values"], patch=8))


def test_a_map_that_foretells_every_fall_has_infidelity_0(run, monkeypatch):
    effects = torch.from_numpy(np.random.default_rng(0).normal(size=16))

    def values(run, target, masks, *, replacement="default", progress=None):
        return (~masks).double() @ effects

    monkeypatch.setattr(module, "target_values", values)
    explanation = cdam(run, TARGET)
    assert infidelity(run, TARGET, replace(explanation, scores=effects)) == pytest.approx(0, abs=1e-12)
    assert infidelity(run, TARGET, replace(explanation, scores=7 * effects)) == pytest.approx(0, abs=1e-12)
    nothing = infidelity(run, TARGET, replace(explanation, scores=torch.zeros(16)))
    assert nothing == pytest.approx(1.0)
    other = infidelity(run, TARGET, replace(explanation, scores=effects.flip(0)))
    assert 0 < other <= 1.0 + 1e-9
    monkeypatch.setattr(module, "target_values", lambda run, target, masks, **_: torch.ones(len(masks)))
    assert np.isnan(infidelity(run, TARGET, replace(explanation, scores=effects)))


def test_infidelity_of_the_real_model_is_seeded(run):
    told = []
    explanation = leave_one_out(run, TARGET)
    one = infidelity(run, TARGET, explanation, samples=20, progress=told.append)
    assert one == infidelity(run, TARGET, explanation, samples=20)
    assert one != infidelity(run, TARGET, explanation, samples=20, seed=1)
    assert 0 < one < 1
    assert told[-1] == 1.0


def test_sensitivity_grows_with_the_noise_and_is_0_for_a_map_that_never_changes(run):
    small, large = (sensitivity(run, lambda each: cdam(each, TARGET), radius=r) for r in (1e-4, 0.1))
    assert 0 < small < large
    fixed = cdam(run, TARGET)
    assert sensitivity(run, lambda each: fixed) == 0.0


def test_a_text_cannot_change_a_little(run):
    text = replace(run, inputs=replace(run.inputs, grid=None))
    with pytest.raises(UnsupportedModelError, match="cannot change a little"):
        sensitivity(text, lambda each: cdam(each, TARGET))
