"""Sheets of the Lab: rules, files, blob, and what a browser may say; numbers read back, what is odd is refused."""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import json
import math
import xml.etree.ElementTree as ElementTree
from decimal import ROUND_HALF_UP, Decimal

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image
from streamlit.testing.v1 import AppTest

from analysis.export import export_figure, figure_document, refusal
from analysis.figure_data import HEAD_COLOURS
from analysis.figure_lab import Curve, CurvePanel, CurveSheet, MatrixSheet, NamedMatrix
from analysis.plates.evidence import on_white
from analysis.visible import caption_lines, short_label, shown_in_words, visible_text
from analysis.visible_evidence import AGAINST, FOR, evidence_colours
from analysis.visible_lab import (
    MATRIX_SIDE,
    NAMED_TICKS,
    across_ends,
    across_ticks,
    bar_places,
    beyond_limit,
    cell_decimals,
    cell_text,
    curve_colour,
    curve_dash,
    drawn_points,
    has_numbers,
    index_ticks,
    log_ticks,
    matrix_limits,
    name_parts,
    round_ticks,
    shared_scale,
    tick_text,
    up_ends,
)
from dashboard.colour_maps import colour_table
from dashboard.components.lab_views import MatrixCell, checked_matrix_sheet
from dashboard.components.mount import component_files
from dashboard.figures import read_header, unpack
from dashboard.lab_payload import matrix_sheet_payload, sheet_digest
from tests.sample_figures import HOSTILE, curve_sheet, lab_figures, map_sheet, matrix_sheet, provenance

SVG = "{http://www.w3.org/2000/svg}"
ONES = np.ones((2, 3))
HEADER = read_header(matrix_sheet_payload(matrix_sheet()))[0]


def named(values, **changes):
    return NamedMatrix("m", np.asarray(values, dtype=np.float64), **changes)


def sheet(*matrices, **changes):
    return MatrixSheet(matrices, **changes)


def curve(y, x=None, **changes):
    y = np.asarray(y, dtype=np.float64)
    x = np.arange(1.0, len(y) + 1) if x is None else np.asarray(x, dtype=np.float64)
    return Curve(**{"name": "c", "x": x, "y": y, **changes})


def panel(*curves, **changes):
    return CurvePanel(**{"title": "", "x_title": "x", "y_title": "y", "curves": curves, **changes})


def rows_of(figure):
    """The rows of a CSV file as dictionaries."""
    text = export_figure(figure, provenance(), "csv").decode()
    return list(csv.DictReader(line for line in text.splitlines() if not line.startswith("#")))


def floats(rows, column):
    return np.array([row[column] or "nan" for row in rows], dtype=np.float32)


def svg_texts(figure):
    svg = ElementTree.fromstring(export_figure(figure, provenance(), "svg"))
    return ["".join(element.itertext()) for element in svg.iter(f"{SVG}text")]


def png_of(figure):
    with Image.open(io.BytesIO(export_figure(figure, provenance(), "png"))) as picture:
        return np.asarray(picture.convert("RGB")).astype(int)


def height_of(figure):
    svg = ElementTree.fromstring(export_figure(figure, provenance(), "svg"))
    return float(svg.get("height").removesuffix("pt"))


def share_of(pixels, colour):
    return float((np.abs(pixels - np.array(colour)).max(axis=-1) <= 1).mean())


# Rules of matrices --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("d_k", [("d", False), ("k", True)]),
        ("QKᵀ/√d_k", [("QKᵀ/√d", False), ("k", True)]),
        ("softmax(QKᵀ/√d_k)V", [("softmax(QKᵀ/√d", False), ("k", True), (")V", False)]),
        ("head_1 + W_out", [("head", False), ("1", True), (" + W", False), ("out", True)]),
        ("score_mod", [("score_mod", False)]),
        ("d_k_v _x a_", [("d_k_v _x a_", False)]),
        ("", [("", False)]),
    ],
)
def test_names_have_subscripts(name, parts):
    assert list(name_parts(name)) == parts


