"""Distances between heads: the numbers of Clark et al.'s program, closed forms, and pictures that keep them."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from analysis.heads import clusters
from analysis.heads.clusters import HeadDistances, embed, head_distances, head_order
from attn_core.factored import FactoredMap
from attn_core.maps import DenseMap

CASE = Path(__file__).parent.parent / "oracles" / "06_clark" / "minilm_pairs"
ARRAYS = np.load(CASE.with_suffix(".npz"))
META = json.loads(CASE.with_suffix(".json").read_text(encoding="utf-8"))


def dense(*layers: torch.Tensor) -> list[DenseMap]:
    """(H, Q, K) weights as maps."""
    return [DenseMap(stored=weights[None]) for weights in layers]


@pytest.fixture(scope="module")
def clark() -> HeadDistances:
    """The distances of all heads over the texts of the oracle."""
    found = None
    for index in range(len(META["texts"])):
        one = head_distances(dense(*torch.from_numpy(ARRAYS[f"attns_{index}"])))
        found = one if found is None else found.merged(one)
    assert found is not None
    return found


def oracle(layers: list[np.ndarray], smoothing: float = 0.001) -> np.ndarray:
    """The definition in loops, float64."""
    rows = np.concatenate(layers).astype(np.float64)
    rows = (1 - smoothing) * rows + smoothing / rows.shape[-1]
    heads = len(rows)
    found = np.zeros((heads, heads))

    def entropy(row: np.ndarray) -> float:
        return -float((row * np.log(row)).sum())

    for a in range(heads):
        for b in range(heads):
            for p, q in zip(rows[a], rows[b], strict=True):
                found[a, b] += entropy((p + q) / 2) - (entropy(p) + entropy(q)) / 2
    return found


# Numbers ---------------------------------------------------------------------------------------------------------


def test_the_distances_of_clark_et_al(clark):
    np.testing.assert_allclose(clark.sums, ARRAYS["js_distances"], rtol=1e-6, atol=1e-8)
    assert clark.texts == len(META["texts"])
    assert clark.rows == sum(ARRAYS[f"attns_{index}"].shape[-1] for index in range(clark.texts))
    assert clark.heads[13] == (1, 1)
    assert 0 < clark.mean.max() < math.log(2)


@settings(max_examples=25)
@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=3),
    st.integers(1, 6),
    st.integers(1, 6),
    st.integers(0, 2**32 - 1),
)
def test_the_definition_in_loops(heads, queries, keys, seed):
    random = np.random.default_rng(seed)
    layers = [random.dirichlet(np.full(keys, 0.3), (count, queries)).astype(np.float32) for count in heads]
    found = head_distances(dense(*map(torch.from_numpy, layers)))
    np.testing.assert_allclose(found.sums, oracle(layers), rtol=1e-5, atol=1e-5)
    assert (found.sums == found.sums.T).all()
    assert not found.sums.diagonal().any()
    assert found.rows == queries
    assert found.heads == tuple((layer, head) for layer, count in enumerate(heads) for head in range(count))


def test_closed_forms():
    """Alike heads: 0. Heads that never look at the same key: ln 2 a row, nearly, because of the smoothing."""
    eye = torch.eye(4).expand(2, 4, 4)
    assert not head_distances(dense(eye)).sums.any()
    apart = torch.stack([torch.eye(4), torch.eye(4).roll(1, dims=1)])
    found = head_distances(dense(apart), smoothing=1e-6)
    assert found.mean[0, 1] == pytest.approx(math.log(2), abs=1e-4)
    # half on a key, half on another, against all on the first: ½ (ln 4/3 + ½ ln 2/3 + ½ ln 2)
    half = torch.tensor([[[1.0, 0.0]], [[0.5, 0.5]]])
    expected = 0.5 * (math.log(4 / 3) + 0.5 * math.log(2 / 3) + 0.5 * math.log(2))
    assert head_distances(dense(half), smoothing=1e-6).sums[0, 1] == pytest.approx(expected, abs=1e-4)


def test_strips_and_pieces_do_not_show(monkeypatch):
    torch.manual_seed(0)
    layers = dense(*(torch.randn(3, 3, 17, 19) * 2).softmax(-1))
    expected = head_distances(layers)
    monkeypatch.setattr(clusters, "_STRIP_NUMBERS", 9 * 19 * 5)
    monkeypatch.setattr(clusters, "_PIECE", 7)
    found = head_distances(layers)
    np.testing.assert_allclose(found.sums, expected.sums, rtol=1e-5)
    assert found.rows == expected.rows == 17


def test_rows_without_a_key_count_for_no_pair():
    torch.manual_seed(0)
    weights = torch.randn(2, 5, 5).softmax(-1)
    emptied = weights.clone()
    emptied[1, 3] = 0.0
    kept = torch.tensor([0, 1, 2, 4])
    found, expected = head_distances(dense(emptied)), head_distances(dense(weights[:, kept]))
    assert found.rows == 4
    np.testing.assert_allclose(found.sums, expected.sums, atol=1e-6)


def test_a_causal_map_is_compared_over_all_its_keys():
    torch.manual_seed(0)
    scores = torch.randn(3, 6, 6).masked_fill(torch.ones(6, 6).triu(1).bool(), -torch.inf)
    weights = scores.softmax(-1)
    found = head_distances(dense(weights))
    np.testing.assert_allclose(found.sums, oracle([weights.numpy()]), rtol=1e-5, atol=1e-6)


def test_the_factored_form_gives_the_same():
    torch.manual_seed(0)
    query, key = torch.randn(1, 3, 8, 4), torch.randn(1, 3, 8, 4)
    scores = query @ key.transpose(-1, -2) / 2
    factored = FactoredMap(query, key, scores.logsumexp(-1), 0.5)
    expected = head_distances(dense(scores.softmax(-1)[0]))
    np.testing.assert_allclose(head_distances([factored]).sums, expected.sums, atol=1e-5)


def test_long_maps_are_read_in_strips():
    """Never all heads' weights at once: here they would be 4 · 700 · 3000 numbers."""
    asked = []

    class Watched(FactoredMap):
        def block(self, head, rows, columns):
            asked.append((rows.stop - rows.start) * self.heads * self.keys)
            return super().block(head, rows, columns)

    torch.manual_seed(0)
    query = torch.randn(1, 4, 3000, 2)
    lse = (query[:, :, :1] @ query.transpose(-1, -2)).logsumexp(-1).expand(1, 4, 3000)
    layer = Watched(query[:, :, :700], query, lse[:, :, :700], 1.0)
    found = head_distances([layer])
    assert found.rows == 700
    assert len(asked) > 1
    assert max(asked) <= clusters._STRIP_NUMBERS


