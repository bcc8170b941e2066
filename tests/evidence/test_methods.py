"""The list of methods: each can be asked for by name, says what it is, and stops when told to."""

from __future__ import annotations

from dataclasses import replace
from inspect import signature

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from analysis.evidence.cdam import cdam
from analysis.evidence.methods import METHODS, Option, explain, options_of, unchanging_reason
from analysis.evidence.passes import forward_pass
from analysis.evidence.targets import class_logit
from tests.evidence.attention_runs import run_with, text_inputs, tiny_bert
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


# Options -----------------------------------------------------------------------------------------------------------

CHOSEN = [(key, option.key) for key, method in METHODS.items() for option in method.options]


@pytest.fixture(scope="module")
def text_run():
    return forward_pass(tiny_bert(), text_inputs(np.array([2, 17, 9, 30, 21, 11, 3])))


def offered(key, name, run) -> Option | None:
    return next((option for option in options_of(METHODS[key], run) if option.key == name), None)


def some_values(option: Option) -> list[object]:
    """All of a choice, else the ends where they are cheap."""
    if option.kind == "choice":
        return [value for value, _ in option.values]
    ends = {option.lowest, min(option.highest, option.lowest + 3), option.lowest + option.step}
    return [float(end) if option.kind == "number" else int(end) for end in sorted(ends)]


@pytest.mark.parametrize(("key", "name"), CHOSEN)
def test_the_default_of_an_option_is_that_of_the_function(key, name):
    option = next(option for option in METHODS[key].options if option.key == name)
    assert signature(METHODS[key].function).parameters[name].default == option.default
    assert option.title
    assert option.help.endswith(".")
    assert "{}" in option.told
    if option.kind == "choice":
        assert option.default in (*(value for value, _ in option.values), "default", None)


@pytest.mark.parametrize(("key", "name"), CHOSEN)
@pytest.mark.parametrize("kind", ["picture", "text"])
def test_every_offered_value_is_taken_and_the_default_changes_nothing(key, name, kind, run, text_run):
    passed = run if kind == "picture" else text_run
    option = offered(key, name, passed)
    assert option is not None
    few = {} if name in ("samples", "steps") else FEW.get(key, {})
    usual = explain(key, passed, class_logit(1), **few)
    if option.default is not None:
        same = explain(key, passed, class_logit(1), **few, **{name: option.default})
        assert torch.equal(same.scores, usual.scores)
    changed = False
    for value in some_values(option):
        if option.accepted(value) is None:
            assert value == option.default
            continue
        found = explain(key, passed, class_logit(1), **few, **{name: value})
        assert bool(torch.isfinite(found.scores).all())
        changed |= not torch.equal(found.scores, usual.scores)
    assert changed, "no value makes another map"


def test_layers_and_heads_are_those_of_the_model(run, text_run):
    for passed, layers, heads in ((run, 4, 3), (text_run, 2, 2)):
        layer, head = offered("attention", "layer", passed), offered("attention", "head", passed)
        assert (layer.lowest, layer.highest, layer.default) == (0, layers - 1, layers - 1)
        assert (head.lowest, head.highest, head.default) == (0, heads - 1, None)
        assert offered("gradcam", "layer", passed).highest == layers - 1
        assert layer.accepted(layers - 1) is None
        assert layer.accepted(layers) is None
        assert layer.accepted(-1) is None
        assert layer.accepted(0) == 0
        assert head.accepted(0) == 0
    window, words = offered("occlusion", "window", run), offered("occlusion", "window", text_run)
    assert (window.default, window.highest) == (3, 4)
    assert (words.default, words.highest) == (1, 5)
    with pytest.raises(ValueError, match="head must be between 0 and 2 but is 3"):
        explain("attention", run, head=3)


def test_a_row_is_called_by_what_stands_first(run, text_run):
    assert dict(offered("rollout", "row", run).values) == {"first": "CLS row", "mean": "mean row"}
    assert offered("rollout", "row", run).default == "first"
    plain = replace(
        text_run,
        inputs=replace(
            text_run.inputs, tokens=tuple(replace(token, special=False) for token in text_run.inputs.tokens)
        ),
    )
    assert dict(offered("attention", "row", plain).values)["first"] == "first row"
    assert offered("attention", "row", plain).default == "mean"


def test_what_a_model_does_not_have_is_not_offered():
    bare = run_with(torch.full((1, 1, 4, 4), 0.25))
    for key in ("cdam", "smooth_cdam", "integrated_cdam", "gradcam"):
        assert options_of(METHODS[key], bare) == ()
    assert [option.key for option in options_of(METHODS["attention"], bare)] == ["row"]
    for key in (
        "attention",
        "rollout",
        "attention_flow",
        "gradient_rollout",
        "relevance",
        "attention_gradcam",
    ):
        assert options_of(METHODS[key], bare)
        assert options_of(METHODS[key], replace(bare, layers={})) == ()


ANYTHING = st.one_of(st.none(), st.text(max_size=8), st.integers(), st.floats(allow_nan=True))


@given(pair=st.sampled_from(CHOSEN), value=ANYTHING)
def test_no_value_gets_through_that_is_not_offered(pair, value):
    option = next(option for option in METHODS[pair[0]].options if option.key == pair[1])
    found = option.accepted(value)
    assert found != option.default or found is None
    assert option.accepted(found) == found
    if found is not None and option.kind == "choice":
        assert found in [known for known, _ in option.values]
    elif found is not None:
        assert option.lowest <= found <= option.highest
