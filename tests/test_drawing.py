"""Exported pictures: that they show the record's choices, in the record's colours, with every text as typed."""

from __future__ import annotations

import dataclasses
import io
import re
import xml.etree.ElementTree as ElementTree
from concurrent.futures import ThreadPoolExecutor

import matplotlib
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from analysis.drawing import DOTS_PER_INCH, colour_table, find_fonts
from analysis.export import export_figure
from analysis.figure_data import HEAD_COLOURS
from analysis.plates.frame import MARGIN
from analysis.plates.head_view import chip_places
from analysis.plates.matrices import flowing
from analysis.raster import coloured, enlarged, mosaic, overlay, resized
from analysis.visible import short_label, thumbnail_limits, visible_lines
from dashboard import colour_maps
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

SVG = "{http://www.w3.org/2000/svg}"
DRAWN = {
    "svg",
    "title",
    "g",
    "path",
    "text",
    "image",
    "use",
    "defs",
    "style",
    "metadata",
    "clipPath",
    "rect",
}


def svg_of(figure, **changes):
    return ElementTree.fromstring(export_figure(figure, provenance(**changes), "svg"))


def texts_of(svg):
    return ["".join(element.itertext()) for element in svg.iter(f"{SVG}text")]


def png_of(figure, **changes):
    with Image.open(io.BytesIO(export_figure(figure, provenance(**changes), "png"))) as picture:
        return np.asarray(picture.convert("RGB"))


def share_of(pixels, colour, *, within=0):
    """Share of the pixels that have a colour."""
    if isinstance(colour, str):
        colour = [int(colour[start : start + 2], 16) for start in (1, 3, 5)]
    distance = np.abs(pixels.astype(int) - np.array(colour)).max(axis=-1)
    return float((distance <= within).mean())


def curves_of(svg):
    """Bézier curves of an SVG file, by stroke colour and opacity."""
    found = []
    for path in svg.iter(f"{SVG}path"):
        style = path.get("style") or ""
        if re.fullmatch(r"\s*M \S+ \S+\s+C( \S+){6}\s*", path.get("d", "")) and "stroke" in style:
            found.append(re.search(r"stroke: (#\w+)", style).group(1))
    return found


# Text -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", all_figures())
def test_no_token_becomes_markup_in_an_svg(name):
    svg = svg_of(all_figures()[name])
    assert {element.tag.removeprefix(SVG) for element in svg.iter() if element.tag.startswith(SVG)} <= DRAWN
    attributes = {attribute for element in svg.iter() for attribute in element.attrib}
    assert not {attribute for attribute in attributes if attribute.startswith("on")}
    links = [value for element in svg.iter() for key, value in element.attrib.items() if key.endswith("href")]
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in links)


def test_every_token_stands_in_an_svg_as_typed():
    for figure in (head_view(), token_scores(), matrix_view()):
        texts = texts_of(svg_of(figure))
        for text in HOSTILE:
            assert short_label(text) in texts
    assert "layer 3 · <head> $5$" in texts
    assert any("a<b<c </script><!--#exec --> $x^2$ مرحبا ⏎ second line" in text for text in texts)


@given(text=st.text(st.characters(codec=None), min_size=1, max_size=30))
@example(text="\x00\x80\ud800\ufffe\ufdd0\x1b")  # what XML cannot hold
@example(text="<a>&amp;'\"]]>")
@settings(max_examples=25)
def test_any_token_gives_well_formed_svg(text):
    figure = token_scores(scores=np.ones(1, np.float32), tokens=labels((text,)), source=0, title=text)
    texts = texts_of(svg_of(figure, input=text, model=text))
    assert short_label(text).strip() in [shown.strip() for shown in texts]


