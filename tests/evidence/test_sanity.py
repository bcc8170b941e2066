"""Cascading randomisation: on a copy, from the top down, and maps that show the input alone are caught."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.testing import assert_close

from analysis.evidence.cdam import cdam
from analysis.evidence.passes import forward_pass
from analysis.evidence.sanity import cascade, model_sensitivity, randomise
from analysis.evidence.targets import class_logit
from tests.evidence.oracle_models import oracle, pixels_of, small_vit


@pytest.fixture(scope="module")
def run():
    arrays, _ = oracle("03_cdam", "vit_noise")
    return forward_pass(small_vit(), pixels_of(arrays["pixel_values"], patch=8))


def test_the_cascade_goes_from_the_head_to_the_first_block(run):
    parts = cascade(run)
    assert parts[0] == "classifier"
    numbers = [int(next(part for part in name.split(".") if part.isdigit())) for name in parts[1:]]
    assert numbers == [3, 2, 1, 0]


def test_the_shared_model_stays_as_it_was_and_the_map_changes(run):
    before = {name: value.clone() for name, value in run.model.module.state_dict().items()}
    told = []
    found = model_sensitivity(run, lambda each: cdam(each, class_logit(1)), progress=told.append)
    for name, value in run.model.module.state_dict().items():
        assert_close(value, before[name], rtol=0, atol=0)
    assert [stage.part for stage in found.stages] == ["", *cascade(run)]
    assert found.stages[0].correlation == 1.0
    assert found.stages[0].value == pytest.approx(run.value(class_logit(1)))
    assert found.stages[-1].value != pytest.approx(found.stages[0].value)
    assert abs(found.stages[-1].correlation) < 0.9
    assert told[0] == 0
    assert told[-1] == 1.0
    again = model_sensitivity(run, lambda each: cdam(each, class_logit(1)))
    assert again == found


def test_a_map_of_the_input_alone_is_caught(run):
    fixed = cdam(run, class_logit(1))
    found = model_sensitivity(run, lambda each: fixed)
    assert all(stage.correlation == pytest.approx(1.0) for stage in found.stages)
    assert "hardly depends on what the model learned" in found.warning


def test_stopping_leaves_nothing_behind(run):
    class Stopped(Exception):
        pass

    def stop(done):
        if done > 0:
            raise Stopped

    with pytest.raises(Stopped):
        model_sensitivity(run, lambda each: cdam(each, class_logit(1)), progress=stop)
    assert_close(cdam(run, class_logit(1)).scores, cdam(replace(run), class_logit(1)).scores)


def test_random_weights_keep_their_scale():
    layer = torch.nn.Linear(400, 300)
    with torch.no_grad():
        layer.weight.mul_(3).add_(0.2)
    weight = layer.weight.detach().clone()
    randomise(layer, torch.Generator().manual_seed(0))
    assert not torch.equal(layer.weight, weight)
    assert float(layer.weight.std()) == pytest.approx(float(weight.std()), rel=0.02)
    assert float(layer.weight.mean()) == pytest.approx(float(weight.mean()), abs=0.01)
