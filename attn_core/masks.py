"""Which pairs may attend, as a rule that is evaluated on any block and never stored as an n × n array."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

Predicate = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(batch, head, query, key) index tensors that broadcast -> bool tensor, True = may attend (as in FlexAttention)."""


@dataclass(frozen=True, eq=False)
class MaskRule:
    """Pairs that may attend: the conjunction of all parts that are set.

    Attributes:
        causal: key j is allowed for query i when j ≤ i + (K − Q): the last query sees the last key.
        window: causal: ``window`` keys including its own; else keys nearer than ``window`` on both sides.
        key_valid: (B, K) bool, False for padding.
        predicate: any other rule, elementwise on index tensors.
        predicate_batch: how many batch items ``predicate`` tells apart; 1 when it is the same for all.
    """

    causal: bool = False
    window: int | None = None
    key_valid: Tensor | None = None
    predicate: Predicate | None = None
    predicate_batch: int = 1

    def __post_init__(self) -> None:
        if self.window is not None and self.window < 1:
            raise ValueError(
                f"MaskRule: window must be at least 1 but is {self.window}; pass None for no window."
            )
        if self.key_valid is not None and (self.key_valid.ndim != 2 or self.key_valid.dtype != torch.bool):
            raise ValueError(
                f"MaskRule: key_valid must be a bool tensor (B, K) but is {self.key_valid.dtype} "
                f"{tuple(self.key_valid.shape)}; pass attention_mask.bool()."
            )

    @property
    def is_trivial(self) -> bool:
        """Whether every pair is allowed."""
        return not self.causal and self.window is None and self.key_valid is None and self.predicate is None

    @property
    def is_plain_causal(self) -> bool:
        """Whether the causal part is all there is, which fused kernels know without a mask."""
        return self.causal and self.window is None and self.key_valid is None and self.predicate is None

    def allowed(self, rows: Tensor, columns: Tensor, *, queries: int, keys: int) -> Tensor | None:
        """Permission of each pair of a block.

        Args:
            rows: (R,) query positions.
            columns: (C,) key positions.
            queries, keys: Q and K of the whole map; they place the causal diagonal.
        Returns:
            bool tensor that broadcasts to (B, H, R, C), or None when every pair is allowed.
        """
        row, column = rows[:, None], columns[None, :]
        parts: list[Tensor] = []
        if self.causal or self.window is not None:
            band = banded(row + (keys - queries), column, causal=self.causal, window=self.window)
            parts.append(band[None, None])
        if self.key_valid is not None:
            parts.append(self.key_valid[:, None, None, columns])
        if self.predicate is not None:
            parts.append(self._predicate_block(row, column))
        if not parts:
            return None
        result = parts[0]
        for part in parts[1:]:
            result = result & part
        return result

    def __and__(self, other: MaskRule) -> MaskRule:
        """Pairs that both rules allow."""
        from attn_core.mask_rules import combined_and  # here, since that file is built on this one

        return combined_and(self, other)

    def __or__(self, other: MaskRule) -> MaskRule:
        """Pairs that one of the rules allows."""
        from attn_core.mask_rules import combined_or  # here, since that file is built on this one

        return combined_or(self, other)

    def _predicate_block(self, row: Tensor, column: Tensor) -> Tensor:
        assert self.predicate is not None
        items = torch.arange(self.predicate_batch, device=row.device)[:, None, None, None]
        heads = torch.zeros(1, dtype=torch.long, device=row.device)[None, :, None, None]
        block = self.predicate(items, heads, row[None, None], column[None, None])
        return block.expand(*block.shape[:2], row.shape[0], column.shape[1])

    def select(self, item: int, rows: Tensor, columns: Tensor, *, queries: int, keys: int) -> MaskRule:
        """The rule of one batch item with only the positions ``rows`` and ``columns`` kept.

        Used to cut padding out: positions are renumbered, permissions stay those of the original pairs.
        """
        key_valid = None
        if self.key_valid is not None:
            place = 0 if len(self.key_valid) == 1 else item  # one row serves the whole batch
            key_valid = self.key_valid[place : place + 1, columns]
        if key_valid is not None and bool(key_valid.all()):
            key_valid = None
        local = MaskRule(causal=self.causal, window=self.window)
        if self.predicate is None and (local.is_trivial or _same_diagonal(rows, columns, queries, keys)):
            return replace(local, key_valid=key_valid)
        shift = keys - queries

        def original(items: Tensor, heads: Tensor, row: Tensor, column: Tensor) -> Tensor:
            row, column = rows[row], columns[column]  # back to the positions before the cut
            result = banded(row + shift, column, causal=self.causal, window=self.window)
            if self.predicate is not None:
                result = result & self.predicate(torch.full_like(items, item), heads, row, column)
            return result

        return MaskRule(key_valid=key_valid, predicate=original)


def banded(diagonal: Tensor, column: Tensor, *, causal: bool, window: int | None) -> Tensor:
    """Causal and window parts for keys ``column`` and queries that sit at key position ``diagonal``."""
    result = column <= diagonal if causal else torch.ones_like(column <= diagonal)
    if window is None:
        return result
    result = result & (column > diagonal - window)
    return result if causal else result & (column < diagonal + window)


def _same_diagonal(rows: Tensor, columns: Tensor, queries: int, keys: int) -> bool:
    """Whether a cut keeps consecutive positions and the place of the causal diagonal."""
    if not len(rows) or not len(columns):
        return True
    consecutive = bool((rows.diff() == 1).all()) and bool((columns.diff() == 1).all())
    moved = int(rows[0]) - int(columns[0]) + keys - queries
    return consecutive and moved == len(columns) - len(rows)
