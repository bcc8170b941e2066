"""Whether a model's weights fit into memory, asked before they are downloaded or read."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from attn_core.errors import UnsupportedModelError


def check_memory(needed: int, *, what: str, device: torch.device | None = None) -> None:
    """Raise if ``needed`` bytes of weights do not fit beside what is in use now.

    Raises:
        UnsupportedModelError: says how much is needed and free, and what to do.
    """
    free = free_memory(device or torch.device("cpu"))
    if free is not None and needed > 0.95 * free:
        raise UnsupportedModelError(
            f"load_model: the weights of {what} need {needed / 1e9:.1f} GB of memory but {free / 1e9:.1f} GB are "
            'free; choose a smaller model, or dtype="bfloat16", which halves float32.'
        )


def free_memory(device: torch.device) -> int | None:
    """Bytes that are free on a device; None where the system does not tell."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError):
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
