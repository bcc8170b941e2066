"""Checks over many inputs: the numbers of each are those that it has alone, and what is missing is no number."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import tests.input_helpers as tiny
from analysis.adversarial import sets
from analysis.adversarial.agreement import answers_without, input_importance, kendall
from analysis.adversarial.measures import measure_of
from analysis.adversarial.permutation import permutations
from analysis.adversarial.rows import Place, rows_of
from analysis.adversarial.search import exact_search, projected_search
from analysis.adversarial.sets import TITLES, CheckedInput, Settings, check_inputs, checked_numbers
from analysis.evidence.passes import forward_pass
from analysis.inputs import Inputs, encode_text
from analysis.models import LoadedModel, load_model
from attn_core.models.classifier import AttentionClassifier
from tests.evidence.attention_runs import save
from tests.input_helpers import loaded

RANDOM = ("permutation",)
"""Drawn anew for each batch."""

QUICK = Settings(epsilon=0.02, count=6, candidates=2, steps=6)


@pytest.fixture(scope="module")
def recurrent() -> Any:
    """A random classifier of words; of a loaded model only what the checks look at."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = AttentionClassifier(50, 2, embedding=8, hidden=6).double().eval().requires_grad_(False)
    with torch.no_grad():
        module.output.weight.mul_(6.0)
        module.embedding.weight.mul_(2.0)
    return SimpleNamespace(module=module, labels=("no", "yes"), temperature=1.3)


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    return load_model(save(tmp_path_factory.mktemp("bert"), "bert"), device="cpu", dtype="float64")


def text(index: int, length: int) -> Any:
    generator = torch.Generator().manual_seed(index)
    ids = torch.randint(1, 50, (1, length), generator=generator)
    return SimpleNamespace(tensors={"input_ids": ids}, source=f"text {index}")


def same(found: CheckedInput, alone: CheckedInput, *, random: bool) -> None:
    assert (found.source, found.predicted) == (alone.source, alone.predicted)
    assert list(found.numbers) == list(alone.numbers)
    for key, number in alone.numbers.items():
        if random or key not in RANDOM:
            assert found.numbers[key] == pytest.approx(number, rel=1e-6, abs=1e-9, nan_ok=True), key


def test_the_numbers_of_a_text_do_not_depend_on_those_beside_it(
    recurrent: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sets, "TOGETHER", 4)  # 4, 4 and 1
    texts = [text(index, length) for index, length in enumerate((5, 12, 1, 2, 7, 3, 30, 6, 4))]
    found = list(check_inputs(recurrent, texts, settings=QUICK))
    assert [each.source for each in found] == [f"text {index}" for index in range(9)]
    for each, alone in zip(found, texts, strict=True):
        (single,) = check_inputs(recurrent, [alone], settings=QUICK)
        same(each, single, random=False)
    assert len({each.predicted for each in found}) == 2, "both classes, so that a mix-up shows"


def test_a_recurrent_text_gets_the_exact_search_and_its_own_numbers(recurrent: Any) -> None:
    each = text(3, 9)
    (found,) = check_inputs(recurrent, [each], settings=QUICK)
    rows = rows_of(recurrent, each)
    said = rows.said()
    assert list(found.numbers) == list(TITLES)
    assert found.predicted == int(said.argmax())
    exact = exact_search(rows, epsilon=QUICK.epsilon)
    assert found.numbers["jsd"] == pytest.approx(float(exact.farthest[0]))
    assert found.numbers["jsd_bound"] == pytest.approx(float(rows.bound()[0]))
    assert found.numbers["max_attention"] == pytest.approx(float(rows.observed.max()))
    uniform = rows.change(rows.answers(rows.uniform()), said)
    assert found.numbers["uniform"] == pytest.approx(float(uniform[0, 0]))
    permuted = permutations(rows, count=QUICK.count)
    assert found.numbers["permutation"] == pytest.approx(float(permuted.median[0]))


def test_a_text_of_one_word_has_no_other_attention_and_no_rank(recurrent: Any) -> None:
    (found,) = check_inputs(recurrent, [text(0, 1)], settings=QUICK)
    assert found.numbers["max_attention"] == pytest.approx(1.0)
    for key in ("permutation", "jsd", "jsd_bound", "uniform"):
        assert found.numbers[key] == pytest.approx(0.0, abs=1e-9)
    assert np.isnan(found.numbers["tau_gradient"])
    assert np.isnan(found.numbers["p_leave_one_out"])


def test_texts_are_checked_as_they_come(recurrent: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sets, "TOGETHER", 2)
    taken: list[int] = []

    def made() -> Iterator[Any]:
        for index in range(6):
            taken.append(index)
            yield text(index, 3 + index)

    first = next(check_inputs(recurrent, made(), settings=QUICK))
    assert first.source == "text 0"
    assert taken == [0, 1], "no text is read before its turn"
    assert list(check_inputs(recurrent, [], settings=QUICK)) == []


