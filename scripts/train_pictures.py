"""Train the picture classifier: low-rank adapters and a head on the bundled ViT, on photographs of Caltech-101.

    python -m scripts.train_pictures DATA --output models/picture-classifier
    python -m scripts.train_pictures DATA --closed-form --output models/picture-discriminant

The second form trains nothing: its head is a linear discriminant on the features of the untouched backbone.

``DATA`` holds ``train/<class>/`` and ``test/<class>/`` photographs. The test photographs are read once, at the end;
what is chosen on the way (best epoch, temperature) is chosen on photographs that are split off the training ones.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch import Tensor, nn

from analysis.catalogue import VIT_S14, verify
from analysis.conversion import IMAGENET_MEAN, IMAGENET_STD
from scripts.training import (
    Progress,
    adapt,
    calibration_error,
    fit_temperature,
    half_precision,
    in_words,
    parser_of,
    prepare,
    restore,
    resume,
    save_checkpoint,
    settings_of,
    trained_tensors,
    warm_cosine,
    write_part,
)

# Doubles of another class, drawings, and what is no everyday thing; decided before anything was trained.
LEFT_OUT = frozenset(
    {
        "BACKGROUND_Google", "Faces_easy", "cougar_body", "crocodile_head", "flamingo_head", "windsor_chair",
        "snoopy", "garfield", "yin_yang", "schooner", "water_lilly", "brontosaurus", "stegosaurus", "trilobite",
        "gerenuk", "okapi", "mayfly", "euphonium", "ewer",
    }
)  # fmt: skip

READABLE = {
    "Faces": "face", "Leopards": "leopard", "Motorbikes": "motorbike", "airplanes": "airplane", "bass": "bass (fish)",
    "binocular": "binoculars", "car_side": "car", "cellphone": "mobile phone", "cougar_face": "cougar",
    "dollar_bill": "dollar bill", "hawksbill": "sea turtle", "headphone": "headphones", "ibis": "ibis",
    "ketch": "sailing boat", "lotus": "water lily", "rhino": "rhinoceros", "sea_horse": "seahorse", "watch": "watch",
    "buddha": "Buddha statue", "joshua_tree": "Joshua tree", "brain": "brain (picture of)", "cannon": "cannon",
    "wild_cat": "wild cat", "crab": "crab", "tick": "tick", "nautilus": "nautilus",
}  # fmt: skip

PATCH = 14
TRAINED_SIDE = 112
SIDES = (98, 112, 126, 140)  # px of the squares that are trained on, and of those of the last epoch
LAST_SIDES = (140, 168, 196)
SHOWN_SIDE = 224  # px of the shorter side, as the product shows a picture unless told otherwise


@dataclass(frozen=True)
class Photograph:
    """A decoded photograph: pixels (height, width, 3), class index, and where it came from."""

    pixels: np.ndarray
    label: int
    name: str


def class_folders(folder: Path) -> list[str]:
    """Names of the classes that take part, sorted."""
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name not in LEFT_OUT)


def readable(folder: str) -> str:
    """A class's name as the interface shows it."""
    return READABLE.get(folder, folder.replace("_", " "))


def read_photographs(folder: Path, classes: Sequence[str], *, at_most: int, seed: int) -> list[Photograph]:
    """At most so many photographs of each class, the same ones for the same seed."""
    found = []
    for label, name in enumerate(classes):
        files = sorted((folder / name).glob("*.jpg"))
        order = np.random.default_rng([seed, label]).permutation(len(files))[:at_most]
        for index in sorted(order):
            with Image.open(files[index]) as image:
                pixels = np.asarray(image.convert("RGB"))
            found.append(Photograph(pixels, label, f"{name}/{files[index].name}"))
    return found


