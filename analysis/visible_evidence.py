"""How evidence is drawn and told: one rule for the screen and for files.

Signed scores have a zero-centred scale, blue against and red for the target; scores without a sign have a violet one,
so that nobody reads them as evidence for it. Both are clear at 0: the colour's strength is the score's share of the
largest. Blue, red and violet of these lightnesses are told apart with every common colour blindness. NumPy alone.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from analysis.figure_data import EvidenceMaps, EvidencePanel, EvidenceWords, Floats
from analysis.visible import part_in_words

AGAINST, FOR, UNSIGNED = (24, 92, 181), (205, 48, 24), (112, 48, 160)
"""Red, green and blue of the strongest colours."""

PALE = 0.5
"""How far a picture below evidence is faded to white."""


@functools.cache
def evidence_colours(signed: bool) -> NDArray[np.uint8]:
    """(256, 4) red, green, blue and opacity, from the lowest score that can be shown to the highest (read-only)."""
    shares = np.linspace(-1.0, 1.0, 256) if signed else np.linspace(0.0, 1.0, 256)
    table = np.empty((256, 4), dtype=np.uint8)
    if signed:
        table[:, :3] = np.where(shares[:, None] < 0, AGAINST, FOR)
    else:
        table[:, :3] = UNSIGNED
    table[:, 3] = np.rint(255 * np.abs(shares) ** 0.8)
    table.flags.writeable = False
    return table


def drawn_scores(scores: Floats, panel: EvidencePanel, *, positive: bool) -> NDArray[np.float64]:
    """Scores as shares of the panel's limit, -1 to 1; evidence against left out where only the positive is drawn."""
    shares = np.asarray(scores, dtype=np.float64) / panel.limit
    clipped: NDArray[np.float64] = np.clip(shares, 0.0 if positive else -1.0, 1.0)
    return clipped


def score_colours(shares: Floats, panel: EvidencePanel) -> NDArray[np.float64]:
    """(..., 4) red, green, blue (0 to 255) and opacity (0 to 1) of shares, as ``drawn_scores`` gives them."""
    places = 255 * (shares + 1) / 2 if panel.signed else 255 * shares
    levels = np.rint(np.clip(places, 0, 255)).astype(np.intp)
    found: NDArray[np.float64] = evidence_colours(panel.signed)[levels].astype(np.float64)
    found[..., 3] /= 255
    return found


def pale_grey(picture: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The picture's brightness (Rec. 601), faded to white by ``PALE``, as red, green and blue."""
    grey = picture.astype(np.float32) @ np.array([0.299, 0.587, 0.114], dtype=np.float32)
    faded = np.rint(255 * PALE + (1 - PALE) * grey).astype(np.uint8)
    return np.repeat(faded[..., None], 3, axis=-1)


def evidence_limit(scores: Sequence[Floats]) -> float:
    """Where the colours of one method end: the largest |score| of its answers, 1 where all are 0."""
    largest = max((float(np.abs(part).max(initial=0.0)) for part in scores), default=0.0)
    return largest if largest > 0 and np.isfinite(largest) else 1.0


def maps_in_words(view: EvidenceMaps) -> str:
    """What stands under exported maps."""
    rows, columns = view.maps.shape[1:]
    drawing = "interpolated between patches" if view.smooth else "one square a patch"
    words = f"{rows} × {columns} patches, {drawing}, opacity {view.opacity:.0%}"
    if view.marked is not None:
        words += f"; marked: row {view.marked[0]}, column {view.marked[1]}"
    return f"{words}. {_scale_in_words(view)}"


def texts_in_words(view: EvidenceWords) -> str:
    """What stands under exported texts."""
    words = f"{len(view.tokens)} {view.unit}{part_in_words(view.start, len(view.tokens))}"
    if view.direction == "rtl":
        words += ", right-to-left text in the model's order"
    return f"{words}. {_scale_in_words(view)}"


def _scale_in_words(view: EvidenceMaps | EvidenceWords) -> str:
    words = "Red is for the target, blue against it; violet scores have no sign."
    if view.positive:
        words = "Red is for the target; evidence against it is not drawn. Violet scores have no sign."
    return f"{words} Colours end at the largest |score| of each method."
