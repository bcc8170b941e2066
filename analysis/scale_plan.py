"""What the Scale page measures: the ways of computing a layer, and one plan. Read with every page's link, so nothing
is imported for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

Way = Literal["dense", "sdpa", "fused", "compiled", "tiled", "triton", "flex", "statistics"]
"""How a layer is computed; ``statistics`` is what a view of it costs."""

WAY_TITLES: Mapping[Way, str] = MappingProxyType(
    {
        "dense": "Written out",
        "sdpa": "PyTorch SDPA",
        "fused": "Fused with log-sum-exp",
        "compiled": "C kernel",
        "tiled": "Tiles",
        "triton": "Triton kernel",
        "flex": "FlexAttention",
        "statistics": "Streamed statistics",
    }
)
WAYS: tuple[Way, ...] = tuple(WAY_TITLES)

WAY_WORDS: Mapping[Way, str] = MappingProxyType(
    {
        "dense": "softmax(QKᵀ/√d)V as it is written: all n × n weights stand in memory",
        "sdpa": "torch.nn.functional.scaled_dot_product_attention; a window is a mask of all pairs to it",
        "fused": "PyTorch's own flash kernel, asked for the log-sum-exp: what a recorded forward pass uses",
        "compiled": "this program's own flash kernel in C: a recorded forward pass over a long input uses it where "
        "it is quicker",
        "tiled": "the flash algorithm in plain PyTorch, tile by tile, skipping tiles that the rule excludes",
        "triton": "this program's own kernel for GPUs",
        "flex": "torch.nn.attention.flex_attention, compiled, with a block mask for a rule",
        "statistics": "entropy, masses, distances and received attention of every head, from query, key and "
        "log-sum-exp",
    }
)

FIRST_SIZE = 128
WINDOW_START = 256
SECONDS_A_POINT = 10.0
"""A way ends before a pass that would take longer."""

Rule = Literal["all", "causal", "window"]
Numbers = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True)
class ScalePlan:
    """What is measured.

    Attributes:
        ways: in this order.
        heads, width: H and D of the one layer.
        numbers: dtype of query, key and value.
        rule: which pairs are allowed: all, causal, or a causal window of ``window`` keys.
        backward: forward and backward pass; else forward alone.
        longest: n is 128, 256 … up to it.
        memory: most bytes of tensors that a point may take.
        seconds: a way ends before a pass that would take longer.
        threads: of the measuring process; 0 = as many as PyTorch takes by itself.
        device: "cpu" or "cuda".
    """

    ways: tuple[Way, ...] = WAYS
    heads: int = 6
    width: int = 64
    numbers: Numbers = "float32"
    rule: Rule = "all"
    window: int = WINDOW_START
    backward: bool = False
    longest: int = 8192
    memory: int = 2 * 2**30
    seconds: float = SECONDS_A_POINT
    threads: int = 1
    device: Literal["cpu", "cuda"] = "cpu"

    @property
    def sizes(self) -> tuple[int, ...]:
        """n, rising in powers of two."""
        sizes = [FIRST_SIZE]
        while 2 * sizes[-1] <= self.longest:
            sizes.append(2 * sizes[-1])
        return tuple(sizes)
