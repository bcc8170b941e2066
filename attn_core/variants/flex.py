"""Flexible attention: any change of a score and any mask, each written for a single pair (Dong et al. 2024).

FlexAttention (arXiv 2412.05496) lets a program say softmax(score_mod(scale · Q Kᵀ)) V over the pairs that
``mask_mod`` allows. Both are elementwise functions of indices with PyTorch's own signature, so that what is written
here runs there:

    score_mod(score, batch, head, query, key) -> score      mask_mod(batch, head, query, key) -> True = may attend

The functions below ``flex_attention`` make mods. Indices count queries and keys from 0 each. Where Q ≠ K, ``shift`` =
K − Q puts the last query at the last key, as docs/conventions.md has it; PyTorch's examples leave it at 0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex

from attn_core.bias import RelativeBias
from attn_core.checks import check_ndim, check_query_key_value
from attn_core.functional import (
    AttentionOutput,
    DenseAttentionOutput,
    at_least_float32,
    attend,
    attention_scores,
    resolve_scale,
)
from attn_core.mask_rules import causal_rule, document_rule, pairs_allowed, prefix_rule, window_rule
from attn_core.masks import MaskRule, Predicate
from attn_core.positions import alibi_slopes

ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""(score, batch, head, query, key) -> score; indices are integer tensors that broadcast to the score."""

MaskMod = Predicate
"""(batch, head, query, key) -> bool, True = may attend."""


def flex_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score_mod: ScoreMod | None = None,
    mask_mod: MaskMod | None = None,
    scale: float | None = None,
    impl: Literal["reference", "torch"] = "reference",
) -> AttentionOutput:
    """Context and log-sum-exp of attention with modified scores.

    Args:
        query: (B, H, Q, D).
        key, value: (B, G, K, D) and (B, G, K, E); G divides H.
        score_mod: changes scaled scores; None leaves them. −∞ forbids a pair.
        mask_mod: which pairs may attend; None = all.
        scale: factor of Q Kᵀ; None = 1/√D.
        impl: "torch" calls PyTorch's operator as it is, not compiled; on a CPU it has no backward pass.
    Returns:
        context (B, H, Q, E), lse (B, H, Q).
    Raises:
        TypeError, ValueError: if shapes or dtypes do not belong together, or PyTorch's operator cannot compute this.
    """
    if impl == "reference":
        return flex_reference(query, key, value, score_mod=score_mod, mask_mod=mask_mod, scale=scale)
    if impl == "torch":
        return _flex_torch(query, key, value, score_mod=score_mod, mask_mod=mask_mod, scale=scale)
    raise ValueError(f"flex_attention: impl must be reference or torch but is {impl!r}.")


def flex_reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score_mod: ScoreMod | None = None,
    mask_mod: MaskMod | None = None,
    scale: float | None = None,
) -> DenseAttentionOutput:
    """As ``flex_attention``, every n × n array in the open, with the weights (B, H, Q, K)."""
    check_query_key_value(query, key, value, "flex_attention")
    scores = attention_scores(
        at_least_float32(query), at_least_float32(key), scale=resolve_scale(scale, query.shape[3])
    )  # (B, H, Q, K)
    indices = torch.meshgrid(*(torch.arange(n, device=query.device) for n in scores.shape), indexing="ij")
    if score_mod is not None:
        scores = score_mod(scores, *indices)
    allowed = None if mask_mod is None else mask_mod(*indices)
    return attend(scores, value, allowed=allowed)


