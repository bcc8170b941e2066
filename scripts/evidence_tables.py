"""Print the tables of docs/methods for the picture classifier: the pointing game, and faithfulness, of every method.

    python -m scripts.evidence_tables DATA pointing --collages 200 --costly 20
    python -m scripts.evidence_tables DATA faithfulness --samples 50 --costly 10

``DATA`` is the folder ``caltech101/test`` of held-out photographs, a folder a class. Pointing game (Zhang et al.
2018, on collages as in the grid pointing game of Böhle et al. 2021): two photographs of different classes stand side
by side or one above the other; for each class, does a method's map have its maximum, and most of its positive mass,
in that class's half? Chance is one half. Methods of many passes take the first ``--costly`` collages or samples.
"""

from __future__ import annotations

import argparse
import io
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from analysis.evidence.explanation import Explanation
from analysis.evidence.faithfulness import Faithfulness, faithfulness
from analysis.evidence.methods import METHODS, Method, explain
from analysis.evidence.passes import ForwardPass, forward_pass
from analysis.evidence.targets import Target, class_logit
from analysis.images import read_picture
from analysis.inputs import encode_image
from analysis.models import LoadedModel, load_model
from scripts.photographs import LEFT_OUT, readable
from scripts.training import wilson_interval

SIDE = 112
"""Pixels of a photograph's side: 8 × 8 patches; the classifier was trained at about this size."""

OPTIONS: dict[str, dict[str, Any]] = {
    "integrated_gradients": {"steps": 32},
    "smooth_grad": {"samples": 20},
    "smooth_cdam": {"samples": 30},
    "integrated_cdam": {"steps": 30},
}


@dataclass(frozen=True)
class Collage:
    """Two photographs in one picture.

    Attributes:
        pixels: (h, w, 3).
        classes: of the first half (left or upper) and the second.
        across: side by side, else one above the other.
    """

    pixels: np.ndarray
    classes: tuple[str, str]
    across: bool


def square(path: Path) -> np.ndarray:
    """The middle of a photograph, (SIDE, SIDE, 3)."""
    with Image.open(path) as opened:
        image = opened.convert("RGB")
        side = min(image.size)
        left, top = (image.width - side) // 2, (image.height - side) // 2
        box = (left, top, left + side, top + side)
        return np.asarray(image.resize((SIDE, SIDE), Image.Resampling.BICUBIC, box=box))


def photographs(folder: Path) -> dict[str, list[Path]]:
    """Files by class folder."""
    return {
        path.name: sorted(path.glob("*.jpg"))
        for path in sorted(folder.iterdir())
        if path.name not in LEFT_OUT
    }


def collages(folder: Path, count: int, *, seed: int = 0) -> Iterator[Collage]:
    """Collages of two classes, half of them side by side; the same ones for the same seed."""
    files, random = photographs(folder), np.random.default_rng(seed)
    names = list(files)
    for index in range(count):
        one, two = (names[i] for i in random.choice(len(names), size=2, replace=False))
        halves = [square(files[name][int(random.integers(len(files[name])))]) for name in (one, two)]
        across = index % 2 == 0
        yield Collage(np.concatenate(halves, axis=1 if across else 0), (one, two), across)


def passed(model: LoadedModel, pixels: np.ndarray) -> ForwardPass:
    """The shared pass of a picture at its own size."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    picture = read_picture(buffer.getvalue(), name="collage")
    return forward_pass(model, encode_image(model, picture, side=SIDE))


def target_of(model: LoadedModel, name: str) -> Target:
    """The logit of a class, by its folder."""
    label = readable(name)
    assert model.labels is not None
    return class_logit(model.labels.index(label), label)


def made(method: Method, run: ForwardPass, target: Target) -> Explanation:
    """A method's map, with the options of the tables."""
    return explain(method.key, run, target, **OPTIONS.get(method.key, {}))


