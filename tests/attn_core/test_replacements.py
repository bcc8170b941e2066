"""Other weights for heads: what each edit leaves is the row that its name says, masks hold, the rest is untouched."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from attn_core import HeadEdit, MaskRule, editing, recording, uniform
from attn_core.replacements import exchanged, first_only, given, permuted, self_only, shuffled_places
from tests.attn_core.strategies import Case, cases
from tests.attn_core.test_edits import normal_case, run

EVERY: dict[str, Callable[..., HeadEdit]] = {
    "uniform": uniform,
    "permuted": permuted,
    "first": first_only,
    "exchanged": exchanged,
}


def weights_of(case: Case, edit: HeadEdit | None) -> Tensor:
    """(B, H, Q, K) as the recording shows them; the context must be these weights times the value."""
    with recording() as record:
        context = run(case, edit)
    found = record.calls[0].map.weights()
    value = case.value.repeat_interleave(found.shape[1] // case.value.shape[1], dim=1)
    assert_close(found @ value, context)
    return found


@settings(max_examples=40)
@drawn(cases(), st.sampled_from(list(EVERY)), st.data())
def test_edited_rows_are_distributions_over_what_the_mask_allows_and_others_stay(
    case: Case, name: str, data: st.DataObject
) -> None:
    batch, heads, queries, _ = case.query.shape
    marked = torch.tensor(data.draw(st.lists(st.booleans(), min_size=heads, max_size=heads)))[None]
    places = tuple(sorted(data.draw(st.sets(st.integers(0, queries - 1), min_size=1))))
    before = weights_of(case, None)
    after = weights_of(case, EVERY[name](marked, queries=places))
    untouched = torch.ones(batch, heads, queries, dtype=torch.bool)
    untouched[:, marked[0].nonzero()[:, 0][:, None], torch.tensor(places)] = False
    assert_close(after[untouched], before[untouched], rtol=0.0, atol=1e-12)
    if name != "exchanged" or case.bias is None:
        assert not after[before == 0].any() or name == "exchanged"
    assert_close(after.sum(-1), before.sum(-1))
    assert_close(
        weights_of(case, EVERY[name](marked))[untouched.logical_not()], after[untouched.logical_not()]
    )


@drawn(cases())
@settings(max_examples=25)
def test_a_permuted_row_holds_the_same_weights(case: Case) -> None:
    heads = case.query.shape[1]
    before = weights_of(case, None)
    after = weights_of(case, permuted(torch.ones(1, heads, dtype=torch.bool), seed=3))
    assert_close(after.sort(-1).values, before.sort(-1).values)


def test_a_permutation_does_not_hang_on_how_a_layer_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    case, every = normal_case(queries=6, keys=6), torch.ones(1, 4, dtype=torch.bool)
    whole = weights_of(case, permuted(every, seed=1))
    monkeypatch.setattr("attn_core.edits.strip_rows", lambda *_: 2)
    assert torch.equal(weights_of(case, permuted(every, seed=1)), whole)
    assert not torch.equal(weights_of(case, permuted(every, seed=2)), whole)


def test_own_place_and_first_key() -> None:
    case = normal_case(rule=MaskRule(causal=True, window=3))
    every = torch.ones(1, 4, dtype=torch.bool)
    assert torch.equal(weights_of(case, self_only(every)).float(), torch.eye(6).expand(2, 4, 6, 6))
    first = weights_of(case, first_only(every)).argmax(-1)
    assert first[0, 0].tolist() == [0, 0, 0, 1, 2, 3]
    wide = normal_case(queries=4, keys=6)
    with pytest.raises(ValueError, match="there are 4 of them and 6 keys"):
        run(wide, self_only(every))


def test_marked_heads_pass_their_weights_round() -> None:
    case = normal_case(batch=2)
    before = weights_of(case, None)
    pair = torch.tensor([[True, False, True, False], [True, True, True, True]])
    after = weights_of(case, exchanged(pair))
    assert_close(after[0], before[0, [2, 1, 0, 3]])
    assert_close(after[1], before[1, [1, 2, 3, 0]])
    alone = torch.tensor([[False, True, False, False]])
    assert_close(weights_of(case, exchanged(alone)), before)
    with pytest.raises(TypeError, match="heads must be bool"):
        exchanged(pair.float())


def test_given_rows_come_as_they_are_and_gradients_reach_them() -> None:
    case = normal_case()
    rows = torch.rand(2, 1, 3, 6, dtype=torch.float64).softmax(-1).requires_grad_()
    marked = torch.tensor([[False, True, False, False]])
    edit = given(marked, rows, queries=(0, 1, 5))
    after = weights_of(case, edit)
    assert_close(after[:, 1, [0, 1, 5]], rows[:, 0].detach())
    assert_close(after[:, 1, 2:5], weights_of(case, None)[:, 1, 2:5])
    (gradient,) = torch.autograd.grad(run(case, edit).sum(), rows)
    assert bool((gradient != 0).all())


def test_rows_that_do_not_fit_are_refused() -> None:
    case, marked = normal_case(), torch.ones(1, 4, dtype=torch.bool)
    with pytest.raises(ValueError, match="a row for each of the 2 queries but hold 3"):
        given(marked, torch.ones(1, 1, 3, 6), queries=(0, 1))
    with pytest.raises(ValueError, match="2 items, 4 heads and 6 keys"):
        run(case, given(marked, torch.ones(1, 1, 6, 5)))
    with pytest.raises(ValueError, match="ascending places below 6"):
        run(case, uniform(marked, queries=(1, 6)))
    with pytest.raises(ValueError, match="ascending places below 6"):
        run(case, uniform(marked, queries=(3, 1)))


@drawn(st.lists(st.booleans(), min_size=1, max_size=12), st.integers(0, 2**31))
def test_shuffled_places_are_a_permutation_of_the_places_inside(inside: list[bool], seed: int) -> None:
    mask = torch.tensor(inside)
    noise = torch.rand(len(inside), generator=torch.Generator().manual_seed(seed))
    places = shuffled_places(noise, mask)
    assert sorted(places.tolist()) == list(range(len(inside)))
    assert places[~mask].tolist() == (~mask).nonzero()[:, 0].tolist()


def test_every_order_comes_as_often() -> None:
    noise = torch.rand(6000, 4, generator=torch.Generator().manual_seed(0))
    inside = torch.tensor([True, False, True, True]).expand(6000, 4)
    orders, counts = shuffled_places(noise, inside).unique(dim=0, return_counts=True)
    assert len(orders) == 6
    assert counts.min() > 850
    assert bool((orders[:, 1] == 1).all())


def test_an_edit_of_some_rows_is_seen_by_no_other_thread_or_layer() -> None:
    case, marked = normal_case(), torch.ones(1, 4, dtype=torch.bool)
    with editing(lambda _: uniform(marked, queries=(0,))):
        inside = run(case)
    assert not torch.equal(inside[:, :, 0], run(case)[:, :, 0])
    assert_close(inside[:, :, 1:], run(case)[:, :, 1:])
