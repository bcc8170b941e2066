"""Editing heads of a loaded model: layers are named as in a trace, by kind and index in the order of the maps.

The edits go through the seam (``attn_core.seam.editing``), so they work on every model of the library that uses its
attention interface and on those of ``attn_core.models``, and nothing on the model is changed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import nn
from transformers import PreTrainedModel

from analysis.hf.attention import Kind, capture, switched, uses_interface
from attn_core.edits import HeadEdit
from attn_core.errors import UnsupportedModelError
from attn_core.seam import Recorded, editing

if TYPE_CHECKING:
    from analysis.inputs import Inputs
    from analysis.models import LoadedModel

LayerKey = tuple[Kind, int]
"""Kind of attention, and index of the layer in the order of the maps of ``analysis.hf.attention.AttentionTrace``."""

Layers = Mapping[Kind, tuple[nn.Module, ...]]
"""The module that calls the seam for each map; one module may serve several layers (ALBERT)."""


def attention_layers(model: LoadedModel, inputs: Inputs) -> Layers:
    """The modules that attend, layers in order, found by one recorded pass.

    Raises:
        UnsupportedModelError: if heads of this model cannot be edited.
    """
    return {
        kind: tuple(call.module for call in calls) for kind, calls in attention_calls(model, inputs).items()
    }


def attention_calls(model: LoadedModel, inputs: Inputs) -> Mapping[Kind, tuple[Recorded, ...]]:
    """What each layer of one pass recorded, without a graph; to be asked for shapes and dropped.

    Raises:
        UnsupportedModelError: if heads of this model cannot be edited.
    """
    _check_interface(model)
    tensors = {name: tensor.to(model.device) for name, tensor in inputs.tensors.items()}
    with torch.no_grad(), capture(model.module, graph=True) as trace:
        model.module(**tensors)
    kinds: tuple[Kind, ...] = ("encoder", "decoder", "cross")
    found = {kind: trace.calls.get(kind, ()) for kind in kinds if getattr(trace, kind)}
    if trace.fallback or any(call.context is None for calls in found.values() for call in calls):
        raise UnsupportedModelError(_OUTSIDE.format(title=model.title))
    if not all(found.values()):
        raise UnsupportedModelError(
            f"editing: {model.title} attends inside windows of its input, so a head has no map over the whole of it "
            "that could be edited; choose another model."
        )
    return found


@contextmanager
def editing_layers(model: LoadedModel, layers: Layers, edits: Mapping[LayerKey, HeadEdit]) -> Iterator[None]:
    """Inside the block ``model.module(**tensors)``, called in this thread, runs with the edits.

    Recording it too works, with ``capture(model.module)`` inside this block. A pass that was broken off and caught
    inside the block leaves the count of a module that serves several layers behind; open a new block then.

    Args:
        layers: of ``attention_layers``.
        edits: what becomes of which layers, such as ``{("encoder", 2): uniform(heads)}``.
    Raises:
        ValueError: if there is no such layer; in the block, if an edit is not for the layer's heads or the batch.
        UnsupportedModelError: if heads of this model cannot be edited, or the block ended without a pass through a
            layer that was to be edited.
    """
    _check_interface(model)
    plan = _Plan(_by_module(layers, edits))
    module = model.module
    with switched(module) if isinstance(module, PreTrainedModel) else nullcontext(), editing(plan.answer):
        yield
    for kind, index in edits:
        if not plan.calls.get(id(layers[kind][index])):
            raise UnsupportedModelError(
                f"editing_layers: {kind} layer {index} of {model.title} did not attend inside the block; call the "
                "model there, with layers that attention_layers found in it."
            )


@dataclass
class _Plan:
    """Edits of a block by module, one for each of its calls in a pass, and how often each was called."""

    edits: Mapping[int, tuple[HeadEdit | None, ...]]
    calls: dict[int, int] = field(default_factory=dict)

    def answer(self, module: nn.Module) -> HeadEdit | None:
        turns = self.edits.get(id(module))
        if turns is None:
            return None
        turn = self.calls.get(id(module), 0)
        self.calls[id(module)] = turn + 1
        return turns[turn % len(turns)]


def _by_module(layers: Layers, edits: Mapping[LayerKey, HeadEdit]) -> dict[int, tuple[HeadEdit | None, ...]]:
    known = [(kind, index) for kind, modules in layers.items() for index in range(len(modules))]
    for key in edits:
        if key not in known:
            there = ", ".join(f"{kind} 0 to {len(modules) - 1}" for kind, modules in layers.items())
            raise ValueError(f"editing_layers: edits must name layers of {there} but name {key!r}.")
    edited = {id(layers[kind][index]) for kind, index in edits}
    turns: dict[int, tuple[HeadEdit | None, ...]] = {}
    for kind, index in known:
        module = id(layers[kind][index])
        if module in edited:
            turns[module] = (*turns.get(module, ()), edits.get((kind, index)))
    return turns


_OUTSIDE = (
    "editing: the attention of {title} does not go through transformers' attention interface or attn_core's own, so "
    "its heads can be seen but not edited; choose another model."
)


def _check_interface(model: LoadedModel) -> None:
    if isinstance(model.module, PreTrainedModel) and not uses_interface(model.module):
        raise UnsupportedModelError(_OUTSIDE.format(title=model.title))
