"""Trained parts: merging into a backbone, what is refused, and that the shipped ones say what they said."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch.testing import assert_close
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    Dinov2Config,
    Dinov2ForImageClassification,
    Dinov2Model,
)

from analysis import trained
from analysis.catalogue import MINILM, VIT_S14, BundledFile
from analysis.errors import ModelUnavailableError
from analysis.hf.trained import familiarity_of, with_trained_part
from analysis.trained import TrainedModel, TrainedPart, verified_part
from attn_core.errors import UnsupportedModelError
from scripts.train_pictures import familiarity
from scripts.training import adapt, restore, trained_tensors

LABELS = ["one", "two", "three"]
SIZES = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}


def tiny_classifier(kind: str) -> tuple[torch.nn.Module, torch.nn.Module, dict[str, torch.Tensor]]:
    """A classifier with trained adapters, a backbone with the same frozen weights, and an input."""
    torch.manual_seed(0)
    if kind == "image":
        config = Dinov2Config(image_size=28, patch_size=14, num_labels=3, **SIZES)
        model, backbone = Dinov2ForImageClassification(config), Dinov2Model(config)
        base, given = model.dinov2, {"pixel_values": torch.randn(2, 3, 28, 42)}
    else:
        config = BertConfig(vocab_size=50, num_labels=3, **SIZES)
        model, backbone = BertForSequenceClassification(config), BertModel(config)
        base, given = model.bert, {"input_ids": torch.randint(0, 50, (2, 7))}
    backbone.load_state_dict(base.state_dict())
    adapt(model, lambda name: "encoder" in name, rank=3, alpha=6)
    model.classifier.requires_grad_(True)
    tensors = {name: torch.randn_like(tensor) * 0.3 for name, tensor in trained_tensors(model).items()}
    restore(model, tensors)
    return model.eval(), backbone.eval(), given


def part_of(
    folder: Path, tensors: dict[str, torch.Tensor], kind: str = "image", **facts: object
) -> TrainedPart:
    """A trained part in a folder, with its hashes pinned."""
    save_file(tensors, folder / "weights.safetensors")
    told = {"rank": 3, "alpha": 6, "labels": LABELS, "temperature": 1.5, **facts}
    (folder / "trained.json").write_text(json.dumps(told))
    files = tuple(
        BundledFile(path.name, path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(folder.iterdir())
    )
    model = TrainedModel(
        name="tiny",
        title="Tiny classifier",
        modality="image" if kind == "image" else "text",
        backbone=VIT_S14 if kind == "image" else MINILM,
        version="1",
        folder=str(folder),  # joining an absolute path leaves TRAINED_FOLDER out
        files=files,
        licence="MIT",
        citation="none",
        source="none",
        description="none",
    )
    return TrainedPart(model, folder / "weights.safetensors", told)


@pytest.mark.parametrize("kind", ["image", "text"])
@torch.no_grad()
def test_merging_gives_what_the_adapters_gave(kind: str, tmp_path: Path) -> None:
    model, backbone, given = tiny_classifier(kind)
    expected = model(**given).logits
    before = backbone(**given).last_hidden_state
    merged, task = with_trained_part(backbone, part_of(tmp_path, trained_tensors(model), kind))
    assert task == f"{'image' if kind == 'image' else 'sequence'}-classification"
    assert_close(merged.eval()(**given).logits, expected, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(backbone(**given).last_hidden_state, before)  # the updates are in the backbone
    assert merged.config.id2label == dict(enumerate(LABELS))
    assert not [name for name, weight in merged.named_parameters() if weight.is_meta]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors: tensors.pop("classifier.bias"), "lacks classifier.bias"),
        (lambda tensors: tensors.update(extra=torch.zeros(2)), "holds extra with shape"),
        (
            lambda tensors: tensors.update({"classifier.bias": torch.zeros(4)}),
            r"classifier.bias with shape \(4,\), but the model has shape \(3,\)",
        ),
    ],
)
def test_a_part_that_does_not_belong_is_refused(change, message, tmp_path: Path) -> None:
    model, backbone, _ = tiny_classifier("image")
    tensors = trained_tensors(model)
    change(tensors)
    with pytest.raises(UnsupportedModelError, match=message):
        with_trained_part(backbone, part_of(tmp_path, tensors))


@pytest.mark.parametrize("file", ["weights.safetensors", "trained.json"])
def test_a_tampered_file_is_not_loaded(file: str, tmp_path: Path) -> None:
    model, _, _ = tiny_classifier("image")
    part = part_of(tmp_path, trained_tensors(model))
    assert verified_part(part.model).labels == tuple(LABELS)
    data = bytearray((tmp_path / file).read_bytes())
    data[-1] ^= 1
    (tmp_path / file).write_bytes(data)
    with pytest.raises(ModelUnavailableError, match=f"{file} is not the published file"):
        verified_part(part.model)
    (tmp_path / file).unlink()
    with pytest.raises(ModelUnavailableError, match=f"{file} cannot be read"):
        verified_part(part.model)


def test_familiarity_is_the_distance_to_the_nearest_class_in_whitened_space(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(3).repeat_interleave(200)
    centres = torch.tensor([[8.0, 0, 0, 0], [0, 8.0, 0, 0], [0, 0, 8.0, 0]])
    spread = torch.tensor([1.0, 2.0, 0.5, 4.0])
    features = centres[labels] + torch.randn(600, 4, generator=generator) * spread
    sure = torch.linspace(0.5, 1.0, 300)
    known = familiarity(features[::2], labels[::2], features[1::2], sure, width=4)
    save_file(known, tmp_path / "familiarity.safetensors")
    part = part_of(tmp_path, {"classifier.bias": torch.zeros(3)})
    found = familiarity_of(part)
    assert found is not None
    scaled = (features[::2] - centres[labels[::2]]) / spread
    assert_close(
        scaled.std(0), torch.ones(4), atol=0.1, rtol=0.1
    )  # the planted spread is what whitening undoes
    point = torch.tensor(
        [8.0, 0.0, 0.0, 12.0]
    )  # three deviations from the first class, along the widest direction
    assert found.distance(point) == pytest.approx(3.0, abs=0.4)
    assert found.share_nearer(centres[1]) < 0.1
    assert found.share_nearer(torch.full((4,), 60.0)) == 1.0
    assert found.share_surer(0.75) == pytest.approx(0.5, abs=0.02)
    assert (found.share_surer(0.4), found.share_surer(1.0)) == (1.0, 0.0)
    held_out = torch.stack([torch.tensor(found.share_nearer(row)) for row in features[1::2]])
    assert held_out.mean() == pytest.approx(0.5, abs=0.02)  # percentiles of these very examples


def test_the_shipped_parts_are_the_pinned_ones() -> None:
    for model in trained.TRAINED:
        part = verified_part(model)
        assert len(part.labels) == len(set(part.labels))
        assert (model.path / "README.md").is_file()
        assert model.size < 3 * 2**20
