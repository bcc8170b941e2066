"""What heads do to a target: one edit on each head alone, each layer whole, and all layers."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import streamlit as st

from analysis.figure_data import HeadEffects
from dashboard import adversarial_cache, check_charts, evidence_cache
from dashboard.adversarial_choices import AdversarialChoices, Edit
from dashboard.frame import heading, note, notes, waiting_view
from dashboard.selection import bound, choose, choose_adversarial, current
from dashboard.views import evidence_targets, evidence_tools
from dashboard.views.adversarial_source import ROW_WORDS, Board
from dashboard.views.heads_board import open_head

EDIT_WORDS: Mapping[Edit, str] = {
    "uniform": "Uniform",
    "permuted": "Permuted",
    "self": "Own place only",
    "first": "First key only",
    "exchanged": "Exchanged with the next head",
    "removed": "Head removed",
}


def show(board: Board, choices: AdversarialChoices) -> HeadEffects | None:
    """Draw the part; returns the record of what is on the screen, None while there is nothing."""
    page, traced = board.page, board.traced
    key = f"{page}_adversarial_edit"
    st.segmented_control(
        "Edit",
        list(EDIT_WORDS),
        **bound(key, choices.edit, default="default"),
        on_change=lambda: choose_adversarial(page, edit=st.session_state[key]),
        format_func=lambda edit: EDIT_WORDS[edit],
        required=True,
        label_visibility="collapsed",
        help="What becomes of a head's weights",
    )
    queries = board.chosen_queries(choices)
    if choices.edit == "removed":
        queries = None
    try:
        with evidence_tools.computing(page, traced):
            subject = evidence_cache.subject(traced)
            targets = board.targets(subject)
        if not targets:
            note("Heads are measured for a target: choose a class, a word or examples in the Evidence view.")
            return None
        running = adversarial_cache.effects(traced, targets[0], choices.edit, board.part, queries)
    except Exception as error:  # noqa: BLE001 - told; another edit can be chosen above
        evidence_tools.tell_refusals([("Edited heads", error)])
        return None
    if running.result is None:
        evidence_tools.progress(page, [("Edited heads", running.job)], of="adversarial_heads")
        if running.job.active:
            waiting_view("The changes appear here in a moment.")
        return None
    view = _record(board, choices, running.result, evidence_targets.title_of(targets[:1], subject), queries)
    heading(f"Change of: {view.target}", "Target with the heads edited − target as it is")
    chart = f"{page}_adversarial_effects"
    st.plotly_chart(
        check_charts.head_effects_chart(view),
        key=chart,
        theme=None,
        config={"displayModeBar": False},
        on_select=partial(_marked, page, chart),
        selection_mode="points",
        alt="Change of the target under the edit, layers down and heads across",
    )
    if view.marked is not None:
        _chosen_head(board, view)
    notes(view.notes)
    return view


def _record(
    board: Board,
    choices: AdversarialChoices,
    found: Any,
    target: str,
    queries: tuple[int, ...] | None,
) -> HeadEffects:
    page = getattr(current(), board.page)
    layers, heads = found.heads.shape
    marked = (min(page.layer, layers - 1), min((page.heads or (0,))[0], heads - 1))
    rows = "all rows" if queries is None else ROW_WORDS[choices.rows]
    words = EDIT_WORDS[choices.edit]
    told = [f"{words}, on {rows}; all other attention is computed anew from the changed states."]
    if choices.edit == "permuted":
        told.append("The median of five random orders.")
    return HeadEffects(
        edits=(words.lower(),),
        heads=found.heads[None].float().numpy(),
        layers=found.layers[None].float().numpy(),
        whole=np.array([found.whole], dtype=np.float32),
        target=target.removeprefix("Evidence for "),
        before=found.before,
        marked=marked,
        title=rows,
        kind=board.part,
        notes=tuple(told),
    )


def _marked(page: Any, key: str) -> None:
    """Take over a click on a cell."""
    places = [_place(point.get("customdata")) for point in st.session_state[key].selection.points]
    place = next((place for place in places if place is not None), None)
    if place is not None:
        choose(page, layer=place[0], heads=(place[1],))


def _place(told: object) -> tuple[int, int] | None:
    """(layer, head) of a point; browsers send Plotly's typed arrays as {"0": layer, "1": head}."""
    pair = [told.get(name) for name in ("0", "1")] if isinstance(told, Mapping) else told
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        return None
    if not all(isinstance(number, int) and number >= 0 for number in pair):
        return None
    return pair[0], pair[1]


def _chosen_head(board: Board, view: HeadEffects) -> None:
    assert view.marked is not None
    layer, head = view.marked
    change = float(view.heads[view.shown, layer, head])
    words = f"{change:+.4g}".replace("-", "−")
    with st.container(horizontal=True, vertical_alignment="center", key=f"{board.page}_adversarial_head"):
        st.html(
            f'<div class="as-note">Layer {layer}, head {head}: {words} of {view.before:.4g}.</div>',
            width="content",
        )
        st.button(
            "Other attention for this head",
            key=f"{board.page}_adversarial_one_head",
            on_click=partial(_search_head, board, layer, head),
            help="Candidates for this head alone, and weights set by hand",
        )
        st.button(
            "Open the head",
            key=f"{board.page}_adversarial_open_head",
            on_click=partial(open_head, board.page, layer, head),
        )


def _search_head(board: Board, layer: int, head: int) -> None:
    last = board.layers - 1
    heads = None if board.heads == 1 else (head,)
    choose_adversarial(board.page, show="one", layer=None if layer == last else layer, heads=heads)
