"""What attention costs: operations, bytes, and what is kept, for each mechanism from its sizes alone.

FLOPs are those of the matrix products of one forward pass, two for each multiply-add; softmax, feature maps and masks
are left out, as ``torch.utils.flop_counter`` does. Numbers are first-order: every array crosses the memory bus as
often as the formula reads or writes it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from attn_core.mask_rules import allowed_share
from attn_core.masks import MaskRule

LSE_BYTES = 4
"""A log-sum-exp is kept in float32, whatever the dtype of the rest."""


@dataclass(frozen=True)
class AttentionShape:
    """Sizes of one attention layer.

    Attributes:
        batch, heads, groups, queries, keys: B, H, G, Q, K. G = H is multi-head, G = 1 multi-query attention (Shazeer
            2019), between them it is grouped (Ainslie et al. 2023).
        width, value_width: D of query and key, E of value.
        element_bytes: bytes of one number; 2 for float16 and bfloat16.
    """

    batch: int
    heads: int
    groups: int
    queries: int
    keys: int
    width: int
    value_width: int
    element_bytes: int = 2

    def __post_init__(self) -> None:
        for name, size in vars(self).items():
            if size < 1:
                raise ValueError(
                    f"AttentionShape: {name} must be at least 1 but is {size}; pass a positive integer."
                )
        if self.heads % self.groups:
            raise ValueError(
                f"AttentionShape: heads must be a multiple of groups {self.groups} but is {self.heads}; "
                "grouped attention needs whole groups."
            )

    @property
    def query_numbers(self) -> int:
        """B · H · Q · D."""
        return self.batch * self.heads * self.queries * self.width

    @property
    def key_value_numbers(self) -> int:
        """B · G · K · (D + E)."""
        return self.batch * self.groups * self.keys * (self.width + self.value_width)

    @property
    def context_numbers(self) -> int:
        """B · H · Q · E."""
        return self.batch * self.heads * self.queries * self.value_width

    @property
    def pairs(self) -> int:
        """B · H · Q · K."""
        return self.batch * self.heads * self.queries * self.keys


@dataclass(frozen=True)
class AttentionCost:
    """Cost of one attention layer.

    Attributes:
        flops: of the matrix products, forward.
        bytes_moved: between slow and fast memory, forward.
        activation_bytes: kept for the backward pass, inputs included.
        cache_bytes: kept of keys and values so that one more query can be answered.
    """

    flops: int
    bytes_moved: int
    activation_bytes: int
    cache_bytes: int

    @property
    def intensity(self) -> float:
        """FLOPs for each byte moved; below the machine's own ratio a layer waits for memory."""
        return self.flops / self.bytes_moved


def written_out_cost(shape: AttentionShape) -> AttentionCost:
    """Exact attention with every score and weight in the open: all pairs, whatever a mask forbids.

    The n × n array is written and read twice, as scores and as weights (Dao et al. 2022, algorithm 0), and the
    weights are kept for the backward pass.
    """
    ends = shape.query_numbers + shape.key_value_numbers
    return AttentionCost(
        flops=_exact_flops(shape),
        bytes_moved=(ends + shape.context_numbers + 4 * shape.pairs) * shape.element_bytes,
        activation_bytes=(ends + shape.pairs) * shape.element_bytes,
        cache_bytes=kv_cache_bytes(shape),
    )


