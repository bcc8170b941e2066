"""What the Evidence views explain: a class by its logit, its probability or against another, or a likeness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import streamlit as st

from dashboard import cached, evidence_cache
from dashboard.evidence_choices import EvidenceChoices, clamped_evidence
from dashboard.frame import choice, note
from dashboard.selection import choose_evidence

if TYPE_CHECKING:
    from torch import Tensor

    from analysis.evidence.targets import Pooling, Target
    from analysis.models import LoadedModel
    from analysis.predictions import Prediction

Page = Literal["text", "image"]

NOTHING, PROBABILITY, LIKENESS = -1, -2, -3
"""Options of the select boxes that are no class."""

_CHANGES: Mapping[tuple[str, int], Mapping[str, Any]] = {
    ("target", LIKENESS): {"likeness": True, "target": None, "rather": None, "beside": None},
    ("rather", NOTHING): {"rather": None, "probability": False},
    ("rather", PROBABILITY): {"rather": None, "probability": True},
    ("beside", NOTHING): {"beside": None},
}
"""What is chosen by an option that is no class."""

_OF_A_CLASS: Mapping[str, Mapping[str, Any]] = {
    "target": {"likeness": False},
    "rather": {"probability": False},
    "beside": {},
}
"""What a class in a box takes back."""

_HELP = {
    "target": "What is explained: a class, or how alike the input is to examples that you give",
    "rather": "The number that is explained: the class's logit (before softmax), its probability, or the difference "
    "of its logit and that of another class, which tells why the first rather than the other",
    "beside": "Show the maps of this class next to those of the first, on the same scale",
}


def fitted(page: Page, choices: EvidenceChoices, traced: cached.Traced) -> EvidenceChoices:
    """The choices fitted to the model; kept in the selection where they change."""
    from analysis.evidence.methods import METHODS

    prediction = cached.prediction(traced)
    found = clamped_evidence(
        choices,
        classes=0 if prediction is None else len(prediction.labels),
        methods=METHODS,
        positions=None if traced.inputs.tokens is None else len(traced.inputs.tokens),
        probable=prediction is not None and prediction.kind != "value",
        embeds=embeds(traced.model),
    )
    if found != choices:
        choose_evidence(page, **{name: getattr(found, name) for name in found.__dataclass_fields__})
    return found


def embeds(model: LoadedModel) -> bool:
    """Whether a last hidden state is seen: not where a head is part of the encoder's own module."""
    return model.kind is None or getattr(model.module, "base_model", model.module) is not model.module


# Boxes --------------------------------------------------------------------------------------------------------------


def class_tools(page: Page, choices: EvidenceChoices, prediction: Prediction, *, likeness: bool) -> None:
    """What is explained, by which number, and a second class beside; classes by probability.

    Args:
        likeness: also offer the likeness to examples; the other two boxes are not shown for it.
    """
    order = [index for _, _, index in prediction.best(len(prediction.labels))]
    words = _class_words(prediction)
    target = order[0] if choices.target is None else choices.target
    names = {i: words[i] if prediction.kind == "value" else f"for {words[i]}" for i in order}
    if likeness:
        names[LIKENESS] = "likeness to examples …"
    if len(names) > 1:
        _class_box(page, "target", "Explained class", LIKENESS if choices.likeness else target, names)
    if choices.likeness or prediction.kind == "value":
        return
    others = [index for index in order if index != target]
    numbers = {
        NOTHING: "its logit",
        PROBABILITY: "its probability",
        **{i: f"rather than {words[i]}" for i in others},
    }
    number = PROBABILITY if choices.probability else NOTHING if choices.rather is None else choices.rather
    if others or prediction.kind == "sigmoid":
        _class_box(page, "rather", "Held against", number, numbers)
    if others:
        second = {NOTHING: "no class beside", **{i: f"beside {words[i]}" for i in others}}
        beside = NOTHING if choices.beside is None else choices.beside
        _class_box(page, "beside", "Second class", beside, second)


def _class_words(prediction: Prediction) -> Mapping[int, str]:
    if prediction.kind == "value" and len(prediction.labels) == 1:
        return {0: "predicted value"}
    return dict(enumerate(prediction.labels))


