"""Print the held-out scores of the trained models, through the same functions as the app.

    python -m scripts.evaluate DATA [NAME ...]

``DATA`` holds ``caltech101/test``, ``imagen_det200``, ``imagenet1k_samples`` and ``sst``; of the pictures of other
people, what is missing is left out and said. The figures of the model cards come from here.
"""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from analysis.images import read_picture
from analysis.inputs import encode_image, encode_text
from analysis.models import LoadedModel, load_model
from analysis.predictions import Prediction, prediction_of
from analysis.trained import TRAINED
from attn_core.taps import reading_inputs
from scripts.photographs import LEFT_OUT, STRANGER, readable
from scripts.sentiment_data import sentences
from scripts.training import area, calibration_error, f1, in_words

# Names in the ImageNet-DET pictures → ours, where both mean the same thing.
DET = {
    "accordion": "accordion", "airplane": "airplane", "ant": "ant", "butterfly": "butterfly", "car": "car",
    "chair": "chair", "cup_or_mug": "cup", "dragonfly": "dragonfly", "elephant": "elephant",
    "giant_panda": "panda", "lamp": "lamp", "laptop": "laptop", "lobster": "lobster", "motorcycle": "motorbike",
    "pizza": "pizza", "saxophone": "saxophone", "scorpion": "scorpion", "soccer_ball": "soccer ball",
    "starfish": "starfish", "strawberry": "strawberry", "tick": "tick",
}  # fmt: skip

# Names of ImageNet-1k classes → ours.
IMAGENET = {
    "dalmatian": "dalmatian", "flamingo": "flamingo", "crayfish": "crayfish", "beaver": "beaver",
    "platypus": "platypus", "chambered_nautilus": "nautilus", "revolver": "revolver", "umbrella": "umbrella",
    "loggerhead": "sea turtle", "leatherback_turtle": "sea turtle", "African_crocodile": "crocodile",
    "Dungeness_crab": "crab", "rock_crab": "crab", "fiddler_crab": "crab", "king_crab": "crab", "llama": "llama",
    "cougar": "cougar", "leopard": "leopard", "cellular_telephone": "mobile phone", "binoculars": "binoculars",
    "cannon": "cannon", "barrel": "barrel", "grand_piano": "grand piano", "electric_guitar": "electric guitar",
    "sax": "saxophone", "accordion": "accordion", "African_elephant": "elephant", "Indian_elephant": "elephant",
    "giant_panda": "panda", "American_lobster": "lobster", "spiny_lobster": "lobster", "dragonfly": "dragonfly",
    "starfish": "starfish", "soccer_ball": "soccer ball", "strawberry": "strawberry", "pizza": "pizza",
    "scorpion": "scorpion", "tick": "tick", "ant": "ant", "laptop": "laptop", "airliner": "airplane",
    "table_lamp": "lamp", "cock": "rooster", "monarch": "butterfly", "folding_chair": "chair",
    "rocking_chair": "chair", "cup": "cup", "coffee_mug": "cup", "reflex_camera": "camera",
    "Polaroid_camera": "camera", "digital_watch": "watch", "schooner": "sailing boat", "yawl": "sailing boat",
    "sports_car": "car", "convertible": "car",
}  # fmt: skip


@dataclass(frozen=True)
class Scored:
    """Predictions of a set and the right class of each, −1 for a picture of none of the classes."""

    predictions: list[Prediction]
    answers: list[int]

    def right(self, k: int) -> tuple[int, int]:
        """How many answers are among the ``k`` highest scores, of how many."""
        pairs = [pair for pair in zip(self.predictions, self.answers, strict=True) if pair[1] >= 0]
        hits = sum(answer in (index for _, _, index in found.best(k)) for found, answer in pairs)
        return hits, len(pairs)


@torch.no_grad()
def predicted(model: LoadedModel, inputs: Mapping[str, torch.Tensor]) -> Prediction:
    """What the app would say, without recording attention."""
    assert model.labels is not None
    head = torch.nn.Identity() if model.head is None else model.module.get_submodule(model.head)
    with reading_inputs(head) as entered:
        logits = model.module(**inputs).logits[0]
    return prediction_of(
        logits,
        model.labels,
        temperature=model.temperature,
        familiarity=model.familiarity,
        features=entered[0][0] if entered else None,
    )


