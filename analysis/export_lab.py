"""Sheets of the Lab in data files: small matrices, and panels of curves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.export_cells import csv_cell, numbers, strings, told
from analysis.figure_data import Provenance
from analysis.figure_lab import Curve, CurveSheet, MatrixSheet
from analysis.visible_lab import matrix_limit

Arrays = dict[str, NDArray[Any]]


# Matrices -----------------------------------------------------------------------------------------------------------


def sheet_rows(view: MatrixSheet, provenance: Provenance) -> Iterator[str]:
    """A row a cell; a label is empty where rows or columns have none."""
    yield "matrix,name,row,row_label,column,column_label,value"
    for index, matrix in enumerate(view.matrices):
        rows, columns = matrix.values.shape
        start = f"{index},{csv_cell(matrix.name)}"
        lines = [f"{row},{_label(matrix.rows, row)}" for row in range(rows)]
        across = [f"{column},{_label(matrix.columns, column)}" for column in range(columns)]
        texts = iter(numbers(matrix.values))
        for line in lines:
            for place in across:
                yield f"{start},{line},{place},{next(texts)}"


def _label(labels: tuple[str, ...], index: int) -> str:
    return csv_cell(labels[index]) if labels else ""


def sheet_arrays(view: MatrixSheet) -> Arrays:
    """``names``, and of matrix i ``matrix_i``, ``matrix_i_rows`` and ``matrix_i_columns``."""
    arrays = {"names": strings(matrix.name for matrix in view.matrices)}
    for index, matrix in enumerate(view.matrices):
        arrays[f"matrix_{index}"] = np.asarray(matrix.values, dtype=np.float32)
        arrays[f"matrix_{index}_rows"] = strings(matrix.rows)
        arrays[f"matrix_{index}_columns"] = strings(matrix.columns)
    return arrays


def sheet_entries(view: MatrixSheet) -> list[dict[str, Any]]:
    """Everything that is known of each matrix but its values."""
    return [
        {
            "matrix": index,
            "name": matrix.name,
            "shape": list(matrix.values.shape),
            "scale": matrix.scale,
            "limit": told(matrix_limit(matrix)),
            "axes": list(matrix.axes),
            "rows": list(matrix.rows),
            "columns": list(matrix.columns),
            "note": matrix.note,
        }
        for index, matrix in enumerate(view.matrices)
    ]


# Curves -------------------------------------------------------------------------------------------------------------


def _curves(view: CurveSheet) -> Iterator[tuple[int, int, Curve]]:
    """(panel, curve, record) of every curve."""
    for place, panel in enumerate(view.panels):
        for index, curve in enumerate(panel.curves):
            yield place, index, curve


def curve_rows(view: CurveSheet, provenance: Provenance) -> Iterator[str]:
    """A row a point; ends are empty where a curve has no interval, a label where it has none."""
    yield "panel,title,curve,x,label,y,low,high"
    for place, _, curve in _curves(view):
        start = f"{place},{csv_cell(view.panels[place].title)},{csv_cell(curve.name)}"
        ends = [[""] * len(curve.x) if part is None else numbers(part) for part in (curve.low, curve.high)]
        points = zip(numbers(curve.x), numbers(curve.y), *ends, strict=True)
        for index, (x, y, low, high) in enumerate(points):
            yield f"{start},{x},{_label(curve.labels, index)},{y},{low},{high}"


def curve_arrays(view: CurveSheet) -> Arrays:
    """``titles`` of the panels, names ``panel_i_curves``, and numbers ``panel_i_curve_j_x``, ``_y`` and so on."""
    arrays = {"titles": strings(panel.title for panel in view.panels)}
    for place, panel in enumerate(view.panels):
        arrays[f"panel_{place}_curves"] = strings(curve.name for curve in panel.curves)
    for place, index, curve in _curves(view):
        start = f"panel_{place}_curve_{index}"
        for name in ("x", "y", "low", "high"):
            values = getattr(curve, name)
            if values is not None:
                arrays[f"{start}_{name}"] = np.asarray(values, dtype=np.float32)
        if curve.labels:
            arrays[f"{start}_labels"] = strings(curve.labels)
    return arrays


def curve_entries(view: CurveSheet) -> list[dict[str, Any]]:
    """Everything that is known of each curve, numbers as the nearest float32, None for no value."""
    return [
        {
            "panel": place,
            "title": view.panels[place].title,
            "curve": curve.name,
            "style": curve.style,
            "labels": list(curve.labels),
            **{name: _told(getattr(curve, name)) for name in ("x", "y", "low", "high")},
        }
        for place, _, curve in _curves(view)
    ]


def _told(values: NDArray[Any] | None) -> list[float | None] | None:
    return None if values is None else [told(value) for value in values]
