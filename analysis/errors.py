"""What can go wrong between a name and a loaded model.

``MemoryBudgetError`` and ``UnsupportedModelError`` live in ``attn_core.errors``. They are handed on lazily, so that
the catalogue can be imported without torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from attn_core.errors import MemoryBudgetError, UnsupportedModelError

__all__ = ["MemoryBudgetError", "ModelUnavailableError", "UnsupportedModelError"]


class ModelUnavailableError(RuntimeError):
    """A model could not be fetched, installed or read; the message says what happened and what to do."""


def __getattr__(name: str) -> Any:
    if name in ("MemoryBudgetError", "UnsupportedModelError"):
        import attn_core.errors

        return getattr(attn_core.errors, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
