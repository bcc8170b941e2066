"""Exported data: what is in each file, that it reads back, and that nothing in a token breaks it."""

from __future__ import annotations

import dataclasses
import io
import json
import subprocess
import sys
from typing import get_args

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from analysis.export import (
    CSV_ROWS,
    KINDS,
    ExportFormat,
    document_text,
    export_figure,
    figure_name,
    read_provenance,
    refusal,
    safe_name,
)
from analysis.export_cells import csv_cell
from analysis.figure_data import LINE_CAP, HeadView, Provenance
from analysis.visible import (
    above_scale,
    caption_lines,
    line_opacity,
    matrix_window,
    ordinary_limits,
    patch_limits,
    pooled,
    score_limits,
    short_label,
    shown_in_words,
    source_line,
    thumbnail_limits,
    visible_lines,
    visible_text,
)
from tests.conftest import ROOT
from tests.sample_figures import (
    HOSTILE,
    all_figures,
    head_view,
    labels,
    matrix_view,
    model_view,
    patch_maps,
    provenance,
    ragged_view,
    softmax_rows,
    token_scores,
)

FORMATS = get_args(ExportFormat)
ANY_TEXT = st.text(st.characters(codec=None), max_size=40)  # lone surrogates and controls included

STARTS = {
    "png": b"\x89PNG",
    "svg": b"<?xml",
    "pdf": b"%PDF-",
    "csv": b"# AttnScope",
    "npz": b"PK",
    "json": b"{",
}


LABELS = dict.fromkeys(["token", "query_token", "key_token", "title"], str)


def read_table(data):
    """A CSV file as its own first lines and docs/export.md tell to read it."""
    return pd.read_csv(io.BytesIO(data), comment="#", keep_default_na=False, dtype=LABELS)


def restored(label):
    """A label as it was before it was made harmless for spreadsheets."""
    return label.removeprefix("'")


def expected_provenance(record):
    """What JSON makes of a record."""
    entries = dataclasses.asdict(record)
    return {
        **entries,
        "settings": json.loads(json.dumps(entries["settings"], default=int)),
        "notes": list(record.notes),
    }


# Every figure in every format -----------------------------------------------------------------------------------


PDF = ("head", "matrix", "model", "scores", "patches", "contrast", "set", "effects", "sheet", "curves")
WRITTEN = [(name, format) for name in all_figures() for format in FORMATS if format != "pdf" or name in PDF]


@pytest.mark.parametrize(("name", "format"), WRITTEN)
def test_every_figure_is_written_in_every_format_and_carries_its_record(name, format):
    figure, record = all_figures()[name], provenance()
    data = export_figure(figure, record, format)
    assert data.startswith(STARTS[format])
    document = read_provenance(data, format)
    assert document["provenance"] == expected_provenance(record)
    assert document["kind"] == KINDS[type(figure)]
    choices = {item.name for item in dataclasses.fields(figure)} - set(document["arrays"])
    assert set(document["choices"]) <= choices
    for choice in ("zoom", "pinned", "threshold", "colour_map", "opacity", "marked", "selected", "scale"):
        if hasattr(figure, choice):
            value = getattr(figure, choice)
            assert document["choices"][choice] == (list(value) if isinstance(value, tuple) else value)


@pytest.mark.parametrize("format", FORMATS)
def test_equal_figures_give_equal_files(format):
    assert export_figure(head_view(), provenance(), format) == export_figure(
        head_view(), provenance(), format
    )


@given(
    text=ANY_TEXT,
    note=ANY_TEXT,
    settings_=st.dictionaries(
        ANY_TEXT, st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | ANY_TEXT
    ),
    format=st.sampled_from(["csv", "npz", "json"]),
)
@settings(max_examples=60)
def test_any_text_survives_in_a_data_file(text, note, settings_, format):
    record = Provenance(text, text, text, text, text, text, text, settings_, (note,), {note: text})
    finite = {
        name: None if isinstance(value, float) and not np.isfinite(value) else value
        for name, value in settings_.items()
    }
    read = read_provenance(export_figure(token_scores(), record, format), format)["provenance"]
    assert read == {**dataclasses.asdict(record), "settings": finite, "notes": [note]}


