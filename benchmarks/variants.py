"""Variants of attention against exact attention, as the sequence grows.

    python -m benchmarks.variants [--repeats 5] [--sizes 512 1024 2048 4096]

One head of width 64 on random vectors, sizes of the variants as the Lab page starts. Time is CPU time of one thread,
the variants of one length in turn; memory is the most bytes of tensors alive at once beyond the input, as PyTorch's
profiler records them. Ratios are to exact attention written out; exponents are fitted to all lengths. A variant that
is exact under its rule is checked to be so before it is measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from benchmarks.measure import cpu_seconds, print_table

if TYPE_CHECKING:
    from analysis.lab.variant_costs import Costed

SIZES = (512, 1024, 2048, 4096)


def check_same(size: int) -> None:
    """Make sure that the quick forms are exact attention, or exact under their rule.

    Raises:
        RuntimeError: if one is not; its time would mean nothing.
    """
    import torch

    from analysis.lab.variant_costs import WIDTH, runs_of
    from analysis.lab.variants import VariantSettings
    from attn_core import attention
    from attn_core.mask_rules import block_sparse_rule

    settings = VariantSettings()
    query, key, value = torch.randn(3, 1, 1, size, WIDTH, generator=settings.generator()).unbind()
    block = block_sparse_rule(settings.layout(size), block_size=settings.block)
    rules = {"fused": None, "window": settings.window_rule, "block": block}
    for variant, rule in rules.items():
        name: Costed = variant  # type: ignore[assignment]
        exact = attention(query, key, value, rule=rule).context
        difference = (runs_of(name, size, settings)() - exact).abs().max().item()
        if difference > 1e-4:
            raise RuntimeError(
                f"check_same: {variant} must be exact under its rule but differs by {difference:.1e}; mend it before "
                "measuring it."
            )


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    options = parser.parse_args(arguments)

    import torch

    from analysis.growth import growth
    from analysis.lab.variant_costs import COST_TITLES, operations, peak_tensor_bytes, runs_of
    from analysis.lab.variants import VariantSettings

    torch.set_num_threads(1)
    sizes, settings = sorted(options.sizes), VariantSettings()
    check_same(sizes[0])
    seconds: dict[str, list[float]] = {variant: [] for variant in COST_TITLES}
    memory: dict[str, list[int]] = {variant: [] for variant in COST_TITLES}
    with torch.inference_mode():
        for size in sizes:
            runs: dict[str, Callable[[], object]] = {
                variant: runs_of(variant, size, settings) for variant in COST_TITLES
            }
            for variant, taken in cpu_seconds(runs, repeats=options.repeats).items():
                seconds[variant].append(taken)
            for variant, run in runs.items():
                memory[variant].append(peak_tensor_bytes(run))
    rows = []
    for variant, title in COST_TITLES.items():
        flops = operations(variant, sizes[-1], settings)
        rows.append(
            [
                title,
                *(f"{1000 * taken:,.2f}" for taken in seconds[variant]),
                f"{growth(sizes, seconds[variant], start=0):.2f}",
                f"{seconds['exact'][-1] / seconds[variant][-1]:.1f}",
                f"{memory[variant][-1] / 2**20:,.2f}",
                f"{growth(sizes, memory[variant], start=0):.2f}",
                f"{flops / 1e6:,.1f}",
            ]
        )
    columns = (
        "variant",
        *(f"n = {size:,} ms" for size in sizes),
        "exponent",
        f"times quicker at {sizes[-1]:,}",
        f"MiB at {sizes[-1]:,}",
        "exponent",
        f"MFLOPs at {sizes[-1]:,}",
    )
    print_table(f"Variants (CPU time of one thread, median of {options.repeats})", columns, rows)


if __name__ == "__main__":
    main()
