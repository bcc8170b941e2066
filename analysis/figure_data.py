"""What a view shows, as frozen records of plain arrays: the one form that the screen and every export draw.

A record holds exact numbers (float32) and the choices made on the screen (heads, pinned token, zoom, colour map).
``dashboard.figures`` packs a record for the browser; ``analysis.export`` draws the same record to a file. This
module needs NumPy alone, so the first page can be painted before torch is imported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from analysis.figure_lab import CurveSheet, Diagram, MatrixSheet, Timeline
from analysis.pairs import PairFilter

if TYPE_CHECKING:
    from analysis.streamed import StreamedMatrix

Floats = NDArray[np.floating]

HEAD_COLOURS: tuple[str, ...] = (
    "#1f6fb4", "#e07b00", "#2a9d5c", "#b3386b", "#7a5cc9", "#a8791a",
    "#2aa5b8", "#d9534a", "#6b8e23", "#9c4fb0", "#4c6a92", "#c2557f",
)  # fmt: skip
"""Head hues for light and dark backgrounds; head h takes colour h mod 12, its number always stands beside it."""

LINE_CAP = 2000
"""Most lines a head view draws; the strongest are kept and the rest are told (attention is read from few lines)."""

ColourMapName = Literal["viridis", "cividis", "magma", "greys"]


@dataclass(frozen=True)
class TokenLabel:
    """One token as a view shows it.

    Attributes:
        text: what a reader sees (no ``##``, ``Ġ`` or ``▁``; control characters as visible symbols).
        piece: the tokenizer's own piece, for tooltips.
        special: a token the model added ([CLS], [SEP], <s>, padding ...).
        unknown: the tokenizer did not know it; ``text`` then still shows what was typed.
        segment: 0 for sentence A (with the first separator, as BertViz does), 1 for sentence B.
        word: index of its word in its segment, None for a special token.
        continues: it continues the word of the token before it.
    """

    text: str
    piece: str
    special: bool = False
    unknown: bool = False
    segment: int = 0
    word: int | None = None
    continues: bool = False


LEARNED_QUERY = TokenLabel("learned query", "learned query")
"""The one row of a model that asks with a learned vector instead of a token."""


@dataclass(frozen=True)
class HeadView:
    """Lines between two columns of tokens, for one layer.

    Attributes:
        weights: (H, Q, K) exact weights of the layer's heads.
        left, right: Q query tokens and K key tokens (for self-attention the same).
        layer: index of the layer, from 0; ``layers`` how many there are.
        active: heads whose lines are drawn, ascending.
        pinned: ("left" | "right", index) when one token's lines alone are shown.
        threshold: weights below it are not drawn.
        pair_filter: which part of a sentence pair is shown.
        hide_special: special tokens and their lines are left out (weights are not renormalised).
        direction: reading order label, "ltr" or "rtl".
        kind: "encoder", "decoder" or "cross".
        starts: place of the first query and the first key in the whole input, when a window of it is shown.
        groups: key-value head of each query head (H,), or None when every head has its own.
    """

    weights: Floats
    left: tuple[TokenLabel, ...]
    right: tuple[TokenLabel, ...]
    layer: int
    layers: int
    active: tuple[int, ...]
    pinned: tuple[Literal["left", "right"], int] | None = None
    threshold: float = 0.0
    pair_filter: PairFilter = "all"
    hide_special: bool = False
    direction: Literal["ltr", "rtl"] = "ltr"
    kind: Literal["encoder", "decoder", "cross"] = "encoder"
    starts: tuple[int, int] = (0, 0)
    groups: tuple[int, ...] | None = None


@dataclass(frozen=True)
class ModelView:
    """All heads as thumbnails.

    Attributes:
        thumbnails: (L, H, b, b) maps (max-pooled above b tokens), rows are queries; or the patches of a picture.
        selected: (layer, head) or None.
        shared_scale: one colour scale for all thumbnails (else each has its own maximum).
        groups: key-value head of each query head (H,), or None when every head has its own.
        cells: what a cell is: a query and a key token, or a patch of the picture that one place attends to.
        shapes: (heads, rows, columns) of each layer, where they differ: a layer fills that part of its array, from
            the start on, and the rest is NaN; None where all layers are alike (see ``thumbnail``).
        sizes: (rows, columns) of each layer that its cells are the largest weights of; None where each is one weight.
    """

    thumbnails: Floats
    selected: tuple[int, int] | None = None
    shared_scale: bool = False
    colour_map: ColourMapName = "viridis"
    groups: tuple[int, ...] | None = None
    kind: Literal["encoder", "decoder", "cross"] = "encoder"
    cells: Literal["tokens", "patches"] = "tokens"
    shapes: tuple[tuple[int, int, int], ...] | None = None
    sizes: tuple[tuple[int, int], ...] | None = None

    @property
    def layer_shapes(self) -> tuple[tuple[int, int, int], ...]:
        """(heads, rows, columns) of each layer."""
        layers, heads, rows, columns = self.thumbnails.shape
        return self.shapes or ((heads, rows, columns),) * layers

    def thumbnail(self, layer: int, head: int) -> Floats | None:
        """(rows, columns) of one head; None where the layer has no such head."""
        heads, rows, columns = self.layer_shapes[layer]
        return self.thumbnails[layer, head, :rows, :columns] if head < heads else None


@dataclass(frozen=True)
class MatrixView:
    """One matrix of weights (queries down, keys across).

    Attributes:
        weights: (Q, K) exact values, or where to read them from when they do not fit the memory budget.
        rows, columns: Q and K labels.
        title: what it is, such as "layer 3 · head 5" or "rollout up to layer 6".
        zoom: (row start, row stop, column start, column stop) that is visible, or None for all.
        limits: colour limits (low, high) in weight units; None = 0 to the maximum of the whole matrix.
        unit: text of the scale bar.
        selected: (row, column) cell, or None.
        scale: colour in proportion to the value, or to its square root (tells small values apart).
    """

    weights: Floats | StreamedMatrix
    rows: tuple[TokenLabel, ...]
    columns: tuple[TokenLabel, ...]
    title: str = ""
    zoom: tuple[int, int, int, int] | None = None
    limits: tuple[float, float] | None = None
    colour_map: ColourMapName = "viridis"
    unit: str = "attention weight (rows sum to 1)"
    selected: tuple[int, int] | None = None
    scale: Literal["linear", "sqrt"] = "linear"


@dataclass(frozen=True)
class TokenScores:
    """One score a token, drawn as coloured text and as bars.

    Attributes:
        scores: (N,) exact values.
        tokens: N labels.
        source: index of the token whose row this is (marked), or None.
        start: place of the first token in the whole text, when a part of it is shown.
        scale: colour in proportion to the value, or to its square root.
    """

    scores: Floats
    tokens: tuple[TokenLabel, ...]
    title: str = ""
    source: int | None = None
    limits: tuple[float, float] | None = None
    colour_map: ColourMapName = "viridis"
    unit: str = "share of the row (sums to 1)"
    direction: Literal["ltr", "rtl"] = "ltr"
    scale: Literal["linear", "sqrt"] = "linear"
    start: int = 0


@dataclass(frozen=True)
class PatchMaps:
    """One or more maps over a picture.

    Attributes:
        picture: (height, width, 3) uint8, what the model saw, upright.
        maps: (M, rows, columns) exact values, one per panel.
        titles: M panel titles.
        marked: patch (row, column) whose attention is shown, or None for CLS.
        opacity: of the overlay, 0 to 1.
        shared_scale: one scale for all panels (else each has its own maximum).
        limits: explicit colour limits for all panels, else derived.
        smooth: interpolate between patches instead of drawing them as squares.
        selected: index of the selected panel, or None.
    """

    picture: NDArray[np.uint8]
    maps: Floats
    titles: tuple[str, ...]
    marked: tuple[int, int] | None = None
    opacity: float = 0.6
    colour_map: ColourMapName = "viridis"
    shared_scale: bool = True
    limits: tuple[float, float] | None = None
    smooth: bool = False
    unit: str = "attention weight"
    selected: int | None = None


@dataclass(frozen=True)
class EvidencePanel:
    """What one method says of one target, and what it is worth.

    Attributes:
        method: title of the method; ``target``: what is explained, "" where the method asks for none.
        signed: it can show evidence against the target; else scores are at least 0.
        limit: |score| at which the colours end, above 0.
        claims, cannot: what a high score means, and what the method cannot show.
        facts: what was measured of this answer, such as the share left out with special tokens.
        empty: what stands for a map in which there is nothing to see; "" where there is.
        warning: what a reader must not overlook.
    """

    method: str
    target: str
    signed: bool
    limit: float
    claims: str = ""
    cannot: str = ""
    facts: tuple[str, ...] = ()
    empty: str = ""
    warning: str = ""


@dataclass(frozen=True)
class EvidenceMaps:
    """Evidence of some methods for one or two targets, over a picture.

    Attributes:
        picture: (height, width, 3) uint8, what the model saw, upright.
        maps: (M, rows, columns) raw scores, one map a panel; the targets of a method follow one another.
        panels: M.
        title: what is explained.
        positive: evidence against is not drawn.
        marked: patch (row, column), or None.
        opacity: of the strongest colour, 0 to 1.
        smooth: interpolate between patches instead of drawing them as squares.
        grey: the picture below is drawn pale and grey, so that colours are evidence alone.
    """

    picture: NDArray[np.uint8]
    maps: Floats
    panels: tuple[EvidencePanel, ...]
    title: str = ""
    positive: bool = False
    marked: tuple[int, int] | None = None
    opacity: float = 0.9
    smooth: bool = False
    grey: bool = True


@dataclass(frozen=True)
class EvidenceWords:
    """Evidence of some methods for one or two targets, over a text; or of one method for every predicted word.

    Attributes:
        scores: (M, n) raw scores, one row a panel; the targets of a method follow one another. In a table NaN where
            the model has not read the token when it predicts the word.
        tokens: n labels: words, or tokens.
        panels: M.
        title: what is explained.
        positive: evidence against is not drawn.
        marked: index of a label, or None.
        unit: what a label is.
        start: place of the first label in the whole text, when a part of it is shown.
        predicted: of a table the M labels of its predicted words, a panel each; () where panels are methods.
        probabilities: (M,) of the predicted words; None where there are none.
    """

    scores: Floats
    tokens: tuple[TokenLabel, ...]
    panels: tuple[EvidencePanel, ...]
    title: str = ""
    positive: bool = False
    marked: int | None = None
    direction: Literal["ltr", "rtl"] = "ltr"
    unit: Literal["words", "tokens"] = "words"
    predicted: tuple[TokenLabel, ...] = ()
    probabilities: Floats | None = None
    start: int = 0


@dataclass(frozen=True)
class HeadStatistic:
    """One statistic of every head.

    Attributes:
        title, unit: what it is, such as "Entropy" in "nats"; ``key``: its name in files.
        values: (L, H); NaN where there is none.
        low, high: (L, H) 95 % interval over the inputs, or None.
    """

    key: str
    title: str
    unit: str
    values: Floats
    low: Floats | None = None
    high: Floats | None = None


@dataclass(frozen=True)
class HeadGrid:
    """Every head of a model, layers down and heads across, coloured by what it is for.

    Attributes:
        classes: C titles of classes, in the order of their colours; heterogeneous is the last.
        best: (L, H) index of each head's class.
        variants: L rows of H names, such as "previous" of a positional head; "" where there is none.
        scores, margins: (L, H): how well the class fits, 0 to 1, and how far the next class is behind.
        numbers: statistics, for tooltips and files.
        thumbnails: (L, H, r, c) the heads' maps over one input: queries down and keys across, or the patches of a
            picture; None where there are none.
        stable: (L, H) share of samples of the inputs in which the head keeps its class, or None for one input.
        shown: indices of the classes that are drawn; others are pale. None is all.
        marked: (layer, head), or None.
        title: what the grid is over, such as "200 texts, 9,412 tokens".
        kind: of attention.
        notes: what a reader must know, such as that one input is no evidence.
        hues: place of each class in the palette, so that it has the same colour where others are missing; () is the
            order of the classes.
    """

    classes: tuple[str, ...]
    best: NDArray[np.int64]
    variants: tuple[tuple[str, ...], ...]
    scores: Floats
    margins: Floats
    numbers: tuple[HeadStatistic, ...] = ()
    thumbnails: Floats | None = None
    stable: Floats | None = None
    shown: tuple[int, ...] | None = None
    marked: tuple[int, int] | None = None
    title: str = ""
    kind: Literal["encoder", "decoder", "cross"] = "encoder"
    notes: tuple[str, ...] = ()
    hues: tuple[int, ...] = ()


@dataclass(frozen=True)
class AttentionContrast:
    """Attention distributions over the same positions and what the model says with each; the first is its own.

    Attributes:
        weights: (M, n) distributions; means over ``rows`` where several rows are changed together.
        names: M, such as "observed", "uniform", "adversarial 2", "by hand".
        outputs: (M, C) what the model says, such as probabilities; ``labels``: C.
        jsd: (M,) Jensen–Shannon divergence from the observed weights, in nats, a mean over the rows.
        jsd_bound: the most that any distribution has from the observed one, at most ln 2.
        change: (M,) how far the output is from the observed one's; ``change_name``: what that is, such as "TVD";
            ``change_bound``: the most there can be, None where there is no end.
        epsilon: change up to which a candidate counts as the same prediction.
        tokens: n labels; () where the positions are the patches of a picture.
        picture, grid: (height, width, 3) uint8 of what the model saw, and (rows, columns) of its patches, which are
            the last positions, after ``prefix`` ones that are no patches (CLS, registers); None for text.
        shown: index of the candidate that is drawn beside the observed one.
        decoder: (n, C) logits of each position alone, where the output is the softmax of their weighted mean.
        rows: how many rows of attention are changed together.
        title: whose attention, such as "the classifier's query" or "layer 5, head 3, from [CLS]".
        verdict: sentences that follow from the numbers, and what they do not show.
        held: what was held fixed.
        editable: the reader may drag weights.
        source: tells inputs and models apart, such as a digest.
        permuted: (S,) change of the output under each random permutation of the observed weights, None before they
            were tried.
    """

    weights: Floats
    names: tuple[str, ...]
    outputs: Floats
    labels: tuple[str, ...]
    jsd: Floats
    change: Floats
    jsd_bound: float
    epsilon: float
    tokens: tuple[TokenLabel, ...] = ()
    picture: NDArray[np.uint8] | None = None
    grid: tuple[int, int] | None = None
    prefix: int = 0
    shown: int = 0
    decoder: Floats | None = None
    rows: int = 1
    change_name: str = "TVD"
    change_bound: float | None = 1.0
    title: str = ""
    verdict: tuple[str, ...] = ()
    held: str = ""
    direction: Literal["ltr", "rtl"] = "ltr"
    editable: bool = True
    source: str = ""
    permuted: Floats | None = None


@dataclass(frozen=True)
class CheckedNumber:
    """One number of every input of a set.

    Attributes:
        key: its name in files, such as ``tau_gradient``; ``title``: what a reader sees.
        values: (n,); NaN where an input has none.
    """

    key: str
    title: str
    values: Floats


@dataclass(frozen=True)
class CheckedSet:
    """The checks of Jain & Wallace 2019 over a set of inputs.

    Attributes:
        names: n inputs, such as sentences.
        predicted: (n,) index of the class that is predicted; ``labels``: C.
        numbers: ``max_attention``, ``permutation`` (median TVD), ``jsd`` (the largest within ε), ``jsd_bound``,
            ``tau_gradient``, ``p_gradient``, ``tau_leave_one_out``, ``p_leave_one_out``, ``uniform`` (TVD), those
            that there are.
        epsilon: of the adversarial search.
        title: what the set is, such as "120 sentences".
        marked: index of an input, or None.
        notes: what a reader must know.
    """

    names: tuple[str, ...]
    predicted: NDArray[np.int64]
    labels: tuple[str, ...]
    numbers: tuple[CheckedNumber, ...]
    epsilon: float
    title: str = ""
    marked: int | None = None
    notes: tuple[str, ...] = ()

    def number(self, key: str) -> Floats | None:
        """(n,) the number of that key, None where it was not measured."""
        return next((number.values for number in self.numbers if number.key == key), None)


@dataclass(frozen=True)
class HeadEffects:
    """What becomes of a target when heads are edited: each alone, each layer whole, all layers.

    Attributes:
        edits: E titles, such as "uniform" or "swapped with head 3".
        heads: (E, L, H) target with one head edited − target as it is; NaN where a layer has fewer heads, or the
            edit cannot be made.
        layers: (E, L) with all heads of a layer edited; ``whole``: (E,) with all heads of all layers.
        target: what is measured; ``before``: its number as it is.
        shown: index of the edit that is drawn.
        marked: (layer, head), or None.
        title: what was edited where, such as "all rows" or "the row of [CLS]".
        kind: of attention.
        notes: what was held fixed and what a reader must know.
    """

    edits: tuple[str, ...]
    heads: Floats
    layers: Floats
    whole: Floats
    target: str
    before: float
    shown: int = 0
    marked: tuple[int, int] | None = None
    title: str = ""
    kind: Literal["encoder", "decoder", "cross"] = "encoder"
    notes: tuple[str, ...] = ()


TradeOffGroup = Literal["adversary", "seed", "uniform"]


@dataclass(frozen=True)
class TradeOffPoint:
    """One trained model against the base model, means over a test set (Wiegreffe & Pinter 2019, figure 5).

    Attributes:
        name: such as "adversary, λ = 0.001".
        group: an adversary, another seed of the same training, or attention held uniform.
        tvd, jsd: distance of predictions, and of attention in nats.
        tvd_interval, jsd_interval: (low, high), None where there is none.
        label: stands beside the point; "" for none.
    """

    name: str
    group: TradeOffGroup
    tvd: float
    jsd: float
    tvd_interval: tuple[float, float] | None = None
    jsd_interval: tuple[float, float] | None = None
    label: str = ""


@dataclass(frozen=True)
class TradeOff:
    """How far attention can be trained to move for how much change of the predictions.

    Attributes:
        points: trained models; adversaries by rising λ.
        title: of what, such as the test set.
        notes: what a reader must know.
    """

    points: tuple[TradeOffPoint, ...]
    title: str = ""
    notes: tuple[str, ...] = ()


Figure = (
    HeadView
    | ModelView
    | MatrixView
    | TokenScores
    | PatchMaps
    | EvidenceMaps
    | EvidenceWords
    | HeadGrid
    | AttentionContrast
    | CheckedSet
    | HeadEffects
    | TradeOff
    | MatrixSheet
    | CurveSheet
    | Timeline
    | Diagram
)


@dataclass(frozen=True)
class Provenance:
    """Where a figure comes from; written inside every exported file.

    Attributes:
        model, revision: name and exact revision (a commit, or the SHA-256 of the weights).
        input: the text(s) as typed, or the picture's name and SHA-256.
        layer: "3 of 6", or "all".
        heads: "5", "mean of 12", "1, 4, 7".
        aggregation: how heads or tokens were put together, "none" if they were not.
        method: "attention", "attention rollout (Abnar & Zuidema 2020)" ...
        settings: every other choice on the screen, plain values.
        notes: what the reader must know (truncated, sliding window, fallback ...).
        software: name and version of this program and of the libraries that computed it.
    """

    model: str
    revision: str
    input: str
    layer: str
    heads: str
    aggregation: str
    method: str
    settings: Mapping[str, object] = field(default_factory=dict)
    notes: Sequence[str] = ()
    software: Mapping[str, str] = field(default_factory=dict)


def weight_levels(weights: Floats) -> NDArray[np.uint8]:
    """Weights in [0, 1] as levels ``round(255 * sqrt(w))``: one byte each, small weights kept (0.001 is level 8).

    Args:
        weights: any shape; values outside [0, 1] are clipped.
    """
    return np.rint(255.0 * np.sqrt(np.clip(weights, 0.0, 1.0))).astype(np.uint8)


def strongest_cutoff(levels: NDArray[np.uint8], *, cap: int = LINE_CAP, floor: int = 1) -> int:
    """Smallest level such that at most ``cap`` entries reach it: the lines that a head view draws.

    Screen and export use this same rule on the same levels, so they draw the same lines. When one level alone holds
    more than ``cap`` entries the cut goes above it and fewer are drawn.

    Args:
        levels: any shape, the candidate lines (already filtered by head, token, pair filter).
        floor: never below this level (the threshold slider; 1 leaves out exact zeros).
    """
    counts = np.bincount(levels.ravel(), minlength=256)
    at_least = counts[::-1].cumsum()[::-1]  # (256,) how many reach each level
    allowed = np.flatnonzero(at_least <= cap)
    cutoff = int(allowed[0]) if allowed.size else 256
    return max(cutoff, floor)
