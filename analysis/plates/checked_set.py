"""The checks of Jain & Wallace 2019 over a set of inputs, as their figures draw them, on paper."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from analysis.drawing import INK, MUTED, DotShape, Fonts, Sheet
from analysis.figure_data import CheckedSet
from analysis.plates.axes import Axes
from analysis.plates.frame import MARGIN, SMALL_SIZE, TINY_SIZE, TOP, Words, new_sheet
from analysis.visible import short_label, visible_text
from analysis.visible_checks import (
    AGREEMENT_COLOURS,
    ATTENTION_BINS,
    FEW_POINTS,
    LARGEST_JSD,
    Agreement,
    agreement_words,
    agreements,
    attention_bins,
    bandwidth,
    bin_title,
    change_limit,
    count_limit,
    density,
    histogram,
    input_groups,
    jsd_edges,
    permutation_title,
    tau_edges,
)

WIDTH, PANEL, GAP = 7.4, 2.35, 0.88  # inches; the gap holds ticks and names
LEFT, TOP_GAP = 0.82, 0.34
"""Inches left of the first panel and above it."""

BETWEEN = 0.56
"""Inches between two histograms of one panel."""

SHAPES: tuple[DotShape, ...] = ("circle", "square", "triangle", "diamond")
"""Of the groups in turn, so that colour never tells alone."""


def draw_checked_set(view: CheckedSet, words: Words, fonts: Fonts) -> Sheet:
    """Up to four panels, those whose numbers there are, two in a row, and the colours of the classes below."""
    panels = _panels(view)
    down = -(-len(panels) // 2)
    extent = TOP_GAP + down * (PANEL + GAP) - 0.3 if panels else 0.4
    sheet = new_sheet(WIDTH, extent + 0.22, words, fonts)
    wide = (WIDTH - MARGIN - 2 * LEFT) / 2
    for index, draw in enumerate(panels):
        x, y = LEFT + (index % 2) * (wide + LEFT), TOP + TOP_GAP + (index // 2) * (PANEL + GAP)
        draw(sheet, view, (x, y, wide, PANEL))
    if not panels:
        sheet.text(MARGIN, TOP + 0.15, "None of the numbers of this figure was measured.", colour=MUTED)
    _legend(sheet, view, TOP + extent + 0.02)
    return sheet


Place = tuple[float, float, float, float]
Panel = Callable[[Sheet, CheckedSet, Place], None]


def _panels(view: CheckedSet) -> list[Panel]:
    """What can be drawn of a set."""

    def known(*keys: str) -> bool:
        values = [view.number(key) for key in keys]
        return all(each is not None for each in values) and bool(
            np.isfinite(np.stack([each for each in values if each is not None])).all(axis=0).any()
        )

    found: list[tuple[bool, Panel]] = [
        (known("permutation", "max_attention"), _draw_permutation),
        (known("jsd", "max_attention"), _draw_scatter),
        (known("jsd"), _draw_divergences),
        (bool(agreements(view)), _draw_agreements),
    ]
    return [panel for there, panel in found if there]


def _number(view: CheckedSet, key: str) -> NDArray[np.float64]:
    values = view.number(key)
    assert values is not None
    return np.asarray(values, dtype=np.float64)


# Panels -------------------------------------------------------------------------------------------------------------


def _draw_permutation(sheet: Sheet, view: CheckedSet, place: Place) -> None:
    """A violin for each range of the largest weight and class: what permuting the weights changes."""
    changes, bins = _number(view, "permutation"), attention_bins(view)
    end = change_limit(view)
    axes = Axes(sheet, *place, across=(0.0, end), up=(0.0, float(len(ATTENTION_BINS))))
    ticks = [end * share for share in (0, 0.25, 0.5, 0.75, 1)]
    title, name = "Permuted weights", visible_text(permutation_title(view))
    axes.frame(title, name, remark="upright line: median of the inputs", across_ticks=ticks)
    sheet.text(place[0] - 0.66, place[1] + place[3] / 2, "largest weight", size=SMALL_SIZE, colour=MUTED,
               align="center", angle=90)  # fmt: skip
    groups, few = input_groups(view), np.isfinite(changes).sum() <= FEW_POINTS
    band = 0.86 / len(groups)
    for index in range(len(ATTENTION_BINS)):
        middle = axes.place(0.0, index + 0.5)[1]
        sheet.text(
            place[0] - 0.06, middle - 0.06, bin_title(index), size=TINY_SIZE, colour=INK, align="right"
        )
        inside = (bins == index) & np.isfinite(changes)
        count = f"n = {int(inside.sum())}"
        sheet.text(place[0] - 0.06, middle + 0.06, count, size=TINY_SIZE, colour=MUTED, align="right")
        for line, group in enumerate(groups):
            centre = index + 0.93 - band * (line + 0.5)
            values, mark = changes[inside & group.members], (group.colour, SHAPES[line])
            _draw_violin(axes, values, (centre, band), mark, few=bool(few))
        marked = view.marked
        if marked is not None and inside[marked]:
            line = next(line for line, group in enumerate(groups) if group.members[marked])
            axes.ring(float(changes[marked]), index + 0.93 - band * (line + 0.5))


def _draw_violin(
    axes: Axes,
    values: NDArray[np.float64],
    place: tuple[float, float],
    mark: tuple[str, DotShape],
    *,
    few: bool,
) -> None:
    """The density of values about a line, cut at both ends, with their median; one or two are marks alone."""
    (centre, band), (colour, shape) = place, mark
    if not len(values):
        return
    if len(values) >= 3 and np.ptp(values) > 0:
        places = np.linspace(values.min(), values.max(), 80)
        heights = 0.46 * band * density(values, places, bandwidth(values, axes.across[1]))
        outline = np.concatenate(
            [axes.places(places, centre + heights), axes.places(places[::-1], centre - heights[::-1])]
        )
        axes.sheet.polygon(outline, fill=_pale(colour), edge=colour, line=0.7)
    if few or len(values) < 3:
        axes.dots(values, np.full(len(values), centre), colour, size=0.034, shape=shape, edge="none")
    median = float(np.median(values))
    axes.line((median, centre - 0.3 * band), (median, centre + 0.3 * band), INK, line=1.3)


def _draw_scatter(sheet: Sheet, view: CheckedSet, place: Place) -> None:
    """The largest divergence within ε against the largest weight, each below its own bound and all below ln 2."""
    largest, jsd, bounds = _number(view, "max_attention"), _number(view, "jsd"), view.number("jsd_bound")
    known = np.isfinite(largest) & np.isfinite(jsd)
    few = known.sum() <= FEW_POINTS
    stemmed = bounds is not None and few
    axes = Axes(sheet, *place, across=(0.0, 1.0), up=(0.0, 0.75))
    axes.frame(
        "Farthest weights that predict the same",
        "largest weight",
        f"ε-max JSD (nats), ε = {view.epsilon:.3g}",
        remark="tick: most that the input's weights allow" if stemmed else "",
        across_ticks=(0, 0.25, 0.5, 0.75, 1),
        up_ticks=(0, 0.2, 0.4, 0.6),
    )
    axes.line((0.0, LARGEST_JSD), (1.0, LARGEST_JSD), INK, dashed=True)
    x, y = axes.place(1.0, LARGEST_JSD)
    sheet.text(x, y - 0.07, "ln 2", size=TINY_SIZE, colour=INK, align="right")
    if bounds is not None and few:
        ends = axes.places(largest, np.nan_to_num(np.asarray(bounds, dtype=np.float64)))
        starts = axes.places(np.nan_to_num(largest), np.nan_to_num(jsd))
        bounded = known & np.isfinite(bounds)
        stems = np.stack([starts, ends], axis=1)[bounded]
        sheet.segments(stems, "#b9bec6", line=0.5)
        tick = np.array([0.025, 0.0])
        sheet.segments(np.stack([ends - tick, ends + tick], axis=1)[bounded], MUTED, line=0.8)
    for line, group in enumerate(input_groups(view)):
        drawn = known & group.members
        size = 0.055 if few else 0.03
        axes.dots(largest[drawn], jsd[drawn], group.colour, size=size, shape=SHAPES[line])
    if view.marked is not None and known[view.marked]:
        axes.ring(float(largest[view.marked]), float(jsd[view.marked]))


def _draw_divergences(sheet: Sheet, view: CheckedSet, place: Place) -> None:
    """How many inputs have which largest divergence within ε."""
    jsd, edges, groups = _number(view, "jsd"), jsd_edges(), input_groups(view)
    counts = [histogram(jsd[group.members], edges) for group in groups]
    end, ticks = count_limit(np.sum(counts, axis=0))
    axes = Axes(sheet, *place, across=(0.0, LARGEST_JSD), up=(0.0, end))
    title, name = "How far weights can move", f"ε-max JSD (nats, at most ln 2), ε = {view.epsilon:.3g}"
    told = f"mean {jsd[np.isfinite(jsd)].mean():.3g}"
    axes.frame(title, name, "inputs", remark=told, across_ticks=(0, 0.2, 0.4, 0.6), up_ticks=ticks)
    axes.bars(edges, counts, [group.colour for group in groups])
    axes.line((LARGEST_JSD, 0.0), (LARGEST_JSD, end), INK, dashed=True)
    axes.line((0.0, 0.0), (LARGEST_JSD, 0.0), MUTED)


def _draw_agreements(sheet: Sheet, view: CheckedSet, place: Place) -> None:
    """Histograms of the rank correlation of attention with other measures, one below the other."""
    x, y, wide, tall = place
    found = agreements(view)
    each = (tall - BETWEEN * (len(found) - 1)) / len(found)
    for line, agreement in enumerate(found):
        last = line == len(found) - 1
        _draw_agreement(sheet, agreement, (x, y + line * (each + BETWEEN), wide, each), named=last)


def _draw_agreement(sheet: Sheet, agreement: Agreement, place: Place, *, named: bool) -> None:
    edges = tau_edges()
    counts = histogram(agreement.values, edges)
    end, ticks = count_limit(counts)
    axes = Axes(sheet, *place, across=(-1.0, 1.0), up=(0.0, end))
    name = "Kendall τ with attention" if named else ""
    title = f"Agreement with {agreement.title}"
    told, across = agreement_words(agreement), (-1, -0.5, 0, 0.5, 1)
    axes.frame(title, name, "inputs", remark=told, across_ticks=across, up_ticks=ticks)
    axes.bars(edges, [counts], [AGREEMENT_COLOURS[agreement.key]])
    axes.line((agreement.mean, 0.0), (agreement.mean, end), INK, line=1.2)
    axes.line((-1.0, 0.0), (1.0, 0.0), MUTED)


def _legend(sheet: Sheet, view: CheckedSet, y: float) -> None:
    """Colour and mark of each group, and which input has a ring."""
    x = MARGIN
    sheet.text(x, y, "predicted:", size=SMALL_SIZE, colour=MUTED)
    x += sheet.fonts.width("predicted:", SMALL_SIZE) + 0.16
    for line, group in enumerate(input_groups(view)):
        name = f"{short_label(group.name, 14)} {int(group.members.sum())}"
        sheet.dots(np.array([[x, y]]), group.colour, size=0.09, shape=SHAPES[line])
        sheet.text(x + 0.1, y, name, size=SMALL_SIZE)
        x += 0.1 + sheet.fonts.width(name, SMALL_SIZE) + 0.24
    if view.marked is not None:
        sheet.dots(np.array([[x, y]]), "none", size=0.11, edge=INK, line=1.0)
        sheet.text(x + 0.1, y, f"input {view.marked}", size=SMALL_SIZE)


def _pale(colour: str) -> tuple[float, float, float, float]:
    red, green, blue = (int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5))
    return red, green, blue, 0.3