@given(st.text(st.sampled_from("dkQᵀ√_ (1αx"), max_size=12))
def test_parts_of_a_name_are_the_name(name):
    assert "".join(f"_{text}" if below else text for text, below in name_parts(name)) == name


@given(value=st.floats(-999, 999, width=32), decimals=st.integers(0, 3))
@example(value=0.125, decimals=2)  # half away from 0, as in a browser
@example(value=-2.5, decimals=0)
def test_a_cell_tells_its_value_rounded(value, decimals):
    text = cell_text(value, decimals).replace("−", "-")
    assert not text.startswith("-0") or float(text), "no minus before 0"
    exact = Decimal(value)
    assert Decimal(text) == exact.quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP)
    assert len(text.partition(".")[2]) == decimals


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (1234.0, "1230"),
        (-0.00125, "−0.00125"),
        (1.125, "1.13"),
        (-0.000012, "−1.20e−5"),
        (3e7, "3.00e+7"),
    ],
)
def test_a_cell_without_decimals_tells_three_digits(value, text):
    assert cell_text(value, None) == text
    assert [cell_text(each, 2) for each in (-math.inf, math.inf, math.nan)] == ["−∞", "∞", ""]


@pytest.mark.parametrize(
    ("values", "decimals"),
    [
        ([[1, 0, -12]], 0),
        ([[-np.inf, np.nan]], 0),
        ([[1, 0.5]], 2),
        ([[0.09, 0.01]], 3),
        ([[0.009, 0]], None),
        ([[1000, 0]], None),
    ],
)
def test_decimals_follow_the_matrix(values, decimals):
    assert cell_decimals(named(values, scale="signed")) == decimals


def test_colours_end_at_the_limit_or_the_largest():
    assert matrix_limits(named([[0.5, 0.25]])) == (0.0, 0.5)
    assert matrix_limits(named([[-3, 2, -np.inf]], scale="signed")) == (-3.0, 3.0)
    assert matrix_limits(named([[0, np.nan]])) == (0.0, 1.0)
    assert matrix_limits(named([[1, 0]], scale="mask", limit=3.0)) == (0.0, 1.0)
    assert matrix_limits(named([[0.5]], limit=2.0)) == (0.0, 2.0)
    assert beyond_limit(named([[0.5, -0.1, 0.1]], scale="signed", limit=0.1)) == 1, "0.1 is float32 in files"


def test_one_scale_serves_matrices_that_share_it():
    one, other = named(ONES), named(ONES * 2)
    mask = named(ONES, scale="mask")
    assert shared_scale(sheet(one, mask, one)) == ("weights", 1.0)
    assert shared_scale(sheet(one, other)) is None
    assert shared_scale(sheet(one, dataclasses.replace(one, scale="signed"))) is None
    assert shared_scale(sheet(mask)) is None


def test_numbers_stand_in_small_matrices_that_are_no_masks():
    small, large, mask = named(ONES), named(np.ones((2, 17))), named(ONES, scale="mask")
    view = sheet(small, large, mask)
    assert [has_numbers(view, each) for each in view.matrices] == [True, False, False]
    assert not has_numbers(dataclasses.replace(view, numbers=False), small)


