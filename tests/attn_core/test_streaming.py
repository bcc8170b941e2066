"""What is read off a map tile by tile: the numbers of the dense map, compiled or in torch, whatever the tiles are."""

from __future__ import annotations

import math
import subprocess
from dataclasses import fields, replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from attn_core import DenseMap, FactoredMap, MaskRule, attention
from attn_core.bias import RelativeBias
from attn_core.flash import compiled, streaming, tiles
from attn_core.flash.scoring import Scoring
from attn_core.flash.streaming import Factors, Matches, Positions, add_map_sums
from attn_core.flash.tiles import RowSums
from attn_core.mask_rules import document_rule, prefix_rule, window_rule
from attn_core.watching import watching
from tests.attn_core.strategies import Case, cases

HAS_LIBRARY = compiled.library() is not None

WAYS = [
    pytest.param("compiled", marks=pytest.mark.skipif(not HAS_LIBRARY, reason="no C compiler here")),
    "torch",
]

RULES = {
    "all": MaskRule(),
    "causal": MaskRule(causal=True),
    "window": window_rule(7, causal=False),
    "causal window": window_rule(7),
    "padding": MaskRule(key_valid=torch.arange(61)[None] < 50),
    "holes": MaskRule(key_valid=torch.arange(61)[None] % 3 > 0),
    "prefix": prefix_rule(9),
    "documents": document_rule(torch.arange(61)[None] // 17),
    "predicate": MaskRule(predicate=lambda items, heads, row, column: (row + column) % 4 != 1),
}


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    """Whether tiles are read by the compiled functions or by torch; tiles are small, so that there are many."""
    monkeypatch.setattr(streaming, "TILE_COLUMNS", 16)
    monkeypatch.setattr(streaming, "TILE_ROWS", 8)
    if request.param == "torch":
        monkeypatch.setattr(tiles, "library", lambda: None)
    return request.param


def drawn_map(
    rule: MaskRule,
    *,
    queries: int = 53,
    keys: int = 61,
    heads: int = 4,
    groups: int = 2,
    large: float = 1.0,
    **options,
) -> tuple[FactoredMap, DenseMap]:
    """A map in float32 as factors, and its weights from the same query and key in float64."""
    generator = torch.Generator().manual_seed(3)
    query = torch.randn(1, heads, queries, 5, generator=generator) * large
    key, value = (torch.randn(1, groups, keys, 5, generator=generator) * large for _ in range(2))
    exact = attention(query.double(), key.double(), value.double(), rule=rule, **_doubled(options))
    lse = attention(query, key, value, rule=rule, **options).lse
    kept = {name: value for name, value in options.items() if name != "scale"}
    factored = FactoredMap(query, key, lse, options.get("scale", 5**-0.5), rule, **kept)
    return factored, DenseMap(stored=exact.weights)


def _doubled(options: dict) -> dict:
    return {name: value.double() if isinstance(value, Tensor) else value for name, value in options.items()}


def tolerance(factored: FactoredMap) -> float:
    """What float32 logits allow: 1e-6 times the size of the log-sum-exp, at least ten (docs/conventions.md)."""
    known = factored.lse[~torch.isneginf(factored.lse)]
    return 1e-6 * max(10.0, float(known.abs().max()))


OPTIONS = {
    "plain": {},
    "soft cap": {"softcap": 3.0},
    "bias": {"bias": torch.randn(1, 4, 53, 61, generator=torch.Generator().manual_seed(1))},
    "sinks": {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.0])},
    "scale": {"scale": 0.0},
}


@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES)
def test_every_query_gives_the_numbers_of_the_dense_map(way, rule, options):
    if options and rule is not RULES["all"] and rule is not RULES["causal window"]:
        options = {**options, "softcap": 2.0}
    check_every_query(*drawn_map(rule, **options))


@pytest.mark.parametrize("rule", [RULES["all"], RULES["causal"]], ids=["all", "causal"])
def test_logits_of_hundreds_stay_within_the_budget(way, rule):
    factored, dense = drawn_map(rule, large=25.0)
    assert factored.lse.max() > 290  # as in the bundled ViT
    check_every_query(factored, dense)


