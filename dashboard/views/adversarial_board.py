"""Adversarial: would other attention give the same answer? The controls of the view, and what its parts draw from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import streamlit as st

from analysis.figure_data import Figure
from dashboard.adversarial_choices import (
    EPSILONS,
    EVERY_LAYER,
    AdversarialChoices,
    Others,
    Rows,
    Search,
    Show,
)
from dashboard.frame import choice
from dashboard.provenance import heads_fact
from dashboard.selection import bound, choose_adversarial
from dashboard.views import adversarial_heads, adversarial_one, adversarial_set, adversarial_trained
from dashboard.views.adversarial_source import ROW_WORDS, Board, Page

SHOW_WORDS: Mapping[Show, str] = {
    "one": "This input",
    "set": "Many texts",
    "heads": "What heads do",
    "trained": "Trained otherwise",
}
OTHERS_WORDS: Mapping[Others, str] = {"respond": "the rest responds", "fixed": "the rest is held"}
SEARCH_WORDS: Mapping[Search, str] = {"projected": "search inside ε", "penalty": "the paper's search"}
WAITING = "The checks appear as soon as the model is ready."


def tools(board: Board, choices: AdversarialChoices) -> None:
    """What is shown, and which attention is replaced."""
    page = board.page
    offered = board.shows()
    if len(offered) > 1:
        _pick(page, "show", "Checks", {name: SHOW_WORDS[name] for name in offered}, choices.show, width=170)
    if choices.show in ("one", "set"):
        _epsilon(page, choices)
    if board.recurrent or choices.show in ("set", "trained"):
        return
    if choices.show == "one":
        _layer(board, choices)
        _heads(board, choices)
    words = {
        name: _row_words(name, board) for name in ROW_WORDS if name != "pinned" or board.pinned is not None
    }
    _pick(
        page,
        "rows",
        "Rows",
        words,
        choices.rows,
        width=190,
        help="Whose attention is replaced: of the position that the answer is read from, of another, or of all",
    )
    if choices.show == "one":
        _pick(
            page,
            "others",
            "The rest",
            OTHERS_WORDS,
            choices.others,
            width=165,
            help="Whether attention that is not replaced is computed anew from what the replaced one changes, or "
            "held as it was",
        )
        _pick(
            page,
            "search",
            "Search",
            SEARCH_WORDS,
            choices.search,
            width=170,
            help="Search inside ε: gradient ascent that never leaves the answers within ε. The paper's search: 500 "
            "steps on a penalty (Jain & Wallace 2019)",
        )


def _row_words(name: Rows, board: Board) -> str:
    label: int | None = {"first": 0, "last": board.queries - 1, "pinned": board.pinned}.get(name)
    if label is None or not board.queried:
        return ROW_WORDS[name]
    return f"{ROW_WORDS[name]}: {board.queried[label].text}"


def _pick(
    page: Page,
    name: str,
    label: str,
    words: Mapping[Any, str],
    value: Any,
    *,
    width: int,
    help: str | None = None,
) -> None:
    key = f"{page}_adversarial_{name}"
    choice(
        label,
        list(words),
        value,
        key=key,
        on_change=lambda: choose_adversarial(page, **{name: st.session_state[key]}),
        words=lambda option: words[option],
        width=width,
        help=help,
    )


def _epsilon(page: Page, choices: AdversarialChoices) -> None:
    key = f"{page}_adversarial_epsilon"
    st.select_slider(
        "How much the answer may change (ε)",
        EPSILONS,
        **bound(key, choices.epsilon),
        on_change=lambda: choose_adversarial(page, epsilon=st.session_state[key]),
        format_func=lambda epsilon: f"ε {epsilon:g}",
        label_visibility="collapsed",
        width=210,
        help="How much the answer may change and still count as the same; Jain & Wallace take 0.01 for classes",
    )


def _layer(board: Board, choices: AdversarialChoices) -> None:
    page, key = board.page, f"{board.page}_adversarial_layer"
    last = board.layers - 1
    options = [EVERY_LAYER, *range(board.layers)]

    def picked() -> None:
        chosen = st.session_state[key]
        choose_adversarial(page, layer=None if chosen == last else chosen)

    choice(
        "Layer",
        options,
        last if choices.layer is None else choices.layer,
        key=key,
        on_change=picked,
        words=lambda layer: "all layers" if layer == EVERY_LAYER else f"layer {layer}",
        width=120,
    )


def _heads(board: Board, choices: AdversarialChoices) -> None:
    page, key = board.page, f"{board.page}_adversarial_heads"
    chosen = list(range(board.heads)) if choices.heads is None else list(choices.heads)

    def picked() -> None:
        heads = tuple(sorted(st.session_state[key] or ()))
        choose_adversarial(page, heads=None if len(heads) in (0, board.heads) else heads)

    every = len(chosen) == board.heads
    words = heads_fact(chosen if every else chosen[:6], board.heads) + (
        " …" if 6 < len(chosen) < board.heads else ""
    )
    with st.popover(words, key=f"{page}_adversarial_heads_place", help="Heads whose attention is replaced"):
        st.pills(
            "Heads whose attention is replaced",
            list(range(board.heads)),
            **bound(key, chosen, default="default"),
            selection_mode="multi",
            on_change=picked,
        )


def show(board: Board, choices: AdversarialChoices) -> Figure | None:
    """Draw the view; returns the record of what is on the screen, None while there is nothing."""
    return _PARTS[choices.show](board, choices)


_PARTS: Mapping[Show, Callable[[Board, AdversarialChoices], Figure | None]] = {
    "one": adversarial_one.show,
    "set": adversarial_set.show,
    "heads": adversarial_heads.show,
    "trained": adversarial_trained.show,
}
