"""Searches for other attention: what they may never break, planted models, the exact answer against brute force."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from analysis.adversarial.distances import LN2, farthest, jensen_shannon, kullback_leibler, total_variation
from analysis.adversarial.permutation import permutations
from analysis.adversarial.rows import FreeRows, weighted_sum_rows
from analysis.adversarial.search import Adversaries, exact_search, penalty_search, projected_search

SEARCHES = {
    "penalty": lambda rows, epsilon: penalty_search(rows, epsilon=epsilon, steps=40, rate=0.05, candidates=3),
    "projected": lambda rows, epsilon: projected_search(rows, epsilon=epsilon, steps=40, candidates=3),
    "exact": lambda rows, epsilon: exact_search(rows, epsilon=epsilon),
}


def made(
    lengths: list[int],
    *,
    seed: int,
    spread: float = 1.0,
    lean: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> FreeRows:
    """Random attention over texts of these lengths and random logits of two classes."""
    generator = torch.Generator().manual_seed(seed)
    size = max(lengths)
    inside = torch.arange(size) < torch.tensor(lengths)[:, None]
    scores = spread * torch.randn(len(lengths), size, generator=generator, dtype=dtype)
    decoder = lean * torch.randn(len(lengths), size, 2, generator=generator, dtype=dtype)
    return weighted_sum_rows(
        scores.masked_fill(~inside, -math.inf).softmax(-1), inside, decoder, labels=("no", "yes")
    )


def held(rows: FreeRows, found: Adversaries) -> None:
    """What must hold of any result."""
    sums = found.weights.sum(-1)
    assert_close(sums, torch.ones_like(sums), rtol=0.0, atol=1e-5)
    assert not found.weights[(~rows.inside[:, None]).expand(found.weights.shape)].any()
    answers = rows.answers(found.weights)
    assert bool((rows.change(answers, rows.said()) <= found.epsilon).all())
    assert_close(answers, found.answers, rtol=0.0, atol=1e-6)
    assert_close(rows.divergence(found.weights), found.divergence, rtol=0.0, atol=1e-6)
    assert bool((found.divergence <= found.bound[:, None] + 1e-6).all())
    assert bool((found.bound <= LN2 + 1e-9).all())


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=3),
    st.integers(0, 2**31),
    st.sampled_from([0.001, 0.01, 0.3]),
    st.sampled_from(list(SEARCHES)),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_no_candidate_breaks_epsilon_or_the_bound(
    lengths: list[int], seed: int, epsilon: float, name: str, dtype: torch.dtype
) -> None:
    rows = made(lengths, seed=seed, lean=3.0, dtype=dtype)
    found = SEARCHES[name](rows, epsilon)
    held(rows, found)
    assert found.best.tolist() == found.divergence.argmax(-1).tolist()


@settings(max_examples=15, deadline=None)
@given(st.integers(2, 5), st.integers(0, 2**31), st.sampled_from([0.005, 0.05, 0.2]))
def test_the_exact_maximum_is_above_every_point_of_a_grid(size: int, seed: int, epsilon: float) -> None:
    rows = made([size], seed=seed, lean=2.0)
    steps = {2: 400, 3: 60, 4: 24, 5: 14}[size]
    counts = [point for point in itertools.product(range(steps + 1), repeat=size - 1) if sum(point) <= steps]
    grid = torch.tensor([[*point, steps - sum(point)] for point in counts], dtype=torch.float64) / steps
    weights = grid[None, :, None]
    allowed = rows.change(rows.answers(weights), rows.said())[0] <= epsilon * (1 - 1e-4)
    best = torch.where(allowed, rows.divergence(weights)[0], 0.0).max()
    found = exact_search(rows, epsilon=epsilon)
    assert float(found.farthest) >= float(best) - 1e-9
    held(rows, found)


def test_the_optimisers_come_near_the_exact_maximum_and_say_when_they_have_settled() -> None:
    rows = made([12] * 20, seed=4, spread=2.0, lean=1.0)
    exact = exact_search(rows).farthest
    penalty = penalty_search(rows, steps=500, rate=0.05)
    projected = projected_search(rows, candidates=16, steps=300)
    for found, least in ((penalty, 0.8), (projected, 0.9)):
        assert bool((found.farthest <= exact + 1e-6).all())
        assert float((found.farthest / exact).median()) > least
    assert float(projected.converged.double().mean()) > 0.9
    hasty = penalty_search(rows, steps=5, rate=0.5)
    assert not bool(hasty.converged.all())


# Planted models


def test_attention_that_a_model_ignores_is_replaced_up_to_the_bound() -> None:
    """Every state says the same, so any weights give the same answer."""
    rows = made([9, 5], seed=0)
    decoder = rows.decoder[:, :1].expand(-1, 9, -1) if rows.decoder is not None else None
    assert decoder is not None
    ignoring = weighted_sum_rows(rows.observed[:, 0], rows.inside[:, 0], decoder, labels=("no", "yes"))
    for found in (
        penalty_search(ignoring, candidates=16, rate=0.05, steps=200),
        projected_search(ignoring, candidates=16, steps=200),
    ):
        assert bool((found.farthest > 0.9 * found.bound).all())
    assert_close(exact_search(ignoring).farthest, ignoring.bound(), rtol=1e-6, atol=1e-6)
    assert not permutations(ignoring, count=20).change.max() > 1e-12


def test_attention_that_a_model_must_use_cannot_be_replaced() -> None:
    """One word says yes and all others no, and the answer sits on the slope between."""
    observed = torch.tensor([[0.5, 0.1, 0.1, 0.1, 0.1, 0.1]], dtype=torch.float64)
    lean = torch.tensor([[8.0, -8.0, -8.0, -8.0, -8.0, -8.0]], dtype=torch.float64)
    decoder = torch.stack([torch.zeros_like(lean), lean], -1)
    alone = weighted_sum_rows(
        observed[:, :2] / observed[:, :2].sum(),
        torch.ones(1, 2, dtype=torch.bool),
        decoder[:, :2],
        labels=("n", "y"),
    )
    sure = exact_search(alone, epsilon=0.01)
    assert float(sure.farthest) < 0.15
    free = weighted_sum_rows(observed, torch.ones(1, 6, dtype=torch.bool), decoder, labels=("n", "y"))
    found = exact_search(free, epsilon=0.01)
    assert float(found.weights[0, 0, 0, 0]) == pytest.approx(0.5, abs=0.01)
    assert float(found.farthest) < 0.5 * float(free.bound())
    for name in ("penalty", "projected"):
        assert float(SEARCHES[name](free, 0.01).farthest) <= float(found.farthest) + 1e-6


def test_one_token_has_no_other_attention_and_uniform_is_the_identity() -> None:
    rows = made([1, 4], seed=1)
    assert_close(rows.uniform()[0, 0, 0], rows.observed[0, 0])
    for search in SEARCHES.values():
        assert float(search(rows, 0.01).farthest[0]) == 0.0
    assert float(rows.bound()[0]) == 0.0


@given(st.integers(1, 8), st.integers(0, 2**31))
def test_permuting_equal_weights_changes_nothing(size: int, seed: int) -> None:
    rows = made([size, 8], seed=seed, spread=0.0)
    assert_close(
        permutations(rows, count=10, seed=seed).change,
        torch.zeros(2, 10, dtype=torch.float64),
        rtol=0.0,
        atol=1e-12,
    )


def test_permutations_in_parts_are_those_of_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    rows, told = made([6, 3], seed=2), []
    whole = permutations(rows, count=30, seed=5)
    monkeypatch.setattr("analysis.adversarial.permutation.BATCH_WEIGHTS", 40)
    parts = permutations(rows, count=30, seed=5, progress=told.append)
    assert torch.equal(whole.change, parts.change)
    assert len(told) > 3
    assert told[-1] == 1.0
    middle = rows.change(rows.answers(whole.typical[:, None]), rows.said())[:, 0]
    assert_close(middle, whole.change.sort(-1).values[:, 14])


# Distances


@given(st.integers(1, 6), st.integers(0, 2**31))
def test_distances_are_those_of_the_definitions(size: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    p, q = torch.rand(2, size, generator=generator, dtype=torch.float64).softmax(-1)
    p[0] = 0
    p = p / p.sum() if size > 1 else torch.ones(1, dtype=torch.float64)
    middle = (p + q) / 2
    expected = 0.5 * sum(float(torch.special.xlogy(a, a / middle).sum()) for a in (p, q))
    assert float(jensen_shannon(p, q)) == pytest.approx(expected, abs=1e-12)
    assert 0 <= float(jensen_shannon(p, q)) <= LN2 + 1e-12
    assert 0 <= float(total_variation(p, q)) <= 1 + 1e-12
    assert float(jensen_shannon(p, p)) == pytest.approx(0.0, abs=1e-12)
    assert float(kullback_leibler(p, q)) >= -1e-12
    assert math.isinf(float(kullback_leibler(q, p))) or size == 1
    bound, place = farthest(q, torch.ones(size, dtype=torch.bool))
    corners = jensen_shannon(torch.eye(size, dtype=torch.float64), q[None])
    assert float(bound) == pytest.approx(float(corners.max()), abs=1e-12)
    assert float(corners[place]) == pytest.approx(float(bound), abs=1e-12)


def test_gradients_of_the_divergence_are_finite_where_weights_are_0() -> None:
    p = torch.tensor([0.0, 0.5, 0.5, 0.0], dtype=torch.float64, requires_grad=True)
    q = torch.tensor([0.0, 0.0, 0.4, 0.6], dtype=torch.float64)
    (gradient,) = torch.autograd.grad(jensen_shannon(p, q), p)
    assert bool(gradient.isfinite().all())


# Refusals


@pytest.mark.parametrize("name", list(SEARCHES))
def test_an_epsilon_of_0_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="epsilon must be above 0 but is 0"):
        SEARCHES[name](made([3], seed=0), 0.0)


def test_counts_below_1_are_refused() -> None:
    rows = made([3], seed=0)
    with pytest.raises(ValueError, match="candidates must be at least 1"):
        penalty_search(rows, candidates=0)
    with pytest.raises(ValueError, match="steps must be at least 1"):
        projected_search(rows, steps=0)
    with pytest.raises(ValueError, match="count must be at least 1"):
        permutations(rows, count=0)


def test_the_exact_search_is_for_two_classes() -> None:
    rows = made([3], seed=0)
    assert rows.decoder is not None
    three = weighted_sum_rows(
        rows.observed[:, 0],
        rows.inside[:, 0],
        torch.cat([rows.decoder, rows.decoder[..., :1]], -1),
        labels=("a", "b", "c"),
    )
    with pytest.raises(ValueError, match="two classes"):
        exact_search(three)


def test_progress_is_told_and_what_it_raises_comes_out() -> None:
    rows, told = made([4], seed=0), []
    penalty_search(rows, steps=5, progress=told.append)
    assert told == [0.2, 0.4, 0.6, 0.8, 1.0]

    def stop(_: float) -> None:
        raise KeyboardInterrupt

    for search in (penalty_search, projected_search):
        with pytest.raises(KeyboardInterrupt):
            search(rows, progress=stop)


def test_rows_that_do_not_sum_to_1_are_refused() -> None:
    half: Tensor = torch.full((1, 4), 0.2, dtype=torch.float64)
    from attn_core.errors import UnsupportedModelError

    with pytest.raises(UnsupportedModelError, match=r"one sums to 0\.8"):
        weighted_sum_rows(
            half, torch.ones(1, 4, dtype=torch.bool), torch.zeros(1, 4, 2).double(), labels=("a", "b")
        )


def test_an_input_is_permuted_alike_alone_and_among_longer_ones() -> None:
    together = made([3, 9, 5], seed=6)
    found = permutations(together, count=20, seed=2)
    for item, length in enumerate((3, 9, 5)):
        observed, inside = (
            together.observed[item : item + 1, 0, :length],
            together.inside[item : item + 1, 0, :length],
        )
        assert together.decoder is not None
        decoder = together.decoder[item : item + 1, :length]
        alone = permutations(
            weighted_sum_rows(observed, inside, decoder, labels=("a", "b")), count=20, seed=2
        )
        assert_close(alone.change[0], found.change[item], rtol=0.0, atol=1e-12)
        assert_close(alone.typical[0, 0], found.typical[item, 0, :length])
