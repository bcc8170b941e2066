"""Fast weights against the write rule one position at a time, and linear attention as their special case."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from attn_core import MaskRule
from attn_core.variants.fast_weights import (
    FastWeightController,
    fast_weight_attention,
    fast_weight_weights,
)
from attn_core.variants.linear import linear_attention, linear_attention_weights

FORMS = ("parallel", "chunked", "recurrent")
RULES = ("sum", "delta")


@dataclass(frozen=True)
class Writes:
    """Query (B, H, N, D), key and value (B, G, N, ·), strength (B, G, N), key_valid (B, N) or None."""

    query: Tensor
    key: Tensor
    value: Tensor
    strength: Tensor
    key_valid: Tensor | None


@st.composite
def writes(draw: st.DrawFn) -> Writes:
    """Any short sequence of writes, with padding or without."""
    batch, groups, n = draw(st.integers(1, 2)), draw(st.integers(1, 2)), draw(st.integers(0, 9))
    heads, width, value_width = (
        groups * draw(st.integers(1, 3)),
        draw(st.integers(1, 5)),
        draw(st.integers(1, 5)),
    )
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    valid = torch.rand(batch, n, generator=generator) > 0.3 if draw(st.booleans()) else None
    return Writes(
        query=normal(batch, heads, n, width),
        key=normal(batch, groups, n, width),
        value=normal(batch, groups, n, value_width),
        strength=torch.rand(batch, groups, n, generator=generator, dtype=torch.float64),
        key_valid=valid,
    )


def oracle_features(x: np.ndarray, key_norm: str) -> np.ndarray:
    features = np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))
    if key_norm == "sum":
        return features / features.sum(-1, keepdims=True)
    return features / np.sqrt((features**2).sum(-1, keepdims=True)) if key_norm == "l2" else features


def oracle(case: Writes, write_rule: str, key_norm: str) -> tuple[np.ndarray, np.ndarray]:
    """Context and last memory, one write at a time (Schlag et al. 2021, section 4.2)."""
    query, key = (oracle_features(t.numpy(), key_norm) for t in (case.query, case.key))
    value, strength = case.value.numpy(), case.strength.numpy()
    batch, heads, n, width = query.shape
    groups = key.shape[1]
    memory = np.zeros((batch, groups, width, value.shape[3]))
    context = np.zeros((batch, heads, n, value.shape[3]))
    for b, g in np.ndindex(batch, groups):
        for i in range(n):
            if case.key_valid is None or case.key_valid[b, i]:
                held = key[b, g, i] @ memory[b, g] if write_rule == "delta" else 0.0
                memory[b, g] += strength[b, g, i] * np.outer(key[b, g, i], value[b, g, i] - held)
            for h in range(g * heads // groups, (g + 1) * heads // groups):
                context[b, h, i] = query[b, h, i] @ memory[b, g]
    return context, memory


def options_of(case: Writes, write_rule: str, key_norm: str = "none") -> dict:
    return {
        "write_rule": write_rule,
        "strength": case.strength,
        "key_norm": key_norm,
        "key_valid": case.key_valid,
    }


@pytest.mark.parametrize("write_rule", RULES)
@pytest.mark.parametrize("form", FORMS)
@given(case=writes(), key_norm=st.sampled_from(["sum", "l2"]), chunk=st.integers(1, 10))
def test_every_form_is_one_write_after_the_other(write_rule, form, case: Writes, key_norm, chunk) -> None:
    context, memory = oracle(case, write_rule, key_norm)
    options = options_of(case, write_rule, key_norm)
    found = fast_weight_attention(case.query, case.key, case.value, form=form, chunk=chunk, **options)
    np.testing.assert_allclose(found.context.numpy(), context, atol=1e-9)
    np.testing.assert_allclose(found.memory.numpy(), memory, atol=1e-9)


@pytest.mark.parametrize("write_rule", RULES)
@given(case=writes(), key_norm=st.sampled_from(["none", "sum", "l2"]))
def test_weights_times_value_is_the_context(write_rule, case: Writes, key_norm) -> None:
    options = options_of(case, write_rule, key_norm)
    weights = fast_weight_weights(case.query, case.key, **options)
    repeats = case.query.shape[1] // case.key.shape[1]
    context = fast_weight_attention(case.query, case.key, case.value, form="recurrent", **options).context
    assert_close(weights @ case.value.repeat_interleave(repeats, dim=1), context, atol=1e-8, rtol=1e-6)
    assert (weights.triu(1) == 0).all()


@given(writes())
def test_linear_attention_without_its_divisor_adds_fast_weights(case: Writes) -> None:
    rule = MaskRule(causal=True, key_valid=case.key_valid)
    linear = linear_attention(case.query, case.key, case.value, rule=rule, normalised=False)
    options = {"write_rule": "sum", "key_valid": case.key_valid}
    fast = fast_weight_attention(case.query, case.key, case.value, **options)
    assert_close(fast.context, linear.context)
    assert_close(fast.memory, linear.state.memory)
    weights = linear_attention_weights(case.query, case.key, rule=rule, normalised=False)
    assert_close(fast_weight_weights(case.query, case.key, **options), weights)


@pytest.mark.parametrize("write_rule", RULES)
@given(case=writes(), cut=st.integers(0, 9))
def test_a_memory_carries_the_earlier_writes(write_rule, case: Writes, cut: int) -> None:
    def part(positions: slice, memory: Tensor | None):
        return fast_weight_attention(
            *(t[:, :, positions] for t in (case.query, case.key, case.value)),
            write_rule=write_rule,
            key_norm="l2",
            strength=case.strength[:, :, positions],
            key_valid=None if case.key_valid is None else case.key_valid[:, positions],
            chunk=2,
            memory=memory,
        )

    whole = part(slice(None), None)
    first = part(slice(0, cut), None)
    rest = part(slice(cut, None), first.memory)
    assert_close(torch.cat([first.context, rest.context], dim=2), whole.context)
    assert_close(rest.memory, whole.memory)


def test_the_delta_rule_replaces_what_a_key_held() -> None:
    key = torch.eye(3)[[0, 1, 0]][None, None]
    value = torch.tensor([[[[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]]])
    read = {}
    for rule in RULES:
        memory = fast_weight_attention(key, key, value, write_rule=rule, feature_map="identity").memory
        read[rule] = memory[0, 0]
    assert_close(read["delta"], torch.tensor([[5.0, 6.0], [3.0, 4.0], [0.0, 0.0]]))
    assert_close(read["sum"], torch.tensor([[6.0, 8.0], [3.0, 4.0], [0.0, 0.0]]))
    weights = fast_weight_weights(key, key, write_rule="delta", feature_map="identity")
    assert_close(weights[0, 0, 2], torch.tensor([0.0, 0.0, 1.0]))


def test_a_sum_does_not_know_the_order_of_writes_and_the_delta_rule_does() -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 1, 6, 3, generator=generator) for _ in range(3))
    order = torch.tensor([3, 1, 0, 5, 4, 2])
    for rule, same in (("sum", True), ("delta", False)):
        straight = fast_weight_attention(query, key, value, write_rule=rule, key_norm="l2").memory
        shuffled = fast_weight_attention(
            query, key[:, :, order], value[:, :, order], write_rule=rule, key_norm="l2"
        ).memory
        assert torch.allclose(straight, shuffled, atol=1e-5) is same


def test_the_future_changes_nothing_and_padding_is_never_seen() -> None:
    query, key, value = (torch.randn(1, 1, 5, 3) for _ in range(3))
    valid = torch.tensor([[True, False, True, True, True]])
    strength = torch.rand(1, 1, 5)
    options = {"key_norm": "l2", "key_valid": valid, "strength": strength}
    expected = fast_weight_attention(query, key, value, **options).context
    key[:, :, 1], value[:, :, 1] = torch.inf, torch.nan
    strength[:, :, 1] = torch.nan
    key[:, :, 4], value[:, :, 4] = 7.0, -3.0
    found = fast_weight_attention(query, key, value, **options).context
    assert_close(found[:, :, :4], expected[:, :, :4])


@pytest.mark.parametrize("write_rule", RULES)
@pytest.mark.parametrize("form", FORMS)
def test_gradients_are_right(write_rule, form) -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = [
        torch.randn(1, 2, 4, 3, dtype=torch.float64, generator=generator).requires_grad_() for _ in range(3)
    ]
    strength = torch.rand(1, 2, 4, dtype=torch.float64, generator=generator).requires_grad_()
    valid = torch.tensor([[True, False, True, True]])
    assert torch.autograd.gradcheck(
        lambda q, k, v, b: (
            fast_weight_attention(
                q,
                k,
                v,
                strength=b,
                write_rule=write_rule,
                form=form,
                chunk=3,
                key_norm="sum",
                key_valid=valid,
            ).context
        ),
        (*tensors, strength),
    )


@pytest.mark.parametrize("write_rule", RULES)
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_precision(write_rule, dtype: torch.dtype, tolerance: float) -> None:
    generator = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(1, 2, 70, 8, generator=generator).to(dtype) for _ in range(3))
    options = {"write_rule": write_rule, "key_norm": "l2"}
    exact = fast_weight_attention(query.double(), key.double(), value.double(), form="recurrent", **options)
    for form in FORMS:
        found = fast_weight_attention(query, key, value, form=form, **options)
        assert found.context.dtype == dtype
        assert found.memory.dtype == torch.float32
        assert_close(found.context.double(), exact.context, atol=tolerance, rtol=tolerance)


def test_empty_and_single() -> None:
    for form in FORMS:
        for rule in RULES:
            empty = fast_weight_attention(*(torch.randn(2, 2, 0, 3),) * 3, form=form, write_rule=rule)
            assert empty.context.shape == (2, 2, 0, 3)
            assert (empty.memory == 0).all()
            query, key, value = (torch.randn(2, 2, 1, 3) for _ in range(3))
            one = fast_weight_attention(query, key, value, form=form, write_rule=rule, feature_map="identity")
            assert_close(one.context, (query * key).sum(-1, keepdim=True) * value)


def test_the_controller_carries_its_memory_and_learns() -> None:
    torch.manual_seed(0)
    controller = FastWeightController(8, 2).double()
    hidden = torch.randn(3, 7, 8, dtype=torch.float64)
    whole, memory = controller(hidden)
    first, middle = controller(hidden[:, :4])
    rest, last = controller(hidden[:, 4:], memory=middle)
    assert_close(torch.cat([first, rest], dim=1), whole)
    assert_close(last, memory)
    gradients = torch.autograd.grad(whole.square().sum(), list(controller.parameters()))
    assert all(gradient.abs().sum() > 0 for gradient in gradients)
    valid = torch.ones(3, 7, dtype=torch.bool)
    valid[:, 5:] = False
    assert_close(controller(hidden, key_valid=valid)[1], controller(hidden[:, :5])[1])


@given(writes())
def test_nothing_given_is_written_to(case: Writes) -> None:
    memory = torch.ones(*case.key.shape[:2], case.key.shape[3], case.value.shape[3], dtype=torch.float64)
    tensors = (case.query, case.key, case.value, case.strength, memory)
    before = [tensor.clone() for tensor in tensors]
    for form in FORMS:
        fast_weight_attention(
            case.query, case.key, case.value, form=form, memory=memory, **options_of(case, "delta")
        )
    for tensor, copy in zip(tensors, before, strict=True):
        assert torch.equal(tensor, copy)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"write_rule": "hebb"}, "write_rule must be sum or delta but is 'hebb'"),
        ({"strength": torch.ones(2, 4, 6)}, r"strength must be \(B, G, N\) = \(2, 2, 6\)"),
        ({"key_valid": torch.ones(2, 6)}, "key_valid must be a bool tensor"),
        ({"form": "fast"}, "form must be parallel, chunked, recurrent"),
        ({"key_norm": "l1"}, "key_norm must be none, sum or l2"),
        ({"memory": torch.zeros(2, 4, 4, 4)}, r"memory must be \(B, G, D, E\) = \(2, 2, 4, 4\)"),
    ],
)
def test_what_does_not_fit_is_named(options: dict, message: str) -> None:
    query, key, value = torch.randn(2, 4, 6, 4), torch.randn(2, 2, 6, 4), torch.randn(2, 2, 6, 4)
    with pytest.raises(ValueError, match=message):
        fast_weight_attention(query, key, value, **options)


def test_other_wrong_arguments_are_named() -> None:
    query, key = torch.randn(2, 4, 5, 4), torch.randn(2, 2, 6, 4)
    with pytest.raises(ValueError, match="query must have key's 6 positions but has 5"):
        fast_weight_weights(query, key)
    with pytest.raises(ValueError, match="width must be a multiple of heads"):
        FastWeightController(8, 3)
