"""Each formula once more in float64 NumPy, written for reading and not for speed."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def softmax_rows(scores: Floats) -> Floats:
    """Rows of weights from rows of scores."""
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return np.asarray(powers / powers.sum(-1, keepdims=True))


def rollout(
    weights: Floats,
    *,
    fusion: str = "mean",
    discard_ratio: float = 0.0,
    residual: bool = True,
    start_layer: int = 0,
) -> Floats:
    """(L, H, N, N) attention to the (N, N) rollout matrix, entry by entry."""
    layers, heads, tokens, _ = weights.shape
    result = np.eye(tokens)
    for layer in range(start_layer, layers):
        step = np.zeros((tokens, tokens))
        for query in range(tokens):
            for key in range(tokens):
                of_heads = [float(weights[layer, head, query, key]) for head in range(heads)]
                step[query, key] = {
                    "mean": sum(of_heads) / heads,
                    "max": max(of_heads),
                    "min": min(of_heads),
                }[fusion]
        ascending = sorted(
            ((query, key) for query in range(tokens) for key in range(tokens)), key=lambda cell: step[cell]
        )
        for cell in ascending[: int(tokens * tokens * discard_ratio)]:
            if cell != (0, 0):
                step[cell] = 0.0
        for query in range(tokens):
            if residual or step[query].sum() == 0:
                step[query, query] += 1.0
            step[query] /= step[query].sum()
        result = step @ result
    return result
