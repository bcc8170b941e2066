"""Translating English sentences into French with the shipped translators, watched word by word.

``load_translator`` gives one of four (additive, dot and general attention, and none), ``translate`` its translation
with the alignment, ``step_by_step`` what it might have said at each word, and ``forced`` how likely it holds a given
translation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from analysis.int8_rows import from_int8_rows
from analysis.trained import verified_part
from analysis.translation_words import BEGIN, END, PADDING, UNKNOWN, Vocabulary, join_words, split_words
from analysis.translators import TRANSLATORS
from attn_core.errors import UnsupportedModelError
from attn_core.models.decoding import Hypothesis, beam_search, greedy_search
from attn_core.models.translator import Translator

MOST_WORDS = 60
"""Of a sentence; the translators were trained on sentences of up to some thirty."""

SIZES = ("embedding", "hidden", "scoring", "cell", "bidirectional", "input_feeding", "attention_width")
"""What ``trained.json`` says that a ``Translator`` is made from."""


@dataclass(frozen=True)
class LengthScore:
    """Held-out sentences of like lengths.

    Attributes:
        shortest, longest: English words, signs not counted.
        sentences: how many.
        bleu: 0 to 100, as ``TranslatorScores.bleu``.
        recall: share of reference words that the translation has; signs are not counted, and of several references
            the one that gives most counts.
    """

    shortest: int
    longest: int
    sentences: int
    bleu: float
    recall: float


@dataclass(frozen=True)
class PartScore:
    """What becomes of one of several held-out sentences that are given as one text.

    Attributes:
        parts: sentences in a text.
        part: which of them, 0 is the first.
        texts: how many.
        recall: as ``LengthScore.recall``, of the words of this part in the whole translation.
        log_prob: mean log-probability of a word of this part's reference, those before it given.
        log_prob_alone: the same where the sentence is given alone.
    """

    parts: int
    part: int
    texts: int
    recall: float
    log_prob: float
    log_prob_alone: float


@dataclass(frozen=True)
class TranslatorScores:
    """What was measured on held-out sentences, with the shipped weights: ``scripts/evaluate_translator.py``.

    Attributes:
        sentences: English ones; ``references``: their French translations.
        bleu: on our words, case aside, all references (Papineni et al. 2002), 0 to 100.
        bleu_13a: on the text as sacrebleu's tokeniser 13a cuts it, case aside.
        exact: share of translations that equal a reference, case aside.
        greedy_bleu: ``bleu`` without a beam.
        lengths: by length of the English sentence.
        parts: of two and three sentences in a row.
    """

    sentences: int
    references: int
    bleu: float
    bleu_13a: float
    exact: float
    greedy_bleu: float
    lengths: tuple[LengthScore, ...]
    parts: tuple[PartScore, ...]

    @classmethod
    def of(cls, facts: Mapping[str, Any]) -> TranslatorScores:
        """As ``trained.json`` has them."""
        rest = {name: value for name, value in facts.items() if name not in ("lengths", "parts")}
        return cls(
            **rest,
            lengths=tuple(LengthScore(**each) for each in facts["lengths"]),
            parts=tuple(PartScore(**each) for each in facts["parts"]),
        )


@dataclass(frozen=True, eq=False)
class LoadedTranslator:
    """A translator that is ready.

    Attributes:
        name, title: as in ``analysis.translators``.
        scoring: "additive", "dot", "general", "concat", or None without attention.
        module: frozen, in evaluation mode, on the CPU.
        english, french: the words it knows.
        scores: what was measured of it; None of one that was just trained.
    """

    name: str
    title: str
    scoring: str | None
    module: Translator
    english: Vocabulary
    french: Vocabulary
    scores: TranslatorScores | None = None


@dataclass(frozen=True)
class OtherTranslation:
    """A hypothesis that came after the best.

    Attributes:
        target: French words; ``text``: put together.
        log_probability: of the whole, natural logarithm; ``score``: what hypotheses are compared by, as in
            ``attn_core.models.decoding``.
    """

    target: tuple[str, ...]
    text: str
    log_probability: float
    score: float


@dataclass(frozen=True, eq=False)
class Translation:
    """A translation and where its words come from.

    Attributes:
        source: S English words as they were typed; ``unknown``: places of those that the model does not know.
        target: T French words; ``copied``: places of those that were taken over from an unknown English word.
        text: ``target`` put together.
        alignment: (T, S), row t = the weights when word t was chosen; rows sum to one. None without attention.
        log_probs: (T,) of each word given those before, natural logarithm.
        log_prob_end: of the end after them; None if the translation was cut.
        score: what hypotheses are compared by.
        alternatives: the other hypotheses, best first.
    """

    source: tuple[str, ...]
    unknown: tuple[int, ...]
    target: tuple[str, ...]
    copied: tuple[int, ...]
    text: str
    alignment: Tensor | None
    log_probs: tuple[float, ...]
    log_prob_end: float | None
    score: float
    alternatives: tuple[OtherTranslation, ...]


@dataclass(frozen=True)
class Candidate:
    """A word that might come next and its probability."""

    word: str
    probability: float


@dataclass(frozen=True, eq=False)
class DecoderStep:
    """One word being chosen.

    Attributes:
        word: the one that was taken; ``analysis.translation_words.END`` at the end.
        probability: of it.
        candidates: the most likely words, best first.
        weights: (S,) of the English words; None without attention.
    """

    word: str
    probability: float
    candidates: tuple[Candidate, ...]
    weights: Tensor | None


@dataclass(frozen=True, eq=False)
class StepByStep:
    """A translation as it came about; ``source``, ``unknown`` and ``copied`` as in ``Translation``.

    Attributes:
        steps: one a word, and one for the end unless the translation was cut.
        text: the words put together.
    """

    source: tuple[str, ...]
    unknown: tuple[int, ...]
    copied: tuple[int, ...]
    steps: tuple[DecoderStep, ...]
    text: str

    @property
    def alignment(self) -> Tensor | None:
        """(steps, S), the end included; None without attention."""
        rows = [step.weights for step in self.steps if step.weights is not None]
        return torch.stack(rows) if rows else None


@dataclass(frozen=True, eq=False)
class ForcedTranslation:
    """A given translation in the eyes of a translator.

    Attributes:
        source, target: words as they were typed.
        unknown, unknown_target: places of those that the model does not know; an unknown French word has the
            log-probability of any unknown word.
        log_probs: (T,) of each word given those before, natural logarithm.
        log_prob_end: of the end after them.
        alignment: (T, S), or None.
    """

    source: tuple[str, ...]
    unknown: tuple[int, ...]
    target: tuple[str, ...]
    unknown_target: tuple[int, ...]
    log_probs: tuple[float, ...]
    log_prob_end: float
    alignment: Tensor | None

    @property
    def log_probability(self) -> float:
        """Of the whole translation, the end included."""
        return math.fsum((*self.log_probs, self.log_prob_end))


def load_translator(name: str) -> LoadedTranslator:
    """The shipped translator of that name, its files checked against their pinned hashes.

    Raises:
        ValueError: if there is none of that name.
        ModelUnavailableError: if a file is missing or is not the published one.
        UnsupportedModelError: if the weights do not fit what ``trained.json`` says of them.
    """
    model = next((each for each in TRANSLATORS if each.name == name), None)
    if model is None:
        names = ", ".join(each.name for each in TRANSLATORS)
        raise ValueError(f"load_translator: name must be one of {names} but is {name!r}.")
    part = verified_part(model)
    return translator_of(model.name, model.title, part.facts, load_file(part.weights))


def translator_of(
    name: str, title: str, facts: Mapping[str, Any], tensors: Mapping[str, Tensor]
) -> LoadedTranslator:
    """A translator from what ``trained.json`` and ``weights.safetensors`` hold.

    Raises:
        UnsupportedModelError: if they do not belong together.
    """
    english, french = Vocabulary(tuple(facts["english"])), Vocabulary(tuple(facts["french"]))
    with torch.device("meta"):
        module = Translator(len(english.words), len(french.words), **{size: facts[size] for size in SIZES})
    try:
        module.load_state_dict(from_int8_rows(tensors), assign=True)
    except RuntimeError as error:
        raise UnsupportedModelError(f"translator_of: {title} is not whole: {error}") from error
    module.eval().requires_grad_(False)
    scores = TranslatorScores.of(facts["scores"]) if "scores" in facts else None
    return LoadedTranslator(name, title, facts["scoring"], module, english, french, scores)


def translate(
    model: LoadedTranslator, text: str, *, beam: int = 5, best: int = 3, alpha: float = 0.6
) -> Translation:
    """The best translation that a beam search finds, and the next best ones.

    A word that the model does not know can come out as an unknown word; then the unknown English word with the
    largest weight is taken over in its place (as in Jean et al. 2015). Without attention nothing
    says which, and it stays ``<unk>``.

    Args:
        text: English, one sentence or a few.
        beam: beginnings that are kept; 1 = greedy.
        best: hypotheses to return, at most ``beam``.
        alpha: of the length penalty, as in ``attn_core.models.decoding``.
    Raises:
        ValueError: if the text has no word or more than ``MOST_WORDS``, or a number is not in its range.
    """
    source = _source_words(text, "translate")
    unknown = _unknown(source, model.english)
    found, *others = search(model, [source], beam=beam, best=min(best, beam), alpha=alpha)[0]
    target, copied = _readable(model, found.words, source, unknown, found.attention)
    length = len(found.words)
    return Translation(
        source=source,
        unknown=unknown,
        target=target,
        copied=copied,
        text=join_words(target, "fr"),
        alignment=None if found.attention is None else found.attention[:length],
        log_probs=found.log_probs[:length],
        log_prob_end=found.log_probs[-1] if found.ended else None,
        score=found.score,
        alternatives=tuple(_other(model, each, source, unknown) for each in others),
    )


def step_by_step(
    model: LoadedTranslator, text: str, *, beam: int = 1, alpha: float = 0.6, candidates: int = 5
) -> StepByStep:
    """How a translation comes about: at each step the likely words and the weights over the source.

    Args:
        text: English, one sentence or a few.
        beam, alpha: how the translation is found, as in ``translate``; ``beam=1`` takes the likeliest word each time.
        candidates: words to tell of at each step.
    Raises:
        ValueError: as ``translate``.
    """
    source = _source_words(text, "step_by_step")
    unknown = _unknown(source, model.english)
    found = search(model, [source], beam=beam, best=1, alpha=alpha)[0][0]
    words, copied = _readable(model, found.words, source, unknown, found.attention)
    taken = [*found.words, *([model.french.index[END]] if found.ended else [])]
    scores, weights = _along(model, source, taken)
    probabilities = scores.masked_fill(
        _forbidden(model, [source])[0], -math.inf
    ).exp()  # of the model as it is
    top = probabilities.sort(dim=-1, descending=True, stable=True)
    steps = tuple(
        DecoderStep(
            word=word,
            probability=float(probabilities[place, number]),
            candidates=tuple(
                Candidate(model.french.words[int(top.indices[place, rank])], float(top.values[place, rank]))
                for rank in range(candidates)
            ),
            weights=None if weights is None else weights[place],
        )
        for place, (word, number) in enumerate(zip((*words, END), taken, strict=False))
    )
    return StepByStep(source, unknown, copied, steps, join_words(words, "fr"))


def forced(model: LoadedTranslator, source: str, target: str) -> ForcedTranslation:
    """How likely the translator holds a given translation, word by word.

    Raises:
        ValueError: if a text has no word or more than ``MOST_WORDS``.
    """
    english = _source_words(source, "forced")
    french = tuple(split_words(target, "fr"))
    _check_length(french, "forced: target")
    taken = [*model.french.numbers(french), model.french.index[END]]
    scores, weights = _along(model, english, taken)
    log_probs = scores.gather(1, torch.tensor(taken)[:, None])[:, 0].tolist()
    return ForcedTranslation(
        source=english,
        unknown=_unknown(english, model.english),
        target=french,
        unknown_target=_unknown(french, model.french),
        log_probs=tuple(log_probs[:-1]),
        log_prob_end=log_probs[-1],
        alignment=None if weights is None else weights[:-1],
    )


def search(
    model: LoadedTranslator,
    sources: Sequence[Sequence[str]],
    *,
    beam: int = 5,
    best: int = 1,
    alpha: float = 0.6,
) -> list[list[Hypothesis]]:
    """The best hypotheses for each of several English sentences in words; ``beam=1`` is greedy.

    Raises:
        ValueError: if a sentence is empty, or a number is not in its range.
    """
    numbers = [torch.tensor(model.english.numbers(source), dtype=torch.long) for source in sources]
    ids = nn.utils.rnn.pad_sequence(numbers, batch_first=True, padding_value=model.english.index[PADDING])
    options: dict[str, Any] = {
        "batch": len(sources),
        "begin": model.french.index[BEGIN],
        "end": model.french.index[END],
        "max_length": 2 * ids.shape[1] + 10,
        "alpha": alpha,
        "forbidden": _forbidden(model, sources),
    }
    with torch.no_grad():
        state = model.module.begin(model.module.encode(ids))
        if beam == 1:
            return [[each] for each in greedy_search(model.module.step, state, **options)]
        return beam_search(model.module.step, state, beam=beam, best=best, **options)


def _forbidden(model: LoadedTranslator, sources: Sequence[Sequence[str]]) -> Tensor:
    """(B, V): marks, and the unknown word where every English word is known."""
    index = model.french.index
    mask = torch.zeros(len(sources), len(model.french.words), dtype=torch.bool)
    mask[:, [index[PADDING], index[BEGIN]]] = True
    mask[:, index[UNKNOWN]] = torch.tensor([not _unknown(source, model.english) for source in sources])
    return mask


def _along(
    model: LoadedTranslator, source: Sequence[str], taken: Sequence[int]
) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities (T, V) of all words and weights (T, S) along given French words (T,)."""
    begin = model.french.index[BEGIN]
    with torch.no_grad():
        state = model.module.begin(model.module.encode(torch.tensor([model.english.numbers(source)])))
        rows, weights = [], []
        for word in (begin, *taken[:-1]):
            step = model.module.step(torch.tensor([word]), state)
            state = step.state
            rows.append(step.scores[0].log_softmax(-1))
            if step.attention is not None:
                weights.append(step.attention[0])
    return torch.stack(rows), torch.stack(weights) if weights else None


