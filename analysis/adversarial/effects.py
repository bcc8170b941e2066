"""What heads do to a target: the same edit on each head alone, each layer whole, and all layers.

The edits of Jain & Wallace's question inside a transformer: attention alike to all, the same weights in another
order, one place alone, another head's weights. What the model makes of them downstream is computed anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from analysis.heads.importance import Variant, edited_values, single_heads
from analysis.hf.attention import Kind
from analysis.hf.editing import attention_calls
from attn_core.edits import HeadEdit, gate, uniform
from attn_core.replacements import Queries, exchanged, first_only, permuted, self_only

if TYPE_CHECKING:
    from analysis.evidence.targets import Target
    from analysis.inputs import Inputs
    from analysis.models import LoadedModel

EditName = Literal["uniform", "permuted", "self", "first", "exchanged", "removed"]

EDIT_WORDS: Mapping[EditName, str] = {
    "uniform": "uniform",
    "permuted": "permuted",
    "self": "own place only",
    "first": "first key only",
    "exchanged": "exchanged with the next head",
    "removed": "head removed",
}
"""What becomes of the weights of an edited head, in words."""

DRAWS = 5
"""Permutations of each head, of whose effects the median is taken."""


@dataclass(frozen=True, eq=False)
class Effects:
    """Change of a target under one edit.

    Attributes:
        edit: which.
        heads: (L, H) each head alone; NaN where a layer has fewer.
        layers: (L,) all heads of a layer.
        whole: all heads of all layers.
        before: the target as it is.
    """

    edit: EditName
    heads: Tensor
    layers: Tensor
    whole: float
    before: float


def head_edit(name: EditName, *, queries: Queries = None, seed: int = 0) -> Callable[[Tensor], HeadEdit]:
    """(heads) → what becomes of them.

    Raises:
        ValueError: if there is no such edit, or only some queries of a head are to be removed.
    """
    if name not in EDIT_WORDS:
        raise ValueError(f"head_edit: name must be one of {', '.join(EDIT_WORDS)} but is {name!r}.")
    if name == "removed":
        if queries is not None:
            raise ValueError("head_edit: a head is removed for all queries; pass queries=None.")
        return lambda heads: gate(~heads)
    if name == "permuted":
        return partial(permuted, seed=seed, queries=queries)
    edits: Mapping[str, Callable[..., HeadEdit]] = {
        "uniform": uniform,
        "self": self_only,
        "first": first_only,
        "exchanged": exchanged,
    }
    return partial(edits[name], queries=queries)


def head_effects(
    model: LoadedModel,
    inputs: Inputs,
    target: Target,
    name: EditName,
    *,
    kind: Kind = "encoder",
    queries: Queries = None,
    draws: int = DRAWS,
    progress: Callable[[float], None] | None = None,
) -> Effects:
    """The target with heads edited − the target as it is: each head alone, each layer whole, all layers.

    Exchanged heads: a head and the next one change places, the last with the first; a whole layer hands its weights
    on in a ring.

    Args:
        kind: of attention.
        queries: places, ascending, of the queries that are edited; None = all.
        draws: of permutations; the median of their effects is told.
        progress: told how much is done, 0 to 1; what it raises stops the passes and comes out.
    Raises:
        ValueError: if there is no such edit or kind, or the edit cannot be made on this model.
        UnsupportedModelError: if heads of this model cannot be edited.
    """
    calls = attention_calls(model, inputs)
    if kind not in calls:
        raise ValueError(f"head_effects: kind must be one of {', '.join(calls)} but is {kind!r}.")
    layers = {each: tuple(call.module for call in of_kind) for each, of_kind in calls.items()}
    counts = [call.map.heads for call in calls[kind]]
    del calls
    variants = _variants(name, kind, counts)
    repeats = draws if name == "permuted" else 1
    drawn = [
        edited_values(
            model,
            inputs,
            target,
            layers,
            variants,
            head_edit(name, queries=queries, seed=seed),
            progress=_share_of(progress, seed, repeats),
        )
        for seed in range(repeats)
    ]
    values = torch.stack(drawn)  # (draws, V)
    before = float(values[0, 0])
    changes = (values - values[:, :1]).quantile(0.5, dim=0)[1:]
    heads = torch.full((len(counts), max(counts)), torch.nan, dtype=changes.dtype)
    for layer, part in enumerate(torch.split(changes[: sum(counts)], counts)):  # type: ignore[no-untyped-call]
        heads[layer, : counts[layer]] = part
    return Effects(name, heads, changes[sum(counts) : -1], float(changes[-1]), before)


def _variants(name: EditName, kind: Kind, counts: Sequence[int]) -> list[Variant]:
    """The model as it is, each head, each layer, all layers."""
    single = single_heads({kind: counts})
    if name == "exchanged":
        single = [{key: heads | heads.roll(1) for key, heads in variant.items()} for variant in single]
    whole = [{(kind, layer): torch.ones(heads, dtype=torch.bool)} for layer, heads in enumerate(counts)]
    every: Variant = {key: heads for variant in whole for key, heads in variant.items()}
    return [{}, *single, *whole, every]


def _share_of(
    progress: Callable[[float], None] | None, index: int, count: int
) -> Callable[[float], None] | None:
    if progress is None:
        return None
    return lambda done: progress((index + done) / count)
