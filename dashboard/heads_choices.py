"""What is chosen in the Heads view of either page.

Part of the selection (``dashboard.selection``): frozen, kept in the session, mirrored in links; a file that was
uploaded stays out of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, get_args

Source = Literal["input", "sample", "file"]
Show = Literal["grid", "ranking", "scatter", "clusters", "layers", "syntax"]
Scheme = Literal["patterns", "kovaleva"]
Worth = Literal["none", "gradient", "uniform", "zero"]
Colour = Literal["class", "layer"]

_KEY = re.compile(r"[a-z][a-z0-9_+]{0,39}", re.ASCII)
_STATISTIC = re.compile(r"[a-z][a-z0-9_]{0,39}([+-]\d)?", re.ASCII)
_THRESHOLD = re.compile(r"([a-z][a-z_]{0,39}):(0\.\d{1,2})", re.ASCII)
MOST_CLASSES = 32

LOWEST, HIGHEST = 0.05, 0.95
"""Between which a threshold can be moved, in steps of 0.01."""


@dataclass(frozen=True)
class HeadsChoices:
    """Everything chosen in the Heads view.

    Attributes:
        source: what the statistics are over: the page's own input, the sample corpus, or a file.
        show: how they are shown.
        scheme: whose classes.
        classes: keys of the classes that are drawn; None for all.
        thresholds: (class, threshold) where it was moved.
        statistic: that heads are ranked by; ``across`` and ``down``: the axes of the scatter.
        worth: how it is measured what a head is worth.
        colour: of the points of the cluster map: by class, or by layer.
    """

    source: Source = "sample"
    show: Show = "grid"
    scheme: Scheme = "patterns"
    classes: tuple[str, ...] | None = None
    thresholds: tuple[tuple[str, float], ...] = ()
    statistic: str = "entropy"
    across: str = "entropy"
    down: str = ""
    worth: Worth = "none"
    colour: Colour = "class"

    def moved(self, key: str, threshold: float | None) -> HeadsChoices:
        """With the threshold of a class moved; None puts it back."""
        found = {name: value for name, value in self.thresholds if name != key}
        if threshold is not None:
            found[key] = round(threshold, 2)
        return replace(self, thresholds=tuple(sorted(found.items())))


_NAMES: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        "over": ("source", get_args(Source)),
        "show": ("show", get_args(Show)),
        "scheme": ("scheme", get_args(Scheme)),
        "worth": ("worth", get_args(Worth)),
        "colour": ("colour", get_args(Colour)),
    }
)
"""Parameter of a link: the choice, and the words that it may have."""

_STATISTICS: Mapping[str, str] = MappingProxyType({"by": "statistic", "x": "across", "y": "down"})

HEADS_PARAMETERS = (*_NAMES, *_STATISTICS, "only", "thresholds")


def heads_params(choices: HeadsChoices) -> dict[str, str]:
    """The link's parameters; what is as it starts is left out."""
    start = HeadsChoices()
    params = {
        name: str(getattr(choices, field))
        for name, field in (*((name, field) for name, (field, _) in _NAMES.items()), *_STATISTICS.items())
        if getattr(choices, field) != getattr(start, field)
    }
    if choices.source == "file":
        del params["over"]
    if choices.classes is not None:
        params["only"] = ",".join(choices.classes) or "none"
    if choices.thresholds:
        params["thresholds"] = ",".join(f"{key}:{value:g}" for key, value in choices.thresholds)
    return params


def read_heads(choices: HeadsChoices, name: str, value: str) -> HeadsChoices | None:
    """The choices with one parameter of a link taken over; None where it is not understood."""
    if name in _NAMES:
        field, words = _NAMES[name]
        known: dict[str, Any] = {field: value}
        return replace(choices, **known) if value in words and value != "file" else None
    if name in _STATISTICS:
        known = {_STATISTICS[name]: value}
        return replace(choices, **known) if _STATISTIC.fullmatch(value) else None
    if name == "only":
        keys = [] if value == "none" else value.split(",")
        good = len(keys) <= MOST_CLASSES and all(map(_KEY.fullmatch, keys))
        return replace(choices, classes=tuple(dict.fromkeys(keys))) if good else None
    if name == "thresholds":
        parts = [_THRESHOLD.fullmatch(part) for part in value.split(",")]
        if len(parts) > MOST_CLASSES or None in parts:
            return None
        found = {part[1]: float(part[2]) for part in parts if part is not None}
        good = all(LOWEST <= number <= HIGHEST for number in found.values())
        return replace(choices, thresholds=tuple(sorted(found.items()))) if good else None
    return None
