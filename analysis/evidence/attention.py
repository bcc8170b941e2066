"""Where attention goes, as evidence: one layer, rollout, flow, and rollout weighted by the target's gradient.

The first three ask for no target: they show what the model looks at, whatever it answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from analysis.evidence.explanation import Explanation, explanation_of, kept_positions, position_count
from analysis.evidence.flow import check_size, flow_of
from analysis.evidence.passes import ForwardPass, Layer
from analysis.evidence.targets import Target
from analysis.rollout import Fusion, rollout, rollout_row
from attn_core.budget import check_fits, fits
from attn_core.errors import UnsupportedModelError
from attn_core.watching import worked

Row = int | Literal["first", "mean"]
"""Which position's view is asked for: one by index, the first (CLS), or the mean of the user's own positions."""

MOST_LEFT_OUT = 8
"""Most rows that a mean leaves out and is still taken as the mean over all less these: special tokens, registers."""

OPERATIONS_PER_WEIGHT = 50
"""Of the products of a whole rollout, in the time in which a chain makes one weight and carries a row over it."""

POSITIVE_ONLY = "Positive only: what speaks against the target is cut off and not shown."


def attention(
    run: ForwardPass, *, layer: int = -1, head: int | None = None, row: Row | None = None
) -> Explanation:
    """Where one layer looks: its mean over heads or one head, seen from one position or from their mean.

    A model that attends with one learned query has that one row.

    Args:
        layer: of the encoder, or of the only stack.
        head: None takes the mean over heads.
        row: None takes the first position where the model has a class token (a picture's prefix token, a text's
            first special token in an encoder), else the mean over the positions that the user gave.
    Raises:
        UnsupportedModelError: if no layer attends over the input's positions.
        ValueError: if there is no such layer, head or row.
    """
    pooled = _is_pooled(run)
    layers = run.layers["cross"] if pooled else self_attention_of(run, "attention")
    chosen = layers[index_of(layer, len(layers), "attention: layer")].map
    if head is not None:
        head = index_of(head, chosen.heads, "attention: head")
    view = view_of(
        run, 0 if pooled and row is None else row, chosen.queries, "attention", of_input=not pooled
    )
    found: Tensor | float = 0.0
    for rows in _parts(layers[0].strips(), view.share[None]):
        weights = chosen.block(head, rows, slice(0, chosen.keys))
        worked(weights.numel())
        weights = weights.mean(0) if head is None else weights  # (r, K)
        found = found + view.share[rows].to(weights) @ weights
    assert isinstance(found, Tensor)
    return explanation_of("attention", found, run.inputs, signed=False, details={"row": view.name})


def rollout_row_map(
    run: ForwardPass,
    *,
    fusion: Fusion = "mean",
    discard_ratio: float = 0.0,
    residual: bool = True,
    start_layer: int = 0,
    row: Row | None = None,
) -> Explanation:
    """Attention rollout of the encoder, or of the only stack (Abnar & Zuidema 2020, section 3.1).

    Without ``discard_ratio`` it costs O(N) memory where N × N does not fit the budget or is slower, one row always;
    a mean over rows then takes one more chain of products for each row that it leaves out.

    Args:
        fusion, discard_ratio, residual, start_layer: as for ``analysis.rollout.rollout``.
        row: as for ``attention``.
    Raises:
        UnsupportedModelError: if the model has no self-attention over the input's positions.
        ValueError: for a wrong option or row.
        MemoryBudgetError: a ``discard_ratio``, or a mean that leaves out many rows, for an input too long for dense
            maps.
    """
    maps = [layer.map for layer in self_attention_of(run, "rollout")]
    view = view_of(run, row, maps[0].queries, "rollout")
    others = view.share.eq(0).nonzero()[:, 0].tolist()
    dense = maps[0].heads * maps[0].queries * maps[0].keys * 4
    cheaper = (1 + len(others)) * maps[0].heads * OPERATIONS_PER_WEIGHT < maps[0].queries
    if view.index is not None and discard_ratio == 0.0:
        found = rollout_row(maps, view.index, fusion=fusion, residual=residual, start_layer=start_layer)
    elif discard_ratio == 0.0 and len(others) <= MOST_LEFT_OUT and (cheaper or not fits(dense)):
        every, *single = (
            rollout_row(maps, row, fusion=fusion, residual=residual, start_layer=start_layer)
            for row in (None, *others)
        )
        total = maps[0].queries * every - sum(single)  # a rollout is linear in the row that it starts from
        found = total / (maps[0].queries - len(others))
    else:
        whole = rollout(
            maps, fusion=fusion, discard_ratio=discard_ratio, residual=residual, start_layer=start_layer
        )
        found = view.share.to(whole) @ whole
    return explanation_of("rollout", found, run.inputs, signed=False, details={"row": view.name})


def attention_flow(
    run: ForwardPass,
    *,
    row: Row | None = None,
    normalised: bool = True,
    progress: Callable[[float], None] | None = None,
) -> Explanation:
    """Attention flow of the encoder, or of the only stack (Abnar & Zuidema 2020, section 3.2).

    One maximum flow a token, or with the mean over rows one for each pair of tokens: for short inputs.

    Args:
        row: as for ``attention``.
        normalised: divide a row by its sum, as the paper does.
        progress: called with 0 to 1 after each flow; what it raises comes out.
    Raises:
        UnsupportedModelError: if the model has no self-attention over the input's positions.
        ValueError: for a wrong row, or an input above ``analysis.evidence.flow.MOST_STEPS``.
    """
    layers = self_attention_of(run, "attention_flow")
    tokens = layers[0].map.queries
    view = view_of(run, row, tokens, "attention_flow")
    rows: list[int] = view.share.nonzero()[:, 0].tolist()
    check_size(len(layers), tokens, len(rows), "attention_flow")
    means = [_mean_map(layer)[None] for layer in layers]
    flows = flow_of(means, rows=rows, normalised=normalised, progress=progress)
    return explanation_of(
        "attention_flow", flows.mean(0), run.inputs, signed=False, details={"row": view.name}
    )


def gradient_rollout(
    run: ForwardPass,
    target: Target,
    *,
    discard_ratio: float = 0.0,
    head_relu: bool = False,
    start_layer: int = 0,
    row: Row | None = None,
) -> Explanation:
    """Rollout of attention × its gradient: R = B_L ... B_1, B = (f + I) with rows divided by their own sum.

    f = relu(mean_h(A · ∂target/∂A)) of one layer, of which the ``int(N² · discard_ratio)`` smallest entries become
    0 (Gildenblat 2020, vit-explain, with each layer's own gradient and rows that sum to one; Abnar & Zuidema 2020).

    Args:
        discard_ratio: share of a layer's N × N entries that is dropped; anything above 0 holds one N × N array.
        head_relu: set the heads' negative products to 0 before their mean, as Chefer et al. do.
        start_layer: layers below it are left out.
        row: as for ``attention``; of a decoder-only model the position that the target reads.
    Raises:
        UnsupportedModelError: if the model has no self-attention over the input's positions.
        ValueError: for a wrong option or row.
        MemoryBudgetError: if an N × N array does not fit.
    """
    layers, gradients = layers_and_gradients(run, target, start_layer, "gradient_rollout")
    view = view_of(
        run, default_row(run, target) if row is None else row, layers[0].map.queries, "gradient_rollout"
    )
    found = roll_gradients(
        view.share[None], layers, gradients, discard_ratio=discard_ratio, head_relu=head_relu
    )
    return explanation_of(
        "gradient_rollout",
        found[0],
        run.inputs,
        target=target.label,
        signed=False,
        details={"row": view.name, "value": run.value(target)},
        notes=(POSITIVE_ONLY,),
    )


def roll_gradients(
    start: Tensor,
    layers: Sequence[Layer],
    gradients: Sequence[Tensor],
    *,
    discard_ratio: float = 0.0,
    head_relu: bool = False,
) -> Tensor:
    """(M, N): ``start`` (M, N) times the product of ``gradient_rollout``; the identity gives the whole product.

    Args:
        layers, gradients: first layer first; gradients are of each layer's ``source``.
    Raises:
        ValueError, MemoryBudgetError: as ``gradient_rollout``.
    """
    if not 0.0 <= discard_ratio < 1.0:
        raise ValueError(
            f"gradient_rollout: discard_ratio must be at least 0 and below 1 but is {discard_ratio}; "
            "pass the share of weights to drop, such as 0.9."
        )
    share = start
    for layer, gradient in zip(reversed(layers), reversed(gradients), strict=True):
        if discard_ratio > 0.0:
            whole = dense_weighted(layer, gradient, head_relu=head_relu, caller="gradient_rollout")
            parts: Iterator[tuple[slice, Tensor]] = iter(
                [(slice(0, layer.map.queries), _without_smallest(whole, discard_ratio))]
            )
        else:
            parts = weighted_rows(layer, gradient, head_relu=head_relu, wanted=share)
        found = torch.zeros_like(share)
        for rows, fused in parts:
            own = share[:, rows].to(fused) / (1.0 + fused.sum(-1))
            found = found.to(fused) + own @ fused
            found[:, rows] += own
        share = found
    return share


# What the methods of this family share


@dataclass(frozen=True)
class View:
    """From where the input is looked at.

    Attributes:
        share: (N,) float64 weight of each row, sums to one.
        name: for readers: "first", "mean" or the index.
        index: of the one row; None for a mean.
    """

    share: Tensor
    name: str
    index: int | None


def view_of(run: ForwardPass, row: Row | None, size: int, caller: str, *, of_input: bool = True) -> View:
    """The rows that are looked from; ``row`` None as for ``attention``.

    Args:
        size: how many rows there are.
        of_input: rows are the input's positions, of which a mean takes the user's own; else it takes all.
    Raises:
        ValueError: if there is no such row.
    """
    chosen = default_row(run) if row is None else row
    share = torch.zeros(size, dtype=torch.float64, device=run.model.device)
    if chosen == "mean":
        kept = kept_positions(run.inputs).to(share.device)
        kept = kept if of_input and len(kept) else torch.arange(size, device=share.device)
        share[kept] = 1.0 / len(kept)
        return View(share, "mean", None)
    if isinstance(chosen, str) and chosen != "first":
        raise ValueError(f"{caller}: row must be first, mean or a position but is {chosen!r}.")
    index = 0 if isinstance(chosen, str) else index_of(chosen, size, f"{caller}: row")
    share[index] = 1.0
    return View(share, "first" if chosen == "first" else str(index), index)


def default_row(run: ForwardPass, target: Target | None = None, *, of_decoder: bool = False) -> Row:
    """The position from which a target, or without one the model, is best looked from.

    What the target itself reads where it says so (a predicted token's position, an embedding's pooling); the last
    position for other targets of a decoder-only model; else as for ``attention``. A word that a decoder beside an
    encoder predicts has a position of the decoder alone, which reads all of the encoder's: their mean.

    Args:
        of_decoder: a row of the decoder beside an encoder is asked for.
    """
    causal = "encoder" not in run.layers and "decoder" in run.layers
    if target is not None and target.kind == "token_log_probability":
        if run.model.is_encoder_decoder and not of_decoder:
            return "mean"
        return _integer(target.key[1])
    if target is not None and target.kind in ("concept_similarity", "embedding_similarity"):
        return "first" if target.key[2] == "first" else "mean"
    if target is not None and causal:
        return -1
    if run.inputs.grid is not None:
        return "first" if run.inputs.grid.prefix_tokens else "mean"
    tokens = run.inputs.tokens or ()
    return "first" if not causal and tokens and tokens[0].special else "mean"


def self_attention_of(run: ForwardPass, caller: str) -> tuple[Layer, ...]:
    """Layers in which the input's positions attend to each other: of the encoder, or of the only stack.

    Raises:
        UnsupportedModelError: if there are none, or they are not over all positions.
    """
    kind: Literal["encoder", "decoder"] = "encoder" if "encoder" in run.layers else "decoder"
    layers = () if kind == "decoder" and run.model.is_encoder_decoder else run.layers.get(kind, ())
    if not layers:
        raise UnsupportedModelError(
            f"{caller}: the tokens of {run.model.title} do not attend to each other, so there is nothing to follow "
            "through the layers; choose attention, or a gradient or perturbation method."
        )
    size = position_count(run.inputs)
    sizes = {(layer.map.queries, layer.map.keys) for layer in layers}
    if sizes != {(size, size)}:
        raise UnsupportedModelError(
            f"{caller}: the layers of {run.model.title} must hold {size} × {size} weights, one row and column a "
            f"position of the input, but hold {sorted(sizes)}; choose a gradient or perturbation method."
        )
    return layers


def layers_and_gradients(
    run: ForwardPass, target: Target, start_layer: int, caller: str
) -> tuple[tuple[Layer, ...], tuple[Tensor, ...]]:
    """Self-attention from ``start_layer`` on, and the target's gradient in each.

    Raises:
        UnsupportedModelError: as ``self_attention_of``.
        ValueError: if there is no such layer.
    """
    layers = self_attention_of(run, caller)
    if not 0 <= start_layer < len(layers):
        raise ValueError(
            f"{caller}: start_layer must be between 0 and {len(layers) - 1} but is {start_layer}; pass the first "
            "layer of the product."
        )
    gradients = run.gradients(target).layers["encoder" if "encoder" in run.layers else "decoder"]
    return layers[start_layer:], gradients[start_layer:]


def weighted_rows(
    layer: Layer, gradient: Tensor, *, head_relu: bool, wanted: Tensor | None = None
) -> Iterator[tuple[slice, Tensor]]:
    """Attention × its gradient, heads averaged, negatives 0: some queries at a time, each with (r, K).

    Args:
        gradient: of ``layer.source``.
        head_relu: negatives become 0 in each head, before the mean, and not after it.
        wanted: (M, Q); queries in which all of it is 0 may be left out.
    """
    columns = slice(0, layer.map.keys)
    for rows in layer.strips() if wanted is None else _parts(layer.strips(), wanted):
        weights = layer.map.block(None, rows, columns)  # (H, r, K)
        slopes = layer.weight_gradient(gradient, rows).to(weights)
        product = slopes * weights if layer.call.value is None else slopes.mul_(weights)  # theirs, or new
        worked(product.numel())
        yield rows, product.relu_().mean(0) if head_relu else product.mean(0).relu_()


def dense_weighted(layer: Layer, gradient: Tensor, *, head_relu: bool, caller: str) -> Tensor:
    """(Q, K) of ``weighted_rows``.

    Raises:
        MemoryBudgetError: if it does not fit.
    """
    check_budget(layer.map.queries, layer.map.keys, caller)
    return torch.cat([part for _, part in weighted_rows(layer, gradient, head_relu=head_relu)])


def check_budget(rows: int, columns: int, caller: str) -> None:
    """Raise where a rows × columns array of float32 is more than the budget (``attn_core.budget``).

    Raises:
        MemoryBudgetError: with the size and what to do.
    """
    check_fits(
        rows * columns * 4,
        f"{caller}: {rows} × {columns} weights",
        "ask for one row of relevance or rollout, without a discard ratio, pass a shorter input",
    )


def index_of(index: int, size: int, name: str) -> int:
    """A position below ``size``, counted from the end when negative.

    Args:
        name: "function: argument", as it stands in the message.
    Raises:
        ValueError: if there is none.
    """
    if not -size <= index < size:
        raise ValueError(f"{name} must be between 0 and {size - 1} but is {index}; pass one of them.")
    return index % size


def _is_pooled(run: ForwardPass) -> bool:
    """Whether the only attention is that of one learned query."""
    return set(run.layers) == {"cross"} and not run.model.is_encoder_decoder


def _parts(strips: Iterator[slice], wanted: Tensor) -> Iterator[slice]:
    """Strips cut to the rows between the first and the last in which ``wanted`` (M, Q) is not 0."""
    used = wanted.ne(0).any(0)
    for strip in strips:
        found = used[strip].nonzero()[:, 0]
        if len(found):
            yield slice(strip.start + int(found[0]), strip.start + int(found[-1]) + 1)


def _mean_map(layer: Layer) -> Tensor:
    """(Q, K) mean over heads."""
    columns = slice(0, layer.map.keys)
    return torch.cat([layer.map.block(None, rows, columns).double().mean(0) for rows in layer.strips()])


def _without_smallest(fused: Tensor, discard_ratio: float) -> Tensor:
    flat = fused.flatten()
    smallest = flat.sort(stable=True).indices[: int(flat.numel() * discard_ratio)]
    return flat.index_fill(0, smallest, 0.0).view_as(fused)


def _integer(value: object) -> int:
    assert isinstance(value, int)
    return value
