"""Attention in Triton: the forward kernel, its variants, and the differentiable function around it.

The algorithm is that of Dao et al. 2022 with the loop order of Dao 2023 (FlashAttention-2, section 3.1): one
program has one block of queries and walks over the keys that the rule leaves it; of a row it keeps the running
maximum, the running sum and the context so far, and divides by the sum once, at the end.

Tested in Triton's interpreter against the reference, float32 and float16, and compiled ahead of time for sm_80 and
sm_90 in every variant. What has run where stands in docs/flash-triton.md; nothing here has been timed on a GPU.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attn_core.bias import Bias, needs_gradient
from attn_core.checks import check_query_key_value
from attn_core.flash.scoring import Scoring
from attn_core.flash.triton_common import (
    LN2,
    LOG2E,
    WIDEST,
    Precision,
    allow_descriptors,
    allowed_pairs,
    biased_scores,
    input_precision,
    interpreted,
    kernel_scoring,
    key_span,
    launch,
    length_class,
    load_tile,
    on_device_of,
    padded_width,
    scaled_query,
    scaled_scores,
    store_tile,
    strided,
    takes_descriptor,
    tl,
    triton,
    unsupported_here,
    unsupported_scoring,
    whole_key_span,
)
from attn_core.functional import AttentionOutput, resolve_scale
from attn_core.masks import MaskRule
from attn_core.watching import worked

# ---- kernel ------------------------------------------------------------------------------------------------


@triton.jit
def attend_keys(
    context,
    total,
    top,
    query_tile,
    key,
    value,
    scoring,
    item,
    head,
    first,
    start,
    stop,
    WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
    BLOCK_VALUE_WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr,
    MASKED: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
    WARP_SPECIALIZE: tl.constexpr,
):
    """Context (R, E), running sum (R,) and maximum (R,) of a block of queries after the keys start to stop."""
    group = head // scoring.group
    for place in tl.range(start, stop, COLUMNS, warp_specialize=WARP_SPECIALIZE):
        # Scores of the tile, in base two.
        if DESCRIPTORS:
            key_tile = key.load([place, 0])
        else:
            key_tile = load_tile(key, item, group, place, scoring.keys, WIDTH, COLUMNS, BLOCK_WIDTH, MASKED)
        scores = tl.dot(query_tile, tl.trans(key_tile), input_precision=PRECISION)
        rows, columns = (first + tl.arange(0, ROWS))[:, None], (place + tl.arange(0, COLUMNS))[None, :]
        if not scoring.is_plain:
            scores = biased_scores(scaled_scores(scores, scoring), scoring, item, head, rows, columns)
        if MASKED:
            scores = tl.where(allowed_pairs(scoring, item, rows, columns), scores, float("-inf"))

        # New maximum of each row; what was summed under the old one is rescaled.
        if scoring.is_plain:  # one multiply-add an element instead of a multiplication and a subtraction
            new_top = tl.maximum(top, tl.max(scores, 1) * scoring.scale)
        else:
            new_top = tl.maximum(top, tl.max(scores, 1))
        if MASKED or scoring.has_bias:  # nothing allowed so far: −∞ − −∞ is no number
            level = tl.where(new_top == float("-inf"), 0.0, new_top)
        else:
            level = new_top
        if scoring.is_plain:
            weights = tl.exp2(scores * scoring.scale - level[:, None])
        else:
            weights = tl.exp2(scores - level[:, None])
        shrink = tl.exp2(top - level)
        total = total * shrink + tl.sum(weights, 1)

        # Context of these keys.
        if DESCRIPTORS:
            value_tile = value.load([place, 0])
        else:
            value_tile = load_tile(
                value, item, group, place, scoring.keys, VALUE_WIDTH, COLUMNS, BLOCK_VALUE_WIDTH, MASKED
            )
        context = tl.dot(
            weights.to(value_tile.dtype), value_tile, context * shrink[:, None], input_precision=PRECISION
        )
        top = new_top
    return context, total, top


@triton.jit
def attend_block(
    query,
    key,
    value,
    context,
    lse,
    row_top,
    row_factor,
    sinks,
    scoring,
    items,
    heads,
    turn,
    WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
    BLOCK_VALUE_WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PRECISION: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    KEEPS_ROWS: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
    WARP_SPECIALIZE: tl.constexpr,
):
    """Context and log-sum-exp of one block of queries, the ``turn``-th in the order of work.

    Blocks of one head follow each other, so its keys stay in the cache; with a causal rule the last blocks of all
    heads come first, since a long one that starts late leaves the rest of the chip idle.
    """
    blocks = tl.cdiv(scoring.queries, ROWS)
    if scoring.is_causal:
        first = (blocks - 1 - turn // (heads * items)) * ROWS
        place = turn % (heads * items)
    else:
        first = turn % blocks * ROWS
        place = turn // blocks
    item, head = place // heads, place % heads
    if DESCRIPTORS:
        queries = head_descriptor(query, item, head, scoring.queries, WIDTH, ROWS, BLOCK_WIDTH)
        query_tile = queries.load([first, 0])
        keys = head_descriptor(key, item, head // scoring.group, scoring.keys, WIDTH, COLUMNS, BLOCK_WIDTH)
        values = head_descriptor(
            value, item, head // scoring.group, scoring.keys, VALUE_WIDTH, COLUMNS, BLOCK_VALUE_WIDTH
        )
    else:
        query_tile = load_tile(query, item, head, first, scoring.queries, WIDTH, ROWS, BLOCK_WIDTH, True)
        keys, values = key, value
    query_tile = scaled_query(query_tile, scoring)
    accumulator = tl.zeros((ROWS, BLOCK_VALUE_WIDTH), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    if HAS_SINKS:  # a key without a value that every row sees first
        sink = tl.load(sinks + head).to(tl.float32) * LOG2E
        top = total + sink
        total += tl.where(sink == float("-inf"), 0.0, 1.0)
    else:
        top = total - float("inf")

    # Three stretches of keys: only those at the edges of the rule need a mask. Warp specialisation has one loop
    # with a mask throughout: with a second loop over the same descriptors, Triton 3.6 to 3.9 fail in the compiler.
    start, stop = key_span(scoring, item, first, ROWS)
    if WARP_SPECIALIZE:
        accumulator, total, top = attend_keys(
            accumulator, total, top, query_tile, keys, values, scoring, item, head, first, start, stop,
            WIDTH, VALUE_WIDTH, BLOCK_WIDTH, BLOCK_VALUE_WIDTH, ROWS, COLUMNS, PRECISION, True, DESCRIPTORS, True,
        )  # fmt: skip
    else:
        whole_start, whole_stop = whole_key_span(scoring, item, first, start, stop, ROWS, COLUMNS)
        if scoring.has_window:
            accumulator, total, top = attend_keys(
                accumulator, total, top, query_tile, keys, values, scoring, item, head, first, start, whole_start,
                WIDTH, VALUE_WIDTH, BLOCK_WIDTH, BLOCK_VALUE_WIDTH, ROWS, COLUMNS, PRECISION, True, DESCRIPTORS,
                False,
            )  # fmt: skip
        accumulator, total, top = attend_keys(
            accumulator, total, top, query_tile, keys, values, scoring, item, head, first, whole_start, whole_stop,
            WIDTH, VALUE_WIDTH, BLOCK_WIDTH, BLOCK_VALUE_WIDTH, ROWS, COLUMNS, PRECISION, False, DESCRIPTORS, False,
        )  # fmt: skip
        accumulator, total, top = attend_keys(
            accumulator, total, top, query_tile, keys, values, scoring, item, head, first, whole_stop, stop,
            WIDTH, VALUE_WIDTH, BLOCK_WIDTH, BLOCK_VALUE_WIDTH, ROWS, COLUMNS, PRECISION, True, DESCRIPTORS, False,
        )  # fmt: skip

    # Divide once. A row with nothing allowed has a sum of 0: context 0, log-sum-exp −∞.
    some = total > 0.0
    total = tl.where(some, total, 1.0)
    factor = tl.where(some, 1.0 / total, 0.0)
    store_tile(
        context,
        item,
        head,
        first,
        scoring.queries,
        accumulator * factor[:, None],
        VALUE_WIDTH,
        ROWS,
        BLOCK_VALUE_WIDTH,
    )
    rows = first + tl.arange(0, ROWS)
    place = place.to(tl.int64) * scoring.queries + rows
    inside = rows < scoring.queries
    tl.store(lse + place, tl.where(some, (top + tl.log2(total)) * LN2, float("-inf")), mask=inside)
    if KEEPS_ROWS:
        tl.store(row_top + place, tl.where(some, top, 0.0), mask=inside)
        tl.store(row_factor + place, factor, mask=inside)


@triton.jit
def head_descriptor(
    matrix, item, head, limit, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Tensor descriptor (TMA) of one head's rows; it reads 0 past the last row and column."""
    corner = matrix.pointer + item.to(tl.int64) * matrix.item + head.to(tl.int64) * matrix.head
    return tl.make_tensor_descriptor(
        corner, shape=[limit, WIDTH], strides=[matrix.row, 1], block_shape=[ROWS, COLUMNS]
    )