def in_half(found: Explanation, *, second: bool, across: bool) -> tuple[bool, bool]:
    """Whether the maximum, and most of the positive mass, lie in a half."""
    grid = found.to_grid()
    grid = grid if across else grid.T
    middle = grid.shape[1] // 2
    own, other = (grid[:, middle:], grid[:, :middle]) if second else (grid[:, :middle], grid[:, middle:])
    positive = found.positive().sum()
    mass = own.clamp(min=0).sum() / positive if positive > 0 else torch.tensor(0.0)
    return bool(own.max() > other.max()), bool(mass > 0.5)


def pointing(model: LoadedModel, folder: Path, count: int, costly: int) -> None:
    """Print the table of the pointing game."""
    hits: dict[str, list[tuple[bool, bool]]] = defaultdict(list)
    spent: dict[str, float] = defaultdict(float)
    for number, collage in enumerate(collages(folder, count)):
        run = passed(model, collage.pixels)
        for second, name in enumerate(collage.classes):
            target = target_of(model, name)
            for method in METHODS.values():
                if number < (costly if _is_costly(method) else count):
                    start = time.process_time()
                    found = made(method, run, target)
                    spent[method.key] += time.process_time() - start
                    hits[method.key].append(in_half(found, second=bool(second), across=collage.across))
        _tell(number + 1, count)
    print("| Method | Maximum in its half | Most positive mass in its half | Maps | s a map |")
    print("| --- | --- | --- | --- | --- |")
    for key, maps in hits.items():
        first, second_column = (share_in_words([each[i] for each in maps]) for i in (0, 1))
        print(
            f"| {METHODS[key].title} | {first} | {second_column} | {len(maps)} | {spent[key] / len(maps):.2f} |"
        )


def _is_costly(method: Method) -> bool:
    return method.cost == "passes" and method.key != "input_x_gradient"


def share_in_words(hits: Sequence[bool]) -> str:
    """ "83 % (79 to 87)"."""
    low, high = wilson_interval(sum(hits), len(hits))
    return f"{100 * np.mean(hits):.0f} % ({100 * low:.0f} to {100 * high:.0f})"


def faithful(model: LoadedModel, folder: Path, count: int, costly: int) -> None:
    """Print the table of faithfulness: photographs of different classes, the target is the right class's logit."""
    rows: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    random, files = np.random.default_rng(1), photographs(folder)
    names = [list(files)[i] for i in random.permutation(len(files))[:count]]
    for number, name in enumerate(names):
        run = passed(model, square(files[name][0]))
        target = target_of(model, name)
        for method in METHODS.values():
            if number < (costly if _is_costly(method) else count):
                measured = faithfulness(run, target, made(method, run, target), steps=16, random_orders=3)
                rows[method.key].append(in_shares(measured))
        _tell(number + 1, len(names))
    print("| Method | Deletion gain | Insertion gain | Comprehensiveness | Sufficiency | Samples |")
    print("| --- | --- | --- | --- | --- | --- |")
    for key, found in rows.items():
        columns = " | ".join(
            f"{np.mean(c):+.3f} ± {np.std(c) / len(c) ** 0.5:.3f}" for c in zip(*found, strict=True)
        )
        print(f"| {METHODS[key].title} | {columns} | {len(found)} |")


def in_shares(found: Faithfulness) -> tuple[float, ...]:
    """The four numbers as shares of what the whole input adds to the target."""
    numbers = (found.deletion_gain, found.insertion_gain, found.comprehensiveness, found.sufficiency)
    scale = max(abs(found.untouched - found.empty), 1e-6)
    return tuple(number / scale for number in numbers)


def _tell(done: int, count: int) -> None:
    if done % 5 == 0 or done == count:
        print(f"<!-- {done} of {count} -->", flush=True)


def main(arguments: list[str] | None = None) -> None:
    """Print one of the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("table", choices=("pointing", "faithfulness"))
    parser.add_argument("--collages", type=int, default=200)
    parser.add_argument("--samples", type=int, default=50)
    parser.add_argument(
        "--costly", type=int, default=20, help="collages or samples of the methods of many passes"
    )
    parser.add_argument("--model", default="picture-classifier")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    model = load_model(options.model, device="cpu")
    if options.table == "pointing":
        pointing(model, options.data, options.collages, options.costly)
    else:
        faithful(model, options.data, options.samples, options.costly)


if __name__ == "__main__":
    main()
