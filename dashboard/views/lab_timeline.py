"""The timeline: the history of attention, each work linked to the mechanism that runs it here."""

from __future__ import annotations

import streamlit as st

from dashboard.components.story_views import TimelinePick, timeline_view
from dashboard.lab_choices import LabChoices
from dashboard.lab_sections import LabFigure
from dashboard.lab_widgets import switch_of
from dashboard.selection import choose_in_section, follow
from dashboard.story_payload import timeline_payload
from dashboard.timeline_links import TARGETS, addresses, query

_FOLLOWED = "lab_timeline_followed"


def tools(choices: LabChoices) -> None:
    """Which works are shown."""
    from analysis.lab.timeline import THEMES

    switch_of("timeline", "theme", "Theme", dict([("all", "All"), *THEMES.items()]))


def show(choices: LabChoices) -> tuple[LabFigure, ...]:
    """The works by year and theme; a link that was followed opens its page."""
    from analysis.lab.timeline import timeline

    followed = st.session_state.pop(_FOLLOWED, None)
    if followed is not None:
        _open(followed)
    chosen = choices.timeline
    view = timeline(addresses(), theme=chosen.theme, entry=chosen.entry)
    timeline_view(timeline_payload(view), key="lab_timeline_view", on_pick=_take)
    return (
        LabFigure(
            "Timeline",
            view,
            input="the history of attention",
            method="titles, authors and years looked up; docs/mechanisms/history.md",
            settings={"theme": chosen.theme, "entry": view.selected},
            notes=view.notes,
        ),
    )


def _take(pick: TimelinePick) -> None:
    """Open an entry, or what its link leads to."""
    if pick.follow:
        st.session_state[_FOLLOWED] = pick.entry
    else:
        choose_in_section("timeline", entry=pick.entry)


def _open(key: str) -> None:
    """Go where the link of an entry leads, in this session."""
    target = TARGETS[key]
    follow(query(target), target.page)
    if target.page == "lab":
        st.rerun()  # all of the page: the sidebar shows the section too
    st.switch_page(f"views/{target.page}.py")
