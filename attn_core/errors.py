"""The two error classes of the project; everything else is ``ValueError``, ``TypeError`` or ``ImportError``."""

from __future__ import annotations


class MemoryBudgetError(MemoryError):
    """An n × n array would not fit the memory budget; the message names the cheaper call."""


class UnsupportedModelError(ValueError):
    """A model cannot be looked into; the message says what is missing and what to do."""
