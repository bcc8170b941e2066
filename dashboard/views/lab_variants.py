"""Variants side by side: one input through each, what it keeps of exact attention, and what it costs here."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import streamlit as st

from dashboard.frame import heading, literal, note, notes, small_table
from dashboard.lab_choices import LabChoices, VariantChoices
from dashboard.lab_jobs import measurement
from dashboard.lab_sections import LabFigure
from dashboard.lab_show import show_curves, show_matrices
from dashboard.lab_vectors import bert_heads, bert_layers, bert_vectors
from dashboard.lab_widgets import choice_of, index_of, several_of, slider_of, switch_of

if TYPE_CHECKING:
    from analysis.lab.inputs import LabVectors
    from analysis.lab.variant_costs import Measurement
    from analysis.lab.variants import VariantSettings

WIDTH = 32
"""d of random vectors, that of a head of the bundled BERT."""

NAMES = {
    "exact": "Exact",
    "linear": "Linear",
    "fast_weights": "Fast weights",
    "linformer": "Linformer",
    "reformer": "Reformer",
    "window": "Sliding window",
    "block": "Block-sparse",
}

MEASURED_NOTES = (
    "Measured on this machine: time is CPU time of one thread, median of 5 repeats, all variants in turn; memory is "
    "the most bytes of tensors alive at once beyond the input, as PyTorch's profiler records them.",
    "Operations are the formulas of attn_core.cost, which count a sparse rule by the pair. Reformer's buckets grow "
    "with n, 64 positions a chunk; the window is computed in blocks of 64.",
)


def tools(choices: LabChoices) -> None:
    """What is shown, of which vectors, by which variants."""
    chosen = choices.variants
    switch_of("variants", "show", "Show", {"weights": "Weights and errors", "cost": "Time and memory"})
    if chosen.show == "weights":
        switch_of("variants", "numbers", "Numbers", {"random": "Random", "model": "Head of BERT"})
        if chosen.numbers == "model":
            layers, heads = bert_layers(), bert_heads()
            index_of("variants", "layer", layers, width=125)
            index_of("variants", "head", heads, width=125)
        else:
            slider_of("variants", "tokens", "n", width=150)
            slider_of(
                "variants",
                "sharpness",
                "Sharpness",
                step=0.25,
                width=130,
                help="Queries are multiplied by it: larger scores, more pointed attention.",
            )
    with st.popover("Sizes", icon=":material/tune:"):
        _sizes(chosen)
    several_of("variants", "variants", "Variants", NAMES)


def _sizes(chosen: VariantChoices) -> None:
    """Sizes of all variants, those that are not shown too, so that nothing jumps."""
    cost = chosen.show == "cost"
    left, right = st.columns(2)
    with left:
        slider_of("variants", "rank", "Linformer: slots R")
        choice_of(
            "variants",
            "projection",
            "Linformer's projections",
            words={"random": "Linformer: N(0, 1/R)", "mean": "Linformer: means of runs"},
            help="Untrained either way",
        )
        slider_of("variants", "hashes", "Reformer: rounds of hashing")
        if not cost:
            slider_of("variants", "buckets", "Reformer: buckets", step=2)
            slider_of("variants", "seed", "Seed of all that is drawn")
    with right:
        slider_of("variants", "window", "Sliding window: keys nearer than")
        slider_of("variants", "block", "Block-sparse: positions a block")
        choice_of(
            "variants",
            "pattern",
            "Which blocks",
            words={
                "local": "own block",
                "global": "own and first block",
                "bigbird": "own, neighbours, first, one drawn",
            },
        )
        choice_of(
            "variants",
            "features",
            "Feature map of linear attention and fast weights",
            words={"elu": "φ = elu + 1", "relu": "φ = relu", "random": "φ = positive random features"},
        )
        slider_of("variants", "count", "Random features", step=1, disabled=chosen.features != "random")


def show(choices: LabChoices) -> tuple[LabFigure, ...]:
    """Weights, errors and kept mass of one input; or what was measured against n."""
    return _costs(choices) if choices.variants.show == "cost" else _weights(choices)


def _settings(chosen: VariantChoices) -> VariantSettings:
    from dataclasses import fields

    from analysis.lab.variants import VariantSettings

    return VariantSettings(**{item.name: getattr(chosen, item.name) for item in fields(VariantSettings)})


def _weights(choices: LabChoices) -> tuple[LabFigure, ...]:
    from analysis.lab import variants

    chosen = choices.variants
    vectors = _vectors(choices)
    if vectors is None:
        return ()
    names: Any = chosen.variants
    if not names:
        note("Choose a variant above.")
        return ()
    settings = _settings(chosen)
    view = variants.compare_variants(vectors, names, settings)
    said = variants.conclusions(view)
    st.markdown(literal(" ".join(said)))
    sheet, rows = variants.weights_sheet(view), variants.rows_sheet(view)
    show_matrices(sheet, key="lab_variants_weights")
    table, curves = st.columns([5, 6], gap="medium")
    with table:
        heading(
            "Held against exact attention",
            "Mass on the same keys: what exact attention and the variant both put on a key, summed",
        )
        small_table(variants.TABLE_HEADER, variants.table_rows(view))
    if rows.panels[0].curves:
        with curves:
            show_curves(rows, key="lab_variants_rows", columns=2)
    told: dict[str, Any] = {
        "input": _input(choices, view.source, len(view.tokens)),
        "method": "; ".join(f"{result.title}: {variants.SOURCES[result.name]}" for result in view.results),
        "settings": {**_told(chosen), "variants": ", ".join(NAMES[name] for name in names)},
        "notes": (*said, *sheet.notes),
    }
    figures = (LabFigure("Weights", sheet, **told), LabFigure("Rows", rows, **told))
    return figures if rows.panels[0].curves else figures[:1]


def _vectors(choices: LabChoices) -> LabVectors | None:
    """One head's query, key and value; None where they are not there, and the page says why."""
    from analysis.lab.inputs import numbered, random_vectors

    chosen = choices.variants
    if chosen.numbers == "model":
        found = bert_vectors(choices.text, chosen.layer)
        return None if found is None else found.head(min(chosen.head, found.query.shape[0] - 1))
    drawn = random_vectors(numbered(chosen.tokens), width=WIDTH, seed=chosen.seed)
    return replace(drawn, query=drawn.query * chosen.sharpness)


