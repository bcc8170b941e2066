"""The Triton kernels, in Triton's interpreter on the CPU, against the reference in float64.

A tile costs the interpreter milliseconds whatever its size, so lengths are those that just need more than one.
bfloat16 is left out: the interpreter multiplies its bits as if they were numbers, and the kernels refuse it there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from attn_core import MaskRule, attention
from attn_core.bias import IndexedBias, RelativeBias
from attn_core.budget import memory_budget
from attn_core.flash.scoring import Scoring
from attn_core.functional import AttentionOutput
from attn_core.watching import watching
from tests.attn_core.test_flash_oracle import CASES, load

pytest.importorskip("triton", reason="Triton is built for Linux alone")

from attn_core.flash.triton_common import (
    allowed_pairs,
    interpreted,
    kernel_scoring,
    key_span,
    query_span,
    tl,
    triton,
    whole_key_span,
    whole_query_span,
)
from attn_core.flash.triton_forward import forward_config, forward_pass, triton_attention

pytestmark = [
    pytest.mark.skipif(not interpreted(), reason="needs TRITON_INTERPRET=1 before Triton is imported"),
    # A pair that is not allowed may have a weight beyond all numbers before it is set to 0.
    pytest.mark.filterwarnings("ignore:overflow encountered in exp2:RuntimeWarning"),
]

Options = dict[str, Any]


@dataclass(frozen=True)
class Inputs:
    """Query (B, H, Q, D), key (B, G, K, D), value (B, G, K, E), and the options of attention."""

    query: Tensor
    key: Tensor
    value: Tensor
    options: Options

    @property
    def tensors(self) -> list[Tensor]:
        """Everything that takes a gradient."""
        sinks = self.options.get("sinks")
        return [self.query, self.key, self.value] + ([] if sinks is None else [sinks])


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def inputs(
    batch: int,
    heads: int,
    groups: int,
    queries: int,
    keys: int,
    width: int,
    value_width: int | None = None,
    *,
    dtype: torch.dtype = torch.float32,
    **options: Any,
) -> Inputs:
    return Inputs(
        normal(batch, heads, queries, width, seed=1, dtype=dtype),
        normal(batch, groups, keys, width, seed=2, dtype=dtype),
        normal(batch, groups, keys, value_width or width, seed=3, dtype=dtype),
        options,
    )


def outputs(
    function: Callable[..., AttentionOutput],
    given: Inputs,
    *,
    dtype: torch.dtype | None = None,
    gradients: bool,
) -> dict[str, Tensor]:
    """Context, log-sum-exp and, for fixed gradients of both, those of the inputs; computed in ``dtype``."""
    context_gradient = normal(*given.query.shape[:3], given.value.shape[3], seed=4)
    lse_gradient = normal(*given.query.shape[:3], seed=5)
    tensors = [
        tensor.detach().to(dtype or tensor.dtype).requires_grad_(gradients) for tensor in given.tensors
    ]
    options = given.options | ({"sinks": tensors[3]} if len(tensors) > 3 else {})
    if isinstance(options.get("bias"), Tensor) and dtype is not None:
        options = options | {"bias": options["bias"].to(dtype)}
    output = function(*tensors[:3], **options)
    found = {"context": output.context.detach(), "lse": output.lse.detach()}
    if gradients:
        some = output.lse.isfinite()
        total = (output.context * context_gradient.to(output.context.dtype)).sum()
        total = total + (output.lse[some] * lse_gradient.to(output.lse.dtype)[some]).sum()
        names = ["query", "key", "value", "sinks"]
        found |= dict(zip(names, torch.autograd.grad(total, tensors), strict=False))
    return found


def check_error(given: Inputs, *, gradients: bool = True) -> None:
    """At most twice the error of a plain run in the same precision, both against float64.

    Errors are the largest of each tensor; a unit in the last place of the largest number is granted, since the
    plain run may be exact by chance.
    """
    exact = outputs(attention, given, dtype=torch.float64, gradients=gradients)
    plain = outputs(attention, given, gradients=gradients)
    found = outputs(triton_attention, given, gradients=gradients)
    for name, expected in exact.items():
        result, some = found[name].double(), expected.isfinite()
        assert torch.equal(some, result.isfinite()), (
            f"{name}: not finite where it should be, or the other way"
        )
        assert torch.equal(expected[~some], result[~some]), name
        if not some.any():
            continue
        allowed = 2 * (plain[name].double() - expected)[some].abs().max()
        unit = torch.finfo(found[name].dtype).eps * expected[some].abs().max().clamp(min=1e-3)
        error = (result - expected)[some].abs().max()
        assert error <= allowed + unit, f"{name}: error {error:.2e}, twice the plain one {allowed:.2e}"


def padding(batch: int, keys: int, *, seed: int = 6) -> Tensor:
    return torch.rand(batch, keys, generator=torch.Generator().manual_seed(seed)) > 0.3


def documents_of(*lengths: int) -> Tensor:
    return torch.cat([torch.full((length,), number) for number, length in enumerate(lengths)])[None]


GRID = {
    "plain": inputs(2, 2, 2, 70, 70, 64),
    "one number": inputs(1, 1, 1, 1, 1, 1),
    "one query, grouped": inputs(2, 4, 1, 1, 90, 40),
    "widths 200 and 24, scale 0": inputs(1, 2, 2, 20, 70, 200, 24, scale=0.0),
    "negative scale": inputs(1, 2, 2, 20, 70, 16, scale=-0.4),
    "causal, grouped": inputs(1, 4, 2, 130, 130, 32, rule=MaskRule(causal=True)),
    "causal, fewer queries": inputs(1, 2, 1, 70, 140, 32, rule=MaskRule(causal=True)),
    "causal, empty rows": inputs(1, 2, 1, 140, 70, 32, rule=MaskRule(causal=True)),
    "causal window": inputs(1, 1, 1, 140, 140, 16, rule=MaskRule(causal=True, window=20)),
    "window, empty rows": inputs(1, 1, 1, 150, 70, 16, rule=MaskRule(window=9)),
    "padding": inputs(2, 1, 1, 70, 70, 16, rule=MaskRule(key_valid=padding(2, 70))),
    "padding of one row, window": inputs(
        2, 1, 1, 70, 70, 16, rule=MaskRule(window=40, key_valid=padding(1, 70))
    ),
    "nothing but padding": inputs(
        1, 1, 1, 5, 70, 16, rule=MaskRule(key_valid=torch.zeros(1, 70, dtype=torch.bool))
    ),
    "prefix": inputs(2, 1, 1, 70, 140, 16, rule=MaskRule(causal=True, prefix=torch.tensor([100, 7]))),
    "documents": inputs(
        1, 2, 1, 140, 140, 16, rule=MaskRule(causal=True, documents=documents_of(50, 3, 60, 27))
    ),
    "documents in disorder": inputs(
        2, 1, 1, 60, 70, 16, rule=MaskRule(documents=torch.arange(140).reshape(2, 70) * 7 % 3)
    ),
    "soft cap": inputs(1, 2, 1, 70, 70, 32, softcap=2.0, rule=MaskRule(causal=True)),
    "sinks": inputs(1, 2, 2, 70, 40, 32, sinks=torch.tensor([0.5, -math.inf]), rule=MaskRule(causal=True)),
    "dense bias": inputs(2, 2, 1, 70, 70, 16, bias=normal(2, 2, 70, 70, seed=7)),
    "bias of keys, −∞ in a column and a row": inputs(
        1,
        2,
        1,
        70,
        70,
        16,
        bias=torch.where(torch.arange(70) == 3, -math.inf, torch.arange(70) / 9.0)[None, None, None],
    ),
    "bias of −∞ for whole rows": inputs(
        1, 1, 1, 70, 70, 16, bias=torch.where(torch.arange(70) % 3 == 0, -math.inf, 0.0)[None, None, :, None]
    ),
    "relative bias, soft cap": inputs(
        1, 2, 1, 70, 90, 16, bias=RelativeBias.of(normal(1, 2, 159, seed=8), queries=70, keys=90), softcap=5.0
    ),
    "half precision, grouped, causal": inputs(
        1, 2, 1, 70, 140, 64, dtype=torch.float16, rule=MaskRule(causal=True)
    ),
    "half precision, negative scale": inputs(1, 1, 1, 20, 70, 16, dtype=torch.float16, scale=-0.4),
    "half precision, scale 0, causal": inputs(
        1, 1, 1, 20, 70, 16, dtype=torch.float16, scale=0.0, rule=MaskRule(causal=True)
    ),
    "half precision, bias, window": inputs(
        1,
        1,
        1,
        70,
        70,
        16,
        dtype=torch.float16,
        rule=MaskRule(window=30),
        bias=normal(1, 1, 70, 70, seed=9).half(),
    ),
}


@pytest.mark.parametrize("name", GRID)
def test_context_and_gradients_are_as_exact_as_a_plain_run(name: str) -> None:
    check_error(GRID[name])


def adversarial(name: str, dtype: torch.dtype) -> Inputs:
    """Inputs on which rounding shows.

    The interpreter takes NumPy's products, whose last bits depend on where in a tile a pair stands, which large
    scores blow up. So tiles of both passes lie alike here (as many queries as keys), and large equal keys are whole
    numbers.
    """
    given = inputs(1, 1, 1, 100, 100, 32, dtype=dtype)
    one_key = given.key[:, :, :1].expand_as(given.key)
    query, key, value, options = {
        "large logits": (given.query * 12, given.key * 12, given.value, {}),
        "large logits, causal": (
            given.query * 12,
            given.key * 12,
            given.value,
            {"rule": MaskRule(causal=True)},
        ),
        "equal keys": (given.query, one_key, given.value, {}),
        "large equal keys": ((given.query * 20).round(), (one_key * 20).round(), given.value, {}),
        "one-hot rows": (given.query * 100, given.key, given.value, {}),
        "equal values": (given.query, given.key, torch.ones_like(given.value), {}),
        "far values": (given.query, given.key, given.value * 1e3, {}),
        "tiny scale": (given.query, given.key, given.value, {"scale": 1e-30}),
        "small capped scores": (given.query * 0.01, given.key, given.value, {"softcap": 50.0}),
        "soft cap in saturation": (given.query * 100, given.key, given.value, {"softcap": 3.0}),
        "bias far below": (given.query, given.key, given.value, {"bias": torch.full((1, 1, 1, 100), -1e4)}),
    }[name]
    return Inputs(query, key, value, options)


@pytest.mark.parametrize(
    "name",
    [
        "large logits",
        "large logits, causal",
        "equal keys",
        "large equal keys",
        "one-hot rows",
        "equal values",
        "far values",
        "tiny scale",
        "small capped scores",
        "soft cap in saturation",
        "bias far below",
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_inputs_on_which_rounding_shows_stay_in_the_error_budget(name: str, dtype: torch.dtype) -> None:
    if name == "large equal keys" and dtype == torch.float32:
        pytest.skip(
            "queries are scaled in float32, so NumPy's products of equal keys differ (see `adversarial`)"
        )
    check_error(adversarial(name, dtype))


# The other cases need a predicate: windows with two different sides, and lengths that place each item's diagonal.
WITHOUT_PREDICATE = [
    name
    for name, arguments in CASES.items()
    if "qlen" not in arguments and arguments.get("window") not in ([2, 1], [2, -1], [-1, 2])
]
WITH_GRADIENTS = ("softcap_5_causal_gqa", "alibi_causal", "window_1_1_q_longer_empty_rows", "mqa_4_1_causal")


@pytest.mark.parametrize("name", WITHOUT_PREDICATE)
def test_numbers_and_gradients_of_the_flash_attention_interface(name: str) -> None:
    arrays, options = load(name)
    left, right = CASES[name].get("window", (-1, -1))
    if left == right >= 0:  # theirs counts the neighbours on each side, ours the distance that is too far
        options["rule"] = MaskRule(window=left + 1)
    options["bias"] = None if options["bias"] is None else options["bias"].float()
    differentiated = name in WITH_GRADIENTS  # the others' gradients follow from the same tiles
    tensors = [arrays[key].float().requires_grad_(differentiated) for key in "qkv"]
    output = triton_attention(*tensors, **options)
    largest = max(1.0, float(arrays["lse"][arrays["lse"].isfinite()].abs().max()))
    assert_close(output.context.double(), arrays["out"], atol=2e-5 * largest, rtol=2e-5)
    assert_close(output.lse.double(), arrays["lse"], atol=2e-5 * largest, rtol=2e-5)
    if differentiated:
        gradients = torch.autograd.grad((output.context * arrays["dout"].float()).sum(), tensors)
        for gradient, expected in zip(gradients, ("dq", "dk", "dv"), strict=True):
            largest = max(1.0, float(arrays[expected].abs().max()))
            assert_close(gradient.double(), arrays[expected], atol=4e-5 * largest, rtol=4e-5)


@pytest.mark.parametrize("variant", ["descriptors", "persistent", "both", "warp_specialize"])
def test_variants_of_the_kernel_give_the_same_numbers(variant: str) -> None:
    given = inputs(1, 2, 1, 100, 140, 32, dtype=torch.float16, rule=MaskRule(causal=True, window=90))
    flags = {"descriptors": True, "persistent": True} if variant == "both" else {variant: True}
    flags |= {"descriptors": True} if variant == "warp_specialize" else {}
    scoring = Scoring(32**-0.5, given.options["rule"])
    usual, of_usual = forward_pass(given.query, given.key, given.value, scoring=scoring)
    found, of_found = forward_pass(
        given.query, given.key, given.value, scoring=scoring, config=forward_config(32, 64, 4, 1, **flags)
    )
    assert_close(found, usual, atol=2e-3, rtol=2e-3)
    assert_close(of_found.lse, of_usual.lse, atol=2e-6, rtol=2e-6)


def test_views_are_read_where_they_lie() -> None:
    given = inputs(2, 2, 1, 40, 70, 24, rule=MaskRule(causal=True))
    expected = triton_attention(given.query, given.key, given.value, rule=given.options["rule"])
    query = (
        given.query.transpose(1, 2).contiguous().transpose(1, 2)
    )  # (B, N, H, D) in memory, as models have it
    key = given.key.mT.contiguous().mT
    value = torch.cat([given.value, given.value], dim=2)[:, :, ::2]
    value[:] = given.value
    found = triton_attention(query, key, value, rule=given.options["rule"])
    assert not any(tensor.is_contiguous() for tensor in (query, key, value))
    assert torch.equal(found.context, expected.context)
    assert torch.equal(found.lse, expected.lse)


def test_a_long_input_in_many_tiles() -> None:
    given = inputs(1, 1, 1, 1025, 1025, 64, rule=MaskRule(causal=True, window=300))
    exact = outputs(attention, given, dtype=torch.float64, gradients=False)
    found = outputs(triton_attention, given, gradients=False)
    assert_close(found["context"].double(), exact["context"], atol=2e-6, rtol=2e-6)
    assert_close(found["lse"].double(), exact["lse"], atol=2e-6, rtol=2e-6)


@triton.jit
def visited_by_rows(seen, scoring, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """How often each pair is visited by a walk over keys: 1 under a mask, 2 without one."""
    first, item = tl.program_id(0) * ROWS, tl.program_id(1)
    start, stop = key_span(scoring, item, first, ROWS)
    inner, outer = whole_key_span(scoring, item, first, start, stop, ROWS, COLUMNS)
    rows = (first + tl.arange(0, ROWS))[:, None]
    for place in range(start, stop, COLUMNS):
        columns = (place + tl.arange(0, COLUMNS))[None, :]
        whole = (place >= inner) & (place < outer)
        note_visit(seen, scoring, item, rows, columns, whole, allowed_pairs(scoring, item, rows, columns))


@triton.jit
def visited_by_columns(seen, scoring, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The same by a walk over queries."""
    first, item = tl.program_id(0) * COLUMNS, tl.program_id(1)
    start, stop = query_span(scoring, item, first, COLUMNS)
    inner, outer = whole_query_span(scoring, item, first, start, stop, ROWS, COLUMNS)
    columns = (first + tl.arange(0, COLUMNS))[None, :]
    for place in range(start, stop, ROWS):
        rows = (place + tl.arange(0, ROWS))[:, None]
        whole = (place >= inner) & (place < outer)
        note_visit(seen, scoring, item, rows, columns, whole, allowed_pairs(scoring, item, rows, columns))


