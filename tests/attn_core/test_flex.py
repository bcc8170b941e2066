"""Flexible attention: our reference, PyTorch's operator and explicit loops say the same; every mod by its formula."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from attn_core import MaskRule, RelativeBias, attention
from attn_core.mask_rules import block_sparse_rule, dilated_rule, negated
from attn_core.positions import alibi_slopes
from attn_core.variants.flex import (
    MaskMod,
    ScoreMod,
    alibi,
    causal,
    document,
    flex_attention,
    flex_reference,
    in_turn,
    mask_of_rule,
    prefix,
    prefix_lm,
    relative_bias,
    sliding_window,
    soft_cap,
)

uncompiled = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")


@dataclass(frozen=True)
class Case:
    """Query (B, H, Q, D), key (B, G, K, D), value (B, G, K, E) and numbers that mods are made of."""

    query: Tensor
    key: Tensor
    value: Tensor
    lengths: Tensor
    documents: Tensor
    table: Tensor
    window: int

    @property
    def shift(self) -> int:
        return self.key.shape[2] - self.query.shape[2]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    batch, groups, width, value_width = (draw(st.integers(1, n)) for n in (2, 2, 5, 5))
    heads = groups * draw(st.integers(1, 3))
    keys = draw(st.integers(1, 7))
    queries = draw(st.integers(1, keys))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64) * 2

    return Case(
        query=normal(batch, heads, queries, width),
        key=normal(batch, groups, keys, width),
        value=normal(batch, groups, keys, value_width),
        lengths=torch.randint(0, keys + 1, (draw(st.sampled_from([1, batch])),), generator=generator),
        documents=torch.randint(0, 3, (draw(st.sampled_from([1, batch])), keys), generator=generator),
        table=normal(
            draw(st.sampled_from([1, batch])), draw(st.sampled_from([1, heads])), queries + keys - 1
        ),
        window=draw(st.integers(1, 8)),
    )


def score_mods(case: Case) -> dict[str, tuple[ScoreMod, Callable[..., float]]]:
    """Each score mod beside its formula for one pair; d is the query's place among the keys."""
    slopes, table, shift = alibi_slopes(case.query.shape[1], dtype=torch.float64), case.table, case.shift
    bias = RelativeBias.of(table, queries=case.query.shape[2], keys=case.key.shape[2])

    def read(s: float, b: int, h: int, d: int, k: int) -> float:
        q = d - shift
        return s + float(table[b % len(table), h % table.shape[1], k - q + case.query.shape[2] - 1])

    return {
        "soft_cap": (soft_cap(1.5), lambda s, b, h, d, k: 1.5 * math.tanh(s / 1.5)),
        "alibi": (
            alibi(case.query.shape[1], shift=shift),
            lambda s, b, h, d, k: s - float(slopes[h]) * abs(d - k),
        ),
        "relative": (relative_bias(bias), read),
        "in_turn": (
            in_turn(soft_cap(2.0), relative_bias(bias)),
            lambda s, b, h, d, k: read(2 * math.tanh(s / 2), b, h, d, k),
        ),
    }


