"""Any figure as a file: PNG, SVG, PDF, CSV, NPZ or JSON, each with its provenance written inside.

Pictures are drawn by ``analysis.plates``, which loads matplotlib when the first picture is asked for; data need
NumPy alone. The self-contained HTML page is built by ``dashboard.standalone``, since it holds a browser component.
``read_provenance`` reads the record back out of each kind of file. docs/export.md describes the files.
"""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import math
import re
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from analysis.figure_data import (
    LINE_CAP,
    EvidenceMaps,
    EvidencePanel,
    EvidenceWords,
    Figure,
    HeadGrid,
    HeadStatistic,
    HeadView,
    MatrixView,
    ModelView,
    PatchMaps,
    Provenance,
    TokenLabel,
    TokenScores,
)
from analysis.visible import matrix_window, shown_in_words, source_line, visible_lines, visible_text

EvidenceBoard = EvidenceMaps | EvidenceWords
"""Records whose panels stand side by side and can be files of their own."""

ExportFormat = Literal["png", "svg", "pdf", "csv", "npz", "json"]
PICTURE_FORMATS: tuple[ExportFormat, ...] = ("png", "svg", "pdf")

MEDIA_TYPES: Mapping[str, str] = {
    "png": "image/png",
    "svg": "image/svg+xml",
    "pdf": "application/pdf",
    "html": "text/html",
    "csv": "text/csv",
    "npz": "application/octet-stream",
    "json": "application/json",
}

CSV_ROWS = 1_000_000
"""Most rows of a CSV file: what a spreadsheet can open. Larger data go into NPZ."""

SCHEMA = "attnscope-figure/1"
"""Name and version of the JSON document that every file carries."""

KINDS: Mapping[type, str] = {
    HeadView: "head_view",
    ModelView: "model_view",
    MatrixView: "matrix_view",
    TokenScores: "token_scores",
    PatchMaps: "patch_maps",
    EvidenceMaps: "evidence_maps",
    EvidenceWords: "evidence_words",
    HeadGrid: "head_grid",
}
"""Names of the figure records inside files and file names."""

# Spreadsheets run a cell that begins like this as a formula; the last four are their full-width twins.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "'", "＝", "＋", "－", "＠")


def export_figure(figure: Figure, provenance: Provenance, format: ExportFormat) -> bytes:
    """The bytes of a file that shows the figure exactly as the screen does, or holds its numbers.

    Args:
        figure: any record of ``analysis.figure_data``.
        provenance: written inside the file; ``read_provenance`` gives it back.
        format: a picture ("png" at 200 dots per inch, "svg" or "pdf" with text as text), "csv" of what is shown,
            "npz" of the exact float32 arrays, or "json" of the choices alone.
    Raises:
        ValueError: for an unknown format, or a figure that the format cannot hold (``refusal`` says so beforehand).
        ImportError: if matplotlib is missing and a picture is asked for.
    """
    if format not in get_args(ExportFormat):
        names = ", ".join(get_args(ExportFormat))
        raise ValueError(
            f"export_figure: format must be one of {names} but is {format!r}; choose one of them."
        )
    reason = refusal(figure, format)
    if reason is not None:
        raise ValueError(f"export_figure: {reason}")
    if format in PICTURE_FORMATS:
        from analysis.plates import draw_figure  # matplotlib takes most of a second to import

        picture = cast(Literal["png", "svg", "pdf"], format)
        return draw_figure(figure, provenance, format=picture, document=document_text(figure, provenance))
    return _WRITERS[format](figure, provenance)


def refusal(figure: Figure, format: str) -> str | None:
    """Why the figure cannot be written in this format and what to take instead; None when it can."""
    rows = _ROW_COUNTS[type(figure)](figure) if format == "csv" else 0
    if rows <= CSV_ROWS:
        return None
    advice = _FEWER_ROWS.get(type(figure), "")
    return (
        f"the CSV file would have {rows:,} rows, more than the {CSV_ROWS:,} that a spreadsheet opens; "
        f"take NPZ, which holds all of them{advice}."
    )


_FEWER_ROWS: Mapping[type, str] = {
    MatrixView: ", or zoom in",
    ModelView: ", or open one head",
    PatchMaps: ", or choose one head",
}
"""What else makes a CSV file short enough."""


