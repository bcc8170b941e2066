"""Attention of models that attend within windows and to global tokens (Longformer, and LED's encoder).

The library hands their weights out at relative positions, (B, H, N, global tokens + window + 1): read as queries and
keys they would be a wrong map. Here they become ``BandedMap``, which answers in absolute positions.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attn_core.bands import BandedMap
from attn_core.errors import UnsupportedModelError
from attn_core.maps import AttentionMap

_BAND_LAYERS = ("LongformerSelfAttention", "LEDEncoderSelfAttention")


@dataclass(frozen=True)
class BandLayout:
    """What the layers of one pass were told of the positions, padding up to a multiple of the window included.

    Attributes:
        masked: (B, N) bool, True for padding.
        has_global: (B, N) bool, True for tokens with global attention, also those that the model chose by itself.
    """

    masked: Tensor
    has_global: Tensor


def band_layer(module: nn.Module) -> nn.Module | None:
    """The first layer that attends within windows; it is told the layout, which is the same for all."""
    return next((part for part in module.modules() if type(part).__name__ in _BAND_LAYERS), None)


def banded_map(weights: Tensor, global_weights: Tensor | None, layout: BandLayout) -> BandedMap:
    """One layer's map, from what the library hands out.

    Args:
        weights: (B, H, N, X + W) the X global tokens of each item in order, then the window from W // 2 before the
            query to as many after it. Rows of global tokens and of padding are 0.
        global_weights: (B, H, N', X) weights of the X global tokens, keys first; N' includes padding up to a
            multiple of the window. None without any global token, and X is 0 then.
    Raises:
        UnsupportedModelError: if the widths do not fit together, as in a version of the library that changed them.
    """
    batch, heads, tokens, width = weights.shape
    count = 0 if global_weights is None else global_weights.shape[3]
    has_global = layout.has_global[:, :tokens]
    if (width - count) % 2 == 0 or count != int(has_global.sum(1).max()):
        raise UnsupportedModelError(
            f"capture: weights of {width} columns with {count} global tokens are not a window around each token; "
            "the installed transformers lays them out in a way that is not known here."
        )
    rows = weights.new_zeros(batch, heads, 0, tokens)
    if global_weights is not None:
        rows = global_weights[:, :, :tokens].transpose(2, 3)  # (B, H, X, K)
    return BandedMap(
        band=weights[..., count:].detach(),
        global_columns=weights[..., :count].detach(),
        global_rows=rows.detach(),
        global_tokens=_positions(has_global, count),
        valid=~layout.masked[:, :tokens],
    )


def _positions(chosen: Tensor, count: int) -> Tensor:
    """(B, count) positions of the True entries of each row in order, −1 after the last."""
    index = torch.arange(chosen.shape[1], device=chosen.device).expand_as(chosen)
    ordered = index.masked_fill(~chosen, chosen.shape[1]).sort(dim=1).values[:, :count]
    return ordered.masked_fill(ordered == chosen.shape[1], -1)


def band_notes(maps: Sequence[AttentionMap]) -> tuple[str, ...]:
    """What a reader must know of maps of one item that hold a band: how far it reaches, which tokens are global."""
    banded = [layer for layer in maps if isinstance(layer, BandedMap)]
    if not banded or banded[0].batch != 1:
        return ()
    reaches = sorted({layer.reach for layer in banded})
    reach = " or ".join(map(str, reaches)) + (" (by layer)" if len(reaches) > 1 else "")
    positions = banded[0].global_positions()
    if not positions:
        return (
            f"A token attends to the {reach} tokens on either side of it; no token has global attention.",
        )
    return (
        f"A token attends to the {reach} tokens on either side of it and to the tokens with global attention, which "
        f"attend to all: {_ranges(positions)}, counted from 0.",
    )


def _ranges(positions: Sequence[int]) -> str:
    """``0, 4–7``: runs of three or more are joined."""
    parts: list[str] = []
    for _, run in itertools.groupby(enumerate(positions), lambda pair: pair[1] - pair[0]):
        found = [position for _, position in run]
        parts += [f"{found[0]}–{found[-1]}"] if len(found) > 2 else [str(position) for position in found]
    return ", ".join(parts)
