"""Attention inside windows, read as a map over the grid: held to a scatter written out in loops."""

from __future__ import annotations

import time
from dataclasses import dataclass, fields

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from attn_core import AttentionMap, DenseMap, FactoredMap, WindowedMap, attention, windows
from attn_core.windows import window_positions
from tests.oracles.windows import over_the_grid, windows_of


@dataclass(frozen=True)
class Grid:
    """A grid that is cut, and the attention of its windows as factors and as weights."""

    size: tuple[int, int]
    window: int
    shift: int
    pictures: int
    factors: FactoredMap
    weights: Tensor

    @property
    def positions(self) -> Tensor:
        return window_positions(self.size, self.window, shift=self.shift)

    def maps(self) -> tuple[WindowedMap, DenseMap]:
        """The windows as factors, read over the grid; and what the oracle says, kept as a dense map."""
        whole = over_the_grid(self.weights.numpy(), self.size, self.window, self.shift)
        return WindowedMap.of(self.factors, self.positions), DenseMap(stored=torch.from_numpy(whole))


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    """Any small grid: no whole number of windows, shifted or not, grouped heads, a bias that differs by window."""
    size = draw(st.integers(1, 7)), draw(st.integers(1, 7))
    window = draw(st.integers(1, 4))
    shift = draw(st.integers(0, window - 1))
    pictures, groups = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    heads = groups * draw(st.integers(1, 2))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    places = window_positions(size, window, shift=shift)
    batch, length = pictures * len(places), window**2

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) * 1.5

    query, key = normal(batch, heads, length, 3), normal(batch, groups, length, 3)
    bias = normal(draw(st.sampled_from([1, batch])), heads, length, length)
    output = attention(query, key, key, bias=bias)
    factors = FactoredMap(query, key, output.lse, 3**-0.5, bias=bias)
    return Grid(size, window, shift, pictures, factors, output.weights)


@given(st.integers(1, 9), st.integers(1, 9), st.integers(1, 5), st.data())
def test_positions_are_those_of_a_padded_and_rolled_grid(
    rows: int, columns: int, window: int, data: st.DataObject
) -> None:
    shift = data.draw(st.integers(0, window - 1))
    expected = [
        [-1 if place is None else place[0] * columns + place[1] for place in places]
        for places in windows_of((rows, columns), window, shift)
    ]
    assert window_positions((rows, columns), window, shift=shift).tolist() == expected


@given(grids())
def test_the_whole_batch_is_the_scattered_windows(grid: Grid) -> None:
    windowed, oracle = grid.maps()
    assert windowed.shape == oracle.shape
    assert windowed.kv_heads == grid.factors.kv_heads
    assert_close(windowed.weights(), oracle.weights())


@given(grids(), st.data())
def test_every_question_has_the_answer_of_the_scattered_windows(grid: Grid, data: st.DataObject) -> None:
    everything, oracle = grid.maps()
    picture = data.draw(st.integers(0, grid.pictures - 1))
    windowed, dense = everything.item(picture), oracle.item(picture)
    head = data.draw(st.none() | st.integers(0, dense.heads - 1))
    query = data.draw(st.integers(0, dense.queries - 1))
    rows = slice(query, data.draw(st.integers(query, dense.queries)))
    start = data.draw(st.integers(0, dense.keys - 1))
    columns = slice(start, data.draw(st.integers(start, dense.keys)))
    _same_answers(windowed, dense, head, query, rows, columns, bins=data.draw(st.integers(1, 10)))


@given(grids(), st.data())
def test_an_item_keeps_any_rows_and_columns(grid: Grid, data: st.DataObject) -> None:
    everything, oracle = grid.maps()
    count = everything.queries
    some = st.lists(st.integers(0, count - 1), min_size=1, max_size=count, unique=True).map(torch.tensor)
    rows, columns = data.draw(some), data.draw(some)
    windowed = everything.item(0, rows=rows, columns=columns)
    dense = oracle.item(0, rows=rows, columns=columns)
    assert windowed.shape == dense.shape
    head = data.draw(st.none() | st.integers(0, dense.heads - 1))
    _same_answers(
        windowed,
        dense,
        head,
        0,
        slice(0, dense.queries),
        slice(0, dense.keys),
        bins=data.draw(st.integers(1, 5)),
    )


def _same_answers(
    windowed: AttentionMap,
    dense: DenseMap,
    head: int | None,
    query: int,
    rows: slice,
    columns: slice,
    *,
    bins: int,
) -> None:
    assert_close(windowed.dense(head), dense.dense(head))
    assert_close(windowed.row(head, query), dense.row(head, query))
    assert_close(windowed.block(head, rows, columns), dense.block(head, rows, columns))
    for how in ("max", "mean"):
        assert_close(windowed.pooled(head, bins, how=how), dense.pooled(head, bins, how=how))
    links, keys = windowed.top_links(head, 3)
    assert_close(links, dense.top_links(head, 3)[0])
    assert_close(dense.dense(head).gather(-1, keys), links)
    assert all(len(set(row)) == len(row) for row in keys.flatten(0, -2).tolist())
    for field in fields(dense.statistics()):
        assert_close(getattr(windowed.statistics(), field.name), getattr(dense.statistics(), field.name))


@given(grids())
def test_rows_sum_to_one_where_a_window_holds_no_padding_and_else_to_what_is_kept(grid: Grid) -> None:
    windowed = grid.maps()[0].item(0)
    sums = windowed.dense().sum(-1)
    assert_close(windowed.kept(None).double(), sums, atol=1e-6, rtol=0.0)
    assert_close(windowed.kept(0), windowed.kept(None)[0])
    for places in windows_of(grid.size, grid.window, grid.shift):
        for query in (place for place in places if place is not None):
            row = sums[:, query[0] * grid.size[1] + query[1]]
            if None in places:
                assert (row < 1).all()
            else:
                assert_close(row, torch.ones_like(row))


