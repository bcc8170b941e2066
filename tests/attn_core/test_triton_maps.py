"""The Triton kernels of streamed maps, in Triton's interpreter on the CPU, against dense maps in float64.

The dense map is the reference's softmax of the same query and key. What rounding may cost follows from the scores: a
log-sum-exp of 300 is known to 2 · 10⁻⁵ in float32, and so is what is taken from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from attn_core import FactoredMap, MaskRule, attention
from attn_core.bias import Bias, RelativeBias
from attn_core.flash.scoring import Scoring
from attn_core.flash.streaming import Factors
from attn_core.functional import repeat_groups
from attn_core.watching import watching

pytest.importorskip("triton", reason="Triton is built for Linux alone")

from attn_core.flash import triton_maps
from attn_core.flash.triton_common import interpreted
from attn_core.flash.triton_map_calls import fewest_parts

pytestmark = pytest.mark.skipif(
    not interpreted(), reason="needs TRITON_INTERPRET=1 before Triton is imported"
)


@dataclass(frozen=True)
class Layer:
    """A map as the kernels take it and as ``weights`` (B, H, Q, K) in float64; they may differ by ``atol``."""

    map: tuple[Tensor, Tensor, Tensor, Scoring]
    weights: Tensor
    atol: float

    def check(self, found: Tensor, expected: Tensor, *, size: float = 1.0) -> None:
        """Equal up to rounding, for numbers as large as ``size``."""
        assert_close(found.double(), expected, atol=self.atol * size, rtol=1e-6)


def layer(
    rule: MaskRule,
    *,
    queries: int = 197,
    keys: int = 197,
    heads: int = 2,
    groups: int = 1,
    batch: int = 1,
    width: int = 20,
    bias: Bias | None = None,
    softcap: float | None = None,
    spread: float = 1.0,
    dtype: torch.dtype = torch.float32,
) -> Layer:
    """A seeded map; ``spread`` widens the scores."""
    torch.manual_seed(queries + keys)
    query = (
        (torch.randn(batch, queries, heads, width) * spread).to(dtype).transpose(1, 2)
    )  # strided, as models do
    key = (torch.randn(batch, keys, groups, width) * spread).to(dtype).transpose(1, 2)
    scale = 0.3
    wide = bias if not isinstance(bias, Tensor) else bias.double()
    dense = attention(
        query.double(), key.double(), key.double(), rule=rule, bias=wide, scale=scale, softcap=softcap
    )
    lse = dense.lse.float()
    largest = float(lse[lse.isfinite()].abs().max())
    scoring = Scoring(scale, rule, bias, softcap)
    return Layer((query, key, lse, scoring), dense.weights, 1e-6 * max(10.0, largest))


def made(name: str) -> Layer:
    """The layers that all questions are asked of."""
    torch.manual_seed(3)
    padding = torch.arange(150) < torch.tensor([[150], [70]])
    padding[0, 20:40] = False
    bias = torch.randn(1, 2, 140, 150)
    bias[:, :, 5], bias[:, :, :, 7] = -math.inf, -math.inf  # a row with nothing, which no rule tells
    return {
        "plain": lambda: layer(MaskRule(), heads=4, groups=2),
        "causal": lambda: layer(MaskRule(causal=True), queries=140),
        "more queries than keys": lambda: layer(
            MaskRule(causal=True), queries=190, keys=60
        ),  # 130 empty rows
        "window": lambda: layer(MaskRule(window=30), queries=140),
        "causal window": lambda: layer(MaskRule(causal=True, window=9)),
        "padding": lambda: layer(MaskRule(key_valid=padding), queries=60, keys=150, batch=2),
        "prefix": lambda: layer(
            MaskRule(causal=True, prefix=torch.tensor([140, 3])), queries=150, keys=150, batch=2
        ),
        "documents": lambda: layer(
            MaskRule(causal=True, documents=(torch.arange(150) // 61)[None]), queries=70, keys=150
        ),
        "bias": lambda: layer(MaskRule(causal=True), bias=bias, queries=140, keys=150),
        "relative bias": lambda: layer(
            MaskRule(),
            bias=RelativeBias.of(torch.randn(1, 2, 289), queries=140, keys=150),
            queries=140,
            keys=150,
        ),
        "soft cap": lambda: layer(MaskRule(causal=True), softcap=2.0, queries=140),
        "large scores": lambda: layer(MaskRule(), spread=6.4, queries=140, heads=1),  # lse up to about 290
        "half precision": lambda: layer(MaskRule(causal=True), dtype=torch.float16, queries=140),
    }[name]()


NAMES = (
    "plain",
    "causal",
    "more queries than keys",
    "window",
    "causal window",
    "padding",
    "prefix",
    "documents",
    "bias",
    "relative bias",
    "soft cap",
    "large scores",
    "half precision",
)


@pytest.fixture(scope="module", params=NAMES)
def case(request: pytest.FixtureRequest) -> Layer:
    """One layer for each part that a score or a rule may have."""
    return made(request.param)


def test_one_walk_gives_all_statistics_of_the_dense_map(case: Layer) -> None:
    weights, (queries, keys) = case.weights, case.weights.shape[2:]
    left = torch.randn(weights.shape[0], 1, 1, queries)
    found = triton_maps.statistics(*case.map, left=left)
    rows = found.rows
    offset = torch.arange(keys) - (torch.arange(queries) + keys - queries)[:, None]
    case.check(rows.entropy, torch.special.entr(weights).sum(-1), size=math.log(keys))
    case.check(rows.distance, (weights * offset.abs()).sum(-1), size=keys)
    case.check(rows.largest, weights.amax(-1))
    for name, difference in (("own", 0), ("previous", -1), ("following", 1)):
        case.check(getattr(rows, name), (weights * (offset == difference)).sum(-1))
    case.check(rows.first, weights[..., 0])
    assert rows.squares is not None
    assert rows.direction is not None
    assert rows.strongest is not None
    case.check(rows.squares, (weights * weights).sum(-1))
    case.check(rows.direction, (weights * offset).sum(-1), size=keys)
    case.check(weights.gather(-1, rows.strongest[..., None])[..., 0], weights.amax(-1))
    case.check(found.received, weights.sum(-2), size=queries)
    assert found.rolled is not None
    case.check(found.rolled, left.double() @ weights, size=float(left.abs().sum(-1).max()))


def test_rows_times_the_weights(case: Layer) -> None:
    left = torch.randn(case.weights.shape[0], 1, 3, case.weights.shape[2])
    size = float(left.abs().sum(-1).max())
    case.check(triton_maps.apply_left(*case.map, left), left.double() @ case.weights, size=size)


def test_values_under_the_weights_and_the_strongest_links(case: Layer) -> None:
    values = torch.randn(1, case.weights.shape[1], case.weights.shape[3], 3)
    case.check(
        triton_maps.apply(*case.map, values), case.weights @ values.double(), size=float(values.abs().max())
    )
    links, keys = triton_maps.top_links(*case.map, 5)
    expected = case.weights.topk(5).values
    case.check(links, expected)
    case.check(case.weights.gather(-1, keys), expected)
    distinct = keys.sort(dim=-1).values.diff(dim=-1) > 0
    assert bool(distinct.all()), "a key stands twice in a row"


@pytest.mark.parametrize("each_head", [True, False])
@pytest.mark.parametrize("name", ["plain", "causal window", "padding", "half precision"])
def test_relevance_is_that_of_the_dense_gradient(name: str, each_head: bool) -> None:
    asked = made(name)
    query, key = asked.map[:2]
    batch, heads, queries, keys = asked.weights.shape
    gradient, value = torch.randn(batch, heads, queries, 18), torch.randn(batch, key.shape[1], keys, 18)
    gradient, value = gradient.to(query.dtype), value.to(query.dtype)
    slopes = gradient.double() @ repeat_groups(value, heads).double().transpose(-1, -2)
    mixed = asked.weights * slopes
    fused = mixed.clamp(min=0).mean(1) if each_head else mixed.mean(1).clamp(min=0)
    left = torch.rand(batch, 1, queries)
    found = triton_maps.relevance_step(*asked.map, left, gradient, value, each_head=each_head)
    asked.check(found, left.double() @ fused, size=float(slopes.abs().max()) * queries)
    sums = triton_maps.relevance_rows(*asked.map, gradient, value, each_head=each_head)
    asked.check(sums, fused.sum(-1), size=float(slopes.abs().max()))


@pytest.mark.parametrize("how", ["max", "mean"])
@pytest.mark.parametrize("name", ["plain", "causal", "window", "prefix"])
def test_bins_are_those_of_adaptive_pooling(name: str, how: str) -> None:
    asked = made(name)
    queries, keys = asked.weights.shape[2:]
    # Bins of two or three places: some overlap by one, as they do where the length is no multiple.
    rows, columns = queries // 2 - 3, keys // 2 - 5
    pool = (
        torch.nn.functional.adaptive_max_pool2d if how == "max" else torch.nn.functional.adaptive_avg_pool2d
    )
    found = triton_maps.pooled(*asked.map, rows, columns, how=how)
    asked.check(found, pool(asked.weights, (rows, columns)))


@pytest.mark.parametrize(
    ("rule", "queries"),
    [(MaskRule(causal=True), 128), (MaskRule(window=2), 129), (MaskRule(causal=True), 258)],
)
def test_bins_at_the_corners_of_tiles_are_not_taken_for_excluded(rule: MaskRule, queries: int) -> None:
    asked = layer(
        rule, queries=queries, keys=129, heads=1
    )  # the last row or key of a tile holds one allowed pair
    asked.check(triton_maps.pooled(*asked.map, queries, 129), asked.weights)


def test_bins_may_be_any_rectangles() -> None:
    asked = layer(MaskRule(causal=True), queries=40, keys=50)
    rows, columns = torch.tensor([[30, 33], [3, 4]]), torch.tensor([[0, 2], [1, 4], [45, 50]])
    found = triton_maps.pooled(*asked.map, rows, columns)
    for i, (top, bottom) in enumerate(rows.tolist()):
        for j, (low, high) in enumerate(columns.tolist()):
            asked.check(found[:, :, i, j], asked.weights[:, :, top:bottom, low:high].amax((-1, -2)))


@pytest.mark.parametrize("name", ["padding", "relative bias"])
def test_blocks_and_rows_are_cut_from_the_map(name: str) -> None:
    asked = made(name)
    rows, columns = slice(3, -1), slice(20, 149)
    asked.check(triton_maps.block(*asked.map, rows, columns), asked.weights[:, :, rows, columns])
    asked.check(triton_maps.row(*asked.map, -2), asked.weights[:, :, -2])


@pytest.mark.parametrize(
    ("parts", "factors"),  # of two blocks of queries; none, one, a few, and more than go in one walk
    [(1, 0), (2, 1), (3, 1), (3, 3), (2, 16)],
)
def test_parts_and_factors_change_nothing(parts: int, factors: int) -> None:
    asked = made("causal window")
    left = torch.rand(1, 2, factors, asked.weights.shape[2]) if factors else None
    found = triton_maps.statistics(*asked.map, left=left, detailed=False, parts=parts)
    asked.check(found.received, asked.weights.sum(-2), size=197)
    asked.check(found.rows.entropy, torch.special.entr(asked.weights).sum(-1), size=5)
    assert (found.rows.squares, found.rows.direction, found.rows.strongest) == (None, None, None)
    if left is None:
        assert found.rolled is None
    else:
        assert found.rolled is not None
        asked.check(found.rolled, left.double() @ asked.weights, size=197)


def test_the_same_numbers_come_out_of_every_run() -> None:
    asked = made("padding")
    left = torch.rand(2, 1, 1, 60)
    first, again = (triton_maps.statistics(*asked.map, left=left) for _ in range(2))
    assert torch.equal(first.received, again.received)
    assert torch.equal(first.rolled, again.rolled)
    assert all(
        left_out is None or torch.equal(left_out, vars(again.rows)[name])
        for name, left_out in vars(first.rows).items()
    )


def test_a_row_whose_sum_is_said_to_be_nothing_has_no_weight() -> None:
    query, key, lse, scoring = layer(MaskRule(), queries=40, keys=130).map
    lse[:, :, 3] = -math.inf
    found = triton_maps.statistics(query, key, lse, scoring)
    numbers = {name: value for name, value in vars(found.rows).items() if name != "strongest"}
    assert all(value is None or bool((value[:, :, 3] == 0).all()) for value in numbers.values())
    assert_close(found.received.sum(-1), torch.full((1, 2), 39.0), atol=4e-4, rtol=0)  # 40 · 10⁻⁵


def test_rows_times_the_weights_in_any_number_of_parts_and_factors() -> None:
    asked = made("causal window")
    left = torch.rand(1, 2, 1, asked.weights.shape[2])
    in_parts = triton_maps.apply_left(*asked.map, left, parts=2)
    asked.check(in_parts, left.double() @ asked.weights, size=197)
    wide = left * torch.arange(70.0)[:, None]  # more factors than go at once
    asked.check(triton_maps.apply_left(*asked.map, wide), wide.double() @ asked.weights, size=70 * 197)


@pytest.mark.parametrize(
    ("programs", "places", "most", "parts"),
    [
        (128, 264, 8, 2),  # 256 of 264 at once
        (300, 264, 8, 4),  # in whole rounds: one part alone leaves the second round all but empty
        (8000, 264, 8, 1),
        (6, 264, 16, 16),  # never busy: as many as there may be
        (6, 264, 1, 1),
    ],
)
def test_as_few_parts_as_keep_the_device_busy(programs: int, places: int, most: int, parts: int) -> None:
    assert fewest_parts(programs, places, most) == parts


def test_places_on_a_grid_and_keys_that_do_not_count() -> None:
    asked = layer(MaskRule(), queries=35, keys=36)
    grid = torch.stack([torch.arange(36) % 6, torch.arange(36) // 6], dim=1)
    counted, barred = torch.arange(36) > 3, torch.arange(36) % 2 == 0
    found = triton_maps.statistics(
        *asked.map, row_positions=grid[:35], column_positions=grid, counted=counted, barred=barred
    ).rows
    steps = (grid[:35, None] - grid).double().norm(dim=-1)
    asked.check(found.distance, (asked.weights * counted * steps).sum(-1), size=10)
    open_weights = asked.weights.masked_fill(barred, -1.0)
    assert found.largest_open is not None
    assert found.strongest_open is not None
    asked.check(found.largest_open, open_weights.amax(-1))
    assert torch.equal(found.strongest_open, open_weights.argmax(-1))
    asked.check(found.largest, asked.weights.amax(-1))


def test_of_equal_weights_the_first_key_counts() -> None:
    # Small whole numbers, so that products are exact and many of them equal.
    torch.manual_seed(0)
    query, key = torch.randint(-2, 3, (2, 1, 2, 160, 8)).float().unbind(0)
    query[:, :, 0] = 0.0  # all keys alike
    lse = attention(query, key, key, scale=0.25).lse
    scores = query @ key.transpose(-1, -2)
    found = triton_maps.statistics(query, key, lse, Scoring(0.25)).rows
    keys = triton_maps.top_links(query, key, lse, Scoring(0.25), 6)[1]
    expected = scores.sort(dim=-1, descending=True, stable=True).indices[..., :6]
    assert bool((scores.gather(-1, expected).diff(dim=-1) == 0).any())
    assert torch.equal(keys, expected)
    assert found.strongest is not None
    assert torch.equal(found.strongest, expected[..., 0])


def test_links_of_a_row_that_sees_too_few_keys() -> None:
    links, keys = triton_maps.top_links(*layer(MaskRule(causal=True, window=2), queries=9, keys=9).map, 4)
    assert bool((links[..., 2:] == 0).all())
    assert keys[0, 0, 8].tolist()[2:] == [0, 1]
    assert sorted(keys[0, 0, 0].tolist()) == [0, 1, 2, 3]


def test_whoever_waits_is_told_of_every_weight() -> None:
    told: list[int] = []
    asked = layer(MaskRule(), queries=5, keys=6)
    with watching(told.append):
        triton_maps.statistics(*asked.map)
    assert told == [2 * 5 * 6]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": torch.float64}, "dtype is torch.float64"),
        ({"dtype": torch.bfloat16}, "interpreter multiplies the bits of bfloat16"),
        ({"rule": MaskRule(predicate=lambda item, head, row, column: row == column)}, "predicate"),
        ({"lse": torch.zeros(1, 2, 4)}, r"lse must have query's batch, heads and positions \(1, 2, 3\)"),
    ],
)
def test_what_the_kernels_cannot_do_is_named(changes: dict, message: str) -> None:
    query = torch.zeros(1, 2, 3, 4, dtype=changes.get("dtype", torch.float32))
    scoring = Scoring(1.0, changes.get("rule", MaskRule()))
    with pytest.raises(ValueError, match=message):
        triton_maps.statistics(query, query, changes.get("lse", torch.zeros(1, 2, 3)), scoring)
    assert (triton_maps.usable(query, query, scoring) is None) == ("lse" in changes)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda *m: triton_maps.top_links(*m, 33), "k must be 1 to 32 but is 33"),
        (lambda *m: triton_maps.block(*m, slice(0, 3, 2), slice(None)), "slices must have step 1"),
        (lambda *m: triton_maps.pooled(*m, 0, 2), "row_bins must be at least 1 but is 0"),
        (lambda *m: triton_maps.pooled(*m, 2, torch.tensor([[1, 9]])), "within 0 and 3"),
        (lambda *m: triton_maps.pooled(*m, 2, 2, how="sum"), "how must be max or mean but is 'sum'"),
        (
            lambda *m: triton_maps.apply(*m, torch.zeros(1, 1, 2, 1)),
            r"values must broadcast to \(1, 2, 3, 1\)",
        ),
        (
            lambda *m: triton_maps.relevance_rows(*m, torch.zeros(1, 2, 3, 5), torch.zeros(1, 2, 3, 4)),
            r"gradient must have the shape of the context \(1, 2, 3, 4\)",
        ),
        (
            lambda *m: triton_maps.statistics(*m, row_positions=torch.arange(3)),
            "row_positions and column_positions belong together",
        ),
    ],
)
def test_wrong_questions_are_named(ask, message: str) -> None:
    query = torch.zeros(1, 2, 3, 4)
    with pytest.raises(ValueError, match=message):
        ask(query, query, torch.zeros(1, 2, 3), Scoring(1.0))


def test_kernels_get_query_and_key_as_they_were_recorded():
    """They multiply half precision as it is; a tile of torch is made in float32."""
    query, key = torch.randn(1, 4, 9, 8), torch.randn(1, 2, 9, 8)
    lse = torch.zeros(1, 4, 9)
    factors = Factors.of(query.half(), key.half(), lse, Scoring(1.0))
    assert factors.query.dtype == torch.float32
    whole = factors.whole
    assert torch.equal(whole[0], query.half())
    assert torch.equal(whole[1], key.half())
    one = factors.of_head(3).whole
    assert {tensor.dtype for tensor in (*whole[:2], *one[:2])} == {
        torch.float16
    }  # equal takes no notice of it
    assert torch.equal(one[0], query[:, 3:].half())
    assert torch.equal(one[1], key[:, 1:].half())
    assert torch.equal(Factors.of(query, key, lse, Scoring(1.0)).whole[0], query)


def test_a_map_on_a_gpu_asks_the_kernels(monkeypatch):
    """Which only a device tells apart: here the kernels are given to a map on the CPU, and asked for every answer."""
    generator = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(1, 2, 70, 16, generator=generator) for _ in range(3))
    rule = MaskRule(causal=True)
    layer = FactoredMap(query, key, attention(query, key, value, rule=rule).lse, 0.25, rule)
    left = torch.rand(1, 70, generator=generator)
    gradient = torch.randn(2, 70, 16, generator=generator)

    def answers() -> list[object]:
        return [
            vars(layer.statistics(left)),
            layer.pooled(None, 35),
            layer.pooled(1, 35, how="mean"),
            layer.top_links(None, 3)[0],
            layer.apply(value[0, 0, :, :2]),
            layer.apply_left(left),
            layer.relevance_step(left[0], gradient, value[0]),
        ]

    expected = answers()
    asked: list[str] = []

    class Kernels:
        def __getattr__(self, name: str) -> object:
            asked.append(name)
            return getattr(triton_maps, name)

    monkeypatch.setattr(Factors, "kernels", Kernels())
    torch.testing.assert_close(answers(), expected, rtol=1e-4, atol=1e-5)
    assert set(asked) == {
        "statistics",
        "pooled",
        "top_links",
        "MOST_LINKS",
        "apply",
        "apply_left",
        "relevance_step",
    }
