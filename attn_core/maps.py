"""Attention maps of one layer: what a view asks of them, and the plain kind that keeps its weights.

``FactoredMap`` (``attn_core.factored``) keeps query, key and the log-sum-exp of each row instead. All kinds answer
the same questions with the same numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Literal

import torch
from torch import Tensor

from attn_core.budget import check_fits
from attn_core.checks import check_index, check_ndim
from attn_core.strips import strip_rows
from attn_core.watching import worked

Piece = tuple[Tensor, Tensor, Tensor]
"""(r,) queries, (c,) keys, and the (B, H, r, c) weights between them."""


@dataclass(frozen=True)
class HeadStatistics:
    """What each head does, averaged over its queries (rows with nothing allowed do not count).

    Attributes:
        entropy: (H,) nats, 0 when all weight lies on one key.
        max_weight: (H,) mean of each row's largest weight.
        self_mass, previous_mass, next_mass, first_mass: (H,) mean weight on the own, previous, next, first position.
        mean_distance: (H,) mean |query − key| weighted by attention, in positions.
        received: (H, K) attention that each key receives, summed over queries.
        carried: (H, R, K) rows that were given times the weights; None where none were.
    """

    entropy: Tensor
    max_weight: Tensor
    self_mass: Tensor
    previous_mass: Tensor
    next_mass: Tensor
    first_mass: Tensor
    mean_distance: Tensor
    received: Tensor
    carried: Tensor | None = None


class AttentionMap(ABC):
    """Weights of one attention layer, rows are queries.

    A map may hold a batch; every question is asked of one item, so a map with ``batch`` above one answers only
    ``item``. ``head=None`` asks for all heads and puts them first.
    """

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int, int]:
        """(B, H, Q, K)."""

    @property
    @abstractmethod
    def kv_heads(self) -> int:
        """G: key–value heads; H when every query head has its own."""

    @abstractmethod
    def item(self, index: int, *, rows: Tensor | None = None, columns: Tensor | None = None) -> AttentionMap:
        """The map of one batch item, padding cut out.

        Args:
            rows, columns: positions to keep; None keeps those that the layer's own padding mask keeps.
        Raises:
            IndexError: if there is no such item.
        """

    @abstractmethod
    def _weights(self, rows: slice, columns: slice, head: int | None) -> Tensor:
        """(B, H or 1, r, c) weights of a block."""

    @property
    def batch(self) -> int:
        """B."""
        return self.shape[0]

    @property
    def heads(self) -> int:
        """H."""
        return self.shape[1]

    @property
    def queries(self) -> int:
        """Q."""
        return self.shape[2]

    @property
    def keys(self) -> int:
        """K."""
        return self.shape[3]

    def row(self, head: int | None, query: int) -> Tensor:
        """Where one query looks: (K,), or (H, K) for all heads. Costs O(K · D)."""
        query = check_index(query, self.queries, "AttentionMap.row: query")
        return self.block(head, slice(query, query + 1), slice(0, self.keys))[..., 0, :]

    def block(self, head: int | None, rows: slice, columns: slice) -> Tensor:
        """A rectangle of the map: (r, c), or (H, r, c) for all heads."""
        self._check_single("block")
        head = None if head is None else check_index(head, self.heads, "AttentionMap.block: head")
        rows, columns = _bounded(rows, self.queries), _bounded(columns, self.keys)
        weights = self._weights(rows, columns, head)[0]
        return weights if head is None else weights[0]

    def dense(self, head: int | None = None, *, budget: int | None = None) -> Tensor:
        """The whole map: (Q, K), or (H, Q, K) for all heads.

        Raises:
            MemoryBudgetError: if it would take more than ``budget`` bytes; None takes that of ``attn_core.budget``.
        """
        self._check_single("dense")
        heads = self.heads if head is None else 1
        self._check_budget(heads, budget)
        return self.block(head, slice(0, self.queries), slice(0, self.keys))

    def weights(self, *, budget: int | None = None) -> Tensor:
        """All weights of the whole batch, padding included: (B, H, Q, K).

        Raises:
            MemoryBudgetError: if they would take more than ``budget`` bytes, as in ``dense``.
        """
        self._check_budget(self.batch * self.heads, budget)
        return self._weights(slice(0, self.queries), slice(0, self.keys), None)

    def pooled(self, head: int | None, bins: int, *, how: Literal["max", "mean"] = "max") -> Tensor:
        """The map reduced to at most ``bins`` × ``bins`` cells, each the largest or mean weight of its rectangle.

        O(strip · K) memory whatever the length.

        Returns:
            (min(bins, Q), min(bins, K)), or with all heads first.
        """
        self._check_single("pooled")
        check_positive(bins, "pooled: bins")
        pool = torch.nn.functional.adaptive_max_pool2d if how == "max" else _mean_pool
        columns = min(bins, self.keys)
        parts = []
        for strip in _aligned_strips(self.queries, min(bins, self.queries), self.heads, self.keys):
            weights = self.block(head, slice(strip.start, strip.stop), slice(0, self.keys))
            weights = weights.reshape(-1, *weights.shape[-2:])  # (H or 1, r, K)
            parts += [pool(weights[:, low:high], (1, columns)) for low, high in strip.bins]
        pooled = torch.cat(parts, dim=1)
        return pooled if head is None else pooled[0]

    def top_links(self, head: int | None, k: int) -> tuple[Tensor, Tensor]:
        """The ``k`` strongest keys of each query: weights and key positions, each (Q, k) or (H, Q, k)."""
        self._check_single("top_links")
        check_positive(k, "top_links: k")
        found = [
            torch.topk(self.block(head, strip, slice(0, self.keys)), min(k, self.keys), dim=-1)
            for strip in self._strips()
        ]
        return torch.cat([f.values for f in found], dim=-2), torch.cat([f.indices for f in found], dim=-2)

    def apply(self, values: Tensor) -> Tensor:
        """What each query reads of some values: weights @ values, (H, Q, F), in the dtype of the weights.

        Args:
            values: (K, F), or (H, K, F) of each head.
        """
        self._check_single("apply")
        values = self._checked(values, self.keys, "apply: values")
        values = values.to(self._example())
        result = values.new_zeros(self.heads, self.queries, values.shape[-1])
        for rows, columns, piece in self.pieces():
            rows, columns = rows.to(values.device), columns.to(values.device)
            result[:, rows] += piece[0] @ values[:, columns]
        return result

    def apply_left(self, rows: Tensor) -> Tensor:
        """What shares of the queries become among the keys: rows @ weights, (H, R, K), in the dtype of the weights.

        Args:
            rows: (R, Q), or (H, R, Q) of each head; ones give the attention that each key receives.
        """
        self._check_single("apply_left")
        left = self._checked(rows.transpose(-1, -2), self.queries, "apply_left: rows").transpose(-1, -2)
        left = left.to(self._example())
        result = left.new_zeros(self.heads, left.shape[1], self.keys)
        for queries, columns, piece in self.pieces():
            queries, columns = queries.to(left.device), columns.to(left.device)
            result[:, :, columns] += left[:, :, queries] @ piece[0]
        return result

    def row_totals(self) -> Tensor:
        """(H, Q) sum of each row: one, or less where a sink or padding took weight; 0 where nothing is allowed."""
        return self.apply(torch.ones(self.keys, 1))[..., 0]

    def statistics(self, carry: Tensor | None = None) -> HeadStatistics:
        """What each head does, in one pass over the map.

        Args:
            carry: (R, Q) or (H, R, Q), rows that ``apply_left`` would be asked about, in the same pass.
        """
        self._check_single("statistics")
        names = [entry.name for entry in fields(HeadStatistics) if entry.name not in ("received", "carried")]
        sums = {name: torch.zeros(self.heads) for name in names}
        received = torch.zeros(self.heads, self.keys)
        used = torch.zeros(self.heads)
        shift = self.keys - self.queries
        for rows, columns, piece in self.pieces():
            weights = piece[0].to("cpu", torch.float32)  # (H, r, c)
            offset = columns[None, :] - (rows[:, None] + shift)  # (r, c)
            parts = {
                "entropy": torch.special.entr(weights).sum(-1).sum(-1),
                "max_weight": weights.amax(-1).sum(-1),
                "self_mass": (weights * (offset == 0)).sum((-1, -2)),
                "previous_mass": (weights * (offset == -1)).sum((-1, -2)),
                "next_mass": (weights * (offset == 1)).sum((-1, -2)),
                "first_mass": weights[..., columns == 0].sum((-1, -2)),
                "mean_distance": (weights * offset.abs()).sum((-1, -2)),
            }
            sums = {name: sums[name] + part for name, part in parts.items()}
            received[:, columns] += weights.sum(-2)
            used += (weights.sum(-1) > 0).sum(-1)
        return HeadStatistics(
            **{name: total / used.clamp(min=1) for name, total in sums.items()},
            received=received,
            carried=None if carry is None else self.apply_left(carry),
        )

    def pieces(self) -> Iterator[Piece]:
        """The map of the whole batch in pieces, every query in one of them with all the keys that it may see."""
        columns = torch.arange(self.keys)
        for strip in self._strips():
            rows = torch.arange(strip.start, strip.stop)
            yield rows, columns, self._weights(strip, slice(0, self.keys), None)
            worked(self.batch * self.heads * len(rows) * self.keys)

    def _example(self) -> Tensor:
        """A tensor of the weights' type, where they are."""
        return self._weights(slice(0, min(1, self.queries)), slice(0, min(1, self.keys)), None)

    def _strips(self) -> Iterator[slice]:
        step = strip_rows(self.batch * self.heads, self.keys)
        for start in range(0, self.queries, step):
            yield slice(start, min(start + step, self.queries))

    def _checked(self, values: Tensor, length: int, name: str) -> Tensor:
        """(H or 1, length, F) values that the weights are applied to."""
        shape = tuple(values.shape)
        if (
            values.ndim not in (2, 3)
            or values.shape[-2] != length
            or (values.ndim == 3 and shape[0] != self.heads)
        ):
            raise ValueError(
                f"AttentionMap.{name} must be {length} long in {self.heads} heads or for all but is {shape}; pass "
                "one number for each position of the map."
            )
        return values if values.ndim == 3 else values[None]

    def _check_single(self, method: str) -> None:
        if self.batch != 1:
            raise ValueError(
                f"AttentionMap.{method}: the map must hold one item but holds {self.batch}; call item(index) first."
            )

    def _check_budget(self, maps: int, budget: int | None) -> None:
        check_fits(
            maps * self.queries * self.keys * 4,
            f"AttentionMap: {maps} maps of {self.queries} × {self.keys} weights",
            "ask for row(), block() or pooled() instead",
            budget=budget,
        )


