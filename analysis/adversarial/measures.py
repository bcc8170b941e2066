"""What a model says, as one vector, and how far apart two answers are.

The papers compare probabilities of classes by their total variation distance. A language model's answer is the
distribution of a token; a model without a head answers with an embedding alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from analysis.adversarial.distances import total_variation
from analysis.evidence.targets import Outputs, Pooling, default_pooling
from attn_core.errors import UnsupportedModelError
from attn_core.functional import at_least_float32

if TYPE_CHECKING:
    from analysis.inputs import Inputs
    from analysis.models import LoadedModel

MeasureKind = Literal["classes", "labels", "token", "value", "embedding"]

CHANGE_NAMES = {
    "classes": "TVD",
    "labels": "mean change of probability",
    "token": "TVD",
    "value": "change of value",
    "embedding": "cosine distance",
}
"""What the distance of two answers is called."""


@dataclass(frozen=True, eq=False)
class Measure:
    """What is compared.

    Attributes:
        kind: ``classes`` (softmax), ``labels`` (each a sigmoid), ``token`` (softmax over the vocabulary), ``value``
            or ``embedding``.
        read: outputs → (B, C).
        labels: C names of the numbers; () where they have none.
        key: tells measures of one model apart, for caches.
    """

    kind: MeasureKind
    read: Callable[[Outputs], Tensor]
    labels: tuple[str, ...]
    key: tuple[object, ...]

    @property
    def name(self) -> str:
        """What the distance is called."""
        return CHANGE_NAMES[self.kind]

    @property
    def bound(self) -> float | None:
        """The most that two answers can be apart; None where there is no end."""
        return {"value": None, "embedding": 2.0}.get(self.kind, 1.0)

    def distance(self, p: Tensor, q: Tensor) -> Tensor:
        """How far answers are apart: (..., C), (..., C) → (...)."""
        if self.kind in ("classes", "token"):
            return total_variation(p, q)
        if self.kind == "embedding":
            return (1 - torch.nn.functional.cosine_similarity(p, q, dim=-1)).clamp(min=0.0)
        return (p - q).abs().mean(-1)


def class_probabilities(labels: tuple[str, ...], *, temperature: float = 1.0) -> Measure:
    """Softmax of logits / temperature.

    Args:
        temperature: 1 for the papers' protocol; the model's own for the probabilities that are shown.
    """
    return Measure(
        "classes",
        lambda outputs: (at_least_float32(_logits(outputs)) / temperature).softmax(-1),
        labels,
        ("classes", temperature),
    )


def measure_of(model: LoadedModel, inputs: Inputs, *, position: int | None = None) -> Measure:
    """What this model is best asked for: its classes, values, a token, or the embedding of the input.

    Args:
        position: of the token that a language model predicts; None for the first mask, or the end of a causal model.
    Raises:
        UnsupportedModelError: if the model gives neither a head's answer nor an embedding.
    """
    labels = model.labels or ()
    if model.kind == "softmax":
        return class_probabilities(labels, temperature=model.temperature)
    if model.kind == "sigmoid":
        heat = model.temperature
        return Measure(
            "labels",
            lambda outputs: torch.sigmoid(at_least_float32(_logits(outputs)) / heat),
            labels,
            ("labels",),
        )
    if model.kind == "value":
        return Measure(
            "value", lambda outputs: at_least_float32(_logits(outputs)), labels or ("value",), ("value",)
        )
    place = _predicted_place(model, inputs) if position is None else position
    if place is not None:
        return Measure(
            "token",
            lambda outputs: at_least_float32(_logits(outputs)[:, place]).softmax(-1),
            (),
            ("token", place),
        )
    pooling: Pooling = default_pooling(model)
    return Measure("embedding", lambda outputs: outputs.embedding(pooling), (), ("embedding", pooling))


def _predicted_place(model: LoadedModel, inputs: Inputs) -> int | None:
    """Position whose logits are read: the first mask's, or the last of a causal model or of a decoder."""
    if model.task not in ("masked-lm", "causal-lm", "seq2seq-lm"):
        return None
    if model.task == "masked-lm":
        mask = getattr(model.processor, "mask_token_id", None)
        ids = inputs.tensors["input_ids"][0].tolist()
        return ids.index(mask) if mask in ids else None
    if model.is_encoder_decoder:
        return len(inputs.target_tokens or ()) - 1
    return int(inputs.tensors["input_ids"].shape[1]) - 1


def _logits(outputs: Outputs) -> Tensor:
    if outputs.logits is None:
        raise UnsupportedModelError(
            "measure: the model has no head; compare the embeddings of its inputs instead."
        )
    return outputs.logits
