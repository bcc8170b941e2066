"""What the Triton kernels share: a tile of scores, its mask, and which tiles a rule leaves out.

A kernel gets the whole of a layer's scoring as one ``KernelScoring``: numbers, addresses, and flags that are
constants of the compiled kernel. All scores inside kernels are in base two (times log₂ e), since the hardware has
exp2 alone; what leaves a kernel is in natural units again.

Written for Triton 3.6 to 3.9. A part that is not there is ``None`` beside a flag that says so: Triton 3.6 cannot
compare a member of a tuple with ``None`` in a function that a kernel calls.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from attn_core.bias import Bias, IndexedBias, RelativeBias, dense_bias
from attn_core.budget import budget_bytes, fits
from attn_core.flash.scoring import Scoring

try:
    import triton
    import triton.language as tl
except ImportError as error:
    raise ImportError(
        "attn_core.flash: the Triton kernels need the package triton, which is missing; install it with "
        "`pip install triton` (Linux), or use impl='tiled'."
    ) from error

Precision = Literal["ieee", "tf32x3"]
"""How float32 products are formed: exactly, or from three products of TF32. Never plain TF32: weights from it are off
by up to 0.03 where scores are large."""

WIDEST = 256
"""Widest head: a block of queries and its context have to stay in the registers of one program."""

WIDEST_THREEFOLD = 128
"""Widest head, padded, that three products of TF32 are taken for."""

DTYPES = (torch.float16, torch.bfloat16, torch.float32)

LOG2E: tl.constexpr = tl.constexpr(math.log2(math.e))
LN2: tl.constexpr = tl.constexpr(math.log(2.0))


class Strided(NamedTuple):
    """A tensor of four axes (item, head, row, column): its address and its strides, counted in numbers."""

    pointer: Any
    item: Any
    head: Any
    row: Any
    column: Any


class KernelScoring(NamedTuple):
    """``Scoring`` as kernels take it.

    Attributes:
        queries, keys: Q and K.
        group: query heads that share a key head, H / G.
        query_scale: of a query before the product (``scaled_query``), 1 unless the kernel asked for it.
        scale: of a product; log₂ e is in it, or in ``cap`` where scores are capped.
        cap: softcap · log₂ e.
        bias: (B, H, Q, K) by strides; 0 along axes that it does not have. A relative table has stride −s along
            queries and s along keys: its diagonals hold one number.
        window: as in ``MaskRule``.
        key_valid: (B, K) int8; key_valid_item: its stride, 0 where one row serves the batch.
        key_bounds: (B, 2) int32, the first valid key and one past the last; key_bounds_item: its stride.
        prefix: (B,) integers; prefix_item: its stride.
        is_plain: scores are products times a positive factor, so the largest product has the largest score.
        documents: (B, K) integers; document_bounds: (B, 2, K) int32, where each position's document begins and one
            past where it ends; documents_item: stride of ``documents``, half of that of the bounds.
    """

    queries: Any
    keys: Any
    group: Any
    query_scale: Any
    scale: Any
    cap: Any
    bias: Strided
    window: Any
    key_valid: Any
    key_valid_item: Any
    key_bounds: Any
    key_bounds_item: Any
    prefix: Any
    prefix_item: Any
    documents: Any
    documents_item: Any
    document_bounds: Any
    is_causal: Any
    is_plain: Any
    has_cap: Any
    has_bias: Any
    has_window: Any
    has_key_valid: Any
    has_prefix: Any
    has_documents: Any


# ---- on the host -------------------------------------------------------------------------------------------


def strided(tensor: Tensor) -> Strided:
    """A tensor (B, H, N, D) as kernels take it; strides are free, so no view has to be copied."""
    return Strided(tensor, *tensor.stride())


def kernel_scoring(
    scoring: Scoring, query: Tensor, key: Tensor, *, scales_query: bool = False
) -> KernelScoring:
    """What a kernel has to know about scores.

    Args:
        query, key: (B, H, Q, D) and (B, G, K, D) of the whole map.
        scales_query: the kernel multiplies queries by ``query_scale``, as the reference does. For float32 alone: half
            precision would round them.
    Raises:
        ValueError: for what the kernels cannot compute (``unsupported_scoring`` says what), or if a part of the rule,
            a bias or sinks are not as long as queries and keys: a kernel would read what lies behind them.
    """
    reason = unsupported_scoring(scoring, query, key)
    if reason is not None:
        raise ValueError(f"the Triton kernels cannot compute this because {reason}.")
    _check_lengths(scoring, query, key)
    queries, keys = query.shape[2], key.shape[2]
    rule, device = scoring.rule, query.device
    key_valid = None if rule.key_valid is None else rule.key_valid.to(device).contiguous()
    prefix = rule.prefix.to(device).contiguous() if rule.prefix is not None and rule.causal else None
    documents = None if rule.documents is None else rule.documents.to(device).contiguous()
    scale = scoring.scale * LOG2E.value if scoring.softcap is None else scoring.scale / scoring.softcap
    return KernelScoring(
        queries=queries,
        keys=keys,
        group=query.shape[1] // key.shape[1],
        query_scale=scale if scales_query else 1.0,
        scale=1.0 if scales_query else scale,
        cap=(scoring.softcap or 0.0) * LOG2E.value,
        bias=_strided_bias(scoring.bias, (query.shape[0], query.shape[1], queries, keys), device),
        window=rule.window or 0,
        key_valid=None if key_valid is None else key_valid.to(torch.int8),
        key_valid_item=_item_stride(key_valid),
        key_bounds=None if key_valid is None else _key_bounds(key_valid),
        key_bounds_item=0 if key_valid is None or len(key_valid) == 1 else 2,
        prefix=prefix,
        prefix_item=_item_stride(prefix),
        documents=documents,
        documents_item=_item_stride(documents),
        document_bounds=None if documents is None else _document_bounds(documents),
        is_causal=tl.constexpr(rule.causal),
        is_plain=tl.constexpr(
            (scoring.scale > 0.0 or scales_query) and scoring.softcap is None and scoring.bias is None
        ),
        has_cap=tl.constexpr(scoring.softcap is not None),
        has_bias=tl.constexpr(scoring.bias is not None),
        has_window=tl.constexpr(rule.window is not None),
        has_key_valid=tl.constexpr(key_valid is not None),
        has_prefix=tl.constexpr(prefix is not None),
        has_documents=tl.constexpr(documents is not None),
    )


def _check_lengths(scoring: Scoring, query: Tensor, key: Tensor) -> None:
    """Raise unless rule, relative bias and sinks belong to these queries and keys; other biases are expanded."""
    batch, heads, queries, keys = *query.shape[:3], key.shape[2]
    rule, bias = scoring.rule, scoring.bias
    wanted: dict[str, tuple[Tensor | None, tuple[int, ...]]] = {
        "rule.key_valid": (rule.key_valid, (batch, keys)),
        "rule.prefix": (rule.prefix, (batch,)),
        "rule.documents": (rule.documents, (batch, keys)),
        "sinks": (scoring.sinks, (heads,)),
    }
    for name, (tensor, shape) in wanted.items():
        if (
            tensor is None
            or tuple(tensor.shape) == shape
            or (name != "sinks" and tensor.shape == (1, *shape[1:]))
        ):
            continue
        raise ValueError(
            f"triton_attention: {name} must have shape {shape} but has {tuple(tensor.shape)}; pass the one that "
            "belongs to these queries and keys."
        )
    if not isinstance(bias, RelativeBias):
        return
    offset, (items, own_heads, distances) = _table_offset(bias), bias.table.shape
    fits_table = offset is None or queries - 1 <= offset <= distances - keys
    lengths = (len(bias.rows), len(bias.columns))
    if lengths != (queries, keys) or items not in (1, batch) or own_heads not in (1, heads) or not fits_table:
        raise ValueError(
            f"triton_attention: bias must be of {queries} queries and {keys} keys but is of {lengths[0]} and "
            f"{lengths[1]}, with a table {tuple(bias.table.shape)}; pass RelativeBias.of(table, queries=, keys=)."
        )


def unsupported_scoring(scoring: Scoring, query: Tensor, key: Tensor) -> str | None:
    """Why the kernels cannot make these scores, and what can; None when they can."""
    rule, bias = scoring.rule, scoring.bias
    if query.dtype not in DTYPES:
        return f"dtype is {query.dtype} and they take float16, bfloat16 and float32; impl='tiled' can"
    if not 0 < query.shape[3] <= WIDEST:
        return f"heads have width {query.shape[3]} and they take 1 to {WIDEST}; impl='tiled' can"
    if 0 in query.shape or 0 in key.shape:
        return "an axis is empty; impl='tiled' can"
    if rule.predicate is not None:
        return "the rule has a predicate, which is Python; impl='tiled' can"
    if rule.documents is not None and query.shape[2] > key.shape[2]:
        return "documents of queries before the first key are not known"
    if scoring.softcap is not None and scoring.softcap <= 0.0:
        return f"softcap is {scoring.softcap} and must be positive"
    if isinstance(bias, IndexedBias) or (isinstance(bias, RelativeBias) and _table_offset(bias) is None):
        size = bias.table.element_size() * query.shape[1] * query.shape[2] * key.shape[2]
        if not fits(size):
            return (
                f"the bias is read from a table by an index and written out takes {size / 2**20:,.0f} MiB, more than "
                f"the budget of {budget_bytes() / 2**20:,.0f} MiB; impl='tiled' can"
            )
    return None


def unsupported_here(query: Tensor) -> str | None:
    """Why the kernels cannot run on this tensor in this process; None when they can."""
    if query.dtype == torch.bfloat16 and interpreted():
        return "Triton's interpreter multiplies the bits of bfloat16 as if they were numbers; use float16 or float32"
    if query.device.type != "cuda" and not interpreted():
        return f"tensors are on {query.device.type} and Triton needs a GPU; impl='tiled' can"
    return None


def interpreted() -> bool:
    """Whether kernels run in Triton's interpreter; decided by TRITON_INTERPRET when this module was imported."""
    return not isinstance(tile_pointers, triton.runtime.JITFunction)


