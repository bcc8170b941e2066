"""What attention costs: operations, bytes, and what is kept, for each mechanism from its sizes alone.

FLOPs are those of the matrix products of one forward pass, two for each multiply-add; softmax, feature maps and masks
are left out, as ``torch.utils.flop_counter`` does. Numbers are first-order: every array crosses the memory bus as
often as the formula reads or writes it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

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
    _at_least_one(tile_queries, "flash_cost: tile_queries")
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
    _at_least_one(projected, "linformer_cost: projected")
    short = AttentionShape(**{**vars(shape), "keys": projected})
    inner = written_out_cost(short)
    moved = shape.key_value_numbers + short.key_value_numbers + 2 * projected * shape.keys
    return AttentionCost(
        flops=inner.flops + 2 * projected * shape.key_value_numbers,
        bytes_moved=inner.bytes_moved + moved * shape.element_bytes,
        activation_bytes=inner.activation_bytes + shape.key_value_numbers * shape.element_bytes,
        cache_bytes=inner.cache_bytes,
    )


def additive_cost(shape: AttentionShape, *, inner: int) -> AttentionCost:
    """Additive attention, v · tanh(W q + U k), with its two projections (Bahdanau et al. 2014, appendix A.1.2).

    The tanh of every pair is made in fast memory and made again for the backward pass; scores and weights stand in
    the open.

    Args:
        inner: A, width inside the tanh.
    Raises:
        ValueError: if ``inner`` is below 1.
    """
    _at_least_one(inner, "additive_cost: inner")
    keys = shape.batch * shape.groups * shape.keys
    projected = (shape.query_numbers // shape.width + keys) * inner
    weights = inner * (2 * shape.width + 1)
    ends = shape.query_numbers + shape.key_value_numbers
    return AttentionCost(
        flops=2 * projected * shape.width + 2 * shape.pairs * (inner + shape.value_width),
        bytes_moved=(ends + weights + 2 * projected + shape.context_numbers + 4 * shape.pairs)
        * shape.element_bytes,
        activation_bytes=(ends + projected + shape.pairs) * shape.element_bytes,
        cache_bytes=keys * (inner + shape.value_width) * shape.element_bytes,
    )


def fast_weight_cost(
    shape: AttentionShape, *, write_rule: Literal["sum", "delta"] = "delta", chunk: int = 64
) -> AttentionCost:
    """Fast weights, chunk by chunk: the memory is read and written once for each (Schlag et al. 2021).

    Inside a chunk all pairs are multiplied out. The triangular system of the delta rule is solved by substitution,
    which is no matrix product and is left out: chunk³ operations a chunk and group.

    Args:
        write_rule: as in ``attn_core.variants.fast_weight_attention``.
        chunk: positions a chunk; 1 is the recurrence.
    Raises:
        ValueError: if ``chunk`` is below 1, or queries and keys are not the same positions.
    """
    _at_least_one(chunk, "fast_weight_cost: chunk")
    _check_own_positions(shape, "fast_weight_cost")
    whole, rest = divmod(shape.keys, chunk)
    squares = whole * chunk**2 + rest**2  # pairs inside chunks
    heads, groups = shape.batch * shape.heads, shape.batch * shape.groups
    width, out = shape.width, shape.value_width
    reads = 2 * heads * (shape.keys * width * out + squares * (width + out))
    writes = 2 * groups * (shape.keys * width * out + squares * out)
    if write_rule == "delta":
        writes += 2 * groups * (shape.keys * width * out + squares * width)
    memory = groups * width * out
    chunks = whole + (rest > 0)
    inputs = shape.query_numbers + shape.key_value_numbers + groups * shape.keys  # strengths too
    return AttentionCost(
        flops=reads + writes,
        bytes_moved=(inputs + shape.context_numbers + 2 * chunks * memory) * shape.element_bytes,
        activation_bytes=(inputs + groups * shape.keys * out + chunks * memory) * shape.element_bytes,
        cache_bytes=memory * shape.element_bytes,
    )


def reformer_cost(shape: AttentionShape, *, buckets: int, rounds: int, chunk: int) -> AttentionCost:
    """Reformer: each round hashes, sorts, and attends from a chunk to itself and the one before.

    Kitaev et al. 2020, section 2. Query and key are one array, so that it is read and kept once.

    Args:
        buckets, rounds: of the hash; ``chunk``: positions a chunk.
    Raises:
        ValueError: if one of these is below 1, or the layer has no shared queries and keys.
    """
    for name, size in (("buckets", buckets), ("rounds", rounds), ("chunk", chunk)):
        _at_least_one(size, f"reformer_cost: {name}")
    _check_own_positions(shape, "reformer_cost")
    if shape.groups != shape.heads:
        raise ValueError(
            f"reformer_cost: groups must be heads {shape.heads} but is {shape.groups}; query and key are one array."
        )
    heads = shape.batch * shape.heads
    chunks = math.ceil(shape.keys / chunk)
    pairs = heads * chunks * chunk * 2 * chunk  # of one round
    hashing = 2 * shape.query_numbers * (buckets // 2)
    attending = 2 * pairs * (shape.width + shape.value_width)
    joining = 2 * shape.context_numbers  # contexts of the rounds, weighted
    values = shape.context_numbers
    # Of each round: queries once, keys and values by their own chunk and the next, context and its log-sum-exp.
    moved = 3 * shape.query_numbers + 2 * values + shape.context_numbers + heads * shape.keys
    return AttentionCost(
        flops=rounds * (hashing + attending + joining),
        bytes_moved=(rounds * moved + shape.query_numbers + values + shape.context_numbers)
        * shape.element_bytes,
        activation_bytes=(shape.query_numbers + values + rounds * (pairs + values)) * shape.element_bytes,
        cache_bytes=(shape.query_numbers + values) * shape.element_bytes,
    )


def _at_least_one(size: int, name: str) -> None:
    if size < 1:
        raise ValueError(f"{name} must be at least 1 but is {size}; pass a positive integer.")


def _check_own_positions(shape: AttentionShape, function: str) -> None:
    if shape.queries != shape.keys:
        raise ValueError(
            f"{function}: queries must be the keys' own {shape.keys} positions but there are {shape.queries}; the "
            "mechanism has no others."
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
