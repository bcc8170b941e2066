"""How checks of attention are drawn and told: bins, densities, colours and words, for the screen and for files.

The checks are those of Jain & Wallace 2019 over a set of inputs and edits of heads. NumPy alone.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from analysis.figure_data import (
    HEAD_COLOURS,
    AttentionContrast,
    CheckedSet,
    Floats,
    HeadEffects,
    TradeOff,
    TradeOffGroup,
)
from analysis.visible_heads import CLASS_COLOURS, TOLERANCE

Mark = Literal["circle", "square", "triangle", "diamond"]

LARGEST_JSD = math.log(2)
"""No two distributions have a larger Jensen–Shannon divergence (nats)."""

ATTENTION_BINS: tuple[tuple[float, float], ...] = ((0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0))
"""Ranges of the largest weight, as in the paper's figures; the last one holds its end."""

SIGNIFICANT = 0.05
"""A rank correlation counts as significant below this p-value, as in the paper."""

COLOURED_CLASSES = 4
"""Most predicted classes that have a colour each."""

PLAIN_COLOUR = "#3b5b92"
"""Of inputs where classes have no colours."""

DRAWN_OUTPUTS, WRITTEN_OUTPUTS = 6, 20
"""Most outputs of a contrast that a picture draws, and that a table has columns for."""

DRAWN_CANDIDATES = 16
"""Most distributions of a contrast that a picture lists."""

DRAWN_TOKENS = 64
"""Most tokens of a contrast that have bars in a picture; all of them are coloured."""

AGREEMENT_COLOURS: Mapping[str, str] = {"tau_gradient": "#2a9d8f", "tau_leave_one_out": "#8a6bb8"}
"""Of rank correlations with gradients and with leave-one-out, by their keys."""

FEW_POINTS = 300
"""Up to this many inputs a violin has a mark for each, and each bound of a divergence a stem."""

HISTOGRAM_BINS = 20
"""Bins of a histogram of divergences (0 to ln 2) and of rank correlations (−1 to 1)."""

_KINDS: Mapping[str, str] = {
    "encoder": "self-attention",
    "decoder": "decoder self-attention",
    "cross": "cross-attention",
}

_RANGES: Mapping[str, tuple[float, float]] = {
    "max_attention": (0.0, 1.0),
    "permutation": (0.0, math.inf),
    "jsd": (0.0, LARGEST_JSD),
    "jsd_bound": (0.0, LARGEST_JSD),
    "tau_gradient": (-1.0, 1.0),
    "p_gradient": (0.0, 1.0),
    "tau_leave_one_out": (-1.0, 1.0),
    "p_leave_one_out": (0.0, 1.0),
    "uniform": (0.0, math.inf),
}
"""Where the numbers of an input can lie."""


# One input ----------------------------------------------------------------------------------------------------------


def within_epsilon(view: AttentionContrast) -> NDArray[np.bool_]:
    """(M,): which candidates change the output by ε at most, compared as the float32 that files hold."""
    return np.asarray(view.change, dtype=np.float32) <= np.float32(view.epsilon)


def strongest_outputs(view: AttentionContrast, count: int = WRITTEN_OUTPUTS) -> list[int]:
    """Indices of the highest outputs of the observed attention, the highest first."""
    observed = np.nan_to_num(np.asarray(view.outputs[0], dtype=np.float64), nan=-np.inf)
    order: list[int] = np.argsort(-observed, kind="stable")[:count].tolist()
    return order


def drawn_outputs(view: AttentionContrast, count: int = DRAWN_OUTPUTS) -> list[int]:
    """Indices of the outputs that a picture draws: all in the model's order, or the highest first.

    The highest are those of what is observed or shown.
    """
    if len(view.labels) <= count:
        return list(range(len(view.labels)))
    both = np.asarray(view.outputs[[0, view.shown]], dtype=np.float64)
    highest = np.nan_to_num(both, nan=-np.inf).max(axis=0)
    order: list[int] = np.argsort(-highest, kind="stable")[:count].tolist()
    return order