def test_texts_are_put_together():
    torch.manual_seed(0)
    one, two = (head_distances(dense(torch.rand(2, n, n).softmax(-1))) for n in (3, 5))
    both = one.merged(two)
    assert (both.rows, both.texts) == (8, 2)
    np.testing.assert_allclose(both.mean * 8, one.sums + two.sums)
    np.testing.assert_array_equal(both.sums, two.merged(one).sums)
    with pytest.raises(
        ValueError, match=r"HeadDistances.merged: both must be of the same heads but are of 2 and 3"
    ):
        one.merged(head_distances(dense(torch.rand(3, 4, 4))))


@pytest.mark.parametrize(
    ("layers", "options", "message"),
    [
        ([], {}, "head_distances: layers must hold at least one map but hold none"),
        (
            dense(torch.rand(1, 2, 2), torch.rand(1, 3, 3)),
            {},
            "over the same positions but have 2 × 2 and 3 × 3",
        ),
        (dense(torch.rand(1, 2, 2)), {"smoothing": 0.0}, "smoothing must lie between 0 and 1 but is 0.0"),
    ],
)
def test_what_does_not_fit_is_refused(layers, options, message):
    with pytest.raises(ValueError, match=message):
        head_distances(layers, **options)


# Pictures --------------------------------------------------------------------------------------------------------


def test_the_stress_is_no_worse_than_theirs(clark):
    found = embed(clark.sums)
    assert found.stress <= 1.05 * float(ARRAYS["mds_stress"])
    apart = np.linalg.norm(found.points[:, None] - found.points, axis=-1)
    assert found.stress == pytest.approx(((apart - clark.sums) ** 2).sum() / 2)
    assert found.relative_stress == pytest.approx(math.sqrt(found.stress / ((clark.sums**2).sum() / 2)))
    scaled = embed(clark.mean)
    np.testing.assert_allclose(
        scaled.points * clark.rows, found.points, rtol=1e-4, atol=1e-4 * np.abs(found.points).max()
    )
    np.testing.assert_allclose(found.points.mean(0), 0.0, atol=1e-6 * np.abs(found.points).max())
    (wide, skew), (_, narrow) = found.points.T @ found.points
    assert wide >= narrow
    assert abs(skew) < 1e-6 * wide


