"""Edits of heads at the seam: the numbers are those of weights written out, and nothing else is touched."""

from __future__ import annotations

import math
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from attn_core import (
    AdditiveAttention,
    DenseMap,
    FactoredMap,
    HeadEdit,
    LuongAttention,
    MaskRule,
    MemoryBudgetError,
    attention,
    combined,
    editing,
    flash_attention,
    gate,
    model_attention,
    recording,
    replacements,
    uniform,
)
from attn_core.edits import AttentionCall, EditedMap, Replacement, edited_map, gated, replaced_context
from tests.attn_core.strategies import Case, cases

LAYER = nn.Identity()


def run(
    case: Case, edit: HeadEdit | None = None, *, value: Tensor | None = None, **options: Tensor
) -> Tensor:
    """The context that a layer gets, with an edit where one is given."""
    value = case.value if value is None else value
    given_to = {"rule": case.rule, "bias": case.bias, "softcap": case.softcap, **options}
    if edit is None:
        return model_attention(LAYER, case.query, case.key, value, **given_to)
    with editing(lambda _: edit):
        return model_attention(LAYER, case.query, case.key, value, **given_to)


def normal_case(
    *,
    batch: int = 2,
    heads: int = 4,
    groups: int = 2,
    queries: int = 6,
    keys: int = 6,
    rule: MaskRule | None = None,
) -> Case:
    """Random tensors of a given shape."""
    generator = torch.Generator().manual_seed(5)
    shapes = (batch, heads, queries, 3), (batch, groups, keys, 3), (batch, groups, keys, 3)
    query, key, value = (torch.randn(*s, generator=generator, dtype=torch.float64) for s in shapes)
    return Case(query, key, value, rule or MaskRule(), None, None)


def permitted(rule: MaskRule, batch: int, queries: int, keys: int) -> np.ndarray:
    """(B, Q, K): the conventions of masks, pair by pair."""
    found = np.ones((batch, queries, keys), dtype=bool)
    for item in range(batch):
        for i in range(queries):
            for j in range(keys):
                place = i + keys - queries
                if rule.causal and j > place:
                    found[item, i, j] = False
                if rule.window is not None and (
                    place - j >= rule.window or (not rule.causal and j - place >= rule.window)
                ):
                    found[item, i, j] = False
                if rule.key_valid is not None and not rule.key_valid[item, j]:
                    found[item, i, j] = False
    return found


