"""The same vectors through exact attention and through its cheaper variants: what each keeps, and how far it is off.

Every number comes from ``attn_core``. Nothing here is trained: Linformer's projections, Reformer's rotations and
random features are drawn from a seed, so an error is that of the mechanism before a model has learnt to use it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from analysis.figure_lab import Curve, CurvePanel, CurveSheet, MatrixSheet, NamedMatrix
from attn_core.functional import attention
from attn_core.mask_rules import block_sparse_rule, causal_rule, window_rule
from attn_core.masks import MaskRule
from attn_core.variants.fast_weights import fast_weight_attention, fast_weight_weights
from attn_core.variants.linear import linear_attention, linear_attention_weights
from attn_core.variants.linformer import linformer_attention
from attn_core.variants.random_features import positive_random_features, random_directions
from attn_core.variants.reformer import lsh_attention, random_rotations
from attn_core.variants.sparse import bigbird_layout

if TYPE_CHECKING:
    from analysis.lab.inputs import LabVectors

Variant = Literal["exact", "linear", "fast_weights", "linformer", "reformer", "window", "block"]
VARIANTS: tuple[Variant, ...] = get_args(Variant)

TITLES: Mapping[Variant, str] = MappingProxyType(
    {
        "exact": "Exact",
        "linear": "Linear",
        "fast_weights": "Fast weights",
        "linformer": "Linformer",
        "reformer": "Reformer",
        "window": "Sliding window",
        "block": "Block-sparse",
    }
)

SOURCES: Mapping[Variant, str] = MappingProxyType(
    {
        "exact": "Vaswani et al. 2017, section 3.2.1",
        "linear": "Katharopoulos et al. 2020, equation 4",
        "fast_weights": "Schlag et al. 2021, section 4.2",
        "linformer": "Wang et al. 2020, equation 7",
        "reformer": "Kitaev et al. 2020, section 2",
        "window": "Beltagy et al. 2020, section 3.1",
        "block": "Zaheer et al. 2020, section 2",
    }
)

BLIND = 1.25
"""Kept mass over kept pairs below which the choice of pairs is hardly better than a blind one."""


@dataclass(frozen=True)
class VariantSettings:
    """Sizes of the variants.

    Attributes:
        rank: R of Linformer; ``projection``: "random" N(0, 1/R), or "mean", each slot the mean of a run of positions.
        hashes, buckets: rounds and buckets of Reformer; an odd number of buckets counts as the even one below.
        window: keys nearer than this are seen, on both sides.
        block: positions a block; ``pattern``: "local" sees its own block, "global" the first one too and is seen by
            it, "bigbird" besides its neighbours and one that is drawn.
        features: φ of linear attention and fast weights; ``count``: of "random" ones.
        seed: of all that is drawn.
    """

    rank: int = 8
    projection: str = "random"
    hashes: int = 2
    buckets: int = 4
    window: int = 4
    block: int = 4
    pattern: str = "global"
    features: str = "elu"
    count: int = 64
    seed: int = 0

    def generator(self) -> torch.Generator:
        """A fresh source of random numbers, the same at each call."""
        return torch.Generator().manual_seed(self.seed)

    @property
    def even_buckets(self) -> int:
        """Buckets of Reformer: each direction makes two."""
        return max(self.buckets - self.buckets % 2, 2)

    @property
    def window_rule(self) -> MaskRule:
        """Of the sliding window, to both sides."""
        return window_rule(self.window, causal=False)

    def layout(self, n: int) -> Tensor:
        """(⌈n / block⌉, ⌈n / block⌉) bool, the blocks that are seen."""
        sizes = {"local": (0, 0, 0), "global": (0, 1, 0), "bigbird": (1, 1, 1)}
        reach, first, drawn = sizes[self.pattern]
        return bigbird_layout(
            -(-n // self.block), reach=reach, first=first, drawn=drawn, generator=self.generator()
        )

    def projections(self, n: int) -> tuple[Tensor, Tensor]:
        """E and F of Linformer, (R, n) each and untrained; means of runs are one matrix, with at most n slots."""
        if self.projection == "mean":
            slots = min(self.rank, n)
            slot = torch.arange(n) * slots // n
            runs = (slot == torch.arange(slots)[:, None]).float()
            mean = runs / runs.sum(1, keepdim=True)
            return mean, mean
        generator = self.generator()
        drawn = torch.randn(2, self.rank, n, generator=generator) * self.rank**-0.5
        return drawn[0], drawn[1]

    def feature_vectors(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, str]:
        """Query and key as the feature map wants them, and its name in ``attn_core``."""
        if self.features == "random":
            directions = random_directions(query.shape[-1], self.count, generator=self.generator())
            return *positive_random_features(query, key, directions), "identity"
        return query, key, {"elu": "elu_plus_one", "relu": "relu"}[self.features]


@dataclass(frozen=True, eq=False)
class VariantResult:
    """One variant beside exact attention.

    Attributes:
        name: of the variant.
        weights: (N, N), context = weights · value: true weights, or the effective ones of a variant that has none.
        what: what these weights are, in words.
        context: (N, E).
        error: |context − exact| / |exact|, both over all rows; ``row_error``: (N,) the same of each row.
        pairs: share of the pairs whose score is taken at all.
        kept: share of exact attention's mass on those pairs, the mean of ``row_kept`` (N,).
        alike: share of exact attention's mass that the variant puts on the same keys, Σ min of both weights.
        row_sum: mean sum of a row of weights.
        causal: whether it is held to exact attention under a causal rule.
        sparse: whether it leaves pairs out.
        notes: what a reader must know of it.
    """

    name: Variant
    weights: NDArray[np.float64]
    what: str
    context: NDArray[np.float64]
    error: float
    row_error: NDArray[np.float64]
    pairs: float
    kept: float
    row_kept: NDArray[np.float64]
    alike: float
    row_sum: float
    causal: bool = False
    sparse: bool = False
    notes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        """What it is called."""
        return TITLES[self.name]


@dataclass(frozen=True, eq=False)
class VariantComparison:
    """All chosen variants on one head's vectors.

    Attributes:
        results: in the order in which they were asked for.
        tokens: N labels.
        source: where the vectors come from.
        largest: exact attention's largest weight.
        mean_error: what the error would be if every query took the plain mean of all values.
        notes: of the vectors.
    """

    results: tuple[VariantResult, ...]
    tokens: tuple[str, ...]
    source: str
    largest: float
    mean_error: float
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class _Outcome:
    """What a variant says of (1, 1, N, D) vectors.

    Attributes:
        weights, context: (N, N) and (N, E).
        pairs: (N, N) bool, which scores are taken.
    """

    weights: Tensor
    context: Tensor
    pairs: Tensor
    what: str
    causal: bool = False
    notes: tuple[str, ...] = ()


def compare_variants(
    vectors: LabVectors, variants: Sequence[Variant], settings: VariantSettings
) -> VariantComparison:
    """Each variant on one head's vectors, in float64.

    Args:
        vectors: one head: query (1, N, D), key and value.
        variants: which, in this order.
    Raises:
        ValueError: if there is more than one head or no token, or a variant is unknown.
    """
    if vectors.query.shape[:2] != (1, len(vectors.tokens)) or not vectors.tokens:
        raise ValueError(
            "compare_variants: vectors must be one head of at least one token but query is "
            f"{tuple(vectors.query.shape)} for {len(vectors.tokens)} tokens; take LabVectors.head."
        )
    unknown = [name for name in variants if name not in _RUNS]
    if unknown:
        raise ValueError(
            f"compare_variants: variants must be {', '.join(_RUNS)} but one is {unknown[0]!r}; choose others."
        )
    query, key, value = (
        tensor[None].detach().double() for tensor in (vectors.query, vectors.key, vectors.value)
    )
    exact = {
        causal: attention(query, key, value, rule=causal_rule() if causal else None)
        for causal in (False, True)
    }
    results = []
    for name in variants:
        outcome = _RUNS[name](query, key, value, settings)
        reference = exact[outcome.causal]
        results.append(_result(name, outcome, reference.weights[0, 0], reference.context[0, 0]))
    plain = exact[False]
    mean = value[0, 0].mean(0).expand_as(plain.context[0, 0])
    return VariantComparison(
        tuple(results),
        vectors.tokens,
        vectors.source,
        largest=float(plain.weights.max()),
        mean_error=float(relative_error(mean.flatten(), plain.context.flatten())),
        notes=vectors.notes,
    )


def _result(name: Variant, outcome: _Outcome, exact: Tensor, context: Tensor) -> VariantResult:
    row_kept = exact.masked_fill(~outcome.pairs, 0.0).sum(-1)
    return VariantResult(
        name=name,
        weights=outcome.weights.numpy(),
        what=outcome.what,
        context=outcome.context.numpy(),
        error=float(relative_error(outcome.context.flatten(), context.flatten())),
        row_error=relative_error(outcome.context, context).numpy(),
        pairs=float(outcome.pairs.double().mean()),
        kept=float(row_kept.mean()),
        row_kept=row_kept.numpy(),
        alike=float(torch.minimum(outcome.weights.clamp(min=0), exact).sum(-1).mean()),
        row_sum=float(outcome.weights.sum(-1).mean()),
        causal=outcome.causal,
        sparse=name in ("reformer", "window", "block"),
        notes=outcome.notes,
    )


def relative_error(found: Tensor, exact: Tensor) -> Tensor:
    """|found − exact| / |exact| along the last axis; where the exact one is 0, 0 if the other is too, else ∞."""
    off, size = (found - exact).norm(dim=-1), exact.norm(dim=-1)
    return torch.where(off == 0, torch.zeros_like(off), off / size)


# The variants -----------------------------------------------------------------------------------------------------


def _all_pairs(query: Tensor) -> Tensor:
    n = query.shape[2]
    return torch.ones(n, n, dtype=torch.bool)


def _exact(query: Tensor, key: Tensor, value: Tensor, _: VariantSettings) -> _Outcome:
    out = attention(query, key, value)
    return _Outcome(out.weights[0, 0], out.context[0, 0], _all_pairs(query), "softmax(QKᵀ/√d)")


def _linear(query: Tensor, key: Tensor, value: Tensor, settings: VariantSettings) -> _Outcome:
    queries, keys, name = settings.feature_vectors(query, key)
    feature_map: Any = name
    out = linear_attention(queries, keys, value, feature_map=feature_map)
    weights = linear_attention_weights(queries, keys, feature_map=feature_map)
    told = f"{settings.count} random features, drawn once: unbiased, and the closer the more there are."
    return _Outcome(
        weights[0, 0],
        out.context[0, 0],
        _all_pairs(query),
        "implied: φ(q)·φ(k) over its row's sum",
        notes=(told,) if settings.features == "random" else (),
    )


def _fast_weights(query: Tensor, key: Tensor, value: Tensor, settings: VariantSettings) -> _Outcome:
    queries, keys, name = settings.feature_vectors(query, key)
    feature_map: Any = name
    out = fast_weight_attention(queries, keys, value, feature_map=feature_map, key_norm="sum")
    weights = fast_weight_weights(queries, keys, feature_map=feature_map, key_norm="sum")
    return _Outcome(
        weights[0, 0],
        out.context[0, 0],
        _all_pairs(query).tril(),
        "implied: how much of each value is read from the memory",
        causal=True,
        notes=(
            "Fast weights (delta rule, strength 1) read only what was written before, so they are held to causal "
            "exact attention; a later write takes an earlier one back, which makes weights negative.",
        ),
    )


def _linformer(query: Tensor, key: Tensor, value: Tensor, settings: VariantSettings) -> _Outcome:
    e_projection, f_projection = (projection.double() for projection in settings.projections(query.shape[2]))
    out = linformer_attention(query, key, value, e_projection, f_projection)
    how = "random" if settings.projection == "random" else "means of runs of positions"
    return _Outcome(
        out.weights()[0, 0],
        out.context[0, 0],
        _all_pairs(query),
        f"effective: weights of {e_projection.shape[0]} slots times F",
        notes=(
            f"Linformer's projections are untrained ({how}): its error is that of the projection, not of a trained "
            "Linformer.",
        ),
    )


def _reformer(query: Tensor, key: Tensor, value: Tensor, settings: VariantSettings) -> _Outcome:
    rotations = random_rotations(
        query.shape[3], settings.even_buckets, settings.hashes, generator=settings.generator()
    )
    rotations = rotations.to(query.dtype)
    out = lsh_attention(query, value, rotations)
    unhashed = lsh_attention(query, value, rotations[:1, :, :0])
    own = float(relative_error(out.context.flatten(), unhashed.context.flatten()))
    shared = float(relative_error(unhashed.context.flatten(), attention(query, key, value).context.flatten()))
    return _Outcome(
        out.weights[0, 0],
        out.context[0, 0],
        out.weights[0, 0] != 0,
        "softmax over pairs that share a bucket",
        notes=(
            "Reformer has no keys of its own: it takes the queries for both, here queries that were not made for "
            f"it. That alone is off by {percent(shared)}; against itself without hashing it is off by "
            f"{percent(own)} and keeps {percent(float(out.kept.mean()))} of the mass.",
        ),
    )


def _window(query: Tensor, key: Tensor, value: Tensor, settings: VariantSettings) -> _Outcome:
    return _ruled(query, key, value, settings.window_rule, "softmax over keys nearer than the window")


def _block(query: Tensor, key: Tensor, value: Tensor, settings: VariantSettings) -> _Outcome:
    rule = block_sparse_rule(settings.layout(query.shape[2]), block_size=settings.block)
    return _ruled(query, key, value, rule, "softmax over the blocks that are kept")


def _ruled(query: Tensor, key: Tensor, value: Tensor, rule: MaskRule, what: str) -> _Outcome:
    out = attention(query, key, value, rule=rule)
    n = query.shape[2]
    positions = torch.arange(n)
    allowed = rule.allowed(positions, positions, queries=n, keys=n)
    assert allowed is not None
    return _Outcome(out.weights[0, 0], out.context[0, 0], allowed.expand(1, 1, n, n)[0, 0], what)


_RUNS: Mapping[str, Callable[[Tensor, Tensor, Tensor, VariantSettings], _Outcome]] = MappingProxyType(
    {
        "exact": _exact,
        "linear": _linear,
        "fast_weights": _fast_weights,
        "linformer": _linformer,
        "reformer": _reformer,
        "window": _window,
        "block": _block,
    }
)


# Figures and words ------------------------------------------------------------------------------------------------


def hue_of(name: Variant) -> int:
    """Place of a variant in the palette, the same in every chart."""
    return VARIANTS.index(name)


def weights_sheet(view: VariantComparison) -> MatrixSheet:
    """The weights side by side; the colours of all end at exact attention's largest weight."""
    labels = view.tokens if len(view.tokens) <= 64 else ()
    return MatrixSheet(
        tuple(
            NamedMatrix(
                name=result.title,
                values=result.weights,
                rows=labels,
                columns=labels,
                scale="signed" if result.weights.min() < 0 else "weights",
                limit=view.largest,
                note=_below(result),
                axes=("query", "key"),
            )
            for result in view.results
        ),
        title=view.source,
        notes=variant_notes(view),
        numbers=False,
    )


