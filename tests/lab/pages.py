"""The app on a section of the Lab, run by Streamlit's AppTest, and what its Export menu was given."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from analysis.catalogue import BUNDLED, is_installed
from analysis.export import read_provenance
from dashboard import cached
from dashboard.export_menu import file_bytes
from dashboard.figures import read_header
from dashboard.views import lab_workspace

APP = Path(__file__).resolve().parents[2] / "dashboard" / "app.py"

needs_models = pytest.mark.skipif(
    not all(is_installed(model) for model in BUNDLED),
    reason="bundled models are not installed; run make bundled",
)


_UNESCAPED = re.compile(r"\\([!-/:-@\[-`{-~])")
"""Punctuation that Markdown shows as it is."""


class Exports:
    """What the Export menu was given in the last run: one figure, the chosen one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.given: list[tuple[Any, Any]] = []
        menu = lab_workspace.export_menu

        def watched(figure: Any, provenance: Any, **options: Any) -> None:
            self.given.append((figure, provenance))
            menu(figure, provenance, **options)

        monkeypatch.setattr(lab_workspace, "export_menu", watched)

    def check(self, formats: tuple[str, ...] = ("png", "csv", "npz", "json", "html")) -> dict[str, Any]:
        """Write the last figure in every format, read its provenance back from each, and return it."""
        figure, told = self.given[-1]
        read: dict[str, Any] = {}
        for format in formats:
            data = file_bytes(figure, told, format)  # type: ignore[arg-type]
            read = read_provenance(data, format)["provenance"]
            assert read["model"] == "AttnScope Lab"
            assert read["method"] == told.method
            assert dict(read["settings"]) == dict(told.settings)
        return read


def first_run(section: str, **params: str) -> AppTest:
    """The app on a section, as a link opens it, after its first run."""
    at = AppTest.from_file(APP, default_timeout=120)
    at.switch_page("views/lab.py")
    for name, value in {"v": "1", "section": section, **params}.items():
        at.query_params[name] = value
    return at.run()


def opened(section: str, **params: str) -> AppTest:
    """The same when the models that it asked for are loaded."""
    return settled(first_run(section, **params))


def settled(at: AppTest) -> AppTest:
    """Run again when the loads that were asked for have ended."""
    assert not at.exception
    for job in cached.loader().jobs():
        assert job.wait(240), job.stage
    at.run()
    assert not at.exception
    return at


def shown(at: AppTest) -> str:
    """All HTML, Markdown, errors and notes of the page, as one text."""
    parts = [element.proto.body for element in at.get("html")]
    kinds = (at.error, at.warning, at.info, at.caption, at.markdown)
    parts += [_UNESCAPED.sub(r"\1", element.value) for kind in kinds for element in kind]
    return "\n".join(parts)


def blob(at: AppTest, kind: str) -> dict[str, Any]:
    """Header of the blob that the component of this kind was given."""
    headers = [read_header(element.proto.bytes)[0] for element in at.get("bidi_component")]
    (found,) = [header for header in headers if header["kind"] == kind]
    return found
