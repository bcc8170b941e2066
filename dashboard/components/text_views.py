"""The components for text: lines between tokens, and all heads as thumbnails.

What a component says comes from a browser and is untrusted: the ``checked_*`` functions keep only what fits the blob
that was shown.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from analysis.pairs import PAIR_FILTERS
from dashboard.components.mount import Callback, Height, mount, without_echo
from dashboard.figures import read_header


def head_view(
    payload: bytes, *, key: str, height: Height = "content", on_change: Callback | None = None
) -> dict[str, Any]:
    """Lines between two columns of tokens, for the heads of one layer.

    Args:
        payload: of ``dashboard.figures.head_view_payload``.
        key: of the mount.
        height: of its frame.
        on_change: called before the next run when the user changed something; read ``head_view_state`` there.
    Returns:
        What the user chose inside the component: ``layer``, ``heads``, ``pinned``, ``threshold``, ``filter``,
        ``hide_special`` and ``merge_words``; empty until the user chose something.
    """
    header, _ = read_header(payload)
    said = head_view_state(header, key=key)
    sent = without_echo(payload, said or None, key=key)
    result = mount("head_view", sent, key=key, height=height, callbacks={"view": on_change})
    return checked_head_view(result.get("view"), header)


def head_view_state(header: Mapping[str, Any], *, key: str) -> dict[str, Any]:
    """The component's state before it is mounted, checked against the header of the blob to show.

    A page reads it first, so that the same run already sends the layer that the browser asks for.
    """
    import streamlit as st

    state = st.session_state.get(key)
    return checked_head_view(state.get("view") if isinstance(state, Mapping) else None, header)


def checked_head_view(said: object, header: Mapping[str, Any]) -> dict[str, Any]:
    """The known entries of a head view's state that fit the blob; a pinned token only for the same input.

    Args:
        said: what came from the browser.
        header: of the blob (``layers``, ``heads``, ``left``, ``right``, ``input``).
    """
    if not isinstance(said, Mapping):
        return {}
    sizes = {"left": len(header["left"]), "right": len(header["right"] or header["left"])}
    state: dict[str, Any] = {}
    if is_index(said.get("layer"), header["layers"]):
        state["layer"] = said["layer"]
    heads = said.get("heads")
    if isinstance(heads, list) and all(is_index(head, header["heads"]) for head in heads):
        state["heads"] = sorted(set(heads))
    if "pinned" in said:
        same_input = said.get("input") == header["input"]
        state["pinned"] = _checked_pin(said["pinned"], sizes) if same_input else None
    threshold = said.get("threshold")
    if isinstance(threshold, int | float) and not isinstance(threshold, bool) and 0 <= threshold <= 1:
        state["threshold"] = float(threshold)
    if said.get("filter") in PAIR_FILTERS:  # compared, not hashed: it may be a list
        state["filter"] = said["filter"]
    state.update(
        {name: said[name] for name in ("hide_special", "merge_words") if isinstance(said.get(name), bool)}
    )
    return state


def _checked_pin(pinned: object, sizes: Mapping[str, int]) -> list[Any] | None:
    if isinstance(pinned, list) and len(pinned) == 2 and pinned[0] in ("left", "right"):
        side, index = pinned
        if is_index(index, sizes[side]):
            return [side, index]
    return None


def model_view(
    payload: bytes, *, key: str, height: Height = "content", on_change: Callback | None = None
) -> dict[str, Any]:
    """All layers and heads as thumbnails.

    Args:
        payload: of ``dashboard.figures.model_view_payload``.
        key: of the mount.
        height: of its frame.
        on_change: called before the next run when a head was opened.
    Returns:
        ``open``: {``layer``, ``head``} in the one run after the user opened a head, else None; ``shared_scale``
        once the user has changed it.
    """
    header, _ = read_header(payload)
    result = mount(
        "model_view", payload, key=key, height=height, callbacks={"open": on_change, "view": on_change}
    )
    return checked_model_view(result, header)


def checked_model_view(said: object, header: Mapping[str, Any]) -> dict[str, Any]:
    """The known entries of what a model view said that fit the blob."""
    state: dict[str, Any] = {"open": None}
    if not isinstance(said, Mapping):
        return state
    opened, view = said.get("open"), said.get("view")
    if (
        isinstance(opened, Mapping)
        and is_index(opened.get("layer"), header["layers"])
        and is_index(opened.get("head"), header["shapes"][opened["layer"]][0])
    ):
        state["open"] = {"layer": opened["layer"], "head": opened["head"]}
    if isinstance(view, Mapping) and isinstance(view.get("shared_scale"), bool):
        state["shared_scale"] = view["shared_scale"]
    return state


def is_index(value: object, size: int) -> bool:
    """Whether a value is a whole number (and no truth value) from 0 to below ``size``."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < size
