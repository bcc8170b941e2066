"""Fast weights: a slow network writes, by outer products, the weight matrix that its own queries then read.

Schmidhuber 1992, "Learning to control fast-weight memories" (the write is the product of two patterns, FROM ⊗ TO);
Schlag et al. 2021, "Linear transformers are secretly fast weight programmers", sections 3.2 (linear attention without
its divisor is this) and 4.2 (the delta rule). Both rules write what they call a value into the memory W:

    sum    W ← W + β φ(k) vᵀ
    delta  W ← W + β φ(k) (v − Wᵀφ(k))ᵀ      what the key held before is replaced, not added to

Inside a chunk the values that are really written solve a triangular system (Yang et al. 2024, DeltaNet), so one
chunk is a few matrix products; a chunk of one position is the recurrence, one of all positions the parallel form.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from attn_core.checks import check_ndim, check_query_key_value
from attn_core.functional import at_least_float32
from attn_core.variants.arguments import check_key_valid
from attn_core.variants.features import FeatureMap, feature_function
from attn_core.variants.linear import Form, by_group, divide_or_zero, pieces

WriteRule = Literal["sum", "delta"]
KeyNorm = Literal["none", "sum", "l2"]

_WRITE_RULES = ("sum", "delta")
_FORMS = ("parallel", "chunked", "recurrent")


@dataclass(frozen=True)
class FastWeightOutput:
    """What a pass through a fast weight memory returns.

    Attributes:
        context: (B, H, N, E) what each query read after its own position was written.
        memory: (B, G, D, E) after the last write; pass it on to continue the sequence.
    """

    context: Tensor
    memory: Tensor


def fast_weight_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    write_rule: WriteRule = "delta",
    strength: Tensor | None = None,
    feature_map: FeatureMap = "elu_plus_one",
    key_norm: KeyNorm = "none",
    key_valid: Tensor | None = None,
    form: Form = "chunked",
    chunk: int = 64,
    memory: Tensor | None = None,
) -> FastWeightOutput:
    """Write φ(k) and v of each position in order, then read it with φ(q); causal by nature.

    Args:
        query: (B, H, N, D).
        key, value: (B, G, N, D) and (B, G, N, E); G divides H.
        write_rule: "sum" adds, "delta" corrects.
        strength: (B, G, N) β of each write, usually in 0 to 1; None = 1.
        feature_map: φ.
        key_norm: how φ(q) and φ(k) are normalised: "sum" to sum one (Schlag et al. 2021, section 4.2), "l2" to
            length one (Yang et al. 2024). Without it the delta rule can grow without bound where
            β |φ(k)|² exceeds 2.
        key_valid: (B, N) bool; padding writes nothing.
        form: how it is computed; the numbers are the same.
        chunk: positions a chunk.
        memory: (B, G, D, E) that earlier positions left; None = zeros.
    Returns:
        context in value's dtype; the memory in at least float32.
    Raises:
        TypeError, ValueError: if shapes, dtypes or options do not belong together.
    """
    name = "fast_weight_attention"
    _check(query, key, value, write_rule, strength, key_valid, name)
    if form not in _FORMS or chunk < 1:
        raise ValueError(
            f"{name}: form must be {', '.join(_FORMS)} and chunk at least 1 but they are {form!r} and {chunk}; "
            "choose one of them, and 64."
        )
    queries, keys, beta = _features(query, key, strength, feature_map, key_norm, key_valid, name)
    values = value.to(keys.dtype)[:, :, None]
    if key_valid is not None:
        values = values.masked_fill(~key_valid[:, None, None, :, None], 0.0)
    state = _initial(memory, keys, values, name)
    size = {"parallel": max(query.shape[2], 1), "chunked": chunk, "recurrent": 1}[form]
    contexts = []
    for q, k, v, b in zip(*(pieces(t, size) for t in (queries, keys, values, beta)), strict=True):
        # What is written replaces what the memory of earlier chunks held, then what this chunk itself wrote.
        wanted = v if write_rule == "sum" else v - k @ state
        written = _solve(k, b, write_rule) @ wanted  # (B, G, 1, size, E)
        contexts.append(q @ state + (q @ k.transpose(-1, -2)).tril() @ written)
        state = state + k.transpose(-1, -2) @ written
    context = torch.cat(contexts, dim=-2).flatten(1, 2)
    return FastWeightOutput(context=context.to(value.dtype), memory=state.squeeze(2))


def fast_weight_weights(
    query: Tensor,
    key: Tensor,
    *,
    write_rule: WriteRule = "delta",
    strength: Tensor | None = None,
    feature_map: FeatureMap = "elu_plus_one",
    key_norm: KeyNorm = "none",
    key_valid: Tensor | None = None,
) -> Tensor:
    """How much of each value a query reads from a memory that began empty.

    The delta rule gives negative weights too: a later write to a similar key takes an earlier value back.

    Args:
        query, key, write_rule, strength, feature_map, key_norm, key_valid: as in ``fast_weight_attention``.
    Returns:
        (B, H, Q, K) in at least float32, zero above the diagonal; context = weights · value.
    Raises:
        TypeError, ValueError: as in ``fast_weight_attention``.
    """
    name = "fast_weight_weights"
    _check(query, key, None, write_rule, strength, key_valid, name)
    queries, keys, beta = _features(query, key, strength, feature_map, key_norm, key_valid, name)
    reads = (queries @ keys.transpose(-1, -2)).tril()
    return (reads @ _solve(keys, beta, write_rule)).flatten(1, 2)


class FastWeightController(nn.Module):
    """The slow network: it makes query, key, value and write strength of each position from its hidden state.

    Schmidhuber 1992 with heads and the write strength of Schlag et al. 2021 (section 4.2).
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        write_rule: WriteRule = "delta",
        feature_map: FeatureMap = "elu_plus_one",
        key_norm: KeyNorm = "sum",
    ) -> None:
        """Make the projections.

        Args:
            width: M of the hidden states; a multiple of ``heads``.
            heads: H.
            write_rule, feature_map, key_norm: as in ``fast_weight_attention``.
        Raises:
            ValueError: if ``heads`` does not divide ``width``.
        """
        super().__init__()
        if heads < 1 or width % heads:
            raise ValueError(
                f"FastWeightController: width must be a multiple of heads but they are {width} and {heads}; "
                "choose heads that divide it."
            )
        self.heads = heads
        self.write_rule: WriteRule = write_rule
        self.feature_map: FeatureMap = feature_map
        self.key_norm: KeyNorm = key_norm
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.strength = nn.Linear(width, heads)
        self.output = nn.Linear(width, width, bias=False)

    def forward(
        self, hidden: Tensor, *, key_valid: Tensor | None = None, memory: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Hidden states after one pass, and the memory.

        Args:
            hidden: (B, N, M).
            key_valid: (B, N) bool; padding writes nothing.
            memory: (B, H, D, D) that earlier positions left.
        Returns:
            hidden (B, N, M) and memory (B, H, D, D), D = M / H.
        Raises:
            ValueError: if a shape does not fit.
        """
        check_ndim(hidden, 3, "FastWeightController: hidden")
        query, key, value = (
            layer(hidden).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )  # (B, H, N, D)
        read = fast_weight_attention(
            query,
            key,
            value,
            write_rule=self.write_rule,
            strength=torch.sigmoid(self.strength(hidden)).transpose(1, 2),  # (B, H, N)
            feature_map=self.feature_map,
            key_norm=self.key_norm,
            key_valid=key_valid,
            memory=memory,
        )
        output: Tensor = self.output(read.context.transpose(1, 2).flatten(2))
        return output, read.memory


def _solve(key: Tensor, beta: Tensor, write_rule: WriteRule) -> Tensor:
    """What is written at each position, as a matrix on what is wanted at each: (..., size, size).

    sum: β alone; delta: (I + lower(β K Kᵀ))⁻¹ β (Yang et al. 2024).
    """
    if write_rule == "sum":
        return torch.diag_embed(beta.squeeze(-1))
    overlap = (beta * (key @ key.transpose(-1, -2))).tril(-1)
    solved: Tensor = torch.linalg.solve_triangular(
        overlap, torch.diag_embed(beta.squeeze(-1)), upper=False, unitriangular=True
    )  # the unit diagonal is implied
    return solved


def _normalised(features: Tensor, key_norm: KeyNorm) -> Tensor:
    if key_norm == "sum":
        return divide_or_zero(features, features.sum(-1, keepdim=True))
    if key_norm == "l2":
        return nn.functional.normalize(features, dim=-1)
    return features


def _features(
    query: Tensor,
    key: Tensor,
    strength: Tensor | None,
    feature_map: FeatureMap,
    key_norm: KeyNorm,
    key_valid: Tensor | None,
    function: str,
) -> tuple[Tensor, Tensor, Tensor]:
    """φ(query) (B, G, H / G, N, D), φ(key) (B, G, 1, N, D) and β (B, G, 1, N, 1); padding has β = 0."""
    if key_norm not in ("none", "sum", "l2"):
        raise ValueError(
            f"{function}: key_norm must be none, sum or l2 but is {key_norm!r}; choose one of them."
        )
    phi = feature_function(feature_map, function)
    queries = by_group(_normalised(phi(at_least_float32(query)), key_norm), key.shape[1])
    keys = _normalised(phi(at_least_float32(key)), key_norm)
    beta = keys.new_ones(key.shape[:3]) if strength is None else strength.to(keys.dtype)
    if key_valid is not None:
        keys = keys.masked_fill(~key_valid[:, None, :, None], 0.0)
        beta = beta.masked_fill(~key_valid[:, None], 0.0)
    return queries, keys[:, :, None], beta[:, :, None, :, None]


def _initial(memory: Tensor | None, key: Tensor, value: Tensor, function: str) -> Tensor:
    """W (B, G, 1, D, E) before the first write."""
    shape = (*key.shape[:2], key.shape[-1], value.shape[-1])
    if memory is None:
        return key.new_zeros(shape)[:, :, None]
    if tuple(memory.shape) != shape:
        raise ValueError(
            f"{function}: memory must be (B, G, D, E) = {shape} but is {tuple(memory.shape)}; "
            "pass the memory of the same layer."
        )
    return memory.to(key.dtype)[:, :, None]


def _check(
    query: Tensor,
    key: Tensor,
    value: Tensor | None,
    write_rule: WriteRule,
    strength: Tensor | None,
    key_valid: Tensor | None,
    function: str,
) -> None:
    check_query_key_value(query, key, value, function)
    batch, groups, keys, _ = key.shape
    if query.shape[2] != keys:
        raise ValueError(
            f"{function}: query must have key's {keys} positions but has {query.shape[2]}; each position writes "
            "and then reads, so pass the memory of earlier positions instead of their keys."
        )
    if write_rule not in _WRITE_RULES:
        raise ValueError(
            f"{function}: write_rule must be sum or delta but is {write_rule!r}; choose one of them."
        )
    if strength is not None and tuple(strength.shape) != (batch, groups, keys):
        raise ValueError(
            f"{function}: strength must be (B, G, N) = {(batch, groups, keys)} but is {tuple(strength.shape)}; "
            "pass one number for each write."
        )
    check_key_valid(key_valid, key, function)
