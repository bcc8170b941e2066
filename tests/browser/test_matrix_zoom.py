"""Zooming into a matrix that is too large to be sent whole, in the running app: Python sends the exact part."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import tests.input_helpers as tiny
from dashboard.model_root import VARIABLE
from scripts.server import AppServer, running_app
from tests.browser.conftest import settle
from tests.browser.lone_component import tooltip
from tests.browser.test_matrix_view import cell_at, drag, place
from tests.browser.test_walk import MINUTES, wait_for_model
from tests.conftest import RESULTS
from tests.tiny_models import BY_NAME

if TYPE_CHECKING:
    from pathlib import Path

    from tests.conftest import WatchedPage

pytestmark = pytest.mark.browser

LAYER, HEAD = 1, 2


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama that reads thousands of tokens, below a folder of models."""
    folder = tmp_path_factory.mktemp("models") / "llama"
    BY_NAME["Llama"].build(vocab_size=400, max_position_embeddings=4096).save_pretrained(folder)
    tiny.byte_level().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def app_server(model_folder: Path) -> Iterator[AppServer]:
    """The app, which may open that folder."""
    log = RESULTS / "server-zoom.log"
    with running_app(log, variables={VARIABLE: str(model_folder.parent)}) as server:
        yield server


def text_of(letters: int) -> str:
    """Letters in no order, so that hardly any two make one token."""
    return "".join(np.random.default_rng(letters).choice(list("qxzjkvwy"), size=letters))


@pytest.mark.parametrize("letters", [600, 1400])
def test_values_after_a_zoom_are_those_of_the_map(
    app_page: WatchedPage, app_server: Any, model_folder: Path, letters: int
) -> None:
    from playwright.sync_api import expect

    from analysis.inputs import encode_text
    from analysis.models import load_model
    from analysis.trace import trace

    page, text = app_page.page, text_of(letters)
    page.goto(f"{app_server.url}/?v=1&model=folder:llama&view=matrix&layer={LAYER}&head={HEAD}")
    page.get_by_role("button", name="Load it").click(timeout=MINUTES)
    wait_for_model(page)
    settle(app_page)
    page.get_by_text("Text from a file").click()
    page.locator("[data-testid=stFileUploaderDropzoneInput]").set_input_files(
        {"name": "letters.txt", "mimeType": "text/plain", "buffer": text.encode()}
    )
    model = load_model(model_folder, allow_local=True)
    found = trace(model, encode_text(model, text, max_tokens=2048)).decoder[LAYER]
    expect(page.locator(".matrix-view")).to_contain_text(
        f"{found.queries:,} × {found.keys:,}", timeout=MINUTES
    )
    assert found.queries > letters * 0.8
    page.mouse.move(*place(page, 0.35, 0.6))
    words = tooltip(page)
    assert words[0].startswith("≈") or words[1].startswith("largest of"), "the whole is no exact matrix"

    drag(page, (0.2, 0.5), (0.3, 0.6))
    expect(page.locator(".matrix-view .view-note").first).to_contain_text("query", timeout=MINUTES)
    shown = re.search(
        r"query (\d+)–(\d+), key (\d+)–(\d+)", page.locator(".matrix-view .view-note").first.inner_text()
    )
    assert shown
    top, bottom, left, right = (int(edge) + at % 2 for at, edge in enumerate(shown.groups()))
    block = found.block(HEAD, slice(top, bottom), slice(left, right)).numpy()
    expect(page.locator(".matrix-note")).not_to_contain_text("≈", timeout=MINUTES)
    for _ in range(300):  # the answer of Python redraws the cells
        page.mouse.move(*place(page, 0.5, 0.5))
        page.mouse.move(*place(page, 0.503, 0.5))
        words = tooltip(page)
        if not words[0].startswith("≈") and not words[1].startswith("largest of"):
            break
        page.wait_for_timeout(100)
    for across, down in ((0.04, 0.9), (0.31, 0.5), (0.5, 0.77), (0.95, 0.96)):
        row, column, value = cell_at(page, across, down)
        assert float(value.replace("−", "-")) == pytest.approx(
            float(block[row - top, column - left]), rel=2e-5
        )
    assert app_page.errors == []
    assert app_page.outside == []
