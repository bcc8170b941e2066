"""What of a figure record is visible: the lines, tokens, cells and colour limits that screen and export share.

Screen and files must show the same, so each rule stands here once: which lines pass the filters and the line cap,
which part of a matrix is zoomed, where a colour scale ends, and how all of this is said in words under the figure.
NumPy alone.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.figure_data import (
    AttentionContrast,
    CheckedSet,
    EvidenceMaps,
    EvidenceWords,
    Figure,
    HeadEffects,
    HeadGrid,
    HeadView,
    MatrixView,
    ModelView,
    PatchMaps,
    Provenance,
    TokenLabel,
    TokenScores,
    TradeOff,
    strongest_cutoff,
    weight_levels,
)
from analysis.figure_lab import CurveSheet, Diagram, MatrixSheet, Timeline
from analysis.pairs import PAIR_NAMES, Side, in_filter
from analysis.streamed import StreamedMatrix

PICTURE_CELLS = 1024
"""Most cells along one side of a drawn matrix; larger ones are max-pooled for the picture, never for the data."""

OPACITY_CLASSES = 16
"""Lines are drawn in this many steps of opacity, so that a browser strokes few paths."""

LABEL_CHARACTERS = 16
"""A token's label is cut with an ellipsis beyond this many characters."""

INPUT_CHARACTERS = 220
"""How much of the input text the caption repeats; the file's metadata hold all of it."""


@dataclass(frozen=True)
class Lines:
    """The lines of a head view, by head, query and key.

    Attributes:
        heads, queries, keys: (n,) indices into the record's weights.
        weights: (n,) exact weights.
        candidates: how many lines passed the filters and the threshold, before the cap.
        cutoff: smallest level (see ``weight_levels``) that is drawn.
    """

    heads: NDArray[np.intp]
    queries: NDArray[np.intp]
    keys: NDArray[np.intp]
    weights: NDArray[np.float32]
    candidates: int
    cutoff: int


def visible_tokens(view: HeadView) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which query and key tokens take part, (Q,) and (K,): special tokens and the pair filter decide."""
    sides = []
    parts: tuple[tuple[Side, tuple[TokenLabel, ...]], ...] = (("query", view.left), ("key", view.right))
    for side, labels in parts:
        shown = in_filter([label.segment for label in labels], view.pair_filter, side)
        if view.hide_special:
            shown &= ~np.array([label.special for label in labels], dtype=bool)
        sides.append(shown)
    return sides[0], sides[1]


def visible_lines(view: HeadView) -> Lines:
    """The lines that a head view draws: filtered, at or above the threshold, at most the strongest ``LINE_CAP``."""
    left, right = visible_tokens(view)
    if view.pinned is not None:
        side, index = view.pinned
        pinned = np.zeros(len(view.left if side == "left" else view.right), dtype=bool)
        pinned[index] = True
        left, right = (left & pinned, right) if side == "left" else (left, right & pinned)
    chosen = np.ix_(np.array(view.active, dtype=np.intp), np.flatnonzero(left), np.flatnonzero(right))
    weights = np.asarray(view.weights[chosen], dtype=np.float32)  # (active, q, k)
    levels = weight_levels(weights)
    floor = max(1, int(weight_levels(np.array([view.threshold]))[0]))
    cutoff = strongest_cutoff(levels, floor=floor)
    heads, queries, keys = np.nonzero(levels >= cutoff)
    return Lines(
        heads=chosen[0].ravel()[heads],
        queries=chosen[1].ravel()[queries],
        keys=chosen[2].ravel()[keys],
        weights=weights[heads, queries, keys],
        candidates=int((levels >= floor).sum()),
        cutoff=cutoff,
    )


def line_opacity(weights: NDArray[Any]) -> NDArray[np.float64]:
    """Opacity of a line of each weight: its square root in ``OPACITY_CLASSES`` steps, as the browser draws it."""
    classes = weight_levels(weights).astype(np.int64) * OPACITY_CLASSES // 256
    return (np.minimum(classes, OPACITY_CLASSES - 1) + 0.5) / OPACITY_CLASSES


def pinned_shares(view: HeadView) -> NDArray[np.float64] | None:
    """(active heads, tokens of the other column) weights between the pinned token and each; None without a pin."""
    if view.pinned is None or not view.active:
        return None
    side, index = view.pinned
    weights = view.weights[list(view.active)]
    return np.asarray(weights[:, index, :] if side == "left" else weights[:, :, index], dtype=np.float64)


def matrix_window(view: MatrixView) -> tuple[slice, slice]:
    """Rows and columns of a matrix that are zoomed in on (all of them without a zoom)."""
    rows, columns = view.weights.shape
    if view.zoom is None:
        return slice(0, rows), slice(0, columns)
    top, bottom, left, right = view.zoom
    return slice(max(top, 0), min(bottom, rows)), slice(max(left, 0), min(right, columns))


def matrix_limits(view: MatrixView) -> tuple[float, float]:
    """Colour limits of a matrix: the record's own, else 0 to the maximum of the whole matrix, whatever the zoom."""
    if isinstance(view.weights, StreamedMatrix):  # its overview holds the largest weight of every block
        return view.limits if view.limits is not None else (0.0, _maximum(view.weights.overview))
    return view.limits if view.limits is not None else (0.0, _maximum(view.weights))


