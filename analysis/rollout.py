"""Attention rollout: how attention mixes the input tokens through all layers at once (Abnar & Zuidema 2020).

Each layer's heads are fused into one map, the residual connection is added as the identity, rows are divided by
their own sum, and the layers are multiplied, later layers on the left: ``R = B_L ... B_1`` with
``B = (fuse_h A + I) / 2``. ``R[i, j]`` is the share of input token j in position i after the last layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from attn_core.watching import worked

if TYPE_CHECKING:
    from attn_core.maps import AttentionMap, HeadStatistics

Fusion = Literal["mean", "max", "min"]

FUSIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {
        "mean": lambda heads: heads.mean(0),
        "max": lambda heads: heads.amax(0),
        "min": lambda heads: heads.amin(0),
    }
)
"""(H, R, N) weights of all heads to one (R, N) map."""

ROW_ELEMENTS = 1 << 22
"""Most weights (heads × rows × keys) that ``rollout_row`` holds at once: 16 MiB in float32."""

STRIP_PRODUCTS = 2**33
"""Multiplications between two looks at whether somebody has stopped a rollout: a fraction of a second."""


def rollout(
    weights: Tensor | Sequence[AttentionMap],
    *,
    fusion: Fusion = "mean",
    discard_ratio: float = 0.0,
    residual: bool = True,
    start_layer: int = 0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Share of every input token in every position, after all layers (Abnar & Zuidema 2020, section 3.1).

    Rows sum to one after every step. A row with nothing left in it (a masked query, or one that lost every weight
    to ``discard_ratio`` without the residual) keeps its own token.

    Args:
        weights: (L, H, N, N) attention of one input, layer 0 next to the input, or one square map a layer; maps are
            made dense one layer at a time.
        fusion: how heads become one map. The paper's method is the mean; max and min follow Gildenblat's ViT rollout.
        discard_ratio: share of the N × N fused weights that is set to 0, the smallest first, over the whole map and
            not row by row. Entry [0, 0], the class token's own weight, is always kept.
        residual: add the identity for the residual connection. Without it the product of the fused maps is returned.
        start_layer: layers below it are left out of the product (Chefer et al. 2021).
        dtype: to compute in; ``None`` takes the weights' own, at least float32.
    Returns:
        (N, N), rows are positions after the last layer, columns are input tokens.
    Raises:
        ValueError: a wrong shape, option, start layer, or maps that are not square or not all of one size.
        MemoryBudgetError: a map is too large to be dense; ``rollout_row`` needs no n × n array.
    """
    layers = _layers_from(weights, fusion=fusion, start_layer=start_layer, caller="rollout")
    if not 0.0 <= discard_ratio < 1.0:
        raise ValueError(
            f"rollout: discard_ratio must be at least 0 and below 1 but is {discard_ratio}; "
            "pass the share of weights to drop, such as 0.9."
        )
    product: Tensor | None = None
    for layer in layers:
        fused = _fused_rows(layer, None, fusion=fusion, dtype=dtype)  # (N, N)
        if discard_ratio > 0.0:
            fused = discard_smallest(fused, discard_ratio=discard_ratio)
        step = _mixing_rows(fused, 0, residual=residual)
        product = step if product is None else _rows_to_one(_product(step, product))
    assert product is not None
    return product


