"""What the model's head says, on one line under the title: the strongest classes, and a warning where one is due."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

import streamlit as st

from dashboard.frame import note, small_table

if TYPE_CHECKING:
    from analysis.predictions import Prediction

SHOWN = 5
"""Classes on the line; the rest stand in the list behind it."""


def prediction_line(prediction: Prediction | None, *, key: str) -> None:
    """The line; nothing for a model that predicts nothing of the whole input.

    Args:
        key: prefix of the list's widget.
    """
    if prediction is None:
        return
    with st.container(horizontal=True, vertical_alignment="center", key=f"{key}_prediction", gap="small"):
        st.html(prediction_html(prediction), width="content")
        if len(prediction.labels) > SHOWN:
            with st.popover(f"All {len(prediction.labels)} classes", key=f"{key}_classes"):
                _every_class(prediction)


def prediction_html(prediction: Prediction) -> str:
    """The line as HTML; labels are a model's and shown as text."""
    lead = {"value": "Predicted value", "sigmoid": "Labels"}.get(prediction.kind, "Prediction")
    chips = [
        _value_chip(label, score) if prediction.kind == "value" else _chip(label, score)
        for label, score, _ in prediction.best(SHOWN)
    ]
    rest = len(prediction.labels) - SHOWN
    if rest > 0 and prediction.kind == "softmax":
        left = 1.0 - sum(score for _, score, _ in prediction.best(SHOWN))
        chips.append(f'<span class="as-rest">{rest} others {percent(max(left, 0.0))}</span>')
    return (
        f'<div class="as-prediction" role="group" aria-label="{lead}"><span class="as-lead">{lead}</span>'
        f"{''.join(chips)}{_warning(prediction)}</div>"
    )


def percent(share: float) -> str:
    """ "83 %", "0.4 %", "< 0.1 %"."""
    if 0 < share < 0.001:
        return "< 0.1 %"
    if 0.9995 <= share < 1:
        return "> 99.9 %"
    return f"{100 * share:.1f} %" if share < 0.0995 or share > 0.9905 else f"{100 * share:.0f} %"


def _chip(label: str, score: float) -> str:
    return f'<span class="as-class" style="--share:{100 * score:.1f}%"><b>{escape(label)}</b> {percent(score)}</span>'


def _value_chip(label: str, score: float) -> str:
    return f'<span class="as-class" style="--share:0%"><b>{escape(label)}</b> {score:.4g}</span>'


def _warning(prediction: Prediction) -> str:
    if not prediction.unfamiliar:
        return ""
    help = " ".join(
        [*familiarity_in_words(prediction), "It must name one of its classes; none of them need be right."]
    )
    return f'<span class="as-badge as-warning" title="{escape(help)}">unlike what it was trained on</span>'


def familiarity_in_words(prediction: Prediction) -> list[str]:
    """One sentence for each thing that is known of how usual the input is."""
    told = []
    if prediction.share_surer is not None:
        told.append(
            f"The model is surer of {percent(prediction.share_surer)} of held-out examples than of this input."
        )
    if prediction.share_nearer is not None:
        told.append(
            f"The features of {percent(prediction.share_nearer)} of them lie nearer to a class than this input's do."
        )
    return told


def _every_class(prediction: Prediction) -> None:
    rows = [
        (label, f"{score:.4f}", f"{float(prediction.logits[index]):.3f}")
        for label, score, index in prediction.best(len(prediction.labels))
    ]
    small_table(("Class", "Probability", "Logit"), rows)
    if prediction.temperature != 1:
        note(
            f"Probabilities are the softmax of logits / {prediction.temperature:.3f}, fitted on held-out examples."
        )
    for sentence in familiarity_in_words(prediction):
        note(sentence)
