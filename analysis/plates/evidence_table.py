"""A table of evidence on paper: predicted words across, what they rest on down."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.drawing import FAINT, INK, MUTED, Fonts, Sheet
from analysis.figure_data import EvidenceWords
from analysis.plates.evidence import draw_scales, on_white
from analysis.plates.frame import (
    MARGIN,
    PICTURE_SIDE,
    SMALL_SIZE,
    TINY_SIZE,
    TOP,
    Words,
    column_width,
    label_size,
    new_sheet,
    readable_ink,
    short_number,
    wrapped,
)
from analysis.plates.matrices import matrix_label, thinned
from analysis.raster import Pixels, enlarged
from analysis.visible_evidence import drawn_scores, score_colours

UNREAD = 242
"""Grey of a cell whose token the model has not read when it predicts the word."""


def draw_evidence_table(view: EvidenceWords, words: Words, fonts: Fonts) -> Sheet:
    """The table as a heat map with the labels of both sides, and the words' probabilities below it."""
    across, down = len(view.predicted), len(view.tokens)
    panel = view.panels[0]
    cell = min(0.36, max(5.2 / max(across, down, 1), 0.06))
    size = label_size(max(cell, 0.115))
    column_labels, row_labels = thinned(range(across), cell), thinned(range(down), cell)
    left = MARGIN + column_width(view.tokens, np.array(row_labels, dtype=np.intp), size, fonts)
    top = TOP + 0.2 + column_width(view.predicted, np.array(column_labels, dtype=np.intp), size, fonts)
    wide, tall = cell * across, cell * down
    width = max(left + wide + MARGIN, 5.6)
    facts = " ".join(filter(None, (panel.warning, *panel.facts)))
    notes = wrapped(facts, width - 2 * MARGIN, TINY_SIZE, fonts)
    pitch = TINY_SIZE * 1.4 / 72
    below = top + tall + (0.2 if cell >= 0.3 else 0.06)
    sheet = new_sheet(width, below - TOP + pitch * len(notes) + 0.42, words, fonts)
    heading = f"{panel.method}  {'±' if panel.signed else 'max '}{short_number(panel.limit)}"
    sheet.text(MARGIN, TOP - 0.06, heading, size=SMALL_SIZE, colour=INK, bold=True)
    sheet.text(left - 0.2, top - 0.14, "predicted →", size=TINY_SIZE, colour=MUTED, align="right")
    sheet.text(left - 0.2, top - 0.25, "read ↓", size=TINY_SIZE, colour=MUTED, align="right")
    pixels = _pixels(view)
    sheet.image(left, top, wide, tall, enlarged(pixels, PICTURE_SIDE))
    sheet.box(left, top, wide, tall, edge=FAINT, line=0.6)
    if cell >= 0.3:
        _draw_numbers(sheet, view, pixels, (left, top), cell)
    for index in row_labels:
        matrix_label(sheet, view.tokens[index], index, (left - 0.07, top + cell * (index + 0.5)), size)
    for index in column_labels:
        place = (left + cell * (index + 0.5), top - 0.07)
        matrix_label(sheet, view.predicted[index], index, place, size, upright=True)
    _draw_rule(sheet, view, left, top, cell)
    if view.marked is not None and view.marked < across:
        sheet.box(left + cell * view.marked, top - 0.03, cell, tall + 0.06, edge=INK, line=1.1, layer=2.0)
    for number, sentence in enumerate(notes):
        sheet.text(MARGIN, below + pitch * (number + 0.5), sentence, size=TINY_SIZE, colour=MUTED)
    draw_scales(sheet, view.panels[:1], MARGIN, below + pitch * len(notes) + 0.2, positive=view.positive)
    return sheet


def _pixels(view: EvidenceWords) -> Pixels:
    """(S, T, 3): tokens down, words across."""
    values = np.asarray(view.scores, dtype=np.float64).T
    unread = np.isnan(values)
    shares = drawn_scores(np.where(unread, 0.0, values), view.panels[0], positive=view.positive)
    colours = score_colours(shares, view.panels[0])
    flat = np.concatenate([colours[..., :3], colours[..., 3:] * 255], axis=-1).reshape(-1, 4)
    pixels: Pixels = on_white(np.rint(flat).astype(np.uint8)).reshape(*values.shape, 3)
    pixels[unread] = UNREAD
    return pixels


def _draw_numbers(
    sheet: Sheet, view: EvidenceWords, pixels: Pixels, corner: tuple[float, float], cell: float
) -> None:
    """Each score inside its cell, and each word's probability under its column."""
    values: NDArray[Any] = np.asarray(view.scores).T
    for (row, column), value in np.ndenumerate(values):
        if np.isnan(value):
            continue
        x, y = corner[0] + cell * (column + 0.5), corner[1] + cell * (row + 0.5)
        text = _number(float(value), view.panels[0].limit)
        sheet.text(x, y, text, size=TINY_SIZE * 0.9, colour=readable_ink(pixels[row, column]), align="center")
    if view.probabilities is None:
        return
    y = corner[1] + cell * len(values) + 0.09
    sheet.text(corner[0] - 0.07, y, "probability", size=TINY_SIZE, colour=MUTED, align="right")
    for column, share in enumerate(view.probabilities.tolist()):
        x = corner[0] + cell * (column + 0.5)
        sheet.text(x, y, f"{100 * share:.2g} %", size=TINY_SIZE * 0.9, colour=MUTED, align="center")


def _number(value: float, limit: float) -> str:
    """A score with as many decimals as tell 1 % of the largest apart; the zero before the point left out."""
    decimals = max(2 - math.floor(math.log10(limit)), 0)
    if decimals > 6:
        return f"{value:.0e}" if value else "0"
    text = f"{round(value, decimals) + 0.0:.{decimals}f}"
    return text.replace("0.", ".", 1) if abs(value) < 1 and decimals else text


def _draw_rule(sheet: Sheet, view: EvidenceWords, left: float, top: float, cell: float) -> None:
    """A line above what the decoder itself has read."""
    own = next((index for index, label in enumerate(view.tokens) if label.segment), 0)
    if own:
        y = top + cell * own
        line = np.array([[[left - 0.3, y], [left + cell * len(view.predicted), y]]])
        sheet.segments(line, INK, line=0.9, layer=1.5)
