"""Typed score mods: read as Python's own parser reads them, worth what a NumPy twin says, refused in words."""

from __future__ import annotations

import ast
import math
import operator
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.testing import assert_close

from analysis.lab import expression
from analysis.lab.expression import (
    FUNCTIONS,
    MOST_CHARACTERS,
    MOST_EXPONENT,
    MOST_NESTED,
    MOST_NODES,
    NAMES,
    OPERATORS,
    Applied,
    Expression,
    ExpressionError,
    Name,
    Node,
    Number,
    first_unusable,
    parse,
)
from attn_core.positions import alibi_slopes
from attn_core.variants import flex
from attn_core.variants.flex import flex_attention, flex_reference
from tests.conftest import ROOT

uncompiled = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")

PAGE = ROOT / "docs" / "mechanisms" / "masks-and-mods.md"
BATCH, HEADS, QUERIES, KEYS, WIDTH = 2, 4, 3, 5, 6
Values = dict[str, Any]


def read(text: str) -> Expression | ExpressionError:
    """What the parser makes of a text."""
    try:
        return parse(text)
    except ExpressionError as error:
        return error


# --- Expressions beside their twins ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Twin:
    """A text beside the same in NumPy.

    Attributes:
        level: of the grammar's rule that it is, 0 for ``expression`` to 8 for ``power`` and 9 for an atom.
        truth: whether it is true or false.
    """

    text: str
    value: Callable[[Values], np.ndarray]
    level: int
    truth: bool = False

    def at(self, level: int) -> str:
        """The text where the grammar wants this level, in parentheses if it is a weaker one."""
        return self.text if self.level >= level else f"({self.text})"


BINARY: dict[str, tuple[int, Callable[[np.ndarray, np.ndarray], np.ndarray]]] = {
    "+": (5, np.add), "-": (5, np.subtract), "*": (6, np.multiply), "/": (6, np.divide),
    "//": (6, lambda a, b: np.floor_divide(a, b) + 0.0), "%": (6, lambda a, b: np.remainder(a, b) + 0.0),
    "<": (4, np.less), "<=": (4, np.less_equal), ">": (4, np.greater), ">=": (4, np.greater_equal),
    "==": (4, np.equal), "!=": (4, np.not_equal),
}  # fmt: skip
JUMPS = ("//", "%", "floor", "<", "<=", ">", ">=", "==", "!=")
"""Where the last bit of an operand may decide; their operands are whole numbers, which are exact everywhere."""

UNARY = {
    "abs": np.abs, "exp": np.exp, "tanh": np.tanh, "sin": np.sin, "cos": np.cos, "log": np.log, "sqrt": np.sqrt,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
}  # fmt: skip


NOISE = 2.0**-47
"""Most relative noise of a function that is not exact, 32 units of float64: it shows how far its last bits travel."""


def rounded(values: Values, result: np.ndarray) -> np.ndarray:
    """What a function that is not exact gives, with noise where ``values`` ask for it."""
    if "noise" not in values:
        return result
    return result * (1 + NOISE * values["noise"].uniform(-1, 1, np.shape(result)))


def number(value: float) -> Twin:
    return Twin(repr(value), lambda _: np.float64(value), 9)


def named(name: str) -> Twin:
    return Twin(name, lambda values: values[name], 9)


INDICES = tuple(named(name) for name in ("b", "h", "q_idx", "kv_idx", "k_idx", "n_q", "n_k", "n_h", "d_k"))


