"""Statistics of heads: the papers' oracles, closed forms, the same numbers whatever the batch, padding or pieces."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from analysis.figure_data import TokenLabel
from analysis.heads import measures
from analysis.heads.measures import OFFSETS, STATISTICS, measure
from analysis.heads.positions import Layout, layouts_of, picture_side, text_side
from analysis.heads.survey import HeadTable, Surveyor
from analysis.inputs import PatchGrid
from attn_core.factored import FactoredMap
from attn_core.maps import DenseMap
from attn_core.masks import MaskRule
from scripts.planted_heads import hidden_of, picture_scene, planted, text_scene

ORACLES = Path(__file__).parent.parent / "oracles"


def labels(words: str, *, segments: str | None = None) -> list[TokenLabel]:
    """Tokens of a text written with spaces; [X] is special."""
    found = words.split()
    parts = segments or "0" * len(found)
    return [
        TokenLabel(word, word, special=word.startswith("["), segment=int(part))
        for word, part in zip(found, parts, strict=True)
    ]


def layout(*texts: str, kind: str = "encoder", **options: Any) -> Layout:
    side = text_side([labels(text) for text in texts], **options)
    return Layout(side, side, kind)


def weights_of(*rows: list[float]) -> DenseMap:
    """One head."""
    return DenseMap(torch.tensor(rows)[None, None])


def mean_of(found: measures.Sums, key: str) -> float:
    return float(found.means()[key][0, 0])


# The papers ---------------------------------------------------------------------------------------------------------


def clark() -> tuple[Any, dict[str, Any]]:
    folder = ORACLES / "06_clark"
    return np.load(folder / "minilm_pairs.npz"), json.loads((folder / "minilm_pairs.json").read_text())


def clark_table(queries: str, smoothing: float = 0.0) -> HeadTable:
    """All texts of the oracle, one after another, from the attention that it stores."""
    arrays, facts = clark()
    surveyor = Surveyor(queries=queries, smoothing=smoothing)
    frequency = json.loads((ORACLES / "10_head_roles" / "voita_minilm.json").read_text())["frequency"]
    for index in range(len(facts["texts"])):
        tokens = facts["tokens"][index]
        middle = tokens.index("[SEP]")
        entries = [
            TokenLabel(token, token, special=token in ("[CLS]", "[SEP]"), segment=int(place > middle))
            for place, token in enumerate(tokens)
        ]
        side = text_side([entries], frequencies=frequency)
        attention = torch.from_numpy(arrays[f"attns_{index}"].astype(np.float32))
        surveyor.add(
            {"encoder": [DenseMap(layer[None]) for layer in attention]}, {"encoder": Layout(side, side)}
        )
    return surveyor.survey().tables["encoder"]


def test_the_statistics_of_clark_et_al():
    arrays, _ = clark()
    table = clark_table("all", smoothing=1e-4)
    names = {"offset+0": "avg_self", "offset+1": "avg_right", "offset-1": "avg_left"}
    names |= {"classifier": "avg_cls", "separator": "avg_sep", "entropy": "entropies"}
    for key, name in names.items():
        np.testing.assert_allclose(
            table.value(key, each=True), arrays[name], rtol=1e-5, atol=2e-6, err_msg=name
        )
    # theirs are "." and "," alone, and no other mark is in the texts but the apostrophe and the dash
    assert np.all(table.value("punctuation", each=True) >= arrays["avg_punct"] - 1e-6)


def test_the_head_roles_of_voita_et_al():
    facts = json.loads((ORACLES / "10_head_roles" / "voita_minilm.json").read_text())
    arrays = np.load(ORACLES / "10_head_roles" / "voita_minilm.npz")
    table = clark_table("own")
    offsets = [int(offset) for offset in arrays["offsets"]]
    for index, offset in enumerate(offsets):
        if offset in OFFSETS:
            np.testing.assert_allclose(
                table.value(f"strongest{offset:+d}"), arrays["position_fraction"][index], atol=1e-6
            )
    np.testing.assert_allclose(table.value("confidence"), arrays["confidence"], rtol=1e-5)
    np.testing.assert_allclose(table.value("rarest"), arrays["rarest_fraction"], atol=1e-6)
    assert "positional_90" in facts["keys"]


# Closed forms -------------------------------------------------------------------------------------------------------


def test_equal_weights():
    n = 9
    found = measure(weights_of(*[[1 / n] * n] * n), layout("[C] a b c , d e f [S]"))
    own = 7
    assert mean_of(found, "entropy") == pytest.approx(math.log(n), rel=1e-5)
    assert mean_of(found, "relative_entropy") == pytest.approx(1, rel=1e-5)
    assert mean_of(found, "effective_keys") == pytest.approx(n, rel=1e-4)
    assert mean_of(found, "max_weight") == pytest.approx(1 / n)
    assert mean_of(found, "first") == mean_of(found, "classifier") == pytest.approx(1 / n)
    assert mean_of(found, "separator") == mean_of(found, "punctuation") == pytest.approx(1 / n)
    assert mean_of(found, "column") == mean_of(found, "any_column") == pytest.approx(1 / n)
    assert mean_of(found, "rarest_weight") == pytest.approx(1 / n)
    assert mean_of(found, "near") == pytest.approx(mean_of(found, "near_chance"))
    distances = np.abs(np.arange(1, 8)[:, None] - np.arange(n))
    assert mean_of(found, "distance") == pytest.approx(distances.mean(), rel=1e-5)
    assert mean_of(found, "direction") == pytest.approx(
        (np.arange(n) - np.arange(1, 8)[:, None]).mean(), abs=1e-5
    )
    assert float(found.counts["entropy"]) == own
    assert math.isnan(mean_of(found, "same_token")), "no token comes twice"


def test_copies_and_what_follows_them():
    """a b c a b: the second a has an earlier copy, followed by b; the second b one followed by c."""
    rows = [[0.0] * 5 for _ in range(5)]
    for query, key in ((0, 3), (1, 4), (2, 2), (3, 1), (4, 1)):
        rows[query][key] = 1.0
    found = measure(weights_of(*rows), layout("a b c a b"))
    assert mean_of(found, "same_token") == pytest.approx(3 / 4)  # of the four that have a copy
    assert mean_of(found, "same_token_chance") == pytest.approx(1 / 5)
    assert mean_of(found, "induction") == pytest.approx(1 / 2)
    assert float(found.counts["induction"]) == 2
    assert mean_of(found, "induction_chance") == pytest.approx(1 / 5)


def test_a_decoder_sees_no_later_key():
    rows = [[1.0, 0, 0, 0], [0.5, 0.5, 0, 0], [0.2, 0.4, 0.4, 0], [0.25] * 4]
    found = measure(weights_of(*rows), layout("a b c a", kind="decoder"))
    assert mean_of(found, "relative_entropy") == pytest.approx(
        np.mean([1.0, -(0.2 * math.log(0.2) + 0.8 * math.log(0.4)) / math.log(3), 1.0]), rel=1e-4
    ), "the first query has no choice and is not counted"
    assert mean_of(found, "near_chance") == pytest.approx(1)
    assert mean_of(found, "induction_chance") == pytest.approx(1 / 4)
    assert mean_of(found, "column") == pytest.approx((1 + 0.5 + 0.2 + 0.25) / 4)


def test_distances_on_a_grid_are_in_pixels():
    """A query that looks at the patch two columns on and one row down is √5 patches away."""
    side = picture_side(PatchGrid(3, 4, 14, 42, 56, 1))
    weights = torch.zeros(13, 13)
    weights[:, 0] = 0.5
    weights[:, 1 + 6] = 0.5
    found = measure(DenseMap(weights[None, None]), Layout(side, side))
    rows, columns = np.divmod(np.arange(12), 4)
    expected = 14 * np.sqrt((rows - 1) ** 2 + (columns - 2) ** 2)
    assert mean_of(found, "pixels") == pytest.approx(expected.mean(), rel=1e-5), (
        "of the weight on patches alone"
    )
    assert mean_of(found, "classifier") == mean_of(found, "patches") == pytest.approx(0.5)
    assert mean_of(found, "column") == pytest.approx(0.5)
    assert mean_of(found, "patch_left") == pytest.approx(0.5 / 12)
    assert mean_of(found, "row") == pytest.approx(3 / 12)
    every = np.stack(np.divmod(np.arange(12), 4), -1)
    apart = 14 * np.sqrt(((every[:, None] - every) ** 2).sum(-1))
    assert mean_of(found, "pixels_chance") == pytest.approx(apart.mean(), rel=1e-5)


def test_likeness_of_patches_is_their_correlation():
    scene = picture_scene(5, 6, seed=0)
    states = hidden_of(scene)
    layer = planted(scene, ["alike", "everywhere"], noise=0.1)
    found = measure(layer, scene.layout, hidden=torch.from_numpy(states)[None]).means()["content"][0]
    patches = states[1:] - states[1:].mean(0)
    patches /= np.linalg.norm(patches, axis=-1, keepdims=True)
    weights, alike = layer.dense().numpy()[:, 1:, 1:], patches @ patches.T
    kept = ~np.eye(30, dtype=bool)
    for head in range(2):
        rows = [
            np.corrcoef(weights[head, query][kept[query]], alike[query][kept[query]])[0, 1]
            for query in range(30)
        ]
        assert float(found[head]) == pytest.approx(np.mean(rows), abs=1e-4)
    assert float(found[0]) > 0.6 > 0.2 > abs(float(found[1]))


def test_far_longer_patches_are_found():
    side = picture_side(PatchGrid(4, 4, 14, 56, 56, 1))
    weights = torch.full((17, 17), 0.5 / 16)
    weights[:, 5] = 0.5
    states = torch.randn(1, 17, 8, generator=torch.Generator().manual_seed(0))
    layer, place = DenseMap(weights[None, None]), Layout(side, side)
    assert mean_of(measure(layer, place, hidden=states), "sink_patches") == 0
    states[:, 5] *= 30
    assert mean_of(measure(layer, place, hidden=states), "sink_patches") == pytest.approx(0.5)


def test_cross_attention_knows_kinds_of_keys_and_copies():
    source, target = text_side([labels("le chat , 1912 [S]")]), text_side([labels("[S] the cat 1912")])
    rows = [[0, 0, 0, 0, 1.0], [1.0, 0, 0, 0, 0], [0, 0.5, 0.5, 0, 0], [0, 0, 0, 1.0, 0]]
    side = text_side([labels("le chat , 1912 [S]"), labels("[S] the cat 1912")])
    assert side.ids[0, 3] == side.ids[1, 3], "equal pieces have equal numbers in one batch"
    found = measure(weights_of(*rows), Layout(target, source, "cross"))
    assert mean_of(found, "separator") == pytest.approx(0)
    assert mean_of(found, "punctuation") == pytest.approx(0.5 / 3)
    assert "offset+0" not in found.totals


# The same whatever the way ------------------------------------------------------------------------------------------


@settings(max_examples=20, deadline=None)
@given(
    lengths=st.lists(st.integers(3, 14), min_size=1, max_size=3),
    seed=st.integers(0, 99),
    decoder=st.booleans(),
)
def test_a_padded_batch_says_what_each_text_says_alone(lengths, seed, decoder):
    random = np.random.default_rng(seed)
    texts = [" ".join(["[C]", *random.choice(list("abc,"), size=length - 2), "[S]"]) for length in lengths]
    n, kind = max(lengths), "decoder" if decoder else "encoder"
    generator = torch.Generator().manual_seed(seed)
    query, key = (torch.randn(len(texts), 2, n, 4, generator=generator) for _ in range(2))
    valid = torch.arange(n) < torch.tensor(lengths)[:, None]
    scores = query @ key.transpose(-1, -2) / 2
    allowed = valid[:, None, None] & (torch.ones(n, n).tril().bool() if decoder else torch.ones(n, n).bool())
    lse = scores.masked_fill(~allowed, -math.inf).logsumexp(-1)
    batch = FactoredMap(query, key, lse, 0.5, MaskRule(causal=decoder, key_valid=valid))
    counts = {"a": 5, "b": 2, "c": 1, ",": 7}
    together = measure(batch, layout(*texts, kind=kind, frequencies=counts)).means()
    for index, text in enumerate(texts):
        alone = measure(batch.item(index), layout(text, kind=kind, frequencies=counts)).means()
        for name, found in alone.items():
            assert_close(together[name][index], found[0], rtol=1e-4, atol=1e-5, equal_nan=True, msg=name)


@pytest.mark.parametrize("picture", [False, True])
def test_pieces_add_up_to_the_whole(monkeypatch, picture):
    scene = picture_scene(6, 5, seed=1, prefix=2) if picture else text_scene(40, seed=1)
    names = ["self", "around", "row"] if picture else ["next", "block", "induction"]
    layer = planted(scene, names, noise=0.4)
    hidden = torch.from_numpy(hidden_of(scene))[None] if picture else None
    whole = measure(layer, scene.layout, hidden=hidden).means()
    monkeypatch.setattr("attn_core.maps.strip_rows", lambda *_: 7)
    pieces = measure(layer, Layout(scene.side, scene.side), hidden=hidden).means()
    assert set(whole) == set(pieces)
    for name, found in whole.items():
        assert_close(pieces[name], found, rtol=1e-4, atol=1e-5, equal_nan=True, msg=name)
    assert set(whole) <= set(STATISTICS)


def test_every_statistic_is_told_and_measured():
    text, picture = text_scene(30, seed=0), picture_scene(4, 4, seed=0)
    found = set(measure(planted(text, ["self"], noise=0.1), text.layout).totals)
    hidden = torch.from_numpy(hidden_of(picture))[None]
    found |= set(measure(planted(picture, ["self"], noise=0.1), picture.layout, hidden=hidden).totals)
    assert found == set(STATISTICS)


def test_a_layout_of_another_size_is_refused():
    with pytest.raises(ValueError, match=r"measure: the map is .*\(1, 2, 2\) but its layout \(1, 3, 3\)"):
        measure(weights_of([1.0, 0.0], [0.5, 0.5]), layout("a b c"))


def test_pictures_of_different_sizes_have_no_layout():
    class Entry:
        def __init__(self, rows: int) -> None:
            self.grid = PatchGrid(rows, 2, 14, 14 * rows, 28, 1)

    with pytest.raises(ValueError, match="pictures of one size"):
        layouts_of([Entry(2), Entry(3)])  # type: ignore[list-item]


def test_a_separator_may_stand_right_behind_cls():
    side = text_side([labels("[C] [S]")])
    assert side.classifier.tolist() == [[True, False]]
    assert side.separator.tolist() == [[False, True]]
