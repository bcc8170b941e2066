"""What is chosen in the Evidence view of either page: what is explained, by which methods, and how it is drawn.

Part of the selection (``dashboard.selection``): frozen, kept in the session, mirrored in links. Classes are indices
of the model's head; what a link says is checked for form here and fitted to the model by ``clamped_evidence``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

Check = Literal["agreement", "class", "faithfulness", "stability", "model"]
"""What a reader can ask of the maps on the screen: how far to trust them."""

MOST_METHODS = 16
MOST_EXAMPLES = 12
"""Pictures or sentences that a concept is made of."""

_METHOD = re.compile(r"[a-z][a-z0-9_]{0,39}")
_CLASS = re.compile(r"\d{1,6}", re.ASCII)
_EXAMPLE = re.compile(r"[a-z0-9][a-z0-9_-]{0,47}", re.ASCII)

MOST_OPTIONS = 64

Value = str | int | float
Options = tuple[tuple[str, Value], ...]
"""(option, value) of one method; what is as the method has it is not among them."""

MethodOptions = tuple[tuple[str, Options], ...]

_NAME = r"[a-z][a-z0-9_]{0,39}"
_OPTION = re.compile(
    rf"({_NAME})\.({_NAME}):([a-z][a-z0-9_+-]{{0,39}}|\d{{1,6}}|\d{{1,6}}\.\d{{1,4}})", re.ASCII
)

EXAMPLES = "examples"
"""Of ``class`` in a link: the likeness to examples is explained, not a class."""

PROBABILITY = "probability"
"""Of ``rather`` in a link: the probability of the class is explained, not its logit."""


@dataclass(frozen=True)
class EvidenceChoices:
    """Everything chosen in the Evidence view.

    Attributes:
        target: class that is explained; None is the most probable one.
        rather: class that it is held against ("rather than"), or None.
        beside: a second class whose maps stand beside, or None.
        methods: keys of the methods, in their order; None for those that suit the model.
        positive: evidence against is not drawn.
        grey: the picture below is drawn pale and grey.
        opacity: of the strongest colour, 0 to 1.
        examples: inputs that a concept is made of, or the one that likeness is to: sample ids, or digests of
            uploaded files (which stay out of links).
        words: sub-words of a text are summed into words.
        position: of the token whose probability is explained (language models), or None.
        token: index in the vocabulary of that token, or None for the model's own first choice.
        check: of how far to trust the maps.
        every_word: of a language model, a table of all predicted words in place of one word.
        likeness: the likeness to examples is explained although the model has classes.
        probability: the probability of the class is explained, not its logit.
        cosine: a concept is measured by a cosine, not by a dot product.
        options: of methods, by their keys.
    """

    target: int | None = None
    rather: int | None = None
    beside: int | None = None
    methods: tuple[str, ...] | None = None
    positive: bool = False
    grey: bool = True
    opacity: float = 0.9
    examples: tuple[str, ...] = ()
    words: bool = True
    position: int | None = None
    token: int | None = None
    check: Check = "agreement"
    every_word: bool = False
    likeness: bool = False
    probability: bool = False
    cosine: bool = False
    options: MethodOptions = ()

    def options_of(self, method: str) -> Options:
        """Those of one method."""
        return dict(self.options).get(method, ())


def with_option(options: MethodOptions, method: str, key: str, value: Value | None) -> MethodOptions:
    """The options with one of them changed; None takes it out."""
    found = {name: dict(own) for name, own in options}
    own = {**found.get(method, {}), key: value}
    found[method] = {name: kept for name, kept in own.items() if kept is not None}
    return tuple((name, tuple(own.items())) for name, own in found.items() if own)


def evidence_params(choices: EvidenceChoices, *, examples: Sequence[str] = ()) -> dict[str, str]:
    """The link's parameters; what is as it starts is left out.

    Args:
        examples: ids of the samples, which alone may stand in a link.
    """
    params = {
        name: str(value)
        for name, value in (("class", choices.target), ("rather", choices.rather), ("beside", choices.beside))
        if value is not None
    }
    if choices.likeness:
        params["class"] = EXAMPLES
    if choices.probability:
        params["rather"] = PROBABILITY
    if choices.methods is not None:
        params["methods"] = ",".join(choices.methods) or "none"
    if choices.positive:
        params["sign"] = "positive"
    if not choices.words:
        params["of"] = "tokens"
    kept = [example for example in choices.examples if example in examples]
    if kept:
        params["like"] = ",".join(kept)
    if choices.position is not None:
        params["at"] = str(choices.position)
    if choices.token is not None:
        params["word"] = str(choices.token)
    if choices.every_word:
        params["table"] = "words"
    if choices.check != EvidenceChoices.check:
        params["check"] = choices.check
    if choices.cosine:
        params["measure"] = "cosine"
    if choices.options:
        params["options"] = ",".join(
            f"{method}.{key}:{value}" for method, options in choices.options for key, value in options
        )
    return params


def read_evidence(
    choices: EvidenceChoices, name: str, value: str, *, examples: Sequence[str] = ()
) -> EvidenceChoices | None:
    """The choices with one parameter of a link taken over; None where it is not understood."""
    if (name, value) in _WORDS:
        return replace(choices, **_WORDS[name, value])
    if name in _NUMBERS:
        return replace(choices, **_NUMBERS[name](int(value))) if _CLASS.fullmatch(value) else None
    if name == "methods":
        keys = [] if value == "none" else value.split(",")
        if len(keys) > MOST_METHODS or not all(map(_METHOD.fullmatch, keys)):
            return None
        return replace(choices, methods=tuple(dict.fromkeys(keys)))
    if name == "check":
        return replace(choices, check=value) if value in get_args(Check) else None  # type: ignore[arg-type]
    if name == "like":
        ids = value.split(",")
        known = len(ids) <= MOST_EXAMPLES and all(_EXAMPLE.fullmatch(i) and i in examples for i in ids)
        return replace(choices, examples=tuple(dict.fromkeys(ids))) if known else None
    if name == "options":
        options = _read_options(value)
        return None if options is None else replace(choices, options=options)
    return None


_WORDS: Mapping[tuple[str, str], Mapping[str, Any]] = {
    ("class", EXAMPLES): {"target": None, "likeness": True},
    ("rather", PROBABILITY): {"rather": None, "probability": True},
    ("sign", "signed"): {"positive": False},
    ("sign", "positive"): {"positive": True},
    ("of", "words"): {"words": True},
    ("of", "tokens"): {"words": False},
    ("table", "words"): {"every_word": True},
    ("measure", "dot"): {"cosine": False},
    ("measure", "cosine"): {"cosine": True},
}
"""What a word in a link chooses, by the parameter's name."""

