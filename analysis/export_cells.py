"""Texts and numbers as cells of a CSV file and entries of an NPZ or JSON file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.figure_data import TokenLabel
from analysis.visible import visible_text

# Spreadsheets run a cell that begins like this as a formula; the last four are their full-width twins.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "'", "＝", "＋", "－", "＠")


def csv_cell(text: str) -> str:
    """Text as a quoted CSV cell that no spreadsheet runs.

    A cell of two or more characters that begins like a formula, or with an apostrophe, gets one apostrophe before
    it: taking one leading apostrophe away restores every such cell.
    """
    text = visible_text(text)
    if len(text) > 1 and text.startswith(_FORMULA_STARTS):
        text = "'" + text
    return '"' + text.replace('"', '""') + '"'


def cells(labels: Sequence[TokenLabel]) -> list[str]:
    return [csv_cell(label.text) for label in labels]


def numbers(values: NDArray[Any]) -> list[str]:
    """Shortest decimal text of each float32, which reads back to the same float32."""
    texts: list[str] = np.asarray(values, dtype=np.float32).ravel().astype(np.str_).tolist()
    return texts


def told(value: Any) -> float | None:
    """The shortest number that reads back to the same float32; None where there is none."""
    exact = np.float32(value)
    return float(str(exact)) if np.isfinite(exact) else None


def column_name(name: str) -> str:
    """A name as it is where it is a plain word, else as a cell."""
    return name if re.fullmatch(r"\w+", name) else csv_cell(name)


def strings(texts: Iterable[str]) -> NDArray[np.str_]:
    """Texts as a NumPy array, which cannot hold a lone surrogate and drops trailing NULs (both made visible)."""
    return np.array([visible_text(text) for text in texts], dtype=np.str_)