@st.composite
def numbers(draw: st.DrawFn, depth: int, *, exact: bool = False) -> Twin:
    """A number; with ``exact`` a whole one of few digits."""
    if depth == 0 or draw(st.integers(0, 5)) == 0:
        if exact:
            return draw(st.sampled_from(INDICES) | st.integers(0, 9).map(lambda n: number(int(n))))
        return draw(
            st.sampled_from((named("score"), named("pi"), *INDICES))
            | st.floats(0, 4).map(lambda x: number(x))
        )
    part = numbers(depth - 1, exact=exact)
    whole = numbers(depth - 1, exact=True)
    kinds = ["+", "-", "//", "%", "negative", "if", "where", "min", "max", "clip", "truth"]
    kinds += ["floor", "*"] if exact else ["*", "/", "**", *UNARY]
    kind = draw(st.sampled_from(kinds))
    if kind in BINARY:
        operands = whole if kind in JUMPS else part
        return applied(kind, draw(operands), draw(operands))
    if kind == "negative":
        inner, sign = draw(part), draw(st.sampled_from("+-"))
        return Twin(f"{sign}{inner.at(7)}", lambda v: inner.value(v) * (1 if sign == "+" else -1), 7)
    if kind == "**":
        base, exponent = draw(part), draw(st.integers(-3, 3))
        return Twin(
            f"{base.at(9)} ** {exponent}", lambda v: rounded(v, np.power(base.value(v), float(exponent))), 8
        )
    if kind == "if":
        first, held, other = draw(part), draw(truths(depth - 1)), draw(part)
        text = f"{first.at(1)} if {held.at(1)} else {other.at(0)}"
        return Twin(text, lambda v: np.where(held.value(v), first.value(v), other.value(v)), 0)
    if kind == "where":
        held, first, other = draw(truths(depth - 1)), draw(part), draw(part)
        text = f"where({held.text}, {first.text},{other.text})"
        return Twin(text, lambda v: np.where(held.value(v), first.value(v), other.value(v)), 9)
    if kind in ("min", "max"):
        operands = draw(st.lists(part, min_size=2, max_size=3))
        reduce = np.minimum if kind == "min" else np.maximum
        text = f"{kind}({', '.join(each.text for each in operands)})"
        return Twin(text, lambda v: _folded(reduce, [each.value(v) for each in operands]), 9)
    if kind == "clip":
        inner, low, high = draw(part), draw(part), draw(part)
        text = f"clip({inner.text}, {low.text}, {high.text})"
        return Twin(text, lambda v: np.minimum(np.maximum(inner.value(v), low.value(v)), high.value(v)), 9)
    if kind == "truth":  # counts as 0 or 1
        held = draw(truths(depth - 1))
        return applied("*", held, draw(part))
    if kind == "floor":
        inner = draw(part)
        return Twin(f"floor({inner.text})", lambda v: np.floor(inner.value(v)), 9)
    inner, function = draw(part), UNARY[kind]
    return Twin(f"{kind}({inner.text})", lambda v: rounded(v, function(inner.value(v))), 9)


@st.composite
def truths(draw: st.DrawFn, depth: int) -> Twin:
    """What is true or false."""
    whole = numbers(max(depth - 1, 0), exact=True)
    kind = draw(
        st.sampled_from(
            ["compare", "chain"] if depth == 0 else ["compare", "chain", "and", "or", "not", "if"]
        )
    )
    if kind == "compare":
        return applied(draw(st.sampled_from(["<", "<=", ">", ">=", "==", "!="])), draw(whole), draw(whole))
    if kind == "chain":
        low, middle, high = draw(whole), draw(whole), draw(whole)
        text = f"{low.at(5)} <= {middle.at(5)} < {high.at(5)}"
        return Twin(
            text, lambda v: (low.value(v) <= middle.value(v)) & (middle.value(v) < high.value(v)), 4, True
        )
    first = draw(truths(depth - 1))
    if kind == "not":
        return Twin(f"not {first.at(3)}", lambda v: ~first.value(v), 3, True)
    second = draw(truths(depth - 1))
    if kind == "if":
        held = draw(truths(depth - 1))
        text = f"{first.at(1)} if {held.at(1)} else {second.at(0)}"
        return Twin(text, lambda v: np.where(held.value(v), first.value(v), second.value(v)), 0, True)
    level, joined = (2, np.logical_and) if kind == "and" else (1, np.logical_or)
    text = f"{first.at(level)} {kind} {second.at(level + 1)}"
    return Twin(text, lambda v: joined(first.value(v), second.value(v)), level, True)


