"""Costs of the variants: runs against their open forms, memory against known bytes, slopes, words, the process."""

from __future__ import annotations

import math
import signal
import subprocess
import threading

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from analysis.growth import growth
from analysis.lab import variant_costs
from analysis.lab.inputs import LabVectors, numbered
from analysis.lab.variant_costs import (
    COST_HEADER,
    COST_TITLES,
    WIDTH,
    CostPlan,
    Measurement,
    cost_conclusions,
    cost_rows,
    cost_sheet,
    measured,
    measurements,
    operations,
    peak_tensor_bytes,
    runs_of,
)
from analysis.lab.variants import VariantSettings, compare_variants

ALL = tuple(COST_TITLES)


@pytest.mark.parametrize("variant", [name for name in ALL if name not in ("fused", "reformer")])
def test_what_is_measured_is_what_is_shown(variant) -> None:
    sizes = VariantSettings(window=3, block=8, pattern="bigbird", features="random", count=8)
    query, key, value = torch.randn(3, 1, 1, 96, WIDTH, generator=sizes.generator()).unbind()
    vectors = LabVectors(query[0], key[0], value[0], numbered(96), "")
    shown = compare_variants(vectors, (variant,), sizes).results[0]
    assert_close(
        runs_of(variant, 96, sizes)()[0, 0].double(), torch.from_numpy(shown.context), atol=1e-4, rtol=1e-4
    )


def test_fused_is_exact_and_reformer_sees_its_chunks() -> None:
    sizes = VariantSettings()
    assert_close(runs_of("fused", 96, sizes)(), runs_of("exact", 96, sizes)())
    assert runs_of("reformer", 96, sizes)().shape == (1, 1, 96, WIDTH)
    with pytest.raises(ValueError, match="runs_of: variant must be"):
        runs_of("other", 96, sizes)  # type: ignore[arg-type]


@pytest.mark.parametrize("variant", ["exact", "linear", "fast_weights", "linformer", "reformer"])
@pytest.mark.parametrize("features", ["elu", "random"])
def test_formulas_of_operations_are_what_pytorch_counts(variant, features: str) -> None:
    sizes = VariantSettings(features=features, count=16)
    run = runs_of(variant, 70, sizes)
    with FlopCounterMode(display=False) as counter:
        run()
    mapped = variant in ("linear", "fast_weights") and features == "random"
    made = 2 * 2 * 70 * WIDTH * 16 if mapped else 0  # the features themselves
    assert counter.get_total_flops() == operations(variant, 70, sizes) + made


def test_a_sparse_rule_is_counted_by_the_pair() -> None:
    assert operations("window", 256, VariantSettings(window=1)) == 256 * 4 * WIDTH


def test_the_peak_counts_what_is_alive_at_once_temporary_or_not() -> None:
    mebi = 2**18  # numbers of 4 bytes
    assert peak_tensor_bytes(lambda: torch.empty(mebi)) == pytest.approx(2**20, rel=0.01)

    def rising() -> torch.Tensor:
        first, second = torch.empty(2 * mebi), torch.empty(mebi)
        del first
        return second

    assert peak_tensor_bytes(rising) == pytest.approx(3 * 2**20, rel=0.01)

    def in_turn() -> None:
        for _ in range(3):
            torch.empty(mebi)

    assert peak_tensor_bytes(in_turn) == pytest.approx(2**20, rel=0.01)


def test_written_out_attention_holds_three_arrays_of_all_pairs_and_the_fused_none() -> None:
    n = 512
    exact, fused = (peak_tensor_bytes(runs_of(name, n, VariantSettings())) for name in ("exact", "fused"))
    assert 3 * 4 * n * n <= exact < 3.1 * 4 * n * n
    assert fused < 4 * n * n


def test_every_variant_is_measured_at_every_length() -> None:
    plan = CostPlan(ALL, sizes=(64, 80), repeats=1)  # type: ignore[arg-type]
    found = list(measurements(plan))
    assert [(each.variant, each.size) for each in found] == [(name, n) for n in (64, 80) for name in ALL]
    assert all(each.seconds > 0 and each.memory > 0 and each.flops > 0 for each in found)


