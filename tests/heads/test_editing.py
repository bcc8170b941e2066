"""Editing heads of whole models: what comes out is the model with other weights, and the model stays as it was."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from analysis.hf.attention import capture
from analysis.hf.editing import attention_layers, editing_layers
from analysis.inputs import Inputs
from analysis.models import LoadedModel
from attn_core import UnsupportedModelError, gate, uniform
from attn_core.models.classifier import AttentionClassifier
from attn_core.seam import model_attention
from tests.capture_helpers import assert_same_state, captured, maps_by_kind, state_of
from tests.evidence.oracle_models import small_vit
from tests.tiny_models import ARCHITECTURES, BY_NAME, Kind

EDITABLE = [a for a in ARCHITECTURES if a.path == "seam" and a.windows is None]
REFUSED = [a for a in ARCHITECTURES if a.path != "seam" or a.windows is not None]
OUTPUT = ("logits", "last_hidden_state", "pooler_output")


def as_loaded(module: nn.Module, title: str = "the model") -> LoadedModel:
    """A module as the program holds it."""
    return replace(small_vit(), module=module, title=title)


def as_inputs(tensors: dict[str, Tensor]) -> Inputs:
    """Tensors as the program holds them."""
    return Inputs(tensors, None, None, None, None, "", "", (), 0, 0)


def output_of(module: nn.Module, tensors: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        found = module(**tensors)
    output: Tensor = next(found[name] for name in OUTPUT if name in found)
    return output


# Query projections, output projections and their layouts, by architecture and kind of attention ------------------


def _plain(query: str, output: str) -> dict[str, Any]:
    return {"query": query, "output": output}


PROJECTIONS: dict[tuple[str, Kind], dict[str, Any]] = {
    ("BERT", "encoder"): _plain(
        "bert.encoder.layer.{}.attention.self.query", "bert.encoder.layer.{}.attention.output.dense"
    ),
    ("GPT-2", "decoder"): _plain("transformer.h.{}.attn.c_attn", "transformer.h.{}.attn.c_proj"),
    ("Llama", "decoder"): _plain("model.layers.{}.self_attn.q_proj", "model.layers.{}.self_attn.o_proj"),
    ("Mistral", "decoder"): _plain("model.layers.{}.self_attn.q_proj", "model.layers.{}.self_attn.o_proj"),
    ("BART", "encoder"): _plain(
        "model.encoder.layers.{}.self_attn.q_proj", "model.encoder.layers.{}.self_attn.out_proj"
    ),
    ("BART", "decoder"): _plain(
        "model.decoder.layers.{}.self_attn.q_proj", "model.decoder.layers.{}.self_attn.out_proj"
    ),
    ("BART", "cross"): _plain(
        "model.decoder.layers.{}.encoder_attn.q_proj", "model.decoder.layers.{}.encoder_attn.out_proj"
    ),
}


def changed_copy(module: nn.Module, name: str, kind: Kind, layer: int, head: int, part: str) -> nn.Module:
    """The model with one head's query projection, or its columns of the output projection, set to zero."""
    twin = copy.deepcopy(module)
    place = twin.get_submodule(PROJECTIONS[name, kind][part].format(layer))
    rows = slice(8 * head, 8 * head + 8)
    with torch.no_grad():
        if part == "query":
            weight = place.weight[:, rows] if name == "GPT-2" else place.weight[rows]
            weight.zero_()
            if place.bias is not None:
                place.bias[rows].zero_()
        else:
            (place.weight[rows] if name == "GPT-2" else place.weight[:, rows]).zero_()
    return twin


CASES = [(name, kind, layer, head) for name, kind in PROJECTIONS for layer, head in ((0, 1), (1, 3))]


