"""Rules and mods of the Lab: against loops and NumPy, the work they save, and every sentence both ways."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from analysis.lab import mask_costs
from analysis.lab.expression import ExpressionError, parse
from analysis.lab.inputs import LabVectors, numbered, random_vectors
from analysis.lab.mask_costs import RuleCost, amount, cost_in_words, cost_sheet, rule_cost, rule_costs
from analysis.lab.masks import (
    RULES,
    ModChoice,
    ModifiedAttention,
    RuleChoice,
    UnusableScore,
    in_words,
    matrix_sheet,
    modified_attention,
    moved_weight,
    percent,
    random_bias,
    written_out,
)
from analysis.lab.mod_library import library, library_sheet
from analysis.visible_lab import check_curve_sheet, check_matrix_sheet
from attn_core.cost import AttentionShape, flash_cost, written_out_cost
from attn_core.mask_rules import allowed_share
from attn_core.positions import alibi_slopes

HEADS, WIDTH = 3, 4


@st.composite
def rule_choices(draw: st.DrawFn) -> RuleChoice:
    return RuleChoice(
        rules=tuple(draw(st.lists(st.sampled_from(list(RULES)), unique=True, max_size=4))),
        joined=draw(st.sampled_from(["and", "or"])),
        negate=draw(st.booleans()),
        window=draw(st.integers(1, 12)),
        prefix=draw(st.integers(0, 12)),
        padded=draw(st.integers(0, 12)),
        documents=draw(st.integers(1, 5)),
        block=draw(st.integers(1, 5)),
        stride=draw(st.integers(1, 3)),
    )


def oracle(choice: RuleChoice, n: int) -> np.ndarray:
    """(N, N) the combination, each rule by its sentence."""
    sentence: dict[str, Callable[[int, int], bool]] = {
        "causal": lambda q, k: k <= q,
        "window": lambda q, k: abs(q - k) < choice.window,
        "prefix": lambda q, k: k < choice.prefix or k <= q,
        "padding": lambda q, k: k < n - choice.padded,
        "document": lambda q, k: q * choice.documents // n == k * choice.documents // n,
        "block": lambda q, k: k // choice.block in (0, q // choice.block),
        "dilated": lambda q, k: abs(q - k) in [step * choice.stride for step in range(choice.window)],
    }
    masks = [
        np.array([[sentence[name](q, k) for k in range(n)] for q in range(n)], dtype=bool)
        for name in choice.rules
    ]
    joined = np.logical_and if choice.joined == "and" else np.logical_or
    whole = reduce(joined, masks) if masks else np.ones((n, n), dtype=bool)
    return ~whole if choice.negate else whole


# --- Rules ----------------------------------------------------------------------------------------------------------


@settings(max_examples=80)
@given(choice=rule_choices(), tokens=st.integers(1, 9))
def test_a_combination_allows_what_its_sentence_says(choice: RuleChoice, tokens: int) -> None:
    np.testing.assert_array_equal(written_out(choice.rule(tokens), tokens), oracle(choice, tokens))


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (RuleChoice(), "causal"),
        (RuleChoice(("causal", "window"), window=7), "causal & window 7"),
        (RuleChoice(("window", "document"), "or", True), "not (window 4 | 2 documents)"),
        (RuleChoice(("dilated",), negate=True, stride=3), "not dilated window 4 by 3"),
        (RuleChoice(()), "every pair"),
        (RuleChoice((), negate=True), "not (every pair)"),
    ],
)
def test_a_combination_says_what_it_is(choice: RuleChoice, said: str) -> None:
    assert choice.in_words == said


def test_what_is_no_rule_is_refused() -> None:
    with pytest.raises(ValueError, match=r"RuleChoice\.rule: tokens must be at least 1 and rules of causal"):
        RuleChoice(("diagonal",)).rule(3)
    with pytest.raises(ValueError, match="tokens must be at least 1"):
        RuleChoice().rule(0)


# --- Weights --------------------------------------------------------------------------------------------------------

MODS: dict[str, tuple[ModChoice, Callable[[np.ndarray, int, int], np.ndarray]]] = {
    "none": (ModChoice(), lambda s, h, n: s),
    "alibi": (ModChoice("alibi"), lambda s, h, n: s - _slope(h) * _distance(n)),
    "soft_cap": (ModChoice("soft_cap", cap=1.5), lambda s, h, n: 1.5 * np.tanh(s / 1.5)),
    "relative": (ModChoice("relative"), lambda s, h, n: s + random_bias(HEADS, n).dense()[0, h].numpy()),
    "typed": (ModChoice("typed", typed="score + h * q_idx - sqrt(d_k) * k_idx / n_k"), lambda s, h, n: (
        s + h * np.arange(n)[:, None] - 2 * np.arange(n) / n
    )),
    "forbids": (ModChoice("typed", typed="where(k_idx != 0, score, -inf)"), lambda s, h, n: (
        np.where(np.arange(n) != 0, s, -np.inf)
    )),
}  # fmt: skip


def _slope(head: int) -> float:
    return float(alibi_slopes(HEADS, dtype=torch.float64)[head])


def _distance(n: int) -> np.ndarray:
    return np.abs(np.arange(n)[:, None] - np.arange(n))


def vectors_of(tokens: int, seed: int = 0) -> LabVectors:
    return random_vectors(numbered(tokens), width=WIDTH, heads=HEADS, seed=seed)


def computed(
    tokens: int, rule: RuleChoice, mod: ModChoice, *, head: int = 0, seed: int = 0
) -> ModifiedAttention:
    found = modified_attention(vectors_of(tokens, seed), head, rule.rule(tokens), mod)
    assert isinstance(found, ModifiedAttention)
    return found


def softmax(scores: np.ndarray) -> np.ndarray:
    rows = np.zeros_like(scores)
    for row, score in zip(rows, scores, strict=True):
        kept = np.isfinite(score)
        row[kept] = np.exp(score[kept]) / np.exp(score[kept]).sum() if kept.any() else 0
    return rows


@pytest.mark.parametrize("name", MODS)
@settings(max_examples=20)
@given(
    choice=rule_choices(), tokens=st.integers(1, 8), head=st.integers(0, HEADS - 1), seed=st.integers(0, 99)
)
def test_scores_and_weights_are_their_formulas(
    name: str, choice: RuleChoice, tokens: int, head: int, seed: int
) -> None:
    mod, formula = MODS[name]
    found = computed(tokens, choice, mod, head=head, seed=seed)
    vectors = vectors_of(tokens, seed)
    query, key = (part[head].double().numpy() for part in (vectors.query, vectors.key))
    scores, allowed = query @ key.T / math.sqrt(WIDTH), oracle(choice, tokens)
    changed = np.where(allowed, formula(scores, head, tokens), -np.inf)
    np.testing.assert_array_equal(found.allowed, allowed)
    np.testing.assert_allclose(found.scores, scores, atol=1e-12)
    np.testing.assert_allclose(found.changed, changed, atol=1e-12)
    np.testing.assert_allclose(found.weights, softmax(changed), atol=1e-12)
    np.testing.assert_allclose(found.unmodified, softmax(np.where(allowed, scores, -np.inf)), atol=1e-12)
    assert found.empty_rows == tuple(np.flatnonzero(~np.isfinite(changed).any(axis=1)))


@pytest.mark.parametrize(
    ("typed", "place", "said"),
    [
        ("log(score - score)", None, ""),
        ("0 / (q_idx - 2)", (2, 0), "The mod gives no number for query 2 and key 0, whose score is"),
        ("1 / (1 - k_idx)", (1, 1), "The mod gives +∞ for query 1 and key 1, whose score is"),
        ("exp(1000 * k_idx)", (1, 1), "The mod gives +∞"),
    ],
)
def test_a_mod_without_a_score_for_an_allowed_pair_is_told(
    typed: str, place: tuple | None, said: str
) -> None:
    found = modified_attention(vectors_of(4), 1, RuleChoice().rule(4), ModChoice("typed", typed=typed))
    if place is None:
        assert isinstance(found, ModifiedAttention), "−∞ everywhere forbids everything"
        assert found.empty_rows == (0, 1, 2, 3)
        return
    assert isinstance(found, UnusableScore)
    assert (found.query, found.key) == place
    assert found.sentence.startswith(said)
    assert found.score == pytest.approx(computed(4, RuleChoice(), ModChoice(), head=1).scores[place])


def test_a_pair_that_the_rule_forbids_needs_no_score() -> None:
    typed = ModChoice("typed", typed="score - log(q_idx - k_idx + 1)")
    assert isinstance(modified_attention(vectors_of(4), 0, RuleChoice(()).rule(4), typed), UnusableScore)
    assert np.isfinite(computed(4, RuleChoice(), typed).weights).all()


def test_what_cannot_be_made_is_refused() -> None:
    with pytest.raises(ExpressionError, match="did you mean score"):
        computed(3, RuleChoice(), ModChoice("typed", typed="scor"))
    with pytest.raises(ValueError, match="soft_cap: cap must be positive"):
        computed(3, RuleChoice(), ModChoice("soft_cap", cap=0.0))
    with pytest.raises(ValueError, match=r"LabVectors.head: index must be 0 to 2 but is 3"):
        computed(3, RuleChoice(), ModChoice(), head=3)


def test_nothing_that_was_given_is_written_into() -> None:
    vectors = vectors_of(5)
    before = vectors.query.clone(), vectors.key.clone()
    for mod, _ in MODS.values():
        modified_attention(vectors, 0, RuleChoice(("causal", "padding")).rule(5), mod)
    assert torch.equal(vectors.query, before[0])
    assert torch.equal(vectors.key, before[1])


# --- Sentences ------------------------------------------------------------------------------------------------------


def test_how_much_a_rule_leaves_is_told() -> None:
    assert in_words(computed(4, RuleChoice(), ModChoice()))[0] == "The rule allows 10 of 16 pairs (62 %)."
    assert in_words(computed(4, RuleChoice(()), ModChoice()))[0] == "The rule allows all 16 pairs."
    none = computed(4, RuleChoice((), negate=True), ModChoice())
    assert in_words(none) == (
        "The rule allows none of 16 pairs.",
        "No query sees any key: all weights and outputs are 0.",
    )


def test_rows_that_see_nothing_are_told() -> None:
    assert in_words(computed(4, RuleChoice(), ModChoice()))[1] == "Every query sees at least one key."
    first = computed(4, RuleChoice(("causal", "document"), negate=True, documents=1), ModChoice())
    assert in_words(first)[1] == "Query 3 sees no key: its weights and its output are 0."
    by_mod = computed(4, RuleChoice(), ModChoice("typed", typed="where(k_idx > 0, score, -inf)"))
    assert in_words(by_mod)[1] == "Query 0 sees no key: its weights and its output are 0."
    several = computed(9, RuleChoice(("padding", "causal"), negate=True, padded=0), ModChoice())
    assert in_words(several)[1] == "Query 8 sees no key: its weights and its output are 0."
    six = computed(9, RuleChoice(()), ModChoice("typed", typed="where(q_idx > 5, score, -inf)"))
    assert (
        in_words(six)[1] == "6 queries see no key (0, 1, 2, 3 and 2 more): their weights and outputs are 0."
    )
    named = random_vectors(("the", "2", "cat"), width=2)
    found = modified_attention(named, 0, RuleChoice(("causal",), negate=True).rule(3), ModChoice())
    assert in_words(found)[1] == "Query 2 “cat” sees no key: its weights and its output are 0."


def test_what_a_mod_moves_is_told() -> None:
    assert len(in_words(computed(5, RuleChoice(), ModChoice()))) == 2, "no mod, no sentence"
    still = in_words(computed(5, RuleChoice(), ModChoice("typed", typed="score + q_idx")))[2]
    assert still.startswith("The mod moves no weight: what it adds is the same for all keys of a row")
    found = computed(5, RuleChoice(), ModChoice("alibi"))
    moved = 0.5 * np.abs(found.weights - found.unmodified).sum(1)
    np.testing.assert_allclose(moved_weight(found), moved)
    most = int(moved.argmax())
    assert in_words(found)[2] == (
        f"The mod moves {percent(moved.mean())} of a row's weight to other keys on average, most in row {most} "
        f"({percent(moved.max())})."
    )
    emptied = computed(3, RuleChoice(), ModChoice("typed", typed="where(q_idx > 0, score, -inf)"))
    np.testing.assert_array_equal(moved_weight(emptied), [1, 0, 0])
    unreachable = computed(3, RuleChoice((), negate=True), ModChoice("alibi"))
    assert len(in_words(unreachable)) == 2


@pytest.mark.parametrize(
    ("share", "said"),
    [(0, "0 %"), (1, "100 %"), (0.999999, "more than 99.9 %"), (0.997, "99.7 %"), (0.5, "50 %"), (0.0512, "5.1 %"),
     (0.0001, "0.01 %"), (1e-7, "less than 0.01 %")],
)  # fmt: skip
def test_percentages_are_never_rounded_to_nothing_or_all(share: float, said: str) -> None:
    assert percent(share) == said


def test_the_sheet_holds_mask_scores_changed_scores_and_weights() -> None:
    rule, mod = RuleChoice(("causal", "window"), window=2), ModChoice("alibi")
    found = computed(5, rule, mod)
    sheet = matrix_sheet(found, rule, mod)
    check_matrix_sheet(sheet, "test")
    expected = (found.allowed, found.scores, found.changed, found.weights)
    for matrix, values in zip(sheet.matrices, expected, strict=True):
        np.testing.assert_array_equal(matrix.values, values)
        assert (matrix.rows, matrix.columns, matrix.axes) == (found.tokens, found.tokens, ("query", "key"))
    assert [matrix.note for matrix in sheet.matrices] == [
        "causal & window 2",
        "QKᵀ/√dₖ",
        "ALiBi",
        "rows sum to 1",
    ]
    finite = found.changed[np.isfinite(found.changed)]
    limit = max(np.abs(found.scores).max(), np.abs(finite).max())
    assert sheet.matrices[1].limit == sheet.matrices[2].limit == limit, "one scale before and after"
    empty = computed(1, RuleChoice((), negate=True), ModChoice())
    check_matrix_sheet(matrix_sheet(empty, RuleChoice(()), ModChoice()), "test")
    assert matrix_sheet(empty, rule, ModChoice()).matrices[3].note == "rows sum to 1, or are 0"


# --- Cost -----------------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(choice=rule_choices(), tokens=st.integers(1, 20))
def test_cost_is_counted_from_the_written_out_mask(choice: RuleChoice, tokens: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mask_costs, "BLOCK", 4)
        found = rule_cost(choice.rule(tokens), tokens, heads=HEADS, width=WIDTH)
    allowed = oracle(choice, tokens)
    left = 0
    for row in range(0, tokens, 4):
        for column in range(0, tokens, 4):
            block = allowed[row : row + 4, column : column + 4]
            left += block.size if block.any() else 0
    assert found.pairs == allowed.mean()
    assert found.blocks == left / tokens**2
    assert found.flops == 4 * HEADS * tokens**2 * WIDTH


@settings(max_examples=15)
@given(choice=rule_choices(), tokens=st.sampled_from([60, 300]))
def test_cost_is_what_the_core_says(choice: RuleChoice, tokens: int) -> None:
    rule = choice.rule(tokens)
    found = rule_cost(rule, tokens, heads=HEADS, width=WIDTH)
    shape = AttentionShape(1, HEADS, HEADS, tokens, tokens, WIDTH, WIDTH)
    assert found.pairs == pytest.approx(allowed_share(rule, queries=tokens, keys=tokens), abs=1e-12)
    assert found.flops == written_out_cost(shape).flops
    assert round(found.flops * found.pairs) == pytest.approx(flash_cost(shape, rule=rule).flops, abs=1)


def test_a_causal_rule_leaves_half_and_the_blocks_on_its_diagonal() -> None:
    *_, last = rule_costs(RuleChoice(), heads=1, width=8)
    assert (last.tokens, last.pairs, last.blocks) == (4096, 4097 / 8192, 33 / 64)


def test_what_a_rule_saves_is_told() -> None:
    def said(here: tuple[float, float], last: tuple[float, float]) -> tuple[str, ...]:
        return cost_in_words(RuleCost(16, *here, 1_000_000), RuleCost(4096, *last, 10**9))

    assert said((0.25, 1), (0.1, 0.2)) == (
        "At n = 16 the rule saves 750 k of 1 M FLOPs (75 %) if pairs are skipped one by one.",
        "At n = 4,096 it forbids 90 % of the pairs, and a kernel that skips whole 128 × 128 blocks saves 80 % of the "
        "work.",
    )
    assert said((1, 1), (1, 1)) == (
        "At n = 16 the rule saves nothing.",
        "At n = 4,096 it saves nothing either.",
    )
    assert "but every 128 × 128 block holds an allowed one" in said((0.5, 1), (0.5, 1))[1]
    assert said((1, 1), (0.5, 0.6))[0] == "At n = 16 the rule saves nothing."
    assert said((0.5, 1), (1, 1))[1] == "At n = 4,096 it saves nothing."


def test_amounts_have_units() -> None:
    assert [amount(n) for n in (0, 999, 1500, 2.5e6, 3e9, 4e12)] == [
        "0",
        "999",
        "1.5 k",
        "2.5 M",
        "3 G",
        "4 T",
    ]


def test_the_cost_sheet_holds_what_was_counted() -> None:
    choice = RuleChoice(("window",), window=3)
    costs = [RuleCost(n, 3 / n, 8 / n, n * n) for n in (256, 512)]
    sheet = cost_sheet(RuleCost(10, 0.5, 1.0, 100), costs, choice)
    check_curve_sheet(sheet, "test")
    pairs, blocks = sheet.panels[0].curves
    assert pairs.labels == ("n = 10", "n = 512")
    np.testing.assert_allclose(pairs.y, [50, 300 / 512])
    np.testing.assert_allclose(blocks.y, [100, 800 / 512])
    dense, by_block, by_pair = sheet.panels[1].curves
    np.testing.assert_allclose(dense.y, [256**2, 512**2])
    np.testing.assert_allclose(by_pair.y, [3 * 256, 3 * 512])
    np.testing.assert_allclose(by_block.y, [8 * 256, 8 * 512])
    nothing = cost_sheet(RuleCost(10, 0, 0, 100), [RuleCost(256, 0, 0, 10)], choice)
    check_curve_sheet(nothing, "test")
    assert np.isnan(nothing.panels[1].curves[2].y).all(), "0 has no place on a logarithmic axis"


# --- Library --------------------------------------------------------------------------------------------------------


@settings(max_examples=25)
@given(
    choice=rule_choices(), heads=st.integers(1, 13), tokens=st.integers(1, 9), cap=st.sampled_from([0.5, 2.0])
)
def test_what_is_typed_by_hand_is_the_library_s_mod(
    choice: RuleChoice, heads: int, tokens: int, cap: float
) -> None:
    score = torch.randn(
        1, heads, tokens, tokens, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    indices = torch.meshgrid(*(torch.arange(n) for n in score.shape), indexing="ij")
    typed_ones = 0
    for mod in library(choice, cap=cap, heads=heads, tokens=tokens):
        assert (mod.mask is None) != (mod.score is None)
        if not mod.typed:
            continue
        typed_ones += 1
        found = parse(mod.typed).score_mod(heads=heads, queries=tokens, keys=tokens, width=8)(score, *indices)
        if mod.mask is not None:
            expected = torch.where(mod.mask(*indices), score, -math.inf)
            assert torch.equal(found, expected), mod.name
        else:
            torch.testing.assert_close(found, mod.score(score, *indices), msg=mod.name)
    assert typed_ones == 7


def test_the_library_s_pictures_are_its_mods() -> None:
    vectors = vectors_of(6)
    sheet, mods = library_sheet(vectors, 1, RuleChoice(prefix=9), cap=1.0)
    check_matrix_sheet(sheet, "test")
    assert [matrix.name for matrix in sheet.matrices] == [mod.name for mod in mods]
    pictures = {matrix.name: matrix for matrix in sheet.matrices}
    np.testing.assert_array_equal(pictures["Causal"].values, np.tril(np.ones((6, 6))))
    np.testing.assert_array_equal(pictures["Prefix"].values, np.ones((6, 6)))
    np.testing.assert_allclose(pictures["ALiBi"].values, -_slope(1) * _distance(6))
    np.testing.assert_allclose(pictures["Relative bias"].values, random_bias(HEADS, 6).dense()[0, 1])
    scores = computed(6, RuleChoice(()), ModChoice(), head=1).scores
    np.testing.assert_allclose(pictures["Soft cap"].values, np.tanh(scores), atol=1e-12)
    assert pictures["Soft cap"].limit == pytest.approx(np.abs(scores).max())
    assert [matrix.scale for matrix in sheet.matrices] == ["mask"] * 5 + ["signed"] * 3
