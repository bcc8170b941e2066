"""What the sections of the Lab show, as frozen records of plain arrays: sheets of small matrices, and of curves.

They belong to the figures of ``analysis.figure_data`` and, as these do, need NumPy alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

MatrixScale = Literal["weights", "signed", "mask"]
CurveStyle = Literal["line", "dashed", "points", "bars"]


@dataclass(frozen=True)
class NamedMatrix:
    """A small matrix with a name, drawn as a heat map.

    Attributes:
        name: what it is, such as "QKᵀ/√d_k".
        values: (r, c) exact values; −∞ and NaN are drawn as no value.
        rows, columns: r and c labels, such as words; () where there are none.
        scale: "weights" are at least 0 and coloured from 0 on, "signed" around 0; a "mask" is 1 where a pair may
            attend, else 0.
        limit: |value| at which the colours end; None = the largest of the matrix.
        note: what stands below it, such as "rows sum to 1".
        axes: what rows and columns are, such as ("query", "key"); "" where that is not told.
    """

    name: str
    values: NDArray[np.floating]
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    scale: MatrixScale = "weights"
    limit: float | None = None
    note: str = ""
    axes: tuple[str, str] = ("", "")


@dataclass(frozen=True)
class MatrixSheet:
    """Matrices side by side.

    Attributes:
        matrices: in reading order.
        title: what they are of.
        selected: index of a matrix that stands out, or None; ``cell``: (row, column) that is marked in every matrix
            that has it, or None.
        notes: what a reader must know.
        across: how many stand in one row; 0 = as many as fit.
        numbers: values are written into the cells where there is room.
    """

    matrices: tuple[NamedMatrix, ...]
    title: str = ""
    selected: int | None = None
    cell: tuple[int, int] | None = None
    notes: tuple[str, ...] = ()
    across: int = 0
    numbers: bool = True


@dataclass(frozen=True)
class Curve:
    """One series of numbers.

    Attributes:
        name: in the legend and in files.
        x, y: (n,) values; NaN in ``y`` is a gap.
        low, high: (n,) ends of an interval around ``y``, or None.
        style: how it is drawn; bars stand at ``x``.
        hue: place in the palette, so that a series has one colour in all panels; None is its own place.
        labels: n names that stand for the numbers of ``x``, such as words; () where there are none.
    """

    name: str
    x: NDArray[np.floating]
    y: NDArray[np.floating]
    low: NDArray[np.floating] | None = None
    high: NDArray[np.floating] | None = None
    style: CurveStyle = "line"
    hue: int | None = None
    labels: tuple[str, ...] = ()


@dataclass(frozen=True)
class CurvePanel:
    """Curves over one pair of axes.

    Attributes:
        title: what it shows.
        x_title, y_title: names of the axes with their units.
        curves: drawn in this order.
        log_x, log_y: logarithmic axes; values that are not above 0 are left out there.
        mark: x of an upright line, such as the d_k that is chosen; None for none.
    """

    title: str
    x_title: str
    y_title: str
    curves: tuple[Curve, ...]
    log_x: bool = False
    log_y: bool = False
    mark: float | None = None


@dataclass(frozen=True)
class CurveSheet:
    """Panels of curves side by side.

    Attributes:
        panels: in reading order.
        title: what they are of.
        notes: what a reader must know, such as how and where it was measured.
    """

    panels: tuple[CurvePanel, ...]
    title: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class TimelineEntry:
    """A work of a history.

    Attributes:
        key: unique; ``name``: what it is called in the picture.
        year: of the work; ``title``, ``authors``, ``source``: as a reader finds it.
        theme: key of one of the timeline's themes.
        added: what it brought, one sentence.
        here: what of this program is the mechanism, or is like it; ``alike``: the latter.
        address: the link that opens this.
    """

    key: str
    name: str
    year: int
    title: str
    authors: str
    theme: str
    added: str
    source: str
    here: str
    alike: bool
    address: str


@dataclass(frozen=True)
class Timeline:
    """Works of a history, by year and theme.

    Attributes:
        entries: by ascending year.
        themes: (key, name) of each theme, in the order of their lanes.
        title: what it is of.
        selected: key of the entry that is opened; "" for none.
        notes: what a reader must know.
    """

    entries: tuple[TimelineEntry, ...]
    themes: tuple[tuple[str, str], ...]
    title: str = ""
    selected: str = ""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class DiagramStage:
    """A box of a diagram.

    Attributes:
        name: of what it holds; ``symbol``: as the formula has it.
        formula: how it comes about; ``about``: what it is, one sentence.
        parameter: of the model, by its name there; "" for none.
        shape: such as "15 × 32"; ``axes``: what these count.
        values: (r, c) its numbers, with the colours' scale and labels; ``row``: one that is marked, or None.
        place: (column, row) in the grid of boxes.
    """

    name: str
    symbol: str
    formula: str
    about: str
    parameter: str
    shape: str
    axes: str
    values: NamedMatrix
    place: tuple[int, int]
    row: int | None = None


@dataclass(frozen=True)
class DiagramArrow:
    """From one stage to another, by their indices, with what happens on the way."""

    start: int
    stop: int
    label: str = ""


@dataclass(frozen=True)
class Diagram:
    """Stages of a computation as boxes in a grid, with arrows.

    Attributes:
        stages: in the order of the computation.
        arrows: what each is made from.
        title: what it is of.
        selected: index of the stage that is explained, or None.
        notes: what a reader must know.
    """

    stages: tuple[DiagramStage, ...]
    arrows: tuple[DiagramArrow, ...]
    title: str = ""
    selected: int | None = None
    notes: tuple[str, ...] = ()
