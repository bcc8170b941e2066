"""Payloads of matrices, maps over a picture and token scores, and what is kept of a browser's answers."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analysis.figure_data import MatrixView, PatchMaps, TokenLabel, TokenScores
from dashboard.colour_maps import colour_table
from dashboard.components import checked_matrix_view, checked_patch_map, checked_token_strip
from dashboard.figures import (
    EXACT_CELLS,
    PICTURE_PIXELS,
    matrix_view_payload,
    patch_map_payload,
    token_strip_payload,
    unpack,
)


def labels(count: int, prefix: str = "token") -> tuple[TokenLabel, ...]:
    return tuple(TokenLabel(f"{prefix}{index}", f"{prefix}{index}") for index in range(count))


def matrix(queries: int, keys: int, **options: Any) -> MatrixView:
    weights = np.random.default_rng(queries + keys).uniform(size=(queries, keys)).astype(np.float32)
    return MatrixView(weights, labels(queries, "from"), labels(keys, "to"), **options)


def patch_maps(panels: int = 2, rows: int = 16, columns: int = 8, **options: Any) -> PatchMaps:
    generator = np.random.default_rng(3)
    picture = generator.integers(0, 256, size=(rows * 4, columns * 4, 3), dtype=np.uint8)
    maps = generator.uniform(0, 0.1, size=(panels, rows, columns)).astype(np.float32)
    return PatchMaps(picture, maps, tuple(f"head {index}" for index in range(panels)), **options)


# Matrices ------------------------------------------------------------------------------------------------------


@given(queries=st.integers(1, 40), keys=st.integers(1, 40))
def test_small_matrices_travel_exactly(queries: int, keys: int) -> None:
    view = matrix(queries, keys)
    header, arrays = unpack(matrix_view_payload(view))
    assert header["factor"] == 1
    assert header["size"] == [queries, keys]
    np.testing.assert_array_equal(arrays["weights"], view.weights)
    assert [token["text"] for token in header["rows"]] == [token.text for token in view.rows]
    assert [token["text"] for token in header["columns"]] == [token.text for token in view.columns]
    assert header["limits"] == [0.0, float(view.weights.max())]


@pytest.mark.parametrize(
    ("size", "zoom", "factor", "start"),
    [
        ((600, 700), (10, 210, 33, 400), 1, (10, 33)),
        (
            (600, 700),
            (0, 600, 0, 437),
            None,
            None,
        ),  # above 512 × 512 the part would be as coarse as the whole
        ((2048, 1500), (100, 140, 1490, 1500), 1, (100, 1490)),
        ((2048, 1500), (0, 2048, 7, 100), 1, (0, 7)),
        ((2048, 1500), (101, 1101, 50, 1049), 2, (50, 25)),
        ((2048, 1500), (0, 2000, 0, 1500), None, None),
        ((500, 500), (3, 9, 3, 9), None, None),  # the whole is exact
        ((2048, 1500), None, None, None),
    ],
)
def test_the_zoomed_part_travels_as_exactly_as_it_can(size, zoom, factor, start) -> None:  # type: ignore[no-untyped-def]
    view = matrix(*size, zoom=zoom)
    header, arrays = unpack(matrix_view_payload(view))
    if factor is None:
        assert (header["part"], "part" in arrays) == (None, False)
        return
    assert header["part"] == {"factor": factor, "start": list(start)}
    part = arrays["part"]
    assert part.dtype == np.float32
    assert part.size <= EXACT_CELLS
    top, left = start[0] * factor, start[1] * factor
    assert top <= zoom[0] < top + factor
    assert left <= zoom[2] < left + factor
    assert top + part.shape[0] * factor >= zoom[1]
    assert left + part.shape[1] * factor >= zoom[3]
    for row, column in np.random.default_rng(1).integers(0, part.shape, size=(50, 2)):
        rows, columns = (
            slice(at + index * factor, at + (index + 1) * factor)
            for at, index in ((top, row), (left, column))
        )
        assert part[row, column] == view.weights[rows, columns].max()


def test_a_matrix_at_the_limit_is_exact_and_one_above_it_is_quantised() -> None:
    _, arrays = unpack(matrix_view_payload(matrix(512, 512)))
    assert arrays["weights"].dtype == np.float32
    assert arrays["weights"].size == EXACT_CELLS
    view = matrix(512, 513)
    _, arrays = unpack(matrix_view_payload(view))
    assert arrays["weights"].dtype == np.uint8
    undone = (arrays["weights"] / 255.0) ** 2
    # Half a level of the square root is an error of at most 1/255 of the root, twice over.
    assert np.abs(undone - view.weights).max() <= 1 / 255 + 1 / 510**2


def test_values_that_levels_cannot_hold_stay_exact() -> None:
    view = matrix(600, 600)
    view.weights[5, 7] = -0.25
    view.weights[6, 8] = 3.5
    _, arrays = unpack(matrix_view_payload(view))
    np.testing.assert_array_equal(arrays["weights"], view.weights)


def test_missing_values_stay_missing() -> None:
    view = matrix(4, 4)
    view.weights[1, 2] = np.nan
    header, arrays = unpack(matrix_view_payload(view))
    assert np.isnan(arrays["weights"][1, 2])
    assert np.isfinite(header["limits"]).all()


@pytest.mark.parametrize(
    ("size", "factor"), [((1001, 1001), 2), ((2048, 2048), 4), ((2050, 30), 5), ((932, 882), 1)]
)
def test_long_inputs_are_pooled_to_the_largest_of_each_block(size: tuple[int, int], factor: int) -> None:
    view = matrix(*size)
    header, arrays = unpack(matrix_view_payload(view))
    assert header["factor"] == factor
    assert header["size"] == list(size)
    expected = np.array(
        [
            [
                view.weights[row : row + factor, column : column + factor].max()
                for column in range(0, size[1], factor)
            ]
            for row in range(0, size[0], max(factor, size[0] // 7))
            if row % factor == 0
        ]
    )
    rows = [row // factor for row in range(0, size[0], max(factor, size[0] // 7)) if row % factor == 0]
    drawn = arrays["weights"]
    assert drawn.shape == (-(-size[0] // factor), -(-size[1] // factor))
    if drawn.dtype == np.uint8:
        np.testing.assert_allclose((drawn[rows] / 255.0) ** 2, expected, atol=0.005)
    else:
        np.testing.assert_array_equal(drawn[rows], expected)


def test_a_pooled_blob_is_small() -> None:
    weights = np.full((4096, 4096), 1 / 4096, dtype=np.float32)
    payload = matrix_view_payload(MatrixView(weights, labels(4096), labels(4096)))
    assert len(payload) < 2_000_000


def test_equal_axes_are_sent_once() -> None:
    tokens = labels(5)
    header, _ = unpack(matrix_view_payload(MatrixView(np.eye(5, dtype=np.float32), tokens, tokens)))
    assert header["columns"] is None


def test_choices_and_colours_travel() -> None:
    view = matrix(9, 9, zoom=(1, 5, 2, 6), selected=(3, 4), colour_map="magma", limits=(0.0, 0.5), unit="u")
    header, arrays = unpack(matrix_view_payload(view, scale="sqrt", axes=("target", "source")))
    assert header["state"] == {"zoom": [1, 5, 2, 6], "selected": [3, 4], "scale": "sqrt"}
    assert (header["limits"], header["unit"], header["axes"]) == ([0.0, 0.5], "u", ["target", "source"])
    np.testing.assert_array_equal(arrays["lut"], colour_table("magma"))


def test_a_lone_vector_is_refused_with_the_shape_that_is_needed() -> None:
    view = MatrixView(np.array([0.9, 0.1], dtype=np.float32), labels(1), labels(2))
    with pytest.raises(ValueError, match=r"weights must be \(queries, keys\).*is \(2,\).*shape \(1, keys\)"):
        matrix_view_payload(view)
    one_row = MatrixView(view.weights[None], labels(1), labels(2))
    assert unpack(matrix_view_payload(one_row))[1]["weights"].shape == (1, 2)


def test_transposed_labels_are_refused() -> None:
    view = matrix(4, 6)
    with pytest.raises(ValueError, match="must be 4 and 6 labels but are 6 and 4; rows are queries"):
        matrix_view_payload(MatrixView(view.weights, view.columns, view.rows))
    with pytest.raises(ValueError, match="at least one of each"):
        matrix_view_payload(MatrixView(np.zeros((0, 3), dtype=np.float32), (), labels(3)))


# Maps over a picture -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grid", [(16, 8), (29, 29), (60, 1), (1, 60)])
def test_maps_keep_their_own_grid(grid: tuple[int, int]) -> None:
    view = patch_maps(3, *grid, marked=(0, 0))
    header, arrays = unpack(patch_map_payload(view))
    assert header["grid"] == list(grid)
    np.testing.assert_array_equal(arrays["maps"], view.maps)
    np.testing.assert_array_equal(arrays["picture"], view.picture)
    assert header["state"] == {"marked": [0, 0], "opacity": 0.6, "smooth": False, "shared_scale": True}


def test_both_scales_travel_so_that_the_browser_can_switch() -> None:
    view = patch_maps(3)
    header, _ = unpack(patch_map_payload(view))
    highest = view.maps.reshape(3, -1).max(axis=1)
    np.testing.assert_allclose(np.array(header["limits"])[:, 1], highest)
    np.testing.assert_allclose(header["shared_limits"], [0.0, highest.max()])
    fixed, _ = unpack(patch_map_payload(patch_maps(3, limits=(0.0, 1.0))))
    assert fixed["fixed_limits"]
    assert fixed["shared_limits"] == [0.0, 1.0]


@pytest.mark.parametrize("size", [(1200, 900), (3001, 2000), (5000, 300), (1_500_000, 1)])
def test_a_large_picture_is_sent_smaller_and_in_proportion(size: tuple[int, int]) -> None:
    height, width = size
    down = np.linspace(0, 255, height).astype(np.uint8)[:, None, None]
    picture = np.broadcast_to(down, (height, width, 3))
    view = PatchMaps(picture, np.ones((1, 4, 3), dtype=np.float32), ("head 0",))
    header, arrays = unpack(patch_map_payload(view))
    copy = arrays["picture"]
    assert header["picture_size"] == list(size)
    assert copy.shape[0] * copy.shape[1] <= PICTURE_PIXELS
    assert max(copy.shape) < 2**14
    if width > 1:
        assert copy.shape[0] / copy.shape[1] == pytest.approx(height / width, rel=0.01)
    expected = np.linspace(0, 255, len(copy))
    assert np.abs(copy[:, 0, 0].astype(float) - expected).max() <= 2
    assert np.ptp(copy, axis=(1, 2)).max() == 0


def test_a_display_copy_holds_means_not_samples() -> None:
    stripes = np.zeros((2000, 2000, 3), dtype=np.uint8)
    stripes[:, ::2] = 200
    view = PatchMaps(stripes, np.ones((1, 2, 2), dtype=np.float32), ("head 0",))
    _, arrays = unpack(patch_map_payload(view))
    assert arrays["picture"].min() >= 99
    assert arrays["picture"].max() <= 101


def test_pictures_and_maps_that_do_not_fit_are_refused() -> None:
    view = patch_maps()
    with pytest.raises(ValueError, match=r"picture must be \(height, width, 3\) uint8 but is \(64, 32\)"):
        patch_map_payload(PatchMaps(view.picture[..., 0], view.maps, view.titles))
    with pytest.raises(ValueError, match="float64"):
        patch_map_payload(PatchMaps(view.picture / 255.0, view.maps, view.titles))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="with 1 titles"):
        patch_map_payload(PatchMaps(view.picture, view.maps, ("head 0",)))
    with pytest.raises(ValueError, match="add the axis of panels"):
        patch_map_payload(PatchMaps(view.picture, view.maps[0], view.titles))


# Token scores --------------------------------------------------------------------------------------------------


def test_scores_travel_exactly_with_their_limits() -> None:
    scores = np.array([0.1, -0.4, 0.3], dtype=np.float32)
    view = TokenScores(scores, labels(3), source=2, direction="rtl")
    header, arrays = unpack(token_strip_payload(view))
    np.testing.assert_array_equal(arrays["scores"], scores)
    assert header["limits"] == [float(scores[1]), float(scores[2])]
    assert (header["direction"], header["state"]) == ("rtl", {"source": 2, "scale": "linear"})
    with pytest.raises(ValueError, match=r"scores must be \(2,\) but is \(3,\)"):
        token_strip_payload(TokenScores(scores, labels(2)))


# What comes back from the browser ------------------------------------------------------------------------------

UNTRUSTED = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 70) | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=5) | st.dictionaries(st.sampled_from(["at", "input", "index"]), inner)
    ),
    max_leaves=8,
)


@given(zoom=UNTRUSTED, selected=UNTRUSTED, scale=UNTRUSTED)
def test_whatever_a_matrix_view_says_fits_the_matrix(zoom: object, selected: object, scale: object) -> None:
    header, _ = unpack(matrix_view_payload(matrix(12, 7)))
    said = {"zoom": zoom, "selected": selected, "scale": scale, "input": header["input"], "evil": 1}
    state = checked_matrix_view(said, header)
    assert set(state) <= {"zoom", "selected", "scale"}
    json.dumps(state, allow_nan=False)
    if state["zoom"] is not None:
        top, bottom, left, right = state["zoom"]
        assert 0 <= top < bottom <= 12
        assert 0 <= left < right <= 7
    if state["selected"] is not None:
        row, column = state["selected"]
        assert 0 <= row < 12
        assert 0 <= column < 7
    assert state.get("scale", "linear") in ("linear", "sqrt")


def test_a_true_answer_is_taken_and_one_about_another_input_is_not() -> None:
    header, _ = unpack(matrix_view_payload(matrix(12, 7)))
    said = {"zoom": [0, 12, 0, 7], "selected": [11, 6], "scale": "sqrt", "input": header["input"]}
    assert checked_matrix_view(said, header) == {"zoom": [0, 12, 0, 7], "selected": [11, 6], "scale": "sqrt"}
    other = checked_matrix_view({**said, "input": "another"}, header)
    assert other == {"zoom": None, "selected": None, "scale": "sqrt"}
    assert checked_matrix_view("nonsense", header) == {}


@given(patch=UNTRUSTED, at=UNTRUSTED, panel=UNTRUSTED, view=UNTRUSTED, opacity=UNTRUSTED)
def test_whatever_a_patch_map_says_fits_the_grid(
    patch: object, at: object, panel: object, view: object, opacity: object
) -> None:
    header, _ = unpack(patch_map_payload(patch_maps(2, 16, 8)))
    answers: list[dict[str, object]] = [
        {"patch": patch, "panel": panel, "view": view},
        {"patch": {"at": at, "input": header["input"]}, "view": {"opacity": opacity, "smooth": opacity}},
    ]
    for said in answers:
        state = checked_patch_map(said, header)
        json.dumps(state, allow_nan=False)
        assert set(state) <= {"panel", "patch", "opacity", "smooth", "shared_scale"}
        assert state["panel"] in (None, 0, 1)
        assert 0 <= state.get("opacity", 0) <= 1
        if state.get("patch") is not None:
            assert 0 <= state["patch"][0] < 16
            assert 0 <= state["patch"][1] < 8


def test_a_patch_is_taken_only_for_the_picture_that_was_shown() -> None:
    header, _ = unpack(patch_map_payload(patch_maps()))
    said = {
        "patch": {"at": [15, 7], "input": header["input"]},
        "panel": 1,
        "view": {"opacity": 0.2, "smooth": True},
    }
    expected = {"panel": 1, "patch": [15, 7], "opacity": 0.2, "smooth": True}
    assert checked_patch_map(said, header) == expected
    assert "patch" not in checked_patch_map({"patch": {"at": [15, 7], "input": "another"}}, header)
    to_cls = {"patch": {"at": None, "input": header["input"]}}
    assert checked_patch_map(to_cls, header) == {"panel": None, "patch": None}
    without, _ = unpack(patch_map_payload(patch_maps(), has_cls=False))
    assert "patch" not in checked_patch_map({"patch": {"at": None, "input": without["input"]}}, without)


def test_a_token_is_taken_only_when_it_is_there() -> None:
    header, _ = unpack(token_strip_payload(TokenScores(np.zeros(3, dtype=np.float32), labels(3))))
    for index, expected in ((2, 2), (3, None), (-1, None), (True, None), ("1", None)):
        said = {"token": {"index": index, "input": header["input"]}, "view": {"scale": "sqrt"}}
        assert checked_token_strip(said, header) == {"token": expected, "scale": "sqrt"}
    assert checked_token_strip({"token": {"index": 1, "input": "another"}}, header) == {"token": None}
