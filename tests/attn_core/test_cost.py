"""Costs from sizes alone, held to what PyTorch counts and to the bytes of the tensors themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from attn_core import AdditiveAttention, MaskRule, attention
from attn_core.cost import (
    AttentionShape,
    additive_cost,
    fast_weight_cost,
    flash_cost,
    kv_cache_bytes,
    linear_cost,
    linformer_cost,
    reformer_cost,
    written_out_cost,
)
from attn_core.flash.fused import fused_attention
from attn_core.functional import repeat_groups
from attn_core.mask_rules import allowed_share, causal_rule, prefix_rule, window_rule
from attn_core.variants.fast_weights import WriteRule, fast_weight_attention
from attn_core.variants.reformer import chunked_lsh_attention, random_rotations

small = st.integers(1, 6)


@st.composite
def shapes(draw: st.DrawFn) -> AttentionShape:
    groups = draw(st.integers(1, 3))
    return AttentionShape(
        batch=draw(st.integers(1, 2)),
        heads=groups * draw(st.integers(1, 3)),
        groups=groups,
        queries=draw(small),
        keys=draw(small),
        width=draw(small),
        value_width=draw(small),
        element_bytes=4,
    )


def tensors(shape: AttentionShape) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value of these sizes, in float32."""
    generator = torch.Generator().manual_seed(0)
    return (
        torch.randn(shape.batch, shape.heads, shape.queries, shape.width, generator=generator),
        torch.randn(shape.batch, shape.groups, shape.keys, shape.width, generator=generator),
        torch.randn(shape.batch, shape.groups, shape.keys, shape.value_width, generator=generator),
    )


def counted(function, *arguments: Tensor) -> int:
    with FlopCounterMode(display=False) as counter:
        function(*arguments)
    return counter.get_total_flops()


def kept_bytes(function, *arguments: Tensor) -> int:
    """Bytes of the storages that autograd keeps for the backward pass."""
    kept: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        result = function(*(argument.requires_grad_() for argument in arguments))
    assert result.requires_grad
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())


@given(shapes())
def test_written_out_attention_does_what_is_counted(shape: AttentionShape) -> None:
    assert written_out_cost(shape).flops == counted(attention, *tensors(shape))


@given(shapes(), st.booleans(), st.none() | small, st.none() | st.integers(0, 6))
def test_flash_attention_does_what_allowed_pairs_need(
    shape: AttentionShape, causal: bool, window: int | None, prefix: int | None
) -> None:
    rule = MaskRule(causal=causal, window=window)
    rule = rule if prefix is None else rule & prefix_rule(prefix)

    def row_by_row(query: Tensor, key: Tensor, value: Tensor) -> None:
        key, value = repeat_groups(key, shape.heads), repeat_groups(value, shape.heads)
        for row in range(shape.queries):
            sizes = {"queries": shape.queries, "keys": shape.keys}
            allowed = rule.allowed(torch.tensor([row]), torch.arange(shape.keys), **sizes)
            seen = slice(None) if allowed is None else allowed[0, 0, 0]
            weights = (query[:, :, row : row + 1] @ key[:, :, seen].transpose(-1, -2)).softmax(-1)
            weights @ value[:, :, seen]

    assert flash_cost(shape, rule=rule).flops == counted(row_by_row, *tensors(shape))


@given(shapes(), small)
def test_linear_attention_does_what_is_counted(shape: AttentionShape, features: int) -> None:
    def sums_first(query: Tensor, key: Tensor, value: Tensor) -> None:
        state = key.transpose(-1, -2) @ value
        normaliser = key.sum(-2, keepdim=True).transpose(-1, -2)
        query @ repeat_groups(state, shape.heads), query @ repeat_groups(normaliser, shape.heads)

    mapped = replace(shape, width=features)
    assert linear_cost(shape, features=features).flops == counted(sums_first, *tensors(mapped))
    assert linear_cost(shape) == linear_cost(shape, features=shape.width)


@given(shapes(), small)
def test_linformer_does_what_is_counted(shape: AttentionShape, projected: int) -> None:
    matrix = torch.randn(projected, shape.keys)

    def projected_attention(query: Tensor, key: Tensor, value: Tensor) -> None:
        attention(query, matrix @ key, matrix @ value)

    assert linformer_cost(shape, projected=projected).flops == counted(projected_attention, *tensors(shape))


@given(shapes(), small, st.sampled_from(["sum", "delta"]))
def test_fast_weights_do_what_is_counted(shape: AttentionShape, chunk: int, write_rule: WriteRule) -> None:
    shape = replace(shape, queries=shape.keys)

    def in_chunks(query: Tensor, key: Tensor, value: Tensor) -> None:
        fast_weight_attention(query, key, value, write_rule=write_rule, form="chunked", chunk=chunk)

    assert fast_weight_cost(shape, write_rule=write_rule, chunk=chunk).flops == counted(
        in_chunks, *tensors(shape)
    )