def check_every_query(factored: FactoredMap, dense: DenseMap) -> None:
    within = {"atol": tolerance(factored), "rtol": 1e-4, "check_dtype": False}
    weights = dense.dense()
    generator = torch.Generator().manual_seed(5)
    values = torch.rand(61, 3, generator=generator)
    left = torch.rand(4, 2, 53, generator=generator)
    assert_close(factored.apply(values), weights @ values.double(), **within)
    assert_close(factored.apply_left(left), left.double() @ weights, **within)
    assert_close(factored.apply_left(left[0]), left[0].double() @ weights, **within)
    assert_close(factored.row_totals(), weights.sum(-1), **within)
    for how in ("max", "mean"):
        assert_close(factored.pooled(None, 7, how=how), dense.pooled(None, 7, how=how), **within)
        assert_close(factored.pooled(2, 100, how=how), dense.pooled(2, 100, how=how), **within)
    strongest, keys = factored.top_links(None, 5)
    assert_close(strongest, weights.topk(5).values, **within)
    assert_close(weights.gather(-1, keys), strongest.double(), **within)
    assert all(len(set(row)) == 5 for row in keys.flatten(0, 1).tolist())
    found, expected = factored.statistics(left[:, :1]), dense.statistics(left[:, :1])
    for field in fields(found):
        assert_close(
            getattr(found, field.name),
            getattr(expected, field.name),
            atol=60 * tolerance(factored),
            rtol=1e-4,
            check_dtype=False,
        )
    gradient, value = torch.randn(4, 53, 3, generator=generator), torch.randn(2, 61, 3, generator=generator)
    slopes = gradient.double() @ value.repeat_interleave(2, 0).double().transpose(1, 2)
    for each_head in (True, False):
        mixed = weights * slopes
        mixed = mixed.clamp(min=0).mean(0) if each_head else mixed.mean(0).clamp(min=0)
        step = factored.relevance_step(left[0, 0], gradient, value, each_head=each_head)
        assert_close(
            step, left[0, 0].double() @ mixed, atol=50 * tolerance(factored), rtol=1e-4, check_dtype=False
        )


@pytest.mark.parametrize(
    "rule", [MaskRule(), MaskRule(causal=True), window_rule(9)], ids=["all", "causal", "window"]
)
def test_everything_that_head_patterns_need_comes_from_one_pass(way, rule):
    factored, dense = drawn_map(rule, queries=61)
    weights = dense.dense()
    generator = torch.Generator().manual_seed(5)
    y, x = torch.arange(61) // 8, torch.arange(61) % 8
    counted = (torch.rand(61, generator=generator) > 0.3).float()
    barred = torch.where(torch.rand(61, generator=generator) > 0.7, -math.inf, 0.0)
    numbers = torch.randint(0, 5, (2, 61), generator=generator, dtype=torch.int32)
    directions = torch.randn(61, 4, generator=generator)
    offsets = torch.tensor([-8, -2, 0, 1, 8], dtype=torch.int32)
    sums = replace(RowSums.started(4, 61, keys=61, kinds=2, offsets=5, likeness=True), direction=None)
    add_map_sums(
        factors_of(factored),
        sums,
        positions=Positions(x.float(), x.float(), y.float(), y.float(), counted),
        left=torch.ones(1, 1, 61),
        barred=barred,
        directions=(directions, directions),
        matches=Matches(numbers, numbers, torch.tensor([0, 1], dtype=torch.int32)),
        offsets=offsets,
    )
    within = {"atol": 2e-5, "rtol": 1e-4, "check_dtype": False}
    index = torch.arange(61)
    apart = torch.hypot((x - x[:, None]).double(), (y - y[:, None]).double())
    alike = numbers[:, :, None] == numbers[:, None]
    alike[1] &= index < index[:, None]
    others = counted * (index != index[:, None])
    assert_close(sums.entropy, torch.special.entr(weights).sum(-1), **within)
    assert_close(sums.largest.exp(), weights.amax(-1), **within)
    assert_close(weights.gather(-1, sums.strongest.long()[..., None])[..., 0], weights.amax(-1), **within)
    bars = (barred == 0).double()
    some = (weights * bars).amax(-1) > 0
    assert_close(sums.largest_open.exp()[some], (weights * bars).amax(-1)[some], **within)
    at = (weights * bars).gather(-1, sums.strongest_open.long()[..., None])[..., 0]
    assert_close(at[some], (weights * bars).amax(-1)[some], **within)
    assert_close(sums.distance, (weights * counted * apart).sum(-1), **within)
    assert_close(sums.squares, (weights**2 * others).sum(-1), **within)
    assert_close(sums.liked, (weights * others * (directions @ directions.T)).sum(-1), **within)
    assert_close(sums.matched, torch.einsum("hrc,mrc->hrm", weights, alike.double()), **within)
    assert_close(sums.received[:, 0], weights.sum(1), **within)
    for place, offset in enumerate(offsets.tolist()):
        inside = (index + offset >= 0) & (index + offset < 61)
        expected = torch.zeros(4, 61, dtype=torch.float64)
        expected[:, inside] = weights[:, index[inside], index[inside] + offset]
        assert_close(sums.band[..., place], expected, **within)


