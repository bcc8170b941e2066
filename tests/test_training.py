"""The training scripts: an interrupted run goes on as if it had not been; each script trains and writes its files."""

from __future__ import annotations

import argparse
import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import nn
from torch.testing import assert_close

from analysis.catalogue import MINILM, VIT_S14, is_installed
from scripts import photographs, train_pictures, train_recurrent, train_sentiment
from scripts.photographs import STRANGER, Photograph, batches, mixed, targets
from scripts.training import (
    Schedule,
    area,
    calibration_error,
    f1,
    fit,
    fit_temperature,
    resume,
    trained_tensors,
    warm_cosine,
    wilson_interval,
)


class Interrupted(Exception):
    """Somebody pulled the plug."""


def toy(work: Path, *, stop_at: int | None = None, epochs: int = 3) -> tuple[nn.Module, list[int]]:
    """Fit a small network with dropout on random numbers; the model and the steps this run took."""
    torch.manual_seed(0)
    work.mkdir(exist_ok=True)
    model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.3), nn.Linear(16, 2))
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.05)
    taken: list[int] = []

    def epoch_batches(epoch: int):
        random = np.random.default_rng(epoch)
        for _ in range(10):
            yield torch.from_numpy(random.standard_normal((8, 4), dtype=np.float32))

    def loss(batch):
        if stop_at is not None and len(taken) == stop_at:
            raise Interrupted
        taken.append(1)
        return nn.functional.cross_entropy(model(batch), (batch[:, 0] > 0).long())

    def score():
        model.eval()
        with torch.no_grad():
            fixed = torch.from_numpy(np.random.default_rng(99).standard_normal((50, 4), dtype=np.float32))
            return int((model(fixed).argmax(-1) == (fixed[:, 0] > 0).long()).sum()), 50

    options = argparse.Namespace(work=work, epochs=epochs, seed=0)
    schedule = Schedule(epochs, 10, look_every=4, patience=99)
    fit(model, optimiser, schedule, batches=epoch_batches, loss=loss, score=score, options=options)
    return model, taken


@pytest.mark.parametrize("stop_at", [5, 13, 28])
def test_an_interrupted_run_goes_on_as_if_it_had_not_been(tmp_path, stop_at):
    whole, steps = toy(tmp_path / "whole")
    assert len(steps) == 30
    with pytest.raises(Interrupted):
        toy(tmp_path / "cut", stop_at=stop_at)
    resumed, rest = toy(tmp_path / "cut")
    assert len(rest) == 30 - stop_at // 4 * 4  # from the last look on
    assert_close(trained_tensors(resumed), trained_tensors(whole), rtol=0, atol=0)


def test_a_checkpoint_of_other_settings_is_refused(tmp_path):
    with pytest.raises(Interrupted):
        toy(tmp_path, stop_at=9)
    with pytest.raises(
        ValueError, match=r"other settings \(epochs\); give the same ones, or delete the file"
    ):
        toy(tmp_path, epochs=4)
    model = nn.Linear(2, 2)
    assert resume(tmp_path / "none.pt", model, torch.optim.SGD(model.parameters()), {}).step == 0


def test_training_stops_when_the_score_no_longer_rises(tmp_path):
    model = nn.Linear(2, 2)
    scores = iter([5, 7, 6, 7, 4, 9])
    seen: list[torch.Tensor] = []

    def score():
        seen.append(model.weight.detach().clone())
        return next(scores), 10

    run = fit(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        Schedule(10, 2, look_every=1, patience=3, rate=lambda *_: 1.0),
        batches=lambda _: iter([torch.ones(1, 2), -torch.ones(1, 2)]),
        loss=lambda batch: model(batch).square().sum() + model.weight.sum(),
        score=score,
        options=argparse.Namespace(work=tmp_path),
    )
    assert [value for _, value in run.history] == [0.5, 0.7, 0.6, 0.7, 0.4]
    assert_close(model.weight.detach(), seen[1])  # the tensors of the best look, the earlier of two alike


