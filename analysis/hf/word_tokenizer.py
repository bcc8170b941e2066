"""A tokenizer of whole words, for models that know no word pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tokenizers import Regex, Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import NFD, Lowercase, Replace, StripAccents
from tokenizers.normalizers import Sequence as InOrder
from tokenizers.pre_tokenizers import PreTokenizer, Split, WhitespaceSplit
from tokenizers.pre_tokenizers import Sequence as Steps
from transformers import PreTrainedTokenizerFast

PADDING, UNKNOWN = "<pad>", "<unk>"

_PART = r"n't\b|'(?:s|re|ve|ll|d|m)\b|\p{L}+?(?=n't\b)|\p{L}+|\p{N}+|[^\p{L}\p{N}]"
"""Words, numbers and single signs; clitics are words of their own (``do`` ``n't``), as treebanks have them."""


def word_tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """The tokenizer whose vocabulary is ``words`` in order; lower case, no accents.

    Args:
        words: padding first, the unknown word second.
    Raises:
        ValueError: if they are not there, or a word comes twice.
    """
    if tuple(words[:2]) != (PADDING, UNKNOWN) or len(set(words)) != len(words):
        raise ValueError(
            f"word_tokenizer: words must begin with {PADDING} and {UNKNOWN} and name each word once but begin with "
            f"{list(words[:2])}; pass the vocabulary as it was trained."
        )
    backend = Tokenizer(WordLevel({word: index for index, word in enumerate(words)}, unk_token=UNKNOWN))
    backend.normalizer = InOrder([Replace("’", "'"), NFD(), StripAccents(), Lowercase()])
    backend.pre_tokenizer = splitter()
    make: Any = PreTrainedTokenizerFast
    made: PreTrainedTokenizerFast = make(tokenizer_object=backend, pad_token=PADDING, unk_token=UNKNOWN)
    return made


def splitter() -> PreTokenizer:
    """What cuts a normalised text into words."""
    return Steps([WhitespaceSplit(), Split(Regex(_PART), behavior="isolated")])


def split_words(text: str) -> list[str]:
    """The words of a text as the vocabulary has them."""
    normal = InOrder([Replace("’", "'"), NFD(), StripAccents(), Lowercase()]).normalize_str(text)
    return [word for word, _ in splitter().pre_tokenize_str(normal)]
