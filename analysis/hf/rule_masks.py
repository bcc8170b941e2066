"""Masks as rules: what the library's mask interface hands to models instead of an n × n array."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers.masking_utils import causal_mask_function

from attn_core.masks import MaskRule
from attn_core.seam import bias_made_from, known_table


class RuleMask(torch.Tensor):
    """A mask as models hand it around, (B, 1, Q, K) in shape, that holds its rule and no n × n numbers.

    Our attention reads ``rule``. Any tensor operation on it works on the written-out mask: boolean (True = may
    attend), or additive when it is added to scores, as the library's eager attention does. So a model that looks into
    its mask, or another thread that is in the middle of a plain forward pass, still computes the right thing.
    """

    rule: MaskRule

    @staticmethod
    def of(rule: MaskRule, *, batch: int, queries: int, keys: int, device: torch.device) -> RuleMask:
        """The mask of a rule; O(1) memory."""
        shell = torch.ones((), dtype=torch.bool, device=device).expand(batch, 1, queries, keys)
        mask: RuleMask = torch.Tensor._make_subclass(RuleMask, shell)
        mask.rule = rule
        return mask

    def written_out(self) -> Tensor:
        """The boolean mask (B, 1, Q, K)."""
        batch, _, queries, keys = self.shape
        rows, columns = (torch.arange(n, device=self.device) for n in (queries, keys))
        allowed = self.rule.allowed(rows, columns, queries=queries, keys=keys)
        if allowed is None:
            return torch.ones((batch, 1, queries, keys), dtype=torch.bool, device=self.device)
        return allowed.expand(batch, -1, queries, keys)

    @classmethod
    def __torch_function__(
        cls,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__name__", "") in _METADATA:
            with torch._C.DisableTorchFunctionSubclass():
                return func(*args, **kwargs)
        additive = getattr(func, "__name__", "") in _ADDITIONS
        others = [a for a in args if isinstance(a, Tensor) and not isinstance(a, RuleMask)]
        dtype = next((a.dtype for a in others if a.is_floating_point()), torch.float32)

        if getattr(func, "__name__", "") == "add" and len(others) == 1 and not kwargs:
            mask = next(a for a in args if isinstance(a, RuleMask))
            unchanged = _plus_nothing(others[0], mask)
            if unchanged is not None:
                return unchanged

        def plain(value: Any) -> Any:
            if not isinstance(value, RuleMask):
                return value
            written = value.written_out()
            if not additive:
                return written
            return torch.zeros(written.shape, dtype=dtype, device=written.device).masked_fill(
                ~written, torch.finfo(dtype).min
            )

        return func(*(plain(a) for a in args), **{name: plain(value) for name, value in kwargs.items()})


def _plus_nothing(bias: Tensor, mask: RuleMask) -> Tensor | None:
    """A bias (BEiT's) plus a mask that allows every pair: the bias, still known by the table that it is read from."""
    table = known_table(bias) if mask.rule.is_trivial and bias.shape[2:] == mask.shape[2:] else None
    if table is None:
        return None
    total = bias.expand(max(bias.shape[0], mask.shape[0]), -1, -1, -1)
    bias_made_from(total, table)
    return total


_METADATA = frozenset(
    {"__get__", "size", "dim", "ndimension", "numel", "is_floating_point", "__len__", "get_device"}
)
_ADDITIONS = frozenset({"add", "__add__", "__radd__", "__iadd__", "add_", "sub", "__rsub__"})


def rule_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    device: torch.device | str = "cpu",
    **_: Any,
) -> RuleMask | None:
    """Our entry in the library's mask interface: the rule of a mask instead of the mask.

    The library describes every mask as a function of index tensors; the rule keeps that function and evaluates it on
    the block that is asked for. Plain causal masks and padding are recognised, since fused kernels know them.
    """
    key_valid = None
    if attention_mask is not None:
        key_valid = attention_mask[:, kv_offset : kv_offset + kv_length].bool()
        if key_valid.shape[1] < kv_length:  # static caches: positions not written yet
            key_valid = nn.functional.pad(key_valid, (0, kv_length - key_valid.shape[1]))
    if mask_function is causal_mask_function and q_offset + q_length == kv_offset + kv_length:
        rule = MaskRule(causal=True, key_valid=key_valid)
    elif getattr(mask_function, "__name__", "") == "bidirectional_mask_function":
        rule = MaskRule(key_valid=key_valid)
    else:
        shifted = functools.partial(_shifted, mask_function, q_offset, kv_offset)
        rule = MaskRule(key_valid=key_valid, predicate=shifted, predicate_batch=batch_size)
    return RuleMask.of(rule, batch=batch_size, queries=q_length, keys=kv_length, device=torch.device(device))


def _shifted(
    function: Callable[..., Any],
    q_offset: int,
    kv_offset: int,
    items: Tensor,
    heads: Tensor,
    q: Tensor,
    k: Tensor,
) -> Tensor:
    allowed: Tensor = function(items, heads, q + q_offset, k + kv_offset)
    return allowed
