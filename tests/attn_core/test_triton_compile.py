"""The kernels of attention as machine code of GPUs that are not there: tensor cores used, nothing spilled.

Compiling needs the real compiler, so it runs in a process without TRITON_INTERPRET. Triton keeps what it compiled.
The test compiles a choice; `python -m tests.attn_core.compile_triton all` compiles everything.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton is built for Linux alone")

from tests.attn_core.compile_triton import variants
from tests.attn_core.triton_target import compiled_apart

VARIANTS = variants()


@pytest.fixture(scope="module")
def machine_code() -> dict[str, dict[str, Any]]:
    """What became of each variant."""
    return compiled_apart("tests.attn_core.compile_triton", VARIANTS)


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
