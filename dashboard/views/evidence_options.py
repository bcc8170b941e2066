"""What may be chosen of each method of evidence: the popover beside the methods, and what it says in words."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import streamlit as st

from dashboard.evidence_choices import EvidenceChoices, MethodOptions, Options, Value, with_option
from dashboard.frame import heading
from dashboard.selection import bound, bound_choice, choose_evidence, current

if TYPE_CHECKING:
    from analysis.evidence.methods import Method, Option
    from analysis.evidence.passes import ForwardPass

Page = Literal["text", "image"]

ITSELF = ""
"""Of a select box: the value None, which Streamlit takes for an empty box."""

CONTROL_WIDTH = 150


def fitted_options(options: MethodOptions, run: ForwardPass) -> MethodOptions:
    """The options that there are for this model and input, in the order of the methods; defaults are left out."""
    from analysis.evidence.methods import METHODS, options_of

    asked, found = dict(options), []
    for method in (METHODS[key] for key in METHODS if key in asked):
        own = dict(asked[method.key])
        accepted = ((option.key, option.accepted(own.get(option.key))) for option in options_of(method, run))
        kept = tuple((key, value) for key, value in accepted if value is not None)
        if kept:
            found.append((method.key, kept))
    return tuple(found)


def option_words(method: Method, options: Options) -> str:
    """What was chosen of a method, as "Layer 3, head 5."; "" where all is as it has it."""
    known = {option.key: option for option in method.options}
    told = ", ".join(
        known[key].told.format(known[key].words(value)) for key, value in options if key in known
    )
    return f"{told[:1].upper()}{told[1:]}." if told else ""


def option_tools(
    page: Page, choices: EvidenceChoices, methods: Sequence[str], run: ForwardPass
) -> MethodOptions:
    """The popover with the options of the chosen methods; returns those that differ from the defaults.

    Options that the model or the input does not have are dropped from the selection.
    """
    from analysis.evidence.methods import METHODS, options_of

    found = fitted_options(choices.options, run)
    if found != choices.options:
        choose_evidence(page, options=found)
    groups = [(METHODS[key], offered) for key in methods if (offered := options_of(METHODS[key], run))]
    if not groups:
        return found
    key = f"{page}_evidence_options"
    with st.popover("Options", icon=":material/tune:", key=key):
        for method, offered in groups:
            chosen = dict(dict(found).get(method.key, ()))
            heading(method.title, method.claims)
            with st.container(horizontal=True, gap="small", key=f"{key}_{method.key}"):
                for option in offered:
                    _control(page, method.key, option, chosen.get(option.key, option.default))
        if found:
            st.button(
                "Reset",
                key=f"{key}_reset",
                on_click=partial(choose_evidence, page, options=()),
                help="Every option of every method as it was",
            )
    return found


def _control(page: Page, method: str, option: Option, value: Value | None) -> None:
    """One option as a box of choices or of a number."""
    key = f"{page}_evidence_option_{method}_{option.key}"
    settings: dict[str, Any] = {
        "on_change": partial(_picked, page, method, option, key),
        "help": option.help,
        "width": CONTROL_WIDTH,
    }
    if option.kind in ("integer", "number"):
        kind = int if option.kind == "integer" else float
        st.number_input(
            option.title,
            kind(option.lowest),
            kind(option.highest),
            step=kind(option.step),
            format="%d" if kind is int else "%.2f",
            **bound(key, value),
            **settings,
        )
        return
    offers = [ITSELF if offer is None else offer for offer in _offers(option)]
    st.selectbox(
        option.title,
        offers,
        format_func=lambda offer: option.words(None if offer == ITSELF else offer),
        **bound_choice(key, ITSELF if value is None else value, offers),
        **settings,
    )


def _offers(option: Option) -> list[Value | None]:
    named = [value for value, _ in option.values]
    return named if option.kind == "choice" else [*named, *range(int(option.lowest), int(option.highest) + 1)]


def _picked(page: Page, method: str, option: Option, key: str) -> None:
    said = st.session_state[key]
    value = option.accepted(None if said == ITSELF else said)
    options: MethodOptions = getattr(current(), page).evidence.options
    choose_evidence(page, options=with_option(options, method, option.key, value))
