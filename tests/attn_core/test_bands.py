"""Attention kept as a band and global tokens gives the numbers of the same weights kept dense, whatever is asked."""

from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from attn_core import BandedMap, DenseMap, MemoryBudgetError


def banded(weights: Tensor, is_global: Tensor, reach: int, valid: Tensor | None) -> BandedMap:
    """Dense weights, cut into band, columns and rows one number at a time."""
    batch, heads, tokens, _ = weights.shape
    count = int(is_global.sum(1).max())
    band = torch.zeros(batch, heads, tokens, 2 * reach + 1)
    columns = torch.zeros(batch, heads, tokens, count)
    rows = torch.rand(batch, heads, count, tokens)  # rows that no global token has may hold anything
    positions = torch.full((batch, count), -1)
    for item in range(batch):
        chosen = is_global[item].nonzero()[:, 0].tolist()
        for number, position in enumerate(chosen):
            positions[item, number] = position
            rows[item, :, number] = weights[item, :, position]
        for i in range(tokens):
            if i in chosen:
                continue
            for number, j in enumerate(chosen):
                columns[item, :, i, number] = weights[item, :, i, j]
            for j in range(tokens):
                if abs(i - j) <= reach and j not in chosen:
                    band[item, :, i, j - i + reach] = weights[item, :, i, j]
    return BandedMap(band, columns, rows, positions, valid)


@st.composite
def pairs(draw: st.DrawFn) -> tuple[BandedMap, DenseMap]:
    """The same weights in both forms: any reach, global tokens of differing number, padding anywhere."""
    batch, heads, tokens, reach = (draw(st.integers(1, top)) for top in (3, 2, 9, 4))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    share = draw(st.sampled_from([0.0, 0.2, 0.5]))
    valid = torch.rand(batch, tokens, generator=generator) > draw(st.sampled_from([0.0, 0.4]))
    is_global = (torch.rand(batch, tokens, generator=generator) < share) & valid
    near = (torch.arange(tokens)[:, None] - torch.arange(tokens)).abs() <= reach
    seen = (near | is_global[:, :, None] | is_global[:, None]) & valid[:, :, None] & valid[:, None]
    weights = torch.rand(batch, heads, tokens, tokens, generator=generator) * seen[:, None]
    weights = weights / weights.sum(-1, keepdim=True).clamp(min=1e-9)
    return banded(weights, is_global, reach, valid), DenseMap(weights, row_valid=valid, key_valid=valid)


@given(pairs(), st.data())
def test_every_question_has_the_same_answer(pair: tuple[BandedMap, DenseMap], data: st.DataObject) -> None:
    assert torch.equal(pair[0].weights(), pair[1].weights())
    assert pair[0].shape == pair[1].shape
    band, dense = (layer.item(data.draw(st.just(pair[0].batch - 1))) for layer in pair)
    assert band.shape == dense.shape
    if not dense.queries:
        return
    head = data.draw(st.none() | st.integers(0, dense.heads - 1))
    query = data.draw(st.integers(0, dense.queries - 1))
    rows = slice(query, data.draw(st.integers(query, dense.queries)))
    left = data.draw(st.integers(0, dense.keys))
    columns = slice(left, data.draw(st.integers(left, dense.keys)))
    bins = data.draw(st.integers(1, 10))
    assert torch.equal(band.dense(head), dense.dense(head))
    assert torch.equal(band.row(head, query), dense.row(head, query))
    assert torch.equal(band.block(head, rows, columns), dense.block(head, rows, columns))
    for how in ("max", "mean"):
        assert_close(band.pooled(head, bins, how=how), dense.pooled(head, bins, how=how))
    assert torch.equal(band.top_links(head, 3)[0], dense.top_links(head, 3)[0])
    for field in fields(dense.statistics()):
        assert_close(getattr(band.statistics(), field.name), getattr(dense.statistics(), field.name))


@given(pairs(), st.data())
def test_any_positions_can_be_kept_and_cut_again(
    pair: tuple[BandedMap, DenseMap], data: st.DataObject
) -> None:
    every = st.lists(st.integers(0, pair[0].keys - 1), min_size=1, unique=True).map(sorted)
    rows, columns = torch.tensor(data.draw(every)), torch.tensor(data.draw(every))
    band, dense = (layer.item(0, rows=rows, columns=columns) for layer in pair)
    assert torch.equal(band.dense(), dense.dense())
    again = torch.tensor(
        data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, unique=True).map(sorted))
    )
    assert torch.equal(band.item(0, rows=again).dense(), dense.item(0, rows=again).dense())


def test_global_tokens_are_counted_among_what_is_left() -> None:
    is_global = torch.tensor([[False, True, False, False, True], [False] * 5])
    valid = torch.tensor([[False, True, True, False, True], [True] * 5])
    layer = banded(torch.rand(2, 1, 5, 5), is_global, 1, valid)
    assert layer.item(0).global_positions() == (0, 2)
    assert layer.item(1).global_positions() == ()
    assert layer.item(1).global_rows.shape == (1, 1, 0, 5)


def test_a_long_band_is_kept_and_read_without_n_by_n() -> None:
    n, reach = 6000, 16
    band = torch.rand(1, 2, n, 2 * reach + 1)
    band[..., 0, :reach], band[..., -1, reach + 1 :] = 0.0, 0.0
    layer = BandedMap(band, torch.rand(1, 2, n, 1), torch.rand(1, 2, 1, n), torch.tensor([[0]])).item(0)
    with pytest.raises(MemoryBudgetError):
        layer.dense()
    held = sum(getattr(layer, f.name).nbytes for f in fields(layer) if getattr(layer, f.name) is not None)
    assert held < 1.2 * (band.nbytes + 4 * 4 * n)
    row = torch.zeros(n)
    row[3000 - reach : 3000 + reach + 1] = band[0, 1, 3000]
    row[0] = layer.global_columns[0, 1, 3000, 0]
    assert torch.equal(layer.row(1, 3000), row)
    assert torch.equal(layer.row(1, 0), layer.global_rows[0, 1, 0])


@pytest.mark.parametrize(
    ("band", "columns", "message"),
    [
        (torch.zeros(1, 2, 5, 4), torch.zeros(1, 2, 5, 1), "must have an odd width"),
        (torch.zeros(1, 2, 5, 3), torch.zeros(1, 2, 5, 2), r"global_columns must be \(1, 2, 5, 1\)"),
        (torch.zeros(2, 5, 3), torch.zeros(1, 2, 5, 1), "band must have 4 axes"),
    ],
)
def test_parts_that_do_not_fit_are_named(band: Tensor, columns: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BandedMap(band, columns, torch.zeros(1, 2, 1, 5), torch.tensor([[0]]))
