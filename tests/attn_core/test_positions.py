"""Rotary embedding, ALiBi and sinusoids against their formulas and against the models that use them."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close
from transformers import LlamaConfig
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.gptj import modeling_gptj
from transformers.models.llama import modeling_llama

from attn_core import (
    MaskRule,
    RelativeBias,
    alibi_bias,
    alibi_slopes,
    attention,
    flash_attention,
    rotary,
    sinusoidal_positions,
)


@st.composite
def heads_of(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, bool]:
    """x (B, H, N, D), positions (N,) or (B, N), and a pairing."""
    batch, heads, length = draw(st.integers(1, 3)), draw(st.integers(1, 3)), draw(st.integers(0, 6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    x = torch.randn(
        batch, heads, length, 2 * draw(st.integers(1, 4)), generator=generator, dtype=torch.float64
    )
    shape = draw(st.sampled_from([(length,), (batch, length)]))
    return x, torch.randint(0, 50, shape, generator=generator), draw(st.booleans())


@given(heads_of(), st.sampled_from([10000.0, 500.0]))
def test_rotary_is_the_rotation_of_each_pair(drawn, base: float) -> None:
    x, positions, interleaved = drawn
    batch, heads, length, width = x.shape
    places = positions.expand(batch, length).numpy()
    expected = np.zeros(x.shape)
    for b, h, n, i in np.ndindex(batch, heads, length, width // 2):
        pair = [2 * i, 2 * i + 1] if interleaved else [i, i + width // 2]
        angle = places[b, n] * base ** (-2 * i / width)
        turn = np.array([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
        expected[b, h, n, pair] = turn @ x[b, h, n, pair].numpy()
    found = rotary(x, positions, base=base, interleaved=interleaved)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)


@given(heads_of(), st.integers(0, 100))
def test_products_depend_on_the_distance_alone(drawn, shift: int) -> None:
    x, positions, interleaved = drawn
    near = rotary(x, positions, interleaved=interleaved)
    far = rotary(x, positions + shift, interleaved=interleaved)
    assert_close(far @ far.mT, near @ near.mT, atol=1e-10, rtol=1e-10)
    assert_close(near.norm(dim=-1), x.norm(dim=-1))


def test_rotary_is_that_of_llama() -> None:
    torch.manual_seed(0)
    query, key = torch.randn(2, 4, 9, 16), torch.randn(2, 2, 9, 16)
    config = LlamaConfig(
        hidden_size=64, num_attention_heads=4, rope_parameters={"rope_type": "default", "rope_theta": 5e5}
    )
    positions = torch.arange(9).expand(2, 9) + torch.tensor([[0], [700]])
    cosine, sine = modeling_llama.LlamaRotaryEmbedding(config)(query, positions)
    expected = modeling_llama.apply_rotary_pos_emb(query, key, cosine, sine)
    found = rotary(query, positions, base=5e5), rotary(key, positions, base=5e5)
    assert_close(found, tuple(expected), atol=1e-6, rtol=1e-6)


def test_interleaved_rotary_is_that_of_gptj() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 4, 9, 16)
    sine, cosine = modeling_gptj.create_sinusoidal_positions(9, 16).chunk(2, dim=-1)
    expected = modeling_gptj.apply_rotary_pos_emb(x.transpose(1, 2), sine[None], cosine[None]).transpose(1, 2)
    assert_close(rotary(x, torch.arange(9), interleaved=True), expected, atol=1e-6, rtol=1e-6)


def test_half_precision_is_rotated_in_single() -> None:
    x = torch.randn(1, 1, 300, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    positions = torch.arange(300)
    found = rotary(x, positions)
    assert found.dtype == torch.bfloat16
    assert torch.equal(found, rotary(x.float(), positions).bfloat16())


def test_rotary_gradients_are_right() -> None:
    x = torch.randn(1, 2, 3, 4, dtype=torch.float64, requires_grad=True)
    for interleaved in (False, True):
        assert torch.autograd.gradcheck(
            lambda x, pairing=interleaved: rotary(x, torch.arange(3), interleaved=pairing), (x,)
        )


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 16, 20])
def test_alibi_is_that_of_bloom(heads: int) -> None:
    # Bloom adds slope · key, which differs from −slope · (query − key) by a constant of the row.
    theirs = build_alibi_tensor(torch.ones(1, 7), heads, torch.float32)  # (H, 1, K)
    ours = alibi_bias(heads, 7, 7).dense()[0]  # (H, Q, K)
    seen = torch.ones(7, 7).tril().bool()
    shifted = (ours - ours[..., :1]).masked_fill(~seen, 0.0)
    assert_close(shifted, (theirs - theirs[..., :1]).expand(heads, 7, 7).masked_fill(~seen, 0.0))


def test_slopes_of_a_power_of_two_are_the_papers() -> None:
    assert alibi_slopes(8).tolist() == [2.0**-i for i in range(1, 9)]


@given(st.integers(1, 5), st.integers(0, 7), st.integers(0, 7))
def test_alibi_charges_each_distance(heads: int, queries: int, keys: int) -> None:
    bias = alibi_bias(heads, queries, keys, dtype=torch.float64)
    slopes = alibi_slopes(heads, dtype=torch.float64)
    expected = torch.zeros(1, heads, queries, keys, dtype=torch.float64)
    for h, i, j in np.ndindex(heads, queries, keys):
        expected[0, h, i, j] = -slopes[h] * abs(i + keys - queries - j)
    assert isinstance(bias, RelativeBias)
    assert_close(bias.dense(), expected)
    if queries and keys:
        assert_close(bias.block(slice(0, 1), slice(1, None)), expected[:, :, :1, 1:])


def test_alibi_serves_attention_as_its_table() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(1, 6, 3, 4), torch.randn(1, 2, 7, 4), torch.randn(1, 2, 7, 4)
    bias, rule = alibi_bias(6, 3, 7), MaskRule(causal=True)
    expected = attention(query, key, value, rule=rule, bias=bias.dense()).context
    for impl in ("reference", "tiled", "fused"):
        assert_close(flash_attention(query, key, value, rule=rule, bias=bias, impl=impl).context, expected)


@given(st.integers(0, 9), st.integers(0, 5))
def test_sinusoids_are_the_formula(length: int, half: int) -> None:
    expected = np.zeros((length, 2 * half))
    for n, i in np.ndindex(length, half):
        angle = n / 10000 ** (2 * i / (2 * half))
        expected[n, 2 * i], expected[n, 2 * i + 1] = math.sin(angle), math.cos(angle)
    found = sinusoidal_positions(torch.arange(length), 2 * half, dtype=torch.float64)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-12)
    assert sinusoidal_positions(torch.arange(length), 2 * half).dtype == torch.float32


def test_arguments_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match="rotary: x must have an even number of channels but has 3"):
        rotary(torch.randn(1, 1, 2, 3), torch.arange(2))
    with pytest.raises(ValueError, match=r"positions must be \(2,\) or \(1, 2\) but are \(3,\)"):
        rotary(torch.randn(1, 1, 2, 4), torch.arange(3))
    with pytest.raises(ValueError, match="alibi_slopes: heads must be at least 1 but is 0"):
        alibi_slopes(0)
    with pytest.raises(ValueError, match="sinusoidal_positions: width must have an even number"):
        sinusoidal_positions(torch.arange(2), 5)
    with pytest.raises(ValueError, match="sinusoidal_positions: positions must have 1 axes"):
        sinusoidal_positions(torch.zeros(1, 2), 4)
