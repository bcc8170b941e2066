"""The way of one token through one layer of a BERT: from its embedding to the hidden state that the layer hands on.

Devlin et al. 2019 (figure 2: the embedding), Vaswani et al. 2017 (sections 3.1 to 3.3: the block). Each stage is made
from the ones before it with the model's own weights, in float64; scores, weights and context by ``attn_core``. The
last stage is held against what the model itself hands on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from analysis.figure_lab import Diagram, DiagramArrow, DiagramStage, MatrixScale, MatrixSheet, NamedMatrix
from analysis.inputs import encode_text
from analysis.lab.formula import number_text
from analysis.lab.inputs import MOST_TOKENS
from attn_core.errors import UnsupportedModelError
from attn_core.functional import attention
from attn_core.scores import scaled_dot_scores

if TYPE_CHECKING:
    from analysis.models import LoadedModel

Stage = Literal[
    "word",
    "position",
    "segment",
    "embedding",
    "state",
    "query",
    "key",
    "value",
    "scores",
    "scaled",
    "weights",
    "context",
    "heads",
    "attended",
    "feed",
    "next",
]
STAGES: tuple[Stage, ...] = get_args(Stage)

Matrix = NDArray[np.float64]

_ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {"gelu": F.gelu, "relu": F.relu}


@dataclass(frozen=True, eq=False)
class PipelineNumbers:
    """Every stage of one token's way, float64.

    Attributes:
        stages: (1, M) of the token, (1, D) of the head; ``key`` and ``value`` (N, D); ``scores``, ``scaled`` and
            ``weights`` (1, N); ``heads`` (H, D), one row a head.
        model_next: (M,) the hidden state that the model itself hands on, float32.
        tokens: N labels; ``token_id``: of the token in the vocabulary; ``segment``: 0 or 1.
        layer, head, query: whose way it is, from 0.
        layers, head_count: of the model.
        title: of the model.
        prefix: of the model's parameters, such as "bert.".
        notes: what a reader must know.
    """

    stages: Mapping[Stage, Matrix]
    model_next: Matrix
    tokens: tuple[str, ...]
    token_id: int
    segment: int
    layer: int
    head: int
    query: int
    layers: int
    head_count: int
    title: str
    prefix: str
    notes: tuple[str, ...] = ()

    @property
    def width(self) -> int:
        """D, dimensions of a head."""
        return int(self.stages["query"].shape[1])

    @property
    def difference(self) -> float:
        """Largest |recomputed − model's own| of the next hidden state."""
        return float(np.abs(self.stages["next"][0] - self.model_next).max())


class _Weights:
    """A BERT's parameters by their names, float64."""

    def __init__(self, module: torch.nn.Module) -> None:
        self.found = dict(module.named_parameters())
        word = "embeddings.word_embeddings.weight"
        self.prefix = next(name[: -len(word)] for name in self.found if name.endswith(word))

    def __call__(self, name: str) -> Tensor:
        return self.found[self.prefix + name].detach().double().cpu()

    def linear(self, values: Tensor, name: str, rows: slice = slice(None)) -> Tensor:
        """values · weightᵀ + bias, some output dimensions of it."""
        return F.linear(values, self(f"{name}.weight")[rows], self(f"{name}.bias")[rows])

    def norm(self, values: Tensor, name: str, epsilon: float) -> Tensor:
        scale, shift = self(f"{name}.weight"), self(f"{name}.bias")
        return F.layer_norm(values, scale.shape, scale, shift, epsilon)


