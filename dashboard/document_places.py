"""Moving along a long text: its parts one by one, and the places where some words stand.

Views lay out one part of a long text at a time, ``LINE_TOKENS`` tokens; the selection's ``window`` says which, so all
views of a page show the same part.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from functools import partial
from itertools import accumulate

import streamlit as st

from analysis.figure_data import Floats, TokenLabel
from dashboard.frame import choice, note
from dashboard.selection import TextChoices, choose, current
from dashboard.sources import LINE_TOKENS

PART_KEY, FIND_KEY = "text_window", "text_find"
MOST_FOUND = 2000
"""Most places of some words that are looked for."""


def is_long(length: int) -> bool:
    """Whether a text of so many tokens is shown part by part."""
    return length > LINE_TOKENS


def part_of(length: int, window: int) -> slice:
    """The tokens that are shown of a text: all of a short one, the part of a long one that holds token ``window``."""
    if not is_long(length):
        return slice(0, length)
    start = min(window, length - 1) // LINE_TOKENS * LINE_TOKENS
    return slice(start, min(start + LINE_TOKENS, length))


def place_tools(
    tokens: Sequence[TokenLabel],
    choices: TextChoices,
    *,
    length: int | None = None,
    keep_pinned: bool = False,
) -> None:
    """The part that is shown, its neighbours, and a search; nothing for a short text.

    Args:
        tokens: labels of the rows; ``length``: of the longer side, None for theirs.
        keep_pinned: a pinned token stays pinned in another part than its own.
    """
    longest = len(tokens) if length is None else length
    if not is_long(longest):
        return
    shown = part_of(longest, choices.window)
    with st.container(
        horizontal=True, vertical_alignment="center", gap="small", key="text_places", width="content"
    ):
        st.button(
            "‹",
            key="text_part_before",
            help="The part before",
            disabled=shown.start == 0,
            on_click=partial(_show_part, shown.start - LINE_TOKENS, keep_pinned=keep_pinned),
        )
        choice(
            "Part of the text",
            range(0, longest, LINE_TOKENS),
            shown.start,
            key=PART_KEY,
            on_change=lambda: _show_part(st.session_state[PART_KEY], keep_pinned=keep_pinned),
            words=lambda start: f"tokens {start:,}–{min(start + LINE_TOKENS, longest) - 1:,}",
            width=190,
        )
        st.button(
            "›",
            key="text_part_after",
            help="The part after",
            disabled=shown.stop >= longest,
            on_click=partial(_show_part, shown.start + LINE_TOKENS, keep_pinned=keep_pinned),
        )
        _search(tokens, choices)


def _search(tokens: Sequence[TokenLabel], choices: TextChoices) -> None:
    st.text_input(
        "Find in the text",
        key=FIND_KEY,
        placeholder="Find words",
        max_chars=80,
        label_visibility="collapsed",
        width=140,
        on_change=lambda: _go_on(tokens, from_part=True),
    )
    asked = st.session_state.get(FIND_KEY, "")
    if not asked.strip():
        return
    found = places_of(tokens, asked)
    if not found:
        note("not found")
        return
    pinned = choices.pinned[1] if choices.pinned is not None and choices.pinned[0] == "left" else -1
    at = found.index(pinned) + 1 if pinned in found else 0
    st.button(
        f"{at:,} of {len(found):,} ›" if at else f"{len(found):,} found ›",
        key="text_find_next",
        help="The next place",
        on_click=partial(_go_on, tokens, from_part=False),
    )


def places_of(tokens: Sequence[TokenLabel], words: str) -> list[int]:
    """Tokens at which some words begin, in order; upper and lower case and white space make no difference."""
    wanted = "".join(words.split()).casefold()
    if not wanted:
        return []
    texts = ["" if token.special else "".join(token.text.split()).casefold() for token in tokens]
    ends = list(accumulate(map(len, texts)))
    whole = "".join(texts)
    found: list[int] = []
    at = whole.find(wanted)
    while at >= 0 and len(found) < MOST_FOUND:
        token = bisect_left(ends, at + 1)
        if ends[token] - len(texts[token]) == at and not tokens[token].continues:
            found.append(token)
        at = whole.find(wanted, at + 1)
    return found


def document_map(
    key: str,
    scores: Floats,
    choices: TextChoices,
    *,
    signed: bool,
    direction: str = "ltr",
    unit: str = "token",
    positions: Sequence[int] | None = None,
) -> None:
    """The scores of the whole document as a strip; a click shows the part that holds a bar.

    Args:
        scores: (N,) one a position; ``positions``: token that each belongs to, None for the tokens themselves.
    """
    from dashboard.document_charts import document_strip, strip_bounds  # Plotly is imported when it is needed

    tokens = range(len(scores)) if positions is None else positions
    shown = part_of(tokens[-1] + 1, choices.window)
    bounds = strip_bounds(len(scores))
    chart = f"{key}_document"

    def picked() -> None:
        points = st.session_state[chart].selection.points
        index = points[0].get("point_index") if points else None
        if isinstance(index, int) and 0 <= index < len(bounds):
            choose("text", window=tokens[bounds[index][0]] // LINE_TOKENS * LINE_TOKENS)

    inside = slice(bisect_left(tokens, shown.start), bisect_left(tokens, shown.stop))
    st.plotly_chart(
        document_strip(scores, shown=inside, signed=signed, unit=unit, direction=direction),
        key=chart,
        theme=None,
        config={"displayModeBar": False},
        on_select=picked,
        selection_mode="points",
        alt="Scores along the whole document; a click shows that part below",
    )


def show_token(token: int) -> None:
    """Pin a token and show the part that holds it."""
    choose("text", window=token // LINE_TOKENS * LINE_TOKENS, pinned=("left", token))


def _show_part(start: int, *, keep_pinned: bool = False) -> None:
    start = max(start, 0)
    if keep_pinned:
        choose("text", window=start)
    else:
        choose("text", window=start, pinned=None)


def _go_on(tokens: Sequence[TokenLabel], *, from_part: bool) -> None:
    """Show the next place after the pinned one, or the first from the shown part on; after the last the first."""
    found = places_of(tokens, st.session_state.get(FIND_KEY, ""))
    if not found:
        return
    choices = current().text
    pinned = choices.pinned[1] if choices.pinned is not None and choices.pinned[0] == "left" else None
    after = choices.window - 1 if from_part or pinned is None else pinned
    show_token(next((token for token in found if token > after), found[0]))