def applied(operator: str, left: Twin, right: Twin) -> Twin:
    level, function = BINARY[operator]
    right_level = level + 1
    left_level = level + 1 if level == 4 else level
    text = f"{left.at(left_level)} {operator} {right.at(right_level)}"

    def value(values: Values) -> np.ndarray:
        first, second = left.value(values), right.value(values)
        return function(np.asarray(first, float), np.asarray(second, float))

    return Twin(text, value, level, level == 4)


def _folded(function: Callable[..., np.ndarray], parts: list[np.ndarray]) -> np.ndarray:
    whole = parts[0]
    for part in parts[1:]:
        whole = function(whole, part)
    return whole


def grids(dtype: torch.dtype = torch.float64) -> tuple[Tensor, tuple[Tensor, ...]]:
    """A score (B, H, Q, K) and the indices of each pair."""
    generator = torch.Generator().manual_seed(3)
    score = torch.randn(BATCH, HEADS, QUERIES, KEYS, generator=generator, dtype=torch.float64).to(dtype)
    return score, torch.meshgrid(*(torch.arange(n) for n in score.shape), indexing="ij")


def evaluated(text: str, dtype: torch.dtype = torch.float64) -> Tensor:
    score, indices = grids(dtype)
    return mod_of(text)(score, *indices)


def mod_of(text: str) -> flex.ScoreMod:
    return parse(text).score_mod(heads=HEADS, queries=QUERIES, keys=KEYS, width=WIDTH)


def values_of_names() -> Values:
    score, indices = grids()
    named_indices = dict(
        zip(("b", "h", "q_idx", "kv_idx"), (n.numpy().astype(float) for n in indices), strict=True)
    )
    sizes = {"n_q": QUERIES, "n_k": KEYS, "n_h": HEADS, "d_k": WIDTH, "pi": math.pi, "inf": math.inf}
    return {
        "score": score.numpy(), **named_indices, "k_idx": named_indices["kv_idx"],
        **{name: np.float64(size) for name, size in sizes.items()},
    }  # fmt: skip


def is_too_large(found: Expression | ExpressionError) -> bool:
    """Whether a text was refused for its size alone."""
    if isinstance(found, Expression):
        return False
    assert re.search("nested more than|numbers, names and operators|are the most", found.told), found.picture
    return True


@settings(max_examples=150)
@given(twin=numbers(4))
def test_an_expression_is_worth_what_its_twin_in_numpy_says(twin: Twin) -> None:
    if is_too_large(read(twin.text)):
        return
    found = evaluated(twin.text).numpy()
    values = values_of_names()
    with np.errstate(all="ignore"):
        expected, *noisy = (
            np.broadcast_to(np.asarray(twin.value(given_values), float), found.shape)
            for given_values in (
                values,
                *(values | {"noise": np.random.default_rng(seed)} for seed in range(6)),
            )
        )
        finite = np.isfinite(expected)
        spread = np.max([np.abs(one - expected) for one in noisy], axis=0)
        # Sums, products and quotients are exact alike. Where noise decides, as in the sine of 10²⁰, nothing is known.
        known = finite & (spread < 1e-3 * (1 + np.abs(expected)))
        off = np.abs(found - expected)[known]
    np.testing.assert_array_equal(found[~finite], expected[~finite])
    assert (off <= spread[known]).all(), twin.text


@settings(max_examples=60)
@given(twin=numbers(3), blanks=st.sampled_from(["  ", "\t", "\n", "\u00a0"]))
def test_blanks_and_parentheses_change_nothing(twin: Twin, blanks: str) -> None:
    plain = read(twin.text)
    others = read(f"({twin.text})"), read(blanks + twin.text.replace(" ", blanks) + blanks)
    if any(map(is_too_large, (plain, *others))):
        return
    assert [other.root for other in others] == [plain.root] * 2


@pytest.mark.parametrize(
    "text", ["(0 - 7) % 3", "7 % (0 - 3)", "(0 - 7) // 3", "7 // (0 - 3)", "-7 % -3", "-7 // 2 % 3"]
)
def test_division_rounds_down_as_in_python(text: str) -> None:
    tree = ast.parse(text, mode="eval").body
    assert evaluated(text).unique().tolist() == [python_value(tree)]


