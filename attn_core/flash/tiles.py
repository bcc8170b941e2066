"""What is read off a tile of log weights: sums, bins, strongest keys, a step of relevance.

A tile is (heads, rows, columns) of score − log-sum-exp, −∞ where a pair may not attend; its weights are the
exponentials. Each function adds to what the tiles before it left, so that a map is walked through once and no n × n
array stands. On a CPU in float32 the compiled functions of ``tiles.c`` read a tile in one pass; elsewhere torch
does it in several.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, fields

import torch
from torch import Tensor

from attn_core.flash.compiled import PlacesArguments, SumsArguments, library

LONGEST_TILE = 4096
"""Most columns of a tile (``LONGEST`` in tiles.c)."""


@dataclass(frozen=True, eq=False)
class RowSums:
    """Numbers of each row of a map so far; a field that is None is not asked for.

    Attributes:
        entropy: (H, Q) nats.
        largest: (H, Q) logarithm of the largest weight; ``strongest``: (H, Q) int32, the first key that has it.
        largest_open, strongest_open: the same over keys that are not barred.
        distance: (H, Q) Σ weight · distance over counted keys; ``direction``: Σ weight · (key x − query x).
        matched: (H, Q, M) weight on keys whose number of a kind is the query's.
        band: (H, Q, F) weight of the key at each offset from the query's own place.
        others, squares: (H, Q) Σ weight and Σ weight² over counted keys but the query's own, both or neither: of a
            row that lies on its own key almost whole, a difference would lose the rest.
        liked: (H, Q) Σ weight · likeness over the same keys, beside these.
        received: (H, R, K) Σ over rows of left · weight.
    """

    entropy: Tensor | None = None
    largest: Tensor | None = None
    strongest: Tensor | None = None
    largest_open: Tensor | None = None
    strongest_open: Tensor | None = None
    distance: Tensor | None = None
    direction: Tensor | None = None
    matched: Tensor | None = None
    band: Tensor | None = None
    others: Tensor | None = None
    squares: Tensor | None = None
    liked: Tensor | None = None
    received: Tensor | None = None

    @staticmethod
    def started(
        heads: int,
        queries: int,
        *,
        keys: int,
        kinds: int = 0,
        offsets: int = 0,
        lefts: int = 1,
        likeness: bool = False,
    ) -> RowSums:
        """Every number before the first tile, in float32 on the CPU; those that are not asked for are None.

        Args:
            kinds, offsets, lefts: M, F and R; 0 does not ask for these numbers.
            likeness: ask for ``others``, ``squares`` and ``liked``.
        """

        def zeros(*more: int) -> Tensor:
            return torch.zeros(heads, queries, *more)

        def nothing() -> Tensor:
            return torch.full((heads, queries), float("-inf"))

        def places() -> Tensor:
            return torch.zeros(heads, queries, dtype=torch.int32)

        return RowSums(
            entropy=zeros(),
            largest=nothing(),
            strongest=places(),
            largest_open=nothing(),
            strongest_open=places(),
            distance=zeros(),
            direction=zeros(),
            matched=zeros(kinds) if kinds else None,
            band=zeros(offsets) if offsets else None,
            others=zeros() if likeness else None,
            squares=zeros() if likeness else None,
            liked=zeros() if likeness else None,
            received=torch.zeros(heads, lefts, keys) if lefts else None,
        )

    def rows(self, part: slice) -> RowSums:
        """Of some queries: copies where a head's rows would not lie side by side, so write back with ``put``."""
        cut = {
            entry.name: None if (value := getattr(self, entry.name)) is None else value[:, part].contiguous()
            for entry in fields(self)
            if entry.name != "received"
        }
        return RowSums(**cut, received=self.received)

    def put(self, part: slice, of_rows: RowSums) -> None:
        """Take over the numbers of some queries."""
        for entry in fields(self):
            value = getattr(self, entry.name)
            if value is not None and entry.name != "received":
                value[:, part] = getattr(of_rows, entry.name)


