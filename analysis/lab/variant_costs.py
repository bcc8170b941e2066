"""Time, memory and operations of exact attention and of its variants against the length of the sequence.

    python -m analysis.lab.variant_costs '{"variants": ["exact", "linear"], "sizes": [64, 128]}'

prints one JSON object a measurement. The app runs this in a process of its own (``measured``), so that one thread
does the work, nothing else of the server stands in its memory, and it can be stopped.

* time: CPU time of the one thread, median of the repeats; the variants of one size run in turn, so that a busy
  machine disturbs them alike; one round before is not counted;
* memory: the most bytes of tensors alive at once beyond what is given, as PyTorch's profiler records every
  allocation and release, temporary ones inside an operator too; runs agree to a few kilobytes;
* operations: of the matrix products, by the formulas of ``attn_core.cost``.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from analysis.figure_lab import Curve, CurvePanel, CurveSheet
from analysis.growth import FITTED_FROM, growth, power_in_words
from analysis.lab.variants import TITLES, Variant, VariantSettings, hue_of, percent
from attn_core.cost import (
    AttentionShape,
    fast_weight_cost,
    flash_cost,
    linear_cost,
    linformer_cost,
    reformer_cost,
    written_out_cost,
)
from attn_core.flash import flash_attention
from attn_core.functional import attention
from attn_core.mask_rules import block_sparse_rule
from attn_core.variants.fast_weights import fast_weight_attention
from attn_core.variants.linear import linear_attention
from attn_core.variants.linformer import linformer_attention
from attn_core.variants.reformer import chunked_lsh_attention, random_rotations
from attn_core.variants.sparse import band_layout, block_sparse_attention

Costed = Literal[Variant, "fused"]
"""A variant, or exact attention by the fused operator, which keeps no weights."""

COST_TITLES: Mapping[Costed, str] = MappingProxyType(
    {
        "exact": "Exact, written out",
        "fused": "Exact, fused",
        "linear": TITLES["linear"],
        "fast_weights": TITLES["fast_weights"],
        "linformer": TITLES["linformer"],
        "reformer": TITLES["reformer"],
        "window": TITLES["window"],
        "block": TITLES["block"],
    }
)
SIZES = (64, 128, 256, 512, 1024, 2048, 4096)
WIDTH = 64
CHUNK = 64
"""Positions a chunk of Reformer, whose buckets grow with n (2 n / buckets = chunk), and a block of the window."""
REPEATS = 5


@dataclass(frozen=True)
class CostPlan:
    """What is measured.

    Attributes:
        variants: in this order; ``sizes``: n, rising.
        settings: of the variants.
        repeats: whose median is taken.
    """

    variants: tuple[Costed, ...]
    sizes: tuple[int, ...] = SIZES
    settings: VariantSettings = field(default_factory=VariantSettings)
    repeats: int = REPEATS


@dataclass(frozen=True)
class Measurement:
    """One variant at one length.

    Attributes:
        seconds: CPU time of one thread, median.
        memory: most bytes of tensors alive at once beyond query, key, value and what is drawn beforehand.
        flops: operations of one pass.
    """

    variant: Costed
    size: int
    seconds: float
    memory: int
    flops: int


def runs_of(variant: Costed, size: int, settings: VariantSettings) -> Callable[[], Tensor]:
    """One pass of a variant over random vectors of one head, (1, 1, n, WIDTH); what it draws is drawn before.

    Raises:
        ValueError: if there is no such variant.
    """
    if variant not in get_args(Variant) and variant != "fused":
        raise ValueError(f"runs_of: variant must be one of {', '.join(COST_TITLES)} but is {variant!r}.")
    query, key, value = torch.randn(3, 1, 1, size, WIDTH, generator=settings.generator()).unbind()
    if variant in ("exact", "fused"):
        whole = attention if variant == "exact" else flash_attention
        return lambda: whole(query, key, value).context
    if variant in ("linear", "fast_weights"):
        return _sums(variant, query, key, value, settings)
    if variant == "linformer":
        projections = settings.projections(size)
        return lambda: linformer_attention(query, key, value, *projections).context
    if variant == "reformer":
        rotations = random_rotations(WIDTH, _buckets(size), settings.hashes, generator=settings.generator())
        return lambda: chunked_lsh_attention(query, value, rotations, chunk=CHUNK).context
    if variant == "window":
        rule = settings.window_rule
        band = band_layout(rule, queries=size, keys=size, block_size=CHUNK)
        return lambda: block_sparse_attention(query, key, value, band, block_size=CHUNK, rule=rule).context
    layout = settings.layout(size)
    return lambda: block_sparse_attention(query, key, value, layout, block_size=settings.block).context


def _sums(
    variant: Costed, query: Tensor, key: Tensor, value: Tensor, settings: VariantSettings
) -> Callable[[], Tensor]:
    """Linear attention or fast weights; making the features is part of the work."""

    def run() -> Tensor:
        queries, keys, name = settings.feature_vectors(query, key)
        feature_map: Any = name
        if variant == "linear":
            return linear_attention(queries, keys, value, feature_map=feature_map).context
        return fast_weight_attention(queries, keys, value, feature_map=feature_map, key_norm="sum").context

    return run


def operations(variant: Costed, size: int, settings: VariantSettings) -> int:
    """FLOPs of one pass, by the formulas of ``attn_core.cost``; a sparse rule is counted by the pair."""
    shape = AttentionShape(1, 1, 1, size, size, WIDTH, WIDTH, 4)
    features = settings.count if settings.features == "random" else WIDTH
    if variant == "exact":
        return written_out_cost(shape).flops
    if variant == "fused":
        return flash_cost(shape).flops
    if variant == "linear":
        return linear_cost(shape, features=features).flops
    if variant == "fast_weights":
        return fast_weight_cost(replace(shape, width=features), write_rule="delta").flops
    if variant == "linformer":
        return linformer_cost(shape, projected=settings.projections(size)[0].shape[0]).flops
    if variant == "reformer":
        return reformer_cost(shape, buckets=_buckets(size), rounds=settings.hashes, chunk=CHUNK).flops
    if variant == "window":
        return flash_cost(shape, rule=settings.window_rule).flops
    rule = block_sparse_rule(settings.layout(size), block_size=settings.block)
    return flash_cost(shape, rule=rule).flops


def _buckets(size: int) -> int:
    """Buckets of Reformer: two for each chunk, an even number."""
    buckets = max(2 * size // CHUNK, 2)
    return buckets - buckets % 2


def peak_tensor_bytes(run: Callable[[], Any]) -> int:
    """Most bytes of tensors alive at once while ``run`` ran, its result included, beyond what was there before.

    PyTorch's profiler writes down every allocation and release on the CPU; the greatest running total is the peak.
    What an operator allocates and frees inside itself counts too. Memory that is not a tensor's does not.

    Raises:
        RuntimeError: if the profiler writes no allocations.
    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        held = run()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "trace.json"
        recorded.export_chrome_trace(str(file))
        events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    del held
    steps = [(event["ts"], event["args"]["Bytes"]) for event in events if event.get("name") == "[memory]"]
    if not steps:
        raise RuntimeError(
            "peak_tensor_bytes: PyTorch's profiler wrote no allocations; use a build with Kineto."
        )
    total = peak = 0
    for _, size in sorted(steps, key=lambda step: step[0]):
        total += size
        peak = max(peak, total)
    return peak


