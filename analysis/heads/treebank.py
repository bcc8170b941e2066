"""Sentences with their dependency trees, read from CoNLL-U (universaldependencies.org/format.html).

What is read may come from a stranger: sizes are limited before anything grows, and whatever is wrong is told with
its line. Trees are not checked to be trees, since arcs are counted one by one.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

Span = tuple[int, int]

MOST_BYTES = 32 * 2**20
"""Largest file, unpacked."""

MOST_SENTENCES, MOST_WORDS, MOST_CHARACTERS = 50_000, 1_000, 1_000
"""Most sentences of a file, most words of a sentence, most characters of a word."""

_COLUMNS = 10
_GZIP = b"\x1f\x8b"
_CHUNK = 2**16
_WORD = re.compile(r"[0-9]{1,6}")
_CONTRACTED = re.compile(r"([0-9]{1,6})-([0-9]{1,6})")
_EMPTY_NODE = re.compile(r"[0-9]{1,6}\.[0-9]{1,6}")


@dataclass(frozen=True)
class ParsedSentence:
    """A sentence and its dependency tree.

    Attributes:
        words: forms of the syntactic words, in order.
        heads: index of each word's head, −1 for the root.
        relations: of each word to its head, subtypes included (``nsubj:pass``).
        text: the words as they stand in the running text, with the treebank's spaces.
        spans: (start, end) of each word in ``text``; None for a word of a contraction that does not spell its words
            (French ``du`` for ``de le``), which no characters belong to alone.
    """

    words: tuple[str, ...]
    heads: tuple[int, ...]
    relations: tuple[str, ...]
    text: str
    spans: tuple[Span | None, ...]


def base_relation(relation: str) -> str:
    """A relation without its subtype: ``nsubj:pass`` → ``nsubj``."""
    return relation.partition(":")[0]


def read_treebank(source: str | bytes, *, most_sentences: int = MOST_SENTENCES) -> tuple[ParsedSentence, ...]:
    """The sentences of a CoNLL-U file.

    Multiword tokens (``1-2``) give the running text, empty nodes (``3.1``) and comments are passed over. Only the
    columns ID, FORM, HEAD, DEPREL and ``SpaceAfter=No`` of MISC are read.

    Args:
        source: its text, or its bytes in UTF-8, packed with gzip or not.
        most_sentences: a longer file is refused.
    Raises:
        ValueError: for anything that is no CoNLL-U with heads and relations, with the line; for no sentence; for more
            than ``MOST_BYTES``, ``most_sentences``, ``MOST_WORDS`` or ``MOST_CHARACTERS``.
    """
    if most_sentences < 1:
        raise ValueError(f"read_treebank: most_sentences must be at least 1 but is {most_sentences}.")
    sentences: list[ParsedSentence] = []
    for block in _blocks(_text_of(source)):
        if len(sentences) == most_sentences:
            raise _wrong(
                block[0][0], f"the file has more than {most_sentences:,} sentences", "read a part of it"
            )
        sentences.append(_sentence(block))
    if not sentences:
        raise ValueError(
            "read_treebank: source must hold at least one sentence but holds none; pass a CoNLL-U file, ten columns "
            "with tabs between them and an empty line after each sentence."
        )
    return tuple(sentences)


# Lines -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Word:
    """A word's line. ``line`` is its number; ``head`` counts from 1, 0 for the root."""

    line: int
    form: str
    head: int
    relation: str
    space_after: bool


@dataclass(frozen=True)
class _Contraction:
    """A multiword token over the words ``first`` to ``last``, counted from 1."""

    line: int
    form: str
    first: int
    last: int
    space_after: bool


_Lines = list[tuple[int, str]]


def _text_of(source: str | bytes) -> str:
    """The file as text, line ends as they are."""
    if isinstance(source, str):
        if len(source) > MOST_BYTES:
            raise _too_large()
        return source.removeprefix("\ufeff")
    if source.startswith(_GZIP):
        source = _unpacked(source)
    if len(source) > MOST_BYTES:
        raise _too_large()
    try:
        return source.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = source.count(b"\n", 0, error.start) + 1
        raise _wrong(line, "the file is no UTF-8", "save it as UTF-8") from error


def _unpacked(packed: bytes) -> bytes:
    """What a gzip file holds, members one after another; stops as soon as it is too much."""
    if len(packed) > MOST_BYTES:
        raise _too_large()
    parts: list[bytes] = []
    room = MOST_BYTES
    member = zlib.decompressobj(wbits=31)
    try:
        for start in range(0, len(packed), _CHUNK):
            piece = packed[start : start + _CHUNK]
            while piece:
                if member.eof:
                    piece = piece.lstrip(b"\0")  # padding is allowed after a member
                    member = zlib.decompressobj(wbits=31) if piece else member
                    continue
                parts.append(member.decompress(piece, room + 1))
                room -= len(parts[-1])
                if room < 0:
                    raise _too_large()
                piece = member.unused_data if member.eof else member.unconsumed_tail
    except zlib.error as error:
        raise ValueError(
            f"read_treebank: source is no whole gzip file ({error}); pack it again, or pass it unpacked."
        ) from error
    if not member.eof:
        raise ValueError(
            "read_treebank: source is a gzip file that breaks off; copy it again, or pass it unpacked."
        )
    return b"".join(parts)


