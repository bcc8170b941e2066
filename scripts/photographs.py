"""Photographs that the picture classifier is trained and tested on: reading, augmenting, batches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch import Tensor, nn

from analysis.conversion import IMAGENET_MEAN, IMAGENET_STD

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

# Tiny ImageNet: classes that mean the same as one of Caltech-101's.
TINY_SAME = {
    "n01770393": "scorpion", "n01983481": "lobster", "n01984695": "lobster", "n02125311": "cougar_face",
    "n02268443": "dragonfly", "n02279972": "butterfly", "n02281406": "butterfly", "n02504458": "elephant",
    "n02795169": "barrel", "n02814533": "car_side", "n02841315": "binocular", "n02950826": "cannon",
    "n03100240": "car_side", "n03637318": "lamp", "n03670208": "car_side", "n04099969": "chair",
    "n04285008": "car_side", "n04507155": "umbrella", "n07873807": "pizza",
}  # fmt: skip

# Tiny ImageNet: classes that may show one of ours (people's faces, alligators, cats, stop watches, desks ...).
TINY_DOUBTFUL = frozenset(
    {
        "n01698640", "n01768244", "n02123045", "n02123394", "n02124075", "n02509815", "n02669723", "n02730930",
        "n02791270", "n02837789", "n02883205", "n02927161", "n02963159", "n03085013", "n03089624", "n03179701",
        "n03201208", "n03404251", "n03424325", "n03444034", "n03447447", "n03584254", "n03599486", "n03617480",
        "n03662601", "n03763968", "n03770439", "n03814639", "n03837869", "n03838899", "n03854065", "n03902125",
        "n03980874", "n04251144", "n04259630", "n04328186", "n04356056", "n04371430", "n04486054", "n04532106",
        "n04562935", "n06596364", "n07920052", "n02948072", "n02699494", "n04254777", "n03796401", "n03977966",
    }
)  # fmt: skip

STRANGER = -1
"""Label of a photograph of none of the classes."""

PATCH = 14


@dataclass(frozen=True)
class Photograph:
    """A decoded photograph: pixels (height, width, 3), class index, and where it came from."""

    pixels: np.ndarray
    label: int
    name: str


def readable(folder: str) -> str:
    """A class's name as the interface shows it."""
    return READABLE.get(folder, folder.replace("_", " "))


def class_folders(folder: Path) -> list[str]:
    """Names of the classes that take part, sorted."""
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name not in LEFT_OUT)


def read_photographs(folder: Path, classes: Sequence[str], *, at_most: int, seed: int) -> list[Photograph]:
    """At most so many photographs of each class, the same ones for the same seed."""
    found = []
    for label, name in enumerate(classes):
        files = _some(sorted((folder / name).glob("*.jpg")), at_most, [seed, label])
        found += [_decoded(file, label) for file in files]
    return found