def test_a_transformer_s_texts_are_as_each_alone(bert: LoadedModel) -> None:
    texts = [encode_text(bert, each) for each in ("the bread", "the house is old", "good day")]
    together = list(check_inputs(bert, texts, settings=QUICK))
    for each, alone in zip(together, texts, strict=True):
        (single,) = check_inputs(bert, [alone], settings=QUICK)
        same(each, single, random=True)
    assert together[1].source == "the house is old"
    assert together[1].predicted == int(forward_pass(bert, texts[1]).outputs.logits[0].argmax())


def test_a_transformer_gets_the_numbers_of_its_usual_rows(bert: LoadedModel) -> None:
    inputs = encode_text(bert, "the house is old")
    (found,) = check_inputs(bert, [inputs], settings=QUICK)
    rows = rows_of(bert, inputs)
    assert rows.observed.shape[1] == 4, "the last layer's heads, the row of [CLS]"
    searched = projected_search(rows, epsilon=QUICK.epsilon, candidates=2, steps=6)
    assert found.numbers["jsd"] == pytest.approx(float(searched.farthest[0]))
    run, measure = forward_pass(bert, inputs), measure_of(bert, inputs)
    kept = rows.observed[0].mean(0)[1:-1][None]
    inside = torch.ones_like(kept, dtype=torch.bool)
    gradient = kendall(kept, input_importance(run, measure)[None], inside)
    assert found.numbers["tau_gradient"] == pytest.approx(float(gradient.tau[0]))
    said = measure.read(run.outputs).detach()
    change = measure.distance(answers_without(run, measure), said)
    assert found.numbers["tau_leave_one_out"] == pytest.approx(
        float(kendall(kept, change[None], inside).tau[0])
    )
    (other,) = check_inputs(bert, [inputs], place=Place({0: (1,)}, (2,)), settings=QUICK)
    assert other.numbers["jsd_bound"] != pytest.approx(found.numbers["jsd_bound"])


def test_attention_that_is_not_over_the_input_has_no_agreement(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = save(tmp_path_factory.mktemp("bart"), "bart")
    model = load_model(folder, device="cpu", dtype="float64")
    inputs = encode_text(model, "the bread", target="the house is old")
    own = Place({1: (0,)}, None, "decoder")
    (found,) = check_inputs(model, [inputs], place=own, settings=QUICK)
    assert not [key for key in found.numbers if key.startswith(("tau", "p_"))]
    (cross,) = check_inputs(model, [inputs], settings=QUICK)
    assert "tau_gradient" in cross.numbers


def test_a_text_of_one_token_is_checked(tmp_path_factory: pytest.TempPathFactory) -> None:
    model = loaded(
        tmp_path_factory.mktemp("gpt2"), "GPT2LMHeadModel", "GPT2Config", tiny.byte_level(), **tiny.GPT2
    )
    (found,) = check_inputs(model, [encode_text(model, "a")], settings=QUICK)
    assert found.numbers["jsd"] == 0.0
    assert found.numbers["permutation"] == pytest.approx(0.0, abs=1e-6)
    assert np.isnan(found.numbers["tau_gradient"])


def checked(**numbers: float) -> CheckedInput:
    return CheckedInput("text", 0, numbers)


def test_columns_hold_every_input_and_nothing_where_there_is_nothing() -> None:
    found = [checked(max_attention=0.5, jsd=0.25), checked(max_attention=0.75), checked(tau_gradient=np.nan)]
    columns = checked_numbers(found, "cosine distance")
    assert [column.key for column in columns] == ["max_attention", "jsd", "tau_gradient"], "in their order"
    assert [column.title for column in columns] == [TITLES[column.key] for column in columns]
    assert all(column.values.dtype == np.float32 for column in columns)
    np.testing.assert_array_equal(columns[0].values, [0.5, 0.75, np.nan])
    np.testing.assert_array_equal(columns[1].values, [0.25, np.nan, np.nan])
    assert np.isnan(columns[2].values).all()
    assert checked_numbers([]) == ()


def test_a_column_is_called_what_the_change_is_called() -> None:
    (column,) = checked_numbers([checked(uniform=0.5)], "cosine distance")
    assert column.title == "cosine distance with uniform attention"
    assert checked_numbers([checked(permutation=0.5)])[0].title == "median TVD of permutations"


def test_one_input_of_a_set_is_what_was_typed(bert: LoadedModel) -> None:
    hostile = "<b>the</b> bread\u202e"
    inputs: Inputs = encode_text(bert, hostile)
    (found,) = check_inputs(bert, [inputs], settings=QUICK)
    assert found.source == hostile
