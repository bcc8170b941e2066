"""Scoring functions against their formulas in float64 NumPy, and what every scoring function must keep to."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor
from torch.testing import assert_close

from attn_core import additive_scores, concat_scores, dot_scores, general_scores, scaled_dot_scores
from attn_core.functional import masked_softmax

Scores = Callable[[Tensor, Tensor], Tensor]
Formula = Callable[[NDArray[np.float64], NDArray[np.float64]], float]


def scorings(width: int, key_width: int, inner: int, seed: int) -> dict[str, tuple[Scores, Formula]]:
    """Each function with drawn parameters, and its formula for one query and one key."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    W, U, v, b, M = (
        normal(inner, width),
        normal(inner, key_width),
        normal(inner),
        normal(inner),
        normal(width, key_width),
    )
    w, u, vector, shift, middle = (t.numpy() for t in (W, U, v, b, M))
    both = np.concatenate([w, u], axis=1)
    found: dict[str, tuple[Scores, Formula]] = {
        "additive": (
            lambda q, k: additive_scores(q, k, W, U, v, b),
            lambda q, k: vector @ np.tanh(w @ q + u @ k + shift),
        ),
        "additive, no bias": (
            lambda q, k: additive_scores(q, k, W, U, v),
            lambda q, k: vector @ np.tanh(w @ q + u @ k),
        ),
        "concat": (
            lambda q, k: concat_scores(q, k, torch.cat([W, U], dim=1), v),
            lambda q, k: vector @ np.tanh(both @ np.concatenate([q, k])),
        ),
        "general": (lambda q, k: general_scores(q, k, M), lambda q, k: q @ middle @ k),
    }
    if width == key_width:
        found["dot"] = dot_scores, lambda q, k: q @ k
        found["scaled dot"] = scaled_dot_scores, lambda q, k: q @ k / np.sqrt(width)
    return found


@st.composite
def inputs(draw: st.DrawFn, *, smallest: int = 0) -> tuple[Tensor, Tensor, dict[str, tuple[Scores, Formula]]]:
    """Query (B, H, Q, D), key (B, G, K, E) and the scoring functions for these widths; Q or K may be 0."""
    batch, groups, repeats = (draw(st.integers(1, 3)) for _ in range(3))
    queries, keys = draw(st.integers(smallest, 6)), draw(st.integers(smallest, 6))
    width = draw(st.integers(1, 5))
    key_width = draw(st.just(width) | st.integers(1, 5))
    seed = draw(st.integers(0, 2**31))
    generator = torch.Generator().manual_seed(seed + 1)
    query = torch.randn(batch, groups * repeats, queries, width, generator=generator, dtype=torch.float64)
    key = torch.randn(batch, groups, keys, key_width, generator=generator, dtype=torch.float64)
    return query, key, scorings(width, key_width, draw(st.integers(1, 5)), seed)


