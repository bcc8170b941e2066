"""The Lab's left column: its sections, and the sentence that sections share."""

from __future__ import annotations

import streamlit as st

from dashboard import lab_sections
from dashboard.frame import heading, note
from dashboard.lab_choices import DEFAULT_TEXT, SECTIONS, TEXT_CHARACTERS, uses_text
from dashboard.selection import bound, choose_lab, current

SECTION_KEY = "lab_section"
TEXT_KEY = "lab_text"


def show() -> None:
    """The sections, and the sentence where the open one reads it."""
    choices = current().lab
    heading("Lab")
    st.radio(
        "Section",
        SECTIONS,
        **bound(SECTION_KEY, choices.section, default="index", start=SECTIONS.index(choices.section)),
        format_func=lambda section: lab_sections.SECTION_PAGES[section].title,
        on_change=lambda: choose_lab(section=st.session_state[SECTION_KEY]),
        label_visibility="collapsed",
    )
    if uses_text(choices):
        heading("Sentence")
        st.text_area(
            "Sentence",
            **bound(TEXT_KEY, choices.text),
            height=90,
            max_chars=TEXT_CHARACTERS,
            placeholder=DEFAULT_TEXT,
            on_change=lambda: choose_lab(text=st.session_state[TEXT_KEY]),
            label_visibility="collapsed",
        )
    for line in lab_sections.SECTION_PAGES[choices.section].about:
        note(line)
    note("Numbers are computed while you watch, unless they say where they were measured.")
