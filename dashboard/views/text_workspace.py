"""The large area of the Text page: title, tools, one view, export. One fragment, so a click inside reruns only it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import streamlit as st

from analysis.figure_data import (
    AttentionContrast,
    CheckedSet,
    EvidenceWords,
    Figure,
    HeadEffects,
    HeadGrid,
    Provenance,
    TokenScores,
    TradeOff,
)
from analysis.visible import counted
from dashboard import cached
from dashboard.boundary import page_boundary, tell_error
from dashboard.evidence_jobs import Pending
from dashboard.export_menu import EveryLayer, export_menu
from dashboard.frame import Badge, choice, notes, title_line, views, waiting_view
from dashboard.live import merged_words, text_source
from dashboard.prediction_line import prediction_line
from dashboard.provenance import (
    adversarial_provenance,
    evidence_provenance,
    heads_fact,
    heads_in_words,
    heads_provenance,
    layer_in_words,
    provenance,
)
from dashboard.selection import (
    Part,
    TextChoices,
    active_heads,
    choose,
    clamped_text,
    current,
    focus_head,
    take_notes,
    to_query,
    write_link,
)
from dashboard.sources import WORD_TOKENS, TextSource
from dashboard.views import text_bertviz, text_details, text_head, text_matrix, text_model
from dashboard.views.text_windows import windows_popover
from dashboard.waiting import title_of

if TYPE_CHECKING:
    from analysis.predictions import Prediction

VIEW_WORDS = {
    "head": "Head view",
    "model": "Model view",
    "matrix": "Matrix",
    "rollout": "Rollout",
    "evidence": "Evidence",
    "heads": "Heads",
    "adversarial": "Adversarial",
}
PART_WORDS: Mapping[Part, str] = {"encoder": "Encoder", "decoder": "Decoder", "cross": "Cross-attention"}
LAST_GOOD = "text_last_good"


@dataclass(frozen=True)
class View:
    """A view's two halves: its tools, and the drawing that returns the record of what is shown."""

    tools: Callable[[TextSource, TextChoices], None]
    show: Callable[[TextSource, TextChoices], Figure | None]
    every_layer: Callable[[TextSource, TextChoices], EveryLayer | None] = lambda source, choices: None
    """What gives all layers for the view's HTML file."""
    details: bool = False
    """Whether the column with the heads' figures stands beside it."""


VIEWS: Mapping[str, View] = {
    "head": View(text_head.tools, text_head.show, text_head.every_layer_of, details=True),
    "model": View(text_model.tools, text_model.show),
    "matrix": View(text_matrix.tools, text_matrix.show),
}


@cache
def later_views() -> Mapping[str, View]:
    """Views with much behind them, imported when one of them opens: the first page need not wait for them."""
    from dashboard.views import text_adversarial, text_evidence, text_heads, text_rollout

    return {
        "rollout": View(text_rollout.tools, text_rollout.show),
        "evidence": View(text_evidence.tools, text_evidence.show),
        "heads": View(text_heads.tools, text_heads.show),
        "adversarial": View(text_adversarial.tools, text_adversarial.show),
    }


@dataclass(frozen=True)
class Shown:
    """A source and what the page says of it."""

    source: TextSource
    model: str
    revision: str
    length: str
    badges: tuple[Badge, ...]
    notes: tuple[str, ...]
    prediction: Prediction | None = None


def workspace() -> None:
    """Draw the area for the current selection."""
    with page_boundary():
        choices = current().text
        for sentence in take_notes(keep=cached.model_if_ready(*choices.model.request) is None):
            st.info(sentence, icon=":material/info:")
        try:
            shown = opened(choices)
        except Pending as pending:
            _while_it_runs(choices, pending)
            return
        if shown is None:
            _waiting(choices)
            return
        fitted = fit(shown.source, choices)
        _title(shown, fitted)
        with st.container(horizontal=True, vertical_alignment="center", key="text_predicted"):
            prediction_line(shown.prediction, key="text")
            if shown.source.traced is not None:
                windows_popover(shown.source.traced)
        view = VIEWS[fitted.view] if fitted.view in VIEWS else later_views()[fitted.view]
        with st.container(horizontal=True, vertical_alignment="center", key="text_tools"):
            _views(fitted)
            if fitted.view != "evidence":
                _part_choice(shown.source, fitted)
            view.tools(shown.source, fitted)
            export_place = st.container(key="text_export_place", width="content")
        figure = None
        try:
            figure = _with_details(shown.source, fitted) if view.details else view.show(shown.source, fitted)
        except Pending as pending:  # the page around it stays, and its link
            pending.show()
        if figure is not None:
            with export_place:
                record = _provenance(shown, fitted, figure)
                export_menu(
                    figure,
                    record,
                    key=f"text_{fitted.view}_export",
                    name=choices.model.name,
                    query=to_query(current(), "text"),
                    every_layer=view.every_layer(shown.source, fitted),
                )
        notes(shown.notes)
        text_bertviz.show(shown.source, fitted)
        write_link("text")


