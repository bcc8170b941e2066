"""softmax(QKᵀ/√d_k)V with every number of every step, and each of these steps in words.

Vaswani et al. 2017, section 3.2.1. All numbers come from ``attn_core`` in float64; what is written here is only how
they are named, told and laid out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from analysis.figure_lab import MatrixScale, MatrixSheet, NamedMatrix
from analysis.lab.inputs import LabVectors
from attn_core.functional import attention
from attn_core.masks import MaskRule
from attn_core.scores import scaled_dot_scores

Part = Literal["query", "key", "value", "scores", "root", "softmax", "output"]
PARTS: tuple[Part, ...] = get_args(Part)
"""Of the formula, in the order of its matrices; "root" is the scaled scores, "softmax" the weights."""

MOST_TERMS = 8
"""Of a sum that is written out."""

Matrix = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class FormulaNumbers:
    """Every matrix of the formula for one head, float64.

    Attributes:
        query, key: (N, D); ``value``: (N, E).
        scores: (N, N) QKᵀ, before scale and mask.
        scaled: (N, N) QKᵀ · factor / (√D · temperature); −∞ where a pair may not attend.
        weights: (N, N) its softmax.
        output: (N, E) weights · V.
        factor, temperature, causal: as they were set.
        tokens: N labels.
        source: where query, key and value come from.
        notes: what a reader must know.
    """

    query: Matrix
    key: Matrix
    value: Matrix
    scores: Matrix
    scaled: Matrix
    weights: Matrix
    output: Matrix
    factor: float
    temperature: float
    causal: bool
    tokens: tuple[str, ...]
    source: str
    notes: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """d_k."""
        return int(self.query.shape[1])

    @property
    def scale(self) -> float:
        """What QKᵀ is multiplied with."""
        return _scale(self.width, self.factor, self.temperature)

    def matrix(self, part: Part) -> Matrix:
        """The matrix of a part; that of the key is K, not Kᵀ."""
        found: Matrix = getattr(self, {"root": "scaled", "softmax": "weights"}.get(part, part))
        return found


def _scale(width: int, factor: float, temperature: float) -> float:
    return factor / (math.sqrt(width) * temperature)


def formula_numbers(
    vectors: LabVectors,
    *,
    width: int | None = None,
    factor: float = 1.0,
    temperature: float = 1.0,
    causal: bool = False,
) -> FormulaNumbers:
    """Run the formula on one head, step by step.

    Args:
        vectors: of one head.
        width: how many dimensions of query and key are used, the first ones; None or more than there are = all.
        factor: the scale as a multiple of 1/√d_k.
        temperature: scores are divided by it too.
        causal: a token sees itself and those before it.
    Raises:
        ValueError: for several heads, no tokens, a width or temperature that is not above 0, or a factor below 0.
    """
    if vectors.query.shape[0] != 1 or not vectors.tokens:
        raise ValueError(
            f"formula_numbers: vectors must be of one head and at least one token but are of "
            f"{vectors.query.shape[0]} heads and {len(vectors.tokens)} tokens; choose a head."
        )
    if factor < 0 or temperature <= 0 or (width is not None and width < 1):
        raise ValueError(
            f"formula_numbers: factor must be at least 0, temperature above 0 and width at least 1 but are {factor}, "
            f"{temperature} and {width}; change them."
        )
    query, key, value = (part[None].double() for part in (vectors.query, vectors.key, vectors.value))
    there = query.shape[3]
    kept = there if width is None else min(width, there)
    query, key = query[..., :kept], key[..., :kept]
    scale = _scale(kept, factor, temperature)
    rule = MaskRule(causal=causal)
    output = attention(query, key, value, rule=rule, scale=scale)
    scaled = scaled_dot_scores(query, key, scale=scale)
    places = torch.arange(len(vectors.tokens))
    allowed = rule.allowed(places, places, queries=len(places), keys=len(places))
    if allowed is not None:
        scaled = scaled.masked_fill(~allowed, -math.inf)
    notes = vectors.notes
    if kept < there:
        notes += (
            f"Only the first {kept} of {there} dimensions of query and key are used, so this is not what the model "
            "computes.",
        )
    return FormulaNumbers(
        query=_plain(query),
        key=_plain(key),
        value=_plain(value),
        scores=_plain(scaled_dot_scores(query, key, scale=1.0)),
        scaled=_plain(scaled),
        weights=_plain(output.weights),
        output=_plain(output.context),
        factor=factor,
        temperature=temperature,
        causal=causal,
        tokens=vectors.tokens,
        source=vectors.source,
        notes=notes,
    )


def _plain(tensor: torch.Tensor) -> Matrix:
    """(1, 1, R, C) to (R, C) that nobody writes into."""
    found: Matrix = tensor[0, 0].detach().numpy().astype(np.float64)
    found.flags.writeable = False
    return found


# Numbers as they are written down -----------------------------------------------------------------------------------


def number_text(value: float) -> str:
    """A number as one writes it on paper: one that ends within two decimals as it is, others rounded to two, three
    below 1."""
    if not math.isfinite(value):
        return "−∞" if value < 0 else "∞"
    size = abs(value)
    if abs(value - round(value, 2)) < 1e-9 and size < 1e6:
        return f"{round(value, 2) + 0.0:.2f}".rstrip("0").rstrip(".").replace("-", "−")
    if size >= 1000 or size < 1e-3:
        return f"{value:.3g}".replace("-", "−")
    return f"{value:.{3 if size < 1 else 2}f}".replace("-", "−")


def _factor_text(value: float) -> str:
    """In a product a negative number stands in brackets."""
    text = number_text(value)
    return f"({text})" if text.startswith("−") else text


def _sum_text(terms: Sequence[str]) -> str:
    """Terms with plus signs, the middle ones left out where there are many."""
    if len(terms) <= MOST_TERMS:
        return " + ".join(terms)
    left_out = len(terms) - MOST_TERMS + 1
    return " + ".join([*terms[: MOST_TERMS - 2], f"… ({left_out} more)", terms[-1]])


def scaling_text(numbers: FormulaNumbers, score: str = "QKᵀ") -> str:
    """The division by √d_k with what factor and temperature make of it, such as "2 · 1 / (√4 · 0.5)"."""
    before = "" if numbers.factor == 1 else f"{number_text(numbers.factor)} · "
    root = f"√{numbers.width}"
    if numbers.temperature != 1:
        root = f"({root} · {number_text(numbers.temperature)})"
    return f"{before}{score} / {root}"


# What a part is -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PartInWords:
    """A part of the formula, explained.

    Attributes:
        symbol: as it stands in the formula.
        title: its name.
        about: one or two sentences.
        shape: such as "3 × 4"; ``axes``: what the two count, such as "tokens × d_k".
        cell: the arithmetic of the chosen cell, "e^0.5" standing for a power.
        numbers: what is measured of it, as sentences.
    """

    symbol: str
    title: str
    about: str
    shape: str
    axes: str
    cell: str
    numbers: tuple[str, ...] = ()


_ABOUT: dict[Part, tuple[str, str, str, str]] = {
    "query": (
        "Q",
        "queries",
        "Each row is one token's question: what it looks for in the others.",
        "tokens × d_k",
    ),
    "key": (
        "K",
        "keys",
        "Each row is what one token offers to be found by. It is drawn transposed, as the formula has it: a token is "
        "a column.",
        "tokens × d_k",
    ),
    "value": (
        "V",
        "values",
        "Each row is what a token hands on where it is attended to. Values take no part in who attends to whom.",
        "tokens × d_v",
    ),
    "scores": (
        "QKᵀ",
        "scores",
        "Every query times every key: a dot product for each pair of tokens, large where the two point the same way.",
        "queries × keys",
    ),
    "root": (
        "√d_k",
        "scaled scores",
        "A dot product of d_k numbers grows like √d_k; the division undoes that, so that the softmax sees scores of "
        "the same size whatever d_k is.",
        "queries × keys",
    ),
    "softmax": (
        "softmax",
        "weights",
        "The scores of a query become shares: each is e to the score, divided by the sum of these over the row.",
        "queries × keys",
    ),
    "output": (
        "output",
        "weighted values",
        "Each row is the mean of all values, weighted with the shares of its query.",
        "tokens × d_v",
    ),
}


def part_in_words(numbers: FormulaNumbers, part: Part, *, query: int, key: int, dim: int) -> PartInWords:
    """What a part is, its shape, the arithmetic of one cell, and what can be measured of it.

    Args:
        query, key: tokens; ``dim``: of query and key, or of value and output. The cell lies where the two cross that
            the part has; a larger index stands for the last.
    """
    symbol, title, about, axes = _ABOUT[part]
    rows, columns = numbers.matrix(part).shape
    return PartInWords(
        symbol,
        title,
        about,
        f"{rows} × {columns}",
        axes,
        cell_in_words(numbers, part, query=query, key=key, dim=dim),
        _measured(numbers, part, min(query, len(numbers.tokens) - 1)),
    )


def cell_of(numbers: FormulaNumbers, part: Part, *, query: int, key: int, dim: int) -> tuple[int, int]:
    """(row, column) of the chosen cell in a part's matrix, the last where an index is beyond it."""
    row = key if part in ("key", "value") else query
    column = key if part in ("scores", "root", "softmax") else dim
    rows, columns = numbers.matrix(part).shape
    return min(row, rows - 1), min(column, columns - 1)