def test_schedule_and_scores_follow_their_definitions():
    rates = [warm_cosine(step, 100) for step in range(100)]
    assert rates[0] == pytest.approx(1 / 6)
    assert max(rates) == 1.0
    assert rates.index(1.0) == 5
    assert rates[-1] < 0.001
    low, high = wilson_interval(8, 10)
    assert (low, high) == pytest.approx((0.4902, 0.9433), abs=1e-4)  # Wilson 1927, as in the textbooks
    assert f1(torch.tensor([1, 1, 0, 0]), torch.tensor([1, 0, 1, 0])) == 0.5
    assert area([0.1, 0.2], [0.2, 0.9]) == 0.875
    sure = torch.tensor([[0.9, 0.1], [0.9, 0.1]])
    assert calibration_error(sure, torch.tensor([0, 1])) == pytest.approx(0.4)
    torch.manual_seed(0)
    logits = torch.randn(4000, 3) * 2
    labels = torch.distributions.Categorical(logits=logits / 2.5).sample()
    assert fit_temperature(logits, labels) == pytest.approx(2.5, rel=0.1)
    assert fit_temperature(logits, logits.argmax(-1)) == pytest.approx(
        0.05
    )  # all right: as sure as is allowed
    assert fit_temperature(logits, logits.argmin(-1)) == pytest.approx(20.0)


def test_a_stranger_is_trained_towards_nothing_in_particular():
    found = targets(torch.tensor([2, STRANGER]), 4)
    assert_close(found, torch.tensor([[0.0, 0, 1, 0], [0.25, 0.25, 0.25, 0.25]]))
    pixels = torch.arange(2.0).reshape(2, 1, 1, 1).expand(2, 3, 28, 28)
    cut, target = mixed(pixels, targets(torch.tensor([0, 1]), 2), share=1.0, random=np.random.default_rng(1))
    shares = (cut == pixels).float().mean((1, 2, 3))
    assert_close(target.amax(-1), shares)  # as much of a class as there is of its picture
    assert 0 < float(shares[0]) < 1


@pytest.mark.parametrize("with_scenes", [True, False])
def test_batches_are_the_same_for_the_same_seed_and_keep_labels(with_scenes):
    random = np.random.default_rng(0)
    pictures = [
        Photograph(random.integers(0, 256, (20 + i, 30, 3), dtype=np.uint8), i - 1, str(i)) for i in range(5)
    ]
    scenes = pictures[:1] if with_scenes else []
    runs = [
        list(batches(pictures, backgrounds=scenes, size=2, sides=(28, 42), epoch=3, seed=0)) for _ in range(2)
    ]
    for (pixels, labels), (again, same) in zip(*runs, strict=True):
        assert_close(pixels, again, rtol=0, atol=0)
        assert labels.tolist() == same.tolist()
        assert pixels.shape[-1] in (28, 42)
        assert torch.isfinite(pixels).all()
    assert len({int(label) for _, labels in runs[0] for label in labels}) == 4


def test_a_centred_head_says_the_same_and_has_nothing_in_common():
    head, features = nn.Linear(6, 4), torch.randn(9, 6)
    with torch.no_grad():
        head.weight += 5.0
        before = head(features)
    train_pictures.centre(head)
    after = head(features)
    assert_close(after.softmax(-1), before.softmax(-1), rtol=1e-4, atol=1e-6)
    assert_close(after.sum(-1), torch.zeros(9), rtol=0, atol=1e-4)


# Each script on a handful of examples.


