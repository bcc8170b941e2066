"""Attention layers against their formulas, against PyTorch's, and against themselves with a cache."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from attn_core import (
    AdditiveAttention,
    DenseMap,
    FactoredMap,
    KeyValueCache,
    LuongAttention,
    MultiHeadAttention,
    RelativeBias,
    editing,
    gate,
    recording,
    uniform,
)
from tests.oracle_numpy import oracle_allowed, oracle_attention

SCORINGS = ("dot", "general", "concat")
ALIGNMENTS = ("global", "local-m", "local-p")


@dataclass(frozen=True)
class States:
    """hidden (B, Q, 6), source (B, K, 6) and key_valid (B, K) or None."""

    hidden: Tensor
    source: Tensor
    key_valid: Tensor | None


@st.composite
def states(draw: st.DrawFn, *, smallest: int = 0, gaps: bool = True) -> States:
    """Hidden states and a source, either of which may be empty; padding anywhere, or at the end alone."""
    batch, queries, keys = (
        draw(st.integers(1, 3)),
        draw(st.integers(smallest, 7)),
        draw(st.integers(smallest, 7)),
    )
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    key_valid = None
    if draw(st.booleans()):
        lengths = torch.randint(0, keys + 1, (batch, 1), generator=generator)
        at_end = torch.arange(keys) < lengths
        key_valid = torch.rand(batch, keys, generator=generator) > 0.4 if gaps else at_end
    return States(
        torch.randn(batch, queries, 6, generator=generator, dtype=torch.float64),
        torch.randn(batch, keys, 6, generator=generator, dtype=torch.float64),
        key_valid,
    )


def seeded(make, **options):
    """A layer in float64 whose parameters, biases too, are drawn from a seed."""
    layer = make(**options).double().requires_grad_(False)
    generator = torch.Generator().manual_seed(0)
    for parameter in layer.parameters():
        parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) / 2)
    return layer


def additive(**options) -> AdditiveAttention:
    return seeded(AdditiveAttention, query_width=6, source_width=6, attention_width=5, **options)


def luong(**options) -> LuongAttention:
    return seeded(LuongAttention, query_width=6, source_width=6, **options)


def multi_head(**options) -> MultiHeadAttention:
    return seeded(MultiHeadAttention, **({"width": 6, "heads": 3} | options))


def single_head_layers(half_window: int = 2) -> dict[str, nn.Module]:
    """Additive attention and each kind of Luong's."""
    kinds: dict[str, nn.Module] = {"additive": additive()}
    for scoring in SCORINGS:
        for alignment in ALIGNMENTS:
            kinds[f"{scoring} {alignment}"] = luong(
                scoring=scoring, alignment=alignment, half_window=half_window
            )
    return kinds


# Additive and Luong attention ------------------------------------------------------------------------------------


def oracle_single(layer: nn.Module, given_states: States, half_window: int) -> tuple[np.ndarray, np.ndarray]:
    """Context (B, Q, E) and weights (B, Q, K) of one pair at a time."""
    p = {name: value.numpy() for name, value in layer.named_parameters()}
    hidden, source = given_states.hidden.numpy(), given_states.source.numpy()
    (batch, queries, _), keys = hidden.shape, source.shape[1]
    valid = np.ones((batch, keys), bool) if given_states.key_valid is None else given_states.key_valid.numpy()
    weights = np.zeros((batch, queries, keys))
    for b, t in np.ndindex(batch, queries):
        h = hidden[b, t]
        centre = float(t)
        if layer_alignment(layer) == "local-p":
            inner = p["position_vector.weight"][0] @ np.tanh(p["position_projection.weight"] @ h)
            centre = valid[b].sum() / (1 + np.exp(-inner))
        scores = np.full(keys, -np.inf)
        for s in range(keys):
            if valid[b, s] and (layer_alignment(layer) == "global" or abs(s - centre) <= half_window):
                scores[s] = oracle_score(layer, p, h, source[b, s])
        if np.isneginf(scores).all():
            continue
        weights[b, t] = np.exp(scores - scores.max()) / np.exp(scores - scores.max()).sum()
        if layer_alignment(layer) == "local-p":
            weights[b, t] *= np.exp(-((np.arange(keys) - centre) ** 2) / (2 * (half_window / 2) ** 2))
    return weights @ source, weights


def layer_alignment(layer: nn.Module) -> str:
    return layer.alignment if isinstance(layer, LuongAttention) else "global"


