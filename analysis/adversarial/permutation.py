"""What an answer is worth to the order of attention: the same weights, dealt to other positions.

Jain & Wallace 2019, section 4.2.1: the median total variation distance over 100 random permutations, against the
largest weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from analysis.adversarial.rows import FreeRows
from attn_core.replacements import shuffled_places

BATCH_WEIGHTS = 2_000_000
"""Weights of all permutations that are held at a time."""

TOLD = 8
"""Permutations that are drawn together; of a transformer a report of progress follows each group."""


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
    said, observed = rows.said(), rows.observed[:, None]
    parts = []
    for first, places in _parts(rows, count, seed, index):
        parts.append(rows.answers(torch.gather(observed.expand(places.shape), -1, places)))
        if progress is not None:
            total = count if index is None else index.shape[1]
            progress((first + places.shape[1]) / total)
    answers = torch.cat(parts, dim=1)
    change = rows.change(answers, said)
    middle = change.argsort(dim=-1)[:, (change.shape[1] - 1) // 2].tolist()
    chosen = torch.stack(
        [
            _one(rows.inside[item], place, seed) if index is None else index[item, place]
            for item, place in enumerate(middle)
        ]
    )  # (B, R, n)
    return Permutations(
        change, answers, rows.observed.max(-1).values.mean(-1), torch.gather(rows.observed, -1, chosen)
    )


def random_places(inside: Tensor, count: int, seed: int) -> Tensor:
    """(B, S, R, n) random permutations of the places ``inside`` (B, R, n); the others stay.

    Those of an input are the same alone and among others, however long the batch is.
    """
    return torch.cat([_drawn(inside, group, seed) for group in range(-(-count // TOLD))], dim=1)[:, :count]


def _parts(rows: FreeRows, count: int, seed: int, index: Tensor | None) -> Iterator[tuple[int, Tensor]]:
    """(first, places) of some permutations at a time: a group where each one is a pass, else as many as fit."""
    most = max(1, BATCH_WEIGHTS // max(1, rows.observed.numel()))
    if index is not None or rows.decoder is not None:
        places = random_places(rows.inside, count, seed) if index is None else index
        step = most if rows.decoder is not None else TOLD
        yield from ((first, places[:, first : first + step]) for first in range(0, places.shape[1], step))
        return
    for first in range(0, count, TOLD):
        yield first, _drawn(rows.inside, first // TOLD, seed)[:, : count - first]


def _one(inside: Tensor, place: int, seed: int) -> Tensor:
    """(R, n) one permutation of one input."""
    return _drawn(inside[None], place // TOLD, seed)[0, place % TOLD]


def _drawn(inside: Tensor, group: int, seed: int) -> Tensor:
    """(B, TOLD, R, n) one group of permutations."""
    batch, rows, size = inside.shape
    noise = torch.zeros(batch, TOLD, rows, size)
    lengths = (inside.any(1) * torch.arange(1, size + 1, device=inside.device)).amax(-1).tolist()
    for item, length in enumerate(lengths):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + group)
        noise[item, ..., :length] = torch.rand(TOLD, rows, length, generator=generator)
    noise = noise.to(inside.device)
    return shuffled_places(noise, inside[:, None].expand(noise.shape))
