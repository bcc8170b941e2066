"""Stages of a computation on paper: boxes with their numbers, and arrows."""

from __future__ import annotations

import re

import numpy as np

from analysis.drawing import FAINT, INK, MUTED, PAPER, Fonts, Sheet, colour_table
from analysis.figure_lab import Diagram, DiagramStage
from analysis.plates.evidence import on_white
from analysis.plates.frame import ACCENT, MARGIN, PICTURE_SIDE, TINY_SIZE, TOP, Words, new_sheet
from analysis.raster import coloured, enlarged
from analysis.visible import visible_text
from analysis.visible_evidence import evidence_colours
from analysis.visible_lab import matrix_limits, name_parts
from analysis.visible_story import Corner, Way, arrow_ways

WIDTH, GAP, HIGH, GAP_DOWN = 9.6, 0.42, 0.72, 0.34  # inches
NAME_SIZE, SYMBOL_SIZE = 6.4, 8.0  # points
TIP = 0.06  # inches


def draw_diagram(view: Diagram, words: Words, fonts: Fonts) -> Sheet:
    """The boxes in their grid, with their numbers as small heat maps."""
    columns, rows = (1 + max(stage.place[side] for stage in view.stages) for side in (0, 1))
    box = (WIDTH - 2 * MARGIN - GAP * (columns - 1)) / columns
    sheet = new_sheet(WIDTH, rows * HIGH + (rows - 1) * GAP_DOWN + 0.3, words, fonts)
    for way, arrow in zip(arrow_ways(view), view.arrows, strict=True):
        _draw_arrow(sheet, way, visible_text(arrow.label), box, chosen=arrow.stop == view.selected)
    for index, stage in enumerate(view.stages):
        _draw_stage(sheet, stage, box, chosen=index == view.selected)
    return sheet


def _inches(corner: Corner, box: float) -> tuple[float, float]:
    def place(value: float, size: float, gap: float) -> float:
        index, share = divmod(value, 2)
        return index * (size + gap) + (share * size if share <= 1 else size + (share - 1) * gap)

    return MARGIN + place(corner[0], box, GAP), TOP + place(corner[1], HIGH, GAP_DOWN)


def _draw_arrow(sheet: Sheet, way: Way, label: str, box: float, *, chosen: bool) -> None:
    colour = ACCENT if chosen else MUTED
    points = np.array([_inches(corner, box) for corner in way.corners])
    end, before = points[-1].copy(), points[-2]
    along = (end - before) / np.linalg.norm(end - before)
    across = np.array([-along[1], along[0]])
    points[-1] = end - along * TIP
    sheet.segments(
        np.stack([points[:-1], points[1:]], axis=1), colour, line=1.3 if chosen else 0.8, layer=0.6
    )
    tip = np.array([end, end - along * TIP + across * TIP / 2, end - along * TIP - across * TIP / 2])
    sheet.polygon(tip, fill=colour, layer=0.7)
    if label:
        x, y = _inches(way.label, box)
        width = _width(sheet, label, TINY_SIZE)
        left = x + 0.05 if way.side == "right" else x - width / 2
        y += {"above": -0.08, "below": 0.08}.get(way.side, 0.0)
        if way.side == "on":
            sheet.box(left - 0.03, y - 0.06, width + 0.06, 0.12, fill=PAPER, layer=0.8)
        _draw_symbol(sheet, left, y, label, TINY_SIZE, colour)


def _draw_stage(sheet: Sheet, stage: DiagramStage, box: float, *, chosen: bool) -> None:
    x, y = _inches((2.0 * stage.place[0], 2.0 * stage.place[1]), box)
    sheet.box(
        x,
        y,
        box,
        HIGH,
        edge=ACCENT if chosen else MUTED,
        line=1.6 if chosen else 0.7,
        radius=0.05,
    )
    symbol = visible_text(stage.symbol)
    _draw_symbol(sheet, x + 0.06, y + 0.11, symbol, SYMBOL_SIZE, INK)
    start = 0.12 + _width(sheet, symbol, SYMBOL_SIZE)
    name = visible_text(stage.name)
    room = box - start - 0.05
    size = min(NAME_SIZE, NAME_SIZE * room / max(sheet.fonts.width(name, NAME_SIZE), 1e-6))
    sheet.text(x + start, y + 0.11, name, size=size, colour=MUTED)
    values = np.asarray(stage.values.values, dtype=np.float64)
    tall = 0.12 if len(values) == 1 else 0.34
    top = y + 0.2 + (0.34 - tall) / 2
    signed = stage.values.scale == "signed"
    table = on_white(evidence_colours(True)) if signed else colour_table("viridis")
    pixels = enlarged(coloured(values, matrix_limits(stage.values), table), PICTURE_SIDE // 4)
    sheet.image(x + 0.06, top, box - 0.12, tall, pixels)
    sheet.box(x + 0.06, top, box - 0.12, tall, edge=FAINT, line=0.4)
    if stage.row is not None:
        step = tall / len(values)
        sheet.box(x + 0.06, top + stage.row * step, box - 0.12, step, edge=INK, line=0.7, layer=2.0)
    told = f"{stage.shape}  {visible_text(stage.axes)}"
    _draw_symbol(sheet, x + 0.06, y + HIGH - 0.09, told, TINY_SIZE, MUTED)


def _pieces(text: str, size: float) -> list[tuple[str, float, float]]:
    """(text, size, inches below the line) of a text with subscripts."""
    found: list[tuple[str, float, float]] = []
    for word in re.split(r"(\s+)", text):
        for part, below in name_parts(word) if word.strip() else ((word, False),):
            if not below and found and found[-1][2] == 0:
                found[-1] = (found[-1][0] + part, size, 0.0)
            else:
                found.append((part, size * 0.72 if below else size, size * 0.25 / 72 if below else 0.0))
    return found


def _width(sheet: Sheet, text: str, size: float) -> float:
    return sum(sheet.fonts.width(part, own) for part, own, _ in _pieces(text, size))


def _draw_symbol(sheet: Sheet, x: float, y: float, text: str, size: float, colour: str) -> None:
    """A text whose ``d_k`` has a subscript."""
    for part, own, below in _pieces(text, size):
        sheet.text(x, y + below, part, size=own, colour=colour)
        x += sheet.fonts.width(part, own)
