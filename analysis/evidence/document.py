"""Evidence for a target in a document that is read in windows: each window explained alone, then put together.

What is explained is the mean of the target over the W windows. A token that several windows hold adds to each of
them, so its score is the sum of its scores in the windows that hold it, divided by W: exact for every method whose
scores are linear in the target (gradients, Integrated Gradients, occlusion by differences), a convention for the
others. A method that ignores the target says of a token what the window that owns it says.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from analysis.evidence.explanation import Explanation, kept_positions
from analysis.evidence.methods import METHODS, explain
from analysis.evidence.passes import forward_pass

if TYPE_CHECKING:
    from analysis.evidence.targets import Target
    from analysis.inputs import Inputs
    from analysis.models import LoadedModel

Progress = Callable[[float], None]


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
    reading = inputs.reading
    if reading is None:
        raise ValueError("explain_document: inputs must be read in windows but go in at once; use explain.")
    tell = progress or _told_nobody
    method = METHODS.get(key)
    own = method is not None and not method.uses_target
    count = len(reading.windows)
    raw = torch.zeros(len(inputs.tokens or ()), dtype=torch.float64)
    total, removed, value = 0.0, 0.0, 0.0
    signed = True
    notes: dict[str, None] = {}
    for index, window in enumerate(reading.windows):
        run = forward_pass(model, window)
        inner = _within(tell, index, count)
        found = explain(key, run, target, progress=inner, **options)
        value += 0.0 if target is None else run.value(target) / count
        positions = reading.columns[index][found.positions]
        scores = found.scores.double()
        whole = float(scores.abs().sum()) / (1.0 - found.removed) if found.removed < 1.0 else 0.0
        total, removed = total + whole, removed + whole * found.removed
        if own:
            speaks = torch.isin(positions, reading.rows[index])
            raw[positions[speaks]] = scores[speaks]
        else:
            raw[positions] += scores / count
        signed = found.signed
        notes.update(dict.fromkeys(found.notes))
        tell((index + 1) / count)
    left = kept_positions(inputs)
    return Explanation(
        method=key,
        target="" if target is None else target.label,
        scores=raw[left].float(),
        positions=left,
        signed=signed,
        removed=removed / total if total > 0.0 else 0.0,
        details={"windows": float(count)} | ({} if target is None else {"value": value}),
        notes=tuple(notes),
    )


def _within(tell: Progress, index: int, count: int) -> Progress:
    """Progress inside one of the windows, as that of all."""
    return lambda done: tell((index + done) / count)


def _told_nobody(_: float) -> None:
    return None
