"""The Evidence views: records, payloads, links, jobs, exports, and both pages run by AppTest on the real models."""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from streamlit.testing.v1 import AppTest

import tests.input_helpers as tiny
from analysis.catalogue import BUNDLED, is_installed
from analysis.export import export_figure, figure_document, read_provenance
from analysis.figure_data import EvidenceMaps, EvidencePanel, EvidenceWords, TokenLabel
from analysis.samples import PICTURE_SAMPLES
from analysis.trained import find_offered, is_ready
from analysis.visible import caption_lines
from analysis.visible_evidence import (
    drawn_scores,
    evidence_colours,
    evidence_limit,
    score_colours,
)
from dashboard import cached, evidence_cache, figures
from dashboard.charts import strongest_words_chart
from dashboard.components import checked_evidence, component_files
from dashboard.evidence_choices import (
    EVIDENCE_PARAMETERS,
    EvidenceChoices,
    clamped_evidence,
    evidence_params,
    read_evidence,
    with_option,
)
from dashboard.evidence_jobs import Jobs, Stopped
from dashboard.evidence_payload import evidence_maps_payload, evidence_words_payload
from dashboard.model_root import VARIABLE
from dashboard.provenance import evidence_provenance
from dashboard.selection import choose, current, default_selection, from_query, to_query
from dashboard.sidebar import picture_bytes
from dashboard.standalone import figure_html
from tests.sample_figures import labels, provenance
from tests.test_app import component, settled, shown

ROOT = Path(__file__).resolve().parent.parent
APP = ROOT / "dashboard" / "app.py"
SIGNED = EvidencePanel("CDAM", "elephant", True, 2.0, "Says this.", "Not that.", ("Left out: 5.0%.",))
PLAIN = EvidencePanel("Rollout", "", False, 0.5)

classifier = pytest.mark.skipif(
    not all(is_installed(model) for model in BUNDLED) or not is_ready(find_offered("picture-classifier")),
    reason="models are not installed; run make bundled",
)


def maps(**changes: Any) -> EvidenceMaps:
    picture = np.random.default_rng(0).integers(0, 256, size=(30, 40, 3), dtype=np.uint8)
    scores = np.array([[[2.0, -1.0], [0.0, 0.5]], [[0.1, 0.5], [0.0, 0.2]]], dtype=np.float32)
    entries: dict[str, Any] = {"picture": picture, "maps": scores, "panels": (SIGNED, PLAIN)}
    return EvidenceMaps(**{**entries, "title": "Evidence for <b>elephant</b>", **changes})


def words(**changes: Any) -> EvidenceWords:
    tokens = labels()
    scores = np.random.default_rng(1).normal(size=(2, len(tokens))).astype(np.float32)
    scores[1] = np.abs(scores[1])
    panels = tuple(
        replace(panel, limit=evidence_limit([row]))
        for panel, row in zip((SIGNED, PLAIN), scores, strict=True)
    )
    return EvidenceWords(**{"scores": scores, "tokens": tokens, "panels": panels, **changes})


# Colours and numbers -----------------------------------------------------------------------------------------------


def test_signed_colours_are_clear_at_0_and_mirror_each_other():
    table = evidence_colours(True)
    assert table[127:129, 3].max() <= 3, "clear in the middle"
    assert np.array_equal(table[::-1, 3], table[:, 3])
    assert table[0, 2] > table[0, 0], "against is blue"
    assert table[-1, 0] > table[-1, 2], "for is red"
    assert (np.diff(table[128:, 3].astype(int)) >= 0).all()
    plain = evidence_colours(False)
    assert plain[0, 3] == 0
    assert plain[-1, 3] == 255


def test_evidence_against_is_left_out_where_only_the_positive_is_drawn():
    scores = np.array([-4.0, -1.0, 0.0, 1.0, 4.0])
    assert drawn_scores(scores, SIGNED, positive=False).tolist() == [-1.0, -0.5, 0.0, 0.5, 1.0]
    assert drawn_scores(scores, SIGNED, positive=True).tolist() == [0.0, 0.0, 0.0, 0.5, 1.0]
    clear = score_colours(drawn_scores(np.array([-2.0]), SIGNED, positive=True), SIGNED)
    assert clear[0, 3] < 0.02


def test_a_scale_has_an_extent_even_where_all_scores_are_0():
    assert evidence_limit([np.zeros(4, np.float32)]) == 1.0
    assert evidence_limit([np.array([0.5, -3.0]), np.array([1.0])]) == 3.0


# Payloads ----------------------------------------------------------------------------------------------------------


def test_a_payload_holds_raw_scores_and_a_card_a_method():
    second = replace(SIGNED, target="dalmatian")
    view = maps(
        maps=np.concatenate([maps().maps[:1], -maps().maps[:1], maps().maps[1:]]),
        panels=(SIGNED, second, PLAIN),
    )
    header, arrays = figures.unpack(evidence_maps_payload(view))
    assert [len(card["panels"]) for card in header["cards"]] == [2, 1]
    assert [panel["index"] for card in header["cards"] for panel in card["panels"]] == [0, 1, 2]
    assert header["cards"][0]["panels"][1]["target"] == "dalmatian"
    np.testing.assert_array_equal(arrays["scores"], view.maps)
    assert arrays["signed"].shape == (256, 4)


def test_a_payload_refuses_panels_that_do_not_belong_to_the_scores():
    with pytest.raises(ValueError, match=r"evidence_maps_payload: maps must be \(panels, rows, columns\)"):
        evidence_maps_payload(maps(panels=(SIGNED,)))
    with pytest.raises(ValueError, match="evidence_maps_payload: picture must be"):
        evidence_maps_payload(maps(picture=np.zeros((3, 3), np.uint8)))
    with pytest.raises(ValueError, match="evidence_words_payload: scores must be"):
        evidence_words_payload(words(panels=(SIGNED,)))