@given(text=ANY_TEXT, format=st.sampled_from(["png", "svg", "pdf"]))
@settings(max_examples=6)
def test_any_text_survives_in_a_picture(text, format):
    record = provenance(input=text, notes=(text,), model=text)
    figure = matrix_view(
        weights=softmax_rows((1, 2)), rows=labels((text,)), columns=labels((text, text)), title=text
    )
    read = read_provenance(export_figure(figure, record, format), format)["provenance"]
    assert (read["input"], read["notes"], read["model"]) == (text, [text], text)


def test_an_unknown_format_is_refused_by_name():
    with pytest.raises(
        ValueError, match="export_figure: format must be one of png, svg, pdf, csv, npz, json but is 'gif'"
    ):
        export_figure(head_view(), provenance(), "gif")
    with pytest.raises(ValueError, match="read_provenance: format must be one of png, svg, pdf, html"):
        read_provenance(b"", "gif")


@pytest.mark.parametrize("format", [*FORMATS, "html"])
def test_a_foreign_file_is_refused(format):
    png, npz = io.BytesIO(), io.BytesIO()
    Image.new("RGB", (2, 2)).save(png, "png")
    np.savez(npz, weights=np.zeros(2))
    foreign = {"png": png.getvalue(), "npz": npz.getvalue(), "json": b"[]", "pdf": b"%PDF-1.4 /Keywords none"}
    with pytest.raises(ValueError, match="read_provenance: data must"):
        read_provenance(foreign.get(format, b"<svg></svg>"), format)


