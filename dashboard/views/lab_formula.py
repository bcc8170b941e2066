"""The formula explorer: softmax(QKᵀ/√d_k)V, every part of it a button, every matrix with its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dashboard.components.formula_views import FormulaPick, formula_view
from dashboard.formula_payload import formula_payload
from dashboard.frame import note, notes
from dashboard.lab_choices import FormulaChoices, LabChoices
from dashboard.lab_sections import LabFigure
from dashboard.lab_vectors import bert_head_width, bert_heads, bert_layers, bert_vectors, model_vectors
from dashboard.lab_widgets import choice_of, index_of, slider_of, switch_of, toggle_of
from dashboard.selection import choose_in_section

if TYPE_CHECKING:
    from analysis.lab.formula import FormulaNumbers
    from analysis.lab.inputs import LabVectors

METHOD = "softmax(QKᵀ · factor / (√d_k · temperature)) V (Vaswani et al. 2017, section 3.2.1)"


def tools(choices: LabChoices) -> None:
    """Where the numbers come from, and what is done to the scores."""
    chosen = choices.formula
    switch_of(
        "formula",
        "numbers",
        "Numbers",
        {"worked": "Worked example", "model": "Head of BERT", "random": "Random"},
    )
    if chosen.numbers == "model":
        index_of("formula", "layer", bert_layers(), width=88)
        index_of("formula", "head", bert_heads(), width=88)
        slider_of("formula", "dims", "dₖ", high=bert_head_width(), width=90)
    elif chosen.numbers == "random":
        slider_of("formula", "width", "dₖ", width=120)
        slider_of("formula", "seed", "Seed", width=110)
    slider_of(
        "formula",
        "factor",
        "× 1/√dₖ",
        step=0.25,
        width=115,
        help="The scale as a multiple of 1/√dₖ: 1 is the formula, 0 makes all scores alike, 8 is far too large.",
    )
    slider_of(
        "formula", "temperature", "Temperature", step=0.1, width=115, help="Scores are divided by it too."
    )
    toggle_of("formula", "causal", "Causal", help="A token sees itself and those before it.")
    tokens = _tokens(choices)
    if len(tokens) > 1:
        choice_of(
            "formula",
            "query",
            "Query",
            options=range(len(tokens)),
            say=lambda index: f"query {index} {tokens[index]}" if index < len(tokens) else f"query {index}",
            width=118,
            help="Whose row is followed; a click on a cell chooses too.",
        )


def show(choices: LabChoices) -> tuple[LabFigure, ...]:
    """The formula with its matrices, and what the settings do to the chosen query's row."""
    from analysis.lab.formula import formula_numbers, formula_sheet, settings_in_words

    chosen = choices.formula
    vectors = _vectors(choices)
    if vectors is None:
        return ()
    width = chosen.dims if chosen.numbers == "model" else None
    numbers = formula_numbers(
        vectors,
        width=width,
        factor=chosen.factor,
        temperature=chosen.temperature,
        causal=chosen.causal,
    )
    plain = formula_numbers(vectors, width=width, causal=chosen.causal)
    query = min(chosen.query, len(numbers.tokens) - 1)
    place: dict[str, Any] = {
        "part": chosen.part,
        "query": query,
        "key": min(chosen.key, len(numbers.tokens) - 1),
        "dim": chosen.dim,
    }
    said = settings_in_words(numbers, plain, query)
    formula_view(formula_payload(numbers, **place, said=(said,)), key="lab_formula_view", on_pick=_take)
    notes(numbers.notes)
    return (
        LabFigure(
            "Matrices",
            formula_sheet(numbers, **place),
            input=_input(choices, numbers),
            method=METHOD,
            settings=_settings(chosen, numbers, query),
            notes=(said, *numbers.notes),
        ),
    )


def _vectors(choices: LabChoices) -> LabVectors | None:
    """One head's query, key and value; None where they are not there, and the page says why."""
    from analysis.lab.inputs import random_vectors, split_words, worked_example

    chosen = choices.formula
    if chosen.numbers == "worked":
        return worked_example()
    if chosen.numbers == "model":
        found = bert_vectors(choices.text, chosen.layer)
        return None if found is None else found.head(min(chosen.head, found.query.shape[0] - 1))
    words = split_words(choices.text)
    if not words:
        note("Type a sentence on the left: its words are the tokens.")
        return None
    return random_vectors(words, width=chosen.width, seed=chosen.seed)


def _tokens(choices: LabChoices) -> tuple[str, ...]:
    """Names of the tokens, none while the model is not there."""
    from analysis.lab.inputs import split_words, worked_example

    chosen = choices.formula
    if chosen.numbers == "worked":
        return worked_example().tokens
    if chosen.numbers == "random":
        return split_words(choices.text)
    return (
        model_vectors(choices.text, chosen.layer).tokens if choices.text.strip() and bert_layers() > 1 else ()
    )


def _take(pick: FormulaPick) -> None:
    """Explain the part; a cell also chooses the tokens and the dimension that meet in it."""
    changes: dict[str, Any] = {"part": pick.part}
    if pick.cell is not None:
        changes |= dict(zip(_AXES[pick.part], pick.cell, strict=True))
    choose_in_section("formula", **changes)


_AXES: Mapping[str, tuple[str, str]] = {
    "query": ("query", "dim"),
    "key": ("dim", "key"),  # drawn transposed
    "scores": ("query", "key"),
    "root": ("query", "key"),
    "softmax": ("query", "key"),
    "value": ("key", "dim"),
    "output": ("query", "dim"),
}
"""Which choices a row and a column of each matrix are."""


def _input(choices: LabChoices, numbers: FormulaNumbers) -> str:
    if choices.formula.numbers == "worked":
        return "the worked example: three tokens, d_k = 4"
    return f"{choices.text} ({numbers.source})"


def _settings(chosen: FormulaChoices, numbers: FormulaNumbers, query: int) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "numbers": numbers.source,
        "d_k": numbers.width,
        "factor": numbers.factor,
        "temperature": numbers.temperature,
        "causal": numbers.causal,
        "query": f"{query} {numbers.tokens[query]}",
    }
    return settings | ({"seed": chosen.seed} if chosen.numbers == "random" else {})