def augmented(photograph: Photograph, side: int, random: np.random.Generator) -> np.ndarray:
    """A random crop (0.35 to 1 of the area), mirrored half of the time, with changed light; (side, side, 3)."""
    height, width, _ = photograph.pixels.shape
    area = height * width * random.uniform(0.35, 1.0)
    aspect = np.exp(random.uniform(np.log(3 / 4), np.log(4 / 3)))
    wide, tall = min(int((area * aspect) ** 0.5), width), min(int((area / aspect) ** 0.5), height)
    left, top = random.integers(0, width - wide + 1), random.integers(0, height - tall + 1)
    image = Image.fromarray(photograph.pixels)
    image = image.resize((side, side), Image.Resampling.BILINEAR, box=(left, top, left + wide, top + tall))
    for enhancer in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
        image = enhancer(image).enhance(float(random.uniform(0.6, 1.4)))
    if random.random() < 0.1:
        image = image.convert("L").convert("RGB")
    pixels = np.asarray(image)
    return pixels[:, ::-1] if random.random() < 0.5 else pixels


def normalised(pixels: np.ndarray) -> Tensor:
    """(B, side, side, 3) bytes → (B, 3, side, side) as the backbone takes them."""
    scaled = torch.from_numpy(np.ascontiguousarray(pixels)).float().div_(255)
    scaled = (scaled - torch.tensor(IMAGENET_MEAN)) / torch.tensor(IMAGENET_STD)
    return scaled.permute(0, 3, 1, 2).contiguous()


