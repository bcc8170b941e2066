"""Rollout against other people's programs, against the formula in NumPy loops, and by its properties."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

import analysis.rollout
from analysis.rollout import FUSIONS, discard_smallest, rollout, rollout_row, statistics_and_rollout
from attn_core.errors import MemoryBudgetError
from attn_core.factored import FactoredMap
from attn_core.flash import flash_attention
from attn_core.maps import DenseMap
from attn_core.masks import MaskRule
from attn_core.watching import watching
from tests.oracles import formulas

CASES = Path(__file__).parent / "oracles" / "01_rollout"
NAMES = sorted(path.stem for path in CASES.glob("*.npz"))


def oracle(name: str) -> tuple[Mapping[str, Any], dict[str, Any]]:
    return np.load(CASES / f"{name}.npz"), json.loads((CASES / f"{name}.json").read_text())


def stored_attention(arrays: Mapping[str, Any]) -> Tensor:
    """(L, H, N, N) float64. MiniLM is stored in float32; the programs got its rows divided by their sums again."""
    weights = torch.from_numpy(arrays["attention"]).double()
    return weights / weights.sum(-1, keepdim=True)


def tolerances(meta: dict[str, Any], precision: str) -> dict[str, float]:
    relative, absolute = (float(part.split()[1]) for part in meta["tolerance"][precision].split(","))
    return {"rtol": relative, "atol": absolute}


def random_attention(
    layers: int, heads: int, tokens: int, *, seed: int = 0, dtype: torch.dtype = torch.float64
) -> Tensor:
    """(L, H, N, N) peaked weights; layers do not commute."""
    generator = torch.Generator().manual_seed(seed)
    scores = 2.0 * torch.randn(layers, heads, tokens, tokens, generator=generator, dtype=torch.float64)
    return scores.softmax(-1).to(dtype)


@st.composite
def attention(draw: st.DrawFn) -> Tensor:
    layers, heads = draw(st.integers(1, 4)), draw(st.integers(1, 5))
    return random_attention(layers, heads, draw(st.integers(1, 9)), seed=draw(st.integers(0, 9999)))


def test_the_oracle_cases_are_there() -> None:
    assert NAMES == ["minilm_sentence", "random_L3_H4_N10", "random_L4_H3_N7"]


@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize("discard_ratio", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("fusion", sorted(FUSIONS))
@pytest.mark.parametrize("name", NAMES)
def test_rollout_equals_the_row_normalised_reference(
    name: str, fusion: Any, discard_ratio: float, precision: str
) -> None:
    arrays, meta = oracle(name)
    dtype = getattr(torch, precision)
    weights = stored_attention(arrays).to(dtype)
    result = rollout(weights, fusion=fusion, discard_ratio=discard_ratio)
    expected = arrays[f"rownorm_matrix_{fusion}_d{discard_ratio}"]
    assert result.dtype == dtype
    np.testing.assert_allclose(result.numpy(), expected, **tolerances(meta, precision))


@pytest.mark.parametrize("residual", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_rollout_up_to_each_layer_equals_attention_flow_joint_attention(name: str, residual: bool) -> None:
    arrays, meta = oracle(name)
    weights = stored_attention(arrays)
    expected = arrays["abnar_joint_residual" if residual else "abnar_joint_noresidual"]
    for layer in range(len(weights)):
        result = rollout(weights[: layer + 1], residual=residual)
        np.testing.assert_allclose(result.numpy(), expected[layer], **tolerances(meta, "float64"))


@pytest.mark.parametrize("name", NAMES)
def test_start_layer_equals_the_transformer_explainability_baseline(name: str) -> None:
    arrays, meta = oracle(name)
    weights = stored_attention(arrays)
    for start_layer, key in enumerate(["chefer_rollout", "chefer_rollout_start1"]):
        result = rollout(weights, start_layer=start_layer)
        np.testing.assert_allclose(result.numpy(), arrays[key], **tolerances(meta, "float64"))


@settings(deadline=None, max_examples=40)
@given(attention(), st.sampled_from(sorted(FUSIONS)), st.sampled_from([0.0, 0.3, 0.9, 0.99]), st.booleans())
def test_rollout_equals_the_formula_written_in_loops(
    weights: Tensor, fusion: Any, discard_ratio: float, residual: bool
) -> None:
    options: dict[str, Any] = {"fusion": fusion, "discard_ratio": discard_ratio, "residual": residual}
    expected = formulas.rollout(weights.numpy(), **options)
    np.testing.assert_allclose(rollout(weights, **options).numpy(), expected, rtol=1e-9, atol=1e-12)


@settings(deadline=None, max_examples=60)
@given(attention(), st.sampled_from(sorted(FUSIONS)), st.floats(0.0, 0.999), st.booleans())
def test_rows_sum_to_one_after_every_step(
    weights: Tensor, fusion: Any, discard_ratio: float, residual: bool
) -> None:
    for layer in range(len(weights)):
        sums = rollout(
            weights[: layer + 1], fusion=fusion, discard_ratio=discard_ratio, residual=residual
        ).sum(-1)
        assert_close(sums, torch.ones_like(sums), rtol=0.0, atol=1e-12)


def test_each_item_of_a_batch_has_its_own_discard_and_rows_that_sum_to_one() -> None:
    """Case S3: vit-explain discards in the first item alone and divides by the wrong rows' sums."""
    batch = [random_attention(1, 3, 4, seed=seed) for seed in (3, 4)]
    for item in batch:
        result = rollout(item, fusion="max", discard_ratio=0.5)
        assert_close(result.sum(-1), torch.ones(4, dtype=torch.float64))
        np.testing.assert_allclose(
            result.numpy(), formulas.rollout(item.numpy(), fusion="max", discard_ratio=0.5), rtol=1e-12
        )
        assert int((result == 0).sum()) >= 4  # 8 of 16 entries go; at most 4 of them lie on the diagonal


