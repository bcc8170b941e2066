"""The grid of heads packed for the browser (the format is that of ``dashboard.figures``)."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.figure_data import Floats, HeadGrid, weight_levels
from analysis.visible import visible_text
from analysis.visible_heads import (
    PALE,
    check_head_grid,
    class_counts,
    grid_colour,
    grid_limits,
    grid_marks,
    head_mark,
)
from dashboard.colour_maps import colour_table
from dashboard.figures import THUMBNAIL_CELLS, pack

TOLD_NUMBERS = 14
"""Most statistics that a tooltip tells; the rest is in files."""


def _told_unit(unit: str) -> str:
    """What stands behind a number in a tooltip: nothing for what has no dimension."""
    return "" if unit in ("share", "correlation") else visible_text(unit)


def head_grid_payload(view: HeadGrid) -> bytes:
    """What the ``head_grid`` component draws.

    Of the statistics the first ``TOLD_NUMBERS`` are sent, in their order; the header tells how many there are.

    Raises:
        ValueError: if parts of the grid do not belong together (``analysis.visible_heads.check_head_grid``), or the
            thumbnails are too large.
    """
    check_head_grid(view, "head_grid_payload")
    if view.thumbnails is not None and max(view.thumbnails.shape[2:]) > THUMBNAIL_CELLS:
        rows, columns = view.thumbnails.shape[2:]
        raise ValueError(
            f"head_grid_payload: thumbnails must have at most {THUMBNAIL_CELLS} cells a side but are "
            f"{rows} × {columns}; pool them first."
        )
    layers, heads = view.best.shape
    told = view.numbers[:TOLD_NUMBERS]
    header = {
        "kind": "head_grid",
        "title": visible_text(view.title),
        "attention": view.kind,
        "layers": layers,
        "heads": heads,
        "classes": [
            {
                "title": visible_text(title),
                "mark": visible_text(head_mark(title)),
                "colour": grid_colour(view, index),
                "count": count,
            }
            for index, (title, count) in enumerate(zip(view.classes, class_counts(view), strict=True))
        ],
        "pale": PALE,
        "marks": [[visible_text(mark) for mark in row] for row in grid_marks(view)],
        "variants": [[visible_text(variant) for variant in row] for row in view.variants],
        "numbers": [{"title": visible_text(each.title), "unit": _told_unit(each.unit)} for each in told],
        "more": len(view.numbers) - len(told),
        "notes": [visible_text(note) for note in view.notes],
        "input": _digest(view),
        "state": {
            "shown": None if view.shown is None else sorted({int(index) for index in view.shown}),
            "marked": None if view.marked is None else [int(index) for index in view.marked],
        },
    }
    arrays: dict[str, NDArray[Any]] = {
        "best": view.best.astype(np.uint8),
        "scores": np.asarray(view.scores, dtype=np.float32),
        "margins": np.asarray(view.margins, dtype=np.float32),
    }
    if view.stable is not None:
        arrays["stable"] = np.asarray(view.stable, dtype=np.float32)
    if view.thumbnails is not None:
        arrays["weights"] = weight_levels(np.nan_to_num(view.thumbnails))
        arrays["limits"] = grid_limits(view).astype(np.float32)
        arrays["lut"] = colour_table("viridis")
    if told:
        arrays["values"] = np.stack([each.values for each in told]).astype(np.float32)  # (n, L, H)
        arrays["low"] = _ends([each.low for each in told], view.best.shape)
        arrays["high"] = _ends([each.high for each in told], view.best.shape)
    return pack(header, arrays)


def _ends(ends: list[Floats | None], shape: tuple[int, ...]) -> NDArray[np.float32]:
    """(n, L, H) ends of intervals; NaN where a statistic has none."""
    nothing = np.full(shape, np.nan)
    return np.stack([nothing if end is None else end for end in ends]).astype(np.float32)


def _digest(view: HeadGrid) -> str:
    """Short fingerprint of what a class index and a head mean here: an answer about another grid is not taken."""
    meaning = repr((view.kind, view.best.shape, view.classes))
    return hashlib.blake2b(meaning.encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()
