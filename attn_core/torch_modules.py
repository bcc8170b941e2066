"""Attention of PyTorch's own ``nn.MultiheadAttention``, alone or inside ``nn.TransformerEncoder`` and others."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from torch import Tensor, nn

from attn_core.maps import DenseMap

_asking: ContextVar[list[tuple[str, DenseMap]] | None] = ContextVar("attn_core_asking", default=None)


@contextmanager
def recording_multihead(module: nn.Module) -> Iterator[list[tuple[str, DenseMap]]]:
    """Record every ``nn.MultiheadAttention`` of ``module`` inside the block, as (qualified name, weights per head).

    PyTorch's encoder layers have a fast path that skips their attention module; it is not taken while hooks are
    attached. The hooks act for this context alone, so other threads may use the module meanwhile, and they are gone
    after the block.
    """
    found: list[tuple[str, DenseMap]] = []
    token = _asking.set(found)
    hooks = []
    for name, part in module.named_modules():
        if isinstance(part, nn.MultiheadAttention):
            hooks.append(part.register_forward_pre_hook(_asker(found), with_kwargs=True))
            hooks.append(part.register_forward_hook(_reader(found, name), with_kwargs=True))
    try:
        yield found
    finally:
        for hook in hooks:
            hook.remove()
        _asking.reset(token)


def _asker(found: list[tuple[str, DenseMap]]) -> Any:
    # A hook that is removed while another thread runs the module may still be called there, and without its kwargs
    # (torch looks the flag up after it has listed the hooks), so it asks whose call this is before it reads them.
    def ask(_: nn.Module, args: tuple[Any, ...], *more: Any) -> tuple[Any, dict[str, Any]] | None:
        if _asking.get() is not found:
            return None
        (kwargs,) = more
        return args, {**kwargs, "need_weights": True, "average_attn_weights": False}

    return ask


def _reader(found: list[tuple[str, DenseMap]], name: str) -> Any:
    def read(_: nn.Module, __: tuple[Any, ...], *more: Any) -> None:
        if _asking.get() is not found:
            return
        kwargs, output = more
        weights = output[1].detach()
        weights = weights if weights.ndim == 4 else weights[None]  # an input without a batch axis
        padding = kwargs.get("key_padding_mask")
        key_valid = None if padding is None else _valid(padding)
        square = weights.shape[2] == weights.shape[3]
        found.append(
            (name, DenseMap(stored=weights, row_valid=key_valid if square else None, key_valid=key_valid))
        )

    return read


def _valid(padding: Tensor) -> Tensor:
    """``nn.MultiheadAttention`` marks padding with True, or with −∞ in an additive mask."""
    valid = ~padding if not padding.is_floating_point() else ~padding.isneginf()
    return valid if valid.ndim == 2 else valid[None]
