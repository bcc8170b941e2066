"""What the numbers of the checks say of one input, in plain words, and what they do not show."""

from __future__ import annotations

import math
from dataclasses import dataclass

AS_FAR_AS_CAN_BE, QUITE_OTHER = 0.9, 0.5
"""Shares of the farthest possible divergence."""

RANKS_ALIKE = 0.5
"""τ from which two rankings are called alike."""


@dataclass(frozen=True)
class Findings:
    """The numbers of one input.

    Attributes:
        change_name: what the change of the answer is called, such as "TVD".
        epsilon: up to which the answer counts as the same.
        farthest: divergence of the farthest candidate within ε; ``bound``: of the farthest weights at all; None
            before the search is done.
        exact: the search looked at all there is; ``converged``: it had come to rest.
        permuted: median change under permutations; ``most_permuted``: the largest; None before they are done.
        uniform: change under uniform weights; ``flips``: the answer's class is another one then.
        gradient, leave_one_out: (τ, p) of attention with each; None where there is none.
        positions: that may have weight.
    """

    change_name: str
    epsilon: float
    bound: float
    farthest: float | None = None
    exact: bool = False
    converged: bool = True
    permuted: float | None = None
    most_permuted: float | None = None
    uniform: float | None = None
    flips: bool = False
    gradient: tuple[float, float] | None = None
    leave_one_out: tuple[float, float] | None = None
    positions: int = 2


def verdict(found: Findings) -> tuple[str, ...]:
    """Sentences, the most important first; the last says what this does not show."""
    if found.positions < 2:
        return ("There is one position to attend to, so there is no other attention.",)
    told = [
        *_search(found),
        *_permutation(found),
        *_uniform(found),
        *_agreement(found),
    ]
    if not told:
        return ()
    return (*told, LIMITS)


LIMITS = (
    "It does not show that a model could have learnt such attention, nor that its own says nothing: the rest of "
    "the model was held as it is, for this one input (Wiegreffe & Pinter 2019)."
)


def _search(found: Findings) -> list[str]:
    if found.farthest is None:
        return []
    share = found.farthest / found.bound if found.bound > 0 else 0.0
    allowed = f"{found.change_name} at most {found.epsilon:g}"
    numbers = f"(JSD {found.farthest:.3f} of at most {found.bound:.3f}, {allowed})"
    if share >= AS_FAR_AS_CAN_BE:
        lead = f"Attention about as different as can be gives the same answer {numbers}."
    elif share >= QUITE_OTHER:
        lead = f"Quite different attention gives the same answer {numbers}."
    elif found.farthest > 0:
        lead = f"The answer holds this attention rather fast: other weights that keep it stay near {numbers}."
    else:
        lead = f"No other attention with the same answer was found ({allowed})."
    if found.exact:
        return [lead, "No weights with this answer are farther: all corners were looked at."]
    more = "a better search may find more" if found.converged else "the search had not come to rest"
    return [lead, f"This is a lower bound: {more}."]


def _permutation(found: Findings) -> list[str]:
    if found.permuted is None or found.most_permuted is None:
        return []
    name = found.change_name
    if found.most_permuted <= found.epsilon:
        return [
            f"No shuffling of the weights changes the answer (the largest {name} is {found.most_permuted:.3g})."
        ]
    if found.permuted <= found.epsilon:
        return [
            f"Shuffled weights give about the same answer: median {name} {found.permuted:.3g}, "
            f"largest {found.most_permuted:.3g}."
        ]
    return [
        f"Where the weights stand matters: shuffled, they change the answer by {name} {found.permuted:.3g} (median)."
    ]


def _uniform(found: Findings) -> list[str]:
    if found.uniform is None:
        return []
    if found.flips:
        return [
            f"With the same weight everywhere the model decides otherwise ({found.change_name} {found.uniform:.3g})."
        ]
    if found.uniform <= found.epsilon:
        return [
            f"The same weight everywhere gives the same answer ({found.change_name} {found.uniform:.3g})."
        ]
    return [f"With the same weight everywhere the answer moves by {found.change_name} {found.uniform:.3g}."]


def _agreement(found: Findings) -> list[str]:
    told = []
    for pair, what in ((found.gradient, "gradients"), (found.leave_one_out, "leaving parts out")):
        if pair is None or math.isnan(pair[0]):
            continue
        tau, p = pair
        numbers = f"(Kendall τ {round(tau, 2) + 0.0:.2f}, p {p:.2g})".replace("-", "−")
        if p >= 0.05:
            told.append(f"Its ranking of the positions does not agree significantly with {what} {numbers}.")
        elif tau >= RANKS_ALIKE:
            told.append(f"Its ranking of the positions agrees well with {what} {numbers}.")
        elif tau > 0:
            told.append(f"Its ranking of the positions agrees a little with {what} {numbers}.")
        else:
            told.append(f"Its ranking of the positions runs against {what} {numbers}.")
    return told
