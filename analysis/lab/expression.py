"""A score mod typed as an arithmetic expression: read by a small parser, evaluated on tensors, never run as code.

The grammar, in EBNF; operators bind as in Python::

    score_mod   = expression ;
    expression  = disjunction , [ "if" , disjunction , "else" , expression ] ;
    disjunction = conjunction , { "or" , conjunction } ;
    conjunction = negation , { "and" , negation } ;
    negation    = "not" , negation | comparison ;
    comparison  = sum , { ( "<" | "<=" | ">" | ">=" | "==" | "!=" ) , sum } ;
    sum         = product , { ( "+" | "-" ) , product } ;
    product     = signed , { ( "*" | "/" | "//" | "%" ) , signed } ;
    signed      = ( "+" | "-" ) , signed | power ;
    power       = atom , [ "**" , signed ] ;
    atom        = number | name | call | "(" , expression , ")" ;
    call        = function , "(" , expression , { "," , expression } , ")" ;
    number      = digits , [ "." , [ digits ] ] , [ exponent ] | "." , digits , [ exponent ] ;
    exponent    = ( "e" | "E" ) , [ "+" | "-" ] , digits ;
    name        = "score" | "b" | "h" | "q_idx" | "kv_idx" | "k_idx" | "n_q" | "n_k" | "n_h" | "d_k" | "pi" | "inf" ;
    function    = "abs" | "exp" | "log" | "sqrt" | "tanh" | "sigmoid" | "sin" | "cos" | "floor"
                | "min" | "max" | "clip" | "where" ;
    digits      = digit , { digit } ;

An expression gives a number or a truth. ``and``, ``or``, ``not`` and conditions want truths, which comparisons give;
elsewhere a truth counts as 0 or 1; the whole must give a number. ``a < b < c`` means that both hold. Everything is
computed elementwise and in floating point, at least float32, both branches of a condition too.
"""

from __future__ import annotations

import difflib
import math
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor

from attn_core.functional import at_least_float32
from attn_core.variants.flex import ScoreMod

MOST_CHARACTERS = 400
MOST_NODES = 120
"""Numbers, names, operators and calls of an expression."""

MOST_NESTED = 32
"""Operands within operands; parentheses, signs and right-hand sides count."""

MOST_EXPONENT = 64
"""Size of an exponent that is written as a number."""

Kind = Literal["number", "truth"]


class ExpressionError(ValueError):
    """An expression that is no score mod.

    Attributes:
        text: the expression; ``column``: the character that is meant, from 0, len(text) for its end.
        told: what is wrong there and what was expected.
    """

    def __init__(self, told: str, text: str, column: int) -> None:
        self.told, self.text, self.column = told, text, column
        super().__init__(f"parse: {told} (character {column + 1} of {text!r})")

    @property
    def picture(self) -> str:
        """What is told, the expression in one line, and a caret below the character that is meant."""
        line = "".join(char if char.isprintable() else " " for char in self.text)
        return f"{self.told}\n  {line}\n  {' ' * sum(map(_cells, line[: self.column]))}^"


def _cells(char: str) -> int:
    """How wide a character stands in a line of equal widths."""
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


# --- What an expression is made of ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Number:
    """A number that is written out."""

    value: float


@dataclass(frozen=True)
class Name:
    """An index, a size, a constant or the score."""

    name: str


@dataclass(frozen=True)
class Applied:
    """An operator or a function with its operands, first to last; the sign alone is "negative" and "positive"."""

    operation: str
    operands: tuple[Node, ...]


Node = Number | Name | Applied

NAMES: Mapping[str, str] = MappingProxyType(
    {
        "score": "scaled score of the pair, before the mask",
        "b": "batch item",
        "h": "head, from 0",
        "q_idx": "query, from 0",
        "kv_idx": "key, from 0",
        "k_idx": "the same as kv_idx",
        "n_q": "number of queries",
        "n_k": "number of keys",
        "n_h": "number of heads",
        "d_k": "width of a query and a key",
        "pi": "3.14159 …",
        "inf": "infinity; −inf forbids a pair",
    }
)
"""Every name with what it stands for."""

CONSTANTS: Mapping[str, float] = MappingProxyType({"pi": math.pi, "inf": math.inf})


