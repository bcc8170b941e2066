"""Statistics of every head of a layer, in one pass over the pieces of its map: ``measure``.

Most statistics are a mean over queries of the weight that lies on keys of some kind, so a piece is one product of its
weights with a few columns that say which keys these are. No n × n array is made beyond a piece. ``STATISTICS`` says
what each number is; a head's value over several texts is the mean over all their queries.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from analysis.heads.positions import Layout, Side
from analysis.heads.streamed import (
    Add,
    Likeness,
    RowNumbers,
    is_regular,
    visible_keys,
    walk_picture,
    walk_text,
)
from attn_core.factored import FactoredMap
from attn_core.maps import AttentionMap

OFFSETS = tuple(range(-5, 6))
"""Key − query; 0 is the token itself, −1 the previous one."""

NEAR = 3
"""A key is near if it is at most so many tokens away."""

SHIFTS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {"self": (0, 0), "left": (0, -1), "right": (0, 1), "up": (-1, 0), "down": (1, 0)}
)
"""Neighbours of a patch: (rows down, columns right)."""

Modality = Literal["text", "picture", "both"]
Queries = Literal["own", "all"]


@dataclass(frozen=True)
class Statistic:
    """What a number of a head is.

    Attributes:
        key, title: for programs and for readers.
        meaning: one sentence.
        unit: "share" (0 to 1), "nats", "keys", "tokens", "pixels" or "correlation".
        modality: of the inputs that have it.
        source: where it was first used.
    """

    key: str
    title: str
    meaning: str
    unit: str
    modality: Modality = "both"
    source: str = ""


def _offset_title(offset: int) -> str:
    named = {0: "self", -1: "previous token", 1: "next token"}
    return named.get(offset, f"token {offset:+d}".replace("-", "−"))


_CLARK, _VOITA, _VIT = (
    "Clark et al. 2019, section 3",
    "Voita et al. 2019, section 5",
    "Dosovitskiy et al. 2021, D.7",
)

_ALL: tuple[Statistic, ...] = (
    Statistic("entropy", "Entropy", "Entropy of a query's weights.", "nats", source=_CLARK),
    Statistic(
        "relative_entropy", "Relative entropy", "Entropy as a share of that of equal weights.", "share"
    ),
    Statistic("effective_keys", "Effective keys", "Exponential of the entropy.", "keys"),
    Statistic("max_weight", "Largest weight", "Weight of a query's strongest key.", "share"),
    Statistic(
        "confidence", "Confidence", "The same, separators left out.", "share", source="Voita et al. 2019, section 4"
    ),
    *(
        Statistic(
            f"offset{offset:+d}", _offset_title(offset).capitalize(), f"Weight on the {_offset_title(offset)}.",
            "share", "text", _CLARK,
        )
        for offset in OFFSETS
    ),
    *(
        Statistic(
            f"strongest{offset:+d}",
            f"Strongest: {_offset_title(offset)}",
            f"Share of queries whose strongest key is the {_offset_title(offset)}.",
            "share",
            "text",
            f"{_VOITA}.1",
        )
        for offset in OFFSETS
    ),
    Statistic("first", "First token", "Weight on the first position.", "share", "text", "Xiao et al. 2024"),
    Statistic("classifier", "CLS", "Weight on CLS.", "share", source=_CLARK),
    Statistic("separator", "Separators", "Weight on separators and ends of text.", "share", "text", _CLARK),
    Statistic("punctuation", "Punctuation", "Weight on punctuation marks.", "share", "text", _CLARK),
    Statistic(
        "same_token", "Same token", "Weight on the same token elsewhere, of queries that have one.", "share", "text"
    ),
    Statistic(
        "same_token_chance", "Same token, chance", "What equal weights would put there.", "share", "text"
    ),
    Statistic(
        "induction",
        "Induction",
        "Weight on the token after an earlier copy of the query, of queries that have one.",
        "share",
        "text",
        "Olsson et al. 2022",
    ),
    Statistic("induction_chance", "Induction, chance", "What equal weights would put there.", "share", "text"),
    Statistic(
        "rarest", "Rarest token",
        "Share of queries whose strongest key, separators left out, is the text's rarest token.",
        "share", "text", f"{_VOITA}.3",
    ),
    Statistic("rarest_weight", "Rarest token, weight", "Weight on the text's rarest token.", "share", "text"),
    Statistic("same_segment", "Own segment", "Weight inside the query's own segment.", "share", "text"),
    Statistic("same_segment_chance", "Own segment, chance", "What equal weights would put there.", "share", "text"),
    Statistic("near", f"Near (≤ {NEAR})", f"Weight on tokens at most {NEAR} away, itself included.", "share", "text"),
    Statistic("near_chance", "Near, chance", "What equal weights would put there.", "share", "text"),
    Statistic("distance", "Distance", "Mean distance of what is attended to, in tokens.", "tokens", "text"),
    Statistic(
        "direction", "Direction", "Mean of key − query position: below 0 it looks back.", "tokens", "text"
    ),
    Statistic(
        "column",
        "Strongest column",
        "Mean weight on the one token, or patch, that gets most (no special token, no punctuation).",
        "share",
    ),
    Statistic(
        "any_column", "Strongest column of all", "The same, whatever the token is.", "share", "text",
        "Kovaleva et al. 2019, section 4.1",
    ),
    Statistic("register", "Registers", "Weight on register tokens.", "share", "picture", "Darcet et al. 2024"),
    Statistic("patches", "Patches", "Weight on patches.", "share", "picture"),
    *(
        Statistic(
            f"patch_{name}", f"Patch {name}", f"Weight on the patch {'itself' if name == 'self' else name}.",
            "share", "picture",
        )
        for name in SHIFTS
    ),
    Statistic("row", "Same row", "Weight on other patches of the row, of the weight on patches.", "share", "picture"),
    Statistic("row_chance", "Same row, chance", "What equal weights would put there.", "share", "picture"),
    Statistic(
        "grid_column", "Same column", "Weight on other patches of the column, of the weight on patches.",
        "share", "picture",
    ),
    Statistic("grid_column_chance", "Same column, chance", "What equal weights would put there.", "share", "picture"),
    Statistic(
        "pixels", "Mean distance", "Mean distance of patches that are attended to, in pixels.",
        "pixels", "picture", _VIT,
    ),
    Statistic("pixels_chance", "Mean distance, chance", "The same with equal weights.", "pixels", "picture"),
    Statistic(
        "content",
        "Content similarity",
        "Correlation of a patch's weights with the likeness of the patches (cosine of the layer's inputs).",
        "correlation",
        "picture",
    ),
    Statistic(
        "sink_patches",
        "High-norm patches",
        "Weight on patches whose input to the layer is far longer than the others'.",
        "share",
        "picture",
        "Darcet et al. 2024",
    ),
)  # fmt: skip

STATISTICS: Mapping[str, Statistic] = MappingProxyType({entry.key: entry for entry in _ALL})
"""Every statistic by key, in the order in which a reader meets them."""


@dataclass(frozen=True, eq=False)
class Sums:
    """Statistics of a batch before the mean is taken, so that batches add up.

    Attributes:
        totals: (B, H) by key of ``STATISTICS``.
        counts: (B,) by the same keys: how many queries (or texts) each total is over.
    """

    totals: Mapping[str, Tensor]
    counts: Mapping[str, Tensor]

    def means(self) -> dict[str, Tensor]:
        """(B, H) by key; NaN where nothing was counted."""
        return {key: total / self.counts[key][:, None] for key, total in self.totals.items()}


@dataclass
class _Gathered:
    totals: dict[str, Tensor] = field(default_factory=dict)
    counts: dict[str, Tensor] = field(default_factory=dict)

    def add(self, key: str, total: Tensor, count: Tensor) -> None:
        self.totals[key] = self.totals[key] + total if key in self.totals else total
        self.counts[key] = self.counts[key] + count if key in self.counts else count


def measure(
    layer: AttentionMap,
    layout: Layout,
    *,
    queries: Queries = "own",
    smoothing: float = 0.0,
    hidden: Tensor | None = None,
) -> Sums:
    """Statistics of the heads of one layer, for each item of its batch.

    Args:
        layer: padding may be among its positions if ``layout`` says so; windows and bands hold one item.
        layout: what its positions are.
        queries: "own" leaves special tokens and prefixes out of the queries, as Voita et al. do; with "all" they
            count, as Clark et al. have it. Keys are all of them in either case.
        smoothing: of the entropies: of (1 − s) · weights + s / keys (Clark et al. take 1e-4).
        hidden: (B, N, M) what enters the layer, for the likeness and the length of patches.
    Raises:
        ValueError: if map and layout have different sizes.
    """
    expected = (layout.rows.valid.shape[0], layout.rows.count, layout.columns.count)
    if (layer.batch, layer.queries, layer.keys) != expected:
        raise ValueError(
            f"measure: the map is (batch, queries, keys) {(layer.batch, layer.queries, layer.keys)} but its layout "
            f"{expected}; pass the layout of the same inputs."
        )
    found = _Gathered()
    asking = layout.rows.own if queries == "own" else layout.rows.valid
    asking = asking.to(torch.float32)
    pictured = None if hidden is None or not layout.picture else _patch_likeness(hidden, layout.columns)
    if isinstance(layer, FactoredMap) and not smoothing and _is_walked(layer, layout):
        received = _walked(found, layer, layout, asking, pictured)
    else:
        received = _in_pieces(found, layer, layout, asking, pictured, smoothing)
    _on_kinds(found, layout, received, asking)
    _columns(found, layout, received, asking)
    return Sums(MappingProxyType(found.totals), MappingProxyType(found.counts))


def _in_pieces(
    found: _Gathered,
    layer: AttentionMap,
    layout: Layout,
    asking: Tensor,
    likeness: _Likeness | None,
    smoothing: float,
) -> Tensor:
    """All that ``measure`` asks of rows, from pieces of the map; returns (B, H, K) what the keys received."""
    received = torch.zeros(layer.batch, layer.heads, layer.keys)
    for rows, columns, piece in layer.pieces():
        weights = piece.to("cpu", torch.float32)
        block = _Block(layout, rows, columns, asking[:, rows], weights)
        _spread(found, block, smoothing)
        if layout.picture:
            _on_grid(found, block, likeness)
        else:
            _on_order(found, block)
        received[:, :, columns] += (block.asking[:, None, None] @ weights)[:, :, 0]
    return received


WALKED_KEYS = 384
"""From so many keys on one input's factored map is read tile by tile, which pays where strips leave the cache."""


