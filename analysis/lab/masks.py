"""Rules and mods as the reader combines them, and what they do to the weights of a head.

Masks are ``attn_core.mask_rules``, mods ``attn_core.variants.flex`` (Dong et al. 2024); what is written here is only
how choices become rules, and how the numbers are laid out and told.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from analysis.figure_lab import MatrixScale, MatrixSheet, NamedMatrix
from analysis.lab.expression import first_unusable, parse
from analysis.lab.inputs import LabVectors
from attn_core import mask_rules
from attn_core.bias import RelativeBias
from attn_core.masks import MaskRule
from attn_core.scores import scaled_dot_scores
from attn_core.variants import flex
from attn_core.variants.flex import ScoreMod, flex_reference, mask_of_rule

Matrix = NDArray[np.float64]
ModName = Literal["none", "alibi", "soft_cap", "relative", "typed"]

BIAS_SEED = 0
"""Of the table of relative biases, which stands for a learned one."""


# Rules --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RuleChoice:
    """Which rules are combined, and how.

    Attributes:
        rules: names of ``RULES``, in the order in which they are written; none = every pair.
        joined: "and": pairs that all rules allow; "or": pairs that one of them allows.
        negate: the combination is turned round.
        window: keys nearer than this on both sides; of the dilated rule the steps on each side, own key included.
        prefix: keys that everyone sees, the first ones; beyond them attention is causal.
        padded: keys at the end that nobody sees.
        documents: sequences of nearly equal lengths that are packed into one.
        block: positions of a block of the block-sparse rule.
        stride: distance of neighbours in the dilated window.
    """

    rules: tuple[str, ...] = ("causal",)
    joined: str = "and"
    negate: bool = False
    window: int = 4
    prefix: int = 3
    padded: int = 2
    documents: int = 2
    block: int = 4
    stride: int = 2

    def rule(self, tokens: int) -> MaskRule:
        """The combination for a sequence of so many tokens.

        Raises:
            ValueError: for an unknown rule or without tokens.
        """
        if tokens < 1 or not set(self.rules) <= set(RULES):
            raise ValueError(
                f"RuleChoice.rule: tokens must be at least 1 and rules of {', '.join(RULES)} but are {tokens} and "
                f"{', '.join(self.rules)}; choose from these."
            )
        made = [RULES[name](self, tokens) for name in self.rules]
        if self.joined == "or":
            whole = reduce(mask_rules.combined_or, made) if made else MaskRule()
        else:
            whole = reduce(mask_rules.combined_and, made, MaskRule())
        return mask_rules.negated(whole) if self.negate else whole

    @property
    def in_words(self) -> str:
        """Such as "causal & window 4", or "not (window 4 | document 2)"."""
        parts = [_RULE_WORDS[name].format(**vars(self)) for name in self.rules]
        said = (" & " if self.joined == "and" else " | ").join(parts) or "every pair"
        if not self.negate:
            return said
        return f"not ({said})" if len(parts) != 1 else f"not {said}"


def document_numbers(tokens: int, documents: int) -> Tensor:
    """(1, N) which of some documents of nearly equal lengths each token belongs to; fewer where tokens are few."""
    return (torch.arange(tokens) * documents // tokens)[None]


def _block_layout(blocks: int) -> Tensor:
    """(blocks, blocks) bool: a block sees itself and the first one, as the local and global blocks of BigBird."""
    layout = torch.eye(blocks, dtype=torch.bool)
    layout[:, 0] = True
    return layout


def _block_rule(choice: RuleChoice, tokens: int) -> MaskRule:
    return mask_rules.block_sparse_rule(
        _block_layout(math.ceil(tokens / choice.block)), block_size=choice.block
    )


RULES: dict[str, Callable[[RuleChoice, int], MaskRule]] = {
    "causal": lambda choice, tokens: mask_rules.causal_rule(),
    "window": lambda choice, tokens: mask_rules.window_rule(choice.window, causal=False),
    "prefix": lambda choice, tokens: mask_rules.prefix_rule(choice.prefix),
    "padding": lambda choice, tokens: mask_rules.padding_rule(
        torch.tensor([tokens - choice.padded]), keys=tokens
    ),
    "document": lambda choice, tokens: mask_rules.document_rule(document_numbers(tokens, choice.documents)),
    "block": _block_rule,
    "dilated": lambda choice, tokens: mask_rules.dilated_rule(
        choice.window, dilation=choice.stride, causal=False
    ),
}
"""Name → builder; "window" and "dilated" look to both sides, and with "causal" back alone."""

_RULE_WORDS = {
    "causal": "causal",
    "window": "window {window}",
    "prefix": "prefix {prefix}",
    "padding": "padding {padded}",
    "document": "{documents} documents",
    "block": "blocks of {block}",
    "dilated": "dilated window {window} by {stride}",
}


def written_out(rule: MaskRule, tokens: int) -> NDArray[np.bool_]:
    """(N, N) which pairs may attend."""
    places = torch.arange(tokens)
    allowed = rule.allowed(places, places, queries=tokens, keys=tokens)
    if allowed is None:
        return np.ones((tokens, tokens), dtype=bool)
    found: NDArray[np.bool_] = allowed.expand(1, 1, tokens, tokens)[0, 0].numpy().copy()
    return found


# Mods ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ModChoice:
    """What is done to the scores.

    Attributes:
        name: of the mod.
        cap: of the soft cap.
        typed: expression of the reader's own (``analysis.lab.expression``).
    """

    name: ModName = "none"
    cap: float = 2.0
    typed: str = ""

    def score_mod(self, *, heads: int, tokens: int, width: int) -> ScoreMod | None:
        """The mod for self-attention of these sizes; None leaves the scores.

        Raises:
            ExpressionError: if the typed expression cannot be read.
            ValueError: for a cap that is not above 0.
        """
        if self.name == "alibi":
            return flex.alibi(heads)
        if self.name == "soft_cap":
            return flex.soft_cap(self.cap)
        if self.name == "relative":
            return flex.relative_bias(random_bias(heads, tokens))
        if self.name == "typed":
            return parse(self.typed).score_mod(heads=heads, queries=tokens, keys=tokens, width=width)
        return None

    @property
    def in_words(self) -> str:
        """Such as "soft cap 2"."""
        return {
            "none": "none",
            "alibi": "ALiBi",
            "soft_cap": f"soft cap {self.cap:g}",
            "relative": "relative bias",
            "typed": self.typed,
        }[self.name]


def random_bias(heads: int, tokens: int) -> RelativeBias:
    """A number for each head and each key − query, standard normal, where a model would have learned one."""
    generator = torch.Generator().manual_seed(BIAS_SEED)
    table = torch.randn(1, heads, 2 * tokens - 1, generator=generator, dtype=torch.float64)
    return RelativeBias.of(table, queries=tokens, keys=tokens)


@dataclass(frozen=True)
class UnusableScore:
    """A pair for which a mod gives NaN or +∞.

    Attributes:
        query, key: the first such pair that may attend; ``score``: before the mod, ``changed``: after it.
    """

    query: int
    key: int
    score: float
    changed: float

    @property
    def sentence(self) -> str:
        """What the page says."""
        what = "+∞" if self.changed > 0 else "no number"
        score = f"{self.score:.4g}".replace("-", "−")
        return (
            f"The mod gives {what} for query {self.query} and key {self.key}, whose score is {score}; a score may "
            "be a number, or −∞ to forbid the pair."
        )


@dataclass(frozen=True, eq=False)
class ModifiedAttention:
    """One head under a rule and a mod, float64.

    Attributes:
        allowed: (N, N) pairs that the rule allows.
        scores: (N, N) scaled, before mod and mask.
        changed: (N, N) what the softmax sees: after the mod, −∞ where the rule or the mod forbids a pair.
        weights: (N, N) its softmax; a row with nothing allowed is 0.
        unmodified: (N, N) weights under the rule without the mod.
        tokens: N labels; ``source``: where the vectors come from; ``notes``: what a reader must know.
    """

    allowed: NDArray[np.bool_]
    scores: Matrix
    changed: Matrix
    weights: Matrix
    unmodified: Matrix
    tokens: tuple[str, ...]
    source: str
    notes: tuple[str, ...] = ()

    @property
    def empty_rows(self) -> tuple[int, ...]:
        """Queries that see nothing."""
        return tuple(np.flatnonzero(np.isneginf(self.changed).all(axis=1)).tolist())


def modified_attention(
    vectors: LabVectors, head: int, rule: MaskRule, mod: ModChoice
) -> ModifiedAttention | UnusableScore:
    """One head's scores and weights under a rule and a mod.

    Args:
        vectors: of all heads, so that the mod knows how many there are.
        head: that is computed; the mod sees its own number.
    Returns:
        The numbers, or the first pair for which the mod gives none.
    Raises:
        ExpressionError, ValueError: if there is no such head, or the mod cannot be made.
    """
    heads, tokens, width = vectors.query.shape
    score_mod = mod.score_mod(heads=heads, tokens=tokens, width=width)
    one = vectors.head(head)
    query, key, value = (part[None].double() for part in (one.query, one.key, one.value))
    scores = scaled_dot_scores(query, key)  # (1, 1, N, N)
    of_head = None if score_mod is None else _for_head(score_mod, head)
    places = torch.arange(tokens)
    allowed = torch.from_numpy(written_out(rule, tokens))
    changed = scores
    if of_head is not None:
        indices = torch.meshgrid(torch.tensor([0]), torch.tensor([0]), places, places, indexing="ij")
        changed = of_head(scores, *indices)
    place = first_unusable(changed, allowed)
    if place is not None:
        return UnusableScore(place[2], place[3], float(scores[place]), float(changed[place]))
    mask_mod = mask_of_rule(rule)
    return ModifiedAttention(
        allowed=allowed.numpy(),
        scores=_plain(scores),
        changed=_plain(changed.masked_fill(~allowed, -math.inf)),
        weights=_plain(flex_reference(query, key, value, score_mod=of_head, mask_mod=mask_mod).weights),
        unmodified=_plain(flex_reference(query, key, value, mask_mod=mask_mod).weights),
        tokens=one.tokens,
        source=one.source,
        notes=one.notes,
    )


def _for_head(mod: ScoreMod, head: int) -> ScoreMod:
    """A mod for a map that holds this head alone."""

    def moved(score: Tensor, batch: Tensor, of: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return mod(score, batch, of + head, query, key)

    return moved


def _plain(tensor: Tensor) -> Matrix:
    """(1, 1, N, N) to (N, N)."""
    found: Matrix = tensor[0, 0].numpy().copy()
    return found


def in_words(found: ModifiedAttention) -> tuple[str, ...]:
    """What rule and mod do, told from the numbers."""
    return tuple(filter(None, (_left_in_words(found), _empty_in_words(found), _moved_in_words(found))))


def _left_in_words(found: ModifiedAttention) -> str:
    pairs, left = found.allowed.size, int(found.allowed.sum())
    if left == pairs:
        return f"The rule allows all {pairs:,} pairs."
    if left == 0:
        return f"The rule allows none of {pairs:,} pairs."
    return f"The rule allows {left:,} of {pairs:,} pairs ({percent(left / pairs)})."


def _empty_in_words(found: ModifiedAttention) -> str:
    rows = found.empty_rows
    if not rows:
        return "Every query sees at least one key."
    if len(rows) == len(found.tokens):
        return "No query sees any key: all weights and outputs are 0."
    if len(rows) == 1:
        return f"Query {_token_name(found, rows[0])} sees no key: its weights and its output are 0."
    listed = ", ".join(_token_name(found, row) for row in rows[:4])
    more = f" and {len(rows) - 4} more" if len(rows) > 4 else ""
    return f"{len(rows)} queries see no key ({listed}{more}): their weights and outputs are 0."


def _token_name(found: ModifiedAttention, row: int) -> str:
    label = found.tokens[row]
    return str(row) if label == str(row) else f"{row} “{label}”"


STILL = 1e-9
"""Share of a row's weight below which a mod is said to move none."""


