"""The bundled BERT and ViT in our own code: in every view and method what the library's give."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from streamlit.testing.v1 import AppTest
from torch import Tensor
from transformers import PreTrainedModel

from analysis.adversarial.effects import head_effects
from analysis.adversarial.rows import rows_of
from analysis.catalogue import BUNDLED, is_installed
from analysis.errors import ModelUnavailableError
from analysis.evidence.cdam import integrated_cdam, smooth_cdam
from analysis.evidence.faithfulness import faithfulness
from analysis.evidence.methods import METHODS, explain, options_of
from analysis.evidence.passes import ForwardPass, forward_pass
from analysis.evidence.sanity import model_sensitivity
from analysis.evidence.targets import Target, concept_similarity, default_pooling
from analysis.heads.importance import ablation_effects, gradient_importance
from analysis.heads.survey import survey_inputs
from analysis.images import Picture, read_picture
from analysis.inputs import Inputs, encode_image, encode_pair, encode_text, encode_texts
from analysis.models import LoadedModel, describe, load_model
from analysis.rollout import rollout
from analysis.samples import sample_picture_bytes
from analysis.trace import parity, trace
from analysis.trained import (
    FROM_SCRATCH,
    MINILM_FROM_SCRATCH,
    VIT_FROM_SCRATCH,
    backbone_of,
    find_offered,
    is_ready,
)
from attn_core.errors import UnsupportedModelError
from dashboard import adversarial_cache, figures
from tests.test_app import opened, settled, shown
from tests.test_evidence_views import finished

APP = Path(__file__).resolve().parent.parent / "dashboard" / "app.py"
FEW: dict[str, dict[str, int]] = {
    "smooth_cdam": {"samples": 2},
    "integrated_cdam": {"steps": 2},
    "integrated_gradients": {"steps": 5, "most": 5},
    "smooth_grad": {"samples": 2},
}
SENTENCE = "The cat sat on the mat."
TOLERANCE = 1e-5
"""Of the largest number of a result. The two programs do the same operations, so they mostly agree bit by bit."""
ROW_SUM = 290 * 2**-23
"""A weight is exp(score − log-sum-exp). Scores of the ViT reach 290, and float32 rounds them by up to this."""

pytestmark = pytest.mark.skipif(
    not all(is_installed(model) for model in BUNDLED), reason="models are not installed; run make bundled"
)


@cache
def pair_of(modality: str) -> tuple[LoadedModel, LoadedModel]:
    """The library's model and ours, of the same files."""
    own = MINILM_FROM_SCRATCH if modality == "text" else VIT_FROM_SCRATCH
    return load_model(own.backbone.name, device="cpu"), load_model(own.name, device="cpu")


@cache
def photograph() -> Picture:
    return read_picture(sample_picture_bytes("elephant"), name="elephant")


def inputs_of(modality: str, *, side: int = 56) -> tuple[Inputs, Inputs]:
    library, own = pair_of(modality)
    if modality == "text":
        return encode_text(library, SENTENCE), encode_text(own, SENTENCE)
    return encode_image(library, photograph(), side=side), encode_image(own, photograph(), side=side)


@cache
def runs_of(modality: str) -> tuple[ForwardPass, ForwardPass]:
    first, second = (forward_pass(m, i) for m, i in zip(pair_of(modality), inputs_of(modality), strict=True))
    return first, second


def direction_of(model: LoadedModel) -> Target:
    """Likeness of the embedding to a direction: what models without a head are asked."""
    direction = torch.randn(384, generator=torch.Generator().manual_seed(0))
    return concept_similarity(direction, "direction", pooling=default_pooling(model))


def assert_same(found: Tensor, expected: Tensor) -> None:
    found, expected = found.detach(), expected.detach()
    assert found.shape == expected.shape
    scale = max(float(expected.abs().max()), 1.0) if expected.numel() else 1.0
    assert bool((torch.isnan(found) == torch.isnan(expected)).all())
    assert float((found - expected).nan_to_num().abs().max()) <= TOLERANCE * scale


