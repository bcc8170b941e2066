"""Arrays of weights as arrays of pixels: the raster parts of an exported figure. NumPy alone."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from analysis.figure_data import ModelView
from analysis.visible import thumbnail_limits

Pixels = NDArray[np.uint8]

WITHOUT_VALUE = 205
"""Grey of a cell that holds no number."""


def coloured(
    values: NDArray[Any],
    limits: tuple[float, float],
    lookup: Pixels,
    *,
    scale: Literal["linear", "sqrt"] = "linear",
) -> Pixels:
    """Values as colours: (..., 3) from a 256-step colour map, clipped to the limits, grey where there is no number.

    Args:
        values: any shape.
        limits: values of the first and the last colour.
        lookup: (256, 3) colours.
        scale: colour in proportion to the place between the limits, or to its square root.
    """
    low, high = limits
    span = high - low if high > low else 1.0
    values = np.asarray(values, dtype=np.float32)
    known = ~np.isnan(values)
    shares = np.clip((np.where(known, values, low) - low) / span, 0.0, 1.0)
    steps = np.rint(255.0 * (np.sqrt(shares) if scale == "sqrt" else shares))
    pixels = lookup[steps.astype(np.uint8)]
    pixels[~known] = WITHOUT_VALUE
    return pixels


def enlarged(pixels: Pixels, side: int) -> Pixels:
    """Every pixel repeated to a square, so that the longer side has about ``side`` pixels and no viewer blurs it."""
    times = max(1, side // max(pixels.shape[:2]))
    return np.repeat(np.repeat(pixels, times, axis=0), times, axis=1)


def mosaic(view: ModelView, lookup: Pixels, *, gap: int, times: int = 1) -> Pixels:
    """All thumbnails of a model view in one picture: layers down, heads across, ``gap`` white pixels between.

    Cells are squares of ``times`` pixels, and so is a unit of the gap; a thumbnail of fewer cells than the largest
    has squares as large as fit into the same place.
    """
    layers, heads = view.thumbnails.shape[:2]
    rows, columns = (length * times for length in view.thumbnails.shape[2:])
    gap *= times
    highest = thumbnail_limits(view)
    canvas = np.full((layers * (rows + gap) - gap, heads * (columns + gap) - gap, 3), 255, dtype=np.uint8)
    for layer in range(layers):
        for head in range(heads):
            cells = view.thumbnail(layer, head)
            if cells is None:
                continue
            top, left = layer * (rows + gap), head * (columns + gap)
            tile = coloured(cells, (0.0, float(highest[layer, head])), lookup)
            place = fitting(cells.shape, (rows, columns))
            tile = resized(tile.astype(np.float32), place, smooth=False).astype(np.uint8)
            top, left = top + (rows - place[0]) // 2, left + (columns - place[1]) // 2
            canvas[top : top + place[0], left : left + place[1]] = tile
    return canvas


def fitting(shape: tuple[int, ...], box: tuple[int, int]) -> tuple[int, int]:
    """The largest (rows, columns) of square cells that stay inside a box, in its pixels."""
    side = min(box[0] / shape[0], box[1] / shape[1])
    return max(1, round(shape[0] * side)), max(1, round(shape[1] * side))


def overlay(
    picture: Pixels,
    patches: NDArray[Any],
    limits: tuple[float, float],
    lookup: Pixels,
    *,
    opacity: float,
    smooth: bool,
    side: int,
) -> Pixels:
    """A map of patches laid over its picture, at the picture's aspect ratio.

    Args:
        picture: (height, width, 3).
        patches: (rows, columns) values of one panel.
        opacity: share of the map in the mixture.
        smooth: interpolate linearly between patch centres instead of filling squares.
        side: length in pixels of the longer side of the result.
    """
    height, width = picture.shape[:2]
    scale = side / max(height, width)
    size = max(1, round(height * scale)), max(1, round(width * scale))
    values = resized(np.asarray(patches, dtype=np.float32), size, smooth=smooth)
    ground = resized(picture.astype(np.float32), size, smooth=True)
    mixed = (1.0 - opacity) * ground + opacity * coloured(values, limits, lookup)
    pixels: Pixels = np.rint(np.clip(mixed, 0, 255)).astype(np.uint8)
    return pixels


def resized(values: NDArray[np.float32], size: tuple[int, int], *, smooth: bool) -> NDArray[np.float32]:
    """(rows, columns, ...) brought to ``size``: nearest cell, or linear between cell centres (edges held)."""
    for axis, length in enumerate(size):
        cells = values.shape[axis]
        centres = (np.arange(length) + 0.5) * cells / length  # in units of cells
        if not smooth:
            values = np.take(values, np.minimum(centres.astype(np.intp), cells - 1), axis=axis)
            continue
        position = np.clip(centres - 0.5, 0, cells - 1)
        below = position.astype(np.intp)
        share = (position - below).astype(np.float32)
        share = share.reshape([-1 if other == axis else 1 for other in range(values.ndim)])
        above = np.minimum(below + 1, cells - 1)
        values = np.take(values, below, axis=axis) * (1 - share) + np.take(values, above, axis=axis) * share
    return values
