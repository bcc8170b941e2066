"""Several heads: how a layer's width is split, what each head adds, and how few keys and values will do.

Vaswani et al. 2017, section 3.2.2 (multi-head); Shazeer 2019 (multi-query); Ainslie et al. 2023 (grouped-query, and
turning a multi-head checkpoint into one by the mean of the keys' and values' projections of a group). The layer is
``attn_core.modules.MultiHeadAttention``; its vectors are recorded from its own forward pass.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from analysis.figure_lab import Curve, CurvePanel, CurveSheet, MatrixSheet, NamedMatrix
from attn_core.cost import AttentionShape, kv_cache_bytes
from attn_core.factored import FactoredMap
from attn_core.modules import MultiHeadAttention
from attn_core.seam import recording

if TYPE_CHECKING:
    from analysis.models import LoadedModel
    from attn_core.models.bert import Bert

HEAD_WIDTH = 8
"""d of a head of a random layer."""

SHARPNESS = 2.0
"""Standard deviation of a random layer's scores, so that its attention is neither flat nor a single key."""

SHOWN = 64
"""Columns of wide matrices that are drawn."""

STRONG = 0.5
"""More than this share of a row can go to one key alone."""


@dataclass(frozen=True, eq=False)
class Layer:
    """A multi-head layer and what it is given.

    Attributes:
        module: with as many key–value heads as heads.
        hidden: (N, M).
        tokens: N labels.
        source: where they come from; ``trained``: whether the layer is a model's.
        notes: what a reader must know.
    """

    module: MultiHeadAttention
    hidden: Tensor
    tokens: tuple[str, ...]
    source: str
    trained: bool = False
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class SplitHeads:
    """A layer, taken apart into its heads.

    Attributes:
        query: (H, N, D); ``key``, ``value``: (G, N, D); ``weights``: (H, N, N); ``context``: (H, N, D).
        concat: (N, H · D), the contexts side by side.
        output: (N, M) of the layer; ``added``: (H, N, M), context_h · W_O[h], whose sum with ``bias`` it is.
        bias: (M,) of the output projection.
        tokens: N labels.
        source: where the layer comes from.
        error: |output − that with as many key–value heads as heads| / |that|, for a layer whose groups are means of
            a trained one's; None for others.
        notes: what a reader must know.
    """

    query: NDArray[np.float64]
    key: NDArray[np.float64]
    value: NDArray[np.float64]
    weights: NDArray[np.float64]
    context: NDArray[np.float64]
    concat: NDArray[np.float64]
    output: NDArray[np.float64]
    added: NDArray[np.float64]
    bias: NDArray[np.float64]
    tokens: tuple[str, ...]
    source: str
    error: float | None = None
    notes: tuple[str, ...] = ()

    @property
    def heads(self) -> int:
        """H."""
        return len(self.query)

    @property
    def groups(self) -> int:
        """G."""
        return len(self.key)

    def group_of(self, head: int) -> int:
        """The key–value head that a head reads."""
        return head * self.groups // self.heads

    @property
    def sizes(self) -> NDArray[np.float64]:
        """(H,) length of what each head adds to a token, the mean over tokens."""
        sizes: NDArray[np.float64] = np.linalg.norm(self.added, axis=-1).mean(-1)
        return sizes

    @property
    def remade_error(self) -> float:
        """Largest |value| by which the sum over heads and the bias differ from the layer's own output."""
        return float(np.abs(self.added.sum(0) + self.bias - self.output).max())

    @property
    def places(self) -> float:
        """How many different tokens the heads of a token look hardest at, the mean over tokens."""
        strongest = self.weights.argmax(-1)  # (H, N)
        return float(np.mean([len(set(column)) for column in strongest.T]))

    @property
    def two_targets(self) -> NDArray[np.bool_]:
        """(N,) whether two heads put more than half of a token's attention on two different tokens."""
        strongest = self.weights.argmax(-1)  # (H, N)
        strong = self.weights.max(-1) > STRONG
        return np.array(
            [len(set(strongest[strong[:, row], row])) > 1 for row in range(len(self.tokens))], dtype=np.bool_
        )


# Layers ------------------------------------------------------------------------------------------------------------