# One model as another -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("modality", ["text", "image"])
def test_it_is_our_code_and_the_record_of_it_is_the_librarys(modality):
    library, own = pair_of(modality)
    assert not isinstance(own.module, PreTrainedModel)
    assert type(own.module).__module__ == f"attn_core.models.{'bert' if modality == 'text' else 'vit'}"
    assert not any(isinstance(part, PreTrainedModel) for part in own.module.modules())
    differing = {
        name
        for name in LoadedModel.__dataclass_fields__
        if getattr(own, name) != getattr(library, name) and name not in ("module", "processor")
    }
    assert differing == {"name", "title", "revision", "attention_inputs", "notes"}
    assert type(own.processor) is type(library.processor)
    assert len(own.attention_inputs) == len(library.attention_inputs) == own.layers
    assert own.notes[0].startswith("Computed by our own code, attn_core/models/")
    assert ("parameters", f"{library.parameters:,}") in describe(own)


def test_it_needs_the_backbone_and_nothing_of_its_own(monkeypatch, tmp_path):
    for model in FROM_SCRATCH:
        assert find_offered(model.name) is model
        assert backbone_of(model) in BUNDLED
        assert model.size == 0
        assert is_ready(model)
        with pytest.raises(ModelUnavailableError, match="leave revision out"):
            load_model(model.name, revision="7")
    monkeypatch.setenv("ATTNSCOPE_HOME", str(tmp_path))
    assert not is_ready(MINILM_FROM_SCRATCH)
    with pytest.raises(ModelUnavailableError, match="python -m analysis bring minilm"):
        load_model("minilm-from-scratch")


def test_a_family_that_is_not_written_out_is_refused(tmp_path):
    from analysis.hf.from_scratch import load_from_scratch
    from analysis.models import Source

    (tmp_path / "config.json").write_text('{"model_type": "beit"}', encoding="utf-8")
    source = Source("x", "Some BEiT", "1", tmp_path, bundled=True, own_code=True)
    with pytest.raises(UnsupportedModelError, match=r"Some BEiT must be one of bert, .* but is 'beit'"):
        load_from_scratch(source, device=torch.device("cpu"), dtype=None, report=lambda stage, done: None)


def test_it_computes_in_other_types():
    double = load_model("minilm-from-scratch", device="cpu", dtype="float64")
    assert double.dtype == torch.float64
    assert {parameter.dtype for parameter in double.module.parameters()} == {torch.float64}
    found = trace(double, encode_text(double, SENTENCE)).hidden
    expected = trace(pair_of("text")[0], inputs_of("text")[0]).hidden
    assert found is not None
    assert expected is not None
    assert_same(found, expected)


# What is seen -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", ["sentence", "pair", "picture of 224", "picture of 70"])
def test_traces_and_rollouts_are_the_librarys(given):
    modality = "image" if given.startswith("picture") else "text"
    library, own = pair_of(modality)
    if given == "pair":
        inputs = [encode_pair(model, "It rained.", "The road was wet.") for model in (library, own)]
    else:
        inputs = list(inputs_of(modality, side=int(given[-3:]) if modality == "image" else 0))
    assert inputs[0].digest == inputs[1].digest
    expected, found = trace(library, inputs[0]), trace(own, inputs[1])
    assert (found.kinds, found.fallback, found.notes, found.grids) == (
        expected.kinds, False, expected.notes, expected.grids,
    )  # fmt: skip
    assert found.hidden is not None
    assert expected.hidden is not None
    assert_same(found.hidden, expected.hidden)
    assert len(found.encoder) == len(expected.encoder) == own.layers
    for layer, other in zip(found.encoder, expected.encoder, strict=True):
        weights = layer.weights()
        assert_same(weights, other.weights())
        assert float((weights.sum(-1) - 1).abs().max()) <= ROW_SUM
    assert_same(rollout(found.encoder), rollout(expected.encoder))
    assert set(parity(own, inputs[1]).values()) == {0.0}