@pytest.mark.parametrize(("name", "kind", "layer", "head"), CASES)
@pytest.mark.parametrize("edit", ["uniform", "zero"])
def test_an_edited_head_is_a_head_with_other_projections(
    edit: str, name: str, kind: Kind, layer: int, head: int
) -> None:
    """Queries of zero make all scores 0 and the softmax uniform over the mask; no output columns, no head."""
    architecture = BY_NAME[name]
    module, tensors = architecture.build().double(), architecture.batch().tensors
    model = as_loaded(module)
    chosen = torch.arange(4)[None] == head
    layers = attention_layers(model, as_inputs(tensors))
    with editing_layers(
        model, layers, {(kind, layer): uniform(chosen) if edit == "uniform" else gate(~chosen)}
    ):
        found = output_of(module, tensors)
    part = "query" if edit == "uniform" else "output"
    expected = output_of(changed_copy(module, name, kind, layer, head, part), tensors)
    batch = architecture.batch()
    valid = batch.valid if batch.target_valid is None else batch.target_valid
    valid = valid if found.ndim == 3 else None  # logits of a classifier have no positions
    plain = output_of(module, tensors)
    kept = (found, expected) if valid is None else (found[valid], expected[valid])
    assert_close(*kept, rtol=0.0, atol=1e-10)
    assert float((found - plain).abs().max()) > 1e-4


@pytest.mark.parametrize("architecture", EDITABLE, ids=lambda a: a.name)
def test_every_architecture_of_the_seam_can_be_edited_and_stays_as_it_is(architecture: Any) -> None:
    module, tensors = architecture.build(), architecture.batch().tensors
    model = as_loaded(module)
    plain = output_of(module, tensors)
    layers = attention_layers(model, as_inputs(tensors))
    assert {kind: len(modules) for kind, modules in layers.items()} == dict(architecture.layers)
    every = [(kind, layer) for kind, modules in layers.items() for layer in range(len(modules))]
    none = dict.fromkeys(every, gate(torch.ones(1, 4)))
    before = state_of(module)
    with torch.no_grad(), capture(module):
        through_the_seam = next(v for k, v in module(**tensors).items() if k in OUTPUT)
    with editing_layers(model, layers, none):
        assert torch.equal(output_of(module, tensors), through_the_seam)
    for kind in layers:
        last = (kind, len(layers[kind]) - 1)
        for edit in (gate(torch.zeros(1, 4)), uniform(torch.ones(2, 4))):
            with editing_layers(model, layers, {last: edit}):
                edited = output_of(module, tensors)
            assert float((edited - through_the_seam).abs().max()) > 1e-3, last
    assert_same_state(before, state_of(module))
    assert torch.equal(output_of(module, tensors), plain)


@pytest.mark.parametrize("architecture", EDITABLE, ids=lambda a: a.name)
def test_a_capture_inside_shows_the_edited_weights_in_their_place(architecture: Any) -> None:
    """Kinds, order, item and padding are those of the model as it is; the edited rows are alike on what they see."""
    module, tensors = architecture.build(), architecture.batch().tensors
    model = as_loaded(module)
    layers = attention_layers(model, as_inputs(tensors))
    chosen = torch.tensor([[False, True, True, False]])
    every = {(kind, n): uniform(chosen) for kind, modules in layers.items() for n in range(len(modules))}
    trace, _ = captured(module, tensors)
    with editing_layers(model, layers, every):
        edited, _ = captured(module, tensors)
    assert {kind: len(maps) for kind, maps in maps_by_kind(edited).items()} == dict(architecture.layers)
    for item in (0, 1):
        plain, other = (maps_by_kind(t.item(item)) for t in (trace, edited))
        for kind, maps in plain.items():
            for one, two in zip(maps, other[kind], strict=True):
                assert two.shape == one.shape
                before, after = one.dense(), two.dense()
                seen = before > 0
                mean = seen / seen.sum(-1, keepdim=True)
                assert_close(after[1:3], mean[1:3].to(after))
        first = next(iter(plain))
        assert_close(other[first][0].dense()[[0, 3]], plain[first][0].dense()[[0, 3]])


@pytest.mark.parametrize("name", ["BERT", "GPT-2", "ViT", "BART"])
def test_a_batch_of_edits_is_one_edit_after_the_other(name: str) -> None:
    architecture = BY_NAME[name]
    module = architecture.build().double()
    alone = {n: t.double() if t.is_floating_point() else t for n, t in architecture.batch().alone(0).items()}
    model, layers = as_loaded(module), attention_layers(as_loaded(module), as_inputs(alone))
    kinds = list(layers)
    heads = torch.eye(4, dtype=torch.bool)
    repeated = {key: tensor.repeat(4, *[1] * (tensor.ndim - 1)) for key, tensor in alone.items()}
    with editing_layers(model, layers, {(kinds[0], 0): uniform(heads), (kinds[-1], 1): gate(~heads.flip(1))}):
        together = output_of(module, repeated)
    for head in range(4):
        edits = {
            (kinds[0], 0): uniform(heads[head : head + 1]),
            (kinds[-1], 1): gate(~heads.flip(1)[head : head + 1]),
        }
        with editing_layers(model, layers, edits):
            assert_close(together[head : head + 1], output_of(module, alone), rtol=0.0, atol=1e-10)


