"""Evidence for every predicted word of a text: which words that the model has read does each word rest on?

A table in the manner of Inseq (Sarti et al. 2023, "Inseq: An Interpretability Toolkit for Sequence Generation
Models", arXiv 2302.13942, section 3): each token of the text, its log-probability explained by one method, over the
tokens read before it. Of an encoder-decoder these are the source's; of a causal model the text's own.

A masked model sees the word that it predicts, so each word would take a pass of its own with that word masked: such
models are refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from analysis.evidence.attention import index_of
from analysis.evidence.explanation import Explanation, explanation_of, kept_positions
from analysis.evidence.methods import METHODS, Progress, explain
from analysis.evidence.passes import ForwardPass, plain_outputs
from analysis.evidence.perturbation import (
    batch_items,
    masked_outputs,
    repeated,
    replacement_note,
    resolved,
    stand_in_token,
)
from analysis.evidence.targets import Outputs, Target, token_log_probability
from analysis.figure_data import TokenLabel
from analysis.visible import short_label

MOST_CELLS = 20_000
"""Largest table: predicted words × words read."""

MOST_PASSES = 10_000
"""Most passes through the model, forward or forward and backward, that a table may take."""

ENCODER_ALONE = ("rollout", "gradient_rollout", "attention_flow", "attention_gradcam")
"""Methods that follow the encoder's attention and know no position of a decoder."""

NOISY_COPIES = ("smooth_cdam", "integrated_cdam")
"""Methods that run many copies of one layer's tokens at once; a decoder beside it has no copies."""


@dataclass(frozen=True)
class PredictedWord:
    """A token that stands in the text and that the model predicts.

    Attributes:
        position: of the logits that predict it, the one before its own.
        token: index in the vocabulary.
        label: as it stands in the text.
    """

    position: int
    token: int
    label: TokenLabel

    @property
    def target(self) -> Target:
        """Its log-probability."""
        return token_log_probability(self.position, self.token, f"“{short_label(self.label.text)}”")


@dataclass(frozen=True, eq=False)
class EveryWord:
    """One method's scores for every predicted word, a row a word.

    Attributes:
        method: key of the method.
        scores: (T, S) on the CPU; NaN where the word's position has not read the token yet.
        words: T, in reading order.
        tokens: S labels of what is read: the source, or the text itself; then, of ``prefix`` columns, what the
            decoder of an encoder-decoder has read, in segment 1.
        prefix: how many of the S columns are the decoder's own.
        log_probabilities: (T,) natural logarithms of the words' probabilities.
        signed: scores may speak against a word; else they are at least 0.
        removed: mean over words of the share of Σ|score| that lay on special tokens, which have no column.
        notes: what to know of the table.
    """

    method: str
    scores: Tensor
    words: tuple[PredictedWord, ...]
    tokens: tuple[TokenLabel, ...]
    prefix: int
    log_probabilities: Tensor
    signed: bool
    removed: float
    notes: tuple[str, ...]


