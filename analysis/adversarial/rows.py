"""Rows of attention that may be replaced, and what the model says with others in their place.

All checks work on ``FreeRows``: many inputs of the papers' own model at once, whose answer is read off a weighted sum
of states that were encoded before, or rows of one input of a transformer, edited through the seam
(``attn_core.seam.editing``), with gradients.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from analysis.adversarial.distances import farthest, jensen_shannon
from analysis.adversarial.measures import Measure, class_probabilities, measure_of
from analysis.evidence.explanation import kept_positions, position_count
from analysis.evidence.passes import graph_outputs, plain_outputs
from analysis.evidence.perturbation import batch_items, repeated
from analysis.hf.attention import Kind
from analysis.hf.branching import branching, find_branch
from analysis.hf.editing import LayerKey, attention_calls, editing_layers
from attn_core.edits import AttentionCall, HeadEdit, combined, runs_of
from attn_core.errors import MemoryBudgetError, UnsupportedModelError
from attn_core.factored import FactoredMap
from attn_core.models.classifier import AttentionClassifier
from attn_core.replacements import given

if TYPE_CHECKING:
    from analysis.inputs import Inputs
    from analysis.models import LoadedModel

Others = Literal["respond", "fixed"]
"""What becomes of the attention that is not replaced: computed anew from the changed states, or held as it was."""

MOST_WEIGHTS = 1_000_000
"""Weights of one candidate; a search holds a dozen times as many of each."""

ROW_SUM = 1e-3
"""How far the weights of a row may be from a sum of 1."""


@dataclass(frozen=True, eq=False)
class FreeRows:
    """Rows of attention of B inputs that may be replaced.

    Attributes:
        observed: (B, R, n) the model's own weights.
        inside: (B, R, n) bool: positions that may have weight, not padding or masked.
        answer: weights (B, S, R, n) → (B, S, C), with gradients.
        measure: what the answers are and how far apart two of them are.
        decoder: (B, n, C) logits of each position alone, where the answer is the softmax of their weighted sum.
        own: (R,) the position of each row's query among the n, of self-attention; None where it has none.
        neighbours: (R, n) the same row of the layer's next head, the first after the last; None of a single head.
        held: what was held fixed, in words.
    """

    observed: Tensor
    inside: Tensor
    answer: Callable[[Tensor], Tensor]
    measure: Measure
    decoder: Tensor | None = None
    own: Tensor | None = None
    neighbours: Tensor | None = None
    held: str = ""

    def __post_init__(self) -> None:
        sums = self.observed.sum(-1)
        if bool(((sums - 1).abs() > ROW_SUM).any()):
            raise UnsupportedModelError(
                "FreeRows: rows of attention must sum to 1 but one sums to "
                f"{float(sums.flatten()[(sums - 1).abs().argmax()]):.3g}: the model has an attention sink, or the "
                "row may see nothing; choose other rows or another model."
            )

    def answers(self, weights: Tensor) -> Tensor:
        """(B, S, C) without a graph, for any weights (B, S, R, n)."""
        with torch.no_grad():
            return self.answer(weights)

    def said(self) -> Tensor:
        """(B, C): the answer with the model's own weights."""
        return self.answers(self.observed[:, None])[:, 0]

    def change(self, answers: Tensor, said: Tensor) -> Tensor:
        """(B, S): how far answers (B, S, C) are from the model's own, (B, C)."""
        return self.measure.distance(answers, said[:, None])

    def divergence(self, weights: Tensor) -> Tensor:
        """(B, S): Jensen–Shannon divergence of weights (B, S, R, n) from the model's own, in nats, mean over rows."""
        return jensen_shannon(weights, self.observed[:, None]).mean(-1)

    def bound(self) -> Tensor:
        """(B,): the most that any weights diverge, at most ln 2."""
        return farthest(self.observed, self.inside)[0].mean(-1)

    def uniform(self) -> Tensor:
        """(B, 1, R, n): weights alike on all positions."""
        return _uniform(self.inside.to(self.observed))[:, None]


def _uniform(inside: Tensor) -> Tensor:
    return inside / inside.sum(-1, keepdim=True)


