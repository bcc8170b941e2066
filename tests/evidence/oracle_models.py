"""Models and inputs of the oracles, as the program holds them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from analysis.inputs import Inputs, PatchGrid
from analysis.models import LoadedModel, load_model

ORACLES = Path(__file__).parent.parent / "oracles"
PICTURES = ("vit_noise", "vit_tabby")


def oracle(folder: str, name: str) -> tuple[Mapping[str, NDArray[Any]], dict[str, Any]]:
    """Arrays and description of a case."""
    place = ORACLES / folder
    return np.load(place / f"{name}.npz"), json.loads((place / f"{name}.json").read_text())


@cache
def small_vit(dtype: str = "float64") -> LoadedModel:
    """The random ViT: hidden 48, 4 layers, 3 heads, 32 pixels in patches of 8, 5 labels."""
    return load_model(ORACLES / "models" / "vit_small_seed0", device="cpu", dtype=dtype)


def pixels_of(values: NDArray[Any], *, patch: int, dtype: torch.dtype = torch.float64) -> Inputs:
    """Ready pixel values (1, 3, H, W) as inputs of a model with one prefix token."""
    _, _, height, width = values.shape
    rows, columns = height // patch, width // patch
    count = 1 + rows * columns
    return Inputs(
        tensors={"pixel_values": torch.from_numpy(np.asarray(values)).to(dtype)},
        tokens=None,
        target_tokens=None,
        grid=PatchGrid(rows, columns, patch, height, width, 1),
        picture=None,
        source="oracle",
        digest="oracle",
        notes=(),
        total_tokens=count,
        kept_tokens=count,
    )
