"""The large area of the Scale page: choices, the measurement, its curves and what they say."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import streamlit as st

from analysis.estimate import available_memory, seconds_in_words
from analysis.scale_curves import (
    SCALE_HEADER,
    ScaleRun,
    absent_for,
    bytes_in_words,
    conclusions,
    endings,
    estimate,
    plan_in_words,
    scale_notes,
    scale_rows,
    scale_sheet,
)
from analysis.scale_plan import WAY_TITLES, WAY_WORDS, WAYS, ScalePlan
from dashboard import lab_charts, scale_jobs
from dashboard.boundary import page_boundary, tell_error
from dashboard.evidence_jobs import Job
from dashboard.export_menu import export_menu
from dashboard.frame import heading, literal, note, notes, polled, small_table, title_line
from dashboard.lab_choices import kind_of
from dashboard.provenance import provenance
from dashboard.scale_choices import ScaleChoices, plan_of
from dashboard.selection import (
    bound,
    bound_choice,
    choose_scale,
    current,
    take_notes,
    to_query,
    write_link,
)

POLL_SECONDS = 1.0

CHART_HEIGHT = 430
"""Pixels of the two panels with their legend."""

LEGEND_LINE = 20
"""Pixels of the line that the legend takes more in a narrow window, where it would run into the panels' titles."""

RULE_WORDS = {"all": "All pairs", "causal": "Causal", "window": "Causal window"}
PASS_WORDS = {"forward": "Forward", "both": "Forward + backward"}


@st.fragment
def workspace() -> None:
    """Draw the page."""
    with page_boundary("The curves could not be drawn"):
        for sentence in take_notes():
            st.info(sentence, icon=":material/info:")
        plan = plan_of(current().scale)
        with st.container(horizontal=True, vertical_alignment="center", key="scale_head"):
            title_line(["How do time and memory grow with n?", plan_in_words(plan)])
            export_place = st.container(key="scale_export_place", width="content")
        _tools(current().scale)
        run = _measurement(plan)
        if run is not None and run.points:
            _told(run, plan)
            with export_place:
                _export(run, plan)
        elif not _active(plan):
            notes(() if run is None else endings(run))
            _ways(plan)
        write_link("scale")


# Choices ---------------------------------------------------------------------------------------------------------


def _tools(choices: ScaleChoices) -> None:
    """What is measured: pairs, passes, sizes; the limits stand in a popover."""
    cores = os.cpu_count() or 1
    with st.container(horizontal=True, vertical_alignment="center", key="scale_tools"):
        _switch("rule", "Pairs", RULE_WORDS)
        if choices.rule == "window":
            _select("window", "Window", say=lambda keys: f"{keys:,} keys", width=120)
        _switch("passes", "Passes", PASS_WORDS)
        _select("heads", "Heads", say=lambda heads: f"{heads} head{'s' if heads > 1 else ''}", width=115)
        _select("width", "Width", say=lambda width: f"width {width}", width=115)
        _select("numbers", "Numbers", width=120)
        _select("longest", "Longest n", say=lambda size: f"n up to {size:,}", width=150)
        with st.popover("Limits", icon=":material/tune:"):
            _select(
                "memory",
                "Memory of a point",
                say=lambda size: f"at most {size} GiB a point",
                width=230,
                help="A way ends before a point that would take more, or more than is free.",
            )
            threads = {"one": "one thread", "all": f"all threads ({cores} cores)"}
            _select("threads", "Threads", say=threads.__getitem__, width=230)
            if _has_cuda() or choices.device == "cuda":
                devices = {"cpu": "on the processor", "cuda": "on the GPU"}
                _select("device", "Device", say=devices.__getitem__, width=230)
    key = "scale_ways"
    st.pills(
        "Ways",
        list(WAYS),
        **bound(key, list(choices.ways), default="default"),
        format_func=WAY_TITLES.__getitem__,
        selection_mode="multi",
        on_change=lambda: choose_scale(
            ways=tuple(way for way in WAYS if way in (st.session_state[key] or ()))
        ),
        label_visibility="collapsed",
    )


def _has_cuda() -> bool:
    """Whether PyTorch, where it has been imported, sees a GPU that it can measure on."""
    cuda = getattr(sys.modules.get("torch"), "cuda", None)
    return bool(cuda is not None and getattr(cuda, "is_available", bool)())


def _select(
    name: str, label: str, *, say: Callable[[Any], str] = str, width: int, help: str | None = None
) -> None:
    """A compact select box of one choice."""
    key, choices = f"scale_{name}", current().scale
    options = list(kind_of(choices, name).options) or ["float32", "bfloat16", "float16"]
    st.selectbox(
        label,
        options,
        **bound_choice(key, getattr(choices, name), options),
        format_func=say,
        on_change=lambda: choose_scale(**{name: st.session_state[key]}),
        label_visibility="collapsed",
        width=width,
        help=help,
    )


def _switch(name: str, label: str, words: Mapping[str, str]) -> None:
    """A segmented control of one choice."""
    key = f"scale_{name}"
    st.segmented_control(
        label,
        list(words),
        **bound(key, getattr(current().scale, name), default="default"),
        format_func=words.__getitem__,
        on_change=lambda: choose_scale(**{name: st.session_state[key]}),
        required=True,
        label_visibility="collapsed",
    )


# Measurement -----------------------------------------------------------------------------------------------------


