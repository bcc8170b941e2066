"""Keys in panels, by which compiled code multiplies rows quickly: the products of ``tiles.c``."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from attn_core.flash.compiled import library

QUICKER = 0.85
"""Share of torch's time that compiled products must stay under to be taken."""


@dataclass(frozen=True, eq=False)
class Panels:
    """Keys laid out so that rows are multiplied with them quickly.

    Attributes:
        values: (G, P, W, S) panels of S keys, number by number; keys beyond the last are 0.
        keys: how many there are.
    """

    values: Tensor
    keys: int

    @staticmethod
    def of(keys: Tensor, *, and_one: bool = False) -> Panels | None:
        """As ``laid_out``; None where torch multiplies as quickly, or the compiled function does not take them."""
        found = library()
        if (
            found is None
            or keys.device.type != "cpu"
            or keys.dtype != torch.float32
            or not multiplies_quicker()
        ):
            return None
        return Panels.laid_out(keys, found.panel_width(), and_one=and_one)

    @staticmethod
    def laid_out(keys: Tensor, size: int, *, and_one: bool = False) -> Panels:
        """From (G, K, W), S of them in a panel; with ``and_one`` each has a 1 after its last number."""
        groups, count, width = keys.shape
        values = keys.new_zeros(groups, -(-count // size), width + and_one, size)
        whole = count // size  # written in place: a copy on the way would be as large as the keys
        by_key = values.transpose(2, 3)  # (G, P, S, W)
        by_key[:, :whole, :, :width] = keys[:, : whole * size].reshape(groups, whole, size, width)
        if count % size:
            by_key[:, whole, : count % size, :width] = keys[:, whole * size :]
        if and_one:
            by_key[..., width] = 1.0
        return Panels(values, count)

    def products(self, left: Tensor, rows: slice, columns: slice, out: Tensor) -> None:
        """Write some rows of ``left`` (H, Q, W) times some keys into ``out`` (H, r, c)."""
        found = library()
        assert found is not None  # or there were no panels
        heads, _, width = left.shape
        groups, count = len(self.values), rows.stop - rows.start
        assert left.is_contiguous()
        assert out.is_contiguous()
        assert out.shape == (heads, count, columns.stop - columns.start)
        assert 0 <= columns.start <= columns.stop <= self.keys
        assert 0 <= rows.start <= rows.stop <= left.shape[1]
        assert width == self.values.shape[2]
        assert heads % groups == 0
        found.tile_products(
            *(left.data_ptr() + 4 * rows.start * width, heads, count, width, left.stride(0)),
            *(self.values.data_ptr(), heads // groups, self.values.stride(0), columns.start, out.shape[2]),
            out.data_ptr(),
        )


@cache
def multiplies_quicker() -> bool:
    """Whether the compiled products take clearly less time here than torch's: tried once, on a tile of 6 heads.

    PyTorch multiplies by MKL, which leaves half of the rate of AMD's processors with AVX-512 unused.
    """
    found = library()
    if found is None or not found.panel_width():
        return False
    rows, keys = torch.ones(6, 96, 65), torch.ones(6, 256, 65)
    out, panels = torch.empty(6, 96, 256), Panels.laid_out(keys, found.panel_width())
    ours = _least_time(lambda: panels.products(rows, slice(0, 96), slice(0, 256), out))
    theirs = _least_time(lambda: torch.bmm(rows, keys.mT, out=out))
    return ours < QUICKER * theirs


def _least_time(run: Callable[[], object]) -> float:
    """Seconds of this thread, the least of some runs."""
    times = []
    for _ in range(6):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)