@given(count=st.integers(1, 300), most=st.integers(0, 40))
def test_ticks_of_indices_are_few_and_even(count, most):
    ticks = index_ticks(count, most)
    assert ticks.start == 0
    assert len(ticks) <= max(most, 1)
    assert ticks.step == 1 or len(range(0, count, ticks.step // 2)) > max(most, 1)


# Rules of curves ----------------------------------------------------------------------------------------------------


@given(low=st.floats(-1e6, 1e6), extent=st.floats(1e-3, 1e6))
@example(low=0.0, extent=0.03)
def test_round_ticks_lie_between_the_ends(low, extent):
    ticks = np.array(round_ticks((low, low + extent)))
    assert 2 <= len(ticks) <= 6
    assert ticks.min() >= low - 1e-4 * extent
    assert ticks.max() <= low + extent * 1.0001
    steps = np.diff(ticks)
    np.testing.assert_allclose(steps, steps[0], rtol=1e-6)


@given(low=st.floats(1e-8, 1e8), extent=st.floats(0.05, 12))
def test_logarithmic_ticks_lie_between_the_ends(low, extent):
    ends = low, low * 10.0**extent
    ticks = np.array(log_ticks(ends))
    assert 1 <= len(ticks) <= 9
    assert (np.diff(ticks) > 0).all()
    assert ends[0] <= ticks.min()
    assert ticks.max() <= ends[1] * (1 + 1e-9)


def test_few_values_are_the_ticks_of_a_logarithmic_axis():
    powers = 2.0 ** np.arange(NAMED_TICKS)
    assert log_ticks((0.9, 2100), powers) == tuple(powers)
    assert log_ticks((0.9, 5000), 2.0 ** np.arange(NAMED_TICKS + 1)) == (1.0, 10.0, 100.0, 1000.0)
    assert log_ticks((0.9, 1100), np.array([1, 1.01, 1000])) == (1.0, 10.0, 100.0, 1000.0)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.5, "0.5"), (4096, "4096"), (16384, "16.4k"), (-2e6, "−2M"), (3e9, "3G"), (2e-5, "2e−5")],
)
def test_ticks_are_short(value, text):
    assert tick_text(value) == text


def test_what_cannot_be_drawn_is_left_out():
    each = curve([1, np.nan, 0, -1, 5], x=[0, 1, 2, 3, 4])
    assert drawn_points(each, panel(each)).tolist() == [True, False, True, True, True]
    assert drawn_points(each, panel(each, log_x=True)).tolist() == [False, False, True, True, True]
    assert drawn_points(each, panel(each, log_y=True)).tolist() == [True, False, False, False, True]


def test_ends_hold_curves_intervals_and_the_mark():
    each = curve([2, 3], low=np.array([1.0, np.nan]), high=np.array([9.0, np.nan]))
    low, high = up_ends(panel(each))
    assert low < 1
    assert 9 < high < 10
    low, high = across_ends(panel(each, mark=64.0))
    assert low < 1
    assert 64 < high < 67
    low, high = across_ends(panel(each, mark=64.0, log_x=True))
    assert 0 < low < 1
    assert 64 < high < 80
    bars = panel(curve([5, 6], style="bars"))
    assert up_ends(bars)[0] == 0
    low, high = across_ends(bars)
    assert low < 1 - 0.4
    assert high > 2 + 0.4
    assert up_ends(panel()) == (0.0, 1.06)


def test_bars_of_one_place_stand_beside_each_other():
    first, second = curve([1, 2], x=[0, 2], style="bars"), curve([1, 2], x=[0, 2], style="bars", name="d")
    places = bar_places(panel(first, curve([3.0, 4.0], name="e"), second))
    assert set(places) == {0, 2}
    (one, width), (other, _) = places[0], places[2]
    assert (one, other) == (-width / 2, width / 2)
    assert 2 * width == pytest.approx(0.8 * 2)


def test_curves_keep_their_colour_and_are_told_apart_without_it():
    curves = [curve([1], name=str(index), hue=hue) for index, hue in enumerate((3, None, 3, 13))]
    view = panel(*curves, curve([1], name="4", hue=1, style="dashed"))
    colours = [curve_colour(view, index) for index in range(5)]
    assert colours == [HEAD_COLOURS[place] for place in (3, 1, 3, 1, 1)]
    assert [curve_dash(view, index) for index in range(5)] == ["solid", "solid", "dash", "dash", "dash"]


def test_labels_stand_for_numbers():
    view = curve_sheet().panels[1]
    assert across_ticks(view) == tuple(zip((0.0, 1.0, 2.0), HOSTILE[:3], strict=True))


