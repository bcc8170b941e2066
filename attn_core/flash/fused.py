"""PyTorch's own fused attention with its log-sum-exp, where it computes the same thing.

The operators that return the log-sum-exp are private to PyTorch, so they are called in this file alone, and
``tests/attn_core/test_attention.py`` holds them to the reference: a PyTorch that changes them fails there and not in
a figure. A rule becomes a mask only strip by strip, and a strip reads only the keys that some query of it may see, so
that no mask of n × n ever stands.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from attn_core.bias import Bias, TableBias, bias_block, needs_gradient
from attn_core.flash.cover import Cover
from attn_core.flash.scoring import Scoring
from attn_core.flash.tiled import once_only, pieces, tiled_gradients
from attn_core.functional import AttentionOutput, resolve_scale
from attn_core.masks import MaskRule
from attn_core.watching import uncounted, worked

STRIP_ROWS = 128
"""Queries of a strip where a rule leaves keys out: fewer waste less at the edge of a window, more run faster."""

MASK_BYTES = 8 * 2**20
"""What the mask of a strip may take, as long as the strip has 16 queries."""

PART_WEIGHTS = 2**26
"""Weights of a thread after which whoever watches hears of a layer that needs no mask, about 0.3 s of work: larger
layers come in parts."""

BLOCK_ROWS, BLOCKED_ROWS = 256, 768
"""The kernel works on so many queries at a time where it is given at least so many: parts that begin at multiples of
the one and have as many as the other give the same numbers as the whole, bit for bit (PyTorch 2.13)."""

LARGE_LSE = 32.0
"""Above it, float32 gradients are made by tiles: the kernel recomputes weights as exp(score − lse), and rounding the
lse misscales whole rows. Of scores near 300 its gradients had 13 times the error of the formula written out; up to
this value an error of more than twice that one stays below 48 units in the last place of the largest number."""


def fused_reason(
    query: Tensor, value: Tensor, *, bias: Bias | None, softcap: float | None, sinks: Tensor | None
) -> str | None:
    """Why the fused operator cannot be used, or None when it can."""
    if query.device.type != "cpu":
        return f"no operator with a log-sum-exp is wired up for {query.device.type}"
    if softcap is not None:
        return "scores are soft-capped"
    if sinks is not None and torch.is_grad_enabled() and (sinks.requires_grad or query.requires_grad):
        return "sinks are differentiated through"
    if query.dtype not in (torch.float32, torch.float64, torch.bfloat16, torch.float16):
        return f"dtype {query.dtype}"
    if needs_gradient(bias):
        return "the bias needs a gradient"
    if _mask_dtype(query, bias) is None:
        return "the kernel would round the bias to a lower precision"
    if query.shape[3] != value.shape[3]:
        return f"value width {value.shape[3]} differs from key width {query.shape[3]}"
    if 0 in query.shape or 0 in value.shape:
        return "an axis is empty"
    return None


def fused_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    rule: MaskRule | None = None,
    bias: Bias | None = None,
    scale: float | None = None,
    sinks: Tensor | None = None,
) -> AttentionOutput:
    """As ``attn_core.functional.attention``, by PyTorch's flash kernel for CPUs.

    Differentiable once in query, key and value, through the context and the log-sum-exp (the latter by
    ``attn_core.flash.tiled``, since the kernel gives it no gradient).
    """
    if query.dtype == torch.float16:  # the kernel's own float16 takes 1.6 of the time of float32, backward 7
        wide = fused_attention(
            query.float(), key.float(), value.float(), rule=rule, bias=bias, scale=scale, sinks=sinks
        )
        return AttentionOutput(context=wide.context.to(value.dtype), lse=wide.lse)
    scoring = Scoring(resolve_scale(scale, query.shape[3]), MaskRule() if rule is None else rule, bias)
    inputs = query, key, value
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
        context, lse = _Fused.apply(*inputs, replace(scoring, bias=_detached(bias)))  # type: ignore[no-untyped-call]
    else:
        context, lse = _forward(*inputs, scoring)
    return _with_sinks(AttentionOutput(context=context, lse=lse), sinks)


def _with_sinks(output: AttentionOutput, sinks: Tensor | None) -> AttentionOutput:
    """The output of rows that each share their weight with a sink: e^lse of the whole stays with the keys."""
    if sinks is None:
        return output
    sink = sinks[:, None].to(output.lse.dtype)  # (H, 1)
    kept = torch.sigmoid(output.lse - sink)[..., None]
    kept = kept.masked_fill(torch.isneginf(output.lse)[..., None], 0.0)
    return AttentionOutput(
        context=(output.context * kept).to(output.context.dtype), lse=torch.logaddexp(output.lse, sink)
    )


# --- Strips ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Strip:
    """Some queries, and what the kernel is told of them.

    Attributes:
        rows, columns: queries, and the keys that one of them may see.
        heads: along the second axis of what ``_grouped`` makes; all but under the kernel's own causal mask.
        causal: the kernel's own causal mask, which starts at the top left: for Q = K alone.
        mask: (B·G or 1, H/G or 1, r or 1, c) added to the scores.
        empty: (B·G or 1, H/G or 1, r or 1) rows with nothing allowed; the kernel says nothing definite of these.
    """

    rows: slice
    columns: slice
    heads: slice
    causal: bool = False
    mask: Tensor | None = None
    empty: Tensor | None = None

    @property
    def size(self) -> int:
        return int(self.rows.stop - self.rows.start)

    @property
    def axis(self) -> int:
        """Along which the answers of all strips are put together."""
        return 1 if self.causal else 2

    def of_queries(self, tensor: Tensor) -> Tensor:
        """The part (…, h, r, …) of what has a number, or a vector, a query."""
        return tensor[:, self.heads, self.rows]

    def of_keys(self, tensor: Tensor) -> Tensor:
        """The part (…, h, c, …) of what has a vector a key."""
        return tensor[:, self.heads, self.columns]

    def cleared(self, tensor: Tensor, number: float) -> Tensor:
        """An answer (…, h, r) or (…, h, r, E) with ``number`` in the rows that see nothing."""
        if self.empty is None:
            return tensor
        empty = self._own(self.empty)
        return tensor.masked_fill(empty if tensor.ndim == empty.ndim else empty[..., None], number)

    def _own(self, part: Tensor) -> Tensor:
        """The own heads of a mask, where it tells heads apart."""
        return part if part.shape[1] == 1 else part[:, self.heads]

    def options(self, scale: float) -> dict[str, Any]:
        """What the kernel takes beside tensors."""
        mask = None if self.mask is None else self._own(self.mask).expand(-1, -1, self.size, -1)
        return {"dropout_p": 0.0, "is_causal": self.causal, "attn_mask": mask, "scale": scale}


def _strips(query: Tensor, key: Tensor, scoring: Scoring) -> Iterator[_Strip]:
    """The queries in as few strips as their masks, and whoever watches, allow."""
    rule, bias = scoring.rule, scoring.bias
    queries, keys = query.shape[2], key.shape[2]
    every, whole = slice(0, queries), slice(0, keys)

    def strip(rows: slice, columns: slice, causal: bool, mask: Tensor | None) -> _Strip:
        empty = _per_group(_empty(mask, causal), query, key)
        return _Strip(rows, columns, slice(None), causal, _per_group(mask, query, key), empty)

    # Of a causal call the kernel scales the −∞ of its own mask, which is NaN for a scale of 0 (PyTorch 2.13).
    plain = rule.causal and rule.window is None and not rule.has_pair_parts
    causal = plain and queries == keys and scoring.scale > 0.0
    rest = replace(rule, causal=False) if causal else rule
    if rest.is_padding_alone and not _differs_by_row(bias):
        one = Cover.of(rest, queries=1, keys=keys)  # all queries see what one sees
        columns = whole if causal else one.columns_of(slice(0, 1))
        undivided = strip(every, columns, causal, _mask(one, slice(0, 1), columns, query, bias))
        yield from _parts(undivided, query, key)
        return
    known = Cover.of(rule, queries=queries, keys=keys)
    for rows in pieces(every, _strip_rows(known, query, bias)):
        columns = known.columns_of(rows)
        yield strip(rows, columns, False, _mask(known, rows, columns, query, bias))


def _parts(strip: _Strip, query: Tensor, key: Tensor) -> Iterator[_Strip]:
    """A strip of all queries in parts of about ``PART_WEIGHTS`` a thread: rows, or heads under a causal mask, which
    has to start at the first query."""
    most = PART_WEIGHTS * torch.get_num_threads()
    (batch, heads, queries, _), groups, keys = query.shape, key.shape[1], key.shape[2]
    if strip.causal:
        items, count = (batch, heads) if groups == heads else (batch * groups, heads // groups)
        step = max(1, most // max(1, items * queries * keys))
        for start in range(0, count, step):
            yield replace(strip, heads=slice(start, min(start + step, count)))
        return
    step = max(BLOCKED_ROWS, most // max(1, batch * heads * keys) // BLOCK_ROWS * BLOCK_ROWS)
    edges = [*range(0, max(queries - step, 0) + 1, step), queries]  # the last part takes what is left
    for start, stop in pairwise(edges):
        yield replace(strip, rows=slice(start, stop))


def _strip_rows(known: Cover, query: Tensor, bias: Bias | None) -> int:
    """Queries of a strip."""
    batch = heads = 1
    for part in (known.rule.key_valid, known.rule.documents, known.rule.prefix):
        batch = batch if part is None else max(batch, part.shape[0])
    if bias is not None or known.rule.predicate is not None:
        batch, heads = query.shape[:2]
    row_bytes = batch * heads * known.keys * 4
    most = max(16, MASK_BYTES // max(1, row_bytes))
    return min(most, STRIP_ROWS) if known.share(STRIP_ROWS) < 1.0 else most


def _mask(known: Cover, rows: slice, columns: slice, query: Tensor, bias: Bias | None) -> Tensor | None:
    """(B or 1, H or 1, r or 1, c) rule and bias of a strip as one tensor, in the dtype that the kernel takes."""
    allowed = None
    if known.of_tile(rows, columns) != "all":
        allowed = known.allowed(rows, columns, device=query.device)
    block = bias_block(bias, rows, columns)
    if allowed is None and block is None:
        return None
    dtype = _mask_dtype(query, bias)
    mask = torch.zeros((), dtype=dtype, device=query.device) if block is None else block.to(dtype)
    mask = mask if allowed is None else torch.where(allowed, mask, -math.inf)
    mask = mask.reshape((1,) * (4 - mask.ndim) + mask.shape)
    return mask.expand(-1, -1, -1, columns.stop - columns.start)


def _empty(mask: Tensor | None, causal: bool) -> Tensor | None:
    """(B or 1, H or 1, r or 1) rows with nothing allowed; under a causal mask of the kernel's own, of all rows."""
    if mask is None:
        return None
    if not mask.shape[3]:
        return torch.ones(mask.shape[:3], dtype=torch.bool, device=mask.device)
    if causal:  # of row i the first i + 1 keys count
        return torch.isneginf(mask[:, :, 0]).logical_not().cumsum(-1) == 0
    return torch.isneginf(mask.amax(-1))