def _is_walked(layer: FactoredMap, layout: Layout) -> bool:
    on_cpu = layer.query.device.type == "cpu"  # the layout, and the numbers of each row, are there
    return on_cpu and layer.batch == 1 and layer.keys >= WALKED_KEYS and is_regular(layout.columns)


def _walked(
    found: _Gathered, layer: FactoredMap, layout: Layout, asking: Tensor, likeness: _Likeness | None
) -> Tensor:
    """All that ``measure`` asks of rows, from one walk over the tiles; returns (1, H, K) what the keys received."""

    def add(key: str, total: Tensor, count: Tensor) -> None:
        found.add(key, total.to(torch.float32), count.to(torch.float32))

    own = asking[0].double()
    if layout.picture:
        pictured = None
        if likeness is not None:
            patches = layout.columns.own[0]
            pictured = Likeness(likeness.directions[0] * patches[:, None], likeness.long[0])
        numbers = walk_picture(layer, layout, own, SHIFTS, pictured, add)
    else:
        numbers = walk_text(layer, layout, own, OFFSETS, NEAR, add)
    _spread_of_rows(layout, asking, numbers, add)
    return numbers.received[None].to(torch.float32)


def _spread_of_rows(layout: Layout, asking: Tensor, numbers: RowNumbers, add: Add) -> None:
    """``_spread`` of rows whose sums are there."""
    own, count = asking[0].double(), asking.sum(1)
    seen = visible_keys(layout)
    choice = own * (seen > 1)
    add("relative_entropy", (numbers.entropy / seen.clamp(min=2).log() @ choice)[None], choice.sum()[None])
    rows = {
        "entropy": numbers.entropy,
        "effective_keys": numbers.entropy.exp(),
        "max_weight": numbers.largest,
        "confidence": numbers.largest_open,
    }
    if not layout.picture and bool(layout.columns.rarest.any()):
        rows["rarest"] = layout.columns.rarest[0][numbers.strongest_open].double()
    if not layout.picture and layout.square:
        offset = numbers.strongest - torch.arange(layout.rows.count)
        rows |= {f"strongest{each:+d}": (offset == each).double() for each in OFFSETS}
    for name, values in rows.items():
        add(name, (values @ own)[None], count)


