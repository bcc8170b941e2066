"""The grid of heads: its blob, what a browser says of it, its colours and marks, and its files of every kind."""

from __future__ import annotations

import base64
import dataclasses
import io
import itertools
import json
import re
import xml.etree.ElementTree as ElementTree
from typing import get_args

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from streamlit.testing.v1 import AppTest

from analysis.export import ExportFormat, export_figure, figure_name, read_provenance, refusal
from analysis.figure_data import HeadStatistic, weight_levels
from analysis.visible import caption_lines, shown_in_words, visible_text
from analysis.visible_heads import (
    CLASS_COLOURS,
    MIXED_COLOUR,
    PALE,
    class_colour,
    class_counts,
    drawn_heads,
    grid_marks,
    head_mark,
)
from dashboard.components.head_views import checked_head_grid
from dashboard.components.mount import component_files
from dashboard.figures import read_header, unpack
from dashboard.heads_payload import TOLD_NUMBERS, head_grid_payload
from dashboard.standalone import figure_html
from tests.sample_figures import head_grid, head_grids, provenance, softmax_rows

GRIDS = head_grids()
HEADER = read_header(head_grid_payload(head_grid()))[0]


# The blob -------------------------------------------------------------------------------------------------------


def test_a_blob_holds_what_is_drawn():
    view = head_grid(shown=(3, 0, 0))
    header, arrays = unpack(head_grid_payload(view))
    assert (header["layers"], header["heads"], header["attention"]) == (2, 3, "encoder")
    assert [entry["title"] for entry in header["classes"]] == list(view.classes)
    assert [entry["count"] for entry in header["classes"]] == [2, 2, 1, 1]
    assert header["classes"][-1]["colour"] == MIXED_COLOUR
    assert header["marks"] == [["prev", "/scr", "het"], ["SEP", "+3", "مرحبا"]]
    assert header["variants"][1] == ["[SEP]", "+3", ""]
    assert header["state"] == {"shown": [0, 3], "marked": [1, 2]}
    assert header["numbers"][0] == {"title": "Entropy", "unit": "nats"}
    assert header["notes"] == list(view.notes)
    np.testing.assert_array_equal(arrays["best"], view.best)
    for name, values in (("scores", view.scores), ("margins", view.margins), ("stable", view.stable)):
        np.testing.assert_array_equal(arrays[name], values.astype(np.float32))
    np.testing.assert_array_equal(arrays["weights"], weight_levels(view.thumbnails))
    np.testing.assert_array_equal(arrays["limits"], view.thumbnails.max(axis=(2, 3)))
    np.testing.assert_array_equal(arrays["values"][1], view.numbers[1].values)
    np.testing.assert_array_equal(arrays["low"][0], view.numbers[0].low)
    assert np.isnan(arrays["high"][1]).all()


def test_a_blob_without_maps_and_numbers_is_small():
    header, arrays = unpack(head_grid_payload(GRIDS["plain"]))
    assert set(arrays) == {"best", "scores", "margins"}
    assert (header["numbers"], header["more"], header["state"]["marked"]) == ([], 0, None)


def test_of_many_statistics_the_first_are_sent_and_the_rest_told():
    numbers = tuple(
        HeadStatistic(f"k{index}", f"t{index}", "", np.full((2, 3), index)) for index in range(20)
    )
    header, arrays = unpack(head_grid_payload(head_grid(numbers=numbers)))
    assert (len(header["numbers"]), header["more"]) == (TOLD_NUMBERS, 6)
    assert arrays["values"][:, 0, 0].tolist() == list(range(TOLD_NUMBERS))


def test_an_answer_about_other_classes_or_heads_is_told_apart():
    digests = {
        unpack(head_grid_payload(view))[0]["input"]
        for view in (
            head_grid(),
            head_grid(kind="cross"),
            head_grid(classes=("Positional", "Delimiter", "Local", "Heterogeneous")),
        )
    }
    assert len(digests) == 3
    assert unpack(head_grid_payload(head_grid(title="other texts")))[0]["input"] in digests


