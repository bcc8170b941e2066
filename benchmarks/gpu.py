"""The Triton kernels on an NVIDIA GPU against PyTorch's own, same tensors, same run.

    python -m benchmarks.gpu [--sizes 1024 4096 16384 65536] [--widths 64 128] [--dtype bfloat16]

Every backend of scaled_dot_product_attention is selected by name, since the order in which PyTorch tries them does
not take the fastest one first; FlexAttention is compiled. Sizes keep batch · n at 16,384 tokens and heads · width
at 2,048 (as in the FlashAttention papers). Times are medians of ``triton.testing.do_bench``; TFLOP/s count 4 · n² ·
d a head forward and 2.5 times that backward, half of it where causal. Ratios are to the fastest backend of PyTorch
in the same row: 1 is as fast, 0.5 half as fast. Before anything is timed it is checked against float64. Maps and
memory: goals 23 and 24 of the design's list. Without a GPU it says so and measures nothing.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from benchmarks.measure import MIB, print_table

if TYPE_CHECKING:
    import torch

    Run = Callable[[], object]
    Vectors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

SIZES = (1024, 2048, 4096, 8192, 16384, 32768, 65536)
TOKENS = 16384
"""Tokens of a batch, where one item is not longer."""

MODEL_WIDTH = 2048
"""Heads times width."""

TARGETS = {64: (0.85, 0.6), 128: (0.70, 0.5)}
"""Target and limit of the forward kernel's ratio, by width (goal 22)."""

DASH = "–"


