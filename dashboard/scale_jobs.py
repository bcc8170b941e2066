"""The measurement of the Scale page: runs behind the page, can be stopped, and shows what it has found so far.

It shares the turn of the other long computations (``dashboard.evidence_jobs``): two at once would disturb each other.
What a stopped one had found is kept.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from dataclasses import asdict, dataclass, field, replace
from functools import partial

import streamlit as st

from analysis import scale_curves
from analysis.scale_curves import ScaleRun
from analysis.scale_plan import ScalePlan
from dashboard import evidence_cache
from dashboard.evidence_jobs import Job, Progress


@dataclass
class Found:
    """What a measurement has found so far; written by its thread, read by pages."""

    run: ScaleRun = field(default_factory=ScaleRun)


def found_so_far(plan: ScalePlan) -> Found:
    """The record of a plan's last measurement, shared by all sessions."""
    return _found(json.dumps(asdict(plan)))


@st.cache_resource(max_entries=32, show_spinner=False)
def _found(plan: str) -> Found:
    return Found()


@st.cache_resource(show_spinner=False)
def product_rate() -> float:
    """Of one core of this machine, measured once."""
    return scale_curves.product_rate()


def job_of(plan: ScalePlan) -> Job | None:
    """The measurement of a plan, if somebody has asked for it."""
    return evidence_cache.jobs().find(_key(plan))


def start(plan: ScalePlan) -> None:
    """Measure, from the beginning."""
    found = found_so_far(plan)
    evidence_cache.jobs().forget(_key(plan))
    if job_of(plan) is None:
        found.run = ScaleRun()
        evidence_cache.jobs().request(_key(plan), partial(_measure, plan, found, product_rate()))


def _key(plan: ScalePlan) -> Hashable:
    return "scale", plan


def _measure(plan: ScalePlan, found: Found, rate: float, progress: Progress) -> ScaleRun:
    def told(run: ScaleRun) -> None:
        found.run = run
        progress(scale_curves.share_done(run, plan, rate))

    try:
        found.run = scale_curves.measured(plan, told)
    finally:
        found.run = replace(found.run, now="")
    return found.run
