"""Print the tables of docs/methods for the picture classifier: the pointing game, and faithfulness, of every method.

    python -m scripts.evidence_tables DATA pointing --rows pointing.jsonl
    python -m scripts.evidence_tables DATA faithfulness --rows faithfulness.jsonl

Every row (a method on a collage or sample) is kept in ``--rows`` as it is computed; a run that was stopped goes on
where it was, and several runs with other ``--methods`` may share the work. ``--print`` prints what is there.

``DATA`` is the folder ``caltech101/test`` of held-out photographs, a folder a class. Pointing game (Zhang et al.
2018, on collages as in the grid pointing game of Böhle et al. 2021): two photographs of different classes stand side
by side or one above the other; for each class, does a method's map have its maximum, and most of its positive mass,
in that class's half? Chance is one half.
"""

from __future__ import annotations

import argparse
import io
import json
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from analysis.evidence.explanation import Explanation
from analysis.evidence.faithfulness import Faithfulness, faithfulness, random_curves
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


Row = dict[str, Any]


def pointing_rows(model: LoadedModel, collage: Collage, methods: Sequence[str]) -> Iterator[Row]:
    """For each class of a collage and each method: whether its half holds the maximum, and most positive mass."""
    run = passed(model, collage.pixels)
    for second, name in enumerate(collage.classes):
        target = target_of(model, name)
        for key in methods:
            start = time.process_time()
            found = made(METHODS[key], run, target)
            spent = time.process_time() - start
            most, mass = in_half(found, second=bool(second), across=collage.across)
            yield {"method": key, "class": name, "maximum": most, "mass": mass, "seconds": round(spent, 3)}


def pointing_table(rows: Sequence[Row]) -> Iterator[str]:
    """Lines of the table of the pointing game, the best first."""
    yield "| method | maximum in its half | most positive mass in its half | maps | s a map |"
    yield "| --- | --- | --- | --- | --- |"
    kept = by_method(rows)
    for key in sorted(kept, key=lambda key: -float(np.mean([row["mass"] for row in kept[key]]))):
        found = kept[key]
        shares = [share_in_words([row[name] for row in found]) for name in ("maximum", "mass")]
        seconds = np.mean([row["seconds"] for row in found])
        yield f"| {METHODS[key].title} | {' | '.join(shares)} | {len(found)} | {seconds:.2f} |"


def share_in_words(hits: Sequence[bool]) -> str:
    """ "83 % (79 to 87)"."""
    low, high = wilson_interval(sum(hits), len(hits))
    return f"{100 * np.mean(hits):.0f} % ({100 * low:.0f} to {100 * high:.0f})"


def faithful_rows(model: LoadedModel, path: Path, methods: Sequence[str]) -> Iterator[Row]:
    """The four numbers of each method on a photograph, for the logit of its class; random orders are shared."""
    run = passed(model, square(path))
    target = target_of(model, path.parent.name)
    chance = random_curves(run, target)
    for key in methods:
        found = faithfulness(run, target, made(METHODS[key], run, target), chance=chance)
        yield {"method": key, "class": path.parent.name, **in_shares(found), "verdict": found.verdict}


def faithful_table(rows: Sequence[Row]) -> Iterator[str]:
    """Lines of the table of faithfulness, the best mean of both gains first."""
    names = ("deletion_gain", "insertion_gain", "comprehensiveness", "sufficiency")
    yield "| method | deletion gain | insertion gain | comprehensiveness | sufficiency | better than random in both |"
    yield "| --- | --- | --- | --- | --- | --- |"
    kept = by_method(rows)

    def both(key: str) -> float:
        return float(np.mean([row["deletion_gain"] + row["insertion_gain"] for row in kept[key]]))

    for key in sorted(kept, key=both, reverse=True):
        found = kept[key]
        columns = []
        for name in names:
            values = np.array([row[name] for row in found])
            columns.append(f"{values.mean():+.3f} ± {values.std(ddof=1) / len(values) ** 0.5:.3f}")
        better = sum(row["verdict"] == "better than random orders" for row in found)
        yield f"| {METHODS[key].title} | {' | '.join(columns)} | {better} of {len(found)} |"


def in_shares(found: Faithfulness) -> dict[str, float]:
    """The four numbers as shares of what the whole input adds to the target."""
    scale = max(abs(found.untouched - found.empty), 1e-6)
    return {
        "deletion_gain": found.deletion_gain / scale,
        "insertion_gain": found.insertion_gain / scale,
        "comprehensiveness": found.comprehensiveness / scale,
        "sufficiency": found.sufficiency / scale,
    }


def by_method(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """Rows of each method."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[row["method"]].append(row)
    return found


# Rows that are kept ------------------------------------------------------------------------------------------------


def read_rows(path: Path) -> list[Row]:
    """Rows of a file; a last line that was cut off is left out."""
    lines = path.read_text().splitlines(keepends=True) if path.exists() else []
    return [row for line in lines if line.endswith("\n") for row in json.loads(line)]


def compute(
    path: Path,
    items: Iterable[Any],
    methods: Sequence[str],
    rows_of: Callable[[Any, Sequence[str]], Iterator[Row]],
) -> None:
    """Add the rows that are not there, a line an item."""
    done = {(row["item"], row["method"]) for row in read_rows(path)}
    with path.open("a") as file:
        if path.stat().st_size and not path.read_bytes().endswith(b"\n"):
            file.truncate(path.read_bytes().rfind(b"\n") + 1)
        for number, item in enumerate(items):
            missing = [key for key in methods if (number, key) not in done]
            if not missing:
                continue
            rows = [{"item": number, **row} for row in rows_of(item, missing)]
            file.write(json.dumps(rows) + "\n")
            file.flush()
            print(f"{number + 1}: {', '.join(missing)}", flush=True)


def samples(folder: Path, count: int) -> list[Path]:
    """The first photograph of ``count`` classes, drawn by a seed."""
    random, files = np.random.default_rng(1), photographs(folder)
    return [files[list(files)[i]][0] for i in random.permutation(len(files))[:count]]


def main(arguments: list[str] | None = None) -> None:
    """Compute what is missing of one of the tables, and print it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("table", choices=("pointing", "faithfulness"))
    parser.add_argument("--rows", type=Path, required=True, help="JSON lines, read and added to")
    parser.add_argument("--items", type=int, help="collages (200) or samples (50)")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--print", action="store_true", help="compute nothing")
    parser.add_argument("--model", default="picture-classifier")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    if not options.print:
        model = load_model(options.model, device="cpu")
        if options.table == "pointing":
            items: Iterable[Any] = collages(options.data, options.items or 200)
            rows_of = partial(pointing_rows, model)
        else:
            items = samples(options.data, options.items or 50)
            rows_of = partial(faithful_rows, model)
        compute(options.rows, items, options.methods, rows_of)
    table = pointing_table if options.table == "pointing" else faithful_table
    print("\n".join(table(read_rows(options.rows))))


if __name__ == "__main__":
    main()
