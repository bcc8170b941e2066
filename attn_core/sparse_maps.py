"""Questions about maps that are zero but for parts, answered from the parts: windows of a grid, a document's windows.

A part is (r,) queries, (c,) keys and the (H, r, c) weights between them. The parts of a map hold each of its queries
once, with all keys that it sees.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor

Part = tuple[Tensor, Tensor, Tensor]
"""(r,) queries, (c,) keys, and the (H, r, c) weights between them; positions on the CPU."""


def pooled_parts(
    parts: Iterable[Part], nothing: Tensor, *, queries: int, keys: int, how: Literal["max", "mean"]
) -> Tensor:
    """(H, b, d): the largest or mean weight of each rectangle of bins, as adaptive pooling cuts them.

    Columns are pooled first, so that rows are only pooled over as many numbers as a part has bins across.

    Args:
        nothing: (H, b, d) zeros, in the type and on the device of the weights; they are written into.
    """
    down, across = nothing.shape[1:]
    pool = torch.amax if how == "max" else torch.sum
    for rows, columns, weights in parts:
        rows, by_row = rows.sort()
        columns, by_column = columns.sort()
        weights = weights if _is_sorted(by_row) else weights[:, by_row]
        weights = weights if _is_sorted(by_column) else weights[:, :, by_column]
        touched = _bins_touched(columns, keys, across)
        if not touched:
            continue
        narrow = torch.stack([pool(weights[:, :, places], dim=2) for _, places in touched], dim=2)
        at = torch.tensor([number for number, _ in touched], device=nothing.device)
        for number, places in _bins_touched(rows, queries, down):
            found = pool(narrow[:, places], dim=1)  # (H, d')
            if how == "max":
                nothing[:, number, at] = torch.maximum(nothing[:, number, at], found)
            else:
                nothing[:, number, at] += found
    if how == "max":
        return nothing
    sizes = [_bins(length, bins) for length, bins in ((queries, down), (keys, across))]
    (top, bottom), (left, right) = sizes
    return nothing / ((bottom - top)[:, None] * (right - left)).to(nothing.device)


def strongest_parts(parts: Iterable[Part], nothing: Tensor, *, keys: int) -> tuple[Tensor, Tensor]:
    """(H, Q, k) weights and keys of the strongest links of each query.

    Where a query sees fewer than k keys the rest are others, with weight 0.

    Args:
        nothing: (H, Q, k) zeros, k at most ``keys``; they are written into.
    """
    count = nothing.shape[2]
    places = torch.arange(count, device=nothing.device).expand(nothing.shape).clone()
    for rows, columns, weights in parts:
        found = torch.topk(weights, min(count, len(columns)), dim=-1)
        width = found.values.shape[-1]
        nothing[:, rows, :width] = found.values
        places[:, rows, :width] = columns.to(places.device)[found.indices]
        if width < count:
            others = torch.ones(keys, dtype=torch.bool)
            others[columns] = False
            places[:, rows, width:] = others.nonzero()[: count - width, 0].to(places.device)
    return nothing, places


def _is_sorted(order: Tensor) -> bool:
    return bool((order.diff() == 1).all())


def _bins_touched(positions: Tensor, length: int, bins: int) -> list[tuple[int, slice]]:
    """Bins that hold some of ascending positions, and the places of these."""
    starts, stops = (torch.searchsorted(positions, bound) for bound in _bins(length, bins))
    touched = (stops > starts).nonzero()[:, 0].tolist()
    return [(index, slice(int(starts[index]), int(stops[index]))) for index in touched]


def _bins(length: int, bins: int) -> tuple[Tensor, Tensor]:
    """(bins,) where each bin of adaptive pooling begins, ⌊i · length / bins⌋, and ends, ⌈(i + 1) · length / bins⌉."""
    number = torch.arange(bins)
    return number * length // bins, -(-(number + 1) * length // bins)
