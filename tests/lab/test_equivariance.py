"""Shuffles of the Lab: laws that hold hold within the bound, broken ones show, and every sentence both ways."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.lab import equivariance
from analysis.lab.equivariance import (
    MECHANISMS,
    SHUFFLES,
    Mechanism,
    Shuffle,
    Shuffled,
    shuffle_in_words,
    shuffle_sheet,
    shuffle_table,
    shuffled,
    shuffled_order,
    size_text,
    table_in_words,
    table_sheet,
)
from analysis.lab.inputs import LabVectors, numbered, random_vectors
from analysis.lab.masks import random_bias
from analysis.visible_lab import check_matrix_sheet
from attn_core.positions import alibi_slopes, rotary, sinusoidal_positions

HEADS, WIDTH = 4, 6
HOLDS = {
    (mechanism, shuffle)
    for mechanism in ("plain", "linear")
    for shuffle in ("queries", "keys_values", "tokens")
}
"""The laws; where a token's place is told, none holds."""


def vectors_of(tokens: int, seed: int = 0, scale: float = 1.0) -> LabVectors:
    found = random_vectors(numbered(tokens), width=WIDTH, heads=HEADS, seed=seed)
    return replace(found, query=found.query * scale, key=found.key * scale)


def oracle(mechanism: Mechanism, vectors: LabVectors, head: int) -> tuple[np.ndarray, np.ndarray]:
    """Weights and output in float64 NumPy."""
    parts = [part[head].double() for part in (vectors.query, vectors.key, vectors.value)]
    n = len(vectors.tokens)
    places = torch.arange(n)
    if mechanism == "sinusoidal":
        parts = [part + sinusoidal_positions(places, WIDTH, dtype=torch.float64) for part in parts]
    if mechanism == "rotary":
        parts[:2] = [rotary(part[None, None], places)[0, 0] for part in parts[:2]]
    query, key, value = (part.numpy() for part in parts)
    if mechanism == "linear":
        features = [np.where(part > 0, part + 1, np.exp(np.minimum(part, 0))) for part in (query, key)]
        weights = features[0] @ features[1].T
    else:
        scores = query @ key.T / np.sqrt(WIDTH)
        distance = np.abs(np.arange(n)[:, None] - np.arange(n))
        if mechanism == "alibi":
            scores = scores - float(alibi_slopes(HEADS)[head]) * distance
        if mechanism == "relative":
            scores = scores + random_bias(HEADS, n).dense()[0, head].numpy()
        weights = np.exp(scores - scores.max(1, keepdims=True))
        if mechanism == "causal":
            weights = np.tril(np.exp(scores - np.where(np.tri(n) > 0, scores, -np.inf).max(1, keepdims=True)))
    weights = weights / weights.sum(1, keepdims=True)
    return weights, weights @ value


# --- Numbers --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mechanism", MECHANISMS)
@settings(max_examples=15)
@given(
    tokens=st.integers(1, 9),
    head=st.integers(0, HEADS - 1),
    seed=st.integers(0, 99),
    scale=st.sampled_from([0.5, 1.0, 3.0]),
)
def test_each_mechanism_is_its_formula_within_half_the_bound(
    mechanism: Mechanism, tokens: int, head: int, seed: int, scale: float
) -> None:
    vectors = vectors_of(tokens, seed, scale)
    found = shuffled(vectors, head, mechanism, "queries", seed=seed)
    weights, output = oracle(mechanism, vectors, head)
    np.testing.assert_allclose(found.before, weights, atol=1e-5)
    # The bound is of the difference of two runs, each off by half of it; positions are rounded before the runs.
    spare = 1e-5 if mechanism in ("sinusoidal", "rotary", "relative") else 0.0
    assert np.abs(found.output - output).max() <= found.bound / 2 + spare


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize("mechanism", MECHANISMS)
@settings(max_examples=12)
@given(tokens=st.integers(3, 20), seed=st.integers(0, 99))
def test_laws_hold_where_nothing_tells_a_place_and_nowhere_else(
    mechanism: Mechanism, shuffle: Shuffle, tokens: int, seed: int
) -> None:
    found = shuffled(vectors_of(tokens, seed), 1, mechanism, shuffle, seed=seed)
    mirror = found.order == tuple(reversed(range(tokens)))
    if mechanism == "alibi" and shuffle == "tokens" and mirror:
        assert found.holds, "distances are the same in a mirror"
        return
    assert found.holds == ((mechanism, shuffle) in HOLDS)
    if not found.holds:
        assert found.difference > 10 * found.bound