@pytest.mark.parametrize("modality", ["text", "image"])
def test_a_graph_begins_and_passes_where_it_does_in_the_librarys(modality):
    expected, run = runs_of(modality)
    assert_same(run.embedded, expected.embedded)
    assert len(run.tokens) == len(expected.tokens) == run.model.layers
    for tokens, others in zip(run.tokens, expected.tokens, strict=True):
        assert_same(tokens, others)


@pytest.mark.parametrize("modality", ["text", "image"])
@pytest.mark.parametrize("key", METHODS)
def test_every_method_gives_what_it_gives_on_the_librarys(key, modality):
    expected_run, run = runs_of(modality)
    assert options_of(METHODS[key], run) == options_of(METHODS[key], expected_run)
    target, few = direction_of(run.model), FEW.get(key, {})
    found, expected = (explain(key, each, target, **few) for each in (run, expected_run))
    assert_same(found.scores, expected.scores)
    assert found.notes == expected.notes
    assert bool((found.scores != 0).any())


def test_noise_on_what_enters_a_block_finds_its_place():
    expected_run, run = runs_of("image")
    target = direction_of(run.model)
    for method, few in ((smooth_cdam, {"samples": 2}), (integrated_cdam, {"steps": 3})):
        found, expected = (
            method(each, target, layer=5, place="block", **few) for each in (run, expected_run)
        )
        assert_same(found.scores, expected.scores)


@pytest.mark.parametrize("modality", ["text", "image"])
def test_checks_of_a_map_are_the_librarys(modality):
    expected_run, run = runs_of(modality)
    target = direction_of(run.model)

    def cdam_of(each: ForwardPass) -> Any:
        return explain("cdam", each, target)

    found, expected = (model_sensitivity(each, cdam_of, seed=1) for each in (run, expected_run))
    assert [stage.part for stage in found.stages] == [
        "",
        *(f"layers.{i}" for i in reversed(range(run.model.layers))),
    ]
    for stage, other in zip(found.stages, expected.stages, strict=True):
        assert stage.correlation == pytest.approx(other.correlation, abs=1e-3)
        assert stage.value == pytest.approx(other.value, abs=1e-3)
    curves, others = (faithfulness(each, target, cdam_of(each), steps=4) for each in (run, expected_run))
    np.testing.assert_allclose(curves.deletion.values, others.deletion.values, atol=1e-4)


@pytest.mark.parametrize("modality", ["text", "image"])
def test_heads_are_described_weighed_and_edited_as_the_librarys(modality):
    models, inputs = pair_of(modality), inputs_of(modality)
    tables = [survey_inputs(m, [i]).tables["encoder"].values() for m, i in zip(models, inputs, strict=True)]
    assert tables[0].keys() == tables[1].keys()
    for name, numbers in tables[1].items():
        np.testing.assert_allclose(numbers, tables[0][name], atol=1e-5, err_msg=name)
    target = direction_of(models[0])
    expected_run, run = runs_of(modality)
    weighed, expected = (gradient_importance(each, target) for each in (run, expected_run))
    assert_same(weighed["encoder"], expected["encoder"])
    effects = [ablation_effects(m, i, target, how="zero") for m, i in zip(models, inputs, strict=True)]
    assert_same(effects[1]["encoder"], effects[0]["encoder"])


def test_edited_rows_are_answered_as_by_the_librarys():
    models, inputs = pair_of("text"), inputs_of("text")
    expected, rows = (rows_of(m, i) for m, i in zip(models, inputs, strict=True))
    assert_same(rows.observed, expected.observed)
    other = torch.softmax(
        torch.randn(3, *rows.observed.shape[1:], generator=torch.Generator().manual_seed(2)), -1
    )
    assert_same(rows.answers(other[None])[0], expected.answers(other[None])[0])
    target = direction_of(models[0])
    changed = [head_effects(m, i, target, "uniform") for m, i in zip(models, inputs, strict=True)]
    assert_same(changed[1].heads, changed[0].heads)


