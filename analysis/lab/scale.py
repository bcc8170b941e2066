"""Why scores are divided by √d_k: what this does to scores, weights and gradients, measured on random vectors.

Vaswani et al. 2017, section 3.2.1: if the components of query and key are independent with mean 0 and variance 1,
their dot product has variance d_k; large scores push the softmax to where its gradient is small. All numbers come
from ``attn_core`` in float64, gradients from autograd through it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from analysis.figure_lab import Curve, CurvePanel, CurveSheet
from attn_core.functional import attention, masked_softmax
from attn_core.scores import scaled_dot_scores

Scaling = Literal["without", "with"]
SCALES: Mapping[Scaling, float | None] = {"without": 1.0, "with": None}
"""What Q Kᵀ is multiplied by; None = 1/√d_k."""

Statistic = Literal["variance", "largest", "entropy", "jacobian", "gradient"]
STATISTICS: tuple[Statistic, ...] = get_args(Statistic)

WIDTHS = tuple(2**power for power in range(11))
"""d_k of the curves, 1 to 1,024."""

REPEATS = 8
"""Draws that the intervals come from; the samples are shared out among them."""

STUDENT = 2.3646
"""97.5 % point of Student's t with ``REPEATS`` − 1 degrees of freedom."""

GRADIENT_NOTE = (
    "The gradient of the query is scale · Kᵀ · Jacobian · value: without the scale it is √dₖ times larger for the "
    "same Jacobian, so that it falls only once saturation outweighs this."
)

BINS = 41
_CHUNK = 1_000_000
"""Numbers of keys that are drawn at once."""


@dataclass(frozen=True)
class Estimate:
    """A statistic over repeated draws.

    Attributes:
        mean: of the repeats; ``low``, ``high``: its 95 % interval by Student's t.
    """

    mean: float
    low: float
    high: float

    @staticmethod
    def of(repeats: Tensor) -> Estimate:
        """The estimate from (``REPEATS``,) numbers."""
        values = repeats.numpy()
        half = STUDENT * values.std(ddof=1) / math.sqrt(len(values))
        return Estimate(float(values.mean()), float(values.mean() - half), float(values.mean() + half))


@dataclass(frozen=True)
class ScalingMeasured:
    """What the softmax gets and gives with one scaling.

    Attributes:
        variance: of the scores.
        largest: mean largest weight of a row; ``entropy``: mean entropy of a row as a share of log K.
        jacobian: mean Frobenius norm of ∂ weights / ∂ scores of a row.
        gradient: median norm of ∂ output / ∂ query, output with one channel.
        edges: (``BINS`` + 1,) ends of a histogram of scores; ``density``: (``BINS``,) of it.
        row: (K,) weights of the first row that was drawn.
    """

    variance: Estimate
    largest: Estimate
    entropy: Estimate
    jacobian: Estimate
    gradient: Estimate
    edges: tuple[float, ...]
    density: tuple[float, ...]
    row: tuple[float, ...]

    def estimate(self, statistic: Statistic) -> Estimate:
        """One of the statistics by its name."""
        found: Estimate = getattr(self, statistic)
        return found


@dataclass(frozen=True)
class WidthMeasured:
    """Everything that was measured at one d_k.

    Attributes:
        width: d_k; ``keys``: K; ``samples``: rows that were drawn, a multiple of ``REPEATS``.
        plain: without the scale; ``scaled``: with 1/√d_k, of the same vectors.
    """

    width: int
    keys: int
    samples: int
    plain: ScalingMeasured
    scaled: ScalingMeasured


