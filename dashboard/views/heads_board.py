"""Heads: what every head of the model is for, on either page: a grid, and other looks at the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import streamlit as st

from analysis.figure_data import Floats, HeadGrid, HeadNumbers
from dashboard import cached, evidence_cache, figures, heads_cache
from dashboard.components import checked_head_grid, head_grid
from dashboard.evidence_jobs import Job
from dashboard.frame import choice, note, notes, polled, views, waiting_view
from dashboard.heads_choices import HeadsChoices, Scheme, Show, Worth
from dashboard.heads_payload import head_grid_payload
from dashboard.selection import Part, choose, choose_patterns, current
from dashboard.views import evidence_tools, heads_shows, heads_sources, heads_syntax
from dashboard.views.heads_sources import Material, Page

if TYPE_CHECKING:
    from analysis.evidence.targets import Target
    from analysis.heads.patterns import HeadClasses
    from analysis.heads.survey import HeadTable, Survey

SHOW_WORDS: Mapping[Show, str] = {
    "grid": "Grid",
    "ranking": "Ranking",
    "scatter": "Scatter",
    "clusters": "Clusters",
    "layers": "Layers",
    "syntax": "Syntax",
}
SCHEME_WORDS: Mapping[Scheme, str] = {"patterns": "Classes by rules", "kovaleva": "Kovaleva's five"}
WORTH_WORDS: Mapping[Worth, str] = {
    "none": "No importance",
    "gradient": "Importance: gradient",
    "uniform": "Importance: head made uniform",
    "zero": "Importance: head removed",
}
WAITING = "The heads appear as soon as the model is ready."

SAMPLES = 200
"""Samples of the bootstrap."""

FEW = 5
"""Inputs below which a bootstrap says nothing."""


@dataclass(frozen=True)
class Board:
    """What the view is drawn from.

    Attributes:
        traced: the page's own input through the model.
        part: kind of attention.
        thumbnails: (L, H, r, c) of the page's own input.
        targets: what importance is measured for, and for which pass.
    """

    page: Page
    traced: cached.Traced
    part: Part
    thumbnails: Callable[[], Floats | None]
    targets: Callable[[evidence_cache.Subject], Sequence[Target]]

    @property
    def picture(self) -> bool:
        """Whether the inputs are pictures."""
        return self.page == "image"


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
            waiting_view("The first statistics appear here in a moment.")
        return None
    grid, classes = _grid(board, choices, material, survey, threshold_place)
    _SHOWS[shown](Look(board, choices, material, grid, classes))
    notes(material.notes if shown == "grid" else (*grid.notes, *material.notes))  # the grid has its own
    return grid


# Statistics ---------------------------------------------------------------------------------------------------------


def _survey(board: Board, material: Material) -> tuple[Survey | None, Job | None]:
    """Statistics so far, and the job where they take one."""
    if material.one and material.key == board.traced.key:
        return heads_cache.of_input(board.traced.key, board.traced), None
    shared, page = board.traced.shared, board.page
    running = heads_cache.over(shared, material.key, material.make)
    if running.job.state != "ready":
        _progress(
            page,
            f"Heads over {material.title}",
            running.job,
            partial(heads_cache.inputs_so_far, shared, material.key),
        )
    return running.result, running.job


def _progress(page: Page, title: str, job: Job, count: Callable[[], int], *, of: str = "heads") -> None:
    """How far a job is; the page is drawn again when there are twice as many inputs as it shows."""
    evidence_tools.progress(page, [(title, job)], of=of)
    seen = count()
    if job.active and count is not _nothing:
        polled(lambda: None, lambda: job.active and count() >= 2 * seen + 8, seconds=1.0)


def _nothing() -> int:
    return 0


def _grid(
    board: Board, choices: HeadsChoices, material: Material, survey: Survey, threshold_place: Any
) -> tuple[HeadGrid, HeadClasses]:
    """The record: classes, numbers with intervals, importance."""
    from analysis.heads.kovaleva import CLASSES, kovaleva_classes
    from analysis.heads.patterns import classify_heads, title_of, with_thresholds

    table = survey.tables[board.part]
    values = dict(table.values())
    values |= heads_syntax.known(board.page, board.traced, board.part, table.shape)
    kovaleva = choices.scheme == "kovaleva" and "any_column" in values and "offset+0" in values
    rules = with_thresholds(_fitting(choices))

    def classified(found: Mapping[str, Any]) -> HeadClasses:
        if kovaleva:
            return kovaleva_classes(found)
        return classify_heads(found, picture=board.picture, rules=rules)

    classes = classified(values)
    key = cached.digest(board.traced.model.name, board.traced.model.revision, material.key, board.part)
    stable, intervals = _uncertain(key, table, classified, classes, values)
    with threshold_place:
        if not kovaleva:
            heads_shows.thresholds(board.page, choices, classes)
    told = []
    if survey.inputs < material.count:
        told.append(f"Over {survey.inputs:,} of {material.count:,} so far.")
    if material.one:
        told.append(
            "One input is no evidence of what a head is for, only of what it does here. Take a corpus above."
        )
    numbers = (*_importance(board, choices, table.shape), *_numbers(table, intervals, values))
    only = None if choices.classes is None else tuple(
        index for index, key in enumerate(classes.keys) if key in choices.classes
    )  # fmt: skip
    page_choices = getattr(current(), board.page)
    layers, heads = table.shape
    marked = (min(page_choices.layer, layers - 1), min((page_choices.heads or (0,))[0], heads - 1))
    grid = HeadGrid(
        classes=tuple(CLASSES[key] if kovaleva else title_of(key) for key in classes.keys),
        best=classes.best,
        variants=tuple(tuple(map(str, row)) for row in classes.variants),
        scores=classes.score.astype(np.float32),
        margins=classes.margin.astype(np.float32),
        numbers=numbers,
        thumbnails=board.thumbnails() if survey.tables[board.part].shape == _own_shape(board) else None,
        stable=stable,
        shown=only,
        marked=marked,
        title=f"{material.title} · {survey.tokens:,} {'positions' if board.picture else 'tokens'}",
        kind=board.part,
        notes=(*told, *survey.notes),
    )
    return grid, classes


def _own_shape(board: Board) -> tuple[int, int]:
    maps = board.traced.trace.maps(board.part)
    return len(maps), max(layer.heads for layer in maps)


def _fitting(choices: HeadsChoices) -> dict[str, float]:
    """Thresholds of classes that there are; a link may name others."""
    from analysis.heads.patterns import PATTERNS

    return {key: value for key, value in choices.thresholds if key in PATTERNS}


def _uncertain(
    key: str,
    table: HeadTable,
    classified: Callable[[Mapping[str, Any]], HeadClasses],
    classes: HeadClasses,
    values: Mapping[str, Any],
) -> tuple[Floats | None, dict[str, tuple[Floats, Floats]]]:
    """How often each head keeps its class over samples of the inputs, and 95 % intervals of the statistics."""
    if table.inputs < FEW:
        return None, {}
    drawn = heads_cache.resampled(key, table.inputs, SAMPLES, _table=table)
    extra = {
        key: np.broadcast_to(value, (SAMPLES, *value.shape))
        for key, value in values.items()
        if key not in drawn
    }
    again = classified({**drawn, **extra})
    stable = (again.best == classes.best).mean(0).astype(np.float32)
    with np.errstate(invalid="ignore"):
        intervals = {
            key: tuple(np.nanquantile(found, (0.025, 0.975), axis=0).astype(np.float32))
            for key, found in drawn.items()
            if not np.isnan(found).all()
        }
    return stable, intervals  # type: ignore[return-value]


def _numbers(
    table: HeadTable, intervals: Mapping[str, tuple[Floats, Floats]], values: Mapping[str, Any]
) -> tuple[HeadNumbers, ...]:
    """Statistics for tooltips and files, those that a reader asks for first at the top."""
    from analysis.heads.measures import STATISTICS

    order = [key for key in FIRST if key in table.totals]
    order += [key for key in STATISTICS if key in table.totals and key not in order]
    found = []
    if "syntactic" in values:
        found.append(
            HeadNumbers(
                "syntactic",
                "Best relation above its baseline",
                "share",
                values["syntactic"].astype(np.float32),
            )
        )
    for key in order:
        statistic = STATISTICS[key]
        low, high = intervals.get(key, (None, None))
        found.append(
            HeadNumbers(key, statistic.title, statistic.unit, values[key].astype(np.float32), low, high)
        )
    return tuple(found)


FIRST = (
    *("entropy", "relative_entropy", "max_weight", "offset+0", "offset-1", "offset+1", "classifier", "first"),
    *(
        "separator",
        "punctuation",
        "column",
        "near",
        "distance",
        "pixels",
        "content",
        "row",
        "grid_column",
        "register",
    ),
)
"""Statistics at the top of a tooltip, in this order, where they are there."""


# Importance ---------------------------------------------------------------------------------------------------------


def _importance(board: Board, choices: HeadsChoices, shape: tuple[int, int]) -> tuple[HeadNumbers, ...]:
    """What each head is worth to the target on the page's own input."""
    if choices.worth == "none":
        return ()
    try:
        subject = evidence_cache.subject(board.traced)
        targets = board.targets(subject)
        if not targets:
            note("Importance needs a target: choose a class, a word or examples in the Evidence view.")
            return ()
        target = targets[0]
        if choices.worth == "gradient":
            found = heads_cache.gradient(subject.key, target.key, _run=subject.run, _target=target)
        else:
            running = heads_cache.ablation(board.traced, target, choices.worth)
            found = running.result
            if found is None:
                _progress(
                    board.page, f"{WORTH_WORDS[choices.worth]}", running.job, _nothing, of="heads_worth"
                )
                return ()
    except Exception as error:  # noqa: BLE001 - told, and the statistics stay
        evidence_tools.tell_refusals([("Importance", error)])
        return ()
    if board.part not in found or found[board.part].shape != shape:
        return ()
    values = found[board.part].numpy().astype(np.float32)
    unit = "of the target" if choices.worth == "gradient" else "change of the target"
    title = WORTH_WORDS[choices.worth].removeprefix("Importance: ").capitalize()
    note(f"{WORTH_WORDS[choices.worth]}, on this input, of: {target.label}.")
    return (HeadNumbers("importance", f"Importance ({title.lower()})", unit, values),)


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
    running = heads_cache.distances(board.traced.shared, material.key, board.part, material.make)
    if running.job.state != "ready":
        _progress(board.page, "Distances between heads", running.job, _nothing, of="heads_distances")
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
    heads_syntax.show(page, traced, partial(_progress, page, of="heads_syntax"))


_SHOWS: Mapping[Show, Callable[[Look], None]] = {
    "grid": _show_grid,
    "ranking": _ranking,
    "scatter": _scatter,
    "clusters": _clusters,
    "layers": _layers,
    "syntax": _syntax,
}