def _below(result: VariantResult) -> str:
    if result.name == "exact":
        return result.what
    kept = f" · keeps {percent(result.kept)}" if result.sparse else ""
    return f"{result.what} · off by {percent(result.error)}{kept}"


def rows_sheet(view: VariantComparison) -> CurveSheet:
    """Error of the context of each row, and of the sparse variants the mass kept in each row."""
    place = np.arange(len(view.tokens), dtype=np.float64)
    others = [result for result in view.results if result.name != "exact"]
    panels = [
        CurvePanel(
            "Context off by, row by row",
            "query",
            "relative error",
            tuple(
                Curve(result.title, place, result.row_error, hue=hue_of(result.name), labels=view.tokens)
                for result in others
            ),
        )
    ]
    sparse = [result for result in others if result.sparse]
    if sparse:
        panels.append(
            CurvePanel(
                "Exact attention's mass on the pairs kept, row by row",
                "query",
                "share of the row",
                tuple(
                    Curve(result.title, place, result.row_kept, hue=hue_of(result.name), labels=view.tokens)
                    for result in sparse
                ),
            )
        )
    return CurveSheet(tuple(panels), title=view.source, notes=variant_notes(view))


TABLE_HEADER = ("Variant", "Pairs scored", "Mass kept", "Mass on the same keys", "Row sum", "Context off by")


