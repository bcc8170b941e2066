"""How the Lab's sheets of matrices and of curves are drawn and told: one rule for the screen and for files.

Colours of a matrix and the decimals in its cells, names with subscripts, colours and ticks of curves. NumPy alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from analysis.figure_data import HEAD_COLOURS
from analysis.figure_lab import (
    Curve,
    CurvePanel,
    CurveSheet,
    CurveStyle,
    MatrixScale,
    MatrixSheet,
    NamedMatrix,
)
from analysis.visible_heads import TOLERANCE

MATRIX_SIDE = 256
"""Most rows and columns of a matrix of a sheet."""

NUMBERED_SIDE = 16
"""Matrices of at most this many rows and columns have their values in the cells where there is room."""

DASHES = ("solid", "dash", "dot", "dashdot")
"""Of curves that share a colour in one panel, in turn."""

NAMED_TICKS = 12
"""A logarithmic axis of at most this many values is ticked at these themselves."""

Ends = tuple[float, float]


# Matrices -----------------------------------------------------------------------------------------------------------


def matrix_limit(matrix: NamedMatrix) -> float:
    """|value| at which the colours of a matrix end: its own, else its largest, 1 where there is none above 0."""
    if matrix.scale == "mask":
        return 1.0
    if matrix.limit is not None:
        return float(matrix.limit)
    return float(np.abs(_known(matrix.values)).max(initial=0.0)) or 1.0


def matrix_limits(matrix: NamedMatrix) -> Ends:
    """Values of the first and the last colour: 0 and the limit, or both signs of it."""
    limit = matrix_limit(matrix)
    return (-limit if matrix.scale == "signed" else 0.0), limit


def beyond_limit(matrix: NamedMatrix) -> int:
    """How many values lie beyond the end of the colours and so have the last one; float32, as files hold them."""
    limit = np.float32(matrix_limit(matrix))
    return int((np.abs(_known(matrix.values)).astype(np.float32) > limit).sum())


def shared_scale(view: MatrixSheet) -> tuple[MatrixScale, float] | None:
    """Scale and limit of all matrices that are no masks, None where they differ or there is none."""
    found = {(each.scale, matrix_limit(each)) for each in view.matrices if each.scale != "mask"}
    return found.pop() if len(found) == 1 else None


def without_value(values: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Which cells stay empty: NaN, and infinities such as the −∞ of a masked score."""
    return ~np.isfinite(np.asarray(values, dtype=np.float32))


def has_numbers(view: MatrixSheet, matrix: NamedMatrix) -> bool:
    """Whether values are to be written into the cells of a matrix where there is room."""
    return view.numbers and matrix.scale != "mask" and is_small(matrix)


def is_small(matrix: NamedMatrix) -> bool:
    """Whether a matrix has cells as large as those with numbers."""
    return int(max(matrix.values.shape)) <= NUMBERED_SIDE


def cell_decimals(matrix: NamedMatrix) -> int | None:
    """Decimals of the values in the cells of one matrix; None for three digits each.

    None of whole numbers below 1000, else two; three where all are below 0.1, three digits where all are below 0.01
    or one is 1000 or more.
    """
    values = np.abs(_known(matrix.values))
    largest = float(values.max(initial=0.0))
    if largest < 1000 and (values == np.rint(values)).all():
        return 0
    if largest < 0.01 or largest >= 1000:
        return None
    return 3 if largest < 0.1 else 2


def cell_text(value: float, decimals: int | None) -> str:
    """A float32 as its cell shows it, with a true minus: rounded half away from 0, as the browser does it.

    Args:
        decimals: of ``cell_decimals``, for values below 1000; None for three digits, as a power of ten where it
            is below 0.0001 or at least a million.
    """
    if not math.isfinite(value):
        return "" if math.isnan(value) else "∞" if value > 0 else "−∞"
    exact = Decimal(float(np.float32(value)))
    if decimals is not None:
        text = f"{exact.quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP):f}"
    elif exact == 0:
        text = "0"
    else:
        rounded = exact.quantize(Decimal(1).scaleb(exact.adjusted() - 2), ROUND_HALF_UP)
        plain = Decimal("1e-4") <= abs(exact) < Decimal("1e6")
        text = f"{rounded.normalize():f}" if plain else f"{rounded:.2e}"
    return text.replace("-", "−") if float(text) else text.removeprefix("-")


