"""What a model with a classification head says of an input, and how far it can be believed.

Probabilities are the softmax of logits / temperature, the temperature fitted on held-out examples (Guo et al. 2017);
a model without one is taken at its word. A model that knows how held-out examples of its classes looked also says how
unlike them an input is: by its highest probability (Hendrycks & Gimpel 2017) and by the distance of its features to
the training ones (Lee et al. 2018). A classifier names one of its classes for any picture at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

if TYPE_CHECKING:
    from analysis.models import LoadedModel
    from analysis.trace import Trace

Kind = Literal["softmax", "sigmoid", "value"]

UNSURE, FAR = 0.95, 0.99
"""Shares of held-out examples of the known classes, of which the model is surer, or which lie nearer to a class; an
input beyond either is called unfamiliar. The first tells strangers apart far better, so it is the stricter one."""


@dataclass(frozen=True)
class Familiarity:
    """Where training features lie.

    Attributes:
        centre: (F,); ``whitening``: (F, k); ``means``: (C, k) of the classes, in whitened space.
        distances: (101,) percentiles of the distance from held-out examples to the nearest class mean.
        sureness: (101,) percentiles of the highest probability of held-out examples.
    """

    centre: Tensor
    whitening: Tensor
    means: Tensor
    distances: Tensor
    sureness: Tensor

    def distance(self, features: Tensor) -> float:
        """Distance of features (F,) to the nearest class mean, in standard deviations within a class."""
        placed = (features.float().cpu() - self.centre) @ self.whitening  # (k,)
        return float(torch.linalg.vector_norm(self.means - placed, dim=-1).min())

    def share_nearer(self, features: Tensor) -> float:
        """Share of held-out examples, 0 to 1, that lie nearer to a class than these features do."""
        return float((self.distances < self.distance(features)).float().mean())

    def share_surer(self, probability: float) -> float:
        """Share of held-out examples, 0 to 1, whose highest probability is above this one."""
        return float((self.sureness > probability).float().mean())


@dataclass(frozen=True)
class Prediction:
    """What a head says of one input.

    Attributes:
        kind: ``softmax`` (one class), ``sigmoid`` (each class by itself), or ``value`` (regression).
        labels: C names.
        scores: (C,) probabilities, or the values.
        logits: (C,) as the head gives them.
        temperature: what they were divided by.
        share_nearer: share of held-out examples whose features are more like the training ones; None: not known.
        share_surer: share of held-out examples that the model is surer of; None: not known.
    """

    kind: Kind
    labels: tuple[str, ...]
    scores: Tensor
    logits: Tensor
    temperature: float
    share_nearer: float | None = None
    share_surer: float | None = None

    @property
    def unsure(self) -> bool:
        """Whether the model is surer of nearly every held-out example of its classes."""
        return self.share_surer is not None and self.share_surer >= UNSURE

    @property
    def far(self) -> bool:
        """Whether the features lie farther from every class than those of nearly every held-out example."""
        return self.share_nearer is not None and self.share_nearer >= FAR

    @property
    def unfamiliar(self) -> bool:
        """Whether the input is unlike nearly everything that the model was tried on."""
        return self.unsure or self.far

    def best(self, count: int) -> list[tuple[str, float, int]]:
        """The highest scores: label, score, class index."""
        order = self.scores.argsort(descending=True, stable=True)[:count].tolist()
        return [(self.labels[index], float(self.scores[index]), index) for index in order]


def prediction_of(
    logits: Tensor,
    labels: tuple[str, ...],
    *,
    kind: Kind = "softmax",
    temperature: float = 1.0,
    familiarity: Familiarity | None = None,
    features: Tensor | None = None,
) -> Prediction:
    """A prediction from the logits (C,) of a classification or regression head.

    Raises:
        ValueError: if logits and labels do not belong together, or the temperature is not above 0.
    """
    if logits.shape != (len(labels),):
        raise ValueError(
            f"prediction_of: logits must be ({len(labels)},) for {len(labels)} labels but is {tuple(logits.shape)}; "
            "pass the logits of one input."
        )
    if not temperature > 0:
        raise ValueError(
            f"prediction_of: temperature must be above 0 but is {temperature}; 1 changes nothing."
        )
    scaled = logits.float() / temperature
    scores = {"softmax": scaled.softmax(-1), "sigmoid": scaled.sigmoid(), "value": logits.float()}[kind]
    nearer = surer = None
    if familiarity is not None:
        surer = familiarity.share_surer(float(scores.max()))
        nearer = None if features is None else familiarity.share_nearer(features)
    return Prediction(kind, labels, scores, logits, temperature, nearer, surer)


def predict(model: LoadedModel, traced: Trace) -> Prediction | None:
    """What the model's head says of the traced input; None for a model without a head for the whole input."""
    if model.kind is None or traced.logits is None:
        return None
    labels = model.labels or tuple(f"class {index}" for index in range(len(traced.logits)))
    return prediction_of(
        traced.logits,
        labels,
        kind=model.kind,
        temperature=model.temperature,
        familiarity=model.familiarity,
        features=traced.features,
    )
