"""Widgets of the Lab's sections: each is bound to one choice of one section, which also says what it may be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import streamlit as st

from dashboard.lab_choices import Section, kind_of
from dashboard.selection import bound, bound_choice, choose_in_section, current


def _given(section: Section, name: str) -> tuple[str, Any]:
    """Key of a choice's widget, and its value."""
    return f"lab_{section}_{name}", getattr(getattr(current().lab, section), name)


def _take(section: Section, name: str, key: str) -> None:
    choose_in_section(section, **{name: st.session_state[key]})


def choice_of(
    section: Section,
    name: str,
    label: str,
    *,
    words: Mapping[str, str] | None = None,
    options: Sequence[Any] | None = None,
    say: Callable[[Any], str] = str,
    width: int = 180,
    help: str | None = None,
) -> None:
    """A compact select box for a choice between names (or, with ``options``, between some numbers).

    Args:
        words: what each option is called; else ``say`` tells.
        options: fewer or other options than the choice's own. A value beyond the end of a range is shown as its end,
            which is what sections take.
    """
    key, value = _given(section, name)
    offered = list(words or options or kind_of(getattr(current().lab, section), name).options)
    if isinstance(options, range) and len(offered) > 1:  # one: the model that tells the end is not loaded yet
        value = min(max(value, offered[0]), offered[-1])
    if value not in offered:
        offered = [value, *offered]
    st.selectbox(
        label,
        offered,
        **bound_choice(key, value, offered),
        format_func=lambda option: (words or {}).get(option, say(option)),
        on_change=partial(_take, section, name, key),
        label_visibility="collapsed",
        width=width,
        help=help,
    )


def index_of(section: Section, name: str, count: int, *, width: int = 110) -> None:
    """A layer or a head, from 0, among so many; one beyond the end is shown as the last."""
    choice_of(
        section,
        name,
        name.capitalize(),
        options=range(count),
        say=lambda index: f"{name} {index}",
        width=width,
    )


def switch_of(section: Section, name: str, label: str, words: Mapping[str, str]) -> None:
    """A segmented control for a choice between a few names."""
    key, value = _given(section, name)
    st.segmented_control(
        label,
        list(words),
        **bound(key, value, default="default"),
        format_func=words.__getitem__,
        on_change=partial(_take, section, name, key),
        required=True,
        label_visibility="collapsed",
    )


def several_of(section: Section, name: str, label: str, words: Mapping[str, str]) -> None:
    """Pills for several of some names."""
    key, value = _given(section, name)

    def take() -> None:
        chosen = st.session_state[key] or []
        choose_in_section(section, **{name: tuple(option for option in words if option in chosen)})

    st.pills(
        label,
        list(words),
        **bound(key, list(value), default="default"),
        format_func=words.__getitem__,
        selection_mode="multi",
        on_change=take,
        label_visibility="collapsed",
    )


def slider_of(
    section: Section,
    name: str,
    label: str,
    *,
    low: float | None = None,
    high: float | None = None,
    step: float | None = None,
    format: str | None = None,
    width: int = 220,
    help: str | None = None,
    disabled: bool = False,
) -> None:
    """A slider for a number, between its own ends or nearer ones; shows the nearest value that it can."""
    key, value = _given(section, name)
    ends = kind_of(getattr(current().lab, section), name).options
    low, high = ends[0] if low is None else low, ends[1] if high is None else high
    number = type(value)
    shown = number(min(max(value, low), high))
    if high <= low:
        st.slider(label, 0, 1, 0, key=f"{key}_only", width=width, disabled=True, help=help)
        return
    st.slider(
        label,
        number(low),
        number(high),
        **bound(key, shown),
        step=number(step) if step is not None else None,
        format=format,
        on_change=partial(_take, section, name, key),
        width=width,
        help=help,
        disabled=disabled,
    )


def toggle_of(section: Section, name: str, label: str, *, help: str | None = None) -> None:
    """A switch for yes or no."""
    key, value = _given(section, name)
    st.toggle(label, **bound(key, value), on_change=partial(_take, section, name, key), help=help)


def text_of(
    section: Section,
    name: str,
    label: str,
    *,
    placeholder: str = "",
    width: int | str = "stretch",
    help: str | None = None,
) -> None:
    """A line of text."""
    key, value = _given(section, name)
    st.text_input(
        label,
        **bound(key, value),
        max_chars=kind_of(getattr(current().lab, section), name).options[0],
        placeholder=placeholder,
        on_change=partial(_take, section, name, key),
        width=width,  # type: ignore[arg-type]
        help=help,
    )