def test_data_files_need_no_matplotlib():
    code = (
        "import sys\n"
        "from analysis.export import export_figure, figure_name\n"
        "from tests.sample_figures import all_figures, provenance\n"
        "for figure in all_figures().values():\n"
        "    for format in ('csv', 'npz', 'json'):\n"
        "        export_figure(figure, provenance(), format)\n"
        "assert not {'matplotlib', 'torch', 'streamlit'} & sys.modules.keys()\n"
        "export_figure(figure, provenance(), 'png')\n"
        "assert 'matplotlib' in sys.modules and 'matplotlib.pyplot' not in sys.modules\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr


def test_the_document_is_ascii_and_closes_nothing():
    text = document_text(head_view(), provenance())
    assert text.isascii()
    assert not set("<>&\n") & set(text)
    assert json.loads(text)["provenance"]["input"] == provenance().input


# CSV ------------------------------------------------------------------------------------------------------------


def test_csv_of_a_head_view_holds_the_lines_that_are_drawn():
    view = head_view(hide_special=True, threshold=0.02)
    lines = visible_lines(view)
    table = read_table(export_figure(view, provenance(), "csv"))
    assert list(table.columns) == [
        "layer",
        "head",
        "query_index",
        "query_token",
        "key_index",
        "key_token",
        "weight",
    ]
    assert table["layer"].eq(3).all()
    assert table["head"].tolist() == lines.heads.tolist()
    assert table["query_index"].tolist() == lines.queries.tolist()
    assert table["key_index"].tolist() == lines.keys.tolist()
    assert np.array_equal(table["weight"].to_numpy(np.float32), lines.weights)
    assert [restored(token) for token in table["query_token"]] == [
        visible_text(HOSTILE[query]) for query in lines.queries
    ]
    assert [restored(token) for token in table["key_token"]] == [
        visible_text(HOSTILE[key]) for key in lines.keys
    ]


def test_csv_of_a_window_counts_from_the_start_of_the_input():
    table = read_table(export_figure(head_view(starts=(512, 1024)), provenance(), "csv"))
    assert (table["query_index"].min(), table["key_index"].min()) == (512, 1024)


def test_csv_of_a_matrix_holds_the_zoomed_cells():
    view = matrix_view(zoom=(1, 4, 2, 9))
    table = read_table(export_figure(view, provenance(), "csv"))
    assert np.array_equal(table["weight"].to_numpy(np.float32).reshape(3, 7), view.weights[1:4, 2:9])
    assert table["query_index"].unique().tolist() == [1, 2, 3]
    assert table["key_index"].unique().tolist() == list(range(2, 9))
    assert (table["layer"].unique().tolist(), table["head"].unique().tolist()) == (["3 of 0–5"], ["1, 2"])


def test_csv_of_the_other_figures_holds_their_numbers():
    thumbnails, maps, scores = model_view(), patch_maps(), token_scores()
    table = read_table(export_figure(thumbnails, provenance(), "csv"))
    assert np.array_equal(table["weight"].to_numpy(np.float32).reshape(2, 3, 4, 5), thumbnails.thumbnails)
    assert table.loc[27, ["layer", "head", "query_bin", "key_bin"]].tolist() == [0, 1, 1, 2]
    table = read_table(export_figure(maps, provenance(), "csv"))
    assert np.array_equal(table["value"].to_numpy(np.float32).reshape(2, 3, 4), maps.maps)
    assert [restored(title) for title in table["title"].unique()] == list(maps.titles)
    table = read_table(export_figure(scores, provenance(), "csv"))
    assert np.array_equal(table["score"].to_numpy(np.float32), scores.scores)
    assert table["token"].tolist()[HOSTILE.index("null")] == "null"


def test_files_of_layers_of_different_shapes_hold_each_on_its_own_grid():
    view = ragged_view()
    table = read_table(export_figure(view, provenance(), "csv"))
    fine, coarse = table[table["layer"] == 0], table[table["layer"] == 1]
    assert np.array_equal(fine["weight"].to_numpy(np.float32).reshape(1, 4, 5), view.thumbnails[0, :1])
    expected = view.thumbnails[1, :, :2, :3]
    assert np.array_equal(coarse["weight"].to_numpy(np.float32).reshape(3, 2, 3), expected)
    assert coarse["patch_row_bin"].max() == 1
    assert coarse["patch_column_bin"].max() == 2
    assert not table["weight"].isna().any()
    with np.load(io.BytesIO(export_figure(view, provenance(), "npz")), allow_pickle=False) as arrays:
        assert arrays["shapes"].tolist() == [[1, 4, 5], [3, 2, 3]]
    assert "1 to 3 heads, 4 × 5, 2 × 3 cells" in shown_in_words(view)


@given(texts=st.lists(ANY_TEXT, min_size=1, max_size=6))
@settings(max_examples=60)
def test_any_token_is_one_csv_cell_that_no_spreadsheet_runs(texts):
    figure = token_scores(scores=np.zeros(len(texts), np.float32), tokens=labels(texts), source=None)
    tokens = read_table(export_figure(figure, provenance(), "csv"))["token"].tolist()
    shown = [visible_text(text) for text in texts]
    assert [
        restored(token) if len(text) > 1 else token for token, text in zip(tokens, shown, strict=True)
    ] == shown
    assert not any(len(token) > 1 and token.startswith(tuple("=+-@＝＋－＠\t\r")) for token in tokens)


def test_harmless_cells_stay_as_they_are():
    for text in ("-", "=", "+", "@", "'", "word", "", "#tag", "a=b"):
        assert csv_cell(text) == f'"{text}"'
    assert csv_cell("=1+1") == '"\'=1+1"'
    assert csv_cell('say "so"') == '"say ""so"""'


def test_a_csv_file_too_long_for_a_spreadsheet_is_refused_beforehand():
    weights = np.broadcast_to(np.float32(1 / 2048), (2048, 2048))
    tokens = labels(tuple(map(str, range(2048))))
    whole = matrix_view(weights=weights, rows=tokens, columns=tokens)
    reason = refusal(whole, "csv")
    assert reason is not None
    assert f"4,194,304 rows, more than the {CSV_ROWS:,} that a spreadsheet opens; take NPZ" in reason
    assert reason.endswith("holds all of them, or zoom in.")
    with pytest.raises(ValueError, match="export_figure: the CSV file would have 4,194,304 rows"):
        export_figure(whole, provenance(), "csv")
    assert refusal(whole, "npz") is None
    assert refusal(dataclasses.replace(whole, zoom=(0, 100, 0, 100)), "csv") is None


# NPZ and JSON ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", all_figures())
def test_npz_holds_the_exact_arrays_and_labels(name):
    figure = all_figures()[name]
    with np.load(io.BytesIO(export_figure(figure, provenance(), "npz")), allow_pickle=False) as arrays:
        for item in dataclasses.fields(figure):
            value = getattr(figure, item.name)
            if isinstance(value, np.ndarray):
                assert arrays[item.name].dtype == (np.uint8 if item.name == "picture" else np.float32)
                assert np.array_equal(
                    arrays[item.name], value.astype(arrays[item.name].dtype), equal_nan=True
                )
        for side in ("left", "right", "rows", "columns", "tokens"):
            tokens = getattr(figure, side, ())
            if isinstance(tokens, tuple) and tokens:
                assert arrays[f"{side}_text"].tolist() == [visible_text(token.text) for token in tokens]
                assert arrays[f"{side}_special"].tolist() == [token.special for token in tokens]
        if isinstance(figure, HeadView):
            drawn = arrays["drawn"]
            assert np.array_equal(arrays["weights"][tuple(drawn.T)], visible_lines(figure).weights)


def test_json_holds_the_choices_and_labels_but_no_numbers():
    document = json.loads(export_figure(head_view(), provenance(), "json"))
    assert document["choices"]["active"] == [1, 2]
    assert document["tokens"]["left"][4] == {**dataclasses.asdict(labels()[4])}
    assert document["arrays"]["weights"]["shape"] == [3, 12, 12]
    other = json.loads(
        export_figure(head_view(weights=softmax_rows((3, 12, 12), seed=9)), provenance(), "json")
    )
    assert other["arrays"]["weights"]["sha256"] != document["arrays"]["weights"]["sha256"]


# Names ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"layer": "3 of 0–5", "heads": "5"}, "minilm_head-view_L3_H5"),
        ({"layer": "3 of 0–5", "heads": "1, 4, 7"}, "minilm_head-view_L3_H1-4-7"),
        ({"layer": "all 6", "heads": "all 12"}, "minilm_head-view"),
        (
            {"layer": "0 to 5 of 0–5", "heads": "all 12", "aggregation": "mean of 12 heads"},
            "minilm_head-view_L0-5_mean",
        ),
    ],
)
def test_file_names_tell_what_is_inside(changes, name):
    assert figure_name(head_view(), provenance(model="minilm", **changes)) == name
    assert figure_name(head_view(), provenance(**changes), model="minilm") == name


