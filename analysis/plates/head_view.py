"""The head view on paper."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from analysis.drawing import FAINT, INK, MUTED, PAPER, Fonts, Sheet, rgb
from analysis.figure_data import HEAD_COLOURS, HeadView, TokenLabel
from analysis.plates.frame import (
    ACCENT,
    MARGIN,
    SMALL_SIZE,
    TINY_SIZE,
    TOP,
    Words,
    column_width,
    draw_label,
    label_size,
    new_sheet,
    readable_ink,
    row_height,
)
from analysis.visible import line_opacity, pinned_shares, short_label, visible_lines, visible_tokens

HELD = "#dfe6f1"  # ground of the pinned token
GAP = 3.1  # inches between the columns of a head view
CHIP_PITCH = 0.28  # inches from one head's chip to the next
COLUMN_NAMES: Mapping[str, tuple[str, str]] = {
    "encoder": ("Query", "Key"),
    "decoder": ("Query", "Key"),
    "cross": ("Decoder (query)", "Encoder (key)"),
}


@dataclass(frozen=True)
class _Column:
    """One side of a head view: where its labels stand and which tokens they are.

    Attributes:
        x: edge of the labels on the side of the lines.
        outward: -1 for the left column, 1 for the right.
        shown: indices of the tokens that take part, one a row.
        shares: (heads, tokens) weights to the pinned token of the other column, or None.
    """

    labels: tuple[TokenLabel, ...]
    shown: NDArray[np.intp]
    x: float
    outward: float
    top: float
    row: float
    start: int
    pinned: int | None
    shares: NDArray[np.float64] | None
    widest: float

    @property
    def align(self) -> Literal["left", "right"]:
        return "left" if self.outward > 0 else "right"

    @property
    def size(self) -> float:
        return label_size(self.row)

    def middle(self, place: Any) -> Any:
        """Height of the middle of a row, or of rows."""
        return self.top + self.row * (place + 0.5)


def draw_head_view(view: HeadView, words: Words, fonts: Fonts) -> Sheet:
    """Two columns of tokens and the lines between them, one colour a head."""
    shown = [np.flatnonzero(side) for side in visible_tokens(view)]
    longest = max(len(shown[0]), len(shown[1]), 1)
    row = row_height(longest)
    wide = [
        column_width(labels, side, label_size(row), fonts)
        for labels, side in zip(_sides(view), shown, strict=True)
    ]
    pair = any(label.segment for label in view.left + view.right) and view.kind != "cross"
    lit = None if view.pinned is None else 1 if view.pinned[0] == "left" else 0
    room = [wide[side] + 0.22 * pair + (1.15 if side == lit else 0.0) for side in (0, 1)]
    content = sum(room) + GAP
    width = max(content + 2 * MARGIN, 6.6)
    chips = chip_places(view, width - 2 * MARGIN - 2.2)
    legend = _chip_row(view) * (1 + max((line for _, line in chips), default=0)) + 0.34
    sheet = new_sheet(width, legend + row * longest, words, fonts)
    _draw_legend(sheet, view, chips)
    left = (width - content) / 2 + room[0]
    columns = tuple(
        _Column(
            labels=_sides(view)[side],
            shown=shown[side],
            x=left - 0.12 if side == 0 else left + GAP + 0.12,
            outward=-1.0 if side == 0 else 1.0,
            top=TOP + legend,
            row=row,
            start=view.starts[side],
            pinned=view.pinned[1] if view.pinned is not None and side != lit else None,
            shares=pinned_shares(view) if side == lit else None,
            widest=wide[side],
        )
        for side in (0, 1)
    )
    for side, column in enumerate(columns):
        name = f"{COLUMN_NAMES[view.kind][side]} · {len(column.labels):,} tokens"
        sheet.text(column.x, column.top - 0.13, name, size=SMALL_SIZE, colour=MUTED, align=column.align)
        _draw_column(sheet, column)
        if pair:
            _draw_sentences(sheet, column, column.x + column.outward * (room[side] - 0.05))
        if column.shares is not None:
            _draw_shares(sheet, column, view.active)
    _draw_lines(sheet, view, columns, (left, left + GAP))
    return sheet


def _sides(view: HeadView) -> tuple[tuple[TokenLabel, ...], tuple[TokenLabel, ...]]:
    return view.left, view.right


def _draw_column(sheet: Sheet, column: _Column) -> None:
    """Tokens with small indices outside; pieces of one word joined by a bracket, the pinned token boxed."""
    step = max(1, round(0.1 / column.row))  # indices every row, or fewer where rows are narrow
    inner = column.x - column.outward * 0.06
    tiny = min(TINY_SIZE, column.size * 0.8)
    brackets: list[list[list[float]]] = []
    for place, index in enumerate(column.shown):
        y, label = column.middle(place), column.labels[index]
        width = draw_label(sheet, column.x, y, label, size=column.size, align=column.align)
        if place % step == 0:
            away = column.x + column.outward * (width + 0.075 + 0.03 * label.special)
            number = str(index + column.start)
            sheet.text(away, y, number, size=tiny, colour=MUTED, align=column.align)
        if label.continues and place > 0 and column.shown[place - 1] == index - 1:
            brackets.append([[inner, y - column.row], [inner, y]])
        if index == column.pinned:
            left = column.x - 0.05 if column.outward > 0 else column.x - width - 0.05
            high = column.row * 0.92
            sheet.box(left, y - high / 2, width + 0.1, high, fill=HELD, edge=ACCENT, radius=0.03, layer=0.8)
    if brackets:
        sheet.segments(np.array(brackets), "#a4abb4", line=1.0)


def _draw_sentences(sheet: Sheet, column: _Column, x: float) -> None:
    """A rail beside each sentence of a pair, blue for A and grey for B, with its letter."""
    segments = [column.labels[index].segment for index in column.shown]
    for segment, name in enumerate("AB"):
        places = [place for place, owner in enumerate(segments) if owner == segment]
        if not places:
            continue
        first, last = column.middle(places[0] - 0.5), column.middle(places[-1] + 0.5)
        ends = np.array([[[x, first + 0.02], [x, last - 0.02]]])
        sheet.segments(ends, ("#7f95ba", "#b4b9c0")[segment], line=1.2)
        beside = x - column.outward * 0.05
        align: Literal["left", "right"] = "right" if column.outward > 0 else "left"
        sheet.text(
            beside, column.middle(places[0]), name, size=TINY_SIZE, colour=MUTED, align=align, bold=True
        )


def _draw_shares(sheet: Sheet, column: _Column, active: Sequence[int]) -> None:
    """Beside each token its mean weight to the pinned one: a bar made of the heads' colours, and the number."""
    assert column.shares is not None
    means = column.shares.mean(axis=0)  # (tokens,)
    largest = float(means[column.shown].max(initial=0.0)) or 1.0
    start = column.x + column.outward * (column.widest + 0.02)
    for place, index in enumerate(column.shown):
        y, at = column.middle(place), start
        tint = 0.55 * float(np.sqrt(np.clip(means[index], 0, 1)))
        back = 1 - tint * (1 - rgb(ACCENT))
        width = sheet.fonts.width(short_label(column.labels[index].text), column.size) + 0.08
        left = column.x - 0.04 if column.outward > 0 else column.x - width + 0.04
        sheet.box(left, y - column.row * 0.44, width, column.row * 0.88, fill=back, radius=0.03, layer=0.95)
        for head, weight in zip(active, column.shares[:, index], strict=True):
            length = 0.68 * float(weight) / len(active) / largest
            if length >= 0.002:
                x = at if column.outward > 0 else at - length
                colour = HEAD_COLOURS[head % len(HEAD_COLOURS)]
                sheet.box(
                    x, y - min(column.row * 0.3, 0.035), length, min(column.row * 0.6, 0.07), fill=colour
                )
                at += column.outward * length
        text = _percent(float(means[index]))
        at += column.outward * 0.04
        sheet.text(at, y, text, size=min(TINY_SIZE, column.size * 0.8), colour=MUTED, align=column.align)


