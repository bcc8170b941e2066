"""Triton kernels that read an attention map column by column, and those of relevance, in which heads meet.

A program keeps one block of keys and walks over the queries that may see it, so that it alone writes what its keys
receive: no atomic addition, and the same numbers in every run. Where the blocks are fewer than the processors, the
queries are split, each part writes sums of its own and the parts are added afterwards.
"""

from __future__ import annotations

import triton
import triton.language as tl

from attn_core.flash.triton_common import key_span, load_tile, query_span, whole_query_span
from attn_core.flash.triton_map_rows import logs_of_products, row_levels


@triton.jit
def split_span(start, stop, ROWS: tl.constexpr):
    """The part of a span of queries that this program of the third axis of the grid reads, in whole tiles."""
    part = tl.cdiv(tl.cdiv(tl.maximum(stop - start, 0), ROWS), tl.num_programs(2)) * ROWS
    own = start + tl.program_id(2) * part
    return own, tl.minimum(own + part, stop)


@triton.jit
def _load_factors(left, item, head, rows, queries, count, COUNT: tl.constexpr):
    """(R, COUNT) factors of rows: 0 past the last query and from ``count`` on."""
    corner = left.pointer + item.to(tl.int64) * left.item + head.to(tl.int64) * left.head
    factor = tl.arange(0, COUNT)
    pointers = corner + factor[None, :].to(tl.int64) * left.row + rows[:, None] * left.column
    return tl.load(pointers, mask=(rows[:, None] < queries) & (factor[None, :] < count), other=0.0)


@triton.jit
def load_factor(left, item, head, rows, queries):
    """(R,) the one factor of each row."""
    corner = left.pointer + item.to(tl.int64) * left.item + head.to(tl.int64) * left.head
    return tl.load(corner + rows * left.column, mask=rows < queries, other=0.0)


@triton.jit
def _add_columns(
    rolled, query, k, lse, left, scoring, item, head, heads, columns, start, stop, count,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, COUNT: tl.constexpr, MASKED: tl.constexpr,
    PRECISION: tl.constexpr, MIXING: tl.constexpr,
):  # fmt: skip
    for first in tl.range(start, stop, ROWS):
        rows = first + tl.arange(0, ROWS)
        q = load_tile(query, item, head, first, scoring.queries, WIDTH, ROWS, PADDED, MASKED)
        level = row_levels(lse, item, head, heads, rows, scoring.queries)
        # Keys first: sums over queries stay within a warp, and the tile is the left side of the product that follows.
        product = tl.dot(k, tl.trans(q), input_precision=PRECISION)
        logs = logs_of_products(
            product, level[None, :], scoring, item, head, rows[None, :], columns[:, None], MASKED
        )
        weights = tl.exp2(logs)  # (C, R)
        if COUNT == 1:
            rolled += tl.sum(weights * load_factor(left, item, head, rows, scoring.queries)[None, :], axis=1)
        else:
            factors = _load_factors(left, item, head, rows, scoring.queries, count, COUNT)
            rolled = tl.dot(weights, factors, rolled, input_precision=MIXING)
    return rolled


