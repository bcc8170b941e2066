"""Everything but the vectors that makes the scores of a layer, as one record that kernels and maps share."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from attn_core.bias import Bias, TableBias, bias_block
from attn_core.functional import attention_scores
from attn_core.masks import MaskRule


@dataclass(frozen=True, eq=False)
class Scoring:
    """How scores are made of query and key.

    Attributes:
        scale: factor of query · key, resolved.
        rule: which pairs may attend.
        bias: added after scaling and soft cap.
        softcap: bends scores to ±softcap.
        sinks: (H,) extra score per head without a value.
    """

    scale: float
    rule: MaskRule = field(default_factory=MaskRule)
    bias: Bias | None = None
    softcap: float | None = None
    sinks: Tensor | None = None

    def of_head(self, head: int) -> Scoring:
        """Those of one head."""
        bias = self.bias
        if isinstance(bias, TableBias):
            bias = bias.of_head(head)
        elif bias is not None and bias.ndim > 2 and bias.shape[-3] > 1:
            bias = bias[..., head : head + 1, :, :]
        return replace(self, bias=bias, sinks=None if self.sinks is None else self.sinks[head : head + 1])

    def tile(self, query: Tensor, key: Tensor, rows: slice, columns: slice) -> Tensor:
        """(B, H, r, c) scores of a tile before the mask, in query's dtype.

        Args:
            query, key: (B, H, Q, D) and (B, G, K, D) of the whole map.
        """
        return attention_scores(
            query[:, :, rows],
            key[:, :, columns],
            scale=self.scale,
            softcap=self.softcap,
            bias=bias_block(self.bias, rows, columns),
        )

    def allowed(self, rows: slice, columns: slice, query: Tensor, key: Tensor) -> Tensor | None:
        """Permission of the pairs of a tile, as in ``MaskRule.allowed``; size and device are those of the vectors."""
        row, column = (torch.arange(part.start, part.stop, device=query.device) for part in (rows, columns))
        return self.rule.allowed(row, column, queries=query.shape[2], keys=key.shape[2])
