"""Evidence for and against a class or a likeness in a text, by several methods, words coloured by their scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import streamlit as st

from analysis.figure_data import EvidenceWords, TokenLabel
from analysis.samples import TEXT_SAMPLES
from dashboard import cached, charts, evidence_cache, figures
from dashboard.components import evidence_state, evidence_words
from dashboard.document_places import is_long, place_tools
from dashboard.evidence_choices import MOST_EXAMPLES
from dashboard.evidence_payload import evidence_words_payload
from dashboard.frame import note, waiting_view
from dashboard.selection import TextChoices, bound, choose, choose_evidence, current
from dashboard.sources import TextSource
from dashboard.views import (
    evidence_every_word,
    evidence_targets,
    evidence_tools,
    evidence_trust,
    text_evidence_document,
)
from dashboard.views.evidence_tools import Answer, Measured
from dashboard.views.evidence_word_target import has_table, predicts_words, word_target, word_tools

if TYPE_CHECKING:
    from analysis.evidence.targets import Target

KEY = "text_evidence_words"
CHART_WIDTH = 268
EXAMPLE_CHARACTERS = 2000
"""Most characters of a typed example."""


def tools(source: TextSource, choices: TextChoices) -> None:
    """What is explained, and whether sub-words are summed into words."""
    traced = source.traced
    if traced is None:
        return
    asked = evidence_targets.fitted("text", choices.evidence, traced)
    prediction = cached.prediction(traced)
    if prediction is not None:
        offered = evidence_targets.embeds(traced.model)
        evidence_targets.class_tools("text", asked, prediction, likeness=offered)
    if asked.likeness or (prediction is None and not _predicts_words(traced)):
        _example_tools(choices)
    place_tools(traced.inputs.tokens or (), choices)
    if any(token.continues for token in traced.inputs.tokens or ()):
        key = "text_evidence_unit"
        st.segmented_control(
            "Scores of",
            ("words", "tokens"),
            **bound(key, "words" if asked.words else "tokens", default="default"),
            on_change=lambda: choose_evidence("text", words=st.session_state[key] == "words"),
            format_func=str.capitalize,
            required=True,
            label_visibility="collapsed",
            help="Words: the scores of a word's tokens, summed",
        )


def show(source: TextSource, choices: TextChoices) -> EvidenceWords | None:
    """Draw the view; returns the record of what is on the screen, None while there is nothing."""
    traced = source.traced
    if traced is None:
        waiting_view(evidence_tools.WAITING)
        return None
    choices = current().text
    if traced.inputs.reading is not None:
        return text_evidence_document.show(source, choices, explained, record, _draw, _bars)
    pills = st.container(key="text_evidence_pills")
    with evidence_tools.computing("text", traced):
        subject = evidence_cache.subject(traced)
        methods = evidence_tools.chosen_methods(choices.evidence, subject)
        with pills:
            words = predicts_words(subject)
            if words:
                word_tools(choices.evidence, subject)
            options = evidence_tools.method_tools("text", choices.evidence, methods, subject)
        if words and choices.evidence.every_word and has_table(subject):
            return evidence_every_word.show(source, choices.evidence, subject, methods)
        targets = explained(choices, subject)
        found = evidence_tools.answers(subject, methods, targets, options)
        trust = evidence_trust.examine("text", subject, found.ready, targets)
    if not methods:
        waiting_view("Choose a method above.")
        return None
    evidence_tools.progress("text", found.jobs)
    view = None
    if found.ready and len(found.ready[0].explanation.scores):
        title = evidence_targets.title_of(targets, subject)
        view = record(source, choices, found.ready, title, trust.measured)
        whole = view
        if is_long(len(view.tokens)):
            view = _long(source, choices, view, targets)
        else:
            _draw(source, view, targets, slice(None))
        _bars(whole)
        evidence_trust.show("text", trust)
    elif found.ready:
        note("The text holds special tokens alone; write a word.")
    elif found.jobs:
        waiting_view("The first scores appear as soon as their method is done.")
    evidence_tools.tell_refusals(found.refused)
    evidence_targets.target_notes(targets)
    return view


def record(
    source: TextSource,
    choices: TextChoices,
    found: Sequence[Answer],
    title: str,
    measured: Sequence[Measured] | None = None,
) -> EvidenceWords:
    """The record of what is on the screen: scores of words where they are asked for, else of tokens."""
    from analysis.evidence.explanation import to_words
    from analysis.words import merge_labels

    assert source.traced is not None
    tokens = source.traced.inputs.tokens or ()
    asked = choices.evidence
    first = found[0].explanation
    groups: list[tuple[int, ...]] = [(int(position),) for position in first.positions]
    labels: Sequence[TokenLabel] = [tokens[group[0]] for group in groups]
    scores = [answer.explanation.scores.numpy() for answer in found]
    if asked.words:
        groups = to_words(first, tokens)[1]
        labels = merge_labels(tokens, groups)
        scores = [to_words(answer.explanation, tokens)[0].scores.numpy() for answer in found]
    pinned = choices.pinned[1] if choices.pinned is not None and choices.pinned[0] == "left" else None
    return EvidenceWords(
        scores=np.stack(scores),
        tokens=tuple(labels),
        panels=evidence_tools.panels(found, scores, left_out="special tokens", measured=measured),
        title=title,
        positive=asked.positive,
        marked=next((index for index, group in enumerate(groups) if pinned in group), None),
        direction=source.direction,
        unit="words" if asked.words else "tokens",
    )


def _long(
    source: TextSource, choices: TextChoices, view: EvidenceWords, targets: Sequence[Target]
) -> EvidenceWords:
    """A text of many tokens that is read at once: a strip of the whole, and the part that is shown, returned."""
    assert source.traced is not None
    places = places_of_labels(source.key, source.traced.inputs.tokens or (), view)
    inside = text_evidence_document.strip_and_part(view, choices, places)
    shown = text_evidence_document.part_of_evidence(view, inside)
    _draw(source, shown, targets, inside)
    return shown


def _draw(source: TextSource, view: EvidenceWords, targets: Sequence[Target], inside: slice) -> None:
    """The coloured text; ``inside``: which labels of the whole these are."""
    chosen = (
        "evidence",
        tuple(target.key for target in targets),
        view.title,
        view.unit,
        tuple((panel.method, panel.target, panel.facts, panel.warning) for panel in view.panels),
        current().text.evidence.options,
        view.positive,
        view.marked,
        inside.start,
        inside.stop,
    )
    payload = cached.payload(source.key, chosen, lambda: evidence_words_payload(view))
    header, _ = figures.read_header(payload)
    assert source.traced is not None
    places = places_of_labels(source.key, source.traced.inputs.tokens or (), view)
    evidence_words(payload, key=KEY, on_change=partial(_said, header, places[inside]))


def places_of_labels(key: str, tokens: Sequence[TokenLabel], view: EvidenceWords) -> tuple[int, ...]:
    """Token that each label begins with."""
    return _places(key, view.unit, _tokens=tokens)


@st.cache_resource(max_entries=8, show_spinner=False)
def _places(key: str, unit: str, _tokens: Sequence[TokenLabel]) -> tuple[int, ...]:
    from analysis.words import word_groups

    kept = [index for index, token in enumerate(_tokens) if not token.special]
    if unit == "tokens":
        return tuple(kept)
    ordinary = set(kept)
    return tuple(group[0] for group in word_groups(_tokens) if group[0] in ordinary)


def _said(header: Mapping[str, Any], places: Sequence[int]) -> None:
    said = evidence_state(header, key=KEY)
    if "marked" in said:
        marked = said["marked"]
        choose("text", pinned=None if marked is None else ("left", places[marked]))
    if "positive" in said:
        choose_evidence("text", positive=said["positive"])


def _bars(view: EvidenceWords) -> None:
    """The strongest words of each panel, as many charts side by side as there is room for."""
    with st.container(horizontal=True, key="text_evidence_charts", gap="small"):
        for index, panel in enumerate(view.panels):
            st.plotly_chart(
                charts.strongest_words_chart(view, index),
                key=f"text_evidence_chart_{index}",
                theme=None,
                width=CHART_WIDTH,
                config={"displayModeBar": False},
                alt=f"The strongest words of {panel.method} as bars",
            )


def _predicts_words(traced: cached.Traced) -> bool:
    from analysis.evidence.targets import offered_targets

    return any(
        offer.kind == "token_log_probability" and not offer.refusal for offer in offered_targets(traced.model)
    )


# Targets ------------------------------------------------------------------------------------------------------------


def explained(choices: TextChoices, subject: evidence_cache.Subject) -> tuple[Target, ...]:
    """What the page explains: classes, a predicted word, or a likeness."""
    if predicts_words(subject):
        return (word_target(choices.evidence, subject),)
    prediction = cached.prediction(subject.traced)
    if prediction is not None and not choices.evidence.likeness:
        return evidence_targets.class_targets(choices.evidence, prediction)
    evidence_targets.likeness_note(subject.traced, "text")
    return _likeness(examples_of(choices), choices, subject)


def examples_of(choices: TextChoices) -> tuple[str, ...]:
    """The texts that likeness is to; another sample where none is given, so that there is a target."""
    others = (sample.text for sample in TEXT_SAMPLES if sample.text != choices.input.text)
    return choices.evidence.examples or (next(others),)


def _likeness(
    examples: Sequence[str], choices: TextChoices, subject: evidence_cache.Subject
) -> tuple[Target, ...]:
    """Likeness to one text, or a concept from several."""
    from analysis.evidence.targets import default_pooling
    from analysis.inputs import encode_text

    model, embeddings = subject.shared.model, []
    pooling = default_pooling(model)
    for example in examples:
        inputs = encode_text(
            model, example, max_tokens=min(model.max_tokens or cached.TOKEN_LIMIT, cached.TOKEN_LIMIT)
        )
        key = cached.digest(model.identity, inputs.digest)
        embeddings.append(evidence_cache.embedding(key, pooling, _shared=subject.shared, _inputs=inputs))
    target = evidence_targets.likeness_target(
        embeddings, pooling, name=_short(examples[0]), examples="texts", cosine=choices.evidence.cosine
    )
    return (target,)


def _short(text: str) -> str:
    return text if len(text) <= 48 else f"{text[:47]}…"


def _example_tools(choices: TextChoices) -> None:
    """The texts that likeness is to, one a line."""
    key = "text_evidence_examples"

    def typed() -> None:
        lines = [line.strip()[:EXAMPLE_CHARACTERS] for line in st.session_state[key].splitlines()]
        examples = dict.fromkeys(line for line in lines if line)
        choose_evidence("text", examples=tuple(examples)[:MOST_EXAMPLES])

    found = examples_of(choices)
    label = f"Like: {_short(found[0])}" if len(found) == 1 else f"Concept of {len(found)} texts"
    with st.popover(label.replace("[", "(").replace("]", ")"), key="text_evidence_like", width=330):
        st.text_area(
            "Texts, one a line: one is a likeness, several are a concept (the mean of their embeddings)",
            **bound(key, "\n".join(found)),
            on_change=typed,
            height=160,
        )
    if len(found) > 1:
        evidence_targets.measure_box("text", choices.evidence)
