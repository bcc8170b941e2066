"""Exact attention inside chosen blocks of pairs: what lies outside them is never computed.

A mask alone saves nothing, since the forbidden scores are computed and thrown away. Here the keys of the blocks that
a block of queries sees are laid side by side first (as in BigBird, Zaheer et al. 2020), so that time and memory
follow the pairs in those blocks.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from attn_core.checks import check_ndim, check_query_key_value
from attn_core.functional import AttentionOutput, at_least_float32, masked_softmax, resolve_scale
from attn_core.mask_rules import pairs_allowed
from attn_core.masks import MaskRule


def block_sparse_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    layout: Tensor,
    *,
    block_size: int,
    rule: MaskRule | None = None,
    scale: float | None = None,
) -> AttentionOutput:
    """Attention to the keys of the blocks that a layout names; no other score is computed.

    The numbers are those of ``attention`` under ``block_sparse_rule(layout, block_size=block_size) & rule``.

    Args:
        query: (B, H, Q, D).
        key, value: (B, G, K, D) and (B, G, K, E); G divides H.
        layout: (⌈Q / block_size⌉, ⌈K / block_size⌉) bool, such as ``band_layout`` or ``bigbird_layout`` make.
        rule: which pairs of these blocks may attend; None = all.
        scale: None = 1/√D.
    Returns:
        context (B, H, Q, E) in value's dtype; lse (B, H, Q) in at least float32.
    Raises:
        TypeError, ValueError: if shapes or dtypes do not belong together.
    """
    check_query_key_value(query, key, value, "block_sparse_attention")
    _check_layout(layout, query.shape[2], key.shape[2], block_size)
    batch, heads, queries, width = query.shape
    groups, keys = key.shape[1:3]
    scaled = at_least_float32(query) * resolve_scale(scale, width)
    if not layout.numel():
        context = value.new_zeros(batch, heads, queries, value.shape[3])
        return AttentionOutput(context, scaled.new_full((batch, heads, queries), -torch.inf))
    blocks = F.pad(scaled, (0, 0, 0, -queries % block_size)).view(
        batch, heads, -1, block_size, width
    )  # (B, H, R, b, D)
    wide_key = at_least_float32(key)
    contexts, lses, order = [], [], []
    for rows, seen in _rows_by_count(layout):
        positions = (seen[..., None] * block_size + torch.arange(block_size, device=seen.device)).flatten(1)
        inside = positions < keys  # (r, C); the last block may reach beyond the keys
        columns = positions.clamp(max=max(keys - 1, 0))
        beside = wide_key[:, :, columns]  # (B, G, r, C, D)
        scores = _by_head(_by_group(blocks[:, :, rows], groups) @ beside.transpose(-1, -2), block_size)
        allowed = inside[:, None]  # (r, 1, C)
        if rule is not None:
            allowed = allowed & _permitted(
                rule, rows, columns, block_size, batch=batch, queries=queries, keys=keys
            )
        weights, lse = masked_softmax(scores, allowed)
        context = _by_group(weights.to(value.dtype), groups) @ value[:, :, columns]
        contexts.append(_by_head(context, block_size))  # (B, H, r, b, E)
        lses.append(lse)
        order.append(rows)
    back = torch.cat(order).argsort()
    context, lse = (torch.cat(parts, dim=2)[:, :, back].flatten(2, 3) for parts in (contexts, lses))
    return AttentionOutput(context=context[:, :, :queries], lse=lse[:, :, :queries])


def band_layout(rule: MaskRule, *, queries: int, keys: int, block_size: int) -> Tensor:
    """Blocks in which the causal and window parts of a rule leave a pair.

    Args:
        rule: its padding and its predicate are not asked; pass it to ``block_sparse_attention`` as well.
    Returns:
        (⌈Q / block_size⌉, ⌈K / block_size⌉) bool.
    Raises:
        ValueError: if ``block_size`` is below 1.
    """
    _check_block_size(block_size, "band_layout")
    first_row = torch.arange(0, queries, block_size)
    last_row = (first_row + block_size).clamp(max=queries) - 1
    first_column = torch.arange(0, keys, block_size)
    last_column = (first_column + block_size).clamp(max=keys) - 1
    shift, reach = keys - queries, (keys + queries if rule.window is None else rule.window)
    before = first_row[:, None] + shift - last_column < reach  # the nearest pair at the left of the diagonal
    after = first_column - (last_row[:, None] + shift) < (1 if rule.causal else reach)
    if rule.causal and rule.prefix is not None:
        after = after | (first_column < int(rule.prefix.max()))
    return before & after


def bigbird_layout(
    blocks: int, *, reach: int = 1, first: int = 1, drawn: int = 1, generator: torch.Generator | None = None
) -> Tensor:
    """Blocks of BigBird's internal construction (Zaheer et al. 2020, section 2): near ones, global ones, random ones.

    Args:
        blocks: n / block size, of queries and keys alike.
        reach: a block sees so many neighbours on both sides, and itself.
        first: how many blocks at the start see all and are seen by all.
        drawn: how many more each block sees, drawn anew for each from those that it does not see yet.
    Returns:
        (blocks, blocks) bool.
    Raises:
        ValueError: if a number is negative.
    """
    if min(blocks, reach, first, drawn) < 0:
        raise ValueError(
            "bigbird_layout: blocks, reach, first and drawn must be at least 0 but are "
            f"{blocks}, {reach}, {first} and {drawn}; pass none that is negative."
        )
    place = torch.arange(blocks)
    layout = (place - place[:, None]).abs() <= reach
    layout |= (place < first) | (place < first)[:, None]
    if drawn:
        lots = torch.rand(blocks, blocks, generator=generator).masked_fill(layout, 2.0)
        chosen = torch.zeros_like(layout).scatter(1, lots.argsort(dim=1)[:, :drawn], True)
        layout = layout | chosen
    return layout


def _rows_by_count(layout: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Rows that see equally many blocks, (r,), and the blocks that each sees, (r, count)."""
    counts = layout.sum(1)
    found = []
    for count in sorted(set(counts.tolist())):
        rows = (counts == count).nonzero()[:, 0]
        found.append((rows, layout[rows].nonzero()[:, 1].view(len(rows), count)))
    return found


