"""How a chosen text becomes a model's input: at once, in windows, its beginning alone, or one window alone.

No widgets here; torch is imported inside the functions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import streamlit as st

from dashboard.selection import TextReading

if TYPE_CHECKING:
    from analysis.inputs import Inputs
    from analysis.models import LoadedModel

FIRST_TOKENS = 2048
"""Tokens that are kept when only the beginning of a text is asked for, of a model without a lower limit."""

WINDOW_TOKENS = 512
"""A window of a model that sets no limit, or a higher one, where windows are asked for."""

LONG_TOKENS = 1024
"""A text of more tokens may be read in windows though the model takes it at once."""

LEAST_ROOM = 0.25
"""Share of a window that must be left for the text that is cut, beside what every window has."""

MOST_PER_CHARACTER = 4
"""Most tokens that a character can become (its bytes): what tells a short text without asking the tokenizer."""


_AT_ONCE = TextReading()


@dataclass(frozen=True)
class LongText:
    """A text that there is something to choose about.

    Attributes:
        tokens: of the whole text or pair, special ones included.
        shared: how many of them every window has: special ones, and the shorter text of a pair.
        limit: most tokens that the model takes at once, None without a limit.
        windowed: whether it can be read in windows.
        cut: of a pair, the text that is cut into windows, 0 or 1.
    """

    tokens: int
    shared: int
    limit: int | None
    windowed: bool
    cut: int = 0

    @property
    def fits(self) -> bool:
        """Whether the model takes it at once."""
        return self.limit is None or self.tokens <= self.limit

    def window(self, reading: TextReading) -> int:
        """Tokens of a window."""
        if reading.window is not None:
            return min(reading.window, self.limit or reading.window)
        return min(self.limit or WINDOW_TOKENS, WINDOW_TOKENS) if self.fits else self.limit or WINDOW_TOKENS

    def stride(self, reading: TextReading) -> int:
        """Tokens between the beginnings of two windows."""
        from analysis.reading import default_stride

        room = self.window(reading) - self.shared
        own = default_stride(self.window(reading), self.shared)
        return own if reading.stride is None else min(max(reading.stride, 1), room)

    def starts(self, reading: TextReading) -> list[int]:
        """First token of each window, counted in the text that is cut; one window where it is shorter than one."""
        from analysis.reading import window_starts

        length, room = self.tokens - self.shared, self.window(reading) - self.shared
        return [0] if length <= room else window_starts(length, room, self.stride(reading))


@st.cache_resource(max_entries=16, show_spinner=False)
def long_text(identity: str, text: str, pair: str | None, _model: LoadedModel) -> LongText | None:
    """What there is to choose about a text, or a pair; None for one that is short for this model."""
    limit = _model.max_tokens
    few, given = min(LONG_TOKENS, limit or LONG_TOKENS), (text,) if pair is None else (text, pair)
    short = MOST_PER_CHARACTER * sum(map(len, given)) < few // 2
    if short or _model.modality != "text" or _model.processor is None:
        return None
    from analysis.reading import span_in_windows
    from analysis.tokenising import clean, tokenised

    if _model.is_encoder_decoder:
        given = given[:1]  # the second is what the decoder reads
    sides = tokenised(_model.processor, tuple(clean(each)[0] for each in given)).pieces.sides
    if len(sides) <= few:
        return None
    first, last = span_in_windows(sides)
    found = LongText(len(sides), len(sides) - (last - first), limit, True, sides[first] or 0)
    window = found.window(_AT_ONCE)
    roomy = last > first and window - found.shared >= window * LEAST_ROOM
    return replace(found, windowed=roomy and not _model.is_encoder_decoder)


def encode(model: LoadedModel, text: str, pair: str | None, reading: TextReading) -> Inputs:
    """The input of one forward pass, or of one reading in windows.

    The text of an encoder-decoder is cut to what the model takes, and so is a pair of two long texts: windows cannot
    share them.

    Raises:
        ValueError, UnsupportedModelError: as ``analysis.inputs.encode_text`` and ``analysis.reading``.
    """
    from analysis.inputs import encode_pair, encode_text
    from analysis.reading import encode_document

    if model.is_encoder_decoder:
        return encode_text(model, text, target=pair)
    at_once = partial(encode_text, model, text) if pair is None else partial(encode_pair, model, text, pair)
    found = long_text(model.identity, text, pair, _model=model)
    if found is None or not found.windowed:
        return at_once()
    if reading.how == "first":
        return at_once(max_tokens=min(model.max_tokens or FIRST_TOKENS, FIRST_TOKENS))
    if reading.how == "whole" and found.fits:
        return at_once()
    inputs = encode_document(model, text, pair, window=found.window(reading), stride=found.stride(reading))
    if reading.how != "alone" or inputs.reading is None:
        return inputs
    windows = inputs.reading.windows
    return windows[min(reading.alone, len(windows) - 1)]
