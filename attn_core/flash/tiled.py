"""The flash algorithm in plain PyTorch: the one to read, on any device, with every option.

Dao et al. 2022 (FlashAttention, algorithm 1) in the loop order of Dao 2023 (FlashAttention-2, algorithms 1 and 2). A
tile of scores is made, used and forgotten; of each row only its maximum and the sum of its exponentials run along
(Milakov and Gimelshein 2018). The backward pass makes the tiles again. Memory is that of the inputs, the outputs and
one tile.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from attn_core.bias import Bias, TableBias, bias_block
from attn_core.flash.cover import Cover
from attn_core.flash.scoring import Scoring
from attn_core.functional import AttentionOutput, resolve_scale
from attn_core.masks import MaskRule
from attn_core.watching import uncounted, worked

BLOCK = 128
"""Queries and keys of the tiles in which a predicate's empty ones are looked for."""

TILE_ELEMENTS = 4_000_000
"""Scores of a tile at most, as long as it has 16 rows."""


@dataclass(frozen=True)
class TileSize:
    """Queries and keys of a tile."""

    rows: int
    columns: int


def tile_size(batch_heads: int, device: torch.device, *, rule: MaskRule | None = None) -> TileSize:
    """Tiles of all heads at once that stay in the second cache of a CPU, or that keep a GPU busy.

    Measured on one thread of a server's CPU for 1 to 256 heads of width 64; the size on a GPU is a guess. A rule
    with a predicate gets tiles as small as the blocks of block-sparse layouts, so that empty ones are found.
    """
    if rule is not None and rule.predicate is not None:
        return TileSize(BLOCK, BLOCK)
    if device.type != "cpu":
        return TileSize(512, 2048)
    if batch_heads <= 2:
        return TileSize(256, 1024)
    columns = 512 if batch_heads <= 12 else 256
    return TileSize(min(128, max(16, TILE_ELEMENTS // (batch_heads * columns))), columns)


def tiled_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    rule: MaskRule | None = None,
    bias: Bias | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    tile: TileSize | None = None,
) -> AttentionOutput:
    """As ``attn_core.functional.attention``, tile by tile, without keeping the weights.

    Differentiable once, in query, key, value, a bias or its table, and sinks, through context and log-sum-exp.

    Args:
        tile: None takes ``tile_size``.
    """
    scoring = Scoring(
        resolve_scale(scale, query.shape[3]), MaskRule() if rule is None else rule, bias, softcap, sinks
    )
    if tile is None:
        tile = tile_size(query.shape[0] * query.shape[1], query.device, rule=rule)
    inputs = query, key, value, _numbers(bias), sinks
    if torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in inputs):
        bare = bias.detach() if isinstance(bias, TableBias) else None  # a tensor bias is among the inputs
        context, lse = _Tiled.apply(*inputs, replace(scoring, bias=bare, sinks=None), tile)  # type: ignore[no-untyped-call]
        return AttentionOutput(context=context, lse=lse)
    outcome = _forward(_Pass.of(query, key, value, scoring, tile))
    return AttentionOutput(context=outcome.context, lse=outcome.lse)


# --- What both passes share -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Pass:
    """One walk over the tiles.

    Attributes:
        dtype: of scores, softmax and statistics: at least float32, and no less than the bias.
        shared: H / G, the query heads that read one key–value head. They are folded into the rows of a tile, so that
            keys are never repeated.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    scoring: Scoring
    tile: TileSize
    cover: Cover
    dtype: torch.dtype
    shared: int

    @staticmethod
    def of(query: Tensor, key: Tensor, value: Tensor, scoring: Scoring, tile: TileSize) -> _Pass:
        dtype = torch.promote_types(query.dtype, torch.float32)
        numbers = _numbers(scoring.bias)
        dtype = dtype if numbers is None else torch.promote_types(dtype, numbers.dtype)
        known = Cover.of(scoring.rule, queries=query.shape[2], keys=key.shape[2])
        shared = max(1, query.shape[1] // max(1, key.shape[1]))
        return _Pass(query, key, value, scoring, tile, known, dtype, shared)

    def strips(self) -> Iterator[slice]:
        """Queries, strip by strip."""
        return pieces(slice(0, self.query.shape[2]), self.tile.rows, even=self.cover.is_known)

    def tiles(self, rows: slice) -> Iterator[tuple[slice, Tensor | None]]:
        """Keys of the tiles of a strip in which a pair is allowed, with the mask (B, H, r, c) where one is needed."""
        for columns in pieces(self.cover.columns_of(rows), self.tile.columns, even=self.cover.is_known):
            coverage = self.cover.of_tile(rows, columns)
            if coverage == "all":
                yield columns, None
            elif coverage == "some":
                allowed = self.cover.allowed(rows, columns, device=self.query.device)
                if self.cover.is_known or allowed is None or bool(allowed.any()):
                    yield columns, allowed

    def fold(self, strip: Tensor) -> Tensor:
        """(B, H, r, …) of a strip -> (B·G, H/G·r, …) in the dtype of the pass."""
        batch, heads, rows = strip.shape[:3]
        return strip.to(self.dtype).reshape(
            batch * heads // self.shared, self.shared * rows, *strip.shape[3:]
        )

    def unfold(self, folded: Tensor) -> Tensor:
        """The inverse of ``fold``, in the dtype of the pass."""
        batch, heads = self.query.shape[:2]
        return folded.view(batch, heads, folded.shape[1] // self.shared, *folded.shape[2:])

    def keys_of(self, tensor: Tensor, columns: slice) -> Tensor:
        """(B·G, c, D) keys or values of a tile in the dtype of the pass."""
        return tensor[:, :, columns].flatten(0, 1).to(self.dtype)

    def scores(
        self, strip: Tensor, key: Tensor, rows: slice, columns: slice, allowed: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """(B·G, H/G·r, c) scores of a tile, −∞ where not allowed, and what is left of a slope after the soft cap.

        Args:
            strip: (B·G, H/G·r, D) queries, scaled.
            key: (B·G, c, D).
            allowed: broadcasts to (B, H, r, c).
        """
        scores, softcap, slope = strip @ key.mT, self.scoring.softcap, None
        if softcap is not None:
            bent = torch.tanh(scores.div_(softcap))
            scores, slope = softcap * bent, 1.0 - bent.square()
        block = bias_block(self.scoring.bias, rows, columns)
        if block is not None:
            self.unfold(scores).add_(block)
        if allowed is not None:
            self.unfold(scores).masked_fill_(~allowed, -math.inf)
        return scores, slope

    def sinks(self, rows: slice) -> Tensor | None:
        """(B·G, H/G·r, 1) the sink of each query of a strip."""
        if self.scoring.sinks is None:
            return None
        batch, heads = self.query.shape[:2]
        return self.fold(self.scoring.sinks[None, :, None, None].expand(batch, heads, _length(rows), 1))

    def start(self, strip: Tensor, rows: slice) -> tuple[Tensor, Tensor]:
        """(B·G, H/G·r, 1) largest score and sum of each row before its first tile: nothing, or its sink."""
        sinks = self.sinks(rows)
        top = strip.new_full((*strip.shape[:2], 1), -math.inf) if sinks is None else sinks
        return top, (top - _level(top)).exp()

    def tell(self, rows: slice, columns: int) -> None:
        """Say that so many keys of a strip are done, whether worked on or skipped."""
        worked(self.query.shape[0] * self.query.shape[1] * _length(rows) * columns)


@dataclass(frozen=True, eq=False)
class _Outcome:
    """The forward pass and what the backward pass needs of it.

    Attributes:
        context: (B, H, Q, E) in value's dtype.
        top, total: (B, H, Q) largest score and sum of exp(score − largest). exp(score − top) / total is a weight,
            and a better one than exp(score − lse) where scores are large: rounding the lse misscales a whole row.
    """

    context: Tensor
    top: Tensor
    total: Tensor

    @property
    def lse(self) -> Tensor:
        """(B, H, Q) log-sum-exp, −∞ where nothing is allowed."""
        return self.top + _divisor(self.total).log()


def _forward(walk: _Pass) -> _Outcome:
    query, key, value = walk.query, walk.key, walk.value
    batch, heads, queries, _ = query.shape
    context = value.new_empty(batch, heads, queries, value.shape[3])
    tops, totals = (query.new_empty(batch, heads, queries, dtype=walk.dtype) for _ in range(2))
    for rows in walk.strips():
        strip = walk.fold(query[:, :, rows]) * walk.scoring.scale  # (B·G, H/G·r, D)
        weighted, done = strip.new_zeros(*strip.shape[:2], value.shape[3]), 0
        top, total = walk.start(strip, rows)
        for columns, allowed in walk.tiles(rows):
            scores, _ = walk.scores(strip, walk.keys_of(key, columns), rows, columns, allowed)
            top, total, powers, shrink = _joined(top, total, scores)
            weighted = (weighted * shrink).baddbmm_(powers, walk.keys_of(value, columns))
            walk.tell(rows, _length(columns))
            done += _length(columns)
        context[:, :, rows] = walk.unfold(weighted / _divisor(total)).to(value.dtype)
        tops[:, :, rows], totals[:, :, rows] = walk.unfold(top)[..., 0], walk.unfold(total)[..., 0]
        walk.tell(rows, key.shape[2] - done)
    return _Outcome(context, tops, totals)


def _joined(top: Tensor, total: Tensor, scores: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Largest score and sum of each row with a tile more, the tile's powers, and what shrinks sums made before it.

    Args:
        top, total: (B·G, H/G·r, 1) of the tiles so far.
        scores: (B·G, H/G·r, c); turned into the powers in place.
    """
    larger = torch.maximum(top, scores.amax(-1, keepdim=True))
    level = _level(larger)
    powers = scores.sub_(level).exp_()
    shrink = (top - level).exp()  # what was summed so far was relative to a smaller maximum
    return larger, total * shrink + powers.sum(-1, keepdim=True), powers, shrink


# --- Backward -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Gradients:
    """Gradients in the dtypes of what they belong to; None where none was asked for."""

    query: Tensor
    key: Tensor
    value: Tensor
    numbers: Tensor | None
    sinks: Tensor | None


def tiled_gradients(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scoring: Scoring,
    outcome: _Outcome | None = None,
    *,
    of_context: Tensor | None,
    of_lse: Tensor | None,
    tile: TileSize | None = None,
    bias_too: bool = False,
) -> Gradients:
    """Gradients by recomputed tiles (Dao 2023, algorithm 2), in O(n · d) memory.

    With dP = dO Vᵀ the gradient of the scores is weights ∘ (dP − rowsum(dO ∘ O) + d lse).

    Args:
        outcome: None makes the forward pass again. Results of another implementation would not do: where scores are
            large, it has rounded them otherwise.
        of_context: (B, H, Q, E) gradient of the context, None for none.
        of_lse: (B, H, Q) gradient of the log-sum-exp, None for none.
        bias_too: also of the bias, or of the table that it is read from.
    """
    if tile is None:
        tile = tile_size(query.shape[0] * query.shape[1], query.device, rule=scoring.rule)
    walk = _Pass.of(query, key, value, scoring, tile)
    if outcome is None:
        with uncounted():  # the backward pass counts once
            outcome = _forward(walk)
    of_context = torch.zeros_like(outcome.context) if of_context is None else of_context
    of_query = query.new_empty(query.shape)
    of_key, of_value = (
        tensor.new_zeros(tensor.shape, dtype=walk.dtype).flatten(0, 1) for tensor in (key, value)
    )
    of_sinks = None if scoring.sinks is None else scoring.sinks.new_zeros(query.shape[1], dtype=walk.dtype)
    numbers = _numbers(scoring.bias)
    of_numbers = (
        numbers.new_zeros(numbers.shape, dtype=walk.dtype) if bias_too and numbers is not None else None
    )
    for rows in walk.strips():
        strip = walk.fold(query[:, :, rows]) * scoring.scale
        top, total = (walk.fold(part[:, :, rows, None]) for part in (outcome.top, outcome.total))
        level, divisor = _level(top), _divisor(total)
        pull = walk.fold(of_context[:, :, rows])  # dO
        share = (pull * walk.fold(outcome.context[:, :, rows])).sum(-1, keepdim=True)
        share = share if of_lse is None else share - walk.fold(of_lse[:, :, rows, None])
        pull, share = pull / divisor, share / divisor  # here and not in each tile, whose powers are undivided
        of_strip, done = torch.zeros_like(strip), 0
        for columns, allowed in walk.tiles(rows):
            keys, values = walk.keys_of(key, columns), walk.keys_of(value, columns)
            scores, slope = walk.scores(strip, keys, rows, columns, allowed)
            powers = scores.sub_(level).exp_()
            of_value[:, columns].baddbmm_(powers.mT, pull)
            of_scores = (pull @ values.mT).sub_(share).mul_(powers)
            if of_numbers is not None:
                _add_bias_gradient(of_numbers, scoring.bias, walk.unfold(of_scores), rows, columns)
            of_scores = of_scores if slope is None else of_scores.mul_(slope)
            of_strip.baddbmm_(of_scores, keys)
            of_key[:, columns].baddbmm_(of_scores.mT, strip)  # strip is scaled already
            walk.tell(rows, _length(columns))
            done += _length(columns)
        walk.tell(rows, key.shape[2] - done)
        of_query[:, :, rows] = walk.unfold(of_strip * scoring.scale).to(query.dtype)
        sinks = walk.sinks(rows)
        if of_sinks is not None and sinks is not None:
            of_sinks -= walk.unfold((sinks - level).exp() * share).sum((0, 2, 3))
    return Gradients(
        of_query,
        of_key.view(key.shape).to(key.dtype),
        of_value.view(value.shape).to(value.dtype),
        None if of_numbers is None or numbers is None else of_numbers.to(numbers.dtype),
        None if of_sinks is None or scoring.sinks is None else of_sinks.to(scoring.sinks.dtype),
    )


def _add_bias_gradient(
    gradient: Tensor, bias: Bias | None, of_scores: Tensor, rows: slice, columns: slice
) -> None:
    """Add what the scores of a tile pull on a bias, (B, H, r, c), to the gradient of its numbers."""
    if isinstance(bias, TableBias):
        with torch.enable_grad():  # a table knows how it is read; autograd turns that round
            table = bias.table.detach().requires_grad_()
            block = replace(bias, table=table).block(rows, columns)
        gradient += torch.autograd.grad(block, table, of_scores.sum_to_size(block.shape).to(block.dtype))[0]
    elif bias is not None:
        part = bias_block(gradient, rows, columns)  # a view of the gradient, which is laid out as the bias
        assert part is not None
        part += of_scores.sum_to_size((1,) * (4 - part.ndim) + part.shape).view(part.shape)


class _Tiled(torch.autograd.Function):
    """The two passes as one step of autograd."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        numbers: Tensor | None,
        sinks: Tensor | None,
        scoring: Scoring,
        tile: TileSize,
    ) -> tuple[Tensor, Tensor]:
        scoring = _with_numbers(scoring, numbers, sinks)
        outcome = _forward(_Pass.of(query, key, value, scoring, tile))
        kept = outcome.context, outcome.top, outcome.total
        ctx.save_for_backward(query, key, value, numbers, sinks, *kept)
        ctx.scoring, ctx.tile = replace(scoring, bias=_without_tensor(scoring.bias), sinks=None), tile
        ctx.set_materialize_grads(False)
        return outcome.context, outcome.lse

    @staticmethod
    def backward(ctx: Any, of_context: Tensor | None, of_lse: Tensor | None) -> tuple[Any, ...]:
        query, key, value, numbers, sinks, context, top, total = ctx.saved_tensors
        with torch.no_grad():
            found = tiled_gradients(
                query,
                key,
                value,
                _with_numbers(ctx.scoring, numbers, sinks),
                _Outcome(context, top, total),
                of_context=of_context,
                of_lse=of_lse,
                tile=ctx.tile,
                bias_too=ctx.needs_input_grad[3],
            )
        gradients = found.query, found.key, found.value, found.numbers, found.sinks
        return *once_only(gradients, query, key, value, numbers, sinks), None, None


class _OnceOnly(torch.autograd.Function):
    """A gradient that itself has none, and says so rather than count for nothing in a second derivative."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *_sources: Tensor | None) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        raise RuntimeError(
            "flash_attention: there is no second derivative through tiles or kernels; use impl='reference'."
        )


