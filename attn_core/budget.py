"""How much memory one answer may take, and the refusal of what does not fit.

The budget is a context variable, like what is recorded (``attn_core.seam``): each session of the app has its own, and
whoever calls from Python may set one around a block.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from attn_core.errors import MemoryBudgetError

MEMORY_BUDGET = 256 * 2**20
"""Bytes that one n × n answer may take unless somebody says otherwise."""

_budget: ContextVar[int] = ContextVar("attn_core_budget", default=MEMORY_BUDGET)


@contextmanager
def memory_budget(size: int) -> Iterator[None]:
    """Let answers take up to ``size`` bytes in this thread (or task) inside the block.

    Raises:
        ValueError: for a budget below one byte.
    """
    if size < 1:
        raise ValueError(f"memory_budget: size must be at least 1 byte but is {size}; pass bytes.")
    token = _budget.set(size)
    try:
        yield
    finally:
        _budget.reset(token)


def budget_bytes() -> int:
    """Bytes that one answer may take here."""
    return _budget.get()


def fits(size: int) -> bool:
    """Whether an answer of ``size`` bytes may be made here."""
    return size <= _budget.get()


def check_fits(size: int, what: str, instead: str, *, budget: int | None = None) -> None:
    """Refuse what would take more than the budget, before it is allocated.

    Args:
        size: bytes.
        what: the subject of the sentence, such as "rollout: 4097 × 4097 weights".
        instead: what to do, such as "ask for one row".
        budget: of this call alone; None takes the one that holds here.
    Raises:
        MemoryBudgetError: with size, budget and what to do.
    """
    limit = _budget.get() if budget is None else budget
    if size > limit:
        raise MemoryBudgetError(
            f"{what} take {size / 2**20:,.0f} MiB, more than the budget of {limit / 2**20:,.0f} MiB; {instead}, or "
            "allow more memory."
        )
