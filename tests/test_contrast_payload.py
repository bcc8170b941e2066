"""A contrast of attention distributions: its blob, what it refuses, what a browser says of it, and its page."""

from __future__ import annotations

import base64
import json
import math
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streamlit.testing.v1 import AppTest

from analysis.export import read_provenance
from analysis.visible import visible_text
from analysis.visible_contrast import are_probabilities, prefix_names
from analysis.visible_evidence import evidence_colours
from dashboard.components.contrast_views import checked_contrast
from dashboard.components.mount import component_files
from dashboard.contrast_payload import attention_contrast_payload, contrast_digest
from dashboard.figures import read_header, token_entries, unpack
from dashboard.standalone import figure_html
from tests.sample_figures import attention_contrast, labels, picture_contrast, provenance

HEADER = read_header(attention_contrast_payload(attention_contrast()))[0]
COUNT = HEADER["positions"]


# The blob -------------------------------------------------------------------------------------------------------


def test_a_blob_holds_what_is_drawn():
    view = attention_contrast(decoder=np.ones((12, 3)), rows=4, direction="rtl", editable=False)
    header, arrays = unpack(attention_contrast_payload(view))
    assert (header["positions"], header["rows"], header["direction"]) == (12, 4, "rtl")
    assert header["tokens"] == token_entries(view.tokens)
    assert (header["grid"], header["prefix"], header["hand"], header["editable"]) == (None, [], None, False)
    assert [entry["same"] for entry in header["candidates"]] == [True, False, True, False]
    for index, entry in enumerate(header["candidates"]):
        assert entry["name"] == visible_text(view.names[index])
        assert (entry["jsd"], entry["change"]) == (float(view.jsd[index]), float(view.change[index]))
    assert header["labels"] == list(view.labels)
    assert (header["probabilities"], header["jsd_bound"], header["epsilon"]) == (True, 0.62, 0.01)
    assert (header["change_name"], header["change_bound"], header["state"]) == ("TVD", 1.0, {"shown": 2})
    assert (header["title"], header["verdict"], header["held"]) == (view.title, list(view.verdict), view.held)
    for name in ("weights", "outputs", "decoder"):
        np.testing.assert_array_equal(arrays[name], np.float32(getattr(view, name)))
    np.testing.assert_array_equal(arrays["shades"], evidence_colours(False))


def test_a_blob_of_a_picture_names_what_is_before_the_patches():
    view = picture_contrast()
    header, arrays = unpack(attention_contrast_payload(view))
    assert (header["tokens"], header["grid"], header["prefix"]) == ([], [3, 4], ["CLS"])
    assert header["picture_size"] == [30, 40]
    np.testing.assert_array_equal(arrays["picture"], view.picture)
    assert "decoder" not in arrays
    assert prefix_names(3) == ("CLS", "prefix 1", "prefix 2")


def test_the_candidate_that_was_made_by_hand_is_found_by_its_name():
    view = attention_contrast(names=("observed", "uniform", "by hand", "a"))
    assert read_header(attention_contrast_payload(view))[0]["hand"] == 2


def test_outputs_are_bars_only_where_they_are_probabilities():
    logits = attention_contrast().outputs - 0.5
    assert are_probabilities(attention_contrast())
    assert not are_probabilities(attention_contrast(outputs=logits))
    assert not are_probabilities(attention_contrast(outputs=logits + 1.5))
    assert not are_probabilities(attention_contrast(change_bound=None))


def test_texts_that_no_file_may_hold_are_made_visible():
    view = attention_contrast(
        title="a\x10b", held="\x7f", verdict=("c\nd",), change_name="\x00", labels=("\t", "", "x")
    )
    header, _ = read_header(attention_contrast_payload(view))
    assert (header["title"], header["held"], header["verdict"], header["change_name"]) == (
        "a␐b",
        "␡",
        ["c⏎d"],
        "␀",
    )
    assert header["labels"] == ["⇥", "", "x"]


def test_an_answer_about_other_positions_or_other_attention_is_told_apart():
    picture = picture_contrast()
    views = [
        attention_contrast(),
        attention_contrast(tokens=labels(tuple("abcdefghijkl"))),
        attention_contrast(title="another head"),
        attention_contrast(rows=3),
        picture,
        picture_contrast(grid=(4, 3)),
        picture_contrast(picture=255 - picture.picture),
    ]
    assert len({contrast_digest(view) for view in views}) == len(views)
    more = attention_contrast(shown=1, names=("observed", "uniform", "a", "by hand"), verdict=())
    assert contrast_digest(more) == HEADER["input"]


