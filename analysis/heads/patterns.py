"""What a head is for: a class with a score and a margin, from the rules of one table over its statistics.

A rule turns statistics into evidence between 0 and 1 and has a threshold. The score of a class is 0.5 where the
evidence is at the threshold, 1 where it is 1 and 0 where it is 0, straight in between. A head has the class with the
highest score, and is heterogeneous where none reaches 0.5; the margin is how far the next class is behind. Thresholds
are the papers' where they give one; the others are ours, and the table says so. A user may move any of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from analysis.heads.measures import OFFSETS, SHIFTS

Numbers = NDArray[np.float64]
Values = Mapping[str, Numbers]
"""Statistics by key, each of the same shape (..., L, H)."""

HETEROGENEOUS = "heterogeneous"

OURS = "ours"
"""Source of a threshold that no paper gives."""


@dataclass(frozen=True)
class Rule:
    """How a class is recognised.

    Attributes:
        key, title: of the class.
        threshold: evidence at which a head belongs to it.
        evidence: statistics → (..., L, H) between 0 and 1; None where they lack what it needs.
        meaning: one sentence for readers.
        formula: the evidence in words.
        source: of class and threshold.
        picture: for pictures; else for text.
        variants: statistics → (names, (V, ..., L, H) their strengths), where the class has variants.
    """

    key: str
    title: str
    threshold: float
    evidence: Callable[[Values], Numbers | None]
    meaning: str
    formula: str
    source: str
    picture: bool = False
    variants: Callable[[Values], tuple[tuple[str, ...], Numbers]] | None = None


def above_chance(share: Numbers, chance: Numbers) -> Numbers:
    """(share − chance) / (1 − chance), not below 0: 0 for equal weights, 1 where all weight is."""
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.clip((share - chance) / (1 - chance), 0, 1)


def _has(values: Values, *keys: str) -> bool:
    return all(key in values for key in keys)


def _share(key: str) -> Callable[[Values], Numbers | None]:
    return lambda values: np.clip(values[key], 0, 1) if key in values else None


def _corrected(key: str) -> Callable[[Values], Numbers | None]:
    def found(values: Values) -> Numbers | None:
        chance = f"{key}_chance"
        return above_chance(values[key], values[chance]) if _has(values, key, chance) else None

    return found


# Evidence of text ---------------------------------------------------------------------------------------------------

_POSITIONS = {-1: "previous", 0: "self", 1: "next"}


def position_name(offset: int) -> str:
    """ "previous", "self", "next", or the offset of the key: "+3", "−2"."""
    return _POSITIONS.get(offset, f"{offset:+d}".replace("-", "−"))


def _by_offset(values: Values) -> tuple[tuple[str, ...], Numbers]:
    return tuple(map(position_name, OFFSETS)), np.stack([_positional_at(values, each) for each in OFFSETS])


def _positional_at(values: Values, offset: int) -> Numbers:
    """The mean weight at one offset, or, if that says more, the share of strongest keys there, 90 % as 0.5.

    The share says no more than 1.5 times the weight: the centre of a broad hump is nobody's position.
    """
    weight = np.clip(values[f"offset{offset:+d}"], 0, 1)
    strongest = np.clip(values[f"strongest{offset:+d}"], 0, 1)
    share = np.where(strongest < 0.9, strongest * (0.5 / 0.9), 0.5 + (strongest - 0.9) * 5)
    return np.asarray(np.fmax(weight, np.fmin(share, 1.5 * weight)))


def _positional(values: Values) -> Numbers | None:
    if not _has(values, "offset+0", "strongest+0"):
        return None
    return np.asarray(_by_offset(values)[1].max(0))


def _delimiters(values: Values) -> tuple[tuple[str, ...], Numbers]:
    first = np.clip(values["first"] - values["classifier"], 0, 1)  # CLS is not told twice
    return ("CLS", "separator", "first token"), np.stack([values["classifier"], values["separator"], first])


def _delimiter(values: Values) -> Numbers | None:
    if not _has(values, "first", "classifier", "separator"):
        return None
    return np.asarray(np.clip(_delimiters(values)[1].sum(0), 0, 1))


def _local(values: Values) -> Numbers | None:
    if not _has(values, "near", "near_chance", "offset+0"):
        return None
    one = np.stack([values[f"offset{each:+d}"] for each in OFFSETS]).max(0)
    return np.asarray(above_chance(values["near"], values["near_chance"]) * (1 - np.clip(one, 0, 1)))


def _rare(values: Values) -> Numbers | None:
    if not _has(values, "rarest", "confidence"):
        return None
    return np.asarray(np.clip(np.fmin(values["rarest"], 1.5 * values["confidence"]), 0, 1))


def _vertical(values: Values) -> Numbers | None:
    if "column" not in values:
        return None
    rare = np.nan_to_num(values["rarest"]) if "rarest" in values else 0.0
    return np.asarray(np.clip(values["column"], 0, 1) * (1 - rare))


def _inside(values: Values) -> Numbers | None:
    """Weight inside the own segment, above that of equal weights."""
    if not _has(values, "same_segment", "same_segment_chance"):
        return None
    return above_chance(values["same_segment"], values["same_segment_chance"])


def _block(values: Values) -> Numbers | None:
    inside = _inside(values)
    if inside is None or "relative_entropy" not in values:
        return None
    return np.asarray(inside * np.clip(values["relative_entropy"], 0, 1))


def _broad(values: Values) -> Numbers | None:
    if "relative_entropy" not in values:
        return None
    inside = _inside(values)
    spread = np.clip(values["relative_entropy"], 0, 1)
    return np.asarray(spread if inside is None else spread * (1 - 0.5 * np.nan_to_num(inside)))


# Evidence of pictures -----------------------------------------------------------------------------------------------


def _by_shift(values: Values) -> tuple[tuple[str, ...], Numbers]:
    return tuple(SHIFTS), np.stack([values[f"patch_{name}"] for name in SHIFTS])


def _patch_positional(values: Values) -> Numbers | None:
    return np.asarray(np.clip(_by_shift(values)[1].max(0), 0, 1)) if "patch_self" in values else None


def _sinks(values: Values) -> tuple[tuple[str, ...], Numbers]:
    nothing = np.zeros_like(values["classifier"])
    long = values.get("sink_patches", nothing)
    one = np.fmax(np.clip(long, 0, 1), values["column"])
    return ("CLS", "register", "patch"), np.stack([values["classifier"], values["register"], one])


def _sink(values: Values) -> Numbers | None:
    if not _has(values, "classifier", "register", "column"):
        return None
    return np.asarray(np.clip(_sinks(values)[1].sum(0), 0, 1))


def _reach(values: Values) -> Numbers | None:
    """Mean distance as a share of that of equal weights."""
    if not _has(values, "pixels", "pixels_chance"):
        return None
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(values["pixels"] / values["pixels_chance"])


def _near_patches(values: Values) -> Numbers | None:
    reach = _reach(values)
    if reach is None:
        return None
    one = _by_shift(values)[1].max(0)
    return np.asarray(np.clip(1 - reach, 0, 1) * values["patches"] * (1 - np.clip(one, 0, 1)))


def _far_patches(values: Values) -> Numbers | None:
    reach = _reach(values)
    if reach is None:
        return None
    found = np.clip(reach, 0, 1) * values["patches"] * (1 - np.clip(values["column"], 0, 1))
    for other in (_line(values), _alike(values)):  # far because they look at something else
        found = found if other is None else found * (1 - np.nan_to_num(other))
    return np.asarray(found)


def _lines(values: Values) -> tuple[tuple[str, ...], Numbers]:
    return ("row", "column"), np.stack(
        [
            above_chance(values["row"], values["row_chance"]),
            above_chance(values["grid_column"], values["grid_column_chance"]),
        ]
    )


def _line(values: Values) -> Numbers | None:
    if not _has(values, "row", "row_chance", "grid_column", "grid_column_chance"):
        return None
    one = _by_shift(values)[1].max(0)
    return np.asarray(_lines(values)[1].max(0) * values["patches"] * (1 - np.clip(one, 0, 1)))


def _alike(values: Values) -> Numbers | None:
    return (
        np.clip(values["content"], 0, 1) * values["patches"] if _has(values, "content", "patches") else None
    )


# The table ----------------------------------------------------------------------------------------------------------

_CLARK, _VOITA = "Clark et al. 2019, section 3", "Voita et al. 2019"

RULES: tuple[Rule, ...] = (
    Rule(
        "positional", "Positional", 0.5, _positional,
        "It looks at one position relative to the query: itself, the previous, the next token, or one further off.",
        "largest mean weight at one offset from −5 to 5, or the share of queries whose strongest key is there, 90 % "
        "counting as 0.5 (at most 1.5 × the weight)",
        f"weight > 0.5: {_CLARK}.1; 90 % of strongest keys: {_VOITA}, section 5.1",
        variants=_by_offset,
    ),
    Rule(
        "delimiter", "Delimiter", 0.6, _delimiter,
        "It parks its weight on CLS, on separators or on the first token, where it does little.",
        "weight on CLS, separators and the first position together",
        f"weight > 0.6: {_CLARK}.2; first-token sinks: Xiao et al. 2024",
        variants=_delimiters,
    ),
    Rule(
        "punctuation", "Punctuation", 0.6, _share("punctuation"),
        "It looks at punctuation marks.", "weight on punctuation marks", f"weight > 0.6: {_CLARK}.2",
    ),
    Rule(
        "induction", "Induction", 0.3, _corrected("induction"),
        "It looks at what came after an earlier copy of the token.",
        "weight there above that of equal weights, of queries that have a copy",
        f"prefix matching: Olsson et al. 2022; threshold: {OURS}",
    ),
    Rule(
        "duplicate", "Duplicate token", 0.3, _corrected("same_token"),
        "It looks at the same token elsewhere.",
        "weight there above that of equal weights, of queries that have one",
        f"Wang et al. 2023 (duplicate-token heads); threshold: {OURS}",
    ),
    Rule(
        "rare", "Rare token", 0.5, _rare,
        "It points to the least frequent token of the text.",
        "share of queries whose strongest key, separators left out, is the rarest token (at most 1.5 × the weight of "
        "that key)",
        f"{_VOITA}, section 5.3 (66 % of sentences in their head); threshold: {OURS}",
    ),
    Rule(
        "syntactic", "Syntactic", 0.1, _share("syntactic"),
        "It follows a dependency relation (needs an annotated corpus).",
        "accuracy of the best relation above that of the best fixed offset",
        f"10 points: {_VOITA}, section 5.2; Clark et al. 2019, section 4.2",
    ),
    Rule(
        "block", "Block", 0.5, _block,
        "It spreads over the query's own sentence of a pair.",
        "weight inside the own segment above that of equal weights × relative entropy",
        f"Kovaleva et al. 2019, section 4.1 (no threshold there); threshold: {OURS}",
    ),
    Rule(
        "vertical", "Vertical", 0.4, _vertical,
        "All queries look at the same one token.",
        "largest mean weight on one token that is neither special nor punctuation × (1 − share of the rarest token)",
        f"Kovaleva et al. 2019, section 4.1 (no threshold there); threshold: {OURS}",
    ),
    Rule(
        "local", "Local", 0.5, _local,
        "It looks at a few tokens around the query.",
        "weight at most 3 tokens away above that of equal weights × (1 − largest weight at one offset)",
        f"threshold: {OURS}",
    ),
    Rule(
        "broad", "Broad", 0.78, _broad,
        "It spreads over the whole text.",
        "entropy as a share of that of equal weights × (1 − half the weight inside the own segment above chance)",
        f"3.8 of ln 128 = 4.85 nats: {_CLARK}.1",
    ),
    Rule(
        "patch_positional", "Positional", 0.5, _patch_positional,
        "It looks at the patch itself or at one neighbour.",
        "largest mean weight on the patch itself, or the one left, right, above, below",
        f"after Clark et al. 2019 for text; threshold: {OURS}", True, _by_shift,
    ),
    Rule(
        "sink", "CLS or register sink", 0.6, _sink,
        "It parks its weight on CLS, on registers, or on single patches.",
        "weight on CLS, registers, and high-norm patches or the one patch that gets most",
        f"Darcet et al. 2024; threshold: {OURS}, as for text", True, _sinks,
    ),
    Rule(
        "line", "Row or column", 0.3, _line,
        "It looks along the row or the column of its patch.",
        "weight on other patches of the row (column) above that of equal weights × weight on patches × (1 − largest "
        "weight on one neighbour)",
        f"threshold: {OURS}", True, _lines,
    ),
    Rule(
        "content", "Content", 0.5, _alike,
        "It looks at patches that are like its own.",
        "correlation of weights and cosine of the layer's inputs × weight on patches",
        f"threshold: {OURS}", True,
    ),
    Rule(
        "patch_local", "Local", 0.4, _near_patches,
        "It looks at patches around its own.",
        "1 − mean distance as a share of that of equal weights, × weight on patches × (1 − largest weight on one "
        "neighbour)",
        f"distance: Dosovitskiy et al. 2021, D.7; Raghu et al. 2021, section 4; threshold: {OURS}", True,
    ),
    Rule(
        "patch_global", "Global", 0.7, _far_patches,
        "It looks over the whole picture.",
        "mean distance as a share of that of equal weights × weight on patches × (1 − weight on the one patch that "
        "gets most) × (1 − evidence of row or column) × (1 − evidence of content)",
        f"distance: Dosovitskiy et al. 2021, D.7; Raghu et al. 2021, section 4; threshold: {OURS}", True,
    ),
)  # fmt: skip
"""Every rule, the more particular first: of equal scores the first one wins."""

PATTERNS: Mapping[str, Rule] = MappingProxyType({rule.key: rule for rule in RULES})

Basis = Literal["text", "picture"]


@dataclass(frozen=True, eq=False)
class HeadClasses:
    """The class of every head.

    Attributes:
        keys: C classes that could be told, ``HETEROGENEOUS`` last.
        scores: (C, ..., L, H).
        evidence: (C − 1, ..., L, H).
        best: (..., L, H) index in ``keys``.
        variants: (..., L, H) name of the best class's variant, "" where it has none.
    """

    keys: tuple[str, ...]
    scores: Numbers
    evidence: Numbers
    best: NDArray[np.int64]
    variants: NDArray[np.str_]

    @property
    def score(self) -> Numbers:
        """(..., L, H) of the class."""
        return np.asarray(self.scores.max(0))

    @property
    def margin(self) -> Numbers:
        """(..., L, H): score of the class − score of the next one."""
        ordered = np.sort(self.scores, axis=0)
        return np.asarray(ordered[-1] - ordered[-2])

    def key(self, layer: int, head: int) -> str:
        """The class of one head."""
        return self.keys[int(self.best[layer, head])]

    def title(self, layer: int, head: int) -> str:
        """What a reader sees: "Positional (previous)"."""
        name = title_of(self.key(layer, head))
        variant = str(self.variants[layer, head])
        return f"{name} ({variant})" if variant else name


def title_of(key: str) -> str:
    """Of a class, for readers."""
    return "Heterogeneous" if key == HETEROGENEOUS else PATTERNS[key].title


def with_thresholds(thresholds: Mapping[str, float], rules: Sequence[Rule] = RULES) -> tuple[Rule, ...]:
    """The rules with some thresholds moved.

    Raises:
        ValueError: for a class that there is not, or a threshold that is not above 0 and below 1.
    """
    unknown = sorted(set(thresholds) - {rule.key for rule in rules})
    if unknown:
        raise ValueError(
            f"with_thresholds: there is no class {unknown[0]!r}; known are {', '.join(PATTERNS)}."
        )
    wrong = [key for key, value in thresholds.items() if not 0 < value < 1]
    if wrong:
        raise ValueError(
            f"with_thresholds: threshold of {wrong[0]} must be above 0 and below 1 but is {thresholds[wrong[0]]}."
        )
    return tuple(replace(rule, threshold=thresholds.get(rule.key, rule.threshold)) for rule in rules)


def classify_heads(values: Values, *, picture: bool, rules: Sequence[Rule] = RULES) -> HeadClasses:
    """The class of every head from its statistics.

    Args:
        values: (..., L, H) by key of ``STATISTICS``, and "syntactic" where it is known: the accuracy of the best
            relation above its baseline. Rules whose statistics are missing are left out.
        picture: which of the rules hold.
        rules: with other thresholds, as ``with_thresholds`` makes them.
    Raises:
        ValueError: if no rule has its statistics.
    """
    keys: list[str] = []
    evidence: list[Numbers] = []
    scores: list[Numbers] = []
    used: list[Rule] = []
    for rule in rules:
        found = rule.evidence(values) if rule.picture == picture else None
        if found is None:
            continue
        found = np.nan_to_num(found, nan=0.0)
        keys.append(rule.key)
        used.append(rule)
        evidence.append(found)
        scores.append(score_of(found, rule.threshold))
    if not keys:
        raise ValueError(
            "classify_heads: values hold no statistic that a rule needs; pass those of a survey."
        )
    stacked = np.stack(scores)
    rest = 1 - stacked.max(0)
    whole = np.concatenate([stacked, rest[None]])
    best = whole.argmax(0)
    return HeadClasses((*keys, HETEROGENEOUS), whole, np.stack(evidence), best, _variants(values, used, best))


def score_of(evidence: Numbers, threshold: float) -> Numbers:
    """0 at 0, 0.5 at the threshold, 1 at 1, straight in between."""
    below = 0.5 * evidence / threshold
    above = 0.5 + 0.5 * (evidence - threshold) / (1 - threshold)
    return np.where(evidence < threshold, below, above)


def _variants(values: Values, rules: Sequence[Rule], best: NDArray[np.int64]) -> NDArray[np.str_]:
    found = np.full(best.shape, "", dtype="<U16")
    for index, rule in enumerate(rules):
        if rule.variants is None or not (best == index).any():
            continue
        names, strengths = rule.variants(values)
        strongest = np.nan_to_num(strengths, nan=-1.0).argmax(0)
        found = np.where(best == index, np.array(names)[strongest], found)
    return found
