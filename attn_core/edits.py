"""Other weights, or another strength, for chosen heads of a layer: what ``attn_core.seam.editing`` applies.

A ``HeadEdit`` says what becomes of one layer. Functions make them (``uniform``, ``gate``), ``combined`` joins them,
and a new kind of edit is one more function that hands out a ``Replacement`` with its own rows of weights. Heads are
query heads, also where they share keys and values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from attn_core.bias import Bias, bias_block
from attn_core.budget import check_fits
from attn_core.checks import check_index, check_ndim
from attn_core.functional import at_least_float32, attention_scores, masked_softmax, repeat_groups
from attn_core.maps import DenseMap
from attn_core.masks import MaskRule
from attn_core.strips import strip_rows

FORBIDDING = -1e4
"""A bias at or below this is a mask that a model wrote out: they add the smallest number of the type, or −10,000."""


@dataclass(frozen=True, eq=False)
class AttentionCall:
    """What a layer handed to ``attn_core.seam.model_attention``.

    Attributes:
        query: (B, H, Q, D).
        key, value: (B, G, K, D) and (B, G, K, E); G divides H.
        scale: the factor itself, never None.
        rule, bias, softcap, sinks: as in ``attn_core.functional.attention``.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    scale: float
    rule: MaskRule = field(default_factory=MaskRule)
    bias: Bias | None = None
    softcap: float | None = None
    sinks: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(B, H, Q, K)."""
        batch, heads, queries, _ = self.query.shape
        return batch, heads, queries, self.key.shape[2]

    @cached_property
    def written_mask(self) -> Tensor | None:
        """The bias, where a mask is written into it."""
        written = isinstance(self.bias, Tensor) and bool((self.bias <= FORBIDDING).any())
        return self.bias if written and isinstance(self.bias, Tensor) else None

    def strips(self) -> Iterator[slice]:
        """Runs of queries that are small enough to hold all their weights at once."""
        batch, heads, queries, keys = self.shape
        step = strip_rows(batch * heads, keys)
        for start in range(0, max(queries, 1), step):
            yield slice(start, min(start + step, queries))

    def allowed(self, rows: slice) -> Tensor | None:
        """Which keys a mask allows, be it the rule or written into the bias: bool that broadcasts to (B, H, r, K).

        None when every key is allowed.
        """
        found = self._by_rule(rows)
        mask = bias_block(self.written_mask, rows, slice(None))
        if mask is None:
            return found
        free = mask > FORBIDDING
        return free if found is None else found & free

    def own_weights(self, rows: slice) -> Tensor:
        """(B, H, r, K): the layer's own weights of some queries, at least float32."""
        scores = attention_scores(
            at_least_float32(self.query[:, :, rows]),
            at_least_float32(self.key),
            scale=self.scale,
            softcap=self.softcap,
            bias=bias_block(self.bias, rows, slice(None)),
        )
        return masked_softmax(scores, self._by_rule(rows), sinks=self.sinks)[0]

    def _by_rule(self, rows: slice) -> Tensor | None:
        _, _, queries, keys = self.shape
        row, column = (torch.arange(n, device=self.query.device) for n in (queries, keys))
        return self.rule.allowed(row[rows], column, queries=queries, keys=keys)


@dataclass(frozen=True, eq=False)
class WeightedCall(AttentionCall):
    """What a layer handed to ``attn_core.seam.weighted_values``: weights that are no softmax of query · key.

    Attributes:
        weights: (B, H, Q, K); query and key stand for nothing but their sizes.
    """

    weights: Tensor = field(default_factory=lambda: torch.empty(0))

    @staticmethod
    def of(weights: Tensor, value: Tensor, rule: MaskRule) -> WeightedCall:
        """The call of these weights (B, H, Q, K), at least float32, and values (B, G, K, E)."""
        key = weights.new_empty(value.shape[0], value.shape[1], weights.shape[3], 0)
        return WeightedCall(weights[..., :0], key, value, 1.0, rule, weights=weights)

    def own_weights(self, rows: slice) -> Tensor:
        return self.weights[:, :, rows].clone()  # who asks may write into it


RowWeights = Callable[[AttentionCall, slice], Tensor]
"""(call, rows) → weights of these queries, which broadcast to (B, H, r, K). Gradients go through them."""


@dataclass(frozen=True, eq=False)
class Replacement:
    """Weights that take the place of the heads' own.

    Attributes:
        heads: (B, H) or (1, H) bool, or float: how much of the head's weights is replaced, 0 none and 1 all.
        weights: the new ones.
        context: (call) → the new weights applied to the value, broadcasting to (B, H, Q, E), where there is a shorter
            way than row by row; only where all queries are replaced.
        queries: places, ascending, of the queries whose weights are replaced, and that ``weights`` is asked for;
            None = all.
    """

    heads: Tensor
    weights: RowWeights
    context: Callable[[AttentionCall], Tensor] | None = None
    queries: tuple[int, ...] | None = None