@dataclass(frozen=True, eq=False)
class _Block:
    """A piece of a map, and which of its queries count.

    Attributes:
        rows, columns: (r,) and (c,) positions.
        asking: (B, r), 1 for a query that counts.
        weights: (B, H, r, c).
    """

    layout: Layout
    rows: Tensor
    columns: Tensor
    asking: Tensor
    weights: Tensor

    @property
    def counted(self) -> Tensor:
        """(B,) queries that count; those that may see nothing are among them."""
        return self.asking.sum(1)

    def visible(self) -> Tensor:
        """(B, r, c) 1 where the query may see the key, by padding and order of a decoder."""
        keys = self.layout.columns.valid[:, None, self.columns].to(torch.float32)
        if self.layout.kind != "decoder":
            return keys.expand(-1, len(self.rows), -1)
        return keys * (self.columns <= self.rows[:, None])

    def add_rows(self, found: _Gathered, rows: Mapping[str, Tensor]) -> None:
        """Add numbers (B, H, r) of each query, summed over those that count."""
        totals = torch.einsum("fbhr,br->fbh", torch.stack(list(rows.values())), self.asking)
        counted = self.counted
        for name, total in zip(rows, totals, strict=True):
            found.add(name, total, counted)


_TINY = torch.finfo(torch.float32).tiny