@pytest.mark.parametrize("residual", [True, False])
def test_identity_attention_stays_the_identity(residual: bool) -> None:
    weights = torch.eye(6).expand(3, 2, 6, 6)
    for fusion in ("mean", "max", "min"):
        assert torch.equal(rollout(weights, fusion=fusion, residual=residual), torch.eye(6))


@settings(deadline=None, max_examples=30)
@given(attention(), st.sampled_from(sorted(FUSIONS)), st.randoms(use_true_random=False))
def test_renaming_the_tokens_renames_the_result(weights: Tensor, fusion: Any, random: Any) -> None:
    order = list(range(weights.shape[-1]))
    random.shuffle(order)
    permuted = rollout(weights[:, :, order][..., order], fusion=fusion)
    assert_close(permuted, rollout(weights, fusion=fusion)[order][:, order], rtol=1e-10, atol=1e-12)


@settings(deadline=None, max_examples=20)
@given(attention(), st.sampled_from(sorted(FUSIONS)), st.randoms(use_true_random=False))
def test_the_order_of_heads_does_not_matter_and_that_of_layers_does(
    weights: Tensor, fusion: Any, random: Any
) -> None:
    order = list(range(weights.shape[1]))
    random.shuffle(order)
    assert_close(rollout(weights[:, order], fusion=fusion), rollout(weights, fusion=fusion))
    commuting = random_attention(2, 2, 5)
    assert not torch.allclose(rollout(commuting), rollout(commuting.flip(0)), atol=1e-3)


def test_a_long_product_is_taken_in_strips_and_can_be_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of thousands of tokens one product takes seconds: somebody who has had enough need not wait for its end."""

    class Enough(Exception):
        pass

    generator = torch.Generator().manual_seed(0)
    weights = torch.rand((3, 2, 29, 29), generator=generator, dtype=torch.float64)
    whole = rollout(weights)
    monkeypatch.setattr(analysis.rollout, "STRIP_PRODUCTS", 5 * 29 * 29)
    looks: list[int] = []
    with watching(looks.append):
        assert_close(rollout(weights), whole, rtol=0.0, atol=29 * torch.finfo(torch.float64).eps)
    assert looks == [0] * 12, "two products in six strips each"

    def stop(_: int) -> None:
        looks.append(0)
        if len(looks) == 15:
            raise Enough

    with pytest.raises(Enough), watching(stop):
        rollout(weights)
    assert len(looks) == 15


def test_the_mean_of_heads_counts_every_head_once() -> None:
    """Case G11: the sum was added to the last head's array, so that this head counted twice."""
    heads = 12
    constants = torch.arange(1.0, heads + 1, dtype=torch.float64) / 100.0  # (H,) distinct
    weights = torch.stack([torch.stack([1 - constants, constants], -1)] * 2, 1)[None]  # (1, H, 2, 2)
    mean = sum(range(1, heads + 1)) / 100.0 / heads
    before = weights.clone()
    expected = torch.tensor([[1 - mean, mean], [1 - mean, mean]], dtype=torch.float64)
    assert_close(rollout(weights, residual=False), expected)
    assert_close(rollout(weights), (expected + torch.eye(2, dtype=torch.float64)) / 2)
    assert torch.equal(weights, before)


