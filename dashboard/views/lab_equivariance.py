"""Equivariance: shuffle queries, keys or tokens, and see what changes and what does not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dashboard.frame import heading, note, notes, small_table
from dashboard.lab_choices import LabChoices
from dashboard.lab_sections import LabFigure
from dashboard.lab_show import show_matrices
from dashboard.lab_vectors import bert_heads, bert_layers, bert_vectors
from dashboard.lab_widgets import choice_of, index_of, slider_of, switch_of

if TYPE_CHECKING:
    from analysis.lab.equivariance import Mechanism, Shuffle, Shuffled
    from analysis.lab.inputs import LabVectors

RANDOM_HEADS, RANDOM_WIDTH = 8, 8

SHUFFLE_LABELS = {
    "queries": "Queries",
    "keys_values": "Keys with values",
    "keys": "Keys alone",
    "tokens": "All tokens",
}
MECHANISM_LABELS = {
    "plain": "plain",
    "causal": "causal",
    "sinusoidal": "sinusoids added",
    "rotary": "rotary",
    "alibi": "ALiBi",
    "relative": "relative bias",
    "linear": "linear attention",
}
METHOD = (
    "Output before and after a permutation of queries, keys or tokens, put back (Lee et al. 2019), float32; a "
    "difference counts where a first-order bound of rounding cannot explain it (Higham 2002, section 3.1)"
)
MODEL_NOTE = (
    "BERT adds positions to its words before the first layer, so its queries and keys carry them along. Here the "
    "vectors of a layer are shuffled, not the words of the sentence."
)


def tools(choices: LabChoices) -> None:
    """What is shuffled, in which mechanism, and of which vectors."""
    chosen = choices.equivariance
    switch_of("equivariance", "shuffle", "What is shuffled", SHUFFLE_LABELS)
    choice_of("equivariance", "mechanism", "Mechanism", words=MECHANISM_LABELS, width=160)
    switch_of("equivariance", "numbers", "Vectors", {"random": "Random", "model": "Head of BERT"})
    heads = RANDOM_HEADS
    if chosen.numbers == "model":
        layers, heads = bert_layers(), bert_heads()
        index_of("equivariance", "layer", layers, width=95)
    index_of("equivariance", "head", heads, width=95)
    slider_of("equivariance", "seed", "Seed", width=120, help="Of the order, and of random vectors.")


def show(choices: LabChoices) -> tuple[LabFigure, ...]:
    """Weights and output before and after, and every mechanism under every shuffle."""
    from analysis.lab.equivariance import (
        shuffle_in_words,
        shuffle_sheet,
        shuffle_table,
        table_in_words,
        table_sheet,
    )

    chosen = choices.equivariance
    vectors = _vectors(choices)
    if vectors is None:
        return ()
    head = min(chosen.head, vectors.query.shape[0] - 1)
    table = shuffle_table(vectors, head, seed=chosen.seed)
    found = table[chosen.mechanism][chosen.shuffle]  # type: ignore[index]
    told = (*((MODEL_NOTE,) if chosen.numbers == "model" else ()), *vectors.notes)
    said = (*shuffle_in_words(found), *told)
    for sentence in shuffle_in_words(found):
        note(sentence)
    sheet = shuffle_sheet(found)
    show_matrices(sheet, key="lab_equivariance_matrices")
    heading("Every mechanism under every shuffle", "Largest difference of the output after it was put back")
    _table(table, chosen.mechanism)
    note(table_in_words(table))
    notes(told)
    settings: dict[str, Any] = {
        "order": " ".join(map(str, found.order)),
        "seed": chosen.seed,
        "mechanism": chosen.mechanism,
        "shuffle": chosen.shuffle,
    }
    given = f"{choices.text} ({found.source})"
    return (
        LabFigure("Before and after", sheet, given, METHOD, settings, said),
        LabFigure(
            "Table",
            table_sheet(table),
            given,
            METHOD,
            {name: settings[name] for name in ("order", "seed")},
            (table_in_words(table), *told),
        ),
    )


def _vectors(choices: LabChoices) -> LabVectors | None:
    from analysis.lab.inputs import random_vectors, split_words

    chosen = choices.equivariance
    if chosen.numbers == "model":
        return bert_vectors(choices.text, chosen.layer)
    words = split_words(choices.text)
    if not words:
        note("Type a sentence on the left: its words are the tokens.")
        return None
    return random_vectors(words, width=RANDOM_WIDTH, heads=RANDOM_HEADS, seed=chosen.seed)


def _table(table: dict[Mechanism, dict[Shuffle, Shuffled]], mechanism: str) -> None:
    """✓ where the output is the same but for its order, ✗ where it is not, with the largest difference."""
    from analysis.lab.equivariance import size_text

    rows = []
    for name, row in table.items():
        cells = [f"{'✓' if found.holds else '✗'} {size_text(found.difference)}" for found in row.values()]
        bound = max(found.bound for found in row.values())
        rows.append((MECHANISM_LABELS[name], *cells, size_text(bound)))
    small_table(
        ("Mechanism", *SHUFFLE_LABELS.values(), "Rounding explains"),
        rows,
        marked=list(table).index(mechanism),  # type: ignore[arg-type]
    )
    note("✓ the output is the same but for its order, ✗ it is not; the number is the largest difference.")