@given(shapes(), st.sampled_from([1, 2, 4]), st.integers(1, 3), small)
def test_reformer_does_what_is_counted(shape: AttentionShape, buckets: int, rounds: int, chunk: int) -> None:
    shape = replace(shape, queries=shape.keys, groups=shape.heads)
    rotations = random_rotations(shape.width, buckets, rounds)

    def hashed(query: Tensor, key: Tensor, value: Tensor) -> None:
        chunked_lsh_attention(query, value, rotations, chunk=chunk)

    cost = reformer_cost(shape, buckets=buckets, rounds=rounds, chunk=chunk)
    assert cost.flops == counted(hashed, *tensors(shape))


@given(shapes(), small)
def test_additive_attention_does_what_is_counted(shape: AttentionShape, inner: int) -> None:
    shape = replace(shape, heads=1, groups=1, value_width=shape.width)
    layer = AdditiveAttention(shape.width, shape.width, inner)
    query, source, _ = (tensor[:, 0] for tensor in tensors(shape))

    def written_out(query: Tensor, source: Tensor) -> Tensor:
        pairs = layer.query_projection(query)[:, :, None] + layer.key_projection(source)[:, None]
        return layer.vector(torch.tanh(pairs))[..., 0].softmax(-1) @ source

    assert_close(layer(query, source), written_out(query, source))
    assert additive_cost(shape, inner=inner).flops == counted(written_out, query, source)


def test_what_grows_with_what() -> None:
    """The memory of fast weights is of one size, Reformer's pairs grow with n, additive attention's with n²."""
    short, long = (AttentionShape(1, 2, 2, n, n, 8, 8) for n in (1024, 4096))
    assert fast_weight_cost(long).cache_bytes == fast_weight_cost(short).cache_bytes == 2 * 8 * 8 * 2
    assert fast_weight_cost(long).flops == 4 * fast_weight_cost(short).flops
    assert fast_weight_cost(long, chunk=4096).bytes_moved < fast_weight_cost(long, chunk=1).bytes_moved
    reformer = [reformer_cost(shape, buckets=16, rounds=2, chunk=64) for shape in (short, long)]
    assert reformer[1].flops == 4 * reformer[0].flops
    assert reformer[1].activation_bytes == 4 * reformer[0].activation_bytes
    additive = [additive_cost(shape, inner=8) for shape in (short, long)]
    assert 15 < additive[1].flops / additive[0].flops < 16
    assert additive[0].cache_bytes == kv_cache_bytes(short)  # here A = D: projected keys take the keys' place