@given(ANY_TEXT)
def test_any_text_makes_a_harmless_part_of_a_file_name(text):
    name = safe_name(text)
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
    assert not name.startswith((".", "-"))
    assert len(name) <= 60


# What is visible ------------------------------------------------------------------------------------------------


def lines_of(view, cap):
    """The rule once more, in plain loops: lines at or above the smallest level that at most ``cap`` reach."""
    segments = {"aa": (0, 0), "ab": (0, 1), "ba": (1, 0), "bb": (1, 1)}.get(view.pair_filter)
    levels = {}
    for head in view.active:
        for query, left in enumerate(view.left):
            for key, right in enumerate(view.right):
                if view.hide_special and (left.special or right.special):
                    continue
                if segments is not None and (left.segment, right.segment) != segments:
                    continue
                if view.pinned is not None and (query if view.pinned[0] == "left" else key) != view.pinned[1]:
                    continue
                weight = np.float64(view.weights[head, query, key])
                levels[head, query, key] = round(255 * np.sqrt(min(max(weight, 0), 1)))
    floor = max(1, round(255 * np.sqrt(view.threshold)))
    cutoff = next(level for level in range(257) if sum(value >= level for value in levels.values()) <= cap)
    candidates = sum(level >= floor for level in levels.values())
    return sorted(line for line, level in levels.items() if level >= max(cutoff, floor)), candidates


@given(data=st.data())
@settings(max_examples=40)
def test_visible_lines_follow_the_rule(data):
    heads, queries, keys = (data.draw(st.integers(1, top)) for top in (3, 5, 6))
    draw_labels = lambda count: tuple(  # noqa: E731
        dataclasses.replace(label, segment=data.draw(st.integers(0, 1)), special=data.draw(st.booleans()))
        for label in labels(("token",) * count)
    )
    side = data.draw(st.sampled_from(["left", "right"]))
    levels = st.sampled_from([0, 1, 2, 26, 27, 140, 255])  # at and beside the thresholds below
    drawn = data.draw(st.lists(levels, min_size=heads * queries * keys, max_size=heads * queries * keys))
    view = head_view(
        weights=((np.array(drawn) / 255) ** 2).astype(np.float32).reshape(heads, queries, keys),
        left=draw_labels(queries),
        right=draw_labels(keys),
        active=tuple(sorted(data.draw(st.sets(st.integers(0, heads - 1))))),
        pinned=data.draw(
            st.none() | st.just((side, data.draw(st.integers(0, (queries if side == "left" else keys) - 1))))
        ),
        threshold=data.draw(st.sampled_from([0.0, 0.01, 0.3, 1.0])),
        pair_filter=data.draw(st.sampled_from(["all", "aa", "ab", "ba", "bb"])),
        hide_special=data.draw(st.booleans()),
    )
    lines = visible_lines(view)
    expected, candidates = lines_of(view, LINE_CAP)
    assert (
        list(zip(lines.heads.tolist(), lines.queries.tolist(), lines.keys.tolist(), strict=True)) == expected
    )
    assert lines.candidates == candidates
    assert np.array_equal(lines.weights, view.weights[lines.heads, lines.queries, lines.keys])


