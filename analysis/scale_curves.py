"""Time and memory of one layer of attention against the length of the sequence, for each way of computing it.

What is measured, what was found, and what it says, with NumPy alone, so that a page can show it before torch is
imported. The measuring itself is ``analysis.scale_measure``, which ``measured`` runs in a process of its own: nothing
else of the server stands in its memory, it can be stopped at any time, and if memory runs out all the same, it is
this process that ends and not the server.
"""

from __future__ import annotations

import json
import math
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, Literal

import numpy as np

from analysis.figure_lab import Curve, CurvePanel, CurveSheet
from analysis.growth import FITTED_FROM, growth, power_in_words
from analysis.scale_plan import WAY_TITLES, WAYS, ScalePlan, Way

REPEATS = 5
REPEATED_SECONDS = 1.0
"""Passes of one point are repeated until they have taken this long, at most ``REPEATS`` times; the median counts."""

Why = Literal["absent", "seconds", "memory", "failed"]


@dataclass(frozen=True)
class Point:
    """One way at one length.

    Attributes:
        seconds: of one pass, median of ``repeats``.
        memory: most bytes of tensors alive at once beyond query, key and value.
    """

    way: Way
    size: int
    seconds: float
    memory: int
    repeats: int


@dataclass(frozen=True)
class Ended:
    """A way that goes no further.

    Attributes:
        size: first length that was not measured.
        why: it is not here at all, the next point would take too long or too much memory, or it failed.
        words: the reason, a sentence's end such as "the next pass would take about 24 s".
    """

    way: Way
    size: int
    why: Why
    words: str


@dataclass(frozen=True)
class ScaleRun:
    """What was found so far.

    Attributes:
        machine: (what, value) of the machine and the libraries.
        points, ended: in the order in which they were found.
        now: what is being measured; "" when nothing is.
    """

    machine: tuple[tuple[str, str], ...] = ()
    points: tuple[Point, ...] = ()
    ended: tuple[Ended, ...] = ()
    now: str = ""

    def of(self, way: Way) -> tuple[Point, ...]:
        """The points of one way, by length."""
        return tuple(sorted((point for point in self.points if point.way == way), key=lambda each: each.size))

    def end_of(self, way: Way) -> Ended | None:
        """Why a way ended before the longest length, or None."""
        return next((ended for ended in self.ended if ended.way == way), None)

    @property
    def measured_ways(self) -> tuple[Way, ...]:
        """The ways that have a point, in the order of ``WAYS``."""
        found = {point.way for point in self.points}
        return tuple(way for way in WAYS if way in found)


# Before ----------------------------------------------------------------------------------------------------------

START_SECONDS = 4.0
"""To start a process and import torch."""

COMPILE_SECONDS = 10.0
"""To compile flex_attention, for one length and then for any."""

REACHED: Mapping[Way, float] = MappingProxyType(
    {
        "dense": 0.35,
        "sdpa": 0.75,
        "fused": 0.75,
        "compiled": 0.9,
        "tiled": 0.45,
        "triton": 1.0,
        "flex": 0.6,
        "statistics": 0.5,
    }
)
"""About which share of the rate of a matrix product a way reaches; for the estimate alone."""

KEPT_PAIRS: Mapping[bool, int] = MappingProxyType({False: 3, True: 5})
"""About how many n × n arrays of the written-out formula stand at once, forward and with backward."""


@dataclass(frozen=True)
class ScaleEstimate:
    """About what a plan will take.

    Attributes:
        seconds: in all; ``memory``: bytes at the dearest point that will be measured.
        reached: the longest length of each way that the limits allow.
    """

    seconds: float
    memory: int
    reached: Mapping[Way, int]


def product_rate() -> float:
    """Floating-point operations a second of one core in a float32 matrix product, best of several short ones."""
    matrix = np.random.default_rng(0).standard_normal((384, 384), dtype=np.float32)
    taken = []
    for _ in range(20):
        start = time.process_time()  # of all threads: the rate is that of one core however many NumPy uses
        matrix @ matrix
        taken.append(time.process_time() - start)
    return float(2 * 384**3 / max(min(taken), 1e-6))