def pipeline_numbers(model: LoadedModel, text: str, *, layer: int, head: int, query: int) -> PipelineNumbers:
    """Follow one token through one head of one layer.

    Args:
        model: a BERT of the library.
        text: one text; longer than ``MOST_TOKENS`` tokens it is cut, and ``notes`` tell.
        layer, head, query: from 0; the last where one is beyond the end.
    Raises:
        UnsupportedModelError: if the model is no BERT of the library, or has another activation than gelu and relu.
        ValueError: for an empty text or an index below 0.
    """
    if min(layer, head, query) < 0:
        raise ValueError(
            f"pipeline_numbers: layer, head and query must be at least 0 but are {layer}, {head} and {query}; "
            "count from 0."
        )
    config: Any = model.module.config
    epsilon = float(getattr(config, "layer_norm_eps", 0.0))
    activation = _ACTIVATIONS.get(str(getattr(config, "hidden_act", "")))
    if model.family != "bert" or activation is None:
        raise UnsupportedModelError(
            f"pipeline_numbers: model must be a BERT with gelu or relu but is {model.title} ({model.family}); choose "
            "one, such as the bundled BERT."
        )
    weights = _Weights(model.module)
    inputs = encode_text(model, text, max_tokens=MOST_TOKENS)
    tensors = {name: tensor.to(model.device) for name, tensor in inputs.tensors.items()}
    with torch.no_grad():
        states = model.module(**tensors, output_hidden_states=True).hidden_states
    ids = tensors["input_ids"][0].cpu()
    segments = tensors.get("token_type_ids")
    layer, head = min(layer, model.layers - 1), min(head, model.heads - 1)
    query = min(query, len(ids) - 1)
    segment = 0 if segments is None else int(segments[0, query])
    stages = _embedded(weights, int(ids[query]), query, segment, epsilon)
    state = states[layer][0].detach().double().cpu()  # (N, M)
    stages |= _attended(weights, state, layer, head, query, model.heads, epsilon)
    path = f"encoder.layer.{layer}"
    inner = activation(weights.linear(stages["attended"], f"{path}.intermediate.dense"))
    stages["feed"] = weights.linear(inner, f"{path}.output.dense")
    stages["next"] = weights.norm(stages["feed"] + stages["attended"], f"{path}.output.LayerNorm", epsilon)
    return PipelineNumbers(
        stages={name: _plain(stages[name]) for name in STAGES},
        model_next=_plain(states[layer + 1][0, query].detach().double().cpu()),
        tokens=tuple(label.text for label in inputs.tokens or ()),
        token_id=int(ids[query]),
        segment=segment,
        layer=layer,
        head=head,
        query=query,
        layers=model.layers,
        head_count=model.heads,
        title=model.title,
        prefix=weights.prefix,
        notes=tuple(inputs.notes),
    )


def _embedded(weights: _Weights, token: int, place: int, segment: int, epsilon: float) -> dict[Stage, Tensor]:
    """The three embeddings of one token and their normalised sum, (1, M) each."""
    word = weights("embeddings.word_embeddings.weight")[token : token + 1]
    position = weights("embeddings.position_embeddings.weight")[place : place + 1]
    kind = weights("embeddings.token_type_embeddings.weight")[segment : segment + 1]
    embedding = weights.norm(word + position + kind, "embeddings.LayerNorm", epsilon)
    return {"word": word, "position": position, "segment": kind, "embedding": embedding}


def _attended(
    weights: _Weights, state: Tensor, layer: int, head: int, query: int, heads: int, epsilon: float
) -> dict[Stage, Tensor]:
    """From the hidden states (N, M) that enter a layer to what its attention hands on for one token."""
    path = f"encoder.layer.{layer}.attention"
    width = state.shape[1]
    own = state[query : query + 1]

    def split(values: Tensor, name: str) -> Tensor:
        """(n, M) to (1, H, n, D)."""
        return weights.linear(values, f"{path}.self.{name}").view(1, len(values), heads, -1).transpose(1, 2)

    queries, keys, values = split(own, "query"), split(state, "key"), split(state, "value")
    output = attention(queries, keys, values)
    contexts = output.context[0, :, 0]  # (H, D)
    joined = contexts.reshape(1, width)
    one = slice(head, head + 1)
    return {
        "state": own,
        "query": queries[0, head],
        "key": keys[0, head],
        "value": values[0, head],
        "scores": scaled_dot_scores(queries[:, one], keys[:, one], scale=1.0)[0, 0],
        "scaled": scaled_dot_scores(queries[:, one], keys[:, one])[0, 0],
        "weights": output.weights[0, head],
        "context": contexts[one],
        "heads": contexts,
        "attended": weights.norm(
            own + weights.linear(joined, f"{path}.output.dense"), f"{path}.output.LayerNorm", epsilon
        ),
    }


