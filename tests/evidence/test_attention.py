"""Attention, rollout, flow and gradient rollout as explanations: oracles, closed forms, and what they refuse."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from torch.testing import assert_close

from analysis.evidence import attention as evidence_attention
from analysis.evidence.attention import (
    attention,
    attention_flow,
    default_row,
    gradient_rollout,
    roll_gradients,
    rollout_row_map,
)
from analysis.evidence.cdam import integrated_cdam, smooth_cdam
from analysis.evidence.flow import MOST_STEPS, check_size, flow_of
from analysis.evidence.gradcam import attention_gradcam
from analysis.evidence.passes import forward_pass
from analysis.evidence.relevance import relevance
from analysis.evidence.targets import class_logit, concept_similarity, token_log_probability
from analysis.inputs import encode_text
from analysis.models import load_model
from analysis.rollout import rollout
from attn_core.budget import memory_budget
from attn_core.errors import MemoryBudgetError, UnsupportedModelError
from tests.capture_helpers import assert_same_state, state_of
from tests.evidence.attention_runs import run_of_text, run_with, save, text_inputs, tiny_bert
from tests.evidence.oracle_models import PICTURES, oracle, pixels_of, small_vit

CASES = [(name, label) for name in PICTURES for label in (1, 3)]
ROLLOUT_CASES = ("random_L4_H3_N7", "random_L3_H4_N10", "minilm_sentence")
FLOW_CASES = ("random_L4_H3_N7", "minilm_sentence")


def picture_run(name="vit_tabby", dtype="float64"):
    arrays, _ = oracle("02_gradient_relevance", name)
    values = pixels_of(arrays["pixel_values"], patch=8, dtype=getattr(torch, dtype))
    return forward_pass(small_vit(dtype), values), arrays


def stored_attention(name):
    arrays, meta = oracle("01_rollout", name)
    weights = torch.from_numpy(arrays["attention"]).double()
    return weights / weights.sum(-1, keepdim=True), arrays, meta


def random_attention(layers, heads, tokens, seed):
    generator = torch.Generator().manual_seed(seed)
    return (2 * torch.randn(layers, heads, tokens, tokens, generator=generator).double()).softmax(-1)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    return run_of_text(save(tmp_path_factory.mktemp("gpt2"), "gpt2"))


@pytest.fixture(scope="module")
def bart(tmp_path_factory):
    return run_of_text(save(tmp_path_factory.mktemp("bart"), "bart"), target="the day")


# One layer


def test_the_mean_of_heads_counts_every_head_once():
    """Field case: the sum of the heads was added to the last head's own array."""
    heads, tokens = 5, 4
    constants = torch.tensor([1.0, 2.0, 4.0, 8.0, 16.0], dtype=torch.float64)
    weights = constants[None, :, None, None].expand(2, heads, tokens, tokens).clone()
    before = weights.clone()
    found = attention(run_with(weights))
    assert_close(found.scores, torch.full((2,), 31.0 / 5, dtype=torch.float64))
    assert_close(attention(run_with(weights), row="mean").scores, found.scores)
    for head, constant in enumerate(constants):
        one = attention(run_with(weights), head=head).scores
        assert_close(one, constant.expand(2))
    assert torch.equal(weights, before)


def test_attention_is_the_row_of_the_layer_that_is_asked_for():
    run, arrays = picture_run()
    weights = arrays["attention"]
    assert_allclose(attention(run).scores, weights[-1].mean(0)[0, 1:], rtol=1e-8)
    assert_allclose(attention(run, layer=1, head=2).scores, weights[1, 2, 0, 1:], rtol=1e-8)
    assert_allclose(
        attention(run, layer=-3, row="mean").scores, weights[1, :, 1:].mean((0, 1))[1:], rtol=1e-8
    )
    assert_allclose(attention(run, layer=2, row=6).scores, weights[2, :, 6].mean(0)[1:], rtol=1e-8)
    found = attention(run)
    assert found.removed == pytest.approx(weights[-1].mean(0)[0, 0], rel=1e-6)
    assert (found.signed, found.target, found.to_grid().shape) == (False, "", (4, 4))