def _spread(found: _Gathered, block: _Block, smoothing: float) -> None:
    """How a query's weights are spread."""
    layout, weights = block.layout, block.weights
    visible = block.visible().sum(-1)  # (B, r)
    smoothed = (1 - smoothing) * weights + smoothing / layout.columns.count if smoothing else weights
    entropy = -smoothed.clamp(min=_TINY).log_().mul_(smoothed).sum(-1)  # (B, H, r)
    choice = (visible > 1).to(weights.dtype) * block.asking  # one key alone says nothing
    relative = entropy / visible.clamp(min=2).log()[:, None]
    found.add("relative_entropy", torch.einsum("bhr,br->bh", relative, choice), choice.sum(1))
    largest, strongest = _strongest(weights)
    separators = layout.columns.separator[:, block.columns]
    if bool(separators.any()):
        without, strongest_without = _strongest(weights * (~separators)[:, None, None].to(weights.dtype))
    else:
        without, strongest_without = largest, strongest
    rows = {"entropy": entropy, "effective_keys": entropy.exp(), "max_weight": largest, "confidence": without}
    if not layout.picture and bool(layout.columns.rarest.any()):
        rarest = layout.columns.rarest[:, block.columns].to(weights.dtype)
        rows["rarest"] = torch.gather(
            rarest[:, None].expand(*strongest_without.shape[:2], -1), 2, strongest_without
        )
    if not layout.picture and layout.square:
        offset = block.columns[strongest] - block.rows  # (B, H, r)
        same = (offset == torch.tensor(OFFSETS)[:, None, None, None]).to(weights.dtype)
        rows |= {f"strongest{each:+d}": same[index] for index, each in enumerate(OFFSETS)}
    block.add_rows(found, rows)


def _strongest(weights: Tensor) -> tuple[Tensor, Tensor]:
    """(..., r) each: the largest weight and the first key that has it.

    Two plain maxima, since ``max`` with an index takes several times as long on a processor.
    """
    count = weights.shape[-1]
    largest = weights.amax(-1)
    from_end = torch.arange(count, 0, -1, dtype=weights.dtype)  # exact below 2²⁴ keys
    at_largest = (weights - largest[..., None]).sign_().add_(1)  # 1 there, else 0; faster than a comparison
    return largest, count - at_largest.mul_(from_end).amax(-1).long()


