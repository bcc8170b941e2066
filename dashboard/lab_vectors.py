"""Vectors for the Lab's sections: random ones, or those of a head of the bundled BERT once it is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import streamlit as st

from analysis.trained import find_offered, is_ready
from dashboard import cached
from dashboard.cached import LAB_MODEL
from dashboard.frame import note
from dashboard.waiting import failed_load, loading_badge

if TYPE_CHECKING:
    from analysis.lab.inputs import LabVectors


@st.cache_resource(max_entries=12, show_spinner=False)
def model_vectors(text: str, layer: int) -> LabVectors:
    """What a layer of the bundled BERT is given for a text.

    Raises:
        UnsupportedModelError, TimeoutError: as ``cached.traced_text``.
    """
    from analysis.lab.inputs import model_vectors as found

    with cached.shared_model(LAB_MODEL.name, LAB_MODEL.revision).forward() as model:
        return found(model, text, min(layer, model.layers - 1))


def bert_vectors(text: str, layer: int) -> LabVectors | None:
    """The same where the model is there and the text is not empty; else None, and the page says what is missing."""
    if not text.strip():
        note("Type a sentence on the left.")
        return None
    if not bert_is_here():
        return None
    return model_vectors(text, layer)


def bert_is_here() -> bool:
    """Whether the bundled BERT is loaded; else its load is started and the page says so and comes back."""
    offered = find_offered(LAB_MODEL.name)
    if offered is None or not is_ready(offered):
        note("The bundled BERT is not installed; run make bundled, or choose random vectors.")
        return False
    job = cached.loader().request(LAB_MODEL.name, LAB_MODEL.revision)
    if job.state == "ready":
        return True
    if job.state == "failed" or job.slow:
        failed_load("text", LAB_MODEL, job)
    else:
        note("The bundled BERT is being loaded …")
        loading_badge(LAB_MODEL, example=False)
    return False


def bert_layers() -> int:
    """Layers of the bundled BERT; 1 before it is loaded."""
    shared = cached.model_if_ready(LAB_MODEL.name, LAB_MODEL.revision)
    return 1 if shared is None else shared.model.layers


def bert_heads() -> int:
    """Heads of a layer of the bundled BERT; 1 before it is loaded."""
    shared = cached.model_if_ready(LAB_MODEL.name, LAB_MODEL.revision)
    return 1 if shared is None else shared.model.heads


def bert_head_width() -> int:
    """Dimensions of query and key of a head of the bundled BERT; 1 before it is loaded."""
    shared = cached.model_if_ready(LAB_MODEL.name, LAB_MODEL.revision)
    if shared is None:
        return 1
    config: Any = shared.model.module.config
    return int(config.hidden_size) // shared.model.heads
