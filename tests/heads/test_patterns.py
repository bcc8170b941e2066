"""Classes of heads: planted patterns of every class, Kovaleva's maps, thresholds that move, and invariances."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.figure_data import TokenLabel
from analysis.heads.kovaleva import CLASSES, kovaleva_classes
from analysis.heads.measures import measure
from analysis.heads.patterns import (
    HETEROGENEOUS,
    PATTERNS,
    RULES,
    HeadClasses,
    classify_heads,
    score_of,
    title_of,
    with_thresholds,
)
from analysis.heads.positions import Layout, text_side
from attn_core.maps import DenseMap
from scripts.planted_heads import PICTURE, TEXT, Scene, hidden_of, picture_scene, planted, text_scene

ORACLES = Path(__file__).parent.parent / "oracles"


def values_of(scene: Scene, names: list[str], noise: float) -> dict[str, np.ndarray]:
    """(1, H) statistics of heads planted in a scene."""
    picture = scene.side.place is not None
    hidden = torch.from_numpy(hidden_of(scene))[None] if picture else None
    sums = measure(planted(scene, names, noise=noise), scene.layout, hidden=hidden)
    return {key: found.numpy().astype(np.float64) for key, found in sums.means().items()}


def classes_of(scene: Scene, names: list[str], noise: float) -> HeadClasses:
    return classify_heads(values_of(scene, names, noise), picture=scene.side.place is not None)


@settings(max_examples=12, deadline=None)
@given(length=st.integers(24, 160), seed=st.integers(0, 999), noise=st.floats(0, 0.3), pair=st.booleans())
def test_planted_heads_of_a_text_are_told(length, seed, noise, pair):
    scene = text_scene(length, seed=seed, pair=pair)
    names = [name for name in TEXT if pair or name != "block"]
    found = classes_of(scene, names, noise)
    for head, name in enumerate(names):
        assert found.key(0, head) == TEXT[name][0], f"{name}: {found.title(0, head)}"
    assert found.score.min() >= 0.5
    assert found.margin.min() > 0


@settings(max_examples=8, deadline=None)
@given(
    rows=st.integers(7, 16), columns=st.integers(7, 16), prefix=st.sampled_from([1, 2, 5]),
    seed=st.integers(0, 999), noise=st.floats(0, 0.25),
)  # fmt: skip
def test_planted_heads_of_a_picture_are_told(rows, columns, prefix, seed, noise):
    scene = picture_scene(rows, columns, seed=seed, prefix=prefix)
    names = [name for name in PICTURE if prefix > 1 or name != "register"]
    found = classes_of(scene, names, noise)
    for head, name in enumerate(names):
        assert found.key(0, head) == PICTURE[name][0], f"{name}: {found.title(0, head)}"


def test_variants_have_names():
    found = classes_of(text_scene(40, seed=1), ["previous", "self", "next", "three back", "CLS", "SEP"], 0.1)
    assert found.variants[0].tolist() == ["previous", "self", "next", "−3", "CLS", "separator"]
    assert found.title(0, 0) == "Positional (previous)"
    found = classes_of(
        picture_scene(9, 8, seed=1, prefix=5), ["CLS", "register", "one patch", "row", "column"], 0.1
    )
    assert found.variants[0].tolist() == ["CLS", "register", "patch", "row", "column"]


def test_with_noise_alone_a_head_is_broad_or_nothing():
    found = classes_of(text_scene(60, seed=2), list(TEXT), 0.9)
    assert {found.key(0, head) for head in range(len(TEXT))} <= {"broad", HETEROGENEOUS}


def test_how_many_heads_there_are_changes_no_class():
    values = values_of(text_scene(50, seed=3), list(TEXT), 0.2)
    together = classify_heads(values, picture=False)
    alone = classify_heads({key: found[:, 4:5] for key, found in values.items()}, picture=False)
    np.testing.assert_array_equal(alone.scores[..., 0], together.scores[..., 4])
    stacked = classify_heads({key: np.stack([found] * 3) for key, found in values.items()}, picture=False)
    np.testing.assert_array_equal(stacked.best, np.stack([together.best] * 3))


# The papers' classes ------------------------------------------------------------------------------------------------


def test_the_maps_of_kovaleva_et_al():
    arrays = np.load(ORACLES / "10_head_roles" / "kovaleva_synthetic.npz")
    names, hits = list(CLASSES), {key: [] for key in CLASSES}
    for size, offset, label, middle in zip(
        *(arrays[name] for name in ("sizes", "offsets", "labels", "first_sep")), strict=True
    ):
        weights = arrays["flat"][offset : offset + size * size].reshape(size, size)
        tokens = [
            TokenLabel(f"w{index}", f"w{index}", index in (0, middle, size - 1), segment=int(index > middle))
            for index in range(size)
        ]
        side = text_side([tokens])
        sums = measure(DenseMap(torch.from_numpy(weights)[None, None]), Layout(side, side), queries="all")
        found = kovaleva_classes({key: value.numpy().astype(float) for key, value in sums.means().items()})
        hits[names[label]].append(found.key(0, 0) == names[label])
    shares = {key: np.mean(found) for key, found in hits.items()}
    assert all(share >= 0.8 for share in shares.values()), shares
    assert np.mean([hit for found in hits.values() for hit in found]) >= 0.9


def test_kovalevas_classes_need_a_text():
    values = values_of(picture_scene(4, 4, seed=0), ["self"], 0.1)
    with pytest.raises(ValueError, match="self-attention of texts"):
        kovaleva_classes(values)


# The table ----------------------------------------------------------------------------------------------------------


def test_every_rule_is_told_with_its_source():
    for rule in RULES:
        assert all((rule.title, rule.meaning.endswith("."), rule.formula, rule.source)), rule.key
        assert 0 < rule.threshold < 1
    assert len(PATTERNS) == len(RULES)
    assert title_of(HETEROGENEOUS) == "Heterogeneous"


@given(evidence=st.floats(0, 1), threshold=st.floats(0.01, 0.99))
def test_a_score_is_a_half_at_the_threshold(evidence, threshold):
    score = float(score_of(np.array(evidence), threshold))
    assert 0 <= score <= 1
    assert (score >= 0.5) == (evidence >= threshold)
    assert float(score_of(np.array(threshold), threshold)) == pytest.approx(0.5)


def test_a_moved_threshold_moves_classes():
    scene = text_scene(60, seed=4)
    values = values_of(scene, ["CLS"], 0.5)
    assert classify_heads(values, picture=False).key(0, 0) == HETEROGENEOUS
    rules = with_thresholds({"delimiter": 0.4})
    assert classify_heads(values, picture=False, rules=rules).key(0, 0) == "delimiter"


def test_wrong_thresholds_are_refused():
    with pytest.raises(ValueError, match="no class 'sideways'"):
        with_thresholds({"sideways": 0.5})
    for value in (0, 1, -0.2):
        with pytest.raises(ValueError, match="threshold of local must be above 0 and below 1"):
            with_thresholds({"local": value})
    with pytest.raises(ValueError, match="no statistic that a rule needs"):
        classify_heads({"entropy": np.zeros((2, 2))}, picture=False)


def test_syntax_counts_where_it_is_known():
    values = values_of(text_scene(60, seed=5), ["scattered", "scattered"], 0.1)
    found = classify_heads({**values, "syntactic": np.array([[0.4, 0.02]])}, picture=False)
    assert [found.key(0, head) for head in range(2)] == ["syntactic", HETEROGENEOUS]