def test_only_what_fits_the_blob_is_believed_of_a_browser():
    header, _ = figures.read_header(evidence_maps_payload(maps()))
    told = {
        "patch": {"at": [1, 1], "input": header["input"]},
        "view": {"positive": True, "opacity": 7, "x": 1},
    }
    assert checked_evidence(told, header) == {"marked": [1, 1], "positive": True, "opacity": 1.0}
    for at in ([2, 0], [0], "no", [True, 0], {"a": 1}):
        assert checked_evidence({"patch": {"at": at, "input": header["input"]}}, header) == {}
    assert checked_evidence({"patch": {"at": [0, 0], "input": "other"}}, header) == {}
    assert checked_evidence({"patch": {"at": None, "input": header["input"]}}, header) == {"marked": None}
    header, _ = figures.read_header(evidence_words_payload(words()))
    assert checked_evidence({"word": {"at": 3, "input": header["input"]}}, header) == {"marked": 3}
    assert checked_evidence({"word": {"at": 99, "input": header["input"]}}, header) == {}
    assert checked_evidence(None, header) == {}


def test_components_share_a_kit():
    for name in ("evidence_maps", "evidence_words"):
        files = component_files(name)
        assert files.script.count("function shareOf") == 1
        assert ".evidence-warning" in files.style
    assert "shareOf" not in component_files("patch_map").script


# Files -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [maps, words])
@pytest.mark.parametrize("format", ["png", "svg", "pdf", "csv", "npz", "json"])
def test_every_file_holds_the_record(make: Any, format: Any):
    record = make(positive=True)
    data = export_figure(record, provenance(), format)
    document = read_provenance(data, format)
    assert document["kind"] in ("evidence_maps", "evidence_words")
    assert document["choices"]["positive"] is True
    assert document["choices"]["panels"][0]["method"] == "CDAM"
    assert document["choices"]["panels"][0]["target"] == "elephant"


def test_data_files_hold_raw_scores():
    view = maps(positive=True)
    lines = [
        line for line in export_figure(view, provenance(), "csv").decode().splitlines() if line[0] != "#"
    ]
    assert lines[0] == "panel,method,target,patch_row,patch_column,score"
    assert lines[2] == '0,"CDAM","elephant",0,1,-1.0', "what is not drawn is still there"
    with np.load(io.BytesIO(export_figure(words(), provenance(), "npz"))) as arrays:
        np.testing.assert_array_equal(arrays["scores"], words().scores)
        assert arrays["methods"].tolist() == ["CDAM", "Rollout"]


def test_a_page_of_its_own_holds_the_board():
    for record in (maps(), words()):
        page = figure_html(record, provenance())
        assert b"attnscope-payload" in page
        assert b"<b>elephant</b>" not in page


def test_a_picture_follows_the_switch_and_the_mark():
    whole = export_figure(maps(), provenance(), "png")
    assert whole != export_figure(maps(positive=True), provenance(), "png")
    assert whole != export_figure(maps(marked=(0, 0)), provenance(), "png")
    assert "evidence against it is not drawn" in " ".join(caption_lines(maps(positive=True), provenance()))
    assert figure_document(maps(), provenance())["shown"].startswith("2 × 2 patches")


def test_the_record_of_a_board_names_methods_targets_and_what_was_measured():
    empty = replace(SIGNED, empty="No positive evidence for this target.")
    record = evidence_provenance(maps(panels=(empty, PLAIN)), "model", "1", "cat", ("note",), layers=12)
    assert record.method == "CDAM, Rollout"
    assert record.settings["target"] == "elephant"
    assert "CDAM for elephant: No positive evidence for this target." in record.notes


def test_the_chart_names_the_strongest_words_of_each_method_with_their_sign():
    view = words()
    for index, scores in enumerate(view.scores):
        chart = strongest_words_chart(view, index, count=3)
        order = np.argsort(-np.abs(scores), kind="stable")[:3][::-1]
        np.testing.assert_allclose(chart.data[0].x, scores[order], rtol=1e-6)
    positive = strongest_words_chart(replace(view, positive=True), 0)
    assert min(positive.data[0].x) >= 0


def test_the_same_word_twice_among_the_strongest_is_told_apart_by_its_place():
    """A document says "useless" in many places; bars of one name could not be found again."""
    texts = ["useless", *["and"] * 1200, "useless", "cold"]
    view = words(
        tokens=tuple(TokenLabel(text, text) for text in texts),
        scores=np.array([[0.2, *[0.0] * 1200, 0.1, 0.3]] * 2, np.float32),
    )
    chart = strongest_words_chart(view, 0, count=3)
    assert list(chart.layout.yaxis.ticktext) == ["1,201 useless ", "0 useless ", "cold "]


# Choices and links -------------------------------------------------------------------------------------------------

indices = st.one_of(st.none(), st.integers(0, 999))


