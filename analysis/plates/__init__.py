"""Figure records drawn to PNG, SVG or PDF, one plate for each kind of record.

A plate follows every choice in its record, so a file shows what the screen showed. Files always have a light ground.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from analysis.drawing import Fonts, Sheet, find_fonts, saved, settings
from analysis.figure_data import (
    AttentionContrast,
    CheckedSet,
    EvidenceMaps,
    EvidencePanel,
    EvidenceWords,
    Figure,
    HeadEffects,
    HeadGrid,
    HeadView,
    MatrixView,
    ModelView,
    PatchMaps,
    Provenance,
    TokenScores,
    TradeOff,
)
from analysis.figure_lab import CurveSheet, Diagram, MatrixSheet, Timeline
from analysis.plates.checked_set import draw_checked_set
from analysis.plates.contrast import draw_contrast
from analysis.plates.diagram import draw_diagram
from analysis.plates.evidence import draw_evidence_maps, draw_evidence_words
from analysis.plates.evidence_table import draw_evidence_table
from analysis.plates.frame import Words
from analysis.plates.head_effects import draw_head_effects
from analysis.plates.head_view import draw_head_view
from analysis.plates.heads import draw_head_grid
from analysis.plates.lab import draw_curve_sheet, draw_matrix_sheet
from analysis.plates.matrices import draw_matrix_view, draw_token_scores
from analysis.plates.pictures import draw_model_view, draw_patch_maps
from analysis.plates.timeline import draw_timeline
from analysis.plates.trade_off import draw_trade_off
from analysis.visible import caption_lines, place_line, tokens_of, visible_text
from analysis.visible_lab import texts_of_curves, texts_of_sheet
from analysis.visible_story import texts_of_diagram, texts_of_timeline

__all__ = ["draw_figure"]


def draw_figure(
    figure: Figure, provenance: Provenance, *, format: Literal["png", "svg", "pdf"], document: str
) -> bytes:
    """A picture file of a figure record.

    Args:
        figure: what to draw; every choice in it is followed.
        provenance: told in the caption.
        format: kind of file; PNG has 200 dots per inch.
        document: ASCII JSON to store inside the file (``analysis.export.document_text``).
    """
    title, captions = figure_title(figure, provenance), list(caption_lines(figure, provenance))
    with settings():
        fonts = find_fonts(_all_text(figure, [title, *captions]))
        if fonts.missing and format != "svg":  # in SVG the text stays text and the viewer's fonts draw it
            captions.append(_missing_in_words(fonts.missing))
        sheet = _PLATES[type(figure)](figure, Words(title, tuple(captions)), fonts)
        return saved(sheet, format, title=title, captions=captions, document=document)


def figure_title(figure: Figure, provenance: Provenance) -> str:
    """The record's own title, else its kind, layer and heads."""
    own = getattr(figure, "title", "")
    names = {
        HeadView: "Head view",
        ModelView: "Model view",
        PatchMaps: "Attention over the picture",
        MatrixSheet: "Matrices",
        CurveSheet: "Curves",
        Timeline: "Timeline",
        Diagram: "Diagram",
    }
    name = names.get(type(figure), "Attention")
    if type(figure) in _ABOUT:
        own = " · ".join(filter(None, (_ABOUT[type(figure)], own)))
    return visible_text(own or " · ".join(filter(None, (name, place_line(provenance)))))


_ABOUT: Mapping[type, str] = {
    HeadGrid: "What the heads are for",
    AttentionContrast: "Other attention",
    CheckedSet: "Can attention be called an explanation?",
    HeadEffects: "Edited heads",
    TradeOff: "Trained to attend otherwise",
}
"""What stands before the title of records whose title tells where alone."""


def _all_text(figure: Figure, lines: Sequence[str]) -> str:
    """Every character that may be drawn."""
    labels = (label.text for label in tokens_of(figure))
    titles = _TITLES.get(type(figure), lambda _: ())(figure)
    return "".join(
        [*lines, *(visible_text(text) for text in (*labels, *titles, getattr(figure, "unit", "")))]
    )


def _grid_words(view: HeadGrid) -> tuple[str, ...]:
    return (*view.classes, *(name for row in view.variants for name in row))


def _evidence_words(view: EvidenceMaps | EvidenceWords) -> tuple[str, ...]:
    predicted = view.predicted if isinstance(view, EvidenceWords) else ()
    return (
        *(text for panel in view.panels for text in _panel_words(panel)),
        *(word.text for word in predicted),
    )


def _panel_words(panel: EvidencePanel) -> tuple[str, ...]:
    said = (panel.method, panel.target, panel.empty, panel.warning, panel.claims, panel.cannot)
    return (*said, *panel.facts)


def _missing_in_words(missing: str) -> str:
    named = [f"U+{ord(character):04X} {unicodedata.name(character, '')}".strip() for character in missing[:3]]
    more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
    return (
        f"No font on the exporting machine has {', '.join(named)}{more}: drawn as a box that names the script. "
        "SVG keeps the text itself."
    )


def _draw_words_or_table(view: EvidenceWords, words: Words, fonts: Fonts) -> Sheet:
    return (draw_evidence_table if view.predicted else draw_evidence_words)(view, words, fonts)


_TITLES: Mapping[type, Callable[[Any], tuple[str, ...]]] = {
    PatchMaps: lambda view: view.titles,
    EvidenceMaps: _evidence_words,
    EvidenceWords: _evidence_words,
    HeadGrid: _grid_words,
    AttentionContrast: lambda view: (*view.names, *view.labels, view.change_name),
    CheckedSet: lambda view: view.labels,
    HeadEffects: lambda view: view.edits,
    TradeOff: lambda view: tuple(point.label for point in view.points),
    MatrixSheet: texts_of_sheet,
    CurveSheet: texts_of_curves,
    Timeline: texts_of_timeline,
    Diagram: texts_of_diagram,
}
"""Texts of a figure besides its tokens."""

_PLATES: Mapping[type, Callable[[Any, Words, Fonts], Sheet]] = {
    HeadView: draw_head_view,
    ModelView: draw_model_view,
    MatrixView: draw_matrix_view,
    TokenScores: draw_token_scores,
    PatchMaps: draw_patch_maps,
    EvidenceMaps: draw_evidence_maps,
    EvidenceWords: _draw_words_or_table,
    HeadGrid: draw_head_grid,
    AttentionContrast: draw_contrast,
    CheckedSet: draw_checked_set,
    HeadEffects: draw_head_effects,
    TradeOff: draw_trade_off,
    MatrixSheet: draw_matrix_sheet,
    CurveSheet: draw_curve_sheet,
    Timeline: draw_timeline,
    Diagram: draw_diagram,
}
