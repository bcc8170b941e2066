"""The measuring process of ``analysis.scale_curves``.

    python -m analysis.scale_measure '{"ways": ["dense", "sdpa"], "longest": 1024}'

prints one JSON object a line: what the machine is, what is being measured, each point, and why a way ends. The ways
of one length run in turn, so that a busy machine disturbs them alike. What a next point would take is foreseen from
the points before it: time grows as it did, at least twofold and at most 4.5-fold; memory at most fourfold, which is
what n × n arrays do. So nothing is allocated that would not fit.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from analysis.estimate import available_memory
from analysis.lab.variant_costs import peak_tensor_bytes
from analysis.scale_curves import (
    REPEATED_SECONDS,
    REPEATS,
    Ended,
    Point,
    absent_for,
    bytes_in_words,
    seconds_in_words,
)
from analysis.scale_plan import WAY_TITLES, ScalePlan, Way
from attn_core.factored import FactoredMap
from attn_core.flash import flash_attention
from attn_core.functional import attention
from attn_core.masks import MaskRule

Message = tuple[Literal["machine", "now", "point", "ended"], Any]

BLOCK = 128
"""Positions of a block of flex_attention's mask."""

BEAT_SECONDS = 1.0

FAILURES = (RuntimeError, ValueError, TypeError, NotImplementedError, ImportError, MemoryError)
"""What a way may raise that a machine, a PyTorch or a choice does not have; told and left out."""


@dataclass(frozen=True)
class Vectors:
    """Query, key and value of one length, each (1, H, n, D), shared by the ways; leaves of a graph for a backward."""

    query: Tensor
    key: Tensor
    value: Tensor

    @property
    def size(self) -> int:
        """n."""
        return self.query.shape[2]


def vectors_of(plan: ScalePlan, size: int) -> Vectors:
    """Random vectors, drawn from a seed."""
    generator = torch.Generator().manual_seed(size)
    drawn = torch.randn(3, 1, plan.heads, size, plan.width, generator=generator)
    drawn = drawn.to(plan.device, getattr(torch, plan.numbers))
    return Vectors(*(each.clone().requires_grad_(plan.backward) for each in drawn.unbind()))


def rule_of(plan: ScalePlan) -> MaskRule | None:
    """The rule of a plan; None where every pair is allowed."""
    if plan.rule == "all":
        return None
    return MaskRule(causal=True, window=plan.window if plan.rule == "window" else None)


def run_of(way: Way, plan: ScalePlan, vectors: Vectors) -> Callable[[], object]:
    """One pass of a way over the vectors; what it returns is what the pass leaves.

    Raises:
        ValueError, ImportError, NotImplementedError, RuntimeError: if the way is not here.
    """
    reason = absent_for(way, plan)
    if reason is not None:
        raise NotImplementedError(reason)
    if way == "statistics":
        return _statistics(plan, vectors)
    forward = _forward(way, plan, vectors)
    if not plan.backward:
        return forward
    leaves = (vectors.query, vectors.key, vectors.value)
    sent = torch.ones_like(vectors.value)
    return lambda: torch.autograd.grad(forward(), leaves, sent)


def _forward(way: Way, plan: ScalePlan, vectors: Vectors) -> Callable[[], Tensor]:
    """Context of the vectors, (1, H, n, D)."""
    query, key, value = vectors.query, vectors.key, vectors.value
    rule = rule_of(plan)
    if way == "dense":
        return lambda: attention(query, key, value, rule=rule).context
    if way == "sdpa":
        return lambda: _sdpa(plan, vectors)
    if way == "flex":
        return _flex(plan, vectors)
    impl: Any = way
    return lambda: flash_attention(query, key, value, rule=rule, impl=impl).context


def _sdpa(plan: ScalePlan, vectors: Vectors) -> Tensor:
    """PyTorch's operator; it knows no window, so that is a mask of all pairs, made in the pass that needs it."""
    operator = torch.nn.functional.scaled_dot_product_attention
    query, key, value = vectors.query, vectors.key, vectors.value
    if plan.rule != "window":
        return operator(query, key, value, is_causal=plan.rule == "causal")
    ones = torch.ones(vectors.size, vectors.size, dtype=torch.bool, device=query.device)
    return operator(query, key, value, attn_mask=ones.tril_().triu_(1 - plan.window))


