"""A sheet of matrices packed for the browser (the format is that of ``dashboard.figures``)."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.figure_lab import MatrixSheet
from analysis.visible import short_label, visible_text
from analysis.visible_evidence import evidence_colours
from analysis.visible_lab import (
    axis_key,
    beyond_limit,
    cell_decimals,
    check_matrix_sheet,
    has_numbers,
    is_small,
    matrix_limit,
    name_parts,
    shared_scale,
)
from dashboard.colour_maps import colour_table
from dashboard.figures import pack


def matrix_sheet_payload(view: MatrixSheet) -> bytes:
    """What the ``matrix_sheet`` component draws.

    Raises:
        ValueError: if parts of the sheet do not belong together (``analysis.visible_lab.check_matrix_sheet``).
    """
    check_matrix_sheet(view, "matrix_sheet_payload")
    axes: dict[tuple[object, ...], dict[str, Any]] = {}
    places: dict[tuple[object, ...], int] = {}
    matrices = []
    for matrix in view.matrices:
        sides = []
        for side, labels in enumerate((matrix.rows, matrix.columns)):
            key = axis_key(matrix, side)
            places.setdefault(key, len(places))
            axes.setdefault(key, _axis_entry(matrix.axes[side], labels))
            sides.append(places[key])
        matrices.append(
            {
                "name": visible_text(matrix.name),
                "parts": [[text, below] for text, below in name_parts(visible_text(matrix.name))],
                "shape": [int(size) for size in matrix.values.shape],
                "axes": sides,
                "scale": matrix.scale,
                "limit": matrix_limit(matrix),
                "over": beyond_limit(matrix) > 0,
                "note": visible_text(matrix.note),
                "decimals": cell_decimals(matrix),
                "small": is_small(matrix),
                "numbers": has_numbers(view, matrix),
            }
        )
    header: dict[str, Any] = {
        "kind": "matrix_sheet",
        "title": visible_text(view.title),
        "notes": [visible_text(note) for note in view.notes],
        "across": int(view.across),
        "axes": list(axes.values()),
        "matrices": matrices,
        "shared": shared_scale(view) is not None,
        "input": sheet_digest(view),
        "state": {
            "selected": None if view.selected is None else int(view.selected),
            "cell": None if view.cell is None else [int(index) for index in view.cell],
        },
    }
    values = [np.asarray(matrix.values, dtype=np.float32).ravel() for matrix in view.matrices]
    arrays: dict[str, NDArray[Any]] = {
        "values": np.concatenate(values),
        "weights": colour_table("viridis"),
        "signed": evidence_colours(True),
    }
    return pack(header, arrays)


def _axis_entry(name: str, labels: tuple[str, ...]) -> dict[str, Any]:
    """Labels of an axis, and the short ones where some had to be cut."""
    texts, shorts = [visible_text(label) for label in labels], [short_label(label) for label in labels]
    entry: dict[str, Any] = {"name": visible_text(name), "labels": texts}
    if shorts != texts:
        entry["shorts"] = shorts
    return entry


def sheet_digest(view: MatrixSheet) -> str:
    """Short fingerprint of what a cell means here: a choice of a cell of other matrices is not taken."""
    meaning = [
        (matrix.name, matrix.values.shape, axis_key(matrix, 0), axis_key(matrix, 1))
        for matrix in view.matrices
    ]
    text = repr(meaning).encode("utf-8", "backslashreplace")
    return hashlib.blake2b(text, digest_size=8).hexdigest()