@given(
    target=indices,
    rather=indices,
    beside=indices,
    methods=st.one_of(st.none(), st.lists(st.sampled_from(["cdam", "gradcam", "saliency"]), unique=True)),
    positive=st.booleans(),
    words_summed=st.booleans(),
    page=st.sampled_from(["text", "image"]),
)
def test_a_link_restores_the_view(target, rather, beside, methods, positive, words_summed, page):
    evidence = EvidenceChoices(
        target, rather, beside, None if methods is None else tuple(methods), positive, words=words_summed
    )
    selection = default_selection()
    choices = replace(getattr(selection, page), view="evidence", evidence=evidence)
    params = to_query(replace(selection, **{page: choices}), page)
    opened = from_query(params, default_selection(), page)
    assert getattr(opened, page).evidence == evidence
    assert opened.notes == ()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("class", "-1"),
        ("class", "1e3"),
        ("class", "٣"),
        ("methods", "cdam,<script>"),
        ("methods", ",".join(["a"] * 99)),
        ("sign", "both"),
        ("of", "letters"),
        ("like", "../../etc/passwd"),
        ("like", "nobody"),
        ("class", "example"),
        ("rather", "probable"),
        ("measure", "cosinus"),
        ("options", ""),
        ("options", "rollout.fusion"),
        ("options", "rollout.fusion:max,"),
        ("options", "rollout.fusion:<b>"),
        ("options", "rollout.discard_ratio:1e9"),
        ("options", "gradcam.layer:-1"),
        ("options", "gradcam.layer:٣"),
        ("options", "../x.layer:1"),
        ("options", ",".join(["gradcam.layer:1"] * 65)),
        ("other", "1"),
    ],
)
def test_a_link_says_nothing_that_is_not_understood(name, value):
    assert read_evidence(EvidenceChoices(), name, value, examples=("cat",)) is None
    assert set(evidence_params(EvidenceChoices(1, 2, 3, ("cdam",), True, words=False))) <= set(
        EVIDENCE_PARAMETERS
    )


def test_only_samples_go_into_a_link():
    choices = EvidenceChoices(examples=("cat", "0a1b2c"))
    assert evidence_params(choices, examples=("cat",)) == {"like": "cat"}
    assert read_evidence(EvidenceChoices(), "like", "cat", examples=("cat",)) == EvidenceChoices(
        examples=("cat",)
    )


def test_classes_and_methods_that_a_model_does_not_have_are_dropped():
    asked = EvidenceChoices(7, 2, 9, ("gradcam", "cdam", "magic"))
    found = clamped_evidence(asked, classes=8, methods={"cdam": 1, "gradcam": 1})
    assert (found.target, found.rather, found.beside) == (7, 2, None)
    assert found.methods == ("cdam", "gradcam"), "in the order of the methods"
    assert clamped_evidence(EvidenceChoices(3, 3, 3), classes=8, methods={}) == EvidenceChoices(3)
    assert clamped_evidence(asked, classes=0, methods={}).target is None


def test_another_picture_keeps_the_class_and_another_model_drops_it():
    import streamlit

    streamlit.session_state.pop("selection", None)
    choose("image", evidence=EvidenceChoices(5, methods=("cdam",)))
    choose("image", input=replace(current().image.input, name=PICTURE_SAMPLES[1].id))
    assert current().image.evidence.target == 5
    choose("image", model=replace(current().image.model, name="picture-classifier"))
    assert current().image.evidence == EvidenceChoices(methods=("cdam",))
    streamlit.session_state.pop("selection", None)


# Jobs --------------------------------------------------------------------------------------------------------------


def test_a_job_runs_once_and_keeps_its_answer():
    jobs, calls = Jobs(), []
    job = jobs.request("a", lambda progress: (progress(0.5), calls.append(1), "answer")[-1])
    assert job.wait(10)
    assert (job.state, job.answer, job.done) == ("ready", "answer", 1.0)
    assert jobs.request("a", lambda progress: calls.append(2)) is job
    assert calls == [1]


def test_a_job_stops_at_its_next_report_and_can_be_run_again():
    jobs, started, going = Jobs(), threading.Event(), threading.Event()
    seen = []

    def work(progress: Any) -> None:
        progress(0.25)
        started.set()
        going.wait(10)
        try:
            progress(0.5)
        except Stopped:
            seen.append("stopped")
            raise
        seen.append("never")

    job = jobs.request("a", work)
    assert started.wait(10)
    assert (job.state, job.done, job.active) == ("running", 0.25, True)
    jobs.forget("a")
    assert jobs.find("a") is job, "a running job is not forgotten"
    waiting = jobs.request("b", lambda progress: "never")
    assert waiting.state == "waiting", "one at a time"
    waiting.stop()
    job.stop()
    going.set()
    assert job.wait(10)
    assert waiting.wait(10)
    assert (job.state, waiting.state, seen) == ("stopped", "stopped", ["stopped"])
    jobs.forget("a")
    again = jobs.request("a", lambda progress: "answer")
    assert again.wait(10)
    assert again.state == "ready"


def test_a_job_that_nobody_looks_at_gives_way_and_goes_on_afterwards():
    jobs, started, going, order = Jobs(), threading.Event(), threading.Event(), []

    def left(progress: Any) -> str:
        started.set()
        going.wait(10)
        progress(0.5)
        order.append("left")
        return "whole"

    first = jobs.request("left", left)
    assert started.wait(10)
    also_left = jobs.request("also left", lambda progress: order.append("also left"))
    watched = jobs.request("watched", lambda progress: order.append("watched"))
    first.seen = also_left.seen = -1000.0
    going.set()
    assert all(job.wait(10) for job in (first, also_left, watched))
    assert order == ["watched", "left", "also left"]
    assert (first.state, first.answer, first.done) == ("ready", "whole", 1.0)


def test_a_job_that_waits_for_its_turn_stops_at_once():
    jobs, going = Jobs(), threading.Event()
    running = jobs.request("running", lambda progress: going.wait(20))
    waiting = jobs.request("waiting", lambda progress: "never")
    waiting.stop()
    assert waiting.wait(5)
    assert (waiting.state, running.active) == ("stopped", True)
    going.set()
    assert running.wait(10)


def test_the_end_of_the_server_stops_what_runs_and_what_waits():
    def work(progress: Any) -> None:
        started.set()
        while True:
            progress(0.1)

    jobs, started = Jobs(), threading.Event()
    running, waiting = jobs.request("a", work), jobs.request("b", lambda progress: "never")
    assert started.wait(10)
    jobs.close()
    assert (running.state, waiting.state) == ("stopped", "stopped")


