"""The component of a sheet of matrices.

As in ``text_views``, the ``checked_*`` function keeps of what a browser says only what fits the blob that was shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dashboard.components.mount import Callback, Height, mount
from dashboard.components.text_views import is_index
from dashboard.figures import read_header


class MatrixCell(NamedTuple):
    """A cell of a sheet: the index of its matrix, its row and its column."""

    matrix: int
    row: int
    column: int


def matrix_sheet(
    payload: bytes,
    *,
    key: str,
    height: Height = "content",
    on_select: Callable[[MatrixCell], None] | None = None,
    on_clear: Callback | None = None,
) -> MatrixCell | None:
    """Small heat maps side by side; a click or Enter chooses a cell, Escape clears the choice.

    Args:
        payload: of ``dashboard.lab_payload.matrix_sheet_payload``.
        key: of the mount.
        height: of its frame.
        on_select: called before the next run with the cell that the user chose.
        on_clear: called before the next run when the user cleared the choice.
    Returns:
        the cell that was chosen, in the one run after the choice; else None.
    """
    header, _ = read_header(payload)

    def tell() -> None:
        import streamlit as st

        said = checked_matrix_sheet(st.session_state.get(key), header)
        if said["select"] is not None and on_select is not None:
            on_select(said["select"])
        if said["cleared"] and on_clear is not None:
            on_clear()

    result = mount("matrix_sheet", payload, key=key, height=height, callbacks={"select": tell})
    chosen: MatrixCell | None = checked_matrix_sheet(result, header)["select"]
    return chosen


def checked_matrix_sheet(said: object, header: Mapping[str, Any]) -> dict[str, Any]:
    """What a sheet said, if it is about the matrices of this blob.

    Args:
        said: what came from the browser: ``select`` {``input``, ``at``}, ``at`` as [matrix, row, column] or None.
        header: of the blob (``matrices``, ``input``).
    Returns:
        ``select``: the ``MatrixCell`` that was chosen, else None; ``cleared``: whether the choice was cleared.
    """
    nothing: dict[str, Any] = {"select": None, "cleared": False}
    chosen = said.get("select") if isinstance(said, Mapping) else None
    if not isinstance(chosen, Mapping) or chosen.get("input") != header["input"] or "at" not in chosen:
        return nothing
    at, matrices = chosen["at"], header["matrices"]
    if at is None:
        return {"select": None, "cleared": True}
    if not isinstance(at, list) or len(at) != 3 or not is_index(at[0], len(matrices)):
        return nothing
    if not all(map(is_index, at[1:], matrices[at[0]]["shape"])):
        return nothing
    return {"select": MatrixCell(*at), "cleared": False}
