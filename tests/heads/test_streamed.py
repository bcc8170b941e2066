"""Statistics read off the tiles of a factored map are those of the strips, for texts, decoders and pictures."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from analysis.figure_data import TokenLabel
from analysis.heads import measures, streamed
from analysis.heads.measures import measure
from analysis.heads.positions import Layout, picture_side, text_side
from analysis.inputs import PatchGrid
from attn_core import FactoredMap, MaskRule, flash_attention
from attn_core.mask_rules import window_rule


def both_ways(layer, layout, **options):
    """(walked, in strips)."""
    found = []
    for least in (1, 10**9):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(measures, "WALKED_KEYS", least)
            found.append(measure(layer, Layout(layout.rows, layout.columns, layout.kind), **options).means())
    return found


def check(layer, layout, *, within=2e-5, **options):
    walked, in_strips = both_ways(layer, layout, **options)
    assert set(walked) == set(in_strips)
    for name, expected in in_strips.items():
        loose = 2e-3 if name == "content" else within
        assert_close(
            walked[name],
            expected,
            rtol=1e-4,
            atol=loose,
            equal_nan=True,
            msg=f"{name}: {walked[name]}, {expected}",
        )


def factored(queries, keys, rule=None, *, heads=4, seed=0, sharp=1.0):
    generator = torch.Generator().manual_seed(seed)
    query = torch.randn(1, heads, queries, 6, generator=generator) * sharp
    key = torch.randn(1, heads // 2, keys, 6, generator=generator) * sharp
    rule = MaskRule() if rule is None else rule
    lse = flash_attention(query, key, key, rule=rule).lse
    return FactoredMap(query, key, lse, 6**-0.5, rule)


def text_of(length, *, seed, special=(), segments=False):
    """Tokens with many repeats, punctuation, and special tokens at some places."""
    drawn = random.Random(seed)
    words = [drawn.choice(["a", "b", "c", "the", ",", "."]) for _ in range(length)]
    return text_side(
        [
            [
                TokenLabel(
                    word, word, special=place in special, segment=int(segments and place > length // 2)
                )
                for place, word in enumerate(words)
            ]
        ],
        frequencies={"the": 9, "a": 1},
    )


@settings(max_examples=25)
@given(
    length=st.integers(2, 40),
    seed=st.integers(0, 99),
    kind=st.sampled_from(["encoder", "decoder"]),
    queries=st.sampled_from(["own", "all"]),
    segments=st.booleans(),
    specials=st.booleans(),
    sharp=st.sampled_from([0.0, 1.0, 4.0]),
)
def test_texts(length, seed, kind, queries, segments, specials, sharp):
    special = (0, length // 2, length - 1) if specials else ()
    side = text_of(length, seed=seed, special=special, segments=segments)
    layer = factored(length, length, MaskRule(causal=kind == "decoder"), seed=seed, sharp=sharp)
    check(layer, Layout(side, side, kind), queries=queries)


def test_a_window_of_a_decoder_and_cross_attention():
    side, source = text_of(33, seed=1), text_of(21, seed=2, special=(0, 20))
    check(factored(33, 33, window_rule(5)), Layout(side, side, "decoder"))
    check(factored(33, 21), Layout(side, source, "cross"))


@pytest.mark.parametrize("likeness", [False, True])
@pytest.mark.parametrize(("rows", "columns", "prefix"), [(6, 5, 1), (3, 9, 5), (1, 7, 0)])
def test_pictures(rows, columns, prefix, likeness):
    grid = PatchGrid(rows, columns, 14, rows * 14, columns * 14, prefix)
    count = prefix + rows * columns
    side = picture_side(grid)
    hidden = torch.randn(1, count, 8, generator=torch.Generator().manual_seed(4)) + 0.5
    hidden[0, prefix + 2] *= 40  # one patch far longer than the others
    for sharp in (1.0, 5.0):
        layer = factored(count, count, sharp=sharp, seed=rows)
        for queries in ("own", "all"):
            check(layer, Layout(side, side), queries=queries, hidden=hidden if likeness else None)


def test_equal_weights_are_like_nothing():
    grid = PatchGrid(6, 6, 14, 84, 84, 1)
    side = picture_side(grid)
    flat = factored(37, 37, sharp=0.0)
    hidden = torch.randn(1, 37, 8, generator=torch.Generator().manual_seed(4))
    walked, _ = both_ways(flat, Layout(side, side), hidden=hidden)
    assert (walked["content"] == 0).all()


def test_distances_to_every_patch_of_a_grid_are_summed_in_closed_form():
    down, across = torch.meshgrid(torch.arange(5.0), torch.arange(7.0), indexing="ij")
    place = torch.stack([down.flatten(), across.flatten()], -1).double()
    expected = torch.cdist(place, place).sum(-1).view(5, 7)
    assert_close(streamed._summed_distances(5, 7), expected)


def test_long_inputs_are_walked_and_irregular_grids_are_not(monkeypatch):
    walks = []
    monkeypatch.setattr(measures, "walk_text", lambda *args: walks.append(1) or streamed.walk_text(*args))
    side = text_of(measures.WALKED_KEYS, seed=0)
    measure(factored(side.count, side.count), Layout(side, side))
    short = text_of(30, seed=0)
    measure(factored(30, 30), Layout(short, short))
    assert walks == [1]
    grid = picture_side(PatchGrid(3, 4, 14, 42, 56, 1))
    assert streamed.is_regular(grid)
    moved = grid.place.clone()
    moved[0, [1, 2]] = moved[0, [2, 1]]
    assert not streamed.is_regular(type(grid)(**{**vars(grid), "place": moved}))
