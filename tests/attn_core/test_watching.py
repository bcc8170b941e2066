"""Who watches a long computation, and what an answer may weigh."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from attn_core.budget import MEMORY_BUDGET, budget_bytes, check_fits, fits, memory_budget
from attn_core.errors import MemoryBudgetError
from attn_core.seam import model_attention
from attn_core.watching import uncounted, watching, worked


def test_work_is_told_to_the_watcher_of_its_own_thread_alone() -> None:
    seen: list[int] = []
    with watching(seen.append):
        worked(3)
        other = threading.Thread(target=worked, args=(5,))
        other.start()
        other.join()
    worked(7)
    assert seen == [3]


def test_an_inner_watcher_does_not_hide_the_outer() -> None:
    outer: list[int] = []
    inner: list[int] = []
    with watching(outer.append), watching(inner.append):
        worked(2)
    assert (outer, inner) == ([2], [2])


def test_what_is_counted_elsewhere_is_heard_of_all_the_same() -> None:
    seen: list[int] = []
    with watching(seen.append):
        with uncounted():
            worked(2)
        worked(3)
    with uncounted():
        worked(4)  # nobody watches
    assert seen == [0, 3]


def test_what_a_watcher_raises_stops_a_layer() -> None:
    def stop(weights: int) -> None:
        raise InterruptedError(f"after {weights}")

    states = torch.randn(2, 3, 4, 5)
    with pytest.raises(InterruptedError, match="after 96"), watching(stop):  # 2 · 3 · 4 · 4
        model_attention(nn.Identity(), states, states, states)
    model_attention(nn.Identity(), states, states, states)  # nobody watches any more


def test_a_budget_holds_inside_its_block_and_names_what_to_do() -> None:
    assert budget_bytes() == MEMORY_BUDGET
    with memory_budget(1000):
        assert fits(1000)
        assert not fits(1001)
        with pytest.raises(
            MemoryBudgetError, match=r"maps take 2 MiB, .* 0 MiB; ask for one row, or allow more"
        ):
            check_fits(2 * 2**20, "maps", "ask for one row")
        check_fits(2 * 2**20, "maps", "ask for one row", budget=2 * 2**20)
    assert budget_bytes() == MEMORY_BUDGET
    with pytest.raises(ValueError, match="must be at least 1 byte but is 0"), memory_budget(0):
        pass
