"""The goals of the project, each against its anchor in the same run: target, limit and figure.

    python -m benchmarks.goals [--check] [--large] [--only 3 5] [--repeats 5]

Every figure is a ratio to an anchor that is measured in the same process on the same tensors (memory: in processes of
their own), so it holds on another machine. Seconds are a limit for the suite of the kernels alone: CPU time, which is
that of the clock on a quiet machine. ``--check`` takes rows 1–13 at up to 1,025 positions (memory: 4,097) and rows
20–21, and ends with 1 where a limit is broken. ``--large`` adds 4,097 and 16,385 positions, which take some minutes
and, for the dense anchor, 6 GiB.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import resource
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from benchmarks.measure import MIB, ROOT, cpu_seconds, machine, print_table

SMALL, MIDDLE, LARGE, LARGEST = 257, 1025, 4097, 16385

DENSE_BYTES = 7 * 2**30
"""Free memory that the dense anchor at 4,097 positions wants."""

KERNEL_TESTS = "tests/attn_core/test_triton*.py"
COMPILE_TESTS = "tests/attn_core/test_triton*compile.py"


@dataclass(frozen=True)
class Goal:
    """One row.

    Attributes:
        number: in the list of goals.
        title: what is measured; ``anchor``: what it is divided by.
        target, limit: figures to reach, and to keep.
        more: a larger figure is better.
        form: how a figure is written.
    """

    number: int
    title: str
    anchor: str
    target: float
    limit: float
    more: bool = False
    form: str = "{:.2f}"

    def keeps(self, figure: float, bound: float) -> bool:
        """Whether a figure is on the right side of a bound."""
        return figure >= bound if self.more else figure <= bound

    def told(self, value: float) -> str:
        """A figure, target or limit in words."""
        return self.form.format(value)


@dataclass(frozen=True)
class Reading:
    """What was found for a goal.

    Attributes:
        figure: None where this machine or this run does not measure it, which ``note`` then says.
        note: the length, what else there is to know.
        target, limit: of this reading where they are other than the goal's.
    """

    number: int
    figure: float | None
    note: str = ""
    target: float | None = None
    limit: float | None = None


GOALS: Mapping[int, Goal] = MappingProxyType(
    {
        goal.number: goal
        for goal in (
            Goal(1, "recorded forward pass, n = 1,025", "sdpa forward", 1.03, 1.15),
            Goal(2, "recorded forward pass, n = 4,097", "eager with output_attentions", 0.35, 0.5),
            Goal(3, "statistics + columns + rollout in one pass, n = 1,025", "sdpa forward", 0.5, 0.75),
            Goal(4, "the same, n = 4,097", "sdpa forward", 0.9, 1.3),
            Goal(5, "rollout step of one layer", "SDPA of that layer", 0.75, 1.0),
            Goal(
                6, "record and views, times faster", "eager, dense statistics, full rollout", 1.8, 1.3, True
            ),
            Goal(7, "the same, n = 257", "eager, dense statistics, full rollout", 0.9, 0.7, True),
            Goal(8, "one row of all layers", "sdpa forward", 0.003, 0.02, form="{:.4f}"),
            Goal(9, "pooled 512 × 512 map of one layer", "SDPA of that layer", 1.05, 1.5),
            Goal(
                10, "extra memory of all views, n = 4,097", "bytes of all weights", 0.09, 0.15, form="{:.1%}"
            ),
            Goal(11, "all views at n = 16,385, peak GB", "–", 2.5, 4.0),
            Goal(12, "growth of extra memory, n × 4", "linear: 4", 4.2, 6.0),
            Goal(13, "largest error of a view", "float64 dense, same q and k", 5e-5, 1e-4, form="{:.1e}"),
            Goal(14, "CDAM + GradCAM + relevance", "one forward and backward pass", 1.15, 1.4),
            Goal(15, "CDAM of ten classes, times faster", "ten separate runs", 5.0, 3.0, True, "{:.1f}"),
            Goal(
                16,
                "adversarial search of 64 texts, times faster",
                "one text at a time",
                15,
                8,
                True,
                "{:.1f}",
            ),
            Goal(17, "100 permutations of 64 texts, times faster", "one at a time", 40, 10, True, "{:.1f}"),
            Goal(
                18, "Integrated Gradients, 50 steps, 32 tokens, times faster", "step by step", 2.5, 1.5, True
            ),
            Goal(19, "first page, imports", "import torch", 0.5, 0.8),
            Goal(20, "Triton kernels under the interpreter, s", "CPU time", 30, 90, form="{:.0f}"),
            Goal(21, "Triton kernels compile ahead of time, tests failed", "–", 0, 0, form="{:.0f}"),
            Goal(22, "GPU forward pass", "best explicit SDPA backend", 0.85, 0.6, True),
            Goal(23, "GPU statistics + rollout in one pass", "best SDPA forward", 1.0, 2.0),
            Goal(24, "GPU, memory of any view at n = 32,768", "the record", 1.5, 2.0),
        )
    }
)

CHECKED = (*range(1, 14), 20, 21)
"""Rows whose limits ``--check`` holds."""

LARGE_TARGETS: Mapping[int, tuple[float, float]] = MappingProxyType({6: (3.0, 2.0)})
"""(target, limit) at 4,097 positions where the goal has others there."""


@dataclass(frozen=True)
class Asked:
    """What a run is to measure.

    Attributes:
        rows: numbers of goals.
        large: also at 4,097 and 16,385 positions.
        repeats: whose median counts.
    """

    rows: frozenset[int]
    large: bool
    repeats: int


# Rows 1–13 -------------------------------------------------------------------------------------------------------


def view_rows(asked: Asked) -> Iterator[Reading]:
    """Rows 1 to 9: time of recording and of views."""
    from benchmarks.goal_views import Costs, costs

    wanted = asked.rows & set(range(1, 10))
    if not wanted:
        return
    if wanted & {7}:
        yield Reading(7, _times_faster(costs(SMALL, repeats=asked.repeats, dense=True)), f"n = {SMALL}")
    if wanted & {1, 3, 5, 6, 8, 9}:
        middle = costs(MIDDLE, repeats=asked.repeats, dense=True)
        yield Reading(1, middle.recorded / middle.plain)
        yield Reading(3, middle.views / middle.plain)
        yield from _layer_rows(middle)
        yield Reading(6, _times_faster(middle), f"n = {MIDDLE:,}")
    if not asked.large:
        yield from (Reading(number, None, "with --large") for number in (2, 4))
        return
    if not wanted & {2, 4, 5, 6, 8, 9}:
        return
    dense = bool(wanted & {2, 6}) and _enough_for_dense()
    found: Costs = costs(LARGE, repeats=min(asked.repeats, 3), dense=dense)
    yield Reading(4, found.views / found.plain)
    yield from _layer_rows(found)
    if found.written is None:
        yield Reading(2, None, f"the dense anchor wants {DENSE_BYTES / 2**30:.0f} GiB of free memory")
        return
    yield Reading(2, found.recorded / found.written)
    target, limit = LARGE_TARGETS[6]
    yield Reading(6, _times_faster(found), f"n = {LARGE:,}", target=target, limit=limit)


def _layer_rows(found: Any) -> Iterator[Reading]:
    """Rows 5, 8 and 9 of the costs at one length."""
    told = f"n = {found.tokens:,}"
    of_other = "" if found.tokens == LARGE else f"; the target is that of {LARGE:,}"
    yield Reading(5, found.step / found.layer, told)
    yield Reading(8, found.row / found.plain, told + of_other)
    yield Reading(9, found.pooled / found.layer, told)


def _times_faster(found: Any) -> float:
    """The dense way over the streamed one, each from the input to the views."""
    return float(found.dense_views / (found.recorded + found.views))


def _enough_for_dense() -> bool:
    from analysis.estimate import available_memory

    return available_memory().size >= DENSE_BYTES


def memory_rows(asked: Asked) -> Iterator[Reading]:
    """Rows 10 to 12: memory of all views in processes of their own."""
    from benchmarks.goal_views import dense_bytes, view_memory

    if not asked.rows & {10, 11, 12}:
        return
    large = view_memory(LARGE)
    told = f"{large.extra / MIB:.0f} MiB of {dense_bytes(LARGE) / MIB:,.0f}"
    yield Reading(10, large.extra / dense_bytes(LARGE), told)
    if not asked.large:
        middle = view_memory(MIDDLE)
        yield Reading(12, large.extra / middle.extra, f"{MIDDLE:,} → {LARGE:,}")
        yield Reading(11, None, "with --large")
        return
    largest = view_memory(LARGEST)
    yield Reading(11, largest.peak / 1e9)
    yield Reading(12, largest.extra / large.extra, f"{LARGE:,} → {LARGEST:,}")


def accuracy_row(asked: Asked) -> Iterator[Reading]:
    """Row 13: the largest error of any view, on a real picture."""
    from benchmarks.goal_views import accuracy

    if 13 not in asked.rows:
        return
    found = accuracy(MIDDLE)
    worst = max(found.errors, key=found.errors.__getitem__)
    limit = max(1e-6 * max(10.0, found.largest_lse), GOALS[13].limit)
    yield Reading(
        13,
        found.errors[worst],
        f"{worst}; n = {MIDDLE:,}, max |lse| {found.largest_lse:.0f}, float32",
        limit=limit,
    )


# Rows 14–19 ------------------------------------------------------------------------------------------------------


def evidence_rows(asked: Asked) -> Iterator[Reading]:
    """Rows 14 and 15: gradient methods that share a pass."""
    if not asked.rows & {14, 15}:
        return
    from analysis.images import read_picture
    from analysis.inputs import encode_image
    from analysis.samples import sample_picture_bytes
    from benchmarks.capture import loaded_model
    from benchmarks.evidence import BASE, ways

    model = loaded_model("picture-classifier")
    picture = read_picture(sample_picture_bytes("cat"), name="cat")
    inputs = encode_image(model, picture, side=224)
    seconds = cpu_seconds(ways(model, inputs), repeats=asked.repeats)
    told = f"{inputs.kept_tokens:,} positions"
    yield Reading(14, seconds["CDAM + GradCAM + relevance, shared"] / seconds[BASE], told)
    one, ten = (seconds[f"CDAM of ten classes, {name}"] for name in ("one pass", "ten passes"))
    yield Reading(15, ten / one, told)


def adversarial_rows(asked: Asked) -> Iterator[Reading]:
    """Rows 16 and 17: checks of attention over many texts together."""
    if not asked.rows & {16, 17}:
        return
    from benchmarks import adversarial
    from benchmarks.capture import loaded_model

    module: Any = loaded_model("recurrent-sentiment").module
    batch = adversarial.texts(adversarial.TEXTS)
    found = {
        16: (adversarial.searches(module, batch, adversarial.STEPS), 1e-5),
        17: (adversarial.permutation_ways(module, batch, texts_alone=True), 1e-6),
    }
    for number, (ways, within) in found.items():
        if number in asked.rows:
            adversarial.check_same(ways, within=within)
            slow, quick = cpu_seconds(ways, repeats=asked.repeats).values()
            yield Reading(number, slow / quick)


def gradients_row(asked: Asked) -> Iterator[Reading]:
    """Row 18: Integrated Gradients with several steps at once."""
    if 18 not in asked.rows:
        return
    from unittest.mock import patch

    from analysis.evidence.gradients import integrated_gradients
    from analysis.evidence.passes import forward_pass
    from analysis.evidence.targets import class_logit
    from analysis.inputs import encode_text
    from analysis.samples import sample_corpus
    from benchmarks.capture import loaded_model

    model = loaded_model("sentiment")
    inputs = encode_text(model, " ".join(sample_corpus()), max_tokens=32)
    run, target = forward_pass(model, inputs), class_logit(0)

    def together() -> Any:
        return integrated_gradients(run, target, steps=50, most=50, stretches=1).scores

    def step_by_step() -> Any:
        """As captum does it on the model as it is."""
        with (
            patch("analysis.evidence.gradients.batch_items", lambda *_: 1),
            patch("analysis.evidence.products.is_quicker", lambda: False),
        ):
            return together()

    difference = float((together() - step_by_step()).abs().max())
    if difference > 1e-4:
        raise RuntimeError(
            f"gradients_row: both ways must give the same scores but differ by {difference:.1e}; mend them."
        )
    seconds = cpu_seconds({"alone": step_by_step, "together": together}, repeats=asked.repeats)
    yield Reading(18, seconds["alone"] / seconds["together"], f"{inputs.kept_tokens} tokens")


def startup_row(asked: Asked) -> Iterator[Reading]:
    """Row 19: what the first page imports, each time in fresh processes."""
    if 19 not in asked.rows:
        return
    from benchmarks.startup import first_page_modules, import_seconds

    modules = first_page_modules()
    found = [(import_seconds(modules), import_seconds(["torch"])) for _ in range(asked.repeats + 1)][1:]
    if any(page[2] for page, _ in found):
        raise RuntimeError("startup_row: the first page must load without torch but imports it.")
    page, torch = (statistics.median(each[index][0] for each in found) for index in (0, 1))
    yield Reading(19, page / torch, "CPU seconds; torch does not come along")


# Rows 20–24 ------------------------------------------------------------------------------------------------------


def triton_rows(asked: Asked) -> Iterator[Reading]:
    """Rows 20 and 21: the kernels under the interpreter and ahead-of-time compilation, as tests of their own."""
    files = _test_files(KERNEL_TESTS), _test_files(COMPILE_TESTS)
    kernels, compiled = sorted(set(files[0]) - set(files[1])), files[1]
    for number, paths in ((20, kernels), (21, compiled)):
        if number not in asked.rows:
            continue
        if importlib.util.find_spec("triton") is None or not paths:
            yield Reading(number, None, "Triton is not installed here" if paths else "no such tests")
            continue
        ran = _tested(paths)
        if not ran.passed and not ran.failed:
            yield Reading(number, None, f"nothing ran: {ran.told}")
        elif number == 20:
            yield Reading(20, float("inf") if ran.failed else ran.seconds, ran.told)
        else:
            yield Reading(21, float(ran.failed), ran.told)


def _test_files(pattern: str) -> list[str]:
    return sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob(pattern))


@dataclass(frozen=True)
class Outcome:
    """A run of test files.

    Attributes:
        seconds: CPU time of its processes.
        passed, failed: how many tests; a run that ends badly without naming a failed test counts as one failure.
        told: pytest's last line.
    """

    seconds: float
    passed: int
    failed: int
    told: str


def _tested(paths: Sequence[str]) -> Outcome:
    """Test files run in one fresh process."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *paths]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ran = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return outcome_of(ran.stdout, ran.returncode, seconds)