def test_layers_are_those_of_a_trace() -> None:
    module, tensors = BY_NAME["BART"].build(), BY_NAME["BART"].batch().tensors
    layers = attention_layers(as_loaded(module), as_inputs(tensors))
    assert list(layers) == ["encoder", "decoder", "cross"]
    inner = module.model
    assert [m is p.self_attn for m, p in zip(layers["encoder"], inner.encoder.layers, strict=True)] == [
        True
    ] * 3
    assert [m is p.self_attn for m, p in zip(layers["decoder"], inner.decoder.layers, strict=True)] == [
        True
    ] * 2
    assert [m is p.encoder_attn for m, p in zip(layers["cross"], inner.decoder.layers, strict=True)] == [
        True
    ] * 2


@pytest.mark.parametrize("layer", [0, 1, 2])
def test_a_module_that_serves_every_layer_is_edited_in_one_of_them(layer: int) -> None:
    """ALBERT, in two passes of one block."""
    module, tensors = BY_NAME["ALBERT"].build(), BY_NAME["ALBERT"].batch().tensors
    model, layers = as_loaded(module), attention_layers(as_loaded(module), as_inputs(tensors))
    assert len({id(part) for part in layers["encoder"]}) == 1
    with editing_layers(model, layers, {("encoder", layer): uniform(torch.ones(1, 4))}):
        traces = [captured(module, tensors)[0].item(1) for _ in range(2)]
    for trace in traces:
        alike = [bool((m.dense().std(-1) < 1e-6).all()) for m in trace.encoder]
        assert alike == [index == layer for index in range(3)]


class Stack(nn.Module):
    """A model of attn_core's kind: layers that call the seam themselves."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.mix = nn.ParameterList(
            nn.Parameter(torch.randn(8, 8, generator=generator, dtype=torch.float64)) for _ in range(2)
        )
        self.layers = nn.ModuleList(nn.Identity() for _ in range(2))

    def forward(self, embedded: Tensor) -> dict[str, Tensor]:
        for layer, mix in zip(self.layers, self.mix, strict=True):
            heads = (embedded @ mix).unflatten(2, (2, 4)).transpose(1, 2)
            context = model_attention(layer, heads, heads, heads)
            embedded = embedded + context.transpose(1, 2).flatten(2)
        return {"logits": embedded}


def test_a_model_of_our_own_is_edited_through_the_same_seam() -> None:
    module = Stack()
    tensors = {
        "embedded": torch.randn(1, 5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    }
    model, layers = as_loaded(module), attention_layers(as_loaded(module), as_inputs(tensors))
    assert {kind: list(parts) for kind, parts in layers.items()} == {"encoder": list(module.layers)}
    with editing_layers(model, layers, {("encoder", 1): gate(torch.zeros(1, 2))}):
        found = output_of(module, tensors)
    first = Stack()
    del first.layers[1], first.mix
    first.mix = module.mix[:1]
    assert_close(found, output_of(first, tensors))


# Refusals


@pytest.mark.parametrize("architecture", REFUSED, ids=lambda a: a.name)
def test_a_model_outside_the_interface_or_with_windows_is_refused(architecture: Any) -> None:
    module, tensors = architecture.build(), architecture.batch().tensors
    before = state_of(module)
    outside = architecture.path != "seam"
    message = "does not go through transformers' attention interface" if outside else "attends inside windows"
    with pytest.raises(UnsupportedModelError, match=message):
        attention_layers(as_loaded(module), as_inputs(tensors))
    assert_same_state(before, state_of(module))
    if outside:
        with pytest.raises(UnsupportedModelError, match=message), editing_layers(as_loaded(module), {}, {}):
            pass


class Multihead(nn.Module):
    """PyTorch's own attention layer as a model."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, embedded: Tensor) -> Tensor:
        found: Tensor = self.attention(embedded, embedded, embedded, need_weights=False)[0]
        return found