@triton.jit
def apply_left_kernel(
    query, key, lse, left, out, scoring, heads, pairs, count,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, COUNT: tl.constexpr,
    PRECISION: tl.constexpr, MIXING: tl.constexpr,
):  # fmt: skip
    """``out`` (S, B, H, R, K) = ``left`` (B, H, R, Q by strides) @ weights.

    S are the parts of the queries (third axis of the grid), ``pairs`` is B · H. R = ``count`` ≤ COUNT, which is 1 or
    at least 16.
    """
    first = tl.program_id(0) * COLUMNS
    item = tl.program_id(1) // heads
    head = tl.program_id(1) % heads
    columns = first + tl.arange(0, COLUMNS)
    k = load_tile(key, item, head // scoring.group, first, scoring.keys, WIDTH, COLUMNS, PADDED, True)
    if COUNT == 1:
        rolled = tl.zeros((COLUMNS,), tl.float32)
    else:
        rolled = tl.zeros((COLUMNS, COUNT), tl.float32)
    seen_start, seen_stop = query_span(scoring, item, first, COLUMNS)
    start, stop = split_span(seen_start, seen_stop, ROWS)
    whole_start, whole_stop = whole_query_span(scoring, item, first, start, stop, ROWS, COLUMNS)
    if scoring.is_causal or scoring.has_window:  # else there is nothing before the tiles that need no mask
        rolled = _add_columns(
            rolled, query, k, lse, left, scoring, item, head, heads, columns, start, whole_start, count,
            WIDTH, PADDED, ROWS, COUNT, True, PRECISION, MIXING,
        )  # fmt: skip
    if not (scoring.has_key_valid or scoring.has_documents):  # else every tile needs one
        rolled = _add_columns(
            rolled, query, k, lse, left, scoring, item, head, heads, columns, whole_start, whole_stop, count,
            WIDTH, PADDED, ROWS, COUNT, False, PRECISION, MIXING,
        )  # fmt: skip
    rolled = _add_columns(
        rolled, query, k, lse, left, scoring, item, head, heads, columns, whole_stop, stop, count,
        WIDTH, PADDED, ROWS, COUNT, True, PRECISION, MIXING,
    )  # fmt: skip
    pair = tl.program_id(2).to(tl.int64) * pairs + tl.program_id(1)
    inside = columns < scoring.keys
    if COUNT == 1:
        tl.store(out + pair * scoring.keys + columns, rolled, mask=inside)
    else:
        factor = tl.arange(0, COUNT)
        at = (pair * count + factor[None, :]) * scoring.keys + columns[:, None]
        tl.store(out + at, rolled, mask=inside[:, None] & (factor[None, :] < count))


@triton.jit
def relevance_tile(
    query, key, lse, gradient, value, scoring, item, heads, first_row, first, rows, columns,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, VALUE_WIDTH: tl.constexpr, VALUE_PADDED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr, VALUE_PRECISION: tl.constexpr,
    EACH_HEAD: tl.constexpr,
):  # fmt: skip
    """(C, R), keys first: mean over heads of weights ∘ gradient of the weights, with the negative part cut.

    The gradient of a weight is dO · Vᵀ, made beside it (Chefer et al. 2021).
    """
    fused = tl.zeros((COLUMNS, ROWS), tl.float32)
    for index in tl.range(0, heads):
        head = tl.cast(index, tl.int32)
        group = head // scoring.group
        q = load_tile(query, item, head, first_row, scoring.queries, WIDTH, ROWS, PADDED, True)
        k = load_tile(key, item, group, first, scoring.keys, WIDTH, COLUMNS, PADDED, True)
        level = row_levels(lse, item, head, heads, rows, scoring.queries)
        product = tl.dot(k, tl.trans(q), input_precision=PRECISION)
        logs = logs_of_products(
            product, level[None, :], scoring, item, head, rows[None, :], columns[:, None], True
        )
        slope = load_tile(
            gradient, item, head, first_row, scoring.queries, VALUE_WIDTH, ROWS, VALUE_PADDED, True
        )
        v = load_tile(value, item, group, first, scoring.keys, VALUE_WIDTH, COLUMNS, VALUE_PADDED, True)
        mixed = tl.exp2(logs) * tl.dot(v, tl.trans(slope), input_precision=VALUE_PRECISION)
        fused += tl.maximum(mixed, 0.0) if EACH_HEAD else mixed
    return tl.maximum(fused, 0.0) / heads


@triton.jit
def relevance_columns_kernel(
    query, key, lse, gradient, value, left, out, scoring, items, heads, count,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, VALUE_WIDTH: tl.constexpr, VALUE_PADDED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, COUNT: tl.constexpr, PRECISION: tl.constexpr,
    VALUE_PRECISION: tl.constexpr, MIXING: tl.constexpr, EACH_HEAD: tl.constexpr,
):  # fmt: skip
    """``out`` (S, B, R, K) = ``left`` (B, 1, R, Q by strides) @ tiles of ``relevance_tile``; S as above."""
    first = tl.program_id(0) * COLUMNS
    item = tl.program_id(1)
    columns = first + tl.arange(0, COLUMNS)
    if COUNT == 1:
        rolled = tl.zeros((COLUMNS,), tl.float32)
    else:
        rolled = tl.zeros((COLUMNS, COUNT), tl.float32)
    seen_start, seen_stop = query_span(scoring, item, first, COLUMNS)
    start, stop = split_span(seen_start, seen_stop, ROWS)
    for first_row in tl.range(start, stop, ROWS):
        rows = first_row + tl.arange(0, ROWS)
        fused = relevance_tile(
            query, key, lse, gradient, value, scoring, item, heads, first_row, first, rows, columns, WIDTH, PADDED,
            VALUE_WIDTH, VALUE_PADDED, ROWS, COLUMNS, PRECISION, VALUE_PRECISION, EACH_HEAD,
        )  # fmt: skip
        if COUNT == 1:
            rolled += tl.sum(
                fused * load_factor(left, item, item * 0, rows, scoring.queries)[None, :], axis=1
            )
        else:
            factors = _load_factors(left, item, item * 0, rows, scoring.queries, count, COUNT)
            rolled = tl.dot(fused, factors, rolled, input_precision=MIXING)
    inside = columns < scoring.keys
    pair = tl.program_id(2).to(tl.int64) * items + item
    if COUNT == 1:
        tl.store(out + pair * scoring.keys + columns, rolled, mask=inside)
    else:
        factor = tl.arange(0, COUNT)
        at = (pair * count + factor[None, :]) * scoring.keys + columns[:, None]
        tl.store(out + at, rolled, mask=inside[:, None] & (factor[None, :] < count))


@triton.jit
def relevance_rows_kernel(
    query, key, lse, gradient, value, out, scoring, heads,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, VALUE_WIDTH: tl.constexpr, VALUE_PADDED: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr, VALUE_PRECISION: tl.constexpr,
    EACH_HEAD: tl.constexpr,
):  # fmt: skip
    """``out`` (B, Q): sum of each row of what ``relevance_tile`` makes."""
    first_row = tl.program_id(0) * ROWS
    item = tl.program_id(1)
    rows = first_row + tl.arange(0, ROWS)
    sums = tl.zeros((ROWS,), tl.float32)
    start, stop = key_span(scoring, item, first_row, ROWS)
    for first in tl.range(start, stop, COLUMNS):
        columns = first + tl.arange(0, COLUMNS)
        fused = relevance_tile(
            query, key, lse, gradient, value, scoring, item, heads, first_row, first, rows, columns, WIDTH, PADDED,
            VALUE_WIDTH, VALUE_PADDED, ROWS, COLUMNS, PRECISION, VALUE_PRECISION, EACH_HEAD,
        )  # fmt: skip
        sums += tl.sum(fused, axis=0)
    tl.store(out + item.to(tl.int64) * scoring.queries + rows, sums, mask=rows < scoring.queries)
