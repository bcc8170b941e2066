"""What an answer is worth to the order of attention: the same weights, dealt to other positions.

Jain & Wallace 2019, section 4.2.1: the median total variation distance over 100 random permutations, against the
largest weight.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from analysis.adversarial.rows import FreeRows
from attn_core.replacements import shuffled_places

BATCH_WEIGHTS = 2_000_000
"""Weights of all permutations that are held at a time."""

TOLD = 8
"""Permutations of a transformer between two reports of progress."""


@dataclass(frozen=True, eq=False)
class Permutations:
    """Answers under permuted attention.

    Attributes:
        change: (B, S) of the answer under each permutation.
        answers: (B, S, C).
        most: (B,) the largest observed weight, mean over rows: the paper's horizontal axis.
        typical: (B, R, n) the weights of the permutation whose change is the median.
    """

    change: Tensor
    answers: Tensor
    most: Tensor
    typical: Tensor

    @property
    def median(self) -> Tensor:
        """(B,): the paper's vertical axis; with an even number the mean of the middle two, as NumPy has it."""
        return self.change.quantile(0.5, dim=-1)


def permutations(
    rows: FreeRows,
    *,
    count: int = 100,
    seed: int = 0,
    index: Tensor | None = None,
    progress: Callable[[float], None] | None = None,
) -> Permutations:
    """Permute every row's weights over the positions inside, each row by itself.

    Args:
        index: (B, S, R, n) where the weight of each place comes from; None: ``count`` random permutations.
        progress: told how much is done, 0 to 1; what it raises comes out.
    Raises:
        ValueError: if ``count`` is not at least 1.
    """
    if count < 1:
        raise ValueError(f"permutations: count must be at least 1 but is {count}.")
    places = random_places(rows.inside, count, seed) if index is None else index
    said, observed = rows.said(), rows.observed[:, None]
    step = max(1, BATCH_WEIGHTS // max(1, rows.observed.numel()))
    if rows.decoder is None:
        step = min(step, TOLD)  # each one is a pass
    parts = []
    for first in range(0, places.shape[1], step):
        part = places[:, first : first + step]
        parts.append(rows.answers(torch.gather(observed.expand(part.shape), -1, part)))
        if progress is not None:
            progress(min(1.0, (first + step) / places.shape[1]))
    answers = torch.cat(parts, dim=1)
    change = rows.change(answers, said)
    middle = change.argsort(dim=-1)[:, (change.shape[1] - 1) // 2]
    chosen = places[torch.arange(len(places)), middle]  # (B, R, n)
    return Permutations(
        change, answers, rows.observed.max(-1).values.mean(-1), torch.gather(rows.observed, -1, chosen)
    )


def random_places(inside: Tensor, count: int, seed: int) -> Tensor:
    """(B, S, R, n) random permutations of the places ``inside`` (B, R, n); the others stay."""
    batch, rows, size = inside.shape
    generator = torch.Generator().manual_seed(seed)
    noise = torch.rand(batch, count, rows, size, generator=generator).to(inside.device)
    return shuffled_places(noise, inside[:, None].expand(noise.shape))
