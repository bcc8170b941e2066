"""How far to trust a map: does taking away what it marks change the prediction as it says?

Deletion and insertion curves with a random order beside them, comprehensiveness and sufficiency, and whether a
method's map depends on the class at all. Each is a number about one map of one input; none shows that a map is right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from analysis.evidence.perturbation import Replacement, target_values

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from analysis.evidence.explanation import Explanation
    from analysis.evidence.passes import ForwardPass
    from analysis.evidence.targets import Target

Progress = Callable[[float], None]

SHARES = (0.01, 0.05, 0.10, 0.20, 0.50)
"""Shares of the input that comprehensiveness and sufficiency take away or keep (DeYoung et al. 2020, section 4.2)."""

RANDOM_ORDERS = 5


@dataclass(frozen=True, eq=False)
class Curve:
    """The target while the input is taken away, or given back, in some order.

    Attributes:
        shares: (S + 1,) share of the tokens or patches that are taken away (deletion) or there (insertion), 0 to 1.
        values: (S + 1,) the target at each.
    """

    shares: NDArray[np.float64]
    values: NDArray[np.float64]

    @property
    def area(self) -> float:
        """Under the curve, by trapezoids: the mean of the target along it."""
        return float(np.trapezoid(self.values, self.shares))


@dataclass(frozen=True, eq=False)
class Faithfulness:
    """What taking away by one map does.

    Attributes:
        untouched: the target of the input itself; ``empty``: with everything replaced.
        deletion: strongest first; its first point is the untouched input. Low area: the map finds what matters.
        insertion: strongest first into the empty input. High area: the map finds what matters.
        random_deletion, random_insertion: the same in random orders, to compare with.
        comprehensiveness: mean fall of the target when the strongest 1, 5, 10, 20, 50 % are taken away; high is good.
        sufficiency: mean fall when only these are left; low is good.
    """

    untouched: float
    empty: float
    deletion: Curve
    insertion: Curve
    random_deletion: tuple[Curve, ...]
    random_insertion: tuple[Curve, ...]
    comprehensiveness: float
    sufficiency: float

    @property
    def deletion_gain(self) -> float:
        """Mean area of random deletion − area of the map's: above 0 where the map does better than chance."""
        return float(np.mean([curve.area for curve in self.random_deletion])) - self.deletion.area

    @property
    def insertion_gain(self) -> float:
        """Area of the map's insertion − mean area of random insertion."""
        return self.insertion.area - float(np.mean([curve.area for curve in self.random_insertion]))


def faithfulness(
    run: ForwardPass,
    target: Target,
    explanation: Explanation,
    *,
    steps: int = 20,
    random_orders: int = RANDOM_ORDERS,
    seed: int = 0,
    replacement: Replacement = "default",
    progress: Progress | None = None,
) -> Faithfulness:
    """Deletion and insertion (Petsiuk et al. 2018, section 3.1), comprehensiveness and sufficiency (DeYoung 2020).

    The order is by signed score, the strongest evidence for the target first. One set of inputs is run for the curves
    of the map, another for the random orders; both depend on the seed alone.

    Args:
        steps: points of a curve beside its first; at most the number of tokens or patches.
        random_orders: random curves to draw beside it.
        replacement: what stands in place of a token or patch (``analysis.evidence.perturbation``).
        progress: told 0 to 1; what it raises stops the computation.
    Raises:
        ValueError: if the explanation is of another input, or there is nothing to take away.
    """
    count = len(explanation.scores)
    _check(run, explanation, steps)
    order = explanation.scores.double().argsort(descending=True, stable=True)
    random = np.random.default_rng(seed)
    orders = [order, *(torch.from_numpy(random.permutation(count)) for _ in range(random_orders))]
    taken = curve_counts(count, steps)
    deleted = torch.cat([masks_of(each, taken) for each in orders])  # True: replaced
    least = [max(1, round(share * count)) for share in SHARES]
    strongest = masks_of(order, least)
    values = target_values(
        run,
        target,
        torch.cat([deleted, ~deleted, strongest, ~strongest]),
        replacement=replacement,
        progress=progress,
    ).double()
    points = len(taken)
    sizes = [len(deleted), len(deleted), len(strongest), len(strongest)]
    of_deletion, of_insertion, without, alone = torch.split(values, sizes)
    shares = np.array(taken, dtype=np.float64) / count
    deletions = [Curve(shares, part.numpy()) for part in torch.split(of_deletion, points)]
    insertions = [Curve(shares, part.numpy()) for part in torch.split(of_insertion, points)]
    untouched = float(of_deletion[0])
    return Faithfulness(
        untouched=untouched,
        empty=float(of_deletion[points - 1]),
        deletion=deletions[0],
        insertion=insertions[0],
        random_deletion=tuple(deletions[1:]),
        random_insertion=tuple(insertions[1:]),
        comprehensiveness=untouched - float(without.mean()),
        sufficiency=untouched - float(alone.mean()),
    )