def name_parts(name: str) -> tuple[tuple[str, bool], ...]:
    """A name as (text, is a subscript): ``d_k`` and ``W_Q`` have subscripts, names of functions such as
    ``score_mod`` have none.

    What follows an underscore is a subscript where one letter is before it, or where it has at most two characters.
    """
    parts, end = [], 0
    for found in _SUBSCRIPT.finditer(name):
        if len(found["base"]) > 1 and len(found["below"]) > 2:
            continue
        parts += [(name[end : found.end("base")], False), (found["below"], True)]
        end = found.end()
    return (*parts, (name[end:], False)) if end < len(name) or not parts else tuple(parts)


_SUBSCRIPT = re.compile(r"(?<!\w)(?P<base>[^\W\d_]+)_(?P<below>[^\W_]+)(?!\w)")


def index_ticks(count: int, most: int) -> range:
    """Every index, or every second, fourth ... of ``count``, so that there are at most ``most``."""
    step = 1
    while math.ceil(count / step) > max(most, 1):
        step *= 2
    return range(0, count, step)


def axis_key(matrix: NamedMatrix, side: int) -> tuple[object, ...]:
    """What the rows (``side`` 0) or columns (1) of a matrix count; equal ones are lit together.

    Axes with a name are equal whether they run down or across, others only in the same direction.
    """
    labels = (matrix.rows, matrix.columns)[side]
    return matrix.axes[side] or side, labels, matrix.values.shape[side]


def sheet_in_words(view: MatrixSheet) -> str:
    """What stands under an exported sheet of matrices; the notes are in it."""
    sentences = []
    count = len(view.matrices)
    shapes = list(dict.fromkeys(f"{rows} × {columns}" for rows, columns in map(_shape, view.matrices)))
    sizes = shapes[0] if len(shapes) == 1 else f"{', '.join(shapes[:4])}{' …' if len(shapes) > 4 else ''}"
    each = " each" if count > 1 and len(shapes) == 1 else ""
    sentences.append(
        f"{count} {'matrix' if count == 1 else 'matrices'}, {sizes}{each}, rows down, columns across."
    )
    scales = {matrix.scale for matrix in view.matrices}
    if "signed" in scales:
        sentences.append("Red is above 0, blue below.")
    if "mask" in scales:
        sentences.append("Of a mask the filled pairs may attend, the hatched or pale ones may not.")
    shared = shared_scale(view)
    if shared is not None:
        sentences.append(f"Colours end at {'±' if shared[0] == 'signed' else ''}{shared[1]:.3g}.")
    elif scales != {"mask"}:
        sentences.append("Each matrix has its own end of colours.")
    beyond = sum(map(beyond_limit, view.matrices))
    if beyond:
        sentences.append(
            f"{beyond:,} value{' lies' if beyond == 1 else 's lie'} beyond the end and have its colour."
        )
    empty = sum(int(without_value(matrix.values).sum()) for matrix in view.matrices)
    if empty:
        sentences.append(f"{empty:,} cell{' is' if empty == 1 else 's are'} empty: −∞ or no value.")
    if view.selected is not None:
        sentences.append(f"Marked: {view.matrices[view.selected].name}.")
    if view.cell is not None:
        sentences.append(f"Marked cell: row {view.cell[0]}, column {view.cell[1]}.")
    return _said([*sentences, *view.notes])


def _shape(matrix: NamedMatrix) -> tuple[int, int]:
    rows, columns = matrix.values.shape
    return int(rows), int(columns)


# Curves -------------------------------------------------------------------------------------------------------------


def curve_colour(panel: CurvePanel, index: int) -> str:
    """Colour of a curve: its hue's place in the palette, else its own place in the panel."""
    hue = panel.curves[index].hue
    return HEAD_COLOURS[(index if hue is None else hue) % len(HEAD_COLOURS)]