_KIND_KEYS: Mapping[str, str] = MappingProxyType({"own": "patches", "rarest": "rarest_weight"})
"""Statistics that are not called as the kind of key is."""


def _on_kinds(found: _Gathered, layout: Layout, received: Tensor, asking: Tensor) -> None:
    """Weight on kinds of keys that are the same for every query."""
    side = layout.columns
    of_text = ("first", "classifier", "separator", "punctuation", "rarest")
    names: tuple[str, ...] = ("classifier", "register", "own") if layout.picture else of_text
    kinds = torch.stack([getattr(side, name) for name in names], dim=-1).to(received.dtype)  # (B, K, F)
    mass = received @ kinds  # (B, H, F)
    for index, name in enumerate(names):
        found.add(_KIND_KEYS.get(name, name), mass[..., index], asking.sum(1))


def _on_order(found: _Gathered, block: _Block) -> None:
    """Weight by where a key stands to its query in a text, and by what both are."""
    kinds = _kinds_of_pairs(block)
    summed = (block.weights.flatten(2) @ kinds.pairs).permute(2, 0, 1)  # (F, B, H)
    for index, name in enumerate(kinds.names):
        found.add(name, summed[index], kinds.counts[index])
    for name, chance in kinds.chances.items():
        total = chance[:, None].expand(-1, block.weights.shape[1])
        found.add(f"{name}_chance", total, kinds.counts[kinds.names.index(name)])


@dataclass(frozen=True, eq=False)
class _Pairs:
    """Kinds of pairs of a query and a key, the same for every layer and head.

    Attributes:
        names: F statistics.
        pairs: (B, r · c, F) number of each pair, 0 for a query that does not count.
        counts: (F, B) how many queries count.
        chances: (B,) by name: the sum over these queries with equal weights on all that they may see.
    """

    names: tuple[str, ...]
    pairs: Tensor
    counts: Tensor
    chances: Mapping[str, Tensor]


def _kinds_of_pairs(block: _Block) -> _Pairs:
    """The kinds of the pairs of a block; kept for the next layer where the block is the whole map."""
    layout = block.layout
    whole = (len(block.rows), len(block.columns)) == (layout.rows.count, layout.columns.count)
    if not whole:
        return _made_pairs(block)
    key = ("pairs", bool((block.asking == layout.rows.own).all()))
    known = layout.kept.get(key)
    if known is None:
        known = _made_pairs(block)
        if known.pairs.numel() <= _KEPT_NUMBERS:
            layout.kept[key] = known
    assert isinstance(known, _Pairs)
    return known


_KEPT_NUMBERS = 2**24
"""Most numbers that a layout keeps from one layer to the next."""


def _made_pairs(block: _Block) -> _Pairs:
    layout = block.layout
    rows, columns = layout.rows, layout.columns
    kinds: dict[str, Tensor] = {}  # (B or 1, r, c)
    chances: list[str] = ["same_token"]
    if layout.square:
        offset = (block.columns - block.rows[:, None])[None].to(torch.float32)
        kinds |= {f"offset{each:+d}": offset == each for each in OFFSETS}
        kinds |= {"distance": offset.abs(), "direction": offset, "near": offset.abs() <= NEAR}
        chances.append("near")
    same = _same(rows.ids[:, block.rows], columns.ids[:, block.columns])
    copies = same & rows.own[:, block.rows, None] & columns.own[:, None, block.columns]
    kinds["same_token"] = copies & (block.columns != block.rows[:, None]) if layout.square else copies
    if layout.square:
        kinds["induction"] = _after_copies(layout, block.rows, block.columns)
        chances.append("induction")
        if bool((columns.segment == 1).any()):
            inside = _same(rows.segment[:, block.rows], columns.segment[:, block.columns])
            kinds["same_segment"] = inside & columns.valid[:, None, block.columns]
            chances.append("same_segment")
    names, batch = tuple(kinds), block.weights.shape[0]
    pairs = torch.stack(
        [kind.to(torch.float32).expand(batch, -1, -1) for kind in kinds.values()], dim=-1
    )  # (B, r, c, F)
    visible = block.visible()
    expected = torch.einsum("brcf,brc->brf", pairs, visible) / visible.sum(-1).clamp(min=1)[..., None]
    counted = block.asking[..., None].expand(-1, -1, len(names)).clone()
    for name in ("same_token", "induction"):
        if name in names:
            counted[..., names.index(name)] *= expected[..., names.index(name)] > 0
    totals = (expected * counted).sum(1)  # (B, F)
    return _Pairs(
        names,
        (pairs * counted[:, :, None]).flatten(1, 2),
        counted.sum(1).T,
        {name: totals[:, names.index(name)] for name in chances},
    )