def _by_group(tensor: Tensor, groups: int) -> Tensor:
    """(B, H, r, b, X) as (B, G, r, H / G · b, X): heads that share keys stand below each other."""
    batch, heads, rows, block, width = tensor.shape
    shared = heads // groups
    grouped = tensor.reshape(batch, groups, shared, rows, block, width).transpose(2, 3)
    return grouped.reshape(batch, groups, rows, shared * block, width)


def _by_head(tensor: Tensor, block: int) -> Tensor:
    """The other way: (B, G, r, H / G · b, X) as (B, H, r, b, X)."""
    batch, groups, rows, together, width = tensor.shape
    grouped = tensor.view(batch, groups, rows, together // block, block, width).transpose(2, 3)
    return grouped.reshape(batch, groups * (together // block), rows, block, width)


def _permitted(
    rule: MaskRule, rows: Tensor, columns: Tensor, block_size: int, *, batch: int, queries: int, keys: int
) -> Tensor:
    """(B, 1, r, b, C) permission of the pairs of some blocks of queries with the keys laid beside each."""
    row = rows[:, None] * block_size + torch.arange(block_size, device=rows.device)  # (r, b)
    items = torch.arange(batch, device=rows.device).view(-1, 1, 1, 1, 1)
    # Rows beyond the last query are cut off at the end; a rule knows nothing of them and is not asked.
    row = row.clamp(max=queries - 1)[None, None, :, :, None]
    column = columns[None, None, :, None]
    return pairs_allowed(rule, items, torch.zeros_like(items), row, column, shift=keys - queries)


def _check_block_size(block_size: int, function: str) -> None:
    if block_size < 1:
        raise ValueError(f"{function}: block_size must be at least 1 but is {block_size}; pass 64.")


def _check_layout(layout: Tensor, queries: int, keys: int, block_size: int) -> None:
    _check_block_size(block_size, "block_sparse_attention")
    check_ndim(layout, 2, "block_sparse_attention: layout")
    shape = (-(-queries // block_size), -(-keys // block_size))
    if tuple(layout.shape) != shape or layout.dtype != torch.bool:
        raise ValueError(
            f"block_sparse_attention: layout must be bool {shape} but is {layout.dtype} {tuple(layout.shape)}; "
            "make it for these numbers of queries and keys."
        )