@triton.jit
def note_visit(seen, scoring, item, rows, columns, whole, allowed):
    places = seen + (item * scoring.queries + rows) * scoring.keys + columns
    inside = (rows < scoring.queries) & (columns < scoring.keys)
    tl.store(places, tl.where(whole, 2, allowed.to(tl.int32)), mask=inside)


def drawn_rule(seed: int) -> tuple[MaskRule, int, int, int]:
    """Any rule without a predicate, with batch, Q and K."""
    generator = torch.Generator().manual_seed(seed)

    def one_of(*choices: Any) -> Any:
        return choices[int(torch.randint(len(choices), (1,), generator=generator))]

    batch, queries, keys = one_of(1, 2), one_of(1, 16, 17, 40), one_of(1, 16, 33, 70)
    documents = torch.randint(0, 3, (one_of(1, batch), keys), generator=generator)
    rule = MaskRule(
        causal=one_of(True, False),
        window=one_of(None, None, 1, 3, 20, 50),
        key_valid=one_of(None, None, torch.rand(one_of(1, batch), keys, generator=generator) > 0.4),
        prefix=one_of(None, None, torch.randint(0, keys + 3, (one_of(1, batch),), generator=generator)),
        documents=one_of(None, documents, documents.sort(1).values) if queries <= keys else None,
    )
    return rule, batch, queries, keys


