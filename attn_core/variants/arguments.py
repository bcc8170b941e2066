"""Checks of masks that the variants share."""

from __future__ import annotations

import torch
from torch import Tensor

from attn_core.masks import MaskRule


def check_key_valid(key_valid: Tensor | None, key: Tensor, function: str) -> None:
    """Raise unless ``key_valid`` is None or bool (B, K) for key (B, G, K, D).

    Raises:
        ValueError: otherwise; the message starts with ``function``.
    """
    shape = (key.shape[0], key.shape[2])
    if key_valid is not None and (tuple(key_valid.shape) != shape or key_valid.dtype != torch.bool):
        raise ValueError(
            f"{function}: key_valid must be a bool tensor (B, K) = {shape} but is {key_valid.dtype} "
            f"{tuple(key_valid.shape)}; pass the padding of the same keys, attention_mask.bool()."
        )


def check_plain_rule(rule: MaskRule | None, key: Tensor, function: str) -> None:
    """Raise unless ``rule`` has only the parts that every paper here has: causal, and key_valid of these keys.

    Raises:
        ValueError: for a window or a predicate, or for padding of other keys.
    """
    if rule is None:
        return
    if rule.window is not None or rule.has_pair_parts:
        raise ValueError(
            f"{function}: rule may be causal and have key_valid but has a window or a predicate; "
            "use attention for it."
        )
    check_key_valid(rule.key_valid, key, function)
