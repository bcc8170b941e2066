"""What every mechanism must keep to, whatever its formula: one table of mechanisms, one test for each property.

A mechanism is a function of query (B, H, Q, D), key (B, G, K, D), value (B, G, K, D) and a rule that gives a context;
``plain`` is its formula written out in the inputs' own precision. What holds for one mechanism alone is tested beside
it; the layers with parameters are in ``test_modules.py``, and here for their precision.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

from attn_core import (
    ALIGNMENTS,
    AdditiveAttention,
    AttentionOutput,
    DenseAttentionOutput,
    LuongAttention,
    MaskRule,
    MultiHeadAttention,
    additive_scores,
    alibi_bias,
    attend,
    attention,
    chunked_lsh_attention,
    concat_scores,
    document_rule,
    dot_scores,
    fast_weight_attention,
    flash_attention,
    flex_reference,
    general_scores,
    linear_attention,
    linformer_attention,
    lsh_attention,
    prefix_rule,
    random_rotations,
    rotary,
    scaled_dot_scores,
    window_rule,
)
from attn_core.variants.flex import mask_of_rule
from tests.oracle_numpy import oracle_attention

Run = Callable[[Tensor, Tensor, Tensor, MaskRule], Tensor]
LONGEST = 96
few = settings(max_examples=30)


@dataclass(frozen=True)
class Mechanism:
    """One way to attend, and which properties its definition promises.

    Attributes:
        run: query, key, value and rule to context.
        plain: the same, written out with every n × n array in the dtype of the inputs.
        rules: the parts of a rule that it takes.
        grouped: key-value heads may be fewer than heads.
        weighs: contexts are means of values, weighted by numbers that sum to one.
        unordered: only the rule knows an order of keys.
        alone: query, key and value belong to the same positions.
        tied: keys are made from the queries; what is passed as key is not looked at.
    """

    run: Run
    plain: Run
    rules: frozenset[str] = field(default_factory=lambda: frozenset({"causal", "window", "padding"}))
    grouped: bool = True
    weighs: bool = True
    unordered: bool = True
    alone: bool = False
    tied: bool = False


# The mechanisms, and each once more written out -----------------------------------------------------------------


def fixed(like: Tensor, *shape: int) -> Tensor:
    """Parameters of a mechanism: the same numbers for the same shape, in the dtype of a tensor."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(like.dtype)


def allowed_of(rule: MaskRule, query: Tensor, key: Tensor) -> Tensor:
    """(B or 1, 1, Q, K) permissions."""
    queries, keys = query.shape[2], key.shape[2]
    found = rule.allowed(torch.arange(queries), torch.arange(keys), queries=queries, keys=keys)
    return torch.ones(1, 1, queries, keys, dtype=torch.bool) if found is None else found


def repeated(key: Tensor, query: Tensor) -> Tensor:
    return key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)


def plain_softmax(scores: Tensor, value: Tensor, allowed: Tensor) -> Tensor:
    """Softmax over allowed keys times value, an empty row zero."""
    scores = scores.masked_fill(~allowed, -math.inf)
    return scores.softmax(-1).masked_fill(~allowed, 0.0) @ repeated(value, scores)


def plain_product(query: Tensor, key: Tensor, value: Tensor, rule: MaskRule) -> Tensor:
    scores = query @ repeated(key, query).mT / math.sqrt(query.shape[3])
    return plain_softmax(scores, value, allowed_of(rule, query, key))


def scored(
    scores: Callable[[Tensor, Tensor], Tensor], written_out: Callable[[Tensor, Tensor], Tensor]
) -> Mechanism:
    """``attend`` over a scoring function, beside the same scores written out for keys of each head."""

    def run(query: Tensor, key: Tensor, value: Tensor, rule: MaskRule) -> Tensor:
        return attend(scores(query, key), value, allowed=allowed_of(rule, query, key)).context

    def plain(query: Tensor, key: Tensor, value: Tensor, rule: MaskRule) -> Tensor:
        return plain_softmax(written_out(query, repeated(key, query)), value, allowed_of(rule, query, key))

    return Mechanism(run, plain)


def written_tanh(query: Tensor, key: Tensor) -> Tensor:
    """v · tanh(W q + U k) of each pair."""
    width = query.shape[3]
    pairs = (query @ fixed(query, 4, width).T)[:, :, :, None] + (key @ fixed(key, 5, width)[:4].T)[:, :, None]
    return pairs.tanh() @ fixed(query, 4)


def concat_weight(query: Tensor) -> Tensor:
    width = query.shape[3]
    return torch.cat([fixed(query, 4, width), fixed(query, 5, width)[:4]], dim=1)


def feature(x: Tensor) -> Tensor:
    return F.elu(x) + 1


