"""How long a computation will take and how much memory, told from sizes alone before anything is allocated.

Times come from a short measurement of this machine (``measure_rate``) and the operations that a computation needs;
memory from what it keeps at once. Both are first-order: right to about a factor of two, which is what a reader needs
to decide whether to wait, and what a server needs to refuse what would not fit.
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

    from analysis.models import LoadedModel
    from attn_core.maps import AttentionMap

Pass = Literal["pooled", "statistics", "rows", "written"]
"""Ways through all weights: thumbnails; what each head does; sums of weighted rows; every weight written out."""

Shape = tuple[int, int, int]
"""Heads, queries and keys of one map."""

Stage = tuple[int, float]
"""Weights that ``attn_core.watching`` counts, and seconds."""

STRIP_BYTES = 64 * 2**20
"""What a pass over strips of a map holds at once: the strip (``attn_core.strips``) and a few arrays made from it."""

SPARE_BYTES = 512 * 2**20
"""What is left to the rest of the server when a computation is let in."""


@dataclass(frozen=True)
class Estimate:
    """What a computation will take.

    Attributes:
        seconds: wall time with the machine to itself.
        memory_bytes: most that is held at once, beside what is there before.
        weights: what ``attn_core.watching`` will have counted at the end; 0 where it counts nothing.
        parts: (what, seconds, bytes) of what it is made up of.
        stages: (weights, seconds) of what follows one another, where a weight does not take equally long in each.
    """

    seconds: float
    memory_bytes: int
    weights: int = 0
    parts: tuple[tuple[str, float, int], ...] = ()
    stages: tuple[Stage, ...] = ()

    def share(self, worked: int) -> float:
        """The share of the time that is over when so many weights have been counted; 0 where nobody knows."""
        stages = self.stages or ((self.weights, self.seconds),)
        whole = sum(seconds for weights, seconds in stages if weights)
        over = 0.0
        for weights, seconds in stages:
            if weights:
                over += seconds * min(worked / weights, 1.0)
                worked = max(worked - weights, 0)
        return over / whole if whole else 0.0


@dataclass(frozen=True)
class MachineRate:
    """What this machine does in a second, with the threads that the process uses.

    Attributes:
        product: operations of a matrix product of a model's layers (two a multiply-add).
        fused: operations of attention that keeps no weights.
        pooled, statistics, rows, written: weights of a map that a pass of that kind goes through.
    """

    product: float
    fused: float
    pooled: float
    statistics: float
    rows: float
    written: float


SLOW_MACHINE = MachineRate(product=1.5e10, fused=8e9, pooled=2.5e7, statistics=1e7, rows=2.5e7, written=2.5e7)
"""Slower than most machines: what is quick at this rate is quick, without a measurement."""


@dataclass(frozen=True)
class ModelSize:
    """What the cost of a model's forward pass follows from.

    Attributes:
        parameters: that every position passes through (embedding tables are looked up, not multiplied).
        layers, heads, kv_heads, head_width: of attention.
        width: of the hidden states; ``inner_width``: of the feed-forward layers.
        outputs: numbers a position in the answer, such as the vocabulary of a language model; 0 without.
        element_bytes: of one number.
        window: most keys that a query sees where the model attends inside windows; None for all.
        keeps_weights: whether the model hands out its weights themselves (no seam): n × n of each layer.
    """

    parameters: int
    layers: int
    heads: int
    kv_heads: int
    head_width: int
    width: int
    inner_width: int
    outputs: int = 0
    element_bytes: int = 4
    window: int | None = None
    keeps_weights: bool = False


def model_size(model: LoadedModel) -> ModelSize:
    """The sizes of a loaded model, from its configuration and its weights."""
    config = getattr(model.module, "config", None)
    text = getattr(config, "get_text_config", lambda: config)() if model.modality == "text" else config
    width = _number(text, "hidden_size", "d_model", "embed_dim", "n_embd") or 64 * model.heads
    layers = max(model.layers + model.decoder_layers, 1)
    looked_up, outputs = 0, 0
    for name, parameter in model.module.named_parameters():
        if parameter.ndim == 2 and "embed" in name and parameter.shape[0] > 4 * parameter.shape[1]:
            looked_up += parameter.numel()
    if model.task.endswith("-lm") or model.task in ("text-generation", "fill-mask", "translation"):
        outputs = _number(text, "vocab_size") or 0
    window = _number(config, "window_size")
    head_width = _number(text, "head_dim", "d_kv") or max(width // model.heads, 1)
    return ModelSize(
        parameters=max(model.parameters - looked_up, 1) + outputs * width,
        layers=layers,
        heads=model.heads,
        kv_heads=model.kv_heads,
        head_width=head_width,
        width=width,
        inner_width=_number(text, "intermediate_size", "d_ff", "ffn_dim", "n_inner") or 4 * width,
        outputs=outputs,
        element_bytes=model.dtype.itemsize,
        window=None if window is None or not hasattr(config, "depths") else window * window,
        keeps_weights=not model.seam,
    )


def _number(config: object, *names: str) -> int | None:
    """The first of some fields of a configuration that holds a number."""
    found = (getattr(config, name, None) for name in names)
    return next((value for value in found if isinstance(value, int) and value > 0), None)


# Estimates -------------------------------------------------------------------------------------------------------


def forward_estimate(size: ModelSize, tokens: int, rate: MachineRate) -> Estimate:
    """One forward pass that keeps the attention of every layer (``analysis.trace.trace``)."""
    pairs = tokens * min(tokens, size.window or tokens)
    weights = size.layers * size.heads * pairs
    layers = 2.0 * size.parameters * tokens / rate.product
    attention = 4.0 * weights * size.head_width / rate.fused
    record = record_bytes(size, tokens)
    # What a block holds at once, twice: freed arrays of a few megabytes leave gaps that larger ones do not fill.
    working = tokens * (16 * size.width + 6 * size.inner_width + 2 * size.outputs) * size.element_bytes
    kept = weights * 4 if size.keeps_weights else 0
    parts = (
        ("layers", layers, working),
        ("attention", attention, kept),
        ("record of query, key and log-sum-exp", 0.0, record),
    )
    return _sum(parts, weights=weights)


def record_bytes(size: ModelSize, tokens: int) -> int:
    """What is kept of a forward pass: query, key and log-sum-exp of every layer."""
    numbers = (size.heads + size.kv_heads) * size.head_width * size.element_bytes + size.heads * 4
    return size.layers * tokens * numbers


def graph_bytes(size: ModelSize, tokens: int) -> int:
    """What the graph of all layers holds beside the record of their attention."""
    layer = 2 * size.inner_width + 8 * size.width + 2 * size.heads * size.head_width
    return size.layers * tokens * layer * size.element_bytes


def gradient_estimate(
    size: ModelSize, tokens: int, rate: MachineRate, *, graph_budget: float = math.inf
) -> Estimate:
    """A forward pass that keeps its graph, and one backward pass from an answer to the input embeddings.

    Args:
        graph_budget: bytes above which the graph is not kept, but made again block by block on the way back
            (``analysis.evidence.passes``).
    """
    forward = forward_estimate(size, tokens, rate)
    graph, backward = graph_bytes(size, tokens), 2.0 * forward.seconds
    if graph > graph_budget:
        entries = size.layers * tokens * size.width * size.element_bytes
        graph, backward = entries + graph // size.layers, 3.0 * forward.seconds
    parts = (
        ("forward pass", forward.seconds, forward.memory_bytes),
        ("graph", 0.0, graph),
        ("backward pass", backward, tokens * 4 * size.inner_width * size.element_bytes),
    )
    return _sum(parts, weights=forward.weights)


def method_estimate(
    size: ModelSize,
    tokens: int,
    rate: MachineRate,
    *,
    layers: int,
    walks: float,
    shapes: Sequence[Shape],
    by_blocks: bool,
) -> Estimate:
    """What an explanation takes that asks a forward pass, which is there, for gradients.

    Args:
        layers: whose gradients it asks for, from the last one down; 0 for none.
        walks: passes over the weights of every layer, each as long as one that carries a row.
        shapes: of the maps.
        by_blocks: the graph is made again block by block.
    """
    passes = gradient_estimate(size, tokens, rate, graph_budget=0.0 if by_blocks else math.inf)
    seconds = next(seconds for name, seconds, _ in passes.parts if name == "backward pass")
    weights = sum(heads * queries * keys for heads, queries, keys in shapes)
    share = layers / size.layers
    again = max(layers - 1, 0) / size.layers if by_blocks else 0.0  # the last layer has its graph
    stages = (
        (round(weights * (share + again)), seconds * share),
        (round(weights * (size.layers - 1) / size.layers) if walks else 0, walks * weights / rate.rows),
    )
    return Estimate(
        seconds=sum(stage[1] for stage in stages), memory_bytes=passes.memory_bytes, stages=stages
    )


def survey_estimate(size: ModelSize, tokens: int, rate: MachineRate) -> Estimate:
    """A forward pass, and a pass over the weights of every layer for what each head does."""
    forward = forward_estimate(size, tokens, rate)
    weights = size.layers * size.heads * tokens * min(tokens, size.window or tokens)
    parts = (
        ("forward pass", forward.seconds, forward.memory_bytes),
        ("statistics", weights / rate.statistics, 2 * STRIP_BYTES),
    )
    return _sum(parts, weights=2 * weights)


def shapes_of(maps: Iterable[AttentionMap]) -> list[Shape]:
    """The shapes that a pass over some maps goes through: of a map that is made of windows, those of the windows."""
    found: list[Shape] = []
    for held in maps:
        inside = getattr(held, "windows", None)
        windows = (held,) if inside is None else inside if isinstance(inside, tuple) else (inside,)
        found += [(each.batch * each.heads, each.queries, each.keys) for each in windows]
    return found


def pass_estimate(
    kind: Pass, shapes: Iterable[Shape], rate: MachineRate, *, answer_bytes: int = 0
) -> Estimate:
    """One pass over all weights of some maps, a strip at a time.

    Args:
        shapes: of the maps.
        answer_bytes: of what comes out.
    """
    weights = sum(heads * queries * keys for heads, queries, keys in shapes)
    return Estimate(weights / getattr(rate, kind), STRIP_BYTES + answer_bytes, weights)


def rollout_row_estimate(shapes: Sequence[Shape], rate: MachineRate) -> Estimate:
    """One row of a rollout, as a chain of vector products through the layers."""
    return pass_estimate("rows", shapes, rate, answer_bytes=sum(4 * keys for _, _, keys in shapes[:1]))


def rollout_estimate(shapes: Sequence[Shape], rate: MachineRate) -> Estimate:
    """A whole rollout: every layer dense, and a product of n × n matrices a layer."""
    weights = sum(heads * queries * keys for heads, queries, keys in shapes)
    products = sum(2.0 * queries * keys * keys for _, queries, keys in shapes)
    largest = max((heads + 4) * queries * keys * 4 for heads, queries, keys in shapes)
    seconds = weights / rate.written + products / rate.product
    return Estimate(seconds, largest, weights)


def dense_estimate(shape: Shape, rate: MachineRate) -> Estimate:
    """Weights of a map written out, head by head where there are several."""
    heads, queries, keys = shape
    weights = heads * queries * keys
    return Estimate(weights / rate.written, 3 * queries * keys * 4 + STRIP_BYTES, 0)


def _sum(parts: tuple[tuple[str, float, int], ...], *, weights: int) -> Estimate:
    seconds, memory = sum(part[1] for part in parts), sum(part[2] for part in parts)
    return Estimate(seconds, memory, weights, parts)


# In words --------------------------------------------------------------------------------------------------------


def in_words(estimate: Estimate) -> str:
    """ "about 1 min 40 s and 1.2 GB"."""
    return f"about {seconds_in_words(estimate.seconds)} and {bytes_in_words(estimate.memory_bytes)}"


def seconds_in_words(seconds: float) -> str:
    """As finely as an estimate deserves: "3 s", "25 s", "1 min 30 s", "4 min", "25 min", "1 h 30 min", "12 h"."""
    if seconds < 9.5:
        return f"{max(round(seconds), 1)} s"
    if seconds < 57.5:
        return f"{5 * round(seconds / 5)} s"
    minutes = seconds / 60
    if 1.25 <= minutes < 1.75:
        return "1 min 30 s"
    if minutes < 57.5:
        return f"{round(minutes) if minutes < 9.5 else 5 * round(minutes / 5)} min"
    hours, rest = divmod(30 * round(minutes / 30), 60)
    if hours >= 10:
        return f"{round(minutes / 60)} h"
    return f"{hours} h {rest} min" if rest else f"{hours} h"


def bytes_in_words(size: float) -> str:
    """ "640 MB" or "1.2 GB"."""
    return f"{size / 1e9:.1f} GB" if size >= 0.95e9 else f"{max(math.ceil(size / 1e6), 1):,} MB"


# The machine -------------------------------------------------------------------------------------------------------


def measure_rate(device: torch.device | str = "cpu", *, repeats: int = 3) -> MachineRate:
    """What this machine does in a second: short products, attention calls and passes over a map, the best of each.

    About a third of a second of work on one core of 2020.
    """
    import torch

    from attn_core.factored import FactoredMap
    from attn_core.flash import flash_attention

    generator = torch.Generator().manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    left, right = drawn(768, 512), drawn(512, 2048)
    query, key, value = (drawn(1, 4, 768, 64) for _ in range(3))
    operations = 4.0 * 4 * 768 * 768 * 64
    weights = 4.0 * 768 * 768
    with torch.no_grad():
        lse = flash_attention(query, key, value).lse
        attention = FactoredMap(query=query, key=key, lse=lse, scale=0.125)
        best = {
            "product": _best(lambda: left @ right, device, repeats),
            "fused": _best(lambda: flash_attention(query, key, value), device, repeats),
            "pooled": _best(lambda: attention.pooled(None, 64), device, repeats),
            "statistics": _best(attention.statistics, device, repeats),
            "rows": _best(lambda: attention.apply_left(left[:1, :1].expand(1, 768)), device, repeats),
            "written": _best(attention.dense, device, repeats),
        }
    return MachineRate(
        product=2.0 * 768 * 512 * 2048 / best["product"],
        fused=operations / best["fused"],
        pooled=weights / best["pooled"],
        statistics=weights / best["statistics"],
        rows=weights / best["rows"],
        written=weights / best["written"],
    )


def _best(run: Callable[[], object], device: torch.device | str, repeats: int) -> float:
    """Shortest of some runs, in seconds; one before them warms up.

    On a CPU those of this thread, which shares the work with the others of its pool: what other programs take of the
    machine meanwhile is not counted.
    """
    import torch

    of_cpu = torch.device(device).type == "cpu"
    clock = time.thread_time if of_cpu else time.perf_counter

    def waited() -> None:
        run()
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize(device)

    waited()
    taken = []
    for _ in range(repeats):
        start = clock()
        waited()
        taken.append(clock() - start)
    return max(min(taken), 1e-6)


# Memory ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class AvailableMemory:
    """What this process may still take.

    Attributes:
        size: bytes.
        note: how far that is to be trusted, where the system does not tell.
    """

    size: int
    note: str = ""


def available_memory(*, proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> AvailableMemory:
    """What this process may still take: what is free on the machine, and within the limits of its control groups.

    Args:
        proc, groups: where the kernel shows its state; other folders in tests.
    """
    free = _free_on_machine(proc)
    limits = [*_group_limits_2(proc, groups), *_group_limits_1(proc, groups)]
    if free is None:
        return _elsewhere() if not limits else AvailableMemory(max(min(limits), 0))
    return AvailableMemory(max(min([free, *limits]), 0))


def _free_on_machine(proc: Path) -> int | None:
    for line in _text(proc / "meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _own_groups(proc: Path) -> list[tuple[str, str]]:
    """(controllers, path) of the control groups that this process is in."""
    lines = (line.split(":", 2) for line in _text(proc / "self" / "cgroup").splitlines())
    return [(parts[1], parts[2]) for parts in lines if len(parts) == 3]


def _group_limits_2(proc: Path, groups: Path) -> list[int]:
    """What is left below each limit, version 2: of the own group and of all above it."""
    found = []
    for controllers, path in _own_groups(proc):
        if controllers:
            continue
        for folder in _upwards(groups, path):
            limit = _text(folder / "memory.max").strip()
            used = _text(folder / "memory.current").strip()
            if limit.isdigit() and used.isdigit():
                found.append(int(limit) - int(used) + _statistic(folder, "inactive_file"))
    return found


def _group_limits_1(proc: Path, groups: Path) -> list[int]:
    """What is left below each limit, version 1."""
    found = []
    for controllers, path in _own_groups(proc):
        if "memory" not in controllers.split(","):
            continue
        for folder in _upwards(groups / "memory", path):
            limit = _text(folder / "memory.limit_in_bytes").strip()
            used = _text(folder / "memory.usage_in_bytes").strip()
            if (
                limit.isdigit() and used.isdigit() and int(limit) < 1 << 60
            ):  # without a limit it is close to 2^63
                found.append(int(limit) - int(used) + _statistic(folder, "total_inactive_file"))
    return found


def _upwards(root: Path, path: str) -> list[Path]:
    """The folders of a group and of all above it; in a container the path may not be there, but the root is."""
    parts = [part for part in path.split("/") if part and part != ".."]
    return [root.joinpath(*parts[:count]) for count in range(len(parts), -1, -1)]


def _statistic(folder: Path, name: str) -> int:
    """A line of a group's ``memory.stat``: what it counts as used but would give back (cached files)."""
    for line in _text(folder / "memory.stat").splitlines():
        key, _, value = line.partition(" ")
        if key == name and value.strip().isdigit():
            return int(value)
    return 0


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