def padded_width(width: int) -> int:
    """The power of two that a kernel computes with for heads of this width; products need at least 16."""
    return max(16, triton.next_power_of_2(width))


def input_precision(precision: Precision, *matrices: Tensor) -> Precision:
    """The precision of products of matrices (B, H, N, D) in a kernel; only float32 leaves a choice.

    Wider heads than WIDEST_THREEFOLD are multiplied exactly: three products of TF32 hold both operands twice, for
    which a thread has no registers.
    """
    widest = max(padded_width(matrix.shape[3]) for matrix in matrices)
    return precision if matrices[0].dtype == torch.float32 and widest <= WIDEST_THREEFOLD else "ieee"


def length_class(keys: int) -> int:
    """The length that tiles are tuned for: one time of tuning serves all lengths of a class."""
    return 1024 if keys <= 1024 else 4096 if keys <= 4096 else 16384


def takes_descriptor(tensor: Tensor) -> bool:
    """Whether rows can be read through a tensor descriptor: they are whole and begin at multiples of 16 bytes."""
    steps = [tensor.data_ptr(), *(step * tensor.element_size() for step in tensor.stride()[:3])]
    return tensor.stride(3) == 1 and all(step % 16 == 0 for step in steps)


def allow_descriptors(device: torch.device) -> None:
    """Give Triton the memory in which kernels make their tensor descriptors."""
    triton.set_allocator(lambda size, _alignment, _stream: torch.empty(size, dtype=torch.int8, device=device))


