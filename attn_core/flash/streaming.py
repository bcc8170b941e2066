"""Questions about an attention map that is kept as query, key and log-sum-exp, answered tile by tile.

P[i, j] = exp(score(q_i, k_j) − lse_i) is independent of every other pair, so tiles may be made in any order and
forgotten: no n × n array stands. Without soft cap and bias one product gives the logarithm at once, of
[scale · q, −lse] and [k, 1]. Maxima are taken of logarithms, so that only what is left of them is exponentiated.
Tiles that the rule excludes are skipped.

Every map here holds one batch item.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Literal

import torch
from torch import Tensor

from attn_core.flash.cover import Cover
from attn_core.flash.panels import Panels
from attn_core.flash.scoring import Scoring
from attn_core.flash.tiles import (
    Places,
    RowSums,
    add_bins,
    add_relevance,
    add_sums,
    exponentials,
    keep_strongest,
)
from attn_core.functional import at_least_float32, repeat_groups
from attn_core.watching import worked

TILE_ROWS, TILE_COLUMNS = 128, 512

TILE_ELEMENTS = 450_000
"""Most log weights of a tile over all heads, 1.8 MB in float32: what a second-level cache holds."""

_NOTHING = -1e30
"""Stands for −lse of a row with nothing allowed: finite, so that no product is NaN, and its exponential is 0."""

Bins = Literal["max", "mean"]


@dataclass(frozen=True, eq=False)
class Factors:
    """One item's map as it is walked through.

    Attributes:
        query: (H, Q, D), ``key``: (G, K, D), in the dtype that scores are made in.
        lse: (H, Q).
        scoring: how scores are made; a bias may have one item only.
        recorded: query and key in the dtype of the model, which kernels multiply as they are; None where it is that.
    """

    query: Tensor
    key: Tensor
    lse: Tensor
    scoring: Scoring
    recorded: tuple[Tensor, Tensor] | None = None

    @staticmethod
    def of(query: Tensor, key: Tensor, lse: Tensor, scoring: Scoring) -> Factors:
        """From (1, H, Q, D), (1, G, K, D) and (1, H, Q)."""
        dtype = at_least_float32(query).dtype
        recorded = None if dtype == query.dtype else (query[0], key[0])
        return Factors(query[0].to(dtype), key[0].to(dtype), lse[0].to(dtype), scoring, recorded)

    @property
    def heads(self) -> int:
        """H."""
        return self.query.shape[0]

    @property
    def queries(self) -> int:
        """Q."""
        return self.query.shape[1]

    @property
    def keys(self) -> int:
        """K."""
        return self.key.shape[1]

    @cached_property
    def cover(self) -> Cover:
        """Which tiles the rule excludes."""
        return Cover.of(self.scoring.rule, queries=self.queries, keys=self.keys)

    def of_head(self, head: int) -> Factors:
        """The map of one head."""
        group = head // (self.heads // self.key.shape[0])
        own, shared = slice(head, head + 1), slice(group, group + 1)
        recorded = None if self.recorded is None else (self.recorded[0][own], self.recorded[1][shared])
        return Factors(self.query[own], self.key[shared], self.lse[own], self.scoring.of_head(head), recorded)

    @cached_property
    def kernels(self) -> ModuleType | None:
        """The Triton kernels of map questions, for a map on a GPU that they can answer for; else None."""
        if self.query.device.type != "cuda":
            return None
        try:
            from attn_core.flash import triton_maps  # an optional library, looked for only where it can serve
        except ImportError:
            return None
        query, key, _, scoring = self.whole
        return triton_maps if triton_maps.usable(query, key, scoring) is None else None

    @property
    def whole(self) -> tuple[Tensor, Tensor, Tensor, Scoring]:
        """Query, key and log-sum-exp with a batch of one, and the scoring, as kernels take them."""
        query, key = self.recorded or (self.query, self.key)
        return query[None], key[None], self.lse[None], self.scoring

    @cached_property
    def _level(self) -> Tensor:
        """(H, Q, 1) −lse, finite."""
        return -torch.where(torch.isneginf(self.lse), torch.full_like(self.lse, -_NOTHING), self.lse)[
            ..., None
        ]

    @cached_property
    def _plain(self) -> bool:
        return self.scoring.softcap is None and self.scoring.bias is None

    @cached_property
    def _left(self) -> Tensor:
        """(H, Q, D + 1) scale · query and −lse."""
        heads, queries, width = self.query.shape
        left = self.query.new_empty(heads, queries, width + 1)
        torch.mul(self.query, self.scoring.scale, out=left[..., :width])
        left[..., width:] = self._level
        return left

    @cached_property
    def _right(self) -> Panels | Tensor:
        """Keys and ones: panels, else (G, D + 1, K), a view on keys that lie one after the other."""
        panels = Panels.of(self.key, and_one=True)
        if panels is not None:
            return panels
        return torch.cat([self.key, torch.ones_like(self.key[..., :1])], -1).transpose(1, 2)

    def tile(self, rows: slice, columns: slice, out: Tensor | None = None) -> Tensor:
        """(H, r, c) log weights, −∞ where the rule forbids.

        Args:
            out: a buffer of at least H · r · c numbers, which the tile then lies in.
        """
        height, width = rows.stop - rows.start, columns.stop - columns.start
        groups, heads = self.key.shape[0], self.heads
        if self._plain:
            size = heads * height * width
            tile = (self.query.new_empty(size) if out is None else out[:size]).view(heads, height, width)
            if isinstance(self._right, Panels):
                self._right.products(self._left, rows, columns, tile)
            else:
                left = self._left[:, rows].reshape(groups, heads // groups * height, -1)
                torch.bmm(left, self._right[:, :, columns], out=tile.view(groups, -1, width))
        else:
            tile = self.scoring.tile(self.query[None], self.key[None], rows, columns)[0]
            tile += self._level[:, rows]
        coverage = self.cover.of_tile(rows, columns)
        if coverage != "all":
            allowed = self.cover.allowed(rows, columns, device=tile.device)
            if allowed is not None:
                tile.masked_fill_(~allowed[0], float("-inf"))
        return tile

    def buffer(self) -> Tensor:
        """Room for one tile, to be used again and again."""
        return self.query.new_empty(max(TILE_ELEMENTS, self.heads * TILE_COLUMNS))

    def strips(self, first: int = 0, stop: int | None = None) -> Iterator[slice]:
        """Queries of each row of tiles."""
        height = max(1, min(TILE_ROWS, TILE_ELEMENTS // (self.heads * min(TILE_COLUMNS, max(1, self.keys)))))
        stop = self.queries if stop is None else stop
        for start in range(first, stop, height):
            yield slice(start, min(start + height, stop))

    def columns_of(self, rows: slice) -> Iterator[slice]:
        """Tiles of a strip that may hold something, from the first key on."""
        span = self.cover.columns_of(rows)
        for start in range(span.start, span.stop, TILE_COLUMNS):
            columns = slice(start, min(start + TILE_COLUMNS, span.stop))
            if self.cover.of_tile(rows, columns) != "none":
                yield columns

    def tiles(self) -> Iterator[tuple[slice, slice, Tensor]]:
        """All tiles that may hold something, strip by strip; a tile is overwritten by the next."""
        buffer = self.buffer()
        for rows in self.strips():
            for columns in self.columns_of(rows):
                yield rows, columns, self.tile(rows, columns, buffer)
                worked(self.heads * (rows.stop - rows.start) * (columns.stop - columns.start))


@dataclass(frozen=True, eq=False)
class Positions:
    """Where queries and keys lie, for distances.

    Attributes:
        row_x, column_x: (Q,) and (K,).
        row_y, column_y: of a grid; None for text.
        counted: (K,) 1 for keys that take part in distances, squares and likeness; None = all.
    """

    row_x: Tensor
    column_x: Tensor
    row_y: Tensor | None = None
    column_y: Tensor | None = None
    counted: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Matches:
    """Numbers of queries and keys that are compared, each kind by itself.

    Attributes:
        rows, columns: (M, Q) and (M, K) int32; numbers that never match stand for nothing.
        earlier: (M,) int32, not 0 where only keys before the query's own place match.
    """

    rows: Tensor
    columns: Tensor
    earlier: Tensor


def add_map_sums(
    factors: Factors,
    sums: RowSums,
    *,
    positions: Positions | None = None,
    left: Tensor | None = None,
    barred: Tensor | None = None,
    directions: tuple[Tensor, Tensor] | None = None,
    matches: Matches | None = None,
    offsets: Tensor | None = None,
) -> None:
    """Add a whole map to sums of its rows and keys, in one pass over its tiles.

    Args:
        sums: (H, Q) each, started by the caller with 0 or −∞.
        positions: for distances.
        left: (H or 1, R, Q) factors of the rows in ``received``.
        barred: (K,) 0 or −∞.
        directions: (Q, M) and (K, M), whose products are the likeness of each pair.
        matches: numbers that are compared.
        offsets: (F,) int32, of ``band``.
    """
    asked = _Asked(positions, left, barred, directions, matches, offsets, factors.keys - factors.queries)
    buffer = factors.buffer()
    alone = all(value is None for name, value in vars(sums).items() if name != "received")
    for rows in factors.strips():
        if alone and left is not None and not bool(left[:, :, rows].any()):
            continue  # rows that nothing is carried from
        of_rows = sums.rows(rows)
        for columns in factors.columns_of(rows):
            tile = factors.tile(rows, columns, buffer)
            add_sums(tile, asked.of_tile(rows, columns), of_rows)
            worked(tile.numel())
        sums.put(rows, of_rows)


@dataclass(frozen=True, eq=False)
class _Asked:
    """What ``add_map_sums`` is told of a map."""

    positions: Positions | None
    left: Tensor | None
    barred: Tensor | None
    directions: tuple[Tensor, Tensor] | None
    matches: Matches | None
    offsets: Tensor | None
    shift: int

    def of_tile(self, rows: slice, columns: slice) -> Places:
        known, matches = self.positions, self.matches
        return Places(
            row_x=None if known is None else known.row_x[rows],
            column_x=None if known is None else known.column_x[columns],
            row_y=None if known is None or known.row_y is None else known.row_y[rows],
            column_y=None if known is None or known.column_y is None else known.column_y[columns],
            counted=None if known is None or known.counted is None else known.counted[columns],
            barred=None if self.barred is None else self.barred[columns],
            likeness=None
            if self.directions is None
            else self.directions[0][rows] @ self.directions[1][columns].T,
            row_numbers=None if matches is None else matches.rows[:, rows].contiguous(),
            column_numbers=None if matches is None else matches.columns[:, columns].contiguous(),
            earlier=None if matches is None else matches.earlier,
            offsets=self.offsets,
            left=None if self.left is None else self.left[:, :, rows],
            first_column=columns.start,
            first_place=rows.start + self.shift,
        )


def pooled(factors: Factors, row_bins: Sequence[tuple[int, int]], bins: int, *, how: Bins) -> Tensor:
    """(H, b, d) the map in bins: the largest weight of each, or the mean.

    Args:
        row_bins: first query and one after the last of each bin of rows.
        bins: d, bins of keys as adaptive pooling cuts them.
    """
    if factors.kernels is not None:
        bounds = torch.tensor(list(row_bins))
        found: Tensor = factors.kernels.pooled(*factors.whole, bounds, bins, how=how)[0]
        return found
    mean = how == "mean"
    start = 0.0 if mean else float("-inf")
    result = factors.query.new_full((factors.heads, len(row_bins), bins), start)
    keys, buffer = factors.keys, factors.buffer()
    column_bins = [(i * keys // bins, -(-(i + 1) * keys // bins)) for i in range(bins)]
    for group in _grouped_bins(row_bins, next(factors.strips(), slice(0, 1)).stop):
        low, high = row_bins[group.start][0], row_bins[group.stop - 1][1]
        for rows in factors.strips(low, high):
            inside = [
                (max(a, rows.start) - rows.start, max(min(b, rows.stop), rows.start) - rows.start)
                for a, b in row_bins[group]
            ]
            row_cut = torch.tensor(inside, dtype=torch.int32)
            for columns in factors.columns_of(rows):
                tile = factors.tile(rows, columns, buffer)
                first_cell = columns.start * bins // keys
                last_cell = min(-(-columns.stop * bins // keys), bins)
                cut = torch.tensor(column_bins[first_cell:last_cell], dtype=torch.int32)
                cut = (cut - columns.start).clamp(0, columns.stop - columns.start)
                add_bins(tile, row_cut, cut, result[:, group], first_cell=first_cell, mean=mean)
                worked(tile.numel())
    if not mean:
        return result.exp_()
    heights = torch.tensor([high - low for low, high in row_bins], device=result.device)
    widths = torch.tensor([high - low for low, high in column_bins], device=result.device)
    return result / (heights[:, None] * widths)


def _grouped_bins(row_bins: Sequence[tuple[int, int]], height: int) -> Iterator[slice]:
    """Runs of bins that fill a strip; a bin that is higher than one stands alone."""
    start = 0
    for index in range(1, len(row_bins) + 1):
        if index == len(row_bins) or row_bins[index][1] - row_bins[start][0] > height:
            yield slice(start, index)
            start = index


def top_links(factors: Factors, k: int) -> tuple[Tensor, Tensor]:
    """(H, Q, k) weights and int64 keys of the k strongest links of each query, strongest first.

    Of equal weights the first key comes first; where a query sees fewer than k keys the rest have weight 0.
    """
    if factors.kernels is not None and k <= factors.kernels.MOST_LINKS:
        found = factors.kernels.top_links(*factors.whole, k)
        return found[0][0], found[1][0]
    shape = (factors.heads, factors.queries, k)
    values = factors.query.new_full(shape, float("-inf"))
    keys = torch.full(shape, -1, dtype=torch.int32, device=values.device)
    buffer = factors.buffer()
    for rows in factors.strips():
        best, places = values[:, rows].contiguous(), keys[:, rows].contiguous()
        for columns in factors.columns_of(rows):
            tile = factors.tile(rows, columns, buffer)
            keep_strongest(tile, best, places, first_column=columns.start)
            worked(tile.numel())
        values[:, rows], keys[:, rows] = best, places
    return values.exp_(), with_other_keys(keys.long(), factors.keys)


def with_other_keys(places: Tensor, keys: int) -> Tensor:
    """Keys (..., k) with each −1 replaced by a key that its row does not name yet, the first ones in order."""
    short = (places < 0).any(dim=-1)
    if not bool(short.any()):
        return places
    rows = places[short]  # (N, k)
    named = rows.new_zeros(len(rows), min(keys, 2 * rows.shape[1]), dtype=torch.bool)
    for column in rows.unbind(dim=1):
        inside = (column >= 0) & (column < named.shape[1])
        named[inside, column[inside]] = True
    others = named.to(torch.int8).argsort(dim=1, stable=True)  # keys without a name first, in order
    missing = rows < 0
    rank = (missing.long().cumsum(dim=1) - 1).clamp(min=0)
    filled = places.clone()
    filled[short] = torch.where(missing, others.gather(1, rank), rows)
    return filled


def applied(factors: Factors, values: Tensor) -> Tensor:
    """(H, Q, F): weights @ values, values (H or 1, K, F)."""
    if factors.kernels is not None:
        read: Tensor = factors.kernels.apply(*factors.whole, values[None])[0]
        return read
    heads = factors.heads
    result = values.new_zeros(heads, factors.queries, values.shape[-1])
    for rows, columns, tile in factors.tiles():
        result[:, rows] += exponentials(tile) @ values[:, columns]
    return result


def statistics(factors: Factors, left: Tensor | None) -> tuple[dict[str, Tensor], Tensor]:
    """Numbers of each row, (H, Q) by the names of ``HeadStatistics``; and (H, 1 + R, K) what each key receives from
    all rows, then left @ weights.

    Args:
        left: (H or 1, R, Q); None = R is 0.
    """
    lse, keys = factors.lse, factors.keys
    if factors.kernels is not None:
        given = None if left is None else left[None]
        found = factors.kernels.statistics(*factors.whole, left=given, detailed=False)
        rows = found.rows
        named = {
            "entropy": rows.entropy,
            "max_weight": rows.largest,
            "self_mass": rows.own,
            "previous_mass": rows.previous,
            "next_mass": rows.following,
            "mean_distance": rows.distance,
        }
        columns = found.received[0, :, None]
        if left is not None:
            columns = torch.cat([columns, found.rolled[0]], 1)
        return {name: value[0] for name, value in named.items()}, columns
    ones = torch.ones_like(lse[:1, None])  # (1, 1, Q)
    left = ones if left is None else torch.cat([ones.expand(len(left), -1, -1), left], 1)
    at = torch.arange(keys - factors.queries, keys, device=lse.device, dtype=lse.dtype)
    band = lse.new_zeros(*lse.shape, 3)
    received = lse.new_zeros(factors.heads, left.shape[1], keys)
    entropy, largest, distance = torch.zeros_like(lse), torch.full_like(lse, -math.inf), torch.zeros_like(lse)
    strongest = torch.zeros_like(lse, dtype=torch.int32)
    add_map_sums(
        factors,
        RowSums(entropy, largest, strongest, distance=distance, band=band, received=received),
        positions=Positions(at, torch.arange(keys, device=lse.device, dtype=lse.dtype)),
        left=left,
        offsets=torch.tensor([-1, 0, 1], dtype=torch.int32, device=lse.device),
    )
    names = ("previous_mass", "self_mass", "next_mass")
    around = {name: band[..., place] for place, name in enumerate(names)}
    return {"entropy": entropy, "max_weight": largest.exp(), "mean_distance": distance, **around}, received


def applied_left(factors: Factors, left: Tensor) -> Tensor:
    """(H, R, K): left @ weights, left (H or 1, R, Q)."""
    if factors.kernels is not None:
        carried: Tensor = factors.kernels.apply_left(*factors.whole, left[None])[0]
        return carried
    received = left.new_zeros(factors.heads, left.shape[1], factors.keys)
    add_map_sums(factors, RowSums(received=received), left=left)
    return received


def relevance_step(
    factors: Factors, left: Tensor, gradient: Tensor, value: Tensor, *, each_head: bool
) -> Tensor:
    """(K,): left @ mean over heads of weights ∘ gradient of the weights, negative parts cut (Chefer et al. 2021).

    The gradient of a weight is that of the context times the value, dP = dO · Vᵀ, so it is made tile by tile too.

    Args:
        left: (Q,).
        gradient: (H, Q, E) of the context; ``value``: (G, K, E).
        each_head: cut the negative part of each head, else that of their mean.
    """
    if factors.kernels is not None:
        step: Tensor = factors.kernels.relevance_step(
            *factors.whole, left[None, None], gradient[None], value[None], each_head=each_head
        )
        return step[0, 0]
    out = left.new_zeros(factors.keys)
    gradient, value = gradient.to(left.dtype).contiguous(), value.to(left.dtype)
    panels = Panels.of(value)
    values = None if panels else repeat_groups(value[None], factors.heads)[0].transpose(1, 2)
    buffer, room = factors.buffer(), factors.buffer()
    for rows in factors.strips():
        if not bool(left[rows].any()):
            continue
        for columns in factors.columns_of(rows):
            tile = factors.tile(rows, columns, buffer)
            slopes = room[: tile.numel()].view(tile.shape)
            if panels is not None:
                panels.products(gradient, rows, columns, slopes)
            elif values is not None:
                torch.bmm(gradient[:, rows], values[:, :, columns], out=slopes)
            add_relevance(tile, slopes, left[rows], out[columns], each_head=each_head)
            worked(tile.numel())
    return out
