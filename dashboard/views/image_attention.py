"""Attention of CLS, or of a clicked patch, over the picture: one head, the mean, or all heads side by side."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from analysis.figure_data import PatchMaps
from dashboard import cached, figures
from dashboard.components import patch_map, patch_map_state
from dashboard.frame import colour_choice, note
from dashboard.selection import ImageChoices, choose, focus_head
from dashboard.sources import ImageSource, LayerGrid, PatchRows
from dashboard.views.layer_tools import layer_tools

KEY = "image_patch_map"


def tools(source: ImageSource, choices: ImageChoices) -> None:
    """Layer, heads, colours."""
    heads = source.heads[choices.layer]
    layer_tools("image", choices, layers=source.layers, heads=heads, together=("all", "mean"))
    colour_choice("image", choices.colour_map)


def show(source: ImageSource, choices: ImageChoices) -> PatchMaps:
    """Draw the view; returns the record of what is on the screen."""
    found = source.rows(choices.layer, choices.patch)
    maps, titles, removed = panels(found, choices)
    view = PatchMaps(
        picture=source.picture_of(choices.layer),
        maps=maps,
        titles=titles,
        marked=cell_of(source, choices, choices.layer),
        opacity=choices.opacity,
        colour_map=choices.colour_map,
        shared_scale=choices.shared_scale,
        smooth=choices.smooth,
        unit=f"attention weight (a row sums to 1{', with padding' if source.windowed else ''})",
    )
    draw(source, choices, view, key=KEY, name="attention", titles=titles, layer=choices.layer)
    for sentence in (*removed_in_words(source, removed), *beyond_in_words(source, choices.layer)):
        note(sentence)
    return view


def cell_of(source: ImageSource, choices: ImageChoices, layer: int) -> tuple[int, int] | None:
    """The chosen patch as a layer holds it; None for CLS or the mean row."""
    return None if choices.patch is None else source.grids[layer].cell(choices.patch)


def panels(found: PatchRows, choices: ImageChoices) -> tuple[Any, tuple[str, ...], Any]:
    """Maps (M, rows, columns), titles, and removed shares (M,) of the chosen heads."""
    if choices.aggregation == "mean":
        title = f"mean of {len(found.maps)} heads"
        return found.maps.mean(axis=0)[None], (title,), found.removed.mean(axis=0)[None]
    if choices.aggregation == "head":
        head = focus_head(choices)
        return found.maps[head : head + 1], (f"head {head}",), found.removed[head : head + 1]
    return found.maps, tuple(f"head {head}" for head in range(len(found.maps))), found.removed


def draw(
    source: ImageSource,
    choices: ImageChoices,
    view: PatchMaps,
    *,
    key: str,
    name: str,
    titles: tuple[str, ...],
    layer: int,
) -> None:
    """Mount the component for a record of a layer's patches and take over what is chosen inside it."""
    chosen = (
        name,
        layer,
        titles,
        view.marked,
        view.opacity,
        view.colour_map,
        view.shared_scale,
        view.smooth,
        choices.fusion,
        choices.discard_ratio,
        choices.rollout_layer,
    )

    def build() -> bytes:
        has_cls = source.prefix_tokens > 0
        return figures.patch_map_payload(
            view,
            has_cls=has_cls,
            back="CLS" if has_cls else "the mean",
            source=source_in_words(source, choices, layer),
        )

    payload = cached.payload(source.key, chosen, build)
    header, _ = figures.read_header(payload)
    grids = source.grids[layer], source.grids[0]
    patch_map(payload, key=key, on_change=partial(_said, header, key, grids))


def _said(header: Mapping[str, Any], key: str, grids: tuple[LayerGrid, LayerGrid]) -> None:
    """Take over what was chosen; a patch is one of the layer that is shown and is kept as one of the first layer."""
    shown, first = grids
    said = patch_map_state(header, key=key)
    changes: dict[str, Any] = {
        name: said[name] for name in ("opacity", "smooth", "shared_scale") if name in said
    }
    if "patch" in said:
        cell = said["patch"]
        changes["patch"] = None if cell is None else shown.patch((cell[0], cell[1]), first)
    if said.get("panel") is not None and header["titles"][said["panel"]].startswith("head "):
        changes |= {"aggregation": "head", "heads": (said["panel"],)}
    choose("image", **changes)


def source_in_words(source: ImageSource, choices: ImageChoices, layer: int = 0) -> str:
    """Whose attention is shown; a patch by its place in a layer."""
    cell = cell_of(source, choices, layer)
    if cell is not None:
        return f"patch row {cell[0]}, column {cell[1]}"
    return "CLS" if source.prefix_tokens else "the mean over all patches (this model has no CLS token)"


def removed_in_words(source: ImageSource, removed: Any) -> tuple[str, ...]:
    """How much of the rows has no place in the picture, and where it falls; and what stands for a missing CLS."""
    shares = np.atleast_1d(removed)
    low, high = float(shares.min()), float(shares.max())
    share = f"{high:.1%}" if high - low < 0.0005 else f"{low:.1%} to {high:.1%}"
    if not source.prefix_tokens:
        mean = (
            "This model has no CLS token: without a clicked patch, the mean over all patches' rows is shown."
        )
        if not source.windowed or high < 0.0005:
            return (mean,)
        return (mean, f"Not drawn: {share} of the weight falls on the padding that fills the last windows.")
    tokens = (
        "the CLS token" if source.prefix_tokens == 1 else f"CLS and {source.prefix_tokens - 1} further tokens"
    )
    verb = "has" if source.prefix_tokens == 1 else "have"
    return (f"Not drawn: {share} of the weight falls on {tokens}, which {verb} no place in the picture.",)


def beyond_in_words(source: ImageSource, layer: int) -> tuple[str, ...]:
    """What the grey strips are, where a layer's patches reach beyond the picture."""
    if source.picture_of(layer).shape == source.picture.shape:
        return ()
    return (
        f"Each patch of layer {layer} stands for {source.grids[layer].stride} × {source.grids[layer].stride} of the "
        "first layer; those at the edge reach beyond the picture (grey), where the model adds zeros.",
    )
