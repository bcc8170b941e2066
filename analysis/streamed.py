"""A matrix of weights too large to be written out: an overview of it, and any part exactly, where arrays are drawn.

Figure records hold it in the place of an array, and these are NumPy alone: torch is imported inside the functions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

    from attn_core.maps import AttentionMap

Index = int | slice


@dataclass(frozen=True, eq=False)
class StreamedMatrix:
    """(Q, K) weights of one head, or the mean over heads, read from the layer's map where they are asked for.

    Attributes:
        attention: the map, of one input.
        head: None for the mean over heads.
        factor: of ``overview``.
        overview: (⌈Q/factor⌉, ⌈K/factor⌉) largest weight of each ``factor`` × ``factor`` block.
    """

    attention: AttentionMap
    head: int | None
    factor: int
    overview: NDArray[np.float32]

    @property
    def shape(self) -> tuple[int, int]:
        """(Q, K)."""
        return self.attention.queries, self.attention.keys

    @property
    def highest(self) -> float:
        """Largest weight."""
        return float(self.overview.max())

    def __getitem__(self, place: tuple[Index, Index]) -> NDArray[np.float32]:
        """The weights between some queries and some keys, exactly; an index in place of a slice drops its axis.

        Raises:
            IndexError: for an index outside the matrix.
        """
        spans = tuple(_span(index, size) for index, size in zip(place, self.shape, strict=True))
        found = _block(self.attention, self.head, *spans).numpy()
        axes = tuple(axis for axis, index in enumerate(place) if not isinstance(index, slice))
        return found.squeeze(axes)  # type: ignore[no-any-return]

    def pooled(self, rows: slice, columns: slice, factor: int) -> NDArray[np.float32]:
        """The largest weight of each ``factor`` × ``factor`` block of a part."""
        rows, columns = (_span(index, size) for index, size in zip((rows, columns), self.shape, strict=True))
        if (
            factor == self.factor
            and (rows.start, columns.start) == (0, 0)
            and (rows.stop, columns.stop) == self.shape
        ):
            return self.overview
        return _largest(self.attention, self.head, rows, columns, factor).numpy()

    def __array__(self, dtype: object = None, copy: bool | None = None) -> NDArray[np.float32]:
        """Refused: it would be the array that this record stands for.

        Raises:
            MemoryBudgetError: always.
        """
        from attn_core.errors import MemoryBudgetError

        queries, keys = self.shape
        raise MemoryBudgetError(
            f"A whole matrix of {queries:,} × {keys:,} weights takes {queries * keys * 4 / 2**20:,.0f} MiB, more "
            "than the memory budget; zoom in, or allow more memory."
        )


def streamed_matrix(attention: AttentionMap, head: int | None, *, cells: int) -> StreamedMatrix:
    """The matrix of a head, or the mean over heads, with an overview of at most ``cells`` a side: one pass."""
    factor = max(-(-max(attention.queries, attention.keys) // cells), 1)
    whole = slice(0, attention.queries), slice(0, attention.keys)
    overview = _largest(attention, head, *whole, factor).numpy()
    overview.flags.writeable = False
    return StreamedMatrix(attention, head, factor, overview)


def _largest(attention: AttentionMap, head: int | None, rows: slice, columns: slice, factor: int) -> Tensor:
    """The largest weight of each block of a part, some rows of blocks at a time."""
    import torch

    from attn_core.strips import strip_rows
    from attn_core.watching import worked

    heads = attention.heads if head is None else 1
    step = max(strip_rows(1, columns.stop - columns.start) // factor, 1) * factor
    parts = []
    for start in range(rows.start, rows.stop, step):
        strip = slice(start, min(start + step, rows.stop))
        weights = _block(attention, head, strip, columns)
        parts.append(torch.nn.functional.max_pool2d(weights[None], factor, ceil_mode=True)[0])
        worked(heads * weights.numel())
    return torch.cat(parts)


def _block(attention: AttentionMap, head: int | None, rows: slice, columns: slice) -> Tensor:
    """(r, c) weights of a head, or the mean over heads, added up head by head so that one is held at a time."""
    if head is not None:
        return attention.block(head, rows, columns).cpu().float()
    total = attention.block(0, rows, columns).cpu().double()
    for index in range(1, attention.heads):
        total += attention.block(index, rows, columns).cpu()
    return (total / attention.heads).float()


def _span(index: Index, size: int) -> slice:
    if isinstance(index, slice):
        start, stop, _ = index.indices(size)
        return slice(start, max(start, stop))
    place = int(index)
    if not -size <= place < size:
        raise IndexError(f"StreamedMatrix: index must be between 0 and {size - 1} but is {place}.")
    return slice(place % size, place % size + 1)