def uniform_by_hand(allowed: np.ndarray, value: np.ndarray, heads: int) -> np.ndarray:
    """(B, H, Q, E) means of the values that each query may see; 0 where there is none."""
    batch, groups, _, width = value.shape
    found = np.zeros((batch, heads, allowed.shape[1], width))
    for item in range(batch):
        for head in range(heads):
            for i in range(allowed.shape[1]):
                seen = value[item, head // (heads // groups)][allowed[item, i]]
                if len(seen):
                    found[item, head, i] = seen.sum(0) / len(seen)
    return found


@settings(max_examples=60)
@given(cases(), st.data())
def test_uniform_heads_take_the_mean_of_what_the_mask_allows(case: Case, data: st.DataObject) -> None:
    batch, heads, queries, _ = case.query.shape
    rows = data.draw(st.sampled_from([1, batch]))
    chosen = torch.tensor(data.draw(st.lists(st.booleans(), min_size=rows * heads, max_size=rows * heads)))
    chosen = chosen.view(rows, heads)
    plain, edited = run(case), run(case, uniform(chosen))
    allowed = permitted(case.rule, batch, queries, case.key.shape[2])
    expected = torch.from_numpy(uniform_by_hand(allowed, case.value.numpy(), heads))
    everywhere = chosen.expand(batch, heads)
    assert_close(edited[everywhere], expected[everywhere], rtol=1e-12, atol=1e-12)
    assert torch.equal(edited[~everywhere], plain[~everywhere])


@pytest.mark.parametrize(
    "rule",
    [
        MaskRule(),
        MaskRule(causal=True),
        MaskRule(causal=True, window=3),
        MaskRule(window=2),
        MaskRule(key_valid=torch.tensor([[True] * 9, [False] * 2 + [True] * 5 + [False] * 2])),
        MaskRule(causal=True, key_valid=torch.tensor([[True] * 9, [False] * 4 + [True] * 5])),
        MaskRule(key_valid=torch.tensor([[True] * 9, [False] * 9])),
    ],
    ids=["none", "causal", "causal window", "window", "padding", "causal padding", "nothing"],
)
@pytest.mark.parametrize("queries", [4, 9, 12])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_every_mask_with_grouped_heads_and_other_lengths(rule: MaskRule, queries: int, groups: int) -> None:
    case = normal_case(groups=groups, queries=queries, keys=9, rule=rule)
    edited = run(case, uniform(torch.ones(1, 4, dtype=torch.bool)))
    expected = uniform_by_hand(permitted(rule, 2, queries, 9), case.value.numpy(), 4)
    assert_close(edited, torch.from_numpy(expected), rtol=1e-12, atol=1e-12)


def test_a_predicate_is_a_mask() -> None:
    def neighbours(items: Tensor, heads: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return ((q + k) % (items + 2) == 0) & (heads >= 0)

    case = normal_case(rule=MaskRule(predicate=neighbours, predicate_batch=2))
    allowed = np.fromfunction(lambda b, i, j: (i + j) % (b + 2) == 0, (2, 6, 6))
    edited = run(case, uniform(torch.ones(2, 4)))
    assert_close(edited, torch.from_numpy(uniform_by_hand(allowed, case.value.numpy(), 4)))


@pytest.mark.parametrize("number", [-math.inf, torch.finfo(torch.float32).min, -1e4])
def test_a_mask_that_is_written_into_the_bias_counts_and_a_plain_bias_does_not(number: float) -> None:
    case = normal_case(queries=6, keys=6)
    plain_bias = torch.randn(2, 4, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1)) * 20
    allowed = np.tril(np.ones((2, 6, 6), dtype=bool))
    allowed[1, :, 0] = False
    written = plain_bias.masked_fill(~torch.from_numpy(allowed)[:, None], number)
    every = uniform(torch.ones(1, 4))
    expected = uniform_by_hand(allowed, case.value.numpy(), 4)
    assert_close(run(case, every, bias=written), torch.from_numpy(expected))
    assert_close(run(case, every, bias=written.float().double()), torch.from_numpy(expected))
    whole = uniform_by_hand(np.ones((2, 6, 6), dtype=bool), case.value.numpy(), 4)
    assert_close(run(case, every, bias=plain_bias), torch.from_numpy(whole))


@pytest.mark.parametrize("rule", [MaskRule(causal=True, window=3), MaskRule(causal=True)])
def test_strips_do_not_show(rule: MaskRule, monkeypatch: pytest.MonkeyPatch) -> None:
    case = normal_case(queries=11, keys=13, rule=rule)
    edit = uniform(torch.ones(1, 4))
    call = AttentionCall(case.query, case.key, case.value, 0.5, rule)
    whole, weights = run(case, edit), edited_map(call, edit).stored
    monkeypatch.setattr("attn_core.edits.strip_rows", lambda *_: 3)
    assert_close(run(case, edit), whole)
    assert_close(edited_map(call, edit).stored, weights)


class Largest(TorchDispatchMode):
    """The largest tensor that any operation made, in elements."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        if isinstance(found, Tensor):
            self.elements = max(self.elements, found.numel())
        return found


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("padded", [False, True])
def test_a_simple_mask_costs_no_square_array(causal: bool, padded: bool) -> None:
    valid = torch.arange(400)[None] < 350 if padded else None
    rule = MaskRule(causal=causal, key_valid=valid)
    case = normal_case(batch=1, queries=400, keys=400, rule=rule)
    call = AttentionCall(case.query, case.key, case.value, 0.5, rule)
    with Largest() as seen:
        replaced_context(call, torch.zeros(1, 4, 400, 3, dtype=torch.float64), uniform(torch.ones(1, 4)))
    assert 0 < seen.elements <= 4 * 400 * 3


def test_no_keys_and_no_queries() -> None:
    every = uniform(torch.ones(1, 4))
    assert torch.equal(run(normal_case(keys=0), every), torch.zeros(2, 4, 6, 3, dtype=torch.float64))
    assert run(normal_case(queries=0), every).shape == (2, 4, 0, 3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_the_type_of_the_value_is_kept(dtype: torch.dtype) -> None:
    case = normal_case(rule=MaskRule(causal=True))
    low = Case(case.query.to(dtype), case.key.to(dtype), case.value.to(dtype), case.rule, None, None)
    for edit in (uniform(torch.ones(1, 4)), gate(torch.full((1, 4), 0.5))):
        found = run(low, edit)
        assert found.dtype == dtype
        assert_close(found.double(), run(case, edit), rtol=0.0, atol=6 * torch.finfo(dtype).eps)


# Shares and gates


def test_a_share_lies_between_and_is_differentiable() -> None:
    case = normal_case(rule=MaskRule(causal=True))
    own, wholly = run(case), run(case, uniform(torch.ones(1, 4)))
    share = torch.tensor([[0.0, 0.25, 0.5, 1.0], [1.0, 0.0, 0.75, 0.1]], dtype=torch.float64)
    mixed = run(case, uniform(share))
    wide = share[:, :, None, None]
    assert_close(mixed, own + wide * (wholly - own))
    assert torch.equal(mixed[0, 0], own[0, 0])
    assert torch.equal(mixed[0, 3], wholly[0, 3])
    assert torch.autograd.gradcheck(lambda s: run(case, uniform(s)), share.requires_grad_())


@settings(max_examples=20)
@given(cases())
def test_a_gate_multiplies_and_its_gradient_is_the_context(case: Case) -> None:
    batch, heads = case.query.shape[:2]
    factors = torch.randn(batch, heads, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    plain = run(case)
    assert_close(run(case, gate(factors)), plain * factors[:, :, None, None])
    assert torch.equal(run(case, gate(torch.ones(1, heads))), plain)
    ones = torch.ones(batch, heads, dtype=torch.float64, requires_grad=True)
    (found,) = torch.autograd.grad((run(case, gate(ones)) ** 2).sum(), ones)
    assert_close(found, 2 * (plain**2).sum((2, 3)))


def test_a_gate_of_truth_values_keeps_and_removes() -> None:
    case = normal_case()
    kept = torch.tensor([[True, False, True, False]])
    found = run(case, gate(kept))
    assert torch.equal(found[:, kept[0]], run(case)[:, kept[0]])
    assert not found[:, ~kept[0]].any()


def test_edits_of_one_layer_are_combined_weights_first_and_gates_multiplied() -> None:
    case = normal_case(rule=MaskRule(causal=True))
    chosen = torch.tensor([[True, True, False, False]])
    factors = torch.tensor([[2.0, 1.0, 3.0, 1.0]], dtype=torch.float64)
    expected = run(case, uniform(chosen)) * 0.5 * factors[:, :, None, None]
    half = gate(torch.full((1, 4), 0.5, dtype=torch.float64))
    assert_close(run(case, combined(gate(factors), uniform(chosen), half)), expected)
    first_key = Replacement(
        chosen, lambda call, rows: torch.eye(1, 6)[:, None].expand(1, 1, rows.stop - rows.start, 6)
    )
    later = run(case, combined(uniform(chosen), HeadEdit((first_key,))))
    assert_close(later[:, :2], case.value[:, :1, :1].expand(2, 2, 6, 3))
    assert combined().replaced == ()
    assert torch.equal(run(case, combined()), run(case))


def test_weights_of_any_kind_may_be_put_in_and_gradients_reach_them() -> None:
    """What later edits build on: rows by hand, by head, with gradients; here also as the recording shows them."""
    case = normal_case(rule=MaskRule(causal=True))
    weights = torch.rand(2, 4, 6, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    weights.requires_grad_()
    edit = HeadEdit((Replacement(torch.ones(1, 4), lambda _, rows: weights[:, :, rows]),))
    found = run(case, edit)
    assert_close(found, weights @ case.value.repeat_interleave(2, dim=1))
    assert torch.autograd.grad(found.sum(), weights)[0].abs().min() > 0


# Recording


@settings(max_examples=40)
@given(cases(), st.booleans())
def test_an_edited_layer_is_recorded_with_the_weights_that_it_used(case: Case, inside: bool) -> None:
    batch, heads = case.query.shape[:2]
    share = torch.rand(batch, heads, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    edit = uniform(share)
    if inside:
        with editing(lambda _: edit), recording(graph=True) as record:
            context = run(case)
    else:
        with recording(graph=True) as record:
            context = run(case, edit)
    (call,) = record.calls
    assert isinstance(call.map, DenseMap)
    assert call.map.kv_heads == case.key.shape[1]
    assert_close(call.map.weights() @ case.value.repeat_interleave(heads // case.key.shape[1], 1), context)
    assert call.context is not None
    assert torch.equal(call.context, context)
    assert call.value is not None
    assert torch.equal(call.value, case.value)
    assert not call.map.weights().requires_grad


@settings(max_examples=40)
@given(cases(), st.data())
def test_an_edited_map_is_cut_like_the_map_it_stands_for(case: Case, data: st.DataObject) -> None:
    """With a share of 0 its weights are the layer's own, so every item and every question has the same answer."""
    batch, heads = case.query.shape[:2]
    sinks = data.draw(st.sampled_from([None, torch.linspace(-1, 1, heads, dtype=torch.float64)]))
    with recording() as record:
        run(case, sinks=sinks)
        run(case, uniform(torch.zeros(1, heads)), sinks=sinks)
    factored, edited = (call.map for call in record.calls)
    assert isinstance(factored, FactoredMap)
    assert isinstance(edited, EditedMap)
    assert edited.rule is case.rule
    for index in range(batch):
        one, other = factored.item(index), edited.item(index)
        assert isinstance(one, FactoredMap)
        assert other.shape == one.shape
        assert_close(other.weights(), one.weights())
        positions = torch.arange(one.queries), torch.arange(one.keys)
        sizes = {"queries": one.queries, "keys": one.keys}
        left, right = (m.rule.allowed(*positions, **sizes) for m in (one, other))
        assert (left is None) == (right is None)
        assert left is None or torch.equal(left, right)


def test_a_gate_changes_no_weight_and_the_recorded_context_is_that_of_the_weights() -> None:
    """So the gradient of a weight is dL/dcontext · value, as for a layer without a gate."""
    case = normal_case(rule=MaskRule(causal=True))
    factors = torch.tensor([[0.5, 2.0, 0.0, 1.0]], dtype=torch.float64)
    weights = attention(case.query, case.key, case.value, rule=case.rule).weights.requires_grad_()
    by_hand = weights @ case.value.repeat_interleave(2, 1) * factors[:, :, None, None]
    (expected,) = torch.autograd.grad((by_hand**3).sum(), weights)
    query = case.query.clone().requires_grad_()
    with recording(graph=True) as record:
        out = run(Case(query, case.key, case.value, case.rule, None, None), gate(factors))
    (call,) = record.calls
    assert isinstance(call.map, FactoredMap)
    assert_close(call.map.weights(), weights.detach())
    (gradient,) = torch.autograd.grad((out**3).sum(), call.context)
    found = gradient @ call.value.repeat_interleave(2, 1).transpose(-1, -2)
    assert_close(found, expected)


def test_edited_weights_that_do_not_fit_are_refused_with_what_to_do() -> None:
    case = normal_case()
    call = AttentionCall(case.query, case.key, case.value, 0.5)
    with pytest.raises(MemoryBudgetError, match="without recording it, or on a shorter input"):
        edited_map(call, uniform(torch.ones(1, 4)), budget=2 * 4 * 6 * 6 * 4 - 1)
    assert edited_map(call, uniform(torch.ones(1, 4)), budget=2 * 4 * 6 * 6 * 4).shape == (2, 4, 6, 6)


# Who is edited, and when


@settings(max_examples=40)
@given(cases())
def test_without_an_edit_nothing_changes_by_a_bit(case: Case) -> None:
    expected = flash_attention(
        case.query, case.key, case.value, rule=case.rule, bias=case.bias, softcap=case.softcap
    ).context
    assert torch.equal(run(case), expected)
    assert torch.equal(run(case, HeadEdit()), expected)
    with editing(lambda _: None), recording() as record:
        assert torch.equal(run(case), expected)
    assert isinstance(record.calls[0].map, FactoredMap)
    assert torch.equal(run(case), expected)


def test_the_edit_is_asked_with_the_layer_that_calls_and_at_every_call() -> None:
    case, asked = normal_case(), []
    layers = [nn.Identity(), nn.Identity()]

    def edit(module: nn.Module) -> HeadEdit | None:
        asked.append(module)
        return gate(torch.zeros(1, 4)) if module is layers[1] else None

    with editing(edit):
        found = [model_attention(layer, case.query, case.key, case.value) for layer in (*layers, layers[0])]
    assert [module is layer for module, layer in zip(asked, (*layers, layers[0]), strict=True)] == [True] * 3
    assert [bool(context.any()) for context in found] == [True, False, True]


def test_blocks_nest_and_end_also_with_an_exception() -> None:
    case = normal_case()
    plain, zero = run(case), torch.zeros(2, 4, 6, 3, dtype=torch.float64)
    double = gate(torch.full((1, 4), 2.0))

    def attend() -> Tensor:
        return model_attention(LAYER, case.query, case.key, case.value)

    def stops(found: Tensor) -> None:
        assert torch.equal(found, zero)
        raise RuntimeError("stop")

    with editing(lambda _: double):
        with pytest.raises(RuntimeError, match="stop"), editing(lambda _: gate(torch.zeros(1, 4))):
            stops(attend())
        assert torch.equal(attend(), 2 * plain)

    def fails(_: nn.Module) -> HeadEdit:
        raise RuntimeError("no edit")

    with pytest.raises(RuntimeError, match="no edit"), editing(fails):
        attend()
    assert torch.equal(attend(), plain)


def test_two_threads_edit_apart_and_a_third_not_at_all() -> None:
    case = normal_case(rule=MaskRule(causal=True))
    edits = {"removed": gate(torch.zeros(1, 4)), "uniform": uniform(torch.ones(1, 4)), "plain": None}
    expected = {name: run(case, edit) for name, edit in edits.items()}
    start, wrong = threading.Barrier(3), []

    def work(name: str) -> None:
        start.wait(timeout=60)
        edit = edits[name]
        for _ in range(100):
            if not torch.equal(run(case, edit), expected[name]):
                wrong.append(name)

    threads = [threading.Thread(target=work, args=(name,)) for name in edits]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert wrong == []


def test_a_thread_and_a_backward_pass_that_start_inside_the_block_are_not_edited_again() -> None:
    case = normal_case()
    factors = torch.full((1, 4), 2.0, dtype=torch.float64, requires_grad=True)
    asked, elsewhere, gradients = [], [], []

    def edit(module: nn.Module) -> HeadEdit:
        asked.append(module)
        return gate(factors)

    with editing(edit):
        found = run_in_block = model_attention(LAYER, case.query, case.key, case.value)
        threads = [
            threading.Thread(target=lambda: elsewhere.append(run(case))),
            threading.Thread(
                target=lambda: gradients.append(torch.autograd.grad(run_in_block.sum(), factors)[0])
            ),
        ]
        for thread in threads:
            thread.start()
            thread.join(timeout=60)
    assert len(asked) == 1
    assert torch.equal(found, 2 * elsewhere[0])
    assert_close(gradients[0], elsewhere[0].sum((0, 2, 3))[None])


# Refusals


@pytest.mark.parametrize("make", [uniform, gate])
def test_heads_are_told_by_truth_values_or_floats_with_two_axes(make) -> None:
    with pytest.raises(ValueError, match="must have 2 axes"):
        make(torch.ones(4))
    with pytest.raises(TypeError, match=r"must be bool or float but is torch\.int64"):
        make(torch.ones(1, 4, dtype=torch.long))


@pytest.mark.parametrize("make", [uniform, gate])
@pytest.mark.parametrize("shape", [(1, 2), (3, 4), (2, 1)])
def test_an_edit_of_another_batch_or_of_key_value_heads_is_refused(make, shape) -> None:
    with pytest.raises(ValueError, match=r"must be \(1, 4\) or \(2, 4\), one number for each query head"):
        run(normal_case(), make(torch.ones(shape)))


def test_tensors_that_were_given_are_not_written_into() -> None:
    case = normal_case(rule=MaskRule(causal=True))
    share = torch.tensor([[0.5, 1.0, 0.0, 1.0]])
    given_tensors = (case.query, case.key, case.value, share)
    before = [tensor._version for tensor in given_tensors]
    context = run(case)
    version = context._version
    call = AttentionCall(case.query, case.key, case.value, 0.5, case.rule)
    gated(call, replaced_context(call, context, uniform(share)), gate(share))
    edited_map(call, uniform(share))
    assert [tensor._version for tensor in given_tensors] == before
    assert context._version == version


# Layers whose weights are no softmax of query · key -------------------------------------------------------------


def scored_layers() -> dict[str, nn.Module]:
    torch.manual_seed(3)
    return {
        "additive": AdditiveAttention(4, 5, 6),
        "concat": LuongAttention(4, 5, scoring="concat"),
        "local-p": LuongAttention(4, 5, scoring="general", alignment="local-p", half_window=2),
    }


@pytest.mark.parametrize("name", ["additive", "concat", "local-p"])
def test_an_edit_reaches_layers_that_score_in_another_way(name):
    layer = scored_layers()[name].double()
    query, source = torch.randn(2, 3, 4, dtype=torch.float64), torch.randn(2, 7, 5, dtype=torch.float64)
    valid = torch.ones(2, 7, dtype=torch.bool)
    valid[1, 5:] = False
    half = combined(uniform(torch.tensor([[1.0], [0.25]])), gate(torch.tensor([[1.0], [3.0]])))
    with recording() as record:
        plain = layer(query, source, key_valid=valid)
    with recording(graph=True) as edited, editing(lambda module: half if module is layer else None):
        found = layer(query, source, key_valid=valid)
    own = record.calls[0].map.weights()  # (2, 1, 3, 7)
    assert_close((own @ source[:, None])[:, 0], plain)
    allowed = valid[:, None, None].double().expand_as(own)
    if name == "local-p":  # uniform over the window around each predicted place
        centre = layer.predicted_centre(query, 7, valid)[:, None, :, None]
        allowed = allowed * ((torch.arange(7) - centre).abs() <= 2)
    even = allowed / allowed.sum(-1, keepdim=True).clamp(min=1)
    share, factor = torch.tensor([1.0, 0.25])[:, None, None, None], torch.tensor([1.0, 3.0])[:, None, None]
    weights = (1 - share) * own + share * even
    assert_close(edited.calls[0].map.weights(), weights)
    assert_close(found, factor * (weights @ source[:, None])[:, 0])
    assert_close(edited.calls[0].context[:, 0] * factor, found)
    item = edited.calls[0].map.item(1)
    assert_close(item.weights()[0, 0], weights[1, 0, :, :5])  # the padded words are cut, no row is


def test_given_weights_take_the_place_of_additive_ones():
    layer = scored_layers()["additive"]
    query, source = torch.randn(1, 2, 4), torch.randn(1, 3, 5)
    first = torch.zeros(1, 1, 2, 3)
    first[..., 0] = 1.0
    with editing(lambda _: replacements.given(torch.ones(1, 1), first)):
        context = layer(query, source)
    assert_close(context, source[:, :1].expand(1, 2, 5))


def test_gradients_reach_the_weights_of_additive_attention():
    layer = scored_layers()["additive"]
    query, source = torch.randn(1, 2, 4), torch.randn(1, 3, 5)
    with recording(graph=True) as record:
        total = layer(query, source)[..., 0].sum()
    (call,) = record.calls
    (gradient,) = torch.autograd.grad(total, call.weights)
    assert_close(gradient[0, 0], source[0, :, 0].expand(2, 3))
