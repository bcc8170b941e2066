"""What heads are worth: the gradient is that of a gate, ablation is a model without the head, in every family."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from analysis.evidence import perturbation
from analysis.evidence.passes import ForwardPass, forward_pass, plain_outputs
from analysis.evidence.perturbation import batch_items, repeated
from analysis.evidence.targets import Outputs, Target, class_logit, token_log_probability
from analysis.heads.importance import (
    AverageImportance,
    ablation_effects,
    gradient_importance,
    normalised_layers,
)
from analysis.hf.editing import attention_layers, editing_layers
from attn_core import UnsupportedModelError, gate
from tests.capture_helpers import assert_same_state, state_of
from tests.evidence.attention_runs import run_of_text, save
from tests.evidence.oracle_models import pixels_of, small_vit

OUTPUTS: dict[str, dict[str, str]] = {
    "bert": {"encoder": "bert.encoder.layer.{}.attention.output.dense"},
    "vit": {"encoder": "vit.layers.{}.attention.o_proj"},
    "gpt2": {"decoder": "transformer.h.{}.attn.c_proj"},
    "llama": {"decoder": "model.layers.{}.self_attn.o_proj"},
    "bart": {
        "encoder": "model.encoder.layers.{}.self_attn.out_proj",
        "decoder": "model.decoder.layers.{}.self_attn.out_proj",
        "cross": "model.decoder.layers.{}.encoder_attn.out_proj",
    },
}
"""Name of the output projection of each layer."""

NAMES = tuple(OUTPUTS)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ForwardPass]:
    """One pass a family, in float64."""
    found = {n: run_of_text(save(tmp_path_factory.mktemp(n), n)) for n in (*NAMES, "deberta") if n != "vit"}
    pixels = torch.randn(1, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return {**found, "vit": forward_pass(small_vit(), pixels_of(pixels.numpy(), patch=8))}


def target_of(name: str) -> Target:
    return class_logit(1) if name in ("bert", "vit", "deberta") else token_log_probability(2, 7)


def value_with(run: ForwardPass, target: Target, module: nn.Module) -> float:
    """The target's number in another model on the same input."""
    model = replace(run.model, module=module)
    return float(target.value(plain_outputs(model, run.inputs.tensors, run.outputs.kept))[0])


def heads_of(run: ForwardPass) -> list[tuple[Any, int, int]]:
    return [
        (kind, layer, head)
        for kind, layers in run.layers.items()
        for layer in range(len(layers))
        for head in range(layers[layer].map.heads)
    ]


def gated_values(run: ForwardPass, target: Target, factor: float) -> dict[tuple[Any, int, int], float]:
    """The target's number with the gate of each head at a number, all heads of a layer in one batch."""
    layers = attention_layers(run.model, run.inputs)
    found = {}
    for kind, modules in layers.items():
        for layer in range(len(modules)):
            heads = run.layers[kind][layer].map.heads
            factors = torch.ones(heads, heads, dtype=torch.float64).fill_diagonal_(factor)
            with editing_layers(run.model, layers, {(kind, layer): gate(factors)}):
                outputs = plain_outputs(run.model, repeated(run.inputs.tensors, heads), run.outputs.kept)
            for head, number in enumerate(target.value(outputs).tolist()):
                found[kind, layer, head] = number
    return found


# The gradient


@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_is_the_finite_difference_of_a_gate(name: str, runs: dict[str, ForwardPass]) -> None:
    run, target = runs[name], target_of(name)
    # Llama's norms round to float32 in a float64 model too, which a small step would show.
    step, within = (
        (1e-3, {"rel": 2e-3, "abs": 1e-4}) if name == "llama" else (1e-5, {"rel": 1e-4, "abs": 1e-7})
    )
    above, below = gated_values(run, target, 1 + step), gated_values(run, target, 1 - step)
    signed, sizes = gradient_importance(run, target, signed=True), gradient_importance(run, target)
    assert list(signed) == list(run.layers)
    for kind, layer, head in heads_of(run):
        expected = (above[kind, layer, head] - below[kind, layer, head]) / (2 * step)
        assert float(signed[kind][layer, head]) == pytest.approx(expected, **within)
        assert float(sizes[kind][layer, head]) == abs(float(signed[kind][layer, head]))
    assert all(bool((heads != 0).any()) for heads in signed.values())
    assert any(bool((heads < 0).any()) for heads in signed.values())


