"""What is chosen on the Scale page; declared like the choices of the Lab, so links and widgets follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, cast

from analysis.scale_plan import FIRST_SIZE, WAYS, WINDOW_START, ScalePlan, Way
from dashboard.lab_choices import Kind, kind_of, one_of, some_of

GIB = 2**30


def number_of(default: int, *options: int) -> Any:
    """A choice between some whole numbers."""
    written = {str(option): option for option in options}
    return field(default=default, metadata={"kind": Kind(written.get, str, options)})


@dataclass(frozen=True)
class ScaleChoices:
    """Everything chosen on the Scale page.

    Attributes:
        heads, width: H and D of the layer; ``numbers``: its dtype.
        rule: which pairs are allowed; ``window``: keys of a causal window.
        passes: forward, or forward and backward.
        longest: greatest n; ``memory``: GiB that a point may take.
        threads: one, or as many as PyTorch takes by itself; ``device``: where.
        ways: that are measured.
    """

    heads: int = number_of(6, 1, 2, 4, 6, 8, 12, 16, 32)
    width: int = number_of(64, 16, 32, 64, 128, 256)
    numbers: str = one_of("float32", "float32", "bfloat16", "float16")
    rule: str = one_of("all", "all", "causal", "window")
    window: int = number_of(WINDOW_START, 64, 128, 256, 512, 1024, 4096)
    passes: str = one_of("forward", "forward", "both")
    longest: int = number_of(8192, *(FIRST_SIZE * 2**power for power in range(1, 11)))
    memory: int = number_of(2, 1, 2, 4, 8, 16, 32, 64)
    threads: str = one_of("one", "one", "all")
    device: str = one_of("cpu", "cpu", "cuda")
    ways: tuple[str, ...] = some_of(WAYS, *WAYS)


def plan_of(choices: ScaleChoices) -> ScalePlan:
    """What is to be measured."""
    found: Any = choices
    return ScalePlan(
        ways=cast(tuple[Way, ...], choices.ways),
        heads=choices.heads,
        width=choices.width,
        numbers=found.numbers,
        rule=found.rule,
        window=choices.window if choices.rule == "window" else WINDOW_START,
        backward=choices.passes == "both",
        longest=choices.longest,
        memory=choices.memory * GIB,
        threads=1 if choices.threads == "one" else 0,
        device=found.device,
    )


def scale_params(choices: ScaleChoices) -> dict[str, str]:
    """The link's parameters: what is not as it starts."""
    start = ScaleChoices()
    return {
        item.name: kind_of(choices, item.name).write(getattr(choices, item.name))
        for item in fields(choices)
        if getattr(choices, item.name) != getattr(start, item.name)
    }


def read_scale(params: Mapping[str, str]) -> tuple[ScaleChoices, tuple[str, ...]]:
    """The choices of a link, what it leaves out as it starts, and the names of what was not understood."""
    choices, bad = ScaleChoices(), []
    known = {item.name for item in fields(choices)}
    for name, value in params.items():
        if name == "v":
            continue
        found = kind_of(choices, name).read(value) if name in known else None
        if found is None:
            bad.append(name)
        else:
            choices = replace(choices, **{name: found})
    return choices, tuple(bad)
