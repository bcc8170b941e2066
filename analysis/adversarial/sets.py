"""The checks over many inputs, one row of numbers each: the paper's figures and tables.

Inputs of a recurrent classifier run together, with the exact search; of a transformer one at a time, with the
projected one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from analysis.adversarial.agreement import (
    Agreement,
    answers_without,
    gradient_importance,
    input_importance,
    kendall,
    leave_one_out,
)
from analysis.adversarial.permutation import permutations
from analysis.adversarial.rows import FreeRows, Place, classifier_rows, rows_of, text_batch
from analysis.adversarial.search import exact_refusal, exact_search, projected_search
from analysis.evidence import perturbation
from analysis.evidence.explanation import kept_positions, position_count
from analysis.evidence.passes import forward_pass
from analysis.figure_data import CheckedNumber
from attn_core.errors import UnsupportedModelError
from attn_core.models.classifier import AttentionClassifier

if TYPE_CHECKING:
    from analysis.inputs import Inputs
    from analysis.models import LoadedModel

TOGETHER = 32
"""Texts of a recurrent classifier that run together, as in the paper's program."""

TITLES = {
    "max_attention": "Max attention",
    "permutation": "median {change} of permutations",
    "jsd": "Max JSD within ε",
    "jsd_bound": "Farthest JSD",
    "tau_gradient": "τ with gradients",
    "p_gradient": "p",
    "tau_leave_one_out": "τ with leave one out",
    "p_leave_one_out": "p",
    "uniform": "{change} with uniform attention",
}
"""Numbers of each input, in their order (``analysis.figure_data.CheckedSet.numbers``)."""


@dataclass(frozen=True)
class CheckedInput:
    """The numbers of one input.

    Attributes:
        source: what went in.
        predicted: index of the class; ``uniform_predicted``: with uniform attention.
        numbers: by the keys of ``TITLES``; those that there are.
    """

    source: str
    predicted: int
    numbers: dict[str, float]
    uniform_predicted: int = 0


@dataclass(frozen=True)
class Settings:
    """How inputs of a set are checked.

    Attributes:
        epsilon: change up to which the answer is the same.
        count: permutations.
        candidates, steps: of the projected search, where no exact one serves.
    """

    epsilon: float = 0.01
    count: int = 100
    candidates: int = 4
    steps: int = 40


def check_inputs(
    model: LoadedModel,
    inputs: Iterable[Inputs],
    *,
    place: Place | None = None,
    settings: Settings = Settings(),
) -> Iterator[CheckedInput]:
    """The numbers of each input, as they are ready.

    Args:
        place: which rows of a transformer; None: ``analysis.adversarial.rows.usual_place``.
    Raises:
        ValueError, UnsupportedModelError: as ``analysis.adversarial.rows.rows_of``.
    """
    if isinstance(model.module, AttentionClassifier):
        some = iter(inputs)
        while part := list(itertools.islice(some, TOGETHER)):
            yield from _check_texts(model, model.module, part, settings)
        return
    for each in inputs:
        yield _check_one(model, each, place, settings)


def checked_numbers(found: Sequence[CheckedInput], change: str = "TVD") -> tuple[CheckedNumber, ...]:
    """The numbers of a set as columns; NaN where an input has none.

    Args:
        change: what the change of an answer is called (``analysis.adversarial.measures.Measure.name``).
    """
    return tuple(
        CheckedNumber(
            key,
            title.format(change=change),
            np.array([each.numbers.get(key, np.nan) for each in found], dtype=np.float32),
        )
        for key, title in TITLES.items()
        if any(key in each.numbers for each in found)
    )


def _check_texts(
    model: LoadedModel, module: AttentionClassifier, inputs: Sequence[Inputs], settings: Settings
) -> Iterator[CheckedInput]:
    batch = text_batch([each.tensors["input_ids"][0].tolist() for each in inputs])
    rows = classifier_rows(module, batch, labels=model.labels or (), temperature=model.temperature)
    attention = rows.observed[:, 0]
    gradient = gradient_importance(module, batch, temperature=model.temperature)
    without = leave_one_out(module, batch, temperature=model.temperature)
    agreement = {
        "gradient": kendall(attention, gradient, batch.inside),
        "leave_one_out": kendall(attention, without, batch.inside),
    }
    yield from _rows_of_numbers(rows, [each.source for each in inputs], settings, agreement)


def _check_one(model: LoadedModel, inputs: Inputs, place: Place | None, settings: Settings) -> CheckedInput:
    rows = rows_of(model, inputs, place)
    agreement = one_agreement(model, inputs, rows)
    (found,) = _rows_of_numbers(rows, [inputs.source], settings, agreement)
    return found


def one_agreement(
    model: LoadedModel,
    inputs: Inputs,
    rows: FreeRows,
    *,
    progress: Callable[[float], None] | None = None,
) -> dict[str, Agreement]:
    """Agreement of an input's attention (mean over the rows) with gradients and with leaving parts out.

    Empty where the attention is not over the model's input, or the input has no embeddings to take a gradient at.
    Nothing is left out of an input so long that it would take days (``analysis.evidence.perturbation``).

    Args:
        progress: told how much is done, 0 to 1; what it raises comes out.
    """
    if isinstance(model.module, AttentionClassifier):
        batch = text_batch([inputs.tensors["input_ids"][0].tolist()])
        heat = model.temperature
        gradient = gradient_importance(model.module, batch, temperature=heat)
        without = leave_one_out(model.module, batch, temperature=heat)
        return {
            "gradient": kendall(rows.observed[:, 0], gradient, batch.inside),
            "leave_one_out": kendall(rows.observed[:, 0], without, batch.inside),
        }
    if rows.observed.shape[-1] != position_count(inputs):
        return {}
    try:
        run = forward_pass(model, inputs)
    except UnsupportedModelError:
        return {}
    kept = kept_positions(inputs)
    attention = rows.observed[0].mean(0)[kept][None]
    inside = torch.ones_like(attention, dtype=torch.bool)
    found = {"gradient": kendall(attention, input_importance(run, rows.measure)[None], inside)}
    if len(kept) * position_count(inputs) <= perturbation.MOST_POSITIONS:
        said = rows.measure.read(run.outputs).detach()
        change = rows.measure.distance(answers_without(run, rows.measure, progress=progress), said)
        found["leave_one_out"] = kendall(attention, change[None], inside)
    return found


def _rows_of_numbers(
    rows: FreeRows, sources: Sequence[str], settings: Settings, agreement: dict[str, Agreement]
) -> Iterator[CheckedInput]:
    permuted = permutations(rows, count=settings.count)
    if exact_refusal(rows):
        searched = projected_search(
            rows, epsilon=settings.epsilon, candidates=settings.candidates, steps=settings.steps
        )
    else:
        searched = exact_search(rows, epsilon=settings.epsilon)
    said, uniform = rows.said(), rows.answers(rows.uniform())
    columns: dict[str, Tensor] = {
        "max_attention": permuted.most,
        "permutation": permuted.median,
        "jsd": searched.farthest,
        "jsd_bound": searched.bound,
        "uniform": rows.change(uniform, said)[:, 0],
    }
    for name, found in agreement.items():
        columns |= {f"tau_{name}": found.tau, f"p_{name}": found.p}
    classes, others = said.argmax(-1).tolist(), uniform[:, 0].argmax(-1).tolist()
    for index, (source, predicted) in enumerate(zip(sources, classes, strict=True)):
        numbers = {key: float(values[index]) for key, values in columns.items()}
        known = {key: numbers[key] for key in TITLES if key in numbers}
        yield CheckedInput(source, predicted, known, others[index])