@settings(deadline=None, max_examples=40)
@given(attention(), st.sampled_from(sorted(FUSIONS)), st.booleans(), st.data())
def test_one_row_as_a_vector_chain_equals_the_row_of_the_matrix(
    weights: Tensor, fusion: Any, residual: bool, data: st.DataObject
) -> None:
    query = data.draw(st.integers(0, weights.shape[-1] - 1))
    start_layer = data.draw(st.integers(0, weights.shape[0] - 1))
    options: dict[str, Any] = {"fusion": fusion, "residual": residual, "start_layer": start_layer}
    row = rollout_row(weights, query, **options)
    assert_close(row, rollout(weights, **options)[query], rtol=1e-9, atol=1e-12)


def test_a_row_is_the_same_when_weights_are_read_a_few_rows_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    weights = random_attention(4, 3, 11)
    expected = rollout(weights, fusion="max")
    monkeypatch.setattr("analysis.rollout.ROW_ELEMENTS", 3 * 11 * 4)  # blocks of 4 rows, the last of 3
    for query in range(11):
        assert_close(rollout_row(weights, query, fusion="max"), expected[query], rtol=1e-10, atol=1e-12)


def factored_layers(layers: int, tokens: int, rule: MaskRule, *, batch: int = 1) -> list[FactoredMap]:
    """Lazy maps of random queries and keys, four heads on two key heads."""
    generator = torch.Generator().manual_seed(5)
    maps = []
    for _ in range(layers):
        query = 2.0 * torch.randn(batch, 4, tokens, 8, generator=generator)
        key = torch.randn(batch, 2, tokens, 8, generator=generator)
        lse = flash_attention(query, key, key, rule=rule).lse
        maps.append(FactoredMap(query=query, key=key, lse=lse, scale=8**-0.5, rule=rule))
    return maps


@pytest.mark.parametrize("fusion", sorted(FUSIONS))
@pytest.mark.parametrize(
    "rule", [MaskRule(), MaskRule(causal=True), MaskRule(causal=True, window=3)], ids=repr
)
def test_maps_give_the_same_as_their_dense_weights(rule: MaskRule, fusion: Any) -> None:
    lazy = factored_layers(3, 13, rule)
    weights = torch.stack([layer.dense() for layer in lazy])
    kept = [DenseMap(stored=layer.dense()[None]) for layer in lazy]
    for discard_ratio in (0.0, 0.5):
        expected = rollout(weights, fusion=fusion, discard_ratio=discard_ratio)
        for maps in (lazy, kept, tuple(lazy)):
            result = rollout(maps, fusion=fusion, discard_ratio=discard_ratio)
            assert_close(result, expected, rtol=1e-5, atol=1e-7)
    for maps in (lazy, kept):
        for query in (0, 6, 12):
            row = rollout_row(maps, query, fusion=fusion, dtype=torch.float64)
            assert row.dtype == torch.float64
            assert_close(row.float(), rollout(weights, fusion=fusion)[query], rtol=1e-4, atol=1e-6)


def test_a_map_too_large_to_be_dense_is_refused_by_rollout_and_read_by_rollout_row() -> None:
    maps = factored_layers(1, 4200, MaskRule(causal=True, window=2))  # 4 heads × 4200² × 4 bytes = 269 MiB
    with pytest.raises(MemoryBudgetError, match="ask for row"):
        rollout(maps)
    row = rollout_row(maps, 4199)
    assert row.shape == (4200,)
    assert_close(row.sum(), torch.tensor(1.0))
    assert int((row > 0).sum()) == 2


def test_maps_of_a_batch_of_cross_attention_or_of_windows_are_refused() -> None:
    with pytest.raises(ValueError, match=r"layer 0 holds 2; pass trace.item\(index\)'s layers"):
        rollout(factored_layers(1, 5, MaskRule(), batch=2))
    cross = DenseMap(stored=torch.full((1, 2, 3, 4), 0.25))
    with pytest.raises(ValueError, match="layer 0 has 3 queries and 4 keys"):
        rollout([cross])
    sizes = [DenseMap(stored=torch.full((1, 2, size, size), 1 / size)) for size in (4, 2)]
    with pytest.raises(ValueError, match=r"layer 1 has 2 queries and 2 keys \(layer 0 has 4 queries\)"):
        rollout_row(sizes, 0)


def test_causal_rollout_never_looks_ahead() -> None:
    scores = torch.randn(3, 2, 8, 8, generator=torch.Generator().manual_seed(1)).double()
    weights = scores.masked_fill(~torch.ones(8, 8, dtype=torch.bool).tril(), -torch.inf).softmax(-1)
    for discard_ratio in (0.0, 0.6):
        result = rollout(weights, discard_ratio=discard_ratio)
        assert torch.equal(result, result.tril())
        assert torch.equal(result[0], torch.eye(8, dtype=torch.float64)[0])


