"""What a tokenizer's pieces stand for in the text as typed: labels, spans and words of every token.

A reader shall see what was typed, not what a tokenizer made of it. So labels are cut out of the text by the
tokenizer's offsets, which are checked first; pieces of one character share its span, the first shows the character
and the others say which part of it they are. A tokenizer without offsets is aligned with the text; where neither
holds, the raw pieces are shown and a note says so. Needs no torch.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from analysis.figure_data import TokenLabel
from analysis.visible import visible_text
from analysis.words import DOTTED_CIRCLE, SPACE, part_sign, token_words

Span = tuple[int, int]

_MARKERS = "▁Ġ "  # a piece made of these alone stands for white space
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_DIRECTION_CONTROLS = frozenset("\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")
_WHITE_SPACE = {"\n": "⏎", "\r": "␍", "\t": "⇥", "\u2028": "⏎", "\u2029": "⏎", "\x85": "⏎"}


@dataclass(frozen=True)
class Pieces:
    """What a tokenizer made of one text or of a pair, token by token.

    Attributes:
        pieces: the tokenizer's own strings.
        sides: 0 or 1, the text that a token comes from; None for a token that the tokenizer added.
        unknown: it stands for something that the vocabulary does not hold.
        offsets: (start, end) in the text of its side, None where the tokenizer gives none.
        second_start: position of the first token of the second text, None for a single text.
    """

    pieces: tuple[str, ...]
    sides: tuple[int | None, ...]
    unknown: tuple[bool, ...]
    offsets: tuple[Span, ...] | None
    second_start: int | None = None


@dataclass(frozen=True)
class Labelled:
    """Labels of all tokens; spans into the text of each token's segment, None when they cannot be trusted."""

    labels: tuple[TokenLabel, ...]
    spans: tuple[Span | None, ...] | None
    notes: tuple[str, ...]


def label_tokens(texts: Sequence[str], tokens: Pieces) -> Labelled:
    """Labels, spans and words of the tokens of one text or a pair.

    Args:
        texts: the text, or both, as typed.
        tokens: what the tokenizer made of them.
    """
    spans: list[Span | None] = [None] * len(tokens.pieces)
    word_spans = list(spans)
    aligned = False
    for side, text in enumerate(texts):
        places = [place for place, owner in enumerate(tokens.sides) if owner == side]
        pieces = [tokens.pieces[place] for place in places]
        unknown = [tokens.unknown[place] for place in places]
        offsets = [tokens.offsets[place] for place in places] if tokens.offsets is not None else None
        if offsets is None:
            offsets, aligned = align(text, pieces), True
            if offsets is None:
                return _raw(tokens, "This tokenizer gives no offsets, so its own pieces are shown.")
        found = _checked_spans(text, pieces, unknown, offsets)
        if found is None:
            return _raw(tokens, "The tokenizer's offsets do not fit the text, so its own pieces are shown.")
        for place, span, word_span in zip(places, *found, strict=True):
            spans[place], word_spans[place] = span, word_span
    labels = _labels(texts, tokens, spans, word_spans)
    notes = ("This tokenizer gives no offsets; its pieces were aligned with the text.",) if aligned else ()
    return Labelled(labels, tuple(spans), notes)


def text_direction(*texts: str) -> Literal["ltr", "rtl"]:
    """Reading direction of the majority of the letters."""
    balance = 0
    for text in texts:
        for character in text:
            kind = unicodedata.bidirectional(character)
            balance += (kind in ("R", "AL")) - (kind == "L")
    return "rtl" if balance > 0 else "ltr"


def shown(characters: str) -> str:
    """Characters as a label shows them: nothing invisible, nothing that turns the reading direction.

    White space alone becomes signs (␣ ⏎ ⇥), control characters their pictures, direction controls, private
    characters and those that would be invisible alone their code points; a mark that begins the label stands on a
    dotted circle.
    """
    if not characters.strip():
        return "".join(_WHITE_SPACE.get(character, SPACE) for character in characters)
    characters = characters.strip()
    if all(unicodedata.category(character) in ("Cf", "Zs") for character in characters):
        return "".join(_code_point(character) for character in characters)
    parts = []
    for character in characters:
        if character in _DIRECTION_CONTROLS or unicodedata.category(character) == "Co":
            parts.append(_code_point(character))
        else:
            parts.append(_WHITE_SPACE.get(character) or visible_text(character))
    text = "".join(parts)
    return DOTTED_CIRCLE + text if unicodedata.category(text[0]).startswith("M") else text


def bare_piece(piece: str) -> str:
    """A tokenizer's piece without its markers (``##``, ``▁``, ``Ġ``, ``</w>``), bytes decoded where whole."""
    if _BYTE_PIECE.fullmatch(piece):
        return piece
    plain = piece.removesuffix("</w>").replace("▁", " ")
    if plain.startswith("##") and len(plain) > 2:
        plain = plain[2:]
    surface = _byte_level(plain)
    if surface is not None and not plain.isascii():
        try:
            plain = surface.decode("utf-8")
        except UnicodeDecodeError:
            # A plain accented letter also reads as a byte; only Ġ-like letters are never typed.
            if any(ord(character) >= 0x100 for character in plain):
                plain = "".join(f"<0x{byte:02X}>" for byte in surface)
    return shown(plain) if plain else piece


