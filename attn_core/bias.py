"""Bias by relative position, kept as the table it is read from and not as the (Q, K) array that it fills.

T5 (Raffel et al. 2020, section 2.1) adds a number that depends on key − query alone: ``RelativeBias``. BEiT and Swin
(Liu et al. 2021, section 3.2) look the number of each pair up in a table by an index that the model holds anyway:
``IndexedBias``. Wherever a bias is taken, a plain tensor that broadcasts to (B, H, Q, K) may stand instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from attn_core.checks import check_ndim


@dataclass(frozen=True, eq=False)
class TableBias(ABC):
    """A bias whose numbers are read from a table.

    Attributes:
        table: the numbers; how they are laid out is the subclass's.
        rows, columns: (Q,) and (K,) positions of the queries and keys, as the table counts them.
    """

    table: Tensor
    rows: Tensor
    columns: Tensor

    @abstractmethod
    def _read(self, row: Tensor, column: Tensor) -> Tensor:
        """(B or 1, H or 1, r, c) numbers between positions."""

    @abstractmethod
    def of_head(self, head: int) -> Self:
        """The bias of one head, with an axis of size 1 for it."""

    @abstractmethod
    def of_item(self, index: int) -> Self:
        """The bias of one batch item, with an axis of size 1 for it."""

    def block(self, rows: slice, columns: slice) -> Tensor:
        """(B or 1, H or 1, r, c) numbers of a block."""
        return self._read(self.rows[rows], self.columns[columns])

    def dense(self) -> Tensor:
        """(B or 1, H or 1, Q, K) all numbers."""
        return self._read(self.rows, self.columns)

    def select(self, rows: Tensor, columns: Tensor) -> Self:
        """The bias with only these queries and keys kept; the table is shared."""
        here = self.rows.device  # BEiT's index stays on the CPU, wherever its table and the map are
        return replace(self, rows=self.rows[rows.to(here)], columns=self.columns[columns.to(here)])

    def detach(self) -> Self:
        """The same without a gradient."""
        return replace(self, table=self.table.detach())


@dataclass(frozen=True, eq=False)
class RelativeBias(TableBias):
    """A bias that depends on key − query alone.

    Attributes:
        table: (B or 1, H or 1, R) its number for each distance.
        first: key − query of ``table[..., 0]``.
    """

    first: int = 0

    def __post_init__(self) -> None:
        check_ndim(self.table, 3, "RelativeBias: table")

    @staticmethod
    def of(table: Tensor, *, queries: int, keys: int) -> RelativeBias:
        """The bias of a whole map, table (B or 1, H or 1, Q + K − 1) from key − query = 1 − Q to K − 1.

        Raises:
            ValueError: if the table has another length.
        """
        if table.shape[-1] != queries + keys - 1:
            raise ValueError(
                f"RelativeBias: table must hold {queries + keys - 1} distances for {queries} queries and {keys} keys "
                f"but holds {table.shape[-1]}; pass one number for each key − query."
            )
        rows, columns = (torch.arange(n, device=table.device) for n in (queries, keys))
        return RelativeBias(table, rows, columns, first=1 - queries)

    @staticmethod
    def recognised(bias: Tensor) -> RelativeBias | None:
        """The table of a (B, H, Q, K) bias if each of its diagonals holds one number, exactly; else None."""
        if (
            bias.ndim != 4
            or min(bias.shape[2:]) < 2
            or not torch.equal(bias[..., 1:, 1:], bias[..., :-1, :-1])
        ):
            return None
        below, above = bias[..., 1:, 0].flip(-1), bias[..., 0, :]
        return RelativeBias.of(torch.cat([below, above], -1), queries=bias.shape[2], keys=bias.shape[3])

    def _read(self, row: Tensor, column: Tensor) -> Tensor:
        if not (_in_steps_of_one(row) and _in_steps_of_one(column)):
            return self.table[..., column[None, :] - row[:, None] - self.first]
        # Each row is the stretch of the table that starts one number before that of the row above it.
        start = int(column[0]) - int(row[-1]) - self.first
        stretch = self.table[..., start : start + len(row) + len(column) - 1]
        return stretch.unfold(-1, len(column), 1).flip(-2)

    def of_head(self, head: int) -> RelativeBias:
        return self if self.table.shape[1] == 1 else replace(self, table=self.table[:, head : head + 1])

    def of_item(self, index: int) -> RelativeBias:
        return self if self.table.shape[0] == 1 else replace(self, table=self.table[index : index + 1])


@dataclass(frozen=True, eq=False)
class IndexedBias(TableBias):
    """A bias that an index of pairs looks up in a table.

    Attributes:
        table: (T, H) the numbers of each kind of pair.
        index: (Q, K) integers, the kind of each pair; shared by layers and with the model, never copied.
    """

    index: Tensor

    def __post_init__(self) -> None:
        check_ndim(self.table, 2, "IndexedBias: table")
        check_ndim(self.index, 2, "IndexedBias: index")

    @staticmethod
    def of(table: Tensor, index: Tensor) -> IndexedBias:
        """The bias of a whole map."""
        rows, columns = (torch.arange(n, device=index.device) for n in index.shape)
        return IndexedBias(table, rows, columns, index)

    def _read(self, row: Tensor, column: Tensor) -> Tensor:
        kinds = self.index[row[:, None], column[None, :]]  # (r, c)
        return self.table.T[:, kinds][None]

    def of_head(self, head: int) -> IndexedBias:
        return replace(self, table=self.table[:, head : head + 1])

    def of_item(self, index: int) -> IndexedBias:
        return self


def _in_steps_of_one(positions: Tensor) -> bool:
    return len(positions) > 0 and bool((positions.diff() == 1).all())


Bias = Tensor | TableBias
"""What is added to scores: a tensor that broadcasts to (B, H, Q, K), or the table it is read from."""


def dense_bias(bias: Bias | None) -> Tensor | None:
    """A bias as a tensor that broadcasts to (B, H, Q, K)."""
    return bias.dense() if isinstance(bias, TableBias) else bias


def needs_gradient(bias: Bias | None) -> bool:
    """Whether a gradient is to flow into a bias."""
    numbers = bias.table if isinstance(bias, TableBias) else bias
    return numbers is not None and numbers.requires_grad and torch.is_grad_enabled()


def bias_block(bias: Bias | None, rows: slice, columns: slice, *, head: int | None = None) -> Tensor | None:
    """The part of a bias that belongs to a block, of one head where one is given; axes of size one stay."""
    if bias is None:
        return None
    if isinstance(bias, TableBias):
        return (bias if head is None else bias.of_head(head)).block(rows, columns)
    if head is not None and bias.ndim > 2 and bias.shape[-3] > 1:
        bias = bias[..., head : head + 1, :, :]
    row = rows if bias.shape[-2] > 1 else slice(None)
    column = columns if bias.shape[-1] > 1 else slice(None)
    return bias[..., row, column]


def select_bias(bias: Bias | None, index: int, rows: Tensor, columns: Tensor) -> Bias | None:
    """The bias of one batch item with only these queries and keys kept."""
    if bias is None:
        return None
    if isinstance(bias, TableBias):
        return bias.of_item(index).select(rows, columns)
    bias = bias if bias.ndim == 4 else bias.view((1,) * (4 - bias.ndim) + bias.shape)
    bias = bias[index : index + 1] if bias.shape[0] > 1 else bias
    bias = bias[:, :, rows] if bias.shape[2] > 1 else bias
    return bias[:, :, :, columns] if bias.shape[3] > 1 else bias
