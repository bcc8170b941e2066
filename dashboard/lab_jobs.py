"""Measurements of the Lab that take seconds: the reader starts one, sees how far it is, and may stop it.

They run behind the page like the explanations of many passes (``dashboard.evidence_jobs``), one at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import streamlit as st

from dashboard import evidence_cache
from dashboard.boundary import tell_error
from dashboard.evidence_jobs import Job, Progress
from dashboard.frame import note, polled
from dashboard.lab_choices import Section

POLL_SECONDS = 0.5


def measurement(
    section: Section,
    what: Hashable,
    work: Callable[[Progress], Any],
    *,
    label: str,
    help: str,
) -> Any | None:
    """The answer of a measurement; None before it has ended, and the page shows the button or the progress.

    Args:
        what: tells it apart from all others of the section.
        work: (progress) → answer; runs on a thread of its own and holds no model.
        label: of the button that starts it; ``help``: what it does and how long it takes.
    """
    key = ("lab", section, what)
    job = evidence_cache.jobs().find(key)
    if job is not None and job.active:
        job.watch()
        polled(partial(_progress, section, job), lambda: not job.active, seconds=POLL_SECONDS)
        return None
    if job is not None and job.state == "ready":
        st.button(
            "Measure again",
            key=f"lab_{section}_measure",
            icon=":material/refresh:",
            on_click=partial(_start, key, work),
            help=help,
        )
        return job.answer
    if job is not None and job.error is not None:
        tell_error(job.error, what="This could not be measured")
    with st.container(horizontal=True, vertical_alignment="center"):
        st.button(
            label,
            key=f"lab_{section}_measure",
            icon=":material/timer:",
            type="primary",
            on_click=partial(_start, key, work),
        )
        note("Stopped. " + help if job is not None and job.state == "stopped" else help)
    return None


def _start(key: Hashable, work: Callable[[Progress], Any]) -> None:
    evidence_cache.jobs().forget(key)
    evidence_cache.jobs().request(key, work)


def _progress(section: Section, job: Job) -> None:
    job.watch()
    stage = f"{job.done:.0%}" if job.done else "begins"
    if job.state == "waiting":
        stage = "waits for another measurement"
    with st.container(horizontal=True, vertical_alignment="center", key=f"lab_{section}_progress"):
        st.progress(job.done, text=f"Measuring: {stage}")
        st.button("Stop", key=f"lab_{section}_stop", on_click=job.stop)
