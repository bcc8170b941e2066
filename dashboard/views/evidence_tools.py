"""The controls of the Evidence views and what both pages ask of the methods: targets, answers, progress, panels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import streamlit as st

from analysis.figure_data import EvidencePanel
from analysis.visible_evidence import evidence_limit
from dashboard import cached, evidence_cache
from dashboard.boundary import known_sentence, tell_error
from dashboard.evidence_choices import EvidenceChoices, clamped_evidence
from dashboard.evidence_jobs import Job
from dashboard.frame import choice, literal, note, waiting_view
from dashboard.prediction_line import percent
from dashboard.selection import bind, choose_evidence

if TYPE_CHECKING:
    from analysis.evidence.explanation import Explanation
    from analysis.evidence.methods import Method
    from analysis.evidence.targets import Target
    from analysis.predictions import Prediction

Page = Literal["text", "image"]

WAITING = "The evidence appears as soon as the model is ready."
POLL_SECONDS = 0.5
NOTHING = -1
"""Option of a select box that chooses no class."""


# Targets ------------------------------------------------------------------------------------------------------------


def fitted(page: Page, choices: EvidenceChoices, traced: cached.Traced) -> EvidenceChoices:
    """The choices fitted to the model; kept in the selection where they change."""
    from analysis.evidence.methods import METHODS

    found = clamped_evidence(
        choices,
        classes=len(labels_of(traced)),
        methods=METHODS,
        positions=None if traced.inputs.tokens is None else len(traced.inputs.tokens),
    )
    if found != choices:
        choose_evidence(page, **{name: getattr(found, name) for name in found.__dataclass_fields__})
    return found


def labels_of(traced: cached.Traced) -> tuple[str, ...]:
    """Classes (or numbers) of the model's head; () where it predicts nothing of the whole input."""
    prediction = cached.prediction(traced)
    return () if prediction is None else prediction.labels


def class_tools(page: Page, choices: EvidenceChoices, prediction: Prediction) -> None:
    """What is explained, what it is held against, and a second class beside; classes by probability."""
    best = prediction.best(len(prediction.labels))
    order = [index for _, _, index in best]
    if prediction.kind == "value":
        if len(order) > 1:
            names = dict(enumerate(prediction.labels))
            _class_box(page, "target", "Predicted value", order, choices.target or 0, names)
        return
    words = {index: f"{label} · {percent(score)}" for label, score, index in best}
    target = order[0] if choices.target is None else choices.target
    _class_box(page, "target", "Explained class", order, target, {i: f"for {words[i]}" for i in order})
    if len(order) < 2:
        return
    others = [NOTHING, *(index for index in order if index != target)]
    against = {NOTHING: "rather than nothing", **{i: f"rather than {words[i]}" for i in order}}
    rather = choices.rather if choices.rather in others else None
    _class_box(page, "rather", "Held against", others, NOTHING if rather is None else rather, against)
    second = {NOTHING: "no class beside", **{i: f"beside {words[i]}" for i in order}}
    beside = choices.beside if choices.beside in others else None
    _class_box(page, "beside", "Second class", others, NOTHING if beside is None else beside, second)


_CLASS_HELP = {
    "target": "What is explained: the logit of this class, before softmax",
    "rather": "Explain why the first class rather than this one: the difference of their logits",
    "beside": "Show the maps of this class next to those of the first, on the same scale",
}


def _class_box(
    page: Page, name: str, label: str, options: Sequence[int], value: int, words: Mapping[int, str]
) -> None:
    key = f"{page}_evidence_{name}"

    def picked() -> None:
        chosen = st.session_state[key]
        choose_evidence(page, **{name: None if chosen == NOTHING else chosen})

    choice(
        label,
        options,
        value,
        key=key,
        on_change=picked,
        words=words.__getitem__,
        width=168,
        help=_CLASS_HELP[name],
    )


def class_targets(choices: EvidenceChoices, prediction: Prediction) -> tuple[Target, ...]:
    """The targets of a model with a head: one, or two where a second class stands beside."""
    from analysis.evidence.targets import class_logit, logit_difference, predicted_value

    labels = prediction.labels
    if prediction.kind == "value":
        index = choices.target or 0
        return (predicted_value(index, labels[index] if len(labels) > 1 else ""),)
    target = prediction.best(1)[0][2] if choices.target is None else choices.target
    first = class_logit(target, labels[target])
    if choices.rather is not None and choices.rather != target:
        first = logit_difference(target, choices.rather, labels[target], labels[choices.rather])
    if choices.beside is None or choices.beside == target:
        return (first,)
    return first, class_logit(choices.beside, labels[choices.beside])


@contextmanager
def computing(page: Page, traced: cached.Traced) -> Iterator[None]:
    """Say what is done for an input that the page has not shown yet, in the place of the view that comes."""
    key = f"{page}_evidence_shown"
    place = st.empty()
    if st.session_state.get(key) != traced.key:
        with place.container():
            waiting_view("One forward and one backward pass …")
    yield
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


def method_pills(page: Page, methods: Sequence[str]) -> None:
    """The methods as pills; those of many passes are marked."""
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
        key=bind(key, list(methods)),
        selection_mode="multi",
        format_func=title,
        on_change=picked,
        label_visibility="collapsed",
        help="A clock marks methods that run the model many times; they run behind the page and can be stopped",
    )