def table_rows(view: VariantComparison) -> tuple[tuple[str, ...], ...]:
    """A line for each variant, as text."""
    return tuple(
        (
            result.title + (" (causal)" if result.causal else ""),
            percent(result.pairs),
            percent(result.kept) if result.sparse else "all",
            percent(result.alike),
            f"{result.row_sum:.2f}".replace("-", "−"),
            percent(result.error),
        )
        for result in view.results
    )


def variant_notes(view: VariantComparison) -> tuple[str, ...]:
    """What a reader must know of the vectors and of each variant."""
    return view.notes + tuple(note for result in view.results for note in result.notes)


def conclusions(view: VariantComparison) -> tuple[str, ...]:
    """What the numbers say: the nearest variant, those that help nothing, and how well pairs are chosen."""
    others = sorted(
        (result for result in view.results if result.name != "exact"), key=lambda result: result.error
    )
    n = len(view.tokens)
    if not others:
        return ("Choose a variant to hold against exact attention.",)
    sentences = []
    near, far = others[0], others[-1]
    if len(others) == 1:
        sentences.append(f"At n = {n} the context of {_inside(near)} is off by {percent(near.error)}.")
    else:
        sentences.append(
            f"At n = {n} the context of {_inside(near)} is nearest to exact attention, off by {percent(near.error)}; "
            f"{_inside(far)} is farthest, off by {percent(far.error)}."
        )
    idle = [result for result in others if not result.causal and result.error >= view.mean_error]
    told = f"The plain mean of all values would be off by {percent(view.mean_error)}"
    if idle:
        told += (
            f"; {_listed([_inside(result) for result in idle])} {'is' if len(idle) == 1 else 'are'} no nearer"
        )
    sentences.append(told + ".")
    sparse = [result for result in others if result.sparse]
    if sparse:
        best = max(sparse, key=lambda result: result.kept / result.pairs if result.pairs else 0.0)
        gain = best.kept / best.pairs if best.pairs else 0.0
        told = (
            f"{gain:.1f} times what as many pairs picked blindly would hold"
            if gain >= BLIND
            else "hardly more than as many pairs picked blindly would hold"
        )
        sentences.append(
            f"{best.title} keeps {percent(best.kept)} of exact attention's mass on {percent(best.pairs)} of the "
            f"pairs, {told}."
        )
    return tuple(sentences)


def _inside(result: VariantResult) -> str:
    """Its title inside a sentence."""
    proper = result.name in ("linformer", "reformer")
    names = {"linear": "linear attention", "window": "the sliding window", "block": "block-sparse attention"}
    return result.title if proper else names.get(result.name, result.title.lower())


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def percent(share: float) -> str:
    """A share in words, "23 %", "0.4 %" or "1,240 %", with a space that does not break."""
    if not np.isfinite(share):
        return "∞"
    value = 100 * share
    return f"{value:.1f}\N{NO-BREAK SPACE}%" if 0 < abs(value) < 9.95 else f"{value:,.0f}\N{NO-BREAK SPACE}%"
