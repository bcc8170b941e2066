"""Attention within windows and to global tokens (Beltagy et al. 2020), token by token in float64 NumPy."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tests.oracles.formulas import Floats, softmax_rows

Bools = NDArray[np.bool_]
Projection = tuple[Floats, Floats]
"""Matrix (out, in) and bias (out,)."""


def windowed_attention(
    hidden: Floats,
    projections: Mapping[str, Projection],
    *,
    heads: int,
    reach: int,
    valid: Bools,
    is_global: Bools,
) -> tuple[Floats, Floats]:
    """Weights (H, N, N) and context (N, M) of one item.

    A local token looks at valid tokens at most ``reach`` away and at every global token, through query, key and
    value. A global token looks at every valid token, through query_global, key_global and value_global.
    """
    tokens, width = hidden.shape
    size = width // heads
    weights, context = np.zeros((heads, tokens, tokens)), np.zeros((tokens, width))
    made = {name: hidden @ matrix.T + bias for name, (matrix, bias) in projections.items()}
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        for i in range(tokens):
            if not valid[i]:
                continue
            kind = "_global" if is_global[i] else ""
            seen = [
                j for j in range(tokens) if valid[j] and (is_global[i] or is_global[j] or abs(i - j) <= reach)
            ]
            scores = made[f"key{kind}"][seen, part] @ made[f"query{kind}"][i, part] / np.sqrt(size)
            weights[head, i, seen] = softmax_rows(scores[None])[0]
            context[i, part] = weights[head, i] @ made[f"value{kind}"][:, part]
    return weights, context


def absolute_positions(band: Floats, of_global: Floats | None, is_global: Bools) -> Floats:
    """(H, N, N) weights from transformers' (H, N, X + W) and (H, N', X), one number at a time."""
    heads, tokens, width = band.shape
    global_tokens = [i for i in range(tokens) if is_global[i]]
    extra = 0 if of_global is None else of_global.shape[2]
    reach = (width - extra) // 2
    weights = np.zeros((heads, tokens, tokens))
    for head in range(heads):
        for i in range(tokens):
            if is_global[i]:
                assert of_global is not None
                weights[head, i] = of_global[head, :tokens, global_tokens.index(i)]
                continue
            for number, j in enumerate(global_tokens):
                weights[head, i, j] = band[head, i, number]
            for j in range(max(0, i - reach), min(tokens, i + reach + 1)):
                if not is_global[j]:
                    weights[head, i, j] = band[head, i, extra + reach + j - i]
    return weights
