"""A map that is kept as what it was made from: query, key, and the log-sum-exp of each row.

P[i, j] = exp(score(q_i, k_j) − lse_i), so any part is recomputed exactly, and every question is answered tile by tile
(``attn_core.flash.streaming``) with O(n · d) numbers and no n × n array.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from attn_core.bias import Bias, bias_block, select_bias
from attn_core.checks import check_index
from attn_core.flash import streaming
from attn_core.flash.scoring import Scoring
from attn_core.functional import attention_scores
from attn_core.maps import AttentionMap, HeadStatistics, bin_bounds, check_positive, kept_positions
from attn_core.masks import MaskRule


@dataclass(frozen=True)
class FactoredMap(AttentionMap):
    """A map kept as query, key and log-sum-exp; any part is recomputed exactly.

    Attributes:
        query: (B, H, Q, D) as it entered the product (after rotary embedding).
        key: (B, G, K, D).
        lse: (B, H, Q) of the scaled, capped, biased and masked scores.
        scale, softcap, bias, rule: what made the scores.
        sinks: (H,) extra score per head, whose weight the rows lack.
        row_valid: (B, Q) bool, False for padding among the queries; None = as the keys, when Q = K.
    """

    query: Tensor
    key: Tensor
    lse: Tensor
    scale: float
    rule: MaskRule = field(default_factory=MaskRule)
    bias: Bias | None = None
    softcap: float | None = None
    row_valid: Tensor | None = None
    sinks: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        batch, heads, queries, _ = self.query.shape
        return batch, heads, queries, self.key.shape[2]

    @property
    def kv_heads(self) -> int:
        return self.key.shape[1]

    def item(self, index: int, *, rows: Tensor | None = None, columns: Tensor | None = None) -> FactoredMap:
        index = check_index(index, self.batch, "AttentionMap.item: index")
        key_valid = self.rule.key_valid
        row_valid = key_valid if self.row_valid is None and self.queries == self.keys else self.row_valid
        rows = kept_positions(row_valid, index, self.queries) if rows is None else rows
        columns = kept_positions(key_valid, index, self.keys) if columns is None else columns
        rows, columns = rows.to(self.query.device), columns.to(self.query.device)
        return FactoredMap(
            query=self.query[index : index + 1][:, :, rows],
            key=self.key[index : index + 1][:, :, columns],
            lse=self.lse[index : index + 1][:, :, rows],
            scale=self.scale,
            rule=self.rule.select(index, rows, columns, queries=self.queries, keys=self.keys),
            bias=select_bias(self.bias, index, rows, columns),
            softcap=self.softcap,
            sinks=self.sinks,
        )

    def pooled(self, head: int | None, bins: int, *, how: Literal["max", "mean"] = "max") -> Tensor:
        """As in ``AttentionMap``; of the largest weights, O(bins²) memory."""
        self._check_single("pooled")
        check_positive(bins, "pooled: bins")
        row_bins = list(bin_bounds(self.queries, min(bins, self.queries)))
        found = streaming.pooled(self.factors(head), row_bins, min(bins, self.keys), how=how)
        return found if head is None else found[0]

    def top_links(self, head: int | None, k: int) -> tuple[Tensor, Tensor]:
        """As in ``AttentionMap``; of equal weights the first key comes first."""
        self._check_single("top_links")
        check_positive(k, "top_links: k")
        values, keys = streaming.top_links(self.factors(head), min(k, self.keys))
        return (values, keys) if head is None else (values[0], keys[0])

    def apply(self, values: Tensor) -> Tensor:
        """As in ``AttentionMap``."""
        self._check_single("apply")
        values = self._checked(values, self.keys, "apply: values")
        return streaming.applied(self.factors(), values.to(self.lse))

    def apply_left(self, rows: Tensor) -> Tensor:
        """As in ``AttentionMap``."""
        self._check_single("apply_left")
        left = self._checked(rows.transpose(-1, -2), self.queries, "apply_left: rows").transpose(-1, -2)
        return streaming.applied_left(self.factors(), left.to(self.lse).contiguous())

    def row_totals(self) -> Tensor:
        """As in ``AttentionMap``, in O(Q): the log-sum-exp tells what a sink took."""
        self._check_single("row_totals")
        lse = self.lse[0]
        some = ~torch.isneginf(lse)
        if self.sinks is None:
            return some.to(lse.dtype)
        return some * -torch.expm1(self.sinks.to(lse)[:, None] - lse)

    def statistics(self, carry: Tensor | None = None) -> HeadStatistics:
        """As in ``AttentionMap``, a tile at a time."""
        self._check_single("statistics")
        lse = self.lse[0]
        left = None
        if carry is not None:
            rows = self._checked(carry.transpose(-1, -2), self.queries, "statistics: carry").transpose(-1, -2)
            left = rows.to(lse)
        of_rows, received = streaming.statistics(self.factors(), left)
        used = (~torch.isneginf(lse)).sum(-1).clamp(min=1)
        means = {name: (values.sum(-1) / used).to("cpu", torch.float32) for name, values in of_rows.items()}
        return HeadStatistics(
            **means,
            first_mass=(received[:, 0, :1].sum(-1) / used).to("cpu", torch.float32),
            received=received[:, 0].to("cpu", torch.float32),
            carried=None if carry is None else received[:, 1:],
        )

    def relevance_step(
        self, left: Tensor, gradient: Tensor, value: Tensor, *, each_head: bool = True
    ) -> Tensor:
        """(K,): left @ mean over heads of weights ∘ their gradient, negative parts cut, and no n × n array.

        Chefer et al. 2021 (Generic attention-model explainability, eq. 5 and 6). The gradient of a weight is that of
        the context times the value, so both are made a tile at a time.

        Args:
            left: (Q,) relevance of the queries.
            gradient: (H, Q, E) of the target with respect to the context; ``value``: (G, K, E).
            each_head: cut the negative part of each head, else that of their mean.
        """
        self._check_single("relevance_step")
        return streaming.relevance_step(
            self.factors(), left.to(self.lse), gradient, value, each_head=each_head
        )

    def factors(self, head: int | None = None) -> streaming.Factors:
        """The one item's map as ``attn_core.flash.streaming`` walks through it, of one head or of all.

        Raises:
            ValueError: if the map holds several items.
        """
        self._check_single("factors")
        scoring = Scoring(self.scale, self.rule, self.bias, self.softcap)
        factors = streaming.Factors.of(self.query, self.key, self.lse, scoring)
        if head is None:
            return factors
        return factors.of_head(check_index(head, self.heads, "AttentionMap: head"))

    def _weights(self, rows: slice, columns: slice, head: int | None) -> Tensor:
        query, key, lse = self.query, self.key, self.lse
        if head is not None:
            group = head // (self.heads // self.kv_heads)
            query, lse = query[:, head : head + 1], lse[:, head : head + 1]
            key = key[:, group : group + 1]
        lse = lse[:, :, rows]
        scores = attention_scores(
            query[:, :, rows].to(lse.dtype),
            key[:, :, columns].to(lse.dtype),
            scale=self.scale,
            softcap=self.softcap,
            bias=bias_block(self.bias, rows, columns, head=head),
        )
        lse = torch.where(torch.isneginf(lse), torch.zeros_like(lse), lse)
        weights = scores.sub_(lse[..., None]).exp_()  # scores are new, and nothing here has a graph
        positions = (torch.arange(s.start, s.stop, device=query.device) for s in (rows, columns))
        allowed = self.rule.allowed(*positions, queries=self.queries, keys=self.keys)
        return weights if allowed is None else weights.masked_fill(~allowed, 0.0)