@dataclass(frozen=True)
class Operation:
    """What an operator or a function does.

    Attributes:
        compute: on tensors; numbers in the score's dtype, truths bool.
        least, most: how many operands; ``most`` None = any number.
        about: of a function, in words.
        truths: operands from the first on that must be truths, the others are taken as numbers.
        gives: what comes out; None = what the operands after the condition are.
    """

    compute: Callable[..., Tensor]
    least: int = 2
    most: int | None = 2
    about: str = ""
    truths: int = 0
    gives: Kind | None = "number"


def _floor_divided(left: Tensor, right: Tensor) -> Tensor:
    return torch.div(left, right, rounding_mode="floor") + 0.0  # 0, never −0, so that 1 / it has one sign


def _remainder(left: Tensor, right: Tensor) -> Tensor:
    return torch.remainder(left, right) + 0.0


def _least(*operands: Tensor) -> Tensor:
    return reduce(torch.minimum, operands)


def _largest(*operands: Tensor) -> Tensor:
    return reduce(torch.maximum, operands)


def _clipped(number: Tensor, low: Tensor, high: Tensor) -> Tensor:
    return torch.minimum(torch.maximum(number, low), high)


FUNCTIONS: Mapping[str, Operation] = MappingProxyType(
    {
        "abs": Operation(torch.abs, 1, 1, "abs(x): without its sign"),
        "exp": Operation(torch.exp, 1, 1, "exp(x): e to the x"),
        "log": Operation(torch.log, 1, 1, "log(x): natural logarithm"),
        "sqrt": Operation(torch.sqrt, 1, 1, "sqrt(x): square root"),
        "tanh": Operation(torch.tanh, 1, 1, "tanh(x): hyperbolic tangent, −1 to 1"),
        "sigmoid": Operation(torch.sigmoid, 1, 1, "sigmoid(x): 1 / (1 + exp(−x))"),
        "sin": Operation(torch.sin, 1, 1, "sin(x): sine of x radians"),
        "cos": Operation(torch.cos, 1, 1, "cos(x): cosine of x radians"),
        "floor": Operation(torch.floor, 1, 1, "floor(x): next whole number below"),
        "min": Operation(_least, 2, None, "min(x, y, …): the smallest"),
        "max": Operation(_largest, 2, None, "max(x, y, …): the largest"),
        "clip": Operation(_clipped, 3, 3, "clip(x, low, high): min(max(x, low), high)"),
        "where": Operation(torch.where, 3, 3, "where(condition, x, y): x where it holds, else y", 1, None),
    }
)

OPERATORS: Mapping[str, Operation] = MappingProxyType(
    {
        "or": Operation(torch.logical_or, truths=2, gives="truth"),
        "and": Operation(torch.logical_and, truths=2, gives="truth"),
        "not": Operation(torch.logical_not, 1, 1, truths=1, gives="truth"),
        "<": Operation(torch.lt, gives="truth"),
        "<=": Operation(torch.le, gives="truth"),
        ">": Operation(torch.gt, gives="truth"),
        ">=": Operation(torch.ge, gives="truth"),
        "==": Operation(torch.eq, gives="truth"),
        "!=": Operation(torch.ne, gives="truth"),
        "+": Operation(torch.add),
        "-": Operation(torch.sub),
        "*": Operation(torch.mul),
        "/": Operation(torch.div),
        "//": Operation(_floor_divided),
        "%": Operation(_remainder),
        "negative": Operation(torch.neg, 1, 1),
        "positive": Operation(torch.clone, 1, 1),
        "**": Operation(torch.pow),
    }
)

OPERATIONS: Mapping[str, Operation] = MappingProxyType({**OPERATORS, **FUNCTIONS})


