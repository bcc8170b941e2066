"""The large area of the Lab: the open section's question, its tools, its figures, Export and the documentation."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import streamlit as st

from dashboard.boundary import page_boundary
from dashboard.export_menu import export_menu
from dashboard.frame import title_line
from dashboard.lab_sections import SECTION_PAGES, LabFigure, SectionPage
from dashboard.provenance import provenance
from dashboard.selection import current, take_notes, to_query, write_link

DOCUMENTS = Path(__file__).resolve().parents[2] / "docs" / "mechanisms"
_LINK = re.compile(r"\[([^\]]+)\]\((?!https?://)[^)]*\)")


@st.fragment
def workspace() -> None:
    """Draw the open section."""
    with page_boundary("This section could not be drawn"):
        choices = current().lab
        page = SECTION_PAGES[choices.section]
        for sentence in take_notes():
            st.info(sentence, icon=":material/info:")
        with st.container(horizontal=True, vertical_alignment="center", key="lab_head"):
            title_line([page.question])
            st.button(
                "Read more",
                key="lab_read",
                icon=":material/menu_book:",
                on_click=_open_document,
                help=f"docs/mechanisms/{page.document}",
            )
            export_place = st.container(key="lab_export_place", width="content")
        if st.session_state.pop("lab_reading", False):
            _document(page)
        with st.container(horizontal=True, vertical_alignment="bottom", key="lab_tools"):
            page.part("tools")(choices)
        figures: tuple[LabFigure, ...] = page.part("show")(current().lab)
        if figures:
            with export_place:
                _export(figures)
        write_link("lab")


def _export(figures: tuple[LabFigure, ...]) -> None:
    """The Export menu of the section's figure, or of the one that is chosen among several."""
    section = current().lab.section
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        chosen = figures[0]
        if len(figures) > 1:
            named = {figure.name: figure for figure in figures}
            key = f"lab_{section}_exported"
            if st.session_state.get(key) not in named:
                st.session_state[key] = figures[0].name
            st.selectbox(
                "What to export",
                list(named),
                key=key,
                label_visibility="collapsed",
                width=170,
                help="What to export",
            )
            chosen = named[st.session_state[key]]
        record = provenance(
            model="AttnScope Lab",
            revision="",
            input=chosen.input,
            layer="",
            heads="",
            method=chosen.method,
            settings=chosen.settings,
            notes=chosen.notes,
        )
        export_menu(
            chosen.figure, record, key="lab_export", name=f"lab-{section}", query=to_query(current(), "lab")
        )


def _open_document() -> None:
    st.session_state["lab_reading"] = True


@st.dialog("Documentation", width="large")
def _document(page: SectionPage) -> None:
    """A page of the documentation, formulas set; what it links to in the repository is named."""
    st.markdown(_text(page.document))
    st.caption(f"docs/mechanisms/{page.document}")


@cache
def _text(name: str) -> str:
    try:
        text = (DOCUMENTS / name).read_text(encoding="utf-8")
    except OSError:
        return f"This installation has no docs/mechanisms/{name}; read it in the repository."
    return _LINK.sub(r"\1", text)