@pytest.mark.parametrize("rows", [1, 3, 16])
def test_attention_is_the_same_a_few_rows_at_a_time(monkeypatch, rows):
    run, _ = picture_run()
    expected = attention(run, row="mean").scores
    monkeypatch.setattr("analysis.evidence.passes.strip_rows", lambda *_: rows)
    assert_close(attention(run, row="mean").scores, expected)


def test_the_default_row_is_what_the_model_or_the_target_reads(gpt2, bart):
    picture, _ = picture_run()
    plain = replace(picture.inputs, grid=replace(picture.inputs.grid, prefix_tokens=0))
    text = run_with(random_attention(1, 2, 5, 0))
    untagged = replace(text.inputs, tokens=tuple(replace(t, special=False) for t in text.inputs.tokens))
    first = replace(
        gpt2.inputs, tokens=tuple(replace(t, special=i == 0) for i, t in enumerate(gpt2.inputs.tokens))
    )
    assert default_row(picture) == "first"
    assert default_row(replace(picture, inputs=plain)) == "mean"
    assert default_row(text) == "first"
    assert default_row(replace(text, inputs=untagged)) == "mean"
    assert default_row(gpt2) == "mean"
    assert (
        default_row(replace(gpt2, inputs=first)) == "mean"
    )  # a causal model's first token sees itself alone
    assert default_row(gpt2, class_logit(0)) == -1
    assert default_row(gpt2, token_log_probability(3, 7)) == 3
    assert default_row(picture, class_logit(0)) == "first"
    for pooling in ("first", "mean"):
        assert default_row(picture, concept_similarity(torch.ones(48), "x", pooling=pooling)) == pooling
    word = token_log_probability(2, 7)
    assert default_row(bart, word, of_decoder=True) == 2
    assert default_row(bart, word) == "mean", "a position of the decoder is no row of the encoder"
    assert (
        gradient_rollout(bart, word).details["row"] == gradient_rollout(bart, word, row="mean").details["row"]
    )
    assert_close(attention_gradcam(bart, word).scores, attention_gradcam(bart, word, row="mean").scores)
    assert relevance(bart, word).details["row"] == "2 of the decoder"
    for method in (smooth_cdam, integrated_cdam):
        with pytest.raises(UnsupportedModelError, match="have no place in the decoder"):
            method(bart, word)
    assert attention(bart).details["row"] == "mean"
    assert len(attention(bart).scores) == len(bart.inputs.tokens) - 1


def test_one_learned_query_has_attention_and_nothing_to_follow():
    model = load_model("recurrent-sentiment", device="cpu")
    run = forward_pass(model, encode_text(model, "a good film"))
    found = attention(run)
    assert_close(found.scores, run.layers["cross"][0].map.dense()[0, 0].float())
    assert float(found.scores.sum()) == pytest.approx(1.0, rel=1e-5)
    with pytest.raises(UnsupportedModelError, match=r"rollout: the tokens of .* do not attend to each other"):
        rollout_row_map(run)
    with pytest.raises(UnsupportedModelError, match="attention_flow: the tokens of"):
        attention_flow(run)
    with pytest.raises(UnsupportedModelError, match="gradient_rollout: the tokens of"):
        gradient_rollout(run, class_logit(0))


# Rollout


