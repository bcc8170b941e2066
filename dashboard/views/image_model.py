"""Model view of a picture: the CLS map (or a patch's) of every head, as thumbnails; a click opens the head."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import streamlit as st

from analysis.figure_data import ModelView
from dashboard import cached, figures
from dashboard.components import checked_model_view, model_view
from dashboard.frame import colour_choice, note
from dashboard.selection import ImageChoices, choose, focus_head
from dashboard.sources import THUMBNAIL_CELLS, ImageSource
from dashboard.views.image_attention import removed_in_words, source_in_words

KEY = "image_model_view"


def tools(source: ImageSource, choices: ImageChoices) -> None:
    """Colours."""
    colour_choice("image", choices.colour_map)


def show(source: ImageSource, choices: ImageChoices) -> ModelView:
    """Draw the view; returns the record of what is on the screen."""
    found = source.all_rows(choices.patch)
    view = ModelView(
        thumbnails=pooled(found.maps),
        selected=(choices.layer, focus_head(choices)),
        shared_scale=choices.shared_thumbnails,
        colour_map=choices.colour_map,
    )

    def build() -> bytes:
        return figures.model_view_payload(view, tokens=source.grid)

    chosen = ("model", choices.patch, view.selected, view.shared_scale, view.colour_map)
    payload = cached.payload(source.key, chosen, build)
    header, _ = figures.read_header(payload)
    model_view(payload, key=KEY, on_change=partial(_said, header))
    note(f"Each thumbnail is the picture's patches as {source_in_words(source, choices)} sees them.")
    note(removed_in_words(source, found.removed))
    return view


def pooled(maps: Any) -> Any:
    """Maps with at most ``THUMBNAIL_CELLS`` cells a side, each the maximum of what it stands for."""
    import numpy as np

    for axis in (-2, -1):
        length = maps.shape[axis]
        if length > THUMBNAIL_CELLS:
            starts = np.linspace(0, length, THUMBNAIL_CELLS, endpoint=False).astype(np.intp)
            maps = np.maximum.reduceat(maps, starts, axis=axis)
    return maps


def _said(header: Mapping[str, Any]) -> None:
    said = checked_model_view(st.session_state.get(KEY), header)
    if "shared_scale" in said:
        choose("image", shared_thumbnails=said["shared_scale"])
    if said["open"] is not None:
        layer, head = said["open"]["layer"], said["open"]["head"]
        choose("image", layer=layer, heads=(head,), aggregation="head", view="attention")
