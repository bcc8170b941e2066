"""What "auto" takes and says of it, and that a named implementation never falls back."""

from __future__ import annotations

import doctest
import re
import sys
from typing import Any

import pytest
import torch
from hypothesis import given
from torch import Tensor
from torch.testing import assert_close

from attn_core import MaskRule, RelativeBias, explain_choice, flash_attention
from attn_core.budget import memory_budget
from attn_core.flash import RUN, choice, fused
from attn_core.mask_rules import block_sparse_rule, document_rule, window_rule
from tests.attn_core.strategies import Case, cases
from tests.conftest import ROOT


def tensors(n: int = 6, *, heads: int = 2, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    return torch.randn(3, 1, heads, n, 4, generator=torch.Generator().manual_seed(0)).to(dtype).unbind()


@given(cases(dtype=torch.float32))
def test_auto_gives_what_the_choice_names(case: Case) -> None:
    inputs = case.query, case.key, case.value
    options: dict[str, Any] = {"rule": case.rule, "bias": case.bias, "softcap": case.softcap}
    chosen = explain_choice(*inputs, **options)
    found, named = (flash_attention(*inputs, **options, impl=impl) for impl in ("auto", chosen.impl))
    assert torch.equal(found.context, named.context)
    assert torch.equal(found.lse, named.lse)
    assert set(chosen.others) == {"reference", "tiled", "triton", "fused", "compiled"} - {chosen.impl}


@given(cases(dtype=torch.float32))
def test_what_is_said_to_be_impossible_is_refused_and_the_rest_is_not(case: Case) -> None:
    inputs = case.query, case.key, case.value
    options: dict[str, Any] = {"rule": case.rule, "bias": case.bias, "softcap": case.softcap}
    others = explain_choice(*inputs, **options).others
    for name in ("reference", "tiled", "fused", "compiled"):
        reason = others.get(name)
        if reason is None:
            flash_attention(*inputs, **options, impl=name)
        else:
            with pytest.raises(ValueError, match=reason):
                flash_attention(*inputs, **options, impl=name)


def test_the_fused_kernel_is_taken_where_it_computes_the_same() -> None:
    query, key, value = tensors()
    plain = explain_choice(query, key, value)
    assert plain.impl == "fused"
    assert plain.reason == "PyTorch's fused kernel computes the same in less time."
    assert plain.others == {
        "reference": None,
        "tiled": None,
        "triton": "tensors are on cpu, where Triton has nothing but an interpreter for tests",
        "compiled": plain.others["compiled"],  # as there is a C compiler
    }
    masked = explain_choice(query, key, value, rule=window_rule(2))
    assert masked.impl == "fused"
    assert "mask of one strip of queries at a time" in masked.reason


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"softcap": 2.0}, "scores are soft-capped"),
        ({"bias": torch.zeros(1, 2, 6, 6, requires_grad=True)}, "the bias needs a gradient"),
        ({"bias": torch.zeros(1, 2, 6, 6, dtype=torch.float64)}, "round the bias to a lower precision"),
        ({"bias": RelativeBias.of(torch.zeros(1, 2, 11, requires_grad=True), queries=6, keys=6)}, "gradient"),
    ],
)
def test_tiles_are_taken_where_the_fused_kernel_cannot(options: dict[str, Any], reason: str) -> None:
    query, key, value = tensors()
    chosen = explain_choice(query, key, value, **options)
    assert chosen.impl == "tiled"
    assert reason in chosen.reason
    assert reason in str(chosen.others["fused"])


def test_values_of_another_width_are_for_tiles() -> None:
    query, key, value = tensors()
    chosen = explain_choice(query, key, value[..., :3])
    assert (chosen.impl, "value width 3 differs" in chosen.reason) == ("tiled", True)


