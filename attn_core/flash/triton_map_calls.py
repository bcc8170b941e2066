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


Kind = Literal["walk", "links", "statistics", "details", "crowded", "bins", "relevance", "biased relevance"]
"""What a kernel does with its tiles: walk over keys, seek the largest, sum both ways (few numbers, all of them, or
with much to look up for each pair), gather places of bins, or make two products of each (without and with a bias or
cap)."""

_Tiles = dict[Kind, dict[int, tuple[int, ...]]]
"""Of each kind of kernel the tile for heads up to a width: the first and the second side, and warps if not 8."""

_HALF: _Tiles = {
    "walk": {64: (128, 64), 128: (128, 64), 256: (64, 32)},
    "links": {64: (128, 64), 128: (128, 64), 256: (64, 32)},
    "statistics": {64: (64, 128), 128: (32, 128), 256: (32, 128)},
    "details": {64: (32, 128), 128: (32, 128), 256: (16, 64, 4)},
    "crowded": {64: (16, 128), 128: (16, 128), 256: (16, 32, 2)},
    "bins": {64: (64, 64), 128: (64, 64), 256: (64, 32)},
    "relevance": {64: (64, 32), 128: (64, 32), 256: (32, 16)},
    "biased relevance": {64: (64, 32), 128: (64, 32), 256: (32, 16)},
}
_EXACT: _Tiles = {
    "walk": {64: (64, 32), 128: (32, 32), 256: (32, 16)},
    "links": {64: (32, 16), 128: (32, 16), 256: (32, 16)},
    "statistics": {64: (32, 128), 128: (32, 128), 256: (16, 128)},
    "details": {64: (16, 64, 4), 128: (16, 128), 256: (16, 128)},
    "crowded": {64: (16, 32, 2), 128: (16, 64, 4), 256: (16, 128)},
    "bins": {64: (64, 32), 128: (32, 16), 256: (32, 16)},
    "relevance": {64: (64, 32), 128: (32, 32), 256: (32, 16)},
    "biased relevance": {64: (16, 16), 128: (16, 16), 256: (16, 16)},
}
_THREEFOLD: _Tiles = {
    "walk": {64: (64, 32), 128: (32, 16)},
    "links": {64: (64, 32), 128: (32, 16)},
    "statistics": {64: (32, 128)},
    "details": {64: (16, 128)},
    "crowded": {64: (16, 128)},
    "bins": {64: (64, 16), 128: (16, 16, 4)},
    "relevance": {64: (32, 16)},
    "biased relevance": {64: (32, 16)},
}


def products(precision: Precision, width: int, kind: Kind) -> Precision:
    """How float32 products are formed where ``precision`` is asked for.

    Three products of TF32 hold both operands twice in registers. Where no tile of so wide a head leaves room for
    that, products are exact.
    """
    return precision if max(64, width) in _THREEFOLD[kind] else "ieee"


def tile_of(width: int, itemsize: int, precision: str, kind: Kind) -> Tile:
    """The tile of a kernel that keeps the first axis and walks over the second: large, but spilling no register.

    Found by compiling for sm_80 and sm_90, not by timing. The kept side is the long one, since what is walked over is
    loaded again by every program. Exact products of float32 are not for tensor cores and take many registers.

    Args:
        width: of a head, padded; of relevance the wider one of key and value.
        precision: of float32 products, as ``products`` gave it.
    """
    if interpreted():
        return Tile(128, 128)  # a tile takes the same time whatever its size
    sizes = _HALF if itemsize == 2 else _THREEFOLD if precision == "tf32x3" else _EXACT
    return Tile(*sizes[kind][max(64, width)])


def is_biased(scoring: Scoring) -> bool:
    """Whether scores are more than scaled products."""
    return scoring.bias is not None or scoring.softcap is not None


