"""The masks of the literature as rules, their combinations, and the share of pairs that they leave.

Each builder returns a ``MaskRule``; ``a & b`` and ``a | b`` combine rules. Where Q ≠ K, the queries are the last Q
positions of the keys, as docs/conventions.md has it. A rule that has to know where the queries lie is a
``SizedRule``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor

from attn_core.checks import check_ndim
from attn_core.masks import MaskRule, Predicate
from attn_core.strips import strip_rows


class SizedPredicate(Protocol):
    """A predicate that is also told ``shift`` = K − Q, so that query i sits at key position i + shift."""

    def __call__(
        self, items: Tensor, heads: Tensor, row: Tensor, column: Tensor, /, *, shift: int
    ) -> Tensor: ...


def _not_alone(items: Tensor, heads: Tensor, row: Tensor, column: Tensor) -> Tensor:
    raise ValueError(
        "SizedRule: predicate cannot be asked without the sizes; ask rule.bound(keys - queries)."
    )


@dataclass(frozen=True, eq=False)
class SizedRule(MaskRule):
    """A rule with a part that depends on where the queries lie among the keys.

    Attributes:
        sized: that part, elementwise on index tensors; the others are as in ``MaskRule`` and hold as well.
    """

    predicate: Predicate | None = _not_alone  # never None, so that nobody takes the rule for a plain one
    sized: SizedPredicate = field(kw_only=True)

    def bound(self, shift: int) -> MaskRule:
        """The same pairs as a plain rule, for maps with this K − Q."""

        def predicate(items: Tensor, heads: Tensor, row: Tensor, column: Tensor) -> Tensor:
            return self.sized(items, heads, row, column, shift=shift)

        return MaskRule(
            self.causal,
            self.window,
            self.key_valid,
            predicate,
            self.predicate_batch,
            self.prefix,
            self.documents,
        )

    def allowed(self, rows: Tensor, columns: Tensor, *, queries: int, keys: int) -> Tensor | None:
        """As in ``MaskRule``."""
        return self.bound(keys - queries).allowed(rows, columns, queries=queries, keys=keys)

    def select(self, item: int, rows: Tensor, columns: Tensor, *, queries: int, keys: int) -> MaskRule:
        """As in ``MaskRule``."""
        return self.bound(keys - queries).select(item, rows, columns, queries=queries, keys=keys)


def pairs_allowed(
    rule: MaskRule, items: Tensor, heads: Tensor, row: Tensor, column: Tensor, *, shift: int
) -> Tensor:
    """Permission of single pairs, elementwise.

    Args:
        items, heads, row, column: batch, head, query and key indices that broadcast.
        shift: K − Q of the whole map.
    Returns:
        bool, of the indices' common shape or one that broadcasts to it.
    """
    plain = rule.bound(shift) if isinstance(rule, SizedRule) else rule
    result = plain.pairs(items, row, column, shift=shift)
    if plain.key_valid is not None:
        result = result & plain.key_valid[_own_item(items, len(plain.key_valid)), column]
    if plain.predicate is not None:
        result = result & plain.predicate(_own_item(items, plain.predicate_batch), heads, row, column)
    return result


def _own_item(items: Tensor, batch: int) -> Tensor:
    """Indices into something that is either kept for each item or once for all."""
    return items * 0 if batch == 1 else items


# --- Builders -------------------------------------------------------------------------------------------------------


def causal_rule() -> MaskRule:
    """No key after the query (Vaswani et al. 2017, section 3.2.3); the last query sees the last key."""
    return MaskRule(causal=True)


def padding_rule(lengths: Tensor, *, keys: int) -> MaskRule:
    """The first ``lengths[b]`` keys of each item; what follows is padding.

    Args:
        lengths: (B,) integers.
        keys: K.
    Raises:
        ValueError: if ``lengths`` has not one axis.
    """
    check_ndim(lengths, 1, "padding_rule: lengths")
    return MaskRule(key_valid=torch.arange(keys, device=lengths.device) < lengths[:, None])


def window_rule(window: int, *, causal: bool = True) -> MaskRule:
    """Sliding window (Longformer, Beltagy et al. 2020, section 3.1; Mistral 7B, Jiang et al. 2023, section 2).

    Args:
        window: causal: this many keys including the query's own; else keys nearer than this on both sides.
    Raises:
        ValueError: if ``window`` is below 1.
    """
    return MaskRule(causal=causal, window=window)


def prefix_rule(prefix: int | Tensor) -> MaskRule:
    """Prefix LM: everyone sees the prefix, beyond it attention is causal (Raffel et al. 2020, section 3.2.1).

    Args:
        prefix: how many keys belong to the prefix, for all or (B,) for each item.
    Raises:
        ValueError: if a tensor has not one axis.
    """
    lengths = torch.tensor([prefix]) if isinstance(prefix, int) else prefix
    check_ndim(lengths, 1, "prefix_rule: prefix")
    return MaskRule(causal=True, prefix=lengths)


def document_rule(documents: Tensor) -> MaskRule:
    """Only pairs of one document, for sequences packed into one row (Krell et al. 2021, section 3.2).

    Args:
        documents: (B, K) number of the document that each position belongs to; (1, K) for all items. The queries
            are the last Q positions.
    Raises:
        ValueError: if ``documents`` has not two axes; when asked about more queries than keys.
    """
    check_ndim(documents, 2, "document_rule: documents")
    return MaskRule(documents=documents)


def block_sparse_rule(layout: Tensor, *, block_size: int) -> MaskRule:
    """Whole blocks of pairs as a layout says (Child et al. 2019, section 5.5; BigBird, Zaheer et al. 2020).

    Args:
        layout: (⌈Q / block_size⌉, ⌈K / block_size⌉) bool; a map beyond it is an ``IndexError``.
    Raises:
        ValueError: if ``layout`` is not bool with two axes, or ``block_size`` is below 1.
    """
    check_ndim(layout, 2, "block_sparse_rule: layout")
    if layout.dtype != torch.bool:
        raise ValueError(f"block_sparse_rule: layout must be bool but is {layout.dtype}; pass layout.bool().")
    _check_positive(block_size, "block_sparse_rule: block_size")

    def in_layout(items: Tensor, heads: Tensor, row: Tensor, column: Tensor) -> Tensor:
        return layout.to(column.device)[row // block_size, column // block_size]

    return MaskRule(predicate=in_layout)


def dilated_rule(window: int, *, dilation: int, causal: bool = True) -> MaskRule:
    """Sliding window with gaps (Longformer, Beltagy et al. 2020, section 3.1; Child et al. 2019, section 4.3).

    Args:
        window: causal: this many keys including the query's own; else this many on each side, the own one shared.
        dilation: distance of neighbours in the window; 1 = a sliding window.
    Raises:
        ValueError: if one of them is below 1.
    """
    _check_positive(window, "dilated_rule: window")
    _check_positive(dilation, "dilated_rule: dilation")

    def in_step(items: Tensor, heads: Tensor, row: Tensor, column: Tensor, *, shift: int) -> Tensor:
        return (row + shift - column) % dilation == 0

    return SizedRule(causal=causal, window=(window - 1) * dilation + 1, sized=in_step)


def _check_positive(number: int, name: str) -> None:
    if number < 1:
        raise ValueError(f"{name} must be at least 1 but is {number}; pass a positive integer.")


# --- Combinations ---------------------------------------------------------------------------------------------------


def combined_and(first: MaskRule, second: MaskRule) -> MaskRule:
    """Pairs that both rules allow; causal, window and padding stay parts that kernels know.

    Raises:
        ValueError: if the rules are for batches of different sizes.
    """
    rules = first, second
    batch = _common_batch(*rules)
    if any(rule.prefix is not None for rule in rules) and any(_looks_ahead(rule) for rule in rules):
        return _both(rules, MaskRule(), batch)
    windows = [rule.window for rule in rules if rule.window is not None]
    valid = [rule.key_valid for rule in rules if rule.key_valid is not None]
    documents = [rule.documents for rule in rules if rule.documents is not None]
    plain = MaskRule(
        # A causal window and one to both sides share the keys of the smaller, up to the diagonal.
        causal=first.causal or second.causal,
        window=min(windows, default=None),
        key_valid=None if not valid else valid[0] & valid[-1],
        prefix=_common_prefix(rules),
        documents=documents[0] if documents else None,
    )
    looked = [_without_plain_parts(rule) for rule in rules if rule.predicate is not None]
    looked += [MaskRule(documents=others) for others in documents[1:]]
    if not looked:
        return plain
    if len(looked) == 1 and looked[0].predicate is not None and not isinstance(looked[0], SizedRule):
        return replace(plain, predicate=looked[0].predicate, predicate_batch=looked[0].predicate_batch)
    return _both(looked, plain, batch)


def _both(rules: Sequence[MaskRule], plain: MaskRule, batch: int) -> SizedRule:
    """Pairs that all of ``rules`` and a rule without a predicate allow."""

    def both(items: Tensor, heads: Tensor, row: Tensor, column: Tensor, *, shift: int) -> Tensor:
        result = pairs_allowed(rules[0], items, heads, row, column, shift=shift)
        for rule in rules[1:]:
            result = result & pairs_allowed(rule, items, heads, row, column, shift=shift)
        return result

    return SizedRule(
        plain.causal,
        plain.window,
        plain.key_valid,
        predicate_batch=batch,
        prefix=plain.prefix,
        documents=plain.documents,
        sized=both,
    )


def _looks_ahead(rule: MaskRule) -> bool:
    """Whether it has a window to both sides, whose end a prefix would hide."""
    return rule.window is not None and not rule.causal


def _common_prefix(rules: Sequence[MaskRule]) -> Tensor | None:
    """Keys that are no future for any of the causal rules."""
    causal = [rule.prefix for rule in rules if rule.causal]
    known = [prefix for prefix in causal if prefix is not None]
    if not known or len(known) < len(causal):
        return None
    return torch.minimum(known[0], known[-1])


def combined_or(first: MaskRule, second: MaskRule) -> MaskRule:
    """Pairs that one of the rules allows, or both.

    Raises:
        ValueError: if the rules are for batches of different sizes.
    """
    if first.is_trivial or second.is_trivial:
        return MaskRule()

    def either(items: Tensor, heads: Tensor, row: Tensor, column: Tensor, *, shift: int) -> Tensor:
        found = [pairs_allowed(rule, items, heads, row, column, shift=shift) for rule in (first, second)]
        return found[0] | found[1]

    return SizedRule(predicate_batch=_common_batch(first, second), sized=either)


def negated(rule: MaskRule) -> MaskRule:
    """Pairs that the rule does not allow."""

    def neither(items: Tensor, heads: Tensor, row: Tensor, column: Tensor, *, shift: int) -> Tensor:
        return ~pairs_allowed(rule, items, heads, row, column, shift=shift)

    return SizedRule(predicate_batch=_common_batch(rule), sized=neither)


def _without_plain_parts(rule: MaskRule) -> MaskRule:
    if isinstance(rule, SizedRule):
        return SizedRule(predicate_batch=rule.predicate_batch, sized=rule.sized)
    return MaskRule(predicate=rule.predicate, predicate_batch=rule.predicate_batch)


def _common_batch(*rules: MaskRule) -> int:
    """How many items rules tell apart together."""
    sizes = {rule.predicate_batch for rule in rules}
    for numbers in ("key_valid", "prefix", "documents"):
        sizes |= {len(getattr(rule, numbers)) for rule in rules if getattr(rule, numbers) is not None}
    several = sorted(sizes - {1})
    if len(several) > 1:
        raise ValueError(
            f"combined rules must be for one batch but are for {several[0]} and {several[1]} items; "
            "build them for the same batch."
        )
    return several[0] if several else 1


# --- Share of allowed pairs -----------------------------------------------------------------------------------------


def allowed_share(rule: MaskRule, *, queries: int, keys: int) -> float:
    """Share of the Q · K pairs that may attend, the mean of the written-out mask; 1 − share is the work saved.

    Causal, window and padding parts are counted from the ends of each row, in O(Q + K). A predicate is asked in
    strips of queries, inside the band alone, and so are a prefix and documents.

    Raises:
        ValueError: if there are no queries or no keys.
    """
    _check_positive(queries, "allowed_share: queries")
    _check_positive(keys, "allowed_share: keys")
    batch = _common_batch(rule)
    if not rule.has_pair_parts:
        allowed = _count_in_band(rule, queries, keys)
    else:
        allowed = _count_in_strips(rule, queries, keys, batch)
    return allowed / (queries * keys * batch)


def _band_ends(rule: MaskRule, queries: int, keys: int) -> tuple[Tensor, Tensor]:
    """First key and the one after the last that the causal and window parts leave each query; (Q,) each."""
    device = None if rule.key_valid is None else rule.key_valid.device
    diagonal = torch.arange(queries, device=device) + (keys - queries)
    first, stop = torch.zeros_like(diagonal), torch.full_like(diagonal, keys)
    if rule.window is not None:
        first, stop = diagonal - rule.window + 1, diagonal + rule.window
    if rule.causal:
        stop = diagonal + 1
        if rule.prefix is not None:
            stop = stop.clamp(min=int(rule.prefix.max()))
    return first.clamp(0, keys), stop.clamp(0, keys)


def _count_in_band(rule: MaskRule, queries: int, keys: int) -> int:
    first, stop = _band_ends(rule, queries, keys)
    if rule.key_valid is None:
        return int((stop - first).sum())
    valid = torch.nn.functional.pad(
        rule.key_valid.long().cumsum(1), (1, 0)
    )  # (B, K + 1) valid keys before each
    return int((valid[:, stop] - valid[:, first]).sum())


def _count_in_strips(rule: MaskRule, queries: int, keys: int, batch: int) -> int:
    first, stop = _band_ends(rule, queries, keys)
    total, step = 0, strip_rows(batch, keys)
    for start in range(0, queries, step):
        rows = torch.arange(start, min(start + step, queries), device=first.device)
        columns = torch.arange(int(first[rows].min()), int(stop[rows].max()), device=first.device)
        if len(columns):
            block = rule.allowed(rows, columns, queries=queries, keys=keys)
            assert block is not None
            total += int(block.expand(batch, 1, len(rows), len(columns)).sum())
    return total
