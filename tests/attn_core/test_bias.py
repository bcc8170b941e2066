"""A bias kept as its table is the bias, number for number, wherever it is taken and whatever is cut."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from attn_core import (
    FactoredMap,
    IndexedBias,
    MaskRule,
    RelativeBias,
    TableBias,
    attention,
    flash_attention,
    model_attention,
    recording,
)
from attn_core.seam import bias_made_from, known_table


def relative(table: Tensor, queries: int, keys: int) -> Tensor:
    """(B, H, Q, K) one number at a time."""
    dense = torch.zeros(*table.shape[:2], queries, keys, dtype=table.dtype)
    for i in range(queries):
        for j in range(keys):
            dense[:, :, i, j] = table[:, :, j - i + queries - 1]
    return dense


def indexed(table: Tensor, index: Tensor) -> Tensor:
    """(1, H, Q, K) one number at a time."""
    dense = torch.zeros(1, table.shape[1], *index.shape, dtype=table.dtype)
    for i in range(index.shape[0]):
        for j in range(index.shape[1]):
            dense[0, :, i, j] = table[index[i, j]]
    return dense


@st.composite
def biases(draw: st.DrawFn, *, batch: int = 1, heads: int | None = None) -> tuple[TableBias, Tensor]:
    """A table and the array that it stands for."""
    queries, keys = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    heads = draw(st.integers(1, 3)) if heads is None else heads
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    if draw(st.booleans()):
        table = torch.randn(draw(st.sampled_from([1, batch])), heads, queries + keys - 1, generator=generator)
        return RelativeBias.of(table, queries=queries, keys=keys), relative(table, queries, keys)
    table = torch.randn(draw(st.integers(1, 12)), heads, generator=generator)
    index = torch.randint(0, len(table), (queries, keys), generator=generator)
    return IndexedBias.of(table, index), indexed(table, index)


@given(biases(batch=2), st.data())
def test_every_block_is_that_of_the_array(pair: tuple[TableBias, Tensor], data: st.DataObject) -> None:
    bias, dense = pair
    assert torch.equal(bias.dense(), dense)
    rows, columns = (
        slice(low := data.draw(st.integers(0, size)), data.draw(st.integers(low, size)))
        for size in dense.shape[2:]
    )
    assert torch.equal(bias.block(rows, columns), dense[:, :, rows, columns])
    head = data.draw(st.integers(0, dense.shape[1] - 1))
    assert torch.equal(bias.of_head(head).dense(), dense[:, head : head + 1])
    assert torch.equal(bias.of_item(0).dense(), dense[:1])
    assert torch.equal(bias.of_item(len(dense) - 1).dense(), dense[-1:])


@given(biases(), st.data())
def test_what_is_left_after_cuts_is_what_the_array_leaves(
    pair: tuple[TableBias, Tensor], data: st.DataObject
) -> None:
    bias, dense = pair
    for _ in range(2):  # gaps, left padding, and a cut of what was cut
        rows, columns = (
            torch.tensor(
                sorted(data.draw(st.sets(st.integers(0, size - 1)))) if size else [], dtype=torch.long
            )
            for size in dense.shape[2:]
        )
        bias, dense = bias.select(rows, columns), dense[:, :, rows][..., columns]
        assert torch.equal(bias.dense(), dense)


@given(st.integers(2, 9), st.integers(2, 9), st.integers(0, 2**31), st.data())
def test_diagonals_are_recognised_exactly_or_not_at_all(
    queries: int, keys: int, seed: int, data: st.DataObject
) -> None:
    table = torch.randn(2, 3, queries + keys - 1, generator=torch.Generator().manual_seed(seed))
    table[:, :, :1] = -torch.inf
    dense = relative(table, queries, keys)
    found = RelativeBias.recognised(dense)
    assert found is not None
    assert torch.equal(found.table, table)
    assert torch.equal(found.dense(), dense)
    at = (data.draw(st.integers(0, 1)), data.draw(st.integers(0, 2)))
    cell = (data.draw(st.integers(0, queries - 1)), data.draw(st.integers(0, keys - 1)))
    dense[(*at, *cell)] = torch.nextafter(dense[(*at, *cell)].clamp(min=-10.0), torch.tensor(torch.inf))
    lonely = cell in ((0, keys - 1), (queries - 1, 0))  # a corner is a diagonal by itself
    assert (RelativeBias.recognised(dense) is not None) == lonely


@pytest.mark.parametrize("shape", [(1, 2, 1, 5), (1, 2, 5, 1), (2, 1, 1, 1), (5, 5)])
def test_what_is_no_array_of_pairs_is_left_as_it_is(shape: tuple[int, ...]) -> None:
    assert RelativeBias.recognised(torch.zeros(shape)) is None


def test_not_a_number_is_left_as_it_is() -> None:
    assert RelativeBias.recognised(torch.full((1, 1, 3, 3), torch.nan)) is None


@given(biases(heads=2), st.integers(0, 2**31), st.booleans())
def test_attention_with_a_table_is_attention_with_the_array(
    pair: tuple[TableBias, Tensor], seed: int, causal: bool
) -> None:
    bias, dense = pair
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(2, 2, dense.shape[2], 4, generator=generator)
    key, value = (torch.randn(2, 2, dense.shape[3], 4, generator=generator) for _ in range(2))
    rule = MaskRule(causal=causal)
    expected = attention(query, key, value, rule=rule, bias=dense)
    found = attention(query, key, value, rule=rule, bias=bias)
    assert torch.equal(found.weights, expected.weights)
    for impl in ("tiled", "fused", "reference"):
        ours, theirs = (
            flash_attention(query, key, value, rule=rule, bias=b, impl=impl) for b in (bias, dense)
        )
        assert torch.equal(ours.context, theirs.context)
        assert torch.equal(ours.lse, theirs.lse)
    maps = [FactoredMap(query, key, expected.lse, 0.5, rule=rule, bias=b) for b in (bias, dense)]
    assert torch.equal(maps[0].weights(), maps[1].weights())
    one, other = (layer.item(1) for layer in maps)
    assert torch.equal(one.dense(), other.dense())
    assert torch.equal(one.dense(1), other.dense(1))
    assert torch.equal(one.row(0, 0), other.row(0, 0))


def test_an_item_of_a_left_padded_batch_keeps_its_distances() -> None:
    """Also with a gap: what was three apart stays three apart when one between is cut."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 2, 6, 4) for _ in range(3))
    table = torch.randn(1, 2, 11)
    valid = torch.tensor([[False, False, True, True, True, True], [True, False, True, True, False, True]])
    rule = MaskRule(key_valid=valid)
    dense = relative(table, 6, 6)
    expected = attention(query, key, value, rule=rule, bias=dense)
    layer = FactoredMap(
        query, key, expected.lse, 0.5, rule=rule, bias=RelativeBias.of(table, queries=6, keys=6)
    )
    for item in range(2):
        kept = valid[item].nonzero()[:, 0]
        alone = [tensor[item : item + 1, :, kept] for tensor in (query, key, value)]
        weights = attention(*alone, bias=dense[:, :, kept][..., kept]).weights[0]
        torch.testing.assert_close(layer.item(item).dense(), weights)