def _views(choices: TextChoices) -> None:
    views(list(VIEW_WORDS), choices.view, key="text_view", on_change=_view_picked, words=VIEW_WORDS)


def _while_it_runs(choices: TextChoices, pending: Pending) -> None:
    """The page around a forward pass that runs, or waits to be started: it serves whichever view is chosen."""
    shared = cached.model_if_ready(*choices.model.request)
    assert shared is not None, "there is no pass without a model"
    title_line([shared.model.title])
    with st.container(horizontal=True, vertical_alignment="center", key="text_tools"):
        _views(choices)
    pending.show()
    write_link("text")


def _with_details(source: TextSource, choices: TextChoices) -> Figure | None:
    """The view, and beside it what is known of its heads and of the pinned token."""
    with st.container(key="as_beside"):
        wide, narrow = st.columns([4, 1], gap="medium")
    with wide:
        figure = VIEWS[choices.view].show(source, choices)
    with narrow:
        text_details.show(source, choices)
    return figure


def opened(choices: TextChoices) -> Shown | None:
    """The source of the chosen model and input; the example while the model loads; None when neither is there."""
    shared = cached.model_if_ready(*choices.model.request)
    if shared is None:
        example = cached.example().text
        if not example.answers(choices):
            return None
        return Shown(
            example,
            title_of(choices.model),
            example.revision,
            f"{len(example.labels)} tokens",
            (),
            example.notes,
        )
    try:
        traced = _traced(choices)
    except Exception as error:  # noqa: BLE001 - told, and the last good view stays
        return _last_good(choices, error)
    st.session_state[LAST_GOOD] = choices
    return _live(traced, choices)


def _traced(choices: TextChoices) -> cached.Traced:
    return cached.traced_text(
        choices.model.name,
        choices.model.revision,
        choices.input.text,
        choices.input.pair,
        choices.reading,
        choices.model.numbers,
    )


def _last_good(choices: TextChoices, error: Exception) -> Shown | None:
    """Tell the error above what was shown before it."""
    tell_error(error, what="This input could not be shown")
    before = st.session_state.get(LAST_GOOD)
    if before is None or (before.input, before.model) == (choices.input, choices.model):
        return None
    st.caption("Below: what was shown before.")
    return _live(_traced(before), choices)


def _live(traced: cached.Traced, choices: TextChoices) -> Shown:
    inputs, model = traced.inputs, traced.model
    source = text_source(traced)
    short = max(len(source.part(part).rows) for part in source.parts) <= WORD_TOKENS
    length, badges = f"{inputs.kept_tokens:,} tokens", []
    if inputs.reading is not None:
        length += f" in {len(inputs.reading.windows):,} windows of {inputs.reading.window:,}"
    elif choices.reading.how == "alone":
        length += f", window {choices.reading.alone} of the text alone"
    if inputs.kept_tokens < inputs.total_tokens:
        length = f"first {inputs.kept_tokens:,} of {inputs.total_tokens:,} tokens"
        badges.append(Badge("truncated", f"Only the {length} are read; the rest was cut off.", "warning"))
    if choices.merge_words and short:
        source = merged_words(traced, source)
        length += f" in {len(source.part(source.parts[0]).rows):,} words"
    maps = [layer for held in source.maps.values() for layer in held]
    told = (*cached.streamed_notes(maps), *model.notes, *inputs.notes, *traced.trace.notes)
    predicted = cached.prediction(traced)
    return Shown(source, model.title, model.revision, length, tuple(badges), told, predicted)


