"""The address of the view on the screen, with a button that copies it."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlencode

from dashboard.components.mount import mount
from dashboard.figures import pack


def page_link(query: Mapping[str, str], *, key: str) -> None:
    """A field with the address of the page under these parameters, and its Copy button.

    Args:
        query: of the address (``dashboard.selection.to_query``).
        key: of the mount.
    """
    payload = pack({"kind": "page_link", "query": urlencode(query)}, {})
    mount("page_link", payload, key=key, height="content", callbacks={})
