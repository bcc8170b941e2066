"""The pipeline: each stage again from the ones before it, in float64 NumPy, and the model's own next hidden state."""

from __future__ import annotations

import copy
import functools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

import tests.input_helpers as tiny
from analysis.catalogue import MINILM, is_installed
from analysis.errors import UnsupportedModelError
from analysis.lab.formula import number_text
from analysis.lab.pipeline import (
    CLOSE,
    STAGES,
    PipelineNumbers,
    check_in_words,
    pipeline_diagram,
    pipeline_numbers,
    stage_in_words,
    stage_sheet,
    way_in_words,
)
from analysis.models import LoadedModel, load_model
from analysis.visible_lab import check_matrix_sheet
from analysis.visible_story import arrow_ways, check_diagram, diagram_in_words
from dashboard.components.story_views import checked_diagram
from dashboard.figures import unpack
from dashboard.story_payload import diagram_payload
from tests.sample_figures import diagram as sample

TEXT = "The animal didn't cross the street because it was too tired"
WORDS = " ".join(tiny.SENTENCES[0].split()[:5])

needs_bert = pytest.mark.skipif(not is_installed(MINILM), reason="the bundled BERT is not installed")


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> LoadedModel:
    """A random BERT of three layers, whose biases and norms are not those of a fresh model."""
    model = tiny.loaded(
        tmp_path_factory.mktemp("bert"), "BertModel", "BertConfig", tiny.word_piece(), vocab_size=160,
        hidden_size=24, num_hidden_layers=3, num_attention_heads=4, intermediate_size=32,
    )  # fmt: skip
    with torch.no_grad():
        draw = torch.Generator().manual_seed(5)
        for parameter in model.module.parameters():
            parameter.normal_(0, 0.4, generator=draw)
    return model


@pytest.fixture(scope="module")
def numbers(bert) -> PipelineNumbers:
    return pipeline_numbers(bert, WORDS, layer=1, head=2, query=4)


# The numbers --------------------------------------------------------------------------------------------------------


def normed(values: np.ndarray, scale: np.ndarray, shift: np.ndarray) -> np.ndarray:
    centred = values - values.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12) * scale + shift


@pytest.mark.parametrize(("layer", "head", "query"), [(0, 0, 0), (1, 2, 4), (2, 3, 5)])
def test_each_stage_follows_from_the_ones_before_it(bert, layer, head, query):
    numbers = pipeline_numbers(bert, WORDS, layer=layer, head=head, query=query)
    found = {stage: numbers.stages[stage] for stage in STAGES}
    weights = {name: part.detach().double().numpy() for name, part in bert.module.named_parameters()}
    path, own = f"encoder.layer.{layer}", slice(6 * head, 6 * head + 6)

    def linear(values, name, rows=slice(None)):
        return values @ weights[f"{name}.weight"][rows].T + weights[f"{name}.bias"][rows]

    def norm(values, name):
        return normed(values, weights[f"{name}.weight"], weights[f"{name}.bias"])

    ids = bert.processor(WORDS)["input_ids"]
    assert len(ids) > 5
    np.testing.assert_array_equal(found["word"][0], weights["embeddings.word_embeddings.weight"][ids[query]])
    np.testing.assert_array_equal(
        found["position"][0], weights["embeddings.position_embeddings.weight"][query]
    )
    kinds = weights["embeddings.token_type_embeddings.weight"]
    np.testing.assert_array_equal(found["segment"][0], kinds[0])
    np.testing.assert_allclose(
        found["embedding"],
        norm(found["word"] + found["position"] + found["segment"], "embeddings.LayerNorm"),
        atol=1e-12,
    )
    attention = f"{path}.attention"
    np.testing.assert_allclose(
        found["query"], linear(found["state"], f"{attention}.self.query", own), atol=1e-12
    )
    with torch.no_grad():
        states = bert.module(torch.tensor([ids]), output_hidden_states=True).hidden_states
    entering = states[layer][0].double().numpy()
    np.testing.assert_array_equal(found["state"][0], entering[query])
    for name in ("key", "value"):
        np.testing.assert_allclose(found[name], linear(entering, f"{attention}.self.{name}", own), atol=1e-12)
    np.testing.assert_allclose(found["scores"], found["query"] @ found["key"].T, atol=1e-12)
    np.testing.assert_allclose(found["scaled"], found["scores"] / math.sqrt(6), atol=1e-12)
    powers = np.exp(found["scaled"] - found["scaled"].max())
    np.testing.assert_allclose(found["weights"], powers / powers.sum(), atol=1e-12)
    np.testing.assert_allclose(found["context"], found["weights"] @ found["value"], atol=1e-12)
    np.testing.assert_array_equal(found["heads"][head], found["context"][0])
    mixed = linear(found["heads"].reshape(1, -1), f"{attention}.output.dense")
    np.testing.assert_allclose(
        found["attended"], norm(found["state"] + mixed, f"{attention}.output.LayerNorm"), atol=1e-12
    )
    inner = linear(found["attended"], f"{path}.intermediate.dense")
    bent = inner * 0.5 * (1 + np.vectorize(math.erf)(inner / math.sqrt(2)))
    np.testing.assert_allclose(found["feed"], linear(bent, f"{path}.output.dense"), atol=1e-12)
    np.testing.assert_allclose(
        found["next"], norm(found["attended"] + found["feed"], f"{path}.output.LayerNorm"), atol=1e-12
    )
    np.testing.assert_allclose(found["next"][0], states[layer + 1][0, query].numpy(), atol=CLOSE)
    assert numbers.difference <= CLOSE
    if layer == 0:
        np.testing.assert_allclose(found["state"], found["embedding"], atol=CLOSE)


