"""Triton kernels that read an attention map row by row: what each query does, values by its weights, its best keys.

A program keeps one block of queries and walks over the key tiles that the rule lets it see. Weights are
P[i, j] = exp2(score − lse) with both in base two; no tile waits for another, since the log-sum-exp is known. What is
asked of a row is summed as the tiles pass, so that nothing of size Q × K stands.
"""

from __future__ import annotations

import triton
import triton.language as tl

from attn_core.flash.triton_common import (
    LOG2E,
    allowed_pairs,
    biased_scores,
    key_span,
    load_tile,
    scaled_scores,
    whole_key_span,
)


@triton.jit
def row_levels(lse, item, head, heads, rows, queries):
    """(R,) log-sum-exp of rows in base two; +∞, which makes weights 0, where nothing is allowed and past the end."""
    pointers = lse + (item.to(tl.int64) * heads + head) * queries + rows
    level = tl.load(pointers, mask=rows < queries, other=float("-inf"))
    return tl.where(level == float("-inf"), float("inf"), level * LOG2E)


@triton.jit
def logs_of_products(product, level, scoring, item, head, rows, columns, MASKED: tl.constexpr):
    """Logarithms of weights in base two, of products q · k; −∞ where not allowed.

    Args:
        level, rows, columns: log-sum-exp of ``row_levels`` and positions, which broadcast to the products.
        MASKED: whether pairs have to be asked; False inside of ``whole_key_span``.
    """
    logs = biased_scores(scaled_scores(product, scoring), scoring, item, head, rows, columns) - level
    if MASKED:
        logs = tl.where(allowed_pairs(scoring, item, rows, columns), logs, float("-inf"))
    return logs


@triton.jit
def log_weights(
    q, k, level, scoring, item, head, rows, columns, MASKED: tl.constexpr, PRECISION: tl.constexpr
):
    """(R, C) ``logs_of_products`` of a query tile and a key tile; ``level`` and ``rows`` (R,), ``columns`` (C,)."""
    product = tl.dot(q, tl.trans(k), input_precision=PRECISION)
    return logs_of_products(
        product, level[:, None], scoring, item, head, rows[:, None], columns[None, :], MASKED
    )


@triton.jit
def gathered_rows(matrix, item, head, places, inside, WIDTH: tl.constexpr, PADDED: tl.constexpr):
    """(N, PADDED) rows of a matrix at any places; 0 where not ``inside`` and from column WIDTH on."""
    corner = matrix.pointer + item.to(tl.int64) * matrix.item + head.to(tl.int64) * matrix.head
    column = tl.arange(0, PADDED)
    pointers = corner + places[:, None].to(tl.int64) * matrix.row + column[None, :] * matrix.column
    return tl.load(pointers, mask=inside[:, None] & (column[None, :] < WIDTH), other=0.0)