@dataclass(frozen=True)
class Expression:
    """An expression that was read.

    Attributes:
        text: as it was typed.
        root: what it says, as a tree.
    """

    text: str
    root: Node

    def score_mod(self, *, heads: int, queries: int, keys: int, width: int) -> ScoreMod:
        """The expression as a score mod of FlexAttention, for maps of these sizes.

        Args:
            heads, queries, keys, width: what n_h, n_q, n_k and d_k stand for.
        Returns:
            (score, batch, head, query, key) -> score, elementwise on tensors that broadcast to the score; in the
            score's dtype and shape.
        """
        sizes = {"n_h": float(heads), "n_q": float(queries), "n_k": float(keys), "d_k": float(width)}

        def modified(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            wide = at_least_float32(score)
            indices = {"b": batch, "h": head, "q_idx": query, "kv_idx": key, "k_idx": key}
            values = {name: index.to(wide.dtype) for name, index in indices.items()}
            values |= {name: _filled(number, wide) for name, number in (sizes | dict(CONSTANTS)).items()}
            values["score"] = wide
            return _value(self.root, values, wide).to(score.dtype).broadcast_to(score.shape)

        return modified


def _filled(number: float, like: Tensor) -> Tensor:
    return torch.full((), number, dtype=like.dtype, device=like.device)


def _value(node: Node, values: Mapping[str, Tensor], like: Tensor) -> Tensor:
    """What a node is worth, a number in the dtype of ``like`` or a bool."""
    if isinstance(node, Number):
        return _filled(node.value, like)
    if isinstance(node, Name):
        return values[node.name]
    operation = OPERATIONS[node.operation]
    found = [_value(operand, values, like) for operand in node.operands]
    if operation.gives is not None or _kind(node) == "number":  # else a condition chooses between truths
        found[operation.truths :] = [each.to(like.dtype) for each in found[operation.truths :]]
    return operation.compute(*found)


def _kind(node: Node) -> Kind:
    if not isinstance(node, Applied):
        return "number"
    operation = OPERATIONS[node.operation]
    if operation.gives is not None:
        return operation.gives
    kinds = {_kind(operand) for operand in node.operands[operation.truths :]}
    return "truth" if kinds == {"truth"} else "number"


def first_unusable(scores: Tensor, allowed: Tensor | None) -> tuple[int, ...] | None:
    """Where scores after a mod first cannot be used: NaN or +∞ at a pair that may attend.

    Args:
        scores: (..., Q, K) after the mod.
        allowed: bool, broadcasts to scores; None = all pairs.
    Returns:
        The index into ``scores``, in reading order, or None where all are numbers or −∞.
    """
    bad = scores.isnan() | scores.isposinf()
    if allowed is not None:
        bad = bad & allowed
    places = bad.nonzero()
    return tuple(places[0].tolist()) if len(places) else None


# --- Tokens ---------------------------------------------------------------------------------------------------------

_TOKEN = re.compile(
    r"(?P<number>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?)"
    r"|(?P<word>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<sign>\*\*|//|<=|>=|==|!=|[-+*/%<>(),])",
    re.ASCII,
)
_OURS = MappingProxyType(
    {
        "^": "**", "=": "==", "&": "and", "|": "or", "!": "not", "~": "not", "−": "-", "–": "-", "×": "*", "·": "*",
        "÷": "/", "≤": "<=", "≥": ">=", "≠": "!=", "∞": "inf", "π": "pi", "√": "sqrt()", "[": "(", "]": ")",
        "{": "(", "}": ")",
    }
)  # fmt: skip
"""Signs of other notations, with what stands for them here."""

_WORDS = ("if", "else", "and", "or", "not")


@dataclass(frozen=True)
class _Token:
    sort: Literal["number", "word", "sign", "end"]
    text: str
    column: int

    @property
    def shown(self) -> str:
        return "the end" if self.sort == "end" else f"“{self.text}”"


def _tokens(text: str) -> list[_Token]:
    found, column = [], 0
    while column < len(text):
        if text[column].isspace():
            column += 1
            continue
        match = _TOKEN.match(text, column)
        if match is None:
            sign = text[column]
            hint = f"; write {_OURS[sign]}" if sign in _OURS else ", which no expression has"
            raise ExpressionError(f"unexpected {_quoted(sign)}{hint}.", text, column)
        sort: Literal["number", "word", "sign"] = match.lastgroup  # type: ignore[assignment]
        found.append(_Token(sort, match.group(), column))
        column = match.end()
    return [*found, _Token("end", "", len(text))]


def _quoted(char: str) -> str:
    return f"“{char}”" if char.isprintable() else f"the character U+{ord(char):04X}"


# --- Parser ---------------------------------------------------------------------------------------------------------

_CONDITION, _NOT, _COMPARISON, _SIGNED, _POWER = 0, 3, 4, 7, 8
_BINDING: Mapping[str, int] = MappingProxyType(
    {"or": 1, "and": 2}
    | dict.fromkeys(("<", "<=", ">", ">=", "==", "!="), _COMPARISON)
    | {"+": 5, "-": 5, "*": 6, "/": 6, "//": 6, "%": 6, "**": _POWER}
)
"""How strongly an operator between two operands holds them."""

_OPERAND = "a number, a name, a function or “(”"


def parse(text: str) -> Expression:
    """The expression that a text says; see the module for the grammar.

    Args:
        text: at most ``MOST_CHARACTERS`` characters and ``MOST_NODES`` nodes, ``MOST_NESTED`` operands within others.
    Raises:
        ExpressionError: for everything else, with the place and what was expected there.
    """
    if len(text) > MOST_CHARACTERS:
        raise ExpressionError(
            f"the expression has {len(text):,} characters; {MOST_CHARACTERS} are the most.",
            text[: MOST_CHARACTERS + 1],
            MOST_CHARACTERS,
        )
    reader = _Reader(text)
    root = reader.expression(_CONDITION, 0)
    end = reader.take()
    if end.sort != "end":
        raise ExpressionError(f"expected an operator or the end but found {end.shown}.", text, end.column)
    if _kind(root) == "truth":
        start = reader.tokens[0].column
        raise ExpressionError(
            "the whole is true or false but a score mod gives a number; write where(condition, score, -inf).",
            text,
            start,
        )
    return Expression(text, root)


class _Reader:
    """Reads tokens from left to right, by the strength of operators (Pratt 1973)."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens = _tokens(text)
        self.place = 0
        self.nodes = 0

    def take(self) -> _Token:
        token = self.tokens[self.place]
        self.place += token.sort != "end"
        return token

    @property
    def next(self) -> _Token:
        return self.tokens[self.place]

    def expression(self, least: int, depth: int) -> Node:
        """An operand with all operators after it that bind at least so strongly."""
        if depth > MOST_NESTED:
            raise ExpressionError(
                f"nested more than {MOST_NESTED} deep; write it flatter.", self.text, self.next.column
            )
        start = self.next
        node = self.operand(least, depth)
        while (binding := _BINDING.get(self.next.text, -1)) >= max(least, 1):
            if binding == _COMPARISON:
                node = self.comparisons(node, start, depth)
                continue
            operator, right_start = self.take(), self.next
            right = self.expression(_SIGNED if binding == _POWER else binding + 1, depth + 1)
            if operator.text == "**":
                self.check_exponent(right, right_start)
            node = self.applied(operator, (node, right), (start, right_start))
        if least == _CONDITION and self.next.text == "if":
            node = self.condition(node, start, depth)
        return node

    def operand(self, least: int, depth: int) -> Node:
        """A sign or ``not`` with its operand, or an atom."""
        token = self.take()
        if token.text in ("+", "-") and least <= _SIGNED:
            start = self.next
            inner = self.expression(_SIGNED, depth + 1)
            named = _Token("sign", "negative" if token.text == "-" else "positive", token.column)
            return self.applied(named, (inner,), (start,))
        if token.text == "not" and least <= _NOT:
            start = self.next
            return self.applied(token, (self.expression(_NOT, depth + 1),), (start,))
        if token.sort == "number":
            return self.number(token)
        if token.text == "(":
            node = self.expression(_CONDITION, depth + 1)
            self.close(token)
            return node
        if token.sort == "word" and token.text not in _WORDS:
            return self.word(token, depth)
        raise ExpressionError(f"expected {_OPERAND} but found {token.shown}.", self.text, token.column)

    def comparisons(self, left: Node, left_start: _Token, depth: int) -> Node:
        """``a < b < c`` as ``a < b and b < c``."""
        whole: Node | None = None
        first = self.next
        while _BINDING.get(self.next.text) == _COMPARISON:
            operator, right_start = self.take(), self.next
            right = self.expression(_COMPARISON + 1, depth + 1)
            held = self.applied(operator, (left, right), (left_start, right_start))
            joined = _Token("word", "and", operator.column)
            whole = held if whole is None else self.applied(joined, (whole, held), (first, first))
            left, left_start = right, right_start
        assert whole is not None
        return whole

    def condition(self, node: Node, start: _Token, depth: int) -> Node:
        """``node if condition else expression``, as ``where(condition, node, expression)``."""
        word, held_start = self.take(), self.next
        held = self.expression(1, depth + 1)
        found = self.take()
        if found.text != "else":
            raise ExpressionError(
                f"expected “else” and what counts otherwise but found {found.shown}.",
                self.text,
                found.column,
            )
        other_start = self.next
        other = self.expression(_CONDITION, depth + 1)
        where = _Token("word", "where", word.column)
        return self.applied(where, (held, node, other), (held_start, start, other_start))

    def number(self, token: _Token) -> Node:
        value = float(token.text)
        if math.isinf(value):
            raise ExpressionError("the number is too large; write inf for infinity.", self.text, token.column)
        self.count(token)
        return Number(value)

    def word(self, token: _Token, depth: int) -> Node:
        """A name, or a call."""
        name = token.text
        if name in FUNCTIONS:
            if self.next.text != "(":
                raise ExpressionError(
                    f"{name} is a function; expected “(” after it but found {self.next.shown}.",
                    self.text,
                    self.next.column,
                )
            return self.call(token, depth)
        if name not in NAMES:
            near = difflib.get_close_matches(name, [*NAMES, *FUNCTIONS], n=1, cutoff=0.7)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join([*NAMES, *FUNCTIONS])}."
            raise ExpressionError(f"unknown name “{name}”; {hint}", self.text, token.column)
        if self.next.text == "(":
            raise ExpressionError(
                f"{name} is no function; expected an operator after it.", self.text, self.next.column
            )
        self.count(token)
        return Name(name)

    def call(self, token: _Token, depth: int) -> Node:
        opened = self.take()
        operands: list[Node] = []
        starts: list[_Token] = []
        while not operands or self.next.text == ",":
            if operands:
                self.take()
            starts.append(self.next)
            operands.append(self.expression(_CONDITION, depth + 1))
        operation = FUNCTIONS[token.text]
        if len(operands) < operation.least or (operation.most is not None and len(operands) > operation.most):
            count = str(operation.least) if operation.most else f"at least {operation.least}"
            raise ExpressionError(
                f"{token.text} takes {count} but is given {len(operands)}: {operation.about}.",
                self.text,
                token.column,
            )
        self.close(opened)
        return self.applied(token, tuple(operands), tuple(starts))

    def close(self, opened: _Token) -> None:
        token = self.take()
        if token.text != ")":
            raise ExpressionError(
                f"expected an operator or “)” for the “(” at character {opened.column + 1} "
                f"but found {token.shown}.",
                self.text,
                token.column,
            )

    def applied(self, token: _Token, operands: tuple[Node, ...], starts: tuple[_Token, ...]) -> Node:
        """The operation on operands that begin at ``starts``."""
        self.count(token)
        node = Applied(token.text, operands)
        for operand, start in list(zip(operands, starts, strict=True))[: OPERATIONS[token.text].truths]:
            if _kind(operand) != "truth":
                wanting = "a condition" if token.text == "where" else f"what “{token.text}” takes"
                raise ExpressionError(
                    f"{wanting} must be true or false; expected a comparison such as q_idx >= kv_idx.",
                    self.text,
                    start.column,
                )
        return node

    def count(self, token: _Token) -> None:
        self.nodes += 1
        if self.nodes > MOST_NODES:
            raise ExpressionError(
                f"more than {MOST_NODES} numbers, names and operators; write it shorter.",
                self.text,
                token.column,
            )

    def check_exponent(self, node: Node, start: _Token) -> None:
        if isinstance(node, Applied) and node.operation in ("negative", "positive"):
            node = node.operands[0]
        if isinstance(node, Number) and node.value > MOST_EXPONENT:
            raise ExpressionError(
                f"an exponent may be −{MOST_EXPONENT} to {MOST_EXPONENT} but is {node.value:g} in size.",
                self.text,
                start.column,
            )
