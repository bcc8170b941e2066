"""The alignment explorer run by AppTest: every control, odd sentences, links, exports."""

from __future__ import annotations

import pytest

from analysis.figure_lab import CurveSheet, MatrixSheet
from tests.lab.pages import Exports, opened, shown
from tests.test_app import component

HOSTILE = "<script>alert(1)</script> ![x](http://198.51.100.7/a.png)"


def test_a_sentence_is_shown_with_four_translators():
    at = opened("alignment", text="Where is my new car?", step="2")
    header, arrays = component(at, "alignment")
    assert [panel["title"] for panel in header["panels"]] == [
        "Additive",
        "Dot product",
        "General",
        "Without attention",
    ]
    assert header["state"] == {"step": 2}
    assert [word["text"] for word in header["panels"][0]["source"]] == [
        "Where",
        "is",
        "my",
        "new",
        "car",
        "?",
    ]
    assert set(arrays) == {"lut", "weights_0", "weights_1", "weights_2"}
    for index in range(3):
        weights = arrays[f"weights_{index}"]
        assert weights.shape == (len(header["panels"][index]["target"]), 6)
        assert abs(weights.sum(-1) - 1).max() < 1e-5


def test_every_control_moves(monkeypatch):
    exports = Exports(monkeypatch)
    at = opened("alignment")
    at.text_input(key="lab_alignment_text").set_value("He is a doctor.").run()
    at.slider(key="lab_alignment_beam").set_value(4).run()
    assert not at.exception
    assert at.session_state["selection"].lab.alignment.beam == 4
    figure, told = exports.given[-1]
    assert isinstance(figure, MatrixSheet)
    assert (told.input, told.settings["beam"]) == ("He is a doctor.", 4)
    exports.check()
    at.button(key="lab_alignment_example_1").click().run()
    assert at.session_state["selection"].lab.alignment.text == "Where is my new car?"
    at.button_group(key="lab_alignment_scorings").set_value(["none"]).run()
    header, _ = component(at, "alignment")
    assert [panel["title"] for panel in header["panels"]] == ["Without attention"]
    at.button_group(key="lab_alignment_scorings").set_value([]).run()
    assert "Choose at least one translator" in shown(at)


def test_what_is_forgotten(monkeypatch):
    exports = Exports(monkeypatch)
    at = opened("alignment", show="memory")
    assert not at.exception
    assert "of the first sentence" in shown(at)
    assert "no recency bias shows" in shown(at)
    assert isinstance(exports.given[-1][0], CurveSheet)
    exports.check()
    at.selectbox(key="lab_alignment_exported").set_value("Surprise").run()
    figure, _ = exports.given[-1]
    assert figure.panels[0].curves[0].labels[-1] == "⟨end⟩"
    exports.check()


@pytest.mark.parametrize("text", ["", "   ", "word " * 39, HOSTILE, "¿§", "猫", "I " * 90])
@pytest.mark.parametrize("show", ["sentence", "memory"])
def test_odd_sentences_never_break_the_page(text, show):
    at = opened("alignment", text=text[:200], show=show)
    assert not at.exception
    assert not at.error
    assert "<script>" not in shown(at)
    assert at.session_state["selection"].lab.alignment.text == text[:200]


def test_a_word_that_no_translator_knows_is_told():
    assert "not among the words" in shown(opened("alignment", text="I love Zyzzyva."))
