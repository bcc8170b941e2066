"""The translators that ship in ``models/``: four that differ in how the decoder looks at the source.

Imports no torch.
"""

from __future__ import annotations

from analysis.catalogue import BundledFile
from analysis.trained import TrainedModel

_HASHES: dict[str, tuple[BundledFile, ...]] = {
    "additive": (
        BundledFile(
            "trained.json", 136_075, "6135b777ed20f32c9d2ae2d17320f3d8a8d3de97836c79b07e5bef28c1d92201"
        ),
        BundledFile(
            "weights.safetensors",
            2_910_868,
            "38391d53b88226b8394aa90eee0ad31ba45fde3c4a07537fdbb4f558af0c93a7",
        ),
    ),
    "dot": (),
    "general": (
        BundledFile(
            "trained.json", 136_074, "cfb9c27f181efe4f98f56b974663c32191d7652587e60dfeb20469b9e4175e08"
        ),
        BundledFile(
            "weights.safetensors",
            2_510_840,
            "1422534b88908fd410324802248b6ecea9cc5a0f28a5e278d640aed3787038f0",
        ),
    ),
    "none": (),
}

_BAHDANAU = (
    "Bahdanau, Cho & Bengio 2014, Neural Machine Translation by Jointly Learning to Align and Translate"
)
_LUONG = "Luong, Pham & Manning 2015, Effective Approaches to Attention-based Neural Machine Translation"
_CHO = "Cho et al. 2014, Learning Phrase Representations using RNN Encoder–Decoder"


def _translator(scoring: str, title: str, citation: str, what: str) -> TrainedModel:
    return TrainedModel(
        name=f"translator-{scoring}",
        title=title,
        modality="text",
        backbone=None,
        version="1",
        folder=f"translator-{scoring}",
        files=_HASHES[scoring],
        licence="MIT; trained on sentence pairs of Tatoeba (CC BY 2.0 FR)",
        citation=citation,
        source="trained by scripts/train_translator.py",
        description=f"A small recurrent encoder–decoder from English to French for short sentences. {what}",
    )


ADDITIVE = _translator(
    "additive",
    "GRU translator + additive attention",
    _BAHDANAU,
    "At each word the decoder looks at the source with additive attention (Bahdanau et al. 2014).",
)
DOT = _translator(
    "dot",
    "GRU translator + dot attention",
    _LUONG,
    "At each word the decoder looks at the source with the dot product of states (Luong et al. 2015).",
)
GENERAL = _translator(
    "general",
    "GRU translator + general attention",
    _LUONG,
    "At each word the decoder looks at the source with a learned bilinear score (Luong et al. 2015, general).",
)
WITHOUT_ATTENTION = _translator(
    "none",
    "GRU translator without attention",
    _CHO,
    "The decoder gets the last state of the encoder, which has read the sentence from its first word to its last, "
    "and nothing else (Cho et al. 2014).",
)

TRANSLATORS: tuple[TrainedModel, ...] = (ADDITIVE, DOT, GENERAL, WITHOUT_ATTENTION)
