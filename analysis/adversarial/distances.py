"""How far apart two attention distributions are, and two predictions."""

from __future__ import annotations

import math

import torch
from torch import Tensor

LN2 = math.log(2)
"""The most that two distributions can be apart by the Jensen–Shannon divergence, in nats."""


def total_variation(p: Tensor, q: Tensor) -> Tensor:
    """½ Σ |p − q|, from 0 to 1: (..., C), (..., C) → (...).

    Of two classes it is the difference of the probabilities of one of them, which is what the program of Jain &
    Wallace 2019 takes for its one sigmoid output.
    """
    return (p - q).abs().sum(-1) / 2


def jensen_shannon(p: Tensor, q: Tensor) -> Tensor:
    """Jensen–Shannon divergence in nats, from 0 to ln 2 (Jain & Wallace 2019, section 4.2): (..., n) → (...).

    Positions where both are 0, such as padding, do not count, and their gradient is 0.
    """
    middle = (p + q) / 2
    return (_relative(p, middle) + _relative(q, middle)).clamp(min=0.0) / 2


def kullback_leibler(p: Tensor, q: Tensor) -> Tensor:
    """KL(p ‖ q) in nats: (..., n) → (...); infinite where q is 0 and p is not."""
    beyond = ((q <= 0) & (p > 0)).any(-1)
    return torch.where(beyond, torch.full_like(p[..., 0], math.inf), _relative(p, q))


def farthest(weights: Tensor, inside: Tensor) -> tuple[Tensor, Tensor]:
    """The most that any distribution over the positions ``inside`` is apart from this one, and where it stands.

    The divergence is convex in the other distribution, so the farthest one has all its weight on one position, and
    that is where the observed weight is least.

    Args:
        weights: (..., n) distributions; ``inside``: (..., n) bool.
    Returns:
        (...) the divergence, at most ln 2, and (...) the position.
    """
    place = weights.masked_fill(~inside, math.inf).argmin(-1)
    corner = torch.zeros_like(weights).scatter(-1, place[..., None], 1.0)
    return jensen_shannon(corner, weights), place


def _relative(p: Tensor, q: Tensor) -> Tensor:
    """Σ p log(p / q) over the positions where p is above 0."""
    some = p > 0
    ratio = torch.where(some, p, 1.0) / torch.where(some & (q > 0), q, 1.0)
    return torch.where(some, p * ratio.log(), 0.0).sum(-1)