EDGES = (MaskRule(causal=True), MaskRule(window=20), MaskRule(causal=True, window=20))
SHIFTED = [(EDGES[shift % 3], 1, 33, 33 + shift) for shift in range(15)] + [
    (MaskRule(causal=True), 1, 17, 17 + 14),
    (MaskRule(window=20), 1, 33, 33 + 11),
    (MaskRule(window=20), 1, 33, 33 + 5),
    (MaskRule(causal=True, prefix=torch.tensor([31])), 1, 17, 40),
]
"""Edges of causal rules and windows at every place in a tile, and where one more pair would be a tile more."""


def test_tiles_that_are_left_out_or_unmasked_are_those_the_rule_says() -> None:
    unmasked = 0
    for rule, batch, queries, keys in [*SHIFTED, *map(drawn_rule, range(10))]:
        query, key = torch.zeros(batch, 1, queries, 16), torch.zeros(batch, 1, keys, 16)
        scoring = kernel_scoring(Scoring(1.0, rule), query, key)
        allowed = rule.allowed(torch.arange(queries), torch.arange(keys), queries=queries, keys=keys)
        expected = torch.ones(batch, 1, queries, keys, dtype=torch.bool) if allowed is None else allowed
        expected = expected.expand(batch, 1, queries, keys)[:, 0]
        for kernel, blocks in (
            (visited_by_rows, triton.cdiv(queries, 16)),
            (visited_by_columns, triton.cdiv(keys, 16)),
        ):
            seen = torch.zeros(batch, queries, keys, dtype=torch.int32)
            kernel[(blocks, batch)](seen, scoring, 16, 16)
            assert torch.equal(seen > 0, expected), (rule, queries, keys, kernel)
            unmasked += int((seen == 2).sum())
    assert unmasked > 1_000  # there is something to leave the mask out for


