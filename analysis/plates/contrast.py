"""Two distributions of attention, what the model says with each, and how far they are apart, on paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.drawing import FAINT, INK, MUTED, TEXT_SIZE, Fonts, Sheet
from analysis.figure_data import AttentionContrast, EvidenceMaps, EvidencePanel, Floats
from analysis.plates.axes import Axes
from analysis.plates.evidence import mixed_map, on_white
from analysis.plates.frame import (
    MARGIN,
    SMALL_SIZE,
    TINY_SIZE,
    TOP,
    Words,
    column_width,
    draw_label,
    draw_scale_bar,
    label_size,
    new_sheet,
    row_height,
    short_number,
)
from analysis.plates.matrices import draw_flowing, flowing
from analysis.raster import Pixels, coloured
from analysis.visible import short_label
from analysis.visible_checks import (
    LARGEST_JSD,
    change_end,
    count_limit,
    drawn_candidates,
    drawn_outputs,
    drawn_tokens,
    histogram,
    permuted_end,
    weight_limit,
    within_epsilon,
)
from analysis.visible_contrast import CANDIDATE_COLOUR, OBSERVED_COLOUR, are_probabilities, prefix_names
from analysis.visible_evidence import evidence_colours

WIDTH = 7.4  # inches
OTHER = "#98a0aa"
"""Of distributions that are listed but not drawn."""

HEADING, PITCH = 0.3, 0.19  # inches

PERMUTED = 1.9
"""Inches of the histogram of permutations."""

NAMED_PREFIX = 3
"""Most positions before the patches that are told one by one."""


def draw_contrast(view: AttentionContrast, words: Words, fonts: Fonts) -> Sheet:
    """The observed and the shown distribution over the input, bars of both, the predictions, and all distances."""
    pair = _pair(view)
    if view.picture is None:
        places, flow = flowing(view, WIDTH - 2 * MARGIN, fonts)
        top = len(pair) * (HEADING + flow) + 0.3
        barred = drawn_tokens(view)
        row = row_height(len(barred))
        tall = HEADING + row * len(barred)
    else:
        top, tall = _map_size(view)[1] + HEADING + 0.25, 0.0
    outputs, listed = drawn_outputs(view), drawn_candidates(view)
    said = HEADING + (PITCH * len(pair) * 0.75 + 0.06) * len(outputs)
    far = HEADING + 0.16 + PITCH * len(listed) + 0.1
    extent = top + tall + said + far + (0.0 if view.permuted is None else PERMUTED)
    sheet = new_sheet(WIDTH, extent, words, fonts)
    if view.picture is None:
        _draw_sentences(sheet, view, pair, places, flow)
        _draw_mirrored(sheet, view, pair, barred, TOP + top)
    else:
        _draw_maps(sheet, view, pair)
    _draw_outputs(sheet, view, pair, outputs, TOP + top + tall)
    _draw_distances(sheet, view, listed, TOP + top + tall + said)
    if view.permuted is not None:
        _draw_permuted(sheet, view, view.permuted, TOP + top + tall + said + far)
    return sheet


def _pair(view: AttentionContrast) -> list[tuple[int, str]]:
    """(index, colour) of the distributions that are drawn: the observed one alone where it is the one shown."""
    return [(0, OBSERVED_COLOUR), *([(view.shown, CANDIDATE_COLOUR)] if view.shown else [])]


def _shades() -> Pixels:
    """(256, 3) colours of attention on white, which has no sign."""
    return on_white(evidence_colours(False))


def _drawn_weights(view: AttentionContrast, pair: Sequence[tuple[int, str]]) -> NDArray[Any]:
    return view.weights[[index for index, _ in pair]]


def _name(view: AttentionContrast, index: int, characters: int = 40) -> str:
    return short_label(view.names[index], characters)


def _heading(sheet: Sheet, x: float, y: float, name: str, colour: str, more: str = "") -> None:
    """A name behind its colour's mark, and a muted remark."""
    sheet.box(x, y - 0.05, 0.1, 0.1, fill=colour, radius=0.02)
    sheet.text(x + 0.16, y, name, size=TEXT_SIZE, bold=True)
    start = x + 0.16 + sheet.fonts.width(name, TEXT_SIZE, bold=True) + 0.12
    sheet.text(start, y, more, size=SMALL_SIZE, colour=MUTED)


