"""A matrix and a row of token scores on paper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.drawing import FAINT, INK, MUTED, TEXT_SIZE, Fonts, Sheet, colour_table
from analysis.figure_data import AttentionContrast, MatrixView, TokenLabel, TokenScores
from analysis.plates.frame import (
    MARGIN,
    PICTURE_SIDE,
    SMALL_SIZE,
    TINY_SIZE,
    TOP,
    Words,
    column_width,
    draw_label,
    draw_scale_bar,
    label_size,
    new_sheet,
    readable_ink,
    row_height,
)
from analysis.raster import Pixels, coloured, enlarged
from analysis.visible import (
    above_scale,
    matrix_above,
    matrix_limits,
    matrix_window,
    pooled_window,
    score_limits,
    short_label,
)


def draw_matrix_view(view: MatrixView, words: Words, fonts: Fonts) -> Sheet:
    """One matrix as a heat map with its token labels."""
    rows, columns = matrix_window(view)
    count = rows.stop - rows.start, columns.stop - columns.start
    cell = min(0.36, 5.2 / max(count))
    wide, tall = max(cell * count[1], 0.05), max(cell * count[0], 0.05)
    row_labels = thinned(range(rows.start, rows.stop), cell)
    column_labels = thinned(range(columns.start, columns.stop), cell)
    size = label_size(max(cell, 0.115))
    left = MARGIN + column_width(view.rows, np.array(row_labels, dtype=np.intp), size, fonts)
    top = TOP + column_width(view.columns, np.array(column_labels, dtype=np.intp), size, fonts) - 0.05
    bar = max(min(tall, 3.6), 1.3)
    sheet = new_sheet(max(left + wide + 1.2, 5.4), top - TOP + max(tall, bar), words, fonts)
    values = pooled_window(view)
    pixels = coloured(values, matrix_limits(view), colour_table(view.colour_map), scale=view.scale)
    sheet.image(left, top, wide, tall, enlarged(pixels, PICTURE_SIDE))
    sheet.box(left, top, wide, tall, edge=FAINT, line=0.6)
    if cell >= 0.3:
        _draw_numbers(sheet, values, pixels, (left, top), cell)
    for index in row_labels:
        matrix_label(
            sheet, view.rows[index], index, (left - 0.07, top + cell * (index - rows.start + 0.5)), size
        )
    for index in column_labels:
        place = (left + cell * (index - columns.start + 0.5), top - 0.07)
        matrix_label(sheet, view.columns[index], index, place, size, upright=True)
    sheet.text(left - 0.2, top - 0.14, "key →", size=TINY_SIZE, colour=MUTED, align="right")
    sheet.text(left - 0.2, top - 0.25, "query ↓", size=TINY_SIZE, colour=MUTED, align="right")
    if view.selected is not None:
        row, column = view.selected[0] - rows.start, view.selected[1] - columns.start
        if 0 <= row < count[0] and 0 <= column < count[1]:
            edge = max(cell, 0.05)
            x, y = left + cell * (column + 0.5) - edge / 2, top + cell * (row + 0.5) - edge / 2
            sheet.mark(x, y, edge, edge)
    limits = matrix_limits(view)
    over = matrix_above(view) > 0
    place = left + wide + 0.2
    draw_scale_bar(sheet, place, top, bar, limits, view.colour_map, view.unit, scale=view.scale, over=over)
    return sheet


def _draw_numbers(
    sheet: Sheet, values: NDArray[Any], pixels: Pixels, corner: tuple[float, float], cell: float
) -> None:
    """Each cell's value inside it, to two digits."""
    for (row, column), value in np.ndenumerate(values):
        x, y = corner[0] + cell * (column + 0.5), corner[1] + cell * (row + 0.5)
        text = f"{value:.2f}".removeprefix("0") if np.isfinite(value) else "–"
        sheet.text(x, y, text, size=TINY_SIZE, colour=readable_ink(pixels[row, column]), align="center")


def thinned(indices: range, cell: float) -> list[int]:
    """Indices whose labels fit beside cells of this size: all of them, or every second, fifth, tenth ..."""
    for step in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000):
        if cell * step >= 0.115:
            return [index for index in indices if index % step == 0]
    return [indices.start]


def matrix_label(
    sheet: Sheet,
    label: TokenLabel,
    index: int,
    place: tuple[float, float],
    size: float,
    *,
    upright: bool = False,
) -> None:
    """A token and its index at a row (ends at ``place``) or above a column (rises from ``place``)."""
    text, number = short_label(label.text), str(index)
    colour = MUTED if label.special else INK
    along = sheet.fonts.width(text, size) + 0.06
    tiny = min(TINY_SIZE, size * 0.8)
    x, y = place
    if upright:
        sheet.text(x, y, text, size=size, colour=colour, angle=90)
        sheet.text(x, y - along, number, size=tiny, colour=MUTED, angle=90)
    else:
        sheet.text(x, y, text, size=size, colour=colour, align="right")
        sheet.text(x - along, y, number, size=tiny, colour=MUTED, align="right")


