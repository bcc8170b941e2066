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
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from analysis.export_cells import csv_cell as csv_cell  # for tables that are no figures
from analysis.export_cells import strings
from analysis.figure_data import (
    LINE_CAP,
    AttentionContrast,
    CheckedNumber,
    CheckedSet,
    EvidenceMaps,
    EvidencePanel,
    EvidenceWords,
    Figure,
    HeadEffects,
    HeadGrid,
    HeadStatistic,
    HeadView,
    MatrixView,
    ModelView,
    PatchMaps,
    Provenance,
    TokenLabel,
    TokenScores,
    TradeOff,
    TradeOffPoint,
)
from analysis.figure_lab import (
    Curve,
    CurvePanel,
    CurveSheet,
    Diagram,
    DiagramArrow,
    DiagramStage,
    MatrixSheet,
    NamedMatrix,
    Timeline,
)
from analysis.streamed import StreamedMatrix
from analysis.visible import further_notes, matrix_window, shown_in_words, source_line, visible_text

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
    AttentionContrast: "attention_contrast",
    CheckedSet: "checked_set",
    HeadEffects: "head_effects",
    TradeOff: "trade_off",
    MatrixSheet: "matrix_sheet",
    CurveSheet: "curve_sheet",
    Timeline: "timeline",
    Diagram: "diagram",
}
"""Names of the figure records inside files and file names."""


def export_figure(figure: Figure, provenance: Provenance, format: ExportFormat) -> bytes:
    """The bytes of a file that shows the figure exactly as the screen does, or holds its numbers.

    Args:
        figure: any record of ``analysis.figure_data``.
        provenance: written inside the file; ``read_provenance`` gives it back.
        format: a picture ("png" at 200 dots per inch, "svg" or "pdf" with text as text), "csv" of what is shown,
            "npz" of the exact float32 arrays, or "json" of the choices alone.
    Raises:
        ValueError: for an unknown format, a figure that the format cannot hold (``refusal`` says so beforehand), or
            a check of attention whose parts do not belong together.
        ImportError: if matplotlib is missing and a picture is asked for.
    """
    if format not in get_args(ExportFormat):
        names = ", ".join(get_args(ExportFormat))
        raise ValueError(
            f"export_figure: format must be one of {names} but is {format!r}; choose one of them."
        )
    checks = _checks()
    if type(figure) in checks:
        checks[type(figure)](figure, "export_figure")
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
    if isinstance(figure, MatrixView) and isinstance(figure.weights, StreamedMatrix):
        return (
            f"the CSV file would have {rows:,} rows, more than the {CSV_ROWS:,} that a spreadsheet opens; zoom in, "
            "or take NPZ, which holds the largest weight of each block."
        )
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
    AttentionContrast: lambda view: int(view.weights.size),
    CheckedSet: lambda view: len(view.names),
    HeadEffects: lambda view: int(view.heads.size + view.layers.size + view.whole.size),
    TradeOff: lambda view: len(view.points),
    MatrixSheet: lambda view: sum(int(matrix.values.size) for matrix in view.matrices),
    CurveSheet: lambda view: sum(int(curve.x.size) for panel in view.panels for curve in panel.curves),
    Timeline: lambda view: len(view.entries),
    Diagram: lambda view: len(view.stages),
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
    start = first_shown(figure)
    if start:
        parts.append(f"from-{start}")
    if isinstance(figure, EvidenceBoard) and len(figure.panels) == 1:
        parts.extend((figure.panels[0].method, figure.panels[0].target))
    return "_".join(filter(None, (safe_name(part) for part in parts)))


def first_shown(figure: Figure) -> int:
    """The first token, or word, that a part of a long text holds; 0 for a whole one."""
    if isinstance(figure, HeadView):
        return figure.starts[0]
    return figure.start if isinstance(figure, TokenScores | EvidenceWords) else 0


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


_DATA = {(CheckedSet, "names"), (AttentionContrast, "source"), (Timeline, "entries")}
"""Fields that are data, not choices: texts stand in data files alone."""


@cache
def _checks() -> Mapping[type, Callable[[Any, str], None]]:
    """Checks of records, imported when a file is written: the first page offers files and writes none."""
    from analysis.visible_checks import check_checked_set, check_head_effects, check_trade_off
    from analysis.visible_contrast import check_contrast
    from analysis.visible_lab import check_curve_sheet, check_matrix_sheet
    from analysis.visible_story import check_diagram, check_timeline

    return {
        AttentionContrast: check_contrast,
        CheckedSet: check_checked_set,
        HeadEffects: check_head_effects,
        TradeOff: check_trade_off,
        MatrixSheet: check_matrix_sheet,
        CurveSheet: check_curve_sheet,
        Timeline: check_timeline,
        Diagram: check_diagram,
    }


# The record inside every file -----------------------------------------------------------------------------------


def figure_document(figure: Figure, provenance: Provenance) -> dict[str, Any]:
    """The JSON document that every file carries: provenance, the figure's kind, and every choice on the screen."""
    choices: dict[str, Any] = {}
    arrays: dict[str, Any] = {}
    for item in dataclasses.fields(figure):
        value = getattr(figure, item.name)
        if isinstance(value, np.ndarray):
            arrays[item.name] = _array_summary(value)
        elif isinstance(value, StreamedMatrix):
            arrays[item.name] = {"shape": list(value.shape), "streamed": f"{value.factor} × {value.factor}"}
            arrays["overview"] = _array_summary(value.overview)
        elif not _is_labels(value) and (type(figure), item.name) not in _DATA:
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


