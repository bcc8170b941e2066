"""Linear attention against the sum written out, its three forms against each other, and a state carried on."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from attn_core import MaskRule
from attn_core.variants.features import FEATURE_MAPS, elu_plus_one
from attn_core.variants.linear import LinearState, linear_attention, linear_attention_weights
from tests.attn_core.strategies import Case, cases

FORMS = ("parallel", "chunked", "recurrent")
ORACLE_MAPS = {
    "elu_plus_one": lambda x: np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))),
    "relu": lambda x: np.maximum(x, 0),
    "identity": lambda x: x,
}


def plain_rule(case: Case) -> MaskRule:
    """The case's rule without its window, which no sum can keep."""
    return MaskRule(causal=case.rule.causal, key_valid=case.rule.key_valid)


def oracle(case: Case, feature_map: str, normalised: bool) -> tuple[np.ndarray, np.ndarray]:
    """Context and weights, one pair at a time (Katharopoulos et al. 2020, equation 4)."""
    query, key, value = (t.double().numpy() for t in (case.query, case.key, case.value))
    batch, heads, queries, _ = query.shape
    keys = key.shape[2]
    phi = ORACLE_MAPS[feature_map]
    weights = np.zeros((batch, heads, queries, keys))
    context = np.zeros((batch, heads, queries, value.shape[3]))
    valid = np.ones((batch, keys), bool) if case.rule.key_valid is None else case.rule.key_valid.numpy()
    for b, h, i in np.ndindex(batch, heads, queries):
        group = h // (heads // key.shape[1])
        for j in range(keys):
            if valid[b, j] and (not case.rule.causal or j <= i + keys - queries):
                weights[b, h, i, j] = phi(query[b, h, i]) @ phi(key[b, group, j])
        total = weights[b, h, i].sum()
        if normalised:
            weights[b, h, i] = weights[b, h, i] / total if total else 0.0
        context[b, h, i] = weights[b, h, i] @ value[b, group]
    return context, weights


@pytest.mark.parametrize("form", FORMS)
@given(
    case=cases(),
    feature_map=st.sampled_from(["elu_plus_one", "relu"]),
    normalised=st.booleans(),
    data=st.data(),
)
def test_every_form_is_the_sum_written_out(form, case: Case, feature_map, normalised, data) -> None:
    chunk = data.draw(st.integers(1, 10))
    options = {"rule": plain_rule(case), "feature_map": feature_map, "normalised": normalised}
    context, weights = oracle(case, feature_map, normalised)
    found = linear_attention(case.query, case.key, case.value, form=form, chunk=chunk, **options)
    np.testing.assert_allclose(found.context.numpy(), context, atol=1e-9)
    found_weights = linear_attention_weights(case.query, case.key, **options)
    np.testing.assert_allclose(found_weights.numpy(), weights, atol=1e-9)


@pytest.mark.parametrize("form", FORMS)
@given(case=cases(), normalised=st.booleans())
def test_identity_features_are_taken_as_they_are(form, case: Case, normalised) -> None:
    positive = Case(case.query.abs(), case.key.abs(), case.value, case.rule, None, None)
    case = positive if normalised else case
    found = linear_attention(
        case.query,
        case.key,
        case.value,
        rule=plain_rule(case),
        feature_map="identity",
        normalised=normalised,
        form=form,
        chunk=3,
    )
    np.testing.assert_allclose(found.context.numpy(), oracle(case, "identity", normalised)[0], atol=1e-9)


@pytest.mark.parametrize("form", FORMS)
@given(case=cases(), cut=st.integers(0, 9), causal=st.booleans())
def test_a_state_carries_the_earlier_keys(form, case: Case, cut: int, causal: bool) -> None:
    n = min(case.query.shape[2], case.key.shape[2])
    query, key, value = (t[:, :, :n] for t in (case.query, case.key, case.value))
    valid = None if case.rule.key_valid is None else case.rule.key_valid[:, :n]

    def rule(positions: slice) -> MaskRule:
        return MaskRule(causal=causal, key_valid=None if valid is None else valid[:, positions])

    whole = linear_attention(query, key, value, rule=rule(slice(None)))
    before, after = slice(0, cut), slice(cut, None)
    first = linear_attention(
        query[:, :, before], key[:, :, before], value[:, :, before], rule=rule(before), form=form
    )
    rest = linear_attention(
        query[:, :, after],
        key[:, :, after],
        value[:, :, after],
        rule=rule(after),
        form=form,
        state=first.state,
        chunk=2,
    )
    assert_close(rest.context, whole.context[:, :, after])
    assert_close(rest.state.memory, whole.state.memory)
    assert_close(rest.state.normaliser, whole.state.normaliser)
    if causal:
        assert_close(first.context, whole.context[:, :, before])


