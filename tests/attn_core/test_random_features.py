"""Positive random features: unbiased, closer with more directions, and what linear attention makes of them."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from attn_core import attention
from attn_core.variants import linear_attention, linear_attention_weights
from attn_core.variants.random_features import positive_random_features, random_directions


def vectors(seed: int = 0, *, n: int = 6, width: int = 4, heads: int = 1) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(1, heads, n, width, generator=generator, dtype=torch.float64) for _ in range(3))


def test_orthogonal_directions_stand_at_right_angles_and_are_as_long_as_independent_ones() -> None:
    generator = torch.Generator().manual_seed(0)
    drawn = torch.stack([random_directions(8, 12, generator=generator) for _ in range(400)]).double()
    unit = drawn / drawn.norm(dim=-1, keepdim=True)
    assert_close(unit[:, :8] @ unit[:, :8].mT, torch.eye(8).double().expand(400, 8, 8), atol=1e-5, rtol=0)
    squares = drawn.square().sum(-1)  # chi-squared with 8 degrees of freedom: mean 8, variance 16
    assert abs(squares.mean() - 8) < 4 * (16 / squares.numel()) ** 0.5
    # Uniform over rotations: every coordinate has mean 0 (its standard deviation is 1).
    assert drawn.mean((0, 1)).abs().max() < 5 / (400 * 12) ** 0.5


@pytest.mark.parametrize("orthogonal", [True, False])
def test_inner_products_of_features_are_the_softmax_kernel_on_average(orthogonal: bool) -> None:
    query, key, _ = vectors()
    query, key = query * 0.7, key * 0.7
    kernel = torch.exp(query @ key.mT / 2)  # 1/√4
    directions = random_directions(
        4, 200_000, orthogonal=orthogonal, generator=torch.Generator().manual_seed(1)
    )
    of_query, of_key = positive_random_features(query, key, directions)
    estimate = of_query @ of_key.mT
    # The stabilising factors are one for each query and one for all keys, so ratios within a row are the kernel's.
    ratios, exact = estimate / estimate.sum(-1, keepdim=True), kernel / kernel.sum(-1, keepdim=True)
    assert_close(ratios, exact, atol=0.01, rtol=0)


def test_features_are_the_formula() -> None:
    query, key, _ = vectors()
    directions = random_directions(4, 7, generator=torch.Generator().manual_seed(1)).double()
    of_query, of_key = positive_random_features(query, key, directions, scale=0.3)
    for tensor, found, axes in ((query, of_query, (-1,)), (key, of_key, (-1, -2))):
        x = tensor * 0.3**0.5
        plain = torch.exp(x @ directions.T - x.square().sum(-1, keepdim=True) / 2) / 7**0.5
        factor = plain / found
        assert_close(factor, factor.amax(axes, keepdim=True).expand_as(factor))


def test_more_features_come_closer_to_exact_attention() -> None:
    errors = []
    for count in (4, 64, 1024):
        total = 0.0
        for seed in range(8):
            query, key, value = vectors(seed, n=12, heads=2)
            directions = random_directions(4, count, generator=torch.Generator().manual_seed(seed))
            features = positive_random_features(query, key, directions)
            context = linear_attention(*features, value, feature_map="identity").context
            total += float((context - attention(query, key, value).context).norm())
        errors.append(total)
    assert errors[2] < errors[1] < errors[0]


def test_large_vectors_do_not_overflow() -> None:
    query, key, _ = (tensor.float() * 60 for tensor in vectors())
    directions = random_directions(4, 32, generator=torch.Generator().manual_seed(0))
    weights = linear_attention_weights(
        *positive_random_features(query, key, directions), feature_map="identity"
    )
    assert torch.isfinite(weights).all()


def test_empty_sequences_and_wrong_arguments() -> None:
    query = torch.randn(1, 1, 0, 4)
    directions = random_directions(4, 3)
    assert positive_random_features(query, query, directions)[0].shape == (1, 1, 0, 3)
    with pytest.raises(ValueError, match="random_directions: width and count"):
        random_directions(0, 3)
    with pytest.raises(ValueError, match="positive_random_features: directions must be"):
        positive_random_features(query, query, torch.randn(3, 5))
    with pytest.raises(ValueError, match="scale at least 0"):
        positive_random_features(query, query, directions, scale=-1.0)
