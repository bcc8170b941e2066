"""Evidence for every word that a language model predicts in a text: a table of one method."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import streamlit as st

from analysis.figure_data import EvidencePanel, EvidenceWords
from analysis.visible_evidence import evidence_limit
from dashboard import cached, evidence_cache, figures
from dashboard.components.evidence_table import evidence_table, evidence_table_payload, table_state
from dashboard.evidence_choices import EvidenceChoices
from dashboard.frame import choice, note, waiting_view
from dashboard.selection import choose_evidence
from dashboard.sources import TextSource
from dashboard.views import evidence_tools

if TYPE_CHECKING:
    from analysis.evidence.every_word import EveryWord

KEY = "text_evidence_every_word"
METHOD_KEY = "text_evidence_every_word_method"


def show(
    source: TextSource, choices: EvidenceChoices, subject: evidence_cache.Subject, methods: Sequence[str]
) -> EvidenceWords | None:
    """Draw the table of one of the methods; returns its record, None while there is none.

    Args:
        methods: keys of the chosen methods, in their order; those that have a table for this model are offered.
    """
    from analysis.evidence.every_word import refusal
    from analysis.evidence.methods import METHODS

    options = {key: _options(choices, key) for key in methods}
    reasons = {key: refusal(subject.run, key, **options[key]) for key in methods}
    offered = [key for key in methods if not reasons[key]]
    if len(offered) > 1:
        choice(
            "Method of the table",
            offered,
            _chosen(offered),
            key=METHOD_KEY,
            on_change=lambda: None,
            words=lambda key: METHODS[key].title,
            width=230,
            help="The table shows one method; cells are what a word rests on",
        )
    view = _table(source, choices, subject, _chosen(offered), options) if offered else None
    if not offered:
        waiting_view("Choose a method that has a table." if methods else "Choose a method above.")
    for reason in dict.fromkeys(filter(None, reasons.values())):
        note(f"No table: {reason}")
    return view


def record(found: EveryWord, choices: EvidenceChoices, source: TextSource) -> EvidenceWords:
    """The record of a table: a panel a predicted word, the first of which says what is known of the method."""
    from analysis.evidence.methods import METHODS

    method = METHODS[found.method]
    scores = found.scores.numpy()
    limit = evidence_limit([np.nan_to_num(scores)])
    facts = list(found.notes)
    if found.removed >= 0.0005:
        facts.insert(
            0, f"Left out: {found.removed:.1%} of a word's Σ|score|, on average, lies on special tokens."
        )
    if not np.nan_to_num(scores).any():
        facts.insert(0, "Every score is 0.")
    said = {"claims": method.claims, "cannot": method.cannot, "facts": tuple(facts)}
    panels = tuple(
        EvidencePanel(
            method=method.title,
            target=word.target.label,
            signed=found.signed,
            limit=limit,
            **(said if index == 0 else {}),  # type: ignore[arg-type]
        )
        for index, word in enumerate(found.words)
    )
    marked = next(
        (index for index, word in enumerate(found.words) if word.position == choices.position), None
    )
    return EvidenceWords(
        scores=scores,
        tokens=found.tokens,
        panels=panels,
        title=f"What every predicted word rests on · {method.title}",
        positive=choices.positive,
        marked=marked,
        direction=source.direction,
        unit="tokens",
        predicted=tuple(word.label for word in found.words),
        probabilities=np.exp(found.log_probabilities.numpy()),
    )


def _options(choices: EvidenceChoices, method: str) -> dict[str, Any]:
    """The method's options that a table takes: the row is the predicted word's own."""
    if method == "leave_one_out":
        return {}
    return {name: value for name, value in choices.options_of(method) if name != "row"}


def _chosen(offered: Sequence[str]) -> str:
    """The method in the select box, or the first."""
    chosen = st.session_state.get(METHOD_KEY)
    return next((key for key in offered if key == chosen), offered[0])


def _table(
    source: TextSource,
    choices: EvidenceChoices,
    subject: evidence_cache.Subject,
    method: str,
    options: Mapping[str, Mapping[str, Any]],
) -> EvidenceWords | None:
    from analysis.evidence.methods import METHODS

    own = tuple(options[method].items())

    def work(progress: Callable[[float], None]) -> EveryWord:
        from analysis.evidence.every_word import every_word

        return every_word(subject.run, method, progress=progress, **dict(own))

    job = evidence_cache.measured(subject, ("every_word", method, own), work)
    if job.state != "ready":
        if job.active:
            waiting_view("The table appears when every word has had its turn.")
        evidence_tools.progress("text", [(f"{METHODS[method].title}, every word", job)], of="every_word")
        return None
    view = record(job.answer, choices, source)
    _draw(source, view, job.answer, (method, own))
    return view


def _draw(
    source: TextSource, view: EvidenceWords, found: EveryWord, what: tuple[str, tuple[tuple[str, Any], ...]]
) -> None:
    chosen = ("every_word", what, view.positive, view.marked)
    payload = cached.payload(source.key, chosen, lambda: evidence_table_payload(view))
    header, _ = figures.read_header(payload)
    evidence_table(payload, key=KEY, on_change=partial(_said, header, found))


def _said(header: Mapping[str, Any], found: EveryWord) -> None:
    said = table_state(header, key=KEY)
    if "marked" in said:
        word = None if said["marked"] is None else found.words[said["marked"]]
        choose_evidence(
            "text",
            position=None if word is None else word.position,
            token=None if word is None else word.token,
        )
    if "positive" in said:
        choose_evidence("text", positive=said["positive"])
