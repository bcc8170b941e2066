"""Words of English and French sentences: cut, put together again, and looked up.

A sentence is cut into words as the treebanks of both languages do: ``do`` ``n't``, ``it`` ``'s``; ``t'`` ``aime``,
``donne`` ``-moi``; every sign is a word of its own, and French has a space before ``! ? : ;`` and inside « ». A word
stands for itself in upper and lower case alike: a vocabulary knows one form of it, the one it mostly has inside
sentences (``Tom``, ``je``).

Imports no torch.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

Language = Literal["en", "fr"]

PADDING, UNKNOWN, BEGIN, END = "<pad>", "<unk>", "<s>", "</s>"
SPECIAL = (PADDING, UNKNOWN, BEGIN, END)
"""The first words of every vocabulary, in order."""

_L = r"[^\W\d_]"  # a letter
_ENGLISH_CLITIC = rf"'(?:s|re|ve|ll|d|m)(?!{_L})"
_PRONOUN = (
    r"(?:t-)?(?:je|tu|ils?|elles?|on|ce|nous|vous|moi|toi|lui|leur|les?|la|y|en|ci|là|mêmes?)"
    rf"(?!{_L})"
)
_FRENCH_CLITIC = rf"-(?:{_PRONOUN}(?!-(?!{_PRONOUN}){_L})|[mt]')"
_SHARED = rf"{UNKNOWN}|\.{{2,}}|(?<!{_L})(?:{_L}\.){{2,}}|\d+(?:[.,:/]\d+)*(?:{_L}+\d*)*"
_ELISION = r"(?:(?:jus|lors|puis|quoi|pres|quel)?qu|[cdjlmnst])'"

_WORDS: dict[Language, re.Pattern[str]] = {
    "en": re.compile(
        rf"{_SHARED}|n't(?!{_L})|{_ENGLISH_CLITIC}|{_L}+?(?=n't(?!{_L}))"
        rf"|{_L}+(?:(?:-|(?!{_ENGLISH_CLITIC})'){_L}+)*\d*|\S",
        re.IGNORECASE,
    ),
    "fr": re.compile(
        rf"{_SHARED}|(?<!{_L}){_ELISION}|{_FRENCH_CLITIC}|{_L}+(?:(?!{_FRENCH_CLITIC})['-]{_L}+)*\d*|\S",
        re.IGNORECASE,
    ),
}
_TO_THE_LEFT: dict[Language, re.Pattern[str]] = {
    "en": re.compile(rf"n't|{_ENGLISH_CLITIC}|\.+|[,…)\]}}!?:;%]", re.IGNORECASE),
    "fr": re.compile(rf"{_FRENCH_CLITIC}|\.+|[,…)\]}}]", re.IGNORECASE),
}
_TO_THE_RIGHT: dict[Language, re.Pattern[str]] = {
    "en": re.compile(r"[(\[{$€£]"),
    "fr": re.compile(rf"{_ELISION}|-[mt]'|[(\[{{]", re.IGNORECASE),
}
_SIGNS = str.maketrans({"’": "'", "‘": "'", "ʼ": "'", "‐": "-", "‑": "-", "“": '"', "”": '"'})


def split_words(text: str, language: Language) -> list[str]:
    """The words of a text as they are written; apostrophes, hyphens and quotation marks in one form each."""
    _check_language(language, "split_words")
    return _WORDS[language].findall(unicodedata.normalize("NFC", text).translate(_SIGNS))


def join_words(words: Sequence[str], language: Language) -> str:
    """The text of words, spaced as the language has it; ``split_words`` cuts it into the same words again.

    Raises:
        ValueError: if the language is neither "en" nor "fr".
    """
    _check_language(language, "join_words")
    text, quotes, glued = "", 0, True
    for word in words:
        closing = word == '"' and quotes % 2 == 1
        space = not (glued or closing or _TO_THE_LEFT[language].fullmatch(word))
        text += f"{' ' if space else ''}{word}"
        glued = _TO_THE_RIGHT[language].fullmatch(word) is not None or (word == '"' and not closing)
        quotes += word == '"'
    return text if split_words(text, language) == list(words) else " ".join(words)


@dataclass(frozen=True)
class Vocabulary:
    """The words that a model knows; a word is looked up in lower case.

    Attributes:
        words: ``SPECIAL`` first, each word once.
    Raises:
        ValueError: if ``SPECIAL`` does not come first, or two words are alike in lower case.
    """

    words: tuple[str, ...]
    index: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        index = {word.lower(): number for number, word in enumerate(self.words)}
        if self.words[: len(SPECIAL)] != SPECIAL or len(index) != len(self.words):
            raise ValueError(
                f"Vocabulary: words must begin with {', '.join(SPECIAL)} and name each word once but begin with "
                f"{list(self.words[: len(SPECIAL)])}; pass the vocabulary as it was trained."
            )
        object.__setattr__(self, "index", index)

    @classmethod
    def of(cls, sentences: Iterable[Sequence[str]], *, at_least: int) -> Vocabulary:
        """The words that come ``at_least`` so often, the most frequent first, of words alike the alphabetic first."""
        counts: Counter[str] = Counter()
        forms: dict[str, Counter[str]] = {}
        for sentence in sentences:
            for place, word in enumerate(sentence):
                key = word.lower()
                counts[key] += 1
                inside = place > 0 and sentence[place - 1] not in _ENDS
                # A capital at the beginning of a sentence says nothing.
                forms.setdefault(key, Counter())[word if inside else key] += 1 if inside else 0
        kept = sorted(
            (key for key, count in counts.items() if count >= at_least), key=lambda key: (-counts[key], key)
        )
        return cls((*SPECIAL, *(_form(key, forms[key]) for key in kept)))

    def number(self, word: str) -> int:
        """The index of a word; that of ``UNKNOWN`` for one that the model does not know."""
        found = self.index.get(word.lower(), 1)
        return 1 if found < len(SPECIAL) else found

    def numbers(self, words: Sequence[str]) -> list[int]:
        """The index of each word."""
        return [self.number(word) for word in words]


_ENDS = frozenset('.!?:"«')
"""What a capital may follow in any word."""


def _form(key: str, forms: Counter[str]) -> str:
    """How a word is mostly written inside sentences; in lower case where it is not, or where that changes its key."""
    best = max(forms, key=lambda form: (forms[form], form == key, form))
    return best if best.lower() == key else key


def _check_language(language: str, function: str) -> None:
    if language not in _WORDS:
        raise ValueError(f"{function}: language must be en or fr but is {language!r}; choose one of them.")