def on_device_of(tensor: Tensor) -> AbstractContextManager[object]:
    """Inside the block kernels go to the GPU of ``tensor``; Triton takes the current one, whatever it is given."""
    return torch.cuda.device(tensor.device) if tensor.is_cuda else nullcontext()


def launch(kernel: Any, grid: Any, arguments: dict[str, Any], config: triton.Config) -> None:
    """Run a kernel with one fixed configuration.

    Args:
        grid: number of programs, or a function of the configuration that gives it.
    """
    if config.kwargs.get("DESCRIPTORS") and not interpreted():
        allow_descriptors(torch.device("cuda", torch.cuda.current_device()))
    # Fusing multiply and add is what Triton did before 3.10 and what the kernels' exactness counts on.
    kernel[grid](**arguments, **config.all_kwargs(), enable_fp_fusion=True)


def _item_stride(tensor: Tensor | None) -> int:
    return 0 if tensor is None or len(tensor) == 1 else tensor.stride(0)


def _key_bounds(key_valid: Tensor) -> Tensor:
    """(B, 2) first valid key and one past the last, of (B, K); (K, 0) where none is."""
    keys = key_valid.shape[1]
    places = torch.arange(keys, device=key_valid.device)
    first = places.masked_fill(~key_valid, keys).amin(1)
    last = (places + 1).masked_fill(~key_valid, 0).amax(1)
    return torch.stack([first, last], dim=1).to(torch.int32)


