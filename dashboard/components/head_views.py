"""The component of the grid of heads.

As in ``text_views``, the ``checked_*`` function keeps of what a browser says only what fits the blob that was shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dashboard.components.mount import Callback, Height, mount, without_echo
from dashboard.components.text_views import is_index
from dashboard.figures import read_header


def head_grid(
    payload: bytes, *, key: str, height: Height = "content", on_change: Callback | None = None
) -> dict[str, Any]:
    """All heads, coloured by their class.

    Args:
        payload: of ``dashboard.heads_payload.head_grid_payload``.
        key: of the mount.
        height: of its frame.
        on_change: called before the next run when the user marked or opened a head or chose classes; read
            ``head_grid_state`` there.
    Returns:
        ``open``: [layer, head] in the one run after a head was opened, else None. Once the user has chosen them:
        ``marked`` [layer, head] or None, ``shown`` ascending indices of classes or None for all.
    """
    header, _ = read_header(payload)
    said = head_grid_state(header, key=key)
    drawn = {name: value for name, value in said.items() if name != "open"}
    sent = without_echo(payload, {**header["state"], **drawn} if drawn else None, key=key)
    callbacks = {"view": on_change, "open": on_change}
    result = mount("head_grid", sent, key=key, height=height, callbacks=callbacks)
    return checked_head_grid(result, header)


def head_grid_state(header: Mapping[str, Any], *, key: str) -> dict[str, Any]:
    """The component's state before it is mounted, checked against the header of the blob to show."""
    import streamlit as st

    return checked_head_grid(st.session_state.get(key), header)


def checked_head_grid(said: object, header: Mapping[str, Any]) -> dict[str, Any]:
    """The known entries of what a grid said that fit the blob, and only if they are about such a grid.

    Args:
        said: what came from the browser: ``view`` {``input``, ``marked``, ``shown``}, ``open`` {``input``, ``at``}.
        header: of the blob (``layers``, ``heads``, ``classes``, ``input``).
    """
    state: dict[str, Any] = {"open": None}
    if not isinstance(said, Mapping):
        return state
    opened, view = said.get("open"), said.get("view")
    if isinstance(opened, Mapping) and opened.get("input") == header["input"]:
        state["open"] = _checked_head(opened.get("at"), header)
    if not isinstance(view, Mapping) or view.get("input") != header["input"]:
        return state
    if "marked" in view:
        place = _checked_head(view["marked"], header)
        if place is not None or view["marked"] is None:
            state["marked"] = place
    if "shown" in view:
        shown, classes = view["shown"], len(header["classes"])
        if shown is None:
            state["shown"] = None
        elif isinstance(shown, list) and all(is_index(index, classes) for index in shown):
            state["shown"] = sorted(set(shown))
    return state


def _checked_head(place: object, header: Mapping[str, Any]) -> list[int] | None:
    """[layer, head] of the grid, else None."""
    sizes = (header["layers"], header["heads"])
    if isinstance(place, list) and len(place) == 2 and all(map(is_index, place, sizes)):
        return list(place)
    return None
