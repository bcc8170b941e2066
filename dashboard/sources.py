"""Where the views take their numbers from: one interface for a live trace and for the example that is shipped.

A view asks for the part of the attention that it draws and gets plain read-only arrays. It does not know whether
they are recomputed from a trace (``dashboard.live``) or were computed when the program was made
(``dashboard.first_paint``, which the first page shows while torch is still being imported). NumPy alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from analysis.figure_data import Floats, TokenLabel
from dashboard.selection import Fusion, Part

if TYPE_CHECKING:
    from analysis.streamed import StreamedMatrix
    from dashboard.cached import Traced

LINE_TOKENS = 512
"""Most tokens a side that a head view draws at once; a longer text is shown in windows of this length."""

ALL_LAYERS_TOKENS = 128
"""Up to this many tokens the browser gets all layers of the head view at once, above it only the chosen one."""

WORD_TOKENS = 512
"""Longest text whose subwords can be merged into words (the merged maps are kept dense)."""

THUMBNAIL_CELLS = 64
"""Most cells a side of a thumbnail; larger maps are max-pooled."""


def streamed_note(positions: int, dense_bytes: int, budget: int) -> str:
    """What a view says that reads maps in tiles because those of all heads of a layer would not fit."""
    return (
        f"streamed: {positions:,} positions; the maps of all heads of a layer would take {_binary(dense_bytes)}, one "
        f"answer may take {_binary(budget)}"
    )


def _binary(size: int) -> str:
    """ "256 MiB" or "10.2 GiB"."""
    return f"{size / 2**30:,.1f} GiB" if size >= 2**30 else f"{size / 2**20:,.0f} MiB"


@dataclass(frozen=True)
class PartInfo:
    """One kind of attention of a model on an input: its size and what its rows and columns are called.

    Attributes:
        rows, columns: labels of the query and of the key tokens.
        groups: key-value head of each query head, or None when every head has its own.
    """

    layers: int
    heads: int
    rows: tuple[TokenLabel, ...]
    columns: tuple[TokenLabel, ...]
    groups: tuple[int, ...] | None = None


@dataclass(frozen=True)
class HeadNumbers:
    """Figures of each head of one layer, (H,) each: averages over the query tokens."""

    entropy: Floats
    max_weight: Floats
    mean_distance: Floats


class TextSource(Protocol):
    """What the text views draw from."""

    @property
    def key(self) -> str:
        """Digest of model, revision, input and options; the same key always means the same numbers."""

    @property
    def live(self) -> bool:
        """Whether the model is loaded, so that anything can be asked; the example holds only what it shows."""

    @property
    def traced(self) -> Traced | None:
        """The forward pass behind it; None for the example."""

    @property
    def parts(self) -> tuple[Part, ...]:
        """The kinds of attention that the model has, the first one is shown first."""

    @property
    def direction(self) -> Literal["ltr", "rtl"]:
        """Reading direction of the text."""

    def part(self, part: Part) -> PartInfo:
        """Size and labels of one kind of attention."""

    def block(self, part: Part, layer: int, rows: slice, columns: slice) -> Floats:
        """(H, r, c) weights of all heads of a layer."""

    def matrix(self, part: Part, layer: int, head: int | None) -> Floats | StreamedMatrix:
        """(Q, K) weights of a head, or the mean over the layer's heads; streamed above the memory budget."""

    def thumbnails(self, part: Part) -> Floats:
        """(L, H, b, b) every head's map, max-pooled above ``THUMBNAIL_CELLS``."""

    def rollout(self, part: Part, *, fusion: Fusion, discard_ratio: float, last_layer: int) -> Floats:
        """(N, N) attention rollout through the layers 0 to ``last_layer``, where it fits the memory budget."""

    def rollout_row(
        self, part: Part, query: int, *, fusion: Fusion, discard_ratio: float, last_layer: int
    ) -> Floats:
        """(N,) one row of the rollout, whatever the length."""

    def rollout_fits(self, part: Part) -> bool:
        """Whether the whole rollout fits the memory budget."""

    def numbers(self, part: Part, layer: int) -> HeadNumbers:
        """Figures of each head of a layer."""


@dataclass(frozen=True)
class PatchRows:
    """Attention of one place in the picture to all patches of a layer.

    Attributes:
        maps: (..., rows, columns) weights on the patches.
        removed: (...,) share of the row that is not drawn, having no place in the picture: what falls on prefix
            tokens (CLS, registers), or on the padding of a model's windows.
    """

    maps: Floats
    removed: Floats


@dataclass(frozen=True)
class LayerGrid:
    """The patches of one layer.

    Attributes:
        rows, columns: how many there are down and across.
        stride: patches of the first layer along a side of one: 2 after one merge of 2 × 2 patches (Swin).
    """

    rows: int
    columns: int
    stride: int = 1

    def cell(self, patch: tuple[int, int]) -> tuple[int, int]:
        """The patch of this layer that covers a patch of the first one."""
        return patch[0] // self.stride, patch[1] // self.stride

    def patch(self, cell: tuple[int, int], first: LayerGrid) -> tuple[int, int]:
        """The patch of the first layer in the middle of a patch of this one (inside the picture)."""
        row, column = (place * self.stride + self.stride // 2 for place in cell)
        return min(row, first.rows - 1), min(column, first.columns - 1)


class ImageSource(Protocol):
    """What the image views draw from. Patches are named by their place in the first layer's grid."""

    @property
    def key(self) -> str:
        """Digest of model, revision, picture and options."""

    @property
    def live(self) -> bool:
        """Whether the model is loaded (see ``TextSource.live``)."""

    @property
    def traced(self) -> Traced | None:
        """The forward pass behind it; None for the example."""

    @property
    def picture(self) -> NDArray[np.uint8]:
        """(height, width, 3) what the model saw, upright."""

    @property
    def grids(self) -> tuple[LayerGrid, ...]:
        """The patches of each layer; they differ where a model merges patches between layers."""

    @property
    def layers(self) -> int:
        """How many layers have maps."""

    @property
    def heads(self) -> tuple[int, ...]:
        """Heads of each layer."""

    @property
    def windowed(self) -> bool:
        """Whether the model attends inside windows, which may hold padding."""

    @property
    def prefix_tokens(self) -> int:
        """Tokens before the patches: CLS, distillation, registers; 0 for a model without CLS."""

    def picture_of(self, layer: int) -> NDArray[np.uint8]:
        """(height, width, 3) what the patches of a layer cover: the picture, and grey where they reach beyond it."""

    def rows(self, layer: int, patch: tuple[int, int] | None) -> PatchRows:
        """(H, rows, columns) attention of CLS (or the mean over all queries without one), or of a patch."""

    def all_rows(self, patch: tuple[int, int] | None) -> tuple[PatchRows, ...]:
        """The same for every layer."""

    def rollout(
        self, patch: tuple[int, int] | None, *, fusion: Fusion, discard_ratio: float, last_layer: int
    ) -> PatchRows:
        """(rows, columns) rollout of CLS or of a patch through the layers 0 to ``last_layer``."""
