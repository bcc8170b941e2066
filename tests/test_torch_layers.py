"""Capture of PyTorch's own attention layers, whatever fast path they have (case M7)."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from analysis.hf.attention import capture
from attn_core import UnsupportedModelError


def hand_weights(layer: nn.MultiheadAttention, x: torch.Tensor) -> torch.Tensor:
    """Per-head weights (B, H, N, N) from the packed projection, by the formula."""
    batch, n, width = x.shape
    query, key, _ = nn.functional.linear(x, layer.in_proj_weight, layer.in_proj_bias).chunk(3, dim=-1)
    query, key = (t.view(batch, n, layer.num_heads, -1).transpose(1, 2) for t in (query, key))
    return (query @ key.transpose(-1, -2) / (width // layer.num_heads) ** 0.5).softmax(-1)


@pytest.mark.parametrize("heads", [8, 3])
def test_encoder_layers_are_seen_with_even_and_odd_heads(heads: int) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(24, heads, 32, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(2, 5, 24)
    with torch.no_grad():
        plain = model(x)
        with capture(model) as trace:
            output = model(x)
    assert_close(output, plain, atol=1e-5, rtol=1e-5)
    assert len(trace.encoder) == 2
    assert trace.fallback
    assert_close(trace.encoder[0].weights(), hand_weights(model.layers[0].self_attn, x).detach())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_padding_is_cut_out_of_an_item() -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    x = torch.randn(2, 5, 16)
    padding = torch.tensor([[False] * 5, [False, False, False, True, True]])
    with torch.no_grad(), capture(model) as trace:
        model(x, src_key_padding_mask=padding)
    with torch.no_grad(), capture(model) as alone:
        model(x[1:, :3])
    assert_close(trace.item(1).encoder[0].dense(), alone.encoder[0].dense())


def test_decoder_and_cross_attention_are_told_apart() -> None:
    torch.manual_seed(0)
    model = nn.Transformer(16, 4, 1, 2, 32, batch_first=True).eval()
    with torch.no_grad(), capture(model) as trace:
        model(torch.randn(1, 6, 16), torch.randn(1, 4, 16))
    assert [len(maps) for maps in (trace.encoder, trace.decoder, trace.cross)] == [1, 2, 2]
    assert (trace.cross[0].queries, trace.cross[0].keys) == (4, 6)


def test_a_model_without_attention_is_refused() -> None:
    model = nn.Linear(3, 3)
    with pytest.raises(UnsupportedModelError, match="no attention of Linear was seen"), capture(model):
        model(torch.zeros(1, 3))