def linear(form: str) -> Mechanism:
    def run(query: Tensor, key: Tensor, value: Tensor, rule: MaskRule) -> Tensor:
        return linear_attention(query, key, value, rule=rule, form=form, chunk=7).context

    def plain(query: Tensor, key: Tensor, value: Tensor, rule: MaskRule) -> Tensor:
        weights = feature(query) @ repeated(feature(key), query).mT
        weights = weights * allowed_of(rule, query, key)
        total = weights.sum(-1, keepdim=True)
        return weights / total.masked_fill(total == 0, 1.0) @ repeated(value, query)

    written_out = plain_recurrent if form == "recurrent" else plain
    return Mechanism(run, written_out, rules=frozenset({"causal", "padding"}))


def plain_recurrent(query: Tensor, key: Tensor, value: Tensor, rule: MaskRule) -> Tensor:
    """Linear attention from a memory that takes one key after the other, as its recurrent form rounds."""
    key, shift = repeated(feature(key), query), key.shape[2] - query.shape[2]
    if rule.key_valid is not None:
        key = key * rule.key_valid[:, None, :, None]
    value = F.pad(repeated(value, query), (0, 1), value=1.0)  # the last channel sums the weights
    memories = [torch.zeros_like(key.mT @ value)]
    for place in range(key.shape[2]):
        memories.append(memories[-1] + key[:, :, place, :, None] * value[:, :, place, None])
    read_after = [max(i + shift + 1, 0) if rule.causal else key.shape[2] for i in range(query.shape[2])]
    reads = [feature(query)[:, :, i, None] @ memories[writes] for i, writes in enumerate(read_after)]
    numerator, total = torch.cat(reads, dim=2).split([value.shape[3] - 1, 1], dim=-1)
    return numerator / total.masked_fill(total == 0, 1.0)


def fast_weights(write_rule: str) -> Mechanism:
    def run(query: Tensor, key: Tensor, value: Tensor, rule: MaskRule) -> Tensor:
        options = {"write_rule": write_rule, "key_norm": "l2", "key_valid": rule.key_valid}
        return fast_weight_attention(query, key, value, chunk=5, **options).context

    def plain(query: Tensor, key: Tensor, value: Tensor, rule: MaskRule) -> Tensor:
        query, key, value = (
            F.normalize(feature(query), dim=-1),
            F.normalize(repeated(feature(key), query), dim=-1),
            repeated(value, query),
        )
        memory, reads = (
            query[:, :, :1].mT * value[:, :, :1] * 0,
            [query[:, :, :0] @ value[:, :, :0].mT @ value[:, :, :0]],
        )
        for place in range(query.shape[2]):
            at = slice(place, place + 1)
            wanted = value[:, :, at] - (key[:, :, at] @ memory if write_rule == "delta" else 0)
            written = key[:, :, at].mT * wanted
            if rule.key_valid is not None:
                written = written * rule.key_valid[:, None, at, None]
            memory = memory + written
            reads.append(query[:, :, at] @ memory)
        return torch.cat(reads, dim=2)

    return Mechanism(
        run, plain, rules=frozenset({"always causal", "padding"}), weighs=False, unordered=False, alone=True
    )


def slots(key: Tensor) -> tuple[Tensor, Tensor]:
    """E and F of Linformer for these keys, (3, K) each."""
    return fixed(key, 3, LONGEST)[:, : key.shape[2]], fixed(key, 4, LONGEST)[:3, : key.shape[2]]


def run_linformer(query: Tensor, key: Tensor, value: Tensor, rule: MaskRule) -> Tensor:
    return linformer_attention(query, key, value, *slots(key), key_valid=rule.key_valid).context


def plain_linformer(query: Tensor, key: Tensor, value: Tensor, rule: MaskRule) -> Tensor:
    e, f = slots(key)
    valid = torch.ones(key.shape[0], key.shape[2]) if rule.key_valid is None else rule.key_valid
    kept = valid[:, None, :, None].to(key.dtype)
    some = valid.bool().any(-1)[:, None, None, None]
    return plain_product(query, e @ (key * kept), f @ (value * kept), MaskRule()) * some


def rotations_of(query: Tensor) -> Tensor:
    return random_rotations(
        query.shape[3], 4, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )


def lsh(function: Callable[..., DenseAttentionOutput | AttentionOutput], chunk: int) -> Mechanism:
    def run(query: Tensor, _key: Tensor, value: Tensor, rule: MaskRule) -> Tensor:
        return function(query, value, rotations_of(query), rule=rule, chunk=chunk).context

    def plain(query: Tensor, _key: Tensor, value: Tensor, rule: MaskRule) -> Tensor:
        # Which pairs meet is decided by hashes, which are not what is compared here.
        wide = lsh_attention(query.double(), value.double(), rotations_of(query), rule=rule, chunk=chunk)
        scores = query @ F.normalize(query, dim=-1).mT / math.sqrt(query.shape[3])
        return plain_softmax(scores, value, wide.weights > 0)

    rules = frozenset({"causal", "padding"})
    return Mechanism(run, plain, rules, grouped=False, unordered=False, alone=True, tied=True)


def flash(impl: str) -> Mechanism:
    return Mechanism(
        lambda q, k, v, rule: flash_attention(q, k, v, rule=rule, impl=impl).context, plain_product
    )


