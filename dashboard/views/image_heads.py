"""Heads of a vision transformer: what each is for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.figure_data import Floats, HeadGrid
from dashboard import evidence_cache
from dashboard.frame import waiting_view
from dashboard.selection import ImageChoices, current
from dashboard.sources import ImageSource
from dashboard.views import heads_board
from dashboard.views.heads_record import Board
from dashboard.views.image_model import pooled, side_by_side

if TYPE_CHECKING:
    from analysis.evidence.targets import Target


def tools(source: ImageSource, choices: ImageChoices) -> None:
    """Source and importance."""
    heads_board.tools("image", choices.patterns, text_attention=False)


def show(source: ImageSource, choices: ImageChoices) -> HeadGrid | None:
    """Draw the view; returns the record of what is on the screen."""
    traced = source.traced
    if traced is None:
        waiting_view(heads_board.WAITING)
        return None

    def targets(subject: evidence_cache.Subject) -> Sequence[Target]:
        from dashboard.views.image_evidence import explained

        return explained(current().image, subject)

    def thumbnails() -> Floats | None:
        found, shapes = side_by_side([pooled(layer.maps) for layer in source.all_rows(choices.patch)])
        return None if shapes is not None else found

    return heads_board.show(Board("image", traced, "encoder", thumbnails, targets), choices.patterns)
