"""The component of a contrast of attention distributions.

As in ``text_views``, the ``checked_*`` function keeps of what a browser says only what fits the blob that was shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from analysis.visible_contrast import ROW_TOLERANCE
from dashboard.components.mount import Callback, Height, mount, without_echo
from dashboard.components.text_views import is_index
from dashboard.figures import read_header


def attention_contrast(
    payload: bytes, *, key: str, height: Height = "content", on_change: Callback | None = None
) -> dict[str, Any]:
    """Other attention over the same positions, beside the observed one, and what the model says with it.

    Args:
        payload: of ``dashboard.contrast_payload.attention_contrast_payload``.
        key: of the mount.
        height: of its frame.
        on_change: called before the next run when the user chose a candidate or changed weights by hand; read
            ``contrast_state`` there.
    Returns:
        as ``checked_contrast``.
    """
    header, _ = read_header(payload)
    said = contrast_state(header, key=key)
    drawn = {**header["state"], "shown": said["shown"]} if "shown" in said else None
    sent = without_echo(payload, drawn, key=key)
    callbacks = {"view": on_change, "edit": on_change}
    result = mount("attention_contrast", sent, key=key, height=height, callbacks=callbacks)
    return checked_contrast(result, header)


def contrast_state(header: Mapping[str, Any], *, key: str) -> dict[str, Any]:
    """The component's state before it is mounted, checked against the header of the blob to show."""
    import streamlit as st

    return checked_contrast(st.session_state.get(key), header)


def checked_contrast(said: object, header: Mapping[str, Any]) -> dict[str, Any]:
    """The known entries of what a contrast said that fit the blob, and only if they are about such positions.

    Args:
        said: what came from the browser: ``view`` {``input``, ``shown``, ``turn``}, ``edit`` {``input``, ``weights``,
            ``turn``}; the larger ``turn`` is the newer.
        header: of the blob (``positions``, ``candidates``, ``input``).
    Returns:
        ``weights``: the distribution that the user made by hand last, renormalised; ``shown``: index of the
        candidate that the user chose, left out where the user made weights since: then these are to be shown.
    """
    state: dict[str, Any] = {}
    if not isinstance(said, Mapping):
        return state
    view, edit = (_about(said.get(event), header) for event in ("view", "edit"))
    weights = None if edit is None else _checked_weights(edit.get("weights"), header["positions"])
    if weights is not None:
        state["weights"] = weights
    older = weights is not None and _turn(view) < _turn(edit)
    if view is not None and not older and is_index(view.get("shown"), len(header["candidates"])):
        state["shown"] = view["shown"]
    return state


def _about(event: object, header: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What was said, if it is about the positions of this blob."""
    if isinstance(event, Mapping) and event.get("input") == header["input"]:
        return event
    return None


def _turn(event: Mapping[str, Any] | None) -> float:
    turn = 0 if event is None else event.get("turn", 0)
    return float(turn) if _is_number(turn) else 0.0


def _checked_weights(weights: object, positions: int) -> list[float] | None:
    """A distribution over that many positions, else None."""
    if not isinstance(weights, list) or len(weights) != positions:
        return None
    if not all(_is_number(weight) and weight >= 0 for weight in weights):
        return None
    total = math.fsum(weights)
    if abs(total - 1) > ROW_TOLERANCE:
        return None
    return [weight / total for weight in weights]


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 2**63 and math.isfinite(value)