def curve_dash(panel: CurvePanel, index: int) -> str:
    """ "solid", or another dash for a dashed curve and for a line whose colour an earlier line of the panel has."""
    curve = panel.curves[index]
    first = 1 if curve.style == "dashed" else 0
    before = [
        place
        for place in range(index)
        if panel.curves[place].style == curve.style
        and curve_colour(panel, place) == curve_colour(panel, index)
    ]
    return DASHES[(first + len(before)) % len(DASHES)]


def drawn_points(curve: Curve, panel: CurvePanel) -> NDArray[np.bool_]:
    """(n,) which points can be drawn: not NaN, and above 0 where an axis is logarithmic."""
    x, y = np.asarray(curve.x, dtype=np.float64), np.asarray(curve.y, dtype=np.float64)
    with np.errstate(invalid="ignore"):
        kept = np.isfinite(y) & ((x > 0) | (not panel.log_x)) & ((y > 0) | (not panel.log_y))
    return np.asarray(kept, dtype=bool)


def across_ends(panel: CurvePanel) -> Ends:
    """Ends of the axis across, with a little room, so that no mark is cut."""
    values = [np.asarray(curve.x, dtype=np.float64)[drawn_points(curve, panel)] for curve in panel.curves]
    if panel.mark is not None:
        values.append(np.array([panel.mark], dtype=np.float64))
    found = np.concatenate([np.empty(0), *values])
    if panel.log_x:
        return _log_ends(found)
    room = _bar_step(panel) * 0.6 if _has_bars(panel) else 0.0
    low, high = _ends(found)
    room = room or (high - low) * 0.03 or 0.5
    return low - room, high + room


def up_ends(panel: CurvePanel) -> Ends:
    """Ends of the axis upwards, of curves and intervals; 0 is one where there are bars, or where it lies near."""
    found = np.empty(0)
    for curve in panel.curves:
        kept = drawn_points(curve, panel)
        for part in (curve.y, curve.low, curve.high):
            if part is not None:
                found = np.append(found, np.asarray(part, dtype=np.float64)[kept])
    found = found[np.isfinite(found)]
    if panel.log_y:
        return _log_ends(found[found > 0])
    low, high = _ends(found)
    if _has_bars(panel) or 0 < low < 0.35 * high:
        low = min(low, 0.0)
    if _has_bars(panel):
        high = max(high, 0.0)
    room = (high - low) * 0.06 or max(abs(high) * 0.1, 0.5)
    return (low if low == 0 else low - room), (high if high == 0 else high + room)


def across_ticks(panel: CurvePanel) -> tuple[tuple[float, str], ...]:
    """(place, text) of the ticks across: labels of the curves where they have some, else round numbers."""
    named: dict[float, str] = {}
    for curve in panel.curves:
        for place, label in zip(np.asarray(curve.x, dtype=np.float64).tolist(), curve.labels, strict=False):
            named.setdefault(place, label)
    if named:
        return tuple(sorted(named.items()))
    places = [np.asarray(curve.x, dtype=np.float64)[drawn_points(curve, panel)] for curve in panel.curves]
    return _ticks(across_ends(panel), log=panel.log_x, values=np.concatenate([np.empty(0), *places]))


def up_ticks(panel: CurvePanel) -> tuple[tuple[float, str], ...]:
    """(place, text) of the ticks upwards."""
    return _ticks(up_ends(panel), log=panel.log_y)


def bar_places(panel: CurvePanel) -> dict[int, tuple[float, float]]:
    """For the index of each curve of bars: how far its bars stand from their x, and how wide they are."""
    bars = [index for index, curve in enumerate(panel.curves) if curve.style == "bars"]
    width = 0.8 * _bar_step(panel) / max(len(bars), 1)
    return {index: ((order - (len(bars) - 1) / 2) * width, width) for order, index in enumerate(bars)}


def _has_bars(panel: CurvePanel) -> bool:
    return any(curve.style == "bars" for curve in panel.curves)