def draw_token_scores(view: TokenScores, words: Words, fonts: Fonts) -> Sheet:
    """The text with each token on its colour, then one bar a token."""
    limits = score_limits(view)
    colours = coloured(view.scores, limits, colour_table(view.colour_map), scale=view.scale)
    places, flow = flowing(view, 5.6, fonts)
    row = row_height(len(view.tokens))
    size = label_size(row)
    start = flow + 0.3
    bars = start + row * len(view.tokens)
    sheet = new_sheet(7.2, max(bars, 1.3), words, fonts)
    draw_flowing(sheet, places, view.tokens, colours, TOP)
    if view.source is not None and places:
        x, y, width = places[view.source]
        sheet.box(
            MARGIN + x - 0.015,
            TOP + y - 0.015,
            width + 0.03,
            0.23,
            edge=INK,
            line=1.1,
            radius=0.04,
            layer=2.0,
        )
    _draw_bars(sheet, view, colours, limits, TOP + start, row, size)
    bar, place = float(np.clip(bars, 1.2, 2.2)), sheet.width - MARGIN - 0.78
    over = bool(above_scale(view.scores, limits).any())
    draw_scale_bar(sheet, place, TOP, bar, limits, view.colour_map, view.unit, scale=view.scale, over=over)
    return sheet


def draw_flowing(
    sheet: Sheet,
    places: Sequence[tuple[float, float, float]],
    tokens: Sequence[TokenLabel],
    colours: Pixels,
    top: float,
) -> None:
    """Tokens on their colours, at the places that ``flowing`` gives below ``top``."""
    for (x, y, width), label, colour in zip(places, tokens, colours, strict=True):
        sheet.box(MARGIN + x, top + y, width, 0.2, fill=colour / 255, radius=0.03)
        middle, text = MARGIN + x + width / 2, short_label(label.text)
        sheet.text(middle, top + y + 0.1, text, align="center", colour=readable_ink(colour))


def flowing(
    view: TokenScores | AttentionContrast, width: float, fonts: Fonts
) -> tuple[list[tuple[float, float, float]], float]:
    """Places (left, top, width) of tokens set as running text, from the right for right-to-left, and its height."""
    places: list[tuple[float, float, float]] = []
    x, y = 0.0, 0.0
    for index, label in enumerate(view.tokens):
        wide = max(fonts.width(short_label(label.text), TEXT_SIZE), 0.05) + 0.09
        joined = label.continues and index > 0
        x += 0.0 if x == 0 else 0.012 if joined else 0.07
        if x > 0 and x + wide > width:
            x, y = 0.0, y + 0.27
        places.append((width - x - wide if view.direction == "rtl" else x, y, wide))
        x += wide
    return places, y + 0.2 if places else 0.0


def _draw_bars(
    sheet: Sheet,
    view: TokenScores,
    colours: NDArray[np.uint8],
    limits: tuple[float, float],
    top: float,
    row: float,
    size: float,
) -> None:
    """A bar for each token from zero, in the token's colour, with its value."""
    everyone = np.arange(len(view.tokens), dtype=np.intp)
    left = MARGIN + column_width(view.tokens, everyone, size, sheet.fonts)
    beyond = above_scale(view.scores, limits)
    room = sheet.width - MARGIN - (2.3 if beyond.any() else 1.6) - left
    low, high = min(limits[0], 0.0), max(limits[1], 0.0)
    unit = room / (high - low)
    zero = left + 0.08 - low * unit
    for index, (label, score) in enumerate(zip(view.tokens, view.scores.tolist(), strict=True)):
        y = top + row * (index + 0.5)
        width = draw_label(sheet, left, y, label, size=size, align="right")
        away = left - width - 0.075 - 0.03 * label.special
        place = str(view.start + index)
        sheet.text(away, y, place, size=min(TINY_SIZE, size * 0.8), colour=MUTED, align="right")
        if not np.isfinite(score):
            sheet.text(zero + 0.06, y, "no value", size=min(SMALL_SIZE, size), colour=MUTED)
            continue
        length = (float(np.clip(score, low, high))) * unit
        sheet.box(zero + min(length, 0), y - row * 0.33, abs(length), row * 0.66, fill=colours[index] / 255)
        value = f"{score:.3g}" + (", above the scale" if beyond[index] else "")
        sheet.text(zero + max(length, 0) + 0.06, y, value, size=min(SMALL_SIZE, size), colour=MUTED)
        if index == view.source:
            sheet.box(
                left - width - 0.05, y - row * 0.46, width + 0.1, row * 0.92, edge=INK, line=0.9, radius=0.03
            )