def batches(
    photographs: Sequence[Photograph], *, size: int, sides: Sequence[int], epoch: int, seed: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """One epoch of augmented batches, each of one random side."""
    random = np.random.default_rng([seed, epoch])
    order = random.permutation(len(photographs))
    for start in range(0, len(order) - size + 1, size):
        chosen = [photographs[index] for index in order[start : start + size]]
        side = int(random.choice(sides))
        pixels = normalised(np.stack([augmented(photograph, side, random) for photograph in chosen]))
        labels = torch.tensor([photograph.label for photograph in chosen])
        yield pixels, labels


def mixed(
    pixels: Tensor, labels: Tensor, classes: int, *, random: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """Targets (B, C); a quarter of the batches get a rectangle of another picture (Yun et al. 2019, CutMix)."""
    target = nn.functional.one_hot(labels, classes).float()
    if random.random() >= 0.25:
        return pixels, target
    side = pixels.shape[-1]
    cut = int(side * (1 - random.uniform(0.4, 0.9)) ** 0.5)
    top, left = random.integers(0, side - cut + 1, size=2)
    other = torch.from_numpy(random.permutation(len(labels)))
    pixels = pixels.clone()
    pixels[:, :, top : top + cut, left : left + cut] = pixels[other][:, :, top : top + cut, left : left + cut]
    share = 1 - cut**2 / side**2
    return pixels, share * target + (1 - share) * target[other]


def as_shown(photograph: Photograph, short_side: int) -> np.ndarray:
    """The photograph as the product shows it to the model: shape kept, sides multiples of the patch; (h, w, 3)."""
    height, width, _ = photograph.pixels.shape
    scale = short_side / min(height, width)
    sides = [max(round(length * scale / PATCH), 1) * PATCH for length in (height, width)]
    image = Image.fromarray(photograph.pixels).resize((sides[1], sides[0]), Image.Resampling.BICUBIC)
    return np.asarray(image)


@torch.no_grad()
def predict(
    model: Any, photographs: Sequence[Photograph], *, short_side: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Logits (n, C), the features that enter the head (n, 2M), and labels (n,), in the order given."""
    model.eval()
    logits: list[Tensor] = [torch.empty(0)] * len(photographs)
    features: list[Tensor] = [torch.empty(0)] * len(photographs)
    shown = [as_shown(photograph, short_side) for photograph in photographs]
    by_shape: dict[tuple[int, ...], list[int]] = {}
    for index, pixels in enumerate(shown):
        by_shape.setdefault(pixels.shape, []).append(index)
    for indices in by_shape.values():
        for start in range(0, len(indices), 16):
            part = indices[start : start + 16]
            hidden = model.dinov2(normalised(np.stack([shown[index] for index in part]))).last_hidden_state
            pooled = torch.cat([hidden[:, 0], hidden[:, 1:].mean(1)], dim=-1)
            for index, feature, row in zip(part, pooled, model.classifier(pooled), strict=True):
                features[index], logits[index] = feature, row
    return (
        torch.stack(logits),
        torch.stack(features),
        torch.tensor([photograph.label for photograph in photographs]),
    )


def discriminant(
    features: Tensor, labels: Tensor, classes: int, *, shrinkage: float = 0.1
) -> tuple[Tensor, Tensor]:
    """Weight (C, F) and bias (C,) of linear discriminant analysis with shrinkage towards the mean variance."""
    features = features.double()
    means = torch.stack([features[labels == each].mean(0) for each in range(classes)])
    centred = features - means[labels]
    covariance = centred.T @ centred / len(features)
    size = covariance.shape[0]
    target = covariance.diagonal().mean() * torch.eye(size, dtype=torch.float64)
    covariance = (1 - shrinkage) * covariance + shrinkage * target
    weight = torch.linalg.solve(covariance, means.T).T
    return weight.float(), (-0.5 * (weight * means).sum(-1)).float()


def familiarity(features: Tensor, labels: Tensor, held_out: Tensor, *, width: int = 64) -> dict[str, Tensor]:
    """What tells whether a picture is like any that was trained on (Lee et al. 2018, Mahalanobis distance).

    Args:
        features, labels: (n, F) and (n,) of training photographs.
        held_out: (m, F) features of photographs of the same classes that were not trained on.
        width: of the space, the whitened leading directions within the classes, in which distances are taken.
    Returns:
        ``centre`` (F,), ``whitening`` (F, width), ``means`` (C, width), and ``distances`` (101,): the 0th to 100th
        percentile of the distance from a held-out photograph to the nearest class mean.
    """
    features = features.double()
    classes = int(labels.max()) + 1
    means = torch.stack([features[labels == each].mean(0) for each in range(classes)])
    within = features - means[labels]
    variances, directions = torch.linalg.eigh(within.T @ within / len(features))
    leading = directions[:, -width:] / variances[-width:].sqrt()
    centre = features.mean(0)
    placed = (means - centre) @ leading
    distances = torch.cdist((held_out.double() - centre) @ leading, placed).amin(-1)
    percentiles = torch.quantile(distances, torch.linspace(0, 1, 101, dtype=torch.float64))
    found = {"centre": centre, "whitening": leading, "means": placed, "distances": percentiles}
    return {name: tensor.float().contiguous() for name, tensor in found.items()}


def build(classes: Sequence[str]) -> Any:
    """The backbone with a head for these classes."""
    from transformers import Dinov2Config, Dinov2ForImageClassification, Dinov2Model

    folder = verify(VIT_S14)
    backbone = Dinov2Model.from_pretrained(folder)
    config = Dinov2Config.from_pretrained(folder)
    config.num_labels = len(classes)
    model = Dinov2ForImageClassification(config)
    model.dinov2.load_state_dict(backbone.state_dict())
    return model


def split_development(
    photographs: Sequence[Photograph], *, each: int
) -> tuple[list[Photograph], list[Photograph]]:
    """Training and development photographs: the last ``each`` of a class are for development."""
    by_class: dict[int, list[Photograph]] = {}
    for photograph in photographs:
        by_class.setdefault(photograph.label, []).append(photograph)
    training = [photograph for group in by_class.values() for photograph in group[:-each]]
    development = [photograph for group in by_class.values() for photograph in group[-each:]]
    return training, development


def top(logits: Tensor, labels: Tensor, k: int) -> int:
    """How many labels are among the k largest logits."""
    return int((logits.topk(k).indices == labels[:, None]).any(-1).sum())


def main(arguments: list[str] | None = None) -> None:
    """Train, evaluate and write the shipped files."""
    options = _parser().parse_args(arguments)
    prepare(options)
    classes = class_folders(options.data / "train")
    everything = read_photographs(options.data / "train", classes, at_most=options.at_most, seed=options.seed)
    training, development = split_development(everything, each=options.development)
    print(f"{len(classes)} classes, {len(training):,} training, {len(development):,} development photographs")
    model = build(classes)
    if options.closed_form:
        closed_form(model, training, development, classes)
        model.requires_grad_(False)
        model.classifier.requires_grad_(True)
    else:
        start_head(model, training, development, classes, options.work / "start.pt")
        train(model, training, development, classes, options)
    finish(model, training, development, classes, options)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(__doc__ or "", output="models/picture-classifier", work="pictures")
    parser.add_argument(
        "--closed-form", action="store_true", help="only a discriminant head; nothing is trained"
    )
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--rate", type=float, default=5e-4)
    parser.add_argument("--head-rate", type=float, default=1e-3)
    parser.add_argument("--rank", type=int, default=12)
    parser.add_argument(
        "--at-most", type=int, default=45, help="photographs of a class, development ones included"
    )
    parser.add_argument(
        "--development", type=int, default=4, help="of these, photographs of a class not trained on"
    )
    parser.add_argument("--patience", type=int, default=3, help="epochs without a better development score")
    return parser


def start_head(
    model: Any,
    training: Sequence[Photograph],
    development: Sequence[Photograph],
    classes: Sequence[str],
    file: Path,
) -> None:
    """Start the head from the discriminant on the untouched backbone, at the scale that cross entropy expects.

    Args:
        file: keeps it, since the features take minutes.
    """
    if file.is_file():
        start = torch.load(file, weights_only=True)
    else:
        _, features, labels = predict(model, training, short_side=TRAINED_SIDE)
        weight, bias = discriminant(features, labels, len(classes))
        start = {"weight": weight, "bias": bias}
        torch.save(start, file)
    model.classifier.load_state_dict(start)
    logits, _, labels = predict(model, development, short_side=TRAINED_SIDE)
    score = in_words(top(logits, labels, 1), len(labels))
    print(f"discriminant on the untouched backbone, development, {TRAINED_SIDE} px: {score}", flush=True)
    temperature = fit_temperature(logits, labels)
    with torch.no_grad():
        model.classifier.weight.div_(temperature)
        model.classifier.bias.div_(temperature)


def train(
    model: Any,
    training: Sequence[Photograph],
    development: Sequence[Photograph],
    classes: Sequence[str],
    options: argparse.Namespace,
) -> None:
    """Train adapters and head; the model has the tensors of the best epoch afterwards."""
    adapters = adapt(
        model, lambda name: name.startswith("dinov2.encoder"), rank=options.rank, alpha=2 * options.rank
    )
    head = list(model.classifier.requires_grad_(True).parameters())
    low_rank = [p for name, p in model.named_parameters() if name.endswith((".up", ".down"))]
    groups = [{"params": low_rank, "lr": options.rate}, {"params": head, "lr": options.head_rate}]
    optimiser = torch.optim.AdamW(groups, weight_decay=0.02)
    rates = [group["lr"] for group in optimiser.param_groups]
    print(f"{len(adapters)} adapters, {sum(p.numel() for p in [*low_rank, *head]):,} weights", flush=True)
    checkpoint = options.work / "checkpoint.pt"
    run = resume(checkpoint, model, optimiser, settings_of(options))
    per_epoch = len(training) // options.batch
    steps = options.epochs * per_epoch
    progress, first = Progress(steps - run.step), run.step
    for epoch in range(run.step // per_epoch, options.epochs):
        last = epoch == options.epochs - 1
        random = np.random.default_rng([options.seed, epoch, 1])
        model.train()
        sides = LAST_SIDES if last else SIDES
        for pixels, labels in batches(
            training, size=options.batch, sides=sides, epoch=epoch, seed=options.seed
        ):
            for group, rate in zip(optimiser.param_groups, rates, strict=True):
                group["lr"] = rate * warm_cosine(run.step, steps)
            pixels, target = mixed(pixels, labels, len(classes), random=random)
            loss = nn.functional.cross_entropy(model(pixel_values=pixels).logits, target, label_smoothing=0.1)
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_([*low_rank, *head], 1.0)
            optimiser.step()
            run.step += 1
            progress.tell(run.step - first, float(loss.detach()))
        logits, _, labels = predict(model, development, short_side=max(sides) if last else TRAINED_SIDE)
        right = top(logits, labels, 1)
        better = run.look(right / len(labels), model)
        score = in_words(right, len(labels))
        print(f"epoch {epoch}: development {score}{' *' if better else ''}", flush=True)
        save_checkpoint(checkpoint, run, model, optimiser, settings_of(options))
        if run.waited >= options.patience:
            print("stopped: the development score has not risen", flush=True)
            break
    restore(model, run.best)


def closed_form(
    model: Any, training: Sequence[Photograph], development: Sequence[Photograph], classes: Sequence[str]
) -> None:
    """Give the model a discriminant head on its own features; how much shrinkage is chosen on development."""
    _, features, labels = predict(model, training, short_side=SHOWN_SIDE)
    _, held_out, answers = predict(model, development, short_side=SHOWN_SIDE)
    scored = []
    for shrinkage in (0.02, 0.05, 0.1, 0.2, 0.4):
        weight, bias = discriminant(features, labels, len(classes), shrinkage=shrinkage)
        right = top(held_out @ weight.T + bias, answers, 1)
        print(f"shrinkage {shrinkage}: development {in_words(right, len(answers))}", flush=True)
        scored.append((right, -shrinkage, weight, bias))
    _, _, weight, bias = max(scored, key=lambda entry: entry[:2])
    model.classifier.load_state_dict({"weight": weight, "bias": bias})


def finish(
    model: Any,
    training: Sequence[Photograph],
    development: Sequence[Photograph],
    classes: Sequence[str],
    options: argparse.Namespace,
) -> None:
    """Calibrate, write the shipped files, and tell the scores on the test photographs."""
    shipped = half_precision(trained_tensors(model))
    restore(model, {name: tensor.float() for name, tensor in shipped.items()})
    logits, held_out, labels = predict(model, development, short_side=SHOWN_SIDE)
    temperature = fit_temperature(logits, labels)
    calibration = calibration_error((logits / temperature).softmax(-1), labels)
    print(f"development, {SHOWN_SIDE} px: {in_words(top(logits, labels, 1), len(labels))}", flush=True)
    print(f"temperature {temperature:.3f}, calibration error on development {calibration:.3f}", flush=True)
    order = np.random.default_rng(options.seed).permutation(len(training))[:1000]
    _, features, trained_labels = predict(model, [training[i] for i in order], short_side=SHOWN_SIDE)
    known = familiarity(features, trained_labels, held_out)
    facts = {
        "backbone": VIT_S14.name,
        "rank": options.rank,
        "alpha": 2 * options.rank,
        "labels": [readable(name) for name in classes],
        "classes": list(classes),
        "temperature": round(temperature, 4),
    }
    write_part(options.output, facts, weights=shipped, familiarity=half_precision(known))
    test = read_photographs(options.data / "test", classes, at_most=10_000, seed=0)
    logits, _, labels = predict(model, test, short_side=SHOWN_SIDE)
    for k in (1, 5):
        print(f"test, {SHOWN_SIDE} px: top-{k} {in_words(top(logits, labels, k), len(labels))}")
    error = calibration_error((logits / temperature).softmax(-1), labels)
    print(f"test: calibration error {error:.3f}")


if __name__ == "__main__":
    main()