def test_a_job_that_fails_keeps_its_error():
    def work(progress: Any) -> None:
        raise ValueError("occlusion: window must be smaller.")

    job = Jobs().request("a", work)
    assert job.wait(10)
    assert job.state == "failed"
    assert isinstance(job.error, ValueError)


def test_a_job_that_ends_while_the_page_is_drawn_makes_it_run_again(monkeypatch):
    from dashboard.views import evidence_tools

    polled: list[Any] = []
    monkeypatch.setattr(evidence_tools, "polled", lambda draw, ended, **_: polled.append(ended))
    job = Jobs().request("a", lambda progress: "answer")
    assert job.wait(10)
    evidence_tools.progress("text", [("Leave one out", job)])
    assert [ended() for ended in polled] == [True]


# Pages -------------------------------------------------------------------------------------------------------------


def image_opened(**params: str) -> AppTest:
    """The Image page by a link, with its model loaded."""
    at = AppTest.from_file(APP, default_timeout=180)
    at.switch_page("views/image.py")
    for name, value in {"v": "1", "view": "evidence", **params}.items():
        at.query_params[name] = value
    at.run()
    return finished(settled(at))


def finished(at: AppTest) -> AppTest:
    """Run again when the methods of many passes have ended."""
    for job in list(evidence_cache.jobs()._jobs.values()):
        assert job.wait(240)
    at.run()
    assert not at.exception
    return at


@classifier
def test_the_picture_classifier_shows_signed_evidence_for_its_top_class():
    at = image_opened(model="picture-classifier", sample="elephantdog")
    header, arrays = component(at, "evidence_maps")
    assert [card["method"] for card in header["cards"]] == [
        "CDAM",
        "GradCAM",
        "Relevance",
        "Attention rollout",
    ]
    assert header["title"].startswith("Evidence for elephant (logit ")
    first = header["cards"][0]["panels"][0]
    assert first["limit"] == pytest.approx(float(np.abs(arrays["scores"][0]).max()))
    assert np.isfinite(arrays["scores"]).all()
    assert any("lies on CLS" in fact for fact in first["facts"])
    assert header["cards"][3]["panels"][0]["target"] == "", "rollout knows no class"

    at.selectbox(key="image_evidence_beside").set_value(
        cached.shared_model("picture-classifier", None).model.labels.index("dalmatian")
    ).run()
    assert not at.exception
    two, both = component(at, "evidence_maps")
    assert [len(card["panels"]) for card in two["cards"]] == [2, 2, 2, 1]
    assert two["cards"][0]["panels"][0]["limit"] == two["cards"][0]["panels"][1]["limit"], "one scale"
    assert "Rank correlation with that for elephant: " in two["cards"][0]["panels"][1]["facts"][0]
    np.testing.assert_array_equal(both["scores"][0], arrays["scores"][0])
    assert "27" in at.query_params["beside"]


@classifier
def test_another_class_runs_no_forward_pass_and_no_method_without_a_target(monkeypatch):
    import analysis.evidence.methods as methods
    import analysis.evidence.passes as core

    at = image_opened(model="picture-classifier", sample="helicopter")
    asked: list[str] = []
    plain = methods.explain
    monkeypatch.setattr(core, "forward_pass", lambda *_: pytest.fail("the forward pass was run again"))
    monkeypatch.setattr(
        methods, "explain", lambda key, *rest, **more: (asked.append(key), plain(key, *rest, **more))[1]
    )
    at.selectbox(key="image_evidence_target").set_value(3).run()
    assert not at.exception
    assert asked == ["cdam", "gradcam", "relevance"]
    asked.clear()
    at.run()
    assert asked == []


@classifier
def test_methods_of_many_passes_run_behind_the_page():
    at = image_opened(
        model="picture-classifier", sample="cat", side="56", methods="cdam,integrated_gradients"
    )
    header, arrays = component(at, "evidence_maps")
    assert [card["method"] for card in header["cards"]] == ["CDAM", "Integrated Gradients"]
    assert any("Convergence error" in fact for fact in header["cards"][1]["panels"][0]["facts"])
    assert np.abs(arrays["scores"][1]).max() > 0


@classifier
def test_a_model_without_a_head_says_why_and_explains_a_likeness():
    at = image_opened(sample="cat", like="coffee")
    header, _ = component(at, "evidence_maps")
    assert "The model has no classification head." in shown(at)
    assert "likeness to “Coffee cup” (cosine" in header["title"]
    at.multiselect(key="image_evidence_examples").set_value(["coffee", "temple"]).run()
    header, _ = component(at, "evidence_maps")
    assert "the concept of 2 examples" in header["title"]


@classifier
def test_before_the_model_is_there_the_view_says_when_it_comes():
    at = AppTest.from_file(APP, default_timeout=180)
    at.query_params["view"] = "evidence"
    for job in cached.loader().jobs():
        job.wait(240)
    cached.loader()._jobs.clear()
    at.run()
    assert not at.exception
    assert "The evidence appears as soon as the model is ready." in shown(at)


@classifier
def test_a_text_model_without_self_attention_is_explained_by_methods_that_suit_it():
    at = AppTest.from_file(APP, default_timeout=180)
    for name, value in {"v": "1", "view": "evidence", "model": "recurrent-sentiment"}.items():
        at.query_params[name] = value
    at.run()
    at = finished(settled(at))
    header, arrays = component(at, "evidence_words")
    assert [card["method"] for card in header["cards"]] == [
        "Attention",
        "Integrated Gradients",
        "Leave one out",
    ]
    assert len(header["tokens"]) == arrays["scores"].shape[1]
    assert at.get("plotly_chart")
    at.session_state["text_evidence_words"] = {
        "view": {"positive": True},
        "word": {"at": 2, "input": header["input"]},
    }
    at.session_state["selection"] = replace(
        at.session_state["selection"],
        text=replace(
            at.session_state["selection"].text, evidence=EvidenceChoices(methods=("attention", "cdam"))
        ),
    )
    at.run()
    assert "CDAM: " in shown(at), "why it does not answer"


