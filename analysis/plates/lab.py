"""Sheets of the Lab on paper: small matrices side by side, and panels of curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from analysis.drawing import FAINT, INK, MUTED, TEXT_SIZE, Fonts, Sheet, colour_table
from analysis.figure_lab import Curve, CurvePanel, CurveSheet, MatrixSheet, NamedMatrix
from analysis.plates.axes import Axes
from analysis.plates.evidence import on_white
from analysis.plates.frame import (
    ACCENT,
    MARGIN,
    PICTURE_SIDE,
    SMALL_SIZE,
    TINY_SIZE,
    TOP,
    Words,
    new_sheet,
    readable_ink,
    short_number,
    wrapped,
)
from analysis.raster import Pixels, coloured, enlarged
from analysis.visible import short_label, visible_text
from analysis.visible_evidence import evidence_colours
from analysis.visible_lab import (
    NUMBERED_SIDE,
    Ends,
    across_ends,
    across_ticks,
    bar_places,
    beyond_limit,
    cell_decimals,
    cell_text,
    curve_colour,
    curve_dash,
    drawn_points,
    has_cell,
    has_numbers,
    index_ticks,
    is_small,
    matrix_limits,
    name_parts,
    shared_scale,
    up_ends,
    up_ticks,
    without_value,
)

WIDTH, GAP = 7.4, 0.3  # inches
NUMBER_ROW, PLAIN_CELLS, MAP_SIDE = 0.23, (0.19, 0.15, 0.12), 1.9  # inches
LEAST_LABEL = 0.1  # inches that the label of a row or column needs
LABEL_ROOM = 0.95  # inches of the longest label
NAME_SIZE = 8.4  # points
TILED = 0.07  # inches from which cells stand apart
TALLEST = 8.5  # inches; a sheet that is taller with numbers is drawn without them
PALE = "#e4e5e7"
"""Where cells are small: of pairs that may not attend, and of cells without a value."""


# Matrices -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Frame:
    """Where a matrix is, in inches: its figure's corner, the corner of its cells in it, and the size of a cell.

    Attributes:
        above: of the name and the column labels.
        height: of the whole figure.
        labels: whether rows and columns have theirs; ``level``: whether column labels lie.
    """

    left: float
    top: float
    x: float
    above: float
    cell: tuple[float, float]
    width: float
    height: float
    labels: tuple[bool, bool]
    level: bool
    numbered: bool


def draw_matrix_sheet(view: MatrixSheet, words: Words, fonts: Fonts) -> Sheet:
    """Heat maps with their names, labels, numbers and scales, in as many rows as they need."""
    frames, height = _chosen_plan(view, fonts)
    shared = shared_scale(view)
    masks = any(matrix.scale == "mask" for matrix in view.matrices)
    sheet = new_sheet(WIDTH, height + (0.3 if shared or masks else 0.0), words, fonts)
    for index, (matrix, frame) in enumerate(zip(view.matrices, frames, strict=True)):
        _draw_matrix(sheet, view, index, replace(frame, left=MARGIN + frame.left, top=TOP + frame.top))
        if shared is None and matrix.scale != "mask":
            wide = min(max(frame.cell[0] * matrix.values.shape[1], 0.6), 1.2)
            below = TOP + frame.top + frame.above + frame.cell[1] * matrix.values.shape[0] + 0.06
            _draw_ramp(
                sheet, matrix, (MARGIN + frame.left + frame.x, below), wide, over=beyond_limit(matrix) > 0
            )
    y, x = TOP + height + 0.12, MARGIN
    if shared is not None:
        first = next(matrix for matrix in view.matrices if matrix.scale != "mask")
        _draw_ramp(sheet, first, (x, y), 1.4, over=any(map(beyond_limit, view.matrices)))
        x += 1.9
    if masks:
        _draw_mask_key(sheet, x, y + 0.05, hatched=_is_hatched(view, frames))
    return sheet


def _is_hatched(view: MatrixSheet, frames: Sequence[_Frame]) -> bool:
    pairs = zip(view.matrices, frames, strict=True)
    return any(matrix.scale == "mask" and min(frame.cell) >= TILED for matrix, frame in pairs)


def _chosen_plan(view: MatrixSheet, fonts: Fonts) -> tuple[list[_Frame], float]:
    """Numbers in the cells unless the sheet would be tall with them; then the largest cells with which it is not."""
    number = _number_width(view, fonts)
    sizes: list[tuple[float, tuple[float, float]]] = [(0.0, (size, size)) for size in PLAIN_CELLS]
    if number:
        sizes.insert(0, (number, (max(number + 0.1, 0.3), NUMBER_ROW)))
    plans = []
    for room, small in sizes:
        plans.append(_plan(view, room, small, fonts))
        if plans[-1][1] <= TALLEST:
            break
    return min(plans, key=lambda plan: plan[1])


def _number_width(view: MatrixSheet, fonts: Fonts) -> float:
    """Inches of the widest number that a cell of the sheet has to hold, 0 where there are none."""
    texts = {
        cell_text(value, cell_decimals(matrix))
        for matrix in view.matrices
        if has_numbers(view, matrix)
        for value in np.asarray(matrix.values, dtype=np.float32).ravel().tolist()
        if math.isfinite(value)
    }
    longest = sorted(texts, key=len, reverse=True)[:24]  # the widest is among the longest
    return max((fonts.width(text, TINY_SIZE + 0.6) for text in longest), default=0.0)


def _plan(
    view: MatrixSheet, number: float, small: tuple[float, float], fonts: Fonts
) -> tuple[list[_Frame], float]:
    """Frames from left to right and from top to bottom, cells of one row of matrices starting at one height."""
    room = WIDTH - 2 * MARGIN
    sized, across = _sized(view, number, small, fonts)
    rows: list[list[_Frame]] = []
    used = 0.0
    for frame in sized:
        full = bool(rows) and bool(across) and len(rows[-1]) >= across
        if not rows or full or used + frame.width > room + 1e-6:
            rows.append([])
            used = 0.0
        rows[-1].append(replace(frame, left=used))
        used += frame.width + GAP
    placed, top = [], 0.0
    for row in rows:
        above = max(frame.above for frame in row)
        placed += [replace(frame, top=top + above - frame.above) for frame in row]
        top += max(above - frame.above + frame.height for frame in row) + GAP * 0.7
    return placed, top - GAP * 0.7


def _sized(
    view: MatrixSheet, number: float, small: tuple[float, float], fonts: Fonts
) -> tuple[list[_Frame], int]:
    """Frames without their places, and how many stand in a row (0: as many as fit).

    They are fewer than the sheet asks for where small matrices would lose their labels.
    """
    room = WIDTH - 2 * MARGIN
    if not view.across:
        return [_frame(view, matrix, number, small, room, fonts) for matrix in view.matrices], 0
    for across in range(view.across, 0, -1):
        budget = max((room - GAP * (across - 1)) / across, 0.5)
        sized = [_frame(view, matrix, number, small, budget, fonts) for matrix in view.matrices]
        pairs = zip(view.matrices, sized, strict=True)
        if not any(_loses_labels(matrix, frame) for matrix, frame in pairs):
            break
    return sized, across


def _loses_labels(matrix: NamedMatrix, frame: _Frame) -> bool:
    wanted = (bool(matrix.rows), bool(matrix.columns))
    return is_small(matrix) and frame.labels != wanted


def _frame(
    view: MatrixSheet,
    matrix: NamedMatrix,
    number: float,
    small: tuple[float, float],
    budget: float,
    fonts: Fonts,
) -> _Frame:
    rows, columns = matrix.values.shape
    side = min(MAP_SIDE / max(rows, columns), PLAIN_CELLS[0])
    across, down = small if is_small(matrix) else (side, side)
    widest = [_label_room(labels, fonts) for labels in (matrix.rows, matrix.columns)]
    named = [_width(name, TINY_SIZE, fonts) + 0.22 if name else 0.0 for name in matrix.axes]
    row_labels = bool(matrix.rows) and down >= LEAST_LABEL
    x = max(widest[0] + 0.1 if row_labels else 0.0, *named)
    if x + across * columns > budget:
        across = max((budget - x) / columns, 0.004)
        down = down if number and across >= number + 0.03 else min(down, across)
        row_labels = row_labels and down >= LEAST_LABEL
    column_labels = bool(matrix.columns) and across >= LEAST_LABEL
    ticked = [_is_ticked(matrix, (row_labels, column_labels), side) for side in (0, 1)]
    x = max(x, 0.27 if ticked[0] else 0.0)
    level = column_labels and widest[1] <= across - 0.04
    labelled = 0.15 if level else widest[1] + 0.1 if column_labels else 0.05
    lift = 0.09 if ticked[0] else 0.0  # the name of the rows stays clear of their first tick
    named_above = 0.13 * sum(map(bool, matrix.axes)) + 0.04 + lift
    above = 0.22 + max(0.17 if ticked[1] else labelled, named_above)
    caption = _width(matrix.name, NAME_SIZE, fonts) + 0.45
    width = max(x + across * columns, min(caption, 2.6), 0.9 if matrix.note else 0.0)
    note = 0.0
    if matrix.note:
        note = 0.13 * len(wrapped(visible_text(matrix.note), width, SMALL_SIZE, fonts)) + 0.03
    ramp = 0.0 if shared_scale(view) or matrix.scale == "mask" else 0.24
    numbered = has_numbers(view, matrix) and number > 0 and across >= number + 0.03
    height = above + down * rows + ramp + note
    labels = (row_labels, column_labels)
    return _Frame(0.0, 0.0, x, above, (across, down), width, height, labels, level, numbered)


def _label_room(labels: Sequence[str], fonts: Fonts) -> float:
    texts = sorted({short_label(label) for label in labels}, key=len, reverse=True)[:24]
    return min(max((fonts.width(text, SMALL_SIZE) for text in texts), default=0.0), LABEL_ROOM)


def _width(name: str, size: float, fonts: Fonts) -> float:
    """Inches of a name with its subscripts."""
    return sum(
        fonts.width(text, size * (0.74 if below else 1.0)) for text, below in name_parts(visible_text(name))
    )


def draw_name(sheet: Sheet, x: float, y: float, name: str, *, size: float, colour: str = INK) -> float:
    """A name from ``x`` on, its subscripts small and lower. Gives its width in inches."""
    start = x
    for text, below in name_parts(visible_text(name)):
        high = size * (0.74 if below else 1.0)
        sheet.text(x, y + (size * 0.26 / 72 if below else 0.0), text, size=high, colour=colour)
        x += sheet.fonts.width(text, high)
    return x - start


def _draw_matrix(sheet: Sheet, view: MatrixSheet, index: int, frame: _Frame) -> None:
    matrix = view.matrices[index]
    rows, columns = matrix.values.shape
    chosen = index == view.selected
    x = draw_name(
        sheet, frame.left, frame.top + 0.09, matrix.name, size=NAME_SIZE, colour=ACCENT if chosen else INK
    )
    shape = f"({rows} × {columns})"
    sheet.text(frame.left + x + 0.07, frame.top + 0.09, shape, size=SMALL_SIZE, colour=MUTED)
    left, top = frame.left + frame.x, frame.top + frame.above
    across, down = frame.cell
    if min(frame.cell) >= TILED:
        _draw_tiles(sheet, matrix, frame, (left, top))
    else:
        _draw_pixels(sheet, matrix, frame, (left, top))
    _draw_labels(sheet, matrix, frame, (left, top))
    if chosen:
        sheet.box(left - 0.02, top - 0.02, across * columns + 0.04, down * rows + 0.04, edge=ACCENT, line=1.2)
    if view.cell is not None and has_cell(matrix, view.cell):
        row, column = view.cell
        wide, tall = max(across, 0.04), max(down, 0.04)
        sheet.mark(left + across * (column + 0.5) - wide / 2, top + down * (row + 0.5) - tall / 2, wide, tall)
    if matrix.note:
        ramp = 0.0 if shared_scale(view) or matrix.scale == "mask" else 0.24
        lines = wrapped(visible_text(matrix.note), frame.width, SMALL_SIZE, sheet.fonts)
        for order, line in enumerate(lines):
            y = top + down * rows + ramp + 0.1 + 0.13 * order
            sheet.text(frame.left, y, line, size=SMALL_SIZE, colour=MUTED)


def _colours(matrix: NamedMatrix) -> Pixels:
    """(256, 3) colours of a matrix on paper; of a mask those of cells too small to be hatched."""
    if matrix.scale == "mask":
        ends = [[int(colour[start : start + 2], 16) for start in (1, 3, 5)] for colour in (PALE, ACCENT)]
        return np.repeat(np.array(ends, dtype=np.uint8), 128, axis=0)
    return on_white(evidence_colours(True)) if matrix.scale == "signed" else colour_table("viridis")


def _pixels(matrix: NamedMatrix) -> Pixels:
    """(r, c, 3) colours of the cells."""
    values = np.asarray(matrix.values, dtype=np.float32)
    empty = without_value(values)
    pixels = coloured(np.where(empty, np.nan, values), matrix_limits(matrix), _colours(matrix))
    pixels[empty] = _colours(replace(matrix, scale="mask"))[0]
    return pixels


def _draw_pixels(sheet: Sheet, matrix: NamedMatrix, frame: _Frame, corner: tuple[float, float]) -> None:
    rows, columns = matrix.values.shape
    size = frame.cell[0] * columns, frame.cell[1] * rows
    sheet.image(*corner, *size, enlarged(_pixels(matrix), PICTURE_SIDE // 2))
    sheet.box(*corner, *size, edge=FAINT, line=0.5)


def _draw_tiles(sheet: Sheet, matrix: NamedMatrix, frame: _Frame, corner: tuple[float, float]) -> None:
    """Cells that stand apart with their numbers; what has no value is empty, with a stroke across."""
    values, pixels = np.asarray(matrix.values, dtype=np.float32), _pixels(matrix)
    empty, (across, down) = without_value(values), frame.cell
    decimals, gap = cell_decimals(matrix), 0.006
    strokes: list[list[tuple[float, float]]] = []
    for (row, column), value in np.ndenumerate(values):
        x, y = corner[0] + across * column, corner[1] + down * row
        wide, tall = across - 2 * gap, down - 2 * gap
        if empty[row, column]:
            sheet.box(x + gap, y + gap, wide, tall, edge=FAINT, line=0.5)
            strokes.append([(x + across * 0.2, y + down * 0.8), (x + across * 0.8, y + down * 0.2)])
        elif matrix.scale == "mask" and value == 0:
            sheet.box(x + gap, y + gap, wide, tall, edge=FAINT, line=0.5)
            strokes += _hatching(x + gap, y + gap, wide, tall)
        else:
            edge = FAINT if matrix.scale == "signed" else "none"
            sheet.box(x + gap, y + gap, wide, tall, fill=pixels[row, column] / 255, edge=edge, line=0.4)
        if frame.numbered and not empty[row, column]:
            text = cell_text(float(value), decimals)
            ink = readable_ink(pixels[row, column])
            sheet.text(x + across / 2, y + down / 2, text, size=TINY_SIZE + 0.6, colour=ink, align="center")
    if strokes:
        sheet.segments(np.array(strokes), "#a9afb8", line=0.5, layer=1.2)


def _hatching(x: float, y: float, width: float, height: float) -> list[list[tuple[float, float]]]:
    """Strokes of 45° across a rectangle."""
    found = []
    for start in np.arange(0.035, width + height, 0.045).tolist():
        low, high = max(0.0, start - height), min(start, width)
        found.append([(x + low, y + start - low), (x + high, y + start - high)])
    return found


def _draw_labels(sheet: Sheet, matrix: NamedMatrix, frame: _Frame, corner: tuple[float, float]) -> None:
    (left, top), (across, down) = corner, frame.cell
    size = min(SMALL_SIZE, 72 * 0.8 * max(down, LEAST_LABEL))
    for row, label in enumerate(matrix.rows if frame.labels[0] else ()):
        text, high = _fitted(short_label(label), size, sheet.fonts)
        sheet.text(left - 0.06, top + down * (row + 0.5), text, size=high, align="right")
    size = min(SMALL_SIZE, 72 * 0.8 * max(across, LEAST_LABEL))
    for column, label in enumerate(matrix.columns if frame.labels[1] else ()):
        text, high = _fitted(short_label(label), size, sheet.fonts)
        x = left + across * (column + 0.5)
        if frame.level:
            sheet.text(x, top - 0.08, text, size=high, align="center")
        else:
            sheet.text(x, top - 0.05, text, size=high, angle=90)
    _draw_ticks(sheet, matrix, frame, corner)
    names = [f"{visible_text(name)} {'↓→'[side]}" for side, name in enumerate(matrix.axes) if name]
    lift = 0.09 if _is_ticked(matrix, frame.labels, 0) else 0.0
    for order, name in enumerate(names):
        sheet.text(
            left - 0.06, top - 0.09 - lift - 0.13 * order, name, size=TINY_SIZE, colour=MUTED, align="right"
        )


def _draw_ticks(sheet: Sheet, matrix: NamedMatrix, frame: _Frame, corner: tuple[float, float]) -> None:
    """Indices along axes whose labels have no room, and along long ones that are named alone."""
    (left, top), (across, down), (rows, columns) = corner, frame.cell, matrix.values.shape
    if _is_ticked(matrix, frame.labels, 0):
        for row in index_ticks(rows, int(down * rows / 0.16)):
            sheet.text(
                left - 0.05, top + down * (row + 0.5), str(row), size=TINY_SIZE, colour=MUTED, align="right"
            )
    if _is_ticked(matrix, frame.labels, 1):
        for column in index_ticks(columns, int(across * columns / 0.26)):
            x = left + across * (column + 0.5)
            sheet.text(x, top - 0.07, str(column), size=TINY_SIZE, colour=MUTED, align="center")


def _is_ticked(matrix: NamedMatrix, drawn: tuple[bool, bool], side: int) -> bool:
    labels = (matrix.rows, matrix.columns)[side]
    long = bool(matrix.axes[side]) and matrix.values.shape[side] > NUMBERED_SIDE
    return not drawn[side] and (bool(labels) or long)


def _fitted(text: str, size: float, fonts: Fonts) -> tuple[str, float]:
    """A label set smaller where it is wider than the room of labels."""
    return text, size * min(LABEL_ROOM / max(fonts.width(text, size), 1e-6), 1.0)


def _draw_ramp(
    sheet: Sheet, matrix: NamedMatrix, place: tuple[float, float], width: float, *, over: bool
) -> None:
    """A lying colour scale with its ends."""
    (x, y), (low, high) = place, matrix_limits(matrix)
    sheet.image(x, y, width, 0.07, np.repeat(_colours(matrix)[None], 8, axis=0))
    sheet.box(x, y, width, 0.07, edge=FAINT, line=0.4)
    last = f"{'≥ ' if over else ''}{short_number(high)}"
    words = [(0.0, "0", "left"), (1.0, last, "right")]
    if low < 0:
        first = f"{'≤ ' if over else ''}{short_number(low)}".replace("-", "−")
        words = [(0.0, first, "left"), (0.5, "0", "center"), (1.0, last, "right")]
    for share, text, align in words:
        sheet.text(x + width * share, y + 0.13, text, size=TINY_SIZE, colour=MUTED, align=align)  # type: ignore[arg-type]


def _draw_mask_key(sheet: Sheet, x: float, y: float, *, hatched: bool) -> None:
    sheet.box(x, y - 0.055, 0.11, 0.11, fill=ACCENT)
    sheet.text(x + 0.16, y, "may attend", size=SMALL_SIZE, colour=MUTED)
    x += 0.16 + sheet.fonts.width("may attend", SMALL_SIZE) + 0.18
    sheet.box(x, y - 0.055, 0.11, 0.11, fill="none" if hatched else PALE, edge=FAINT, line=0.5)
    if hatched:
        sheet.segments(np.array(_hatching(x, y - 0.055, 0.11, 0.11)), "#a9afb8", line=0.5, layer=1.2)
    sheet.text(x + 0.16, y, "may not attend", size=SMALL_SIZE, colour=MUTED)


# Curves -------------------------------------------------------------------------------------------------------------

PANEL_WIDTH, PANEL_HEIGHT, AXIS = 2.75, 1.9, 0.62  # inches
PANELS_ACROSS = 2
LEGEND_ROW = 0.17  # inches


def draw_curve_sheet(view: CurveSheet, words: Words, fonts: Fonts) -> Sheet:
    """Panels of curves, two side by side, each with its legend above."""
    across = min(len(view.panels), PANELS_ACROSS)
    panel_width = PANEL_WIDTH if across > 1 else 4.6
    pitch = AXIS + panel_width + 0.25
    rows = [view.panels[start : start + across] for start in range(0, len(view.panels), across)]
    legends = [max(len(_legend_lines(panel, panel_width, fonts)) for panel in row) for row in rows]
    heights = [0.5 + LEGEND_ROW * lines + PANEL_HEIGHT + 0.48 for lines in legends]
    sheet = new_sheet(2 * MARGIN + pitch * across - 0.15, sum(heights), words, fonts)
    top = TOP
    for row, lines, height in zip(rows, legends, heights, strict=True):
        for column, panel in enumerate(row):
            x = MARGIN + pitch * column + AXIS
            _draw_panel(sheet, panel, (x, top), panel_width, 0.5 + LEGEND_ROW * lines - 0.2)
        top += height
    return sheet


def _legend_lines(panel: CurvePanel, width: float, fonts: Fonts) -> list[list[int]]:
    """Indices of the curves in each line of a legend; none of a single curve without interval."""
    lines: list[list[int]] = []
    used = math.inf
    for index, curve in enumerate(panel.curves):
        needed = _width(short_label(curve.name, 40), SMALL_SIZE, fonts) + 0.42
        if used + needed > width:
            lines.append([])
            used = 0.0
        lines[-1].append(index)
        used += needed
    return lines


def _draw_panel(
    sheet: Sheet, panel: CurvePanel, corner: tuple[float, float], width: float, above: float
) -> None:
    x, top = corner
    draw_name(sheet, x, top + 0.1, short_label(panel.title, 60), size=TEXT_SIZE)
    for order, line in enumerate(_legend_lines(panel, width, sheet.fonts)):
        left = x
        for index in line:
            left += _draw_sample(sheet, panel, index, left, top + 0.3 + LEGEND_ROW * order) + 0.14
    axes = _PanelAxes(panel, Axes(sheet, x, top + above, width, PANEL_HEIGHT, *_plain_ends(panel)))
    axes.draw_frame()
    for index in range(len(panel.curves)):
        axes.draw_interval(index)
    for index in range(len(panel.curves)):
        axes.draw_curve(index)
    if panel.mark is not None:
        place = axes.across(np.array([panel.mark]))[0]
        axes.axes.line((place, axes.axes.up[0]), (place, axes.axes.up[1]), MUTED, dashed=True)


def _draw_sample(sheet: Sheet, panel: CurvePanel, index: int, x: float, y: float) -> float:
    """How a curve looks and its name; gives their width."""
    curve, colour = panel.curves[index], curve_colour(panel, index)
    if curve.style == "bars":
        sheet.box(x + 0.05, y - 0.045, 0.12, 0.09, fill=colour)
    elif curve.style == "points":
        sheet.dots(np.array([[x + 0.11, y]]), colour, size=0.07)
    else:
        ends = np.array([[x, y], [x + 0.22, y]])
        _stroke(sheet, ends, colour, curve_dash(panel, index))
    return 0.28 + draw_name(sheet, x + 0.28, y, short_label(curve.name, 40), size=SMALL_SIZE)


def _plain_ends(panel: CurvePanel) -> tuple[Ends, Ends]:
    """Ends of both axes, as logarithms where these are logarithmic."""
    ends = []
    for (low, high), log in ((across_ends(panel), panel.log_x), (up_ends(panel), panel.log_y)):
        ends.append((math.log10(low), math.log10(high)) if log else (low, high))
    return ends[0], ends[1]


@dataclass(frozen=True)
class _PanelAxes:
    """Axes of a panel; numbers of a logarithmic axis are placed by their logarithm."""

    panel: CurvePanel
    axes: Axes

    def across(self, values: NDArray[np.floating]) -> NDArray[np.float64]:
        return _placed(values, log=self.panel.log_x)

    def up(self, values: NDArray[np.floating]) -> NDArray[np.float64]:
        return _placed(values, log=self.panel.log_y)

    def draw_frame(self) -> None:
        across = across_ticks(self.panel)
        places = self.across(np.array([place for place, _ in across]))
        labels = [short_label(text, 14) for _, text in across]
        kept = _apart(places, labels, self.axes)
        up = up_ticks(self.panel)
        heights = self.up(np.array([place for place, _ in up])).tolist()
        self.axes.frame(
            "",
            "",
            across_ticks={float(places[index]): labels[index] for index in kept},
            up_ticks=dict(zip(heights, (text for _, text in up), strict=True)),
        )
        sheet, axes = self.axes.sheet, self.axes
        middle = axes.x + axes.width / 2 - _width(self.panel.x_title, SMALL_SIZE, sheet.fonts) / 2
        draw_name(
            sheet, middle, axes.y + axes.height + 0.26, self.panel.x_title, size=SMALL_SIZE, colour=MUTED
        )
        title = visible_text(self.panel.y_title)
        sheet.text(
            axes.x - 0.45,
            axes.y + axes.height / 2,
            title,
            size=SMALL_SIZE,
            colour=MUTED,
            align="center",
            angle=90,
        )

    def draw_interval(self, index: int) -> None:
        """A pale band around a line, whiskers at points and bars."""
        curve = self.panel.curves[index]
        if curve.low is None or curve.high is None:
            return
        kept = drawn_points(curve, self.panel) & np.isfinite(curve.low) & np.isfinite(curve.high)
        x, low, high = (np.asarray(part, dtype=np.float64) for part in (curve.x, curve.low, curve.high))
        if self.panel.log_y:
            low = np.maximum(low, up_ends(self.panel)[0])
        x, low, high = self._offset(x, index), self.up(low), self.up(high)
        colour = curve_colour(self.panel, index)
        if curve.style in ("bars", "points"):
            ink = INK if curve.style == "bars" else colour
            for place in np.flatnonzero(kept).tolist():
                self.axes.line((x[place], low[place]), (x[place], high[place]), ink, line=0.9)
            return
        for run in np.split(np.flatnonzero(kept), np.flatnonzero(np.diff(np.flatnonzero(kept)) > 1) + 1):
            if len(run) > 1:
                outline = np.concatenate(
                    [self.axes.places(x[run], high[run]), self.axes.places(x[run], low[run])[::-1]]
                )
                self.axes.sheet.polygon(outline, fill=f"{colour}2e", layer=0.8)

    def draw_curve(self, index: int) -> None:
        curve, colour = self.panel.curves[index], curve_colour(self.panel, index)
        kept = drawn_points(curve, self.panel)
        y = self.up(np.where(kept, np.asarray(curve.y, dtype=np.float64), np.nan))
        x = self._offset(np.asarray(curve.x, dtype=np.float64), index)
        if curve.style == "bars":
            self._draw_bars(x, y, bar_places(self.panel)[index][1], colour)
        elif curve.style == "points":
            self.axes.dots(x[kept], y[kept], colour, size=0.07)
        else:
            self._draw_line(curve, x, y, colour, curve_dash(self.panel, index))

    def _offset(self, x: NDArray[np.float64], index: int) -> NDArray[np.float64]:
        """Where the points of a curve stand across: bars beside each other."""
        offset, _ = bar_places(self.panel).get(index, (0.0, 0.0))
        return self.across(x + offset)

    def _draw_bars(self, x: NDArray[np.float64], y: NDArray[np.float64], width: float, colour: str) -> None:
        base = self.axes.up[0] if self.panel.log_y else 0.0
        for place, height in zip(x.tolist(), y.tolist(), strict=True):
            if math.isfinite(height):
                left, top = self.axes.place(place - width / 2, max(height, base))
                right, below = self.axes.place(place + width / 2, min(height, base))
                self.axes.sheet.box(left, top, right - left, below - top, fill=colour)

    def _draw_line(
        self, curve: Curve, x: NDArray[np.float64], y: NDArray[np.float64], colour: str, dash: str
    ) -> None:
        known = np.flatnonzero(np.isfinite(y))
        for run in np.split(known, np.flatnonzero(np.diff(known) > 1) + 1):
            if len(run) > 1:
                _stroke(self.axes.sheet, self.axes.places(x[run], y[run]), colour, dash)
        if curve.style == "line" and len(known) <= 40:
            self.axes.dots(x[known], y[known], colour, size=0.045)


def _placed(values: NDArray[np.floating], *, log: bool) -> NDArray[np.float64]:
    exact = np.asarray(values, dtype=np.float64)
    if not log:
        return exact
    with np.errstate(divide="ignore", invalid="ignore"):
        found: NDArray[np.float64] = np.log10(np.where(exact > 0, exact, np.nan))
    return found


def _apart(places: NDArray[np.float64], labels: Sequence[str], axes: Axes) -> list[int]:
    """Indices of ticks whose labels do not run into the one before."""
    kept: list[int] = []
    end = -math.inf
    for index, (place, label) in enumerate(zip(places.tolist(), labels, strict=True)):
        x, _ = axes.place(place, axes.up[0])
        half = axes.sheet.fonts.width(label, TINY_SIZE) / 2
        if x - half > end + 0.04:
            kept.append(index)
            end = x + half
    return kept


_STROKES = {"dash": (0.08, 0.05), "dot": (0.02, 0.035), "dashdot": (0.05, 0.03)}
"""Inches of ink and of gap."""


def _stroke(sheet: Sheet, points: NDArray[np.float64], colour: str, dash: str) -> None:
    """A line through points (n, 2) in inches, solid or dashed along all of its length."""
    pairs = np.stack([points[:-1], points[1:]], axis=1)
    if dash != "solid":
        pairs = _dashed(points, *_STROKES[dash])
    sheet.segments(pairs, colour, line=1.3, layer=1.4)


def _dashed(points: NDArray[np.float64], ink: float, gap: float) -> NDArray[np.float64]:
    """(m, 2, 2) pieces of a line of straight parts."""
    lengths = np.hypot(*np.diff(points, axis=0).T)
    ends = np.concatenate([[0.0], np.cumsum(lengths)])
    pieces = []
    for start in np.arange(0.0, ends[-1], ink + gap).tolist():
        stop = min(start + ink, ends[-1])
        inner = ends[(ends > start) & (ends < stop)]
        places = np.concatenate([[start], inner, [stop]])
        line = np.stack([np.interp(places, ends, points[:, side]) for side in (0, 1)], axis=1)
        pieces += list(np.stack([line[:-1], line[1:]], axis=1))
    return np.array(pieces).reshape(-1, 2, 2)
