"""What every page is framed with: styles, the title line, badges, small tables and the designed states.

Text from users (tokens, file names, typed sentences) reaches the page only through ``literal`` (for Markdown) or
``html.escape`` (for HTML), so that it is shown as typed and nothing in it runs, loads or links.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from analysis.figure_data import ColourMapName
from analysis.visible_evidence import AGAINST, FOR
from dashboard.selection import bound, bound_choice, choose

STYLE_FILE = Path(__file__).with_name("style.css")
VIEW_HEIGHT = 650
"""Height in pixels of what stands where there is no view; a view fills the window that it finds."""

_PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")


@dataclass(frozen=True)
class Badge:
    """A small persistent mark beside the title: what a reader must know of what is shown."""

    text: str
    help: str = ""
    tone: Literal["plain", "warning"] = "plain"


def literal(text: str) -> str:
    """Text that Markdown shows as it is: every punctuation character is escaped."""
    return _PUNCTUATION.sub(r"\\\1", text)


@cache
def _style() -> str:
    return STYLE_FILE.read_text(encoding="utf-8")


def styles() -> None:
    """The program's own styles, where the theme's settings are not enough."""
    st.html(f"<style>{_style()}</style>")


def title_line(facts: Sequence[str], badges: Sequence[Badge] = ()) -> None:
    """One line that says what is shown: the first fact stands out.

    Args:
        facts: such as the model's title, "23 tokens", "layer 2", "heads 3, 7"; shown literally.
        badges: marks behind them.
    """
    head, *rest = facts
    parts = [f"<strong>{escape(head)}</strong>", *(f"<span>{escape(fact)}</span>" for fact in rest)]
    marks = "".join(
        f'<span class="as-badge as-{badge.tone}" title="{escape(badge.help)}">{escape(badge.text)}</span>'
        for badge in badges
    )
    st.html(f'<div class="as-title" role="heading" aria-level="1">{"<i>·</i>".join(parts)}{marks}</div>')


def small_table(header: Sequence[str], rows: Sequence[Sequence[str]], *, marked: int | None = None) -> None:
    """A dense table of short texts, shown literally; numbers stand right.

    Args:
        marked: index of a row that stands out.
    """
    cells = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = []
    for index, row in enumerate(rows):
        name = ' class="as-marked"' if index == marked else ""
        body.append(f"<tr{name}>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>")
    st.html(f'<table class="as-table"><thead><tr>{cells}</tr></thead><tbody>{"".join(body)}</tbody></table>')


def square_table(names: Sequence[str], values: NDArray[np.float64]) -> None:
    """A square of numbers between −1 and 1, each on its tint: red above 0, blue below; "–" where there is none."""
    head = "".join(f"<th>{escape(name)}</th>" for name in ("", *names))
    body = []
    for name, row in zip(names, values, strict=True):
        cells = "".join(
            f'<td style="background: {_tint(value)}">{signed_number(value)}</td>' for value in row
        )
        body.append(f"<tr><th>{escape(name)}</th>{cells}</tr>")
    table = f"<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody>"
    st.html(f'<div class="as-square"><table>{table}</table></div>')


def _tint(value: float) -> str:
    if math.isnan(value):
        return "none"
    return "rgb({} {} {} / {:.0%})".format(*(FOR if value > 0 else AGAINST), 0.5 * min(abs(value), 1.0))


def signed_number(value: float) -> str:
    """Two decimals with a true minus sign; "–" where there is no number."""
    return "–" if math.isnan(value) else f"{value:.2f}".replace("-", "−")


def heading(text: str, help: str = "") -> None:
    """A small heading of a group of controls or figures."""
    st.html(f'<div class="as-heading" title="{escape(help)}">{escape(text)}</div>')


def note(text: str) -> None:
    """A quiet sentence under a view, shown literally."""
    st.html(f'<div class="as-note">{escape(text)}</div>')


def notes(sentences: Sequence[str]) -> None:
    """What the reader must know, as a quiet list."""
    for sentence in sentences:
        note(sentence)


def polled(draw: Callable[[], None], ended: Callable[[], bool], *, seconds: float) -> None:
    """Draw a part of the page again every so many seconds; when what it waits for has ended, the page runs again.

    Never in the run that draws it first: Streamlit sends a widget's chosen value once, and a browser that gets the
    next run before it has put the widgets up would show their defaults, and send these back as the user's.
    """
    drawn: list[bool] = []

    def part() -> None:
        if drawn and ended():
            st.rerun()
        drawn.append(True)
        draw()

    st.fragment(part, run_every=seconds)()


def choice(
    label: str,
    options: Sequence[Any],
    value: Any,
    *,
    key: str,
    on_change: Callable[[], None],
    words: Callable[[Any], str] = str,
    width: int | Literal["stretch"] = 150,
    help: str | None = None,
) -> None:
    """A compact select box without a label above it, so its options say what they are ("layer 2")."""

    def picked() -> None:
        # A browser that is behind may send words that no option has any more.
        if st.session_state[key] in options:
            on_change()

    st.selectbox(
        label,
        options,
        **bound_choice(key, value, options, words),
        on_change=picked,
        format_func=words,
        label_visibility="collapsed",
        width=width,
        help=help,
    )


def colour_choice(page: Literal["text", "image"], value: ColourMapName) -> None:
    """The colour map of a page's views; all are perceptually even and safe for the colour-blind."""
    key = f"{page}_colour_map"
    choice(
        "Colour map",
        get_args(ColourMapName),
        value,
        key=key,
        on_change=lambda: choose(page, colour_map=st.session_state[key]),
        words=lambda name: str(name).capitalize(),
        width=115,
    )


def views(
    options: Sequence[str], value: str, *, key: str, on_change: Callable[[], None], words: dict[str, str]
) -> None:
    """The switch between the views of a page."""
    st.segmented_control(
        "View",
        options,
        **bound(key, value, default="default"),
        on_change=on_change,
        format_func=lambda name: words[name],
        required=True,
        label_visibility="collapsed",
    )


# States ------------------------------------------------------------------------------------------------------------


def waiting_view(stage: str) -> None:
    """Room for a view whose model is still being loaded, in the view's final size, so nothing jumps."""
    st.html(f'<div class="as-waiting" role="status" aria-live="polite"><div>{escape(stage)}</div></div>')


def empty_view(sentence: str, offers: Sequence[tuple[str, str, Callable[[], None]]], *, key: str) -> None:
    """What stands where a view would, when there is no input: one sentence and examples that load at once.

    Args:
        offers: (key, label, what to do) of each example.
    """
    with st.container(key=f"{key}_empty", height=VIEW_HEIGHT, horizontal_alignment="center", border=True):
        st.space("large")
        st.html(f'<div class="as-empty">{escape(sentence)}</div>')
        with st.container(horizontal=True, horizontal_alignment="center"):
            for name, label, action in offers:
                st.button(literal(label), key=f"{key}_offer_{name}", on_click=action)
