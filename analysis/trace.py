"""One forward pass of a loaded model, with the attention of every layer: the value from which every view is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn

from analysis.hf.attention import capture
from analysis.hf.windows import window_sizes_kept
from analysis.reading import merged
from attn_core.maps import AttentionMap
from attn_core.taps import reading_inputs

if TYPE_CHECKING:
    from analysis.hf.windows import Grid
    from analysis.inputs import Inputs, PatchGrid
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
        features: (F,) what enters the model's head, on the CPU, where the model knows its head.
        window_logits: (W, C) logits of each window of a document that was read in windows (``analysis.reading``);
            ``logits`` is then their mean. None for anything else.
        encoder, decoder, cross: one map a layer; empty where the model has none.
        fallback: weights came from ``output_attentions``.
        notes: what a reader must know.
        grids: of a picture, the patches of each encoder layer, which differ where a model merges patches between
            layers; None for a layer that is no map over the picture's patches. () for text.
    """

    inputs: Inputs
    logits: Tensor | None
    hidden: Tensor | None
    encoder: tuple[AttentionMap, ...]
    decoder: tuple[AttentionMap, ...]
    cross: tuple[AttentionMap, ...]
    fallback: bool
    notes: tuple[str, ...]
    grids: tuple[PatchGrid | None, ...] = ()
    features: Tensor | None = None
    window_logits: Tensor | None = None

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

    A document that is read in windows is run window by window, and their answers are put together
    (``analysis.reading``).

    No gradient is kept and nothing on the model is changed; threads may trace one model at the same time.

    Raises:
        UnsupportedModelError: if the model's attention cannot be seen.
    """
    if inputs.reading is not None:
        return merged(inputs, (trace(model, window) for window in inputs.reading.windows))
    tensors = {name: tensor.to(model.device) for name, tensor in inputs.tensors.items()}
    head = nn.Identity() if model.head is None else model.module.get_submodule(model.head)
    with torch.no_grad(), reading_inputs(head) as entered, capture(model.module) as captured:
        output = model.module(**tensors)
    single = _is_single(captured.encoder + captured.decoder)
    item = captured.item(0) if single else captured
    unplaced = () if single or captured.grids else (_UNPLACED,)
    return Trace(
        inputs=inputs,
        logits=_first(output, "logits"),
        hidden=_first(output, "last_hidden_state"),
        encoder=item.encoder,
        decoder=item.decoder,
        cross=item.cross,
        fallback=captured.fallback,
        notes=(*item.notes, *unplaced),
        grids=_grids(item.encoder, captured.grids, inputs.grid),
        features=entered[0][0].float().cpu() if entered else None,
    )


_UNPLACED = (
    "The model attends inside parts of its input, and where these lie could not be seen: each layer holds one map "
    "a part."
)


def _grids(
    maps: tuple[AttentionMap, ...], own: tuple[Grid | None, ...], picture: PatchGrid | None
) -> tuple[PatchGrid | None, ...]:
    """The patches of each encoder layer."""
    if picture is None:
        return ()
    size = picture.prefix_tokens + picture.rows * picture.columns
    own = own or (None,) * len(maps)
    finest = next((grid for grid in own if grid is not None), None)
    found: list[PatchGrid | None] = []
    for layer, grid in zip(maps, own, strict=True):
        if grid is not None and finest == (picture.rows, picture.columns):
            found.append(_merged(picture, grid))
        else:
            whole = grid is None and layer.batch == 1 and (layer.queries, layer.keys) == (size, size)
            found.append(picture if whole else None)
    return tuple(found)


def _merged(picture: PatchGrid, grid: Grid) -> PatchGrid | None:
    """The patches of a layer after merges that halve the grid, an odd row or column being padded first (Swin)."""
    for halvings in range(16):
        times = 2**halvings
        if (-(-picture.rows // times), -(-picture.columns // times)) == grid:
            patch = picture.patch * times
            return replace(
                picture,
                rows=grid[0],
                columns=grid[1],
                patch=patch,
                height=grid[0] * patch,
                width=grid[1] * patch,
            )
    return None


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
    with torch.no_grad(), window_sizes_kept(model.module):
        plain = _numbers(model.module(**tensors))
        with capture(model.module):
            captured = _numbers(model.module(**tensors))
    return {
        name: float((captured[name].float() - tensor.float()).abs().max()) for name, tensor in plain.items()
    }


def _numbers(output: Any) -> dict[str, Tensor]:
    """The floating-point tensors of a model's output, whether it is the library's mapping or a record of ours."""
    named = output.items() if isinstance(output, Mapping) else vars(output).items()
    return {name: value for name, value in named if isinstance(value, Tensor) and value.is_floating_point()}
