"""How far to trust a map: does taking away what it marks change the prediction as it says?

Deletion and insertion curves with a random order beside them, comprehensiveness and sufficiency, and whether a
method's map depends on the class at all. Each is a number about one map of one input; none shows that a map is right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

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

STEPS = 20
"""Points of a curve beside its first."""

RANDOM_ORDERS = 5
"""Random orders that a map is compared with."""

BEYOND = 2.0
"""Standard deviations of the random areas by which a map must differ from their mean to be called better or worse."""

Side = Literal["deletion", "insertion"]

SIDES: tuple[Side, Side] = ("deletion", "insertion")


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
class Chance:
    """Curves of random orders: the same for every map of one input and target.

    Attributes:
        deletion, insertion: one curve an order.
        replacement: what stood in place of a token or patch.
    """

    deletion: tuple[Curve, ...]
    insertion: tuple[Curve, ...]
    replacement: Replacement = "default"

    def area(self, side: Side) -> tuple[float, float]:
        """Mean and standard deviation of the areas under the curves of a side."""
        areas = [curve.area for curve in (self.deletion if side == "deletion" else self.insertion)]
        return float(np.mean(areas)), float(np.std(areas))


@dataclass(frozen=True, eq=False)
class Faithfulness:
    """What taking away by one map does.

    Attributes:
        untouched: the target of the input itself; ``empty``: with everything replaced.
        deletion: strongest first; its first point is the untouched input. Low area: the map finds what matters.
        insertion: strongest first into the empty input. High area: the map finds what matters.
        chance: the same in random orders, to compare with.
        comprehensiveness: mean fall of the target when the strongest 1, 5, 10, 20, 50 % are taken away; high is good.
        sufficiency: mean fall when only these are left; low is good.
    """

    untouched: float
    empty: float
    deletion: Curve
    insertion: Curve
    chance: Chance
    comprehensiveness: float
    sufficiency: float

    @property
    def deletion_gain(self) -> float:
        """Mean area of random deletion − area of the map's: above 0 where the map does better than chance."""
        return self.chance.area("deletion")[0] - self.deletion.area

    @property
    def insertion_gain(self) -> float:
        """Area of the map's insertion − mean area of random insertion."""
        return self.insertion.area - self.chance.area("insertion")[0]

    @property
    def verdict(self) -> str:
        """Which of both curves are ``BEYOND`` standard deviations better, or worse, than random orders."""
        gains = {"deletion": self.deletion_gain, "insertion": self.insertion_gain}
        spreads = {side: BEYOND * self.chance.area(side)[1] for side in SIDES}
        better = [side for side in SIDES if gains[side] > spreads[side]]
        worse = [side for side in SIDES if gains[side] < -spreads[side]]
        if len(better) == 2:
            return "better than random orders"
        if len(worse) == 2:
            return "worse than random orders"
        if better:
            rest = f"{worse[0]} worse" if worse else "not the other way"
            return f"{better[0]} better than random orders, {rest}"
        return f"{worse[0]} worse than random orders" if worse else "no better than random orders"

    @property
    def statement(self) -> str:
        """The areas beside those of random orders, in a sentence."""
        areas = []
        for side, curve in (("deletion", self.deletion), ("insertion", self.insertion)):
            mean, spread = self.chance.area(side)  # type: ignore[arg-type]
            areas.append(f"{side} {curve.area:.3g} (random {mean:.3g} ± {spread:.2g})")
        return f"Areas: {', '.join(areas)}: {self.verdict}."


def random_curves(
    run: ForwardPass,
    target: Target,
    *,
    steps: int = STEPS,
    orders: int = RANDOM_ORDERS,
    seed: int = 0,
    replacement: Replacement = "default",
    progress: Progress | None = None,
) -> Chance:
    """Deletion and insertion in random orders, which depend on the seed alone.

    Args:
        steps: points of a curve beside its first; at most the number of tokens or patches.
        orders: how many.
        replacement: what stands in place of a token or patch (``analysis.evidence.perturbation``).
        progress: told 0 to 1; what it raises stops the computation.
    Raises:
        ValueError: if there is nothing to take away, or ``steps`` or ``orders`` is below 1.
    """
    count = _checked_count(run, steps)
    if orders < 1:
        raise ValueError(f"random_curves: orders must be at least 1 but is {orders}.")
    random = np.random.default_rng(seed)
    taken = curve_counts(count, steps)
    masks = torch.cat(
        [masks_of(torch.from_numpy(random.permutation(count)), taken) for _ in range(orders)]
    )  # True: replaced
    values = target_values(
        run, target, torch.cat([masks, ~masks]), replacement=replacement, progress=progress
    ).double()
    curves = [_curve(taken, part) for part in torch.split(values, len(taken))]
    return Chance(tuple(curves[:orders]), tuple(curves[orders:]), replacement)


