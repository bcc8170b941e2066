"""Adversarial: would other attention give the same answer? The controls of the view, and what its parts draw from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import streamlit as st

from analysis.figure_data import Figure, TokenLabel
from dashboard import cached, evidence_cache
from dashboard.adversarial_choices import (
    EPSILONS,
    EVERY_LAYER,
    AdversarialChoices,
    Others,
    Rows,
    Search,
    Show,
    fitted_adversarial,
)
from dashboard.frame import choice
from dashboard.provenance import heads_fact
from dashboard.selection import Part, bound, choose_adversarial

if TYPE_CHECKING:
    from analysis.adversarial.rows import Place
    from analysis.evidence.targets import Target

Page = Literal["text", "image"]

SHOW_WORDS: Mapping[Show, str] = {
    "one": "This input",
    "set": "Many texts",
    "heads": "What heads do",
    "trained": "Trained otherwise",
}
ROW_WORDS: Mapping[Rows, str] = {
    "usual": "the row that is read",
    "first": "the first row",
    "last": "the last row",
    "pinned": "the chosen row",
    "all": "all rows",
}
OTHERS_WORDS: Mapping[Others, str] = {"respond": "the rest responds", "fixed": "the rest is held"}
SEARCH_WORDS: Mapping[Search, str] = {"projected": "search inside ε", "penalty": "the paper's search"}
WAITING = "The checks appear as soon as the model is ready."


@dataclass(frozen=True)
class Board:
    """What the view is drawn from.

    Attributes:
        traced: the page's own input through the model.
        part: kind of attention; ``layers``, ``heads``, ``queries``: of it.
        keys: labels of the positions that are attended to; () for a picture.
        queried: labels of the queries; () for a picture.
        pinned: place of the query that the reader chose, or None.
        targets: what heads are measured for, and for which pass.
        texts: names of the classes are those of a classifier over texts, so that a set of them can be checked.
    """

    page: Page
    traced: cached.Traced
    part: Part
    layers: int
    heads: int
    queries: int
    targets: Callable[[evidence_cache.Subject], Sequence[Target]]
    keys: tuple[TokenLabel, ...] = ()
    queried: tuple[TokenLabel, ...] = ()
    pinned: int | None = None
    direction: Literal["ltr", "rtl"] = "ltr"
    recurrent: bool = field(default=False)

    @property
    def picture(self) -> bool:
        """Whether the input is a picture."""
        return self.page == "image"

    def fitted(self, choices: AdversarialChoices) -> AdversarialChoices:
        """The choices fitted to what is there."""
        found = fitted_adversarial(choices, layers=self.layers, heads=self.heads)
        offered = self.shows()
        if found.show not in offered:
            found = AdversarialChoices(**{**found.__dict__, "show": "one"})
        if found.rows == "pinned" and self.pinned is None:
            found = AdversarialChoices(**{**found.__dict__, "rows": "usual"})
        return found

    def shows(self) -> tuple[Show, ...]:
        """What there is to show of this model."""
        found: list[Show] = ["one"]
        if not self.picture:
            found.append("set")
        if not self.recurrent:
            found.append("heads")
        if self.recurrent:
            found.append("trained")
        return tuple(found)

    def place(self, choices: AdversarialChoices) -> Place | None:
        """The rows that are replaced; None for a recurrent classifier, which has one."""
        from analysis.adversarial.rows import Place

        if self.recurrent:
            return None
        heads = tuple(range(self.heads)) if choices.heads is None else choices.heads
        last = self.layers - 1
        layers = (
            range(self.layers)
            if choices.layer == EVERY_LAYER
            else [choices.layer if choices.layer is not None else last]
        )
        return Place(dict.fromkeys(layers, heads), self.chosen_queries(choices), self.part)

    def chosen_queries(self, choices: AdversarialChoices) -> tuple[int, ...] | None:
        """Places of the queries whose rows are replaced; None for all."""
        if choices.rows == "usual":
            return self._read_rows()
        found = {"first": 0, "last": self.queries - 1, "pinned": self.pinned}.get(choices.rows)
        return None if found is None else (found,)

    def _read_rows(self) -> tuple[int, ...] | None:
        from analysis.adversarial.rows import usual_place

        usual = usual_place(self.traced.model, self.traced.inputs)
        if usual.kind == self.part:
            return usual.queries
        return None if self.part == "encoder" else (self.queries - 1,)


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
    from dashboard.views import adversarial_heads, adversarial_one, adversarial_set, adversarial_trained

    parts: Mapping[Show, Callable[[Board, AdversarialChoices], Figure | None]] = {
        "one": adversarial_one.show,
        "set": adversarial_set.show,
        "heads": adversarial_heads.show,
        "trained": adversarial_trained.show,
    }
    return parts[choices.show](board, choices)
