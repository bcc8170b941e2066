"""What a head is worth to the model: the gradient at its gate, and what changes without it.

Michel, Levy & Neubig 2019, "Are Sixteen Heads Really Better than One?" (arXiv:1905.10650): each head's context is
multiplied by ξ_h, 1 in the model as it is. Setting it to 0 removes the head (section 3); the size of the gradient
there, averaged over a corpus, tells what that would do without doing it (section 4.1). They take the loss; here it is
any target of one input.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from analysis.evidence.explanation import kept_positions
from analysis.evidence.passes import plain_outputs
from analysis.evidence.perturbation import batch_items, repeated
from analysis.hf.attention import Kind
from analysis.hf.editing import LayerKey, Layers, attention_calls, editing_layers
from attn_core.edits import HeadEdit, gate, uniform

if TYPE_CHECKING:
    from analysis.evidence.passes import ForwardPass
    from analysis.evidence.targets import Target
    from analysis.inputs import Inputs
    from analysis.models import LoadedModel

Importance = Mapping[Kind, Tensor]
"""(L, H) by kind of attention, on the CPU."""

Variant = Mapping[LayerKey, Tensor]
"""Heads (H,) bool that are edited, by layer."""

Ablation = Literal["uniform", "zero"]
"""What stands in place of a head: attention alike to all that it may see, or nothing at all."""

_EDITS: Mapping[Ablation, Callable[[Tensor], HeadEdit]] = {
    "uniform": uniform,
    "zero": lambda heads: gate(~heads),
}


def gradient_importance(
    run: ForwardPass, target: Target, *, signed: bool = False, normalised: bool = False
) -> Importance:
    """|∂target/∂ξ_h| at ξ = 1: the inner product of a head's context and the target's gradient there.

    Comes from the gradients that the pass shares, with no pass of its own. Models that hand out weights alone serve
    as well: to multiply a context is to multiply its weights.

    Args:
        signed: keep the sign; above 0 the target grows with the head.
        normalised: as ``normalised_layers``.
    Raises:
        ValueError, UnsupportedModelError: if the target's number is not finite or has no gradient.
    """
    gradients = run.gradients(target).layers
    found: dict[Kind, Tensor] = {}
    for kind, layers in run.layers.items():
        products = [
            (_wide(layer.source.detach()[0]) * _wide(gradient[0])).sum((1, 2))  # (H,)
            for layer, gradient in zip(layers, gradients[kind], strict=True)
        ]
        stacked = torch.stack(products).cpu()
        found[kind] = stacked if signed else stacked.abs()
    return normalised_layers(found) if normalised else found


def normalised_layers(importance: Importance) -> Importance:
    """Each layer divided by its Euclidean length (Molchanov et al. 2017); a layer of zeros stays 0.

    Michel et al. do so before they compare heads of different layers; over a corpus, after averaging.
    """
    found: dict[Kind, Tensor] = {}
    for kind, heads in importance.items():
        length = heads.norm(dim=1, keepdim=True)  # (L, 1)
        found[kind] = torch.where(length > 0, heads / length, torch.zeros_like(heads))
    return found


def ablation_effects(
    model: LoadedModel,
    inputs: Inputs,
    target: Target,
    *,
    how: Ablation,
    kinds: Sequence[Kind] | None = None,
    progress: Callable[[float], None] | None = None,
) -> Importance:
    """Target without a head − target as it is, for every head, one at a time.

    Below 0: the head works for the target. Items of a batch each lack another head; batches are of about
    ``perturbation.BATCH_TOKENS`` positions.

    Args:
        how: what stands in place of the head.
        kinds: of attention; None = all that the model has.
        progress: told how much is done, 0 to 1; what it raises stops the passes and comes out.
    Raises:
        ValueError: if there is no such ``how`` or kind, or the target's number is not finite.
        UnsupportedModelError: if heads of this model cannot be edited.
    """
    if how not in _EDITS:
        raise ValueError(f"ablation_effects: how must be one of {', '.join(_EDITS)} but is {how!r}.")
    calls = attention_calls(model, inputs)
    chosen = tuple(calls) if kinds is None else tuple(kinds)
    for kind in chosen:
        if kind not in calls:
            raise ValueError(
                f"ablation_effects: kinds must be among {', '.join(calls)} for this model but name {kind!r}."
            )
    layers = {kind: tuple(call.module for call in of_kind) for kind, of_kind in calls.items()}
    counts = {kind: tuple(call.map.heads for call in calls[kind]) for kind in chosen}
    del calls  # holds the context of every layer
    variants: list[Variant] = [{}, *single_heads(counts)]
    values = edited_values(model, inputs, target, layers, variants, _EDITS[how], progress=progress)
    sizes = [heads for kind in chosen for heads in counts[kind]]
    effects = iter(torch.split(values[1:] - values[0], sizes))
    return {kind: torch.stack([next(effects) for _ in counts[kind]]) for kind in chosen}


def edited_values(
    model: LoadedModel,
    inputs: Inputs,
    target: Target,
    layers: Layers,
    variants: Sequence[Variant],
    edit: Callable[[Tensor], HeadEdit],
    *,
    progress: Callable[[float], None] | None = None,
) -> Tensor:
    """(V,) the target's number with the heads of each variant edited, on the CPU.

    Variants share batches of about ``perturbation.BATCH_TOKENS`` positions.

    Args:
        layers: of ``analysis.hf.editing.attention_layers``.
        variants: of each the edited heads (H,) bool by layer; an empty one is the model as it is.
        edit: (heads (B, H)) → what becomes of them.
        progress: told how much is done, 0 to 1; what it raises stops the passes and comes out.
    Raises:
        ValueError: if the target's number is not finite.
        UnsupportedModelError: if heads of this model cannot be edited.
    """
    kept = kept_positions(inputs)
    size = batch_items(model, inputs)
    parts: list[Tensor] = []
    for first in range(0, len(variants), size):
        batch = variants[first : first + size]
        with editing_layers(model, layers, {key: edit(heads) for key, heads in _together(batch).items()}):
            outputs = plain_outputs(model, repeated(inputs.tensors, len(batch)), kept)
        parts.append(_wide(target.value(outputs).detach()).cpu())
        if progress is not None:
            progress((first + len(batch)) / len(variants))
    values = torch.cat(parts)
    if not bool(torch.isfinite(values).all()):
        raise ValueError(
            f"edited_values: target must have a number with all heads and with some edited, but {target.label!r} is "
            "not finite; choose another."
        )
    return values


def _together(batch: Sequence[Variant]) -> dict[LayerKey, Tensor]:
    """(B, H) the edited heads of each layer that an item of the batch edits."""
    found: dict[LayerKey, Tensor] = {}
    for row, variant in enumerate(batch):
        for key, heads in variant.items():
            found.setdefault(key, torch.zeros(len(batch), len(heads), dtype=torch.bool))[row] = heads
    return found


def single_heads(counts: Mapping[Kind, Sequence[int]]) -> list[Variant]:
    """Each head alone, by kind, layer and head.

    Args:
        counts: heads of each layer.
    """
    return [
        {(kind, layer): torch.arange(heads) == head}
        for kind, layers in counts.items()
        for layer, heads in enumerate(layers)
        for head in range(heads)
    ]


@dataclass(frozen=True, eq=False)
class AverageImportance:
    """Mean size of the heads' importance over the runs so far, in float64.

    Attributes:
        runs: how many.
        mean: (L, H) by kind; empty before the first.
    """

    runs: int = 0
    mean: Importance = field(default_factory=dict)

    def including(self, importance: Importance) -> AverageImportance:
        """The average with one run more; its signs do not count.

        Raises:
            ValueError: if the run is of other layers and heads.
        """
        sizes = {kind: heads.detach().abs().double().cpu() for kind, heads in importance.items()}
        shapes, known = ({k: tuple(t.shape) for k, t in part.items()} for part in (sizes, self.mean))
        if self.runs and shapes != known:
            raise ValueError(
                f"AverageImportance.including: importance must be of layers and heads {known} but is of {shapes}; "
                "average runs of one model."
            )
        runs = self.runs + 1
        mean = {
            kind: before + (sizes[kind] - before) / runs
            for kind, before in (self.mean if self.runs else sizes).items()
        }
        return AverageImportance(runs, mean)


def _wide(tensor: Tensor) -> Tensor:
    return tensor.to(torch.promote_types(tensor.dtype, torch.float32))
