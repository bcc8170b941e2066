"""The flash algorithm in tiles and PyTorch's kernel in strips: gradients, memory, skipping, and who is told of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from attn_core import IndexedBias, MaskRule, RelativeBias, attention, flash_attention
from attn_core.flash import fused, tiled
from attn_core.flash.scoring import Scoring
from attn_core.flash.tiled import TileSize, pieces, tiled_attention
from attn_core.functional import AttentionOutput
from attn_core.mask_rules import block_sparse_rule, document_rule, padding_rule, prefix_rule, window_rule
from attn_core.watching import watching
from tests.attn_core.test_mask_rules import BATCH, rules

LSE_WEIGHT = 0.3
"""What the log-sum-exp counts in the sums that are differentiated."""


@dataclass(frozen=True)
class Drawn:
    """Inputs that need gradients, with everything else of a layer."""

    inputs: tuple[Tensor, ...]
    options: dict[str, Any]
    tile: TileSize


@st.composite
def drawn_layers(draw: st.DrawFn, *, fused_too: bool = False) -> Drawn:
    """Any small layer in float64: grouped heads, rules and their combinations, bias, soft cap, sinks, value width."""
    keys, groups = draw(st.integers(1, 9)), draw(st.integers(1, 2))
    queries, heads = draw(st.integers(1, keys)), groups * draw(st.integers(1, 3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    width = draw(st.integers(1, 5))
    value_width = width if fused_too else draw(st.integers(1, 5))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    shapes = [None, (1, heads, queries, keys), (BATCH, 1, 1, keys), (1, 1, queries, 1), (queries, keys)]
    bias_shape = draw(st.sampled_from(shapes))
    bias = None if bias_shape is None else normal(*bias_shape)
    options = {
        "rule": draw(rules(keys)),
        "bias": bias,
        "scale": draw(st.sampled_from([None, 0.7, -0.4, 0.0])),
        "softcap": None if fused_too else draw(st.sampled_from([None, 1.5])),
        "sinks": None if fused_too else draw(st.sampled_from([None, normal(heads)])),
    }
    tensors = normal(BATCH, heads, queries, width), normal(BATCH, groups, keys, width)
    value = normal(BATCH, groups, keys, value_width)
    return Drawn((*tensors, value), options, TileSize(draw(st.integers(1, 9)), draw(st.integers(1, 9))))


def with_gradients(drawn: Drawn, run: Callable[..., AttentionOutput], *names: str) -> list[Tensor]:
    """Context, lse, and the gradients of inputs and named options of a weighted sum of both."""
    inputs = [tensor.clone().requires_grad_() for tensor in drawn.inputs]
    learned = {
        name: drawn.options[name].clone().requires_grad_()
        for name in names
        if drawn.options[name] is not None
    }
    output = run(*inputs, **{**drawn.options, **learned})
    generator = torch.Generator().manual_seed(1)
    pull = torch.randn(output.context.shape, generator=generator, dtype=torch.float64)
    lse = output.lse.masked_fill(torch.isneginf(output.lse), 0.0)
    total = (output.context * pull).sum() + LSE_WEIGHT * (lse * pull[..., 0]).sum()
    return [output.context, output.lse, *torch.autograd.grad(total, [*inputs, *learned.values()])]


@settings(max_examples=60)
@given(drawn_layers())
def test_tiles_have_the_gradients_of_the_formula(drawn: Drawn) -> None:
    expected = with_gradients(drawn, attention, "bias", "sinks")
    found = with_gradients(
        drawn,
        lambda *inputs, **options: tiled_attention(*inputs, **options, tile=drawn.tile),
        "bias",
        "sinks",
    )
    for ours, theirs in zip(found, expected, strict=True):
        assert_close(ours, theirs, atol=1e-10, rtol=1e-9)


def in_strips(patch: pytest.MonkeyPatch, rows: int) -> None:
    """Let the kernel have so many queries, and one head under its own causal mask, at a time."""
    patch.setattr(fused, "_strip_rows", lambda *_: rows)
    patch.setattr(fused, "PART_WEIGHTS", 1)
    patch.setattr(fused, "BLOCKED_ROWS", rows)


@settings(max_examples=40)
@given(drawn_layers(fused_too=True), st.integers(1, 9))
def test_strips_of_the_fused_kernel_have_the_gradients_of_the_formula(drawn: Drawn, rows: int) -> None:
    expected = with_gradients(drawn, attention)
    with pytest.MonkeyPatch.context() as patch:
        in_strips(patch, rows)
        found = with_gradients(
            drawn, lambda *inputs, **options: flash_attention(*inputs, **options, impl="fused")
        )
    for ours, theirs in zip(found, expected, strict=True):
        assert_close(ours, theirs, atol=1e-10, rtol=1e-9)


@settings(max_examples=40)
@given(drawn_layers(fused_too=True), st.integers(1, 9))
def test_the_fused_kernels_own_backward_pass_is_right(drawn: Drawn, rows: int) -> None:
    """Without a gradient of the log-sum-exp, for which tiles step in."""
    results = []
    with pytest.MonkeyPatch.context() as patch:
        in_strips(patch, rows)
        for impl in ("reference", "fused"):
            inputs = [tensor.clone().requires_grad_() for tensor in drawn.inputs]
            context = flash_attention(*inputs, **drawn.options, impl=impl).context
            results.append(torch.autograd.grad((context.exp() * 1.3).sum(), inputs))
    for ours, theirs in zip(results[1], results[0], strict=True):
        assert_close(ours, theirs, atol=1e-10, rtol=1e-9)


def test_sinks_of_the_fused_kernel_are_those_of_the_formula() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 2, 2, 5, 4, generator=generator)
    options = {
        "rule": MaskRule(causal=True, key_valid=torch.arange(5)[None] > 1),
        "sinks": torch.tensor([0.3, -1]),
    }
    expected = attention(query, key, value, **options)
    found = flash_attention(query, key, value, **options, impl="fused")
    assert_close(found.context, expected.context)
    assert_close(found.lse, expected.lse)
    with pytest.raises(ValueError, match="because sinks are differentiated through"):
        flash_attention(query.requires_grad_(), key, value, **options, impl="fused")


@pytest.mark.parametrize("kind", ["relative", "indexed"])
def test_gradients_reach_a_table_through_tiles(kind: str) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 1, 2, 5, 3, generator=generator, dtype=torch.float64)
    index = torch.randint(0, 4, (5, 5), generator=generator)
    shape = (1, 2, 9) if kind == "relative" else (4, 2)
    table = torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    def both(numbers: Tensor) -> tuple[Tensor, Tensor]:
        bias = (
            RelativeBias.of(numbers, queries=5, keys=5)
            if kind == "relative"
            else IndexedBias.of(numbers, index)
        )
        output = tiled_attention(query, key, value, bias=bias, softcap=2.0, tile=TileSize(2, 3))
        return output.context, output.lse

    assert gradcheck(both, [table])


def test_a_second_derivative_is_refused() -> None:
    query, key, value = (torch.randn(1, 1, 3, 2, requires_grad=True) for _ in range(3))
    for impl in ("tiled", "fused"):
        context = flash_attention(query, key, value, impl=impl).context
        (first,) = torch.autograd.grad(context.sum(), query, create_graph=True)
        with pytest.raises(RuntimeError, match="no second derivative"):
            torch.autograd.grad((first + query).sum(), query)


def test_a_row_with_nothing_allowed_has_no_gradient_through_its_lse() -> None:
    query, key, value = (torch.randn(1, 1, 3, 2, dtype=torch.float64, requires_grad=True) for _ in range(3))
    rule = MaskRule(predicate=lambda b, h, q, k: q + 0 * k != 1)
    for impl in ("tiled", "fused"):
        output = flash_attention(query, key, value, rule=rule, impl=impl)
        assert torch.isneginf(output.lse[0, 0, 1])
        (gradient,) = torch.autograd.grad(output.lse[:, :, [0, 1, 2]].sum(), query)
        assert (gradient[0, 0, 1] == 0).all()
        assert gradient.isfinite().all()
        assert (gradient[0, 0, 0] != 0).any()


# --- What tensors may look like -------------------------------------------------------------------------------------


def test_no_stride_shows_in_the_numbers() -> None:
    """Also not that of the last axis, which the fused kernel takes for 1 whatever it is."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 2, 4, 6, 5, generator=generator)
    expected = attention(query, key, value)
    for impl in ("tiled", "fused"):
        for order in ((0, 2, 1, 3), (3, 0, 1, 2), (2, 3, 0, 1)):
            back = [order.index(axis) for axis in range(4)]
            moved = [tensor.permute(order).contiguous().permute(back) for tensor in (query, key, value)]
            found = flash_attention(*moved, impl=impl)
            assert_close(found.context, expected.context)
            assert_close(found.lse, expected.lse)