@needs_bert
@pytest.mark.parametrize("layer", range(6))
def test_the_bundled_bert_hands_on_what_is_drawn(layer):
    numbers = pipeline_numbers(bundled(), TEXT, layer=layer, head=layer, query=10)
    assert numbers.tokens[10] == "it"
    assert numbers.difference <= CLOSE
    assert numbers.stages["heads"].shape == (12, 32)


@functools.cache
def bundled() -> LoadedModel:
    return load_model(MINILM.name, device="cpu")


def test_indices_beyond_the_end_stand_for_the_last(bert):
    numbers = pipeline_numbers(bert, WORDS, layer=99, head=99, query=99)
    assert (numbers.layer, numbers.head, numbers.query) == (2, 3, len(numbers.tokens) - 1)


def test_what_is_no_bert_is_refused(bert, tmp_path):
    with pytest.raises(ValueError, match="layer, head and query must be at least 0 but are -1, 0 and 0"):
        pipeline_numbers(bert, WORDS, layer=-1, head=0, query=0)
    electra = tiny.loaded(
        tmp_path, "ElectraModel", "ElectraConfig", tiny.word_piece(), vocab_size=160, hidden_size=8,
        embedding_size=4, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8,
    )  # fmt: skip
    with pytest.raises(
        UnsupportedModelError, match=r"must be a BERT with gelu or relu but is .* \(electra\)"
    ):
        pipeline_numbers(electra, WORDS, layer=0, head=0, query=0)
    other = replace(bert, module=copy.deepcopy(bert.module))
    other.module.config.hidden_act = "silu"
    with pytest.raises(UnsupportedModelError, match="must be a BERT with gelu or relu"):
        pipeline_numbers(other, WORDS, layer=0, head=0, query=0)


# The words ----------------------------------------------------------------------------------------------------------


def test_a_way_that_is_not_the_models_is_told(numbers):
    assert check_in_words(numbers).startswith("The last box is what the model itself hands on")
    strayed = replace(numbers, model_next=numbers.model_next + 0.01)
    assert "by 1.0e-02: this is not the model's way" in check_in_words(strayed)


def test_the_head_is_told_by_its_largest_weight_and_its_share(numbers):
    weights = numbers.stages["weights"][0]
    lengths = np.linalg.norm(numbers.stages["heads"], axis=1) ** 2
    text = way_in_words(numbers)
    most = weights.argmax()
    target = "itself" if most == numbers.query else f"“{numbers.tokens[most]}”"
    assert f"looks at {target} most ({number_text(weights.max())})" in text
    assert f"{lengths[2] / lengths.sum():.0%} is this head's" in text
    largest = replace(numbers, head=int(lengths.argmax()))
    assert "the largest by size" in way_in_words(largest)
    assert "number 4 by size" in way_in_words(replace(numbers, head=int(lengths.argmin())))
    one = np.eye(1, 6, numbers.query)
    itself = replace(numbers, stages={**numbers.stages, "weights": one})
    assert "looks at itself most (1)" in way_in_words(itself)