def test_a_process_of_its_own_measures_and_tells_how_far_it_is() -> None:
    told: list[float] = []
    plan = CostPlan(
        ("exact", "linear"), sizes=(64, 128), settings=VariantSettings(features="relu"), repeats=1
    )
    found = measured(plan, told.append)
    assert [(each.variant, each.size) for each in found] == [
        ("exact", 64), ("linear", 64), ("exact", 128), ("linear", 128)
    ]  # fmt: skip
    assert told == pytest.approx([0, 0.1, 0.2, 0.6, 1])


def test_what_the_progress_raises_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    started = []

    class Remembered(subprocess.Popen):
        def __init__(self, *arguments, **options) -> None:
            super().__init__(*arguments, **options)
            started.append(self)

    monkeypatch.setattr(variant_costs.subprocess, "Popen", Remembered)

    def stop(done: float) -> None:
        raise KeyError("stop")

    threads = threading.active_count()
    with pytest.raises(KeyError):
        measured(CostPlan(("exact",)), stop)
    assert started[0].returncode == -signal.SIGKILL
    assert threading.active_count() == threads


def test_a_failing_process_is_told() -> None:
    plan = CostPlan(("block",), settings=VariantSettings(pattern="rising"), sizes=(64,))
    with pytest.raises(
        RuntimeError, match=r"measured: the measuring process failed: (?s:.)*KeyError: 'rising'"
    ):
        measured(plan, lambda _: None)


# What is said ----------------------------------------------------------------------------------------------------


def points(variant: str, power: float, *, at_last: float, memory: float = 1.0) -> list[Measurement]:
    return [
        Measurement(variant, n, at_last * (n / 4096) ** power, int(2**20 * memory * (n / 4096) ** power), n)  # type: ignore[arg-type]
        for n in (64, 256, 512, 1024, 4096)
    ]


def test_growth_is_the_slope_on_logarithmic_axes() -> None:
    n = np.array([64, 512, 1024, 2048, 4096])
    assert growth(n, 3.0 * n**1.5) == pytest.approx(1.5)
    overhead = np.where(n < 512, 1e9, n**2.0)
    assert growth(n, overhead) == pytest.approx(2)
    assert math.isnan(growth([64, 512], [1, 2]))
    assert growth([512, 1024, 2048], [0, 1, 2]) == pytest.approx(1)


def test_the_sentence_says_what_is_quickest_and_from_where_on_it_pays() -> None:
    exact = points("exact", 2, at_last=1.0, memory=64)
    text = " ".join(
        cost_conclusions([*exact, *points("linear", 1, at_last=0.1), *points("window", 1, at_last=0.4)])
    )
    assert "From n = 512 on exact attention's time grew as n^2.00 and its memory as n^2.00." in text
    assert "At n = 4,096 linear attention was quickest, 10.0 times as quick" in text
    assert "with 1.6\N{NO-BREAK SPACE}% of its memory" in text
    assert "Below n = 512 it was no quicker than that." in text  # equal at 409.6
    text = " ".join(cost_conclusions([*exact, *points("window", 2, at_last=0.1)]))
    assert "the sliding window was quickest" in text
    assert "Below" not in text
    text = " ".join(cost_conclusions([*exact, *points("reformer", 1, at_last=1.5)]))
    assert "Up to n = 4,096 no variant was quicker" in text
    assert len(cost_conclusions(exact)) == 1
    assert cost_conclusions(points("linear", 1, at_last=1)) == ()


def test_sheets_and_rows_hold_the_numbers() -> None:
    found = [
        *points("exact", 2, at_last=1.0),
        *points("fused", 2, at_last=0.5),
        *points("linear", 1, at_last=0.1),
    ]
    sheet = cost_sheet(found, ("note",))
    assert [panel.title for panel in sheet.panels] == ["Time", "Memory", "Operations"]
    time = sheet.panels[0]
    assert [curve.name for curve in time.curves] == [
        "Exact, written out",
        "Exact, fused",
        "Linear",
        "~ n²",
        "~ n",
    ]
    np.testing.assert_allclose(time.curves[0].y, time.curves[3].y)  # exact is quadratic here
    np.testing.assert_allclose(time.curves[2].y, time.curves[4].y)
    assert len({curve.hue for curve in time.curves}) == 5
    rows = cost_rows(found)
    assert rows[0] == ("Exact, written out", "1,000.00 ms", "n^2.00", "1.00 MiB", "n^2.00", "0.0", "n^1.00")
    assert all(len(row) == len(COST_HEADER) for row in rows)
    assert cost_sheet([]).panels[0].curves == ()
