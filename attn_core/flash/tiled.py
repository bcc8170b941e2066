"""Attention in strips of queries: the same numbers as the reference with O(strip · K) memory, on any device."""

from __future__ import annotations

import torch
from torch import Tensor

from attn_core.bias import Bias, bias_block
from attn_core.functional import (
    AttentionOutput,
    at_least_float32,
    attention_scores,
    masked_softmax,
    repeat_groups,
    resolve_scale,
)
from attn_core.masks import MaskRule

STRIP_ELEMENTS = 4_000_000
"""Scores held at once: 16 MB in float32, small enough for caches and large enough for the matrix product."""


def strip_rows(batch_heads: int, keys: int, *, elements: int = STRIP_ELEMENTS) -> int:
    """How many queries a strip holds so that batch · heads · strip · keys stays below ``elements``."""
    return max(1, elements // max(1, batch_heads * keys))


def tiled_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    rule: MaskRule | None = None,
    bias: Bias | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> AttentionOutput:
    """As ``attn_core.functional.attention``, one strip of queries at a time, without keeping the weights."""
    batch, heads, queries, width = query.shape
    keys = key.shape[2]
    columns = torch.arange(keys, device=query.device)
    value = repeat_groups(value, heads)
    query, key = at_least_float32(query), at_least_float32(key)
    contexts, lses = [], []
    step = strip_rows(batch * heads, keys)
    for start in range(0, max(queries, 1), step):
        strip = slice(start, min(start + step, queries))
        scores = attention_scores(
            query[:, :, strip],
            key,
            scale=resolve_scale(scale, width),
            softcap=softcap,
            bias=bias_block(bias, strip, slice(None)),
        )
        rows = torch.arange(strip.start, strip.stop, device=query.device)
        allowed = None if rule is None else rule.allowed(rows, columns, queries=queries, keys=keys)
        weights, lse = masked_softmax(scores, allowed, sinks=sinks)
        contexts.append(weights.to(value.dtype) @ value)
        lses.append(lse)
    return AttentionOutput(context=torch.cat(contexts, dim=2), lse=torch.cat(lses, dim=2))
