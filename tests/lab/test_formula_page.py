"""The formula explorer in the app: every control, clicks on parts and cells, odd sentences, files."""

from __future__ import annotations

from typing import Any

import pytest

from dashboard.components.formula_views import FormulaPick
from dashboard.views import lab_formula
from tests.lab.pages import Exports, blob, first_run, needs_models, opened, settled, shown

pytestmark = needs_models


def test_the_worked_example_its_settings_and_its_file(monkeypatch: pytest.MonkeyPatch) -> None:
    exports = Exports(monkeypatch)
    at = opened("formula", part="output")
    header = blob(at, "formula")
    assert header["words"]["cell"] == "output[0, 0] = 0.506·1 + 0.186·3 + 0.307·5 = 2.60"
    assert header["said"][0].startswith("This is the plain formula")
    moves: list[tuple[str, str, Any, str]] = [
        ("slider", "factor", 0.0, "looks at all 3 tokens alike"),
        ("slider", "factor", 4.0, "With 4 times the scale the row of “cat” is sharper"),
        (
            "slider",
            "temperature",
            8.0,
            "With 4 times the scale and temperature 8 the row of “cat” is flatter",
        ),
        ("selectbox", "query", 2, "the row of “mat” is flatter"),
    ]
    for widget, name, value, sentence in moves:
        getattr(at, widget)(key=f"lab_formula_{name}").set_value(value).run()
        assert not at.exception
        assert sentence in blob(at, "formula")["said"][0]
    at.toggle(key="lab_formula_causal").set_value(True).run()
    assert blob(at, "formula")["formula"] == {"factor": "4", "temperature": "8", "causal": True}
    told = exports.check()
    assert told["input"] == "the worked example: three tokens, d_k = 4"
    assert (told["settings"]["factor"], told["settings"]["query"]) == (4.0, "2 mat")
    expected = {"part": "output", "factor": "4", "temperature": "8", "query": "2", "causal": "yes"}
    assert dict(at.query_params) == {"v": "1", "section": "formula", **expected}


def test_a_head_of_the_bundled_bert(monkeypatch: pytest.MonkeyPatch) -> None:
    exports = Exports(monkeypatch)
    at = opened("formula", numbers="model", layer="99", head="99", query="63", key="63", dim="63")
    header = blob(at, "formula")
    assert header["tokens"][-1] == "[SEP]"
    assert header["state"]["query"] == len(header["tokens"]) - 1
    assert header["matrices"][0]["shape"] == [15, 32]
    assert exports.given[-1][1].settings["numbers"].endswith("layer 5, head 11")
    at.selectbox(key="lab_formula_layer").set_value(1).run()
    at.selectbox(key="lab_formula_head").set_value(2).run()
    at.slider(key="lab_formula_dims").set_value(8).run()
    assert blob(at, "formula")["matrices"][0]["shape"] == [15, 8]
    assert "Only the first 8 of 32 dimensions" in shown(at)
    assert exports.check(("csv",))["settings"]["d_k"] == 8


def test_random_vectors_follow_the_sentence_the_width_and_the_seed() -> None:
    at = opened("formula", numbers="random", t="one two <b>three</b>")
    first = blob(at, "formula")
    assert first["tokens"] == ["one", "two", "<b>three</b>"]
    at.slider(key="lab_formula_width").set_value(9).run()
    assert blob(at, "formula")["matrices"][1]["shape"] == [9, 3]
    cell = blob(at, "formula")["words"]["cell"]
    at.slider(key="lab_formula_seed").set_value(7).run()
    assert blob(at, "formula")["words"]["cell"] != cell
    for text, tokens in (("one", 1), ("word " * 40, 40)):
        at.text_area(key="lab_text").set_value(text)
        settled(at.run())
        assert len(blob(at, "formula")["tokens"]) == tokens
    at.text_area(key="lab_text").set_value("  ").run()
    assert "Type a sentence on the left" in shown(at)
    at.button_group(key="lab_formula_numbers").set_value("model").run()
    assert "Type a sentence on the left" in shown(at)
    at.button_group(key="lab_formula_numbers").set_value("worked").run()
    assert blob(at, "formula")["tokens"] == ["cat", "sat", "mat"]


def test_a_click_explains_a_part_and_chooses_what_meets_in_a_cell(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = []
    monkeypatch.setattr(lab_formula, "choose_in_section", lambda section, **values: chosen.append(values))
    lab_formula._take(FormulaPick("root", None))
    lab_formula._take(FormulaPick("key", (3, 1)))
    lab_formula._take(FormulaPick("output", (2, 1)))
    assert chosen == [
        {"part": "root"},
        {"part": "key", "dim": 3, "key": 1},
        {"part": "output", "query": 2, "dim": 1},
    ]


def test_a_link_that_holds_nonsense_is_told() -> None:
    at = first_run("formula", part="nothing", factor="99", query="x")
    assert "not understood and were left out: factor, part, query" in shown(at)
    assert blob(at, "formula")["state"] == {"part": "softmax", "query": 0}


@needs_models
def test_a_layer_and_a_head_beyond_the_model_are_shown_as_the_last() -> None:
    at = opened("formula", numbers="model", layer="77", head="88")
    assert at.selectbox(key="lab_formula_layer").value == 5
    assert at.selectbox(key="lab_formula_head").value == 11
    assert 77 not in at.selectbox(key="lab_formula_layer").options
