"""Adversarial attention: weights as far as possible from the observed ones that leave the answer where it is.

Jain & Wallace 2019, "Attention is not Explanation" (arXiv:1902.10186), section 4.2.2: find k distributions that
maximise the Jensen–Shannon divergence from the observed attention and from each other while the answer changes by at
most ε. Three ways:

* ``penalty_search``: the paper's objective, optimiser and schedule, with the best point on the way kept;
* ``projected_search``: gradient ascent whose every point is inside the ε-ball;
* ``exact_search``: the true maximum, for a model of two classes whose logits are a weighted sum of those of its
  states, such as the papers' own. The divergence is convex, so its maximum over the distributions that satisfy a
  linear inequality is at a corner, and a corner of this set has weight on at most two positions.

No returned candidate is outside the ε-ball. What a search finds is a lower bound: a better one may only raise it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from analysis.adversarial.distances import LN2, jensen_shannon
from analysis.adversarial.rows import FreeRows

Progress = Callable[[float], None]
Method = Literal["penalty", "projected", "exact"]

SETTLED = 0.2
"""Share of the steps, the last ones, in which a search that has converged gains less than ``GAIN``."""

GAIN = 1e-3
"""Nats."""


@dataclass(frozen=True, eq=False)
class Adversaries:
    """Candidates, K of each of B inputs.

    Attributes:
        weights: (B, K, R, n); ``answers``: (B, K, C); ``divergence``: (B, K) from the observed weights, in nats, mean
            over rows; ``change``: (B, K) of the answer, at most ``epsilon``. The observed weights stand where a start
            found nothing.
        epsilon: how much the answer may change.
        bound: (B,) the most that any weights diverge, whatever the answer.
        method: how they were found; ``steps``: of the optimiser, 0 where there is none.
        converged: (B,) bool: more steps would hardly gain anything from these starts.
        last: the weights (B, K, R, n) at the last step of a penalty search, inside the ε-ball or not.
    """

    weights: Tensor
    answers: Tensor
    divergence: Tensor
    change: Tensor
    epsilon: float
    bound: Tensor
    method: Method
    steps: int
    converged: Tensor
    last: Tensor | None = None

    @property
    def best(self) -> Tensor:
        """(B,) index of the candidate that is farthest from the observed weights."""
        return self.divergence.argmax(-1)

    @property
    def farthest(self) -> Tensor:
        """(B,) ε-max JSD: the divergence of the best candidate."""
        return self.divergence.max(-1).values


def penalty_search(
    rows: FreeRows,
    *,
    epsilon: float = 0.01,
    candidates: int = 5,
    steps: int = 500,
    rate: float = 0.01,
    penalty: float = 500.0,
    start: Tensor | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> Adversaries:
    """The paper's search: Adam (AMSGrad) on the logarithm of the weights, all inputs and candidates at once.

    The loss of one input is Σ_k [−JSD(α_k, α) + penalty · max(change_k − ε, 0)] − mean over all ordered pairs of
    JSD(α_k, α_l), as the authors' program has it.

    Args:
        epsilon: above which a change costs, and up to which a candidate is taken. Their program has 0.01 and 0.05.
        candidates: K; ``steps``, ``rate``, ``penalty``: of the optimiser.
        start: (B, K, R, n) logarithms of the weights to start from; None: log(1/n) + 3 · N(0, 1).
        progress: told how much is done, 0 to 1; what it raises stops the search and comes out of it.
    Raises:
        ValueError: if ``epsilon`` is not above 0 or ``candidates`` or ``steps`` not at least 1.
    """
    _check(epsilon, candidates, steps)
    said = rows.said()
    logits = (_random_start(rows, candidates, seed) if start is None else start).clone().requires_grad_()
    optimiser = torch.optim.Adam([logits], lr=rate, amsgrad=True)
    best = _Best(rows, candidates, epsilon)
    observed = rows.observed[:, None]
    with torch.enable_grad():
        for step in range(steps):
            weights = _softmax(logits, rows.inside)
            answers = rows.answer(weights)
            change = rows.change(answers, said)
            divergence = jensen_shannon(weights, observed).mean(-1)
            best.take(weights.detach(), answers.detach(), divergence.detach(), change.detach())
            cross = jensen_shannon(weights[:, :, None], weights[:, None]).mean((-1, -2, -3))  # (B,)
            loss = (penalty * (change - epsilon).relu() - divergence).sum() - cross.sum()
            optimiser.zero_grad()
            (logits.grad,) = torch.autograd.grad(loss, logits)
            optimiser.step()
            if progress is not None:
                progress((step + 1) / steps)
    last = _softmax(logits.detach(), rows.inside)
    answers = rows.answers(last)
    best.take(last, answers, rows.divergence(last), rows.change(answers, said))
    return best.result("penalty", steps, last=last)


def projected_search(
    rows: FreeRows,
    *,
    epsilon: float = 0.01,
    candidates: int = 5,
    steps: int = 200,
    seed: int = 0,
    progress: Progress | None = None,
) -> Adversaries:
    """Gradient ascent of the divergence that never leaves the ε-ball.

    Each start is drawn at random and brought into the ball before the ascent. A step goes along the
    gradient of the divergence, less its part that would change the answer farther, where the change is more than half
    of ε; a step that would leave the ball or gain nothing is not taken, and the next one is half as long.

    Args, Raises: as ``penalty_search``.
    """
    _check(epsilon, candidates, steps)
    said = rows.said()
    logits = _feasible_start(rows, candidates, epsilon, seed, said, progress)
    length = torch.ones(logits.shape[:2])[:, :, None, None].to(logits)
    point = _Point.at(rows, logits, said)
    best = _Best(rows, candidates, epsilon)
    best.take(point.weights, point.answers, point.divergence, point.change)
    done = 0
    for done in range(1, steps + 1):
        trial = _Point.at(rows, point.logits + length * point.direction(epsilon), said)
        gained = (trial.change <= epsilon) & (trial.divergence > point.divergence)
        point = point.where(gained, trial)
        length = torch.where(gained[:, :, None, None], length * 1.5, length * 0.5)
        best.take(point.weights, point.answers, point.divergence, point.change)
        if progress is not None:
            progress(done / steps)
        if bool((length < SHORTEST).all()):
            break
    if progress is not None:
        progress(1.0)
    return best.result("projected", done)


def exact_search(rows: FreeRows, *, epsilon: float = 0.01) -> Adversaries:
    """The farthest weights there are with a change of at most ε; one candidate an input.

    The answer of two classes moves with the weighted mean of u = logit of class 1 − logit of class 0 alone, so a
    change of at most ε is an interval of that mean. All distributions on one position, and on two with the mean at an
    end of the interval, are tried: O(n²) an input.

    Raises:
        ValueError: if ``epsilon`` is not above 0, or the rows are of another kind (``exact_refusal``).
    """
    _check(epsilon, 1, 1)
    refusal = exact_refusal(rows)
    if refusal:
        raise ValueError(f"exact_search: {refusal}")
    assert rows.decoder is not None
    observed, inside = rows.observed[:, 0].double(), rows.inside[:, 0]
    lean = (rows.decoder[..., 1] - rows.decoder[..., 0]).double()  # (B, n)
    share = (observed * lean).sum(-1).sigmoid()  # of class 1, as the model says
    reach = epsilon * (1 - ROUNDING)
    low, high = ((share + side).clamp(0, 1).logit() for side in (-reach, reach))
    found = _farthest_pair(observed, inside, lean, low, high)
    one = found.to(rows.observed)[:, None, None]  # (B, 1, 1, n)
    best = _Best(rows, 1, epsilon)
    answers = rows.answers(one)
    best.take(one, answers, rows.divergence(one), rows.change(answers, rows.said()))
    return best.result("exact", 0)


ROUNDING = 1e-4
"""Share of ε that is left for rounding, so that no candidate is outside."""


def exact_refusal(rows: FreeRows) -> str:
    """Why ``exact_search`` cannot serve; "" where it can."""
    if rows.decoder is None or rows.decoder.shape[-1] != 2 or rows.observed.shape[1] != 1:
        return "rows must be of a model of two classes whose logits are a weighted sum; use projected_search."
    return ""


def _farthest_pair(observed: Tensor, inside: Tensor, lean: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """(B, n) the farthest distribution on one or two positions with low ≤ mean of ``lean`` ≤ high."""
    batch, size = observed.shape
    best = torch.zeros(batch, dtype=torch.float64, device=observed.device)
    weights = observed.clone()
    first, second = lean[:, :, None], lean[:, None, :]
    pairs = inside[:, :, None] & inside[:, None, :]
    one = torch.ones_like(lean)[:, :, None].expand(-1, -1, size)  # all weight on the first of a pair
    alone = ((lean >= low[:, None]) & (lean <= high[:, None]))[:, :, None] & pairs
    options = [(one, alone & torch.eye(size, dtype=torch.bool, device=lean.device))]
    for end in (low, high):
        between = (first - end[:, None, None]) * (end[:, None, None] - second) > 0
        ratio = (end[:, None, None] - second) / torch.where(between, first - second, 1.0)
        options.append((ratio, between & pairs))
    for ratio, allowed in options:
        apart = _pair_divergence(observed, ratio.clamp(0, 1)).masked_fill(~allowed, -1.0)
        value, place = apart.flatten(1).max(-1)
        better = value > best
        row = torch.arange(batch, device=lean.device)
        i, j = place // size, place % size
        share = ratio[row, i, j].clamp(0, 1)
        found = (
            torch.zeros_like(observed)
            .index_put((row, j), 1 - share)
            .index_put((row, i), share, accumulate=True)
        )
        best = torch.where(better, value, best)
        weights = torch.where(better[:, None], found, weights)
    return weights


def _pair_divergence(observed: Tensor, ratio: Tensor) -> Tensor:
    """(B, n, n): divergence of the observed weights and ``ratio`` on i, the rest on j."""
    first, second = observed[:, :, None], observed[:, None, :]
    same = torch.eye(observed.shape[1], dtype=torch.bool, device=observed.device)
    elsewhere = 1 - first - torch.where(same, 0.0, second)
    other = torch.where(same, 0.0, 1 - ratio)
    kept = torch.where(same, torch.ones_like(ratio), ratio)
    rest = torch.where(same, 0.0, second)
    return (LN2 * elsewhere + _parts(first, kept) + _parts(rest, other)) / 2


def _parts(a: Tensor, q: Tensor) -> Tensor:
    """a ln(2a / (a + q)) + q ln(2q / (a + q))."""
    total = (a + q).clamp(min=1e-300)
    return torch.xlogy(a, 2 * a / total) + torch.xlogy(q, 2 * q / total)


# What the searches share -----------------------------------------------------------------------------------------


class _Best:
    """The farthest weights within ε so far, of each start; the observed ones to begin with."""

    def __init__(self, rows: FreeRows, candidates: int, epsilon: float) -> None:
        self.rows, self.epsilon = rows, epsilon
        batch = rows.observed.shape[0]
        self.weights = rows.observed[:, None].expand(-1, candidates, -1, -1).clone()
        self.answers = rows.said()[:, None].expand(-1, candidates, -1).clone()
        self.divergence = self.weights.new_zeros(batch, candidates)
        self.change = self.weights.new_zeros(batch, candidates)
        self.history: list[Tensor] = []

    def take(self, weights: Tensor, answers: Tensor, divergence: Tensor, change: Tensor) -> None:
        """Keep what is within ε and farther than what there was."""
        better = (change <= self.epsilon) & (divergence > self.divergence)
        self.divergence = torch.where(better, divergence, self.divergence)
        self.change = torch.where(better, change, self.change)
        self.answers = torch.where(better[..., None], answers, self.answers)
        self.weights = torch.where(better[..., None, None], weights, self.weights)
        self.history.append(self.divergence)

    def result(self, method: Method, steps: int, *, last: Tensor | None = None) -> Adversaries:
        """What was found; converged where the last steps gained nothing."""
        before = self.history[int((1 - SETTLED) * (len(self.history) - 1))]
        return Adversaries(
            weights=self.weights,
            answers=self.answers,
            divergence=self.divergence,
            change=self.change,
            epsilon=self.epsilon,
            bound=self.rows.bound(),
            method=method,
            steps=steps,
            converged=(self.divergence - before < GAIN).all(-1),
            last=last,
        )


@dataclass(frozen=True, eq=False)
class _Point:
    """Where each start is, and the gradients there."""

    logits: Tensor
    weights: Tensor
    answers: Tensor
    divergence: Tensor
    change: Tensor
    outwards: Tensor
    changing: Tensor

    @staticmethod
    def at(rows: FreeRows, logits: Tensor, said: Tensor) -> _Point:
        with torch.enable_grad():
            leaf = logits.detach().requires_grad_()
            weights = _softmax(leaf, rows.inside)
            answers = rows.answer(weights)
            change = rows.change(answers, said)
            divergence = jensen_shannon(weights, rows.observed[:, None]).mean(-1)
            (outwards,) = torch.autograd.grad(divergence.sum(), leaf, retain_graph=True)
            (changing,) = torch.autograd.grad(change.sum(), leaf, allow_unused=True)
        return _Point(
            logits.detach(),
            weights.detach(),
            answers.detach(),
            divergence.detach(),
            change.detach(),
            outwards,
            torch.zeros_like(outwards) if changing is None else changing,
        )

    def direction(self, epsilon: float) -> Tensor:
        """Along which the weights go away from the observed ones and the answer does not."""
        along = (self.outwards * self.changing).sum((-1, -2))
        length = self.changing.square().sum((-1, -2)).clamp(min=1e-30)
        share = self.change / epsilon
        blocked = torch.where(
            (share > 0.5) & (along > 0), share + 0.5, 0.0
        )  # more than all of it near the edge
        way = self.outwards - (blocked * along / length)[..., None, None] * self.changing
        return way / way.abs().amax((-1, -2), keepdim=True).clamp(min=1e-30)

    def where(self, taken: Tensor, other: _Point) -> _Point:
        """The other point for the starts that take it."""
        narrow, wide = taken[..., None], taken[..., None, None]
        return _Point(
            torch.where(wide, other.logits, self.logits),
            torch.where(wide, other.weights, self.weights),
            torch.where(narrow, other.answers, self.answers),
            torch.where(taken, other.divergence, self.divergence),
            torch.where(taken, other.change, self.change),
            torch.where(wide, other.outwards, self.outwards),
            torch.where(wide, other.changing, self.changing),
        )


SHORTEST = 1e-3
"""Steps of the logarithm of weights below which a start has come to rest."""

HALVINGS = 12
"""Of the way from the observed weights to a random start."""

STEPS_IN = 12
"""By which a random start is brought towards the ε-ball."""


def _softmax(logits: Tensor, inside: Tensor) -> Tensor:
    return logits.masked_fill(~inside[:, None], -math.inf).softmax(-1)


def _random_start(rows: FreeRows, candidates: int, seed: int) -> Tensor:
    """(B, K, R, n): log(1 / n) + 3 · N(0, 1)."""
    batch, count, size = rows.observed.shape
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(batch, candidates, count, size, generator=generator).to(rows.observed)
    return 3 * noise - rows.inside.sum(-1)[:, None, :, None].to(noise).log()


def _feasible_start(
    rows: FreeRows, candidates: int, epsilon: float, seed: int, said: Tensor, progress: Progress | None
) -> Tensor:
    """(B, K, R, n) logits of weights within ε, far from the observed ones.

    Random weights go down the gradient of the change; what is not within ε then goes towards the observed weights as
    far as it must.
    """
    random = _brought_in(rows, _random_start(rows, candidates, seed), epsilon, said, progress).weights
    observed = rows.observed[:, None]
    low, high = torch.zeros_like(random[..., :1, :1]), torch.ones_like(random[..., :1, :1])
    share = high
    for _ in range(HALVINGS):
        change = rows.change(rows.answers(observed + share * (random - observed)), said)
        fits = (change <= epsilon)[..., None, None]
        low, high = torch.where(fits, share, low), torch.where(fits, high, share)
        if bool((low == 1).all()):
            break
        share = torch.where(low == 1, low, (low + high) / 2)
        if progress is not None:
            progress(0.0)
    smallest = torch.finfo(random.dtype).tiny
    return (observed + low * (random - observed)).clamp(min=smallest).log()


def _brought_in(
    rows: FreeRows, logits: Tensor, epsilon: float, said: Tensor, progress: Progress | None
) -> _Point:
    """Down the gradient of the change until it is within ε, or as far as a few steps go."""
    point = _Point.at(rows, logits, said)
    length = torch.ones_like(point.change)[..., None, None]
    for _ in range(STEPS_IN):
        outside = point.change > epsilon
        if not bool(outside.any()):
            break
        steepest = point.changing.abs().amax((-1, -2), keepdim=True).clamp(min=1e-30)
        trial = _Point.at(rows, point.logits - length * point.changing / steepest, said)
        nearer = outside & (trial.change < point.change)
        point = point.where(nearer, trial)
        length = torch.where(nearer[..., None, None], length * 1.3, length * 0.5)
        if progress is not None:
            progress(0.0)
    return point


def _check(epsilon: float, candidates: int, steps: int) -> None:
    for name, value, least in (("candidates", candidates, 1), ("steps", steps, 1)):
        if value < least:
            raise ValueError(f"adversarial search: {name} must be at least {least} but is {value}.")
    if not epsilon > 0:
        raise ValueError(
            f"adversarial search: epsilon must be above 0 but is {epsilon}; 0.01 is the paper's for classes."
        )
