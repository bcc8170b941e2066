"""The reference, the tiles and the fused kernel against float64 NumPy, and the properties that define attention."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch.testing import assert_close

from attn_core import MaskRule, attention, flash_attention
from attn_core.flash.tiled import TileSize, tiled_attention
from tests.attn_core.strategies import Case, cases
from tests.oracle_numpy import oracle_allowed, oracle_attention


def run(case: Case, **options: object) -> dict[str, torch.Tensor]:
    output = attention(
        case.query, case.key, case.value, rule=case.rule, bias=case.bias, softcap=case.softcap, **options
    )
    return {"context": output.context, "lse": output.lse, "weights": output.weights}


@given(cases())
def test_reference_is_the_formula(case: Case) -> None:
    queries, keys = case.query.shape[2], case.key.shape[2]
    allowed = oracle_allowed(queries, keys, causal=case.rule.causal, window=case.rule.window)[None, None]
    if case.rule.key_valid is not None:
        allowed = allowed & case.rule.key_valid.numpy()[:, None, None, :]
    context, lse, weights = oracle_attention(
        case.query.numpy(),
        case.key.numpy(),
        case.value.numpy(),
        allowed=allowed,
        bias=None if case.bias is None else case.bias.numpy(),
        softcap=case.softcap,
    )
    found = run(case)
    np.testing.assert_allclose(found["context"].numpy(), context, atol=1e-10)
    np.testing.assert_allclose(found["lse"].numpy(), lse, atol=1e-10)
    np.testing.assert_allclose(found["weights"].numpy(), weights, atol=1e-10)


@given(cases(dtype=torch.float32))
def test_every_implementation_gives_the_same(case: Case) -> None:
    expected = flash_attention(
        case.query,
        case.key,
        case.value,
        rule=case.rule,
        bias=case.bias,
        softcap=case.softcap,
        impl="reference",
    )
    for impl in ("tiled", "auto") if case.softcap is not None else ("tiled", "fused", "auto"):
        found = flash_attention(
            case.query, case.key, case.value, rule=case.rule, bias=case.bias, softcap=case.softcap, impl=impl
        )
        assert_close(found.context, expected.context, atol=2e-5, rtol=1e-5)
        assert_close(found.lse, expected.lse, atol=2e-5, rtol=1e-5)


@given(cases())
def test_rows_sum_to_one_or_are_empty(case: Case) -> None:
    found = run(case)
    sums = found["weights"].sum(-1)
    empty = torch.isneginf(found["lse"])
    assert_close(sums[~empty], torch.ones_like(sums[~empty]))
    assert (sums[empty] == 0).all()
    assert (found["context"][empty] == 0).all()


@given(cases(padding=False))
def test_keys_in_another_order_carry_their_weights_along(case: Case) -> None:
    order = torch.randperm(case.key.shape[2], generator=torch.Generator().manual_seed(0))
    straight = attention(case.query, case.key, case.value)
    shuffled = attention(case.query, case.key[:, :, order], case.value[:, :, order])
    assert_close(shuffled.context, straight.context)
    assert_close(shuffled.weights, straight.weights[..., order])


@given(cases(padding=False))
def test_future_keys_change_nothing(case: Case) -> None:
    rule = MaskRule(causal=True)
    n = min(case.query.shape[2], case.key.shape[2])
    query, key, value = case.query[:, :, :n], case.key[:, :, :n].clone(), case.value[:, :, :n].clone()
    expected = attention(query, key, value, rule=rule).context[:, :, 0]
    key[:, :, 1:], value[:, :, 1:] = 7.0, -3.0
    assert_close(attention(query, key, value, rule=rule).context[:, :, 0], expected)


@given(cases(padding=False))
def test_a_window_as_long_as_the_keys_is_no_window(case: Case) -> None:
    longest = case.query.shape[2] + case.key.shape[2]
    for causal in (False, True):
        windowed = attention(case.query, case.key, case.value, rule=MaskRule(causal=causal, window=longest))
        plain = attention(case.query, case.key, case.value, rule=MaskRule(causal=causal))
        assert_close(windowed.weights, plain.weights)


@given(cases())
def test_grouped_heads_are_repeated_heads(case: Case) -> None:
    repeats = case.query.shape[1] // case.key.shape[1]
    wide = [tensor.repeat_interleave(repeats, dim=1) for tensor in (case.key, case.value)]
    assert_close(
        attention(case.query, *wide, rule=case.rule).context,
        attention(case.query, case.key, case.value, rule=case.rule).context,
    )


@given(cases())
def test_nothing_given_is_written_to(case: Case) -> None:
    before = [t.clone() for t in (case.query, case.key, case.value)]
    run(case)
    tiled_attention(case.query, case.key, case.value, rule=case.rule, bias=case.bias, softcap=case.softcap)
    for tensor, copy in zip((case.query, case.key, case.value), before, strict=True):
        assert torch.equal(tensor, copy)


def test_tiles_do_not_show_in_the_numbers() -> None:
    generator = torch.Generator().manual_seed(3)
    query, key, value = (torch.randn(2, 3, 37, 8, generator=generator) for _ in range(3))
    whole = tiled_attention(query, key, value, rule=MaskRule(causal=True, window=5))
    for rows, columns in ((4, 3), (1, 37), (37, 1)):
        tile = TileSize(rows, columns)
        tiles = tiled_attention(query, key, value, rule=MaskRule(causal=True, window=5), tile=tile)
        assert_close(tiles.context, whole.context)
        assert_close(tiles.lse, whole.lse)


def test_scale_of_zero_stays_zero() -> None:
    query, key, value = (torch.randn(1, 1, 3, 4) for _ in range(3))
    assert_close(attention(query, key, value, scale=0.0).weights, torch.full((1, 1, 3, 3), 1 / 3))


def test_gradients_are_right() -> None:
    torch.manual_seed(0)
    tensors = [torch.randn(1, 2, 4, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    rule = MaskRule(causal=True, window=2)
    assert torch.autograd.gradcheck(lambda q, k, v: attention(q, k, v, rule=rule).context, tensors)
    for impl in ("tiled", "fused"):
        assert torch.autograd.gradcheck(
            lambda q, k, v, i=impl: flash_attention(q, k, v, rule=rule, impl=i).context, tensors
        )


def test_rows_with_nothing_allowed_have_no_gradient() -> None:
    query, key, value = (torch.randn(1, 1, 3, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    rule = MaskRule(key_valid=torch.zeros(1, 3, dtype=torch.bool))
    context = attention(query, key, value, rule=rule).context
    gradients = torch.autograd.grad(context.sum(), (query, key, value))
    assert all((gradient == 0).all() for gradient in gradients)


def test_sinks_take_weight_and_give_nothing() -> None:
    torch.manual_seed(1)
    query, key, value = (torch.randn(1, 2, 5, 4) for _ in range(3))
    sinks = torch.tensor([0.3, -1.0])
    output = attention(query, key, value, sinks=sinks)
    extended = torch.cat([query @ key.transpose(-1, -2) / 2, sinks.view(1, 2, 1, 1).expand(1, 2, 5, 1)], -1)
    assert_close(output.weights, extended.softmax(-1)[..., :-1])
    assert_close(output.context, extended.softmax(-1)[..., :-1] @ value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda q, k, v: (q[0], k, v), "query must have 4 axes"),
        (lambda q, k, v: (q, k[:1], v), "key must have query's batch size 2 but has 1"),
        (lambda q, k, v: (q, k[..., :3], v), "key must have query's width 4 but has 3"),
        (lambda q, k, v: (q[:, :3], k, v), "multiple of key's 2 heads but has 3"),
        (lambda q, k, v: (q, k, v[:, :, 1:]), "value must have key's batch, heads and positions"),
    ],
)
def test_shapes_that_do_not_fit_are_named(change, message: str) -> None:
    query, key, value = torch.randn(2, 4, 5, 4), torch.randn(2, 2, 6, 4), torch.randn(2, 2, 6, 4)
    for function in (attention, flash_attention):
        with pytest.raises(ValueError, match=message):
            function(*change(query, key, value))


def test_wrong_types_are_named() -> None:
    query, key = torch.randn(1, 1, 2, 4), torch.randn(1, 1, 2, 4)
    with pytest.raises(TypeError, match="key must have query's dtype"):
        attention(query, key.double(), key.double())
    with pytest.raises(TypeError, match=r"query must be a torch\.Tensor but is list"):
        attention([1.0], key, key)  # type: ignore[arg-type]


def test_a_named_implementation_fails_rather_than_falls_back() -> None:
    query, key, value = (torch.randn(1, 1, 2, 4) for _ in range(3))
    with pytest.raises(ValueError, match="impl='fused' cannot compute this because scores are soft-capped"):
        flash_attention(query, key, value, softcap=2.0, impl="fused")
    with pytest.raises(
        ValueError, match="impl must be auto, reference, tiled, triton, fused or compiled but is 'fast'"
    ):
        flash_attention(query, key, value, impl="fast")  # type: ignore[arg-type]


@settings(max_examples=30)
@given(cases(dtype=torch.float32))
def test_low_precision_error_is_at_most_twice_a_plain_run(case: Case) -> None:
    exact = attention(
        *(t.double() for t in (case.query, case.key, case.value)),
        rule=case.rule,
        bias=None if case.bias is None else case.bias.double(),
    ).context
    plain = attention(case.query, case.key, case.value, rule=case.rule, bias=case.bias).context
    found = flash_attention(case.query, case.key, case.value, rule=case.rule, bias=case.bias).context
    budget = 2 * (plain.double() - exact).abs().max() + 1e-6
    assert (found.double() - exact).abs().max() <= budget