@dataclass(frozen=True)
class DenseMap(AttentionMap):
    """A map whose weights are kept.

    Attributes:
        stored: (B, H, Q, K) weights.
        row_valid: (B, Q) bool, False for padding among the queries; None = all real.
        key_valid: (B, K) bool, the same for the keys.
        groups: key–value heads, None when every head has its own.
    """

    stored: Tensor
    row_valid: Tensor | None = None
    key_valid: Tensor | None = None
    groups: int | None = None

    def __post_init__(self) -> None:
        check_ndim(self.stored, 4, "DenseMap: stored")

    @property
    def shape(self) -> tuple[int, int, int, int]:
        batch, heads, queries, keys = self.stored.shape
        return batch, heads, queries, keys

    @property
    def kv_heads(self) -> int:
        return self.groups or self.heads

    def item(self, index: int, *, rows: Tensor | None = None, columns: Tensor | None = None) -> DenseMap:
        index = check_index(index, self.batch, "AttentionMap.item: index")
        rows = kept_positions(self.row_valid, index, self.queries) if rows is None else rows
        columns = kept_positions(self.key_valid, index, self.keys) if columns is None else columns
        cut = self.stored[index : index + 1][:, :, rows][:, :, :, columns]
        return replace(self, stored=cut, row_valid=None, key_valid=None)

    def _weights(self, rows: slice, columns: slice, head: int | None) -> Tensor:
        heads = slice(None) if head is None else slice(head, head + 1)
        return self.stored[:, heads, rows, columns]