@triton.jit
def attention_forward(
    query,
    key,
    value,
    context,
    lse,
    row_top,
    row_factor,
    sinks,
    scoring,
    items,
    heads,
    length,
    WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
    BLOCK_VALUE_WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
    HAS_SINKS: tl.constexpr,
    KEEPS_ROWS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DESCRIPTORS: tl.constexpr,
    PERSISTENT: tl.constexpr,
    WARP_SPECIALIZE: tl.constexpr,
):
    """Context and log-sum-exp; a program has one block of queries, or one after the other (PERSISTENT).

    Args:
        query, key, value, context: ``Strided``; lse, row_top, row_factor: (B, H, Q) float32.
        row_top, row_factor: maximum of each row in base two and 1 / its sum, written if KEEPS_ROWS. Weights
            recomputed from these are as exact as they were; the log-sum-exp is rounded once more, in units of the
            largest score.
        length: class of the number of keys, for the autotuner alone.
    """
    if PERSISTENT:
        for turn in tl.range(
            tl.program_id(0), tl.cdiv(scoring.queries, ROWS) * heads * items, tl.num_programs(0)
        ):
            attend_block(
                query, key, value, context, lse, row_top, row_factor, sinks, scoring, items, heads, turn,
                WIDTH, VALUE_WIDTH, BLOCK_WIDTH, BLOCK_VALUE_WIDTH, ROWS, COLUMNS, PRECISION,
                HAS_SINKS, KEEPS_ROWS, DESCRIPTORS, WARP_SPECIALIZE,
            )  # fmt: skip
    else:
        attend_block(
            query, key, value, context, lse, row_top, row_factor, sinks, scoring, items, heads, tl.program_id(0),
            WIDTH, VALUE_WIDTH, BLOCK_WIDTH, BLOCK_VALUE_WIDTH, ROWS, COLUMNS, PRECISION,
            HAS_SINKS, KEEPS_ROWS, DESCRIPTORS, WARP_SPECIALIZE,
        )  # fmt: skip