def _document_bounds(documents: Tensor) -> Tensor:
    """(B, 2, K) where the document of each position begins and one past where it ends, of (B, K)."""
    bounds = []
    for row in documents:
        names, of = row.unique(return_inverse=True)
        places = torch.arange(len(row), device=row.device)
        first = places.new_full((len(names),), len(row)).scatter_reduce(0, of, places, "amin")
        last = places.new_zeros(len(names)).scatter_reduce(0, of, places + 1, "amax")
        bounds.append(torch.stack([first[of], last[of]]))
    return torch.stack(bounds).to(torch.int32)


def _table_offset(bias: RelativeBias) -> int | None:
    """Place in the table of query 0 and key 0, or None where positions are not in steps of one."""
    for positions in (bias.rows, bias.columns):
        if not len(positions) or not bool((positions.diff() == 1).all()):
            return None
    return int(bias.columns[0]) - int(bias.rows[0]) - bias.first


def _strided_bias(bias: Bias | None, shape: tuple[int, int, int, int], device: torch.device) -> Strided:
    """A bias by its strides over (B, H, Q, K)."""
    if bias is None:
        return Strided(None, 0, 0, 0, 0)
    offset = _table_offset(bias) if isinstance(bias, RelativeBias) else None
    if isinstance(bias, RelativeBias) and offset is not None:
        table = bias.table.to(device)
        item, head = (table.stride(axis) if table.shape[axis] > 1 else 0 for axis in (0, 1))
        step = table.stride(2)
        # The address of query 0, key 0; every other one is reached from it, forwards or backwards.
        return Strided(table[..., offset:], item, head, -step, step)
    dense = dense_bias(bias)
    assert dense is not None
    return strided(dense.to(device).expand(shape))


# ---- in a kernel -------------------------------------------------------------------------------------------


