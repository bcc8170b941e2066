"""Mask rules of the literature: written-out conventions, Boolean combinations on any block, and counted shares."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attn_core import MaskRule, attention, flash_attention
from attn_core.mask_rules import (
    SizedRule,
    allowed_share,
    block_sparse_rule,
    causal_rule,
    combined_and,
    combined_or,
    dilated_rule,
    document_rule,
    negated,
    padding_rule,
    pairs_allowed,
    prefix_rule,
    window_rule,
)
from attn_core.strips import strip_rows

BATCH = 2
N = 9
"""Most keys that are drawn; queries are no more than keys, since documents have to reach all of them."""


def written_out(rule: MaskRule, queries: int, keys: int) -> Tensor:
    """(B, Q, K) every permission."""
    return block(rule, torch.arange(queries), torch.arange(keys), queries, keys)


def block(rule: MaskRule, rows: Tensor, columns: Tensor, queries: int, keys: int) -> Tensor:
    allowed = rule.allowed(rows, columns, queries=queries, keys=keys)
    if allowed is None:
        allowed = torch.ones(1, 1, 1, 1, dtype=torch.bool)
    return allowed.expand(BATCH, 1, len(rows), len(columns))[:, 0]


@st.composite
def simple_rules(draw: st.DrawFn, keys: int) -> MaskRule:
    kind = draw(st.sampled_from(["plain", "prefix", "document", "blocks", "dilated", "padding", "predicate"]))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    batch = draw(st.sampled_from([1, BATCH]))
    if kind == "prefix":
        return prefix_rule(torch.randint(0, keys + 2, (batch,), generator=generator))
    if kind == "document":
        return document_rule(torch.randint(0, 3, (batch, keys), generator=generator))
    if kind == "blocks":
        return block_sparse_rule(
            torch.rand(N, N, generator=generator) > 0.5, block_size=draw(st.integers(1, 4))
        )
    if kind == "dilated":
        numbers = draw(st.integers(1, 4)), draw(st.integers(1, 3))
        return dilated_rule(numbers[0], dilation=numbers[1], causal=draw(st.booleans()))
    if kind == "padding":
        return padding_rule(torch.randint(0, keys + 1, (BATCH,), generator=generator), keys=keys)
    window = draw(st.none() | st.integers(1, 10))
    valid = (torch.rand(BATCH, keys, generator=generator) > 0.3) if draw(st.booleans()) else None
    if kind == "plain":
        return MaskRule(causal=draw(st.booleans()), window=window, key_valid=valid)
    return MaskRule(
        causal=draw(st.booleans()),
        window=window,
        key_valid=valid,
        predicate=lambda b, h, q, k: (q + 2 * k + b) % 3 != 0,
        predicate_batch=BATCH,
    )


@st.composite
def rules(draw: st.DrawFn, keys: int, depth: int = 2) -> MaskRule:
    """A rule of any kind, or a combination of combinations."""
    operation = draw(st.sampled_from(["none", "and", "or", "not"])) if depth else "none"
    if operation == "none":
        return draw(simple_rules(keys))
    first = draw(rules(keys, depth - 1))
    if operation == "not":
        return negated(first)
    second = draw(rules(keys, depth - 1))
    return first & second if operation == "and" else first | second


@st.composite
def sizes(draw: st.DrawFn) -> tuple[int, int]:
    keys = draw(st.integers(1, N))
    return draw(st.integers(1, keys)), keys


# --- Builders -------------------------------------------------------------------------------------------------------


def looped(queries: int, keys: int, permitted) -> Tensor:
    """(B, Q, K) of a rule that is given the item, the query's place among the keys, and the key."""
    return torch.tensor(
        [
            [[permitted(b, q + keys - queries, k) for k in range(keys)] for q in range(queries)]
            for b in range(BATCH)
        ]
    )


@given(sizes(), st.integers(1, 10), st.integers(1, 3), st.integers(0, 2**31))
def test_builders_are_what_the_papers_write(size, window: int, dilation: int, seed: int) -> None:
    queries, keys = size
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, keys + 1, (BATCH,), generator=generator)
    documents = torch.randint(0, 3, (BATCH, keys), generator=generator)
    steps = [dilation * i for i in range(window)]
    expected = {
        causal_rule(): lambda b, d, k: k <= d,
        padding_rule(lengths, keys=keys): lambda b, d, k: k < lengths[b],
        window_rule(window): lambda b, d, k: d - window < k <= d,
        window_rule(window, causal=False): lambda b, d, k: abs(d - k) < window,
        prefix_rule(3): lambda b, d, k: k < 3 or k <= d,
        prefix_rule(lengths): lambda b, d, k: k < lengths[b] or k <= d,
        document_rule(documents): lambda b, d, k: documents[b, d] == documents[b, k],
        document_rule(documents[1:]): lambda b, d, k: documents[1, d] == documents[1, k],
        dilated_rule(window, dilation=dilation): lambda b, d, k: d - k in steps,
        dilated_rule(window, dilation=dilation, causal=False): lambda b, d, k: abs(d - k) in steps,
    }
    for rule, permitted in expected.items():
        assert torch.equal(written_out(rule, queries, keys), looped(queries, keys, permitted))


