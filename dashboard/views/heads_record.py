"""The record of the Heads view: what is shown of every head, from statistics, rules, the bootstrap and importance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from analysis.figure_data import Floats, HeadGrid, HeadStatistic
from analysis.visible import counted
from dashboard import cached, evidence_cache, heads_cache, long_runs
from dashboard.evidence_jobs import Job
from dashboard.frame import note, polled
from dashboard.heads_choices import HeadsChoices, Worth
from dashboard.selection import Part, current
from dashboard.views import evidence_tools, heads_shows, heads_syntax
from dashboard.views.heads_sources import Material, Page

if TYPE_CHECKING:
    from analysis.evidence.targets import Target
    from analysis.heads.patterns import HeadClasses
    from analysis.heads.survey import HeadTable, Survey

WORTH_WORDS: Mapping[Worth, str] = {
    "none": "No importance",
    "gradient": "Importance: gradient",
    "uniform": "Importance: head made uniform",
    "zero": "Importance: head removed",
}

SAMPLES = 200
"""Samples of the bootstrap."""

FEW = 5
"""Independent inputs below which a bootstrap says nothing."""


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


def job_progress(page: Page, title: str, job: Job, count: Callable[[], int], *, of: str = "heads") -> None:
    """How far a job is; the page is drawn again when there are twice as many inputs as it shows."""
    evidence_tools.progress(page, [(title, job)], of=of)
    seen = count()
    if job.active and count is not not_counted:
        polled(lambda: None, lambda: job.active and count() >= 2 * seen + 8, seconds=1.0)


def not_counted() -> int:
    return 0


def head_grid_record(
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
    key = cached.digest(board.traced.model.identity, material.key, board.part)
    independent = table.inputs if material.independent is None else min(material.independent, table.inputs)
    stable, intervals = _uncertain(key, table, classified, classes, values, independent=independent)
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
    if material.independent is not None:
        told.append(independence_in_words(table.inputs, material.independent))
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
        title=f"{material.title} · {material.tokens or survey.tokens:,} {'positions' if board.picture else 'tokens'}",
        kind=board.part,
        notes=(*told, *survey.notes),
        hues=() if kovaleva else _hues(classes.keys, picture=board.picture),
    )
    return grid, classes


def _hues(keys: Sequence[str], *, picture: bool) -> tuple[int, ...]:
    """Place of each class among all rules of its kind of input."""
    from analysis.heads.patterns import RULES

    every = [rule.key for rule in RULES if rule.picture == picture]
    return tuple(every.index(key) if key in every else len(every) for key in keys)


def _own_shape(board: Board) -> tuple[int, int]:
    maps = board.traced.trace.maps(board.part)
    return len(maps), max(layer.heads for layer in maps)


def _fitting(choices: HeadsChoices) -> dict[str, float]:
    """Thresholds of classes that there are; a link may name others."""
    from analysis.heads.patterns import PATTERNS

    return {key: value for key, value in choices.thresholds if key in PATTERNS}


def independence_in_words(windows: int, independent: int) -> str:
    """What the windows of a document tell of uncertainty."""
    if independent < FEW:
        return (
            f"No 95 % intervals: the text holds {counted(independent, 'window')} side by side, and below {FEW} "
            "independent inputs they say nothing."
        )
    return (
        f"95 % intervals count {independent:,} independent inputs: so many of the {windows:,} windows stand side by "
        "side without sharing a token."
    )


def _uncertain(
    key: str,
    table: HeadTable,
    classified: Callable[[Mapping[str, Any]], HeadClasses],
    classes: HeadClasses,
    values: Mapping[str, Any],
    *,
    independent: int,
) -> tuple[Floats | None, dict[str, tuple[Floats, Floats]]]:
    """How often each head keeps its class over samples of the inputs, and 95 % intervals of the statistics.

    Args:
        independent: how many of the inputs share nothing with another one; a sample holds so many.
    """
    if independent < FEW:
        return None, {}
    drawn = heads_cache.resampled(key, table.inputs, independent, SAMPLES, _table=table)
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
) -> tuple[HeadStatistic, ...]:
    """Statistics for tooltips and files, those that a reader asks for first at the top."""
    from analysis.heads.measures import STATISTICS

    order = [key for key in FIRST if key in table.totals]
    order += [key for key in STATISTICS if key in table.totals and key not in order]
    found = []
    if "syntactic" in values:
        found.append(
            HeadStatistic(
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
            HeadStatistic(key, statistic.title, statistic.unit, values[key].astype(np.float32), low, high)
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


def _importance(board: Board, choices: HeadsChoices, shape: tuple[int, int]) -> tuple[HeadStatistic, ...]:
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
            found = heads_cache.gradient(subject, target)
        else:
            running = heads_cache.ablation(board.traced, target, choices.worth)
            if isinstance(running, long_runs.Offered):
                long_runs.offers((running,))
                return ()
            found = running.result
            if found is None:
                job_progress(
                    board.page, f"{WORTH_WORDS[choices.worth]}", running.job, not_counted, of="heads_worth"
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
    return (HeadStatistic("importance", f"Importance ({title.lower()})", unit, values),)
