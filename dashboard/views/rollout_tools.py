"""The controls of a rollout, the same on both pages."""

from __future__ import annotations

from functools import partial
from typing import Literal, get_args

import streamlit as st

from dashboard.frame import choice
from dashboard.selection import Fusion, ImageChoices, TextChoices, choose

FUSION_WORDS = {"mean": "Mean heads", "max": "Max heads", "min": "Min heads"}
RATIOS = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95)


def rollout_tools(
    page: Literal["text", "image"], choices: TextChoices | ImageChoices, *, layers: int
) -> None:
    """Fusion of heads, share of weak weights that is discarded, last layer."""
    last = layers - 1 if choices.rollout_layer is None else choices.rollout_layer
    choice(
        "Fusion of heads",
        get_args(Fusion),
        choices.fusion,
        key=f"{page}_fusion",
        on_change=partial(_picked, page, "fusion"),
        words=lambda fusion: FUSION_WORDS[fusion],
        width=125,
    )
    choice(
        "Discarded weights",
        sorted({*RATIOS, choices.discard_ratio}),
        choices.discard_ratio,
        key=f"{page}_discard_ratio",
        on_change=partial(_picked, page, "discard_ratio"),
        words=lambda ratio: f"Discard {ratio:.0%}" if ratio else "Discard none",
        width=145,
        help="Share of the weakest weights of each layer that is set to zero before the layers are multiplied",
    )
    choice(
        "Last layer",
        range(layers),
        last,
        key=f"{page}_rollout_layer",
        on_change=partial(_picked, page, "rollout_layer"),
        words=lambda layer: f"Layers 0 to {layer}" if layer else "Layer 0",
        width=130,
    )


def _picked(page: Literal["text", "image"], name: str) -> None:
    choose(page, **{name: st.session_state[f"{page}_{name}"]})