def python_value(node: ast.expr) -> float:
    """What Python's own operators make of a tree of whole numbers."""
    match node:
        case ast.Constant():
            return float(node.value)
        case ast.UnaryOp(op=ast.USub()):
            return -python_value(node.operand)
        case ast.BinOp():
            operators = {ast.Sub: operator.sub, ast.Mod: operator.mod, ast.FloorDiv: operator.floordiv}
            return operators[type(node.op)](python_value(node.left), python_value(node.right))
    raise AssertionError(ast.dump(node))


# --- The same tree as Python's parser -------------------------------------------------------------------------------

PYTHON = {
    ast.Add: "+", ast.Sub: "-", ast.Mult: "*", ast.Div: "/", ast.FloorDiv: "//", ast.Mod: "%", ast.Pow: "**",
    ast.USub: "negative", ast.UAdd: "positive", ast.Not: "not", ast.And: "and", ast.Or: "or",
    ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=", ast.Eq: "==", ast.NotEq: "!=",
}  # fmt: skip


def as_ours(node: ast.expr) -> Node:
    """A tree of Python's parser in our nodes."""
    match node:
        case ast.Constant():
            return Number(float(node.value))
        case ast.Name():
            return Name(node.id)
        case ast.BinOp():
            return Applied(PYTHON[type(node.op)], (as_ours(node.left), as_ours(node.right)))
        case ast.UnaryOp():
            return Applied(PYTHON[type(node.op)], (as_ours(node.operand),))
        case ast.BoolOp():
            first, *others = map(as_ours, node.values)
            for other in others:
                first = Applied(PYTHON[type(node.op)], (first, other))
            return first
        case ast.Compare():
            operands = [node.left, *node.comparators]
            pairs = zip(node.ops, operands[:-1], operands[1:], strict=True)
            first, *others = [Applied(PYTHON[type(op)], (as_ours(a), as_ours(b))) for op, a, b in pairs]
            for other in others:
                first = Applied("and", (first, other))
            return first
        case ast.IfExp():
            return Applied("where", tuple(map(as_ours, (node.test, node.body, node.orelse))))
        case ast.Call(func=ast.Name()):
            return Applied(node.func.id, tuple(map(as_ours, node.args)))
    raise AssertionError(ast.dump(node))


PARTS = (
    "score", "h", "q_idx", "2", "0.5", ".5", "1e2", "(", ")", "-", "+", "*", "/", "//", "%", "**", "<", "<=", "==",
    "and", "or", "not", "if", "else", "where(", "min(", ",", "abs(",
)  # fmt: skip


@settings(max_examples=200)
@given(parts=st.lists(st.sampled_from(PARTS), min_size=1, max_size=14))
@example(parts=["-", "2", "**", "-", "2", "**", "h"])
@example(
    parts=[
        "not",
        "h",
        "<",
        "2",
        "<",
        "score",
        "and",
        "h",
        "==",
        "2",
        "if",
        "score",
        "<",
        "h",
        "else",
        "score",
    ]
)
@example(parts=["score", "-", "h", "-", "2", "/", "h", "/", "2"])
@example(parts=["score", "if", "h", "<", "2", "else", "2", "if", "h", "==", "2", "else", "h"])
@example(parts=["2", "+", "not", "h"])
@example(parts=["2", "if", "h", "<", "2", "if", "h", "<", "2", "else", "h", "<", "2", "else", "h"])
def test_what_is_read_is_what_python_s_parser_reads(parts: list[str]) -> None:
    text = " ".join(parts)
    found = read(text)
    if isinstance(found, Expression):
        assert found.root == as_ours(ast.parse(text, mode="eval").body)


@settings(max_examples=60)
@given(twin=numbers(3))
def test_twins_too_are_read_as_python_reads_them(twin: Twin) -> None:
    found = read(twin.text)
    if not is_too_large(found):
        assert found.root == as_ours(ast.parse(twin.text, mode="eval").body)


# --- Bad input ------------------------------------------------------------------------------------------------------


