"""Tiny random models of the transformers library, and the files that it writes of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn

from analysis.hf.attention import switched
from attn_core.edits import uniform
from attn_core.seam import editing
from tests.tiny_models import sharpen

DTYPES = (torch.float32, torch.float64)
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}
"""Of outputs and weights. Sums of a few dozen numbers near 1 are rounded by less."""


def library_model(
    name: str,
    options: dict[str, Any],
    *,
    dtype: torch.dtype = torch.float32,
    implementation: Literal["eager", "sdpa"] = "eager",
    seed: int = 0,
    sharpness: float = 2.0,
) -> Any:
    """The library's model with random weights that make every term matter.

    Args:
        implementation: "eager" hands weights out; in float64 some of its softmaxes are rounded to float32, and those
            of "sdpa" are not.
    """
    chosen: Any = getattr(transformers, name)
    config = chosen.config_class(**options)
    module = chosen._from_config(config, attn_implementation=implementation)
    sharpen(module, seed=seed, sharpness=sharpness)
    for part in module.modules():
        if hasattr(
            part, "create_weight"
        ):  # sinusoids are no parameters, though the library keeps them as such
            part.weight.data.copy_(part.create_weight())
    return module.to(dtype).train(False)


def files_of(module: Any, folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Config and tensors as ``save_pretrained`` writes them."""
    module.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    return config, load_file(folder / "model.safetensors")


def text(
    lengths: tuple[int, ...], *, left: bool = False, vocabulary: int = 60, seed: int = 3
) -> tuple[Tensor, Tensor]:
    """(B, N) ids and validity of random texts, padded with 0 on one side."""
    generator = torch.Generator().manual_seed(seed)
    width = max(lengths)
    ids = torch.randint(5, vocabulary, (len(lengths), width), generator=generator)
    place, length = torch.arange(width), torch.tensor(lengths)[:, None]
    valid = place >= width - length if left else place < length
    return ids.masked_fill(~valid, 0), valid


def counted(valid: Tensor) -> Tensor:
    """Positions of a padded batch, padding not counted."""
    return (valid.long().cumsum(-1) - 1).clamp(min=0)


@contextmanager
def first_head_uniform(module: nn.Module, heads: int) -> Iterator[None]:
    """The first head of every layer attends alike to all that it may see, in the library's model or in ours."""
    chosen = torch.zeros(1, heads, dtype=torch.bool)
    chosen[0, 0] = True
    edit = uniform(chosen)
    if isinstance(module, transformers.PreTrainedModel):
        with switched(module), editing(lambda _: edit):
            yield
    else:
        with editing(lambda _: edit):
            yield


def assert_near(
    found: Tensor, expected: Tensor, dtype: torch.dtype, *, tolerance: float | None = None
) -> None:
    """Equal up to rounding, and no NaN."""
    assert found.shape == expected.shape
    difference = float((found - expected).detach().abs().max()) if found.numel() else 0.0
    assert difference <= (TOLERANCE[dtype] if tolerance is None else tolerance), difference