def weight_limit(view: AttentionContrast) -> float:
    """Weight at which colours end: the largest token or patch that is drawn, rounded up as on the screen."""
    weights = np.asarray(view.weights[[0, view.shown], view.prefix :], dtype=np.float64)
    largest = float(_known(weights).max(initial=0.0))
    if largest <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(largest) + 1e-9)
    step = next(
        (part for part in (1, 1.5, 2, 3, 4, 5, 6, 8) if largest <= part * power * (1 + TOLERANCE)), 10
    )
    return min(step * power, 1.0)


def change_end(view: AttentionContrast) -> float:
    """End of a track of changes of the output: their bound, or a little above the largest where there is none."""
    if view.change_bound is not None:
        return view.change_bound
    largest = max(float(_known(view.change).max(initial=0.0)), 2 * view.epsilon)
    return largest * 1.05 if largest > 0 else 1.0


def drawn_tokens(view: AttentionContrast, count: int = DRAWN_TOKENS) -> list[int]:
    """Indices of the tokens that have bars in a picture, ascending: those with the most weight of what is drawn."""
    weights = np.nan_to_num(np.asarray(view.weights[[0, view.shown]], dtype=np.float64)).max(axis=0)
    order: list[int] = np.argsort(-weights, kind="stable")[:count].tolist()
    return sorted(order)


def drawn_candidates(view: AttentionContrast, count: int = DRAWN_CANDIDATES) -> list[int]:
    """Indices of the distributions that a picture lists: the first ones, and the one that is shown."""
    kept = list(range(min(len(view.names), count)))
    return kept if view.shown in kept else [*kept[:-1], view.shown]


def contrast_in_words(view: AttentionContrast) -> str:
    """What stands under an exported contrast; verdict and what was held fixed are in it."""
    count = view.weights.shape[1]
    places = _counted(count, "token" if view.picture is None else "position")
    if view.grid is not None:
        places += f", of which {view.grid[0]} × {view.grid[1]} are patches"
    sentences = [f"Attention over {places}.", "Colour by the square root of the weight."]
    if view.rows > 1:
        sentences.append(f"Weights are means of the {view.rows} rows that are changed together.")
    if len(view.names) > 1:
        sentences.append(f"{_counted(len(view.names) - 1, 'distribution')} beside the observed one.")
    if len(view.names) > DRAWN_CANDIDATES:
        sentences.append(f"The picture lists {DRAWN_CANDIDATES} of {len(view.names)}.")
    if len(view.tokens) > DRAWN_TOKENS:
        sentences.append(f"The {DRAWN_TOKENS} tokens with the most weight have bars.")
    if len(view.labels) > DRAWN_OUTPUTS:
        sentences.append(f"The picture draws the {DRAWN_OUTPUTS} highest of {len(view.labels)} outputs.")
    if view.shown:
        end = "" if view.change_bound is None else f" of at most {view.change_bound:.3g}"
        sentences.append(
            f"Drawn: “{view.names[view.shown]}”, JSD {view.jsd[view.shown]:.3g} nats of at most "
            f"{view.jsd_bound:.3g} from the observed weights, {view.change_name} "
            f"{view.change[view.shown]:.3g}{end}: "
            f"{'the same' if within_epsilon(view)[view.shown] else 'another'} prediction, ε = {view.epsilon:.3g}."
        )
    if view.held:
        sentences.append(f"Held fixed: {view.held}")
    if view.direction == "rtl":
        sentences.append("Right-to-left text; tokens in the model's order.")
    return _said([*sentences, *view.verdict])


def permuted_end(view: AttentionContrast) -> float:
    """Where the axis of the changes under permutations ends."""
    changes = np.zeros(1) if view.permuted is None else np.asarray(view.permuted, dtype=np.float64)
    return round_end(max(float(changes.max(initial=0.0)), view.epsilon))


# A set of inputs ----------------------------------------------------------------------------------------------------