@pytest.mark.parametrize("width", [3, 129, 300])
@pytest.mark.parametrize("value_width", [1, 300])
def test_heads_of_any_width(width: int, value_width: int) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key = torch.randn(2, 1, 2, 5, width, generator=generator)
    value = torch.randn(1, 2, 5, value_width, generator=generator)
    for impl in ("tiled", "auto"):
        assert_close(
            flash_attention(query, key, value, impl=impl).context, attention(query, key, value).context
        )


def test_tensors_made_for_inference_are_taken() -> None:
    with torch.inference_mode():
        query, key, value = torch.randn(3, 1, 2, 5, 4)
        for impl in ("tiled", "fused"):
            found = flash_attention(query, key, value, rule=MaskRule(causal=True), impl=impl)
            assert_close(found.context, attention(query, key, value, rule=MaskRule(causal=True)).context)
    outside = torch.randn(1, 2, 5, 4, requires_grad=True)
    with torch.no_grad():
        assert not flash_attention(outside, outside, outside, impl="tiled").context.requires_grad


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_keeps_its_statistics_and_a_finer_bias(dtype: torch.dtype) -> None:
    """A float32 bias of 100 and 100.01 would be one number in bfloat16."""
    query, key, value = torch.randn(3, 1, 2, 4, 8, generator=torch.Generator().manual_seed(0)).to(dtype)
    bias = 100.0 + 0.01 * torch.arange(4.0)[None, None, None]
    expected = attention(query.double(), key.double(), value.double(), bias=bias.double())
    for impl in ("tiled", "fused", "auto"):
        found = flash_attention(query, key, value, bias=bias, impl=impl)
        assert found.context.dtype == dtype
        assert found.lse.dtype == torch.float32
        assert_close(found.lse.double(), expected.lse, atol=2e-5, rtol=0)
    bare = attention(query.double(), key.double(), value.double()).lse
    for impl in ("tiled", "fused"):
        assert_close(flash_attention(query, key, value, impl=impl).lse.double(), bare, atol=1e-6, rtol=0)
    if dtype == torch.float16:  # the kernel is given float32
        wide = flash_attention(query.float(), key.float(), value.float(), bias=bias, impl="fused")
        assert torch.equal(
            flash_attention(query, key, value, bias=bias, impl="fused").context, wide.context.half()
        )
    with pytest.raises(ValueError, match="the kernel would round the bias"):
        flash_attention(query, key, value, bias=bias.double(), impl="fused")
    assert_close(flash_attention(query, key, value, bias=bias.double()).lse, expected.lse)


