"""A document's windows as one map: held to a merge written out in loops."""

from __future__ import annotations

from dataclasses import dataclass, fields

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from attn_core import AttentionMap, DenseMap, FactoredMap, attention
from attn_core.masks import MaskRule
from attn_core.reading_map import ReadingMap
from attn_core.watching import watching
from tests.oracles.reading import document_map, owner_of, starts_of


@dataclass(frozen=True)
class Windows:
    """Windows of a document, as factors and as weights."""

    starts: list[int]
    length: int
    room: int
    before: int
    after: int
    causal: bool
    factors: FactoredMap
    weights: Tensor

    def maps(self) -> tuple[ReadingMap, DenseMap]:
        """What the windows' own rows say together; and what the oracle says, kept as a dense map."""
        every, last = range(self.length), self.before + self.length
        tails = range(last, last + self.after)
        parts, rows, columns = [], [], []
        for index, start in enumerate(self.starts):
            owned = [t for t in every if owner_of(t, self.starts, self.room, causal=self.causal) == index]
            held = [*range(self.before), *range(self.before + start, self.before + start + self.room), *tails]
            spoken = [*range(self.before), *(self.before + token for token in owned), *tails]
            places = torch.tensor([held.index(position) for position in spoken])
            parts.append(self.factors.item(index, rows=places))
            rows.append(torch.tensor(spoken))
            columns.append(torch.tensor(held))
        whole = document_map(
            list(self.weights.numpy()),
            self.starts,
            self.length,
            before=self.before,
            after=self.after,
            causal=self.causal,
        )
        return ReadingMap.of(parts, rows, columns), DenseMap(stored=torch.from_numpy(whole)[None])


