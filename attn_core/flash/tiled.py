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
from attn_core.strips import strip_rows


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
