"""Attention that never stores n × n weights, with the log-sum-exp from which any of them can be recomputed.

Dao et al. 2022 (FlashAttention): the softmax of a row needs only its running maximum and sum, so a tile of scores
can be used and forgotten; the log-sum-exp is what is left to recompute a weight exactly, exp(score − lse).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from attn_core.bias import Bias
from attn_core.checks import check_query_key_value
from attn_core.flash.choice import Choice, Implementation, Named, explain_choice
from attn_core.flash.compiled_forward import compiled_attention, compiled_reason
from attn_core.flash.fused import fused_attention, fused_reason
from attn_core.flash.scoring import Scoring
from attn_core.flash.tiled import tiled_attention
from attn_core.functional import AttentionOutput, attention, resolve_scale
from attn_core.masks import MaskRule
from attn_core.watching import worked

__all__ = ["Choice", "Implementation", "explain_choice", "flash_attention"]


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

    Every implementation but the compiled one, which has no backward pass, is differentiable in query, key and value
    through both results, all but the reference once only. Each tells whoever watches (``attn_core.watching``) of its
    work.

    Args:
        query: (B, H, Q, D).
        key, value: (B, G, K, D) and (B, G, K, E); G divides H.
        rule, bias, scale, softcap, sinks: as in ``attn_core.functional.attention``.
        impl: "auto" takes what ``explain_choice`` says; a named one fails rather than falls back. "reference" keeps
            n × n weights all the same.
    Returns:
        context (B, H, Q, E) in value's dtype, lse (B, H, Q) at least float32.
    Raises:
        ImportError: if impl is "triton" and that package is missing.
        TypeError, ValueError: if shapes or dtypes do not belong together, or the named implementation cannot compute
            this.
    """
    check_query_key_value(query, key, value, "flash_attention")
    options: dict[str, Any] = {
        "rule": rule,
        "bias": bias,
        "scale": scale,
        "softcap": softcap,
        "sinks": sinks,
    }
    chosen = explain_choice(query, key, value, **options).impl if impl == "auto" else impl
    if chosen not in RUN:
        raise ValueError(
            f"flash_attention: impl must be auto, {', '.join(list(RUN)[:-1])} or compiled but is {impl!r}."
        )
    return RUN[chosen](query, key, value, **options)


def _reference(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> AttentionOutput:
    output = attention(query, key, value, **options)
    worked(output.weights.numel())
    return output


def _triton(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> AttentionOutput:
    from attn_core.flash.triton_forward import triton_attention  # here, since Triton may be missing

    return triton_attention(query, key, value, **options)


def _fused(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> AttentionOutput:
    softcap = options.pop("softcap")
    reason = fused_reason(query, value, bias=options["bias"], softcap=softcap, sinks=options["sinks"])
    if reason is not None:
        raise ValueError(
            f"flash_attention: impl='fused' cannot compute this because {reason}; use impl='auto'."
        )
    return fused_attention(query, key, value, **options)


def _compiled(query: Tensor, key: Tensor, value: Tensor, **options: Any) -> AttentionOutput:
    rule, scale = options.pop("rule"), options.pop("scale")
    scoring = Scoring(resolve_scale(scale, query.shape[3]), MaskRule() if rule is None else rule, **options)
    reason = compiled_reason(query, key, value, scoring)
    if reason is not None:
        raise ValueError(
            f"flash_attention: impl='compiled' cannot compute this because {reason}; use impl='auto'."
        )
    return compiled_attention(query, key, value, scoring)


RUN: Mapping[Named, Callable[..., AttentionOutput]] = {
    "reference": _reference,
    "tiled": tiled_attention,
    "triton": _triton,
    "fused": _fused,
    "compiled": _compiled,
}
"""The implementations by name."""