def outcome_of(output: str, code: int, seconds: float) -> Outcome:
    """What pytest's output says; ``code`` is what it ended with (5: no test ran)."""
    lines = [line for line in output.splitlines() if line.strip()]
    last = lines[-1].strip("= ") if lines else f"pytest ended with {code}"
    counted = {what: int(number) for number, what in re.findall(r"(\d+) (passed|failed|error)", last)}
    failed = counted.get("failed", 0) + counted.get("error", 0)
    if code not in (0, 5):
        failed = max(failed, 1)
    return Outcome(seconds, counted.get("passed", 0), failed, last)


def gpu_rows(asked: Asked) -> Iterator[Reading]:
    """Row 22 where there is a GPU; ``benchmarks.gpu`` prints rows 23 and 24 beside its tables."""
    wanted = sorted(asked.rows & {22, 23, 24})
    if not wanted:
        return
    import torch

    if not torch.cuda.is_available():
        yield from (Reading(number, None, "no GPU") for number in wanted)
        return
    if 22 in wanted:
        yield from (_gpu_forward(width) for width in (64, 128))
    yield from (
        Reading(number, None, "python -m benchmarks.gpu prints it") for number in wanted if number > 22
    )


def _gpu_forward(width: int) -> Reading:
    """Row 22 at one width: the fastest backend of PyTorch over our kernel, bfloat16, not causal."""
    import torch
    from triton.testing import do_bench

    from benchmarks import gpu

    given = gpu.vectors(4096, width, torch.bfloat16, "cuda")
    taken = gpu.timed(
        gpu.forward_runs(given, causal=False),
        lambda run: float(do_bench(run, return_mode="median")),
        dense=True,
    )
    fastest = min((name for name in gpu.BACKENDS if name in taken), key=taken.__getitem__)
    target, limit = gpu.TARGETS[width]
    note = f"d = {width}, n = 4,096, against {fastest}"
    return Reading(22, taken[fastest] / taken["triton"], note, target=target, limit=limit)


