"""LSH attention against its definition pair by pair, exact attention in one bucket, sorting against the open form."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from attn_core import MaskRule, attention
from attn_core.variants import chunked_lsh_attention, lsh_attention, random_rotations


@dataclass(frozen=True)
class Shared:
    """query_key (B, H, N, D), value (B, H, N, E), rotations, rule and chunk."""

    query_key: Tensor
    value: Tensor
    rotations: Tensor
    rule: MaskRule
    chunk: int


@st.composite
def shared_cases(draw: st.DrawFn, *, buckets: int | None = None) -> Shared:
    """Any small shared-QK attention."""
    batch, heads, n = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(1, 12))
    width = draw(st.integers(1, 5))
    count = draw(st.sampled_from([1, 2, 4, 6])) if buckets is None else buckets
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    valid = torch.rand(batch, n, generator=generator) > 0.3 if draw(st.booleans()) else None
    return Shared(
        query_key=torch.randn(batch, heads, n, width, generator=generator, dtype=torch.float64) * 2,
        value=torch.randn(batch, heads, n, 3, generator=generator, dtype=torch.float64),
        rotations=random_rotations(
            width, count, draw(st.integers(1, 3)), generator=generator, dtype=torch.float64
        ),
        rule=MaskRule(causal=draw(st.booleans()), key_valid=valid),
        chunk=draw(st.integers(1, 13)),
    )


def oracle_row(case: Shared, b: int, h: int, i: int, chosen: list[int]) -> np.ndarray:
    """Softmax over the chosen keys of a row, itself only when nothing else is left."""
    n, width = case.query_key.shape[2:]
    vectors = case.query_key[b, h].numpy()
    valid = np.ones(n, bool) if case.rule.key_valid is None else case.rule.key_valid[b].numpy()
    chosen = [j for j in chosen if valid[j] and (not case.rule.causal or j <= i)]
    if len(chosen) > 1:
        chosen = [j for j in chosen if j != i]
    row = np.zeros(n)
    if chosen:
        scores = np.array([vectors[i] @ vectors[j] / np.linalg.norm(vectors[j]) / width**0.5 for j in chosen])
        row[chosen] = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
    return row


def oracle(case: Shared, chunk: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Weights and kept mass, one pair at a time (Kitaev et al. 2020, section 2)."""
    batch, heads, n, _ = case.query_key.shape
    rotations = case.rotations.numpy()
    weights, kept = np.zeros((batch, heads, n, n)), np.zeros((batch, heads, n))
    for b, h in np.ndindex(batch, heads):
        valid = np.ones(n, bool) if case.rule.key_valid is None else case.rule.key_valid[b].numpy()
        met = np.zeros((n, n), bool)
        for rotation in rotations:
            turned = case.query_key[b, h].numpy() @ rotation
            both = np.concatenate([turned, -turned], axis=1)
            bucket = both.argmax(1) if both.shape[1] else np.zeros(n, int)
            in_order = sorted(range(n), key=lambda j, v=valid, k=bucket: (not v[j], k[j], j))
            place = {j: 0 if chunk is None else rank // chunk for rank, j in enumerate(in_order)}
            for i, j in np.ndindex(n, n):
                met[i, j] |= bucket[i] == bucket[j] and place[i] - place[j] in (0, 1)
        for i in range(n):
            weights[b, h, i] = oracle_row(case, b, h, i, list(np.flatnonzero(met[i])))
            kept[b, h, i] = oracle_row(case, b, h, i, list(range(n)))[weights[b, h, i] > 0].sum()
    return weights, kept


@given(case=shared_cases(), whole=st.booleans())
def test_the_open_form_is_the_definition(case: Shared, whole: bool) -> None:
    chunk = None if whole else case.chunk
    weights, kept = oracle(case, chunk)
    found = lsh_attention(case.query_key, case.value, case.rotations, rule=case.rule, chunk=chunk)
    np.testing.assert_allclose(found.weights.numpy(), weights, atol=1e-10)
    np.testing.assert_allclose(found.kept.numpy(), kept, atol=1e-10)
    np.testing.assert_allclose(found.context.numpy(), weights @ case.value.numpy(), atol=1e-10)


@given(case=shared_cases())
def test_sorting_gives_the_same(case: Shared) -> None:
    expected = lsh_attention(case.query_key, case.value, case.rotations, rule=case.rule, chunk=case.chunk)
    found = chunked_lsh_attention(
        case.query_key, case.value, case.rotations, rule=case.rule, chunk=case.chunk
    )
    assert_close(found.context, expected.context)
    assert_close(found.lse, expected.lse)


@given(case=shared_cases(buckets=1))
def test_one_bucket_is_exact_shared_attention(case: Shared) -> None:
    n = case.query_key.shape[2]
    key = case.query_key / case.query_key.norm(dim=-1, keepdim=True)
    valid = torch.ones(case.query_key.shape[0], n) if case.rule.key_valid is None else case.rule.key_valid
    first = valid.bool().long().argmax(-1)  # (B,) the first valid position sees nothing else when causal
    last = valid.long().sum(-1) == 1

    def others(item: Tensor, _head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        alone = (row == first[item]) & (last[item] | case.rule.causal)
        return (row != column) | alone

    rule = MaskRule(
        causal=case.rule.causal, key_valid=case.rule.key_valid, predicate=others, predicate_batch=len(valid)
    )
    exact = attention(case.query_key, key, case.value, rule=rule)
    found = lsh_attention(case.query_key, case.value, case.rotations, rule=case.rule)
    assert_close(found.weights, exact.weights)
    assert_close(found.context, exact.context)
    assert_close(found.lse, exact.lse)
    assert_close(found.kept, (~torch.isneginf(exact.lse)).double())
    sorted_form = chunked_lsh_attention(
        case.query_key, case.value, case.rotations, rule=case.rule, chunk=max(n, case.chunk)
    )
    assert_close(sorted_form.context, exact.context)


@given(case=shared_cases())
def test_more_rounds_keep_more_of_the_true_attention(case: Shared) -> None:
    kept = [
        lsh_attention(case.query_key, case.value, case.rotations[:rounds], rule=case.rule).kept
        for rounds in range(1, len(case.rotations) + 1)
    ]
    for fewer, more in pairwise(kept):
        assert (more >= fewer - 1e-12).all()
        assert (more <= 1 + 1e-12).all()


@given(case=shared_cases())
def test_positions_in_another_order_carry_their_context_along(case: Shared) -> None:
    order = torch.randperm(case.query_key.shape[2], generator=torch.Generator().manual_seed(0))
    straight = lsh_attention(case.query_key, case.value, case.rotations)
    shuffled = lsh_attention(case.query_key[:, :, order], case.value[:, :, order], case.rotations)
    assert_close(shuffled.context, straight.context[:, :, order])
    assert_close(shuffled.weights, straight.weights[:, :, order][..., order])
    assert torch.equal(shuffled.buckets, straight.buckets[..., order])


def test_near_vectors_share_a_bucket_and_opposite_ones_never_do() -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(1, 1, 50, 8, generator=generator)
    both = torch.cat([vectors, vectors * 3.0, -vectors], dim=2)
    rotations = random_rotations(8, 8, 4, generator=generator)
    buckets = lsh_attention(both, both, rotations).buckets[:, 0, 0]
    near, far = buckets[:, 50:100], buckets[:, 100:]
    assert (buckets[:, :50] == near).all()
    assert (buckets[:, :50] != far).all()
    assert set(buckets.flatten().tolist()) <= set(range(8))


def test_padding_at_the_end_is_the_same_as_a_shorter_input() -> None:
    generator = torch.Generator().manual_seed(0)
    query_key, value = (torch.randn(1, 2, 12, 4, generator=generator) for _ in range(2))
    rotations = random_rotations(4, 4, 2, generator=generator)
    rule = MaskRule(key_valid=torch.arange(12)[None] < 8)
    padded = chunked_lsh_attention(query_key, value, rotations, chunk=3, rule=rule)
    short = chunked_lsh_attention(query_key[:, :, :8], value[:, :, :8], rotations, chunk=3)
    assert_close(padded.context[:, :, :8], short.context)


@pytest.mark.parametrize("causal", [False, True])
def test_gradients_are_right(causal: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = [
        torch.randn(1, 2, 6, 3, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(2)
    ]
    rotations = random_rotations(3, 4, 2, generator=generator, dtype=torch.float64)
    rule = MaskRule(causal=causal, key_valid=torch.tensor([[False, True, True, False, True, True]]))
    for function in (lsh_attention, chunked_lsh_attention):
        assert torch.autograd.gradcheck(
            lambda q, v, f=function: f(q, v, rotations, chunk=4, rule=rule).context, tensors
        )


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_precision(dtype: torch.dtype, tolerance: float) -> None:
    generator = torch.Generator().manual_seed(1)
    query_key, value = (torch.randn(1, 2, 70, 8, generator=generator).to(dtype) for _ in range(2))
    rotations = random_rotations(8, 8, 2, generator=generator)
    exact = lsh_attention(query_key.double(), value.double(), rotations, chunk=16)
    for function in (lsh_attention, chunked_lsh_attention):
        found = function(query_key, value, rotations, chunk=16)
        assert found.context.dtype == dtype
        assert found.lse.dtype == torch.float32
        assert_close(found.context.double(), exact.context, atol=tolerance, rtol=tolerance)


def test_empty_and_single() -> None:
    rotations = random_rotations(3, 4, 2)
    for function in (lsh_attention, chunked_lsh_attention):
        empty = torch.randn(2, 2, 0, 3)
        assert function(empty, empty, rotations, chunk=4).context.shape == (2, 2, 0, 3)
        one, value = torch.randn(2, 2, 1, 3), torch.randn(2, 2, 1, 5)
        assert_close(function(one, value, rotations, chunk=4).context, value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rotations": torch.randn(2, 3, 2)}, r"rotations must be \(rounds, D, buckets / 2\) with D = 4"),
        ({"chunk": 0}, "chunk must be at least 1"),
        ({"rule": MaskRule(window=2)}, "has a window or a predicate"),
        ({"value": torch.randn(2, 2, 5, 4)}, "value must have key's batch, heads and positions"),
    ],
)
def test_what_does_not_fit_is_named(options: dict, message: str) -> None:
    given_options = {
        "value": torch.randn(2, 2, 6, 4),
        "rotations": torch.randn(2, 4, 2),
        "chunk": 3,
    } | options
    for function in (lsh_attention, chunked_lsh_attention):
        with pytest.raises(ValueError, match=message):
            function(torch.randn(2, 2, 6, 4), **given_options)


def test_an_odd_number_of_buckets_is_refused() -> None:
    with pytest.raises(ValueError, match="buckets must be even or 1"):
        random_rotations(4, 3, 1)
