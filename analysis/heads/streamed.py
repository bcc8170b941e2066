"""The statistics of ``analysis.heads.measures`` of one long input, read off the tiles of a factored map.

``measure`` forms what it asks for as products of a strip of weights; of a map of thousands of positions this walks
through memory many times. Here each tile is read once (``attn_core.flash.tiles``): what depends on the pair is
compared as numbers of the query and of the key, what depends on the offset is looked up, and what equal weights would
give is counted in O(N), since it is the same for every head.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from analysis.heads.positions import Layout, Side
from attn_core.factored import FactoredMap
from attn_core.flash.streaming import Matches, Positions, add_map_sums
from attn_core.flash.tiles import RowSums

NO_QUERY, NO_KEY = -2, -3
"""Numbers that match nothing."""

LEAST_VARIANCE = 1e-6
"""Weights whose variance is less than this share of their mean square are equal: the rest is rounding."""

Add = Callable[[str, Tensor, Tensor], None]
"""Key of a statistic, its (1, H) total, and the (1,) count of queries."""


@dataclass(frozen=True, eq=False)
class RowNumbers:
    """What the walk gave of each query, (H, Q) each, in double precision."""

    entropy: Tensor
    largest: Tensor
    strongest: Tensor
    largest_open: Tensor
    strongest_open: Tensor
    received: Tensor


@dataclass(frozen=True, eq=False)
class Likeness:
    """What enters a layer at the positions of one picture.

    Attributes:
        directions: (N, M) of length one, 0 where a position is no patch.
        long: (N,) bool, inputs far longer than the others'.
    """

    directions: Tensor
    long: Tensor


def is_regular(side: Side) -> bool:
    """Whether patches stand row by row without gaps, so that a neighbour is at a fixed offset."""
    if side.place is None:
        return True
    place = side.place[0][side.own[0]]
    if not len(place):
        return False
    width = int(place[:, 1].max()) + 1
    index = torch.arange(len(place))
    own = side.own[0].nonzero()[:, 0]
    whole = torch.equal(place, torch.stack([index // width, index % width], -1)) and len(place) % width == 0
    return whole and bool((own.diff() == 1).all())


def walk_text(
    layer: FactoredMap, layout: Layout, asking: Tensor, offsets: tuple[int, ...], near: int, add: Add
) -> RowNumbers:
    """Statistics by order and kind of the tokens of a text; returns what is left to do with each row.

    Args:
        asking: (Q,) 1 for a query that counts.
        offsets: of the band, which reaches at least ``near`` to both sides.
    """
    rows, columns = layout.rows, layout.columns
    kinds, width = (3, len(offsets)) if layout.square else (1, 0)
    sums = RowSums.started(layer.heads, layer.queries, keys=layer.keys, kinds=kinds, offsets=width)
    positions = None
    if layout.square:
        at = torch.arange(layer.keys, dtype=torch.float32)
        positions = Positions(at, at)
    else:
        sums = replace(sums, distance=None, direction=None)
    _walk(
        layer,
        sums,
        asking,
        barred=columns.separator[0],
        positions=positions,
        matches=_text_matches(rows, columns, square=layout.square),
        offsets=offsets if layout.square else None,
    )
    matched, count = _double(sums.matched), asking.sum()[None]
    seen = visible_keys(layout)

    def counted(name: str, of_rows: Tensor, pairs: Tensor, *, only_with: bool) -> None:
        """A share of each row, and what equal weights on all visible keys would have."""
        expected = pairs / seen.clamp(min=1)
        weight = asking * (expected > 0) if only_with else asking
        add(name, (of_rows @ weight)[None], weight.sum()[None])
        add(f"{name}_chance", (expected @ weight).expand(1, layer.heads), weight.sum()[None])

    same = matched[..., 0]
    if layout.square:
        band = _double(sums.band)
        own = band[..., offsets.index(0)] * rows.own[0]
        same = (same - own).clamp(min=0)
        for place, offset in enumerate(offsets):
            add(f"offset{offset:+d}", (band[..., place] @ asking)[None], count)
        add("distance", (_double(sums.distance) @ asking)[None], count)
        add("direction", (_double(sums.direction) @ asking)[None], count)
        close = [place for place, offset in enumerate(offsets) if abs(offset) <= near]
        counted("near", band[..., close].sum(-1), _near_pairs(layout, near), only_with=False)
    counted("same_token", same, _same_pairs(layout), only_with=True)
    if layout.square:
        counted("induction", matched[..., 1], _induction_pairs(layout), only_with=True)
        if bool((columns.segment == 1).any()):
            counted("same_segment", matched[..., 2], _segment_pairs(layout), only_with=False)
    return _row_numbers(sums)


def walk_picture(
    layer: FactoredMap,
    layout: Layout,
    asking: Tensor,
    shifts: Mapping[str, tuple[int, int]],
    likeness: Likeness | None,
    add: Add,
) -> RowNumbers:
    """Statistics by place of the patches of a picture; returns what is left to do with each row.

    Args:
        asking: (Q,) 1 for a query that counts; of the grid's statistics only patches do.
        shifts: neighbours of a patch, (rows down, columns right).
    """
    side = layout.columns
    assert side.place is not None
    own, place = side.own[0], side.place[0]
    height, width = (int(length) + 1 for length in place.amax(0))
    y, x = (place[:, axis].clamp(min=0).to(torch.float32) for axis in (0, 1))
    patches = own.to(torch.float32)
    offsets = tuple(down * width + across for down, across in shifts.values())
    sums = RowSums.started(
        layer.heads,
        layer.queries,
        keys=layer.keys,
        kinds=4 if likeness is not None else 3,
        offsets=len(offsets),
        likeness=likeness is not None,
    )
    sums = replace(sums, direction=None)
    _walk(
        layer,
        sums,
        asking,
        barred=side.separator[0],
        positions=Positions(x, x, y, y, patches),
        matches=_grid_matches(own, place, likeness),
        offsets=offsets,
        directions=None if likeness is None else likeness.directions,
    )
    of_patches = (asking * own).double()
    count = of_patches.sum()[None]
    matched, band = _double(sums.matched), _double(sums.band)
    for number, (name, (down, across)) in enumerate(shifts.items()):
        inside = own & (y + down >= 0) & (y + down < height) & (x + across >= 0) & (x + across < width)
        add(f"patch_{name}", ((band[..., number] * inside) @ of_patches)[None], count)
    itself = band[..., list(shifts).index("self")] * own
    on_patches = matched[..., 0]
    relative = {
        "row": (matched[..., 1] - itself).clamp(min=0),
        "grid_column": (matched[..., 2] - itself).clamp(min=0),
        "pixels": _double(sums.distance) * side.patch,
    }
    chances = {
        "row": torch.full_like(of_patches, width - 1),
        "grid_column": torch.full_like(of_patches, height - 1),
        "pixels": _summed_distances(height, width)[y.long(), x.long()] * side.patch,
    }
    for name, weight in relative.items():
        add(name, ((weight / on_patches.clamp(min=1e-12)) @ of_patches)[None], count)
        chance = of_patches @ (chances[name] / max(1, height * width))
        add(f"{name}_chance", chance.expand(1, layer.heads), count)
    if likeness is not None:
        add("sink_patches", (matched[..., 3] @ of_patches)[None], count)
        value = _correlations(sums, likeness.directions.double(), own)
        add("content", (value @ of_patches)[None], count)
    return _row_numbers(sums)


def _walk(
    layer: FactoredMap,
    sums: RowSums,
    asking: Tensor,
    *,
    barred: Tensor,
    positions: Positions | None,
    matches: Matches,
    offsets: tuple[int, ...] | None,
    directions: Tensor | None = None,
) -> None:
    bars = torch.where(barred, -math.inf, 0.0).to(torch.float32)
    add_map_sums(
        layer.factors(),
        sums,
        positions=positions,
        left=asking.to(torch.float32)[None, None],
        barred=bars,
        matches=matches,
        offsets=None if offsets is None else torch.tensor(offsets, dtype=torch.int32),
        directions=None if directions is None else (directions, directions),
    )


def _double(numbers: Tensor | None) -> Tensor:
    assert numbers is not None
    return numbers.double()


def _row_numbers(sums: RowSums) -> RowNumbers:
    assert sums.strongest is not None
    assert sums.strongest_open is not None
    return RowNumbers(
        entropy=_double(sums.entropy),
        largest=_double(sums.largest).exp(),
        strongest=sums.strongest.long(),
        largest_open=_double(sums.largest_open).exp(),
        strongest_open=sums.strongest_open.long(),
        received=_double(sums.received)[:, 0],
    )


# Which pairs are counted -------------------------------------------------------------------------------------------


def _numbers(values: Tensor, known: Tensor, nothing: int) -> Tensor:
    """(N,) int32 numbers, those that are not known matching nothing."""
    return torch.where(known & (values >= 0), values, nothing).to(torch.int32)


def _text_matches(rows: Side, columns: Side, *, square: bool) -> Matches:
    """Same token; token after an earlier copy; same segment."""
    ids, own = columns.ids[0], columns.own[0]
    query = _numbers(rows.ids[0], rows.own[0], NO_QUERY)
    left, right, earlier = [query], [_numbers(ids, own, NO_KEY)], [0]
    if square:
        before = _numbers(ids.roll(1), own.roll(1) & columns.valid[0], NO_KEY)
        before[:1] = NO_KEY
        left += [query, _numbers(rows.segment[0], rows.valid[0], NO_QUERY)]
        right += [before, _numbers(columns.segment[0], columns.valid[0], NO_KEY)]
        earlier += [1, 0]
    return Matches(torch.stack(left), torch.stack(right), torch.tensor(earlier, dtype=torch.int32))


def _grid_matches(own: Tensor, place: Tensor, likeness: Likeness | None) -> Matches:
    """Any patch; same row; same column; far longer than the others."""
    one = torch.ones_like(own, dtype=torch.int64)
    every = torch.ones_like(own)
    y, x = (place[:, axis] for axis in (0, 1))
    left = [
        _numbers(one, every, NO_QUERY),
        *(_numbers(line.clamp(min=0), every, NO_QUERY) for line in (y, x)),
    ]
    right = [_numbers(one, own, NO_KEY), *(_numbers(line, own, NO_KEY) for line in (y, x))]
    if likeness is not None:
        left.append(_numbers(one, every, NO_QUERY))
        right.append(_numbers(one, likeness.long, NO_KEY))
    return Matches(torch.stack(left), torch.stack(right), torch.zeros(len(left), dtype=torch.int32))


# What equal weights would give, in O(N) ----------------------------------------------------------------------------


def visible_keys(layout: Layout) -> Tensor:
    """(Q,) keys that each query may see."""
    valid = layout.columns.valid[0].double()
    return valid.cumsum(0) if layout.kind == "decoder" else valid.sum().expand(layout.rows.count)


def _near_pairs(layout: Layout, near: int) -> Tensor:
    """(Q,) visible keys at most ``near`` away."""
    valid = layout.columns.valid[0].double()
    padded = torch.nn.functional.pad(valid, (near, near))
    last = 0 if layout.kind == "decoder" else near
    return torch.stack(
        [padded[near + step : near + step + len(valid)] for step in range(-near, last + 1)]
    ).sum(0)


def _same_pairs(layout: Layout) -> Tensor:
    """(Q,) visible copies of each query among the keys, itself left out."""
    rows, columns = layout.rows, layout.columns
    key = _numbers(columns.ids[0], columns.own[0], NO_KEY)
    if layout.kind == "decoder" and layout.square:
        return _earlier_copies(key)
    query = _numbers(rows.ids[0], rows.own[0], NO_QUERY)
    kinds, numbers = torch.unique(torch.cat([key, query]), return_inverse=True)  # type: ignore[no-untyped-call]
    counts = torch.bincount(numbers[: len(key)], minlength=len(kinds)).double()
    found = counts[numbers[len(key) :]] * (query >= 0)
    return (found - (query >= 0).double()) if layout.square else found


def _earlier_copies(numbers: Tensor, counting: Tensor | None = None) -> Tensor:
    """(N,) how many of the positions that count have each position's number and come before; 0 for no number."""
    counts = torch.ones(len(numbers), dtype=torch.float64) if counting is None else counting.double()
    order = numbers.argsort(stable=True)
    ordered, running = numbers[order], counts[order].cumsum(0) - counts[order]
    starts = torch.ones_like(ordered, dtype=torch.bool)
    starts[1:] = ordered[1:] != ordered[:-1]
    first = torch.where(starts, torch.arange(len(numbers)), 0).cummax(0).values
    found = torch.empty_like(running)
    found[order] = running - running[first]
    return found * (numbers >= 0)


