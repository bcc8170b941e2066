"""What is explained: one number of a model's output, as a function that gradients go through.

A ``Target`` turns the outputs of a forward pass into one number an item. Which targets make sense depends on the
model: ``class_logit`` needs a classification head, ``concept_similarity`` works on a bare encoder.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from attn_core.errors import UnsupportedModelError
from attn_core.functional import at_least_float32

if TYPE_CHECKING:
    from analysis.models import LoadedModel
    from analysis.predictions import Kind

Pooling = Literal["first", "mean"]


@dataclass(frozen=True)
class Outputs:
    """What a target reads; half precision is widened before it is reckoned with.

    Attributes:
        logits: (B, C), or (B, T, V) of a language model; None without a head.
        hidden: (B, N, M) of the encoder (or only stack) after its last layer and normalisation; None if not seen.
        kept: (n,) positions that are no special tokens.
    """

    logits: Tensor | None
    hidden: Tensor | None
    kept: Tensor

    def embedding(self, pooling: Pooling) -> Tensor:
        """(B, M): the first position (CLS), or the mean over the positions that are no special tokens.

        Raises:
            UnsupportedModelError: if the last hidden state was not seen.
        """
        if self.hidden is None:
            raise UnsupportedModelError(
                "Outputs.embedding: the last hidden state of this model was not seen; choose a target of its head."
            )
        return at_least_float32(
            self.hidden[:, 0] if pooling == "first" else self.hidden[:, self.kept].mean(1)
        )


@dataclass(frozen=True, eq=False)
class Target:
    """One number of the output.

    Attributes:
        kind: name of the function that made it.
        label: what a reader sees, such as "elephant" or "elephant rather than rhinoceros".
        value: outputs → (B,).
        key: tells targets of one model apart, for caches.
        note: what to know of it; "" if nothing.
    """

    kind: str
    label: str
    value: Callable[[Outputs], Tensor]
    key: tuple[object, ...]
    note: str = ""

    @property
    def reads_classes(self) -> bool:
        """Whether it reads the logits of a head of classes or numbers, and nothing else."""
        return self.kind in ("class_logit", "class_probability", "logit_difference", "predicted_value")


def class_logit(index: int, label: str = "") -> Target:
    """The logit of a class, before softmax: what nearly all of the literature explains."""
    return Target(
        "class_logit",
        label or f"class {index}",
        lambda outputs: _classes(outputs)[:, _known(outputs, index)],
        ("class_logit", index),
    )


def class_probability(
    index: int, label: str = "", *, temperature: float = 1.0, kind: Kind = "softmax"
) -> Target:
    """The probability of a class: softmax, or where each class stands by itself sigmoid, of logits / temperature.

    Its gradient vanishes where the model is sure: a map of it is faint then, and the logit's is not.

    Args:
        temperature: of the model's predictions, so that this is the probability that is shown for them.
        kind: of the model's head (``analysis.predictions.Prediction.kind``).
    Raises:
        ValueError: if the head gives values and no probabilities, or the temperature is not above 0.
    """
    share = {"softmax": lambda logits: logits.softmax(-1), "sigmoid": torch.sigmoid}.get(kind)
    if share is None:
        raise ValueError(
            f"class_probability: kind must be softmax or sigmoid but is {kind!r}; explain the predicted value."
        )
    if not temperature > 0:
        raise ValueError(
            f"class_probability: temperature must be above 0 but is {temperature}; 1 changes nothing."
        )
    return Target(
        "class_probability",
        f"probability of {label or f'class {index}'}",
        lambda outputs: share(_classes(outputs) / temperature)[:, _known(outputs, index)],
        ("class_probability", index, kind, temperature),
        "Its gradient vanishes where the model is sure; the logit's does not.",
    )


def logit_difference(a: int, b: int, label_a: str = "", label_b: str = "") -> Target:
    """Why a rather than b: logit of a − logit of b.

    Raises:
        ValueError: if a is b.
    """
    if a == b:
        raise ValueError(f"logit_difference: a and b must be two classes but both are {a}; choose another.")
    return Target(
        "logit_difference",
        f"{label_a or f'class {a}'} rather than {label_b or f'class {b}'}",
        lambda outputs: _classes(outputs)[:, _known(outputs, a)] - _classes(outputs)[:, _known(outputs, b)],
        ("logit_difference", a, b),
    )


def predicted_value(index: int = 0, label: str = "") -> Target:
    """The number that a regression head predicts: positive scores push it up, negative ones down."""
    return Target(
        "predicted_value",
        label or "predicted value",
        lambda outputs: _classes(outputs)[:, _known(outputs, index)],
        ("predicted_value", index),
        "Positive scores push the predicted number up, negative ones push it down.",
    )


def token_log_probability(position: int, token: int, label: str = "") -> Target:
    """Natural logarithm of a token's probability at one position of a masked or causal language model.

    Args:
        position: of the logits that predict it: the mask's own, or the one before it in a causal model.
        token: index in the vocabulary.
    """

    def value(outputs: Outputs) -> Tensor:
        logits = outputs.logits
        if logits is None or logits.ndim != 3:
            raise UnsupportedModelError(
                "token_log_probability: the model predicts no tokens; choose a masked or causal language model."
            )
        if not 0 <= position < logits.shape[1] or not 0 <= token < logits.shape[2]:
            raise ValueError(
                f"token_log_probability: position and token must be below {logits.shape[1]} and {logits.shape[2]} "
                f"but are {position} and {token}."
            )
        return at_least_float32(logits[:, position]).log_softmax(-1)[:, token]

    return Target(
        "token_log_probability",
        label or f"token {token} at {position}",
        value,
        ("token_log_probability", position, token),
    )


def concept_similarity(
    direction: Tensor, label: str, *, pooling: Pooling, cosine: bool = False, kind: str = "concept_similarity"
) -> Target:
    """How far the input's embedding points along a direction: their dot product (Brocki & Chung 2023, concepts).

    Args:
        direction: (M,), such as the mean embedding of some examples.
        pooling: how an embedding is read from the last hidden state, of examples and input alike.
        cosine: divide by both lengths.
    Raises:
        ValueError: if the direction is 0.
    """
    direction = direction.detach()
    length = float(direction.norm())
    if not length > 0:
        raise ValueError("concept_similarity: direction must not be 0; give other examples.")

    def value(outputs: Outputs) -> Tensor:
        embedding = outputs.embedding(pooling)
        product = embedding @ direction.to(embedding)
        return product / (embedding.norm(dim=-1) * length) if cosine else product

    told = tuple(round(float(v), 6) for v in (direction.sum(), length, direction[0], direction[-1]))
    return Target(kind, label, value, (kind, label, pooling, cosine, *told))


def embedding_similarity(other: Tensor, label: str, *, pooling: Pooling) -> Target:
    """Cosine of the input's embedding and that of a second text or picture, (M,)."""
    return concept_similarity(other, label, pooling=pooling, cosine=True, kind="embedding_similarity")


