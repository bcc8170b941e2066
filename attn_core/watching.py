"""How far a long computation is, for whoever waits for it, and how it is stopped.

Every loop over an attention map, every recorded layer and every backward pass through one says how many weights it
has worked through; what that is of the whole, only the caller knows. Who watches is a context variable, as in
``attn_core.seam``: a thread sees its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Watcher = Callable[[int], None]
"""Told of weights (batch · heads · queries · keys) that were worked through; what it raises ends the computation."""

_watcher: ContextVar[Watcher | None] = ContextVar("attn_core_watcher", default=None)


@contextmanager
def watching(watcher: Watcher) -> Iterator[None]:
    """Tell ``watcher`` of all work in this thread (or task) inside the block; an inner block's work goes to both."""
    outer = _watcher.get()

    def tell(weights: int) -> None:
        watcher(weights)
        if outer is not None:
            outer(weights)

    token = _watcher.set(tell)
    try:
        yield
    finally:
        _watcher.reset(token)


@contextmanager
def uncounted() -> Iterator[None]:
    """Inside, watchers hear of work without its weights, so that they may stop it: it is counted elsewhere."""
    outer = _watcher.get()
    token = _watcher.set(None if outer is None else lambda _: outer(0))
    try:
        yield
    finally:
        _watcher.reset(token)


def worked(weights: int) -> None:
    """Say that so many weights have been worked through.

    Raises:
        whatever the watcher raises, to stop.
    """
    watcher = _watcher.get()
    if watcher is not None:
        watcher(weights)