# Over the input -----------------------------------------------------------------------------------------------------


def _draw_sentences(
    sheet: Sheet,
    view: AttentionContrast,
    pair: Sequence[tuple[int, str]],
    places: Sequence[tuple[float, float, float]],
    flow: float,
) -> None:
    """The text once a distribution, each token on its colour, and the scale below."""
    weights, table, end = _drawn_weights(view, pair), _shades(), weight_limit(view)
    y = TOP
    for (index, hue), values in zip(pair, weights, strict=True):
        _heading(sheet, MARGIN, y + 0.1, _name(view, index), hue)
        colours = coloured(values, (0.0, end), table, scale="sqrt")
        draw_flowing(sheet, places, view.tokens, colours, y + HEADING - 0.06)
        y += HEADING + flow
    sheet.text(MARGIN, y + 0.12, "0", size=SMALL_SIZE, colour=MUTED)
    sheet.image(MARGIN + 0.12, y + 0.07, 1.3, 0.1, np.repeat(table[None], 8, axis=0))
    sheet.box(MARGIN + 0.12, y + 0.07, 1.3, 0.1, edge=FAINT, line=0.5)
    told = f"{short_number(end)}   {_unit(view)}"
    sheet.text(MARGIN + 1.5, y + 0.12, told, size=SMALL_SIZE, colour=MUTED)


def _unit(view: AttentionContrast) -> str:
    return "attention weight" + (f", mean of {view.rows} rows" if view.rows > 1 else "")


def _draw_mirrored(
    sheet: Sheet,
    view: AttentionContrast,
    pair: Sequence[tuple[int, str]],
    barred: Sequence[int],
    top: float,
) -> None:
    """A row a token: the observed weight to the left of its label, the shown one to the right."""
    weights = np.asarray(_drawn_weights(view, pair), dtype=np.float64)
    row = row_height(len(barred))
    size, largest = label_size(row), float(np.nan_to_num(weights).max(initial=0.0)) or 1.0
    middle = column_width(view.tokens, np.array(barred, dtype=np.intp), size, sheet.fonts) + 0.16
    room = (WIDTH - 2 * MARGIN - middle) / 2
    centre = MARGIN + room + middle / 2
    ends = ((MARGIN + room, -1), (MARGIN + room + middle, 1))
    for (edge, side), (index, hue) in zip(ends, pair, strict=False):
        start = (
            edge if side > 0 else edge - 0.16 - sheet.fonts.width(_name(view, index), TEXT_SIZE, bold=True)
        )
        _heading(sheet, start, top + 0.08, _name(view, index), hue)
    for line, place in enumerate(barred):
        label = view.tokens[place]
        y = top + HEADING - 0.08 + row * (line + 0.5)
        left = centre - sheet.fonts.width(short_label(label.text), size) / 2 + 0.06
        draw_label(sheet, left, y, label, size=size, align="left")
        left -= 0.07 + 0.03 * label.special
        sheet.text(left, y, str(place), size=min(TINY_SIZE, size * 0.8), colour=MUTED, align="right")
        for (edge, side), (_, hue), values in zip(ends, pair, weights, strict=False):
            value = float(values[place])
            length = (room - 0.5) * value / largest if np.isfinite(value) else 0.0
            sheet.box(edge if side > 0 else edge - length, y - row * 0.33, length, row * 0.66, fill=hue)
            text = f"{value:.3g}" if np.isfinite(value) else "no value"
            sheet.text(
                edge + side * (length + 0.05),
                y,
                text,
                size=min(SMALL_SIZE, size),
                colour=MUTED,
                align="left" if side > 0 else "right",
            )


def _map_size(view: AttentionContrast) -> tuple[float, float]:
    """Width and height in inches of one map."""
    assert view.picture is not None
    height, width = view.picture.shape[:2]
    return 2.75 * width / max(height, width), 2.75 * height / max(height, width)


