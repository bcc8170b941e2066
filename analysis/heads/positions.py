"""What the positions of an input are, for statistics of heads: separators, punctuation, segments, places on a grid.

A ``Side`` describes the queries or the keys of a batch, padded to one length; a ``Layout`` both. Nothing here looks
at attention.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from analysis.figure_data import TokenLabel

if TYPE_CHECKING:
    from analysis.hf.attention import Kind
    from analysis.inputs import Inputs, PatchGrid

NO_RANK = 2**62
"""Rank of what is no token of the text, so that it is never the rarest."""


@dataclass(frozen=True, eq=False)
class Side:
    """Queries or keys of a batch of inputs.

    Attributes:
        valid: (B, N) bool, False for padding.
        own: (B, N) bool, what the user gave: no special token, no prefix of a picture, no padding.
        first: (B, N) bool, the first position.
        classifier: (B, N) bool, CLS: a special first position, or the first of a picture's prefix.
        separator: (B, N) bool, special tokens that are not CLS (SEP, end of text).
        register: (B, N) bool, prefix positions of a picture behind the first.
        punctuation: (B, N) bool, tokens of punctuation marks alone.
        ids: (B, N) int64 numbers that are equal where the tokens are equal; −1 where there are none.
        frequency: (B, N) int64, how often the token comes; the rarest has the smallest. ``NO_RANK`` for special ones.
        segment: (B, N) int64, 0 or 1.
        place: (B, N, 2) row and column of a patch, −1 for what is none; None for text.
        patch: side of a patch in pixels, 0 for text.
    """

    valid: Tensor
    own: Tensor
    first: Tensor
    classifier: Tensor
    separator: Tensor
    register: Tensor
    punctuation: Tensor
    ids: Tensor
    frequency: Tensor
    segment: Tensor
    place: Tensor | None = None
    patch: int = 0

    @property
    def count(self) -> int:
        """N."""
        return self.valid.shape[1]

    @cached_property
    def rarest(self) -> Tensor:
        """(B, N) bool: the first of the least frequent tokens of each text (Voita et al. 2019, section 5.3)."""
        found = torch.zeros_like(self.valid)
        known = self.frequency < NO_RANK
        place = self.frequency.argmin(1, keepdim=True)  # the leftmost of several
        return found.scatter(1, place, known.any(1, keepdim=True))


@dataclass(frozen=True, eq=False)
class Layout:
    """What queries and keys of one kind of attention are.

    Attributes:
        rows, columns: for self-attention the same.
        kind: of attention; a decoder's query sees no later key.
        kept: what was made of it once, for the next layer.
    """

    rows: Side
    columns: Side
    kind: Kind = "encoder"
    kept: dict[tuple[object, ...], object] = field(default_factory=dict, repr=False)

    @property
    def square(self) -> bool:
        """Whether queries and keys are the same positions."""
        return self.rows is self.columns

    @property
    def picture(self) -> bool:
        """Whether the keys are patches of a picture."""
        return self.columns.place is not None


def text_side(
    tokens: Sequence[Sequence[TokenLabel]], *, frequencies: Mapping[str, int] | None = None
) -> Side:
    """The positions of a batch of texts, padded at their ends.

    Args:
        tokens: labels of each text.
        frequencies: how often each piece comes in a corpus; pieces that are not in it count as 0. None counts inside
            the batch alone.
    """
    length = max((len(labels) for labels in tokens), default=0)
    counted = frequencies if frequencies is not None else piece_counts(tokens)
    numbers: dict[str, int] = {}

    def row(value: list[int], fill: int) -> list[int]:
        return value + [fill] * (length - len(value))

    def mask(labels: Sequence[TokenLabel], chosen: Sequence[bool]) -> list[int]:
        return row([int(value) for value in chosen], 0)

    columns: dict[str, list[list[int]]] = {}
    for labels in tokens:
        special = [label.special for label in labels]
        first_special = bool(special) and special[0]
        found = {
            "valid": mask(labels, [True] * len(labels)),
            "own": mask(labels, [not value for value in special]),
            "first": mask(labels, [index == 0 for index in range(len(labels))]),
            "classifier": mask(labels, [index == 0 and first_special for index in range(len(labels))]),
            "separator": mask(labels, [value and index > 0 for index, value in enumerate(special)]),
            "register": mask(labels, [False] * len(labels)),
            "punctuation": mask(
                labels, [not label.special and is_punctuation(label.text) for label in labels]
            ),
            "ids": row([numbers.setdefault(label.piece, len(numbers)) for label in labels], -1),
            "frequency": row(
                [NO_RANK if label.special else counted.get(label.piece, 0) for label in labels], NO_RANK
            ),
            "segment": row([label.segment for label in labels], -1),
        }
        for name, values in found.items():
            columns.setdefault(name, []).append(values)
    numeric = {"ids", "frequency", "segment"}
    tensors: dict[str, Any] = {
        name: torch.tensor(values, dtype=torch.int64 if name in numeric else torch.bool).reshape(-1, length)
        for name, values in columns.items()
    }
    return Side(**tensors)


def picture_side(grid: PatchGrid, batch: int = 1) -> Side:
    """The positions of pictures of one size: the prefix, then the patches row by row."""
    prefix, patches = grid.prefix_tokens, grid.rows * grid.columns
    count = prefix + patches
    index = torch.arange(count)
    none, plain = torch.zeros(batch, count, dtype=torch.bool), torch.full((batch, count), -1)
    place = torch.full((count, 2), -1)
    place[prefix:, 0] = torch.arange(patches) // grid.columns
    place[prefix:, 1] = torch.arange(patches) % grid.columns

    def every(mask: Tensor) -> Tensor:
        return mask.expand(batch, count)

    return Side(
        valid=~none,
        own=every(index >= prefix),
        first=every(index == 0),
        classifier=every((index == 0) & (index < prefix)),
        separator=none,
        register=every((index > 0) & (index < prefix)),
        punctuation=none,
        ids=plain,
        frequency=torch.full((batch, count), NO_RANK),
        segment=torch.zeros(batch, count, dtype=torch.int64),
        place=place.expand(batch, count, 2),
        patch=grid.patch,
    )


def layouts_of(
    inputs: Sequence[Inputs], *, frequencies: Mapping[str, int] | None = None
) -> dict[Kind, Layout]:
    """The layouts of a batch of inputs of one model: texts, or pictures of one size.

    Args:
        frequencies: as in ``text_side``.
    Returns:
        One for each kind of attention that there may be.
    Raises:
        ValueError: for pictures of different sizes.
    """
    grids = {entry.grid for entry in inputs}
    if grids != {None}:
        grid = next(iter(grids))
        if len(grids) > 1 or grid is None:
            raise ValueError(
                "layouts_of: inputs must be texts or pictures of one size; pass one size at a time."
            )
        side = picture_side(grid, len(inputs))
        return {"encoder": Layout(side, side, "encoder"), "decoder": Layout(side, side, "decoder")}
    side = text_side([entry.tokens or () for entry in inputs], frequencies=frequencies)
    if all(entry.target_tokens is None for entry in inputs):
        return {"encoder": Layout(side, side, "encoder"), "decoder": Layout(side, side, "decoder")}
    target = text_side([entry.target_tokens or () for entry in inputs], frequencies=frequencies)
    return {
        "encoder": Layout(side, side, "encoder"),
        "decoder": Layout(target, target, "decoder"),
        "cross": Layout(target, side, "cross"),
    }


def piece_counts(tokens: Sequence[Sequence[TokenLabel]]) -> dict[str, int]:
    """How often each piece comes in these texts, special tokens left out."""
    counts: dict[str, int] = {}
    for labels in tokens:
        for label in labels:
            if not label.special:
                counts[label.piece] = counts.get(label.piece, 0) + 1
    return counts


def is_punctuation(text: str) -> bool:
    """Whether a token holds punctuation marks and symbols alone (Unicode categories P and S)."""
    marks = text.strip()
    return bool(marks) and all(unicodedata.category(character)[0] in "PS" for character in marks)
