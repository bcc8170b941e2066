"""What of attention changes when tokens are shuffled, and what does not, measured against the error of rounding.

attention(A query, B key, B value) = A attention(query, key, value) for permutations A and B, as long as nothing tells
where a token stands (Lee et al. 2019). Every output comes from ``attn_core`` in float32; a difference
that rounding can explain counts as none.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from analysis.figure_lab import MatrixSheet, NamedMatrix
from analysis.lab.inputs import LabVectors
from analysis.lab.masks import random_bias
from attn_core.bias import RelativeBias
from attn_core.functional import attention
from attn_core.mask_rules import causal_rule
from attn_core.positions import alibi_bias, rotary, sinusoidal_positions
from attn_core.variants.linear import linear_attention, linear_attention_weights

Matrix = NDArray[np.floating]
Mechanism = Literal["plain", "causal", "sinusoidal", "rotary", "alibi", "relative", "linear"]
MECHANISMS: tuple[Mechanism, ...] = get_args(Mechanism)
Shuffle = Literal["queries", "keys_values", "keys", "tokens"]
SHUFFLES: tuple[Shuffle, ...] = get_args(Shuffle)

UNIT = 2.0**-24
"""Largest relative error of one float32 operation."""

MECHANISM_WORDS: Mapping[Mechanism, str] = {
    "plain": "plain attention",
    "causal": "causal attention",
    "sinusoidal": "attention with sinusoids added",
    "rotary": "attention with rotary positions",
    "alibi": "attention with ALiBi",
    "relative": "attention with a relative bias",
    "linear": "linear attention",
}
SHORT_WORDS: Mapping[Mechanism, str] = {
    "plain": "plain",
    "causal": "causal",
    "sinusoidal": "sinusoids",
    "rotary": "rotary",
    "alibi": "ALiBi",
    "relative": "relative bias",
    "linear": "linear",
}


# Mechanisms ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class _Run:
    """Weights (1, 1, N, N), context (1, 1, N, E) and how far rounding may have moved each number of it."""

    weights: Tensor
    context: Tensor
    error: Tensor


@dataclass(frozen=True)
class _Place:
    """Which head of how many is computed; ALiBi and the relative bias differ by head."""

    head: int
    heads: int


def _softmax_run(
    query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False, bias: RelativeBias | None = None
) -> _Run:
    output = attention(query, key, value, rule=causal_rule() if causal else None, bias=bias)
    error = _softmax_error(query, key, value, output.weights, output.lse, bias)
    return _Run(output.weights, output.context, error)


def _softmax_error(
    query: Tensor, key: Tensor, value: Tensor, weights: Tensor, lse: Tensor, bias: RelativeBias | None
) -> Tensor:
    """A first-order bound of rounding in softmax(Q Kᵀ · scale + bias) V, whatever the order of its sums.

    A sum of n products is off by at most n units of the sum of their sizes (Higham 2002, section 3.1). An error of
    the scores moves a weight by at most twice as much of itself, since the log-sum-exp moves too.
    """
    width, keys = query.shape[3], key.shape[2]
    sizes = query.abs() @ key.abs().mT / math.sqrt(width)  # (1, 1, N, N)
    scores = (width + 2) * UNIT * sizes
    if bias is not None:
        scores = scores + UNIT * (sizes + bias.dense().abs())
    logs = weights.clamp_min(torch.finfo(weights.dtype).tiny).log().abs()  # |score − lse|
    relative = 2 * scores.amax(-1, keepdim=True) + UNIT * (keys + 8 + lse.abs()[..., None] + logs)
    return (weights * (relative + keys * UNIT)) @ value.abs()


def _linear_run(query: Tensor, key: Tensor, value: Tensor) -> _Run:
    """As ``_softmax_run``; features are positive, so that each sum is off by a share of itself alone."""
    weights = linear_attention_weights(query, key)
    steps = 2 * (query.shape[3] + key.shape[2] + 7)
    error = steps * UNIT * (weights @ value.abs())
    return _Run(weights, linear_attention(query, key, value).context, error)


def _sinusoidal_run(query: Tensor, key: Tensor, value: Tensor, _place: _Place) -> _Run:
    moved = (part + sinusoidal_positions(_places(part), part.shape[3]) for part in (query, key, value))
    return _softmax_run(*moved)


def _rotary_run(query: Tensor, key: Tensor, value: Tensor, _place: _Place) -> _Run:
    return _softmax_run(rotary(query, _places(query)), rotary(key, _places(key)), value)


def _alibi_run(query: Tensor, key: Tensor, value: Tensor, place: _Place) -> _Run:
    bias = alibi_bias(place.heads, query.shape[2], key.shape[2]).of_head(place.head)
    return _softmax_run(query, key, value, bias=bias)


def _relative_run(query: Tensor, key: Tensor, value: Tensor, place: _Place) -> _Run:
    table = random_bias(place.heads, query.shape[2]).of_head(place.head).table
    bias = RelativeBias.of(table.to(query.dtype), queries=query.shape[2], keys=key.shape[2])
    return _softmax_run(query, key, value, bias=bias)


def _places(part: Tensor) -> Tensor:
    return torch.arange(part.shape[2])


_RUNS: Mapping[Mechanism, Callable[[Tensor, Tensor, Tensor, _Place], _Run]] = {
    "plain": lambda query, key, value, place: _softmax_run(query, key, value),
    "causal": lambda query, key, value, place: _softmax_run(query, key, value, causal=True),
    "sinusoidal": _sinusoidal_run,
    "rotary": _rotary_run,
    "alibi": _alibi_run,
    "relative": _relative_run,
    "linear": lambda query, key, value, place: _linear_run(query, key, value),
}


# Shuffles -----------------------------------------------------------------------------------------------------------


def shuffled_order(tokens: int, seed: int) -> tuple[int, ...]:
    """Which token comes to each place; another order than before where there are two tokens or more.

    Raises:
        ValueError: without tokens.
    """
    if tokens < 1:
        raise ValueError(f"shuffled_order: tokens must be at least 1 but is {tokens}; pass some.")
    order = torch.randperm(tokens, generator=torch.Generator().manual_seed(seed)).tolist()
    return tuple(order if order != sorted(order) else order[1:] + order[:1])


@dataclass(frozen=True, eq=False)
class Shuffled:
    """One mechanism before and after a shuffle.

    Attributes:
        mechanism, shuffle: which.
        before, after, restored: (N, N) weights; the last with rows and columns put back.
        output, output_after, output_restored: (N, E) the same of the output.
        difference: largest |output_restored − output|; ``bound``: how much of it rounding can explain.
        order: which token came to each place.
        tokens: N labels, before; ``source``: where the vectors come from.
    """

    mechanism: Mechanism
    shuffle: Shuffle
    before: Matrix
    after: Matrix
    restored: Matrix
    output: Matrix
    output_after: Matrix
    output_restored: Matrix
    difference: float
    bound: float
    order: tuple[int, ...]
    tokens: tuple[str, ...]
    source: str

    @property
    def holds(self) -> bool:
        """Whether the output is the same but for its order, as far as float32 can tell."""
        return self.difference <= self.bound


def shuffled(
    vectors: LabVectors, head: int, mechanism: Mechanism, shuffle: Shuffle, *, seed: int
) -> Shuffled:
    """Run one head before and after a shuffle.

    Args:
        vectors: of all heads, so that ALiBi has the slope of this one.
        seed: of the order.
    Raises:
        ValueError: if there is no such head, or the width is odd and the positions want pairs of channels.
    """
    one = vectors.head(head)
    place = _Place(head, vectors.query.shape[0])
    query, key, value = (part[None].float() for part in (one.query, one.key, one.value))
    order = torch.tensor(shuffled_order(len(one.tokens), seed))
    back = order.argsort()
    rows = shuffle in ("queries", "tokens")
    columns = shuffle != "queries"
    run = _RUNS[mechanism]
    before = run(query, key, value, place)
    after = run(
        query[:, :, order] if rows else query,
        key[:, :, order] if columns else key,
        value[:, :, order] if shuffle in ("keys_values", "tokens") else value,
        place,
    )
    restored, context = after.weights, after.context
    if rows:
        restored, context = restored[:, :, back], context[:, :, back]
    if columns:
        restored = restored[..., back]
    return Shuffled(
        mechanism=mechanism,
        shuffle=shuffle,
        before=_plain(before.weights),
        after=_plain(after.weights),
        restored=_plain(restored),
        output=_plain(before.context),
        output_after=_plain(after.context),
        output_restored=_plain(context),
        difference=float((context - before.context).abs().max()),
        bound=2 * float(before.error.max()),  # both runs round, each by as much
        order=tuple(order.tolist()),
        tokens=one.tokens,
        source=one.source,
    )


def _plain(tensor: Tensor) -> Matrix:
    found: Matrix = tensor[0, 0].numpy().copy()
    return found


def shuffle_table(vectors: LabVectors, head: int, *, seed: int) -> dict[Mechanism, dict[Shuffle, Shuffled]]:
    """Every mechanism under every shuffle."""
    return {
        mechanism: {shuffle: shuffled(vectors, head, mechanism, shuffle, seed=seed) for shuffle in SHUFFLES}
        for mechanism in MECHANISMS
    }


# Figures ------------------------------------------------------------------------------------------------------------


def shuffle_sheet(found: Shuffled) -> MatrixSheet:
    """Weights and output before, after, put back, and what is left of a difference."""
    moved = tuple(found.tokens[place] for place in found.order)
    rows = moved if found.shuffle in ("queries", "tokens") else found.tokens
    columns = moved if found.shuffle != "queries" else found.tokens
    channels = tuple(str(channel) for channel in range(found.output.shape[1]))
    tokens = found.tokens
    change, output_change = found.restored - found.before, found.output_restored - found.output
    weights_end = _largest(found.before, found.after, change) or None
    output_end = _largest(found.output, found.output_after, output_change) or None

    def weights(name: str, values: Matrix, rows: tuple[str, ...], columns: tuple[str, ...]) -> NamedMatrix:
        return NamedMatrix(name, values, rows, columns, "weights", weights_end, "", ("query", "key"))

    def output(name: str, values: Matrix, rows: tuple[str, ...]) -> NamedMatrix:
        return NamedMatrix(name, values, rows, channels, "signed", output_end, "", ("query", "channel"))

    return MatrixSheet(
        (
            weights("Weights before", found.before, tokens, tokens),
            weights("Weights after", found.after, rows, columns),
            weights("Weights put back", found.restored, tokens, tokens),
            NamedMatrix(
                "Difference of weights",
                change,
                tokens,
                tokens,
                "signed",
                weights_end,
                f"largest {size_text(_largest(change))}",
                ("query", "key"),
            ),
            output("Output before", found.output, tokens),
            output("Output after", found.output_after, rows),
            output("Output put back", found.output_restored, tokens),
            NamedMatrix(
                "Difference of output",
                output_change,
                tokens,
                channels,
                "signed",
                output_end,
                f"largest {size_text(found.difference)}",
                ("query", "channel"),
            ),
        ),
        title=f"{_sentence(MECHANISM_WORDS[found.mechanism])}, {SHUFFLE_WORDS[found.shuffle]} shuffled",
        across=4,
        numbers=False,
    )


def _largest(*matrices: Matrix) -> float:
    return max(float(np.abs(matrix).max()) for matrix in matrices)


SHUFFLE_WORDS: Mapping[Shuffle, str] = {
    "queries": "queries",
    "keys_values": "keys with their values",
    "keys": "keys alone",
    "tokens": "all tokens",
}


def table_sheet(table: Mapping[Mechanism, Mapping[Shuffle, Shuffled]]) -> MatrixSheet:
    """The table as matrices: 1 where the law holds, the largest difference, and what rounding can explain."""
    rows = tuple(SHORT_WORDS[mechanism] for mechanism in table)
    columns = tuple(SHUFFLE_WORDS[shuffle] for shuffle in SHUFFLES)

    def of(name: str, number: Callable[[Shuffled], float]) -> NamedMatrix:
        values = np.array([[number(row[shuffle]) for shuffle in SHUFFLES] for row in table.values()])
        return NamedMatrix(name, values, rows, columns, axes=("mechanism", "shuffled"))

    return MatrixSheet(
        (
            of("Same but for its order", lambda found: float(found.holds)),
            of("Largest difference", lambda found: found.difference),
            of("What rounding can explain", lambda found: found.bound),
        ),
        title="Which shuffles each mechanism notices",
    )


# In words -----------------------------------------------------------------------------------------------------------


def shuffle_in_words(found: Shuffled) -> tuple[str, ...]:
    """What the shuffle changed, told from the numbers."""
    if len(found.tokens) == 1:
        return ("One token has no other order, so nothing can change; type more words.",)
    name = MECHANISM_WORDS[found.mechanism]
    difference, bound = size_text(found.difference), size_text(found.bound)
    left = (
        f"differs by at most {difference}, which rounding explains (bound {bound})"
        if found.difference
        else "is the same to the last bit"
    )
    changed = f"differs by up to {difference}, where rounding explains {bound}"
    if found.shuffle == "keys":
        if found.holds:
            return (
                f"Even keys without their values, shuffled, leave the output of {name} as it was here: it {left}.",
            )
        return (
            f"Keys shuffled without their values change the output of {name}: it {changed}. Keys no longer "
            "stand beside their own values.",
        )
    if found.shuffle == "keys_values":
        if found.holds:
            return (
                f"Keys shuffled together with their values leave the output of {name} as it was: it {left}. It is "
                "invariant: it sees a set of keys, not a list.",
            )
        return (
            f"Keys shuffled together with their values change the output of {name}: it {changed}. Something in it "
            "tells where a key stands.",
        )
    what = "queries" if found.shuffle == "queries" else "tokens"
    if found.holds:
        return (
            f"Shuffled {what} give the output rows of {name} in the shuffled order and change nothing else: put "
            f"back, the output {left}. It is equivariant.",
        )
    return (
        f"Shuffled {what} change the output rows of {name}, not their order alone: put back, the output {changed}. "
        f"It sees the order of {what}.",
    )


def table_in_words(table: Mapping[Mechanism, Mapping[Shuffle, Shuffled]]) -> str:
    """Which mechanisms noticed that the tokens were shuffled."""
    blind = [MECHANISM_WORDS[mechanism] for mechanism, row in table.items() if row["tokens"].holds]
    seeing = [MECHANISM_WORDS[mechanism] for mechanism, row in table.items() if not row["tokens"].holds]
    if not seeing:
        return "In this order no mechanism notices that the tokens were shuffled."
    if not blind:
        return "Every mechanism notices that the tokens were shuffled."
    do_not, do = ("does" if len(names) == 1 else "do" for names in (blind, seeing))
    return f"{_sentence(_listed(blind))} {do_not} not notice that all tokens were shuffled; {_listed(seeing)} {do}."


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def size_text(value: float) -> str:
    """A size with two digits; powers of ten where it is small."""
    if value == 0 or value >= 0.001:
        return f"{value:.2g}"
    mantissa, power = f"{value:.1e}".split("e")
    return f"{mantissa}·10{str(int(power)).translate(_RAISED)}"
