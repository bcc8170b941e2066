"""The blobs that components draw: what is packed comes back, fits the browser, and what a browser says is checked."""

from __future__ import annotations

import json
from dataclasses import replace

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from streamlit.testing.v1 import AppTest

from analysis.figure_data import HEAD_COLOURS, LEARNED_QUERY, HeadView, ModelView, TokenLabel, weight_levels
from dashboard import figures
from dashboard.colour_maps import COLOUR_MAP_NAMES, colour_table
from dashboard.components import checked_head_view, checked_model_view
from dashboard.components.mount import component_files
from dashboard.figures import (
    head_view_payload,
    input_digest,
    model_view_payload,
    pack,
    read_header,
    token_entries,
    unpack,
    with_header,
)

ODD_TEXTS = (
    "<!--#exec",
    "a<b<c",
    "</script><img src=x onerror=alert(1)>",
    "\ud800",
    "\x10",
    "日本語",
    "ذهب",
    "🙂",
)


def blob_arrays():
    shapes = arrays.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5)
    return arrays.arrays(np.uint8, shapes) | arrays.arrays(np.float32, shapes)


def labels(*texts):
    return tuple(TokenLabel(text, text, word=index) for index, text in enumerate(texts))


def head_view(*, layers=4, heads=3, queries=5, keys=5, layer=2, **changes):
    weights = np.random.default_rng(0).random((heads, queries, keys), dtype=np.float32)
    left = labels(*(f"q{i}" for i in range(queries)))
    right = left if queries == keys else labels(*(f"k{i}" for i in range(keys)))
    view = HeadView(
        weights=weights, left=left, right=right, layer=layer, layers=layers, active=tuple(range(heads))
    )
    return replace(view, **changes)


# The format ----------------------------------------------------------------------------------------------------


@given(st.dictionaries(st.text(max_size=8), blob_arrays(), max_size=4), st.text(max_size=20))
def test_what_is_packed_comes_back(contents, title):
    payload = pack({"kind": "any", "title": title}, contents)
    header, found = unpack(payload)
    assert (header["kind"], header["title"]) == ("any", title)
    assert header["version"] == 1
    assert found.keys() == contents.keys()
    for name, array in contents.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype


@given(st.dictionaries(st.text(max_size=8), blob_arrays(), max_size=4), st.text(max_size=20))
def test_arrays_start_where_a_browser_can_read_them(contents, title):
    payload = pack({"kind": "any", "title": title}, contents)
    length = int.from_bytes(payload[:4], "little")
    header = json.loads(payload[4 : 4 + length])
    assert (4 + length) % 8 == 0
    for entry in header["arrays"].values():
        assert entry["offset"] % 8 == 0
        size = {"uint8": 1, "float32": 4}[entry["dtype"]]
        assert 4 + length + entry["offset"] + size * int(np.prod(entry["shape"])) <= len(payload)


def test_float32_is_little_endian_whatever_the_array_is():
    value = np.array([1.5, -2.0], dtype=">f4")
    header, start = read_header(pack({"kind": "any"}, {"value": value}))
    assert header["arrays"]["value"] == {"offset": 0, "shape": [2], "dtype": "float32"}
    assert pack({"kind": "any"}, {"value": value})[start:] == np.array([1.5, -2.0], dtype="<f4").tobytes()


def test_unpacked_arrays_are_read_only():
    _, found = unpack(pack({"kind": "any"}, {"value": np.zeros(3, dtype=np.uint8)}))
    with pytest.raises(ValueError, match="read-only"):
        found["value"][0] = 1


def test_what_cannot_be_packed_is_refused():
    with pytest.raises(ValueError, match="array value must be one of uint8, float32 but is float64"):
        pack({"kind": "any"}, {"value": np.zeros(2)})
    with pytest.raises(ValueError, match="must name its kind"):
        pack({"title": "any"}, {})
    with pytest.raises(ValueError, match="JSON compliant"):
        pack({"kind": "any", "limit": float("nan")}, {})


@pytest.mark.parametrize(
    "payload", [b"", b"\0\0\0\0", b"\xff\xff\xff\xff1234", b"\4\0\0\0{}  " + b"x", b"plain text"]
)
def test_other_bytes_are_refused(payload):
    with pytest.raises(ValueError, match="read_header: payload"):
        read_header(payload)


def test_a_header_can_be_exchanged():
    payload = pack({"kind": "any", "state": 1}, {"value": np.arange(5, dtype=np.uint8)})
    header, _ = read_header(payload)
    changed, found = unpack(with_header(payload, {**header, "state": {"long": "x" * 100}}))
    assert changed["state"] == {"long": "x" * 100}
    np.testing.assert_array_equal(found["value"], np.arange(5))


# Tokens --------------------------------------------------------------------------------------------------------


