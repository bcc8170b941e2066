"""What the parts of the Adversarial view draw from: the page's input, its model, and which rows are replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from analysis.figure_data import TokenLabel
from dashboard import cached, evidence_cache
from dashboard.adversarial_choices import EVERY_LAYER, AdversarialChoices, Rows, Show, fitted_adversarial
from dashboard.selection import Part

if TYPE_CHECKING:
    from analysis.adversarial.rows import Place
    from analysis.evidence.targets import Target

Page = Literal["text", "image"]

ROW_WORDS: Mapping[Rows, str] = {
    "usual": "the row that is read",
    "first": "the first row",
    "last": "the last row",
    "pinned": "the chosen row",
    "all": "all rows",
}


@dataclass(frozen=True)
class Board:
    """What the view is drawn from.

    Attributes:
        traced: the page's own input through the model.
        part: kind of attention; ``layers``, ``heads``, ``queries``: of it.
        keys: labels of the positions that are attended to; () for a picture.
        queried: labels of the queries; () for a picture.
        pinned: place of the query that the reader chose, or None.
        targets: what heads are measured for, and for which pass.
        recurrent: the model is the papers' own kind, with one row of attention.
    """

    page: Page
    traced: cached.Traced
    part: Part
    layers: int
    heads: int
    queries: int
    targets: Callable[[evidence_cache.Subject], Sequence[Target]]
    keys: tuple[TokenLabel, ...] = ()
    queried: tuple[TokenLabel, ...] = ()
    pinned: int | None = None
    direction: Literal["ltr", "rtl"] = "ltr"
    recurrent: bool = False

    @property
    def picture(self) -> bool:
        """Whether the input is a picture."""
        return self.page == "image"

    def fitted(self, choices: AdversarialChoices) -> AdversarialChoices:
        """The choices fitted to what is there."""
        found = fitted_adversarial(choices, layers=self.layers, heads=self.heads)
        offered = self.shows()
        if found.show not in offered:
            found = replace(found, show="one")
        if found.rows == "pinned" and self.pinned is None:
            found = replace(found, rows="usual")
        return found

    def shows(self) -> tuple[Show, ...]:
        """What there is to show of this model."""
        found: list[Show] = ["one"]
        if not self.picture:
            found.append("set")
        if not self.recurrent:
            found.append("heads")
        if self.recurrent:
            found.append("trained")
        return tuple(found)

    def place(self, choices: AdversarialChoices) -> Place | None:
        """The rows that are replaced; None for a recurrent classifier, which has one."""
        from analysis.adversarial.rows import Place

        if self.recurrent:
            return None
        heads = tuple(range(self.heads)) if choices.heads is None else choices.heads
        last = self.layers - 1
        layers = (
            range(self.layers)
            if choices.layer == EVERY_LAYER
            else [choices.layer if choices.layer is not None else last]
        )
        return Place(dict.fromkeys(layers, heads), self.chosen_queries(choices), self.part)

    def chosen_queries(self, choices: AdversarialChoices) -> tuple[int, ...] | None:
        """Places of the queries whose rows are replaced; None for all."""
        if choices.rows == "usual":
            return self._read_rows()
        found = {"first": 0, "last": self.queries - 1, "pinned": self.pinned}.get(choices.rows)
        return None if found is None else (found,)

    def _read_rows(self) -> tuple[int, ...] | None:
        from analysis.adversarial.rows import usual_place

        usual = usual_place(self.traced.model, self.traced.inputs)
        if usual.kind == self.part:
            return usual.queries
        return None if self.part == "encoder" else (self.queries - 1,)