@pytest.mark.parametrize("discard_ratio", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("fusion", ["mean", "max", "min"])
@pytest.mark.parametrize("name", ROLLOUT_CASES)
def test_rollout_is_the_row_of_the_reference(name, fusion, discard_ratio):
    weights, arrays, _ = stored_attention(name)
    expected = arrays[f"rownorm_matrix_{fusion}_d{discard_ratio}"]
    options = {"fusion": fusion, "discard_ratio": discard_ratio}
    run = run_with(weights)
    assert_allclose(rollout_row_map(run, **options).scores, expected[0, 1:-1], rtol=1e-9, atol=1e-12)
    assert_allclose(rollout_row_map(run, row=3, **options).scores, expected[3, 1:-1], rtol=1e-9, atol=1e-12)
    mean = rollout_row_map(run, row="mean", **options)
    assert_allclose(mean.scores, expected[1:-1].mean(0)[1:-1], rtol=1e-9, atol=1e-12)
    assert mean.removed == pytest.approx(1 - expected[1:-1].mean(0)[1:-1].sum())


def test_rollout_passes_its_other_options_on():
    weights, arrays, _ = stored_attention("random_L4_H3_N7")
    run = run_with(weights)
    later = rollout_row_map(run, start_layer=1)
    assert_allclose(later.scores, arrays["chefer_rollout_start1"][0, 1:-1], rtol=1e-9)
    bare = rollout_row_map(run, residual=False)
    assert_allclose(bare.scores, arrays["abnar_joint_noresidual"][-1][0, 1:-1], rtol=1e-9)
    assert not later.signed


def test_rollout_of_a_causal_model_is_of_its_own_stack(gpt2):
    expected = rollout([layer.map for layer in gpt2.layers["decoder"]])
    assert_close(rollout_row_map(gpt2, row=-1).scores, expected[-1])
    assert_close(rollout_row_map(gpt2).scores, expected.mean(0))


# Flow


@pytest.mark.parametrize("name", FLOW_CASES)
def test_flow_is_that_of_the_authors(name):
    weights, arrays, meta = stored_attention(name)
    relative, absolute = (float(part.split()[1]) for part in meta["tolerance"]["float64"].split(","))
    for layer in range(len(weights)) if name.startswith("random") else (0, len(weights) - 1):
        raw = flow_of(weights[: layer + 1], normalised=False)
        assert_allclose(raw, arrays["flow_raw"][layer], rtol=relative, atol=absolute)
        shares = raw / raw.sum(-1, keepdim=True)
        assert_allclose(shares, arrays["flow_normalised"][layer], rtol=relative, atol=absolute)
    assert_close(flow_of(weights[:1]), torch.from_numpy(arrays["flow_normalised"][0]))
    run = run_with(weights)
    one = attention_flow(run, row=2)
    assert_allclose(one.scores, arrays["flow_normalised"][-1][2, 1:-1], rtol=relative)
    plain = attention_flow(run, row=2, normalised=False)
    assert_allclose(plain.scores, arrays["flow_raw"][-1][2, 1:-1], rtol=relative)
    if name.startswith("random"):
        mean = attention_flow(run, row="mean").scores
        assert_allclose(mean, arrays["flow_normalised"][-1][1:-1].mean(0)[1:-1], rtol=relative)


def augmented_flow(widths, row, token):
    """Edmonds and Karp's maximum flow over plain dictionaries."""
    layers, size = len(widths), len(widths[0])
    left = {}
    for layer in range(layers):
        for above in range(size):
            for below in range(size):
                left[(layer + 1, above), (layer, below)] = float(widths[layer][above][below])
                left[(layer, below), (layer + 1, above)] = 0.0
    source, sink, total = (layers, row), (0, token), 0.0
    while True:
        came, waiting = {source: None}, deque([source])
        while waiting and sink not in came:
            node = waiting.popleft()
            for step in (node[0] - 1, node[0] + 1):
                for place in range(size):
                    other = (step, place)
                    if other not in came and left.get((node, other), 0.0) > 1e-13:
                        came[other] = node
                        waiting.append(other)
        if sink not in came:
            return total
        path, node = [], sink
        while came[node] is not None:
            path.append((came[node], node))
            node = came[node]
        width = min(left[edge] for edge in path)
        for start, end in path:
            left[start, end] -= width
            left[end, start] += width
        total += width


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 5), st.integers(0, 9999), st.data())
def test_flow_equals_that_of_augmenting_paths(layers, heads, tokens, seed, data):
    weights = random_attention(layers, heads, tokens, seed)
    mean = weights.mean(1) + torch.eye(tokens)
    widths = (mean / mean.sum(-1, keepdim=True)).tolist()
    row = data.draw(st.integers(0, tokens - 1))
    expected = [augmented_flow(widths, row, token) for token in range(tokens)]
    assert_allclose(flow_of(weights, rows=[row], normalised=False)[0], expected, rtol=1e-9)


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 4), st.integers(2, 7), st.integers(0, 9999), st.randoms(use_true_random=False))
def test_renaming_the_tokens_renames_the_flow(layers, tokens, seed, random):
    weights = random_attention(layers, 2, tokens, seed)
    order = list(range(tokens))
    random.shuffle(order)
    flows = flow_of(weights)
    assert_close(flow_of(weights[:, :, order][..., order]), flows[order][:, order])
    assert_close(flows.sum(-1), torch.ones(tokens, dtype=torch.float64))


