"""A long document read in overlapping windows, as one map over its positions.

A model that takes n tokens reads a longer document window by window, each with its own special tokens. Here the
windows' maps are kept as they are, O(N · d) numbers for factored ones, and shown as one (N, N) map: a row of the
document is the row of the window that holds it, placed at the window's positions, zero elsewhere. A row that several
windows hold (that of a special token, which every window has) is the mean of theirs. So rows still sum to one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor

from attn_core.checks import check_index
from attn_core.maps import AttentionMap, Piece, check_positive
from attn_core.sparse_maps import pooled_parts, strongest_parts
from attn_core.watching import worked

MOST_KEPT = 4_000_000
"""Weights of rows that several windows hold that a map keeps: those of special tokens, not of a long question."""


@dataclass(frozen=True, eq=False)
class ReadingMap(AttentionMap):
    """Windows of a document as one map: each row the mean over the windows that hold it, zero outside the window.

    Attributes:
        windows: one map a window, (1, H, r, n) each: the rows that the window gives, and all keys that it sees.
        row_positions, column_positions: of each window, (r,) and (n,) ascending positions in the document.
        queries_count, keys_count: Q and K of the document.
    """

    windows: tuple[AttentionMap, ...]
    row_positions: tuple[Tensor, ...]
    column_positions: tuple[Tensor, ...]
    queries_count: int
    keys_count: int

    @staticmethod
    def of(
        windows: Sequence[AttentionMap], row_positions: Sequence[Tensor], column_positions: Sequence[Tensor]
    ) -> ReadingMap:
        """The map of a layer from its windows and the positions of their rows and keys.

        Raises:
            ValueError: for no window, positions that do not fit a window or do not ascend, or rows or keys from 0 on
                that no window holds.
        """
        if not windows or not len(windows) == len(row_positions) == len(column_positions):
            raise ValueError(
                f"ReadingMap: windows, row_positions and column_positions must be as many and at least one but are "
                f"{len(windows)}, {len(row_positions)} and {len(column_positions)}; pass one of each a window."
            )
        for window, rows, columns in zip(windows, row_positions, column_positions, strict=True):
            if window.shape != (1, windows[0].heads, len(rows), len(columns)):
                raise ValueError(
                    f"ReadingMap: windows must be (1, {windows[0].heads}, {len(rows)}, {len(columns)}) for their "
                    f"positions but one is {window.shape}; pass one position for each row and key of a window."
                )
            if any(bool((side.diff() <= 0).any()) for side in (rows, columns)):
                raise ValueError("ReadingMap: the positions of a window must ascend; sort them and its map.")
        queries, keys = (tuple(held.cpu() for held in side) for side in (row_positions, column_positions))
        return ReadingMap(tuple(windows), queries, keys, _length(queries, "rows"), _length(keys, "keys"))

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return 1, self.windows[0].heads, self.queries_count, self.keys_count

    @property
    def kv_heads(self) -> int:
        return self.windows[0].kv_heads

    def item(self, index: int, *, rows: Tensor | None = None, columns: Tensor | None = None) -> ReadingMap:
        check_index(index, 1, "AttentionMap.item: index")
        if rows is None and columns is None:
            return self
        cut = [
            (
                window.item(0, rows=held_rows[1], columns=held_columns[1]),
                held_rows[0],
                held_columns[0],
            )
            for window, held_rows, held_columns in zip(
                self.windows,
                (_renumbered(held, rows) for held in self.row_positions),
                (_renumbered(held, columns) for held in self.column_positions),
                strict=True,
            )
        ]
        kept = [part for part in cut if len(part[1])] or cut[
            :1
        ]  # also those without keys: a mean counts them
        return replace(
            self,
            windows=tuple(part[0] for part in kept),
            row_positions=tuple(part[1] for part in kept),
            column_positions=tuple(part[2] for part in kept),
            queries_count=self.queries if rows is None else len(rows),
            keys_count=self.keys if columns is None else len(columns),
        )

    @property
    def shared_rows(self) -> Tensor:
        """(S,) rows that more than one window holds: those of special tokens."""
        return (self._holders > 1).nonzero()[:, 0]

    def pooled(self, head: int | None, bins: int, *, how: Literal["max", "mean"] = "max") -> Tensor:
        """As in ``AttentionMap``, from the windows alone."""
        self._check_single("pooled")
        check_positive(bins, "pooled: bins")
        nothing = self._nothing(head, min(bins, self.queries), min(bins, self.keys))
        found = pooled_parts(self._parts(head), nothing, queries=self.queries, keys=self.keys, how=how)
        return found if head is None else found[0]

    def top_links(self, head: int | None, k: int) -> tuple[Tensor, Tensor]:
        """As in ``AttentionMap``, from the windows alone."""
        self._check_single("top_links")
        check_positive(k, "top_links: k")
        nothing = self._nothing(head, self.queries, min(k, self.keys))
        values, keys = strongest_parts(self._parts(head), nothing, keys=self.keys)
        return (values, keys) if head is None else (values[0], keys[0])

    def _weights(self, rows: slice, columns: slice, head: int | None) -> Tensor:
        block = self._nothing(head, rows.stop - rows.start, columns.stop - columns.start)
        if not block.numel():
            return block[None]
        held = self._holders[rows]
        for window, own_rows, own_columns in zip(
            self.windows, self.row_positions, self.column_positions, strict=True
        ):
            places, keys = _inside(own_rows, rows), _inside(own_columns, columns)
            if places.start == places.stop or keys.start == keys.stop:
                continue
            weights = window._weights(places, keys, head)[0]  # (H or 1, r, c)
            row, column = own_rows[places] - rows.start, own_columns[keys] - columns.start
            share = 1.0 / held[row].to(weights.device, weights.dtype)
            block[:, row[:, None], column] += weights * share[:, None]
        return block[None]

    def pieces(self) -> Iterator[Piece]:
        """The rows of each window alone with the keys that it sees; first those of all windows with every key."""
        for rows, columns, weights in self._parts(None):
            yield rows, columns, weights[None]

    def _parts(self, head: int | None) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Queries, keys that these may see, and the (H or 1, r, c) weights between them; every query once."""
        for rows, weights in self._shared_parts(head):
            yield rows, torch.arange(self.keys), weights
            worked(weights.numel())
        for window, rows, columns in zip(
            self.windows, self.row_positions, self.column_positions, strict=True
        ):
            every = slice(0, len(columns))
            for places in _runs_of((self._holders[rows] == 1).nonzero()[:, 0]):
                if len(columns):
                    weights, seen = window._weights(places, every, head)[0], columns
                else:  # all that it sees was cut away
                    weights, seen = self._nothing(head, places.stop - places.start, 1), torch.arange(1)
                yield rows[places], seen, weights
                worked(weights.numel())

    @cached_property
    def _holders(self) -> Tensor:
        """(Q,) how many windows hold each row."""
        return torch.bincount(torch.cat(self.row_positions), minlength=self.queries_count)

    def _shared_parts(self, head: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows that several windows hold, and their (H or 1, S, K) weights: some at a time, and kept where few."""
        together = max(MOST_KEPT // (self.heads * self.keys), 1)
        if len(self.shared_rows) <= together:
            if len(self.shared_rows):
                kept = self._shared_weights
                yield self.shared_rows, kept if head is None else kept[head : head + 1]
            return
        for rows in torch.split(self.shared_rows, together):
            yield rows, self._rows_of(rows, head)

    @cached_property
    def _shared_weights(self) -> Tensor:
        """(H, S, K) the rows that several windows hold, which every question asks for."""
        return self._rows_of(self.shared_rows, None)

    def _rows_of(self, rows: Tensor, head: int | None) -> Tensor:
        """(H or 1, S, K) weights of rows that ascend."""
        parts = [self._weights(run, slice(0, self.keys), head)[0] for run in _runs_of(rows)]
        return torch.cat(parts, dim=1)

    def _nothing(self, head: int | None, height: int, width: int) -> Tensor:
        """(H or 1, height, width) zeros of the type and on the device of the weights."""
        none = slice(0, 0)
        example = self.windows[0]._weights(none, none, 0)
        return example.new_zeros((self.heads if head is None else 1, height, width))


def _length(positions: Sequence[Tensor], what: str) -> int:
    """How many positions the windows hold together."""
    held = torch.unique(torch.cat(tuple(positions)))
    if not len(held) or not torch.equal(held, torch.arange(len(held))):
        raise ValueError(
            f"ReadingMap: the windows must hold all {what} from 0 on but some are missing; pass windows that overlap "
            "or touch."
        )
    return len(held)


def _inside(held: Tensor, part: slice) -> slice:
    """Places of a window whose ascending positions lie in a slice."""
    bounds = torch.tensor([max(part.start, 0), part.stop])
    start, stop = torch.searchsorted(held, bounds).tolist()
    return slice(start, max(start, stop))


def _renumbered(held: Tensor, kept: Tensor | None) -> tuple[Tensor, Tensor]:
    """Positions of a window as they are counted when only ``kept`` are left, ascending, and their places in it."""
    places = torch.arange(len(held))
    if kept is None:
        return held, places
    kept = kept.cpu()
    highest = max((int(side.max()) for side in (held, kept) if len(side)), default=0)
    numbers = torch.full((highest + 1,), -1)
    numbers[kept] = torch.arange(len(kept))
    new = numbers[held]
    order = new.argsort()
    order = order[new[order] >= 0]
    return new[order], places[order]


def _runs_of(places: Tensor) -> list[slice]:
    """Slices of consecutive numbers."""
    if not len(places):
        return []
    breaks = (places.diff() != 1).nonzero()[:, 0] + 1
    bounds = [0, *breaks.tolist(), len(places)]
    return [slice(int(places[start]), int(places[stop - 1]) + 1) for start, stop in pairwise(bounds)]