# ---- variants ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Inputs:
    """What of the inputs decides which tiles are worth a try.

    Attributes:
        width: the wider of key and value heads, padded.
        element_size: bytes of a number.
        has_descriptors: whether query, key and value may be read through tensor descriptors.
        is_bare: nothing is read in the loop over keys but keys and values: no bias, padding, prefix or documents.
        precision: of products.
    """

    width: int
    element_size: int
    is_causal: bool
    has_descriptors: bool
    is_bare: bool
    precision: Precision = "ieee"

    @property
    def width_class(self) -> int:
        """The width that tiles are chosen for: 64, 128 or 256."""
        return next(width for width in (64, 128, 256) if self.width <= width)

    @staticmethod
    def of(query: Tensor, key: Tensor, value: Tensor, scoring: Scoring, precision: Precision) -> Inputs:
        """Of one call."""
        width = padded_width(max(query.shape[3], value.shape[3]))
        aligned = all(map(takes_descriptor, (query, key, value)))
        rule = scoring.rule
        bare = scoring.bias is None and rule.key_valid is None and not rule.has_pair_parts
        products = input_precision(precision, query, value)
        return Inputs(width, query.element_size(), rule.causal, aligned, bare, products)


@dataclass(frozen=True)
class Chip:
    """What decides which variants of a kernel exist.

    Attributes:
        capability: of the GPU, such as (9, 0).
        triton: version of Triton, such as (3, 6).
        processors: streaming multiprocessors, the programs of a persistent grid.
    """

    capability: tuple[int, int]
    triton: tuple[int, int]
    processors: int

    @staticmethod
    def of(device: torch.device) -> Chip:
        """The GPU of a tensor."""
        properties = torch.cuda.get_device_properties(device)
        return Chip((properties.major, properties.minor), triton_version(), properties.multi_processor_count)