def plane(count: int, seed: int = 0) -> np.ndarray:
    """Distances between random points of a plane."""
    points = np.random.default_rng(seed).random((count, 2))
    return np.linalg.norm(points[:, None] - points, axis=-1)


@pytest.mark.parametrize("count", [2, 3, 12])
def test_what_lies_in_a_plane_is_found_again(count):
    found = embed(plane(count), seed=3)
    assert found.relative_stress < 1e-2
    np.testing.assert_allclose(
        np.linalg.norm(found.points[:, None] - found.points, axis=-1), plane(count), atol=0.02
    )
    np.testing.assert_array_equal(embed(plane(count), seed=3).points, found.points)


def test_roots_are_embedded_when_asked():
    assert embed(plane(8) ** 2, root=True).relative_stress < 1e-2
    assert embed(plane(8) ** 2).relative_stress > 5e-2


def test_alike_heads_lie_on_one_point():
    found = embed(np.zeros((3, 3)))
    assert not found.points.any()
    assert (found.stress, found.relative_stress) == (0.0, 0.0)
    assert embed(np.zeros((1, 1))).points.shape == (1, 2)


def test_many_heads_start_once(monkeypatch):
    monkeypatch.setattr(clusters, "MANY_HEADS", 4)
    np.testing.assert_array_equal(embed(plane(12), seed=1).points, embed(plane(12), seed=2).points)


def test_the_order_puts_alike_heads_side_by_side():
    """Points on a line come back in their order, or backwards; two groups are not mixed."""
    places = np.array([3.0, 0.1, 9.0, 1.2, 5.1, 0.0])
    order = head_order(np.abs(places[:, None] - places))
    assert sorted(order.tolist()) == list(range(6))
    steps = np.diff(places[order])
    assert (steps > 0).all() or (steps < 0).all()
    np.testing.assert_array_equal(head_order(plane(2)), [0, 1])


def test_the_order_is_a_short_way_through_the_heads(clark):
    """Never longer than the same tree's leaves as they come, and shorter than layer by layer."""

    def way(order):
        return clark.mean[order[:-1], order[1:]].sum()

    plain = leaves_list(linkage(squareform(clark.mean), "average"))
    assert way(head_order(clark.mean)) < way(plain)
    assert way(head_order(clark.mean)) < 0.7 * way(np.arange(72))


@pytest.mark.parametrize("draw", [embed, head_order])
@pytest.mark.parametrize(
    ("distances", "message"),
    [
        (np.zeros((2, 3)), "distances must be (heads, heads) but have shape (2, 3)"),
        (np.zeros((0, 0)), "distances must be (heads, heads) but have shape (0, 0)"),
        (np.array([[0.0, np.nan], [np.nan, 0.0]]), "distances must be finite and not negative"),
        (np.array([[0.0, -1.0], [-1.0, 0.0]]), "distances must be finite and not negative"),
        (np.array([[0.0, 1.0], [2.0, 0.0]]), "distances must be symmetric with zeros on the diagonal"),
        (np.eye(2), "distances must be symmetric with zeros on the diagonal"),
    ],
)
def test_what_is_no_matrix_of_distances_is_refused(draw, distances, message):
    with pytest.raises(ValueError, match=re.escape(f"{draw.__name__}: {message}")):
        draw(distances)


def test_rows_that_lie_evenly_stand_for_all():
    generator = torch.Generator().manual_seed(5)
    weights = torch.rand(1, 3, 40, 11, generator=generator).softmax(-1)
    few = head_distances([DenseMap(weights)], most_rows=8)
    chosen = head_distances([DenseMap(weights[:, :, ::5])])
    np.testing.assert_allclose(few.sums, chosen.sums, rtol=1e-6)
    assert (few.rows, chosen.rows) == (8, 8)
    whole = head_distances([DenseMap(weights)], most_rows=40)
    np.testing.assert_array_equal(whole.sums, head_distances([DenseMap(weights)]).sums)
