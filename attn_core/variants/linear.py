"""Linear attention: φ(q)·φ(k) in place of exp(q·k), so that a sum over keys is a state of fixed size.

Katharopoulos et al. 2020, "Transformers are RNNs", sections 3.2 to 3.4. The three forms compute the same numbers:

* parallel: the weights in the open, O(n²) (equation 4);
* chunked: the state between chunks and the weights inside one, O(n · chunk) (Hua et al. 2022, section 3);
* recurrent: one key after the other, O(n) steps (equations 16 to 20).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from attn_core.checks import check_query_key_value
from attn_core.functional import at_least_float32
from attn_core.masks import MaskRule
from attn_core.variants.arguments import check_plain_rule
from attn_core.variants.features import FeatureMap, feature_function

Form = Literal["parallel", "chunked", "recurrent"]


@dataclass(frozen=True)
class LinearState:
    """All that linear attention remembers of the keys that it has read.

    Attributes:
        memory: (B, G, D, E) S = Σ φ(k) vᵀ.
        normaliser: (B, G, D) z = Σ φ(k).
    """

    memory: Tensor
    normaliser: Tensor


@dataclass(frozen=True)
class LinearAttentionOutput:
    """What linear attention returns.

    Attributes:
        context: (B, H, Q, E).
        state: after the last key; pass it on to continue the sequence.
    """

    context: Tensor
    state: LinearState


def linear_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    rule: MaskRule | None = None,
    feature_map: FeatureMap = "elu_plus_one",
    normalised: bool = True,
    form: Form = "chunked",
    chunk: int = 64,
    state: LinearState | None = None,
) -> LinearAttentionOutput:
    """φ(q)ᵀ S / φ(q)ᵀ z, with S and z over the keys that a query may see (equations 6 and 12).

    Args:
        query: (B, H, Q, D).
        key, value: (B, G, K, D) and (B, G, K, E); G divides H.
        rule: causal and key_valid; a window or a predicate cannot be told from a sum.
        feature_map: φ. Normalising wants features that are not negative, so "identity" is for
            ``normalised=False`` or for features that were made before.
        normalised: divide by φ(q)ᵀ z; a row whose divisor is 0 becomes 0.
        form: how it is computed; the numbers are the same.
        chunk: positions a chunk.
        state: of the keys that came before, which every query sees.
    Returns:
        context in value's dtype; the state in at least float32.
    Raises:
        TypeError, ValueError: if shapes, dtypes, rule, form or state do not belong together.
    """
    check_query_key_value(query, key, value, "linear_attention")
    check_plain_rule(rule, key, "linear_attention")
    if form not in _FORMS:
        raise ValueError(
            f"linear_attention: form must be {', '.join(_FORMS)} but is {form!r}; choose one of them."
        )
    if chunk < 1:
        raise ValueError(f"linear_attention: chunk must be at least 1 but is {chunk}; pass 64.")
    queries, keys, values = _features(query, key, value, rule, feature_map, "linear_attention")
    memory, normaliser = _initial(state, keys, values, "linear_attention")
    if rule is not None and rule.causal:
        queries, keys, values, memory, normaliser = _aligned(queries, keys, values, memory, normaliser)
        parts = _FORMS[form](queries, keys, values, memory, normaliser, chunk)
    else:
        parts = _read_all(queries, keys, values, memory, normaliser, form, chunk)
    numerator, divisor, memory, normaliser = parts
    context = divide_or_zero(numerator, divisor[..., None]) if normalised else numerator
    context = context.flatten(1, 2)[:, :, context.shape[3] - query.shape[2] :]  # (B, H, Q, E)
    return LinearAttentionOutput(
        context=context.to(value.dtype),
        state=LinearState(memory=memory.squeeze(2), normaliser=normaliser.squeeze(2)),
    )


def linear_attention_weights(
    query: Tensor,
    key: Tensor,
    *,
    rule: MaskRule | None = None,
    feature_map: FeatureMap = "elu_plus_one",
    normalised: bool = True,
    state: LinearState | None = None,
) -> Tensor:
    """The weights that linear attention gives to each key, which its fast forms never write down.

    Args:
        query, key, rule, feature_map, normalised: as in ``linear_attention``.
        state: of earlier keys. They take their share of a row, which then sums to less than one.
    Returns:
        (B, H, Q, K) in at least float32; context = weights · value where no state came before.
    Raises:
        TypeError, ValueError: as in ``linear_attention``.
    """
    name = "linear_attention_weights"
    check_query_key_value(query, key, None, name)
    check_plain_rule(rule, key, name)
    queries, keys, _ = _features(query, key, key, rule, feature_map, name)
    weights = queries @ keys.transpose(-1, -2)  # (B, G, H / G, Q, K)
    if rule is not None and rule.causal:
        weights = weights.tril(key.shape[2] - query.shape[2])
    if normalised:
        divisor = weights.sum(-1)
        if state is not None:
            _check_state(state, keys.squeeze(2), None, name)
            divisor = divisor + _dot(queries, state.normaliser.to(keys.dtype)[:, :, None])
        weights = divide_or_zero(weights, divisor[..., None])
    return weights.flatten(1, 2)


def divide_or_zero(numerator: Tensor, divisor: Tensor) -> Tensor:
    """The quotient, 0 with gradient 0 where the divisor is 0."""
    empty = divisor == 0
    return (numerator / divisor.masked_fill(empty, 1.0)).masked_fill(empty, 0.0)


def pieces(tensor: Tensor, size: int) -> list[Tensor]:
    """(..., N, D) cut along its positions; one empty piece when there are none."""
    return [tensor[..., start : start + size, :] for start in range(0, max(tensor.shape[-2], 1), size)]


def by_group(query: Tensor, groups: int) -> Tensor:
    """(B, H, Q, D) as (B, G, H / G, Q, D): the heads that share key and value stand on an axis of their own."""
    batch, heads, queries, width = query.shape
    return query.reshape(batch, groups, heads // groups, queries, width)


Parts = tuple[Tensor, Tensor, Tensor, Tensor]
"""Numerators (B, G, H / G, Q, E), divisors (B, G, H / G, Q), S (B, G, 1, D, E) and z (B, G, 1, D) at the end."""


def _parallel(query: Tensor, key: Tensor, value: Tensor, memory: Tensor, z: Tensor, _chunk: int) -> Parts:
    """Causal, Q = K: a chunk that holds everything."""
    scores = (query @ key.transpose(-1, -2)).tril()
    numerator = scores @ value + query @ memory
    divisor = scores.sum(-1) + _dot(query, z)
    return numerator, divisor, memory + key.transpose(-1, -2) @ value, z + key.sum(-2)


def _chunked(query: Tensor, key: Tensor, value: Tensor, memory: Tensor, z: Tensor, chunk: int) -> Parts:
    """Causal, Q = K: the parallel form inside a chunk, the state from one to the next."""
    numerators, divisors = [], []
    for queries, keys, values in zip(*(pieces(t, chunk) for t in (query, key, value)), strict=True):
        numerator, divisor, memory, z = _parallel(queries, keys, values, memory, z, chunk)
        numerators.append(numerator)
        divisors.append(divisor)
    return torch.cat(numerators, -2), torch.cat(divisors, -1), memory, z


def _recurrent(query: Tensor, key: Tensor, value: Tensor, memory: Tensor, z: Tensor, _chunk: int) -> Parts:
    """Causal, Q = K: write a key, then read (equations 18 to 20)."""
    numerators, divisors = [query[..., :0, :] @ memory], [_dot(query[..., :0, :], z)]
    for position in range(key.shape[-2]):
        at = slice(position, position + 1)
        memory = memory + key[..., at, :].transpose(-1, -2) * value[..., at, :]
        z = z + key[..., position, :]
        numerators.append(query[..., at, :] @ memory)
        divisors.append(_dot(query[..., at, :], z))
    return torch.cat(numerators, -2), torch.cat(divisors, -1), memory, z


_FORMS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor, Tensor, int], Parts]] = {
    "parallel": _parallel,
    "chunked": _chunked,
    "recurrent": _recurrent,
}


def _read_all(
    query: Tensor, key: Tensor, value: Tensor, memory: Tensor, z: Tensor, form: Form, chunk: int
) -> Parts:
    """Not causal: every query sees every key."""
    if form == "parallel":
        scores = query @ key.transpose(-1, -2)
        numerator, divisor = scores @ value + query @ memory, scores.sum(-1) + _dot(query, z)
        return numerator, divisor, memory + key.transpose(-1, -2) @ value, z + key.sum(-2)
    step = chunk if form == "chunked" else 1
    for keys, values in zip(pieces(key, step), pieces(value, step), strict=True):
        memory, z = memory + keys.transpose(-1, -2) @ values, z + keys.sum(-2)
    return query @ memory, _dot(query, z), memory, z


def _dot(query: Tensor, z: Tensor) -> Tensor:
    """φ(q)ᵀ z of each query: (B, G, H / G, Q)."""
    return (query @ z[..., None]).squeeze(-1)


def _aligned(
    query: Tensor, key: Tensor, value: Tensor, memory: Tensor, z: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Q = K with the last query at the last key: early keys go into the state, missing ones are zeros."""
    early = key.shape[-2] - query.shape[-2]
    if early > 0:
        first_key, first_value = key[..., :early, :], value[..., :early, :]
        memory, z = memory + first_key.transpose(-1, -2) @ first_value, z + first_key.sum(-2)
        key, value = key[..., early:, :], value[..., early:, :]
    elif early < 0:
        key, value = F.pad(key, (0, 0, -early, 0)), F.pad(value, (0, 0, -early, 0))
    return query, key, value, memory, z


