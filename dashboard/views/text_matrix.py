"""Matrix: the weights of one head, or the mean over a layer's heads, queries down and keys across."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from analysis.figure_data import MatrixView
from dashboard import cached, figures
from dashboard.components import matrix_view, matrix_view_state
from dashboard.frame import colour_choice
from dashboard.selection import TextChoices, choose, focus_head
from dashboard.sources import TextSource
from dashboard.views.layer_tools import layer_tools

KEY = "text_matrix_view"


def tools(source: TextSource, choices: TextChoices) -> None:
    """Layer, head or mean, colours."""
    info = source.part(choices.part)
    layer_tools("text", choices, layers=info.layers, heads=info.heads, together=("mean",))
    colour_choice("text", choices.colour_map)


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
        view.limits,
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