def test_a_row_that_lost_every_weight_keeps_its_own_token() -> None:
    weights = torch.tensor([[[[0.1, 0.9, 0.0], [0.0, 0.0, 0.0], [0.2, 0.3, 0.5]]]])
    result = rollout(weights, residual=False)
    assert_close(result[1], torch.tensor([0.0, 1.0, 0.0]))
    assert_close(rollout_row(weights, 1, residual=False), result[1])
    dropped = rollout(torch.full((1, 1, 3, 3), 1 / 3), residual=False, discard_ratio=0.99)
    assert torch.equal(dropped, torch.eye(3))


def test_discarding_keeps_the_class_tokens_own_weight_and_takes_equal_entries_in_reading_order() -> None:
    fused = torch.tensor([[0.01, 0.5], [0.5, 0.02]])
    assert torch.equal(discard_smallest(fused, discard_ratio=0.5), torch.tensor([[0.01, 0.5], [0.5, 0.0]]))
    assert torch.equal(discard_smallest(fused, discard_ratio=0.75), torch.tensor([[0.01, 0.0], [0.5, 0.0]]))
    assert torch.equal(fused, torch.tensor([[0.01, 0.5], [0.5, 0.02]]))


def test_low_precision_weights_are_multiplied_in_float32() -> None:
    weights = random_attention(3, 2, 6)
    result = rollout(weights.to(torch.float16))
    assert result.dtype == torch.float32
    assert rollout(weights, dtype=torch.float32).dtype == torch.float32
    assert_close(result, rollout(weights).float(), rtol=5e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rollout(torch.ones(2, 3, 4, 5)), r"weights must be \(L, H, N, N\) but is \(2, 3, 4, 5\)"),
        (lambda: rollout(torch.ones(3, 4, 4)), r"weights must be \(L, H, N, N\) but is \(3, 4, 4\)"),
        (lambda: rollout(torch.ones(2, 2, 3, 4, 4)), "one item of a batch at a time"),
        (lambda: rollout(torch.ones(0, 3, 4, 4)), r"weights must be \(L, H, N, N\)"),
        (lambda: rollout(torch.ones(1, 1, 2, 2), fusion="median"), "one of mean, max, min but is 'median'"),
        (lambda: rollout(torch.ones(1, 1, 2, 2), discard_ratio=1.0), "discard_ratio must be at least 0 and below 1"),
        (lambda: rollout(torch.ones(1, 1, 2, 2), discard_ratio=-0.1), "discard_ratio must be at least 0 and below 1"),
        (lambda: rollout(torch.ones(2, 1, 2, 2), start_layer=2), "start_layer must be between 0 and 1 but is 2"),
        (lambda: rollout(torch.ones(2, 1, 2, 2), start_layer=-1), "start_layer must be between 0 and 1 but is -1"),
        (lambda: rollout([]), "at least one map but is empty"),
        (lambda: rollout_row(torch.ones(2, 1, 2, 2), 2), "query must be between 0 and 1 but is 2"),
        (lambda: rollout_row(torch.ones(2, 1, 2, 3), 0), "rollout_row: weights must be"),
    ],
)  # fmt: skip
def test_wrong_arguments_say_what_is_wanted(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@settings(deadline=None, max_examples=40)
@given(attention(), st.booleans(), st.data())
def test_the_chain_over_maps_is_the_row_of_the_product_whatever_rows_sum_to(
    weights: Tensor, residual: bool, data: st.DataObject
) -> None:
    """Rows may be empty (nothing allowed) or lack what a sink or padding took."""
    layers, heads, tokens, _ = weights.shape
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))
    kept = torch.rand(layers, 1, tokens, 1, generator=generator, dtype=weights.dtype)
    kept = torch.where(kept < 0.3, 0.0, kept).expand(-1, heads, -1, -1)
    maps = [DenseMap(layer[None]) for layer in weights * kept]
    whole = rollout(maps, residual=residual)
    query = data.draw(st.none() | st.integers(0, tokens - 1))
    expected = whole.mean(0) if query is None else whole[query]
    assert_close(rollout_row(maps, query, residual=residual), expected)
    twice = rollout([maps[0], maps[0]], residual=residual)
    assert_close(rollout_row([maps[0], maps[0]], 0, residual=residual), twice[0])
    statistics, share = statistics_and_rollout(maps, query, residual=residual)
    assert_close(share, expected)
    for found, layer in zip(statistics, maps, strict=True):
        assert_close(found.received, layer.statistics().received)
        assert found.carried is None