@given(st.integers(1, 3), st.integers(1, 3), st.integers(1, 4), st.integers(0, 2**31))
def test_block_sparse_rule_is_its_layout_in_blocks(rows: int, columns: int, size: int, seed: int) -> None:
    layout = torch.rand(rows, columns, generator=torch.Generator().manual_seed(seed)) > 0.5
    expected = np.kron(layout.numpy(), np.ones((size, size), dtype=bool))
    found = written_out(block_sparse_rule(layout, block_size=size), rows * size, columns * size)
    np.testing.assert_array_equal(found[1].numpy(), expected)


def test_a_dilation_of_one_is_a_window_and_a_prefix_of_nothing_is_causal() -> None:
    assert torch.equal(written_out(dilated_rule(3, dilation=1), 5, 7), written_out(window_rule(3), 5, 7))
    assert torch.equal(written_out(prefix_rule(0), 5, 7), written_out(causal_rule(), 5, 7))


# --- Combinations ---------------------------------------------------------------------------------------------------


@given(sizes(), st.data())
def test_combinations_are_boolean_on_any_block(size, data: st.DataObject) -> None:
    queries, keys = size
    first, second = data.draw(rules(keys, 1)), data.draw(rules(keys, 1))
    rows = torch.tensor(data.draw(st.lists(st.integers(0, queries - 1), min_size=1, max_size=4)))
    columns = torch.tensor(data.draw(st.lists(st.integers(0, keys - 1), min_size=1, max_size=4)))

    def part(rule: MaskRule) -> Tensor:
        return written_out(rule, queries, keys)[:, rows][..., columns]

    def found(rule: MaskRule) -> Tensor:
        return block(rule, rows, columns, queries, keys)

    assert torch.equal(found(combined_and(first, second)), part(first) & part(second))
    assert torch.equal(found(combined_or(first, second)), part(first) | part(second))
    assert torch.equal(found(first & second), part(first) & part(second))
    assert torch.equal(found(first | second), part(first) | part(second))
    assert torch.equal(found(negated(first)), ~part(first))


@given(sizes(), st.data())
def test_single_pairs_agree_with_blocks(size, data: st.DataObject) -> None:
    queries, keys = size
    rule = data.draw(rules(keys))
    items, heads, row, column = torch.meshgrid(
        torch.arange(BATCH), torch.arange(1), torch.arange(queries), torch.arange(keys), indexing="ij"
    )
    found = pairs_allowed(rule, items, heads, row, column, shift=keys - queries)
    assert torch.equal(found.expand(row.shape)[:, 0], written_out(rule, queries, keys))


@given(sizes(), st.data())
def test_cutting_positions_out_keeps_every_permission(size, data: st.DataObject) -> None:
    queries, keys = size
    rule = data.draw(rules(keys))
    rows = torch.tensor(sorted(data.draw(st.sets(st.integers(0, queries - 1), min_size=1))))
    columns = torch.tensor(sorted(data.draw(st.sets(st.integers(0, keys - 1), min_size=1))))
    for item in range(BATCH):
        cut = rule.select(item, rows, columns, queries=queries, keys=keys)
        expected = written_out(rule, queries, keys)[item][rows][:, columns]
        assert torch.equal(written_out(cut, len(rows), len(columns))[0], expected)


def test_plain_parts_stay_plain() -> None:
    valid = torch.tensor([[True, False, True]])
    both = MaskRule(causal=True, window=5) & MaskRule(window=2, key_valid=valid)
    assert type(both) is MaskRule
    assert both.causal
    assert both.window == 2
    assert both.key_valid is not None
    assert both.predicate is None
    assert (causal_rule() & MaskRule()).is_plain_causal
    assert (causal_rule() | MaskRule()).is_trivial
    padded = prefix_rule(1) & MaskRule(key_valid=valid)
    assert padded.key_valid is not None  # who cuts padding finds it
    assert not padded.is_trivial