def _per_group(part: Tensor | None, query: Tensor, key: Tensor) -> Tensor | None:
    """(B or 1, H or 1, …) as (B·G or 1, H/G or 1, …), the axes that ``_grouped`` makes of query and key."""
    (batch, heads), groups = query.shape[:2], key.shape[1]
    if part is None or groups == heads or part.shape[:2] == (1, 1):
        return part
    if part.shape[1] == 1:
        return part.repeat_interleave(groups, dim=0)
    part = part.expand(batch, *part.shape[1:])
    return part.reshape(batch * groups, heads // groups, *part.shape[2:])


def _mask_dtype(query: Tensor, bias: Bias | None) -> torch.dtype | None:
    """The dtype of a mask: query's, or float32 for a finer bias of a half-precision query; else None."""
    numbers = bias.table if isinstance(bias, TableBias) else bias
    dtype = query.dtype if numbers is None else torch.promote_types(query.dtype, numbers.dtype)
    half = query.dtype in (torch.bfloat16, torch.float16)
    return dtype if dtype == query.dtype or (half and dtype == torch.float32) else None


def _differs_by_row(bias: Bias | None) -> bool:
    return isinstance(bias, TableBias) or (bias is not None and bias.shape[-2] > 1)


def _detached(bias: Bias | None) -> Bias | None:
    return None if bias is None else bias.detach()


# --- Passes ---------------------------------------------------------------------------------------------------------


def _grouped(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(B·G, H/G, N, D) each where heads share keys: groups are counted as items, so that no key is copied.

    The kernel takes the last axis for contiguous, whatever its stride (PyTorch 2.13).
    """
    batch, heads, queries, _ = query.shape
    groups = key.shape[1]
    query, key, value = (
        tensor if tensor.stride(-1) == 1 else tensor.contiguous() for tensor in (query, key, value)
    )
    if groups == heads:
        return query, key, value
    shape = batch * groups, heads // groups
    key, value = (
        tensor.reshape(shape[0], 1, *tensor.shape[2:]).expand(-1, shape[1], -1, -1) for tensor in (key, value)
    )
    return query.reshape(*shape, queries, query.shape[3]), key, value


def _forward(query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> tuple[Tensor, Tensor]:
    """Context (B, H, Q, E) in value's dtype, lse (B, H, Q) at least float32."""
    queries, keys, values = _grouped(query, key, value)
    contexts, lses, axis = [], [], 2
    for strip in _strips(query, key, scoring):
        part, axis = strip.of_queries(queries), strip.axis
        if strip.columns.start == strip.columns.stop:
            context = torch.zeros_like(part)
            lse = part.new_full(
                part.shape[:3], -math.inf, dtype=torch.promote_types(part.dtype, torch.float32)
            )
        else:
            context, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                part, strip.of_keys(keys), strip.of_keys(values), **strip.options(scoring.scale)
            )
        contexts.append(strip.cleared(context, 0.0))
        lses.append(strip.cleared(lse, -math.inf))
        worked(lse.numel() * key.shape[2])
    context = contexts[0] if len(contexts) == 1 else torch.cat(contexts, axis)
    lse = lses[0] if len(lses) == 1 else torch.cat(lses, axis)
    return context.reshape(*query.shape[:3], value.shape[3]), lse.reshape(query.shape[:3])


class _Fused(torch.autograd.Function):
    """The strips as one step of autograd, which keeps no mask."""

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, scoring: Scoring
    ) -> tuple[Tensor, Tensor]:
        context, lse = _forward(query, key, value, scoring)
        ctx.save_for_backward(query, key, value, context, lse)
        ctx.scoring = scoring
        ctx.set_materialize_grads(False)
        return context, lse

    @staticmethod
    def backward(ctx: Any, of_context: Tensor | None, of_lse: Tensor | None) -> tuple[Any, ...]:
        query, key, value, context, lse = ctx.saved_tensors
        gradients: tuple[Tensor | None, ...]
        with torch.no_grad():
            if of_lse is None and not _is_rounded(lse, query.dtype):
                gradients = _gradients(query, key, value, ctx.scoring, context, lse, of_context)
            elif of_lse is None and (around := _around_mean(query, key, value, ctx.scoring)) is not None:
                gradients = _gradients(query, *around[:2], ctx.scoring, *around[2:], of_context)
            else:
                found = tiled_gradients(query, key, value, ctx.scoring, of_context=of_context, of_lse=of_lse)
                gradients = found.query, found.key, found.value
        return *once_only(gradients, query, key, value), None