def oracle_score(layer: nn.Module, p: dict[str, np.ndarray], h: np.ndarray, s: np.ndarray) -> float:
    if isinstance(layer, AdditiveAttention):
        inner = p["query_projection.weight"] @ h + p["query_projection.bias"] + p["key_projection.weight"] @ s
        return p["vector.weight"][0] @ np.tanh(inner)
    if layer.scoring == "concat":
        return p["vector.weight"][0] @ np.tanh(p["pair_projection.weight"] @ np.concatenate([h, s]))
    return (p["query_projection.weight"] @ h if layer.scoring == "general" else h) @ s


@pytest.mark.parametrize("kind", single_head_layers())
@given(states(gaps=False), st.integers(1, 4))
def test_single_head_layers_are_their_formula(kind: str, drawn: States, half_window: int) -> None:
    layer = single_head_layers(half_window)[kind]
    with recording() as record:
        found = layer(drawn.hidden, drawn.source, key_valid=drawn.key_valid)
    context, weights = oracle_single(layer, drawn, half_window)
    np.testing.assert_allclose(found.numpy(), context, atol=1e-12)
    (call,) = record.calls
    assert call.module is layer
    assert isinstance(
        call.map, DenseMap if kind == "additive" or "concat" in kind or "local-p" in kind else FactoredMap
    )
    if drawn.hidden.shape[1] and drawn.source.shape[1]:
        np.testing.assert_allclose(call.map.weights()[:, 0].numpy(), weights, atol=1e-12)


@pytest.mark.parametrize("kind", [kind for kind in single_head_layers() if "local" not in kind])
@given(states(smallest=1))
def test_order_of_queries_is_carried_along_and_order_of_keys_does_not_matter(
    kind: str, drawn: States
) -> None:
    layer = single_head_layers()[kind]
    generator = torch.Generator().manual_seed(1)
    rows = torch.randperm(drawn.hidden.shape[1], generator=generator)
    columns = torch.randperm(drawn.source.shape[1], generator=generator)
    valid = None if drawn.key_valid is None else drawn.key_valid[:, columns]
    expected = layer(drawn.hidden, drawn.source, key_valid=drawn.key_valid)[:, rows]
    assert_close(layer(drawn.hidden[:, rows], drawn.source[:, columns], key_valid=valid), expected)


@pytest.mark.parametrize("scoring", SCORINGS)
@given(states(gaps=False), st.integers(0, 7))
def test_steps_of_a_decoder_one_by_one_are_all_at_once(scoring: str, drawn: States, cut: int) -> None:
    for alignment in ALIGNMENTS:
        layer = luong(scoring=scoring, alignment=alignment, half_window=2)
        parts = [drawn.hidden[:, :cut], drawn.hidden[:, cut:]]
        starts = [0, parts[0].shape[1]]
        found = [
            layer(part, drawn.source, key_valid=drawn.key_valid, first_step=start)
            for part, start in zip(parts, starts, strict=True)
        ]
        assert_close(torch.cat(found, 1), layer(drawn.hidden, drawn.source, key_valid=drawn.key_valid))


@given(states(smallest=1))
def test_a_half_window_beyond_the_source_is_global_attention(drawn: States) -> None:
    for scoring in SCORINGS:
        wide = luong(scoring=scoring, alignment="local-m", half_window=20)
        whole = luong(scoring=scoring, alignment="global")
        arguments = {"key_valid": drawn.key_valid}
        assert_close(
            wide(drawn.hidden, drawn.source, **arguments), whole(drawn.hidden, drawn.source, **arguments)
        )


def test_padding_of_the_source_changes_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden, source = (torch.randn(1, 4, 6, generator=generator, dtype=torch.float64) for _ in range(2))
    padded = torch.cat([source, torch.full((1, 3, 6), 9.0, dtype=torch.float64)], dim=1)
    valid = torch.arange(7)[None] < 4
    for kind, layer in single_head_layers().items():
        assert_close(layer(hidden, padded, key_valid=valid), layer(hidden, source), msg=kind)


def test_gradients_of_single_head_layers_are_right() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden, source = (
        torch.randn(2, 3, 6, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(2)
    )
    for kind, layer in single_head_layers().items():
        layer.requires_grad_(True)
        names = [name for name, _ in layer.named_parameters()]

        def call(h: Tensor, s: Tensor, *values: Tensor, layer=layer, names=names) -> Tensor:
            return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (h, s))

        assert torch.autograd.gradcheck(call, (hidden, source, *layer.parameters())), kind


