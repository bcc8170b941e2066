"""Named attention for one input, side by side, and what the model says with each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from analysis.adversarial.permutation import Permutations
from analysis.adversarial.rows import FreeRows
from analysis.adversarial.search import Adversaries
from analysis.visible_contrast import BY_HAND

OBSERVED, UNIFORM, PERMUTED = "observed", "uniform", "permuted"

LEAST = 1e-12
"""Weight that a reader must leave on the positions that a mask allows."""

Named = tuple[str, Tensor]
"""A name and weights (R, n)."""


@dataclass(frozen=True, eq=False)
class Candidates:
    """M distributions of one input; the first is the model's own.

    Attributes:
        names: M.
        weights: (M, R, n); ``answers``: (M, C); ``divergence``: (M,) in nats, mean over rows; ``change``: (M,).
    """

    names: tuple[str, ...]
    weights: Tensor
    answers: Tensor
    divergence: Tensor
    change: Tensor


def compare(rows: FreeRows, named: Sequence[Named]) -> Candidates:
    """The answers with each of these weights, in one batch, after the model's own.

    Raises:
        ValueError: if ``rows`` is not of one input.
    """
    if len(rows.observed) != 1:
        raise ValueError(f"compare: rows must be of one input but are of {len(rows.observed)}.")
    weights = torch.stack([rows.observed[0], *(each for _, each in named)])
    answers = rows.answers(weights[None])
    change = rows.change(answers, answers[:, 0])[0]
    return Candidates(
        (OBSERVED, *(name for name, _ in named)),
        weights,
        answers[0],
        rows.divergence(weights[None])[0],
        change,
    )


def edits(rows: FreeRows) -> list[Named]:
    """Attention that needs no search: alike on all, on the first or each query's own position, another head's."""
    inside, observed = rows.inside[0], rows.observed[0]
    found = [(UNIFORM, rows.uniform()[0, 0])]
    first = inside.to(torch.uint8).argmax(-1)
    found.append(("first only", torch.zeros_like(observed).scatter(-1, first[:, None], 1.0)))
    if rows.own is not None and not torch.equal(first, rows.own.to(first)):
        found.append(
            ("own place only", torch.zeros_like(observed).scatter(-1, rows.own[:, None].to(first), 1.0))
        )
    if rows.neighbours is not None:
        allowed = rows.neighbours * inside
        found.append(("next head's", allowed / allowed.sum(-1, keepdim=True)))
    return found


def adversaries(found: Adversaries, *, name: str, item: int = 0) -> list[Named]:
    """What a search found for one input, the farthest first; a start that found nothing is left out."""
    order = found.divergence[item].argsort(descending=True).tolist()
    kept = [index for index in order if float(found.divergence[item, index]) > 0]
    single = found.weights.shape[1] == 1
    return [
        (name if single else f"{name} {place + 1}", found.weights[item, index])
        for place, index in enumerate(kept)
    ]


def typical_permutation(found: Permutations, *, item: int = 0) -> Named:
    """The permutation whose change is the median."""
    return PERMUTED, found.typical[item]


def by_hand(rows: FreeRows, weights: Tensor) -> Named:
    """Weights (n,) that a reader set, on every row: what a mask forbids goes to the other positions in proportion."""
    inside = rows.inside[0]
    allowed = weights.to(rows.observed) * inside  # (R, n)
    total = allowed.sum(-1, keepdim=True)
    return BY_HAND, torch.where(total > LEAST, allowed / total.clamp(min=LEAST), rows.uniform()[0, 0])
