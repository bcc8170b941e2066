"""Rollout: attention followed through the layers, as one token's row over the text or as the whole matrix."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import streamlit as st

from analysis.figure_data import Floats, MatrixView, TokenScores
from analysis.visible import above_in_words, above_scale, matrix_limits, ordinary_limits, score_limits
from dashboard import cached, charts, figures
from dashboard.components import checked_token_strip, token_strip
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
    rollout_tools("text", choices, layers=source.part(choices.part).layers)
    colour_choice("text", choices.colour_map)


def show(source: TextSource, choices: TextChoices) -> MatrixView | TokenScores | None:
    """Draw the view; returns the record of what is on the screen, None when there is nothing to roll out."""
    info = source.part(choices.part)
    if choices.part == "cross":
        others = "choose the encoder or the decoder" if len(source.parts) > 1 else "this model has none"
        note(f"Rollout follows self-attention from layer to layer; {others}.")
        return None
    last = info.layers - 1 if choices.rollout_layer is None else choices.rollout_layer
    weights = source.rollout(
        choices.part, fusion=choices.fusion, discard_ratio=choices.discard_ratio, last_layer=last
    )
    title = f"rollout through layers 0 to {last}, {choices.fusion} of {info.heads} heads"
    if choices.rollout_shows == "matrix":
        matrix = whole(weights, info, choices, title)
        with _scale_row(weights, info, choices):
            _note_above(matrix)
        draw(source, choices, matrix, key=MATRIX_KEY)
        return matrix
    scores = row(weights, source, choices, title)
    with _scale_row(weights, info, choices):
        beyond = above_scale(scores.scores, score_limits(scores)).any()
        note(above_in_words(scores) if beyond else "Click a token to see what reaches it.")
    _strip(source, choices, scores)
    if len(info.rows) > BESIDE_TOKENS:
        _bars(scores)
        return scores
    with st.container(key="text_rollout_below"):
        left, right = st.columns(2, gap="medium")
    with left:
        _bars(scores, labelled=BESIDE_TOKENS)
    with right:
        draw(source, choices, whole(weights, info, choices, "every token's row"), key=BESIDE_KEY)
    return scores


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


def row(weights: Floats, source: TextSource, choices: TextChoices, title: str) -> TokenScores:
    """The record of one token's row: the pinned query's, else that of the first token."""
    info = source.part(choices.part)
    token = choices.pinned[1] if choices.pinned and choices.pinned[0] == "left" else 0
    return TokenScores(
        scores=weights[token],
        tokens=info.columns,
        title=title,
        source=token,
        limits=_limits(weights[token], info, choices),
        colour_map=choices.colour_map,
        unit=UNIT,
        direction=source.direction,
        scale=choices.colour_scale,
    )


def _note_above(matrix: MatrixView) -> None:
    above = above_scale(matrix.weights, matrix_limits(matrix))
    if above.any():
        share = float(matrix.weights[above].sum()) / len(matrix.rows)
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


def _strip(source: TextSource, choices: TextChoices, scores: TokenScores) -> None:
    chosen = (
        "strip",
        scores.title,
        choices.part,
        scores.source,
        scores.limits,
        scores.colour_map,
        scores.scale,
        choices.discard_ratio,
    )
    payload = cached.payload(source.key, chosen, lambda: figures.token_strip_payload(scores))
    header, _ = figures.read_header(payload)
    token_strip(payload, key=STRIP_KEY, on_change=partial(_said, header))


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


def _said(header: Mapping[str, Any]) -> None:
    said = checked_token_strip(st.session_state.get(STRIP_KEY), header)
    if said["token"] is not None:
        choose("text", pinned=("left", said["token"]))
    if "scale" in said:
        choose("text", colour_scale=said["scale"])