def random_layer(tokens: tuple[str, ...], *, heads: int, groups: int, seed: int = 0) -> Layer:
    """A layer of random projections over random hidden states; its scores have a standard deviation of ``SHARPNESS``.

    Raises:
        ValueError: without tokens, or if the groups do not divide the heads.
    """
    if not tokens:
        raise ValueError("random_layer: tokens must not be empty; pass the words of a sentence.")
    width = heads * HEAD_WIDTH
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(len(tokens), width, generator=generator, dtype=torch.float64)
    module = MultiHeadAttention(width, heads, num_kv_heads=groups).double()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
            else:
                drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * width**-0.5
                parameter.copy_(drawn * (SHARPNESS if name.startswith("query") else 1.0))
    return Layer(_frozen(module), hidden, tokens, f"random layer, seed {seed}")


def from_scratch(model: LoadedModel) -> Bert:
    """A loaded BERT as the from-scratch model of ``attn_core``, with the same weights.

    Raises:
        UnsupportedModelError: if it is no BERT.
    """
    from attn_core.models.bert import load_bert

    module: Any = model.module
    tensors = {name: tensor.detach().cpu() for name, tensor in module.state_dict().items()}
    return load_bert(module.config.to_dict(), tensors, head="none")


def model_layer(model: LoadedModel, bert: Bert, text: str, layer: int) -> Layer:
    """A layer of a BERT and the hidden states that enter it for a text.

    Args:
        model: whose tokenizer reads the text; ``bert``: the same from scratch.
        layer: from 0.
    Raises:
        ValueError: for a layer that it has not, or an empty text.
    """
    from analysis.inputs import encode_text
    from analysis.lab.inputs import MOST_TOKENS

    if not 0 <= layer < len(bert.layers):
        raise ValueError(
            f"model_layer: layer must be 0 to {len(bert.layers) - 1} but is {layer}; choose one of these."
        )
    inputs = encode_text(model, text, max_tokens=MOST_TOKENS)
    names = ("input_ids", "attention_mask", "token_type_ids")
    given = {name: inputs.tensors[name] for name in names if name in inputs.tensors}
    with torch.no_grad():
        states = bert(**given, output_hidden_states=True).hidden_states
    assert states is not None
    block: Any = bert.layers[layer]
    tokens = tuple(label.text for label in inputs.tokens or ())
    source = f"{model.title}, layer {layer}"
    return Layer(
        _doubled(block.attention), states[layer][0].double(), tokens, source, True, tuple(inputs.notes)
    )