def estimate(plan: ScalePlan, rate: float) -> ScaleEstimate:
    """About how long a plan takes and how much memory, from its sizes alone.

    Args:
        rate: of one thread, as ``product_rate`` gives it.
    """
    cores = plan.threads or os.cpu_count() or 1
    total, memory, reached = START_SECONDS, 0, {}
    for way in plan.ways:
        if absent_for(way, plan) is not None:
            continue
        total += COMPILE_SECONDS if way == "flex" else 0.0
        for size in plan.sizes:
            seconds = pass_flops(plan, way, size) / (rate * cores * REACHED[way])
            needed = expected_memory(plan, way, size)
            if seconds > plan.seconds or needed > plan.memory:
                break
            passes = 1 + min(REPEATS, max(1, math.ceil(REPEATED_SECONDS / max(seconds, 1e-6))))
            total += seconds * passes
            memory, reached[way] = max(memory, needed), size
    return ScaleEstimate(total, memory, MappingProxyType(reached))


def pass_flops(plan: ScalePlan, way: Way, size: int) -> float:
    """About how many operations one pass takes: those of its matrix products over the pairs that it visits."""
    products = 2 if way == "statistics" else 7 if plan.backward else 2
    return 2.0 * products * plan.heads * plan.width * _visited(plan, way, size)


def _visited(plan: ScalePlan, way: Way, size: int) -> float:
    """Pairs that a way computes: those that skip what the rule excludes compute fewer."""
    skips = {
        "causal": ("sdpa", "fused", "compiled", "tiled", "triton", "flex"),
        "window": ("tiled", "triton", "flex"),
    }
    if way not in skips.get(plan.rule, ()):
        return float(size) ** 2
    if plan.rule == "causal":
        return float(size) ** 2 / 2
    return float(size) * min(plan.window + 256, size)  # and what stands in the tiles at the window's ends


def expected_memory(plan: ScalePlan, way: Way, size: int) -> int:
    """About how many bytes a pass needs beyond its input."""
    pairs = size * size
    if way == "dense":
        return KEPT_PAIRS[plan.backward] * plan.heads * pairs * 4
    vectors = (5 if plan.backward else 2) * plan.heads * size * plan.width * 4
    if way in ("sdpa", "fused") and plan.rule == "window":
        return vectors + 5 * pairs
    return vectors + (64 * 2**20 if way in ("tiled", "statistics") and size > 1024 else 0)


def absent_for(way: Way, plan: ScalePlan) -> str | None:
    """Why a way cannot be measured at all under a plan, as far as its choices tell; None where they do not."""
    if way == "triton" and plan.device == "cpu":
        return "its kernels run on a GPU; on a processor an interpreter checks them and tells nothing of time"
    if way == "flex" and plan.device == "cpu" and plan.backward:
        return "on a processor flex_attention has no backward pass"
    if way == "statistics" and plan.backward:
        return "a view reads the weights and has no backward pass"
    if way == "compiled":
        return _no_compiled(plan)
    if way == "fused" and plan.device == "cuda":
        return (
            "the operator with a log-sum-exp is wired up for processors; on a GPU the Triton kernel gives it"
        )
    return None


def _no_compiled(plan: ScalePlan) -> str | None:
    if plan.device == "cuda":
        return "it is code for processors"
    if plan.numbers != "float32":
        return f"it computes in float32 and not in {plan.numbers}"
    if plan.rule == "window":
        return "it knows no window"
    return "it has no backward pass" if plan.backward else None


# Measuring -------------------------------------------------------------------------------------------------------


