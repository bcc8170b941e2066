"""The error budget: at most twice the error of the formula written out in the same precision, against float64.

Both get the same numbers, rounded to that precision beforehand. What is left over twice the plain error is bounded in
units of the last place of the largest number, since an error of 0 cannot be met: of one-hot rows, say, the formula's
gradient of query is exactly 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from attn_core import MaskRule, flash_attention
from attn_core.flash.fused import LARGE_LSE

N, WIDTH, HEADS = 96, 32, 3
SCALE = WIDTH**-0.5
UNITS = 4.0
"""What may be over twice the plain error, in units of the last place of the largest number."""
KERNEL_UNITS = 48.0
"""The same for float32 gradients of PyTorch's kernel, which takes weights from a rounded log-sum-exp up to
``LARGE_LSE``."""


@dataclass(frozen=True)
class Hard:
    """One layer in float64.

    Attributes:
        pull: what the context is multiplied by before it is summed and differentiated.
    """

    query: Tensor
    key: Tensor
    value: Tensor
    pull: Tensor
    bias: Tensor | None = None


def drawn(seed: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(4, 2, HEADS, N, WIDTH, generator=generator, dtype=torch.float64).unbind()


def random(seed: int) -> Hard:
    return Hard(*drawn(seed))


def with_logits(seed: int, largest: float) -> Hard:
    query, key, value, pull = drawn(seed)
    query = query * (largest / (query @ key.mT * SCALE).abs().max())
    return Hard(query, key, value, pull)


def equal_keys(seed: int) -> Hard:
    hard = with_logits(seed, 300.0)
    return Hard(hard.query, hard.key[:, :, :1].expand_as(hard.key).clone(), hard.value, hard.pull)


def one_hot_rows(seed: int) -> Hard:
    _, key, value, pull = drawn(seed)
    key = torch.nn.functional.normalize(key, dim=-1)
    return Hard(key * 2000.0, key, value, pull)


def forbidden_by_bias(seed: int) -> Hard:
    query, key, value, pull = drawn(seed)
    bias = drawn(seed + 100)[0].mean(0, keepdim=True).mean(-1, keepdim=True).expand(1, HEADS, N, N).clone()
    bias[:, :, ::3] = -math.inf  # whole rows
    bias[:, :, 1::3, ::2] = -math.inf
    return Hard(query, key, value, pull, bias)


def almost_no_logits(seed: int) -> Hard:
    query, key, value, pull = drawn(seed)
    return Hard(query * 1e-4, key, value, pull)


def values_of_all_sizes(seed: int) -> Hard:
    query, key, value, pull = drawn(seed)
    sizes = torch.randint(-3, 4, value.shape, generator=torch.Generator().manual_seed(seed))
    return Hard(query, key, value * 10.0**sizes, pull)


def far_from_zero(seed: int) -> Hard:
    query, key, value, pull = drawn(seed)
    return Hard(query, key, value, pull, bias=torch.full((1, 1, 1, N), 200.0, dtype=torch.float64))


INPUTS: dict[str, Callable[[int], Hard]] = {
    "random": random,
    "logits of 30": lambda seed: with_logits(seed, 0.9 * LARGE_LSE),
    "logits of 300": lambda seed: with_logits(seed, 300.0),
    "equal keys": equal_keys,
    "one-hot rows": one_hot_rows,
    "bias of −∞": forbidden_by_bias,
    "almost no logits": almost_no_logits,
    "values of all sizes": values_of_all_sizes,
    "far from zero": far_from_zero,
}


def written_out(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, *, causal: bool) -> Tensor:
    """The formula in the precision of its inputs, from end to end."""
    scores = query @ key.mT * SCALE
    scores = scores if bias is None else scores + bias
    if causal:
        scores = scores.masked_fill(~torch.ones(N, N, dtype=torch.bool).tril(), -math.inf)
    empty = torch.isneginf(scores).all(-1, keepdim=True)
    return scores.masked_fill(empty, 0.0).softmax(-1).masked_fill(empty, 0.0) @ value


def results(run: Callable[..., Tensor], hard: Hard, dtype: torch.dtype) -> dict[str, Tensor]:
    """Context and gradients in float64, computed in ``dtype``."""
    inputs = [tensor.to(dtype).clone().requires_grad_() for tensor in (hard.query, hard.key, hard.value)]
    context = run(*inputs, None if hard.bias is None else hard.bias.to(dtype))
    gradients = torch.autograd.grad(context, inputs, hard.pull.to(dtype))
    names = "context", "query", "key", "value"
    return {name: each.detach().double() for name, each in zip(names, (context, *gradients), strict=True)}


def rounded(hard: Hard, dtype: torch.dtype) -> Hard:
    parts = (hard.query, hard.key, hard.value, hard.pull, hard.bias)
    return Hard(*(None if part is None else part.to(dtype).double() for part in parts))  # type: ignore[arg-type]


def terms(hard: Hard, exact: dict[str, Tensor]) -> dict[str, float]:
    """Size of the largest number that goes into each result: where these cancel, their last place is what remains."""
    pulled = float((hard.pull @ hard.value.mT).abs().max()) * SCALE
    return {
        "context": float(exact["context"].abs().max()),
        "query": max(float(exact["query"].abs().max()), pulled * float(hard.key.abs().max())),
        "key": max(float(exact["key"].abs().max()), pulled * float(hard.query.abs().max())),
        "value": float(exact["value"].abs().max()),
    }


@pytest.mark.parametrize("impl", ["tiled", "fused"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", INPUTS)
def test_the_error_is_at_most_twice_that_of_the_formula(name: str, dtype: torch.dtype, impl: str) -> None:
    for seed, causal in ((0, False), (1, True)):
        hard = rounded(INPUTS[name](seed), dtype)

        def formula(*inputs: Tensor | None, causal: bool = causal) -> Tensor:
            return written_out(*inputs, causal=causal)  # type: ignore[misc, arg-type]

        def ours(query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None, c: bool = causal) -> Tensor:
            rule = MaskRule(causal=c)
            return flash_attention(query, key, value, rule=rule, bias=bias, scale=SCALE, impl=impl).context

        exact = results(formula, hard, torch.float64)
        plain, found = results(formula, hard, dtype), results(ours, hard, dtype)
        largest = terms(hard, exact)
        for part, truth in exact.items():
            kernel = impl == "fused" and dtype == torch.float32 and part != "context"
            units = KERNEL_UNITS if kernel else UNITS
            error = float((found[part] - truth).abs().max())
            allowed = 2.0 * float((plain[part] - truth).abs().max())
            last_place = torch.finfo(dtype).eps * largest[part]
            assert error <= allowed + units * last_place, f"{part}: {error:.2e}, plain {allowed / 2:.2e}"


@pytest.mark.parametrize("impl", ["tiled", "fused"])
def test_gradients_of_large_logits_are_within_twice_the_error_and_nothing_more(impl: str) -> None:
    """Weights from the rounded log-sum-exp would have 13 times the error; the fused kernel leaves them to tiles."""
    hard = rounded(with_logits(0, 300.0), torch.float32)

    def formula(*inputs: Tensor | None) -> Tensor:
        return written_out(*inputs, causal=False)  # type: ignore[misc, arg-type]

    exact, plain = results(formula, hard, torch.float64), results(formula, hard, torch.float32)
    found = results(
        lambda q, k, v, _: flash_attention(q, k, v, scale=SCALE, impl=impl).context, hard, torch.float32
    )
    for part, truth in exact.items():
        assert (found[part] - truth).abs().max() <= 2.0 * (plain[part] - truth).abs().max(), part


def test_what_all_keys_share_makes_large_logits_and_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such logits, of 300 here, are made small and left to the kernel; tiles are for those that differ so much."""
    query, key, value, pull = drawn(0)
    shared = torch.nn.functional.normalize(query.mean((0, 1, 2)), dim=0)
    hard = Hard(query + shared, key + shared * (300.0 / SCALE / (1.0 + query @ shared).mean()), value, pull)
    hard = rounded(hard, torch.float32)
    scores = hard.query @ hard.key.mT * SCALE
    assert scores.abs().max() > 250.0

    def formula(*inputs: Tensor | None) -> Tensor:
        return written_out(*inputs, causal=False)  # type: ignore[misc, arg-type]

    def tiles(*_: object, **__: object) -> None:
        raise AssertionError("tiles were asked")

    monkeypatch.setattr("attn_core.flash.fused.tiled_gradients", tiles)
    exact, plain = results(formula, hard, torch.float64), results(formula, hard, torch.float32)
    found = results(
        lambda q, k, v, _: flash_attention(q, k, v, scale=SCALE, impl="fused").context, hard, torch.float32
    )
    for part, truth in exact.items():
        assert (found[part] - truth).abs().max() <= 2.0 * (plain[part] - truth).abs().max(), part
    with pytest.raises(
        AssertionError, match="tiles were asked"
    ):  # a key that is left out must not move the others
        results(
            lambda q, k, v, _: (
                flash_attention(q, k, v, scale=SCALE, impl="fused", rule=MaskRule(causal=True)).context
            ),
            hard,
            torch.float32,
        )
