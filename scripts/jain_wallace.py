"""Print the tables of Jain & Wallace 2019 for the bundled recurrent classifiers, on the test sentences of SST.

    python -m scripts.jain_wallace DATA [NAME ...]

``DATA`` is the folder of the Stanford Sentiment Treebank. Per classifier: Kendall's τ of attention with gradients and
with leave one out (table 2 of the paper), the change under 100 permutations by largest weight (figure 6), the largest
divergence within ε by the paper's search, by the exact one and by the projected one (figures 7 and 8), and what
uniform attention costs. Predictions are at temperature 1, as the model was trained.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from analysis.adversarial.agreement import Agreement, gradient_importance, kendall, leave_one_out
from analysis.adversarial.permutation import permutations
from analysis.adversarial.rows import FreeRows, TextBatch, classifier_rows, text_batch
from analysis.adversarial.search import exact_search, penalty_search, projected_search
from analysis.inputs import encode_text
from analysis.models import load_model
from attn_core.models.classifier import AttentionClassifier
from scripts.sentiment_data import sentences
from scripts.training import f1, in_words

NAMES = ("recurrent-sentiment", "recurrent-sentiment-dot")
TOGETHER = 32
BINS = ((0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.01))
EPSILONS = (0.01, 0.05)
"""The paper's search is trained at the first, and its program evaluates at the second."""


@dataclass(frozen=True)
class Checked:
    """Numbers of every sentence, (n,) each unless said otherwise.

    Attributes:
        labels: the right classes; ``said``, ``uniform``: (n, 2) answers.
        tau: agreement of two measures, by their names.
        most, median: the largest weight, and the median change under permutations.
        jsd: by (method, ε).
        bound: the farthest there could be.
    """

    labels: Tensor
    said: Tensor
    uniform: Tensor
    tau: dict[str, Agreement]
    most: Tensor
    median: Tensor
    jsd: dict[tuple[str, float], Tensor]
    bound: Tensor


def batches(
    name: str, data: Path, limit: int | None
) -> Iterator[tuple[AttentionClassifier, TextBatch, Tensor]]:
    """The classifier, sentences of alike length together, and their right classes."""
    model = load_model(name, device="cpu")
    assert isinstance(model.module, AttentionClassifier)
    found = [
        (encode_text(model, phrase.text).tensors["input_ids"][0].tolist(), label)
        for phrase, label in sentences(data, "test")[:limit]
    ]
    found.sort(key=lambda pair: len(pair[0]))
    for first in range(0, len(found), TOGETHER):
        part = found[first : first + TOGETHER]
        yield model.module, text_batch([ids for ids, _ in part]), torch.tensor([label for _, label in part])


def check(module: AttentionClassifier, batch: TextBatch, labels: Tensor) -> Checked:
    """Every check of one batch."""
    rows = classifier_rows(module, batch)
    attention = rows.observed[:, 0]
    permuted = permutations(rows)
    gradients, without = gradient_importance(module, batch), leave_one_out(module, batch)
    return Checked(
        labels=labels,
        said=rows.said(),
        uniform=rows.answers(rows.uniform())[:, 0],
        tau={
            "attention and gradients": kendall(attention, gradients, batch.inside),
            "attention and leave one out": kendall(attention, without, batch.inside),
            "gradients and leave one out": kendall(gradients, without, batch.inside),
        },
        most=permuted.most,
        median=permuted.median,
        jsd=divergences(rows),
        bound=rows.bound(),
    )


def divergences(rows: FreeRows) -> dict[tuple[str, float], Tensor]:
    """ε-max JSD by method and ε; the paper's search is one run, read at both, and its last step alone counts."""
    paper = penalty_search(rows, epsilon=EPSILONS[0])
    assert paper.last is not None
    apart = rows.divergence(paper.last)
    change = rows.change(rows.answers(paper.last), rows.said())
    found: dict[tuple[str, float], Tensor] = {}
    for epsilon in EPSILONS:
        found["paper", epsilon] = torch.where(change <= epsilon, apart, 0.0).max(-1).values
        found["exact", epsilon] = exact_search(rows, epsilon=epsilon).farthest
        found["projected", epsilon] = projected_search(rows, epsilon=epsilon).farthest
    found["paper, best on the way", EPSILONS[0]] = paper.farthest
    return found