# Spans -----------------------------------------------------------------------------------------------------------


def _checked_spans(
    text: str, pieces: Sequence[str], unknown: Sequence[bool], offsets: Sequence[Span]
) -> tuple[list[Span], list[Span]] | None:
    """Spans without surrounding white space, and the spans that decide about words; None if offsets contradict.

    Offsets are cut to the text. They contradict when they run backwards, begin behind the text, or name characters
    that the piece does not spell.
    """
    spans: list[Span] = []
    word_spans: list[Span] = []
    before = (0, 0)
    for piece, is_unknown, (start, end) in zip(pieces, unknown, offsets, strict=True):
        if not 0 <= start <= end or (start >= len(text) and end > len(text)):
            return None
        start, end = min(start, len(text)), min(end, len(text))
        if not piece.strip(_MARKERS):
            span, word_span = _marker_span(text, len(piece), start, end)
        else:
            span = word_span = _trimmed(text, start, end)
            if span < before or span[1] < before[1] or not (is_unknown or _spells(piece, text[slice(*span)])):
                return None
            before = span
        spans.append(span)
        word_spans.append(word_span)
    return spans, word_spans


def _trimmed(text: str, start: int, end: int) -> Span:
    """A span without the white space around it, unless it covers nothing else."""
    inner = text[start:end]
    if not inner.strip():
        return start, end
    return end - len(inner.lstrip()), start + len(inner.rstrip())


def _marker_span(text: str, length: int, start: int, end: int) -> tuple[Span, Span]:
    """Span of a piece that only marks white space, and its word span: one space before a word is part of it."""
    if start == end:  # offsets were trimmed: the white space stands just before, or after at the beginning
        while start > 0 and end - start < length and text[start - 1].isspace():
            start -= 1
        while start == end or (end - start < length and end < len(text) and text[end].isspace()):
            if end >= len(text) or not text[end].isspace():
                break
            end += 1
    if not text[start:end].isspace():  # a marker that the tokenizer put before the first word
        return (start, start), (start, start)
    return (start, end), ((end, end) if length == 1 else (start, end))


def _spells(piece: str, characters: str) -> bool:
    """Whether a piece may stand for characters; judged only where piece and characters are letters one to one."""
    plain = piece.removesuffix("</w>").removeprefix("##").strip(_MARKERS)
    if not (plain.isascii() and plain.isalnum()) or len(plain) != len(characters):
        return True
    decomposed = unicodedata.normalize("NFKD", characters)
    letters = "".join(character for character in decomposed if not unicodedata.combining(character))
    return letters.casefold() == plain.casefold()


def align(text: str, pieces: Sequence[str]) -> list[Span] | None:
    """Spans of pieces in the text that they were made from; None where they do not spell it.

    Plain pieces with markers, byte-level alphabets (GPT-2), ``<0x0A>`` pieces and pieces of one byte each (ByT5) are
    tried in turn.
    """
    raw = text.encode("utf-8")
    characters = [index for index, character in enumerate(text) for _ in character.encode("utf-8")] + [
        len(text)
    ]
    for found in (_aligned_bytes(raw, pieces), _aligned_plain(raw, pieces)):
        if found is not None:
            return [
                (characters[start], characters[end - 1] + 1 if end > start else characters[start])
                for start, end in found
            ]
    return None


def _aligned_plain(raw: bytes, pieces: Sequence[str]) -> list[Span] | None:
    """Byte spans of pieces that are plain characters with markers; white space between them is skipped."""
    spans: list[Span] = []
    position = 0
    for piece in pieces:
        byte = _BYTE_PIECE.fullmatch(piece)
        if byte:
            surface = bytes([int(byte[1], 16)])
        else:
            plain = piece.removesuffix("</w>").removeprefix("##") if len(piece) > 2 else piece
            surface = plain.strip(_MARKERS).encode("utf-8")
            while surface and position < len(raw) and raw[position : position + 1].isspace():
                position += 1
        end = position + len(surface)
        if raw[position:end] != surface and raw[position:end].lower() != surface.lower():
            return None
        spans.append((position, end))
        position = end
    return spans if not raw[position:].strip() else None


def _aligned_bytes(raw: bytes, pieces: Sequence[str]) -> list[Span] | None:
    """Byte spans of pieces that spell every byte: as typed, a byte a character, or in the byte-level alphabet."""
    for spell in (_as_typed, _one_byte, _byte_level):
        surfaces = [spell(piece) for piece in pieces]
        known = [surface for surface in surfaces if surface is not None]
        if len(known) != len(surfaces):
            continue
        joined = b"".join(known)
        extra = 1 if joined == b" " + raw else 0  # a space put before the first word
        if joined[extra:] != raw:
            continue
        spans, position = [], -extra
        for surface in known:
            spans.append((max(position, 0), max(position + len(surface), 0)))
            position += len(surface)
        return spans
    return None


