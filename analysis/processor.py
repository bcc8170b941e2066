"""What the system says of this machine's processor; read once, without torch."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path

_BFLOAT16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
"""Flags of processors that multiply bfloat16 numbers: x86 with vectors or tiles, and Arm."""


@cache
def processor_told() -> str:
    """The system's own words."""
    told = Path("/proc/cpuinfo")
    return platform.processor() + (
        told.read_text(encoding="utf-8", errors="replace") if told.exists() else ""
    )


@cache
def multiplies_bfloat16() -> bool:
    """Whether products of bfloat16 matrices are made by instructions of their own, and not slower than float32."""
    return flags_multiply_bfloat16(processor_told())


def flags_multiply_bfloat16(told: str) -> bool:
    """The same of what another processor's system says."""
    return any(
        _BFLOAT16 & set(line.partition(":")[2].split())
        for line in told.splitlines()
        if line.startswith(("flags", "Features"))
    )