# Do the parts fit? --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (sheet(), "matrices must be at least one but there are none"),
        (sheet(NamedMatrix(" ", ONES)), "matrix 0: name must be some text but is ' '"),
        (sheet(named(ONES), named(np.ones(3))), r"matrix 1: values of 'm' must be \(rows, columns\).*is \(3,\)"),
        (sheet(named(np.ones((0, 3)))), r"with 1 to 256 of each but is \(0, 3\)"),
        (sheet(named(np.ones((1, MATRIX_SIDE + 1)))), r"but is \(1, 257\); pass a part of a larger one, or pool it"),
        (sheet(named(ONES, rows=("a",))), "rows of 'm' must be 2 labels, or none, but are 1"),
        (sheet(named(ONES, columns=("a", "b"))), "columns of 'm' must be 3 labels, or none, but are 2"),
        (sheet(named(ONES, scale="log")), "scale of 'm' must be one of weights, signed, mask but is 'log'"),
        (sheet(named(-ONES)), "values of 'm' must be at least 0 but one is -1; use the scale 'signed'"),
        (sheet(named(ONES / 2, scale="mask")), "must be 1 where a pair may attend and else 0"),
        (sheet(named(ONES, limit=0.0)), "limit of 'm' must be a finite number above 0 but is 0.0; use None"),
        (sheet(named(ONES, limit=math.inf)), "limit of 'm' must be a finite number above 0 but is inf"),
        (sheet(named(ONES), selected=1), "selected must be one of the 1 matrices, counted from 0, but is 1"),
        (sheet(named(ONES), cell=(0, 3)), r"cell must be the \(row, column\) of a matrix but is \(0, 3\)"),
        (sheet(named(ONES), across=-1), "across must be at least 0 but is -1"),
    ],
)  # fmt: skip
def test_matrices_that_do_not_fit_are_refused(view, message):
    with pytest.raises(ValueError, match=f"matrix_sheet_payload: .*{message}"):
        matrix_sheet_payload(view)
    with pytest.raises(ValueError, match=f"export_figure: .*{message}"):
        export_figure(view, provenance(), "npz")


def test_rounding_is_no_error():
    matrix_sheet_payload(sheet(named([[-1e-8, 1.0]])))


@pytest.mark.parametrize(
    ("panels", "message"),
    [
        ((), "panels must be at least one but there are none"),
        ((panel(curve([1]), curve([2])),), "panel 0: curves must have a name each but 'c' comes twice"),
        ((panel(curve([1], name="")),), "name of a curve must be some text but is ''"),
        ((panel(), panel(curve([1], x=[[1]]))), r"panel 1: x of 'c' must be \(n,\) but is \(1, 1\)"),
        ((panel(curve([1, 2], x=[1])),), r"y of 'c' must be \(1,\), as x is, but is \(2,\)"),
        ((panel(curve([1], low=np.ones(2), high=np.ones(2))),), r"low of 'c' must be \(1,\), as x is"),
        ((panel(curve([np.inf])),), "x and y of 'c' must be finite but are not; use NaN in y"),
        ((panel(curve([1], x=[np.nan])),), "x and y of 'c' must be finite"),
        ((panel(curve([1], labels=("a", "b"))),), "labels of 'c' must be 1, one a point, or none, but are 2"),
        ((panel(curve([1], style="area")),), "style of 'c' must be one of line, dashed, points, bars but is 'area'"),
        ((panel(curve([1], low=np.zeros(1))),), "'c' must have low and high, or neither, but has one of them"),
        ((panel(curve([1, 2], low=np.array([1, 3.0]), high=np.array([1, 4.0]))),), "hold y but do not at point 1"),
        ((panel(curve([1], style="bars"), log_x=True),), "bars must stand on a linear axis but log_x is set"),
        ((panel(mark=0.0, log_x=True),), "mark must be a finite number above 0 but is 0.0; use None"),
        ((panel(mark=math.nan),), "mark must be a finite number but is nan"),
    ],
)  # fmt: skip
def test_curves_that_do_not_fit_are_refused(panels, message):
    with pytest.raises(ValueError, match=f"export_figure: .*{message}"):
        export_figure(CurveSheet(panels), provenance(), "csv")


# Data files ---------------------------------------------------------------------------------------------------------