def attention_bins(view: CheckedSet) -> NDArray[np.int64]:
    """(n,) index of each input's range of the largest weight; -1 where it was not measured."""
    largest = view.number("max_attention")
    if largest is None:
        return np.full(len(view.names), -1, dtype=np.int64)
    starts = [start for start, _ in ATTENTION_BINS[1:]]
    places = np.digitize(np.asarray(largest, dtype=np.float32), np.array(starts, dtype=np.float32))
    return np.where(np.isnan(largest), -1, places).astype(np.int64)


def coloured_classes(view: CheckedSet) -> tuple[int, ...]:
    """Predicted classes that have a colour each, ascending; () where there are more than can be told apart."""
    found = tuple(np.unique(view.predicted).tolist())
    return found if len(found) <= COLOURED_CLASSES else ()


@dataclass(frozen=True)
class InputGroup:
    """Inputs that are drawn in one colour: (n,) ``members``."""

    name: str
    colour: str
    members: NDArray[np.bool_]


def input_groups(view: CheckedSet) -> tuple[InputGroup, ...]:
    """A group for each predicted class, or one group of all inputs where there are too many classes."""
    classes = coloured_classes(view)
    if not classes:
        return (InputGroup("all classes", PLAIN_COLOUR, np.ones(len(view.names), dtype=bool)),)
    return tuple(
        InputGroup(view.labels[index], CLASS_COLOURS[place], view.predicted == index)
        for place, index in enumerate(classes)
    )


def bandwidth(values: Floats, extent: float) -> float:
    """Width of the Gaussian kernel of a density: Silverman's rule, at least a fiftieth of the extent.

    Args:
        values: (n,) without NaN.
        extent: of all that is drawn on the same axis.
    """
    least = 0.02 * extent if extent > 0 else 0.02
    if len(values) < 2:
        return least
    low, high = np.quantile(values, [0.25, 0.75])
    spread = min(float(np.std(values, ddof=1)), float(high - low) / 1.349)
    return max(1.059 * spread * math.pow(len(values), -0.2), least)


def density(values: Floats, places: Floats, width: float) -> NDArray[np.float64]:
    """Gaussian kernel density of ``values`` (n,) at ``places`` (p,), the highest as 1."""
    distances = (np.asarray(places)[:, None] - np.asarray(values)[None]) / width
    heights = np.exp(-0.5 * distances**2).sum(axis=1)
    found: NDArray[np.float64] = heights / (heights.max(initial=0.0) or 1.0)
    return found


def bin_title(index: int) -> str:
    """A range of the largest weight, such as "[0.25, 0.5)"."""
    low, high = ATTENTION_BINS[index]
    return f"[{low:g}, {high:g}{']' if index == len(ATTENTION_BINS) - 1 else ')'}"


def change_limit(view: CheckedSet) -> float:
    """End of an axis of changes by permutation: a round number that none is above."""
    values = view.number("permutation")
    return round_end(0.0 if values is None else float(_known(values).max(initial=0.0)))


