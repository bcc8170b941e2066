"""Other weights for chosen heads: given ones, permuted ones, the query's own place, the first key, another head's.

Each function makes a ``HeadEdit`` for ``attn_core.seam.editing``; ``attn_core.edits`` has uniform weights and gates.
Heads are (B, H) or (1, H), bool, or float for how far a head is edited. ``queries`` are the places, ascending, whose
rows are edited, None for all. Masked keys never get weight.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attn_core.checks import check_ndim
from attn_core.edits import AttentionCall, HeadEdit, Replacement, RowWeights, checked_heads

Queries = tuple[int, ...] | None


def given(heads: Tensor, weights: Tensor, *, queries: Queries = None) -> HeadEdit:
    """Weights that are handed in, as they are; gradients reach them.

    Args:
        weights: (B or 1, H or 1, r, K) of the queries that are edited.
    Raises:
        ValueError: if ``weights`` has not four dimensions; when applied, if they do not fit the layer.
    """
    check_ndim(weights, 4, "given: weights")
    if queries is not None and weights.shape[2] != len(queries):
        raise ValueError(
            f"given: weights must hold a row for each of the {len(queries)} queries but hold {weights.shape[2]}."
        )

    def rows(call: AttentionCall, part: slice) -> Tensor:
        if queries is None:
            return _fitting(weights, call)[:, :, part]
        first = queries.index(part.start)
        return _fitting(weights, call)[:, :, first : first + part.stop - part.start]

    return _edit(heads, "given", rows, queries)


def permuted(heads: Tensor, *, seed: int = 0, queries: Queries = None) -> HeadEdit:
    """A head's own weights in a random order over the keys that the mask allows, drawn anew for each row and head."""

    def rows(call: AttentionCall, part: slice) -> Tensor:
        own = call.own_weights(part)
        allowed = call.allowed(part)
        noise = torch.stack(
            [_noise(seed, query, own.shape[1], own.shape[3]) for query in range(part.start, part.stop)], dim=1
        ).to(own.device)  # (H, r, K), the same however the layer is cut into strips
        inside = (
            torch.ones_like(noise, dtype=torch.bool)[None] if allowed is None else allowed.expand(own.shape)
        )
        return torch.gather(own, -1, shuffled_places(noise, inside).expand(own.shape))

    return _edit(heads, "permuted", rows, queries)


def self_only(heads: Tensor, *, queries: Queries = None) -> HeadEdit:
    """Each query attends to its own place alone.

    Raises:
        ValueError: when applied, where queries and keys are not the same positions.
    """

    def rows(call: AttentionCall, part: slice) -> Tensor:
        _, _, count, keys = call.shape
        if count != keys:
            raise ValueError(
                f"self_only: queries must have a place of their own among the keys, but there are {count} of them "
                f"and {keys} keys; choose another edit."
            )
        return _one_key(torch.arange(part.start, part.stop, device=call.query.device)[None, None], call)

    return _edit(heads, "self_only", rows, queries)


def first_only(heads: Tensor, *, queries: Queries = None) -> HeadEdit:
    """Each query attends to the first key that it may see."""

    def rows(call: AttentionCall, part: slice) -> Tensor:
        allowed = call.allowed(part)
        if allowed is None:
            places = torch.zeros(1, 1, part.stop - part.start, dtype=torch.long, device=call.query.device)
            return _one_key(places, call)
        found = allowed.to(torch.uint8).argmax(-1)  # (B, H, r)
        return _one_key(found, call) * allowed.any(-1, keepdim=True)

    return _edit(heads, "first_only", rows, queries)


def exchanged(heads: Tensor, *, queries: Queries = None) -> HeadEdit:
    """The marked heads of each item pass their weights round: two exchange them, more hand them on in a ring.

    Each takes those of the next marked head, the last those of the first; one alone keeps its own.

    Args:
        heads: (B, H) or (1, H) bool.
    Raises:
        TypeError: if ``heads`` is not bool.
    """
    if heads.dtype != torch.bool:
        raise TypeError(f"exchanged: heads must be bool but is {heads.dtype}; call .bool() first.")
    source = torch.stack([_next_marked(row) for row in heads])  # (B or 1, H)

    def rows(call: AttentionCall, part: slice) -> Tensor:
        own = call.own_weights(part)
        places = source.to(own.device)[:, :, None, None].expand(own.shape)
        return torch.gather(own, 1, places)

    return _edit(heads, "exchanged", rows, queries)


def shuffled_places(noise: Tensor, inside: Tensor) -> Tensor:
    """Random order of the places that are ``inside``: what stands at place j comes from place ``result[..., j]``.

    Places outside stay where they are.

    Args:
        noise: (..., K) random numbers from 0 to 1.
        inside: (..., K) bool.
    """
    order = torch.where(inside, noise, 2.0).argsort(dim=-1)  # places inside, shuffled, before those outside
    slots = (~inside).to(torch.uint8).argsort(dim=-1, stable=True)  # places inside in their order
    places = torch.arange(inside.shape[-1], device=inside.device).expand(inside.shape)
    return torch.where(inside, torch.zeros_like(places).scatter(-1, slots, order), places)


def _edit(heads: Tensor, name: str, rows: RowWeights, queries: Queries) -> HeadEdit:
    return HeadEdit(replaced=(Replacement(checked_heads(heads, f"{name}: heads"), rows, queries=queries),))


def _one_key(places: Tensor, call: AttentionCall) -> Tensor:
    """(B or 1, H or 1, r, K): all weight on one key of each row."""
    weights = torch.zeros(*places.shape, call.shape[3], device=call.query.device)
    return weights.scatter(-1, places[..., None], 1.0)


def _noise(seed: int, query: int, heads: int, keys: int) -> Tensor:
    """(H, K) numbers from 0 to 1 that belong to one query of one draw."""
    return torch.rand(heads, keys, generator=torch.Generator().manual_seed(seed * 1_000_003 + query))


def _fitting(weights: Tensor, call: AttentionCall) -> Tensor:
    batch, heads, _, keys = call.shape
    if weights.shape[0] not in (1, batch) or weights.shape[1] not in (1, heads) or weights.shape[3] != keys:
        raise ValueError(
            f"given: weights must be for {batch} items, {heads} heads and {keys} keys (or 1 item, 1 head) but are "
            f"{tuple(weights.shape)}; make them for this layer and batch."
        )
    return weights


def _next_marked(row: Tensor) -> Tensor:
    """(H,) the head whose weights each head takes."""
    source = torch.arange(len(row))
    marked = row.nonzero()[:, 0].cpu()
    source[marked] = marked.roll(-1)
    return source
