"""Heads: a layer taken apart and put together again, and what shared keys and values cost."""

from __future__ import annotations

from functools import partial
from html import escape
from typing import TYPE_CHECKING, Any

import streamlit as st

from analysis.figure_data import HEAD_COLOURS
from dashboard import cached
from dashboard.cached import LAB_MODEL
from dashboard.frame import heading, literal, note, small_table
from dashboard.lab_choices import LabChoices, SplitChoices
from dashboard.lab_sections import LabFigure
from dashboard.lab_show import show_curves, show_matrices
from dashboard.lab_vectors import bert_heads, bert_is_here, bert_layers
from dashboard.lab_widgets import choice_of, index_of, slider_of, switch_of
from dashboard.selection import choose_in_section

if TYPE_CHECKING:
    from analysis.lab.heads_split import Layer
    from attn_core.models.bert import Bert
    from dashboard.components.lab_views import MatrixCell

METHOD = (
    "multi-head attention (Vaswani et al. 2017, section 3.2.2) with shared keys and values (Shazeer 2019; Ainslie et "
    "al. 2023)"
)

LENGTHS = tuple(2**power for power in range(7, 20))
"""n that the page offers for the cache."""

BERT_HEADS = 12
"""Heads of a layer of the bundled BERT, for the controls before it is loaded."""


def tools(choices: LabChoices) -> None:
    """What is shown, of which layer; how many heads, and how many keys and values they share."""
    from analysis.lab.heads_split import divisors

    chosen = choices.heads
    switch_of("heads", "show", "Show", {"split": "Split and joined", "cache": "Shared keys and values"})
    if chosen.show == "split":
        switch_of("heads", "numbers", "Numbers", {"random": "Random layer", "model": "Layer of BERT"})
    heads = _heads(chosen)
    if chosen.show == "cache" or chosen.numbers == "random":
        slider_of("heads", "heads", "Heads H", width=140)
    else:
        layers = bert_layers()
        index_of("heads", "layer", layers, width=125)
    choice_of(
        "heads",
        "groups",
        "Key–value heads",
        options=divisors(heads),
        say=partial(_way, heads),
        width=215,
        help="How many heads of keys and values the heads share",
    )
    if chosen.show == "split":
        index_of("heads", "head", heads, width=125)
        if chosen.numbers == "random":
            slider_of("heads", "seed", "Seed", width=110)
        return
    choice_of("heads", "tokens", "Tokens", options=LENGTHS, say=lambda n: f"{n:,} tokens", width=150)
    slider_of("heads", "width", "Width of a head", width=140)
    slider_of("heads", "layers", "Layers", width=140)
    choice_of(
        "heads",
        "bits",
        "Numbers",
        words={bits: f"{bits}-bit numbers" for bits in ("32", "16", "8")},
        width=150,
    )


def show(choices: LabChoices) -> tuple[LabFigure, ...]:
    """One layer taken apart, or the cost of ways to share."""
    return _cache(choices.heads) if choices.heads.show == "cache" else _split(choices)


def _way(heads: int, groups: int) -> str:
    if heads % groups:
        from analysis.lab.heads_split import nearest_divisor

        return f"{_way(heads, nearest_divisor(heads, groups))}, as {groups} does not divide {heads}"
    if groups == heads:
        return f"multi-head, G = {groups}"
    return f"multi-query, G = {groups}" if groups == 1 else f"grouped-query, G = {groups}"


def _heads(chosen: SplitChoices) -> int:
    """H; of a layer of the BERT before it is loaded, that of the bundled one."""
    if chosen.show == "cache" or chosen.numbers == "random":
        return chosen.heads
    return bert_heads() if bert_heads() > 1 else BERT_HEADS


def _groups(chosen: SplitChoices) -> int:
    from analysis.lab.heads_split import nearest_divisor

    return nearest_divisor(_heads(chosen), chosen.groups)


# Split and joined --------------------------------------------------------------------------------------------------


def _split(choices: LabChoices) -> tuple[LabFigure, ...]:
    from analysis.lab import heads_split

    layer = _layer(choices)
    if layer is None:
        return ()
    chosen, groups = choices.heads, _groups(choices.heads)
    view = heads_split.split_heads(layer, groups)
    head = min(chosen.head, view.heads - 1)
    said = heads_split.split_conclusions(view)
    st.markdown(literal(" ".join(said)))
    st.html(groups_html(view.heads, view.groups, chosen=head))
    sheets = heads_split.head_sheet(view, head), heads_split.heads_sheet(view, head)
    added = heads_split.added_sheet(view, heads_split.pooling_errors(layer) if layer.trained else None)
    show_matrices(sheets[1], key="lab_heads_all_view", on_select=_take)
    show_matrices(sheets[0], key="lab_heads_one_view")
    show_curves(added, key="lab_heads_added_view", columns=2)
    note(
        "output = Σ context_h · W_O[h] + b: computed head by head it differs from the layer's own by "
        f"{view.remade_error:.1e} at most."
    )
    told: dict[str, Any] = {
        "input": " ".join(view.tokens) if chosen.numbers == "random" else choices.text,
        "method": METHOD,
        "settings": {
            "layer": view.source,
            "heads": view.heads,
            "key–value heads": view.groups,
            "head": head,
        },
        "notes": (*said, *view.notes),
    }
    return (
        LabFigure("One head", sheets[0], **told),
        LabFigure("All heads", sheets[1], **told),
        LabFigure("What heads add", added, **told),
    )


