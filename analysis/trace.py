"""One forward pass of a loaded model, with the attention of every layer: the value from which every view is drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from analysis.hf.attention import capture
from attn_core.maps import AttentionMap

if TYPE_CHECKING:
    from analysis.inputs import Inputs
    from analysis.models import LoadedModel

Kind = Literal["encoder", "decoder", "cross"]
KINDS: tuple[Kind, ...] = ("encoder", "decoder", "cross")


@dataclass(frozen=True)
class Trace:
    """A forward pass of one input.

    Attributes:
        inputs: what went in.
        logits: (C,) or (N, V) of the model's head, on the CPU; None for a bare encoder.
        hidden: (N, M) last hidden state of the encoder (or decoder-only model), on the CPU, when it is given.
        encoder, decoder, cross: one map a layer; empty where the model has none.
        fallback: weights came from ``output_attentions``.
        notes: what a reader must know.
    """

    inputs: Inputs
    logits: Tensor | None
    hidden: Tensor | None
    encoder: tuple[AttentionMap, ...]
    decoder: tuple[AttentionMap, ...]
    cross: tuple[AttentionMap, ...]
    fallback: bool
    notes: tuple[str, ...]

    def maps(self, kind: Kind) -> tuple[AttentionMap, ...]:
        """The maps of one kind, layers in order."""
        found: tuple[AttentionMap, ...] = getattr(self, kind)
        return found

    @property
    def kinds(self) -> tuple[Kind, ...]:
        """Kinds of attention that the model has, in the order encoder, decoder, cross."""
        return tuple(kind for kind in KINDS if self.maps(kind))


def trace(model: LoadedModel, inputs: Inputs) -> Trace:
    """Run the model once on one input and keep the attention of every layer.

    No gradient is kept and nothing on the model is changed; threads may trace one model at the same time.

    Raises:
        UnsupportedModelError: if the model's attention cannot be seen.
    """
    tensors = {name: tensor.to(model.device) for name, tensor in inputs.tensors.items()}
    with torch.no_grad(), capture(model.module) as captured:
        output = model.module(**tensors)
    item = captured.item(0) if _is_single(captured.encoder + captured.decoder) else captured
    return Trace(
        inputs=inputs,
        logits=_first(output, "logits"),
        hidden=_first(output, "last_hidden_state"),
        encoder=item.encoder,
        decoder=item.decoder,
        cross=item.cross,
        fallback=captured.fallback,
        notes=captured.notes,
    )


def _is_single(maps: tuple[AttentionMap, ...]) -> bool:
    """Whether each map holds one item (windowed models hold one a window)."""
    return all(layer.batch == 1 for layer in maps)


def _first(output: object, name: str) -> Tensor | None:
    found = getattr(output, name, None)
    return found[0].detach().float().cpu() if isinstance(found, Tensor) else None


def parity(model: LoadedModel, inputs: Inputs) -> dict[str, float]:
    """Largest difference of each output between a captured pass and a plain one: whether the maps are those in use.

    Returns:
        output name → largest absolute difference, for every floating-point tensor that the model returns.
    """
    tensors = {name: tensor.to(model.device) for name, tensor in inputs.tensors.items()}
    with torch.no_grad():
        plain = model.module(**tensors)
        with capture(model.module):
            captured = model.module(**tensors)
    return {
        name: float((captured[name].float() - plain[name].float()).abs().max())
        for name in plain
        if isinstance(plain[name], Tensor) and plain[name].is_floating_point()
    }
