"""Masks as rules: what the library's mask interface hands to models instead of an n × n array."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import masking_utils
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
    the block that is asked for. Causal masks, sliding windows and padding are recognised: kernels know them, and skip
    the blocks that they leave out.
    """
    key_valid = None
    if attention_mask is not None:
        key_valid = attention_mask[:, kv_offset : kv_offset + kv_length].bool()
        if key_valid.shape[1] < kv_length:  # static caches: positions not written yet
            key_valid = nn.functional.pad(key_valid, (0, kv_length - key_valid.shape[1]))
    aligned = q_offset + q_length == kv_offset + kv_length  # as a rule places its diagonal
    band = band_of(mask_function)
    if band is not None and (aligned or band.is_trivial):
        rule = replace(band, key_valid=key_valid)
    else:
        shifted = functools.partial(_shifted, mask_function, q_offset, kv_offset)
        rule = MaskRule(key_valid=key_valid, predicate=shifted, predicate_batch=batch_size)
    return RuleMask.of(rule, batch=batch_size, queries=q_length, keys=kv_length, device=torch.device(device))


def band_of(function: Callable[..., Any]) -> MaskRule | None:
    """The rule of one of the library's causal, bidirectional and sliding-window masks; None for any other function.

    Such a mask is a conjunction of functions that the library makes; they are known by their code, their windows read
    from what they close over, and the rule is compared with the function around the window's edges.
    """
    rule = MaskRule()
    overlay = None
    for part in _conjunction(function):
        code = getattr(part, "__code__", None)
        if code is causal_mask_function.__code__:
            rule = replace(rule, causal=True)
        elif code is _SLIDING:
            overlay = int(inspect.getclosurevars(part).nonlocals["sliding_window"])
        elif code is _SLIDING_BOTH_WAYS:
            around = (
                int(inspect.getclosurevars(part).nonlocals["sliding_window"]) + 1
            )  # it counts the last one in
            rule = replace(rule, window=around if rule.window is None else min(rule.window, around))
        elif code is not masking_utils.bidirectional_mask_function.__code__:
            return None
    if overlay is not None:
        if not rule.causal or overlay < 1:  # it says nothing of later keys
            return None
        rule = replace(rule, window=overlay if rule.window is None else min(rule.window, overlay))
    return rule if _same_around_the_edges(rule, function) else None


def _conjunction(function: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """The functions that a mask is the conjunction of; itself, where it is none."""
    if getattr(function, "__code__", None) is not _AND:
        yield function
        return
    for part in inspect.getclosurevars(function).nonlocals["mask_functions"]:
        yield from _conjunction(part)


def _same_around_the_edges(rule: MaskRule, function: Callable[..., Any]) -> bool:
    """Whether rule and function agree on the keys next to the diagonal and to both edges of the window."""
    window = 1 if rule.window is None else rule.window
    query = torch.tensor(3 * window + 3)
    keys = torch.cat([query + edge + torch.arange(-2, 3) for edge in (-window, 0, window)])
    zero = torch.zeros_like(keys)
    allowed = rule.allowed(query[None], keys, queries=10**9, keys=10**9)
    expected = torch.ones_like(keys, dtype=torch.bool) if allowed is None else allowed.flatten()
    return torch.equal(function(zero, zero, query.expand_as(keys), keys).expand_as(expected), expected)


# The library makes these functions anew for each mask; what stays is their code.
_AND = masking_utils.and_masks().__code__
_SLIDING = masking_utils.sliding_window_overlay(1).__code__
_SLIDING_BOTH_WAYS = masking_utils.sliding_window_bidirectional_overlay(1).__code__


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
