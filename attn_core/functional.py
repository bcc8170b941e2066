"""The reference: attention as the formula says it, every n × n array in the open.

softmax(softcap(scale · Q Kᵀ) + bias, over allowed keys) V — Vaswani et al. 2017, section 3.2.1; soft cap as in
Gemma 2 (2024, section 2); grouped key–value heads as in Ainslie et al. 2023. Everything faster or smaller in this
package must give these numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from attn_core.bias import Bias, dense_bias
from attn_core.checks import check_ndim, check_query_key_value
from attn_core.masks import MaskRule


@dataclass(frozen=True)
class AttentionOutput:
    """What every attention returns.

    Attributes:
        context: (B, H, Q, E) weighted values.
        lse: (B, H, Q) natural log-sum-exp of each row of scores; −∞ where nothing is allowed.
    """

    context: Tensor
    lse: Tensor


@dataclass(frozen=True)
class DenseAttentionOutput(AttentionOutput):
    """The output of the reference, with its weights.

    Attributes:
        weights: (B, H, Q, K) after softmax; a row with nothing allowed is zero.
    """

    weights: Tensor


def resolve_scale(scale: float | None, width: int) -> float:
    """``scale`` itself, or 1/√width when it is None (0.0 stays 0.0)."""
    return 1.0 / math.sqrt(width) if scale is None else scale


def repeat_groups(grouped: Tensor, heads: int) -> Tensor:
    """Key or value heads (B, G, K, D) for each of H query heads (B, H, K, D): head h reads group h // (H / G)."""
    groups = grouped.shape[1]
    return grouped if groups == heads else grouped.repeat_interleave(heads // groups, dim=1)


def at_least_float32(tensor: Tensor) -> Tensor:
    """The tensor, float16 and bfloat16 widened: a log-sum-exp rounded to half precision would misscale whole rows."""
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))


def attention_scores(
    query: Tensor,
    key: Tensor,
    *,
    scale: float,
    softcap: float | None = None,
    bias: Tensor | None = None,
) -> Tensor:
    """Scores before the mask: softcap(scale · Q Kᵀ) + bias.

    Args:
        query: (B, H, Q, D).
        key: (B, G, K, D), G divides H.
        softcap: scores are bent to ±softcap by softcap · tanh(score / softcap).
        bias: broadcasts to (B, H, Q, K).
    Returns:
        (B, H, Q, K) in query's dtype.
    """
    batch, heads, queries, width = query.shape
    groups = key.shape[1]
    grouped = (query * scale).reshape(batch, groups, heads // groups * queries, width)
    scores = (grouped @ key.transpose(-1, -2)).view(batch, heads, queries, key.shape[2])
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    return scores if bias is None else scores + bias


def masked_softmax(
    scores: Tensor, allowed: Tensor | None, *, sinks: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Softmax over allowed keys, and its log-sum-exp.

    Args:
        scores: (B, H, Q, K).
        allowed: bool, broadcasts to scores; None = all.
        sinks: (H,) an extra score per head that takes weight but has no value (Xiao et al. 2024; gpt-oss).
    Returns:
        weights (B, H, Q, K), zero where not allowed; lse (B, H, Q).
    """
    if allowed is not None:
        scores = scores.masked_fill(~allowed, -math.inf)
    # Not torch.logsumexp: a row of nothing but −∞ has a NaN for a gradient there, and exp(score − lse) is less exact
    # than a quotient, since rounding the lse misscales the row.
    row = *scores.shape[:-1], 1
    top = scores.detach().amax(-1, keepdim=True) if scores.shape[-1] else scores.new_full(row, -math.inf)
    sink = None if sinks is None else sinks[:, None, None].to(scores.dtype)
    top = top if sink is None else torch.maximum(top, sink.detach())
    empty = torch.isneginf(top)
    level = top.masked_fill(empty, 0.0)
    powers = (scores - level).exp_()  # (B, H, Q, K)
    total = powers.sum(-1, keepdim=True)
    total = total if sink is None else total + (sink - level).exp()
    total = total.masked_fill(empty, 1.0)
    return powers / total, (top + total.log()).squeeze(-1)


def attend(
    scores: Tensor, value: Tensor, *, allowed: Tensor | None = None, sinks: Tensor | None = None
) -> DenseAttentionOutput:
    """Values weighted by the softmax of any scores: the step that additive and dot-product attention share.

    Args:
        scores: (B, H, Q, K), such as ``attn_core.scores`` makes them.
        value: (B, G, K, E); G divides H.
        allowed: bool, broadcasts to scores; None = all.
        sinks: (H,) extra score per head without a value.
    Returns:
        context (B, H, Q, E) in value's dtype; lse (B, H, Q) and weights (B, H, Q, K), at least float32.
    Raises:
        TypeError, ValueError: if shapes do not belong together, or ``allowed`` is not bool.
    """
    check_ndim(scores, 4, "attend: scores")
    check_ndim(value, 4, "attend: value")
    batch, heads, _, keys = scores.shape
    if value.shape[2] != keys:
        raise ValueError(
            f"attend: value has {value.shape[2]} key positions but scores have {keys}; pass the value that belongs "
            "to the same keys."
        )
    if value.shape[0] != batch or value.shape[1] == 0 or heads % value.shape[1]:
        raise ValueError(
            f"attend: value must have scores' batch size {batch} and a divisor of their {heads} heads but has "
            f"{tuple(value.shape[:2])}; pass the value of the same layer."
        )
    if allowed is not None and allowed.dtype != torch.bool:
        raise TypeError(f"attend: allowed must be bool but is {allowed.dtype}; pass allowed.bool().")
    weights, lse = masked_softmax(at_least_float32(scores), allowed, sinks=sinks)
    context = weights.to(value.dtype) @ repeat_groups(value, heads)
    return DenseAttentionOutput(context=context, lse=lse, weights=weights)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    rule: MaskRule | None = None,
    bias: Bias | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> DenseAttentionOutput:
    """Attention by the written-out formula, with its weights.

    Args:
        query: (B, H, Q, D).
        key, value: (B, G, K, D) and (B, G, K, E); G divides H (grouped-query attention).
        rule: which pairs may attend; None = all.
        bias: added to the scores after scaling and soft cap; broadcasts to (B, H, Q, K), or its
            table (``attn_core.bias``).
        scale: factor of Q Kᵀ; None = 1/√D.
        softcap: bends scores to ±softcap.
        sinks: (H,) extra score per head without a value.
    Returns:
        context (B, H, Q, E) in value's dtype; lse (B, H, Q) and weights (B, H, Q, K), at least float32.
    Raises:
        TypeError, ValueError: if shapes or dtypes do not belong together.
    """
    check_query_key_value(query, key, value, "attention")
    queries, keys = query.shape[2], key.shape[2]
    scores = attention_scores(
        at_least_float32(query),
        at_least_float32(key),
        scale=resolve_scale(scale, query.shape[3]),
        softcap=softcap,
        bias=dense_bias(bias),
    )
    allowed = None
    if rule is not None:
        rows, columns = (torch.arange(n, device=query.device) for n in (queries, keys))
        allowed = rule.allowed(rows, columns, queries=queries, keys=keys)
    return attend(scores, value, allowed=allowed, sinks=sinks)