# The papers' model -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class TextBatch:
    """Texts for a recurrent classifier, padded at the end.

    Attributes:
        tokens: (B, n) word indices, 0 for padding.
        inside: (B, n) bool: positions that attention may have; all that are no padding, where None was given.
    """

    tokens: Tensor
    inside: Tensor

    @property
    def valid(self) -> Tensor:
        """(B, n) bool: no padding."""
        return self.tokens != 0

    def beside(self, module: AttentionClassifier) -> TextBatch:
        """The batch on the classifier's device."""
        device = module.output.weight.device
        return TextBatch(self.tokens.to(device), self.inside.to(device))


def text_batch(texts: Sequence[Sequence[int]]) -> TextBatch:
    """A batch of texts given by their word indices.

    Raises:
        ValueError: if there is no text, or one is empty.
    """
    if not texts or not all(map(len, texts)):
        raise ValueError(
            "text_batch: texts must hold at least one text, and each a word; leave empty ones out."
        )
    tokens = torch.nn.utils.rnn.pad_sequence([torch.tensor(list(text)) for text in texts], batch_first=True)
    return TextBatch(tokens, tokens != 0)


def classifier_rows(
    module: AttentionClassifier, batch: TextBatch, *, labels: tuple[str, ...] = (), temperature: float = 1.0
) -> FreeRows:
    """The attention of a recurrent classifier over many texts, encoded once.

    The output layer is applied to every state before: as weights sum to 1, the logits are the weighted sum of those
    of the states, and a candidate costs one product.

    Args:
        temperature: 1 for the papers' protocol; the model's own for the probabilities that are shown.
    """
    batch = batch.beside(module)
    with torch.no_grad():
        hidden = module.encode(module.embedding(batch.tokens), batch.valid)
        observed = module.attend(hidden, batch.inside)
        decoder = module.output(hidden) / temperature  # (B, n, C)
    named = labels or tuple(f"class {index}" for index in range(decoder.shape[-1]))
    return weighted_sum_rows(observed, batch.inside, decoder, labels=named)


def rows_of(
    model: LoadedModel, inputs: Inputs, place: Place | None = None, *, others: Others = "respond"
) -> FreeRows:
    """The attention of one input: a recurrent classifier's one row, or rows of a transformer.

    Args:
        place: which rows of a transformer; None: ``usual_place``.
        others: as in ``transformer_rows``.
    Raises:
        ValueError, UnsupportedModelError: as ``transformer_rows``.
    """
    if isinstance(model.module, AttentionClassifier):
        batch = text_batch([inputs.tensors["input_ids"][0].tolist()])
        labels = model.labels or ()
        return classifier_rows(model.module, batch, labels=labels, temperature=model.temperature)
    chosen = usual_place(model, inputs) if place is None else place
    return transformer_rows(model, inputs, chosen, measure_of(model, inputs), others=others)


def usual_place(model: LoadedModel, inputs: Inputs) -> Place:
    """The last layer, all heads; the row that the answer is read from, or all rows where it is read from all.

    Of an encoder-decoder it is the cross-attention: what the decoder takes from the input.
    """
    every = tuple(range(model.heads))
    if model.is_encoder_decoder:
        return Place({model.decoder_layers - 1: every}, (len(inputs.target_tokens or ()) - 1,), "cross")
    heads = {model.layers - 1: every}
    if model.is_causal:
        return Place(heads, (position_count(inputs) - 1,), "decoder")
    pooled = model.prefix_tokens > 0 if model.modality == "image" else model.kind is not None
    return Place(heads, (0,) if pooled else None)


def weighted_sum_rows(
    observed: Tensor, inside: Tensor, decoder: Tensor, *, labels: tuple[str, ...]
) -> FreeRows:
    """Attention (B, n) whose answer is the softmax of the weighted sum of logits (B, n, C)."""

    def answer(weights: Tensor) -> Tensor:
        return (weights[:, :, 0] @ decoder).softmax(-1)

    held = "The states of the encoder and the output layer are as they were; the weights alone are others."
    return FreeRows(
        observed[:, None], inside[:, None], answer, class_probabilities(labels), decoder, held=held
    )


