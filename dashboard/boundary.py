"""One boundary a page: a known error becomes a plain sentence, an unknown one a reference to the log.

No traceback reaches the page and no choice is lost: the sidebar and the selection stand outside the boundary.
"""

from __future__ import annotations

import logging
import re
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import streamlit as st

from analysis.errors import ModelUnavailableError
from dashboard.evidence_jobs import Pending
from dashboard.frame import literal
from dashboard.selection import current

_log = logging.getLogger(__name__)

_KNOWN = (
    ("attn_core.errors", "UnsupportedModelError"),
    ("attn_core.errors", "MemoryBudgetError"),
    ("analysis.images", "PictureError"),
)
"""Errors that say in their own words what is wrong and what to do; looked up by name, so that no module is imported
(the first ones would bring torch)."""

_OUR_GRAMMAR = re.compile(r"(load_model|encode_\w+|trace|capture|rollout)[\w.]*: ")
"""How a ``ValueError`` of ours begins that says what is wrong with a model or an input."""

_NOTE = "reference "


def known_sentence(error: BaseException) -> str | None:
    """What a known error says, in one plain sentence; None for an error that nobody foresaw."""
    classes = (getattr(sys.modules.get(module), name, None) for module, name in _KNOWN)
    if isinstance(error, (TimeoutError, ModelUnavailableError, *filter(None, classes))):
        return _plain(str(error))
    if isinstance(error, ValueError) and _OUR_GRAMMAR.match(str(error)):
        return _plain(str(error))
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "There is not enough memory for this; choose a shorter text, a smaller picture or a smaller model."
    return None


def tell_error(error: BaseException, *, what: str) -> None:
    """Show an error on the page; one that nobody foresaw goes to the log with a reference.

    Args:
        what: what could not be done, such as "This view could not be drawn".
    """
    sentence = known_sentence(error)
    if sentence is not None:
        st.error(f"{what}. {literal(sentence)}", icon=":material/error:")
        return
    reference = _reference(error, what)
    st.error(
        f"{what}, because of a fault in the program. Your choices are kept: try another view or input. "
        f"The server's log tells more under the reference {reference}.",
        icon=":material/error:",
    )


def _reference(error: BaseException, what: str) -> str:
    """The reference under which the log tells of an error; written there once, however often a page shows it."""
    notes: list[str] = getattr(error, "__notes__", [])
    known = next((note.removeprefix(_NOTE) for note in notes if note.startswith(_NOTE)), None)
    if known is not None:
        return known
    reference = uuid.uuid4().hex[:8]
    error.add_note(_NOTE + reference)
    _log.error("%s (reference %s)", what, reference, exc_info=error)
    return reference


@contextmanager
def page_boundary(what: str = "This view could not be drawn") -> Iterator[None]:
    """Catch what a page or a fragment raises and tell it there; what is still being computed shows how far it is.

    Inside, one answer may take what the session allows.
    """
    try:
        with _session_budget():
            yield
    except Pending as pending:
        pending.show()
    except Exception as error:  # noqa: BLE001 - the one boundary of a page; nothing is hidden, it is told and logged
        tell_error(error, what=what)


@contextmanager
def _session_budget() -> Iterator[None]:
    """The session's memory budget, as soon as anything could be computed (importing it brings torch)."""
    budget = sys.modules.get("attn_core.budget")
    if not hasattr(budget, "memory_budget"):  # not imported, or not yet to its end
        yield
        return
    with budget.memory_budget(current().memory_mib * 2**20):  # type: ignore[union-attr]
        yield


def _plain(message: str) -> str:
    """The message without the name of the function that raised it."""
    text = re.sub(r"^[a-z_.]+: ", "", message)
    return text[:1].upper() + text[1:]