def mean_pooled(module: MultiHeadAttention, groups: int) -> MultiHeadAttention:
    """The layer with fewer key–value heads: each group's is the mean of its heads'.

    Ainslie et al. 2023, section 2.1, the first step of turning a checkpoint; the second is to train it further.

    Args:
        module: with any number of key–value heads that ``groups`` divides.
    Raises:
        ValueError: if ``groups`` does not divide them.
    """
    before = module.num_kv_heads
    if groups < 1 or before % groups:
        raise ValueError(
            f"mean_pooled: groups must divide the layer's {before} key–value heads but is {groups}; choose a divisor."
        )
    pooled = MultiHeadAttention(
        module.query_projection.in_features,
        module.heads,
        num_kv_heads=groups,
        bias=module.query_projection.bias is not None,
    ).to(module.query_projection.weight.dtype)
    tensors = dict(module.state_dict())
    for name, tensor in tensors.items():
        if name.startswith(("key_projection", "value_projection")):
            by_head = tensor.reshape(groups, before // groups, module.head_width, *tensor.shape[1:])
            tensors[name] = by_head.mean(1).flatten(0, 1)
    pooled.load_state_dict(tensors)
    return _frozen(pooled)


def _doubled(module: MultiHeadAttention) -> MultiHeadAttention:
    """A copy in float64: ``double`` would change the model's own."""
    copied = MultiHeadAttention(
        module.query_projection.in_features, module.heads, num_kv_heads=module.num_kv_heads
    ).double()
    copied.load_state_dict(module.state_dict())
    return _frozen(copied)


def _frozen(module: MultiHeadAttention) -> MultiHeadAttention:
    module.eval().requires_grad_(False)
    return module


# Taken apart -------------------------------------------------------------------------------------------------------


def split_heads(layer: Layer, groups: int | None = None) -> SplitHeads:
    """What each head of a layer is given, does and adds.

    Args:
        groups: key–value heads that those of the layer are pooled to; None or its own number leaves it as it is.
    Raises:
        ValueError: if ``groups`` does not divide the layer's key–value heads.
    """
    module = layer.module
    pooled = groups is not None and groups != module.num_kv_heads
    if pooled:
        assert groups is not None
        module = mean_pooled(module, groups)
    with torch.no_grad(), recording(graph=True) as recorded:
        output = module(layer.hidden[None])[0]
    (call,) = recorded.calls
    assert isinstance(call.map, FactoredMap)
    assert call.value is not None
    assert call.context is not None
    context = call.context[0]  # (H, N, D)
    by_head = module.output_projection.weight.view(-1, module.heads, module.head_width)  # (M, H, D)
    added = torch.einsum("hnd,mhd->hnm", context, by_head)
    bias = module.output_projection.bias
    error = None
    if layer.trained:
        whole = layer.module(layer.hidden[None])[0]
        error = float((output - whole).norm() / whole.norm())
    return SplitHeads(
        query=call.map.query[0].numpy(),
        key=call.map.key[0].numpy(),
        value=call.value[0].numpy(),
        weights=call.map.dense().numpy(),
        context=context.numpy(),
        concat=context.transpose(0, 1).flatten(1).numpy(),
        output=output.numpy(),
        added=added.numpy(),
        bias=(output.new_zeros(output.shape[-1]) if bias is None else bias).numpy(),
        tokens=layer.tokens,
        source=layer.source,
        error=error,
        notes=layer.notes,
    )


def pooling_errors(layer: Layer) -> dict[int, float]:
    """By G, how far the output of a trained layer is off when its key–value heads become means of groups."""
    errors = {groups: split_heads(layer, groups).error for groups in divisors(layer.module.num_kv_heads)}
    return {groups: error for groups, error in errors.items() if error is not None}


def divisors(number: int) -> tuple[int, ...]:
    """All divisors, rising."""
    return tuple(each for each in range(1, number + 1) if number % each == 0)


def nearest_divisor(number: int, wanted: int) -> int:
    """The largest divisor of a number that is at most ``wanted``."""
    return max(each for each in divisors(number) if each <= max(wanted, 1))


# What it costs -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Sharing:
    """One way to share keys and values, at the sizes of a decoder.

    Attributes:
        name: such as "multi-head"; ``groups``: G.
        heads, head_width, layers: H, D and L.
        element_bytes: bytes of a number in the cache.
    """

    name: str
    heads: int
    groups: int
    head_width: int
    layers: int
    element_bytes: int

    def cache(self, tokens: int) -> int:
        """Bytes of the keys and values of a sequence, all layers."""
        shape = AttentionShape(
            1, self.heads, self.groups, 1, tokens, self.head_width, self.head_width, self.element_bytes
        )
        return kv_cache_bytes(shape, layers=self.layers)

    @property
    def parameters(self) -> int:
        """Of the four projections of all layers, without biases."""
        width = self.heads * self.head_width
        with torch.device("meta"):
            layer: nn.Module = MultiHeadAttention(width, self.heads, num_kv_heads=self.groups, bias=False)
        return self.layers * sum(parameter.numel() for parameter in layer.parameters())


def sharings(
    heads: int, groups: int, *, head_width: int, layers: int, element_bytes: int
) -> tuple[Sharing, ...]:
    """Multi-head, grouped-query and multi-query attention; the grouped one only where it is neither of the others."""
    sizes = (head_width, layers, element_bytes)
    found = [Sharing("multi-head", heads, heads, *sizes)]
    if 1 < groups < heads:
        found.append(Sharing("grouped-query", heads, groups, *sizes))
    if heads > 1:
        found.append(Sharing("multi-query", heads, 1, *sizes))
    return tuple(found)


# Figures and words -------------------------------------------------------------------------------------------------


def heads_sheet(view: SplitHeads, head: int) -> MatrixSheet:
    """The weights of all heads, at most six in a row; the chosen one stands out."""
    return MatrixSheet(
        tuple(
            NamedMatrix(
                f"head {index}",
                weights,
                limit=1.0,
                note=f"K, V {view.group_of(index)}",
            )
            for index, weights in enumerate(view.weights)
        ),
        title=f"weights of all heads, queries down, keys across; {view.source}",
        selected=head,
        notes=view.notes,
        across=math.ceil(view.heads / math.ceil(view.heads / 6)),
        numbers=False,
    )


def head_sheet(view: SplitHeads, head: int) -> MatrixSheet:
    """The way of one head: its slices of query, key and value, its weights and context, and what it adds.

    Of wide layers ``SHOWN`` columns are shown: those around the head's own, and the first of the output.
    """
    group, width = view.group_of(head), view.query.shape[-1]
    whole = view.output.shape[1]
    own, shared = (range(index * width, (index + 1) * width) for index in (head, group))
    start = max(min(own.start + width // 2 - SHOWN // 2, whole - SHOWN), 0)
    seen, first = slice(start, min(start + SHOWN, whole)), slice(0, min(SHOWN, whole))
    around, leading = (
        f"; columns {part.start} to {part.stop - 1} of {whole}" if whole > SHOWN else ""
        for part in (seen, first)
    )
    pooled = " (shared)" if view.groups < view.heads else ""
    limit = float(np.abs(view.output).max())

    def vectors(
        name: str, values: NDArray[np.float64], columns: range, across: str, note: str = ""
    ) -> NamedMatrix:
        end = limit if across == "model width" else None
        labels = tuple(map(str, columns))
        return NamedMatrix(name, values, view.tokens, labels, "signed", end, note, ("token", across))

    return MatrixSheet(
        (
            vectors(f"Q of head {head}", view.query[head], own, "column of Q"),
            vectors(f"K {group}{pooled}", view.key[group], shared, "column of K"),
            vectors(f"V {group}{pooled}", view.value[group], shared, "column of V"),
            NamedMatrix(
                "weights", view.weights[head], view.tokens, view.tokens, limit=1.0, axes=("query", "key")
            ),
            vectors("context", view.context[head], own, "column of concat"),
            vectors(
                "concat of all heads",
                view.concat[:, seen],
                range(seen.start, seen.stop),
                "column",
                f"this head's are {own.start} to {own.stop - 1}{around}",
            ),
            vectors(
                f"context · W_O[{head}]",
                view.added[head][:, first],
                range(first.stop),
                "model width",
                f"what this head adds{leading}",
            ),
            vectors(
                "output",
                view.output[:, first],
                range(first.stop),
                "model width",
                f"the sum over heads and the bias{leading}",
            ),
        ),
        title=f"head {head}, {view.source}",
        notes=view.notes,
        numbers=False,
    )


def added_sheet(view: SplitHeads, errors: dict[int, float] | None = None) -> CurveSheet:
    """Length of what each head adds; and, of a trained layer, the error against the number of key–value heads."""
    place = np.arange(view.heads, dtype=np.float64)
    panels = [
        CurvePanel(
            "Length of what each head adds",
            "head",
            "mean |context · W_O[head]|",
            (Curve("added", place, view.sizes, style="bars"),),
        )
    ]
    if errors:
        groups = sorted(errors)
        panels.append(
            CurvePanel(
                "Output off by, keys and values pooled, not trained further",
                "key–value heads G",
                "relative error",
                (
                    Curve(
                        "mean-pooled",
                        np.array(groups, dtype=np.float64),
                        np.array([errors[each] for each in groups]),
                    ),
                ),
                mark=float(view.groups),
            )
        )
    return CurveSheet(tuple(panels), title=view.source, notes=view.notes)


def split_conclusions(view: SplitHeads) -> tuple[str, ...]:
    """What the numbers say: what several heads do that one cannot, which add most, and what sharing costs."""
    count, n = int(view.two_targets.sum()), len(view.tokens)
    if view.heads == 1:
        first = "One head gives a token one row of weights: more than half of it can go to one token alone."
    else:
        first = f"The {view.heads} heads of a token look hardest at {view.places:.1f} different tokens on average. "
        first += (
            f"For {count} of {n} tokens two of them put more than half of their weight on two different tokens, "
            "which one head cannot: its row sums to one."
            if count
            else "Nowhere do two of them put more than half of their weight on two different tokens, which one head "
            "could not."
        )
    sizes = view.sizes
    said = [first]
    if view.heads > 1 and sizes.sum() > 0:
        most, least = int(sizes.argmax()), int(sizes.argmin())
        said.append(
            f"Head {most} adds most to the output and head {least} least, {_times(sizes[most], sizes[least])}."
        )
    if view.error is not None and view.groups < view.heads:
        said.append(
            f"Pooling {view.heads} key–value heads to {view.groups} changes the layer's output by "
            f"{100 * view.error:.0f}\N{NO-BREAK SPACE}% before any further training."
        )
    return tuple(said)


def _times(most: float, least: float) -> str:
    return f"{most / least:.1f} times as much" if least > 0 else "which adds nothing"


def sharing_sheet(ways: Sequence[Sharing]) -> MatrixSheet:
    """Which head reads which key–value head, of each way."""
    matrices = []
    for way in ways:
        reads = np.arange(way.heads)[:, None] * way.groups // way.heads == np.arange(way.groups)
        matrices.append(
            NamedMatrix(
                way.name,
                reads.astype(np.float64),
                tuple(f"Q {index}" for index in range(way.heads)),
                tuple(f"K V {index}" for index in range(way.groups)),
                "mask",
                axes=("head", "key–value head"),
            )
        )
    return MatrixSheet(tuple(matrices), title=f"{ways[0].heads} heads", numbers=False)


def cache_sheet(ways: Sequence[Sharing], tokens: int) -> CurveSheet:
    """Cache size against the number of tokens, on logarithmic axes."""
    lengths = [2**power for power in range(7, 18)]
    lengths = sorted({*lengths, tokens})
    x = np.array(lengths, dtype=np.float64)
    curves = tuple(
        Curve(
            f"{way.name}, {way.groups} of K and V",
            x,
            np.array([way.cache(length) / 2**30 for length in lengths]),
            hue=index,
        )
        for index, way in enumerate(ways)
    )
    panel = CurvePanel(
        "Key–value cache of one sequence", "tokens", "GiB", curves, log_x=True, log_y=True, mark=float(tokens)
    )
    return CurveSheet((panel,), title=_sizes_in_words(ways[0]))


def _sizes_in_words(way: Sharing) -> str:
    return (
        f"{_counted(way.heads, 'head')} of width {way.head_width}, {_counted(way.layers, 'layer')}, "
        f"{_counted(way.element_bytes, 'byte')} a number"
    )


def _counted(number: int, name: str) -> str:
    return f"{number:,} {name}{'' if number == 1 else 's'}"


SHARING_HEADER = ("", "Key–value heads", "Cache", "Part of multi-head", "Parameters of attention")


def sharing_rows(ways: Sequence[Sharing], tokens: int) -> tuple[tuple[str, ...], ...]:
    """A line for each way, as text."""
    whole = ways[0].cache(tokens)
    return tuple(
        (
            way.name,
            str(way.groups),
            size_in_words(way.cache(tokens)),
            f"1/{way.heads // way.groups}" if way.groups < way.heads else "1",
            f"{way.parameters / 1e6:,.2f} million",
        )
        for way in ways
        if whole
    )


def sharing_conclusion(ways: Sequence[Sharing], tokens: int) -> str:
    """What the cache of one sequence takes, and what sharing saves of it."""
    whole, few = ways[0], ways[-1]
    said = (
        f"With {_sizes_in_words(whole)}, multi-head attention keeps {size_in_words(whole.cache(tokens))} for "
        f"{_counted(tokens, 'token')}"
    )
    if len(ways) == 1:
        return said + "; with one head there is nothing to share."
    parts = [
        f"{way.name} attention {size_in_words(way.cache(tokens))}, {_part(way.heads // way.groups)} of it"
        for way in ways[1:]
    ]
    saved = whole.parameters - few.parameters
    return (
        f"{said}; {' and '.join(parts)}. Multi-query attention also has {saved / 1e6:,.2f} million parameters "
        f"fewer, {100 * saved / whole.parameters:.0f}\N{NO-BREAK SPACE}% of those of attention."
    )


def _part(number: int) -> str:
    return {2: "half", 3: "a third", 4: "a quarter", 8: "an eighth"}.get(number, f"1/{number}")


def size_in_words(size: int) -> str:
    """Bytes with a binary unit."""
    units = ("bytes", "KiB", "MiB", "GiB", "TiB")
    place = 0
    value = float(size)
    while value >= 1024 and place < len(units) - 1:
        value, place = value / 1024, place + 1
    return f"{value:,.0f} bytes" if place == 0 else f"{value:,.2f} {units[place]}"