def triton_version() -> tuple[int, int]:
    """Major and minor version of the Triton that is installed."""
    major, minor = triton.__version__.split(".")[:2]
    return int(major), int(minor)


def forward_configs(chip: Chip, inputs: Inputs) -> list[triton.Config]:
    """Tiles and variants that the autotuner tries, from those that compile without spills for these inputs.

    * Half precision, up to a width of 128: 128 queries by 64 or 128 keys; wider heads take half as many. float32 is
      multiplied by the plain units, whose operands are in registers, so its tiles are small; for three products of
      TF32 registers hold both operands twice.
    * Tensor descriptors (TMA) exist from sm_90 on, and only for rows that begin at multiples of 16 bytes.
    * A persistent grid is tried for causal rules, whose blocks differ in length, where one program fills a processor.
    * Warp specialisation: Hopper, with all of query, key and value read through descriptors made in the kernel,
      nothing else read in the loop, and four warps. With eight, Triton 3.6 ignores it silently; with any other load
      it fails in the compiler. Only the versions that it was compiled with are trusted.
    """
    is_hopper = chip.capability >= (9, 0)
    if inputs.precision == "tf32x3":
        tiles = {64: [(32, 32, 8, 1)], 128: [(32, 16, 8, 1), (16, 16, 4, 1)]}
        return [forward_config(*tile) for tile in tiles[inputs.width_class]]
    if inputs.element_size == 4:
        tiles = {
            64: [(32, 32, 4, 1), (32, 32, 8, 1)],
            128: [(32, 16, 4, 1)],
            256: [(32, 16, 8, 1), (16, 16, 4, 1)],
        }
        return [forward_config(*tile) for tile in tiles[inputs.width_class]]
    tiles = {
        64: [(128, 64, 4, 3), (128, 128, 8, 3), (64, 64, 4, 3)],
        128: [(128, 64, 8, 3), (128, 128, 8, 2), (64, 64, 4, 3)]
        if is_hopper
        else [(128, 64, 8, 3), (128, 32, 8, 3)],
        256: [(128, 32, 8, 2), (64, 64, 8, 2)]
        if is_hopper
        else [(64, 64, 8, 2), (64, 32, 8, 2), (32, 32, 4, 2)],
    }
    configs = [forward_config(*tile) for tile in tiles[inputs.width_class]]
    largest = tiles[inputs.width_class][1]
    if inputs.has_descriptors and is_hopper:
        configs += [forward_config(*tile, descriptors=True) for tile in tiles[inputs.width_class][:2]]
        if inputs.is_causal:
            configs.append(forward_config(*largest, descriptors=True, persistent=True))
        if (
            chip.capability[0] == 9
            and inputs.is_bare
            and inputs.width <= 128
            and (3, 6) <= chip.triton < (3, 10)
        ):
            configs.append(forward_config(128, 64, 4, 3, descriptors=True, warp_specialize=True))
    elif inputs.is_causal and inputs.width_class == 64:
        configs.append(forward_config(*largest, persistent=True))
    return configs