def moved_weight(found: ModifiedAttention) -> Matrix:
    """(N,) share of each row's weight that the mod moves to other keys, ½ Σ |difference|; a row that it empties
    loses half of what it had by this measure, which counts as 1."""
    moved: Matrix = 0.5 * np.abs(found.weights - found.unmodified).sum(axis=1)
    emptied = (found.weights.sum(axis=1) == 0) & (found.unmodified.sum(axis=1) > 0)
    return np.where(emptied, 1.0, moved)


def _moved_in_words(found: ModifiedAttention) -> str:
    reachable = found.unmodified.sum(axis=1) > 0
    if np.array_equal(found.changed, np.where(found.allowed, found.scores, -np.inf)) or not reachable.any():
        return ""
    moved = moved_weight(found)[reachable]
    if moved.max() < STILL:
        return (
            "The mod moves no weight: what it adds is the same for all keys of a row, and the softmax takes that "
            "away."
        )
    most = int(np.flatnonzero(reachable)[moved.argmax()])
    return (
        f"The mod moves {percent(float(moved.mean()))} of a row's weight to other keys on average, most in row "
        f"{_token_name(found, most)} ({percent(float(moved.max()))})."
    )


def percent(share: float) -> str:
    """A share as a percentage: whole from 10 on, never rounded to 0 or 100 where it is not."""
    value = 100 * share
    if value in (0.0, 100.0):
        return f"{value:.0f} %"
    if value >= 99.5:
        return "more than 99.9 %" if value > 99.9 else f"{value:.1f} %"
    if value >= 10:
        return f"{value:.0f} %"
    return f"{value:.2g} %" if value >= 0.01 else "less than 0.01 %"


