"""English–French sentence pairs of Tatoeba as training and test material.

``eng-fra.tsv.gz`` has a pair a line, English first; an English sentence comes once for each of its translations. The
pairs are split by English sentence, signs and case aside, so that no held-out sentence was trained on in other dress.
The split does not hang on the seed of a training.
"""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from analysis.translation_words import Vocabulary, split_words

FILE = "eng-fra.tsv.gz"
DEVELOPMENT, TEST = 500, 1000
"""Held-out English sentences."""


@dataclass(frozen=True)
class Sentence:
    """An English sentence and its French translations, in words."""

    english: tuple[str, ...]
    french: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Corpus:
    """The three parts; ``training`` may hold a sentence several times, in other dress."""

    training: tuple[Sentence, ...]
    development: tuple[Sentence, ...]
    test: tuple[Sentence, ...]

    def vocabularies(self, at_least: int) -> tuple[Vocabulary, Vocabulary]:
        """English and French words that the training pairs use ``at_least`` so often."""
        english = (sentence.english for sentence in self.training for _ in sentence.french)
        french = (french for sentence in self.training for french in sentence.french)
        return Vocabulary.of(english, at_least=at_least), Vocabulary.of(french, at_least=at_least)


def read_corpus(folder: Path, *, development: int = DEVELOPMENT, test: int = TEST) -> Corpus:
    """The pairs of a folder, split.

    A group of sentences that differ in signs or case alone goes into one part; a held-out group gives its first
    sentence with the translations of that one.
    """
    with gzip.open(folder / FILE, "rt", encoding="utf-8") as file:
        lines = [line.rstrip("\n").split("\t") for line in file]
    french: dict[str, list[tuple[str, ...]]] = {}
    for english, translation, *_ in lines:
        french.setdefault(english, []).append(tuple(split_words(translation, "fr")))
    groups: dict[tuple[str, ...], list[Sentence]] = {}
    for english, translations in french.items():
        words = tuple(split_words(english, "en"))
        groups.setdefault(_bare(words), []).append(Sentence(words, tuple(dict.fromkeys(translations))))
    grouped = list(groups.values())
    ordered = [grouped[index] for index in np.random.default_rng(0).permutation(len(grouped))]
    held_out = [group[0] for group in ordered[: development + test]]
    training = tuple(sentence for group in ordered[development + test :] for sentence in group)
    return Corpus(training, tuple(held_out[:development]), tuple(held_out[development:]))


def joined(sentences: Sequence[Sentence], parts: int) -> list[Sentence]:
    """Longer texts: each ``parts`` sentences in a row as one, with the first translation of each."""
    groups = [sentences[start : start + parts] for start in range(0, len(sentences) - parts + 1, parts)]
    return [
        Sentence(
            tuple(word for sentence in group for word in sentence.english),
            (tuple(word for sentence in group for word in sentence.french[0]),),
        )
        for group in groups
    ]


def _bare(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(word.lower() for word in words if any(letter.isalnum() for letter in word))