def round_end(largest: float) -> float:
    """A round end of an axis that starts at 0, whose quarters are round too: 1, 2, 4, 8 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(max(largest, 0.002)))
    steps = (step * power for step in (1, 2, 4, 8, 10, 20))
    return next(end for end in steps if largest <= end * (1 + TOLERANCE))


def jsd_edges() -> NDArray[np.float64]:
    """Edges of the bins of divergences, 0 to ln 2."""
    return np.linspace(0.0, LARGEST_JSD, HISTOGRAM_BINS + 1)


def tau_edges() -> NDArray[np.float64]:
    """Edges of the bins of rank correlations, −1 to 1."""
    return np.linspace(-1.0, 1.0, HISTOGRAM_BINS + 1)


def histogram(values: Floats, edges: NDArray[np.float64]) -> NDArray[np.int64]:
    """How many finite values lie in each bin; what rounding has put beyond an end counts at that end."""
    known = np.clip(_known(values), edges[0], edges[-1])
    counts: NDArray[np.int64] = np.histogram(known, bins=edges)[0].astype(np.int64)
    return counts


def count_limit(counts: NDArray[np.int64]) -> tuple[float, tuple[int, ...]]:
    """End of an axis of counts, a little above the largest, and whole numbers for its ticks."""
    largest = int(counts.max(initial=0)) or 1
    step = next(
        size * 10**power for power in range(12) for size in (1, 2, 5) if largest / (size * 10**power) <= 5
    )
    return largest * 1.08, tuple(range(0, largest + 1, step))


@dataclass(frozen=True)
class Agreement:
    """How attention agrees with another measure of importance over a set.

    Attributes:
        key, title: such as "tau_gradient" and "gradient".
        values: (m,) Kendall τ of the inputs that have one.
        mean, deviation: of these; the deviation of a sample.
        significant: share of inputs with p below ``SIGNIFICANT``, None where there are no p-values.
    """

    key: str
    title: str
    values: NDArray[np.float64]
    mean: float
    deviation: float
    significant: float | None


def agreements(view: CheckedSet) -> tuple[Agreement, ...]:
    """Rank correlations that were measured, gradients first."""
    found = []
    for name, title in (("gradient", "gradients"), ("leave_one_out", "leave-one-out")):
        values, chances = view.number(f"tau_{name}"), view.number(f"p_{name}")
        known = np.empty(0) if values is None else _known(values)
        if not known.size:
            continue
        shares = np.empty(0) if chances is None else _known(chances)
        found.append(
            Agreement(
                f"tau_{name}",
                title,
                known,
                float(known.mean()),
                float(known.std(ddof=1)) if known.size > 1 else 0.0,
                float((shares < SIGNIFICANT).mean()) if shares.size else None,
            )
        )
    return tuple(found)


def agreement_words(agreement: Agreement) -> str:
    """Mean, deviation and share of significant inputs in words."""
    words = f"mean τ {agreement.mean:.2f}"
    if len(agreement.values) > 1:
        words += f" ± {agreement.deviation:.2f}"
    if agreement.significant is not None:
        words += f", {agreement.significant:.0%} significant (p < {SIGNIFICANT})"
    return words


def set_in_words(view: CheckedSet) -> str:
    """What stands under an exported set; the record's notes are in it."""
    count = len(view.names)
    sentences = [f"{_counted(count, 'input')}, ε = {view.epsilon:.3g}."]
    counts = np.bincount(view.predicted, minlength=len(view.labels))
    order = [index for index in np.argsort(-counts, kind="stable").tolist() if counts[index]]
    named = ", ".join(f"{counts[index]} {view.labels[index]}" for index in order[:COLOURED_CLASSES])
    rest = len(order) - COLOURED_CLASSES
    sentences.append(f"Predicted: {named}{f' and {rest} more classes' if rest > 0 else ''}.")
    for number in view.numbers:
        known = _known(number.values)
        if known.size and not number.key.startswith(("p_", "tau_")):
            lacking = f" of {known.size}" if known.size < count else ""
            sentences.append(f"{number.title}: mean {known.mean():.3g}{lacking}.")
    for agreement in agreements(view):
        sentences.append(f"Agreement with {agreement.title}: {agreement_words(agreement)}.")
    if view.marked is not None:
        sentences.append(f"Marked: input {view.marked} “{_cut(view.names[view.marked])}”.")
    return _said([*sentences, *view.notes])


# Edits of heads -----------------------------------------------------------------------------------------------------


def effect_limits(view: HeadEffects) -> tuple[float, float]:
    """|change| at which colours end for the edit that is drawn: of heads, and of whole layers; 1 where all are 0."""
    shown = view.shown
    whole = np.append(np.asarray(view.layers[shown], dtype=np.float64), view.whole[shown])
    heads, layers = (np.abs(_known(values)).max(initial=0.0) for values in (view.heads[shown], whole))
    return float(heads) or 1.0, float(layers) or 1.0


