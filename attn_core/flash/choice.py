"""Which implementation ``impl="auto"`` takes, and why: the function that chooses is the one that explains."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from attn_core.bias import Bias
from attn_core.budget import budget_bytes, fits
from attn_core.checks import check_query_key_value
from attn_core.flash.compiled_forward import compiled_reason, is_quicker
from attn_core.flash.cover import Cover
from attn_core.flash.fused import fused_reason
from attn_core.flash.scoring import Scoring
from attn_core.flash.tiled import BLOCK, pieces
from attn_core.functional import resolve_scale
from attn_core.masks import MaskRule

Named = Literal["reference", "tiled", "triton", "fused", "compiled"]
Implementation = Literal["auto", "reference", "tiled", "triton", "fused", "compiled"]

PROBES = 64
"""Tiles at most that a predicate is asked about; never more than every fourth."""

SPARSE_SHARE = 0.6
"""Below this share of tiles with an allowed pair, tiles that skip the others are faster than the fused kernel with a
mask: at 0.5 they took 0.75 of its time, at 0.15 0.4 of it (6 heads of width 64, n = 1025 and 4097, one thread)."""


@dataclass(frozen=True)
class Choice:
    """What ``impl="auto"`` takes.

    Attributes:
        impl: the implementation.
        reason: why, as a sentence.
        others: of every other implementation why it cannot compute this here; None where it could as well.
    """

    impl: Named
    reason: str
    others: Mapping[Named, str | None]


def explain_choice(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    rule: MaskRule | None = None,
    bias: Bias | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Choice:
    """What ``flash_attention`` takes for these arguments, and why; a predicate is asked about a sample of tiles.

    Raises:
        TypeError, ValueError: if shapes or dtypes do not belong together.
    """
    check_query_key_value(query, key, value, "explain_choice")
    rule = MaskRule() if rule is None else rule
    scoring = Scoring(resolve_scale(scale, query.shape[3]), rule, bias, softcap, sinks)
    reasons: dict[Named, str | None] = {
        "reference": _reference_reason(query, key),
        "tiled": None,
        "triton": _triton_reason(query, key, value, scoring),
        "fused": fused_reason(query, value, bias=bias, softcap=softcap, sinks=sinks),
        "compiled": compiled_reason(query, key, value, scoring),
    }
    impl, why = _choice(query, key, rule, reasons)
    return Choice(impl, why, {name: reasons[name] for name in get_args(Named) if name != impl})


def _choice(
    query: Tensor, key: Tensor, rule: MaskRule, reasons: Mapping[Named, str | None]
) -> tuple[Named, str]:
    if reasons["triton"] is None:
        return "triton", "tensors are on a GPU and the Triton kernels can compute this."
    if reasons["compiled"] is None and is_quicker(query, key):
        return "compiled", (
            "AttnScope's compiled kernel computes the same in clearly less time than PyTorch's on this processor."
        )
    if reasons["fused"] is not None:
        return "tiled", f"the Triton kernels cannot: {reasons['triton']}; nor the fused: {reasons['fused']}."
    share = _sampled_share(rule, queries=query.shape[2], keys=key.shape[2])
    if share < SPARSE_SHARE:
        return "tiled", (
            f"{share:.0%} of the tiles that the rule's predicate was asked about hold an allowed pair; the rest is "
            "skipped, while the fused kernel works through it."
        )
    return (
        "fused",
        f"PyTorch's fused kernel computes the same in less time{_masked(rule)}.{_precision(query)}",
    )


def _masked(rule: MaskRule) -> str:
    if rule.is_trivial or rule.is_plain_causal:
        return ""
    return ", with the rule as a mask of one strip of queries at a time"


def _precision(query: Tensor) -> str:
    if query.dtype == torch.bfloat16:
        return " Products are of bfloat16 numbers as they come, sums and softmax float32."
    if query.dtype == torch.float16:
        return " It is given float32 copies, since its own float16 is slower."
    return ""


def _reference_reason(query: Tensor, key: Tensor) -> str | None:
    """Why the weights had better not be written out."""
    batch, heads, queries, _ = query.shape
    size = batch * heads * queries * key.shape[2] * max(4, query.element_size())
    if fits(size):
        return None
    return (
        f"its weights take {size / 2**20:,.0f} MiB, more than the budget of {budget_bytes() / 2**20:,.0f} MiB"
    )


def _triton_reason(query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> str | None:
    """Why the Triton kernels are not for this; Triton is imported for tensors on a GPU alone."""
    if query.device.type != "cuda":
        return f"tensors are on {query.device.type}, where Triton has nothing but an interpreter for tests"
    try:
        from attn_core.flash.triton_forward import unsupported
    except ImportError:
        return "the package triton is missing"
    return unsupported(query, key, value, scoring)


def _sampled_share(rule: MaskRule, *, queries: int, keys: int) -> float:
    """Share of tiles with an allowed pair, from a random sample; 1.0 where the rule has no predicate or few tiles."""
    if rule.predicate is None:
        return 1.0
    rows, columns = (list(pieces(slice(0, size), BLOCK, even=False)) for size in (queries, keys))
    probes = min(PROBES, len(rows) * len(columns) // 4)
    if probes < PROBES // 4:
        return 1.0
    known = Cover.of(rule, queries=queries, keys=keys)
    # Drawn at random, always the same: a regular sample could fall in step with a regular layout.
    sample = torch.randperm(len(rows) * len(columns), generator=torch.Generator().manual_seed(0))[:probes]
    found = 0
    for place in sample.tolist():
        row, column = divmod(place, len(columns))
        found += known.evaluated(rows[row], columns[column]) != "none"
    return found / probes
