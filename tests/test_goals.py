"""The table of goals: which side of a bound a figure is on, what a line says, what ends a check, and dense views."""

from __future__ import annotations

import pytest
import torch

from attn_core.factored import FactoredMap
from attn_core.flash import flash_attention
from attn_core.maps import DenseMap
from benchmarks import goals
from benchmarks.goal_views import check_same_views, exact_weights
from benchmarks.goals import CHECKED, GOALS, Reading, broken, outcome_of, row


def test_every_goal_is_measured_by_one_part() -> None:
    assert list(GOALS) == list(range(1, 25))
    assert set(CHECKED) == {*range(1, 14), 20, 21}
    for goal in GOALS.values():
        assert goal.keeps(goal.target, goal.limit), f"the target of row {goal.number} is beyond its limit"


@pytest.mark.parametrize(
    ("reading", "reached", "kept"),
    [
        (Reading(3, 0.5), "yes", "yes"),
        (Reading(3, 0.6), "no", "yes"),
        (Reading(3, 0.76), "no", "NO"),
        (Reading(6, 1.8), "yes", "yes"),
        (Reading(6, 1.31), "no", "yes"),
        (Reading(6, 1.29), "no", "NO"),
        (Reading(6, 1.9, target=3.0, limit=2.0), "no", "NO"),
        (Reading(13, 2e-4, limit=3e-4), "no", "yes"),
        (Reading(20, float("inf")), "no", "NO"),
        (Reading(22, None, "no GPU"), "–", "–"),
    ],
)
def test_a_figure_is_held_against_target_and_limit(reading: Reading, reached: str, kept: str) -> None:
    line = dict(zip(goals.COLUMNS, row(reading), strict=True))
    assert (line["target reached"], line["limit holds"]) == (reached, kept)
    assert broken([reading]) == ([reading] if kept == "NO" else [])


def test_a_check_ends_with_one_where_a_limit_is_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = []

    def found(wanted: goals.Asked) -> list[Reading]:
        asked.append(wanted)
        return [Reading(3, 0.9), Reading(14, 0.9)]

    monkeypatch.setattr(goals, "PARTS", (found,))
    assert goals.main(["--check"]) == 1
    assert asked[0].rows == set(CHECKED)
    said = capsys.readouterr().out
    assert "Row 3 breaks its limit" in said
    assert "| 14" not in said, "a row that was not asked for is left out"
    assert goals.main([]) == 0
    assert asked[1].rows == set(GOALS)


@pytest.mark.parametrize(
    ("output", "code", "passed", "failed"),
    [
        ("....\n12 passed, 3 skipped in 4.01s\n", 0, 12, 0),
        ("F\nFAILED a::b\n1 failed, 11 passed in 4.0s\n", 1, 11, 1),
        ("ERROR a\n2 errors in 1s\n", 2, 0, 2),
        ("86 skipped in 6.26s\n", 0, 0, 0),
        ("", 4, 0, 1),
    ],
)
def test_what_pytest_says_is_counted(output: str, code: int, passed: int, failed: int) -> None:
    ran = outcome_of(output, code, 1.0)
    assert (ran.passed, ran.failed) == (passed, failed)


def factored(size: int) -> FactoredMap:
    query, key, value = torch.randn(3, 1, 2, size, 8, generator=torch.Generator().manual_seed(size)).unbind()
    return FactoredMap(query, key, flash_attention(query, key, value).lse, scale=8**-0.5)


def test_dense_views_are_the_streamed_ones_and_another_map_is_not() -> None:
    maps = [factored(33), factored(33)]
    weights = [layer.dense() for layer in maps]
    check_same_views(maps, weights)
    torch.testing.assert_close(exact_weights(maps[0]).float(), weights[0], atol=1e-6, rtol=0)
    shifted = [weights[0], weights[1].roll(1, -1)]
    with pytest.raises(RuntimeError, match="check_same_views: streamed and dense views must agree"):
        check_same_views(maps, shifted)
    with pytest.raises(RuntimeError, match="exact_weights: the layer must be a plain softmax"):
        exact_weights(DenseMap(weights[0][None]))