def _elsewhere() -> AvailableMemory:
    """On systems without ``/proc``."""
    if sys.platform == "win32":
        return _on_windows()
    import os

    try:
        whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return AvailableMemory(2 * 2**30, "how much memory this machine has is not known; 2 GiB are assumed")
    return AvailableMemory(
        whole // 2, "this system does not tell what is free; half of its memory is assumed"
    )


def _on_windows() -> AvailableMemory:
    import ctypes

    class Status(ctypes.Structure):
        _fields_ = [
            ("length", ctypes.c_ulong),
            ("load", ctypes.c_ulong),
            *((name, ctypes.c_ulonglong) for name in ("total", "free", "a", "b", "c", "d", "e")),
        ]

    status = Status()
    status.length = ctypes.sizeof(Status)
    ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status))  # type: ignore[attr-defined]
    return AvailableMemory(int(status.free))


def check_run(
    estimate: Estimate, *, what: str, instead: str, available: AvailableMemory | None = None
) -> None:
    """Refuse a computation that would not fit into what is free, before it allocates anything.

    Args:
        what: the subject of the sentence, such as "One forward pass over 65,537 positions".
        instead: what to do, such as "choose a smaller side".
        available: None asks the system.
    Raises:
        MemoryBudgetError: with both sizes and what to do.
    """
    free = available_memory() if available is None else available
    if estimate.memory_bytes + SPARE_BYTES <= free.size:
        return
    from attn_core.errors import MemoryBudgetError

    told = f" ({free.note})" if free.note else ""
    raise MemoryBudgetError(
        f"{what} would take about {bytes_in_words(estimate.memory_bytes)} of memory, and {bytes_in_words(free.size)} "
        f"are free here{told}, of which {bytes_in_words(SPARE_BYTES)} stay for the rest of the program; {instead}."
    )