def _bar_step(panel: CurvePanel) -> float:
    """Smallest distance of two places of bars, 1 where there is one place."""
    bars = [np.asarray(curve.x, dtype=np.float64) for curve in panel.curves if curve.style == "bars"]
    places = np.unique(np.concatenate([np.empty(0), *bars]))
    return float(np.diff(places).min(initial=math.inf)) if len(places) > 1 else 1.0


def _ends(values: NDArray[np.float64]) -> Ends:
    return (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)


def _log_ends(values: NDArray[np.float64]) -> Ends:
    """Ends of a logarithmic axis, a little beyond the values."""
    low, high = _ends(values[values > 0])
    if low <= 0:
        return 0.1, 10.0
    room = (high / low) ** 0.04 if high > low else 2.0
    return low / room, high * room


def _ticks(
    ends: Ends, *, log: bool, values: NDArray[np.float64] | None = None
) -> tuple[tuple[float, str], ...]:
    if log:
        places = log_ticks(ends, values)
        return tuple((place, tick_text(place)) for place in places)
    return tuple((place, tick_text(place)) for place in round_ticks(ends))


def round_ticks(ends: Ends, most: int = 6) -> tuple[float, ...]:
    """At most ``most`` round numbers between two ends, in steps of 1, 2 or 5 times a power of ten."""
    low, high = ends
    parts = most - 1
    power = 10.0 ** math.floor(math.log10((high - low) / parts))
    step = next(size * power for size in (1, 2, 5, 10, 20) if (high - low) / (size * power) <= parts)
    first, last = math.ceil(low / step - TOLERANCE), math.floor(high / step + TOLERANCE)
    return tuple(float(f"{place * step:.12g}") for place in range(first, last + 1))


def log_ticks(ends: Ends, values: NDArray[np.float64] | None = None) -> tuple[float, ...]:
    """Ticks of a logarithmic axis: few values themselves, such as powers of two, else powers of ten or 1, 2, 5.

    Args:
        ends: of the axis, above 0.
        values: what is drawn; they are the ticks where they are few and none stands close to another.
    """
    low, high = ends
    extent = math.log10(high / low)
    if values is not None:
        places = np.unique(values)
        if 1 < len(places) <= NAMED_TICKS and float(np.diff(np.log10(places)).min()) > extent / 14:
            return tuple(places.tolist())
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    if extent > 2.2:
        step = math.ceil(extent / 7)
        found = [10.0**power for power in decades if power % step == 0]
    else:
        found = [part * 10.0**power for power in decades for part in (1, 2, 5)]
    return tuple(place for place in found if low <= place <= high) or (low, high)


def tick_text(value: float) -> str:
    """A tick's number: three digits, thousands as k and M, small ones as powers of ten."""
    size = abs(value)
    if size == 0:
        return "0"
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= unit:
            shown = unit if letter != "k" else 1e3
            return f"{value / shown:.3g}{letter}".replace("-", "−")
    if size < 1e-3:
        part, power = f"{value:.2e}".split("e")
        part = part.rstrip("0").rstrip(".")
        return f"{part}e{int(power)}".replace("-", "−")
    return f"{value:.4g}".replace("-", "−")


def curves_in_words(view: CurveSheet) -> str:
    """What stands under an exported sheet of curves; the notes are in it."""
    sentences = []
    for panel in view.panels:
        axes = [
            f"{title}{' (logarithmic)' if title and log else ''}"
            for title, log in ((panel.y_title, panel.log_y), (panel.x_title, panel.log_x))
        ]
        named = ", ".join(curve.name for curve in panel.curves) or "no curves"
        heading = f"{panel.title}: " if panel.title else ""
        told = " against ".join(filter(None, axes))
        sentences.append(f"{heading}{told} of {named}." if told else f"{heading}{named}.")
        left_out = sum(
            int((np.isfinite(np.asarray(curve.y)) & ~drawn_points(curve, panel)).sum())
            for curve in panel.curves
        )
        if left_out:
            sentences.append(f"{left_out} value{'' if left_out == 1 else 's'} not above 0 left out.")
        if panel.mark is not None:
            sentences.append(f"The upright line stands at {panel.mark:.4g}.")
    if any(curve.low is not None for panel in view.panels for curve in panel.curves):
        sentences.append("Bands and whiskers are intervals.")
    return _said([*sentences, *view.notes])