def matrix_above(view: MatrixView) -> int:
    """How many cells lie above the colour scale; of a streamed matrix, how many blocks of its overview."""
    cells = view.weights.overview if isinstance(view.weights, StreamedMatrix) else view.weights
    return int(above_scale(cells, matrix_limits(view)).sum())


def score_limits(view: TokenScores) -> tuple[float, float]:
    """Colour limits of a row of token scores: the record's own, else 0 (or the minimum below it) to the maximum."""
    if view.limits is not None:
        return view.limits
    finite = view.scores[np.isfinite(view.scores)]
    return float(finite.min(initial=0.0)), _maximum(view.scores)


def ordinary_limits(values: NDArray[Any], keys: Sequence[TokenLabel]) -> tuple[float, float] | None:
    """Colour limits that special tokens do not stretch: 0 to the largest value of an ordinary key.

    Args:
        values: (..., K), not negative; a rollout gives most of each row to the special tokens.
        keys: K labels.
    Returns:
        None where there is nothing to leave out, or nothing left.
    """
    special = np.array([label.special for label in keys], dtype=bool)
    ordinary = values[..., ~special]
    if not special.any() or not (ordinary > 0).any():
        return None
    return 0.0, _maximum(ordinary)


def above_scale(values: NDArray[Any], limits: tuple[float, float]) -> NDArray[np.bool_]:
    """Which values lie above the end of their colour scale and so have its last colour."""
    return np.asarray(values, dtype=np.float32) > np.float32(limits[1])


def thumbnail_limits(view: ModelView) -> NDArray[np.float64]:
    """(L, H) upper end of each thumbnail's scale, which starts at 0."""
    layers, heads = view.thumbnails.shape[:2]
    highest = np.nan_to_num(view.thumbnails.reshape(layers, heads, -1)).max(axis=-1, initial=0.0)  # (L, H)
    if view.shared_scale:
        highest = np.full((layers, heads), highest.max(initial=0.0))
    return np.where(highest > 0, highest, 1.0).astype(np.float64)


def patch_limits(view: PatchMaps) -> NDArray[np.float64]:
    """(M, 2) colour limits of each panel: explicit ones, else 0 (or the minimum below it) to the maximum."""
    panels = len(view.maps)
    if view.limits is not None:
        return np.tile(np.array(view.limits, dtype=np.float64), (panels, 1))
    flat = np.nan_to_num(view.maps.reshape(panels, -1).astype(np.float64))
    lowest, highest = np.minimum(flat.min(axis=1, initial=0.0), 0.0), flat.max(axis=1, initial=0.0)
    if view.shared_scale:
        lowest, highest = np.full(panels, lowest.min(initial=0.0)), np.full(panels, highest.max(initial=0.0))
    highest = np.where(highest > lowest, highest, lowest + 1.0)
    return np.stack([lowest, highest], axis=1)


