"""Model view: every head of every layer as a thumbnail; a click opens it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import streamlit as st

from analysis.figure_data import ModelView
from dashboard import cached, figures
from dashboard.components import checked_model_view, model_view
from dashboard.frame import colour_choice
from dashboard.selection import TextChoices, choose, current, focus_head
from dashboard.sources import TextSource

KEY = "text_model_view"


def tools(source: TextSource, choices: TextChoices) -> None:
    """Colours."""
    colour_choice("text", choices.colour_map)


def show(source: TextSource, choices: TextChoices) -> ModelView:
    """Draw the view; returns the record of what is on the screen."""
    info = source.part(choices.part)
    view = record(source, choices)

    def build() -> bytes:
        numbers = [source.numbers(choices.part, layer) for layer in range(info.layers)]
        entropy = np.stack([layer.entropy for layer in numbers])
        return figures.model_view_payload(view, entropy=entropy)

    chosen = ("model", choices.part, view.selected, view.shared_scale, view.colour_map)
    payload = cached.payload(source.key, chosen, build)
    header, _ = figures.read_header(payload)
    model_view(payload, key=KEY, on_change=partial(_said, header))
    return view


def record(source: TextSource, choices: TextChoices) -> ModelView:
    """The record of the view."""
    info = source.part(choices.part)
    thumbnails, size = source.thumbnails(choices.part), (len(info.rows), len(info.columns))
    return ModelView(
        thumbnails=thumbnails,
        selected=(choices.layer, focus_head(choices)),
        shared_scale=choices.shared_scale,
        colour_map=choices.colour_map,
        groups=info.groups,
        kind=choices.part,
        sizes=None if thumbnails.shape[2:] == size else (size,) * info.layers,
    )


def _said(header: Mapping[str, Any]) -> None:
    """Open the head that was clicked, in the head view."""
    said = checked_model_view(st.session_state.get(KEY), header)
    if "shared_scale" in said:
        choose("text", shared_scale=said["shared_scale"])
    if said["open"] is not None:
        layer, head = said["open"]["layer"], said["open"]["head"]
        choose("text", layer=layer, heads=(head,), aggregation="head", view=current().text.open_in)
