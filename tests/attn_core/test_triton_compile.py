"""The kernels of attention as machine code of GPUs that are not there: tensor cores used, nothing spilled.

Compiling needs the real compiler, so it runs in a process without TRITON_INTERPRET. Triton keeps what it compiled.
The test compiles a choice; `python -m tests.attn_core.compile_triton all` compiles everything.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton is built for Linux alone")

from tests.attn_core.compile_triton import variants

ROOT = Path(__file__).resolve().parent.parent.parent
VARIANTS = variants()


@pytest.fixture(scope="module")
def machine_code() -> dict[str, dict[str, Any]]:
    """What became of each variant."""
    variables = {key: text for key, text in os.environ.items() if key != "TRITON_INTERPRET"}
    ran = subprocess.run(
        [sys.executable, "-m", "tests.attn_core.compile_triton", *VARIANTS],
        cwd=ROOT, env=variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    return {line["name"]: line for line in map(json.loads, ran.stdout.splitlines())}


@pytest.mark.parametrize("name", VARIANTS)
def test_kernels_compile_without_spills_and_use_the_tensor_cores(
    name: str, machine_code: dict[str, dict[str, Any]]
) -> None:
    found, variant = machine_code[name], VARIANTS[name]
    assert found["capability"] == variant.capability
    assert found["spilled"] == 0, found
    if variant.dtype.itemsize == 4:  # exact products of float32 are not for tensor cores
        assert found["tensor_products"] == 0, "float32 is rounded to TF32"
    else:
        assert found["tensor_products"] > 0, found
        assert found["async_loads"] > 0, found
    flags = variant.config.kwargs
    assert (found["descriptor_loads"] > 0) == bool(flags.get("DESCRIPTORS")), found
    if flags.get("WARP_SPECIALIZE"):  # a warp group that loads, and others that compute
        assert found["threads"] > 32 * variant.config.num_warps, found