def fit(source: TextSource, choices: TextChoices) -> TextChoices:
    """The choices fitted to what is there; kept, so that a link beyond the end shows the last layer and says so."""
    part: Part = choices.part if choices.part in source.parts else source.parts[0]
    if part != choices.part:
        choose("text", part=part)
        choices = current().text
    info = source.part(part)
    fitted = clamped_text(
        choices, layers=info.layers, heads=info.heads, queries=len(info.rows), keys=len(info.columns)
    )
    if fitted != choices:
        names = ("layer", "heads", "pinned", "zoom", "cell", "window", "rollout_layer")
        choose("text", **{name: getattr(fitted, name) for name in names})
        if fitted.layer != choices.layer and info.layers > 1:
            st.info(
                f"This model has layers 0 to {info.layers - 1}; layer {choices.layer} was changed to the last."
            )
    return fitted


def _waiting(choices: TextChoices) -> None:
    title_line([title_of(choices.model)])
    waiting_view("The view appears here as soon as the model is ready.")


def _title(shown: Shown, choices: TextChoices) -> None:
    info = shown.source.part(choices.part)
    facts = [shown.model, shown.length]
    if choices.view in ("head", "matrix"):
        facts.append(f"layer {choices.layer}")
    if choices.view == "head":
        facts.append(heads_fact(active_heads(choices, info.heads), info.heads))
    elif choices.view == "matrix":
        mean = choices.aggregation == "mean"
        facts.append(f"mean of {info.heads} heads" if mean else f"head {focus_head(choices)}")
    elif choices.view != "evidence":
        facts.append(f"{counted(info.layers, 'layer')} × {counted(info.heads, 'head')}")
    if len(shown.source.parts) > 1 and choices.view != "evidence":
        facts.append(PART_WORDS[choices.part].lower())
    title_line(facts, shown.badges)


def _part_choice(source: TextSource, choices: TextChoices) -> None:
    if len(source.parts) > 1:
        choice(
            "Kind of attention",
            source.parts,
            choices.part,
            key="text_part",
            on_change=lambda: choose("text", part=st.session_state["text_part"]),
            words=lambda part: PART_WORDS[part],
            width=160,
        )


def _view_picked() -> None:
    picked = st.session_state["text_view"]
    opens = {"open_in": picked} if picked in ("head", "matrix") else {}
    choose("text", view=picked, **opens)


def _provenance(shown: Shown, choices: TextChoices, figure: Figure) -> Provenance:
    info = shown.source.part(choices.part)
    text = choices.input.text if choices.input.pair is None else f"{choices.input.text}\n{choices.input.pair}"
    if isinstance(figure, EvidenceWords):
        return evidence_provenance(
            figure,
            shown.model,
            shown.revision,
            text,
            shown.notes,
            layers=info.layers,
            options=choices.evidence.options,
        )
    if isinstance(figure, HeadGrid):
        return heads_provenance(
            figure, shown.model, shown.revision, text, shown.notes, choices=choices.patterns
        )
    if isinstance(figure, AttentionContrast | CheckedSet | HeadEffects | TradeOff):
        return adversarial_provenance(
            figure, shown.model, shown.revision, text, shown.notes, choices=choices.adversarial
        )
    whole = choices.view in ("model", "rollout")
    last = info.layers - 1 if choices.rollout_layer is None else choices.rollout_layer
    layer = layer_in_words(None if whole else choices.layer, info.layers)
    heads, aggregation = heads_in_words(active_heads(choices, info.heads), info.heads), "none"
    if whole:
        heads = f"all {info.heads}"
    elif choices.view == "matrix":
        heads = str(focus_head(choices))
        if choices.aggregation == "mean":
            heads, aggregation = f"all {info.heads}", f"mean of {info.heads} heads"
    method = "attention weights"
    if choices.view == "rollout":
        layer = f"0 to {last} of 0–{info.layers - 1}"
        aggregation = f"{choices.fusion} of {info.heads} heads"
        method = "attention rollout (Abnar & Zuidema 2020)"
    return provenance(
        model=shown.model,
        revision=shown.revision,
        input=text,
        layer=layer,
        heads=heads,
        aggregation=aggregation,
        method=method,
        settings=_settings(choices, shown, figure),
        notes=shown.notes,
    )


def _settings(choices: TextChoices, shown: Shown, figure: Figure) -> dict[str, object]:
    settings: dict[str, object] = {"attention": choices.part, "tokens": shown.length}
    if choices.merge_words:
        settings["words"] = "subwords merged: to a word summed, from a word averaged (Clark et al. 2019)"
    if choices.view == "rollout":
        settings["discard ratio"] = choices.discard_ratio
        if isinstance(figure, TokenScores):
            from dashboard.views.text_rollout import source_token  # loaded by now: it drew the figure

            settings["source token"] = source_token(choices, len(shown.source.part(choices.part).rows))
    return settings