def _readable(
    model: LoadedTranslator,
    words: Sequence[int],
    source: Sequence[str],
    unknown: Sequence[int],
    attention: Tensor | None,
) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """French words, unknown ones taken over from the source where attention says which, and the places of these."""
    target = [model.french.words[word] for word in words]
    copied = []
    for place, word in enumerate(target):
        if word == UNKNOWN and attention is not None and unknown:
            weights = attention[place, list(unknown)]
            target[place] = source[unknown[int(weights.argmax())]]
            copied.append(place)
    return tuple(target), tuple(copied)


def _other(
    model: LoadedTranslator, found: Hypothesis, source: Sequence[str], unknown: Sequence[int]
) -> OtherTranslation:
    target, _ = _readable(model, found.words, source, unknown, found.attention)
    return OtherTranslation(target, join_words(target, "fr"), found.log_probability, found.score)


def _source_words(text: str, function: str) -> tuple[str, ...]:
    words = tuple(split_words(text, "en"))
    _check_length(words, f"{function}: text")
    return words


def _check_length(words: Sequence[str], name: str) -> None:
    if not 0 < len(words) <= MOST_WORDS:
        raise ValueError(
            f"{name} must have 1 to {MOST_WORDS} words but has {len(words)}; give a sentence or a few."
        )


def _unknown(words: Sequence[str], vocabulary: Vocabulary) -> tuple[int, ...]:
    """Places of the words that the vocabulary does not have."""
    return tuple(place for place, word in enumerate(words) if vocabulary.number(word) == 1)