def _percent(weight: float) -> str:
    percent = 100 * weight
    if 0 < percent < 0.1:
        return "<0.1 %"
    return f"{percent:.1f} %" if 0 < percent < 9.95 else f"{percent:.0f} %"


def _draw_lines(sheet: Sheet, view: HeadView, columns: Sequence[_Column], edges: tuple[float, float]) -> None:
    """The lines, weakest first so that strong ones lie on top, with the curve that the browser draws."""
    lines = visible_lines(view)
    order = np.argsort(lines.weights, kind="stable")
    queries = np.searchsorted(columns[0].shown, lines.queries[order])
    keys = np.searchsorted(columns[1].shown, lines.keys[order])
    points = np.empty((len(order), 4, 2))  # a Bézier curve each
    points[:, :, 0] = edges[0] + (edges[1] - edges[0]) * np.array([0.0, 0.4, 0.6, 1.0])
    lanes = _lanes(view, columns[0].row)[lines.heads[order]][:, None]
    points[:, :2, 1] = columns[0].middle(queries[:, None]) + lanes
    points[:, 2:, 1] = columns[1].middle(keys[:, None]) + lanes
    palette = np.stack([rgb(colour) for colour in HEAD_COLOURS])
    colours = np.empty((len(order), 4))
    colours[:, :3] = palette[lines.heads[order] % len(palette)]
    colours[:, 3] = line_opacity(lines.weights[order])
    widths = np.full(len(order), 0.65)
    if view.pinned is not None:
        widths[colours[:, 3] > 1 / 3] = 1.1
    sheet.curves(points, colours, widths)


