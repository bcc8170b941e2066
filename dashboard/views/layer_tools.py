"""The controls of a view of one layer, the same on both pages: which layer, which head or all of them together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Literal

import streamlit as st

from dashboard.frame import choice
from dashboard.selection import ImageChoices, TextChoices, choose, focus_head

TOGETHER_WORDS: Mapping[str, str] = {"all": "All heads", "mean": "Mean of heads"}


def layer_tools(
    page: Literal["text", "image"],
    choices: TextChoices | ImageChoices,
    *,
    layers: int,
    heads: int,
    together: Sequence[Literal["all", "mean"]],
) -> None:
    """Layer, and one head or a way to show them together.

    Args:
        layers: of the model's part that is shown.
        heads: of the chosen layer.
        together: the ways that the view has.
    """
    choice(
        "Layer",
        range(layers),
        choices.layer,
        key=f"{page}_layer",
        on_change=partial(_layer_picked, page),
        words=lambda layer: f"Layer {layer}",
        width=110,
    )
    choice(
        "Head",
        [*together, *range(heads)],
        focus_head(choices) if choices.aggregation == "head" else choices.aggregation,
        key=f"{page}_head",
        on_change=partial(_head_picked, page),
        words=lambda head: TOGETHER_WORDS.get(head, f"Head {head}"),
        width=150,
    )


def _layer_picked(page: Literal["text", "image"]) -> None:
    choose(page, layer=st.session_state[f"{page}_layer"])


def _head_picked(page: Literal["text", "image"]) -> None:
    head = st.session_state[f"{page}_head"]
    if head in TOGETHER_WORDS:
        choose(page, aggregation=head)
    else:
        choose(page, aggregation="head", heads=(head,))