def test_token_entries_keep_the_text_and_leave_out_what_is_ordinary():
    long = "antidisestablishmentarianism"
    plain, marked = token_entries(
        [
            TokenLabel("cat", "cat"),
            TokenLabel(long, "##" + long, special=True, unknown=True, segment=1, word=3, continues=True),
        ]
    )
    assert plain == {"text": "cat"}
    assert marked == {
        "text": long,
        "short": "antidisestablis…",
        "piece": "##" + long,
        "word": 3,
        "segment": 1,
        "special": True,
        "unknown": True,
        "continues": True,
    }


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_any_text_survives_the_header(text):
    view = head_view(queries=1, keys=1, left=labels(text), right=labels(text))
    (entry,) = unpack(head_view_payload(view))[0]["left"]
    expected = {"\ud800": "\ufffd", "\x10": "␐"}.get(text, text)
    assert entry["text"] == expected


def test_digest_tells_inputs_apart():
    assert input_digest(labels("a", "b")) == input_digest(labels("a", "b"))
    others = [labels("a", "c"), labels("ab"), labels("b", "a"), labels("a", "\ud800")]
    others.append((replace(labels("a")[0], special=True), labels("a", "b")[1]))
    assert len({input_digest(tokens) for tokens in [labels("a", "b"), *others]}) == 6
    assert input_digest(labels("a"), labels("b")) != input_digest(labels("a", "b"), ())


# Head and model view -------------------------------------------------------------------------------------------


def test_head_view_payload_of_one_layer():
    view = head_view(pinned=("right", 1), threshold=0.25, pair_filter="ab", hide_special=True, active=(0, 2))
    view = replace(view, groups=(0, 0, 1))
    header, found = unpack(head_view_payload(view, title="t", merged=True))
    np.testing.assert_array_equal(found["weights"], weight_levels(view.weights)[None])
    assert header["kind"] == "head_view"
    assert (header["layers"], header["present"], header["heads"]) == (4, [2], 3)
    assert header["groups"] == [0, 0, 1]
    assert header["colours"] == list(HEAD_COLOURS)
    assert header["right"] is None  # the same tokens are sent once
    assert header["state"] == {
        "layer": 2,
        "heads": [0, 2],
        "pinned": ["right", 1],
        "threshold": 0.25,
        "filter": "ab",
        "hide_special": True,
        "merge_words": True,
    }


def test_head_view_payload_of_all_layers():
    layers = np.random.default_rng(1).random((4, 3, 5, 5), dtype=np.float32)
    header, found = unpack(head_view_payload(head_view(weights=layers[2]), all_layers=layers))
    assert header["present"] == [0, 1, 2, 3]
    np.testing.assert_array_equal(found["weights"], weight_levels(layers))
    assert found["weights"].nbytes == layers.size  # one byte a weight


def test_head_view_payload_keeps_both_sides_of_cross_attention():
    header, found = unpack(head_view_payload(head_view(queries=2, keys=6, kind="cross")))
    assert found["weights"].shape == (1, 3, 2, 6)
    assert [len(header["left"]), len(header["right"])] == [2, 6]
    assert header["attention"] == "cross"


def test_head_view_payload_names_a_learned_query_as_what_it_is():
    view = replace(head_view(queries=1, keys=6, kind="cross"), left=(LEARNED_QUERY,))
    assert read_header(head_view_payload(view))[0]["attention"] == "learned"


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"all_layers must be \(4, 3, 5, 5\) but is \(3, 3, 5, 5\)"):
        head_view_payload(head_view(), all_layers=np.zeros((3, 3, 5, 5), dtype=np.float32))
    with pytest.raises(ValueError, match="groups must have 3 entries but has 2"):
        head_view_payload(head_view(groups=(0, 1)))
    with pytest.raises(ValueError, match="at most 64 cells a side but are 65 × 65"):
        model_view_payload(ModelView(thumbnails=np.zeros((1, 1, 65, 65), dtype=np.float32)))
    with pytest.raises(ValueError, match=r"entropy must be \(1, 2\) but is \(2, 1\)"):
        model_view_payload(
            ModelView(thumbnails=np.zeros((1, 2, 4, 4), dtype=np.float32)), entropy=np.zeros((2, 1))
        )


