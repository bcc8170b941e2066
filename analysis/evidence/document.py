"""Evidence for a target in a document that is read in windows: each window explained alone, then put together.

What is explained is the mean of the target over the W windows. A token that several windows hold adds to each of
them, so its score is the sum of its scores in the windows that hold it, divided by W: exact for every method whose
scores are linear in the target (gradients, Integrated Gradients, occlusion by differences), a convention for the
others. A method that ignores the target says of a token what the window that owns it says; of one that all windows
have, such as those of a pair's shorter text, their mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from analysis.evidence.explanation import Explanation, kept_positions
from analysis.evidence.methods import METHODS, explain
from analysis.evidence.passes import forward_pass
from attn_core.errors import MemoryBudgetError

if TYPE_CHECKING:
    from analysis.evidence.targets import Target
    from analysis.inputs import Inputs
    from analysis.models import LoadedModel
    from analysis.reading import Reading

Progress = Callable[[float], None]


@dataclass(frozen=True)
class Question:
    """What is asked of a document.

    Attributes:
        key, target: as for ``analysis.evidence.methods.explain``.
        options: of the method's own function.
    """

    key: str
    target: Target | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def explain_document(
    key: str,
    model: LoadedModel,
    inputs: Inputs,
    target: Target | None = None,
    *,
    progress: Progress | None = None,
    **options: Any,
) -> Explanation:
    """Explain a document by the method of that name, window by window; one graph is held at a time.

    Args:
        key, target, options: as for ``analysis.evidence.methods.explain``.
        inputs: of the document; ``reading`` is set.
        progress: called with 0 to 1, and what it raises stops.
    Returns:
        one score for each token that the tokenizer did not add; ``details`` hold the number of ``windows`` and the
        mean ``value`` of the target.
    Raises:
        ValueError: for an input that is read at once.
        whatever the method raises for a window.
    """
    (found,) = explain_document_by(
        [Question(key, target, options)], model, inputs, progress=progress, refused=_raised
    )
    assert found is not None  # what was refused was raised
    return found


def explain_document_by(
    questions: Sequence[Question],
    model: LoadedModel,
    inputs: Inputs,
    *,
    progress: Progress | None = None,
    refused: Callable[[Question, Exception], None],
) -> list[Explanation | None]:
    """Explain a document by several methods, which share one forward pass of each window and its gradients.

    Args:
        questions: methods, targets and options.
        inputs, progress: as in ``explain_document``.
        refused: told of a question that cannot be answered and why; it is not asked of the windows that follow.
    Returns:
        for each question what ``explain_document`` gives; None where it was refused.
    Raises:
        ValueError: for an input that is read at once.
        UnsupportedModelError: if the model cannot be followed back.
    """
    reading = inputs.reading
    if reading is None:
        raise ValueError("explain_document: inputs must be read in windows but go in at once; use explain.")
    tell = progress or _told_nobody
    count, parts = len(reading.windows), len(questions)
    sums: list[_Sum | None] = [_Sum(question, inputs) for question in questions]
    for index, window in enumerate(reading.windows):
        run = forward_pass(model, window)
        for place, question in enumerate(questions):
            known = sums[place]
            if known is None:
                continue
            inner = _within(tell, index * parts + place, count * parts)
            try:
                found = explain(question.key, run, question.target, progress=inner, **dict(question.options))
                value = 0.0 if question.target is None else run.value(question.target)
            except (ValueError, MemoryBudgetError) as error:  # an unsupported model is a ValueError too
                refused(question, error)
                sums[place] = None
                continue
            known.add(found, value, reading, index)
            tell((index * parts + place + 1) / (count * parts))
    tell(1.0)
    return [None if known is None else known.explanation() for known in sums]


@dataclass
class _Sum:
    """What the windows so far have said to a question.

    Attributes:
        raw: (N,) scores of the document's tokens.
        total, removed: Σ|score| of the windows, special tokens included, and the part of these.
        value: of the target, its mean.
    """

    question: Question
    inputs: Inputs
    raw: Tensor = field(init=False)
    total: float = 0.0
    removed: float = 0.0
    value: float = 0.0
    signed: bool = True
    notes: dict[str, None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.raw = torch.zeros(len(self.inputs.tokens or ()), dtype=torch.float64)

    def add(self, found: Explanation, value: float, reading: Reading, index: int) -> None:
        """Take in what a window says."""
        count = len(reading.windows)
        self.value += value / count
        positions = reading.columns[index][found.positions]
        scores = found.scores.double()
        whole = float(scores.abs().sum()) / (1.0 - found.removed) if found.removed < 1.0 else 0.0
        self.total, self.removed = self.total + whole, self.removed + whole * found.removed
        if METHODS[self.question.key].uses_target:
            self.raw[positions] += scores / count
        else:
            in_all = torch.isin(positions, torch.tensor(reading.shared, dtype=positions.dtype))
            speaks = torch.isin(positions, reading.rows[index]) & ~in_all
            self.raw[positions[speaks]] = scores[speaks]
            self.raw[positions[in_all]] += scores[in_all] / count
        self.signed = found.signed
        self.notes.update(dict.fromkeys(found.notes))

    def explanation(self) -> Explanation:
        """What all windows have said."""
        left, target = kept_positions(self.inputs), self.question.target
        windows = {"windows": float(len(self.inputs.reading.windows))} if self.inputs.reading else {}
        return Explanation(
            method=self.question.key,
            target="" if target is None else target.label,
            scores=self.raw[left].float(),
            positions=left,
            signed=self.signed,
            removed=self.removed / self.total if self.total > 0.0 else 0.0,
            details=windows | ({} if target is None else {"value": self.value}),
            notes=tuple(self.notes),
        )


def _raised(_: Question, error: Exception) -> None:
    raise error


def _within(tell: Progress, index: int, count: int) -> Progress:
    """Progress inside one of the windows, as that of all."""
    return lambda done: tell((index + done) / count)


def _told_nobody(_: float) -> None:
    return None