def _blocks(text: str) -> Iterator[_Lines]:
    """The numbered lines of each sentence, comments left out."""
    block: _Lines = []
    for number, raw in enumerate(text.split("\n"), start=1):
        line = raw.removesuffix("\r")
        if line.startswith("#"):
            continue
        if line.strip(" \t"):
            block.append((number, line))
        elif block:
            yield block
            block = []
    if block:
        yield block


def _sentence(lines: _Lines) -> ParsedSentence:
    """The sentence of one block."""
    words: list[_Word] = []
    contractions: list[_Contraction] = []
    for number, line in lines:
        fields = line.split("\t")
        if len(fields) != _COLUMNS:
            raise _wrong(
                number,
                f"a word must have {_COLUMNS} columns with tabs between them but has {len(fields)}",
                "save the file as CoNLL-U",
            )
        name, form = fields[0], fields[1]
        if _EMPTY_NODE.fullmatch(name):
            continue
        if not form.strip() or len(form) > MOST_CHARACTERS:
            raise _wrong(
                number,
                f"a form must have 1 to {MOST_CHARACTERS:,} characters but has {len(form.strip()):,}",
                "correct it",
            )
        space_after = "SpaceAfter=No" not in fields[9].split("|")
        contraction = _CONTRACTED.fullmatch(name)
        if contraction:
            first, last = int(contraction[1]), int(contraction[2])
            free = contractions[-1].last if contractions else 0
            if first != len(words) + 1 or last <= first or first <= free:
                raise _wrong(
                    number,
                    f"the multiword token {name} must stand before its first word and hold two words or more",
                    "correct the ID column",
                )
            contractions.append(_Contraction(number, form, first, last, space_after))
            continue
        if not _WORD.fullmatch(name) or int(name) != len(words) + 1:
            raise _wrong(
                number,
                f"the ID must be {len(words) + 1} but is {_shown(name)}",
                "number the words from 1 in each sentence, with an empty line between sentences",
            )
        if len(words) == MOST_WORDS:
            raise _wrong(
                number,
                f"a sentence must have at most {MOST_WORDS:,} words but has more",
                "put an empty line after each sentence",
            )
        words.append(_word(number, form, fields, space_after))
    if not words:
        raise _wrong(lines[0][0], "a sentence must have at least one word but has none", "remove it")
    for position, word in enumerate(words, start=1):
        if word.head > len(words) or word.head == position:
            raise _wrong(
                word.line,
                f"the HEAD must be another word of the {len(words)} or 0 but is {word.head}",
                "correct it",
            )
    if contractions and contractions[-1].last > len(words):
        raise _wrong(
            contractions[-1].line,
            f"a multiword token ends at word {contractions[-1].last} but the sentence has {len(words)}",
            "correct the ID column",
        )
    text, spans = _running_text(words, contractions)
    return ParsedSentence(
        words=tuple(word.form for word in words),
        heads=tuple(word.head - 1 for word in words),
        relations=tuple(word.relation for word in words),
        text=text,
        spans=tuple(spans),
    )


def _word(number: int, form: str, fields: Sequence[str], space_after: bool) -> _Word:
    """A word's line, its head and relation checked by themselves."""
    head, relation = fields[6], fields[7]
    if not _WORD.fullmatch(head):
        raise _wrong(number, f"the HEAD must be a number but is {_shown(head)}", "pass a parsed treebank")
    if not base_relation(relation).strip() or relation == "_" or len(relation) > MOST_CHARACTERS:
        raise _wrong(
            number, f"the DEPREL must name a relation but is {_shown(relation)}", "pass a parsed treebank"
        )
    return _Word(number, form, int(head), relation, space_after)


def _running_text(
    words: Sequence[_Word], contractions: Sequence[_Contraction]
) -> tuple[str, list[Span | None]]:
    """The text and where each word stands in it."""
    at = {contraction.first: contraction for contraction in contractions}
    parts: list[str] = []
    spans: list[Span | None] = []
    length, index = 0, 0
    while index < len(words):
        contraction = at.get(index + 1)
        group = words[index : contraction.last] if contraction else words[index : index + 1]
        form = contraction.form if contraction else words[index].form
        if "".join(word.form for word in group) == form:
            start = length
            for word in group:
                spans.append((start, start + len(word.form)))
                start += len(word.form)
        else:
            spans += [None] * len(group)
        space = contraction.space_after if contraction else words[index].space_after
        parts.append(form + " " * space)
        length += len(parts[-1])
        index += len(group)
    return "".join(parts).rstrip(" "), spans


def _wrong(line: int, what: str, remedy: str) -> ValueError:
    return ValueError(f"read_treebank: line {line}: {what}; {remedy}.")


def _too_large() -> ValueError:
    return ValueError(
        f"read_treebank: source must take at most {MOST_BYTES // 2**20} MiB unpacked but takes more; "
        "read a part of it."
    )


def _shown(field: str) -> str:
    """A field as a message quotes it."""
    return repr(field[:40] + "…" if len(field) > 40 else field)