WRONG = np.full((2, 3), 2.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"best": np.zeros(3, int)}, r"best must be \(layers, heads\) with at least one of each but is \(3,\)"),
        ({"best": np.zeros((0, 3), int)}, r"best must be \(layers, heads\)"),
        ({"best": np.full((2, 3), 4)}, "best must hold whole numbers from 0 to 3, indices of classes, but is int64"),
        ({"best": np.full((2, 3), -1)}, "best must hold whole numbers from 0 to 3"),
        ({"best": np.zeros((2, 3))}, "best must hold whole numbers from 0 to 3.* but is float64"),
        ({"classes": tuple("abcdefghijklmn")}, "classes must be 1 to 13 titles but are 14; more cannot be told"),
        ({"classes": ()}, "classes must be 1 to 13 titles but are 0"),
        ({"variants": (("", "", ""), ("", ""))}, r"variants must be 2 rows of 3 names but have \[3, 2\] names"),
        ({"scores": np.zeros((3, 2))}, r"scores must be \(2, 3\) but is \(3, 2\); pass one value a head"),
        ({"scores": WRONG}, "scores must lie between 0 and 1 but run from 2 to 2"),
        ({"margins": -WRONG}, "margins must lie between 0 and 1 but run from -2 to -2"),
        ({"stable": WRONG}, "stable must lie between 0 and 1"),
        ({"thumbnails": np.zeros((2, 4, 5, 5))}, r"thumbnails must be \(2, 3, rows, columns\) but is \(2, 4, 5, 5\)"),
        ({"thumbnails": np.zeros((2, 3, 65, 5))}, "thumbnails must have at most 64 cells a side but are 65 × 5"),
        ({"shown": (0, 4)}, r"shown must be indices of 4 classes but is \(0, 4\); use None for all"),
        ({"marked": (2, 0)}, r"marked must be a \(layer, head\) of 2 × 3 but is \(2, 0\)"),
        ({"numbers": head_grid().numbers * 2}, "numbers must have a key each but 'entropy' comes twice"),
        ({"numbers": (HeadStatistic("a", "A", "", WRONG, WRONG),)}, "interval of 'a' must have low and high"),
        ({"numbers": (HeadStatistic("a", "A", "", WRONG[:1]),)}, r"values of 'a' must be \(2, 3\) but is \(1, 3\)"),
        ({"numbers": (HeadStatistic("a", "A", "", WRONG, WRONG, WRONG[0]),)}, r"high of 'a' must be \(2, 3\)"),
    ],
    ids=lambda value: value[:34] if isinstance(value, str) else "",
)  # fmt: skip
def test_parts_that_do_not_belong_together_are_refused(changes, message):
    with pytest.raises(ValueError, match=f"head_grid_payload: .*{message}"):
        head_grid_payload(head_grid(**changes))


def test_a_score_that_there_is_not_is_no_error():
    lacking = np.full((2, 3), np.nan)
    _, arrays = unpack(head_grid_payload(head_grid(scores=lacking, margins=lacking, stable=lacking)))
    assert np.isnan(arrays["scores"]).all()
    assert export_figure(head_grid(scores=lacking), provenance(), "svg")


# What a browser says --------------------------------------------------------------------------------------------

junk = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 5) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=8,
)
answer = st.fixed_dictionaries(
    {}, optional={"input": st.just(HEADER["input"]) | junk, "at": junk, "marked": junk, "shown": junk}
)


@given(st.fixed_dictionaries({}, optional={"view": answer | junk, "open": answer | junk}) | junk)
@settings(max_examples=150)
def test_no_answer_of_a_browser_breaks_the_grid(said):
    state = checked_head_grid(said, HEADER)
    assert set(state) <= {"open", "marked", "shown"}
    heads = [None, *([layer, head] for layer in range(2) for head in range(3))]
    assert state["open"] in heads
    assert state.get("marked") in heads
    shown = state.get("shown")
    assert shown is None or (shown == sorted(set(shown)) and set(shown) <= set(range(4)))
    assert not any(isinstance(index, bool) for index in shown or [])
    json.dumps(state)


def said(**view):
    return {"view": {"input": HEADER["input"], **view}}