@pytest.mark.parametrize("side", ["left", "right"])
def test_batches_padded_on_either_side_are_the_librarys(side):
    library, own = pair_of("text")
    given, valid = encode_texts(own, [SENTENCE, "Rain."], padding_side=side)
    assert torch.equal(
        given["input_ids"], encode_texts(library, [SENTENCE, "Rain."], padding_side=side)[0]["input_ids"]
    )
    with torch.no_grad():
        found, expected = own.module(**given), library.module(**given)
    assert_same(found.last_hidden_state[valid], expected.last_hidden_state[valid])


# In the app ---------------------------------------------------------------------------------------------------------


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short searches."""
    monkeypatch.setattr(adversarial_cache, "STEPS", {"projected": 3, "penalty": 3})
    monkeypatch.setattr(adversarial_cache, "CANDIDATES", 2)
    monkeypatch.setattr(adversarial_cache, "PERMUTATIONS", 6)


def page_of(page: str, model: str, **params: str) -> AppTest:
    at = AppTest.from_file(APP, default_timeout=120)
    if page == "image":
        at.switch_page("views/image.py")
    for name, value in {"v": "1", "model": model, **params}.items():
        at.query_params[name] = value
    at.run()
    return finished(settled(at))


def blobs(at: AppTest) -> list[tuple[str, dict[str, Any]]]:
    """Kind and arrays of every component on a page."""
    parts = [figures.unpack(part.proto.bytes) for part in at.get("bidi_component")]
    return [(header["kind"], arrays) for header, arrays in parts]


TEXT, PICTURE = {"t": SENTENCE}, {"sample": "cat", "side": "56"}
VIEWS = [
    ("text", "head", "head_view", TEXT),
    ("text", "model", "model_view", TEXT),
    ("text", "matrix", "matrix_view", TEXT),
    ("text", "rollout", "token_strip", TEXT),
    ("text", "evidence", "evidence_words", TEXT),
    ("text", "heads", "head_grid", {**TEXT, "over": "input"}),
    ("text", "adversarial", "attention_contrast", TEXT),
    ("image", "attention", "patch_map", {"sample": "cat"}),
    ("image", "attention", "patch_map", PICTURE),
    ("image", "model", "model_view", PICTURE),
    ("image", "rollout", "patch_map", PICTURE),
    ("image", "evidence", "evidence_maps", PICTURE),
    ("image", "heads", "head_grid", {**PICTURE, "over": "input"}),
    ("image", "adversarial", "attention_contrast", {**PICTURE, "side": "28"}),
]


@pytest.mark.parametrize(("page", "view", "kind", "params"), VIEWS)
def test_every_view_shows_what_it_shows_of_the_librarys(page, view, kind, params):
    own = MINILM_FROM_SCRATCH if page == "text" else VIT_FROM_SCRATCH
    found = page_of(page, own.name, view=view, **params)
    assert found.selectbox(key=f"{page}_model").value == own.name
    assert not found.error
    expected = page_of(page, own.backbone.name, view=view, **params)
    ours, theirs = blobs(found), blobs(expected)
    assert [each for each, _ in ours] == [each for each, _ in theirs]
    assert kind in [each for each, _ in ours]
    for (_, arrays), (_, others) in zip(ours, theirs, strict=True):
        assert arrays.keys() == others.keys()
        for name, array in arrays.items():
            np.testing.assert_allclose(
                array.astype(float),
                others[name].astype(float),
                atol=TOLERANCE,
                rtol=1e-4,
                err_msg=f"{kind}: {name}",
            )


def test_the_models_page_tells_what_computes_them():
    text = shown(opened("models"))
    for model in FROM_SCRATCH:
        assert model.title in text
        assert model.code in text