def faithfulness(
    run: ForwardPass,
    target: Target,
    explanation: Explanation,
    *,
    chance: Chance | None = None,
    steps: int = STEPS,
    replacement: Replacement = "default",
    progress: Progress | None = None,
) -> Faithfulness:
    """Deletion and insertion (Petsiuk et al. 2018, section 3.1), comprehensiveness and sufficiency (DeYoung 2020).

    The order is by signed score, the strongest evidence for the target first.

    Args:
        chance: random orders of the same input and target (``random_curves``), to share between maps; made here, with
            as many steps, if not given.
        steps, replacement, progress: as in ``random_curves``.
    Raises:
        ValueError: if the explanation is of another input, there is nothing to take away, or ``chance`` was made with
            other steps or another replacement.
    """
    count = _checked_count(run, steps)
    if len(explanation.scores) != count:
        raise ValueError(
            f"faithfulness: explanation must have {count} scores, one a token or patch of this input, but has "
            f"{len(explanation.scores)}; explain the same input, and do not sum into words first."
        )
    taken = curve_counts(count, steps)
    own = 1.0
    if chance is None:
        own = 1 / (1 + RANDOM_ORDERS)
        share = 1 - own
        chance = random_curves(
            run,
            target,
            steps=steps,
            replacement=replacement,
            progress=None if progress is None else lambda done: progress(share * done),
        )
    if chance.replacement != replacement or len(chance.deletion[0].shares) != len(taken):
        raise ValueError(
            f"faithfulness: chance must be of {len(taken)} points with replacement {replacement!r} but is of "
            f"{len(chance.deletion[0].shares)} with {chance.replacement!r}; make it with the same options."
        )
    order = explanation.scores.double().argsort(descending=True, stable=True)
    deleted = masks_of(order, taken)  # True: replaced
    strongest = masks_of(order, [max(1, round(share * count)) for share in SHARES])
    values = target_values(
        run,
        target,
        torch.cat([deleted, ~deleted, strongest, ~strongest]),
        replacement=replacement,
        progress=None if progress is None else lambda done: progress(1 - own + own * done),
    ).double()
    sizes = [len(deleted), len(deleted), len(strongest), len(strongest)]
    of_deletion, of_insertion, without, alone = torch.split(values, sizes)
    untouched = float(of_deletion[0])
    return Faithfulness(
        untouched=untouched,
        empty=float(of_deletion[-1]),
        deletion=_curve(taken, of_deletion),
        insertion=_curve(taken, of_insertion),
        chance=chance,
        comprehensiveness=untouched - float(without.mean()),
        sufficiency=untouched - float(alone.mean()),
    )


def _curve(taken: Sequence[int], values: Tensor) -> Curve:
    return Curve(np.array(taken, dtype=np.float64) / taken[-1], values.numpy())


def curve_counts(count: int, steps: int) -> list[int]:
    """How many are taken away at each point: from 0 to all, in about equal steps."""
    return sorted({round(count * step / steps) for step in range(steps + 1)} | {0, count})


def masks_of(order: Tensor, counts: Sequence[int]) -> Tensor:
    """(S, n) bool: at each point the first so many of the order."""
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order))
    return rank[None] < torch.tensor(list(counts))[:, None]


def _checked_count(run: ForwardPass, steps: int) -> int:
    """How many tokens or patches can be taken away."""
    kept = int(run.outputs.kept.numel())
    if kept < 2:
        raise ValueError(
            "faithfulness: the input must have at least 2 tokens or patches to take away; give a longer one."
        )
    if steps < 1:
        raise ValueError(f"faithfulness: steps must be at least 1 but is {steps}.")
    return kept


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