def factors_of(factored: FactoredMap) -> Factors:
    return Factors.of(factored.query, factored.key, factored.lse, Scoring(factored.scale, factored.rule))


@settings(max_examples=60)
@given(cases(), st.integers(1, 4))
def test_any_attention_is_walked_through_exactly(case: Case, k: int) -> None:
    output = attention(case.query, case.key, case.value, rule=case.rule, bias=case.bias, softcap=case.softcap)
    scale = case.query.shape[3] ** -0.5
    whole = FactoredMap(case.query, case.key, output.lse, scale, case.rule, case.bias, case.softcap)
    every = [torch.arange(case.query.shape[2]), torch.arange(case.key.shape[2])]
    found = whole.item(0, rows=every[0], columns=every[1])
    weights = output.weights[0]
    ones = torch.ones(1, len(every[0]), dtype=torch.float64)
    assert_close(found.apply_left(ones)[:, 0], weights.sum(1))
    assert_close(found.apply(case.value[0, 0]), weights @ case.value[0, 0])
    assert_close(found.row_totals(), weights.sum(-1))
    assert_close(found.top_links(None, k)[0], weights.topk(min(k, len(every[1]))).values)


def test_equal_weights_are_kept_in_the_order_of_the_keys(way):
    same = torch.zeros(1, 1, 30, 4)
    flat = FactoredMap(same, same, torch.full((1, 1, 30), math.log(30)), 0.5)
    values, keys = flat.top_links(None, 3)
    assert_close(values, torch.full((1, 30, 3), 1 / 30))
    assert (keys == torch.arange(3)).all()
    sums = RowSums(largest=torch.full((1, 30), -math.inf), strongest=torch.ones(1, 30, dtype=torch.int32))
    add_map_sums(factors_of(flat), sums)
    assert (sums.strongest == 0).all()


def test_tiles_that_a_rule_excludes_are_not_made(way):
    factored, _ = drawn_map(window_rule(7), queries=61)
    made: list[int] = []
    with watching(made.append):
        factored.statistics()
    assert sum(made) < 0.45 * 4 * 61 * 61  # 8-row strips with the keys of their windows, in tiles of 16


def test_a_table_of_distances_is_read_tile_by_tile(way):
    table = RelativeBias.of(
        torch.randn(1, 4, 53 + 61 - 1, generator=torch.Generator().manual_seed(2)), queries=53, keys=61
    )
    factored, _ = drawn_map(MaskRule(), bias=table.dense())
    by_table = FactoredMap(factored.query, factored.key, factored.lse, factored.scale, bias=table)
    assert_close(by_table.apply_left(torch.ones(1, 53)), factored.apply_left(torch.ones(1, 53)))
    assert_close(by_table.pooled(3, 9), factored.pooled(3, 9))


