"""Linformer against its formula, against exact attention where the projections are the identity, and its padding."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from attn_core import MaskRule, attention
from attn_core.variants import LinformerAttention, linformer_attention
from tests.attn_core.strategies import Case, cases


def projections(case: Case, rank: int, *, by_head: bool, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shape = (rank, case.key.shape[2])
    shape = (case.key.shape[1], *shape) if by_head else shape
    dtype = case.key.dtype
    first, second = (torch.randn(shape, generator=generator, dtype=dtype) for _ in range(2))
    return first, second


def oracle(case: Case, e: np.ndarray, f: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Context and effective weights, one query at a time (Wang et al. 2020, equation 7)."""
    query, key, value = (t.numpy() for t in (case.query, case.key, case.value))
    batch, heads, queries, width = query.shape
    groups, keys = key.shape[1:3]
    context = np.zeros((batch, heads, queries, value.shape[3]))
    weights = np.zeros((batch, heads, queries, keys))
    for b, h, i in np.ndindex(batch, heads, queries):
        g = h // (heads // groups)
        e_head, f_head = (p[g] if p.ndim == 3 else p for p in (e, f))
        valid = np.ones(keys, bool) if case.rule.key_valid is None else case.rule.key_valid[b].numpy()
        if not valid.any():
            continue
        scores = [e_slot[valid] @ key[b, g, valid] @ query[b, h, i] / np.sqrt(width) for e_slot in e_head]
        slots = np.exp(np.array(scores) - max(scores))
        slots = slots / slots.sum()
        for slot, weight in enumerate(slots):
            weights[b, h, i, valid] += weight * f_head[slot, valid]
        context[b, h, i] = weights[b, h, i] @ value[b, g]
    return context, weights


@given(case=cases(), rank=st.integers(1, 9), by_head=st.booleans())
def test_it_is_the_formula(case: Case, rank: int, by_head: bool) -> None:
    e, f = projections(case, rank, by_head=by_head)
    context, weights = oracle(case, e.numpy(), f.numpy())
    found = linformer_attention(case.query, case.key, case.value, e, f, key_valid=case.rule.key_valid)
    np.testing.assert_allclose(found.context.numpy(), context, atol=1e-9)
    np.testing.assert_allclose(found.weights().numpy(), weights, atol=1e-9)


@given(case=cases(), by_head=st.booleans())
def test_identity_projections_of_full_rank_are_exact_attention(case: Case, by_head: bool) -> None:
    unit = torch.eye(case.key.shape[2], dtype=case.key.dtype)
    unit = unit.expand(case.key.shape[1], -1, -1) if by_head else unit
    rule = MaskRule(key_valid=case.rule.key_valid)
    exact = attention(case.query, case.key, case.value, rule=rule)
    found = linformer_attention(case.query, case.key, case.value, unit, unit, key_valid=rule.key_valid)
    assert_close(found.context, exact.context)
    assert_close(found.weights(), exact.weights)
    assert_close(found.lse, exact.lse)


@given(case=cases(), rank=st.integers(1, 9), by_head=st.booleans())
def test_slot_rows_sum_to_one_or_are_empty(case: Case, rank: int, by_head: bool) -> None:
    e, f = projections(case, rank, by_head=by_head)
    found = linformer_attention(case.query, case.key, case.value, e, f, key_valid=case.rule.key_valid)
    empty = torch.isneginf(found.lse)
    sums = found.slot_weights.sum(-1)
    assert_close(sums[~empty], torch.ones_like(sums[~empty]))
    assert (sums[empty] == 0).all()
    assert (found.context[empty] == 0).all()


@given(case=cases(), rank=st.integers(1, 5))
def test_keys_and_columns_in_another_order_carry_their_weights_along(case: Case, rank: int) -> None:
    order = torch.randperm(case.key.shape[2], generator=torch.Generator().manual_seed(0))
    e, f = projections(case, rank, by_head=False)
    straight = linformer_attention(case.query, case.key, case.value, e, f)
    shuffled = linformer_attention(
        case.query, case.key[:, :, order], case.value[:, :, order], e[:, order], f[:, order]
    )
    assert_close(shuffled.context, straight.context)
    assert_close(shuffled.weights(), straight.weights()[..., order])