@given(inputs())
def test_scores_are_the_formula(drawn) -> None:
    query, key, functions = drawn
    heads, groups = query.shape[1], key.shape[1]
    for name, (scores, formula) in functions.items():
        found = scores(query, key)
        expected = np.zeros((*query.shape[:3], key.shape[2]))
        for b, h, i, j in np.ndindex(expected.shape):
            expected[b, h, i, j] = formula(query[b, h, i].numpy(), key[b, h // (heads // groups), j].numpy())
        assert found.shape == expected.shape, name
        np.testing.assert_allclose(found.numpy(), expected, atol=1e-12, err_msg=name)


@given(inputs(smallest=1))
def test_order_of_queries_and_keys_is_carried_along(drawn) -> None:
    query, key, functions = drawn
    generator = torch.Generator().manual_seed(0)
    rows, columns = (torch.randperm(t.shape[2], generator=generator) for t in (query, key))
    for scores, _ in functions.values():
        assert_close(
            scores(query[:, :, rows], key[:, :, columns]), scores(query, key)[:, :, rows][..., columns]
        )


@given(inputs(smallest=1))
def test_rows_of_weights_sum_to_one(drawn) -> None:
    query, key, functions = drawn
    for scores, _ in functions.values():
        sums = masked_softmax(scores(query, key), None)[0].sum(-1)
        assert_close(sums, torch.ones_like(sums))


@given(inputs())
def test_grouped_heads_are_repeated_heads(drawn) -> None:
    query, key, functions = drawn
    repeated = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    for scores, _ in functions.values():
        assert_close(scores(query, repeated), scores(query, key))


def test_strips_do_not_show_in_numbers_or_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(3)
    shapes = (2, 4, 11, 5), (2, 2, 9, 3), (6, 5), (6, 3), (6,), (6,)
    tensors = [
        torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=True) for shape in shapes
    ]
    upstream = torch.randn(2, 4, 11, 9, generator=generator, dtype=torch.float64)
    whole = additive_scores(*tensors)
    expected = torch.autograd.grad((whole * upstream).sum(), tensors)
    monkeypatch.setattr("attn_core.scores.strip_rows", lambda *_args: 4)
    strips = additive_scores(*tensors)
    assert_close(strips, whole)
    assert_close(torch.autograd.grad((strips * upstream).sum(), tensors), expected)
    with torch.no_grad():
        assert_close(additive_scores(*tensors), whole.detach())


def test_additive_scores_keep_no_array_of_pairs_and_channels(monkeypatch: pytest.MonkeyPatch) -> None:
    queries, keys, inner = 32, 24, 16
    monkeypatch.setattr("attn_core.scores.strip_rows", lambda *_args: 2)
    query = torch.randn(1, 1, queries, 4, requires_grad=True)
    key, vector = torch.randn(1, 1, keys, 4), torch.randn(inner, requires_grad=True)
    kept: dict[int, int] = {}  # storage -> its bytes

    def count(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
        additive_scores(query, key, torch.randn(inner, 4), torch.randn(inner, 4), vector)
    assert sum(kept.values()) < 4 * queries * keys * inner / 4


def test_gradients_are_right(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=True)

    query, key, vector, bias = normal(1, 2, 3, 2), normal(1, 1, 4, 3), normal(5), normal(5)
    both = normal(1, 2, 4, 2)
    for rows in (100, 2):
        monkeypatch.setattr("attn_core.scores.strip_rows", lambda *_args, n=rows: n)
        assert torch.autograd.gradcheck(
            additive_scores, (query, key, normal(5, 2), normal(5, 3), vector, bias)
        )
        assert torch.autograd.gradcheck(concat_scores, (query, key, normal(5, 5), vector))
    assert torch.autograd.gradcheck(general_scores, (query, key, normal(2, 3)))
    assert torch.autograd.gradcheck(dot_scores, (query, both))
    assert torch.autograd.gradcheck(scaled_dot_scores, (query, both))


def test_scale_of_zero_stays_zero() -> None:
    query = torch.randn(1, 1, 2, 3)
    assert torch.equal(scaled_dot_scores(query, query, scale=0.0), torch.zeros(1, 1, 2, 2))


def test_arguments_that_do_not_fit_are_named() -> None:
    query, key = torch.randn(2, 4, 3, 5), torch.randn(2, 2, 6, 7)
    W, U, v = torch.randn(8, 5), torch.randn(8, 7), torch.randn(8)
    with pytest.raises(ValueError, match="additive_scores: query must have 4 axes"):
        additive_scores(query[0], key, W, U, v)
    with pytest.raises(ValueError, match="key must have the 5 channels that its weight takes but has 7"):
        additive_scores(query, key, W, W, v)
    with pytest.raises(ValueError, match="additive_scores: key must have query's width 8 but has 7"):
        additive_scores(query, key, W, U[:7], v)
    with pytest.raises(ValueError, match="multiple of key's 2 heads but has 3"):
        additive_scores(query[:, :3], key, W, U, v)
    with pytest.raises(ValueError, match=r"vector must hold 8 numbers, .* but holds 7"):
        additive_scores(query, key, W, U, v[:7])
    with pytest.raises(ValueError, match=r"bias must hold 8 numbers, .* but holds 1"):
        additive_scores(query, key, W, U, v, v[:1])
    with pytest.raises(TypeError, match=r"vector must have dtype torch\.float32 but has torch\.float64"):
        additive_scores(query, key, W, U, v.double())
    with pytest.raises(TypeError, match="query's weight must have dtype"):
        general_scores(query, key, torch.randn(5, 7).double())
    with pytest.raises(ValueError, match=r"concat_scores: weight must have 5 \+ 7 columns"):
        concat_scores(query, key, W, v)
    with pytest.raises(ValueError, match="general_scores: weight must have 2 axes"):
        general_scores(query, key, v)
    for function in (dot_scores, scaled_dot_scores):
        with pytest.raises(ValueError, match=f"{function.__name__}: key must have query's width 5 but has 7"):
            function(query, key)
