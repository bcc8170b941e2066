"""Attention that never stores n × n weights, with the log-sum-exp from which any of them can be recomputed.

Dao et al. 2022 (FlashAttention): the softmax of a row needs only its running maximum and sum, so a tile of scores
can be used and forgotten; the log-sum-exp is what is left to recompute a weight exactly, exp(score − lse).
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from attn_core.bias import Bias
from attn_core.checks import check_query_key_value
from attn_core.flash.fused import fused_attention, fused_reason
from attn_core.flash.tiled import tiled_attention
from attn_core.functional import AttentionOutput, attention
from attn_core.masks import MaskRule

Implementation = Literal["auto", "reference", "tiled", "fused"]


def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    rule: MaskRule | None = None,
    bias: Bias | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    impl: Implementation = "auto",
) -> AttentionOutput:
    """Context and log-sum-exp of attention, with no n × n weights kept.

    Args:
        query: (B, H, Q, D).
        key, value: (B, G, K, D) and (B, G, K, E); G divides H.
        rule, bias, scale, softcap, sinks: as in ``attn_core.functional.attention``.
        impl: "auto" takes the fused operator where it computes the same thing, else tiles; a named one fails
            rather than falls back.
    Returns:
        context (B, H, Q, E), lse (B, H, Q).
    Raises:
        ValueError: if shapes do not belong together, or the named implementation cannot compute this.
    """
    check_query_key_value(query, key, value, "flash_attention")
    reason = fused_reason(query, value, bias=bias, softcap=softcap, sinks=sinks)
    if impl == "fused" and reason is not None:
        raise ValueError(
            f"flash_attention: impl='fused' cannot compute this because {reason}; use impl='auto'."
        )
    if impl == "fused" or (impl == "auto" and reason is None):
        return fused_attention(query, key, value, rule=rule, bias=bias, scale=scale)
    if impl in ("auto", "tiled"):
        return tiled_attention(
            query, key, value, rule=rule, bias=bias, scale=scale, softcap=softcap, sinks=sinks
        )
    if impl == "reference":
        return attention(query, key, value, rule=rule, bias=bias, scale=scale, softcap=softcap, sinks=sinks)
    raise ValueError(f"flash_attention: impl must be auto, reference, tiled or fused but is {impl!r}.")
