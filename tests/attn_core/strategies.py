"""Shapes, masks and tensors that hypothesis draws for attention."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor

from attn_core import MaskRule


@dataclass(frozen=True)
class Case:
    """Query (B, H, Q, D), key and value (B, G, K, D), a rule and a bias."""

    query: Tensor
    key: Tensor
    value: Tensor
    rule: MaskRule
    bias: Tensor | None
    softcap: float | None


@st.composite
def cases(draw: st.DrawFn, *, dtype: torch.dtype = torch.float64, padding: bool = True) -> Case:
    """Any small attention: grouped heads, unequal lengths, causal, windows, padding, bias, soft cap, empty rows."""
    batch, groups, width = draw(st.integers(1, 2)), draw(st.integers(1, 3)), draw(st.integers(1, 8))
    heads = groups * draw(st.integers(1, 3))
    queries, keys = draw(st.integers(1, 9)), draw(st.integers(1, 9))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype) * 2

    key_valid = None
    if padding and draw(st.booleans()):
        key_valid = torch.rand(batch, keys, generator=generator) > 0.3
    rule = MaskRule(
        causal=draw(st.booleans()), window=draw(st.none() | st.integers(1, 10)), key_valid=key_valid
    )
    bias_shape = draw(
        st.sampled_from([None, (1, heads, queries, keys), (batch, 1, 1, keys), (1, 1, queries, 1)])
    )
    return Case(
        query=normal(batch, heads, queries, width),
        key=normal(batch, groups, keys, width),
        value=normal(batch, groups, keys, width),
        rule=rule,
        bias=None if bias_shape is None else normal(*bias_shape),
        softcap=draw(st.none() | st.floats(0.5, 5.0)),
    )