def _matrix_rows(view: MatrixView) -> int:
    rows, columns = matrix_window(view)
    return int((rows.stop - rows.start) * (columns.stop - columns.start))


_ROW_COUNTS: Mapping[type, Callable[[Any], int]] = {
    HeadView: lambda view: LINE_CAP,
    ModelView: lambda view: sum(math.prod(shape) for shape in view.layer_shapes),
    MatrixView: _matrix_rows,
    TokenScores: lambda view: int(view.scores.size),
    PatchMaps: lambda view: int(view.maps.size),
    EvidenceMaps: lambda view: int(view.maps.size),
    EvidenceWords: lambda view: int(view.scores.size),
    HeadGrid: lambda view: int(view.best.size),
}
"""At most how many rows the CSV file of a figure has, found without writing it."""


def figure_name(figure: Figure, provenance: Provenance, *, model: str = "") -> str:
    """Stem of a file name that tells what is inside, such as ``minilm_head-view_L3_H1-4``.

    Args:
        model: short name of the model; the provenance's when empty.
    """
    parts = [model or provenance.model, KINDS[type(figure)].replace("_", "-")]
    layers = re.match(r"(\d+)(?: to (\d+))?", provenance.layer)
    if layers:
        parts.append("L" + "-".join(filter(None, layers.groups())))
    if re.fullmatch(r"\d+(, ?\d+){0,5}", provenance.heads):
        parts.append("H" + "-".join(re.findall(r"\d+", provenance.heads)))
    if provenance.aggregation not in ("", "none"):
        parts.append(provenance.aggregation.split()[0])
    if isinstance(figure, EvidenceBoard) and len(figure.panels) == 1:
        parts.extend((figure.panels[0].method, figure.panels[0].target))
    return "_".join(filter(None, (safe_name(part) for part in parts)))


def panel_name(panel: EvidencePanel) -> str:
    """A method and what it explains, such as "CDAM for elephant"."""
    return f"{panel.method} for {panel.target}" if panel.target else panel.method


def panel_notes(panel: EvidencePanel) -> tuple[str, ...]:
    """What was measured of one panel, as sentences that name it."""
    told = (panel.empty, panel.warning, *panel.facts)
    return tuple(f"{panel_name(panel)}: {sentence}" for sentence in told if sentence)


def only(view: EvidenceBoard, index: int) -> EvidenceBoard:
    """One panel of an evidence board as a board of its own, drawn as it is among the others.

    Args:
        view: the board.
        index: of the panel.
    Returns:
        the same record with one panel: colours still end where they end on the board. Its title is the board's where
        all of that is about this panel's target, else the panel's name.
    Raises:
        ValueError: if there is no such panel.
    """
    if not 0 <= index < len(view.panels):
        raise ValueError(
            f"only: index must be one of the {len(view.panels)} panels, counted from 0, but is {index}; "
            "choose one of them."
        )
    panel, kept = view.panels[index], slice(index, index + 1)
    whole = {other.target for other in view.panels if other.target} == {panel.target}
    title = view.title if whole else panel_name(panel)
    if isinstance(view, EvidenceMaps):
        return dataclasses.replace(view, maps=view.maps[kept], panels=(panel,), title=title)
    shares = None if view.probabilities is None else view.probabilities[kept]
    return dataclasses.replace(
        view,
        scores=view.scores[kept],
        panels=(panel,),
        title=title,
        predicted=view.predicted[kept],
        probabilities=shares,
    )


def only_provenance(view: EvidenceBoard, provenance: Provenance, index: int) -> Provenance:
    """Where one panel of a board comes from: the board's record without what it says of other panels.

    Raises:
        ValueError: if there is no such panel.
    """
    (panel,) = only(view, index).panels
    own = panel_notes(panel)
    others = {note for other in view.panels for note in panel_notes(other)}.difference(own)
    settings = {name: value for name, value in provenance.settings.items() if name != "target"}
    return dataclasses.replace(
        provenance,
        method=panel.method,
        settings={"target": panel.target, **settings} if panel.target else settings,
        notes=tuple(note for note in provenance.notes if note not in others),
    )


