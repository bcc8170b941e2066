"""What the transformers of this package share: their outputs, activations, and how a config is read.

They are written for evaluation: no dropout, no layer drop, no loss. Every attention goes through
``attn_core.seam.model_attention`` with a ``MaskRule``, so it is recorded and edited like that of any other model.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor

from attn_core.checks import check_ndim
from attn_core.errors import UnsupportedModelError
from attn_core.modules import KeyValueCache

Config = TypeVar("Config")

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "gelu": torch.nn.functional.gelu,
    "gelu_new": partial(torch.nn.functional.gelu, approximate="tanh"),
    "gelu_pytorch_tanh": partial(torch.nn.functional.gelu, approximate="tanh"),
    "relu": torch.nn.functional.relu,
    "silu": torch.nn.functional.silu,
    "swish": torch.nn.functional.silu,
}
"""By the name that a config gives them: GELU exact or by tanh (Hendrycks & Gimpel 2016), ReLU, SiLU."""


@dataclass(frozen=True)
class EncoderOutput:
    """One pass of an encoder.

    Attributes:
        last_hidden_state: (B, N, M) after the last layer, and its norm where the model has one there.
        logits: (B, C) of a classification head or (B, N, V) of a language-model head; None without a head.
        pooler_output: (B, M) of the first token; None where the model does not pool.
        hidden_states: what entered the first layer and what each layer gave out, (B, N, M) each; None unless asked.
    """

    last_hidden_state: Tensor
    logits: Tensor | None = None
    pooler_output: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None


@dataclass(frozen=True)
class DecoderOutput:
    """One pass of a decoder: a whole text, or the next tokens of one.

    Attributes:
        last_hidden_state: (B, n, M) of the tokens of this pass.
        logits: (B, n, V) for the token after each; None without a head.
        cache: of each layer, for the tokens that follow.
    """

    last_hidden_state: Tensor
    logits: Tensor | None
    cache: tuple[KeyValueCache, ...]


def real_keys(attention_mask: Tensor | None, shape: tuple[int, ...], function: str) -> Tensor | None:
    """(B, N) bool, False for padding; None where nothing is padding, so that no mask is made.

    Raises:
        ValueError: if the mask has not one value a token.
    """
    if attention_mask is None:
        return None
    check_ndim(attention_mask, 2, f"{function}: attention_mask")
    if tuple(attention_mask.shape) != tuple(shape):
        raise ValueError(
            f"{function}: attention_mask must be {tuple(shape)} but is {tuple(attention_mask.shape)}; pass one value "
            "a token of this pass."
        )
    real = attention_mask.bool()
    return None if bool(real.all()) else real


def places(
    position_ids: Tensor | None, length: int, *, first: int, most: int, device: torch.device
) -> Tensor:
    """(N,) or (B, N) positions of the tokens of a pass: as given, or counted on from ``first``.

    Raises:
        ValueError: if counted positions go beyond the model's table of ``most``.
    """
    if position_ids is not None:
        return position_ids
    if first + length > most:
        raise ValueError(
            f"forward: input_ids must end within {most} positions but end at {first + length}; pass a shorter text."
        )
    return torch.arange(first, first + length, device=device)


def read_config(
    kind: type[Config],
    values: Mapping[str, Any],
    *,
    families: tuple[str, ...],
    only: Mapping[str, tuple[Any, ...]],
    defaults: Mapping[str, Any] | None = None,
) -> Config:
    """The fields of a dataclass out of a ``config.json``; what the file leaves out has the library's default.

    Fields that the dataclass does not have are of no matter for evaluation (dropout, initialisation, token names),
    unless ``only`` names them.

    Args:
        families: names that ``model_type`` may have.
        only: fields that change the computation, and the values that are written out here.
        defaults: instead of those of the dataclass.
    Raises:
        UnsupportedModelError: for another family, or a value that is not written out, by the field's name.
    """
    function = f"{kind.__name__}.from_dict"
    for name, implemented in {"model_type": families, **only}.items():
        if name in values and not any(values[name] == value for value in implemented):
            raise UnsupportedModelError(
                f"{function}: {name} must be {' or '.join(map(repr, implemented))} but is {values[name]!r}; load "
                "this model with the transformers library."
            )
    known: dict[str, Any] = dict(defaults or {})
    known |= {field.name: values[field.name] for field in fields(kind) if field.name in values}  # type: ignore[arg-type]
    return kind(**known)


def size_pair(value: int | Sequence[int]) -> tuple[int, int]:
    """A size that configs give as one number or as two, as (height, width)."""
    return (value, value) if isinstance(value, int) else (int(value[0]), int(value[1]))


def label_count(values: Mapping[str, Any]) -> int:
    """Classes of a classification head: ``num_labels``, else the names in ``id2label``, else 2."""
    names = values.get("id2label")
    return int(values.get("num_labels") or (len(names) if names else 2))
