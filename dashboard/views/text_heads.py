"""Heads of a text model: what each is for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.figure_data import HeadGrid
from dashboard import evidence_cache
from dashboard.frame import waiting_view
from dashboard.selection import TextChoices, current
from dashboard.sources import TextSource
from dashboard.views import heads_board
from dashboard.views.heads_record import Board

if TYPE_CHECKING:
    from analysis.evidence.targets import Target


def tools(source: TextSource, choices: TextChoices) -> None:
    """Source, classes, importance."""
    heads_board.tools("text", choices.patterns, text_attention=choices.part != "cross")


def show(source: TextSource, choices: TextChoices) -> HeadGrid | None:
    """Draw the view; returns the record of what is on the screen."""
    traced = source.traced
    if traced is None:
        waiting_view(heads_board.WAITING)
        return None

    def targets(subject: evidence_cache.Subject) -> Sequence[Target]:
        from dashboard.views.text_evidence import explained

        return explained(current().text, subject)

    def thumbnails() -> object:
        return source.thumbnails(choices.part)

    board = Board("text", traced, choices.part, thumbnails, targets)  # type: ignore[arg-type]
    return heads_board.show(board, choices.patterns)