def flash_cost(
    shape: AttentionShape, *, rule: MaskRule | None = None, tile_queries: int = 128
) -> AttentionCost:
    """Exact attention that stores no weights and skips forbidden pairs (Dao et al. 2022, section 3; Dao 2023).

    Skipping is counted by the pair. A kernel skips whole tiles, so it does a little more along the edge of a mask.

    Args:
        rule: which pairs may attend; their share scales FLOPs and reads of keys and values, but a key that some
            query sees is read once at least.
        tile_queries: rows of queries that stay in fast memory while the keys and values pass by. The heads of a group
            share them, which is what makes multi-query attention fast with one query (Shazeer 2019, section 3).
    Raises:
        ValueError: if ``tile_queries`` is below 1.
    """
    if tile_queries < 1:
        raise ValueError(f"flash_cost: tile_queries must be at least 1 but is {tile_queries}.")
    share = 1.0 if rule is None else allowed_share(rule, queries=shape.queries, keys=shape.keys)
    tiles = math.ceil(shape.queries * shape.heads // shape.groups / tile_queries)
    reads = max(share * tiles, min(1.0, share * shape.queries))
    key_value_reads = round(shape.key_value_numbers * reads)
    lse_bytes = shape.batch * shape.heads * shape.queries * LSE_BYTES
    ends = shape.query_numbers + shape.context_numbers
    return AttentionCost(
        flops=round(_exact_flops(shape) * share),
        bytes_moved=(ends + key_value_reads) * shape.element_bytes + lse_bytes,
        activation_bytes=(ends + shape.key_value_numbers) * shape.element_bytes + lse_bytes,
        cache_bytes=kv_cache_bytes(shape, rule=rule),
    )


def linear_cost(shape: AttentionShape, *, features: int | None = None) -> AttentionCost:
    """Linear attention, φ(Q) (φ(K)ᵀ V) with its normaliser (Katharopoulos et al. 2020, sections 3.2 and 3.3).

    The causal form, which updates the sums key by key, does the same operations. It keeps no keys: its cache are
    the sums of one moment.

    Args:
        features: F, how many numbers φ makes of a key; None = D.
    """
    count = shape.width if features is None else features
    state = shape.batch * shape.groups * count * (shape.value_width + 1)  # sums of φ(k) vᵀ and of φ(k)
    mapped = (shape.batch * count) * (shape.heads * shape.queries + shape.groups * shape.keys)  # φ(Q), φ(K)
    values = shape.batch * shape.groups * shape.keys * shape.value_width
    into_sums = 2 * values * count
    out_of_sums = 2 * shape.batch * shape.heads * shape.queries * count * (shape.value_width + 1)
    return AttentionCost(
        flops=into_sums + out_of_sums,
        bytes_moved=(mapped + values + 2 * state + shape.context_numbers) * shape.element_bytes,
        activation_bytes=(mapped + values + state) * shape.element_bytes,
        cache_bytes=state * shape.element_bytes,
    )


def linformer_cost(shape: AttentionShape, *, projected: int) -> AttentionCost:
    """Exact attention over keys and values projected to fewer positions (Wang et al. 2020, Linformer, section 4).

    Args:
        projected: positions that are left of the K; the matrices that do it are parameters, read once.
    Raises:
        ValueError: if ``projected`` is below 1.
    """
    short = AttentionShape(**{**vars(shape), "keys": projected})
    inner = written_out_cost(short)
    moved = shape.key_value_numbers + short.key_value_numbers + 2 * projected * shape.keys
    return AttentionCost(
        flops=inner.flops + 2 * projected * shape.key_value_numbers,
        bytes_moved=inner.bytes_moved + moved * shape.element_bytes,
        activation_bytes=inner.activation_bytes + shape.key_value_numbers * shape.element_bytes,
        cache_bytes=inner.cache_bytes,
    )


def kv_cache_bytes(shape: AttentionShape, *, rule: MaskRule | None = None, layers: int = 1) -> int:
    """Bytes of the keys and values of K positions; a causal window needs its own alone.

    Args:
        layers: how many layers of this shape keep a cache.
    """
    kept = shape.keys
    if rule is not None and rule.causal and rule.window is not None:
        kept = min(kept, rule.window)
    return layers * shape.key_value_numbers // shape.keys * kept * shape.element_bytes


def _exact_flops(shape: AttentionShape) -> int:
    return 2 * shape.pairs * (shape.width + shape.value_width)