def every_word(
    run: ForwardPass, method_key: str, *, progress: Progress | None = None, **options: Any
) -> EveryWord:
    """The table of one method.

    Methods of one pass read the one graph of ``run``, one backward pass a word. Leave one out reads all words from
    the same passes; of an encoder-decoder it also leaves out what the decoder has read. The others run once a word.
    Attention, rollout and flow ask for no target: their row is that of the position which predicts the word, of an
    encoder-decoder's attention that of the last cross-attention, mean over heads.

    Args:
        method_key: of ``analysis.evidence.methods.METHODS``.
        progress: told how much is done, 0 to 1; what it raises stops the table.
        options: of the method's own function, but for ``row``; leave one out takes none.
    Raises:
        ValueError: if there is no such method or option, or ``refusal`` says why there is no table; as the method.
        UnsupportedModelError, MemoryBudgetError: as the method.
    """
    reason = refusal(run, method_key, **options)
    if reason:
        raise ValueError(f"every_word: {reason}")
    wrong = set(options) if method_key == "leave_one_out" else set(options) & {"row"}
    if wrong:
        raise ValueError(
            f"every_word: options must not hold {', '.join(sorted(wrong))} for {method_key}: the row is that of the "
            "position which predicts a word, and leave one out takes its default replacement; leave them out."
        )
    words = predicted_words(run)
    if method_key == "leave_one_out":
        return _leave_one_out(run, words, progress)
    found = []
    for index, word in enumerate(words):
        found.append(_explained(run, method_key, word, _share(progress, index, len(words)), options))
        if progress is not None:
            progress((index + 1) / len(words))
    columns = _columns(run)
    first = found[0]
    kept = [place for place, position in enumerate(first.positions.tolist()) if position in set(columns)]
    raw = torch.stack([explanation.scores for explanation in found])  # (T, n)
    scores, hidden = _seen(run, raw[:, kept], words, columns), _unseen_share(run, raw, words, first.positions)
    notes = [*dict.fromkeys(note for explanation in found for note in explanation.notes), *_side_notes(run)]
    if hidden >= 0.0005:
        notes.append(
            f"{hidden:.1%} of Σ|score| lay on words that come after the predicting position, which it cannot read: "
            "the method spreads over the whole text. They are left out."
        )
    tokens = run.inputs.tokens or ()
    return EveryWord(
        method=method_key,
        scores=scores,
        words=words,
        tokens=tuple(tokens[position] for position in columns),
        prefix=0,
        log_probabilities=_log_probabilities(run, words),
        signed=first.signed,
        removed=sum(explanation.removed for explanation in found) / len(found),
        notes=tuple(notes),
    )


def predicted_words(run: ForwardPass) -> tuple[PredictedWord, ...]:
    """Every token of the text that the model predicts from those before it; the first has none before it.

    Of an encoder-decoder the text is what the decoder reads. Empty for a model that reads both ways.
    """
    decodes = run.model.is_encoder_decoder
    name = "decoder_input_ids" if decodes else "input_ids"
    if name not in run.inputs.tensors or not (decodes or run.model.is_causal):
        return ()
    ids = run.inputs.tensors[name][0].tolist()
    labels = (run.inputs.target_tokens if decodes else run.inputs.tokens) or ()
    return tuple(PredictedWord(place - 1, ids[place], labels[place]) for place in range(1, len(ids)))


def refusal(run: ForwardPass, method_key: str, **options: Any) -> str:
    """Why there is no table of this method for this input, in words; "" where there is.

    Raises:
        ValueError: if there is no such method.
    """
    if method_key not in METHODS:
        raise ValueError(f"every_word: method_key must be one of {', '.join(METHODS)} but is {method_key!r}.")
    logits, model = run.outputs.logits, run.model
    if logits is None or logits.ndim != 3:
        return f"{model.title} predicts no words; choose a causal language model or an encoder–decoder."
    if not (model.is_causal or model.is_encoder_decoder):
        return (
            f"{model.title} is a masked model: it reads the word that it predicts, so every word would take a pass "
            "of its own with that word masked; choose one position instead."
        )
    words, columns = predicted_words(run), _columns(run)
    if not words or not columns:
        return "the text has no word that is predicted from others; give a longer text, or a target to the decoder."
    method = METHODS[method_key]
    if model.is_encoder_decoder and method_key in ENCODER_ALONE:
        return (
            f"{method.title} follows the encoder's attention and is the same for every position of the decoder; "
            "choose attention (the cross-attention is taken), relevance, or a gradient or perturbation method."
        )
    if model.is_encoder_decoder and method_key in NOISY_COPIES:
        return f"{method.title} runs copies of the encoder's tokens for which the decoder has no place; choose CDAM."
    width = len(columns) + (len(_prefix(run)) if method_key == "leave_one_out" else 0)
    if len(words) * width > MOST_CELLS:
        return f"a table of {len(words)} × {width} words has more than {MOST_CELLS:,} cells; give a shorter text."
    passes = pass_count(method_key, len(words), width, **options)
    if passes > MOST_PASSES:
        return (
            f"{method.title} of {len(words)} words takes up to {passes:,} passes, more than {MOST_PASSES:,}; give a "
            "shorter text or choose a method of fewer passes, such as leave one out."
        )
    return ""


