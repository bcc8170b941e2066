"""The components of the Evidence views: maps over a picture, and coloured words.

As in ``text_views``, the ``checked_*`` functions keep of what a browser says only what fits the blob that was shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dashboard.components.mount import Callback, mount, without_echo
from dashboard.components.text_views import is_index
from dashboard.figures import read_header

SWITCHES = ("positive", "smooth", "grey")


def evidence_maps(payload: bytes, *, key: str, on_change: Callback | None = None) -> dict[str, Any]:
    """Maps over a picture, a card a method; as high as its cards.

    Args:
        payload: of ``dashboard.evidence_payload.evidence_maps_payload``.
        key: of the mount.
        on_change: called before the next run when the user marked a patch or changed the drawing; read
            ``evidence_state`` there.
    Returns:
        once the user has chosen them: ``marked`` [row, column] or None, ``opacity``, ``positive``, ``smooth``,
        ``grey``.
    """
    return _mounted("evidence_maps", payload, key=key, events=("patch", "view"), on_change=on_change)


def evidence_words(payload: bytes, *, key: str, on_change: Callback | None = None) -> dict[str, Any]:
    """Coloured words, a row a method.

    Args:
        payload: of ``dashboard.evidence_payload.evidence_words_payload``.
        key, on_change: as for ``evidence_maps``.
    Returns:
        once the user has chosen them: ``marked`` (index) or None, ``positive``.
    """
    return _mounted("evidence_words", payload, key=key, events=("word", "view"), on_change=on_change)


def _mounted(
    name: str, payload: bytes, *, key: str, events: tuple[str, ...], on_change: Callback | None
) -> dict[str, Any]:
    header, _ = read_header(payload)
    said = evidence_state(header, key=key)
    sent = without_echo(payload, {**header["state"], **said} if said else None, key=key)
    result = mount(name, sent, key=key, height="content", callbacks=dict.fromkeys(events, on_change))
    return checked_evidence(result, header)


def evidence_state(header: Mapping[str, Any], *, key: str) -> dict[str, Any]:
    """The component's state before it is mounted, checked against the header of the blob to show."""
    import streamlit as st

    return checked_evidence(st.session_state.get(key), header)


def checked_evidence(said: object, header: Mapping[str, Any]) -> dict[str, Any]:
    """The known entries of what an evidence view said that fit the blob; a mark only for the same input.

    Args:
        said: what came from the browser: ``patch`` {``at``, ``input``} or ``word`` {``at``, ``input``}, ``view``.
        header: of the blob (``grid`` or ``tokens``, ``input``).
    """
    state: dict[str, Any] = {}
    if not isinstance(said, Mapping):
        return state
    mark = said.get("patch" if "grid" in header else "word")
    if isinstance(mark, Mapping) and "at" in mark and mark.get("input") == header["input"]:
        place = _checked_mark(mark["at"], header)
        if place is not None or mark["at"] is None:
            state["marked"] = place
    view = said.get("view")
    if isinstance(view, Mapping):
        state.update({name: view[name] for name in SWITCHES if isinstance(view.get(name), bool)})
        opacity = view.get("opacity")
        if isinstance(opacity, int | float) and not isinstance(opacity, bool) and math.isfinite(opacity):
            state["opacity"] = min(max(float(opacity), 0.0), 1.0)
    return state


def _checked_mark(mark: object, header: Mapping[str, Any]) -> Any:
    if "grid" in header:
        fits = isinstance(mark, list) and len(mark) == 2 and all(map(is_index, mark, header["grid"]))
        return list(mark) if fits and isinstance(mark, list) else None
    return mark if is_index(mark, len(header["tokens"])) else None