GARBAGE = st.lists(st.sampled_from((*PARTS, "x", "§", "1e999", "\x00", "⁴", "٣")), max_size=20)


@settings(max_examples=250)
@given(text=st.text(max_size=60) | GARBAGE.map(" ".join))
@example(text="٣ + score")
@example(text="ｓcore")
@example(text="1_000")
@example(text="score.real")
@example(text="__import__('os')")
@example(text="[score for score in h]")
@example(text="lambda: score")
@example(text="score := 1")
def test_garbage_raises_the_parser_s_own_error_alone(text: str) -> None:
    found = read(text)
    if isinstance(found, Expression):
        score, indices = grids()
        assert mod_of(text)(score, *indices).shape == score.shape
        return
    assert 0 <= found.column <= len(found.text)
    told, line, caret = found.picture.split("\n")
    assert told == found.told
    assert len(line) == len(found.text) + 2
    assert caret.strip() == "^"


TRUE_OR_FALSE = "must be true or false; expected a comparison such as q_idx >= kv_idx."
A_MASK = "the whole is true or false but a score mod gives a number; write where(condition, score, -inf)."


@pytest.mark.parametrize(
    ("text", "column", "told"),
    [
        ("", 0, "expected a number, a name, a function or “(” but found the end."),
        ("1 +", 3, "expected a number, a name, a function or “(” but found the end."),
        ("score + * 2", 8, "expected a number, a name, a function or “(” but found “*”."),
        ("(score + 2", 10, "expected an operator or “)” for the “(” at character 1 but found the end."),
        ("score 2", 6, "expected an operator or the end but found “2”."),
        ("score)", 5, "expected an operator or the end but found “)”."),
        ("2 ^ h", 2, "unexpected “^”; write **."),
        ("q_idx ≥ h", 6, "unexpected “≥”; write >=."),
        ("٣ + score", 0, "unexpected “٣”, which no expression has."),
        ("score # 2", 6, "unexpected “#”, which no expression has."),
        ("score \x07", 6, "unexpected the character U+0007, which no expression has."),
        ("scor * 2", 0, "unknown name “scor”; did you mean score?"),
        ("score * import", 8, f"unknown name “import”; known are {', '.join([*NAMES, *FUNCTIONS])}."),
        ("abs score", 4, "abs is a function; expected “(” after it but found “score”."),
        ("h(2)", 1, "h is no function; expected an operator after it."),
        ("abs(1, 2)", 0, "abs takes 1 but is given 2: abs(x): without its sign."),
        ("1 + min(h)", 4, "min takes at least 2 but is given 1: min(x, y, …): the smallest."),
        ("clip(h, 2)", 0, "clip takes 3 but is given 2: clip(x, low, high): min(max(x, low), high)."),
        ("score if h", 10, "expected “else” and what counts otherwise but found the end."),
        ("score if h else 2", 9, f"a condition {TRUE_OR_FALSE}"),
        ("where(h, 1, 2)", 6, f"a condition {TRUE_OR_FALSE}"),
        ("1 if h < 2 and q_idx else 2", 15, f"what “and” takes {TRUE_OR_FALSE}"),
        ("1 if not h else 2", 9, f"what “not” takes {TRUE_OR_FALSE}"),
        ("2 + not h < 2", 4, "expected a number, a name, a function or “(” but found “not”."),
        (" h < 2", 1, A_MASK),
        ("1e400", 0, "the number is too large; write inf for infinity."),
        ("score ** 65", 9, "an exponent may be −64 to 64 but is 65 in size."),
        ("score ** -100", 9, "an exponent may be −64 to 64 but is 100 in size."),
    ],
)  # fmt: skip
def test_an_error_points_at_the_place_and_says_what_was_expected(text: str, column: int, told: str) -> None:
    with pytest.raises(ExpressionError) as caught:
        parse(text)
    assert (caught.value.column, caught.value.told) == (column, told)
    assert f"character {column + 1} of" in str(caught.value)


def test_the_caret_stands_below_wide_characters_too() -> None:
    with pytest.raises(ExpressionError) as caught:
        parse("漢\u0301 + 1")
    assert caught.value.picture.split("\n")[2] == "  ^"
    error = ExpressionError("here", "漢\u0301x", 2)
    assert error.picture == "here\n  漢\u0301x\n    ^"  # two cells for the first, none for its accent


