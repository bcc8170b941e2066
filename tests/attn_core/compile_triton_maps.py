"""Compile the kernels of streamed maps for sm_80 and sm_90 and say what came out, one JSON line a kernel.

python -m tests.attn_core.compile_triton_maps NAME ...    the layers that the test names
python -m tests.attn_core.compile_triton_maps all         all kernels for every width and precision (many minutes)
python -m tests.attn_core.compile_triton_maps all TEXT    those of them whose name holds a text, such as sm_90

The questions are asked as anybody asks them, and what they would have launched is compiled: the same tiles, the same
constants.
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from triton.runtime.jit import JITFunction

from attn_core import MaskRule
from attn_core.flash import triton_map_calls, triton_maps
from attn_core.flash.scoring import Scoring
from attn_core.flash.triton_common import Precision
from attn_core.flash.triton_map_statistics import neighbours_kernel
from tests.attn_core.triton_target import compiled, report

LENGTH = 1024

QUESTIONS = (
    "statistics",
    "statistics and one",
    "statistics and many",
    "few statistics",
    "neighbours",
    "left",
    "left of many",
    "values",
    "links",
    "bins",
    "block",
    "relevance",
    "relevance of many",
    "relevance rows",
)


@dataclass(frozen=True)
class Variant:
    """A layer, and which of its questions are compiled.

    Attributes:
        scores: of a causal rule; with a bias and a soft cap; or with all that a rule may ask too, and with places
            on a grid and keys that do not count in the questions.
    """

    capability: int
    width: int
    dtype: torch.dtype
    questions: tuple[str, ...] = QUESTIONS
    scores: Literal["causal", "biased", "everything"] = "causal"
    precision: Precision = "ieee"


def variants() -> dict[str, Variant]:
    """What the test compiles: every kernel for sm_90, every precision, the largest masks, and a share for sm_80.

    ``all`` asks everything of every width and precision, on both chips.
    """
    half, brain, single = torch.float16, torch.bfloat16, torch.float32
    return {
        "sm_90": Variant(
            90,
            64,
            brain,
            tuple(name for name in QUESTIONS if name not in ("statistics", "left", "relevance")),
        ),
        "sm_90, everything": Variant(
            90, 64, half, ("statistics and one", "left of many"), scores="everything"
        ),
        "sm_90, float32": Variant(90, 64, single, ("few statistics", "left", "relevance")),
        "sm_90, tf32x3": Variant(90, 64, single, ("bins",), precision="tf32x3"),
        "sm_80": Variant(80, 128, half, ("few statistics", "left of many", "links", "relevance rows")),
    }


def every_variant() -> Iterator[tuple[str, Variant]]:
    """Everything that can be asked of any width, precision and kind of scores, on both chips.

    float16 is left out: its kernels differ from those of bfloat16 in the type of their products alone.
    """
    kinds: tuple[tuple[torch.dtype, Precision], ...] = (
        (torch.bfloat16, "ieee"),
        (torch.float32, "ieee"),
        (torch.float32, "tf32x3"),
    )
    for capability, scores, width, (dtype, precision) in itertools.product(
        (90, 80), ("causal", "biased", "everything"), (64, 128, 256), kinds
    ):
        name = f"sm_{capability}, {scores}, {width}, {dtype}, {precision}"
        yield name, Variant(capability, width, dtype, scores=scores, precision=precision)


def launches(variant: Variant) -> dict[str, tuple[JITFunction, dict[str, Any], dict[str, Any]]]:
    """Kernel, arguments and options that each question launches: two items, four heads in two groups."""
    query = torch.empty(2, 4, LENGTH, variant.width, dtype=variant.dtype)
    key = torch.empty(2, 2, LENGTH, variant.width, dtype=variant.dtype)
    rule, options, of_keys = MaskRule(causal=True), {}, {}
    if variant.scores != "causal":
        options = {"bias": torch.zeros(1, 4, LENGTH, LENGTH), "softcap": 5.0}
    if variant.scores == "everything":
        rule = MaskRule(
            causal=True,
            window=200,
            key_valid=torch.ones(2, LENGTH, dtype=torch.bool),
            prefix=torch.tensor([3, 5]),
            documents=torch.zeros(1, LENGTH, dtype=torch.long),
        )
        places, all_keys = torch.zeros(LENGTH, 2), torch.ones(LENGTH, dtype=torch.bool)
        of_keys = {
            "row_positions": places,
            "column_positions": places,
            "counted": all_keys,
            "barred": all_keys,
        }
    layer = (query, key, torch.empty(query.shape[:3]), Scoring(variant.width**-0.5, rule, **options))
    one, some, many = (torch.empty(2, 1, count, LENGTH) for count in (1, triton_maps.MOST_IN_WALK, 16))
    precision = {"precision": variant.precision}
    asked = {
        "statistics": lambda: triton_maps.statistics(*layer, **of_keys, **precision),
        "statistics and one": lambda: triton_maps.statistics(*layer, left=one, **of_keys, **precision),
        "few statistics": lambda: triton_maps.statistics(
            *layer, left=one, detailed=False, **of_keys, **precision
        ),
        "statistics and many": lambda: triton_maps.statistics(*layer, left=some, **of_keys, **precision),
        "neighbours": lambda: triton_maps.statistics(*layer, **precision),
        "left": lambda: triton_maps.apply_left(*layer, one, **precision),
        "left of many": lambda: triton_maps.apply_left(*layer, many, **precision),
        "values": lambda: triton_maps.apply(*layer, torch.empty(1, 1, LENGTH, 5), **precision),
        "links": lambda: triton_maps.top_links(*layer, 16, **precision),
        "bins": lambda: triton_maps.pooled(*layer, 256, 256, **precision),
        "block": lambda: triton_maps.block(*layer, slice(0, 512), slice(0, 512), **precision),
        "relevance": lambda: triton_maps.relevance_step(*layer, one[:, 0], query, key, **precision),
        "relevance of many": lambda: triton_maps.relevance_step(*layer, many[:, 0], query, key, **precision),
        "relevance rows": lambda: triton_maps.relevance_rows(*layer, query, key, **precision),
    }
    found: dict[str, tuple[JITFunction, dict[str, Any], dict[str, Any]]] = {}
    run = JITFunction.run
    try:
        for name in variant.questions:

            def note(kernel: JITFunction, *arguments: Any, name: str = name, **options: Any) -> None:
                if (kernel is neighbours_kernel) != (name == "neighbours"):
                    return  # statistics launch two kernels
                del options["grid"], options["warmup"]
                found[name] = kernel, dict(zip(kernel.arg_names, arguments, strict=False)), options

            JITFunction.run = note
            asked[name]()
    finally:
        JITFunction.run = run
    return found


def main(names: list[str]) -> None:
    """Compile and print."""
    triton_map_calls.unsupported_here = lambda query: None  # there is no GPU, and none is needed
    if names[:1] == ["all"]:
        chosen = [pair for pair in every_variant() if all(text in pair[0] for text in names[1:])]
    else:
        chosen = [(name, variants()[name]) for name in names]
    for name, variant in chosen:
        for question, (kernel, arguments, options) in launches(variant).items():
            result = compiled(
                f"{question}: {name}", kernel, arguments, capability=variant.capability, options=options
            )
            for line in report([result]):
                sys.stdout.write(json.dumps(line) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
