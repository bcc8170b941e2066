"""Checks of attention as files: numbers read back, choices are followed, parts that do not fit are refused."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from analysis.export import export_figure, figure_document, figure_name, read_provenance
from analysis.figure_data import HEAD_COLOURS, CheckedNumber
from analysis.visible import caption_lines, shown_in_words, visible_text
from analysis.visible_checks import (
    ATTENTION_BINS,
    DRAWN_CANDIDATES,
    DRAWN_TOKENS,
    LARGEST_JSD,
    agreements,
    attention_bins,
    bandwidth,
    bin_title,
    change_limit,
    check_checked_set,
    check_head_effects,
    coloured_classes,
    count_limit,
    density,
    drawn_candidates,
    drawn_outputs,
    drawn_tokens,
    effect_limits,
    histogram,
    input_groups,
    jsd_edges,
    tau_edges,
    weight_limit,
    within_epsilon,
)
from tests.sample_figures import (
    HOSTILE,
    attention_contrast,
    check_figures,
    checked_set,
    head_effects,
    labels,
    picture_contrast,
    provenance,
    shares_of,
    softmax_rows,
)

SVG = "{http://www.w3.org/2000/svg}"
ANY_TEXT = st.text(st.characters(codec=None), max_size=20)


def rows_of(figure):
    """The rows of a CSV file as dictionaries, one entry a column."""
    text = export_figure(figure, provenance(), "csv").decode()
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    rows = list(csv.reader(lines))
    assert len(set(rows[0])) == len(rows[0]), "columns have a name each"
    return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]


def floats(rows, column):
    return np.array([row[column] for row in rows], dtype=np.float32)


def texts_of(figure):
    svg = ElementTree.fromstring(export_figure(figure, provenance(), "svg"))
    return ["".join(element.itertext()) for element in svg.iter(f"{SVG}text")]


def png_of(figure):
    with Image.open(io.BytesIO(export_figure(figure, provenance(), "png"))) as picture:
        return np.asarray(picture.convert("RGB"))


def share_of(pixels, colour):
    wanted = [int(colour[start : start + 2], 16) for start in (1, 3, 5)]
    return float((np.abs(pixels.astype(int) - np.array(wanted)).max(axis=-1) <= 1).mean())


def replaced(view, key, values):
    """A set with other values of one number."""
    numbers = tuple(
        dataclasses.replace(number, values=values) if number.key == key else number for number in view.numbers
    )
    return dataclasses.replace(view, numbers=numbers)


def small_contrast(candidates, tokens, classes, seed=0, **changes):
    """A contrast of any size."""
    entries = {
        "weights": softmax_rows((candidates, tokens), seed=seed),
        "names": tuple(f"candidate {index}" for index in range(candidates)),
        "outputs": softmax_rows((candidates, classes), seed=seed + 1),
        "labels": tuple(f"class_{index}" for index in range(classes)),
        "jsd": LARGEST_JSD * shares_of(candidates, seed + 2),
        "change": shares_of(candidates, seed + 3),
        "tokens": labels(tuple(f"t{index}" for index in range(tokens))),
        "shown": candidates - 1,
        "verdict": (),
    }
    return attention_contrast(**{**entries, **changes})


# CSV ----------------------------------------------------------------------------------------------------------------


@given(
    candidates=st.integers(1, 4),
    tokens=st.integers(1, 6),
    classes=st.integers(1, 30),
    seed=st.integers(0, 99),
)
@settings(max_examples=30)
def test_a_contrast_reads_back_from_its_rows(candidates, tokens, classes, seed):
    view = small_contrast(candidates, tokens, classes, seed)
    rows = rows_of(view)
    assert len(rows) == candidates * tokens
    np.testing.assert_array_equal(floats(rows, "weight").reshape(candidates, tokens), view.weights)
    first = rows[::tokens]
    np.testing.assert_array_equal(floats(first, "jsd"), view.jsd)
    np.testing.assert_array_equal(floats(first, "change"), view.change)
    assert [row["within_epsilon"] for row in first] == [
        str(change <= np.float32(view.epsilon)).lower() for change in view.change
    ]
    columns = [name for name in rows[0] if name.startswith("class_")]
    assert len(columns) == min(classes, 20)
    places = [int(name.removeprefix("class_")) for name in columns]
    for name, place in zip(columns, places, strict=True):
        np.testing.assert_array_equal(floats(first, name), view.outputs[:, place])
    told = view.outputs[0, places]
    assert told.tolist() == sorted(view.outputs[0].tolist(), reverse=True)[:20]
    assert [row["token"] for row in rows[:tokens]] == [f"t{index}" for index in range(tokens)]
    assert [(int(row["candidate"]), int(row["index"])) for row in rows] == list(
        np.ndindex(candidates, tokens)
    )


def test_cells_of_a_contrast_are_harmless_and_columns_have_a_name_each():
    rows = rows_of(attention_contrast())
    assert list(rows[0]) == [
        *("candidate", "name", "jsd", "change", "within_epsilon"),
        *("'=positive()", "negative <b>", "weight (output 2)"),
        *("index", "token", "weight"),
    ]
    assert {row["name"] for row in rows} == {"observed", "uniform", "'=adversarial <2>", "� by hand"}
    assert [row["token"].removeprefix("'") for row in rows[: len(HOSTILE)]] == [
        visible_text(text) for text in HOSTILE
    ]
    twins = rows_of(small_contrast(2, 3, 3, labels=("a", "a", "index")))
    assert set(twins[0]) > {"a", "index (output 2)", "index"}
    assert {name for name in twins[0] if name.startswith("a (output")} <= {"a (output 0)", "a (output 1)"}


def test_patches_have_their_row_and_column_and_what_is_no_patch_its_name():
    view = picture_contrast()
    rows = rows_of(view)[:13]
    assert [(row["prefix"], row["patch_row"], row["patch_column"]) for row in rows[:6]] == [
        ("CLS", "", ""),
        *(("", "0", str(column)) for column in range(4)),
        ("", "1", "0"),
    ]
    assert "token" not in rows[0]
    np.testing.assert_array_equal(floats(rows, "weight"), view.weights[0])


def test_epsilon_is_compared_as_the_files_hold_it():
    changes = np.array([0.0, 0.05, 0.1, np.nextafter(np.float32(0.1), np.float32(1))], dtype=np.float32)
    assert float(changes[2]) > 0.1
    assert within_epsilon(attention_contrast(change=changes, epsilon=0.1)).tolist() == [
        True,
        True,
        True,
        False,
    ]


@given(texts=st.lists(ANY_TEXT, min_size=1, max_size=5))
@settings(max_examples=40)
def test_any_input_of_a_set_is_one_row_that_reads_back(texts):
    view = checked_set(len(texts), names=tuple(texts), labels=(texts[0], "b", "c"), marked=None)
    rows = rows_of(view)
    shown = [visible_text(text) for text in texts]
    assert [
        row["input"] if len(text) < 2 else row["input"].removeprefix("'")
        for row, text in zip(rows, shown, strict=True)
    ] == shown
    assert not [
        row for row in rows if len(row["input"]) > 1 and row["input"].startswith(tuple("=+-@＝＋－＠\t\r"))
    ]
    for number in view.numbers:
        np.testing.assert_array_equal(floats(rows, number.key), number.values)


def test_a_set_has_a_column_a_number_and_nan_where_there_is_none():
    rows = rows_of(checked_set())
    keys = [number.key for number in checked_set().numbers]
    assert list(rows[0]) == ["index", "input", "predicted", *keys]
    assert rows[0]["tau_gradient"] == rows[-1]["jsd"] == "nan"
    assert {row["predicted"] for row in rows} == {"'=negative", "positive <b>"}
    assert [row["index"] for row in rows] == [str(index) for index in range(40)]


def test_effects_have_a_row_a_head_then_a_layer_then_all_layers():
    view = head_effects()
    rows = rows_of(view)
    assert len(rows) == 3 * (6 * 12 + 6 + 1)
    assert list(rows[0]) == ["edit", "layer", "head", "change"]
    heads = [row for row in rows if row["head"]]
    np.testing.assert_array_equal(floats(heads, "change").reshape(3, 6, 12), view.heads)
    assert heads[12 + 3]["layer"] == "1"
    assert heads[12 + 3]["head"] == "3"
    layers = [row for row in rows if row["layer"] and not row["head"]]
    np.testing.assert_array_equal(floats(layers, "change").reshape(3, 6), view.layers)
    whole = [row for row in rows if not row["layer"]]
    np.testing.assert_array_equal(floats(whole, "change"), view.whole)
    assert [row["edit"] for row in whole] == ["uniform", "'=swapped <3>", "� permuted"]


# JSON and NPZ -------------------------------------------------------------------------------------------------------


def test_json_of_a_contrast_has_the_candidates_without_their_weights():
    document = json.loads(export_figure(attention_contrast(), provenance(), "json"))
    assert document["kind"] == "attention_contrast"
    third = document["candidates"][2]
    assert third["name"] == "=adversarial <2>"
    assert (third["jsd"], third["change"], third["within_epsilon"]) == (0.5, 0.005, True)
    assert third["outputs"][0] == {"label": "=positive()", "value": 0.695}
    assert "weights" not in third
    assert document["choices"]["verdict"] == list(attention_contrast().verdict)
    assert document["arrays"]["weights"]["shape"] == [4, 12]
    with np.load(io.BytesIO(export_figure(picture_contrast(), provenance(), "npz"))) as arrays:
        assert arrays["labels"].tolist() == list(picture_contrast().labels)
        assert arrays["outputs"].shape == (3, 30)
        assert arrays["names"].tolist() == ["observed", "uniform", "adversarial"]


def test_inputs_of_a_set_are_data_and_stand_in_data_files_alone():
    view = checked_set()
    assert "names" not in figure_document(view, provenance())["choices"]
    assert "null 10" not in json.dumps(read_provenance(export_figure(view, provenance(), "png"), "png"))
    document = json.loads(export_figure(view, provenance(), "json"))
    assert document["inputs"][10]["input"] == "null 10"
    assert document["inputs"][0]["numbers"]["tau_gradient"] is None
    jsd = view.number("jsd")[7]
    assert np.float32(document["inputs"][7]["numbers"]["jsd"]) == jsd
    summary = document["choices"]["numbers"][0]
    assert (summary["key"], summary["values"]["shape"]) == ("max_attention", [40])
    with np.load(io.BytesIO(export_figure(view, provenance(), "npz"))) as arrays:
        assert arrays["names"].tolist() == [visible_text(name) for name in view.names]
        place = arrays["number_keys"].tolist().index("jsd")
        np.testing.assert_array_equal(arrays["number_values"][place], view.number("jsd"))
    with np.load(io.BytesIO(export_figure(checked_set(2, numbers=()), provenance(), "npz"))) as arrays:
        assert arrays["number_values"].shape == (0, 2)


def test_json_of_effects_has_every_change():
    view = head_effects()
    changes = json.loads(export_figure(view, provenance(), "json"))["changes"]
    assert changes[0] == {
        "edit": "uniform", "layer": 0, "head": 0, "change": float(str(view.heads[0, 0, 0]))
    }  # fmt: skip
    assert changes[-1] == {"edit": "\ud800 permuted", "layer": None, "head": None, "change": None}
    with np.load(io.BytesIO(export_figure(view, provenance(), "npz"))) as arrays:
        assert arrays["edits"].tolist() == ["uniform", "=swapped <3>", "� permuted"]


@pytest.mark.parametrize("format", ["png", "svg", "pdf", "csv", "npz", "json"])
@pytest.mark.parametrize(
    "view",
    [
        small_contrast(1, 1, 1, outputs=np.ones((1, 1), np.float32)),
        checked_set(1),
        checked_set(3, numbers=(CheckedNumber("jsd", "ε-max JSD", np.full(3, np.nan, np.float32)),)),
        checked_set(3, numbers=(CheckedNumber("of my own", "=own", np.array([5, -7, np.nan], np.float32)),)),
        head_effects(
            edits=("",), heads=np.full((1, 1, 1), np.nan), layers=np.full((1, 1), np.nan),
            whole=np.full(1, np.nan), shown=0, marked=(0, 0),
        ),
    ],
    ids=["one token", "one input", "no value", "unknown number", "no change"],
)  # fmt: skip
def test_the_smallest_records_are_written(view, format):
    data = export_figure(view, provenance(), format)
    assert read_provenance(data, format)["provenance"]["model"] == provenance().model


def test_names_of_files_tell_the_kind():
    record = provenance(model="m", layer="", heads="")
    names = [figure_name(view, record) for view in (attention_contrast(), checked_set(), head_effects())]
    assert names == ["m_attention-contrast", "m_checked-set", "m_head-effects"]


# What is drawn ------------------------------------------------------------------------------------------------------


def test_a_contrast_names_what_it_draws():
    texts = texts_of(attention_contrast())
    for text in (
        "observed",
        "=adversarial <2>",
        "uniform",
        "What the model says",
        "negative <b>",
        "within ε",
    ):
        assert text in texts
    assert texts.count("null") == 3, "twice as coloured text, once beside the bars"
    assert "Other attention · the classifier's query <q> $x^2$" in texts
    alone = texts_of(attention_contrast(shown=0))
    assert alone.count("null") == 2
    assert share_of(png_of(attention_contrast()), HEAD_COLOURS[1]) > 0.01
    assert share_of(png_of(attention_contrast(shown=0)), HEAD_COLOURS[1]) == 0


def test_a_picture_tells_what_is_on_no_patch():
    view = picture_contrast(shown=1)
    texts = texts_of(view)
    assert f"CLS {view.weights[0, 0]:.3g}" in texts
    several = picture_contrast(prefix=5, grid=(2, 4), shown=1)
    assert f"5 positions that are no patches: {several.weights[1, :5].sum():.3g}" in texts_of(several)
    assert "attention weight, mean of 2 rows" in texts
    assert share_of(png_of(view), HEAD_COLOURS[1]) > 0.005


def test_a_long_title_stays_on_the_sheet():
    short, long = (png_of(attention_contrast(title=title, shown=0)) for title in ("of", "of " + 30 * "word "))
    assert share_of(long[:130], "#22262b") > share_of(short[:130], "#22262b") > 0
    assert (long[:130, -40:] == 255).all()


def test_long_contrasts_are_cut_for_pictures_and_say_so():
    view = small_contrast(30, 200, 40, shown=29)
    words = shown_in_words(view)
    assert f"The picture lists {DRAWN_CANDIDATES} of 30." in words
    assert f"The {DRAWN_TOKENS} tokens with the most weight have bars." in words
    assert "The picture draws the 6 highest of 40 outputs." in words
    assert drawn_candidates(view) == [*range(DRAWN_CANDIDATES - 1), 29]
    assert len(drawn_candidates(small_contrast(3, 2, 2))) == 3
    barred = drawn_tokens(view)
    most = view.weights[[0, 29]].max(axis=0)
    assert barred == sorted(barred)
    assert most[barred].min() >= np.delete(most, barred).max()
    told = drawn_outputs(view)
    high = view.outputs[[0, 29]].max(axis=0)
    assert high[told].tolist() == sorted(high.tolist(), reverse=True)[:6]
    assert drawn_outputs(small_contrast(2, 2, 3)) == [0, 1, 2]
    pixels = png_of(view)
    assert len(pixels) < 6000, "at most thirty inches"


@given(st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=5))
def test_colours_of_weights_end_at_a_round_number_above_them(weights):
    array = np.array([weights], dtype=np.float32)
    limit = weight_limit(attention_contrast(weights=array, shown=0))
    assert array.max() <= limit * (1 + 1e-4)
    assert limit <= max(2 * array.max(), 1e-6) or limit == 1
    assert weight_limit(attention_contrast(weights=np.zeros((1, 2)), shown=0)) == 1


PANELS = {
    "Permuted weights": {"permutation", "max_attention"},
    "Farthest weights that predict the same": {"jsd", "max_attention"},
    "How far weights can move": {"jsd"},
    "Agreement with gradients": {"tau_gradient"},
    "Agreement with leave-one-out": {"tau_leave_one_out"},
}


@given(kept=st.sets(st.sampled_from([number.key for number in checked_set().numbers])))
@settings(max_examples=12)
def test_panels_without_their_numbers_are_left_out(kept):
    view = checked_set()
    numbers = tuple(number for number in view.numbers if number.key in kept)
    texts = texts_of(dataclasses.replace(view, numbers=numbers))
    for title, needed in PANELS.items():
        assert (title in texts) == (needed <= kept)
    nothing = "None of the numbers of this figure was measured."
    assert (nothing in texts) == (not any(needed <= kept for needed in PANELS.values()))


def test_a_set_tells_counts_bounds_and_significance():
    view = checked_set()
    texts = texts_of(view)
    inside = np.bincount(attention_bins(view), minlength=4)
    assert {f"n = {count}" for count in inside} <= set(texts)
    assert {"ln 2", "tick: most that the input's weights allow", "input 20"} <= set(texts)
    chances = view.number("p_gradient")[3:]
    assert any(text.endswith(f"{(chances < 0.05).mean():.0%} significant (p < 0.05)") for text in texts)
    without = dataclasses.replace(
        view, marked=None, numbers=tuple(number for number in view.numbers if "bound" not in number.key)
    )
    texts = texts_of(without)
    assert not {"tick: most that the input's weights allow", "input 20"} & set(texts)


def test_up_to_four_predicted_classes_have_colours():
    four = checked_set(8, predicted=np.arange(8) % 4 + 3, labels=tuple("abcdefgh"))
    assert coloured_classes(four) == (3, 4, 5, 6)
    assert [group.name for group in input_groups(four)] == list("defg")
    assert len({group.colour for group in input_groups(four)}) == 4
    assert np.sum([group.members for group in input_groups(four)], axis=0).tolist() == [1] * 8
    five = checked_set(8, predicted=np.arange(8) % 5, labels=tuple("abcdefgh"))
    assert [group.name for group in input_groups(five)] == ["all classes"]
    assert "all classes 8" in texts_of(five)
    pixels = png_of(four)
    assert all(share_of(pixels, group.colour) > 0 for group in input_groups(four))


def test_effects_show_one_edit_in_signed_colours_and_mark_the_head():
    view = head_effects()
    texts = texts_of(view)
    assert "=swapped <3>: one head at a time" in texts
    assert "+0.200" in texts, "all layers"
    assert texts.count("–") == 3, "heads that layer 2 lacks"
    first = dataclasses.replace(view, marked=(0, 11))
    marked, plain = png_of(first), png_of(dataclasses.replace(view, marked=None))
    height = min(len(marked), len(plain))
    assert np.abs(marked[: height // 2].astype(int) - plain[: height // 2]).max() > 100
    signs = head_effects(
        heads=np.array([[[-1.0, 1.0]]]), layers=np.zeros((1, 1)), whole=np.zeros(1), edits=("e",), shown=0,
        marked=None,
    )  # fmt: skip
    pixels = png_of(signs)
    assert share_of(pixels, "#185cb5") > 0.005, "blue where the target falls"
    assert share_of(pixels, "#cd3018") > 0.005
    flipped = png_of(dataclasses.replace(signs, heads=-signs.heads))
    columns = [
        np.flatnonzero((np.abs(part.astype(int) - [24, 92, 181]).max(-1) <= 1).any(0)).min()
        for part in (pixels, flipped)
    ]
    assert columns[0] < columns[1], "the falling head stands to the left in the first"


def test_colours_of_effects_end_at_the_largest_of_the_edit():
    view = head_effects()
    single, together = effect_limits(view)
    assert single == pytest.approx(np.nanmax(np.abs(view.heads[1])))
    assert together == pytest.approx(max(np.abs(view.layers[1]).max(), 0.2))
    other = dataclasses.replace(view, shown=0)
    assert effect_limits(other)[0] == pytest.approx(np.nanmax(np.abs(view.heads[0])))
    assert effect_limits(other)[0] != effect_limits(view)[0]
    assert effect_limits(head_effects(heads=np.zeros((3, 6, 12)))) == (1.0, pytest.approx(together))
    words = shown_in_words(view)
    for part in (
        f"±{single:.3g} for a head",
        f"±{together:.3g} for a layer",
        "All heads of all layers: +0.2.",
    ):
        assert part in words
    assert "All heads of all layers" not in shown_in_words(dataclasses.replace(view, shown=2))
    assert "Marked: layer 2, head 11, no number." in shown_in_words(dataclasses.replace(view, marked=(2, 11)))


def test_what_a_figure_tells_of_itself_stands_once_in_its_caption_and_rows():
    view = attention_contrast(verdict=("Nothing else gives this answer.",), held="the values.")
    origin = provenance(notes=("Nothing else gives this answer.", "the values.", "A note of the page."))
    caption = "\n".join(caption_lines(view, origin))
    comments = [
        line for line in export_figure(view, origin, "csv").decode().splitlines() if line.startswith("# ")
    ]
    for told in (caption, "\n".join(line for line in comments if not line.startswith("# provenance: "))):
        assert told.count("Nothing else gives this answer.") == 1
        assert told.count("the values.") == 1
        assert told.count("A note of the page.") == 1
    assert figure_document(view, origin)["provenance"]["notes"] == list(origin.notes)


def test_captions_tell_every_choice_of_a_check():
    text = " ".join(caption_lines(attention_contrast(direction="rtl"), provenance()))
    for part in (
        "Attention over 12 tokens.",
        "3 distributions beside the observed one.",
        "“=adversarial <2>”, JSD 0.5 nats of at most 0.62 from the observed weights, TVD 0.005 of at most 1: "
        "the same prediction, ε = 0.01.",
        "Held fixed: everything but the weights a<b<c.",
        "Other weights give the same prediction. That does not show that attention is noise.",
        "Right-to-left text",
    ):
        assert part in text
    assert "another prediction" in shown_in_words(attention_contrast(shown=3))
    assert "Drawn" not in shown_in_words(attention_contrast(shown=0))
    words = shown_in_words(picture_contrast())
    assert "13 positions, of which 3 × 4 are patches" in words
    assert "means of the 2 rows" in words
    words = shown_in_words(checked_set())
    for part in (
        "40 inputs, ε = 0.01.",
        "Agreement with gradients: mean τ",
        "Marked: input 20",
        "Jsd: mean 0.409 of 39.",
    ):
        assert part in words
    assert "and 2 more classes" in shown_in_words(
        checked_set(6, predicted=np.arange(6), labels=tuple("abcdef"))
    )
    assert shown_in_words(checked_set(1, numbers=(), notes=())).startswith("1 input, ε")


# What is counted ----------------------------------------------------------------------------------------------------


@given(
    st.lists(
        st.floats(0.0, 1.0) | st.just(float("nan")) | st.sampled_from([0.25, 0.5, 0.75, 1.0]), min_size=1
    )
)
def test_each_largest_weight_lies_in_its_range(values):
    array = np.array(values, dtype=np.float32)
    view = replaced(checked_set(len(values)), "max_attention", array)
    for value, place in zip(array, attention_bins(view), strict=True):
        if np.isnan(value):
            assert place == -1
            continue
        low, high = ATTENTION_BINS[place]
        assert low <= value < high or value == high == 1
    assert [bin_title(place) for place in range(4)] == [
        "[0, 0.25)",
        "[0.25, 0.5)",
        "[0.5, 0.75)",
        "[0.75, 1]",
    ]
    assert (attention_bins(checked_set(3, numbers=())) == -1).all()


@given(st.lists(st.floats(-1.0, 1.0) | st.just(float("nan"))))
def test_a_histogram_counts_every_value_once(values):
    array = np.array(values, dtype=np.float32)
    counts = histogram(array, tau_edges())
    assert counts.sum() == np.isfinite(array).sum()
    expected = [
        sum(low <= value < high or (value == high == 1) for value in array.astype(np.float64))
        for low, high in zip(tau_edges()[:-1], tau_edges()[1:], strict=True)
    ]
    assert counts.tolist() == expected
    end, ticks = count_limit(counts)
    assert end > counts.max(initial=0)
    assert 2 <= len(ticks) <= 7
    assert all(isinstance(tick, int) for tick in ticks)


def test_rounding_beyond_the_largest_divergence_is_still_counted():
    assert histogram(np.array([LARGEST_JSD + 1e-7, 0.0]), jsd_edges()).tolist() == [1, *[0] * 18, 1]


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=30))
def test_densities_are_those_of_gaussian_kernels(values):
    array = np.array(values)
    width = bandwidth(array, 1.0)
    assert width >= 0.02
    places = np.linspace(0, 1, 7)
    plain = [sum(np.exp(-(((place - value) / width) ** 2) / 2) for value in values) for place in places]
    if max(plain) > 0:
        np.testing.assert_allclose(density(array, places, width), np.array(plain) / max(plain), atol=1e-12)
    spread = (
        min(array.std(ddof=1), np.subtract(*np.quantile(array, [0.75, 0.25])) / 1.349)
        if len(array) > 1
        else 0
    )
    assert width == pytest.approx(max(0.02, 1.059 * spread * len(array) ** -0.2))


def test_agreement_is_told_of_the_inputs_that_have_one():
    view = checked_set()
    gradient, without = agreements(view)
    taus = view.number("tau_gradient")[3:].astype(np.float64)
    assert gradient.mean == pytest.approx(taus.mean())
    assert gradient.deviation == pytest.approx(taus.std(ddof=1))
    assert gradient.significant == pytest.approx((view.number("p_gradient")[3:] < 0.05).mean())
    assert (len(gradient.values), len(without.values)) == (37, 40)
    bare = dataclasses.replace(
        view, numbers=tuple(number for number in view.numbers if not number.key.startswith("p_"))
    )
    assert [agreement.significant for agreement in agreements(bare)] == [None, None]
    assert agreements(checked_set(3, numbers=())) == ()


@given(st.floats(0.0, 1.0))
def test_an_axis_of_changes_ends_above_all_of_them(largest):
    view = replaced(checked_set(2), "permutation", np.array([largest, np.nan], dtype=np.float32))
    assert np.float32(largest) <= change_limit(view) <= 1


# Do the parts fit? --------------------------------------------------------------------------------------------------

ONE = np.zeros(1, dtype=np.float32)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"names": (), "predicted": np.zeros(0, int)}, "names must be at least one input"),
        ({"predicted": np.zeros(3, int)}, r"predicted must be \(2,\) but is \(3,\); pass one class an input"),
        ({"predicted": np.array([0, 3])}, "predicted must hold whole numbers from 0 to 2.* from 0 to 3"),
        ({"predicted": np.array([0.0, 1.0])}, "predicted must hold whole numbers .* but is float64"),
        ({"numbers": (CheckedNumber("a", "", np.zeros(2)),) * 2}, "'a' comes twice; rename one"),
        ({"numbers": (CheckedNumber("a", "", ONE),)}, r"values of 'a' must be \(2,\) but is \(1,\)"),
        ({"numbers": (CheckedNumber("jsd", "", np.array([0, 0.7])),)}, "'jsd' must be .* between 0 and 0.6931"),
        ({"numbers": (CheckedNumber("a", "", np.array([0, np.inf])),)}, "'a' must be finite"),
        ({"numbers": (CheckedNumber("tau_gradient", "", np.array([0, -1.1])),)}, "-1 and 1 but run from -1.1"),
        ({"epsilon": -0.1}, "epsilon must be a number of at least 0 but is -0.1"),
        ({"epsilon": float("nan")}, "epsilon must be a number"),
        ({"marked": 2}, "marked must be one of the 2 inputs, counted from 0, but is 2"),
    ],
)  # fmt: skip
def test_a_set_whose_parts_do_not_fit_is_refused(changes, message):
    view = dataclasses.replace(checked_set(2), **changes)
    with pytest.raises(ValueError, match=f"caller: .*{message}"):
        check_checked_set(view, "caller")
    with pytest.raises(ValueError, match="export_figure: "):
        export_figure(view, provenance(), "csv")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"heads": np.zeros((3, 6))}, r"heads must be \(edits, layers, heads\) .* but is \(3, 6\)"),
        ({"heads": np.zeros((3, 6, 0))}, r"with at least one of each but is \(3, 6, 0\)"),
        ({"edits": ("a",)}, "edits must be 3 titles, one for each of heads, but are 1"),
        ({"layers": np.zeros((3, 5))}, r"layers must be \(3, 6\) but is \(3, 5\)"),
        ({"whole": np.zeros(2)}, r"whole must be \(3,\) but is \(2,\)"),
        ({"whole": np.array([0, 0, np.inf])}, "whole must hold finite numbers but 1 are infinite"),
        ({"before": float("nan")}, "before must be a finite number but is nan"),
        ({"shown": 3}, "shown must be one of the 3 edits, counted from 0, but is 3"),
        ({"shown": -1}, "shown must be one of the 3 edits"),
        ({"marked": (6, 0)}, r"marked must be a \(layer, head\) of 6 × 12 but is \(6, 0\)"),
        ({"marked": (0, -1)}, "marked must be"),
    ],
)
def test_effects_whose_parts_do_not_fit_are_refused(changes, message):
    view = dataclasses.replace(head_effects(), **changes)
    with pytest.raises(ValueError, match=f"caller: .*{message}"):
        check_head_effects(view, "caller")
    with pytest.raises(ValueError, match="export_figure: "):
        export_figure(view, provenance(), "npz")


def test_a_contrast_whose_parts_do_not_fit_is_refused():
    with pytest.raises(ValueError, match="export_figure: names must be 4"):
        export_figure(attention_contrast(names=("observed",)), provenance(), "csv")


@pytest.mark.parametrize("name", check_figures())
def test_samples_are_accepted_and_equal_ones_give_equal_files(name):
    first, second = (export_figure(check_figures()[name], provenance(), "svg") for _ in range(2))
    assert first == second