def test_a_weight_at_the_threshold_is_drawn_and_one_below_is_not():
    weights = ((np.array([[[26, 25], [1, 0]]]) / 255) ** 2).astype(np.float32)
    tokens = labels(("a", "b"))
    view = head_view(weights=weights, left=tokens, right=tokens, active=(0,))
    assert len(visible_lines(view).weights) == 3  # all but the exact zero
    lines = visible_lines(dataclasses.replace(view, threshold=(26 / 255) ** 2))
    assert (lines.queries.tolist(), lines.keys.tolist(), lines.cutoff) == ([0], [0], 26)


def test_of_many_lines_the_strongest_are_drawn_and_the_rest_told():
    view = head_view(
        weights=softmax_rows((4, 40, 40)),
        left=labels(("t",) * 40),
        right=labels(("t",) * 40),
        active=(0, 1, 2, 3),
    )
    lines = visible_lines(view)
    assert 1500 < len(lines.weights) <= LINE_CAP < lines.candidates
    left_out = np.setdiff1d(view.weights.ravel(), lines.weights)
    assert lines.weights.min() >= left_out.max()
    assert f"Strongest {len(lines.weights):,} of {lines.candidates:,} lines." in " ".join(
        caption_lines(view, provenance())
    )


def test_the_caption_tells_every_choice():
    view = head_view(
        pinned=("right", 4), threshold=0.25, hide_special=True, pair_filter="ab", direction="rtl"
    )
    text = " ".join(caption_lines(view, provenance()))
    for part in (
        "Pinned key 4 “$x^2$”",
        "Threshold 0.25",
        "A → B",
        "Special tokens hidden",
        "Right-to-left",
        "7dbbc90392e2)",
    ):
        assert part in text
    text = " ".join(
        caption_lines(matrix_view(zoom=(1, 4, 2, 9), selected=(1, 2), scale="sqrt"), provenance())
    )
    for part in (
        "5 × 12",
        "queries 1 to 3 and keys 2 to 8",
        "Marked: query 1",
        "square root",
        "threshold: 0.25",
    ):
        assert part in text
    text = " ".join(caption_lines(patch_maps(smooth=True, shared_scale=False), provenance()))
    for part in ("3 × 4 patches", "row 1, column 2", "60%", "interpolated", "own maximum"):
        assert part in text
    text = " ".join(
        caption_lines(model_view(groups=None, shared_scale=True), provenance(notes=("windowed",)))
    )
    for part in (
        "2 layers × 3 heads",
        "one colour scale",
        "Marked: layer 1, head 2",
        "windowed",
        "Input: a<b<c",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("layer", "heads", "aggregation", "words"),
    [
        ("2 of 0–5", "5", "none", "m · layer 2 of 0–5 · head 5 · attention"),
        ("2 of 0–5", "1, 4", "", "m · layer 2 of 0–5 · heads 1, 4 · attention"),
        (
            "all 6",
            "all 12",
            "mean of 12 heads",
            "m · all 6 layers · all 12 heads · attention · mean of 12 heads",
        ),
        ("0 to 3 of 0–5", "none", "none", "m · layers 0 to 3 of 0–5 · none · attention"),
    ],
)
def test_the_source_line_reads_as_words(layer, heads, aggregation, words):
    record = Provenance("m", "", "", layer, heads, aggregation, "attention")
    assert source_line(record) == words


@given(ANY_TEXT)
def test_visible_text_can_be_written_into_any_file(text):
    shown = visible_text(text)
    shown.encode("utf-8")
    assert len(shown) == len(text)
    assert all(character >= " " and not 0x7F <= ord(character) < 0xA0 for character in shown)
    assert visible_text(shown) == shown
    assert len(short_label(text)) <= 16