@given(rows=st.integers(1, 5), columns=st.integers(1, 5), seed=st.integers(0, 99), labelled=st.booleans())
@settings(max_examples=25)
def test_matrices_read_back_from_their_rows(rows, columns, seed, labelled):
    values = np.random.default_rng(seed).normal(size=(2, rows, columns)).astype(np.float32)
    values[0, 0, 0], values[1, -1, -1] = -np.inf, np.nan
    labels = {"rows": tuple("abcde"[:rows]), "columns": tuple("vwxyz"[:columns])} if labelled else {}
    view = sheet(
        *(NamedMatrix(f"m{index}", each, scale="signed", **labels) for index, each in enumerate(values))
    )
    found = rows_of(view)
    assert list(found[0]) == ["matrix", "name", "row", "row_label", "column", "column_label", "value"]
    np.testing.assert_array_equal(floats(found, "value"), values.ravel())
    places = np.array([[int(each[name]) for name in ("matrix", "row", "column")] for each in found])
    np.testing.assert_array_equal(places, np.argwhere(np.ones(values.shape)))
    for each in found:
        assert each["name"] == f"m{each['matrix']}"
        assert each["row_label"] == ("abcde"[int(each["row"])] if labelled else "")
        assert each["column_label"] == ("vwxyz"[int(each["column"])] if labelled else "")


def test_curves_read_back_from_their_rows():
    view = curve_sheet()
    found = rows_of(view)
    assert list(found[0]) == ["panel", "title", "curve", "x", "label", "y", "low", "high"]
    first = [each for each in found if each["curve"] == "measured <here>"]
    measured = view.panels[0].curves[0]
    for name in ("x", "y", "low", "high"):
        np.testing.assert_array_equal(floats(first, name), np.float32(getattr(measured, name)))
    bars = [each for each in found if each["panel"] == "1"]
    assert [each["label"].removeprefix("'") for each in bars] == [*HOSTILE[:3], "", "", ""]
    assert {each["low"] for each in bars} == {""}
    assert bars[0]["curve"] == "'=multi-head", "no spreadsheet runs it"
    assert {each["title"] for each in found} == {"Variance of q · k", ""}


def test_a_large_sheet_is_refused_as_a_table_alone():
    view = sheet(*(named(np.zeros((256, 256))) for _ in range(16)))
    assert "the CSV file would have 1,048,576 rows" in refusal(view, "csv")
    assert refusal(view, "npz") is None


def test_arrays_hold_every_number_by_its_place():
    view, curves = matrix_sheet(), curve_sheet()
    with np.load(io.BytesIO(export_figure(view, provenance(), "npz"))) as arrays:
        assert arrays["names"].tolist() == [visible_text(matrix.name) for matrix in view.matrices]
        for index, matrix in enumerate(view.matrices):
            np.testing.assert_array_equal(arrays[f"matrix_{index}"], np.float32(matrix.values))
            assert arrays[f"matrix_{index}_rows"].tolist() == [visible_text(label) for label in matrix.rows]
            columns = [visible_text(label) for label in matrix.columns]
            assert arrays[f"matrix_{index}_columns"].tolist() == columns
    with np.load(io.BytesIO(export_figure(curves, provenance(), "npz"))) as arrays:
        assert arrays["titles"].tolist() == ["Variance of q · k", ""]
        assert arrays["panel_1_curves"].tolist() == ["=multi-head", "%{x} grouped"]
        for place, each in enumerate(curves.panels):
            for index, one in enumerate(each.curves):
                start = f"panel_{place}_curve_{index}"
                for name in ("x", "y", "low", "high"):
                    values = getattr(one, name)
                    if values is None:
                        assert f"{start}_{name}" not in arrays
                    else:
                        np.testing.assert_array_equal(arrays[f"{start}_{name}"], np.float32(values))
        assert arrays["panel_1_curve_0_labels"].tolist() == list(HOSTILE[:3])


def test_json_tells_what_is_known():
    view, curves = matrix_sheet(), curve_sheet()
    document = json.loads(export_figure(view, provenance(), "json"))
    for index, (entry, matrix) in enumerate(zip(document["matrices"], view.matrices, strict=True)):
        assert (entry["matrix"], entry["name"], entry["scale"]) == (index, matrix.name, matrix.scale)
        assert (entry["shape"], entry["rows"]) == (list(matrix.values.shape), list(matrix.rows))
        assert (entry["columns"], entry["note"]) == (list(matrix.columns), matrix.note)
    assert document["matrices"][1]["limit"] == 3.0
    found = json.loads(export_figure(curves, provenance(), "json"))["curves"]
    assert [entry["panel"] for entry in found] == [0, 0, 0, 1, 1]
    assert found[0]["y"][:3] == [1.1, 1.9, None]
    assert (found[1]["low"], found[3]["labels"]) == (None, list(HOSTILE[:3]))