def _measurement(plan: ScalePlan) -> ScaleRun | None:
    """What was measured; None before there is anything, and while the page shows the curves grow."""
    if not plan.ways:
        note("Choose a way above.")
        return None
    job = scale_jobs.job_of(plan)
    if job is not None and job.active:
        job.watch()
        polled(partial(_growing, plan, job), lambda: not job.active, seconds=POLL_SECONDS)
        return None
    run = None if job is None else scale_jobs.found_so_far(plan).run
    if job is not None and job.error is not None:
        tell_error(job.error, what="This could not be measured")
    with st.container(horizontal=True, vertical_alignment="center", key="scale_start"):
        again = run is not None and bool(run.points)
        st.button(
            "Measure again" if again else "Measure",
            key="scale_measure",
            icon=":material/refresh:" if again else ":material/timer:",
            type="secondary" if again else "primary",
            on_click=partial(scale_jobs.start, plan),
        )
        stopped = "Stopped. " if job is not None and job.state == "stopped" else ""
        note(stopped + _before(plan))
    return run


def _active(plan: ScalePlan) -> bool:
    job = scale_jobs.job_of(plan)
    return job is not None and job.active


def _before(plan: ScalePlan) -> str:
    """What a measurement will take, and whether that is there."""
    expected, free = estimate(plan, scale_jobs.product_rate()), available_memory().size
    words = f"About {seconds_in_words(expected.seconds)}"
    if plan.device == "cpu":
        words += f" and up to {bytes_in_words(max(expected.memory, 2**20))} at once"
    words += ", in a process of its own; every way from n = 128 up, and it can be stopped."
    if expected.reached and expected.reached.get("dense", plan.longest) < plan.longest:
        words += (
            f" Written out, attention will end near n = {expected.reached['dense']:,}, since a point may take "
            f"{bytes_in_words(plan.memory)} and a pass {plan.seconds:g} s."
        )
    if free * 4 // 5 < plan.memory:
        words += f" {bytes_in_words(free)} are free here: no point takes more than four fifths of that."
    return words


def _growing(plan: ScalePlan, job: Job) -> None:
    """Progress, Stop, and the curves as far as they are."""
    job.watch()
    run = scale_jobs.found_so_far(plan).run
    stage = "waits for another computation" if job.state == "waiting" else run.now or "begins"
    with st.container(horizontal=True, vertical_alignment="center", key="scale_progress"):
        st.progress(job.done, text=literal(f"Measuring: {stage}"))
        st.button("Stop", key="scale_stop", on_click=job.stop)
    if run.points:
        _curves(run, plan, key="scale_growing")
        notes(endings(run))
    else:
        _ways(plan)


# What was found --------------------------------------------------------------------------------------------------


def _curves(run: ScaleRun, plan: ScalePlan, *, key: str) -> None:
    chart = lab_charts.curve_sheet_chart(scale_sheet(run, plan))
    top = chart.layout.margin.t + LEGEND_LINE
    st.plotly_chart(
        chart.update_layout(height=CHART_HEIGHT + LEGEND_LINE, margin_t=top),
        key=key,
        theme=None,
        config={"displayModeBar": False},
        alt=f"Time and memory against n: {plan_in_words(plan)}",
    )


def _told(run: ScaleRun, plan: ScalePlan) -> None:
    """Sentences, curves, the table and how it was measured."""
    said = conclusions(run, plan)
    if said:
        st.markdown(literal(" ".join(said)))
    _curves(run, plan, key="scale_curves")
    heading("At the longest n of each way")
    small_table(SCALE_HEADER, scale_rows(run))
    notes(endings(run))
    if run.machine:
        heading("This machine")
        note(_machine(run.machine))
    notes(scale_notes(plan))


def _machine(facts: Sequence[tuple[str, str]]) -> str:
    return " · ".join(f"{name}: {value}" for name, value in facts)


def _ways(plan: ScalePlan) -> None:
    """What the ways are, before anything is measured."""
    rows = []
    for way in plan.ways:
        absent = absent_for(way, plan)
        told = WAY_WORDS[way] if absent is None else f"{WAY_WORDS[way]}; not here: {absent}"
        rows.append((WAY_TITLES[way], told))
    heading("What is measured")
    small_table(("Way", "What it is"), rows)


def _export(run: ScaleRun, plan: ScalePlan) -> None:
    said = conclusions(run, plan)
    sheet = scale_sheet(run, plan, scale_notes(plan))
    choices = current().scale
    record = provenance(
        model="AttnScope Scale",
        revision="",
        input=f"random vectors, {plan_in_words(plan)}, n = {plan.sizes[0]} to {plan.sizes[-1]}",
        layer="",
        heads="",
        method="time and memory of one layer, measured on this machine (analysis.scale_curves)",
        settings={
            "heads": plan.heads,
            "width": plan.width,
            "numbers": plan.numbers,
            "rule": plan.rule,
            "window": plan.window if plan.rule == "window" else None,
            "passes": PASS_WORDS[choices.passes],
            "memory": bytes_in_words(plan.memory),
            "seconds": plan.seconds,
            "threads": plan.threads or "all",
            "device": plan.device,
            **{f"machine: {name}": value for name, value in run.machine},
        },
        notes=(*said, *endings(run)),  # how it was measured is among the notes of the sheet
    )
    export_menu(sheet, record, key="scale_export", name="scale", query=to_query(current(), "scale"))