def matrix_sheet(found: ModifiedAttention, rule: RuleChoice, mod: ModChoice) -> MatrixSheet:
    """Mask, scores, scores after the mod and weights, side by side."""
    finite = np.abs(found.changed[np.isfinite(found.changed)])
    limit = max(float(np.abs(found.scores).max()), float(finite.max(initial=0.0))) or 1.0
    after = "no mod" if mod.name == "none" else mod.in_words
    return MatrixSheet(
        (
            pair_matrix("Mask", found.allowed.astype(float), found.tokens, "mask", note=rule.in_words),
            pair_matrix("Scores", found.scores, found.tokens, "signed", note="QKᵀ/√dₖ", limit=limit),
            pair_matrix("After mod and mask", found.changed, found.tokens, "signed", note=after, limit=limit),
            pair_matrix("Weights", found.weights, found.tokens, "weights", note=_sums_in_words(found)),
        ),
        title="Mask, scores and weights",
        notes=found.notes,
        across=4,
    )


def pair_matrix(
    name: str,
    values: Matrix,
    tokens: tuple[str, ...],
    scale: MatrixScale,
    *,
    note: str,
    limit: float | None = None,
) -> NamedMatrix:
    """A picture of all pairs of tokens, queries down and keys across."""
    return NamedMatrix(name, values, tokens, tokens, scale, limit, note, ("query", "key"))


def _sums_in_words(found: ModifiedAttention) -> str:
    return "rows sum to 1" if not found.empty_rows else "rows sum to 1, or are 0"