def test_flow_of_tokens_that_see_themselves_alone():
    assert torch.equal(flow_of(torch.eye(4).expand(3, 2, 4, 4), normalised=False), torch.eye(4).double())


def test_flow_tells_how_far_it_is_and_can_be_stopped():
    weights = random_attention(2, 2, 4, 0)
    told = []
    flow_of(weights, rows=[1, 3], progress=told.append)
    assert told == [(i + 1) / 8 for i in range(8)]

    class Stopped(Exception):
        pass

    def stop(done):
        if done > 0.5:
            raise Stopped

    run, _ = picture_run()
    before = state_of(run.model.module)
    with pytest.raises(Stopped):
        attention_flow(run, progress=stop)
    assert_same_state(before, state_of(run.model.module))


def test_a_flow_that_would_take_minutes_is_refused_before_it_begins(gpt2, monkeypatch):
    check_size(12, 197, 1, "flow")  # a ViT-B of 224 pixels, seen from CLS
    with pytest.raises(
        ValueError, match=r"flow: 512 flows through 6 layers of 512 × 512 weights .* choose attention rol"
    ):
        check_size(6, 512, 1, "flow")
    tokens = len(gpt2.inputs.tokens)
    monkeypatch.setattr("analysis.evidence.flow.MOST_STEPS", tokens**4 * 2 - 1)
    monkeypatch.setattr("analysis.evidence.attention._mean_map", lambda _: pytest.fail("made dense first"))
    with pytest.raises(ValueError, match=rf"attention_flow: {tokens**2:,} flows"):
        attention_flow(gpt2)
    assert MOST_STEPS > 10**8


# Gradient rollout


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("head_relu", [False, True])
@pytest.mark.parametrize("discard_ratio", [0.0, 0.9])
@pytest.mark.parametrize(("name", "label"), CASES)
def test_gradient_rollout_is_the_reference(name, label, discard_ratio, head_relu, precision):
    run, arrays = picture_run(name, precision)
    target = class_logit(label)
    expected = arrays[f"c{label}_gradrollout_matrix_rownorm_{'headrelu_' * head_relu}d{discard_ratio}"]
    exact = precision == "float64"
    close = {"rtol": 1e-8 if exact else 1e-3, "atol": 1e-12 if exact else 1e-5 * expected.max()}
    options = {"discard_ratio": discard_ratio, "head_relu": head_relu}
    layers, gradients = run.layers["encoder"], run.gradients(target).layers["encoder"]
    identity = torch.eye(17, dtype=getattr(torch, precision))
    assert_allclose(roll_gradients(identity, layers, gradients, **options), expected, **close)
    found = gradient_rollout(run, target, **options)
    assert_allclose(found.scores, expected[0, 1:], **close)
    assert_allclose(
        gradient_rollout(run, target, row="mean", **options).scores, expected[1:].mean(0)[1:], **close
    )
    assert found.notes[0].startswith("Positive only")
    assert (found.signed, found.details["row"]) == (False, "first")


@pytest.mark.parametrize("rows", [1, 4])
def test_gradient_rollout_is_the_same_a_few_rows_at_a_time(monkeypatch, rows):
    run, _ = picture_run()
    expected = [gradient_rollout(run, class_logit(1), discard_ratio=d).scores for d in (0.0, 0.5)]
    monkeypatch.setattr("analysis.evidence.passes.strip_rows", lambda *_: rows)
    for scores, discard_ratio in zip(expected, (0.0, 0.5), strict=True):
        assert_close(gradient_rollout(run, class_logit(1), discard_ratio=discard_ratio).scores, scores)


def test_gradient_rollout_depends_on_the_class_and_attention_does_not():
    run, _ = picture_run()
    first, second = (gradient_rollout(run, class_logit(label)).scores for label in (1, 3))
    assert torch.corrcoef(torch.stack([first, second]))[0, 1] < 0.9
    start = gradient_rollout(run, class_logit(1), start_layer=3).scores
    assert not torch.allclose(start, first)