@dataclass(frozen=True, eq=False)
class HeadEdit:
    """What becomes of the heads of one layer.

    Attributes:
        replaced: other weights, one after the other.
        factors: (B, H) or (1, H) that the context of each head is multiplied by after that; None = 1.
    """

    replaced: tuple[Replacement, ...] = ()
    factors: Tensor | None = None


# What may be done to heads ---------------------------------------------------------------------------------------


def uniform(heads: Tensor, *, queries: tuple[int, ...] | None = None) -> HeadEdit:
    """Chosen heads attend alike to every key that the mask allows; a row with nothing allowed stays 0.

    Args:
        heads: (B, H) or (1, H) bool, or float: how far towards uniform, 0 not at all and 1 wholly.
        queries: places, ascending, of the queries that are edited; None = all.
    Raises:
        TypeError, ValueError: if ``heads`` is no such tensor.
    """
    shorter = _mean_value if queries is None else None
    return HeadEdit(
        replaced=(Replacement(checked_heads(heads, "uniform: heads"), _uniform_rows, shorter, queries),)
    )


def gate(factors: Tensor) -> HeadEdit:
    """The context of each head is multiplied by a number: ξ_h of Michel, Levy & Neubig 2019, section 2.3.

    0 removes a head and 1 leaves it bit for bit; gradients reach the numbers.

    Args:
        factors: (B, H) or (1, H) float, or bool: True keeps the head.
    Raises:
        TypeError, ValueError: if ``factors`` is no such tensor.
    """
    return HeadEdit(factors=checked_heads(factors, "gate: factors"))


def combined(*edits: HeadEdit) -> HeadEdit:
    """All of these on one layer: weights in the order given, then the product of the gates."""
    factors: Tensor | None = None
    for edit in edits:
        if edit.factors is not None:
            factors = edit.factors if factors is None else factors * edit.factors
    return HeadEdit(tuple(new for edit in edits for new in edit.replaced), factors)


# Applying them ---------------------------------------------------------------------------------------------------


def replaced_context(call: AttentionCall, context: Tensor, edit: HeadEdit) -> Tensor:
    """(B, H, Q, E): the context with the edit's weights in place of the heads' own; gates do not count.

    Args:
        context: (B, H, Q, E) of the layer's own weights.
    Raises:
        ValueError: if an edit is not for this batch and these heads.
    """
    for new in edit.replaced:
        share = per_head(new.heads, call, context)
        if new.queries is not None:
            places = _places(new.queries, call)
            runs = [_applied(call, new.weights, rows) for rows in runs_of(new.queries)]
            other = torch.cat(runs, dim=2)  # (B, H, r, E)
            mixed = (1 - share) * context[:, :, places] + share * other
            context = context.index_copy(2, places, mixed)
            continue
        other = _applied(call, new.weights) if new.context is None else new.context(call)
        context = (1 - share) * context + share * other  # exact at 0 and at 1
    return context


def gated(call: AttentionCall, context: Tensor, edit: HeadEdit) -> Tensor:
    """(B, H, Q, E): the context times the edit's gates.

    Raises:
        ValueError: if the gates are not for this batch and these heads.
    """
    return context if edit.factors is None else context * per_head(edit.factors, call, context)


def edited_map(call: AttentionCall, edit: HeadEdit, *, budget: int | None = None) -> EditedMap:
    """The weights as the edit leaves them, for the whole batch.

    Raises:
        MemoryBudgetError: if they would take more than ``budget`` bytes; None takes that of ``attn_core.budget``.
    """
    batch, heads, queries, keys = call.shape
    check_fits(
        batch * heads * queries * keys * 4,
        f"edited_map: the edited weights of {batch * heads} maps of {queries} × {keys}",
        "run the edited model without recording it, or on a shorter input",
        budget=budget,
    )
    strips = []
    with torch.no_grad():
        for rows in call.strips():
            weights = call.own_weights(rows)
            for new in edit.replaced:
                share = per_head(new.heads, call, weights)
                for part in [rows] if new.queries is None else runs_of(new.queries, rows):
                    inner = slice(part.start - rows.start, part.stop - rows.start)
                    other = new.weights(call, part).to(weights)
                    weights[:, :, inner] = (1 - share) * weights[:, :, inner] + share * other
            strips.append(weights)
    valid = call.rule.key_valid
    return EditedMap(
        stored=torch.cat(strips, dim=2),
        row_valid=valid if queries == keys else None,
        key_valid=valid,
        groups=call.key.shape[1],
        rule=call.rule,
    )