def _features(
    query: Tensor, key: Tensor, value: Tensor, rule: MaskRule | None, feature_map: FeatureMap, function: str
) -> tuple[Tensor, Tensor, Tensor]:
    """φ(query) (B, G, H / G, Q, D), φ(key) (B, G, 1, K, D) and value (B, G, 1, K, E); a padded key is zeros."""
    phi = feature_function(feature_map, function)
    queries = by_group(phi(at_least_float32(query)), key.shape[1])
    keys = phi(at_least_float32(key))
    values = value.to(keys.dtype)
    if rule is not None and rule.key_valid is not None:
        padding = ~rule.key_valid[:, None, :, None]
        keys, values = keys.masked_fill(padding, 0.0), values.masked_fill(padding, 0.0)
    return queries, keys[:, :, None], values[:, :, None]


def _initial(state: LinearState | None, key: Tensor, value: Tensor, function: str) -> tuple[Tensor, Tensor]:
    """S (B, G, 1, D, E) and z (B, G, 1, D) before the first key."""
    if state is None:
        zeros = key.new_zeros(*key.shape[:3], key.shape[-1], value.shape[-1])
        return zeros, zeros.new_zeros(zeros.shape[:-1])
    _check_state(state, key.squeeze(2), value.shape[-1], function)
    return state.memory.to(key.dtype)[:, :, None], state.normaliser.to(key.dtype)[:, :, None]


def _check_state(state: LinearState, key: Tensor, width: int | None, function: str) -> None:
    """Raise unless the state has the key's batch, heads and width, and the value's width if it is given."""
    batch, groups, _, features = key.shape
    shape = (batch, groups, features)
    memory = tuple(state.memory.shape)
    fits = memory[:3] == shape and (width is None or memory[3:] == (width,))
    if not fits or tuple(state.normaliser.shape) != shape:
        raise ValueError(
            f"{function}: state must have memory {(*shape, 'E' if width is None else width)} and normaliser "
            f"{shape} but has {memory} and {tuple(state.normaliser.shape)}; pass the state of the same layer."
        )