def joined(parts: Sequence[Checked]) -> Checked:
    """Batches as one."""

    def all_of(field: str) -> Tensor:
        return torch.cat([getattr(part, field) for part in parts])

    first = parts[0]
    tau = {
        name: Agreement(
            torch.cat([part.tau[name].tau for part in parts]), torch.cat([part.tau[name].p for part in parts])
        )
        for name in first.tau
    }
    jsd = {key: torch.cat([part.jsd[key] for part in parts]) for key in first.jsd}
    return Checked(
        all_of("labels"),
        all_of("said"),
        all_of("uniform"),
        tau,
        all_of("most"),
        all_of("median"),
        jsd,
        all_of("bound"),
    )


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table."""
    print("| " + " | ".join(columns) + " |\n| " + " | ".join("---" for _ in columns) + " |")
    for row in rows:
        print("| " + " | ".join(row) + " |")
    print(flush=True)


def tell(name: str, found: Checked) -> None:
    """Print the tables of one classifier."""
    predicted = found.said.argmax(-1)
    print(f"\n## {name}, {len(predicted):,} sentences\n")
    accuracy = in_words(int((predicted == found.labels).sum()), len(predicted))
    other = found.uniform.argmax(-1)
    flat = in_words(int((other == found.labels).sum()), len(other))
    moved = (found.uniform - found.said).abs().sum(-1) / 2
    print(f"Test {accuracy}, F1 {f1(predicted, found.labels):.3f}; with uniform attention {flat}, F1 "
          f"{f1(other, found.labels):.3f}; {int((other != predicted).sum())} predictions differ; median TVD "
          f"{float(moved.median()):.4f}\n")  # fmt: skip
    table(
        ("τ of", "all", "significant", "negative", "significant", "positive", "significant"),
        [_tau_row(what, agreement, predicted) for what, agreement in found.tau.items()],
    )
    table(
        ("largest weight", "sentences", "median TVD", "quartiles"),
        [_bin_row(found, low, high) for low, high in (*BINS, (0.0, 1.01))],
    )
    table(
        ("search", "ε", "median JSD", "quartiles", "share of the farthest possible", "above 0"),
        [_jsd_row(found, *key) for key in found.jsd],
    )
    print(f"The farthest possible: median {float(found.bound.median()):.3f}.\n", flush=True)


def _tau_row(what: str, found: Agreement, predicted: Tensor) -> list[str]:
    cells = [what]
    for chosen in (None, predicted == 0, predicted == 1):
        mean, spread = found.mean(chosen)
        cells += [f"{mean:.3f} ± {spread:.3f}", f"{100 * found.significant(chosen):.0f} %"]
    return cells


def _bin_row(found: Checked, low: float, high: float) -> list[str]:
    chosen = found.median[(found.most >= low) & (found.most < high)]
    name = "all" if high - low > 1 else f"{low:g} to {min(high, 1.0):g}"
    if not len(chosen):
        return [name, "0", "–", "–"]
    first, middle, third = (
        chosen.double().quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)).tolist()
    )
    return [name, f"{len(chosen):,}", f"{middle:.3f}", f"{first:.3f} to {third:.3f}"]


def _jsd_row(found: Checked, method: str, epsilon: float) -> list[str]:
    values = found.jsd[method, epsilon].double()
    first, middle, third = values.quantile(torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)).tolist()
    several = found.bound > 0
    share = (values[several] / found.bound[several].double()).median()
    above = f"{int((values > 0).sum()):,} of {len(values):,}"
    return [
        method,
        f"{epsilon:g}",
        f"{middle:.3f}",
        f"{first:.3f} to {third:.3f}",
        f"{100 * float(share):.0f} %",
        above,
    ]


def main(arguments: list[str] | None = None) -> None:
    """Check the named classifiers, or both."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path)
    parser.add_argument("names", nargs="*", default=list(NAMES))
    parser.add_argument("--limit", type=int, help="sentences; all where left out")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    for name in options.names:
        start = time.process_time()
        found = joined([check(*each) for each in batches(name, options.data, options.limit)])
        tell(name, found)
        print(f"{time.process_time() - start:.0f} CPU seconds", flush=True)


if __name__ == "__main__":
    main()