def _statistics(plan: ScalePlan, vectors: Vectors) -> Callable[[], object]:
    """What each head does, from the record of a forward pass; the pass itself is not counted."""
    rule = rule_of(plan)
    lse = flash_attention(vectors.query, vectors.key, vectors.value, rule=rule).lse.contiguous()
    layer = FactoredMap(
        vectors.query, vectors.key, lse, scale=plan.width**-0.5, rule=MaskRule() if rule is None else rule
    )
    return layer.statistics


def compiler() -> str | None:
    """Name of the C++ compiler that torch.compile would use; None where there is none."""
    for name in filter(None, (os.environ.get("CXX"), "g++", "clang++", "cl")):
        if shutil.which(name):
            return Path(name).name
    return None


def _flex(plan: ScalePlan, vectors: Vectors) -> Callable[[], Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    if plan.device == "cpu" and compiler() is None:
        raise NotImplementedError(
            "there is no C++ compiler, and without one flex_attention is the written-out formula"
        )
    # The same function each time, so that the second length compiles for any length and no third is compiled.
    compiled: Any = _compiled(flex_attention)
    mask = block_mask(plan, vectors.size, vectors.query.device)
    return lambda: compiled(vectors.query, vectors.key, vectors.value, block_mask=mask)


def _compiled(function: Any) -> Any:
    return torch.compile(function)


def block_mask(plan: ScalePlan, size: int, device: torch.device) -> Any:
    """flex_attention's mask of a rule, from the bounds of its blocks; no n × n array. None where all is allowed.

    A block is full where each of its pairs is allowed, partial where one is: q − k lies between the distance of its
    nearest and that of its farthest corner.
    """
    from torch.nn.attention.flex_attention import BlockMask

    if plan.rule == "all":
        return None
    window = plan.window if plan.rule == "window" else size
    starts = torch.arange(0, size, BLOCK, device=device)
    nearest = starts[:, None] - (starts + BLOCK - 1)
    farthest = (starts[:, None] + BLOCK - 1) - starts
    some = (farthest >= 0) & (nearest < window)
    full = (nearest >= 0) & (farthest < window)

    def allowed(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) & (query - key < window)

    def packed(blocks: Tensor) -> tuple[Tensor, Tensor]:
        order = (~blocks).to(torch.int32).argsort(dim=-1, stable=True)
        return blocks.sum(-1).to(torch.int32)[None, None], order.to(torch.int32)[None, None]

    return BlockMask.from_kv_blocks(
        *packed(some & ~full),
        *packed(full),
        BLOCK_SIZE=BLOCK,
        mask_mod=allowed,
        seq_lengths=(size, size),
    )


# Measuring -------------------------------------------------------------------------------------------------------


@dataclass
class _Course:
    """What one way has shown so far."""

    seconds: list[float] = field(default_factory=list)
    memory: list[int] = field(default_factory=list)

    def next_seconds(self) -> float:
        """What the next length is foreseen to take."""
        if not self.seconds:
            return 0.0
        grown = self.seconds[-1] / self.seconds[-2] if len(self.seconds) > 1 else 4.0
        return self.seconds[-1] * min(max(grown, 2.0), 4.5)

    def next_memory(self) -> int:
        """Most that the next length can take."""
        return 4 * self.memory[-1] if self.memory else 0

    def refusal(self, plan: ScalePlan, room: int) -> tuple[Literal["seconds", "memory"], str] | None:
        """Why the next length is not measured, or None."""
        seconds, memory = self.next_seconds(), self.next_memory()
        if seconds > plan.seconds:
            return "seconds", f"the next pass would take about {seconds_in_words(seconds)}"
        if memory > plan.memory:
            return "memory", f"the next point would take up to {bytes_in_words(memory)}"
        if memory > room:
            return "memory", (
                f"the next point would take up to {bytes_in_words(memory)}, and {bytes_in_words(room)} are free"
            )
        return None


def measurements(plan: ScalePlan, room: Callable[[], int]) -> Iterator[Message]:
    """What is found, as it is found; in this process.

    Args:
        room: bytes that this process may still take.
    """
    courses = {way: _Course() for way in plan.ways}
    for size in plan.sizes:
        runs: dict[Way, Callable[[], object]] = {}
        vectors = vectors_of(plan, size)
        for way, course in tuple(courses.items()):
            refused = course.refusal(plan, room())
            if refused is not None:
                yield "ended", Ended(way, size, *refused)
                del courses[way]
                continue
            yield "now", f"{WAY_TITLES[way]} at n = {size:,}"
            try:
                runs[way] = _without_graph(plan, run_of(way, plan, vectors))
                course.memory.append(_peak_bytes(plan, runs[way]))
            except FAILURES as error:
                runs.pop(way, None)
                yield "ended", Ended(way, size, "failed" if course.seconds else "absent", _told(error))
                del courses[way]
        for way, seconds, repeats in _timed(plan, runs):
            courses[way].seconds.append(seconds)
            yield "point", Point(way, size, seconds, courses[way].memory[-1], repeats)
        if not courses:
            return


def _without_graph(plan: ScalePlan, run: Callable[[], object]) -> Callable[[], object]:
    if plan.backward:
        return run
    return torch.no_grad()(run)  # inference_mode is refused by compiled functions of some versions


def _timed(plan: ScalePlan, runs: dict[Way, Callable[[], object]]) -> Iterator[tuple[Way, float, int]]:
    """(way, median seconds, repeats) of each run, in turn; quick ones are repeated more often."""
    taken: dict[Way, list[float]] = {way: [] for way in runs}
    waiting = list(runs)
    while waiting:
        for way in tuple(waiting):
            taken[way].append(_seconds(plan, runs[way]))
            if len(taken[way]) == REPEATS or sum(taken[way]) > REPEATED_SECONDS:
                waiting.remove(way)
                yield way, statistics.median(taken[way]), len(taken[way])


def _seconds(plan: ScalePlan, run: Callable[[], object]) -> float:
    """Of one pass: CPU time of the one thread, or by the clock where others work too."""
    alone = plan.threads == 1 and plan.device == "cpu"
    clock = time.thread_time if alone else time.perf_counter
    _wait_for_device(plan)
    start = clock()
    run()
    _wait_for_device(plan)
    return clock() - start


def _wait_for_device(plan: ScalePlan) -> None:
    if plan.device == "cuda":
        torch.cuda.synchronize()


def _peak_bytes(plan: ScalePlan, run: Callable[[], object]) -> int:
    """Most bytes of tensors alive at once in a pass beyond its input; the pass before it is not counted."""
    if plan.device == "cuda":
        run()  # compiles, and chooses among its settings
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        held = run()
        torch.cuda.synchronize()
        del held
        return torch.cuda.max_memory_allocated() - before
    return peak_tensor_bytes(run)


def _told(error: BaseException) -> str:
    """What an error says, in one line."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:200]


def machine_facts(plan: ScalePlan) -> tuple[tuple[str, str], ...]:
    """(what, value) of what the figures hang on."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    found = [
        ("Processor", f"{platform.machine()}, {torch.backends.cpu.get_cpu_capability()}"),
        ("Cores", str(cores)),
        ("Threads", str(torch.get_num_threads())),
        ("PyTorch", str(torch.__version__)),
        ("C++ compiler", compiler() or "none"),
    ]
    if plan.device == "cuda":
        found.insert(0, ("Device", torch.cuda.get_device_name()))
    with contextlib.suppress(OSError, AttributeError):
        found.append(("Load at the start", f"{os.getloadavg()[0]:.1f}"))
    return tuple(found)