# --- Memory, skipping, telling --------------------------------------------------------------------------------------


class Largest(TorchDispatchMode):
    """Most numbers in one tensor that an operator made."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, tuple | list) else [result]:
            if isinstance(tensor, Tensor):
                self.numbers = max(self.numbers, tensor.untyped_storage().nbytes() // tensor.element_size())
        return result


def documents(n: int) -> MaskRule:
    return document_rule((torch.arange(n) // 300)[None])


MASKS: dict[str, Callable[[int], MaskRule]] = {
    "none": lambda n: MaskRule(),
    "causal": lambda n: MaskRule(causal=True),
    "window": lambda n: window_rule(100),
    "both sides": lambda n: window_rule(100, causal=False),
    "prefix": lambda n: prefix_rule(n // 2),
    "documents": documents,
    "padding": lambda n: MaskRule(causal=True) & padding_rule(torch.tensor([n - 7]), keys=n),
    "predicate": lambda n: MaskRule(predicate=lambda b, h, q, k: (q + k) % 3 > 0),
}


@pytest.mark.parametrize("impl", ["tiled", "fused"])
@pytest.mark.parametrize("name", MASKS)
def test_nothing_of_n_by_n_stands_forward_or_backward(name: str, impl: str, monkeypatch) -> None:
    n, heads, width = 1200, 2, 4
    monkeypatch.setattr(fused, "MASK_BYTES", 2**19)
    monkeypatch.setattr(tiled, "tile_size", lambda *_, **__: TileSize(128, 256))
    inputs = [torch.randn(1, heads, n, width, requires_grad=True) for _ in range(3)]
    with Largest() as largest:
        context = flash_attention(*inputs, rule=MASKS[name](n), impl=impl).context
        torch.autograd.grad(context.sum(), inputs)
    assert largest.numbers <= 160 * n  # a strip of the mask or a tile of both heads, of n · n


def test_a_table_of_a_bias_is_never_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    n = 1200
    monkeypatch.setattr(fused, "MASK_BYTES", 2**19)
    monkeypatch.setattr(tiled, "tile_size", lambda *_, **__: TileSize(128, 256))
    bias = RelativeBias.of(torch.randn(1, 2, 2 * n - 1), queries=n, keys=n)
    query, key, value = torch.randn(3, 1, 2, n, 4)
    results = []
    for impl in ("tiled", "fused"):
        with Largest() as largest:
            results.append(flash_attention(query, key, value, bias=bias, impl=impl).context)
        assert largest.numbers <= n * n // 4
    assert_close(results[0], results[1])


def multiplications(rule: MaskRule, impl: str, n: int = 2048) -> int:
    """Operations of tiles; pairs that the fused kernel is handed, of which its counter tells nothing."""
    query, key, value = torch.zeros(3, 1, 1, n, 8)
    if impl == "fused":
        strips = fused._strips(query, key, Scoring(1.0, rule))
        return sum(strip.size * (strip.columns.stop - strip.columns.start) for strip in strips)
    with FlopCounterMode(display=False) as counter:
        tiled_attention(query, key, value, rule=rule, tile=TileSize(128, 128))
    return int(counter.get_total_flops())


@pytest.mark.parametrize("impl", ["tiled", "fused"])
def test_what_a_rule_leaves_out_is_not_worked_on(impl: str) -> None:
    whole = multiplications(MaskRule(), impl)
    assert multiplications(window_rule(128), impl) < 0.15 * whole
    assert multiplications(window_rule(128, causal=False), impl) < 0.25 * whole
    assert multiplications(document_rule((torch.arange(2048) // 256)[None]), impl) < 0.25 * whole
    assert multiplications(MaskRule(causal=True, window=4096), impl) < 0.6 * whole


def test_tiles_skip_the_empty_blocks_of_a_layout() -> None:
    layout = torch.eye(16, dtype=torch.bool)
    share = multiplications(block_sparse_rule(layout, block_size=128), "tiled") / multiplications(
        MaskRule(), "tiled"
    )
    assert share == 1 / 16


@pytest.mark.parametrize("impl", ["reference", "tiled", "fused"])
@pytest.mark.parametrize("name", MASKS)
def test_all_weights_are_told_to_whoever_watches(name: str, impl: str) -> None:
    n = 700
    query, key, value = torch.randn(3, 1, 2, n, 4)
    seen: list[int] = []
    with watching(seen.append):
        flash_attention(query, key, value, rule=MASKS[name](n), impl=impl)
    assert sum(seen) == 2 * n * n
    assert min(seen) >= 0


@pytest.mark.parametrize("impl", ["tiled", "fused"])
@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("size", [1.0, 30.0])
def test_a_backward_pass_tells_all_weights_once_more(name: str, impl: str, size: float) -> None:
    """Also where large scores let it make the forward pass again (``fused.LARGE_LSE``)."""
    n = 300
    inputs = [(size * torch.randn(1, 2, n, 4)).requires_grad_() for _ in range(3)]
    context = flash_attention(*inputs, rule=MASKS[name](n), impl=impl).context
    seen: list[int] = []
    with watching(seen.append):
        torch.autograd.grad(context.sum(), inputs)
    assert sum(seen) == 2 * n * n


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("groups", [3, 1])
def test_a_large_layer_is_told_of_in_parts_and_stays_the_same_to_the_last_bit(
    causal: bool, groups: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel takes other blocks of queries below 768 of them, which would round otherwise."""
    n, rule = 1700, MaskRule(causal=causal)
    inputs = [torch.randn(1, heads, n, 8).requires_grad_() for heads in (3, groups, groups)]
    whole = flash_attention(*inputs, rule=rule, impl="fused")
    expected = torch.autograd.grad(whole.context.square().sum(), inputs)
    monkeypatch.setattr(fused, "PART_WEIGHTS", 1)
    seen: list[int] = []
    with watching(seen.append):
        parts = flash_attention(*inputs, rule=rule, impl="fused")
        found = torch.autograd.grad(parts.context.square().sum(), inputs)
    assert len(seen) == 2 * (3 if causal else 2)
    assert sum(seen) == 2 * 3 * n * n
    assert torch.equal(parts.context, whole.context)
    assert torch.equal(parts.lse, whole.lse)
    for ours, theirs in zip(
        found, expected, strict=True
    ):  # a key's sum over queries is rounded in another order
        assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("impl", ["tiled", "fused"])
def test_a_watcher_stops_either_pass(impl: str) -> None:
    class StopError(Exception):
        pass

    def stop(_weights: int) -> None:
        raise StopError

    inputs = [torch.randn(1, 1, 600, 4, requires_grad=True) for _ in range(3)]
    rule = window_rule(20)
    with pytest.raises(StopError), watching(stop):
        flash_attention(*inputs, rule=rule, impl=impl)
    context = flash_attention(*inputs, rule=rule, impl=impl).context
    with pytest.raises(StopError), watching(stop):
        torch.autograd.grad(context.sum(), inputs)


@pytest.mark.parametrize("even", [True, False])
def test_pieces_are_the_whole(even: bool) -> None:
    for start, length, size in product((0, 5), range(30), range(1, 9)):
        parts = list(pieces(slice(start, start + length), size, even=even))
        places = [place for part in parts for place in range(part.start, part.stop)]
        assert places == list(range(start, start + length))
        lengths = [part.stop - part.start for part in parts] or [1]
        assert min(lengths) > 0
        if even:
            assert max(lengths) - min(lengths) <= 1
            assert max(lengths) <= math.ceil(1.5 * size)
        else:
            assert all(part.start % size == 0 for part in parts[1:])
            assert max(lengths) <= size
