"""Compile Triton kernels for a GPU that is not there, and count what came out.

A kernel is compiled by the same path as at a call (``warmup``), from real tensors, so alignment and the numbers
that are one are known to the compiler as they would be on a GPU. Run it in a process without TRITON_INTERPRET.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

ROOT = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True)
class Compiled:
    """What a compiled kernel is made of.

    Attributes:
        shared: bytes of shared memory of one program.
        registers, spilled: registers of a thread, and bytes of stack or local memory that it spills to.
        tensor_products: instructions of the tensor cores (HGMMA on sm_90, HMMA on sm_80).
        async_loads: loads through tensor descriptors (UTMALDG) or asynchronous copies (LDGSTS).
        descriptor_loads: the former alone.
    """

    name: str
    capability: int
    shared: int
    registers: int
    spilled: int
    threads: int
    tensor_products: int
    async_loads: int
    descriptor_loads: int


class AbsentGPU:
    """Enough of a driver to compile for a GPU: it can be asked what it is, and launches nothing."""

    def __init__(self, capability: int) -> None:
        self.capability = capability

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self.capability, 32)

    def get_current_device(self) -> int:
        return self.capability  # a kernel keeps what it compiled by device

    def get_current_stream(self, _device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def compiled(
    name: str, kernel: Any, arguments: dict[str, Any], *, capability: int, options: dict[str, Any]
) -> Compiled:
    """Compile for sm_80 or sm_90 and read the machine code.

    Args:
        arguments: of the kernel, as at a call.
        options: of the configuration, ``triton.Config.all_kwargs()``.
    """
    driver.set_active(AbsentGPU(capability))
    binary = kernel.warmup(grid=(1,), **arguments, **options, enable_fp_fusion=True)
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(binary.asm["cubin"])
        usage, code = (
            subprocess.run([tool, flag, file], capture_output=True, text=True, check=True).stdout
            for flag in ("--dump-resource-usage", "--dump-sass")
        )
    of = {key: int(number) for key, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    warps = binary.metadata.num_warps
    return Compiled(
        name=name,
        capability=capability,
        shared=binary.metadata.shared,
        registers=of["REG"],
        spilled=of["STACK"] + of["LOCAL"],
        threads=32 * int(getattr(binary.metadata, "total_num_warps", None) or warps),
        tensor_products=len(re.findall(r"\bHG?MMA\b", code)),
        async_loads=len(re.findall(r"\b(?:UTMALDG|LDGSTS)\b", code)),
        descriptor_loads=len(re.findall(r"\bUTMALDG\b", code)),
    )


def report(results: list[Compiled]) -> list[dict[str, Any]]:
    """The results as JSON takes them."""
    return [asdict(result) for result in results]


def compiled_apart(module: str, names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What became of each kernel of some variants, by its name: compiled by a process without the interpreter."""
    variables = {key: text for key, text in os.environ.items() if key != "TRITON_INTERPRET"}
    ran = subprocess.run(
        [sys.executable, "-m", module, *names],
        cwd=ROOT, env=variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    return {line["name"]: line for line in map(json.loads, ran.stdout.splitlines())}