def test_an_answer_that_fits_is_taken():
    opened = {"open": {"input": HEADER["input"], "at": [1, 2]}}
    assert checked_head_grid(opened, HEADER) == {"open": [1, 2]}
    assert checked_head_grid(said(marked=[0, 2], shown=[3, 1, 1]), HEADER) == {
        "open": None,
        "marked": [0, 2],
        "shown": [1, 3],
    }
    assert checked_head_grid(said(marked=None, shown=None), HEADER) == {
        "open": None,
        "marked": None,
        "shown": None,
    }
    assert checked_head_grid(said(shown=[]), HEADER)["shown"] == []


@pytest.mark.parametrize("place", [[2, 0], [0, 3], [-1, 0], [0], [0, 0, 0], [True, 0], "00", {"0": 0}])
def test_a_head_that_there_is_not_is_not_taken(place):
    assert checked_head_grid(said(marked=place), HEADER) == {"open": None}
    assert checked_head_grid({"open": {"input": HEADER["input"], "at": place}}, HEADER) == {"open": None}


def test_an_answer_about_another_grid_is_not_taken():
    other = {"input": "other", "marked": [0, 0], "shown": [0], "at": [0, 0]}
    assert checked_head_grid({"view": other, "open": other}, HEADER) == {"open": None}


def grid_page():
    """A page as the app writes it: it follows what the component said."""
    import streamlit as st

    from dashboard.components.head_views import head_grid, head_grid_state
    from dashboard.figures import read_header
    from dashboard.heads_payload import head_grid_payload
    from tests.sample_figures import head_grid as sample

    said = head_grid_state(read_header(head_grid_payload(sample()))[0], key="grid")
    wanted = {name: said[name] for name in ("marked", "shown") if name in said}
    wanted |= st.session_state.get("wanted", {})
    st.session_state["state"] = head_grid(head_grid_payload(sample(**wanted)), key="grid", height=300)


def sent(page):
    assert not page.exception
    return page.get("bidi_component")[0].proto


def test_a_page_sends_the_blob_and_hears_checked_choices():
    page = AppTest.from_function(grid_page).run()
    proto = sent(page)
    assert proto.bytes == head_grid_payload(head_grid())
    assert proto.js_content == component_files("head_grid").script
    assert proto.css_content == component_files("head_grid").style
    assert page.session_state["state"] == {"open": None}
    page.session_state["grid"] = said(marked=[0, 1], shown=[2, 0])
    page.run()
    assert page.session_state["state"] == {"open": None, "marked": [0, 1], "shown": [0, 2]}
    assert sent(page).bytes == proto.bytes  # the component drew it already
    page.session_state["wanted"] = {"shown": (1,)}
    page.run()
    assert unpack(sent(page).bytes)[0]["state"] == {"shown": [1], "marked": [0, 1]}


# Colours and marks ----------------------------------------------------------------------------------------------

SIGHT = {
    "all": np.eye(3),
    "no red": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "no green": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "no blue": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
"""Linear RGB as it is seen without one kind of cone: Machado, Oliveira & Fernandes 2009, severity 1."""


def oklab(linear):
    """Linear RGB as OKLab (Ottosson 2020)."""
    cones = np.array(
        [
            [0.4122214708, 0.5363325363, 0.0514459929],
            [0.2119034982, 0.6806995451, 0.1073969566],
            [0.0883024619, 0.2817188376, 0.6299787005],
        ]
    )
    opponents = np.array(
        [
            [0.2104542553, 0.7936177850, -0.0040720468],
            [1.9779984951, -2.4285922050, 0.4505937099],
            [0.0259040371, 0.7827717662, -0.8086757660],
        ]
    )
    return np.cbrt(np.clip(linear, 0, 1) @ cones.T) @ opponents.T


def linear_rgb(colours):
    channels = np.array([[int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)] for colour in colours])
    return np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)


@pytest.mark.parametrize("sight", SIGHT)
def test_every_eye_tells_the_colours_apart(sight):
    seen = oklab(linear_rgb([*CLASS_COLOURS, MIXED_COLOUR]) @ np.array(SIGHT[sight]).T)
    nearest = min(np.linalg.norm(one - other) for one, other in itertools.combinations(seen, 2))
    assert nearest >= 0.07


