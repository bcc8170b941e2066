"""Reformer: attention only between positions that a random hash puts into one bucket.

Kitaev, Kaiser, Levskaya 2020, "Reformer: the efficient transformer", section 2. Query and key are shared:
k = q / |q|. A round hashes by a random rotation R, h(x) = argmax[xR; −xR]; the pairs of all rounds are united. A
position attends to itself only where it has nothing else ("Causal masking for shared-QK attention").

``lsh_attention`` states it with all pairs in the open and tells what share of the exact attention its pairs keep;
``chunked_lsh_attention`` sorts by bucket and computes n · chunk pairs a round.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from attn_core.checks import check_query_key_value
from attn_core.functional import (
    AttentionOutput,
    DenseAttentionOutput,
    at_least_float32,
    attention_scores,
    masked_softmax,
    resolve_scale,
)
from attn_core.masks import MaskRule
from attn_core.variants.arguments import check_plain_rule


@dataclass(frozen=True)
class LshAttentionOutput(DenseAttentionOutput):
    """What the open form of LSH attention returns.

    Attributes:
        kept: (B, H, N) share of a query's exact shared-QK attention that falls on the pairs kept; 0 for an empty row.
        buckets: (rounds, B, H, N) bucket of each position.
    """

    kept: Tensor
    buckets: Tensor


@dataclass(frozen=True)
class _Hashes:
    """Where each position falls in each round.

    Attributes:
        buckets: (rounds, B, H, N).
        ranks: (rounds, B, H, N) place after sorting by bucket, then by position; padding comes last.
        order: (rounds, B, H, N) the position at each place.
    """

    buckets: Tensor
    ranks: Tensor
    order: Tensor


def random_rotations(
    width: int,
    buckets: int,
    rounds: int,
    *,
    generator: torch.Generator | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """Directions that hash into buckets.

    Args:
        width: D.
        buckets: even, or 1 for no hashing at all.
    Returns:
        (rounds, D, buckets / 2), standard normal.
    Raises:
        ValueError: if buckets is odd and not 1, or a number is below one.
    """
    if min(width, buckets, rounds) < 1 or (buckets % 2 and buckets != 1):
        raise ValueError(
            "random_rotations: buckets must be even or 1, width and rounds at least 1, but they are "
            f"{buckets}, {width} and {rounds}; each direction makes two buckets."
        )
    return torch.randn(rounds, width, buckets // 2, generator=generator, dtype=dtype)


def lsh_attention(
    query_key: Tensor,
    value: Tensor,
    rotations: Tensor,
    *,
    rule: MaskRule | None = None,
    chunk: int | None = None,
    scale: float | None = None,
) -> LshAttentionOutput:
    """Softmax over the pairs that share a bucket in any round (section 2), O(n²) in the open.

    Args:
        query_key: (B, H, N, D), used as query and, at length one, as key.
        value: (B, H, N, E).
        rotations: (rounds, D, buckets / 2) from ``random_rotations``.
        rule: causal and key_valid.
        chunk: as in ``chunked_lsh_attention``; None = whole buckets.
        scale: None = 1/√D.
    Returns:
        context in value's dtype; lse, weights (B, H, N, N) and kept in at least float32.
    Raises:
        TypeError, ValueError: if shapes, dtypes or rule do not belong together.
    """
    _check(query_key, value, rotations, rule, chunk, "lsh_attention")
    hashes = _hashes(query_key, rotations, rule)
    query, key = _shared(query_key)
    scores = attention_scores(query, key, scale=resolve_scale(scale, query.shape[3]))
    permitted = torch.ones_like(scores, dtype=torch.bool)
    if rule is not None:
        positions = torch.arange(query.shape[2], device=query.device)
        block = rule.allowed(positions, positions, queries=len(positions), keys=len(positions))
        permitted = permitted if block is None else permitted & block
    chunks = hashes.ranks // _chunk_size(chunk, query)
    pairs = _meetings(hashes.buckets, chunks, hashes.buckets, chunks) > 0
    kept_pairs = _self_as_last_resort(permitted & pairs)
    weights, lse = masked_softmax(scores, kept_pairs)
    exact, _ = masked_softmax(scores, _self_as_last_resort(permitted))
    return LshAttentionOutput(
        context=weights.to(value.dtype) @ value,
        lse=lse,
        weights=weights,
        kept=exact.masked_fill(~kept_pairs, 0.0).sum(-1),
        buckets=hashes.buckets,
    )


def chunked_lsh_attention(
    query_key: Tensor,
    value: Tensor,
    rotations: Tensor,
    *,
    chunk: int,
    rule: MaskRule | None = None,
    scale: float | None = None,
) -> AttentionOutput:
    """LSH attention by sorting: a chunk of the sorted positions sees itself and the one before it.

    Section 2, "LSH attention" and figure 2. A bucket that is longer than this loses its farther pairs; the paper
    takes chunk = 2 N / buckets. A pair that meets in several rounds is counted once, by the factor 1 / N(i, j) of
    the paper's appendix A.

    Args:
        query_key, value, rotations, rule, scale: as in ``lsh_attention``.
        chunk: positions a chunk.
    Returns:
        context (B, H, N, E) in value's dtype; lse (B, H, N) in at least float32.
    Raises:
        TypeError, ValueError: as in ``lsh_attention``.
    """
    _check(query_key, value, rotations, rule, chunk, "chunked_lsh_attention")
    query, key = _shared(query_key)
    values = value.to(query.dtype)
    if query.shape[2] == 0:
        return AttentionOutput(context=value.clone(), lse=query.sum(-1))
    factor = resolve_scale(scale, query.shape[3])
    hashes = _hashes(query_key, rotations, rule)
    results = [
        _one_round(query * factor, key, values, hashes, index, chunk, rule) for index in range(len(rotations))
    ]
    shares, lse = masked_softmax(
        torch.stack([part for _, part in results], dim=-1), None
    )  # (B, H, N, rounds)
    context = torch.stack([part for part, _ in results], dim=-1) @ shares[..., None]  # (B, H, N, E, 1)
    alone = torch.isneginf(lse)
    if rule is not None and rule.key_valid is not None:
        alone = alone & rule.key_valid[:, None]
    context = torch.where(alone[..., None], values, context.squeeze(-1))
    lse = torch.where(alone, (query * key).sum(-1) * factor, lse)
    return AttentionOutput(context=context.to(value.dtype), lse=lse)


def _one_round(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    hashes: _Hashes,
    index: int,
    chunk: int,
    rule: MaskRule | None,
) -> tuple[Tensor, Tensor]:
    """Context (B, H, N, E) and lse (B, H, N) over one round's pairs, a position itself left out."""
    n = query.shape[2]
    sorted_positions = F.pad(hashes.order[index], (0, -n % chunk), value=-1)  # (B, H, chunks · chunk)
    own = sorted_positions.view(*query.shape[:2], -(-n // chunk), chunk)  # (B, H, chunks, chunk)
    before = F.pad(own, (0, 0, 1, 0), value=-1)[:, :, :-1]
    seen = torch.cat([before, own], dim=-1)  # (B, H, chunks, 2 · chunk)
    allowed = (seen[..., None, :] >= 0) & (own[..., :, None] != seen[..., None, :])
    if rule is not None and rule.causal:
        allowed = allowed & (seen[..., None, :] <= own[..., :, None])
    if rule is not None and rule.key_valid is not None:
        valid = _at(rule.key_valid[:, None, :, None].expand(*query.shape[:3], 1), seen)
        allowed = allowed & valid.transpose(-1, -2)
    rows, columns = ([_placed(t, at) for t in (hashes.buckets, hashes.ranks // chunk)] for at in (own, seen))
    allowed = allowed & (rows[0][index, ..., :, None] == columns[0][index, ..., None, :])
    meetings = _meetings(*rows, *columns).clamp(min=1)
    scores = _at(query, own) @ _at(key, seen).transpose(-1, -2) - meetings.to(query.dtype).log()
    weights, lse = masked_softmax(scores, allowed)
    context = (weights @ _at(value, seen)).flatten(2, 3)
    back = hashes.ranks[index]
    return _at(context, back), lse.flatten(2, 3).gather(2, back)


def _at(tensor: Tensor, positions: Tensor) -> Tensor:
    """Rows of (B, H, N, D) at positions (B, H, ...): (B, H, ..., D); a position of −1 gives any row."""
    flat = positions.clamp(min=0).flatten(2)[..., None].expand(-1, -1, -1, tensor.shape[-1])
    return tensor.gather(2, flat).view(*positions.shape, tensor.shape[-1])


def _placed(numbers: Tensor, positions: Tensor) -> Tensor:
    """(rounds, B, H, N) at positions (B, H, ...): (rounds, B, H, ...)."""
    return _at(numbers.movedim(0, -1), positions).movedim(-1, 0)


def _meetings(
    bucket_rows: Tensor, chunk_rows: Tensor, bucket_columns: Tensor, chunk_columns: Tensor
) -> Tensor:
    """In how many rounds two positions meet: one bucket, and the column's chunk the same or the one before.

    Args:
        bucket_rows, chunk_rows: (rounds, ..., R).
        bucket_columns, chunk_columns: (rounds, ..., C).
    Returns:
        (..., R, C), N(i, j) of the paper's appendix A.
    """
    total = torch.zeros(
        *bucket_rows.shape[1:], bucket_columns.shape[-1], dtype=torch.long, device=bucket_rows.device
    )
    # One round at a time: all at once would hold as many n × chunk arrays.
    for bucket_i, chunk_i, bucket_j, chunk_j in zip(
        bucket_rows, chunk_rows, bucket_columns, chunk_columns, strict=True
    ):
        ahead = chunk_i[..., :, None] - chunk_j[..., None, :]
        total = total + ((bucket_i[..., :, None] == bucket_j[..., None, :]) & (ahead >= 0) & (ahead <= 1))
    return total


def _self_as_last_resort(pairs: Tensor) -> Tensor:
    """Pairs (B, H, N, N) without the diagonal, except in rows that have nothing else."""
    itself = torch.eye(pairs.shape[-1], dtype=torch.bool, device=pairs.device)
    others = pairs & ~itself
    return others | (pairs & itself & ~others.any(-1, keepdim=True))


def _shared(query_key: Tensor) -> tuple[Tensor, Tensor]:
    """Query, and key = query at length one (section 2, "Hashing attention")."""
    query = at_least_float32(query_key)
    return query, F.normalize(query, dim=-1)


def _hashes(query_key: Tensor, rotations: Tensor, rule: MaskRule | None) -> _Hashes:
    """Buckets h(x) = argmax[xR; −xR] of each round, and the positions sorted by them."""
    vectors = at_least_float32(query_key).detach()
    turned = vectors @ rotations.to(vectors)[:, None, None]  # (rounds, B, H, N, buckets / 2)
    if turned.shape[-1]:
        buckets = torch.cat([turned, -turned], dim=-1).argmax(-1)
    else:
        buckets = turned.new_zeros(turned.shape[:-1], dtype=torch.long)
    sorting = buckets
    if rule is not None and rule.key_valid is not None:
        sorting = buckets + (~rule.key_valid[:, None]).long() * (2 * turned.shape[-1] + 1)
    order = sorting.argsort(dim=-1, stable=True)
    return _Hashes(buckets=buckets, ranks=order.argsort(dim=-1), order=order)


def _chunk_size(chunk: int | None, query: Tensor) -> int:
    return max(query.shape[2], 1) if chunk is None else chunk


def _check(
    query_key: Tensor,
    value: Tensor,
    rotations: Tensor,
    rule: MaskRule | None,
    chunk: int | None,
    function: str,
) -> None:
    check_query_key_value(query_key, query_key, value, function)
    check_plain_rule(rule, query_key, function)
    if rotations.ndim != 3 or rotations.shape[0] < 1 or rotations.shape[1] != query_key.shape[3]:
        raise ValueError(
            f"{function}: rotations must be (rounds, D, buckets / 2) with D = {query_key.shape[3]} but is "
            f"{tuple(rotations.shape)}; make them by random_rotations."
        )
    if chunk is not None and chunk < 1:
        raise ValueError(
            f"{function}: chunk must be at least 1 but is {chunk}; the paper takes 2 N / buckets."
        )
