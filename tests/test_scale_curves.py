"""Curves of time and memory: what is measured is attention, limits end a way before it allocates, words and lines."""

from __future__ import annotations

import itertools
import math
import signal
import subprocess
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from analysis import scale_curves, scale_measure
from analysis.figure_lab import CurveSheet
from analysis.scale_curves import (
    MEMORY_NOTE,
    WAY_TITLES,
    WAYS,
    Ended,
    Point,
    ScalePlan,
    ScaleRun,
    absent_for,
    conclusions,
    crossing,
    endings,
    estimate,
    expected_memory,
    measured,
    pass_flops,
    scale_notes,
    scale_rows,
    scale_sheet,
    share_done,
)
from analysis.scale_measure import block_mask, measurements, rule_of, run_of, vectors_of
from attn_core.flash.compiled import library
from attn_core.functional import attention

RULES = ("all", "causal", "window")
compiled = pytest.mark.skipif(library() is None or not library().panel_width(), reason="no C compiler")
SMALL = ScalePlan(heads=2, width=16, window=48, longest=256)
HERE = ("dense", "sdpa", "fused", "tiled", "statistics")
"""Ways that compile nothing."""

Found = list[tuple[str, Any]]


def room() -> int:
    return 2**40


def found_by(plan: ScalePlan, free: Any = room) -> Found:
    return list(measurements(plan, free))


def of_kind(found: Found, kind: str) -> list[Any]:
    return [values for name, values in found if name == kind]


# What is measured -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("way", "rule"),
    [
        *itertools.product(("dense", "sdpa", "fused", "tiled"), RULES),
        *(pytest.param("compiled", rule, marks=compiled) for rule in ("all", "causal")),
    ],
)
def test_every_way_is_attention_under_the_rule(way: Any, rule: Any) -> None:
    plan = replace(SMALL, rule=rule)
    vectors = vectors_of(plan, 150)
    expected = attention(vectors.query, vectors.key, vectors.value, rule=rule_of(plan)).context
    assert_close(run_of(way, plan, vectors)(), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("way", "rule"), list(itertools.product(("sdpa", "fused", "tiled"), RULES)))