def test_lightness_alternates_and_the_last_class_is_grey():
    lightness = oklab(linear_rgb(CLASS_COLOURS))[:10, 0]
    assert (lightness[::2] < 0.6).all()
    assert (lightness[1::2] > 0.65).all()
    assert len(CLASS_COLOURS) == 12
    assert [class_colour(index, 3) for index in range(3)] == [*CLASS_COLOURS[:2], MIXED_COLOUR]
    assert len({class_colour(index, 13) for index in range(13)}) == 13


@pytest.mark.parametrize(
    ("title", "variant", "mark"),
    [
        ("Positional", "previous", "prev"),
        ("Positional", "", "posi"),
        ("Positional", "−2", "−2"),
        ("Delimiter", "[SEP]", "SEP"),
        ("Delimiter", "first token", "1st"),
        ("Heterogeneous", "", "het"),
        ("Rare token", "", "rare"),
        ("Local", "", "local"),
        ("CLS or register sink", "", "CLS"),
        ("Row or column", "column", "col"),
        ("", "", ""),
    ],
)
def test_marks_are_short_words(title, variant, mark):
    assert head_mark(title, variant) == mark


@given(st.text(st.characters(codec=None), max_size=20))
def test_any_name_has_a_short_mark(text):
    assert len(head_mark(text)) <= 5
    assert head_mark("", text) == head_mark(text)


# Files ----------------------------------------------------------------------------------------------------------

WRITTEN = list(itertools.product(GRIDS, get_args(ExportFormat)))


@pytest.mark.parametrize(("name", "format"), WRITTEN)
def test_every_grid_is_written_in_every_format_and_carries_its_record(name, format):
    view, record = GRIDS[name], provenance()
    data = export_figure(view, record, format)
    assert data == export_figure(head_grids()[name], provenance(), format)  # equal grids give equal files
    document = read_provenance(data, format)
    assert document["kind"] == "head_grid"
    assert document["provenance"]["input"] == record.input
    choices = document["choices"]
    assert choices["classes"] == list(view.classes)
    assert choices["variants"] == [list(row) for row in view.variants]
    assert choices["shown"] == (None if view.shown is None else list(view.shown))
    assert choices["marked"] == (None if view.marked is None else list(view.marked))
    assert [entry["key"] for entry in choices["numbers"]] == [number.key for number in view.numbers]
    assert document["arrays"]["scores"]["shape"] == [2, 3]


def read_table(data):
    """A CSV file as its own first lines tell to read it."""
    return pd.read_csv(io.BytesIO(data), comment="#", keep_default_na=False)


def test_csv_holds_a_row_a_head_with_every_statistic():
    view = head_grid()
    table = read_table(export_figure(view, provenance(), "csv"))
    assert list(table.columns) == [
        *("layer", "head", "class", "variant", "score", "margin", "stable"),
        *("entropy", "entropy_low", "entropy_high", "offset-1"),
    ]
    assert table[["layer", "head"]].to_numpy().tolist() == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    titles = [view.classes[index] for index in view.best.ravel()]
    assert [name.removeprefix("'") for name in table["class"]] == titles
    assert [name.removeprefix("'") for name in table["variant"]] == list(itertools.chain(*view.variants))
    assert not any(name.startswith(("=", "+")) for name in [*table["class"], *table["variant"]])
    columns = {
        "score": view.scores,
        "margin": view.margins,
        "stable": view.stable,
        "entropy": view.numbers[0].values,
        "entropy_low": view.numbers[0].low,
        "entropy_high": view.numbers[0].high,
        "offset-1": view.numbers[1].values,
    }
    for name, values in columns.items():
        np.testing.assert_array_equal(table[name].to_numpy(np.float32), values.astype(np.float32).ravel())
    plain = read_table(export_figure(GRIDS["plain"], provenance(), "csv"))
    assert np.isnan(plain["stable"].to_numpy(np.float32)).all()


