"""What is chosen in the Adversarial view: which attention is replaced, by what, and how much the answer may change.

Part of the selection (``dashboard.selection``): frozen, kept in the session, mirrored in links; weights that were set
by hand stay out of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Literal, get_args

Show = Literal["one", "set", "heads", "trained"]
Rows = Literal["usual", "first", "last", "pinned", "all"]
Others = Literal["respond", "fixed"]
Search = Literal["projected", "penalty"]
Edit = Literal["uniform", "permuted", "self", "first", "exchanged", "removed"]

EPSILONS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5)
"""What the answer may change by."""

EVERY_LAYER = -1
"""Instead of a layer: all of them."""

MOST_HEADS = 256

_NUMBERS = re.compile(r"\d{1,4}(,\d{1,4}){0,255}", re.ASCII)
_CANDIDATE = re.compile(r"(?!by hand$)[a-z][a-z0-9 ']{0,39}", re.ASCII)
"""Weights set by hand are in no link."""


@dataclass(frozen=True)
class AdversarialChoices:
    """Everything chosen in the Adversarial view.

    Attributes:
        show: one input, a set of inputs, what heads do, or models that were trained to attend otherwise.
        layer: of a transformer whose attention is replaced; None is the last, ``EVERY_LAYER`` all.
        heads: ascending; None for all.
        rows: of which queries; "usual" is the row that the answer is read from.
        others: whether the rest of the attention responds to what the replaced one changes.
        epsilon: how much the answer may change; one of ``EPSILONS``.
        search: how candidates are found, where there is no exact way.
        candidate: name of the one beside the observed attention; "" for the farthest.
        edit: of heads, in the Heads part.
        source: of a set of texts.
        weights: set by hand, or None.
        input: key of the input that ``weights`` belong to.
    """

    show: Show = "one"
    layer: int | None = None
    heads: tuple[int, ...] | None = None
    rows: Rows = "usual"
    others: Others = "respond"
    epsilon: float = 0.01
    search: Search = "projected"
    candidate: str = ""
    edit: Edit = "uniform"
    source: Literal["sample", "file"] = "sample"
    weights: tuple[float, ...] | None = None
    input: str = ""


_WORDS: Mapping[str, tuple[str, tuple[str, ...]]] = MappingProxyType(
    {
        "tab": ("show", get_args(Show)),
        "rows": ("rows", get_args(Rows)),
        "rest": ("others", get_args(Others)),
        "search": ("search", get_args(Search)),
        "edit": ("edit", get_args(Edit)),
    }
)
"""Parameter of a link: the choice, and the words that it may have."""

ADVERSARIAL_PARAMETERS = (*_WORDS, "layers", "free", "epsilon", "candidate")


def adversarial_params(choices: AdversarialChoices) -> dict[str, str]:
    """The link's parameters; what is as it starts is left out."""
    start = AdversarialChoices()
    params = {
        name: str(getattr(choices, field))
        for name, (field, _) in _WORDS.items()
        if getattr(choices, field) != getattr(start, field)
    }
    if choices.layer is not None:
        params["layers"] = "all" if choices.layer == EVERY_LAYER else str(choices.layer)
    if choices.heads is not None:
        params["free"] = ",".join(map(str, choices.heads))
    if choices.epsilon != start.epsilon:
        params["epsilon"] = f"{choices.epsilon:g}"
    if _CANDIDATE.fullmatch(choices.candidate):
        params["candidate"] = choices.candidate
    return params


def read_adversarial(choices: AdversarialChoices, name: str, value: str) -> AdversarialChoices | None:
    """The choices with one parameter of a link taken over; None where it is not understood."""
    if name in _WORDS:
        field, words = _WORDS[name]
        known: dict[str, Any] = {field: value}
        return replace(choices, **known) if value in words else None
    if name == "layers":
        if value == "all":
            return replace(choices, layer=EVERY_LAYER)
        single = _NUMBERS.fullmatch(value) and "," not in value
        return replace(choices, layer=int(value)) if single else None
    if name == "free":
        if not _NUMBERS.fullmatch(value):
            return None
        return replace(choices, heads=tuple(sorted({int(part) for part in value.split(",")})))
    if name == "epsilon":
        found = next((epsilon for epsilon in EPSILONS if f"{epsilon:g}" == value), None)
        return None if found is None else replace(choices, epsilon=found)
    if name == "candidate":
        return replace(choices, candidate=value) if _CANDIDATE.fullmatch(value) else None
    return None


def fitted_adversarial(choices: AdversarialChoices, *, layers: int, heads: int) -> AdversarialChoices:
    """The choices fitted to a model: a layer beyond the end becomes the last, unknown heads are dropped."""
    layer = choices.layer if choices.layer is None or choices.layer < layers else None
    kept = None if choices.heads is None else tuple(head for head in choices.heads if head < heads)
    return replace(choices, layer=layer, heads=None if not kept or len(kept) == heads else kept)
