"""Linformer: keys and values projected along their length to R slots, so that attention costs n · R.

Wang et al. 2020, "Linformer: self-attention with linear complexity", section 4, equation 7:
softmax(Q (E K)ᵀ / √d) · F V. Slots mix all positions, so there is no causal Linformer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from attn_core.checks import check_query_key_value
from attn_core.functional import (
    AttentionOutput,
    at_least_float32,
    attention_scores,
    masked_softmax,
    repeat_groups,
    resolve_scale,
)
from attn_core.variants.arguments import check_key_valid

Sharing = Literal["none", "headwise", "key_value"]

_SHARINGS = ("none", "headwise", "key_value")


@dataclass(frozen=True)
class LinformerOutput(AttentionOutput):
    """What Linformer returns; the log-sum-exp is over slots.

    Attributes:
        slot_weights: (B, H, Q, R) softmax over the slots; rows sum to one, or are zero where no slot is reached.
        slots: F, padding set to 0, (1 or B, 1 or H, R, K): what a slot takes of each value.
    """

    slot_weights: Tensor
    slots: Tensor

    def weights(self) -> Tensor:
        """Effective weights on the positions, context = weights · value; made on request, since they are n × n.

        Returns:
            (B, H, Q, K). They may be negative, and rows sum to whatever F makes of them.
        """
        return self.slot_weights @ self.slots


def linformer_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_projection: Tensor,
    value_projection: Tensor,
    *,
    key_valid: Tensor | None = None,
    scale: float | None = None,
) -> LinformerOutput:
    """softmax(scale · Q (E K)ᵀ) · F V.

    Args:
        query: (B, H, Q, D).
        key, value: (B, G, K, D) and (B, G, K, E); G divides H.
        key_projection: E, (R, K) for all heads or (G, R, K).
        value_projection: F, (R, K) for all heads or (G, R, K).
        key_valid: (B, K) bool. Padding is left out of every slot, and a slot that E fills from padding alone takes
            no weight; the paper is silent on padding, and this is exact attention's answer where E is the identity.
        scale: None = 1/√D.
    Returns:
        context (B, H, Q, E) in value's dtype; lse, slot_weights and slots in at least float32.
    Raises:
        TypeError, ValueError: if shapes or dtypes do not belong together.
    """
    check_query_key_value(query, key, value, "linformer_attention")
    _check_projections(key, key_projection, value_projection, key_valid)
    heads = query.shape[1]
    keys = at_least_float32(key)
    values = value.to(keys.dtype)
    e_projection, f_projection = (
        (p if p.ndim == 3 else p[None]).to(keys.dtype)[None] for p in (key_projection, value_projection)
    )  # (1, G or 1, R, K)
    reached = None
    if key_valid is not None:
        padding = ~key_valid[:, None, :, None]
        keys, values = keys.masked_fill(padding, 0.0), values.masked_fill(padding, 0.0)
        f_projection = f_projection.masked_fill(padding.transpose(-1, -2), 0.0)
        reached = ((e_projection != 0) & key_valid[:, None, None]).any(-1)[:, :, None]  # (B, G or 1, 1, R)
        reached = reached if reached.shape[1] == 1 else repeat_groups(reached, heads)
    scores = attention_scores(
        at_least_float32(query), e_projection @ keys, scale=resolve_scale(scale, query.shape[3])
    )
    slot_weights, lse = masked_softmax(scores, reached)
    context = slot_weights @ repeat_groups((f_projection @ values).to(slot_weights.dtype), heads)
    if f_projection.shape[1] != 1:
        f_projection = repeat_groups(f_projection, heads)
    return LinformerOutput(
        context=context.to(value.dtype), lse=lse, slot_weights=slot_weights, slots=f_projection
    )


class LinformerAttention(nn.Module):
    """Linformer attention with learned E and F for keys up to a greatest length.

    Shorter inputs use the first columns. To share across layers (section 4), use one module in all of them.
    """

    def __init__(self, max_length: int, rank: int, heads: int, *, sharing: Sharing = "headwise") -> None:
        """Draw E and F from N(0, 1/R), as the random matrix in the proof of the paper's theorem 2.

        Args:
            max_length: the most key positions.
            rank: R slots.
            heads: G key–value heads.
            sharing: section 4: "none" = E and F of each head, "headwise" = one E and one F, "key_value" = one E = F.
        Raises:
            ValueError: if a size is below one or ``sharing`` is unknown.
        """
        super().__init__()
        if min(max_length, rank, heads) < 1:
            raise ValueError(
                "LinformerAttention: max_length, rank and heads must be at least 1 but are "
                f"{max_length}, {rank} and {heads}; choose positive sizes."
            )
        if sharing not in _SHARINGS:
            raise ValueError(
                f"LinformerAttention: sharing must be {', '.join(_SHARINGS)} but is {sharing!r}; "
                "choose one of them."
            )
        shape = (heads, rank, max_length) if sharing == "none" else (rank, max_length)
        self.max_length = max_length
        self.key_projection = nn.Parameter(torch.randn(shape) * rank**-0.5)
        self.value_projection = (
            self.key_projection if sharing == "key_value" else nn.Parameter(torch.randn(shape) * rank**-0.5)
        )

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, *, key_valid: Tensor | None = None
    ) -> LinformerOutput:
        """Attention to the projected keys.

        Args:
            query: (B, H, Q, D).
            key, value: (B, G, K, D) and (B, G, K, E); K at most max_length.
            key_valid: (B, K) bool.
        Returns:
            As ``linformer_attention``.
        Raises:
            TypeError, ValueError: if shapes do not fit or there are too many keys.
        """
        check_query_key_value(query, key, value, "LinformerAttention")
        length = key.shape[2]
        if length > self.max_length:
            raise ValueError(
                f"LinformerAttention: key must have at most {self.max_length} positions but has {length}; "
                "cut the input or make a module for longer ones."
            )
        return linformer_attention(
            query,
            key,
            value,
            self.key_projection[..., :length],
            self.value_projection[..., :length],
            key_valid=key_valid,
        )


def _check_projections(
    key: Tensor, key_projection: Tensor, value_projection: Tensor, key_valid: Tensor | None
) -> None:
    groups, keys = key.shape[1:3]
    for name, projection in (("key_projection", key_projection), ("value_projection", value_projection)):
        shape = tuple(projection.shape)
        if len(shape) not in (2, 3) or shape[-1] != keys or (len(shape) == 3 and shape[0] != groups):
            raise ValueError(
                f"linformer_attention: {name} must be (R, K) or (G, R, K) with K = {keys} and G = {groups} but is "
                f"{shape}; cut it to the keys' length."
            )
    if key_projection.shape[-2] != value_projection.shape[-2]:
        raise ValueError(
            f"linformer_attention: value_projection must have key_projection's {key_projection.shape[-2]} slots "
            f"but has {value_projection.shape[-2]}; project both to the same number."
        )
    check_key_valid(key_valid, key, "linformer_attention")
