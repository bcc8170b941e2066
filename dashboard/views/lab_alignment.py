"""The alignment explorer: four translators, three with attention and one without, watched word by word."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

import streamlit as st

from analysis.translators import TRANSLATORS
from dashboard.alignment_payload import alignment_payload
from dashboard.components.alignment_views import alignment, alignment_state
from dashboard.figures import read_header
from dashboard.frame import literal, note, small_table
from dashboard.lab_choices import LabChoices
from dashboard.lab_sections import LabFigure
from dashboard.lab_show import show_curves
from dashboard.lab_widgets import several_of, slider_of, switch_of, text_of
from dashboard.selection import choose_in_section

if TYPE_CHECKING:
    from analysis.figure_data import Figure
    from analysis.translation import ForcedTranslation, LoadedTranslator, StepByStep

KEY = "lab_alignment_steps"
SCORING_WORDS = {"additive": "Additive", "dot": "Dot", "general": "General", "none": "Without attention"}
METHOD = (
    "alignment by a decoder's attention: additive (Bahdanau et al. 2014, section 3.1), dot and general "
    "(Luong et al. 2015, section 3.1)"
)
EXAMPLES = ("I love you", "Where is my new car?", "I don't like black cats.", "He bought a big house.")


@st.cache_resource(max_entries=4, show_spinner=False)
def translator(scoring: str) -> LoadedTranslator:
    """One of the shipped translators, verified and ready.

    Raises:
        ModelUnavailableError: if its files are not those that were published.
    """
    from analysis.translation import load_translator

    return load_translator(f"translator-{scoring}")


@st.cache_resource(max_entries=24, show_spinner=False)
def translated(scoring: str, text: str, beam: int) -> StepByStep:
    """A sentence through one translator."""
    from analysis.translation import step_by_step

    return step_by_step(translator(scoring), text, beam=beam)


@st.cache_resource(max_entries=24, show_spinner=False)
def in_the_eyes_of(scoring: str, text: str, target: str) -> ForcedTranslation:
    """A translation in the eyes of one translator."""
    from analysis.translation import forced

    return forced(translator(scoring), text, target)


def tools(choices: LabChoices) -> None:
    """The sentence, the translators, the beam."""
    own = choices.alignment
    switch_of("alignment", "show", "What to show", {"sentence": "A sentence", "memory": "What is forgotten"})
    several_of("alignment", "scorings", "Translators", SCORING_WORDS)
    text_of("alignment", "text", "English sentence", placeholder=EXAMPLES[0], width=300)
    slider_of(
        "alignment", "beam", "Beam", width=130, help="Beginnings that are kept at each word; 1 is greedy"
    )
    if own.show == "sentence":
        with st.popover("Examples"):
            for place, text in enumerate(EXAMPLES):
                st.button(
                    literal(text),
                    key=f"lab_alignment_example_{place}",
                    on_click=partial(choose_in_section, "alignment", text=text, step=0),
                )


def show(choices: LabChoices) -> tuple[LabFigure, ...]:
    """Draw the translators at work, or what they forget; returns the records of what is on the screen."""
    own = choices.alignment
    if not own.scorings:
        note("Choose at least one translator.")
        return ()
    if not own.text.strip():
        note("Type an English sentence.")
        return ()
    try:
        found = {scoring: translated(scoring, own.text, own.beam) for scoring in own.scorings}
    except ValueError as error:
        st.warning(literal(str(error).partition(": ")[2] or str(error)), icon=":material/edit:")
        return ()
    return _sentence(choices, found) if own.show == "sentence" else _memory(choices, found)


def _sentence(choices: LabChoices, found: Mapping[str, StepByStep]) -> tuple[LabFigure, ...]:
    from analysis.lab.alignment import alignment_sheet

    own = choices.alignment
    payload = alignment_payload(found, step=own.step)
    header, _ = read_header(payload)
    alignment(payload, key=KEY, on_change=partial(_walked, header))
    unknown = next(iter(found.values()))
    for place in unknown.unknown:
        note(f"“{unknown.source[place]}” is not among the words that the translators know.")
    note(
        "Trained on 74,000 sentence pairs of Tatoeba (CC BY 2.0 FR) with up to 30 letters of English; longer and "
        "stranger sentences come out worse. The whole of a matrix is what the decoder looked at, not why."
    )
    sheet = alignment_sheet(found)
    if sheet is None:
        return ()
    return (_figure("Alignment matrices", sheet, choices),)


def _walked(header: Mapping[str, object]) -> None:
    step = alignment_state(header, key=KEY)
    if step is not None:
        choose_in_section("alignment", step=step)


def _memory(choices: LabChoices, found: Mapping[str, StepByStep]) -> tuple[LabFigure, ...]:
    from analysis.lab.alignment import memory_sheet, recency_sentence, surprise_sheet

    own = choices.alignment
    scores = {scoring: translator(scoring).scores for scoring in own.scorings}
    measured = {scoring: score for scoring, score in scores.items() if score is not None}
    figures = []
    if measured:
        memory = memory_sheet(measured)
        show_curves(memory, key="lab_alignment_memory")
        note(recency_sentence(measured))
        small_table(
            ("Translator", "BLEU", "Same as a reference", "Held-out sentences"),
            [
                (
                    SCORING_WORDS[scoring],
                    f"{score.bleu:.1f}",
                    f"{100 * score.exact:.1f} %",
                    f"{score.sentences:,}",
                )
                for scoring, score in measured.items()
            ],
        )
        figures.append(_figure("What comes through", memory, choices))
    first = own.scorings[0]
    target = found[first].text
    if target.strip():
        eyes = {scoring: in_the_eyes_of(scoring, own.text, target) for scoring in own.scorings}
        surprise = surprise_sheet(eyes, whose=f"“{target}”, by the translator {SCORING_WORDS[first].lower()}")
        show_curves(surprise, key="lab_alignment_surprise")
        figures.append(_figure("Surprise", surprise, choices))
    return tuple(figures)


def _figure(name: str, figure: Figure, choices: LabChoices) -> LabFigure:
    own = choices.alignment
    return LabFigure(
        name=name,
        figure=figure,
        input=own.text,
        method=METHOD,
        settings={
            "translators": ", ".join(SCORING_WORDS[scoring] for scoring in own.scorings),
            "beam": own.beam,
            "weights": "; ".join(_origins()[scoring] for scoring in own.scorings),
        },
        notes=getattr(figure, "notes", ()),
    )


def _origins() -> Mapping[str, str]:
    """Where each translator comes from."""
    return {model.folder.removeprefix("translator-"): model.origin for model in TRANSLATORS}
