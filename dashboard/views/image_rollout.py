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
    if not one_grid(source):
        return
    rollout_tools("image", choices, layers=source.layers)
    colour_choice("image", choices.colour_map)


def one_grid(source: ImageSource) -> bool:
    """Whether all layers hold the same patches, so that their maps can be multiplied."""
    return len(set(source.grids)) == 1


def show(source: ImageSource, choices: ImageChoices) -> PatchMaps | None:
    """Draw the view; returns the record of what is on the screen, None when there is nothing to roll out."""
    if not one_grid(source):
        sizes = dict.fromkeys(f"{grid.rows} × {grid.columns}" for grid in source.grids)
        note(
            "Rollout multiplies the maps of all layers, so every layer must hold the same patches. This model merges "
            f"patches between its stages ({', '.join(sizes)}): what a later layer mixes are no longer the patches "
            "that an earlier one mixed. Choose Attention or Model view to see each layer on its own grid."
        )
        return None
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
    draw(source, choices, view, key=KEY, name="rollout", titles=(title,), layer=last)
    for sentence in removed_in_words(source, found.removed):
        note(sentence)
    return view
