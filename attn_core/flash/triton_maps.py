"""Questions about attention maps that are kept as query, key and log-sum-exp, answered by Triton kernels.

P[i, j] = exp(score(q_i, k_j) − lse_i), 0 where the rule forbids; a row with log-sum-exp −∞ is 0. Tiles of it are
made, read and forgotten: memory is that of query, key and the answer. Every function takes a whole batch, all heads
at once, key heads shared by groups of query heads and never repeated, any length and any strides.

The log-sum-exp has to be that of the same scores in the same precision: one that is off by ε misscales its row by
e^ε. float32 products are formed as float32 ("ieee") or from three products of TF32 ("tf32x3", where heads are not
too wide for it), float16 and bfloat16 exactly, all summed in float32; weights are multiplied in float32 as well.

Tested in Triton's interpreter, and compiled for sm_80 and sm_90. Nothing here has been timed on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from attn_core.checks import check_index, check_ndim
from attn_core.flash.scoring import Scoring
from attn_core.flash.streaming import with_other_keys
from attn_core.flash.triton_common import Precision, Strided, triton
from attn_core.flash.triton_map_bins import pooled_kernel
from attn_core.flash.triton_map_calls import (
    MOST_PARTS,
    MapCall,
    blocks,
    expanded,
    padded,
    padded_count,
    parts_of,
    statistics_kind,
    usable,
)
from attn_core.flash.triton_map_columns import (
    apply_left_kernel,
    relevance_columns_kernel,
    relevance_rows_kernel,
)
from attn_core.flash.triton_map_rows import apply_kernel, block_kernel, top_links_kernel
from attn_core.flash.triton_map_statistics import neighbours_kernel, statistics_kernel
from attn_core.watching import worked

__all__ = [
    "MapStatistics",
    "RowStatistics",
    "apply",
    "apply_left",
    "block",
    "pooled",
    "relevance_rows",
    "relevance_step",
    "row",
    "statistics",
    "top_links",
    "usable",
]

MOST_LINKS = 32
"""Most keys of a row that ``top_links`` keeps in registers."""

WIDEST_FACTORS = 64
"""Most columns that weights are multiplied with at once; more are done one part after the other."""

MOST_IN_WALK = 15
"""Most factors of rows that ``statistics`` takes along in its one walk."""


@dataclass(frozen=True, eq=False)
class RowStatistics:
    """Numbers of each row of a map, (B, H, Q) each; all 0 of a row with nothing allowed.

    Attributes:
        entropy: nats.
        distance: Σ weight · distance of key and query.
        largest: largest weight.
        own, previous, following, first: weight on the query's own place, the ones beside it, and key 0.
        squares: Σ weight²; ``direction``: Σ weight · (key − query), 0 on a grid; ``strongest``: int64, the first key
            that has the largest weight. None unless details were asked for.
        largest_open, strongest_open: the largest over keys that are not barred; None where no key is.
    """

    entropy: Tensor
    distance: Tensor
    largest: Tensor
    own: Tensor
    previous: Tensor
    following: Tensor
    first: Tensor
    squares: Tensor | None
    direction: Tensor | None
    strongest: Tensor | None
    largest_open: Tensor | None
    strongest_open: Tensor | None


@dataclass(frozen=True, eq=False)
class MapStatistics:
    """What ``statistics`` finds in one walk.

    Attributes:
        rows: numbers of each row.
        received: (B, H, K) weight that each key receives, summed over queries.
        rolled: (B, H, R, K) left @ weights; None where no left factors were given.
    """

    rows: RowStatistics
    received: Tensor
    rolled: Tensor | None


def statistics(
    query: Tensor,
    key: Tensor,
    lse: Tensor,
    scoring: Scoring,
    *,
    left: Tensor | None = None,
    row_positions: Tensor | None = None,
    column_positions: Tensor | None = None,
    counted: Tensor | None = None,
    barred: Tensor | None = None,
    detailed: bool = True,
    precision: Precision = "ieee",
    parts: int | None = None,
) -> MapStatistics:
    """What each query does, what each key receives and, with ``left``, the step of a rollout, in one walk over tiles.

    The log-sum-exp of the rows is known, so a tile is made once and gives to rows and keys alike. Each of ``parts``
    programs adds what keys receive to memory of its own, which is summed at the end: no atomic addition, and the same
    numbers in every run. That memory is at most half of query and key, or the size of the answer.

    Args:
        query, key, lse: (B, H, Q, D), (B, G, K, D) and (B, H, Q).
        left: (B or 1, H or 1, R, Q) factors of the rows, such as the row of a rollout. More than MOST_IN_WALK
            are done by ``apply_left``, which walks over the map again.
        row_positions, column_positions: (Q,) and (K,) places along a line, or (Q, 2) and (K, 2) on a grid; None puts
            query i at key i + K − Q of a text.
        counted: (K,) 1 for keys that take part in distances and 0 for others; None = all do.
        barred: (K,) bool, keys that ``largest_open`` leaves out.
        detailed: find ``squares``, ``direction`` and ``strongest`` too, which nearly doubles the instructions.
        precision: of float32 products.
        parts: of the queries of each head, each walked by a program of its own; None fills the device.
    Raises:
        TypeError, ValueError: if shapes do not belong together, or the kernels cannot compute this (``usable``).
    """
    call = MapCall.of(query, key, lse, scoring, precision, "statistics", "statistics")
    batch, heads, queries = lse.shape
    keys, factors = key.shape[2], 0
    if (row_positions is None) != (column_positions is None):
        raise ValueError(
            "statistics: row_positions and column_positions belong together but only one was given; pass both."
        )
    if row_positions is None or column_positions is None:
        column_positions = torch.arange(keys, device=query.device)
        row_positions = torch.arange(queries, device=query.device) + (keys - queries)
    (row_x, row_y), (column_x, column_y) = _axes(row_positions, queries), _axes(column_positions, keys)
    left_at, later = Strided(None, 0, 0, 0, 0), None
    if left is not None:
        check_ndim(left, 4, "statistics: left")
        later = left[..., MOST_IN_WALK:, :] if left.shape[-2] > MOST_IN_WALK else None
        left = left[..., :MOST_IN_WALK, :]
        factors = left.shape[-2]
        left_at = expanded(left, (batch, heads, factors, queries), "statistics: left")
    looks_up = row_y is not None or counted is not None or barred is not None
    tile = call.tile(statistics_kind(scoring, detailed=detailed, factors=factors, looks_up=looks_up))
    count, size = blocks(queries, tile.rows), batch * heads * (1 + factors) * keys
    if parts is None:
        most = (query.nbytes + key.nbytes) // 2 // (4 * size)
        parts = parts_of(query, batch * heads, min(most, count))
    found = query.new_empty(6, batch, heads, queries, dtype=torch.float32)
    places = query.new_empty(2, batch, heads, queries, dtype=torch.int32)
    lines = query.new_zeros(parts, batch, heads, 1 + factors, keys, dtype=torch.float32)
    statistics_kernel[(parts, batch * heads)](
        call.query,
        call.key,
        call.lse,
        left_at,
        found,
        places,
        lines,
        row_x,
        row_y,
        column_x,
        column_y,
        None if counted is None else counted.to(query.device, torch.float32).contiguous(),
        None if barred is None else torch.where(barred, float("-inf"), 0.0).to(query.device),
        call.scoring,
        heads,
        lse.numel(),
        factors,
        **call.widths,
        **tile.options,
        WARPS=tile.warps,
        LINES=1 + factors if factors <= 1 else padded(1 + factors),
        PRECISION=call.precision,
        MIXING=call.mixing,
        DETAILED=detailed,
        GRID=row_y is not None,
        COUNTED=counted is not None,
        BARRED=barred is not None,
    )
    call.done()
    near = query.new_empty(4, batch, heads, queries, dtype=torch.float32)
    pairs = call.pairs()
    neighbours_kernel[(blocks(queries, pairs.rows), batch * heads)](
        call.query,
        call.key,
        call.lse,
        near,
        call.scoring,
        heads,
        lse.numel(),
        **call.widths,
        ROWS=pairs.rows,
        num_warps=pairs.warps,
    )
    entropy, distance, largest, squares, direction, largest_open = found
    strongest, strongest_open = places.long()
    own, previous, following, first = near
    rows = RowStatistics(
        entropy=entropy,
        distance=distance,
        largest=largest,
        own=own,
        previous=previous,
        following=following,
        first=first,
        squares=squares if detailed else None,
        direction=direction if detailed else None,
        strongest=strongest if detailed else None,
        largest_open=None if barred is None else largest_open,
        strongest_open=None if barred is None else strongest_open,
    )
    sums = lines[0] if parts == 1 else lines.sum(0)
    rolled = None if left is None else sums[:, :, 1:]
    if later is not None:
        rest = apply_left(query, key, lse, scoring, later, precision=precision)
        rolled = torch.cat([sums[:, :, 1:], rest], dim=-2)
    return MapStatistics(rows=rows, received=sums[:, :, 0], rolled=rolled)


def apply_left(
    query: Tensor,
    key: Tensor,
    lse: Tensor,
    scoring: Scoring,
    left: Tensor,
    *,
    precision: Precision = "ieee",
    parts: int | None = None,
) -> Tensor:
    """(B, H, R, K): ``left`` (B or 1, H or 1, R, Q) @ weights.

    Args:
        query, key, lse, precision: as in ``statistics``.
        parts: of the queries that are summed by programs of their own; None fills the device.
    Raises:
        TypeError, ValueError: as ``statistics``.
    """
    call = MapCall.of(query, key, lse, scoring, precision, "apply_left")
    check_ndim(left, 4, "apply_left: left")
    batch, heads, queries = lse.shape
    keys, factors = key.shape[2], left.shape[-2]
    if factors > WIDEST_FACTORS:
        pieces = left.split(WIDEST_FACTORS, dim=-2)
        return torch.cat(
            [
                apply_left(query, key, lse, scoring, piece, precision=precision, parts=parts)
                for piece in pieces
            ],
            dim=-2,
        )
    left_at = expanded(left, (batch, heads, factors, queries), "apply_left: left")
    tile = call.tile().turned
    count = blocks(keys, tile.columns)
    if parts is None:
        parts = parts_of(query, count * batch * heads, min(MOST_PARTS, blocks(queries, tile.rows)))
    rolled = query.new_empty(parts, batch, heads, factors, keys, dtype=torch.float32)
    apply_left_kernel[(count, batch * heads, parts)](
        call.query,
        call.key,
        call.lse,
        left_at,
        rolled,
        call.scoring,
        heads,
        batch * heads,
        factors,
        **call.widths,
        **tile.options,
        COUNT=padded_count(factors),
        PRECISION=call.precision,
        MIXING=call.mixing,
    )
    call.done()
    return rolled.sum(0)


def apply(
    query: Tensor,
    key: Tensor,
    lse: Tensor,
    scoring: Scoring,
    values: Tensor,
    *,
    precision: Precision = "ieee",
) -> Tensor:
    """(B, H, Q, F): weights @ ``values`` (B or 1, H or 1, K, F).

    Raises:
        TypeError, ValueError: as ``statistics``.
    """
    call = MapCall.of(query, key, lse, scoring, precision, "apply")
    check_ndim(values, 4, "apply: values")
    if values.shape[-1] > WIDEST_FACTORS:
        pieces = values.split(WIDEST_FACTORS, dim=-1)
        return torch.cat(
            [apply(query, key, lse, scoring, piece, precision=precision) for piece in pieces], dim=-1
        )
    batch, heads, queries = lse.shape
    features = values.shape[-1]
    values_at = expanded(values, (batch, heads, key.shape[2], features), "apply: values")
    out = query.new_empty(batch, heads, queries, features, dtype=torch.float32)
    tile = call.tile()
    apply_kernel[(blocks(queries, tile.rows), batch * heads)](
        call.query,
        call.key,
        call.lse,
        values_at,
        out,
        call.scoring,
        heads,
        features,
        **call.widths,
        **tile.options,
        FEATURES=padded(features),
        PRECISION=call.precision,
        MIXING=call.mixing,
    )
    call.done()
    return out


def pooled(
    query: Tensor,
    key: Tensor,
    lse: Tensor,
    scoring: Scoring,
    row_bins: Tensor | int,
    column_bins: Tensor | int,
    *,
    how: Literal["max", "mean"] = "max",
    precision: Precision = "ieee",
) -> Tensor:
    """(B, H, b, d): the largest or mean weight of each rectangle of a bin of rows and a bin of keys.

    Args:
        row_bins, column_bins: (b, 2) and (d, 2) first place of each bin and one past its last, in any order and also
            overlapping; a number cuts as adaptive pooling does.
    Raises:
        TypeError, ValueError: as ``statistics``, or for a bin that is empty or reaches beyond the map.
    """
    call = MapCall.of(query, key, lse, scoring, precision, "pooled", "bins")
    if how not in ("max", "mean"):
        raise ValueError(f"pooled: how must be max or mean but is {how!r}.")
    batch, heads, queries = lse.shape
    row_cut, height = _bins(row_bins, queries, query.device, "pooled: row_bins")
    column_cut, width = _bins(column_bins, key.shape[2], query.device, "pooled: column_bins")
    out = query.new_empty(batch, heads, len(row_cut), len(column_cut), dtype=torch.float32)
    tile = call.tile("bins")
    tile = replace(
        tile, rows=min(tile.rows, padded(len(row_cut))), columns=min(tile.columns, padded(len(column_cut)))
    )
    grid = blocks(len(row_cut), tile.rows), blocks(len(column_cut), tile.columns), batch * heads
    pooled_kernel[grid](
        call.query,
        call.key,
        call.lse,
        row_cut,
        column_cut,
        out,
        call.scoring,
        heads,
        len(row_cut),
        len(column_cut),
        height,
        width,
        **call.widths,
        **tile.options,
        MEAN=how == "mean",
        PRECISION=call.precision,
    )
    call.done()
    return out


def top_links(
    query: Tensor, key: Tensor, lse: Tensor, scoring: Scoring, k: int, *, precision: Precision = "ieee"
) -> tuple[Tensor, Tensor]:
    """Weights and int64 keys (B, H, Q, k) of the strongest links of each row, strongest first.

    Of equal scores the first key comes first; where a row may see fewer than k keys the rest have weight 0.

    Args:
        k: how many, at most MOST_LINKS; cut to the number of keys.
    Raises:
        TypeError, ValueError: as ``statistics``, or for another k.
    """
    call = MapCall.of(query, key, lse, scoring, precision, "top_links")
    if not 1 <= k <= MOST_LINKS:
        raise ValueError(
            f"top_links: k must be 1 to {MOST_LINKS} but is {k}; impl='tiled' has no such limit."
        )
    batch, heads, queries = lse.shape
    count = min(k, key.shape[2])
    values = query.new_empty(batch, heads, queries, count, dtype=torch.float32)
    places = query.new_empty(batch, heads, queries, count, dtype=torch.int32)
    tile = call.tile("links")
    top_links_kernel[(blocks(queries, tile.rows), batch * heads)](
        call.query,
        call.key,
        call.lse,
        values,
        places,
        call.scoring,
        heads,
        count,
        **call.widths,
        **tile.options,
        KEPT=triton.next_power_of_2(count),
        PRECISION=call.precision,
    )
    call.done()
    # Weights may be equal where scores are not (both 0), so places alone decide among equal weights.
    by_place = places.argsort(dim=-1)
    values, places = values.gather(-1, by_place), places.gather(-1, by_place).long()
    order = values.sort(dim=-1, descending=True, stable=True).indices
    values, places = values.gather(-1, order), places.gather(-1, order)
    return values, with_other_keys(places, key.shape[2])


def block(
    query: Tensor,
    key: Tensor,
    lse: Tensor,
    scoring: Scoring,
    rows: slice,
    columns: slice,
    *,
    precision: Precision = "ieee",
) -> Tensor:
    """(B, H, r, c): the weights of a rectangle; slices as of a list, with step 1.

    Raises:
        TypeError, ValueError: as ``statistics``, or for another step.
    """
    call = MapCall.of(query, key, lse, scoring, precision, "block")
    batch, heads, queries = lse.shape
    (top, bottom, down), (low, high, along) = rows.indices(queries), columns.indices(key.shape[2])
    if down != 1 or along != 1:
        raise ValueError("block: slices must have step 1; take every so many of the answer instead.")
    bottom, high = max(top, bottom), max(low, high)
    out = query.new_empty(batch, heads, bottom - top, high - low, dtype=torch.float32)
    if out.numel() == 0:
        return out
    tile = call.tile()
    tile = replace(tile, rows=min(tile.rows, padded(bottom - top)))
    grid = blocks(bottom - top, tile.rows), blocks(high - low, tile.columns), batch * heads
    block_kernel[grid](
        call.query,
        call.key,
        call.lse,
        out,
        call.scoring,
        heads,
        top,
        bottom,
        low,
        high,
        **call.widths,
        **tile.options,
        PRECISION=call.precision,
    )
    worked(out.numel())
    return out


def row(
    query: Tensor, key: Tensor, lse: Tensor, scoring: Scoring, index: int, *, precision: Precision = "ieee"
) -> Tensor:
    """(B, H, K): where one query looks."""
    index = check_index(index, query.shape[2], "row: index")
    rows = slice(index, index + 1)
    return block(query, key, lse, scoring, rows, slice(None), precision=precision)[:, :, 0]


def relevance_step(
    query: Tensor,
    key: Tensor,
    lse: Tensor,
    scoring: Scoring,
    left: Tensor,
    gradient: Tensor,
    value: Tensor,
    *,
    each_head: bool = True,
    precision: Precision = "ieee",
    parts: int | None = None,
) -> Tensor:
    """(B, R, K): ``left`` @ mean over heads of weights ∘ gradient of the weights, negative parts cut.

    Chefer et al. 2021 (Generic Attention-model Explainability, equation 5). The gradient of a weight is dO · Vᵀ, so
    it is made tile by tile beside the weight.

    Args:
        left: (B or 1, R, Q).
        gradient: (B, H, Q, E) of the context; ``value``: (B, G, K, E).
        each_head: cut the negative part of each head, else that of their mean.
        parts: as in ``apply_left``.
    Raises:
        TypeError, ValueError: as ``statistics``.
    """
    call = MapCall.of(query, key, lse, scoring, precision, "relevance_step", "relevance")
    check_ndim(left, 3, "relevance_step: left")
    batch, heads, queries = lse.shape
    keys, factors = key.shape[2], left.shape[1]
    if factors > WIDEST_FACTORS:
        steps = [
            relevance_step(
                query,
                key,
                lse,
                scoring,
                piece,
                gradient,
                value,
                each_head=each_head,
                precision=precision,
                parts=parts,
            )
            for piece in left.split(WIDEST_FACTORS, dim=1)
        ]
        return torch.cat(steps, dim=1)
    left_at = expanded(left[:, None], (batch, 1, factors, queries), "relevance_step: left")
    slopes = call.slopes(gradient, value, precision, "relevance_step")
    tile = call.tile_with(slopes)
    count = blocks(keys, tile.columns)
    if parts is None:
        parts = parts_of(query, count * batch, min(MOST_PARTS, blocks(queries, tile.rows)))
    out = query.new_empty(parts, batch, factors, keys, dtype=torch.float32)
    relevance_columns_kernel[(count, batch, parts)](
        call.query,
        call.key,
        call.lse,
        slopes.gradient,
        slopes.value,
        left_at,
        out,
        call.scoring,
        batch,
        heads,
        factors,
        **call.widths,
        **slopes.widths,
        **tile.options,
        COUNT=padded_count(factors),
        PRECISION=call.precision,
        MIXING=call.mixing,
        EACH_HEAD=each_head,
    )
    call.done()
    return out.sum(0)


def relevance_rows(
    query: Tensor,
    key: Tensor,
    lse: Tensor,
    scoring: Scoring,
    gradient: Tensor,
    value: Tensor,
    *,
    each_head: bool = True,
    precision: Precision = "ieee",
) -> Tensor:
    """(B, Q): sums of the rows of what ``relevance_step`` multiplies with, by which a gradient rollout divides.

    Raises:
        TypeError, ValueError: as ``statistics``.
    """
    call = MapCall.of(query, key, lse, scoring, precision, "relevance_rows", "relevance")
    batch, heads, queries = lse.shape
    slopes = call.slopes(gradient, value, precision, "relevance_rows")
    tile = call.tile_with(slopes)
    out = query.new_empty(batch, queries, dtype=torch.float32)
    relevance_rows_kernel[(blocks(queries, tile.rows), batch)](
        call.query,
        call.key,
        call.lse,
        slopes.gradient,
        slopes.value,
        out,
        call.scoring,
        heads,
        **call.widths,
        **slopes.widths,
        **tile.options,
        PRECISION=call.precision,
        EACH_HEAD=each_head,
    )
    call.done()
    return out


def _axes(positions: Tensor, size: int) -> tuple[Tensor, Tensor | None]:
    """Positions (N,) or (N, 2) as float32 x and y; y is None along a line."""
    if positions.ndim not in (1, 2) or positions.shape[0] != size or positions.shape[1:] not in ((), (2,)):
        raise ValueError(
            f"statistics: positions must be ({size},) or ({size}, 2) but are {tuple(positions.shape)}; pass one "
            "place, or one x and y, for each."
        )
    wide = positions.to(torch.float32)
    return (wide.contiguous(), None) if wide.ndim == 1 else (wide[:, 0].contiguous(), wide[:, 1].contiguous())


def _bins(bins: Tensor | int, size: int, device: torch.device, name: str) -> tuple[Tensor, int]:
    """(b, 2) int32 bounds of bins, and the length of the longest."""
    if isinstance(bins, int):
        if bins < 1:
            raise ValueError(f"{name} must be at least 1 but is {bins}.")
        count = min(bins, size)
        index = torch.arange(count)
        bins = torch.stack([index * size // count, ((index + 1) * size + count - 1) // count], dim=1)
    check_ndim(bins, 2, name)
    lengths = bins[:, 1] - bins[:, 0]
    if (
        bins.shape[1] != 2
        or not len(bins)
        or int(lengths.min()) < 1
        or int(bins.min()) < 0
        or int(bins.max()) > size
    ):
        raise ValueError(f"{name} must be (b, 2) bounds of bins of at least one place, within 0 and {size}.")
    return bins.to(device, torch.int32).contiguous(), int(lengths.max())