def cell_in_words(numbers: FormulaNumbers, part: Part, *, query: int, key: int, dim: int) -> str:
    """How one cell comes about, such as "scores[0, 2] = 1·1 + 0·1 + 1·0 + 0·0 = 1"."""
    row, column = cell_of(numbers, part, query=query, key=key, dim=dim)
    value = number_text(float(numbers.matrix(part)[row, column]))
    place = f"[{row}, {column}]"
    if part in ("query", "key", "value"):
        return f"{_ABOUT[part][0]}{place} = {value}"
    if part == "scores":
        return f"scores{place} = {_products(numbers.query[row], numbers.key[column])} = {value}"
    if part == "output":
        return f"output{place} = {_products(numbers.weights[row], numbers.value[:, column])} = {value}"
    if not np.isfinite(numbers.scaled[row, column]):
        later = f"token {column} comes after token {row} and may not be seen"
        return f"scaled{place} = −∞: {later}" if part == "root" else f"weights{place} = e^−∞ / … = 0: {later}"
    if part == "root":
        score = float(numbers.scores[row, column])
        return f"scaled{place} = {scaling_text(numbers, _factor_text(score))} = {value}"
    powers = [f"e^{number_text(score)}" for score in numbers.scaled[row].tolist() if math.isfinite(score)]
    total = _sum_text(powers)
    under = f"({total})" if len(powers) > 1 else total
    return f"weights{place} = e^{number_text(float(numbers.scaled[row, column]))} / {under} = {value}"