def statistics_kind(scoring: Scoring, *, detailed: bool, factors: int, looks_up: bool) -> Kind:
    """How much a walk for statistics has to keep in registers.

    Args:
        detailed, factors: what is summed of each row, and how many rows are multiplied.
        looks_up: whether keys have coordinates on a grid, or some do not count.
    """
    biased = is_biased(scoring)
    if looks_up or factors > 1 or scoring.rule.has_pair_parts or (detailed and biased):
        return "crowded"
    return "details" if detailed or biased else "statistics"


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
        is_biased: as the function says.
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
    is_biased: bool
    weights: int

    @staticmethod
    def of(
        query: Tensor,
        key: Tensor,
        lse: Tensor,
        scoring: Scoring,
        precision: Precision,
        function: str,
        kind: Kind = "walk",
    ) -> MapCall:
        """The call of ``function`` with its arguments checked.

        Args:
            kind: of its kernel; of those for statistics any.
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
        width, is_single = query.shape[3], query.dtype == torch.float32
        precision = products(precision, padded_width(width), kind)
        return MapCall(
            query=strided(query),
            key=strided(key),
            lse=lse.to(torch.float32).contiguous(),
            scoring=kernel_scoring(scoring, query, key),
            widths={"WIDTH": width, "PADDED": padded_width(width)},
            precision=input_precision(precision, query),
            # Weights are float32 also where q and k are not; three products of TF32 keep them to 10⁻⁶.
            mixing=precision if is_single else "tf32x3",
            itemsize=query.dtype.itemsize,
            is_biased=is_biased(scoring),
            weights=lse.numel() * key.shape[2],
        )

    def tile(self, kind: Kind = "walk") -> Tile:
        """Of a kernel that keeps queries and walks over keys."""
        return tile_of(self.widths["PADDED"], self.itemsize, self.precision, kind)

    def pairs(self) -> Tile:
        """Of a kernel that pairs each query with one key."""
        return Tile(128 if interpreted() else 4096 // self.widths["PADDED"], 1, 4)

    def tile_with(self, slopes: Slopes) -> Tile:
        """Of a kernel of relevance; keys are the long side, which comes first in its products."""
        width = max(self.widths["PADDED"], slopes.widths["VALUE_PADDED"])
        itemsize, precision = max(self.itemsize, slopes.itemsize), slopes.widths["VALUE_PRECISION"]
        kind: Kind = "biased relevance" if self.is_biased else "relevance"
        return tile_of(width, itemsize, precision, kind).turned

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
        precision = products(precision, max(padded_width(width), self.widths["PADDED"]), "relevance")
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


def parts_of(query: Tensor, programs: int, most: int) -> int:
    """Into how many parts queries are split, so that the device is busy: the fewest that do, of 1 to ``most``.

    Args:
        programs: that there are of each part.
    """
    if query.device.type != "cuda":
        return 1
    places = 2 * torch.cuda.get_device_properties(query.device).multi_processor_count
    return fewest_parts(programs, places, max(1, most))


def fewest_parts(programs: int, places: int, most: int) -> int:
    """The fewest parts, up to ``most``, that leave a tenth of the device idle or less; else those that leave least.

    Programs go to ``places`` in rounds, and the last round may be all but empty.
    """

    def busy(parts: int) -> float:
        return parts * programs / (blocks(parts * programs, places) * places)

    choices = range(1, most + 1)
    return next((parts for parts in choices if busy(parts) >= 0.9), max(choices, key=busy))


def expanded(factors: Tensor, shape: tuple[int, int, int, int], name: str) -> Strided:
    """Factors that broadcast to ``shape``, in float32, by their strides."""
    check_ndim(factors, 4, name)
    if any(own not in (1, wanted) for own, wanted in zip(factors.shape[:2], shape[:2], strict=True)) or (
        tuple(factors.shape[2:]) != shape[2:]
    ):
        raise ValueError(f"{name} must broadcast to {shape} but has {tuple(factors.shape)}.")
    return strided(factors.to(torch.float32).expand(shape))
