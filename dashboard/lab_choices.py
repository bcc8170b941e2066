"""What is chosen on the Lab page: the section, the sentence that sections share, and the choices of each section.

Part of the selection (``dashboard.selection``): frozen, kept in the session, mirrored in links. A field says in its
declaration which values it may have; reading a link, writing one and the widgets (``dashboard.lab_widgets``) follow
from that, so a section declares its choices and nothing else.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Literal, get_args

Section = Literal[
    "formula", "scale", "alignment", "heads", "masks", "equivariance", "variants", "pipeline", "timeline"
]
SECTIONS: tuple[Section, ...] = get_args(Section)

TEXT_CHARACTERS = 200
DEFAULT_TEXT = "The animal didn't cross the street because it was too tired"

_WHOLE = re.compile(r"-?\d{1,9}", re.ASCII)
_REAL = re.compile(r"-?\d{1,9}(\.\d{1,9})?", re.ASCII)


@dataclass(frozen=True)
class Kind:
    """How one choice is written in a link and which values it may have.

    Attributes:
        read: text of a link → value, or None where it is not understood.
        write: value → text.
        options: of a choice between names; (low, high) of a number; () else.
    """

    read: Callable[[str], Any]
    write: Callable[[Any], str]
    options: tuple[Any, ...] = ()


def one_of(default: str, *options: str) -> Any:
    """A choice between names."""

    def read(text: str) -> str | None:
        return text if text in options else None

    return field(default=default, metadata={"kind": Kind(read, str, options)})


def some_of(default: tuple[str, ...], *options: str) -> Any:
    """Several of some names, each once, in the order of the options."""

    def read(text: str) -> tuple[str, ...] | None:
        names = text.split(",") if text else []
        if len(names) != len(set(names)) or any(name not in options for name in names):
            return None
        return tuple(name for name in options if name in names)

    return field(default=default, metadata={"kind": Kind(read, ",".join, options)})


def whole(default: int, low: int, high: int) -> Any:
    """A whole number from ``low`` to ``high``."""

    def read(text: str) -> int | None:
        return int(text) if _WHOLE.fullmatch(text) and low <= int(text) <= high else None

    return field(default=default, metadata={"kind": Kind(read, str, (low, high))})


def real(default: float, low: float, high: float) -> Any:
    """A number from ``low`` to ``high``."""

    def read(text: str) -> float | None:
        if not _REAL.fullmatch(text):
            return None
        return float(text) if low <= float(text) <= high else None

    return field(default=default, metadata={"kind": Kind(read, _plain_number, (low, high))})


def flag(default: bool) -> Any:
    """Yes or no."""

    def read(text: str) -> bool | None:
        return {"yes": True, "no": False}.get(text)

    return field(default=default, metadata={"kind": Kind(read, lambda value: "yes" if value else "no")})


def words(default: str, characters: int) -> Any:
    """A text that the user types, up to some characters."""

    def read(text: str) -> str | None:
        return text if len(text) <= characters else None

    return field(default=default, metadata={"kind": Kind(read, str, (characters,))})


def _plain_number(value: float) -> str:
    text = f"{value:.6f}".rstrip("0").rstrip(".")
    return "0" if text in ("", "-0") or math.isnan(value) else text


@dataclass(frozen=True)
class FormulaChoices:
    """Of the formula explorer.

    Attributes:
        numbers: where query, key and value come from.
        layer, head: of the bundled BERT; ``dims``: how many of the head's dimensions are used.
        width: d_k of random vectors.
        factor: the scale as a multiple of 1/√d_k.
        temperature: scores are divided by it before the softmax.
        part: of the formula that is explained.
        query: row whose way through the formula is shown; with ``key`` and ``dim`` it picks a cell of each matrix.
        causal: a token sees those before it alone.
        seed: of random vectors.
    """

    numbers: str = one_of("worked", "worked", "model", "random")
    layer: int = whole(1, 0, 99)
    head: int = whole(2, 0, 99)
    dims: int = whole(64, 1, 64)
    width: int = whole(4, 1, 64)
    factor: float = real(1.0, 0.0, 8.0)
    temperature: float = real(1.0, 0.1, 10.0)
    part: str = one_of("softmax", "query", "key", "value", "scores", "root", "softmax", "output")
    query: int = whole(0, 0, 63)
    key: int = whole(0, 0, 63)
    dim: int = whole(0, 0, 63)
    causal: bool = flag(False)
    seed: int = whole(0, 0, 99)


@dataclass(frozen=True)
class ScaleChoices:
    """Of "Why √d_k".

    Attributes:
        width: d_k whose distribution is drawn.
        keys: in a row.
        samples: rows that are drawn for each d_k.
        seed: of the vectors.
    """

    width: int = whole(64, 1, 1024)
    keys: int = whole(16, 2, 64)
    samples: int = whole(256, 64, 1024)
    seed: int = whole(0, 0, 99)


@dataclass(frozen=True)
class AlignmentChoices:
    """Of the alignment explorer.

    Attributes:
        text: English sentence.
        step: of the decoder, from 0; one past the end shows the whole translation.
        scorings: whose translations stand side by side.
        beam: hypotheses kept.
        show: one sentence, or how well sentences of each length come through.
    """

    text: str = words("I love you", TEXT_CHARACTERS)
    step: int = whole(0, 0, 99)
    scorings: tuple[str, ...] = some_of(
        ("additive", "dot", "general", "none"), "additive", "dot", "general", "none"
    )
    beam: int = whole(1, 1, 8)
    show: str = one_of("sentence", "sentence", "memory")


@dataclass(frozen=True)
class SplitChoices:
    """Of the heads section.

    Attributes:
        show: a layer taken apart, or what shared keys and values cost.
        numbers: a layer of the bundled BERT, or random projections.
        layer: of the BERT; ``seed``: of the random ones.
        heads: that the width is split into; ``groups``: key–value heads, a divisor of ``heads``.
        head: that is looked at.
        tokens: sequence length of the cost table; ``width``: of a head there; ``layers``: that keep a cache;
            ``bits``: of a number in it.
    """

    show: str = one_of("split", "split", "cache")
    numbers: str = one_of("random", "model", "random")
    layer: int = whole(1, 0, 99)
    seed: int = whole(0, 0, 99)
    heads: int = whole(8, 1, 32)
    groups: int = whole(2, 1, 32)
    head: int = whole(0, 0, 99)
    tokens: int = whole(4096, 1, 1_000_000)
    width: int = whole(128, 1, 512)
    layers: int = whole(32, 1, 128)
    bits: str = one_of("16", "8", "16", "32")


RULES = ("causal", "window", "prefix", "padding", "document", "block", "dilated")
MODS = ("none", "alibi", "soft_cap", "relative", "typed")


@dataclass(frozen=True)
class MaskChoices:
    """Of masks and mods.

    Attributes:
        rules: that are combined; ``joined``: by & or by |; ``negate``: the mask is turned round.
        window, prefix, padded, documents, block, stride: sizes of the rules.
        mod: what is done to the scores; ``typed``: the expression of the reader's own.
        cap: of the soft cap.
        tokens: n of random vectors; ``seed``: of them.
        numbers: of the bundled BERT on the sentence, or random; ``layer``, ``head``: of the BERT.
        show: what the choices do to weights and work, or the library of mods as pictures.
    """

    rules: tuple[str, ...] = some_of(("causal",), *RULES)
    joined: str = one_of("and", "and", "or")
    negate: bool = flag(False)
    window: int = whole(4, 1, 64)
    prefix: int = whole(3, 0, 64)
    padded: int = whole(2, 0, 64)
    documents: int = whole(2, 1, 16)
    block: int = whole(4, 1, 32)
    stride: int = whole(2, 1, 16)
    mod: str = one_of("none", *MODS)
    cap: float = real(2.0, 0.1, 50.0)
    typed: str = words("score - 0.5 * abs(q_idx - k_idx)", 160)
    numbers: str = one_of("random", "random", "model")
    tokens: int = whole(16, 2, 64)
    layer: int = whole(1, 0, 99)
    head: int = whole(2, 0, 99)
    seed: int = whole(0, 0, 99)
    show: str = one_of("attention", "attention", "library")


@dataclass(frozen=True)
class EquivarianceChoices:
    """Of the equivariance section.

    Attributes:
        shuffle: queries, keys with their values, keys alone, or all three alike (the words of a sentence).
        mechanism: whose output is compared.
        numbers: of the bundled BERT on the sentence, or random ones for its words; ``layer``, ``head``: of the BERT.
        seed: of random vectors and of the order.
    """

    shuffle: str = one_of("queries", "queries", "keys_values", "keys", "tokens")
    mechanism: str = one_of("plain", "plain", "causal", "sinusoidal", "rotary", "alibi", "relative", "linear")
    numbers: str = one_of("random", "random", "model")
    layer: int = whole(1, 0, 99)
    head: int = whole(2, 0, 99)
    seed: int = whole(0, 0, 99)


@dataclass(frozen=True)
class VariantChoices:
    """Of variants side by side.

    Attributes:
        variants: that are shown.
        numbers: of the bundled BERT on the sentence, or random.
        tokens: n of random vectors; ``sharpness``: what their queries are multiplied by.
        rank: of Linformer; ``projection``: how its projections are made.
        hashes, buckets: of Reformer.
        window, block: of the sparse ones; ``pattern``: which blocks are seen.
        features: feature map of linear attention; ``count``: how many random ones.
        layer, head: of the BERT.
        seed: of random vectors and of everything that the variants draw.
        show: weights and errors of one input, or time and memory against n.
    """

    variants: tuple[str, ...] = some_of(
        ("exact", "linear", "linformer", "reformer", "window", "block"),
        "exact", "linear", "fast_weights", "linformer", "reformer", "window", "block",
    )  # fmt: skip
    numbers: str = one_of("random", "random", "model")
    tokens: int = whole(32, 4, 256)
    rank: int = whole(8, 1, 64)
    hashes: int = whole(2, 1, 8)
    buckets: int = whole(4, 2, 16)
    window: int = whole(4, 1, 64)
    block: int = whole(4, 1, 64)
    pattern: str = one_of("global", "local", "global", "bigbird")
    features: str = one_of("elu", "elu", "relu", "random")
    count: int = whole(64, 1, 512)
    projection: str = one_of("random", "random", "mean")
    sharpness: float = real(1.0, 0.25, 8.0)
    layer: int = whole(1, 0, 99)
    head: int = whole(2, 0, 99)
    seed: int = whole(0, 0, 99)
    show: str = one_of("weights", "weights", "cost")


@dataclass(frozen=True)
class PipelineChoices:
    """Of the pipeline.

    Attributes:
        layer, head: of the bundled BERT.
        query: token whose way is followed.
        stage: of the way that is explained.
    """

    layer: int = whole(1, 0, 99)
    head: int = whole(2, 0, 99)
    query: int = whole(1, 0, 63)
    stage: int = whole(0, 0, 15)


@dataclass(frozen=True)
class TimelineChoices:
    """Of the timeline.

    Attributes:
        entry: key of the entry that is opened; "" for none.
        theme: which entries are shown.
    """

    entry: str = words("", 40)
    theme: str = one_of(
        "all", "all", "mind", "memory", "translation", "transformer", "efficient", "explained"
    )


@dataclass(frozen=True)
class LabChoices:
    """Everything chosen on the Lab page.

    Attributes:
        section: that is open.
        text: the sentence that sections share.
    """

    section: Section = "formula"
    text: str = DEFAULT_TEXT
    formula: FormulaChoices = FormulaChoices()
    scale: ScaleChoices = ScaleChoices()
    alignment: AlignmentChoices = AlignmentChoices()
    heads: SplitChoices = SplitChoices()
    masks: MaskChoices = MaskChoices()
    equivariance: EquivarianceChoices = EquivarianceChoices()
    variants: VariantChoices = VariantChoices()
    pipeline: PipelineChoices = PipelineChoices()
    timeline: TimelineChoices = TimelineChoices()


USES_TEXT: Mapping[Section, tuple[str, ...]] = MappingProxyType(
    {
        "formula": ("model", "random"),
        "heads": ("model", "random"),
        "masks": ("model",),
        "equivariance": ("model", "random"),
        "variants": ("model",),
        "pipeline": ("",),
    }
)
"""Sections that read the shared sentence, and for which ``numbers``."""


def kind_of(record: Any, name: str) -> Kind:
    """How a field of a section's choices is read, written and bounded."""
    found = next(item for item in fields(record) if item.name == name)
    kind: Kind = found.metadata["kind"]
    return kind


