"""Mask rules: blocks agree with the whole, cuts keep permissions, and the written conventions hold."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attn_core import MaskRule
from tests.oracle_numpy import oracle_allowed

sizes = st.integers(1, 9)
windows = st.none() | st.integers(1, 10)


def whole(rule: MaskRule, queries: int, keys: int, batch: int = 1) -> torch.Tensor:
    allowed = rule.allowed(torch.arange(queries), torch.arange(keys), queries=queries, keys=keys)
    if allowed is None:
        allowed = torch.ones(1, 1, queries, keys, dtype=torch.bool)
    return allowed.expand(batch, 1, queries, keys)


@given(sizes, sizes, st.booleans(), windows)
def test_rules_are_the_written_conventions(queries: int, keys: int, causal: bool, window: int | None) -> None:
    found = whole(MaskRule(causal=causal, window=window), queries, keys)[0, 0].numpy()
    np.testing.assert_array_equal(found, oracle_allowed(queries, keys, causal=causal, window=window))


@given(sizes, sizes, st.booleans(), windows, st.data())
def test_a_block_is_a_part_of_the_whole(
    queries: int, keys: int, causal: bool, window: int | None, data: st.DataObject
) -> None:
    rule = MaskRule(causal=causal, window=window, key_valid=torch.rand(2, keys) > 0.4)
    rows = torch.tensor(data.draw(st.lists(st.integers(0, queries - 1), min_size=1, max_size=4)))
    columns = torch.tensor(data.draw(st.lists(st.integers(0, keys - 1), min_size=1, max_size=4)))
    block = rule.allowed(rows, columns, queries=queries, keys=keys)
    expected = whole(rule, queries, keys, batch=2)[:, :, rows][..., columns]
    assert torch.equal(block.expand_as(expected), expected)


@given(st.integers(2, 9), st.booleans(), windows, st.booleans(), st.data())
def test_cutting_padding_keeps_every_permission(
    n: int, causal: bool, window: int | None, predicate: bool, data: st.DataObject
) -> None:
    kept = sorted(data.draw(st.sets(st.integers(0, n - 1), min_size=1)))
    valid = torch.zeros(2, n, dtype=torch.bool)
    valid[0], valid[1, kept] = True, True
    rule = MaskRule(
        causal=causal,
        window=window,
        key_valid=valid,
        predicate=(lambda b, h, q, k: (q + 2 * k + b) % 3 != 0) if predicate else None,
        predicate_batch=2 if predicate else 1,
    )
    positions = torch.tensor(kept)
    cut = rule.select(1, positions, positions, queries=n, keys=n)
    expected = whole(rule, n, n, batch=2)[1:, :, positions][..., positions]
    assert torch.equal(whole(cut, len(kept), len(kept)), expected)


def test_right_padding_keeps_a_causal_rule_plain() -> None:
    rule = MaskRule(causal=True, key_valid=torch.tensor([[True, True, True, False]]))
    kept = torch.arange(3)
    assert rule.select(0, kept, kept, queries=4, keys=4).is_plain_causal


def test_bad_rules_are_refused() -> None:
    with pytest.raises(ValueError, match="window must be at least 1 but is 0"):
        MaskRule(window=0)
    with pytest.raises(ValueError, match=r"key_valid must be a bool tensor \(B, K\)"):
        MaskRule(key_valid=torch.ones(1, 3))


def test_padding_of_the_whole_batch_is_that_of_each_item() -> None:
    rule = MaskRule(causal=True, key_valid=torch.tensor([[True, True, False, True]]))
    places = torch.arange(4)
    for item in (0, 1, 5):
        cut = rule.select(item, places, places, queries=4, keys=4)
        found, whole = (each.allowed(places, places, queries=4, keys=4) for each in (cut, rule))
        assert found is not None
        assert whole is not None
        assert torch.equal(found, whole)