def test_what_was_shuffled_is_put_back() -> None:
    vectors = vectors_of(7)
    order = np.array(shuffled_order(7, 3))
    for shuffle in SHUFFLES:
        found = shuffled(vectors, 0, "plain", shuffle, seed=3)
        assert found.order == tuple(order)
        rows = order if shuffle in ("queries", "tokens") else np.arange(7)
        columns = order if shuffle != "queries" else np.arange(7)
        np.testing.assert_allclose(found.after, found.before[rows][:, columns], atol=1e-6)
        np.testing.assert_allclose(found.restored, found.before, atol=1e-6)
        if shuffle == "keys":
            expected = found.before @ vectors.value[0].numpy()[np.argsort(order)]
            np.testing.assert_allclose(found.output_after, expected, atol=1e-5)
        else:
            np.testing.assert_allclose(found.output_after, found.output[rows], atol=1e-5)
        assert found.difference == np.abs(found.output_restored - found.output).max()


def test_values_that_are_all_zero_change_nothing() -> None:
    vectors = replace(vectors_of(4), value=torch.zeros(HEADS, 4, WIDTH))
    found = shuffled(vectors, 0, "causal", "tokens", seed=0)
    assert (found.difference, found.bound, found.holds) == (0.0, 0.0, True)


@given(tokens=st.integers(1, 64), seed=st.integers(0, 99))
def test_an_order_is_another_order(tokens: int, seed: int) -> None:
    order = shuffled_order(tokens, seed)
    assert sorted(order) == list(range(tokens))
    assert tokens == 1 or order != tuple(range(tokens))
    assert shuffled_order(tokens, seed) == order


def test_what_cannot_be_shuffled_is_refused() -> None:
    with pytest.raises(ValueError, match="shuffled_order: tokens must be at least 1 but is 0"):
        shuffled_order(0, 0)
    with pytest.raises(ValueError, match=r"LabVectors.head: index must be 0 to 3 but is 4"):
        shuffled(vectors_of(3), 4, "plain", "queries", seed=0)
    odd = random_vectors(numbered(3), width=3)
    with pytest.raises(ValueError, match="must have an even number of channels but has 3"):
        shuffled(odd, 0, "rotary", "queries", seed=0)


def test_nothing_that_was_given_is_written_into() -> None:
    vectors = vectors_of(4)
    before = [part.clone() for part in (vectors.query, vectors.key, vectors.value)]
    shuffle_table(vectors, 0, seed=1)
    for part, kept in zip((vectors.query, vectors.key, vectors.value), before, strict=True):
        assert torch.equal(part, kept)


# --- Figures --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shuffle", SHUFFLES)
def test_the_sheet_holds_both_runs(shuffle: Shuffle) -> None:
    vectors = random_vectors(("the", "cat", "sat"), width=WIDTH)
    found = shuffled(vectors, 0, "causal", shuffle, seed=0)
    sheet = shuffle_sheet(found)
    check_matrix_sheet(sheet, "test")
    expected = (
        found.before, found.after, found.restored, found.restored - found.before,
        found.output, found.output_after, found.output_restored, found.output_restored - found.output,
    )  # fmt: skip
    for matrix, values in zip(sheet.matrices, expected, strict=True):
        np.testing.assert_array_equal(matrix.values, values)
    moved = tuple(("the", "cat", "sat")[place] for place in found.order)
    assert sheet.matrices[1].rows == (moved if shuffle in ("queries", "tokens") else found.tokens)
    assert sheet.matrices[1].columns == (moved if shuffle != "queries" else found.tokens)
    assert sheet.matrices[5].rows == sheet.matrices[1].rows
    assert sheet.matrices[7].note == f"largest {size_text(found.difference)}"


def test_the_table_holds_every_run() -> None:
    table = shuffle_table(vectors_of(5), 0, seed=0)
    sheet = table_sheet(table)
    check_matrix_sheet(sheet, "test")
    holds, difference, bound = (matrix.values for matrix in sheet.matrices)
    for row, mechanism in enumerate(MECHANISMS):
        for column, shuffle in enumerate(SHUFFLES):
            found = table[mechanism][shuffle]
            assert (found.mechanism, found.shuffle) == (mechanism, shuffle)
            assert (holds[row, column], difference[row, column], bound[row, column]) == (
                float(found.holds),
                found.difference,
                found.bound,
            )


