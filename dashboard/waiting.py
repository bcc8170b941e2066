"""What a page shows while its model is being loaded, and when that failed: stages, patience, a way out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from html import escape
from typing import Literal

import streamlit as st

from analysis.trained import OFFERED
from dashboard import cached
from dashboard.boundary import tell_error
from dashboard.frame import literal, polled
from dashboard.model_root import PREFIX
from dashboard.selection import DEFAULT_MODELS, ModelChoice, choose, current
from dashboard.warmup import SLOW_SECONDS, LoadJob

POLL_SECONDS = 1.0

Modality = Literal["text", "image"]


def title_of(choice: ModelChoice) -> str:
    """What a model is called before it is loaded."""
    return next((model.title for model in OFFERED if model.name == choice.name), choice.name)


def loading_badge(choice: ModelChoice, *, example: bool) -> None:
    """A quiet line with the stage and the seconds, renewed until the load has ended; then the page runs again.

    Args:
        example: whether the page shows the precomputed example meanwhile.
    """
    with st.container(key="as_status"):
        polled(
            partial(_loading_badge, choice, example),
            partial(_has_ended, choice),
            seconds=POLL_SECONDS,
        )


def _has_ended(choice: ModelChoice) -> bool:
    job = cached.loader().find(*choice.request)
    return job is not None and (job.state != "running" or job.slow)


def _loading_badge(choice: ModelChoice, example: bool) -> None:
    job = cached.loader().find(*choice.request)
    stage, seconds = (job.stage, job.seconds) if job else ("starting", 0.0)
    words = f"loading {title_of(choice)} … {stage}, {seconds:.0f} s"
    lead = '<span class="as-badge as-plain">precomputed example</span>' if example else ""
    st.html(
        f'<div class="as-loading" role="status">{lead}<span class="as-pulse"></span>{escape(words)}</div>'
    )


def failed_load(modality: Modality, choice: ModelChoice, job: LoadJob) -> None:
    """Why a model is not there, and what to do."""
    if job.error is not None:
        tell_error(job.error, what=f"{literal(title_of(choice))} could not be loaded")
    else:
        st.warning(
            f"{literal(title_of(choice))} has been loading for {job.seconds:.0f} seconds "
            f"({literal(job.stage)}). It may still come; meanwhile a bundled model works at once.",
            icon=":material/hourglass_empty:",
        )
    with st.container(horizontal=True):
        again = "Try again" if job.error is not None else "Keep waiting"
        st.button(again, key=f"{modality}_load_again", on_click=partial(_again, job))
        _bundled_button(modality, choice)


def ask_to_load(modality: Modality, choice: ModelChoice) -> None:
    """A link named a model that is not bundled: it is loaded only when the user says so."""
    st.info(
        f"This link asks for the model {literal(choice.name)}"
        + (f" at revision {literal(choice.revision)}" if choice.revision else "")
        + ", which does not come with AttnScope."
        + (
            "" if choice.name.startswith(PREFIX) else " Loading it may download it from the Hugging Face Hub."
        ),
        icon=":material/link:",
    )
    with st.container(horizontal=True):
        agreed = replace(choice, asked=False)
        st.button("Load it", key=f"{modality}_load_asked", on_click=partial(choose, modality, model=agreed))
        _bundled_button(modality, choice)


def _bundled_button(modality: Modality, choice: ModelChoice) -> None:
    bundled = ModelChoice(DEFAULT_MODELS[modality])
    if choice.name != bundled.name:
        st.button(
            f"Use {literal(title_of(bundled))}",
            key=f"{modality}_use_bundled",
            on_click=partial(choose, modality, model=bundled),
        )


def _again(job: LoadJob) -> None:
    if job.state == "running":
        job.patience = job.seconds + SLOW_SECONDS
    else:
        cached.loader().forget(*job.key)


def when_ready(modality: Modality, choice: ModelChoice, show: Callable[[], None]) -> None:
    """Show a page's views, and what becomes of their model before it is there.

    Args:
        show: draws the views, as a fragment: live ones, or the example or a placeholder while the model loads.
    """
    job = cached.loader().find(*choice.request)
    if job is not None and (job.state == "failed" or job.slow):
        failed_load(modality, choice, job)
        return
    st.fragment(show)()
    if job is None or job.state == "running":
        loading_badge(choice, example=shows_example(modality))


def shows_example(modality: Modality) -> bool:
    """Whether the shipped example is what the selection asks for."""
    example, selection = cached.example(), current()
    if modality == "text":
        return example.text.answers(selection.text)
    return example.image.answers(selection.image)
