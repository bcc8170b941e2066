"""Attention beyond a softmax over all pairs, and the ways to wire it: each file one mechanism, after its source."""

from attn_core.variants.alignments import (
    ALIGNMENTS,
    Alignment,
    EncoderDecoderDot,
    EncoderDecoderQkv,
    EncoderOnlyDot,
    EncoderOnlyQkv,
    FullyConnectedAlignment,
)
from attn_core.variants.fast_weights import (
    FastWeightController,
    FastWeightOutput,
    fast_weight_attention,
    fast_weight_weights,
)
from attn_core.variants.flex import MaskMod, ScoreMod, flex_attention, flex_reference
from attn_core.variants.linear import (
    LinearAttentionOutput,
    LinearState,
    linear_attention,
    linear_attention_weights,
)
from attn_core.variants.linformer import LinformerAttention, LinformerOutput, linformer_attention
from attn_core.variants.random_features import positive_random_features, random_directions
from attn_core.variants.reformer import (
    LshAttentionOutput,
    chunked_lsh_attention,
    lsh_attention,
    random_rotations,
)
from attn_core.variants.sparse import band_layout, bigbird_layout, block_sparse_attention

__all__ = [
    "ALIGNMENTS",
    "Alignment",
    "EncoderDecoderDot",
    "EncoderDecoderQkv",
    "EncoderOnlyDot",
    "EncoderOnlyQkv",
    "FastWeightController",
    "FastWeightOutput",
    "FullyConnectedAlignment",
    "LinearAttentionOutput",
    "LinearState",
    "LinformerAttention",
    "LinformerOutput",
    "LshAttentionOutput",
    "MaskMod",
    "ScoreMod",
    "band_layout",
    "bigbird_layout",
    "block_sparse_attention",
    "chunked_lsh_attention",
    "fast_weight_attention",
    "fast_weight_weights",
    "flex_attention",
    "flex_reference",
    "linear_attention",
    "linear_attention_weights",
    "linformer_attention",
    "lsh_attention",
    "positive_random_features",
    "random_directions",
    "random_rotations",
]