# The table -------------------------------------------------------------------------------------------------------

PARTS: tuple[Callable[[Asked], Iterable[Reading]], ...] = (
    view_rows,
    memory_rows,
    accuracy_row,
    evidence_rows,
    adversarial_rows,
    gradients_row,
    startup_row,
    triton_rows,
    gpu_rows,
)


def readings(asked: Asked) -> list[Reading]:
    """Everything that was asked for, by number."""
    found = [reading for part in PARTS for reading in part(asked) if reading.number in asked.rows]
    return sorted(found, key=lambda reading: reading.number)


COLUMNS = ("#", "goal", "anchor", "target", "limit", "figure", "target reached", "limit holds", "note")


def row(reading: Reading) -> tuple[str, ...]:
    """One line of the table."""
    goal = GOALS[reading.number]
    target = goal.target if reading.target is None else reading.target
    limit = goal.limit if reading.limit is None else reading.limit
    bounds = (f"{'≥' if goal.more else '≤'} {goal.told(value)}" for value in (target, limit))
    start = (str(goal.number), goal.title, goal.anchor, *bounds)
    if reading.figure is None:
        return (*start, "–", "–", "–", reading.note)
    reached, kept = (goal.keeps(reading.figure, bound) for bound in (target, limit))
    said = goal.told(reading.figure), "yes" if reached else "no", "yes" if kept else "NO"
    return (*start, *said, reading.note)