def _induction_pairs(layout: Layout) -> Tensor:
    """(Q,) keys right behind an earlier copy of the query and before the query itself.

    Behind the copy at p stands p + 1, which lies before the query where p is not its direct neighbour.
    """
    side = layout.columns
    number = _numbers(side.ids[0], side.own[0], NO_KEY)
    followed = side.valid[0].roll(-1)
    followed[-1:] = False
    copies = _earlier_copies(number, counting=followed)
    neighbour = torch.zeros_like(copies)
    neighbour[1:] = ((number[1:] == number[:-1]) & followed[:-1]).double()
    return (copies - neighbour) * (number >= 0)


def _segment_pairs(layout: Layout) -> Tensor:
    """(Q,) visible keys of each query's own segment."""
    segment, valid = layout.columns.segment[0], layout.columns.valid[0]
    found = torch.zeros(len(segment), dtype=torch.float64)
    for number in (0, 1):
        inside = ((segment == number) & valid).double()
        count = inside.cumsum(0) if layout.kind == "decoder" else inside.sum().expand(len(segment))
        found += count * (layout.rows.segment[0] == number)
    return found


def _summed_distances(height: int, width: int) -> Tensor:
    """(height, width): sum of the distances, in patches, from each patch of a grid to all of them.

    A patch splits the grid into four quarters, whose sums are read off one table of partial sums; the lines between
    the quarters are counted twice and taken off once.
    """
    down, across = torch.arange(height, dtype=torch.float64), torch.arange(width, dtype=torch.float64)
    quarter = torch.hypot(down[:, None], across[None]).cumsum(0).cumsum(1)
    rows, columns = torch.arange(height), torch.arange(width)
    total = torch.zeros(height, width, dtype=torch.float64)
    for up in (rows, rows.flip(0)):
        for left in (columns, columns.flip(0)):
            total += quarter[up][:, left]
    lines = [size.cumsum(0) + size.cumsum(0).flip(0) for size in (down, across)]
    return total - lines[0][:, None] - lines[1][None]


def _correlations(sums: RowSums, directions: Tensor, own: Tensor) -> Tensor:
    """(H, Q) Pearson correlation, over other patches, of a query's weights and its likeness to them.

    Args:
        directions: (N, M), 0 where a position is no patch.
        own: (N,) bool, whether it is one.
    """
    count = (own.sum() - own.double()).clamp(min=1)  # (Q,) other patches
    own_likeness = (directions * directions).sum(-1) * own
    total = directions @ directions.sum(0) - own_likeness
    squared = ((directions @ (directions.T @ directions)) * directions).sum(-1) - own_likeness**2
    spread = (squared - total**2 / count).clamp(min=0)  # n · variance of the likeness
    weight = _double(sums.others)
    squares = _double(sums.squares)
    deviation = squares - weight**2 / count  # n · variance of the weights
    together = _double(sums.liked) - weight * total / count
    lengths = (deviation.clamp(min=0) * spread).sqrt()
    varies = (deviation > LEAST_VARIANCE * squares) & (lengths > 1e-12)
    value = together / lengths.clamp(min=1e-12)
    return torch.where(varies, value.clamp(-1.0, 1.0), torch.zeros_like(value))