def curve_counts(count: int, steps: int) -> list[int]:
    """How many are taken away at each point: from 0 to all, in about equal steps."""
    return sorted({round(count * step / steps) for step in range(steps + 1)} | {0, count})


def masks_of(order: Tensor, counts: Sequence[int]) -> Tensor:
    """(S, n) bool: at each point the first so many of the order."""
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order))
    return rank[None] < torch.tensor(list(counts))[:, None]


def _check(run: ForwardPass, explanation: Explanation, steps: int) -> None:
    kept = int(run.outputs.kept.numel())
    if len(explanation.scores) != kept:
        raise ValueError(
            f"faithfulness: explanation must have {kept} scores, one a token or patch of this input, but has "
            f"{len(explanation.scores)}; explain the same input, and do not sum into words first."
        )
    if kept < 2:
        raise ValueError(
            "faithfulness: the input must have at least 2 tokens or patches to take away; give a longer one."
        )
    if steps < 1:
        raise ValueError(f"faithfulness: steps must be at least 1 but is {steps}.")


def rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's ρ of two maps of one input, ties by their mean rank; NaN where one of them is constant.

    Raises:
        ValueError: if they have not the same number of scores.
    """
    if a.shape != b.shape:
        raise ValueError(
            f"rank_correlation: a and b must have the same shape but are {a.shape} and {b.shape}."
        )
    first, second = (_ranks(values.double().numpy()) for values in (a, b))
    first, second = first - first.mean(), second - second.mean()
    scale = float(np.sqrt((first**2).sum() * (second**2).sum()))
    return float((first * second).sum() / scale) if scale > 0 else float("nan")


def _ranks(values: NDArray[np.float64]) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    middle: NDArray[np.float64] = (last - (counts - 1) / 2)[inverse].astype(np.float64)
    return middle


def agreement(explanations: Sequence[Explanation]) -> NDArray[np.float64]:
    """(M, M) rank correlation of every two maps of one input."""
    found = np.eye(len(explanations))
    for i, one in enumerate(explanations):
        for j in range(i):
            found[i, j] = found[j, i] = rank_correlation(one.scores, explanations[j].scores)
    return found


UNCHANGING = 0.95
"""Correlation of the maps of two classes above which a method is said not to depend on the class here."""


@dataclass(frozen=True)
class ClassSensitivity:
    """Whether a method's map changes with the class.

    Attributes:
        correlation: rank correlation of the maps of the two classes; NaN where one is constant.
    """

    correlation: float

    @property
    def warning(self) -> str:
        """What to say; "" where the maps differ."""
        if self.correlation >= UNCHANGING:
            return "This map does not depend on the class."
        return ""


def class_sensitivity(
    explain: Callable[[Target], Explanation], first: Target, second: Target
) -> ClassSensitivity:
    """Compare the maps that a method gives for two targets, usually the two top classes."""
    return ClassSensitivity(rank_correlation(explain(first).scores, explain(second).scores))