def forward_config(
    rows: int,
    columns: int,
    warps: int,
    stages: int,
    *,
    descriptors: bool = False,
    persistent: bool = False,
    warp_specialize: bool = False,
) -> triton.Config:
    """One choice of tile and variant."""
    meta = {
        "ROWS": rows,
        "COLUMNS": columns,
        "DESCRIPTORS": descriptors,
        "PERSISTENT": persistent,
        "WARP_SPECIALIZE": warp_specialize,
    }
    return triton.Config(meta, num_warps=warps, num_stages=stages)


@functools.lru_cache(maxsize=64)
def _tuned_forward(chip: Chip, inputs: Inputs) -> Any:
    """The kernel behind an autotuner, which times its candidates at the first call of each class of length."""
    keys = ["length", "WIDTH", "VALUE_WIDTH", "KEEPS_ROWS"]
    return triton.autotune(configs=forward_configs(chip, inputs), key=keys, cache_results=True)(
        attention_forward
    )


# ---- launch ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Rows:
    """What the forward kernel knows of each row (B, H, Q) in float32, beside its context.

    Attributes:
        lse: natural log-sum-exp.
        top: largest score in base two, 0 where nothing is allowed.
        factor: 1 / sum of exp2(score − top), 0 where nothing is allowed.
    """

    lse: Tensor
    top: Tensor
    factor: Tensor


def forward_arguments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    context: Tensor,
    rows: Rows,
    *,
    scoring: Scoring,
    precision: Precision = "ieee",
    keeps_rows: bool = True,
) -> dict[str, Any]:
    """All arguments of ``attention_forward`` but those that a configuration sets."""
    items, heads, _, width = query.shape
    return {
        "query": strided(query),
        "key": strided(key),
        "value": strided(value),
        "context": strided(context),
        "lse": rows.lse,
        "row_top": rows.top,
        "row_factor": rows.factor,
        "sinks": None if scoring.sinks is None else scoring.sinks.to(query.device).contiguous(),
        "scoring": kernel_scoring(scoring, query, key, scales_query=query.dtype == torch.float32),
        "items": items,
        "heads": heads,
        "length": length_class(key.shape[2]),
        "WIDTH": width,
        "VALUE_WIDTH": value.shape[3],
        "BLOCK_WIDTH": padded_width(width),
        "BLOCK_VALUE_WIDTH": padded_width(value.shape[3]),
        "PRECISION": input_precision(precision, query, value),
        "HAS_SINKS": scoring.sinks is not None,
        "KEEPS_ROWS": keeps_rows,
    }


def forward_pass(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scoring: Scoring,
    precision: Precision = "ieee",
    keeps_rows: bool = False,
    config: triton.Config | None = None,
) -> tuple[Tensor, Rows]:
    """Context (B, H, Q, E) in value's dtype and what is known of its rows.

    Args:
        keeps_rows: fill ``top`` and ``factor`` of the rows too, for the backward pass.
        config: tile and variant; None tunes on a GPU, and takes one fixed tile in the interpreter.
    """
    batch, heads, queries, _ = query.shape
    context = value.new_empty(batch, heads, queries, value.shape[3])
    lse, top, factor = query.new_empty(3, batch, heads, queries, dtype=torch.float32)
    rows = Rows(lse, top, factor)
    arguments = forward_arguments(
        query, key, value, context, rows, scoring=scoring, precision=precision, keeps_rows=keeps_rows
    )
    chip = Chip((0, 0), triton_version(), 2) if interpreted() else Chip.of(query.device)

    def grid(meta: dict[str, Any]) -> tuple[int]:
        blocks = triton.cdiv(queries, meta["ROWS"]) * heads * batch
        return (min(blocks, chip.processors) if meta["PERSISTENT"] else blocks,)

    with on_device_of(query):
        if config is None and not interpreted():
            inputs = Inputs.of(query, key, value, scoring, precision)
            allow_descriptors(query.device)
            _tuned_forward(chip, inputs)[grid](**arguments, enable_fp_fusion=True)
        else:
            launch(attention_forward, grid, arguments, config or forward_config(64, 64, 4, 1))
    worked(batch * heads * queries * key.shape[2])
    return context, rows