@pytest.fixture
def little_stack() -> Iterator[None]:
    """Room for 400 more calls, of the 1,000 that Python has."""
    depth, frame, limit = 0, sys._getframe(), sys.getrecursionlimit()
    while frame is not None:
        frame, depth = frame.f_back, depth + 1
    sys.setrecursionlimit(depth + 400)
    yield
    sys.setrecursionlimit(limit)


@pytest.mark.usefixtures("little_stack")
@pytest.mark.parametrize("nested", ["(", "-", "+", "abs(", "2**", "1if h<1else ", "(1+", "min(1,", "2**(-"])
def test_deep_nesting_is_refused_before_the_stack_ends(nested: str) -> None:
    text = (nested * MOST_CHARACTERS)[:MOST_CHARACTERS]
    many = f"nested more than {MOST_NESTED} deep|more than {MOST_NODES} numbers, names"
    with pytest.raises(ExpressionError, match=many):
        parse(text)


@pytest.mark.usefixtures("little_stack")
@pytest.mark.parametrize(
    "text", ["-(" * 15 + "score" + ")" * 15, "score" + "-1" * 59, "abs(" * 31 + "h" + ")" * 31]
)
def test_the_deepest_trees_are_evaluated_before_the_stack_ends(text: str) -> None:
    assert evaluated(text).shape == (BATCH, HEADS, QUERIES, KEYS)