def _product(step: Tensor, below: Tensor) -> Tensor:
    """(N, N) product in strips of rows: a long one can be stopped between two of them."""
    height = max(1, STRIP_PRODUCTS // max(below.numel(), 1))
    if height >= len(step):
        return step @ below
    product = torch.empty_like(below)
    for start in range(0, len(step), height):
        worked(0)  # the maps were counted when they were written out
        product[start : start + height] = step[start : start + height] @ below
    return product


def rollout_row(
    weights: Tensor | Sequence[AttentionMap],
    query: int | None,
    *,
    fusion: Fusion = "mean",
    residual: bool = True,
    start_layer: int = 0,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """One row of ``rollout`` as a chain of vector products from the last layer to the first.

    O(H·N²) time and O(N) memory beside a few rows of weights, so it serves inputs whose n × n product would not
    fit. There is no discard ratio: its threshold is taken over a whole map.

    Args:
        weights: as for ``rollout``; maps are read a tile at a time.
        query: the position whose row is wanted; 0 is the class token; None takes the mean over all rows.
        fusion, residual, start_layer, dtype: as for ``rollout``.
    Returns:
        (N,), equal to ``rollout(...)[query]`` (or its mean over rows), sums to one.
    Raises:
        ValueError: as ``rollout``, or ``query`` outside the positions.
    """
    layers = _layers_from(weights, fusion=fusion, start_layer=start_layer, caller="rollout_row")
    _check_query(query, _heads_and_tokens(layers[0])[1], "rollout_row")
    if fusion == "mean" and not isinstance(layers[0], Tensor):
        share = _share_above(layers[0], query, dtype)
        for number, layer in enumerate(reversed(layers)):
            assert not isinstance(layer, Tensor)
            mixing = _Mixing.of(layer, share, residual=residual)
            if number == 0 and query is not None:  # the row of one query alone
                carried = layer.row(None, query).mean(0) * mixing.through[query]
            else:
                carried = layer.apply_left(mixing.through[None]).mean(0)[0]
            share = mixing.below(carried)
        return share
    return _row_in_blocks(layers, query, fusion=fusion, residual=residual, dtype=dtype)


def statistics_and_rollout(
    maps: Sequence[AttentionMap], query: int | None, *, residual: bool = True
) -> tuple[list[HeadStatistics], Tensor]:
    """Statistics of every layer and the rollout of one position, in one pass over each map.

    The chain of ``rollout_row`` runs from the last layer to the first, and so does this pass: the row that comes
    from above is carried through a layer while its statistics are taken.

    Args:
        maps, query, residual: as for ``rollout_row``, with the mean over heads.
    Returns:
        one record a layer, first layer first; (N,) as ``rollout_row``.
    Raises:
        ValueError: as ``rollout_row``.
    """
    _check_maps(maps, caller="statistics_and_rollout")
    _check_query(query, maps[0].queries, "statistics_and_rollout")
    share = _share_above(maps[0], query, None)
    found: list[HeadStatistics] = []
    for layer in reversed(maps):
        mixing = _Mixing.of(layer, share, residual=residual)
        statistics = layer.statistics(mixing.through[None])
        assert statistics.carried is not None
        share = mixing.below(statistics.carried.mean(0)[0])
        found.append(replace(statistics, carried=None))
    return found[::-1], share


@dataclass(frozen=True, eq=False)
class _Mixing:
    """What a row becomes in a layer: part of it goes through the weights, the rest stays where it is.

    Attributes:
        through: (N,) factors of the layer's rows.
        stays: (N,) what remains at each position: the residual connection, and rows with nothing in them.
    """

    through: Tensor
    stays: Tensor

    @staticmethod
    def of(layer: AttentionMap, share: Tensor, *, residual: bool) -> _Mixing:
        """Of a row (N,) from above; each row of the mixing matrix is divided by its own sum, as in ``rollout``."""
        totals = layer.row_totals().mean(0).to(share)
        own = torch.ones_like(share) if residual else (totals == 0).to(share.dtype)
        through = share / (totals + own)
        return _Mixing(through, through * own)

    def below(self, carried: Tensor) -> Tensor:
        """The row under the layer, sums to one."""
        share = carried.to(self.stays) + self.stays
        return share / share.sum()


def _row_in_blocks(
    layers: Sequence[Tensor | AttentionMap],
    query: int | None,
    *,
    fusion: Fusion,
    residual: bool,
    dtype: torch.dtype | None,
) -> Tensor:
    """``rollout_row`` of weights, and of maps whose heads are not averaged: in blocks of rows."""
    heads, tokens = _heads_and_tokens(layers[0])
    height = max(1, ROW_ELEMENTS // (heads * tokens))
    share = (
        None if query is not None else torch.full((tokens,), 1.0 / tokens)
    )  # (N,) in each position, so far down
    for layer in reversed(layers):
        parts: list[Tensor] = []
        for start in range(0, tokens, height):
            rows = slice(start, min(start + height, tokens))
            if share is None:  # above the last layer the row is the query alone
                assert query is not None
                if not rows.start <= query < rows.stop:
                    continue
                rows = slice(query, query + 1)
            elif not share[rows].any():
                continue
            fused = _fused_rows(layer, rows, fusion=fusion, dtype=dtype)
            step = _mixing_rows(fused, rows.start, residual=residual)  # (r, N)
            parts.append(step[0] if share is None else share[rows].to(step) @ step)
        total = torch.stack(parts).sum(0)
        share = total / total.sum()
    assert share is not None
    return share


def discard_smallest(fused: Tensor, *, discard_ratio: float) -> Tensor:
    """The map with its ``int(N² · discard_ratio)`` smallest entries set to 0; [0, 0] is never dropped.

    Of equal entries the first in reading order go first.

    Args:
        fused: (N, N) weights of one item; unchanged.
    """
    flat = fused.flatten()
    smallest = flat.sort(stable=True).indices[: int(flat.numel() * discard_ratio)]
    return flat.index_fill(0, smallest[smallest != 0], 0.0).view_as(fused)


def _mixing_rows(fused: Tensor, first: int, *, residual: bool) -> Tensor:
    """Rows of one layer's mixing matrix: residual added, each row divided by its own sum.

    Args:
        fused: (R, N) rows ``first`` to ``first + R`` of the fused map.
    """
    if not residual:
        empty = fused.sum(-1) == 0
        return _rows_to_one(_plus_identity(fused, first, empty.to(fused.dtype)))
    return _rows_to_one(_plus_identity(fused, first, torch.ones_like(fused[:, 0])))


def _plus_identity(fused: Tensor, first: int, amount: Tensor) -> Tensor:
    """(R, N) rows with ``amount`` (R,) added where a row meets its own column."""
    rows = torch.arange(fused.shape[0], device=fused.device)
    return fused.index_put((rows, rows + first), amount, accumulate=True)


def _rows_to_one(matrix: Tensor) -> Tensor:
    return matrix / matrix.sum(-1, keepdim=True)


def _fused_rows(
    layer: Tensor | AttentionMap, rows: slice | None, *, fusion: str, dtype: torch.dtype | None
) -> Tensor:
    """(R, N) rows of one layer with its heads fused; ``rows`` None means all."""
    if isinstance(layer, Tensor):
        heads = layer if rows is None else layer[:, rows]
    else:
        heads = layer.dense() if rows is None else layer.block(None, rows, slice(0, layer.keys))
    if dtype is None:
        dtype = torch.promote_types(heads.dtype, torch.float32)
    return FUSIONS[fusion](heads.to(dtype))


def _share_above(layer: AttentionMap, query: int | None, dtype: torch.dtype | None) -> Tensor:
    """(N,) the row above the last layer: a position is itself alone; None takes the mean of all."""
    own = torch.promote_types(layer.row(0, 0).dtype, torch.float32) if dtype is None else dtype
    if query is None:
        return torch.full((layer.queries,), 1.0 / layer.queries, dtype=own)
    return torch.nn.functional.one_hot(torch.tensor(query), layer.queries).to(own)


def _check_query(query: int | None, tokens: int, caller: str) -> None:
    if query is not None and not 0 <= query < tokens:
        raise ValueError(
            f"{caller}: query must be between 0 and {tokens - 1} but is {query}; pass a token's index."
        )


def _heads_and_tokens(layer: Tensor | AttentionMap) -> tuple[int, int]:
    return (layer.shape[0], layer.shape[1]) if isinstance(layer, Tensor) else (layer.heads, layer.queries)


def _layers_from(
    weights: Tensor | Sequence[AttentionMap], *, fusion: str, start_layer: int, caller: str
) -> list[Tensor | AttentionMap]:
    """The layers of the product, first layer first, after the checks that both entry points share."""
    if fusion not in FUSIONS:
        raise ValueError(
            f"{caller}: fusion must be one of {', '.join(FUSIONS)} but is {fusion!r}; pass one of them."
        )
    layers: list[Tensor | AttentionMap]
    if isinstance(weights, Tensor):
        if weights.ndim != 4 or weights.shape[2] != weights.shape[3] or 0 in weights.shape:
            raise ValueError(
                f"{caller}: weights must be (L, H, N, N) but is {tuple(weights.shape)}; pass one input's square "
                "maps, one item of a batch at a time."
            )
        layers = list(weights)
    else:
        layers = list(weights)
        _check_maps(weights, caller=caller)
    if not 0 <= start_layer < len(layers):
        raise ValueError(
            f"{caller}: start_layer must be between 0 and {len(layers) - 1} but is {start_layer}; "
            "pass the first layer of the product."
        )
    return layers[start_layer:]


def _check_maps(maps: Sequence[AttentionMap], *, caller: str) -> None:
    if not maps:
        raise ValueError(f"{caller}: weights must be at least one map but is empty; pass a trace's layers.")
    for index, layer in enumerate(maps):
        if layer.batch != 1:
            raise ValueError(
                f"{caller}: weights must be maps of one input but layer {index} holds {layer.batch}; "
                "pass trace.item(index)'s layers."
            )
        if layer.queries != layer.keys or layer.queries != maps[0].queries:
            raise ValueError(
                f"{caller}: weights must be square maps of one size but layer {index} has {layer.queries} queries "
                f"and {layer.keys} keys (layer 0 has {maps[0].queries} queries); rollout multiplies "
                "self-attention layers over the same tokens."
            )