# Transformers ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Place:
    """Which rows of a transformer are replaced.

    Attributes:
        heads: of each layer, such as ``{5: (0, 1, 2)}``.
        queries: places of the queries, ascending; None = all.
        kind: of attention.
    """

    heads: Mapping[int, tuple[int, ...]]
    queries: tuple[int, ...] | None = (0,)
    kind: Kind = "encoder"

    def in_words(self) -> str:
        """ "layer 5, 12 heads, the row of position 0"."""
        count = sum(map(len, self.heads.values()))
        layers = ", ".join(map(str, self.heads))
        rows = "all rows"
        if self.queries is not None:
            many = len(self.queries) > 1
            rows = f"the row{'s' if many else ''} of position{'s' if many else ''} " + ", ".join(
                map(str, self.queries)
            )
        return f"layer{'s' if len(self.heads) > 1 else ''} {layers}, {count} head{'s' if count > 1 else ''}, {rows}"


def transformer_rows(
    model: LoadedModel, inputs: Inputs, place: Place, measure: Measure, *, others: Others = "respond"
) -> FreeRows:
    """Rows of one input of a transformer; the order is layers, heads, queries.

    Rows that may see nothing, or one key alone, are among them: nothing else can stand there.

    Args:
        others: whether the attention that is not replaced responds to what the replaced one changes.
    Raises:
        ValueError: if the model has no such layers, heads or queries.
        UnsupportedModelError: if heads of this model cannot be edited, or its rows do not sum to 1.
        MemoryBudgetError: if a candidate has more than ``MOST_WEIGHTS`` weights.
    """
    calls = attention_calls(model, inputs)
    if place.kind not in calls:
        raise ValueError(f"transformer_rows: kind must be one of {', '.join(calls)} but is {place.kind!r}.")
    own = [call.map for call in calls[place.kind] if isinstance(call.map, FactoredMap)]
    _check_place(place, own)
    layers = {kind: tuple(call.module for call in of_kind) for kind, of_kind in calls.items()}
    held = {kind: [call.map.weights() for call in of_kind] for kind, of_kind in calls.items()} if (
        others == "fixed"
    ) else {}  # fmt: skip
    del calls
    queries = tuple(range(own[0].queries)) if place.queries is None else place.queries
    observed, inside, neighbours = _own_rows(own, place, queries)
    kept = kept_positions(inputs)
    sizes = [len(heads) * len(queries) for heads in place.heads.values()]
    rest = {
        (kind, index): given(torch.ones(1, weights.shape[1], dtype=torch.bool), weights)
        for kind, maps in held.items()
        for index, weights in enumerate(maps)
    }
    most = batch_items(model, inputs)

    def edits(weights: Tensor) -> dict[LayerKey, HeadEdit]:
        """Of a batch (S, R, n)."""
        found: dict[LayerKey, HeadEdit] = dict(rest)
        for (layer, heads), part in zip(place.heads.items(), torch.split(weights, sizes, dim=1), strict=True):
            key: LayerKey = (place.kind, layer)
            rows = part.reshape(len(part), len(heads), len(queries), -1)
            edit = _rows_of_heads(rows, heads, own[layer].heads, queries)
            found[key] = combined(*([found[key]] if key in found else []), edit)
        return found

    def plain(weights: Tensor) -> Tensor:
        """(S, C): every item goes through the whole model."""
        with editing_layers(model, layers, edits(weights)):
            outputs = graph_outputs(model, repeated(inputs.tensors, len(weights)), kept)
        return measure.read(outputs)

    branch = find_branch(
        model.module,
        layers[place.kind],
        min(place.heads),
        lambda: plain_outputs(model, inputs.tensors, kept),
    ) if others == "respond" else None  # fmt: skip

    def branched(weights: Tensor) -> Tensor:
        """(S, C): the layers below the first edited one are not run again."""
        assert branch is not None
        with editing_layers(model, layers, edits(weights)), branching(branch, len(weights)):
            outputs = graph_outputs(model, inputs.tensors, kept)
        return measure.read(outputs)

    two = torch.stack([observed, _uniform(inside.to(observed))])
    run = branched if branch is not None and _alike(branched, plain, two) else plain

    def answer(weights: Tensor) -> Tensor:
        return torch.cat([run(part) for part in torch.split(weights[0], most)])[None]

    repeats = sum(map(len, place.heads.values()))
    told = "computed anew from the changed states" if others == "respond" else "held as it was"
    return FreeRows(
        observed[None],
        inside[None],
        answer,
        measure,
        own=None if place.kind == "cross" else torch.tensor(queries).repeat(repeats),
        neighbours=neighbours,
        held=f"Only the weights of {place.in_words()} are others; all other attention is {told}.",
    )