def _lanes(view: HeadView, row: float) -> NDArray[np.float64]:
    """(H,) how far each head's lines end from the middle of a row: side by side, so that none hides another."""
    lanes = np.zeros(view.weights.shape[0])
    count = len(view.active)
    if count > 1:
        spread = min(0.62 * row, 0.027 * (count - 1))
        lanes[list(view.active)] = spread * (np.arange(count) / (count - 1) - 0.5)
    return lanes


def chip_places(view: HeadView, room: float) -> list[tuple[float, int]]:
    """Inches from the left, and the line, of each head's chip; a group that fits on a line stays on one."""
    places: list[tuple[float, int]] = []
    x, line = 0.0, 0
    for _, members in groupby(range(view.weights.shape[0]), key=lambda head: _group(view, head)):
        heads = list(members)
        if x > 0 and x + CHIP_PITCH * len(heads) > room + 1e-9 >= CHIP_PITCH * len(heads):
            x, line = 0.0, line + 1
        for _ in heads:
            if x > 0 and x + CHIP_PITCH > room + 1e-9:
                x, line = 0.0, line + 1
            places.append((x, line))
            x += CHIP_PITCH
        x += 0.08 if view.groups is not None else 0.0
    return places


def _group(view: HeadView, head: int) -> int:
    return head if view.groups is None else view.groups[head]


def _chip_row(view: HeadView) -> float:
    """Height of a line of chips, with room for brackets where heads share a key-value head."""
    return 0.24 if view.groups is None else 0.4


def _draw_groups(sheet: Sheet, view: HeadView, chips: Sequence[tuple[float, int]]) -> None:
    """A bracket over the chips of heads that share a key-value head, with its number, as in the model view."""
    runs = groupby(range(len(chips)), key=lambda head: (_group(view, head), chips[head][1]))
    for (group, line), members in runs:
        heads = list(members)
        start, end = MARGIN + chips[heads[0]][0], MARGIN + chips[heads[-1]][0] + 0.24
        y = TOP - 0.04 + _chip_row(view) * line + 0.1
        sheet.segments(np.array([[[start, y], [end, y]]]), MUTED, line=0.8)
        sheet.text((start + end) / 2, y - 0.075, f"kv {group}", size=TINY_SIZE, colour=MUTED, align="center")


def _draw_legend(sheet: Sheet, view: HeadView, chips: Sequence[tuple[float, int]]) -> None:
    """A numbered chip for each head (filled when its lines are drawn) and what opacity means."""
    active = set(view.active)
    if view.groups is not None:
        _draw_groups(sheet, view, chips)
    for head, (across, line) in enumerate(chips):
        x, y = MARGIN + across, TOP - 0.04 + _chip_row(view) * (line + 1) - 0.24
        on, colour = head in active, HEAD_COLOURS[head % len(HEAD_COLOURS)]
        sheet.box(x, y, 0.24, 0.18, fill=colour if on else PAPER, edge=colour if on else FAINT, radius=0.035)
        ink = readable_ink(255 * rgb(colour)) if on else MUTED
        sheet.text(x + 0.12, y + 0.09, str(head), size=SMALL_SIZE, colour=ink, align="center", bold=on)
    ink = HEAD_COLOURS[view.active[0] % len(HEAD_COLOURS)] if len(view.active) == 1 else INK
    shade = 255 - np.linspace(0, 1, 256)[None, :, None] * (255 - 255 * rgb(ink))
    wide = 1.5
    x = sheet.width - MARGIN - wide
    sheet.image(x, TOP - 0.04, wide, 0.07, np.rint(shade).astype(np.uint8))
    sheet.box(x, TOP - 0.04, wide, 0.07, edge=FAINT, line=0.5)
    for value, text in ((0, "0"), (0.01, ".01"), (0.1, ".1"), (0.25, ".25"), (0.5, ".5"), (1, "1")):
        place = x + wide * float(np.sqrt(value))
        sheet.text(place, TOP + 0.095, text, size=TINY_SIZE, colour=MUTED, align="center")
    sheet.text(
        x + wide, TOP + 0.19, "attention weight (rows sum to 1)", size=TINY_SIZE, colour=MUTED, align="right"
    )
