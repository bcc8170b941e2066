"""Other attention for a picture: would it give the same answer?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.figure_data import Figure
from dashboard import evidence_cache
from dashboard.frame import waiting_view
from dashboard.selection import ImageChoices, current
from dashboard.sources import ImageSource
from dashboard.views import adversarial_board
from dashboard.views.adversarial_source import Board

if TYPE_CHECKING:
    from analysis.evidence.targets import Target


def tools(source: ImageSource, choices: ImageChoices) -> None:
    """What is shown, and which attention is replaced."""
    board = _board(source, choices)
    if board is not None:
        adversarial_board.tools(board, board.fitted(choices.adversarial))


def show(source: ImageSource, choices: ImageChoices) -> Figure | None:
    """Draw the view; returns the record of what is on the screen."""
    board = _board(source, choices)
    if board is None:
        waiting_view(adversarial_board.WAITING)
        return None
    return adversarial_board.show(board, board.fitted(current().image.adversarial))


def _board(source: ImageSource, choices: ImageChoices) -> Board | None:
    traced = source.traced
    if traced is None:
        return None

    def targets(subject: evidence_cache.Subject) -> Sequence[Target]:
        from dashboard.views.image_evidence import explained

        return explained(current().image, subject)

    pinned = None
    grid = traced.inputs.grid
    if choices.patch is not None and grid is not None:
        row, column = choices.patch
        pinned = grid.prefix_tokens + row * grid.columns + column
    return Board(
        page="image",
        traced=traced,
        part="encoder",
        layers=source.layers,
        heads=min(source.heads),
        queries=traced.trace.encoder[0].queries,
        targets=targets,
        pinned=pinned,
    )
