"""Why √d_k: variance, saturation and gradients with and without the scale, measured live."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import streamlit as st

from dashboard.frame import note, notes
from dashboard.lab_choices import LabChoices
from dashboard.lab_sections import LabFigure
from dashboard.lab_show import show_curves
from dashboard.lab_widgets import choice_of, slider_of

if TYPE_CHECKING:
    from analysis.lab.scale import WidthMeasured

METHOD = (
    "Rows of softmax(QKᵀ · scale) V with scale 1 and 1/√d_k (Vaswani et al. 2017, section 3.2.1); variance, largest "
    "weight, entropy, norm of the softmax's Jacobian and of ∂ output / ∂ query by autograd, float64"
)


def tools(choices: LabChoices) -> None:
    """Which d_k is looked at closely, and what is drawn."""
    widths = [2**power for power in range(11)]
    choice_of("scale", "width", "dₖ", options=widths, say=lambda width: f"dₖ = {width}", width=130)
    slider_of("scale", "keys", "Keys in a row", width=170)
    slider_of(
        "scale",
        "samples",
        "Rows at each dₖ",
        step=64,
        width=170,
        help="More rows make the intervals narrower.",
    )
    slider_of("scale", "seed", "Seed", width=130)


def show(choices: LabChoices) -> tuple[LabFigure, ...]:
    """What was measured, and what follows from it at the chosen d_k."""
    from analysis.lab.scale import WIDTHS, scale_in_words, scale_sheet

    chosen = choices.scale
    drawn = {"keys": chosen.keys, "samples": chosen.samples, "seed": chosen.seed}
    with st.spinner("Measuring …"):
        curves = tuple(_measured(width, **drawn) for width in WIDTHS)
        here = _measured(chosen.width, **drawn)
    sheet = scale_sheet(curves, here)
    said = scale_in_words(here)
    for sentence in said:
        note(sentence)
    show_curves(sheet, key="lab_scale_curves", columns=3)
    notes(sheet.notes)
    settings: dict[str, Any] = {"d_k": chosen.width, "keys": here.keys, "rows at each d_k": here.samples}
    return (
        LabFigure(
            "Why √d_k",
            sheet,
            f"random vectors, seed {chosen.seed}",
            METHOD,
            settings | {"seed": chosen.seed},
            (*said, *sheet.notes),
        ),
    )


@st.cache_data(max_entries=512, show_spinner=False)
def _measured(width: int, *, keys: int, samples: int, seed: int) -> WidthMeasured:
    from analysis.lab.scale import measured

    return measured(width, keys=keys, samples=samples, seed=seed)