def effects_in_words(view: HeadEffects) -> str:
    """What stands under exported effects; the record's notes are in it."""
    _, layers, heads = view.heads.shape
    single, together = effect_limits(view)
    sentences = [
        f"{_counted(layers, 'layer')} × {_counted(heads, 'head')} of {_KINDS[view.kind]}, "
        f"edit “{view.edits[view.shown]}”.",
        f"Change of {view.target}, which is {view.before:.4g} without an edit: red where it rises, blue where "
        f"it falls, grey where there is no number.",
        f"Colours end at ±{single:.3g} for a head and at ±{together:.3g} for a layer or all layers.",
    ]
    if np.isfinite(view.whole[view.shown]):
        sentences.append(f"All heads of all layers: {view.whole[view.shown]:+.3g}.")
    if view.marked is not None:
        value = view.heads[view.shown][view.marked]
        told = f"{value:+.3g}" if np.isfinite(value) else "no number"
        sentences.append(f"Marked: layer {view.marked[0]}, head {view.marked[1]}, {told}.")
    return _said([*sentences, *view.notes])


# Trained models -----------------------------------------------------------------------------------------------------

TRADE_OFF_GROUPS: Mapping[TradeOffGroup, tuple[str, str, Mark]] = {
    "adversary": ("adversary", HEAD_COLOURS[1], "diamond"),
    "seed": ("another seed", HEAD_COLOURS[0], "triangle"),
    "uniform": ("uniform attention", HEAD_COLOURS[2], "square"),
}
"""Name, colour and mark of each group."""


def trade_off_end(view: TradeOff) -> float:
    """Where the axis of the change of predictions ends."""
    ends = [point.tvd_interval[1] if point.tvd_interval else point.tvd for point in view.points]
    return round_end(1.05 * max(ends, default=0.0))


def trade_off_in_words(view: TradeOff) -> str:
    """What stands under an exported trade-off; the record's notes are in it."""
    sentences = [
        f"{_counted(len(view.points), 'trained model')} against the base model, means over a test set: distance of "
        "attention (Jensen–Shannon divergence, nats, at most ln 2) and of predictions (total variation)."
    ]
    if any(point.tvd_interval or point.jsd_interval for point in view.points):
        sentences.append("Lines are 95 % intervals.")
    return _said([*sentences, *view.notes])


# Do the parts fit? --------------------------------------------------------------------------------------------------


def check_checked_set(view: CheckedSet, function: str) -> None:
    """Raise unless the parts of a set belong together.

    Args:
        function: named in the message.
    Raises:
        ValueError: for no inputs, arrays of other lengths, a class that there is not, two numbers of one key, a
            number where it cannot lie, a negative ε, or a marked input that there is not.
    """
    count, classes = len(view.names), len(view.labels)
    if count < 1:
        raise ValueError(
            f"{function}: names must be at least one input but there are none; check some inputs."
        )
    if view.predicted.shape != (count,):
        raise ValueError(
            f"{function}: predicted must be ({count},) but is {view.predicted.shape}; pass one class an input."
        )
    if not np.issubdtype(view.predicted.dtype, np.integer) or (
        view.predicted.min() < 0 or view.predicted.max() >= classes
    ):
        raise ValueError(
            f"{function}: predicted must hold whole numbers from 0 to {classes - 1}, indices of labels, but is "
            f"{view.predicted.dtype} from {view.predicted.min()} to {view.predicted.max()}."
        )
    keys = [number.key for number in view.numbers]
    twice = sorted({key for key in keys if keys.count(key) > 1})
    if twice:
        raise ValueError(
            f"{function}: numbers must have a key each but {twice[0]!r} comes twice; rename one."
        )
    for number in view.numbers:
        _check_number(number.values, number.key, count, function)
    _check_epsilon(view.epsilon, function)
    if view.marked is not None and not 0 <= view.marked < count:
        raise ValueError(
            f"{function}: marked must be one of the {count} inputs, counted from 0, but is {view.marked}; "
            "use None for none."
        )


def _check_number(values: Floats, key: str, count: int, function: str) -> None:
    if values.shape != (count,):
        raise ValueError(
            f"{function}: values of {key!r} must be ({count},) but is {values.shape}; pass one value an input, "
            "NaN where it has none."
        )
    low, high = _RANGES.get(key, (-math.inf, math.inf))
    known = values[~np.isnan(values)]
    if known.size and (
        np.isinf(known).any() or known.min() < low - TOLERANCE or known.max() > high + TOLERANCE
    ):
        raise ValueError(
            f"{function}: values of {key!r} must be finite and lie between {low:.4g} and {high:.4g} but run from "
            f"{known.min():.4g} to {known.max():.4g}; use NaN where an input has none."
        )


