"""Attention from scratch: the mechanisms, their maps, and the one seam that models call. Needs torch alone."""

from attn_core.bands import BandedMap
from attn_core.bias import Bias, IndexedBias, RelativeBias, TableBias
from attn_core.edits import HeadEdit, combined, gate, uniform
from attn_core.errors import MemoryBudgetError, UnsupportedModelError
from attn_core.flash import flash_attention
from attn_core.functional import AttentionOutput, DenseAttentionOutput, attention
from attn_core.maps import AttentionMap, DenseMap, FactoredMap, HeadStatistics
from attn_core.masks import MaskRule
from attn_core.seam import editing, model_attention, recording
from attn_core.windows import WindowedMap

__all__ = [
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
    "MaskRule",
    "MemoryBudgetError",
    "RelativeBias",
    "TableBias",
    "UnsupportedModelError",
    "WindowedMap",
    "attention",
    "combined",
    "editing",
    "flash_attention",
    "gate",
    "model_attention",
    "recording",
    "uniform",
]