def free_bytes(plan: ScalePlan) -> int:
    """Bytes that a point may take here: four fifths of what is free."""
    if plan.device == "cuda":
        return torch.cuda.mem_get_info()[0] * 4 // 5
    return available_memory().size * 4 // 5


def main(arguments: Sequence[str]) -> None:
    """Print what a plan given as JSON finds, one message a line."""
    given: dict[str, Any] = json.loads(arguments[0])
    plan = ScalePlan(**{**given, "ways": tuple(given.get("ways", ScalePlan.ways))})
    if plan.threads:
        torch.set_num_threads(plan.threads)
    _be_ended_first()
    # What a library or a compiler prints must not stand among the messages.
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def tell(message: Message) -> None:
        kind, values = message
        values = asdict(values) if isinstance(values, Point | Ended) else values
        output.write(json.dumps({"kind": kind, "values": values}) + "\n")
        output.flush()

    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    if plan.device == "cuda" and not torch.cuda.is_available():
        for way in plan.ways:
            tell(("ended", Ended(way, plan.sizes[0], "absent", "PyTorch sees no GPU on this machine")))
        return
    tell(("machine", machine_facts(plan)))
    for message in measurements(plan, lambda: free_bytes(plan)):
        tell(message)


def _be_ended_first() -> None:
    """If memory runs out all the same, let the system end this process and not the server (Linux)."""
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")


def _end_with_parent(parent: int) -> None:
    """End when the server that asked has ended."""
    while os.getppid() == parent:
        time.sleep(BEAT_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
