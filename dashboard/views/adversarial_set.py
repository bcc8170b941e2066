"""The checks over many texts: the paper's figures, one point a text."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import streamlit as st

from analysis.figure_data import CheckedSet
from dashboard import adversarial_cache, check_charts
from dashboard.adversarial_choices import AdversarialChoices
from dashboard.frame import choice, heading, note, notes, waiting_view
from dashboard.heads_choices import HeadsChoices
from dashboard.selection import TextInput, choose, choose_adversarial
from dashboard.views import heads_sources
from dashboard.views.adversarial_source import Board
from dashboard.views.heads_record import job_progress

if TYPE_CHECKING:
    from analysis.adversarial.sets import CheckedInput

SOURCE_WORDS = {"sample": "The sample corpus", "file": "Texts of yours"}
TABLE_ROWS = 240

SHORT = {
    "max_attention": "Max α",
    "permutation": "Permuted",
    "jsd": "Max JSD",
    "jsd_bound": "Farthest",
    "tau_gradient": "τ grad.",
    "p_gradient": "p grad.",
    "tau_leave_one_out": "τ out",
    "p_leave_one_out": "p out",
    "uniform": "Uniform",
}
"""Heads of the table's columns; their full titles are told on hover."""


def show(board: Board, choices: AdversarialChoices) -> CheckedSet | None:
    """Draw the part; returns the record of what is on the screen, None while there is nothing."""
    page, traced = board.page, board.traced
    key = f"{page}_adversarial_source"
    choice(
        "Texts",
        list(SOURCE_WORDS),
        choices.source,
        key=key,
        on_change=lambda: choose_adversarial(page, source=st.session_state[key]),
        words=lambda source: SOURCE_WORDS[source],
        width=200,
    )
    material = heads_sources.material(page, HeadsChoices(source=choices.source), traced)
    if material is None:
        waiting_view("Upload a file, or paste texts, above; the figures appear here.")
        return None
    running = adversarial_cache.over(
        traced.shared, material.key, material.make, material.count, epsilon=choices.epsilon
    )
    if running.job.state != "ready":
        job_progress(
            page,
            f"Checks over {material.title}",
            running.job,
            partial(adversarial_cache.checked_so_far, traced.shared, material.key, choices.epsilon),
            of="adversarial_set",
        )
    if not running.result or not running.result[0]:
        if running.job.active:
            waiting_view("The first texts appear here in a moment.")
        else:
            note("Nothing was computed.")
        return None
    found, told = running.result
    view = _record(
        board, choices, found, material.title, (*told, *_partly(len(found), material.count), *material.notes)
    )
    _charts(page, view)
    _table(page, view, decoded=traced.model.is_encoder_decoder)
    notes(view.notes)
    return view


def _partly(done: int, count: int) -> tuple[str, ...]:
    return (f"Over {done:,} of {count:,} so far.",) if done < count else ()


def _record(
    board: Board,
    choices: AdversarialChoices,
    found: tuple[CheckedInput, ...],
    title: str,
    told: tuple[str, ...],
) -> CheckedSet:
    from analysis.adversarial.sets import checked_numbers

    labels = board.traced.model.labels or ()
    predicted = np.array([each.predicted if labels else 0 for each in found], dtype=np.int64)
    how = (
        "Max JSD is exact: the farthest attention within ε."
        if board.recurrent
        else "Max JSD is a lower bound, of a search of a few starts; attention is that of the last layer, where the "
        "answer is read."
    )
    names = (each.source for each in found)
    return CheckedSet(
        names=tuple(map(_first_text, names) if board.traced.model.is_encoder_decoder else names),
        predicted=predicted,
        labels=labels or ("answer",),
        numbers=checked_numbers(found, _change_name(board)),
        epsilon=choices.epsilon,
        title=title,
        notes=(how, *_flips(found, classes=bool(labels)), *told),
    )


def _flips(found: tuple[CheckedInput, ...], *, classes: bool) -> tuple[str, ...]:
    """How many predictions are others under uniform attention."""
    if not classes:
        return ()
    others = sum(each.predicted != each.uniform_predicted for each in found)
    return (f"With uniform attention {others:,} of {len(found):,} predictions are others.",)


def _change_name(board: Board) -> str:
    from analysis.adversarial.measures import measure_of

    return measure_of(board.traced.model, board.traced.inputs).name


def _first_text(source: str) -> str:
    """Of an encoder-decoder's source, in which the decoder reads the text again (``heads_cache.text_inputs``)."""
    return source[: (len(source) - len("\nTarget: ")) // 2]


def _charts(page: str, view: CheckedSet) -> None:
    """Four figures, two a row."""
    charts = [
        ("Permuted attention", "TVD", check_charts.permutation_chart),
        ("Adversarial attention", "JSD within ε against max attention", check_charts.jsd_scatter_chart),
        ("Adversarial attention, distribution", "JSD within ε", check_charts.jsd_histogram_chart),
        ("Agreement", "Kendall's τ", check_charts.agreement_chart),
    ]
    for first in range(0, len(charts), 2):
        for column, (title, help, chart) in zip(
            st.columns(2, gap="medium"), charts[first : first + 2], strict=True
        ):
            with column:
                heading(title, help)
                st.plotly_chart(
                    chart(view),
                    key=f"{page}_adversarial_{chart.__name__}",
                    theme=None,
                    config={"displayModeBar": False},
                    alt=f"{title}, {len(view.names)} texts",
                )


def _table(page: str, view: CheckedSet, *, decoded: bool) -> None:
    """The texts, one of which can be opened.

    Args:
        decoded: the model's decoder reads the text too.
    """
    key = f"{page}_adversarial_table"
    columns: dict[str, Any] = {
        "text": list(view.names)[:TABLE_ROWS],
        "predicted": [view.labels[index] for index in view.predicted.tolist()][:TABLE_ROWS],
    }
    columns |= {number.key: number.values[:TABLE_ROWS].astype(float) for number in view.numbers}
    config = {
        number.key: st.column_config.NumberColumn(
            SHORT[number.key], help=number.title, format="%.3f", width="small"
        )
        for number in view.numbers
    }
    heading("Texts", "Sort by a column; choose a row to open its text")
    event = st.dataframe(
        columns,
        key=key,
        hide_index=True,
        height=280,
        on_select="rerun",
        selection_mode="single-row",
        column_config={"text": st.column_config.TextColumn("Text", width="large"), **config},
    )
    # What was chosen may be of the table before, which was longer.
    chosen = [row for row in event.selection.rows if row < len(view.names)]
    if chosen:
        help = "Shows its candidates, in the part for one input"
        if st.button("Open this text", key=f"{page}_adversarial_open", help=help):
            _open(view.names[chosen[0]], decoded=decoded)
            st.rerun()  # all of the page: the sidebar shows the text too
    if len(view.names) > TABLE_ROWS:
        note(f"The table shows the first {TABLE_ROWS} texts; files hold all {len(view.names):,}.")


def _open(text: str, *, decoded: bool) -> None:
    choose("text", input=TextInput(text, text if decoded else None))
    choose_adversarial("text", show="one")
