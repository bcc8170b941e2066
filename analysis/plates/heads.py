"""Every head with its class, on paper."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.drawing import DOTS_PER_INCH, FAINT, INK, MUTED, TEXT_SIZE, Fonts, Sheet, colour_table, rgb
from analysis.figure_data import HeadGrid
from analysis.plates.frame import (
    MARGIN,
    SMALL_SIZE,
    TOP,
    Words,
    draw_scale_bar,
    new_sheet,
    readable_ink,
)
from analysis.raster import Pixels, coloured, fitting, resized
from analysis.visible import pooled, short_label
from analysis.visible_heads import PALE, class_counts, drawn_heads, grid_colour, grid_limits, grid_marks

GROUND = 0.2
"""How much of its class's colour the ground of a cell with a map has."""

FRAME = 0.025  # inches


@dataclass(frozen=True)
class _Places:
    """Where cells lie, in inches: the corner of the grid, a cell with its gap, its map, and its words and bar."""

    left: float
    top: float
    wide: float
    tall: float
    gap: float
    map_size: tuple[float, float]
    words: float

    def corner(self, layer: int, head: int) -> tuple[float, float]:
        return self.left + self.wide * head, self.top + self.tall * layer


def draw_head_grid(view: HeadGrid, words: Words, fonts: Fonts) -> Sheet:
    """Layers down and heads across, each head in its class's colour with mark, bar and map; then the legend."""
    layers, heads = view.best.shape
    places = _places(view)
    extent = places.wide * heads - places.gap, places.tall * layers - places.gap
    scale = view.thumbnails is not None
    bar = float(np.clip(extent[1], 1.2, 3.0)) if scale else 0.0
    width = max(places.left + extent[0] + (1.25 if scale else MARGIN), 5.6)
    legend = _legend(view, width - 2 * MARGIN, fonts)
    below = max(extent[1], bar) + places.top - TOP + 0.16
    sheet = new_sheet(width, below + 0.17 * (legend[-1][1] + 1), words, fonts)
    if scale:
        sheet.image(places.left, places.top, *extent, _maps(view, places))
    _label(sheet, view, places)
    _draw_cells(sheet, view, places)
    for x, line, index, text in legend:
        y = TOP + below + 0.17 * (line + 0.5)
        chosen = view.shown is None or index in view.shown
        colour = _mixed(grid_colour(view, index), 1.0 if chosen else PALE)
        sheet.box(MARGIN + x, y - 0.05, 0.1, 0.1, fill=colour, radius=0.02)
        sheet.text(MARGIN + x + 0.15, y, text, size=SMALL_SIZE, colour=INK if chosen else MUTED)
    if scale:
        place, unit = places.left + extent[0] + 0.22, "share of each head's maximum"
        draw_scale_bar(sheet, place, places.top, bar, (0.0, 1.0), "viridis", unit)
    return sheet


def _places(view: HeadGrid) -> _Places:
    heads = view.best.shape[1]
    wide = min(6.6 / heads, 0.62)
    gap = max(wide * 0.07, 0.012)
    words = min(0.19, max(wide * 0.36, 0.09))  # the strip with mark and bar
    across = wide - gap - 2 * FRAME
    if view.thumbnails is None:
        return _Places(MARGIN + 0.5, TOP + 0.24, wide, max(wide * 0.62, words) + gap, gap, (0.0, 0.0), words)
    rows, columns = view.thumbnails.shape[2:]
    down = min(across * rows / columns, 2 * across)
    tall = down + 2 * FRAME + words + gap
    return _Places(MARGIN + 0.5, TOP + 0.24, wide, tall, gap, (across, down), words)


def _mixed(colour: str, share: float) -> NDArray[np.float64]:
    """A colour on white paper, ``share`` of it."""
    mixed: NDArray[np.float64] = 1 - share * (1 - rgb(colour))
    return mixed


def _maps(view: HeadGrid, places: _Places) -> Pixels:
    """All maps on the grounds of their cells in one picture, as fine as a PNG file; white between cells."""
    assert view.thumbnails is not None
    layers, heads = view.best.shape
    inch = DOTS_PER_INCH
    height = round((places.tall * layers - places.gap) * inch)
    width = round((places.wide * heads - places.gap) * inch)
    canvas = np.full((height, width, 3), 255, dtype=np.uint8)
    box = max(1, round(places.map_size[1] * inch)), max(1, round(places.map_size[0] * inch))
    limits, shown, lookup = grid_limits(view), drawn_heads(view), colour_table("viridis")
    wide, tall = (round((side - places.gap) * inch) for side in (places.wide, places.tall))
    for layer, head in np.ndindex(view.best.shape):
        top, left = round(places.tall * layer * inch), round(places.wide * head * inch)
        ground = _ground(view, layer, head, full=1.0 if shown[layer, head] else PALE)
        canvas[top : top + tall, left : left + wide] = np.rint(255 * ground)
        cells = pooled(view.thumbnails[layer, head], min(box))
        tile = coloured(cells, (0.0, float(limits[layer, head])), lookup).astype(np.float32)
        if not shown[layer, head]:
            tile = 255 - PALE * (255 - tile)
        size = fitting(cells.shape, box)
        tile = resized(tile, size, smooth=False)
        top += round(FRAME * inch) + (box[0] - size[0]) // 2
        left += round(FRAME * inch) + (box[1] - size[1]) // 2
        room = canvas[top : top + size[0], left : left + size[1]]
        room[:] = np.rint(tile[: room.shape[0], : room.shape[1]]).astype(np.uint8)
    return canvas