def score_pictures(model: LoadedModel, files: Iterable[tuple[Path, int]]) -> Scored:
    """Predictions for picture files."""
    found, answers = [], []
    for path, answer in files:
        picture = read_picture(path.read_bytes(), name=path.name)
        found.append(predicted(model, encode_image(model, picture).tensors))
        answers.append(answer)
    return Scored(found, answers)


def caltech(folder: Path, labels: tuple[str, ...]) -> Iterator[tuple[Path, int]]:
    """Held-out photographs of Caltech-101."""
    for path in sorted(folder.iterdir()):
        if path.name not in LEFT_OUT:
            label = labels.index(readable(path.name))
            yield from ((file, label) for file in sorted(path.glob("*.jpg")))


def named(folder: Path, names: Mapping[str, str], labels: tuple[str, ...]) -> Iterator[tuple[Path, int]]:
    """Photographs whose file names tell the class, of the classes that are ours."""
    for path in sorted(folder.glob("*.jpg")):
        label = names.get(_spelled(path))
        if label:
            yield path, labels.index(label)


def foreign(folder: Path, names: Mapping[str, str], *, every: int) -> Iterator[tuple[Path, int]]:
    """Every so many photographs of classes that no name links to ours."""
    others = [path for path in sorted(folder.glob("*.jpg")) if _spelled(path) not in names]
    yield from ((path, STRANGER) for path in others[::every])


def _spelled(path: Path) -> str:
    return re.sub(r"^n\d+_(\d+_)?", "", path.stem)


def evaluate_pictures(model: LoadedModel, data: Path) -> None:
    """Top-1, top-5, calibration, and how well unfamiliar pictures are told."""
    assert model.labels is not None
    own = score_pictures(model, caltech(data / "caltech101" / "test", model.labels))
    tell("held-out photographs of Caltech-101", own)
    scores = torch.stack([found.scores for found in own.predictions])
    print(f"  calibration error {calibration_error(scores, torch.tensor(own.answers)):.3f}")
    strangers: list[Prediction] = []
    for name, names, every in (("imagen_det200", DET, 4), ("imagenet1k_samples", IMAGENET, 4)):
        folder = data / name
        if not folder.is_dir():
            print(f"  {name} is not there")
            continue
        tell(f"other people's photographs, {name}", score_pictures(model, named(folder, names, model.labels)))
        strangers += score_pictures(model, foreign(folder, names, every=every)).predictions
    others = Scored(strangers, [STRANGER] * len(strangers))
    if model.familiarity is not None and strangers:
        for what, groups in (
            (
                "highest probability",
                ([1 - float(p.scores.max()) for p in g.predictions] for g in (own, others)),
            ),
            ("distance of features", ([p.share_nearer or 0.0 for p in g.predictions] for g in (own, others))),
        ):
            print(f"  strangers told by {what}: area under the curve {area(*groups):.3f}")
        warned = [sum(found.unfamiliar for found in group.predictions) for group in (others, own)]
        print(f"  warned: {in_words(warned[0], len(strangers))} of strangers, ", end="")
        print(f"{in_words(warned[1], len(own.predictions))} of held-out photographs")


def tell(what: str, scored: Scored) -> None:
    """Top-1 and top-5 of a set."""
    for k in (1, 5):
        print(f"  {what}: top-{k} {in_words(*scored.right(k))}", flush=True)


def evaluate_texts(model: LoadedModel, data: Path) -> None:
    """Accuracy and F1 on the test sentences."""
    assert model.labels is not None
    test = sentences(data / "sst", "test")
    found = [predicted(model, encode_text(model, phrase.text).tensors) for phrase, _ in test]
    answers = torch.tensor([label for _, label in test])
    scores = torch.stack([prediction.scores for prediction in found])
    choice = scores.argmax(-1)
    print(
        f"  test sentences: {in_words(int((choice == answers).sum()), len(answers))}, F1 {f1(choice, answers):.3f}"
    )
    print(f"  calibration error {calibration_error(scores, answers):.3f}")


def main(arguments: list[str] | None = None) -> None:
    """Evaluate the named models, or all."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("names", nargs="*", default=[])
    options = parser.parse_args(arguments)
    for trained in TRAINED:
        if options.names and trained.name not in options.names:
            continue
        print(trained.title, flush=True)
        start = time.monotonic()
        model = load_model(trained.name, device="cpu")
        (evaluate_pictures if model.modality == "image" else evaluate_texts)(model, options.data)
        print(f"  {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
