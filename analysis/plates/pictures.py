"""Thumbnails of all heads and maps over a picture, on paper."""

from __future__ import annotations

import numpy as np

from analysis.drawing import INK, MUTED, TEXT_SIZE, Fonts, Sheet, colour_table
from analysis.figure_data import ModelView, PatchMaps
from analysis.plates.frame import (
    ACCENT,
    MARGIN,
    PICTURE_SIDE,
    SMALL_SIZE,
    TINY_SIZE,
    TOP,
    Words,
    draw_scale_bar,
    new_sheet,
    short_number,
)
from analysis.raster import mosaic, overlay
from analysis.visible import patch_limits, short_label, thumbnail_limits


def draw_model_view(view: ModelView, words: Words, fonts: Fonts) -> Sheet:
    """Thumbnails of all heads: layers down, heads across, in one mosaic."""
    layers, heads, rows, columns = view.thumbnails.shape
    gap = max(1, round(max(rows, columns) / 12))  # in cells of a thumbnail
    across, down = heads * (columns + gap) - gap, layers * (rows + gap) - gap
    tile = min(6.6 / max(heads, layers), 0.95)
    cell = tile / (max(rows, columns) + gap)  # inches
    grouped = view.groups is not None and len(set(view.groups)) < heads
    left, top = MARGIN + 0.45, TOP + (0.42 if grouped else 0.3)
    bar = float(np.clip(down * cell, 1.2, 3.0))
    width = max(left + across * cell + 1.25, 5.2)
    sheet = new_sheet(width, top - TOP + max(down * cell, bar), words, fonts)
    times = max(1, PICTURE_SIDE // max(across, down))
    pixels = mosaic(view, colour_table(view.colour_map), gap=gap, times=times)
    sheet.image(left, top, across * cell, down * cell, pixels)
    _label_tiles(sheet, view, (left, top), (cell * (columns + gap), cell * (rows + gap)), cell * gap)
    highest = float(thumbnail_limits(view).max(initial=0.0))
    limits, unit = (0.0, 1.0), "share of each head's maximum"
    if view.shared_scale:
        limits, unit = (0.0, highest), "attention weight (maximum of a cell)"
    draw_scale_bar(sheet, left + across * cell + 0.22, top, bar, limits, view.colour_map, unit)
    return sheet


def _label_tiles(
    sheet: Sheet, view: ModelView, corner: tuple[float, float], pitch: tuple[float, float], gap: float
) -> None:
    """Layer and head numbers, the selected tile's frame, and a bracket over heads that share a key-value head."""
    layers, heads = view.thumbnails.shape[:2]
    (left, top), (wide, tall) = corner, pitch
    size = min(TEXT_SIZE, min(wide, tall) * 72 * 0.7)
    sheet.text(left - 0.1, top - 0.12, "layer", size=SMALL_SIZE, colour=MUTED, align="right")
    sheet.text(left - 0.02, top - 0.26, "head", size=SMALL_SIZE, colour=MUTED, align="right")
    chosen = view.selected or (None, None)
    for layer in range(layers):
        y, held = top + tall * layer + (tall - gap) / 2, layer == chosen[0]
        sheet.text(
            left - 0.1, y, str(layer), size=size, colour=INK if held else MUTED, align="right", bold=held
        )
    for head in range(heads):
        x, held = left + wide * head + (wide - gap) / 2, head == chosen[1]
        colour = INK if held else MUTED
        sheet.text(x, top - 0.12, str(head), size=size, colour=colour, align="center", bold=held)
    if view.groups is not None and len(set(view.groups)) < heads:
        for group in sorted(set(view.groups)):
            members = [head for head, owner in enumerate(view.groups) if owner == group]
            start, end = left + wide * members[0], left + wide * (members[-1] + 1) - gap
            sheet.segments(np.array([[[start, top - 0.24], [end, top - 0.24]]]), MUTED, line=0.8)
            name = f"kv {group}"
            sheet.text((start + end) / 2, top - 0.33, name, size=TINY_SIZE, colour=MUTED, align="center")
    if view.selected is not None:
        layer, head = view.selected
        x, y = left + wide * head, top + tall * layer
        sheet.box(x - 0.02, y - 0.02, wide - gap + 0.04, tall - gap + 0.04, edge=INK, line=1.5, layer=2.0)


def draw_patch_maps(view: PatchMaps, words: Words, fonts: Fonts) -> Sheet:
    """The picture under each map, panels in rows."""
    panels = len(view.maps)
    across = min(panels, 4 if panels > 6 else 3 if panels > 2 else panels) or 1
    height, width = view.picture.shape[:2]
    box = {1: 4.6, 2: 3.1, 3: 2.15, 4: 1.62}[across]
    wide, tall = box * width / max(height, width), box * height / max(height, width)
    heading, gap = 0.24, 0.14
    down = -(-panels // across)
    left = MARGIN
    extent = across * (wide + gap) - gap, down * (tall + heading + gap) - gap
    bar = float(np.clip(extent[1] - heading, 1.2, 3.2))
    sheet = new_sheet(max(left + extent[0] + 1.2, 5.4), max(extent[1], bar + heading), words, fonts)
    limits = patch_limits(view)
    for panel in range(panels):
        x = left + (panel % across) * (wide + gap)
        y = TOP + (panel // across) * (tall + heading + gap) + heading
        _draw_panel(sheet, view, panel, tuple(limits[panel]), (x, y, wide, tall))
    own = not view.shared_scale and view.limits is None and panels > 1
    scale = (0.0, 1.0) if own else (float(limits[0, 0]), float(limits[0, 1])) if panels else (0.0, 1.0)
    unit = "share of each panel's maximum" if own else view.unit
    draw_scale_bar(sheet, left + extent[0] + 0.2, TOP + heading, bar, scale, view.colour_map, unit)
    return sheet


def _draw_panel(
    sheet: Sheet,
    view: PatchMaps,
    panel: int,
    limits: tuple[float, float],
    place: tuple[float, float, float, float],
) -> None:
    """One panel: its title, the mixture of picture and map, the marked patch, the frame of the selected panel."""
    x, y, wide, tall = place
    side = PICTURE_SIDE if len(view.maps) == 1 else PICTURE_SIDE // 2
    pixels = overlay(
        view.picture,
        view.maps[panel],
        limits,
        colour_table(view.colour_map),
        opacity=view.opacity,
        smooth=view.smooth,
        side=side,
    )
    sheet.image(x, y, wide, tall, pixels)
    chosen = panel == view.selected
    title = short_label(view.titles[panel], 40)
    if not view.shared_scale and view.limits is None and len(view.maps) > 1:
        title += f"  max {short_number(limits[1])}"
    sheet.text(x, y - 0.1, title, size=SMALL_SIZE, colour=INK, bold=chosen)
    if chosen:
        sheet.box(x - 0.02, y - 0.02, wide + 0.04, tall + 0.04, edge=ACCENT, line=1.4, layer=2.0)
    if view.marked is not None:
        rows, columns = view.maps.shape[1:]
        row, column = view.marked
        high, broad = tall / rows, wide / columns
        sheet.mark(x + column * broad, y + row * high, broad, high)
