"""The components of a timeline and of a diagram.

As in ``text_views``, the ``checked_*`` function keeps of what a browser says only what fits the blob that was shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from dashboard.components.mount import Height, mount_picking, pick_about
from dashboard.components.text_views import is_index


class TimelinePick(NamedTuple):
    """An entry that the user chose ("" for none), and whether its link was followed."""

    entry: str
    follow: bool


def timeline_view(
    payload: bytes, *, key: str, height: Height = "content", on_pick: Callable[[TimelinePick], None]
) -> None:
    """Works of a history by year and theme, one of them opened.

    Args:
        payload: of ``dashboard.story_payload.timeline_payload``.
        key: of the mount.
        height: of its frame.
        on_pick: called before the next run with what the user picked.
    """
    mount_picking("timeline", payload, key=key, height=height, checked=checked_timeline, on_pick=on_pick)


def checked_timeline(said: object, header: Mapping[str, Any]) -> TimelinePick | None:
    """What the browser said, if it is about these entries.

    Args:
        said: ``pick`` {``input``, ``entry``, ``follow``}.
        header: of the blob (``entries``, ``input``).
    """
    pick = pick_about(said, header)
    if pick is None:
        return None
    entry, follow = pick.get("entry"), pick.get("follow")
    known = {each["key"] for each in header["entries"]}
    if not isinstance(entry, str) or (entry and entry not in known) or not isinstance(follow, bool):
        return None
    return TimelinePick(entry, follow and bool(entry))


def diagram_view(
    payload: bytes, *, key: str, height: Height = "content", on_pick: Callable[[int], None]
) -> None:
    """A computation as boxes with their numbers and arrows between them.

    Args:
        payload: of ``dashboard.story_payload.diagram_payload``.
        key: of the mount.
        height: of its frame.
        on_pick: called before the next run with the index of the stage that the user chose.
    """
    mount_picking("diagram", payload, key=key, height=height, checked=checked_diagram, on_pick=on_pick)


def checked_diagram(said: object, header: Mapping[str, Any]) -> int | None:
    """The stage that was chosen, if it is one of this blob.

    Args:
        said: what came from the browser: ``pick`` {``input``, ``stage``}.
        header: of the blob (``stages``, ``input``).
    """
    pick = pick_about(said, header)
    if pick is None:
        return None
    stage = pick.get("stage")
    return stage if isinstance(stage, int) and is_index(stage, len(header["stages"])) else None
