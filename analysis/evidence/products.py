"""The products of a model's linear layers by oneDNN, where the library that PyTorch takes leaves half a CPU idle.

PyTorch multiplies float32 matrices by MKL, which runs its code for AVX-512 on Intel's processors alone: on AMD's a
product of 1,472 × 384 × 1,536 ran at 99 GFLOP/s of one core, and at 200 by oneDNN, which PyTorch carries too. Nearly
all time of a batch of copies goes into such products. The numbers are the same but for rounding.

oneDNN's operator is private to PyTorch, so it is called in this file alone, and a test holds it to PyTorch's own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from analysis.processor import processor_told

LEAST_ROWS = 16
"""Rows of a product from which it pays."""


def quick_products() -> AbstractContextManager[object]:
    """Within the block linear layers that are not trained multiply by oneDNN, where that is quicker here; their
    gradients are taken the same way afterwards. Only for this thread."""
    return _ByOneDNN() if is_quicker() else nullcontext()


@cache
def is_quicker() -> bool:
    """Whether oneDNN multiplies float32 matrices faster than what PyTorch takes on this processor."""
    if not (torch.backends.mkl.is_available() and torch.backends.mkldnn.is_available()):  # type: ignore[no-untyped-call]
        return False
    wide = torch.backends.cpu.get_cpu_capability() == "AVX512"
    return wide and hasattr(torch.ops.mkldnn, "_linear_pointwise") and "AuthenticAMD" in processor_told()


class _ByOneDNN(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if func is nn.functional.linear and not kwargs and _suits(*args):
            return _Linear.apply(*args, *(None,) * (3 - len(args)))  # type: ignore[no-untyped-call]
        return func(*args, **(kwargs or {}))


def _suits(entering: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    parts = [entering, weight, *(() if bias is None else (bias,))]
    trained = torch.is_grad_enabled() and any(part.requires_grad for part in parts[1:])
    return (
        all(part.dtype == torch.float32 and part.device.type == "cpu" for part in parts)
        and not trained
        and weight.numel() > 0
        and entering.numel() >= LEAST_ROWS * entering.shape[-1]
    )


class _Linear(torch.autograd.Function):
    """entering · weightᵀ + bias."""

    @staticmethod
    def forward(ctx: Any, entering: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        return _product(entering, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (weight,) = ctx.saved_tensors
        return _Linear.apply(gradient, weight.T, None), None, None  # type: ignore[no-untyped-call]


def _product(entering: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    found: Tensor = torch.ops.mkldnn._linear_pointwise(entering.contiguous(), weight, bias, "none", [], "")
    return found