def test_a_statistic_with_the_name_of_a_formula_is_no_formula():
    view = head_grid(numbers=(HeadStatistic("=1+1", "A", "", np.ones((2, 3))),))
    assert list(read_table(export_figure(view, provenance(), "csv")).columns)[-1] == "'=1+1"


def test_npz_holds_everything():
    view = head_grid()
    with np.load(io.BytesIO(export_figure(view, provenance(), "npz")), allow_pickle=False) as arrays:
        for name in ("best", "scores", "margins", "stable", "thumbnails"):
            np.testing.assert_array_equal(arrays[name], getattr(view, name).astype(np.float32))
        assert arrays["classes"].tolist() == list(view.classes)
        assert arrays["variants"].tolist() == [list(row) for row in view.variants]
        assert arrays["number_keys"].tolist() == ["entropy", "offset-1"]
        assert arrays["number_titles"].tolist() == ["Entropy", "Weight on a<b<c"]
        assert arrays["number_units"].tolist() == ["nats", ""]
        np.testing.assert_array_equal(
            arrays["number_values"], np.stack([each.values for each in view.numbers])
        )
        np.testing.assert_array_equal(arrays["number_low"][0], view.numbers[0].low)
        np.testing.assert_array_equal(arrays["number_high"][0], view.numbers[0].high)
        assert np.isnan(arrays["number_low"][1]).all()
    with np.load(
        io.BytesIO(export_figure(GRIDS["plain"], provenance(), "npz")), allow_pickle=False
    ) as arrays:
        assert arrays["number_values"].shape == (0, 2, 3)


def test_json_tells_every_head():
    view = head_grid()
    document = json.loads(export_figure(view, provenance(), "json"))
    assert len(document["heads"]) == 6
    entry = document["heads"][1]
    assert (entry["layer"], entry["head"], entry["class"], entry["variant"]) == (
        0,
        1,
        view.classes[1],
        "</script>",
    )
    for key, values in (("score", view.scores), ("margin", view.margins), ("stable", view.stable)):
        assert np.float32(entry[key]) == np.float32(values[0, 1])
    for name in ("low", "high"):
        assert np.float32(entry["statistics"]["entropy"][name]) == getattr(view.numbers[0], name)[0, 1]
    assert entry["statistics"]["offset-1"] == {"value": None, "low": None, "high": None}  # NaN in the record
    other = head_grid(numbers=(dataclasses.replace(view.numbers[0], values=view.numbers[0].values * 2),))
    first = document["choices"]["numbers"][0]["values"]["sha256"]
    assert (
        json.loads(export_figure(other, provenance(), "json"))["choices"]["numbers"][0]["values"]["sha256"]
        != first
    )


def test_a_file_is_named_and_never_too_long():
    record = provenance(model="minilm", layer="all 6", heads="all 12")
    assert figure_name(head_grid(), record) == "minilm_head-grid"
    assert refusal(head_grid(), "csv") is None


def test_words_tell_classes_choices_and_notes():
    words = shown_in_words(head_grid(shown=(0, 3)))
    for part in (
        "2 layers × 3 heads of self-attention: 2 Positional, 2 =Delimiter <1>, 1 مرحبا, 1 Heterogeneous.",
        "Classes shown: Positional, Heterogeneous; others are pale.",
        "Marked: layer 1, head 2.",
        "own maximum",
        "3 texts are $few$.",
    ):
        assert part in words
    plain = shown_in_words(GRIDS["plain"])
    assert "cross-attention" in plain
    assert "maximum" not in plain
    assert "Classes shown: none; others are pale." in shown_in_words(head_grid(shown=()))
    assert any("Marked: layer 1, head 2." in line for line in caption_lines(head_grid(), provenance()))


SVG = "{http://www.w3.org/2000/svg}"


def svg_texts(view):
    svg = ElementTree.fromstring(export_figure(view, provenance(), "svg"))
    return ["".join(element.itertext()) for element in svg.iter(f"{SVG}text")]