def _number_summary(number: CheckedNumber) -> dict[str, Any]:
    """A number of every input without its values."""
    return {"key": number.key, "title": number.title, "values": _array_summary(number.values)}


def _matrix_summary(matrix: NamedMatrix) -> dict[str, Any]:
    """A matrix of a sheet without its values and labels."""
    choices = {"name": matrix.name, "scale": matrix.scale, "limit": matrix.limit, "axes": list(matrix.axes)}
    return {**choices, "note": matrix.note, "values": _array_summary(matrix.values)}


def _panel_summary(panel: CurvePanel) -> dict[str, Any]:
    """A panel of curves without their numbers and labels."""
    names = ("title", "x_title", "y_title", "log_x", "log_y", "mark")
    return {name: getattr(panel, name) for name in names} | {
        "curves": list(map(_curve_summary, panel.curves))
    }


def _curve_summary(curve: Curve) -> dict[str, Any]:
    arrays = {name: getattr(curve, name) for name in ("x", "y", "low", "high")}
    summaries = {name: None if array is None else _array_summary(array) for name, array in arrays.items()}
    return {"name": curve.name, "style": curve.style, "hue": curve.hue, **summaries}


def _stage_summary(stage: DiagramStage) -> dict[str, Any]:
    """A stage of a diagram without its numbers."""
    named = {item.name: getattr(stage, item.name) for item in dataclasses.fields(stage)}
    return named | {"values": _matrix_summary(stage.values)}


_SUMMARIES: Mapping[type, Callable[[Any], dict[str, Any]]] = {
    HeadStatistic: _numbers_summary,
    CheckedNumber: _number_summary,
    NamedMatrix: _matrix_summary,
    CurvePanel: _panel_summary,
    DiagramStage: _stage_summary,
    DiagramArrow: dataclasses.asdict,
}
"""Records inside a figure that hold arrays, of which a document tells shape and hash alone."""


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
    if isinstance(value, EvidencePanel | TradeOffPoint):
        return _plain(dataclasses.asdict(value))
    if type(value) in _SUMMARIES:
        return _plain(_SUMMARIES[type(value)](value))
    if isinstance(value, Mapping):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, Sequence | set | frozenset) and not isinstance(value, bytes):
        return [_plain(entry) for entry in value]
    return str(value)


# Data files -----------------------------------------------------------------------------------------------------
# What they hold is imported when one is written, as the checks are.


def _write_json(figure: Figure, provenance: Provenance) -> bytes:
    from analysis.export_rows import ENTRIES

    document = figure_document(figure, provenance)
    for name, labels in _label_sets(figure).items():
        document.setdefault("tokens", {})[name] = [dataclasses.asdict(label) for label in labels]
    if type(figure) in ENTRIES:
        document.update(ENTRIES[type(figure)](figure))
    return (json.dumps(document, ensure_ascii=True, allow_nan=False, indent=1) + "\n").encode()


def _write_csv(figure: Figure, provenance: Provenance) -> bytes:
    from analysis.export_rows import ROWS

    shown = shown_in_words(figure)
    header = [
        "AttnScope figure data, UTF-8. Indices count from 0.",
        "Read with pandas.read_csv(file, comment='#', keep_default_na=False).",
        "A label that a spreadsheet would run as a formula has one apostrophe put before it.",
        source_line(provenance),
        shown,
        *further_notes(provenance, shown),
        "provenance: " + document_text(figure, provenance),
    ]
    lines = [f"# {visible_text(line)}" for line in header]
    lines.extend(ROWS[type(figure)](figure, provenance))
    return ("\n".join(lines) + "\n").encode("utf-8")


def _write_npz(figure: Figure, provenance: Provenance) -> bytes:
    from analysis.export_rows import ARRAYS

    arrays: dict[str, NDArray[Any]] = {}
    for item in dataclasses.fields(figure):
        value = getattr(figure, item.name)
        if isinstance(value, np.ndarray):
            arrays[item.name] = value if value.dtype == np.uint8 else np.asarray(value, dtype=np.float32)
        elif isinstance(value, StreamedMatrix) and isinstance(figure, MatrixView):
            arrays.update(_streamed_arrays(figure, value))
    for name, labels in _label_sets(figure).items():
        arrays[f"{name}_text"] = strings(label.text for label in labels)
        arrays[f"{name}_piece"] = strings(label.piece for label in labels)
        arrays[f"{name}_special"] = np.array([label.special for label in labels], dtype=bool)
        arrays[f"{name}_segment"] = np.array([label.segment for label in labels], dtype=np.int64)
    if type(figure) in ARRAYS:
        arrays.update(ARRAYS[type(figure)](figure))
    arrays["provenance"] = np.array(document_text(figure, provenance))
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    return buffer.getvalue()


def _streamed_arrays(figure: MatrixView, weights: StreamedMatrix) -> dict[str, NDArray[Any]]:
    """Of a matrix too large to be written out: its overview, and the zoomed part exactly where that fits."""
    from attn_core.budget import fits

    rows, columns = matrix_window(figure)
    arrays: dict[str, NDArray[Any]] = {
        "overview": weights.overview,
        "overview_factor": np.array(weights.factor),
    }
    if fits((rows.stop - rows.start) * (columns.stop - columns.start) * 4):
        arrays["weights"] = weights[rows, columns]
        arrays["weights_start"] = np.array([rows.start, columns.start])
    return arrays


def _label_sets(figure: Figure) -> dict[str, tuple[TokenLabel, ...]]:
    """Token labels of a figure by field name."""
    values = {item.name: getattr(figure, item.name) for item in dataclasses.fields(figure)}
    return {name: value for name, value in values.items() if _is_labels(value)}


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
