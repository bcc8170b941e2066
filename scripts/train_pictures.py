"""Train the picture classifier: low-rank adapters and a head on the bundled ViT, on photographs of Caltech-101.

    python -m scripts.train_pictures DATA --output models/picture-classifier
    python -m scripts.train_pictures DATA --closed-form --output models/picture-discriminant

The second form trains nothing: its head is a linear discriminant on the features of the untouched backbone.

``DATA`` holds ``train/<class>/`` and ``test/<class>/`` photographs. The test photographs are read once, at the end;
what is chosen on the way (best epoch, temperature) is chosen on photographs that are split off the training ones.
``--tiny-imagenet`` (a folder with ``train/<wnid>/images/``) adds photographs of classes that mean the same, and of
other things, on which the classifier learns to be unsure; the model card tells what came of it.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from analysis.catalogue import VIT_S14, verify
from analysis.predictions import Familiarity
from scripts.photographs import (
    Photograph,
    as_shown,
    batches,
    class_folders,
    mixed,
    normalised,
    read_photographs,
    read_tiny_imagenet,
    readable,
    split_development,
    targets,
)
from scripts.training import (
    Schedule,
    adapt,
    area,
    calibrate,
    calibration_error,
    fit,
    fit_temperature,
    half_precision,
    in_words,
    parser_of,
    prepare,
    rounded,
    write_part,
)

TRAINED_SIDE = 112
SIDES = (98, 112, 126, 140)  # px of the squares that are trained on, and of those of the last epoch
LAST_SIDES = (140, 168, 196)
SHOWN_SIDE = 224  # px of the shorter side, as the product shows a picture unless told otherwise


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


def familiarity(
    features: Tensor, labels: Tensor, held_out: Tensor, sure: Tensor, *, width: int = 64
) -> dict[str, Tensor]:
    """What tells whether a picture is like any that was trained on (Lee et al. 2018, Mahalanobis distance).

    Args:
        features, labels: (n, F) and (n,) of training photographs.
        held_out: (m, F) features of photographs of the same classes that were not trained on.
        sure: (m,) the highest probability of each of them (Hendrycks & Gimpel 2017).
        width: of the space, the whitened leading directions within the classes, in which distances are taken.
    Returns:
        ``centre`` (F,), ``whitening`` (F, width), ``means`` (C, width); ``distances`` and ``sureness``, each (101,):
        the 0th to 100th percentile, over held-out photographs, of the distance to the nearest class mean and of the
        highest probability.
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
    steps = torch.linspace(0, 1, 101, dtype=torch.float64)
    found = {
        "centre": centre,
        "whitening": leading,
        "means": placed,
        "distances": torch.quantile(distances, steps),
        "sureness": torch.quantile(sure.double(), steps),
    }
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


def top(logits: Tensor, labels: Tensor, k: int) -> int:
    """How many labels are among the k largest logits."""
    best = logits.topk(min(k, logits.shape[-1])).indices
    return int((best == labels[:, None]).any(-1).sum())


@dataclass(frozen=True)
class Data:
    """What a run trains on and chooses by.

    Attributes:
        classes: folder names in the order of the labels.
        training, development: photographs of the classes, apart from each other.
        extra: further photographs of the classes, to train on; may be empty.
        strangers, tried: photographs of other things, to train on and to try on, of different things; may be empty.
    """

    classes: tuple[str, ...]
    training: Sequence[Photograph]
    development: Sequence[Photograph]
    extra: Sequence[Photograph] = ()
    strangers: Sequence[Photograph] = ()
    tried: Sequence[Photograph] = ()


