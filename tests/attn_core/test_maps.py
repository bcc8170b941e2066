"""Attention maps: the factored form gives the numbers of the dense one, whatever is asked."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from attn_core import DenseMap, FactoredMap, MaskRule, MemoryBudgetError, attention
from tests.attn_core.strategies import Case, cases


def both_maps(case: Case) -> tuple[FactoredMap, DenseMap]:
    """The same attention as factors and as weights; item 0 of the batch, nothing cut."""
    output = attention(case.query, case.key, case.value, rule=case.rule, bias=case.bias, softcap=case.softcap)
    factored = FactoredMap(
        query=case.query,
        key=case.key,
        lse=output.lse,
        scale=case.query.shape[3] ** -0.5,
        rule=case.rule,
        bias=case.bias,
        softcap=case.softcap,
    )
    return factored, DenseMap(stored=output.weights, groups=case.key.shape[1])


def first_items(case: Case) -> tuple[FactoredMap, DenseMap]:
    every = [torch.arange(case.query.shape[2]), torch.arange(case.key.shape[2])]
    factored, dense = (m.item(0, rows=every[0], columns=every[1]) for m in both_maps(case))
    return factored, dense


@given(cases())
def test_factors_give_the_weights_of_the_whole_batch(case: Case) -> None:
    factored, dense = both_maps(case)
    assert factored.shape == dense.shape
    assert factored.kv_heads == dense.kv_heads
    assert_close(factored.weights(), dense.weights())


@given(cases(), st.data())
def test_every_question_has_the_same_answer(case: Case, data: st.DataObject) -> None:
    factored, dense = first_items(case)
    head = data.draw(st.none() | st.integers(0, dense.heads - 1))
    query = data.draw(st.integers(0, dense.queries - 1))
    rows = slice(query, data.draw(st.integers(query, dense.queries)))
    columns = slice(0, data.draw(st.integers(1, dense.keys)))
    bins = data.draw(st.integers(1, 10))
    assert_close(factored.dense(head), dense.dense(head))
    assert_close(factored.row(head, query), dense.dense(head)[..., query, :])
    assert_close(factored.block(head, rows, columns), dense.dense(head)[..., rows, columns])
    for how in ("max", "mean"):
        assert_close(factored.pooled(head, bins, how=how), dense.pooled(head, bins, how=how))
    assert_close(factored.top_links(head, 3)[0], dense.top_links(head, 3)[0])
    for field in fields(factored.statistics()):
        assert_close(getattr(factored.statistics(), field.name), getattr(dense.statistics(), field.name))


@settings(max_examples=40)
@given(cases(padding=False), st.integers(1, 12))
def test_pooling_in_strips_is_adaptive_pooling(case: Case, bins: int) -> None:
    _, dense = first_items(case)
    shape = (min(bins, dense.queries), min(bins, dense.keys))
    assert_close(
        dense.pooled(None, bins), torch.nn.functional.adaptive_max_pool2d(dense.dense()[None], shape)[0]
    )


def test_strips_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    weights = torch.rand(1, 2, 23, 19).softmax(-1)
    dense = DenseMap(stored=weights)
    expected = dense.pooled(None, 5), dense.top_links(1, 4), dense.statistics()
    monkeypatch.setattr("attn_core.maps.strip_rows", lambda *_args, **_options: 3)
    found = dense.pooled(None, 5), dense.top_links(1, 4), dense.statistics()
    assert_close(found[0], expected[0])
    assert_close(found[1], expected[1])
    for field in fields(expected[2]):
        assert_close(getattr(found[2], field.name), getattr(expected[2], field.name))


def test_statistics_of_known_patterns() -> None:
    n = 6
    previous = torch.zeros(n, n)
    previous[torch.arange(n), (torch.arange(n) - 1).clamp(min=0)] = 1
    uniform = torch.full((n, n), 1 / n)
    statistics = DenseMap(stored=torch.stack([torch.eye(n), previous, uniform])[None]).statistics()
    assert_close(statistics.self_mass, torch.tensor([1.0, 1 / n, 1 / n]))
    assert_close(statistics.previous_mass, torch.tensor([0.0, 5 / n, 5 / n**2]))
    assert_close(statistics.next_mass, torch.tensor([0.0, 0.0, 5 / n**2]))
    assert_close(statistics.first_mass, torch.tensor([1 / n, 2 / n, 1 / n]))
    assert_close(statistics.entropy, torch.tensor([0.0, 0.0, math.log(n)]))
    assert_close(statistics.max_weight, torch.tensor([1.0, 1.0, 1 / n]))
    distances = (torch.arange(n)[:, None] - torch.arange(n)).abs().float()
    assert_close(statistics.mean_distance, torch.tensor([0.0, 5 / n, distances.mean().item()]))
    assert_close(statistics.received[0], torch.ones(n))


def test_an_item_of_a_padded_batch_loses_its_padding() -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 2, 5, 4, dtype=torch.float64) for _ in range(3))
    valid = torch.tensor([[True] * 5, [True, True, True, False, False]])
    output = attention(query, key, value, rule=MaskRule(key_valid=valid, causal=True))
    factored = FactoredMap(query, key, output.lse, 0.5, rule=MaskRule(key_valid=valid, causal=True))
    alone = attention(query[1:, :, :3], key[1:, :, :3], value[1:, :, :3], rule=MaskRule(causal=True))
    assert_close(factored.item(1).dense(), alone.weights[0])


def test_a_batch_is_not_read_by_accident() -> None:
    dense = DenseMap(stored=torch.rand(2, 1, 3, 3))
    for ask in (
        dense.statistics,
        lambda: dense.dense(),
        lambda: dense.row(0, 0),
        lambda: dense.pooled(0, 2),
        lambda: dense.top_links(0, 1),
    ):
        with pytest.raises(ValueError, match=r"must hold one item but holds 2; call item\(index\) first"):
            ask()


def test_the_budget_names_the_cheaper_call() -> None:
    dense = DenseMap(stored=torch.rand(1, 2, 30, 30))
    with pytest.raises(MemoryBudgetError, match=r"ask for row\(\), block\(\) or pooled\(\) instead"):
        dense.dense(budget=1000)
    assert dense.dense(0, budget=30 * 30 * 4).shape == (30, 30)


@pytest.mark.parametrize(
    ("ask", "error", "message"),
    [
        (lambda m: m.row(5, 0), IndexError, "head must be below 2 but is 5"),
        (lambda m: m.row(0, 9), IndexError, "query must be below 4 but is 9"),
        (lambda m: m.item(1), IndexError, "index must be below 1 but is 1"),
        (lambda m: m.pooled(0, 0), ValueError, "bins must be at least 1"),
        (lambda m: m.top_links(0, 0), ValueError, "k must be at least 1"),
        (lambda m: m.block(0, slice(0, 4, 2), slice(0, 2)), ValueError, "slices must have step 1"),
    ],
)
def test_bad_questions_are_named(ask, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ask(DenseMap(stored=torch.rand(1, 2, 4, 4)))


def test_a_long_map_is_read_without_n_by_n() -> None:
    n = 6000
    torch.manual_seed(0)
    query, key = torch.randn(1, 2, n, 8), torch.randn(1, 2, n, 8)
    from attn_core import flash_attention

    lse = flash_attention(query, key, key).lse
    factored = FactoredMap(query, key, lse, 8**-0.5)
    with pytest.raises(MemoryBudgetError):
        factored.dense()
    row = (query[0, 1, 77] @ key[0, 1].T / 8**0.5).softmax(-1)
    assert_close(factored.row(1, 77), row)
    assert factored.pooled(0, 64).shape == (64, 64)