@dataclass(frozen=True)
class Answer:
    """What one method says of one target.

    Attributes:
        target: None where the method asks for none.
    """

    method: Method
    target: Target | None
    explanation: Explanation


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


def answers(chosen: evidence_cache.Subject, methods: Sequence[str], targets: Sequence[Target]) -> Answers:
    """Ask the chosen methods; those of one pass answer at once, the others as jobs."""
    from analysis.evidence.methods import METHODS

    ready: list[Answer] = []
    jobs: list[tuple[str, Job]] = []
    refused: list[tuple[str, Exception]] = []
    for method in (METHODS[key] for key in methods):
        asked: Sequence[Target | None] = targets if method.uses_target else (None,)
        for target in asked:
            if method.cost == "passes":
                job = evidence_cache.requested(chosen, method.key, target)
                if job.state == "ready":
                    ready.append(Answer(method, target, job.answer))
                else:
                    jobs.append((method.title, job))
                continue
            try:
                found = evidence_cache.explained(
                    chosen.key,
                    method.key,
                    () if target is None else target.key,
                    (),
                    _run=chosen.run,
                    _target=target,
                )
            except Exception as error:  # noqa: BLE001 - told beside the methods that do answer
                refused.append((method.title, error))
                break
            ready.append(Answer(method, target, found))
    return Answers(tuple(ready), tuple(jobs), tuple(refused))


def progress(page: Page, jobs: Sequence[tuple[str, Job]]) -> None:
    """How far the methods of many passes are, and a way to stop them, or to run one again."""
    active = [(title, job) for title, job in jobs if job.active]
    if active:
        st.fragment(_watch, run_every=POLL_SECONDS)(page, active)
    ended = [(title, job) for title, job in jobs if not job.active]
    for title, job in ended:
        if job.error is not None:
            _tell_refusal(title, job.error)
    stopped = [(title, job) for title, job in ended if job.state == "stopped"]
    if stopped:
        with st.container(horizontal=True, vertical_alignment="center", key=f"{page}_evidence_stopped"):
            names = ", ".join(dict.fromkeys(title for title, _ in stopped))
            st.html(f'<div class="as-note">Stopped: {names}.</div>', width="content")
            st.button(
                "Run again",
                key=f"{page}_evidence_again",
                on_click=partial(_forget, [job for _, job in stopped]),
            )


def _watch(page: Page, active: Sequence[tuple[str, Job]]) -> None:
    if any(not job.active for _, job in active):
        st.rerun()
    done = sum(job.done for _, job in active) / len(active)
    running = next((title for title, job in active if job.state == "running"), active[0][0])
    rest = len(active) - 1
    words = f"{running}: {done:.0%}" if not rest else f"{running} and {rest} more: {done:.0%}"
    with st.container(horizontal=True, vertical_alignment="center", key=f"{page}_evidence_progress"):
        st.progress(done, text=words)
        st.button(
            "Stop",
            key=f"{page}_evidence_stop",
            on_click=partial(_stop, [job for _, job in active]),
            help="Stops at the next pass; what is ready stays",
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


def panels(found: Sequence[Answer], scores: Sequence[Any], *, left_out: str) -> tuple[EvidencePanel, ...]:
    """What stands around each map: scale, claims, measured facts and warnings.

    Args:
        found: the answers; ``scores``: their scores as arrays, as they are drawn.
        left_out: what the positions are called that have no place in the drawing, such as "CLS".
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
        warning = ""
        if len(same) == 2 and index == same[1]:
            told, warning = _dependence(scores[same[0]], scores[same[1]])
            facts = (told, *facts)
        made.append(
            EvidencePanel(
                method=answer.method.title,
                target="" if answer.target is None else answer.target.label,
                signed=answer.explanation.signed,
                limit=evidence_limit([scores[place] for place in alike]),
                claims=answer.method.claims,
                cannot=answer.method.cannot,
                facts=facts,
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


def _dependence(first: Any, second: Any) -> tuple[str, str]:
    """How alike the maps of two targets are, and the warning where they are nearly the same."""
    import torch

    from analysis.evidence.faithfulness import ClassSensitivity, rank_correlation

    found = rank_correlation(torch.as_tensor(first), torch.as_tensor(second))
    if math.isnan(found):
        return "One of the two maps is constant: no correlation.", ""
    return f"Rank correlation with the map above: {found:.2f}.", ClassSensitivity(found).warning


_NUMBERS = {
    "class_logit": "logit",
    "logit_difference": "difference of logits",
    "embedding_similarity": "cosine",
    "concept_similarity": "dot product",
    "token_log_probability": "log probability",
}


def title_of(targets: Sequence[Target], chosen: evidence_cache.Subject) -> str:
    """What is explained, with its number."""
    names = []
    for target in targets:
        what = _NUMBERS.get(target.kind, "value")
        names.append(f"{target.label} ({what} {chosen.run.value(target):.3g})")
    return f"Evidence for {' and for '.join(names)}" if names else "Evidence"


def target_notes(targets: Sequence[Target]) -> None:
    """What to know of the targets."""
    for sentence in dict.fromkeys(target.note for target in targets if target.note):
        note(sentence)


def no_head_reason(traced: cached.Traced) -> str:
    """Why no class can be explained."""
    from analysis.evidence.targets import offered_targets

    return next(offer.refusal for offer in offered_targets(traced.model) if offer.kind == "class_logit")