def trees(folder: Path) -> Path:
    """A treebank of simple sentences."""
    folder.mkdir()
    good, bad = ("fine", "lovely", "great", "warm"), ("dull", "awful", "bad", "cold")
    for part, count in (("train", 24), ("dev", 8), ("test", 8)):
        lines = []
        for index in range(count):
            label, word = (4, good[index % 4]) if index % 2 else (0, bad[index // 2 % 4])
            lines.append(f"({label} (2 (2 The) (2 film)) ({label} (2 is) ({label} {word})))")
        with gzip.open(folder / f"trees.{part}.txt.gz", "wt") as file:
            file.write("\n".join(lines) + "\n")
    return folder


@pytest.mark.skipif(not is_installed(MINILM), reason="the bundled BERT is not installed; run `make bundled`")
@pytest.mark.parametrize(
    ("script", "options"),
    [
        (train_recurrent, ["--width", "8", "--batch", "8", "--epochs", "2"]),
        (train_recurrent, ["--width", "8", "--batch", "8", "--epochs", "2", "--scoring", "scaled_dot"]),
        (train_sentiment, ["--epochs", "1", "--tokens", "60", "--rank", "2", "--looks", "2"]),
    ],
)
def test_text_scripts_train_and_resume_to_the_same_bytes(tmp_path, capsys, script, options):
    data = trees(tmp_path / "sst")
    written = []
    for number in range(2):
        output, work = tmp_path / f"out{number}", tmp_path / "work"
        script.main(
            [
                str(data),
                "--output",
                str(output),
                "--work",
                str(work),
                "--threads",
                "1",
                "--seed",
                "3",
                *options,
            ]
        )
        written.append((output / "weights.safetensors").read_bytes())
    assert written[0] == written[1]  # the second run only reads the last checkpoint
    facts = json.loads((output / "trained.json").read_text())
    assert facts["labels"] == ["negative", "positive"]
    assert facts["temperature"] > 0
    told = capsys.readouterr().out
    assert told.count("test: ") == 2
    assert "BundledFile(" in told


def pictures(folder: Path) -> Path:
    """Two classes that a child tells apart, and strangers."""
    random = np.random.default_rng(0)

    def write(path: Path, colour: int) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 60, (60, 80, 3), dtype=np.uint8)
        if colour >= 0:
            pixels[15:45, 20:60, colour] = 250
        Image.fromarray(pixels).save(path)

    for name, colour in (("barrel", 0), ("pizza", 2)):
        for part, count in (("train", 5), ("test", 2)):
            for index in range(count):
                write(folder / part / name / f"{index}.jpg", colour)
    for wnid, colour in (("n02795169", 0), *((f"n0000000{index}", -1) for index in range(6))):
        for index in range(5):
            write(folder / "tiny" / "train" / wnid / "images" / f"{index}.JPEG", colour)
    return folder


@pytest.mark.skipif(not is_installed(VIT_S14), reason="the bundled ViT is not installed; run `make bundled`")
def test_the_picture_script_trains_with_strangers_and_writes_what_the_app_loads(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(photographs, "TINY_SAME", {"n02795169": "barrel"})
    for name in ("SIDES", "LAST_SIDES"):
        monkeypatch.setattr(train_pictures, name, (28, 42))
    monkeypatch.setattr(train_pictures, "SHOWN_SIDE", 56)
    data, output = pictures(tmp_path / "data"), tmp_path / "out"
    common = [str(data), "--output", str(output), "--threads", "1", "--development", "2", "--at-most", "5"]
    train_pictures.main(
        [*common, "--work", str(tmp_path / "work"), "--tiny-imagenet", str(data / "tiny"), "--epochs", "1",
         "--batch", "4", "--rank", "2"]
    )  # fmt: skip
    told = capsys.readouterr().out
    assert "5 more of the classes, 5 + 1 of other things" in told
    assert "1 strangers, area under the curve" in told
    facts = json.loads((output / "trained.json").read_text())
    assert facts["labels"] == ["barrel", "pizza"]
    known = load_file(output / "familiarity.safetensors")
    assert set(known) == {"centre", "whitening", "means", "distances", "sureness"}
    train_pictures.main([*common, "--work", str(tmp_path / "none"), "--closed-form"])
    assert set(load_file(output / "weights.safetensors")) == {"classifier.weight", "classifier.bias"}
    assert "shrinkage 0.1" in capsys.readouterr().out
