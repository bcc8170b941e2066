"""Greedy and beam search: against brute force on a toy decoder, and what they promise."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from attn_core.models.decoding import Step, beam_search, greedy_search, length_penalty

BEGIN, END = 0, 1


@dataclass(frozen=True)
class Memory:
    """(n, 4) numbers that stand for everything said so far."""

    numbers: Tensor

    def items(self, order: Tensor) -> Memory:
        return Memory(self.numbers[order])


@dataclass(frozen=True)
class Toy:
    """A recurrent decoder of a few random weights; every beginning has scores of its own."""

    words: Tensor
    keep: Tensor
    out: Tensor
    look: Tensor

    @classmethod
    def drawn(cls, vocabulary: int, seed: int) -> Toy:
        generator = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64) * 1.5

        return cls(normal(vocabulary, 4), normal(4, 4), normal(4, vocabulary), normal(4, 3))

    def start(self, batch: int) -> Memory:
        return Memory(torch.linspace(-1, 1, 4 * batch, dtype=torch.float64).view(batch, 4))

    def __call__(self, words: Tensor, state: Memory) -> Step[Memory]:
        numbers = torch.tanh(state.numbers @ self.keep + self.words[words])
        return Step(numbers @ self.out, Memory(numbers), (numbers @ self.look).softmax(-1))

    def told(self, words: tuple[int, ...], item: Memory) -> tuple[list[float], Tensor]:
        """Log-probability of each word given those before, and the weights (T, 3) when each was chosen."""
        log_probs, rows, state = [], [], item
        for before, word in itertools.pairwise((BEGIN, *words)):
            step = self(torch.tensor([before]), state)
            state = step.state
            log_probs.append(float(step.scores.log_softmax(-1)[0, word]))
            rows.append(step.attention)
        return log_probs, torch.cat(rows)


def every_output(toy: Toy, item: Memory, vocabulary: int, longest: int, alpha: float):
    """All outputs up to a length by their score: ended ones first, then those that were cut."""
    others = [word for word in range(vocabulary) if word != END]
    found = []
    for length in range(1, longest + 1):
        for first in itertools.product(others, repeat=length - 1):
            for last in range(vocabulary) if length == longest else (END,):
                words = (*first, last)
                score = math.fsum(toy.told(words, item)[0]) / ((5 + length) / 6) ** alpha
                found.append((last != END, -score, words))
    return sorted(found)


@settings(max_examples=25)
@given(
    vocabulary=st.integers(2, 4),
    longest=st.integers(1, 3),
    alpha=st.sampled_from([0.0, 0.6, 1.0]),
    seed=st.integers(0, 2**31),
)
def test_a_beam_that_holds_everything_finds_the_best_there_is(vocabulary, longest, alpha, seed):
    toy = Toy.drawn(vocabulary, seed)
    beam = vocabulary**longest
    found = beam_search(
        toy, toy.start(2), batch=2, begin=BEGIN, end=END, max_length=longest, beam=beam, best=min(beam, 5),
        alpha=alpha,
    )  # fmt: skip
    for item, hypotheses in enumerate(found):
        expected = every_output(toy, toy.start(2).items(torch.tensor([item])), vocabulary, longest, alpha)
        assert len(hypotheses) == min(5, beam, len(expected))
        for hypothesis, (cut, score, words) in zip(hypotheses, expected, strict=False):
            assert hypothesis.ended is not cut
            assert hypothesis.words + (() if cut else (END,)) == words
            assert hypothesis.score == pytest.approx(-score, abs=1e-12)


def beam_by_hand(toy: Toy, item: Memory, vocabulary: int, beam: int, longest: int):
    """Beam search as one would write it with lists: ended and cut outputs with their log-probabilities."""
    alive, ended = [((), 0.0)], []
    for _ in range(longest):
        grown = [
            ((*words, word), math.fsum(toy.told((*words, word), item)[0]))
            for words, _ in alive
            for word in range(vocabulary)
        ]
        grown.sort(key=lambda each: -each[1])
        ended += [each for each in grown[:beam] if each[0][-1] == END]
        alive = [each for each in grown if each[0][-1] != END][:beam]
        if len(ended) >= beam:
            return ended, []
    return ended, alive


@settings(max_examples=25)
@given(vocabulary=st.integers(2, 6), beam=st.integers(1, 5), seed=st.integers(0, 2**31))
def test_a_small_beam_keeps_what_the_textbook_keeps(vocabulary, beam, seed):
    toy = Toy.drawn(vocabulary, seed)
    (found,) = beam_search(
        toy, toy.start(1), batch=1, begin=BEGIN, end=END, max_length=4, beam=beam, best=beam, alpha=0.0
    )
    ended, cut = beam_by_hand(toy, toy.start(1), vocabulary, beam, 4)
    expected = [*sorted(ended, key=lambda each: -each[1]), *cut][:beam]
    assert [each.words + ((END,) if each.ended else ()) for each in found] == [words for words, _ in expected]
    assert [each.score for each in found] == pytest.approx([score for _, score in expected], abs=1e-12)


@settings(max_examples=25)
@given(
    vocabulary=st.integers(2, 9), batch=st.integers(1, 4), beam=st.integers(1, 4), seed=st.integers(0, 2**31)
)
def test_items_of_a_batch_do_not_touch_and_scores_are_the_decoders_own(vocabulary, batch, beam, seed):
    toy = Toy.drawn(vocabulary, seed)
    options = {"begin": BEGIN, "end": END, "max_length": 7, "beam": beam, "best": beam}
    together = beam_search(toy, toy.start(batch), batch=batch, **options)
    for item, hypotheses in enumerate(together):
        start = toy.start(batch).items(torch.tensor([item]))
        (alone,) = beam_search(toy, start, batch=1, **options)
        assert [each.words for each in hypotheses] == [each.words for each in alone]
        assert [each.words for each in hypotheses if each.ended] == list(
            dict.fromkeys(each.words for each in hypotheses if each.ended)
        )  # no output twice
        ranks = [(not each.ended, -each.score) for each in hypotheses]
        assert ranks == sorted(ranks)
        for each in hypotheses:
            log_probs, weights = toy.told(each.words + ((END,) if each.ended else ()), start)
            assert each.log_probs == pytest.approx(log_probs, abs=1e-12)
            assert each.log_probability == pytest.approx(sum(log_probs), abs=1e-12)
            assert each.score == pytest.approx(sum(log_probs) / length_penalty(len(log_probs), 0.6))
            assert each.attention is not None
            assert_close(each.attention, weights)
            assert each.ended or len(each.words) == 7


@settings(max_examples=25)
@given(vocabulary=st.integers(2, 9), batch=st.integers(1, 4), seed=st.integers(0, 2**31))
def test_greedy_takes_the_likeliest_word_each_time_and_is_a_beam_of_one(vocabulary, batch, seed):
    toy = Toy.drawn(vocabulary, seed)
    options = {"batch": batch, "begin": BEGIN, "end": END, "max_length": 6, "alpha": 0.6}
    greedy = greedy_search(toy, toy.start(batch), **options)
    for item, (hypothesis, (other,)) in enumerate(
        zip(greedy, beam_search(toy, toy.start(batch), beam=1, **options), strict=True)
    ):
        words, state = [BEGIN], toy.start(batch).items(torch.tensor([item]))
        while len(words) <= 6 and words[-1] != END:
            step = toy(torch.tensor(words[-1:]), state)
            state = step.state
            words.append(int(step.scores.argmax()))
        said = tuple(words[1:])
        assert hypothesis.words + ((END,) if hypothesis.ended else ()) == said
        assert (hypothesis.words, hypothesis.ended, hypothesis.score) == (
            other.words,
            other.ended,
            other.score,
        )
        assert hypothesis.log_probs == other.log_probs
        assert_close(hypothesis.attention, other.attention, rtol=0, atol=0)


@dataclass(frozen=True)
class Nothing:
    """The state of a decoder that remembers nothing."""

    def items(self, order: Tensor) -> Nothing:
        return self


def always(*probabilities: float):
    """A decoder that says the same at every step, and looks nowhere."""
    scores = torch.tensor(probabilities, dtype=torch.float64).log()
    return lambda words, state: Step(scores.expand(len(words), -1), state)


def test_of_words_that_are_as_likely_the_first_come_first():
    decoder = always(0.2, 0.2, 0.2, 0.2, 0.2)
    options = {"batch": 1, "begin": 0, "end": 4}
    (found,) = beam_search(decoder, Nothing(), max_length=2, beam=3, best=3, alpha=0.0, **options)
    assert [each.words for each in found] == [(0, 0), (0, 1), (0, 2)]
    (found,) = beam_search(decoder, Nothing(), max_length=2, beam=5, best=5, alpha=0.0, **options)
    assert [(each.words, each.ended) for each in found] == [
        ((), True), ((0,), True), ((0, 0), False), ((0, 1), False), ((0, 2), False),
    ]  # fmt: skip
    (greedy,) = greedy_search(decoder, Nothing(), max_length=3, **options)
    assert greedy.words == (0, 0, 0)
    assert greedy.attention is None


def test_the_length_penalty_is_the_papers_and_decides_between_short_and_long():
    assert length_penalty(1, 0.7) == 1.0
    assert length_penalty(7, 0.5) == pytest.approx(math.sqrt(2))
    assert length_penalty(9, 0.0) == 1.0
    # "end" has 0.4 and the other word 0.6: one word more costs ln 0.6, more than a small penalty gives back.
    decoder = always(0.6, 0.4)
    options = {"batch": 1, "begin": 0, "end": 1, "max_length": 4, "beam": 4}
    by_hand = {
        alpha: max(range(4), key=lambda n: (n * math.log(0.6) + math.log(0.4)) / length_penalty(n + 1, alpha))
        for alpha in (0.0, 5.0)
    }
    assert by_hand == {0.0: 0, 5.0: 3}
    for alpha, length in by_hand.items():
        assert len(beam_search(decoder, Nothing(), alpha=alpha, **options)[0][0].words) == length


def test_a_forbidden_word_is_never_said_and_the_others_keep_their_probability():
    decoder = always(0.1, 0.2, 0.6, 0.1)
    options = {"batch": 2, "begin": 0, "end": 1, "max_length": 3}
    forbidden = torch.tensor([[False, False, True, False], [True, True, False, True]])
    for found in (
        greedy_search(decoder, Nothing(), forbidden=forbidden, **options),
        [each[0] for each in beam_search(decoder, Nothing(), forbidden=forbidden, beam=2, **options)],
    ):
        assert (found[0].words, found[0].ended) == ((), True)
        assert found[0].log_probs == pytest.approx([math.log(0.2)])
        assert (found[1].words, found[1].ended) == ((2, 2, 2), False)
        assert found[1].log_probs == pytest.approx([math.log(0.6)] * 3)
    shared = torch.tensor([True, False, True, True])
    assert [each.words for each in greedy_search(decoder, Nothing(), forbidden=shared, **options)] == [(), ()]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam": 0}, "beam must be at least 1 but is 0"),
        ({"best": 3, "beam": 2}, "best must be at most beam = 2 but is 3"),
        ({"max_length": 0}, "max_length must be at least 1 but is 0"),
        ({"batch": 0}, "batch must be at least 1 but is 0"),
        ({"forbidden": torch.tensor([True, True])}, "forbidden must leave one of 2 words"),
        ({"forbidden": torch.tensor([False])}, r"have one value for each but has shape \(1,\)"),
    ],
)
def test_numbers_that_cannot_be_are_told(options, message):
    with pytest.raises(ValueError, match=message):
        beam_search(
            always(0.5, 0.5), Nothing(), **{"batch": 1, "begin": 0, "end": 1, "max_length": 2, **options}
        )
