"""One answer of one method: signed evidence for each token or patch, with what it claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from analysis.figure_data import TokenLabel
from analysis.inputs import Inputs, PatchGrid
from analysis.words import word_groups

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Explanation:
    """Signed scores of what went in; raw, never scaled for drawing.

    Attributes:
        method: key of the method, as in ``analysis.evidence.methods.METHODS``.
        target: what is explained, in words; "" for a method that asks for none.
        scores: (n,) on the CPU, at least float32: a token's or patch's evidence. Special tokens are left out.
        positions: (n,) index of each among the model's positions.
        signed: it may hold evidence against the target; else scores are at least 0.
        grid: patches of a picture; scores are its rows one after the other. None for text.
        removed: share of Σ|score| that lay on special tokens, which are left out.
        details: numbers that belong to the answer (a convergence error, steps ...), by name.
        notes: what to know of this one answer, beside what is known of its method.
    """

    method: str
    target: str
    scores: Tensor
    positions: Tensor
    signed: bool
    grid: PatchGrid | None = None
    removed: float = 0.0
    details: Mapping[str, float | str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_grid(self) -> Tensor:
        """(rows, columns) of a picture's patches.

        Raises:
            ValueError: for a text.
        """
        if self.grid is None:
            raise ValueError(
                "Explanation.to_grid: the explanation is of a text and has no grid; use its scores."
            )
        return self.scores.reshape(self.grid.rows, self.grid.columns)

    def positive(self) -> Tensor:
        """(n,) scores with evidence against the target set to 0: a drawing option, as GradCAM's rectifier."""
        return self.scores.clamp(min=0.0)

    @property
    def has_positive(self) -> bool:
        """Whether anything speaks for the target."""
        return bool((self.scores > 0).any())

    def strongest(self, count: int) -> list[int]:
        """Indices into ``scores`` of the highest |score|, highest first; ties in reading order."""
        return self.scores.abs().argsort(descending=True, stable=True)[:count].tolist()


def explanation_of(
    method: str,
    raw: Tensor,
    inputs: Inputs,
    *,
    target: str = "",
    signed: bool = True,
    details: Mapping[str, float | str] | None = None,
    notes: Sequence[str] = (),
) -> Explanation:
    """The explanation of raw scores, one for each of the model's positions, special ones left out.

    Args:
        raw: (N,), N the encoder's (or only stack's) positions, prefix and special tokens included.
    Raises:
        ValueError: if there is not one score a position.
    """
    kept = kept_positions(inputs)
    expected = position_count(inputs)
    if raw.shape != (expected,):
        raise ValueError(
            f"explanation_of: raw must be ({expected},), one score a position of the model, but is "
            f"{tuple(raw.shape)}."
        )
    raw = raw.detach().cpu()
    raw = raw.to(torch.promote_types(raw.dtype, torch.float32))
    total = float(raw.abs().sum())
    left_out = total - float(raw[kept].abs().sum())
    return Explanation(
        method=method,
        target=target,
        scores=raw[kept].contiguous(),
        positions=kept,
        signed=signed,
        grid=inputs.grid,
        removed=max(left_out, 0.0) / total if total > 0 else 0.0,
        details=dict(details or {}),
        notes=tuple(notes),
    )


def position_count(inputs: Inputs) -> int:
    """Positions of the encoder, or of the only stack, special ones included."""
    if inputs.grid is not None:
        return inputs.grid.prefix_tokens + inputs.grid.rows * inputs.grid.columns
    return len(inputs.tokens or ())


def kept_positions(inputs: Inputs) -> Tensor:
    """(n,) positions of what the user gave: patches, or tokens that the tokenizer did not add."""
    if inputs.grid is not None:
        return torch.arange(inputs.grid.prefix_tokens, position_count(inputs))
    return torch.tensor(
        [i for i, token in enumerate(inputs.tokens or ()) if not token.special], dtype=torch.long
    )


def to_words(
    explanation: Explanation, tokens: Sequence[TokenLabel]
) -> tuple[Explanation, list[tuple[int, ...]]]:
    """Scores of sub-words summed into words.

    Words come from the tokenizer's offsets into the text as typed, not from prefixes such as ``##``.

    Returns:
        the explanation with one score a word (``positions``: of a word's first token), and the positions of the
        tokens of each word.
    """
    index = {int(position): order for order, position in enumerate(explanation.positions)}
    groups = [group for group in word_groups(tokens) if group[0] in index]
    scores = (
        torch.stack([explanation.scores[[index[i] for i in group]].sum() for group in groups])
        if groups
        else (torch.zeros(0))
    )
    first = torch.tensor([group[0] for group in groups], dtype=torch.long)
    return replace(explanation, scores=scores, positions=first), groups


def upsample(grid: Tensor, height: int, width: int, *, smooth: bool = False) -> NDArray[np.float32]:
    """(rows, columns) → (height, width): each patch as its square, or bilinear with half-pixel centres."""
    mode = {"mode": "bilinear", "align_corners": False} if smooth else {"mode": "nearest-exact"}
    drawn = torch.nn.functional.interpolate(grid[None, None].float(), size=(height, width), **mode)
    found: NDArray[np.float32] = drawn[0, 0].numpy()
    return found