def mask_mods(case: Case) -> dict[str, tuple[MaskMod, Callable[..., bool]]]:
    """Each mask mod beside its formula for one pair."""
    lengths, documents, window, shift = case.lengths, case.documents, case.window, case.shift
    dilated = dilated_rule(window, dilation=2, causal=False)

    def inside(b: int, k: int) -> bool:
        return k < int(lengths[b % len(lengths)])

    def same(b: int, d: int, k: int) -> bool:
        return bool(documents[b % len(documents), d] == documents[b % len(documents), k])

    layout = torch.arange(16).view(4, 4) % 3 > 0
    return {
        "causal": (causal(shift=shift), lambda b, h, d, k: k <= d),
        "window": (sliding_window(window, shift=shift), lambda b, h, d, k: d - window < k <= d),
        "prefix": (prefix(lengths), lambda b, h, d, k: inside(b, k)),
        "prefix_lm": (prefix_lm(lengths, shift=shift), lambda b, h, d, k: k <= d or inside(b, k)),
        "document": (document(documents, shift=shift), lambda b, h, d, k: same(b, d, k)),
        "blocks": (
            mask_of_rule(block_sparse_rule(layout, block_size=2)),
            lambda b, h, d, k: bool(layout[(d - shift) // 2, k // 2]),
        ),
        "dilated": (
            mask_of_rule(dilated, shift=shift),
            lambda b, h, d, k: abs(d - k) in range(0, 2 * window, 2),
        ),
        "combined": (
            mask_of_rule((MaskRule(causal=True) & negated(dilated)) | MaskRule(window=1), shift=shift),
            lambda b, h, d, k: d == k or (k <= d and d - k not in range(0, 2 * window, 2)),
        ),
        "heads": (
            lambda b, h, q, k: (q + k + h + b) % 2 == 0,
            lambda b, h, d, k: (d - shift + k + h + b) % 2 == 0,
        ),
    }


SCORE_MODS = ("soft_cap", "alibi", "relative", "in_turn")
MASK_MODS = ("causal", "window", "prefix", "prefix_lm", "document", "blocks", "dilated", "combined", "heads")


def looped_attention(
    case: Case, score_of: Callable[..., float] | None, allowed: Callable[..., bool] | None
) -> Tensor:
    """(B, H, Q, E), one pair at a time."""
    batch, heads, queries, width = case.query.shape
    context = torch.zeros(batch, heads, queries, case.value.shape[3], dtype=torch.float64)
    for b in range(batch):
        for h in range(heads):
            group = h // (heads // case.key.shape[1])
            for q in range(queries):
                weights = {}
                for k in range(case.key.shape[2]):
                    place = b, h, q + case.shift, k
                    if allowed is None or allowed(*place):
                        score = float(case.query[b, h, q] @ case.key[b, group, k]) / math.sqrt(width)
                        weights[k] = math.exp(score if score_of is None else score_of(score, *place))
                for k, weight in weights.items():
                    context[b, h, q] += weight / sum(weights.values()) * case.value[b, group, k]
    return context


# --- Against loops --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCORE_MODS)
@settings(max_examples=25)
@given(case=cases())
def test_score_mods_are_their_formulas(name: str, case: Case) -> None:
    mod, formula = score_mods(case)[name]
    found = flex_attention(case.query, case.key, case.value, score_mod=mod).context
    assert_close(found, looped_attention(case, formula, None))


@pytest.mark.parametrize("name", MASK_MODS)
@settings(max_examples=25)
@given(case=cases())
def test_mask_mods_are_their_formulas(name: str, case: Case) -> None:
    mod, formula = mask_mods(case)[name]
    found = flex_reference(case.query, case.key, case.value, mask_mod=mod)
    assert_close(found.context, looped_attention(case, None, formula))
    sums = found.weights.sum(-1)
    empty = torch.isneginf(found.lse)
    assert_close(sums, (~empty).double())  # rows sum to one, and a row with nothing allowed to zero
    assert not found.context[empty].any()


# --- Against PyTorch ------------------------------------------------------------------------------------------------


@uncompiled
@settings(max_examples=40)
@given(case=cases(), score=st.sampled_from([None, *SCORE_MODS]), mask=st.sampled_from([None, *MASK_MODS]))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_pytorch_gives_the_same(dtype: torch.dtype, case: Case, score: str | None, mask: str | None) -> None:
    tensors = [tensor.to(dtype) for tensor in (case.query, case.key, case.value)]
    mods = {
        "score_mod": None if score is None else score_mods(case)[score][0],
        "mask_mod": None if mask is None else mask_mods(case)[mask][0],
    }
    expected = flex_attention(*tensors, **mods)
    found = flex_attention(*tensors, **mods, impl="torch")
    assert_close(found.context, expected.context)
    assert_close(found.lse, expected.lse)


@uncompiled
@settings(max_examples=40)
@given(case=cases(), scale=st.sampled_from([0.0, 0.3, None]))
def test_both_take_the_scale_as_it_is(case: Case, scale: float | None) -> None:
    expected = attention(case.query, case.key, case.value, scale=scale)
    for impl in ("reference", "torch"):
        found = flex_attention(case.query, case.key, case.value, scale=scale, impl=impl)
        assert_close(found.context, expected.context)
        assert_close(found.lse, expected.lse)


@uncompiled
def test_masks_beyond_one_block_agree() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 1, 2, 300, 8, generator=generator)  # PyTorch's blocks are of 128
    mask_mod = sliding_window(20)
    expected = flex_attention(query, key, value, mask_mod=mask_mod)
    assert_close(flex_attention(query, key, value, mask_mod=mask_mod, impl="torch").context, expected.context)


# --- Against the rest of the package --------------------------------------------------------------------------------


@given(case=cases())
def test_mods_say_what_attention_says_in_its_own_arguments(case: Case) -> None:
    rule = MaskRule(causal=True, window=case.window)
    bias = RelativeBias.of(case.table, queries=case.query.shape[2], keys=case.key.shape[2])
    expected = attention(case.query, case.key, case.value, rule=rule, bias=bias, softcap=1.5)
    found = flex_reference(
        case.query,
        case.key,
        case.value,
        score_mod=in_turn(soft_cap(1.5), relative_bias(bias)),
        mask_mod=mask_of_rule(rule, shift=case.shift),
    )
    assert_close(found.weights, expected.weights)
    assert_close(found.lse, expected.lse)


def test_gradients_of_the_reference() -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(1, 2, 3, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    key = torch.randn(1, 1, 4, 2, generator=generator, dtype=torch.float64, requires_grad=True)
    value = torch.randn(1, 1, 4, 3, generator=generator, dtype=torch.float64, requires_grad=True)
    table = torch.randn(1, 2, 6, generator=generator, dtype=torch.float64, requires_grad=True)

    def context(query: Tensor, key: Tensor, value: Tensor, table: Tensor) -> Tensor:
        bias = RelativeBias.of(table, queries=3, keys=4)
        mods = in_turn(soft_cap(2.0), alibi(2, shift=1), relative_bias(bias))
        some_rows_empty = mask_of_rule(MaskRule(predicate=lambda b, h, q, k: (k <= q) & (q != 1)))
        return flex_attention(query, key, value, score_mod=mods, mask_mod=some_rows_empty).context

    assert torch.autograd.gradcheck(context, (query, key, value, table))
    (gradient,) = torch.autograd.grad(context(query, key, value, table).sum(), query)
    assert not gradient[:, :, 1].any()


def test_minus_infinity_from_a_score_mod_forbids_a_pair() -> None:
    query, key, value = torch.randn(3, 1, 1, 4, 2, generator=torch.Generator().manual_seed(0))
    forbidden = flex_reference(
        query, key, value, score_mod=lambda s, b, h, q, k: torch.where((k < q) & (q > 0), s, -math.inf)
    )
    masked = flex_reference(query, key, value, mask_mod=lambda b, h, q, k: (k < q) & (q > 0))
    assert torch.equal(forbidden.weights, masked.weights)
    assert not masked.weights[0, 0, 0].any()


# --- ALiBi ----------------------------------------------------------------------------------------------------------


# --- Errors ---------------------------------------------------------------------------------------------------------


def test_what_cannot_be_computed_is_refused() -> None:
    query, key, value = torch.randn(3, 1, 1, 4, 2)
    with pytest.raises(ValueError, match="impl must be reference or torch but is 'tiled'"):
        flex_attention(query, key, value, impl="tiled")
    with pytest.raises(ValueError, match="has no backward pass on a CPU"):
        flex_attention(query.clone().requires_grad_(), key, value, impl="torch")
    with pytest.raises(ValueError, match="cannot compute an empty axis"):
        flex_attention(query[:, :, :0], key, value, impl="torch")
    with pytest.raises(ValueError, match="soft_cap: cap must be positive but is 0"):
        soft_cap(0.0)
    with pytest.raises(ValueError, match="alibi_slopes: heads must be at least 1 but is 0"):
        alibi(0)
    with pytest.raises(ValueError, match="prefix: lengths must have 1 axes"):
        prefix(torch.ones(1, 1))
    for impl in ("reference", "torch"):
        with pytest.raises(ValueError, match="flex_attention: value must have key's batch"):
            flex_attention(query, key, value[:, :, :2], impl=impl)