def _take(cell: MatrixCell) -> None:
    """A click on a head's weights chooses the head."""
    choose_in_section("heads", head=cell.matrix)


def _layer(choices: LabChoices) -> Layer | None:
    """The layer that is looked at; None where it is not there, and the page says why."""
    from analysis.lab.heads_split import model_layer, random_layer
    from analysis.lab.inputs import split_words

    chosen = choices.heads
    if not choices.text.strip():
        note("Type a sentence on the left.")
        return None
    if chosen.numbers == "random":
        tokens = split_words(choices.text)
        return random_layer(tokens, heads=chosen.heads, groups=_groups(chosen), seed=chosen.seed)
    if not bert_is_here():
        return None
    shared = cached.shared_model(LAB_MODEL.name, LAB_MODEL.revision)
    return model_layer(
        shared.model, _bert(LAB_MODEL.name), choices.text, min(chosen.layer, shared.model.layers - 1)
    )


@st.cache_resource(max_entries=1, show_spinner=False)
def _bert(name: str) -> Bert:
    """The bundled BERT from scratch, with the weights of the loaded one."""
    from analysis.lab.heads_split import from_scratch

    return from_scratch(cached.shared_model(LAB_MODEL.name, LAB_MODEL.revision).model)


def groups_html(heads: int, groups: int, *, chosen: int | None = None) -> str:
    """Which heads share keys and values: a box for each key–value head, with the heads that read it above.

    Args:
        chosen: head that stands out.
    """
    each = heads // groups
    boxes = []
    for group in range(groups):
        colour = HEAD_COLOURS[group % len(HEAD_COLOURS)]
        chips = "".join(
            f'<span style="border:1px solid {colour};border-radius:4px;padding:0 .4rem;'
            f'{f"background:{colour};color:#fff;font-weight:600" if head == chosen else ""}">Q{_below(head)}</span>'
            for head in range(group * each, (group + 1) * each)
        )
        boxes.append(
            f'<div style="border:1px solid var(--as-line,#8888);border-top:3px solid {colour};border-radius:4px;'
            'padding:.3rem .4rem;display:flex;flex-direction:column;gap:.25rem;align-items:center">'
            f'<div style="display:flex;flex-wrap:wrap;gap:.2rem;justify-content:center">{chips}</div>'
            f'<div style="line-height:1">↓</div><div><b>K{_below(group)} V{_below(group)}</b></div></div>'
        )
    words = f"{_way(heads, groups)}: " + "; ".join(
        f"keys and values {group} are read by heads {group * each} to {(group + 1) * each - 1}"
        if each > 1
        else f"keys and values {group} are read by head {group}"
        for group in range(groups)
    )
    return (
        f'<div role="img" aria-label="{escape(words)}" style="display:flex;flex-wrap:wrap;gap:.4rem;'
        f'font-size:.82rem;font-variant-numeric:tabular-nums">{"".join(boxes)}</div>'
    )


def _below(number: int) -> str:
    return f"<sub>{number}</sub>"


# Shared keys and values --------------------------------------------------------------------------------------------


def _cache(chosen: SplitChoices) -> tuple[LabFigure, ...]:
    from analysis.lab import heads_split

    heads, groups = _heads(chosen), _groups(chosen)
    ways = heads_split.sharings(
        heads, groups, head_width=chosen.width, layers=chosen.layers, element_bytes=int(chosen.bits) // 8
    )
    said = heads_split.sharing_conclusion(ways, chosen.tokens)
    sheet = heads_split.cache_sheet(ways, chosen.tokens)
    shared = heads_split.sharing_sheet(ways)
    st.markdown(literal(said))
    left, right = st.columns([6, 5], gap="medium")
    with left:
        for way in ways:
            heading(f"{way.name.capitalize()}: {heads} heads of queries, {way.groups} of keys and values")
            st.html(groups_html(heads, way.groups))
    with right:
        show_curves(sheet, key="lab_heads_cache_view")
    small_table(
        heads_split.SHARING_HEADER,
        heads_split.sharing_rows(ways, chosen.tokens),
        marked=next((index for index, way in enumerate(ways) if way.groups == groups), None),
    )
    note(
        "The cache holds the keys and values of every token so far; each new token reads all of it. Parameters are "
        "those of the four projections, without biases."
    )
    told: dict[str, Any] = {
        "input": f"sizes alone, {chosen.tokens:,} tokens",
        "method": f"{METHOD}; bytes by attn_core.cost.kv_cache_bytes",
        "settings": {
            "heads": heads,
            "key–value heads": groups,
            "width of a head": chosen.width,
            "layers": chosen.layers,
            "bits": chosen.bits,
            "tokens": chosen.tokens,
        },
        "notes": (said,),
    }
    return (LabFigure("Cache", sheet, **told), LabFigure("Who reads what", shared, **told))
