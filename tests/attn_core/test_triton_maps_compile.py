"""The kernels of streamed maps as machine code of GPUs that are not there: tensor cores used, nothing spilled.

Compiling needs the real compiler, so it runs in a process without TRITON_INTERPRET. Triton keeps what it compiled.
The test compiles a choice; `python -m tests.attn_core.compile_triton_maps all` compiles everything.
"""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton is built for Linux alone")

from tests.attn_core.compile_triton_maps import variants
from tests.attn_core.triton_target import compiled_apart

VARIANTS = variants()
KERNELS = [(question, name) for name, variant in VARIANTS.items() for question in variant.questions]


@pytest.fixture(scope="module")
def machine_code() -> dict[str, dict[str, Any]]:
    """What became of each kernel."""
    return compiled_apart("tests.attn_core.compile_triton_maps", VARIANTS)


@pytest.mark.parametrize(("question", "name"), KERNELS)
def test_map_kernels_compile_without_spills_and_use_the_tensor_cores(
    question: str, name: str, machine_code: dict[str, dict[str, Any]]
) -> None:
    found, variant = machine_code[f"{question}: {name}"], VARIANTS[name]
    assert found["capability"] == variant.capability
    assert found["spilled"] == 0, found
    # Neither exact products of float32 nor those of pairs are for tensor cores.
    exact = variant.dtype.itemsize == 4 and variant.precision == "ieee"
    assert (found["tensor_products"] == 0) == (exact or question == "neighbours"), found