def measurements(plan: CostPlan) -> Iterator[Measurement]:
    """Each variant at each length, in this process and thread; the variants of one length run in turn."""
    with torch.inference_mode():
        for size in plan.sizes:
            runs = {variant: runs_of(variant, size, plan.settings) for variant in plan.variants}
            taken: dict[Costed, list[float]] = {variant: [] for variant in runs}
            for round_number in range(plan.repeats + 1):
                for variant, run in runs.items():
                    start = time.thread_time()
                    run()
                    if round_number:
                        taken[variant].append(time.thread_time() - start)
            for variant, run in runs.items():
                yield Measurement(
                    variant,
                    size,
                    statistics.median(taken[variant]),
                    peak_tensor_bytes(run),
                    operations(variant, size, plan.settings),
                )


def measured(plan: CostPlan, progress: Callable[[float], None]) -> tuple[Measurement, ...]:
    """The same in a process of its own with one thread.

    Args:
        progress: is told the share that is done, by the pairs of queries and keys; what it raises ends the process
            and comes out.
    Raises:
        RuntimeError: if the process fails.
    """
    command = [sys.executable, "-m", "analysis.lab.variant_costs", json.dumps(asdict(plan))]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    found: list[Measurement] = []
    whole = sum(size**2 for size in plan.sizes) * len(plan.variants)
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as errors,
        subprocess.Popen(
            command,
            cwd=Path(__file__).resolve().parents[2],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            progress(0.0)
            for line in process.stdout:
                found.append(Measurement(**json.loads(line)))
                progress(sum(each.size**2 for each in found) / whole)
        except BaseException:
            process.kill()
            raise
        if process.wait() != 0:
            errors.seek(0)
            raise RuntimeError(f"measured: the measuring process failed: {errors.read()[-400:]}")
    return tuple(found)


# What it says ----------------------------------------------------------------------------------------------------


def series(found: Sequence[Measurement], variant: Costed) -> tuple[Measurement, ...]:
    """The measurements of one variant, by length."""
    return tuple(sorted((each for each in found if each.variant == variant), key=lambda each: each.size))


def cost_sheet(found: Sequence[Measurement], notes: Sequence[str] = ()) -> CurveSheet:
    """Time, memory and operations against n on logarithmic axes, with lines of n and n²."""
    panels = []
    readings: tuple[tuple[str, str, Callable[[Measurement], float]], ...] = (
        ("Time", "milliseconds, one thread", lambda each: 1e3 * each.seconds),
        ("Memory", "MiB at the peak", lambda each: each.memory / 2**20),
        ("Operations", "million FLOPs", lambda each: each.flops / 1e6),
    )
    for title, unit, read in readings:
        curves = []
        for variant in dict.fromkeys(each.variant for each in found):
            own = series(found, variant)
            curves.append(
                Curve(
                    COST_TITLES[variant],
                    np.array([each.size for each in own], dtype=np.float64),
                    np.array([read(each) for each in own], dtype=np.float64),
                    hue=len(TITLES) if variant == "fused" else hue_of(variant),
                )
            )
        panels.append(CurvePanel(title, "n", unit, (*curves, *_theory(curves)), log_x=True, log_y=True))
    return CurveSheet(tuple(panels), title=f"one head of width {WIDTH}", notes=tuple(notes))


def _theory(curves: Sequence[Curve]) -> tuple[Curve, ...]:
    """Lines n² and n through the last point of the dearest and of the cheapest curve."""
    if not curves:
        return ()
    lines = []
    for name, power, pick in (("~ n²", 2, max), ("~ n", 1, min)):
        anchor = pick(curves, key=lambda curve: curve.y[-1])
        x = anchor.x
        lines.append(
            Curve(name, x, anchor.y[-1] * (x / x[-1]) ** power, style="dashed", hue=len(TITLES) + power)
        )
    return tuple(lines)


COST_HEADER = ("Variant", "Time", "grows as", "Memory", "grows as", "MFLOPs", "grows as")


def cost_rows(found: Sequence[Measurement]) -> tuple[tuple[str, ...], ...]:
    """A line for each variant at the greatest length, with the fitted exponents."""
    rows = []
    for variant in dict.fromkeys(each.variant for each in found):
        own = series(found, variant)
        last, sizes = own[-1], [each.size for each in own]
        rows.append(
            (
                COST_TITLES[variant],
                f"{1e3 * last.seconds:,.2f} ms",
                power_in_words(growth(sizes, [each.seconds for each in own])),
                f"{last.memory / 2**20:,.2f} MiB",
                power_in_words(growth(sizes, [each.memory for each in own])),
                f"{last.flops / 1e6:,.1f}",
                power_in_words(growth(sizes, [each.flops for each in own])),
            )
        )
    return tuple(rows)


def cost_conclusions(found: Sequence[Measurement]) -> tuple[str, ...]:
    """What the measurements say: how exact attention grows, what is quickest, and from which length on it pays."""
    exact = series(found, "exact")
    if not exact:
        return ()
    sizes, largest = [each.size for each in exact], exact[-1].size
    sentences = [
        f"From n = {FITTED_FROM} on exact attention's time grew as "
        f"{power_in_words(growth(sizes, [each.seconds for each in exact]))} and its memory as "
        f"{power_in_words(growth(sizes, [each.memory for each in exact]))}."
    ]
    others = [variant for variant in dict.fromkeys(each.variant for each in found) if variant != "exact"]
    if not others:
        return tuple(sentences)
    quickest = min(others, key=lambda variant: series(found, variant)[-1].seconds)
    last = series(found, quickest)[-1]
    ratio = exact[-1].seconds / last.seconds
    if ratio > 1:
        sentences.append(
            f"At n = {largest:,} {_named(quickest)} was quickest, {ratio:,.1f} times as quick as exact attention "
            f"written out, with {percent(last.memory / exact[-1].memory)} of its memory."
        )
        pays = _pays_from(exact, series(found, quickest))
        if pays > exact[0].size:
            sentences.append(f"Below n = {pays:,} it was no quicker than that.")
    else:
        sentences.append(f"Up to n = {largest:,} no variant was quicker than exact attention written out.")
    return tuple(sentences)


def _pays_from(exact: Sequence[Measurement], other: Sequence[Measurement]) -> int:
    """The length from which on a variant stayed quicker."""
    pays = exact[-1].size
    for own, its in zip(reversed(exact), reversed(other), strict=True):
        if its.seconds >= own.seconds:
            break
        pays = own.size
    return pays


def _named(variant: Costed) -> str:
    return {
        "linear": "linear attention",
        "fast_weights": "the fast weight memory",
        "linformer": "Linformer",
        "reformer": "Reformer",
        "window": "the sliding window",
        "block": "block-sparse attention",
        "fused": "the fused operator",
        "exact": "exact attention",
    }[variant]


def main(arguments: Sequence[str]) -> None:
    """Print the measurements of a plan given as JSON, one object a line."""
    given: dict[str, Any] = json.loads(arguments[0])
    settings = VariantSettings(**given.pop("settings", {}))
    plan = CostPlan(tuple(given.pop("variants")), tuple(given.pop("sizes", SIZES)), settings, **given)
    torch.set_num_threads(1)
    for measurement in measurements(plan):
        sys.stdout.write(json.dumps(asdict(measurement)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
