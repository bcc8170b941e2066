"""Finding a likely output of a decoder that says, word by word, what may come next: greedy and beam search.

A decoder is a function (words, state) → ``Step``; any model with such a step is served. Words are indices, and a
state is whatever the model carries along, as long as ``state.items(order)`` picks batch items.

Hypotheses are compared by log-probability / ((5 + n) / 6) ** alpha, where n counts their words with the mark of the
end: the length penalty of Wu et al. 2016 (section 7, equation 14), without their coverage penalty. With alpha = 0 it
is the log-probability itself.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor


class State(Protocol):
    """What a decoder carries from one word to the next, for a batch."""

    def items(self, order: Tensor) -> Self:
        """The states at these indices (n,), in this order; one may come several times."""
        ...


S = TypeVar("S", bound=State)


@dataclass(frozen=True, eq=False)
class Step(Generic[S]):
    """What a decoder says of the next word.

    Attributes:
        scores: (B, V) before the softmax.
        state: for the step after.
        attention: (B, K) weights over the source, or None.
    """

    scores: Tensor
    state: S
    attention: Tensor | None = None


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """One output.

    Attributes:
        words: indices, without the mark of the end.
        log_probs: of each word given those before, natural logarithm; that of the mark of the end comes last, if the
            mark came.
        score: what hypotheses are compared by; see the module.
        ended: whether the mark of the end came; else the output was cut at the largest length.
        attention: (len(log_probs), K) weights when each word was chosen; None of a decoder without attention.
    """

    words: tuple[int, ...]
    log_probs: tuple[float, ...]
    score: float
    ended: bool
    attention: Tensor | None = None

    @property
    def log_probability(self) -> float:
        """Of the whole output."""
        return math.fsum(self.log_probs)


def length_penalty(length: int, alpha: float) -> float:
    """((5 + length) / 6) ** alpha: Wu et al. 2016, equation 14."""
    return float(((5 + length) / 6) ** alpha)


@torch.no_grad()
def greedy_search(
    decoder: Callable[[Tensor, S], Step[S]],
    state: S,
    *,
    batch: int,
    begin: int,
    end: int,
    max_length: int,
    alpha: float = 0.0,
    forbidden: Tensor | None = None,
    device: torch.device | str = "cpu",
) -> list[Hypothesis]:
    """The most likely word at each step; of words that are as likely, the one with the lowest index.

    Args:
        decoder: as in the module.
        state: of ``batch`` items before the first word.
        begin, end: marks that a decoder begins with and ends an output with.
        max_length: words after which an output is cut, the mark of the end counted.
        alpha: of the length penalty in the score.
        forbidden: (V,) or (B, V) bool, words that are never chosen; probabilities of the others stay what they are.
        device: of the decoder.
    Returns:
        One hypothesis for each item.
    Raises:
        ValueError: if a number is not in its range, or no word is allowed.
    """
    _check_numbers("greedy_search", batch=batch, max_length=max_length)
    beams = _Beams.first(state, batch, begin, device)
    found: dict[int, Hypothesis] = {}
    for length in range(1, max_length + 1):
        step = decoder(beams.words[:, -1], beams.state)
        log_probs = _log_probs(step.scores, forbidden, beams.item)
        best = log_probs.amax(-1, keepdim=True)
        word = (log_probs == best).int().argmax(-1)  # the first of those alike
        beams = beams.continued(torch.arange(len(beams.item), device=word.device), word, best[:, 0], step)
        ended = word == end
        for place in (ended | (length == max_length)).nonzero()[:, 0].tolist():
            found[int(beams.item[place])] = beams.hypothesis(place, alpha, ended=bool(ended[place]))
        beams = beams.kept(~ended)
        if not len(beams.item):
            break
    return [found[item] for item in range(batch)]


@torch.no_grad()
def beam_search(
    decoder: Callable[[Tensor, S], Step[S]],
    state: S,
    *,
    batch: int,
    begin: int,
    end: int,
    max_length: int,
    beam: int = 5,
    best: int = 1,
    alpha: float = 0.6,
    forbidden: Tensor | None = None,
    device: torch.device | str = "cpu",
) -> list[list[Hypothesis]]:
    """The best outputs that grow from the ``beam`` most likely beginnings of each length.

    At each step every beginning is continued by every word. A continuation by the mark of the end that is among the
    ``beam`` most likely continuations is an output; the ``beam`` most likely others go on. An item is done when there
    are ``beam`` outputs. Continuations that are as likely are ordered by their beginning and then by their word, so
    the same numbers always give the same outputs. Items of a batch do not touch one another.

    Args:
        decoder, state, batch, begin, end, max_length, forbidden, device: as in ``greedy_search``.
        beam: beginnings that are kept.
        best: outputs that are returned, at most ``beam``.
        alpha: of the length penalty in the score.
    Returns:
        For each item ``best`` hypotheses, or as many as there are: those that ended first, highest score first; of
        scores alike the one that was found first.
    Raises:
        ValueError: if a number is not in its range, or no word is allowed.
    """
    _check_numbers("beam_search", batch=batch, max_length=max_length, beam=beam, best=best)
    if best > beam:
        raise ValueError(
            f"beam_search: best must be at most beam = {beam} but is {best}; keep more beginnings."
        )
    found: list[list[Hypothesis]] = [[] for _ in range(batch)]
    beams = _Beams.first(state, batch, begin, device)
    for length in range(1, max_length + 1):
        step = decoder(beams.words[:, -1], beams.state)
        ended, beams = _continuations(beams, step, beam, end, forbidden)
        for place, item in enumerate(ended.item.tolist()):
            found[item].append(ended.hypothesis(place, alpha, ended=True))
        if length < max_length:
            beams = beams.kept(torch.tensor([len(found[item]) < beam for item in beams.item.tolist()]))
        if not len(beams.item):
            break
    for place, item in enumerate(beams.item.tolist()):  # cut at the largest length
        found[item].append(beams.hypothesis(place, alpha, ended=False))
    return [sorted(each, key=lambda one: (not one.ended, -one.score))[:best] for each in found]


@dataclass(frozen=True, eq=False)
class _Beams(Generic[S]):
    """Beginnings of all items, those of one item in a row, the most likely first.

    Attributes:
        item: (n,) whose they are.
        words: (n, t + 1), the mark of the beginning first.
        log_probs: (n, t).
        attention: (n, t, K) or None.
        state: of the decoder before it sees the last words.
    """

    item: Tensor
    words: Tensor
    log_probs: Tensor
    attention: Tensor | None
    state: S

    @classmethod
    def first(cls, state: S, batch: int, begin: int, device: torch.device | str) -> _Beams[S]:
        """One beginning for each item: the mark alone."""
        item = torch.arange(batch, device=device)
        return cls(
            item, torch.full_like(item, begin)[:, None], torch.zeros(batch, 0, device=device), None, state
        )

    def continued(self, order: Tensor, word: Tensor, log_prob: Tensor, step: Step[S]) -> _Beams[S]:
        """The beginnings at ``order`` (n,), each with one more word (n,)."""
        attention = None if step.attention is None else step.attention[order][:, None]
        if attention is not None and self.attention is not None:
            attention = torch.cat([self.attention[order], attention], dim=1)
        return _Beams(
            self.item[order],
            torch.cat([self.words[order], word[:, None]], dim=1),
            torch.cat([self.log_probs[order].to(log_prob.dtype), log_prob[:, None]], dim=1),
            attention,
            step.state.items(order),
        )

    def kept(self, chosen: Tensor) -> _Beams[S]:
        """Those that are ``chosen``, (n,) bool."""
        order = chosen.to(self.item.device).nonzero()[:, 0]
        attention = None if self.attention is None else self.attention[order]
        return _Beams(
            self.item[order], self.words[order], self.log_probs[order], attention, self.state.items(order)
        )

    def hypothesis(self, place: int, alpha: float, *, ended: bool) -> Hypothesis:
        """The beginning at a place as an output."""
        words, log_probs = self.words[place, 1:].tolist(), tuple(self.log_probs[place].tolist())
        return Hypothesis(
            words=tuple(words[:-1] if ended else words),
            log_probs=log_probs,
            score=math.fsum(log_probs) / length_penalty(len(log_probs), alpha),
            ended=ended,
            attention=None if self.attention is None else self.attention[place],
        )


def _continuations(
    beams: _Beams[S], step: Step[S], beam: int, end: int, forbidden: Tensor | None
) -> tuple[_Beams[S], _Beams[S]]:
    """The outputs among the best ``beam`` continuations of each item, and its best ``beam`` that go on."""
    log_probs = _log_probs(step.scores, forbidden, beams.item)  # (n, V)
    vocabulary = log_probs.shape[1]
    group = torch.cat([beams.item[:1] * 0, (beams.item.diff() != 0).long()]).cumsum(
        0
    )  # 0, 1, … of the items left
    count = torch.bincount(group)
    first = count.cumsum(0) - count  # where the beginnings of an item start
    slot = torch.arange(len(group), device=group.device) - first[group]
    table = log_probs.new_full((len(count), int(count.max()), vocabulary), -math.inf)
    table[group, slot] = beams.log_probs.sum(-1, keepdim=True) + log_probs
    # At most one continuation of a beginning ends, so the best 2 · beam hold the best beam of those that go on.
    values, places = _highest(table.flatten(1), 2 * beam)
    ends, real = places % vocabulary == end, values > -math.inf
    rank = torch.arange(values.shape[1], device=values.device)
    goes_on = ~ends & real

    def chosen(mask: Tensor) -> _Beams[S]:
        order = (first[:, None] + places // vocabulary)[mask]
        word = (places % vocabulary)[mask]
        return beams.continued(order, word, log_probs[order, word], step)

    return chosen(ends & real & (rank < beam)), chosen(goes_on & (goes_on.cumsum(-1) <= beam))


def _highest(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` highest of each row (n, m) and their places, highest first; of those alike the first come first.

    ``torch.topk`` leaves open which of equal values it takes.
    """
    count = min(count, scores.shape[1])
    least = scores.topk(count).values[:, -1:]
    above, level = scores > least, scores == least
    taken = above | (level & (level.cumsum(-1) <= count - above.sum(-1, keepdim=True)))
    places = taken.nonzero()[:, 1].view(-1, count)
    values, order = scores.gather(1, places).sort(dim=-1, descending=True, stable=True)
    return values, places.gather(1, order)


def _log_probs(scores: Tensor, forbidden: Tensor | None, item: Tensor) -> Tensor:
    """Log-probabilities (n, V) of scores (n, V), −∞ for words that the item may not have."""
    log_probs = scores.log_softmax(-1)
    if forbidden is None:
        return log_probs
    mask = forbidden.to(scores.device)
    if mask.shape[-1] != scores.shape[1] or bool(mask.all(-1).any()):
        raise ValueError(
            f"beam_search: forbidden must leave one of {scores.shape[1]} words and have one value for each but has "
            f"shape {tuple(mask.shape)} with {int((~mask).sum())} words left; allow the mark of the end at least."
        )
    return log_probs.masked_fill(mask[item] if mask.ndim == 2 else mask, -math.inf)


def _check_numbers(function: str, **numbers: int) -> None:
    for name, number in numbers.items():
        if number < 1:
            raise ValueError(f"{function}: {name} must be at least 1 but is {number}.")