def pass_count(method_key: str, words: int, tokens: int, **options: Any) -> int:
    """At most how many passes through the model a table takes, each of one item: forward, or forward and backward.

    Args:
        words, tokens: T and S.
        options: as for ``every_word``.
    """
    if method_key == "leave_one_out":
        return tokens + 1
    steps, samples = int(options.get("steps", 50)), options.get("samples")
    each: Mapping[str, int] = {
        "occlusion": tokens + 1,
        "integrated_gradients": _integration_passes(steps, options),
        "integrated_cdam": steps + 1,
        "smooth_cdam": 50 if samples is None else int(samples),
        "smooth_grad": 20 if samples is None else int(samples),
    }
    return words * each.get(method_key, 1)


def _integration_passes(steps: int, options: Mapping[str, Any]) -> int:
    """At most: the points on the line, and both ends of every stretch."""
    each = max(1, round(steps / int(options.get("stretches", 5))))
    most = max(int(options.get("most", 200)), each * max(1, round(steps / each)))
    return most + 2 * most // each


def _explained(
    run: ForwardPass, key: str, word: PredictedWord, progress: Progress | None, options: Mapping[str, Any]
) -> Explanation:
    if METHODS[key].uses_target:
        return explain(key, run, word.target, progress=progress, **options)
    if run.model.is_encoder_decoder:
        return _cross_attention(run, word.position, **options)
    return explain(key, run, progress=progress, row=word.position, **options)


def _cross_attention(
    run: ForwardPass, position: int, *, layer: int = -1, head: int | None = None
) -> Explanation:
    """One row of a layer's cross-attention, as ``attention`` has it of self-attention."""
    layers = run.layers["cross"]
    chosen = layers[index_of(layer, len(layers), "attention: layer")].map
    if head is not None:
        head = index_of(head, chosen.heads, "attention: head")
    weights = chosen.block(head, slice(position, position + 1), slice(0, chosen.keys))
    row = weights.mean(0)[0] if head is None else weights[0]
    return explanation_of("attention", row, run.inputs, signed=False, details={"row": str(position)})


def _share(progress: Progress | None, index: int, count: int) -> Progress | None:
    """What the method of one word tells, as a share of all words."""
    if progress is None:
        return None
    return lambda done: progress((index + done) / count)


# What is read --------------------------------------------------------------------------------------------------


def _columns(run: ForwardPass) -> tuple[int, ...]:
    """Positions whose tokens have a column: no special ones, and those that some predicting position has read."""
    kept = kept_positions(run.inputs).tolist()
    if run.model.is_encoder_decoder:
        return tuple(kept)
    return tuple(position for position in kept if position < len(run.inputs.tokens or ()) - 1)


def _prefix(run: ForwardPass) -> tuple[int, ...]:
    """Positions of the decoder's own tokens, special ones left out, that some predicting position has read."""
    if not run.model.is_encoder_decoder or _stand_in(run) is None:
        return ()
    labels = run.inputs.target_tokens or ()
    return tuple(index for index, label in enumerate(labels[:-1]) if not label.special)


def _seen(
    run: ForwardPass, scores: Tensor, words: tuple[PredictedWord, ...], columns: tuple[int, ...]
) -> Tensor:
    """Scores of a text's own tokens with NaN where the word's position comes before the token."""
    if run.model.is_encoder_decoder:
        return scores
    return scores.masked_fill(_later(words, torch.tensor(columns)), torch.nan)


def _later(words: tuple[PredictedWord, ...], columns: Tensor) -> Tensor:
    """(T, S) whether the token stands after the position that predicts the word."""
    return columns[None] > torch.tensor([word.position for word in words])[:, None]


def _unseen_share(
    run: ForwardPass, raw: Tensor, words: tuple[PredictedWord, ...], positions: Tensor
) -> float:
    """Share of Σ|score| of the whole table that lies on tokens that were not read."""
    total = float(raw.abs().sum())
    if run.model.is_encoder_decoder or total == 0:
        return 0.0
    return float(raw.abs()[_later(words, positions)].sum()) / total