def permutation_title(view: CheckedSet) -> str:
    """What stands at the axis of permutations: the number's own title, such as "median TVD of permutations"."""
    return next((number.title for number in view.numbers if number.key == "permutation"), "")


def _check_epsilon(epsilon: float, function: str) -> None:
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise ValueError(f"{function}: epsilon must be a number of at least 0 but is {epsilon}.")


def check_head_effects(view: HeadEffects, function: str) -> None:
    """Raise unless the parts of a record of edited heads belong together.

    Args:
        function: named in the message.
    Raises:
        ValueError: for no edits, layers or heads, arrays of other shapes, an infinite change, or a choice of an edit
            or a head that there is not.
    """
    shape = view.heads.shape
    if len(shape) != 3 or 0 in shape:
        raise ValueError(
            f"{function}: heads must be (edits, layers, heads) with at least one of each but is {shape}."
        )
    if len(view.edits) != shape[0]:
        raise ValueError(
            f"{function}: edits must be {shape[0]} titles, one for each of heads, but are {len(view.edits)}."
        )
    for name, values, wanted in (("layers", view.layers, shape[:2]), ("whole", view.whole, shape[:1])):
        if values.shape != wanted:
            raise ValueError(
                f"{function}: {name} must be {wanted} but is {values.shape}; use NaN where an edit was not made."
            )
    for name, values in (("heads", view.heads), ("layers", view.layers), ("whole", view.whole)):
        if np.isinf(values).any():
            raise ValueError(
                f"{function}: {name} must hold finite numbers but {int(np.isinf(values).sum())} are infinite; "
                "use NaN where there is no change to tell."
            )
    if not math.isfinite(view.before):
        raise ValueError(f"{function}: before must be a finite number but is {view.before}.")
    if not 0 <= view.shown < shape[0]:
        raise ValueError(
            f"{function}: shown must be one of the {shape[0]} edits, counted from 0, but is {view.shown}."
        )
    if view.marked is not None and not (0 <= view.marked[0] < shape[1] and 0 <= view.marked[1] < shape[2]):
        raise ValueError(
            f"{function}: marked must be a (layer, head) of {shape[1]} × {shape[2]} but is {view.marked}."
        )


# Helpers ------------------------------------------------------------------------------------------------------------


def _known(values: Floats) -> NDArray[np.float64]:
    """The finite values, flat."""
    flat = np.asarray(values, dtype=np.float64).ravel()
    return flat[np.isfinite(flat)]


def _counted(count: int, one: str) -> str:
    return f"{count} {one}{'' if count == 1 else 's'}"


def _cut(text: str, characters: int = 60) -> str:
    return text if len(text) <= characters else text[: characters - 1] + "…"


def _said(sentences: list[str]) -> str:
    """Sentences as one text, each with its stop."""
    said = (sentence if sentence.endswith((".", "!", "?")) else f"{sentence}." for sentence in sentences)
    return " ".join(said)


def check_trade_off(view: TradeOff, function: str) -> None:
    """Check that the points of a trade-off can be drawn.

    Raises:
        ValueError: if a distance is out of its range, or an interval does not hold its value.
    """
    for point in view.points:
        for name, value, interval, end in (
            ("tvd", point.tvd, point.tvd_interval, 1.0),
            ("jsd", point.jsd, point.jsd_interval, LARGEST_JSD),
        ):
            if not 0 <= value <= end + TOLERANCE:
                raise ValueError(
                    f"{function}: {name} of {point.name!r} must lie between 0 and {end:.4g} but is {value:.4g}."
                )
            if interval is not None and not interval[0] <= value <= interval[1]:
                raise ValueError(
                    f"{function}: {name}_interval of {point.name!r} must hold {value:.4g} but is {interval}."
                )
