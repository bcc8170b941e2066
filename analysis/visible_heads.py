"""How a grid of heads is drawn and told: colours of classes, short marks, and words, for the screen and for files.

NumPy alone.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from analysis.figure_data import HeadGrid

CLASS_COLOURS: tuple[str, ...] = (
    "#1961d4", "#e2a520", "#9c2a47", "#04cfa2", "#7b2da8", "#eb7a52",
    "#1f6570", "#b0a5f2", "#915c08", "#68abb6", "#73599e", "#c277f5",
)  # fmt: skip
"""Colours of classes, dark and light in turn for the first ten. They and the grey are at least 0.07 apart in OKLab
(just seen: 0.02), also for protanopes, deuteranopes and tritanopes (Machado et al. 2009)."""

MIXED_COLOUR = "#8a8a8a"
"""Of the last class, heterogeneous: grey, since it says nothing."""

PALE = 0.22
"""Opacity of the colours of a head whose class is not shown."""

TOLERANCE = 1e-5
"""How far a share may lie beyond 0 or 1 from rounding alone."""

_SHORT: Mapping[str, str] = {
    "previous": "prev",
    "separator": "SEP",
    "register": "reg",
    "first token": "1st",
    "column": "col",
    "heterogeneous": "het",
    "punctuation": "punct",
}

_KINDS: Mapping[str, str] = {
    "encoder": "self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross-attention",
}


def class_colour(index: int, classes: int) -> str:
    """``#rrggbb`` of a class among ``classes``, of which the last is grey."""
    return MIXED_COLOUR if index == classes - 1 else CLASS_COLOURS[index % len(CLASS_COLOURS)]


def grid_colour(view: HeadGrid, index: int) -> str:
    """``#rrggbb`` of a class of a grid."""
    last = len(view.classes) - 1
    if index == last or not view.hues:
        return class_colour(index, last + 1)
    return CLASS_COLOURS[view.hues[index] % len(CLASS_COLOURS)]


def head_mark(title: str, variant: str = "") -> str:
    """Up to five characters for a class or, where there is one, its variant, so that colour never tells alone.

    Args:
        title: of the class, such as "Positional" ("posi").
        variant: such as "previous" ("prev"), "+3" or "[SEP]" ("SEP").
    """
    name = " ".join((variant or title).split())
    if name.lower() in _SHORT:
        return _SHORT[name.lower()]
    word = re.sub(r"[\[\]<>()|]", "", name).split(" ")[0]
    word = word if len(word) <= 5 else word[:4]
    return word if word.isupper() or not word.isalpha() else word.lower()


def grid_marks(view: HeadGrid) -> list[list[str]]:
    """L rows of H marks."""
    return [
        [head_mark(view.classes[index], variant) for index, variant in zip(classes, variants, strict=True)]
        for classes, variants in zip(view.best.tolist(), view.variants, strict=True)
    ]


def drawn_heads(view: HeadGrid) -> NDArray[np.bool_]:
    """(L, H): which heads have full colour; the class of the others is not shown."""
    shown = range(len(view.classes)) if view.shown is None else view.shown
    return np.isin(view.best, np.array(list(shown), dtype=np.int64))


def class_counts(view: HeadGrid) -> list[int]:
    """How many heads each class has."""
    counts: list[int] = np.bincount(view.best.ravel(), minlength=len(view.classes)).tolist()
    return counts


def grid_limits(view: HeadGrid) -> NDArray[np.float64]:
    """(L, H) weight at which the colours of each head's map end; 1 where there is nothing."""
    layers, heads = view.best.shape
    if view.thumbnails is None:
        return np.ones((layers, heads))
    highest = np.nan_to_num(view.thumbnails.reshape(layers, heads, -1)).max(axis=-1, initial=0.0)
    return np.where(highest > 0, highest, 1.0).astype(np.float64)