def broken(found: Sequence[Reading]) -> list[Reading]:
    """Readings that break their limit."""
    return [reading for reading in found if reading.figure is not None and not _kept(reading, reading.figure)]


def _kept(reading: Reading, figure: float) -> bool:
    goal = GOALS[reading.number]
    return goal.keeps(figure, goal.limit if reading.limit is None else reading.limit)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table; 1 where a limit is broken and ``--check`` asks for it, else 0."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="rows 1–13 and 20–21; end with 1 where a limit is broken"
    )
    parser.add_argument("--large", action="store_true", help="also 4,097 and 16,385 positions")
    parser.add_argument(
        "--only", type=int, nargs="+", choices=sorted(GOALS), metavar="ROW", help="these rows alone"
    )
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(arguments)
    rows = options.only or (CHECKED if options.check else GOALS)
    found = readings(Asked(frozenset(rows), options.large, options.repeats))
    print_table(f"Goals ({machine()}; medians of {options.repeats})", COLUMNS, [row(each) for each in found])
    over = broken(found)
    for reading in over:
        goal = GOALS[reading.number]
        print(f"Row {goal.number} breaks its limit: {goal.title} is {goal.told(reading.figure or 0.0)}.")
    return 1 if options.check and over else 0


if __name__ == "__main__":
    sys.exit(main())