@pytest.fixture(scope="module")
def model_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tiny random models with heads that the bundled ones do not have, below the opened folder."""
    root = tmp_path_factory.mktemp("models")
    build = tiny.loaded
    build(root / "gpt2", "GPT2LMHeadModel", "GPT2Config", tiny.byte_level(), **tiny.GPT2)
    build(root / "masked", "BertForMaskedLM", "BertConfig", tiny.byte_level(roberta=True), **tiny.BERT)
    build(
        root / "bart",
        "BartForConditionalGeneration",
        "BartConfig",
        tiny.byte_level(roberta=True),
        **tiny.BART,
    )
    build(
        root / "labels",
        "BertForSequenceClassification",
        "BertConfig",
        tiny.byte_level(roberta=True),
        **tiny.BERT,
        num_labels=3,
        problem_type="multi_label_classification",
    )
    build(
        root / "value",
        "BertForSequenceClassification",
        "BertConfig",
        tiny.byte_level(roberta=True),
        **tiny.BERT,
        num_labels=1,
        problem_type="regression",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(root))
        yield


@pytest.mark.parametrize(("name", "place"), [("gpt2", "after "), ("masked", "at "), ("bart", "after ")])
@classifier
def test_a_language_model_explains_a_word_that_it_predicts(model_folders, name, place):
    at = AppTest.from_file(APP, default_timeout=180)
    for key, value in {"v": "1", "view": "evidence", "t": "hello world"}.items():
        at.query_params[key] = value
    at.run()
    at = settled(at)
    at.selectbox(key="text_model").set_value(f"folder:{name}").run()
    at = finished(settled(at))
    header, arrays = component(at, "evidence_words")
    assert re.match(rf"Evidence for “.+” {place}\d+ “.+” \(log probability -", header["title"]), header[
        "title"
    ]
    assert np.isfinite(arrays["scores"]).all()
    options = at.selectbox(key="text_evidence_word").options
    assert any("in the text" in option for option in options) or place == "after "
    at.selectbox(key="text_evidence_position").set_value(1).run()
    assert not at.exception
    assert component(at, "evidence_words")[0]["title"] != header["title"]


@pytest.mark.parametrize("name", ["gpt2", "bart"])
@classifier
def test_every_predicted_word_is_a_row_of_a_table(model_folders, name):
    at = AppTest.from_file(APP, default_timeout=180)
    for key, value in {
        "v": "1",
        "view": "evidence",
        "t": "hello world",
        "methods": "relevance,leave_one_out",
    }.items():
        at.query_params[key] = value
    at.run()
    at = settled(at)
    at.selectbox(key="text_model").set_value(f"folder:{name}").run()
    at = finished(settled(at))
    at.segmented_control(key="text_evidence_table").set_value("Every word").run()
    at = finished(finished(at))
    header, arrays = component(at, "evidence_table")
    assert header["title"].startswith("What every predicted word rests on · Relevance")
    assert arrays["scores"].shape == (len(header["predicted"]), len(header["tokens"]))
    assert "words" in at.query_params["table"]
    assert not [box for box in at.selectbox if box.key == "text_evidence_position"]
    assert "text_evidence_export_csv" in [button.key for button in at.download_button]
    at.segmented_control(key="text_evidence_table").set_value("One word").run()
    assert component(finished(at), "evidence_words")[0]["title"].startswith("Evidence for “")


@classifier
def test_a_masked_model_has_no_table(model_folders):
    at = AppTest.from_file(APP, default_timeout=180)
    for key, value in {"v": "1", "view": "evidence", "t": "hello world", "table": "words"}.items():
        at.query_params[key] = value
    at.run()
    at = settled(at)
    at.selectbox(key="text_model").set_value("folder:masked").run()
    at = finished(settled(at))
    assert component(at, "evidence_words")[0]["title"].startswith("Evidence for “")
    assert not [control for control in at.segmented_control if control.key == "text_evidence_table"]


@classifier
def test_a_regression_head_explains_its_number_and_says_what_the_sign_means(model_folders):
    at = AppTest.from_file(APP, default_timeout=180)
    for key, value in {"v": "1", "view": "evidence", "t": "hello world"}.items():
        at.query_params[key] = value
    at.run()
    at = settled(at)
    at.selectbox(key="text_model").set_value("folder:value").run()
    at = finished(settled(at))
    header, _ = component(at, "evidence_words")
    assert header["title"].startswith("Evidence for predicted value (value ")
    assert "Positive scores push the predicted number up" in shown(at)
    assert not [box for box in at.selectbox if box.key == "text_evidence_rather"]


@classifier
def test_after_a_picture_that_cannot_be_shown_the_evidence_is_of_the_one_before():
    at = image_opened(model="picture-classifier", sample="cat")
    before, _ = component(at, "evidence_maps")
    selection = at.session_state["selection"]
    broken = replace(selection.image.input, kind="upload", digest="none", name="gone.png")
    at.session_state["selection"] = replace(selection, image=replace(selection.image, input=broken))
    at.run()
    after, _ = component(at, "evidence_maps")
    assert after["title"] == before["title"]


@classifier
def test_words_are_sums_of_their_tokens():
    at = AppTest.from_file(APP, default_timeout=180)
    for name, value in {
        "v": "1",
        "view": "evidence",
        "t": "An unbelievably embarrassing windowsill.",
    }.items():
        at.query_params[name] = value
    at.run()
    at = finished(settled(at))
    header, summed = component(at, "evidence_words")
    at.segmented_control(key="text_evidence_unit").set_value("tokens").run()
    pieces, single = component(at, "evidence_words")
    assert header["unit"] == "words"
    assert len(header["tokens"]) < len(pieces["tokens"])
    np.testing.assert_allclose(
        summed["scores"].sum(axis=1), single["scores"].sum(axis=1), rtol=1e-4, atol=1e-7
    )


def test_maps_of_another_quantity_have_a_scale_of_their_own():
    import torch

    from analysis.evidence.explanation import Explanation
    from analysis.evidence.methods import METHODS
    from analysis.evidence.targets import class_logit, logit_difference
    from dashboard.views.evidence_tools import Answer, panels

    scores = [np.array([4.0, -1.0], np.float32), np.array([-0.5, 0.25], np.float32)]

    def limits(*targets: Any) -> list[float]:
        found = [
            Answer(
                METHODS["cdam"],
                target,
                Explanation("cdam", target.label, torch.from_numpy(part), torch.arange(2), True),
            )
            for target, part in zip(targets, scores, strict=True)
        ]
        made = panels(found, scores, left_out="CLS")
        assert made[1].empty == ""
        return [panel.limit for panel in made]

    assert limits(class_logit(1, "a"), class_logit(2, "b")) == [4.0, 4.0]
    assert limits(class_logit(1, "a"), logit_difference(2, 1, "b", "a")) == [4.0, 0.5]


def test_the_same_map_for_two_classes_raises_the_warning():
    import torch

    from analysis.evidence.explanation import Explanation
    from analysis.evidence.methods import METHODS
    from analysis.evidence.targets import class_logit
    from dashboard.views.evidence_tools import Answer, panels

    first = np.array([-4.0, -1.0, -2.0], np.float32)

    def made(second: Any) -> Any:
        found = [
            Answer(
                METHODS["cdam"],
                class_logit(place, name),
                Explanation(
                    "cdam", name, torch.from_numpy(part), torch.arange(3), True, details={"delta": 0.5}
                ),
            )
            for place, (name, part) in enumerate({"a": first, "b": second}.items())
        ]
        return panels(found, [first, second], left_out="CLS")

    same = made(2 * first)
    assert same[1].warning == "This map does not depend on the class."
    assert same[1].facts[0] == "Rank correlation with that for a: 1.00."
    assert same[0].warning == ""
    assert same[0].empty == "No positive evidence for this target."
    outlier = made(np.array([-40.0, -1.0, -2.0], np.float32))  # the correlation is of ranks, as the docs say
    assert outlier[1].facts[0].endswith("1.00.")
    assert made(first[::-1].copy())[1].warning == ""
    constant = made(np.ones(3, np.float32))[1]
    assert constant.facts[0] == "This map or that for a is constant: no correlation."
    assert constant.warning == ""
    assert "Convergence error 0.5" in same[0].facts[0]


def test_labels_of_a_text_are_escaped_in_charts():
    tokens = (TokenLabel("<b>x</b>", "x"), TokenLabel("y", "y"))
    view = words(tokens=tokens, scores=np.ones((2, 2), np.float32))
    spec = strongest_words_chart(view, 0).to_json()
    assert "<b>x</b>" not in spec
    assert "&lt;b&gt;x" in spec or "\\u0026lt;" in spec


# Options of methods ------------------------------------------------------------------------------------------------

names = st.from_regex(r"[a-z][a-z0-9_]{0,9}", fullmatch=True)
values = st.one_of(
    st.from_regex(r"[a-z][a-z0-9_+-]{0,9}", fullmatch=True),
    st.integers(0, 999_999),
    st.integers(0, 9_999_999).map(lambda number: number / 1e4),
)
chosen_options = st.dictionaries(
    names, st.dictionaries(names, values, min_size=1, max_size=3), max_size=4
).map(lambda found: tuple((method, tuple(own.items())) for method, own in found.items()))


@given(
    options=chosen_options,
    cosine=st.booleans(),
    number=st.sampled_from([{}, {"probability": True}, {"rather": 3}, {"likeness": True}]),
    page=st.sampled_from(["text", "image"]),
)
def test_a_link_restores_options_and_the_number_that_is_explained(options, cosine, number, page):
    evidence = EvidenceChoices(options=options, cosine=cosine, **number)
    selection = default_selection()
    choices = replace(getattr(selection, page), view="evidence", evidence=evidence)
    params = to_query(replace(selection, **{page: choices}), page)
    opened = from_query(params, default_selection(), page)
    assert getattr(opened, page).evidence == evidence
    assert opened.notes == ()


@given(
    name=st.sampled_from(EVIDENCE_PARAMETERS),
    value=st.one_of(st.text(), st.text(alphabet="ab_.:,019+-", max_size=40)),
)
def test_whatever_a_link_says_it_is_understood_or_left_out(name, value):
    found = read_evidence(EvidenceChoices(), name, value, examples=("cat",))
    if found is None:
        return
    again: EvidenceChoices | None = EvidenceChoices()
    for written, told in evidence_params(found, examples=("cat",)).items():
        again = read_evidence(again or EvidenceChoices(), written, told, examples=("cat",))
        assert again is not None
    assert again == found


def test_a_class_in_a_link_takes_a_likeness_back_and_a_rival_a_probability():
    start = EvidenceChoices(likeness=True, probability=True)
    assert read_evidence(start, "class", "3") == EvidenceChoices(3, probability=True)
    assert read_evidence(start, "rather", "2") == EvidenceChoices(None, 2, likeness=True)
    assert read_evidence(EvidenceChoices(4, 5), "rather", "probability") == EvidenceChoices(
        4, probability=True
    )
    assert read_evidence(EvidenceChoices(4, 5), "class", "examples") == EvidenceChoices(
        None, 5, likeness=True
    )


def test_an_option_is_changed_and_taken_back():
    options = with_option((), "rollout", "fusion", "max")
    options = with_option(options, "gradcam", "layer", 3)
    options = with_option(options, "rollout", "discard_ratio", 0.9)
    assert options == (("rollout", (("fusion", "max"), ("discard_ratio", 0.9))), ("gradcam", (("layer", 3),)))
    assert EvidenceChoices(options=options).options_of("gradcam") == (("layer", 3),)
    assert EvidenceChoices(options=options).options_of("cdam") == ()
    assert with_option(options, "gradcam", "layer", None) == options[:1]
    assert with_option((), "gradcam", "layer", None) == ()


def test_numbers_and_likeness_that_a_model_does_not_have_are_dropped():
    asked = EvidenceChoices(likeness=True, probability=True)
    assert clamped_evidence(asked, classes=2, methods={}) == asked
    assert clamped_evidence(asked, classes=0, methods={}) == EvidenceChoices()
    assert clamped_evidence(asked, classes=2, methods={}, probable=False) == EvidenceChoices(likeness=True)
    assert clamped_evidence(asked, classes=2, methods={}, embeds=False) == EvidenceChoices(probability=True)


@cache
def small_run() -> Any:
    from analysis.evidence.passes import forward_pass
    from tests.evidence.oracle_models import oracle, pixels_of, small_vit

    arrays, _ = oracle("03_cdam", "vit_noise")
    return forward_pass(small_vit(), pixels_of(arrays["pixel_values"], patch=8))


@given(
    options=st.lists(
        st.tuples(
            st.sampled_from(["gradcam", "rollout", "attention", "smooth_grad", "magic"]),
            st.lists(
                st.tuples(st.sampled_from(["layer", "head", "fusion", "level", "row", "other"]), values),
                max_size=4,
            ).map(tuple),
        ),
        max_size=3,
    ).map(tuple),
)
def test_options_of_a_link_are_fitted_to_the_model(options):
    from analysis.evidence.methods import METHODS, options_of
    from dashboard.views.evidence_options import fitted_options

    run = small_run()
    found = fitted_options(options, run)
    assert fitted_options(found, run) == found
    for method, own in found:
        assert own
        offered = {option.key: option for option in options_of(METHODS[method], run)}
        assert all(offered[key].accepted(value) == value for key, value in own)


def test_options_that_differ_are_told_in_words():
    from analysis.evidence.methods import METHODS
    from dashboard.views.evidence_options import option_words

    assert option_words(METHODS["attention"], (("layer", 3), ("head", 5), ("row", "mean"))) == (
        "Layer 3, head 5, mean row."
    )
    told = option_words(METHODS["rollout"], (("fusion", "max"), ("discard_ratio", 0.9)))
    assert told == "Maximum of heads, weakest 0.9 discarded."
    assert option_words(METHODS["smooth_grad"], (("samples", 5), ("level", 0.25))) == (
        "5 noisy copies, noise 0.25."
    )
    assert option_words(METHODS["cdam"], ()) == option_words(METHODS["cdam"], (("gone", 1),)) == ""


def test_the_record_of_a_board_names_the_options_of_its_methods():
    options = (("cdam", (("layer", 3),)), ("rollout", (("fusion", "max"),)), ("magic", (("x", 1),)))
    record = evidence_provenance(maps(panels=(SIGNED,)), "model", "1", "cat", (), layers=12, options=options)
    assert record.settings["options"] == "CDAM: layer=3"
    plain = evidence_provenance(maps(panels=(SIGNED,)), "model", "1", "cat", (), layers=12)
    assert "options" not in plain.settings


@classifier
def test_options_of_a_link_change_the_maps_and_can_be_reset():
    from analysis.evidence.methods import explain
    from analysis.evidence.targets import class_logit

    at = image_opened(
        model="picture-classifier",
        sample="elephantdog",
        methods="gradcam,rollout,attention",
        options="rollout.fusion:max,gradcam.layer:3,attention.head:2,gradcam.layr:1,rollout.start_layer:99",
    )
    _, arrays = component(at, "evidence_maps")
    run = shown_run(at)
    elephant = cached.shared_model("picture-classifier", None).model.labels.index("elephant")
    expected = {
        "gradcam": explain("gradcam", run, class_logit(elephant), layer=3),
        "rollout": explain("rollout", run, fusion="max"),
        "attention": explain("attention", run, head=2),
    }
    for drawn, explanation in zip(arrays["scores"], expected.values(), strict=True):
        np.testing.assert_allclose(drawn, explanation.to_grid().numpy(), rtol=1e-5, atol=1e-7)
    assert at.query_params["options"] == "gradcam.layer:3,rollout.fusion:max,attention.head:2"

    at.selectbox(key="image_evidence_option_gradcam_layer").set_value(11).run()
    at.number_input(key="image_evidence_option_rollout_discard_ratio").set_value(0.9).run()
    assert not at.exception
    assert at.query_params["options"] == "rollout.fusion:max,rollout.discard_ratio:0.9,attention.head:2"
    _, changed = component(at, "evidence_maps")
    assert not np.array_equal(changed["scores"][1], arrays["scores"][1])
    plain = explain("gradcam", run, class_logit(elephant))
    np.testing.assert_allclose(changed["scores"][0], plain.to_grid().numpy(), rtol=1e-5, atol=1e-7)

    at.button(key="image_evidence_options_reset").click().run()
    assert not at.exception
    assert "options" not in at.query_params
    assert at.selectbox(key="image_evidence_option_attention_head").value == ""
    assert not [button for button in at.button if button.key == "image_evidence_options_reset"]


def shown_run(at: AppTest) -> Any:
    """The pass that the Image page shows; the page has made it, so this reads a cache."""
    chosen = at.session_state["selection"].image
    model, side = chosen.model, chosen.input.side
    digest, name, data = picture_bytes(chosen.input)
    picture = cached.picture(digest, name, _data=data)
    traced = cached.traced_picture(model.name, model.revision, digest, side, _picture=picture)
    return evidence_cache.subject(traced).run


@classifier
def test_the_explained_probability_is_the_one_that_the_page_shows():
    at = image_opened(model="picture-classifier", sample="elephantdog", methods="cdam", rather="probability")
    header, _ = component(at, "evidence_maps")
    box = at.selectbox(key="image_evidence_rather")
    assert box.value == -2
    found = re.fullmatch(r"Evidence for probability of elephant \((0\.\d+)\)", header["title"])
    assert found, header["title"]
    shown_share = re.search(r"<b>elephant</b> ([\d.]+) %", shown(at))
    assert float(found[1]) == pytest.approx(float(shown_share[1]) / 100, abs=0.006)
    assert "Its gradient vanishes where the model is sure" in shown(at)
    temperature = cached.shared_model("picture-classifier", None).model.temperature
    assert temperature != 1, "the test would not see a missing temperature"

    box.set_value(cached.shared_model("picture-classifier", None).model.labels.index("dalmatian")).run()
    assert component(at, "evidence_maps")[0]["title"].startswith(
        "Evidence for elephant rather than dalmatian (diff"
    )
    assert at.query_params["rather"] == "27"
    at.selectbox(key="image_evidence_rather").set_value(-1).run()
    assert component(at, "evidence_maps")[0]["title"].startswith("Evidence for elephant (logit ")
    assert "rather" not in at.query_params


@classifier
def test_a_model_with_classes_explains_a_likeness_too():
    at = image_opened(model="picture-classifier", sample="cat", methods="gradcam", like="coffee")
    at.selectbox(key="image_evidence_target").set_value(-3).run()
    assert not at.exception
    header, _ = component(at, "evidence_maps")
    assert "likeness to “Coffee cup” (cosine" in header["title"]
    assert at.query_params["class"] == "examples"
    assert "The model has no classification head." not in shown(at)
    keys = {box.key for box in at.selectbox}
    assert not keys & {"image_evidence_rather", "image_evidence_beside", "image_evidence_measure"}
    at.multiselect(key="image_evidence_examples").set_value(["coffee", "temple"]).run()
    assert "the concept of 2 examples (dot product" in component(at, "evidence_maps")[0]["title"]
    at.selectbox(key="image_evidence_measure").set_value("cosine").run()
    header, _ = component(at, "evidence_maps")
    share = re.search(r"the concept of 2 examples \(cosine (-?[\d.]+)\)", header["title"])
    assert abs(float(share[1])) <= 1
    assert at.query_params["measure"] == "cosine"
    at.selectbox(key="image_evidence_target").set_value(0).run()
    assert "(logit " in component(at, "evidence_maps")[0]["title"]
    assert at.query_params["class"] == "0"


def text_opened(**params: str) -> AppTest:
    """The Text page by a link, with its model loaded."""
    at = AppTest.from_file(APP, default_timeout=180)
    for name, value in {"v": "1", "view": "evidence", **params}.items():
        at.query_params[name] = value
    at.run()
    return finished(settled(at))


@classifier
def test_a_text_model_with_classes_has_options_probability_and_likeness():
    at = text_opened(
        model="sentiment",
        t="A dull start, but the ending is wonderful.",
        methods="leave_one_out,occlusion,attention",
        options="leave_one_out.replacement:remove,occlusion.window:2,attention.row:mean,attention.layer:99",
        rather="probability",
    )
    header, arrays = component(at, "evidence_words")
    assert re.match(r"Evidence for probability of \w+ \(\d", header["title"])
    assert (
        at.query_params["options"] == "attention.row:mean,occlusion.window:2,leave_one_out.replacement:remove"
    )
    facts = [fact for card in header["cards"] for panel in card["panels"] for fact in panel["facts"]]
    assert "Tokens were deleted and the model ran on the shorter text." in facts
    at.number_input(key="text_evidence_option_occlusion_window").set_value(1).run()
    at = finished(at)
    _, changed = component(at, "evidence_words")
    assert not np.array_equal(changed["scores"], arrays["scores"])

    at.selectbox(key="text_evidence_target").set_value(-3).run()
    at = finished(at)
    assert "likeness to “" in component(at, "evidence_words")[0]["title"]
    at.text_area(key="text_evidence_examples").set_value("A great film.\nA bad film.").run()
    at = finished(at)
    assert "the concept of 2 texts (dot product" in component(at, "evidence_words")[0]["title"]
    at.selectbox(key="text_evidence_measure").set_value("cosine").run()
    at = finished(at)
    assert "the concept of 2 texts (cosine" in component(at, "evidence_words")[0]["title"]


@classifier
def test_a_model_whose_classes_stand_by_themselves_explains_a_sigmoid(model_folders):
    at = text_opened(t="hello world")
    at.selectbox(key="text_model").set_value("folder:labels").run()
    at = finished(settled(at))
    before = component(at, "evidence_words")[0]["title"]
    logit = float(re.search(r"\(logit (-?[\d.]+)\)", before)[1])
    at.selectbox(key="text_evidence_rather").set_value(-2).run()
    assert not at.exception
    title = component(at, "evidence_words")[0]["title"]
    share = float(re.search(r"probability of .+ \((0\.\d+)\)", title)[1])
    assert share == pytest.approx(1 / (1 + np.exp(-logit)), abs=2e-3)
