"""Evidence on paper: maps over a picture, and coloured words, method by method."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from analysis.drawing import FAINT, INK, MUTED, TEXT_SIZE, Fonts, Sheet
from analysis.figure_data import EvidenceMaps, EvidencePanel, EvidenceWords
from analysis.plates.frame import (
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
from analysis.raster import Pixels, resized
from analysis.visible import short_label
from analysis.visible_evidence import drawn_scores, evidence_colours, pale_grey, score_colours

GAP, HEADING = 0.22, 0.38  # inches


def draw_evidence_maps(view: EvidenceMaps, words: Words, fonts: Fonts) -> Sheet:
    """Panels in rows, each with its method, target and the score at which its colours end."""
    count = len(view.panels)
    across = min(count, 4 if count > 6 else 3 if count > 2 else count) or 1
    if (
        len({panel.target for panel in view.panels if panel.target}) > 1
    ):  # both targets of a method in one row
        across = 4 if count > 4 else 2
    height, width = view.picture.shape[:2]
    box = {1: 4.4, 2: 3.1, 3: 2.2, 4: 1.75}[across]
    wide, tall = box * width / max(height, width), box * height / max(height, width)
    column = max(wide, 1.5)
    notes = [wrapped(_note(panel, alone=count == 1), column, TINY_SIZE, fonts) for panel in view.panels]
    pitch = TINY_SIZE * 1.4 / 72
    lines = [max(map(len, notes[start : start + across])) for start in range(0, count, across)]
    extent = sum(tall + HEADING + GAP + pitch * lines_of for lines_of in lines)
    sheet = new_sheet(max(MARGIN * 2 + across * (column + GAP), 5.4), extent + 0.5, words, fonts)
    y = TOP
    for row, start in enumerate(range(0, count, across)):
        for place, index in enumerate(range(start, min(start + across, count))):
            x = MARGIN + place * (column + GAP)
            _draw_map(sheet, view, index, (x, y + HEADING, wide, tall))
            for number, line in enumerate(notes[index]):
                top = y + HEADING + tall + 0.08 + pitch * (number + 0.5)
                sheet.text(x, top, line, size=TINY_SIZE, colour=MUTED)
        y += HEADING + tall + GAP + pitch * lines[row]
    draw_scales(sheet, view.panels, MARGIN, y + 0.1, positive=view.positive)
    return sheet


def _draw_map(sheet: Sheet, view: EvidenceMaps, index: int, place: tuple[float, float, float, float]) -> None:
    x, y, wide, tall = place
    panel = view.panels[index]
    _heading(sheet, panel, x, y, limit=32 if wide < 2 else 48)
    sheet.image(x, y, wide, tall, mixed_map(view, index))
    sheet.box(x, y, wide, tall, edge=FAINT, line=0.5)
    if view.marked is not None:
        rows, columns = view.maps.shape[1:]
        row, column = view.marked
        high, broad = tall / rows, wide / columns
        sheet.mark(x + column * broad, y + row * high, broad, high)


def _heading(sheet: Sheet, panel: EvidencePanel, x: float, y: float, *, limit: int) -> None:
    name = f"{panel.method}  {'±' if panel.signed else 'max '}{short_number(panel.limit)}"
    sheet.text(x, y - 0.25, short_label(name, limit), size=SMALL_SIZE, colour=INK, bold=True)
    target = f"for {panel.target}" if panel.target else "the same for every target"
    sheet.text(x, y - 0.11, short_label(target, limit), size=SMALL_SIZE, colour=MUTED)


def _note(panel: EvidencePanel, *, alone: bool) -> str:
    """What was measured; of a panel alone also what its method claims, since nothing stands beside it that tells."""
    claims = panel.claims and f"Shows: {panel.claims}"
    cannot = panel.cannot and f"Beware: {panel.cannot}"
    said = (claims, cannot) if alone else ()
    return " ".join(filter(None, (panel.empty, panel.warning, *panel.facts, *said)))


def mixed_map(view: EvidenceMaps, index: int) -> Pixels:
    """The picture with one panel's colours over it."""
    height, width = view.picture.shape[:2]
    side = PICTURE_SIDE if len(view.panels) == 1 else PICTURE_SIDE // 2
    scale = side / max(height, width)
    size = max(1, round(height * scale)), max(1, round(width * scale))
    ground = pale_grey(view.picture) if view.grey else view.picture
    below = resized(ground.astype(np.float32), size, smooth=True)
    panel = view.panels[index]
    values = resized(np.asarray(view.maps[index], dtype=np.float32), size, smooth=view.smooth)
    colours = score_colours(drawn_scores(values, panel, positive=view.positive), panel)
    share = colours[..., 3:] * view.opacity
    pixels: Pixels = np.rint(np.clip(below * (1 - share) + colours[..., :3] * share, 0, 255)).astype(np.uint8)
    return pixels