def test_padding_is_the_same_as_a_shorter_input() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 2, 6, 4, generator=generator) for _ in range(3))
    torch.manual_seed(0)
    module = LinformerAttention(10, 3, 2, sharing="none")
    valid = torch.tensor([[True] * 4 + [False] * 2] * 2)
    short = module(query, key[:, :, :4], value[:, :, :4])
    key[:, :, 4:], value[:, :, 4:] = torch.inf, torch.nan
    padded = module(query, key, value, key_valid=valid)
    assert_close(padded.context, short.context)
    assert_close(padded.weights()[..., :4], short.weights())
    assert (padded.weights()[..., 4:] == 0).all()


@pytest.mark.parametrize(
    ("sharing", "numbers"), [("none", 2 * 2 * 15), ("headwise", 2 * 15), ("key_value", 15)]
)
def test_shared_projections_are_one_parameter(sharing, numbers: int) -> None:
    module = LinformerAttention(5, 3, 2, sharing=sharing)
    assert sum(parameter.numel() for parameter in module.parameters()) == numbers
    query, key, value = torch.randn(1, 4, 5, 4), torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4)
    found = module(query, key, value)
    expected = linformer_attention(query, key, value, module.key_projection, module.value_projection)
    assert_close(found.context, expected.context)
    gradients = torch.autograd.grad(found.context.square().sum(), list(module.parameters()))
    assert all(gradient.abs().sum() > 0 for gradient in gradients)


def test_gradients_are_right() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, 2, 3, 3), (1, 2, 4, 3), (1, 2, 4, 3), (2, 4), (2, 4)]
    tensors = [
        torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_() for shape in shapes
    ]
    valid = torch.tensor([[True, False, True, True]])
    assert torch.autograd.gradcheck(
        lambda q, k, v, e, f: linformer_attention(q, k, v, e, f, key_valid=valid).context, tensors
    )
    nothing = linformer_attention(*tensors, key_valid=torch.zeros(1, 4, dtype=torch.bool)).context
    assert all((g == 0).all() for g in torch.autograd.grad(nothing.sum(), tensors))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_precision(dtype: torch.dtype, tolerance: float) -> None:
    generator = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(1, 2, 40, 8, generator=generator).to(dtype) for _ in range(3))
    e, f = (torch.randn(6, 40, generator=generator).to(dtype) * 0.1 for _ in range(2))
    exact = linformer_attention(*(t.double() for t in (query, key, value, e, f))).context
    found = linformer_attention(query, key, value, e, f)
    assert found.context.dtype == dtype
    assert_close(found.context.double(), exact, atol=tolerance, rtol=tolerance)


def test_empty_and_single() -> None:
    for queries, keys in ((0, 3), (2, 0), (0, 0)):
        query, key, value = (
            torch.randn(1, 4, queries, 3),
            torch.randn(1, 2, keys, 3),
            torch.randn(1, 2, keys, 5),
        )
        e, f = torch.randn(2, keys), torch.randn(2, keys)
        found = linformer_attention(query, key, value, e, f)
        assert found.context.shape == (1, 4, queries, 5)
        assert found.weights().shape == (1, 4, queries, keys)
        assert (found.context == 0).all() or keys
    query, key, value = (torch.randn(1, 2, 1, 3) for _ in range(3))
    one = torch.ones(1, 1)
    assert_close(linformer_attention(query, key, value, one, one).context, value)


@pytest.mark.parametrize(
    ("e", "f", "options", "message"),
    [
        ((3, 5), (3, 6), {}, "key_projection must be"),
        ((3, 6), (4, 3, 6), {}, "value_projection must be"),
        ((3, 6), (2, 6), {}, "must have key_projection's 3 slots but has 2"),
        ((3, 6), (3, 6), {"key_valid": torch.ones(2, 6)}, "key_valid must be a bool tensor"),
    ],
)
def test_what_does_not_fit_is_named(e, f, options: dict, message: str) -> None:
    query, key, value = torch.randn(2, 4, 5, 4), torch.randn(2, 2, 6, 4), torch.randn(2, 2, 6, 4)
    with pytest.raises(ValueError, match=message):
        linformer_attention(query, key, value, torch.randn(e), torch.randn(f), **options)


def test_a_module_names_what_does_not_fit() -> None:
    with pytest.raises(ValueError, match="must be at least 1"):
        LinformerAttention(4, 0, 2)
    with pytest.raises(ValueError, match="sharing must be"):
        LinformerAttention(4, 2, 2, sharing="layerwise")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="key must have at most 4 positions but has 5"):
        LinformerAttention(4, 2, 2)(*(torch.randn(1, 2, 5, 3),) * 3)