def _class_box(page: Page, name: str, label: str, value: int, words: Mapping[int, str]) -> None:
    key = f"{page}_evidence_{name}"

    def picked() -> None:
        chosen = st.session_state[key]
        choose_evidence(page, **_CHANGES.get((name, chosen), {name: chosen, **_OF_A_CLASS[name]}))

    choice(
        label,
        list(words),
        value if value in words else next(iter(words)),
        key=key,
        on_change=picked,
        words=words.__getitem__,
        width=156,
        help=_HELP[name],
    )


def measure_box(page: Page, choices: EvidenceChoices) -> None:
    """How a concept is measured."""
    key = f"{page}_evidence_measure"
    choice(
        "Measure",
        ("dot product", "cosine"),
        "cosine" if choices.cosine else "dot product",
        key=key,
        on_change=lambda: choose_evidence(page, cosine=st.session_state[key] == "cosine"),
        width=132,
        help="Of a concept: the dot product of embedding and direction, as the program of Brocki & Chung has it, or "
        "their cosine, which leaves the embedding's length out",
    )


# Targets ------------------------------------------------------------------------------------------------------------


def class_targets(choices: EvidenceChoices, prediction: Prediction) -> tuple[Target, ...]:
    """The targets of a model with a head: one, or two where a second class stands beside."""
    from analysis.evidence.targets import logit_difference, predicted_value

    labels = prediction.labels
    if prediction.kind == "value":
        index = choices.target or 0
        return (predicted_value(index, labels[index] if len(labels) > 1 else ""),)
    target = prediction.best(1)[0][2] if choices.target is None else choices.target
    first = class_target(target, prediction, probability=choices.probability)
    if choices.rather is not None and choices.rather != target:
        first = logit_difference(target, choices.rather, labels[target], labels[choices.rather])
    if choices.beside is None or choices.beside == target:
        return (first,)
    return first, class_target(choices.beside, prediction, probability=choices.probability)


def class_target(index: int, prediction: Prediction, *, probability: bool) -> Target:
    """A class by its logit, or by the probability that the page shows for it."""
    from analysis.evidence.targets import class_logit, class_probability

    label = prediction.labels[index]
    if not probability:
        return class_logit(index, label)
    return class_probability(index, label, temperature=prediction.temperature, kind=prediction.kind)


def likeness_target(
    embeddings: Sequence[Tensor], pooling: Pooling, *, name: str, examples: str, cosine: bool
) -> Target:
    """Likeness to one example, or a concept from several.

    Args:
        embeddings: (M,) of each example.
        name: of the one example; ``examples``: what several are called.
        cosine: of a concept; a likeness is one anyway.
    """
    from analysis.evidence.targets import concept_similarity, embedding_similarity, mean_direction

    if len(embeddings) == 1:
        return embedding_similarity(embeddings[0], f"likeness to “{name}”", pooling=pooling)
    label = f"the concept of {len(embeddings)} {examples}"
    return concept_similarity(mean_direction(embeddings), label, pooling=pooling, cosine=cosine)


# Words --------------------------------------------------------------------------------------------------------------

_NUMBERS = {
    "class_logit": "logit",
    "class_probability": "",
    "logit_difference": "difference of logits",
    "embedding_similarity": "cosine",
    "token_log_probability": "log probability",
}


def title_of(targets: Sequence[Target], chosen: evidence_cache.Subject) -> str:
    """What is explained, with its number."""
    names = [
        f"{target.label} ({f'{_number_of(target)} {chosen.run.value(target):.3g}'.strip()})"
        for target in targets
    ]
    return f"Evidence for {' and for '.join(names)}" if names else "Evidence"


def _number_of(target: Target) -> str:
    if target.kind == "concept_similarity":
        return "cosine" if target.key[3] is True else "dot product"
    return _NUMBERS.get(target.kind, "value")


def target_notes(targets: Sequence[Target]) -> None:
    """What to know of the targets."""
    for sentence in dict.fromkeys(target.note for target in targets if target.note):
        note(sentence)


def likeness_note(traced: cached.Traced, what: str) -> None:
    """Why no class is explained, where there is none, and what is instead.

    Args:
        what: is explained, "picture" or "text".
    """
    from analysis.evidence.targets import offered_targets

    refusal = next(offer.refusal for offer in offered_targets(traced.model) if offer.kind == "class_logit")
    reason = f"{refusal} " if cached.prediction(traced) is None else ""
    note(
        f"{reason}What is explained is how alike the {what}'s embedding is to that of another {what}, or to the mean "
        "of several: a concept."
    )