def test_model_view_payload():
    maps = np.random.default_rng(2).random((2, 3, 4, 5), dtype=np.float32)
    maps[1, 2] = 0.0
    view = ModelView(
        thumbnails=maps, selected=(1, 0), shared_scale=True, colour_map="magma", groups=(0, 0, 1)
    )
    header, found = unpack(model_view_payload(view, tokens=(40, 50), entropy=maps.mean((2, 3))))
    np.testing.assert_array_equal(found["weights"], weight_levels(maps))
    np.testing.assert_array_equal(found["lut"], colour_table("magma"))
    np.testing.assert_allclose(found["maximum"], maps.max((2, 3)))
    limits = maps.max((2, 3))
    limits[1, 2] = 1.0  # an empty map has a scale all the same
    np.testing.assert_allclose(found["limits"], limits)  # of each head, also where the scale is shared
    assert header["shared_limit"] == pytest.approx(maps.max())
    assert header["state"] == {"selected": [1, 0], "shared_scale": True}
    assert header["tokens"] == [[40, 50], [40, 50]]
    assert header["shapes"] == [[3, 4, 5], [3, 4, 5]]
    assert header["groups"] == [0, 0, 1]


def test_layers_of_different_shapes_travel_in_one_array():
    maps = np.full((2, 3, 4, 5), np.nan, dtype=np.float32)
    maps[0, :1], maps[1, :, :2, :3] = 0.25, 0.5
    view = ModelView(thumbnails=maps, shapes=((1, 4, 5), (3, 2, 3)), cells="patches")
    header, found = unpack(model_view_payload(view, tokens=[(8, 10), (4, 5)]))
    assert (header["heads"], header["shapes"]) == (3, [[1, 4, 5], [3, 2, 3]])
    assert (header["tokens"], header["cells"]) == ([[8, 10], [4, 5]], "patches")
    assert (found["weights"][0, 0] == weight_levels(np.array(0.25))).all()
    assert (found["weights"][1, :, :2, :3] == weight_levels(np.array(0.5))).all()
    assert found["weights"][0, 1:].sum() == 0
    np.testing.assert_allclose(found["maximum"], [[0.25, 0, 0], [0.5, 0.5, 0.5]])
    assert header["shared_limit"] == 0.5
    with pytest.raises(ValueError, match=r"shapes must be \(heads, rows, columns\) within \(3, 4, 5\)"):
        model_view_payload(ModelView(thumbnails=maps, shapes=((1, 4, 5), (3, 2, 6))))


# Colour maps ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", COLOUR_MAP_NAMES)
def test_colour_tables_are_those_of_matplotlib(name):
    own = {"greys": "Greys"}.get(name, name)
    expected = matplotlib.colormaps[own](np.arange(256), bytes=True)[:, :3]
    np.testing.assert_array_equal(colour_table(name), expected)


def test_colour_tables_are_frozen_and_named():
    with pytest.raises(ValueError, match="read-only"):
        colour_table("viridis")[0] = 0
    with pytest.raises(ValueError, match="must be one of viridis, cividis, magma, greys but is 'jet'"):
        colour_table("jet")


# What a browser says -------------------------------------------------------------------------------------------

HEADER = read_header(head_view_payload(head_view(queries=3, keys=5)))[0]
MODEL_HEADER = {"layers": 2, "heads": 3, "shapes": [[1, 4, 5], [3, 4, 5]]}
GOOD = {
    "layer": 3,
    "heads": [2, 0],
    "pinned": ["right", 4],
    "threshold": 0.5,
    "filter": "ab",
    "hide_special": True,
    "merge_words": False,
    "input": HEADER["input"],
}
junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*GOOD, "x"]), inner),
    max_leaves=8,
)


def test_good_state_is_taken():
    expected = {name: value for name, value in GOOD.items() if name != "input"} | {"heads": [0, 2]}
    assert checked_head_view({**GOOD, "other": "dropped"}, HEADER) == expected


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("layer", 4, None),
        ("layer", -1, None),
        ("layer", True, None),
        ("layer", 1.0, None),
        ("heads", [3], None),
        ("heads", [0, 0], [0]),
        ("heads", "01", None),
        ("threshold", 7, None),
        ("threshold", 10**400, None),
        ("threshold", 1, 1.0),
        ("threshold", float("nan"), None),
        ("filter", "ac", None),
        ("filter", ["ab"], None),
        ("hide_special", 1, None),
        ("merge_words", "yes", None),
    ],
)
def test_bad_state_is_dropped(name, value, kept):
    assert checked_head_view({name: value}, HEADER) == ({} if kept is None else {name: kept})


@pytest.mark.parametrize(
    "pinned", [["left", 3], ["right", 5], ["middle", 0], ["left"], "left", 7, ["left", "0"]]
)
def test_a_pin_that_points_nowhere_is_none(pinned):
    assert checked_head_view({"pinned": pinned, "input": HEADER["input"]}, HEADER) == {"pinned": None}


def test_a_pin_of_another_input_is_none():
    assert checked_head_view({"pinned": ["left", 0], "input": "other"}, HEADER) == {"pinned": None}