def _ground(view: HeadGrid, layer: int, head: int, *, full: float) -> NDArray[np.float64]:
    """What a cell is filled with: its class's colour, a little of it where there is a map."""
    colour = grid_colour(view, int(view.best[layer, head]))
    return _mixed(colour, full if view.thumbnails is None else GROUND * full)


def _label(sheet: Sheet, view: HeadGrid, places: _Places) -> None:
    """Numbers of layers and heads."""
    layers, heads = view.best.shape
    size = min(TEXT_SIZE, min(places.wide, places.tall) * 72 * 0.7)
    for layer in range(layers):
        x, y = places.corner(layer, 0)
        y += (places.tall - places.gap) / 2
        sheet.text(x - 0.08, y, f"layer {layer}", size=min(size, SMALL_SIZE), colour=MUTED, align="right")
    sheet.text(places.left - 0.08, places.top - 0.1, "head", size=SMALL_SIZE, colour=MUTED, align="right")
    for head in range(heads):
        x = places.corner(0, head)[0] + (places.wide - places.gap) / 2
        sheet.text(x, places.top - 0.1, str(head), size=size, colour=MUTED, align="center")


def _draw_cells(sheet: Sheet, view: HeadGrid, places: _Places) -> None:
    """Frame, mark and score bar of every head; the ground is the class's colour where there is no map."""
    wide, tall = places.wide - places.gap, places.tall - places.gap
    marks, shown = grid_marks(view), drawn_heads(view)
    plain = view.thumbnails is None
    thick = 0.03 if wide > 0.3 else 0.016
    for layer, head in np.ndindex(view.best.shape):
        x, y = places.corner(layer, head)
        full = 1.0 if shown[layer, head] else PALE
        colour = grid_colour(view, int(view.best[layer, head]))
        ground = _ground(view, layer, head, full=full)
        strip = y if plain else y + tall - places.words
        if plain:
            sheet.box(x, y, wide, tall, fill=ground, layer=0.8)
        sheet.box(x, y, wide, tall, edge=_mixed(colour, full), line=1.3 if wide > 0.3 else 0.8, layer=1.2)
        ink: Any = readable_ink(np.rint(255 * ground)) if shown[layer, head] else MUTED
        size = min(SMALL_SIZE, places.words * 72 * 0.6)
        text = marks[layer][head]
        size = min(size, size * (wide - 0.04) / max(sheet.fonts.width(text, size, bold=True), 0.01))
        room = y + tall - thick - strip
        sheet.text(
            x + wide / 2, strip + room / 2, text, size=size, colour=ink, align="center", bold=full == 1
        )
        score = view.scores[layer, head]
        if np.isfinite(score):
            start, length = x + FRAME, (wide - 2 * FRAME) * float(np.clip(score, 0, 1))
            fill = ink if plain else _mixed(colour, full)
            below = y + tall - thick - 0.014
            sheet.box(start, below, wide - 2 * FRAME, thick, fill=_mixed(FAINT, full), layer=1.3)
            sheet.box(start, below, length, thick, fill=fill, layer=1.4)
    if view.marked is not None:
        x, y = places.corner(*view.marked)
        sheet.mark(x - 0.01, y - 0.01, wide + 0.02, tall + 0.02)


def _legend(view: HeadGrid, width: float, fonts: Fonts) -> list[tuple[float, int, int, str]]:
    """(inches from the left, line, class, its title and count) of every class."""
    entries: list[tuple[float, int, int, str]] = []
    x, line = 0.0, 0
    for index, (title, count) in enumerate(zip(view.classes, class_counts(view), strict=True)):
        text = f"{short_label(title, 32)} {count}"
        needed = 0.15 + fonts.width(text, SMALL_SIZE) + 0.2
        if x > 0 and x + needed > width:
            x, line = 0.0, line + 1
        entries.append((x, line, index, text))
        x += needed
    return entries
