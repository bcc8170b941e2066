"""Rollout: attention followed through the layers, as one token's row over the text or as the whole matrix."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import streamlit as st

from analysis.figure_data import MatrixView, TokenScores
from dashboard import cached, charts, figures
from dashboard.components import checked_token_strip, token_strip
from dashboard.frame import choice, colour_choice, note
from dashboard.selection import TextChoices, choose
from dashboard.sources import TextSource
from dashboard.views.rollout_tools import rollout_tools
from dashboard.views.text_matrix import draw

MATRIX_KEY = "text_rollout_matrix"
STRIP_KEY = "text_rollout_strip"
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
        note("Rollout follows self-attention from layer to layer; choose the encoder or the decoder.")
        return None
    last = info.layers - 1 if choices.rollout_layer is None else choices.rollout_layer
    weights = source.rollout(
        choices.part, fusion=choices.fusion, discard_ratio=choices.discard_ratio, last_layer=last
    )
    title = f"rollout through layers 0 to {last}, {choices.fusion} of {info.heads} heads"
    if choices.rollout_shows == "matrix":
        matrix = MatrixView(
            weights=weights,
            rows=info.rows,
            columns=info.columns,
            title=title,
            zoom=choices.zoom,
            colour_map=choices.colour_map,
            unit=UNIT,
            selected=choices.cell,
            scale=choices.colour_scale,
        )
        draw(source, choices, matrix, key=MATRIX_KEY)
        return matrix
    token = choices.pinned[1] if choices.pinned and choices.pinned[0] == "left" else 0
    scores = TokenScores(
        scores=weights[token],
        tokens=info.columns,
        title=title,
        source=token,
        colour_map=choices.colour_map,
        unit=UNIT,
        direction=source.direction,
        scale=choices.colour_scale,
    )
    _strip(source, choices, scores)
    return scores


def _strip(source: TextSource, choices: TextChoices, scores: TokenScores) -> None:
    chosen = (
        "strip",
        scores.title,
        choices.part,
        scores.source,
        scores.colour_map,
        scores.scale,
        choices.discard_ratio,
    )
    payload = cached.payload(source.key, chosen, lambda: figures.token_strip_payload(scores))
    header, _ = figures.read_header(payload)
    token_strip(payload, key=STRIP_KEY, on_change=partial(_said, header))
    note("Click a token to see what reaches it.")
    st.plotly_chart(
        charts.token_scores_chart(scores), key="text_rollout_bars", theme=None, config={"displaylogo": False}
    )


def _said(header: Mapping[str, Any]) -> None:
    said = checked_token_strip(st.session_state.get(STRIP_KEY), header)
    if said["token"] is not None:
        choose("text", pinned=("left", said["token"]))
    if "scale" in said:
        choose("text", colour_scale=said["scale"])