def _draw_maps(sheet: Sheet, view: AttentionContrast, pair: Sequence[tuple[int, str]]) -> None:
    """The picture under each distribution, side by side; what lies on no patch stands below as a number."""
    assert view.picture is not None
    assert view.grid is not None
    wide, tall = _map_size(view)
    weights, end = _drawn_weights(view, pair), weight_limit(view)
    shares = np.sqrt(np.clip(weights[:, view.prefix :] / end, 0.0, 1.0)).reshape(-1, *view.grid)
    panels = (EvidencePanel("", "", signed=False, limit=1.0),) * len(pair)
    maps = EvidenceMaps(view.picture, shares, panels)
    for place, (index, hue) in enumerate(pair):
        x, y = MARGIN + place * (max(wide, 2.0) + 0.2), TOP + HEADING
        _heading(sheet, x, TOP + 0.1, _name(view, index, 28), hue)
        sheet.image(x, y, wide, tall, mixed_map(maps, place))
        sheet.box(x, y, wide, tall, edge=FAINT, line=0.5)
        text = _prefix_in_words(view, weights[place, : view.prefix])
        sheet.text(x, y + tall + 0.12, text, size=SMALL_SIZE, colour=MUTED)
    start, bar = MARGIN + len(pair) * (max(wide, 2.0) + 0.2), max(tall, 0.9)
    draw_scale_bar(sheet, start, TOP + HEADING, bar, (0.0, end), _shades(), _unit(view), scale="sqrt")


def _prefix_in_words(view: AttentionContrast, weights: NDArray[Any]) -> str:
    """What attention is on no patch."""
    names = prefix_names(view.prefix)
    if len(names) > NAMED_PREFIX:
        return f"{len(names)} positions that are no patches: {float(weights.sum()):.3g}"
    return ", ".join(f"{name} {float(weight):.3g}" for name, weight in zip(names, weights, strict=True))


# What follows -------------------------------------------------------------------------------------------------------


def _draw_outputs(
    sheet: Sheet,
    view: AttentionContrast,
    pair: Sequence[tuple[int, str]],
    outputs: Sequence[int],
    top: float,
) -> None:
    """Each output with a bar for each distribution that is drawn."""
    values = np.asarray(view.outputs, dtype=np.float64)[[index for index, _ in pair]][:, outputs]
    known = values[np.isfinite(values)]
    low, high = min(float(known.min(initial=0.0)), 0.0), float(known.max(initial=0.0))
    low, high = (0.0, 1.0) if are_probabilities(view) else (low, high)
    column, row = 2.0, PITCH * 0.75
    unit = (WIDTH - 2 * MARGIN - column - 0.7) / ((high - low) or 1.0)
    zero = MARGIN + column - low * unit
    sheet.text(MARGIN, top + 0.12, "What the model says", size=TEXT_SIZE, bold=True)
    y = top + HEADING
    for place, output in enumerate(outputs):
        middle = y + row * len(pair) / 2
        name = short_label(view.labels[output], 30)
        sheet.text(MARGIN + column - 0.1, middle, name, size=SMALL_SIZE, align="right")
        for line, (_, hue) in enumerate(pair):
            value = float(values[line, place])
            length = value * unit if np.isfinite(value) else 0.0
            sheet.box(zero + min(length, 0.0), y + row * line, abs(length), row * 0.86, fill=hue)
            text = f"{value:.3g}" if np.isfinite(value) else "no value"
            sheet.text(
                zero + max(length, 0.0) + 0.06, y + row * (line + 0.43), text, size=TINY_SIZE, colour=MUTED
            )
        y += row * len(pair) + 0.06
    sheet.segments(np.array([[[zero, top + HEADING - 0.02], [zero, y - 0.04]]]), MUTED, line=0.5)