def _products(left: Matrix, right: Matrix) -> str:
    return _sum_text(
        [f"{_factor_text(a)}·{_factor_text(b)}" for a, b in zip(left.tolist(), right.tolist(), strict=True)]
    )


def _measured(numbers: FormulaNumbers, part: Part, query: int) -> tuple[str, ...]:
    token = f"“{numbers.tokens[query]}”"
    if part in ("query", "key", "value"):
        lengths = np.linalg.norm(numbers.matrix(part), axis=1)
        return (f"Lengths of its rows: {_range_text(lengths)}.",)
    if part == "scores":
        return (f"Its numbers: {_range_text(numbers.scores)}.",)
    if part == "root":
        allowed = np.isfinite(numbers.scaled)
        before, after = numbers.scores[allowed].std(), numbers.scaled[allowed].std()
        return (
            f"√{numbers.width} = {number_text(math.sqrt(numbers.width))}.",
            f"Standard deviation of the scores: {number_text(before)} before, {number_text(after)} after.",
        )
    if part == "softmax":
        sums = numbers.weights.sum(axis=1)
        return (
            f"Sums of its rows: {_range_text(sums)}.",
            row_in_words(numbers, query),
        )
    parts = np.abs(numbers.weights[query]) * np.linalg.norm(numbers.value, axis=1)
    largest = int(parts.argmax())
    if parts.sum() == 0:
        return (f"The row of {token} is 0.",)
    return (f"Most of the row of {token} comes from “{numbers.tokens[largest]}”: weight times length of the value "
            f"is {number_text(float(parts[largest]))}.",)  # fmt: skip


def _range_text(values: Matrix) -> str:
    low, high = (number_text(float(end)) for end in (values.min(), values.max()))
    return low if low == high else f"{low} to {high}"


# What a row does ----------------------------------------------------------------------------------------------------


def row_entropy(numbers: FormulaNumbers, query: int) -> float:
    """Entropy of a row of weights in nats."""
    row = torch.from_numpy(numbers.weights[query].copy())
    return float(torch.special.entr(row).sum())


def row_in_words(numbers: FormulaNumbers, query: int) -> str:
    """Whom one query attends to, and how widely."""
    row = numbers.weights[query]
    seen = int(np.isfinite(numbers.scaled[query]).sum())
    entropy = row_entropy(numbers, query)
    most = int(row.argmax())
    token = numbers.tokens[query]
    if seen == 1:
        return f"“{token}” may see one token alone, so its weight is 1 whatever the scores are."
    return (
        f"“{token}” looks at “{numbers.tokens[most]}” most ({number_text(float(row[most]))}). Its entropy is "
        f"{number_text(entropy)} nats: as wide as an even look at {number_text(math.exp(entropy))} of {seen} tokens."
    )