def pooled_window(view: MatrixView) -> NDArray[Any]:
    """The part of a matrix that is zoomed in on, as ``pooled`` does it; in equal blocks where it is streamed."""
    rows, columns = matrix_window(view)
    if not isinstance(view.weights, StreamedMatrix):
        return pooled(view.weights[rows, columns])
    longest = max(rows.stop - rows.start, columns.stop - columns.start)
    return view.weights.pooled(rows, columns, -(-longest // PICTURE_CELLS))


def pooled(weights: NDArray[Any], cells: int = PICTURE_CELLS) -> NDArray[Any]:
    """A matrix with at most ``cells`` rows and columns, each the maximum of the block that it stands for."""
    for axis in (0, 1):
        length = weights.shape[axis]
        if length > cells:
            starts = np.linspace(0, length, cells, endpoint=False).astype(np.intp)
            weights = np.maximum.reduceat(weights, starts, axis=axis)
    return weights


def short_label(text: str, characters: int = LABEL_CHARACTERS) -> str:
    """A token's text on one line, cut with an ellipsis, control characters shown as symbols."""
    text = visible_text(text)
    if len(text) <= characters:
        return text
    end = characters - 1
    while end > 1 and unicodedata.combining(text[end]):
        end -= 1  # never part a letter from its accents
    return text[:end] + "…"


def visible_text(text: str) -> str:
    """Text with every character that a file may not hold replaced by a visible one.

    Ends of lines and paragraphs become ``⏎`` and tabs ``⇥``, other C0 controls their Unicode pictures (U+2400 on)
    and DEL ``␡``; other controls, lone surrogates and non-characters, which no file may hold, U+FFFD.
    """
    return "".join(_visible_character(character) for character in text)


def _visible_character(character: str) -> str:
    point = ord(character)
    if character in "\n\x85\u2028\u2029":
        return "⏎"
    if character == "\t":
        return "⇥"
    if point < 0x20:
        return chr(0x2400 + point)
    if point == 0x7F:
        return "␡"
    if (
        0x80 <= point < 0xA0
        or 0xD800 <= point < 0xE000
        or point & 0xFFFE == 0xFFFE
        or 0xFDD0 <= point < 0xFDF0
    ):
        return "�"
    return character


# What is shown, in words ---------------------------------------------------------------------------------------


def caption_lines(figure: Figure, provenance: Provenance) -> tuple[str, ...]:
    """The caption under a figure: where it comes from, what is shown of it, what the reader must know, the input."""
    shown = shown_in_words(figure)
    lines = [source_line(provenance), shown, settings_line(provenance), *further_notes(provenance, shown)]
    if provenance.input:
        text = visible_text(provenance.input.replace("\n", " ⏎ "))
        lines.append(
            "Input: " + (text if len(text) <= INPUT_CHARACTERS else text[: INPUT_CHARACTERS - 1] + "…")
        )
    return tuple(visible_text(line) for line in lines if line)


def source_line(provenance: Provenance) -> str:
    """Model, revision, layer, heads, method and aggregation on one line; what is empty is left out."""
    model = provenance.model
    if provenance.revision:
        model += f" (revision {_short_revision(provenance.revision)})"
    aggregation = "" if provenance.aggregation == "none" else provenance.aggregation
    parts = (model, place_line(provenance), provenance.method, aggregation)
    return visible_text(" · ".join(part for part in parts if part))


def place_line(provenance: Provenance) -> str:
    """Layer and heads in words, such as "layer 3 of 0–5 · heads 1, 4"."""
    layer = _counted(provenance.layer, one="layer", many="layers")
    heads = _counted(provenance.heads, one="head", many="heads")
    return visible_text(" · ".join(part for part in (layer, heads) if part))


def settings_line(provenance: Provenance) -> str:
    """The further choices on one line, such as "from: CLS · discard ratio: 0.1"; long ones are left to the file."""
    pairs = [
        f"{name}: {value}"
        for name, value in provenance.settings.items()
        if isinstance(value, str | int | float)
    ]
    return visible_text(" · ".join(pair for pair in pairs if len(pair) <= 120))


def further_notes(provenance: Provenance, shown: str) -> tuple[str, ...]:
    """Notes that the words of what is shown do not hold already: a figure tells its own there."""
    return tuple(note for note in provenance.notes if note.rstrip(".") not in shown)


def shown_in_words(figure: Figure) -> str:
    """What the figure shows and leaves out, in plain sentences."""
    kind = type(figure)
    return (_WORDS[kind] if kind in _WORDS else _other_words()[kind])(figure)


def _head_view_words(view: HeadView) -> str:
    lines = visible_lines(view)
    drawn = len(lines.weights)
    if drawn < lines.candidates:
        sentences = [f"Strongest {drawn:,} of {lines.candidates:,} lines."]
    else:
        sentences = [f"{drawn:,} line{'' if drawn == 1 else 's'}."]
    if drawn:
        sentences.append(f"The weakest line drawn weighs {float(lines.weights.min()):.2g}.")
    if view.threshold > 0:
        sentences.append(f"Threshold {view.threshold:g}.")
    if view.pinned is not None:
        side, index = view.pinned
        label = (view.left if side == "left" else view.right)[index]
        role = "query" if side == "left" else "key"
        place = index + view.starts[("left", "right").index(side)]
        sentences.append(f"Pinned {role} {place} “{short_label(label.text)}”.")
    if view.starts != (0, 0):
        ends = view.starts[0] + len(view.left) - 1, view.starts[1] + len(view.right) - 1
        sentences.append(
            f"Queries {view.starts[0]} to {ends[0]} and keys {view.starts[1]} to {ends[1]} of the input."
        )
    if view.pair_filter != "all":
        sentences.append(f"Only {PAIR_NAMES[view.pair_filter]}.")
    if view.hide_special:
        sentences.append("Special tokens hidden (weights not renormalised).")
    if view.direction == "rtl":
        sentences.append("Right-to-left text; tokens in the model's order.")
    if view.groups is not None:
        sentences.append(f"Heads share key and value heads (kv): {_groups_in_words(view.groups)}.")
    return " ".join(sentences)


def _groups_in_words(groups: Sequence[int]) -> str:
    """Which heads share which key-value head, such as "heads 0–3 kv 0, heads 4–7 kv 1"."""
    runs = [
        (group, list(heads)) for group, heads in groupby(range(len(groups)), key=lambda head: groups[head])
    ]
    if len(runs) > 4 and len({len(heads) for _, heads in runs}) == 1:
        return f"{len(runs)} for {len(groups)} heads, each for {len(runs[0][1])} in order"
    return ", ".join(
        f"head {heads[0]} kv {group}" if len(heads) == 1 else f"heads {heads[0]}–{heads[-1]} kv {group}"
        for group, heads in runs
    )


def _model_view_words(view: ModelView) -> str:
    scale = "one colour scale for all" if view.shared_scale else "each scaled to its own maximum"
    shapes = view.layer_shapes
    heads = spread(heads for heads, _, _ in shapes)
    sizes = list(dict.fromkeys(f"{rows} × {columns}" for _, rows, columns in shapes))
    cells = f"{sizes[0]} cells each" if len(sizes) == 1 else f"{', '.join(sizes)} cells"
    of = ", ".join(dict.fromkeys(f"{rows:,} × {columns:,}" for rows, columns in view.sizes or ()))
    blocks = f", each the largest weight of its block of {of} {view.cells}" if of else ""
    words = f"{len(shapes)} layers × {heads} heads, {cells}{blocks}, {scale}."
    if view.selected is not None:
        words += f" Marked: layer {view.selected[0]}, head {view.selected[1]}."
    return words


def counted(number: int, what: str) -> str:
    """ "1 layer", "6 layers"."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def spread(numbers: Iterable[int]) -> str:
    """ "12", or "3 to 24" where they differ."""
    found = set(numbers)
    return str(min(found)) if len(found) == 1 else f"{min(found)} to {max(found)}"


def _matrix_view_words(view: MatrixView) -> str:
    rows, columns = matrix_window(view)
    shape = view.weights.shape
    sentences = [f"{shape[0]} × {shape[1]} weights, queries down, keys across."]
    if view.scale == "sqrt":
        sentences.append("Colour by the square root of the value.")
    if view.zoom is not None:
        sentences.append(
            f"Zoomed to queries {rows.start} to {rows.stop - 1} and keys {columns.start} to {columns.stop - 1}."
        )
    drawn = pooled_window(view).shape
    if drawn != (rows.stop - rows.start, columns.stop - columns.start):
        sentences.append(f"The picture shows the maximum of each block ({drawn[0]} × {drawn[1]} cells).")
    above = matrix_above(view)
    if above:
        cells = f"{above:,} cell{'s lie' if above > 1 else ' lies'}"
        sentences.append(f"{cells} above the colour scale, which ends at {matrix_limits(view)[1]:.3g}.")
    if view.selected is not None:
        row, column = view.selected
        sentences.append(
            f"Marked: query {row} “{short_label(view.rows[row].text)}”, key {column} "
            f"“{short_label(view.columns[column].text)}”, {float(view.weights[row, column]):.4g}."
        )
    return " ".join(sentences)


def _token_scores_words(view: TokenScores) -> str:
    words = f"{len(view.tokens)} tokens{part_in_words(view.start, len(view.tokens))}."
    if view.scale == "sqrt":
        words += " Colour by the square root of the value."
    if view.source is not None:
        label = short_label(view.tokens[view.source].text)
        words += f" Row of token {view.start + view.source} “{label}” (outlined)."
    if above_scale(view.scores, score_limits(view)).any():
        words += f" {above_in_words(view)}"
    if view.direction == "rtl":
        words += " Right-to-left text; tokens in the model's order."
    return words


def part_in_words(start: int, count: int) -> str:
    """ ", 512 to 1023 of the input", for a part that does not begin where the text does."""
    return f", {start} to {start + count - 1} of the input" if start else ""


def above_in_words(view: TokenScores) -> str:
    """Which tokens lie above the end of the colour scale, and how much of the row is theirs."""
    limit = score_limits(view)[1]
    above = np.flatnonzero(above_scale(view.scores, (0.0, limit)))
    strongest = above[np.argsort(-view.scores[above], kind="stable")][:3]
    labels = (short_label(view.tokens[index].text) for index in strongest)
    named = ", ".join(
        f"“{label}” {float(view.scores[index]):.3g}" for label, index in zip(labels, strongest, strict=True)
    )
    more = ", …" if len(above) > len(strongest) else ""
    count = f"{len(above)} token{'s lie' if len(above) > 1 else ' lies'}"
    return (
        f"{count} above the colour scale, which ends at {limit:.3g}: {named}{more}; "
        f"together {float(view.scores[above].sum()):.3g}."
    )


def _patch_maps_words(view: PatchMaps) -> str:
    panels, rows, columns = view.maps.shape
    scale = "explicit limits" if view.limits is not None else "one scale for all panels"
    if view.limits is None and not view.shared_scale:
        scale = "each panel scaled to its own maximum"
    drawing = "interpolated between patches" if view.smooth else "one square a patch"
    words = f"{rows} × {columns} patches"
    if view.marked is not None:
        words += f", attention of the patch at row {view.marked[0]}, column {view.marked[1]} (outlined)"
    words += f"; opacity {view.opacity:.0%}, {drawing}"
    return words + (f"; {scale}." if panels > 1 or view.limits is not None else ".")


_WORDS: Mapping[type, Callable[[Any], str]] = {
    HeadView: _head_view_words,
    ModelView: _model_view_words,
    MatrixView: _matrix_view_words,
    TokenScores: _token_scores_words,
    PatchMaps: _patch_maps_words,
}


@cache
def _other_words() -> Mapping[type, Callable[[Any], str]]:
    """Words of the figures that the first page does not draw, imported when one of them is drawn."""
    from analysis.visible_checks import (
        contrast_in_words,
        effects_in_words,
        set_in_words,
        trade_off_in_words,
    )
    from analysis.visible_evidence import maps_in_words, texts_in_words
    from analysis.visible_heads import grid_in_words
    from analysis.visible_lab import curves_in_words, sheet_in_words
    from analysis.visible_story import diagram_in_words, timeline_in_words

    return {
        EvidenceMaps: maps_in_words,
        EvidenceWords: texts_in_words,
        HeadGrid: grid_in_words,
        AttentionContrast: contrast_in_words,
        CheckedSet: set_in_words,
        HeadEffects: effects_in_words,
        TradeOff: trade_off_in_words,
        MatrixSheet: sheet_in_words,
        CurveSheet: curves_in_words,
        Timeline: timeline_in_words,
        Diagram: diagram_in_words,
    }


def tokens_of(figure: Figure) -> tuple[TokenLabel, ...]:
    """Every token label that a figure holds, in order; empty for pictures and thumbnails."""
    if isinstance(figure, HeadView):
        return figure.left + figure.right
    if isinstance(figure, MatrixView):
        return figure.rows + figure.columns
    return figure.tokens if isinstance(figure, TokenScores | EvidenceWords | AttentionContrast) else ()


def _short_revision(revision: str) -> str:
    """First twelve digits of a hash, or the revision as it is."""
    hexadecimal = len(revision) >= 40 and all(character in "0123456789abcdefABCDEF" for character in revision)
    return revision[:12] if hexadecimal else revision


def _counted(value: str, *, one: str, many: str) -> str:
    """``5`` as "head 5", ``1, 4`` as "heads 1, 4", ``all 12`` as "all 12 heads"; other words stay as they are."""
    if value == "all" or re.fullmatch(r"all \d+( to \d+)?", value):
        return f"{value} {many}"
    if not value[:1].isdigit():
        return value
    single = re.fullmatch(r"\d+( of \S+)?", value)
    return f"{one if single else many} {value}"


def _maximum(values: NDArray[Any]) -> float:
    """Largest finite value, 1.0 when there is none above zero (a scale needs an extent)."""
    finite = values[np.isfinite(values)]
    highest = float(finite.max()) if finite.size else 0.0
    return highest if highest > 0 else 1.0