@pytest.mark.parametrize(
    ("module", "tensors"),
    [
        (Multihead().eval(), {"embedded": torch.ones(1, 5, 8)}),
        (AttentionClassifier(9, 2, embedding=4, hidden=4).eval(), {"input_ids": torch.tensor([[3, 4, 5]])}),
    ],
    ids=["nn.MultiheadAttention", "additive"],
)
def test_attention_that_does_not_call_the_seam_is_refused(
    module: nn.Module, tensors: dict[str, Tensor]
) -> None:
    with pytest.raises(
        UnsupportedModelError, match=r"of Mine does not go through .* its heads can be seen but"
    ):
        attention_layers(as_loaded(module, "Mine"), as_inputs(tensors))


def test_a_layer_that_is_not_there_or_never_attends_is_an_error_and_not_an_unedited_run() -> None:
    module, tensors = BY_NAME["BERT"].build(), BY_NAME["BERT"].batch().tensors
    model, layers = as_loaded(module, "Mine"), attention_layers(as_loaded(module), as_inputs(tensors))
    before, none = state_of(module), gate(torch.zeros(1, 4))
    for key in (("encoder", 3), ("encoder", -1), ("cross", 0)):
        with (
            pytest.raises(ValueError, match="must name layers of encoder 0 to 2"),
            editing_layers(model, layers, {key: none}),
        ):
            pass
    with (
        pytest.raises(UnsupportedModelError, match="encoder layer 1 of Mine did not attend"),
        editing_layers(model, layers, {("encoder", 1): none}),
    ):
        pass
    other = BY_NAME["BERT"].build()
    with (
        pytest.raises(UnsupportedModelError, match="did not attend"),
        editing_layers(model, layers, {("encoder", 1): none}),
    ):
        output_of(other, tensors)
    assert_same_state(before, state_of(module))


@pytest.mark.parametrize("stage", ["in the model", "in the block"])
def test_an_exception_leaves_everything_as_it_was(stage: str) -> None:
    module, tensors = BY_NAME["BART"].build(), BY_NAME["BART"].batch().tensors
    model, layers = as_loaded(module), attention_layers(as_loaded(module), as_inputs(tensors))
    plain, before = output_of(module, tensors), state_of(module)
    wrong = stage == "in the model"  # an edit for three heads of four

    def work() -> None:
        output_of(module, tensors)
        raise RuntimeError("stop")

    with (
        pytest.raises(
            ValueError if wrong else RuntimeError, match="one number for each query head" if wrong else "stop"
        ),
        editing_layers(model, layers, {("cross", 1): gate(torch.zeros(1, 3 if wrong else 4))}),
    ):
        work()
    assert_same_state(before, state_of(module))
    assert torch.equal(output_of(module, tensors), plain)


# Threads


def test_threads_edit_and_run_one_model_beside_each_other() -> None:
    module, tensors = BY_NAME["BERT"].build(), BY_NAME["BERT"].batch().tensors
    model, layers = as_loaded(module), attention_layers(as_loaded(module), as_inputs(tensors))
    removed = {("encoder", 0): gate(torch.tensor([[1.0, 0.0, 1.0, 1.0]]))}
    alike = {("encoder", 0): uniform(torch.ones(1, 4)), ("encoder", 2): uniform(torch.ones(2, 4))}
    before = state_of(module)

    def edited(edits: Any) -> Tensor:
        with editing_layers(model, layers, edits):
            return output_of(module, tensors)

    works: list[Callable[[], Tensor]] = [
        lambda: edited(removed), lambda: edited(alike), lambda: output_of(module, tensors)
    ]  # fmt: skip
    expected = [work() for work in works]
    assert all(float((expected[i] - expected[i - 1]).abs().max()) > 1e-3 for i in range(3))
    start, wrong = threading.Barrier(3), []

    def repeat(index: int) -> None:
        start.wait(timeout=60)
        for _ in range(20):
            if float((works[index]() - expected[index]).abs().max()) > 1e-5:
                wrong.append(index)

    threads = [threading.Thread(target=repeat, args=(index,)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert wrong == []
    assert_same_state(before, state_of(module))