@st.composite
def readings(draw: st.DrawFn) -> Windows:
    """Any document of a few windows: strides that divide nothing, no special tokens or several, grouped heads."""
    before, after = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    room = draw(st.integers(1, 6))
    length = room + draw(st.integers(1, 9))
    causal, groups = draw(st.booleans()), draw(st.integers(1, 2))
    starts = starts_of(length, room, draw(st.integers(1, room)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    size = before + room + after

    def normal(heads: int) -> Tensor:
        return torch.randn(len(starts), heads, size, 3, generator=generator, dtype=torch.float64) * 1.5

    query, key = normal(2 * groups), normal(groups)
    rule = MaskRule(causal=causal)
    output = attention(query, key, key, rule=rule)
    factors = FactoredMap(query, key, output.lse, 3**-0.5, rule)
    return Windows(starts, length, room, before, after, causal, factors, output.weights)


@given(readings(), st.data())
def test_every_question_has_the_answer_of_the_merged_windows(windows: Windows, data: st.DataObject) -> None:
    reading, dense = windows.maps()
    assert reading.shape == dense.shape
    assert reading.kv_heads == windows.factors.kv_heads
    _same_answers(reading, dense, data)


@given(readings(), st.data())
def test_an_item_keeps_any_rows_and_columns(windows: Windows, data: st.DataObject) -> None:
    reading, dense = windows.maps()
    count = reading.queries
    some = st.lists(st.integers(0, count - 1), min_size=1, max_size=count, unique=True).map(torch.tensor)
    rows, columns = data.draw(some), data.draw(some)
    cut, expected = (layer.item(0, rows=rows, columns=columns) for layer in (reading, dense))
    assert cut.shape == expected.shape
    _same_answers(cut, expected, data)


def test_a_mean_counts_windows_of_which_no_key_is_left() -> None:
    """The last token stands in one window of three, the first row in all."""
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(3, 1, 3, 3, generator=generator, dtype=torch.float64)
    windows = [DenseMap(stored=weights[index : index + 1]) for index in range(3)]
    held = [torch.tensor([0, 1 + index, 2 + index]) for index in range(3)]
    rows = [torch.tensor([0, 1]), torch.tensor([0, 2]), torch.tensor([0, 3, 4])]
    own = [window.item(0, rows=torch.arange(len(at))) for window, at in zip(windows, rows, strict=True)]
    reading = ReadingMap.of(own, rows, held)
    cut = reading.item(0, rows=torch.tensor([0]), columns=torch.tensor([4]))
    assert_close(cut.dense(0), weights[2, :, 0, 2:] / 3)
    assert_close(reading.block(0, slice(0, 1), slice(4, 5)), weights[2, :, 0, 2:] / 3)


def _same_answers(reading: AttentionMap, dense: DenseMap, data: st.DataObject) -> None:
    head = data.draw(st.none() | st.integers(0, dense.heads - 1))
    query = data.draw(st.integers(0, dense.queries - 1))
    rows = slice(query, data.draw(st.integers(query, dense.queries)))
    start = data.draw(st.integers(0, dense.keys - 1))
    columns = slice(start, data.draw(st.integers(start, dense.keys)))
    bins = data.draw(st.integers(1, 20))
    assert_close(reading.dense(head), dense.dense(head))
    assert_close(reading.row(head, query), dense.row(head, query))
    assert_close(reading.block(head, rows, columns), dense.block(head, rows, columns))
    for how in ("max", "mean"):
        assert_close(reading.pooled(head, bins, how=how), dense.pooled(head, bins, how=how))
    links, keys = reading.top_links(head, 3)
    assert_close(links, dense.top_links(head, 3)[0])
    assert_close(dense.dense(head).gather(-1, keys), links)
    assert all(len(set(row)) == len(row) for row in keys.flatten(0, -2).tolist())
    values = torch.randn(dense.keys, 2, dtype=torch.float64)
    assert_close(reading.apply(values), dense.dense() @ values)
    shares = torch.randn(2, dense.queries, dtype=torch.float64)
    assert_close(reading.apply_left(shares), shares @ dense.dense())
    found, expected = reading.statistics(), dense.statistics()
    for field in fields(expected):
        if getattr(expected, field.name) is not None:
            assert_close(getattr(found, field.name), getattr(expected, field.name))


@given(readings())
def test_rows_sum_to_one_and_every_query_is_in_one_piece(windows: Windows) -> None:
    reading, _ = windows.maps()
    assert_close(reading.row_totals().double(), torch.ones(reading.heads, reading.queries).double())
    told: list[int] = []
    with watching(told.append):
        pieces = list(reading.pieces())
    queries = torch.cat([rows for rows, _, _ in pieces])
    assert sorted(queries.tolist()) == list(range(reading.queries))
    assert sum(told) >= sum(weights.numel() for _, _, weights in pieces)


def test_a_long_document_is_read_without_n_by_n() -> None:
    """20,000 positions: one n × n head would be 1.6 GB."""
    room, length = 254, 19_998
    starts = starts_of(length, room, room // 2)
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, 2, room + 2, 8, generator=generator)
    window = FactoredMap(query, query, attention(query, query, query).lse, 8**-0.5)
    parts, rows, columns = [], [], []
    bounds = [0, *(start + room * 3 // 4 for start in starts[:-1]), length]
    for index, start in enumerate(starts):
        owned = range(bounds[index] - start, bounds[index + 1] - start)
        parts.append(window.item(0, rows=torch.tensor([0, *(place + 1 for place in owned), room + 1])))
        rows.append(torch.tensor([0, *(start + place + 1 for place in owned), length + 1]))
        columns.append(torch.tensor([0, *range(start + 1, start + room + 1), length + 1]))
    reading = ReadingMap.of(parts, rows, columns)
    assert reading.shape == (1, 2, 20_000, 20_000)
    assert (reading.row(None, 10_000) > 0).sum() <= 2 * (room + 2)
    assert int((reading.row(0, 0) > 0).sum()) == 20_000  # the mean of all windows
    assert_close(reading.statistics().received.sum(-1), torch.full((2,), 20_000.0))
    assert reading.pooled(None, 64).shape == (2, 64, 64)
    assert reading.top_links(1, 4)[0].shape == (20_000, 4)


def test_windows_that_do_not_fit_are_named() -> None:
    window = DenseMap(stored=torch.rand(1, 1, 2, 2))
    at = torch.tensor([0, 1])
    with pytest.raises(ValueError, match="must be as many and at least one but are 0, 0 and 0"):
        ReadingMap.of([], [], [])
    with pytest.raises(ValueError, match=r"must be \(1, 1, 3, 2\) for their positions but one is"):
        ReadingMap.of([window], [torch.arange(3)], [at])
    with pytest.raises(ValueError, match="positions of a window must ascend"):
        ReadingMap.of([window], [at.flip(0)], [at])
    with pytest.raises(ValueError, match="must hold all rows from 0 on but some are missing"):
        ReadingMap.of([window], [at + 1], [at])
    with pytest.raises(ValueError, match="must hold all keys from 0 on but some are missing"):
        ReadingMap.of([window], [at], [at * 2])


def test_bad_questions_are_named() -> None:
    reading = ReadingMap.of([DenseMap(stored=torch.rand(1, 1, 2, 2))], [torch.arange(2)], [torch.arange(2)])
    with pytest.raises(IndexError, match="index must be below 1 but is 1"):
        reading.item(1)
    with pytest.raises(ValueError, match="bins must be at least 1"):
        reading.pooled(0, 0)
    with pytest.raises(ValueError, match="k must be at least 1"):
        reading.top_links(0, 0)