@dataclass(frozen=True)
class EditedMap(DenseMap):
    """The weights of a layer after an edit.

    Attributes:
        rule: the layer's mask, which tells padding and direction of a layer as in a ``FactoredMap``.
    """

    rule: MaskRule = field(default_factory=MaskRule)

    def item(self, index: int, *, rows: Tensor | None = None, columns: Tensor | None = None) -> EditedMap:
        index = check_index(index, self.batch, "AttentionMap.item: index")
        rows = _kept(self.row_valid, index, self.queries) if rows is None else rows
        columns = _kept(self.key_valid, index, self.keys) if columns is None else columns
        cut = super().item(index, rows=rows, columns=columns)
        rule = self.rule.select(index, rows, columns, queries=self.queries, keys=self.keys)
        return replace(self, stored=cut.stored, row_valid=None, key_valid=None, rule=rule)


def per_head(numbers: Tensor, call: AttentionCall, like: Tensor) -> Tensor:
    """(B or 1, H, 1, 1) in the type and on the device of ``like``.

    Raises:
        ValueError: if they are not for this batch and these heads.
    """
    batch, heads = call.shape[:2]
    if numbers.ndim != 2 or numbers.shape[0] not in (1, batch) or numbers.shape[1] != heads:
        raise ValueError(
            f"HeadEdit: heads and factors must be (1, {heads}) or ({batch}, {heads}), one number for each query head "
            f"of each item, but are {tuple(numbers.shape)}; make them for this layer and batch."
        )
    return numbers.to(like)[:, :, None, None]


def checked_heads(numbers: Tensor, name: str) -> Tensor:
    check_ndim(numbers, 2, name)
    if numbers.dtype != torch.bool and not numbers.is_floating_point():
        raise TypeError(
            f"{name} must be bool or float but is {numbers.dtype}; call .bool() or .float() first."
        )
    return numbers


def _kept(valid: Tensor | None, index: int, size: int) -> Tensor:
    return torch.arange(size) if valid is None else valid[index % valid.shape[0]].nonzero()[:, 0]


def _places(queries: tuple[int, ...], call: AttentionCall) -> Tensor:
    count = call.shape[2]
    if any(not 0 <= query < count for query in queries) or list(queries) != sorted(set(queries)):
        raise ValueError(
            f"Replacement: queries must be ascending places below {count} in this layer but are {queries}; "
            "make the edit for this input."
        )
    return torch.tensor(queries, device=call.query.device)


def runs_of(queries: tuple[int, ...], within: slice | None = None) -> list[slice]:
    """Ascending places as slices of consecutive ones; those inside a slice alone where one is given."""
    kept = [query for query in queries if within is None or within.start <= query < within.stop]
    starts = [query for before, query in zip([None, *kept], kept, strict=False) if query - 1 != before]
    stops = [query + 1 for query, after in zip(kept, [*kept[1:], None], strict=True) if query + 1 != after]
    return [slice(start, stop) for start, stop in zip(starts, stops, strict=True)]


def _applied(call: AttentionCall, weights: RowWeights, within: slice | None = None) -> Tensor:
    """(B, H, Q, E): rows of weights times the value, a strip at a time; each group once where heads are alike."""
    parts = []
    for rows in call.strips() if within is None else [within]:
        strip = weights(call, rows).to(call.value.dtype)
        strip = strip.expand(-1, -1, rows.stop - rows.start, -1)
        value = call.value if strip.shape[1] == 1 else repeat_groups(call.value, call.shape[1])
        parts.append(strip @ value)  # (B, H or G, r, E)
    return repeat_groups(torch.cat(parts, dim=2), call.shape[1])


# Uniform weights


def _uniform_rows(call: AttentionCall, rows: slice) -> Tensor:
    """(B or 1, H or 1, r, K) uniform over what is allowed."""
    allowed = call.allowed(rows)
    if allowed is None:
        shape = (1, 1, rows.stop - rows.start, call.shape[3])
        allowed = torch.ones(shape, dtype=torch.bool, device=call.query.device)
    counted = allowed.to(at_least_float32(call.query).dtype)
    return counted / counted.sum(-1, keepdim=True).clamp(min=1)


def _mean_value(call: AttentionCall) -> Tensor:
    """(B, H, Q, E): the mean of the values that each query may see; a running mean where the mask is that simple."""
    rule, (_, heads, queries, keys) = call.rule, call.shape
    if rule.window is not None or rule.has_pair_parts or call.written_mask is not None or not keys:
        return _applied(call, _uniform_rows)
    value = at_least_float32(call.value)  # (B, G, K, E)
    valid = torch.ones(1, keys, dtype=torch.bool, device=value.device)
    valid = (valid if rule.key_valid is None else rule.key_valid)[:, None, :, None]
    total, count = value.masked_fill(~valid, 0.0), valid.to(value.dtype)
    if rule.causal:
        seen = torch.arange(queries, device=value.device) + keys - queries  # last key that a query sees
        some = (seen >= 0)[:, None]
        total, count = ((part.cumsum(2)[:, :, seen.clamp(min=0)] * some) for part in (total, count))
    else:
        total, count = (part.sum(2, keepdim=True).expand(-1, -1, queries, -1) for part in (total, count))
    return repeat_groups((total / count.clamp(min=1)).to(call.value.dtype), heads)
