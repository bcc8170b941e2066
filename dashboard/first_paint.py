"""The example that the first page shows before torch is imported: exact numbers of the bundled models, shipped.

``scripts/make_example.py`` writes ``example.npz``; a test holds it equal to a live trace. Everything here needs NumPy
and the standard library alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from analysis.figure_data import Floats, TokenLabel
from dashboard.selection import Fusion, ImageChoices, Part, TextChoices
from dashboard.sources import HeadNumbers, LayerGrid, PartInfo, PatchRows
from dashboard.warmup import ModelRequest

EXAMPLE_FILE = Path(__file__).with_name("example.npz")


@dataclass(frozen=True)
class ExampleText:
    """The default sentence on the bundled text model: a ``TextSource`` that answers from the file."""

    model: str
    revision: str
    sample: str
    layers: int
    labels: tuple[TokenLabel, ...]
    notes: tuple[str, ...]
    weights: Floats  # (L, H, N, N)
    rollout_weights: Floats  # (N, N) mean fusion, nothing discarded, all layers
    entropy: Floats  # (L, H), as max_weight and mean_distance
    max_weight: Floats
    mean_distance: Floats
    key: str = "example:text"
    live: bool = False
    traced: None = None
    parts: tuple[Part, ...] = ("encoder",)
    direction: Literal["ltr", "rtl"] = "ltr"

    def answers(self, choices: TextChoices) -> bool:
        """Whether the file holds what these choices ask for."""
        asked = choices.model.request == ModelRequest(self.model)
        same = (
            choices.input.kind == "sample" and choices.input.name == self.sample and not choices.merge_words
        )
        return asked and same and (choices.view != "rollout" or _default_rollout(choices, self.layers))

    def part(self, part: Part) -> PartInfo:
        """Size and labels."""
        return PartInfo(self.layers, self.weights.shape[1], self.labels, self.labels)

    def block(self, part: Part, layer: int, rows: slice, columns: slice) -> Floats:
        """(H, r, c) weights of a layer."""
        return self.weights[layer, :, rows, columns]

    def matrix(self, part: Part, layer: int, head: int | None) -> Floats:
        """(N, N) weights of a head, or the mean over heads."""
        return self.weights[layer].mean(axis=0) if head is None else self.weights[layer, head]

    def thumbnails(self, part: Part) -> Floats:
        """(L, H, N, N): the sentence is short enough to show every cell."""
        return self.weights

    def rollout(self, part: Part, *, fusion: Fusion, discard_ratio: float, last_layer: int) -> Floats:
        """(N, N) the default rollout; ``answers`` says when it is the one that is asked for."""
        return self.rollout_weights

    def rollout_row(
        self, part: Part, query: int, *, fusion: Fusion, discard_ratio: float, last_layer: int
    ) -> Floats:
        """(N,) a row of it."""
        return self.rollout_weights[query]

    def rollout_fits(self, part: Part) -> bool:
        """The sentence is short."""
        return True

    def numbers(self, part: Part, layer: int) -> HeadNumbers:
        """Figures of each head of a layer."""
        return HeadNumbers(self.entropy[layer], self.max_weight[layer], self.mean_distance[layer])


@dataclass(frozen=True)
class ExampleImage:
    """The default photograph on the bundled image model: an ``ImageSource`` that answers for CLS from the file."""

    model: str
    revision: str
    sample: str
    side: int
    layers: int
    prefix_tokens: int
    notes: tuple[str, ...]
    picture: NDArray[np.uint8]
    maps: Floats  # (L, H, rows, columns) the CLS row of every head
    removed: Floats  # (L, H)
    rollout_map: Floats  # (rows, columns)
    rollout_removed: Floats  # ()
    key: str = "example:image"
    live: bool = False
    traced: None = None
    windowed: bool = False

    @property
    def grids(self) -> tuple[LayerGrid, ...]:
        """The patches of each layer."""
        return (LayerGrid(*self.maps.shape[2:]),) * self.layers

    @property
    def heads(self) -> tuple[int, ...]:
        """Heads of each layer."""
        return (self.maps.shape[1],) * self.layers

    def picture_of(self, layer: int) -> NDArray[np.uint8]:
        """The picture, which the patches of every layer cover."""
        return self.picture

    def answers(self, choices: ImageChoices) -> bool:
        """Whether the file holds what these choices ask for."""
        asked = choices.model.request == ModelRequest(self.model)
        picture = choices.input.kind == "sample" and choices.input.name == self.sample
        same = picture and choices.input.side == self.side and choices.patch is None
        return asked and same and (choices.view != "rollout" or _default_rollout(choices, self.layers))

    def rows(self, layer: int, patch: tuple[int, int] | None) -> PatchRows:
        """(H, rows, columns) attention of CLS."""
        return PatchRows(self.maps[layer], self.removed[layer])

    def all_rows(self, patch: tuple[int, int] | None) -> tuple[PatchRows, ...]:
        """(H, rows, columns) attention of CLS in each layer."""
        return tuple(self.rows(layer, patch) for layer in range(self.layers))

    def rollout(
        self, patch: tuple[int, int] | None, *, fusion: Fusion, discard_ratio: float, last_layer: int
    ) -> PatchRows:
        """(rows, columns) the default rollout of CLS."""
        return PatchRows(self.rollout_map, self.rollout_removed)


@dataclass(frozen=True)
class Example:
    """What the file holds."""

    text: ExampleText
    image: ExampleImage
    thumbnails: Mapping[str, bytes]
    """JPEG of each sample picture, by sample id, for the buttons that choose one."""


def read_example(file: Path = EXAMPLE_FILE) -> Example:
    """The shipped example.

    Raises:
        FileNotFoundError: if the file is missing; write it with ``python -m scripts.make_example``.
    """
    with np.load(file, allow_pickle=False) as stored:
        facts: dict[str, Any] = json.loads(stored["facts"].tobytes())
        arrays = {name: stored[name] for name in stored.files if name != "facts"}
    for array in arrays.values():
        array.flags.writeable = False
    text, image = facts["text"], facts["image"]
    return Example(
        text=ExampleText(
            **{**text, "labels": tuple(TokenLabel(**label) for label in text["labels"])},
            **_of(arrays, "text_"),
        ),
        image=ExampleImage(**image, **_of(arrays, "image_")),
        thumbnails={name: data.tobytes() for name, data in _of(arrays, "thumbnail_").items()},
    )


def _of(arrays: Mapping[str, NDArray[Any]], prefix: str) -> dict[str, Any]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


def _default_rollout(choices: TextChoices | ImageChoices, layers: int) -> bool:
    whole = choices.rollout_layer in (None, layers - 1)
    return choices.fusion == "mean" and choices.discard_ratio == 0.0 and whole
