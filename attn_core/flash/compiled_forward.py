"""FlashAttention in the compiled code of ``tiles.c``: for long inputs on processors where torch's products are slow.

PyTorch's kernel for CPUs multiplies by MKL, which leaves half of an AMD processor with AVX-512 unused. The algorithm
is the same (Dao et al. 2022, algorithm 1): tiles of 72 queries and 256 keys in the second-level cache, a running
maximum and sum of each row, the context rescaled where a maximum grows. Forward only, in float32.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attn_core.flash.compiled import library
from attn_core.flash.panels import Panels, multiplies_quicker
from attn_core.flash.scoring import Scoring
from attn_core.functional import AttentionOutput
from attn_core.watching import worked

WIDEST = 256
"""Largest width of a head (``WIDEST`` in tiles.c)."""

STRIP_WEIGHTS = 2**25
"""Weights after which whoever watches hears of the work, as far as a strip of 72 queries allows."""

LEAST_WEIGHTS = 2**22
"""Below it PyTorch's kernel is taken whatever is quicker: the model then computes just what it does without us."""


def compiled_reason(query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> str | None:
    """Why the compiled kernel cannot be used, or None when it can."""
    found = library()
    if found is None or not found.panel_width():
        return "there is no C compiler here, or it knows no vectors of this processor"
    if query.device.type != "cpu" or query.dtype != torch.float32:
        return f"it takes float32 on a CPU and not {query.dtype} on {query.device.type}"
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in (query, key, value)):
        return "it has no backward pass"
    plain = scoring.rule.is_trivial or scoring.rule.is_plain_causal
    if not plain or any(part is not None for part in (scoring.bias, scoring.softcap, scoring.sinks)):
        return "it knows no other mask than a causal one, no bias, soft cap or sinks"
    if not scoring.scale > 0.0:
        return f"the scale {scoring.scale:g} is not above 0"
    if max(query.shape[3], value.shape[3]) > WIDEST:
        return f"heads are wider than {WIDEST}"
    if 0 in query.shape or 0 in value.shape:
        return "an axis is empty"
    return None


def is_quicker(query: Tensor, key: Tensor) -> bool:
    """Whether it takes clearly less time here than PyTorch's kernel, for an input that is long enough to matter."""
    batch, heads, queries, _ = query.shape
    return batch * heads * queries * key.shape[2] >= LEAST_WEIGHTS and multiplies_quicker()


def compiled_attention(query: Tensor, key: Tensor, value: Tensor, scoring: Scoring) -> AttentionOutput:
    """As ``attn_core.functional.attention``, for what ``compiled_reason`` allows."""
    found = library()
    assert found is not None
    (batch, heads, queries, _), (_, groups, keys, _), width = query.shape, key.shape, value.shape[3]
    query, size = query if query.stride(3) == 1 else query.contiguous(), found.panel_width()
    context = query.new_empty(batch, queries, heads, width).transpose(1, 2)  # heads are put side by side next
    lse = query.new_empty(batch, heads, queries)
    height = max(1, STRIP_WEIGHTS // max(1, heads * keys * 72)) * 72
    for item in range(batch):
        panels, values = Panels.laid_out(key[item], size), _value_panels(value[item], size)
        for start in range(0, queries, height):
            rows = min(height, queries - start)
            given, into, sums = query[item, :, start:], context[item, :, start:], lse[item, :, start:]
            found.strip_attention(
                *(given.data_ptr(), heads, rows, query.shape[3], query.stride(1), query.stride(2)),
                *(panels.values.data_ptr(), values.data_ptr(), heads // groups, keys, width, scoring.scale),
                start + keys - queries if scoring.rule.causal else keys,
                *(into.data_ptr(), context.stride(1), context.stride(2), sums.data_ptr(), lse.stride(1)),
            )
            worked(heads * rows * keys)
    return AttentionOutput(context=context, lse=lse)


def _value_panels(value: Tensor, size: int) -> Tensor:
    """(G, P, K, S) the numbers of values (G, K, E) by panels; keys and numbers beyond the last are 0."""
    groups, keys, width = value.shape
    panels = value.new_zeros(groups, -(-width // size), -(-keys // size) * size, size)
    for panel, part in enumerate(torch.split(value, size, dim=-1)):
        panels[:, panel, :keys, : part.shape[-1]] = part
    return panels
