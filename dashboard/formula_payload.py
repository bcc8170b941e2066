"""The formula explorer's numbers packed for the browser (the format is that of ``dashboard.figures``)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from analysis.visible import short_label, visible_text
from analysis.visible_evidence import evidence_colours
from analysis.visible_lab import beyond_limit, cell_decimals, matrix_limit
from dashboard.colour_maps import colour_table
from dashboard.figures import pack

if TYPE_CHECKING:
    from analysis.lab.formula import FormulaNumbers, Part


def formula_payload(
    numbers: FormulaNumbers, *, part: Part, query: int, key: int, dim: int, said: Sequence[str] = ()
) -> bytes:
    """What the ``formula`` component draws.

    Args:
        part: of the formula that is explained.
        query, key, dim: the chosen cell of each matrix (``analysis.lab.formula.cell_of``).
        said: sentences below the matrices.
    """
    from analysis.lab.formula import SHEET_ORDER, cell_of, formula_sheet, number_text, part_in_words

    sheet = formula_sheet(numbers, part=part, query=query, key=key, dim=dim)
    words = part_in_words(numbers, part, query=query, key=key, dim=dim)
    matrices = []
    for name, matrix in zip(SHEET_ORDER, sheet.matrices, strict=True):
        row, column = cell_of(numbers, name, query=query, key=key, dim=dim)
        matrices.append(
            {
                "part": name,
                "name": visible_text(matrix.name),
                "shape": [int(size) for size in matrix.values.shape],
                "axes": list(matrix.axes),
                "scale": matrix.scale,
                "limit": matrix_limit(matrix),
                "over": beyond_limit(matrix) > 0,
                "decimals": cell_decimals(matrix),
                "note": visible_text(matrix.note),
                "cell": [column, row] if name == "key" else [row, column],  # drawn transposed
            }
        )
    header: dict[str, Any] = {
        "kind": "formula",
        "title": visible_text(sheet.title),
        "tokens": [visible_text(token) for token in numbers.tokens],
        "shorts": [short_label(token, 12) for token in numbers.tokens],
        "matrices": matrices,
        "formula": {
            "factor": "" if numbers.factor == 1 else number_text(numbers.factor),
            "temperature": "" if numbers.temperature == 1 else number_text(numbers.temperature),
            "causal": numbers.causal,
        },
        "words": {
            "symbol": words.symbol,
            "title": words.title,
            "about": words.about,
            "shape": words.shape,
            "axes": words.axes,
            "cell": words.cell,
            "numbers": [visible_text(sentence) for sentence in words.numbers],
        },
        "said": [visible_text(sentence) for sentence in said],
        "input": _digest(numbers),
        "state": {"part": part, "query": min(query, len(numbers.tokens) - 1)},
    }
    values = [np.asarray(matrix.values, dtype=np.float32).ravel() for matrix in sheet.matrices]
    arrays: dict[str, NDArray[Any]] = {
        "values": np.concatenate(values),
        "weights": colour_table("viridis"),
        "signed": evidence_colours(True),
    }
    return pack(header, arrays)


def _digest(numbers: FormulaNumbers) -> str:
    """Short fingerprint of what a row and a column mean here: a choice about other tokens is not taken."""
    meaning = repr((numbers.tokens, numbers.query.shape, numbers.value.shape))
    return hashlib.blake2b(meaning.encode("utf-8", "backslashreplace"), digest_size=8).hexdigest()