@triton.jit
def tile_pointers(matrix, item, head, first, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """(ROWS, COLUMNS) addresses from row ``first``. What is far is counted in 64 bits: 2³¹ are soon reached."""
    corner = matrix.pointer + item.to(tl.int64) * matrix.item + head.to(tl.int64) * matrix.head
    corner += tl.cast(first, tl.int64) * matrix.row
    return corner + tl.arange(0, ROWS)[:, None] * matrix.row + tl.arange(0, COLUMNS)[None, :] * matrix.column


@triton.jit
def load_tile(
    matrix,
    item,
    head,
    first,
    limit,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    RAGGED: tl.constexpr,
):
    """(ROWS, COLUMNS) numbers from row ``first``; 0 from row ``limit`` (looked for if RAGGED) and column WIDTH on."""
    pointers = tile_pointers(matrix, item, head, first, ROWS, COLUMNS)
    inside = tl.arange(0, COLUMNS)[None, :] < WIDTH
    if RAGGED:
        tile = tl.load(pointers, mask=inside & (first + tl.arange(0, ROWS)[:, None] < limit), other=0.0)
    elif WIDTH == COLUMNS:
        tile = tl.load(pointers)
    else:
        tile = tl.load(pointers, mask=inside, other=0.0)
    return tile


@triton.jit
def store_tile(
    matrix, item, head, first, limit, tile, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    """Write (ROWS, COLUMNS) numbers from row ``first`` to row ``limit`` and column WIDTH, in ``matrix``'s dtype."""
    pointers = tile_pointers(matrix, item, head, first, ROWS, COLUMNS)
    inside = (tl.arange(0, COLUMNS)[None, :] < WIDTH) & (first + tl.arange(0, ROWS)[:, None] < limit)
    tl.store(pointers, tile.to(matrix.pointer.dtype.element_ty), mask=inside)


@triton.jit
def tanh(x):
    """Hyperbolic tangent to the last bits: near 0 a polynomial (Cephes, tanhf), since 1 − 2 / (e²ˣ + 1) cancels."""
    square = x * x
    series = -5.70498872745e-3 * square + 2.06390887954e-2
    series = series * square - 5.37397155531e-2
    series = series * square + 1.33314422036e-1
    series = series * square - 3.33332819422e-1
    near = series * square * x + x
    size = tl.abs(x)
    far = 1.0 - 2.0 / (tl.exp2(tl.minimum(size, 20.0) * 2.8853900817779268) + 1.0)  # 2 log₂ e
    return tl.where(size < 0.625, near, tl.where(x < 0.0, -far, far))


@triton.jit
def scaled_query(query_tile, scoring):
    """Queries times ``query_scale``, which only float32 ones have."""
    if query_tile.dtype == tl.float32:
        query_tile = query_tile * scoring.query_scale
    return query_tile


@triton.jit
def scaled_scores(product, scoring):
    """Products q · k as scores in base two, scaled and capped, before the bias."""
    if scoring.has_cap:
        scores = tanh(product * scoring.scale) * scoring.cap
    else:
        scores = product * scoring.scale
    return scores


@triton.jit
def biased_scores(scores, scoring, item, head, rows, columns):
    """Scores in base two with the bias of their pairs.

    ``rows`` and ``columns`` are positions that broadcast to the tile: (R, 1) and (1, C), or (1, R) and (C, 1) for a
    transposed one.
    """
    if scoring.has_bias:
        bias = scoring.bias
        corner = bias.pointer + item.to(tl.int64) * bias.item + head.to(tl.int64) * bias.head
        places = rows.to(tl.int64) * bias.row + columns.to(tl.int64) * bias.column
        inside = (rows < scoring.queries) & (columns < scoring.keys)
        scores += tl.load(corner + places, mask=inside, other=0.0).to(tl.float32) * LOG2E
    return scores


@triton.jit
def allowed_pairs(scoring, item, rows, columns):
    """Whether each pair of a tile may attend, with all parts of the rule; False past the last key.

    Past the last query it is whatever the rule says there: no such row is ever written. ``rows`` and ``columns`` as
    in ``biased_scores``.
    """
    allowed = (columns < scoring.keys) & (rows >= 0)
    places = rows + (scoring.keys - scoring.queries)  # where the queries are among the keys
    if scoring.is_causal:
        past = columns <= places
        if scoring.has_prefix:
            past = past | (columns < tl.load(scoring.prefix + item * scoring.prefix_item))
        allowed = allowed & past
    if scoring.has_window:
        allowed = allowed & (columns > places - scoring.window)
        if not scoring.is_causal:
            allowed = allowed & (columns < places + scoring.window)
    if scoring.has_key_valid:
        valid = tl.load(
            scoring.key_valid + item * scoring.key_valid_item + columns, mask=columns < scoring.keys, other=0
        )
        allowed = allowed & (valid != 0)
    if scoring.has_documents:
        numbers = scoring.documents + item * scoring.documents_item
        own = tl.load(numbers + places, mask=places < scoring.keys, other=0)
        allowed = allowed & (own == tl.load(numbers + columns, mask=columns < scoring.keys, other=0))
    return allowed


@triton.jit
def key_span(scoring, item, first, ROWS: tl.constexpr):
    """(start, stop) keys that queries ``first`` to ``first`` + ROWS − 1 may see; the rule excludes all others."""
    last = tl.minimum(first + ROWS, scoring.queries) - 1
    shift = scoring.keys - scoring.queries
    start = tl.cast(0, tl.int32)
    stop = tl.cast(scoring.keys, tl.int32)
    if scoring.is_causal:
        stop = tl.minimum(stop, tl.maximum(last + shift + 1, 0))
        if scoring.has_prefix:
            prefix = tl.load(scoring.prefix + item * scoring.prefix_item).to(tl.int32)
            stop = tl.maximum(stop, tl.minimum(prefix, scoring.keys))
    elif scoring.has_window:
        stop = tl.minimum(stop, tl.maximum(last + shift + scoring.window, 0))
    if scoring.has_window:
        start = tl.maximum(start, first + shift - scoring.window + 1)
    if scoring.has_key_valid:
        bounds = scoring.key_bounds + item * scoring.key_bounds_item
        start = tl.maximum(start, tl.load(bounds))
        stop = tl.minimum(stop, tl.load(bounds + 1))
    if scoring.has_documents:
        places = first + shift + tl.arange(0, ROWS)
        inside = places < scoring.keys
        bounds = scoring.document_bounds + item * scoring.documents_item * 2
        start = tl.maximum(start, tl.min(tl.load(bounds + places, mask=inside, other=2147483647), axis=0))
        stop = tl.minimum(stop, tl.max(tl.load(bounds + scoring.keys + places, mask=inside, other=0), axis=0))
    return start, stop


@triton.jit
def whole_key_span(scoring, item, first, start, stop, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """(start, stop) of the key tiles, counted from ``start``, in which every pair of these queries is allowed.

    Both are ``start`` plus whole tiles, within ``start`` and ``stop``; equal where there is none. Tiles outside need
    ``allowed_pairs``, tiles inside do not.
    """
    last = first + ROWS - 1  # of the block, also past the last query: nothing is lost but a mask more
    shift = scoring.keys - scoring.queries
    inner_start = start
    inner_stop = stop
    if scoring.is_causal:
        whole = first + shift + 1
        if scoring.has_prefix:
            whole = tl.maximum(whole, tl.load(scoring.prefix + item * scoring.prefix_item).to(tl.int32))
        inner_stop = tl.minimum(inner_stop, whole)
    elif scoring.has_window:
        inner_stop = tl.minimum(inner_stop, first + shift + scoring.window)
    if scoring.has_window:
        inner_start = tl.maximum(inner_start, last + shift - scoring.window + 1)
    if scoring.has_key_valid or scoring.has_documents:
        inner_stop = start
    inner_start = start + tl.cdiv(inner_start - start, COLUMNS) * COLUMNS
    inner_stop = start + tl.maximum(inner_stop - start, 0) // COLUMNS * COLUMNS
    inner_start = tl.minimum(inner_start, start + tl.cdiv(tl.maximum(stop - start, 0), COLUMNS) * COLUMNS)
    return inner_start, tl.maximum(inner_stop, inner_start)


@triton.jit
def query_span(scoring, item, first, COLUMNS: tl.constexpr):
    """(start, stop) queries that may see one of the keys ``first`` to ``first`` + COLUMNS − 1."""
    last = tl.minimum(first + COLUMNS, scoring.keys) - 1
    shift = scoring.keys - scoring.queries
    start = tl.cast(0, tl.int32)
    stop = tl.cast(scoring.queries, tl.int32)
    if scoring.is_causal:
        seen = first - shift  # the first query for which the first of the keys is no future
        if scoring.has_prefix:
            prefix = tl.load(scoring.prefix + item * scoring.prefix_item).to(tl.int32)
            seen = tl.where(first < prefix, 0, seen)
        start = tl.maximum(start, seen)
    elif scoring.has_window:
        start = tl.maximum(start, first - shift - scoring.window + 1)
    if scoring.has_window:
        stop = tl.minimum(stop, tl.maximum(last - shift + scoring.window, 0))
    if scoring.has_key_valid:
        bounds = scoring.key_bounds + item * scoring.key_bounds_item
        hidden = (tl.load(bounds) > last) | (tl.load(bounds + 1) <= first)
        stop = tl.where(hidden, start, stop)
    if scoring.has_documents:
        places = first + tl.arange(0, COLUMNS)
        inside = places < scoring.keys
        bounds = scoring.document_bounds + item * scoring.documents_item * 2
        start = tl.maximum(
            start, tl.min(tl.load(bounds + places, mask=inside, other=2147483647), axis=0) - shift
        )
        stop = tl.minimum(
            stop, tl.max(tl.load(bounds + scoring.keys + places, mask=inside, other=0), axis=0) - shift
        )
    return start, stop


@triton.jit
def whole_query_span(scoring, item, first, start, stop, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """As ``whole_key_span`` for a loop over query tiles of ROWS, for the keys from ``first`` on."""
    last = first + COLUMNS - 1
    shift = scoring.keys - scoring.queries
    inner_start = start
    inner_stop = stop
    if scoring.is_causal:
        whole = last - shift
        if scoring.has_prefix:
            prefix = tl.load(scoring.prefix + item * scoring.prefix_item).to(tl.int32)
            whole = tl.where(last < prefix, 0, whole)
        inner_start = tl.maximum(inner_start, whole)
    elif scoring.has_window:
        inner_start = tl.maximum(inner_start, last - shift - scoring.window + 1)
    if scoring.has_window:
        inner_stop = tl.minimum(inner_stop, first - shift + scoring.window)
    if scoring.has_key_valid or scoring.has_documents:
        inner_stop = start
    # Keys past the last one belong to this block too and are never allowed.
    inner_stop = tl.where(last < scoring.keys, inner_stop, start)
    inner_start = start + tl.cdiv(inner_start - start, ROWS) * ROWS
    inner_stop = start + tl.maximum(inner_stop - start, 0) // ROWS * ROWS
    inner_start = tl.minimum(inner_start, start + tl.cdiv(tl.maximum(stop - start, 0), ROWS) * ROWS)
    return inner_start, tl.maximum(inner_stop, inner_start)
