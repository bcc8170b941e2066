"""What editing each head does to a target, on paper."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from analysis.drawing import FAINT, MUTED, TEXT_SIZE, Fonts, Sheet
from analysis.figure_data import Floats, HeadEffects
from analysis.plates.evidence import on_white
from analysis.plates.frame import (
    MARGIN,
    PICTURE_SIDE,
    SMALL_SIZE,
    TINY_SIZE,
    TOP,
    Words,
    draw_scale_bar,
    new_sheet,
    readable_ink,
)
from analysis.plates.matrices import thinned
from analysis.raster import Pixels, coloured, enlarged
from analysis.visible import short_label
from analysis.visible_checks import effect_limits
from analysis.visible_evidence import evidence_colours

STRIP, GAP = 0.62, 0.2  # inches
NUMBERED = 0.34
"""Cells at least so large, in inches, hold their number."""


def draw_head_effects(view: HeadEffects, words: Words, fonts: Fonts) -> Sheet:
    """Layers down and heads across; beside them each layer with all of its heads edited, below these all layers."""
    layers, heads = view.heads.shape[1:]
    wide, tall = max(0.05, min(0.42, 5.0 / heads)), max(0.03, min(0.36, 7.0 / layers))
    left, top = MARGIN + 0.55, TOP + 0.42
    across, down = wide * heads, tall * layers
    strip, below = left + across + GAP, top + down + 0.12
    bar = max(min(down, 3.0), 1.3)
    width = max(strip + STRIP + 1.2, 5.4)
    sheet = new_sheet(width, max(below + 0.36, top + bar) - TOP, words, fonts)
    table = on_white(evidence_colours(True))
    single, together = effect_limits(view)
    shown = view.shown
    title = f"{short_label(view.edits[shown], 40)}: one head at a time"
    sheet.text(left, top - 0.34, title, size=SMALL_SIZE, bold=True)
    _draw_cells(sheet, view.heads[shown], (left, top, wide, tall), single, table)
    _draw_cells(sheet, view.layers[shown][:, None], (strip, top, STRIP, tall), together, table, numbers=True)
    _draw_cells(
        sheet, view.whole[None, shown : shown + 1], (strip, below, STRIP, 0.3), together, table, numbers=True
    )
    _label(sheet, view, (left, top), (wide, tall), strip)
    sheet.text(strip - 0.08, below + 0.15, "all layers", size=SMALL_SIZE, colour=MUTED, align="right")
    if view.marked is not None:
        layer, head = view.marked
        sheet.mark(left + wide * head, top + tall * layer, wide, tall)
    place, unit = strip + STRIP + 0.2, f"change (layers: ±{together:.3g})"
    draw_scale_bar(sheet, place, top, bar, (-single, single), table, unit)
    return sheet


def _draw_cells(
    sheet: Sheet,
    values: Floats,
    place: tuple[float, float, float, float],
    limit: float,
    table: Pixels,
    *,
    numbers: bool = False,
) -> None:
    """Values (rows, columns) as cells of the size (wide, tall), with their numbers where there is room or need."""
    left, top, wide, tall = place
    rows, columns = values.shape
    pixels = coloured(values, (-limit, limit), table)
    sheet.image(left, top, wide * columns, tall * rows, enlarged(pixels, PICTURE_SIDE))
    sheet.box(left, top, wide * columns, tall * rows, edge=FAINT, line=0.6)
    size = min(TINY_SIZE, tall * 72 * 0.7)
    if not numbers and min(wide, tall) < NUMBERED:
        return
    for (row, column), value in np.ndenumerate(values):
        x, y = left + wide * (column + 0.5), top + tall * (row + 0.5)
        text = _signed(float(value), limit)
        sheet.text(x, y, text, size=size, colour=readable_ink(pixels[row, column]), align="center")


def _signed(value: float, limit: float) -> str:
    """A change with its sign, at three digits of the largest."""
    digits = max(0, 2 - math.floor(math.log10(limit)))
    if not np.isfinite(value):
        return "–"
    if digits > 4:
        return f"{value:+.1e}".replace("-", "−")
    return f"{value:+.{digits}f}".replace("-", "−") if round(value, digits) else "0"


def _label(
    sheet: Sheet, view: HeadEffects, corner: tuple[float, float], cell: tuple[float, float], strip: float
) -> None:
    """Numbers of layers and heads."""
    layers, heads = view.heads.shape[1:]
    (left, top), (wide, tall) = corner, cell
    size = min(TEXT_SIZE, SMALL_SIZE)
    for layer in thinned(range(layers), tall):
        y = top + tall * (layer + 0.5)
        sheet.text(left - 0.08, y, f"layer {layer}", size=size, colour=MUTED, align="right")
    sheet.text(left - 0.08, top - 0.1, "head", size=size, colour=MUTED, align="right")
    for head in _apart(heads, wide):
        sheet.text(left + wide * (head + 0.5), top - 0.1, str(head), size=size, colour=MUTED, align="center")
    sheet.text(strip + STRIP / 2, top - 0.1, "all heads", size=size, colour=MUTED, align="center")


def _apart(heads: int, wide: float) -> NDArray[np.intp]:
    """Heads whose numbers do not touch."""
    step = max(1, int(np.ceil(0.17 / wide)))
    return np.arange(0, heads, step)