def _same(left: Tensor, right: Tensor) -> Tensor:
    """(B, r, c) whether two numbers are equal and stand for something."""
    return (left[:, :, None] == right[:, None, :]) & (left[:, :, None] >= 0)


def _after_copies(layout: Layout, rows: Tensor, columns: Tensor) -> Tensor:
    """(B, r, c): the key stands right behind an earlier copy of the query, and before the query itself."""
    side = layout.columns
    before = (columns - 1).clamp(min=0)
    copy = _same(layout.rows.ids[:, rows], side.ids[:, before])
    own = layout.rows.own[:, rows, None] & side.own[:, None, before] & side.valid[:, None, columns]
    order = (columns[None, :] > 0) & (columns[None, :] < rows[:, None])
    return copy & own & order


def _on_grid(found: _Gathered, block: _Block, likeness: _Likeness | None) -> None:
    """Weight by where a patch lies to its query's on the grid, and by how alike they are."""
    layout, weights = block.layout, block.weights
    assert layout.columns.place is not None
    own, place = layout.columns.own[0], layout.columns.place[0]
    asking = block.asking * layout.rows.own[:, block.rows]
    block = replace(block, asking=asking)
    mine, theirs = place[block.rows].clamp(min=0), place[block.columns].clamp(min=0)  # prefixes count nowhere
    patches = own[block.columns].to(torch.float32)  # (c,)
    height, width = (int(side) + 1 for side in place.amax(0))
    lines = torch.zeros(len(patches), height + width)  # which line of the grid a key is on
    lines[torch.arange(len(patches)), theirs[:, 0]] = patches
    lines[torch.arange(len(patches)), height + theirs[:, 1]] = patches
    on_lines, of_lines = weights @ lines, lines.sum(0)  # (B, H, r, lines) and (lines,)
    on_patches = on_lines[..., :height].sum(-1)
    shifted, there = _at_shifts(block, mine, theirs, (height, width))
    here = list(SHIFTS).index("self")
    itself, is_there = shifted[..., here], there[:, here]
    apart = _apart(mine, theirs) * layout.columns.patch * patches  # (r, c)

    numbers = len(block.rows)
    relative = {}  # name: weight of each query, and what equal weights would have without the division
    for name, line in (("row", mine[:, 0]), ("grid_column", height + mine[:, 1])):
        index = line[:, None].expand(*weights.shape[:2], numbers, 1)
        weight = (on_lines.gather(-1, index)[..., 0] - itself).clamp(min=0)
        relative[name] = (weight, of_lines[line] - is_there)
    relative["pixels"] = ((weights * apart).sum(-1), apart.sum(-1))
    rows = {f"patch_{name}": shifted[..., index] for index, name in enumerate(SHIFTS)}
    rows |= {name: weight / on_patches.clamp(min=1e-12) for name, (weight, _) in relative.items()}
    block.add_rows(found, rows)
    for name, (_, alike) in relative.items():
        chance = asking @ (alike / patches.sum().clamp(min=1))
        found.add(f"{name}_chance", chance[:, None].expand(-1, weights.shape[1]), asking.sum(1))
    if likeness is not None:
        _on_content(found, block, likeness, patches)


