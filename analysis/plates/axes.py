"""A small chart on paper: a frame with ticks, points, shapes and bars in the units of what is drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analysis.drawing import FAINT, INK, MUTED, TEXT_SIZE, DotShape, Sheet
from analysis.plates.frame import SMALL_SIZE, TINY_SIZE, short_number

Ends = tuple[float, float]


@dataclass(frozen=True)
class Axes:
    """A rectangle of a sheet in which ``across`` and ``up`` are the values at its ends.

    Attributes:
        x, y, width, height: inches from the top left corner of the sheet.
    """

    sheet: Sheet
    x: float
    y: float
    width: float
    height: float
    across: Ends
    up: Ends

    def places(self, across: NDArray[np.float64], up: NDArray[np.float64]) -> NDArray[np.float64]:
        """(n, 2) inches of points; those beyond an end are put on it."""
        shares = [
            np.clip((np.asarray(values, dtype=np.float64) - low) / ((high - low) or 1.0), 0.0, 1.0)
            for values, (low, high) in ((across, self.across), (up, self.up))
        ]
        x, y = np.broadcast_arrays(self.x + self.width * shares[0], self.y + self.height * (1 - shares[1]))
        return np.stack([x, y], axis=-1)

    def place(self, across: float, up: float) -> tuple[float, float]:
        """Inches of one point."""
        x, y = self.places(np.array([across]), np.array([up]))[0].tolist()
        return x, y

    def frame(
        self,
        title: str,
        across: str,
        up: str = "",
        *,
        remark: str = "",
        across_ticks: Sequence[float] | Mapping[float, str] = (),
        up_ticks: Sequence[float] | Mapping[float, str] = (),
    ) -> None:
        """Title with a remark below, names of the axes, at each tick a faint line and its number or its own text."""
        sheet, right, below = self.sheet, self.x + self.width, self.y + self.height
        sheet.text(self.x, self.y - 0.27, title, size=TEXT_SIZE, bold=True)
        sheet.text(self.x, self.y - 0.11, remark, size=TINY_SIZE, colour=MUTED)
        for tick, text in _named(across_ticks):
            x, _ = self.place(tick, self.up[0])
            sheet.segments(np.array([[[x, self.y], [x, below]]]), FAINT, line=0.5, layer=0.5)
            sheet.text(x, below + 0.1, text, size=TINY_SIZE, colour=MUTED, align="center")
        for tick, text in _named(up_ticks):
            _, y = self.place(self.across[0], tick)
            sheet.segments(np.array([[[self.x, y], [right, y]]]), FAINT, line=0.5, layer=0.5)
            sheet.text(self.x - 0.06, y, text, size=TINY_SIZE, colour=MUTED, align="right")
        middle = self.x + self.width / 2
        sheet.text(middle, below + 0.25, across, size=SMALL_SIZE, colour=MUTED, align="center")
        if up:
            x, y = self.x - 0.42, self.y + self.height / 2
            sheet.text(x, y, up, size=SMALL_SIZE, colour=MUTED, align="center", angle=90)

    def line(
        self, start: Ends, end: Ends, colour: str = INK, *, line: float = 0.8, dashed: bool = False
    ) -> None:
        """A straight line between two points (across, up)."""
        ends = np.array([self.place(*start), self.place(*end)])
        if not dashed:
            self.sheet.segments(ends[None], colour, line=line, layer=1.4)
            return
        length = float(np.hypot(*(ends[1] - ends[0])))
        starts = np.arange(0.0, length, 0.07)
        shares = np.stack([starts, np.minimum(starts + 0.04, length)], axis=1) / (length or 1.0)  # (n, 2)
        points = ends[0] + shares[..., None] * (ends[1] - ends[0])
        self.sheet.segments(points, colour, line=line, layer=1.4)

    def dots(
        self,
        across: NDArray[np.float64],
        up: NDArray[np.float64],
        colour: str,
        *,
        size: float = 0.055,
        shape: DotShape = "circle",
        edge: str = "#ffffff",
    ) -> None:
        """A mark at each point."""
        self.sheet.dots(self.places(across, up), colour, size=size, shape=shape, edge=edge)

    def ring(self, across: float, up: float) -> None:
        """A ring about a point, which marks it."""
        point = np.array([self.place(across, up)])
        self.sheet.dots(point, "none", size=0.13, edge=INK, line=1.1, layer=2.0)

    def bars(
        self, edges: NDArray[np.float64], counts: Sequence[NDArray[np.int64]], colours: Sequence[str]
    ) -> None:
        """Bars between ``edges`` (b + 1,), stacked in the order of ``counts``, each (b,)."""
        base = np.zeros(len(edges) - 1, dtype=np.int64)
        for heights, colour in zip(counts, colours, strict=True):
            for start, end, low, height in zip(edges[:-1], edges[1:], base, heights, strict=True):
                if height:
                    left, top = self.place(float(start), float(low + height))
                    right, below = self.place(float(end), float(low))
                    gap = 0.006 if right - left > 0.05 else 0.0
                    self.sheet.box(left + gap, top, right - left - 2 * gap, below - top, fill=colour)
            base = base + heights


def _named(ticks: Sequence[float] | Mapping[float, str]) -> Sequence[tuple[float, str]]:
    if isinstance(ticks, Mapping):
        return tuple(ticks.items())
    return [(tick, short_number(tick)) for tick in ticks]
