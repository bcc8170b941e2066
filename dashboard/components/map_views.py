"""The components for matrices, for maps over a picture, and for a text coloured by scores.

As in ``text_views``, the ``checked_*`` functions keep of what a browser says only what fits the blob that was shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from dashboard.components.mount import Callback, Height, mount, without_echo
from dashboard.components.text_views import is_index
from dashboard.figures import read_header

SCALES = ("linear", "sqrt")


def matrix_view(
    payload: bytes, *, key: str, height: Height = "content", on_change: Callback | None = None
) -> dict[str, Any]:
    """One matrix of weights, queries down and keys across.

    Args:
        payload: of ``dashboard.figures.matrix_view_payload``.
        key: of the mount.
        height: of its frame.
        on_change: called before the next run when the user zoomed, selected a cell or changed the scale.
    Returns:
        What the user chose inside the component: ``zoom`` [row start, row stop, column start, column stop] or None,
        ``selected`` [row, column] or None (both in positions of the whole matrix), ``scale`` "linear" or "sqrt";
        empty until the user chose something.
    """
    header, _ = read_header(payload)
    said = matrix_view_state(header, key=key)
    sent = without_echo(payload, said or None, key=key)
    result = mount("matrix_view", sent, key=key, height=height, callbacks={"view": on_change})
    return checked_matrix_view(result.get("view"), header)


def matrix_view_state(header: Mapping[str, Any], *, key: str) -> dict[str, Any]:
    """The component's state before it is mounted, checked against the header of the blob to show."""
    return checked_matrix_view(_state(key).get("view"), header)


def checked_matrix_view(said: object, header: Mapping[str, Any]) -> dict[str, Any]:
    """The known entries of a matrix view's state that fit the blob; zoom and cell only for the same input.

    Args:
        said: what came from the browser.
        header: of the blob (``size``, ``input``).
    """
    if not isinstance(said, Mapping):
        return {}
    state: dict[str, Any] = {}
    same_input = said.get("input") == header["input"]
    if "zoom" in said:
        state["zoom"] = _checked_zoom(said["zoom"], header["size"]) if same_input else None
    if "selected" in said:
        state["selected"] = _checked_place(said["selected"], header["size"]) if same_input else None
    if said.get("scale") in SCALES:
        state["scale"] = said["scale"]
    return state


def patch_map(
    payload: bytes, *, key: str, height: Height = "content", on_change: Callback | None = None
) -> dict[str, Any]:
    """A picture with one map over it, or several side by side.

    Args:
        payload: of ``dashboard.figures.patch_map_payload``.
        key: of the mount.
        height: in pixels; many panels scroll within it.
        on_change: called before the next run when the user chose a patch or a panel or changed the drawing; read
            ``patch_map_state`` there.
    Returns:
        ``panel``: index of a panel in the one run after its title was clicked, else None. Once the user has chosen
        them: ``patch`` [row, column] or None for CLS; ``opacity``, ``smooth``, ``shared_scale``.
    """
    header, _ = read_header(payload)
    said = patch_map_state(header, key=key)
    drawn = {
        ("marked" if name == "patch" else name): value for name, value in said.items() if name != "panel"
    }
    sent = without_echo(payload, {**header["state"], **drawn} if drawn else None, key=key)
    callbacks = {"patch": on_change, "panel": on_change, "view": on_change}
    result = mount("patch_map", sent, key=key, height=height, callbacks=callbacks)
    return checked_patch_map(result, header)


def patch_map_state(header: Mapping[str, Any], *, key: str) -> dict[str, Any]:
    """The component's state before it is mounted, checked against the header of the blob to show."""
    return checked_patch_map(_state(key), header)


def checked_patch_map(said: object, header: Mapping[str, Any]) -> dict[str, Any]:
    """The known entries of what a patch map said that fit the blob; a patch only for the same picture and grid.

    Args:
        said: what came from the browser: ``patch`` {``at``, ``input``}, ``panel``, ``view``.
        header: of the blob (``grid``, ``titles``, ``back``, ``input``).
    """
    state: dict[str, Any] = {"panel": None}
    if not isinstance(said, Mapping):
        return state
    if is_index(said.get("panel"), len(header["titles"])):
        state["panel"] = said["panel"]
    patch = said.get("patch")
    if isinstance(patch, Mapping) and "at" in patch and patch.get("input") == header["input"]:
        place = _checked_place(patch["at"], header["grid"])
        if place is not None or (patch["at"] is None and header["back"]):
            state["patch"] = place
    view = said.get("view")
    if isinstance(view, Mapping):
        state.update(
            {name: view[name] for name in ("smooth", "shared_scale") if isinstance(view.get(name), bool)}
        )
        if _is_number(view.get("opacity")):
            state["opacity"] = min(max(float(view["opacity"]), 0.0), 1.0)
    return state


def token_strip(
    payload: bytes,
    *,
    key: str,
    height: int | Literal["content"] = "content",
    on_change: Callback | None = None,
) -> dict[str, Any]:
    """A text whose tokens are coloured by a score.

    Args:
        payload: of ``dashboard.figures.token_strip_payload``.
        key: of the mount.
        height: in pixels; by default as high as the text is.
        on_change: called before the next run when the user chose a token or changed the scale.
    Returns:
        ``token``: index of a token in the one run after it was chosen, else None; ``scale`` once the user has
        chosen it.
    """
    header, _ = read_header(payload)
    callbacks = {"token": on_change, "view": on_change}
    result = mount("token_strip", payload, key=key, height=height, callbacks=callbacks)
    return checked_token_strip(result, header)


def checked_token_strip(said: object, header: Mapping[str, Any]) -> dict[str, Any]:
    """The known entries of what a token strip said that fit the blob; a token only for the same input."""
    state: dict[str, Any] = {"token": None}
    if not isinstance(said, Mapping):
        return state
    chosen, view = said.get("token"), said.get("view")
    if (
        isinstance(chosen, Mapping)
        and chosen.get("input") == header["input"]
        and is_index(chosen.get("index"), len(header["tokens"]))
    ):
        state["token"] = chosen["index"]
    if isinstance(view, Mapping) and view.get("scale") in SCALES:
        state["scale"] = view["scale"]
    return state


def _state(key: str) -> Mapping[str, Any]:
    """What a mounted component has said so far."""
    import streamlit as st

    state = st.session_state.get(key)
    return state if isinstance(state, Mapping) else {}


def _checked_place(place: object, size: list[int]) -> list[int] | None:
    """[row, column] within ``size``, else None."""
    if isinstance(place, list) and len(place) == 2 and all(map(is_index, place, size)):
        return list(place)
    return None


def _checked_zoom(zoom: object, size: list[int]) -> list[int] | None:
    """[row start, row stop, column start, column stop] within ``size``, else None."""
    if not isinstance(zoom, list) or len(zoom) != 4:
        return None
    limits = (size[0], size[0] + 1, size[1], size[1] + 1)
    if not all(map(is_index, zoom, limits)):
        return None
    return list(zoom) if zoom[0] < zoom[1] and zoom[2] < zoom[3] else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
