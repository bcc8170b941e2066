"""Triton kernel that takes all statistics of an attention map in one walk over its tiles.

Since the log-sum-exp is known, the numbers of a row are sums over its keys, and those of a key sums over its rows: a
tile is made once and gives to both. Rows are summed in registers. What a tile gives its keys is added to lines of
memory that belong to the program alone, so nothing is added atomically and the same numbers come out of every run.
"""

from __future__ import annotations

import triton
import triton.language as tl

from attn_core.flash.triton_common import LN2, key_span, load_tile, whole_key_span
from attn_core.flash.triton_map_columns import load_factor
from attn_core.flash.triton_map_rows import gathered_rows, logs_of_products, row_levels

LOWEST: tl.constexpr = tl.constexpr(-1e4)
"""Stands for −∞ where a logarithm is multiplied by its own exponential, which is 0 from −150 on."""


@triton.jit
def _load_positions(pointer, places, count):
    return tl.load(pointer + places, mask=places < count, other=0.0)


@triton.jit
def _load_factors_and_one(left, item, head, rows, queries, count, LINES: tl.constexpr):
    """(R, LINES) what rows are multiplied with for each line: first 1, then ``count`` factors, then 0."""
    corner = left.pointer + item.to(tl.int64) * left.item + head.to(tl.int64) * left.head
    factor = tl.arange(0, LINES)[None, :] - 1
    inside = (rows[:, None] < queries) & (factor >= 0) & (factor < count)
    pointers = corner + factor.to(tl.int64) * left.row + rows[:, None] * left.column
    return tl.where(factor < 0, 1.0, tl.load(pointers, mask=inside, other=0.0))


# Tensor cores leave a thread keys that are 8 or 16 times the number of warps apart. Rows are summed over these at
# once, and over the 8 × warps others when all tiles have passed: no thread waits for another in between.