# Do the parts fit? --------------------------------------------------------------------------------------------------


def check_matrix_sheet(view: MatrixSheet, function: str) -> None:
    """Raise unless the parts of a sheet of matrices belong together.

    Args:
        function: named in the message.
    Raises:
        ValueError: for no matrices, one without name, rows or columns or with more than ``MATRIX_SIDE``, another
            number of labels, a value that its scale does not have, a limit that is no number above 0, or a choice
            that there is not.
    """
    if not view.matrices:
        raise ValueError(f"{function}: matrices must be at least one but there are none; pass some.")
    for index, matrix in enumerate(view.matrices):
        _check_matrix(matrix, f"{function}: matrix {index}")
    count = len(view.matrices)
    if view.selected is not None and not 0 <= view.selected < count:
        raise ValueError(
            f"{function}: selected must be one of the {count} matrices, counted from 0, but is {view.selected}; "
            "use None for none."
        )
    if view.cell is not None and not any(has_cell(matrix, view.cell) for matrix in view.matrices):
        raise ValueError(
            f"{function}: cell must be the (row, column) of a matrix but is {view.cell}; use None for none."
        )
    if view.across < 0:
        raise ValueError(
            f"{function}: across must be at least 0 but is {view.across}; use 0 for as many as fit."
        )


def has_cell(matrix: NamedMatrix, cell: tuple[int, int]) -> bool:
    """Whether a matrix has a (row, column)."""
    rows, columns = _shape(matrix)
    return 0 <= cell[0] < rows and 0 <= cell[1] < columns


def _check_matrix(matrix: NamedMatrix, place: str) -> None:
    if not matrix.name.strip():
        raise ValueError(f"{place}: name must be some text but is {matrix.name!r}; name the matrix.")
    shape = matrix.values.shape
    if len(shape) != 2 or not all(1 <= size <= MATRIX_SIDE for size in shape):
        raise ValueError(
            f"{place}: values of {matrix.name!r} must be (rows, columns) with 1 to {MATRIX_SIDE} of each but is "
            f"{shape}; pass a part of a larger one, or pool it."
        )
    for name, labels, size in (("rows", matrix.rows, shape[0]), ("columns", matrix.columns, shape[1])):
        if len(labels) not in (0, size):
            raise ValueError(
                f"{place}: {name} of {matrix.name!r} must be {size} labels, or none, but are {len(labels)}."
            )
    if matrix.scale not in get_args(MatrixScale):
        raise ValueError(
            f"{place}: scale of {matrix.name!r} must be one of {', '.join(get_args(MatrixScale))} but is "
            f"{matrix.scale!r}."
        )
    known = _known(matrix.values)
    if matrix.scale == "weights" and known.size and known.min() < -TOLERANCE:
        raise ValueError(
            f"{place}: values of {matrix.name!r} must be at least 0 but one is {known.min():.4g}; use the scale "
            "'signed'."
        )
    if matrix.scale == "mask" and not ((known == 0) | (known == 1)).all():
        raise ValueError(
            f"{place}: values of {matrix.name!r} must be 1 where a pair may attend and else 0 but others are among "
            "them; use the scale 'weights'."
        )
    if matrix.limit is not None and not (math.isfinite(matrix.limit) and matrix.limit > 0):
        raise ValueError(
            f"{place}: limit of {matrix.name!r} must be a finite number above 0 but is {matrix.limit}; use None for "
            "the largest value."
        )


