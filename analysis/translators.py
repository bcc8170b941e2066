"""The translators that ship in ``models/``: four that differ in how the decoder looks at the source.

Imports no torch.
"""

from __future__ import annotations

from analysis.catalogue import BundledFile
from analysis.trained import TrainedModel

_HASHES: dict[str, tuple[BundledFile, ...]] = {
    "additive": (
        BundledFile(
            "trained.json", 137_482, "358655fadb20cc7dee8d77c41a7c3bc1d0fd140d2ebda1f641e8cdc3f2b28f38"
        ),
        BundledFile(
            "weights.safetensors",
            2_910_868,
            "727c85f0b7b20cb26d381b05de121c628fe29036f8d43450a0da6c605d548d25",
        ),
    ),
    "dot": (
        BundledFile(
            "trained.json", 137_476, "afefb3a80efeb66e75ebcd261edd99a5175479a3505661210955d6af5f209ad1"
        ),
        BundledFile(
            "weights.safetensors",
            2_444_080,
            "a1837d53d6444842fcff76cedd9db54adb8cf2ff93a688e4a2324490e4a8df86",
        ),
    ),
    "general": (
        BundledFile(
            "trained.json", 137_481, "9e7525bcab273e95c647abd715fd3294056878b3bf8a6cfb26a2719ead542214"
        ),
        BundledFile(
            "weights.safetensors",
            2_510_840,
            "1422534b88908fd410324802248b6ecea9cc5a0f28a5e278d640aed3787038f0",
        ),
    ),
    "none": (
        BundledFile(
            "trained.json", 137_472, "d16684dc7b5b040c2b0a0e44c5cce9d41492fa8c4b32e9ab2ff4b41ec87effd9"
        ),
        BundledFile(
            "weights.safetensors",
            2_906_312,
            "28f4bd3b756a5cdf2e58ea9e712c95f4885668404cdd818d7b54c5132c49b921",
        ),
    ),
}

_BAHDANAU = (
    "Bahdanau, Cho & Bengio 2014, Neural Machine Translation by Jointly Learning to Align and Translate"
)
_LUONG = "Luong, Pham & Manning 2015, Effective Approaches to Attention-based Neural Machine Translation"
_CHO = "Cho et al. 2014, Learning Phrase Representations using RNN Encoder–Decoder"


def _translator(scoring: str, title: str, citation: str, what: str, score: str) -> TrainedModel:
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
        description=(
            f"A small recurrent encoder–decoder from English to French for short sentences. {what} BLEU {score} on "
            "1,000 held-out sentences with all their references."
        ),
    )


ADDITIVE = _translator(
    "additive",
    "GRU translator + additive attention",
    _BAHDANAU,
    "At each word the decoder looks at the source with additive attention (Bahdanau et al. 2014), trained at the end "
    "not to look at a word again and again (See et al. 2017).",
    "49.5",
)
DOT = _translator(
    "dot",
    "GRU translator + dot attention",
    _LUONG,
    "At each word the decoder looks at the source with the dot product of states (Luong et al. 2015).",
    "49.0",
)
GENERAL = _translator(
    "general",
    "GRU translator + general attention",
    _LUONG,
    "At each word the decoder looks at the source with a learned bilinear score (Luong et al. 2015, general).",
    "47.6",
)
WITHOUT_ATTENTION = _translator(
    "none",
    "GRU translator without attention",
    _CHO,
    "The decoder gets the last state of the encoder, which has read the sentence from its first word to its last, "
    "and nothing else (Cho et al. 2014).",
    "45.0",
)

TRANSLATORS: tuple[TrainedModel, ...] = (ADDITIVE, DOT, GENERAL, WITHOUT_ATTENTION)
