"""What a contrast of attention distributions must hold, and how its positions and outputs are named and drawn.

One rule for the screen and for files. NumPy alone.
"""

from __future__ import annotations

import math

import numpy as np

from analysis.figure_data import HEAD_COLOURS, AttentionContrast, Floats

OBSERVED_COLOUR, CANDIDATE_COLOUR = HEAD_COLOURS[:2]
"""Blue for the observed attention and what the model says with it, orange for the candidate beside it."""

BY_HAND = "by hand"
"""Name of the candidate that a reader made by dragging weights."""

ROW_TOLERANCE = 1e-3
"""How far the sum of a distribution may be from 1: weights of a model in half precision."""

_TOLERANCE = 1e-5
"""How far a number may lie beyond its limits from rounding alone."""


def prefix_names(count: int) -> tuple[str, ...]:
    """Names of the positions before the first patch of a picture."""
    return tuple("CLS" if index == 0 else f"prefix {index}" for index in range(count))


def are_probabilities(view: AttentionContrast) -> bool:
    """Whether outputs lie between 0 and 1 and can be drawn as bars of one length."""
    low, high = float(view.outputs.min()), float(view.outputs.max())
    bounded = view.change_bound is not None and view.change_bound <= 1  # a cosine distance goes to 2
    return bounded and low >= 0 and high <= 1 + _TOLERANCE


def check_contrast(view: AttentionContrast, function: str) -> None:
    """Raise unless the parts of a contrast belong together.

    Args:
        function: named in the message.
    Raises:
        ValueError: for arrays of other shapes, weights that are no distributions, numbers that are not finite or lie
            where they cannot, positions that are neither tokens nor patches, or a candidate that there is not.
    """
    shape = view.weights.shape
    if len(shape) != 2 or 0 in shape:
        raise ValueError(
            f"{function}: weights must be (candidates, positions) with at least one of each but is {shape}."
        )
    _check_distributions(view.weights, function)
    _check_candidates(view, function)
    _check_limits(view, function)
    _check_positions(view, function)
    if not 0 <= view.shown < shape[0]:
        raise ValueError(
            f"{function}: shown must be one of the {shape[0]} candidates, counted from 0, but is {view.shown}."
        )
    if view.rows < 1:
        raise ValueError(f"{function}: rows must be at least 1 but is {view.rows}.")
    if view.direction not in ("ltr", "rtl"):
        raise ValueError(f"{function}: direction must be 'ltr' or 'rtl' but is {view.direction!r}.")


def _check_distributions(weights: Floats, function: str) -> None:
    if not np.isfinite(weights).all() or weights.min() < -_TOLERANCE:
        raise ValueError(
            f"{function}: weights must be finite and not negative but run from {weights.min():.4g} to "
            f"{weights.max():.4g}; pass weights after the softmax."
        )
    sums = weights.sum(axis=1, dtype=np.float64)
    wrong = int(np.abs(sums - 1).argmax())
    if abs(sums[wrong] - 1) > ROW_TOLERANCE:
        raise ValueError(
            f"{function}: every row of weights must sum to 1 but row {wrong} sums to {sums[wrong]:.4g}; "
            "leave out no position, or renormalise."
        )


def _check_candidates(view: AttentionContrast, function: str) -> None:
    count, positions = view.weights.shape
    if len(view.names) != count:
        raise ValueError(
            f"{function}: names must be {count}, one for each row of weights, but are {len(view.names)}."
        )
    classes = len(view.labels)
    if classes < 1 or view.outputs.shape != (count, classes):
        raise ValueError(
            f"{function}: outputs must be ({count}, {max(classes, 1)}), a row a candidate and a column a label, "
            f"but is {view.outputs.shape} with {classes} labels."
        )
    _check_finite(view.outputs, "outputs", function)
    for name, values in (("jsd", view.jsd), ("change", view.change)):
        if values.shape != (count,):
            raise ValueError(
                f"{function}: {name} must be ({count},) but is {values.shape}; pass one number a candidate."
            )
        _check_finite(values, name, function)
        if values.min() < -_TOLERANCE:
            raise ValueError(f"{function}: {name} must not be negative but is {values.min():.4g}.")
    if view.decoder is not None:
        if view.decoder.shape != (positions, classes):
            raise ValueError(
                f"{function}: decoder must be ({positions}, {classes}), the logits of each position, but is "
                f"{view.decoder.shape}; use None where the output is not the softmax of their weighted mean."
            )
        _check_finite(view.decoder, "decoder", function)
    if view.permuted is not None:
        _check_finite(view.permuted, "permuted", function)
        if view.permuted.ndim != 1 or not view.permuted.size or view.permuted.min() < -_TOLERANCE:
            raise ValueError(
                f"{function}: permuted must be (S,) changes of at least 0 but is {view.permuted.shape}; use None "
                "where no permutation was tried."
            )


def _check_limits(view: AttentionContrast, function: str) -> None:
    most = math.log(2) + _TOLERANCE
    if view.jsd.max() > most:
        raise ValueError(
            f"{function}: jsd must be at most ln 2 = {math.log(2):.4g} nats but is {view.jsd.max():.4g}; "
            "do not pass bits."
        )
    if not 0 <= view.jsd_bound <= most:
        raise ValueError(
            f"{function}: jsd_bound must lie between 0 and ln 2 = {math.log(2):.4g} nats but is {view.jsd_bound}."
        )
    if not (math.isfinite(view.epsilon) and view.epsilon >= 0):
        raise ValueError(f"{function}: epsilon must be a number of at least 0 but is {view.epsilon}.")
    if view.change_bound is not None and not (math.isfinite(view.change_bound) and view.change_bound > 0):
        raise ValueError(
            f"{function}: change_bound must be a number above 0 but is {view.change_bound}; use None for no end."
        )


def _check_positions(view: AttentionContrast, function: str) -> None:
    positions = view.weights.shape[1]
    if view.tokens:
        if view.grid is not None or view.picture is not None or view.prefix:
            raise ValueError(
                f"{function}: tokens must come without picture, grid and prefix; pass either text or a picture."
            )
        if len(view.tokens) != positions:
            raise ValueError(
                f"{function}: tokens must be {positions}, one a column of weights, but are {len(view.tokens)}."
            )
        return
    if view.grid is None or view.picture is None:
        raise ValueError(
            f"{function}: positions must be tokens, or patches of a picture with its grid, but there are neither."
        )
    if view.picture.dtype != np.uint8 or view.picture.ndim != 3 or view.picture.shape[2] != 3:
        raise ValueError(
            f"{function}: picture must be (height, width, 3) uint8 but is {view.picture.shape} "
            f"{view.picture.dtype}; convert it to RGB."
        )
    rows, columns = view.grid
    if min(rows, columns) < 1 or view.prefix < 0 or view.prefix + rows * columns != positions:
        raise ValueError(
            f"{function}: prefix and patches must be the {positions} columns of weights but are {view.prefix} and "
            f"{rows} × {columns}."
        )


def _check_finite(values: Floats, name: str, function: str) -> None:
    if not np.isfinite(values).all():
        raise ValueError(
            f"{function}: {name} must hold finite numbers but {int((~np.isfinite(values)).sum())} are not."
        )
