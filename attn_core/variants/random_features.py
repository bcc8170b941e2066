"""Positive random features: φ(q)·φ(k) is exp(scale · q·k) on average, which makes linear attention a softmax.

Choromanski et al. 2021, "Rethinking attention with Performers", sections 2.3 (lemma 1) and 2.4 (orthogonal
directions). Give what comes out to ``linear_attention`` with ``feature_map="identity"``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attn_core.checks import check_query_key_value
from attn_core.functional import at_least_float32, resolve_scale


def random_directions(
    width: int, count: int, *, orthogonal: bool = True, generator: torch.Generator | None = None
) -> Tensor:
    """Directions w ~ N(0, I) for the features.

    Args:
        width: D; ``count``: m.
        orthogonal: each D of them stand at right angles, with the lengths of independent ones; this estimates better
            and stays unbiased.
    Returns:
        (m, D).
    Raises:
        ValueError: if a number is below one.
    """
    if min(width, count) < 1:
        raise ValueError(
            f"random_directions: width and count must be at least 1 but are {width} and {count}; choose others."
        )
    if not orthogonal:
        return torch.randn(count, width, generator=generator)
    lengths = torch.randn(count, width, generator=generator).norm(dim=1, keepdim=True)
    # Q of a square normal matrix alone is not uniform over rotations; the signs of R's diagonal make it so.
    turned = []
    for start in range(0, count, width):
        square = torch.randn(width, width, generator=generator)
        q, r = torch.linalg.qr(square)
        turned.append((q * r.diagonal().sign()).T[: count - start])
    directions: Tensor = torch.cat(turned) * lengths
    return directions


def positive_random_features(
    query: Tensor, key: Tensor, directions: Tensor, *, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """exp(w·x − |x|²/2)/√m of every direction w, x = √scale times query or key.

    A factor of its own for each query and one for all keys of a head keep the exponents small; linear attention
    divides both away.

    Args:
        query: (B, H, Q, D); ``key``: (B, G, K, D).
        directions: (m, D) from ``random_directions``.
        scale: None = 1/√D.
    Returns:
        (B, H, Q, m) and (B, G, K, m), at least float32, above 0 up to rounding.
    Raises:
        TypeError, ValueError: if shapes or dtypes do not belong together, or ``scale`` is negative.
    """
    check_query_key_value(query, key, None, "positive_random_features")
    factor = resolve_scale(scale, query.shape[3])
    if directions.ndim != 2 or directions.shape[1] != query.shape[3] or factor < 0:
        raise ValueError(
            f"positive_random_features: directions must be (m, {query.shape[3]}) and scale at least 0 but are "
            f"{tuple(directions.shape)} and {factor}; make directions by random_directions."
        )
    exponents = []
    for tensor in (query, key):
        vectors = at_least_float32(tensor) * factor**0.5
        along = vectors @ directions.to(vectors).T
        exponents.append(along - vectors.square().sum(-1, keepdim=True) / 2)
    of_query, of_key = exponents
    root = len(directions) ** -0.5
    if of_query.numel():
        of_query = of_query - of_query.amax(-1, keepdim=True)
    if of_key.numel():
        of_key = of_key - of_key.amax((-1, -2), keepdim=True)
    return of_query.exp() * root, of_key.exp() * root
