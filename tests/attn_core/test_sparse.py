"""Block-sparse attention against exact attention under the same rule, and the layouts."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from attn_core import MaskRule, attention
from attn_core.mask_rules import block_sparse_rule, document_rule, window_rule
from attn_core.variants.sparse import band_layout, bigbird_layout, block_sparse_attention
from tests.attn_core.strategies import Case, cases


@given(case=cases(), block=st.integers(1, 5), share=st.floats(0, 1), seed=st.integers(0, 99))
def test_it_is_exact_attention_under_the_rule_of_the_layout(
    case: Case, block: int, share: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    shape = -(-case.query.shape[2] // block), -(-case.key.shape[2] // block)
    layout = torch.rand(shape, generator=generator) < share
    rule = block_sparse_rule(layout, block_size=block) & case.rule
    exact = attention(case.query, case.key, case.value, rule=rule)
    found = block_sparse_attention(case.query, case.key, case.value, layout, block_size=block, rule=case.rule)
    assert_close(found.context, exact.context)
    assert_close(found.lse, exact.lse)


@given(case=cases(padding=False), block=st.integers(1, 5))
def test_the_layout_of_a_band_holds_every_pair_and_no_empty_block(case: Case, block: int) -> None:
    queries, keys = case.query.shape[2], case.key.shape[2]
    layout = band_layout(case.rule, queries=queries, keys=keys, block_size=block)
    allowed = case.rule.allowed(torch.arange(queries), torch.arange(keys), queries=queries, keys=keys)
    allowed = torch.ones(queries, keys, dtype=torch.bool) if allowed is None else allowed[0, 0]
    for row, column in torch.cartesian_prod(*(torch.arange(n) for n in layout.shape)).tolist():
        part = allowed[row * block : (row + 1) * block, column * block : (column + 1) * block]
        assert bool(layout[row, column]) == bool(part.any())


def test_a_rule_is_not_asked_about_rows_beyond_the_last_query() -> None:
    query, key, value = (torch.randn(1, 1, 5, 3) for _ in range(3))
    rule = document_rule(torch.tensor([[0, 0, 1, 1, 1]]))
    layout = torch.ones(2, 2, dtype=torch.bool)
    found = block_sparse_attention(query, key, value, layout, block_size=4, rule=rule)
    assert_close(found.context, attention(query, key, value, rule=rule).context)


def test_only_the_pairs_of_the_layout_are_computed() -> None:
    n, block, width = 256, 16, 8
    tensors = [torch.randn(1, 1, n, width) for _ in range(3)]
    rule = window_rule(16, causal=False)
    layout = band_layout(rule, queries=n, keys=n, block_size=block)
    with FlopCounterMode(display=False) as counter:
        block_sparse_attention(*tensors, layout, block_size=block, rule=rule)
    assert counter.get_total_flops() == int(layout.sum()) * block**2 * 4 * width
    assert int(layout.sum()) * block**2 < 0.2 * n * n


def test_gradients_are_right() -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, 2, 5, 3), (1, 1, 4, 3), (1, 1, 4, 2)]
    tensors = [torch.randn(*s, dtype=torch.float64, generator=generator).requires_grad_() for s in shapes]
    layout = torch.tensor([[True, False], [False, False], [True, True]])
    assert torch.autograd.gradcheck(
        lambda q, k, v: block_sparse_attention(q, k, v, layout, block_size=2).context, tensors
    )


@pytest.mark.parametrize("shape", [(0, 4), (4, 0)])
def test_empty_sequences_give_empty_rows(shape: tuple[int, int]) -> None:
    queries, keys = shape
    query, key = torch.randn(1, 2, queries, 3), torch.randn(1, 2, keys, 3)
    layout = torch.ones(-(-queries // 2), -(-keys // 2), dtype=torch.bool)
    found = block_sparse_attention(query, key, key, layout, block_size=2)
    assert found.context.shape == (1, 2, queries, 3)
    assert (found.context == 0).all()
    assert torch.isneginf(found.lse).all()


@given(blocks=st.integers(0, 9), reach=st.integers(0, 3), first=st.integers(0, 3), drawn=st.integers(0, 3))
def test_bigbird_has_its_near_its_global_and_so_many_random_blocks(
    blocks: int, reach: int, first: int, drawn: int
) -> None:
    layout = bigbird_layout(
        blocks, reach=reach, first=first, drawn=drawn, generator=torch.Generator().manual_seed(0)
    )
    planned = bigbird_layout(blocks, reach=reach, first=first, drawn=0)
    for row in range(blocks):
        near = {column for column in range(blocks) if abs(column - row) <= reach}
        expected = near | set(range(blocks if row < first else min(first, blocks)))
        assert set(planned[row].nonzero()[:, 0].tolist()) == expected
        assert layout[row][planned[row]].all()
        assert int(layout[row].sum()) == min(len(expected) + drawn, blocks)


def test_wrong_arguments_are_told() -> None:
    query = torch.randn(1, 1, 4, 2)
    layout = torch.ones(2, 2, dtype=torch.bool)
    with pytest.raises(ValueError, match="block_sparse_attention: layout must be bool"):
        block_sparse_attention(query, query, query, layout, block_size=4)
    with pytest.raises(ValueError, match="block_sparse_attention: layout must be bool"):
        block_sparse_attention(query, query, query, layout.long(), block_size=2)
    with pytest.raises(ValueError, match="block_size must be at least 1"):
        block_sparse_attention(query, query, query, layout, block_size=0)
    with pytest.raises(ValueError, match="band_layout: block_size"):
        band_layout(MaskRule(), queries=2, keys=2, block_size=0)
    with pytest.raises(ValueError, match="bigbird_layout"):
        bigbird_layout(3, reach=-1)
