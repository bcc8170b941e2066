"""Heads that follow syntax: how often a head's most attended word is the one that a dependency tree links.

Attention between words is Clark et al. 2019 (section 4.1): to a word the sum over its tokens, from a word the mean
over its tokens; special tokens are no words. For each arc of a treebank the most attended *other* word of one end is
compared with the other end, in both directions. A head is *syntactic* for a relation where it is right at least
``MARGIN`` more often than the best fixed offset between words (Voita et al. 2019, section 5.2, "at least 10 %
higher"; percentage points are meant here, which the paper does not say).

Two things to know when reading the numbers: a word with two dependents of one relation can look at only one of them,
so the share from head to dependent may not reach 1; and a causal head sees no later word, so it is wrong on every arc
that points forward. The best of many heads on the sentences that chose it is flattered: ``best_heads`` chooses on one
part and reports on another.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from analysis.heads.treebank import ParsedSentence, Span, base_relation
from analysis.hf.attention import Kind, capture
from analysis.hf.families import RECURRENT
from analysis.inputs import encode_text, encode_texts
from analysis.trace import trace
from attn_core.errors import UnsupportedModelError
from attn_core.maps import AttentionMap
from attn_core.strips import strip_rows

if TYPE_CHECKING:
    from analysis.models import LoadedModel

Direction = Literal["dependent to head", "head to dependent"]
DIRECTIONS: tuple[Direction, ...] = ("dependent to head", "head to dependent")
"""Which end of an arc asks, and which it should look at."""

MARGIN = 0.10
"""How much more often than the best fixed offset a syntactic head is right."""

FEWEST_ARCS = 50
"""Below so many arcs a relation tells too little: the 95 % interval of one half is wider than ±13 points."""

BATCH_CHARACTERS, BATCH_SENTENCES = 4096, 32
"""Most characters, padding included, and most sentences that go through a model together."""

Progress = Callable[[float], None]
Counts = NDArray[np.int64]

_Z = 1.959963984540054  # 97.5 % quantile of the normal distribution


@dataclass(frozen=True, order=True)
class HeadName:
    """One head of a model: kind of attention, layer and head, both from 0."""

    kind: Kind
    layer: int
    head: int


# Counting --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SyntaxCounts:
    """How often every head was right, over some sentences. Parts of a treebank are put together by ``merged``.

    Attributes:
        heads: the heads, in the order of the last axis of ``hits``.
        hits: (2, heads) arcs that a head got right, in the order of ``DIRECTIONS``, by relation.
        offsets: how many arcs have each offset (head − dependent, in words), by relation.
        sentences: how many were counted.
        dropped: arcs that were not, since one of their words has no token (of its own).
    """

    heads: tuple[HeadName, ...]
    hits: Mapping[str, Counts]
    offsets: Mapping[str, Mapping[int, int]]
    sentences: int
    dropped: int

    def arcs(self, relation: str) -> int:
        """How many arcs of a relation were counted."""
        return sum(self.offsets.get(relation, {}).values())

    def merged(self, other: SyntaxCounts) -> SyntaxCounts:
        """The counts of both.

        Raises:
            ValueError: if they are of other heads.
        """
        _check_same_heads(self, other, "SyntaxCounts.merged")
        hits = dict(self.hits)
        offsets = dict(self.offsets)
        for relation, more in other.hits.items():
            hits[relation] = hits[relation] + more if relation in hits else more
            offsets[relation] = Counter(offsets.get(relation, {})) + Counter(other.offsets[relation])
        return SyntaxCounts(
            self.heads,
            MappingProxyType(hits),
            MappingProxyType(offsets),
            self.sentences + other.sentences,
            self.dropped + other.dropped,
        )


class SyntaxCounter:
    """Adds sentences up; any thread may ask for the ``counts`` of what is there."""

    def __init__(self) -> None:
        self._counts: SyntaxCounts | None = None
        self._lock = threading.Lock()

    def add(self, counts: SyntaxCounts) -> None:
        """Add a sentence, or many."""
        with self._lock:
            self._counts = counts if self._counts is None else self._counts.merged(counts)

    @property
    def counts(self) -> SyntaxCounts | None:
        """What is there so far; None before the first sentence."""
        with self._lock:
            return self._counts


def count_arcs(
    sentence: ParsedSentence,
    owners: Sequence[int],
    maps: Mapping[Kind, Sequence[AttentionMap]],
    *,
    subtypes: bool = False,
) -> SyntaxCounts:
    """One sentence: which arcs each head gets right.

    Args:
        owners: index of the word of each token, −1 for a token that is none (``token_owners``).
        maps: self-attention over these tokens, layers by kind, one item each.
        subtypes: count ``nsubj:pass`` for itself, else with ``nsubj``.
    Raises:
        ValueError: if a map is not over these tokens, or an owner is no word.
    """
    count = len(sentence.words)
    if any(not -1 <= owner < count for owner in owners):
        raise ValueError(
            f"count_arcs: owners must lie between −1 and {count - 1}, the last word, but go from {min(owners)} to "
            f"{max(owners)}; pass the owners of this sentence."
        )
    names, looked = [], []
    for kind, layers in maps.items():
        for number, layer in enumerate(layers):
            if (layer.queries, layer.keys) != (len(owners), len(owners)):
                raise ValueError(
                    f"count_arcs: maps must be over the {len(owners)} tokens of owners but layer {number} ({kind}) "
                    f"has {layer.queries} queries and {layer.keys} keys; pass self-attention of one sentence."
                )
            names += [HeadName(kind, number, head) for head in range(layer.heads)]
            looked.append(most_attended_words(layer, owners, count))
    if not names:
        raise ValueError("count_arcs: maps must hold at least one layer but hold none.")
    found = np.concatenate(looked)  # (heads, W)
    arcs = [
        (dependent, head, relation if subtypes else base_relation(relation))
        for dependent, (head, relation) in enumerate(zip(sentence.heads, sentence.relations, strict=True))
        if head >= 0
    ]
    present = set(owners)
    kept = [arc for arc in arcs if arc[0] in present and arc[1] in present]
    relations = sorted({relation for _, _, relation in kept})
    hits: dict[str, Counts] = {}
    offsets: dict[str, Mapping[int, int]] = {}
    for relation in relations:
        dependents, heads = np.array([arc[:2] for arc in kept if arc[2] == relation]).T
        right = (found[:, dependents] == heads, found[:, heads] == dependents)  # (heads, arcs) each
        hits[relation] = np.stack([each.sum(-1) for each in right])
        offsets[relation] = Counter((heads - dependents).tolist())
    return SyntaxCounts(
        tuple(names), MappingProxyType(hits), MappingProxyType(offsets), 1, len(arcs) - len(kept)
    )


def most_attended_words(layer: AttentionMap, owners: Sequence[int], words: int) -> Counts:
    """The word that each word looks at most, itself left out; the first of several.

    Args:
        layer: one item, over N tokens.
        owners: (N,) index of the word of each token, −1 for a token that is none.
    Returns:
        (H, words) indices, −1 for a word without tokens and for one that looks at no other word.
    """
    member = (torch.tensor(owners)[:, None] == torch.arange(words)).double()  # (N, words)
    between = torch.zeros(layer.heads, words, words, dtype=torch.float64)
    step = strip_rows(layer.heads, layer.keys)
    for start in range(0, layer.queries, step):
        strip = slice(start, min(start + step, layer.queries))
        weights = layer.block(None, strip, slice(0, layer.keys)).to("cpu", torch.float64)  # (H, r, N)
        between += member[strip].T @ (
            weights @ member
        )  # the sum over a word's tokens peaks where their mean does
    between.diagonal(dim1=-2, dim2=-1).fill_(-1.0)
    values = between.numpy()
    best: Counts = values.argmax(-1)
    return np.where(np.take_along_axis(values, best[..., None], -1)[..., 0] > 0, best, -1)


def token_owners(sentence: ParsedSentence, spans: Sequence[Span | None]) -> tuple[int, ...]:
    """Index of the word that each token belongs to, −1 for none.

    A token that covers characters of several words belongs to the one of which it covers most, the first of equals
    (BERT cuts ``didn't`` into ``didn ' t``: the first piece is of ``did``). A token of white space alone, or of no
    characters, belongs to the word that begins where it ends.

    Args:
        spans: (start, end) of each token in ``sentence.text``; None for an added token.
    """
    at = [-1] * (len(sentence.text) + 1)
    for index, span in enumerate(sentence.spans):
        if span is not None:
            at[span[0] : span[1]] = [index] * (span[1] - span[0])
    owners = []
    for token in spans:
        if token is None:
            owners.append(-1)
            continue
        covered = Counter(owner for owner in at[token[0] : token[1]] if owner >= 0)
        if covered or sentence.text[slice(*token)].strip():
            owners.append(max(covered, key=lambda owner: (covered[owner], -owner), default=-1))
        else:
            owners.append(at[token[1]])
    return tuple(owners)


# A model over a treebank -----------------------------------------------------------------------------------------


def syntax_over(
    model: LoadedModel,
    sentences: Sequence[ParsedSentence],
    *,
    counter: SyntaxCounter | None = None,
    subtypes: bool = False,
    progress: Progress | None = None,
) -> SyntaxCounts:
    """Run a model over parsed sentences and count which arcs each of its heads gets right.

    Sentences of similar length go through the model together, in an order that has nothing to do with length, so
    that a run which was stopped has seen a fair part. Of an encoder-decoder the encoder is asked.

    Args:
        counter: to add to; what it holds stays there also when ``progress`` stops the run.
        subtypes: as in ``count_arcs``.
        progress: told 0 to 1 after each batch; what it raises stops the run and comes out of it.
    Raises:
        ValueError: for no sentence, or a tokenizer that does not tell where its tokens stand in the text.
        UnsupportedModelError: if the model has no self-attention over the tokens of a text.
    """
    if not sentences:
        raise ValueError("syntax_over: sentences must hold at least one but are none; pass a treebank.")
    if model.modality != "text" or model.family == RECURRENT:
        raise UnsupportedModelError(
            f"syntax_over: {model.title} has no self-attention between the tokens of a text; "
            "choose a text transformer."
        )
    counter = SyntaxCounter() if counter is None else counter
    done = 0
    for batch in _batches(sentences, alone=model.is_encoder_decoder):
        for counts in _counted(model, batch, subtypes):
            counter.add(counts)
        done += len(batch)
        if progress is not None:
            progress(done / len(sentences))
    found = counter.counts
    assert found is not None  # every sentence gives counts
    return found


def split_sentences(
    sentences: Sequence[ParsedSentence], *, share: float = 0.5, seed: int = 0
) -> tuple[tuple[ParsedSentence, ...], tuple[ParsedSentence, ...]]:
    """A treebank in two random parts, to choose heads on the first and report on the second.

    Args:
        share: of the first part; each part gets one sentence at least.
    Raises:
        ValueError: for fewer than two sentences, or a share outside 0 to 1.
    """
    if len(sentences) < 2 or not 0 < share < 1:
        raise ValueError(
            f"split_sentences: sentences must be two at least and share between 0 and 1 but are {len(sentences)} and "
            f"{share}."
        )
    order = list(range(len(sentences)))
    random.Random(seed).shuffle(order)
    cut = min(max(round(len(order) * share), 1), len(order) - 1)
    first, second = sorted(order[:cut]), sorted(order[cut:])
    return tuple(sentences[i] for i in first), tuple(sentences[i] for i in second)


def _batches(sentences: Sequence[ParsedSentence], *, alone: bool) -> Iterator[list[ParsedSentence]]:
    """Sentences of similar length together, batches in random order (the same each time)."""
    batches: list[list[ParsedSentence]] = []
    for sentence in sorted(sentences, key=lambda each: len(each.text)):
        size = len(batches[-1]) + 1 if batches and not alone else 0
        if 0 < size <= BATCH_SENTENCES and size * len(sentence.text) <= BATCH_CHARACTERS:
            batches[-1].append(sentence)
        else:
            batches.append([sentence])
    random.Random(0).shuffle(batches)
    yield from batches


def _counted(model: LoadedModel, batch: Sequence[ParsedSentence], subtypes: bool) -> Iterator[SyntaxCounts]:
    """The counts of each sentence of a batch."""
    target = "" if model.is_encoder_decoder else None
    inputs = [encode_text(model, sentence.text, target=target) for sentence in batch]
    owners = []
    for sentence, each in zip(batch, inputs, strict=True):
        if each.spans is None:
            raise ValueError(
                f"syntax_over: the tokenizer of {model.title} does not tell where its tokens stand in the text "
                f"({'; '.join(each.notes) or 'no offsets'}); choose a model with a fast tokenizer."
            )
        owners.append(token_owners(sentence, each.spans))
    if len(batch) == 1:
        traced = trace(model, inputs[0])
        items = [(traced.encoder, traced.decoder)]
    else:
        tensors, _ = encode_texts(model, [sentence.text for sentence in batch])
        with torch.no_grad(), capture(model.module) as captured:
            model.module(**tensors)
        cut = [captured.item(index) for index in range(len(batch))]
        items = [(each.encoder, each.decoder) for each in cut]
    for sentence, owner, (encoder, decoder) in zip(batch, owners, items, strict=True):
        maps: dict[Kind, Sequence[AttentionMap]] = {"encoder": encoder} if encoder else {"decoder": decoder}
        yield count_arcs(sentence, owner, maps, subtypes=subtypes)


# What the counts say ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class RelationScores:
    """How well every head finds one relation in one direction.

    Attributes:
        arcs: how many were counted.
        offset: the fixed offset that is right most often, in words from the one that asks; ``baseline``: how often.
        accuracy: (heads,) share of the arcs that each head gets right; ``low``, ``high``: 95 % intervals.
        enough: there are enough arcs to tell anything.
        syntactic: (heads,) at least the margin better than the baseline, where there are enough arcs.
    """

    relation: str
    direction: Direction
    arcs: int
    offset: int
    baseline: float
    accuracy: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    enough: bool
    syntactic: NDArray[np.bool_]


@dataclass(frozen=True)
class BestHead:
    """The head that is best at a relation on some sentences, and how good it is on others.

    Attributes:
        chosen: its accuracy where it was chosen.
        arcs, accuracy, low, high: where it is reported, with the 95 % interval.
        offset, baseline: the best fixed offset, chosen and reported as the head is.
        enough: both parts have enough arcs to tell anything.
        syntactic: at least the margin better than the baseline, where there are enough arcs.
    """

    relation: str
    direction: Direction
    head: HeadName
    chosen: float
    arcs: int
    accuracy: float
    low: float
    high: float
    offset: int
    baseline: float
    enough: bool
    syntactic: bool


def syntax_scores(
    counts: SyntaxCounts, *, fewest: int = FEWEST_ARCS, margin: float = MARGIN
) -> tuple[RelationScores, ...]:
    """Accuracy of every head for every relation and direction, relations with most arcs first.

    Args:
        fewest: arcs below which a relation is told to have too few.
        margin: by how much (1 is all) a syntactic head beats the best fixed offset.
    """
    scores = []
    for relation in _by_arcs(counts):
        arcs = counts.arcs(relation)
        offset = _best_offset(counts.offsets[relation])
        fixed = counts.offsets[relation][offset]
        for direction, sign, hits in zip(DIRECTIONS, (1, -1), counts.hits[relation], strict=True):
            low, high = wilson_interval(hits, arcs)
            enough = arcs >= fewest
            scores.append(
                RelationScores(
                    relation=relation,
                    direction=direction,
                    arcs=arcs,
                    offset=sign * offset,
                    baseline=fixed / arcs,
                    accuracy=hits / arcs,
                    low=low,
                    high=high,
                    enough=enough,
                    syntactic=_beats(hits, fixed, arcs, margin) & enough,
                )
            )
    return tuple(scores)


def best_heads(
    choose_on: SyntaxCounts,
    report_on: SyntaxCounts,
    *,
    fewest: int = FEWEST_ARCS,
    margin: float = MARGIN,
) -> tuple[BestHead, ...]:
    """The best head of each relation and direction: chosen on one part of a treebank, reported on another.

    Args:
        choose_on, report_on: counts of the same heads over different sentences.
        fewest, margin: as in ``syntax_scores``.
    Returns:
        Relations that both parts have, those with most arcs in ``report_on`` first.
    Raises:
        ValueError: if the counts are of other heads.
    """
    _check_same_heads(choose_on, report_on, "best_heads")
    found = []
    for relation in _by_arcs(report_on):
        chosen_from = choose_on.arcs(relation)
        if not chosen_from:
            continue
        arcs = report_on.arcs(relation)
        offset = _best_offset(choose_on.offsets[relation])
        fixed = report_on.offsets[relation].get(offset, 0)
        for row, (direction, sign) in enumerate(zip(DIRECTIONS, (1, -1), strict=True)):
            best = int(choose_on.hits[relation][row].argmax())
            hits = report_on.hits[relation][row, best]
            low, high = wilson_interval(hits, arcs)
            enough = min(arcs, chosen_from) >= fewest
            found.append(
                BestHead(
                    relation=relation,
                    direction=direction,
                    head=choose_on.heads[best],
                    chosen=float(choose_on.hits[relation][row, best] / chosen_from),
                    arcs=arcs,
                    accuracy=float(hits / arcs),
                    low=float(low),
                    high=float(high),
                    offset=sign * offset,
                    baseline=fixed / arcs,
                    enough=enough,
                    syntactic=bool(_beats(hits, fixed, arcs, margin) & enough),
                )
            )
    return tuple(found)


def wilson_interval(
    hits: Counts | np.int64 | int, total: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """95 % intervals of shares (Wilson 1927): lower and upper ends, of the shape of ``hits``.

    Raises:
        ValueError: if there is nothing to share.
    """
    if total < 1:
        raise ValueError(f"wilson_interval: total must be at least 1 but is {total}.")
    share = np.asarray(hits) / total
    scale = 1 + _Z**2 / total
    middle = (share + _Z**2 / (2 * total)) / scale
    half = _Z / scale * np.sqrt(share * (1 - share) / total + _Z**2 / (4 * total**2))
    return np.clip(middle - half, 0.0, share), np.clip(middle + half, share, 1.0)


def _beats(hits: Counts | np.int64, fixed: int, arcs: int, margin: float) -> NDArray[np.bool_]:
    """Whether heads are at least the margin better; counted in arcs, so that equality is not lost in rounding."""
    return np.asarray(np.asarray(hits) - fixed >= margin * arcs - 1e-9)


def _best_offset(offsets: Mapping[int, int]) -> int:
    """The most frequent offset; of equals the nearest, then the one before."""
    return min(offsets, key=lambda offset: (-offsets[offset], abs(offset), offset))


def _by_arcs(counts: SyntaxCounts) -> list[str]:
    """Relations, those with most arcs first."""
    return sorted(counts.offsets, key=lambda relation: (-counts.arcs(relation), relation))


def _check_same_heads(first: SyntaxCounts, second: SyntaxCounts, caller: str) -> None:
    if first.heads != second.heads:
        raise ValueError(
            f"{caller}: both counts must be of the same heads but are of {len(first.heads)} and "
            f"{len(second.heads)}; pass counts of one model."
        )