def _as_typed(piece: str) -> bytes | None:
    """The bytes of a piece that is a part of the text itself."""
    return piece.encode("utf-8")


def _one_byte(piece: str) -> bytes | None:
    """The bytes of a piece whose characters are byte values."""
    return bytes(ord(character) for character in piece) if all(ord(c) < 256 for c in piece) else None


def _byte_level(piece: str) -> bytes | None:
    """The bytes that a piece in GPT-2's byte-level alphabet spells; None when it holds another character."""
    alphabet = _byte_alphabet()
    values = [alphabet.get(character) for character in piece]
    return None if None in values else bytes(value for value in values if value is not None)


@cache
def _byte_alphabet() -> dict[str, int]:
    """GPT-2's byte-level alphabet: printable Latin-1 characters stand for themselves, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [value for value in range(256) if value not in printable]
    return {chr(value): value for value in printable} | {
        chr(0x100 + index): value for index, value in enumerate(others)
    }


# Labels ----------------------------------------------------------------------------------------------------------


def _labels(
    texts: Sequence[str], tokens: Pieces, spans: Sequence[Span | None], word_spans: Sequence[Span | None]
) -> tuple[TokenLabel, ...]:
    """One label a token, cut out of the text as typed."""
    words: list[int | None] = [None] * len(spans)
    displayed = [shown(piece) for piece in tokens.pieces]
    for side, text in enumerate(texts):
        places = [place for place, owner in enumerate(tokens.sides) if owner == side]
        side_words = token_words(text, [word_spans[place] for place in places])
        side_texts = _displayed(
            text, [tokens.pieces[place] for place in places], [spans[place] for place in places]
        )
        for place, word, label in zip(places, side_words, side_texts, strict=True):
            words[place], displayed[place] = word, label
    return _with_words(tokens, displayed, words)


def _displayed(text: str, pieces: Sequence[str], spans: Sequence[Span | None]) -> list[str]:
    """What each token of one text shows: the characters that no token before it showed, or which part it is."""
    displayed: list[str] = []
    reached = 0
    owner: list[int] = []  # the tokens that share the characters shown last
    shared = ""
    for place, (piece, span) in enumerate(zip(pieces, spans, strict=True)):
        start, end = span if span is not None else (0, 0)
        if not piece.strip(_MARKERS):
            displayed.append(shown(text[start:end]) or SPACE)
        elif start == end:
            displayed.append(bare_piece(piece))
        elif end > reached:
            displayed.append(shown(text[max(start, reached) : end]))
            reached, owner, shared = end, [place], displayed[-1]
        else:
            owner.append(place)
            shared = shown(text[start:end]) if len(owner) == 2 else shared
            displayed.append("")
            for part, other in enumerate(owner[1:], start=2):
                displayed[other] = part_sign(shared, part, len(owner))
    return displayed


def _raw(tokens: Pieces, note: str) -> Labelled:
    """Labels that show the tokenizer's own pieces."""
    words: list[int | None] = [None] * len(tokens.pieces)
    for side in (0, 1):
        places = [place for place, owner in enumerate(tokens.sides) if owner == side]
        for place, word in zip(places, marked_words([tokens.pieces[place] for place in places]), strict=True):
            words[place] = word
    displayed = [
        shown(piece) if side is None else bare_piece(piece)
        for piece, side in zip(tokens.pieces, tokens.sides, strict=True)
    ]
    return Labelled(_with_words(tokens, displayed, words), None, (note,))


def marked_words(pieces: Sequence[str]) -> list[int]:
    """Word index of each piece from the markers alone: ``▁`` and ``Ġ`` begin a word, ``##`` goes on."""
    begins = any(piece.startswith(("▁", "Ġ")) for piece in pieces)
    ends = not begins and any(piece.endswith("</w>") for piece in pieces)
    words: list[int] = []
    for index, piece in enumerate(pieces):
        if begins:
            fresh = piece.startswith(("▁", "Ġ"))
        elif ends:
            fresh = pieces[index - 1].endswith("</w>")
        else:
            fresh = not piece.startswith("##")
        words.append(words[-1] + fresh if words else 0)
    return words


def _with_words(
    tokens: Pieces, displayed: Sequence[str], words: Sequence[int | None]
) -> tuple[TokenLabel, ...]:
    """The finished labels; segments as BertViz counts them (all before the second text belongs to the first)."""
    labels: list[TokenLabel] = []
    for place, piece in enumerate(tokens.pieces):
        segment = int(tokens.second_start is not None and place >= tokens.second_start)
        before = labels[-1] if labels else None
        continues = (
            before is not None
            and words[place] is not None
            and (before.word, before.segment) == (words[place], segment)
        )
        labels.append(
            TokenLabel(
                text=displayed[place] or shown(piece) or piece,
                piece=piece,
                special=tokens.sides[place] is None,
                unknown=tokens.unknown[place],
                segment=segment,
                word=words[place],
                continues=continues,
            )
        )
    return tuple(labels)


def _code_point(character: str) -> str:
    """A character by its number, such as ⟨U+200D⟩."""
    return f"⟨U+{ord(character):04X}⟩"
