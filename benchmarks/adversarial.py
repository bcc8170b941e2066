"""Checks of attention over many texts together, against one at a time.

    python -m benchmarks.adversarial [--repeats 5] [--texts 64] [--steps 20]

The search for adversarial attention over all texts of a batch, against a loop over the texts; either way each text is
encoded once, the starts are the same, and the results are checked to be. The paper's steps are 500; time is linear in
them. A hundred permutations as one product with the output layer applied before, against one product and one output
layer a permutation, of one text or (as the paper's program does it) of all texts. Through a transformer, a pass that
begins at the edited layer, against whole passes. Time is CPU time of one thread.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

from benchmarks.capture import loaded_model
from benchmarks.measure import cpu_seconds, print_table

if TYPE_CHECKING:
    from torch import Tensor

    from analysis.adversarial.rows import FreeRows, TextBatch
    from attn_core.models.classifier import AttentionClassifier

TEXTS, WORDS, STEPS, PERMUTATIONS = 64, 24, 20, 100

GOALS = {"search": 15.0, "permutations": 40.0}
"""How much faster together than one at a time."""


def texts(count: int) -> TextBatch:
    """Texts of the sample corpus as the classifier reads them, cut after ``WORDS`` words."""
    from analysis.adversarial.rows import text_batch
    from analysis.inputs import encode_text
    from analysis.samples import sample_corpus

    model = loaded_model("recurrent-sentiment")
    corpus = sample_corpus()
    inputs = [encode_text(model, corpus[index % len(corpus)]) for index in range(count)]
    return text_batch([each.tensors["input_ids"][0, :WORDS].tolist() for each in inputs])


def searches(module: AttentionClassifier, batch: TextBatch, steps: int) -> dict[str, Callable[[], Any]]:
    """(B, K, n) the candidates at the last step, both ways."""
    import torch

    from analysis.adversarial.rows import classifier_rows, text_batch
    from analysis.adversarial.search import penalty_search

    together = classifier_rows(module, batch)
    lengths = batch.valid.sum(-1).tolist()
    generator = torch.Generator().manual_seed(0)
    start = 3 * torch.randn(len(lengths), 5, 1, batch.tokens.shape[1], generator=generator)
    alone = [
        classifier_rows(module, text_batch([row[:length].tolist()]))
        for row, length in zip(batch.tokens, lengths, strict=True)
    ]

    def one_by_one() -> Tensor:
        found = torch.zeros(len(lengths), 5, batch.tokens.shape[1])
        for index, (rows, length) in enumerate(zip(alone, lengths, strict=True)):
            own = penalty_search(rows, steps=steps, start=start[index : index + 1, ..., :length])
            assert own.last is not None
            found[index, :, :length] = own.last[0, :, 0]
        return found

    def batched() -> Tensor:
        last = penalty_search(together, steps=steps, start=start).last
        assert last is not None
        return last[:, :, 0]

    return {"one at a time": one_by_one, "together": batched}


def permutation_ways(
    module: AttentionClassifier, batch: TextBatch, *, texts_alone: bool
) -> dict[str, Callable[[], Any]]:
    """(B, S) change of the answer, both ways.

    Args:
        texts_alone: one at a time is one text and one permutation, else one permutation of all texts.
    """
    import torch

    from analysis.adversarial.distances import total_variation
    from analysis.adversarial.permutation import permutations, random_places
    from analysis.adversarial.rows import classifier_rows

    rows = classifier_rows(module, batch)
    places = random_places(rows.inside, PERMUTATIONS, 0)
    with torch.no_grad():
        hidden = module.encode(module.embedding(batch.tokens), batch.valid)
    attention = rows.observed[:, 0]
    step = 1 if texts_alone else len(attention)

    @torch.no_grad()
    def one_by_one() -> Tensor:
        changes = []
        for first in range(0, len(attention), step):
            part = slice(first, first + step)
            said = module.classify(hidden[part], attention[part]).softmax(-1)
            permuted = (attention[part].gather(-1, places[part, each, 0]) for each in range(PERMUTATIONS))
            answers = (module.classify(hidden[part], weights).softmax(-1) for weights in permuted)
            changes.append(torch.stack([total_variation(answer, said) for answer in answers], dim=1))
        return torch.cat(changes)

    return {"one at a time": one_by_one, "together": lambda: permutations(rows, index=places).change}


def passes() -> dict[str, Callable[[], Any]]:
    """(1, S, C) answers of a picture classifier with 20 permutations of its last layer's CLS row."""
    from analysis.adversarial.permutation import permutations
    from analysis.adversarial.rows import rows_of
    from analysis.images import read_picture
    from analysis.inputs import encode_image
    from analysis.samples import PICTURE_SAMPLES, sample_picture_bytes

    model = loaded_model("picture-classifier")
    picture = read_picture(sample_picture_bytes(PICTURE_SAMPLES[0].id), name="sample")
    inputs = encode_image(model, picture, side=224)
    quick = rows_of(model, inputs)
    with patch("analysis.adversarial.rows.find_branch", lambda *_: None):
        whole = rows_of(model, inputs)

    def of(rows: FreeRows) -> Callable[[], Any]:
        return lambda: permutations(rows, count=20).change

    return {"one at a time": of(whole), "together": of(quick)}


def check_same(ways: Mapping[str, Callable[[], Any]], *, within: float) -> None:
    """Make sure that both ways give the same numbers.

    Raises:
        RuntimeError: if they differ; the times would mean nothing.
    """
    first, second = (run() for run in ways.values())
    difference = float((first - second).abs().max())
    if difference > within:
        raise RuntimeError(
            f"check_same: both ways must give the same numbers but differ by {difference:.1e}; mend the checks "
            "before measuring them."
        )


def row(title: str, ways: Mapping[str, Callable[[], Any]], goal: float | None, *, repeats: int) -> list[str]:
    """One line of the table."""
    seconds = cpu_seconds(ways, repeats=repeats)
    slow, quick = seconds.values()
    told = "–" if goal is None else f"{goal:.0f}"
    return [title, f"{1000 * slow:,.1f}", f"{1000 * quick:,.1f}", f"{slow / quick:.1f}", told]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--texts", type=int, default=TEXTS)
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args(arguments)
    module: Any = loaded_model("recurrent-sentiment").module
    batch = texts(options.texts)
    rows = []
    made = searches(module, batch, options.steps)
    check_same(made, within=1e-5)
    title = f"search, {options.texts} texts × 5 candidates, {options.steps} steps"
    rows.append(row(title, made, GOALS["search"], repeats=options.repeats))
    for alone, goal in ((True, GOALS["permutations"]), (False, None)):
        made = permutation_ways(module, batch, texts_alone=alone)
        check_same(made, within=1e-6)
        against = "one text at a time" if alone else "texts together"
        title = f"{PERMUTATIONS} permutations of {options.texts} texts, {against}"
        rows.append(row(title, made, goal, repeats=options.repeats))
    made = passes()
    check_same(made, within=1e-4)
    rows.append(
        row("20 permutations of the last layer, ViT, 385 positions", made, None, repeats=options.repeats)
    )
    print_table(
        f"Checks of attention (CPU time of one thread, median of {options.repeats})",
        ("what", "one at a time ms", "together ms", "ratio", "goal"),
        rows,
    )


if __name__ == "__main__":
    main()