def test_characters_without_a_font_are_told():
    assert find_fonts("abc مرحبا שלום é →").missing == ""
    odd = "\ue123"  # private use: no font has it
    assert find_fonts(f"a{odd}b").missing == odd
    figure = token_scores(tokens=labels((odd, *["word"] * 11)))
    note = "No font on the exporting machine has U+E123"
    with Image.open(io.BytesIO(export_figure(figure, provenance(), "png"))) as picture:
        assert note in picture.text["Description"]
    texts = texts_of(svg_of(figure))
    assert odd in texts  # the viewer's fonts draw it
    assert not any(note in text for text in texts)


def test_pdf_text_can_be_searched_and_is_embedded():
    data = export_figure(matrix_view(), provenance(), "pdf")
    assert b"/FontFile2" in data  # TrueType
    assert b"/Subtype /Type3" not in data
    assert b"/CreationDate" not in data


def test_right_to_left_text_flows_from_the_right():
    fonts = find_fonts("abc")
    tokens = labels(("one", "two", "three"))
    scores = softmax_rows((3,))
    left, _ = flowing(token_scores(scores=scores, tokens=tokens), 5.0, fonts)
    right, _ = flowing(token_scores(scores=scores, tokens=tokens, direction="rtl"), 5.0, fonts)
    assert [x for x, _, _ in left] == sorted(x for x, _, _ in left)
    assert [x for x, _, _ in right] == sorted((x for x, _, _ in right), reverse=True)
    assert right[0][0] + right[0][2] == pytest.approx(5.0)
    wrapped, height = flowing(
        token_scores(scores=softmax_rows((60,)), tokens=labels(("word",) * 60)), 5.0, fonts
    )
    assert max(x + width for x, _, width in wrapped) <= 5.0
    assert height > 5 * 0.2


# Lines ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["head", "head pinned", "head pair", "head nothing"])
def test_a_head_view_draws_its_visible_lines_in_their_colours(name):
    view = all_figures()[name]
    drawn = sorted(curves_of(svg_of(view)))
    assert drawn == sorted(HEAD_COLOURS[head] for head in visible_lines(view).heads)


def test_hidden_tokens_are_left_out_and_windows_count_on():
    texts = texts_of(svg_of(head_view(hide_special=True, starts=(512, 700))))
    assert short_label(HOSTILE[0]) not in texts
    assert {"513", "701"} <= set(texts)
    assert not {"0", "512"} & set(texts[texts.index(short_label(HOSTILE[1])) :])


def test_a_pinned_token_gets_the_shares_of_the_other_column():
    view = head_view(pinned=("left", 4))
    mean = view.weights[[1, 2], 4].mean(axis=0)
    texts = texts_of(svg_of(view))
    strongest = 100 * mean.max()
    assert f"{strongest:.0f} %" in texts or f"{strongest:.1f} %" in texts
    assert sum(text.endswith(" %") for text in texts) == 12
    assert not any(text.endswith(" %") for text in texts_of(svg_of(head_view())))


def test_only_active_heads_lend_their_colours():
    weights = np.zeros((3, 2, 2), np.float32)
    weights[:, 0, 1] = 1.0
    tokens = labels(("a", "b"))
    pixels = png_of(head_view(weights=weights, left=tokens, right=tokens, active=(1,)))
    assert share_of(pixels, HEAD_COLOURS[1], within=12) > 1e-3
    assert share_of(pixels, HEAD_COLOURS[0], within=12) == 0
    assert share_of(pixels, HEAD_COLOURS[2], within=12) == 0