def test_gradients_reach_the_table() -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, 2, 4, 3, dtype=torch.float64) for _ in range(3))
    table = torch.randn(1, 2, 7, dtype=torch.float64, requires_grad=True)

    for attend in (attention, flash_attention):  # the fused operator knows no gradient of a bias

        def context(numbers: Tensor, attend=attend) -> Tensor:
            return attend(query, key, value, bias=RelativeBias.of(numbers, queries=4, keys=4)).context

        assert torch.autograd.gradcheck(context, [table])
    with pytest.raises(ValueError, match="because the bias needs a gradient"):
        flash_attention(query, key, value, bias=relative(table, 4, 4), impl="fused")


# What is recorded


def recorded(*given: Tensor | TableBias | None) -> list[FactoredMap]:
    """The maps of one layer called with each bias."""
    torch.manual_seed(0)
    module = nn.Identity()
    query, key, value = (torch.randn(2, 2, 5, 4) for _ in range(3))
    with recording() as record:
        for bias in given:
            model_attention(module, query, key, value, bias=bias)
    return [call.map for call in record.calls]


def test_of_a_tensor_with_constant_diagonals_the_table_is_recorded_once() -> None:
    dense = relative(torch.randn(1, 2, 9), 5, 5)
    first, second, third = recorded(dense, dense, dense.clone())
    assert isinstance(first.bias, RelativeBias)
    assert second.bias is first.bias
    assert third.bias is not first.bias
    for layer in (first, third):
        assert torch.equal(layer.bias.dense(), dense)


def test_a_mask_that_was_added_to_the_bias_is_kept_with_it() -> None:
    dense = relative(torch.randn(1, 2, 9), 5, 5)
    padding = torch.zeros(2, 1, 1, 5)
    padding[1, ..., 3:] = torch.finfo(torch.float32).min
    (layer,) = recorded(dense + padding)
    assert isinstance(layer.bias, Tensor)
    assert torch.equal(layer.bias, dense + padding)


def test_a_table_is_recorded_as_it_is_and_without_its_gradient() -> None:
    bias = RelativeBias.of(torch.randn(1, 2, 9, requires_grad=True), queries=5, keys=5)
    (layer,) = recorded(bias)
    assert isinstance(layer.bias, RelativeBias)
    assert layer.bias.table.data_ptr() == bias.table.data_ptr()
    assert not layer.bias.table.requires_grad


def test_a_named_table_stands_for_its_tensor_in_this_recording_alone() -> None:
    table, index = torch.randn(3, 2), torch.randint(0, 3, (5, 5))
    bias, dense = IndexedBias.of(table, index), indexed(table, index)
    bias_made_from(dense, bias)
    assert known_table(dense) is None
    with recording():
        bias_made_from(dense, bias)
        found = known_table(dense)
        assert isinstance(found, IndexedBias)
        assert found.index is index
        with recording():
            assert known_table(dense) is None
    (layer,) = recorded(dense)
    assert isinstance(layer.bias, Tensor)


def test_no_bias_tensor_is_kept_alive_and_a_new_one_in_its_place_is_not_mistaken() -> None:
    torch.manual_seed(0)
    query = torch.randn(1, 2, 5, 4)
    with recording() as record:
        dense = relative(torch.randn(1, 2, 9), 5, 5)
        gone = weakref.ref(dense)
        model_attention(nn.Identity(), query, query, query, bias=dense)
        (identity,) = record.tables
        del dense
        gc.collect()
        assert gone() is None
        other = torch.randn(1, 2, 5, 5)
        record.tables[id(other)] = record.tables.pop(identity)  # as if it had the old one's address
        model_attention(nn.Identity(), query, query, query, bias=other)
    assert isinstance(record.calls[0].map.bias, RelativeBias)
    assert torch.equal(record.calls[1].map.bias, other)


def test_a_table_of_the_wrong_length_is_named() -> None:
    with pytest.raises(ValueError, match="must hold 9 distances for 5 queries and 5 keys but holds 8"):
        RelativeBias.of(torch.zeros(1, 2, 8), queries=5, keys=5)
    with pytest.raises(ValueError, match="RelativeBias: table must have 3 axes"):
        RelativeBias.of(torch.zeros(2, 9), queries=5, keys=5)
