"""The component of translators at work.

As in ``text_views``, the ``checked_*`` function keeps of what a browser says only what fits the blob that was shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dashboard.components.mount import Callback, Height, mount, without_echo
from dashboard.components.text_views import is_index
from dashboard.figures import read_header


def alignment(
    payload: bytes, *, key: str, height: Height = "content", on_change: Callback | None = None
) -> int | None:
    """Translations side by side, walked step by step in the browser.

    Args:
        payload: of ``dashboard.alignment_payload.alignment_payload``.
        key: of the mount.
        height: of its frame.
        on_change: called before the next run when the walk has stopped; read ``alignment_state`` there.
    Returns:
        the step at which it has stopped; None before the user walked.
    """
    header, _ = read_header(payload)
    said = alignment_state(header, key=key)
    sent = without_echo(payload, None if said is None else {"step": said}, key=key)
    result = mount("alignment", sent, key=key, height=height, callbacks={"view": on_change})
    return checked_alignment(result, header)


def alignment_state(header: Mapping[str, Any], *, key: str) -> int | None:
    """The component's step before it is mounted, checked against the header of the blob to show."""
    import streamlit as st

    return checked_alignment(st.session_state.get(key), header)


def checked_alignment(said: object, header: Mapping[str, Any]) -> int | None:
    """The step that a browser said, if it is one of these translations.

    Args:
        said: what came from the browser: ``view`` {``input``, ``step``}.
        header: of the blob (``panels``, ``input``).
    """
    view = said.get("view") if isinstance(said, Mapping) else None
    if not isinstance(view, Mapping) or view.get("input") != header["input"]:
        return None
    steps = max((len(panel["target"]) for panel in header["panels"]), default=0)
    step: Any = view.get("step")
    return step if is_index(step, steps + 1) else None