# --- Words ----------------------------------------------------------------------------------------------------------


def made(mechanism: Mechanism, shuffle: Shuffle, difference: float) -> Shuffled:
    return replace(shuffled(vectors_of(4), 0, mechanism, shuffle, seed=0), difference=difference, bound=1e-6)


ALIKE = "give the output rows of plain attention in the shuffled order and change nothing else: put back, the output"
NOT_ALIKE = "change the output rows of plain attention, not their order alone: put back, the output"
EXPLAINED = "differs by at most 2.0·10⁻⁷, which rounding explains (bound 1.0·10⁻⁶)."
TOO_FAR = "differs by up to 0.83, where rounding explains 1.0·10⁻⁶."
WITH, WITHOUT = "Keys shuffled together with their values", "Keys shuffled without their values"
VERDICTS: tuple[tuple[Shuffle, float, str], ...] = (
    ("queries", 2e-7, f"Shuffled queries {ALIKE} {EXPLAINED} It is equivariant."),
    ("queries", 0.0, f"Shuffled queries {ALIKE} is the same to the last bit. It is equivariant."),
    ("queries", 0.83, f"Shuffled queries {NOT_ALIKE} {TOO_FAR} It sees the order of queries."),
    ("tokens", 2e-7, f"Shuffled tokens {ALIKE} {EXPLAINED} It is equivariant."),
    ("tokens", 0.83, f"Shuffled tokens {NOT_ALIKE} {TOO_FAR} It sees the order of tokens."),
    (
        "keys_values",
        2e-7,
        f"{WITH} leave the output of plain attention as it was: it {EXPLAINED} It is invariant: it sees a set of "
        "keys, not a list.",
    ),
    (
        "keys_values",
        0.83,
        f"{WITH} change the output of plain attention: it {TOO_FAR} Something in it tells where a key stands.",
    ),
    (
        "keys",
        2e-7,
        "Even keys without their values, shuffled, leave the output of plain attention as it was here: it "
        f"{EXPLAINED}",
    ),
    (
        "keys",
        0.83,
        f"{WITHOUT} change the output of plain attention: it {TOO_FAR} Keys no longer stand beside their own values.",
    ),
)


@pytest.mark.parametrize(("shuffle", "difference", "said"), VERDICTS)
def test_the_verdict_follows_from_the_numbers(shuffle: Shuffle, difference: float, said: str) -> None:
    assert shuffle_in_words(made("plain", shuffle, difference)) == (said,)


def test_one_token_has_no_other_order() -> None:
    (said,) = shuffle_in_words(shuffled(vectors_of(1), 0, "causal", "tokens", seed=0))
    assert said == "One token has no other order, so nothing can change; type more words."


def test_the_table_s_verdict_follows_from_the_numbers() -> None:
    assert table_in_words(shuffle_table(vectors_of(5), 0, seed=0)) == (
        "Plain attention and linear attention do not notice that all tokens were shuffled; causal attention, "
        "attention with sinusoids added, attention with rotary positions, attention with ALiBi and attention with a "
        "relative bias do."
    )

    def of(**differences: float) -> str:
        return table_in_words(
            {name: {"tokens": made(name, "tokens", size)} for name, size in differences.items()}
        )

    assert of(plain=0.0, causal=1.0) == (
        "Plain attention does not notice that all tokens were shuffled; causal attention does."
    )
    assert of(plain=0.0, causal=0.0) == "In this order no mechanism notices that the tokens were shuffled."
    assert of(plain=1.0, causal=1.0) == "Every mechanism notices that the tokens were shuffled."


@pytest.mark.parametrize(
    ("size", "said"),
    [(0.0, "0"), (0.834, "0.83"), (12.3, "12"), (0.00099, "9.9·10⁻⁴"), (1.25e-7, "1.2·10⁻⁷")],
)
def test_sizes_are_told_with_two_digits(size: float, said: str) -> None:
    assert size_text(size) == said


def test_the_bound_grows_with_scores_and_length() -> None:
    """Twice the precision's unit gives twice the bound: it is of first order in it."""
    small = shuffled(vectors_of(8), 0, "plain", "queries", seed=0).bound
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(equivariance, "UNIT", 2 * equivariance.UNIT)
        assert shuffled(vectors_of(8), 0, "plain", "queries", seed=0).bound == pytest.approx(2 * small)
    assert shuffled(vectors_of(8, scale=3.0), 0, "plain", "queries", seed=0).bound > small
