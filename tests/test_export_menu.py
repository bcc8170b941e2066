"""The Export popover: what it offers, under which names, and what it says when a file cannot be made."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from analysis.export import MEDIA_TYPES, read_provenance
from dashboard import figures
from dashboard.export_menu import (
    SECTIONS,
    export_problem,
    file_bytes,
    file_name,
    layers_in_words,
    link_in_words,
)
from tests.sample_figures import all_figures, head_view, labels, matrix_view, provenance, softmax_rows

FORMATS = [entry.format for _, entries in SECTIONS for entry in entries]


def menu_of(figure):
    """A page with nothing but the menu."""

    def page(figure, record):
        from dashboard.export_menu import export_menu

        export_menu(
            figure, record, key="text_head_export", name="minilm", query={"v": "1", "sample": "plain"}
        )

    app = AppTest.from_function(page, args=(figure, provenance()), default_timeout=30)
    app.run()
    assert not app.exception
    return app


def large_matrix():
    tokens = labels(tuple(map(str, range(1100))))
    weights = np.broadcast_to(np.float32(1 / 1100), (1100, 1100))
    return matrix_view(weights=weights, rows=tokens, columns=tokens)


def test_the_menu_offers_every_kind_of_file():
    app = menu_of(head_view())
    captions = [caption.value for caption in app.caption]
    sections = [section for section, _ in SECTIONS]
    assert [caption for caption in captions if caption in sections] == sections
    assert sections == ["Figure", "Interactive", "Data", "Settings"]
    assert captions[-2:] == ["Link", link_in_words({"sample": "plain"})]
    assert [button.label for button in app.download_button] == [
        "PNG",
        "SVG",
        "PDF",
        "HTML",
        "CSV",
        "NPZ",
        "JSON",
    ]
    assert [button.key for button in app.download_button] == [
        f"text_head_export_{format}" for format in FORMATS
    ]
    assert not any(button.disabled for button in app.download_button)
    assert app.error.len == 0
    assert set(FORMATS) == set(MEDIA_TYPES)


def test_what_cannot_be_exported_is_disabled_and_explained():
    app = menu_of(large_matrix())
    assert [button.label for button in app.download_button if button.disabled] == ["CSV"]
    told = [caption.value for caption in app.caption if "rows" in caption.value]
    assert len(told) == 1
    assert told[0].startswith("The CSV file would have 1,210,000 rows")
    assert "take NPZ" in told[0]
    assert app.error.len == 0, "a limit of a format is nothing that went wrong"


def test_the_menu_tells_which_layers_an_html_file_holds_and_how_large_it_is():
    tokens = labels(tuple(map(str, range(100))))
    layers = softmax_rows((6, 12, 100, 100))
    view = head_view(weights=layers[3], left=tokens, right=tokens)
    told = layers_in_words(view, whole=True)
    assert told == "HTML holds all 6 layers to step through, 1.0 MB."
    size = len(file_bytes(view, provenance(), "html", lambda: layers)) / 1e6
    assert f"{size:.1f} MB" in told
    assert layers_in_words(view, whole=False).startswith("HTML holds layer 3 alone; up to 128 tokens")
    assert layers_in_words(view, whole=False) in [caption.value for caption in menu_of(view).caption]
    others = [caption.value for caption in menu_of(matrix_view()).caption]
    assert not [caption for caption in others if caption.startswith("HTML holds")]


def test_the_link_is_the_address_of_the_view():
    (link,) = menu_of(head_view()).get("bidi_component")
    header, _ = figures.read_header(link.proto.bytes)
    assert (header["kind"], header["query"]) == ("page_link", "v=1&sample=plain")


def test_a_link_says_when_it_cannot_hold_the_input():
    assert "not this input" in link_in_words({"v": "1", "model": "minilm"})
    for holds in ({"sample": "plain"}, {"t": "a b"}):
        assert link_in_words(holds).startswith("Holds model, input")
    assert link_in_words({"v": "1", "rule": "causal"}).startswith("Holds what is chosen on this page")


def test_pictures_without_matplotlib_are_explained(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name)
    )
    assert "matplotlib is not installed" in export_problem(head_view(), "png")
    assert export_problem(head_view(), "html") is None
    assert [caption.value for caption in menu_of(head_view()).caption if "installed" in caption.value] == [
        "Matplotlib is not installed; install it to export pictures, or take HTML."
    ]


@pytest.mark.parametrize("format", [format for format in FORMATS if format != "pdf"])
@pytest.mark.parametrize("name", ["head", "matrix", "model", "scores", "patches"])
def test_the_buttons_make_their_files(name, format):
    data = file_bytes(all_figures()[name], provenance(), format)
    assert read_provenance(data, format)["provenance"]["model"] == provenance().model


def test_file_names():
    one = provenance(heads="5")
    assert file_name(head_view(), one, "png", name="minilm") == "attnscope_minilm_head-view_L3_H5.png"
    assert (
        file_name(head_view(), one, "html", name="org/model-1")
        == "attnscope_org-model-1_head-view_L3_H5.html"
    )
    assert file_name(head_view(), one, "csv", name="../<x>").startswith("attnscope_x_head-view")