def uses_text(choices: LabChoices) -> bool:
    """Whether the open section reads the shared sentence as it is set."""
    asked, record = USES_TEXT.get(choices.section, ()), getattr(choices, choices.section)
    of_no_input = getattr(record, "show", "") in ("cache", "cost")  # what only sizes decide
    return not of_no_input and getattr(record, "numbers", "") in asked


def lab_params(choices: LabChoices) -> dict[str, str]:
    """The link's parameters: the section and what is not as it starts there."""
    params: dict[str, str] = {"section": choices.section}
    if uses_text(choices) and choices.text != DEFAULT_TEXT and len(choices.text) <= TEXT_CHARACTERS:
        params["t"] = choices.text
    record, start = getattr(choices, choices.section), getattr(LabChoices(), choices.section)
    for item in fields(record):
        value = getattr(record, item.name)
        if value != getattr(start, item.name):
            params[item.name] = kind_of(record, item.name).write(value)
    return params


def read_lab(choices: LabChoices, params: Mapping[str, str]) -> tuple[LabChoices, tuple[str, ...]]:
    """The choices with those of a link, and the names of parameters that were not understood.

    What a link leaves out of its section, or of the sentence that it reads, is as it starts; other sections keep
    their choices.
    """
    bad = []
    section: Any = params.get("section", choices.section)
    if section not in SECTIONS:
        return choices, ("section",)
    record = getattr(LabChoices(), section)
    known = {item.name for item in fields(record)}
    text = None
    for name, value in params.items():
        if name in ("section", "v"):
            continue
        if name == "t":
            if len(value) <= TEXT_CHARACTERS:
                text = value
            else:
                bad.append(name)
            continue
        found = kind_of(record, name).read(value) if name in known else None
        if found is None:
            bad.append(name)
        else:
            record = replace(record, **{name: found})
    changes: dict[str, Any] = {"section": section, section: record}
    opened = replace(choices, **changes)
    if text is None:
        text = DEFAULT_TEXT if uses_text(opened) else choices.text
    return replace(opened, text=text), tuple(bad)