_NUMBERS: Mapping[str, Callable[[int], Mapping[str, Any]]] = {
    "class": lambda index: {"target": index, "likeness": False},
    "rather": lambda index: {"rather": index, "probability": False},
    "beside": lambda index: {"beside": index},
    "at": lambda index: {"position": index},
    "word": lambda index: {"token": index},
}
"""What a number in a link chooses, by the parameter's name."""

EVIDENCE_PARAMETERS = (
    *("class", "rather", "beside", "table", "methods", "sign", "of", "like", "at", "word", "check"),
    *("measure", "options", "table"),
)


def _read_options(value: str) -> MethodOptions | None:
    """``rollout.fusion:max,gradcam.layer:3`` as options; whether a method has them is not known here."""
    parts = value.split(",")
    found = [_OPTION.fullmatch(part) for part in parts]
    if len(parts) > MOST_OPTIONS or None in found:
        return None
    options: MethodOptions = ()
    for part in filter(None, found):
        method, key, written = part.groups()
        options = with_option(options, method, key, _value_of(written))
    return options


def _value_of(written: str) -> Value:
    if written[0].isalpha():
        return written
    return float(written) if "." in written else int(written)


def clamped_evidence(
    choices: EvidenceChoices,
    *,
    classes: int,
    methods: Mapping[str, object],
    positions: int | None = None,
    probable: bool = True,
    embeds: bool = True,
) -> EvidenceChoices:
    """The choices fitted to a model: classes and methods that it does not have are dropped.

    Args:
        classes: of its head; 0 without one.
        methods: those that there are, in their order.
        positions: of the tokens of a text, for a language model.
        probable: the classes have probabilities.
        embeds: beside its head the model shows the embedding that a likeness needs.
    """

    def known(index: int | None) -> int | None:
        return index if index is not None and index < classes else None

    target = known(choices.target)
    rather, beside = known(choices.rather), known(choices.beside)
    return replace(
        choices,
        target=target,
        rather=None if rather is not None and rather == target else rather,
        beside=None if beside is not None and beside == target else beside,
        methods=None if choices.methods is None else tuple(key for key in methods if key in choices.methods),
        position=None if positions is not None and (choices.position or 0) >= positions else choices.position,
        likeness=choices.likeness and embeds and classes > 0,
        probability=choices.probability and probable and classes > 0,
    )
