"""The column beside a view of one layer: figures of its heads, and the strongest links of the pinned token."""

from __future__ import annotations

import numpy as np

from analysis.figure_data import Floats, TokenLabel
from analysis.visible import short_label
from dashboard.frame import heading, note, small_table
from dashboard.selection import TextChoices, active_heads
from dashboard.sources import TextSource

LINKS = 8
"""Most links of a pinned token that are listed."""


def show(source: TextSource, choices: TextChoices) -> None:
    """Draw the column."""
    info = source.part(choices.part)
    active = active_heads(choices, info.heads)
    numbers = source.numbers(choices.part, choices.layer)
    heading(f"Heads of layer {choices.layer}", "Averages over the query tokens, special tokens included")
    if active:
        words = "Entropy in nats: 0 looks at one token. Largest: a row's largest weight."
        columns = {"Entropy": (numbers.entropy, 2), "Largest": (numbers.max_weight, 2)}
        if choices.part != "cross":  # between two texts positions have no distance
            columns["Distance"] = (numbers.mean_distance, 1)
            words += " Distance in tokens."
        rows = [
            (str(head), *(f"{values[head]:.{digits}f}" for values, digits in columns.values()))
            for head in active
        ]
        small_table(("Head", *columns), rows)
        note(words)
    else:
        note("No head is switched on.")
    if choices.pinned is not None and active:
        _links(source, choices, active)


def _links(source: TextSource, choices: TextChoices, active: tuple[int, ...]) -> None:
    info = source.part(choices.part)
    assert choices.pinned is not None
    side, index = choices.pinned
    weights = pinned_weights(source, choices)[list(active)]  # (active, N)
    own, others = (info.rows, info.columns) if side == "left" else (info.columns, info.rows)
    verb = "looks at" if side == "left" else "is seen by"
    heading(
        f"{index} “{short_label(own[index].text)}” {verb}", "The strongest links of the heads that are on"
    )
    small_table(("Token", "Head", "Weight"), link_rows(weights, active, others))


def pinned_weights(source: TextSource, choices: TextChoices) -> Floats:
    """(H, N) weights of all heads between the pinned token and each token of the other side."""
    info = source.part(choices.part)
    assert choices.pinned is not None
    side, index = choices.pinned
    at = slice(index, index + 1)
    if side == "left":
        return source.block(choices.part, choices.layer, at, slice(0, len(info.columns)))[:, 0]
    return source.block(choices.part, choices.layer, slice(0, len(info.rows)), at)[..., 0]


def link_rows(
    weights: Floats, active: tuple[int, ...], others: tuple[TokenLabel, ...]
) -> list[tuple[str, str, str]]:
    """The strongest links as rows of a table: token with its index, head, weight to four digits."""
    order = np.argsort(weights, axis=None, kind="stable")[::-1][:LINKS]
    heads, tokens = np.unravel_index(order, weights.shape)
    return [
        (f"{token} {short_label(others[token].text)}", str(active[head]), f"{weights[head, token]:.4f}")
        for head, token in zip(heads, tokens, strict=True)
    ]
