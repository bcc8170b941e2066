"""Strict loading of checkpoints: every key has one place in the model, and every place one key.

A model of this package names its parts by what they do, and a checkpoint by what its program called them. Each model
file writes the correspondence out as a table, so nothing is guessed from a pattern: a key that the table does not
know, a parameter that no key fills and a tensor of another shape are errors that say which.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attn_core.errors import UnsupportedModelError

_NAMED = 4  # names in a message before "and n more"


@dataclass(frozen=True)
class Piece:
    """A part of a stored tensor: one of ``count`` equal parts along its output axis.

    Attributes:
        key: of the checkpoint.
        index, count: which part; 0 of 1 is the whole.
        transposed: a matrix is stored as (in, out), as GPT-2's are, and read as (out, in).
    """

    key: str
    index: int = 0
    count: int = 1
    transposed: bool = False

    def read(self, stored: Tensor) -> Tensor:
        """The parameter out of the stored tensor.

        Raises:
            UnsupportedModelError: if it cannot be cut into ``count`` parts.
        """
        turned = stored.mT if self.transposed and stored.ndim == 2 else stored
        if turned.ndim == 0 or turned.shape[0] % self.count:
            raise UnsupportedModelError(
                f"load: {self.key} must divide into {self.count} parts but has shape {tuple(stored.shape)}; take the "
                "checkpoint that belongs to the config."
            )
        return turned.chunk(self.count)[self.index].contiguous() if self.count > 1 else turned.contiguous()


Table = Mapping[str, str | Piece]
"""Name of a parameter or buffer of ours → key of the checkpoint, or a piece of its tensor."""


def per_layer(layers: int, ours: str, theirs: str, names: Table) -> dict[str, str | Piece]:
    """The table of one layer, written out for all: ``ours`` and ``theirs`` hold ``{}`` for the number."""
    table: dict[str, str | Piece] = {}
    for layer in range(layers):
        for name, place in names.items():
            piece = Piece(place) if isinstance(place, str) else place
            key = theirs.format(layer) + piece.key
            whole = piece.count == 1 and not piece.transposed
            table[ours.format(layer) + name] = (
                key if whole else Piece(key, piece.index, piece.count, piece.transposed)
            )
    return table


def linear(ours: str, theirs: str, *, bias: bool = True) -> dict[str, str]:
    """Rows of a table for a linear layer or a norm: weight, and bias where there is one."""
    return {f"{ours}.{part}": f"{theirs}.{part}" for part in (("weight", "bias") if bias else ("weight",))}


def attention(ours: str, *theirs: str, bias: bool = True) -> dict[str, str]:
    """Rows of a table for a ``MultiHeadAttention``: its projections of query, key, value and output."""
    parts = zip(("query", "key", "value", "output"), theirs, strict=True)
    rows = (linear(f"{ours}.{part}_projection", name, bias=bias) for part, name in parts)
    return {place: key for found in rows for place, key in found.items()}


def without_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors with ``prefix`` taken off the keys that have it, as models with a head put it before the backbone.

    Raises:
        UnsupportedModelError: if a key comes with the prefix and without it.
    """
    stripped = {key.removeprefix(prefix): tensor for key, tensor in tensors.items()}
    if len(stripped) < len(tensors):
        twice = [key for key in tensors if key.startswith(prefix) and key.removeprefix(prefix) in tensors]
        raise UnsupportedModelError(
            f"load: keys must come once but {_listed(twice)} come also without {prefix!r}; take a checkpoint of one "
            "model."
        )
    return stripped


def load_strictly(
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    table: Table,
    *,
    beside: Mapping[str, Tensor | str | None] | None = None,
) -> None:
    """Put the tensors of a checkpoint in their places; the module may lie on the meta device, and is not copied into.

    Args:
        table: a row for every parameter and buffer of the module.
        beside: keys that a checkpoint may hold although the module has no place for them: None for what the
            computation does not need, a tensor for what it makes itself and the key of another tensor for a
            copy of it; the last two are compared.
    Raises:
        UnsupportedModelError: for keys that are not known, places that stay empty, tensors of another shape, and
            copies that are none; the message names them.
    """
    beside = beside or {}
    places = {name: (Piece(key) if isinstance(key, str) else key) for name, key in table.items()}
    wanted = {name: tuple(tensor.shape) for name, tensor in module.state_dict().items()}
    assert set(places) == set(wanted), set(places) ^ set(wanted)  # a table belongs to its module
    known = {piece.key for piece in places.values()}
    _refuse("unknown keys", sorted(set(tensors) - known - set(beside)))
    _refuse("no tensor for", sorted(known - set(tensors)))
    read = {name: piece.read(tensors[piece.key]) for name, piece in places.items()}
    _refuse(
        "other shapes than the config tells of:",
        [
            f"{places[name].key} {tuple(tensor.shape)} instead of {wanted[name]}"
            for name, tensor in read.items()
            if tuple(tensor.shape) != wanted[name]
        ],
    )
    for key, expected in beside.items():
        if key in tensors and (isinstance(expected, Tensor) or expected in tensors):
            _check_same(key, tensors[key], expected, tensors)
    module.load_state_dict(read, assign=True)


def _check_same(
    key: str, found: Tensor, expected: Tensor | str | None, tensors: Mapping[str, Tensor]
) -> None:
    assert expected is not None
    stored = tensors[expected] if isinstance(expected, str) else expected
    same = found.shape == stored.shape
    if same and isinstance(expected, str):
        same = torch.equal(found, stored)
    elif same:  # made here in float64, stored in the checkpoint's precision
        rounding = torch.finfo(found.dtype).eps
        same = torch.allclose(found.double(), stored.double(), rtol=rounding, atol=rounding)
    if not same:
        what = f"those of {expected}" if isinstance(expected, str) else "what the formula gives"
        raise UnsupportedModelError(
            f"load: the numbers of {key} must be {what} but are others, for which this model has no place; load it "
            "with the transformers library."
        )


def _refuse(what: str, names: list[str]) -> None:
    if names:
        raise UnsupportedModelError(
            f"load: the checkpoint must fit the model to the last key but has {what} {_listed(names)}; take the "
            "checkpoint that belongs to the config."
        )


def _listed(names: Iterable[str]) -> str:
    names = list(names)
    more = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {more} more" if more > 0 else "")
