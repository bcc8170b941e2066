"""Masks and mods: rules combined, scores modified by a library mod or a typed one, and the work that is saved."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import streamlit as st

from dashboard.frame import literal, note, notes, small_table
from dashboard.lab_choices import LabChoices, MaskChoices
from dashboard.lab_sections import LabFigure
from dashboard.lab_show import show_curves, show_matrices
from dashboard.lab_vectors import bert_heads, bert_layers, bert_vectors
from dashboard.lab_widgets import choice_of, index_of, several_of, slider_of, switch_of, text_of, toggle_of
from dashboard.selection import choose_in_section

if TYPE_CHECKING:
    from analysis.figure_lab import CurveSheet
    from analysis.lab.inputs import LabVectors
    from analysis.lab.mask_costs import RuleCost
    from analysis.lab.masks import ModChoice, ModifiedAttention, RuleChoice

RANDOM_HEADS, RANDOM_WIDTH = 8, 16

RULE_WORDS = {
    "causal": "Causal",
    "window": "Window",
    "prefix": "Prefix",
    "padding": "Padding",
    "document": "Document",
    "block": "Block-sparse",
    "dilated": "Dilated",
}
MOD_WORDS = {
    "none": "no mod",
    "alibi": "ALiBi",
    "soft_cap": "soft cap",
    "relative": "relative bias",
    "typed": "typed mod",
}
SIZES = (
    (
        "window",
        "Window w",
        ("window", "dilated"),
        "Keys nearer than w on both sides; with causal, back alone.",
    ),
    ("stride", "Dilation", ("dilated",), "Distance of neighbours in the dilated window."),
    ("prefix", "Prefix", ("prefix",), "So many first keys are seen by all; beyond them attention is causal."),
    ("padded", "Padding", ("padding",), "So many keys at the end are padding."),
    ("documents", "Documents", ("document",), "Sequences of nearly equal lengths, packed into one."),
    ("block", "Block size", ("block",), "A block of positions sees itself and the first block."),
)
"""Choice, label, the rules that have this size, help."""

EXAMPLES = (
    ("ALiBi", "score - 2 ** (-8 * (h + 1) / n_h) * abs(q_idx - kv_idx)"),
    ("Causal", "where(kv_idx <= q_idx, score, -inf)"),
    ("Soft cap", "2 * tanh(score / 2)"),
    ("Sliding window with a sink", "score if kv_idx == 0 or abs(q_idx - kv_idx) < 3 else -inf"),
    ("Without 1/√d_k", "score * sqrt(d_k)"),
    ("Long memory", "score - log(1 + abs(q_idx - kv_idx))"),
)
METHOD = (
    "softmax(score_mod(QKᵀ/√d_k)) over the pairs that a rule allows (FlexAttention, Dong et al. 2024); rules: "
    "attn_core.mask_rules"
)
COST_METHOD = (
    "FLOPs of the matrix products (attn_core.cost), pairs counted by asking the rule; blocks of 128 × 128 as in "
    "FlashAttention-like kernels"
)


def tools(choices: LabChoices) -> None:
    """What is shown, and of which vectors."""
    chosen = choices.masks
    switch_of(
        "masks", "show", "What is shown", {"attention": "Mask and weights", "library": "Library of mods"}
    )
    switch_of("masks", "numbers", "Vectors", {"random": "Random", "model": "Head of BERT"})
    if chosen.numbers == "model":
        layers, heads = bert_layers(), bert_heads()
        index_of("masks", "layer", layers, width=95)
    else:
        heads = RANDOM_HEADS
    index_of("masks", "head", heads, width=95)
    if chosen.numbers == "random":
        slider_of("masks", "tokens", "Tokens n", width=150)
        slider_of("masks", "seed", "Seed", width=110)


def show(choices: LabChoices) -> tuple[LabFigure, ...]:
    """Rules, mod, and what they do; or the library."""
    chosen = choices.masks
    vectors = _vectors(choices)
    if vectors is None:
        return ()
    if chosen.show == "library":
        return _library(choices, vectors)
    return _attention(choices, vectors)


def _vectors(choices: LabChoices) -> LabVectors | None:
    from analysis.lab.inputs import numbered, random_vectors

    chosen = choices.masks
    if chosen.numbers == "model":
        return bert_vectors(choices.text, chosen.layer)
    return random_vectors(numbered(chosen.tokens), width=RANDOM_WIDTH, heads=RANDOM_HEADS, seed=chosen.seed)


def _head(chosen: MaskChoices, vectors: LabVectors) -> int:
    return min(chosen.head, vectors.query.shape[0] - 1)


def _rule(chosen: MaskChoices) -> RuleChoice:
    from analysis.lab.masks import RuleChoice

    return RuleChoice(
        chosen.rules,
        chosen.joined,
        chosen.negate,
        chosen.window,
        chosen.prefix,
        chosen.padded,
        chosen.documents,
        chosen.block,
        chosen.stride,
    )


# Mask and weights ---------------------------------------------------------------------------------------------------


def _attention(choices: LabChoices, vectors: LabVectors) -> tuple[LabFigure, ...]:
    from analysis.lab.masks import in_words, matrix_sheet

    chosen = choices.masks
    _rule_row(chosen)
    _sizes_row(chosen)
    rule = _rule(chosen)
    found, mod = _computed(vectors, _head(chosen, vectors), rule, _mod(chosen))
    sheet = matrix_sheet(found, rule, mod)
    show_matrices(sheet, key="lab_masks_matrices")
    said = in_words(found)
    note(" ".join(said))
    curves, cost_said = _cost(rule, vectors)
    notes(found.notes)
    given = _input(choices, found.source)
    settings = {"rule": rule.in_words, "mod": mod.in_words} | _settings(chosen)
    return (
        LabFigure("Mask and weights", sheet, given, METHOD, settings, (*said, *found.notes)),
        LabFigure("Cost", curves, given, COST_METHOD, {"rule": rule.in_words}, cost_said),
    )


def _rule_row(chosen: MaskChoices) -> None:
    """Which rules, how they are joined, and which mod."""
    with st.container(horizontal=True, vertical_alignment="center", key="lab_masks_rules_row"):
        several_of("masks", "rules", "Rules", RULE_WORDS)
        if len(chosen.rules) > 1:
            switch_of("masks", "joined", "Joined by", {"and": "& all", "or": "| one of them"})
        toggle_of("masks", "negate", "Negate", help="Pairs that the combination does not allow.")
        choice_of("masks", "mod", "Score mod", words=MOD_WORDS, width=150)


def _sizes_row(chosen: MaskChoices) -> None:
    """The sizes of what is chosen, and the typed mod."""
    sized = [size for size in SIZES if set(size[2]) & set(chosen.rules)]
    if not sized and chosen.mod not in ("soft_cap", "typed"):
        return
    with st.container(horizontal=True, vertical_alignment="bottom", key="lab_masks_sizes_row"):
        for name, label, _, told in sized:
            slider_of("masks", name, label, width=140, help=told)
        if chosen.mod == "soft_cap":
            slider_of("masks", "cap", "Cap", high=20.0, step=0.1, width=140)
        if chosen.mod == "typed":
            text_of("masks", "typed", "score_mod(score, b, h, q_idx, kv_idx) =", width=460)
            _names()


def _mod(chosen: MaskChoices) -> ModChoice:
    """The mod; one that is typed and cannot be read is told, and none takes its place."""
    from analysis.lab.expression import ExpressionError, parse
    from analysis.lab.masks import ModChoice

    if chosen.mod == "typed":
        try:
            parse(chosen.typed)
        except ExpressionError as error:
            st.code(error.picture, language=None)
            note("The mod cannot be read; what is shown is without a mod.")
            return ModChoice()
    return ModChoice(chosen.mod, chosen.cap, chosen.typed)  # type: ignore[arg-type]


def _names() -> None:
    """What an expression may hold, and examples."""
    from analysis.lab.expression import FUNCTIONS, NAMES

    with st.popover("Names and examples", icon=":material/function:"):
        with st.container(horizontal=True, gap="small"):
            for index, (name, typed) in enumerate(EXAMPLES):
                st.button(
                    literal(name),
                    key=f"lab_masks_example_{index}",
                    on_click=partial(choose_in_section, "masks", typed=typed),
                    help=literal(typed),
                )
        small_table(("Name", "What it is"), [(name, about) for name, about in NAMES.items()])
        note("+ − * / // % **   < <= > >= == !=   and or not   x if condition else y")
        small_table(
            ("Function", "What it gives"),
            [tuple(function.about.split(": ", 1)) for function in FUNCTIONS.values()],
        )


def _computed(
    vectors: LabVectors, head: int, rule: RuleChoice, mod: ModChoice
) -> tuple[ModifiedAttention, ModChoice]:
    """The numbers under rule and mod; without the mod where it gives no score for some pair, and this is told."""
    from analysis.lab.masks import ModChoice, ModifiedAttention, modified_attention

    made = rule.rule(len(vectors.tokens))
    found = modified_attention(vectors, head, made, mod)
    if isinstance(found, ModifiedAttention):
        return found, mod
    st.warning(literal(f"{found.sentence} What is shown is without the mod."), icon=":material/warning:")
    plain = modified_attention(vectors, head, made, ModChoice())
    assert isinstance(plain, ModifiedAttention)
    return plain, ModChoice()


def _cost(rule: RuleChoice, vectors: LabVectors) -> tuple[CurveSheet, tuple[str, ...]]:
    """Draw what the rule leaves of the work; returns the figure and what is said of it."""
    from analysis.lab.mask_costs import cost_in_words, cost_sheet, rule_cost

    heads, tokens, width = vectors.query.shape
    here = rule_cost(rule.rule(tokens), tokens, heads=heads, width=width)
    longer = _costs(tuple(vars(rule).items()), heads, width)
    sheet = cost_sheet(here, longer, rule)
    said = cost_in_words(here, longer[-1])
    note(" ".join(said))
    show_curves(sheet, key="lab_masks_cost")
    return sheet, said


@st.cache_data(max_entries=256, show_spinner=False)
def _costs(rule: tuple[tuple[str, Any], ...], heads: int, width: int) -> tuple[RuleCost, ...]:
    from analysis.lab.mask_costs import rule_costs
    from analysis.lab.masks import RuleChoice

    return rule_costs(RuleChoice(**dict(rule)), heads=heads, width=width)


def _input(choices: LabChoices, source: str) -> str:
    return source if choices.masks.numbers == "random" else f"{choices.text} ({source})"


def _settings(chosen: MaskChoices) -> dict[str, Any]:
    return {"tokens": chosen.tokens, "seed": chosen.seed} if chosen.numbers == "random" else {}


# Library ------------------------------------------------------------------------------------------------------------


def _library(choices: LabChoices, vectors: LabVectors) -> tuple[LabFigure, ...]:
    from analysis.lab.mod_library import library_sheet

    chosen = choices.masks
    with st.container(horizontal=True, key="lab_masks_library_row"):
        for name, label in (("window", "Window w"), ("prefix", "Prefix"), ("documents", "Documents")):
            slider_of("masks", name, label, width=150)
        slider_of("masks", "cap", "Cap", high=20.0, step=0.1, width=150)
    sheet, mods = library_sheet(vectors, _head(chosen, vectors), _rule(chosen), cap=chosen.cap)
    show_matrices(sheet, key="lab_masks_library")
    small_table(
        ("Mod", "In attn_core.variants.flex", "Typed by hand"),
        [(mod.name, mod.call, mod.typed or "– (numbers of a table have no formula)") for mod in mods],
    )
    notes(sheet.notes)
    settings = {name: getattr(chosen, name) for name in ("window", "prefix", "documents", "cap")}
    source = vectors.head(_head(chosen, vectors)).source
    return (
        LabFigure(
            "Library of mods",
            sheet,
            _input(choices, source),
            METHOD,
            settings | _settings(chosen),
            sheet.notes,
        ),
    )
