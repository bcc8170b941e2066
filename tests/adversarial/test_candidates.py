"""Named attention of one input: answers in one batch, edits that keep to the mask, weights that a reader sets."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from analysis.adversarial.candidates import (
    BY_HAND,
    Named,
    adversaries,
    by_hand,
    compare,
    edits,
    typical_permutation,
)
from analysis.adversarial.measures import measure_of
from analysis.adversarial.permutation import permutations
from analysis.adversarial.rows import FreeRows, Place, transformer_rows
from analysis.adversarial.search import exact_search, projected_search
from analysis.evidence.passes import ForwardPass
from tests.adversarial.test_search import made
from tests.evidence.attention_runs import run_of_text, save

PLACES = {
    "bert": Place({1: (0, 2)}, (0, 3)),
    "gpt2": Place({0: (1,), 1: (0, 3)}, None, "decoder"),
    "bart": Place({0: (0, 1)}, (0, 2), "cross"),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ForwardPass]:
    more = {"bart": {"target": "the bread"}}
    return {
        name: run_of_text(save(tmp_path_factory.mktemp(name), name), **more.get(name, {})) for name in PLACES
    }


def rows_of(run: ForwardPass, place: Place) -> FreeRows:
    return transformer_rows(run.model, run.inputs, place, measure_of(run.model, run.inputs))


def distributions(rows: FreeRows, weights: Tensor) -> None:
    """Rows (R, n) sum to 1 and keep to the mask."""
    assert_close(weights.sum(-1), torch.ones_like(weights[:, 0]), rtol=0.0, atol=1e-6)
    assert not weights[~rows.inside[0]].any()


@pytest.mark.parametrize("name", list(PLACES))
def test_candidates_say_together_what_each_says_alone(name: str, runs: dict[str, ForwardPass]) -> None:
    rows = rows_of(runs[name], PLACES[name])
    named = [
        *edits(rows),
        typical_permutation(permutations(rows, count=5)),
        by_hand(rows, torch.rand(rows.observed.shape[-1], generator=torch.Generator().manual_seed(3))),
    ]
    found = compare(rows, named)
    assert found.names == ("observed", *(each for each, _ in named))
    assert found.weights.shape == (len(found.names), *rows.observed.shape[1:])
    assert_close(found.answers[0], rows.said()[0], rtol=1e-6, atol=1e-9)
    assert float(found.divergence[0]) == float(found.change[0]) == 0.0
    for index, (_, weights) in enumerate(named, start=1):
        distributions(rows, weights)
        alone = rows.answers(weights[None, None])
        assert_close(found.answers[index], alone[0, 0], rtol=1e-6, atol=1e-9)
        assert_close(found.change[index], rows.change(alone, rows.said())[0, 0], rtol=1e-5, atol=1e-9)
        assert_close(found.divergence[index], rows.divergence(weights[None, None])[0, 0])
        assert float(found.change[index]) > 0, "another answer, so that a mix-up shows"


def test_only_the_rows_of_one_input_are_compared() -> None:
    with pytest.raises(ValueError, match="compare: rows must be of one input but are of 2"):
        compare(made([3, 4], seed=0), [])
    assert compare(made([3], seed=0), []).names == ("observed",)


def test_edits_of_a_causal_model_keep_to_what_each_query_sees(runs: dict[str, ForwardPass]) -> None:
    rows = rows_of(runs["gpt2"], PLACES["gpt2"])
    tokens = rows.observed.shape[-1]
    found = dict(edits(rows))
    assert list(found) == ["uniform", "first only", "own place only", "next head's"]
    row = torch.arange(tokens)
    for head in range(3):
        part = slice(head * tokens, (head + 1) * tokens)
        assert_close(found["uniform"][part], torch.ones(tokens, tokens).tril().double() / (row + 1)[:, None])
        assert_close(found["first only"][part], torch.eye(tokens).double()[:1].expand(tokens, -1))
        assert_close(found["own place only"][part], torch.eye(tokens).double())


def test_edits_that_would_be_the_same_twice_are_there_once(runs: dict[str, ForwardPass]) -> None:
    cls = rows_of(runs["bert"], Place({1: (0, 1)}, (0,)))
    assert [name for name, _ in edits(cls)][:-1] == ["uniform", "first only"], "the row of the first position"
    others = rows_of(runs["bert"], Place({1: (0,)}, (0, 2)))
    assert edits(others)[-2][0] == "own place only"
    assert edits(others)[-2][1].argmax(-1).tolist() == [0, 2]
    cross = rows_of(runs["bart"], PLACES["bart"])
    assert [name for name, _ in edits(cross)][:-1] == ["uniform", "first only"], (
        "a target has no place in the text"
    )


def test_the_next_heads_weights_are_those_of_the_layers_next_head(runs: dict[str, ForwardPass]) -> None:
    """The first after the last; a layer of one head has no other."""
    rows = rows_of(runs["bert"], Place({1: (1, 3)}, (0, 2)))
    weights = runs["bert"].layers["encoder"][1].map.weights()[0]
    name, found = edits(rows)[-1]
    assert name == "next head's"
    assert_close(found, weights[[2, 0]][:, [0, 2]].flatten(0, 1))
    assert made([4], seed=1).neighbours is None


def test_the_first_position_is_the_first_that_may_have_weight() -> None:
    rows = made([4], seed=1)
    inside = torch.tensor([[[False, True, True, True]]])
    observed = torch.tensor([[[0.0, 0.5, 0.25, 0.25]]], dtype=torch.float64)
    masked = FreeRows(observed, inside, rows.answer, rows.measure, rows.decoder)
    found = dict(edits(masked))
    assert found["first only"].tolist() == [[0.0, 1.0, 0.0, 0.0]]
    assert_close(found["uniform"], torch.tensor([[0.0, 1.0, 1.0, 1.0]], dtype=torch.float64) / 3)


@given(
    weights=st.lists(st.floats(0, 1), min_size=5, max_size=5),
    inside=st.lists(st.booleans(), min_size=5, max_size=5).filter(any),
)
def test_weights_by_hand_keep_their_proportions_within_the_mask(
    weights: list[float], inside: list[bool]
) -> None:
    allowed = torch.tensor([[inside]])
    observed = allowed.double() / allowed.sum()
    rows = made([5], seed=2)
    rows = FreeRows(observed, allowed, rows.answer, rows.measure, rows.decoder)
    name, found = by_hand(rows, torch.tensor(weights))
    assert name == BY_HAND
    distributions(rows, found)
    kept = torch.tensor(weights).double() * allowed[0, 0]
    if float(kept.sum()) > 1e-6:
        assert_close(found[0], kept / kept.sum(), rtol=1e-5, atol=1e-6)
    elif float(kept.sum()) == 0:
        assert_close(found, observed[0], rtol=0.0, atol=1e-9)


def test_a_row_of_a_causal_model_that_is_left_nothing_is_uniform(runs: dict[str, ForwardPass]) -> None:
    rows = rows_of(runs["gpt2"], Place({1: (0,)}, None, "decoder"))
    tokens = rows.observed.shape[-1]
    weights = torch.zeros(tokens)
    weights[3] = 1.0
    _, found = by_hand(rows, weights)
    distributions(rows, found)
    assert_close(found[:3], rows.uniform()[0, 0, :3])
    assert found[3:, 3].tolist() == [1.0] * (tokens - 3)


def test_what_a_search_found_comes_farthest_first_and_nothing_is_left_out(
    runs: dict[str, ForwardPass],
) -> None:
    rows = rows_of(runs["bert"], PLACES["bert"])
    found = projected_search(rows, epsilon=0.05, candidates=4, steps=8)
    named = adversaries(found, name="adversarial")
    reached = sorted(found.divergence[0][found.divergence[0] > 0].tolist(), reverse=True)
    assert [name for name, _ in named] == [f"adversarial {place + 1}" for place in range(len(reached))]
    assert_close(compare(rows, named).divergence[1:], torch.tensor(reached).to(rows.observed))
    text = made([6], seed=5)
    ((name, weights),) = adversaries(exact_search(text), name="farthest")
    assert name == "farthest"
    assert_close(weights, exact_search(text).weights[0, 0])
    nothing: list[Named] = adversaries(exact_search(made([1], seed=5)), name="farthest")
    assert nothing == []
