"""The list of methods: each can be asked for by name, says what it is, and stops when told to."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from analysis.evidence.cdam import cdam
from analysis.evidence.methods import METHODS, explain, unchanging_reason
from analysis.evidence.passes import forward_pass
from analysis.evidence.targets import class_logit
from tests.evidence.oracle_models import oracle, pixels_of, small_vit

FEW = {
    "smooth_cdam": {"samples": 3},
    "integrated_cdam": {"steps": 3},
    "integrated_gradients": {"steps": 3},
    "smooth_grad": {"samples": 3},
}


@pytest.fixture(scope="module")
def run():
    arrays, _ = oracle("03_cdam", "vit_noise")
    return forward_pass(small_vit(), pixels_of(arrays["pixel_values"], patch=8))


@pytest.mark.parametrize("key", METHODS)
def test_every_method_answers_and_is_what_it_says(key, run):
    method, told = METHODS[key], []
    one, other = (
        explain(key, run, class_logit(index), progress=told.append, **FEW.get(key, {})) for index in (1, 3)
    )
    assert one.method == key
    assert one.signed == method.signed
    assert one.scores.shape == (16,)
    assert bool(torch.isfinite(one.scores).all())
    assert method.signed or bool((one.scores >= 0).all())
    assert bool((one.scores < 0).any()) or not method.signed
    assert torch.equal(one.scores, other.scores) != method.uses_target
    assert 0 <= one.removed <= 1
    assert bool(told) == method.tells_progress
    for text in (method.title, method.claims, method.cannot, method.source):
        assert text
    if method.tells_progress:
        with pytest.raises(InterruptedError):
            explain(key, run, class_logit(1), progress=_stop, **FEW.get(key, {}))
    if not method.uses_target:
        assert torch.equal(explain(key, run).scores, one.scores)


def _stop(done: float) -> None:
    raise InterruptedError


def test_shared_methods_cost_no_pass_of_their_own(run, monkeypatch):
    calls = []
    hook = run.model.module.register_forward_hook(lambda *_: calls.append(1))
    try:
        for key, method in METHODS.items():
            if method.cost == "shared":
                explain(key, run, class_logit(2))
    finally:
        hook.remove()
    assert calls == []


def test_what_is_not_there_or_lacks_a_target_is_told(run):
    with pytest.raises(ValueError, match=r"key must be one of cdam, .* but is 'lime'"):
        explain("lime", run)
    with pytest.raises(ValueError, match="CDAM explains a target; choose a class"):
        explain("cdam", run)


def test_a_map_with_nothing_to_see_says_so(run):
    found = cdam(run, class_logit(1))
    assert unchanging_reason("cdam", found) == ""
    against = replace(found, scores=-found.scores.abs())
    assert unchanging_reason("cdam", against) == "No positive evidence for this target."
    nothing = replace(found, scores=torch.zeros(16))
    assert unchanging_reason("cdam", nothing) == "Every score is 0."
    assert unchanging_reason("rollout", replace(found, scores=torch.zeros(0))) == "Every score is 0."