@pytest.mark.parametrize("stage", STAGES)
def test_every_stage_has_its_formula_its_numbers_and_its_sheet(bert, numbers, stage):
    index = STAGES.index(stage)
    told = pipeline_diagram(numbers, selected=index).stages[index]
    assert told.formula
    assert told.about
    assert "{" not in told.formula + told.about + told.parameter
    assert math.prod(told.values.values.shape) == numbers.stages[stage].size
    np.testing.assert_array_equal(told.values.values.ravel(), numbers.stages[stage].ravel())
    names = dict(bert.module.named_parameters())
    for parameter in filter(None, told.parameter.split(", ")):
        assert any(name.startswith(parameter) for name in names), parameter
    sentences = stage_in_words(numbers, stage)
    assert number_text(float(numbers.stages[stage].max())) in sentences[0]
    sheet = stage_sheet(numbers, stage)
    check_matrix_sheet(sheet, "test")
    assert sheet.matrices[-1].values.size == numbers.stages[stage].size


def test_the_first_and_the_last_layer_say_so(bert):
    first, last = (
        pipeline_diagram(pipeline_numbers(bert, WORDS, layer=layer, head=0, query=1)) for layer in (0, 2)
    )
    assert first.stages[STAGES.index("state")].formula == "e itself"
    assert last.stages[STAGES.index("state")].formula == "what layers 0 to 1 made of e"
    assert "layer 1 gets it" in first.stages[-1].about
    assert "this is the last layer" in last.stages[-1].about


# The diagram --------------------------------------------------------------------------------------------------------


def crosses(way, place) -> bool:
    """Whether a way touches the inside of a box."""
    left, top = 2 * place[0], 2 * place[1]
    for (x, y), (to_x, to_y) in zip(way.corners, way.corners[1:], strict=False):
        for share in np.linspace(0, 1, 101):
            across, down = x + share * (to_x - x), y + share * (to_y - y)
            if left < across < left + 1 and top < down < top + 1:
                return True
    return False


@pytest.mark.parametrize("name", ["pipeline", "sample"])
def test_no_arrow_runs_through_a_box(numbers, name):
    view = pipeline_diagram(numbers) if name == "pipeline" else sample()
    check_diagram(view, "test")
    for arrow, way in zip(view.arrows, arrow_ways(view), strict=True):
        for stage in view.stages:
            assert not crosses(way, stage.place), (arrow, stage.name)
        for corner, end in ((way.corners[0], arrow.start), (way.corners[-1], arrow.stop)):
            column, row = view.stages[end].place
            inside = abs(corner[0] - 2 * column - 0.5), abs(corner[1] - 2 * row - 0.5)
            assert sorted(inside) == [0, 0.5], arrow  # at the middle of a side


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"stages": ()}, "stages must be at least one"),
        ({"stages": sample().stages[:1] * 2}, "a place each"),
        (
            {"stages": (replace(sample().stages[0], row=3),), "arrows": (), "selected": 0},
            "row of .* must be one of 3",
        ),
        ({"selected": 9}, "selected must be one of the 7 stages"),
        ({"arrows": (replace(sample().arrows[0], stop=0),)}, "one leads from 0 to 0"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(changes, message):
    with pytest.raises(ValueError, match=f"here: .*{message}"):
        check_diagram(replace(sample(), **changes), "here")


def test_the_caption_names_the_marked_stage(numbers):
    view = pipeline_diagram(numbers, selected=STAGES.index("query"))
    text = diagram_in_words(view)
    assert text.startswith("16 stages;")
    assert (
        "Marked: query, q = x W_Q + b_Q, dimensions 12 to 17 (encoder.layer.1.attention.self.query)." in text
    )
    assert "Marked" not in diagram_in_words(replace(view, selected=None))


def test_the_blob_holds_every_number_and_what_comes_back_is_checked(numbers):
    view = pipeline_diagram(numbers, selected=3)
    header, arrays = unpack(diagram_payload(view, told=[("one",)] * 16, said=("two",)))
    sizes = [rows * columns for rows, columns in (stage["size"] for stage in header["stages"])]
    assert sum(sizes) == arrays["values"].size
    np.testing.assert_array_equal(
        arrays["values"][: sizes[0]], numbers.stages["word"].ravel().astype(np.float32)
    )
    assert header["stages"][8]["told"] == ["one"]
    with pytest.raises(ValueError, match="told must be of 16 stages"):
        diagram_payload(view, told=[()])
    pick = {"input": header["input"], "stage": 15}
    assert checked_diagram({"pick": pick}, header) == 15
    for wrong in (
        {**pick, "stage": 16},
        {**pick, "stage": True},
        {**pick, "input": "x"},
        {**pick, "stage": "1"},
        7,
    ):
        assert checked_diagram({"pick": wrong}, header) is None
