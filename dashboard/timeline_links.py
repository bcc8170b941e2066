"""What each entry of the timeline opens: a page of this program with the choices that show the mechanism."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Literal
from urllib.parse import urlencode

from analysis.trained import RECURRENT
from dashboard.lab_choices import Section
from dashboard.selection import ModelChoice, Selection, default_selection, to_query


@dataclass(frozen=True)
class Target:
    """A page and what is chosen there; choices that are not named are as they start.

    Attributes:
        page: that is opened.
        section: of the Lab.
        choices: of the page or the section; "evidence", "patterns" and "adversarial" hold choices of a view.
    """

    page: Literal["text", "image", "lab"]
    section: Section | None = None
    choices: Mapping[str, Any] = field(default_factory=dict)


def _lab(section: Section, **choices: Any) -> Target:
    return Target("lab", section, choices)


def _text(**choices: Any) -> Target:
    return Target("text", choices=choices)


def _image(**choices: Any) -> Target:
    return Target("image", choices=choices)


_CLASSIFIER = ModelChoice("picture-classifier")
_BILSTM = ModelChoice(RECURRENT.name)

TARGETS: Mapping[str, Target] = MappingProxyType(
    {
        "cherry": _lab("formula", part="softmax"),
        "broadbent": _lab("masks", rules=("window",), window=2),
        "treisman": _lab("formula", part="softmax", temperature=3.0),
        "nadaraya": _lab("formula", numbers="random", part="output"),
        "integration": _lab("heads", numbers="model"),
        "fast-weights": _lab("variants", variants=("exact", "fast_weights")),
        "saliency": _image(view="evidence", model=_CLASSIFIER, evidence={"methods": ("saliency",)}),
        "handwriting": _lab("masks", rules=("window",), window=3),
        "seq2seq": _lab("alignment", scorings=("none",), show="memory"),
        "bahdanau": _lab("alignment", scorings=("additive",)),
        "turing": _lab("formula", part="root", factor=4.0),
        "caption": _image(view="attention"),
        "memory": _lab("formula", numbers="random", width=1, part="scores"),
        "pointer": _lab("alignment", scorings=("additive",), step=1),
        "luong": _lab("alignment", scorings=("dot", "general")),
        "intra": _lab("masks", rules=("causal",), numbers="model"),
        "decomposable": _lab("equivariance", shuffle="tokens"),
        "structured": _text(view="head", model=_BILSTM, layer=0, heads=None),
        "transformer": _lab("formula"),
        "graphs": _lab("masks", rules=("document",), documents=4),
        "relative": _lab("equivariance", shuffle="tokens", mechanism="relative"),
        "online": _lab("variants", variants=("exact", "linear"), show="cost"),
        "bert": _text(view="model"),
        "gpt2": _lab("masks", rules=("causal",)),
        "not-explanation": _text(view="adversarial", model=_BILSTM),
        "sparse": _lab("masks", rules=("window", "dilated"), joined="or", stride=4),
        "clark": _text(view="heads"),
        "bertviz": _text(view="head", heads=None),
        "not-not-explanation": _text(view="adversarial", model=_BILSTM, adversarial={"show": "trained"}),
        "t5": _lab("masks", rules=("causal",), mod="relative"),
        "mqa": _lab("heads", numbers="random", heads=8, groups=1),
        "reformer": _lab("variants", variants=("exact", "reformer")),
        "longformer": _lab("variants", variants=("exact", "window"), window=4),
        "rollout": _text(view="rollout"),
        "linformer": _lab("variants", variants=("exact", "linformer")),
        "linear": _lab("variants", variants=("exact", "linear")),
        "bigbird": _lab("variants", variants=("exact", "block"), pattern="bigbird"),
        "performer": _lab("variants", variants=("exact", "linear"), features="random"),
        "vit": _image(view="model"),
        "chefer": _image(view="evidence", model=_CLASSIFIER, evidence={"methods": ("relevance",)}),
        "programmers": _lab("variants", variants=("linear", "fast_weights")),
        "rotary": _lab("equivariance", shuffle="tokens", mechanism="rotary"),
        "packing": _lab("masks", rules=("document",), documents=3),
        "alibi": _lab("masks", rules=("causal",), mod="alibi"),
        "memory-free": _lab("variants", variants=("exact", "window"), show="cost"),
        "flash": _lab("variants", variants=("exact",), show="cost"),
        "gqa": _lab("heads", numbers="random", heads=8, groups=2),
        "mistral": _lab("masks", rules=("causal", "window"), window=5),
        "sinks": _text(view="heads", patterns={"show": "ranking", "statistic": "first"}),
        "cdam": _image(view="evidence", model=_CLASSIFIER, evidence={"methods": ("cdam",)}),
        "softcap": _lab("masks", rules=("causal",), mod="soft_cap"),
        "deltanet": _lab("variants", variants=("exact", "linear", "fast_weights")),
        "flex": _lab("masks", rules=("causal",), mod="typed"),
    }
)
"""By the key of the entry (``analysis.lab.timeline.HISTORY``)."""


def opened(target: Target) -> Selection:
    """A new session's selection with the choices of a target."""
    start = default_selection()
    if target.page == "lab":
        assert target.section is not None  # each target of the Lab names one
        record = replace(getattr(start.lab, target.section), **target.choices)
        return replace(start, lab=replace(start.lab, section=target.section, **{target.section: record}))
    page = getattr(start, target.page)
    parts = {
        name: replace(getattr(page, name), **value) if isinstance(value, dict) else value
        for name, value in target.choices.items()
    }
    return replace(start, **{target.page: replace(page, **parts)})


def query(target: Target) -> dict[str, str]:
    """The parameters of the link that opens a target."""
    return to_query(opened(target), target.page)


def address(target: Target) -> str:
    """The link, relative to any page of this program."""
    page = "." if target.page == "text" else target.page  # the Text page is the first one
    return f"{page}?{urlencode(query(target))}"


def addresses() -> dict[str, str]:
    """The link of every entry."""
    return {key: address(target) for key, target in TARGETS.items()}
