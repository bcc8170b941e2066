"""What is told of a tile from a few numbers, against the mask written out."""

from __future__ import annotations

from itertools import combinations, product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attn_core import MaskRule
from attn_core.flash.cover import Cover, cover
from attn_core.mask_rules import (
    block_sparse_rule,
    causal_rule,
    dilated_rule,
    document_rule,
    padding_rule,
    prefix_rule,
    window_rule,
)
from tests.attn_core.test_mask_rules import rules, written_out

SIZE = 12
"""Keys of the maps that are walked tile by tile."""


@st.composite
def maps(draw: st.DrawFn) -> tuple[MaskRule, int, int]:
    """A rule of any kind with Q ≤ K of a map, as documents need it."""
    keys = draw(st.integers(1, 9))
    return draw(rules(keys)), draw(st.integers(1, keys)), keys


def part(draw: st.DrawFn, size: int) -> slice:
    start = draw(st.integers(0, size - 1))
    return slice(start, draw(st.integers(start + 1, size)))


def truth(allowed: Tensor) -> str:
    return "all" if bool(allowed.all()) else "some" if bool(allowed.any()) else "none"


@given(maps(), st.data())
def test_a_tile_is_never_told_wrong_and_exactly_when_evaluated(
    drawn: tuple[MaskRule, int, int], data: st.DataObject
) -> None:
    rule, queries, keys = drawn
    rows, columns = (part(data.draw, size) for size in (queries, keys))
    expected = truth(written_out(rule, queries, keys)[:, rows, columns])
    found = cover(rule, rows, columns, queries=queries, keys=keys)
    assert found in ("some", expected)
    assert cover(rule, rows, columns, queries=queries, keys=keys, evaluated=True) == expected


@given(maps(), st.data())
def test_nothing_is_allowed_outside_the_span_of_a_strip(
    drawn: tuple[MaskRule, int, int], data: st.DataObject
) -> None:
    rule, queries, keys = drawn
    rows = part(data.draw, queries)
    span = Cover.of(rule, queries=queries, keys=keys).columns_of(rows)
    assert 0 <= span.start <= span.stop <= keys
    allowed = written_out(rule, queries, keys)[:, rows]
    assert not allowed[..., : span.start].any()
    assert not allowed[..., span.stop :].any()


@st.composite
def parts_alone(draw: st.DrawFn) -> tuple[MaskRule, int, int]:
    """Rules of one part, more queries than keys among them, whose tiles are all told without a mask."""
    keys, queries = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    kind = draw(st.sampled_from(["band", "padding", "prefix", "documents"]))
    if kind == "band":
        return (
            MaskRule(causal=draw(st.booleans()), window=draw(st.none() | st.integers(1, 10))),
            queries,
            keys,
        )
    if kind == "padding":
        return padding_rule(torch.tensor([draw(st.integers(0, keys))]), keys=keys), queries, keys
    if kind == "prefix":
        return prefix_rule(draw(st.integers(0, keys + 1))), queries, keys
    lengths = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    documents = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    return document_rule(documents[None]), draw(st.integers(1, sum(lengths))), sum(lengths)


@given(parts_alone(), st.data())
def test_one_part_of_a_rule_is_told_exactly(drawn: tuple[MaskRule, int, int], data: st.DataObject) -> None:
    rule, queries, keys = drawn
    rows, columns = (part(data.draw, size) for size in (queries, keys))
    allowed = written_out(rule, queries, keys)[:, rows, columns]
    assert cover(rule, rows, columns, queries=queries, keys=keys) == truth(allowed)


@pytest.mark.parametrize("queries", [3, 6])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("window", [None, 1, 3])
def test_every_tile_of_a_band_is_told_exactly(queries: int, causal: bool, window: int | None) -> None:
    keys = 5
    rule = MaskRule(causal=causal, window=window)
    known, allowed = Cover.of(rule, queries=queries, keys=keys), written_out(rule, queries, keys)
    for rows, columns in product(*(combinations(range(size + 1), 2) for size in (queries, keys))):
        tile = slice(*rows), slice(*columns)
        assert known.of_tile(*tile) == truth(allowed[0][tile])


def test_spans_are_as_narrow_as_what_a_strip_sees() -> None:
    documents = document_rule(torch.tensor([[0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]]))
    assert Cover.of(None, queries=SIZE, keys=SIZE).columns_of(slice(4, 6)) == slice(0, SIZE)
    for rule, span in [
        (causal_rule(), slice(0, 6)),
        (window_rule(3), slice(2, 6)),
        (window_rule(3, causal=False), slice(2, 8)),
        (prefix_rule(9), slice(0, 9)),
        (documents, slice(4, 8)),
        (causal_rule() & documents, slice(4, 6)),
        (padding_rule(torch.tensor([3, 5]), keys=SIZE), slice(0, 5)),
        (MaskRule(key_valid=torch.arange(SIZE)[None] % 4 == 2), slice(2, 11)),
    ]:
        assert Cover.of(rule, queries=SIZE, keys=SIZE).columns_of(slice(4, 6)) == span
    nothing = MaskRule(key_valid=torch.zeros(1, SIZE, dtype=torch.bool))
    assert Cover.of(nothing, queries=SIZE, keys=SIZE).columns_of(slice(4, 6)) in (slice(0, 0), slice(12, 12))


def test_a_predicate_is_asked_only_where_it_is_told_to() -> None:
    asked: list[int] = []

    def predicate(items: Tensor, heads: Tensor, row: Tensor, column: Tensor) -> Tensor:
        asked.append(1)
        return row >= column

    known = Cover.of(MaskRule(causal=True, predicate=predicate), queries=8, keys=8)
    assert known.of_tile(slice(0, 2), slice(2, 4)) == "none"  # what causal order forbids, no predicate allows
    assert known.of_tile(slice(4, 8), slice(0, 4)) == "some"
    assert not asked
    assert known.evaluated(slice(4, 8), slice(0, 4)) == "all"
    assert asked
    assert not known.is_known


def test_the_share_of_a_map_that_a_rule_leaves_to_tiles() -> None:
    assert Cover.of(None, queries=64, keys=64).share(8) == 1.0
    assert Cover.of(causal_rule(), queries=64, keys=64).share(8) == 36 / 64
    assert Cover.of(window_rule(8), queries=64, keys=64).share(8) == (8 + 7 * 15) / (64 * 8)
    layout = torch.eye(8, dtype=torch.bool)
    assert Cover.of(block_sparse_rule(layout, block_size=8), queries=64, keys=64).share(8) == 1.0
    assert Cover.of(dilated_rule(2, dilation=2), queries=64, keys=64).share(8) <= 1.0


def test_documents_of_unknown_queries_are_refused() -> None:
    with pytest.raises(ValueError, match="queries must be no more than keys"):
        Cover.of(document_rule(torch.zeros(1, 3, dtype=torch.long)), queries=4, keys=3)