@given(st.dictionaries(st.sampled_from(list(GOOD)), junk) | junk)
def test_no_answer_of_a_browser_breaks_the_head_view(said):
    state = checked_head_view(said, HEADER)
    assert set(state) <= set(GOOD) - {"input"}
    assert state.get("layer", 0) in range(4)
    assert set(state.get("heads", [])) <= {0, 1, 2}
    assert 0 <= state.get("threshold", 0) <= 1
    json.dumps(state)


@given(st.dictionaries(st.sampled_from(["open", "view"]), junk) | junk)
def test_no_answer_of_a_browser_breaks_the_model_view(said):
    state = checked_model_view(said, MODEL_HEADER)
    assert set(state) <= {"open", "shared_scale"}
    assert state["open"] is None or (state["open"]["layer"], state["open"]["head"]) in (
        (0, 0), (1, 0), (1, 1), (1, 2),
    )  # fmt: skip


def test_an_opened_head_is_taken():
    assert checked_model_view({"open": {"layer": 1, "head": 2}}, MODEL_HEADER)["open"] == {
        "layer": 1,
        "head": 2,
    }
    assert checked_model_view({"open": {"layer": 2, "head": 0}}, MODEL_HEADER)["open"] is None
    assert (
        checked_model_view({"open": {"layer": 0, "head": 1}}, MODEL_HEADER)["open"] is None
    )  # it has one head
    assert checked_model_view({"view": {"shared_scale": True}}, MODEL_HEADER)["shared_scale"] is True


# In a page -----------------------------------------------------------------------------------------------------


def head_page():
    """A page as the app writes it: it follows what the component said."""
    import numpy as np
    import streamlit as st

    from analysis.figure_data import HeadView, TokenLabel
    from dashboard.components import head_view, head_view_state
    from dashboard.figures import head_view_payload, read_header

    tokens = tuple(TokenLabel(text, text) for text in ("the", "cat", "sat"))
    weights = np.random.default_rng(0).random((2, 4, 3, 3), dtype=np.float32)

    def build(layer=0, heads=(0, 1, 2, 3), pinned=None):
        view = HeadView(weights[layer], tokens, tokens, layer, 2, tuple(heads), pinned=pinned)
        return head_view_payload(view, all_layers=weights)

    said = head_view_state(read_header(build())[0], key="lines")
    wanted = st.session_state.get("wanted", {})
    payload = build(**({name: said[name] for name in ("layer", "heads", "pinned") if name in said} | wanted))
    st.session_state["state"] = head_view(payload, key="lines", height=300)


def sent(page):
    assert not page.exception
    return page.get("bidi_component")[0].proto


def told(**changes):
    digest = input_digest(labels("the", "cat", "sat"), labels("the", "cat", "sat"))
    state = {"layer": 0, "heads": [0, 1, 2, 3], "pinned": None, "threshold": 0.0, "filter": "all"}
    return {"view": {**state, "hide_special": False, "merge_words": False, "input": digest, **changes}}


def test_a_page_sends_the_blob_and_its_files():
    page = AppTest.from_function(head_page).run()
    proto = sent(page)
    header, found = unpack(proto.bytes)
    assert header["state"]["heads"] == [0, 1, 2, 3]
    assert found["weights"].shape == (2, 4, 3, 3)
    assert proto.js_content == component_files("head_view").script
    assert proto.css_content == component_files("head_view").style
    assert page.session_state["state"] == {}  # the user has chosen nothing


def test_what_the_component_said_is_checked():
    page = AppTest.from_function(head_page).run()
    page.session_state["lines"] = told(layer=1, heads=[3, 1], pinned=["left", 9])
    page.run()
    assert page.session_state["state"]["layer"] == 1
    assert page.session_state["state"]["heads"] == [1, 3]
    assert page.session_state["state"]["pinned"] is None


def test_an_echo_sends_nothing_new():
    page = AppTest.from_function(head_page).run()
    first = sent(page).bytes
    page.session_state["lines"] = told(heads=[1], pinned=["left", 2])
    page.run()
    assert (
        sent(page).bytes == first
    )  # the component drew it already; Streamlit does not send equal bytes again
    page.session_state["lines"] = told(heads=[1, 2], layer=1)
    page.run()
    assert sent(page).bytes == first


def test_news_from_another_view_is_sent():
    page = AppTest.from_function(head_page).run()
    page.session_state["lines"] = told(heads=[1])
    page.run()
    page.session_state["wanted"] = {"heads": (2,)}
    page.run()
    header, _ = unpack(sent(page).bytes)
    assert header["state"]["heads"] == [2]


def test_first_paint_needs_no_torch_for_payloads():
    """Payloads and colour tables are part of the first page, which is painted before torch is imported."""
    import subprocess
    import sys

    code = "import sys, dashboard.components, dashboard.figures; print({'torch', 'matplotlib'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"
    assert figures.FORMAT_VERSION == 1