def run_flex(query: Tensor, key: Tensor, value: Tensor, rule: MaskRule) -> Tensor:
    mask_mod = mask_of_rule(rule, shift=key.shape[2] - query.shape[2])
    return flex_reference(query, key, value, mask_mod=mask_mod).context


MECHANISMS: dict[str, Mechanism] = {
    "attention": Mechanism(lambda q, k, v, rule: attention(q, k, v, rule=rule).context, plain_product),
    "flash auto": flash("auto"),
    "flash tiled": flash("tiled"),
    "flash fused": flash("fused"),
    "flex": Mechanism(run_flex, plain_product),
    "dot": scored(dot_scores, lambda q, k: q @ k.mT),
    "scaled dot": scored(scaled_dot_scores, lambda q, k: q @ k.mT / math.sqrt(q.shape[3])),
    "general": scored(
        lambda q, k: general_scores(q, k, fixed(q, q.shape[3], k.shape[3])),
        lambda q, k: q @ fixed(q, q.shape[3], k.shape[3]) @ k.mT,
    ),
    "additive": scored(
        lambda q, k: additive_scores(q, k, fixed(q, 4, q.shape[3]), fixed(k, 5, k.shape[3])[:4], fixed(q, 4)),
        written_tanh,
    ),
    "concat": scored(lambda q, k: concat_scores(q, k, concat_weight(q), fixed(q, 4)), written_tanh),
    "linear parallel": linear("parallel"),
    "linear chunked": linear("chunked"),
    "linear recurrent": linear("recurrent"),
    "fast weights sum": fast_weights("sum"),
    "fast weights delta": fast_weights("delta"),
    "linformer": Mechanism(
        run_linformer, plain_linformer, rules=frozenset({"padding"}), weighs=False, unordered=False
    ),
    "lsh": lsh(lsh_attention, LONGEST),
    "lsh chunked": lsh(chunked_lsh_attention, LONGEST),
    "lsh in short chunks": lsh(chunked_lsh_attention, 5),
}


def those(**promised: bool) -> list[str]:
    """Names of the mechanisms that promise what is asked."""
    return [
        name
        for name, mechanism in MECHANISMS.items()
        if all(getattr(mechanism, key) is value for key, value in promised.items())
    ]


def taking(*parts: str) -> list[str]:
    """Names of the mechanisms that take all these parts of a rule."""
    return [name for name, mechanism in MECHANISMS.items() if mechanism.rules.issuperset(parts)]


SCORED = ("dot", "scaled dot", "general", "additive", "concat")
CAUSAL = [
    name
    for name, mechanism in MECHANISMS.items()
    if {"causal", "always causal"} & mechanism.rules and name != "lsh in short chunks"
]


# What is drawn ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Drawn:
    """Query (B, H, Q, D), key and value (B, G, K, D), and key_valid (B, K) or None."""

    query: Tensor
    key: Tensor
    value: Tensor
    key_valid: Tensor | None

    def run(self, mechanism: Mechanism, *, causal: bool = False, window: int | None = None) -> Tensor:
        rule = MaskRule(causal=causal, window=window, key_valid=self.key_valid)
        return mechanism.run(self.query, self.key, self.value, rule)


@st.composite
def inputs(draw: st.DrawFn, mechanism: Mechanism, *, smallest: int = 1, padding: bool = True) -> Drawn:
    """Any small input that a mechanism takes: grouped heads, unequal lengths, padding."""
    batch, width = draw(st.integers(1, 2)), draw(st.integers(1, 5))
    groups = draw(st.integers(1, 2))
    heads = groups * (draw(st.integers(1, 2)) if mechanism.grouped else 1)
    keys = draw(st.integers(smallest, 9))
    queries = keys if mechanism.alone else draw(st.integers(smallest, 9))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    valid = None
    if padding and draw(st.booleans()):
        valid = torch.rand(batch, keys, generator=generator) > 0.4
    query = normal(batch, heads, queries, width)
    key = query if mechanism.tied else normal(batch, groups, keys, width)
    return Drawn(query, key, normal(batch, groups, keys, width), valid)


def rules_of(data: st.DataObject, mechanism: Mechanism) -> dict[str, object]:
    """Causal part and window, where the mechanism takes them."""
    return {
        "causal": "causal" in mechanism.rules and data.draw(st.booleans()),
        "window": data.draw(st.none() | st.integers(1, 10)) if "window" in mechanism.rules else None,
    }


# Formulas ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MECHANISMS)
@few
@given(st.data())
def test_each_is_its_formula_written_out(name: str, data: st.DataObject) -> None:
    mechanism = MECHANISMS[name]
    drawn = data.draw(inputs(mechanism))
    chosen = rules_of(data, mechanism)
    rule = MaskRule(key_valid=drawn.key_valid, **chosen)
    expected = mechanism.plain(drawn.query, drawn.key, drawn.value, rule)
    expected = expected.nan_to_num() if mechanism.weighs else expected
    assert_close(drawn.run(mechanism, **chosen), expected, atol=1e-9, rtol=1e-7)


