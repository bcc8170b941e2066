"""What the calls of the Triton map kernels share: checked arguments, and sizes of tiles."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor

from attn_core.checks import check_ndim, check_query_key_value
from attn_core.flash.scoring import Scoring
from attn_core.flash.triton_common import (
    KernelScoring,
    Precision,
    Strided,
    input_precision,
    interpreted,
    kernel_scoring,
    padded_width,
    strided,
    triton,
    unsupported_here,
    unsupported_scoring,
)
from attn_core.watching import worked

MOST_PARTS = 8
"""Most parts of the queries that write sums of their own."""


def usable(query: Tensor, key: Tensor, scoring: Scoring) -> str | None:
    """Why the kernels cannot answer for this map, and what can; None when they can."""
    return unsupported_here(query) or unsupported_scoring(scoring, query, key)


@dataclass(frozen=True)
class Tile:
    """A tile of a kernel and the warps that make it."""

    rows: int
    columns: int
    warps: int = 8

    @property
    def turned(self) -> Tile:
        """For kernels that keep keys and walk over queries."""
        return replace(self, rows=self.columns, columns=self.rows)

    @property
    def options(self) -> dict[str, Any]:
        """What a launch takes."""
        return {"ROWS": self.rows, "COLUMNS": self.columns, "num_warps": self.warps, "num_stages": 2}


Kind = Literal["walk", "bins", "relevance"]
"""What a kernel does with its tiles: walk over keys, gather places of bins, or make two products of each."""

_HALF = {
    "walk": {64: (128, 64), 128: (128, 64), 256: (64, 32)},
    "bins": {64: (64, 64), 128: (64, 64), 256: (64, 32)},
    "relevance": {64: (64, 32), 128: (64, 32), 256: (32, 16)},
}
_EXACT = {
    "walk": {64: (64, 32), 128: (32, 32), 256: (32, 16)},
    "bins": {64: (64, 32), 128: (32, 16), 256: (32, 16)},
    "relevance": {64: (64, 32), 128: (32, 32), 256: (32, 16)},
}
_THREEFOLD = {kind: {64: (64, 32), 128: (64, 32), 256: (32, 16)} for kind in _EXACT}


def tile_of(width: int, itemsize: int, precision: str, kind: Kind) -> Tile:
    """The tile of a kernel that keeps the first axis and walks over the second: large, but spilling no register.

    Found by compiling for sm_80 and sm_90, not by timing. The kept side is the long one, since what is walked over is
    loaded again by every program. Exact products of float32 are not for tensor cores and take many registers. Three
    products of TF32 take so many that relevance, and heads wider than 64, do spill.

    Args:
        width: of a head, padded; of relevance the wider one of key and value.
        precision: of float32 products.
    """
    if interpreted():
        return Tile(128, 128)  # a tile takes the same time whatever its size
    sizes = _HALF if itemsize == 2 else _THREEFOLD if precision == "tf32x3" else _EXACT
    return Tile(*sizes[kind][max(64, width)])


@dataclass(frozen=True, eq=False)
class Slopes:
    """What the gradients of weights are made from."""

    gradient: Strided
    value: Strided
    widths: dict[str, Any]
    itemsize: int


@dataclass(frozen=True, eq=False)
class MapCall:
    """One map as kernels take it.

    Attributes:
        widths: WIDTH and PADDED of query and key.
        precision: of q · k; ``mixing``: of products with weights.
        weights: how many the map has.
    """

    query: Strided
    key: Strided
    lse: Tensor
    scoring: KernelScoring
    widths: dict[str, Any]
    precision: str
    mixing: str
    itemsize: int
    weights: int

    @staticmethod
    def of(
        query: Tensor, key: Tensor, lse: Tensor, scoring: Scoring, precision: Precision, function: str
    ) -> MapCall:
        """The call of ``function`` with its arguments checked.

        Raises:
            TypeError, ValueError: if shapes do not belong together, or the kernels cannot compute this.
        """
        check_query_key_value(query, key, None, function)
        if lse.shape != query.shape[:3]:
            raise ValueError(
                f"{function}: lse must have query's batch, heads and positions {tuple(query.shape[:3])} but has "
                f"{tuple(lse.shape)}; pass the log-sum-exp of the same rows."
            )
        reason = usable(query, key, scoring)
        if reason is not None:
            raise ValueError(f"{function}: the Triton kernels cannot compute this because {reason}.")
        width, exact = query.shape[3], query.dtype == torch.float32
        return MapCall(
            query=strided(query),
            key=strided(key),
            lse=lse.to(torch.float32).contiguous(),
            scoring=kernel_scoring(scoring, query, key),
            widths={"WIDTH": width, "PADDED": padded_width(width)},
            precision=input_precision(query, precision),
            # Weights are float32 also where q and k are not; three products of TF32 keep them to 10⁻⁶.
            mixing=precision if exact else "tf32x3",
            itemsize=query.dtype.itemsize,
            weights=lse.numel() * key.shape[2],
        )

    def tile(self, kind: Kind = "walk") -> Tile:
        """Of a kernel that keeps queries and walks over keys."""
        return tile_of(self.widths["PADDED"], self.itemsize, self.precision, kind)

    def tile_with(self, slopes: Slopes) -> Tile:
        """Of a kernel of relevance; keys are the long side, which comes first in its products."""
        width = max(self.widths["PADDED"], slopes.widths["VALUE_PADDED"])
        itemsize, precision = max(self.itemsize, slopes.itemsize), slopes.widths["VALUE_PRECISION"]
        return tile_of(width, itemsize, precision, "relevance").turned

    def slopes(self, gradient: Tensor, value: Tensor, precision: Precision, function: str) -> Slopes:
        """What the gradients of weights are made from; both in one dtype, the wider one."""
        queries, group = self.scoring.queries, self.scoring.group
        batch, heads = self.lse.shape[:2]
        check_ndim(gradient, 4, f"{function}: gradient")
        check_ndim(value, 4, f"{function}: value")
        expected = (batch, heads, queries, value.shape[3])
        if tuple(gradient.shape) != expected:
            raise ValueError(
                f"{function}: gradient must have the shape of the context {expected} but has "
                f"{tuple(gradient.shape)}; pass ∂target/∂context of the same layer."
            )
        if tuple(value.shape[:3]) != (batch, heads // group, self.scoring.keys):
            raise ValueError(
                f"{function}: value must have key's batch, heads and positions "
                f"{(batch, heads // group, self.scoring.keys)} but has {tuple(value.shape[:3])}; pass the value that "
                "belongs to the same keys."
            )
        dtype = value.dtype if value.dtype == gradient.dtype else torch.float32
        width = value.shape[3]
        return Slopes(
            gradient=strided(gradient.to(dtype)),
            value=strided(value.to(dtype)),
            widths={
                "VALUE_WIDTH": width,
                "VALUE_PADDED": padded_width(width),
                "VALUE_PRECISION": precision if dtype == torch.float32 else "ieee",
            },
            itemsize=dtype.itemsize,
        )

    def done(self) -> None:
        """Say that the map has been walked through."""
        worked(self.weights)


def blocks(size: int, step: int) -> int:
    """Programs along an axis."""
    return -(-size // step)


def padded(count: int) -> int:
    """The power of two that holds ``count``, at least the 16 that a product needs."""
    return max(16, int(triton.next_power_of_2(count)))


def padded_count(count: int) -> int:
    """How many factors a kernel computes with: none, one, or a power of two from 16 on."""
    return count if count <= 1 else padded(count)


def parts_of(query: Tensor, programs: int, queries: int, rows: int) -> int:
    """Into how many parts queries are split, so that every processor of the device has two programs."""
    if query.device.type != "cuda":
        return 1
    processors = torch.cuda.get_device_properties(query.device).multi_processor_count
    return max(1, min(MOST_PARTS, 2 * processors // programs, blocks(queries, rows)))


def expanded(factors: Tensor, shape: tuple[int, int, int, int], name: str) -> Strided:
    """Factors that broadcast to ``shape``, in float32, by their strides."""
    check_ndim(factors, 4, name)
    if any(own not in (1, wanted) for own, wanted in zip(factors.shape[:2], shape[:2], strict=True)) or (
        tuple(factors.shape[2:]) != shape[2:]
    ):
        raise ValueError(f"{name} must broadcast to {shape} but has {tuple(factors.shape)}.")
    return strided(factors.to(torch.float32).expand(shape))