def _log_probabilities(run: ForwardPass, words: tuple[PredictedWord, ...]) -> Tensor:
    """(T,), on the CPU."""
    with torch.no_grad():
        found = torch.stack([word.target.value(run.outputs)[0] for word in words])
    return found.cpu().to(torch.promote_types(found.dtype, torch.float32))


def _side_notes(run: ForwardPass) -> tuple[str, ...]:
    if not run.model.is_encoder_decoder:
        return ()
    return ("Only the source's words are scored; leave one out also scores those that the decoder has read.",)


# Leave one out: every word from the same passes ----------------------------------------------------------------


def _leave_one_out(
    run: ForwardPass, words: tuple[PredictedWord, ...], progress: Progress | None
) -> EveryWord:
    """The fall of each word's log-probability without each token read."""
    columns, prefix = _columns(run), _prefix(run)
    total = 1 + len(columns) + len(prefix)
    precision = torch.promote_types(run.model.dtype, torch.float32)
    values = torch.zeros(total, len(words), dtype=precision)
    done = 0
    for rows, outputs in _outputs_without(run, columns, prefix):
        with torch.no_grad():
            values[rows] = torch.stack([word.target.value(outputs) for word in words], 1).to(values)
        done += len(rows)
        if progress is not None:
            progress(done / total)
    if not bool(values.isfinite().all()):
        raise ValueError(
            "every_word: a word's log-probability is not finite with a token left out; choose a gradient method."
        )
    falls = (values[0] - values[1:]).T.contiguous()  # (T, S)
    source = _seen(run, falls[:, : len(columns)], words, columns)
    own = falls[:, len(columns) :].masked_fill(
        _later(words, torch.tensor(prefix, dtype=torch.long)), torch.nan
    )
    notes = [replacement_note(run, "default")]
    stand_in = _stand_in(run)
    if prefix and stand_in is not None:
        notes.append(
            f"What the decoder has read was replaced by {stand_in[1]}, one token at a time, and is set apart."
        )
    tokens, target = run.inputs.tokens or (), run.inputs.target_tokens or ()
    return EveryWord(
        method="leave_one_out",
        scores=torch.cat([source, own], 1),
        words=words,
        tokens=(*(tokens[place] for place in columns), *(_of_decoder(target[place]) for place in prefix)),
        prefix=len(prefix),
        log_probabilities=values[0],
        signed=True,
        removed=0.0,
        notes=tuple(notes),
    )


def _of_decoder(label: TokenLabel) -> TokenLabel:
    """A label of what the decoder has read, told apart from the source's."""
    return replace(label, segment=1)


def _outputs_without(
    run: ForwardPass, columns: tuple[int, ...], prefix: tuple[int, ...]
) -> Iterator[tuple[list[int], Outputs]]:
    """Rows, and what the model gives: as it is, without each source token, without each of the decoder's tokens."""
    order = {position: index for index, position in enumerate(kept_positions(run.inputs).tolist())}
    masks = torch.zeros(1 + len(columns), len(order), dtype=torch.bool)
    for row, position in enumerate(columns, start=1):
        masks[row, order[position]] = True
    yield from masked_outputs(run, masks, resolved(run, "default", "every_word: replacement"))
    size = batch_items(run.model, run.inputs)
    for first in range(0, len(prefix), size):
        part = prefix[first : first + size]
        start = len(masks) + first
        rows = list(range(start, start + len(part)))
        yield rows, plain_outputs(run.model, _without_own(run, part), run.outputs.kept)


def _without_own(run: ForwardPass, places: tuple[int, ...]) -> Mapping[str, Tensor]:
    """A batch in which each item lacks one of the decoder's tokens."""
    stand_in = _stand_in(run)
    assert stand_in is not None  # else there are no such columns
    tensors = repeated(run.inputs.tensors, len(places))
    ids = tensors["decoder_input_ids"].clone()
    ids[torch.arange(len(places)), torch.tensor(places)] = stand_in[0]
    return tensors | {"decoder_input_ids": ids}


def _stand_in(run: ForwardPass) -> tuple[int, str] | None:
    """What the decoder reads in place of one of its tokens: index and name."""
    return stand_in_token(run.model, "mask", "pad", "unk")
