"""Every page of the app, run by Streamlit's AppTest on the real models: first paint, links, pages, inputs, errors."""

from __future__ import annotations

import io
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from streamlit.testing.v1 import AppTest

from analysis.catalogue import BUNDLED, is_installed
from analysis.samples import PICTURE_SAMPLES, TEXT_SAMPLES
from dashboard import cached, figures
from dashboard.first_paint import read_example
from dashboard.provenance import VERSION

ROOT = Path(__file__).resolve().parent.parent
APP = ROOT / "dashboard" / "app.py"
HOSTILE = "<script>alert(1)</script> ![x](http://198.51.100.7/a.png) :red[no] $x$ <!--gone--> **bold**"

pytestmark = pytest.mark.skipif(
    not all(is_installed(model) for model in BUNDLED),
    reason="bundled models are not installed; run make models",
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
    from importlib.abc import MetaPathFinder

    class Gate(MetaPathFinder):
        "Holds the import of torch until the first page has been checked; notes who asks for it."
        def __init__(self):
            self.painted, self.asked, self.threads = threading.Event(), threading.Event(), set()
        def find_spec(self, name, path=None, target=None):
            if name in ("torch", "transformers"):
                self.threads.add((name, threading.current_thread().name))
                self.asked.set()
                if name == "torch":
                    self.painted.wait(60)
            return None

    gate = Gate()
    sys.meta_path.insert(0, gate)
    from streamlit.testing.v1 import AppTest
    at = AppTest.from_file({app!r}, default_timeout=60).run()
    assert not at.exception, at.exception
    assert not {{"torch", "transformers", "matplotlib", "pandas"}} & set(sys.modules), "imported for the first page"
    kinds = len(at.get("bidi_component"))
    assert kinds == 1, f"{{kinds}} components on the first page"
    assert any("precomputed example" in element.proto.body for element in at.get("html"))
    at.switch_page("views/image.py").run()
    assert len(at.get("bidi_component")) == 1
    assert "torch" not in sys.modules
    assert gate.asked.wait(10), "nothing was loaded behind the page"
    assert all(thread.startswith("load ") for _, thread in gate.threads), gate.threads
    gate.painted.set()
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
    from dashboard.live import image_source, text_source

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
    assert (image.sample, image.grid, image.layers) == (photo.id, live_image.grid, live_image.layers)
    assert np.array_equal(image.picture, live_image.picture)
    found = live_image.all_rows(None)
    np.testing.assert_allclose(found.maps, image.maps, atol=1e-4)
    np.testing.assert_allclose(found.removed, image.removed, atol=1e-4)


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


def test_a_long_text_is_cut_and_told():
    at = opened()
    words = "attention " * 900
    at.file_uploader(key="text_file").upload("long.txt", words.encode("utf-16"), "text/plain").run()
    assert not at.error
    header, arrays = component(at, "head_view")
    assert len(header["left"]) == 512
    assert arrays["weights"].shape[0] == 1  # the chosen layer alone
    text = shown(at)
    assert "first 512 of 902 tokens" in text
    assert "truncated" in text
    assert "UTF-16" in text


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


def test_what_is_chosen_inside_the_head_view_reaches_the_selection_and_the_link():
    at = opened()
    digest = component(at, "head_view")[0]["input"]
    said = {"layer": 4, "heads": [3, 7], "pinned": ["left", 2], "input": digest, "threshold": 0.2}
    at.session_state["text_head_view"] = {"view": {**said, "filter": "all", "hide_special": True}}
    at.run()
    # AppTest sets the state without the browser's event, so the callback is called by hand through a change of view
    assert component(at, "head_view")


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
    from dataclasses import replace

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


@pytest.mark.parametrize("name", ["/etc/passwd", "http://127.0.0.1:1/x", "../models"])
def test_paths_and_addresses_are_refused_in_the_model_box(name):
    at = opened()
    at.selectbox(key="text_model").set_value("other").run()
    at.text_input(key="text_other_name").set_value(name)
    at.button(key="FormSubmitter:text_other_model-Load model").click().run()
    assert at.error
    assert cached.loader().find(name) is None


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


def test_one_head_mean_and_all_heads():
    at = opened("image")
    at.selectbox(key="image_head").set_value(2).run()
    one, arrays = component(at, "patch_map")
    assert one["titles"] == ["head 2"]
    assert arrays["maps"].sum() < 1  # the CLS token's own share is not drawn
    assert "falls on the CLS token" in shown(at)
    at.selectbox(key="image_head").set_value("mean").run()
    assert component(at, "patch_map")[0]["titles"] == ["mean of 6 heads"]


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