def vectors(size: int, width: int, dtype: torch.dtype, device: str, *, tokens: int = TOKENS) -> Vectors:
    """Query, key and value (B, H, n, width) of random numbers that take a gradient."""
    import torch

    shape = (max(1, tokens // size), MODEL_WIDTH // width, size, width)
    generator = torch.Generator(device).manual_seed(0)
    query, key, value = (
        torch.randn(shape, generator=generator, dtype=dtype, device=device).requires_grad_() for _ in range(3)
    )
    return query, key, value


def forward_runs(given: Vectors, *, causal: bool) -> dict[str, Callable[[], torch.Tensor]]:
    """The context by each implementation; ours is "triton"."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    from torch.nn.functional import scaled_dot_product_attention

    from attn_core import MaskRule
    from attn_core.flash.triton_forward import triton_attention

    query, key, value = given
    size, rule = query.shape[2], MaskRule(causal=causal)
    torch.compiler.reset()  # or FlexAttention runs uncompiled once there were too many shapes

    def by_backend(backend: SDPBackend) -> Callable[[], torch.Tensor]:
        def run() -> torch.Tensor:
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(query, key, value, is_causal=causal)

        return run

    mask = None
    if causal:
        mask = create_block_mask(
            lambda _b, _h, q, k: q >= k, None, None, size, size, device=query.device.type
        )
    flex = torch.compile(flex_attention)
    return {
        "triton": lambda: triton_attention(query, key, value, rule=rule).context,
        "flash": by_backend(SDPBackend.FLASH_ATTENTION),
        "cudnn": by_backend(SDPBackend.CUDNN_ATTENTION),
        "efficient": by_backend(SDPBackend.EFFICIENT_ATTENTION),
        "math": by_backend(SDPBackend.MATH),
        "flex": lambda: flex(query, key, value, block_mask=mask),
    }


BACKENDS = ("flash", "cudnn", "efficient", "math")
"""What ratios are to: the fastest of these."""


def backward_run(context: torch.Tensor, given: Vectors) -> Run:
    """Gradients of query, key and value for a fixed gradient of the context."""
    import torch

    gradient = torch.randn_like(context)
    return lambda: torch.autograd.grad(context, given, gradient, retain_graph=True)


def operations(given: Vectors, *, causal: bool) -> float:
    """Floating-point operations of the forward pass."""
    batch, heads, size, width = given[0].shape
    return 4.0 * batch * heads * size * size * width / (2 if causal else 1)


def timed(runs: Mapping[str, Run], milliseconds: Callable[[Run], float], *, dense: bool) -> dict[str, float]:
    """Milliseconds of each that runs here; a backend that refuses is left out, and "math" where n² would not fit."""
    import torch

    taken = {}
    for name, run in runs.items():
        if name == "math" and not dense:
            continue
        try:
            taken[name] = milliseconds(run)
        except (RuntimeError, torch.OutOfMemoryError) as error:
            if name == "triton":
                raise
            print(f"{name} does not run here: {str(error).splitlines()[0]}", flush=True)
    return taken


def table_row(label: str, taken: Mapping[str, float], work: float) -> list[str]:
    """TFLOP/s of each implementation, and our ratio to PyTorch's fastest backend."""
    speeds = {name: work / time * 1e-9 for name, time in taken.items()}
    fastest = max((speeds[name] for name in BACKENDS if name in speeds), default=None)
    ratio = DASH if fastest is None else f"{speeds['triton'] / fastest:.2f}"
    return [
        label,
        *(f"{speeds[n]:.0f}" if n in speeds else DASH for n in ("triton", *BACKENDS, "flex")),
        ratio,
    ]


def check_exact(device: str, dtype: torch.dtype) -> None:
    """Make sure that the kernels compute attention here, in both directions, before they are timed.

    Raises:
        RuntimeError: if an error is more than twice that of the reference in the same precision.
    """
    import torch

    from attn_core import MaskRule, attention
    from attn_core.flash.triton_forward import triton_attention

    for width in (64, 128):
        given = vectors(333, width, dtype, device, tokens=1)
        gradient = torch.randn_like(given[0])
        for rule in (MaskRule(), MaskRule(causal=True), MaskRule(causal=True, window=100)):
            exact = tuple(tensor.detach().double().requires_grad_() for tensor in given)
            expected = _with_gradients(attention(*exact, rule=rule).context, exact, gradient.double())
            plain = _with_gradients(attention(*given, rule=rule).context, given, gradient)
            found = _with_gradients(triton_attention(*given, rule=rule).context, given, gradient)
            for what, true, ours, theirs in zip(
                ("context", "query", "key", "value"), expected, found, plain, strict=True
            ):
                allowed = 2 * (theirs - true).abs().max() + torch.finfo(dtype).eps * true.abs().max()
                error = (ours - true).abs().max()
                if not error <= allowed:
                    raise RuntimeError(
                        f"check_exact: {what} of width {width} is off by {error:.1e} where {allowed:.1e} is allowed "
                        f"({rule}); mend the kernel before measuring it."
                    )


def _with_gradients(
    context: torch.Tensor, given: Sequence[torch.Tensor], gradient: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    import torch

    gradients = torch.autograd.grad(context, tuple(given), gradient.to(context.dtype))
    return tuple(tensor.detach().double() for tensor in (context, *gradients))


def attention_tables(
    sizes: Sequence[int],
    widths: Sequence[int],
    dtype: torch.dtype,
    device: str,
    milliseconds: Callable[[Run], float],
) -> None:
    """Forward and backward, for each width, causal and not."""
    columns = ["n", "triton", *BACKENDS, "flex (compiled)", "ratio"]
    for width in widths:
        for causal in (False, True):
            forward, backward = [], []
            for size in sizes:
                given = vectors(size, width, dtype, device)
                work, runs = operations(given, causal=causal), forward_runs(given, causal=causal)
                dense = size <= 8192
                taken = timed(runs, milliseconds, dense=dense)
                forward.append(table_row(str(size), taken, work))
                back = {name: backward_run(runs[name](), given) for name in taken}
                backward.append(table_row(str(size), timed(back, milliseconds, dense=dense), 2.5 * work))
            kind = f"width {width}, {'causal' if causal else 'not causal'}, {str(dtype)[6:]}"
            target, limit = TARGETS.get(width, (DASH, DASH))
            print_table(f"Forward, {kind}: TFLOP/s (ratio: target {target}, limit {limit})", columns, forward)
            print_table(f"Backward, {kind}: TFLOP/s (ratio: target 0.55)", columns, backward)


def check_maps(device: str, dtype: torch.dtype) -> None:
    """Make sure that the one walk over a map gives what the dense map gives, the same in every run.

    Raises:
        RuntimeError: if a number is off by more than 10⁻⁶ · max(10, largest log-sum-exp) times what it is summed
            over, or if two runs differ, since programs disturb each other.
    """
    import torch

    from attn_core import MaskRule, attention
    from attn_core.flash import triton_maps
    from attn_core.flash.scoring import Scoring

    for rule in (MaskRule(), MaskRule(causal=True), MaskRule(causal=True, window=100)):
        query, key, value = (
            tensor.detach() for tensor in vectors(999, 64, dtype, device, tokens=1)
        )  # no whole tiles
        exact = attention(query.double(), key.double(), value.double(), rule=rule)
        lse, weights = exact.lse.float(), exact.weights
        left = torch.rand(1, 1, 1, 999, device=device)
        for parts in (1, 3, None):  # blocks of queries one after the other, and beside each other
            first, again = (
                triton_maps.statistics(query, key, lse, Scoring(0.125, rule), left=left, parts=parts)
                for _ in range(2)
            )
            assert first.rolled is not None
            assert again.rolled is not None
            allowed = 1e-6 * max(10.0, float(lse.abs().max()))
            errors = {
                "entropy": (first.rows.entropy - torch.special.entr(weights).sum(-1)) / 7,  # log 999
                "largest": first.rows.largest - weights.amax(-1),
                "received": (first.received - weights.sum(-2)) / 999,
                "rolled": (first.rolled - left.double() @ weights) / left.sum(),
            }
            for name, error in errors.items():
                if not error.abs().max() <= allowed:
                    raise RuntimeError(
                        f"check_maps: {name} is off by {error.abs().max():.1e} where {allowed:.1e} is allowed "
                        f"({rule}, parts {parts}); mend the kernel before measuring it."
                    )
            if not (torch.equal(first.received, again.received) and torch.equal(first.rolled, again.rolled)):
                raise RuntimeError(f"check_maps: two runs differ ({rule}, parts {parts}); mend the kernel.")


def map_table(
    sizes: Sequence[int], dtype: torch.dtype, device: str, milliseconds: Callable[[Run], float]
) -> None:
    """One walk for statistics, received attention and a rollout step, against the fastest forward pass (goal 23)."""
    import torch

    from attn_core.flash import triton_maps
    from attn_core.flash.scoring import Scoring
    from attn_core.flash.triton_forward import triton_attention

    with torch.no_grad():
        rows = []
        for size in sizes:
            query, key, value = vectors(size, 64, dtype, device)
            scoring = Scoring(64**-0.5)
            lse = triton_attention(query, key, value).lse
            left = torch.full((query.shape[0], 1, 1, size), 1.0 / size, device=device)
            runs = forward_runs((query, key, value), causal=False)
            fastest = min(
                timed({name: runs[name] for name in BACKENDS}, milliseconds, dense=size <= 8192).values()
            )
            walk = partial(triton_maps.statistics, query, key, lse, scoring, left=left)
            mine, whole = (milliseconds(partial(walk, detailed=detailed)) for detailed in (False, True))
            times = [f"{fastest:.2f}", f"{mine:.2f}", f"{mine / fastest:.2f}"]
            rows.append([str(size), *times, f"{whole:.2f}", f"{whole / fastest:.2f}"])
    title = "Statistics, received attention and rollout, width 64 (ratio: target 1.0, limit 2.0)"
    columns = ["n", "fastest forward, ms", "as views ask, ms", "ratio", "with details, ms", "ratio"]
    print_table(title, columns, rows)


def memory_table(size: int, dtype: torch.dtype, device: str) -> None:
    """Most memory of each view over the record of query, key and log-sum-exp (goal 24)."""
    import torch

    from attn_core.flash import triton_maps
    from attn_core.flash.scoring import Scoring
    from attn_core.flash.triton_forward import triton_attention

    with torch.no_grad():
        query, key, value = vectors(size, 64, dtype, device)
        scoring, lse = Scoring(64**-0.5), triton_attention(query, key, value).lse
        record = sum(tensor.nbytes for tensor in (query, key, lse))
        views: dict[str, Run] = {
            "attention": lambda: triton_attention(query, key, value),
            "statistics": lambda: triton_maps.statistics(query, key, lse, scoring),
            "pooled 512 × 512": lambda: triton_maps.pooled(query, key, lse, scoring, 512, 512),
            "top 16 links": lambda: triton_maps.top_links(query, key, lse, scoring, 16),
        }
        rows = []
        for name, run in views.items():
            run()  # tuned before it is measured
            torch.cuda.synchronize()
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            held = run()
            torch.cuda.synchronize()
            extra = torch.cuda.max_memory_allocated() - before
            del held
            rows.append([name, f"{extra / MIB:.0f}", f"{extra / record:.2f}"])
    dense = query.shape[0] * query.shape[1] * size * size * query.element_size()
    title = (
        f"Memory at n = {size}: record {record / MIB:.0f} MiB, dense weights {dense / MIB:,.0f} MiB "
        "(ratio to the record: target 1.5, limit 2)"
    )
    print_table(title, ["view", "extra, MiB", "ratio"], rows)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the tables, or that there is no GPU."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--widths", type=int, nargs="+", default=(64, 128))
    parser.add_argument("--dtype", choices=("bfloat16", "float16"), default="bfloat16")
    options = parser.parse_args(arguments)

    import torch

    if not torch.cuda.is_available():
        print("gpu: no NVIDIA GPU here (torch.cuda.is_available() is False); nothing was measured.")
        return
    from triton.testing import do_bench

    dtype, properties = getattr(torch, options.dtype), torch.cuda.get_device_properties(0)
    print(f"{properties.name}, sm_{properties.major}{properties.minor}, PyTorch {torch.__version__}")

    def milliseconds(run: Run) -> float:
        return float(do_bench(run, return_mode="median"))

    check_exact("cuda", dtype)
    check_maps("cuda", dtype)
    attention_tables(options.sizes, options.widths, dtype, "cuda", milliseconds)
    map_table([size for size in options.sizes if size >= 4096], dtype, "cuda", milliseconds)
    memory_table(32768, dtype, "cuda")


if __name__ == "__main__":
    main()