def _plain(tensor: Tensor) -> Matrix:
    found: Matrix = tensor.numpy().astype(np.float64)
    found.flags.writeable = False
    return found


# What a stage is ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Told:
    """A stage in words; braces name what differs from model to model."""

    name: str
    symbol: str
    formula: str
    about: str
    parameter: str
    axes: str
    place: tuple[int, int]


_TOLD: Mapping[Stage, _Told] = {
    "word": _Told(
        "word", "e_w", "row {token} of the table", "What the model has learnt of this word piece.",
        "embeddings.word_embeddings.weight", "width", (0, 0),
    ),
    "position": _Told(
        "position", "e_p", "row {query} of the table", "What the model has learnt of this place.",
        "embeddings.position_embeddings.weight", "width", (0, 1),
    ),
    "segment": _Told(
        "segment", "e_s", "row {segment} of the table", "Whether the token is of the first sentence or the second.",
        "embeddings.token_type_embeddings.weight", "width", (0, 2),
    ),
    "embedding": _Told(
        "embedding", "e", "LayerNorm(e_w + e_p + e_s)", "The token as the first layer gets it.",
        "embeddings.LayerNorm", "width", (1, 1),
    ),
    "state": _Told(
        "hidden state", "x", "{before}", "The token as layer {layer} gets it: a row of X, with one a token.",
        "", "width", (2, 1),
    ),
    "query": _Told(
        "query", "q", "x W_Q + b_Q, dimensions {first} to {last}", "What this token looks for, as head {head} asks.",
        "encoder.layer.{layer}.attention.self.query", "d_k", (3, 0),
    ),
    "key": _Told(
        "keys", "K", "X W_K + b_K, dimensions {first} to {last}", "What each token offers to be found by.",
        "encoder.layer.{layer}.attention.self.key", "tokens × d_k", (3, 1),
    ),
    "value": _Told(
        "values", "V", "X W_V + b_V, dimensions {first} to {last}", "What each token hands on where it is seen.",
        "encoder.layer.{layer}.attention.self.value", "tokens × d_v", (3, 2),
    ),
    "scores": _Told(
        "scores", "qKᵀ", "q · k for each token", "How well the query fits each key.", "", "tokens", (4, 0),
    ),
    "scaled": _Told(
        "scaled", "qKᵀ/√d_k", "qKᵀ / √{width}; the mask forbids nothing here",
        "Scores of the size that the softmax was trained on. BERT's mask only forbids padding, and there is none.",
        "", "tokens", (5, 0),
    ),
    "weights": _Told(
        "weights", "a", "softmax(qKᵀ/√d_k)", "Shares of the query's attention; they sum to 1.", "", "tokens", (6, 0),
    ),
    "context": _Told(
        "context", "c", "a V", "The mean of all values, weighted with the shares.", "", "d_v", (6, 2),
    ),
    "heads": _Told(
        "all heads", "C", "the contexts c of heads 0 to {last_head}, one after another",
        "Row {head} is this head's; the layer's other heads have gone the same way.", "", "heads × d_v", (6, 3),
    ),
    "attended": _Told(
        "attended", "y", "LayerNorm(x + C W_O + b_O)",
        "The heads are mixed, and what the token was is added to it.",
        "encoder.layer.{layer}.attention.output", "width", (5, 3),
    ),
    "feed": _Told(
        "feed-forward", "f", "{activation}(y W_1 + b_1) W_2 + b_2",
        "Two linear maps with a bend between; each token goes through alone.",
        "encoder.layer.{layer}.intermediate, encoder.layer.{layer}.output", "width", (4, 3),
    ),
    "next": _Told(
        "next state", "x′", "LayerNorm(y + f)", "The token as layer {layer} hands it on; {after}.",
        "encoder.layer.{layer}.output.LayerNorm", "width", (2, 3),
    ),
}  # fmt: skip