def once_only(gradients: Sequence[Tensor | None], *sources: Tensor | None) -> tuple[Tensor | None, ...]:
    """Gradients that refuse to be differentiated.

    PyTorch's own ``once_differentiable`` asks of the incoming gradient alone whether a second derivative is wanted.

    Args:
        sources: what they depend on.
    """
    if not torch.is_grad_enabled():  # nobody asked for a graph of the backward pass
        return tuple(gradients)
    return tuple(None if each is None else _OnceOnly.apply(each, *sources) for each in gradients)  # type: ignore[no-untyped-call]


# --- Small parts ----------------------------------------------------------------------------------------------------


def pieces(whole: slice, size: int, *, even: bool = True) -> Iterator[slice]:
    """A slice in parts of about ``size``.

    Args:
        even: parts are equal, 1025 in two halves rather than 512, 512 and 1; else they begin at multiples of
            ``size``.
    """
    length = whole.stop - whole.start
    if even and length:
        count = max(1, round(length / size))
        edges = [whole.start + part * length // count for part in range(count + 1)]
    else:
        inner = range(whole.start + size - whole.start % size, whole.stop, size)
        edges = [whole.start, *inner, whole.stop] if length else []
    return (slice(start, stop) for start, stop in pairwise(edges))


def _length(part: slice) -> int:
    return int(part.stop - part.start)


def _level(top: Tensor) -> Tensor:
    """The largest score of each row, 0 where nothing is allowed and −∞ − −∞ would be NaN."""
    return top.masked_fill(torch.isneginf(top), 0.0)


def _divisor(total: Tensor) -> Tensor:
    """The sum of each row, 1 where nothing is allowed: 0 / 1 = 0."""
    return total.masked_fill(total == 0, 1.0)


def _numbers(bias: Bias | None) -> Tensor | None:
    """What a gradient of a bias belongs to: the tensor, or the table."""
    return bias.table if isinstance(bias, TableBias) else bias


def _without_tensor(bias: Bias | None) -> TableBias | None:
    """How a table is read, for a record that must keep no tensor which autograd saves anyway."""
    return bias if isinstance(bias, TableBias) else None


def _with_numbers(scoring: Scoring, numbers: Tensor | None, sinks: Tensor | None) -> Scoring:
    bias = scoring.bias
    whole: Bias | None = (
        replace(bias, table=numbers) if isinstance(bias, TableBias) and numbers is not None else numbers
    )
    return replace(scoring, bias=whole, sinks=sinks)
