"""BertViz's own head and model views beside ours, offline, for inputs that a browser can bear."""

from __future__ import annotations

from typing import Literal

import numpy as np
import streamlit as st

from dashboard import cached
from dashboard.frame import note
from dashboard.selection import TextChoices
from dashboard.sources import TextSource

HEIGHT = 640


def show(source: TextSource, choices: TextChoices) -> None:
    """A closed expander with BertViz's view, for the views that it has."""
    if choices.view not in ("head", "model"):
        return
    kind: Literal["head", "model"] = "head" if choices.view == "head" else "model"
    place = st.expander(f"BertViz's {kind} view of the same numbers", key="text_bertviz", on_change="rerun")
    if not place.open:
        return
    from dashboard.bertviz_view import bertviz_height, bertviz_html, bertviz_refusal  # only when it is wanted

    with place:
        info = source.part(choices.part)
        shape = (info.layers, info.heads, len(info.rows), len(info.columns))
        refusal = bertviz_refusal(kind, shape)
        if refusal is not None:
            note(refusal)
            return
        dark = st.context.theme.type == "dark"
        layer = choices.layer if kind == "head" else None
        same = info.rows == info.columns
        second = next((i for i, token in enumerate(info.rows) if token.segment == 1), None) if same else None

        def build() -> bytes:
            whole = np.stack(
                [
                    source.block(choices.part, i, slice(0, shape[2]), slice(0, shape[3]))
                    for i in range(info.layers)
                ]
            )
            page = bertviz_html(
                kind,
                whole,
                info.rows,
                None if same else info.columns,
                layer=layer,
                sentence_b_start=second,
                dark=dark,
            )
            return page.encode("utf-8", "surrogatepass")

        page = cached.payload(source.key, ("bertviz", kind, choices.part, layer, dark), build)
        height = min(bertviz_height(kind, shape), HEIGHT)
        st.iframe(page.decode("utf-8", "surrogatepass"), height=height)
        note(
            "Drawn by BertViz (Vig 2019) with scripts from this server; it shows layers and heads counted from 0."
        )
