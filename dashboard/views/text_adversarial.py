"""Other attention for a text: would it give the same answer?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from analysis.figure_data import Figure
from dashboard import evidence_cache
from dashboard.frame import waiting_view
from dashboard.live import text_source
from dashboard.selection import TextChoices, current
from dashboard.sources import TextSource
from dashboard.views import adversarial_board
from dashboard.views.adversarial_source import Board
from dashboard.views.text_windows import offer_alone

if TYPE_CHECKING:
    from analysis.evidence.targets import Target


def tools(source: TextSource, choices: TextChoices) -> None:
    """What is shown, and which attention is replaced."""
    board = _board(source, choices)
    if board is not None:
        adversarial_board.tools(board, board.fitted(choices.adversarial))


def show(source: TextSource, choices: TextChoices) -> Figure | None:
    """Draw the view; returns the record of what is on the screen."""
    board = _board(source, choices)
    if source.traced is not None and source.traced.inputs.reading is not None:
        offer_alone(
            source.traced, choices, "Other attention is tried in one pass, and this text is read in windows."
        )
        return None
    if board is None:
        waiting_view(adversarial_board.WAITING)
        return None
    return adversarial_board.show(board, board.fitted(current().text.adversarial))


def _board(source: TextSource, choices: TextChoices) -> Board | None:
    traced = source.traced
    if traced is None or traced.inputs.reading is not None:
        return None
    from attn_core.models.classifier import AttentionClassifier

    def targets(subject: evidence_cache.Subject) -> Sequence[Target]:
        from dashboard.views.text_evidence import explained

        return explained(current().text, subject)

    own = text_source(traced)  # tokens, also where the page shows words
    part = choices.part if choices.part in own.parts else own.parts[0]
    info = own.part(part)
    pinned = choices.pinned[1] if choices.pinned is not None and choices.pinned[0] == "left" else None
    merged = len(source.part(part).rows) != len(info.rows)
    recurrent = isinstance(traced.model.module, AttentionClassifier)
    return Board(
        page="text",
        traced=traced,
        part=part,
        layers=info.layers,
        heads=info.heads,
        queries=len(info.rows),
        targets=targets,
        keys=info.columns,
        queried=() if recurrent else info.rows,
        pinned=None if merged or recurrent else pinned,
        direction=source.direction,
        recurrent=recurrent,
    )
