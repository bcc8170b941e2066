"""A document longer than a model takes, read in overlapping windows, and what they say together.

The text is tokenised once. Each window holds as many of its tokens as the model takes beside the special tokens that
the tokenizer adds, and begins ``stride`` tokens after the one before it; the last one ends where the document ends.
Every token belongs to one window, its owner: the one in which it stands most centrally (ties: the earlier), so that
it has most context on both sides; in a causal model the earliest, in which it has most before it. Rules of merging:

- a token's row of attention, and its hidden state, are those of its owner; weight on the window's special tokens
  goes to the document's;
- rows and hidden states of the special tokens are the mean over the windows;
- logits for the whole input are the mean of the windows' logits, logits a token those of its owner.

Beyond its window a token has no weight: the model never saw them together. A document that fits is no reading at all.

Of a pair the longer text is cut into windows and each has the shorter one whole, as a question is asked of every part
of a long context (Devlin et al. 2018, on SQuAD). Its tokens are in every window, so they count as special ones do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from analysis.inputs import Inputs, input_digest, text_inputs, tokenizer_of
from analysis.token_labels import Labelled, label_tokens
from analysis.tokenising import Tokens, check_tokens, clean, limit_of, selected, tokenised
from attn_core.budget import fits
from attn_core.errors import UnsupportedModelError
from attn_core.reading_map import ReadingMap

if TYPE_CHECKING:
    from analysis.models import LoadedModel
    from analysis.trace import Trace
    from attn_core.maps import AttentionMap


@dataclass(frozen=True, eq=False)
class Reading:
    """How a document is read.

    Attributes:
        window: tokens of a window, special ones included.
        stride: tokens between the beginnings of two windows.
        windows: what goes into the model, one after the other; each is an ordinary input.
        columns: of each window, (n,) ascending positions of its tokens in the document.
        places: of each window, (r,) which of its tokens it speaks for: those that it owns, and special ones.
        shared: positions that every window has: special tokens, and of a pair the text that is not cut.
    """

    window: int
    stride: int
    windows: tuple[Inputs, ...]
    columns: tuple[Tensor, ...]
    places: tuple[Tensor, ...]
    shared: tuple[int, ...]

    @property
    def rows(self) -> tuple[Tensor, ...]:
        """Of each window, (r,) ascending positions in the document that it speaks for."""
        return tuple(held[places] for held, places in zip(self.columns, self.places, strict=True))

    @property
    def overlap(self) -> int:
        """Tokens that a window shares with the one before it (the last may share more)."""
        return self.window - len(self.shared) - self.stride

    def owner(self, position: int) -> int | None:
        """The window that speaks for a position; None for one that all windows have, for which all do."""
        if position in self.shared:
            return None
        return next(index for index, rows in enumerate(self.rows) if bool((rows == position).any()))

    def span(self, index: int) -> tuple[int, int]:
        """First and last position of the document in a window, those aside that every window has."""
        shared = set(self.shared)
        held = [position for position in self.columns[index].tolist() if position not in shared]
        return held[0], held[-1]


def default_stride(window: int, shared: int) -> int:
    """Half of a window's own tokens: every token has at least a quarter of a window on each side."""
    return max((window - shared) // 2, 1)


def encode_document(
    model: LoadedModel,
    text: str,
    pair: str | None = None,
    *,
    window: int | None = None,
    stride: int | None = None,
) -> Inputs:
    """One text of any length, or a pair, as ``model`` reads it: at once where it fits, else in windows.

    Args:
        model: a text model of one stack.
        pair: the second text. The longer of the two is cut into windows, each of which has the other whole.
        window: most tokens at once, special ones included; None takes the model's limit.
        stride: tokens between the beginnings of two windows; None takes half of what a window holds.
    Returns:
        ``Inputs`` of the whole document; ``reading`` is set where it takes more than one window.
    Raises:
        ValueError: if a window or the stride leaves no room for a token, or tokens between windows.
        UnsupportedModelError: for an encoder-decoder, or special tokens inside the text.
    """
    tokenizer = tokenizer_of(model, "encode_document")
    if model.is_encoder_decoder:
        raise UnsupportedModelError(
            f"encode_document: {model.title} writes an answer to its whole input, which windows do not share; use "
            "encode_text, or choose a model of one stack."
        )
    cleaned = [clean(given) for given in ((text,) if pair is None else (text, pair))]
    typed = tuple(given for given, _ in cleaned)
    changed = [note for _, found in cleaned for note in found]
    tokens = tokenised(tokenizer, typed)
    check_tokens(model, tokens, "encode_document")
    labelled = label_tokens(typed, tokens.pieces)
    limit = limit_of(model, window, "encode_document")
    whole = text_inputs(model, typed, tokens, labelled, notes=changed, caller="encode_document")
    if limit is None or tokens.total <= limit:
        return whole
    first, last = span_in_windows(tokens.pieces.sides)
    shared = (*range(first), *range(last, tokens.total))
    room = limit - len(shared)
    if room < 1:
        held = "special tokens" if pair is None else "tokens that every window has"
        raise ValueError(
            f"encode_document: window must leave room for the {len(shared)} {held} and one more but is {limit}; pass "
            f"{'a larger one' if pair is None else 'a larger one, or a shorter second text'}."
        )
    step = default_stride(limit, len(shared)) if stride is None else stride
    if not 1 <= step <= room:
        raise ValueError(
            f"encode_document: stride must be between 1 and {room}, the tokens of a window that are its own, but is "
            f"{step}."
        )
    starts = window_starts(last - first, room, step)
    owned = owned_spans(starts, room, last - first, causal=model.is_causal)
    columns = tuple(
        torch.tensor((*range(first), *range(first + s, first + s + room), *range(last, tokens.total)))
        for s in starts
    )
    places = tuple(
        torch.tensor(
            (*range(first), *range(first + a - s, first + b - s), *range(first + room, len(shared) + room))
        )
        for s, (a, b) in zip(starts, owned, strict=True)
    )
    windows = tuple(_window(model, typed, whole, tokens, labelled, held.tolist()) for held in columns)
    reading = Reading(limit, step, windows, columns, places, shared)
    return replace(
        whole,
        digest=input_digest(f"{whole.source}\0windows of {limit}, stride {step}", whole.tensors),
        notes=(*whole.notes, *reading_notes(reading, labelled, causal=model.is_causal, total=tokens.total)),
        reading=reading,
    )


def windows_of(inputs: Inputs) -> tuple[Inputs, ...]:
    """What goes into the model, one after the other: the windows of a document, else the input itself."""
    return (inputs,) if inputs.reading is None else inputs.reading.windows


def window_starts(length: int, room: int, stride: int) -> list[int]:
    """First token of each window of ``room`` tokens; the last one is moved back so that it ends with the text."""
    last = length - room
    return [*range(0, last, stride), last]


def owned_spans(starts: Sequence[int], room: int, length: int, *, causal: bool) -> list[tuple[int, int]]:
    """First token that each window owns, and the one after the last.

    Where windows overlap, a token belongs to the one whose middle is nearer; in a causal model to the earlier.
    """
    if causal:
        ends = [start + room for start in starts[:-1]]
    else:
        ends = [(start + after + room - 1) // 2 + 1 for start, after in pairwise(starts)]
    return list(zip([0, *ends], [*ends, length], strict=True))


def reading_notes(reading: Reading, labelled: Labelled, *, causal: bool, total: int) -> tuple[str, ...]:
    """How the document was read, for a reader."""
    held = [labelled.labels[place] for place in reading.shared]
    names = list(dict.fromkeys(label.text for label in held if label.special))
    own = next((label.segment for label in held if not label.special), None)
    if own is not None:
        names.append(f"sentence {'AB'[own]}")
    owner = (
        "the earliest window that holds it, in which it has most before it"
        if causal
        else "the window in which it stands most centrally"
    )
    in_words = " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))
    shared = f" The rows of {in_words} are the mean over the windows." if names else ""
    if own is not None:
        shared += f" Sentence {'BA'[own]} is cut into windows; each has sentence {'AB'[own]} whole."
    return (
        f"Read {total:,} tokens in {len(reading.windows):,} windows of {reading.window:,}, stride "
        f"{reading.stride:,}: {_overlaps(reading)}. A token's row is that of {owner}; tokens that share no window "
        f"have no weight.{shared}",
    )


def _overlaps(reading: Reading) -> str:
    """How much windows share; the last one, which ends with the text, may share more than the others."""
    count = len(reading.windows)
    before, last = reading.span(count - 2), reading.span(count - 1)
    at_the_end = before[1] + 1 - last[0]
    if count == 2:
        return f"they share {at_the_end:,} tokens"
    end = f", the last two {at_the_end:,}" if at_the_end != reading.overlap else ""
    if not reading.overlap:
        return f"neighbours share no tokens{end}"
    return f"neighbours share {reading.overlap:,} tokens{end}"


def span_in_windows(sides: Sequence[int | None]) -> tuple[int, int]:
    """Where the text that is cut into windows begins and ends: the only one, or the longer of a pair.

    Args:
        sides: the text that each token comes from, 0 or 1; None where the tokenizer added it.
    Raises:
        UnsupportedModelError: if it added tokens inside the text.
    """
    by_text = [[place for place, side in enumerate(sides) if side == text] for text in (0, 1)]
    own = max(reversed(by_text), key=len)
    if not own:
        return len(sides), len(sides)
    if own[-1] - own[0] + 1 != len(own):
        raise UnsupportedModelError(
            "encode_document: the tokenizer adds special tokens inside the text, so it cannot be cut into windows; "
            "shorten the text."
        )
    return own[0], own[-1] + 1


def _window(
    model: LoadedModel,
    typed: tuple[str, ...],
    whole: Inputs,
    tokens: Tokens,
    labelled: Labelled,
    held: Sequence[int],
) -> Inputs:
    """One window as an ordinary input; its labels and spans are those of the document."""
    part = selected(tokens, held)
    part = replace(part, total=len(held))
    spans = None if labelled.spans is None else tuple(labelled.spans[place] for place in held)
    own = Labelled(tuple(labelled.labels[place] for place in held), spans, labelled.notes)
    return text_inputs(model, typed, part, own, caller="encode_document", direction=whole.direction)


# What the windows say together -------------------------------------------------------------------------------------


def merged(inputs: Inputs, traces: Iterable[Trace]) -> Trace:
    """The windows of a document as one trace; each is let go of as soon as its own rows are taken.

    Args:
        inputs: of the document; ``reading`` is set.
        traces: of its windows, in order.
    """
    reading = inputs.reading
    assert reading is not None
    layers: dict[str, list[list[AttentionMap]]] = {"encoder": [], "decoder": []}
    whole: list[Tensor] = []
    by_token: list[Tensor] = []
    hidden: list[Tensor] = []
    features: list[Tensor] = []
    notes: list[str] = []
    last = None
    for index, found in enumerate(traces):
        places = reading.places[index]
        for kind, kept in layers.items():
            maps: tuple[AttentionMap, ...] = getattr(found, kind)
            kept.append([layer.item(0, rows=places) for layer in maps])
        if found.logits is not None:
            of_tokens = found.logits.ndim == 2 and len(found.logits) == len(reading.columns[index])
            (by_token if of_tokens else whole).append(found.logits[places] if of_tokens else found.logits)
        if found.hidden is not None:
            hidden.append(found.hidden[places])
        if found.features is not None:
            features.append(found.features)
        notes += found.notes
        last = found
    assert last is not None
    size = len(inputs.tokens or ())
    each = torch.stack(whole) if whole else None
    token_logits, more = _within_budget(by_token, reading, size)
    return replace(
        last,
        inputs=inputs,
        logits=token_logits if each is None else each.mean(0),
        hidden=_placed(hidden, reading, size) if hidden else None,
        features=torch.stack(features).mean(0) if features else None,
        encoder=_over_the_document(layers["encoder"], reading),
        decoder=_over_the_document(layers["decoder"], reading),
        cross=(),
        notes=tuple(dict.fromkeys((*notes, *more, *_logit_notes(each)))),
        window_logits=each,
    )


def _over_the_document(
    layers: Sequence[Sequence[AttentionMap]], reading: Reading
) -> tuple[AttentionMap, ...]:
    """One map a layer, of the (W, L) maps of the windows' own rows."""
    return tuple(
        ReadingMap.of(windows, reading.rows, reading.columns) for windows in zip(*layers, strict=True)
    )


def _placed(parts: Sequence[Tensor], reading: Reading, size: int) -> Tensor:
    """(N, ...) numbers a token, each from its owner; those that every window has are the mean over them."""
    total = parts[0].new_zeros((size, *parts[0].shape[1:]))
    held = torch.zeros(size)
    for rows, part in zip(reading.rows, parts, strict=True):
        total[rows] += part
        held[rows] += 1
    return total / held.view(-1, *(1,) * (total.ndim - 1)).to(total.dtype)


def _within_budget(
    parts: Sequence[Tensor], reading: Reading, size: int
) -> tuple[Tensor | None, tuple[str, ...]]:
    """(N, V) logits a token, where the memory budget allows them."""
    if not parts:
        return None, ()
    if not fits(size * parts[0].shape[1] * 4):
        return None, (
            f"The logits of all {size:,} tokens would take more than the memory budget and were left out.",
        )
    return _placed(parts, reading, size), ()


def _logit_notes(each: Tensor | None) -> tuple[str, ...]:
    if each is None:
        return ()
    return (f"The prediction is made from the mean of the logits of {len(each):,} windows.",)
