"""The five classes of Kovaleva et al. 2019 ("Revealing the Dark Secrets of BERT", section 4.1), for comparison.

The paper labels about 400 maps by hand and trains a network on them; it gives no thresholds and no rules. These rules
are ours: what is vertical, diagonal and a block is told from four statistics, and the classes follow from which of
the three hold.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from analysis.heads.patterns import HeadClasses, Numbers, Values, above_chance, score_of

CLASSES: Mapping[str, str] = MappingProxyType(
    {
        "vertical": "Vertical",
        "diagonal": "Diagonal",
        "vertical+diagonal": "Vertical + diagonal",
        "block": "Block",
        "heterogeneous": "Heterogeneous",
    }
)
"""Titles by key, in the paper's order."""

THRESHOLDS: Mapping[str, float] = MappingProxyType({"vertical": 0.25, "diagonal": 0.2, "block": 0.6})
"""Evidence at which a map is so; each is ours. Vertical: the largest mean weight on one key, or that on CLS and
separators; diagonal: the largest mean weight at offset −1, 0 or 1; block: the weight inside the query's own segment
above that of equal weights."""


def kovaleva_classes(values: Values, *, thresholds: Mapping[str, float] = THRESHOLDS) -> HeadClasses:
    """Which of the five classes every head has.

    Block needs two segments: without them it cannot be told from heterogeneous.

    Args:
        values: (..., L, H) statistics of a text survey.
        thresholds: by "vertical", "diagonal" and "block".
    Returns:
        Scores of the five classes: of what must hold and what must not, the weakest counts.
    Raises:
        ValueError: if the statistics are not those of a text's self-attention.
    """
    if "offset+0" not in values or "any_column" not in values:
        raise ValueError(
            "kovaleva_classes: values must be of the self-attention of texts; pass those of a survey."
        )
    evidence = np.stack([_vertical(values), _diagonal(values), _block(values)])
    evidence = np.nan_to_num(evidence, nan=0.0)
    vertical, diagonal, block = (
        score_of(found, thresholds[key]) for key, found in zip(THRESHOLDS, evidence, strict=True)
    )
    either = np.maximum(vertical, diagonal)
    scores = np.stack(
        [
            np.minimum(vertical, 1 - diagonal),
            np.minimum(diagonal, 1 - vertical),
            np.minimum(vertical, diagonal),
            np.minimum(block, 1 - either),
            1 - np.maximum(either, block),
        ]
    )
    best = scores.argmax(0)
    return HeadClasses(tuple(CLASSES), scores, evidence, best, np.full(best.shape, "", dtype="<U1"))


def _vertical(values: Values) -> Numbers:
    special = np.clip(values["classifier"] + values["separator"], 0, 1)
    return np.fmax(values["any_column"], special)


def _diagonal(values: Values) -> Numbers:
    return np.asarray(np.stack([values[f"offset{offset:+d}"] for offset in (-1, 0, 1)]).max(0))


def _block(values: Values) -> Numbers:
    if "same_segment" not in values:
        return np.zeros_like(values["any_column"])
    return above_chance(values["same_segment"], values["same_segment_chance"])
