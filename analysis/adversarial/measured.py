"""What the checks of Wiegreffe & Pinter 2019 gave on the bundled sentence classifier, measured once.

``python -m scripts.wiegreffe_pinter`` trains the models and writes ``wiegreffe_pinter.json``; here it is read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

from analysis.adversarial.distances import LN2
from attn_core.models.classifier import Scoring

FILE = Path(__file__).with_name("wiegreffe_pinter.json")

Kind = Literal[
    "base", "uniform", "seed", "adversary", "guide_uniform", "guide_learned", "guide_base", "guide_adversary"
]
"""What was trained: the base model; one with attention frozen to uniform (section 3.1); the base with another seed
(3.2); an adversary (4); a classifier of words without context (3.3), weighted uniformly, by attention of its own, by
the base's or by an adversary's."""


@dataclass(frozen=True)
class Estimate:
    """A figure on the test sentences and its 95 % interval over them."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class TrainedModel:
    """One training run.

    Attributes:
        kind: what was trained.
        scoring: similarity function of the base's attention.
        seed: of initial weights and order.
        trade_off: λ of an adversary, also of the one that guides; None for others.
        epochs: trained; ``best_epoch``: the one that was kept, both counted from 1; 0 for a base that was there.
        accuracy: Wilson interval.
        f1: of the positive class, bootstrap interval.
        jsd: mean Jensen–Shannon divergence of its attention to the base's, in nats; None for words without context.
        tvd: mean total variation distance of its predictions to the base's; None likewise.
    """

    kind: Kind
    scoring: Scoring
    seed: int
    trade_off: float | None
    epochs: int
    best_epoch: int
    accuracy: Estimate
    f1: Estimate
    jsd: Estimate | None
    tvd: Estimate | None


@dataclass(frozen=True)
class Measurements:
    """Every run, and how they were made.

    Attributes:
        models: in the order of the tables.
        protocol: facts in words, by name.
    """

    models: tuple[TrainedModel, ...]
    protocol: Mapping[str, str]

    def of(self, kind: Kind, scoring: Scoring = "additive") -> tuple[TrainedModel, ...]:
        """The runs of a kind, adversaries by rising λ."""
        found = [model for model in self.models if model.kind == kind and model.scoring == scoring]
        return tuple(sorted(found, key=lambda model: (model.trade_off or 0.0, model.seed)))


def wiegreffe_pinter(path: Path = FILE) -> Measurements:
    """The measurements of the file.

    Raises:
        ValueError: if a figure in it cannot be: outside its interval or its range.
    """
    data = json.loads(path.read_text(encoding="utf-8"))
    models = tuple(_model(row) for row in data["models"])
    return Measurements(models, MappingProxyType(dict(data["protocol"])))


def _model(row: Mapping[str, Any]) -> TrainedModel:
    ranges = {"accuracy": 1.0, "f1": 1.0, "jsd": LN2, "tvd": 1.0}
    estimates = {name: None if row[name] is None else Estimate(**row[name]) for name in ranges}
    for name, found in estimates.items():
        if found is not None and not 0 <= found.low <= found.value <= found.high <= ranges[name]:
            raise ValueError(
                f"wiegreffe_pinter: {name} of {row['kind']} must lie in its interval and between 0 and "
                f"{ranges[name]:.3f} but is {found}; write the file anew with scripts/wiegreffe_pinter.py."
            )
    if row["kind"] not in get_args(Kind) or row["scoring"] not in get_args(Scoring):
        raise ValueError(
            f"wiegreffe_pinter: kind and scoring must be of the known ones but are {row['kind']!r} and "
            f"{row['scoring']!r}; write the file anew with scripts/wiegreffe_pinter.py."
        )
    if row["trade_off"] is not None and not 0 <= row["trade_off"] < math.inf:
        raise ValueError(
            f"wiegreffe_pinter: trade_off must be at least 0 but is {row['trade_off']}; write the file anew."
        )
    return TrainedModel(**{**row, **estimates})
