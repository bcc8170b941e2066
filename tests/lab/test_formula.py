"""The formula explorer: every matrix against float64 NumPy, and every sentence against the numbers it tells."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.lab.formula import (
    MOST_TERMS,
    PARTS,
    SHEET_ORDER,
    FormulaNumbers,
    Part,
    cell_in_words,
    cell_of,
    formula_numbers,
    formula_sheet,
    number_text,
    part_in_words,
    row_entropy,
    row_in_words,
    settings_in_words,
)
from analysis.lab.inputs import LabVectors, numbered, random_vectors, worked_example
from analysis.visible_lab import check_matrix_sheet
from dashboard.components.formula_views import FormulaPick, checked_pick
from dashboard.figures import unpack
from dashboard.formula_payload import formula_payload


def drawn(tokens: int = 5, width: int = 6, seed: int = 0) -> LabVectors:
    return random_vectors(tuple("abcdefghijklmnop"[:tokens]), width=width, seed=seed)


def told(numbers: FormulaNumbers, part: Part, query: int = 0, key: int = 0, dim: int = 0) -> str:
    return cell_in_words(numbers, part, query=query, key=key, dim=dim)


# The numbers --------------------------------------------------------------------------------------------------------


def test_the_worked_example_is_as_on_paper():
    numbers = formula_numbers(worked_example())
    np.testing.assert_array_equal(numbers.scores[0], [2, 0, 1])
    np.testing.assert_array_equal(numbers.scaled[0], [1, 0, 0.5])
    powers = np.exp([1.0, 0.0, 0.5])
    weights = powers / powers.sum()
    np.testing.assert_allclose(numbers.weights[0], weights, rtol=0, atol=4e-16)
    np.testing.assert_allclose(numbers.output[0], weights @ [[1, 2], [3, 4], [5, 6]], rtol=0, atol=4e-15)
    assert [f"{value:.2f}" for value in numbers.output[0]] == ["2.60", "3.60"]
    assert [number_text(value) for value in numbers.weights[0]] == ["0.506", "0.186", "0.307"]


@given(
    tokens=st.integers(1, 9),
    width=st.integers(1, 16),
    kept=st.integers(1, 20),
    factor=st.floats(0, 8),
    temperature=st.floats(0.1, 10),
    causal=st.booleans(),
    seed=st.integers(0, 99),
)
def test_every_matrix_is_that_of_the_formula(tokens, width, kept, factor, temperature, causal, seed):
    vectors = random_vectors(numbered(tokens), width=width, seed=seed)
    numbers = formula_numbers(vectors, width=kept, factor=factor, temperature=temperature, causal=causal)
    query, key, value = (part[0].double().numpy() for part in (vectors.query, vectors.key, vectors.value))
    used = min(kept, width)
    scores = query[:, :used] @ key[:, :used].T
    scaled = scores * factor / (math.sqrt(used) * temperature)
    if causal:
        scaled = np.where(np.tril(np.ones((tokens, tokens), dtype=bool)), scaled, -np.inf)
    powers = np.exp(scaled - scaled.max(axis=1, keepdims=True))
    weights = powers / powers.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(numbers.scores, scores, atol=1e-12)
    np.testing.assert_allclose(numbers.scaled, scaled, atol=1e-10)
    np.testing.assert_allclose(numbers.weights, weights, atol=1e-12)
    np.testing.assert_allclose(numbers.output, weights @ value, atol=1e-11)
    np.testing.assert_allclose(numbers.weights.sum(axis=1), 1, atol=1e-12)
    assert bool(numbers.notes) == (used < width)
    for part in PARTS:
        part_in_words(numbers, part, query=tokens - 1, key=0, dim=99)
        check_matrix_sheet(formula_sheet(numbers, part=part, query=0, key=tokens - 1, dim=0), "test")
    settings_in_words(numbers, formula_numbers(vectors, width=kept, causal=causal), tokens - 1)


@pytest.mark.parametrize(
    ("vectors", "settings", "message"),
    [
        (
            random_vectors(("a",), width=2, heads=2),
            {},
            "of one head and at least one token but are of 2 heads",
        ),
        (drawn(), {"factor": -1.0}, "factor must be at least 0"),
        (drawn(), {"temperature": 0.0}, "temperature above 0"),
        (drawn(), {"width": 0}, "width at least 1"),
    ],
)
def test_what_cannot_be_computed_is_refused(vectors, settings, message):
    with pytest.raises(ValueError, match=message):
        formula_numbers(vectors, **settings)


# The cells ----------------------------------------------------------------------------------------------------------


def test_the_arithmetic_of_the_worked_example():
    numbers = formula_numbers(worked_example())
    assert told(numbers, "scores", 0, 2) == "scores[0, 2] = 1·1 + 0·1 + 1·0 + 0·0 = 1"
    assert told(numbers, "root", 0, 2) == "scaled[0, 2] = 1 / √4 = 0.5"
    assert told(numbers, "softmax", 0, 2) == "weights[0, 2] = e^0.5 / (e^1 + e^0 + e^0.5) = 0.307"
    assert told(numbers, "output", 0, 2) == "output[0, 0] = 0.506·1 + 0.186·3 + 0.307·5 = 2.60"
    assert told(numbers, "query", 1, dim=3) == "Q[1, 3] = 1"
    assert told(numbers, "key", 1, 2, 1) == "K[2, 1] = 1"
    assert told(numbers, "value", 1, 2, 9) == "V[2, 1] = 6"


def test_the_settings_stand_in_the_arithmetic():
    numbers = formula_numbers(worked_example(), factor=2, temperature=0.5, causal=True)
    assert told(numbers, "root", 2, 0) == "scaled[2, 0] = 2 · 1 / (√4 · 0.5) = 2"
    assert told(numbers, "root", 0, 2) == "scaled[0, 2] = −∞: token 2 comes after token 0 and may not be seen"
    assert told(numbers, "softmax", 0, 2).startswith("weights[0, 2] = e^−∞ / … = 0: token 2 comes after")
    assert told(numbers, "softmax", 0, 0) == "weights[0, 0] = e^4 / e^4 = 1"


def test_long_sums_leave_terms_out_and_negative_factors_stand_in_brackets():
    text = told(formula_numbers(drawn(3, 12)), "scores", 0, 1)
    body = text.split(" = ")[1]
    assert f"… ({12 - MOST_TERMS + 1} more)" in body
    assert body.count("·") == MOST_TERMS - 1
    assert re.search(r"\(−[\d.]+\)", body)
    assert "-" not in text


@given(part=st.sampled_from(PARTS), query=st.integers(0, 70), key=st.integers(0, 70), dim=st.integers(0, 70))
def test_a_cell_is_one_of_its_matrix_and_its_value_is_told(part, query, key, dim):
    numbers = formula_numbers(drawn(4, 3))
    row, column = cell_of(numbers, part, query=query, key=key, dim=dim)
    value = numbers.matrix(part)[row, column]
    assert told(numbers, part, query, key, dim).endswith(f"= {number_text(value)}")
    assert f"[{row}, {column}]" in told(numbers, part, query, key, dim)


@pytest.mark.parametrize(
    ("value", "text"),
    [(2.0, "2"), (-1.0, "−1"), (0.5, "0.5"), (2.6014, "2.60"), (0.5064, "0.506"), (-0.0, "0"),
     (12345.678, "1.23e+04"), (1.5e-5, "1.5e−05"), (-math.inf, "−∞"), (math.inf, "∞"),
     (0.1 + 0.2, "0.3"), (0.9999, "1.000")],
)  # fmt: skip
def test_numbers_as_on_paper(value, text):
    assert number_text(value) == text


# The words ----------------------------------------------------------------------------------------------------------


def test_a_part_tells_its_shape_and_what_is_measured_of_it():
    numbers = formula_numbers(worked_example())
    query, scores, root, softmax, output = (
        part_in_words(numbers, part, query=0, key=0, dim=0)
        for part in ("query", "scores", "root", "softmax", "output")
    )
    assert (query.shape, query.axes, output.shape) == ("3 × 4", "tokens × d_k", "3 × 2")
    assert query.numbers == (f"Lengths of its rows: {number_text(math.sqrt(2))}.",)
    assert scores.numbers == ("Its numbers: 0 to 2.",)
    spread = numbers.scores.std()
    assert root.numbers[0] == "√4 = 2."
    assert f"{number_text(spread)} before, {number_text(spread / 2)} after" in root.numbers[1]
    assert softmax.numbers[0] == "Sums of its rows: 1."
    assert "“mat”" in output.numbers[0]  # its value is far longer than that of “cat”
    parts = numbers.weights[0] * np.hypot(*numbers.value.T)
    assert number_text(parts.max()) in output.numbers[0]


def test_the_row_is_told_by_its_largest_weight_and_its_entropy():
    numbers = formula_numbers(drawn())
    row = numbers.weights[3]
    entropy = -(row * np.log(row)).sum()
    assert row_entropy(numbers, 3) == pytest.approx(entropy, abs=1e-12)
    text = row_in_words(numbers, 3)
    assert f"“{numbers.tokens[row.argmax()]}” most ({number_text(row.max())})" in text
    assert f"{number_text(entropy)} nats" in text
    assert f"{number_text(math.exp(entropy))} of 5 tokens" in text
    assert "one token alone" in row_in_words(formula_numbers(drawn(), causal=True), 0)


def test_what_the_settings_do_is_read_off_the_numbers():
    vectors = drawn()
    plain = formula_numbers(vectors)

    def said(query: int = 1, **settings) -> str:
        causal = settings.get("causal", False)
        return settings_in_words(
            formula_numbers(vectors, **settings), formula_numbers(vectors, causal=causal), query
        )

    assert said().startswith("This is the plain formula")
    assert "sharper" in said(factor=2.0)
    assert "saturated" not in said(factor=1.25)
    assert "sharper" in said(temperature=0.5)
    assert "flatter" in said(factor=0.5)
    assert "flatter" in said(temperature=3.0)
    assert "With 2 times the scale and temperature 2 the row of “b” stays as wide" in said(
        factor=2.0, temperature=2.0
    )
    assert "all scores are 0" in said(factor=0.0)
    assert "all 5 tokens alike" in said(factor=0.0)
    sharp = formula_numbers(vectors, factor=8.0, temperature=0.1)
    assert sharp.weights[1].max() > 0.99
    assert "saturated" in said(factor=8.0, temperature=0.1)
    assert "sees one token alone" in said(0, causal=True, factor=4.0)
    assert row_entropy(formula_numbers(vectors, factor=2.0), 1) < row_entropy(plain, 1)


# The figure ---------------------------------------------------------------------------------------------------------


def test_the_sheet_holds_the_matrices_in_the_order_of_the_formula():
    numbers = formula_numbers(worked_example(), factor=2.0, temperature=0.5, causal=True)
    sheet = formula_sheet(numbers, part="softmax", query=1, key=0, dim=0)
    assert [matrix.name for matrix in sheet.matrices] == [
        "Q", "Kᵀ", "QKᵀ", "2 · QKᵀ/√d_k / 0.5", "softmax", "V", "output"
    ]  # fmt: skip
    assert sheet.selected == SHEET_ORDER.index("softmax")
    for part, matrix in zip(SHEET_ORDER, sheet.matrices, strict=True):
        expected = numbers.matrix(part)
        np.testing.assert_array_equal(matrix.values, expected.T if part == "key" else expected)
        tokens = numbers.tokens
        assert (matrix.columns if part in ("key", "scores", "root", "softmax") else matrix.rows) == tokens
    assert "weights[1, 0] = e^" in sheet.notes[0]


# To the browser and back --------------------------------------------------------------------------------------------


def test_the_blob_holds_every_matrix_as_it_is_drawn():
    numbers = formula_numbers(worked_example(), factor=2.0, causal=True)
    header, arrays = unpack(formula_payload(numbers, part="output", query=9, key=1, dim=3, said=("one",)))
    assert [matrix["part"] for matrix in header["matrices"]] == list(SHEET_ORDER)
    assert header["formula"] == {"factor": "2", "temperature": "", "causal": True}
    assert header["state"] == {"part": "output", "query": 2}
    assert header["said"] == ["one"]
    cells = {matrix["part"]: matrix["cell"] for matrix in header["matrices"]}
    assert (cells["scores"], cells["key"], cells["query"], cells["output"]) == (
        [2, 1],
        [3, 1],
        [2, 3],
        [2, 1],
    )
    start = 0
    for matrix in header["matrices"]:
        rows, columns = matrix["shape"]
        found = arrays["values"][start : start + rows * columns].reshape(rows, columns)
        start += rows * columns
        expected = numbers.matrix(matrix["part"])
        np.testing.assert_array_equal(
            found, (expected.T if matrix["part"] == "key" else expected).astype(np.float32)
        )
    assert header["words"]["cell"] == told(numbers, "output", 9, 1, 3)


@pytest.mark.parametrize(
    ("said", "pick"),
    [
        ({"part": "key", "cell": [3, 2]}, FormulaPick("key", (3, 2))),
        ({"part": "softmax", "cell": None}, FormulaPick("softmax", None)),
        ({"part": "key", "cell": [2, 3]}, None),  # four dimensions down, three tokens across
        ({"part": "key", "cell": [0]}, None),
        ({"part": "key", "cell": [True, 0]}, None),
        ({"part": "mask", "cell": None}, None),
        ({"part": ["key"], "cell": None}, None),
        ({"part": "key", "cell": None, "input": "of others"}, None),
        ({}, None),
    ],
)
def test_what_the_browser_says_is_checked(said, pick):
    header, _ = unpack(formula_payload(formula_numbers(worked_example()), part="root", query=0, key=0, dim=0))
    assert checked_pick({"pick": {"input": header["input"], **said}}, header) == pick
    assert checked_pick(None, header) is None


def test_a_choice_about_other_matrices_is_not_taken():
    one, other = (
        unpack(formula_payload(formula_numbers(vectors), part="root", query=0, key=0, dim=0))[0]
        for vectors in (drawn(3, 4), drawn(3, 5))
    )
    assert one["input"] != other["input"]
