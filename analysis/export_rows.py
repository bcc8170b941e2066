"""The numbers of each kind of figure in files: rows of CSV, further arrays of NPZ, further entries of JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from analysis.export_cells import cells, column_name, csv_cell, numbers, strings, told
from analysis.export_checks import (
    candidate_entries,
    checked_rows,
    contrast_arrays,
    contrast_rows,
    effect_arrays,
    effect_entries,
    effect_rows,
    input_entries,
    set_arrays,
    trade_off_arrays,
    trade_off_rows,
)
from analysis.export_lab import (
    curve_arrays,
    curve_entries,
    curve_rows,
    sheet_arrays,
    sheet_entries,
    sheet_rows,
)
from analysis.export_story import (
    diagram_arrays,
    diagram_entries,
    diagram_rows,
    timeline_arrays,
    timeline_entries,
    timeline_rows,
)
from analysis.figure_data import (
    AttentionContrast,
    CheckedSet,
    EvidenceMaps,
    EvidencePanel,
    EvidenceWords,
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
from analysis.visible import matrix_window, visible_lines


def _head_view_rows(view: HeadView, provenance: Provenance) -> Iterator[str]:
    yield "layer,head,query_index,query_token,key_index,key_token,weight"
    lines = visible_lines(view)
    left = [f"{view.starts[0] + index},{cell}" for index, cell in enumerate(cells(view.left))]
    right = [f"{view.starts[1] + index},{cell}" for index, cell in enumerate(cells(view.right))]
    columns = (lines.heads.tolist(), lines.queries.tolist(), lines.keys.tolist(), numbers(lines.weights))
    for head, query, key, weight in zip(*columns, strict=True):
        yield f"{view.layer},{head},{left[query]},{right[key]},{weight}"


def _matrix_view_rows(view: MatrixView, provenance: Provenance) -> Iterator[str]:
    yield "layer,head,query_index,query_token,key_index,key_token,weight"
    rows, columns = matrix_window(view)
    source = f"{csv_cell(provenance.layer)},{csv_cell(provenance.heads)}"
    keys = [f"{index},{cell}" for index, cell in enumerate(cells(view.columns))][columns]
    queries = cells(view.rows)
    for query in range(rows.start, rows.stop):
        start = f"{source},{query},{queries[query]}"
        for key, weight in zip(keys, numbers(view.weights[query, columns]), strict=True):
            yield f"{start},{key},{weight}"


def _model_view_rows(view: ModelView, provenance: Provenance) -> Iterator[str]:
    places = "query_bin,key_bin" if view.cells == "tokens" else "patch_row_bin,patch_column_bin"
    yield f"layer,head,{places},weight"
    for layer, (heads, rows, columns) in enumerate(view.layer_shapes):
        cells = [f"{row},{column}" for row in range(rows) for column in range(columns)]
        for head in range(heads):
            weights = numbers(view.thumbnails[layer, head, :rows, :columns])
            for cell, weight in zip(cells, weights, strict=True):
                yield f"{layer},{head},{cell},{weight}"


def _token_score_rows(view: TokenScores, provenance: Provenance) -> Iterator[str]:
    yield "index,token,score"
    for index, (cell, score) in enumerate(zip(cells(view.tokens), numbers(view.scores), strict=True)):
        yield f"{view.start + index},{cell},{score}"


def _patch_map_rows(view: PatchMaps, provenance: Provenance) -> Iterator[str]:
    yield "panel,title,patch_row,patch_column,value"
    _, rows, columns = view.maps.shape
    cells = [f"{row},{column}" for row in range(rows) for column in range(columns)]
    for panel, (title, values) in enumerate(zip(view.titles, view.maps, strict=True)):
        start = f"{panel},{csv_cell(title)}"
        for cell, value in zip(cells, numbers(values), strict=True):
            yield f"{start},{cell},{value}"


def _evidence_map_rows(view: EvidenceMaps, provenance: Provenance) -> Iterator[str]:
    yield "panel,method,target,patch_row,patch_column,score"
    _, rows, columns = view.maps.shape
    cells = [f"{row},{column}" for row in range(rows) for column in range(columns)]
    for start, values in zip(_panel_cells(view.panels), view.maps, strict=True):
        for cell, value in zip(cells, numbers(values), strict=True):
            yield f"{start},{cell},{value}"


def _evidence_word_rows(view: EvidenceWords, provenance: Provenance) -> Iterator[str]:
    if view.predicted:
        yield from _evidence_table_rows(view)
        return
    yield "panel,method,target,index,token,score"
    labels = [f"{view.start + index},{cell}" for index, cell in enumerate(cells(view.tokens))]
    for start, values in zip(_panel_cells(view.panels), view.scores, strict=True):
        for label, value in zip(labels, numbers(values), strict=True):
            yield f"{start},{label},{value}"


def _evidence_table_rows(view: EvidenceWords) -> Iterator[str]:
    """A row a cell; cells whose token the model has not read are left out."""
    yield "method,word_index,word,probability,index,token,side,score"
    sides = ["decoder" if label.segment else "input" for label in view.tokens]
    labels = [f"{index},{cell},{sides[index]}" for index, cell in enumerate(cells(view.tokens))]
    shares = [""] * len(view.predicted) if view.probabilities is None else numbers(view.probabilities)
    method = csv_cell(view.panels[0].method)
    for place, (word, share) in enumerate(zip(cells(view.predicted), shares, strict=True)):
        values = view.scores[place]
        for label, value, unread in zip(labels, numbers(values), np.isnan(values), strict=True):
            if not unread:
                yield f"{method},{place},{word},{share},{label},{value}"


def _head_grid_rows(view: HeadGrid, provenance: Provenance) -> Iterator[str]:
    """A row a head; the columns of a statistic have its key, and ``_low`` and ``_high`` where it has an interval."""
    stable = np.full(view.best.shape, np.nan) if view.stable is None else view.stable
    columns: dict[str, NDArray[Any]] = {"score": view.scores, "margin": view.margins, "stable": stable}
    for number in view.numbers:
        for name, values in (("", number.values), ("_low", number.low), ("_high", number.high)):
            if values is not None:
                columns[f"{number.key}{name}"] = values
    yield ",".join(["layer,head,class,variant", *map(column_name, columns)])
    cells = [numbers(values) for values in columns.values()]
    for place, (layer, head) in enumerate(np.ndindex(view.best.shape)):
        names = csv_cell(view.classes[view.best[layer, head]]), csv_cell(view.variants[layer][head])
        yield ",".join([str(layer), str(head), *names, *(texts[place] for texts in cells)])


def _head_arrays(view: HeadGrid) -> dict[str, NDArray[Any]]:
    """Texts and statistics of a grid: ``number_values``, ``number_low`` and ``number_high`` are (n, L, H)."""
    nothing = np.full(view.best.shape, np.nan)
    ends = {"values": [number.values for number in view.numbers]}
    for name in ("low", "high"):
        found = [getattr(number, name) for number in view.numbers]
        ends[name] = [nothing if end is None else end for end in found]
    shape = (len(view.numbers), *view.best.shape)
    return {
        "classes": strings(view.classes),
        "variants": strings(name for row in view.variants for name in row).reshape(view.best.shape),
        **{
            f"number_{name}s": strings(getattr(each, name) for each in view.numbers)
            for name in ("key", "title", "unit")
        },
        **{
            f"number_{name}": np.asarray(part, dtype=np.float32).reshape(shape) for name, part in ends.items()
        },
    }


def _head_entries(view: HeadGrid) -> list[dict[str, Any]]:
    """Everything that is known of each head, one after another; numbers as the nearest float32, None for no value."""

    def known(array: NDArray[Any] | None, place: tuple[int, ...]) -> float | None:
        return None if array is None else told(array[place])

    return [
        {
            "layer": place[0],
            "head": place[1],
            "class": view.classes[view.best[place]],
            "variant": view.variants[place[0]][place[1]],
            "score": known(view.scores, place),
            "margin": known(view.margins, place),
            "stable": known(view.stable, place),
            "statistics": {
                number.key: {
                    "value": known(number.values, place),
                    "low": known(number.low, place),
                    "high": known(number.high, place),
                }
                for number in view.numbers
            },
        }
        for place in np.ndindex(view.best.shape)
    ]


def _panel_cells(panels: Sequence[EvidencePanel]) -> list[str]:
    return [
        f"{index},{csv_cell(panel.method)},{csv_cell(panel.target)}" for index, panel in enumerate(panels)
    ]


def _drawn_lines(view: HeadView) -> dict[str, NDArray[Any]]:
    lines = visible_lines(view)
    return {"drawn": np.stack([lines.heads, lines.queries, lines.keys], axis=1).astype(np.int64)}  # (n, 3)


def _panel_arrays(view: EvidenceMaps | EvidenceWords) -> dict[str, NDArray[Any]]:
    return {
        "methods": strings(panel.method for panel in view.panels),
        "targets": strings(panel.target for panel in view.panels),
    }


def _layer_shapes(view: ModelView) -> dict[str, NDArray[Any]]:
    return {} if view.shapes is None else {"shapes": np.array(view.shapes, dtype=np.int64)}  # (L, 3)


ROWS: Mapping[type, Callable[[Any, Provenance], Iterator[str]]] = {
    HeadView: _head_view_rows,
    MatrixView: _matrix_view_rows,
    ModelView: _model_view_rows,
    TokenScores: _token_score_rows,
    PatchMaps: _patch_map_rows,
    EvidenceMaps: _evidence_map_rows,
    EvidenceWords: _evidence_word_rows,
    HeadGrid: _head_grid_rows,
    AttentionContrast: contrast_rows,
    CheckedSet: checked_rows,
    HeadEffects: effect_rows,
    TradeOff: trade_off_rows,
    MatrixSheet: sheet_rows,
    CurveSheet: curve_rows,
    Timeline: timeline_rows,
    Diagram: diagram_rows,
}
"""Lines of the CSV file of each kind, the names of the columns first."""

ARRAYS: Mapping[type, Callable[[Any], dict[str, NDArray[Any]]]] = {
    HeadView: _drawn_lines,
    ModelView: _layer_shapes,
    PatchMaps: lambda view: {"titles": strings(view.titles)},
    EvidenceMaps: _panel_arrays,
    EvidenceWords: _panel_arrays,
    HeadGrid: _head_arrays,
    AttentionContrast: contrast_arrays,
    CheckedSet: set_arrays,
    HeadEffects: effect_arrays,
    TradeOff: trade_off_arrays,
    MatrixSheet: sheet_arrays,
    CurveSheet: curve_arrays,
    Timeline: timeline_arrays,
    Diagram: diagram_arrays,
}
"""What the NPZ file of a kind holds besides the record's own arrays and token labels."""

ENTRIES: Mapping[type, Callable[[Any], dict[str, Any]]] = {
    HeadGrid: lambda view: {"heads": _head_entries(view)},
    AttentionContrast: lambda view: {"candidates": candidate_entries(view)},
    CheckedSet: lambda view: {"inputs": input_entries(view)},
    HeadEffects: lambda view: {"changes": effect_entries(view)},
    MatrixSheet: lambda view: {"matrices": sheet_entries(view)},
    CurveSheet: lambda view: {"curves": curve_entries(view)},
    Timeline: lambda view: {"entries": timeline_entries(view)},
    Diagram: lambda view: {"stages": diagram_entries(view)},
}
"""What the JSON file of a kind holds besides the document."""