@given(st.data())
def test_every_implementation_takes_a_combination(data: st.DataObject) -> None:
    queries, keys = data.draw(sizes())
    rule = data.draw(rules(keys))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 2**31)))
    query = torch.randn(BATCH, 2, queries, 4, generator=generator, dtype=torch.float64)
    key, value = torch.randn(2, BATCH, 1, keys, 4, generator=generator, dtype=torch.float64)
    expected = attention(query, key, value, rule=rule)
    allowed = written_out(rule, queries, keys)[:, None].expand_as(expected.weights)
    assert not expected.weights[~allowed].any()
    torch.testing.assert_close(expected.weights.sum(-1), allowed.any(-1).double())  # an empty row is zero
    for impl in ("tiled", "fused"):
        found = flash_attention(query, key, value, rule=rule, impl=impl)
        torch.testing.assert_close(found.context, expected.context)
        torch.testing.assert_close(found.lse, expected.lse)


# --- Share ----------------------------------------------------------------------------------------------------------


def share_in_strips(rule: MaskRule, queries: int, keys: int, elements: int) -> float:
    """The share, with strips of any height."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strip_rows, "__kwdefaults__", {"elements": elements})
        return allowed_share(rule, queries=queries, keys=keys)


@given(sizes(), st.data(), st.integers(1, 80))
def test_share_is_the_mean_of_the_written_out_mask(size, data: st.DataObject, elements: int) -> None:
    queries, keys = size
    rule = data.draw(rules(keys))
    expected = float(written_out(rule, queries, keys).double().mean())
    assert share_in_strips(rule, queries, keys, elements) == pytest.approx(expected, abs=1e-12)


@given(
    st.tuples(st.integers(1, 9), st.integers(1, 9)),  # also more queries than keys
    st.booleans(),
    st.none() | st.integers(1, 12),
    st.booleans(),
    st.sampled_from([None, lambda b, h, q, k: (q + k) % 3 > 0]),
    st.integers(1, 80),
)
def test_share_of_plain_parts(
    size, causal: bool, window: int | None, padded: bool, predicate, elements
) -> None:
    valid = torch.arange(BATCH * size[1]).view(BATCH, -1) % 3 > 0 if padded else None
    rule = MaskRule(causal, window, valid, predicate)
    expected = float(written_out(rule, *size).double().mean())
    assert share_in_strips(rule, *size, elements) == pytest.approx(expected, abs=1e-12)


def test_share_of_a_band_needs_no_square() -> None:
    n = 1_000_000  # a trillion pairs
    assert allowed_share(causal_rule(), queries=n, keys=n) == pytest.approx((n + 1) / (2 * n), rel=1e-12)
    assert allowed_share(window_rule(4), queries=n, keys=n) == pytest.approx((4 * n - 6) / n**2, rel=1e-12)


# --- Errors ---------------------------------------------------------------------------------------------------------


def test_wrong_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="padding_rule: lengths must have 1 axes"):
        padding_rule(torch.ones(1, 1), keys=2)
    with pytest.raises(ValueError, match="prefix_rule: prefix must have 1 axes"):
        prefix_rule(torch.ones(1, 1))
    with pytest.raises(ValueError, match="document_rule: documents must have 2 axes"):
        document_rule(torch.ones(3))
    with pytest.raises(ValueError, match="queries must be no more than keys but are 2 more"):
        document_rule(torch.ones(1, 3)).allowed(torch.arange(5), torch.arange(3), queries=5, keys=3)
    with pytest.raises(ValueError, match="layout must be bool but is"):
        block_sparse_rule(torch.ones(2, 2), block_size=2)
    with pytest.raises(ValueError, match="block_size must be at least 1 but is 0"):
        block_sparse_rule(torch.ones(2, 2, dtype=torch.bool), block_size=0)
    with pytest.raises(ValueError, match="dilated_rule: dilation must be at least 1 but is 0"):
        dilated_rule(2, dilation=0)
    with pytest.raises(ValueError, match="dilated_rule: window must be at least 1 but is 0"):
        dilated_rule(0, dilation=1)
    with pytest.raises(ValueError, match="queries must be at least 1 but is 0"):
        allowed_share(causal_rule(), queries=0, keys=1)
    with pytest.raises(ValueError, match="must be for one batch but are for 2 and 3 items"):
        padding_rule(torch.ones(2), keys=4) | padding_rule(torch.ones(3), keys=4)
    with pytest.raises(ValueError, match="must be for one batch but are for 2 and 3 items"):
        padding_rule(torch.ones(2), keys=4) & padding_rule(torch.ones(3), keys=4)


def test_a_sized_rule_refuses_to_be_asked_without_sizes() -> None:
    rule = dilated_rule(2, dilation=2)
    assert isinstance(rule, SizedRule)
    assert rule.predicate is not None
    with pytest.raises(ValueError, match="cannot be asked without the sizes"):
        rule.predicate(*torch.zeros(4, 1, dtype=torch.long))