def test_the_backward_pass_gives_the_gradients_of_all_three(way: Any, rule: Any) -> None:
    plan = replace(SMALL, rule=rule, backward=True)
    vectors = vectors_of(plan, 70)
    expected: Any = run_of("dense", plan, vectors)()
    found: Any = run_of(way, plan, vectors)()
    assert len(found) == 3
    for own, other in zip(found, expected, strict=True):
        assert_close(own, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("rule", RULES)
def test_statistics_are_those_of_the_layer(rule: Any) -> None:
    plan = replace(SMALL, rule=rule)
    vectors = vectors_of(plan, 90)
    exact = attention(vectors.query, vectors.key, vectors.value, rule=rule_of(plan))
    found: Any = run_of("statistics", plan, vectors)()
    assert exact.weights is not None
    assert_close(found.received, exact.weights[0].sum(-2), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("rule", "size"), list(itertools.product(("causal", "window"), (128, 300, 512))))
def test_the_block_mask_holds_what_the_rule_allows(rule: Any, size: int) -> None:
    plan = replace(SMALL, rule=rule, window=200)
    mask = block_mask(plan, size, torch.device("cpu"))
    given = rule_of(plan)
    assert given is not None
    places = torch.arange(size)
    allowed = given.allowed(places, places, queries=size, keys=size)
    assert allowed is not None
    blocks = -(-size // scale_measure.BLOCK)
    padded = torch.zeros(blocks * scale_measure.BLOCK, blocks * scale_measure.BLOCK, dtype=torch.bool)
    padded[:size, :size] = allowed.reshape(size, size)
    tiles = padded.unflatten(1, (blocks, -1)).unflatten(0, (blocks, -1)).movedim(2, 1)  # (r, c, 128, 128)
    kept = [
        set(mask.kv_indices[0, 0, row, : mask.kv_num_blocks[0, 0, row]].tolist())
        | set(mask.full_kv_indices[0, 0, row, : mask.full_kv_num_blocks[0, 0, row]].tolist())
        for row in range(blocks)
    ]
    full = [
        set(mask.full_kv_indices[0, 0, row, : mask.full_kv_num_blocks[0, 0, row]].tolist())
        for row in range(blocks)
    ]
    for row, column in itertools.product(range(blocks), repeat=2):
        tile = tiles[row, column]
        assert (column in kept[row]) or not tile.any(), "a block with an allowed pair is left out"
        real = tile[: size - row * scale_measure.BLOCK, : size - column * scale_measure.BLOCK]
        assert (column in full[row]) <= bool(real.all()), "a block with a forbidden pair counts as full"
    pairs = mask.mask_mod(torch.tensor(0), torch.tensor(0), places[:, None], places[None])
    assert torch.equal(pairs, allowed.reshape(size, size))


def test_flex_attention_is_compiled_or_not_here(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = replace(SMALL, rule="causal")
    vectors = vectors_of(plan, 128)
    monkeypatch.setattr(scale_measure, "_compiled", lambda function: function)
    expected = attention(vectors.query, vectors.key, vectors.value, rule=rule_of(plan)).context
    with torch.no_grad():
        assert_close(run_of("flex", plan, vectors)(), expected, atol=1e-5, rtol=1e-5)
    monkeypatch.setattr(scale_measure, "compiler", lambda: None)
    with pytest.raises(NotImplementedError, match=r"there is no C\+\+ compiler"):
        run_of("flex", plan, vectors)


@pytest.mark.parametrize(
    ("way", "changes", "said"),
    [
        ("triton", {}, "run on a GPU"),
        ("flex", {"backward": True}, "no backward pass"),
        ("statistics", {"backward": True}, "no backward pass"),
        ("fused", {"device": "cuda"}, "wired up for processors"),
        ("compiled", {"device": "cuda"}, "code for processors"),
        ("compiled", {"numbers": "bfloat16"}, "float32 and not in bfloat16"),
        ("compiled", {"rule": "window"}, "knows no window"),
        ("compiled", {"backward": True}, "no backward pass"),
    ],
)
def test_what_is_not_here_says_why(way: Any, changes: dict[str, Any], said: str) -> None:
    plan = replace(SMALL, **changes)
    reason = absent_for(way, plan)
    assert reason is not None
    assert said in reason
    with pytest.raises(NotImplementedError, match=said):
        run_of(way, plan, vectors_of(replace(plan, device="cpu"), 8))
    assert absent_for("dense", plan) is None


@pytest.mark.parametrize(("backward", "rule"), list(itertools.product((False, True), RULES)))
def test_twice_the_length_never_takes_more_than_four_times_the_memory(backward: bool, rule: Any) -> None:
    plan = replace(SMALL, backward=backward, rule=rule, ways=HERE, longest=512)
    points: list[Point] = of_kind(found_by(plan), "point")
    for way in {point.way for point in points}:
        memory = [point.memory for point in points if point.way == way]
        assert len(memory) == len(plan.sizes)
        assert all(later <= 4.2 * earlier for earlier, later in itertools.pairwise(memory)), way


# Limits -------------------------------------------------------------------------------------------------------------


def test_points_come_from_small_to_large_and_every_way_has_all() -> None:
    plan = replace(SMALL, ways=("dense", "triton", "tiled"))
    found = found_by(plan)
    assert of_kind(found, "ended") == [Ended("triton", 128, "absent", absent_for("triton", plan) or "")]
    points = [(point.size, point.way) for point in of_kind(found, "point")]
    assert points == [(128, "dense"), (128, "tiled"), (256, "dense"), (256, "tiled")]
    assert all(point.seconds > 0 and point.memory > 0 for point in of_kind(found, "point"))
    assert of_kind(found, "now")[0] == "Written out at n = 128"


def test_a_way_ends_before_a_point_that_would_take_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    make = scale_measure._peak_bytes

    def peak(plan: ScalePlan, run: Any) -> int:
        made.append(1)
        return make(plan, run)

    monkeypatch.setattr(scale_measure, "_peak_bytes", peak)
    dense = replace(SMALL, ways=("dense",), longest=4096)
    first, *_ = of_kind(found_by(replace(dense, longest=128)), "point")
    made.clear()
    (ended,) = of_kind(found_by(replace(dense, memory=int(4.1 * first.memory))), "ended")
    assert (ended.size, ended.why) == (512, "memory")
    assert "the next point would take up to" in ended.words
    assert len(made) == 2, "nothing is run at the length that would not fit"
    (ended,) = of_kind(found_by(dense, lambda: 3 * first.memory), "ended")
    assert (ended.size, ended.why) == (256, "memory")
    assert "are free" in ended.words
    (ended,) = of_kind(found_by(replace(dense, seconds=1e-7)), "ended")
    assert (ended.size, ended.why) == (256, "seconds")
    assert "the next pass would take about" in ended.words


def test_a_way_that_fails_is_told_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    make = scale_measure.run_of

    def fails_later(way: Any, plan: ScalePlan, vectors: Any) -> Any:
        if way == "sdpa" and vectors.size > 128:
            raise RuntimeError("out of something\nat a place")
        return make(way, plan, vectors)

    monkeypatch.setattr(scale_measure, "run_of", fails_later)
    found = found_by(replace(SMALL, ways=("sdpa", "dense")))
    assert of_kind(found, "ended") == [Ended("sdpa", 256, "failed", "out of something")]
    assert [(point.way, point.size) for point in of_kind(found, "point")] == [
        ("sdpa", 128), ("dense", 128), ("dense", 256)
    ]  # fmt: skip


def test_a_process_of_its_own_tells_what_it_finds_and_ends_when_it_is_stopped(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told: list[ScaleRun] = []
    plan = replace(SMALL, ways=("dense", "sdpa", "triton"))
    run = measured(plan, told.append)
    assert [(point.way, point.size) for point in run.points] == [
        ("dense", 128), ("sdpa", 128), ("dense", 256), ("sdpa", 256)
    ]  # fmt: skip
    assert dict(run.machine)["Threads"] == "1"
    assert [ended.way for ended in run.ended] == ["triton"]
    assert run.now == ""
    assert "Written out at n = 128" in {each.now for each in told}
    grown = [len(each.points) for each in told]
    assert grown == sorted(grown)
    assert set(grown) == {0, 1, 2, 3, 4}

    started: list[subprocess.Popen[str]] = []
    start = subprocess.Popen

    def watched(*arguments: Any, **options: Any) -> Any:
        started.append(start(*arguments, **options))
        return started[-1]

    def stopped(run: ScaleRun) -> None:
        if started:
            raise KeyError("stopped")

    monkeypatch.setattr(scale_curves.subprocess, "Popen", watched)
    with pytest.raises(KeyError, match="stopped"):
        measured(plan, stopped)
    assert started[0].wait(10) == -signal.SIGKILL


def test_a_process_that_the_system_ended_leaves_what_it_had_found() -> None:
    run = ScaleRun(
        points=(Point("dense", 128, 1e-3, 10, 5),), ended=(Ended("triton", 128, "absent", "no GPU"),)
    )
    plan = replace(SMALL, ways=("dense", "sdpa", "triton"))
    killed = scale_curves._broken_off(run, plan, -9, "")
    assert killed.points == run.points
    assert [(each.way, each.size, each.why) for each in killed.ended] == [
        ("triton", 128, "absent"), ("dense", 256, "failed"), ("sdpa", 128, "failed")
    ]  # fmt: skip
    assert "signal 9" in killed.ended[1].words
    failed = scale_curves._broken_off(run, plan, 1, "Traceback\nValueError: odd\n")
    assert failed.ended[1].words.endswith("ValueError: odd")
    with pytest.raises(RuntimeError, match=r"measured: the measuring process failed: .*odd"):
        scale_curves._broken_off(ScaleRun(), plan, 1, "ValueError: odd")


# Before -------------------------------------------------------------------------------------------------------------


def test_an_estimate_stops_where_the_limits_do() -> None:
    plan = ScalePlan(longest=16384, memory=2 * 2**30)
    found = estimate(plan, 1e11)
    assert found.reached["dense"] == 4096  # 3 arrays of 6 × 8192² float32 are 4.5 GiB
    assert found.reached["fused"] == 16384
    assert "triton" not in found.reached
    assert found.memory <= plan.memory
    assert estimate(replace(plan, longest=1024), 1e11).seconds < found.seconds
    assert estimate(plan, 1e9).reached["fused"] < 16384, "a slow machine ends earlier"


def test_expected_memory_of_the_formula_is_what_is_measured() -> None:
    for backward in (False, True):
        plan = replace(SMALL, ways=("dense",), longest=512, backward=backward)
        last = of_kind(found_by(plan), "point")[-1]
        assert last.memory / 2 < expected_memory(plan, "dense", 512) < 2 * last.memory


def test_a_rule_saves_operations_only_where_it_is_skipped() -> None:
    window = replace(SMALL, rule="window", window=256)
    assert pass_flops(window, "tiled", 8192) < pass_flops(SMALL, "tiled", 8192) / 10
    assert pass_flops(window, "dense", 8192) == pass_flops(SMALL, "dense", 8192)
    assert pass_flops(replace(SMALL, backward=True), "dense", 8192) == 3.5 * pass_flops(SMALL, "dense", 8192)


def test_progress_rises_to_one() -> None:
    plan = replace(SMALL, ways=("dense", "sdpa", "triton"), longest=512)
    run = ScaleRun(ended=(Ended("triton", 128, "absent", ""),))
    shares = [share_done(run, plan, 1e11)]
    for size, way in itertools.product(plan.sizes, ("dense", "sdpa")):
        run = replace(run, points=(*run.points, Point(way, size, 1e-3, 1, 5)))  # type: ignore[arg-type]
        shares.append(share_done(run, plan, 1e11))
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)
    ended = ScaleRun(
        points=run.points[:2], ended=(Ended("dense", 256, "memory", ""), Ended("sdpa", 256, "seconds", ""))
    )
    assert share_done(ended, plan, 1e11) == 1.0


# What it says -----------------------------------------------------------------------------------------------------

SIZES = (128, 256, 512, 1024, 2048, 4096)


def grown(way: Any, first: float, power: float, memory: int, memory_power: int) -> tuple[Point, ...]:
    return tuple(
        Point(way, n, first * (n / 128) ** power, memory * (n // 128) ** memory_power, 5) for n in SIZES
    )


RUN = ScaleRun(
    machine=(("Cores", "2"),),
    points=(
        *grown("dense", 1e-4, 2, 2**20, 2),
        *grown("sdpa", 3e-4, 1.5, 2**10, 1),
        *grown("statistics", 1e-3, 2, 2**12, 1),
        Point("sdpa", 8192, 0.15, 2**16, 1),
    ),
    ended=(
        Ended("dense", 8192, "memory", "the next point would take up to 4 GiB"),
        Ended("triton", 128, "absent", "no GPU"),
    ),
)


def test_where_one_way_becomes_quicker_and_stays_so() -> None:
    slow, quick = RUN.of("dense"), RUN.of("sdpa")
    assert crossing(slow, quick) == (False, 2048)  # 1e-4 x² > 3e-4 x^1.5 where x > 9
    assert crossing(quick, slow) == (False, None)
    assert crossing(slow, [replace(point, seconds=point.seconds / 9) for point in slow]) == (True, 128)
    assert crossing(slow, ()) is None
    once = [replace(point, seconds=1e-6 if point.size == 256 else 9.0) for point in slow]
    assert crossing(slow, once) == (False, None), "quicker once and not later"


def test_the_words_tell_exponents_crossings_and_what_ended() -> None:
    plan = ScalePlan(longest=8192)
    said = " ".join(conclusions(RUN, plan)).replace("\u00a0", " ")
    assert "time grew as n^2.00 and its memory as n^2.00" in said
    assert "At n = 4,096 it took 1.9 × as long as PyTorch SDPA. " in said
    assert "Quicker than written out: PyTorch SDPA from 2,048 on." in said
    assert "Streamed statistics" not in said, "a view is no way to the context"
    assert (
        "ended before n = 8,192, since the next point would take up to 4 GiB; PyTorch SDPA took 150 ms"
        in said
    )
    assert endings(RUN) == (
        "Written out ended before n = 8,192: the next point would take up to 4 GiB.",
        "Triton kernel is not here: no GPU.",
    )
    rows = {line[0]: line for line in scale_rows(RUN)}
    assert list(rows) == ["Written out", "PyTorch SDPA", "Streamed statistics"]
    assert rows["Written out"][1:] == ("4,096", "102\u00a0ms", "n^2.00", "1\u00a0GiB", "n^2.00", "–")
    assert rows["PyTorch SDPA"][-1] == "from 2,048 on"
    assert rows["Streamed statistics"][-1] == "at no length"
    assert conclusions(ScaleRun(), plan) == ()


def test_the_sheet_holds_every_point_and_lines_of_n_and_n_squared() -> None:
    sheet = scale_sheet(RUN, ScalePlan())
    time, memory = sheet.panels
    for panel, read in (
        (time, lambda point: 1e3 * point.seconds),
        (memory, lambda point: point.memory / 2**20),
    ):
        curves = {curve.name: curve for curve in panel.curves}
        assert (panel.log_x, panel.log_y) == (True, True)
        own = curves["PyTorch SDPA"]
        np.testing.assert_allclose(own.y, [read(point) for point in RUN.of("sdpa")])
        for name, power in (("~ n²", 2), ("~ n", 1)):
            line = curves[name]
            drawn = np.isfinite(line.y)
            assert drawn.sum() > 1
            assert line.style == "dashed"
            slope = np.polyfit(np.log(line.x[drawn]), np.log(line.y[drawn]), 1)[0]
            assert math.isclose(slope, power, rel_tol=1e-9)
        drawn_y = np.concatenate([curve.y for curve in panel.curves if curve.style != "dashed"])
        guides = np.concatenate([curves[name].y for name in ("~ n²", "~ n")])
        assert np.nanmax(guides) <= 2 * drawn_y.max(), "a guide stays inside what is drawn"
    hues = [curve.hue for curve in time.curves]
    assert len(set(hues)) == len(hues)
    empty = scale_sheet(ScaleRun(), ScalePlan())
    assert isinstance(empty, CurveSheet)
    assert all(panel.curves == () for panel in empty.panels)


def test_notes_say_which_clock_it_was() -> None:
    assert "CPU time of one thread" in scale_notes(ScalePlan())[0]
    assert "time by the clock" in scale_notes(ScalePlan(threads=0))[0]
    assert MEMORY_NOTE in scale_notes(ScalePlan())
    assert list(WAY_TITLES) == list(WAYS)
