"""The five alignment architectures against their formulas in float64 NumPy, and what each of them cannot see."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from attn_core import FactoredMap, LuongAttention, editing, recording, uniform
from attn_core.variants.alignments import (
    ALIGNMENTS,
    EncoderDecoderDot,
    EncoderDecoderQkv,
    EncoderOnlyDot,
    EncoderOnlyQkv,
    FullyConnectedAlignment,
)
from tests.oracle_numpy import oracle_attention

WIDTH, LONGEST = 5, 8
ENCODER_ONLY = [name for name, kind in ALIGNMENTS.items() if not kind.uses_decoder]


@dataclass(frozen=True)
class Sides:
    """encoder (B, K, 5), decoder (B, Q, 5) and key_valid (B, K) or None; any of them may be empty."""

    encoder: Tensor
    decoder: Tensor
    key_valid: Tensor | None


@st.composite
def sides(draw: st.DrawFn, *, smallest: int = 0, padding: bool = True) -> Sides:
    batch, keys, queries = (
        draw(st.integers(1, 3)),
        draw(st.integers(smallest, LONGEST)),
        draw(st.integers(smallest, 6)),
    )
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    valid = torch.rand(batch, keys, generator=generator) > 0.3 if padding and draw(st.booleans()) else None
    return Sides(
        torch.randn(batch, keys, WIDTH, generator=generator, dtype=torch.float64),
        torch.randn(batch, queries, WIDTH, generator=generator, dtype=torch.float64),
        valid,
    )


def seeded(layer: nn.Module) -> nn.Module:
    """The layer in float64, its parameters drawn from a seed."""
    generator = torch.Generator().manual_seed(0)
    layer = layer.double().requires_grad_(False)
    for parameter in layer.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 2)
    return layer


def made(name: str) -> nn.Module:
    return seeded(ALIGNMENTS[name].make(WIDTH, LONGEST))


def run(layer: nn.Module, drawn: Sides) -> tuple[Tensor, Tensor, Tensor]:
    """Context (B, Q, E), weights and scores (B, Q, K), the last two as the recording tells them."""
    with recording() as record:
        context = layer(drawn.encoder, drawn.decoder, key_valid=drawn.key_valid)
    (call,) = record.calls
    assert call.module is layer
    assert isinstance(call.map, FactoredMap)
    weights = call.map.weights()
    return context, weights[:, 0], (weights.log() + call.map.lse[..., None])[:, 0]


def parts(layer: nn.Module, drawn: Sides) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, float]:
    """Query, key and value (B, ·, M), bias (K,) and scale of each architecture, written out."""
    x, s = drawn.encoder.numpy(), drawn.decoder.numpy()
    none = np.zeros(x.shape[1])
    p = {name: value.numpy() for name, value in layer.named_parameters()}
    if isinstance(layer, EncoderDecoderDot):
        return s, x, x, none, 1.0
    if isinstance(layer, EncoderOnlyDot):
        return x, x, x, none, 1.0
    if isinstance(layer, FullyConnectedAlignment):
        if "inner.weight" in p:
            s = np.tanh(s @ p["inner.weight"].T + p["inner.bias"])
        rows, bias = p["places.weight"][: x.shape[1]], p["places.bias"][: x.shape[1]]
        return s, np.broadcast_to(rows, (len(x), *rows.shape)), x, bias, 1.0
    w = [p[f"{part}_projection.weight"].T for part in ("query", "key", "value")]
    return (s if isinstance(layer, EncoderDecoderQkv) else x) @ w[0], x @ w[1], x @ w[2], none, WIDTH**-0.5


@pytest.mark.parametrize("name", [*ALIGNMENTS, "two layers"])
@given(drawn=sides())
def test_each_is_its_formula(name: str, drawn: Sides) -> None:
    layer = (
        seeded(FullyConnectedAlignment(WIDTH, LONGEST, inner_width=3)) if name == "two layers" else made(name)
    )
    query, key, value, bias, scale = parts(layer, drawn)
    allowed = None if drawn.key_valid is None else drawn.key_valid.numpy()[:, None, None]
    expected, _, expected_weights = oracle_attention(
        query[:, None], key[:, None], value[:, None], allowed=allowed, bias=bias, scale=scale
    )
    context, weights, _ = run(layer, drawn)
    np.testing.assert_allclose(context.numpy(), expected[:, 0], atol=1e-12)
    np.testing.assert_allclose(weights.numpy(), expected_weights[:, 0], atol=1e-12)


@pytest.mark.parametrize("name", ALIGNMENTS)
@given(drawn=sides())
def test_rows_sum_to_one_or_are_empty(name: str, drawn: Sides) -> None:
    context, weights, _ = run(made(name), drawn)
    valid = torch.ones(weights.shape[0], weights.shape[2], dtype=torch.bool)
    valid = valid if drawn.key_valid is None else drawn.key_valid
    some = valid.any(-1)[:, None].expand(weights.shape[:2])
    assert_close(weights.sum(-1), some.double())
    assert (context[~some] == 0).all()


@pytest.mark.parametrize("name", ALIGNMENTS)
@given(drawn=sides(smallest=1))
def test_what_an_order_changes(name: str, drawn: Sides) -> None:
    """Decoder steps carry their rows along; the order of the encoder is seen by the fully connected scores alone."""
    generator = torch.Generator().manual_seed(1)
    columns, rows = (torch.randperm(t.shape[1], generator=generator) for t in (drawn.encoder, drawn.decoder))
    valid = None if drawn.key_valid is None else drawn.key_valid[:, columns]
    layer = made(name)
    context, weights, _ = run(layer, drawn)
    by_step = run(layer, Sides(drawn.encoder, drawn.decoder[:, rows], drawn.key_valid))[0]
    moved_context, moved, _ = run(layer, Sides(drawn.encoder[:, columns], drawn.decoder, valid))
    if name in ENCODER_ONLY:
        assert torch.equal(by_step, context)
        assert_close(moved_context, context[:, columns])
        assert_close(moved, weights[:, columns][..., columns])
    else:
        assert_close(by_step, context[:, rows])
    if name in ("encoder_decoder_dot", "encoder_decoder_qkv"):
        assert_close(moved_context, context)
        assert_close(moved, weights[..., columns])
    if name == "fully_connected" and drawn.key_valid is None:
        assert_close(moved, weights)


@given(sides(smallest=1, padding=False))
def test_an_auto_correlation_is_symmetric(drawn: Sides) -> None:
    scores = run(EncoderOnlyDot(), drawn)[2]
    assert_close(scores, scores.mT)
    assert_close(scores.diagonal(dim1=1, dim2=2), drawn.encoder.square().sum(-1))


def test_weights_and_learnt_scores_are_not_symmetric() -> None:
    drawn = Sides(torch.randn(1, 6, WIDTH, generator=torch.Generator().manual_seed(0)).double(), None, None)
    weights, learnt = run(EncoderOnlyDot(), drawn)[1], run(made("encoder_only_qkv"), drawn)[2]
    for matrix in (weights, learnt):
        assert not torch.allclose(matrix, matrix.mT, atol=0.1)


@pytest.mark.parametrize("name", ALIGNMENTS)
def test_who_has_a_say_in_the_weights(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    encoder, decoder, others = (torch.randn(2, 4, WIDTH, generator=generator).double() for _ in range(3))
    layer = made(name)
    weights = run(layer, Sides(encoder, decoder, None))[1]
    by_decoder = run(layer, Sides(encoder, others, None))[1]
    by_encoder = run(layer, Sides(others, decoder, None))[1]
    assert torch.equal(by_decoder, weights) is (name in ENCODER_ONLY)
    assert torch.equal(by_encoder, weights) is (name == "fully_connected")


@given(sides())
def test_the_first_is_luongs_dot(drawn: Sides) -> None:
    luong = LuongAttention(WIDTH, WIDTH, scoring="dot")
    expected = luong(drawn.decoder, drawn.encoder, key_valid=drawn.key_valid)
    assert_close(EncoderDecoderDot()(drawn.encoder, drawn.decoder, key_valid=drawn.key_valid), expected)


@given(sides(smallest=1), st.integers(0, 3))
def test_padding_is_the_same_as_a_shorter_source(drawn: Sides, more: int) -> None:
    keys = min(drawn.encoder.shape[1], LONGEST - more)
    encoder = drawn.encoder[:, :keys]
    padded = torch.cat([encoder, torch.full((len(encoder), more, WIDTH), 9.0).double()], dim=1)
    valid = (torch.arange(keys + more) < keys).expand(len(encoder), -1)
    for name in ALIGNMENTS:
        layer = made(name)
        expected = layer(encoder, drawn.decoder)
        assert_close(layer(padded, drawn.decoder, key_valid=valid)[:, : expected.shape[1]], expected)


@pytest.mark.parametrize("name", ALIGNMENTS)
def test_gradients_are_right(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    encoder, decoder = (
        torch.randn(2, n, WIDTH, generator=generator, dtype=torch.float64, requires_grad=True) for n in (4, 3)
    )
    layer = made(name).requires_grad_(True)
    names = [key for key, _ in layer.named_parameters()]
    valid = torch.tensor([[True, False, True, True], [False] * 4])

    def call(x: Tensor, s: Tensor, *values: Tensor) -> Tensor:
        chosen = dict(zip(names, values, strict=True))
        return torch.func.functional_call(layer, chosen, (x, s), {"key_valid": valid})

    assert torch.autograd.gradcheck(call, (encoder, decoder, *layer.parameters()))


@pytest.mark.parametrize("name", ALIGNMENTS)
def test_weights_can_be_edited(name: str) -> None:
    encoder, decoder = torch.randn(1, 4, WIDTH).double(), torch.randn(1, 3, WIDTH).double()
    layer = made(name)
    with editing(lambda module: uniform(torch.ones(1, 1, dtype=torch.bool)) if module is layer else None):
        found = layer(encoder, decoder)
    value = layer.value_projection(encoder) if name.endswith("qkv") else encoder
    assert_close(found, value.mean(1, keepdim=True).expand_as(found))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ALIGNMENTS)
def test_half_precision_is_taken(name: str, dtype: torch.dtype) -> None:
    layer = made(name).to(dtype)
    found = layer(torch.randn(1, 4, WIDTH).to(dtype), torch.randn(1, 3, WIDTH).to(dtype))
    assert found.dtype == dtype
    assert found.isfinite().all()


@pytest.mark.parametrize("name", ALIGNMENTS)
def test_what_does_not_fit_is_named(name: str) -> None:
    layer = ALIGNMENTS[name].make(WIDTH, LONGEST)
    kind = type(layer).__name__
    encoder, decoder = torch.randn(2, 4, WIDTH), torch.randn(2, 3, WIDTH)
    with pytest.raises(ValueError, match=rf"{kind}: key_valid must be a bool tensor \(B, K\) = \(2, 4\)"):
        layer(encoder, decoder, key_valid=torch.ones(2, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match=f"{kind}: (encoder|states) must have 3 axes"):
        layer(encoder[0], decoder)
    if name in ENCODER_ONLY:
        assert_close(layer(encoder), layer(encoder, decoder))
        return
    with pytest.raises(ValueError, match=rf"{kind}: decoder must be states \(B, Q, M\) but is None"):
        layer(encoder)
    with pytest.raises(ValueError, match=f"{kind}: decoder must have 3 axes"):
        layer(encoder, decoder[0])
    with pytest.raises(ValueError, match="key must have query's batch size 1 but has 2"):
        layer(encoder, decoder[:1])


def test_other_wrong_sizes_are_named() -> None:
    with pytest.raises(ValueError, match="key must have query's width 4 but has 5"):
        EncoderDecoderDot()(torch.randn(1, 2, 5), torch.randn(1, 2, 4))
    with pytest.raises(
        ValueError, match="FullyConnectedAlignment: encoder must have at most 3 states but has 4"
    ):
        FullyConnectedAlignment(5, 3)(torch.randn(1, 4, 5), torch.randn(1, 2, 5))
    with pytest.raises(ValueError, match="FullyConnectedAlignment: max_length must be at least 1 but is 0"):
        FullyConnectedAlignment(5, 0)


def test_the_table_names_the_five_layers() -> None:
    kinds = EncoderDecoderDot, EncoderDecoderQkv, EncoderOnlyDot, EncoderOnlyQkv, FullyConnectedAlignment
    assert tuple(type(made(name)) for name in ALIGNMENTS) == kinds
    assert ENCODER_ONLY == ["encoder_only_dot", "encoder_only_qkv"]