def check_curve_sheet(view: CurveSheet, function: str) -> None:
    """Raise unless the parts of a sheet of curves belong together.

    Args:
        function: named in the message.
    Raises:
        ValueError: for no panels, a curve without name or with that of another in its panel, arrays of other
            lengths, an infinite number, an interval that does not hold its value, bars on a logarithmic axis across,
            or a mark that cannot be drawn.
    """
    if not view.panels:
        raise ValueError(f"{function}: panels must be at least one but there are none; pass some.")
    for index, panel in enumerate(view.panels):
        place = f"{function}: panel {index}"
        names = [curve.name for curve in panel.curves]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ValueError(
                f"{place}: curves must have a name each but {twice[0]!r} comes twice; rename one."
            )
        for curve in panel.curves:
            _check_curve(curve, place)
        if panel.log_x and _has_bars(panel):
            raise ValueError(
                f"{place}: bars must stand on a linear axis but log_x is set; draw points instead."
            )
        if panel.mark is not None and not (math.isfinite(panel.mark) and (panel.mark > 0 or not panel.log_x)):
            raise ValueError(
                f"{place}: mark must be a finite number{' above 0' if panel.log_x else ''} but is {panel.mark}; "
                "use None for none."
            )


def _check_curve(curve: Curve, place: str) -> None:
    if not curve.name.strip():
        raise ValueError(f"{place}: name of a curve must be some text but is {curve.name!r}; name the curve.")
    count = curve.x.shape
    if len(count) != 1:
        raise ValueError(f"{place}: x of {curve.name!r} must be (n,) but is {count}.")
    for name, values in (("y", curve.y), ("low", curve.low), ("high", curve.high)):
        if values is not None and values.shape != count:
            raise ValueError(
                f"{place}: {name} of {curve.name!r} must be {count}, as x is, but is {values.shape}."
            )
    if not np.isfinite(curve.x).all() or np.isinf(curve.y).any():
        raise ValueError(
            f"{place}: x and y of {curve.name!r} must be finite but are not; use NaN in y where there is no value."
        )
    if len(curve.labels) not in (0, count[0]):
        raise ValueError(
            f"{place}: labels of {curve.name!r} must be {count[0]}, one a point, or none, but are "
            f"{len(curve.labels)}."
        )
    if curve.style not in get_args(CurveStyle):
        raise ValueError(
            f"{place}: style of {curve.name!r} must be one of {', '.join(get_args(CurveStyle))} but is "
            f"{curve.style!r}."
        )
    if (curve.low is None) != (curve.high is None):
        raise ValueError(f"{place}: {curve.name!r} must have low and high, or neither, but has one of them.")
    if curve.low is not None and curve.high is not None:
        with np.errstate(invalid="ignore"):
            outside = (curve.low > curve.y) | (curve.high < curve.y)
        if outside.any():
            raise ValueError(
                f"{place}: low and high of {curve.name!r} must hold y but do not at point "
                f"{int(np.flatnonzero(outside)[0])}; use NaN where there is no interval."
            )


# Helpers ------------------------------------------------------------------------------------------------------------


def texts_of_sheet(view: MatrixSheet) -> tuple[str, ...]:
    """Every text of a sheet of matrices besides its title and notes."""
    return tuple(_matrix_texts(view.matrices))


def _matrix_texts(matrices: Sequence[NamedMatrix]) -> Iterator[str]:
    for matrix in matrices:
        yield from (matrix.name, matrix.note, *matrix.rows, *matrix.columns, *matrix.axes)


def texts_of_curves(view: CurveSheet) -> tuple[str, ...]:
    """Every text of a sheet of curves besides its title and notes."""
    return tuple(
        text
        for panel in view.panels
        for text in (
            *(panel.title, panel.x_title, panel.y_title),
            *(text for curve in panel.curves for text in (curve.name, *curve.labels)),
        )
    )


def _known(values: NDArray[np.floating]) -> NDArray[np.float64]:
    """The finite values, flat."""
    flat = np.asarray(values, dtype=np.float64).ravel()
    return flat[np.isfinite(flat)]


def _said(sentences: list[str]) -> str:
    """Sentences as one text, each with its stop."""
    said = (sentence if sentence.endswith((".", "!", "?")) else f"{sentence}." for sentence in sentences)
    return " ".join(said)
