"""The Export popover: what it offers, under which names, and what it says when a file cannot be made."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from streamlit.testing.v1 import AppTest

from analysis.export import MEDIA_TYPES, read_provenance
from dashboard.export_menu import SECTIONS, export_problem, file_bytes, file_name
from tests.sample_figures import all_figures, head_view, labels, matrix_view, provenance

FORMATS = [entry.format for _, entries in SECTIONS for entry in entries]


def menu_of(figure):
    """A page with nothing but the menu."""

    def page(figure, record):
        from dashboard.export_menu import export_menu

        export_menu(figure, record, key="text_head_export", name="minilm")

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
    assert [caption.value for caption in app.caption][:4] == ["Figure", "Interactive", "Data", "Settings"]
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
    assert "1,210,000; take NPZ" in app.error[0].value


def test_pictures_without_matplotlib_are_explained(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find(name)
    )
    assert "matplotlib is not installed" in export_problem(head_view(), "png")
    assert export_problem(head_view(), "html") is None


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
