"""The sidebar's choice of how a long text is read: at once, in windows, its beginning, or one window alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import streamlit as st

from dashboard import cached, text_reading
from dashboard.frame import choice, heading, note
from dashboard.selection import TextChoices, TextReading, choose, current
from dashboard.text_reading import FIRST_TOKENS, LongText

HOW_KEY, STRIDE_KEY, ALONE_KEY = "text_reading_how", "text_reading_stride", "text_reading_alone"
OVERLAPS: Mapping[str, tuple[int, int]] = {
    "no overlap": (1, 1),
    "a quarter shared": (3, 4),
    "half shared": (1, 2),
    "three quarters shared": (1, 4),
}
"""Words of an overlap, and the stride as a share of a window's own tokens."""


def reading_choice(choices: TextChoices) -> None:
    """The choice, where the text is so long that there is one."""
    shared = cached.model_if_ready(*choices.model.request)
    if shared is None:
        return
    model = shared.model
    pair = choices.input.pair
    found = text_reading.long_text(model.identity, choices.input.text, pair, _model=model)
    if found is None:
        return
    heading("Reading", "How a text is read that is longer than the model takes at once")
    limit = "no limit" if found.limit is None else f"{found.limit:,} at once"
    a_pair = pair is not None and not model.is_encoder_decoder
    note(f"The {'pair' if a_pair else 'text'} has {found.tokens:,} tokens; the model takes {limit}.")
    if not found.windowed:
        if a_pair:
            note(
                "What does not fit is cut off: both sentences are too long for windows that hold one of them whole."
            )
        else:
            note("What does not fit is cut off: this model's answer cannot be put together from windows.")
        return
    if a_pair:
        note(f"Windows cut sentence {'AB'[found.cut]}; each has sentence {'BA'[found.cut]} whole.")
    words = _ways(found, choices.reading)
    choice(
        "Reading",
        list(words),
        _fitted(found, choices.reading).how,
        key=HOW_KEY,
        on_change=_how_picked,
        words=lambda how: words.get(how, how),
        width="stretch",
    )
    reading = _fitted(found, current().text.reading)
    if reading.how in ("windows", "alone"):
        _stride(found, reading)
    if reading.how == "alone":
        _alone(found, reading)


def _fitted(found: LongText, reading: TextReading) -> TextReading:
    """The choice as the list shows it: what cannot be read at once is read in windows."""
    return replace(reading, how="windows") if reading.how == "whole" and not found.fits else reading


def _ways(found: LongText, reading: TextReading) -> dict[str, str]:
    first = min(found.limit or FIRST_TOKENS, FIRST_TOKENS)
    ways = {"whole": f"All {found.tokens:,} tokens at once"} if found.fits else {}
    ways["windows"] = f"{len(found.starts(reading)):,} windows of {found.window(reading):,} tokens"
    if first < found.tokens:
        ways["first"] = f"First {first:,} tokens only"
    return {**ways, "alone": "One window alone"}


def _stride(found: LongText, reading: TextReading) -> None:
    room = found.window(reading) - found.shared
    strides = {max(room * part // of, 1): name for name, (part, of) in OVERLAPS.items()}
    chosen = found.stride(reading)
    strides.setdefault(chosen, "own stride")
    ordered = sorted(strides, reverse=True)
    choice(
        "Overlap of the windows",
        ordered,
        chosen,
        key=STRIDE_KEY,
        on_change=_stride_picked,
        words=lambda stride: f"stride {stride:,}, {strides.get(stride, '')}",
        width="stretch",
        help="Tokens between the beginnings of two windows",
    )


def _alone(found: LongText, reading: TextReading) -> None:
    starts, room = found.starts(reading), found.window(reading) - found.shared
    chosen = min(reading.alone, len(starts) - 1)

    def words(index: int) -> str:
        return f"window {index} of 0–{len(starts) - 1}: tokens {starts[index]:,}–{starts[index] + room - 1:,}"

    choice(
        "Window",
        range(len(starts)),
        chosen,
        key=ALONE_KEY,
        on_change=_alone_picked,
        words=words,
        width="stretch",
    )


def _how_picked() -> None:
    choose("text", reading=replace(current().text.reading, how=st.session_state[HOW_KEY]))


def _stride_picked() -> None:
    choose("text", reading=replace(current().text.reading, stride=st.session_state[STRIDE_KEY], alone=0))


def _alone_picked() -> None:
    choose("text", reading=replace(current().text.reading, alone=st.session_state[ALONE_KEY]))
