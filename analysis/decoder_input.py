"""What the decoder of an encoder-decoder reads: a given target, the model's own words, or its start token alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from analysis.figure_data import TokenLabel
from analysis.models import LoadedModel
from analysis.token_labels import Labelled, Pieces, align, label_tokens
from analysis.tokenising import TOKENIZER_LOCK, check_tokens, clean, cut, limit_of, tokenised
from attn_core.errors import UnsupportedModelError

GENERATED_TOKENS = 64
"""Most tokens that an encoder-decoder writes when no target is given."""


@dataclass(frozen=True)
class Target:
    """What the decoder of an encoder-decoder reads; ``ids`` None leaves it to the model."""

    ids: list[int] | None = None
    labels: tuple[TokenLabel, ...] | None = None
    notes: tuple[str, ...] = ()


def decoder_target(
    model: LoadedModel,
    tokenizer: Any,
    tensors: Mapping[str, Tensor],
    source: Labelled,
    target: str | None,
    caller: str,
) -> Target:
    """The decoder's tokens."""
    start = _start_token(model, caller)
    with TOKENIZER_LOCK:
        start_label = TokenLabel(str(tokenizer.convert_ids_to_tokens(start)), "", special=True)
    start_label = replace(start_label, piece=start_label.text)
    if target is not None:
        typed, notes = clean(target)
        tokens = tokenised(tokenizer, (typed,), as_target=True)
        limit = limit_of(model, None, caller)
        tokens = cut(tokens, limit, caller)
        labelled = label_tokens((typed,), tokens.pieces)
        ids, labels = [start, *tokens.ids], (start_label, *labelled.labels)
        if len(ids) > 1 and labels[-1].special:  # shifted right: the end is predicted, not read
            ids, labels = ids[:-1], labels[:-1]
        check_tokens(model, tokens, caller)
        return Target(
            ids, labels, tuple(f"Target: {note}" for note in (*notes, *tokens.notes, *labelled.notes))
        )
    if model.task == "sequence-classification":  # the model itself gives its decoder the input, shifted right
        labels = (start_label, *source.labels[:-1])
        return Target(
            None, labels, ("The decoder reads the input itself, shifted right, as this classifier does.",)
        )
    if not _can_generate(model.module):
        return Target(
            [start], (start_label,), ("The decoder reads its start token alone: no target was given.",)
        )
    return _generated(model, tokenizer, tensors, start_label)


def _start_token(model: LoadedModel, caller: str) -> int:
    """The token that the decoder begins with."""
    for holder in (getattr(model.module, "config", None), getattr(model.module, "generation_config", None)):
        start = getattr(holder, "decoder_start_token_id", None)
        if isinstance(start, int):
            return start
    for name in ("bos_token_id", "pad_token_id"):
        start = getattr(getattr(model.module, "config", None), name, None)
        if isinstance(start, int):
            return start
    raise UnsupportedModelError(f"{caller}: {model.title} does not say which token its decoder starts with.")


def _can_generate(module: nn.Module) -> bool:
    """Whether the module has a language-model head to write with."""
    can_generate = getattr(module, "can_generate", None)
    return bool(can_generate()) if callable(can_generate) else False


def _generated(
    model: LoadedModel, tokenizer: Any, tensors: Mapping[str, Tensor], start_label: TokenLabel
) -> Target:
    """What the model itself writes: greedy, at most ``GENERATED_TOKENS``."""
    generate: Any = model.module.generate
    most = min(
        GENERATED_TOKENS, (model.max_tokens or GENERATED_TOKENS + 1) - 1
    )  # the start token takes a position
    with torch.no_grad():
        ids = generate(**tensors, max_new_tokens=most, do_sample=False, num_beams=1)[0].tolist()
    ended = len(ids) > 1 and ids[-1] == tokenizer.eos_token_id
    written = ids[1:-1] if ended else ids[1:]
    with TOKENIZER_LOCK:
        special = set(tokenizer.all_special_ids)
        found_pieces = zip(written, tokenizer.convert_ids_to_tokens(written), strict=True)
        pieces = [f"<{number}>" if piece is None else str(piece) for number, piece in found_pieces]
        text = tokenizer.decode(written, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    sides = [None if number in special else 0 for number in written]
    spelled = [piece for piece, side in zip(pieces, sides, strict=True) if side == 0]
    found = iter(align(text, spelled) or ())
    offsets = (
        tuple(next(found, (0, 0)) if side == 0 else (0, 0) for side in sides)
        if align(text, spelled)
        else None
    )
    labelled = label_tokens(
        (text,), Pieces(tuple(pieces), tuple(sides), tuple(False for _ in written), offsets)
    )
    stop = "" if ended else f", stopped after {most}"
    note = f"No target was given: the model wrote it itself (greedy, {len(written)} tokens{stop})."
    return Target(ids[:1] + written, (start_label, *labelled.labels), (note,))