def _flex_torch(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    score_mod: ScoreMod | None,
    mask_mod: MaskMod | None,
    scale: float | None,
) -> AttentionOutput:
    check_query_key_value(query, key, value, "flex_attention")
    batch, heads, queries, _ = query.shape
    keys = key.shape[2]
    on_cpu = query.device.type == "cpu"
    if on_cpu and torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value)):
        raise ValueError(
            "flex_attention: impl='torch' has no backward pass on a CPU; use impl='reference' or torch.no_grad()."
        )
    if 0 in (*query.shape, *value.shape):
        raise ValueError("flex_attention: impl='torch' cannot compute an empty axis; use impl='reference'.")
    block_mask = None
    if mask_mod is not None:
        block_mask = torch_flex.create_block_mask(
            mask_mod, batch, heads, queries, keys, device=str(query.device)
        )
    context, aux = torch_flex.flex_attention(
        query,
        key,
        value,
        score_mod=score_mod,
        block_mask=block_mask,
        scale=resolve_scale(scale, query.shape[3]),
        enable_gqa=key.shape[1] != heads,
        return_aux=torch_flex.AuxRequest(lse=True),
    )
    assert aux.lse is not None
    return AttentionOutput(context=context, lse=aux.lse)


# --- Score mods -----------------------------------------------------------------------------------------------------


def soft_cap(cap: float) -> ScoreMod:
    """Scores bent to ±cap by cap · tanh(score / cap) (Gemma 2, 2024, section 2).

    Raises:
        ValueError: if ``cap`` is not positive.
    """
    if not cap > 0:
        raise ValueError(f"soft_cap: cap must be positive but is {cap}; leave the mod out for no cap.")

    def bent(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return cap * torch.tanh(score / cap)

    return bent


def alibi(heads: int, *, shift: int = 0) -> ScoreMod:
    """Attention with linear biases: −slope · distance for each head (Press et al. 2022, section 3).

    Without a causal mask the distance counts to both sides alike.
    """
    slopes = alibi_slopes(heads, dtype=torch.float64)

    def with_distance(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return score - slopes.to(score)[head] * (query + shift - key).abs()

    return with_distance


def relative_bias(bias: RelativeBias) -> ScoreMod:
    """A number for each key − query, read from its table (T5, Raffel et al. 2020, section 2.1)."""
    batches, heads, _ = bias.table.shape

    def with_bias(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        item, of_head = batch * int(batches > 1), head * int(heads > 1)
        distance = bias.columns.to(score.device)[key] - bias.rows.to(score.device)[query]
        return score + bias.table.to(score)[item, of_head, distance - bias.first]

    return with_bias


def in_turn(*mods: ScoreMod) -> ScoreMod:
    """One mod after the other, the first one first."""

    def composed(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        for mod in mods:
            score = mod(score, batch, head, query, key)
        return score

    return composed


# --- Mask mods ------------------------------------------------------------------------------------------------------


def mask_of_rule(rule: MaskRule, *, shift: int = 0) -> MaskMod:
    """Any mask rule as a mask mod; combine rules first, by ``&`` and ``|``."""

    def allowed(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return pairs_allowed(rule, batch, head, query, key, shift=shift)

    return allowed


def causal(*, shift: int = 0) -> MaskMod:
    """No key after the query."""
    return mask_of_rule(causal_rule(), shift=shift)


def sliding_window(window: int, *, shift: int = 0) -> MaskMod:
    """``window`` keys up to the query's own."""
    return mask_of_rule(window_rule(window), shift=shift)


def prefix(lengths: Tensor) -> MaskMod:
    """The first keys of each item and no others, (B,) how many; (1,) for all items alike.

    Raises:
        ValueError: if ``lengths`` has not one axis.
    """
    check_ndim(lengths, 1, "prefix: lengths")

    def inside(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return key < lengths.to(key.device)[batch * int(len(lengths) > 1)]

    return inside


def prefix_lm(lengths: int | Tensor, *, shift: int = 0) -> MaskMod:
    """The prefix for everyone, and beyond it no key after the query; see ``mask_rules.prefix_rule``."""
    return mask_of_rule(prefix_rule(lengths), shift=shift)


def document(documents: Tensor, *, shift: int = 0) -> MaskMod:
    """Pairs of one document, (B, K) which one each position belongs to; see ``mask_rules.document_rule``."""
    return mask_of_rule(document_rule(documents), shift=shift)
