"""Sources (``dashboard.sources``) that answer from a trace of a loaded model, through the caches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from analysis.figure_data import Floats
from dashboard import cached
from dashboard.selection import Fusion, Part
from dashboard.sources import THUMBNAIL_CELLS, HeadNumbers, LayerGrid, PartInfo, PatchRows

if TYPE_CHECKING:
    from analysis.streamed import StreamedMatrix
    from attn_core.maps import AttentionMap


@dataclass(frozen=True)
class LiveText:
    """A ``TextSource`` over one traced text, or over its words when subwords are merged."""

    key: str
    maps: dict[Part, Sequence[AttentionMap]]
    infos: dict[Part, PartInfo]
    direction: Literal["ltr", "rtl"]
    traced: cached.Traced | None = None
    live: bool = True

    @property
    def parts(self) -> tuple[Part, ...]:
        """The kinds of attention that the trace holds."""
        return tuple(self.infos)

    def part(self, part: Part) -> PartInfo:
        """Size and labels."""
        return self.infos[part]

    def block(self, part: Part, layer: int, rows: slice, columns: slice) -> Floats:
        """(H, r, c) weights of all heads of a layer."""
        info = self.infos[part]
        spans = (rows.indices(len(info.rows))[:2], columns.indices(len(info.columns))[:2])
        return cached.block(self.key, part, layer, *spans, _map=self.maps[part][layer])

    def matrix(self, part: Part, layer: int, head: int | None) -> Floats | StreamedMatrix:
        """(Q, K) weights of a head, or the mean over heads; above the memory budget an overview and exact parts."""
        return cached.matrix(self.key, part, layer, head, _map=self.maps[part][layer])

    def thumbnails(self, part: Part) -> Floats:
        """(L, H, b, b) pooled maps."""
        return cached.thumbnails(self.key, part, THUMBNAIL_CELLS, _maps=self.maps[part])

    def rollout(self, part: Part, *, fusion: Fusion, discard_ratio: float, last_layer: int) -> Floats:
        """(N, N) attention rollout."""
        return cached.rolled_out(self.key, part, fusion, discard_ratio, last_layer, _maps=self.maps[part])

    def rollout_row(
        self, part: Part, query: int, *, fusion: Fusion, discard_ratio: float, last_layer: int
    ) -> Floats:
        """(N,) one row of the rollout."""
        maps = self.maps[part]
        return cached.rollout_row(self.key, part, query, fusion, discard_ratio, last_layer, _maps=maps)

    def rollout_fits(self, part: Part) -> bool:
        """Whether the whole rollout may be written out."""
        return cached.rollout_fits(self.maps[part])

    def numbers(self, part: Part, layer: int) -> HeadNumbers:
        """Figures of each head of a layer."""
        return cached.head_numbers(self.key, part, layer, _maps=self.maps[part])


def text_source(traced: cached.Traced) -> LiveText:
    """The source of a traced text.

    Raises:
        UnsupportedModelError: if the trace holds no attention at all.
    """
    trace, inputs = traced.trace, traced.inputs
    source = inputs.tokens or ()
    target = inputs.target_tokens or source
    labels = {"encoder": (source, source), "decoder": (target, target), "cross": (target, source)}
    maps: dict[Part, Sequence[AttentionMap]] = {}
    parts: tuple[Part, ...] = ("encoder", "decoder", "cross")
    for part in parts:
        layers = getattr(trace, part)
        if layers:
            maps[part] = layers
    if not maps:
        from attn_core.errors import UnsupportedModelError

        raise UnsupportedModelError(
            f"text_source: {traced.model.title} ran but handed out no attention weights in any layer; "
            "choose another model."
        )
    infos = {part: _part_info(layers, *labels[part]) for part, layers in maps.items()}
    return LiveText(traced.key, maps, infos, inputs.direction, traced)


def _part_info(layers: Sequence[AttentionMap], rows: tuple, columns: tuple) -> PartInfo:
    first = layers[0]
    shared = first.kv_heads < first.heads
    groups = tuple(head * first.kv_heads // first.heads for head in range(first.heads)) if shared else None
    return PartInfo(len(layers), first.heads, rows, columns, groups)


def merged_words(traced: cached.Traced, source: LiveText) -> LiveText:
    """The same attention between words: to a word the weights of its tokens are summed, from a word averaged."""
    from analysis.words import merge_labels, word_groups

    key = f"{source.key}:words"
    infos: dict[Part, PartInfo] = {}
    maps: dict[Part, Sequence[AttentionMap]] = {}
    for part, info in source.infos.items():
        rows, columns = word_groups(info.rows), word_groups(info.columns)
        maps[part] = cached.word_maps(key, part, _maps=source.maps[part], _rows=rows, _columns=columns)
        infos[part] = PartInfo(
            info.layers,
            info.heads,
            merge_labels(info.rows, rows),
            merge_labels(info.columns, columns),
            info.groups,
        )
    return LiveText(key, maps, infos, source.direction, traced)


@dataclass(frozen=True)
class LiveImage:
    """An ``ImageSource`` over one traced picture."""

    key: str
    maps: Sequence[AttentionMap]
    picture: NDArray[np.uint8]
    grids: tuple[LayerGrid, ...]
    prefix_tokens: int
    patch: int
    windowed: bool = False
    traced: cached.Traced | None = None
    live: bool = True

    @property
    def layers(self) -> int:
        """How many layers have maps."""
        return len(self.maps)

    @property
    def heads(self) -> tuple[int, ...]:
        """Heads of each layer."""
        return tuple(layer.heads for layer in self.maps)

    def picture_of(self, layer: int) -> NDArray[np.uint8]:
        """What the patches of a layer cover: the picture, and grey where merged patches reach beyond it."""
        grid, (height, width) = self.grids[layer], self.picture.shape[:2]
        side = grid.stride * self.patch
        covered = grid.rows * side, grid.columns * side
        if covered == (height, width):
            return self.picture
        return np.pad(
            self.picture,
            ((0, covered[0] - height), (0, covered[1] - width), (0, 0)),
            constant_values=BEYOND_PICTURE,
        )

    def rows(self, layer: int, patch: tuple[int, int] | None) -> PatchRows:
        """(H, rows, columns) attention of CLS, of a patch, or the mean over all queries of a model without CLS."""
        query = self._query(layer, patch)
        if query is None:
            row = cached.mean_row(self.key, "encoder", layer, _maps=self.maps)
        else:
            row = cached.map_row(self.key, "encoder", layer, query, _map=self.maps[layer])
        return self._on_patches(layer, row)

    def all_rows(self, patch: tuple[int, int] | None) -> tuple[PatchRows, ...]:
        """The same for every layer."""
        return tuple(self.rows(layer, patch) for layer in range(self.layers))

    def rollout(
        self, patch: tuple[int, int] | None, *, fusion: Fusion, discard_ratio: float, last_layer: int
    ) -> PatchRows:
        """(rows, columns) rollout of CLS, of a patch, or its mean row; of layers that share one grid alone."""
        query = self._query(last_layer, patch)
        row = cached.rollout_row(
            self.key, "encoder", query, fusion, discard_ratio, last_layer, _maps=self.maps
        )
        return self._on_patches(last_layer, row)

    def _query(self, layer: int, patch: tuple[int, int] | None) -> int | None:
        if patch is not None:
            row, column = self.grids[layer].cell(patch)
            return self.prefix_tokens + row * self.grids[layer].columns + column
        return 0 if self.prefix_tokens else None

    def _on_patches(self, layer: int, rows: Floats) -> PatchRows:
        grid, patches = self.grids[layer], rows[..., self.prefix_tokens :]
        removed = rows[..., : self.prefix_tokens].sum(axis=-1)
        if self.windowed:  # what is missing of a row fell on padding
            removed = np.clip(1.0 - rows.sum(axis=-1), 0.0, 1.0) + removed
        return PatchRows(patches.reshape(*rows.shape[:-1], grid.rows, grid.columns), removed)


BEYOND_PICTURE = 128
"""Grey of what a layer's patches cover beyond the picture."""


def image_source(traced: cached.Traced) -> LiveImage:
    """The source of a traced picture.

    Raises:
        UnsupportedModelError: if a layer holds no map over the patches of the picture.
    """
    from attn_core.windows import WindowedMap

    grid, picture = traced.inputs.grid, traced.inputs.picture
    assert grid is not None, "encode_image always gives a grid"
    assert picture is not None, "encode_image always gives the picture"
    maps, found = traced.trace.encoder, traced.trace.grids
    grids = tuple(
        LayerGrid(layer.rows, layer.columns, layer.patch // grid.patch)
        for layer in found
        if layer is not None
    )
    if not maps or len(grids) != len(maps):
        from attn_core.errors import UnsupportedModelError

        inside = ", but inside windows that could not be placed" if any(m.batch > 1 for m in maps) else ""
        raise UnsupportedModelError(
            f"image_source: not every layer of {traced.model.title} attends over the picture's "
            f"{grid.rows} × {grid.columns} patches{inside}; choose a model whose layers do, such as the bundled one."
        )
    windowed = any(isinstance(layer, WindowedMap) for layer in maps)
    return LiveImage(traced.key, maps, picture, grids, grid.prefix_tokens, grid.patch, windowed, traced)
