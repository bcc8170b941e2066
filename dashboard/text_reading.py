"""How a chosen text becomes a model's input: at once, in windows, its beginning alone, or one window alone.

No widgets here; torch is imported inside the functions.
"""

from __future__ import annotations

from dataclasses import dataclass
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

MOST_PER_CHARACTER = 4
"""Most tokens that a character can become (its bytes): what tells a short text without asking the tokenizer."""


@dataclass(frozen=True)
class LongText:
    """A text that there is something to choose about.

    Attributes:
        tokens: of the whole text, special ones included; ``special`` how many these are.
        limit: most tokens that the model takes at once, None without a limit.
        windowed: whether it can be read in windows.
    """

    tokens: int
    special: int
    limit: int | None
    windowed: bool

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

        room = self.window(reading) - self.special
        own = default_stride(self.window(reading), self.special)
        return own if reading.stride is None else min(max(reading.stride, 1), room)

    def starts(self, reading: TextReading) -> list[int]:
        """First token of each window, special ones not counted; one window where the text is shorter than one."""
        from analysis.reading import window_starts

        length, room = self.tokens - self.special, self.window(reading) - self.special
        return [0] if length <= room else window_starts(length, room, self.stride(reading))


@st.cache_resource(max_entries=16, show_spinner=False)
def long_text(model_key: tuple[str, str], text: str, _model: LoadedModel) -> LongText | None:
    """What there is to choose about a text; None for one that is short for this model."""
    limit = _model.max_tokens
    few = min(LONG_TOKENS, limit or LONG_TOKENS)
    if MOST_PER_CHARACTER * len(text) < few // 2 or _model.modality != "text" or _model.processor is None:
        return None
    from analysis.tokenising import clean, tokenised

    sides = tokenised(_model.processor, (clean(text)[0],)).pieces.sides
    if len(sides) <= few:
        return None
    special = sum(side is None for side in sides)
    return LongText(len(sides), special, limit, not _model.is_encoder_decoder and len(sides) > special)


def encode(model: LoadedModel, text: str, pair: str | None, reading: TextReading) -> Inputs:
    """The input of one forward pass, or of one reading in windows.

    A pair is cut to what the model takes, and so is the text of an encoder-decoder: neither can be shared by windows.

    Raises:
        ValueError, UnsupportedModelError: as ``analysis.inputs.encode_text`` and ``analysis.reading``.
    """
    from analysis.inputs import encode_pair, encode_text
    from analysis.reading import encode_document

    if model.is_encoder_decoder:
        return encode_text(model, text, target=pair)
    if pair is not None:
        return encode_pair(model, text, pair)
    found = long_text((model.name, model.revision), text, _model=model)
    if found is None or not found.windowed:
        return encode_text(model, text)
    if reading.how == "first":
        return encode_text(model, text, max_tokens=min(model.max_tokens or FIRST_TOKENS, FIRST_TOKENS))
    if reading.how == "whole" and found.fits:
        return encode_text(model, text)
    inputs = encode_document(model, text, window=found.window(reading), stride=found.stride(reading))
    if reading.how != "alone" or inputs.reading is None:
        return inputs
    windows = inputs.reading.windows
    return windows[min(reading.alone, len(windows) - 1)]