SHARP = 0.99
"""Weight from which on a row is called saturated."""


def settings_in_words(numbers: FormulaNumbers, plain: FormulaNumbers, query: int) -> str:
    """What factor and temperature do to a row, measured against the plain formula.

    Args:
        numbers: as they are set.
        plain: the same with factor 1 and temperature 1.
    """
    seen = int(np.isfinite(numbers.scaled[query]).sum())
    token = f"“{numbers.tokens[query]}”"
    here, there = (row_entropy(each, query) for each in (numbers, plain))
    if seen == 1:
        return f"{token} sees one token alone, so neither scale nor temperature changes its row."
    if numbers.factor == 1 and numbers.temperature == 1:
        return (
            "This is the plain formula. A larger factor or a lower temperature sharpens the row of "
            f"{token}, the opposite flattens it; the order of its weights stays."
        )
    setting = _setting(numbers)
    if numbers.factor == 0:
        return f"{setting} all scores are 0: {token} looks at all {seen} tokens alike and the keys no longer count."
    spread = f"{number_text(math.exp(here))} of {seen} tokens instead of {number_text(math.exp(there))}"
    if abs(here - there) < 1e-9:
        return f"{setting} the row of {token} stays as wide as with the plain formula."
    if here < there:
        largest = float(numbers.weights[query].max())
        end = f" One weight is {number_text(largest)}: the softmax is saturated." if largest > SHARP else ""
        return f"{setting} the row of {token} is sharper: as wide as an even look at {spread}.{end}"
    return f"{setting} the row of {token} is flatter: as wide as an even look at {spread}."


def _setting(numbers: FormulaNumbers) -> str:
    parts = []
    if numbers.factor != 1:
        parts.append(f"{number_text(numbers.factor)} times the scale")
    if numbers.temperature != 1:
        parts.append(f"temperature {number_text(numbers.temperature)}")
    return f"With {' and '.join(parts)}"


# The figure ---------------------------------------------------------------------------------------------------------

_NAMES: dict[Part, str] = {
    "query": "Q",
    "key": "Kᵀ",
    "value": "V",
    "scores": "QKᵀ",
    "root": "QKᵀ/√d_k",
    "softmax": "softmax",
    "output": "output",
}


def matrix_name(numbers: FormulaNumbers, part: Part) -> str:
    """What a matrix is called, with the factor and the temperature where they are not 1."""
    if part != "root":
        return _NAMES[part]
    before = "" if numbers.factor == 1 else f"{number_text(numbers.factor)} · "
    after = "" if numbers.temperature == 1 else f" / {number_text(numbers.temperature)}"
    return f"{before}{_NAMES[part]}{after}"


SHEET_ORDER: tuple[Part, ...] = ("query", "key", "scores", "root", "softmax", "value", "output")
"""Of the matrices, as they are needed from left to right."""


def formula_sheet(numbers: FormulaNumbers, *, part: Part, query: int, key: int, dim: int) -> MatrixSheet:
    """The matrices in the order of the formula: Q, Kᵀ, QKᵀ, scaled, weights, V, output."""
    return MatrixSheet(
        tuple(_named(numbers, each) for each in SHEET_ORDER),
        title=f"softmax(QKᵀ/√d_k)V of {numbers.source}",
        selected=SHEET_ORDER.index(part),
        notes=(
            f"The chosen cell: {cell_in_words(numbers, part, query=query, key=key, dim=dim)}.",
            row_in_words(numbers, min(query, len(numbers.tokens) - 1)),
            *numbers.notes,
        ),
    )


def _named(numbers: FormulaNumbers, part: Part) -> NamedMatrix:
    values = numbers.matrix(part)
    tokens = numbers.tokens
    dims = tuple(str(index) for index in range(values.shape[1]))
    scale: MatrixScale = "weights" if part == "softmax" else "signed"
    name = matrix_name(numbers, part)
    if part == "key":
        return NamedMatrix(name, values.T, dims, tokens, scale, axes=("dimension", "key"))
    if part in ("scores", "root", "softmax"):
        note = "rows sum to 1" if part == "softmax" else ""
        return NamedMatrix(name, values, tokens, tokens, scale, None, note, ("query", "key"))
    axes = {"query": ("query", "dimension"), "value": ("key", "channel"), "output": ("query", "channel")}
    return NamedMatrix(name, values, tokens, dims, scale, axes=axes[part])
