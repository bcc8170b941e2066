"""Rows of transformers that are replaced through the seam, heads that are edited, and agreement on any model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from analysis.adversarial.agreement import answers_without, input_importance, kendall
from analysis.adversarial.effects import EDIT_WORDS, head_edit, head_effects
from analysis.adversarial.measures import Measure, class_probabilities, measure_of
from analysis.adversarial.permutation import permutations
from analysis.adversarial.rows import FreeRows, Place, transformer_rows
from analysis.adversarial.search import exact_search, penalty_search, projected_search
from analysis.evidence.passes import ForwardPass, forward_pass, plain_outputs
from analysis.evidence.targets import Outputs, class_logit, token_log_probability
from analysis.hf.editing import attention_layers, editing_layers
from attn_core import UnsupportedModelError, uniform
from tests.capture_helpers import assert_same_state, state_of
from tests.evidence.attention_runs import run_of_text, save
from tests.evidence.oracle_models import pixels_of, small_vit

LABELS = ("a", "b", "c")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ForwardPass]:
    found = {
        name: run_of_text(
            save(tmp_path_factory.mktemp(name), name), **({"target": "the bread"} if name == "bart" else {})
        )
        for name in ("bert", "gpt2", "bart", "deberta")
    }
    picture = pixels_of(np.random.default_rng(0).normal(size=(1, 3, 32, 32)), patch=8)
    return found | {"vit": forward_pass(small_vit(), picture)}


def rows_of(run: ForwardPass, place: Place, **options: Any) -> FreeRows:
    return transformer_rows(run.model, run.inputs, place, measure_of(run.model, run.inputs), **options)


PLACES = {
    "bert": Place({1: (0, 2), 0: (3,)}, (0, 3, 4)),
    "gpt2": Place({0: (1,), 1: (0, 1, 2, 3)}, None, "decoder"),
    "bart": Place({1: (0,)}, (0, 2), "cross"),
    "vit": Place({3: (0, 1, 2)}, (0,)),
}


@pytest.mark.parametrize("others", ["respond", "fixed"])
@pytest.mark.parametrize("name", list(PLACES))
def test_the_models_own_weights_give_its_own_answer(
    name: str, others: Any, runs: dict[str, ForwardPass]
) -> None:
    run, place = runs[name], PLACES[name]
    rows = rows_of(run, place, others=others)
    plain = measure_of(run.model, run.inputs).read(run.outputs)
    assert_close(rows.said(), plain.detach(), rtol=1e-6, atol=1e-8)
    maps = [layer.map.weights()[0] for layer in run.layers[place.kind]]
    queries = range(maps[0].shape[1]) if place.queries is None else place.queries
    expected = torch.cat(
        [maps[layer][list(heads)][:, list(queries)].flatten(0, 1) for layer, heads in place.heads.items()]
    )
    assert_close(rows.observed[0], expected)
    assert torch.equal(rows.inside[0], expected > 0)
    assert place.in_words().split(",")[0] in rows.held


@pytest.mark.parametrize("name", list(PLACES))
def test_gradients_of_weights_are_finite_differences(name: str, runs: dict[str, ForwardPass]) -> None:
    run = runs[name]
    rows = rows_of(run, PLACES[name])
    generator = torch.Generator().manual_seed(0)
    weights = torch.rand(1, 2, *rows.observed.shape[1:], generator=generator, dtype=torch.float64)
    weights = (weights * rows.inside).requires_grad_()
    way = torch.rand(weights.shape, generator=generator, dtype=torch.float64) * rows.inside
    (gradient,) = torch.autograd.grad(rows.answer(weights)[..., 0].sum(), weights)
    step = 1e-5
    above, below = (rows.answers(weights.detach() + side * way)[..., 0].sum() for side in (step, -step))
    assert float((gradient * way).sum()) == pytest.approx(
        float((above - below) / (2 * step)), rel=1e-3, abs=1e-7
    )


def test_uniform_rows_are_those_of_the_edit(runs: dict[str, ForwardPass]) -> None:
    run, place = runs["gpt2"], PLACES["gpt2"]
    rows = rows_of(run, place)
    layers = attention_layers(run.model, run.inputs)
    edits = {}
    for layer, heads in place.heads.items():
        marked = torch.zeros(1, 4, dtype=torch.bool)
        marked[0, list(heads)] = True
        edits[("decoder", layer)] = uniform(marked)
    with editing_layers(run.model, layers, edits):  # type: ignore[arg-type]
        outputs = plain_outputs(run.model, run.inputs.tensors, run.outputs.kept)
    assert_close(rows.answers(rows.uniform())[:, 0], rows.measure.read(outputs))


def test_later_attention_responds_unless_it_is_held(runs: dict[str, ForwardPass]) -> None:
    run = runs["bert"]
    first, last = Place({0: (0, 1, 2, 3)}, None), Place({1: (0, 1, 2, 3)}, None)
    for place, differs in ((first, True), (last, False)):
        free, held = (rows_of(run, place, others=others) for others in ("respond", "fixed"))  # type: ignore[arg-type]
        apart = (free.answers(free.uniform()) - held.answers(held.uniform())).abs().max()
        assert (float(apart) > 1e-6) is differs
        assert "computed anew" in free.held
        assert "held as it was" in held.held


def test_candidates_are_the_same_one_at_a_time_and_together(
    runs: dict[str, ForwardPass], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = rows_of(runs["bert"], PLACES["bert"])
    together = permutations(rows, count=7).change
    monkeypatch.setattr("analysis.evidence.perturbation.BATCH_TOKENS", 1)
    alone = permutations(rows_of(runs["bert"], PLACES["bert"]), count=7).change
    assert_close(together, alone, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("name", ["bert", "vit", "bart"])
def test_searches_work_through_the_seam_and_change_nothing_on_the_model(
    name: str, runs: dict[str, ForwardPass]
) -> None:
    run = runs[name]
    before = state_of(run.model.module)
    rows = rows_of(run, PLACES[name])
    for found in (
        penalty_search(rows, epsilon=0.05, steps=12, rate=0.2, candidates=2),
        projected_search(rows, epsilon=0.05, steps=12, candidates=2),
    ):
        assert float(found.change.max()) <= 0.05
        assert float(found.farthest[0]) > 0.02
        assert bool((found.divergence <= found.bound[:, None]).all())
        assert not found.weights[0][:, ~rows.inside[0]].any()
        assert_close(rows.answers(found.weights), found.answers, rtol=1e-6, atol=1e-8)
    with pytest.raises(ValueError, match="two classes"):
        exact_search(rows)
    assert_same_state(before, state_of(run.model.module))


def test_places_that_there_are_not_are_named(runs: dict[str, ForwardPass]) -> None:
    run = runs["bert"]
    for place, message in (
        (Place({0: (0,)}, (0,), "cross"), "kind must be one of encoder"),
        (Place({2: (0,)}), "layers must be 0 to 1"),
        (Place({0: (4,)}), "some of 0 to 3 but are"),
        (Place({0: ()}), "choose at least one"),
        (Place({}), "names none"),
        (Place({0: (0,)}, ()), "names none"),
        (Place({0: (0,)}, (99,)), "queries must be places from 0"),
    ):
        with pytest.raises(ValueError, match=message):
            rows_of(run, place)
    with pytest.raises(UnsupportedModelError):
        rows_of(runs["deberta"], Place({0: (0,)}))


# Measures


def test_what_a_model_is_asked_for(runs: dict[str, ForwardPass]) -> None:
    bert, gpt2, bart = (runs[name] for name in ("bert", "gpt2", "bart"))
    classes = measure_of(bert.model, bert.inputs)
    assert (classes.kind, classes.name, classes.bound, len(classes.labels)) == ("classes", "TVD", 1.0, 3)
    for run in (gpt2, bart):
        token = measure_of(run.model, run.inputs)
        assert token.kind == "token"
        assert float(token.read(run.outputs).detach().sum()) == pytest.approx(1.0)
    last = gpt2.outputs.logits
    assert last is not None
    assert_close(measure_of(gpt2.model, gpt2.inputs).read(gpt2.outputs), last[:, -1].softmax(-1))


def test_distances_of_answers() -> None:
    p, q = torch.tensor([[0.8, 0.2]]), torch.tensor([[0.5, 0.5]])
    assert float(class_probabilities(("a", "b")).distance(p, q)) == pytest.approx(0.3)
    several = Measure("labels", lambda _: p, ("a", "b"), ("labels",))
    assert float(several.distance(p, q)) == pytest.approx(0.3)
    along = Measure("embedding", lambda _: p, (), ("embedding",))
    assert float(along.distance(p, 3 * p)) == pytest.approx(0.0, abs=1e-6)
    assert float(along.distance(p, -p)) == pytest.approx(2.0)
    assert (along.bound, Measure("value", lambda _: p, (), ()).bound) == (2.0, None)
    warm = class_probabilities(("a", "b"), temperature=2.0).read(
        Outputs(torch.tensor([[2.0, 0.0]]), None, torch.arange(0))
    )
    assert_close(warm, torch.tensor([[1.0, 0.0]]).softmax(-1))


# Agreement


def test_importance_of_inputs_on_any_model(runs: dict[str, ForwardPass]) -> None:
    for name in ("bert", "gpt2", "vit"):
        run = runs[name]
        measure = measure_of(run.model, run.inputs)
        importance, without = input_importance(run, measure), answers_without(run, measure)
        count = len(run.outputs.kept)
        assert importance.shape == (count,)
        assert bool((importance > 0).all())
        assert without.shape[0] == count
        said = measure.read(run.outputs).detach()
        change = measure.distance(without, said)
        found = kendall(importance[None], change[None], torch.ones(1, count, dtype=torch.bool))
        assert -1 <= float(found.tau[0]) <= 1


def test_deleting_a_token_is_reading_the_shorter_text(runs: dict[str, ForwardPass]) -> None:
    run = runs["bert"]
    measure = measure_of(run.model, run.inputs)
    without = answers_without(run, measure)
    ids = run.inputs.tensors["input_ids"]
    place = int(run.outputs.kept[2])
    shorter = torch.cat([ids[:, :place], ids[:, place + 1 :]], dim=1)
    tensors = {"input_ids": shorter, "attention_mask": torch.ones_like(shorter)}
    expected = measure.read(plain_outputs(run.model, tensors, run.outputs.kept[:-1]))
    assert_close(without[2], expected[0], rtol=1e-6, atol=1e-9)


def test_what_has_no_rank_has_no_tau() -> None:
    inside = torch.tensor([[True, True, True], [True, False, False], [True, True, True]])
    a = torch.tensor([[0.1, 0.2, 0.3], [1.0, 0.0, 0.0], [0.3, 0.3, 0.3]])
    found = kendall(a, a.flip(1) + torch.arange(3) / 10, inside)
    assert found.tau.isnan().tolist() == [True, True, True]
    ranked = kendall(a[:1], 2 * a[:1], inside[:1])
    assert ranked.mean() == (1.0, 0.0)
    assert ranked.significant() == 0.0
    assert np.isnan(found.mean()[0])
    assert np.isnan(found.significant(torch.tensor([True, False, False])))


# Heads


@pytest.mark.parametrize("edit", [name for name in EDIT_WORDS if name != "permuted"])
@pytest.mark.parametrize("name", ["bert", "vit"])
def test_effects_are_those_of_each_edit_made_alone(
    name: str, edit: Any, runs: dict[str, ForwardPass]
) -> None:
    run, target = runs[name], class_logit(1)
    found = head_effects(run.model, run.inputs, target, edit)
    layers = attention_layers(run.model, run.inputs)
    counts = [layer.map.heads for layer in run.layers["encoder"]]
    before = run.value(target)
    assert found.before == pytest.approx(before, rel=1e-6)

    def changed(marked: dict[int, list[int]]) -> float:
        edits = {}
        for layer, heads in marked.items():
            chosen = torch.zeros(1, counts[layer], dtype=torch.bool)
            chosen[0, heads] = True
            edits[("encoder", layer)] = head_edit(edit)(chosen)
        with editing_layers(run.model, layers, edits):  # type: ignore[arg-type]
            outputs = plain_outputs(run.model, run.inputs.tensors, run.outputs.kept)
        return float(target.value(outputs)[0]) - before

    for layer, heads in enumerate(counts):
        pair = [0, 1] if edit == "exchanged" else [0]
        assert float(found.heads[layer, 0]) == pytest.approx(changed({layer: pair}), rel=1e-5, abs=1e-8)
        assert float(found.layers[layer]) == pytest.approx(
            changed({layer: list(range(heads))}), rel=1e-5, abs=1e-8
        )
    every = {layer: list(range(heads)) for layer, heads in enumerate(counts)}
    assert found.whole == pytest.approx(changed(every), rel=1e-5, abs=1e-8)
    assert float(found.heads.abs().max()) > 1e-6


def test_permuted_heads_are_the_median_of_draws_that_can_be_had_again(runs: dict[str, ForwardPass]) -> None:
    run, target, told = runs["bert"], class_logit(0), []
    found = head_effects(run.model, run.inputs, target, "permuted", draws=3, progress=told.append)
    again = head_effects(run.model, run.inputs, target, "permuted", draws=3)
    assert torch.equal(found.heads, again.heads)
    assert told == sorted(told)
    assert told[-1] == 1.0
    one = head_effects(run.model, run.inputs, target, "permuted", draws=1)
    assert not torch.equal(found.heads, one.heads)


def test_some_rows_alone_are_edited(runs: dict[str, ForwardPass]) -> None:
    run, target = runs["vit"], class_logit(2)
    whole = head_effects(run.model, run.inputs, target, "uniform")
    one = head_effects(run.model, run.inputs, target, "uniform", queries=(0,))
    assert_close(one.heads[3], whole.heads[3])  # the head of the model reads CLS alone
    assert not torch.allclose(one.heads[0], whole.heads[0])


def test_edits_that_cannot_be_made_are_named(runs: dict[str, ForwardPass]) -> None:
    run, bart = runs["bert"], runs["bart"]
    with pytest.raises(ValueError, match="name must be one of uniform, permuted"):
        head_effects(run.model, run.inputs, class_logit(0), "half")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="removed for all queries"):
        head_edit("removed", queries=(0,))
    with pytest.raises(ValueError, match="kind must be one of encoder but is 'cross'"):
        head_effects(run.model, run.inputs, class_logit(0), "uniform", kind="cross")
    with pytest.raises(ValueError, match="self_only: queries must have a place of their own"):
        head_effects(bart.model, bart.inputs, token_log_probability(0, 5), "self", kind="cross")


# Passes that begin at a layer


@pytest.mark.parametrize("name", list(PLACES))
def test_passes_begin_at_the_first_edited_layer_and_say_the_same(
    name: str, runs: dict[str, ForwardPass], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = runs[name]
    last = max(PLACES[name].heads)
    place = Place({last: (0,)}, PLACES[name].queries, PLACES[name].kind)
    quick = rows_of(run, place)
    positions: list[int] = []
    layers = attention_layers(run.model, run.inputs)[place.kind]
    hook = layers[0].register_forward_pre_hook(
        lambda _, args, kwargs: positions.append((args or tuple(kwargs.values()))[0].shape[1]),
        with_kwargs=True,
    )
    found = quick.answers(quick.uniform())
    hook.remove()
    assert positions == [1]  # the layers below run on one position
    monkeypatch.setattr("analysis.adversarial.rows.find_branch", lambda *_: None)
    whole = rows_of(run, place)
    assert_close(found, whole.answers(whole.uniform()), rtol=1e-6, atol=1e-9)
    assert not run.model.module._forward_pre_hooks
    assert not any(part._forward_pre_hooks for part in run.model.module.modules())


def test_a_branch_that_gives_another_answer_is_not_used(
    runs: dict[str, ForwardPass], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model whose code does not let its batch grow, or that makes something else of the states."""
    run, place = runs["bert"], Place({1: (0,)}, (0,))
    rows = rows_of(run, place)
    expected = rows.answers(rows.uniform())
    for changed in (
        lambda value, count: value,
        lambda value, count: 2 * value.expand(count, -1, -1) if value.__class__ is torch.Tensor else value,
    ):
        monkeypatch.setattr("analysis.hf.branching._many", changed)
        found = rows_of(run, place)
        assert_close(found.answers(found.uniform()), expected)