def read_data(options: argparse.Namespace) -> Data:
    """The photographs of a run."""
    classes = class_folders(options.data / "train")
    everything = read_photographs(options.data / "train", classes, at_most=options.at_most, seed=options.seed)
    training, development = split_development(everything, each=options.development)
    print(f"{len(classes)} classes, {len(training):,} training, {len(development):,} development photographs")
    if options.tiny_imagenet is None:
        return Data(tuple(classes), training, development)
    same, strangers, tried = read_tiny_imagenet(
        options.tiny_imagenet, classes, at_most=options.at_most, seed=options.seed
    )
    print(f"{len(same):,} more of the classes, {len(strangers):,} + {len(tried):,} of other things")
    return Data(tuple(classes), training, development, same, strangers, tried)


def main(arguments: list[str] | None = None) -> None:
    """Train, evaluate and write the shipped files."""
    options = _parser().parse_args(arguments)
    prepare(options)
    data = read_data(options)
    model = build(data.classes)
    if options.closed_form:
        closed_form(model, data)
        model.requires_grad_(False)
        model.classifier.requires_grad_(True)
    else:
        start_head(model, data, options.work / "start.pt")
        train(model, data, options)
    finish(model, data, options)


def _parser() -> argparse.ArgumentParser:
    parser = parser_of(__doc__ or "", output="models/picture-classifier", work="pictures")
    parser.add_argument(
        "--closed-form", action="store_true", help="only a discriminant head; nothing is trained"
    )
    parser.add_argument(
        "--tiny-imagenet", type=Path, help="folder of Tiny ImageNet: more photographs, and strangers"
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


def start_head(model: Any, data: Data, file: Path) -> None:
    """Start the head from the discriminant on the untouched backbone, at the scale that cross entropy expects.

    Args:
        file: keeps it, since the features take minutes.
    """
    if file.is_file():
        start = torch.load(file, weights_only=True)
    else:
        _, features, labels = predict(model, data.training, short_side=TRAINED_SIDE)
        weight, bias = discriminant(features, labels, len(data.classes))
        start = {"weight": weight, "bias": bias}
        torch.save(start, file)
    model.classifier.load_state_dict(start)
    logits, _, labels = predict(model, data.development, short_side=TRAINED_SIDE)
    score = in_words(top(logits, labels, 1), len(labels))
    print(f"discriminant on the untouched backbone, development, {TRAINED_SIDE} px: {score}", flush=True)
    temperature = fit_temperature(logits, labels)
    with torch.no_grad():
        model.classifier.weight.div_(temperature)
        model.classifier.bias.div_(temperature)


def train(model: Any, data: Data, options: argparse.Namespace) -> None:
    """Train adapters and head; the model has the tensors of the best epoch afterwards."""
    adapters = adapt(
        model, lambda name: name.startswith("dinov2.encoder"), rank=options.rank, alpha=2 * options.rank
    )
    head = list(model.classifier.requires_grad_(True).parameters())
    low_rank = [p for name, p in model.named_parameters() if name.endswith((".up", ".down"))]
    groups = [{"params": low_rank, "lr": options.rate}, {"params": head, "lr": options.head_rate}]
    optimiser = torch.optim.AdamW(groups, weight_decay=0.02)
    print(f"{len(adapters)} adapters, {sum(p.numel() for p in [*low_rank, *head]):,} weights", flush=True)
    everything = [*data.training, *data.extra, *data.strangers]
    per_epoch = len(everything) // options.batch

    def epoch_batches(epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
        random = np.random.default_rng([options.seed, epoch, 1])
        sides = LAST_SIDES if epoch == options.epochs - 1 else SIDES
        for pixels, labels in batches(
            everything,
            backgrounds=data.strangers,
            size=options.batch,
            sides=sides,
            epoch=epoch,
            seed=options.seed,
        ):
            yield mixed(pixels, targets(labels, len(data.classes)), share=0.25, random=random)

    def loss(batch: tuple[Tensor, Tensor]) -> Tensor:
        pixels, target = batch
        return nn.functional.cross_entropy(model(pixel_values=pixels).logits, target, label_smoothing=0.1)

    def score() -> tuple[int, int]:
        logits, _, labels = predict(model, data.development, short_side=SHOWN_SIDE)
        return top(logits, labels, 1), len(labels)

    schedule = Schedule(options.epochs, per_epoch, look_every=per_epoch, patience=options.patience)
    fit(model, optimiser, schedule, batches=epoch_batches, loss=loss, score=score, options=options)


def closed_form(model: Any, data: Data) -> None:
    """Give the model a discriminant head on its own features; how much shrinkage is chosen on development."""
    _, features, labels = predict(model, data.training, short_side=SHOWN_SIDE)
    _, held_out, answers = predict(model, data.development, short_side=SHOWN_SIDE)
    scored = []
    for shrinkage in (0.02, 0.05, 0.1, 0.2, 0.4):
        weight, bias = discriminant(features, labels, len(data.classes), shrinkage=shrinkage)
        right = top(held_out @ weight.T + bias, answers, 1)
        print(f"shrinkage {shrinkage}: development {in_words(right, len(answers))}", flush=True)
        scored.append((right, -shrinkage, weight, bias))
    _, _, weight, bias = max(scored, key=lambda entry: entry[:2])
    model.classifier.load_state_dict({"weight": weight, "bias": bias})


@torch.no_grad()
def centre(head: nn.Linear) -> None:
    """Take from each class's weights what all classes have in common.

    Probabilities stay as they are. A logit then says how much more the class is meant than the others: what is common
    to all would otherwise drown what is not in every map of a logit's gradient.
    """
    head.weight.sub_(head.weight.mean(0))
    head.bias.sub_(head.bias.mean())


def finish(model: Any, data: Data, options: argparse.Namespace) -> None:
    """Calibrate, write the shipped files, and tell the scores on the test photographs."""
    centre(model.classifier)
    shipped = rounded(model)
    logits, held_out, labels = predict(model, data.development, short_side=SHOWN_SIDE)
    temperature = calibrate(logits, labels)
    order = np.random.default_rng(options.seed).permutation(len(data.training))[:1000]
    _, features, trained_labels = predict(model, [data.training[i] for i in order], short_side=SHOWN_SIDE)
    sure = (logits / temperature).softmax(-1).amax(-1)
    known = familiarity(features, trained_labels, held_out, sure)
    if data.tried:
        tell_strangers(model, data, known, sure, held_out, temperature)
    facts = {
        "backbone": VIT_S14.name,
        "rank": options.rank,
        "alpha": 2 * options.rank,
        "labels": [readable(name) for name in data.classes],
        "classes": list(data.classes),
        "temperature": round(temperature, 4),
    }
    write_part(options.output, facts, weights=shipped, familiarity=half_precision(known))
    test = read_photographs(options.data / "test", data.classes, at_most=10_000, seed=0)
    logits, _, labels = predict(model, test, short_side=SHOWN_SIDE)
    for k in (1, 5):
        print(f"test, {SHOWN_SIDE} px: top-{k} {in_words(top(logits, labels, k), len(labels))}")
    error = calibration_error((logits / temperature).softmax(-1), labels)
    print(f"test: calibration error {error:.3f}")


def tell_strangers(
    model: Any, data: Data, known: Mapping[str, Tensor], sure: Tensor, held_out: Tensor, temperature: float
) -> None:
    """How well each of the two signals tells the strangers that were kept from training."""
    logits, features, _ = predict(model, data.tried, short_side=SHOWN_SIDE)
    unsure = 1 - (logits / temperature).softmax(-1).amax(-1)
    record = Familiarity(**known)
    far = [record.distance(feature) for feature in features]
    near = [record.distance(feature) for feature in held_out]
    print(f"{len(data.tried)} strangers, area under the curve: distance {area(near, far):.3f}, ", end="")
    print(f"top probability {area((1 - sure).tolist(), unsure.tolist()):.3f}", flush=True)


if __name__ == "__main__":
    main()