def test_gradient_rollout_of_a_causal_model_is_seen_from_where_it_predicts(gpt2):
    found = gradient_rollout(gpt2, token_log_probability(4, 7))
    assert found.details["row"] == "4"
    assert not found.scores[5:].any()
    assert float(found.scores.sum()) == pytest.approx(1.0)


# Refusals, and no trace


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda run: attention(run, layer=4), "attention: layer must be between 0 and 3 but is 4"),
        (lambda run: attention(run, head=3), "attention: head must be between 0 and 2 but is 3"),
        (lambda run: attention(run, row=17), "attention: row must be between 0 and 16 but is 17"),
        (lambda run: attention(run, row="cls"), "row must be first, mean or a position but is 'cls'"),
        (lambda run: rollout_row_map(run, fusion="median"), "one of mean, max, min but is 'median'"),
        (lambda run: rollout_row_map(run, start_layer=4), "start_layer must be between 0 and 3 but is 4"),
        (lambda run: gradient_rollout(run, class_logit(1), discard_ratio=1.0), "discard_ratio must be at least 0"),
        (lambda run: gradient_rollout(run, class_logit(1), start_layer=9), "start_layer must be between 0 and 3"),
        (lambda run: gradient_rollout(run, class_logit(9)), "index must be between 0 and 4 but is 9"),
        (lambda run: flow_of(torch.ones(2, 3, 4, 5)), r"weights must be \(L, H, N, N\), square .* is \(2, 3, 4, 5\)"),
        (lambda run: flow_of([]), r"weights must be \(L, H, N, N\)"),
        (lambda run: flow_of(torch.ones(1, 1, 2, 2), rows=[2]), "rows must lie between 0 and 1"),
    ],
)  # fmt: skip
def test_wrong_options_say_what_is_wanted(call, message):
    run, _ = picture_run()
    with pytest.raises(ValueError, match=message):
        call(run)


def test_a_mean_over_the_rows_of_a_long_input_is_a_chain(monkeypatch):
    run = run_with(random_attention(3, 2, 9, 0))
    whole = rollout_row_map(run, row="mean")
    monkeypatch.setattr(evidence_attention, "OPERATIONS_PER_WEIGHT", 0)  # as if the input were long
    monkeypatch.setattr(evidence_attention, "rollout", None)  # no product of matrices
    chain = rollout_row_map(run, row="mean")
    assert chain.scores.abs().max() > 0
    assert_close(chain.scores, whole.scores, atol=1e-6, rtol=1e-5)


def test_maps_that_are_not_over_the_inputs_positions_are_refused():
    run = run_with(random_attention(2, 2, 5, 0))
    other = replace(run, inputs=text_inputs(np.arange(6)))
    with pytest.raises(UnsupportedModelError, match=r"must hold 6 × 6 weights, .* but hold \[\(5, 5\)\]"):
        rollout_row_map(other)


def test_a_discard_ratio_is_refused_above_the_budget_and_one_row_is_not():
    run, _ = picture_run()
    with (
        memory_budget(1000),
        pytest.raises(MemoryBudgetError, match=r"gradient_rollout: 17 × 17 weights take .* ask for one row"),
    ):
        gradient_rollout(run, class_logit(1), discard_ratio=0.5)
    assert gradient_rollout(run, class_logit(1)).has_positive


def test_nothing_on_the_model_changes_and_gradients_are_shared():
    arrays, _ = oracle("02_gradient_relevance", "bert_tiny")
    model = tiny_bert()
    before, calls = state_of(model.module), []
    run = forward_pass(model, text_inputs(arrays["input_ids"]))
    hook = model.module.register_forward_hook(lambda *_: calls.append(1))
    target = class_logit(2)
    methods = [attention, rollout_row_map, attention_flow, lambda run: gradient_rollout(run, target)]
    expected = [method(run).scores for method in methods]
    with torch.no_grad():
        for method, scores in zip(methods, expected, strict=True):
            assert torch.equal(method(run).scores, scores)
    with pytest.raises(ValueError, match="start_layer"):
        gradient_rollout(run, target, start_layer=2)
    hook.remove()
    assert calls == []
    assert_same_state(before, state_of(model.module))
    assert not any(parameter.requires_grad for parameter in model.module.parameters())
