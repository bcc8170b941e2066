"""The part of a sentence pair's attention that a view shows: all, or one sentence looking at one sentence.

The rule is BertViz's: A is every position of segment 0, its first separator included, B every position of segment
1, and a part is a plain slice whose rows are not renormalised. The first letter of a filter names the queries
(left column), the second the keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

PairFilter = Literal["all", "aa", "ab", "ba", "bb"]
Side = Literal["query", "key"]

PAIR_FILTERS: tuple[PairFilter, ...] = get_args(PairFilter)

PAIR_NAMES: Mapping[PairFilter, str] = MappingProxyType(
    {"all": "all", "aa": "A → A", "ab": "A → B", "ba": "B → A", "bb": "B → B"}
)
"""What each filter is called under a figure."""

_SIDES: tuple[Side, Side] = get_args(Side)
_SEGMENTS: Mapping[str, int] = MappingProxyType({"a": 0, "b": 1})


def in_filter(segments: Sequence[int], which: PairFilter, side: Side) -> NDArray[np.bool_]:
    """(N,) which tokens of one side, the queries or the keys, a filter lets through."""
    if which == "all":
        return np.ones(len(segments), dtype=bool)
    wanted = _SEGMENTS[which[_SIDES.index(side)]]
    return np.array([segment == wanted for segment in segments], dtype=bool)


def filter_pair(
    weights: NDArray[np.floating[Any]], segments: Sequence[int], which: PairFilter
) -> tuple[NDArray[np.floating[Any]], NDArray[np.intp], NDArray[np.intp]]:
    """The weights that one filter leaves, with the positions that its rows and columns had.

    Args:
        weights: (..., N, N) self-attention over the tokens of both sentences.
        segments: N values, 0 for a token of A and 1 for one of B (``TokenLabel.segment``).
        which: the filter.
    Returns:
        weights (..., R, C), row positions (R,), column positions (C,); for "all" the weights as they came.
    Raises:
        ValueError: an unknown filter, weights that do not belong to the segments, or a filter that asks for a
            sentence that is not there.
    """
    if which not in PAIR_FILTERS:
        raise ValueError(
            f"filter_pair: which must be one of {', '.join(PAIR_FILTERS)} but is {which!r}; pass one of them."
        )
    length = len(segments)
    if weights.ndim < 2 or weights.shape[-2:] != (length, length):
        raise ValueError(
            f"filter_pair: weights must be (..., {length}, {length}) for {length} segments but is {weights.shape}; "
            "pass self-attention and the segments of its own tokens."
        )
    sides: list[NDArray[np.intp]] = []
    for side in _SIDES:
        positions = np.flatnonzero(in_filter(segments, which, side))
        if length and not positions.size:
            letter = which[_SIDES.index(side)].upper()
            raise ValueError(
                f"filter_pair: segments must hold a token of sentence {letter} but have none; "
                "use the filter 'all' for a single sentence."
            )
        sides.append(positions)
    rows, columns = sides
    return (weights if which == "all" else weights[..., rows[:, None], columns]), rows, columns