def test_a_model_that_hands_out_weights_alone_has_the_same_gradient(runs: dict[str, ForwardPass]) -> None:
    """DeBERTa: to scale a head's values is to scale its context."""
    run, target, step = runs["deberta"], target_of("deberta"), 1e-5
    found = gradient_importance(run, target, signed=True)["encoder"]
    for layer, head in ((0, 0), (0, 3), (1, 2)):
        values = []
        for factor in (1 + step, 1 - step):
            twin = copy.deepcopy(run.model.module)
            place = twin.deberta.encoder.layer[layer].attention.self.value_proj
            rows = slice(8 * head, 8 * head + 8)
            with torch.no_grad():
                place.weight[rows] *= factor
                place.bias[rows] *= factor
            values.append(value_with(run, target, twin))
        expected = (values[0] - values[1]) / (2 * step)
        assert float(found[layer, head]) == pytest.approx(expected, rel=1e-4, abs=1e-8)


def test_the_gradient_takes_no_pass_of_its_own(runs: dict[str, ForwardPass]) -> None:
    run, target, calls = runs["bert"], target_of("bert"), []
    handle = run.model.module.register_forward_hook(lambda *_: calls.append(1))
    try:
        found = gradient_importance(run, target)["encoder"]
    finally:
        handle.remove()
    assert calls == []
    shared, layer = run.gradients(target).layers["encoder"][1], run.layers["encoder"][1]
    expected = np.einsum("bhqe,bhqe->h", layer.call.context.detach().numpy(), shared.numpy())
    assert_close(found[1].numpy(), np.abs(expected))


def test_layers_are_brought_to_length_one_and_an_empty_one_stays(runs: dict[str, ForwardPass]) -> None:
    run, target = runs["bart"], target_of("bart")
    plain, found = gradient_importance(run, target), gradient_importance(run, target, normalised=True)
    for kind, heads in plain.items():
        length = np.sqrt((heads.numpy() ** 2).sum(1, keepdims=True))
        assert_close(found[kind].numpy(), heads.numpy() / length)
    zero = normalised_layers({"encoder": torch.tensor([[0.0, 0.0], [3.0, -4.0]])})["encoder"]
    assert zero.tolist() == [[0.0, 0.0], pytest.approx([0.6, -0.8])]


# Ablation


def without_columns(run: ForwardPass, name: str, kind: str, layer: int, head: int) -> nn.Module:
    """A copy whose output projection does not read one head."""
    twin = copy.deepcopy(run.model.module)
    place = twin.get_submodule(OUTPUTS[name][kind].format(layer))
    heads = run.layers[kind][layer].map.heads
    width = run.layers[kind][layer].call.context.shape[3]
    assert heads * width == place.weight.shape[0 if name == "gpt2" else 1]
    columns = slice(width * head, width * head + width)
    with torch.no_grad():
        (place.weight[columns] if name == "gpt2" else place.weight[:, columns]).zero_()
    return twin