@given(grids())
def test_a_picture_of_a_batch_equals_the_picture_alone(grid: Grid) -> None:
    everything, _ = grid.maps()
    count = len(grid.positions)
    for picture in range(grid.pictures):
        part = slice(picture * count, (picture + 1) * count)
        factors = grid.factors
        assert factors.bias is not None
        alone = FactoredMap(
            factors.query[part],
            factors.key[part],
            factors.lse[part],
            factors.scale,
            bias=factors.bias if len(factors.bias) == 1 else factors.bias[part],
        )
        assert_close(everything.item(picture).dense(), WindowedMap.of(alone, grid.positions).item(0).dense())


@settings(max_examples=20)
@given(grids())
def test_only_the_windows_that_a_block_touches_are_computed(grid: Grid) -> None:
    asked: list[int] = []

    class Watched(DenseMap):
        def item(self, index: int, **cut: Tensor | None) -> DenseMap:
            asked.append(index)
            return super().item(index, **cut)

    positions = grid.positions
    windowed = WindowedMap.of(Watched(stored=grid.weights), positions).item(0)
    asked.clear()
    windowed.row(None, 0)
    home = (positions == 0).any(-1).nonzero()[0, 0]
    assert set(asked) <= {0, int(home)}  # 0 is asked for its type


@given(grids(), st.none() | st.just(0))
def test_windows_one_by_one_and_all_together_are_the_same(grid: Grid, head: int | None) -> None:
    windowed = grid.maps()[0].item(grid.pictures - 1)
    together = windowed.kept(head), windowed.pooled(head, 3), windowed.top_links(head, 2)[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows, "TOGETHER_ELEMENTS", 0)
        one_by_one = windowed.kept(head), windowed.pooled(head, 3), windowed.top_links(head, 2)[0]
    for one, other in zip(one_by_one, together, strict=True):
        assert_close(one, other)


def test_a_large_grid_is_read_without_n_by_n() -> None:
    """224 × 224 patches are 50,176 positions: one n × n head would be 10 GB."""
    size, window = (224, 224), 7
    positions = window_positions(size, window, shift=3)
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(len(positions), 2, window**2, 8, generator=generator)
    output = attention(query, query, query)
    windowed = WindowedMap.of(FactoredMap(query, query, output.lse, 8**-0.5), positions).item(0)
    started = time.perf_counter()
    row = windowed.row(None, 50_000)
    assert row.shape == (2, 224 * 224)
    assert (row > 0).sum() <= 2 * window**2
    assert_close(windowed.statistics().received.sum(-1), torch.full((2,), 224.0 * 224.0))
    assert_close(windowed.pooled(0, 16, how="mean").sum(), torch.tensor(16 / (224 * 14)), rtol=1e-3, atol=0)
    assert windowed.top_links(1, 60)[0].shape == (224 * 224, 60)
    assert time.perf_counter() - started < 60


def test_statistics_leave_padding_out_and_normalise_nothing() -> None:
    """One window of 2 × 2 over a grid of one column: half of the places are padding."""
    weights = torch.tensor([[0.1, 0.2, 0.3, 0.4]]).expand(1, 1, 4, 4)
    windowed = WindowedMap.of(DenseMap(stored=weights), window_positions((2, 1), 2)).item(0)
    assert windowed.dense(0).tolist() == [[pytest.approx(0.1), pytest.approx(0.3)]] * 2
    assert_close(windowed.kept(0), torch.tensor([0.4, 0.4]))
    statistics = windowed.statistics()
    assert_close(statistics.entropy, torch.tensor([-(0.1 * np.log(0.1) + 0.3 * np.log(0.3))]).float())
    assert_close(statistics.max_weight, torch.tensor([0.3]))
    assert_close(statistics.received, torch.tensor([[0.2, 0.6]]))


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        (torch.arange(8).view(2, 4), r"must be \(W, n\) for windows of 4 × 4 weights in a batch of 3"),
        (torch.zeros(3, 3, dtype=torch.long), r"must be \(W, n\)"),
        (torch.zeros(3, 4, dtype=torch.long), "each position from 0 on exactly once"),
        (torch.arange(12).view(3, 4) + 1, "each position from 0 on exactly once"),
        (torch.full((3, 4), -1), "each position from 0 on exactly once"),
    ],
)
def test_positions_that_do_not_fit_are_named(positions: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WindowedMap.of(DenseMap(stored=torch.rand(3, 1, 4, 4)), positions)


def test_bad_questions_are_named() -> None:
    windowed = WindowedMap.of(DenseMap(stored=torch.rand(2, 1, 4, 4)), window_positions((2, 2), 2))
    with pytest.raises(ValueError, match=r"must hold one item but holds 2; call item\(index\) first"):
        windowed.kept(None)
    with pytest.raises(ValueError, match="must hold one item"):
        windowed.statistics()
    with pytest.raises(IndexError, match="index must be below 2 but is 2"):
        windowed.item(2)
    with pytest.raises(ValueError, match="bins must be at least 1"):
        windowed.item(0).pooled(0, 0)
    with pytest.raises(ValueError, match="k must be at least 1"):
        windowed.item(0).top_links(0, 0)
    with pytest.raises(ValueError, match="shift below window"):
        window_positions((4, 4), 2, shift=2)