def _at_shifts(block: _Block, mine: Tensor, theirs: Tensor, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
    """Weight (B, H, r, S) on the patch at each shift, and (r, S) 1 where there is one.

    Args:
        mine, theirs: (r, 2) and (c, 2) row and column.
        size: rows and columns of the grid.
    """
    own = block.layout.columns.own[0, block.columns]
    shifts = torch.tensor(list(SHIFTS.values()))
    at = mine[:, None] + shifts  # (r, S, 2)
    inside = ((at >= 0) & (at < torch.tensor(size))).all(-1)
    known = torch.full(size, -1)
    known[theirs[own, 0], theirs[own, 1]] = torch.arange(len(theirs))[own]
    key = known[at[..., 0].clamp(0, size[0] - 1), at[..., 1].clamp(0, size[1] - 1)]
    there = (inside & (key >= 0)).to(block.weights.dtype)
    index = key.clamp(min=0).expand(*block.weights.shape[:2], -1, -1)
    return block.weights.gather(-1, index) * there, there


def _apart(mine: Tensor, theirs: Tensor) -> Tensor:
    """(r, c) distance in patches."""
    between = (theirs[None] - mine[:, None]).to(torch.float32)
    return torch.hypot(between[..., 0], between[..., 1])


@dataclass(frozen=True, eq=False)
class _Likeness:
    """What enters a layer at the patches: (B, N, M) directions of length one, and (B, N) whether it is far longer."""

    directions: Tensor
    long: Tensor


def _patch_likeness(hidden: Tensor, side: Side) -> _Likeness:
    """Directions, from the patches' mean, and which patches are outliers of length.

    Far longer: by more than 6 median deviations of the length (1.4826 of which are a standard deviation).
    """
    own = side.own
    values = hidden.detach().to("cpu", torch.float32)
    norms = values.norm(dim=-1)
    known = norms.masked_fill(~own, math.nan)
    middle = known.nanmedian(1, keepdim=True).values
    deviation = 1.4826 * (known - middle).abs().nanmedian(1, keepdim=True).values
    long = own & (norms > middle + 6 * deviation.clamp(min=1e-6 * middle))
    weight = own[..., None].to(values.dtype)
    centred = values - (values * weight).sum(1, keepdim=True) / weight.sum(1, keepdim=True)
    return _Likeness(torch.nn.functional.normalize(centred, dim=-1), long)


def _on_content(found: _Gathered, block: _Block, likeness: _Likeness, patches: Tensor) -> None:
    """Pearson correlation, over other patches, of a query's weights and its likeness to them.

    Args:
        patches: (c,) 1 for a patch.
    """
    weights = block.weights
    long = likeness.long[:, block.columns].to(weights.dtype)
    on_long = (weights @ long[:, None, :, None])[..., 0]
    alike = likeness.directions[:, block.rows] @ likeness.directions[:, block.columns].transpose(1, 2)
    others = patches * (block.columns != block.rows[:, None])  # (r, c)
    count = others.sum(-1).clamp(min=1)  # (r,)
    alike = alike.mul_(others)
    centred = (alike - alike.sum(-1, keepdim=True) / count[:, None]).mul_(others)
    on_others = (weights * others).sum(-1)  # not a difference: next to a weight of almost 1 it would be lost
    deviation = (weights - (on_others / count)[..., None]).mul_(others)
    lengths = deviation.norm(dim=-1) * centred.norm(dim=-1)[:, None]
    together = deviation.mul_(centred[:, None]).sum(-1)
    varies = lengths > 1e-12
    value = torch.where(varies, together / lengths.clamp(min=1e-12), torch.zeros_like(together))
    block.add_rows(found, {"sink_patches": on_long, "content": value})


def _columns(found: _Gathered, layout: Layout, received: Tensor, asking: Tensor) -> None:
    """The one key that gets most on average, of those that are neither special nor punctuation."""
    side = layout.columns
    able = asking.sum(1, keepdim=True).expand(-1, side.count)
    if layout.kind == "decoder" and layout.square:
        able = asking.flip(1).cumsum(1).flip(1)  # a later key is seen by fewer queries
    enough = side.valid & (able >= 0.5 * asking.sum(1, keepdim=True).clamp(min=1))
    plain = enough & side.own & ~side.punctuation
    share = (received / able.clamp(min=1)[:, None]).masked_fill(~plain[:, None], 0.0)
    found.add("column", share.amax(-1), plain.any(1).to(torch.float32))
    if not layout.picture:
        anything = (received / able.clamp(min=1)[:, None]).masked_fill(~enough[:, None], 0.0)
        found.add("any_column", anything.amax(-1), enough.any(1).to(torch.float32))