@dataclass(frozen=True)
class _BinStrip:
    """Some whole bins of rows: ``bins`` are (first, last + 1) inside the strip."""

    start: int
    stop: int
    bins: tuple[tuple[int, int], ...]


def _aligned_strips(rows: int, bins: int, heads: int, keys: int) -> Iterator[_BinStrip]:
    """Strips of rows that hold whole bins (adaptive pooling's bounds), so that pooling needs no second pass."""
    limit = strip_rows(heads, keys)
    group: list[tuple[int, int]] = []
    for low, high in bin_bounds(rows, bins):
        if group and high - group[0][0] > limit:
            yield _strip_of(group)
            group = []
        group.append((low, high))
    if group:
        yield _strip_of(group)


def bin_bounds(length: int, bins: int) -> Iterator[tuple[int, int]]:
    """First and one after the last of each bin, as adaptive pooling cuts them: neighbours may share one."""
    return ((i * length // bins, -(-(i + 1) * length // bins)) for i in range(bins))


def check_positive(number: int, name: str) -> None:
    if number < 1:
        raise ValueError(f"AttentionMap.{name} must be at least 1 but is {number}.")


def _strip_of(bounds: list[tuple[int, int]]) -> _BinStrip:
    start = bounds[0][0]
    return _BinStrip(start, bounds[-1][1], tuple((low - start, high - start) for low, high in bounds))


_mean_pool: Callable[[Tensor, tuple[int, int]], Tensor] = torch.nn.functional.adaptive_avg_pool2d


def _bounded(part: slice, size: int) -> slice:
    start, stop, step = part.indices(size)
    if step != 1:
        raise ValueError(f"AttentionMap.block: slices must have step 1 but one has {step}.")
    return slice(start, max(start, stop))


def kept_positions(valid: Tensor | None, index: int, size: int) -> Tensor:
    return torch.arange(size) if valid is None else valid[index % valid.shape[0]].nonzero()[:, 0]