def _around_mean(
    query: Tensor, key: Tensor, value: Tensor, scoring: Scoring
) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
    """Keys without their mean, value, context and lse; None where the lse stays coarse or keys are left out.

    What all keys share adds the same to every score of a row, so weights and all gradients stay as they are (those of
    the scores of a row sum to 0), but the lse becomes small. Keys that a rule leaves out must not move the others.
    """
    if not scoring.rule.is_trivial:
        return None
    centred = key - key.mean(2, keepdim=True)
    with uncounted():  # the backward pass counts once
        context, lse = _forward(query, centred, value, scoring)
    return None if _is_rounded(lse, query.dtype) else (centred, value, context, lse)


def _is_rounded(lse: Tensor, dtype: torch.dtype) -> bool:
    """Whether rounding has made a log-sum-exp too coarse to recompute weights from."""
    return dtype == torch.float32 and bool((lse.abs() > LARGE_LSE).logical_and_(lse.isfinite()).any())


def _gradients(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scoring: Scoring,
    context: Tensor,
    lse: Tensor,
    of_context: Tensor | None,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Gradients by the kernel's own backward pass, strip by strip."""
    if of_context is None:
        return None, None, None
    queries, keys, values = _grouped(query, key, value)
    context, of_context = (
        part.reshape(*queries.shape[:3], value.shape[3]) for part in (context, of_context.contiguous())
    )
    lse = lse.masked_fill(torch.isneginf(lse), math.inf).reshape(
        queries.shape[:3]
    )  # exp(−∞ − ∞) = 0: empty rows
    of_queries, axis = [], 2
    of_key, of_value = (tensor.new_zeros(tensor.shape, dtype=lse.dtype) for tensor in (key, value))
    for strip in _strips(query, key, scoring):
        part, axis = strip.of_queries(queries), strip.axis
        if strip.columns.start == strip.columns.stop:
            of_queries.append(torch.zeros_like(part))
        else:
            of_part, of_keys, of_values = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                strip.of_queries(of_context),
                part,
                strip.of_keys(keys),
                strip.of_keys(values),
                strip.of_queries(context),
                strip.of_queries(lse),
                **strip.options(scoring.scale),
            )
            of_queries.append(of_part)
            for whole, found in ((of_key, of_keys), (of_value, of_values)):
                if key.shape[1] == query.shape[1]:
                    strip.of_keys(whole).add_(found)
                else:
                    shared = found.reshape(*key.shape[:2], -1, *found.shape[2:])  # (B, G, h, c, D)
                    whole[:, :, strip.columns] += shared.sum(2)
        worked(part.shape[0] * part.shape[1] * strip.size * key.shape[2])
    of_query = of_queries[0] if len(of_queries) == 1 else torch.cat(of_queries, axis)
    return of_query.reshape(query.shape), of_key.to(key.dtype), of_value.to(value.dtype)