@dataclass(frozen=True, eq=False)
class Places:
    """Where the keys and queries of a tile lie, and what is known of them.

    Attributes:
        row_x, column_x: (r,) and (c,) positions along the text, or columns of a grid.
        row_y, column_y: rows of a grid; None for text.
        counted: (c,) 1 for a key that takes part in distances, squares and likeness, else 0; None = all do.
        barred: (c,) 0, or −∞ for a key that is left out of ``largest_open``.
        likeness: (r, c).
        row_numbers, column_numbers: (M, r) and (M, c) int32, what is compared in ``matched``.
        earlier: (M,) int32, not 0 where only keys before the query's own place match.
        offsets: (F,) int32, of ``band``.
        left: (H or 1, R, r) factors of the rows in ``received``.
        first_column: the tile's first key; ``first_place``: the key place of its first query.
    """

    row_x: Tensor | None = None
    column_x: Tensor | None = None
    row_y: Tensor | None = None
    column_y: Tensor | None = None
    counted: Tensor | None = None
    barred: Tensor | None = None
    likeness: Tensor | None = None
    row_numbers: Tensor | None = None
    column_numbers: Tensor | None = None
    earlier: Tensor | None = None
    offsets: Tensor | None = None
    left: Tensor | None = None
    first_column: int = 0
    first_place: int = 0


def runs_compiled(tile: Tensor) -> bool:
    """Whether the compiled functions take a tile."""
    return (
        tile.device.type == "cpu"
        and tile.dtype == torch.float32
        and tile.shape[2] <= LONGEST_TILE
        and tile.stride(2) == 1
        and library() is not None
    )


def add_sums(tile: Tensor, places: Places, sums: RowSums) -> None:
    """Add what a tile holds to the sums of its rows and of the keys.

    Args:
        tile: (H, r, c) log weights; left as it is.
        sums: of the tile's rows, (H, r) each and contiguous; ``received`` of the whole map.
    """
    if not runs_compiled(tile):
        _add_sums_in_torch(tile, places, sums)
        return
    _check_sizes(tile, places, sums)
    left = None if places.left is None else places.left.contiguous()
    where = PlacesArguments(
        **{name: _address(value) for name, value in _tensors(places).items() if name != "left"},
        left=_address(left),
        lefts=0 if left is None else left.shape[1],
        left_head_stride=0 if left is None or left.shape[0] == 1 else left.stride(0),
        kinds=0 if places.row_numbers is None else len(places.row_numbers),
        offset_count=0 if places.offsets is None else len(places.offsets),
        first_column=places.first_column,
        first_place=places.first_place,
        flat=places.row_y is None,
    )
    received = sums.received
    asked = {name: _address(value) for name, value in _tensors(sums).items() if name != "received"}
    at = None if received is None else received.data_ptr() + 4 * places.first_column
    into = SumsArguments(**asked, received=at, received_stride=0 if received is None else received.stride(1))
    _library().tile_sums(*_tile(tile), ctypes.byref(where), ctypes.byref(into))


def exponentials(tile: Tensor) -> Tensor:
    """The weights of a tile, in its place."""
    if not runs_compiled(tile):
        return tile.exp_()
    _library().tile_weights(*_tile(tile))
    return tile


def add_bins(
    tile: Tensor, row_bins: Tensor, column_bins: Tensor, pooled: Tensor, *, first_cell: int, mean: bool
) -> None:
    """Take a tile into bins of rows × bins of columns.

    Args:
        tile: (H, r, c) log weights.
        row_bins, column_bins: (b, 2) and (d, 2) int32, first and one after the last, inside the tile.
        pooled: (H, b, cells) the largest log weight so far, or the sum of weights; bins of columns are its cells from
            ``first_cell`` on.
    """
    cells = pooled[:, :, first_cell : first_cell + len(column_bins)]
    if not runs_compiled(tile):
        _add_bins_in_torch(tile, row_bins, column_bins, cells, mean=mean)
        return
    heads, _, columns = tile.shape
    _library().tile_pooled(
        *(tile.data_ptr(), heads, columns, tile.stride(0), tile.stride(1)),
        *(len(row_bins), row_bins.data_ptr(), len(column_bins), column_bins.data_ptr()),
        *(cells.data_ptr(), pooled.stride(0), pooled.stride(1), mean),
    )