@few
@given(st.data())
def test_attend_is_the_softmax_in_numpy(data: st.DataObject) -> None:
    drawn = data.draw(inputs(MECHANISMS["attention"]))
    scores = drawn.query @ repeated(drawn.key, drawn.query).mT
    allowed = torch.rand(scores.shape, generator=torch.Generator().manual_seed(0)) > 0.4
    sinks = torch.linspace(-1.0, 1.0, scores.shape[1], dtype=torch.float64)
    context, lse, weights = oracle_attention(
        *(t.numpy() for t in (drawn.query, drawn.key, drawn.value)), allowed=allowed.numpy(), scale=1.0
    )
    found = attend(scores, drawn.value, allowed=allowed)
    np.testing.assert_allclose(found.context.numpy(), context, atol=1e-12)
    np.testing.assert_allclose(found.lse.numpy(), lse, atol=1e-12)
    np.testing.assert_allclose(found.weights.numpy(), weights, atol=1e-12)
    sunk = np.logaddexp(lse, sinks.numpy()[None, :, None])
    found = attend(scores, drawn.value, allowed=allowed, sinks=sinks)
    np.testing.assert_allclose(found.lse.numpy(), sunk, atol=1e-12)
    np.testing.assert_allclose(found.weights.numpy(), weights * np.exp(lse - sunk)[..., None], atol=1e-12)


@pytest.mark.parametrize("impl", ["reference", "tiled", "fused", "flex"])
@few
@given(st.data())
def test_pytorch_attention_gives_the_same(impl: str, data: st.DataObject) -> None:
    mechanism = MECHANISMS["attention"]
    drawn, chosen = data.draw(inputs(mechanism)), rules_of(data, mechanism)
    rule = MaskRule(key_valid=drawn.key_valid, **chosen)
    scale = data.draw(st.sampled_from([None, 0.0, 0.3, -0.7]))
    allowed = allowed_of(rule, drawn.query, drawn.key)
    expected = F.scaled_dot_product_attention(
        drawn.query, drawn.key, drawn.value, attn_mask=allowed, scale=scale, enable_gqa=True
    )
    if impl == "flex":
        mask_mod = mask_of_rule(rule, shift=drawn.key.shape[2] - drawn.query.shape[2])
        found = flex_reference(drawn.query, drawn.key, drawn.value, mask_mod=mask_mod, scale=scale).context
    else:
        found = flash_attention(
            drawn.query, drawn.key, drawn.value, rule=rule, scale=scale, impl=impl
        ).context
    some = allowed.any(-1, keepdim=True).expand_as(found)  # PyTorch is silent on rows with nothing allowed
    assert_close(found[some], expected[some])


@pytest.mark.parametrize("scale", [0.0, -0.5])
@pytest.mark.parametrize("impl", ["tiled", "fused", "auto"])
def test_a_scale_that_is_not_positive_is_taken_under_a_causal_mask(impl: str, scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 1, 2, 40, 8, generator=generator, dtype=torch.float64)
    rule = MaskRule(causal=True)
    expected = attention(query, key, value, rule=rule, scale=scale)
    found = flash_attention(query, key, value, rule=rule, scale=scale, impl=impl)
    assert_close(found.context, expected.context)
    assert_close(found.lse, expected.lse)


# Rows sum to one --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", those(weighs=True))
@few
@given(st.data())
def test_values_of_one_come_back_as_one_or_as_nothing(name: str, data: st.DataObject) -> None:
    mechanism = MECHANISMS[name]
    drawn, chosen = data.draw(inputs(mechanism)), rules_of(data, mechanism)
    rule = MaskRule(key_valid=drawn.key_valid, **chosen)
    ones = torch.ones_like(drawn.value)
    found = mechanism.run(drawn.query, drawn.key, ones, rule)
    some = allowed_of(rule, drawn.query, drawn.key).any(-1, keepdim=True)
    if (
        mechanism.tied and drawn.key_valid is not None
    ):  # a query that is padding may meet no key in its buckets
        some = some & (drawn.key_valid[:, None, :, None] | (found != 0))
    assert_close(found, some.expand_as(found).double())


@pytest.mark.parametrize("name", those(weighs=True))
@few
@given(st.data())
def test_contexts_lie_between_the_values(name: str, data: st.DataObject) -> None:
    mechanism = MECHANISMS[name]
    drawn = data.draw(inputs(mechanism, padding=False))
    found, value = drawn.run(mechanism), repeated(drawn.value, drawn.query)
    assert (found <= value.amax(2, keepdim=True) + 1e-9).all()
    assert (found >= value.amin(2, keepdim=True) - 1e-9).all()


# Order ------------------------------------------------------------------------------------------------------------


