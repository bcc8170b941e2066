"""The works of a history on paper: years down, themes as lanes."""

from __future__ import annotations

import numpy as np

from analysis.drawing import FAINT, INK, MUTED, PAPER, Fonts, Sheet
from analysis.figure_lab import Timeline, TimelineEntry
from analysis.plates.frame import MARGIN, SMALL_SIZE, TOP, Words, new_sheet
from analysis.visible import visible_text
from analysis.visible_story import BREAK, lanes, theme_colour, years

WIDTH, YEAR, ROW, GAP, HEAD = 7.9, 0.42, 0.165, 0.1, 0.32  # inches
DOT, INDENT = 0.085, 0.15  # inches


def draw_timeline(view: Timeline, words: Words, fonts: Fonts) -> Sheet:
    """A row a year, a column a theme; an axis that leaves out years is dotted."""
    found = years(view)
    columns = lanes(view)
    heights, gaps = [], []
    before = found[0][0]
    for year, entries in found:
        most = max(sum(entry.theme == key for entry in entries) for key, _ in columns)
        heights.append(ROW * most + 0.06)
        gaps.append(GAP if year - before - 1 >= BREAK else 0.0)
        before = year
    sheet = new_sheet(WIDTH, HEAD + sum(heights) + sum(gaps), words, fonts)
    lane = (WIDTH - 2 * MARGIN - YEAR) / len(columns)
    for index, (key, name) in enumerate(columns):
        x = MARGIN + YEAR + index * lane
        sheet.text(x + INDENT, TOP + 0.08, visible_text(name), size=SMALL_SIZE, bold=True)
        sheet.box(x, TOP + 0.18, lane - 0.08, 0.02, fill=theme_colour(view, key))
    y = TOP + HEAD
    for (year, entries), height, gap in zip(found, heights, gaps, strict=True):
        for index, (key, _) in enumerate(columns):
            _draw_thread(
                sheet, MARGIN + YEAR + index * lane + DOT / 2, y, gap, height, theme_colour(view, key)
            )
        y += gap
        sheet.segments(np.array([[[MARGIN, y], [WIDTH - MARGIN, y]]]), FAINT, line=0.4, layer=0.4)
        sheet.text(MARGIN, y + 0.03 + ROW / 2, str(year), size=SMALL_SIZE, colour=MUTED)
        for index, (key, _) in enumerate(columns):
            for place, entry in enumerate(entry for entry in entries if entry.theme == key):
                _draw_entry(
                    sheet, view, entry, (MARGIN + YEAR + index * lane, y + 0.03 + ROW * (place + 0.5)), lane
                )
        y += height
    return sheet


def _draw_thread(sheet: Sheet, x: float, y: float, gap: float, height: float, colour: str) -> None:
    """The line of a theme through one year; dots where years are left out before it."""
    dots = np.array([[x, y + share * gap] for share in (0.25, 0.75)]) if gap else np.empty((0, 2))
    sheet.dots(dots, colour, size=0.02)
    sheet.segments(np.array([[[x, y + gap], [x, y + gap + height]]]), colour, line=0.9, layer=0.6)


def _draw_entry(
    sheet: Sheet, view: Timeline, entry: TimelineEntry, corner: tuple[float, float], lane: float
) -> None:
    x, y = corner
    colour, chosen = theme_colour(view, entry.theme), entry.key == view.selected
    fill = PAPER if entry.alike else colour
    sheet.dots(np.array([[x + DOT / 2, y]]), fill, size=DOT, edge=colour, line=1.1)
    text, size = visible_text(entry.name), SMALL_SIZE
    room = lane - INDENT - 0.04
    size = min(size, size * room / max(sheet.fonts.width(text, size, bold=chosen), 1e-6))
    sheet.text(x + INDENT, y, text, size=size, bold=chosen, colour=INK)