def keep_strongest(tile: Tensor, values: Tensor, keys: Tensor, *, first_column: int) -> None:
    """Keep the k largest log weights of each row, largest first; of equal ones the first key.

    Args:
        values, keys: (H, r, k) of the tiles before, contiguous; float as the tile, and int32. They start as −∞.
    """
    if not runs_compiled(tile):
        columns = torch.arange(
            first_column, first_column + tile.shape[2], dtype=torch.int32, device=tile.device
        )
        both = torch.cat([values, tile], -1)
        places = torch.cat([keys, columns.expand(tile.shape)], -1)
        order = both.sort(dim=-1, descending=True, stable=True).indices[..., : values.shape[2]]
        values.copy_(both.gather(-1, order))
        keys.copy_(places.gather(-1, order))
        return
    _library().tile_strongest(*_tile(tile), first_column, values.shape[2], values.data_ptr(), keys.data_ptr())


def add_relevance(tile: Tensor, slopes: Tensor, left: Tensor, out: Tensor, *, each_head: bool) -> None:
    """out[j] += Σ_i left[i] · mean over heads of weight · slope, negative parts cut (Chefer et al. 2021).

    Args:
        tile, slopes: (H, r, c) log weights, and the gradients of the weights.
        left: (r,).
        out: (c,), contiguous.
        each_head: cut the negative part of each head, else that of the mean.
    """
    if not (runs_compiled(tile) and slopes.stride() == tile.stride()):
        mixed = tile.exp() * slopes
        mixed = mixed.clamp(min=0).mean(0) if each_head else mixed.mean(0).clamp(min=0)
        out += left @ mixed
        return
    _library().tile_relevance(
        *(tile.data_ptr(), slopes.data_ptr(), *_tile(tile)[1:]),
        *(left.contiguous().data_ptr(), each_head, out.data_ptr()),
    )


def _check_sizes(tile: Tensor, places: Places, sums: RowSums) -> None:
    """Make sure that compiled code writes nowhere else: it sees addresses alone."""
    heads, rows, columns = tile.shape
    for name, value in _tensors(sums).items():
        if value is not None and name != "received":
            assert value.shape[:2] == (heads, rows), name
    for name, value in _tensors(places).items():
        if value is None or name in ("left", "earlier", "offsets"):
            continue
        size = (rows, columns) if name == "likeness" else (rows if name.startswith("row_") else columns,)
        assert tuple(value.shape[-len(size) :]) == size, name
    assert (sums.others is None) == (sums.squares is None)
    assert sums.received is None or places.first_column + columns <= sums.received.shape[2]


def _library() -> ctypes.CDLL:
    found = library()
    assert found is not None  # asked by ``runs_compiled``
    return found


def _tile(tile: Tensor) -> tuple[int, ...]:
    return (tile.data_ptr(), *tile.shape, tile.stride(0), tile.stride(1))


def _tensors(record: Places | RowSums) -> dict[str, Tensor | None]:
    named = {entry.name: getattr(record, entry.name) for entry in fields(record)}
    return {name: value for name, value in named.items() if not isinstance(value, int)}


def _address(tensor: Tensor | None) -> int | None:
    if tensor is None:
        return None
    assert tensor.is_contiguous()
    return tensor.data_ptr()


# In torch ----------------------------------------------------------------------------------------------------------


