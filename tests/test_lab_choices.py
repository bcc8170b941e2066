"""Choices of the Lab: links there and back for every field of every section, and what a link may not say."""

from __future__ import annotations

import string
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard.lab_choices import (
    DEFAULT_TEXT,
    SECTIONS,
    TEXT_CHARACTERS,
    LabChoices,
    kind_of,
    lab_params,
    read_lab,
    uses_text,
)
from dashboard.lab_sections import SECTION_PAGES
from dashboard.selection import default_selection, from_query, to_query


def values(record: Any, name: str) -> st.SearchStrategy[Any]:
    """Any value that a field may have."""
    start, options = getattr(record, name), kind_of(record, name).options
    if isinstance(start, bool):
        return st.booleans()
    if isinstance(start, int):
        return st.integers(*options)
    if isinstance(start, float):
        return st.floats(*options).map(lambda number: round(number, 6))
    if isinstance(start, tuple):
        return st.sets(st.sampled_from(options)).map(
            lambda chosen: tuple(name for name in options if name in chosen)
        )
    if len(options) == 1:
        return st.text(st.characters(codec="utf-8"), max_size=options[0])
    return st.sampled_from(options)


@st.composite
def lab_choices(draw: st.DrawFn) -> LabChoices:
    section = draw(st.sampled_from(SECTIONS))
    record = getattr(LabChoices(), section)
    changed = {item.name: draw(values(record, item.name)) for item in fields(record)}
    text = draw(st.text(st.characters(codec="utf-8"), max_size=TEXT_CHARACTERS))
    found: Any = {"section": section, section: replace(record, **changed), "text": text}
    return LabChoices(**found)


@given(lab_choices())
def test_a_lab_link_reopens_the_same_section(choices):
    start = default_selection()
    reopened = from_query(to_query(replace(start, lab=choices), "lab"), start, "lab")
    assert reopened.notes == ()
    kept = choices.text if uses_text(choices) else start.lab.text
    assert reopened.lab == replace(choices, text=kept)
    assert (reopened.text, reopened.image) == (start.text, start.image)


def test_a_link_says_only_what_is_not_as_it_starts():
    assert lab_params(LabChoices()) == {"section": "formula"}
    changed = replace(LabChoices(), section="scale", scale=replace(LabChoices().scale, width=128))
    assert lab_params(changed) == {"section": "scale", "width": "128"}


@given(st.dictionaries(st.text(string.ascii_lowercase, max_size=9), st.text(max_size=40), max_size=8))
def test_any_link_gives_choices_that_are_allowed(params):
    found, _ = read_lab(LabChoices(), params)
    record = getattr(found, found.section)
    for item in fields(record):
        kind = kind_of(record, item.name)
        assert kind.read(kind.write(getattr(record, item.name))) == getattr(record, item.name)


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        ("formula", "layer", "-1"),
        ("formula", "layer", "1.5"),
        ("formula", "layer", "٣"),
        ("formula", "factor", "nan"),
        ("formula", "factor", "1e3"),
        ("formula", "temperature", "0"),
        ("formula", "causal", "true"),
        ("formula", "part", "weights; drop"),
        ("formula", "t", "x" * (TEXT_CHARACTERS + 1)),
        ("masks", "rules", "causal,causal"),
        ("masks", "rules", "causal,everything"),
        ("masks", "width", "3"),
        ("scale", "layer", "1"),
        ("nowhere", "section", "nowhere"),
    ],
)
def test_what_a_lab_link_may_not_say_is_left_out_and_named(section, name, value):
    start = LabChoices()
    found, bad = read_lab(start, {"section": section, name: value})
    assert bad == (name,)
    assert found == replace(start, section=found.section)


def test_a_link_leaves_other_sections_and_the_sentence_that_it_does_not_read():
    before = replace(LabChoices(), text="my own", scale=replace(LabChoices().scale, width=3))
    found, _ = read_lab(before, {"section": "timeline"})
    assert (found.scale, found.text) == (before.scale, "my own")
    asked, _ = read_lab(before, {"section": "formula", "numbers": "model"})
    assert asked.text == DEFAULT_TEXT


def test_every_section_has_a_page():
    assert tuple(SECTION_PAGES) == SECTIONS
    for page in SECTION_PAGES.values():
        assert page.question
        assert page.title


@pytest.mark.parametrize(
    ("section", "changes", "reads"),
    [
        ("heads", {"numbers": "model"}, True),
        ("heads", {"numbers": "model", "show": "cache"}, False),
        ("variants", {"numbers": "model"}, True),
        ("variants", {"numbers": "model", "show": "cost"}, False),
        ("variants", {"numbers": "random"}, False),
        ("pipeline", {}, True),
        ("scale", {}, False),
    ],
)
def test_the_sentence_is_asked_for_where_it_is_read(section, changes, reads):
    record = replace(getattr(LabChoices(), section), **changes)
    found: Any = {"section": section, section: record}
    assert uses_text(LabChoices(**found)) is reads