def test_progress_is_told_and_a_watcher_can_stop_it() -> None:
    given = inputs(1, 2, 1, 20, 30, 16)
    told: list[int] = []
    with watching(told.append):
        triton_attention(given.query, given.key, given.value)
    assert told == [2 * 20 * 30]

    def stop(_weights: int) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError), watching(stop):
        triton_attention(given.query, given.key, given.value)


def test_only_what_needs_a_gradient_gets_one() -> None:
    given = inputs(1, 1, 1, 20, 20, 16)
    query = given.query.clone().requires_grad_()
    told: list[int] = []
    with watching(told.append):
        output = triton_attention(query, given.key, given.value)
        (gradient,) = torch.autograd.grad(output.lse.sum(), query)
    assert len(told) == 2  # the forward kernel and the one of dQ, not the one of dK and dV
    exact = query.detach().double().requires_grad_()
    total = attention(exact, given.key.double(), given.value.double()).lse.sum()
    assert_close(gradient.double(), torch.autograd.grad(total, exact)[0], atol=1e-6, rtol=1e-5)


def test_a_second_derivative_is_refused() -> None:
    given = inputs(1, 1, 1, 5, 5, 16)
    query = given.query.clone().requires_grad_()
    context = triton_attention(query, given.key, given.value).context
    (gradient,) = torch.autograd.grad(context.sum(), query, create_graph=True)
    assert torch.isfinite(gradient).all()
    with pytest.raises(RuntimeError, match=r"gradients can be taken once .* use impl='reference'"):
        torch.autograd.grad(context.sum() + gradient.square().sum(), query)


