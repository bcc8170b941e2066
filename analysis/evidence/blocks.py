"""What a forward pass of a long input keeps in place of its graph: what entered each block, to run the block again.

A graph holds every activation: 0.33 MB a patch of ViT-S/14, 7 GB for a picture of 2,048 pixels. Of a stack in which
each block reads what the block before wrote and nothing else, the gradient can be carried down one block at a time,
each run again with a graph of its own (Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost", arXiv
1604.06174). The numbers are the same; a gradient in all layers costs one more forward pass, and one in the last layer
alone (CDAM, GradCAM) none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from analysis.estimate import ModelSize, model_size
from analysis.tokenising import takes
from attn_core.errors import UnsupportedModelError

if TYPE_CHECKING:
    from analysis.inputs import Inputs
    from analysis.models import LoadedModel

_SMALL = 8
"""Tokens that a chain is proved on; of a picture half as many patches along a side."""


@dataclass(frozen=True, eq=False)
class Block:
    """One block as it ran.

    Attributes:
        module: whose.
        hidden: (1, N, M) the hidden states that entered it; of the last block the leaf at which the graph starts.
        arguments, keywords: what else it was given.
    """

    module: nn.Module
    hidden: Tensor
    arguments: tuple[Any, ...]
    keywords: Mapping[str, Any]

    def again(self, hidden: Tensor) -> Tensor:
        """(1, N, M): what the block makes of hidden states."""
        output = self.module(hidden, *self.arguments, **self.keywords)
        found: Tensor = output if isinstance(output, Tensor) else output[0]
        return found


@dataclass
class Chain:
    """The blocks of a pass, filled while it runs.

    Attributes:
        names: of the blocks' modules.
        blocks: in their order.
        entry: (1, N, M) what the first block was given, part of the graph from the input embeddings.
    """

    names: tuple[str, ...]
    blocks: list[Block] = field(default_factory=list)
    entry: Tensor | None = None
    _left: Tensor | None = None

    def enter(
        self, module: nn.Module, arguments: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Keep what a block is given and cut the graph there; the last one's starts a new graph.

        Raises:
            UnsupportedModelError: if it is not what the block before has left.
        """
        named = dict(keywords)
        hidden = arguments[0] if arguments else named.pop("hidden_states", None)
        if not isinstance(hidden, Tensor) or not (self._left is None or _same(hidden, self._left)):
            raise UnsupportedModelError(
                f"forward_pass: {type(module).__name__} does not read what the block before it wrote, so this model "
                "cannot be followed block by block; choose a shorter input, or allow more memory."
            )
        if self.entry is None:
            self.entry = hidden
        given = hidden.detach()
        if len(self.blocks) + 1 == len(self.names):
            given.requires_grad_()
        self.blocks.append(Block(module, given, arguments[1:], named))
        return (given, *arguments[1:]), named

    def leave(self, output: Any) -> None:
        """Keep in mind what a block has left."""
        self._left = output if isinstance(output, Tensor) else output[0]


def _same(one: Tensor, other: Tensor) -> bool:
    return one.data_ptr() == other.data_ptr() and one.shape == other.shape and one.stride() == other.stride()


def block_names(model: LoadedModel) -> tuple[str, ...]:
    """Names of the blocks that hold the attention of each layer, where its input enters inside them; else ().

    Empty also for models with trainable parameters, whose graph would start at these, and with a decoder beside the
    encoder.
    """
    found = tuple(name.rpartition(".")[0] for name in model.attention_inputs)
    inside = all(name.rpartition(".")[2].isdigit() for name in found)
    if model.is_encoder_decoder or not inside or len(set(found)) != len(found):
        return ()
    return () if any(parameter.requires_grad for parameter in model.module.parameters()) else found


def graph_bytes(model: LoadedModel, tokens: int) -> int:
    """About how much memory the graph of a pass over so many positions takes."""
    size = model_size(model)
    return size.layers * tokens * _activations(size) * size.element_bytes


def chain_bytes(model: LoadedModel, tokens: int) -> int:
    """The same without the whole graph: what each block was given and attended with, and the graph of one block."""
    size = model_size(model)
    kept = size.width + 2 * (size.heads + size.kv_heads) * size.head_width
    return tokens * (size.layers * kept + _activations(size)) * size.element_bytes


def _activations(size: ModelSize) -> int:
    """Numbers a position that the graph of one block holds."""
    return 2 * size.inner_width + 8 * size.width + 2 * size.heads * size.head_width


def small_inputs(model: LoadedModel, inputs: Inputs) -> Inputs:
    """The first tokens of a text, or the upper left corner of a picture where the model takes other sizes."""
    grid = inputs.grid
    if grid is not None and not model.flexible_image_size:
        return inputs
    if grid is None:
        kept = min(_SMALL, len(inputs.tokens or ()))
        tensors = {
            name: tensor[:, :kept]
            if tensor.ndim >= 2 and tensor.shape[1] == len(inputs.tokens or ())
            else tensor
            for name, tensor in inputs.tensors.items()
        }
        return replace(inputs, tensors=tensors, tokens=(inputs.tokens or ())[:kept])
    rows, columns = min(grid.rows, _SMALL // 2), min(grid.columns, _SMALL // 2)
    height, width = rows * grid.patch, columns * grid.patch
    tensors = dict(inputs.tensors)
    tensors["pixel_values"] = tensors["pixel_values"][..., :height, :width]
    if takes(model.module, "interpolate_pos_encoding"):
        tensors["interpolate_pos_encoding"] = torch.tensor(True)
    corner = replace(grid, rows=rows, columns=columns, height=height, width=width)
    return replace(inputs, tensors=tensors, grid=corner)


def alike(found: Tensor, expected: Tensor) -> bool:
    """Whether two gradients are one, but for rounding."""
    largest = float(expected.abs().max())
    return (
        bool(torch.isfinite(found).all()) and float((found - expected).abs().max()) <= 1e-3 * largest + 1e-12
    )