def safe_name(text: str, *, characters: int = 60) -> str:
    """Text as part of a file name on any system: letters, digits, dot, dash and underscore, never hidden."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:characters].rstrip("-._")


# The record inside every file -----------------------------------------------------------------------------------


def figure_document(figure: Figure, provenance: Provenance) -> dict[str, Any]:
    """The JSON document that every file carries: provenance, the figure's kind, and every choice on the screen."""
    choices: dict[str, Any] = {}
    arrays: dict[str, Any] = {}
    for item in dataclasses.fields(figure):
        value = getattr(figure, item.name)
        if isinstance(value, np.ndarray):
            arrays[item.name] = _array_summary(value)
        elif not _is_labels(value):
            choices[item.name] = _plain(value)
    return {
        "schema": SCHEMA,
        "kind": KINDS[type(figure)],
        "choices": choices,
        "arrays": arrays,
        "shown": shown_in_words(figure),
        "provenance": _plain(dataclasses.asdict(provenance)),
    }


def document_text(figure: Figure, provenance: Provenance) -> str:
    """``figure_document`` as one line of ASCII, safe inside XML, HTML scripts, PDF strings and CSV comments."""
    text = json.dumps(figure_document(figure, provenance), ensure_ascii=True, allow_nan=False)
    return escape_json(text)


def escape_json(text: str) -> str:
    """JSON in which no character can end a script element, open a comment or an entity (``<``, ``>``, ``&``)."""
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _array_summary(array: NDArray[Any]) -> dict[str, Any]:
    """Shape and SHA-256 of an array as float32 (as uint8 for a picture), so that two files can be compared."""
    exact = array if array.dtype == np.uint8 else np.asarray(array, dtype=np.float32)
    digest = hashlib.sha256(np.ascontiguousarray(exact).tobytes()).hexdigest()
    return {"shape": list(array.shape), "dtype": str(exact.dtype), "sha256": digest}


def _numbers_summary(numbers: HeadStatistic) -> dict[str, Any]:
    """A statistic of every head without its numbers."""
    arrays = {"values": numbers.values, "low": numbers.low, "high": numbers.high}
    summaries = {name: None if array is None else _array_summary(array) for name, array in arrays.items()}
    return {"key": numbers.key, "title": numbers.title, "unit": numbers.unit, **summaries}


def _is_labels(value: object) -> bool:
    return isinstance(value, tuple) and bool(value) and all(isinstance(entry, TokenLabel) for entry in value)