def _input(choices: LabChoices, source: str, tokens: int) -> str:
    return choices.text if choices.variants.numbers == "model" else f"{source}, n = {tokens}"


def _told(chosen: VariantChoices) -> dict[str, Any]:
    """The settings that made a figure."""
    names = ["rank", "projection", "hashes", "buckets", "window", "block", "pattern", "features", "seed"]
    if chosen.features == "random":
        names.append("count")
    names += ["layer", "head"] if chosen.numbers == "model" else ["tokens", "sharpness"]
    return {name: getattr(chosen, name) for name in names}


def _costs(choices: LabChoices) -> tuple[LabFigure, ...]:
    from analysis.growth import FITTED_FROM
    from analysis.lab import variant_costs

    chosen = choices.variants
    settings = replace(_settings(chosen), buckets=2, seed=0)  # the measurement does not hang on them
    plan = variant_costs.CostPlan(tuple(variant_costs.COST_TITLES), settings=settings)
    found: tuple[Measurement, ...] | None = measurement(
        "variants",
        plan,
        partial(variant_costs.measured, plan),
        label="Measure time and memory",
        help=(
            f"Runs every variant at n = {plan.sizes[0]} to {plan.sizes[-1]:,} on this machine, in a process of its "
            "own with one thread; about ten seconds."
        ),
    )
    if found is None:
        return ()
    asked = {"fused", *chosen.variants} if "exact" in chosen.variants else set(chosen.variants)
    shown = [each for each in found if each.variant in asked]
    if not shown:
        note("Choose a variant above.")
        return ()
    sheet = variant_costs.cost_sheet(shown, MEASURED_NOTES)
    said = variant_costs.cost_conclusions(shown)
    if said:
        st.markdown(literal(" ".join(said)))
    show_curves(sheet, key="lab_variants_costs")
    heading(
        f"At n = {plan.sizes[-1]:,}, one head of width {variant_costs.WIDTH}",
        f"Exponents are fitted to n = {FITTED_FROM} and above",
    )
    small_table(variant_costs.COST_HEADER, variant_costs.cost_rows(shown))
    notes(MEASURED_NOTES)
    told = {name: value for name, value in _told(chosen).items() if name not in ("buckets", "seed")}
    for name in ("layer", "head", "tokens", "sharpness"):
        told.pop(name, None)
    return (
        LabFigure(
            "Time and memory",
            sheet,
            input=f"random vectors, one head of width {variant_costs.WIDTH}, n = {plan.sizes[0]} to {plan.sizes[-1]}",
            method="time, memory and operations, measured on this machine (analysis.lab.variant_costs)",
            settings={**told, "repeats": plan.repeats},
            notes=(*said, *MEASURED_NOTES),
        ),
    )
