"""Model folders that the server's owner opens to users: the direct sub-folders of ``ATTNSCOPE_MODEL_ROOT``.

Users choose one by name (``folder:<name>``); no path that a user writes is ever opened.
"""

from __future__ import annotations

import os
from pathlib import Path

from analysis.errors import ModelUnavailableError

VARIABLE = "ATTNSCOPE_MODEL_ROOT"
PREFIX = "folder:"


def model_root() -> Path | None:
    """The opened folder, or None when the owner has not set one."""
    value = os.environ.get(VARIABLE, "")
    return Path(value).resolve() if value else None


def folder_choices() -> tuple[str, ...]:
    """Names (``folder:<name>``) of the model folders that may be chosen, sorted."""
    root = model_root()
    if root is None or not root.is_dir():
        return ()
    folders = (entry for entry in root.iterdir() if (entry / "config.json").is_file())
    return tuple(sorted(PREFIX + entry.name for entry in folders if not entry.name.startswith(".")))


def folder_of(name: str) -> Path | None:
    """The folder that a choice names, or None when the name is not a folder choice.

    Raises:
        ModelUnavailableError: if no such folder is opened.
    """
    if not name.startswith(PREFIX):
        return None
    root = model_root()
    if root is None or name not in folder_choices():
        raise ModelUnavailableError(
            f"There is no model folder {name.removeprefix(PREFIX)} below the one that {VARIABLE} names; "
            "choose another model."
        )
    return root / name.removeprefix(PREFIX)
