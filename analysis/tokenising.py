"""A tokenizer's answer for one text or a pair: cut here and not by the tokenizer, checked for the model.

A tokenizer is shared by all sessions, and its own truncation and padding are settings on that shared object. So it is
always asked for everything, and what does not fit is cut from the answer.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from analysis.models import LoadedModel
from analysis.token_labels import Pieces, Span

# A call may still switch a tokenizer's settings for a moment: those of its file at first, the target language later.
TOKENIZER_LOCK = threading.Lock()


@dataclass(frozen=True)
class Tokens:
    """A tokenizer's answer for one text or pair, without truncation or padding.

    Attributes:
        fields: lists of the model's own inputs (input_ids, attention_mask, token_type_ids).
        pieces: the tokens as strings and where they come from.
        total: tokens before any cut.
        notes: what was cut.
    """

    fields: Mapping[str, list[int]]
    pieces: Pieces
    total: int
    notes: tuple[str, ...] = ()

    @property
    def ids(self) -> list[int]:
        return self.fields["input_ids"]


def clean(text: str) -> tuple[str, list[str]]:
    """The text without halves of surrogate pairs, which no tokenizer takes; lengths stay as they are."""
    replaced = "".join("\ufffd" if "\ud800" <= character <= "\udfff" else character for character in text)
    return replaced, ["Characters that are no valid Unicode are replaced by �."] if replaced != text else []


def tokenised(tokenizer: Any, texts: tuple[str, ...], *, as_target: bool = False) -> Tokens:
    """What a tokenizer makes of a text or a pair; never truncated or padded, so its settings stay as they are."""
    options: dict[str, Any] = {
        "add_special_tokens": True,
        "padding": False,
        "truncation": False,
        "return_attention_mask": True,
        "return_special_tokens_mask": True,
        "return_offsets_mapping": tokenizer.is_fast,
        "verbose": False,
    }
    with TOKENIZER_LOCK:
        encoded = tokenizer(text_target=texts[0], **options) if as_target else tokenizer(*texts, **options)
        ids = list(encoded["input_ids"])
        pieces = list(tokenizer.convert_ids_to_tokens(ids))
        if tokenizer.is_fast:
            sides = list(encoded.sequence_ids(0))
        else:
            own = [tokenizer.tokenize(text) for text in texts]
            sides = _sides(encoded["special_tokens_mask"], len(own[0]))
            pieces = _typed_pieces(pieces, sides, own)
    unknown = [
        number == tokenizer.unk_token_id and side is not None for number, side in zip(ids, sides, strict=True)
    ]
    offsets = (
        tuple((int(start), int(end)) for start, end in encoded["offset_mapping"])
        if tokenizer.is_fast
        else None
    )
    if offsets is not None:
        unknown = _truly_unknown(texts, unknown, sides, offsets, tokenizer.unk_token)
    types = list(encoded.get("token_type_ids", ()))
    fields = {
        name: list(encoded[name])
        for name in ("input_ids", "attention_mask", "token_type_ids")
        if name in encoded
    }
    return Tokens(
        fields=fields,
        pieces=Pieces(
            pieces=tuple(pieces),
            sides=tuple(sides),
            unknown=tuple(unknown),
            offsets=offsets,
            second_start=_second_start(sides, types) if len(texts) == 2 else None,
        ),
        total=len(ids),
    )


def _sides(special: Sequence[int], first_length: int) -> list[int | None]:
    """Which text each token comes from, for a tokenizer that only tells which tokens it added."""
    sides: list[int | None] = []
    seen = 0
    for added in special:
        sides.append(None if added else int(seen >= first_length))
        seen += not added
    return sides


def _typed_pieces(
    pieces: Sequence[str], sides: Sequence[int | None], own: Sequence[Sequence[str]]
) -> list[str]:
    """Pieces with what was typed in place of unknown tokens, where a slow tokenizer's own split has as many."""
    typed = [piece for split in own for piece in split]
    if len(typed) != sum(side is not None for side in sides):
        return list(pieces)
    rest = iter(typed)
    return [piece if side is None else next(rest) for piece, side in zip(pieces, sides, strict=True)]


def _truly_unknown(
    texts: Sequence[str],
    unknown: Sequence[bool],
    sides: Sequence[int | None],
    offsets: Sequence[Span],
    unknown_token: str | None,
) -> list[bool]:
    """Unknown tokens, those left out that were typed as such (GPT-2's unknown token is its end of text)."""
    return [
        flag and side is not None and texts[side][start:end] != unknown_token
        for flag, side, (start, end) in zip(unknown, sides, offsets, strict=True)
    ]


