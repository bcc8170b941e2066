"""The timeline in the app: themes, entries, links that are followed, files."""

from __future__ import annotations

import pytest
import streamlit as st

from analysis.lab.timeline import THEMES
from dashboard.components.story_views import TimelinePick
from dashboard.views import lab_timeline
from tests.lab.pages import Exports, blob, first_run, needs_models, opened, shown

pytestmark = needs_models


def test_themes_entries_and_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    exports = Exports(monkeypatch)
    at = opened("timeline", entry="flex")
    assert blob(at, "timeline")["state"] == {"entry": "flex"}
    for theme in THEMES:
        at.button_group(key="lab_timeline_theme").set_value(theme).run()
        assert not at.exception
        assert {entry["theme"] for entry in blob(at, "timeline")["entries"]} == {theme}
    told = exports.check()
    assert told["settings"] == {"theme": "explained", "entry": ""}
    at.button_group(key="lab_timeline_theme").set_value("all").run()
    assert blob(at, "timeline")["state"] == {"entry": "flex"}
    assert "the history of attention" in exports.check(("csv",))["input"]
    nonsense = first_run("timeline", entry="nobody", theme="music")
    assert "left out: theme" in shown(nonsense)
    assert blob(nonsense, "timeline")["state"] == {"entry": ""}


@pytest.mark.parametrize(
    ("key", "params"),
    [
        ("bigbird", {"section": "variants", "variants": "exact,block", "pattern": "bigbird"}),
        ("rollout", {"view": "rollout"}),
        ("cdam", {"view": "evidence", "methods": "cdam", "model": "picture-classifier"}),
    ],
)
def test_a_link_opens_its_page_in_this_session(key: str, params: dict[str, str]) -> None:
    at = opened("timeline")
    at.session_state[lab_timeline._FOLLOWED] = key
    at.run()  # one run: AppTest's next would be on the page that it knows of
    assert not at.exception
    assert params.items() <= dict(at.query_params).items()
    assert "not understood" not in shown(at)


def test_a_click_opens_an_entry_or_follows_its_link(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen, state = [], {}
    monkeypatch.setattr(lab_timeline, "choose_in_section", lambda section, **values: chosen.append(values))
    monkeypatch.setattr(st, "session_state", state)
    lab_timeline._take(TimelinePick("luong", False))
    assert (chosen, state) == ([{"entry": "luong"}], {})
    lab_timeline._take(TimelinePick("luong", True))
    assert state == {lab_timeline._FOLLOWED: "luong"}