def grid_in_words(view: HeadGrid) -> str:
    """What stands under an exported grid; the record's notes are in it."""
    layers, heads = view.best.shape
    counted = sorted(zip(class_counts(view), view.classes, strict=True), key=lambda entry: -entry[0])
    named = ", ".join(f"{count} {title}" for count, title in counted if count)
    sentences = [
        f"{layers} layers × {heads} heads of {_KINDS[view.kind]}: {named}.",
        "Colour and mark tell the class, the bar how well it fits (score, 0 to 1).",
    ]
    if view.thumbnails is not None:
        sentences.append("Each small map has colours up to its own maximum.")
    if view.shown is not None:
        kept = ", ".join(view.classes[index] for index in view.shown) or "none"
        sentences.append(f"Classes shown: {kept}; others are pale.")
    if view.marked is not None:
        sentences.append(f"Marked: layer {view.marked[0]}, head {view.marked[1]}.")
    return " ".join(
        [*sentences, *(note if note.endswith((".", "!", "?")) else f"{note}." for note in view.notes)]
    )


def check_head_grid(view: HeadGrid, function: str) -> None:
    """Raise unless the parts of a grid belong together.

    Args:
        function: named in the message.
    Raises:
        ValueError: for arrays of other shapes, a class that there is not, a share outside 0 to 1, two statistics of
            one key, or an interval with one end.
    """
    shape, classes = view.best.shape, len(view.classes)
    if len(shape) != 2 or 0 in shape:
        raise ValueError(
            f"{function}: best must be (layers, heads) with at least one of each but is {shape}."
        )
    if not 1 <= classes <= len(CLASS_COLOURS) + 1:
        raise ValueError(
            f"{function}: classes must be 1 to {len(CLASS_COLOURS) + 1} titles but are {classes}; "
            "more cannot be told apart by colour, put some together."
        )
    if not np.issubdtype(view.best.dtype, np.integer) or view.best.min() < 0 or view.best.max() >= classes:
        raise ValueError(
            f"{function}: best must hold whole numbers from 0 to {classes - 1}, indices of classes, but is "
            f"{view.best.dtype} from {view.best.min()} to {view.best.max()}."
        )
    rows = [len(row) for row in view.variants]
    if rows != [shape[1]] * shape[0]:
        raise ValueError(
            f"{function}: variants must be {shape[0]} rows of {shape[1]} names but have {rows} names; "
            'give "" where a head has none.'
        )
    for name in ("scores", "margins", "stable"):
        _check_shares(getattr(view, name), name, shape, function)
    if view.thumbnails is not None and (view.thumbnails.ndim != 4 or view.thumbnails.shape[:2] != shape):
        raise ValueError(
            f"{function}: thumbnails must be ({shape[0]}, {shape[1]}, rows, columns) but is {view.thumbnails.shape}."
        )
    _check_choices(view, function)
    _check_numbers(view, function)


def _check_shares(
    values: NDArray[np.floating] | None, name: str, shape: tuple[int, ...], function: str
) -> None:
    if values is None:
        return
    if values.shape != shape:
        raise ValueError(f"{function}: {name} must be {shape} but is {values.shape}; pass one value a head.")
    known = values[~np.isnan(values)]
    if known.size and (known.min() < -TOLERANCE or known.max() > 1 + TOLERANCE):
        raise ValueError(
            f"{function}: {name} must lie between 0 and 1 but run from {known.min():.4g} to {known.max():.4g}."
        )


def _check_choices(view: HeadGrid, function: str) -> None:
    (layers, heads), classes = view.best.shape, len(view.classes)
    if view.shown is not None and not all(0 <= index < classes for index in view.shown):
        raise ValueError(
            f"{function}: shown must be indices of {classes} classes but is {view.shown}; use None for all."
        )
    if view.marked is not None and not (0 <= view.marked[0] < layers and 0 <= view.marked[1] < heads):
        raise ValueError(
            f"{function}: marked must be a (layer, head) of {layers} × {heads} but is {view.marked}."
        )


def _check_numbers(view: HeadGrid, function: str) -> None:
    shape = view.best.shape
    keys = [number.key for number in view.numbers]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise ValueError(
            f"{function}: numbers must have a key each but {twice[0]!r} comes twice; rename one."
        )
    for number in view.numbers:
        if (number.low is None) != (number.high is None):
            raise ValueError(
                f"{function}: the interval of {number.key!r} must have low and high but has one of them; "
                "give both or none."
            )
        for name, values in (("values", number.values), ("low", number.low), ("high", number.high)):
            if values is not None and values.shape != shape:
                raise ValueError(
                    f"{function}: {name} of {number.key!r} must be {shape} but is {values.shape}; "
                    "pass one value a head."
                )