class TritonAttention(torch.autograd.Function):
    """(context, lse) of query, key, value and sinks, differentiable in all four through both."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        sinks: Tensor | None,
        scoring: Scoring,
        precision: Precision,
    ) -> tuple[Tensor, Tensor]:
        context, rows = forward_pass(query, key, value, scoring=scoring, precision=precision, keeps_rows=True)
        ctx.save_for_backward(query, key, value, sinks, context, rows.lse, rows.top, rows.factor)
        ctx.scoring, ctx.precision = scoring, precision
        ctx.set_materialize_grads(False)
        return context, rows.lse

    @staticmethod
    def backward(ctx: Any, context_gradient: Tensor | None, lse_gradient: Tensor | None) -> tuple[Any, ...]:
        from attn_core.flash.triton_backward import (
            backward_pass,
        )  # here, since that file is built on this one

        query, key, value, sinks, context, *of_rows = ctx.saved_tensors
        if context_gradient is None and lse_gradient is None:
            return None, None, None, None, None, None
        with torch.no_grad():
            gradients = backward_pass(
                query,
                key,
                value,
                context,
                Rows(*of_rows),
                context_gradient=torch.zeros_like(context) if context_gradient is None else context_gradient,
                lse_gradient=lse_gradient,
                scoring=ctx.scoring,
                needed=ctx.needs_input_grad[:4],
                precision=ctx.precision,
            )
        found = [gradients.query, gradients.key, gradients.value, gradients.sinks]
        if (
            torch.is_grad_enabled()
        ):  # create_graph: whoever differentiates these must be told, not given a zero
            sources = [
                tensor
                for tensor in (query, key, value, sinks, context_gradient, lse_gradient)
                if tensor is not None
            ]
            found = [
                None if gradient is None else LastDerivative.apply(gradient, *sources) for gradient in found
            ]
        return *found, None, None


class LastDerivative(torch.autograd.Function):
    """A gradient as it is, which says so when it is differentiated once more."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, *sources: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise RuntimeError(
            "triton_attention: gradients can be taken once and were differentiated again; use impl='reference'."
        )


def triton_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    rule: MaskRule | None = None,
    bias: Bias | None = None,
    scale: float | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    precision: Precision = "ieee",
) -> AttentionOutput:
    """As ``attn_core.functional.attention`` without its weights, by Triton kernels, in O(n · d) memory.

    Differentiable once in query, key, value and sinks, through the context and the log-sum-exp.

    Args:
        query: (B, H, Q, D).
        key, value: (B, G, K, D) and (B, G, K, E); G divides H.
        rule, bias, scale, softcap, sinks: as in ``attn_core.functional.attention``.
        precision: of float32 products.
    Raises:
        TypeError, ValueError: if shapes or dtypes do not belong together, or the kernels cannot compute this.
    """
    check_query_key_value(query, key, value, "triton_attention")
    scoring = Scoring(resolve_scale(scale, query.shape[3]), rule or MaskRule(), bias, softcap, sinks)
    reason = unsupported(query, key, value, scoring)
    if reason is not None:
        raise ValueError(f"triton_attention: the Triton kernels cannot compute this because {reason}.")
    learns = torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in (query, key, value, sinks)
    )
    if learns:
        context, lse = TritonAttention.apply(query, key, value, sinks, scoring, precision)
        return AttentionOutput(context=context, lse=lse)
    context, rows = forward_pass(query, key, value, scoring=scoring, precision=precision)
    return AttentionOutput(context=context, lse=rows.lse)


def unsupported(query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> str | None:
    """Why ``triton_attention`` cannot compute this here, and what can; None when it can."""
    reason = unsupported_here(query) or unsupported_scoring(scoring, query, key)
    if reason is not None:
        return reason
    if value.dtype != query.dtype:
        return f"value has dtype {value.dtype} and query {query.dtype}; cast one of them"
    if not 0 < value.shape[3] <= WIDEST:
        return f"values have width {value.shape[3]} and they take 1 to {WIDEST}; impl='tiled' can"
    if needs_gradient(scoring.bias):
        return "the bias needs a gradient; impl='tiled' can"
    return None
