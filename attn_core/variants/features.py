"""Feature maps φ whose inner products stand in for the exponential of a score."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

FeatureMap = Literal["elu_plus_one", "relu", "identity"]


def elu_plus_one(tensor: Tensor) -> Tensor:
    """elu(x) + 1, positive everywhere (Katharopoulos et al. 2020, equation 7).

    Written as eˣ for x ≤ 0: (eˣ − 1) + 1 would round to 0 below x = −17 in float32 and empty whole rows.
    """
    return torch.where(tensor > 0, tensor + 1, torch.exp(tensor.clamp(max=0)))


def identity(tensor: Tensor) -> Tensor:
    """The tensor itself; for features that were made before."""
    return tensor


FEATURE_MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "elu_plus_one": elu_plus_one,
    "relu": torch.relu,
    "identity": identity,
}


def feature_function(name: FeatureMap, function: str) -> Callable[[Tensor], Tensor]:
    """The feature map of a name.

    Raises:
        ValueError: if there is none; the message starts with ``function``.
    """
    if name not in FEATURE_MAPS:
        raise ValueError(
            f"{function}: feature_map must be {', '.join(FEATURE_MAPS)} but is {name!r}; choose one of them."
        )
    return FEATURE_MAPS[name]