def default_pooling(model: LoadedModel) -> Pooling:
    """How a model's embedding is usually read: CLS where a picture model has one, else the mean of the positions."""
    return "first" if model.modality == "image" and model.prefix_tokens else "mean"


@dataclass(frozen=True)
class Offered:
    """A kind of target, and why a model does not have it; "" where it does."""

    kind: str
    title: str
    refusal: str = ""


def offered_targets(model: LoadedModel) -> tuple[Offered, ...]:
    """Every kind of target, with the reason where it makes no sense for this model."""
    head = "" if model.kind in ("softmax", "sigmoid") else "The model has no classification head."
    several = head or ("" if len(model.labels or ()) != 1 else "The model has one class only.")
    value = "" if model.kind == "value" else "The model has no regression head."
    words = "" if _predicts_tokens(model) else "The model predicts no tokens."
    return (
        Offered("class_logit", "A class", head),
        Offered("logit_difference", "One class rather than another", several),
        Offered("class_probability", "The probability of a class", head),
        Offered("predicted_value", "The predicted value", value),
        Offered("token_log_probability", "A word that the model predicts", words),
        Offered("concept_similarity", "A concept, from examples"),
        Offered("embedding_similarity", "Likeness to another input"),
    )


def _predicts_tokens(model: LoadedModel) -> bool:
    return any(
        part in model.task for part in ("masked", "causal", "language", "generation", "fill", "seq2seq")
    )


def mean_direction(embeddings: Sequence[Tensor]) -> Tensor:
    """(M,): the mean of embeddings (M,), as the concept of the examples that they belong to.

    Raises:
        ValueError: if there is none.
    """
    if not embeddings:
        raise ValueError("mean_direction: embeddings must hold at least one example but is empty.")
    return torch.stack(list(embeddings)).mean(0)


def _classes(outputs: Outputs) -> Tensor:
    if outputs.logits is None or outputs.logits.ndim != 2:
        raise UnsupportedModelError(
            "class_logit: the model has no classification head; choose a concept or the likeness to another input."
        )
    return at_least_float32(outputs.logits)


def _known(outputs: Outputs, index: int) -> int:
    count = _classes(outputs).shape[1]
    if not 0 <= index < count:
        raise ValueError(f"class_logit: index must be between 0 and {count - 1} but is {index}.")
    return index
