"""Why √d_k in the app: every control, any d_k that a link names, files."""

from __future__ import annotations

import pytest

from tests.lab.pages import Exports, needs_models, opened, shown

pytestmark = needs_models

QUICK = {"samples": "64", "keys": "4"}


def test_every_control_measures_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    exports = Exports(monkeypatch)
    at = opened("scale", **QUICK)
    assert "At dₖ = 64 the scores&#x27; variance is" in shown(at)
    assert "95 % intervals of 8 repeated draws" in shown(at)
    for widget, name, value in (
        ("slider", "keys", 3),
        ("slider", "samples", 128),
        ("slider", "seed", 5),
        ("selectbox", "width", 256),
    ):
        before = exports.given[-1][0]
        getattr(at, widget)(key=f"lab_scale_{name}").set_value(value).run()
        assert not at.exception
        after = exports.given[-1][0]
        panel = 1 if name == "width" else 0
        assert (before.panels[panel].curves[0].y != after.panels[panel].curves[0].y).any(), name
        assert at.query_params[name] == str(value)
    assert "At dₖ = 256" in shown(at)
    assert all(panel.mark in (None, 256) for panel in exports.given[-1][0].panels)
    read = exports.check()
    assert dict(read["settings"]) == {"d_k": 256, "keys": 3, "rows at each d_k": 128, "seed": 5}


@pytest.mark.parametrize("width", ["1", "100", "1024"])
def test_any_width_of_a_link_is_measured(width: str, monkeypatch: pytest.MonkeyPatch) -> None:
    exports = Exports(monkeypatch)
    at = opened("scale", width=width, **QUICK)
    assert f"At dₖ = {width} the sc" in shown(at)
    assert exports.given[-1][0].panels[0].mark == float(width)