@pytest.mark.parametrize(("heads", "shared"), [(4, 2), (40, 8), (9, 9)])
def test_heads_of_one_key_value_head_stand_under_their_bracket(heads, shared):
    groups = tuple(head // shared for head in range(heads))
    view = head_view(weights=softmax_rows((heads, 12, 12)), groups=groups, active=(0,))
    places = chip_places(view, 2.6)
    assert len(set(places)) == heads
    for group in set(groups):
        members = [place for place, owner in zip(places, groups, strict=True) if owner == group]
        assert len({line for _, line in members}) == 1, "what fits on a line stays on one"
        outside = [place for place, owner in zip(places, groups, strict=True) if owner != group]
        low, high = min(members)[0], max(members)[0]
        assert not [x for x, line in outside if line == members[0][1] and low < x < high]
    svg = svg_of(view)
    named = {text: float(element.get("x")) for element in svg.iter(f"{SVG}text") if (text := element.text)}
    for group in set(groups):
        middle = named[f"kv {group}"] / 72 - MARGIN
        members = [x for (x, _), owner in zip(places_of(view, svg), groups, strict=True) if owner == group]
        assert middle == pytest.approx((min(members) + max(members) + 0.24) / 2, abs=1e-3)


def places_of(view, svg):
    """Places of the chips on a page of this width."""
    return chip_places(view, float(svg.get("width").removesuffix("pt")) / 72 - 2 * MARGIN - 2.2)


def test_heads_with_key_value_heads_of_their_own_have_no_bracket():
    assert not [text for text in texts_of(svg_of(head_view())) if text.startswith("kv")]


def test_values_above_the_scale_are_marked_and_keep_their_numbers():
    scores = np.array([0.75, 0.125, 0.0625, 0.0625], dtype=np.float32)
    view = token_scores(scores=scores, tokens=labels(("[CLS]", "a", "b", "[SEP]")), source=None)
    texts = texts_of(svg_of(dataclasses.replace(view, limits=(0.0, 0.125))))
    assert {"≥ 0.125", "0.75, above the scale", "0.125"} <= set(texts)
    assert not [text for text in texts_of(svg_of(view)) if "≥" in text or "above" in text]
    matrix = matrix_view(weights=np.tile(scores, (2, 1)), rows=labels(("a", "b")), columns=view.tokens)
    assert "≥ 0.125" in texts_of(svg_of(dataclasses.replace(matrix, limits=(0.0, 0.125))))
    assert "≥ 0.75" not in texts_of(svg_of(matrix))


# Colours --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", colour_maps.COLOUR_MAP_NAMES)
def test_files_and_screen_have_the_same_colours(name):
    assert np.array_equal(colour_table(name), colour_maps.colour_table(name))


def test_thumbnails_of_fewer_cells_fill_their_place_in_larger_squares():
    view, table = ragged_view(), colour_table("viridis")
    limits = thumbnail_limits(view)
    pixels = mosaic(view, table, gap=1, times=6)  # places of 24 × 30 pixels, 6 between
    fine = coloured(view.thumbnail(0, 0), (0.0, limits[0, 0]), table)
    assert np.array_equal(pixels[:24, :30], np.repeat(np.repeat(fine, 6, axis=0), 6, axis=1))
    coarse = coloured(view.thumbnail(1, 2), (0.0, limits[1, 2]), table)  # cells of 10 × 10 pixels
    place = pixels[30:54, 72:102]
    assert np.array_equal(place[2:22], np.repeat(np.repeat(coarse, 10, axis=0), 10, axis=1))
    assert (place[:2] == 255).all()
    assert (place[22:] == 255).all()
    assert (pixels[:24, 36:] == 255).all()  # layer 0 has one head


def test_a_matrix_is_coloured_by_value_limits_and_scale():
    table = colour_table("viridis")
    values = np.array([[0.0, 0.25], [1.0, np.nan]], dtype=np.float32)
    assert coloured(values, (0.0, 1.0), table)[0].tolist() == [table[0].tolist(), table[64].tolist()]
    assert coloured(values, (0.0, 1.0), table, scale="sqrt")[0, 1].tolist() == table[128].tolist()
    assert coloured(values, (0.0, 0.25), table)[1].tolist() == [table[255].tolist(), [205, 205, 205]]
    assert coloured(values, (1.0, 1.0), table)[0, 0].tolist() == table[0].tolist()
    weights = np.array([[0.0, 1.0], [0.5, 0.25]], dtype=np.float32)
    pixels = png_of(matrix_view(weights=weights, rows=labels(("a", "b")), columns=labels(("c", "d"))))
    for weight in weights.ravel():
        assert share_of(pixels, table[round(255 * weight)]) > 0.005
    zoomed = png_of(
        matrix_view(weights=weights, rows=labels(("a", "b")), columns=labels(("c", "d")), zoom=(1, 2, 0, 2))
    )
    assert share_of(zoomed, table[128]) > 0.005
    assert (
        share_of(zoomed, table[255]) < 0.002
    )  # in the scale bar alone: the zoom keeps the whole matrix' scale


def test_the_mosaic_places_layers_down_and_heads_across():
    view = model_view()
    table = colour_table("viridis")
    pixels = mosaic(view, table, gap=2)
    assert pixels.shape == (2 * 4 + 2, 3 * 5 + 2 * 2, 3)
    limits = thumbnail_limits(view)
    for layer in range(2):
        for head in range(3):
            tile = pixels[layer * 6 : layer * 6 + 4, head * 7 : head * 7 + 5]
            expected = coloured(view.thumbnails[layer, head], (0.0, limits[layer, head]), table)
            assert np.array_equal(tile, expected)
    assert (pixels[4:6] == 255).all()


def test_an_overlay_mixes_picture_and_map_at_the_pictures_shape():
    picture = np.full((20, 40, 3), 100, np.uint8)
    patches = np.array([[0.0, 1.0]], dtype=np.float32)
    table = colour_table("viridis")
    mixed = overlay(picture, patches, (0.0, 1.0), table, opacity=0.25, smooth=False, side=80)
    assert mixed.shape == (40, 80, 3)
    assert mixed[5, 5].tolist() == np.rint(0.75 * 100 + 0.25 * table[0].astype(float)).tolist()
    assert mixed[5, 75].tolist() == np.rint(0.75 * 100 + 0.25 * table[255].astype(float)).tolist()
    untouched = overlay(picture, patches, (0.0, 1.0), table, opacity=0.0, smooth=True, side=40)
    assert (untouched == 100).all()


@given(
    rows=st.integers(1, 6), columns=st.integers(1, 6), height=st.integers(1, 20), width=st.integers(1, 20),
    smooth=st.booleans(),
)  # fmt: skip
def test_resizing_agrees_with_numpy_interpolation(rows, columns, height, width, smooth):
    values = softmax_rows((rows, columns))
    found = resized(values, (height, width), smooth=smooth)
    assert found.shape == (height, width)
    down, across = (np.arange(height) + 0.5) * rows / height, (np.arange(width) + 0.5) * columns / width
    if smooth:
        along = np.stack([np.interp(across - 0.5, np.arange(columns), row) for row in values])
        expected = np.stack([np.interp(down - 0.5, np.arange(rows), column) for column in along.T]).T
    else:
        expected = values[np.floor(down).astype(int)[:, None], np.floor(across).astype(int)]
    assert np.allclose(found, expected, atol=1e-6)


def test_small_rasters_are_enlarged_by_whole_pixels():
    pixels = np.arange(12, dtype=np.uint8).reshape(2, 2, 3)
    large = enlarged(pixels, 7)
    assert large.shape == (6, 6, 3)
    assert np.array_equal(large[::3, ::3], pixels)
    assert enlarged(large, 4) is not None
    assert enlarged(large, 4).shape == large.shape


def test_patch_maps_keep_the_pictures_shape_and_mark_the_patch():
    marked, unmarked = png_of(patch_maps(opacity=1.0)), png_of(patch_maps(opacity=1.0, marked=None))
    assert (
        np.abs(marked.astype(int) - unmarked.astype(int)).max() > 100
    )  # the frame (and its words) came on top
    view = patch_maps(opacity=1.0, marked=None, maps=np.array([[[0.0, 1.0]]], np.float32), titles=("one",))
    yellow = np.argwhere((png_of(view) == colour_table("viridis")[255]).all(axis=-1))
    rows, columns = yellow[:, 0], yellow[:, 1]
    columns = columns[columns < np.median(columns) + 500]  # without the scale bar, which is further right
    height, width = np.ptp(rows) + 1, np.ptp(columns) + 1
    assert height / (2 * width) == pytest.approx(30 / 40, rel=0.02)


# Files ----------------------------------------------------------------------------------------------------------


def test_pictures_are_sharp_and_white():
    with Image.open(io.BytesIO(export_figure(head_view(), provenance(), "png"))) as picture:
        assert picture.info["dpi"] == pytest.approx((DOTS_PER_INCH, DOTS_PER_INCH), abs=0.1)
        assert picture.mode == "RGBA"
        corners = [picture.getpixel((x, y)) for x in (0, picture.width - 1) for y in (0, picture.height - 1)]
    assert corners == [(255, 255, 255, 255)] * 4


def test_a_large_matrix_is_pooled_for_the_picture_and_whole_in_the_data():
    weights = np.zeros((2048, 2048), np.float32)
    weights[1000, 77] = 1.0
    tokens = labels(tuple(f"t{index}" for index in range(2048)))
    view = matrix_view(weights=weights, rows=tokens, columns=tokens)
    data = export_figure(view, provenance(), "svg")
    assert len(data) < 500_000
    assert any("maximum of each block" in text for text in texts_of(ElementTree.fromstring(data)))
    with Image.open(io.BytesIO(export_figure(view, provenance(), "png"))) as picture:
        assert max(picture.size) < 2500
        pixels = np.asarray(picture.convert("RGB"))
    assert share_of(pixels, colour_table("viridis")[255]) > 0  # the one weight is still there
    with np.load(io.BytesIO(export_figure(view, provenance(), "npz"))) as arrays:
        assert np.array_equal(arrays["weights"], weights)


def test_threads_and_a_users_settings_change_nothing():
    figures = [head_view(), matrix_view(), token_scores(), patch_maps()] * 2
    alone = [export_figure(figure, provenance(), "svg") for figure in figures]
    before = {
        name: matplotlib.rcParams[name]
        for name in ("svg.fonttype", "pdf.fonttype", "font.size", "text.usetex")
    }
    with matplotlib.rc_context(
        {"svg.fonttype": "path", "text.usetex": True, "font.size": 30, "savefig.dpi": 30}
    ):
        with ThreadPoolExecutor(4) as pool:
            together = list(pool.map(lambda figure: export_figure(figure, provenance(), "svg"), figures))
        assert matplotlib.rcParams["svg.fonttype"] == "path"  # and the user's settings stay the user's
    assert together == alone
    assert {name: matplotlib.rcParams[name] for name in before} == before


@pytest.mark.parametrize("name", all_figures())
def test_drawing_changes_no_record(name):
    figure = all_figures()[name]
    arrays = [
        value
        for item in dataclasses.fields(figure)
        if isinstance(value := getattr(figure, item.name), np.ndarray)
    ]
    copies = [array.copy() for array in arrays]
    for array in arrays:
        array.flags.writeable = False
    export_figure(figure, provenance(), "svg")
    assert all(
        np.array_equal(array, copy, equal_nan=True) for array, copy in zip(arrays, copies, strict=True)
    )


def test_one_token_one_head_and_one_patch_are_drawn():
    one = labels(("word",))
    strip = np.zeros((60, 1, 3), np.uint8)
    tiny = {
        "head": head_view(weights=np.ones((1, 1, 1), np.float32), left=one, right=one, active=(0,)),
        "matrix": matrix_view(weights=np.ones((1, 1), np.float32), rows=one, columns=one),
        "model": model_view(thumbnails=np.ones((1, 1, 1, 1), np.float32), selected=None),
        "scores": token_scores(scores=np.array([np.nan], np.float32), tokens=one, source=None),
        "patches": patch_maps(picture=strip, maps=np.zeros((1, 4, 1), np.float32), titles=("x",)),
    }
    for figure in tiny.values():
        assert len(png_of(figure)) > 100