@triton.jit
def _parted(tile, WARPS: tl.constexpr):
    """(C, R) as (C / 16 W, W, 2, 8, R): a thread has what lies along the first and the third axis."""
    return tl.reshape(tile, (tile.shape[0] // (16 * WARPS), WARPS, 2, 8, tile.shape[1]))


@triton.jit
def _summed(tile, WARPS: tl.constexpr):
    """(W, 8, R) sums of a tile (C, R) over the keys that a thread has."""
    return tl.sum(tl.sum(_parted(tile, WARPS), axis=2), axis=0)


@triton.jit
def _all(sums):
    """(R,) sums of (W, 8, R)."""
    return tl.sum(tl.sum(sums, axis=0), axis=0)


@triton.jit
def _top(largest):
    """(R,) the largest of (W, 8, R)."""
    return tl.max(tl.max(largest, axis=0), axis=0)


@triton.jit
def _largest(logs, columns, largest, strongest, WARPS: tl.constexpr):
    """The largest so far, (W, 8, R), and the first key that has it; a later tile has to be larger to count."""
    parted = _parted(logs, WARPS)
    here = tl.max(tl.max(parted, axis=2), axis=0)
    keys = _parted(columns[:, None], WARPS)
    place = tl.where(parted == here[None, :, None, :, :], keys, 2147483647)
    place = tl.min(tl.min(place, axis=2), axis=0)
    return tl.maximum(here, largest), tl.where(here > largest, place, strongest)


@triton.jit
def _store_largest(weight, place, largest, strongest, inside):
    top = _top(largest)
    keys = tl.where(largest == top[None, None, :], strongest, 2147483647)
    tl.store(weight, tl.exp2(top), mask=inside)
    tl.store(place, tl.min(tl.min(keys, axis=0), axis=0), mask=inside)


@triton.jit
def _add_tiles(
    sums, lines, q, key, level, factors, row_x, row_y, column_x, column_y, counted, barred, scoring, item, head, rows,
    start, stop, count,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, COLUMNS: tl.constexpr, LINES: tl.constexpr, WARPS: tl.constexpr,
    MASKED: tl.constexpr, PRECISION: tl.constexpr, MIXING: tl.constexpr, DETAILED: tl.constexpr, GRID: tl.constexpr,
    COUNTED: tl.constexpr, BARRED: tl.constexpr,
):  # fmt: skip
    """``sums`` of rows with the key tiles from ``start`` to ``stop``, which add to the ``lines`` of their keys."""
    entropy, squares, distance, direction, largest, strongest, largest_open, strongest_open = sums
    for first in tl.range(start, stop, COLUMNS):
        columns = first + tl.arange(0, COLUMNS)
        inside = columns < scoring.keys
        k = load_tile(key, item, head // scoring.group, first, scoring.keys, WIDTH, COLUMNS, PADDED, MASKED)
        # Asked for before the tile is made, so that they are there when it is.
        received = tl.load(lines + columns, mask=inside, other=0.0)
        if LINES == 2:
            rolled = tl.load(lines + scoring.keys + columns, mask=inside, other=0.0)
        product = tl.dot(k, tl.trans(q), input_precision=PRECISION)
        logs = logs_of_products(
            product, level[None, :], scoring, item, head, rows[None, :], columns[:, None], MASKED
        )  # (C, R)
        if DETAILED:
            largest, strongest = _largest(logs, columns, largest, strongest, WARPS)
        else:
            largest = tl.maximum(largest, tl.max(tl.max(_parted(logs, WARPS), axis=2), axis=0))
        if BARRED:
            open_logs = logs + _load_positions(barred, columns, scoring.keys)[:, None]
            largest_open, strongest_open = _largest(open_logs, columns, largest_open, strongest_open, WARPS)
        if MASKED or scoring.has_bias:
            logs = tl.maximum(logs, LOWEST)
        weights = tl.exp2(logs)
        # What keys receive.
        if LINES <= 2:
            tl.store(lines + columns, received + tl.sum(weights, axis=1), mask=inside)
        if LINES == 2:
            rolled += tl.sum(weights * factors[None, :], axis=1)
            tl.store(lines + scoring.keys + columns, rolled, mask=inside)
        elif LINES > 2:
            line = tl.arange(0, LINES)
            here = lines + line[None, :].to(tl.int64) * scoring.keys + columns[:, None]
            present = inside[:, None] & (line[None, :] <= count)
            gathered = tl.load(here, mask=present, other=0.0)
            gathered = tl.dot(weights, factors, gathered, input_precision=MIXING)
            tl.store(here, gathered, mask=present)
        # What rows do.
        entropy -= _summed(weights * logs, WARPS)
        if DETAILED:
            squares += _summed(weights * weights, WARPS)
        if COUNTED:
            weights *= _load_positions(counted, columns, scoring.keys)[:, None]
        along = _load_positions(column_x, columns, scoring.keys)[:, None] - row_x[None, :]
        if GRID:
            down = _load_positions(column_y, columns, scoring.keys)[:, None] - row_y[None, :]
            distance += _summed(weights * tl.sqrt(along * along + down * down), WARPS)
        else:
            distance += _summed(weights * tl.abs(along), WARPS)
            if DETAILED:
                direction += _summed(weights * along, WARPS)
    return entropy, squares, distance, direction, largest, strongest, largest_open, strongest_open


@triton.jit
def statistics_kernel(
    query, key, lse, left, found, places, lines, row_x, row_y, column_x, column_y, counted, barred, scoring, heads,
    plane, count,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, LINES: tl.constexpr,
    WARPS: tl.constexpr, PRECISION: tl.constexpr, MIXING: tl.constexpr, DETAILED: tl.constexpr, GRID: tl.constexpr,
    COUNTED: tl.constexpr, BARRED: tl.constexpr,
):  # fmt: skip
    """Numbers of each row and of each key; a program takes every so many blocks of queries, one after the other.

    Args:
        left: (B, H, R, Q by strides) factors of the rows; R is ``count``.
        found: (6, B, H, Q), written: entropy, distance, largest weight; if DETAILED Σ weight² and direction; if
            BARRED the largest weight of keys that are not barred.
        places: (2, B, H, Q), written: first keys of the two largest, likewise.
        lines: (P, B, H, 1 + R, K), which begin with 0 and are added to: weight that each key receives from the
            queries of a program of the first axis of the grid, and ``left`` @ weights of these.
        plane: B · H · Q.
        LINES: 1 + R, or a power of two from 16 on that holds it.
    """
    queries = scoring.queries
    pair = tl.program_id(1)
    item, head = pair // heads, pair % heads
    own_lines = tl.program_id(0).to(tl.int64) * tl.num_programs(1) + pair
    lines += own_lines * (1 + count) * scoring.keys
    for block in tl.range(tl.program_id(0), tl.cdiv(queries, ROWS), tl.num_programs(0)):
        first_row = block * ROWS
        rows = first_row + tl.arange(0, ROWS)
        # By its rows: the addresses within a tile would be kept in registers from block to block.
        q = gathered_rows(query, item, head, rows, rows < queries, WIDTH, PADDED)
        level = row_levels(lse, item, head, heads, rows, queries)
        level = tl.where(level == float("inf"), -LOWEST, level)
        factors = level  # of no use, but a name needs a value
        if LINES == 2:
            factors = load_factor(left, item, head, rows, queries)
        elif LINES > 2:
            factors = _load_factors_and_one(left, item, head, rows, queries, count, LINES)
        x = _load_positions(row_x, rows, queries)
        y = x
        if GRID:
            y = _load_positions(row_y, rows, queries)
        zero = tl.zeros((WARPS, 8, ROWS), tl.float32)
        lowest = tl.full((WARPS, 8, ROWS), float("-inf"), tl.float32)
        nowhere = tl.zeros((WARPS, 8, ROWS), tl.int32)
        sums = (zero, zero, zero, zero, lowest, nowhere, lowest, nowhere)

        start, stop = key_span(scoring, item, first_row, ROWS)
        rest = start
        if not (scoring.has_key_valid or scoring.has_documents):  # else every tile needs a mask
            whole_start, whole_stop = whole_key_span(scoring, item, first_row, start, stop, ROWS, COLUMNS)
            if scoring.has_window:  # else there is nothing before the tiles that need none
                sums = _add_tiles(
                    sums, lines, q, key, level, factors, x, y, column_x, column_y, counted, barred, scoring, item,
                    head, rows, start, whole_start, count,
                    WIDTH, PADDED, COLUMNS, LINES, WARPS, True, PRECISION, MIXING, DETAILED, GRID, COUNTED, BARRED,
                )  # fmt: skip
            sums = _add_tiles(
                sums, lines, q, key, level, factors, x, y, column_x, column_y, counted, barred, scoring, item, head,
                rows, whole_start, whole_stop, count,
                WIDTH, PADDED, COLUMNS, LINES, WARPS, False, PRECISION, MIXING, DETAILED, GRID, COUNTED, BARRED,
            )  # fmt: skip
            rest = whole_stop
        sums = _add_tiles(
            sums, lines, q, key, level, factors, x, y, column_x, column_y, counted, barred, scoring, item, head,
            rows, rest, stop, count,
            WIDTH, PADDED, COLUMNS, LINES, WARPS, True, PRECISION, MIXING, DETAILED, GRID, COUNTED, BARRED,
        )  # fmt: skip

        entropy, squares, distance, direction, largest, strongest, largest_open, strongest_open = sums
        inside = rows < queries
        at = pair.to(tl.int64) * queries + rows
        tl.store(found + at, _all(entropy) * LN2, mask=inside)
        tl.store(found + plane + at, _all(distance), mask=inside)
        if DETAILED:
            tl.store(found + 3 * plane + at, _all(squares), mask=inside)
            tl.store(found + 4 * plane + at, _all(direction), mask=inside)
            _store_largest(found + 2 * plane + at, places + at, largest, strongest, inside)
        else:
            tl.store(found + 2 * plane + at, tl.exp2(_top(largest)), mask=inside)
        if BARRED:
            _store_largest(found + 5 * plane + at, places + plane + at, largest_open, strongest_open, inside)
        # A number of a line may be stored by one thread and loaded by another. The tiles of a block of queries hold
        # each key once, so one barrier a block is enough: nothing that a block has stored is loaded before the next.
        # Several threads may load the same number, and one of them after it was stored; that copy is used by nobody,
        # since what the storing thread adds to is its own, or passed a barrier before it was stored.
        tl.debug_barrier()


@triton.jit
def _paired_weights(
    q, key, level, scoring, item, head, rows, places, WIDTH: tl.constexpr, PADDED: tl.constexpr
):  # fmt: skip
    """(R,) weight of one key for each row, at ``places``; 0 where there is no such key."""
    inside = (places >= 0) & (places < scoring.keys)
    places = tl.where(inside, places, scoring.keys)
    k = gathered_rows(key, item, head // scoring.group, places, inside, WIDTH, PADDED)
    product = tl.sum(q.to(tl.float32) * k.to(tl.float32), axis=1)[:, None]
    logs = logs_of_products(
        product, level[:, None], scoring, item, head, rows[:, None], places[:, None], True
    )
    return tl.sum(tl.exp2(logs), axis=1)


@triton.jit
def neighbours_kernel(
    query, key, lse, found, scoring, heads, plane,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """``found`` (4, B, H, Q): weight of each row on its own place, the one before, the one after and key 0.

    Products of pairs, not of tiles: O(n · d), and no walk. ``plane`` is B · H · Q.
    """
    first_row = tl.program_id(0) * ROWS
    item = tl.program_id(1) // heads
    head = tl.program_id(1) % heads
    rows = first_row + tl.arange(0, ROWS)
    q = load_tile(query, item, head, first_row, scoring.queries, WIDTH, ROWS, PADDED, True)
    level = row_levels(lse, item, head, heads, rows, scoring.queries)
    at = (item.to(tl.int64) * heads + head) * scoring.queries + rows
    inside = rows < scoring.queries
    place = rows + (scoring.keys - scoring.queries)
    own = _paired_weights(q, key, level, scoring, item, head, rows, place, WIDTH, PADDED)
    tl.store(found + at, own, mask=inside)
    before = _paired_weights(q, key, level, scoring, item, head, rows, place - 1, WIDTH, PADDED)
    tl.store(found + plane + at, before, mask=inside)
    after = _paired_weights(q, key, level, scoring, item, head, rows, place + 1, WIDTH, PADDED)
    tl.store(found + 2 * plane + at, after, mask=inside)
    beginning = _paired_weights(q, key, level, scoring, item, head, rows, place * 0, WIDTH, PADDED)
    tl.store(found + 3 * plane + at, beginning, mask=inside)
