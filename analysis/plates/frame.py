"""What all plates share: the page with its title and caption, the scale bar, token labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from analysis.drawing import FAINT, INK, MUTED, TEXT_SIZE, Fonts, Sheet, blank_sheet, colour_table
from analysis.figure_data import TokenLabel
from analysis.raster import Pixels
from analysis.visible import short_label

TITLE_SIZE, SMALL_SIZE, TINY_SIZE = 10.5, 6.8, 5.4  # points
MARGIN = 0.35  # inches
LINE = 1.45  # line height of running text, in units of its size
PICTURE_SIDE = 1200  # pixels along the longer side of a raster part
CHIP, ACCENT = "#e9ecef", "#3b5b92"


@dataclass(frozen=True)
class Words:
    """Text around a figure: its title, and the lines of the caption below."""

    title: str
    captions: tuple[str, ...]


TOP = 0.66  # inches above the body of a sheet: margin and title


def new_sheet(width: float, body: float, words: Words, fonts: Fonts) -> Sheet:
    """A page with title and caption around a body that starts at ``TOP`` and is ``body`` inches high."""
    lines = [part for line in words.captions for part in wrapped(line, width - 2 * MARGIN, SMALL_SIZE, fonts)]
    pitch = SMALL_SIZE * LINE / 72
    height = TOP + body + 0.22 + pitch * len(lines) + MARGIN - 0.08
    sheet = blank_sheet(width, height, fonts)
    title, size = _fitting_title(words.title, width - 2 * MARGIN, fonts)
    sheet.text(MARGIN, MARGIN + 0.04, title, size=size, bold=True)
    for index, line in enumerate(lines):
        sheet.text(MARGIN, TOP + body + 0.22 + pitch * (index + 0.5), line, size=SMALL_SIZE, colour=MUTED)
    return sheet


def _fitting_title(title: str, width: float, fonts: Fonts) -> tuple[str, float]:
    """A title and its size: a longer one is set smaller, down to running text, and then cut with an ellipsis."""
    needed = fonts.width(title, TITLE_SIZE, bold=True)
    if needed <= width:
        return title, TITLE_SIZE
    size = max(TITLE_SIZE * width / needed, TEXT_SIZE)
    kept = int(len(title) * min(width / fonts.width(title, size, bold=True), 1.0))
    cut = title
    while kept > 0 and fonts.width(cut, size, bold=True) > width:
        cut, kept = title[:kept].rstrip() + "…", kept - 1
    return cut, size


def wrapped(text: str, width: float, size: float, fonts: Fonts) -> list[str]:
    """Text broken at spaces into lines no wider than ``width``; a longer word is broken anywhere."""
    lines, line = [], ""
    for word in _pieces(text, width, size, fonts):
        longer = f"{line} {word}" if line else word
        if line and fonts.width(longer, size) > width:
            lines.append(line)
            line = word
        else:
            line = longer
    return [*lines, line] if line else lines


def _pieces(text: str, width: float, size: float, fonts: Fonts) -> Iterator[str]:
    for word in text.split():
        limit = max(4, int(width * 72 / size))  # characters of average width 0.6 that surely fit
        if len(word) <= limit or fonts.width(word, size) <= width:
            yield word
        else:
            yield from (word[start : start + limit] for start in range(0, len(word), limit))


def draw_scale_bar(
    sheet: Sheet,
    x: float,
    y: float,
    height: float,
    limits: tuple[float, float],
    name: str | Pixels,
    unit: str,
    *,
    scale: Literal["linear", "sqrt"] = "linear",
    over: bool = False,
) -> None:
    """An upright colour bar with five numbers and its unit; ``over`` marks that some values lie above its end.

    ``name`` is a colour map or its (256, 3) colours.
    """
    table = colour_table(name) if isinstance(name, str) else name
    ramp = np.ascontiguousarray(table[::-1, None, :])
    sheet.image(x, y, 0.11, height, np.repeat(ramp, 8, axis=1))
    sheet.box(x, y, 0.11, height, edge=FAINT, line=0.5)
    low, high = limits
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        value = low + (share**2 if scale == "sqrt" else share) * (high - low)
        number = f"≥ {short_number(value)}" if over and share == 1.0 else short_number(value)
        sheet.text(x + 0.17, y + height * (1 - share), number, size=SMALL_SIZE, colour=MUTED)
    sheet.text(x + 0.68, y + height / 2, unit, size=SMALL_SIZE, colour=MUTED, align="center", angle=90)


def short_number(value: float) -> str:
    """A number at three digits."""
    return "0" if value == 0 else f"{value:.3g}"


def row_height(count: int) -> float:
    """Height of one token's row: roomy for a sentence, shrinking so that 512 tokens still make one page."""
    return min(0.2, max(16.0 / max(count, 1), 0.07) if count <= 512 else 36.0 / count)


def label_size(row: float) -> float:
    """Size in points of the labels of rows of this height."""
    return min(TEXT_SIZE, row * 72 * 0.8)


def draw_label(
    sheet: Sheet, x: float, y: float, label: TokenLabel, *, size: float, align: Literal["left", "right"]
) -> float:
    """One token: a grey chip when special, underlined with dots when unknown. Gives its width in inches."""
    text = short_label(label.text)
    width = sheet.fonts.width(text, size)
    left = x - width if align == "right" else x
    if label.special:
        high = size * 1.3 / 72
        sheet.box(left - 0.04, y - high / 2, width + 0.08, high, fill=CHIP, radius=0.04, layer=0.9)
    if label.unknown:
        below = y + size * 0.62 / 72
        dots = np.arange(0, max(width, 0.02), 0.022)
        points = np.stack([left + dots, np.full_like(dots, below)], axis=-1)
        ends = points + np.array([0.009, 0.0])
        sheet.segments(np.stack([points, ends], axis=1), MUTED, line=0.7)
    sheet.text(x, y, text, size=size, align=align, colour=MUTED if label.special else INK)
    return width


def readable_ink(colour: NDArray[Any]) -> str:
    """Black or white ink, whichever is easier to read on an 8-bit colour (relative luminance, WCAG 2)."""
    channels = np.asarray(colour, dtype=np.float64) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return "#ffffff" if float(linear @ [0.2126, 0.7152, 0.0722]) <= 0.179 else "#000000"


def column_width(labels: Sequence[TokenLabel], shown: NDArray[np.intp], size: float, fonts: Fonts) -> float:
    """Inches that a column of labels needs, its index digits included."""
    texts = {short_label(labels[index].text) for index in shown}
    longest = sorted(texts, key=len, reverse=True)[:24]  # the widest is among the longest
    return max((fonts.width(text, size) for text in longest), default=0.0) + 0.42
