"""Head view: lines between two columns of tokens, for the heads of one layer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from analysis.figure_data import Floats, HeadView
from dashboard import cached, figures
from dashboard.components import head_view, head_view_state
from dashboard.document_places import is_long, part_of, place_tools
from dashboard.frame import note
from dashboard.selection import TextChoices, active_heads, choose, current
from dashboard.sources import ALL_LAYERS_TOKENS, WORD_TOKENS, PartInfo, TextSource

KEY = "text_head_view"
OUTSIDE_TOLD = 0.005
"""Share of weight outside the shown part that a reader is told of."""


def tools(source: TextSource, choices: TextChoices) -> None:
    """Which part of a long text is shown; everything else is chosen inside the view."""
    info = source.part(choices.part)
    place_tools(info.rows, choices, length=max(len(info.rows), len(info.columns)))


def show(source: TextSource, choices: TextChoices) -> HeadView:
    """Draw the view; returns the record of what is on the screen."""
    info = source.part(choices.part)
    rows, columns = spans(info, choices)
    view = record(source, choices)
    every_layer = every_layer_of(source, choices)
    mergeable = choices.merge_words if _can_merge(source, info) else None
    chosen = (
        choices.part,
        view.layer,
        view.active,
        view.pinned,
        view.threshold,
        view.pair_filter,
        view.hide_special,
    )

    def build() -> bytes:
        all_layers = None if every_layer is None else every_layer()
        return figures.head_view_payload(view, all_layers=all_layers, merged=mergeable)

    payload = cached.payload(source.key, ("head", *chosen, rows.start, columns.start, mergeable), build)
    header, _ = figures.read_header(payload)
    offsets = {"left": rows.start, "right": columns.start}
    head_view(payload, key=KEY, on_change=partial(_said, header, offsets))
    told = outside_words(source, choices, view, rows, columns)
    if told:
        note(told)
    return view


def outside_words(
    source: TextSource, choices: TextChoices, view: HeadView, rows: slice, columns: slice
) -> str:
    """How much of the shown tokens' weight lies on keys that are not shown, and how much of it on special tokens."""
    info = source.part(choices.part)
    heads = list(view.active)
    if not heads or not is_long(len(info.columns)):
        return ""
    inside = float(view.weights[heads].sum(-1).mean())
    special = 0.0
    for place, token in enumerate(info.columns):
        if token.special and not columns.start <= place < columns.stop:
            special += float(
                source.block(choices.part, choices.layer, rows, slice(place, place + 1))[heads].mean()
            )
    outside = max(1.0 - inside, 0.0)
    if outside < OUTSIDE_TOLD:
        return ""
    on_special = f", {special:.0%} on special tokens" if special >= OUTSIDE_TOLD else ""
    return (
        f"Shown: tokens {rows.start:,}–{rows.stop - 1:,}. In the heads that are on, {outside:.0%} of their weight "
        f"lies on tokens that are not shown{on_special}. Pin a token to list its strongest links in the whole text."
    )


def record(source: TextSource, choices: TextChoices) -> HeadView:
    """The record of the view."""
    info = source.part(choices.part)
    rows, columns = spans(info, choices)
    return HeadView(
        weights=source.block(choices.part, choices.layer, rows, columns),
        left=info.rows[rows],
        right=info.columns[columns],
        layer=choices.layer,
        layers=info.layers,
        active=active_heads(choices, info.heads),
        pinned=_pinned_in(choices, rows, columns),
        threshold=choices.threshold,
        pair_filter=choices.pair_filter if _is_pair(info, choices) else "all",
        hide_special=choices.hide_special,
        direction=source.direction,
        kind=choices.part,
        starts=(rows.start, columns.start),
        groups=info.groups,
    )


def _is_pair(info: PartInfo, choices: TextChoices) -> bool:
    """Whether both sentences of a pair are among the tokens, so that a part of them can be asked for."""
    return choices.part != "cross" and {0, 1} <= {label.segment for label in info.rows}


def spans(info: PartInfo, choices: TextChoices) -> tuple[slice, slice]:
    """Query and key tokens that are shown: all of a short text, a window of a long one."""

    return part_of(len(info.rows), choices.window), part_of(len(info.columns), choices.window)


def _pinned_in(choices: TextChoices, rows: slice, columns: slice) -> Any:
    if choices.pinned is None:
        return None
    side, index = choices.pinned
    span = rows if side == "left" else columns
    return (side, index - span.start) if span.start <= index < span.stop else None


def every_layer_of(source: TextSource, choices: TextChoices) -> Callable[[], Floats] | None:
    """What gives (L, H, Q, K) weights of all layers of a short text; None for a longer one."""
    info = source.part(choices.part)
    if max(len(info.rows), len(info.columns)) > ALL_LAYERS_TOKENS:
        return None
    rows, columns = spans(info, choices)
    blocks = (partial(source.block, choices.part, layer, rows, columns) for layer in range(info.layers))
    return partial(_stacked, tuple(blocks))


def _stacked(blocks: Sequence[Callable[[], Floats]]) -> Floats:
    import numpy as np

    return np.stack([block() for block in blocks])


def _can_merge(source: TextSource, info: PartInfo) -> bool:
    return source.live and max(len(info.rows), len(info.columns)) <= WORD_TOKENS


def _said(header: Mapping[str, Any], offsets: Mapping[str, int]) -> None:
    """Take over what the user chose inside the view."""
    said = head_view_state(header, key=KEY)
    choices = current().text
    changes: dict[str, Any] = {}
    for name, own in (
        ("layer", "layer"),
        ("threshold", "threshold"),
        ("filter", "pair_filter"),
        ("hide_special", "hide_special"),
        ("merge_words", "merge_words"),
    ):
        if name in said:
            changes[own] = said[name]
    if "heads" in said:
        everyone = len(said["heads"]) == header["heads"]
        changes["heads"] = None if everyone else tuple(said["heads"])
    if "pinned" in said:
        pinned = said["pinned"]
        changes["pinned"] = None if pinned is None else (pinned[0], pinned[1] + offsets[pinned[0]])
    if changes.get("merge_words", choices.merge_words) != choices.merge_words:
        changes |= {"pinned": None, "zoom": None, "cell": None}
    choose("text", **changes)
