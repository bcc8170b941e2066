"""How a rule covers a tile of pairs: what is forbidden is skipped, and what is all allowed needs no mask.

Dao et al. 2022 (FlashAttention), section 3.3: of a block-sparse mask only the blocks that hold an allowed pair are
worked on. Causal order, windows, padding, prefix and documents are told from a few numbers; only a predicate has to
be asked pair by pair.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from itertools import accumulate
from typing import Literal

import torch
from torch import Tensor

from attn_core.mask_rules import SizedRule
from attn_core.masks import MaskRule

Coverage = Literal["none", "some", "all"]
"""Which pairs of a tile a rule allows, over all batch items and heads."""


@dataclass(frozen=True, eq=False)
class Cover:
    """What is known of a rule on a map of one size, gathered once and asked tile by tile.

    Attributes:
        rule: the rule, with its sizes bound.
        queries, keys: Q and K of the whole map.
        prefixes: smallest and largest prefix of the items; (0, 0) without one.
        some_valid, all_valid: K + 1 running counts of keys that are valid in some item, and in every item; None
            without padding.
        documents: (B or 1, K) document of each position, on the CPU.
        first, last: (B or 1, K) first and last position of each position's document.
    """

    rule: MaskRule
    queries: int
    keys: int
    prefixes: tuple[int, int]
    some_valid: tuple[int, ...] | None
    all_valid: tuple[int, ...] | None
    documents: Tensor | None
    first: Tensor | None
    last: Tensor | None

    @staticmethod
    def of(rule: MaskRule | None, *, queries: int, keys: int) -> Cover:
        """The cover of a rule, or of no rule, which allows everything.

        Raises:
            ValueError: if the rule cannot tell the documents of so many queries.
        """
        rule = MaskRule() if rule is None else rule
        rule = rule.bound(keys - queries) if isinstance(rule, SizedRule) else rule
        some_valid = all_valid = first = last = None
        if rule.key_valid is not None:
            valid = rule.key_valid.cpu()
            some_valid, all_valid = _running(valid.any(0)), _running(valid.all(0))
        documents = None if rule.documents is None else rule.documents.cpu()
        if documents is not None:
            nothing = torch.arange(0)
            MaskRule(documents=documents).allowed(
                nothing, nothing, queries=queries, keys=keys
            )  # checks Q ≤ K
            first, last = _ends(documents)
        prefixes = (0, 0)
        if rule.causal and rule.prefix is not None and len(rule.prefix):
            prefixes = int(rule.prefix.min()), int(rule.prefix.max())
        return Cover(rule, queries, keys, prefixes, some_valid, all_valid, documents, first, last)

    @property
    def is_known(self) -> bool:
        """Whether every tile can be told without asking a predicate."""
        return self.rule.predicate is None

    def of_tile(self, rows: slice, columns: slice) -> Coverage:
        """How the rule covers a tile: "none" or "all" is certain, "some" where it may be either.

        A predicate is not asked: it can only forbid, so that "none" stays certain and "all" is never said.
        """
        if rows.start >= rows.stop or columns.start >= columns.stop:
            return "none"
        parts = [*self._band(rows, columns), *self._padding(columns), *self._documents(rows, columns)]
        if "none" in parts:
            return "none"
        return "all" if self.is_known and "some" not in parts else "some"

    def evaluated(self, rows: slice, columns: slice) -> Coverage:
        """As ``of_tile``, exact for any rule, by asking about each pair where the parts do not tell."""
        coverage = self.of_tile(rows, columns)
        if coverage != "some":
            return coverage
        allowed = self.allowed(rows, columns)
        if allowed is None or bool(allowed.all()):
            return "all"
        return "some" if bool(allowed.any()) else "none"

    def allowed(self, rows: slice, columns: slice, *, device: torch.device | None = None) -> Tensor | None:
        """Permission of the pairs of a tile, broadcasts to (B, H, r, c); None when every pair is allowed."""
        row, column = (torch.arange(part.start, part.stop, device=device) for part in (rows, columns))
        return self.rule.allowed(row, column, queries=self.queries, keys=self.keys)

    def columns_of(self, rows: slice) -> slice:
        """The span of keys outside which no query of a strip sees anything; empty where it sees nothing."""
        start, stop = 0, self.keys
        if rows.start >= rows.stop:
            return slice(0, 0)
        first, last = self._places(rows)
        if self.rule.causal:
            stop = min(stop, max(last + 1, self.prefixes[1]))
        if self.rule.window is not None:
            start = max(start, first - self.rule.window + 1)
            stop = stop if self.rule.causal else min(stop, last + self.rule.window)
        if self.first is not None and self.last is not None:
            places = slice(first, last + 1)
            start = max(start, int(self.first[:, places].min()))
            stop = min(stop, int(self.last[:, places].max()) + 1)
        if self.some_valid is not None and start < stop:  # from the first to the last valid key of the span
            counts = self.some_valid
            start, stop = bisect_right(counts, counts[start]) - 1, bisect_left(counts, counts[stop])
        return slice(start, max(start, stop))

    def share(self, strip: int) -> float:
        """Share of the map inside the spans of its strips of ``strip`` queries: about what a tile loop visits."""
        visited = 0
        for start in range(0, self.queries, strip):
            rows = slice(start, min(start + strip, self.queries))
            columns = self.columns_of(rows)
            visited += (rows.stop - rows.start) * (columns.stop - columns.start)
        return visited / max(1, self.queries * self.keys)

    def _places(self, rows: slice) -> tuple[int, int]:
        """Key positions at which the first and the last query of a strip sit."""
        shift = self.keys - self.queries
        return rows.start + shift, rows.stop - 1 + shift

    def _band(self, rows: slice, columns: slice) -> list[Coverage]:
        """Causal order and window: of a tile the corner pairs decide."""
        first, last = self._places(rows)
        left, right = columns.start, columns.stop - 1
        window, parts = self.rule.window, list[Coverage]()
        if self.rule.causal:
            least, most = self.prefixes
            every = right <= first or right < least
            parts.append(_coverage(every, some=left <= last or left < most))
        if window is not None:
            parts.append(_coverage(left > last - window, some=right > first - window))
        if window is not None and not self.rule.causal:
            parts.append(_coverage(right < first + window, some=left < last + window))
        return parts

    def _padding(self, columns: slice) -> list[Coverage]:
        if self.all_valid is None:
            return []
        size = columns.stop - columns.start
        every = self.all_valid[columns.stop] - self.all_valid[columns.start] == size
        return [_coverage(every, some=self._valid_between(columns.start, columns.stop))]

    def _valid_between(self, start: int, stop: int) -> bool:
        assert self.some_valid is not None
        return self.some_valid[stop] > self.some_valid[start]

    def _documents(self, rows: slice, columns: slice) -> list[Coverage]:
        """Documents by their smallest and largest number: exact for numbers that rise, "some" where they overlap."""
        if self.documents is None:
            return []
        first, last = self._places(rows)
        of_rows, of_columns = self.documents[:, first : last + 1], self.documents[:, columns]
        low, high = of_rows.amin(1), of_rows.amax(1)  # (B or 1,)
        least, most = of_columns.amin(1), of_columns.amax(1)
        every = bool(((low == high) & (least == most) & (low == least)).all())
        return [_coverage(every, some=bool(((low <= most) & (least <= high)).any()))]


def cover(
    rule: MaskRule | None, rows: slice, columns: slice, *, queries: int, keys: int, evaluated: bool = False
) -> Coverage:
    """How a rule covers one tile. Whoever asks about many builds a ``Cover`` once.

    Args:
        rows, columns: slices with both ends, inside the map.
        queries, keys: Q and K of the whole map.
        evaluated: ask about each pair where the parts of the rule do not tell.
    """
    whole = Cover.of(rule, queries=queries, keys=keys)
    return whole.evaluated(rows, columns) if evaluated else whole.of_tile(rows, columns)


def _coverage(every: bool, *, some: bool) -> Coverage:
    return "all" if every else "some" if some else "none"


def _running(flags: Tensor) -> tuple[int, ...]:
    """Counts of set flags before each place, one more than there are flags."""
    return tuple(accumulate(map(int, flags.tolist()), initial=0))


def _ends(documents: Tensor) -> tuple[Tensor, Tensor]:
    """(B or 1, K) first and last position of the document of each position."""
    batch, keys = documents.shape
    kinds = torch.unique(documents, return_inverse=True)[1].view(batch, keys)
    places = torch.arange(keys).expand(batch, keys)
    count = int(kinds.max()) + 1 if keys and batch else 1
    first = torch.full((batch, count), keys).scatter_reduce(1, kinds, places, "amin")
    last = torch.full((batch, count), -1).scatter_reduce(1, kinds, places, "amax")
    return first.gather(1, kinds), last.gather(1, kinds)