@pytest.mark.parametrize("name", GRIDS)
def test_a_picture_has_labels_marks_and_the_legend(name):
    view, texts = GRIDS[name], svg_texts(GRIDS[name])
    marks = [visible_text(mark) for row in grid_marks(view) for mark in row]
    for mark in marks:
        assert texts.count(mark) >= marks.count(mark)
    for title, count in zip(view.classes, class_counts(view), strict=True):
        assert f"{title} {count}" in texts
    assert {"layer 0", "layer 1", "head", "0", "2"} <= set(texts)
    assert texts[0] == "What the heads are for" + (f" · {view.title}" if view.title else "")


def png_of(view):
    with Image.open(io.BytesIO(export_figure(view, provenance(), "png"))) as picture:
        return np.asarray(picture.convert("RGB")).astype(int)


def share_of(pixels, colour, share=1.0):
    """Share of the pixels that have ``share`` of a colour on white."""
    wanted = 255 - share * (255 - np.array([int(colour[at : at + 2], 16) for at in (1, 3, 5)]))
    return float((np.abs(pixels - wanted).max(axis=-1) <= 2).mean())


def test_a_picture_has_the_colours_of_its_classes_and_pales_the_others():
    whole = png_of(dataclasses.replace(GRIDS["plain"], marked=None))
    kept = png_of(dataclasses.replace(GRIDS["plain"], shown=(0,)))
    for index in range(4):
        colour = class_colour(index, 4)
        assert share_of(whole, colour) > 0.005
        if index:
            assert share_of(kept, colour) == 0
            assert share_of(kept, colour, PALE) > 0.005
        else:
            assert share_of(kept, colour) > 0.005


def test_a_thin_pattern_stays_in_a_small_map():
    maps = np.full((2, 48, 64, 64), 1e-4, dtype=np.float32)
    maps[:, :, :, 1] = 1.0  # a column that no pixel has its middle in
    grid = head_grid(
        best=np.zeros((2, 48), int),
        variants=(("",) * 48,) * 2,
        scores=np.ones((2, 48)),
        margins=np.ones((2, 48)),
        stable=None,
        numbers=(),
        thumbnails=maps,
        marked=None,
    )
    pixels = png_of(grid)
    yellow = np.abs(pixels[:, :1500] - [253, 231, 37]).max(axis=-1) <= 2  # without the scale
    assert yellow.sum() >= 96 * 14  # each of 96 maps is 15 pixels high


def test_which_heads_are_drawn():
    view = head_grid(shown=(0, 3))
    assert drawn_heads(view).tolist() == [[True, False, True], [False, True, False]]
    assert drawn_heads(head_grid()).all()
    assert not drawn_heads(head_grid(shown=())).any()


@pytest.mark.parametrize("name", GRIDS)
def test_a_page_holds_the_blob_and_no_markup_from_names(name):
    page = figure_html(GRIDS[name], provenance()).decode()
    blob = re.search(r'<script type="text/plain"[^>]*>(.*?)</script>', page, re.DOTALL).group(1)
    assert base64.b64decode(blob) == head_grid_payload(GRIDS[name])
    assert read_provenance(page.encode(), "html")["kind"] == "head_grid"
    assert len(re.findall("<script", page)) == len(re.findall("</script", page)) == 3
    assert '<div id="attnscope-view" class="head_grid">' in page


@pytest.mark.parametrize("format", ["png", "svg", "csv", "npz", "json"])
def test_writing_changes_no_record(format):
    view = head_grid()
    arrays = [view.best, view.scores, view.margins, view.thumbnails, view.stable, view.numbers[0].values]
    copies = [array.copy() for array in arrays]
    for array in arrays:
        array.flags.writeable = False
    export_figure(view, provenance(), format)
    head_grid_payload(view)
    assert all(np.array_equal(array, copy) for array, copy in zip(arrays, copies, strict=True))


def test_maps_without_a_number_are_drawn():
    maps = softmax_rows((2, 3, 4, 5))
    maps[0, 0] = np.nan
    _, arrays = unpack(head_grid_payload(head_grid(thumbnails=maps)))
    assert (arrays["weights"][0, 0].max(), arrays["limits"][0, 0]) == (0, 1)
    assert export_figure(head_grid(thumbnails=maps), provenance(), "svg")
