"""Matrix: the weights of one head, or the mean over a layer's heads, queries down and keys across."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import streamlit as st

from analysis.figure_data import MatrixView
from dashboard import cached, figures
from dashboard.components import matrix_view, matrix_view_state
from dashboard.frame import choice, colour_choice
from dashboard.selection import TextChoices, choose, focus_head
from dashboard.sources import TextSource

KEY = "text_matrix_view"


def tools(source: TextSource, choices: TextChoices) -> None:
    """Layer, head or mean, colours."""
    info = source.part(choices.part)
    choice(
        "Layer",
        range(info.layers),
        choices.layer,
        key="text_layer",
        on_change=lambda: choose("text", layer=st.session_state["text_layer"]),
        words=lambda layer: f"Layer {layer}",
        width=110,
    )
    choice(
        "Head",
        ["mean", *range(info.heads)],
        "mean" if choices.aggregation == "mean" else focus_head(choices),
        key="text_head",
        on_change=_head_picked,
        words=lambda head: "Mean of heads" if head == "mean" else f"Head {head}",
        width=150,
    )
    colour_choice("text", choices.colour_map)


def _head_picked() -> None:
    head = st.session_state["text_head"]
    if head == "mean":
        choose("text", aggregation="mean")
    else:
        choose("text", aggregation="head", heads=(head,))


def show(source: TextSource, choices: TextChoices) -> MatrixView:
    """Draw the view; returns the record of what is on the screen."""
    info = source.part(choices.part)
    head = None if choices.aggregation == "mean" else focus_head(choices)
    heads = f"mean of {info.heads} heads" if head is None else f"head {head}"
    view = MatrixView(
        weights=source.matrix(choices.part, choices.layer, head),
        rows=info.rows,
        columns=info.columns,
        title=f"layer {choices.layer} · {heads}",
        zoom=choices.zoom,
        colour_map=choices.colour_map,
        scale=choices.colour_scale,
        selected=choices.cell,
    )
    draw(source, choices, view, key=KEY)
    return view


def draw(source: TextSource, choices: TextChoices, view: MatrixView, *, key: str) -> None:
    """Mount the component for a record and take over what is chosen inside it."""
    chosen = (
        "matrix",
        view.title,
        choices.part,
        view.zoom,
        view.selected,
        view.scale,
        view.colour_map,
        choices.fusion,
        choices.discard_ratio,
    )
    payload = cached.payload(source.key, chosen, lambda: figures.matrix_view_payload(view))
    header, _ = figures.read_header(payload)
    matrix_view(payload, key=key, on_change=partial(_said, header, key))


def _said(header: Mapping[str, Any], key: str) -> None:
    said = matrix_view_state(header, key=key)
    changes: dict[str, Any] = {}
    if "zoom" in said:
        changes["zoom"] = None if said["zoom"] is None else tuple(said["zoom"])
    if "selected" in said:
        changes["cell"] = None if said["selected"] is None else tuple(said["selected"])
        changes["pinned"] = None if said["selected"] is None else ("left", said["selected"][0])
    if "scale" in said:
        changes["colour_scale"] = said["scale"]
    choose("text", **changes)