def test_the_layout_decides_between_tiles_and_a_mask() -> None:
    query, key, value = tensors(1300)
    for share, impl in ((0.1, "tiled"), (1.0, "fused")):
        layout = torch.rand(11, 11, generator=torch.Generator().manual_seed(1)) < share
        chosen = explain_choice(query, key, value, rule=block_sparse_rule(layout, block_size=128))
        assert chosen.impl == impl
    documents = document_rule((torch.arange(1300) // 130)[None])
    assert explain_choice(query, key, value, rule=documents).impl == "fused"  # strips leave out as much


def test_a_predicate_is_asked_about_a_part_of_the_map_alone() -> None:
    asked = 0

    def predicate(items: Tensor, heads: Tensor, row: Tensor, column: Tensor) -> Tensor:
        nonlocal asked
        asked += row.numel() * column.numel()
        return (row + column) % 3 > 0

    query, key, value = tensors(4000, heads=1)
    assert explain_choice(query, key, value, rule=MaskRule(predicate=predicate)).impl == "fused"
    assert 0 < asked <= choice.PROBES * 128 * 128 < 4000 * 4000 // 8
    asked = 0
    query, key, value = tensors(200)
    explain_choice(query, key, value, rule=MaskRule(predicate=predicate))
    assert asked == 0  # a mask of this size costs less than asking


def test_half_precision_is_told_and_never_chosen_for_float32() -> None:
    assert "float32 copies" in explain_choice(*tensors(dtype=torch.float16)).reason
    assert "bfloat16" in explain_choice(*tensors(dtype=torch.bfloat16)).reason
    for dtype in (torch.float32, torch.float64):
        assert "bfloat16" not in explain_choice(*tensors(dtype=dtype)).reason
        assert flash_attention(*tensors(dtype=dtype)).lse.dtype == dtype


def test_the_reference_is_advised_against_by_the_budget() -> None:
    query, key, value = tensors(100)
    with memory_budget(1000):
        assert explain_choice(query, key, value).others["reference"] == (
            "its weights take 0 MiB, more than the budget of 0 MiB"
        )
    assert explain_choice(query, key, value).others["reference"] is None


def test_triton_by_name_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value = tensors()
    for name in ("triton_forward", "triton_common"):
        monkeypatch.delitem(sys.modules, f"attn_core.flash.{name}", raising=False)
    monkeypatch.setitem(sys.modules, "triton", None)
    with pytest.raises(ImportError, match="pip install triton"):
        flash_attention(query, key, value, impl="triton")


def test_triton_by_name_is_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="Triton is built for Linux alone")
    from attn_core.flash import triton_forward

    asked: list[dict[str, Any]] = []
    monkeypatch.setattr(triton_forward, "triton_attention", lambda *_, **options: asked.append(options))
    flash_attention(*tensors(), softcap=2.0, impl="triton")
    assert [options["softcap"] for options in asked] == [2.0]


def test_the_page_prints_what_it_shows() -> None:
    text = (ROOT / "docs" / "flash.md").read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))
    example = doctest.DocTestParser().get_doctest(blocks, {}, "flash.md", "docs/flash.md", 0)
    report: list[str] = []
    result = doctest.DocTestRunner(verbose=False).run(example, out=report.append)
    assert result.failed == 0, "".join(report)
    assert result.attempted >= 5
    for name in re.findall(r"`(\w+/[\w/.]+)`", text):
        assert (ROOT / name).exists(), name
    assert f"{choice.SPARSE_SHARE:.0%} hold an allowed pair" in " ".join(text.split())
    assert f"log-sum-exp of {fused.LARGE_LSE:.0f} " in " ".join(text.split())


def test_shapes_are_checked_before_anything_is_chosen() -> None:
    query, key, value = tensors()
    with pytest.raises(ValueError, match="explain_choice: key must have query's width"):
        explain_choice(query, key[..., :2], value)


def test_every_implementation_gives_the_same() -> None:
    query, key, value = tensors(40)
    expected = flash_attention(query, key, value, rule=MaskRule(causal=True), impl="reference")
    for impl in set(RUN) - {"triton"}:
        found = flash_attention(query, key, value, rule=MaskRule(causal=True), impl=impl)
        assert_close(found.context, expected.context)
        assert_close(found.lse, expected.lse)
