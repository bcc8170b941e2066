"""The component of the formula explorer.

As in ``text_views``, the ``checked_*`` function keeps of what a browser says only what fits the blob that was shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dashboard.components.mount import Height, mount_picking, pick_about
from dashboard.components.text_views import is_index


class FormulaPick(NamedTuple):
    """What the user picked: a part of the formula, and the (row, column) of its matrix or None."""

    part: str
    cell: tuple[int, int] | None


def formula_view(
    payload: bytes, *, key: str, height: Height = "content", on_pick: Callable[[FormulaPick], None]
) -> None:
    """The formula, its matrices and the chosen part in words.

    Args:
        payload: of ``dashboard.formula_payload.formula_payload``.
        key: of the mount.
        height: of its frame.
        on_pick: called before the next run with what the user picked.
    """
    mount_picking("formula", payload, key=key, height=height, checked=checked_pick, on_pick=on_pick)


def checked_pick(said: object, header: Mapping[str, Any]) -> FormulaPick | None:
    """What the browser said, if it is about these matrices.

    Args:
        said: ``pick`` {``input``, ``part``, ``cell``}; ``cell`` is [row, column] as drawn, or None.
        header: of the blob (``matrices``, ``input``).
    """
    pick = pick_about(said, header)
    if pick is None:
        return None
    shapes = {matrix["part"]: matrix["shape"] for matrix in header["matrices"]}
    part, cell = pick.get("part"), pick.get("cell")
    if not isinstance(part, str) or part not in shapes:
        return None
    if cell is None:
        return FormulaPick(part, None)
    if isinstance(cell, list) and len(cell) == 2 and all(map(is_index, cell, shapes[part])):
        return FormulaPick(part, (cell[0], cell[1]))
    return None
