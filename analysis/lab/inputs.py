"""Query, key and value for the sections of the Lab: the worked example, random vectors, or a head of a real model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from analysis.hf.attention import capture
from analysis.inputs import encode_text
from attn_core.errors import UnsupportedModelError
from attn_core.factored import FactoredMap

if TYPE_CHECKING:
    from analysis.models import LoadedModel

MOST_TOKENS = 64
"""Of a sentence in the Lab; the rest is cut and told."""


@dataclass(frozen=True, eq=False)
class LabVectors:
    """What one attention layer is given.

    Attributes:
        query: (H, N, D); ``key``, ``value``: (G, N, D) and (G, N, E), G divides H.
        tokens: N labels.
        source: where the vectors come from, in words.
        notes: what a reader must know.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    tokens: tuple[str, ...]
    source: str
    notes: tuple[str, ...] = ()

    def head(self, index: int) -> LabVectors:
        """One head alone, its group's key and value with it.

        Raises:
            ValueError: if there is no such head.
        """
        heads, groups = self.query.shape[0], self.key.shape[0]
        if not 0 <= index < heads:
            raise ValueError(
                f"LabVectors.head: index must be 0 to {heads - 1} but is {index}; choose one of these."
            )
        group = index * groups // heads
        return LabVectors(
            self.query[index : index + 1],
            self.key[group : group + 1],
            self.value[group : group + 1],
            self.tokens,
            f"{self.source}, head {index}" if heads > 1 else self.source,
            self.notes,
        )


def worked_example() -> LabVectors:
    """Three tokens with d_k = 4, small enough to follow on paper: the first token's output is (2.60, 3.60).

    Its scores are 2, 0, 1; divided by √4 they are 1, 0, 0.5; the softmax of these is 0.506, 0.186, 0.307; and
    0.506 · (1, 2) + 0.186 · (3, 4) + 0.307 · (5, 6) = (2.60, 3.60).
    """
    token = torch.tensor([[1.0, 0.0, 1.0, 0.0], [0.0, 1.0, 0.0, 1.0], [1.0, 1.0, 0.0, 0.0]])
    value = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    return LabVectors(
        token[None], token.clone()[None], value[None], ("cat", "sat", "mat"), "the worked example"
    )


def random_vectors(
    tokens: tuple[str, ...], *, width: int, heads: int = 1, groups: int | None = None, seed: int = 0
) -> LabVectors:
    """Independent standard normal numbers: (heads, N, width) queries, (groups, N, width) keys and values.

    Raises:
        ValueError: without tokens, or if a size is below 1 or the groups do not divide the heads.
    """
    groups = heads if groups is None else groups
    if not tokens or min(width, heads, groups) < 1 or heads % groups:
        raise ValueError(
            "random_vectors: tokens must not be empty, sizes must be at least 1 and groups must divide heads, but "
            f"there are {len(tokens)} tokens, width {width}, {heads} heads and {groups} groups; change them."
        )
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (
        torch.randn(count, len(tokens), width, generator=generator) for count in (heads, groups, groups)
    )
    return LabVectors(query, key, value, tokens, f"random vectors, seed {seed}")


def split_words(text: str) -> tuple[str, ...]:
    """The words of a text as tokens of random vectors, at most ``MOST_TOKENS``."""
    return tuple(text.split()[:MOST_TOKENS])


def numbered(count: int) -> tuple[str, ...]:
    """Names of tokens that stand for nothing: "0", "1" …"""
    return tuple(str(index) for index in range(count))


def model_vectors(model: LoadedModel, text: str, layer: int) -> LabVectors:
    """What a layer of a loaded model's encoder (or only stack) is given for a text, after rotary embedding.

    Args:
        model: a text model whose attention goes through the seam.
        text: one text; longer than ``MOST_TOKENS`` tokens it is cut, and ``notes`` tell.
        layer: from 0.
    Raises:
        UnsupportedModelError: if the model does not hand out its vectors.
        ValueError: for a layer that it has not, or an empty text.
    """
    if not 0 <= layer < model.layers:
        raise ValueError(f"model_vectors: layer must be 0 to {model.layers - 1} but is {layer}; choose one.")
    inputs = encode_text(model, text, max_tokens=MOST_TOKENS)
    tensors = {name: tensor.to(model.device) for name, tensor in inputs.tensors.items()}
    with torch.no_grad(), capture(model.module, graph=True) as captured:
        model.module(**tensors)
    calls = captured.calls.get("encoder") or captured.calls.get("decoder") or ()
    call = calls[layer] if len(calls) == model.layers else None
    if call is None or call.value is None or not isinstance(call.map, FactoredMap):
        raise UnsupportedModelError(
            f"model_vectors: {model.title} does not hand out query, key and value; choose a model whose attention "
            "goes through the attention interface, such as the bundled BERT."
        )
    query, key, value = (
        tensor[0].detach().float().cpu() for tensor in (call.map.query, call.map.key, call.value)
    )
    tokens = tuple(label.text for label in inputs.tokens or ())
    return LabVectors(query, key, value, tokens, f"{model.title}, layer {layer}", tuple(inputs.notes))