@triton.jit
def _add_applied(
    sums, q, key, values, level, scoring, item, head, rows, start, stop, features,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, COLUMNS: tl.constexpr, FEATURES: tl.constexpr, MASKED: tl.constexpr,
    PRECISION: tl.constexpr, MIXING: tl.constexpr,
):  # fmt: skip
    for first in tl.range(start, stop, COLUMNS):
        columns = first + tl.arange(0, COLUMNS)
        k = load_tile(key, item, head // scoring.group, first, scoring.keys, WIDTH, COLUMNS, PADDED, MASKED)
        weights = tl.exp2(log_weights(q, k, level, scoring, item, head, rows, columns, MASKED, PRECISION))
        feature = tl.arange(0, FEATURES)
        corner = values.pointer + item.to(tl.int64) * values.item + head.to(tl.int64) * values.head
        pointers = corner + columns[:, None].to(tl.int64) * values.row + feature[None, :] * values.column
        inside = (columns[:, None] < scoring.keys) & (feature[None, :] < features)
        value = tl.load(pointers, mask=inside, other=0.0)
        sums = tl.dot(weights, value, sums, input_precision=MIXING)
    return sums


@triton.jit
def apply_kernel(
    query, key, lse, values, out, scoring, heads, features,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, FEATURES: tl.constexpr,
    PRECISION: tl.constexpr, MIXING: tl.constexpr,
):  # fmt: skip
    """``out`` (B, H, Q, F) = weights @ ``values`` (B, H, K, F by strides); F = ``features`` ≤ FEATURES ≥ 16."""
    first_row = tl.program_id(0) * ROWS
    item = tl.program_id(1) // heads
    head = tl.program_id(1) % heads
    rows = first_row + tl.arange(0, ROWS)
    q = load_tile(query, item, head, first_row, scoring.queries, WIDTH, ROWS, PADDED, True)
    level = row_levels(lse, item, head, heads, rows, scoring.queries)
    sums = tl.zeros((ROWS, FEATURES), tl.float32)
    start, stop = key_span(scoring, item, first_row, ROWS)
    whole_start, whole_stop = whole_key_span(scoring, item, first_row, start, stop, ROWS, COLUMNS)
    if scoring.has_window:
        sums = _add_applied(
            sums, q, key, values, level, scoring, item, head, rows, start, whole_start, features,
            WIDTH, PADDED, COLUMNS, FEATURES, True, PRECISION, MIXING,
        )  # fmt: skip
    if not (scoring.has_key_valid or scoring.has_documents):
        sums = _add_applied(
            sums, q, key, values, level, scoring, item, head, rows, whole_start, whole_stop, features,
            WIDTH, PADDED, COLUMNS, FEATURES, False, PRECISION, MIXING,
        )  # fmt: skip
    sums = _add_applied(
        sums, q, key, values, level, scoring, item, head, rows, whole_stop, stop, features,
        WIDTH, PADDED, COLUMNS, FEATURES, True, PRECISION, MIXING,
    )  # fmt: skip
    feature = tl.arange(0, FEATURES)
    at = ((item.to(tl.int64) * heads + head) * scoring.queries + rows[:, None]) * features + feature[None, :]
    tl.store(out + at, sums, mask=(rows[:, None] < scoring.queries) & (feature[None, :] < features))


@triton.jit
def top_links_kernel(
    query, key, lse, values, places, scoring, heads, count,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, KEPT: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """``values`` and ``places`` (B, H, Q, count): the strongest keys of each row in any order; count ≤ KEPT.

    A row with fewer allowed keys has places below 0 for the rest. A tile gives its largest to the rows that it
    is news for, until there is none: after the first tiles that is once or twice, not count times, and sorting a
    tile would take longer than making it.
    """
    first_row = tl.program_id(0) * ROWS
    item = tl.program_id(1) // heads
    head = tl.program_id(1) % heads
    rows = first_row + tl.arange(0, ROWS)
    q = load_tile(query, item, head, first_row, scoring.queries, WIDTH, ROWS, PADDED, True)
    level = row_levels(lse, item, head, heads, rows, scoring.queries)
    rank = tl.arange(0, KEPT)[None, :] + tl.zeros((ROWS, 1), tl.int32)
    kept = tl.where(rank < count, float("-inf"), float("inf"))  # what is padding is never given up
    kept_places = -1 - rank
    start, stop = key_span(scoring, item, first_row, ROWS)
    for first in tl.range(start, stop, COLUMNS):
        columns = first + tl.arange(0, COLUMNS)[None, :]
        k = load_tile(key, item, head // scoring.group, first, scoring.keys, WIDTH, COLUMNS, PADDED, True)
        product = tl.dot(q, tl.trans(k), input_precision=PRECISION)
        logs = logs_of_products(product, level[:, None], scoring, item, head, rows[:, None], columns, True)
        best = tl.max(logs, axis=1)
        floor = tl.min(kept, axis=1)
        while tl.max((best > floor).to(tl.int32), axis=0) > 0:
            place = tl.min(tl.where(logs == best[:, None], columns, 2147483647), axis=1)
            # What it takes the place of: the smallest and, of equal ones, the last key.
            is_floor = kept == floor[:, None]
            last = tl.max(tl.where(is_floor, kept_places, -2147483648), axis=1)
            slot = is_floor & (kept_places == last[:, None]) & (best > floor)[:, None]
            kept = tl.where(slot, best[:, None], kept)
            kept_places = tl.where(slot, place[:, None], kept_places)
            logs = tl.where(columns == place[:, None], float("-inf"), logs)
            best = tl.max(logs, axis=1)
            floor = tl.min(kept, axis=1)
    at = ((item.to(tl.int64) * heads + head) * scoring.queries + rows[:, None]) * count + rank
    inside = (rows[:, None] < scoring.queries) & (rank < count)
    tl.store(values + at, tl.exp2(kept), mask=inside)
    tl.store(places + at, kept_places, mask=inside)


@triton.jit
def block_kernel(
    query, key, lse, out, scoring, heads, row_start, row_stop, column_start, column_stop,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """``out`` (B, H, r, c): the weights of a rectangle, tile by tile."""
    first_row = row_start + tl.program_id(0) * ROWS
    first = column_start + tl.program_id(1) * COLUMNS
    item = tl.program_id(2) // heads
    head = tl.program_id(2) % heads
    rows = first_row + tl.arange(0, ROWS)
    columns = first + tl.arange(0, COLUMNS)
    q = load_tile(query, item, head, first_row, scoring.queries, WIDTH, ROWS, PADDED, True)
    k = load_tile(key, item, head // scoring.group, first, scoring.keys, WIDTH, COLUMNS, PADDED, True)
    level = row_levels(lse, item, head, heads, rows, scoring.queries)
    weights = tl.exp2(log_weights(q, k, level, scoring, item, head, rows, columns, True, PRECISION))
    height = row_stop - row_start
    at = ((item.to(tl.int64) * heads + head) * height + (rows[:, None] - row_start)) * (
        column_stop - column_start
    )
    at += columns[None, :] - column_start
    tl.store(out + at, weights, mask=(rows[:, None] < row_stop) & (columns[None, :] < column_stop))