def test_weights_that_are_a_softmax_of_products_can_be_edited() -> None:
    hidden, source = torch.randn(1, 3, 6).double(), torch.randn(1, 4, 6).double()
    everything = torch.ones(1, 1, dtype=torch.bool)
    with editing(lambda _layer: uniform(everything)):
        found = luong(scoring="general")(hidden, source)
    assert_close(found, source.mean(1, keepdim=True).expand(1, 3, 6))


# Multi-head attention --------------------------------------------------------------------------------------------


def torch_copy(layer: MultiHeadAttention, width: int, heads: int) -> nn.MultiheadAttention:
    """PyTorch's own layer with the same parameters."""
    theirs = nn.MultiheadAttention(width, heads, batch_first=True).double().eval().requires_grad_(False)
    parts = layer.query_projection, layer.key_projection, layer.value_projection
    theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
    theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
    theirs.out_proj.load_state_dict(layer.output_projection.state_dict())
    return theirs


@given(states(smallest=1), st.sampled_from([1, 2, 3, 6]))
def test_multi_head_attention_is_pytorchs(drawn: States, heads: int) -> None:
    layer = multi_head(heads=heads)
    valid = drawn.key_valid
    if valid is not None:
        valid = valid | (torch.arange(valid.shape[1]) == 0)  # PyTorch gives NaN where nothing is allowed
    theirs = torch_copy(layer, 6, heads)
    padding = None if valid is None else ~valid
    with recording() as record:
        found = layer(drawn.hidden, drawn.source, key_valid=valid)
    expected, weights = theirs(
        drawn.hidden, drawn.source, drawn.source, key_padding_mask=padding, average_attn_weights=False
    )
    assert_close(found, expected)
    assert_close(record.calls[0].map.weights(), weights)
    n = drawn.hidden.shape[1]
    future = torch.ones(n, n).triu(1).bool()
    expected = theirs(drawn.hidden, drawn.hidden, drawn.hidden, attn_mask=future, need_weights=False)[0]
    assert_close(multi_head(heads=heads, causal=True)(drawn.hidden), expected)


@st.composite
def options(draw: st.DrawFn, *, causal: bool | None = None) -> dict[str, object]:
    """Options of a layer of width 24 with 6 heads of 4 channels."""
    return {
        "width": 24,
        "heads": 6,
        "num_kv_heads": draw(st.sampled_from([None, 1, 2, 3, 6])),
        "causal": draw(st.booleans()) if causal is None else causal,
        "window": draw(st.none() | st.integers(1, 9)),
        "bias": draw(st.booleans()),
        "rotary_base": draw(st.sampled_from([None, 10000.0, 100.0])),
        "rotary_interleaved": draw(st.booleans()),
        "alibi": draw(st.booleans()),
    }


@st.composite
def sequences(draw: st.DrawFn, *, smallest: int = 0) -> tuple[Tensor, Tensor | None]:
    """hidden (B, N, 24) and key_valid (B, N) or None."""
    batch, length = draw(st.integers(1, 3)), draw(st.integers(smallest, 9))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    hidden = torch.randn(batch, length, 24, generator=generator, dtype=torch.float64)
    return hidden, torch.rand(batch, length, generator=generator) > 0.3 if draw(st.booleans()) else None


