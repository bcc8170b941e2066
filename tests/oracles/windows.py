"""Swin's windows once more, in loops over the grid: where each window's places come from, and its map written out."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def windows_of(grid: tuple[int, int], window: int, shift: int) -> list[list[tuple[int, int] | None]]:
    """The (row, column) of the grid in each place of each window; None for padding.

    The grid is padded below and on the right to whole windows and rolled up and to the left by ``shift``.
    """
    rows, columns = grid
    down, across = -(-rows // window), -(-columns // window)
    found = []
    for top in range(down):
        for left in range(across):
            places: list[tuple[int, int] | None] = []
            for row in range(top * window, (top + 1) * window):
                for column in range(left * window, (left + 1) * window):
                    source = (row + shift) % (down * window), (column + shift) % (across * window)
                    places.append(source if source[0] < rows and source[1] < columns else None)
            found.append(places)
    return found


def over_the_grid(
    weights: NDArray[np.floating], grid: tuple[int, int], window: int, shift: int
) -> NDArray[np.float64]:
    """(pictures · W, H, n, n) weights inside windows as (pictures, H, N, N) over the grid, float64."""
    windows = windows_of(grid, window, shift)
    pictures, heads, size = len(weights) // len(windows), weights.shape[1], grid[0] * grid[1]
    whole = np.zeros((pictures, heads, size, size))
    for picture in range(pictures):
        for index, places in enumerate(windows):
            for i, query in enumerate(places):
                for j, key in enumerate(places):
                    if query is not None and key is not None:
                        at = query[0] * grid[1] + query[1], key[0] * grid[1] + key[1]
                        whole[picture, :, at[0], at[1]] = weights[picture * len(windows) + index, :, i, j]
    return whole
