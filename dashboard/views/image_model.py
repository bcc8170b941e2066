"""Model view of a picture: the CLS map (or a patch's) of every head, as thumbnails; a click opens the head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import streamlit as st
from numpy.typing import NDArray

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
    drawn = [pooled(layer.maps) for layer in found]
    thumbnails, shapes = side_by_side(drawn)
    sizes = tuple((grid.rows, grid.columns) for grid in source.grids)
    view = ModelView(
        thumbnails=thumbnails,
        shapes=shapes,
        sizes=None if sizes == tuple(maps.shape[-2:] for maps in drawn) else sizes,
        cells="patches",
        selected=(choices.layer, focus_head(choices)),
        shared_scale=choices.shared_thumbnails,
        colour_map=choices.colour_map,
    )
    chosen = ("model", choices.patch, view.selected, view.shared_scale, view.colour_map)
    payload = cached.payload(source.key, chosen, lambda: figures.model_view_payload(view))
    header, _ = figures.read_header(payload)
    model_view(payload, key=KEY, on_change=partial(_said, header))
    note(f"Each thumbnail is the picture's patches as {_source_in_words(source, choices)} sees them.")
    for sentence in removed_in_words(source, np.concatenate([layer.removed for layer in found])):
        note(sentence)
    return view


def _source_in_words(source: ImageSource, choices: ImageChoices) -> str:
    """Whose attention is shown in every layer."""
    words = source_in_words(source, choices)
    if choices.patch is None or len(set(source.grids)) == 1:
        return words
    return f"{words} of the first layer, or the merged patch that covers it,"


def side_by_side(
    layers: Sequence[NDArray[Any]],
) -> tuple[NDArray[Any], tuple[tuple[int, int, int], ...] | None]:
    """(H, rows, columns) maps of each layer in one array, NaN where a layer is smaller, and the layers' shapes."""
    shapes = tuple((maps.shape[0], maps.shape[1], maps.shape[2]) for maps in layers)
    if len(set(shapes)) == 1:
        return np.stack(layers), None
    largest = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
    together = np.full((len(layers), *largest), np.nan, dtype=np.float32)
    for held, maps in zip(together, layers, strict=True):
        held[: maps.shape[0], : maps.shape[1], : maps.shape[2]] = maps
    return together, shapes


def pooled(maps: Any) -> Any:
    """Maps with at most ``THUMBNAIL_CELLS`` cells a side, each the maximum of what it stands for, in proportion."""
    shrink = max(1.0, max(maps.shape[-2:]) / THUMBNAIL_CELLS)
    for axis in (-2, -1):
        length = maps.shape[axis]
        cells = max(1, round(length / shrink))
        if cells < length:
            starts = np.linspace(0, length, cells, endpoint=False).astype(np.intp)
            maps = np.maximum.reduceat(maps, starts, axis=axis)
    return maps


def _said(header: Mapping[str, Any]) -> None:
    said = checked_model_view(st.session_state.get(KEY), header)
    if "shared_scale" in said:
        choose("image", shared_thumbnails=said["shared_scale"])
    if said["open"] is not None:
        layer, head = said["open"]["layer"], said["open"]["head"]
        choose("image", layer=layer, heads=(head,), aggregation="head", view="attention")
