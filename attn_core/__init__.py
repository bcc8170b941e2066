"""Attention from scratch: the mechanisms, their maps, and the one seam that models call. Needs torch alone."""

from attn_core.bands import BandedMap
from attn_core.bias import Bias, IndexedBias, RelativeBias, TableBias
from attn_core.edits import HeadEdit, combined, gate, uniform
from attn_core.errors import MemoryBudgetError, UnsupportedModelError
from attn_core.flash import flash_attention
from attn_core.functional import AttentionOutput, DenseAttentionOutput, attention
from attn_core.maps import AttentionMap, DenseMap, FactoredMap, HeadStatistics
from attn_core.masks import MaskRule
from attn_core.modules import AdditiveAttention, KeyValueCache, LuongAttention, MultiHeadAttention
from attn_core.positions import alibi_bias, alibi_slopes, rotary, sinusoidal_positions
from attn_core.scores import additive_scores, concat_scores, dot_scores, general_scores, scaled_dot_scores
from attn_core.seam import editing, model_attention, recording
from attn_core.windows import WindowedMap

__all__ = [
    "AdditiveAttention",
    "AttentionMap",
    "AttentionOutput",
    "BandedMap",
    "Bias",
    "DenseAttentionOutput",
    "DenseMap",
    "FactoredMap",
    "HeadEdit",
    "HeadStatistics",
    "IndexedBias",
    "KeyValueCache",
    "LuongAttention",
    "MaskRule",
    "MemoryBudgetError",
    "MultiHeadAttention",
    "RelativeBias",
    "TableBias",
    "UnsupportedModelError",
    "WindowedMap",
    "additive_scores",
    "alibi_bias",
    "alibi_slopes",
    "attention",
    "combined",
    "concat_scores",
    "dot_scores",
    "editing",
    "flash_attention",
    "gate",
    "general_scores",
    "model_attention",
    "recording",
    "rotary",
    "scaled_dot_scores",
    "sinusoidal_positions",
    "uniform",
]
