"""Attention stated once more, in float64 NumPy and loops where loops are clearest: what the code is held to."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def oracle_attention(
    query: Array,
    key: Array,
    value: Array,
    *,
    allowed: NDArray[np.bool_] | None = None,
    bias: Array | None = None,
    scale: float | None = None,
    softcap: float | None = None,
) -> tuple[Array, Array, Array]:
    """Context (B, H, Q, E), log-sum-exp (B, H, Q) and weights (B, H, Q, K); every head by itself."""
    batch, heads, queries, width = query.shape
    groups, keys = key.shape[1], key.shape[2]
    scale = width**-0.5 if scale is None else scale
    context = np.zeros((batch, heads, queries, value.shape[3]))
    lse = np.full((batch, heads, queries), -np.inf)
    weights = np.zeros((batch, heads, queries, keys))
    full_bias = (
        np.zeros((batch, heads, queries, keys)) if bias is None else np.broadcast_to(bias, weights.shape)
    )
    full_allowed = (
        np.ones(weights.shape, bool) if allowed is None else np.broadcast_to(allowed, weights.shape)
    )
    for b in range(batch):
        for h in range(heads):
            g = h // (heads // groups)
            for i in range(queries):
                scores = key[b, g] @ query[b, h, i] * scale
                if softcap is not None:
                    scores = softcap * np.tanh(scores / softcap)
                scores = scores + full_bias[b, h, i]
                seen = full_allowed[b, h, i]
                if not seen.any():
                    continue
                top = scores[seen].max()
                lse[b, h, i] = top + np.log(np.exp(scores[seen] - top).sum())
                weights[b, h, i, seen] = np.exp(scores[seen] - lse[b, h, i])
                context[b, h, i] = weights[b, h, i] @ value[b, g]
    return context, lse, weights


def oracle_allowed(
    queries: int, keys: int, *, causal: bool = False, window: int | None = None
) -> NDArray[np.bool_]:
    """(Q, K) permissions by the conventions: the last query sees the last key; a window counts its own key."""
    allowed = np.ones((queries, keys), bool)
    for i in range(queries):
        place = i + keys - queries
        for j in range(keys):
            if causal and j > place:
                allowed[i, j] = False
            if window is not None and (place - j >= window or (not causal and j - place >= window)):
                allowed[i, j] = False
    return allowed
