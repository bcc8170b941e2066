"""Attention inside the windows of a grid (Swin), read as a map over the whole grid.

Liu et al. 2021: a layer cuts its grid of patches into windows of w × w, every second layer after rolling the grid by
half a window, and attends inside each window alone. A grid that is no whole number of windows is first padded with
zeros at its right and lower edge; the padding takes part in the softmax. A ``WindowedMap`` keeps the windows' own
maps and shows them as one (N, N) map over the grid's real positions (docs/conventions.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor

from attn_core.checks import check_index
from attn_core.maps import AttentionMap, Piece, check_positive
from attn_core.sparse_maps import pooled_parts, strongest_parts

TOGETHER_ELEMENTS = 16_000_000
"""Weights of all windows that are computed at once: 64 MB in float32."""


def window_positions(grid: tuple[int, int], window: int, *, shift: int = 0) -> Tensor:
    """Which position of a grid stands in each place of each window, as Swin cuts it.

    Args:
        grid: rows and columns of real positions; they are counted along the rows.
        window: places along a side of a window.
        shift: how far the padded grid is rolled up and to the left before it is cut.
    Returns:
        (W, window²) int64; −1 for a place that holds padding.
    Raises:
        ValueError: for an empty grid or window, or a shift that is no place of a window.
    """
    rows, columns = grid
    if min(rows, columns, window) < 1 or not 0 <= shift < window:
        raise ValueError(
            f"window_positions: grid, window and shift must be at least 1, 1 and 0, and shift below window, but are "
            f"{grid}, {window} and {shift}; pass what the layer cuts."
        )
    places = torch.arange(rows * columns).view(rows, columns)
    padding = (0, -columns % window, 0, -rows % window)
    places = torch.nn.functional.pad(places, padding, value=-1).roll((-shift, -shift), dims=(0, 1))
    down, across = (length // window for length in places.shape)
    cut = places.view(down, window, across, window).transpose(1, 2)  # (down, across, window, window)
    return cut.reshape(down * across, window * window)


@dataclass(frozen=True, eq=False)
class WindowedMap(AttentionMap):
    """The windows of a layer as one map over the grid: weights inside a position's window, zero outside.

    Padding is no position of the map: its rows and columns are left out and nothing is normalised again, so a row of
    a window that holds padding sums to what falls on real positions (``kept``), not to one.

    Attributes:
        windows: (pictures × W, H, n, n) the layer's own map, the windows of a picture in order.
        row_positions, column_positions: (W, n) the query and the key that stand in each place of a window, −1 for
            padding and for what was cut.
        pictures: which pictures of ``windows`` this map holds.
    """

    windows: AttentionMap
    row_positions: Tensor
    column_positions: Tensor
    pictures: tuple[int, ...]

    @staticmethod
    def of(windows: AttentionMap, positions: Tensor) -> WindowedMap:
        """The map of a layer from its windows and the positions that they hold (``window_positions``).

        Raises:
            ValueError: if ``positions`` do not fit the windows, or do not hold each position of a grid once.
        """
        batch, _, queries, keys = windows.shape
        if positions.ndim != 2 or batch % len(positions) or (queries, keys) != (positions.shape[1],) * 2:
            raise ValueError(
                f"WindowedMap: positions must be (W, n) for windows of {queries} × {keys} weights in a batch of "
                f"{batch} but is {tuple(positions.shape)}; pass one row of n places for each window of a picture."
            )
        held = positions[positions >= 0].sort().values
        if not torch.equal(held, torch.arange(len(held), device=held.device)) or not len(held):
            raise ValueError(
                "WindowedMap: positions must hold each position from 0 on exactly once but do not; "
                "pass −1 for the places of padding."
            )
        positions = positions.cpu()
        return WindowedMap(windows, positions, positions, tuple(range(batch // len(positions))))

    @property
    def shape(self) -> tuple[int, int, int, int]:
        queries, keys = (int((side >= 0).sum()) for side in (self.row_positions, self.column_positions))
        return len(self.pictures), self.windows.heads, queries, keys

    @property
    def kv_heads(self) -> int:
        return self.windows.kv_heads

    def item(self, index: int, *, rows: Tensor | None = None, columns: Tensor | None = None) -> WindowedMap:
        index = check_index(index, self.batch, "AttentionMap.item: index")
        return replace(
            self,
            pictures=(self.pictures[index],),
            row_positions=_renumbered(self.row_positions, rows),
            column_positions=_renumbered(self.column_positions, columns),
        )

    def kept(self, head: int | None) -> Tensor:
        """Share of each row that falls on positions of the map, the rest being on padding: (Q,), or (H, Q)."""
        self._check_single("kept")
        heads = self.heads if head is None else 1
        shares = torch.zeros(heads, self.queries)
        for rows, _, weights in self._windows_of(head):
            shares[:, rows] = weights.sum(-1).to("cpu", torch.float32)
        return shares if head is None else shares[0]

    def pooled(self, head: int | None, bins: int, *, how: Literal["max", "mean"] = "max") -> Tensor:
        """As in ``AttentionMap``, from the windows alone."""
        self._check_single("pooled")
        check_positive(bins, "pooled: bins")
        nothing = self._nothing(1, head, min(bins, self.keys), height=min(bins, self.queries))[0]
        found = pooled_parts(self._windows_of(head), nothing, queries=self.queries, keys=self.keys, how=how)
        return found if head is None else found[0]

    def top_links(self, head: int | None, k: int) -> tuple[Tensor, Tensor]:
        """As in ``AttentionMap``, from the windows alone."""
        self._check_single("top_links")
        check_positive(k, "top_links: k")
        nothing = self._nothing(1, head, min(k, self.keys), height=self.queries)[0]
        values, keys = strongest_parts(self._windows_of(head), nothing, keys=self.keys)
        return (values, keys) if head is None else (values[0], keys[0])

    def _weights(self, rows: slice, columns: slice, head: int | None) -> Tensor:
        height, width = rows.stop - rows.start, columns.stop - columns.start
        block = self._nothing(self.batch, head, width, height=height)
        for window in self._touched(rows, columns):
            query, row_places = _inside(self.row_positions[window], rows)
            key, column_places = _inside(self.column_positions[window], columns)
            for place in range(self.batch):
                weights = self._of_window(place, window, row_places, column_places, head)
                block[place, :, query[:, None], key[None, :]] = weights
        return block

    def pieces(self) -> Iterator[Piece]:
        for rows, columns, weights in self._windows_of(None):
            yield rows, columns, weights[None]

    def _windows_of(self, head: int | None) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Every window that holds anything of the picture: its queries, its keys and (H or 1, r, c) weights."""
        every = slice(0, self.queries), slice(0, self.keys)
        together = self._together(head)
        for window, (row_held, column_held) in enumerate(
            zip(self.row_positions, self.column_positions, strict=True)
        ):
            rows, row_places = _inside(row_held, every[0])
            columns, column_places = _inside(column_held, every[1])
            if not len(rows) or not len(columns):
                continue
            if together is None:
                weights = self._of_window(0, window, row_places, column_places, head)
            elif len(rows) == len(row_held) and len(columns) == len(column_held):
                weights = together[window]
            else:
                weights = together[window][:, row_places[:, None], column_places]
            yield rows, columns, weights

    def _together(self, head: int | None) -> Tensor | None:
        """(W, H or 1, n, n) weights of all windows of the one picture, None where they would take too much memory.

        One large product is much cheaper than one a window.
        """
        batch, heads, queries, keys = self.windows.shape
        if batch * (heads if head is None else 1) * queries * keys > TOGETHER_ELEMENTS:
            return None
        first = self.pictures[0] * len(self.row_positions)
        weights = self.windows._weights(slice(0, queries), slice(0, keys), head)
        return weights[first : first + len(self.row_positions)]

    def _of_window(self, place: int, window: int, rows: Tensor, columns: Tensor, head: int | None) -> Tensor:
        """(H or 1, r, c) weights between some places of a window of the picture in ``place``."""
        index = self.pictures[place] * len(self.row_positions) + window
        part = self.windows.item(index, rows=rows, columns=columns)
        weights = part.block(head, slice(0, len(rows)), slice(0, len(columns)))
        return weights if head is None else weights[None]

    def _nothing(self, batch: int, head: int | None, width: int, *, height: int = 1) -> Tensor:
        """(batch, H or 1, height, width) zeros of the type and on the device of the weights."""
        none = torch.arange(1)
        example = self.windows.item(0, rows=none, columns=none).block(0, slice(0, 1), slice(0, 1))
        return example.new_zeros((batch, self.heads if head is None else 1, height, width))

    def _touched(self, rows: slice, columns: slice) -> list[int]:
        """Windows that hold a query of ``rows`` and a key of ``columns``."""
        queries = self._row_windows[rows]
        keys = self._column_windows[columns]
        return sorted(set(queries.tolist()) & set(keys.tolist()))

    @cached_property
    def _row_windows(self) -> Tensor:
        return _window_of_each(self.row_positions)

    @cached_property
    def _column_windows(self) -> Tensor:
        return _window_of_each(self.column_positions)


def _window_of_each(positions: Tensor) -> Tensor:
    """(N,) the window in which each position stands."""
    windows, places = (positions >= 0).nonzero(as_tuple=True)
    found = torch.empty_like(windows)
    found[positions[windows, places]] = windows
    return found


def _inside(held: Tensor, part: slice) -> tuple[Tensor, Tensor]:
    """Of the (n,) positions that a window holds those in a slice: counted from its start, and their places."""
    places = ((held >= max(part.start, 0)) & (held < part.stop)).nonzero()[:, 0]
    return held[places] - part.start, places


def _renumbered(positions: Tensor, kept: Tensor | None) -> Tensor:
    """Positions as they are counted when only ``kept`` are left; −1 for the others."""
    if kept is None:
        return positions
    numbers = torch.full((int((positions >= 0).sum()) + 1,), -1)  # the last entry is that of −1
    numbers[kept.cpu()] = torch.arange(len(kept))
    return numbers[positions]
