"""Curves and their areas, against closed forms, a planted cause and other programs' correlations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays as random_arrays

from analysis.evidence import faithfulness as module
from analysis.evidence.cdam import cdam
from analysis.evidence.faithfulness import (
    RANDOM_ORDERS,
    Chance,
    Curve,
    Faithfulness,
    agreement,
    class_sensitivity,
    curve_counts,
    faithfulness,
    masks_of,
    random_curves,
    rank_correlation,
)
from analysis.evidence.passes import forward_pass
from analysis.evidence.perturbation import leave_one_out, target_values
from analysis.evidence.targets import class_logit
from tests.evidence.oracle_models import oracle, pixels_of, small_vit

TARGET = class_logit(1)


@pytest.fixture(scope="module")
def run():
    arrays, _ = oracle("03_cdam", "vit_noise")
    return forward_pass(small_vit(), pixels_of(arrays["pixel_values"], patch=8))


def additive(monkeypatch, effects):
    """A prediction that is the sum of what each patch that is there adds: the curves are known then."""
    effects = torch.as_tensor(effects, dtype=torch.float64)

    def values(run, target, masks, *, replacement="default", progress=None):
        return (~masks).double() @ effects

    monkeypatch.setattr(module, "target_values", values)
    return effects


def test_curves_of_a_sum_are_its_partial_sums(run, monkeypatch):
    effects = additive(monkeypatch, np.random.default_rng(0).normal(size=16))
    explanation = replace(cdam(run, TARGET), scores=effects)
    found = faithfulness(run, TARGET, explanation, steps=16)
    ordered = effects.sort(descending=True).values.numpy()
    expected = ordered.sum() - np.concatenate([[0], ordered.cumsum()])
    np.testing.assert_allclose(found.deletion.values, expected, atol=1e-12)
    np.testing.assert_allclose(found.insertion.values, np.concatenate([[0], ordered.cumsum()]), atol=1e-12)
    np.testing.assert_allclose(found.deletion.shares, np.arange(17) / 16)
    assert found.untouched == found.deletion.values[0] == pytest.approx(float(effects.sum()))
    assert found.empty == found.deletion.values[-1] == pytest.approx(0)
    least = [max(1, round(share * 16)) for share in (0.01, 0.05, 0.1, 0.2, 0.5)]
    assert found.comprehensiveness == pytest.approx(np.mean([ordered[:k].sum() for k in least]))
    assert found.sufficiency == pytest.approx(np.mean([ordered[k:].sum() for k in least]))
    assert found.deletion_gain > 0
    assert found.insertion_gain > 0
    wrong = faithfulness(run, TARGET, replace(explanation, scores=-effects), steps=16)
    assert wrong.deletion_gain < 0
    assert wrong.deletion.area == pytest.approx(found.insertion.area)  # of a sum: each is the other's mirror


def test_a_planted_cause_falls_at_once(run, monkeypatch):
    effects = np.zeros(16)
    effects[5] = 3.0
    additive(monkeypatch, effects)
    scores = torch.zeros(16)
    scores[5] = 1.0
    found = faithfulness(run, TARGET, replace(cdam(run, TARGET), scores=scores), steps=16)
    assert found.deletion.values[0] == 3.0
    assert np.all(found.deletion.values[1:] == 0.0)
    assert found.comprehensiveness == 3.0
    assert found.sufficiency == 0.0
    assert found.deletion_gain > 0.5


def test_the_real_model_is_run_with_the_parts_taken_away(run):
    explanation = leave_one_out(run, TARGET)
    told = []
    found = faithfulness(run, TARGET, explanation, steps=4, progress=told.append)
    assert found.untouched == pytest.approx(run.value(TARGET), abs=1e-5)
    order = explanation.scores.argsort(descending=True)
    masks = masks_of(order, [0, 4, 8, 12, 16])
    np.testing.assert_allclose(found.deletion.values, target_values(run, TARGET, masks), atol=1e-6)
    np.testing.assert_allclose(found.insertion.values, target_values(run, TARGET, ~masks), atol=1e-6)
    assert len(found.chance.deletion) == len(found.chance.insertion) == RANDOM_ORDERS
    assert told[-1] == 1.0
    assert told == sorted(told)


def test_random_orders_are_shared_and_depend_on_the_seed_alone(run):
    chance = random_curves(run, TARGET, steps=4, orders=2)
    assert [curve.shares.tolist() for curve in chance.deletion] == [[0.0, 0.25, 0.5, 0.75, 1.0]] * 2
    for deletion, insertion in zip(chance.deletion, chance.insertion, strict=True):
        assert deletion.values[0] == pytest.approx(run.value(TARGET), abs=1e-5)
        assert insertion.values[-1] == deletion.values[0]
        assert insertion.values[0] == deletion.values[-1]
    assert not np.allclose(chance.deletion[0].values, chance.deletion[1].values)
    shared = [
        faithfulness(run, TARGET, explanation, steps=4, chance=chance).chance
        for explanation in (cdam(run, TARGET), leave_one_out(run, TARGET))
    ]
    assert shared[0] is shared[1] is chance
    again = random_curves(run, TARGET, steps=4, orders=2)
    np.testing.assert_array_equal(chance.deletion[1].values, again.deletion[1].values)
    other = random_curves(run, TARGET, steps=4, orders=2, seed=1)
    assert not np.array_equal(chance.deletion[1].values, other.deletion[1].values)


def flat(area):
    return Curve(np.array([0.0, 1.0]), np.array([area, area]))


def judged(deletion, insertion, spread=0.1):
    """Areas against random ones of 1 ± ``spread``."""
    chance = Chance((flat(1 - spread), flat(1 + spread)), (flat(1 - spread), flat(1 + spread)))
    return Faithfulness(2.0, 0.0, flat(deletion), flat(insertion), chance, 1.0, 0.5)


@pytest.mark.parametrize(
    ("deletion", "insertion", "said"),
    [
        (0.7, 1.3, "better than random orders"),
        (1.3, 0.7, "worse than random orders"),
        (0.7, 1.1, "deletion better than random orders, not the other way"),
        (0.9, 1.3, "insertion better than random orders, not the other way"),
        (0.7, 0.7, "deletion better than random orders, insertion worse"),
        (1.3, 1.0, "deletion worse than random orders"),
        (0.9, 1.1, "no better than random orders"),
    ],
)
def test_the_verdict_needs_two_standard_deviations(deletion, insertion, said):
    found = judged(deletion, insertion)
    assert found.verdict == said
    assert found.statement == (
        f"Areas: deletion {deletion:.3g} (random 1 ± 0.1), insertion {insertion:.3g} (random 1 ± 0.1): {said}."
    )
    assert found.deletion_gain == pytest.approx(1 - deletion)
    assert found.insertion_gain == pytest.approx(insertion - 1)
    assert judged(deletion, insertion, spread=1.0).verdict == "no better than random orders"


def test_what_does_not_fit_is_refused(run):
    explanation = cdam(run, TARGET)
    with pytest.raises(ValueError, match=r"explanation must have 16 scores.*but has 3"):
        faithfulness(run, TARGET, replace(explanation, scores=torch.zeros(3)))
    with pytest.raises(ValueError, match="steps must be at least 1 but is 0"):
        faithfulness(run, TARGET, explanation, steps=0)
    with pytest.raises(ValueError, match="orders must be at least 1 but is 0"):
        random_curves(run, TARGET, orders=0)
    chance = random_curves(run, TARGET, steps=4, orders=1)
    for options in ({"steps": 8}, {"steps": 4, "replacement": "zero"}):
        with pytest.raises(ValueError, match="make it with the same options"):
            faithfulness(run, TARGET, explanation, chance=chance, **options)


@given(count=st.integers(2, 60), steps=st.integers(1, 40))
def test_a_curve_begins_untouched_and_ends_empty(count, steps):
    counts = curve_counts(count, steps)
    assert counts[0] == 0
    assert counts[-1] == count
    assert counts == sorted(set(counts))
    assert len(counts) <= steps + 1
    order = torch.from_numpy(np.random.default_rng(count).permutation(count))
    masks = masks_of(order, counts)
    assert masks.sum(-1).tolist() == counts
    for row, taken in zip(masks, counts, strict=True):
        assert set(row.nonzero().flatten().tolist()) == set(order[:taken].tolist())


def test_the_area_is_the_mean_along_the_curve():
    assert Curve(np.array([0.0, 0.5, 1.0]), np.array([4.0, 2.0, 0.0])).area == 2.0
    assert Curve(np.array([0.0, 1.0]), np.array([3.0, 3.0])).area == 3.0


@given(
    values=random_arrays(
        np.float64, st.tuples(st.just(2), st.integers(2, 30)), elements=st.integers(-4, 4).map(float)
    )
)
def test_rank_correlation_is_scipys_with_ties(values):
    found = rank_correlation(torch.from_numpy(values[0]), torch.from_numpy(values[1]))
    if len(set(values[0])) == 1 or len(set(values[1])) == 1:
        assert np.isnan(found)
    else:
        assert found == pytest.approx(scipy.stats.spearmanr(*values).statistic, abs=1e-9)


def test_agreement_and_class_sensitivity(run):
    one, other = cdam(run, class_logit(1)), cdam(run, class_logit(3))
    table = agreement([one, other, replace(one, scores=-one.scores)])
    assert table[0, 0] == 1.0
    assert table[0, 2] == pytest.approx(-1.0)
    assert table[0, 1] == table[1, 0] == pytest.approx(rank_correlation(one.scores, other.scores))
    found = class_sensitivity(lambda target: cdam(run, target), class_logit(1), class_logit(3))
    assert found.correlation == pytest.approx(table[0, 1])
    assert found.warning == ""
    blind = class_sensitivity(lambda target: one, class_logit(1), class_logit(3))
    assert "does not depend on the class" in blind.warning
    with pytest.raises(ValueError, match="must have the same shape"):
        rank_correlation(torch.zeros(2), torch.zeros(3))