def _second_start(sides: Sequence[int | None], types: Sequence[int]) -> int:
    """Position of the first token of the second text, or of its separator when it is empty; else the end."""
    for marks, wanted in ((sides, 1), (types, 1)):
        found = next((place for place, mark in enumerate(marks) if mark == wanted), None)
        if found is not None:
            return found
    return len(sides)


def limit_of(model: LoadedModel, max_tokens: int | None, caller: str) -> int | None:
    """Most tokens that are kept; None for no limit."""
    if max_tokens is not None and max_tokens < 1:
        raise ValueError(f"{caller}: max_tokens must be at least 1 but is {max_tokens}.")
    limits = [limit for limit in (model.max_tokens, max_tokens) if limit is not None]
    return min(limits) if limits else None


def cut(tokens: Tokens, limit: int | None, caller: str) -> Tokens:
    """The tokens that fit: added tokens stay, the longer text loses from its end first."""
    if limit is None or tokens.total <= limit:
        return tokens
    sides = tokens.pieces.sides
    lengths = [sum(side == wanted for side in sides) for wanted in (0, 1)]
    room = limit - (len(sides) - sum(lengths))
    if room < 1:
        raise ValueError(
            f"{caller}: max_tokens must leave room for the {limit - room} special tokens and one more but is {limit}."
        )
    kept_lengths = _longest_first(lengths[0], lengths[1], room)
    seen = [0, 0]
    kept = []
    for place, side in enumerate(sides):
        if side is None or seen[side] < kept_lengths[side]:
            kept.append(place)
        if side is not None:
            seen[side] += 1
    note = (
        f"The input has {tokens.total:,} tokens; the first {len(kept):,} are kept and {tokens.total - len(kept):,} "
        f"are cut (limit {limit:,}, special tokens included)."
    )
    if lengths[1]:
        note += (
            f" Sentence A keeps {kept_lengths[0]:,} of {lengths[0]:,} tokens, "
            f"sentence B {kept_lengths[1]:,} of {lengths[1]:,}."
        )
    return selected(tokens, kept, (note,))


def _longest_first(first: int, second: int, room: int) -> tuple[int, int]:
    """How many tokens each text keeps when the longer is cut first (as the tokenizers library shares the room)."""
    if first + second <= room:
        return first, second
    short = min(first, second)
    if 2 * short <= room:
        return (first, room - first) if first <= second else (room - second, second)
    half, odd = divmod(room, 2)
    return (half, half + odd) if first <= second else (half + odd, half)


def selected(tokens: Tokens, kept: Sequence[int], notes: Sequence[str] = ()) -> Tokens:
    """The tokens at the given positions, with notes on what happened to the others."""
    pieces = tokens.pieces
    start = pieces.second_start
    return Tokens(
        fields={name: [values[place] for place in kept] for name, values in tokens.fields.items()},
        pieces=Pieces(
            pieces=tuple(pieces.pieces[place] for place in kept),
            sides=tuple(pieces.sides[place] for place in kept),
            unknown=tuple(pieces.unknown[place] for place in kept),
            offsets=tuple(pieces.offsets[place] for place in kept) if pieces.offsets is not None else None,
            second_start=sum(place < start for place in kept) if start is not None else None,
        ),
        total=tokens.total,
        notes=(*tokens.notes, *notes),
    )


def check_tokens(model: LoadedModel, tokens: Tokens, caller: str) -> None:
    """Refuse what would fail deep inside the model (on a GPU it would spoil the device for everyone)."""
    if not tokens.ids:
        raise ValueError(
            f"{caller}: the text must give at least one token for {model.title} but gives none; type some."
        )
    find_embeddings: Any = getattr(model.module, "get_input_embeddings", None)
    embeddings = find_embeddings() if find_embeddings is not None else None
    vocabulary = getattr(embeddings, "num_embeddings", None)
    if vocabulary is not None and max(tokens.ids) >= vocabulary:
        raise ValueError(
            f"{caller}: the tokenizer gives token {max(tokens.ids)} but {model.title} knows {vocabulary} tokens; "
            "use the tokenizer that belongs to the model."
        )


def model_fields(model: LoadedModel, tokens: Tokens) -> dict[str, list[int]]:
    """The fields that this model takes."""
    fields = {name: values for name, values in tokens.fields.items() if takes(model.module, name)}
    fields["input_ids"] = tokens.ids
    if "token_type_ids" in fields:
        # A generic tokenizer gives segment ids to models that have no table for them (GPT-2 would look up words).
        kinds = getattr(getattr(model.module, "config", None), "type_vocab_size", None)
        if model.family != "xlnet" and (kinds is None or kinds <= max(fields["token_type_ids"], default=0)):
            del fields["token_type_ids"]
    return fields


def takes(module: nn.Module, name: str) -> bool:
    """Whether a module's forward has an argument of that name."""
    return name in inspect.signature(module.forward).parameters