def _alike(branched: Callable[[Tensor], Tensor], plain: Callable[[Tensor], Tensor], weights: Tensor) -> bool:
    """Whether a pass that branches gives what whole passes give: not every model's code lets its batch grow."""
    with torch.no_grad():
        expected = plain(weights)
        try:
            found = branched(weights)
        except (RuntimeError, ValueError, TypeError, IndexError):
            return False
    return found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-3, atol=1e-5)


def _rows_of_heads(rows: Tensor, heads: tuple[int, ...], count: int, queries: tuple[int, ...]) -> HeadEdit:
    """Weights (S, h, r, n) in the place of those of some heads."""
    chosen = torch.zeros(1, count, dtype=torch.bool)
    chosen[0, list(heads)] = True
    whole = rows.new_zeros(rows.shape[0], count, *rows.shape[2:])
    whole = whole.index_copy(1, torch.tensor(heads, device=rows.device), rows)
    return given(chosen, whole, queries=queries)


def _own_rows(
    maps: Sequence[FactoredMap], place: Place, queries: tuple[int, ...]
) -> tuple[Tensor, Tensor, Tensor | None]:
    """(R, n) own weights, which positions a mask allows, and the weights of each layer's next head."""
    observed, inside, neighbours = [], [], []
    for layer, heads in place.heads.items():
        own = maps[layer]
        call = AttentionCall(
            own.query, own.key, own.key, own.scale, own.rule, own.bias
        )  # asked for its mask alone
        whole, chosen = slice(0, own.keys), list(heads)
        runs = runs_of(queries)
        every = torch.cat([own.block(None, run, whole) for run in runs], dim=1)  # (H, r, n)
        free = torch.cat([_free(call, run) for run in runs], dim=1)
        observed.append(every[chosen].flatten(0, 1))
        neighbours.append(every.roll(-1, 0)[chosen].flatten(0, 1))
        inside.append(free[chosen].flatten(0, 1))
    single = any(maps[layer].heads == 1 for layer in place.heads)
    return torch.cat(observed), torch.cat(inside), None if single else torch.cat(neighbours)


def _free(call: AttentionCall, rows: slice) -> Tensor:
    """(H, r, n) bool: which keys a mask allows some queries of the one item."""
    _, heads, _, keys = call.shape
    shape = (1, heads, rows.stop - rows.start, keys)
    allowed = call.allowed(rows)
    if allowed is None:
        return torch.ones(shape[1:], dtype=torch.bool, device=call.query.device)
    return allowed.expand(shape)[0]


def _check_place(place: Place, maps: Sequence[FactoredMap]) -> None:
    layers, queries = len(maps), maps[0].queries
    for layer, heads in place.heads.items():
        if not 0 <= layer < layers:
            raise ValueError(
                f"transformer_rows: layers must be 0 to {layers - 1} of {place.kind} attention but name {layer}."
            )
        if not heads or any(not 0 <= head < maps[layer].heads for head in heads):
            raise ValueError(
                f"transformer_rows: heads of layer {layer} must be some of 0 to {maps[layer].heads - 1} but are "
                f"{heads}; choose at least one."
            )
    if not place.heads or place.queries == ():
        raise ValueError("transformer_rows: place must name at least one head and one query but names none.")
    if place.queries is not None and any(not 0 <= query < queries for query in place.queries):
        raise ValueError(
            f"transformer_rows: queries must be places from 0 to {queries - 1} but are {place.queries}."
        )
    rows = sum(map(len, place.heads.values())) * (queries if place.queries is None else len(place.queries))
    if rows * maps[0].keys > MOST_WEIGHTS:
        raise MemoryBudgetError(
            f"transformer_rows: {rows:,} rows of {maps[0].keys:,} weights are too many to be replaced at once; "
            "choose fewer rows, heads or layers."
        )
