"""Attention rollout of CLS, or of a clicked patch, over the picture."""

from __future__ import annotations

from analysis.figure_data import PatchMaps
from dashboard.frame import colour_choice, note
from dashboard.selection import ImageChoices
from dashboard.sources import ImageSource
from dashboard.views.image_attention import draw, removed_in_words
from dashboard.views.rollout_tools import rollout_tools

KEY = "image_rollout_map"


def tools(source: ImageSource, choices: ImageChoices) -> None:
    """Fusion, discard ratio, last layer, colours."""
    rollout_tools("image", choices, layers=source.layers)
    colour_choice("image", choices.colour_map)


def show(source: ImageSource, choices: ImageChoices) -> PatchMaps:
    """Draw the view; returns the record of what is on the screen."""
    last = source.layers - 1 if choices.rollout_layer is None else choices.rollout_layer
    found = source.rollout(
        choices.patch, fusion=choices.fusion, discard_ratio=choices.discard_ratio, last_layer=last
    )
    title = f"rollout, layers 0 to {last}"
    view = PatchMaps(
        picture=source.picture,
        maps=found.maps[None],
        titles=(title,),
        marked=choices.patch,
        opacity=choices.opacity,
        colour_map=choices.colour_map,
        smooth=choices.smooth,
        unit="share of the rollout (a row sums to 1)",
    )
    draw(source, choices, view, key=KEY, name="rollout", titles=(title,))
    note(removed_in_words(source, found.removed))
    return view