def _draw_distances(sheet: Sheet, view: AttentionContrast, listed: Sequence[int], top: float) -> None:
    """A row a distribution: its divergence and the change of the output, each on a track with its bound."""
    end = change_end(view)
    within = within_epsilon(view)
    name, track, number = 1.85, 1.55, 0.55
    lefts = (MARGIN + name, MARGIN + name + track + number + 0.1)
    told = "no end" if view.change_bound is None else f"end: {view.change_bound:.3g}"
    heads = (
        ("JSD from observed", f"nats · tick: most there is, {view.jsd_bound:.3g} · end: ln 2"),
        (short_label(view.change_name, 30), f"√ scale · tick: ε = {view.epsilon:.3g} · {told}"),
    )
    sheet.text(MARGIN, top + 0.12, "Distribution", size=TEXT_SIZE, bold=True)
    for left, (title, remark) in zip(lefts, heads, strict=True):
        sheet.text(left, top + 0.12, title, size=TEXT_SIZE, bold=True)
        sheet.text(left, top + 0.27, remark, size=TINY_SIZE, colour=MUTED)
    for line, index in enumerate(listed):
        y = top + HEADING + 0.16 + PITCH * (line + 0.5)
        hue = OBSERVED_COLOUR if index == 0 else CANDIDATE_COLOUR if index == view.shown else OTHER
        drawn = index in (0, view.shown)
        sheet.box(
            MARGIN, y - 0.045, 0.09, 0.09, fill=hue if drawn else "none", edge=hue, line=0.6, radius=0.02
        )
        sheet.text(MARGIN + 0.15, y, _name(view, index, 26), size=SMALL_SIZE, bold=index == view.shown)
        tracks = (
            (lefts[0], view.jsd[index], LARGEST_JSD, view.jsd_bound),
            (lefts[1], view.change[index], end, view.epsilon),
        )
        for (left, value, limit, tick), scale in zip(tracks, (1.0, 0.5), strict=True):
            shares = float(value / limit) ** scale, float(tick / limit) ** scale
            _draw_track(sheet, (left, y, track), *shares, hue)
            text = f"{value:.3g}" if np.isfinite(value) else "none"
            sheet.text(left + track + 0.08, y, text, size=SMALL_SIZE, colour=INK)
        verdict = "within ε" if within[index] else ""
        sheet.text(lefts[1] + track + number, y, verdict if index else "", size=SMALL_SIZE, colour=MUTED)


def _draw_track(
    sheet: Sheet, place: tuple[float, float, float], share: float, tick: float, colour: str
) -> None:
    """A lying bar on its track, with an upright tick."""
    x, y, width = place
    sheet.box(x, y - 0.045, width, 0.09, fill=FAINT, layer=0.8)
    if np.isfinite(share):
        sheet.box(x, y - 0.045, width * float(np.clip(share, 0, 1)), 0.09, fill=colour)
    at = x + width * float(np.clip(tick, 0, 1))
    sheet.segments(np.array([[[at, y - 0.075], [at, y + 0.075]]]), INK, line=0.9, layer=1.5)


def _draw_permuted(sheet: Sheet, view: AttentionContrast, changes: Floats, top: float) -> None:
    """How many permutations of the observed weights change the output how much, with their median and ε."""
    known = np.asarray(changes, dtype=np.float64)
    end = permuted_end(view)
    edges = np.linspace(0.0, end, 31)
    counts = histogram(known, edges)
    highest, ticks = count_limit(counts)
    place = (MARGIN + 0.6, top + 0.42, WIDTH - 2 * MARGIN - 0.6, PERMUTED - 0.95)
    axes = Axes(sheet, *place, across=(0.0, end), up=(0.0, highest))
    median, within = float(np.median(known)), float((known <= view.epsilon).mean())
    axes.frame(
        "Permuted attention",
        f"{view.change_name} of a permutation",
        "permutations",
        remark=f"median {median:.3g} (line); {within:.0%} within ε = {view.epsilon:.3g} (dashed)",
        across_ticks=[end * share for share in (0, 0.25, 0.5, 0.75, 1)],
        up_ticks=ticks,
    )
    axes.bars(edges, [counts], [OTHER])
    axes.line((median, 0.0), (median, highest), INK, line=1.2)
    axes.line((view.epsilon, 0.0), (view.epsilon, highest), INK, dashed=True)