def measured(plan: ScalePlan, told: Callable[[ScaleRun], None]) -> ScaleRun:
    """Measure in a process of its own.

    Args:
        told: is given what was found so far, at each step and at least twice a second; what it raises ends the
            process and comes out.
    Returns:
        all that was found; a process that the system ended (out of memory) leaves what it had found, and says so.
    Raises:
        RuntimeError: if the process fails before it has found anything.
    """
    run = ScaleRun()
    environment = {**os.environ}
    if plan.threads:
        environment |= {"OMP_NUM_THREADS": str(plan.threads), "MKL_NUM_THREADS": str(plan.threads)}
    command = [sys.executable, "-m", "analysis.scale_measure", json.dumps(asdict(plan))]
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as errors,
        subprocess.Popen(
            command,
            cwd=Path(__file__).resolve().parents[1],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            told(run)
            for line in _lines(process.stdout):
                run = run if line is None else _with(run, json.loads(line))
                told(run)
        except BaseException:
            process.kill()
            raise
        run = replace(run, now="")
        if process.wait() != 0:
            errors.seek(0)
            run = _broken_off(run, plan, process.returncode, errors.read())
    return run


def _lines(stream: IO[str], *, seconds: float = 0.5) -> Iterator[str | None]:
    """The lines of a process as they come; None whenever none has come for so long."""
    waiting: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        for line in stream:
            waiting.put(line)
        waiting.put(None)

    threading.Thread(target=read, name="scale curves", daemon=True).start()
    while True:
        try:
            line = waiting.get(timeout=seconds)
        except queue.Empty:
            yield None
            continue
        if line is None:
            return
        yield line


def _with(run: ScaleRun, message: Mapping[str, Any]) -> ScaleRun:
    """What was found, with one more message of the measuring process."""
    kind, values = message["kind"], message["values"]
    if kind == "machine":
        return replace(run, machine=tuple((name, value) for name, value in values))
    if kind == "now":
        return replace(run, now=values)
    if kind == "point":
        return replace(run, points=(*run.points, Point(**values)))
    return replace(run, ended=(*run.ended, Ended(**values)))


def _broken_off(run: ScaleRun, plan: ScalePlan, code: int, errors: str) -> ScaleRun:
    """What was found before the process ended badly, with the reason for each way that was not done.

    Raises:
        RuntimeError: if there is no point.
    """
    killed = code < 0
    if not run.points and not killed:
        raise RuntimeError(f"measured: the measuring process failed: {errors[-400:]}")
    reason = (
        f"the system ended the measuring process (signal {-code}), probably for want of memory"
        if killed
        else f"the measuring process failed: {errors.strip().splitlines()[-1] if errors.strip() else code}"
    )
    done = {ended.way for ended in run.ended}
    left = []
    for way in plan.ways:
        sizes = [size for size in plan.sizes if size not in {point.size for point in run.of(way)}]
        if way not in done and sizes:
            left.append(Ended(way, sizes[0], "failed", reason))
    return replace(run, ended=(*run.ended, *left))


def share_done(run: ScaleRun, plan: ScalePlan, rate: float) -> float:
    """About which share of a plan's time has passed, 0 to 1, by the estimated seconds of what is done."""
    whole = done = 0.0
    ended = {each.way: each.size for each in run.ended}
    found = {(point.way, point.size) for point in run.points}
    expected = estimate(plan, rate).reached
    for way in plan.ways:
        for size in plan.sizes:
            if size > expected.get(way, 0) and (way, size) not in found:
                continue
            spent = 0.05 + pass_flops(plan, way, size) / (rate * REACHED[way])
            whole += spent
            if (way, size) in found or size >= ended.get(way, size + 1):
                done += spent
    return done / whole if whole else 0.0


# What it says ----------------------------------------------------------------------------------------------------

MEMORY_NOTE = (
    "Memory is the most bytes of tensors alive at once beyond query, key and value, temporary ones inside an "
    "operator too; the measurement runs in a process of its own."
)


def scale_notes(plan: ScalePlan) -> tuple[str, ...]:
    """How it was measured, in sentences."""
    one = plan.threads == 1 and plan.device == "cpu"
    clock = "CPU time of one thread" if one else "time by the clock"
    return (
        f"Measured on this machine: {clock}, median of up to {REPEATS} passes after one that is not counted, the "
        "ways of one length in turn.",
        MEMORY_NOTE,
        f"A way ends where the next pass would take more than {plan.seconds:g} s or its point more than "
        f"{bytes_in_words(plan.memory)}. Dashed lines grow as n and as n².",
        f"Exponents are fitted to n = {FITTED_FROM} and above.",
    )


def plan_in_words(plan: ScalePlan) -> str:
    """ "6 heads of width 64, float32, causal, forward pass"."""
    rules = {"all": "all pairs", "causal": "causal", "window": f"causal window of {plan.window} keys"}
    heads = f"{plan.heads} head{'s' if plan.heads > 1 else ''} of width {plan.width}"
    passes = "forward and backward pass" if plan.backward else "forward pass"
    return f"{heads}, {plan.numbers}, {rules[plan.rule]}, {passes}"


def scale_sheet(run: ScaleRun, plan: ScalePlan, notes: Sequence[str] = ()) -> CurveSheet:
    """Time and memory against n on logarithmic axes, with lines of n and n²; no curves before there is a point."""
    readings: tuple[tuple[str, str, Callable[[Point], float]], ...] = (
        ("Time of one pass", "milliseconds", lambda point: 1e3 * point.seconds),
        ("Memory at the peak", "MiB", lambda point: point.memory / 2**20),
    )
    panels = []
    for title, unit, read in readings:
        curves = []
        for way in run.measured_ways:
            own = run.of(way)
            curves.append(
                Curve(
                    WAY_TITLES[way],
                    np.array([point.size for point in own], dtype=np.float64),
                    np.array([read(point) or math.nan for point in own], dtype=np.float64),
                    hue=WAYS.index(way),
                )
            )
        panels.append(CurvePanel(title, "n", unit, (*curves, *_guides(curves)), log_x=True, log_y=True))
    return CurveSheet(tuple(panels), title=plan_in_words(plan), notes=tuple(notes))


def _guides(curves: Sequence[Curve]) -> tuple[Curve, ...]:
    """Lines n² and n through the last point of the dearest and of the cheapest curve, inside what is drawn."""
    drawn = [curve for curve in curves if len(curve.x) > 1 and np.isfinite(curve.y).all()]
    if not drawn:
        return ()
    x = np.unique(np.concatenate([curve.x for curve in drawn]))
    values = np.concatenate([curve.y for curve in drawn])
    lowest, highest = values.min() / 2, values.max() * 2
    lines = []
    for name, power, pick in (("~ n²", 2, max), ("~ n", 1, min)):
        anchor = pick(drawn, key=lambda curve: curve.y[-1] / curve.x[-1] ** 2)
        y = anchor.y[-1] * (x / anchor.x[-1]) ** power
        y[(y < lowest) | (y > highest)] = np.nan
        lines.append(Curve(name, x, y, style="dashed", hue=len(WAYS) + power))
    return tuple(lines)


SCALE_HEADER = ("Way", "longest n", "Time", "grows as", "Memory", "grows as", "quicker than written out")


def scale_rows(run: ScaleRun) -> tuple[tuple[str, ...], ...]:
    """A line for each way that was measured, at its longest length, with fitted exponents."""
    rows = []
    for way in run.measured_ways:
        own = run.of(way)
        sizes = [point.size for point in own]
        rows.append(
            (
                WAY_TITLES[way],
                f"{own[-1].size:,}",
                seconds_in_words(own[-1].seconds),
                power_in_words(growth(sizes, [point.seconds for point in own])),
                bytes_in_words(own[-1].memory),
                power_in_words(growth(sizes, [point.memory for point in own])),
                _against_dense(run, way),
            )
        )
    return tuple(rows)


def endings(run: ScaleRun) -> tuple[str, ...]:
    """Why ways went no further, or are not here at all, a sentence each."""
    said = []
    for ended in run.ended:
        if ended.why == "absent" or not run.of(ended.way):
            said.append(f"{WAY_TITLES[ended.way]} is not here: {ended.words}.")
        else:
            said.append(f"{WAY_TITLES[ended.way]} ended before n = {ended.size:,}: {ended.words}.")
    return tuple(said)


def _against_dense(run: ScaleRun, way: Way) -> str:
    """From which length on a way was quicker than the formula written out."""
    crossed = crossing(run.of("dense"), run.of(way)) if way != "dense" else None
    if crossed is None:
        return "–"
    return _where(crossed)


def crossing(slow: Sequence[Point], quick: Sequence[Point]) -> tuple[bool, int | None] | None:
    """Where one way becomes quicker than another and stays so, over the lengths that both have.

    Returns:
        (whether it is at every length, the first such length or None where it is not at the longest); None where
        they share no length.
    """
    pairs = {point.size: point.seconds for point in slow}
    shared = [(point.size, point.seconds < pairs[point.size]) for point in quick if point.size in pairs]
    if not shared:
        return None
    first = None
    for size, quicker in reversed(shared):
        if not quicker:
            break
        first = size
    return first == shared[0][0], first


def conclusions(run: ScaleRun, plan: ScalePlan) -> tuple[str, ...]:
    """What the curves say: how the written-out formula grows, from where on others are quicker, what ends it."""
    sentences = []
    dense = run.of("dense")
    if len(dense) > 1:
        sizes = [point.size for point in dense]
        slopes = [growth(sizes, [getattr(point, name) for point in dense]) for name in ("seconds", "memory")]
        if not any(math.isnan(slope) for slope in slopes):
            sentences.append(
                f"Written out, attention's time grew as {power_in_words(slopes[0])} and its memory as "
                f"{power_in_words(slopes[1])}."
            )
    sentences += _compared(run)
    longest = [(run.of(way)[-1], way) for way in run.measured_ways if way not in NO_CONTEXT]
    ended = run.end_of("dense")
    if dense and ended is not None and ended.why in ("memory", "seconds") and longest:
        point, way = max(longest, key=lambda each: (each[0].size, -each[0].seconds))
        if point.size > dense[-1].size:
            sentences.append(
                f"Written out it ended before n = {ended.size:,}, since {ended.words}; {WAY_TITLES[way]} took "
                f"{seconds_in_words(point.seconds)} and {bytes_in_words(point.memory)} at n = {point.size:,}."
            )
    return tuple(sentences)


NO_CONTEXT: tuple[Way, ...] = ("dense", "statistics")
"""What the written-out formula is not held against: itself, and a view."""


def _compared(run: ScaleRun) -> tuple[str, ...]:
    """How many times as long the written-out formula took as each way, and from where on that way was quicker."""
    dense = run.of("dense")
    ratios: dict[int, list[str]] = {}
    wheres: dict[str, list[str]] = {}
    for way in run.measured_ways:
        crossed = None if way in NO_CONTEXT else crossing(dense, run.of(way))
        if crossed is None:
            continue
        own = {point.size: point.seconds for point in run.of(way)}
        last = [point for point in dense if point.size in own][-1]
        ratio = f"{last.seconds / own[last.size]:.2g} × as long as {WAY_TITLES[way]}"
        ratios.setdefault(last.size, []).append(ratio)
        wheres.setdefault(_where(crossed), []).append(WAY_TITLES[way])
    if not ratios:
        return ()
    told = [f"At n = {size:,} it took {', '.join(found)}." for size, found in ratios.items()]
    quicker = "; ".join(f"{', '.join(titles)} {where}" for where, titles in wheres.items())
    return (*told, f"Quicker than written out: {quicker}.")


def _where(crossed: tuple[bool, int | None]) -> str:
    always, size = crossed
    return "at every length" if always else "at no length" if size is None else f"from {size:,} on"


def seconds_in_words(seconds: float) -> str:
    """ "0.42 ms", "12 ms", "1.3 s", "2 min"."""
    if seconds < 1:
        return f"{1e3 * seconds:.2f}\u00a0ms" if seconds < 0.01 else f"{1e3 * seconds:.0f}\u00a0ms"
    return f"{seconds:.1f}\u00a0s" if seconds < 90 else f"{seconds / 60:.0f}\u00a0min"


def bytes_in_words(size: float) -> str:
    """ "12 KiB", "3.5 MiB", "2 GiB"."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB")):
        if size >= unit:
            return f"{size / unit:.3g}\u00a0{name}"
    return f"{size / 2**10:.3g}\u00a0KiB"
