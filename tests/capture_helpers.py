"""What the capture tests and the table in docs share: measuring a capture, and what it must leave unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from analysis.hf.attention import AttentionTrace, capture
from attn_core.maps import AttentionMap
from tests.tiny_models import (
    KINDS,
    Architecture,
    Batch,
    Kind,
    largest_difference,
    library_run,
    library_weights,
    valid_outputs,
    valid_weights,
)


def captured(module: nn.Module, tensors: dict[str, Tensor], **options: Any) -> tuple[AttentionTrace, Any]:
    """Trace and output of one forward pass."""
    with torch.no_grad(), capture(module, **options) as trace:
        output = module(**tensors)
    return trace, output


def maps_by_kind(trace: AttentionTrace) -> dict[Kind, tuple[AttentionMap, ...]]:
    """The kinds that a trace holds."""
    return {kind: getattr(trace, kind) for kind in KINDS if getattr(trace, kind)}


def item_maps(
    architecture: Architecture, batch: Batch, trace: AttentionTrace, item: int
) -> Iterator[tuple[Kind, int, AttentionMap, int]]:
    """(kind, layer, map, index into the library's batch) of everything that belongs to one item."""
    for kind, maps in maps_by_kind(trace.item(item)).items():
        for layer, layer_map in enumerate(maps):
            yield kind, layer, layer_map, item


@dataclass(frozen=True)
class Measurement:
    """Largest absolute differences between a capture and the library.

    Attributes:
        outputs: against the eager and the default model's outputs, on valid positions.
        weights: against the library's eager ``output_attentions``, on valid positions.
        compared: how many weights were compared.
    """

    outputs: float
    weights: float
    compared: int


def measure(architecture: Architecture, batch: Batch) -> Measurement:
    """Run the model with a capture and without, both as built and eager, and compare everything."""
    module, eager = architecture.build(), architecture.build(eager=True)
    trace, output = captured(module, batch.tensors)
    with_capture = valid_outputs(batch, output)
    outputs, weights, compared = 0.0, 0.0, 0
    for plain in (architecture.build(), eager):
        without = valid_outputs(batch, library_run(plain, batch.tensors))
        assert with_capture.keys() == without.keys()
        assert with_capture
        for name, value in without.items():
            outputs = max(outputs, largest_difference(with_capture[name], value))
    library = library_weights(architecture, eager, batch.tensors)
    for item in range(2):
        for kind, layer, layer_map, index in item_maps(architecture, batch, trace, item):
            expected = valid_weights(batch, kind, library[kind][layer], index)
            found = layer_map.dense()
            assert found.shape == expected.shape, (kind, layer, found.shape, expected.shape)
            weights = max(weights, largest_difference(found, expected))
            compared += found.numel()
    return Measurement(outputs, weights, compared)


HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_pre_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_state_dict_hooks",
    "_load_state_dict_pre_hooks",
)
LIBRARY_CAPTURE = "transformers.utils.output_capturing"
"""transformers leaves its own inert recording hooks on a model that ``output_attentions`` was once asked of."""


def state_of(module: nn.Module) -> dict[str, Any]:
    """Everything about a model that a capture must leave as it was, by name."""
    state: dict[str, Any] = {}
    for name, child in module.named_modules():
        state[f"{name}: training"] = child.training
        state[f"{name}: class"] = type(child)
        state[f"{name}: attributes"] = sorted(set(vars(child)) - {"_output_capturing_hooks_installed"})
        for hooks in HOOKS:
            held = getattr(child, hooks, {})
            state[f"{name}: {hooks}"] = [
                repr(hook)
                for hook in (held.values() if isinstance(held, dict) else held)
                if getattr(hook, "__module__", "") != LIBRARY_CAPTURE
            ]
        config = getattr(child, "config", None)
        if config is not None:
            state[f"{name}: config"] = config.to_dict()
            state[f"{name}: implementation"] = config._attn_implementation
            state[f"{name}: config object"] = id(config)
    for name, parameter in module.named_parameters():
        state[f"{name}: parameter"] = (
            parameter.requires_grad, parameter.grad, parameter.data_ptr(), parameter._version,
        )  # fmt: skip
    for name, buffer in module.named_buffers():
        state[f"{name}: buffer"] = buffer.clone()
    return state


def assert_same_state(before: dict[str, Any], after: dict[str, Any]) -> None:
    """Fail with the names of what changed."""
    assert before.keys() == after.keys()
    changed = [
        name
        for name, value in before.items()
        if not (torch.equal(value, after[name]) if isinstance(value, Tensor) else value == after[name])
    ]
    assert not changed, f"a capture changed {changed}"
