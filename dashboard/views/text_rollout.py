"""Rollout: attention followed through the layers, as one token's row over the text or as the whole matrix."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import streamlit as st

from analysis.figure_data import Floats, MatrixView, TokenScores
from analysis.visible import (
    above_in_words,
    above_scale,
    matrix_limits,
    ordinary_limits,
    score_limits,
    short_label,
)
from dashboard import cached, charts, figures
from dashboard.components import checked_token_strip, token_strip
from dashboard.document_places import document_map, is_long, part_of, place_tools
from dashboard.frame import choice, colour_choice, note
from dashboard.selection import TextChoices, bound, choose
from dashboard.sources import PartInfo, TextSource
from dashboard.views.rollout_tools import rollout_tools
from dashboard.views.text_matrix import draw

MATRIX_KEY = "text_rollout_matrix"
BESIDE_KEY = "text_rollout_beside_matrix"
STRIP_KEY = "text_rollout_strip"
BESIDE_TOKENS = 48
"""Longest text whose whole matrix stands beside the bars of one row."""
SHOWS = {"row": "One token's row", "matrix": "Whole matrix"}
UNIT = "share of the rollout (a row sums to 1)"


def tools(source: TextSource, choices: TextChoices) -> None:
    """What is shown, fusion, discard ratio, last layer, colours."""
    choice(
        "Show",
        list(SHOWS),
        choices.rollout_shows,
        key="text_rollout_shows",
        on_change=lambda: choose("text", rollout_shows=st.session_state["text_rollout_shows"]),
        words=lambda name: SHOWS[name],
        width=145,
    )
    info = source.part(choices.part)
    rollout_tools("text", choices, layers=info.layers)
    colour_choice("text", choices.colour_map)
    if choices.part != "cross":
        place_tools(info.columns, choices, keep_pinned=True)  # a row may be followed through all parts


def show(source: TextSource, choices: TextChoices) -> MatrixView | TokenScores | None:
    """Draw the view; returns the record of what is on the screen, None when there is nothing to roll out."""
    info = source.part(choices.part)
    if choices.part == "cross":
        others = "choose the encoder or the decoder" if len(source.parts) > 1 else "this model has none"
        note(f"Rollout follows self-attention from layer to layer; {others}.")
        return None
    last = info.layers - 1 if choices.rollout_layer is None else choices.rollout_layer
    title = f"rollout through layers 0 to {last}, {choices.fusion} of {info.heads} heads"
    if choices.rollout_shows == "matrix" and source.rollout_fits(choices.part):
        weights = _whole_weights(source, choices, last)
        matrix = whole(weights, info, choices, title)
        with _scale_row(weights, info, choices):
            _note_above(weights, matrix)
        draw(source, choices, matrix, key=MATRIX_KEY)
        return matrix
    if choices.rollout_shows == "matrix":
        note(
            f"The whole rollout of {len(info.rows):,} tokens does not fit the memory budget on the left; below is "
            "one token's row, followed from layer to layer without it."
        )
    scores = row(source, choices, title, last)
    with _scale_row(scores.scores, info, choices):
        beyond = above_scale(scores.scores, score_limits(scores)).any()
        note(above_in_words(scores) if beyond else "Click a token to see what reaches it.")
    if is_long(len(scores.tokens)):
        with st.container(key="text_document"):
            _along(scores, choices)
            shown = part_of(len(scores.tokens), choices.window)
            scores = part_of_scores(scores, shown)
            _strip(source, choices, scores, shown.start)
        return scores  # the part: a file of thousands of tokens would take minutes
    _strip(source, choices, scores, 0)
    if len(info.rows) > BESIDE_TOKENS:
        _bars(scores)
        return scores
    with st.container(key="text_rollout_below"):
        left, right = st.columns(2, gap="medium")
    with left:
        _bars(scores, labelled=BESIDE_TOKENS)
    with right:
        every = whole(_whole_weights(source, choices, last), info, choices, "every token's row")
        draw(source, choices, every, key=BESIDE_KEY)
    return scores


def _whole_weights(source: TextSource, choices: TextChoices, last: int) -> Floats:
    return source.rollout(
        choices.part, fusion=choices.fusion, discard_ratio=choices.discard_ratio, last_layer=last
    )


def whole(weights: Floats, info: PartInfo, choices: TextChoices, title: str) -> MatrixView:
    """The record of the whole matrix."""
    return MatrixView(
        weights=weights,
        rows=info.rows,
        columns=info.columns,
        title=title,
        zoom=choices.zoom,
        limits=_limits(weights, info, choices),
        colour_map=choices.colour_map,
        unit=UNIT,
        selected=choices.cell,
        scale=choices.colour_scale,
    )


def row(source: TextSource, choices: TextChoices, title: str, last: int) -> TokenScores:
    """The record of one token's row."""
    info = source.part(choices.part)
    token = source_token(choices, len(info.rows))
    weights = source.rollout_row(
        choices.part,
        token,
        fusion=choices.fusion,
        discard_ratio=choices.discard_ratio,
        last_layer=last,
    )
    return TokenScores(
        scores=weights,
        tokens=info.columns,
        title=title,
        source=token,
        limits=_limits(weights, info, choices),
        colour_map=choices.colour_map,
        unit=UNIT,
        direction=source.direction,
        scale=choices.colour_scale,
    )


