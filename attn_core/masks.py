"""Which pairs may attend, as a rule that is evaluated on any block and never stored as an n × n array."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from attn_core.checks import check_ndim

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
        prefix: (B or 1,) integers: keys before it are no future for a causal rule (Raffel et al. 2020, section
            3.2.1).
        documents: (B or 1, K) integers, the document of each position: only pairs of one document are allowed. The
            queries are the last Q positions.
    """

    causal: bool = False
    window: int | None = None
    key_valid: Tensor | None = None
    predicate: Predicate | None = None
    predicate_batch: int = 1
    prefix: Tensor | None = None
    documents: Tensor | None = None

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
        if self.prefix is not None:
            check_ndim(self.prefix, 1, "MaskRule: prefix")
        if self.documents is not None:
            check_ndim(self.documents, 2, "MaskRule: documents")

    @property
    def has_pair_parts(self) -> bool:
        """Whether it asks of pairs more than causal order, window and padding."""
        return self.predicate is not None or self.prefix is not None or self.documents is not None

    @property
    def is_padding_alone(self) -> bool:
        """Whether every query may see the same keys."""
        return not self.causal and self.window is None and self.predicate is None and self.documents is None

    @property
    def is_trivial(self) -> bool:
        """Whether every pair is allowed."""
        return self.is_padding_alone and self.key_valid is None

    @property
    def is_plain_causal(self) -> bool:
        """Whether the causal part is all there is, which fused kernels know without a mask."""
        return self.causal and self.window is None and self.key_valid is None and not self.has_pair_parts

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
            prefix = None if self.prefix is None else self.prefix.to(column.device)[:, None, None]
            diagonal = row + (keys - queries)
            band = banded(diagonal, column, causal=self.causal, window=self.window, prefix=prefix)
            parts.append(band[None, None] if band.ndim == 2 else band[:, None])
        if self.documents is not None:
            parts.append(self._same_document(rows, columns, keys - queries))
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

    def _same_document(self, rows: Tensor, columns: Tensor, shift: int) -> Tensor:
        """(B or 1, 1, R, C)."""
        assert self.documents is not None
        _check_documents(shift)
        documents = self.documents.to(columns.device)
        same: Tensor = documents[:, rows + shift, None] == documents[:, None, columns]
        return same[:, None]

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
        if not self.has_pair_parts and (local.is_trivial or _same_diagonal(rows, columns, queries, keys)):
            return replace(local, key_valid=key_valid)
        if self.predicate is None and _all_kept(rows, queries) and _all_kept(columns, keys):
            prefix, documents = (
                numbers if numbers is None or len(numbers) == 1 else numbers[item : item + 1]
                for numbers in (self.prefix, self.documents)
            )
            return replace(local, key_valid=key_valid, prefix=prefix, documents=documents)
        plain = MaskRule(self.causal, self.window, prefix=self.prefix, documents=self.documents)

        def original(items: Tensor, heads: Tensor, row: Tensor, column: Tensor) -> Tensor:
            row, column = rows[row], columns[column]  # back to the positions before the cut
            of_item = torch.full_like(items, item)
            result = plain.pairs(of_item, row, column, shift=keys - queries)
            if self.predicate is not None:
                result = result & self.predicate(of_item, heads, row, column)
            return result

        return MaskRule(key_valid=key_valid, predicate=original)

    def pairs(self, items: Tensor, row: Tensor, column: Tensor, *, shift: int) -> Tensor:
        """Permission of single pairs by all parts but padding and the predicate, elementwise.

        Args:
            items, row, column: batch, query and key indices that broadcast.
            shift: K − Q of the whole map.
        """

        def own(numbers: Tensor) -> Tensor:
            return items * 0 if len(numbers) == 1 else items

        prefix = None if self.prefix is None else self.prefix.to(column.device)[own(self.prefix)]
        result = banded(row + shift, column, causal=self.causal, window=self.window, prefix=prefix)
        if self.documents is None:
            return result
        _check_documents(shift)
        documents, item = self.documents.to(column.device), own(self.documents)
        return result & (documents[item, row + shift] == documents[item, column])


def _check_documents(shift: int) -> None:
    """Raise where some queries lie before the first key: nobody knows their document."""
    if shift < 0:
        raise ValueError(
            f"document_rule: queries must be no more than keys but are {-shift} more; pass the documents of all "
            "positions."
        )


def banded(
    diagonal: Tensor, column: Tensor, *, causal: bool, window: int | None, prefix: Tensor | None = None
) -> Tensor:
    """Causal and window parts for keys ``column`` and queries that sit at key position ``diagonal``.

    Args:
        prefix: keys before it are no future; broadcasts to the pairs.
    """
    result = column <= diagonal if causal else torch.ones_like(column <= diagonal)
    if causal and prefix is not None:
        result = result | (column < prefix)
    if window is None:
        return result
    result = result & (column > diagonal - window)
    return result if causal else result & (column < diagonal + window)


def _all_kept(positions: Tensor, size: int) -> bool:
    return len(positions) == size and bool((positions.diff() == 1).all())


def _same_diagonal(rows: Tensor, columns: Tensor, queries: int, keys: int) -> bool:
    """Whether a cut keeps consecutive positions and the place of the causal diagonal."""
    if not len(rows) or not len(columns):
        return True
    consecutive = bool((rows.diff() == 1).all()) and bool((columns.diff() == 1).all())
    moved = int(rows[0]) - int(columns[0]) + keys - queries
    return consecutive and moved == len(columns) - len(rows)
