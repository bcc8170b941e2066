"""Compile the kernels of attention for sm_80 and sm_90 and say what came out, one JSON line a kernel.

python -m tests.attn_core.compile_triton NAME ...    the kernels that the test names
python -m tests.attn_core.compile_triton all         other widths and precisions, and every tile that an autotuner
                                                     tries (many minutes)
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from attn_core import MaskRule
from attn_core.flash.scoring import Scoring
from attn_core.flash.triton_backward import (
    backward_arguments,
    backward_config,
    key_value_configs,
    key_value_gradients,
    query_configs,
    query_gradients,
)
from attn_core.flash.triton_common import WIDEST_THREEFOLD, Precision, padded_width, strided, triton
from attn_core.flash.triton_forward import (
    Chip,
    Inputs,
    Rows,
    attention_forward,
    forward_arguments,
    forward_config,
    forward_configs,
    triton_version,
)
from tests.attn_core.triton_target import compiled, report

LENGTH = 1024


@dataclass(frozen=True)
class Variant:
    """A kernel, what it is given, and its tile."""

    kernel: str
    capability: int
    width: int
    dtype: torch.dtype
    config: triton.Config
    causal: bool = False
    everything: bool = False
    precision: Precision = "ieee"


def variants() -> dict[str, Variant]:
    """What the test compiles: every kernel on both chips, and every variant and precision of one."""
    half, brain, single = torch.float16, torch.bfloat16, torch.float32
    return {
        # sm_90
        "forward, causal, persistent": Variant(
            "forward",
            90,
            64,
            half,
            forward_config(128, 128, 8, 3, descriptors=True, persistent=True),
            causal=True,
        ),
        "forward, specialised": Variant(
            "forward",
            90,
            64,
            half,
            forward_config(128, 64, 4, 3, descriptors=True, warp_specialize=True),
            causal=True,
        ),
        "forward, float32": Variant("forward", 90, 64, single, forward_config(32, 32, 4, 1)),
        "forward, everything": Variant(
            "forward", 90, 64, half, forward_config(128, 64, 8, 3), causal=True, everything=True
        ),
        "queries, causal": Variant("queries", 90, 64, half, backward_config(64, 64, 4, 2), causal=True),
        "keys, causal": Variant("keys", 90, 64, half, backward_config(32, 128, 8, 2), causal=True),
        # sm_80
        "forward, sm_80": Variant("forward", 80, 64, half, forward_config(128, 64, 4, 3), causal=True),
        "queries 128, sm_80": Variant("queries", 80, 128, half, backward_config(64, 32, 4, 2), causal=True),
        "keys, sm_80": Variant("keys", 80, 64, brain, backward_config(32, 32, 4, 2)),
    }


def further_variants() -> dict[str, Variant]:
    """Other widths and precisions of the same kernels, with bfloat16, which the autotuners' tiles below leave out."""
    half, brain, single = torch.float16, torch.bfloat16, torch.float32
    return {
        "forward": Variant("forward", 90, 64, half, forward_config(128, 64, 4, 3)),
        "forward 128, causal": Variant("forward", 90, 128, brain, forward_config(128, 64, 8, 3), causal=True),
        "forward 128, descriptors": Variant(
            "forward", 90, 128, brain, forward_config(128, 128, 8, 2, descriptors=True)
        ),
        "queries 128": Variant("queries", 90, 128, brain, backward_config(64, 64, 8, 2)),
        "keys 128": Variant("keys", 90, 128, brain, backward_config(32, 32, 8, 2)),
        "keys, float32": Variant("keys", 90, 64, single, backward_config(32, 32, 4, 1), causal=True),
        "forward 128, sm_80": Variant("forward", 80, 128, brain, forward_config(128, 64, 8, 3)),
        "queries, float32, sm_80": Variant("queries", 80, 64, single, backward_config(32, 32, 4, 1)),
    }


def every_variant() -> Iterator[tuple[str, Variant]]:
    """All of the above, and all tiles that the autotuners try: both chips, all width classes, float16 and float32 in
    both precisions, causal and not.
    """
    yield from (variants() | further_variants()).items()
    half, single = torch.float16, torch.float32
    kinds: tuple[tuple[torch.dtype, Precision], ...] = ((half, "ieee"), (single, "ieee"), (single, "tf32x3"))
    for capability, width, (dtype, precision), causal in itertools.product(
        (90, 80), (64, 128, 256), kinds, (True, False)
    ):
        if precision == "tf32x3" and width > WIDEST_THREEFOLD:
            continue
        chip = Chip((capability // 10, 0), triton_version(), 132)
        inputs, without = (
            Inputs(padded_width(width), dtype.itemsize, causal, has_descriptors, True, precision)
            for has_descriptors in (True, False)
        )
        known = {str(config): config for of in (inputs, without) for config in forward_configs(chip, of)}
        for kernel, configs in (
            ("forward", list(known.values())),
            ("queries", query_configs(chip, inputs)),
            ("keys", key_value_configs(chip, inputs)),
        ):
            for config in configs:
                name = f"{kernel} {width} {dtype} {precision} {'causal ' * causal}{config}"
                yield name, Variant(kernel, capability, width, dtype, config, causal, precision=precision)


def arguments_of(variant: Variant) -> tuple[Any, dict[str, Any]]:
    """The kernel and its arguments: two items, four heads in two groups."""
    shape = (2, 4, LENGTH, variant.width)
    query = torch.empty(shape, dtype=variant.dtype)
    key, value = (torch.empty(2, 2, LENGTH, variant.width, dtype=variant.dtype) for _ in range(2))
    context = torch.empty(shape, dtype=variant.dtype)
    lse, top, factor, correction = torch.empty(4, *shape[:3])
    rows, rule, options = Rows(lse, top, factor), MaskRule(causal=variant.causal), {}
    if variant.everything:
        rule = MaskRule(
            causal=variant.causal,
            window=200,
            key_valid=torch.ones(2, LENGTH, dtype=torch.bool),
            prefix=torch.tensor([3, 5]),
            documents=torch.zeros(1, LENGTH, dtype=torch.long),
        )
        options = {"bias": torch.zeros(1, 4, LENGTH, LENGTH), "softcap": 5.0, "sinks": torch.zeros(4)}
    scoring = Scoring(variant.width**-0.5, rule, **options)
    if variant.kernel == "forward":
        return attention_forward, forward_arguments(
            query, key, value, context, rows, scoring=scoring, precision=variant.precision
        )
    shared = backward_arguments(
        query, key, value, context, rows, correction, scoring=scoring, precision=variant.precision
    )
    if variant.kernel == "queries":
        return query_gradients, shared | {"query_gradient": strided(query), "items": 2}
    return key_value_gradients, shared | {"key_gradient": strided(key), "value_gradient": strided(value)}


def main(names: list[str]) -> None:
    """Compile and print."""
    known = variants() | further_variants()
    chosen = every_variant() if names == ["all"] else [(name, known[name]) for name in names]
    for name, variant in chosen:
        kernel, arguments = arguments_of(variant)
        options = variant.config.all_kwargs()
        result = compiled(name, kernel, arguments, capability=variant.capability, options=options)
        sys.stdout.write(json.dumps(report([result])[0]) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
