"""The pipeline in the app: every control, a click on a stage, odd sentences, files."""

from __future__ import annotations

import pytest

from dashboard.views import lab_pipeline
from tests.lab.pages import Exports, blob, needs_models, opened, settled, shown

pytestmark = needs_models


def test_controls_stages_and_files(monkeypatch: pytest.MonkeyPatch) -> None:
    exports = Exports(monkeypatch)
    at = opened("pipeline", query="10", stage="10")
    header = blob(at, "diagram")
    assert header["title"] == "“it” through layer 1, head 2 of BERT all-MiniLM-L6-v2"
    assert header["said"][1].startswith("The last box is what the model itself hands on")
    assert header["state"] == {"selected": 10}
    at.selectbox(key="lab_pipeline_layer").set_value(0).run()
    at.selectbox(key="lab_pipeline_head").set_value(5).run()
    at.selectbox(key="lab_pipeline_query").set_value(2).run()
    assert not at.exception
    assert blob(at, "diagram")["title"].startswith("“animal” through layer 0, head 5")
    told = exports.check()
    assert told["settings"] == {"layer": 0, "head": 5, "token": "2 animal", "stage": "weights"}
    at.selectbox(key="lab_pipeline_exported").set_value("Stage").run()
    sheet = exports.given[-1][0]
    assert [matrix.name for matrix in sheet.matrices] == ["qKᵀ/√d_k: scaled", "a: weights"]
    exports.check()
    expected = {"layer": "0", "head": "5", "query": "2", "stage": "10"}
    assert dict(at.query_params) == {"v": "1", "section": "pipeline", **expected}


def test_odd_sentences_and_indices_beyond_the_end() -> None:
    at = opened("pipeline", layer="99", head="99", query="63", stage="15")
    assert blob(at, "diagram")["title"].startswith("“[SEP]” through layer 5, head 11")
    for text in ("a", " ".join(["word"] * 40), "<script>alert(1)</script> $x$ שלום"):
        at.text_area(key="lab_text").set_value(text)
        settled(at.run())
        assert blob(at, "diagram")["state"] == {"selected": 15}
    at.text_area(key="lab_text").set_value("  ").run()
    assert "Type a sentence on the left" in shown(at)
    assert not at.exception


def test_a_click_chooses_a_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = []
    monkeypatch.setattr(lab_pipeline, "choose_in_section", lambda section, **values: chosen.append(values))
    lab_pipeline._take(7)
    assert chosen == [{"stage": 7}]
