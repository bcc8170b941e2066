"""Heads: what every head of the model is for, on either page: a grid, and other looks at the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import streamlit as st

from analysis.figure_data import HeadGrid
from dashboard import figures, heads_cache
from dashboard.components import checked_head_grid, head_grid
from dashboard.evidence_jobs import Job
from dashboard.frame import choice, note, notes, views, waiting_view
from dashboard.heads_choices import HeadsChoices, Scheme, Show
from dashboard.heads_payload import head_grid_payload
from dashboard.selection import choose, choose_patterns, current
from dashboard.views import heads_shows, heads_sources, heads_syntax
from dashboard.views.heads_record import WORTH_WORDS, Board, head_grid_record, job_progress, not_counted
from dashboard.views.heads_sources import Material, Page

if TYPE_CHECKING:
    from analysis.heads.patterns import HeadClasses
    from analysis.heads.survey import Survey

SHOW_WORDS: Mapping[Show, str] = {
    "grid": "Grid",
    "ranking": "Ranking",
    "scatter": "Scatter",
    "clusters": "Clusters",
    "layers": "Layers",
    "syntax": "Syntax",
}
SCHEME_WORDS: Mapping[Scheme, str] = {"patterns": "Classes by rules", "kovaleva": "Kovaleva's five"}
WAITING = "The heads appear as soon as the model is ready."


def tools(page: Page, choices: HeadsChoices, *, text_attention: bool) -> None:
    """Source and classes.

    Args:
        text_attention: the part is a text's self-attention, over which Kovaleva's classes are defined.
    """
    heads_sources.source_choice(page, choices)
    if text_attention:
        _pick(page, "scheme", SCHEME_WORDS, choices.scheme, width=170)


def _pick(
    page: Page, name: str, words: Mapping[Any, str], value: Any, *, width: int, help: str | None = None
) -> None:
    key = f"{page}_heads_{name}"
    choice(
        name.capitalize(),
        list(words),
        value,
        key=key,
        on_change=lambda: choose_patterns(page, **{name: st.session_state[key]}),
        words=lambda option: words[option],
        width=width,
        help=help,
    )


def show(board: Board, choices: HeadsChoices) -> HeadGrid | None:
    """Draw the view; returns the record of what is on the screen, None while there is nothing."""
    page = board.page
    offered = [name for name in SHOW_WORDS if name != "syntax" or not board.picture]
    shown = choices.show if choices.show in offered else "grid"
    with st.container(horizontal=True, vertical_alignment="center", key=f"{page}_heads_shows"):
        key = f"{page}_heads_show"
        words: dict[str, str] = {name: SHOW_WORDS[name] for name in offered}
        views(
            offered,
            shown,
            key=key,
            on_change=lambda: choose_patterns(page, show=st.session_state[key]),
            words=words,
        )
        threshold_place = st.container(width="content", key=f"{page}_heads_threshold_place")
        _pick(
            page,
            "worth",
            WORTH_WORDS,
            choices.worth,
            width=235,
            help="What the target of the Evidence view loses without the head, on this page's input",
        )
    material = heads_sources.material(page, choices, board.traced)
    if material is None:
        wanted = "a file, or paste texts," if page == "text" else "pictures"
        waiting_view(f"Upload {wanted} above; the statistics appear here.")
        return None
    survey, job = _survey(board, material)
    if survey is None or board.part not in survey.tables:
        if job is not None and not job.active:
            note("Nothing was computed.")
        else:
            waiting_view("The statistics of the first inputs appear here.")
        return None
    grid, classes = head_grid_record(board, choices, material, survey, threshold_place)
    _SHOWS[shown](Look(board, choices, material, grid, classes))
    notes(material.notes if shown == "grid" else (*grid.notes, *material.notes))  # the grid has its own
    return grid


# Statistics ---------------------------------------------------------------------------------------------------------


def _survey(board: Board, material: Material) -> tuple[Survey | None, Job | None]:
    """Statistics so far, and the job where they take one."""
    if material.one and material.key == board.traced.key:
        return heads_cache.of_input(board.traced.key, board.traced), None
    shared, page = board.traced.shared, board.page
    running = heads_cache.over(
        shared, material.key, material.make, material.count, positions=material.positions
    )
    if running.job.state != "ready":
        job_progress(
            page,
            f"Heads over {material.title}",
            running.job,
            partial(heads_cache.inputs_so_far, shared, material.key),
        )
    return running.result, running.job


# What is shown ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Look:
    """What one way of looking draws from."""

    board: Board
    choices: HeadsChoices
    material: Material
    grid: HeadGrid
    classes: HeadClasses


def _show_grid(look: Look) -> None:
    page = look.board.page
    key = f"{page}_head_grid"
    payload = head_grid_payload(look.grid)
    header, _ = figures.read_header(payload)
    head_grid(payload, key=key, on_change=partial(_said, page, header, look.classes.keys, key))


def _said(page: Page, header: Mapping[str, Any], keys: Sequence[str], key: str) -> None:
    said = checked_head_grid(st.session_state.get(key), header)
    if "shown" in said:
        shown = said["shown"]
        choose_patterns(page, classes=None if shown is None else tuple(keys[index] for index in shown))
    if said.get("marked") is not None:
        layer, head = said["marked"]
        choose(page, layer=layer, heads=(head,))
    if said.get("open") is not None:
        layer, head = said["open"]
        open_head(page, layer, head)


def open_head(page: Page, layer: int, head: int) -> None:
    """Show one head over the page's own input."""
    view: Literal["head", "matrix", "attention"] = current().text.open_in if page == "text" else "attention"
    choose(page, layer=layer, heads=(head,), aggregation="head", view=view)


def _clusters(look: Look) -> None:
    board, material = look.board, look.material
    running = heads_cache.distances(
        board.traced.shared,
        material.key,
        board.part,
        material.make,
        material.count,
        positions=material.positions,
    )
    if running.job.state != "ready":
        job_progress(board.page, "Distances between heads", running.job, not_counted, of="heads_distances")
    if running.result is None:
        waiting_view("The distances appear here in a moment.")
        return
    heads_shows.clusters(board.page, look.choices, look.grid, running.result)


def _ranking(look: Look) -> None:
    heads_shows.ranking(look.board.page, look.choices, look.grid)


def _scatter(look: Look) -> None:
    heads_shows.scatter(look.board.page, look.choices, look.grid)


def _layers(look: Look) -> None:
    heads_shows.layers(look.board.page, look.grid)


def _syntax(look: Look) -> None:
    page, traced = look.board.page, look.board.traced
    heads_syntax.show(page, traced, partial(job_progress, page, of="heads_syntax"))


_SHOWS: Mapping[Show, Callable[[Look], None]] = {
    "grid": _show_grid,
    "ranking": _ranking,
    "scatter": _scatter,
    "clusters": _clusters,
    "layers": _layers,
    "syntax": _syntax,
}
