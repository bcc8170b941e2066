"""How the benchmarks measure: CPU time of one thread, alternatives in turn, medians; memory in a fresh process."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MIB = 2**20


def cpu_seconds(alternatives: Mapping[str, Callable[[], object]], *, repeats: int) -> dict[str, float]:
    """Median CPU seconds of each alternative on this thread.

    The alternatives run in turn, so that a busy machine disturbs them alike; one round before is not counted.
    """
    taken: dict[str, list[float]] = {name: [] for name in alternatives}
    for round_number in range(repeats + 1):
        for name, run in alternatives.items():
            start = time.thread_time()
            run()
            if round_number:
                taken[name].append(time.thread_time() - start)
    return {name: statistics.median(seconds) for name, seconds in taken.items()}


def extra_memory(run: Callable[[], object]) -> int:
    """Most bytes that the process grew by while ``run`` ran; what it returns is held until the measurement."""
    return_free_memory()
    before = resident_bytes()
    reset_peak()
    held = run()
    grown = peak_bytes() - before
    del held
    return max(grown, 0)


def return_free_memory() -> None:
    """Give back what was freed, where the C library can, so that it is not used again unseen."""
    gc.collect()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def resident_bytes() -> int:
    """Bytes of this process in memory now (Linux; elsewhere the peak so far)."""
    return status_bytes("VmRSS")


def peak_bytes() -> int:
    """Most bytes of this process in memory since ``reset_peak`` (Linux; elsewhere since it started)."""
    return status_bytes("VmHWM")


def reset_peak() -> None:
    """Let the peak start from what is in memory now, where the system can do that."""
    switch = Path("/proc/self/clear_refs")
    if switch.exists():
        switch.write_text("5")


def status_bytes(field: str) -> int:
    """A memory field of this process, in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith(field + ":"))
        return int(line.split()[1]) * 1024
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def in_fresh_process(module: str, *arguments: str) -> str:
    """Output of ``python -m module arguments`` in a process of its own."""
    command = [sys.executable, "-m", module, *arguments]
    result = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True)
    return result.stdout.strip()


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table with aligned columns."""
    widths = [max(len(line[i]) for line in (columns, *rows)) for i in range(len(columns))]

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)) + " |"

    print(f"\n### {title}\n")
    print(line(columns))
    print(line(["-" * width for width in widths]))
    for row in rows:
        print(line(row))
    print(flush=True)


def machine() -> str:
    """The machine in words, without names."""
    import os

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = f", load {os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    return f"{platform.machine()}, {cores} cores{load}, Python {platform.python_version()}"