SOME = attention_contrast()
LACKING = np.full((4, 3), np.nan)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"weights": SOME.weights[0]}, r"weights must be \(candidates, positions\) with at least one .* is \(12,\)"),
        ({"weights": SOME.weights[:, :0]}, r"weights must be \(candidates, positions\).* but is \(4, 0\)"),
        ({"weights": SOME.weights * np.nan}, "weights must be finite and not negative but run from nan"),
        ({"weights": -SOME.weights}, "weights must be finite and not negative but run from -"),
        ({"weights": SOME.weights * [[1], [1], [0.5], [1]]}, "must sum to 1 but row 2 sums to 0.5"),
        ({"names": ("observed",)}, "names must be 4, one for each row of weights, but are 1"),
        ({"outputs": SOME.outputs[:2]}, r"outputs must be \(4, 3\), .* but is \(2, 3\) with 3 labels"),
        ({"labels": ()}, r"outputs must be \(4, 1\), .* but is \(4, 3\) with 0 labels"),
        ({"outputs": LACKING}, "outputs must hold finite numbers but 12 are not"),
        ({"jsd": SOME.jsd[:3]}, r"jsd must be \(4,\) but is \(3,\); pass one number a candidate"),
        ({"jsd": SOME.jsd - 1}, "jsd must not be negative but is -1"),
        ({"jsd": SOME.jsd + 0.5}, "jsd must be at most ln 2 = 0.6931 nats but is 1; do not pass bits"),
        ({"change": SOME.change[None]}, r"change must be \(4,\) but is \(1, 4\)"),
        ({"change": np.full(4, np.inf)}, "change must hold finite numbers but 4 are not"),
        ({"jsd_bound": 0.7}, "jsd_bound must lie between 0 and ln 2 = 0.6931 nats but is 0.7"),
        ({"epsilon": math.nan}, "epsilon must be a number of at least 0 but is nan"),
        ({"change_bound": 0.0}, "change_bound must be a number above 0 but is 0.0; use None for no end"),
        ({"decoder": np.ones((3, 12))}, r"decoder must be \(12, 3\), the logits of each position, but is \(3, 12\)"),
        ({"decoder": np.full((12, 3), np.nan)}, "decoder must hold finite numbers but 36 are not"),
        ({"tokens": labels("ab")}, "tokens must be 12, one a column of weights, but are 2"),
        ({"grid": (3, 4)}, "tokens must come without picture, grid and prefix"),
        ({"tokens": ()}, "positions must be tokens, or patches of a picture with its grid, but there are neither"),
        ({"shown": 4}, "shown must be one of the 4 candidates, counted from 0, but is 4"),
        ({"rows": 0}, "rows must be at least 1 but is 0"),
        ({"direction": "up"}, "direction must be 'ltr' or 'rtl' but is 'up'"),
    ],
    ids=lambda value: value[:34] if isinstance(value, str) else "",
)  # fmt: skip
def test_parts_that_do_not_belong_together_are_refused(changes, message):
    with pytest.raises(ValueError, match=f"attention_contrast_payload: .*{message}"):
        attention_contrast_payload(attention_contrast(**changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grid": (3, 5)}, "prefix and patches must be the 13 columns of weights but are 1 and 3 × 5"),
        ({"prefix": -1}, "prefix and patches must be the 13 columns of weights but are -1 and 3 × 4"),
        ({"picture": None}, "positions must be tokens, or patches of a picture"),
        ({"picture": np.zeros((3, 4), np.uint8)}, r"picture must be \(height, width, 3\) uint8 but is \(3, 4\) "),
        ({"picture": np.zeros((3, 4, 3))}, r"uint8 but is \(3, 4, 3\) float64; convert it to RGB"),
    ],
)  # fmt: skip
def test_a_picture_must_fit_its_positions(changes, message):
    with pytest.raises(ValueError, match=f"attention_contrast_payload: .*{message}"):
        attention_contrast_payload(picture_contrast(**changes))


def test_rounding_is_no_error():
    weights = SOME.weights.copy()
    weights[0] = [-1e-7, 1, *[0] * 10]
    view = attention_contrast(weights=weights, jsd=SOME.jsd - np.float32(1e-7), jsd_bound=math.log(2) + 1e-7)
    header, arrays = unpack(attention_contrast_payload(view))
    assert header["candidates"][0]["jsd"] == 0
    assert arrays["weights"].min() >= 0


# What a browser says --------------------------------------------------------------------------------------------

UNIFORM = [1 / COUNT] * COUNT


def event(turn=1, **said):
    return {"input": HEADER["input"], "turn": turn, **said}


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=8,
)
row = st.lists(st.floats(0, 1) | junk, min_size=COUNT, max_size=COUNT) | st.just(UNIFORM)
answer = st.fixed_dictionaries(
    {},
    optional={"input": st.just(HEADER["input"]) | junk, "shown": junk, "weights": row | junk, "turn": junk},
)


@given(st.fixed_dictionaries({}, optional={"view": answer | junk, "edit": answer | junk}) | junk)
@settings(max_examples=150)
def test_no_answer_of_a_browser_breaks_the_contrast(said):
    state = checked_contrast(said, HEADER)
    assert set(state) <= {"shown", "weights"}
    assert state.get("shown", 0) in range(4)
    assert not isinstance(state.get("shown"), bool)
    weights = state.get("weights", UNIFORM)
    assert len(weights) == COUNT
    assert min(weights) >= 0
    assert math.isclose(math.fsum(weights), 1, abs_tol=1e-9)
    json.dumps(state, allow_nan=False)


