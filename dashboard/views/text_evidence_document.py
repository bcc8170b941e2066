"""Evidence of a document that is read in windows: each window explained alone, put together, shown part by part."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import streamlit as st

from analysis.figure_data import EvidenceWords
from dashboard import cached, document_jobs, evidence_cache
from dashboard.document_places import document_map, part_of
from dashboard.evidence_choices import MethodOptions
from dashboard.evidence_jobs import Job
from dashboard.frame import choice, note, waiting_view
from dashboard.long_runs import OFFER_SECONDS
from dashboard.selection import TextChoices
from dashboard.sources import TextSource
from dashboard.views import evidence_tools
from dashboard.views.evidence_targets import target_notes
from dashboard.views.evidence_tools import Answer, Answers
from dashboard.views.evidence_word_target import predicts_words
from dashboard.views.text_windows import offer_alone

if TYPE_CHECKING:
    from analysis.evidence.targets import Target

STRIP_KEY = "text_evidence_strip_of"


def show(
    source: TextSource,
    choices: TextChoices,
    explained: Callable[[TextChoices, evidence_cache.Subject], Sequence[Target]],
    record: Callable[..., EvidenceWords],
    draw: Callable[..., None],
    bars: Callable[[EvidenceWords], None],
) -> EvidenceWords | None:
    """Draw the view; returns the record of the part that is shown, None while there is nothing.

    Args:
        explained: (choices, subject) → targets; ``record``, ``draw`` and ``bars`` as of a text that is read at once.
    """
    traced = source.traced
    assert traced is not None
    subject = first_window(traced)
    if predicts_words(subject):
        offer_alone(traced, choices, "A predicted word belongs to one window.")
        return None
    methods = evidence_tools.chosen_methods(choices.evidence, subject)
    options = evidence_tools.method_tools("text", choices.evidence, methods, subject)
    targets = explained(choices, subject)
    if not methods:
        waiting_view("Choose a method above.")
        return None
    found = answers(subject, methods, targets, options, agreed=_agreed(subject, methods))
    if found is None:
        return None
    evidence_tools.progress("text", found.jobs)
    shown = None
    if found.ready and len(found.ready[0].explanation.scores):
        view = _recorded(source, choices, found, targets, record)
        inside = strip_and_part(view, choices, _first_tokens(source, view))
        shown = part_of_evidence(view, inside)
        draw(source, shown, targets, inside)
        bars(view)
    elif found.jobs:
        waiting_view("The scores appear when every window has been explained.")
    evidence_tools.tell_refusals(found.refused)
    target_notes(targets)
    note(
        "Each window is explained alone. A token's score is the sum of its scores in the windows that hold it, "
        "divided by the number of all: what is explained is the mean over the windows. What ignores the target is "
        "taken from the window that speaks for the token. How far scores can be trusted is measured on one window: "
        "open it alone."
    )
    return shown


def first_window(traced: cached.Traced) -> evidence_cache.Subject:
    """The document as a subject whose forward pass is that of its first window: what models and methods offer."""
    reading = traced.inputs.reading
    assert reading is not None
    window = replace(traced, key=cached.digest(traced.key, "window 0"), inputs=reading.windows[0])
    return evidence_cache.Subject(
        traced.key, traced.shared, traced, evidence_cache.passed(window.key, _traced=window)
    )


def answers(
    chosen: evidence_cache.Subject,
    methods: Sequence[str],
    targets: Sequence[Target],
    options: MethodOptions = (),
    *,
    agreed: Callable[[], bool] = lambda: True,
) -> Answers | None:
    """Ask the chosen methods, all as jobs: those of one pass share that of each window.

    Args:
        agreed: asked before the first job that nobody has started yet; None is the answer to no.
    """
    from analysis.evidence.methods import METHODS

    asked = [
        (METHODS[key], target, dict(options).get(key, ()))
        for key in methods
        for target in (targets if METHODS[key].uses_target else (None,))
    ]
    keys = [document_jobs.job_key(chosen, each) for each in asked]
    if any(evidence_cache.jobs().find(key) is None for key in keys) and not agreed():
        return None
    ready: list[Answer] = []
    jobs: list[tuple[str, Job]] = []
    requested = document_jobs.requested(chosen, asked)
    for (method, target, own), job in zip(asked, requested, strict=True):
        if job.state == "ready":
            ready.append(Answer(method, target, job.answer, own))
        else:
            jobs.append((method.title, job))
    return Answers(tuple(ready), tuple(jobs), ())


def _agreed(chosen: evidence_cache.Subject, methods: Sequence[str]) -> Callable[[], bool]:
    """Whether the reader wants what takes long; asks where that is not known."""

    def agreed() -> bool:
        from analysis.estimate import gradient_estimate, in_words
        from analysis.evidence.methods import METHODS

        traced, agreed_key = chosen.traced, "text_document_agreed"
        one = cached.input_estimate(traced.shared, traced.inputs, gradient_estimate)
        alone = sum(METHODS[key].cost == "passes" for key in methods)
        estimate = replace(one, seconds=one.seconds * (alone + (len(methods) > alone)))
        if estimate.seconds <= OFFER_SECONDS or st.session_state.get(agreed_key) == traced.key:
            return True
        note(
            f"{len(methods)} methods over every window: at least {in_words(estimate)}. They run behind the page, one "
            "after the other, and can be stopped."
        )
        st.button(
            "Explain all windows",
            key="text_document_explain",
            icon=":material/play_arrow:",
            type="primary",
            on_click=lambda: st.session_state.update({agreed_key: traced.key}),
        )
        return False

    return agreed


def _recorded(
    source: TextSource,
    choices: TextChoices,
    found: Answers,
    targets: Sequence[Target],
    record: Callable[..., EvidenceWords],
) -> EvidenceWords:
    """The record of the whole document, made once for what it shows."""
    unmarked = replace(choices, pinned=None)
    told = tuple(
        (answer.method.key, () if answer.target is None else answer.target.key, answer.options)
        for answer in found.ready
    )
    asked = choices.evidence
    title = document_title(targets, found.ready)
    view = _kept_record(
        source.key,
        (told, asked.words, asked.positive, title),
        _build=lambda: record(source, unmarked, found.ready, title),
    )
    pinned = choices.pinned[1] if choices.pinned is not None and choices.pinned[0] == "left" else None
    if pinned is None:
        return view
    firsts = np.array(_first_tokens(source, view))
    place = int(np.searchsorted(firsts, pinned, side="right")) - 1
    return replace(view, marked=place if place >= 0 else None)


@st.cache_resource(max_entries=4, show_spinner=False)
def _kept_record(key: str, chosen: tuple[Any, ...], _build: Callable[[], EvidenceWords]) -> EvidenceWords:
    return _build()


def document_title(targets: Sequence[Target], ready: Sequence[Answer]) -> str:
    """What is explained, with the mean over the windows."""
    names = []
    for target in targets:
        values = [a.explanation.details.get("value") for a in ready if a.target is target]
        number = next((f" {value:.3g}" for value in values if isinstance(value, float)), "")
        names.append(f"{target.label} (mean over windows{number})")
    return f"Evidence for {' and for '.join(names)}" if names else "Evidence"


def part_of_evidence(view: EvidenceWords, inside: slice) -> EvidenceWords:
    """The labels of a part of the document, in the colours of the whole."""
    marked = view.marked
    held = marked is not None and inside.start <= marked < inside.stop
    return replace(
        view,
        scores=view.scores[:, inside],
        tokens=view.tokens[inside],
        title=f"{view.title}, {view.unit} {inside.start:,} to {inside.stop - 1:,}",
        marked=marked - inside.start if marked is not None and held else None,
        start=view.start + inside.start,
    )


def _first_tokens(source: TextSource, view: EvidenceWords) -> tuple[int, ...]:
    from dashboard.views.text_evidence import places_of_labels

    assert source.traced is not None
    return places_of_labels(source.key, source.traced.inputs.tokens or (), view)


def strip_and_part(view: EvidenceWords, choices: TextChoices, places: Sequence[int]) -> slice:
    """Draw one panel's scores along the whole text; returns which labels stand in the part that is shown.

    Args:
        places: token that each label begins with.
    """
    names = [f"{panel.method} {panel.target}".strip() for panel in view.panels]
    index = min(st.session_state.get(STRIP_KEY, 0), len(names) - 1)
    if len(names) > 1:
        choice(
            "Scores along the document",
            range(len(names)),
            index,
            key=STRIP_KEY,
            on_change=lambda: None,
            words=lambda number: f"Along the text: {names[number]}",
            width=330,
        )
    document_map(
        f"text_evidence_{index}",
        view.scores[index],
        choices,
        signed=view.panels[index].signed,
        direction=view.direction,
        unit=view.unit.removesuffix("s"),
        positions=places,
    )
    shown = part_of(places[-1] + 1, choices.window)
    return slice(*(int(place) for place in np.searchsorted(np.array(places), (shown.start, shown.stop))))
