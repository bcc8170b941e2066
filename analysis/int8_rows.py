"""Weights in one byte each: every row of a matrix as whole numbers from −127 to 127 and a scale of its own.

The scale of a row is its largest magnitude / 127, so each weight is off by at most half a scale. Vectors stay as they
are, in float32. ``<name>`` holds the whole numbers and ``<name>.scale`` the scales.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

_SCALE = ".scale"


def int8_rows(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Matrices (rows, columns) in one byte each, with the scales (rows,) of their rows; all else in float32."""
    small: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if tensor.ndim != 2:
            small[name] = tensor.float().contiguous()
            continue
        scale = tensor.float().abs().amax(-1) / 127
        safe = torch.where(scale == 0, torch.ones_like(scale), scale)
        small[name] = (tensor.float() / safe[:, None]).round().clamp(-127, 127).to(torch.int8)
        small[name + _SCALE] = safe
    return small


def from_int8_rows(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The float32 tensors that ``int8_rows`` made small.

    Raises:
        ValueError: if whole numbers come without their scales.
    """
    whole: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if name.endswith(_SCALE) and name.removesuffix(_SCALE) in tensors:
            continue
        if tensor.dtype != torch.int8:
            whole[name] = tensor
            continue
        scale = tensors.get(name + _SCALE)
        if scale is None or scale.shape != tensor.shape[:1]:
            raise ValueError(
                f"from_int8_rows: tensors must hold {name + _SCALE} with {tensor.shape[0]} scales; take the file as "
                "it was written."
            )
        whole[name] = tensor.float() * scale[:, None]
    return whole