def measured(width: int, *, keys: int, samples: int, seed: int) -> WidthMeasured:
    """Draw queries, keys and values of independent standard normal numbers and measure rows of attention.

    Args:
        width: d_k.
        keys: in a row, at least 2.
        samples: rows, at least 2 a repeat; rounded down to a multiple of ``REPEATS``.
        seed: of the vectors; another d_k has other vectors.
    Raises:
        ValueError: for a size below its least.
    """
    if width < 1 or keys < 2 or samples < 2 * REPEATS:
        raise ValueError(
            f"measured: width must be at least 1, keys at least 2 and samples at least {2 * REPEATS} but are "
            f"{width}, {keys} and {samples}; change them."
        )
    generator = torch.Generator().manual_seed(seed * 100_003 + width)
    rows = samples // REPEATS * REPEATS
    parts: dict[Scaling, list[_Rows]] = {scaling: [] for scaling in SCALES}
    chunk = max(1, _CHUNK // (keys * width))
    for start in range(0, rows, chunk):
        count = min(chunk, rows - start)
        query = torch.randn(count, 1, 1, width, generator=generator, dtype=torch.float64)
        key = torch.randn(count, 1, keys, width, generator=generator, dtype=torch.float64)
        value = torch.randn(count, 1, keys, 1, generator=generator, dtype=torch.float64)
        for scaling, scale in SCALES.items():
            parts[scaling].append(_rows(query, key, value, scale))
    found = {scaling: _summary(_joined(parts[scaling])) for scaling in SCALES}
    return WidthMeasured(width, keys, rows, found["without"], found["with"])


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows of attention: scores and weights (S, K), norms of Jacobians and of query gradients (S,)."""

    scores: Tensor
    weights: Tensor
    jacobian: Tensor
    gradient: Tensor


def _rows(query: Tensor, key: Tensor, value: Tensor, scale: float | None) -> _Rows:
    """One query a batch item: query (S, 1, 1, D), key (S, 1, K, D), value (S, 1, K, 1)."""
    asked = query.detach().requires_grad_()
    output = attention(asked, key, value, scale=scale)
    (gradient,) = torch.autograd.grad(output.context.sum(), asked)
    scores = scaled_dot_scores(query, key, scale=scale)[:, 0, 0]
    return _Rows(
        scores=scores,
        weights=output.weights.detach()[:, 0, 0],
        jacobian=_jacobian_norm(scores),
        gradient=gradient.flatten(1).norm(dim=1),
    )


def _jacobian_norm(scores: Tensor) -> Tensor:
    """(S,) Frobenius norm of the softmax's Jacobian at rows of scores (S, K), one of its rows at a time."""
    asked = scores.detach().requires_grad_()
    weights, _ = masked_softmax(asked[:, None, None], None)
    squares = torch.zeros(len(scores), dtype=scores.dtype)
    for weight in weights[:, 0, 0].unbind(1):
        (row,) = torch.autograd.grad(weight.sum(), asked, retain_graph=True)  # (S, K)
        squares += row.square().sum(1)
    return squares.sqrt()


def _joined(parts: Sequence[_Rows]) -> _Rows:
    return _Rows(*(torch.cat([getattr(part, name) for part in parts]) for name in vars(parts[0])))


def _summary(rows: _Rows) -> ScalingMeasured:
    """Statistics of each repeat's rows, and of these the estimates."""
    count, keys = rows.weights.shape
    repeats = count // REPEATS
    largest = rows.weights.amax(-1)
    entropy = torch.special.entr(rows.weights).sum(-1) / math.log(keys)
    edges, density = _histogram(rows.scores.numpy())
    return ScalingMeasured(
        variance=Estimate.of(rows.scores.view(REPEATS, -1).var(dim=1)),
        largest=Estimate.of(largest.view(REPEATS, repeats).mean(dim=1)),
        entropy=Estimate.of(entropy.view(REPEATS, repeats).mean(dim=1)),
        jacobian=Estimate.of(rows.jacobian.view(REPEATS, repeats).mean(dim=1)),
        gradient=Estimate.of(rows.gradient.view(REPEATS, repeats).quantile(0.5, dim=1)),
        edges=edges,
        density=density,
        row=tuple(rows.weights[0].tolist()),
    )


def _histogram(scores: NDArray[np.float64]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Edges and density of scores over a range that is symmetric about 0 and holds all of them."""
    end = float(np.abs(scores).max())
    density, edges = np.histogram(scores, bins=BINS, range=(-end, end), density=True)
    return tuple(edges.tolist()), tuple(density.tolist())


# Figure -------------------------------------------------------------------------------------------------------------

_HUES: Mapping[Scaling, int] = {"without": 3, "with": 0}
_NAMES: Mapping[Scaling, str] = {"without": "without the scale", "with": "with 1/√d_k"}


def scale_sheet(curves: Sequence[WidthMeasured], chosen: WidthMeasured) -> CurveSheet:
    """What was measured against d_k, and scores and one row of weights at the chosen d_k."""
    return CurveSheet(
        (
            _variance_panel(curves, chosen.width),
            _density_panel(chosen),
            _row_panel(chosen),
            _saturation_panel(curves, chosen.width),
            _panel(curves, "jacobian", "Jacobian of the softmax", "mean Frobenius norm", chosen.width),
            _panel(curves, "gradient", "Gradient of the query", "median norm", chosen.width),
        ),
        title="Scores, weights and gradients with and without the scale",
        notes=(
            f"Components of query, key and value are independent standard normal; {chosen.samples:,} rows of "
            f"{chosen.keys} keys at each dₖ. Bands are 95 % intervals of {REPEATS} repeated draws.",
            GRADIENT_NOTE,
        ),
    )


def _curve(
    curves: Sequence[WidthMeasured],
    statistic: Statistic,
    scaling: Scaling,
    name: str = "",
    style: Literal["line", "dashed"] = "line",
) -> Curve:
    found = [_of(one, scaling).estimate(statistic) for one in curves]
    x = np.array([float(one.width) for one in curves])
    y, low, high = (np.array([getattr(one, end) for one in found]) for end in ("mean", "low", "high"))
    return Curve(name or _NAMES[scaling], x, y, low, high, style, _HUES[scaling])


def _of(found: WidthMeasured, scaling: Scaling) -> ScalingMeasured:
    return found.plain if scaling == "without" else found.scaled


def _panel(
    curves: Sequence[WidthMeasured], statistic: Statistic, title: str, y_title: str, mark: int
) -> CurvePanel:
    both = tuple(_curve(curves, statistic, scaling) for scaling in SCALES)
    return CurvePanel(title, "d_k", y_title, both, log_x=True, log_y=True, mark=mark)


def _variance_panel(curves: Sequence[WidthMeasured], mark: int) -> CurvePanel:
    panel = _panel(curves, "variance", "Variance of the scores", "variance of q·k", mark)
    x = np.array([float(one.width) for one in curves])
    theory = (
        Curve("theory: d_k", x, x, style="dashed", hue=1),
        Curve("theory: 1", x, np.ones_like(x), style="dashed", hue=2),
    )
    return CurvePanel(
        panel.title, panel.x_title, panel.y_title, panel.curves + theory, log_x=True, log_y=True, mark=mark
    )


def _saturation_panel(curves: Sequence[WidthMeasured], mark: int) -> CurvePanel:
    lines = [_curve(curves, "largest", scaling, f"largest weight, {_NAMES[scaling]}") for scaling in SCALES]
    lines += [
        _curve(curves, "entropy", scaling, f"entropy / log K, {_NAMES[scaling]}", "dashed")
        for scaling in SCALES
    ]
    return CurvePanel("Saturation of the softmax", "d_k", "0 to 1", tuple(lines), log_x=True, mark=mark)


def _density_panel(chosen: WidthMeasured) -> CurvePanel:
    lines = []
    for scaling in SCALES:
        found = _of(chosen, scaling)
        edges = np.array(found.edges)
        lines.append(
            Curve(_NAMES[scaling], (edges[1:] + edges[:-1]) / 2, np.array(found.density), hue=_HUES[scaling])
        )
    return CurvePanel(f"Scores at d_k = {chosen.width}", "score", "density", tuple(lines))


def _row_panel(chosen: WidthMeasured) -> CurvePanel:
    x = np.arange(chosen.keys, dtype=float)
    bars = tuple(
        Curve(_NAMES[scaling], x, np.array(_of(chosen, scaling).row), style="bars", hue=_HUES[scaling])
        for scaling in SCALES
    )
    return CurvePanel(f"One row of weights at d_k = {chosen.width}", "key", "weight", bars)


# In words -----------------------------------------------------------------------------------------------------------

ALIKE = 1.05
"""Ratio below which two norms are said to be about the same."""


def scale_in_words(found: WidthMeasured) -> tuple[str, ...]:
    """What the scale does at one d_k, told from the numbers."""
    plain, scaled = found.plain, found.scaled
    if found.width == 1:
        return (
            f"At dₖ = 1 the scale is 1 and changes nothing: the scores' variance is "
            f"{_short(plain.variance.mean)} either way (theory: 1).",
        )
    return (
        f"At dₖ = {found.width} the scores' variance is {_with_interval(plain.variance)} without the scale (theory: "
        f"{found.width}) and {_with_interval(scaled.variance)} with it (theory: 1).",
        f"The largest of {found.keys} weights takes {_short(plain.largest.mean)} of a row on average without it and "
        f"{_short(scaled.largest.mean)} with it; an even row would give each {_short(1 / found.keys)}.",
        f"Without the scale the softmax passes on {_ratio(scaled.jacobian, plain.jacobian)} (norm of its Jacobian "
        f"{_short(plain.jacobian.mean)} against {_short(scaled.jacobian.mean)}), and half of the queries get a "
        f"gradient below {_short(plain.gradient.mean)}, with it below {_short(scaled.gradient.mean)}.",
    )


def _ratio(scaled: Estimate, plain: Estimate) -> str:
    """How much less or more gradient passes without the scale."""
    if plain.mean == 0:
        return "no gradient that float64 can hold"
    ratio = scaled.mean / plain.mean
    if max(ratio, 1 / ratio) < ALIKE:
        return "about the same gradient"
    return f"{_short(ratio)} times less gradient" if ratio > 1 else f"{_short(1 / ratio)} times more gradient"


def _with_interval(found: Estimate) -> str:
    return f"{_short(found.mean)} ({_short(found.low)} to {_short(found.high)})"


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def _short(value: float) -> str:
    """Three digits; powers of ten below a thousandth."""
    if value == 0 or abs(value) >= 1e-3:
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    mantissa, power = f"{value:.1e}".split("e")
    return f"{mantissa}·10{str(int(power)).translate(_RAISED)}"