def read_tiny_imagenet(
    folder: Path, classes: Sequence[str], *, at_most: int, seed: int
) -> tuple[list[Photograph], list[Photograph], list[Photograph]]:
    """Photographs of Tiny ImageNet, 64 px: of our classes, strangers to train on, strangers to try on.

    Every sixth class of strangers is kept for trying: none of its photographs is trained on.

    Args:
        folder: holds ``train/<wnid>/images/``.
        at_most: photographs of one of our classes; of a stranger's class, a fifth.
    """
    same, strangers, tried = [], [], []
    others = 0
    for number, path in enumerate(sorted((folder / "train").iterdir())):
        files = sorted((path / "images").glob("*.JPEG"))
        if path.name in TINY_SAME:
            label = classes.index(TINY_SAME[path.name])
            same += [_decoded(file, label) for file in _some(files, at_most, [seed, number])]
        elif path.name not in TINY_DOUBTFUL:
            few = [_decoded(file, STRANGER) for file in _some(files, at_most // 5, [seed, number])]
            others += 1
            if others % 6:
                strangers += few
            else:
                tried += few
    return same, strangers, tried


def _some(files: Sequence[Path], at_most: int, seed: Sequence[int]) -> list[Path]:
    order = np.random.default_rng(seed).permutation(len(files))[:at_most]
    return [files[index] for index in sorted(order)]


def _decoded(file: Path, label: int) -> Photograph:
    with Image.open(file) as image:
        return Photograph(np.asarray(image.convert("RGB")), label, f"{file.parent.name}/{file.name}")


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


class Augmenter:
    """Changes a photograph as another photographer might have taken it.

    Args:
        backgrounds: photographs of other things, in front of which an object is put now and then. Where there are
            none, photographs are neither put before another scene nor made coarse nor turned.
        random: source of every choice.
    """

    def __init__(self, backgrounds: Sequence[Photograph], random: np.random.Generator) -> None:
        self.backgrounds = backgrounds
        self.random = random

    def __call__(self, photograph: Photograph, side: int) -> np.ndarray:
        """(side, side, 3): a crop, or the whole before another scene; mirrored, with other light, and so on."""
        random = self.random
        if self.backgrounds and photograph.label != STRANGER and random.random() < 0.3:
            image = self._before_another_scene(photograph, side)
        else:
            image = self._crop(photograph, side)
        if (
            random.random() < 0.4
        ):  # as coarse as a small picture, so that coarseness tells nothing of the class
            coarse = int(random.integers(40, 80))
            image = image.resize((coarse, coarse), Image.Resampling.BILINEAR)
            image = image.resize((side, side), Image.Resampling.BILINEAR)
        for enhancer in (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color):
            image = enhancer(image).enhance(float(random.uniform(0.6, 1.4)))
        if random.random() < 0.1:
            image = image.convert("L").convert("RGB")
        if self.backgrounds and random.random() < 0.2:
            image = image.rotate(float(random.uniform(-25, 25)), Image.Resampling.BILINEAR, expand=False)
        pixels = np.asarray(image)
        return pixels[:, ::-1] if random.random() < 0.5 else pixels

    def _crop(self, photograph: Photograph, side: int) -> Image.Image:
        """0.35 to 1 of the area."""
        height, width, _ = photograph.pixels.shape
        area = height * width * self.random.uniform(0.35, 1.0)
        aspect = np.exp(self.random.uniform(np.log(3 / 4), np.log(4 / 3)))
        wide, tall = min(int((area * aspect) ** 0.5), width), min(int((area / aspect) ** 0.5), height)
        left, top = self.random.integers(0, width - wide + 1), self.random.integers(0, height - tall + 1)
        image = Image.fromarray(photograph.pixels)
        return image.resize((side, side), Image.Resampling.BILINEAR, box=(left, top, left + wide, top + tall))

    def _before_another_scene(self, photograph: Photograph, side: int) -> Image.Image:
        """The whole photograph at 0.45 to 0.8 of the side, somewhere on a photograph of something else."""
        scene = self._crop(self.backgrounds[int(self.random.integers(len(self.backgrounds)))], side)
        height, width, _ = photograph.pixels.shape
        scale = side * self.random.uniform(0.45, 0.8) / max(height, width)
        wide, tall = max(int(width * scale), 8), max(int(height * scale), 8)
        small = Image.fromarray(photograph.pixels).resize((wide, tall), Image.Resampling.BICUBIC)
        scene.paste(
            small,
            (int(self.random.integers(0, side - wide + 1)), int(self.random.integers(0, side - tall + 1))),
        )
        return scene


def normalised(pixels: np.ndarray) -> Tensor:
    """(B, side, side, 3) bytes → (B, 3, side, side) as the backbone takes them."""
    scaled = torch.from_numpy(np.ascontiguousarray(pixels)).float().div_(255)
    scaled = (scaled - torch.tensor(IMAGENET_MEAN)) / torch.tensor(IMAGENET_STD)
    return scaled.permute(0, 3, 1, 2).contiguous()


def batches(
    photographs: Sequence[Photograph],
    *,
    backgrounds: Sequence[Photograph] = (),
    size: int,
    sides: Sequence[int],
    epoch: int,
    seed: int,
) -> Iterator[tuple[Tensor, Tensor]]:
    """One epoch of augmented batches, each of one random side: pixels (B, 3, side, side), labels (B,)."""
    random = np.random.default_rng([seed, epoch])
    augment = Augmenter(backgrounds, random)
    order = random.permutation(len(photographs))
    for start in range(0, len(order) - size + 1, size):
        chosen = [photographs[index] for index in order[start : start + size]]
        side = int(random.choice(sides))
        pixels = normalised(np.stack([augment(photograph, side) for photograph in chosen]))
        yield pixels, torch.tensor([photograph.label for photograph in chosen])


def targets(labels: Tensor, classes: int) -> Tensor:
    """(B, C): the class, or nothing in particular for a stranger (Hendrycks et al. 2019, outlier exposure)."""
    known = nn.functional.one_hot(labels.clamp(min=0), classes).float()
    return torch.where((labels == STRANGER)[:, None], torch.full_like(known, 1 / classes), known)


def mixed(
    pixels: Tensor, target: Tensor, *, share: float, random: np.random.Generator
) -> tuple[Tensor, Tensor]:
    """This share of the batches gets a rectangle of another picture (Yun et al. 2019, CutMix)."""
    if random.random() >= share:
        return pixels, target
    side = pixels.shape[-1]
    cut = int(side * (1 - random.uniform(0.4, 0.9)) ** 0.5)
    top, left = random.integers(0, side - cut + 1, size=2)
    other = torch.from_numpy(random.permutation(len(target)))
    pixels = pixels.clone()
    pixels[:, :, top : top + cut, left : left + cut] = pixels[other][:, :, top : top + cut, left : left + cut]
    own = 1 - cut**2 / side**2
    return pixels, own * target + (1 - own) * target[other]


def as_shown(photograph: Photograph, short_side: int) -> np.ndarray:
    """The photograph as the product shows it to the model: shape kept, sides multiples of the patch; (h, w, 3)."""
    height, width, _ = photograph.pixels.shape
    scale = short_side / min(height, width)
    sides = [max(round(length * scale / PATCH), 1) * PATCH for length in (height, width)]
    image = Image.fromarray(photograph.pixels).resize((sides[1], sides[0]), Image.Resampling.BICUBIC)
    return np.asarray(image)