def source_token(choices: TextChoices, tokens: int) -> int:
    """Whose row is followed: the pinned query, else the last of a decoder, the only one that all can reach, else the
    first.
    """
    if choices.pinned is not None and choices.pinned[0] == "left":
        return choices.pinned[1]
    return tokens - 1 if choices.part == "decoder" else 0


def _along(scores: TokenScores, choices: TextChoices) -> None:
    """The row along the whole text; special tokens, which take most of it, only where their colours count."""
    along = scores.scores
    if not choices.special_in_scale:
        special = np.array([token.special for token in scores.tokens])
        along = np.where(special, np.float32(0), along)
    document_map("text_rollout", along, choices, signed=False, direction=scores.direction)


def part_of_scores(scores: TokenScores, shown: slice) -> TokenScores:
    """The scores of a part of a text, in the colours of the whole."""
    at = scores.source
    inside = at is not None and shown.start <= at < shown.stop
    elsewhere = (
        "" if at is None or inside else f", row of token {at:,} “{short_label(scores.tokens[at].text)}”"
    )
    return replace(
        scores,
        scores=scores.scores[shown],
        tokens=scores.tokens[shown],
        source=at - shown.start if at is not None and inside else None,
        limits=score_limits(scores),
        title=f"{scores.title}, tokens {shown.start:,} to {shown.stop - 1:,}{elsewhere}",
        start=scores.start + shown.start,
    )


def _note_above(weights: Floats, matrix: MatrixView) -> None:
    above = above_scale(weights, matrix_limits(matrix))
    if above.any():
        share = float(weights[above].sum()) / len(matrix.rows)
        note(
            f"{int(above.sum()):,} of {above.size:,} cells lie above the colour scale, "
            f"which ends at {matrix_limits(matrix)[1]:.3g}; they hold {share:.1%} of the rows."
        )


def _limits(values: Floats, info: PartInfo, choices: TextChoices) -> tuple[float, float] | None:
    return None if choices.special_in_scale else ordinary_limits(values, info.columns)


def _scale_row(weights: Floats, info: PartInfo, choices: TextChoices) -> Any:
    """A slim row above the picture with the choice of what the colours are stretched to, where there is one."""
    place = st.container(horizontal=True, vertical_alignment="center", key="text_rollout_scale")
    if ordinary_limits(weights, info.columns) is not None:
        place.toggle(
            "Special tokens in the colour scale",
            **bound("text_special_in_scale", choices.special_in_scale),
            on_change=lambda: choose("text", special_in_scale=st.session_state["text_special_in_scale"]),
            help="Off: the scale ends at the largest value of an ordinary token. Numbers stay as they are.",
            width="content",
        )
    return place


def _strip(source: TextSource, choices: TextChoices, scores: TokenScores, first: int) -> None:
    """The coloured text; ``first`` is the position of its first token."""
    chosen = (
        "strip",
        scores.title,
        choices.part,
        scores.source,
        scores.limits,
        scores.colour_map,
        scores.scale,
        choices.discard_ratio,
        first,
        choices.pinned,
    )
    payload = cached.payload(source.key, chosen, lambda: figures.token_strip_payload(scores))
    header, _ = figures.read_header(payload)
    token_strip(payload, key=STRIP_KEY, on_change=partial(_said, header, first))


def _bars(scores: TokenScores, *, labelled: int = charts.LABELLED_BARS) -> None:
    with st.container(key="text_rollout_bars"):
        st.plotly_chart(
            charts.token_scores_chart(scores, labelled=labelled),
            key="text_rollout_chart",
            height="stretch",
            theme=None,
            config={"displaylogo": False},
            alt="The same scores as bars",
        )


def _said(header: Mapping[str, Any], first: int) -> None:
    said = checked_token_strip(st.session_state.get(STRIP_KEY), header)
    if said["token"] is not None:
        choose("text", pinned=("left", said["token"] + first))
    if "scale" in said:
        choose("text", colour_scale=said["scale"])