def test_prefill_and_single_steps_are_one_pass() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 4, 12, 3, generator=generator) for _ in range(3))
    key, value = key[:, :2], value[:, :2]
    rule = MaskRule(causal=True)
    whole = linear_attention(query, key, value, rule=rule, form="parallel").context
    output = linear_attention(query[:, :, :8], key[:, :, :8], value[:, :, :8], rule=rule)
    for position in range(8, 12):
        at = slice(position, position + 1)
        output = linear_attention(
            query[:, :, at], key[:, :, at], value[:, :, at], rule=rule, state=output.state
        )
        assert_close(output.context, whole[:, :, at])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("queries", [0, 2, 7])
def test_a_state_comes_before_keys_that_have_no_query(form, queries: int) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 2, 7, 3, generator=generator) for _ in range(3))
    rule, query = MaskRule(causal=True), query[:, :, 7 - queries :]
    first = linear_attention(query[:, :, :0], key[:, :, :3], value[:, :, :3], rule=rule, form=form).state
    found = linear_attention(query, key[:, :, 3:], value[:, :, 3:], rule=rule, form=form, state=first)
    whole = linear_attention(query, key, value, rule=rule)
    assert_close(found.state.memory, whole.state.memory)
    last = min(queries, 4)  # an earlier query stands among the keys of the state and sees them all
    assert_close(found.context[:, :, queries - last :], whole.context[:, :, queries - last :])


@given(cases())
def test_rows_sum_to_one_or_are_empty(case: Case) -> None:
    rule = plain_rule(case)
    weights = linear_attention_weights(case.query, case.key, rule=rule)
    allowed = torch.ones(1, 1, *weights.shape[2:], dtype=torch.bool)
    rows, columns = torch.arange(weights.shape[2]), torch.arange(weights.shape[3])
    block = rule.allowed(rows, columns, queries=len(rows), keys=len(columns))
    allowed = (allowed if block is None else allowed & block).expand_as(weights)
    assert (weights[~allowed] == 0).all()
    assert_close(weights.sum(-1), allowed.any(-1).to(weights.dtype))


def test_the_share_of_earlier_keys_is_missing_from_a_row() -> None:
    query, key, value = (torch.randn(1, 2, 6, 3, dtype=torch.float64) for _ in range(3))
    whole = linear_attention_weights(query[:, :, 4:], key)
    state = linear_attention(query[:, :, :4], key[:, :, :4], value[:, :, :4]).state
    found = linear_attention_weights(query[:, :, 4:], key[:, :, 4:], state=state)
    assert_close(found, whole[..., 4:])


@given(cases(padding=False))
def test_keys_in_another_order_carry_their_weights_along(case: Case) -> None:
    order = torch.randperm(case.key.shape[2], generator=torch.Generator().manual_seed(0))
    straight = linear_attention(case.query, case.key, case.value)
    shuffled = linear_attention(case.query, case.key[:, :, order], case.value[:, :, order])
    assert_close(shuffled.context, straight.context)
    weights = linear_attention_weights(case.query, case.key)
    assert_close(linear_attention_weights(case.query, case.key[:, :, order]), weights[..., order])


@given(cases(padding=False))
def test_queries_in_another_order_carry_their_context_along(case: Case) -> None:
    order = torch.randperm(case.query.shape[2], generator=torch.Generator().manual_seed(0))
    straight = linear_attention(case.query, case.key, case.value).context
    assert_close(
        linear_attention(case.query[:, :, order], case.key, case.value).context, straight[:, :, order]
    )


