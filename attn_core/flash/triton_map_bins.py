"""Triton kernel that reduces an attention map to bins of rows × bins of keys."""

from __future__ import annotations

import triton
import triton.language as tl

from attn_core.flash.triton_map_rows import gathered_rows, log_weights, row_levels


@triton.jit
def _is_out_of_reach(scoring, item, first_row, stop_row, first_column, stop_column):
    """Whether the rule excludes a whole rectangle, by causal order and window alone."""
    shift = scoring.keys - scoring.queries
    excluded = (stop_row <= first_row) | (stop_column <= first_column)
    if scoring.is_causal:
        future = first_column > stop_row - 1 + shift
        if scoring.has_prefix:
            future = future & (first_column >= tl.load(scoring.prefix + item * scoring.prefix_item))
        excluded = excluded | future
    elif scoring.has_window:
        excluded = excluded | (first_column >= stop_row - 1 + shift + scoring.window)
    if scoring.has_window:
        excluded = excluded | (stop_column - 1 <= first_row + shift - scoring.window)
    return excluded


@triton.jit
def pooled_kernel(
    query, key, lse, row_bins, column_bins, out, scoring, heads, row_count, column_count, height, width,
    WIDTH: tl.constexpr, PADDED: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, MEAN: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """``out`` (B, H, b, d): the largest weight of each rectangle, or the mean.

    ``row_bins`` (b, 2) and ``column_bins`` (d, 2) int32 hold the first place of each bin and one past its last; the
    longest have ``height`` and ``width``. A tile takes one place of each of its bins, then the next of each: so bins
    may have any size and overlap, and nothing is reduced inside of a tile. The largest is sought among logarithms,
    of which only the winner is exponentiated.
    """
    row_bin = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column_bin = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    item = tl.program_id(2) // heads
    head = tl.program_id(2) % heads
    row_start = tl.load(row_bins + 2 * row_bin, mask=row_bin < row_count, other=2147483647)
    row_stop = tl.load(row_bins + 2 * row_bin + 1, mask=row_bin < row_count, other=0)
    column_start = tl.load(column_bins + 2 * column_bin, mask=column_bin < column_count, other=2147483647)
    column_stop = tl.load(column_bins + 2 * column_bin + 1, mask=column_bin < column_count, other=0)
    excluded = _is_out_of_reach(
        scoring,
        item,
        tl.min(row_start, 0),
        tl.max(row_stop, 0),
        tl.min(column_start, 0),
        tl.max(column_stop, 0),
    )
    cells = tl.full((ROWS, COLUMNS), 0.0 if MEAN else float("-inf"), tl.float32)
    for down in tl.range(0, tl.where(excluded, 0, height)):
        here = row_bin < row_count
        rows = tl.where(here, row_start + down, scoring.queries)
        rows = tl.where(rows < row_stop, rows, scoring.queries)  # past the last query: no weight
        q = gathered_rows(query, item, head, rows, rows < scoring.queries, WIDTH, PADDED)
        level = row_levels(lse, item, head, heads, rows, scoring.queries)
        for along in tl.range(0, width):
            columns = tl.where(column_bin < column_count, column_start + along, scoring.keys)
            columns = tl.where(columns < column_stop, columns, scoring.keys)
            k = gathered_rows(
                key, item, head // scoring.group, columns, columns < scoring.keys, WIDTH, PADDED
            )
            logs = log_weights(q, k, level, scoring, item, head, rows, columns, True, PRECISION)
            cells = cells + tl.exp2(logs) if MEAN else tl.maximum(cells, logs)
    if MEAN:
        size = (row_stop - row_start)[:, None].to(tl.float32) * (column_stop - column_start)[None, :].to(
            tl.float32
        )
        cells = cells / size
    else:
        cells = tl.exp2(cells)
    at = ((item.to(tl.int64) * heads + head) * row_count + row_bin[:, None]) * column_count + column_bin[
        None, :
    ]
    tl.store(out + at, cells, mask=(row_bin[:, None] < row_count) & (column_bin[None, :] < column_count))
