"""Compiled products of rows with keys in panels: held to float64 at every edge, and left where torch is as quick."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from attn_core.flash import panels, streaming
from attn_core.flash.compiled import library
from attn_core.flash.panels import Panels
from attn_core.flash.scoring import Scoring

compiled = pytest.mark.skipif(
    library() is None or not library().panel_width(),
    reason="no C compiler, or no vectors that the products know",
)


@compiled
@given(st.data())
def test_products_are_those_of_float64_at_every_edge(data: st.DataObject) -> None:
    groups, each = data.draw(st.sampled_from([(1, 1), (3, 1), (2, 3)]))
    queries, keys, width = (data.draw(st.integers(1, most)) for most in (100, 150, 40))
    first, last = sorted(data.draw(st.tuples(st.integers(0, keys), st.integers(0, keys))))
    top, bottom = sorted(data.draw(st.tuples(st.integers(0, queries), st.integers(0, queries))))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    left = torch.randn(groups * each, queries, width, generator=generator)
    right = torch.randn(groups, keys, width, generator=generator)
    out = torch.full((groups * each, bottom - top, last - first), float("nan"))
    Panels.laid_out(right, library().panel_width()).products(
        left, slice(top, bottom), slice(first, last), out
    )
    exact = left.double()[:, top:bottom] @ right.double().repeat_interleave(each, 0).mT[:, :, first:last]
    assert_close(out, exact.float(), atol=1e-6 * width, rtol=1e-5)


@compiled
def test_nothing_is_written_beyond_a_tile() -> None:
    left, right = torch.ones(2, 29, 7), torch.ones(2, 45, 7)
    room = torch.full((2 * 13 * 11 + 64,), -1.0)
    out = room[32 : 32 + 2 * 13 * 11].view(2, 13, 11)
    Panels.laid_out(right, library().panel_width()).products(left, slice(16, 29), slice(34, 45), out)
    assert bool((out == 7.0).all())
    assert bool((room[:32] == -1.0).all())
    assert bool((room[-32:] == -1.0).all())


@compiled
@pytest.mark.parametrize("quicker", [False, True])
def test_tiles_are_the_same_either_way(monkeypatch: pytest.MonkeyPatch, quicker: bool) -> None:
    monkeypatch.setattr(panels, "multiplies_quicker", lambda: quicker)
    generator = torch.Generator().manual_seed(0)
    query, key = (torch.randn(1, heads, 90, 16, generator=generator) * 3 for heads in (4, 2))
    scores = query[0].double() @ key[0].double().repeat_interleave(2, 0).mT / 4
    lse = scores.logsumexp(-1).float()[None]
    factors = streaming.Factors.of(query, key, lse, Scoring(scale=0.25))
    assert isinstance(factors._right, Panels) == quicker
    tile = factors.tile(slice(5, 71), slice(3, 88))
    assert_close(tile.exp(), scores.softmax(-1)[:, 5:71, 3:88].float(), atol=2e-6, rtol=1e-4)


def test_what_the_compiled_products_do_not_take_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(panels, "multiplies_quicker", lambda: True)
    assert Panels.of(torch.ones(1, 4, 3, dtype=torch.float64)) is None
    monkeypatch.setattr(panels, "library", lambda: None)
    assert Panels.of(torch.ones(1, 4, 3)) is None