_ARROWS: tuple[tuple[Stage, Stage, str], ...] = (
    ("word", "embedding", ""),
    ("position", "embedding", "+"),
    ("segment", "embedding", ""),
    ("embedding", "state", "{passed}"),
    ("state", "query", "W_Q"),
    ("state", "key", "W_K"),
    ("state", "value", "W_V"),
    ("query", "scores", "q"),
    ("key", "scores", "Kᵀ"),
    ("scores", "scaled", "÷ √d_k"),
    ("scaled", "weights", "softmax"),
    ("weights", "context", "a"),
    ("value", "context", "V, weighted"),
    ("context", "heads", "head {head}"),
    ("heads", "attended", "W_O"),
    ("state", "attended", "residual"),
    ("attended", "feed", "W_1, W_2"),
    ("attended", "next", "residual"),
    ("feed", "next", "LayerNorm"),
)


def _filled(text: str, numbers: PipelineNumbers, activation: str = "gelu") -> str:
    layer, head, width = numbers.layer, numbers.head, numbers.width
    last = layer == numbers.layers - 1
    return text.format(
        token=numbers.token_id,
        query=numbers.query,
        segment=numbers.segment,
        layer=layer,
        head=head,
        last_head=numbers.head_count - 1,
        first=head * width,
        last=(head + 1) * width - 1,
        width=width,
        activation=activation,
        before="e itself" if layer == 0 else f"what layers 0 to {layer - 1} made of e",
        passed="as it is" if layer == 0 else f"{layer} layer{'s' if layer > 1 else ''}",
        after="this is the last layer" if last else f"layer {layer + 1} gets it",
    )


def stage_matrix(numbers: PipelineNumbers, stage: Stage) -> NamedMatrix:
    """The numbers of a stage; a vector of the whole width is cut into rows as long as a head is wide."""
    values = numbers.stages[stage]
    told = _TOLD[stage]
    token = (numbers.tokens[numbers.query],)
    scale: MatrixScale = "weights" if stage == "weights" else "signed"
    name = f"{told.symbol}: {told.name}"
    dims = tuple(map(str, range(numbers.width)))
    if stage in ("key", "value"):
        return NamedMatrix(name, values, numbers.tokens, dims, scale, axes=("key", "dimension"))
    if stage in ("scores", "scaled", "weights"):
        return NamedMatrix(name, values, token, numbers.tokens, scale, axes=("query", "key"))
    if stage in ("query", "context"):
        return NamedMatrix(name, values, token, dims, scale, axes=("query", "dimension"))
    if stage == "heads":
        heads = tuple(f"head {index}" for index in range(numbers.head_count))
        return NamedMatrix(name, values, heads, dims, scale, axes=("head", "dimension"))
    rows = values.reshape(numbers.head_count, numbers.width)
    starts = tuple(f"{index * numbers.width} …" for index in range(numbers.head_count))
    note = f"{values.size} numbers in rows of {numbers.width}"
    return NamedMatrix(name, rows, starts, dims, scale, note=note, axes=("part", "dimension"))


