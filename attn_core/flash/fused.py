"""PyTorch's own fused attention with its log-sum-exp, where it computes the same thing.

The operators that return the log-sum-exp are private to PyTorch, so they are called in this file alone, and
``tests/attn_core/test_attention.py`` holds them to the reference: a PyTorch that changes them fails there and not in
a figure.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attn_core.bias import Bias, dense_bias, needs_gradient
from attn_core.functional import AttentionOutput, repeat_groups, resolve_scale
from attn_core.masks import MaskRule


def fused_reason(
    query: Tensor, value: Tensor, *, bias: Bias | None, softcap: float | None, sinks: Tensor | None
) -> str | None:
    """Why the fused operator cannot be used, or None when it can."""
    if query.device.type != "cpu":
        return f"no operator with a log-sum-exp is wired up for {query.device.type}"
    if softcap is not None or sinks is not None:
        return "scores are soft-capped or have sinks"
    if query.dtype not in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        return f"dtype {query.dtype}"
    if needs_gradient(bias):
        return "the bias needs a gradient"
    if query.shape[3] != value.shape[3]:
        return f"value width {value.shape[3]} differs from key width {query.shape[3]}"
    if 0 in query.shape or 0 in value.shape:
        return "an axis is empty"
    return None


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    rule: MaskRule | None = None,
    bias: Bias | None = None,
    scale: float | None = None,
) -> AttentionOutput:
    """As ``attn_core.functional.attention``, by PyTorch's flash kernel for CPUs.

    Differentiable in query, key and value (through the context; the log-sum-exp carries no gradient).
    """
    batch, heads, queries, width = query.shape
    keys = key.shape[2]
    factor = resolve_scale(scale, width)
    # Of a causal call the operator scales the −∞ of its own mask, which is NaN for a scale of 0 (PyTorch 2.13).
    causal = rule is not None and rule.is_plain_causal and bias is None and queries == keys and factor > 0.0
    mask = None if causal else _additive_mask(rule, dense_bias(bias), query, keys)
    context, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query,
        repeat_groups(key, heads),
        repeat_groups(value, heads),
        dropout_p=0.0,
        is_causal=causal,
        attn_mask=mask,
        scale=factor,
    )
    if mask is None:
        return AttentionOutput(context=context, lse=lse)
    empty = torch.isneginf(mask).all(dim=-1).expand(batch, heads, queries)  # rows with nothing allowed
    return AttentionOutput(
        context=context.masked_fill(empty[..., None], 0.0), lse=lse.masked_fill(empty, -math.inf)
    )


def _additive_mask(rule: MaskRule | None, bias: Tensor | None, query: Tensor, keys: int) -> Tensor | None:
    """Rule and bias as one tensor that broadcasts to (B, H, Q, K), in query's dtype as the operator demands."""
    allowed = None
    queries = query.shape[2]
    if rule is not None and not rule.is_trivial:
        rows = torch.arange(1 if rule.is_padding_alone else queries, device=query.device)
        columns = torch.arange(keys, device=query.device)
        allowed = rule.allowed(rows, columns, queries=queries, keys=keys)
    if allowed is None and bias is None:
        return None
    mask = torch.zeros((), dtype=query.dtype, device=query.device) if bias is None else bias.to(query.dtype)
    if allowed is not None:
        mask = torch.where(allowed, mask, -math.inf)
    mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    return mask.expand(-1, -1, queries, keys)
