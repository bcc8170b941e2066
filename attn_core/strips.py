"""How many queries are worked on at once, so that no array of all pairs ever stands."""

from __future__ import annotations

STRIP_ELEMENTS = 4_000_000
"""Scores held at once: 16 MB in float32, small enough for caches and large enough for the matrix product."""


def strip_rows(batch_heads: int, keys: int, *, elements: int = STRIP_ELEMENTS) -> int:
    """How many queries a strip holds so that batch · heads · strip · keys stays below ``elements``."""
    return max(1, elements // max(1, batch_heads * keys))