def order_of(tensor: Tensor, dim: int, seed: int) -> Tensor:
    return torch.randperm(tensor.shape[dim], generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", those(alone=False))
@few
@given(st.data())
def test_queries_carry_their_contexts_along(name: str, data: st.DataObject) -> None:
    mechanism = MECHANISMS[name]
    drawn = data.draw(inputs(mechanism))
    rows = order_of(drawn.query, 2, 0)
    moved = Drawn(drawn.query[:, :, rows], drawn.key, drawn.value, drawn.key_valid).run(mechanism)
    assert_close(moved, drawn.run(mechanism)[:, :, rows])


@pytest.mark.parametrize("name", those(unordered=True))
@few
@given(st.data())
def test_the_order_of_keys_with_their_values_does_not_matter(name: str, data: st.DataObject) -> None:
    mechanism = MECHANISMS[name]
    drawn = data.draw(inputs(mechanism))
    columns = order_of(drawn.key, 2, 1)
    valid = None if drawn.key_valid is None else drawn.key_valid[:, columns]
    moved = Drawn(drawn.query, drawn.key[:, :, columns], drawn.value[:, :, columns], valid)
    assert_close(moved.run(mechanism), drawn.run(mechanism))


def test_who_knows_the_order_of_keys_without_a_mask() -> None:
    """Where order is said to matter, it does."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 1, 1, 8, 4, generator=generator, dtype=torch.float64)
    order = torch.tensor([5, 0, 7, 2, 1, 6, 3, 4])
    for name in ("linformer", "fast weights sum", "fast weights delta"):
        run = MECHANISMS[name].run
        straight, moved = (
            run(query, k, v, MaskRule()) for k, v in ((key, value), (key[:, :, order], value[:, :, order]))
        )
        assert not torch.allclose(straight, moved, atol=1e-3), name


@pytest.mark.parametrize("scoring", ["dot", "general", "concat"])
@pytest.mark.parametrize("alignment", ["global", "local-m", "local-p"])
def test_steps_of_luong_attention_carry_their_contexts_along_unless_a_step_has_its_place(
    scoring: str, alignment: str
) -> None:
    torch.manual_seed(0)
    layer = LuongAttention(4, 4, scoring=scoring, alignment=alignment, half_window=2).double()
    hidden, source = torch.randn(1, 6, 4, dtype=torch.float64), torch.randn(1, 9, 4, dtype=torch.float64)
    rows = torch.tensor([3, 5, 0, 2, 4, 1])
    moved, straight = layer(hidden[:, rows], source), layer(hidden, source)[:, rows]
    assert torch.allclose(moved, straight) is (alignment != "local-m")


# Causality and windows --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CAUSAL)
@few
@given(st.data())
def test_a_prefix_knows_nothing_of_what_follows(name: str, data: st.DataObject) -> None:
    mechanism = MECHANISMS[name]
    drawn = data.draw(inputs(mechanism))
    n = min(drawn.query.shape[2], drawn.key.shape[2])
    cut = data.draw(st.integers(1, n))
    chosen = rules_of(data, mechanism) | {"causal": "causal" in mechanism.rules}
    query, key, value = (tensor[:, :, :n] for tensor in (drawn.query, drawn.key, drawn.value))
    valid = None if drawn.key_valid is None else drawn.key_valid[:, :n]
    expected = Drawn(query, key, value, valid).run(mechanism, **chosen)[:, :, :cut]
    later = [
        torch.cat([t[:, :, :cut], torch.full_like(t[:, :, cut:], 50.0)], dim=2) for t in (query, key, value)
    ]
    assert_close(Drawn(*later, valid).run(mechanism, **chosen)[:, :, :cut], expected)
    valid = None if valid is None else valid[:, :cut]
    assert_close(
        Drawn(*(t[:, :, :cut] for t in (query, key, value)), valid).run(mechanism, **chosen), expected
    )


def test_short_chunks_of_a_sorted_sequence_depend_on_what_follows() -> None:
    """Which pairs of a long bucket are kept is decided by where chunks end, and later positions move that."""
    generator = torch.Generator().manual_seed(0)
    query, later = torch.randn(2, 1, 1, 48, 4, generator=generator, dtype=torch.float64)
    changed = torch.cat([query[:, :, :32], later[:, :, 32:]], dim=2)
    for chunk, same in ((2, False), (48, True)):
        run = lsh(chunked_lsh_attention, chunk).run
        contexts = [run(x, x, query, MaskRule(causal=True))[:, :, :32] for x in (query, changed)]
        assert torch.allclose(*contexts) is same


@pytest.mark.parametrize("name", taking("window"))
@few
@given(st.data())
def test_a_window_as_long_as_the_keys_is_none(name: str, data: st.DataObject) -> None:
    mechanism = MECHANISMS[name]
    drawn = data.draw(inputs(mechanism))
    keys = drawn.key.shape[2]
    drawn = Drawn(drawn.query[:, :, :keys], drawn.key, drawn.value, drawn.key_valid)
    causal, more = data.draw(st.booleans()), data.draw(st.integers(0, 3))
    whole = drawn.run(mechanism, causal=causal)
    assert_close(drawn.run(mechanism, causal=causal, window=keys + more), whole)


# Groups -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", those(grouped=True))
@few
@given(st.data())
def test_grouped_heads_are_repeated_heads(name: str, data: st.DataObject) -> None:
    mechanism = MECHANISMS[name]
    drawn, chosen = data.draw(inputs(mechanism)), rules_of(data, mechanism)
    wide = [repeated(tensor, drawn.query) for tensor in (drawn.key, drawn.value)]
    expected = Drawn(drawn.query, *wide, drawn.key_valid).run(mechanism, **chosen)
    assert_close(drawn.run(mechanism, **chosen), expected)


# Nothing allowed, nothing there -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", taking("padding"))
def test_an_item_of_padding_has_no_context_and_no_gradient(name: str) -> None:
    mechanism = MECHANISMS[name]
    generator = torch.Generator().manual_seed(0)
    query, key, value = torch.randn(3, 2, 2, 5, 3, generator=generator, dtype=torch.float64)
    tensors = [tensor.clone().requires_grad_() for tensor in (query, key, value)]
    tensors[1] = tensors[0] if mechanism.tied else tensors[1]
    rule = MaskRule(key_valid=torch.tensor([[False] * 5, [True, False, True, True, False]]))
    context = mechanism.run(*tensors, rule)
    assert (context[0] == 0).all()
    some = rule.key_valid[1] if mechanism.tied else slice(None)  # a query that is padding may meet no key
    assert (context[1][:, some] != 0).all()
    for gradient in torch.autograd.grad(context.square().sum() + context.sum(), tensors, allow_unused=True):
        assert gradient is not None
        assert (gradient[0] == 0).all()
        assert gradient.isfinite().all()


@pytest.mark.parametrize("name", ["attention", "tiled", "fused", "flex", "attend"])
def test_rows_that_a_bias_empties_have_no_context_and_no_gradient(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    query, key, value = (
        torch.randn(1, 2, 3, 4, generator=generator, dtype=torch.float64, requires_grad=True)
        for _ in range(3)
    )
    bias = torch.zeros(1, 1, 3, 3, dtype=torch.float64)
    bias[:, :, 1] = -math.inf
    if name == "flex":
        output = flex_reference(query, key, value, score_mod=lambda s, b, h, q, k: s + bias[0, 0, q, k])
    elif name == "attend":
        output = attend(scaled_dot_scores(query, key) + bias, value)
    else:
        impl = "reference" if name == "attention" else name
        output = flash_attention(query, key, value, bias=bias, impl=impl)
    assert (output.context[:, :, 1] == 0).all()
    assert torch.isneginf(output.lse[:, :, 1]).all()
    for gradient in torch.autograd.grad(output.context.square().sum(), (query, key, value)):
        assert gradient.isfinite().all()
        assert gradient.abs().sum() > 0
    (gradient,) = torch.autograd.grad(attention(query, key, value, bias=bias).lse.sum(), query)
    assert (gradient[:, :, 1] == 0).all()


@pytest.mark.parametrize("batch", [0, 2])
@pytest.mark.parametrize("name", MECHANISMS)
def test_empty_sequences_and_batches(name: str, batch: int) -> None:
    mechanism = MECHANISMS[name]
    groups = 2 if mechanism.grouped else 4
    for queries, keys in ((0, 0), (0, 3), (3, 0), (3, 3)):
        if (queries != keys and mechanism.alone) or (batch and queries and keys):
            continue
        query, key, value = (
            torch.randn(batch, heads, length, 5, requires_grad=True)
            for heads, length in ((4, queries), (groups, keys), (groups, keys))
        )
        rule = MaskRule(key_valid=torch.ones(batch, keys, dtype=torch.bool))
        rule = rule & MaskRule(causal="causal" in mechanism.rules)
        if name == "flash fused":
            with pytest.raises(ValueError, match="impl='fused' cannot compute this because an axis is empty"):
                mechanism.run(query, key, value, rule)
            continue
        context = mechanism.run(query, key, value, rule)
        assert context.shape == query.shape
        assert (context == 0).all()
        for gradient in torch.autograd.grad(context.sum(), (query, key, value), allow_unused=True):
            assert gradient is None or (gradient == 0).all()


# Gradients and storage --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MECHANISMS)
def test_gradients_are_right(name: str) -> None:
    mechanism = MECHANISMS[name]
    generator = torch.Generator().manual_seed(0)
    shapes = (2, 2, 4, 2), (2, 1 if mechanism.grouped else 2, 4, 2), (2, 1 if mechanism.grouped else 2, 4, 2)
    query, key, value = (
        torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True) for shape in shapes
    )
    rule = MaskRule(
        causal="causal" in mechanism.rules,
        window=3 if "window" in mechanism.rules else None,
        key_valid=torch.tensor([[False] * 4, [False, True, True, True]]),
    )
    if mechanism.tied:
        assert torch.autograd.gradcheck(lambda q, v: mechanism.run(q, q, v, rule), (query, value))
    else:
        assert torch.autograd.gradcheck(lambda q, k, v: mechanism.run(q, k, v, rule), (query, key, value))


@pytest.mark.parametrize("name", MECHANISMS)
def test_any_storage_is_taken_and_none_is_written_to(name: str) -> None:
    mechanism = MECHANISMS[name]
    generator = torch.Generator().manual_seed(0)
    packed = torch.randn(2, 6, 3, 2, 4, generator=generator, dtype=torch.float64)  # (B, N, 3, H, D)
    query, key, value = packed.permute(2, 0, 3, 1, 4)  # as a fused projection hands them out
    key = query if mechanism.tied else key
    before = packed.clone()
    rule = MaskRule(causal="causal" in mechanism.rules)
    expected = mechanism.run(*(tensor.contiguous() for tensor in (query, key, value)), rule)
    assert_close(mechanism.run(query, key, value, rule), expected)
    assert torch.equal(packed, before)


# Precision --------------------------------------------------------------------------------------------------------

LOW = [torch.float32, torch.bfloat16, torch.float16]


def assert_within_twice(found: Tensor, plain: Tensor, exact: Tensor) -> None:
    """The error against float64 is at most twice that of the formula written out in the same low precision."""
    assert found.dtype == plain.dtype
    assert found.isfinite().all()
    error, budget = ((t.double() - exact).abs().max() for t in (found, plain))
    assert error <= 2 * budget, f"error {float(error):.2e}, a plain run {float(budget):.2e}"


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize(
    ("name", "causal"), [(name, False) for name in MECHANISMS] + [(name, True) for name in taking("causal")]
)
def test_the_error_is_at_most_twice_that_of_a_plain_run(name: str, causal: bool, dtype: torch.dtype) -> None:
    mechanism = MECHANISMS[name]
    generator = torch.Generator().manual_seed(3)
    query, key, value = (torch.randn(2, 2, LONGEST, 16, generator=generator).to(dtype) for _ in range(3))
    key = query if mechanism.tied else key
    rule = MaskRule(
        causal=causal, key_valid=torch.arange(LONGEST)[None].expand(2, -1) < torch.tensor([[80], [LONGEST]])
    )
    exact = mechanism.plain(query.double(), key.double(), value.double(), rule)
    found, plain = mechanism.run(query, key, value, rule), mechanism.plain(query, key, value, rule)
    assert_within_twice(found, plain, exact)


@pytest.mark.parametrize("name", taking("window"))
def test_large_scores_do_not_overflow(name: str) -> None:
    mechanism = MECHANISMS[name]
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 2, 12, 8, generator=generator) for _ in range(3))
    query, key = query * 300, key * 300  # products of up to a million; the exponential ends at 88
    found = mechanism.run(query, key, value, MaskRule(causal=True))
    exact = mechanism.plain(query.double(), key.double(), value.double(), MaskRule(causal=True))
    assert_close(found.double(), exact, atol=1e-5, rtol=1e-5)


# Precision of layers ----------------------------------------------------------------------------------------------


def plain_additive(layer: AdditiveAttention, hidden: Tensor, source: Tensor) -> Tensor:
    pairs = layer.query_projection(hidden)[:, :, None] + layer.key_projection(source)[:, None]
    return layer.vector(pairs.tanh())[..., 0].softmax(-1) @ source


def plain_luong(layer: LuongAttention, hidden: Tensor, source: Tensor) -> Tensor:
    if layer.scoring == "concat":
        both = [
            t.expand(-1, hidden.shape[1], source.shape[1], -1) for t in (hidden[:, :, None], source[:, None])
        ]
        scores = layer.vector(layer.pair_projection(torch.cat(both, dim=-1)).tanh())[..., 0]
    else:
        query = layer.query_projection(hidden) if layer.scoring == "general" else hidden
        scores = query @ source.mT
    places = torch.arange(source.shape[1], dtype=torch.float64)
    if layer.alignment == "global":
        return scores.softmax(-1) @ source
    centre = torch.arange(hidden.shape[1], dtype=torch.float64)[None, :, None]
    if layer.alignment == "local-p":
        share = torch.sigmoid(layer.position_vector(layer.position_projection(hidden).tanh()))
        centre = share * source.shape[1]
    distance = places.to(centre.dtype) - centre
    scores = scores.masked_fill(distance.abs() > layer.half_window, -math.inf)
    weights = scores.softmax(-1)
    if layer.alignment == "local-p":
        weights = weights * torch.exp(-(distance**2) / (2 * (layer.half_window / 2) ** 2))
    return weights @ source


def plain_heads(layer: MultiHeadAttention, hidden: Tensor, source: Tensor) -> Tensor:
    source = hidden if layer.causal else source
    query, key, value = (
        part(x).unflatten(-1, (-1, layer.head_width)).transpose(1, 2)
        for part, x in (
            (layer.query_projection, hidden),
            (layer.key_projection, source),
            (layer.value_projection, source),
        )
    )
    if layer.rotary_base is not None:
        query, key = (rotary(x, torch.arange(x.shape[2]), base=layer.rotary_base) for x in (query, key))
    scores = query @ repeated(key, query).mT / math.sqrt(layer.head_width)
    if layer.alibi:
        scores = scores + alibi_bias(layer.heads, *scores.shape[2:], dtype=torch.float64).dense().to(
            scores.dtype
        )
    allowed = allowed_of(MaskRule(causal=layer.causal, window=layer.window), query, key)
    context = plain_softmax(scores, value, allowed)
    return layer.output_projection(context.transpose(1, 2).flatten(2))


def plain_alignment(layer: nn.Module, hidden: Tensor, source: Tensor) -> Tensor:
    query, key, value, bias, scale = hidden, source, source, 0.0, 1.0
    parts = dict(layer.named_children())
    if "encoder_only" in layer.kind:
        query = source
    if "query_projection" in parts:
        query, key, value = (
            parts["query_projection"](query),
            parts["key_projection"](key),
            parts["value_projection"](value),
        )
        scale = query.shape[-1] ** -0.5
    if "places" in parts:
        key, bias = parts["places"].weight[: source.shape[1]], parts["places"].bias[: source.shape[1]]
    return (query @ key.mT * scale + bias).softmax(-1) @ value


def layers() -> dict[str, tuple[Callable[[], nn.Module], Callable[..., Tensor]]]:
    """How each layer is made, and its formula written out with its own parameters."""
    made: dict[str, tuple[Callable[[], nn.Module], Callable[..., Tensor]]] = {
        "additive": (lambda: AdditiveAttention(16, 16, 12), plain_additive)
    }
    for scoring in ("dot", "general", "concat"):
        for alignment in ("global", "local-m", "local-p"):
            options = {"scoring": scoring, "alignment": alignment, "half_window": 6}
            made[f"luong {scoring} {alignment}"] = (
                lambda options=options: LuongAttention(16, 16, **options),
                plain_luong,
            )
    for title, options in {
        "cross": {},
        "causal": {"causal": True},
        "window": {"causal": True, "window": 9},
        "grouped": {"num_kv_heads": 2},
        "multi-query, rotary": {"num_kv_heads": 1, "causal": True, "rotary_base": 10000.0},
        "grouped, ALiBi": {"num_kv_heads": 2, "causal": True, "alibi": True},
    }.items():
        made[f"heads {title}"] = (
            lambda options=options: MultiHeadAttention(16, 4, **options),
            plain_heads,
        )
    for name, kind in ALIGNMENTS.items():
        made[f"alignment {name}"] = (lambda kind=kind: kind.make(16, LONGEST), plain_alignment)
    return made


def call_layer(layer: nn.Module, name: str, hidden: Tensor, source: Tensor) -> Tensor:
    if name.startswith("alignment"):
        return layer(source, hidden)
    return layer(hidden) if getattr(layer, "causal", False) else layer(hidden, source)


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("name", layers())
def test_the_error_of_a_layer_is_at_most_twice_that_of_a_plain_run(name: str, dtype: torch.dtype) -> None:
    make, plain = layers()[name]
    torch.manual_seed(0)
    low = make().requires_grad_(False).to(dtype)
    low.kind = name
    high = copy.deepcopy(low).double()
    generator = torch.Generator().manual_seed(1)
    hidden, source = (torch.randn(4, n, 16, generator=generator).to(dtype) for n in (40, 60))
    exact = plain(high, hidden.double(), source.double())
    assert_close(call_layer(high, name, hidden.double(), source.double()), exact)
    assert_within_twice(call_layer(low, name, hidden, source), plain(low, hidden, source), exact)


# Rules ------------------------------------------------------------------------------------------------------------


@few
@given(st.integers(1, 9), st.integers(1, 9), st.booleans())
def test_rules_at_their_widest(queries: int, keys: int, causal: bool) -> None:
    queries = min(queries, keys)
    places = torch.arange(queries), torch.arange(keys)

    def written(rule: MaskRule) -> Tensor:
        found = rule.allowed(*places, queries=queries, keys=keys)
        return (
            torch.ones(queries, keys, dtype=torch.bool)
            if found is None
            else found.expand(1, 1, queries, keys)[0, 0]
        )

    plain = written(MaskRule(causal=causal))
    assert torch.equal(written(window_rule(keys, causal=causal)), plain)
    assert torch.equal(
        written(document_rule(torch.zeros(1, keys, dtype=torch.long)) & MaskRule(causal=causal)), plain
    )
    assert written(prefix_rule(keys)).all()
    assert torch.equal(written(prefix_rule(0)), written(MaskRule(causal=True)))


# Errors of attend -------------------------------------------------------------------------------------------------


def test_what_attend_cannot_take_is_named() -> None:
    scores, value = torch.randn(2, 4, 3, 5), torch.randn(2, 2, 5, 6)
    assert attend(scores, value).context.shape == (2, 4, 3, 6)
    with pytest.raises(ValueError, match="attend: value has 4 key positions but scores have 5"):
        attend(scores, value[:, :, 1:])
    with pytest.raises(ValueError, match="must have scores' batch size 2 and a divisor of their 4 heads"):
        attend(scores, value[:1])
    with pytest.raises(ValueError, match=r"a divisor of their 4 heads but has \(2, 3\)"):
        attend(scores, torch.randn(2, 3, 5, 6))
    with pytest.raises(ValueError, match="attend: scores must have 4 axes"):
        attend(scores[0], value)
    with pytest.raises(TypeError, match=r"attend: allowed must be bool but is torch\.int64"):
        attend(scores, value, allowed=torch.ones(3, 5, dtype=torch.long))