def test_a_document_tells_shapes_and_hashes_and_no_numbers():
    view, curves = matrix_sheet(), curve_sheet()
    told = figure_document(view, provenance())
    assert told["kind"] == "matrix_sheet"
    for entry, matrix in zip(told["choices"]["matrices"], view.matrices, strict=True):
        exact = np.ascontiguousarray(matrix.values, dtype=np.float32).tobytes()
        digest = {
            "shape": [*matrix.values.shape],
            "dtype": "float32",
            "sha256": hashlib.sha256(exact).hexdigest(),
        }
        assert entry["values"] == digest
        assert (entry["name"], entry["scale"], entry["limit"]) == (matrix.name, matrix.scale, matrix.limit)
    assert told["choices"]["cell"] == [1, 4]
    told = figure_document(curves, provenance())
    assert told["kind"] == "curve_sheet"
    first, second = told["choices"]["panels"]
    assert (first["x_title"], first["log_x"], first["mark"]) == ("d_k", True, 16.0)
    assert first["curves"][0]["high"]["shape"] == [8]
    assert second["curves"][1]["low"] is None
    assert "array(" not in json.dumps(told), "no text of an array"


# Pictures -----------------------------------------------------------------------------------------------------------


def test_words_tell_what_is_shown():
    words = shown_in_words(matrix_sheet())
    assert words.startswith(
        "4 matrices, 4 × 3, 4 × 5, rows down, columns across. Red is above 0, blue below."
    )
    for told in (
        "the hatched or pale ones may not",
        "Each matrix has its own end of colours",
        "Marked: QKᵀ/√d_k.",
    ):
        assert told in words
    scores = matrix_sheet().matrices[1].values
    beyond, empty = int((np.abs(scores[np.isfinite(scores)]) > 3).sum()), int((~np.isfinite(scores)).sum())
    assert beyond > 1
    assert (
        f"{beyond} values lie beyond the end and have its colour. {empty} cells are empty: −∞ or no value."
        in words
    )
    assert words.endswith("Marked cell: row 1, column 4. few words $x^2$.")
    assert "3 matrices, 40 × 24 each, rows down, columns across. Colours end at 0.5." in shown_in_words(
        map_sheet()
    )
    told = shown_in_words(curve_sheet())
    assert told.startswith(
        "Variance of q · k: variance (logarithmic) against d_k (logarithmic) of measured <here>, "
    )
    assert "1 value not above 0 left out. The upright line stands at 16." in told
    assert "MiB of =multi-head, %{x} grouped. Bands and whiskers are intervals. measured here & now." in told
    assert any("few words" in line for line in caption_lines(matrix_sheet(), provenance()))


def test_a_plate_writes_names_labels_numbers_and_notes():
    texts = svg_texts(matrix_sheet())
    for text in (*HOSTILE[5:9], *HOSTILE[:5]):
        assert short_label(text) in texts
    assert {
        "QKᵀ/√d",
        "k",
        "(4 × 5)",
        "a<b<c $x^2$",
        "query ↓",
        "key →",
        "may attend",
        "may not attend",
    } <= set(texts)
    known = matrix_sheet().matrices[1].values
    numbers = [cell_text(float(value), 2) for value in known[np.isfinite(known)]]
    assert not set(numbers) - set(texts)
    assert "−∞" not in texts
    plain = svg_texts(matrix_sheet(numbers=False))
    assert not {number for number in numbers if number.startswith("−")} & set(plain)
    large = svg_texts(map_sheet())
    assert {"head", "0", "1", "2", "16", "32"} <= set(large), "indices along the axes"


