"""Attention in compiled code: the formula at every edge, within its error budget, taken only where it pays."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from attn_core import MaskRule, attention, explain_choice, flash_attention
from attn_core.flash import choice, compiled_forward
from attn_core.flash.compiled import library
from attn_core.mask_rules import window_rule
from attn_core.watching import watching
from tests.attn_core.test_flash_budget import INPUTS, SCALE, UNITS, rounded, written_out

pytestmark = pytest.mark.skipif(
    library() is None or not library().panel_width(),
    reason="no C compiler, or no vectors that the kernel knows",
)


def drawn(
    batch: int, heads: int, groups: int, queries: int, keys: int, width: int, values: int
) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(queries + keys)
    sizes = (heads, queries, width), (groups, keys, width), (groups, keys, values)
    return tuple(torch.randn(batch, *size, generator=generator) * 2 for size in sizes)


@given(
    st.sampled_from([(1, 1), (2, 2), (4, 2)]), st.integers(1, 2), st.integers(1, 160), st.integers(1, 600),
    st.integers(1, 40), st.integers(1, 70), st.booleans(),
)  # fmt: skip
def test_it_is_the_formula(
    heads: tuple[int, int], batch: int, queries: int, keys: int, width: int, values: int, causal: bool
) -> None:
    inputs = drawn(batch, *heads, queries, keys, width, values)
    rule = MaskRule(causal=causal)
    found = flash_attention(*inputs, rule=rule, impl="compiled")
    exact = attention(*(tensor.double() for tensor in inputs), rule=rule)
    assert_close(found.lse.double(), exact.lse, atol=1e-4, rtol=1e-5)  # of rows that see nothing −∞
    assert_close(found.context.double(), exact.context, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("name", [name for name in INPUTS if name not in ("bias of −∞", "far from zero")])
def test_the_error_is_at_most_twice_that_of_the_formula(name: str, causal: bool) -> None:
    hard = rounded(INPUTS[name](0), torch.float32)
    inputs = hard.query, hard.key, hard.value
    narrow = tuple(tensor.float() for tensor in inputs)
    exact = written_out(*inputs, None, causal=causal)
    plain = written_out(*narrow, None, causal=causal).double()
    found = flash_attention(*narrow, rule=MaskRule(causal=causal), scale=SCALE, impl="compiled").context
    last_place = torch.finfo(torch.float32).eps * float(exact.abs().max())
    allowed = 2.0 * float((plain - exact).abs().max()) + UNITS * last_place
    assert float((found.double() - exact).abs().max()) <= allowed


@pytest.mark.parametrize(
    "sizes", [(90, 130, 16, 16), (90, 128, 16, 32)], ids=str
)  # the latter fills its panels
def test_rows_keys_and_values_may_lie_anywhere(sizes: tuple[int, ...]) -> None:
    query, key, value = drawn(2, 4, 2, *sizes)
    expected = flash_attention(query, key, value, impl="compiled")
    by_token = [tensor.transpose(1, 2).contiguous().transpose(1, 2) for tensor in (query, key, value)]
    by_number = [tensor.mT.contiguous().mT for tensor in (query, key, value)]
    every_other = [torch.stack([tensor, tensor], -1).flatten(-2)[..., ::2] for tensor in (query, key, value)]
    for given_inputs in (by_token, by_number, every_other):
        found = flash_attention(*given_inputs, impl="compiled")
        assert torch.equal(found.context, expected.context)
        assert torch.equal(found.lse, expected.lse)


def test_what_is_not_a_number_is_told_in_its_own_rows_and_not_taken_for_an_empty_one() -> None:
    query, key, value = drawn(1, 1, 1, 80, 300, 8, 8)
    query[0, 0, 3] = float("nan")
    query[0, 0, 5, 0] = float("inf")
    found, fused = (flash_attention(query, key, value, impl=impl) for impl in ("compiled", "fused"))
    for rows in (3, 5):
        assert found.context[0, 0, rows].isnan().all()
        assert found.lse[0, 0, rows].isnan()
    rest = [row for row in range(80) if row not in (3, 5)]
    assert_close(found.context[:, :, rest], fused.context[:, :, rest])
    assert_close(found.lse[:, :, rest], fused.lse[:, :, rest])


def test_whoever_watches_hears_of_every_strip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled_forward, "STRIP_WEIGHTS", 72 * 100 * 2)
    query, key, value = drawn(1, 2, 2, 200, 100, 8, 8)
    whole = flash_attention(query, key, value, impl="fused")
    heard: list[int] = []
    with watching(heard.append):
        found = flash_attention(query, key, value, impl="compiled")
    assert heard == [14400, 14400, 2 * 56 * 100]
    assert_close(found.context, whole.context)
    causal = flash_attention(query, key, value, rule=MaskRule(causal=True), impl="compiled")
    assert_close(causal.lse, flash_attention(query, key, value, rule=MaskRule(causal=True), impl="fused").lse)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"rule": window_rule(2)}, "no other mask than a causal one"),
        ({"softcap": 2.0}, "no other mask than a causal one, no bias, soft cap or sinks"),
        ({"bias": torch.zeros(1, 1, 5, 5)}, "no bias"),
        ({"sinks": torch.zeros(2)}, "or sinks"),
        ({"scale": 0.0}, "the scale 0 is not above 0"),
    ],
)
def test_what_it_cannot_compute_is_refused_in_words(options: dict[str, Any], reason: str) -> None:
    inputs = drawn(1, 2, 2, 5, 5, 4, 4)
    with pytest.raises(ValueError, match=reason):
        flash_attention(*inputs, **options, impl="compiled")
    assert reason in str(explain_choice(*inputs, **options).others["compiled"])


def test_other_numbers_widths_and_gradients_are_refused() -> None:
    query, key, value = drawn(1, 2, 2, 5, 5, 4, 4)
    with pytest.raises(ValueError, match=r"float32 on a CPU and not torch.float64 on cpu"):
        flash_attention(query.double(), key.double(), value.double(), impl="compiled")
    with pytest.raises(ValueError, match="no backward pass"):
        flash_attention(query.requires_grad_(), key, value, impl="compiled")
    with torch.no_grad():
        flash_attention(query, key, value, impl="compiled")
    with pytest.raises(ValueError, match="wider than 256"):
        flash_attention(*drawn(1, 1, 1, 2, 2, 260, 4), impl="compiled")


def test_auto_takes_it_for_long_inputs_where_it_is_quicker(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = drawn(1, 2, 2, 60, 60, 8, 8)
    assert explain_choice(*inputs).impl == "fused", "short: exactly what the model computes without us"
    monkeypatch.setattr(compiled_forward, "LEAST_WEIGHTS", 2 * 60 * 60)
    monkeypatch.setattr(compiled_forward, "multiplies_quicker", lambda: False)
    assert explain_choice(*inputs).impl == "fused"
    monkeypatch.setattr(compiled_forward, "multiplies_quicker", lambda: True)
    chosen = explain_choice(*inputs)
    assert chosen.impl == "compiled"
    assert "in clearly less time than PyTorch's" in chosen.reason
    assert torch.equal(flash_attention(*inputs).lse, flash_attention(*inputs, impl="compiled").lse)
    assert choice.explain_choice(*inputs, rule=window_rule(2)).impl == "fused"