def test_weights_are_renormalised():
    told = {"edit": event(weights=[0.5004, 0.5, *[0] * (COUNT - 2)])}
    assert checked_contrast(told, HEADER)["weights"] == pytest.approx(
        [0.5002, 0.4998, *[0] * (COUNT - 2)], abs=1e-6
    )


@pytest.mark.parametrize(
    "weights",
    [
        UNIFORM[1:],
        [*UNIFORM, 0.0],
        [1.002, *[0.0] * (COUNT - 1)],
        [1.5, -0.5, *[0.0] * (COUNT - 2)],
        [math.nan, 1.0, *[0.0] * (COUNT - 2)],
        [math.inf, *[0.0] * (COUNT - 1)],
        [True, *[0.0] * (COUNT - 1)],
        ["1", *[0.0] * (COUNT - 1)],
        [0.0] * COUNT,
        [10**400, *[0.0] * (COUNT - 1)],
        {str(index): weight for index, weight in enumerate(UNIFORM)},
    ],
)  # fmt: skip
def test_what_is_no_distribution_is_not_taken(weights):
    assert checked_contrast({"edit": event(weights=weights)}, HEADER) == {}


def test_what_was_said_last_is_shown():
    edit = event(5, weights=UNIFORM)
    weights = checked_contrast({"edit": edit}, HEADER)["weights"]
    assert checked_contrast({"view": event(4, shown=2)}, HEADER) == {"shown": 2}
    assert checked_contrast({"view": event(4, shown=2), "edit": edit}, HEADER) == {"weights": weights}
    assert checked_contrast({"view": event(6, shown=2), "edit": edit}, HEADER) == {
        "weights": weights,
        "shown": 2,
    }
    unfit = event(5, weights=[])
    assert checked_contrast({"view": event(4, shown=2), "edit": unfit}, HEADER) == {"shown": 2}
    assert checked_contrast({"view": event(6, shown=4), "edit": edit}, HEADER) == {"weights": weights}


def test_an_answer_about_other_positions_is_not_taken():
    other = {"input": "other", "turn": 1, "shown": 1, "weights": UNIFORM}
    assert checked_contrast({"view": other, "edit": other}, HEADER) == {}


def contrast_page():
    """A page as the app writes it: weights made by hand come back as one more candidate."""
    import numpy as np
    import streamlit as st

    from dashboard.components.contrast_views import attention_contrast, contrast_state
    from dashboard.contrast_payload import attention_contrast_payload
    from dashboard.figures import read_header
    from tests.sample_figures import attention_contrast as sample

    view = sample()
    said = contrast_state(read_header(attention_contrast_payload(view))[0], key="contrast")
    changes = {}
    if "weights" in said:
        changes = {name: np.append(getattr(view, name), 0.5) for name in ("jsd", "change")}
        changes |= {name: np.stack([*getattr(view, name), last]) for name, last in
                    (("weights", np.array(said["weights"])), ("outputs", view.outputs[1]))}  # fmt: skip
        changes |= {"names": (*view.names, "by hand"), "shown": 4}
    shown = {"shown": said["shown"]} if "shown" in said else {}
    payload = attention_contrast_payload(sample(**{**changes, **shown}))
    st.session_state["state"] = attention_contrast(payload, key="contrast", height=300)


def test_a_page_sends_the_blob_and_hears_checked_choices():
    page = AppTest.from_function(contrast_page).run()
    sent = lambda: page.get("bidi_component")[0].proto  # noqa: E731
    assert not page.exception
    assert sent().bytes == attention_contrast_payload(attention_contrast())
    assert sent().js_content == component_files("attention_contrast").script
    assert page.session_state["state"] == {}
    page.session_state["contrast"] = {"view": event(1, shown=1)}
    page.run()
    assert page.session_state["state"] == {"shown": 1}
    assert sent().bytes == attention_contrast_payload(attention_contrast()), "the component drew it already"
    page.session_state["contrast"] = {"view": event(1, shown=1), "edit": event(2, weights=UNIFORM)}
    page.run()
    assert not page.exception
    header, arrays = unpack(sent().bytes)
    assert (header["hand"], header["state"], header["input"]) == (4, {"shown": 4}, HEADER["input"])
    np.testing.assert_array_equal(arrays["weights"][4], np.float32(UNIFORM))


# The page of an export ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("view", [attention_contrast(), picture_contrast()], ids=["text", "picture"])
def test_a_page_holds_the_blob_and_no_markup_from_names(view):
    page = figure_html(view, provenance()).decode()
    blob = re.search(r'<script type="text/plain"[^>]*>(.*?)</script>', page, re.DOTALL).group(1)
    assert base64.b64decode(blob) == attention_contrast_payload(view)
    assert read_provenance(page.encode(), "html")["kind"] == "attention_contrast"
    assert len(re.findall("<script", page)) == len(re.findall("</script", page)) == 3
    assert '<div id="attnscope-view" class="attention_contrast">' in page
