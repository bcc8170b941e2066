"""What is chosen in the Evidence view of either page: what is explained, by which methods, and how it is drawn.

Part of the selection (``dashboard.selection``): frozen, kept in the session, mirrored in links. Classes are indices
of the model's head; what a link says is checked for form here and fitted to the model by ``clamped_evidence``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

MOST_METHODS = 16
MOST_EXAMPLES = 12
"""Pictures or sentences that a concept is made of."""

_METHOD = re.compile(r"[a-z][a-z0-9_]{0,39}")
_CLASS = re.compile(r"\d{1,6}", re.ASCII)
_EXAMPLE = re.compile(r"[a-z0-9][a-z0-9_-]{0,47}", re.ASCII)


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
    return params


def read_evidence(
    choices: EvidenceChoices, name: str, value: str, *, examples: Sequence[str] = ()
) -> EvidenceChoices | None:
    """The choices with one parameter of a link taken over; None where it is not understood."""
    numbers = {"class": "target", "rather": "rather", "beside": "beside", "at": "position", "word": "token"}
    if name in numbers:
        return replace(choices, **{numbers[name]: int(value)}) if _CLASS.fullmatch(value) else None  # type: ignore[arg-type]
    if name == "methods":
        keys = [] if value == "none" else value.split(",")
        if len(keys) > MOST_METHODS or not all(map(_METHOD.fullmatch, keys)):
            return None
        return replace(choices, methods=tuple(dict.fromkeys(keys)))
    if name == "sign":
        return replace(choices, positive=value == "positive") if value in ("signed", "positive") else None
    if name == "of":
        return replace(choices, words=value == "words") if value in ("words", "tokens") else None
    if name == "like":
        ids = value.split(",")
        known = len(ids) <= MOST_EXAMPLES and all(_EXAMPLE.fullmatch(i) and i in examples for i in ids)
        return replace(choices, examples=tuple(dict.fromkeys(ids))) if known else None
    return None


EVIDENCE_PARAMETERS = ("class", "rather", "beside", "methods", "sign", "of", "like", "at", "word")


def clamped_evidence(
    choices: EvidenceChoices, *, classes: int, methods: Mapping[str, object], positions: int | None = None
) -> EvidenceChoices:
    """The choices fitted to a model: classes and methods that it does not have are dropped.

    Args:
        classes: of its head; 0 without one.
        methods: those that there are, in their order.
        positions: of the tokens of a text, for a language model.
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
    )
