"""The controls of the Evidence views and what both pages ask of the methods: answers, progress, panels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import streamlit as st

from analysis.figure_data import EvidencePanel
from analysis.visible_evidence import evidence_limit
from dashboard import cached, evidence_cache
from dashboard.boundary import known_sentence, tell_error
from dashboard.evidence_choices import EvidenceChoices, MethodOptions
from dashboard.evidence_jobs import Job
from dashboard.frame import literal, note, polled, signed_number, waiting_view
from dashboard.long_runs import stage_in_words
from dashboard.selection import bound, choose_evidence
from dashboard.views.evidence_options import option_tools, option_words

if TYPE_CHECKING:
    from analysis.evidence.explanation import Explanation
    from analysis.evidence.methods import Method
    from analysis.evidence.targets import Target

Page = Literal["text", "image"]

WAITING = "The evidence appears as soon as the model is ready."
POLL_SECONDS = 0.5


@contextmanager
def computing(page: Page, traced: cached.Traced) -> Iterator[None]:
    """Say what is done for an input that the page has not shown yet, in the place of the view that comes."""
    key = f"{page}_evidence_shown"
    place = st.empty()
    if st.session_state.get(key) != traced.key:
        with place.container():
            waiting_view("One forward and one backward pass …")
    try:
        yield
    finally:
        place.empty()
    st.session_state[key] = traced.key


# Methods ------------------------------------------------------------------------------------------------------------


def chosen_methods(choices: EvidenceChoices, chosen: evidence_cache.Subject) -> tuple[str, ...]:
    """The methods to ask: those that the user picked, else some that suit the model, quick ones first."""
    if choices.methods is not None:
        return choices.methods
    if chosen.run.tokens:
        return ("cdam", "gradcam", "relevance", "rollout")
    maps = [layer.map for layers in chosen.run.layers.values() for layer in layers]
    if any(found.queries == found.keys for found in maps):  # tokens attend to each other
        return ("relevance", "rollout", "integrated_gradients", "leave_one_out")
    return ("attention", "integrated_gradients", "leave_one_out")


def method_tools(
    page: Page, choices: EvidenceChoices, methods: Sequence[str], chosen: evidence_cache.Subject
) -> MethodOptions:
    """The methods as pills and a popover with their options; returns the options that differ from the defaults."""
    with st.container(
        horizontal=True, vertical_alignment="top", gap="small", key=f"{page}_evidence_methods_row"
    ):
        _method_pills(page, methods)
        return option_tools(page, choices, methods, chosen.run)


def _method_pills(page: Page, methods: Sequence[str]) -> None:
    """Methods of many passes are marked."""
    from analysis.evidence.methods import METHODS

    key = f"{page}_evidence_methods"

    def picked() -> None:
        chosen = st.session_state[key] or ()
        choose_evidence(page, methods=tuple(name for name in METHODS if name in chosen))

    def title(name: str) -> str:
        method = METHODS[name]
        return f":material/timer: {method.title}" if method.cost == "passes" else method.title

    st.pills(
        "Methods",
        list(METHODS),
        **bound(key, list(methods), default="default"),
        selection_mode="multi",
        format_func=title,
        on_change=picked,
        label_visibility="collapsed",
        wrap=True,
        help="A clock marks methods that run the model many times; they run behind the page and can be stopped",
    )


@dataclass(frozen=True)
class Answer:
    """What one method says of one target.

    Attributes:
        target: None where the method asks for none.
        options: of the method, beside its defaults.
    """

    method: Method
    target: Target | None
    explanation: Explanation
    options: evidence_cache.Options = ()


@dataclass(frozen=True)
class Answers:
    """What there is to show, and what is still being computed or could not be.

    Attributes:
        ready: methods in their order, the targets of one following one another.
        jobs: (title, job) of methods of many passes that have not ended well.
        refused: (title, why) of methods that cannot answer here.
    """

    ready: tuple[Answer, ...]
    jobs: tuple[tuple[str, Job], ...]
    refused: tuple[tuple[str, Exception], ...]


def answers(
    chosen: evidence_cache.Subject,
    methods: Sequence[str],
    targets: Sequence[Target],
    options: MethodOptions = (),
) -> Answers:
    """Ask the chosen methods; those of one pass answer at once where that does not take long, the others as jobs.

    Args:
        options: of the methods, beside their defaults.
    """
    from analysis.evidence.methods import METHODS

    long = evidence_cache.takes_long(chosen)
    ready: list[Answer] = []
    jobs: list[tuple[str, Job]] = []
    refused: list[tuple[str, Exception]] = []
    for method in (METHODS[key] for key in methods):
        asked: Sequence[Target | None] = targets if method.uses_target else (None,)
        own = dict(options).get(method.key, ())
        for target in asked:
            if method.cost == "passes" or long:
                job = evidence_cache.requested(chosen, method.key, target, own)
                if job.state == "ready":
                    ready.append(Answer(method, target, job.answer, own))
                else:
                    jobs.append((method.title, job))
                continue
            try:
                found = evidence_cache.explained(
                    chosen.key,
                    method.key,
                    () if target is None else target.key,
                    own,
                    _run=chosen.run,
                    _target=target,
                )
            except Exception as error:  # noqa: BLE001 - told beside the methods that do answer
                refused.append((method.title, error))
                break
            ready.append(Answer(method, target, found, own))
    return Answers(tuple(ready), tuple(jobs), tuple(refused))


def progress(page: Page, jobs: Sequence[tuple[str, Job]], *, of: str = "evidence") -> None:
    """How far jobs of many passes are, and a way to stop them, or to run one again.

    Args:
        of: tells apart the places of a page that show progress.
    """
    # One that became ready since the page looked at it has not been shown: the page must run again for it too.
    active = [(title, job) for title, job in jobs if job.active or job.state == "ready"]
    if active:
        polled(partial(_watch, f"{page}_{of}", active), partial(_any_ended, active), seconds=POLL_SECONDS)
    ended = [(title, job) for title, job in jobs if not job.active]
    for title, job in ended:
        if job.error is not None:
            _tell_refusal(title, job.error)
    stopped = [(title, job) for title, job in ended if job.state == "stopped"]
    if stopped:
        with st.container(horizontal=True, vertical_alignment="center", key=f"{page}_{of}_stopped"):
            names = ", ".join(dict.fromkeys(title for title, _ in stopped))
            st.html(f'<div class="as-note">Stopped: {names}.</div>', width="content")
            st.button(
                "Run again",
                key=f"{page}_{of}_again",
                on_click=partial(_forget, [job for _, job in stopped]),
            )


def _any_ended(active: Sequence[tuple[str, Job]]) -> bool:
    return any(not job.active for _, job in active)


def _watch(key: str, active: Sequence[tuple[str, Job]]) -> None:
    for _, job in active:
        job.watch()
    title, running = next((each for each in active if each[1].state == "running"), active[0])
    rest = sum(job.active for _, job in active) - running.active
    words = f"{title}: {stage_in_words(running)}" + (f"; then {rest} more" if rest else "")
    with st.container(horizontal=True, vertical_alignment="center", key=f"{key}_progress"):
        st.progress(running.done, text=words)
        st.button(
            "Stop",
            key=f"{key}_stop",
            on_click=partial(_stop, [job for _, job in active]),
            help="Stops within a second or so; what is ready stays",
        )


def _stop(jobs: Sequence[Job]) -> None:
    for job in jobs:
        job.stop()


def _forget(jobs: Sequence[Job]) -> None:
    for job in jobs:
        evidence_cache.jobs().forget(job.key)


def tell_refusals(refused: Sequence[tuple[str, Exception]]) -> None:
    """Why a method does not answer, one quiet line each."""
    for title, error in refused:
        _tell_refusal(title, error)


def _tell_refusal(title: str, error: Exception) -> None:
    sentence = known_sentence(error) or (_after_name(str(error)) if isinstance(error, ValueError) else None)
    if sentence is None:
        tell_error(error, what=f"{literal(title)} could not be computed")
    else:
        note(f"{title}: {sentence}")


def _after_name(message: str) -> str:
    return message.split(": ", 1)[-1]


# Panels -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """What was measured of one answer, in sentences, beside what it says of itself."""

    facts: tuple[str, ...] = ()
    warning: str = ""


def panels(
    found: Sequence[Answer],
    scores: Sequence[Any],
    *,
    left_out: str,
    measured: Sequence[Measured] | None = None,
) -> tuple[EvidencePanel, ...]:
    """What stands around each map: scale, claims, measured facts and warnings.

    Args:
        found: the answers; ``scores``: their scores as arrays, as they are drawn.
        left_out: what the positions are called that have no place in the drawing, such as "CLS".
        measured: one an answer, or None where nothing was.
    """
    from analysis.evidence.methods import unchanging_reason

    made = []
    for index, answer in enumerate(found):
        same = [place for place, other in enumerate(found) if other.method.key == answer.method.key]
        alike = [
            place for place in same if _kind(found[place]) == _kind(answer)
        ]  # others are another quantity
        told_later = len(same) == 2 and index == same[0]  # what both answers say stands under the second
        facts = _facts(answer.explanation, left_out, notes=not told_later)
        chosen = option_words(answer.method, answer.options)
        warning = ""
        if measured is not None:
            facts, warning = (*measured[index].facts, *facts), measured[index].warning
        if len(same) == 2 and index == same[1]:
            first = found[same[0]].target
            other = "the first" if first is None else f"that for {first.label}"
            told, alike_warning = dependence(scores[same[0]], scores[same[1]], other)
            facts, warning = (told, *facts), " ".join(filter(None, (alike_warning, warning)))
        made.append(
            EvidencePanel(
                method=answer.method.title,
                target="" if answer.target is None else answer.target.label,
                signed=answer.explanation.signed,
                limit=evidence_limit([scores[place] for place in alike]),
                claims=answer.method.claims,
                cannot=answer.method.cannot,
                facts=(chosen, *facts) if chosen else facts,
                empty=unchanging_reason(answer.method.key, answer.explanation),
                warning=warning,
            )
        )
    return tuple(made)


def _kind(answer: Answer) -> str:
    return "" if answer.target is None else answer.target.kind


def _facts(explanation: Explanation, left_out: str, *, notes: bool) -> tuple[str, ...]:
    facts = []
    if explanation.removed >= 0.0005 and left_out:
        facts.append(f"Left out: {explanation.removed:.1%} of Σ|score| lies on {left_out}.")
    delta = explanation.details.get("delta")
    if isinstance(delta, int | float):
        steps = explanation.details.get("steps")
        after = f" after {int(steps)} steps" if isinstance(steps, int | float) else ""
        facts.append(f"Convergence error {delta:.3g}{after}.")
    return (*facts, *explanation.notes) if notes else tuple(facts)


def dependence(first: Any, second: Any, other: str) -> tuple[str, str]:
    """How alike the maps of two targets are, and the warning where they are nearly the same.

    Args:
        other: what the second map is, such as "that for elephant".
    """
    import torch

    from analysis.evidence.faithfulness import ClassSensitivity, rank_correlation

    found = rank_correlation(torch.as_tensor(first), torch.as_tensor(second))
    if math.isnan(found):
        return f"This map or {other} is constant: no correlation.", ""
    return f"Rank correlation with {other}: {signed_number(found)}.", ClassSensitivity(found).warning
