"""How a component of this folder gets into a page: its source, and one call that mounts it with a blob.

A component is a folder with ``index.js`` and ``style.css``; ``kit.js`` and ``kit.css``, which all of them use, and
what some of them share (``KITS``) are put before these. The result is one plain ES module and one style sheet, with
nothing to build. The same two make the stand-alone page of an export, so nothing in them knows Streamlit beyond the
setters that it is handed.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from dashboard.figures import read_header, with_header

COMPONENTS = Path(__file__).parent

KITS: Mapping[str, tuple[str, ...]] = {
    "model_view": ("thumbnail_kit",),
    "head_grid": ("thumbnail_kit",),
    "patch_map": ("picture_kit", "zoom_kit"),
    "evidence_maps": ("picture_kit", "zoom_kit", "evidence_kit"),
    "evidence_words": ("evidence_kit",),
    "formula": ("heat_kit",),
    "diagram": ("heat_kit",),
    "matrix_sheet": ("matrix_sheet/parts",),  # its own file
    "attention_contrast": (
        "picture_kit",
        "evidence_kit",
        "attention_contrast/parts",  # its own files
        "attention_contrast/text",
        "attention_contrast/picture",
    ),
}
"""What some components share besides the kit of all."""

Pick = TypeVar("Pick")

Callback = Callable[[], None]
Height = int | Literal["content"]
"""Pixels of a component's frame, or as much as it takes of what the window leaves it (``--view-reserve``)."""


@dataclass(frozen=True)
class ComponentFiles:
    """The source of a component: an ES module with one default export, and its styles."""

    script: str
    style: str


@functools.cache
def component_files(name: str) -> ComponentFiles:
    """Source of the component in the folder ``name``, the shared kit included."""
    kits = ("kit", *KITS.get(name, ()))
    scripts = [*(f"{kit}.js" for kit in kits), f"{name}/index.js"]
    styles = [*(f"{kit}.css" for kit in kits if (COMPONENTS / f"{kit}.css").is_file()), f"{name}/style.css"]
    return ComponentFiles(
        script="\n".join(_source(path) for path in scripts), style="\n".join(_source(path) for path in styles)
    )


def _source(path: str) -> str:
    return (COMPONENTS / path).read_text(encoding="utf-8")


def mount(
    name: str,
    payload: bytes,
    *,
    key: str,
    height: Height,
    callbacks: Mapping[str, Callback | None],
) -> Mapping[str, Any]:
    """Show a component and return what it has said, unchecked.

    Args:
        name: folder of the component.
        payload: blob of ``dashboard.figures.pack``.
        key: of the mount; with it the component keeps its state when the blob changes.
        height: of its frame.
        callbacks: for each state or trigger of the component, what to call when it changes.
    """
    return _renderer(name)(
        key=key,
        data=payload,
        height=height,
        **{f"on_{event}_change": call or _nothing for event, call in callbacks.items()},
    )


def mount_picking(
    name: str,
    payload: bytes,
    *,
    key: str,
    height: Height,
    checked: Callable[[object, Mapping[str, Any]], Pick | None],
    on_pick: Callable[[Pick], None],
) -> None:
    """Show a component in which the user picks something, and hand on what was picked before the next run.

    Args:
        name, payload, key, height: as in ``mount``.
        checked: (what the browser said, header of the blob) → the pick, or None for what does not fit the blob.
        on_pick: called with the pick.
    """
    import streamlit as st

    header, _ = read_header(payload)

    def picked() -> None:
        found = checked(st.session_state.get(key), header)
        if found is not None:
            on_pick(found)

    mount(name, payload, key=key, height=height, callbacks={"pick": picked})


def pick_about(said: object, header: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The ``pick`` that a browser said, if it is about the input of this blob."""
    pick = said.get("pick") if isinstance(said, Mapping) else None
    return pick if isinstance(pick, Mapping) and pick.get("input") == header["input"] else None


def without_echo(payload: bytes, said: Mapping[str, Any] | None, *, key: str) -> bytes:
    """The blob that was sent last, when the new one only repeats to the component what the component itself said.

    The choices to start with stand in the blob's header. When the app follows a click inside the component, its next
    blob differs from the one before only in those choices, which the component has already drawn; sending the old
    blob again costs nothing, because Streamlit does not send an unchanged message twice.

    Args:
        payload: the new blob.
        said: the component's own state, checked, or None before it said anything.
        key: of the mount; what was sent last is remembered for it in the session.
    """
    import streamlit as st

    header, start = read_header(payload)
    content = hashlib.blake2b(payload[start:], digest_size=16)
    content.update(repr({**header, "state": None}).encode("utf-8", "backslashreplace"))
    memory = st.session_state.setdefault(f"{key}:sent", {})
    repeats = said is not None and all(said.get(name) == value for name, value in header["state"].items())
    if repeats and memory.get("content") == content.digest():
        return with_header(payload, {**header, "state": memory["state"]})
    memory.update(content=content.digest(), state=header["state"])
    return payload


@functools.cache
def _renderer(name: str) -> Callable[..., Mapping[str, Any]]:
    """Streamlit's mounting command; it registers itself on whichever runtime mounts it."""
    import streamlit as st  # here, so that an export reads a component's files without starting Streamlit

    files = component_files(name)
    return st.components.v2.component(f"attnscope_{name}", js=files.script, css=files.style)


def _nothing() -> None:
    """A state needs a callback to be read from the result."""