def _plain(value: Any) -> Any:
    """A value as JSON can hold it: numbers, text, lists and dictionaries; numbers without a value become None."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, np.generic | np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, int):
        return value
    if isinstance(value, EvidencePanel):
        return _plain(dataclasses.asdict(value))
    if isinstance(value, HeadStatistic):
        return _numbers_summary(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes):
        return [_plain(entry) for entry in value]
    return str(value)


# Data files -----------------------------------------------------------------------------------------------------


def _write_json(figure: Figure, provenance: Provenance) -> bytes:
    document = figure_document(figure, provenance)
    for name, labels in _label_sets(figure).items():
        document.setdefault("tokens", {})[name] = [dataclasses.asdict(label) for label in labels]
    if isinstance(figure, HeadGrid):
        document["heads"] = _head_entries(figure)
    return (json.dumps(document, ensure_ascii=True, allow_nan=False, indent=1) + "\n").encode()


def _write_csv(figure: Figure, provenance: Provenance) -> bytes:
    header = [
        "AttnScope figure data, UTF-8. Indices count from 0.",
        "Read with pandas.read_csv(file, comment='#', keep_default_na=False).",
        "A label that a spreadsheet would run as a formula has one apostrophe put before it.",
        source_line(provenance),
        shown_in_words(figure),
        *provenance.notes,
        "provenance: " + document_text(figure, provenance),
    ]
    lines = [f"# {visible_text(line)}" for line in header]
    lines.extend(_ROWS[type(figure)](figure, provenance))
    return ("\n".join(lines) + "\n").encode("utf-8")


def _write_npz(figure: Figure, provenance: Provenance) -> bytes:
    arrays: dict[str, NDArray[Any]] = {}
    for item in dataclasses.fields(figure):
        value = getattr(figure, item.name)
        if isinstance(value, np.ndarray):
            arrays[item.name] = value if value.dtype == np.uint8 else np.asarray(value, dtype=np.float32)
    for name, labels in _label_sets(figure).items():
        arrays[f"{name}_text"] = _strings(label.text for label in labels)
        arrays[f"{name}_piece"] = _strings(label.piece for label in labels)
        arrays[f"{name}_special"] = np.array([label.special for label in labels], dtype=bool)
        arrays[f"{name}_segment"] = np.array([label.segment for label in labels], dtype=np.int64)
    if isinstance(figure, HeadView):
        drawn = visible_lines(figure)
        arrays["drawn"] = np.stack([drawn.heads, drawn.queries, drawn.keys], axis=1).astype(
            np.int64
        )  # (n, 3)
    if isinstance(figure, PatchMaps):
        arrays["titles"] = _strings(figure.titles)
    if isinstance(figure, EvidenceMaps | EvidenceWords):
        arrays["methods"] = _strings(panel.method for panel in figure.panels)
        arrays["targets"] = _strings(panel.target for panel in figure.panels)
    if isinstance(figure, HeadGrid):
        arrays.update(_head_arrays(figure))
    if isinstance(figure, ModelView) and figure.shapes is not None:
        arrays["shapes"] = np.array(figure.shapes, dtype=np.int64)  # (L, 3)
    arrays["provenance"] = np.array(document_text(figure, provenance))
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _label_sets(figure: Figure) -> dict[str, tuple[TokenLabel, ...]]:
    """Token labels of a figure by field name."""
    values = {item.name: getattr(figure, item.name) for item in dataclasses.fields(figure)}
    return {name: value for name, value in values.items() if _is_labels(value)}


def _strings(texts: Iterable[str]) -> NDArray[np.str_]:
    """Texts as a NumPy array, which cannot hold a lone surrogate and drops trailing NULs (both made visible)."""
    return np.array([visible_text(text) for text in texts], dtype=np.str_)


def _head_view_rows(view: HeadView, provenance: Provenance) -> Iterator[str]:
    yield "layer,head,query_index,query_token,key_index,key_token,weight"
    lines = visible_lines(view)
    left = [f"{view.starts[0] + index},{cell}" for index, cell in enumerate(_cells(view.left))]
    right = [f"{view.starts[1] + index},{cell}" for index, cell in enumerate(_cells(view.right))]
    columns = (lines.heads.tolist(), lines.queries.tolist(), lines.keys.tolist(), _numbers(lines.weights))
    for head, query, key, weight in zip(*columns, strict=True):
        yield f"{view.layer},{head},{left[query]},{right[key]},{weight}"


def _matrix_view_rows(view: MatrixView, provenance: Provenance) -> Iterator[str]:
    yield "layer,head,query_index,query_token,key_index,key_token,weight"
    rows, columns = matrix_window(view)
    source = f"{csv_cell(provenance.layer)},{csv_cell(provenance.heads)}"
    keys = [f"{index},{cell}" for index, cell in enumerate(_cells(view.columns))][columns]
    queries = _cells(view.rows)
    for query in range(rows.start, rows.stop):
        start = f"{source},{query},{queries[query]}"
        for key, weight in zip(keys, _numbers(view.weights[query, columns]), strict=True):
            yield f"{start},{key},{weight}"


def _model_view_rows(view: ModelView, provenance: Provenance) -> Iterator[str]:
    places = "query_bin,key_bin" if view.cells == "tokens" else "patch_row_bin,patch_column_bin"
    yield f"layer,head,{places},weight"
    for layer, (heads, rows, columns) in enumerate(view.layer_shapes):
        cells = [f"{row},{column}" for row in range(rows) for column in range(columns)]
        for head in range(heads):
            weights = _numbers(view.thumbnails[layer, head, :rows, :columns])
            for cell, weight in zip(cells, weights, strict=True):
                yield f"{layer},{head},{cell},{weight}"


def _token_score_rows(view: TokenScores, provenance: Provenance) -> Iterator[str]:
    yield "index,token,score"
    for index, (cell, score) in enumerate(zip(_cells(view.tokens), _numbers(view.scores), strict=True)):
        yield f"{index},{cell},{score}"


def _patch_map_rows(view: PatchMaps, provenance: Provenance) -> Iterator[str]:
    yield "panel,title,patch_row,patch_column,value"
    _, rows, columns = view.maps.shape
    cells = [f"{row},{column}" for row in range(rows) for column in range(columns)]
    for panel, (title, values) in enumerate(zip(view.titles, view.maps, strict=True)):
        start = f"{panel},{csv_cell(title)}"
        for cell, value in zip(cells, _numbers(values), strict=True):
            yield f"{start},{cell},{value}"


def _evidence_map_rows(view: EvidenceMaps, provenance: Provenance) -> Iterator[str]:
    yield "panel,method,target,patch_row,patch_column,score"
    _, rows, columns = view.maps.shape
    cells = [f"{row},{column}" for row in range(rows) for column in range(columns)]
    for start, values in zip(_panel_cells(view.panels), view.maps, strict=True):
        for cell, value in zip(cells, _numbers(values), strict=True):
            yield f"{start},{cell},{value}"


def _evidence_word_rows(view: EvidenceWords, provenance: Provenance) -> Iterator[str]:
    if view.predicted:
        yield from _evidence_table_rows(view)
        return
    yield "panel,method,target,index,token,score"
    labels = [f"{index},{cell}" for index, cell in enumerate(_cells(view.tokens))]
    for start, values in zip(_panel_cells(view.panels), view.scores, strict=True):
        for label, value in zip(labels, _numbers(values), strict=True):
            yield f"{start},{label},{value}"


def _evidence_table_rows(view: EvidenceWords) -> Iterator[str]:
    """A row a cell; cells whose token the model has not read are left out."""
    yield "method,word_index,word,probability,index,token,side,score"
    sides = ["decoder" if label.segment else "input" for label in view.tokens]
    labels = [f"{index},{cell},{sides[index]}" for index, cell in enumerate(_cells(view.tokens))]
    shares = [""] * len(view.predicted) if view.probabilities is None else _numbers(view.probabilities)
    method = csv_cell(view.panels[0].method)
    for place, (word, share) in enumerate(zip(_cells(view.predicted), shares, strict=True)):
        values = view.scores[place]
        for label, value, unread in zip(labels, _numbers(values), np.isnan(values), strict=True):
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
    yield ",".join(["layer,head,class,variant", *map(_column_name, columns)])
    cells = [_numbers(values) for values in columns.values()]
    for place, (layer, head) in enumerate(np.ndindex(view.best.shape)):
        names = csv_cell(view.classes[view.best[layer, head]]), csv_cell(view.variants[layer][head])
        yield ",".join([str(layer), str(head), *names, *(texts[place] for texts in cells)])


def _column_name(name: str) -> str:
    """A name as it is where it is a plain word, else as a cell."""
    return name if re.fullmatch(r"\w+", name) else csv_cell(name)


def _head_arrays(view: HeadGrid) -> dict[str, NDArray[Any]]:
    """Texts and statistics of a grid: ``number_values``, ``number_low`` and ``number_high`` are (n, L, H)."""
    nothing = np.full(view.best.shape, np.nan)
    ends = {"values": [number.values for number in view.numbers]}
    for name in ("low", "high"):
        found = [getattr(number, name) for number in view.numbers]
        ends[name] = [nothing if end is None else end for end in found]
    shape = (len(view.numbers), *view.best.shape)
    return {
        "classes": _strings(view.classes),
        "variants": _strings(name for row in view.variants for name in row).reshape(view.best.shape),
        **{
            f"number_{name}s": _strings(getattr(each, name) for each in view.numbers)
            for name in ("key", "title", "unit")
        },
        **{
            f"number_{name}": np.asarray(part, dtype=np.float32).reshape(shape) for name, part in ends.items()
        },
    }


def _head_entries(view: HeadGrid) -> list[dict[str, Any]]:
    """Everything that is known of each head, one after another; numbers as the nearest float32, None for no value."""

    def told(array: NDArray[Any] | None, place: tuple[int, ...]) -> float | None:
        value = np.nan if array is None else np.float32(array[place])
        return float(str(value)) if np.isfinite(value) else None

    return [
        {
            "layer": place[0],
            "head": place[1],
            "class": view.classes[view.best[place]],
            "variant": view.variants[place[0]][place[1]],
            "score": told(view.scores, place),
            "margin": told(view.margins, place),
            "stable": told(view.stable, place),
            "statistics": {
                number.key: {
                    "value": told(number.values, place),
                    "low": told(number.low, place),
                    "high": told(number.high, place),
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


def csv_cell(text: str) -> str:
    """Text as a quoted CSV cell that no spreadsheet runs.

    A cell of two or more characters that begins like a formula, or with an apostrophe, gets one apostrophe before
    it: taking one leading apostrophe away restores every such cell.
    """
    text = visible_text(text)
    if len(text) > 1 and text.startswith(_FORMULA_STARTS):
        text = "'" + text
    return '"' + text.replace('"', '""') + '"'


def _cells(labels: Sequence[TokenLabel]) -> list[str]:
    return [csv_cell(label.text) for label in labels]


def _numbers(values: NDArray[Any]) -> list[str]:
    """Shortest decimal text of each float32, which reads back to the same float32."""
    texts: list[str] = np.asarray(values, dtype=np.float32).ravel().astype(np.str_).tolist()
    return texts


_ROWS: Mapping[type, Callable[[Any, Provenance], Iterator[str]]] = {
    HeadView: _head_view_rows,
    MatrixView: _matrix_view_rows,
    ModelView: _model_view_rows,
    TokenScores: _token_score_rows,
    PatchMaps: _patch_map_rows,
    EvidenceMaps: _evidence_map_rows,
    EvidenceWords: _evidence_word_rows,
    HeadGrid: _head_grid_rows,
}

_WRITERS: Mapping[str, Callable[[Figure, Provenance], bytes]] = {
    "csv": _write_csv,
    "npz": _write_npz,
    "json": _write_json,
}


# Reading the record back ----------------------------------------------------------------------------------------


def read_provenance(data: bytes, format: str) -> dict[str, Any]:
    """The JSON document that a file carries (see ``figure_document``).

    Args:
        data: the file.
        format: its kind: one of ``ExportFormat``, or "html".
    Raises:
        ValueError: for an unknown format or a file without the document.
    """
    if format not in _READERS:
        names = ", ".join(_READERS)
        raise ValueError(
            f"read_provenance: format must be one of {names} but is {format!r}; choose one of them."
        )
    text = _READERS[format](data)
    if text is None:
        raise ValueError(
            f"read_provenance: data must be a {format} file written by AttnScope but holds no record; "
            "give the file as it was exported."
        )
    document = json.loads(text)
    if not isinstance(document, dict) or not str(document.get("schema", "")).startswith("attnscope-figure/"):
        raise ValueError(
            f"read_provenance: data must hold a document of schema {SCHEMA}; give an exported file."
        )
    return document


def _read_png(data: bytes) -> str | None:
    position = 8
    while position + 8 <= len(data):
        length, kind = struct.unpack(">I4s", data[position : position + 8])
        body = data[position + 8 : position + 8 + length]
        if kind == b"tEXt" and body.startswith(b"attnscope\0"):
            return body[10:].decode("latin-1")
        if kind == b"zTXt" and body.startswith(b"attnscope\0"):
            return zlib.decompress(body[11:]).decode("latin-1")
        position += 12 + length
    return None


def _read_svg(data: bytes) -> str | None:
    match = re.search(rb'<metadata id="attnscope">(.*?)</metadata>', data, re.DOTALL)
    return match.group(1).decode("ascii") if match else None


def _read_pdf(data: bytes) -> str | None:
    start = data.rfind(b"/Keywords (")
    if start < 0:
        return None
    end = start = start + len(b"/Keywords (")
    while end < len(data) and data[end : end + 1] != b")":
        end += 2 if data[end : end + 1] == b"\\" else 1
    return re.sub(rb"\\(.)", rb"\1", data[start:end]).decode("latin-1")


def _read_html(data: bytes) -> str | None:
    match = re.search(rb'<script type="application/json" id="attnscope">(.*?)</script>', data, re.DOTALL)
    return match.group(1).decode("ascii") if match else None


def _read_csv(data: bytes) -> str | None:
    match = re.search(rb"^# provenance: (\{.*\})$", data, re.MULTILINE)
    return match.group(1).decode("ascii") if match else None


def _read_npz(data: bytes) -> str | None:
    with np.load(io.BytesIO(data), allow_pickle=False) as arrays:
        return str(arrays["provenance"]) if "provenance" in arrays else None


def _read_json(data: bytes) -> str | None:
    return data.decode("utf-8")


_READERS: Mapping[str, Callable[[bytes], str | None]] = {
    "png": _read_png,
    "svg": _read_svg,
    "pdf": _read_pdf,
    "html": _read_html,
    "csv": _read_csv,
    "npz": _read_npz,
    "json": _read_json,
}