def test_an_empty_row_is_zero_in_every_answer(way):
    valid = torch.zeros(1, 61, dtype=torch.bool)
    factored, _ = drawn_map(MaskRule(key_valid=valid))
    assert (factored.apply(torch.ones(61, 1)) == 0).all()
    assert (factored.pooled(None, 5) == 0).all()
    assert (factored.top_links(None, 2)[0] == 0).all()
    assert (factored.statistics().entropy == 0).all()
    assert (factored.row_totals() == 0).all()


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (
            lambda layer: layer.apply(torch.ones(5, 2)),
            r"apply: values must be 61 long in 4 heads or for all but is \(5, 2\)",
        ),
        (
            lambda layer: layer.apply_left(torch.ones(3, 2, 53)),
            r"apply_left: rows must be 53 long in 4 heads",
        ),
        (lambda layer: layer.pooled(None, 0), "pooled: bins must be at least 1 but is 0"),
        (lambda layer: layer.top_links(None, 0), "top_links: k must be at least 1 but is 0"),
    ],
)
def test_wrong_questions_are_refused_alike_by_both_kinds_of_maps(ask, message):
    for layer in drawn_map(MaskRule()):
        with pytest.raises(ValueError, match=message):
            ask(layer)


@pytest.mark.skipif(not HAS_LIBRARY, reason="no C compiler here")
def test_the_compiled_exponential_is_exact_to_the_last_bits():
    values = torch.cat(
        [torch.linspace(-87, 2, 100_000), torch.tensor([-math.inf, -1e30, -100.0, -0.0, 1e-7])]
    )
    found = tiles.exponentials(values.clone().view(1, 5, -1)).view(-1)
    exact = values.double().exp()
    normal = exact > torch.finfo(torch.float32).tiny * 2
    assert ((found.double() / exact - 1).abs()[normal] < 2.0**-22).all()
    assert (found[~normal] <= exact[~normal] * 1.001 + 1e-37).all()


def test_without_a_compiler_torch_does_it(monkeypatch, caplog):
    monkeypatch.setattr(compiled.shutil, "which", lambda name: None)
    compiled.library.cache_clear()
    try:
        with caplog.at_level("INFO"):
            assert compiled.library() is None
        assert "no C compiler found (cc, gcc, clang)" in caplog.text
    finally:
        compiled.library.cache_clear()


def test_a_compiler_that_fails_is_told_and_not_fatal(monkeypatch, caplog, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))

    def failing(command, **_):
        return subprocess.CompletedProcess(command, 1, "", "no such processor")

    monkeypatch.setattr(compiled.shutil, "which", lambda name: "/usr/bin/cc")
    monkeypatch.setattr(compiled.subprocess, "run", failing)
    compiled.library.cache_clear()
    try:
        with caplog.at_level("INFO"):
            assert compiled.library() is None
        assert "could not compile tiles.c: no such processor" in caplog.text
        assert not list((tmp_path / "attnscope").iterdir())
    finally:
        compiled.library.cache_clear()


def test_threads_do_not_show_in_the_numbers():
    generator = torch.Generator().manual_seed(1)
    query, key, value = (torch.randn(1, 4, 600, 8, generator=generator) for _ in range(3))
    layer = FactoredMap(query, key, attention(query, key, value).lse, 8**-0.5)
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 4):  # tiles of 128 × 512 are shared by threads
            torch.set_num_threads(threads)
            relevance = layer.relevance_step(torch.ones(600), value[0], value[0])
            found.append(
                [vars(layer.statistics()), layer.top_links(None, 3), layer.pooled(None, 20), relevance]
            )
    finally:
        torch.set_num_threads(before)
    assert_close(found[1], found[0], rtol=1e-5, atol=1e-6)


def test_two_fused_calls_give_entropies_and_column_sums_too(way):
    """Entropy is lse − scale · q · attention(q, k, k); log column sums are the lse with query and key exchanged."""
    factored, _ = drawn_map(MaskRule(), groups=4)
    query, key, lse = factored.query, factored.key, factored.lse
    read = attention(query, key, key).context
    entropy = lse - factored.scale * (query * read).sum(-1)
    columns = attention(key, query, query, bias=-lse[:, :, None]).lse
    found = factored.statistics()
    assert_close(found.entropy, entropy[0].mean(-1), atol=1e-5, rtol=1e-5)
    assert_close(found.received, columns[0].exp(), atol=1e-5, rtol=1e-5)