def test_what_padding_holds_is_never_seen() -> None:
    query, key, value = (torch.randn(1, 1, 4, 2) for _ in range(3))
    rule = MaskRule(key_valid=torch.tensor([[True, True, False, True]]))
    expected = linear_attention(query, key, value, rule=rule)
    key[:, :, 2], value[:, :, 2] = torch.inf, torch.nan
    for form in FORMS:
        found = linear_attention(query, key, value, rule=rule, form=form)
        assert_close(found.context, expected.context)
        assert_close(found.state.memory, expected.state.memory)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("causal", [False, True])
def test_empty_and_single(form, causal: bool) -> None:
    rule = MaskRule(causal=causal)
    for queries, keys in ((0, 0), (3, 0), (0, 3), (1, 1)):
        query, key, value = (
            torch.randn(2, 4, queries, 3),
            torch.randn(2, 2, keys, 3),
            torch.randn(2, 2, keys, 5),
        )
        output = linear_attention(query, key, value, rule=rule, form=form)
        assert output.context.shape == (2, 4, queries, 5)
        assert output.state.memory.shape == (2, 2, 3, 5)
        assert linear_attention_weights(query, key, rule=rule).shape == (2, 4, queries, keys)
        if keys == 0:
            assert (output.context == 0).all()
        if queries == keys == 1:
            assert_close(output.context, value.repeat_interleave(2, dim=1))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_are_right(form, causal: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = [
        torch.randn(2, 2, 4, 3, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(3)
    ]
    valid = torch.tensor([[False, True, True, True], [True, True, False, True]])
    rule = MaskRule(causal=causal, key_valid=valid)
    assert torch.autograd.gradcheck(
        lambda q, k, v: linear_attention(q, k, v, rule=rule, form=form, chunk=3).context, tensors
    )


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 2e-3)]
)
def test_precision(form, dtype: torch.dtype, tolerance: float) -> None:
    generator = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(1, 2, 70, 8, generator=generator).to(dtype) for _ in range(3))
    exact = linear_attention(
        query.double(), key.double(), value.double(), rule=MaskRule(causal=True), form="parallel"
    )
    found = linear_attention(query, key, value, rule=MaskRule(causal=True), form=form)
    assert found.context.dtype == dtype
    assert found.state.memory.dtype == torch.float32
    assert_close(found.context.double(), exact.context, atol=tolerance, rtol=tolerance)


def test_elu_plus_one_is_never_zero() -> None:
    values = torch.linspace(-80, 5, 200)
    assert (elu_plus_one(values) > 0).all()
    assert_close(elu_plus_one(values), torch.nn.functional.elu(values) + 1)
    assert set(FEATURE_MAPS) == set(ORACLE_MAPS)


@given(cases())
def test_nothing_given_is_written_to(case: Case) -> None:
    state = linear_attention(case.query, case.key, case.value).state
    tensors = (case.query, case.key, case.value, state.memory, state.normaliser)
    before = [tensor.clone() for tensor in tensors]
    for form in FORMS:
        linear_attention(case.query, case.key, case.value, rule=plain_rule(case), form=form, state=state)
    for tensor, copy in zip(tensors, before, strict=True):
        assert torch.equal(tensor, copy)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rule": MaskRule(window=2)}, "has a window or a predicate"),
        ({"rule": MaskRule(key_valid=torch.ones(2, 3, dtype=torch.bool))}, "key_valid must be a bool tensor"),
        ({"feature_map": "gelu"}, "feature_map must be elu_plus_one, relu, identity but is 'gelu'"),
        ({"form": "fast"}, "form must be parallel, chunked, recurrent but is 'fast'"),
        ({"chunk": 0}, "chunk must be at least 1"),
        ({"state": LinearState(torch.zeros(2, 2, 3, 4), torch.zeros(2, 2, 4))}, "state must have memory"),
    ],
)
def test_what_does_not_fit_is_named(options: dict, message: str) -> None:
    query, key, value = torch.randn(2, 4, 5, 4), torch.randn(2, 2, 6, 4), torch.randn(2, 2, 6, 4)
    with pytest.raises(ValueError, match=message):
        linear_attention(query, key, value, **options)