def test_the_limits_are_the_last_that_work() -> None:
    assert parse("(" * (MOST_NESTED) + "1" + ")" * MOST_NESTED).root == Number(1)
    with pytest.raises(ExpressionError, match="nested more than"):
        parse("(" * (MOST_NESTED + 1) + "1" + ")" * (MOST_NESTED + 1))
    long = "1" + "+1" * ((MOST_NODES - 1) // 2)
    found = evaluated(long)
    assert_close(found, torch.full_like(found, 1 + (MOST_NODES - 1) // 2))
    with pytest.raises(ExpressionError, match=f"more than {MOST_NODES} numbers, names and operators"):
        parse(long + "+1")
    assert parse("1".ljust(MOST_CHARACTERS)).root == Number(1)
    with pytest.raises(
        ExpressionError, match=f"has {MOST_CHARACTERS + 1} characters; {MOST_CHARACTERS} are the most"
    ):
        parse("1".ljust(MOST_CHARACTERS + 1))
    with pytest.raises(ExpressionError, match="1,000,000 characters"):
        parse("1" * 1_000_000)
    parse(f"score ** {MOST_EXPONENT} + score ** -{MOST_EXPONENT}")


def test_the_documented_grammar_is_the_module_s() -> None:
    lines = (expression.__doc__ or "").split("\n")
    grammar = "\n".join(line.removeprefix("    ") for line in lines if line.startswith("    "))
    assert f"```ebnf\n{grammar}\n```" in PAGE.read_text(encoding="utf-8")


def test_the_grammar_names_everything_that_is_read() -> None:
    """Every quoted word is known to the parser, and every name, function and operator is quoted."""
    quoted = set(re.findall(r'"([^"]+)"', expression.__doc__ or "")) - {".", "e", "E"}
    signs = {"negative": "-", "positive": "+"}
    operators = {signs.get(name, name) for name in OPERATORS}
    assert quoted == {*NAMES, *FUNCTIONS, *operators, "if", "else", "(", ")", ","}


# --- As a score mod -------------------------------------------------------------------------------------------------

PYTHON_MODS: dict[str, flex.ScoreMod] = {
    "score - 0.5 * abs(q_idx - k_idx)": lambda s, b, h, q, k: s - 0.5 * (q - k).abs(),
    "where(kv_idx <= q_idx, score, -inf)": lambda s, b, h, q, k: torch.where(k <= q, s, -math.inf),
    "score if q_idx - 2 < k_idx <= q_idx + 1 else -inf": lambda s, b, h, q, k: torch.where(
        (q - 2 < k) & (k <= q + 1), s, -math.inf
    ),
    "2 * tanh(score / 2) + b": lambda s, b, h, q, k: 2 * torch.tanh(s / 2) + b,
    "score * (h + 1) / n_h - (q_idx // 2 != kv_idx // 2)": lambda s, b, h, q, k: (
        s * (h + 1) / HEADS - (q // 2 != k // 2).to(s.dtype)
    ),
    "clip(score, -1, 1) ** 2 % 0.7": lambda s, b, h, q, k: s.clamp(-1, 1) ** 2 % 0.7,
    "0": lambda s, b, h, q, k: torch.zeros_like(s),
    "max(score, sigmoid(d_k - n_q - n_k), cos(pi * q_idx))": lambda s, b, h, q, k: torch.maximum(
        torch.clamp(s, min=torch.sigmoid(torch.tensor(-2.0, dtype=torch.float64)).item()),
        torch.cos(math.pi * q),
    ),
}  # fmt: skip


@uncompiled
@pytest.mark.parametrize("text", PYTHON_MODS)
@pytest.mark.parametrize("impl", ["reference", "torch"])
def test_flex_attention_takes_it_as_the_same_mod_written_in_python(text: str, impl: str) -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(BATCH, HEADS, QUERIES, WIDTH, generator=generator)
    key, value = torch.randn(2, BATCH, HEADS, KEYS, WIDTH, generator=generator)
    found = flex_attention(query, key, value, score_mod=mod_of(text), impl=impl)
    expected = flex_reference(query, key, value, score_mod=PYTHON_MODS[text])
    assert_close(found.context, expected.context)
    assert_close(found.lse, expected.lse)


def test_one_pair_alone_and_all_pairs_together_agree() -> None:
    mod = mod_of("where(q_idx >= kv_idx, score - h * b, q_idx % 2)")
    score, indices = grids()
    whole = mod(score, *indices)
    for place in np.ndindex(*score.shape):
        alone = mod(score[place], *(torch.tensor(index) for index in place))
        assert alone.shape == ()
        assert alone == whole[place]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_indices_stay_exact_in_half_precision(dtype: torch.dtype) -> None:
    mod = parse("where(kv_idx == 1001, 1, 0)").score_mod(heads=1, queries=1, keys=1200, width=1)
    zero = torch.zeros(1, dtype=torch.long)
    found = mod(torch.zeros(1200, dtype=dtype), zero, zero, zero, torch.arange(1200))
    assert found.dtype == dtype
    assert found.nonzero().flatten().tolist() == [1001]


def test_alibi_typed_by_hand_is_alibi() -> None:
    score, indices = grids()
    found = mod_of("score - 2 ** (-8 * (h + 1) / n_h) * abs(q_idx - kv_idx)")(score, *indices)
    assert_close(found, flex.alibi(HEADS)(score, *indices))
    assert alibi_slopes(HEADS).shape == (HEADS,)


def test_gradients_flow_through_an_expression() -> None:
    score, indices = grids()
    score = score.requires_grad_()
    mod = mod_of("where(kv_idx <= q_idx, 2 * tanh(score / 2), score ** 2)")
    assert torch.autograd.gradcheck(lambda s: mod(s, *indices), (score,))


# --- Scores that cannot be used -------------------------------------------------------------------------------------


def test_the_first_unusable_score_is_found_among_allowed_pairs() -> None:
    scores = torch.zeros(1, 1, 3, 4)
    assert first_unusable(scores, None) is None
    scores[0, 0, 1] = -math.inf
    assert first_unusable(scores, None) is None, "−∞ forbids a pair"
    scores[0, 0, 2, 1] = math.inf
    scores[0, 0, 2, 3] = math.nan
    assert first_unusable(scores, None) == (0, 0, 2, 1)
    allowed = torch.ones(3, 4, dtype=torch.bool)
    allowed[2, 1] = False
    assert first_unusable(scores, allowed) == (0, 0, 2, 3)
    allowed[2, 3] = False
    assert first_unusable(scores, allowed) is None