def pipeline_diagram(numbers: PipelineNumbers, *, selected: int | None = None) -> Diagram:
    """The way as boxes with their numbers, and what leads from one to the next."""
    stages = []
    for stage in STAGES:
        told = _TOLD[stage]
        rows, columns = numbers.stages[stage].shape
        parameter = _filled(told.parameter, numbers)
        stages.append(
            DiagramStage(
                name=told.name,
                symbol=told.symbol,
                formula=_filled(told.formula, numbers),
                about=_filled(told.about, numbers),
                parameter=", ".join(numbers.prefix + part for part in parameter.split(", ") if part),
                shape=f"{columns}" if rows == 1 else f"{rows} × {columns}",
                axes=told.axes,
                values=stage_matrix(numbers, stage),
                place=told.place,
                row={"key": numbers.query, "value": numbers.query, "heads": numbers.head}.get(stage),
            )
        )
    arrows = tuple(
        DiagramArrow(STAGES.index(start), STAGES.index(stop), _filled(label, numbers))
        for start, stop, label in _ARROWS
    )
    place = f"“{numbers.tokens[numbers.query]}” through layer {numbers.layer}, head {numbers.head}"
    return Diagram(
        tuple(stages),
        arrows,
        title=f"{place} of {numbers.title}",
        selected=selected,
        notes=(check_in_words(numbers), *numbers.notes),
    )


def stage_sheet(numbers: PipelineNumbers, stage: Stage) -> MatrixSheet:
    """A stage's numbers with those that it is made from."""
    made_from = tuple(start for start, stop, _ in _ARROWS if stop == stage)
    return MatrixSheet(
        tuple(stage_matrix(numbers, each) for each in (*made_from, stage)),
        title=f"{_TOLD[stage].name} of “{numbers.tokens[numbers.query]}”, layer {numbers.layer}, head {numbers.head}",
        selected=len(made_from),
        notes=(f"{_TOLD[stage].symbol} = {_filled(_TOLD[stage].formula, numbers)}.", *numbers.notes),
    )


# What the numbers say -----------------------------------------------------------------------------------------------

CLOSE = 1e-5
"""Difference of float32 and float64 that a layer's rounding explains."""


def check_in_words(numbers: PipelineNumbers) -> str:
    """Whether the way that is drawn is the model's own."""
    found = f"{numbers.difference:.1e}"
    if numbers.difference <= CLOSE:
        return f"The last box is what the model itself hands on: they differ by at most {found}."
    return (
        f"The last box differs from what the model itself hands on by {found}: this is not the model's way."
    )


def way_in_words(numbers: PipelineNumbers) -> str:
    """Whom the token looks at here, and how much of what attention hands on is this head's."""
    weights = numbers.stages["weights"][0]
    most = int(weights.argmax())
    norms = np.linalg.norm(numbers.stages["heads"], axis=1)
    share = norms[numbers.head] ** 2 / max(float((norms**2).sum()), math.ulp(0.0))
    rank = int((norms > norms[numbers.head]).sum())
    place = "the largest" if rank == 0 else f"number {rank + 1}"
    token = numbers.tokens[numbers.query]
    target = "itself" if most == numbers.query else f"“{numbers.tokens[most]}”"
    return (
        f"In this head “{token}” looks at {target} most ({number_text(float(weights[most]))}). Of the squared length "
        f"of all {numbers.head_count} contexts {share:.0%} is this head's, {place} by size."
    )


def stage_in_words(numbers: PipelineNumbers, stage: Stage) -> tuple[str, ...]:
    """What is measured of a stage."""
    values = numbers.stages[stage]
    low, high = number_text(float(values.min())), number_text(float(values.max()))
    sentences = [f"Its numbers: {low} to {high}."]
    if stage in ("scores", "scaled", "weights"):
        most = int(values[0].argmax())
        sentences.append(f"Largest: “{numbers.tokens[most]}” with {number_text(float(values[0, most]))}.")
    else:
        lengths = np.linalg.norm(values, axis=1)
        shown = number_text(float(lengths.min()))
        if len(lengths) > 1:
            shown += f" to {number_text(float(lengths.max()))}"
        sentences.append(f"Length{' of a row' if len(lengths) > 1 else ''}: {shown}.")
    if stage == "attended":
        state = numbers.stages["state"][0]
        cosine = float(values[0] @ state / (np.linalg.norm(values[0]) * np.linalg.norm(state)))
        sentences.append(f"Cosine with x: {number_text(cosine)}.")
    if stage == "next":
        sentences.append(check_in_words(numbers))
    return tuple(sentences)