def _add_sums_in_torch(tile: Tensor, places: Places, sums: RowSums) -> None:
    weights = tile.exp()
    if sums.entropy is not None:
        sums.entropy.sub_((weights * tile.clamp(min=-1e4)).sum(-1))
    if sums.largest is not None and sums.strongest is not None:
        _keep_largest(tile, places.first_column, sums.largest, sums.strongest)
    if sums.largest_open is not None and sums.strongest_open is not None:
        assert places.barred is not None
        _keep_largest(tile + places.barred, places.first_column, sums.largest_open, sums.strongest_open)
    if sums.received is not None and places.left is not None:
        columns = slice(places.first_column, places.first_column + tile.shape[2])
        sums.received[:, :, columns] += places.left.to(weights.dtype) @ weights
    own = places.first_place - places.first_column + torch.arange(tile.shape[1], device=tile.device)
    if sums.matched is not None:
        assert places.row_numbers is not None
        assert places.column_numbers is not None
        assert places.earlier is not None
        alike = places.row_numbers[:, :, None] == places.column_numbers[:, None]  # (M, r, c)
        before = torch.arange(tile.shape[2], device=tile.device) < own[:, None]
        alike = alike & (before | (places.earlier == 0)[:, None, None])
        sums.matched.add_(torch.einsum("hrc,mrc->hrm", weights, alike.to(weights.dtype)))
    if sums.band is not None and places.offsets is not None:
        at = own[:, None] + places.offsets  # (r, F)
        inside = (at >= 0) & (at < tile.shape[2])
        found = weights.gather(-1, at.clamp(0, tile.shape[2] - 1).long().expand(len(tile), -1, -1))
        sums.band.copy_(torch.where(inside, found, sums.band))
    if places.counted is not None:
        weights = weights * places.counted
    if sums.squares is not None and sums.others is not None:
        weights = weights * (torch.arange(tile.shape[2], device=tile.device) != own[:, None])  # at distance 0
        sums.others.add_(weights.sum(-1))
        sums.squares.add_((weights * weights).sum(-1))
    if sums.liked is not None:
        assert places.likeness is not None
        sums.liked.add_((weights * places.likeness).sum(-1))
    if places.row_x is None or places.column_x is None:
        return
    along = places.column_x - places.row_x[:, None]
    if places.row_y is None or places.column_y is None:
        if sums.distance is not None:
            sums.distance.add_((weights * along.abs()).sum(-1))
        if sums.direction is not None:
            sums.direction.add_((weights * along).sum(-1))
        return
    down = places.column_y - places.row_y[:, None]
    if sums.distance is not None:
        sums.distance.add_((weights * torch.hypot(along, down)).sum(-1))


def _keep_largest(tile: Tensor, first_column: int, largest: Tensor, strongest: Tensor) -> None:
    here, place = tile.max(-1)
    better = here > largest
    largest.copy_(torch.where(better, here, largest))
    strongest.copy_(torch.where(better, (place + first_column).to(strongest.dtype), strongest))


def _add_bins_in_torch(
    tile: Tensor, row_bins: Tensor, column_bins: Tensor, cells: Tensor, *, mean: bool
) -> None:
    values = tile.exp() if mean else tile
    for axis, bins in ((1, row_bins), (2, column_bins)):
        members, places = _members(bins, tile.device)
        size = list(values.shape)
        size[axis] = len(bins)
        into = values.new_full(size, 0.0 if mean else float("-inf"))
        chosen = values.index_select(axis, members)
        index = places.view(-1, 1) if axis == 1 else places
        values = into.scatter_reduce_(axis, index.expand(chosen.shape), chosen, "sum" if mean else "amax")
    if mean:
        cells.add_(values)
    else:
        torch.maximum(cells, values, out=cells)


def _members(bins: Tensor, device: torch.device) -> tuple[Tensor, Tensor]:
    """What each of some ranges holds: the members of all of them one after the other, and whose they are."""
    ranges = [torch.arange(low, max(low, high)) for low, high in bins.tolist()]
    sizes = torch.tensor([len(members) for members in ranges])
    places = torch.arange(len(ranges)).repeat_interleave(sizes)
    return torch.cat([*ranges, torch.arange(0)]).to(device), places.to(device)