def test_a_plate_has_the_colours_of_the_screen():
    plain = png_of(sheet(named([[0.25, 0.5], [1.0, 0.0]]), numbers=False))
    viridis = colour_table("viridis")
    for level in (64, 128, 255, 0):
        assert share_of(plain, viridis[level]) > 0.001
    signed = png_of(sheet(named([[-1.0, 1.0], [0.0, 0.5]], scale="signed"), numbers=False))
    for colour in (AGAINST, FOR, on_white(evidence_colours(True))[191]):
        assert share_of(signed, colour) > 0.001
    causal = np.tril(np.ones((40, 40)))
    mask = png_of(sheet(named(causal, scale="mask")))
    assert share_of(mask, (0x3B, 0x5B, 0x92)) == pytest.approx(share_of(mask, (0xE4, 0xE5, 0xE7)), rel=0.15)
    assert share_of(mask, (0x3B, 0x5B, 0x92)) > 0.03


def test_many_matrices_wrap_and_the_page_grows():
    one = NamedMatrix("m", np.full((6, 6), 0.5), tuple("abcdef"), tuple("abcdef"))
    heights = [height_of(sheet(*[one] * count)) for count in (1, 2, 9)]
    assert heights[0] == heights[1] < heights[2]
    assert height_of(sheet(*[one] * 2, across=1)) > heights[1]


def test_small_matrices_keep_their_labels_where_fewer_stand_in_a_row():
    words = tuple(f"a rather long {index}" for index in range(12))
    one = NamedMatrix("m", np.full((12, 12), 0.5), words, words)
    texts = svg_texts(sheet(one, one, one, across=3))
    assert texts.count("a rather long 7") == 2 * 3


def test_a_plate_draws_curves_in_their_colours_with_bands_and_legends():
    texts = svg_texts(curve_sheet())
    assert {"measured <here>", "theory d", "scaled", "=multi-head", "%{x} grouped", "variance", "MiB"} <= set(
        texts
    )
    assert {"1", "2", "4", "8", "16", "32", "64", "128"} <= set(texts), "the values themselves are ticks"
    pixels = png_of(curve_sheet())
    for hue in (0, 2, 1):
        colour = [int(HEAD_COLOURS[hue][start : start + 2], 16) for start in (1, 3, 5)]
        assert share_of(pixels, colour) > 0.0005
    bare = curve_sheet(panels=(panel(curve([1, 2, 3], x=[1, 2, 3]), curve([np.nan] * 2, name="none")),))
    assert share_of(png_of(bare), [255, 255, 255]) > 0.9


@pytest.mark.parametrize("name", lab_figures())
def test_equal_sheets_give_equal_files(name):
    first, second = (export_figure(lab_figures()[name], provenance(), "svg") for _ in range(2))
    assert first == second


# The blob -----------------------------------------------------------------------------------------------------------


def test_a_blob_holds_what_is_drawn():
    view = matrix_sheet()
    header, arrays = unpack(matrix_sheet_payload(view))
    values = np.concatenate([np.float32(matrix.values).ravel() for matrix in view.matrices])
    np.testing.assert_array_equal(arrays["values"], values)
    np.testing.assert_array_equal(arrays["weights"], colour_table("viridis"))
    np.testing.assert_array_equal(arrays["signed"], evidence_colours(True))
    told = header["matrices"][1]
    assert (told["shape"], told["limit"], told["over"], told["decimals"]) == ([4, 5], 3.0, True, 2)
    assert told["parts"] == [["QKᵀ/√d", False], ["k", True]]
    assert [matrix["numbers"] for matrix in header["matrices"]] == [True, True, False, True]
    assert (header["shared"], header["state"]) == (False, {"selected": 1, "cell": [1, 4]})
    assert header["matrices"][3]["name"] == "� weights"
    assert read_header(matrix_sheet_payload(map_sheet()))[0]["shared"] is True


