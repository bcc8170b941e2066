"""Attention within a window around each token, and of a few global tokens that see all and are seen by all.

Beltagy et al. 2020 (Longformer). Only the weights that can be above 0 are kept, O(N · window) numbers: the window of
each query at relative positions, the columns of the global tokens, and their rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from attn_core.checks import check_index, check_ndim
from attn_core.maps import AttentionMap, Piece
from attn_core.strips import strip_rows


@dataclass(frozen=True)
class BandedMap(AttentionMap):
    """Self-attention whose weights lie in a band around the diagonal and in the rows and columns of global tokens.

    Attributes:
        band: (B, H, Q, W), W odd: entry w of query i is its weight on the key at i + w − (W − 1) / 2. It is 0 beyond
            the ends and on global tokens, whose weight stands in ``global_columns``.
        global_columns: (B, H, Q, X) weight of every query on the global tokens.
        global_rows: (B, H, X, K) rows of the global tokens themselves.
        global_tokens: (B, X) their positions; −1 where an item has fewer than X.
        valid: (B, N) bool, False for padding; None = all real.
        rows, columns: (Q,) and (K,) positions, before padding was cut out, of what is left; None = nothing was cut.
            The band counts in these.
    """

    band: Tensor
    global_columns: Tensor
    global_rows: Tensor
    global_tokens: Tensor
    valid: Tensor | None = None
    rows: Tensor | None = None
    columns: Tensor | None = None

    def __post_init__(self) -> None:
        check_ndim(self.band, 4, "BandedMap: band")
        check_ndim(self.global_rows, 4, "BandedMap: global_rows")
        if self.band.shape[3] % 2 == 0:
            raise ValueError(
                f"BandedMap: band must have an odd width, the query itself in the middle, but has "
                f"{self.band.shape[3]} columns; split the columns of global tokens off."
            )
        batch, heads, queries, _ = self.band.shape
        expected = (batch, heads, queries, self.global_tokens.shape[1])
        if self.global_columns.shape != expected:
            raise ValueError(
                f"BandedMap: global_columns must be {expected} but is {tuple(self.global_columns.shape)}; "
                "pass one column for each of global_tokens."
            )

    @property
    def shape(self) -> tuple[int, int, int, int]:
        batch, heads, queries, _ = self.band.shape
        return batch, heads, queries, self.global_rows.shape[3]

    @property
    def kv_heads(self) -> int:
        return self.heads

    @property
    def reach(self) -> int:
        """How many keys on either side of it a query sees."""
        return self.band.shape[3] // 2

    def global_positions(self, index: int = 0) -> tuple[int, ...]:
        """Positions of the global tokens of an item, counted among the keys that are left."""
        found = torch.isin(self._columns(), self.global_tokens[index])
        return tuple(int(position) for position in found.nonzero()[:, 0])

    def item(self, index: int, *, rows: Tensor | None = None, columns: Tensor | None = None) -> BandedMap:
        index = check_index(index, self.batch, "AttentionMap.item: index")
        kept_rows, kept_columns = (
            torch.arange(size, device=self.band.device)
            if self.valid is None
            else self.valid[index].nonzero()[:, 0]
            for size in (self.queries, self.keys)
        )
        rows = kept_rows if rows is None else rows.to(self.band.device)
        columns = kept_columns if columns is None else columns.to(self.band.device)
        real = self.global_tokens[index] >= 0
        return BandedMap(
            band=self.band[index : index + 1][:, :, rows],
            global_columns=self.global_columns[index : index + 1][:, :, rows][..., real],
            global_rows=self.global_rows[index : index + 1][:, :, real][..., columns],
            global_tokens=self.global_tokens[index : index + 1, real],
            rows=self._rows()[rows],
            columns=self._columns()[columns],
        )

    def _weights(self, rows: slice, columns: slice, head: int | None) -> Tensor:
        row, column = (torch.arange(s.start, s.stop, device=self.band.device) for s in (rows, columns))
        return self._part(row, column, slice(None) if head is None else slice(head, head + 1))

    def _part(self, rows: Tensor, columns: Tensor, heads: slice = slice(None)) -> Tensor:
        """(B, h, r, c) weights between some queries and some keys."""
        row, column = self._rows()[rows], self._columns()[columns]
        stored = torch.cat([self.band[:, heads, rows], self.global_columns[:, heads, rows]], dim=-1)
        block = stored.new_zeros(*stored.shape[:3], len(column))
        if not block.numel():
            return block
        around = torch.arange(-self.reach, self.reach + 1, device=row.device)
        keys = torch.cat(  # (B, r, W + X) the position that each stored weight belongs to
            [
                (row[:, None] + around).expand(self.batch, -1, -1),
                self.global_tokens[:, None].expand(-1, len(row), -1),
            ],
            dim=-1,
        )
        place = torch.full((int(column.max()) + 1,), -1, device=row.device)
        place[column] = torch.arange(len(column), device=row.device)
        target = torch.where((keys >= 0) & (keys < len(place)), place[keys.clamp(0, len(place) - 1)], -1)
        target = target[:, None].expand_as(stored)  # (B, h, r, W + X), −1 outside the block
        # A pair's weight is stored in one place, beside zeros at most, so adding changes no number.
        block.scatter_add_(3, target.clamp(min=0), stored.masked_fill(target < 0, 0.0))
        item, at, token = (row[None, :, None] == self.global_tokens[:, None]).nonzero(as_tuple=True)
        block[item, :, at] = self.global_rows[:, heads][..., columns][item, :, token]
        return block

    def pieces(self) -> Iterator[Piece]:
        """Runs of queries with the keys around them and the global tokens; then the global tokens with every key."""
        row, column = self._rows(), self._columns()
        of_global = torch.isin(column, self.global_tokens[0])
        sees_all = torch.isin(row, self.global_tokens[0])
        every = torch.ones_like(of_global)
        parts: list[tuple[Tensor, Tensor]] = []
        for run in _runs((~sees_all).nonzero()[:, 0], max(64, 2 * self.reach)):
            low, high = row[run].min() - self.reach, row[run].max() + self.reach
            parts.append((run, of_global | ((column >= low) & (column <= high))))
        parts += [(run, every) for run in _runs(sees_all.nonzero()[:, 0], strip_rows(self.heads, self.keys))]
        for run, seen in parts:
            keys = seen.nonzero()[:, 0]
            if len(keys):
                yield run.cpu(), keys.cpu(), self._part(run, keys)[:1]

    def _rows(self) -> Tensor:
        return torch.arange(self.queries, device=self.band.device) if self.rows is None else self.rows

    def _columns(self) -> Tensor:
        return torch.arange(self.keys, device=self.band.device) if self.columns is None else self.columns


def _runs(index: Tensor, length: int) -> list[Tensor]:
    return [index[start : start + length] for start in range(0, len(index), length)]