@pytest.mark.parametrize("name", NAMES)
def test_a_head_set_to_zero_is_a_head_that_the_output_projection_does_not_read(
    name: str, runs: dict[str, ForwardPass]
) -> None:
    run, target = runs[name], target_of(name)
    found = ablation_effects(run.model, run.inputs, target, how="zero")
    assert {kind: heads.shape for kind, heads in found.items()} == {
        kind: (len(layers), layers[0].map.heads) for kind, layers in run.layers.items()
    }
    plain = run.value(target)
    for kind, layer, head in heads_of(run):
        expected = value_with(run, target, without_columns(run, name, kind, layer, head)) - plain
        assert float(found[kind][layer, head]) == pytest.approx(expected, abs=1e-9)
        assert abs(expected) > 1e-9


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("how", ["uniform", "zero"])
def test_heads_in_one_batch_are_heads_one_at_a_time(
    how: Any, name: str, runs: dict[str, ForwardPass], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, target = runs[name], target_of(name)
    together = ablation_effects(run.model, run.inputs, target, how=how)
    for positions in (1, 40):
        monkeypatch.setattr(perturbation, "BATCH_TOKENS", positions)
        alone = ablation_effects(run.model, run.inputs, target, how=how)
        for kind, heads in together.items():
            assert_close(alone[kind], heads, rtol=0.0, atol=1e-10)
    assert all(bool((heads != 0).any()) for heads in together.values())


def test_a_uniform_head_is_a_head_without_queries(runs: dict[str, ForwardPass]) -> None:
    run, target = runs["bert"], target_of("bert")
    found = ablation_effects(run.model, run.inputs, target, how="uniform")["encoder"]
    for layer, head in ((0, 0), (0, 2), (1, 3)):
        twin = copy.deepcopy(run.model.module)
        query, rows = twin.bert.encoder.layer[layer].attention.self.query, slice(8 * head, 8 * head + 8)
        with torch.no_grad():
            query.weight[rows], query.bias[rows] = 0.0, 0.0
        expected = value_with(run, target, twin) - run.value(target)
        assert float(found[layer, head]) == pytest.approx(expected, abs=1e-9)


def test_a_head_that_is_not_read_is_worth_nothing_by_any_measure(runs: dict[str, ForwardPass]) -> None:
    module = without_columns(runs["bert"], "bert", "encoder", 1, 2)
    model = replace(runs["bert"].model, module=module)
    run, target = forward_pass(model, runs["bert"].inputs), target_of("bert")
    for found in (
        gradient_importance(run, target),
        ablation_effects(model, run.inputs, target, how="zero"),
        ablation_effects(model, run.inputs, target, how="uniform"),
    ):
        heads = found["encoder"]
        assert abs(float(heads[1, 2])) < 1e-12
        assert bool((heads.abs().flatten().sort().values[1:] > 1e-9).all())


def test_chosen_kinds_and_progress(runs: dict[str, ForwardPass], monkeypatch: pytest.MonkeyPatch) -> None:
    run, target, told = runs["bart"], target_of("bart"), []
    monkeypatch.setattr(perturbation, "BATCH_TOKENS", 90)
    every = ablation_effects(run.model, run.inputs, target, how="zero", progress=told.append)
    assert len(told) > 3
    assert told == sorted(told)
    assert told[0] > 0
    assert told[-1] == 1.0
    some = ablation_effects(run.model, run.inputs, target, how="zero", kinds=("cross", "encoder"))
    assert list(some) == ["cross", "encoder"]
    for kind, heads in some.items():
        assert_close(heads, every[kind], rtol=0.0, atol=1e-10)


def test_what_progress_raises_stops_it_and_the_model_stays_as_it_was(
    runs: dict[str, ForwardPass], monkeypatch: pytest.MonkeyPatch
) -> None:
    run, told = runs["gpt2"], []
    monkeypatch.setattr(perturbation, "BATCH_TOKENS", 1)
    before = state_of(run.model.module)

    def stop(done: float) -> None:
        told.append(done)
        if len(told) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ablation_effects(run.model, run.inputs, target_of("gpt2"), how="uniform", progress=stop)
    assert len(told) == 2
    assert_same_state(before, state_of(run.model.module))


def test_a_classifier_that_takes_no_batch_runs_one_at_a_time(runs: dict[str, ForwardPass]) -> None:
    """GPT-2 without a padding token finds its last word by padding, and refuses a batch."""
    model = replace(runs["gpt2"].model, task="sequence-classification")
    assert model.module.config.pad_token_id is None
    assert batch_items(model, runs["gpt2"].inputs) == 1
    assert batch_items(runs["gpt2"].model, runs["gpt2"].inputs) > 1


# Refusals


def test_a_way_or_a_kind_that_there_is_not_is_named(runs: dict[str, ForwardPass]) -> None:
    run = runs["bert"]
    with pytest.raises(ValueError, match="how must be one of uniform, zero but is 'mean'"):
        ablation_effects(run.model, run.inputs, class_logit(1), how="mean")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="kinds must be among encoder for this model but name 'cross'"):
        ablation_effects(run.model, run.inputs, class_logit(1), how="zero", kinds=("cross",))


def test_a_model_whose_heads_cannot_be_edited_says_so(runs: dict[str, ForwardPass]) -> None:
    run = runs["deberta"]
    with pytest.raises(UnsupportedModelError, match="its heads can be seen but not edited"):
        ablation_effects(run.model, run.inputs, class_logit(1), how="zero")


def test_a_target_without_a_number_is_refused(runs: dict[str, ForwardPass]) -> None:
    def nowhere(outputs: Outputs) -> Tensor:
        assert outputs.logits is not None
        return outputs.logits[:, 0].sign().sub(2).log()

    target, run = Target("made up", "nowhere", nowhere, ("nowhere",)), runs["bert"]
    with pytest.raises(ValueError, match="'nowhere' is not finite"):
        ablation_effects(run.model, run.inputs, target, how="zero")


# A corpus


def test_the_average_over_runs_is_the_mean_size() -> None:
    generator = torch.Generator().manual_seed(0)
    parts = [
        {"encoder": torch.randn(3, 4, generator=generator), "cross": torch.randn(2, 4, generator=generator)}
        for _ in range(5)
    ]
    average = AverageImportance()
    before = [average]
    for part in parts:
        average = average.including(part)
        before.append(average)
    assert [one.runs for one in before] == [0, 1, 2, 3, 4, 5]
    for count in (1, 3, 5):
        for kind in ("encoder", "cross"):
            expected = np.mean([np.abs(part[kind].double().numpy()) for part in parts[:count]], axis=0)
            assert_close(before[count].mean[kind].numpy(), expected, rtol=1e-12, atol=1e-12)
    assert average.mean["encoder"].dtype == torch.float64
    with pytest.raises(ValueError, match="average runs of one model"):
        average.including({"encoder": torch.ones(3, 4)})
    with pytest.raises(ValueError, match="average runs of one model"):
        average.including({"encoder": torch.ones(3, 5), "cross": torch.ones(2, 4)})
