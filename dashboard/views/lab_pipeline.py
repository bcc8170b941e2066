"""The pipeline: the way of one token through one head and one layer of the bundled BERT, with its real numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from analysis.figure_data import Figure
from dashboard import cached
from dashboard.cached import LAB_MODEL
from dashboard.components.story_views import diagram_view
from dashboard.frame import note, notes
from dashboard.lab_choices import LabChoices
from dashboard.lab_sections import LabFigure
from dashboard.lab_vectors import bert_heads, bert_is_here, bert_layers
from dashboard.lab_widgets import choice_of, index_of
from dashboard.selection import choose_in_section
from dashboard.story_payload import diagram_payload

if TYPE_CHECKING:
    from analysis.lab.pipeline import PipelineNumbers

METHOD = (
    "each stage from the one before with the model's own weights (Devlin et al. 2019; Vaswani et al. 2017)"
)


@st.cache_resource(max_entries=24, show_spinner=False)
def _numbers(text: str, layer: int, head: int, query: int) -> PipelineNumbers:
    from analysis.lab.pipeline import pipeline_numbers

    with cached.shared_model(LAB_MODEL.name, LAB_MODEL.revision).forward() as model:
        return pipeline_numbers(model, text, layer=layer, head=head, query=query)


def tools(choices: LabChoices) -> None:
    """Whose way is shown."""
    chosen = choices.pipeline
    index_of("pipeline", "layer", bert_layers(), width=110)
    index_of("pipeline", "head", bert_heads(), width=110)
    if bert_layers() > 1 and choices.text.strip():
        tokens = _numbers(choices.text, chosen.layer, chosen.head, chosen.query).tokens
        choice_of(
            "pipeline",
            "query",
            "Token",
            options=range(len(tokens)),
            say=lambda index: f"token {index} {tokens[index]}" if index < len(tokens) else f"token {index}",
            width=180,
        )


def show(choices: LabChoices) -> tuple[LabFigure, ...]:
    """The way as a diagram, the chosen stage in words."""
    if not choices.text.strip():
        note("Type a sentence on the left.")
        return ()
    if not bert_is_here():
        return ()
    from analysis.lab.pipeline import STAGES, pipeline_diagram, stage_in_words, stage_sheet, way_in_words

    chosen = choices.pipeline
    numbers = _numbers(choices.text, chosen.layer, chosen.head, chosen.query)
    diagram = pipeline_diagram(numbers, selected=chosen.stage)
    told = [stage_in_words(numbers, stage) for stage in STAGES]
    said = (way_in_words(numbers), diagram.notes[0])
    diagram_view(diagram_payload(diagram, told=told, said=said), key="lab_pipeline_view", on_pick=_take)
    notes(numbers.notes)
    figures: dict[str, Figure] = {"Diagram": diagram, "Stage": stage_sheet(numbers, STAGES[chosen.stage])}
    return tuple(
        LabFigure(
            name,
            figure,
            input=choices.text,
            method=METHOD,
            settings={
                "layer": numbers.layer,
                "head": numbers.head,
                "token": f"{numbers.query} {numbers.tokens[numbers.query]}",
                "stage": STAGES[chosen.stage],
            },
            notes=(said[0], *diagram.notes),
        )
        for name, figure in figures.items()
    )


def _take(stage: int) -> None:
    choose_in_section("pipeline", stage=stage)
