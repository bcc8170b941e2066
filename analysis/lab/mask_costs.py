"""What a rule saves: the pairs that it forbids, and the blocks that a flash-like kernel may therefore skip.

Counted by asking the rule (``attn_core.masks.MaskRule.allowed``); operations are those of ``attn_core.cost``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from analysis.figure_lab import Curve, CurvePanel, CurveSheet
from analysis.lab.masks import RuleChoice, percent
from attn_core.cost import AttentionShape, written_out_cost
from attn_core.masks import MaskRule

BLOCK = 128
"""Queries and keys of a block that a flash-like kernel computes or skips as a whole."""

LENGTHS = (256, 512, 1024, 2048, 4096)
"""Sequence lengths at which a rule's work is counted; the rule is asked, no array of all pairs is made."""


@dataclass(frozen=True)
class RuleCost:
    """What a rule leaves of the work at one sequence length.

    Attributes:
        tokens: N.
        pairs: share of the N² pairs that may attend, as ``attn_core.mask_rules.allowed_share``.
        blocks: share of the pairs that lie in blocks of ``BLOCK`` × ``BLOCK`` with an allowed pair; a flash-like
            kernel computes these and skips the others.
        flops: of the matrix products over all pairs, all heads of one layer, forward.
    """

    tokens: int
    pairs: float
    blocks: float
    flops: int


def rule_cost(rule: MaskRule, tokens: int, *, heads: int, width: int) -> RuleCost:
    """Count what a rule leaves, a strip of ``BLOCK`` queries at a time: O(N · ``BLOCK``) memory.

    Raises:
        ValueError: for a size below 1.
    """
    shape = AttentionShape(1, heads, heads, tokens, tokens, width, width)
    columns = torch.arange(tokens)
    pairs = computed = 0
    for start in range(0, tokens, BLOCK):
        rows = torch.arange(start, min(start + BLOCK, tokens))
        allowed = rule.allowed(rows, columns, queries=tokens, keys=tokens)
        if allowed is None:
            pairs += len(rows) * tokens
            computed += len(rows) * tokens
            continue
        strip = allowed.expand(1, 1, len(rows), tokens)[0, 0]
        pairs += int(torch.count_nonzero(strip))
        seen = torch.split(strip.any(0), BLOCK)  # keys of each block that some query of the strip sees
        computed += len(rows) * sum(len(part) for part in seen if bool(part.any()))
    whole = tokens * tokens
    return RuleCost(tokens, pairs / whole, computed / whole, written_out_cost(shape).flops)


def rule_costs(choice: RuleChoice, *, heads: int, width: int) -> tuple[RuleCost, ...]:
    """What the rule leaves at each of ``LENGTHS``, sizes as they are chosen."""
    return tuple(rule_cost(choice.rule(count), count, heads=heads, width=width) for count in LENGTHS)


def cost_sheet(here: RuleCost, longer: Sequence[RuleCost], choice: RuleChoice) -> CurveSheet:
    """What is left of the work for the sequence shown and the longest one, and FLOPs against n."""
    pairs, blocks = "allowed pairs", f"{BLOCK}-blocks that are not skipped"
    ends = (here, longer[-1])
    labels = tuple(f"n = {cost.tokens:,}" for cost in ends)
    n = np.array([cost.tokens for cost in longer], dtype=float)

    def bars(name: str, share: Callable[[RuleCost], float], hue: int) -> Curve:
        left = np.array([100 * share(cost) for cost in ends])
        return Curve(name, np.arange(len(ends), dtype=float), left, style="bars", hue=hue, labels=labels)

    def flops(name: str, share: Callable[[RuleCost], float], hue: int) -> Curve:
        left = np.array([cost.flops * share(cost) for cost in longer])
        return Curve(name, n, np.where(left > 0, left, np.nan), hue=hue)

    dense = Curve(
        "all pairs (n²)", n, np.array([float(cost.flops) for cost in longer]), style="dashed", hue=1
    )
    return CurveSheet(
        (
            CurvePanel(
                "What is left of the work",
                "",
                "% of all pairs",
                (bars(pairs, lambda cost: cost.pairs, 0), bars(blocks, lambda cost: cost.blocks, 2)),
            ),
            CurvePanel(
                "FLOPs of one layer",
                "tokens n",
                "FLOPs, forward",
                (dense, flops(blocks, lambda cost: cost.blocks, 2), flops(pairs, lambda cost: cost.pairs, 0)),
                log_x=True,
                log_y=True,
            ),
        ),
        title=f"Cost of {choice.in_words}",
    )


def cost_in_words(here: RuleCost, longest: RuleCost) -> tuple[str, ...]:
    """What the rule saves, at the sequence shown and at the longest length."""
    saved, dense = round(here.flops * (1 - here.pairs)), here.flops
    first = (
        f"At n = {here.tokens} the rule saves {amount(saved)} of {amount(dense)} FLOPs "
        f"({percent(1 - here.pairs)}) if pairs are skipped one by one."
    )
    second = (
        f"At n = {longest.tokens:,} it forbids {percent(1 - longest.pairs)} of the pairs, and a kernel that skips "
        f"whole {BLOCK} × {BLOCK} blocks saves {percent(1 - longest.blocks)} of the work."
    )
    if longest.pairs == 1:
        second = f"At n = {longest.tokens:,} it saves nothing{'' if saved else ' either'}."
    elif longest.blocks == 1:
        second = (
            f"At n = {longest.tokens:,} it forbids {percent(1 - longest.pairs)} of the pairs, but every "
            f"{BLOCK} × {BLOCK} block holds an allowed one, so a kernel that skips whole blocks saves nothing."
        )
    return (first if saved else f"At n = {here.tokens} the rule saves nothing.", second)


def amount(number: float) -> str:
    """A count with its unit, such as "1.2 G"."""
    for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:.3g}"
