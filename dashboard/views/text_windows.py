"""A document's windows on the page: what each predicts, and a way to open one alone."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import streamlit as st

from dashboard import cached
from dashboard.frame import note, small_table
from dashboard.prediction_line import percent
from dashboard.selection import TextChoices, choose, current

if TYPE_CHECKING:
    from analysis.reading import Reading


def windows_popover(traced: cached.Traced) -> None:
    """What each window predicts by itself; nothing for a model without classes, or a text that is read at once."""
    reading, logits = traced.inputs.reading, traced.trace.window_logits
    if reading is None or logits is None or cached.prediction(traced) is None:
        return
    with st.popover(f"Each of {len(logits):,} windows", key="text_windows"):
        st.html(
            '<div class="as-note">The prediction above is made from the mean of these windows\' logits.</div>'
        )
        small_table(("Window", "Tokens", "Prediction", ""), window_rows(traced, reading))


def window_rows(traced: cached.Traced, reading: Reading) -> list[tuple[str, str, str, str]]:
    """Rows of the table: window, its tokens, its strongest class and the probability or value."""
    from analysis.predictions import predict

    logits = traced.trace.window_logits
    assert logits is not None
    rows = []
    for index, of_window in enumerate(logits):
        alone = predict(traced.model, replace(traced.trace, logits=of_window, features=None))
        assert alone is not None
        label, score, _ = alone.best(1)[0]
        first, last = reading.span(index)
        number = f"{score:.4g}" if alone.kind == "value" else percent(score)
        rows.append((str(index), f"{first:,}–{last:,}", label, number))
    return rows


def offer_alone(traced: cached.Traced, choices: TextChoices, why: str) -> None:
    """Say why something is not done for a document, and open the window of the pinned token, or of the shown part."""
    reading = traced.inputs.reading
    assert reading is not None
    pinned = choices.pinned[1] if choices.pinned is not None and choices.pinned[0] == "left" else None
    at = choices.window if pinned is None else pinned
    owner = reading.owner(at)
    index = 0 if owner is None else owner
    first, last = reading.span(index)
    note(f"{why} Open a window alone: it is then a text of its own.")
    st.button(
        f"Open window {index}, tokens {first:,}–{last:,}",
        key="text_open_window",
        on_click=partial(_open, index),
    )


def _open(index: int) -> None:
    reading = current().text.reading
    choose("text", reading=replace(reading, how="alone", alone=index))