def indexed_bias(size: int) -> IndexedBias:
    table = normal(5, 2, seed=7)
    return IndexedBias.of(table, torch.arange(size * size).reshape(size, size) % 5)


def test_an_indexed_bias_is_written_out_within_the_budget() -> None:
    given = inputs(1, 2, 2, 30, 30, 16, bias=indexed_bias(30))
    check_error(given, gradients=False)
    with (
        memory_budget(1000),
        pytest.raises(ValueError, match="more than the budget of 0 MiB; impl='tiled' can"),
    ):
        triton_attention(given.query, given.key, given.value, **given.options)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (inputs(1, 1, 1, 4, 4, 16, dtype=torch.float64), "dtype is torch.float64"),
        (inputs(1, 1, 1, 4, 4, 16, dtype=torch.bfloat16), "bits of bfloat16"),
        (inputs(1, 1, 1, 4, 4, 257), "heads have width 257 and they take 1 to 256"),
        (inputs(1, 1, 1, 4, 4, 16, 300), "values have width 300 and they take 1 to 256"),
        (inputs(1, 1, 1, 0, 4, 16), "an axis is empty"),
        (
            inputs(1, 1, 1, 4, 4, 16, rule=MaskRule(predicate=lambda b, h, q, k: q >= k)),
            "predicate, which is Python",
        ),
        (inputs(1, 1, 1, 4, 2, 16, rule=MaskRule(documents=documents_of(2))), "documents of queries before"),
        (inputs(1, 1, 1, 4, 4, 16, softcap=-1.0), "softcap is -1.0 and must be positive"),
        (
            inputs(1, 1, 1, 4, 4, 16, bias=torch.zeros(1, 1, 4, 4, requires_grad=True)),
            "the bias needs a gradient; impl='tiled' can",
        ),
    ],
)
def test_what_the_kernels_cannot_compute_is_refused_by_name(given: Inputs, message: str) -> None:
    pattern = rf"triton_attention: the Triton kernels cannot compute this because .*{message}"
    with pytest.raises(ValueError, match=pattern):
        triton_attention(given.query, given.key, given.value, **given.options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"rule": MaskRule(key_valid=torch.ones(2, 8, dtype=torch.bool))},
            r"rule.key_valid must have shape \(2, 9\)",
        ),
        ({"rule": MaskRule(causal=True, prefix=torch.ones(3))}, r"rule.prefix must have shape \(2,\)"),
        ({"rule": MaskRule(documents=torch.ones(2, 10))}, r"rule.documents must have shape \(2, 9\)"),
        ({"sinks": torch.zeros(1)}, r"sinks must have shape \(2,\)"),
        (
            {"bias": RelativeBias.of(torch.zeros(1, 2, 16), queries=8, keys=9)},
            "bias must be of 5 queries and 9 keys",
        ),
        ({"bias": RelativeBias(torch.zeros(1, 2, 12), torch.arange(5), torch.arange(9), -4)}, "with a table"),
    ],
)
def test_parts_of_other_lengths_are_refused_before_a_kernel_reads_past_them(
    options: Options, message: str
) -> None:
    given = inputs(2, 2, 2, 5, 9, 16)
    with pytest.raises(ValueError, match=message):
        triton_attention(given.query, given.key, given.value, **options)


def test_a_value_of_another_dtype_is_refused() -> None:
    given = inputs(1, 1, 1, 4, 4, 16)
    with pytest.raises(ValueError, match=r"value has dtype torch\.float16 and query torch\.float32"):
        triton_attention(given.query, given.key, given.value.half())
