"""Variants side by side: each against its formula in NumPy, what is kept, and what the sentences say."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from analysis.lab.inputs import LabVectors, numbered, random_vectors
from analysis.lab.variants import (
    SOURCES,
    TABLE_HEADER,
    TITLES,
    VARIANTS,
    VariantComparison,
    VariantResult,
    VariantSettings,
    compare_variants,
    conclusions,
    percent,
    relative_error,
    rows_sheet,
    table_rows,
    variant_notes,
    weights_sheet,
)


def softmax(scores: NDArray[np.float64], allowed: NDArray[np.bool_] | None = None) -> NDArray[np.float64]:
    if allowed is not None:
        scores = np.where(allowed, scores, -np.inf)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def drawn(n: int = 12, seed: int = 0, width: int = 6) -> tuple[LabVectors, list[NDArray[np.float64]]]:
    vectors = random_vectors(numbered(n), width=width, seed=seed)
    return vectors, [t[0].double().numpy() for t in (vectors.query, vectors.key, vectors.value)]


def one(vectors: LabVectors, name: str, sizes: VariantSettings) -> VariantResult:
    return compare_variants(vectors, (name,), sizes).results[0]  # type: ignore[arg-type]


@st.composite
def sizes_drawn(draw: st.DrawFn) -> VariantSettings:
    return VariantSettings(
        rank=draw(st.integers(1, 20)),
        projection=draw(st.sampled_from(["random", "mean"])),
        hashes=draw(st.integers(1, 3)),
        buckets=draw(st.integers(2, 7)),
        window=draw(st.integers(1, 20)),
        block=draw(st.integers(1, 20)),
        pattern=draw(st.sampled_from(["local", "global", "bigbird"])),
        features=draw(st.sampled_from(["elu", "relu", "random"])),
        count=draw(st.integers(1, 40)),
        seed=draw(st.integers(0, 5)),
    )


@settings(max_examples=30)
@given(n=st.integers(1, 17), seed=st.integers(0, 99), sizes=sizes_drawn())
def test_weights_times_values_are_the_context_and_shares_are_shares(
    n: int, seed: int, sizes: VariantSettings
) -> None:
    vectors, (_, _, value) = drawn(n, seed)
    view = compare_variants(vectors, VARIANTS, sizes)
    assert tuple(result.name for result in view.results) == VARIANTS
    for result in view.results:
        np.testing.assert_allclose(result.weights @ value, result.context, atol=1e-6)
        assert 0 < result.pairs <= 1
        assert -1e-9 <= result.alike <= 1 + 1e-9
        assert 0 <= result.kept <= 1 + 1e-9
        assert (result.row_kept <= 1 + 1e-9).all()
        if not result.sparse:
            assert result.kept == pytest.approx(1)
        if result.name in ("exact", "reformer", "window", "block"):
            np.testing.assert_allclose(result.weights.sum(1), 1)
    assert view.results[0].error == 0
    assert len(table_rows(view)) == len(VARIANTS)
    assert all(len(row) == len(TABLE_HEADER) for row in table_rows(view))
    assert len(weights_sheet(view).matrices) == len(VARIANTS)


def test_errors_and_kept_mass_are_the_formulas() -> None:
    vectors, (query, key, value) = drawn()
    exact = softmax(query @ key.T / np.sqrt(6))
    place = np.arange(12)
    near = np.abs(place - place[:, None]) < 3
    sizes = VariantSettings(window=3, block=4, pattern="local")
    found = one(vectors, "window", sizes)
    weights = softmax(query @ key.T / np.sqrt(6), near)
    np.testing.assert_allclose(found.weights, weights)
    off = (weights - exact) @ value
    assert found.error == pytest.approx(np.linalg.norm(off) / np.linalg.norm(exact @ value))
    rows = np.linalg.norm(off, axis=1) / np.linalg.norm(exact @ value, axis=1)
    np.testing.assert_allclose(found.row_error, rows)
    np.testing.assert_allclose(found.row_kept, (exact * near).sum(1))
    assert found.kept == pytest.approx((exact * near).sum(1).mean())
    assert found.pairs == pytest.approx(near.mean())
    assert found.alike == pytest.approx(np.minimum(weights, exact).sum(1).mean())
    own = place // 4 == (place // 4)[:, None]
    np.testing.assert_allclose(one(vectors, "block", sizes).weights, softmax(query @ key.T / np.sqrt(6), own))
    first = own | (place < 4) | (place < 4)[:, None]
    of_global = one(vectors, "block", replace(sizes, pattern="global"))
    np.testing.assert_allclose(of_global.weights, softmax(query @ key.T / np.sqrt(6), first))


def test_linear_attention_and_linformer_are_the_formulas() -> None:
    vectors, (query, key, value) = drawn()
    features = [np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))) for x in (query, key)]
    plain = features[0] @ features[1].T
    found = one(vectors, "linear", VariantSettings())
    np.testing.assert_allclose(found.weights, plain / plain.sum(1, keepdims=True))
    e, f = (p.double().numpy() for p in VariantSettings(rank=5, seed=2).projections(12))
    found = one(vectors, "linformer", VariantSettings(rank=5, seed=2))
    np.testing.assert_allclose(found.weights, softmax(query @ (e @ key).T / np.sqrt(6)) @ f)
    np.testing.assert_allclose(found.context, softmax(query @ (e @ key).T / np.sqrt(6)) @ (f @ value))
    exact = softmax(query @ key.T / np.sqrt(6))
    assert found.weights.min() < 0
    assert found.alike == pytest.approx(np.minimum(np.maximum(found.weights, 0), exact).sum(1).mean())


def test_fast_weights_are_held_to_causal_attention_by_the_delta_rule() -> None:
    vectors, (query, key, value) = drawn()
    found = one(vectors, "fast_weights", VariantSettings())
    features = [np.where(x > 0, x + 1, np.exp(np.minimum(x, 0))) for x in (query, key)]
    of_query, of_key = (x / x.sum(1, keepdims=True) for x in features)
    memory, reads = np.zeros((6, 6)), []
    for q, k, v in zip(of_query, of_key, value, strict=True):
        memory = memory + np.outer(k, v - memory.T @ k)
        reads.append(memory.T @ q)
    np.testing.assert_allclose(found.context, np.array(reads))
    causal = softmax(query @ key.T / np.sqrt(6), np.tril(np.ones((12, 12), bool))) @ value
    assert found.causal
    assert found.error == pytest.approx(np.linalg.norm(found.context - causal) / np.linalg.norm(causal))
    assert found.weights.min() < 0


def test_enough_of_everything_is_exact_attention() -> None:
    vectors, _ = drawn()
    view = compare_variants(
        vectors,
        ("linformer", "window", "block"),
        VariantSettings(rank=12, projection="mean", window=12, block=12),
    )
    assert [result.error for result in view.results] == pytest.approx([0, 0, 0], abs=1e-12)
    near = one(vectors, "linear", VariantSettings(features="random", count=20_000))
    assert near.error < 0.1
    shared = LabVectors(
        vectors.query, torch.nn.functional.normalize(vectors.query, dim=-1), vectors.value, vectors.tokens, ""
    )
    # With its own keys and all positions in one bucket only the diagonal, which it leaves out, is missing.
    reformer = one(shared, "reformer", VariantSettings(buckets=2, hashes=64))
    exact = one(shared, "exact", VariantSettings())
    others = exact.weights * (1 - np.eye(12))
    np.testing.assert_allclose(reformer.weights, others / others.sum(1, keepdims=True))


def test_means_of_runs_are_disjoint_means() -> None:
    e, f = VariantSettings(rank=3, projection="mean").projections(8)
    assert torch.equal(e, f)
    torch.testing.assert_close(e.sum(1), torch.ones(3))
    assert ((e > 0).sum(0) == 1).all()
    assert VariantSettings(rank=20, projection="mean").projections(8)[0].shape == (8, 8)
    e, f = VariantSettings(rank=400, projection="random").projections(300)
    assert not torch.equal(e, f)
    assert e.var() == pytest.approx(1 / 400, rel=0.05)


def test_the_relative_error_of_nothing_is_nothing() -> None:
    zero, unit = torch.zeros(2), torch.ones(2)
    assert relative_error(zero, zero) == 0
    assert relative_error(unit, zero) == torch.inf
    assert relative_error(zero, unit) == 1


# What is said ----------------------------------------------------------------------------------------------------


def result(
    name: str, error: float, *, pairs: float = 1.0, kept: float = 1.0, **more: object
) -> VariantResult:
    nothing = np.zeros((4, 4))
    given: dict = {
        "name": name,
        "weights": nothing,
        "what": "",
        "context": nothing,
        "error": error,
        "row_error": nothing[0],
        "pairs": pairs,
        "kept": kept,
        "row_kept": nothing[0],
        "alike": 0.5,
        "row_sum": -0.5,
        "sparse": name in ("reformer", "window", "block"),
        **more,
    }
    return VariantResult(**given)


def said(*results: VariantResult, mean_error: float = 0.5) -> str:
    view = VariantComparison(results, numbered(4), "", 1.0, mean_error)
    return " ".join(conclusions(view)).replace("\N{NO-BREAK SPACE}", " ")


def test_the_sentence_names_the_nearest_and_the_farthest() -> None:
    exact = result("exact", 0.0)
    text = said(exact, result("linear", 0.2), result("linformer", 0.4), result("fast_weights", 0.3))
    assert "At n = 4 the context of linear attention is nearest to exact attention, off by 20 %" in text
    assert "Linformer is farthest, off by 40 %" in text
    text = said(exact, result("linear", 0.41), result("linformer", 0.4))
    assert "context of Linformer is nearest" in text
    assert "linear attention is farthest, off by 41 %" in text
    assert said(exact, result("linear", 0.2)).startswith(
        "At n = 4 the context of linear attention is off by 20 %."
    )
    assert said(exact) == said() == "Choose a variant to hold against exact attention."


def test_the_sentence_says_which_variants_are_no_better_than_the_plain_mean() -> None:
    far, causal = result("linformer", 0.6), result("fast_weights", 0.9, causal=True)
    assert "off by 50 %; Linformer is no nearer." in said(far, causal)
    assert "Linformer and the sliding window are no nearer" in said(far, result("window", 0.7))
    assert "The plain mean of all values would be off by 61 %." in said(far, causal, mean_error=0.61)


def test_the_sentence_says_whether_the_pairs_are_well_chosen() -> None:
    text = said(result("window", 0.2, pairs=0.2, kept=0.5), result("block", 0.2, pairs=0.5, kept=0.55))
    assert "Sliding window keeps 50 % of exact attention's mass on 20 % of the pairs, 2.5 times" in text
    text = said(result("window", 0.2, pairs=0.5, kept=0.55))
    assert "Sliding window keeps 55 % of exact attention's mass on 50 % of the pairs, hardly more" in text
    assert "keeps" not in said(result("linear", 0.2))


def test_shares_are_written_as_percent() -> None:
    written = [percent(x) for x in (0.0, 0.004, 0.0996, 0.23, 12.4, float("inf"))]
    assert all(" " not in text for text in written)
    assert [text.replace("\N{NO-BREAK SPACE}", " ") for text in written] == [
        "0 %",
        "0.4 %",
        "10 %",
        "23 %",
        "1,240 %",
        "∞",
    ]


def test_sheets_tell_what_the_weights_are() -> None:
    vectors, _ = drawn()
    view = compare_variants(vectors, VARIANTS, VariantSettings())
    sheet = weights_sheet(view)
    scales = {matrix.name: matrix.scale for matrix in sheet.matrices}
    assert scales["Exact"] == scales["Sliding window"] == "weights"
    assert scales["Linformer"] == scales["Fast weights"] == "signed"
    assert {matrix.limit for matrix in sheet.matrices} == {view.largest}
    assert "untrained" in " ".join(sheet.notes)
    panels = rows_sheet(view).panels
    assert [curve.name for curve in panels[1].curves] == ["Reformer", "Sliding window", "Block-sparse"]
    assert "Exact" not in [curve.name for curve in panels[0].curves]
    assert len(rows_sheet(compare_variants(vectors, ("linear",), VariantSettings())).panels) == 1
    random = compare_variants(vectors, ("linear",), VariantSettings(features="random"))
    assert "64 random features" in variant_notes(random)[0]
    assert set(TITLES) == set(SOURCES) == set(VARIANTS)


def test_wrong_input_is_told() -> None:
    two = random_vectors(numbered(3), width=2, heads=2)
    with pytest.raises(ValueError, match="compare_variants: vectors must be one head"):
        compare_variants(two, VARIANTS, VariantSettings())
    with pytest.raises(ValueError, match="compare_variants: variants must be"):
        compare_variants(two.head(0), ("sparse",), VariantSettings())  # type: ignore[arg-type]
