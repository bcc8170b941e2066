"""How numbers grow with the length of a sequence: the exponent of a power law, and how it is told. NumPy alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

FITTED_FROM = 512
"""Slopes are fitted to sizes from here on: below it the time is mostly that of calling operators."""


def growth(sizes: Sequence[float], numbers: Sequence[float], *, start: int = FITTED_FROM) -> float:
    """Slope of log(number) against log(n) by least squares over the sizes from ``start`` on: 1 is n, 2 is n².

    Returns:
        NaN where fewer than two such sizes have a number above 0.
    """
    points = [(math.log(n), math.log(y)) for n, y in zip(sizes, numbers, strict=True) if n >= start and y > 0]
    if len({x for x, _ in points}) < 2:
        return math.nan
    x, y = np.array(points).T
    return float(np.polyfit(x, y, 1)[0])


def power_in_words(slope: float) -> str:
    """ "n^1.98", or "–" where nothing was fitted."""
    return "–" if math.isnan(slope) else f"n^{slope:.2f}".replace("-", "−")
