"""Attention against the exact semantics of the FlashAttention interface, from its own test oracle in float64."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from attn_core import MaskRule, attention, flash_attention

FOLDER = Path(__file__).parent.parent / "oracles" / "09_flash"
CASES: dict[str, dict[str, Any]] = json.loads((FOLDER / "arguments.json").read_text(encoding="utf-8"))


def rule_of(arguments: dict[str, Any], queries: int, keys: int) -> MaskRule:
    """Their (left, right) window, inclusive on both sides and −1 for open, as one of our rules."""
    left, right = arguments.get("window", (-1, -1))
    right = 0 if arguments.get("causal") else right
    if (left, right) == (-1, -1):
        return MaskRule()
    if right == 0:
        return MaskRule(causal=True, window=left + 1 if left >= 0 else None)

    def inside(_batch: Tensor, _head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        place = row + keys - queries
        near = (column >= place - left) if left >= 0 else torch.ones_like(column >= place)
        return near & (column <= place + right) if right >= 0 else near

    return MaskRule(predicate=inside)


def lengths_rule(arguments: dict[str, Any]) -> MaskRule:
    """Items of their own lengths, padded at the end: each has its own causal diagonal and window."""
    queries, keys = torch.tensor(arguments["qlen"]), torch.tensor(arguments["klen"])
    left, right = arguments.get("window", (-1, -1))
    right = 0 if arguments.get("causal") else right

    def inside(item: Tensor, _head: Tensor, row: Tensor, column: Tensor) -> Tensor:
        place = row + keys[item] - queries[item]
        near = (row < queries[item]) & (column < keys[item])
        near = near & (column >= place - left) if left >= 0 else near
        return near & (column <= place + right) if right >= 0 else near

    return MaskRule(predicate=inside, predicate_batch=len(keys))


def bias_of(arguments: dict[str, Any], queries: int, keys: int) -> Tensor | None:
    """ALiBi: −slope · |distance|, slopes per head or per item and head."""
    if "slopes" not in arguments:
        return None
    slopes = torch.tensor(arguments["slopes"], dtype=torch.float64)
    distance = (torch.arange(queries)[:, None] + keys - queries - torch.arange(keys)).abs()
    return -slopes.reshape(-1, slopes.shape[-1], 1, 1) * distance


def load(name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Arrays in our layout (B, H, N, D), and the arguments of the attention."""
    with np.load(FOLDER / f"{name}.npz") as stored:
        arrays = {key: torch.from_numpy(stored[key]) for key in stored.files if "packed" not in key}
    arrays.pop("cu_seqlens_q", None), arrays.pop("cu_seqlens_k", None)
    arrays = {
        key: array if key in ("probs", "lse") else array.transpose(1, 2) for key, array in arrays.items()
    }
    arguments = CASES[name]
    queries, keys = arrays["q"].shape[2], arrays["k"].shape[2]
    options = {
        "rule": lengths_rule(arguments) if "qlen" in arguments else rule_of(arguments, queries, keys),
        "bias": bias_of(arguments, queries, keys),
        "scale": arguments.get("scale"),
        "softcap": arguments.get("softcap"),
    }
    return arrays, options


@pytest.mark.parametrize("name", CASES)
def test_reference_gives_their_numbers_and_gradients(name: str) -> None:
    arrays, options = load(name)
    inputs = [arrays[key].clone().requires_grad_() for key in "qkv"]
    output = attention(*inputs, **options)
    assert_close(output.context, arrays["out"], atol=1e-10, rtol=1e-9)
    assert_close(output.weights, arrays["probs"], atol=1e-10, rtol=1e-9)
    assert_close(output.lse, arrays["lse"], atol=1e-10, rtol=1e-9)
    gradients = torch.autograd.grad((output.context * arrays["dout"]).sum(), inputs)
    for gradient, expected in zip(gradients, ("dq", "dk", "dv"), strict=True):
        assert_close(gradient, arrays[expected], atol=1e-9, rtol=1e-8)


def test_every_case_is_there() -> None:
    assert len(CASES) == 26
    assert {path.stem for path in FOLDER.glob("*.npz")} == set(CASES)


@pytest.mark.parametrize("impl", ["tiled", "auto"])  # auto is fused wherever there is no soft cap
@pytest.mark.parametrize("name", CASES)
def test_every_implementation_gives_their_gradients(name: str, impl: str) -> None:
    arrays, options = load(name)
    inputs = [arrays[key].clone().requires_grad_() for key in "qkv"]
    output = flash_attention(*inputs, **options, impl=impl)
    gradients = torch.autograd.grad((output.context * arrays["dout"]).sum(), inputs)
    for gradient, expected in zip(gradients, ("dq", "dk", "dv"), strict=True):
        assert_close(gradient, arrays[expected], atol=1e-9, rtol=1e-8)


@pytest.mark.parametrize("name", [name for name in CASES if name.startswith("varlen")])
def test_an_item_cut_to_its_lengths_is_the_item_of_the_batch(name: str) -> None:
    (arrays, _), arguments = load(name), CASES[name]
    for item, (queries, keys) in enumerate(zip(arguments["qlen"], arguments["klen"], strict=True)):
        one = {key: arrays[key][item : item + 1] for key in ("q", "k", "v", "out", "lse")}
        cut = one["q"][:, :, :queries], one["k"][:, :, :keys], one["v"][:, :, :keys]
        for impl in ("tiled", "fused"):
            found = flash_attention(*cut, rule=rule_of(arguments, queries, keys), impl=impl)
            assert_close(found.context, one["out"][:, :, :queries], atol=1e-10, rtol=1e-9)
            assert_close(found.lse, one["lse"][:, :, :queries], atol=1e-10, rtol=1e-9)


@pytest.mark.parametrize("impl", ["tiled", "auto"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", CASES)
def test_every_implementation_gives_their_numbers(name: str, dtype: torch.dtype, impl: str) -> None:
    arrays, options = load(name)
    bias = options["bias"]
    options["bias"] = bias if bias is None else bias.to(dtype)
    output = flash_attention(*(arrays[key].to(dtype) for key in "qkv"), **options, impl=impl)
    tolerance = 1e-10 if dtype == torch.float64 else 2e-5
    largest = max(1.0, float(arrays["lse"][arrays["lse"].isfinite()].abs().max()))
    assert_close(output.context.double(), arrays["out"], atol=tolerance * largest, rtol=tolerance)
    assert_close(output.lse.double(), arrays["lse"], atol=tolerance * largest, rtol=tolerance)