def test_visible_text_shows_controls_as_symbols():
    assert visible_text("a\x10b\n\t\x7f\x85\ud800\ufffe") == "a␐b⏎⇥␡⏎��"
    assert visible_text("naïve 你好 مرحبا 😀") == "naïve 你好 مرحبا 😀"


def test_a_cut_label_keeps_letters_and_their_accents_together():
    assert short_label("incomprehensibility") == "incomprehensibi…"
    assert short_label("abcdefghijklmn" + "e\u0301" + "xyz") == "abcdefghijklmn…"
    assert short_label("exactly sixteen!") == "exactly sixteen!"


def test_pooling_keeps_every_maximum_in_its_block():
    weights = softmax_rows((50, 30))
    small = pooled(weights, 16)
    assert small.shape == (16, 16)
    assert small.max() == weights.max()
    rows, columns = (
        np.linspace(0, 50, 16, endpoint=False).astype(int),
        np.linspace(0, 30, 16, endpoint=False).astype(int),
    )
    assert small[3, 4] == weights[rows[3] : rows[4], columns[4] : columns[5]].max()
    assert pooled(weights, 64) is weights


def test_limits_follow_the_choice_of_scale():
    view = model_view()
    own = view.thumbnails.reshape(2, 3, -1).max(axis=-1)
    assert np.array_equal(thumbnail_limits(view), own.astype(np.float64))
    assert np.all(thumbnail_limits(model_view(shared_scale=True)) == own.max())
    signed = patch_maps(maps=np.array([[[-1.0, 2.0]], [[0.5, 1.0]]], dtype=np.float32), shared_scale=False)
    assert patch_limits(signed).tolist() == [[-1.0, 2.0], [0.0, 1.0]]
    assert patch_limits(dataclasses.replace(signed, shared_scale=True)).tolist() == [[-1.0, 2.0]] * 2
    assert patch_limits(patch_maps(limits=(0.0, 3.0))).tolist() == [[0.0, 3.0]] * 2
    assert patch_limits(patch_maps(maps=np.zeros((2, 3, 4), np.float32))).tolist() == [[0.0, 1.0]] * 2
    assert matrix_window(matrix_view(zoom=(2, 99, -3, 4))) == (slice(2, 5), slice(0, 4))


def test_special_tokens_do_not_stretch_the_scale_of_ordinary_ones():
    tokens = labels(("[CLS]", "a", "b", "[SEP]"))
    values = np.array([[0.7, 0.2, 0.05, 0.05], [0.4, 0.1, 0.3, 0.2]], dtype=np.float32)
    assert ordinary_limits(values, tokens) == (0.0, pytest.approx(0.3))
    assert ordinary_limits(values[0], tokens) == (0.0, pytest.approx(0.2))
    assert (
        ordinary_limits(
            values[:, 1:3], tuple(dataclasses.replace(token, special=False) for token in tokens[1:3])
        )
        is None
    )
    assert ordinary_limits(values[:, ::3], tokens[::3]) is None, "nothing is left to scale by"
    row = token_scores(scores=values[0], tokens=tokens, source=0, limits=ordinary_limits(values[0], tokens))
    assert above_scale(row.scores, score_limits(row)).tolist() == [True, False, False, False]
    words = "1 token lies above the colour scale, which ends at 0.2: “[CLS]” 0.7; together 0.7."
    assert shown_in_words(row).endswith(words)
    assert "above the colour scale" not in shown_in_words(dataclasses.replace(row, limits=None))
    whole = matrix_view(
        weights=values, rows=tokens[:2], columns=tokens, limits=ordinary_limits(values, tokens)
    )
    assert "2 cells lie above the colour scale, which ends at 0.3." in shown_in_words(whole)
    table = read_table(export_figure(row, provenance(), "csv"))
    np.testing.assert_array_equal(table["score"].astype(np.float32), row.scores)


def test_opacity_grows_with_the_root_of_the_weight():
    opacity = line_opacity(np.array([0.0, 0.01, 0.25, 1.0, 7.0]))
    assert np.all(np.diff(opacity[:4]) > 0)
    assert np.allclose(opacity, np.sqrt([0, 0.01, 0.25, 1, 1]), atol=1 / 16)