def draw_scales(sheet: Sheet, panels: Sequence[EvidencePanel], x: float, y: float, *, positive: bool) -> None:
    """A lying bar for each kind of scale that is drawn."""
    kinds = sorted({panel.signed for panel in panels}, reverse=True)
    for signed in kinds:
        table = on_white(evidence_colours(signed))
        ends = ("no sign: 0", "largest")
        if signed:
            ends = ("0", "for") if positive else ("against", "for")
            table = table[128:] if positive else table
        sheet.text(x, y, ends[0], size=SMALL_SIZE, colour=MUTED)
        start = x + sheet.fonts.width(ends[0], SMALL_SIZE) + 0.08
        sheet.image(start, y - 0.05, 1.3, 0.1, np.repeat(table[None], 8, axis=0))
        sheet.box(start, y - 0.05, 1.3, 0.1, edge=FAINT, line=0.5)
        sheet.text(start + 1.38, y, ends[1], size=SMALL_SIZE, colour=MUTED)
        x = start + 1.38 + sheet.fonts.width(ends[1], SMALL_SIZE) + 0.4


def on_white(table: NDArray[np.uint8]) -> Pixels:
    """(n, 4) colours with opacity as they look on white paper, (n, 3)."""
    share = table[:, 3:].astype(np.float64) / 255
    mixed: Pixels = np.rint(255 * (1 - share) + table[:, :3] * share).astype(np.uint8)
    return mixed


def draw_evidence_words(view: EvidenceWords, words: Words, fonts: Fonts) -> Sheet:
    """The text once a panel, each word on its colour."""
    width, row, pitch = 7.4, 0.24, TINY_SIZE * 1.4 / 72
    lines = _lines_of(view, width - 2 * MARGIN, fonts)
    alone = len(view.panels) == 1
    notes = [
        wrapped(_note(panel, alone=alone), width - 2 * MARGIN, TINY_SIZE, fonts) for panel in view.panels
    ]
    extent = sum(HEADING + row * len(lines) + pitch * len(note) + 0.14 for note in notes)
    sheet = new_sheet(width, extent + 0.4, words, fonts)
    y = TOP
    for index, panel in enumerate(view.panels):
        y += HEADING
        _heading(sheet, panel, MARGIN, y, limit=90)
        colours = score_colours(drawn_scores(view.scores[index], panel, positive=view.positive), panel)
        tints = on_white(
            np.rint(np.concatenate([colours[:, :3], colours[:, 3:] * 255], axis=1)).astype(np.uint8)
        )
        for line in lines:
            for place, label in line:
                text = short_label(view.tokens[label].text, 30)
                broad = fonts.width(text, TEXT_SIZE)
                tint = "#{:02x}{:02x}{:02x}".format(*tints[label])
                sheet.box(
                    MARGIN + place - 0.03, y, broad + 0.06, row - 0.04, fill=tint, radius=0.02, layer=0.9
                )
                ink = readable_ink(tints[label])
                sheet.text(MARGIN + place, y + row / 2 - 0.02, text, size=TEXT_SIZE, colour=ink)
            y += row
        for number, sentence in enumerate(notes[index]):
            sheet.text(MARGIN, y + pitch * (number + 0.5), sentence, size=TINY_SIZE, colour=MUTED)
        y += pitch * len(notes[index]) + 0.14
    draw_scales(sheet, view.panels, MARGIN, y + 0.16, positive=view.positive)
    return sheet


def _lines_of(view: EvidenceWords, width: float, fonts: Fonts) -> list[list[tuple[float, int]]]:
    """Lines of (place in inches, index of the label), from the right for right-to-left text."""
    lines: list[list[tuple[float, int]]] = [[]]
    place = 0.0
    sizes = [fonts.width(short_label(label.text, 30), TEXT_SIZE) for label in view.tokens]
    for index, size in enumerate(sizes):
        if place and place + size > width:
            lines.append([])
            place = 0.0
        lines[-1].append((place, index))
        place += size + 0.1
    if view.direction == "rtl":
        return [[(width - start - sizes[index], index) for start, index in line] for line in lines]
    return lines
