"""Sub-word tokens put together into words, and attention weights with them. NumPy alone.

A word is what a reader takes for one: letters and digits between spaces, an apostrophe inside it included; a Chinese
character, a punctuation mark and an emoji each stand alone, and scripts that write no spaces are left as their
tokens. A token that covers several words joins them, since it cannot be split.

Weights follow Clark et al. 2019 ("What Does BERT Look At?"): attention *to* a word is the sum over its tokens,
attention *from* a word the mean over its tokens. So every row still sums to one.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from analysis.figure_data import Floats, TokenLabel

SPACE = "␣"
"""How a space is shown that is a token of its own."""

DOTTED_CIRCLE = "◌"
"""Stands before a combining mark that begins a token."""

_PART = re.compile(r".+ \(([2-9]|[1-9]\d+)/[1-9]\d*\)", re.DOTALL)
_JOINERS = ("'", "’", "ʼ")
_INSIDE_NUMBERS = (".", ",")
_ZERO_WIDTH_JOINER, _TAGS = 0x200D, range(0xE0020, 0xE0080)
_REGIONAL, _SKIN_TONES = range(0x1F1E6, 0x1F200), range(0x1F3FB, 0x1F400)

_NO_SPACES = (
    range(0x0E00, 0x0F00),  # Thai, Lao
    range(0x0F00, 0x1000),  # Tibetan
    range(0x1000, 0x10A0),  # Myanmar
    range(0x1780, 0x1800),  # Khmer
    range(0x3040, 0x30A0),  # Hiragana
    range(0x3400, 0xA000),  # Han
    range(0xF900, 0xFB00),  # Han, compatibility forms
    range(0x20000, 0x32000),  # Han, extensions
)
_KATAKANA = (range(0x30A0, 0x3100), range(0x31F0, 0x3200), range(0xFF66, 0xFFA0))


def part_sign(characters: str, part: int, parts: int) -> str:
    """Text of a token that is only the ``part``-th piece of characters which the first piece shows: "⭢ (2/3)"."""
    return f"{characters} ({part}/{parts})"


def word_groups(tokens: Sequence[TokenLabel]) -> list[tuple[int, ...]]:
    """Indices of the tokens of each word, in order; a special token is a group of its own.

    Every index from 0 to N−1 stands in exactly one group.
    """
    groups: list[list[int]] = []
    for index, token in enumerate(tokens):
        before = tokens[index - 1] if index else None
        same = before is not None and token.word is not None and not token.special and not before.special
        if same and before is not None and (before.segment, before.word) == (token.segment, token.word):
            groups[-1].append(index)
        else:
            groups.append([index])
    return [tuple(group) for group in groups]


def merge_words(
    weights: Floats,
    groups_rows: Sequence[Sequence[int]],
    groups_columns: Sequence[Sequence[int]],
) -> Floats:
    """Weights between words: to a word the sum over its tokens, from a word the mean (Clark et al. 2019).

    Args:
        weights: (..., Q, K).
        groups_rows, groups_columns: indices of the tokens of each word, as ``word_groups`` gives them. Tokens that
            no group names are left out.
    Returns:
        (..., len(groups_rows), len(groups_columns)), same type; rows sum to what they summed to before when every
        key stands in a group.
    Raises:
        ValueError: for an empty group, an index that is out of range, or one that is counted twice.
    """
    if weights.ndim < 2:
        raise ValueError(
            f"merge_words: weights must be (..., Q, K) but has shape {weights.shape}; pass one matrix or a stack."
        )
    rows, row_starts = _flat(groups_rows, weights.shape[-2], "groups_rows")
    columns, column_starts = _flat(groups_columns, weights.shape[-1], "groups_columns")
    if not rows.size or not columns.size:
        return np.zeros((*weights.shape[:-2], len(row_starts), len(column_starts)), dtype=weights.dtype)
    exact = weights.astype(np.float64, copy=False)
    to_words = np.add.reduceat(exact[..., columns], column_starts, axis=-1)  # (..., Q, words)
    summed = np.add.reduceat(to_words[..., rows, :], row_starts, axis=-2)  # (..., words, words)
    sizes = np.diff(np.append(row_starts, rows.size))
    merged: Floats = (summed / sizes[:, None]).astype(weights.dtype)
    return merged


def merge_labels(tokens: Sequence[TokenLabel], groups: Sequence[Sequence[int]]) -> tuple[TokenLabel, ...]:
    """One label a group: the words as typed, with all their pieces for the tooltip.

    Signs that stand for a part of a character are dropped, since the first piece shows the whole character.
    """
    return tuple(_merged_label([tokens[index] for index in group]) for group in groups)


def character_words(text: str) -> list[int]:
    """Index of the word that each character of ``text`` belongs to, −1 for white space."""
    words: list[int] = []
    last, base, flags = (
        -1,
        "space",
        0,
    )  # base: kind of the last character that is no mark; flags: run of flag letters
    kinds = [_kind(character) for character in text]
    for index, kind in enumerate(kinds):
        if kind == "space":
            words.append(-1)
            base, flags = "space", 0
            continue
        is_flag = ord(text[index]) in _REGIONAL
        if not (_continues(text, kinds, index, base) or (is_flag and flags % 2 == 1)):
            last += 1
        words.append(last)
        flags = flags + 1 if is_flag else 0
        base = kind if kind != "mark" else base
    return words


def token_words(text: str, spans: Sequence[tuple[int, int] | None]) -> list[int | None]:
    """Index of the word of each token of one text, None where the span is None.

    Spans may repeat and overlap (pieces of one character share its span) but must not go backwards. A span of white
    space alone is a word of its own; an empty span belongs to the word of the character at which it stands.
    """
    covered_end = max((span[1] for span in spans if span is not None), default=0)
    characters = character_words(text[: covered_end + 2])  # a word may hang on the character after it
    indices: list[int | None] = []
    word, reached = -1, -1  # ``reached`` is the last character word that the current word covers
    before: tuple[int, int] | None = None
    for span in spans:
        if span is None:
            indices.append(None)
            continue
        covered = [characters[position] for position in range(*span) if characters[position] >= 0]
        if not covered:
            covered = [characters[span[0]] if span[0] == span[1] < len(characters) else -1]
        shares_space = (
            covered[0] < 0 and before is not None and max(span[0], before[0]) < min(span[1], before[1])
        )
        if (covered[0] < 0 or covered[0] > reached) and not shares_space:
            word += 1
        before = span
        reached = max(reached, covered[-1])
        indices.append(word)
    return indices


def _flat(groups: Sequence[Sequence[int]], length: int, name: str) -> tuple[np.ndarray, np.ndarray]:
    """Groups as one array of indices and the start of each group in it."""
    sizes = np.array([len(group) for group in groups], dtype=np.intp)
    if (sizes == 0).any():
        raise ValueError(
            f"merge_words: {name} must hold no empty group but group {int(sizes.argmin())} is empty."
        )
    indices = np.array([index for group in groups for index in group], dtype=np.intp)
    if indices.size and (indices.min() < 0 or indices.max() >= length):
        raise ValueError(
            f"merge_words: {name} must name positions 0 to {length - 1} but names "
            f"{int(indices.max() if indices.max() >= length else indices.min())}; pass the groups of these weights."
        )
    if np.unique(indices).size != indices.size:
        raise ValueError(f"merge_words: {name} must name each position once; a position is counted twice.")
    return indices, np.concatenate([[0], sizes.cumsum()[:-1]]).astype(np.intp) if sizes.size else sizes


def _merged_label(tokens: Sequence[TokenLabel]) -> TokenLabel:
    """The label of a word from the labels of its tokens."""
    first = tokens[0]
    if len(tokens) == 1:
        return replace(first, continues=False)
    shown = [
        token.text.removeprefix(DOTTED_CIRCLE) if index else token.text
        for index, token in enumerate(tokens)
        if not _PART.fullmatch(token.text)
    ]
    letters = [text for text in shown if text.strip(SPACE)]
    return TokenLabel(
        text="".join(letters or shown or [first.text]),
        piece=" ".join(token.piece for token in tokens),
        special=first.special,
        unknown=any(token.unknown for token in tokens),
        segment=first.segment,
        word=first.word,
    )


# What a word is --------------------------------------------------------------------------------------------------


def _kind(character: str) -> str:
    """Class of a character: space, mark (joins what is before), single (a word), katakana, letter, symbol."""
    if character.isascii() and character.isalnum():
        return "letter"
    point = ord(character)
    category = unicodedata.category(character)
    if character.isspace() or category.startswith("Z"):
        return "space"
    if category.startswith("M") or category == "Cf" or point in _SKIN_TONES or point in _TAGS:
        return "mark"
    if any(point in block for block in _NO_SPACES):
        return "single"
    if any(point in block for block in _KATAKANA):
        return "katakana"
    if category[0] in "LN" or character == "_":
        return "letter"
    return "symbol"


def _continues(text: str, kinds: Sequence[str], index: int, base: str) -> bool:
    """Whether the character at ``index`` belongs to the word before it; ``base`` is the kind of its last non-mark."""
    if index == 0 or kinds[index - 1] == "space":
        return False
    kind = kinds[index]
    if base == "space":
        return True  # so far only marks, which belong to what they stand before
    if kind == "mark" or (kind == base and kind in ("letter", "katakana")):
        return True
    if kind == "symbol" and ord(text[index - 1]) == _ZERO_WIDTH_JOINER:
        return True  # 👩‍💻 is one picture
    return _joins(text, kinds, index) or (kind == "letter" and _joins(text, kinds, index - 1))


def _joins(text: str, kinds: Sequence[str], index: int) -> bool:
    """Whether an apostrophe between letters, or a point or comma between digits, stands at ``index``."""
    if (
        not 0 < index < len(text) - 1
        or kinds[index + 1] != "letter"
        or kinds[index - 1] not in ("letter", "mark")
    ):
        return False
    if text[index] in _JOINERS:
        return True
    return text[index] in _INSIDE_NUMBERS and text[index - 1].isdigit() and text[index + 1].isdigit()