def test_axes_of_the_same_things_are_one():
    words = ("a", "b")
    query, key = ("query", "feature"), ("key", "feature")
    square = np.ones((2, 2))
    view = sheet(
        NamedMatrix("Q", square, words, axes=query),
        NamedMatrix("K", square, words, axes=key),
        NamedMatrix("QKᵀ", square, words, words, axes=("query", "key")),
        NamedMatrix("plain", square),
        NamedMatrix("words", square, words, words),
    )
    header = read_header(matrix_sheet_payload(view))[0]
    q, k, scores, plain, unnamed = (matrix["axes"] for matrix in header["matrices"])
    assert scores == [q[0], k[0]], "queries of Q, keys of K"
    assert q[1] == k[1]
    assert len({*q, *k, *plain, *unnamed}) == 7, "rows and columns without a name are not the same"
    assert [axis["name"] for axis in header["axes"]][:3] == ["query", "feature", "key"]


def test_labels_are_cut_and_kept():
    view = sheet(NamedMatrix("m", np.ones((1, 2)), ("a" * 40,), ("x", "y\x00")))
    rows, columns = read_header(matrix_sheet_payload(view))[0]["axes"]
    assert (rows["labels"], rows["shorts"]) == (["a" * 40], ["a" * 15 + "…"])
    assert columns == {"name": "", "labels": ["x", "y␀"]}


def test_a_choice_of_other_matrices_is_told_apart():
    view = matrix_sheet()
    same = matrix_sheet(title="", cell=None, selected=None, notes=(), numbers=False)
    assert sheet_digest(view) == sheet_digest(same)
    changed = [
        dataclasses.replace(view.matrices[0], name="other"),
        dataclasses.replace(view.matrices[0], rows=()),
        dataclasses.replace(view.matrices[0], axes=("token", "")),
    ]
    digests = {sheet_digest(sheet(matrix, *view.matrices[1:])) for matrix in changed}
    assert len(digests | {sheet_digest(view)}) == 4


# What a browser says ------------------------------------------------------------------------------------------------

NOTHING = {"select": None, "cleared": False}
junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=8,
)
place = st.lists(st.integers(-1, 6) | junk, min_size=3, max_size=3) | junk


@given(
    junk
    | st.fixed_dictionaries(
        {"select": st.fixed_dictionaries({"input": st.just(HEADER["input"]), "at": place})}
    )
)
@settings(max_examples=150)
def test_no_answer_of_a_browser_breaks_the_sheet(said):
    state = checked_matrix_sheet(said, HEADER)
    assert set(state) == {"select", "cleared"}
    cell = state["select"]
    if cell is not None:
        rows, columns = HEADER["matrices"][cell.matrix]["shape"]
        assert 0 <= cell.row < rows
        assert 0 <= cell.column < columns


@pytest.mark.parametrize(
    "at", [[4, 0, 0], [0, 4, 0], [0, 0, 3], [-1, 0, 0], [True, 0, 0], [0, 0], "000", [0, 0, 0.0]]
)
def test_a_cell_that_there_is_not_is_not_chosen(at):
    assert checked_matrix_sheet({"select": {"input": HEADER["input"], "at": at}}, HEADER) == NOTHING


def test_a_cell_is_chosen_and_cleared():
    said = {"select": {"input": HEADER["input"], "at": [1, 3, 4]}}
    assert checked_matrix_sheet(said, HEADER) == {"select": MatrixCell(1, 3, 4), "cleared": False}
    said["select"]["at"] = None
    assert checked_matrix_sheet(said, HEADER) == {"select": None, "cleared": True}
    assert checked_matrix_sheet({"select": {"input": "other", "at": [1, 3, 4]}}, HEADER) == NOTHING


def sheet_page():
    """A page that shows a sheet."""
    import streamlit as st

    from dashboard.components.lab_views import matrix_sheet as show
    from dashboard.lab_payload import matrix_sheet_payload
    from tests.sample_figures import matrix_sheet as sample

    st.session_state["chosen"] = show(matrix_sheet_payload(sample()), key="sheet")


def test_a_page_sends_the_blob_and_hears_the_cell():
    page = AppTest.from_function(sheet_page).run()
    assert not page.exception
    sent = page.get("bidi_component")[0].proto
    assert sent.bytes == matrix_sheet_payload(matrix_sheet())
    assert sent.js_content == component_files("matrix_sheet").script
    assert page.session_state["chosen"] is None
