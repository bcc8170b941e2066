"""Gradients of attention in Triton: the weights of each tile are computed again, never kept.

Dao et al. 2022, appendix B.2: with P the weights, dV = Pᵀ dO, dP = dO Vᵀ, dS = P ∘ (dP − δ), δ = rowsum(dO ∘ O),
dQ = dS K and dK = dSᵀ Q. A gradient of the log-sum-exp adds P to dS row by row, which is δ less that gradient. One
kernel walks over queries for a block of keys (dK, dV; the heads of a group one after the other, so nothing is
repeated and nothing is added atomically), another over keys for a block of queries (dQ).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attn_core.flash.scoring import Scoring
from attn_core.flash.triton_common import (
    LN2,
    Precision,
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
    query_span,
    scaled_query,
    scaled_scores,
    store_tile,
    strided,
    tl,
    triton,
    whole_key_span,
    whole_query_span,
)
from attn_core.flash.triton_forward import Chip, Inputs, Rows
from attn_core.watching import worked

# ---- kernels -----------------------------------------------------------------------------------------------


@triton.jit
def row_corrections(
    context,
    context_gradient,
    lse_gradient,
    correction,
    queries,
    heads,
    VALUE_WIDTH: tl.constexpr,
    BLOCK_VALUE_WIDTH: tl.constexpr,
    HAS_LSE_GRADIENT: tl.constexpr,
    ROWS: tl.constexpr,
):
    """δ of each row, (B, H, Q): rowsum(dO ∘ O) less the gradient of its log-sum-exp."""
    blocks = tl.cdiv(queries, ROWS)
    first = tl.program_id(0) % blocks * ROWS
    place = tl.program_id(0) // blocks
    item, head = place // heads, place % heads
    contexts = load_tile(context, item, head, first, queries, VALUE_WIDTH, ROWS, BLOCK_VALUE_WIDTH, True)
    gradients = load_tile(
        context_gradient, item, head, first, queries, VALUE_WIDTH, ROWS, BLOCK_VALUE_WIDTH, True
    )
    delta = tl.sum(contexts.to(tl.float32) * gradients.to(tl.float32), 1)
    rows = first + tl.arange(0, ROWS)
    places = place.to(tl.int64) * queries + rows
    if HAS_LSE_GRADIENT:
        delta -= tl.load(lse_gradient + places, mask=rows < queries, other=0.0)
    tl.store(correction + places, delta, mask=rows < queries)


@triton.jit
def weights_and_slope(product, scoring, item, head, rows, columns, top, factor, MASKED: tl.constexpr):
    """Weights of a tile as the forward pass made them, and the derivative of scaled scores up to a constant.

    ``rows``, ``columns``, ``top`` and ``factor`` broadcast to the tile, which may be a transposed one.
    """
    if scoring.is_plain:
        weights = tl.exp2(product * scoring.scale - top) * factor
        slope = 1.0
    else:
        scaled = scaled_scores(product, scoring)
        if scoring.has_cap:
            bend = scaled / scoring.cap
            slope = 1.0 - bend * bend
        else:
            slope = 1.0
        weights = tl.exp2(biased_scores(scaled, scoring, item, head, rows, columns) - top) * factor
    if MASKED:
        weights = tl.where(allowed_pairs(scoring, item, rows, columns), weights, 0.0)
    return weights, slope


@triton.jit
def steepness(scoring):
    """Constant part of d score / d product, in natural units; ``query_scale`` is part of the product."""
    if scoring.has_cap:
        constant = scoring.scale * scoring.cap * LN2
    else:
        constant = scoring.scale * LN2
    return constant


@triton.jit
def gather_from_queries(
    key_sum,
    value_sum,
    key_tile,
    value_tile,
    query,
    context_gradient,
    row_top,
    row_factor,
    correction,
    scoring,
    item,
    head,
    heads,
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
):
    """dK (C, D) up to ``steepness`` and dV (C, E) of a block of keys after the queries start to stop of one head.

    Tiles are transposed, keys by queries, so that weights are the left factor of both products as they stand.
    """
    columns = (first + tl.arange(0, COLUMNS))[:, None]
    vectors = (item * heads + head).to(tl.int64) * scoring.queries
    for place in range(start, stop, ROWS):
        # Weights of the tile.
        query_tile = load_tile(query, item, head, place, scoring.queries, WIDTH, ROWS, BLOCK_WIDTH, MASKED)
        query_tile = scaled_query(query_tile, scoring)
        rows = place + tl.arange(0, ROWS)
        inside = rows < scoring.queries
        top = tl.load(row_top + vectors + rows, mask=inside, other=0.0)[None, :]
        factor = tl.load(row_factor + vectors + rows, mask=inside, other=0.0)[None, :]
        delta = tl.load(correction + vectors + rows, mask=inside, other=0.0)[None, :]
        if (
            query_tile.dtype == tl.float32
        ):  # summed in the order of the forward pass, or large scores differ from its sums
            product = tl.trans(tl.dot(query_tile, tl.trans(key_tile), input_precision=PRECISION))
        else:
            product = tl.dot(key_tile, tl.trans(query_tile), input_precision=PRECISION)
        weights, slope = weights_and_slope(
            product, scoring, item, head, rows[None, :], columns, top, factor, MASKED
        )
        # dV, dP, dS, dK.
        gradient_tile = load_tile(
            context_gradient, item, head, place, scoring.queries, VALUE_WIDTH, ROWS, BLOCK_VALUE_WIDTH, MASKED
        )
        value_sum = tl.dot(
            weights.to(gradient_tile.dtype), gradient_tile, value_sum, input_precision=PRECISION
        )
        weight_gradients = tl.dot(value_tile, tl.trans(gradient_tile), input_precision=PRECISION)
        score_gradients = weights * (weight_gradients - delta) * slope
        key_sum = tl.dot(score_gradients.to(query_tile.dtype), query_tile, key_sum, input_precision=PRECISION)
    return key_sum, value_sum


@triton.jit
def key_value_gradients(
    query,
    key,
    value,
    context_gradient,
    row_top,
    row_factor,
    correction,
    key_gradient,
    value_gradient,
    scoring,
    heads,
    length,
    WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
    BLOCK_VALUE_WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """dK and dV of one block of keys: a walk over the queries of each head that reads them."""
    blocks = tl.cdiv(scoring.keys, COLUMNS)
    groups = heads // scoring.group
    first = (
        tl.program_id(0) % blocks * COLUMNS
    )  # with a causal rule the first keys have the most queries: longest first
    place = tl.program_id(0) // blocks
    item, group = place // groups, place % groups
    key_tile = load_tile(key, item, group, first, scoring.keys, WIDTH, COLUMNS, BLOCK_WIDTH, True)
    value_tile = load_tile(
        value, item, group, first, scoring.keys, VALUE_WIDTH, COLUMNS, BLOCK_VALUE_WIDTH, True
    )
    key_sum = tl.zeros((COLUMNS, BLOCK_WIDTH), tl.float32)
    value_sum = tl.zeros((COLUMNS, BLOCK_VALUE_WIDTH), tl.float32)
    start, stop = query_span(scoring, item, first, COLUMNS)
    whole_start, whole_stop = whole_query_span(scoring, item, first, start, stop, ROWS, COLUMNS)
    for member in range(scoring.group):
        head = group * scoring.group + member
        if scoring.is_causal or scoring.has_window:
            key_sum, value_sum = gather_from_queries(
                key_sum, value_sum, key_tile, value_tile, query, context_gradient, row_top, row_factor, correction,
                scoring, item, head, heads, first, start, whole_start,
                WIDTH, VALUE_WIDTH, BLOCK_WIDTH, BLOCK_VALUE_WIDTH, ROWS, COLUMNS, PRECISION, True,
            )  # fmt: skip
        key_sum, value_sum = gather_from_queries(
            key_sum, value_sum, key_tile, value_tile, query, context_gradient, row_top, row_factor, correction,
            scoring, item, head, heads, first, whole_start, whole_stop,
            WIDTH, VALUE_WIDTH, BLOCK_WIDTH, BLOCK_VALUE_WIDTH, ROWS, COLUMNS, PRECISION, False,
        )  # fmt: skip
        key_sum, value_sum = gather_from_queries(
            key_sum, value_sum, key_tile, value_tile, query, context_gradient, row_top, row_factor, correction,
            scoring, item, head, heads, first, whole_stop, stop,
            WIDTH, VALUE_WIDTH, BLOCK_WIDTH, BLOCK_VALUE_WIDTH, ROWS, COLUMNS, PRECISION, True,
        )  # fmt: skip
    key_sum *= steepness(scoring)
    store_tile(key_gradient, item, group, first, scoring.keys, key_sum, WIDTH, COLUMNS, BLOCK_WIDTH)
    store_tile(
        value_gradient, item, group, first, scoring.keys, value_sum, VALUE_WIDTH, COLUMNS, BLOCK_VALUE_WIDTH
    )


@triton.jit
def gather_from_keys(
    query_sum,
    query_tile,
    gradient_tile,
    top,
    factor,
    delta,
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
):
    """dQ (R, D) up to ``steepness`` and ``query_scale`` of a block of queries after the keys start to stop."""
    group = head // scoring.group
    rows = (first + tl.arange(0, ROWS))[:, None]
    for place in range(start, stop, COLUMNS):
        key_tile = load_tile(key, item, group, place, scoring.keys, WIDTH, COLUMNS, BLOCK_WIDTH, MASKED)
        value_tile = load_tile(
            value, item, group, place, scoring.keys, VALUE_WIDTH, COLUMNS, BLOCK_VALUE_WIDTH, MASKED
        )
        columns = (place + tl.arange(0, COLUMNS))[None, :]
        product = tl.dot(query_tile, tl.trans(key_tile), input_precision=PRECISION)
        weights, slope = weights_and_slope(product, scoring, item, head, rows, columns, top, factor, MASKED)
        weight_gradients = tl.dot(gradient_tile, tl.trans(value_tile), input_precision=PRECISION)
        score_gradients = weights * (weight_gradients - delta) * slope
        query_sum = tl.dot(score_gradients.to(key_tile.dtype), key_tile, query_sum, input_precision=PRECISION)
    return query_sum


@triton.jit
def query_gradients(
    query,
    key,
    value,
    context_gradient,
    row_top,
    row_factor,
    correction,
    query_gradient,
    scoring,
    items,
    heads,
    length,
    WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
    BLOCK_VALUE_WIDTH: tl.constexpr,
    PRECISION: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """dQ of one block of queries: a walk over keys as in the forward kernel, in the same order of work."""
    blocks = tl.cdiv(scoring.queries, ROWS)
    if scoring.is_causal:
        first = (blocks - 1 - tl.program_id(0) // (heads * items)) * ROWS
        place = tl.program_id(0) % (heads * items)
    else:
        first = tl.program_id(0) % blocks * ROWS
        place = tl.program_id(0) // blocks
    item, head = place // heads, place % heads
    query_tile = load_tile(query, item, head, first, scoring.queries, WIDTH, ROWS, BLOCK_WIDTH, True)
    query_tile = scaled_query(query_tile, scoring)
    gradient_tile = load_tile(
        context_gradient, item, head, first, scoring.queries, VALUE_WIDTH, ROWS, BLOCK_VALUE_WIDTH, True
    )
    rows = first + tl.arange(0, ROWS)
    places = place.to(tl.int64) * scoring.queries + rows
    inside = rows < scoring.queries
    top = tl.load(row_top + places, mask=inside, other=0.0)[:, None]
    factor = tl.load(row_factor + places, mask=inside, other=0.0)[:, None]
    delta = tl.load(correction + places, mask=inside, other=0.0)[:, None]
    query_sum = tl.zeros((ROWS, BLOCK_WIDTH), tl.float32)
    start, stop = key_span(scoring, item, first, ROWS)
    whole_start, whole_stop = whole_key_span(scoring, item, first, start, stop, ROWS, COLUMNS)
    if scoring.has_window:
        query_sum = gather_from_keys(
            query_sum, query_tile, gradient_tile, top, factor, delta, key, value, scoring, item, head, first,
            start, whole_start,
            WIDTH, VALUE_WIDTH, BLOCK_WIDTH, BLOCK_VALUE_WIDTH, ROWS, COLUMNS, PRECISION, True,
        )  # fmt: skip
    query_sum = gather_from_keys(
        query_sum, query_tile, gradient_tile, top, factor, delta, key, value, scoring, item, head, first,
        whole_start, whole_stop,
        WIDTH, VALUE_WIDTH, BLOCK_WIDTH, BLOCK_VALUE_WIDTH, ROWS, COLUMNS, PRECISION, False,
    )  # fmt: skip
    query_sum = gather_from_keys(
        query_sum, query_tile, gradient_tile, top, factor, delta, key, value, scoring, item, head, first,
        whole_stop, stop,
        WIDTH, VALUE_WIDTH, BLOCK_WIDTH, BLOCK_VALUE_WIDTH, ROWS, COLUMNS, PRECISION, True,
    )  # fmt: skip
    query_sum *= steepness(scoring) * scoring.query_scale
    store_tile(query_gradient, item, head, first, scoring.queries, query_sum, WIDTH, ROWS, BLOCK_WIDTH)


# ---- tiles -------------------------------------------------------------------------------------------------


def query_configs(chip: Chip, inputs: Inputs) -> list[triton.Config]:
    """Tiles of ``query_gradients`` that the autotuner tries, from those that compile without spills."""
    if inputs.precision == "tf32x3":
        tiles = {64: [(32, 32, 4, 1), (32, 32, 8, 1)], 128: [(16, 16, 8, 1), (16, 16, 4, 1)]}
    elif inputs.element_size == 4:
        tiles = {64: [(32, 32, 4, 1), (32, 32, 8, 1)], 128: [(32, 16, 8, 1)], 256: [(16, 16, 8, 1)]}
    else:
        tiles = {
            64: [(64, 64, 4, 2), (128, 64, 8, 2)],
            128: [(64, 64, 8, 2), (64, 32, 4, 2)],
            256: [(32, 32, 4, 1)],
        }
    return [backward_config(*tile) for tile in tiles[inputs.width_class]]


def key_value_configs(chip: Chip, inputs: Inputs) -> list[triton.Config]:
    """Tiles of ``key_value_gradients``, which holds two sums and two tiles in registers and so takes smaller ones."""
    if inputs.precision == "tf32x3":
        tiles = {64: [(32, 32, 8, 1), (16, 32, 4, 1)], 128: [(16, 16, 8, 1)]}
    elif inputs.element_size == 4:
        large = (32, 32, 8, 1) if chip.capability >= (9, 0) else (32, 32, 4, 1)
        tiles = {
            64: [large, (16, 32, 4, 1)],
            128: [(16, 32, 8, 1), (16, 16, 8, 1)],
            256: [(16, 16, 8, 1)],
        }
    elif chip.capability >= (9, 0):
        tiles = {
            64: [(32, 128, 8, 2), (64, 64, 8, 2), (32, 64, 4, 2)],
            128: [(32, 64, 8, 1), (32, 32, 8, 2)],
            256: [(32, 32, 8, 1)],
        }
    else:
        tiles = {
            64: [(32, 64, 8, 2), (32, 32, 4, 2)],
            128: [(32, 64, 8, 2), (32, 32, 8, 2)],
            256: [(32, 32, 8, 1)],
        }
    return [backward_config(*tile) for tile in tiles[inputs.width_class]]


def backward_config(rows: int, columns: int, warps: int, stages: int) -> triton.Config:
    """One choice of tile."""
    return triton.Config({"ROWS": rows, "COLUMNS": columns}, num_warps=warps, num_stages=stages)


@functools.lru_cache(maxsize=64)
def _tuned(kernel: Any, chip: Chip, inputs: Inputs) -> Any:
    """A kernel behind an autotuner, which times its candidates at the first call of each class of length."""
    choices = {query_gradients: query_configs, key_value_gradients: key_value_configs}[kernel](chip, inputs)
    keys = ["length", "WIDTH", "VALUE_WIDTH"]
    return triton.autotune(configs=choices, key=keys, cache_results=True)(kernel)


# ---- launch ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gradients:
    """Gradients of what attention was given; None for what needs none."""

    query: Tensor | None
    key: Tensor | None
    value: Tensor | None
    sinks: Tensor | None


def backward_arguments(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    context_gradient: Tensor,
    rows: Rows,
    correction: Tensor,
    *,
    scoring: Scoring,
    precision: Precision = "ieee",
) -> dict[str, Any]:
    """The arguments that both kernels over tiles share."""
    width, value_width = query.shape[3], value.shape[3]
    return {
        "query": strided(query),
        "key": strided(key),
        "value": strided(value),
        "context_gradient": strided(context_gradient),
        "row_top": rows.top,
        "row_factor": rows.factor,
        "correction": correction,
        "scoring": kernel_scoring(scoring, query, key, scales_query=query.dtype == torch.float32),
        "heads": query.shape[1],
        "length": length_class(key.shape[2]),
        "WIDTH": width,
        "VALUE_WIDTH": value_width,
        "BLOCK_WIDTH": padded_width(width),
        "BLOCK_VALUE_WIDTH": padded_width(value_width),
        "PRECISION": input_precision(precision, query, value),
    }


def backward_pass(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    context: Tensor,
    rows: Rows,
    *,
    context_gradient: Tensor,
    lse_gradient: Tensor | None,
    scoring: Scoring,
    needed: tuple[bool, bool, bool, bool] = (True, True, True, True),
    precision: Precision = "ieee",
    config: triton.Config | None = None,
) -> Gradients:
    """Gradients of query, key, value and sinks, each in its own dtype, in O(n · d) memory.

    Args:
        context, rows: what the forward pass gave, with ``top`` and ``factor`` filled.
        context_gradient: (B, H, Q, E); lse_gradient: (B, H, Q) or None.
        needed: whether query, key, value, sinks need one.
        config: tile; None tunes on a GPU, and takes one fixed tile in the interpreter.
    """
    batch, heads, queries, _ = query.shape
    groups, keys = key.shape[1], key.shape[2]
    correction = _corrections(context, context_gradient, lse_gradient)
    arguments = backward_arguments(
        query, key, value, context_gradient, rows, correction, scoring=scoring, precision=precision
    )
    inputs = Inputs.of(query, key, value, scoring, precision)

    def run(kernel: Any, positions: int, axis: str, programs: int, **outputs: Any) -> None:
        def grid(meta: dict[str, Any]) -> tuple[int]:
            return (triton.cdiv(positions, meta[axis]) * programs,)

        with on_device_of(query):
            if config is None and not interpreted():
                tuned = _tuned(kernel, Chip.of(query.device), inputs)
                tuned[grid](**arguments, **outputs, enable_fp_fusion=True)
            else:
                launch(kernel, grid, arguments | outputs, config or backward_config(64, 64, 4, 1))
        worked(batch * heads * queries * keys)

    query_gradient = key_gradient = value_gradient = None
    if needed[0]:
        query_gradient = query.new_empty(query.shape)
        outputs = {"query_gradient": strided(query_gradient), "items": batch}
        run(query_gradients, queries, "ROWS", heads * batch, **outputs)
    if needed[1] or needed[2]:
        key_gradient, value_gradient = key.new_empty(key.shape), value.new_empty(value.shape)
        outputs = {"key_gradient": strided(key_gradient), "value_gradient": strided(value_gradient)}
        run(key_value_gradients, keys, "COLUMNS", groups * batch, **outputs)
    sinks = _sink_gradient(scoring.sinks, rows, correction) if needed[3] else None
    return Gradients(query_gradient, key_gradient, value_gradient, sinks)


def _corrections(context: Tensor, context_gradient: Tensor, lse_gradient: Tensor | None) -> Tensor:
    """δ (B, H, Q) in float32."""
    batch, heads, queries, width = context.shape
    correction = context.new_empty(batch, heads, queries, dtype=torch.float32)
    rows = 64
    arguments = {
        "context": strided(context),
        "context_gradient": strided(context_gradient),
        "lse_gradient": None if lse_gradient is None else lse_gradient.contiguous(),
        "correction": correction,
        "queries": queries,
        "heads": heads,
        "VALUE_WIDTH": width,
        "BLOCK_VALUE_WIDTH": padded_width(width),
        "HAS_LSE_GRADIENT": lse_gradient is not None,
    }
    grid = (triton.cdiv(queries, rows) * heads * batch,)
    with on_device_of(context):
        launch(row_corrections, grid, arguments, triton.Config({"ROWS": rows}, num_warps=4, num_stages=1))
    return correction


def _sink_gradient(sinks: Tensor | None, rows: Rows, correction: Tensor) -> Tensor | None:
    """(H,) −Σ weight of the sink · δ: a sink has no value, so its dP is 0. In float64, since it sums all rows."""
    if sinks is None:
        return None
    scores = sinks.double()[:, None] / LN2.value  # (H, 1) in base two
    weights = torch.exp2(scores - rows.top.double()) * rows.factor.double()
    return -(weights * correction.double()).sum((0, 2)).to(sinks.dtype)
