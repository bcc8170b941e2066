"""Windows of a document once more, in loops and float64: who owns a token, and the map that they make together."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def starts_of(length: int, room: int, stride: int) -> list[int]:
    """Where windows begin: each ``stride`` after the one before; the one that would reach the end ends there."""
    starts, at = [], 0
    while at + room < length:
        starts.append(at)
        at += stride
    return [*starts, length - room]


def owner_of(token: int, starts: Sequence[int], room: int, *, causal: bool) -> int:
    """The first of the windows with most context on a token's poorer side; on its left, in a causal model."""
    best, most = -1, -1
    for index, start in enumerate(starts):
        before, after = token - start, start + room - 1 - token
        if min(before, after) >= 0:
            context = before if causal else min(before, after)
            if context > most:
                best, most = index, context
    return best


def document_map(
    windows: Sequence[NDArray[np.floating]],
    starts: Sequence[int],
    length: int,
    *,
    before: int,
    after: int,
    causal: bool = False,
) -> NDArray[np.float64]:
    """(H, N, N) of windows (H, n, n): ``before`` special tokens, a stretch of the text, ``after`` more."""
    heads, size = windows[0].shape[:2]
    room, total = size - before - after, before + length + after

    def position(window: int, place: int) -> int:
        if place < before:
            return place
        if place >= before + room:
            return before + length + place - before - room
        return before + starts[window] + place - before

    whole = np.zeros((heads, total, total))
    for row in range(total):
        if before <= row < before + length:
            speaking = [owner_of(row - before, starts, room, causal=causal)]
        else:
            speaking = list(range(len(windows)))
        for window in speaking:
            at = next(place for place in range(size) if position(window, place) == row)
            for place in range(size):
                whole[:, row, position(window, place)] += windows[window][:, at, place] / len(speaking)
    return whole
