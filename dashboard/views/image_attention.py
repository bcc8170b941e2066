"""Attention of CLS, or of a clicked patch, over the picture: one head, the mean, or all heads side by side."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np
import streamlit as st

from analysis.figure_data import PatchMaps
from dashboard import cached, figures
from dashboard.components import patch_map, patch_map_state
from dashboard.frame import choice, colour_choice, note
from dashboard.selection import ImageChoices, choose, focus_head
from dashboard.sources import ImageSource, PatchRows

KEY = "image_patch_map"


def tools(source: ImageSource, choices: ImageChoices) -> None:
    """Layer, heads, colours."""
    choice(
        "Layer",
        range(source.layers),
        choices.layer,
        key="image_layer",
        on_change=lambda: choose("image", layer=st.session_state["image_layer"]),
        words=lambda layer: f"Layer {layer}",
        width=110,
    )
    heads = ["all", "mean", *range(source.heads)]
    choice(
        "Heads",
        heads,
        focus_head(choices) if choices.aggregation == "head" else choices.aggregation,
        key="image_head",
        on_change=_head_picked,
        words=lambda head: {"all": "All heads", "mean": "Mean of heads"}.get(head, f"Head {head}"),
        width=150,
    )
    colour_choice("image", choices.colour_map)


def _head_picked() -> None:
    head = st.session_state["image_head"]
    if head in ("all", "mean"):
        choose("image", aggregation=head)
    else:
        choose("image", aggregation="head", heads=(head,))


def show(source: ImageSource, choices: ImageChoices) -> PatchMaps:
    """Draw the view; returns the record of what is on the screen."""
    found = source.rows(choices.layer, choices.patch)
    maps, titles, removed = panels(found, choices)
    view = PatchMaps(
        picture=source.picture,
        maps=maps,
        titles=titles,
        marked=choices.patch,
        opacity=choices.opacity,
        colour_map=choices.colour_map,
        shared_scale=choices.shared_scale,
        smooth=choices.smooth,
        unit="attention weight (a row sums to 1)",
    )
    draw(source, choices, view, key=KEY, name="attention", titles=titles)
    note(removed_in_words(source, removed))
    return view


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
) -> None:
    """Mount the component for a record and take over what is chosen inside it."""
    chosen = (
        name,
        choices.layer,
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
        return figures.patch_map_payload(
            view, has_cls=source.prefix_tokens > 0, source=source_in_words(source, choices)
        )

    payload = cached.payload(source.key, chosen, build)
    header, _ = figures.read_header(payload)
    patch_map(payload, key=key, on_change=partial(_said, header, key))


def _said(header: Mapping[str, Any], key: str) -> None:
    said = patch_map_state(header, key=key)
    changes: dict[str, Any] = {
        name: said[name] for name in ("opacity", "smooth", "shared_scale") if name in said
    }
    if "patch" in said:
        changes["patch"] = None if said["patch"] is None else tuple(said["patch"])
    if said.get("panel") is not None and header["titles"][said["panel"]].startswith("head "):
        changes |= {"aggregation": "head", "heads": (said["panel"],)}
    choose("image", **changes)


def source_in_words(source: ImageSource, choices: ImageChoices) -> str:
    """Whose attention is shown."""
    if choices.patch is not None:
        return f"patch row {choices.patch[0]}, column {choices.patch[1]}"
    return "CLS" if source.prefix_tokens else "the mean over all patches (this model has no CLS token)"


def removed_in_words(source: ImageSource, removed: Any) -> str:
    """How much of the rows falls on prefix tokens, which have no place in the picture."""
    if not source.prefix_tokens:
        return (
            "This model has no CLS token: without a clicked patch, the mean over all patches' rows is shown."
        )
    shares = np.atleast_1d(removed)
    low, high = float(shares.min()), float(shares.max())
    share = f"{high:.1%}" if high - low < 0.0005 else f"{low:.1%} to {high:.1%}"
    tokens = (
        "the CLS token" if source.prefix_tokens == 1 else f"CLS and {source.prefix_tokens - 1} further tokens"
    )
    verb = "has" if source.prefix_tokens == 1 else "have"
    return f"Not drawn: {share} of the weight falls on {tokens}, which {verb} no place in the picture."