def turned(heads: np.ndarray, base: float, interleaved: bool) -> np.ndarray:
    """(B, H, N, D) as complex numbers, pair i of position n turned by n · base^(−2i/D)."""
    width = heads.shape[-1]
    first, second = (
        (slice(0, None, 2), slice(1, None, 2))
        if interleaved
        else (
            slice(0, width // 2),
            slice(width // 2, None),
        )
    )
    angles = np.arange(heads.shape[2])[:, None] * base ** (-np.arange(0, width, 2) / width)
    pairs = (heads[..., first] + 1j * heads[..., second]) * np.exp(1j * angles)
    result = np.empty_like(heads)
    result[..., first], result[..., second] = pairs.real, pairs.imag
    return result


def geometric_slopes(heads: int) -> np.ndarray:
    """Slopes of ALiBi for 6 heads: those of 4 heads and the first and third of 8."""
    assert heads == 6
    return np.array([1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8])


@given(options(), sequences())
def test_multi_head_attention_is_the_formula(chosen: dict, drawn: tuple[Tensor, Tensor | None]) -> None:
    hidden, key_valid = drawn
    layer = multi_head(**chosen)
    p = {name: value.numpy() for name, value in layer.named_parameters()}
    batch, length, width = hidden.shape

    def projected(name: str, x: np.ndarray) -> np.ndarray:
        return x @ p[f"{name}_projection.weight"].T + p.get(f"{name}_projection.bias", 0.0)

    def split(x: np.ndarray) -> np.ndarray:
        return x.reshape(batch, length, x.shape[-1] // 4, 4).transpose(0, 2, 1, 3)

    query, key, value = (split(projected(name, hidden.numpy())) for name in ("query", "key", "value"))
    if chosen["rotary_base"] is not None:
        query, key = (turned(x, chosen["rotary_base"], chosen["rotary_interleaved"]) for x in (query, key))
    allowed = oracle_allowed(length, length, causal=chosen["causal"], window=chosen["window"])[None, None]
    if key_valid is not None:
        allowed = allowed & key_valid.numpy()[:, None, None]
    distance = np.abs(np.arange(length)[:, None] - np.arange(length))
    bias = -geometric_slopes(6)[:, None, None] * distance if chosen["alibi"] else None
    context, _, weights = oracle_attention(query, key, value, allowed=allowed, bias=bias)
    expected = projected("output", context.transpose(0, 2, 1, 3).reshape(batch, length, width))
    with recording() as record:
        found = layer(hidden, key_valid=key_valid)
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-10)
    if length:
        recorded = record.calls[0].map.weights()
        np.testing.assert_allclose(recorded.numpy(), weights, atol=1e-10)
        some = np.broadcast_to(allowed, weights.shape).any(-1)
        np.testing.assert_allclose(recorded.sum(-1).numpy(), some, atol=1e-10)


@given(sequences(smallest=1), st.sampled_from([1, 2, 3, 6]))
def test_grouped_heads_are_scaled_dot_product_attention(
    drawn: tuple[Tensor, Tensor | None], groups: int
) -> None:
    hidden, _ = drawn
    layer = multi_head(width=24, heads=6, num_kv_heads=groups, causal=True)
    query, key, value = (
        linear(hidden).unflatten(-1, (-1, 4)).transpose(1, 2)
        for linear in (layer.query_projection, layer.key_projection, layer.value_projection)
    )
    context = F.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    assert_close(layer(hidden), layer.output_projection(context.transpose(1, 2).flatten(2)))


@given(options(), sequences(smallest=1))
def test_grouped_heads_are_heads_with_repeated_parameters(
    chosen: dict, drawn: tuple[Tensor, Tensor | None]
) -> None:
    hidden, key_valid = drawn
    grouped = multi_head(**chosen)
    whole = multi_head(**(chosen | {"num_kv_heads": None}))
    repeats = whole.num_kv_heads // grouped.num_kv_heads
    repeated = {}
    for name, value in grouped.state_dict().items():
        if name.startswith(("key", "value")):
            value = value.unflatten(0, (-1, 4)).repeat_interleave(repeats, 0).flatten(0, 1)
        repeated[name] = value
    whole.load_state_dict(repeated)
    assert_close(grouped(hidden, key_valid=key_valid), whole(hidden, key_valid=key_valid))


@given(options(causal=True), sequences(smallest=1), st.data())
def test_tokens_to_come_change_nothing(
    chosen: dict, drawn: tuple[Tensor, Tensor | None], data: st.DataObject
) -> None:
    hidden, key_valid = drawn
    layer, cut = multi_head(**chosen), data.draw(st.integers(1, hidden.shape[1]))
    changed = hidden.clone()
    changed[:, cut:] = 7.0
    expected = layer(hidden, key_valid=key_valid)[:, :cut]
    assert_close(layer(changed, key_valid=key_valid)[:, :cut], expected)
    assert_close(
        layer(hidden[:, :cut], key_valid=None if key_valid is None else key_valid[:, :cut]), expected
    )


@given(options(), sequences(smallest=1))
def test_a_window_as_long_as_the_sequence_is_none(chosen: dict, drawn: tuple[Tensor, Tensor | None]) -> None:
    hidden, key_valid = drawn
    windowed = multi_head(**(chosen | {"window": hidden.shape[1]}))
    plain = multi_head(**(chosen | {"window": None}))
    assert_close(windowed(hidden, key_valid=key_valid), plain(hidden, key_valid=key_valid))


@given(states(smallest=1))
def test_order_of_queries_and_of_a_source(drawn: States) -> None:
    layer = multi_head()
    generator = torch.Generator().manual_seed(1)
    rows = torch.randperm(drawn.hidden.shape[1], generator=generator)
    columns = torch.randperm(drawn.source.shape[1], generator=generator)
    valid = None if drawn.key_valid is None else drawn.key_valid[:, columns]
    expected = layer(drawn.hidden, drawn.source, key_valid=drawn.key_valid)[:, rows]
    assert_close(layer(drawn.hidden[:, rows], drawn.source[:, columns], key_valid=valid), expected)
    itself = layer(drawn.hidden)
    assert_close(layer(drawn.hidden[:, rows]), itself[:, rows])


@given(states())
def test_empty_sequences_and_empty_rows(drawn: States) -> None:
    layer = multi_head(bias=False)
    found = layer(drawn.hidden, drawn.source, key_valid=drawn.key_valid)
    assert found.shape == drawn.hidden.shape
    keys = drawn.source.shape[1]
    valid = torch.ones(len(found), keys, dtype=torch.bool) if drawn.key_valid is None else drawn.key_valid
    assert (found[~valid.any(-1)] == 0).all()
    assert found.isfinite().all()


def test_a_source_may_have_another_width() -> None:
    torch.manual_seed(0)
    layer = MultiHeadAttention(6, 3, source_width=5)
    assert layer(torch.randn(2, 3, 6), torch.randn(2, 4, 5)).shape == (2, 3, 6)


def test_a_bias_is_added_to_the_scores() -> None:
    layer, hidden = multi_head(), torch.randn(2, 4, 6).double()
    distance = torch.arange(4)[None, :] - torch.arange(4)[:, None]
    table = RelativeBias.of(torch.randn(1, 3, 7).double(), queries=4, keys=4)
    found = layer(hidden, bias=table)
    assert_close(found, layer(hidden, bias=table.table[:, :, distance + 3]))
    assert not torch.allclose(found, layer(hidden))


def test_heads_can_be_recorded_and_edited() -> None:
    layer, hidden = multi_head(num_kv_heads=1, alibi=True, causal=True), torch.randn(1, 4, 6).double()
    first = torch.tensor([[1.0, 0.0, 0.0]])
    with recording() as record, editing(lambda module: gate(1 - first) if module is layer else None):
        found = layer(hidden)
    (call,) = record.calls
    assert isinstance(call.map, FactoredMap)
    assert isinstance(call.map.bias, RelativeBias)
    without = multi_head(num_kv_heads=1, alibi=True, causal=True)
    without.output_projection.weight[:, :2] = 0.0
    assert_close(found, without(hidden))


def test_gradients_of_multi_head_attention_are_right() -> None:
    layer = multi_head(
        width=8, heads=4, num_kv_heads=2, causal=True, window=2, rotary_base=100.0
    ).requires_grad_(True)
    hidden = torch.randn(1, 4, 8, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in layer.named_parameters()]

    def call(h: Tensor, *values: Tensor) -> Tensor:
        return torch.func.functional_call(layer, dict(zip(names, values, strict=True)), (h,))

    assert torch.autograd.gradcheck(call, (hidden, *layer.parameters()))


# Cache -----------------------------------------------------------------------------------------------------------


@given(options(causal=True), sequences(), st.lists(st.integers(0, 9), max_size=5))
def test_steps_with_a_cache_are_one_full_pass(
    chosen: dict, drawn: tuple[Tensor, Tensor | None], cuts: list[int]
) -> None:
    hidden, key_valid = drawn
    layer, length = multi_head(**chosen), hidden.shape[1]
    bounds = [0, *sorted(min(cut, length) for cut in cuts), length]
    cache, parts = None, []
    for start, stop in pairwise(bounds):
        valid = None if key_valid is None else key_valid[:, start:stop]
        part, cache = layer.step(hidden[:, start:stop], cache, key_valid=valid)
        parts.append(part)
        assert cache.seen == stop
        kept = stop if chosen["window"] is None else min(stop, chosen["window"] - 1)
        assert cache.key.shape[1:3] == (layer.num_kv_heads, kept)
    assert_close(torch.cat(parts, 1), layer(hidden, key_valid=key_valid))


def test_a_window_lets_old_tokens_go_and_keeps_places_and_padding() -> None:
    layer = multi_head(width=12, causal=True, window=3, rotary_base=100.0, num_kv_heads=1)
    hidden = torch.randn(2, 9, 12, generator=torch.Generator().manual_seed(0)).double()
    valid = torch.ones(2, 9, dtype=torch.bool)
    valid[0, [0, 1, 4]] = False
    cache, parts = None, []
    for place in [slice(0, 4), *(slice(n, n + 1) for n in range(4, 9))]:
        part, cache = layer.step(hidden[:, place], cache, key_valid=valid[:, place])
        parts.append(part)
        assert (cache.key.shape[2], cache.seen) == (2, place.stop)
    assert_close(torch.cat(parts, 1), layer(hidden, key_valid=valid))


@pytest.mark.parametrize("padded_first", [True, False])
def test_padding_of_one_part_alone_is_kept_in_mind(padded_first: bool) -> None:
    layer, hidden = multi_head(causal=True), torch.randn(2, 5, 6).double()
    valid = torch.tensor([[False, True, True], [True, True, True]])
    cut = 3 if padded_first else 2
    rest = torch.ones(2, 2, dtype=torch.bool)
    whole = torch.cat([valid, rest] if padded_first else [rest, valid], dim=1)
    first, cache = layer.step(hidden[:, :cut], key_valid=valid if padded_first else None)
    second, _ = layer.step(hidden[:, cut:], cache, key_valid=None if padded_first else valid)
    assert_close(torch.cat([first, second], 1), layer(hidden, key_valid=whole))


def test_a_cache_is_not_written_to_and_items_can_be_chosen() -> None:
    layer = multi_head(causal=True, rotary_base=100.0, width=12)
    hidden, token = torch.randn(2, 4, 12).double(), torch.randn(3, 1, 12).double()
    valid = torch.tensor([[False, True, True, True], [True] * 4])
    _, cache = layer.step(hidden, key_valid=valid)
    before = KeyValueCache(cache.key.clone(), cache.value.clone())
    beams = torch.tensor([1, 1, 0])
    found, after = layer.step(token, cache.items(beams))
    assert torch.equal(cache.key, before.key)
    assert torch.equal(cache.value, before.value)
    assert (cache.seen, after.seen) == (4, 5)
    whole = layer(torch.cat([hidden[beams], token], 1), key_valid=F.pad(valid[beams], (0, 1), value=True))
    assert_close(found, whole[:, -1:])


# Arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: LuongAttention(4, 4, scoring="cosine"),
            "scoring must be dot, general or concat but is 'cosine'",
        ),
        (
            lambda: LuongAttention(4, 4, alignment="local"),
            "alignment must be global, local-m or local-p but is",
        ),
        (lambda: LuongAttention(4, 5, scoring="dot"), "scoring='dot' needs one width"),
        (lambda: LuongAttention(4, 4, half_window=0), "half_window must be at least 1 but is 0"),
        (lambda: MultiHeadAttention(7, 2), "width must be a multiple of heads but is 7 for 2 heads"),
        (lambda: MultiHeadAttention(8, 4, num_kv_heads=3), "num_kv_heads must divide heads but is 3"),
        (lambda: MultiHeadAttention(8, 4, window=0), "window must be at least 1"),
    ],
)
def test_layers_that_cannot_be_are_refused(make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_arguments_that_do_not_fit_are_named() -> None:
    hidden, source = torch.randn(2, 3, 6), torch.randn(2, 4, 6)
    for layer in (AdditiveAttention(6, 6, 5), LuongAttention(6, 6), MultiHeadAttention(6, 3)):
        name = type(layer).__name__
        with pytest.raises(ValueError, match=f"{name}: hidden states must have 3 axes"):
            layer(hidden[0], source)
        with pytest.raises(ValueError, match=rf"{name}: key_valid must be \(2, 4\) but is \(2, 3\)"):
            layer(hidden, source, key_valid=torch.ones(2, 3, dtype=torch.bool))
        with pytest.raises(ValueError, match="key must have query's batch size 2 but has 1"):
            layer(hidden, source[:1])
    for chosen in ({"rotary_base": 10000.0}, {"alibi": True}):
        with pytest.raises(ValueError, match="need the positions of one sequence"):
            MultiHeadAttention(6, 3, **chosen)(hidden, source)
    with pytest.raises(ValueError, match="bias must be None in a layer with ALiBi"):
        MultiHeadAttention(6, 3, alibi=True)(hidden, bias=torch.zeros(1, 3, 3, 3))
    with pytest.raises(ValueError, match="step: the layer must be causal"):
        MultiHeadAttention(6, 3).step(hidden)
