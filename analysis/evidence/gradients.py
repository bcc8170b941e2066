"""Gradient methods and occlusion through captum: Integrated Gradients, input × gradient, saliency, SmoothGrad.

They are taken at the word embeddings of a text (before positions and normalisation are added) and at the pixels of a
picture. A token's score is the sum over the hidden dimension, a patch's the sum over its pixels and channels. In an
encoder-decoder the encoder's embeddings alone are varied: what the decoder reads stays.

There is no layer-wise relevance propagation (LRP): captum's does not serve transformers. It works module by module
and stops at ``Embedding`` and ``LayerNorm``, for which it has no rule ("has no rule defined"); with rules set by hand
it refuses modules that are used twice, and the two products of attention are no modules, so no rule could reach them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from captum import metrics as metrics  # handed on: captum is imported in this file alone
from captum.attr import InputXGradient, IntegratedGradients, Occlusion, Saliency
from torch import Tensor, nn

from analysis.estimate import Estimate, check_run
from analysis.evidence.blocks import graph_bytes
from analysis.evidence.explanation import Explanation, explanation_of, kept_positions, position_count
from analysis.evidence.passes import ForwardPass
from analysis.evidence.perturbation import (
    Replacement,
    batch_items,
    blank_of,
    check_passes,
    entry_of,
    fill_words,
    outputs_at,
    replacement_note,
    resolved,
    target_values,
    word_parts,
)
from analysis.evidence.targets import Target
from attn_core.errors import UnsupportedModelError

BATCH_TOKENS = 1500
"""Positions of all items of a batch together (batches of 1000 to 2000 are fastest on a CPU)."""

ROUNDING = 1e-4
"""Share of Σ|gradient| below which sums of signed gradients are rounding and no answer."""

LARGE_ERROR = 0.05
"""Share of f(x) − f(baseline) by which Integrated Gradients may miss it before the answer says so."""


def integrated_gradients(
    run: ForwardPass,
    target: Target,
    *,
    steps: int = 50,
    stretches: int = 5,
    most: int = 200,
    baseline: Replacement = "default",
    progress: Callable[[float], None] | None = None,
) -> Explanation:
    """(x − x′) ∘ ∫ ∂f(x′ + α (x − x′))/∂x dα, along the straight line from a baseline x′; signed
    (Sundararajan, Taly & Yan 2017, "Axiomatic Attribution for Deep Networks", section 3).

    All scores, those of special tokens included, sum to f(x) − f(x′); ``details["delta"]`` is what they miss it by.
    Near an empty input most models are steep, so the line is cut into stretches that end at 1, 1/3, 1/9 ..., each
    integrated by Gauss–Legendre. While ``delta`` is above 5 % of the difference, the stretch that misses its own part
    of the difference by most is halved.

    Args:
        steps: points on the line at first, shared equally by the stretches.
        stretches: 1 for one rule over the whole line.
        most: points on the line at last; no halving goes beyond.
        baseline: a ``perturbation.Replacement`` other than "remove"; special tokens of a text are kept, except under
            "zero". The attention mask stays as it is.
        progress: told how much of ``most`` is done, then 1; what it raises stops the method and comes out of it.
    Raises:
        ValueError: if ``steps`` or ``stretches`` is below 1, there is no such baseline, or the target is not finite.
        UnsupportedModelError: if the target does not depend on the input through differentiable operations.
    """
    _check_number(steps, 1, "integrated_gradients: steps")
    _check_number(stretches, 1, "integrated_gradients: stretches")
    kind = resolved(run, baseline, "integrated_gradients: baseline", removal=False)
    value, entry = _finite_value(run, target, "integrated_gradients"), entry_of(run)
    start = torch.zeros_like(entry) if kind == "zero" else blank_of(run, kind)
    each = max(1, round(steps / stretches))
    count = max(1, round(steps / each))
    most = max(most, count * each)
    method = IntegratedGradients(_counted(run, target, most + 2 * most // each, progress))

    def integrated(first: float, last: float) -> _Stretch:
        scores, delta = method.attribute(
            torch.lerp(start, entry, last),
            baselines=torch.lerp(start, entry, first),
            n_steps=each,
            method="gausslegendre",
            internal_batch_size=batch_items(run.model, run.inputs, BATCH_TOKENS),
            return_convergence_delta=True,
        )
        return _Stretch(first, last, scores, float(delta[0]))

    ends = [0.0, *(3.0 ** (index - count) for index in range(1, count + 1))]
    parts = [integrated(first, last) for first, last in pairwise(ends)]
    taken = count * each
    while _misses(parts) and taken + 2 * each <= most:
        worst = max(parts, key=lambda part: abs(part.delta))
        parts.remove(worst)
        middle = (worst.first + worst.last) / 2
        parts += [integrated(worst.first, middle), integrated(middle, worst.last)]
        taken += 2 * each
    if progress is not None:
        progress(1.0)
    error, rise = sum(part.delta for part in parts), sum(part.rise for part in parts)
    notes = [_baseline_note(run, kind), *_decoder_note(run)]
    if _misses(parts):
        notes.append(
            f"The scores sum to {rise + error:.3g} where f(x) − f(baseline) is {rise:.3g}, after {taken} steps; "
            "take more, or another baseline."
        )
    return explanation_of(
        "integrated_gradients",
        _by_position(run, torch.stack([part.scores for part in parts]).sum(0)),
        run.inputs,
        target=target.label,
        details={"delta": error, "steps": float(taken), "value": value, "baseline_value": value - rise},
        notes=notes,
    )


@dataclass(frozen=True, eq=False)
class _Stretch:
    """A part of the line, from one share of the way to another: its scores, and what they miss its rise by."""

    first: float
    last: float
    scores: Tensor
    delta: float

    @property
    def rise(self) -> float:
        return float(self.scores.sum()) - self.delta


def _misses(parts: Sequence[_Stretch]) -> bool:
    error, rise = sum(part.delta for part in parts), sum(part.rise for part in parts)
    return abs(error) > LARGE_ERROR * abs(rise)


def _baseline_note(run: ForwardPass, kind: str) -> str:
    if run.inputs.grid is not None:
        return f"Baseline: {fill_words(run, kind)}."
    which = "all tokens, special ones included" if kind == "zero" else "every token but the special ones"
    return f"Baseline: {fill_words(run, kind)} in place of {which}."


def input_x_gradient(run: ForwardPass, target: Target) -> Explanation:
    """x ∘ ∂f/∂x: exact for a linear f (Shrikumar et al. 2016, "Not Just a Black Box", arXiv 1605.01713); signed.

    Raises:
        ValueError, UnsupportedModelError: as ``integrated_gradients``.
    """
    value = _finite_value(run, target, "input_x_gradient")
    scores = InputXGradient(_counted(run, target, 1, None)).attribute(_leaf(run))
    return explanation_of(
        "input_x_gradient",
        _by_position(run, scores),
        run.inputs,
        target=target.label,
        details={"value": value},
        notes=_decoder_note(run),
    )


def saliency(run: ForwardPass, target: Target, *, absolute: bool = True) -> Explanation:
    """|∂f/∂x|: how strongly a small change there moves the target (Simonyan, Vedaldi & Zisserman 2014, "Deep Inside
    Convolutional Networks", section 3); summed over what belongs to a token or patch.

    Args:
        absolute: take |·| of each component before summing; else the components keep their sign. Behind the word
            embeddings of most encoders comes a LayerNorm, which takes their mean off: signed components of a token
            then sum to 0, and a note says so.
    Raises:
        ValueError, UnsupportedModelError: as ``integrated_gradients``.
    """
    value = _finite_value(run, target, "saliency")
    scores = Saliency(_counted(run, target, 1, None)).attribute(_leaf(run), abs=absolute)
    raw = _by_position(run, scores)
    cancels = float(raw.abs().sum()) < ROUNDING * float(scores.abs().sum())
    note = "Signed gradients cancel within each token of this model: what is left is rounding."
    return explanation_of(
        "saliency",
        raw,
        run.inputs,
        target=target.label,
        signed=not absolute,
        details={"value": value},
        notes=(*((note,) if cancels else ()), *_decoder_note(run)),
    )


def smooth_grad(
    run: ForwardPass,
    target: Target,
    *,
    samples: int = 20,
    level: float = 0.1,
    seed: int = 0,
    progress: Callable[[float], None] | None = None,
) -> Explanation:
    """|mean of ∂f/∂x over noisy copies of x|, summed as in ``saliency`` (Smilkov et al. 2017, "SmoothGrad", sec. 3).

    What captum's ``NoiseTunnel`` does around its ``Saliency``, but with a generator of its own: ``NoiseTunnel`` draws
    from the global random state, which all threads share.

    Args:
        samples: noisy copies.
        level: standard deviation of the noise as a share of max x − min x.
        seed: of the noise; equal seeds give equal scores.
        progress: told how much is done, 0 to 1; what it raises stops the method and comes out of it.
    Raises:
        ValueError: if ``samples`` is below 1 or ``level`` below 0; else as ``integrated_gradients``.
        UnsupportedModelError: as ``integrated_gradients``.
    """
    _check_number(samples, 1, "smooth_grad: samples")
    _check_number(level, 0, "smooth_grad: level")
    value = _finite_value(run, target, "smooth_grad")
    still = entry_of(run)
    deviation = level * float(still.max() - still.min())
    generator = torch.Generator().manual_seed(seed)
    gradient = Saliency(_counted(run, target, samples, progress))
    total, size = torch.zeros_like(still[0]), batch_items(run.model, run.inputs, BATCH_TOKENS)
    for first in range(0, samples, size):
        shape = (min(size, samples - first), *still.shape[1:])
        noise = torch.randn(shape, generator=generator).to(still)
        total = total + gradient.attribute((still + deviation * noise).requires_grad_(), abs=False).sum(0)
    return explanation_of(
        "smooth_grad",
        _by_position(run, (total / samples).abs()[None]),
        run.inputs,
        target=target.label,
        signed=False,
        details={"value": value, "samples": float(samples), "level": float(level), "seed": float(seed)},
        notes=_decoder_note(run),
    )


def default_window(run: ForwardPass) -> int:
    """Of ``occlusion``: a word of a text; a square of 3 patches, if there are as many, because one alone hardly
    changes a picture."""
    grid = run.inputs.grid
    return 1 if grid is None else min(3, grid.rows, grid.columns)


def occlusion(
    run: ForwardPass,
    target: Target,
    *,
    window: int | None = None,
    replacement: Replacement = "default",
    progress: Callable[[float], None] | None = None,
) -> Explanation:
    """f(x) − f(x with a window replaced), the window sliding over words or patches; signed (Zeiler &
    Fergus 2014, "Visualizing and Understanding Convolutional Networks", section 4.2).

    A word or patch gets the mean over the windows that cover it; a word's score is shared equally between its tokens.

    Args:
        window: words in a row, or the side of a square of patches; None is ``default_window``.
        replacement: what the window shows; see ``perturbation.Replacement``.
        progress: told how much is done, 0 to 1; what it raises stops the method and comes out of it.
    Raises:
        ValueError: if ``window`` is below 1 or larger than the input; else as ``perturbation.target_values``.
        UnsupportedModelError: as ``perturbation.target_values``.
    """
    grid = run.inputs.grid
    words = word_parts(run) if grid is None else []
    shape = (len(words),) if grid is None else (grid.rows, grid.columns)
    window = default_window(run) if window is None else window
    if not 1 <= window <= max(1, min(shape)):
        raise ValueError(
            f"occlusion: window must be between 1 and {max(1, min(shape))} for this input but is {window}."
        )
    kind = resolved(run, replacement, "occlusion: replacement")
    value, kept = _finite_value(run, target, "occlusion"), kept_positions(run.inputs)
    owner = torch.zeros(len(kept), dtype=torch.long)  # the word, or patch, of each kept position
    for index, part in enumerate(words or [(place,) for place in range(len(kept))]):
        owner[list(part)] = index
    places = math.prod(side - window + 1 for side in shape)
    check_passes(run, places + 1, "occlusion")
    tell = _counter(places + 1, progress)

    def values(seen: Tensor) -> Tensor:
        """(B, *shape), 0 where the window lies → the target's values."""
        hidden = seen.flatten(1)[:, owner] < 0.5
        found = target_values(run, target, hidden, replacement=replacement)
        tell(len(found))
        return found

    raw = torch.zeros(position_count(run.inputs), dtype=torch.promote_types(run.model.dtype, torch.float32))
    if len(kept):
        found = Occlusion(values).attribute(
            torch.ones(1, *shape, dtype=raw.dtype),
            sliding_window_shapes=(window,) * len(shape),
            baselines=0.0,
            perturbations_per_eval=batch_items(run.model, run.inputs, BATCH_TOKENS),
        )
        raw[kept] = (found.flatten()[owner] / owner.bincount()[owner]).to(raw)  # captum's are single
    return explanation_of(
        "occlusion",
        raw,
        run.inputs,
        target=target.label,
        details={"value": value, "window": float(window), "replacement": kind},
        notes=(replacement_note(run, kind), *_decoder_note(run)),
    )


# Where gradients are taken ---------------------------------------------------------------------------------------


def _leaf(run: ForwardPass) -> Tensor:
    """``entry_of`` as a new leaf that takes a gradient."""
    return entry_of(run).clone().requires_grad_()


def _by_position(run: ForwardPass, attribution: Tensor) -> Tensor:
    """(N,): one number a position, from (1, N, M) or (1, C, H, W)."""
    grid, found = run.inputs.grid, attribution[0].detach()
    if grid is None:
        return found.sum(-1)
    pixels = found.sum(0)[: grid.height, : grid.width]
    missing = (0, grid.width - pixels.shape[1], 0, grid.height - pixels.shape[0])
    squares = nn.functional.pad(pixels, missing).reshape(grid.rows, grid.patch, grid.columns, grid.patch)
    return torch.cat([pixels.new_zeros(grid.prefix_tokens), squares.sum((1, 3)).flatten()])


# The target as a function of embeddings or pixels ----------------------------------------------------------------


def _counted(
    run: ForwardPass, target: Target, total: int, progress: Callable[[float], None] | None
) -> Callable[[Tensor], Tensor]:
    """(B, ...) embeddings or pixels → (B,) the target, telling how many of ``total`` items it has run.

    Raises:
        MemoryBudgetError: if the graph of one item would not fit into what is free.
    """
    positions = position_count(run.inputs)
    check_run(
        Estimate(0.0, graph_bytes(run.model, positions), 0),
        what=f"The graph of a pass over {positions:,} positions, down to the input,",
        instead="choose CDAM, GradCAM or relevance, which need no whole graph, or a smaller input",
    )
    tell = _counter(total, progress)

    def forward(entries: Tensor) -> Tensor:
        values = target.value(outputs_at(run, entries))
        if torch.is_grad_enabled() and entries.requires_grad and not values.requires_grad:
            raise UnsupportedModelError(
                f"gradients: {target.label!r} does not depend on the input of this model through any differentiable "
                "operation; choose a perturbation method."
            )
        tell(len(entries))
        return values

    return forward


def _counter(total: int, progress: Callable[[float], None] | None) -> Callable[[int], None]:
    """Adds up items that were run and tells which share of ``total`` is done."""
    done = 0

    def tell(count: int) -> None:
        nonlocal done
        done += count
        if progress is not None:
            progress(min(done / total, 1.0))

    return tell


# Checks and notes ------------------------------------------------------------------------------------------------


def _finite_value(run: ForwardPass, target: Target, caller: str) -> float:
    value = run.value(target)
    if not torch.isfinite(torch.tensor(value)):
        raise ValueError(f"{caller}: the target {target.label!r} is {value}; choose another.")
    return value


def _check_number(value: float, least: float, name: str) -> None:
    if not value >= least:
        raise ValueError(f"{name} must be at least {least} but is {value}.")


def _decoder_note(run: ForwardPass) -> tuple[str, ...]:
    if not run.model.is_encoder_decoder:
        return ()
    return ("Only what the encoder reads is varied; the decoder's input stays.",)