@pytest.mark.parametrize(
    ("cost", "options", "message"),
    [
        (fast_weight_cost, {"chunk": 0}, "fast_weight_cost: chunk must be at least 1"),
        (additive_cost, {"inner": 0}, "additive_cost: inner must be at least 1"),
        (linformer_cost, {"projected": 0}, "linformer_cost: projected must be at least 1"),
        (reformer_cost, {"buckets": 2, "rounds": 0, "chunk": 4}, "reformer_cost: rounds must be at least 1"),
    ],
)
def test_a_cost_of_nothing_is_refused(cost, options, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        cost(AttentionShape(1, 1, 1, 4, 4, 2, 2), **options)


def test_mechanisms_without_other_queries_refuse_them() -> None:
    shape = AttentionShape(1, 2, 2, 3, 4, 2, 2)
    with pytest.raises(ValueError, match="fast_weight_cost: queries must be the keys' own 4 positions"):
        fast_weight_cost(shape)
    with pytest.raises(ValueError, match="reformer_cost: queries must be"):
        reformer_cost(shape, buckets=2, rounds=1, chunk=4)
    with pytest.raises(ValueError, match="reformer_cost: groups must be heads 2 but is 1"):
        reformer_cost(replace(shape, groups=1, queries=4), buckets=2, rounds=1, chunk=4)


@given(shapes())
def test_written_out_attention_keeps_its_weights(shape: AttentionShape) -> None:
    shape = replace(shape, groups=shape.heads)  # repeating a group makes a copy, which a kernel does without

    def written_out(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return (query @ key.transpose(-1, -2)).softmax(-1) @ value

    assert written_out_cost(shape).activation_bytes == kept_bytes(written_out, *tensors(shape))


@given(shapes())
def test_flash_attention_keeps_the_log_sum_exp(shape: AttentionShape) -> None:
    shape = replace(shape, groups=shape.heads, value_width=shape.width)

    def fused(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return fused_attention(query, key, value).context

    assert flash_cost(shape).activation_bytes == kept_bytes(fused, *tensors(shape))


@given(shapes(), small)
def test_linformer_keeps_what_its_inner_attention_keeps(shape: AttentionShape, projected: int) -> None:
    shape = replace(shape, groups=shape.heads)
    matrix = torch.randn(projected, shape.keys)

    def inner(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return (query @ (matrix @ key).transpose(-1, -2)).softmax(-1) @ (matrix @ value)

    # Autograd keeps the keys and values of a projection only where the matrix learns; ours counts them.
    inputs = shape.key_value_numbers * shape.element_bytes
    assert linformer_cost(shape, projected=projected).activation_bytes == inputs + (
        kept_bytes(inner, *tensors(shape)) - matrix.nbytes
    )


@given(shapes(), st.integers(1, 5))
def test_cache_is_the_keys_and_values_themselves(shape: AttentionShape, layers: int) -> None:
    _, key, value = tensors(shape)
    assert kv_cache_bytes(shape, layers=layers) == layers * (key.nbytes + value.nbytes)
    assert flash_cost(shape).cache_bytes == written_out_cost(shape).cache_bytes == kv_cache_bytes(shape)
    window = window_rule(3)
    assert kv_cache_bytes(shape, rule=window) == key[:, :, -3:].nbytes + value[:, :, -3:].nbytes
    assert kv_cache_bytes(shape, rule=window_rule(3, causal=False)) == kv_cache_bytes(shape)


def test_known_models_have_their_known_caches() -> None:
    llama_2_7b = AttentionShape(1, 32, 32, 1, 4096, 128, 128)
    assert kv_cache_bytes(llama_2_7b, layers=32) == 2 * 2**30  # half a mebibyte for each token
    llama_3_8b = replace(llama_2_7b, groups=8, keys=8192)
    assert kv_cache_bytes(llama_3_8b, layers=32) == 2**30
    assert kv_cache_bytes(replace(llama_2_7b, groups=1), layers=32) * 32 == 2 * 2**30


def test_bytes_moved_of_a_small_layer_by_hand() -> None:
    shape = AttentionShape(
        batch=1, heads=4, groups=2, queries=8, keys=8, width=3, value_width=5, element_bytes=2
    )
    query, key_value, context, pairs = 4 * 8 * 3, 2 * 8 * (3 + 5), 4 * 8 * 5, 4 * 8 * 8
    assert written_out_cost(shape).bytes_moved == 2 * (query + key_value + context + 4 * pairs)
    # Two heads of a group with 8 queries each are 16 rows: four tiles of 4 pass over all keys.
    lse = 4 * 8 * 4
    assert flash_cost(shape, tile_queries=4).bytes_moved == 2 * (query + 4 * key_value + context) + lse
    assert flash_cost(shape, tile_queries=16).bytes_moved == 2 * (query + key_value + context) + lse
    half = flash_cost(shape, rule=window_rule(1), tile_queries=16).bytes_moved
    assert half == 2 * (query + key_value + context) + lse  # every key is still read once
    sums = 2 * 3 * (5 + 1)
    mapped, values = 4 * 8 * 3 + 2 * 8 * 3, 2 * 8 * 5
    linear = linear_cost(shape)
    assert linear.bytes_moved == 2 * (mapped + values + 2 * sums + context)
    assert linear.activation_bytes == 2 * (mapped + values + sums)
    assert linear.cache_bytes == 2 * sums
    projected = 2 * 2 * (3 + 5)
    assert linformer_cost(shape, projected=2).bytes_moved == 2 * (
        (key_value + 2 * 2 * 8 + projected) + (query + projected + context + 4 * 4 * 8 * 2)
    )


def test_one_query_is_bound_by_its_cache_and_sharing_keys_helps() -> None:
    decoding = AttentionShape(1, 32, 32, 1, 4096, 128, 128)
    multi_head, multi_query = flash_cost(decoding), flash_cost(replace(decoding, groups=1))
    assert multi_head.flops == multi_query.flops
    assert multi_head.intensity == pytest.approx(1, rel=0.01)  # Shazeer 2019, section 2.4.1
    assert multi_query.intensity == pytest.approx(32, rel=0.02)
    assert multi_head.cache_bytes == 32 * multi_query.cache_bytes


def test_orders_of_growth() -> None:
    short = AttentionShape(1, 8, 8, 4096, 4096, 64, 64)
    long = replace(short, queries=8192, keys=8192)
    assert written_out_cost(long).flops == 4 * written_out_cost(short).flops
    assert flash_cost(long).activation_bytes == 2 * flash_cost(short).activation_bytes
    assert linear_cost(long).flops == 2 * linear_cost(short).flops
    assert linear_cost(long).cache_bytes == linear_cost(short).cache_bytes
    assert linformer_cost(long, projected=256).flops == 2 * linformer_cost(short, projected=256).flops
    share = allowed_share(causal_rule(), queries=4096, keys=4096)
    assert flash_cost(short, rule=causal_rule()).flops == round(flash_cost(short).flops * share)


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="AttentionShape: keys must be at least 1 but is 0"):
        AttentionShape(1, 1, 1, 1, 0, 1, 1)
    with pytest.raises(ValueError, match="heads must be a multiple of groups 2 but is 3"):
        AttentionShape(1, 3, 2, 1, 1, 1, 1)
    shape = AttentionShape(1, 1, 1, 1, 1, 1, 1)
    with pytest.raises(ValueError, match="tile_queries must be at least 1 but is 0"):
        flash_cost(shape, tile_queries=0)
