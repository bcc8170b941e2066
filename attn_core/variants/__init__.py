"""Attention that is not a softmax over all pairs: each file one mechanism, after its paper."""

from attn_core.variants.fast_weights import (
    FastWeightController,
    FastWeightOutput,
    fast_weight_attention,
    fast_weight_weights,
)
from attn_core.variants.linear import (
    LinearAttentionOutput,
    LinearState,
    linear_attention,
    linear_attention_weights,
)
from attn_core.variants.linformer import LinformerAttention, LinformerOutput, linformer_attention
from attn_core.variants.reformer import (
    LshAttentionOutput,
    chunked_lsh_attention,
    lsh_attention,
    random_rotations,
)

__all__ = [
    "FastWeightController",
    "FastWeightOutput",
    "LinearAttentionOutput",
    "LinearState",
    "LinformerAttention",
    "LinformerOutput",
    "LshAttentionOutput",
    "chunked_lsh_attention",
    "fast_weight_attention",
    "fast_weight_weights",
    "linear_attention",
    "linear_attention_weights",
    "linformer_attention",
    "lsh_attention",
    "random_rotations",
]
